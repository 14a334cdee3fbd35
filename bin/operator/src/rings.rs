//! Memory of circuits whose programs ask for it: made at the first ask, kept for the other side,
//! and from then on to give its pages back when nobody uses them. Who asks has the circuit's socket; nothing
//! else gives it away.
//!
//! What is kept dies with this process: who asks its successor gets memory of its own, which
//! the other never joins, and both go on by the socket; and of what both have no page is given back any more.

use crate::giving::{Giving, Late};
use guard::guard;
use rustix::io::Errno;
use shm::KeptCircuit;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use stream::{CAPACITY, LOOKS, Reclaim, SETTLES, Side, Tick};

/// Rings of an endpoint at most, and with that bytes: 2 MiB each and four pages, a gigabyte
/// together, of which no page is taken before a program touches it.
const MOST: u32 = 512;
/// So many at most, whosever they are, when one is kept that another tenant's program may have.
const MOST_ACROSS: u32 = 128;
/// Descriptors that are kept for who has not asked, of all endpoints.
const KEPT: usize = 1024;
/// Descriptors that are kept of memory that both sides have; of more nothing is given back.
const WATCHED: usize = 8192;
/// So many circuits are looked at before somebody's call is, and so many pages given back.
const AT_ONCE: usize = 32;
const GIVEN_BACK: usize = 8;
/// So many processes may wait for a program that holds such a file; while they do no more pages are given back.
const LATE: usize = 4;
/// After so many looks at which nothing moved, and yet not all was read, it is asked who lives.
const UNREAD: u32 = 10;

#[derive(Default)]
struct Ring {
    /// Until both have it.
    memory: Option<OwnedFd>,
    /// From then on.
    kept: Option<KeptCircuit>,
    given: [bool; 2],
    /// The slots of both ends.
    slots: [u32; 2],
    /// Its pages are another operator's to give back.
    is_others: bool,
    reclaim: Reclaim,
}

impl Ring {
    fn is_given(&self) -> bool {
        self.given == [true; 2]
    }
}

