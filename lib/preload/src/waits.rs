//! The calls that wait for descriptors. What they say is the kernel's: a ring's socket is readable while there is a
//! token in it. A token of before may be there although all is read, which is taken first.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::cancelled::Held;
use crate::record::RING;
use crate::{real, receive, table};
use libc::{POLLIN, POLLRDNORM, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::ffi::{c_int, c_ulong};
use std::sync::atomic::Ordering;

/// One is about to be waited for.
fn rests(fd: c_int) {
    if let Some(held) = table::hold(fd).map(Held)
        && held.0.state.load(Ordering::Acquire) == RING
    {
        receive::rest(held.0, fd);
    }
}

/// A set of epoll watches it from now on, whenever it is waited for: each read looks after it.
pub fn watches(fd: c_int) {
    if let Some(held) = table::hold(fd).map(Held) {
        held.0.watched.store(1, Ordering::Release);
    }
    rests(fd);
}

/// Those of a list.
unsafe fn polled(list: *const pollfd, n: nfds_t) {
    if list.is_null() || !table::follows() {
        return;
    }
    for at in 0..n as usize {
        // SAFETY: the caller's promise: so many are there.
        let one = unsafe { &*list.add(at) };
        if one.events & (POLLIN | POLLRDNORM) != 0 {
            rests(one.fd);
        }
    }
}

/// Those of a set.
unsafe fn selected(n: c_int, set: *const fd_set) {
    if set.is_null() || !table::follows() {
        return;
    }
    for at in 0..n.max(0) / c_ulong::BITS.cast_signed() + 1 {
        let first = at * c_ulong::BITS.cast_signed();
        if first >= n {
            break;
        }
        // SAFETY: the caller's promise: a set has words for so many.
        let mut word = unsafe { *set.cast::<c_ulong>().add(at as usize) };
        while word != 0 {
            let fd = first + word.trailing_zeros().cast_signed();
            word &= word - 1;
            if fd < n {
                rests(fd);
            }
        }
    }
}

exported! {
    poll(list: *mut pollfd, n: nfds_t, limit: c_int) -> c_int {
        polled(list, n);
        real::poll(list, n, limit)
    }
    __poll(list: *mut pollfd, n: nfds_t, limit: c_int) -> c_int { poll(list, n, limit) }
    __poll_chk(list: *mut pollfd, n: nfds_t, limit: c_int, room: libc::size_t) -> c_int {
        if room / size_of::<pollfd>() < n as usize { std::process::abort() }
        poll(list, n, limit)
    }
    ppoll(list: *mut pollfd, n: nfds_t, limit: *const timespec, signals: *const sigset_t) -> c_int {
        polled(list, n);
        real::ppoll(list, n, limit, signals)
    }
    __ppoll_chk(list: *mut pollfd, n: nfds_t, limit: *const timespec, signals: *const sigset_t, room: libc::size_t) -> c_int {
        if room / size_of::<pollfd>() < n as usize { std::process::abort() }
        ppoll(list, n, limit, signals)
    }
    select(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *mut timeval) -> c_int {
        selected(n, to_read);
        real::select(n, to_read, to_write, other, limit)
    }
    __select(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *mut timeval) -> c_int {
        select(n, to_read, to_write, other, limit)
    }
    pselect(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *const timespec, signals: *const sigset_t) -> c_int {
        selected(n, to_read);
        real::pselect(n, to_read, to_write, other, limit, signals)
    }
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let done = real::epoll_ctl(set, what, fd, event);
        if done == 0 && what != libc::EPOLL_CTL_DEL {
            watches(fd);
        }
        done
    }
}
