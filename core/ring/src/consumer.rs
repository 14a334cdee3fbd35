//! The reading end of a channel: records.

use crate::memory::{ConsumerMemory, ConsumerWord, CopyTo, ProducerMemory, ProducerWord};
use crate::producer::pick;
use crate::record::{CaptureNote, KIND_CAPTURE, KIND_FRAME, KIND_PAD, RawRecord};
use crate::{
    Breach, ECHO_WITHIN_NS, FIRST, Geometry, Lost, MAX_HEADER, MAX_IDLE_RESTARTS, SPARE_RINGS,
    State, UNIT,
};
use guard::guard;
use wire::offload::RawOffload;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

/// `kind` and `header_units` of the common record, as they lie in the first word.
const PLAIN_FRAME: u16 = KIND_FRAME as u16 | 1 << 8;
/// How far ahead of the position cache lines are asked for, bytes.
const AHEAD: u64 = 512;
/// Most records counted when what was in flight is written off.
const MAX_WALK: usize = 4096;

/// Reads records; believes nothing of what it reads before it has checked a copy.
pub struct Consumer<M> {
    memory: M,
    /// Next byte to read. Private: never read back from shared memory.
    position: u64,
    /// The producer's position, as last alleged and checked.
    limit: u64,
    /// Up to where records lie in a row, at most `limit`.
    end: u64,
    /// What the producer may overwrite up to: our stated position.
    released: u64,
    /// Where the last record handed out ends.
    peeked: u64,
    /// Its header, as copied, and where its frame begins.
    words: [u64; 2],
    frame_at: usize,
    mask: u64,
    max_record: u64,
    generation: u64,
    peer_generation: u64,
    awaiting_echo: bool,
    awaiting_active: bool,
    both_restarted: bool,
    waiting_since: u64,
    idle_restarts: u32,
    token: u64,
    armed: bool,
    rings: u64,
    rings_owed: u64,
    lost: Lost,
    breach: Option<Breach>,
}

/// A record whose header has been copied and checked. Its frame still lies in the
/// ring, where the peer can change it: copy out, then look.
pub struct Record<'a, M> {
    memory: &'a M,
    words: [u64; 2],
    at: usize,
}

impl<M: ConsumerMemory> Consumer<M> {
    /// The first consumer on a ring that was made for it.
    pub fn fresh(memory: M, geometry: &Geometry) -> Consumer<M> {
        Consumer {
            memory,
            position: 0,
            limit: 0,
            end: 0,
            released: 0,
            peeked: 0,
            words: [0; 2],
            frame_at: 0,
            mask: geometry.capacity() as u64 - 1,
            max_record: geometry.max_record() as u64,
            generation: 0,
            peer_generation: 0,
            awaiting_echo: false,
            awaiting_active: false,
            both_restarted: false,
            waiting_since: 0,
            idle_restarts: 0,
            token: 0,
            armed: false,
            rings: 0,
            rings_owed: SPARE_RINGS,
            lost: Lost::default(),
            breach: None,
        }
    }

    /// The successor of a consumer that died: starts where the producer is, so what
    /// was in flight is lost and counted, and nothing is read in its middle.
    /// `generation` must be a number that the predecessor could not foresee. `now`
    /// in nanoseconds starts the wait for the echo.
    pub fn resume(memory: M, geometry: &Geometry, generation: u64, now: u64) -> Consumer<M> {
        let mut consumer = Consumer::fresh(memory, geometry);
        consumer.waiting_since = now;
        consumer.awaiting_echo = true;
        let memory = &consumer.memory;
        let standing = memory.load(ProducerWord::Echo);
        consumer.generation = pick(generation, standing, 2);
        // The predecessor's arming is over, before the producer can follow us: rung for
        // it then, it would take the same number of ours for one that was rung already.
        if guard!("ring-successor-disarms") {
            memory.store(ConsumerWord::Armed, 0);
        }
        // Odd: from here on the producer takes no position from our page.
        memory.store(ConsumerWord::Generation, consumer.generation | 1);
        memory.fence();
        let peer = memory.load(ProducerWord::Generation);
        if memory.load(ProducerWord::Active) != peer && guard!("ring-both-restarted") {
            // The producer is a successor too, and which start it takes is open.
            consumer.both_restarted = true;
            return consumer;
        }
        let published = memory.load(ProducerWord::Published);
        if !published.is_multiple_of(UNIT as u64) {
            consumer.breach = Some(Breach::Unaligned);
            return consumer;
        }
        let before = memory.own(ConsumerWord::Consumed);
        consumer.lost = consumer.walk(before, published);
        consumer.peer_generation = peer;
        let start = if guard!("ring-start-at-survivor") {
            published
        } else {
            before
        };
        consumer.position = start;
        consumer.limit = start;
        consumer.end = start;
        consumer.released = start;
        consumer.memory.store(ConsumerWord::Consumed, start);
        consumer
            .memory
            .store(ConsumerWord::Generation, consumer.generation);
        consumer
    }

