//! Token buckets.

use crate::Nanos;

const SECOND: u128 = 1_000_000_000;
/// Longest idle time that is credited: beyond it any bucket is full anyway.
const HORIZON: Nanos = 3_600_000_000_000;

/// A token bucket that may go into debt by one frame, so that frames longer than
/// the burst pass at the right average rate instead of never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    tokens: i64,
    last: Nanos,
}

impl Bucket {
    /// Holds nothing yet.
    pub(crate) const EMPTY: Bucket = Bucket { tokens: 0, last: 0 };

    /// A full bucket.
    pub(crate) fn full(now: Nanos, burst: u64) -> Bucket {
        Bucket {
            tokens: clamp(burst),
            last: now,
        }
    }

    /// Takes `n` tokens where the bucket, refilled at `rate` a second up to
    /// `burst`, is not in debt; says whether it did.
    pub(crate) fn take(&mut self, now: Nanos, rate: u64, burst: u64, n: u64) -> bool {
        self.refill(now, rate, burst);
        if self.tokens <= 0 {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(clamp(n));
        true
    }

    fn refill(&mut self, now: Nanos, rate: u64, burst: u64) {
        let elapsed = now.saturating_sub(self.last).min(HORIZON);
        let gain = u128::from(elapsed) * u128::from(rate) / SECOND;
        if gain == 0 {
            return;
        }
        let burst = clamp(burst.max(1));
        let gain = i64::try_from(gain).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(gain);
        if self.tokens >= burst || elapsed == HORIZON {
            self.tokens = self.tokens.min(burst);
            self.last = now;
        } else {
            // Only the time that these whole tokens took is used up, so that slow
            // rates lose nothing to rounding.
            let used = (gain as u128 * SECOND).div_ceil(u128::from(rate.max(1)));
            self.last = self
                .last
                .saturating_add(Nanos::try_from(used).unwrap_or(HORIZON));
        }
    }
}

fn clamp(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_rate_is_exact_whatever_the_polling() {
        for step in [1_000, 333_333, 7_000_001] {
            let mut bucket = Bucket::full(0, 10);
            let mut passed = 0u64;
            let mut now = 0;
            while now < 10_000_000_000 {
                passed += u64::from(bucket.take(now, 1000, 10, 1));
                now += step;
            }
            let wanted = if step > 1_000_000 {
                10_000_000_000 / step
            } else {
                10_000
            };
            assert!(passed.abs_diff(wanted) <= 12, "step {step}: {passed}");
        }
    }

    #[test]
    fn a_frame_longer_than_the_burst_goes_into_debt() {
        let mut bucket = Bucket::full(0, 1500);
        assert!(bucket.take(0, 1_000_000, 1500, 64_000));
        assert!(!bucket.take(60_000_000, 1_000_000, 1500, 64_000));
        assert!(bucket.take(64_000_000, 1_000_000, 1500, 64_000));
    }

    #[test]
    fn time_going_back_or_far_ahead_is_harmless() {
        let mut bucket = Bucket::full(1_000_000, 5);
        assert!(bucket.take(0, u64::MAX, u64::MAX, 1));
        assert!(bucket.take(u64::MAX, u64::MAX, u64::MAX, u64::MAX));
        assert!(!Bucket::default().take(0, 0, 5, 1));
    }
}
