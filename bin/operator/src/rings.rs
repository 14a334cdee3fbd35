//! Memory of circuits whose programs ask for it: made at the first ask, kept until the other
//! side has it too. Who asks has the circuit's socket; nothing else gives it away.
//!
//! What is kept dies with this process: who asks its successor gets memory of its own, which
//! the other never joins, and both go on by the socket.

use guard::guard;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use stream::{CAPACITY, Side};

/// Rings of an endpoint at most, and with that bytes: 2 MiB each and four pages, a gigabyte
/// together, of which no page is taken before a program touches it.
const MOST: u32 = 512;
/// So many at most, whosever they are, when one is kept that another tenant's program may have.
const MOST_ACROSS: u32 = 128;
/// Descriptors that are kept for who has not asked, of all endpoints.
const KEPT: usize = 1024;

#[derive(Default)]
struct Ring {
    memory: Option<OwnedFd>,
    given: [bool; 2],
    /// The slots of both ends.
    slots: [u32; 2],
}

/// All of a compartment.
#[derive(Default)]
pub struct Rings {
    /// By the cookie of the socket that began the connection; across an agreement, of the one here.
    all: BTreeMap<u64, Ring>,
    counts: BTreeMap<u32, u32>,
    kept: usize,
}

impl Rings {
    /// The memory of a connection for one of its sides, that of whoever has the slot first or
    /// second. It counts as given with [`Rings::given`].
    ///
    /// # Errors
    /// `ALREADY`: that side has it. `NOBUFS`: an endpoint has as many as it may, or too many are
    /// kept. Or what the operating system refused.
    pub fn memory(&mut self, began: u64, side: Side, slots: [u32; 2]) -> Result<&OwnedFd, Errno> {
        if let Some(ring) = self.all.get(&began) {
            if ring.given[side as usize] {
                return Err(Errno::ALREADY);
            }
        } else {
            if !self.has_room(slots) && guard!("circuits-rings") {
                return Err(Errno::NOBUFS);
            }
            let memory = shm::circuit_file(CAPACITY).map_err(|error| {
                let errno = error.raw_os_error();
                errno.map_or(Errno::NOMEM, Errno::from_raw_os_error)
            })?;
            self.insert(began, slots, memory);
        }
        let ring = self.all.get(&began);
        ring.and_then(|ring| ring.memory.as_ref())
            .ok_or(Errno::ALREADY)
    }

    /// Memory that the supervisor made, of a connection whose other end is another tenant's: of
    /// those an endpoint has fewer, so that by them alone its own circuits do not lack any.
    ///
    /// # Errors
    /// NOBUFS: the endpoint has as many as it may.
    pub fn keep(&mut self, own: u64, slot: u32, memory: OwnedFd) -> Result<(), Errno> {
        if self.has(own) {
            return Ok(());
        }
        let has = self.counts.get(&slot).copied().unwrap_or(0);
        let is_full = has >= MOST_ACROSS || self.kept >= KEPT / 4;
        if is_full && guard!("across-rings-most") {
            return Err(Errno::NOBUFS);
        }
        self.insert(own, [slot; 2], memory);
        Ok(())
    }

    /// Whether there is memory of a connection.
    pub fn has(&self, began: u64) -> bool {
        self.all.contains_key(&began)
    }

    fn insert(&mut self, began: u64, slots: [u32; 2], memory: OwnedFd) {
        for slot in ends(slots) {
            *self.counts.entry(slot).or_default() += 1;
        }
        self.kept += 1;
        let ring = Ring {
            memory: Some(memory),
            given: [false; 2],
            slots,
        };
        self.all.insert(began, ring);
    }

    /// Whether both endpoints may have one more.
    pub fn has_room(&self, slots: [u32; 2]) -> bool {
        let has = |slot: u32| self.counts.get(&slot).copied().unwrap_or(0);
        self.kept < KEPT && ends(slots).all(|slot| has(slot) < MOST)
    }

