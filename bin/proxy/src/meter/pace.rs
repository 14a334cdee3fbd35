//! A rate that several circuits share: who finds it used up waits in line, and each has its
//! turn for as many bytes.

use super::lines::{Line, Lines};
use guard::guard;
use image::compartment::Rate;
use std::collections::BTreeMap;
use switch::{Meter, Nanos};

/// Bytes of a turn at most, and at least.
pub const TURN: u64 = 64 << 10;
const LEAST: u64 = 1500;

/// A rate, and who waits for it.
pub struct Pace {
    rate: Rate,
    meter: Meter,
    waits: Lines,
    /// Bytes of turns that are charged and not used, by who began the circuits that have them.
    kept: BTreeMap<u32, u64>,
}

impl Pace {
    /// A full one: bytes a second, and at once.
    pub fn new(bytes: u64, burst: u64, now: Nanos) -> Pace {
        let rate = Rate {
            bytes,
            burst,
            packets: 0,
        };
        Pace {
            rate,
            meter: Meter::full(now, &rate),
            waits: Lines::default(),
            kept: BTreeMap::new(),
        }
    }

    /// Another rate, from now on. Nobody has a turn of it.
    pub fn change(&mut self, bytes: u64, burst: u64) {
        (self.rate.bytes, self.rate.burst) = (bytes, burst);
        self.kept.clear();
        if guard!("meter-change") {
            self.meter.change(&self.rate, self.turn());
        }
    }

    /// Bytes a second, and at once.
    pub fn rate(&self) -> (u64, u64) {
        (self.rate.bytes, self.rate.burst)
    }

    /// Who waits, who waits no more.
    pub fn dissolve(&mut self) -> Vec<Line> {
        self.waits.take()
    }

    /// A circuit is over: it waits no more. Bound: the circuits that are.
    pub fn forget(&mut self, number: u64) {
        self.waits.forget(number);
    }

    /// Asks for a turn, for a circuit that this slot began and that could use so much: its bytes, which are
    /// charged. `None`: it waits for them from now on. While nobody waits a turn is as much as there is: who waits for
    /// another rate each time would make little of small ones.
    pub fn ask(&mut self, slot: u32, line: Line, wants: u64, now: Nanos) -> Option<u64> {
        if self.may(slot) && !self.is_awaited() && self.meter.is_free(now, &self.rate) {
            let kept = self.kept.get(&slot).copied().unwrap_or_default();
            let held = u64::try_from(self.meter.held().0).unwrap_or_default();
            let all = held.min(TURN).min(self.most().saturating_sub(kept));
            let all = if guard!("meter-all-there-is") { all } else { 0 };
            return Some(self.grant(slot, wants.min(all.max(self.turn()))));
        }
        self.waits.push(slot, line, wants);
        None
    }

    /// Whose turn it is now, with its bytes.
    pub fn next(&mut self, now: Nanos) -> Option<(Line, u64)> {
        if !self.is_awaited() {
            return None;
        }
        self.meter.late(now, &self.rate);
        if !self.meter.is_free(now, &self.rate) {
            return None;
        }
        let (kept, most) = (&self.kept, self.most());
        let may = |slot| may(kept, most, slot);
        let (slot, line, gets) = self.waits.pop_of(self.turn(), may)?;
        Some((line, self.grant(slot, gets)))
    }

    /// Whether somebody waits who may have a turn.
    fn is_awaited(&self) -> bool {
        self.waits.has_of(|slot| self.may(slot))
    }

    /// Whether circuits that this slot began may have another turn: of those that keep theirs, waiting for another
    /// rate's, a burst is as much as may come at once.
    fn may(&self, slot: u32) -> bool {
        may(&self.kept, self.most(), slot)
    }

    fn most(&self) -> u64 {
        switch::byte_burst(&self.rate)
    }

    fn grant(&mut self, slot: u32, turn: u64) -> u64 {
        self.meter.charge(&self.rate, turn, 0);
        *self.kept.entry(slot).or_default() += turn;
        turn
    }

