//! The two ends of a direction, as `ring`'s memory traits want them.

use crate::mapping::{Mapping, WritableMapping};
use ring::{
    ConsumerMemory, ConsumerWord, CopyTo, DATA_AT, Geometry, HEADER_WORDS, PAGE, PRODUCER_PAGE_AT,
    ProducerMemory, ProducerWord,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The producer's end: its file mapped for writing, the consumer's page for reading.
pub struct ProducerEnd {
    own: WritableMapping,
    peer: Mapping,
}

/// The consumer's end: the producer's file mapped for reading, its own page for writing.
pub struct ConsumerEnd {
    peer: Mapping,
    own: WritableMapping,
}

/// Both ends of a ring in memory that this process's threads share.
pub(crate) fn between_threads(geometry: &Geometry) -> io::Result<(ProducerEnd, ConsumerEnd)> {
    let data = geometry.data_file_bytes();
    let memory: Arc<Mapping> = Mapping::of_threads(data + PAGE)?;
    let part = |at, len| Mapping::part(&memory, at, len);
    let producer = ProducerEnd {
        own: WritableMapping::adopt(part(0, data)?),
        peer: part(data, PAGE)?,
    };
    let consumer = ConsumerEnd {
        peer: part(0, data)?,
        own: WritableMapping::adopt(part(data, PAGE)?),
    };
    Ok((producer, consumer))
}

impl ProducerEnd {
    pub(crate) fn map(
        data: BorrowedFd<'_>,
        consumer: BorrowedFd<'_>,
        geometry: &Geometry,
    ) -> io::Result<ProducerEnd> {
        Ok(ProducerEnd {
            own: WritableMapping::new(data, geometry.data_file_bytes())?,
            peer: Mapping::new(consumer, PAGE)?,
        })
    }
    pub(crate) fn header(&self) -> [u64; HEADER_WORDS] {
        header(&self.own)
    }

    /// Copies bytes from another mapping to offset `at` of the data.
    #[inline]
    pub(crate) fn copy_from(&self, from: &Mapping, from_at: usize, at: usize, len: usize) {
        from.copy_to(from_at, &self.own, DATA_AT + at, len);
    }
}

impl ConsumerEnd {
    pub(crate) fn map(
        data: BorrowedFd<'_>,
        consumer: BorrowedFd<'_>,
        geometry: &Geometry,
    ) -> io::Result<ConsumerEnd> {
        Ok(ConsumerEnd {
            peer: Mapping::new(data, geometry.data_file_bytes())?,
            own: WritableMapping::new(consumer, PAGE)?,
        })
    }
    pub(crate) fn header(&self) -> [u64; HEADER_WORDS] {
        header(&self.peer)
    }

    /// Copies bytes from offset `at` of the data into another mapping.
    #[inline]
    pub(crate) fn copy_out_to(&self, at: usize, to: &WritableMapping, to_at: usize, len: usize) {
        self.peer.copy_to(DATA_AT + at, to, to_at, len);
    }
}

fn header(data: &Mapping) -> [u64; HEADER_WORDS] {
    std::array::from_fn(|i| data.load(i * 8, Ordering::Acquire))
}

impl ProducerMemory for ProducerEnd {
    #[inline]
    fn load(&self, word: ConsumerWord) -> u64 {
        self.peer.load(word as usize * 8, Ordering::Acquire)
    }
    #[inline]
    fn store(&self, word: ProducerWord, value: u64) {
        self.own.store(
            PRODUCER_PAGE_AT + word as usize * 8,
            value,
            Ordering::Release,
        );
    }
    #[inline]
    fn write_header(&self, at: usize, words: [u64; 2]) {
        self.own.store_pair(DATA_AT + at, words);
    }
    #[inline]
    fn write_record(&self, at: usize, words: [u64; 2], bytes: &[u8]) {
        self.own.store_record(DATA_AT + at, words, bytes);
    }
    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        self.own.copy_in(DATA_AT + at, bytes);
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl ConsumerMemory for ConsumerEnd {
    #[inline]
    fn load(&self, word: ProducerWord) -> u64 {
        self.peer
            .load(PRODUCER_PAGE_AT + word as usize * 8, Ordering::Acquire)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.own.load(word as usize * 8, Ordering::Acquire)
    }
    #[inline]
    fn store(&self, word: ConsumerWord, value: u64) {
        self.own.store(word as usize * 8, value, Ordering::Release);
    }
    #[inline]
    fn read_header(&self, at: usize) -> [u64; 2] {
        self.peer.load_pair(DATA_AT + at)
    }
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        self.peer.copy_out(DATA_AT + at, out);
    }
    #[inline]
    fn will_read(&self, at: usize) {
        self.peer.prefetch(DATA_AT + at);
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl CopyTo<ProducerEnd> for ConsumerEnd {
    #[inline]
    fn copy_to(&self, at: usize, to: &ProducerEnd, to_at: usize, len: usize) {
        self.peer
            .copy_to(DATA_AT + at, &to.own, DATA_AT + to_at, len);
    }
}
