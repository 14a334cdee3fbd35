//! Memory of circuits that are closed at both ends. A program may have it mapped for as long as it likes, and whoever touched
//! its pages first is charged for them; so they are taken back, by a copy of this process as all that touches
//! such memory (`giving`). Until then the circuit counts as one.

use super::{LOOKS, SELDOM, SOON};
use crate::giving::{Came, Round};
use guard::guard;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Rounds at a time, each of other endpoints.
const ROUNDS: usize = 8;
/// Of so many circuits.
const AT_ONCE: usize = 128;
/// It is a few microseconds for each: after so long it is asked what came of it.
const TAKES: Duration = Duration::from_millis(10);
/// Ends that are asked of at once, and one that lives after twice the time each time up to this.
const ASKED: usize = 16;
const SELDOMER: Duration = Duration::from_secs(64);
/// What other endpoints' rounds leave no room for is given up after so long: a tenant that has those wait is not to have
/// others go without rings.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long it is waited to be told which end the other tenant's program has. Then nothing is taken: that
/// one may have it, and read.
const UNTOLD: Duration = Duration::from_secs(2);

/// An end of a circuit across an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Of the socket, where it was made.
    pub inode: u32,
    pub cookie: u64,
}

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Across {
    /// The agreement's tag here.
    pub tag: u16,
    /// What both sides call it.
    pub id: u64,
    /// It was begun here, and both sockets were made here.
    pub is_here: bool,
    /// Else the place that they were made in, once this end has the memory; none: nobody tells of it.
    pub place: Option<u64>,
    /// The end here, and the other's: of which each program has the memory.
    pub ends: [Option<End>; 2],
}

struct One {
    memory: OwnedFd,
    /// The lower first.
    slots: [u32; 2],
    /// None: both ends are closed.
    across: Option<Across>,
    /// Since when it is waited for what is waited for.
    since: Instant,
    /// Nothing is done with it before, and so long later the next time.
    not_before: Instant,
    wait: Duration,
    is_begun: bool,
}

impl One {
    fn is_ready(&self, now: Instant) -> bool {
        !self.is_begun && self.not_before <= now && self.across.is_none()
    }
    /// It is not known which end the other has.
    fn is_untold(&self) -> bool {
        self.across.is_some_and(|it| it.ends[1].is_none())
    }
}

/// All of a compartment.
#[derive(Default)]
pub struct Closed {
    /// By the cookie of the socket that began the connection; across an agreement, of the one here.
    all: BTreeMap<u64, One>,
    rounds: Vec<Round>,
    /// When they are looked through again.
    next: Option<Instant>,
    /// No ends are asked of before.
    asks_after: Option<Instant>,
}

impl Closed {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// One more; nothing is done with it for so long.
    pub fn insert(
        &mut self,
        began: u64,
        (slots, memory): ([u32; 2], OwnedFd),
        across: Option<Across>,
        rests: Duration,
    ) {
        let now = Instant::now();
        let one = One {
            memory,
            slots,
            across,
            since: now,
            not_before: now + rests,
            wait: SELDOM,
            is_begun: false,
        };
        self.all.insert(began, one);
        self.next = Some(now);
    }

    /// The other's end of one is told.
    pub fn is_told(&mut self, (tag, id): (u16, u64), end: End) -> bool {
        let of = self.all.values_mut().filter_map(|one| one.across.as_mut());
        let is_it = |it: &&mut Across| (it.tag, it.id) == (tag, id);
        let of = of.filter(|it| it.ends[1].is_none()).find(is_it);
        self.next = Some(Instant::now());
        of.map(|it| it.ends[1] = Some(end)).is_some()
    }

    /// The agreements whose other side's ends it is asked for.
    pub fn tags(&self) -> impl Iterator<Item = u16> {
        self.all.values().filter_map(|one| Some(one.across?.tag))
    }

    /// Circuits of which it is to be asked now whether an end lives, some at a time.
    pub fn asks(&mut self) -> Vec<(u64, Across)> {
        let now = Instant::now();
        if self.asks_after.is_some_and(|after| now < after) {
            return Vec::new();
        }
        let of = self.all.iter_mut().filter(|(_, one)| one.not_before <= now);
        let known = of.filter(|(_, one)| !one.is_untold());
        let known = known.filter_map(|(own, one)| {
            let across = one.across?;
            one.not_before = now + one.wait;
            one.wait = SELDOMER.min(one.wait * 2);
            Some((*own, across))
        });
        known.take(ASKED).collect()
    }

    /// That took so long: for a tenth of the time.
    pub fn asked(&mut self, took: Duration) {
        self.asks_after = Some(Instant::now() + 10 * took);
    }

    /// Both ends are closed.
    pub fn is_over(&mut self, own: u64) {
        if let Some(one) = self.all.get_mut(&own) {
            let now = Instant::now();
            (one.across, one.since, one.not_before) = (None, now, now);
            self.next = Some(now);
        }
    }

    /// Nobody tells whether they are; the slots.
    pub fn gives_up(&mut self, own: u64) -> Option<[u32; 2]> {
        self.all.remove(&own).map(|one| one.slots)
    }

