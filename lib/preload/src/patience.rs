//! How long something is waited for at most, where that goes by rounds.
//!
//! A process may be stopped in the midst of a wait (SIGSTOP, ^Z), or its machine stand still, and nobody that it waits for
//! goes on either: a round counts for no more than it can have taken, or all patience would be gone when it goes on.

use crate::socket::naps;
use std::time::{Duration, Instant};

/// How long one waits for another thread at most, which may be no more: what it does takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// What a round counts for at most, and what one may sleep.
pub const ROUND: Duration = Duration::from_millis(10);
/// So often others are let go first: most of what is waited for takes less than a sleep.
const YIELDS: u32 = 8;
/// How long a rest is from then on; each is twice the one before, up to the longest.
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// What is left of it.
pub struct Patience {
    left: Duration,
    /// When that was so.
    seen: Instant,
    rests: u32,
}

impl Patience {
    /// So much, from now on.
    pub fn of(most: Duration) -> Patience {
        Patience {
            left: most,
            seen: Instant::now(),
            rests: 0,
        }
    }

    /// Whether it is over; to be asked in each round.
    pub fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    /// The same at some time.
    pub fn is_over_at(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.seen).min(ROUND);
        self.left = self.left.saturating_sub(passed);
        self.seen = now;
        self.left.is_zero()
    }

    /// Lets others go on, for longer each time. No thread is cancelled in it.
    pub fn rests(&mut self) {
        match self.rests.checked_sub(YIELDS) {
            None => std::thread::yield_now(),
            Some(before) => naps((FIRST * (1 << before.min(5))).min(LONGEST)),
        }
        self.rests = self.rests.saturating_add(1);
    }
}
