//! A network device's queues (5.1): frames that a guest sends, and frames for it, each
//! behind a header that says what of it is unfinished.

use crate::breach::Breach;
use crate::chain::{Chain, Direction, Plain, Token};
use crate::memory::GuestMemory;
use crate::queue::{Queue, Stand};
use guard::guard;
use std::rc::Rc;
use wire::offload::{MAX_FRAME, RawOffload};

/// Pairs of queues at most.
pub const MAX_PAIRS: usize = 16;
/// Buffers that one frame for the guest may be spread over.
const MAX_MERGED: usize = 64;
/// Pieces of all the buffers of one frame. A driver's buffers are of one piece, or a header and
/// the rest, where it merges them; else a frame has one buffer, of [`crate::MAX_PIECES`] at most
/// (Linux 19, FreeBSD 34).
const MAX_SCATTERED: usize = 2 * MAX_MERGED;
/// Pieces of a chain that any driver has: all of them are touched by most frames.
const FEW: usize = 2;
/// And of all buffers of one frame that a driver names, of which a frame touches what it needs:
/// those beyond are read for nothing.
const NAMED: usize = 34;
/// The header with a count of buffers behind it, and of drivers before version 1.0 that
/// merge none.
const HEADER: usize = 12;
const SHORT_HEADER: usize = 10;

/// How frames lie in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// A frame may take several buffers (`VIRTIO_NET_F_MRG_RXBUF`).
    pub merged: bool,
    /// The driver is of version 1.0 or later (`VIRTIO_F_VERSION_1`).
    pub modern: bool,
}

impl Form {
    fn header(self) -> usize {
        match self.merged || self.modern {
            true => HEADER,
            false => SHORT_HEADER,
        }
    }
}

/// Queues of one direction, by number: those that are not set up have none.
struct Queues<M> {
    memory: Rc<M>,
    list: Vec<Option<Queue>>,
    form: Form,
    /// Pairs set up since drivers were called last, as bits.
    begun: u32,
}

impl<M: GuestMemory> Queues<M> {
    fn get(&mut self, pair: usize) -> Option<&mut Queue> {
        self.list.get_mut(pair)?.as_mut()
    }

    fn put(&mut self, pair: usize, queue: Option<Queue>) {
        if pair >= self.list.len() && pair < MAX_PAIRS {
            self.list.resize_with(pair + 1, || None);
        }
        if let Some(place) = self.list.get_mut(pair) {
            // Whoever ran it before may have shown its driver something, and died before
            // he called: nobody can know, and nothing else need come for a long time.
            let begins = queue.is_some() && guard!("virtqueue-begun-call");
            self.begun = self.begun & !(1 << pair) | u32::from(begins) << pair;
            *place = queue;
        }
        // Those that the guest no longer uses are most often the last ones.
        while let Some(None) = self.list.last() {
            self.list.pop();
        }
    }

    /// The pair for a flow: one that is set up, and the same one as long as these are.
    #[inline(always)]
    fn of(&self, flow: impl FnOnce() -> u32) -> usize {
        let pairs = self.list.len();
        if pairs <= 1 {
            return 0;
        }
        let first = flow() as usize % pairs;
        let is_up = |pair: &usize| matches!(self.list.get(*pair), Some(Some(_)));
        if is_up(&first) || !guard!("virtqueue-pair-is-up") {
            return first;
        }
        // Bound: pairs. The last one is set up, so that there is one.
        (0..pairs).find(is_up).unwrap_or(first)
    }

    /// Shows guests what was given back; the pairs whose driver is to be called, as bits.
    fn publish(&mut self, note: &mut impl FnMut(usize, Stand, Stand)) -> u32 {
        let mut calls = core::mem::take(&mut self.begun);
        for (pair, queue) in self.list.iter_mut().enumerate() {
            let Some(queue) = queue.as_mut().filter(|q| !q.is_published()) else {
                continue;
            };
            let (before, after) = (queue.published(), queue.given());
            note(pair, before, after);
            if queue.publish(&*self.memory) {
                calls |= 1 << pair;
            }
            note(pair, after, after);
        }
        calls
    }
}

/// What a guest sends.
pub struct FromGuest<M> {
    queues: Queues<M>,
    chain: Box<Chain>,
    /// The pair whose turn it is, and whether its next chain is in `chain` already.
    turn: usize,
    taken: bool,
}

/// A frame that lies in guest memory, where its sender can still change it.
pub struct GuestFrame<'a, M> {
    memory: &'a M,
    chain: &'a Chain,
    header: usize,
    offload: RawOffload,
}

