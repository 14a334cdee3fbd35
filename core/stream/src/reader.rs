//! The reading end.

use crate::frame::{HEAD, Head, Parsed, TOKEN};
use crate::{Line, Says, Stop};
use guard::guard;
use ring::{
    Breach, ConsumerMemory, ConsumerWord, Doorbell, Geometry, ProducerWord, StreamConsumer,
};

/// Tokens that are taken at once at most: an honest writer never has as many there, one
/// for each sleep that was announced before the last were taken ([`EARLY`], [`LEFT`]) and two of then.
const TOKENS: usize = 24;
/// Sleeps that are announced at most, and come to nothing for there is something by then, before the
/// tokens that they may have brought are taken, but for one. A model has no time for eight.
const LEFT: usize = if cfg!(loom) { 1 } else { 8 };
/// Sleeps that are announced at most while what comes first is still in the socket.
const EARLY: u32 = 3;
/// Bytes at most that a socket can hold, far more than any does.
const MOST_SPILLED: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Bytes come by the socket, as they are.
    Plain,
    /// So they do, but the writer may mark the end of that at any time.
    Consents,
    /// By the ring, and by frames.
    Ring,
}

/// By what the next bytes come.
enum Next {
    /// The socket, as they are; so many at most.
    Plain(usize),
    /// The ring; none: the stream has ended.
    Ring(usize),
    /// The socket, in a frame; so many at most.
    Spill(usize),
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
    /// Bytes that came beside them.
    heads: u64,
    head: Head,
    early: u32,
    left: usize,
    /// A sleep is announced, no token of before it is there, and nothing was read since.
    rests: bool,
    failed: Option<Stop>,
}

impl<M: ConsumerMemory> Reader<M> {
    /// The reader of a circuit from which nothing was read yet.
    pub fn new(memory: M, geometry: &Geometry) -> Reader<M> {
        Reader::after(memory, geometry, 0)
    }

