//! A circuit's memory as who keeps it has it. Its programs can write, punch and map the file as often as they
//! like, in the midst of which the kernel has others wait: whoever must not wait for a program asks
//! [`is_large`] alone.

use crate::mapping::WritableMapping;
use ring::{ConsumerWord, PAGE, ProducerWord};
use rustix::fs::FallocateFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use stream::reclaim::Kept;
use stream::{CONSUMER_WORDS_AT, PRODUCER_WORDS_AT, Side, WORDS, data_at, file_bytes};

/// Pages of one that little goes by: its words, and the first of each direction.
const FEW: u64 = 3;
/// Bytes of a block, as stat(2) counts them.
const BLOCK: u64 = 512;

/// The words of a circuit's memory file, without its data.
pub struct CircuitWords(WritableMapping);

impl CircuitWords {
    /// Of what [`circuit_file`](crate::circuit_file) made. Allocates nothing.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<CircuitWords> {
        WritableMapping::new(fd, PAGE).map(CircuitWords)
    }
}

impl Kept for CircuitWords {
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64 {
        let at = PRODUCER_WORDS_AT + side as usize * WORDS + word as usize * 8;
        self.0.load(at, Ordering::Acquire)
    }
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64 {
        let at = CONSUMER_WORDS_AT + side as usize * WORDS + word as usize * 8;
        self.0.load(at, Ordering::Acquire)
    }
    fn reclaims(&self, side: Side, value: u64) {
        let word = ConsumerWord::Reclaims as usize * 8;
        let at = CONSUMER_WORDS_AT + side as usize * WORDS + word;
        self.0.store(at, value, Ordering::Release);
    }
}

/// Whether a circuit's memory has more pages than one has that little goes by.
pub fn is_large(memory: impl AsFd) -> bool {
    let blocks = rustix::fs::fstat(memory).map_or(0, |of| of.st_blocks.cast_unsigned());
    blocks > FEW * PAGE as u64 / BLOCK
}

/// Gives back all pages of a circuit's data, `capacity` bytes each way.
///
/// # Errors
/// What the operating system refused.
pub fn give_back(memory: impl AsFd, capacity: usize) -> io::Result<()> {
    punch(memory, data_at(Side::Began, capacity), capacity)
}

/// Takes all its pages back, the words' too: nobody is to use it any more, and who has it mapped is charged for what it
/// touches from then on.
///
/// # Errors
/// What the operating system refused.
pub fn take_back(memory: impl AsFd, capacity: usize) -> io::Result<()> {
    punch(memory, 0, capacity)
}

fn punch(memory: impl AsFd, from: usize, capacity: usize) -> io::Result<()> {
    let bytes = file_bytes(capacity) - from;
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memory, how, from as u64, bytes as u64).map_err(Into::into)
}
