//! A circuit's memory as who keeps it has it: its words are mapped, its data are not.

use crate::mapping::WritableMapping;
use ring::{ConsumerWord, PAGE, ProducerWord};
use rustix::fs::FallocateFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use stream::{CONSUMER_WORDS_AT, Kept, PRODUCER_WORDS_AT, Side, WORDS, data_at, file_bytes};

/// Pages of one that little goes by: its words, and the first of each direction.
const FEW: u64 = 3;
/// Bytes of a block, as stat(2) counts them.
const BLOCK: u64 = 512;

/// The memory file of a circuit that both its programs have too. They can write it by calls, in the midst of
/// which they may hold the file as long as they like: nothing here but [`give_back`] waits for that.
pub struct KeptCircuit {
    fd: OwnedFd,
    words: WritableMapping,
}

impl KeptCircuit {
    /// Of what [`circuit_file`](crate::circuit_file) made.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn new(fd: OwnedFd) -> io::Result<KeptCircuit> {
        let words = WritableMapping::new(fd.as_fd(), PAGE)?;
        Ok(KeptCircuit { fd, words })
    }
}

impl AsFd for KeptCircuit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Kept for KeptCircuit {
    fn is_large(&self) -> bool {
        let blocks = rustix::fs::fstat(&self.fd).map_or(0, |of| of.st_blocks.cast_unsigned());
        blocks > FEW * PAGE as u64 / BLOCK
    }
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64 {
        let at = PRODUCER_WORDS_AT + side as usize * WORDS + word as usize * 8;
        self.words.load(at, Ordering::Acquire)
    }
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64 {
        let at = CONSUMER_WORDS_AT + side as usize * WORDS + word as usize * 8;
        self.words.load(at, Ordering::Acquire)
    }
    fn reclaims(&self, side: Side, value: u64) {
        let word = ConsumerWord::Reclaims as usize * 8;
        let at = CONSUMER_WORDS_AT + side as usize * WORDS + word;
        self.words.store(at, value, Ordering::Release);
    }
}

/// Gives back all pages of a circuit's data, `capacity` bytes each way. It waits for as long as a program
/// holds the file.
///
/// # Errors
/// What the operating system refused.
pub fn give_back(memory: impl AsFd, capacity: usize) -> io::Result<()> {
    let from = data_at(Side::Began, capacity);
    let bytes = file_bytes(capacity) - from;
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memory, how, from as u64, bytes as u64).map_err(Into::into)
}
