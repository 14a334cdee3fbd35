//! The writing end of a channel: records.

use crate::memory::{ConsumerWord, CopyTo, ProducerMemory, ProducerWord};
use crate::record::{CaptureNote, KIND_CAPTURE, KIND_FRAME, KIND_PAD, RawRecord};
use crate::{Breach, Doorbell, ECHO_WITHIN_NS, FIRST, Geometry, Lost, Record, State, UNIT};
use guard::guard;
use wire::offload::RawOffload;
use zerocopy::IntoBytes;

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now: the consumer is behind, or its successor has not settled in.
    Full,
    /// Longer than the channel's longest record: the caller's fault.
    TooLong,
    /// The channel is closed by the peer's misdeed.
    Breach(Breach),
}

impl From<Breach> for PushError {
    fn from(breach: Breach) -> Self {
        PushError::Breach(breach)
    }
}

/// Writes records; sees nothing of the peer but one page, which it never believes.
pub struct Producer<M> {
    memory: M,
    /// Next byte to write. Private: never read back from shared memory.
    position: u64,
    /// What the consumer may read.
    published: u64,
    /// The consumer's position, as last alleged and checked.
    consumed: u64,
    /// From `position` on, at least so many bytes in a row are ours to write.
    room: u64,
    mask: u64,
    max_record: u64,
    rung: u64,
    generation: u64,
    peer_generation: u64,
    state: State,
    waiting_since: u64,
    lost: Lost,
    breach: Option<Breach>,
}

impl<M: ProducerMemory> Producer<M> {
    /// The first producer on a ring that was made for it.
    pub fn fresh(memory: M, geometry: &Geometry) -> Producer<M> {
        Producer {
            memory,
            position: 0,
            published: 0,
            consumed: 0,
            room: 0,
            mask: geometry.capacity() as u64 - 1,
            max_record: geometry.max_record() as u64,
            rung: 0,
            generation: 0,
            peer_generation: 0,
            state: State::Running,
            waiting_since: 0,
            lost: Lost::default(),
            breach: None,
        }
    }

    /// The successor of a producer that died. `generation` must be a number that
    /// the predecessor could not foresee (from a random source). `now` in
    /// nanoseconds starts the wait for the echo; the caller rings the doorbell once.
    pub fn resume(memory: M, geometry: &Geometry, generation: u64, now: u64) -> Producer<M> {
        let mut producer = Producer::fresh(memory, geometry);
        let standing = producer.memory.load(ConsumerWord::Echo);
        producer.generation = pick(generation, standing, 1);
        producer.state = State::AwaitingEcho;
        producer.waiting_since = now;
        producer
            .memory
            .store(ProducerWord::Generation, producer.generation);
        producer
    }

    /// Looks at the consumer's page: its successor's generation, our echo, its
    /// position. Cheap; due once a batch or wake-up, also when there is nothing to send.
    pub fn poll(&mut self) -> Result<State, Breach> {
        if let Some(breach) = self.breach {
            return Err(breach);
        }
        if self.generation_changed() {
            self.follow_consumer()?;
        }
        if self.state == State::AwaitingEcho {
            self.take_start()?;
        } else {
            self.look()?;
        }
        Ok(self.state)
    }

    /// Writes one frame record: `head`, then `tail`. Visible after [`Producer::publish`].
    #[inline]
    pub fn push(
        &mut self,
        tag: u16,
        offload: &RawOffload,
        head: &[u8],
        tail: &[u8],
    ) -> Result<(), PushError> {
        let len = head.len() + tail.len();
        let at = self.reserve(UNIT, len)?;
        self.memory
            .write_record(at, frame_header(len, tag, offload), head);
        if !tail.is_empty() {
            self.memory.write(at + UNIT + head.len(), tail);
        }
        Ok(())
    }

    /// Writes one frame record: `head`, then `rest` bytes that `fill` copies to an offset of
    /// the data area.
    #[inline(always)]
    pub fn push_with(
        &mut self,
        tag: u16,
        offload: &RawOffload,
        head: &[u8],
        rest: usize,
        fill: impl FnOnce(&M, usize),
    ) -> Result<(), PushError> {
        let len = head.len() + rest;
        let at = self.reserve(UNIT, len)?;
        self.memory
            .write_header(at, frame_header(len, tag, offload));
        if !head.is_empty() {
            self.memory.write(at + UNIT, head);
        }
        fill(&self.memory, at + UNIT + head.len());
        Ok(())
    }

