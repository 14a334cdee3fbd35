//! Numbers that are given to a call after which they may be another socket's (`connect` to AF_UNSPEC): of no record meanwhile.
//! Other threads wait for that; handlers of the same thread go on by what the number is of. And numbers that the kernel is about to
//! close, or to make another: a process that is forked meanwhile has their sockets.
#![expect(unsafe_code, reason = "descriptors of its own")]

use crate::arena;
use crate::forking::{self, Before, before};
use crate::patience::{PATIENCE, Patience};
use crate::real;
use crate::record::Record;
use crate::table::{
    self, HANDED_ON, begins, begun, entry, held, is_forgotten, is_over, knows_of, release,
};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Of an entry: a call is under way after which it may be another socket's. Others wait for that.
pub const GIVEN: u32 = 1 << 28;

/// Of an entry: it is being closed, or made another. A process that is forked meanwhile has the socket, and no record of it.
pub const ENDS: u32 = 1 << 27;
/// With that: it has ended, and a process is being forked that may have it. Below it: as manyth of all that were.
const ENDED: u32 = 1 << 26;

/// Whether any number says so.
static HAVE_ENDED: AtomicBool = AtomicBool::new(false);

/// Of a number that is given, or ends, the socket that it was of.
static INODES: [AtomicU64; crate::table::FDS] = [const { AtomicU64::new(0) }; crate::table::FDS];

thread_local! {
    /// What this thread has given. Its handlers do not wait.
    static GIVES: Cell<Gives> = const { Cell::new(Gives::NONE) };
    /// What this thread is closing: in the child of a handler that forks it does so too.
    static CLOSES: Cell<c_int> = const { Cell::new(-1) };
}

/// A number for whose call this thread is under way, which may put another socket there.
#[derive(Clone, Copy)]
pub struct Gives {
    fd: c_int,
    /// The socket that it was of, or that a handler made it of since; 0: none.
    inode: u64,
    /// Its entry, but for that it is given.
    was: u32,
    since: Before,
}

impl Gives {
    const NONE: Gives = Gives {
        fd: -1,
        inode: 0,
        was: 0,
        since: Before::NEVER,
    };
}

/// An entry, but to a handler of the thread that has given it: as long as the socket of before is there it is of its record.
#[inline]
pub fn ours(fd: c_int, seen: u32) -> u32 {
    match seen & GIVEN != 0 && is_still(fd) {
        true => seen & !GIVEN,
        false => seen,
    }
}

#[cold]
fn is_still(fd: c_int) -> bool {
    let gives = GIVES.get();
    gives.fd == fd && inode(fd) == Some(gives.inode)
}

/// Waits until a number that another thread has given is so no more; `false`: in vain, or there is none to wait for.
#[cold]
fn is_given_back(fd: c_int, entry: &AtomicU32) -> bool {
    if is_own(fd) {
        return false;
    }
    let mut patience = Patience::of(PATIENCE);
    // Bound: its time.
    loop {
        if entry.load(Ordering::Acquire) & GIVEN == 0 {
            return true;
        }
        if patience.is_over() {
            return false;
        }
        patience.rests();
    }
}

/// A number is given for a call of this thread: it is of no record meanwhile, and nobody closes it, or makes it another. What the
/// thread has given before, if a handler does; `None`: it is none that is followed.
pub fn gives(fd: c_int) -> Option<Gives> {
    let entry = entry(fd)?;
    // Bound: others that give, or open and close, this very number meanwhile.
    loop {
        let seen = entry.load(Ordering::Acquire);
        if seen & GIVEN != 0 {
            if is_given_back(fd, entry) {
                continue;
            }
            // By a call of this thread that a handler interrupts, which sees to what is there.
            return None;
        }
        let gives = Gives {
            fd,
            // None: another thread may open something there.
            inode: inode(fd).unwrap_or(0),
            was: seen & !HANDED_ON,
            since: before(),
        };
        knows_of(fd);
        if let Some(of) = INODES.get(fd as usize) {
            of.store(gives.inode, Ordering::Release);
        }
        // First: a handler would wait for its own thread.
        let before = GIVES.replace(gives);
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        if entry
            .compare_exchange(seen, seen | GIVEN, done, not)
            .is_ok()
        {
            return Some(before);
        }
        GIVES.set(before);
    }
}

/// That call is over: the number is of its record again, or of another socket. `before`: what [`gives`] said.
pub fn takes_back(before: Gives) {
    if let Some(entry) = entry(GIVES.get().fd) {
        begins();
        // A copy that is being made has the record, and what was said of it.
        forking::stands_still();
        // Bound: handlers that make it another meanwhile.
        while !is_taken_back(entry) {}
        forking::goes_on();
        is_over();
    }
    GIVES.set(before);
}

