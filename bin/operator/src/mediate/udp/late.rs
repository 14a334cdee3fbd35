//! Sockets that are still to be linked, in the order of their coming, each endpoint's in its turn: to
//! take one from a program may take as long as that likes, and a program may have many.

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
    known: BTreeSet<Wanted>,
    rests: BTreeMap<u32, Instant>,
    /// Whose turn was last.
    last: u32,
}

/// A socket, and the slot that it is to be linked to.
pub(in crate::mediate) type Wanted = (u64, u32);

impl Late {
    /// An endpoint's, once.
    pub(in crate::mediate) fn insert(&mut self, owner: u32, wanted: Wanted) {
        if self.known.insert(wanted) {
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
        self.known.remove(&wanted);
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
        let all: Vec<_> = (0..3).filter_map(|_| late.next(now)).collect();
        assert_eq!(all, [(7, (0, 1)), (9, (5000, 1)), (7, (1, 1))]);
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
        assert_eq!(late.next(now), Some((9, (5001, 1))));
        let then = now + TIMES * long;
        let rest: Vec<_> = std::iter::from_fn(|| late.next(then)).collect();
        assert_eq!((rest.len(), rest.last()), (1999, Some(&(7, (0, 1)))));
        assert_eq!(late.due(then), None);
    }
}
