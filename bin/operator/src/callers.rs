//! Threads that have called, by endpoint: where sockets are looked for that are not where they
//! were seen.

use std::collections::{BTreeMap, VecDeque};

/// So many of an endpoint, those that called last.
const MOST: usize = 64;

/// All of them.
#[derive(Default)]
pub struct Callers(BTreeMap<u32, VecDeque<u32>>);

impl Callers {
    /// A thread of an endpoint's programs calls.
    pub fn calls(&mut self, slot: u32, thread: u32) {
        let all = self.0.entry(slot).or_default();
        // The same calls again, mostly.
        if all.back() == Some(&thread) {
            return;
        }
        all.retain(|it| *it != thread);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(thread);
    }

    /// Those of an endpoint, the last first.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = u32> {
        self.0.get(&slot).into_iter().flatten().rev().copied()
    }

    /// The endpoint is gone.
    pub fn forget(&mut self, slot: u32) {
        self.0.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_each_endpoint_are_known_once() {
        let mut callers = Callers::default();
        for thread in [1, 2, 1, 1, 3] {
            callers.calls(7, thread);
        }
        callers.calls(8, 9);
        assert_eq!(callers.of(7).collect::<Vec<_>>(), [3, 1, 2]);
        for thread in 100..300 {
            callers.calls(7, thread);
        }
        let all: Vec<u32> = callers.of(7).collect();
        assert_eq!((all.len(), all[0], all[63]), (MOST, 299, 236));
        assert_eq!(callers.of(8).collect::<Vec<_>>(), [9]);
        callers.forget(7);
        assert_eq!(callers.of(7).count(), 0);
    }
}
