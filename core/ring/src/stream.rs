//! Circuits' rings: bare bytes over a data area that is mapped twice in a row. A stream
//! cannot lose bytes, so a restart of either side ends it. What else a circuit needs is
//! `core/stream`'s.

use crate::memory::{ConsumerMemory, ConsumerWord, ProducerMemory, ProducerWord};
use crate::{Breach, Doorbell, Geometry};
use guard::guard;

/// Into so many parts the data area is divided by the places where it is looked whether all is read.
const STRIDES: u64 = 32;

/// With the number of a sleep that is announced: who sleeps does so by the memory, at the low half
/// of [`ProducerWord::Published`], and is woken there.
pub const NAP: u64 = 1 << 63;

/// Writes bytes.
pub struct StreamProducer<M> {
    memory: M,
    position: u64,
    consumed: u64,
    published: u64,
    capacity: u64,
    token: u64,
    rung: u64,
    breach: Option<Breach>,
    /// The position whose byte lies first in the data area.
    origin: u64,
    /// Where it is looked whether to begin there anew: at each multiple; 0: nowhere.
    stride: u64,
    looked: u64,
    /// The consumer slept before it was let see what was published last.
    rang: bool,
}

/// Reads bytes.
pub struct StreamConsumer<M> {
    memory: M,
    position: u64,
    limit: u64,
    released: u64,
    capacity: u64,
    token: u64,
    rung: u64,
    breach: Option<Breach>,
    origin: u64,
    rewinds: bool,
}

impl<M: ProducerMemory> StreamProducer<M> {
    /// The first and only producer of this ring.
    pub fn fresh(memory: M, geometry: &Geometry) -> Self {
        let capacity = geometry.capacity() as u64;
        StreamProducer {
            memory,
            position: 0,
            consumed: 0,
            published: 0,
            capacity,
            token: 0,
            rung: 0,
            breach: None,
            origin: 0,
            stride: 0,
            looked: 0,
            rang: false,
        }
    }

    /// Begins at the data area's start again where all is read and some of it was used, so that a
    /// stream which is mostly empty uses little memory. The consumer is to know
    /// ([`StreamConsumer::rewinding`]).
    #[must_use]
    pub fn rewinding(mut self) -> Self {
        self.stride = (self.capacity / STRIDES).max(1);
        self
    }

    /// Does so now, if it may. Nothing is filled in and not committed.
    pub fn rewind(&mut self) {
        let at = self.offset(0) as u64;
        // Not at every write: the consumer's position is in its own cache.
        let Some(stride) = at.checked_div(self.stride).filter(|at| *at != self.looked) else {
            return;
        };
        self.looked = stride;
        if stride == 0 || self.position != self.published || self.breach.is_some() {
            return;
        }
        // A consumer that keeps up is better off far behind: what lies in the other processor's own
        // caches takes it twice as long.
        if !self.rang && guard!("stream-rewind-asleep") {
            return;
        }
        // Who is to read a byte at the old place never says this.
        if self.memory.load(ConsumerWord::Consumed) == self.position || !guard!("stream-rewind") {
            self.consumed = self.position;
            self.origin = self.position;
            self.looked = 0;
            // Seen with the next that is published.
            self.memory.store(ProducerWord::Origin, self.origin);
        }
    }

    /// Bytes that can be written now. Looks at the consumer's page.
    pub fn writable(&mut self) -> Result<usize, Breach> {
        if let Some(breach) = self.breach {
            return Err(breach);
        }
        if self.memory.load(ConsumerWord::Generation) != 0 {
            return self.close(Breach::StreamRestart);
        }
        let consumed = self.memory.load(ConsumerWord::Consumed);
        let outstanding = self.published.wrapping_sub(self.consumed);
        if consumed.wrapping_sub(self.consumed) > outstanding && guard!("stream-consumed-window") {
            return self.close(Breach::Position);
        }
        self.consumed = consumed;
        Ok(self.free())
    }