    /// The same of one from which so many bytes were read, as they are.
    pub fn after(memory: M, geometry: &Geometry, plain: u64) -> Reader<M> {
        Reader {
            ring: StreamConsumer::fresh(memory, geometry).rewinding(),
            phase: Phase::Plain,
            plain,
            spill: 0,
            spilled: 0,
            heads: 0,
            head: Head::default(),
            early: 0,
            left: 0,
            rests: false,
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

    /// Copies bytes that are read next and leaves them there: as many as fit, or fewer, where
    /// what follows comes another way; none: the stream has ended.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn peek(&mut self, line: &impl Line, out: &mut [u8]) -> Result<usize, Stop> {
        if out.is_empty() {
            return Ok(0);
        }
        if let Some(stop @ Stop::Peer(_)) = self.failed {
            return Err(stop);
        }
        // Asked once: `next` would ask again, and from a consent on there may be frames behind plain bytes.
        if !self.consent() && guard!("stream-peek") {
            return line.look(out);
        }
        if self.phase == Phase::Consents {
            // Looked at first: the writer may mark the end at any time.
            let there = line.look(out)?;
            if let Some(left) = self.plain_left()? {
                return Ok(there.min(left));
            }
        }
        match self.next(line)? {
            Next::Plain(most) | Next::Spill(most) => {
                let most = out.len().min(most);
                line.look(out.get_mut(..most).unwrap_or_default())
            }
            Next::Ring(there) => {
                if there < out.len() && there > 0 {
                    self.announce(line)?;
                    self.ring.readable()?;
                }
                Ok(self.ring.copy(0, out))
            }
        }
    }

    /// How many bytes can be read now, where `queued` tells how many the socket has; none: the
    /// stream has ended. Never more, but for one where `edges` are waited for and none can be given, and a few less while
    /// the writer is in the middle of a spill.
    ///
    /// # Errors
    /// As [`Reader::read`]: [`Stop::Blocked`] where there are none yet.
    pub fn pending(
        &mut self,
        line: &impl Line,
        edges: bool,
        queued: impl Fn() -> usize,
    ) -> Result<usize, Stop> {
        // Before it is looked at: the writer may mark the end of plain bytes at any time.
        let before = queued();
        match self.next(line)? {
            Next::Plain(usize::MAX) => return Ok(before),
            Next::Ring(0) => return Ok(0),
            _ => {}
        }
        // Who cannot be given an edge is told of one byte more: it reads less, and finds nothing then.
        let more = usize::from(edges && !self.announce(line)?);
        // All that is there, by whichever way: who reads as much waits for an edge then. Looked at before it
        // is asked what of it is none: of what is sent that was told before.
        let queued = queued();
        let plain = match self.phase {
            // The other side's word; all of them are in the socket, where they are counted.
            Phase::Consents => self.plain_left()?.unwrap_or(0).min(queued),
            _ => 0,
        };
        let memory = self.ring.memory();
        let heads = memory.load(ProducerWord::Heads).wrapping_sub(self.heads);
        let heads = match guard!("stream-heads") {
            // One of the release before says nothing.
            true if heads <= MOST_SPILLED => heads as usize,
            _ => 0,
        };
        let spilled = match memory
            .load(ProducerWord::Spilled)
            .wrapping_sub(self.spilled)
        {
            // Nonsense, which is no reason not to read.
            more if more > MOST_SPILLED => 0,
            // Those that are about to be sent are not there. Of a frame that has begun all is data.
            more => (queued - plain)
                .saturating_sub(heads)
                .max(queued.min(self.spill))
                .min(more as usize),
        };
        match plain.saturating_add(self.ring.readable()? + spilled) {
            0 => Err(Stop::Blocked),
            all => Ok(all.saturating_add(more)),
        }
    }

    /// There is something in the ring, and the program is told how much: for more than that it may
    /// wait for an edge, as a socket gives one for all that comes. The socket stays readable: of two
    /// tokens one is taken, so that there are never many. `false`: there
    /// is none.
    fn announce(&mut self, line: &impl Line) -> Result<bool, Stop> {
        if !guard!("stream-edge") {
            return Ok(true);
        }
        if self.phase != Phase::Ring || self.spill > 0 {
            // No token can be taken yet.
            let may = self.early < EARLY;
            if may {
                self.early += 1;
                self.ring.announce();
            }
            return Ok(may);
        }
        self.early = 0;
        self.ring.announce();
        let mut bytes = [0; 3];
        match self.looked(line.look(&mut bytes)) {
            3 if bytes[0] == TOKEN && self.head.taken() == 0 => {
                self.took_tokens(line, 2).map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// By what the next bytes come, and how many at most. Where there are none this end sleeps,
    /// as after a [`Reader::read`] that found none.
    fn next(&mut self, line: &impl Line) -> Result<Next, Stop> {
        if let Some(stop @ Stop::Peer(_)) = self.failed {
            return Err(stop);
        }
        if !self.consent() {
            return Ok(Next::Plain(usize::MAX));
        }
        if self.phase == Phase::Consents {
            line.look(&mut [0])?;
            if let Some(left) = self.plain_left()? {
                return Ok(Next::Plain(left));
            }
            self.phase = Phase::Ring;
        }
        if self.spill == 0 {
            let there = self.ring.readable()?;
            if there > 0 || self.wait(line)? {
                return Ok(Next::Ring(self.ring.readable()?));
            }
        }
        Ok(Next::Spill(self.spill))
    }

    /// Another goes on with what who died has left, as it was between two calls of the [`Line`].
    pub fn resumes(&mut self) {
        self.ring.resumes();
        self.rests = false;
    }

    /// Whether bytes come by the ring by now.
    pub fn uses_ring(&self) -> bool {
        self.phase == Phase::Ring && self.spill == 0
    }

    /// What the writer says of its end, before its socket does.
    pub fn says(&self) -> Says {
        Says::of(self.ring.memory().load(ProducerWord::Ended))
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

    /// Before this end waits by the socket, or its program does: where nothing is to be read, a sleep is announced and
    /// the tokens of before are taken, as by a [`Reader::read`] that finds nothing. So the socket is readable for what comes
    /// from here on, and not before. What is wrong is told by the next read. `true`: nothing is to be read.
    pub fn rest(&mut self, line: &impl Line) -> bool {
        match self.try_rest(line) {
            Ok(()) => false,
            Err(Stop::Blocked) => true,
            Err(stop) => {
                self.failed = Some(stop);
                false
            }
        }
    }

    /// Whether there is something to read, the end too, where the socket was found readable: the token of what was read
    /// before it came is taken.
    pub fn is_ready(&mut self, line: &impl Line) -> bool {
        self.rests = false;
        !self.rest(line) && (self.spill == 0 || self.has_body(line))
    }

    /// Whether a byte of the spill is there: its head alone is nothing to read.
    fn has_body(&mut self, line: &impl Line) -> bool {
        if self.failed.is_some() || !guard!("stream-head-alone") {
            return true;
        }
        let came = line.look(&mut [0]);
        self.looked(came);
        came != Err(Stop::Blocked)
    }

    /// [`Stop::Blocked`]: it rests.
    fn try_rest(&mut self, line: &impl Line) -> Result<(), Stop> {
        if self.failed.is_some() {
            return Ok(());
        }
        if self.phase == Phase::Consents && self.plain_left()?.is_none() {
            self.phase = Phase::Ring;
        }
        if !self.uses_ring() || self.ring.readable()? > 0 {
            return Ok(());
        }
        match self.rests {
            true => Err(Stop::Blocked),
            false => self.wait(line).map(drop),
        }
    }

    /// Announces a nap, where bytes come by the ring and there are none. `Some`: it may sleep for
    /// as long as the low half of the writer's position is this, and then looks at the socket too:
    /// nobody wakes it for what comes there, nor for the end.
    ///
    /// # Errors
    /// [`Stop::Peer`].
    pub fn nap(&mut self) -> Result<Option<u32>, Stop> {
        if self.failed.is_some() || !self.uses_ring() || self.head.taken() > 0 {
            return Ok(None);
        }
        // All goes by the socket until that is done.
        let memory = self.ring.memory();
        if memory.own(ConsumerWord::Reclaims) != 0 && guard!("stream-nap-reclaims") {
            return Ok(None);
        }
        Ok(self.ring.arm_nap()?)
    }

    /// The nap is over: the writer wakes nobody any more.
    pub fn nap_is_over(&mut self) {
        self.ring.disarm();
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
        self.rests = false;
        if self.ring.release() == Doorbell::Ring {
            line.wake();
        }
    }

    /// Plain bytes; `None`: there are no more, and never will be.
    fn read_plain(&mut self, line: &impl Line, out: &mut [u8]) -> Result<Option<usize>, Stop> {
        let there = line.look(out)?;
        let Some(left) = self.plain_left()? else {
            self.phase = Phase::Ring;
            return Ok(None);
        };
        let n = out.len().min(there).min(left);
        let n = match out.get_mut(..n) {
            Some(out) if n > 0 => line.take(out)?,
            _ => 0,
        };
        self.plain = self.plain.wrapping_add(n as u64);
        Ok(Some(n))
    }

    /// How many of the bytes that were in the socket before this call are as they are, at most;
    /// `None`: none, and none will be.
    fn plain_left(&mut self) -> Result<Option<usize>, Stop> {
        // What was there when it marked the end is as it is, the rest is frames.
        let left = match self.ring.memory().load(ProducerWord::Plain) {
            0 => return Ok(Some(usize::MAX)),
            marked => (marked - 1).wrapping_sub(self.plain),
        };
        if left > u64::MAX / 2 && guard!("stream-plain-count") {
            return self.close(Breach::Count);
        }
        Ok((left > 0).then(|| usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// The ring is empty: announces a sleep, and takes what is in the socket. `true`: there is
    /// something in the ring now, or the stream has ended; `false`: a spill comes.
    fn wait(&mut self, line: &impl Line) -> Result<bool, Stop> {
        self.rests = false;
        for _ in 0..TOKENS {
            if !self.ring.arm()? {
                // Who answers in the same moment, each time, leaves a token each time, and nobody looks.
                self.left += 1;
                if self.left >= LEFT && guard!("stream-left") {
                    self.left = 0;
                    self.leaves_one(line)?;
                }
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

    /// Of the tokens that are there one is left, for there is something in the ring.
    fn leaves_one(&mut self, line: &impl Line) -> Result<(), Stop> {
        let mut bytes = [0; 2 * TOKENS];
        if self.head.taken() > 0 {
            return Ok(());
        }
        let there = self.looked(line.look(&mut bytes));
        let (tokens, _) = bytes.get(..there).unwrap_or_default().as_chunks();
        let tokens = tokens.iter().take_while(|[kind, _]| *kind == TOKEN);
        match tokens.count() {
            0 | 1 => Ok(()),
            more => self.took_tokens(line, 2 * (more - 1)),
        }
    }

    /// How much was seen. What else the socket says the kernel says once: it is told when the ring is empty.
    fn looked(&mut self, came: Result<usize, Stop>) -> usize {
        if let Err(stop) = came
            && stop != Stop::Blocked
            && guard!("stream-looked")
        {
            self.failed = Some(stop);
        }
        came.unwrap_or(0)
    }

    /// Takes tokens of before. `None`: that of now is there already, and yet the ring is empty:
    /// it was rung for what is read by now.
    fn frames(&mut self, line: &impl Line) -> Result<Option<bool>, Stop> {
        self.left = 0;
        for _ in 0..TOKENS {
            if let Some(stop) = self.failed {
                return Err(stop);
            }
            let mut bytes = [0; HEAD];
            let want = HEAD.saturating_sub(self.head.taken());
            let there = match line.look(bytes.get_mut(..want).unwrap_or_default()) {
                Ok(there) => there,
                Err(Stop::Blocked) => {
                    self.rests = true;
                    return Err(Stop::Blocked);
                }
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
                    match self.head.taken() {
                        0 => self.took_tokens(line, 2)?,
                        _ => self.took(line, 1)?,
                    }
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
        let taken = line.take(bytes.get_mut(..n).unwrap_or_default());
        self.took_all(taken, n)
    }

    /// The same of whole tokens.
    fn took_tokens(&mut self, line: &impl Line, n: usize) -> Result<(), Stop> {
        let mut bytes = [0; 2 * TOKENS];
        let taken = line.take_tokens(bytes.get_mut(..n).unwrap_or_default());
        self.took_all(taken, n)
    }

    fn took_all(&mut self, taken: Result<usize, Stop>, n: usize) -> Result<(), Stop> {
        match taken? {
            taken if taken == n => {
                self.heads = self.heads.wrapping_add(n as u64);
                Ok(())
            }
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