    /// Looks at the producer's page: its successor's generation, our echo, what is
    /// published. Cheap; due once a round or wake-up.
    pub fn poll(&mut self) -> Result<State, Breach> {
        self.refresh()?;
        Ok(self.state())
    }

    /// The next record, and goes on behind it.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "the item borrows from the consumer"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_, M>>, Breach> {
        if !self.find()? {
            return Ok(None);
        }
        self.position = self.peeked;
        Ok(Some(self.record()))
    }

    /// The next record, without going on: see [`Consumer::advance`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record<'_, M>>, Breach> {
        if !self.find()? {
            return Ok(None);
        }
        Ok(Some(self.record()))
    }

    /// Goes on behind the record last peeked at. Once more does nothing.
    #[inline]
    pub fn advance(&mut self) {
        // `peeked` lies in `position..=limit`, or is `position` itself.
        self.position = self.peeked;
    }

    /// Up to `most` of the records that come next, from the one that [`Consumer::peek`] gives
    /// on, without going on; fewer where one is not plain. Each is looked at again, and judged,
    /// when its turn comes.
    pub fn ahead(&self, most: usize, mut look: impl FnMut(usize, &Record<'_, M>)) -> usize {
        let mut position = self.position;
        for count in 0..most {
            let available = self.limit.wrapping_sub(position);
            let at = position & self.mask;
            if available == 0 {
                return count;
            }
            let words = self.memory.read_header(at as usize);
            let Some(total) = self.plain(words, available.min(self.mask + 1 - at)) else {
                return count;
            };
            let record = Record {
                memory: &self.memory,
                words,
                at: at as usize + UNIT,
            };
            look(count, &record);
            position = position.wrapping_add(total);
        }
        most
    }

    /// The whole size of a frame with a plain header, inside all bounds, of which one is how
    /// many bytes lie in a row.
    #[inline(always)]
    fn plain(&self, words: [u64; 2], in_a_row: u64) -> Option<u64> {
        let total = (u64::from(u64::from_le(words[0]) as u32) + 2 * UNIT as u64 - 1) & !15;
        let is_plain = (u64::from_le(words[0]) >> 32) as u16 == PLAIN_FRAME;
        (is_plain && total <= in_a_row && total <= self.max_record).then_some(total)
    }

    /// Gives what was read back to the producer. Once a batch, after the copies.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.position {
            self.released = self.position;
            self.memory.store(ConsumerWord::Consumed, self.position);
        }
    }

    /// Whether there is a record, or something about the handshake to do.
    pub fn is_ready(&mut self) -> Result<bool, Breach> {
        if self.position != self.limit {
            return Ok(true);
        }
        let before = self.state();
        Ok(self.refresh()? || self.state() != before)
    }

    /// Announces that the caller is about to sleep. `true`: nothing has come, it may
    /// sleep until the doorbell rings (no longer than about 200 us while
    /// [`State::AwaitingEcho`], since an echo does not ring). `false`: there is work.
    pub fn arm(&mut self) -> Result<bool, Breach> {
        self.token = if self.token == u64::MAX {
            1
        } else {
            self.token + 1
        };
        self.armed = true;
        self.rings_owed = self.rings_owed.saturating_add(1);
        self.memory.store(ConsumerWord::Armed, self.token);
        // Either the producer's publish is seen below, or it sees the flag.
        if guard!("ring-sleep-fence") {
            self.memory.fence();
        }
        if self.is_ready()? {
            self.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    /// After a wake-up, of whatever cause: no more doorbell is wanted.
    pub fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.memory.store(ConsumerWord::Armed, 0);
        }
    }

    /// After a wake-up by the doorbell, with the bytes that were in it. More than one
    /// for each arming and each restart of the producer is a flood.
    pub fn rung(&mut self, bytes: usize) -> Result<(), Breach> {
        self.disarm();
        self.rings = self.rings.saturating_add(bytes as u64);
        if self.rings > self.rings_owed && guard!("ring-doorbell-flood") {
            // What closed it before stays the reason.
            return self.close(self.breach.unwrap_or(Breach::DoorbellFlood));
        }
        Ok(())
    }

    /// Where the handshake stands, without looking.
    pub fn state(&self) -> State {
        match (self.awaiting_echo, self.awaiting_active) {
            (true, _) => State::AwaitingEcho,
            (_, true) => State::AwaitingPeer,
            _ => State::Running,
        }
    }

    /// Whether the pair is to be replaced: the peer has owed its echo too long, or
    /// both sides restarted at once.
    pub fn overdue(&self, now: u64) -> bool {
        self.both_restarted
            || (self.awaiting_echo && now.saturating_sub(self.waiting_since) >= ECHO_WITHIN_NS)
    }

    /// What was lost in restarts since this was last asked.
    pub fn take_lost(&mut self) -> Lost {
        core::mem::take(&mut self.lost)
    }

    /// The memory this end leans on.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Finds and checks the next record; sets `words`, `frame_at` and `peeked`.
    #[inline(always)]
    fn find(&mut self) -> Result<bool, Breach> {
        // The common case in few instructions: a frame with a plain header, inside
        // all bounds. Everything else, breaches too, is judged by `find_any`.
        let in_a_row = self.end.wrapping_sub(self.position);
        if in_a_row != 0 {
            let at = (self.position & self.mask) as usize;
            let words = self.memory.read_header(at);
            if in_a_row > AHEAD {
                self.memory.will_read(at + AHEAD as usize);
            }
            if let Some(total) = self.plain(words, in_a_row) {
                self.words = words;
                self.frame_at = at + UNIT;
                self.peeked = self.position.wrapping_add(total);
                return Ok(true);
            }
        }
        self.find_any()
    }

    /// The same, step by step; a pad before the record is skipped.
    #[cold]
    #[inline(never)]
    fn find_any(&mut self) -> Result<bool, Breach> {
        if self.position == self.limit && !self.refresh()? {
            return Ok(false);
        }
        let mut at = (self.position & self.mask) as usize;
        let mut words = self.memory.read_header(at);
        if RawRecord::from_words(words).kind == KIND_PAD {
            self.skip_pad(at, &RawRecord::from_words(words))?;
            if self.position == self.limit && !self.refresh()? {
                return Ok(false);
            }
            // Now at the start, where a second pad fails the check.
            at = (self.position & self.mask) as usize;
            words = self.memory.read_header(at);
        }
        let header = RawRecord::from_words(words);
        match self.check(at, &header, self.limit.wrapping_sub(self.position)) {
            Ok(total) => {
                self.words = words;
                self.frame_at = at + header.header_units as usize * UNIT;
                self.peeked = self.position.wrapping_add(total);
                let to_end = match guard!("ring-in-a-row") {
                    true => self.mask + 1 - at as u64,
                    false => u64::MAX,
                };
                let in_a_row = self.limit.wrapping_sub(self.position).min(to_end);
                self.end = self.position.wrapping_add(in_a_row);
                Ok(true)
            }
            Err(breach) => self.close(breach),
        }
    }

    #[inline(always)]
    fn record(&self) -> Record<'_, M> {
        Record {
            memory: &self.memory,
            words: self.words,
            at: self.frame_at,
        }
    }

    /// The whole size of a record at offset `at`, or how it is no record.
    fn check(&self, at: usize, header: &RawRecord, available: u64) -> Result<u64, Breach> {
        let head = u64::from(header.header_units) * UNIT as u64;
        let least = match header.kind {
            KIND_FRAME => UNIT,
            KIND_CAPTURE => UNIT + size_of::<CaptureNote>(),
            KIND_PAD => return Err(Breach::Pad),
            _ => return Err(Breach::Kind),
        };
        if (head < least as u64 || head > MAX_HEADER as u64) && guard!("ring-record-header") {
            return Err(Breach::Header);
        }
        let total = (head + u64::from(header.len) + (UNIT as u64 - 1)) & !(UNIT as u64 - 1);
        if total > self.max_record && guard!("ring-record-length") {
            return Err(Breach::TooLong);
        }
        if at as u64 + total > self.mask + 1 && guard!("ring-record-crosses") {
            return Err(Breach::CrossesEnd);
        }
        if total > available && guard!("ring-record-overrun") {
            return Err(Breach::Overrun);
        }
        Ok(total)
    }

    #[cold]
    #[inline(never)]
    fn skip_pad(&mut self, at: usize, header: &RawRecord) -> Result<(), Breach> {
        let total = UNIT as u64 + u64::from(header.len);
        let ends = at as u64 + total == self.mask + 1 && header.header_units == 1;
        if (at == 0 || !ends) && guard!("ring-pad") {
            return self.close(Breach::Pad);
        }
        if total > self.limit.wrapping_sub(self.position) {
            return self.close(Breach::Overrun);
        }
        self.position = self.position.wrapping_add(total);
        self.end = self.position;
        self.peeked = self.position;
        Ok(())
    }

    /// Takes the producer's position, an allegation. `true`: there is something to read.
    #[inline(never)]
    fn refresh(&mut self) -> Result<bool, Breach> {
        if let Some(breach) = self.breach {
            return Err(breach);
        }
        if self.both_restarted {
            return Ok(false);
        }
        let generation = self.memory.load(ProducerWord::Generation);
        if generation != self.peer_generation && guard!("ring-consumer-follows") {
            self.follow_producer(generation)?;
        }
        if self.awaiting_active {
            if self.memory.load(ProducerWord::Active) != self.peer_generation
                && guard!("ring-consumer-awaits-active")
            {
                return Ok(false);
            }
            self.awaiting_active = false;
        }
        if self.awaiting_echo {
            if self.memory.load(ProducerWord::Echo) != self.generation {
                return Ok(false);
            }
            self.awaiting_echo = false;
        }
        let published = self.memory.load(ProducerWord::Published);
        if published == self.limit {
            return Ok(self.position != self.limit);
        }
        if !published.is_multiple_of(UNIT as u64) && guard!("ring-published-aligned") {
            return self.close(Breach::Unaligned);
        }
        let known = self.limit.wrapping_sub(self.released);
        if published.wrapping_sub(self.limit) > self.mask + 1 - known
            && guard!("ring-published-window")
        {
            return self.close(Breach::Position);
        }
        self.limit = published;
        self.idle_restarts = 0;
        Ok(true)
    }

    /// A producer took over: what its predecessor left unread is dropped, and it is
    /// told where to start. It writes nothing before it sees our echo.
    #[cold]
    fn follow_producer(&mut self, generation: u64) -> Result<(), Breach> {
        // Looking through what was left is the one thing here that takes time: not for
        // a peer that restarts again and again and says nothing between.
        self.idle_restarts = self.idle_restarts.saturating_add(1);
        if self.idle_restarts <= MAX_IDLE_RESTARTS || !guard!("ring-restarts-are-cheap") {
            let left = self.memory.load(ProducerWord::Published);
            let unread = self.walk(self.position, left);
            self.lost.records += unread.records;
            self.lost.bytes += unread.bytes;
        }
        self.peer_generation = generation;
        self.rings_owed = self.rings_owed.saturating_add(1);
        self.awaiting_active = true;
        self.limit = self.position;
        self.end = self.position;
        self.peeked = self.position;
        self.released = self.position;
        self.memory.store(ConsumerWord::Consumed, self.position);
        self.memory.store(ConsumerWord::Echo, generation);
        Ok(())
    }

    /// Counts what lies between two positions, as far as it looks like records.
    fn walk(&self, from: u64, to: u64) -> Lost {
        let mut lost = Lost::default();
        let span = to.wrapping_sub(from);
        if span > self.mask + 1 || !span.is_multiple_of(UNIT as u64) {
            return lost;
        }
        if !from.is_multiple_of(UNIT as u64) {
            return lost;
        }
        lost.bytes = span;
        let mut position = from;
        for _ in 0..MAX_WALK {
            if position == to {
                break;
            }
            let at = (position & self.mask) as usize;
            let header = RawRecord::from_words(self.memory.read_header(at));
            let total = if header.kind == KIND_PAD {
                self.mask + 1 - at as u64
            } else {
                match self.check(at, &header, to.wrapping_sub(position)) {
                    Ok(total) => total,
                    Err(_) => break,
                }
            };
            if total > to.wrapping_sub(position) {
                break;
            }
            lost.records += u64::from(header.kind != KIND_PAD);
            position = position.wrapping_add(total);
        }
        lost
    }

    #[cold]
    #[inline(never)]
    fn close<T>(&mut self, breach: Breach) -> Result<T, Breach> {
        self.breach = Some(breach);
        // Nothing left to read, so that the fast path needs no look at `breach`.
        self.limit = self.position;
        if guard!("ring-closed-is-empty") {
            self.end = self.position;
        }
        self.peeked = self.position;
        Err(breach)
    }
}

