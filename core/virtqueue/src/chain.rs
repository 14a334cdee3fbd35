//! A chain of descriptors, as it was read once: the pieces of guest memory that it names.

use crate::breach::Breach;
use crate::memory::GuestMemory;
use guard::guard;

/// Pieces of a chain that are kept. What lies behind them is not looked at, so that a chain
/// costs no more than that: a frame of 64 KiB in pages of 4 KiB has 18.
pub const MAX_PIECES: usize = 64;

/// There is another descriptor behind this one.
const NEXT: u16 = 1;
/// The device writes this buffer.
const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
const INDIRECT: u16 = 4;

/// What a queue's buffers are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads all of them: frames that the guest sends.
    Read,
    /// The device writes all of them: frames that the guest receives.
    Write,
    /// It reads those in front and writes those behind: the control queue.
    Both,
}

/// Chains ahead of the one that is taken whose descriptors, and whose buffers, are asked for:
/// who wrote them has them in his cache still.
pub(crate) const DESCRIPTOR_AHEAD: u16 = 16;
pub(crate) const BUFFER_AHEAD: u16 = 8;
/// Bytes of a buffer that are asked for: a header and a small frame.
const ASKED: [usize; 2] = [0, 64];

/// Asks for what the buffer at a guest's address begins with, which is an allegation like any
/// other: where it lies nowhere, nothing is.
#[inline(always)]
pub(crate) fn ask<M: GuestMemory>(memory: &M, address: u64, want: Direction) {
    if let Some((at, _)) = memory.locate(address, 1) {
        for offset in ASKED {
            memory.will_use(at + offset, want == Direction::Write);
        }
    }
}

/// One chain. Made once and used again for each.
pub struct Chain {
    pieces: [(usize, u32); MAX_PIECES],
    count: usize,
    /// Of `pieces`, those in front that are to be read.
    readable: usize,
    /// What the driver calls it, and the entries of the ring that it takes.
    pub(crate) token: Token,
    total: usize,
    cut: bool,
}

/// By what a chain is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    pub(crate) id: u16,
    pub(crate) entries: u16,
}

/// A chain of one buffer in one piece.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub at: usize,
    pub length: u32,
    pub token: Token,
}

/// A descriptor, copied.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    /// The next one's number (split), or the chain's name (packed).
    pub word: u16,
}

impl Descriptor {
    /// Where the buffer lies, and how long it is, if it is all of its chain, of the direction
    /// and in one piece.
    #[inline(always)]
    pub fn plain<M: GuestMemory>(self, memory: &M, want: Direction) -> Option<(usize, u32)> {
        let flags = match want {
            Direction::Write => WRITE,
            _ => 0,
        };
        let is_plain = self.flags & (NEXT | WRITE | INDIRECT) == flags && self.length != 0;
        if !is_plain && guard!("virtqueue-plain") {
            return None;
        }
        let at = memory.whole(self.address, self.length as usize)?;
        Some((at, self.length))
    }

    pub fn has_next(self) -> bool {
        self.flags & NEXT != 0
    }

    pub fn is_indirect(self) -> bool {
        self.flags & INDIRECT != 0
    }
}

impl Default for Chain {
    fn default() -> Chain {
        Chain::new()
    }
}

impl Chain {
    /// An empty one.
    pub const fn new() -> Chain {
        Chain {
            pieces: [(0, 0); MAX_PIECES],
            count: 0,
            readable: 0,
            token: Token { id: 0, entries: 0 },
            total: 0,
            cut: false,
        }
    }

