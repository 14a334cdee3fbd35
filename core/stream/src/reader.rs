//! The reading end.

use crate::frame::{HEAD, Head, Parsed};
use crate::{Line, Stop};
use guard::guard;
use ring::{
    Breach, ConsumerMemory, ConsumerWord, Doorbell, Geometry, ProducerWord, StreamConsumer,
};

/// Tokens that are taken at once at most: an honest writer never has more than two there.
const TOKENS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Bytes come by the socket, as they are.
    Plain,
    /// So they do, but the writer may mark the end of that at any time.
    Consents,
    /// By the ring, and by frames.
    Ring,
}

/// Reads bytes.
pub struct Reader<M> {
    ring: StreamConsumer<M>,
    phase: Phase,
    /// Bytes that came as they are.
    plain: u64,
    /// Bytes of a spill that are still to come, and how many came in all.
    spill: usize,
    spilled: u64,
    head: Head,
    failed: Option<Stop>,
}

impl<M: ConsumerMemory> Reader<M> {
    /// The reader of a circuit from which nothing was read yet.
    pub fn new(memory: M, geometry: &Geometry) -> Reader<M> {
        Reader {
            ring: StreamConsumer::fresh(memory, geometry),
            phase: Phase::Plain,
            plain: 0,
            spill: 0,
            spilled: 0,
            head: Head::default(),
            failed: None,
        }
    }

    /// Lets the writer use the ring, if it has it. True once it may.
    pub fn consent(&mut self) -> bool {
        if self.phase == Phase::Plain && self.ring.memory().load(ProducerWord::Joined) != 0 {
            self.ring.memory().store(ConsumerWord::Consents, 1);
            self.phase = Phase::Consents;
        }
        self.phase != Phase::Plain
    }

    /// Reads as many bytes as there are and fit; none: the stream has ended.
    ///
    /// # Errors
    /// [`Stop`], never `Full`.
    pub fn read(&mut self, line: &impl Line, out: &mut [u8]) -> Result<usize, Stop> {
        if out.is_empty() {
            return Ok(0);
        }
        if let Some(stop @ Stop::Peer(_)) = self.failed {
            return Err(stop);
        }
        if !self.consent() {
            let n = line.take(out)?;
            self.plain = self.plain.wrapping_add(n as u64);
            return Ok(n);
        }
        if self.phase == Phase::Consents
            && let Some(n) = self.read_plain(line, out)?
        {
            return Ok(n);
        }
        if self.spill == 0 {
            let n = self.ring.read(out)?;
            if n > 0 {
                self.release(line);
                return Ok(n);
            }
            if self.wait(line)? {
                let n = self.ring.read(out)?;
                self.release(line);
                return Ok(n);
            }
        }
        self.read_spill(line, out)
    }

    /// Whether bytes come by the ring by now.
    pub fn uses_ring(&self) -> bool {
        self.phase == Phase::Ring && self.spill == 0
    }

    /// Whether there are bytes in the ring; how many at least. Bytes of a spill go before
    /// them: none then.
    ///
    /// # Errors
    /// [`Stop::Peer`].
    pub fn in_ring(&mut self) -> Result<usize, Stop> {
        if let Some(stop @ Stop::Peer(_)) = self.failed {
            return Err(stop);
        }
        match self.uses_ring() {
            true => Ok(self.ring.readable()?),
            false => Ok(0),
        }
    }

    /// Copies bytes out of the ring so far behind what was read; how many there are. Only after
    /// [`Reader::in_ring`].
    pub fn copy(&self, behind: usize, out: &mut [u8]) -> usize {
        self.ring.copy(behind, out)
    }

    /// Where in the data area the byte lies that is so far behind what was read.
    pub fn offset(&self, behind: usize) -> usize {
        self.ring.offset(behind)
    }