    /// Writes one frame record: `head`, then the source record's frame from byte
    /// `from` on, copied straight from ring to ring.
    #[inline(always)]
    pub fn forward<C: CopyTo<M>>(
        &mut self,
        tag: u16,
        offload: &RawOffload,
        head: &[u8],
        source: &Record<'_, C>,
        from: usize,
    ) -> Result<(), PushError> {
        let rest = source.len().saturating_sub(from);
        self.push_with(tag, offload, head, rest, |memory, at| {
            source.copy_to(from, memory, at, rest);
        })
    }

    /// Writes one frame record of an untagged frame that lies in another ring, of whose first
    /// [`FIRST`] bytes (all, where there are fewer) `head` takes the place.
    #[inline(always)]
    pub fn forward_first<C: CopyTo<M>>(
        &mut self,
        offload: &RawOffload,
        head: &[u8; FIRST],
        source: &Record<'_, C>,
    ) -> Result<(), PushError> {
        let len = source.len();
        let at = self.reserve(UNIT, len)?;
        let words = frame_header(len, 0, offload);
        match len.checked_sub(FIRST) {
            Some(rest) => {
                self.memory.write_record(at, words, head);
                if rest != 0 {
                    source.copy_to(FIRST, &self.memory, at + UNIT + FIRST, rest);
                }
            }
            None => {
                let head = head.get(..len).unwrap_or(&[]);
                self.memory.write_record(at, words, head);
            }
        }
        Ok(())
    }

    /// As [`Producer::push_with`], with 16 bytes in the header that its reader finds by
    /// [`Record::beside`]; who does not look for them reads a frame like any other.
    #[inline(always)]
    pub fn push_beside(
        &mut self,
        beside: [u64; 2],
        (tag, offload): (u16, &RawOffload),
        head: &[u8],
        rest: usize,
        fill: impl FnOnce(&M, usize),
    ) -> Result<(), PushError> {
        let len = head.len() + rest;
        let at = self.reserve(2 * UNIT, len)?;
        let header = RawRecord {
            header_units: 2,
            ..frame_record(len, tag, offload)
        };
        self.memory.write_header(at, header.to_words());
        self.memory.write_header(at + UNIT, beside);
        if !head.is_empty() {
            self.memory.write(at + 2 * UNIT, head);
        }
        fill(&self.memory, at + 2 * UNIT + head.len());
        Ok(())
    }

    /// Writes one capture record: the note, then `head`, then `tail`.
    pub fn push_capture(
        &mut self,
        tag: u16,
        offload: &RawOffload,
        note: &CaptureNote,
        head: &[u8],
        tail: &[u8],
    ) -> Result<(), PushError> {
        let len = head.len() + tail.len();
        let header = UNIT + size_of::<CaptureNote>();
        let at = self.reserve(header, len)?;
        self.memory
            .write_header(at, capture_header(len, tag, offload));
        self.memory.write(at + UNIT, note.as_bytes());
        self.memory.write(at + header, head);
        self.memory.write(at + header + head.len(), tail);
        Ok(())
    }

    /// Writes one capture record: the note, `head`, then the source record's frame
    /// from byte `from`, cut so that the frame kept is at most `snap` bytes.
    pub fn forward_capture<C: CopyTo<M>>(
        &mut self,
        offload: &RawOffload,
        note: &CaptureNote,
        head: &[u8],
        source: &Record<'_, C>,
        from: usize,
        snap: usize,
    ) -> Result<(), PushError> {
        let head = head.get(..snap).unwrap_or(head);
        let rest = source.len().saturating_sub(from).min(snap - head.len());
        let header = UNIT + size_of::<CaptureNote>();
        let at = self.reserve(header, head.len() + rest)?;
        let words = capture_header(head.len() + rest, source.tag(), offload);
        self.memory.write_header(at, words);
        self.memory.write(at + UNIT, note.as_bytes());
        self.memory.write(at + header, head);
        source.copy_to(from, &self.memory, at + header + head.len(), rest);
        Ok(())
    }