    /// By what it is given back.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Bytes of the pieces that are kept.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Pieces that are kept.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.count
    }

    /// Pieces that the first `length` bytes lie in.
    pub(crate) fn pieces_of(&self, length: usize) -> usize {
        let mut pieces = 0;
        self.walk(0, length, |_, _, _| pieces += 1);
        pieces
    }

    /// Whether it named more pieces than are kept.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Has one piece from now on, which is read, and no more.
    #[inline(always)]
    pub(crate) fn set_one(&mut self, plain: &Plain) {
        self.clear();
        self.pieces[0] = (plain.at, plain.length);
        (self.count, self.readable) = (1, 1);
        (self.total, self.token) = (plain.length as usize, plain.token);
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.count, self.readable, self.total) = (0, 0, 0);
        (self.token, self.cut) = (Token::default(), false);
    }

    /// Adds a buffer, in as many pieces as it lies in.
    #[inline]
    pub(crate) fn add<M: GuestMemory>(
        &mut self,
        memory: &M,
        descriptor: Descriptor,
        want: Direction,
    ) -> Result<(), Breach> {
        let is_written = descriptor.flags & WRITE != 0;
        let fits = match want {
            Direction::Read => !is_written,
            Direction::Write => is_written,
            Direction::Both => is_written || self.readable == self.count,
        };
        if !fits && guard!("virtqueue-direction") {
            return Err(Breach::Direction);
        }
        let (mut address, mut rest) = (descriptor.address, descriptor.length as usize);
        if rest == 0 && guard!("virtqueue-empty") {
            return Err(Breach::Buffer);
        }
        // Bound: regions of guest memory, each of which ends a piece.
        while rest > 0 {
            let (at, there) = memory.locate(address, rest).ok_or(Breach::Buffer)?;
            let Some(place) = self.pieces.get_mut(self.count) else {
                self.cut = true;
                return Ok(());
            };
            *place = (at, there as u32);
            self.count += 1;
            self.readable += usize::from(!is_written);
            self.total += there;
            rest -= there;
            address = address.checked_add(there as u64).ok_or(Breach::Buffer)?;
        }
        Ok(())
    }

    /// Adds what a table of descriptors names. `linked`: each says which is next, as in
    /// split rings; else they stand in a row.
    pub(crate) fn add_table<M: GuestMemory>(
        &mut self,
        memory: &M,
        table: Descriptor,
        linked: bool,
        want: Direction,
    ) -> Result<(), Breach> {
        let bytes = table.length as usize;
        let count = bytes / 16;
        let is_table = bytes > 0 && bytes.is_multiple_of(16) && count <= crate::MAX_SIZE as usize;
        if !is_table || !table.address.is_multiple_of(16) {
            return Err(Breach::Indirect);
        }
        let begin = memory.whole(table.address, bytes).ok_or(Breach::Indirect)?;
        let mut at = 0;
        for _ in 0..count {
            let descriptor = read(memory, begin + 16 * at, linked);
            if descriptor.is_indirect() && guard!("virtqueue-nested") {
                return Err(Breach::Indirect);
            }
            self.add(memory, descriptor, want)?;
            at = match linked {
                _ if self.cut => return Ok(()),
                true if !descriptor.has_next() => return Ok(()),
                true => usize::from(descriptor.word),
                false => at + 1,
            };
            if at >= count {
                return match linked && guard!("virtqueue-table") {
                    true => Err(Breach::Descriptor),
                    false => Ok(()),
                };
            }
        }
        Err(Breach::Loop)
    }

    /// Where so many bytes from `offset` on lie, if all do in the first piece.
    #[inline(always)]
    fn in_first(&self, offset: usize, length: usize) -> Option<usize> {
        let (at, there) = self.pieces[0];
        let there = there as usize;
        let all = self.count != 0 && offset < there && length <= there - offset;
        (all && length != 0).then(|| at + offset)
    }

    /// Copies bytes out from `offset` of what the chain names on; how many there were.
    #[inline(always)]
    pub fn read<M: GuestMemory>(&self, memory: &M, offset: usize, out: &mut [u8]) -> usize {
        self.walk(offset, out.len(), |at, done, length| {
            if let Some(part) = out.get_mut(done..done + length) {
                memory.read(at, part);
            }
        })
    }

    /// Copies bytes in at `offset` of what the chain names; how many there was room for.
    #[inline]
    pub fn write<M: GuestMemory>(&self, memory: &M, offset: usize, bytes: &[u8]) -> usize {
        self.walk(offset, bytes.len(), |at, done, length| {
            if let Some(part) = bytes.get(done..done + length) {
                memory.write(at, part);
            }
        })
    }

    /// The pieces of so many bytes from `offset` on: (where, how far in, how long).
    #[inline(always)]
    pub fn walk(
        &self,
        mut offset: usize,
        length: usize,
        mut piece: impl FnMut(usize, usize, usize),
    ) -> usize {
        // All of it in the first one, mostly.
        if let Some(at) = self.in_first(offset, length) {
            piece(at, 0, length);
            return length;
        }
        let mut done = 0;
        for (at, there) in self.pieces.get(..self.count).unwrap_or(&[]) {
            let there = *there as usize;
            if offset >= there {
                offset -= there;
                continue;
            }
            let n = (there - offset).min(length - done);
            piece(at + offset, done, n);
            done += n;
            offset = 0;
            if done == length {
                break;
            }
        }
        done
    }
}

/// Reads a descriptor, each word once. `linked`: as split rings have them.
#[inline(always)]
pub(crate) fn read<M: GuestMemory>(memory: &M, at: usize, linked: bool) -> Descriptor {
    // A packed ring's flags say whether the rest is there: they come first.
    let high = memory.load64(at + 8);
    let address = memory.load64(at);
    descriptor(address, high, linked)
}

#[inline(always)]
pub(crate) fn descriptor(address: u64, high: u64, linked: bool) -> Descriptor {
    let (third, fourth) = ((high >> 32) as u16, (high >> 48) as u16);
    let (flags, word) = match linked {
        true => (third, fourth),
        false => (fourth, third),
    };
    Descriptor {
        address,
        length: high as u32,
        flags,
        word,
    }
}