    /// So many bytes of the ring are read.
    pub fn consume(&mut self, line: &impl Line, n: usize) {
        self.ring.skip(n);
        self.release(line);
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    fn release(&mut self, line: &impl Line) {
        if self.ring.release() == Doorbell::Ring {
            line.wake();
        }
    }

    /// Plain bytes; `None`: there are no more, and never will be.
    fn read_plain(&mut self, line: &impl Line, out: &mut [u8]) -> Result<Option<usize>, Stop> {
        let there = line.look(out)?;
        let marked = self.ring.memory().load(ProducerWord::Plain);
        let left = match marked {
            0 => there as u64,
            // What was there when it marked the end is as it is, the rest is frames.
            marked => {
                let left = (marked - 1).wrapping_sub(self.plain);
                if left > u64::MAX / 2 && guard!("stream-plain-count") {
                    return self.close(Breach::Count);
                }
                left
            }
        };
        if left == 0 && marked != 0 {
            self.phase = Phase::Ring;
            return Ok(None);
        }
        let n = out
            .len()
            .min(there)
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = match out.get_mut(..n) {
            Some(out) if n > 0 => line.take(out)?,
            _ => 0,
        };
        self.plain = self.plain.wrapping_add(n as u64);
        Ok(Some(n))
    }

    /// The ring is empty: announces a sleep, and takes what is in the socket. `true`: there is
    /// something in the ring now, or the stream has ended; `false`: a spill comes.
    fn wait(&mut self, line: &impl Line) -> Result<bool, Stop> {
        for _ in 0..TOKENS {
            if !self.ring.arm()? {
                return Ok(true);
            }
            // Announced by now: what is published from here on has a token of this number. One
            // with another is of before.
            if let Some(done) = self.frames(line)? {
                return Ok(done);
            }
        }
        self.close(Breach::DoorbellFlood)
    }

    /// Takes tokens of before. `None`: that of now is there already, and yet the ring is empty:
    /// it was rung for what is read by now.
    fn frames(&mut self, line: &impl Line) -> Result<Option<bool>, Stop> {
        for _ in 0..TOKENS {
            if let Some(stop) = self.failed {
                return Err(stop);
            }
            let mut bytes = [0; HEAD];
            let want = HEAD.saturating_sub(self.head.taken());
            let there = match line.look(bytes.get_mut(..want).unwrap_or_default()) {
                Ok(there) => there,
                Err(Stop::Blocked) => return Err(Stop::Blocked),
                Err(stop) => {
                    // The kernel says it once.
                    self.failed = Some(stop);
                    0
                }
            };
            let more = bytes.get(..there).unwrap_or_default();
            let head = self.head.with(more);
            if there == 0 || matches!(head.parse(), Parsed::Spill(_)) {
                // Whoever sent that had published before.
                if self.ring.readable()? > 0 {
                    return Ok(Some(true));
                }
            }
            if there == 0 {
                return match self.failed {
                    Some(stop) => Err(stop),
                    None => Ok(Some(true)),
                };
            }
            match head.parse() {
                Parsed::Token(number) => {
                    if number == self.ring.announced() as u8 && self.head.taken() == 0 {
                        return match self.ring.readable()? {
                            0 => Ok(None),
                            _ => Ok(Some(true)),
                        };
                    }
                    self.took(line, 2 - self.head.taken().min(1))?;
                    self.head = Head::default();
                }
                Parsed::Spill(length) => {
                    self.took(line, want)?;
                    self.head = Head::default();
                    self.spill = length;
                    return Ok(Some(false));
                }
                Parsed::Partial => {
                    self.took(line, there)?;
                    self.head = head;
                }
                Parsed::Nonsense => return self.close(Breach::Frame),
            }
        }
        self.close(Breach::DoorbellFlood)
    }

    /// Bytes that were looked at are taken.
    fn took(&mut self, line: &impl Line, n: usize) -> Result<(), Stop> {
        let mut bytes = [0; HEAD];
        match line.take(bytes.get_mut(..n).unwrap_or_default())? {
            taken if taken == n => Ok(()),
            // Another reads the same socket.
            _ => self.close(Breach::Frame),
        }
    }

    fn read_spill(&mut self, line: &impl Line, out: &mut [u8]) -> Result<usize, Stop> {
        let fits = out.len().min(self.spill);
        let n = line.take(out.get_mut(..fits).unwrap_or_default())?;
        self.spill -= n.min(self.spill);
        self.spilled = self.spilled.wrapping_add(n as u64);
        self.ring
            .memory()
            .store(ConsumerWord::Spilled, self.spilled);
        Ok(n)
    }

    fn close<T>(&mut self, breach: Breach) -> Result<T, Stop> {
        self.failed = Some(Stop::Peer(breach));
        Err(Stop::Peer(breach))
    }
}
