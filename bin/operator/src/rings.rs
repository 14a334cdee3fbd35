//! Memory of circuits whose programs ask for it: made at the first ask, kept for the other side,
//! and from then on to give its pages back when nobody uses them. Who asks has the circuit's socket; nothing
//! else gives it away.
//!
//! What is kept dies with this process: who asks its successor gets memory of its own, which
//! the other never joins, and both go on by the socket; and of what both have no page is given back any more.

mod closed;

use crate::giving::{self, Came, NOTHING, Round};
use closed::Closed;
pub use closed::{Across, End};
use guard::guard;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use stream::reclaim::{LOOKS, SETTLES};
use stream::{CAPACITY, Side};

/// Rings of an endpoint at most, and with that bytes: 2 MiB each and a page, a gigabyte
/// together, of which no page is taken before a program touches it. One counts until its memory is taken back.
const MOST: u32 = 512;
/// So many at most, whosever they are, when one is kept that another tenant's program may have.
const MOST_ACROSS: u32 = 128;
/// Descriptors that are kept for who has not asked, of all endpoints.
const KEPT: usize = 1024;
/// Descriptors that are kept of all of it; of more nothing could be taken back.
const WATCHED: usize = 8192;
/// One that is in use is looked at after twice the time each time, up to this.
const SELDOM: Duration = LOOKS.saturating_mul(4);
/// After so many looks at which nothing moved, and yet not all was read, it is asked who lives.
const UNREAD: u32 = 10;
/// Circuits that are looked at before somebody's call is.
const LOOKED_AT: usize = 64;
/// Rounds at a time, and such of them as some program has wait: no more are begun then.
const ROUNDS: usize = 4;
const LATE: usize = 2;
/// After so long it is asked what came of a round, or begun what found no room.
const SOON: Duration = Duration::from_millis(60);
/// Nobody tells that a circuit is closed: it is asked so often which are, where there are rings.
const ASKS: Duration = Duration::from_secs(8);

struct Ring {
    memory: Option<OwnedFd>,
    given: [bool; 2],
    /// Who may have it: it was put into their programs, whether they were told so or not.
    handed: [bool; 2],
    /// The slots of both ends.
    slots: [u32; 2],
    /// The end that accepted it, once that has it; 0: not known.
    accepted: u64,
    /// Another tenant has it too, and can have whoever touches it wait.
    across: Option<Across>,
    /// The writers' positions, as they were seen last.
    seen: [u64; 2],
    /// Looks since something moved.
    unread: u32,
    /// The time to its next look.
    wait: Duration,
    /// Who looked last ended in the midst of it.
    is_lost: bool,
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
    watched: usize,
    /// When circuits are looked at.
    due: BTreeSet<(Instant, u64)>,
    rounds: Vec<Round>,
    closed: Closed,
    /// When it is asked next which circuits live.
    asks: Option<Instant>,
    /// When closed ones may be looked for again to make room.
    looks: Option<Instant>,
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
            self.insert(began, slots, memory, None);
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
    pub fn keep(
        &mut self,
        own: u64,
        slot: u32,
        across: Across,
        memory: OwnedFd,
    ) -> Result<(), Errno> {
        if self.has(own) {
            return Ok(());
        }
        if !self.has_room_across(slot) && guard!("across-rings-most") {
            return Err(Errno::NOBUFS);
        }
        self.insert(own, [slot; 2], memory, Some(across));
        Ok(())
    }

    /// Whether an endpoint may have one more of those.
    pub fn has_room_across(&self, slot: u32) -> bool {
        let has = self.counts.get(&slot).copied().unwrap_or(0);
        has < MOST_ACROSS && self.kept < KEPT / 4 && self.may_watch()
    }

    /// Whether there is memory of a connection.
    pub fn has(&self, began: u64) -> bool {
        self.all.contains_key(&began)
    }

    fn insert(&mut self, began: u64, slots: [u32; 2], memory: OwnedFd, across: Option<Across>) {
        for slot in ends(slots) {
            *self.counts.entry(slot).or_default() += 1;
        }
        self.kept += 1;
        let ring = Ring {
            memory: Some(memory),
            given: [false; 2],
            handed: [false; 2],
            slots,
            accepted: 0,
            across,
            seen: NOTHING,
            unread: 0,
            wait: LOOKS,
            is_lost: false,
        };
        self.all.insert(began, ring);
    }

