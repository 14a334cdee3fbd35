//! Pages of words: counters and the flight recorder. One process writes, others
//! read; every value read is an allegation.

use crate::file::is_sealed_shape;
use crate::mapping::{Mapping, WritableMapping};
use guard::guard;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use telemetry::counters::{self, Counter, ProcessWord};
use telemetry::drops::DropReason;
use telemetry::recorder::{self, Event};

/// Our own page of 64-bit words: stores and loads, relaxed.
pub struct Words(WritableMapping);

impl Words {
    /// Maps `bytes` of a memory file for writing.
    ///
    /// # Errors
    /// `InvalidInput` when the file is shorter or can shrink; or the kernel's refusal.
    pub fn map(fd: impl AsFd, bytes: usize) -> io::Result<Words> {
        check(&fd, bytes)?;
        Ok(Words(WritableMapping::new(fd.as_fd(), bytes)?))
    }
    /// Maps a whole memory file for writing.
    ///
    /// # Errors
    /// As [`Words::map`]; `InvalidInput` also when it is empty.
    pub fn map_whole(fd: impl AsFd) -> io::Result<Words> {
        let size = rustix::fs::fstat(fd.as_fd())?.st_size;
        Words::map(fd, usize::try_from(size).unwrap_or(0))
    }
    /// How many words.
    pub fn len(&self) -> usize {
        self.0.len() / 8
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len() < 8
    }
    /// The word's value; 0 where there is none.
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.0.load(word.saturating_mul(8), Ordering::Relaxed)
    }
    /// Sets the word; nothing where there is none.
    #[inline]
    pub fn store(&self, word: usize, value: u64) {
        self.0
            .store(word.saturating_mul(8), value, Ordering::Relaxed);
    }
    /// Sets the word after all that was stored before it.
    #[inline]
    pub fn publish(&self, word: usize, value: u64) {
        self.0
            .store(word.saturating_mul(8), value, Ordering::Release);
    }
    /// Where so many words lie, for a system call to write to: what it wrote is there at once,
    /// whatever becomes of this process. `None` where there are fewer.
    pub fn place(&self, word: usize, words: usize) -> Option<NonNull<u8>> {
        let (at, bytes) = (word.checked_mul(8)?, words.checked_mul(8)?);
        self.0.pointer(at, bytes)
    }
    /// Adds to the word. One writer: no read-modify-write cycle is locked.
    #[inline]
    pub fn add(&self, word: usize, n: u64) {
        self.store(word, self.load(word).wrapping_add(n));
    }
    /// Adds to a word that other threads add to as well; what it was before.
    #[inline]
    pub fn fetch_add(&self, word: usize, n: u64) -> u64 {
        self.0
            .fetch_add(word.saturating_mul(8), n, Ordering::Relaxed)
    }
}

/// Another process's page of words, read-only.
pub struct PeerWords(Mapping);

impl PeerWords {
    /// Maps the whole memory file for reading.
    ///
    /// # Errors
    /// `InvalidInput` when the file is empty or can shrink; or the kernel's refusal.
    pub fn map(fd: impl AsFd) -> io::Result<PeerWords> {
        let size = rustix::fs::fstat(fd.as_fd())?.st_size;
        let bytes = usize::try_from(size).unwrap_or(0);
        check(&fd, bytes)?;
        Ok(PeerWords(Mapping::new(fd.as_fd(), bytes)?))
    }
    /// How many words.
    pub fn len(&self) -> usize {
        self.0.len() / 8
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len() < 8
    }
    /// The word's value; 0 where there is none.
    pub fn load(&self, word: usize) -> u64 {
        self.0.load(word.saturating_mul(8), Ordering::Relaxed)
    }
    /// Copies words from index `from` on; zeroes behind the end.
    pub fn copy(&self, from: usize, out: &mut [u64]) {
        for (i, word) in out.iter_mut().enumerate() {
            *word = self.load(from.saturating_add(i));
        }
    }
    /// The page of a flight recorder: its last events, oldest first. One that is
    /// being written meanwhile may be a mixture.
    pub fn events(&self) -> Vec<Event> {
        let next = self.0.load(0, Ordering::Acquire);
        let first = next.saturating_sub(recorder::EVENTS as u64);
        (first..next).map(|n| read_event(&self.0, n)).collect()
    }
}

/// The counters page of this process (`telemetry::counters`).
pub struct CountersPage {
    words: Words,
    slots: usize,
    /// Several threads of this process count in it.
    shared: bool,
    /// Where the words are that this thread alone writes.
    own: usize,
}

