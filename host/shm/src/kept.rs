//! A circuit's memory as who keeps it has it: by its descriptor, not mapped. Its words are read and
//! written, and its pages given back, by calls of the file.

use ring::{ConsumerWord, PAGE, ProducerWord};
use rustix::fs::FallocateFlags;
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use stream::{CONSUMER_WORDS_AT, Kept, PRODUCER_WORDS_AT, Side, WORDS, data_at, file_bytes};

/// Pages of one that little goes by: its words, and the first of each direction.
const FEW: u64 = 3;
/// Bytes of a block, as stat(2) counts them.
const BLOCK: u64 = 512;

/// A circuit's memory file of so many bytes each way, which is not mapped here.
pub struct KeptCircuit<'a> {
    fd: &'a OwnedFd,
    capacity: usize,
}

impl<'a> KeptCircuit<'a> {
    /// Of what [`circuit_file`](crate::circuit_file) made.
    pub fn new(fd: &'a OwnedFd, capacity: usize) -> KeptCircuit<'a> {
        KeptCircuit { fd, capacity }
    }

    fn load(&self, at: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        match pread(self.fd, &mut bytes, at as u64) {
            Ok(8) => Some(u64::from_ne_bytes(bytes)),
            _ => None,
        }
    }
}

impl Kept for KeptCircuit<'_> {
    fn is_large(&self) -> bool {
        let blocks = rustix::fs::fstat(self.fd).map_or(0, |of| of.st_blocks.cast_unsigned());
        blocks > FEW * PAGE as u64 / BLOCK
    }
    fn of_writer(&self, side: Side, word: ProducerWord) -> Option<u64> {
        self.load(PRODUCER_WORDS_AT + side as usize * WORDS + word as usize * 8)
    }
    fn of_reader(&self, side: Side, word: ConsumerWord) -> Option<u64> {
        self.load(CONSUMER_WORDS_AT + side as usize * WORDS + word as usize * 8)
    }
    fn reclaims(&self, side: Side, value: u8) -> Option<()> {
        let word = ConsumerWord::Reclaims as usize * 8;
        let at = CONSUMER_WORDS_AT + side as usize * WORDS + word;
        // A byte of it: no other is ever set.
        (pwrite(self.fd, &[value], at as u64) == Ok(1)).then_some(())
    }
    fn give_back(&self) -> Option<()> {
        let from = data_at(Side::Began, self.capacity);
        let bytes = file_bytes(self.capacity) - from;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd, how, from as u64, bytes as u64).ok()
    }
}