fn is_taken_back(entry: &AtomicU32) -> bool {
    let seen = entry.load(Ordering::Acquire);
    let Gives {
        fd,
        inode: of,
        was,
        since,
    } = GIVES.get();
    if seen & !HANDED_ON != was | GIVEN {
        // Who waited in vain has made it another; or a handler has, just now.
        return entry.load(Ordering::Acquire) == seen;
    }
    let is_another = of != 0 && inode(fd).is_some_and(|now| now != of);
    // It was one that is followed, and no end of a pair.
    let follows = is_another && was != 0 && held(was).is_some();
    let fresh = follows.then(|| begun(since)).flatten();
    let value = match is_another {
        true => fresh.map_or(0, Record::number),
        false => seen & !GIVEN,
    };
    let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
    let is_done = entry.compare_exchange(seen, value, done, not).is_ok();
    let ended = match is_done {
        true if is_another => arena::record(was),
        true => None,
        false => fresh,
    };
    if let Some(record) = ended {
        release(record);
    }
    is_done
}

/// Waits where another thread has given it; `false`: there was none, or in vain.
#[inline]
pub fn waits(fd: c_int, entry: &AtomicU32, seen: u32) -> bool {
    seen & GIVEN != 0 && is_given_back(fd, entry)
}

/// By a handler of the thread that has given it, if so.
pub fn is_made(fd: c_int, was: u32) {
    if is_own(fd) {
        let inode = if was == 0 { None } else { inode(fd) };
        let inode = inode.unwrap_or(0);
        GIVES.set(Gives {
            inode,
            was,
            ..GIVES.get()
        });
    }
}

/// Whether this thread has given it: its handlers would wait for it.
pub fn is_own(fd: c_int) -> bool {
    GIVES.get().fd == fd
}

/// Of the socket that a descriptor is of.
pub fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: it is asked for no longer than this, and an error where there is none.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_socket = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket();
    is_socket.then_some(stat.st_ino)
}

/// A number is of no record any more: the kernel is about to close it, or to make it another.
pub fn ends(fd: c_int) {
    table::forget_as(fd, ENDS);
}

/// The same, of one alone by this thread; what it was about to close before, if a handler does.
pub fn ends_alone(fd: c_int) -> c_int {
    let before = CLOSES.replace(fd);
    ends(fd);
    before
}

/// That is done. What is forked may have its descriptors of before this, and memory of behind it.
pub fn has_ended(fd: c_int) {
    let Some(entry) = entry(fd) else { return };
    let (done, not) = (Ordering::SeqCst, Ordering::Relaxed);
    // Or somebody has it already.
    if !forking::is_under_way() {
        let _ = entry.compare_exchange(ENDS, 0, done, not);
        return;
    }
    let value = ENDS | ENDED | (forking::forked() % ENDED);
    if entry.compare_exchange(ENDS, value, done, not).is_ok() {
        HAVE_ENDED.store(true, Ordering::SeqCst);
        none_is_forked();
    }
}

/// Where no process is being forked any more, those that have ended are as any. A later child would take what comes to be there
/// for it.
pub fn none_is_forked() {
    // Bound: processes that are forked meanwhile.
    loop {
        let forked = forking::forked();
        if forking::is_under_way() || !HAVE_ENDED.swap(false, Ordering::SeqCst) {
            return;
        }
        // Others may have ended as another was begun to be, meanwhile.
        let stay = table::followed(0, u32::MAX).filter(|fd| !is_as_any(*fd, forked));
        if stay.count() > 0 {
            HAVE_ENDED.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether no process that was begun to be forked by then, and not before, may have it by what has ended there.
fn is_as_any(fd: c_int, forked: u32) -> bool {
    let Some(entry) = entry(fd) else { return true };
    let seen = entry.load(Ordering::SeqCst);
    if seen & (ENDS | ENDED) != ENDS | ENDED {
        return true;
    }
    let since = forked.wrapping_sub(seen) % ENDED;
    let (done, not) = (Ordering::SeqCst, Ordering::Relaxed);
    since < ENDED / 2 && entry.compare_exchange(seen, 0, done, not).is_ok()
}

pub fn ends_no_more(before: c_int) {
    CLOSES.set(before);
}

/// The socket that a number is of, for who is forked as it ends.
pub fn is_of_now(fd: c_int) {
    if let Some(of) = INODES.get(fd as usize) {
        of.store(inode(fd).unwrap_or(0), Ordering::Release);
    }
}

/// A number that another thread of the process that forked had given: its call does not go on here. It is of its record, or of
/// another socket by now.
pub fn is_left_behind(fd: c_int) {
    let (Some(entry), Some(of)) = (entry(fd), INODES.get(fd as usize)) else {
        return;
    };
    let seen = entry.load(Ordering::Acquire);
    let is_that = || inode(fd) == Some(of.load(Ordering::Acquire));
    if seen & ENDS != 0 && CLOSES.get() != fd {
        // As if it had been before; what had ended before this process was begun to be made is something else by now.
        let since = forking::own().wrapping_sub(seen) % ENDED;
        let was_before = seen & ENDED != 0 && (1..ENDED / 2).contains(&since);
        if !was_before && is_that() {
            real::shut(fd);
        }
        entry.store(0, Ordering::Release);
        return;
    }
    if seen & GIVEN == 0 || is_own(fd) {
        return;
    }
    match is_that() {
        true => drop(entry.fetch_and(!GIVEN, Ordering::AcqRel)),
        false => drop(is_forgotten(fd, entry, (seen, 0))),
    }
}
