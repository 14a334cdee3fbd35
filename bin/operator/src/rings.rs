//! Memory of circuits whose programs ask for it: made at the first ask, kept for the other side,
//! and from then on to give its pages back when nobody uses them. Who asks has the circuit's socket; nothing
//! else gives it away.
//!
//! What is kept dies with this process: who asks its successor gets memory of its own, which
//! the other never joins, and both go on by the socket; and of what both have no page is given back any more.

mod closed;
#[cfg(test)]
mod tests;

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
    memory: OwnedFd,
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
    /// How many of them not both sides have.
    kept: usize,
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
    /// The memory of a connection between two slots, for one of its sides. It counts as given with [`Rings::given`].
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
        ring.map(|ring| &ring.memory).ok_or(Errno::ALREADY)
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
        self.has_of(slot) < MOST_ACROSS && self.kept < KEPT / 4 && self.may_watch()
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
            memory,
            given: [false; 2],
            handed: [false; 2],
            slots,
            accepted: 0,
            across,
            seen: NOTHING,
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
        ends(slots).any(|slot| self.has_of(slot) >= most / 4 * 3)
    }

    /// They were, which took so long.
    pub fn looked_for(&mut self, took: Duration) {
        self.looks = Some(Instant::now() + 10 * took);
    }

    /// Whether both endpoints may have one more.
    pub fn has_room(&self, slots: [u32; 2]) -> bool {
        self.kept < KEPT && self.may_watch() && ends(slots).all(|slot| self.has_of(slot) < MOST)
    }

    /// Rings of an endpoint.
    fn has_of(&self, slot: u32) -> u32 {
        self.counts.get(&slot).copied().unwrap_or(0)
    }

    /// Of one more the descriptor could be kept.
    fn may_watch(&self) -> bool {
        self.all.len() + self.closed.len() < WATCHED
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
        if ring.is_given() && !was_given {
            self.kept -= 1;
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

    /// Has pages given back that nobody uses; whether it is to be asked which circuits live.
    pub fn tick(&mut self) -> bool {
        self.hear();
        let now = Instant::now();
        for slots in self.closed.tick() {
            self.uncount(slots);
        }
        self.looks_at(now);
        let is_to_ask = self.asks.is_some_and(|at| at <= now);
        if is_to_ask {
            self.asks = (!self.all.is_empty()).then(|| now + ASKS);
        }
        is_to_ask && guard!("rings-asked")
    }

    /// Begins looks at those that are due.
    fn looks_at(&mut self, now: Instant) {
        if self.due.first().is_none_or(|it| it.0 > now) {
            return;
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
            if ring.is_lost || shm::is_large(&ring.memory) {
                let slots = pair(ring.slots);
                match due.iter_mut().find(|(of, _)| *of == slots) {
                    Some((_, rings)) => rings.push(began),
                    None => due.push((slots, vec![began])),
                }
            } else {
                (ring.seen, ring.wait) = (NOTHING, LOOKS);
                self.due.insert((now + LOOKS, began));
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
            Some((*began, ring.memory.as_fd(), ring.seen))
        });
        let files: Vec<(u64, BorrowedFd<'_>, [u64; 2])> = files.collect();
        let round = Round::begin(slots, &files).map_err(|_| SELDOM)?;
        self.rounds.push(round);
        Ok(())
    }

    /// What came of those that are looked at.
    fn hear(&mut self) {
        let (mut came, now) = (Vec::new(), Instant::now());
        self.rounds.retain_mut(|round| {
            let (heard, is_over) = round.hear();
            came.extend(heard);
            !is_over
        });
        for (began, came) in came {
            let Some(ring) = self.all.get_mut(&began) else {
                continue;
            };
            ring.is_lost = came == Came::Lost;
            let (next, wait) = match came {
                Came::Moved(_) => (ring.wait, SELDOM.min(ring.wait * 2)),
                Came::Over | Came::Lost => (LOOKS, LOOKS),
            };
            if let Came::Moved(seen) = came {
                ring.seen = seen;
            }
            ring.wait = wait;
            self.due.insert((now + next, began));
        }
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
            let Some(ring) = self.all.remove(&began) else {
                continue;
            };
            self.kept -= usize::from(!ring.is_given());
            // What one side alone has it alone is charged for; of another tenant's it is not told yet.
            let is_shared = match ring.across {
                Some(across) => across.ends[0].is_some(),
                None => ring.handed == [true; 2],
            };
            if is_shared && guard!("rings-taken-back") {
                let (slots, rests) = (pair(ring.slots), self.rests(ring.slots));
                self.closed
                    .insert(began, (slots, ring.memory), ring.across, rests);
            } else {
                self.uncount(ring.slots);
            }
        }
    }

    /// Who looks at it has looked by then.
    fn rests(&self, slots: [u32; 2]) -> Duration {
        match self.rounds.iter().any(|round| round.slots == pair(slots)) {
            true => 2 * SETTLES,
            false => Duration::ZERO,
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

/// The same whoever began it.
fn pair([one, other]: [u32; 2]) -> [u32; 2] {
    [one.min(other), one.max(other)]
}

/// Each endpoint once.
fn ends([one, other]: [u32; 2]) -> impl Iterator<Item = u32> {
    let other = (one != other).then_some(other);
    core::iter::once(one).chain(other)
}