    /// A millisecond's worth, always as much for who has waited, into debt where not so much is there: who gets what
    /// is left would get less than others whenever they meet in the same order. Less for whom another rate's turn
    /// leaves no more.
    fn turn(&self) -> u64 {
        (self.rate.bytes / 1000).clamp(LEAST, TURN)
    }

    /// So much of what was charged for this slot's is used.
    pub fn used(&mut self, slot: u32, bytes: u64) {
        if let Some(kept) = self.kept.get_mut(&slot) {
            *kept = kept.saturating_sub(bytes);
            if *kept == 0 {
                self.kept.remove(&slot);
            }
        }
    }

    /// Gives back what was charged for this slot's and not used.
    pub fn refund(&mut self, slot: u32, bytes: u64) {
        self.meter.refund(&self.rate, bytes);
        self.used(slot, bytes);
    }

    /// When somebody who waits has a turn, ns; `None`: nobody who may waits.
    pub fn due(&self) -> Option<Nanos> {
        self.is_awaited().then(|| self.meter.free_at(&self.rate))
    }

    /// Whether somebody waits.
    pub fn is_waited_for(&self) -> bool {
        !self.waits.is_empty()
    }
}

fn may(kept: &BTreeMap<u32, u64>, most: u64, slot: u32) -> bool {
    let kept = kept.get(&slot).copied().unwrap_or_default();
    kept < most || !guard!("meter-kept")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SECOND: u64 = 1_000_000_000;

    /// Until a line of this slot, of the same number, waits.
    fn uses_up(pace: &mut Pace, slot: u32) {
        while let Some(turn) = pace.ask(slot, (slot.into(), 0), TURN, 0) {
            pace.used(slot, turn);
        }
    }

    /// Lines that always have something to move; what each moved in so long.
    fn run(pace: &mut Pace, lines: &[Line], until: Nanos) -> Vec<u64> {
        let mut moved = vec![0; lines.len()];
        let mut now = 0;
        let mut granted: VecDeque<(Line, u64)> = VecDeque::new();
        for line in lines {
            granted.extend(pace.ask(1, *line, TURN, now).map(|turn| (*line, turn)));
        }
        while now < until {
            while let Some((line, turn)) = granted.pop_front().or_else(|| pace.next(now)) {
                moved[line.0 as usize] += turn;
                pace.used(1, turn);
                granted.extend(pace.ask(1, line, TURN, now).map(|turn| (line, turn)));
            }
            // As late as a busy machine is.
            now = pace.due().unwrap() + now % 7 * 300_000;
        }
        moved
    }

    #[test]
    fn a_rate_is_held_and_shared_alike() {
        for bytes in [12_500, 12_500_000, 1_250_000_000] {
            let mut pace = Pace::new(bytes, 128 << 10, 0);
            let lines = [(0, 0), (1, 1), (2, 0)];
            let moved = run(&mut pace, &lines, 10 * SECOND);
            let all: u64 = moved.iter().sum();
            let slack = (128 << 10) + bytes / 50 + LEAST;
            assert!(all.abs_diff(10 * bytes) <= slack, "{bytes}: {all}");
            let (least, most) = (moved.iter().min().unwrap(), moved.iter().max().unwrap());
            assert!(most - least <= 4 * TURN + all / 20, "{bytes}: {moved:?}");
        }
    }

    #[test]
    fn who_gives_back_takes_nothing_from_others() {
        let mut pace = Pace::new(1_000_000, 128 << 10, 0);
        // A thousand short ones, each a turn of which a byte is used.
        for n in 0..1000 {
            let turn = pace.ask(1, (n, 0), TURN, 0).unwrap();
            pace.refund(1, turn - 1);
            pace.used(1, 1);
        }
        assert_eq!(pace.due(), None);
        assert_eq!(pace.meter.held().0, (128 << 10) - 1000);
    }

    #[test]
    fn what_is_given_back_is_a_burst_and_no_more() {
        let mut pace = Pace::new(1_000_000, 128 << 10, 0);
        let mut kept = Vec::new();
        // A minute of turns that nobody uses.
        for n in 0..60_000 {
            let now = n * 1_000_000;
            let slot = n as u32;
            kept.extend(pace.ask(slot, (n, 0), TURN, now).map(|turn| (slot, turn)));
            let next = std::iter::from_fn(|| pace.next(now));
            kept.extend(next.map(|((number, _), turn)| (number as u32, turn)));
        }
        assert!(kept.len() > 30_000, "{}", kept.len());
        for (slot, turn) in kept {
            pace.refund(slot, turn);
        }
        assert_eq!(pace.meter.held().0, 128 << 10);
    }

    /// As where it waits for another rate's turn.
    #[test]
    fn who_uses_no_turn_keeps_a_burst_of_them_at_most() {
        let mut pace = Pace::new(125_000, 128 << 10, 0);
        let (mut now, mut moved) = (0, 0);
        for number in 0..1000 {
            let _ = pace.ask(1, (number, 0), TURN, 0);
        }
        let asks = |pace: &mut Pace, now| pace.ask(2, (5000, 0), TURN, now).is_none();
        let mut waits = asks(&mut pace, 0);
        while now < 10 * SECOND {
            if !waits {
                waits = asks(&mut pace, now);
            }
            while let Some(((number, _), turn)) = pace.next(now) {
                if number == 5000 {
                    moved += turn;
                    pace.used(2, turn);
                    waits = asks(&mut pace, now);
                }
            }
            now = pace.due().unwrap().max(now + 100_000);
        }
        assert!(moved > 10 * 125_000 - (150 << 10), "{moved}");
    }

    #[test]
    fn what_is_held_or_owed_of_a_rate_is_not_another_ones() {
        let mut pace = Pace::new(12_500_000_000, 128 << 10, 0);
        pace.change(1000, 0);
        assert!(pace.meter.held().0 <= 5_000, "{:?}", pace.meter.held());
        let mut pace = Pace::new(12_500_000_000, 1, 0);
        uses_up(&mut pace, 1);
        pace.change(1000, 0);
        assert!(pace.due().unwrap() <= 2 * SECOND, "{:?}", pace.due());
    }

    #[test]
    fn who_has_many_circuits_has_no_more_turns_than_who_has_one() {
        let mut pace = Pace::new(10_000_000, 1, 0);
        uses_up(&mut pace, 7);
        let mut now = 0;
        let asks = |pace: &mut Pace, line: Line, now| {
            let turn = pace.ask(u32::from(line.0 == 0), line, TURN, now);
            assert_eq!(turn, None, "others wait");
        };
        for number in 0..100 {
            asks(&mut pace, (number, 0), 0);
        }
        let mut granted = [0_u64; 2];
        while now < SECOND {
            while let Some((line, turn)) = pace.next(now) {
                pace.used(u32::from(line.0 == 0), turn);
                granted[usize::from(line.0 == 0)] += turn;
                asks(&mut pace, line, now);
            }
            now = pace.due().unwrap().max(now + 100_000);
        }
        let [many, one] = granted;
        assert!(many.abs_diff(one) <= (many + one) / 10, "{granted:?}");
    }

    #[test]
    fn who_waits_is_before_who_comes() {
        let mut pace = Pace::new(1_000_000, 1, 0);
        uses_up(&mut pace, 1);
        assert!(!pace.waits.is_empty());
        let later = pace.due().unwrap();
        assert_eq!(
            pace.ask(1, (2, 0), TURN, later),
            None,
            "the first one waits"
        );
        assert_eq!(pace.next(later).map(|(line, _)| line), Some((1, 0)));
        assert_eq!(
            pace.next(later + SECOND).map(|(line, _)| line),
            Some((2, 0))
        );
    }
}
