//! Who is to be served, one endpoint after another: how many circuits somebody has begun is no share of
//! others' time.

use guard::guard;
use std::collections::{BTreeMap, VecDeque};

/// One direction of one circuit, by its number.
pub type Line = (u64, usize);

/// Lines in their order, by the slot of who began their circuits, and so made them as many as they are.
#[derive(Default)]
pub struct Lines {
    by_slot: BTreeMap<u32, VecDeque<Line>>,
    /// Slots that have some, in the order of their turns.
    turns: VecDeque<u32>,
}

impl Lines {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// One more.
    pub fn push(&mut self, slot: u32, line: Line) {
        // Where turns are by circuits, all are of one.
        let slot = if guard!("meter-turns") { slot } else { 0 };
        let of = self.by_slot.entry(slot).or_default();
        if of.is_empty() {
            self.turns.push_back(slot);
        }
        of.push_back(line);
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<Line> {
        self.pop_of(|_| true).map(|(_, line)| line)
    }

    /// The next one of those slots that may have a turn, and whose it is. Bound: slots.
    pub fn pop_of(&mut self, may: impl Fn(u32) -> bool) -> Option<(u32, Line)> {
        let at = self.turns.iter().position(|slot| may(*slot))?;
        let slot = self.turns.remove(at)?;
        let of = self.by_slot.get_mut(&slot)?;
        let line = of.pop_front()?;
        match of.is_empty() {
            true => drop(self.by_slot.remove(&slot)),
            false => self.turns.push_back(slot),
        }
        Some((slot, line))
    }

    /// Whether one of those slots has some.
    pub fn has_of(&self, may: impl Fn(u32) -> bool) -> bool {
        self.turns.iter().any(|slot| may(*slot))
    }

    /// A circuit is over: none of it is left. Bound: the lines there are.
    pub fn forget(&mut self, number: u64) {
        let of = |lines: &mut VecDeque<Line>| lines.retain(|(of, _)| *of != number);
        self.by_slot.values_mut().for_each(of);
        self.by_slot.retain(|_, lines| !lines.is_empty());
        self.turns.retain(|slot| self.by_slot.contains_key(slot));
    }

    /// All of them, and none is left.
    pub fn take(&mut self) -> Vec<Line> {
        let all = std::mem::take(self).by_slot.into_values();
        all.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_their_turns_and_each_ones_lines_theirs() {
        let mut all = Lines::default();
        for number in 0..4 {
            all.push(1, (number, 0));
        }
        all.push(2, (8, 0));
        all.push(2, (9, 1));
        all.forget(1);
        let order: Vec<u64> = std::iter::from_fn(|| all.pop()).map(|it| it.0).collect();
        assert_eq!(order, [0, 8, 2, 9, 3]);
        assert!(all.is_empty());
        all.push(3, (7, 0));
        all.forget(7);
        assert!(all.is_empty() && all.pop().is_none());
        all.push(3, (7, 1));
        assert_eq!((all.take(), all.is_empty()), (vec![(7, 1)], true));
    }
}
