//! A ring in ordinary memory, for tests and simulations: any number of threads, no
//! operating system. Every word and byte is atomic, so that a hostile peer is a
//! thread like any other.

use crate::memory::{ConsumerMemory, ConsumerWord, CopyTo, ProducerMemory, ProducerWord};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// One direction of a channel. Clones are the same memory.
#[derive(Clone)]
pub struct Heap {
    /// The producer's page: see [`ProducerWord`].
    pub producer: Arc<[AtomicU64]>,
    /// The consumer's page: see [`ConsumerWord`].
    pub consumer: Arc<[AtomicU64]>,
    /// The data area.
    pub data: Arc<[AtomicU8]>,
}

impl Heap {
    /// Zeroed memory of so many data bytes, a power of two.
    pub fn new(capacity: usize) -> Heap {
        let words = || (0..16).map(|_| AtomicU64::new(0)).collect();
        let data = (0..capacity).map(|_| AtomicU8::new(0)).collect();
        Heap {
            producer: words(),
            consumer: words(),
            data,
        }
    }

    fn byte(&self, at: usize) -> Option<&AtomicU8> {
        self.data.get(at & (self.data.len() - 1))
    }
}

impl ProducerMemory for Heap {
    fn load(&self, word: ConsumerWord) -> u64 {
        self.consumer
            .get(word as usize)
            .map_or(0, |w| w.load(Ordering::Acquire))
    }
    fn store(&self, word: ProducerWord, value: u64) {
        if let Some(w) = self.producer.get(word as usize) {
            w.store(value, Ordering::Release);
        }
    }
    fn write_header(&self, at: usize, words: [u64; 2]) {
        let [a, b] = words;
        self.write(at, &a.to_ne_bytes());
        self.write(at + 8, &b.to_ne_bytes());
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, value) in bytes.iter().enumerate() {
            if let Some(byte) = self.byte(at + i) {
                byte.store(*value, Ordering::Relaxed);
            }
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl ConsumerMemory for Heap {
    fn load(&self, word: ProducerWord) -> u64 {
        self.producer
            .get(word as usize)
            .map_or(0, |w| w.load(Ordering::Acquire))
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.consumer
            .get(word as usize)
            .map_or(0, |w| w.load(Ordering::Acquire))
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        if let Some(w) = self.consumer.get(word as usize) {
            w.store(value, Ordering::Release);
        }
    }
    fn read_header(&self, at: usize) -> [u64; 2] {
        let (mut a, mut b) = ([0; 8], [0; 8]);
        self.read(at, &mut a);
        self.read(at + 8, &mut b);
        [u64::from_ne_bytes(a), u64::from_ne_bytes(b)]
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        for (i, value) in out.iter_mut().enumerate() {
            *value = self
                .byte(at + i)
                .map_or(0, |byte| byte.load(Ordering::Relaxed));
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl CopyTo<Heap> for Heap {
    fn copy_to(&self, at: usize, to: &Heap, to_at: usize, len: usize) {
        for i in 0..len {
            if let (Some(from), Some(to)) = (self.byte(at + i), to.byte(to_at + i)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}
