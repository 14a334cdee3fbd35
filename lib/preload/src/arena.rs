//! The memory of all records: one mapping, which a forked process shares.
#![expect(unsafe_code, reason = "a mapping")]

use crate::record::Record;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Sockets that are followed at a time, of a process and those that it forks.
pub const RECORDS: usize = 8192;

static ARENA: AtomicPtr<Record> = AtomicPtr::new(null_mut());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Makes it; without it no socket is followed.
pub fn make() {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let bytes = RECORDS * size_of::<Record>();
    // SAFETY: a new mapping touches no memory that exists.
    let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if at != libc::MAP_FAILED {
        ARENA.store(at.cast(), Ordering::Release);
    }
}

fn all() -> &'static [Record] {
    let at = ARENA.load(Ordering::Acquire);
    if at.is_null() {
        return &[];
    }
    // SAFETY: mapped for good, zeroed, of which a record is one that is free; only shared
    // references are made of it.
    unsafe { std::slice::from_raw_parts(at, RECORDS) }
}

/// The record of a number, from 1 on.
pub fn record(number: u32) -> Option<&'static Record> {
    all().get((number as usize).wrapping_sub(1))
}

/// The number of a record.
pub fn number_of(record: &Record) -> u32 {
    let from = ARENA.load(Ordering::Acquire) as usize;
    let at = std::ptr::from_ref(record) as usize;
    (at.wrapping_sub(from) / size_of::<Record>()) as u32 + 1
}

/// A free one, begun; none: all are taken.
pub fn begin() -> Option<&'static Record> {
    let all = all();
    for again in [false, true] {
        for _ in 0..all.len() {
            let at = NEXT.fetch_add(1, Ordering::Relaxed) as usize % RECORDS;
            let record = all.get(at)?;
            if again {
                record.reclaim();
            }
            if record.begin() {
                return Some(record);
            }
        }
    }
    None
}
