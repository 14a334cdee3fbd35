//! Guest memory in ordinary memory, for tests and simulations. Every byte is atomic, so
//! that a hostile driver is a thread like any other.

use crate::memory::GuestMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Regions of guest memory: (guest-physical start, words). Clones are the same memory.
#[derive(Clone)]
pub struct Heap {
    regions: Arc<[(u64, Box<[AtomicU64]>)]>,
}

impl Heap {
    /// Zeroed regions: (guest-physical start, bytes, a multiple of 8). They lie behind one
    /// another, with a hole of 8 bytes between each two.
    pub fn new(regions: &[(u64, usize)]) -> Heap {
        let words = |bytes: &usize| (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Heap {
            regions: regions.iter().map(|(at, len)| (*at, words(len))).collect(),
        }
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        let mut begin = 0;
        for (_, words) in self.regions.iter() {
            if at < begin {
                return None;
            }
            if let Some(word) = words.get((at - begin) / 8) {
                return Some(word);
            }
            begin += words.len() * 8 + 8;
        }
        None
    }

    fn change(&self, at: usize, mask: u64, bits: u64) {
        if let Some(word) = self.word(at) {
            // Bound: others that change the same word at the same time.
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |was| {
                Some(was & !mask | bits)
            });
        }
    }
}

impl GuestMemory for Heap {
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let mut begin = 0;
        for (start, words) in self.regions.iter() {
            let size = words.len() * 8;
            let within = address.checked_sub(*start).filter(|n| *n < size as u64);
            if let Some(within) = within {
                return Some((begin + within as usize, len.min(size - within as usize)));
            }
            begin += size + 8;
        }
        None
    }
    fn load16(&self, at: usize) -> u16 {
        let word = self.word(at).map_or(0, |w| w.load(Ordering::Acquire));
        (word >> (at % 8 * 8)) as u16
    }
    fn store16(&self, at: usize, value: u16) {
        let shift = at % 8 * 8;
        self.change(at, 0xffff << shift, u64::from(value) << shift);
    }
    fn load64(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |w| w.load(Ordering::Acquire))
    }
    fn store64(&self, at: usize, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let word = self.word(at + i).map_or(0, |w| w.load(Ordering::Relaxed));
            *byte = (word >> ((at + i) % 8 * 8)) as u8;
        }
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let shift = (at + i) % 8 * 8;
            self.change(at + i, 0xff << shift, u64::from(*byte) << shift);
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
