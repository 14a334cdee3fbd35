//! How many half-open connections each zone has with an owner, so that the users of one
//! service cannot take each other's share of its room.
//!
//! A count for each owner and zone that has any: no more than there may be half-open
//! connections. They are found by a table of chains whose hash is keyed (multiply and shift;
//! Dietzfelbinger et al., 1997); nothing here grows with zones that no packet comes from.

use zerocopy::{FromBytes, FromZeros, Immutable, KnownLayout};

use crate::connections::CHAIN;
use crate::index::reduce;

/// Half-open connections of a zone with an owner. All zero: a place that was never used.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Share {
    owner: u16,
    zone: u16,
    count: u32,
    /// The next one under the same head, or free one; its number and 1.
    next: u32,
}

/// Bytes for each half-open connection that there may be.
pub(crate) const BYTES: usize = size_of::<Share>() + size_of::<u32>();

/// All counts of a compartment that are not 0.
pub(crate) struct Shares {
    seed: u64,
    heads: Vec<u32>,
    all: Vec<Share>,
    /// Places ever used.
    used: u32,
    /// The first free one below that, and 1.
    free: u32,
}

impl Shares {
    /// Of nobody.
    pub(crate) const NONE: Shares = Shares {
        seed: 0,
        heads: Vec::new(),
        all: Vec::new(),
        used: 0,
        free: 0,
    };

    /// Of so many half-open connections. `None`: the memory is not to be had.
    pub(crate) fn new(seed: u64, half_open: usize) -> Option<Shares> {
        Some(Shares {
            seed,
            heads: u32::new_vec_zeroed(half_open).ok()?,
            all: Share::new_vec_zeroed(half_open).ok()?,
            ..Shares::NONE
        })
    }

    fn head(&self, owner: u32, zone: u16) -> usize {
        let key = u64::from(owner) << 16 | u64::from(zone);
        let hash = (key + 1).wrapping_mul(self.seed | 1) >> 32;
        reduce(hash as u32, self.heads.len() as u32)
    }

    /// Where a count is. Bound: [`CHAIN`].
    fn find(&self, owner: u32, zone: u16) -> Option<usize> {
        let mut next = *self.heads.get(self.head(owner, zone))?;
        for _ in 0..CHAIN {
            let at = next.checked_sub(1)? as usize;
            let share = self.all.get(at)?;
            if (u32::from(share.owner), share.zone) == (owner, zone) {
                return Some(at);
            }
            next = share.next;
        }
        None
    }

    /// Half-open connections of a zone with an owner.
    pub(crate) fn count(&self, owner: u32, zone: u16) -> u32 {
        let share = self.find(owner, zone).and_then(|at| self.all.get(at));
        share.map_or(0, |share| share.count)
    }

    /// One more. What it was; `None`: there is no place for it.
    pub(crate) fn add(&mut self, owner: u32, zone: u16) -> Option<u32> {
        if let Some(share) = self.find(owner, zone).and_then(|at| self.all.get_mut(at)) {
            share.count += 1;
            return Some(share.count - 1);
        }
        let head = self.head(owner, zone);
        if self.length(head) >= CHAIN {
            return None;
        }
        let at = match self.free.checked_sub(1) {
            Some(at) => at,
            None => self.used,
        };
        let (share, head) = (self.all.get_mut(at as usize)?, self.heads.get_mut(head)?);
        if self.free == 0 {
            self.used += 1;
        } else {
            self.free = share.next;
        }
        *share = Share {
            owner: owner as u16,
            zone,
            count: 1,
            next: core::mem::replace(head, at + 1),
        };
        Some(0)
    }

    /// One less. What is left.
    pub(crate) fn take(&mut self, owner: u32, zone: u16) -> u32 {
        let Some(at) = self.find(owner, zone) else {
            return 0;
        };
        let Some(share) = self.all.get_mut(at) else {
            return 0;
        };
        share.count = share.count.saturating_sub(1);
        let (left, after) = (share.count, share.next);
        if left == 0 {
            self.unchain(self.head(owner, zone), at as u32 + 1, after);
            if let Some(share) = self.all.get_mut(at) {
                share.next = core::mem::replace(&mut self.free, at as u32 + 1);
            }
        }
        left
    }

    fn length(&self, head: usize) -> usize {
        let mut next = self.heads.get(head).copied().unwrap_or_default();
        let mut length = 0;
        while length < CHAIN
            && let Some(share) = next.checked_sub(1).and_then(|at| self.all.get(at as usize))
        {
            (length, next) = (length + 1, share.next);
        }
        length
    }

    fn unchain(&mut self, head: usize, link: u32, after: u32) {
        let Some(first) = self.heads.get_mut(head) else {
            return;
        };
        if *first == link {
            *first = after;
            return;
        }
        let mut next = *first;
        for _ in 0..CHAIN {
            let share = next.checked_sub(1);
            let Some(share) = share.and_then(|at| self.all.get_mut(at as usize)) else {
                return;
            };
            if share.next == link {
                share.next = after;
                return;
            }
            next = share.next;
        }
    }
}

#[cfg(test)]
mod tests;
