//! The memory of all records: one mapping, which a forked process shares.
#![expect(unsafe_code, reason = "a mapping")]

use crate::record::Record;
use rustix::fs::{AtFlags, CWD, readlinkat_raw, statat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::{Arguments, Write};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Sockets that are followed at a time, of a process and those that it forks.
pub const RECORDS: usize = 8192;

static ARENA: AtomicPtr<Record> = AtomicPtr::new(null_mut());
static NEXT: AtomicU32 = AtomicU32::new(0);

const BYTES: usize = RECORDS * size_of::<Record>();
/// With a page behind them, which begins with how many PID namespaces have a number.
const ALL: usize = BYTES + 4096;

/// Makes it; without it no socket is followed.
pub fn make() {
    if let Some(at) = mapping() {
        ARENA.store(at, Ordering::Release);
    }
}

fn mapping() -> Option<*mut Record> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping touches no memory that exists.
    let at = unsafe { libc::mmap(null_mut(), ALL, access, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

/// This process, which has no other thread, shares no record with those any more that it did: these
/// are its own, none of which another uses as well. They stay where they were.
pub fn parts(own: impl Iterator<Item = &'static Record>) {
    let at = ARENA.load(Ordering::Acquire);
    if at.is_null() {
        return;
    }
    let Some(new) = mapping() else {
        return;
    };
    for record in own {
        let number = number_of(record) as usize - 1;
        // SAFETY: both have as many records; nobody knows of the new ones. What another process
        // changes meanwhile is words, which are copied as they were or as they are.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(record), new.add(number), 1) };
    }
    let (places, new_places) = (places(at), places(new));
    new_places.store(places.load(Ordering::Relaxed), Ordering::Relaxed);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the records are of the same size, and those that somebody knows of the same as before;
    // no other thread looks at them meanwhile. Where it fails both are as they were.
    let moved = unsafe { libc::mremap(new.cast(), ALL, ALL, flags, at) };
    if moved == libc::MAP_FAILED {
        // SAFETY: a mapping of ours that nobody knows of.
        unsafe { libc::munmap(new.cast(), ALL) };
    }
}

fn places(at: *mut Record) -> &'static AtomicU32 {
    // SAFETY: behind the records there is a page, zeroed, which is aligned.
    unsafe { &*at.byte_add(BYTES).cast::<AtomicU32>() }
}

/// Whether a process of this number has them mapped, as far as `/proc` tells: that of this PID namespace, of a process that this
/// one may look at. As far as not: yes.
pub fn is_mapped_by(pid: u32) -> bool {
    let from = ARENA.load(Ordering::Acquire) as usize;
    let here = |of: Arguments| {
        let to = from + ALL;
        Name::of(format_args!("/proc/{of}/map_files/{from:x}-{to:x}")).asked()
    };
    !is_own_proc()
        || here(format_args!("self")) != Ok(())
        || Name::of(format_args!("/proc/{pid}")).asked() != Ok(())
        || here(format_args!("{pid}")) != Err(Errno::NOENT)
}

/// Whether `/proc` has the numbers by which this process knows itself and others.
fn is_own_proc() -> bool {
    let mut said = [MaybeUninit::uninit(); 16];
    let Ok((said, _)) = readlinkat_raw(CWD, c"/proc/self", &mut said) else {
        return false;
    };
    let said = std::str::from_utf8(said)
        .ok()
        .and_then(|it| it.parse().ok());
    said == Some(std::process::id())
}

/// The name of a file, without an allocation.
struct Name {
    bytes: [u8; 80],
    length: usize,
}

impl Name {
    fn of(name: Arguments) -> Name {
        let (bytes, length) = ([0; 80], 0);
        let mut all = Name { bytes, length };
        // What is too long is no name that there is.
        let _ = all.write_fmt(name);
        all
    }

    /// Whether there is such a file, itself: why not.
    fn asked(&self) -> Result<(), Errno> {
        let name = CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)?;
        statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW).map(drop)
    }
}

impl Write for Name {
    fn write_str(&mut self, some: &str) -> std::fmt::Result {
        let place = self.bytes.get_mut(self.length..self.length + some.len());
        place
            .ok_or(std::fmt::Error)?
            .copy_from_slice(some.as_bytes());
        self.length += some.len();
        Ok(())
    }
}

/// A number for one more PID namespace.
pub fn another_place() -> u32 {
    let at = ARENA.load(Ordering::Acquire);
    if at.is_null() {
        return 0;
    }
    let next = |it: u32| it.checked_add(1);
    let before = places(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    before.unwrap_or(u32::MAX).saturating_add(1)
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