    /// Has memory taken back; the slots of those of which it was, or will not be.
    pub fn tick(&mut self) -> Vec<[u32; 2]> {
        let mut over = self.hear();
        let now = Instant::now();
        if self.next.is_none_or(|next| next > now) {
            return over;
        }
        let mut ready = BTreeMap::<[u32; 2], Vec<u64>>::new();
        let is_late = |one: &One| one.is_untold() && one.since + UNTOLD <= now;
        let late = self.all.extract_if(.., |_, one| is_late(one));
        over.extend(late.map(|(_, one)| one.slots));
        for (began, one) in self.all.iter().filter(|(_, one)| one.is_ready(now)) {
            ready.entry(one.slots).or_default().push(*began);
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
        self.next = self.looks_next(now);
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
            self.next = Some(Instant::now());
            match came {
                Came::Over => over.extend(self.all.remove(&began).map(|one| one.slots)),
                // Killed, or refused: once more.
                _ => {
                    if let Some(one) = self.all.get_mut(&began) {
                        (one.is_begun, one.not_before) = (false, Instant::now() + LOOKS);
                    }
                }
            }
        }
        over
    }

    /// Not soon again, where some program has a round wait: each time is a wake-up.
    fn soon(&self, now: Instant, soon: Duration) -> Instant {
        match self.rounds.iter().any(Round::is_late) {
            true => now + LOOKS,
            false => now + soon,
        }
    }

    fn looks_next(&self, now: Instant) -> Option<Instant> {
        let waits = self.all.values().filter(|one| !one.is_begun);
        let waits = waits.map(|one| match one.is_untold() {
            true => one.since + UNTOLD,
            false => one.not_before,
        });
        Some(waits.min()?.max(self.soon(now, SOON)))
    }

    /// When there is something to be done.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let heard = self.rounds.first().map(|_| self.soon(now, TAKES));
        heard.into_iter().chain(self.next).min()
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

    fn closes(closed: &mut Closed, began: u64, of: ([u32; 2], OwnedFd), across: Option<Across>) {
        closed.insert(began, of, across, Duration::ZERO);
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
        closed.next = Some(Instant::now());
    }

    const OWN: End = End {
        inode: 3,
        cookie: 1,
    };
    const OTHER: End = End {
        inode: 6,
        cookie: 7,
    };
    const ACROSS: Across = Across {
        tag: 5,
        id: 50,
        is_here: true,
        place: None,
        ends: [Some(OWN), None],
    };

    #[test]
    fn memory_of_what_is_closed_is_taken_back_whoever_has_it_mapped() {
        let mut closed = Closed::default();
        let memory: Vec<OwnedFd> = (0..40).map(|_| full()).collect();
        for (began, memory) in (0..).zip(&memory) {
            closes(
                &mut closed,
                began,
                ([1, 2], memory.try_clone().unwrap()),
                None,
            );
        }
        assert_eq!(ticks(&mut closed), [[1, 2]; 40]);
        assert_eq!(memory.iter().map(blocks).sum::<i64>(), 0);
        closed.tick();
        assert_eq!((closed.len(), closed.due(Instant::now())), (0, None));
    }

    #[test]
    fn across_an_agreement_it_is_what_either_end_may_still_read() {
        let mut closed = Closed::default();
        let memory = full();
        let before = blocks(&memory);
        let of = ([3, 3], memory.try_clone().unwrap());
        closes(&mut closed, 1, of, Some(ACROSS));
        // Which end the other has was not told yet.
        assert_eq!((ticks(&mut closed), closed.asks()), (vec![], vec![]));
        assert!(!closed.is_told((5, 51), OTHER) && !closed.is_told((6, 50), OTHER));
        assert!(closed.is_told((5, 50), OTHER) && !closed.is_told((5, 50), OWN));
        ago(&mut closed, 1, 2 * UNTOLD);
        let ends = [Some(OWN), Some(OTHER)];
        let asked = Across { ends, ..ACROSS };
        assert_eq!(
            (ticks(&mut closed), closed.asks()),
            (vec![], vec![(1, asked)])
        );
        assert_eq!(closed.asks(), vec![], "not all the time");
        closed.all.get_mut(&1).unwrap().not_before = Instant::now();
        closed.asked(Duration::from_secs(1));
        assert_eq!(closed.asks(), vec![], "a tenth of it");
        assert_eq!(blocks(&memory), before);
        closed.is_over(1);
        assert_eq!(ticks(&mut closed), [[3, 3]]);
        assert_eq!(blocks(&memory), 0);
    }

    #[test]
    fn of_who_is_never_told_of_an_end_nothing_is_taken() {
        let mut closed = Closed::default();
        let memory = full();
        let before = blocks(&memory);
        let of = ([3, 3], memory.try_clone().unwrap());
        closes(&mut closed, 1, of, Some(ACROSS));
        ago(&mut closed, 1, UNTOLD);
        assert_eq!(ticks(&mut closed), [[3, 3]]);
        assert_eq!((closed.len(), blocks(&memory)), (0, before));
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
        closes(&mut closed, 1, ([0, 0], full()), None);
        closes(&mut closed, 2, ([90, 91], full()), None);
        assert_eq!(closed.tick(), [[0; 2]; 0]);
        // Not soon again, for that is a wake-up each time.
        let now = Instant::now();
        assert!(closed.due(now).is_some_and(|at| at > now + LOOKS / 2));
        for began in [1, 2] {
            ago(&mut closed, began, PATIENCE);
        }
        assert_eq!(closed.tick(), [[90, 91]]);
        assert_eq!(closed.len(), 1);
    }
}