impl<M: GuestMemory> FromGuest<M> {
    /// Without queues.
    pub fn new(memory: Rc<M>, form: Form) -> FromGuest<M> {
        FromGuest {
            queues: Queues {
                memory,
                list: Vec::new(),
                form,
                begun: 0,
            },
            chain: Box::default(),
            turn: 0,
            taken: false,
        }
    }

    /// Sets a pair's queue up, whose driver is called at the next `publish`, or takes it away.
    pub fn put(&mut self, pair: usize, queue: Option<Queue>) {
        if pair == self.turn {
            self.taken = false;
        }
        self.queues.put(pair, queue);
    }

    /// How far a pair's queue has got: chains that are not given back count as not taken.
    pub fn stand(&mut self, pair: usize) -> Option<Stand> {
        if pair == self.turn && core::mem::take(&mut self.taken) {
            let token = self.chain.token();
            self.queues.get(pair)?.untake(token);
        }
        self.queues.get(pair).map(|queue| queue.stand())
    }

    /// The next frame, which stays the next until [`FromGuest::advance`]; `None`: no queue
    /// has one now.
    ///
    /// # Errors
    /// The driver's [`Breach`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<GuestFrame<'_, M>>, Breach> {
        if !self.taken
            && let Some(Some(queue)) = self.queues.list.get_mut(self.turn)
            && let Some(plain) = queue.next_plain(&*self.queues.memory, Direction::Read)
        {
            self.chain.set_one(&plain);
            self.taken = true;
        }
        // Bound: each pair once.
        for _ in 0..self.queues.list.len() {
            if self.taken {
                break;
            }
            let memory = &*self.queues.memory;
            if let Some(Some(queue)) = self.queues.list.get_mut(self.turn) {
                self.taken = queue.next(memory, Direction::Read, &mut self.chain)?;
            }
            if !self.taken {
                self.next_pair();
            }
        }
        if !self.taken {
            return Ok(None);
        }
        let memory = &*self.queues.memory;
        let header = self.queues.form.header();
        let mut bytes = [0; SHORT_HEADER];
        self.chain.read(memory, 0, &mut bytes);
        if self.chain.total() < header && guard!("virtqueue-short") {
            return Err(Breach::Short);
        }
        Ok(Some(GuestFrame {
            memory,
            chain: &self.chain,
            header,
            offload: offload(&bytes),
        }))
    }

    /// Is done with the frame that was peeked at.
    #[inline]
    pub fn advance(&mut self) {
        if core::mem::take(&mut self.taken) {
            let token = self.chain.token();
            if let Some(Some(queue)) = self.queues.list.get_mut(self.turn) {
                queue.give(&*self.queues.memory, token, 0);
            }
        }
    }

    /// Shows the guest what is done; the pairs whose driver is to be called, as bits. Once
    /// a batch: then it is the next pair's turn. `note` is told of each pair that is shown
    /// something, where it was and will be, and when that is done where it is: with both a
    /// successor can [`Queue::recover`].
    pub fn publish(&mut self, mut note: impl FnMut(usize, Stand, Stand)) -> u32 {
        if !self.taken {
            self.next_pair();
        }
        self.queues.publish(&mut note)
    }

    /// Asks every driver to kick at its next frame; whether there is none yet.
    ///
    /// # Errors
    /// As [`FromGuest::peek`].
    pub fn arm(&mut self) -> Result<bool, Breach> {
        let mut none = !self.taken;
        for queue in self.queues.list.iter_mut().flatten() {
            none &= queue.arm(&*self.queues.memory)?;
        }
        Ok(none)
    }

    /// Asks every driver not to kick.
    pub fn disarm(&mut self) {
        for queue in self.queues.list.iter_mut().flatten() {
            queue.disarm(&*self.queues.memory);
        }
    }

    fn next_pair(&mut self) {
        self.turn += 1;
        if self.turn >= self.queues.list.len() {
            self.turn = 0;
        }
    }
}