impl<M: ConsumerMemory> Record<'_, M> {
    /// Frame bytes.
    #[inline]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a record may hold no frame, but is one"
    )]
    pub fn len(&self) -> usize {
        self.header().len as usize
    }
    /// Bytes the record takes in the ring, header and padding included.
    #[inline]
    pub fn ring_bytes(&self) -> usize {
        (self.header_bytes() + self.len()).next_multiple_of(UNIT)
    }
    /// [`KIND_FRAME`] or [`KIND_CAPTURE`].
    #[inline]
    pub fn kind(&self) -> u8 {
        self.header().kind
    }
    /// Host-local fabric tag, as alleged.
    #[inline]
    pub fn tag(&self) -> u16 {
        self.header().tag
    }
    /// Offload fields, as alleged.
    #[inline]
    pub fn offload(&self) -> RawOffload {
        self.header().offload
    }
    /// The whole header, as alleged; its lengths are checked.
    #[inline]
    pub fn header(&self) -> RawRecord {
        RawRecord::from_words(self.words)
    }
    #[inline]
    fn header_bytes(&self) -> usize {
        self.header().header_units as usize * UNIT
    }
    /// Copies frame bytes from byte `from` on; returns how many there were.
    #[inline]
    pub fn copy(&self, from: usize, out: &mut [u8]) -> usize {
        let n = self.len().saturating_sub(from).min(out.len());
        if let Some(out) = out.get_mut(..n)
            && n != 0
        {
            self.memory.read(self.at + from, out);
        }
        n
    }
    /// Copies the frame's first bytes; returns how many there were.
    #[inline(always)]
    pub fn first(&self, out: &mut [u8; FIRST]) -> usize {
        if self.len() < FIRST {
            return self.copy(0, out);
        }
        self.memory.read(self.at, out);
        FIRST
    }
    /// What a capture record says beside its frame.
    pub fn note(&self) -> Option<CaptureNote> {
        if self.kind() != KIND_CAPTURE {
            return None;
        }
        let head = self.header_bytes();
        let mut note = CaptureNote::new_zeroed();
        self.memory
            .read((self.at + UNIT).saturating_sub(head), note.as_mut_bytes());
        Some(note)
    }
    /// The 16 bytes beside a frame ([`Producer::push_beside`](crate::Producer::push_beside)),
    /// where its header has room for them.
    #[inline]
    pub fn beside(&self) -> Option<[u64; 2]> {
        (self.kind() == KIND_FRAME && self.header().header_units == 2)
            .then(|| self.memory.read_header(self.at - UNIT))
    }
    /// Where `len` bytes of the frame from `from` on lie in the ring's memory, for a copy to
    /// somewhere else; nothing where there are not as many.
    #[inline]
    pub fn place(&self, from: usize, len: usize, copy: impl FnOnce(&M, usize)) {
        if len != 0 && from <= self.len() && len <= self.len() - from {
            copy(self.memory, self.at + from);
        }
    }
    /// Copies `len` frame bytes from byte `from` on straight to another ring.
    #[inline]
    pub(crate) fn copy_to<P: ProducerMemory>(&self, from: usize, to: &P, to_at: usize, len: usize)
    where
        M: CopyTo<P>,
    {
        if len != 0 && from <= self.len() && len <= self.len() - from {
            self.memory.copy_to(self.at + from, to, to_at, len);
        }
    }
}
