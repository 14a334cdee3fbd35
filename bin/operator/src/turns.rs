//! Whose turn it is: endpoints whose programs call at once have this process one as long as the
//! other, whatever their calls cost; and how often each may begin something.

use guard::guard;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So much longer than another that calls too an endpoint may have had it.
const QUANTUM: Duration = Duration::from_micros(200);
/// And so much longer than who had it least at most: what is sent to its programs from outside is its too, and others' calls do not wait
/// for that.
const OWES: Duration = Duration::from_millis(500);
/// Who has begun too often waits so long at least.
const PAUSE: Duration = Duration::from_millis(1);
/// Of a call whose program's memory took longer to copy, for it had this process wait, that endpoint's next calls wait so many
/// times what is beyond, this long at most, where others have called so lately: each of their calls would wait for one of its.
/// Not what a program takes to have a descriptor put into it: that is the processor's that it waits for.
pub const SLOW: Duration = Duration::from_millis(10);
/// And of one for which it was asked which of all sockets live: it is by as many as others have.
const SWEPT: Duration = Duration::from_millis(1);
const SLOW_TIMES: u32 = 9;
const SLOW_MOST: Duration = Duration::from_secs(5);
const LATELY: Duration = Duration::from_secs(3);

/// What was done for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Whose it is.
    pub slot: u32,
    /// How long it took.
    pub time: Duration,
    /// Of that, copies from and to its memory.
    pub copying: Duration,
    /// And asking which sockets live, for a call that would fail else.
    pub sweeping: Duration,
}

/// Something that is being done for an endpoint.
pub struct Spending {
    began: Instant,
    copying: Duration,
}

impl Spending {
    /// It begins.
    pub fn begins() -> Spending {
        Spending {
            began: Instant::now(),
            copying: notify::copying(),
        }
    }

    /// How long it has lasted.
    pub fn lasts(&self) -> Duration {
        self.began.elapsed()
    }

    /// It is done, and was for this endpoint, but for what was done for others meanwhile.
    pub fn ends(self, slot: u32, others: &[Spent]) -> Spent {
        let time: Duration = others.iter().map(|it| it.time).sum();
        let copying: Duration = others.iter().map(|it| it.copying).sum();
        Spent {
            slot,
            time: self.lasts().saturating_sub(time),
            copying: (notify::copying() - self.copying).saturating_sub(copying),
            sweeping: Duration::ZERO,
        }
    }
}

/// All endpoints.
#[derive(Default)]
pub struct Turns {
    /// How long each had this process, of those that have called.
    had: BTreeMap<u32, Duration>,
    /// Who begins to call has had it as long as who had it least of those that called last.
    least: Duration,
    /// When each called last.
    called: BTreeMap<u32, Instant>,
    buckets: BTreeMap<u32, Bucket>,
}

/// What an endpoint may begin now.
struct Bucket {
    per_second: f64,
    left: f64,
    filled: Instant,
}

impl Turns {
    /// An endpoint may begin so much a second, and all of that at once.
    pub fn opens(&mut self, slot: u32, per_second: u32, now: Instant) {
        let per_second = f64::from(per_second);
        let bucket = Bucket {
            per_second,
            left: per_second,
            filled: now,
        };
        self.buckets.insert(slot, bucket);
    }

    /// It is gone.
    pub fn closes(&mut self, slot: u32) {
        self.had.remove(&slot);
        self.called.remove(&slot);
        self.buckets.remove(&slot);
    }

    /// Of the endpoints that call now, how long those had this process that have their turn.
    pub fn most(&mut self, slots: impl Iterator<Item = u32>) -> Duration {
        let least = self.least;
        let had = slots.map(|slot| {
            let had = self.had.entry(slot).or_default();
            let most = match guard!("circuits-owes") {
                true => least + OWES,
                false => *had,
            };
            *had = (*had).min(most).max(least);
            *had
        });
        if let Some(least) = had.min() {
            self.least = least;
        }
        self.least + QUANTUM
    }

    /// Whether an endpoint has its turn; the others' calls wait.
    pub fn has_turn(&self, slot: u32, most: Duration) -> bool {
        !guard!("circuits-turns") || self.had.get(&slot).is_none_or(|had| *had <= most)
    }

    /// A call took so long.
    pub fn took(&mut self, slot: u32, time: Duration) {
        *self.had.entry(slot).or_default() += time;
    }

    /// It has called.
    pub fn called(&mut self, slot: u32, now: Instant) {
        self.called.insert(slot, now);
    }

    /// How long that endpoint's calls wait for what had this process sleep, or look, for long, if they do.
    pub fn pause(&self, spent: &Spent, now: Instant) -> Option<Duration> {
        let lately = |called: &Instant| now.saturating_duration_since(*called) < LATELY;
        let mut others = self.called.iter().filter(|(slot, _)| **slot != spent.slot);
        let swept = spent.sweeping.saturating_sub(SWEPT);
        let swept = if guard!("circuits-swept") {
            swept
        } else {
            Duration::ZERO
        };
        let beyond = spent.copying.saturating_sub(SLOW) + swept;
        let waits = !beyond.is_zero() && others.any(|(_, at)| lately(at));
        let pause = (SLOW_TIMES * beyond).min(SLOW_MOST);
        (waits && guard!("circuits-slow-calls")).then_some(pause)
    }