impl<'a, M: GuestMemory> GuestFrame<'a, M> {
    /// Bytes of the frame.
    #[inline]
    pub fn len(&self) -> usize {
        self.chain.total().saturating_sub(self.header)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is in more pieces than are looked at, or longer than any frame: it is to
    /// be dropped.
    pub fn is_over(&self) -> bool {
        self.chain.is_cut() || self.len() > MAX_FRAME
    }

    /// Pieces of the guest's memory that it lies in.
    #[inline]
    pub fn scattered(&self) -> usize {
        self.chain.pieces()
    }

    /// What the guest says is unfinished.
    #[inline]
    pub fn offload(&self) -> RawOffload {
        self.offload
    }

    /// Copies bytes out from `from` on; how many there were.
    #[inline]
    pub fn copy(&self, from: usize, out: &mut [u8]) -> usize {
        self.chain.read(self.memory, self.header + from, out)
    }

    /// The pieces that `len` bytes from `from` on lie in: (memory, where there, how far
    /// in, how many).
    #[inline]
    pub fn pieces(
        &self,
        from: usize,
        len: usize,
        mut piece: impl FnMut(&'a M, usize, usize, usize),
    ) {
        self.chain.walk(self.header + from, len, |at, done, n| {
            piece(self.memory, at, done, n);
        });
    }
}

/// Why a frame was not put into guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutError {
    /// The guest has not made enough buffers available, or is to be shown first what was
    /// put in.
    Full,
    /// No buffer of the guest's is long enough, or it takes too many of them.
    TooLong,
    /// No such queue is set up.
    NoQueue,
    /// The driver's misdeed.
    Breach(Breach),
}

/// What a guest receives.
pub struct ToGuest<M> {
    queues: Queues<M>,
    first: Box<Chain>,
    more: Box<Chain>,
    taken: [(Token, u32); MAX_MERGED],
    /// Pieces of its memory that the last frame was put in.
    scattered: usize,
}

impl<M: GuestMemory> ToGuest<M> {
    /// Without queues.
    pub fn new(memory: Rc<M>, form: Form) -> ToGuest<M> {
        ToGuest {
            queues: Queues {
                memory,
                list: Vec::new(),
                form,
                begun: 0,
            },
            first: Box::default(),
            more: Box::default(),
            taken: [(Token::default(), 0); MAX_MERGED],
            scattered: 0,
        }
    }

    /// Sets a pair's queue up, whose driver is called at the next `publish`, or takes it away.
    pub fn put(&mut self, pair: usize, mut queue: Option<Queue>) {
        // Buffers are looked for when there is a frame for them.
        if let Some(queue) = &mut queue {
            queue.disarm(&*self.queues.memory);
        }
        self.queues.put(pair, queue);
    }

    /// How far a pair's queue has got.
    pub fn stand(&mut self, pair: usize) -> Option<Stand> {
        self.queues.get(pair).map(|queue| queue.stand())
    }

    /// Puts a frame into the guest's buffers: `head`, then `rest` bytes that `fill` copies:
    /// (memory, where there, from which of them on, how many). Seen at the next
    /// [`ToGuest::publish`]. `flow` chooses the pair: the same one for all that is to stay
    /// in order.
    ///
    /// # Errors
    /// [`PutError`]; no buffer was used up then.
    pub fn send(
        &mut self,
        flow: impl FnOnce() -> u32,
        offload: &RawOffload,
        head: &[u8],
        rest: usize,
        mut fill: impl FnMut(&M, usize, usize, usize),
    ) -> Result<(), PutError> {
        self.scattered = 0;
        let pair = self.queues.of(flow);
        if self.put_plain(pair, offload, head, rest, &mut fill) {
            self.scattered = 1;
            return Ok(());
        }
        let form = self.queues.form;
        let memory = &*self.queues.memory;
        let Some(Some(queue)) = self.queues.list.get_mut(pair) else {
            return Err(PutError::NoQueue);
        };
        let header = form.header();
        if queue.room() < MAX_MERGED {
            return Err(PutError::Full);
        }
        let before = queue.stand();
        let total = header + head.len() + rest;
        let (mut done, mut count, mut named) = (0, 0, 0);
        while done < total {
            let chain = match count {
                0 => &mut self.first,
                _ => &mut self.more,
            };
            let next = queue.next(memory, Direction::Write, chain);
            named += if next == Ok(true) { chain.pieces() } else { 0 };
            let failed = match next {
                Ok(true) if named > MAX_SCATTERED && guard!("virtqueue-scattered") => {
                    Some(PutError::Breach(Breach::Scattered))
                }
                Ok(true) if count == 0 && chain.total() < header => {
                    Some(PutError::Breach(Breach::Short))
                }
                Ok(true) if !form.merged && chain.total() < total => Some(PutError::TooLong),
                Ok(true) if count == MAX_MERGED => Some(PutError::TooLong),
                Ok(true) => None,
                Ok(false) => Some(PutError::Full),
                Err(breach) => Some(PutError::Breach(breach)),
            };
            if let Some(failed) = failed {
                // Read in vain, and again with the next frame.
                self.scattered = named;
                queue.rewind(before);
                return Err(failed);
            }
            let n = chain.total().min(total - done);
            self.scattered += match chain.pieces() {
                few @ ..=FEW => few,
                _ => chain.pieces_of(n),
            };
            // The frame's part of it: the header comes when all buffers are there.
            let skip = header.saturating_sub(done);
            let begin = (done + skip) - header;
            let in_head = head.len().saturating_sub(begin).min(n - skip);
            if let Some(part) = head.get(begin..begin + in_head) {
                chain.write(memory, skip, part);
            }
            let rest_at = skip + in_head;
            if rest_at < n {
                let from = (begin + in_head) - head.len();
                chain.walk(rest_at, n - rest_at, |at, into, n| {
                    fill(memory, at, from + into, n);
                });
            }
            if let Some(place) = self.taken.get_mut(count) {
                *place = (chain.token(), n as u32);
            }
            (done, count) = (done + n, count + 1);
        }
        if named > NAMED && guard!("virtqueue-named") {
            self.scattered = self.scattered.max(named);
        }
        let bytes = written(offload, count as u16);
        // Each of a length that is known here.
        match bytes.first_chunk::<SHORT_HEADER>() {
            Some(short) if header == SHORT_HEADER => self.first.write(memory, 0, short),
            _ => self.first.write(memory, 0, &bytes),
        };
        for (token, n) in self.taken.get(..count).unwrap_or(&[]) {
            queue.give(memory, *token, *n);
        }
        Ok(())
    }

