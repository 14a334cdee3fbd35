//! Which descriptor of this process is of which record.

use crate::arena::{self, RECORDS};
use crate::log;
use crate::record::{PLAIN, Record};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors that are followed.
const FDS: usize = 65_536;
/// Of an entry: the program believes that it is handed on when another is executed.
const HANDED_ON: u32 = 1 << 31;

static TABLE: [AtomicU32; FDS] = [const { AtomicU32::new(0) }; FDS];
/// Of each record, its descriptors and calls under way in this process.
static HELD: [AtomicU32; RECORDS + 1] = [const { AtomicU32::new(0) }; RECORDS + 1];
/// No higher descriptor was ever followed.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

fn held(number: u32) -> Option<&'static AtomicU32> {
    HELD.get(number as usize)
}

/// A record that stays while it is in use; to be given back by [`put`].
#[inline]
pub fn hold(fd: c_int) -> Option<&'static Record> {
    let entry = entry(fd)?;
    // Bound: others that open and close this very number meanwhile.
    loop {
        let number = entry.load(Ordering::Acquire) & !HANDED_ON;
        if number == 0 {
            return None;
        }
        let count = held(number)?;
        let before = count.load(Ordering::Relaxed);
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        if before == 0
            || count
                .compare_exchange(before, before + 1, done, not)
                .is_err()
        {
            continue;
        }
        let record = arena::record(number)?;
        if entry.load(Ordering::Acquire) & !HANDED_ON == number {
            return Some(record);
        }
        put(record);
    }
}

/// Whether a descriptor is still of this record: while its locks are held, it stays so.
#[inline]
pub fn is_of(fd: c_int, record: &Record) -> bool {
    let number = record.number();
    entry(fd).is_some_and(|it| it.load(Ordering::Acquire) & !HANDED_ON == number)
}

/// Gives it back.
#[inline]
pub fn put(record: &Record) {
    if held(record.number()).is_some_and(|it| it.fetch_sub(1, Ordering::AcqRel) == 1) {
        log::say(record);
        record.end();
    }
}

/// Follows a new socket.
pub fn follow(fd: c_int) {
    forget(fd);
    if entry(fd).is_none() || fd <= 2 {
        return;
    }
    if let Some(record) = arena::begin() {
        if let Some(held) = held(record.number()) {
            held.store(1, Ordering::Release);
        }
        set(fd, record.number());
    }
}

/// Another descriptor is of the same; `handed_on`: as the program believes.
pub fn share(fd: c_int, record: &Record, handed_on: bool) {
    if let Some(held) = held(record.number()) {
        held.fetch_add(1, Ordering::AcqRel);
    }
    if entry(fd).is_none() {
        // It is read and written as it is: only plain bytes may be there.
        record.stay();
        put(record);
        return;
    }
    set(fd, record.number() | if handed_on { HANDED_ON } else { 0 });
}

fn set(fd: c_int, value: u32) {
    if let Some(entry) = entry(fd) {
        HIGHEST.fetch_max(fd.cast_unsigned(), Ordering::AcqRel);
        entry.store(value, Ordering::Release);
    }
}

/// A descriptor is no more of any.
pub fn forget(fd: c_int) {
    if let Some(entry) = entry(fd) {
        if entry.load(Ordering::Acquire) == 0 {
            return;
        }
        let number = entry.swap(0, Ordering::AcqRel) & !HANDED_ON;
        if let Some(record) = arena::record(number) {
            put(record);
        }
    }
}

/// All descriptors that are followed, from one number to another.
pub fn followed(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = last.min(HIGHEST.load(Ordering::Acquire));
    (first..=last)
        .map(u32::cast_signed)
        .filter(|fd| entry(*fd).is_some_and(|it| it.load(Ordering::Acquire) != 0))
}

/// Whether the program believes that a ring's descriptor is handed on.
pub fn is_handed_on(fd: c_int) -> bool {
    entry(fd).is_some_and(|it| it.load(Ordering::Acquire) & HANDED_ON != 0)
}

/// What it believes by now.
pub fn hands_on(fd: c_int, does: bool) {
    if let Some(entry) = entry(fd) {
        match does {
            true => entry.fetch_or(HANDED_ON, Ordering::AcqRel),
            false => entry.fetch_and(!HANDED_ON, Ordering::AcqRel),
        };
    }
}

/// All descriptors of a record close when another program is executed: it would know nothing of
/// the ring, and read and write its doorbell.
pub fn closes_on_exec(record: &Record) {
    let number = record.number();
    for fd in followed(0, u32::MAX) {
        if entry(fd).is_some_and(|it| it.load(Ordering::Acquire) & !HANDED_ON == number) {
            hands_on(fd, !crate::descriptors::close_on_exec(fd));
        }
    }
}

/// Records that this process has.
fn own() -> impl Iterator<Item = &'static Record> {
    (1..=RECORDS as u32)
        .filter(|number| held(*number).is_some_and(|it| it.load(Ordering::Acquire) > 0))
        .filter_map(arena::record)
}

/// A process is about to be forked.
pub fn forks() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        own().for_each(Record::forks);
    }
}

/// This process was.
pub fn is_forked() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        own().for_each(Record::is_forked);
    }
}

/// This process is another user's from now on, whom the one that it was forked by need not trust, nor
/// its memory. Who has other threads, or goes on with a ring that another process uses too, shares on.
pub fn parts() {
    if HIGHEST.load(Ordering::Acquire) > 0 && !own().any(Record::is_shared) {
        arena::parts(own());
    }
}

/// A process is about to be made of this one's descriptors that will not say so: what has no ring
/// gets none, and what has one is never taken for another's.
pub fn copies() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        for record in own() {
            record.stay();
            record.is_many();
        }
    }
}

/// The process ends.
pub fn ends() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        own().for_each(log::say);
    }
}

/// A program is about to be started that none of this sees: what it inherits stays with the
/// kernel.
pub fn starts() {
    for fd in followed(0, u32::MAX) {
        if let Some(record) = hold(fd) {
            if record.state.load(Ordering::Acquire) != PLAIN
                && !crate::descriptors::is_close_on_exec(fd)
            {
                record.stay();
            }
            put(record);
        }
    }
}
