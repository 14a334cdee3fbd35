//! Memory of circuits that are closed at both ends. A program may have it mapped for as long as it likes, and whoever touched
//! its pages first is charged for them; so they are taken back, by a copy of this process as all that touches
//! such memory (`giving`). Until then the circuit counts as one.

use super::{LOOKS, SELDOM, SOON};
use crate::giving::{AT_ONCE, Came, Round};
use guard::guard;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Rounds at a time, each of other endpoints.
const ROUNDS: usize = 8;
/// What other endpoints' rounds leave no room for is given up after so long: a tenant that has those wait is not to have
/// others go without rings.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long it is waited to be told which end the other tenant's program has.
const UNTOLD: Duration = Duration::from_secs(10);

/// The other end of a circuit across an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// The agreement's tag here.
    pub tag: u16,
    /// Of the socket, where it was made; zero: not told yet.
    pub inode: u32,
    pub cookie: u64,
    /// It was made here: by who began the connection.
    pub is_here: bool,
}

impl Far {
    /// One that is still to be told.
    pub fn of(tag: u16) -> Far {
        Far {
            tag,
            inode: 0,
            cookie: 0,
            is_here: false,
        }
    }

    fn is_known(&self) -> bool {
        self.cookie != 0
    }
}

struct One {
    memory: OwnedFd,
    slots: [u32; 2],
    /// None: that is closed too.
    far: Option<Far>,
    /// Since when it is waited for what is waited for.
    since: Instant,
    /// Nothing is done with it before.
    not_before: Instant,
    is_begun: bool,
}

impl One {
    fn is_ready(&self, now: Instant) -> bool {
        let is_untold = |far: Far| !far.is_known() && self.since + UNTOLD <= now;
        !self.is_begun && self.not_before <= now && self.far.is_none_or(is_untold)
    }
}

/// All of a compartment.
#[derive(Default)]
pub struct Closed {
    /// By the cookie of the socket that began the connection; across an agreement, of the one here.
    all: BTreeMap<u64, One>,
    rounds: Vec<Round>,
}

impl Closed {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn insert(&mut self, began: u64, slots: [u32; 2], memory: OwnedFd, far: Option<Far>) {
        let now = Instant::now();
        let one = One {
            memory,
            slots,
            far,
            since: now,
            not_before: now,
            is_begun: false,
        };
        self.all.insert(began, one);
    }

    /// The other end of one is told; whether there is one.
    pub fn is_of(&mut self, own: u64, far: Far) -> bool {
        let of = self.all.get_mut(&own).filter(|one| one.far.is_some());
        of.map(|one| one.far = Some(far)).is_some()
    }

    /// The agreements of which it is asked so.
    pub fn tags(&self) -> impl Iterator<Item = u16> {
        self.all.values().filter_map(|one| Some(one.far?.tag))
    }

    /// Ends of which it is to be asked now whether they live, some at a time.
    pub fn asks(&mut self) -> Vec<(u64, Far)> {
        let now = Instant::now();
        let of = self.all.iter_mut().filter(|(_, one)| one.not_before <= now);
        let known = of.filter_map(|(own, one)| {
            let far = one.far.filter(Far::is_known)?;
            one.not_before = now + SELDOM;
            Some((*own, far))
        });
        known.take(AT_ONCE).collect()
    }

    /// The other end is closed.
    pub fn is_over(&mut self, own: u64) {
        if let Some(one) = self.all.get_mut(&own) {
            let now = Instant::now();
            (one.far, one.since, one.not_before) = (None, now, now);
        }
    }

    /// Has memory taken back; the slots of those of which it was.
    pub fn tick(&mut self) -> Vec<[u32; 2]> {
        let mut over = self.hear();
        let now = Instant::now();
        let mut ready = BTreeMap::<[u32; 2], Vec<u64>>::new();
        for (began, one) in self.all.iter().filter(|(_, one)| one.is_ready(now)) {
            let [a, b] = one.slots;
            let some = ready.entry([a.min(b), a.max(b)]).or_default();
            some.push(*began);
        }
        for (slots, rings) in ready {
            // What holds it up is theirs.
            if self.rounds.iter().any(|round| round.slots == slots) {
                continue;
            }
            let some = rings.get(..AT_ONCE).unwrap_or(&rings);
            if self.rounds.len() < ROUNDS && self.begin(slots, some) {
                continue;
            }
            for began in rings {
                let is_late = |one: &mut One| one.since + PATIENCE <= now;
                let late = self.all.get_mut(&began).is_some_and(is_late);
                if late && guard!("rings-given-up") {
                    over.extend(self.all.remove(&began).map(|one| one.slots));
                }
            }
        }
        over
    }

