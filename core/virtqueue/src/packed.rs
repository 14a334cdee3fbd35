//! Packed rings (2.8): one ring of descriptors, which say by two bits and a counter of
//! the ring's turns whose they are.

use crate::breach::Breach;
use crate::chain::{Chain, Descriptor, Direction, Plain, Token, descriptor};
use crate::memory::GuestMemory;
use crate::queue::{Features, Layout, MAX_BATCH, Stand};
use guard::guard;

/// Descriptors of one chain: where it ends is to be found, also behind what is kept of it.
const MOST_LINKED: u16 = 4 * crate::MAX_PIECES as u16;
const WRITE: u64 = 2 << 48;
const AVAILABLE: u64 = 1 << 55;
const USED: u64 = 1 << 63;

/// What a side wants to be told of: all, nothing, or one descriptor.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESCRIPTOR: u16 = 2;

/// A place in the ring, and whether the turn is an odd one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    index: u16,
    wrap: bool,
}

impl At {
    fn from_bits(bits: u16) -> At {
        At {
            index: bits & 0x7fff,
            wrap: bits >> 15 == 1,
        }
    }

    fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    fn plus(self, entries: u16, size: u16) -> At {
        match self.index + entries {
            index if index >= size => At {
                index: index - size,
                wrap: !self.wrap,
            },
            index => At { index, ..self },
        }
    }
}

pub(crate) struct Packed {
    size: u16,
    ring: usize,
    driver: usize,
    device: usize,
    features: Features,
    /// The next descriptor to be taken.
    next: At,
    /// Where the next used one is written.
    given: At,
    /// Where it was when the driver was told last.
    published: At,
    /// Entries taken and not given back.
    out: u16,
    /// Used descriptors that the driver has not been shown: (where, second word).
    shadow: [(u16, u64); MAX_BATCH],
    count: usize,
    /// Entries given back since it was told; a whole turn is as good as many.
    since: u16,
}

impl Packed {
    pub fn new<M: GuestMemory>(
        memory: &M,
        layout: &Layout,
        features: Features,
        stand: Stand,
    ) -> Result<Packed, Breach> {
        let size = layout.size;
        let place = |address: u64, bytes: usize, align: u64| {
            let at = memory.whole(address, bytes);
            at.filter(|_| address.is_multiple_of(align))
                .ok_or(Breach::Ring)
        };
        let (next, given) = (At::from_bits(stand.available), At::from_bits(stand.used));
        let out = match next.wrap == given.wrap {
            true => next.index.checked_sub(given.index),
            false => (next.index + size).checked_sub(given.index),
        };
        let is_inside = next.index < size && given.index < size;
        Ok(Packed {
            size,
            ring: place(layout.descriptors, 16 * usize::from(size), 16)?,
            driver: place(layout.driver, 4, 4)?,
            device: place(layout.device, 4, 4)?,
            features,
            next,
            given,
            published: given,
            out: out
                .filter(|out| is_inside && *out <= size)
                .ok_or(Breach::Available)?,
            shadow: [(0, 0); MAX_BATCH],
            count: 0,
            since: 0,
        })
    }

    pub fn stand(&self) -> Stand {
        Stand {
            available: self.next.bits(),
            used: self.given.bits(),
        }
    }

    pub fn is_published(&self) -> bool {
        self.since == 0
    }

    pub fn room(&self) -> usize {
        MAX_BATCH - self.count
    }

    pub fn published(&self) -> Stand {
        Stand {
            available: self.published.bits(),
            used: self.published.bits(),
        }
    }

    /// Whether the descriptor that is taken next is marked as used already.
    pub fn is_marked<M: GuestMemory>(&self, memory: &M) -> bool {
        let (high, _) = self.at(memory, self.next);
        (high & AVAILABLE != 0) == self.next.wrap && (high & USED != 0) == self.next.wrap
    }

    pub fn rewind(&mut self, stand: Stand) {
        let before = At::from_bits(stand.available);
        let back = match before.wrap == self.next.wrap {
            true => self.next.index.saturating_sub(before.index),
            false => (self.next.index + self.size).saturating_sub(before.index),
        };
        self.out = self.out.saturating_sub(back);
        self.next = before;
    }

    pub fn untake(&mut self, token: Token) {
        self.out = self.out.saturating_sub(token.entries);
        self.next = match self.next.index.checked_sub(token.entries) {
            Some(index) => At { index, ..self.next },
            None => At {
                index: self.next.index + self.size - token.entries,
                wrap: !self.next.wrap,
            },
        };
    }

    /// The descriptor at a place, and whether it is the driver's to give.
    #[inline(always)]
    fn at<M: GuestMemory>(&self, memory: &M, at: At) -> (u64, bool) {
        let high = memory.load64(self.ring + 16 * usize::from(at.index) + 8);
        let given = (high & AVAILABLE != 0) == at.wrap && (high & USED != 0) != at.wrap;
        (high, given)
    }

    #[inline(always)]
    fn read<M: GuestMemory>(&self, memory: &M, at: At, high: u64) -> Descriptor {
        let address = memory.load64(self.ring + 16 * usize::from(at.index));
        descriptor(address, high, false)
    }

