//! Who is to be served, one endpoint after another: how many circuits somebody has begun is no share of
//! others' time.

use guard::guard;
use std::collections::{BTreeMap, VecDeque};

/// One direction of one circuit, by its number.
pub type Line = (u64, usize);

/// Lines in their order, by the slot of who began their circuits, and so made them as many as they are.
#[derive(Default)]
pub struct Lines {
    by_slot: BTreeMap<u32, VecDeque<(Line, u64)>>,
    /// Slots that have some, in the order of their turns.
    turns: VecDeque<u32>,
    /// What is left of turns that are not over, by whose they are. Bound: slots.
    left: BTreeMap<u32, u64>,
}

impl Lines {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// One more, that takes so much of a turn.
    pub fn push(&mut self, slot: u32, line: Line, wants: u64) {
        // Where turns are by circuits, all are of one.
        let slot = if guard!("meter-turns") { slot } else { 0 };
        let of = self.by_slot.entry(slot).or_default();
        if of.is_empty() {
            // In the midst of its turn it had none for a moment.
            match self.left.contains_key(&slot) {
                true => self.turns.push_front(slot),
                false => self.turns.push_back(slot),
            }
        }
        of.push_back((line, wants));
    }

    /// The next one, another slot's each time.
    pub fn pop(&mut self) -> Option<Line> {
        self.pop_of(0, |_| true).map(|(_, line, _)| line)
    }

    /// The next one of those slots that may have a turn, whose it is and what it gets: what it wants, or what is left of its
    /// slot's turn, which is so much. Bound: slots.
    pub fn pop_of(&mut self, turn: u64, may: impl Fn(u32) -> bool) -> Option<(u32, Line, u64)> {
        let at = self.turns.iter().position(|slot| may(*slot))?;
        let slot = self.turns.remove(at)?;
        let of = self.by_slot.get_mut(&slot)?;
        let (line, wants) = of.pop_front()?;
        let left = self.left.remove(&slot).unwrap_or(turn).min(turn);
        let gets = wants.min(left);
        let is_over = gets == left || !guard!("meter-whole-turns");
        if !is_over {
            self.left.insert(slot, left - gets);
        }
        match (of.is_empty(), is_over) {
            (true, _) => drop(self.by_slot.remove(&slot)),
            (false, true) => self.turns.push_back(slot),
            (false, false) => self.turns.push_front(slot),
        }
        Some((slot, line, gets))
    }

    /// Whether one of those slots has some.
    pub fn has_of(&self, may: impl Fn(u32) -> bool) -> bool {
        self.turns.iter().any(|slot| may(*slot))
    }

    /// A circuit is over: none of it is left. Bound: the lines there are.
    pub fn forget(&mut self, number: u64) {
        let of = |lines: &mut VecDeque<(Line, u64)>| lines.retain(|((of, _), _)| *of != number);
        self.by_slot.values_mut().for_each(of);
        self.by_slot.retain(|_, lines| !lines.is_empty());
        self.turns.retain(|slot| self.by_slot.contains_key(slot));
    }

    /// All of them, and none is left.
    pub fn take(&mut self) -> Vec<Line> {
        let all = std::mem::take(self).by_slot.into_values();
        all.flatten().map(|(line, _)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_their_turns_and_each_ones_lines_theirs() {
        let mut all = Lines::default();
        for number in 0..4 {
            all.push(1, (number, 0), 1);
        }
        all.push(2, (8, 0), 1);
        all.push(2, (9, 1), 1);
        all.forget(1);
        let order: Vec<u64> = std::iter::from_fn(|| all.pop()).map(|it| it.0).collect();
        assert_eq!(order, [0, 8, 2, 9, 3]);
        assert!(all.is_empty());
        all.push(3, (7, 0), 1);
        all.forget(7);
        assert!(all.is_empty() && all.pop().is_none());
        all.push(3, (7, 1), 1);
        assert_eq!((all.take(), all.is_empty()), (vec![(7, 1)], true));
    }

    #[test]
    fn a_turn_is_as_much_whoever_has_many_small_ones_or_none_for_a_moment() {
        let mut all = Lines::default();
        let mut had = [0; 3];
        // The first has one line of little, the second one of more than a turn; the third one asks for all but a byte.
        for (slot, wants) in [(0, 3), (1, 50), (2, 9)] {
            all.push(slot, (slot.into(), 0), wants);
        }
        for _ in 0..300 {
            let (slot, line, gets) = all.pop_of(10, |_| true).unwrap();
            had[slot as usize] += gets;
            all.push(slot, line, [3, 50, 9][slot as usize]);
        }
        let [most, least] = [had.iter().max().unwrap(), had.iter().min().unwrap()];
        assert!(most - least <= 10, "{had:?}");
    }
}
