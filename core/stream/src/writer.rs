//! The writing end.

use crate::frame::{Head, LONGEST_SPILL, TOKEN_LENGTH};
use crate::{Line, Stop};
use core::sync::atomic::{Ordering, compiler_fence};
use guard::guard;
use ring::{ConsumerWord, Doorbell, Geometry, ProducerMemory, ProducerWord, StreamProducer};

/// Bytes after which the reader sees what is there of a longer write, a quarter of the usual ring:
/// it copies these out while the next are copied in. Smaller parts have the two follow each other
/// through the same lines.
const PART: usize = 256 << 10;

/// What becomes of bytes that the ring has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// They go by the socket.
    Spills,
    /// They are not written: [`Stop::Full`].
    Waits,
    /// All go by the socket, whatever room there is.
    Aside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// By the socket, as they are.
    Plain,
    /// The reader is told where that ends; the token that marks it is not sent yet.
    Leaving,
    /// By the ring, and by frames.
    Ring,
}

/// Writes bytes.
pub struct Writer<M> {
    ring: StreamProducer<M>,
    phase: Phase,
    /// Bytes that were sent as they are.
    plain: u64,
    /// Bytes that were sent for want of room.
    spilled: u64,
    /// Something may be filled in that is not committed.
    fills: bool,
    /// Bytes that were sent beside those.
    heads: u64,
    /// The rest of a frame's head, and how many of its bytes are to follow.
    head: Head,
    owed: usize,
}

impl<M: ProducerMemory> Writer<M> {
    /// The writer of a circuit by which nothing was written yet. Says that this side has the
    /// memory.
    pub fn new(memory: M, geometry: &Geometry) -> Writer<M> {
        Writer::after(memory, geometry, 0)
    }

    /// The same of one by which so many bytes were written, as they are.
    pub fn after(memory: M, geometry: &Geometry, plain: u64) -> Writer<M> {
        memory.store(ProducerWord::Joined, 1);
        Writer {
            ring: StreamProducer::fresh(memory, geometry).rewinding(),
            phase: Phase::Plain,
            plain,
            spilled: 0,
            heads: 0,
            fills: false,
            head: Head::default(),
            owed: 0,
        }
    }

