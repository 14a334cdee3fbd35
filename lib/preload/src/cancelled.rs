//! A thread that is cancelled while it is in here.
//!
//! It ends where the C library looks for that, in calls that may wait; its stack is unwound from there, through
//! this library too. So what may wait is a call of the C library's, and what is held meanwhile is given back by who is
//! dropped. All else is a system call by itself ([`real::raw`]), or is done [`kept`].
#![expect(unsafe_code, reason = "calls of the C library's")]

use crate::lock::Lock;
use crate::real;
use crate::record::Record;
use crate::table;
use std::ffi::c_int;

/// PTHREAD_CANCEL_DISABLE.
const NOT_NOW: c_int = 1;

/// Without being cancelled meanwhile.
pub fn kept<T>(what: impl FnOnce() -> T) -> T {
    let mut before = NOT_NOW;
    // SAFETY: room for the state before; nothing unwinds in between.
    let known = unsafe { real::pthread_setcancelstate(NOT_NOW, &raw mut before) } == 0;
    let done = what();
    if known && before != NOT_NOW {
        // SAFETY: no memory is involved: the state before is not asked for.
        unsafe { real::pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
    done
}

/// Ends the thread here if it is to, as each call that moves bytes may.
pub fn may_end() {
    // SAFETY: what is held by now is given back by who is dropped.
    unsafe { real::pthread_testcancel() };
}

/// Gives a record back.
pub struct Held(pub &'static Record);

impl Drop for Held {
    fn drop(&mut self) {
        table::put(self.0);
    }
}

/// Gives a lock back.
pub struct Taken<'a>(pub &'a Lock);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.give();
    }
}