    /// Whether some of an endpoint's should be looked for that are closed, before there is no room: for a tenth of
    /// the time, for it may have as many that live.
    pub fn is_near_full(&self, slots: [u32; 2], is_across: bool) -> bool {
        let is_early = self.looks.is_some_and(|after| Instant::now() < after);
        if is_early && guard!("rings-looked-for") {
            return false;
        }
        let most = if is_across { MOST_ACROSS } else { MOST };
        let has = |slot: u32| self.counts.get(&slot).copied().unwrap_or(0);
        ends(slots).any(|slot| has(slot) >= most / 4 * 3)
    }

    /// They were, which took so long.
    pub fn looked_for(&mut self, took: Duration) {
        self.looks = Some(Instant::now() + 10 * took);
    }

    /// Whether both endpoints may have one more.
    pub fn has_room(&self, slots: [u32; 2]) -> bool {
        let has = |slot: u32| self.counts.get(&slot).copied().unwrap_or(0);
        self.kept < KEPT && self.may_watch() && ends(slots).all(|slot| has(slot) < MOST)
    }

    /// Of one more the descriptor could be kept once both have it.
    fn may_watch(&self) -> bool {
        self.kept + self.watched + self.closed.len() < WATCHED
    }

    /// It is in a side's program, by this socket, whether that knows it or not.
    pub fn handed(&mut self, began: u64, side: Side, end: End, place: Option<u64>) {
        if let Some(ring) = self.all.get_mut(&began) {
            ring.handed[side as usize] = true;
            self.asks.get_or_insert_with(|| Instant::now() + ASKS);
            match &mut ring.across {
                Some(across) => (across.ends[0], across.place) = (Some(end), place),
                None if side == Side::Accepted => ring.accepted = end.cookie,
                None => {}
            }
        }
    }

    /// A side has it; whether both have.
    pub fn given(&mut self, began: u64, side: Side) -> bool {
        let Some(ring) = self.all.get_mut(&began) else {
            return false;
        };
        let was_given = ring.is_given();
        ring.given[side as usize] = true;
        if ring.is_given() && !was_given && ring.memory.is_some() {
            self.kept -= 1;
            self.watched += 1;
            if ring.across.is_none() {
                self.due.insert((Instant::now() + LOOKS, began));
            }
        }
        ring.is_given()
    }

    /// The other tenant's program has that of a circuit across an agreement, by this socket; whether both have. `None`:
    /// there is none of it here.
    pub fn given_far(&mut self, own: u64, side: Side, end: End) -> Option<bool> {
        let ring = self.all.get_mut(&own)?;
        ring.across.as_mut()?.ends[1] = Some(end);
        ring.handed[side as usize] = true;
        Some(self.given(own, side))
    }

    /// The same, of one that is closed here; whether there is one.
    pub fn given_late(&mut self, of: (u16, u64), end: End) -> bool {
        self.closed.is_told(of, end)
    }

    /// Closed circuits across agreements, of which it is to be asked now whether an end lives; of those of which none does
    /// the memory is taken back ([`Rings::is_over`]).
    pub fn asks_ends(&mut self) -> Vec<(u64, Across)> {
        self.closed.asks()
    }

    /// That took so long.
    pub fn asked_ends(&mut self, took: Duration) {
        self.closed.asked(took);
    }

    /// The agreements by which there are rings.
    pub fn tags(&self) -> impl Iterator<Item = u16> {
        let open = self.all.values().filter_map(|ring| Some(ring.across?.tag));
        open.chain(self.closed.tags())
    }

    /// Both ends of that are closed.
    pub fn is_over(&mut self, own: u64) {
        self.closed.is_over(own);
    }

    /// Nobody tells whether they are: its memory is left to who has it.
    pub fn gives_up(&mut self, own: u64) {
        if let Some(slots) = self.closed.gives_up(own) {
            self.uncount(slots);
        }
    }

