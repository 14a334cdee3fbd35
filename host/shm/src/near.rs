//! Addresses for what a circuit uses first, those of many circuits close together: one page of
//! the page table serves the first parts of a dozen, where each would take one for itself. No lock
//! and no allocation: the library that programs load comes here in signal handlers, and in
//! children of fork(2).
#![expect(unsafe_code, reason = "mapping memory by address")]

use crate::mapping::RESERVED;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of a place: all of it is mapped, for what is left would be one more mapping.
pub(crate) const PLACE: usize = 124 << 10;
/// Places that are reserved at once: about as many as the page table's page knows.
const PLACES: usize = 16;
/// Times that this is done; who comes when all are taken has addresses elsewhere.
const CHUNKS: usize = 256;

/// Where they are; 0: not reserved yet.
static BASES: [AtomicUsize; CHUNKS] = [const { AtomicUsize::new(0) }; CHUNKS];
/// Which places of each are taken.
static TAKEN: [AtomicU32; CHUNKS] = [const { AtomicU32::new(0) }; CHUNKS];

/// A place, without memory behind it; `None`: all are taken.
///
/// # Errors
/// What the operating system refused.
pub(crate) fn take() -> io::Result<Option<*mut c_void>> {
    for (base, taken) in BASES.iter().zip(&TAKEN) {
        let start = match base.load(Ordering::Acquire) {
            0 => reserve(base)?,
            start => start,
        };
        // Bound: each round but the last loses a place to another thread.
        loop {
            let free = (!taken.load(Ordering::Relaxed)).trailing_zeros();
            if free as usize >= PLACES {
                break;
            }
            if taken.fetch_or(1 << free, Ordering::Acquire) & (1 << free) == 0 {
                let at = start + free as usize * PLACE;
                return Ok(Some(core::ptr::with_exposed_provenance_mut(at)));
            }
        }
    }
    Ok(None)
}

fn reserve(base: &AtomicUsize) -> io::Result<usize> {
    const BYTES: usize = PLACES * PLACE;
    // SAFETY: a new anonymous reservation at an address of the kernel's choice.
    let start =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), BYTES, ProtFlags::empty(), RESERVED)? };
    let (own, order) = (start.expose_provenance(), Ordering::AcqRel);
    match base.compare_exchange(0, own, order, Ordering::Acquire) {
        Ok(_) => Ok(own),
        Err(others) => {
            // SAFETY: exactly what was mapped just now, which nobody else knows.
            let _ = unsafe { rustix::mm::munmap(start, BYTES) };
            Ok(others)
        }
    }
}

/// Takes a place's memory away, and gives the place back. Where the kernel refuses that it stays
/// taken: its addresses are never somebody else's.
///
/// # Safety
/// It is of [`take`]'s, is given back once, and nothing uses its memory.
pub(crate) unsafe fn give_back(place: *mut c_void) {
    let at = place.expose_provenance();
    let of = |base: &AtomicUsize| at.wrapping_sub(base.load(Ordering::Acquire)) / PLACE;
    let mut all = BASES.iter().zip(&TAKEN);
    let Some((base, taken)) = all.find(|(base, _)| of(base) < PLACES) else {
        return;
    };
    let flags = RESERVED.union(MapFlags::FIXED);
    // SAFETY: the caller's promise; what is mapped there is replaced in one step.
    let empty = unsafe { rustix::mm::mmap_anonymous(place, PLACE, ProtFlags::empty(), flags) };
    if empty.is_ok() {
        taken.fetch_and(!(1 << of(base)), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_their_takers_alone_and_are_given_again() {
        let each: Vec<usize> = std::thread::scope(|scope| {
            let many = || (0..100).map(|_| take().unwrap().unwrap().expose_provenance());
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(move || many().collect()))
                .collect();
            let all: Vec<Vec<usize>> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            all.concat()
        });
        let mut sorted = each.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|two| two[1] - two[0] >= PLACE));
        // Close together: as few chunks as there can be, but for what a race may take.
        let chunks = BASES
            .iter()
            .filter(|base| base.load(Ordering::Relaxed) != 0);
        assert!(chunks.count() <= 400 / PLACES + 4);
        for at in each {
            // SAFETY: taken above, and nothing is mapped there.
            unsafe { give_back(core::ptr::with_exposed_provenance_mut(at)) };
        }
        let again = take().unwrap().unwrap();
        assert!(sorted.contains(&again.expose_provenance()));
        // SAFETY: the same.
        unsafe { give_back(again) };
    }
}
