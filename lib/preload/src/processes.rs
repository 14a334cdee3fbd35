//! The calls that make processes; the library's begin and end.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::leave::left;
use crate::{arena, forking, gate, given, lock, log, real, table};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

unsafe extern "C" {
    fn __register_atfork(
        before: extern "C" fn(),
        parent: Option<extern "C" fn()>,
        child: extern "C" fn(),
        library: *mut std::ffi::c_void,
    ) -> c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    // A stack is unwound here where a thread is cancelled, and nowhere else.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    log::begin();
    arena::make();
    // SAFETY: functions that are there for as long as the process is: nobody unloads what was
    // loaded first.
    unsafe { __register_atfork(before, Some(parent), child, std::ptr::null_mut()) };
}

extern "C" fn end() {
    table::ends();
}

/// The process that forks, as it knows itself.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process is about to be made.
pub fn forks() {
    FORKS.store(std::process::id(), Ordering::Relaxed);
}

/// In it: another PID namespace shows another's number, or none. So does a parent that has ended by now, for which it is no
/// harm to be taken for one elsewhere.
pub fn is_forked() {
    is_forked_by(real::raw(libc::SYS_getppid, []));
}

/// The same, by a process of which the parent is known.
pub fn is_forked_by(parent: isize) {
    lock::is_another();
    if parent.cast_unsigned() as u32 != FORKS.load(Ordering::Relaxed) {
        lock::is_elsewhere(arena::another_place());
    }
}

extern "C" fn before() {
    // Both have all numbers as they are.
    std::mem::forget(gate::enter());
    forks();
    table::forks();
}

extern "C" fn parent() {
    forking::ends();
    given::none_is_forked();
    gate::leave();
}

extern "C" fn child() {
    gate::is_forked();
    is_forked();
    table::is_forked();
}

/// What came of it: none was made if it is less than nothing.
fn or_not(pid: libc::pid_t) -> libc::pid_t {
    if pid < 0 {
        table::forks_not();
    }
    pid
}

exported! {
    fork() -> libc::pid_t { or_not(real::fork()) }
    // A child that shares its parent's memory would change its table of descriptors.
    vfork() -> libc::pid_t { or_not(real::fork()) }
    __vfork() -> libc::pid_t { or_not(real::fork()) }
    // It runs none of what is to be run at a fork.
    _Fork() -> libc::pid_t {
        before();
        let pid = real::_Fork();
        match pid {
            0 => child(),
            _ => parent(),
        }
        or_not(pid)
    }
    system(line: *const c_char) -> c_int {
        table::starts();
        real::system(line)
    }
    popen(line: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        table::starts();
        real::popen(line, mode)
    }
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t, how: *const libc::posix_spawnattr_t, words: *const *mut c_char, environment: *const *mut c_char) -> c_int {
        table::starts();
        real::posix_spawn(pid, path, actions, how, words, environment)
    }
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t, how: *const libc::posix_spawnattr_t, words: *const *mut c_char, environment: *const *mut c_char) -> c_int {
        table::starts();
        real::posix_spawnp(pid, path, actions, how, words, environment)
    }
    posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int {
        // The C library copies it in the child by itself.
        match left(fd) {
            true => real::posix_spawn_file_actions_adddup2(actions, fd, to),
            false => real::errno(),
        }
    }
}
