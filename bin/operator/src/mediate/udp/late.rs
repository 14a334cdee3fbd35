//! Sockets that are still to be linked, in the order of their coming, each endpoint's in its turn: to
//! take one from a program may take as long as that likes, and a program may have many.

use circuit::Endpoint;
use guard::guard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Where an endpoint's took longer a rest follows, so many times as long and this long at most.
const LONG: Duration = Duration::from_millis(5);
const TIMES: u32 = 9;
const REST: Duration = Duration::from_secs(5);

/// Those of all endpoints.
#[derive(Default)]
pub(in crate::mediate) struct Late {
    of: BTreeMap<u32, VecDeque<Wanted>>,
    known: BTreeSet<(u64, u32)>,
    /// Those that are gone through, and whether once more from the first on.
    passes: BTreeMap<(u32, Endpoint, u32), bool>,
    rests: BTreeMap<u32, Instant>,
    /// Whose turn was last.
    last: u32,
}

/// What is to be linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mediate) enum Wanted {
    /// A socket, and the slot that it is to be linked to.
    One(u64, u32),
    /// All that are connected to a place, one after the other: that they are many costs nobody who has them come up.
    All(All),
}

/// All of an endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mediate) struct All {
    /// Where they are connected.
    pub(in crate::mediate) to: Endpoint,
    /// Whose that is.
    pub(in crate::mediate) slot: u32,
    /// From where in the table on.
    pub(in crate::mediate) next: u32,
}

impl Late {
    /// An endpoint's, once.
    pub(in crate::mediate) fn insert(&mut self, owner: u32, (cookie, slot): (u64, u32)) {
        if self.known.insert((cookie, slot)) {
            let wanted = Wanted::One(cookie, slot);
            self.of.entry(owner).or_default().push_back(wanted);
        }
    }

    /// All of an endpoint's that are connected to a slot's place. Where they are gone through already, those that were
    /// passed are once more.
    pub(in crate::mediate) fn insert_all(&mut self, owner: u32, (to, slot): (Endpoint, u32)) {
        let goes_on = self.passes.contains_key(&(owner, to, slot));
        self.passes.insert((owner, to, slot), goes_on);
        if !goes_on {
            let wanted = Wanted::All(All { to, slot, next: 0 });
            self.of.entry(owner).or_default().push_back(wanted);
        }
    }

    /// Of these the one there was looked at, or there is no more. The next comes behind what its endpoint has besides.
    pub(in crate::mediate) fn passed(&mut self, owner: u32, all: All, at: Option<u32>) {
        let pass = (owner, all.to, all.slot);
        let next = match at {
            Some(at) => Some(at.saturating_add(1)),
            None if self.passes.remove(&pass) == Some(true) => {
                self.passes.insert(pass, false);
                Some(0)
            }
            None => None,
        };
        if let Some(next) = next {
            let wanted = Wanted::All(All { next, ..all });
            self.of.entry(owner).or_default().push_back(wanted);
        }
    }

    /// The next, of whose turn it is.
    pub(in crate::mediate) fn next(&mut self, now: Instant) -> Option<(u32, Wanted)> {
        self.rests.retain(|_, until| *until > now);
        let after = self.of.range(self.last.saturating_add(1)..);
        let mut all = after.chain(self.of.range(..=self.last)).map(|(of, _)| *of);
        let owner = all.find(|owner| !self.rests.contains_key(owner))?;
        let queue = self.of.get_mut(&owner)?;
        let wanted = queue.pop_front()?;
        if queue.is_empty() {
            self.of.remove(&owner);
        }
        if let Wanted::One(cookie, slot) = wanted {
            self.known.remove(&(cookie, slot));
        }
        self.last = owner;
        Some((owner, wanted))
    }

    /// An endpoint's took so long just now.
    pub(in crate::mediate) fn took(&mut self, owner: u32, time: Duration, now: Instant) {
        if time > LONG && guard!("circuits-late-rests") {
            self.rests.insert(owner, now + (TIMES * time).min(REST));
        }
    }

    /// An endpoint is gone, and another may have its place.
    pub(in crate::mediate) fn closes(&mut self, owner: u32) {
        self.rests.remove(&owner);
    }

    /// When there is one whose turn it may be; `None`: there is none at all.
    pub(in crate::mediate) fn due(&self, now: Instant) -> Option<Instant> {
        let due = |owner: &u32| self.rests.get(owner).copied().unwrap_or(now);
        self.of.keys().map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_its_turn_and_a_rest_after_what_took_long() {
        let (mut late, now) = (Late::default(), Instant::now());
        for cookie in 0..2000 {
            late.insert(7, (cookie, 1));
            late.insert(7, (cookie, 1));
        }
        late.insert(9, (5000, 1));
        let one = |owner, cookie| (owner, Wanted::One(cookie, 1));
        let all: Vec<_> = (0..3).filter_map(|_| late.next(now)).collect();
        assert_eq!(all, [one(7, 0), one(9, 5000), one(7, 1)]);
        // Who comes again comes behind the others.
        late.insert(7, (0, 1));
        late.took(7, LONG, now);
        assert_eq!(late.due(now), Some(now));
        let long = Duration::from_millis(400);
        late.took(7, long, now);
        assert_eq!(late.due(now), Some(now + TIMES * long));
        assert_eq!(late.next(now), None);
        late.insert(9, (5001, 1));
        assert_eq!(late.due(now), Some(now));
        assert_eq!(late.next(now), Some(one(9, 5001)));
        let then = now + TIMES * long;
        let rest: Vec<_> = std::iter::from_fn(|| late.next(then)).collect();
        assert_eq!((rest.len(), rest.last()), (1999, Some(&one(7, 0))));
        assert_eq!(late.due(then), None);
    }
    /// Who binds a port where many are connected has them come up one by one, and once more where it does so again meanwhile.
    #[test]
    fn all_that_are_connected_to_a_place_are_one_until_their_turn() {
        let (mut late, now) = (Late::default(), Instant::now());
        let to = Endpoint {
            ip: [7; 16],
            port: 53,
        };
        for _ in 0..3 {
            late.insert_all(7, (to, 1));
        }
        late.insert(7, (5000, 1));
        assert_eq!(late.of.values().map(VecDeque::len).sum::<usize>(), 2);
        let mut seen = Vec::new();
        // Three are connected there.
        while let Some((owner, wanted)) = late.next(now) {
            match wanted {
                Wanted::One(cookie, _) => seen.push(cookie),
                Wanted::All(all) => {
                    let at = (all.next < 3).then_some(all.next);
                    seen.extend(at.map(u64::from));
                    late.passed(owner, all, at);
                }
            }
            assert!(seen.len() < 9);
        }
        assert_eq!(seen, [0, 5000, 1, 2, 0, 1, 2]);
        assert!(late.passes.is_empty());
    }
}
