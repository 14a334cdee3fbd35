//! The alternative that FIFOs are held against: a ring of descriptors, and buffers of
//! 2 KiB that the producer takes from a stack of its own, the one that came back last
//! first. As wary as the FIFO: positions and descriptors of the other side are allegations.

use ring::{ConsumerMemory, ConsumerWord, CopyTo, ProducerMemory, ProducerWord};
use shm::{ConsumerEnd, ProducerEnd};

/// Bytes of a buffer.
const BUFFER: usize = 2048;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// So many descriptors of a ring of so many bytes; the buffers begin behind them.
fn slots(bytes: usize) -> usize {
    (bytes / BUFFER).next_power_of_two()
}

fn first_buffer(bytes: usize) -> usize {
    (slots(bytes) * DESCRIPTOR).next_multiple_of(BUFFER)
}

/// The writing end.
pub struct Writer {
    end: ProducerEnd,
    position: u64,
    consumed: u64,
    mask: u64,
    free: Vec<u32>,
    /// The buffer of each descriptor that is under way.
    used: Vec<u32>,
}

impl Writer {
    /// Over the memory of a FIFO of so many bytes.
    pub fn new(end: ProducerEnd, bytes: usize) -> Writer {
        let slots = slots(bytes);
        let places = (first_buffer(bytes)..=bytes - BUFFER).step_by(BUFFER);
        Writer {
            end,
            position: 0,
            consumed: 0,
            mask: slots as u64 - 1,
            free: places.map(|at| at as u32).collect(),
            used: vec![0; slots],
        }
    }

    fn buffer(&mut self) -> Option<u32> {
        if self.position - self.consumed > self.mask || self.free.is_empty() {
            // What the consumer says: no further than what was written, and not back.
            let alleged = self.end.load(ConsumerWord::Consumed);
            let ahead = alleged.wrapping_sub(self.consumed);
            if ahead > self.position - self.consumed {
                return None;
            }
            for n in self.consumed..alleged {
                self.free.push(self.used[(n & self.mask) as usize]);
            }
            self.consumed = alleged;
            if self.position - self.consumed > self.mask {
                return None;
            }
        }
        self.free.pop()
    }

    fn describe(&mut self, at: u32, len: usize) {
        let slot = (self.position & self.mask) as usize;
        self.used[slot] = at;
        let words = [u64::from(at) | (len as u64) << 32, 0];
        self.end.write_header(slot * DESCRIPTOR, words);
        self.position += 1;
    }

    /// Whether there was room.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let Some(at) = self.buffer().filter(|_| record.len() <= BUFFER) else {
            return false;
        };
        self.end.write(at as usize, record);
        self.describe(at, record.len());
        true
    }

    /// A record of `head` and so many bytes of another ring's.
    pub fn forward(&mut self, head: &[u8], from: &Reader, from_at: usize, len: usize) -> bool {
        let Some(at) = self.buffer().filter(|_| head.len() + len <= BUFFER) else {
            return false;
        };
        self.end.write(at as usize, head);
        if len > 0 {
            from.end
                .copy_to(from_at, &self.end, at as usize + head.len(), len);
        }
        self.describe(at, head.len() + len);
        true
    }

    /// Lets the reader see what was written.
    pub fn publish(&mut self) {
        self.end.store(ProducerWord::Published, self.position);
    }
}

/// The reading end.
pub struct Reader {
    end: ConsumerEnd,
    position: u64,
    published: u64,
    mask: u64,
    first: usize,
    bytes: usize,
}

impl Reader {
    /// Over the memory of a FIFO of so many bytes.
    pub fn new(end: ConsumerEnd, bytes: usize) -> Reader {
        Reader {
            end,
            position: 0,
            published: 0,
            mask: slots(bytes) as u64 - 1,
            first: first_buffer(bytes),
            bytes,
        }
    }

    /// Where the next record lies and how long it is.
    pub fn peek(&mut self) -> Option<(usize, usize)> {
        if self.position == self.published {
            let alleged = self.end.load(ProducerWord::Published);
            if alleged.wrapping_sub(self.position) > self.mask + 1 {
                return None;
            }
            self.published = alleged;
            if self.position == self.published {
                return None;
            }
        }
        let slot = (self.position & self.mask) as usize;
        let [word, _] = self.end.read_header(slot * DESCRIPTOR);
        let (at, len) = ((word & 0xffff_ffff) as usize, (word >> 32) as usize);
        let legal = len <= BUFFER && at >= self.first && at <= self.bytes - BUFFER;
        legal.then_some((at, len))
    }

    /// Copies bytes of a record.
    pub fn copy(&self, at: usize, into: &mut [u8]) {
        self.end.read(at, into);
    }

    /// The record is done with.
    pub fn advance(&mut self) {
        self.position += 1;
    }

    /// Lets the writer have its buffers back.
    pub fn release(&mut self) {
        self.end.store(ConsumerWord::Consumed, self.position);
    }
}