    fn begin(&mut self, slots: [u32; 2], rings: &[u64]) -> bool {
        let files = rings.iter().filter_map(|began| {
            let one = self.all.get(began)?;
            Some((*began, one.memory.as_fd()))
        });
        let files: Vec<(u64, BorrowedFd<'_>)> = files.collect();
        let Ok(round) = Round::take_back(slots, &files) else {
            return false;
        };
        self.rounds.push(round);
        for began in rings {
            if let Some(one) = self.all.get_mut(began) {
                one.is_begun = true;
            }
        }
        true
    }

    /// What came of those that were begun.
    fn hear(&mut self) -> Vec<[u32; 2]> {
        let mut came = Vec::new();
        self.rounds.retain_mut(|round| {
            let (heard, is_over) = round.hear();
            came.extend(heard);
            !is_over
        });
        let mut over = Vec::new();
        for (began, came) in came {
            match came {
                Came::Over => over.extend(self.all.remove(&began).map(|one| one.slots)),
                // Killed: once more.
                _ => {
                    if let Some(one) = self.all.get_mut(&began) {
                        (one.is_begun, one.not_before) = (false, Instant::now() + LOOKS);
                    }
                }
            }
        }
        over
    }

    /// When there is something to be done.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        // Not soon again, where some program has one wait: each is a wake-up.
        let next = match self.rounds.iter().any(Round::is_late) {
            true => now + LOOKS,
            false => now + SOON,
        };
        let waits = self.all.values().filter(|one| !one.is_begun);
        let waits = waits.map(|one| match one.far {
            Some(far) if !far.is_known() => one.since + UNTOLD,
            _ => one.not_before.max(next),
        });
        let rounds = self.rounds.iter().map(|_| next);
        rounds.chain(waits).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stream::{CAPACITY, file_bytes};

    fn full() -> OwnedFd {
        let memory = shm::circuit_file(CAPACITY).unwrap();
        let all = vec![7; file_bytes(CAPACITY)];
        assert_eq!(rustix::io::pwrite(&memory, &all, 0), Ok(all.len()));
        memory
    }

    fn blocks(memory: &OwnedFd) -> i64 {
        rustix::fs::fstat(memory).unwrap().st_blocks
    }

    /// Until nothing is begun any more.
    fn ticks(closed: &mut Closed) -> Vec<[u32; 2]> {
        let mut over = closed.tick();
        while !closed.rounds.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            over.extend(closed.tick());
        }
        over
    }

    fn ago(closed: &mut Closed, began: u64, time: Duration) {
        let one = closed.all.get_mut(&began).unwrap();
        one.since = one.since.checked_sub(time).unwrap();
    }

    #[test]
    fn memory_of_what_is_closed_is_taken_back_whoever_has_it_mapped() {
        let mut closed = Closed::default();
        let memory: Vec<OwnedFd> = (0..40).map(|_| full()).collect();
        for (began, memory) in (0..).zip(&memory) {
            closed.insert(began, [1, 2], memory.try_clone().unwrap(), None);
        }
        assert_eq!(ticks(&mut closed), [[1, 2]; 40]);
        assert_eq!(memory.iter().map(blocks).sum::<i64>(), 0);
        assert_eq!((closed.len(), closed.due(Instant::now())), (0, None));
    }

    #[test]
    fn across_an_agreement_it_is_what_the_other_end_may_still_read() {
        let mut closed = Closed::default();
        let far = Far {
            tag: 5,
            inode: 6,
            cookie: 7,
            is_here: true,
        };
        let memory = full();
        let before = blocks(&memory);
        closed.insert(1, [3, 3], memory.try_clone().unwrap(), Some(Far::of(5)));
        // Which end that is was not told yet.
        assert_eq!((ticks(&mut closed), closed.asks()), (vec![], vec![]));
        assert!(closed.is_of(1, far) && !closed.is_of(2, far));
        ago(&mut closed, 1, 2 * UNTOLD);
        assert_eq!(
            (ticks(&mut closed), closed.asks()),
            (vec![], vec![(1, far)])
        );
        assert_eq!(closed.asks(), vec![], "not all the time");
        assert_eq!(blocks(&memory), before);
        closed.is_over(1);
        assert_eq!(ticks(&mut closed), [[3, 3]]);
        assert_eq!(blocks(&memory), 0);
    }

    #[test]
    fn who_is_never_told_of_an_end_waits_for_a_time() {
        let mut closed = Closed::default();
        closed.insert(1, [3, 3], full(), Some(Far::of(5)));
        ago(&mut closed, 1, UNTOLD);
        assert_eq!(ticks(&mut closed), [[3, 3]]);
    }

    #[test]
    fn who_holds_that_up_keeps_what_is_its_own_and_nobody_elses() {
        let mut closed = Closed::default();
        let mut ends = Vec::new();
        for slot in 0..ROUNDS as u32 {
            let (round, end) = Round::silent([slot, slot], Duration::from_secs(2));
            closed.rounds.push(round);
            ends.push(end);
        }
        closed.insert(1, [0, 0], full(), None);
        closed.insert(2, [90, 91], full(), None);
        assert_eq!(closed.tick(), [[0; 2]; 0]);
        for began in [1, 2] {
            ago(&mut closed, began, PATIENCE);
        }
        assert_eq!(closed.tick(), [[90, 91]]);
        assert_eq!(closed.len(), 1);
    }
}
