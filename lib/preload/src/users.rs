//! Calls after which a process is another user's: what it shares with the one that it was forked by
//! is memory that either could write nonsense into.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::cancelled::kept;
use crate::{real, table};
use libc::uid_t;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Real, effective and saved.
fn users() -> [uid_t; 3] {
    let mut users = [0; 3];
    let [real, effective, saved] = &mut users;
    // SAFETY: three numbers that are there.
    unsafe { libc::getresuid(real, effective, saved) };
    users
}

/// Calls, and goes its own way where the process is now wholly another user's: who keeps a way back
/// is still the same.
fn changes(call: impl FnOnce() -> c_int) -> c_int {
    let before = users();
    let done = call();
    let after = users();
    let is_another = before != after && after.iter().all(|user| *user == after[0]);
    if done == 0 && is_another && is_alone() {
        quietly(table::parts);
    }
    done
}

/// Whether the C library says that there is no other thread.
pub fn is_alone() -> bool {
    static AT: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    let mut at = AT.load(Ordering::Relaxed);
    if at.is_null() {
        // SAFETY: a name that ends.
        at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.cast();
        AT.store(at, Ordering::Relaxed);
    }
    // SAFETY: what is there, if anything, is one byte for good.
    unsafe { at.as_ref().is_some_and(|alone| *alone != 0) }
}

/// Without a signal's handler meanwhile, and without being cancelled.
pub fn quietly(what: impl FnOnce()) {
    kept(|| without_signals(what));
}

fn without_signals(what: impl FnOnce()) {
    // SAFETY: sets of signals that are there.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        what();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

exported! {
    setuid(user: uid_t) -> c_int { changes(|| real::setuid(user)) }
    setreuid(real_user: uid_t, effective: uid_t) -> c_int {
        changes(|| real::setreuid(real_user, effective))
    }
    setresuid(real_user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        changes(|| real::setresuid(real_user, effective, saved))
    }
}
