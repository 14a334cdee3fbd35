//! The memory a ring lives in, as its two ends may touch it.
//!
//! No method gives a reference: bytes are copied in or out, words are loaded and
//! stored atomically. An offset is always masked to the capacity by the caller;
//! an implementation must in any case stay inside its mapping whatever it is given.

/// Words of the producer's page. The number is the word's index: 0..8 and 8..16
/// are cache lines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProducerWord {
    /// Position up to which data may be read.
    Published = 0,
    /// Chosen anew by each producer that takes the ring over; 0 = the first.
    Generation = 1,
    /// Equals `Generation` once the producer has started to write.
    Active = 2,
    /// The consumer generation that this producer has seen.
    Echo = 8,
    /// A circuit's: not 0 while the producer sleeps for space.
    Armed = 9,
    /// A circuit's: bytes that went by the socket as they are, and one; 0: all still do.
    Plain = 16,
    /// A circuit's: this side has the memory.
    Joined = 17,
    /// A circuit's: bytes that went by the socket for want of room, those that are about to with
    /// them.
    Spilled = 18,
    /// A circuit's: the position whose byte lies first in the data area.
    Origin = 19,
    /// A circuit's: bytes in the socket that are no data, those that are about to be sent with them.
    Heads = 20,
    /// A circuit's: what this side says of its sending, a number of `stream::Says`.
    Ended = 21,
    /// A circuit's: not 0 while data are written that may not be published yet. A cache line of its own.
    Fills = 24,
}

/// Words of the consumer's page. `Consumed` has a cache line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ConsumerWord {
    /// Position up to which data has been read.
    Consumed = 0,
    /// Chosen anew, and even, by each consumer that takes the ring over; 0 = the
    /// first. Odd while `Consumed` is not to be read.
    Generation = 8,
    /// The producer generation that this consumer has seen.
    Echo = 9,
    /// Not 0 while the consumer sleeps for data; another number each time.
    Armed = 10,
    /// A circuit's: the reader looks before it takes, so the writer may begin to use the ring.
    Consents = 16,
    /// A circuit's: bytes that were read of those that went by the socket for want of room.
    Spilled = 17,
    /// A circuit's, and neither end's: not 0 while the memory is given back by who keeps it.
    Reclaims = 18,
}

/// A producer's view: its own page and the data to write, the consumer's page to read.
pub trait ProducerMemory {
    /// Loads a word of the consumer's page, acquire.
    fn load(&self, word: ConsumerWord) -> u64;
    /// Stores a word of our own page, release.
    fn store(&self, word: ProducerWord, value: u64);
    /// Writes a record header, 16 bytes, at an offset that is a multiple of 16.
    fn write_header(&self, at: usize, words: [u64; 2]);
    /// The same, and bytes behind it.
    #[inline]
    fn write_record(&self, at: usize, words: [u64; 2], bytes: &[u8]) {
        self.write_header(at, words);
        self.write(at + 16, bytes);
    }
    /// Copies bytes to the data area. A circuit's may run over the end and go on at the
    /// start.
    fn write(&self, at: usize, bytes: &[u8]);
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// A consumer's view: its own page to write, the producer's page and data to read.
pub trait ConsumerMemory {
    /// Loads a word of the producer's page, acquire.
    fn load(&self, word: ProducerWord) -> u64;
    /// Loads a word of our own page as a predecessor left it: an allegation.
    fn own(&self, word: ConsumerWord) -> u64;
    /// Stores a word of our own page, release.
    fn store(&self, word: ConsumerWord, value: u64);
    /// Reads a record header, each word once.
    fn read_header(&self, at: usize) -> [u64; 2];
    /// Copies bytes out of the data area. A circuit's may run over the end.
    fn read(&self, at: usize, out: &mut [u8]);
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Says that the bytes at this offset are read soon. Changes nothing.
    #[inline]
    fn will_read(&self, _at: usize) {}
}

/// Copies straight from one ring's data area to another's: one copy a hop.
pub trait CopyTo<P: ProducerMemory>: ConsumerMemory {
    /// Copies `len` bytes from offset `at` here to offset `to_at` there.
    fn copy_to(&self, at: usize, to: &P, to_at: usize, len: usize);
}