    /// Has pages given back that nobody uses; whether there are circuits of which it is not known whether
    /// they are there.
    pub fn tick(&mut self) -> bool {
        let mut unread = self.hear();
        let now = Instant::now();
        for slots in self.closed.tick() {
            self.uncount(slots);
        }
        if self.asks.is_some_and(|at| at <= now) {
            self.asks = (!self.all.is_empty()).then(|| now + ASKS);
            unread |= guard!("rings-asked");
        }
        if self.due.first().is_none_or(|it| it.0 > now) {
            return unread;
        }
        // By their endpoints, whose circuits are due first before others'.
        let mut due = Vec::<([u32; 2], Vec<u64>)>::new();
        for _ in 0..LOOKED_AT {
            // Together with others: each at its own time would be a wake-up for each circuit.
            let is_due = |it: &&(Instant, u64)| it.0 <= now + LOOKS / 4;
            let Some(&(at, began)) = self.due.first().filter(is_due) else {
                break;
            };
            self.due.remove(&(at, began));
            let Some(ring) = self.all.get_mut(&began) else {
                continue;
            };
            match &ring.memory {
                Some(memory) if ring.is_lost || shm::is_large(memory) => {
                    let [one, other] = ring.slots;
                    let slots = [one.min(other), one.max(other)];
                    match due.iter_mut().find(|(of, _)| *of == slots) {
                        Some((_, rings)) => rings.push(began),
                        None => due.push((slots, vec![began])),
                    }
                }
                Some(_) => {
                    (ring.seen, ring.unread, ring.wait) = (NOTHING, 0, LOOKS);
                    self.due.insert((now + LOOKS, began));
                }
                None => {}
            }
        }
        for (slots, rings) in due {
            for some in rings.chunks(giving::AT_ONCE) {
                if let Err(wait) = self.begin(slots, some) {
                    let again = some.iter().map(|began| (now + wait, *began));
                    self.due.extend(again);
                }
            }
        }
        unread
    }