    /// The next chain, if it is there and plain. `None`: nothing has changed, and
    /// [`Packed::next`] says.
    #[inline(always)]
    pub fn next_plain<M: GuestMemory>(&mut self, memory: &M, want: Direction) -> Option<Plain> {
        let (high, is_given) = self.at(memory, self.next);
        if !is_given || self.out >= self.size {
            return None;
        }
        let descriptor = self.read(memory, self.next, high);
        let (at, length) = descriptor.plain(memory, want)?;
        self.out += 1;
        self.next = self.next.plus(1, self.size);
        let token = Token {
            id: descriptor.word,
            entries: 1,
        };
        Some(Plain { at, length, token })
    }

    #[inline]
    pub fn next<M: GuestMemory>(
        &mut self,
        memory: &M,
        want: Direction,
        chain: &mut Chain,
    ) -> Result<bool, Breach> {
        let (mut high, is_given) = self.at(memory, self.next);
        if !is_given {
            return Ok(false);
        }
        let mut at = self.next;
        chain.clear();
        // Bound: entries that are not ours already, and such as any driver links.
        for n in 1..=self.size.saturating_sub(self.out) {
            if n > MOST_LINKED && guard!("virtqueue-long-chain") {
                return Err(Breach::Scattered);
            }
            let descriptor = self.read(memory, at, high);
            at = at.plus(1, self.size);
            if descriptor.is_indirect() {
                let is_allowed = self.features.indirect && !descriptor.has_next() && n == 1;
                if !is_allowed && guard!("virtqueue-indirect-packed") {
                    return Err(Breach::Indirect);
                }
                chain.add_table(memory, descriptor, false, want)?;
            } else if !chain.is_cut() {
                chain.add(memory, descriptor, want)?;
            }
            if descriptor.is_indirect() || !descriptor.has_next() {
                chain.token = Token {
                    id: descriptor.word,
                    entries: n,
                };
                self.out += n;
                self.next = at;
                return Ok(true);
            }
            high = memory.load64(self.ring + 16 * usize::from(at.index) + 8);
        }
        match self.out {
            0 => Err(Breach::Loop),
            _ => Err(Breach::Available),
        }
    }

    #[inline(always)]
    pub fn give<M: GuestMemory>(&mut self, memory: &M, token: Token, written: u32) {
        if self.count == MAX_BATCH {
            self.show(memory);
        }
        let turn = match self.given.wrap {
            true => AVAILABLE | USED,
            false => 0,
        };
        let write = if written > 0 { WRITE } else { 0 };
        let high = u64::from(written) | u64::from(token.id) << 32 | turn | write;
        if let Some(place) = self.shadow.get_mut(self.count) {
            *place = (self.given.index, high);
            self.count += 1;
        }
        self.given = self.given.plus(token.entries, self.size);
        self.since = self.since.saturating_add(token.entries);
        self.out = self.out.saturating_sub(token.entries);
    }

    /// Shows the driver what was given back: the first last, at which it looks.
    fn show<M: GuestMemory>(&mut self, memory: &M) {
        let shadow = self.shadow.get(..self.count).unwrap_or(&[]);
        for (at, high) in shadow.iter().rev() {
            memory.store64(self.ring + 16 * usize::from(*at) + 8, *high);
        }
        self.count = 0;
    }

    pub fn publish<M: GuestMemory>(&mut self, memory: &M) -> bool {
        self.show(memory);
        let since = core::mem::take(&mut self.since);
        if since == 0 {
            return false;
        }
        if guard!("virtqueue-call-packed-fence") {
            memory.fence();
        }
        let before = core::mem::replace(&mut self.published, self.given);
        match memory.load16(self.driver + 2) & 3 {
            ENABLE => true,
            DESCRIPTOR if self.features.event_index => {
                // Within a turn the counter of turns tells one place from another.
                since >= self.size || self.passes(before, At::from_bits(memory.load16(self.driver)))
            }
            _ => false,
        }
    }

    /// Whether what was given since `before` goes past the event that the driver waits for.
    fn passes(&self, before: At, event: At) -> bool {
        let size = i32::from(self.size);
        let new = i32::from(self.given.index);
        let old = match self.given.wrap == before.wrap {
            true => i32::from(before.index),
            false => i32::from(before.index) - size,
        };
        let event = match self.given.wrap == event.wrap {
            true => i32::from(event.index),
            false => i32::from(event.index) - size,
        };
        old <= event && event < new
    }

    pub fn arm<M: GuestMemory>(&mut self, memory: &M) -> Result<bool, Breach> {
        if self.features.event_index {
            memory.store16(self.device, self.next.bits());
            memory.store16(self.device + 2, DESCRIPTOR);
        } else {
            memory.store16(self.device + 2, ENABLE);
        }
        if guard!("virtqueue-kick-packed-fence") {
            memory.fence();
        }
        Ok(!self.at(memory, self.next).1)
    }

    pub fn disarm<M: GuestMemory>(&mut self, memory: &M) {
        memory.store16(self.device + 2, DISABLE);
    }
}