    /// An endpoint has begun something. Until when its calls wait for that, if they do.
    pub fn begins(&mut self, slot: u32, now: Instant) -> Option<Instant> {
        let bucket = self.buckets.get_mut(&slot)?;
        let passed = now.saturating_duration_since(bucket.filled);
        let filled = bucket.left + passed.as_secs_f64() * bucket.per_second;
        // Nobody owes more than a second.
        bucket.left = (filled.min(bucket.per_second) - 1.0).max(-bucket.per_second);
        bucket.filled = now;
        let missing = -bucket.left / bucket.per_second;
        (missing > 0.0 && guard!("circuits-setups"))
            .then(|| now + Duration::from_secs_f64(missing).max(PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// What two get that call all the time, whose calls take so long; `late`: the second begins
    /// after so many turns.
    fn share(costs: [u32; 2], late: usize) -> [Duration; 2] {
        let (mut turns, mut got) = (Turns::default(), [Duration::ZERO; 2]);
        for turn in 0..late + 20_000 {
            let ready = if turn < late { 0..1 } else { 0..2_u32 };
            let most = turns.most(ready.clone());
            for slot in ready
                .filter(|slot| turns.has_turn(*slot, most))
                .collect::<Vec<_>>()
            {
                let cost = costs[slot as usize] * US;
                turns.took(slot, cost);
                if turn >= late {
                    got[slot as usize] += cost;
                }
            }
        }
        got
    }

    #[test]
    fn endpoints_that_call_at_once_have_one_as_long_as_the_other() {
        for (costs, late) in [
            ([20, 20], 0),
            ([10_000, 20], 0),
            ([20, 20], 5_000),
            ([3_000, 20], 77),
        ] {
            let [a, b] = share(costs, late);
            let most = 2 * QUANTUM + costs[0].max(costs[1]) * US;
            assert!(a.abs_diff(b) <= most, "{costs:?} {late}: {a:?} {b:?}");
        }
    }

    /// What was sent to its programs from outside, for a minute.
    #[test]
    fn nobody_waits_longer_for_what_was_done_for_it_than_half_a_second_of_anothers() {
        let mut turns = Turns::default();
        for slot in [7, 8] {
            turns.took(slot, US);
        }
        turns.took(7, Duration::from_secs(60));
        let mut others = Duration::ZERO;
        while others < Duration::from_secs(2) {
            let most = turns.most([7, 8].into_iter());
            if turns.has_turn(7, most) {
                break;
            }
            turns.took(8, 100 * US);
            others += 100 * US;
        }
        let waits = Duration::from_millis(490)..Duration::from_millis(510);
        assert!(waits.contains(&others), "{others:?}");
    }

    #[test]
    fn who_begins_too_often_waits_and_what_was_not_used_is_not_much() {
        let mut turns = Turns::default();
        let mut now = Instant::now();
        turns.opens(7, 1000, now);
        now += Duration::from_secs(3600);
        let at_once = (0..5000)
            .take_while(|_| turns.begins(7, now).is_none())
            .count();
        assert_eq!(at_once, 1000);
        let (mut begun, end) = (0, now + Duration::from_secs(1));
        while now < end {
            begun += 1;
            now = turns.begins(7, now).unwrap_or(now);
        }
        assert!((950..=1050).contains(&begun), "{begun}");
        assert_eq!(
            turns.begins(8, now),
            None,
            "another, of which nothing is said"
        );
    }

    #[test]
    fn what_was_done_for_others_meanwhile_is_theirs() {
        let (began, before) = (Instant::now(), Spending::begins());
        std::thread::sleep(Duration::from_millis(1));
        let spending = Spending::begins();
        std::thread::sleep(Duration::from_millis(20));
        let me = notify::Target::open(rustix::thread::gettid().as_raw_pid().cast_unsigned());
        let (from, mut into) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        me.unwrap().read(from.as_ptr() as u64, &mut into).unwrap();
        let other = spending.ends(8, &[]);
        let copying = other.copying;
        assert!(other.time >= Duration::from_millis(20) + copying && !copying.is_zero());
        let own = before.ends(7, &[other]);
        assert!(own.time >= Duration::from_millis(1));
        let whole = own.time + other.time;
        assert!(whole <= began.elapsed(), "{own:?} {other:?}");
    }

    /// Alone it has nobody wait.
    #[test]
    fn whose_calls_have_this_process_wait_calls_less_often_where_others_call() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.called(7, now);
        let slept = |turns: &Turns, time, after| {
            let spent = |copying| Spent {
                slot: 7,
                time,
                copying,
                sweeping: Duration::ZERO,
            };
            assert_eq!(turns.pause(&spent(SLOW), now + after), None);
            turns.pause(&spent(time), now + after)
        };
        let long = Duration::from_millis(400);
        assert_eq!(slept(&turns, long, Duration::ZERO), None);
        turns.called(8, now);
        for (time, waits) in [
            (SLOW, None),
            (2 * SLOW, Some(SLOW_TIMES * SLOW)),
            (long, Some(SLOW_TIMES * (long - SLOW))),
            (Duration::from_secs(9), Some(SLOW_MOST)),
        ] {
            assert_eq!(slept(&turns, time, LATELY / 2), waits, "{time:?}");
        }
        let swept = |sweeping| Spent {
            slot: 7,
            time: long,
            copying: Duration::ZERO,
            sweeping,
        };
        assert_eq!(turns.pause(&swept(SWEPT), now), None);
        assert_eq!(
            turns.pause(&swept(2 * SWEPT), now),
            Some(SLOW_TIMES * SWEPT)
        );
        assert_eq!(slept(&turns, long, LATELY), None);
        turns.called(8, now + LATELY);
        turns.closes(8);
        assert_eq!(slept(&turns, long, LATELY), None);
    }

    #[test]
    fn nobody_waits_longer_than_a_second_for_what_was_begun_too_often() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.opens(7, 500, now);
        let until = (0..100_000).filter_map(|_| turns.begins(7, now)).max();
        assert_eq!(until, Some(now + Duration::from_secs(1)));
    }
}