    /// Lets the consumer see what was pushed, and says whether it sleeps and must
    /// be rung. Once a batch. Never rings twice for one arming.
    #[inline]
    pub fn publish(&mut self) -> Doorbell {
        if self.state != State::Running || self.breach.is_some() {
            return Doorbell::Quiet;
        }
        if self.position == self.published {
            return Doorbell::Quiet;
        }
        self.published = self.position;
        self.memory.store(ProducerWord::Published, self.position);
        // Either the consumer's re-read sees the store above, or we see its flag.
        if guard!("ring-wake-fence") {
            self.memory.fence();
        }
        // On the same cache line as the flag. A misdeed is kept for the next call.
        if self.generation_changed() {
            let _ = self.follow_consumer();
        }
        let armed = self.memory.load(ConsumerWord::Armed);
        if armed == 0 || (guard!("ring-once-an-arming") && armed == self.rung) {
            return Doorbell::Quiet;
        }
        self.rung = armed;
        Doorbell::Ring
    }

    /// Whether records of so many frame bytes would fit now, by what is known of
    /// the consumer; looks at its page only when they would not.
    pub fn has_room(&mut self, frame: usize) -> bool {
        let need = 2 * (UNIT + frame.next_multiple_of(UNIT)) as u64;
        if self.state != State::Running || self.breach.is_some() {
            return false;
        }
        if self.free() >= need {
            return true;
        }
        self.look().is_ok() && self.free() >= need
    }

    /// Ring bytes written and not yet consumed, as far as is known.
    pub fn backlog(&self) -> usize {
        self.position.wrapping_sub(self.consumed) as usize
    }

    /// Where the handshake stands, without looking.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the peer has owed its echo too long, so that the pair is to be replaced.
    pub fn overdue(&self, now: u64) -> bool {
        self.state == State::AwaitingEcho
            && now.saturating_sub(self.waiting_since) >= ECHO_WITHIN_NS
    }

    /// What was lost in restarts of the consumer since this was last asked.
    pub fn take_lost(&mut self) -> Lost {
        core::mem::take(&mut self.lost)
    }