/// All of a compartment.
#[derive(Default)]
pub struct Rings {
    /// By the cookie of the socket that began the connection; across an agreement, of the one here.
    all: BTreeMap<u64, Ring>,
    counts: BTreeMap<u32, u32>,
    /// Descriptors of those that only one side has, and of those that both have.
    kept: usize,
    held: usize,
    /// When these are looked at: each list in the order of its times.
    later: VecDeque<(Instant, u64)>,
    soon: VecDeque<(Instant, u64)>,
    /// Who gives back what some program holds: of this circuit.
    late: Vec<(u64, [u32; 2], Late)>,
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
            self.insert(began, slots, memory, false);
        }
        let ring = self.all.get(&began);
        ring.and_then(|ring| ring.memory.as_ref())
            .ok_or(Errno::ALREADY)
    }

    /// Memory that the supervisor made, of a connection whose other end is another tenant's: of
    /// those an endpoint has fewer, so that by them alone its own circuits do not lack any. Of the two
    /// operators that have it, that of the `side` that began gives its pages back.
    ///
    /// # Errors
    /// NOBUFS: the endpoint has as many as it may.
    pub fn keep(&mut self, own: u64, side: Side, slot: u32, memory: OwnedFd) -> Result<(), Errno> {
        if self.has(own) {
            return Ok(());
        }
        let has = self.counts.get(&slot).copied().unwrap_or(0);
        let is_full = has >= MOST_ACROSS || self.kept >= KEPT / 4;
        if is_full && guard!("across-rings-most") {
            return Err(Errno::NOBUFS);
        }
        self.insert(own, [slot; 2], memory, side == Side::Accepted);
        Ok(())
    }

    /// Whether there is memory of a connection.
    pub fn has(&self, began: u64) -> bool {
        self.all.contains_key(&began)
    }

    fn insert(&mut self, began: u64, slots: [u32; 2], memory: OwnedFd, is_others: bool) {
        for slot in ends(slots) {
            *self.counts.entry(slot).or_default() += 1;
        }
        self.kept += 1;
        let ring = Ring {
            memory: Some(memory),
            slots,
            is_others,
            ..Ring::default()
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
        if let Some(memory) = ring.memory.take_if(|_| ring.given == [true; 2]) {
            self.kept -= 1;
            if !ring.is_others && self.held < WATCHED {
                ring.kept = KeptCircuit::new(memory).ok();
            }
            if ring.kept.is_some() {
                self.held += 1;
                self.later.push_back((Instant::now() + LOOKS, began));
            }
        }
        ring.is_given()
    }

    /// Gives pages back that nobody uses; whether there are circuits of which it is not known whether
    /// they are there.
    pub fn tick(&mut self) -> bool {
        let over: Vec<u64> = self
            .late
            .extract_if(.., |(.., late)| late.is_over())
            .map(|(began, ..)| began)
            .collect();
        over.into_iter().for_each(|began| self.is_back(began));
        let (mut unread, mut idle, now) = (false, Vec::new(), Instant::now());
        for _ in 0..AT_ONCE {
            let soon = self.soon.pop_front_if(|it| it.0 <= now);
            // Together with others: each time for itself would be a wake-up for each circuit.
            let later = |it: &mut (Instant, u64)| it.0 <= now + LOOKS / 4;
            let due = soon.or_else(|| self.later.pop_front_if(later));
            let Some((_, began)) = due else { break };
            let Some(ring) = self.all.get_mut(&began) else {
                continue;
            };
            let Some(kept) = &ring.kept else { continue };
            let next = ring.reclaim.tick(kept);
            unread |= ring.reclaim.unread() == UNREAD;
            // Not after `now`: other looks may have taken long, and this is to be no sooner.
            match next {
                Tick::Later => self.later.push_back((Instant::now() + LOOKS, began)),
                Tick::Soon => self.soon.push_back((Instant::now() + SETTLES, began)),
                Tick::GiveBack => idle.push((began, ring.slots)),
            }
            if idle.len() >= GIVEN_BACK {
                break;
            }
        }
        self.give_back(idle);
        unread
    }

    fn give_back(&mut self, mut idle: Vec<(u64, [u32; 2])>) {
        let has_room = self.late.len() < LATE;
        let is_held = |slots: [u32; 2]| self.late.iter().any(|(_, held, _)| *held == slots);
        let spared: Vec<(u64, [u32; 2])> = idle
            .extract_if(.., |(_, slots)| !has_room || is_held(*slots))
            .collect();
        let files = idle.iter().filter_map(|(began, _)| {
            let kept = self.all.get(began)?.kept.as_ref();
            kept.map(AsFd::as_fd)
        });
        let files: Vec<BorrowedFd<'_>> = files.collect();
        if !guard!("circuits-gives-apart") {
            let all = files.into_iter();
            all.for_each(|file| drop(shm::give_back(file, CAPACITY)));
            idle.into_iter().for_each(|(began, _)| self.is_back(began));
            return;
        }
        let mut giving = match files.is_empty() {
            true => None,
            false => Giving::of(&files).ok(),
        };
        for (began, slots) in idle {
            // Where one is late the others are not begun.
            match giving.take().map(Giving::next) {
                Some(Err(late)) => {
                    self.late.push((began, slots, late));
                    continue;
                }
                Some(Ok(next)) => giving = Some(next),
                None => {}
            }
            self.is_back(began);
        }
        spared
            .into_iter()
            .for_each(|(began, _)| self.is_back(began));
    }

    /// Nothing is taken from it any more.
    fn is_back(&mut self, began: u64) {
        let Some(ring) = self.all.get_mut(&began) else {
            return;
        };
        if let Some(kept) = &ring.kept {
            ring.reclaim.done(kept);
            self.later.push_back((Instant::now() + LOOKS, began));
        }
    }

    /// When there is something to be looked at.
    pub fn due(&self) -> Option<Instant> {
        let first = |list: &VecDeque<(Instant, u64)>| list.front().map(|it| it.0);
        let late = (!self.late.is_empty()).then(|| Instant::now() + LOOKS);
        [first(&self.soon), first(&self.later), late]
            .into_iter()
            .flatten()
            .min()
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
            self.held -= usize::from(ring.kept.is_some());
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
    use std::time::Duration;

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
            assert_eq!(rings.keep(own, Side::Began, 1, memory()), Ok(()));
        }
        assert_eq!(
            rings.keep(9_999, Side::Began, 1, memory()),
            Err(Errno::NOBUFS)
        );
        assert_eq!(rings.keep(9_999, Side::Began, 2, memory()), Ok(()));
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

    /// Looks so often at all of them that something must have come of it, whatever the time.
    fn looks(rings: &mut Rings, times: usize) {
        for _ in 0..times {
            for list in [&mut rings.later, &mut rings.soon] {
                list.iter_mut().for_each(|it| it.0 = Instant::now());
            }
            rings.tick();
            // On a busy machine.
            while !rings.late.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
                rings.tick();
            }
        }
    }

    #[test]
    fn pages_that_nobody_uses_are_given_back_and_only_by_who_is_to() {
        let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks / 8;
        let mut rings = Rings::default();
        let memory = || shm::circuit_file(CAPACITY).unwrap();
        let all: Vec<OwnedFd> = [Side::Began, Side::Accepted]
            .into_iter()
            .map(|side| {
                let memory = memory();
                let own = side as u64;
                let copy = memory.try_clone().unwrap();
                rings.keep(own, side, 1, memory).unwrap();
                rings.given(own, Side::Began);
                rings.given(own, Side::Accepted);
                copy
            })
            .collect();
        assert_eq!((rings.kept, rings.held), (0, 1), "the other is another's");
        let data = stream::data_at(Side::Began, CAPACITY) as u64;
        for memory in &all {
            rustix::io::pwrite(memory, &[1; 64 << 10], data).unwrap();
        }
        looks(&mut rings, 3);
        assert_eq!(all.iter().map(pages).collect::<Vec<_>>(), [1, 16]);
        // Somebody writes, or has not read: nothing is taken.
        for (at, value) in [(24 * 8, 1_u64), (24 * 8, 0), (0, 7)] {
            rustix::io::pwrite(&all[0], &[1; 64 << 10], data).unwrap();
            rustix::io::pwrite(&all[0], &u64::to_ne_bytes(value), at).unwrap();
            looks(&mut rings, 6);
            let given = at != 0 && value == 0;
            assert_eq!(pages(&all[0]) == 1, given, "{at} {value}");
        }
        // Who is so for long may not be there any more.
        let unread = (0..UNREAD + 6).filter(|_| {
            rings.later.iter_mut().for_each(|it| it.0 = Instant::now());
            rings.tick()
        });
        assert_eq!(unread.count(), 1);
        rings.retain(|_| false);
        assert_eq!((rings.held, rings.all.len()), (0, 0));
        looks(&mut rings, 2);
        assert_eq!(rings.due(), None);
    }
}