    /// Has some circuits looked at that are between the same endpoints; `Err`: later.
    fn begin(&mut self, slots: [u32; 2], rings: &[u64]) -> Result<(), Duration> {
        let of = self.rounds.iter().find(|round| round.slots == slots);
        let late = self.rounds.iter().filter(|round| round.is_late());
        let is_late = of.is_some_and(Round::is_late) || late.count() >= LATE;
        if is_late && guard!("rings-late") {
            return Err(SELDOM);
        }
        let is_full = of.is_some() || self.rounds.len() >= ROUNDS;
        if is_full && guard!("rings-rounds") {
            return Err(SOON);
        }
        let files = rings.iter().filter_map(|began| {
            let ring = self.all.get(began)?;
            Some((*began, ring.memory.as_ref()?.as_fd(), ring.seen))
        });
        let files: Vec<(u64, BorrowedFd<'_>, [u64; 2])> = files.collect();
        let round = Round::begin(slots, &files).map_err(|_| SELDOM)?;
        self.rounds.push(round);
        Ok(())
    }

    /// What came of those that are looked at; whether there are some as in [`Rings::tick`].
    fn hear(&mut self) -> bool {
        let (mut came, now) = (Vec::new(), Instant::now());
        self.rounds.retain_mut(|round| {
            let (heard, is_over) = round.hear();
            came.extend(heard);
            !is_over
        });
        let mut unread = false;
        for (began, came) in came {
            let Some(ring) = self.all.get_mut(&began) else {
                continue;
            };
            ring.is_lost = came == Came::Lost;
            match came {
                Came::Moved(seen) => {
                    (ring.seen, ring.unread) = (seen, 0);
                    self.due.insert((now + ring.wait, began));
                    ring.wait = SELDOM.min(ring.wait * 2);
                    continue;
                }
                Came::Unread => {
                    ring.unread = ring.unread.wrapping_add(1);
                    unread |= ring.unread.is_multiple_of(UNREAD);
                }
                Came::Over | Came::Lost => ring.unread = 0,
            }
            ring.wait = LOOKS;
            self.due.insert((now + LOOKS, began));
        }
        unread
    }

    /// When there is something to be looked at.
    pub fn due(&self) -> Option<Instant> {
        let first = self.due.first().map(|it| it.0);
        let now = Instant::now();
        let rounds = self.rounds.iter().map(|round| match round.is_late() {
            true => now + LOOKS,
            false => now + SOON,
        });
        let others = self.asks.into_iter().chain(self.closed.due(now));
        rounds.chain(first).chain(others).min()
    }

    /// Forgets those whose circuit is not there any more: one that is closed at both ends. What its pages hold would be charged
    /// to who touched them for as long as one of its ends had it mapped: they are taken back.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        let is_open = |began: u64, ring: &Ring| {
            let by_other = ring.across.is_none() && ring.accepted != 0 && is_there(ring.accepted);
            is_there(began) || (by_other && guard!("rings-half-closed"))
        };
        let all = self.all.iter();
        let gone = all.filter(|(began, ring)| !is_open(**began, ring));
        let gone: Vec<u64> = gone.map(|(began, _)| *began).collect();
        for began in gone {
            let Some(mut ring) = self.all.remove(&began) else {
                continue;
            };
            let memory = ring.memory.take();
            let count = match ring.is_given() {
                true => &mut self.watched,
                false => &mut self.kept,
            };
            *count -= usize::from(memory.is_some());
            // What one side alone has it alone is charged for; of another tenant's it is not told yet.
            let is_shared = match ring.across {
                Some(across) => across.ends[0].is_some(),
                None => ring.handed == [true; 2],
            };
            match memory.filter(|_| is_shared && guard!("rings-taken-back")) {
                Some(memory) => {
                    let of = (ring.slots, memory);
                    let rests = self.rests(ring.slots);
                    self.closed.insert(began, of, ring.across, rests);
                }
                None => self.uncount(ring.slots),
            }
        }
    }

    /// Who looks at it has looked by then.
    fn rests(&self, [one, other]: [u32; 2]) -> Duration {
        let slots = [one.min(other), one.max(other)];
        let is_looked_at = self.rounds.iter().any(|round| round.slots == slots);
        if is_looked_at {
            2 * SETTLES
        } else {
            Duration::ZERO
        }
    }

    fn uncount(&mut self, slots: [u32; 2]) {
        for slot in ends(slots) {
            if let Some(count) = self.counts.get_mut(&slot) {
                *count = count.saturating_sub(1);
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

    fn end(cookie: u64) -> End {
        End { inode: 1, cookie }
    }

    fn has(rings: &mut Rings, began: u64, side: Side, cookie: u64) -> bool {
        rings.handed(began, side, end(cookie), None);
        rings.given(began, side)
    }

    fn across(id: u64) -> Across {
        Across {
            tag: 5,
            id,
            is_here: true,
            place: None,
            ends: [None; 2],
        }
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd.as_fd()).unwrap().st_ino
    }

    #[test]
    fn both_sides_have_the_same_memory_and_each_once() {
        let mut rings = Rings::default();
        let one = inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap());
        // Not heard of: it may ask again.
        assert_eq!(inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap()), one);
        has(&mut rings, 7, Side::Accepted, 77);
        let again = rings.memory(7, Side::Accepted, [1, 2]);
        assert_eq!(again.map(inode), Err(Errno::ALREADY));
        assert_eq!(inode(rings.memory(7, Side::Began, [1, 2]).unwrap()), one);
        assert_ne!(inode(rings.memory(8, Side::Began, [1, 2]).unwrap()), one);
        has(&mut rings, 7, Side::Began, 7);
        assert_eq!(rings.kept, 1, "who has it keeps it");
        let again = rings.memory(7, Side::Began, [1, 2]);
        assert_eq!(again.map(inode), Err(Errno::ALREADY));
    }

    #[test]
    fn an_endpoint_has_as_many_rings_as_it_may() {
        let mut rings = Rings::default();
        for began in 0..u64::from(MOST) {
            assert!(rings.memory(began, Side::Began, [1, 2]).is_ok());
            given_to_both(&mut rings, began);
        }
        assert_eq!(rings.kept, 0);
        for slots in [[1, 3], [3, 2], [1, 1]] {
            let more = rings.memory(9_999, Side::Began, slots);
            assert_eq!(more.map(inode), Err(Errno::NOBUFS), "{slots:?}");
        }
        assert!(rings.memory(10_000, Side::Began, [3, 3]).is_ok());
        // It counts until its pages are taken back.
        rings.retain(|began| began != 5);
        assert!(!rings.has_room([1, 3]));
        takes_back(&mut rings);
        assert!(rings.memory(9_999, Side::Began, [1, 3]).is_ok());
        assert!(!rings.has_room([1, 3]));
    }

    #[test]
    fn connections_of_other_tenants_leave_memory_for_the_tenants_own() {
        let mut rings = Rings::default();
        let memory = || shm::circuit_file(CAPACITY).unwrap();
        for own in 0..u64::from(MOST_ACROSS) {
            assert_eq!(rings.keep(own, 1, across(own), memory()), Ok(()));
        }
        assert_eq!(
            rings.keep(9_999, 1, across(1), memory()),
            Err(Errno::NOBUFS)
        );
        assert_eq!(rings.keep(9_999, 2, across(1), memory()), Ok(()));
        assert!(rings.memory(10_000, Side::Began, [1, 1]).is_ok());
    }

    #[test]
    fn closed_ones_are_looked_for_before_there_is_no_room_and_not_for_each_call() {
        let mut rings = Rings::default();
        for began in 0..u64::from(MOST / 4 * 3) {
            assert!(!rings.is_near_full([1, 2], false));
            rings.memory(began, Side::Began, [1, 2]).unwrap();
            given_to_both(&mut rings, began);
        }
        assert!(rings.has_room([1, 2]) && rings.is_near_full([2, 3], false));
        assert!(!rings.is_near_full([3, 3], false));
        rings
            .keep(9_999, 3, across(1), shm::circuit_file(CAPACITY).unwrap())
            .unwrap();
        assert!(!rings.is_near_full([3, 3], true) && rings.is_near_full([2, 2], true));
        rings.looked_for(Duration::from_secs(9));
        assert!(!rings.is_near_full([1, 2], false));
        rings.looked_for(Duration::ZERO);
        assert!(rings.is_near_full([1, 2], false));
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

    fn takes_back(rings: &mut Rings) {
        rings.tick();
        while rings.closed.due(Instant::now()).is_some() {
            std::thread::sleep(Duration::from_millis(1));
            rings.tick();
        }
    }

    #[test]
    fn memory_is_one_closed_circuits_when_both_its_ends_are() {
        let mut rings = Rings::default();
        let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks;
        let memory = rings.memory(7, Side::Began, [1, 2]).unwrap();
        let memory = memory.try_clone().unwrap();
        has(&mut rings, 7, Side::Began, 7);
        has(&mut rings, 7, Side::Accepted, 8);
        rustix::io::pwrite(&memory, &[1; 64 << 10], 0).unwrap();
        let before = pages(&memory);
        // Who accepted it reads what is left.
        rings.retain(|it| it != 7);
        assert_eq!((rings.has(7), rings.closed.len()), (true, 0));
        rings.retain(|it| it != 7 && it != 8);
        assert_eq!((rings.has(7), rings.closed.len()), (false, 1));
        assert_eq!(pages(&memory), before);
        takes_back(&mut rings);
        assert_eq!(pages(&memory), 0);
        assert!(rings.counts.values().all(|count| *count == 0));
    }

    #[test]
    fn it_is_asked_now_and_then_which_circuits_with_rings_live() {
        let mut rings = Rings::default();
        let memory = shm::circuit_file(CAPACITY).unwrap();
        rings.keep(1, 1, across(50), memory).unwrap();
        assert_eq!((rings.tick(), rings.due()), (false, None));
        has(&mut rings, 1, Side::Began, 1);
        assert_eq!(rings.given_far(1, Side::Accepted, end(7)), Some(true));
        assert!(rings.due().is_some() && !rings.tick());
        rings.asks = Some(Instant::now());
        assert!(rings.tick() && !rings.tick());
        assert_eq!(rings.tags().collect::<Vec<_>>(), [5]);
        // And of both ends when this one is not known of any more.
        rings.retain(|_| false);
        assert_eq!(rings.tags().collect::<Vec<_>>(), [5]);
        let ends = [Some(end(1)), Some(end(7))];
        assert_eq!(rings.asks_ends(), [(1, Across { ends, ..across(50) })]);
        rings.is_over(1);
        takes_back(&mut rings);
        assert_eq!(rings.given_far(1, Side::Accepted, end(7)), None);
        assert!(rings.counts.values().all(|count| *count == 0));
    }

    /// The call failed behind that: an answer that cannot be written is an attack as well as an error.
    #[test]
    fn who_was_not_told_that_it_has_it_has_it_all_the_same() {
        let mut rings = Rings::default();
        let memory = rings.memory(7, Side::Began, [1, 2]).unwrap();
        let memory = memory.try_clone().unwrap();
        rustix::io::pwrite(&memory, &[1; 64 << 10], 0).unwrap();
        has(&mut rings, 7, Side::Accepted, 8);
        rings.handed(7, Side::Began, end(7), None);
        rings.retain(|_| false);
        takes_back(&mut rings);
        assert_eq!(rustix::fs::fstat(&memory).unwrap().st_blocks, 0);
        // And the other tenant's, of whom it is told after this end is closed.
        let memory = shm::circuit_file(CAPACITY).unwrap();
        rings.keep(1, 1, across(50), memory).unwrap();
        has(&mut rings, 1, Side::Began, 1);
        rings.retain(|_| false);
        assert_eq!((rings.closed.len(), rings.asks_ends()), (1, vec![]));
        assert!(rings.given_late((5, 50), end(7)));
        assert_eq!(rings.asks_ends().len(), 1);
        rings.gives_up(1);
        assert_eq!((rings.closed.len(), rings.counts[&1]), (0, 0));
    }

    fn given_to_both(rings: &mut Rings, began: u64) {
        has(rings, began, Side::Began, began);
        has(rings, began, Side::Accepted, 0);
    }

    /// Looks so often at all of them that something must have come of it, whatever the time.
    fn looks(rings: &mut Rings, times: usize) -> usize {
        let mut unread = 0;
        for _ in 0..times {
            let all = std::mem::take(&mut rings.due).into_iter();
            let now = Instant::now();
            rings.due = all.map(|(_, began)| (now, began)).collect();
            unread += usize::from(rings.tick());
            while !rings.rounds.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
                unread += usize::from(rings.hear());
            }
        }
        unread
    }

    #[test]
    fn pages_that_nobody_uses_are_given_back_and_of_the_tenants_own_alone() {
        let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks / 8;
        let mut rings = Rings::default();
        rings
            .keep(1, 1, across(1), shm::circuit_file(CAPACITY).unwrap())
            .unwrap();
        rings.memory(2, Side::Began, [1, 2]).unwrap();
        let all = [1, 2].map(|began| {
            let memory = rings.all[&began].memory.as_ref().unwrap();
            memory.try_clone().unwrap()
        });
        for began in [1, 2] {
            given_to_both(&mut rings, began);
        }
        assert_eq!((rings.kept, rings.watched), (0, 2));
        let data = stream::data_at(Side::Began, CAPACITY) as u64;
        for memory in &all {
            rustix::io::pwrite(memory, &[1; 64 << 10], data).unwrap();
        }
        looks(&mut rings, 2);
        assert_eq!(all.each_ref().map(pages), [16, 1]);
        // Somebody writes, or has not read: nothing is taken.
        for (at, value) in [(24 * 8, 1_u64), (24 * 8, 0), (0, 7)] {
            rustix::io::pwrite(&all[1], &[1; 64 << 10], data).unwrap();
            rustix::io::pwrite(&all[1], &u64::to_ne_bytes(value), at).unwrap();
            looks(&mut rings, 4);
            let given = at != 0 && value == 0;
            assert_eq!(pages(&all[1]) == 1, given, "{at} {value}");
        }
        // Who is so for long may not be there any more: it is asked now and then.
        let asked = looks(&mut rings, 4 * UNREAD as usize);
        assert!((3..5).contains(&asked), "{asked}");
        rings.retain(|_| false);
        assert_eq!((rings.watched, rings.all.len()), (0, 0));
        rings.is_over(1);
        takes_back(&mut rings);
        looks(&mut rings, 1);
        rings.asks = None;
        assert_eq!(rings.due(), None);
    }

    /// Whoever looked was killed behind that: it is small, and would be looked at no more.
    #[test]
    fn memory_of_which_nothing_is_told_is_looked_at_again() {
        use stream::reclaim::Kept;
        let mut rings = Rings::default();
        rings.memory(1, Side::Began, [1, 2]).unwrap();
        given_to_both(&mut rings, 1);
        let memory = rings.all[&1].memory.as_ref().unwrap();
        let words = shm::CircuitWords::map(memory.as_fd()).unwrap();
        words.reclaims(Side::Began, 1);
        rings.all.get_mut(&1).unwrap().is_lost = true;
        looks(&mut rings, 2);
        let of_reader = words.of_reader(Side::Began, stream::ConsumerWord::Reclaims);
        assert_eq!((of_reader, rings.all[&1].is_lost), (0, false));
    }

    /// Rings of these endpoints, due, so many, and large enough to be looked at.
    fn due_of(rings: &mut Rings, slots: [u32; 2], count: u64) {
        for _ in 0..count {
            let began = rings.all.len() as u64;
            rings.memory(began, Side::Began, slots).unwrap();
            given_to_both(rings, began);
            let ring = rings.all.get_mut(&began).unwrap();
            ring.is_lost = true;
            rings.due.retain(|it| it.1 != began);
            rings.due.insert((Instant::now(), began));
        }
    }

    /// Whose circuits are looked at.
    fn looked_at(rings: &Rings) -> Vec<[u32; 2]> {
        rings.rounds.iter().map(|round| round.slots).collect()
    }

    #[test]
    fn who_has_a_look_wait_has_none_more_and_two_of_them_nobody() {
        let mut rings = Rings::default();
        let (late, _one) = Round::silent([1, 2], Duration::from_secs(2));
        rings.rounds.push(late);
        due_of(&mut rings, [1, 2], 1);
        due_of(&mut rings, [3, 4], 1);
        rings.tick();
        assert_eq!(looked_at(&rings), [[1, 2], [3, 4]]);
        let (late, _two) = Round::silent([5, 6], Duration::from_secs(2));
        rings.rounds.push(late);
        due_of(&mut rings, [7, 8], 1);
        rings.tick();
        assert!(!looked_at(&rings).contains(&[7, 8]));
        // Not soon again, for that is a wake-up each time.
        let last = rings.all.len() as u64 - 1;
        let due = rings.due.iter().find(|it| it.1 == last);
        assert!(due.is_some_and(|it| it.0 > Instant::now() + LOOKS));
    }

    #[test]
    fn few_looks_at_a_time_and_one_of_the_same_endpoints() {
        let mut rings = Rings::default();
        let (slow, _end) = Round::silent([1, 2], Duration::ZERO);
        rings.rounds.push(slow);
        for slot in 1..9 {
            due_of(&mut rings, [slot, slot + 1], 1);
        }
        rings.tick();
        assert_eq!(looked_at(&rings), [[1, 2], [2, 3], [3, 4], [4, 5]]);
        // The others have their turn once those are over.
        let soon = |rings: &Rings| {
            let end = Instant::now() + LOOKS / 2;
            rings.due.iter().filter(|it| it.0 < end).count()
        };
        assert_eq!(soon(&rings), 5);
    }

    #[test]
    fn a_call_does_not_wait_for_looks_at_all_that_are_due() {
        let mut rings = Rings::default();
        due_of(&mut rings, [1, 2], 100);
        let before = Instant::now();
        rings.tick();
        let untouched = rings.due.iter().filter(|it| it.0 < before).count();
        assert_eq!(untouched, 100 - LOOKED_AT);
    }

    #[test]
    fn what_is_in_use_is_looked_at_seldom() {
        let mut rings = Rings::default();
        rings.memory(1, Side::Began, [1, 2]).unwrap();
        given_to_both(&mut rings, 1);
        let memory = rings.all[&1].memory.as_ref().unwrap().try_clone().unwrap();
        let data = stream::data_at(Side::Began, CAPACITY) as u64;
        rustix::io::pwrite(&memory, &[1; 64 << 10], data).unwrap();
        let waits = [0_u64, 1, 2, 3, 4].map(|published| {
            rustix::io::pwrite(&memory, &published.to_ne_bytes(), 0).unwrap();
            looks(&mut rings, 1);
            rings.all[&1].wait.as_secs()
        });
        assert_eq!(waits, [2, 4, 4, 4, 4]);
    }
}