    /// The memory this end leans on.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn free(&self) -> u64 {
        // Never negative: `consumed` is checked to lie within capacity of `position`.
        (self.mask + 1).wrapping_sub(self.position.wrapping_sub(self.consumed))
    }

    /// Room for a record, padding the ring's end where it does not fit before it.
    /// Returns the record's offset.
    #[inline(always)]
    fn reserve(&mut self, header: usize, frame: usize) -> Result<usize, PushError> {
        let total = ((header + frame + (UNIT - 1)) & !(UNIT - 1)) as u64;
        if total <= self.room && total <= self.max_record {
            let at = (self.position & self.mask) as usize;
            self.position = self.position.wrapping_add(total);
            self.room -= total;
            return Ok(at);
        }
        self.reserve_any(total)
    }

    /// The same, where it is not known that there is room in a row.
    #[inline(never)]
    fn reserve_any(&mut self, total: u64) -> Result<usize, PushError> {
        if total > self.max_record {
            return Err(PushError::TooLong);
        }
        let mut pad = self.pad(total);
        if self.free() < pad + total || self.state != State::Running {
            pad = self.make_room(total)?;
        }
        if pad != 0 {
            let len = (pad as usize - UNIT) as u32;
            let words = RawRecord {
                len,
                kind: KIND_PAD,
                header_units: 1,
                ..RawRecord::default()
            };
            let at = (self.position & self.mask) as usize;
            self.memory.write_header(at, words.to_words());
            self.position = self.position.wrapping_add(pad);
        }
        let at = self.position & self.mask;
        self.position = self.position.wrapping_add(total);
        self.room = self.free().min(self.mask + 1 - at - total);
        Ok(at as usize)
    }

    /// What is left of the ring's end where a record does not fit before it.
    #[inline(always)]
    fn pad(&self, total: u64) -> u64 {
        let to_end = self.mask + 1 - (self.position & self.mask);
        if total > to_end { to_end } else { 0 }
    }

    /// Room for a record, and the pad before it: not that of a moment ago, for a successor
    /// whose echo has come begins at another position.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, total: u64) -> Result<u64, PushError> {
        let state = self.poll()?;
        let pad = self.pad(total);
        if state != State::Running || self.free() < pad + total {
            return Err(PushError::Full);
        }
        Ok(pad)
    }

    fn generation_changed(&self) -> bool {
        self.memory.load(ConsumerWord::Generation) != self.peer_generation
    }

    /// Takes the consumer's position, an allegation.
    fn look(&mut self) -> Result<(), Breach> {
        let consumed = self.memory.load(ConsumerWord::Consumed);
        // After the position: a successor marks the generation before it writes one.
        if self.generation_changed() {
            return self.follow_consumer();
        }
        let outstanding = self.published.wrapping_sub(self.consumed);
        if consumed != self.consumed {
            if !consumed.is_multiple_of(UNIT as u64) && guard!("ring-consumed-aligned") {
                return self.close(Breach::Unaligned);
            }
            if consumed.wrapping_sub(self.consumed) > outstanding && guard!("ring-consumed-window")
            {
                return self.close(Breach::Position);
            }
            self.consumed = consumed;
        }
        Ok(())
    }

    /// A consumer took over: its stated position replaces its predecessor's.
    #[cold]
    fn follow_consumer(&mut self) -> Result<(), Breach> {
        // A successor may not be as far as we knew of the one before.
        if guard!("ring-follow-room") {
            self.room = 0;
        }
        let generation = self.memory.load(ConsumerWord::Generation);
        if generation % 2 == 1 {
            return Ok(()); // It has not stated its position yet.
        }
        if self.state == State::Running {
            let consumed = self.memory.load(ConsumerWord::Consumed);
            if !consumed.is_multiple_of(UNIT as u64) {
                return self.close(Breach::Unaligned);
            }
            let behind = self.published.wrapping_sub(consumed);
            if behind > self.mask + 1 - (self.position.wrapping_sub(self.published)) {
                return self.close(Breach::Position);
            }
            let skipped = consumed.wrapping_sub(self.consumed);
            if skipped <= self.mask + 1 {
                self.lost.bytes += skipped;
            }
            self.consumed = consumed;
        }
        self.peer_generation = generation;
        self.rung = 0;
        self.memory.store(ProducerWord::Echo, generation);
        Ok(())
    }

    /// Where we are the successor: starts at the consumer's own position, once it
    /// has echoed and so reads nothing that we write before it says so.
    fn take_start(&mut self) -> Result<(), Breach> {
        if self.memory.load(ConsumerWord::Echo) != self.generation && guard!("ring-producer-echo") {
            return Ok(());
        }
        let start = self.memory.load(ConsumerWord::Consumed);
        if self.generation_changed() {
            return Ok(()); // The consumer died meanwhile; its successor states anew.
        }
        if !start.is_multiple_of(UNIT as u64) {
            return self.close(Breach::Unaligned);
        }
        self.position = start;
        self.published = start;
        self.consumed = start;
        self.state = State::Running;
        self.memory.store(ProducerWord::Published, start);
        self.memory.store(ProducerWord::Active, self.generation);
        Ok(())
    }

    #[cold]
    fn close<T>(&mut self, breach: Breach) -> Result<T, Breach> {
        self.breach = Some(breach);
        // No room for anything, so that the fast path needs no look at `breach`.
        self.consumed = self.position.wrapping_sub(self.mask + 1);
        self.room = 0;
        Err(breach)
    }
}

/// A generation of this parity (`low` = 1 odd allowed, 2 even) that is not zero and
/// not the one standing in the page.
pub(crate) fn pick(generation: u64, standing: u64, step: u64) -> u64 {
    let mut generation = generation & !(step - 1);
    while generation == 0 || generation == standing {
        generation = generation.wrapping_add(step);
    }
    generation
}

#[inline]
fn frame_header(len: usize, tag: u16, offload: &RawOffload) -> [u64; 2] {
    frame_record(len, tag, offload).to_words()
}

#[inline]
fn frame_record(len: usize, tag: u16, offload: &RawOffload) -> RawRecord {
    RawRecord {
        len: len as u32,
        kind: KIND_FRAME,
        header_units: 1,
        tag,
        offload: *offload,
    }
}

fn capture_header(len: usize, tag: u16, offload: &RawOffload) -> [u64; 2] {
    RawRecord {
        len: len as u32,
        kind: KIND_CAPTURE,
        header_units: 3,
        tag,
        offload: *offload,
    }
    .to_words()
}
