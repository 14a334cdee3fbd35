//! Token buckets.

use crate::Nanos;
use guard::guard;
use image::compartment::Rate;

pub(crate) const SECOND: u128 = 1_000_000_000;
/// The longest frame.
pub(crate) const LARGE: u64 = 64 << 10;
/// Longest idle time that is credited: beyond it any bucket is full anyway.
const HORIZON: Nanos = 3_600_000_000_000;

/// A token bucket that may go into debt by one frame, so that frames longer than
/// the burst pass at the right average rate instead of never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    tokens: i64,
    last: Nanos,
    /// When it was refilled last, whether that gave anything or not.
    seen: Nanos,
}

impl Bucket {
    /// Holds nothing yet.
    pub(crate) const EMPTY: Bucket = Bucket {
        tokens: 0,
        last: 0,
        seen: 0,
    };

    /// A full bucket.
    pub(crate) fn full(now: Nanos, burst: u64) -> Bucket {
        Bucket {
            tokens: clamp(burst),
            last: now,
            seen: now,
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

    /// When it holds enough again that going on is worth while, as it was last refilled;
    /// at once where it is not in debt: a millisecond's worth, of high rates a large
    /// frame's, but not less than an eighth of a millisecond's.
    pub(crate) fn free_at(&self, rate: u64, burst: u64) -> Nanos {
        if self.tokens > 0 || rate == 0 {
            return 0;
        }
        let worth = worth(rate, burst).unsigned_abs();
        let lacking = u128::from(worth) + u128::from(self.tokens.unsigned_abs());
        let wait = (lacking * SECOND).div_ceil(u128::from(rate));
        self.last
            .saturating_add(Nanos::try_from(wait).unwrap_or(HORIZON))
    }

    /// Whether it holds anything, refilled.
    #[inline]
    pub(crate) fn is_free(&mut self, now: Nanos, rate: u64, burst: impl FnOnce() -> u64) -> bool {
        // One clock for a batch: all frames but its first have nothing to gain.
        if now != self.seen {
            self.refill(now, rate, burst());
        }
        self.tokens > 0
    }

    /// Takes `n` tokens, into debt where there are not so many.
    #[inline]
    pub(crate) fn charge(&mut self, n: u64) {
        self.tokens = self.tokens.saturating_sub(clamp(n));
    }

    fn refill(&mut self, now: Nanos, rate: u64, burst: u64) {
        self.seen = now;
        let elapsed = now.saturating_sub(self.last).min(HORIZON);
        let gain = u128::from(elapsed) * u128::from(rate) / SECOND;
        if gain == 0 {
            return;
        }
        let burst = clamp(burst.max(1));
        let gain = i64::try_from(gain).unwrap_or(i64::MAX);
        let before = self.tokens;
        self.tokens = self.tokens.saturating_add(gain);
        if self.tokens >= burst || elapsed == HORIZON {
            // What it was given for our being late stays.
            self.tokens = self.tokens.min(burst.max(before));
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

/// What makes it worth while to go on.
pub(crate) fn worth(rate: u64, burst: u64) -> i64 {
    let worth = (rate / 1000).min(LARGE.max(rate / 8000));
    // Half the burst at most: who comes late shall not find it full, and the rest lost.
    clamp(worth.clamp(1, (burst / 2).max(1)))
}

/// Where an owner stands that shares a rate with others, after a frame: what it had so far
/// against its weight, but for a turn's worth not less than whoever had its turn last, so
/// that nothing is saved up by being idle (start-time fair queueing).
#[inline]
pub(crate) fn served(before: u64, floor: &mut u64, rate: &Rate, bytes: u64, weight: u32) -> u64 {
    let start = before.max(floor.saturating_sub(TURN + rate.bytes / 500));
    *floor = start.max(*floor);
    start + bytes / u64::from(weight.max(1))
}
/// The largest frame, as its segments.
const TURN: u64 = 96 << 10;

/// What may go before a rate is asked again: a frame may where both are above zero, into
/// debt. What went is to be charged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    bytes: i64,
    packets: i64,
}

impl Credit {
    /// Nothing.
    pub const NONE: Credit = Credit {
        bytes: 0,
        packets: 0,
    };
    /// No rate.
    pub(crate) const UNLIMITED: Credit = Credit {
        bytes: i64::MAX,
        packets: i64::MAX,
    };

    /// Whether a frame may go: neither is zero or below.
    pub const fn is_left(&self) -> bool {
        self.bytes > 0 && self.packets > 0
    }

    /// Until where frames may go, after so many went.
    pub fn after(self, gone: Amount) -> Amount {
        let (packets, bytes) = (self.packets.max(0), self.bytes.max(0));
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        Amount {
            frames: gone.frames.saturating_add(packets),
            bytes: gone.bytes.saturating_add(bytes.unsigned_abs()),
        }
    }

    /// What both allow.
    pub(crate) fn and(self, other: Credit) -> Credit {
        Credit {
            bytes: self.bytes.min(other.bytes),
            packets: self.packets.min(other.packets),
        }
    }
}

/// Frames and their bytes: how many there were, or until where they may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    /// Further than anything goes.
    pub const MAX: Amount = Amount {
        frames: u32::MAX,
        bytes: u64::MAX,
    };

    /// One more, of so many bytes.
    #[inline(always)]
    pub const fn add(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }

    /// What came after an earlier one.
    pub const fn since(self, before: Amount) -> Amount {
        Amount {
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
        }
    }

    /// What both allow.
    pub fn and(self, other: Amount) -> Amount {
        Amount {
            frames: self.frames.min(other.frames),
            bytes: self.bytes.min(other.bytes),
        }
    }

    /// Whether another frame may go.
    #[inline(always)]
    pub const fn is_below(&self, until: &Amount) -> bool {
        self.frames < until.frames && self.bytes < until.bytes
    }
}

/// The two buckets of a rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    bytes: Bucket,
    packets: Bucket,
}

impl Meter {
    /// Holds nothing yet.
    pub(crate) const EMPTY: Meter = Meter {
        bytes: Bucket::EMPTY,
        packets: Bucket::EMPTY,
    };

    /// Full buckets.
    pub fn full(now: Nanos, rate: &Rate) -> Meter {
        Meter {
            bytes: Bucket::full(now, byte_burst(rate)),
            packets: Bucket::full(now, packet_burst(rate.packets)),
        }
    }

    /// Whether a frame may go now.
    #[inline]
    pub fn is_free(&mut self, now: Nanos, rate: &Rate) -> bool {
        let bytes = &mut self.bytes;
        let packets = &mut self.packets;
        (rate.bytes == 0 || bytes.is_free(now, rate.bytes, || byte_burst(rate)))
            && (rate.packets == 0
                || packets.is_free(now, rate.packets, || packet_burst(rate.packets)))
    }

    /// Somebody waited for it, and this is how late it is: what came in meanwhile counts,
    /// up to a tenth of a second's, where a bucket that nobody waits for would be full.
    pub fn late(&mut self, now: Nanos, rate: &Rate) {
        // Either may be what was waited for, and the other would be full meanwhile.
        let bytes = rate.bytes != 0 && self.bytes.tokens <= 0;
        let packets = rate.packets != 0 && self.packets.tokens <= 0;
        if bytes || packets {
            let worth = |rate: u64, burst: u64| burst.max(rate / 10);
            let (byte, packet) = (byte_burst(rate), packet_burst(rate.packets));
            self.bytes.refill(now, rate.bytes, worth(rate.bytes, byte));
            self.packets
                .refill(now, rate.packets, worth(rate.packets, packet));
        }
    }

    /// What may go now before it is asked again.
    pub(crate) fn credit(&mut self, now: Nanos, rate: &Rate) -> Credit {
        let mut credit = Credit::UNLIMITED;
        if rate.bytes != 0 {
            self.bytes.is_free(now, rate.bytes, || byte_burst(rate));
            credit.bytes = self.bytes.tokens;
        }
        if rate.packets != 0 {
            let burst = || packet_burst(rate.packets);
            self.packets.is_free(now, rate.packets, burst);
            credit.packets = self.packets.tokens;
        }
        credit
    }

    /// A frame went that is so many bytes in so many packets on a wire.
    #[inline]
    pub fn charge(&mut self, rate: &Rate, bytes: u64, packets: u64) {
        if rate.bytes != 0 {
            self.bytes.charge(bytes);
        }
        if rate.packets != 0 {
            self.packets.charge(packets);
        }
    }

    /// So many bytes did not go after all, of what was charged. What was charged long ago is no more than a
    /// full bucket by now.
    pub fn refund(&mut self, rate: &Rate, bytes: u64) {
        if rate.bytes != 0 {
            let tokens = self.bytes.tokens;
            let back = tokens.saturating_add(clamp(bytes));
            let full = clamp(byte_burst(rate)).max(tokens);
            self.bytes.tokens = if guard!("meter-refund") {
                back.min(full)
            } else {
                back
            };
        }
    }

    /// It is another rate's from now on: what is held beyond a full bucket of that, or owed beyond so many bytes,
    /// was the other one's.
    pub fn change(&mut self, rate: &Rate, owed: u64) {
        let full = clamp(byte_burst(rate));
        self.bytes.tokens = self.bytes.tokens.clamp(-clamp(owed), full);
    }

    /// When it is worth while to go on: at once where it is not in debt.
    #[inline]
    pub fn free_at(&self, rate: &Rate) -> Nanos {
        if (rate.bytes == 0 || self.bytes.tokens > 0)
            && (rate.packets == 0 || self.packets.tokens > 0)
        {
            return 0;
        }
        self.waits(rate)
    }

    /// Whether either of its buckets is empty, as it is.
    #[inline]
    pub(crate) fn lacks(&self, rate: &Rate) -> bool {
        rate.bytes != 0 && self.bytes.tokens <= 0 || rate.packets != 0 && self.packets.tokens <= 0
    }

    /// What it holds, in bytes and packets.
    pub fn held(&self) -> (i64, i64) {
        (self.bytes.tokens, self.packets.tokens)
    }

    /// The same as a credit.
    pub(crate) fn holds(&self, rate: &Rate) -> Credit {
        let limit = |rate: u64, tokens: i64| if rate == 0 { i64::MAX } else { tokens };
        Credit {
            bytes: limit(rate.bytes, self.bytes.tokens),
            packets: limit(rate.packets, self.packets.tokens),
        }
    }

    /// Has those of its buckets filled that are empty, of which what they hold is told.
    pub(crate) fn fetch(
        &mut self,
        rate: &Rate,
        from: impl FnOnce(Option<i64>, Option<i64>) -> (i64, i64),
    ) {
        let empty = |rate: u64, tokens: i64| (rate != 0 && tokens <= 0).then_some(tokens);
        let bytes = empty(rate.bytes, self.bytes.tokens);
        let packets = empty(rate.packets, self.packets.tokens);
        let (bytes, packets) = from(bytes, packets);
        self.bytes.tokens = self.bytes.tokens.saturating_add(bytes);
        self.packets.tokens = self.packets.tokens.saturating_add(packets);
    }

    /// Takes out all that it holds, or owes.
    pub(crate) fn empty(&mut self) -> (i64, i64) {
        let held = self.held();
        (self.bytes.tokens, self.packets.tokens) = (0, 0);
        held
    }

    fn waits(&self, rate: &Rate) -> Nanos {
        self.bytes.free_at(rate.bytes, byte_burst(rate)).max(
            self.packets
                .free_at(rate.packets, packet_burst(rate.packets)),
        )
    }
}

/// Bytes at once for a rate: at least `LEAST_BURST_MS` of it, or senders that are
/// scheduled that late would have less than what was asked for.
pub fn byte_burst(rate: &Rate) -> u64 {
    rate.burst.max(rate.bytes / 1000 * LEAST_BURST_MS)
}
const LEAST_BURST_MS: u64 = 5;

/// Packets at once for a packet rate: 50 ms' worth, at least 64.
pub(crate) fn packet_burst(rate: u64) -> u64 {
    (rate / 20).max(64)
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
    fn who_waits_until_it_is_free_is_never_refused() {
        let (rate, burst) = (1_000_000, 20_000);
        let mut bucket = Bucket::full(0, burst);
        let (mut now, mut passed) = (0, 0u64);
        while now < 10_000_000_000 {
            assert!(bucket.take(now, rate, burst, 9000), "at {now}");
            passed += 9000;
            now = now.max(bucket.free_at(rate, burst));
        }
        assert!(passed.abs_diff(10 * rate + burst) <= 2 * 9000, "{passed}");
        assert_eq!(Bucket::full(7, 5).free_at(10, 5), 0);
    }

    #[test]
    fn who_comes_milliseconds_late_loses_nothing_at_any_rate() {
        // 1 Mbit/s to 20 Gbit/s, with the least burst there can be, by the largest frames
        // and the smallest: as late as 4 ms each time that it waited.
        for bytes in [125_000, 12_500_000, 625_000_000, 2_500_000_000] {
            for frame in [64, 1514, 65_000] {
                let rate = Rate {
                    bytes,
                    burst: 1,
                    packets: 0,
                };
                let mut meter = Meter::full(0, &rate);
                let (mut now, mut passed, mut turn) = (0, 0u64, 0u64);
                while now < SECOND as u64 {
                    while meter.is_free(now, &rate) {
                        meter.charge(&rate, frame, 1);
                        passed += frame;
                    }
                    turn += 1;
                    now = meter.free_at(&rate) + turn % 5 * 1_000_000;
                }
                // What is owed, held or waited for at the end.
                let slack = 2 * frame + bytes / 1000 * (LEAST_BURST_MS + 6);
                let off = passed.abs_diff(bytes);
                assert!(off <= slack, "{bytes}, {frame}: {off} of {slack}");
            }
        }
    }

    #[test]
    fn being_late_costs_who_waited_nothing_and_gives_who_did_not_nothing() {
        let rate = Rate {
            bytes: 10_000_000,
            burst: 1,
            packets: 10_000,
        };
        let mut meter = Meter::full(0, &rate);
        let (mut now, mut passed) = (0, 0u64);
        while now < 10 * SECOND as u64 {
            while meter.is_free(now, &rate) {
                meter.charge(&rate, 1000, 1);
                passed += 1000;
            }
            now = meter.free_at(&rate) + 60_000_000;
            meter.late(now, &rate);
        }
        let wanted = now / 100;
        assert!(passed.abs_diff(wanted) < 1_400_000, "{passed} of {wanted}");
        // Nobody waits for it: it is full, and no more.
        let mut meter = Meter::full(0, &rate);
        assert!(meter.is_free(1 << 40, &rate));
        let mut burst = 0;
        while meter.is_free(1 << 40, &rate) {
            meter.charge(&rate, 1000, 1);
            burst += 1000;
        }
        assert!(burst <= 51_000, "{burst}");
        // Beyond a tenth of a second even who waited is given no more.
        meter.late(1 << 41, &rate);
        let mut burst = 0;
        while meter.is_free(1 << 41, &rate) {
            meter.charge(&rate, 1000, 1);
            burst += 1000;
        }
        assert!(burst <= 1_001_000, "{burst}");
    }

    #[test]
    fn time_going_back_or_far_ahead_is_harmless() {
        let mut bucket = Bucket::full(1_000_000, 5);
        assert!(bucket.take(0, u64::MAX, u64::MAX, 1));
        assert!(bucket.take(u64::MAX, u64::MAX, u64::MAX, u64::MAX));
        assert!(!Bucket::default().take(0, 0, 5, 1));
    }
}