    /// Writes as many of the bytes as there is room for; returns how many. Visible
    /// after [`StreamProducer::publish`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Breach> {
        self.rewind();
        let mut room = self.free();
        if room < bytes.len() {
            room = self.writable()?;
        }
        let n = bytes.len().min(room);
        if let Some(bytes) = bytes.get(..n) {
            self.fill(0, bytes);
            self.commit(n);
        }
        Ok(n)
    }

    /// Writes bytes so far behind what was written, as many as there is room for as far as
    /// is known; returns how many. They count after [`StreamProducer::commit`].
    pub fn fill(&mut self, behind: usize, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.free().saturating_sub(behind));
        if let Some(bytes) = bytes.get(..n) {
            self.memory.write(self.offset(behind), bytes);
        }
        n
    }

    /// So many bytes behind what was written are written: no more than there was room for.
    pub fn commit(&mut self, n: usize) {
        self.position = self.position.wrapping_add(n.min(self.free()) as u64);
    }

    /// Where in the data area the byte lies that is so far behind what was written.
    pub fn offset(&self, behind: usize) -> usize {
        offset(self.position, self.origin, behind, self.capacity)
    }

    /// The consumer's position as it was last seen: what a sleep for room waits to see changed.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes that it holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// How much was published in all.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether the consumer says that it has read as far as this, of what was published.
    pub fn is_consumed_to(&self, at: u64) -> bool {
        let unread = self
            .published
            .wrapping_sub(self.memory.load(ConsumerWord::Consumed));
        unread <= self.published.wrapping_sub(at)
    }

    /// Which of the consumer's announcements was rung for last.
    pub fn rung(&self) -> u64 {
        self.rung & !NAP
    }

    /// Whether the consumer says that it sleeps by the memory.
    pub fn is_napped(&self) -> bool {
        self.memory.load(ConsumerWord::Armed) & NAP != 0
    }

    /// Whether who was rung for last sleeps by the memory.
    pub fn rung_naps(&self) -> bool {
        self.rung & NAP != 0
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Lets the consumer see what was written; says whether it must be rung.
    pub fn publish(&mut self) -> Doorbell {
        if self.position == self.published || self.breach.is_some() {
            return Doorbell::Quiet;
        }
        self.published = self.position;
        self.memory.store(ProducerWord::Published, self.position);
        self.memory.fence();
        let armed = self.memory.load(ConsumerWord::Armed);
        let doorbell = match armed & NAP != 0 && guard!("stream-nap") {
            // Each time: it may have seen the last that it was rung for, and be about to sleep.
            true => {
                self.rung = armed;
                Doorbell::Ring
            }
            false => ring_once(armed, &mut self.rung),
        };
        self.rang = doorbell == Doorbell::Ring;
        doorbell
    }

    /// Who wrote died, between any two steps, and another goes on with what it left: what it was about to say is
    /// said. What it had not begun to publish is not written.
    pub fn resumes(&mut self) {
        if self.breach.is_none() {
            self.position = self.published;
        }
        self.memory.store(ProducerWord::Origin, self.origin);
        self.memory.store(ProducerWord::Published, self.published);
        // Who sleeps may not have been rung for that.
        self.rung = 0;
    }

    /// Announces a sleep for at least `want` bytes of room. `true`: it may sleep.
    pub fn arm(&mut self, want: usize) -> Result<bool, Breach> {
        self.token = self.token.wrapping_add(1).max(1);
        self.memory.store(ProducerWord::Armed, self.token);
        self.memory.fence();
        if self.writable()? >= want {
            self.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    /// After a wake-up.
    pub fn disarm(&mut self) {
        self.memory.store(ProducerWord::Armed, 0);
    }

    fn free(&self) -> usize {
        self.capacity
            .wrapping_sub(self.position.wrapping_sub(self.consumed)) as usize
    }

    fn close<T>(&mut self, breach: Breach) -> Result<T, Breach> {
        self.breach = Some(breach);
        self.consumed = self.position.wrapping_sub(self.capacity);
        Err(breach)
    }
}

impl<M: ConsumerMemory> StreamConsumer<M> {
    /// The first and only consumer of this ring.
    pub fn fresh(memory: M, geometry: &Geometry) -> Self {
        let capacity = geometry.capacity() as u64;
        StreamConsumer {
            memory,
            position: 0,
            limit: 0,
            released: 0,
            capacity,
            token: 0,
            rung: 0,
            breach: None,
            origin: 0,
            rewinds: false,
        }
    }

    /// Of a producer that is [`StreamProducer::rewinding`].
    #[must_use]
    pub fn rewinding(mut self) -> Self {
        self.rewinds = true;
        self
    }

    /// Bytes that can be read now. Looks at the producer's page.
    pub fn readable(&mut self) -> Result<usize, Breach> {
        if let Some(breach) = self.breach {
            return Err(breach);
        }
        if self.memory.load(ProducerWord::Generation) != 0 {
            return self.close(Breach::StreamRestart);
        }
        let published = self.memory.load(ProducerWord::Published);
        let known = self.limit.wrapping_sub(self.released);
        if published.wrapping_sub(self.limit) > self.capacity.wrapping_sub(known)
            && guard!("stream-published-window")
        {
            return self.close(Breach::Position);
        }
        // It is another only where all was read: see [`StreamProducer::rewind`].
        if self.rewinds && self.limit == self.position && published != self.limit {
            self.origin = self.memory.load(ProducerWord::Origin);
        }
        self.limit = published;
        Ok(self.limit.wrapping_sub(self.position) as usize)
    }

    /// Copies out as many bytes as there are and fit; returns how many.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Breach> {
        let mut there = self.limit.wrapping_sub(self.position) as usize;
        if there < out.len() {
            there = self.readable()?;
        }
        let n = out.len().min(there);
        if let Some(out) = out.get_mut(..n) {
            self.copy(0, out);
            self.skip(n);
        }
        Ok(n)
    }

    /// Copies out bytes so far behind what was read, as many as there are as far as is known
    /// and fit; returns how many.
    pub fn copy(&self, behind: usize, out: &mut [u8]) -> usize {
        let n = out.len().min(self.known().saturating_sub(behind));
        if let Some(out) = out.get_mut(..n) {
            self.memory.read(self.offset(behind), out);
        }
        n
    }

    /// So many bytes are read: no more than there were.
    pub fn skip(&mut self, n: usize) {
        self.position = self.position.wrapping_add(n.min(self.known()) as u64);
    }

    /// Where in the data area the byte lies that is so far behind what was read.
    pub fn offset(&self, behind: usize) -> usize {
        offset(self.position, self.origin, behind, self.capacity)
    }

    /// Which sleep was announced last.
    pub fn announced(&self) -> u64 {
        self.token
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    fn known(&self) -> usize {
        self.limit.wrapping_sub(self.position) as usize
    }

    /// Gives what was read back; says whether the producer sleeps for room and must
    /// be rung.
    pub fn release(&mut self) -> Doorbell {
        if self.released == self.position || self.breach.is_some() {
            return Doorbell::Quiet;
        }
        self.released = self.position;
        self.memory.store(ConsumerWord::Consumed, self.position);
        self.memory.fence();
        ring_once(self.memory.load(ProducerWord::Armed), &mut self.rung)
    }

    /// Who read died, between any two steps, and another goes on with what it left: what it had not given back is
    /// read again.
    pub fn resumes(&mut self) {
        if self.breach.is_none() {
            self.position = self.released;
        }
        self.memory.store(ConsumerWord::Consumed, self.released);
        self.rung = 0;
    }

    /// Announces a sleep for data. `true`: it may sleep.
    pub fn arm(&mut self) -> Result<bool, Breach> {
        self.announce();
        if self.readable()? != 0 {
            self.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    /// Announces a sleep for data by the memory (`NAP`). `Some`: it may sleep for as long as the
    /// low half of the producer's position is this.
    pub fn arm_nap(&mut self) -> Result<Option<u32>, Breach> {
        self.announce_with(NAP);
        if self.readable()? != 0 {
            self.disarm();
            return Ok(None);
        }
        Ok(Some(self.limit as u32))
    }

    /// Asks to be rung for what is published from here on, whatever there is already.
    pub fn announce(&mut self) {
        self.announce_with(0);
    }

    fn announce_with(&mut self, how: u64) {
        self.token = self.token.wrapping_add(1).max(1) & !NAP;
        self.memory.store(ConsumerWord::Armed, self.token | how);
        self.memory.fence();
    }

    /// After a wake-up.
    pub fn disarm(&mut self) {
        self.memory.store(ConsumerWord::Armed, 0);
    }

    fn close<T>(&mut self, breach: Breach) -> Result<T, Breach> {
        self.breach = Some(breach);
        self.limit = self.position;
        Err(breach)
    }
}

/// Where a byte lies: any origin, which may be an allegation, is in bounds.
fn offset(position: u64, origin: u64, behind: usize, capacity: u64) -> usize {
    let from = position.wrapping_sub(origin).wrapping_add(behind as u64);
    (from & (capacity - 1)) as usize
}

fn ring_once(armed: u64, rung: &mut u64) -> Doorbell {
    if armed == 0 || armed == *rung {
        return Doorbell::Quiet;
    }
    *rung = armed;
    Doorbell::Ring
}
