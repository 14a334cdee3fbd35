//! A rate that several circuits share: who finds it used up waits in line, and each has its
//! turn for as many bytes.

use super::lines::{Line, Lines};
use image::compartment::Rate;
use switch::{Meter, Nanos};

/// Bytes of a turn at most, and at least.
pub const TURN: u64 = 64 << 10;
const LEAST: u64 = 1500;

/// A rate, and who waits for it.
pub struct Pace {
    rate: Rate,
    meter: Meter,
    waits: Lines,
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
        }
    }

    /// Another rate; what was held or owed stays.
    pub fn change(&mut self, bytes: u64, burst: u64) {
        (self.rate.bytes, self.rate.burst) = (bytes, burst);
    }

    /// Bytes a second.
    pub fn bytes(&self) -> u64 {
        self.rate.bytes
    }

    /// Who waits, who waits no more.
    pub fn dissolve(&mut self) -> Vec<Line> {
        self.waits.take()
    }

    /// A circuit is over: it waits no more. Bound: the circuits that are.
    pub fn forget(&mut self, number: u64) {
        self.waits.forget(number);
    }

    /// Asks for a turn, for a circuit that this slot began: its bytes, which are charged. `None`: it waits
    /// for them from now on.
    pub fn ask(&mut self, slot: u32, line: Line, now: Nanos) -> Option<u64> {
        if self.waits.is_empty() && self.meter.is_free(now, &self.rate) {
            return Some(self.grant());
        }
        self.waits.push(slot, line);
        None
    }

    /// Whose turn it is now, with its bytes.
    pub fn next(&mut self, now: Nanos) -> Option<(Line, u64)> {
        if self.waits.is_empty() {
            return None;
        }
        self.meter.late(now, &self.rate);
        if !self.meter.is_free(now, &self.rate) {
            return None;
        }
        let line = self.waits.pop()?;
        Some((line, self.grant()))
    }

    /// A millisecond's worth, always as much, into debt where not so much is there: who gets what
    /// is left would get less than others whenever they meet in the same order.
    fn grant(&mut self) -> u64 {
        let turn = (self.rate.bytes / 1000).clamp(LEAST, TURN);
        self.meter.charge(&self.rate, turn, 0);
        turn
    }

    /// Gives back what was charged and not used.
    pub fn refund(&mut self, bytes: u64) {
        self.meter.refund(&self.rate, bytes);
    }

    /// When somebody who waits has a turn, ns; `None`: nobody waits.
    pub fn due(&self) -> Option<Nanos> {
        (!self.waits.is_empty()).then(|| self.meter.free_at(&self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SECOND: u64 = 1_000_000_000;

    /// Lines that always have something to move; what each moved in so long.
    fn run(pace: &mut Pace, lines: &[Line], until: Nanos) -> Vec<u64> {
        let mut moved = vec![0; lines.len()];
        let mut now = 0;
        let mut granted: VecDeque<(Line, u64)> = VecDeque::new();
        for line in lines {
            granted.extend(pace.ask(1, *line, now).map(|turn| (*line, turn)));
        }
        while now < until {
            while let Some((line, turn)) = granted.pop_front().or_else(|| pace.next(now)) {
                moved[line.0 as usize] += turn;
                granted.extend(pace.ask(1, line, now).map(|turn| (line, turn)));
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
            let turn = pace.ask(1, (n, 0), 0).unwrap();
            pace.refund(turn - 1);
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
            kept.extend(pace.ask(1, (n, 0), now));
            kept.extend(std::iter::from_fn(|| pace.next(now)).map(|(_, turn)| turn));
        }
        assert!(kept.len() > 30_000, "{}", kept.len());
        kept.into_iter().for_each(|turn| pace.refund(turn));
        assert_eq!(pace.meter.held().0, 128 << 10);
    }

    #[test]
    fn who_has_many_circuits_has_no_more_turns_than_who_has_one() {
        let mut pace = Pace::new(10_000_000, 1, 0);
        while pace.ask(7, (777, 0), 0).is_some() {}
        let mut now = 0;
        let asks = |pace: &mut Pace, line: Line, now| {
            let turn = pace.ask(u32::from(line.0 == 0), line, now);
            assert_eq!(turn, None, "others wait");
        };
        for number in 0..100 {
            asks(&mut pace, (number, 0), 0);
        }
        let mut granted = [0_u64; 2];
        while now < SECOND {
            while let Some((line, turn)) = pace.next(now) {
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
        while pace.ask(1, (1, 0), 0).is_some() {}
        assert!(!pace.waits.is_empty());
        let later = pace.due().unwrap();
        assert_eq!(pace.ask(1, (2, 0), later), None, "the first one waits");
        assert_eq!(pace.next(later).map(|(line, _)| line), Some((1, 0)));
        assert_eq!(
            pace.next(later + SECOND).map(|(line, _)| line),
            Some((2, 0))
        );
    }
}
