//! The calls that wait for descriptors. What they say is the kernel's: a ring's socket is readable while there is a
//! token in it. A token of before may be there although all is read, which is taken first; one that comes late is taken
//! where a list or a set says that it is there. A set of epoll says by no number of what it speaks: there it is not.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::cancelled::Held;
use crate::record::RING;
use crate::socket::polled;
use crate::{gate, real, receive, table};
use libc::{POLLIN, POLLRDNORM, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::cell::Cell;
use std::ffi::{c_int, c_ulong};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TO_READ: i16 = POLLIN | POLLRDNORM;

/// One is about to be waited for.
fn rests(fd: c_int) {
    if let Some(held) = table::hold(fd).map(Held)
        && held.0.state.load(Ordering::Acquire) == RING
    {
        receive::rest(held.0, fd);
    }
}

/// A set of epoll watches it from now on, or a signal tells of it, whenever that is waited for: each read looks after it.
pub fn watches(fd: c_int) {
    if let Some(held) = table::hold(fd).map(Held) {
        held.0.watched.store(1, Ordering::Release);
    }
    rests(fd);
}

/// Whether one that was found readable has nothing to read: its token was that of what is read by now.
fn is_empty(fd: c_int) -> bool {
    table::hold(fd).map(Held).is_some_and(|held| {
        held.0.state.load(Ordering::Acquire) == RING && !receive::is_ready(held.0, fd)
    })
}

/// Of what was found, what TCP would not tell: an AF_UNIX socket hangs up with its peer's close, TCP's with both ends', and who
/// takes that for the end reads nothing of what lies before it. An error is told once all is read.
fn not_yet(fd: c_int, found: i16) -> i16 {
    let Some(held) = table::hold(fd).map(Held) else {
        return 0;
    };
    let record = held.0;
    let is_error = found & libc::POLLERR != 0;
    let is_all = || {
        let is_ring = record.state.load(Ordering::Acquire) == RING;
        !is_ring || receive::pending(record, fd, || 0).unwrap_or(0) == 0
    };
    // One that is not connected hangs up by TCP too.
    let has_ended = || polled(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
    match record.said_all.load(Ordering::Acquire) != 0 || !has_ended() || (is_error && is_all()) {
        true => 0,
        false => libc::POLLHUP | libc::POLLERR,
    }
}

/// Those of a list, before it is waited for.
unsafe fn all_rest(list: *const pollfd, n: nfds_t) {
    for at in 0..n as usize {
        // SAFETY: the caller's promise: so many are there.
        let one = unsafe { &*list.add(at) };
        if one.events & TO_READ != 0 {
            rests(one.fd);
        }
    }
}

/// As many of a list are looked at for what TCP would not tell.
const HIDDEN: usize = 256;
/// How long those are not asked for that alone hang up: another thread may say all as well meanwhile, which is told then.
const WHILE: Duration = Duration::from_millis(100);

/// Those of a list that the kernel is not asked for meanwhile: it has nothing else to tell of them, and that at once.
#[derive(Default, PartialEq, Eq)]
struct Hidden([u64; HIDDEN / 64]);

impl Hidden {
    fn hides(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    fn has(&self, at: usize) -> bool {
        let word = self.0.get(at / 64);
        word.is_some_and(|it| (it >> (at % 64)) & 1 != 0)
    }

    fn is_none(&self) -> bool {
        *self == Hidden::default()
    }

    /// Has the kernel asked for the others of a list.
    unsafe fn without(
        &self,
        list: *mut pollfd,
        n: nfds_t,
        kernel: impl FnOnce(*mut pollfd) -> c_int,
    ) -> c_int {
        if self.is_none() {
            return kernel(list);
        }
        let nothing = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let mut own = [nothing; HIDDEN];
        for (at, one) in own.iter_mut().enumerate().take(n as usize) {
            if !self.has(at) {
                // SAFETY: the caller's promise: so many are there.
                *one = unsafe { *list.add(at) };
            }
        }
        let came = kernel(own.as_mut_ptr());
        for (at, one) in own.iter().enumerate().take(n as usize) {
            // SAFETY: as above.
            unsafe { (*list.add(at)).revents = one.revents };
        }
        came
    }
}

/// As many as are there for nothing, of a list that was waited for; those that hang up as TCP would not, and do nothing else, are
/// hidden.
unsafe fn for_nothing(list: *mut pollfd, n: nfds_t, hidden: &mut Hidden) -> c_int {
    let mut none = 0;
    for at in 0..n as usize {
        // SAFETY: the caller's promise: so many are there.
        let one = unsafe { &mut *list.add(at) };
        let before = one.revents;
        if before & libc::POLLHUP != 0 && n as usize <= HIDDEN {
            one.revents &= !not_yet(one.fd, before);
            if one.revents == 0 {
                hidden.hides(at);
            }
        }
        let reads = one.revents & TO_READ != 0;
        if reads
            && one.revents & !(TO_READ | libc::POLLOUT | libc::POLLWRNORM) == 0
            && is_empty(one.fd)
        {
            one.revents &= !TO_READ;
        }
        none += c_int::from(before != 0 && one.revents == 0);
    }
    none
}

/// Waits by `kernel` for what is there for something, so long; none: for ever.
unsafe fn waits(
    list: *mut pollfd,
    n: nfds_t,
    limit: Option<Duration>,
    kernel: impl Fn(*mut pollfd, Option<Duration>) -> c_int,
) -> c_int {
    if list.is_null() || !table::follows() {
        return kernel(list, limit);
    }
    shm::give_back_tables();
    let begun = Instant::now();
    let (mut left, mut hidden, mut is_last) = (limit, Hidden::default(), false);
    // Bound: the tokens that peers send, and the time.
    loop {
        // SAFETY: the caller's promise.
        unsafe { all_rest(list, n) };
        let part = match hidden.is_none() {
            true => left,
            false => Some(left.map_or(WHILE, |left| left.min(WHILE))),
        };
        // SAFETY: as above.
        let came = unsafe { hidden.without(list, n, |list| kernel(list, part)) };
        left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let is_over = left == Some(Duration::ZERO);
        match came {
            0 if hidden.is_none() || is_over => return 0,
            0 => hidden = Hidden::default(),
            ..0 => return came,
            _ => {
                // SAFETY: as above.
                let came = came - unsafe { for_nothing(list, n, &mut hidden) };
                if came > 0 || (is_over && (hidden.is_none() || is_last)) {
                    return came;
                }
                // Without those, for a signal that the mask of a `ppoll` lets in: the kernel had something to tell.
                is_last = is_over;
            }
        }
    }
}

/// Asks the kernel until it finds something else than what is `found` for nothing, or for so long.
fn rounds(
    limit: Option<Duration>,
    rests: impl Fn(),
    mut kernel: impl FnMut(Option<Duration>) -> c_int,
    found: impl Fn() -> c_int,
) -> c_int {
    shm::give_back_tables();
    let begun = Instant::now();
    let mut left = limit;
    // Bound: the tokens that peers send.
    loop {
        rests();
        let came = kernel(left);
        if came <= 0 {
            return came;
        }
        let came = came - found();
        left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        if came > 0 || left == Some(Duration::ZERO) {
            return came;
        }
    }
}

/// How long a call waits; none: for ever. `Err`: it is no time, which is the kernel's to refuse.
fn time_of(limit: Option<&timespec>) -> Result<Option<Duration>, ()> {
    let time = limit.map(|it| (u64::try_from(it.tv_sec), u32::try_from(it.tv_nsec)));
    match time {
        None => Ok(None),
        Some((Ok(seconds), Ok(nanos @ 0..1_000_000_000))) => {
            Ok(Some(Duration::new(seconds, nanos)))
        }
        Some(_) => Err(()),
    }
}

fn timespec_of(time: Duration) -> timespec {
    timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn timeval_of(time: Duration) -> timeval {
    timeval {
        tv_sec: time.as_secs().cast_signed(),
        tv_usec: time.subsec_micros().into(),
    }
}

/// Bits of a word of a set.
const BITS: c_int = c_ulong::BITS.cast_signed();
/// Words of a set as the C library has it: no more are put aside. Of a larger one that a program made itself nobody
/// knows how far it goes.
const WORDS: usize = libc::FD_SETSIZE / c_ulong::BITS as usize;

type Words = [c_ulong; WORDS];

/// Each of a set, up to a number that it has room for.
unsafe fn each(n: c_int, set: *const c_ulong, mut what: impl FnMut(c_int)) {
    // So many may be more than the set has room for: the kernel looks at no more than there are descriptors.
    let n = n.min(table::highest().saturating_add(1));
    for first in (0..n.max(0)).step_by(BITS as usize) {
        // SAFETY: the caller's promise: a set has words for so many.
        let mut word = unsafe { *set.add((first / BITS) as usize) };
        while word != 0 {
            let fd = first + word.trailing_zeros().cast_signed();
            word &= word - 1;
            if fd < n {
                what(fd);
            }
        }
    }
}

/// As many as were found readable for nothing, which are taken out of the set.
fn taken_out(n: c_int, set: &mut Words) -> c_int {
    let mut none = 0;
    let found = *set;
    // SAFETY: no more are looked at than it has words for.
    unsafe {
        each(n, found.as_ptr(), |fd| {
            if is_empty(fd)
                && let Some(word) = set.get_mut((fd / BITS) as usize)
            {
                *word &= !(1 << (fd % BITS));
                none += 1;
            }
        });
    }
    none
}

/// Sets as a program gave them, in copies: two of them may be the same one.
struct Sets {
    given: [*mut fd_set; 3],
    words: usize,
    before: [Words; 3],
}

impl Sets {
    unsafe fn of(n: c_int, given: [*mut fd_set; 3]) -> Sets {
        let words = (n.max(0) as usize).div_ceil(BITS as usize);
        let mut before = [[0; WORDS]; 3];
        for (set, before) in given.iter().zip(&mut before) {
            for (at, word) in before.iter_mut().enumerate().take(words) {
                if !set.is_null() {
                    // SAFETY: the caller's promise: a set has words for so many.
                    *word = unsafe { *set.cast::<c_ulong>().add(at) };
                }
            }
        }
        Sets {
            given,
            words,
            before,
        }
    }

    /// What was found, one set after another as the kernel does it.
    unsafe fn give(&self, found: &[Words; 3]) {
        for (set, found) in self.given.iter().zip(found) {
            for (at, word) in found.iter().enumerate().take(self.words) {
                if !set.is_null() {
                    // SAFETY: as of what was read there.
                    unsafe { *set.cast::<c_ulong>().add(at) = *word };
                }
            }
        }
    }
}

/// As `waits`, by sets.
unsafe fn selects(
    n: c_int,
    given: [*mut fd_set; 3],
    limit: Option<Duration>,
    mut kernel: impl FnMut([*mut fd_set; 3], Option<Duration>) -> c_int,
) -> c_int {
    let [to_read, ..] = given;
    if to_read.is_null() || !table::follows() {
        return kernel(given, limit);
    }
    if n > libc::FD_SETSIZE as c_int {
        // SAFETY: the caller's promise.
        unsafe { each(n, to_read.cast(), rests) };
        return kernel(given, limit);
    }
    // SAFETY: the caller's promise.
    let sets = unsafe { Sets::of(n, given) };
    let found = Cell::new(sets.before);
    let [reads, ..] = &sets.before;
    let came = rounds(
        limit,
        // SAFETY: no more are looked at than it has words for.
        || unsafe { each(n, reads.as_ptr(), rests) },
        |left| {
            let mut all = sets.before;
            let places = all.each_mut().map(|set| std::ptr::from_mut(set).cast());
            let mut places = places.into_iter().zip(given);
            let own = [(); 3].map(|()| match places.next() {
                Some((place, given)) if !given.is_null() => place,
                _ => std::ptr::null_mut(),
            });
            let came = kernel(own, left);
            found.set(all);
            came
        },
        || {
            let mut all = found.get();
            let [reads, ..] = &mut all;
            let none = taken_out(n, reads);
            found.set(all);
            none
        },
    );
    if came >= 0 {
        // SAFETY: as above.
        unsafe { sets.give(&found.get()) };
    }
    came
}

exported! {
    poll(list: *mut pollfd, n: nfds_t, limit: c_int) -> c_int {
        let time = u64::try_from(limit).ok().map(Duration::from_millis);
        waits(list, n, time, |list, left| {
            let left = left.map_or(-1, |left| left.as_micros().div_ceil(1000) as c_int);
            real::poll(list, n, left)
        })
    }
    __poll(list: *mut pollfd, n: nfds_t, limit: c_int) -> c_int { poll(list, n, limit) }
    __poll_chk(list: *mut pollfd, n: nfds_t, limit: c_int, room: libc::size_t) -> c_int {
        if room / size_of::<pollfd>() < n as usize { std::process::abort() }
        poll(list, n, limit)
    }
    ppoll(list: *mut pollfd, n: nfds_t, limit: *const timespec, signals: *const sigset_t) -> c_int {
        let time = match time_of(limit.as_ref()) {
            Ok(time) => time,
            Err(()) => return real::ppoll(list, n, limit, signals),
        };
        waits(list, n, time, |list, left| {
            let left = left.map(timespec_of);
            let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            real::ppoll(list, n, left, signals)
        })
    }
    __ppoll_chk(list: *mut pollfd, n: nfds_t, limit: *const timespec, signals: *const sigset_t, room: libc::size_t) -> c_int {
        if room / size_of::<pollfd>() < n as usize { std::process::abort() }
        ppoll(list, n, limit, signals)
    }
    select(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *mut timeval) -> c_int {
        // One that is none is the kernel's to refuse.
        let time = limit.as_ref().map(|it| (u64::try_from(it.tv_sec), u64::try_from(it.tv_usec)));
        let time = match time {
            None => None,
            Some((Ok(seconds), Ok(micros))) => Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))),
            _ => return real::select(n, to_read, to_write, other, limit),
        };
        let before = limit.as_ref().copied();
        selects(n, [to_read, to_write, other], time, |[to_read, to_write, other], left| {
            // The kernel leaves in the program's own what is left of it, if that can be written to.
            let mut rest = match left {
                Some(left) if Some(left) != time => timeval_of(left),
                _ => return real::select(n, to_read, to_write, other, limit),
            };
            let came = real::select(n, to_read, to_write, other, &raw mut rest);
            // It could, the first time.
            if let (Some(limit), Some(before)) = (limit.as_mut(), before)
                && (limit.tv_sec, limit.tv_usec) != (before.tv_sec, before.tv_usec)
            {
                *limit = rest;
            }
            came
        })
    }
    __select(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *mut timeval) -> c_int {
        select(n, to_read, to_write, other, limit)
    }
    pselect(n: c_int, to_read: *mut fd_set, to_write: *mut fd_set, other: *mut fd_set, limit: *const timespec, signals: *const sigset_t) -> c_int {
        let time = match time_of(limit.as_ref()) {
            Ok(time) => time,
            Err(()) => return real::pselect(n, to_read, to_write, other, limit, signals),
        };
        selects(n, [to_read, to_write, other], time, |[to_read, to_write, other], left| {
            let left = left.map(timespec_of);
            let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            real::pselect(n, to_read, to_write, other, left, signals)
        })
    }
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let inside = table::is_followed(fd).then(gate::enter);
        let done = real::epoll_ctl(set, what, fd, event);
        drop(inside);
        if done == 0 && what != libc::EPOLL_CTL_DEL {
            watches(fd);
        }
        done
    }
}