    /// Writes as many of the bytes as there is room for, which the reader sees; how many.
    ///
    /// # Errors
    /// [`Stop`]; nothing was written then. [`Stop::Full`] only where `full` says so.
    pub fn write(&mut self, line: &impl Line, bytes: &[u8], full: Full) -> Result<usize, Stop> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if !self.in_ring(line)? {
            return match self.phase {
                Phase::Ring => self.spill(line, bytes),
                _ => {
                    let sent = line.send(&[], bytes)?;
                    self.sent_plain(sent);
                    Ok(sent)
                }
            };
        }
        // What was reserved and not committed is given up.
        self.fills = false;
        if full == Full::Aside {
            self.leaves();
            let done = self.spill(line, bytes);
            // Elsewhere the ring is full then, and nobody naps.
            if self.is_napped() {
                line.wake();
            }
            return done;
        }
        if !self.enters() {
            return self.spill(line, bytes);
        }
        let written = self.write_parts(line, bytes);
        self.leaves();
        match written? {
            0 if full == Full::Spills => self.spill(line, bytes),
            0 => Err(Stop::Full),
            written => Ok(written),
        }
    }

    fn write_parts(&mut self, line: &impl Line, bytes: &[u8]) -> Result<usize, Stop> {
        let mut written = 0;
        for part in bytes.chunks(PART) {
            let n = self.ring.write(part)?;
            written += n;
            if n > 0 {
                self.publish(line)?;
            }
            if n < part.len() {
                break;
            }
        }
        Ok(written)
    }

    /// Says that data are about to be written; `false`: they may not, for the memory is given back
    /// just now ([`reclaim`](crate::reclaim)).
    fn enters(&self) -> bool {
        let memory = self.ring.memory();
        memory.store(ProducerWord::Fills, 1);
        // The processor may load before others see that store. Who gives memory back waits for longer than
        // such a store can take, so that no fence is paid for here, at each write.
        compiler_fence(Ordering::SeqCst);
        let may = memory.load(ConsumerWord::Reclaims) == 0 || !guard!("stream-reclaims");
        if !may {
            self.leaves();
        }
        may
    }

    /// What was written is published.
    fn leaves(&self) {
        self.ring.memory().store(ProducerWord::Fills, 0);
    }

    /// Whether the next bytes go into the ring, if it has room.
    ///
    /// # Errors
    /// [`Stop`].
    pub fn in_ring(&mut self, line: &impl Line) -> Result<bool, Stop> {
        if self.phase == Phase::Plain {
            if self.ring.memory().load(ConsumerWord::Consents) == 0 {
                return Ok(false);
            }
            // Before the token: a reader that has it knows what it is.
            let plain = self.plain.wrapping_add(1);
            self.ring.memory().store(ProducerWord::Plain, plain);
            self.head = Head::token(0);
            self.phase = Phase::Leaving;
        }
        if self.phase == Phase::Leaving {
            self.flush(line)?;
            self.phase = Phase::Ring;
        }
        let memory = self.ring.memory();
        if !self.fills
            && memory.load(ConsumerWord::Reclaims) != 0
            && guard!("stream-reclaims-begun")
        {
            return Ok(false);
        }
        // Bytes in the socket are before any in the ring.
        let read = memory.load(ConsumerWord::Spilled);
        Ok(self.owed == 0 && self.head.rest().is_empty() && read == self.spilled)
    }

    /// Whether bytes still go by the socket as they are: whoever sends some there himself says how many.
    pub fn is_plain(&self) -> bool {
        self.phase == Phase::Plain
    }

    /// So many did, that somebody else sent. Only where [`Writer::is_plain`].
    pub fn sent_plain(&mut self, n: usize) {
        self.plain = self.plain.wrapping_add(n as u64);
    }

    /// Bytes that went by the socket and that the reader has not taken: until it has the ring is not used.
    pub fn unread_spill(&self) -> u64 {
        let read = self.ring.memory().load(ConsumerWord::Spilled);
        self.spilled.wrapping_sub(read)
    }

    /// Bytes that fit the ring now. Looks at the reader's page.
    ///
    /// # Errors
    /// [`Stop::Peer`].
    pub fn room(&mut self) -> Result<usize, Stop> {
        Ok(self.ring.writable()?)
    }

    /// The same, to be filled in until [`Writer::commit`]: nobody takes the memory away meanwhile. None
    /// while that is just done: the next bytes go by the socket then, as [`Writer::in_ring`] says.
    ///
    /// # Errors
    /// [`Stop::Peer`].
    pub fn reserve(&mut self) -> Result<usize, Stop> {
        // What was filled in since the last commit stays where it is.
        if self.fills {
            return self.room();
        }
        if !self.enters() {
            return Ok(0);
        }
        self.ring.rewind();
        let room = self.room();
        self.fills = room.is_ok_and(|room| room > 0);
        if !self.fills {
            self.leaves();
        }
        room
    }

    /// What was reserved is not used: memory may be given back meanwhile.
    pub fn gives_up(&mut self) {
        if core::mem::take(&mut self.fills) {
            self.leaves();
        }
    }

    /// Writes bytes into the ring so far behind what was written; how many there is room for.
    /// Only after [`Writer::in_ring`] and [`Writer::reserve`].
    pub fn fill(&mut self, behind: usize, bytes: &[u8]) -> usize {
        self.ring.fill(behind, bytes)
    }

    /// Where in the data area the byte lies that is so far behind what was written.
    pub fn offset(&self, behind: usize) -> usize {
        self.ring.offset(behind)
    }

    /// Lets the reader see so many bytes that were filled in.
    ///
    /// # Errors
    /// [`Stop::Socket`]: the reader is gone.
    pub fn commit(&mut self, line: &impl Line, n: usize) -> Result<(), Stop> {
        self.ring.commit(n);
        let published = self.publish(line);
        self.fills = false;
        self.leaves();
        published
    }

    /// Whether the reader has read all, in the ring and out of it: that it left tokens behind,
    /// which no socket knows from data, is no reset then.
    pub fn is_read(&self) -> bool {
        self.is_read_to(self.published())
    }

    /// The same of what was published by then.
    pub fn is_read_to(&self, published: u64) -> bool {
        let memory = self.ring.memory();
        self.phase != Phase::Plain
            && self.ring.is_consumed_to(published)
            && memory.load(ConsumerWord::Spilled) == self.spilled
    }

    /// How much went into the ring.
    pub fn published(&self) -> u64 {
        self.ring.published()
    }

    /// Whether something of what was published by then lies in the ring: where the reader is gone nobody else says so.
    pub fn leaves_unread(&self, published: u64) -> bool {
        self.phase == Phase::Ring && !self.ring.is_consumed_to(published)
    }

    /// Whether the reader naps: who says no more is to wake it, for it learns of that nowhere else.
    pub fn is_napped(&self) -> bool {
        self.phase == Phase::Ring && self.ring.is_napped()
    }

    /// Bytes that the ring holds at most.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Another goes on with what who died has left, as it was between two calls of the [`Line`].
    pub fn resumes(&mut self) {
        self.ring.resumes();
        self.tell_sent(0, 0);
    }

    /// Announces a sleep for so many bytes of room. `Some`: it may sleep until the low half of the reader's
    /// position is no more this, or it is woken; `None`: there is room.
    ///
    /// # Errors
    /// [`Stop::Peer`].
    pub fn arm(&mut self, want: usize) -> Result<Option<u32>, Stop> {
        let sleeps = self.ring.arm(want)?;
        Ok(sleeps.then(|| self.ring.consumed() as u32))
    }

    /// After a sleep.
    pub fn disarm(&mut self) {
        self.ring.disarm();
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    fn publish(&mut self, line: &impl Line) -> Result<(), Stop> {
        if self.ring.publish() == Doorbell::Quiet {
            return Ok(());
        }
        if self.ring.rung_naps() {
            line.wake();
            return Ok(());
        }
        self.head = Head::token(self.ring.rung());
        match self.flush(line) {
            // A socket that takes no more is readable for who is to be woken.
            Ok(()) => Ok(()),
            Err(Stop::Blocked) => {
                if self.head.rest().len() == 2 {
                    self.head = Head::default();
                }
                Ok(())
            }
            Err(stop) => Err(stop),
        }
    }

    /// By the socket, in a frame.
    fn spill(&mut self, line: &impl Line, bytes: &[u8]) -> Result<usize, Stop> {
        if self.owed == 0 {
            // What is left of a token goes first.
            self.flush(line)?;
            self.owed = bytes.len().min(LONGEST_SPILL);
            self.head = Head::spill(self.owed);
        }
        let body = bytes.get(..self.owed).unwrap_or(bytes);
        let sent = match self.send(line, body) {
            Ok(sent) => sent,
            Err(stop) => {
                if self.head.rest().len() == crate::frame::HEAD {
                    // Nothing of it is said: the next may be of another length.
                    (self.head, self.owed) = (Head::default(), 0);
                }
                return Err(stop);
            }
        };
        self.owed -= sent.min(self.owed);
        match sent {
            0 => Err(Stop::Blocked),
            sent => Ok(sent),
        }
    }

    /// What went by the socket beside plain bytes, and is about to.
    fn tell_sent(&self, heads: usize, spilled: usize) {
        let memory = self.ring.memory();
        let heads = self.heads.wrapping_add(heads as u64);
        memory.store(ProducerWord::Heads, heads);
        let spilled = self.spilled.wrapping_add(spilled as u64);
        memory.store(ProducerWord::Spilled, spilled);
    }

    fn flush(&mut self, line: &impl Line) -> Result<(), Stop> {
        // Bound: the bytes of a head.
        while !self.head.rest().is_empty() {
            let before = self.head.rest().len();
            self.send(line, &[])?;
            if self.head.rest().len() == before {
                return Err(Stop::Blocked);
            }
        }
        Ok(())
    }

    /// As if it were sent, before it is: whoever goes on with what this end leaves sends no other, or one more.
    fn send_token(&mut self, line: &impl Line) -> Result<usize, Stop> {
        let token = self.head;
        self.head = Head::default();
        self.heads = self.heads.wrapping_add(TOKEN_LENGTH as u64);
        let sent = line.send_token(token.rest());
        if sent != Ok(TOKEN_LENGTH) {
            self.head = token;
            self.heads = self.heads.wrapping_sub(TOKEN_LENGTH as u64);
            let some = sent.unwrap_or(0);
            self.head.sent(some);
            self.heads = self.heads.wrapping_add(some as u64);
        }
        self.tell_sent(0, 0);
        sent.map(|_| 0)
    }

    /// Sends what is left of a head, and these bytes behind it; how many of them.
    fn send(&mut self, line: &impl Line, body: &[u8]) -> Result<usize, Stop> {
        let head = self.head.rest().len();
        // Before they are there: who sees them knows of them.
        self.tell_sent(head, body.len());
        if self.phase == Phase::Ring && body.is_empty() && head == TOKEN_LENGTH {
            return self.send_token(line);
        }
        let sent = line.send(self.head.rest(), body);
        let sent = sent.map(|sent| {
            self.head.sent(sent);
            let of_body = sent.saturating_sub(head).min(body.len());
            self.heads = self.heads.wrapping_add(sent.min(head) as u64);
            self.spilled = self.spilled.wrapping_add(of_body as u64);
            of_body
        });
        self.tell_sent(0, 0);
        sent
    }
}