    /// A side has it; whether both have.
    pub fn given(&mut self, began: u64, side: Side) -> bool {
        let Some(ring) = self.all.get_mut(&began) else {
            return false;
        };
        ring.given[side as usize] = true;
        let both = ring.given == [true; 2];
        if both && ring.memory.take().is_some() {
            self.kept -= 1;
        }
        both
    }

    /// Forgets those whose circuit is not there any more.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self
            .all
            .keys()
            .copied()
            .filter(|it| !is_there(*it))
            .collect();
        for began in gone {
            let Some(ring) = self.all.remove(&began) else {
                continue;
            };
            self.kept -= usize::from(ring.memory.is_some());
            for slot in ends(ring.slots) {
                if let Some(count) = self.counts.get_mut(&slot) {
                    *count = count.saturating_sub(1);
                }
            }
        }
    }
}

/// Each endpoint once.
fn ends([one, other]: [u32; 2]) -> impl Iterator<Item = u32> {
    let other = (one != other).then_some(other);
    core::iter::once(one).chain(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd.as_fd()).unwrap().st_ino
    }

    #[test]
    fn both_sides_have_the_same_memory_and_each_once() {
        let mut rings = Rings::default();
        let one = inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap());
        // Not heard of: it may ask again.
        assert_eq!(inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap()), one);
        rings.given(7, Side::Accepted);
        let again = rings.memory(7, Side::Accepted, [1, 2]);
        assert_eq!(again.map(inode), Err(Errno::ALREADY));
        assert_eq!(inode(rings.memory(7, Side::Began, [1, 2]).unwrap()), one);
        assert_ne!(inode(rings.memory(8, Side::Began, [1, 2]).unwrap()), one);
        rings.given(7, Side::Began);
        assert_eq!(rings.kept, 1, "who has it keeps it");
        let again = rings.memory(7, Side::Began, [1, 2]);
        assert_eq!(again.map(inode), Err(Errno::ALREADY));
    }

    #[test]
    fn an_endpoint_has_as_many_rings_as_it_may() {
        let mut rings = Rings::default();
        for began in 0..u64::from(MOST) {
            assert!(rings.memory(began, Side::Began, [1, 2]).is_ok());
            rings.given(began, Side::Began);
            rings.given(began, Side::Accepted);
        }
        assert_eq!(rings.kept, 0);
        for slots in [[1, 3], [3, 2], [1, 1]] {
            let more = rings.memory(9_999, Side::Began, slots);
            assert_eq!(more.map(inode), Err(Errno::NOBUFS), "{slots:?}");
        }
        assert!(rings.memory(10_000, Side::Began, [3, 3]).is_ok());
        rings.retain(|began| began != 5);
        assert!(rings.memory(9_999, Side::Began, [1, 3]).is_ok());
        assert!(!rings.has_room([1, 3]));
    }

    #[test]
    fn connections_of_other_tenants_leave_memory_for_the_tenants_own() {
        let mut rings = Rings::default();
        let memory = || shm::circuit_file(CAPACITY).unwrap();
        for own in 0..u64::from(MOST_ACROSS) {
            assert_eq!(rings.keep(own, 1, memory()), Ok(()));
        }
        assert_eq!(rings.keep(9_999, 1, memory()), Err(Errno::NOBUFS));
        assert_eq!(rings.keep(9_999, 2, memory()), Ok(()));
        assert!(rings.memory(10_000, Side::Began, [1, 1]).is_ok());
    }

    #[test]
    fn memory_that_nobody_fetches_is_bounded() {
        let mut rings = Rings::default();
        for began in 0..KEPT as u64 {
            let slot = began as u32;
            assert!(rings.memory(began, Side::Began, [slot, slot]).is_ok());
        }
        let more = rings.memory(9_999, Side::Began, [9_999, 9_999]);
        assert_eq!(more.map(inode), Err(Errno::NOBUFS));
        rings.retain(|_| false);
        assert_eq!((rings.kept, rings.all.len()), (0, 0));
        assert!(rings.counts.values().all(|count| *count == 0));
    }
}
