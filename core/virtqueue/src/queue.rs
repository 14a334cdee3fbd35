//! A queue of either kind.

use crate::breach::Breach;
use crate::chain::{Chain, Direction, Plain, Token};
use crate::memory::GuestMemory;
use crate::packed::Packed;
use crate::split::Split;

/// Entries of a ring at most (2.6).
pub const MAX_SIZE: u16 = 32768;
/// Chains given back between two looks of the driver that a packed ring keeps for it.
pub const MAX_BATCH: usize = 128;

/// Where the three parts of a ring lie: guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries.
    pub size: u16,
    /// The table of descriptors, or the packed ring.
    pub descriptors: u64,
    /// What the driver writes: the available ring, or its wish to be called.
    pub driver: u64,
    /// What the device writes: the used ring, or its wish to be kicked.
    pub device: u64,
}

/// What both sides agreed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// `VIRTIO_F_RING_PACKED`.
    pub packed: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_index: bool,
}

/// How far a queue has got: with it another device side goes on. Of a packed ring the
/// top bit is the counter of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The next to be taken.
    pub available: u16,
    /// The next to be given back.
    pub used: u16,
}

/// One virtqueue.
pub struct Queue(Kind);

#[expect(
    clippy::large_enum_variant,
    reason = "a queue is boxed with its port, and looked into for every frame"
)]
enum Kind {
    Split(Split),
    Packed(Packed),
}

macro_rules! either {
    ($queue:expr, $inner:ident => $call:expr) => {
        match $queue {
            Kind::Split($inner) => $call,
            Kind::Packed($inner) => $call,
        }
    };
}

impl Queue {
    /// A queue whose rings lie so, from a stand on.
    ///
    /// # Errors
    /// [`Breach::Size`], [`Breach::Ring`], [`Breach::Available`]: what the driver set up
    /// cannot be used.
    pub fn new<M: GuestMemory>(
        memory: &M,
        layout: &Layout,
        features: Features,
        stand: Stand,
    ) -> Result<Queue, Breach> {
        if layout.size == 0 || layout.size > MAX_SIZE {
            return Err(Breach::Size);
        }
        Ok(Queue(match features.packed {
            true => Kind::Packed(Packed::new(memory, layout, features, stand)?),
            false => Kind::Split(Split::new(memory, layout, features, stand)?),
        }))
    }

    /// A queue of somebody who died: it had said that it was about to show its driver what
    /// lies between `before` and `after`, and perhaps did. All of it goes back, what was not
    /// shown as unused. Whether the driver was called for what was shown nobody knows: who goes
    /// on with the queue calls it, as [`net`](crate::net) does for all that begin.
    ///
    /// # Errors
    /// As [`Queue::new`]; a [`Breach`] of a driver that changed what was on its way.
    pub fn recover<M: GuestMemory>(
        memory: &M,
        layout: &Layout,
        features: Features,
        before: Stand,
        after: Stand,
    ) -> Result<Queue, Breach> {
        if !features.packed {
            // The ring itself says what was shown.
            let used = crate::split::shown(memory, layout)?;
            let stand = Stand {
                available: used,
                used,
            };
            return Queue::new(memory, layout, features, stand);
        }
        let at_rest = |stand: Stand| Stand {
            available: stand.used,
            used: stand.used,
        };
        let (before, after) = (at_rest(before), at_rest(after));
        let mut queue = Packed::new(memory, layout, features, before)?;
        let mut chain = Chain::new();
        // They were marked as used from the last to the first, at which the driver looks:
        // what is left of that is done.
        // Bound: what is given back between two looks.
        for _ in 0..MAX_BATCH {
            let is_over = queue.stand().available == after.available || queue.is_marked(memory);
            if is_over || !queue.next(memory, Direction::Both, &mut chain)? {
                break;
            }
            queue.give(memory, chain.token(), 0);
        }
        queue.publish(memory);
        Queue::new(memory, layout, features, after)
    }

    /// How far it has got.
    pub fn stand(&self) -> Stand {
        either!(&self.0, queue => queue.stand())
    }

    /// Goes back to where it stood before chains were taken that were not given back.
    pub fn rewind(&mut self, stand: Stand) {
        either!(&mut self.0, queue => queue.rewind(stand));
    }

    /// Has not taken the chain that was taken last, and not given back, after all.
    pub fn untake(&mut self, token: Token) {
        either!(&mut self.0, queue => queue.untake(token));
    }

    /// Takes the next chain; `false`: there is none now.
    ///
    /// # Errors
    /// The [`Breach`], after which the queue is over.
    #[inline]
    pub fn next<M: GuestMemory>(
        &mut self,
        memory: &M,
        want: Direction,
        chain: &mut Chain,
    ) -> Result<bool, Breach> {
        either!(&mut self.0, queue => queue.next(memory, want, chain))
    }

    /// Takes the next chain if it is one buffer in one piece, as most are. `None`: nothing was
    /// taken, and [`Queue::next`] says.
    #[inline(always)]
    pub(crate) fn next_plain<M: GuestMemory>(
        &mut self,
        memory: &M,
        want: Direction,
    ) -> Option<Plain> {
        either!(&mut self.0, queue => queue.next_plain(memory, want))
    }

    /// Gives back a chain that was taken, in the order in which they were, with so many
    /// bytes written into it. The driver sees it at the next [`Queue::publish`].
    #[inline(always)]
    pub fn give<M: GuestMemory>(&mut self, memory: &M, token: Token, written: u32) {
        either!(&mut self.0, queue => queue.give(memory, token, written));
    }

    /// Whether the driver has been shown all that was given back.
    #[inline]
    pub fn is_published(&self) -> bool {
        either!(&self.0, queue => queue.is_published())
    }

    /// Where it is when all that was given back is shown.
    pub fn given(&self) -> Stand {
        let used = self.stand().used;
        Stand {
            available: used,
            used,
        }
    }

    /// Chains that can be given back before the next [`Queue::publish`].
    #[inline(always)]
    pub fn room(&self) -> usize {
        either!(&self.0, queue => queue.room())
    }

    /// Where it was when the driver was shown something last.
    pub fn published(&self) -> Stand {
        either!(&self.0, queue => queue.published())
    }

    /// Shows the driver what was given back; whether it wants to be called for that.
    pub fn publish<M: GuestMemory>(&mut self, memory: &M) -> bool {
        either!(&mut self.0, queue => queue.publish(memory))
    }

    /// Asks to be kicked at the next chain; whether there is none yet, so that one may
    /// sleep.
    ///
    /// # Errors
    /// As [`Queue::next`].
    pub fn arm<M: GuestMemory>(&mut self, memory: &M) -> Result<bool, Breach> {
        either!(&mut self.0, queue => queue.arm(memory))
    }

    /// Asks not to be kicked.
    pub fn disarm<M: GuestMemory>(&mut self, memory: &M) {
        either!(&mut self.0, queue => queue.disarm(memory));
    }
}