impl CountersPage {
    /// Maps the page for so many slots and marks it as ours.
    ///
    /// # Errors
    /// As [`Words::map`].
    pub fn open(fd: impl AsFd, slots: usize) -> io::Result<CountersPage> {
        // Releases before made pages without room for rules, or for their bytes: stores
        // there do nothing.
        let bytes = counters::bytes_for(slots);
        let without = bytes - telemetry::rules::WORDS * 8;
        let before = [without, without + telemetry::rules::DECIDED_WORDS * 8];
        let size = rustix::fs::fstat(fd.as_fd())?.st_size;
        let size = usize::try_from(size).unwrap_or(0);
        let words = match before.contains(&size) {
            true => Words::map(fd, size)?,
            false => Words::map(fd, bytes)?,
        };
        words.store(ProcessWord::Slots as usize, slots as u64);
        words.store(ProcessWord::Magic as usize, counters::MAGIC);
        Ok(CountersPage {
            words,
            slots,
            shared: false,
            own: 0,
        })
    }
    /// It is one worker's of several: others count in it at the same time, and what is said
    /// of this one ([`CountersPage::set_own`]) has its own words.
    #[must_use]
    pub fn of_worker(mut self, worker: usize) -> CountersPage {
        self.shared = true;
        self.own = counters::worker_word(worker, 0);
        self
    }
    /// Whether other threads count in it as well.
    pub fn is_shared(&self) -> bool {
        self.shared
    }
    /// Slots in the page.
    pub fn slots(&self) -> usize {
        self.slots
    }
    /// The words, by index: see `telemetry::counters`.
    pub fn words(&self) -> &Words {
        &self.words
    }
    /// Adds to a word by index.
    #[inline]
    pub fn add(&self, word: usize, n: u64) {
        if self.shared && guard!("workers-count") {
            self.words.fetch_add(word, n);
        } else {
            self.words.add(word, n);
        }
    }
    /// Sets a slot's counter to what another of its counters is.
    pub fn catch_up(&self, slot: usize, counter: Counter, with: Counter) {
        if slot < self.slots {
            let value = self.words.load(counters::counter_word(slot, with));
            self.words
                .store(counters::counter_word(slot, counter), value);
        }
    }
    /// Adds to a slot's counter.
    #[inline]
    pub fn count(&self, slot: usize, counter: Counter, n: u64) {
        if slot < self.slots {
            self.add(counters::counter_word(slot, counter), n);
        }
    }
    /// Adds to a slot's drops for a reason.
    #[inline]
    pub fn dropped(&self, slot: usize, reason: DropReason, n: u64) {
        if slot < self.slots {
            self.add(counters::drop_word(slot, reason), n);
        }
    }
    /// Begins a slot's counters anew: it is another's from now on.
    pub fn clear(&self, slot: usize) {
        if slot < self.slots {
            let first = counters::PROCESS_WORDS + slot * counters::SLOT_WORDS;
            (first..first + counters::SLOT_WORDS).for_each(|word| self.words.store(word, 0));
        }
    }
    /// Sets a word of the process block.
    #[inline]
    pub fn set(&self, word: ProcessWord, value: u64) {
        self.words.store(word as usize, value);
    }
    /// Adds to a word of the process block.
    #[inline]
    pub fn add_process(&self, word: ProcessWord, n: u64) {
        self.add(word as usize, n);
    }
    /// Sets a word that says something of this thread: of the process block where it is the
    /// only one, else of its worker's.
    #[inline]
    pub fn set_own(&self, word: ProcessWord, value: u64) {
        self.words.store(self.own + word as usize, value);
    }
    /// A word of the process block.
    pub fn process(&self, word: ProcessWord) -> u64 {
        self.words.load(word as usize)
    }
}

/// The flight recorder of this process (`telemetry::recorder`).
pub struct Recorder {
    page: WritableMapping,
    next: u64,
    /// Several threads of this process record in it.
    shared: bool,
}

impl Recorder {
    /// Maps the recorder's memory and goes on behind what a predecessor recorded.
    ///
    /// # Errors
    /// As [`Words::map`].
    pub fn open(fd: impl AsFd) -> io::Result<Recorder> {
        check(&fd, recorder::BYTES)?;
        let page = WritableMapping::new(fd.as_fd(), recorder::BYTES)?;
        // An allegation of the predecessor's, used only as a number of a slot.
        let next = page.load(0, Ordering::Relaxed) & (u64::MAX >> 1);
        Ok(Recorder {
            page,
            next,
            shared: false,
        })
    }
    /// Other threads record in it at the same time: each event has a place of its own.
    #[must_use]
    pub fn shared(mut self) -> Recorder {
        self.shared = true;
        self
    }
    /// Records one event, over the oldest.
    #[inline]
    pub fn record(&mut self, event: Event) {
        if self.shared {
            self.next = self.page.fetch_add(0, 1, Ordering::AcqRel);
        }
        let at = event_at(self.next);
        let words = [
            event.time_ns,
            u64::from(event.kind) | u64::from(event.slot) << 32,
            event.a,
            event.b,
        ];
        for (i, word) in words.into_iter().enumerate() {
            self.page.store(at + i * 8, word, Ordering::Relaxed);
        }
        if !self.shared {
            self.next += 1;
            self.page.store(0, self.next, Ordering::Release);
        }
    }
}

fn event_at(number: u64) -> usize {
    4096 + (number % recorder::EVENTS as u64) as usize * size_of::<Event>()
}

fn read_event(page: &Mapping, number: u64) -> Event {
    let at = event_at(number);
    let word = |i: usize| page.load(at + i * 8, Ordering::Relaxed);
    let tag = word(1);
    Event {
        time_ns: word(0),
        kind: tag as u32,
        slot: (tag >> 32) as u32,
        a: word(2),
        b: word(3),
    }
}

fn check(fd: &impl AsFd, bytes: usize) -> io::Result<()> {
    if bytes != 0 && is_sealed_shape(fd.as_fd(), bytes)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the memory file is too short or can be truncated",
    ))
}
