//! Split rings (2.7): a table of descriptors, a ring of what the driver makes available,
//! a ring of what the device has used.

use crate::breach::Breach;
use crate::chain::{BUFFER_AHEAD, Chain, DESCRIPTOR_AHEAD, Direction, Plain, Token, ask, read};
use crate::memory::GuestMemory;
use crate::queue::{Features, Layout, Stand};
use guard::guard;

/// In the available ring's flags: the driver wants no calls.
const NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: the device wants no kicks.
const NO_NOTIFY: u16 = 1;

pub(crate) struct Split {
    size: u16,
    table: usize,
    available: usize,
    used: usize,
    features: Features,
    /// The next entry of the available ring to be taken.
    next: u16,
    /// How far the driver has said that it got.
    seen: u16,
    /// Entries given back, and how many of these the driver was told of.
    given: u16,
    published: u16,
}

/// What a ring says that its driver was shown.
pub(crate) fn shown<M: GuestMemory>(memory: &M, layout: &Layout) -> Result<u16, Breach> {
    let at = memory.whole(layout.device, 4).filter(|at| at % 2 == 0);
    Ok(memory.load16(at.ok_or(Breach::Ring)? + 2))
}

impl Split {
    pub fn new<M: GuestMemory>(
        memory: &M,
        layout: &Layout,
        features: Features,
        stand: Stand,
    ) -> Result<Split, Breach> {
        let size = layout.size;
        if !size.is_power_of_two() {
            return Err(Breach::Size);
        }
        let n = usize::from(size);
        let place = |address: u64, bytes: usize, align: u64| {
            let at = memory.whole(address, bytes);
            at.filter(|_| address.is_multiple_of(align))
                .ok_or(Breach::Ring)
        };
        let used = place(layout.device, 6 + 8 * n, 4)?;
        if stand.available.wrapping_sub(stand.used) > size {
            return Err(Breach::Available);
        }
        Ok(Split {
            size,
            table: place(layout.descriptors, 16 * n, 16)?,
            available: place(layout.driver, 6 + 2 * n, 2)?,
            used,
            features,
            next: stand.available,
            seen: stand.available,
            given: stand.used,
            published: stand.used,
        })
    }

    pub fn stand(&self) -> Stand {
        Stand {
            available: self.next,
            used: self.given,
        }
    }

    pub fn is_published(&self) -> bool {
        self.given == self.published
    }

    pub fn room(&self) -> usize {
        usize::MAX
    }

    pub fn published(&self) -> Stand {
        Stand {
            available: self.published,
            used: self.published,
        }
    }

    pub fn rewind(&mut self, stand: Stand) {
        self.next = stand.available;
    }

    pub fn untake(&mut self, token: Token) {
        self.next = self.next.wrapping_sub(token.entries);
    }

    #[inline(always)]
    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }

    /// Whether there is something to be taken, by a look at the ring where need be.
    #[inline]
    fn has_next<M: GuestMemory>(&mut self, memory: &M) -> Result<bool, Breach> {
        if self.next != self.seen {
            return Ok(true);
        }
        let seen = memory.load16(self.available + 2);
        let out = seen.wrapping_sub(self.given);
        let taken = self.next.wrapping_sub(self.given);
        if (out > self.size || out < taken) && guard!("virtqueue-available") {
            return Err(Breach::Available);
        }
        self.seen = seen;
        Ok(self.next != seen)
    }

    /// Asks for the memory of chains that are taken later.
    #[inline(always)]
    fn look_ahead<M: GuestMemory>(&self, memory: &M, want: Direction) {
        let left = self.seen.wrapping_sub(self.next);
        let descriptor = |ahead| {
            let position = self.next.wrapping_add(ahead);
            let head = memory.load16(self.available + 4 + 2 * self.slot(position));
            self.table + 16 * self.slot(head)
        };
        if left > DESCRIPTOR_AHEAD {
            memory.will_use(descriptor(DESCRIPTOR_AHEAD), false);
        }
        if left > BUFFER_AHEAD {
            ask(memory, memory.load64(descriptor(BUFFER_AHEAD)), want);
        }
    }

    /// The next chain, if it is known to be there and plain. `None`: nothing has changed, and
    /// [`Split::next`] says.
    #[inline(always)]
    pub fn next_plain<M: GuestMemory>(&mut self, memory: &M, want: Direction) -> Option<Plain> {
        if self.next == self.seen {
            return None;
        }
        let head = memory.load16(self.available + 4 + 2 * self.slot(self.next));
        if head >= self.size {
            return None;
        }
        let descriptor = read(memory, self.table + 16 * usize::from(head), true);
        let (at, length) = descriptor.plain(memory, want)?;
        self.look_ahead(memory, want);
        self.next = self.next.wrapping_add(1);
        let token = Token {
            id: head,
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
        if !self.has_next(memory)? {
            return Ok(false);
        }
        let head = memory.load16(self.available + 4 + 2 * self.slot(self.next));
        self.look_ahead(memory, want);
        chain.clear();
        chain.token = Token {
            id: head,
            entries: 1,
        };
        let mut at = head;
        // Bound: the ring's size, and what is kept; a chain that is longer comes back to itself.
        for _ in 0..self.size {
            if at >= self.size && guard!("virtqueue-descriptor") {
                return Err(Breach::Descriptor);
            }
            let descriptor = read(memory, self.table + 16 * usize::from(at), true);
            if descriptor.is_indirect() {
                let is_allowed = self.features.indirect && !descriptor.has_next();
                if !is_allowed && guard!("virtqueue-indirect") {
                    return Err(Breach::Indirect);
                }
                chain.add_table(memory, descriptor, true, want)?;
            } else {
                chain.add(memory, descriptor, want)?;
            }
            if descriptor.is_indirect() || !descriptor.has_next() || chain.is_cut() {
                self.next = self.next.wrapping_add(1);
                return Ok(true);
            }
            at = descriptor.word;
        }
        Err(Breach::Loop)
    }

    #[inline(always)]
    pub fn give<M: GuestMemory>(&mut self, memory: &M, token: Token, written: u32) {
        let element = u64::from(written) << 32 | u64::from(token.id);
        let at = self.used + 4 + 8 * self.slot(self.given);
        // The ring is aligned to 4 only: two halves of one write.
        memory.write(at, &element.to_le_bytes());
        self.given = self.given.wrapping_add(1);
    }

    pub fn publish<M: GuestMemory>(&mut self, memory: &M) -> bool {
        if self.given == self.published {
            return false;
        }
        memory.store16(self.used + 2, self.given);
        if guard!("virtqueue-call-fence") {
            memory.fence();
        }
        let before = core::mem::replace(&mut self.published, self.given);
        if self.features.event_index {
            let event = memory.load16(self.available + 4 + 2 * usize::from(self.size));
            return self.given.wrapping_sub(event).wrapping_sub(1)
                < self.given.wrapping_sub(before);
        }
        memory.load16(self.available) & NO_INTERRUPT == 0
    }

    pub fn arm<M: GuestMemory>(&mut self, memory: &M) -> Result<bool, Breach> {
        if self.features.event_index {
            memory.store16(self.used + 4 + 8 * usize::from(self.size), self.next);
        } else {
            memory.store16(self.used, 0);
        }
        if guard!("virtqueue-kick-fence") {
            memory.fence();
        }
        Ok(!self.has_next(memory)?)
    }

    pub fn disarm<M: GuestMemory>(&mut self, memory: &M) {
        // With event indices the one that was asked for lies behind.
        if !self.features.event_index {
            memory.store16(self.used, NO_NOTIFY);
        }
    }
}