    /// As [`ToGuest::send`], where the next buffer is in one piece and long enough; `false`:
    /// nothing happened.
    #[inline(always)]
    pub fn send_plain(
        &mut self,
        flow: impl FnOnce() -> u32,
        offload: &RawOffload,
        head: &[u8],
        rest: usize,
        mut fill: impl FnMut(&M, usize, usize, usize),
    ) -> bool {
        let pair = self.queues.of(flow);
        self.put_plain(pair, offload, head, rest, &mut fill)
    }

    #[inline(always)]
    fn put_plain(
        &mut self,
        pair: usize,
        offload: &RawOffload,
        head: &[u8],
        rest: usize,
        fill: &mut impl FnMut(&M, usize, usize, usize),
    ) -> bool {
        let memory = &*self.queues.memory;
        let Some(Some(queue)) = self.queues.list.get_mut(pair) else {
            return false;
        };
        if queue.room() < MAX_MERGED && guard!("virtqueue-plain-room") {
            return false;
        }
        let Some(Plain { at, length, token }) = queue.next_plain(memory, Direction::Write) else {
            return false;
        };
        let header = self.queues.form.header();
        let total = header + head.len() + rest;
        if (length as usize) < total && guard!("virtqueue-plain-fits") {
            queue.untake(token);
            return false;
        }
        let bytes = written(offload, 1);
        // Each of a length that is known here.
        match bytes.first_chunk::<SHORT_HEADER>() {
            Some(short) if header == SHORT_HEADER => memory.write(at, short),
            _ => memory.write(at, &bytes),
        }
        memory.write(at + header, head);
        if rest > 0 {
            fill(memory, at + header + head.len(), 0, rest);
        }
        queue.give(memory, token, total as u32);
        true
    }

    /// Pieces of the guest's memory that the last frame was put in, or was tried to be.
    #[inline]
    pub fn scattered(&self) -> usize {
        self.scattered
    }

    /// Shows the guest what was put in; the pairs whose driver is to be called, as bits.
    /// `note` as in [`FromGuest::publish`].
    pub fn publish(&mut self, mut note: impl FnMut(usize, Stand, Stand)) -> u32 {
        self.queues.publish(&mut note)
    }
}

/// What a guest says before a frame. Of its hint of the headers' length nothing is taken.
fn offload(bytes: &[u8; SHORT_HEADER]) -> RawOffload {
    let [flags, gso_type, _, _, s0, s1, c0, c1, o0, o1] = *bytes;
    RawOffload {
        flags,
        gso_type,
        gso_size: u16::from_le_bytes([s0, s1]),
        csum_start: u16::from_le_bytes([c0, c1]),
        csum_offset: u16::from_le_bytes([o0, o1]),
    }
}

fn written(offload: &RawOffload, buffers: u16) -> [u8; HEADER] {
    let [s0, s1] = offload.gso_size.to_le_bytes();
    let [c0, c1] = offload.csum_start.to_le_bytes();
    let [o0, o1] = offload.csum_offset.to_le_bytes();
    let [b0, b1] = buffers.to_le_bytes();
    let (flags, gso_type) = (offload.flags, offload.gso_type);
    [flags, gso_type, 0, 0, s0, s1, c0, c1, o0, o1, b0, b1]
}
