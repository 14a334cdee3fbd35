//! A rate that several circuits share: who finds it used up waits in line, and each has its
//! turn for as many bytes.

use image::compartment::Rate;
use std::collections::VecDeque;
use switch::{Meter, Nanos};

/// Bytes of a turn at most, and at least.
pub const TURN: u64 = 64 << 10;
const LEAST: u64 = 1500;

/// One direction of one circuit, by its number.
pub type Line = (u64, usize);

/// A rate, and who waits for it.
pub struct Pace {
    rate: Rate,
    meter: Meter,
    waits: VecDeque<Line>,
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
            waits: VecDeque::new(),
        }
    }

    /// Another rate; what was held or owed stays.
    pub fn change(&mut self, bytes: u64, burst: u64) {
        (self.rate.bytes, self.rate.burst) = (bytes, burst);
    }

    /// Who waits, who waits no more.
    pub fn dissolve(&mut self) -> impl Iterator<Item = Line> {
        self.waits.drain(..)
    }

    /// A circuit is over: it waits no more. Bound: the circuits that are.
    pub fn forget(&mut self, number: u64) {
        self.waits.retain(|(of, _)| *of != number);
    }

    /// Asks for a turn: its bytes, which are charged. `None`: it waits for them from now on.
    pub fn ask(&mut self, line: Line, now: Nanos) -> Option<u64> {
        if self.waits.is_empty() && self.meter.is_free(now, &self.rate) {
            return Some(self.grant());
        }
        self.waits.push_back(line);
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
        let line = self.waits.pop_front()?;
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

    const SECOND: u64 = 1_000_000_000;

    /// Lines that always have something to move; what each moved in so long.
    fn run(pace: &mut Pace, lines: &[Line], until: Nanos) -> Vec<u64> {
        let mut moved = vec![0; lines.len()];
        let mut now = 0;
        let mut granted: VecDeque<(Line, u64)> = VecDeque::new();
        for line in lines {
            granted.extend(pace.ask(*line, now).map(|turn| (*line, turn)));
        }
        while now < until {
            while let Some((line, turn)) = granted.pop_front().or_else(|| pace.next(now)) {
                moved[line.0 as usize] += turn;
                granted.extend(pace.ask(line, now).map(|turn| (line, turn)));
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
            let turn = pace.ask((n, 0), 0).unwrap();
            pace.refund(turn - 1);
        }
        assert_eq!(pace.due(), None);
        assert_eq!(pace.meter.held().0, (128 << 10) - 1000);
    }

    #[test]
    fn who_waits_is_before_who_comes() {
        let mut pace = Pace::new(1_000_000, 1, 0);
        while pace.ask((1, 0), 0).is_some() {}
        assert_eq!(pace.waits.len(), 1);
        let later = pace.due().unwrap();
        assert_eq!(pace.ask((2, 0), later), None, "the first one waits");
        assert_eq!(pace.next(later).map(|(line, _)| line), Some((1, 0)));
        assert_eq!(
            pace.next(later + SECOND).map(|(line, _)| line),
            Some((2, 0))
        );
    }
}
