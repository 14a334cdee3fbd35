//! Which core a busy worker runs on, where cores are shared. The kernel likes to wake a
//! switch where its sender runs, as if the sender were about to sleep; it is not, and
//! the two then share one core while another idles. A worker on a full core is tried on
//! the idlest one: it stays there if it moves more bytes than before, and is let go
//! when it is no longer busy.

use crate::cores::put;
use crate::registry::Seat;
use crate::supervisor::Supervisor;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::counters::{Counter, counter_word};

/// Between two looks, and the length of a trial, ns.
const EVERY: u64 = 250_000_000;
/// After a trial the next is so long in coming, ns.
const HOLDS: u64 = 5_000_000_000;
/// From this share of a core on a worker is busy; below half of it no more.
const BUSY: f64 = 0.2;
/// A core with less of its time idle is full.
const FULL: f64 = 0.1;
/// A core with more of its time idle has room.
const ROOM: f64 = 0.25;
/// A trial has paid when it moves so much more.
const GAIN: f64 = 1.05;
/// Of /proc/stat, a second: USER_HZ, the same on every Linux.
const TICKS: f64 = 100.0;

/// What the last look saw.
#[derive(Debug, Default)]
pub struct Spread {
    looked: u64,
    /// Idle time of each core since the host started.
    idle: BTreeMap<u32, Duration>,
}

/// Where a seat's process runs, and why.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placing {
    /// The worker, its CPU time and the bytes it had moved.
    seen: Option<(u64, Duration, u64)>,
    place: Where,
    /// No trial before, ns.
    hold: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Where {
    /// Wherever the kernel likes.
    #[default]
    Free,
    /// On one core, to see whether it moves more than so many bytes a second there.
    Trial(f64),
    /// On one core, where it does.
    Stays,
}

/// What is to be done with a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    To(u32),
    Anywhere,
}

/// What one look saw of one process.
struct Look<'a> {
    now: u64,
    /// Share of a core that it used.
    own: f64,
    /// Bytes a second that it moved.
    rate: f64,
    core: Option<u32>,
    /// The idle share of each shared core.
    idle: &'a BTreeMap<u32, f64>,
}

impl Placing {
    /// One look at a process; what is to be done with it.
    fn look(&mut self, look: &Look<'_>) -> Option<Move> {
        if look.own < BUSY / 2.0 && self.place != Where::Free {
            self.place = Where::Free;
            self.hold = 0;
            return Some(Move::Anywhere);
        }
        if let Where::Trial(before) = self.place {
            self.hold = look.now + HOLDS;
            if look.rate > before * GAIN {
                self.place = Where::Stays;
                return None;
            }
            self.place = Where::Free;
            return Some(Move::Anywhere);
        }
        if look.own < BUSY || look.now < self.hold {
            return None;
        }
        let to = roomier(look.core?, look.own, look.idle)?;
        self.place = Where::Trial(look.rate);
        Some(Move::To(to))
    }
}

impl Spread {
    /// Whether it is time.
    pub fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.looked) >= EVERY
    }
}

impl Supervisor {
    /// Moves busy workers from full cores to such as have room. `spent`: seat, worker,
    /// pid and CPU time of every process with a seat.
    pub fn spread(&mut self, now: u64, spent: &[(Seat, u64, u32, Duration)]) {
        let window = now.saturating_sub(self.spread.looked).max(1) as f64 / 1e9;
        self.spread.looked = now;
        let mut idle = self.idle_shares(window);
        for (seat, worker, pid, cpu) in spent.iter().copied() {
            if self.is_pinned(seat) {
                continue;
            }
            let Some(state) = self.seat_mut(seat) else {
                continue;
            };
            let (_, cpu_before, moved_before) = state
                .placing
                .seen
                .filter(|(who, ..)| *who == worker)
                .unwrap_or_else(|| {
                    state.placing = Placing::default();
                    (worker, cpu, 0)
                });
            let own = cpu.saturating_sub(cpu_before).as_secs_f64() / window;
            let is_free = state.placing.place == Where::Free;
            // Of one that idles nothing more is looked at: there may be thousands.
            if own < BUSY && is_free {
                state.placing.seen = Some((worker, cpu, 0));
                if own < BUSY / 2.0 {
                    // What a trial showed was of a load that is no more.
                    state.placing.hold = 0;
                }
                continue;
            }
            let slots = 0..state.slots as usize;
            let moved = slots
                .map(|slot| state.words.load(counter_word(slot, Counter::RxBytes)))
                .fold(0, u64::wrapping_add);
            state.placing.seen = Some((worker, cpu, moved));
            if moved_before == 0 {
                continue;
            }
            let step = state.placing.look(&Look {
                now,
                own,
                rate: moved.wrapping_sub(moved_before) as f64 / window,
                core: core_of(pid),
                idle: &idle,
            });
            match step {
                Some(Move::To(core)) => {
                    // One at a time: two that went to the same core would both gain
                    // nothing by it.
                    idle.clear();
                    let mut set = CpuSet::new();
                    set.set(core as usize);
                    put(pid, &set);
                }
                Some(Move::Anywhere) => put(pid, &self.shared_cores()),
                None => {}
            }
        }
    }

    /// The idle share of each shared core since the last look; empty at the first.
    fn idle_shares(&mut self, window: f64) -> BTreeMap<u32, f64> {
        let now = idle_times(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
        let before = std::mem::replace(&mut self.spread.idle, now);
        let shared = self.shared_cores();
        let since = |(core, now): (&u32, &Duration)| {
            let passed = now.saturating_sub(*before.get(core)?);
            let ours = (*core as usize) < CpuSet::MAX_CPU && shared.is_set(*core as usize);
            ours.then_some((*core, (passed.as_secs_f64() / window).min(1.0)))
        };
        self.spread.idle.iter().filter_map(since).collect()
    }
}

/// The idlest core, if `core` is full, and not with `own` alone, and that one has room.
fn roomier(core: u32, own: f64, idle: &BTreeMap<u32, f64>) -> Option<u32> {
    let here = *idle.get(&core)?;
    let (to, room) = idle
        .iter()
        .filter(|(other, _)| **other != core)
        .max_by(|a, b| a.1.total_cmp(b.1))?;
    (here < FULL && here + own < 1.0 - FULL && *room > ROOM).then_some(*to)
}

/// The core that a process ran on last: field 39 of its stat.
fn core_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(36)?.parse().ok()
}

/// Idle time of each core, from /proc/stat: idle and waiting for a disk, in ticks.
fn idle_times(stat: &str) -> BTreeMap<u32, Duration> {
    let core = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = words.next()?.parse().ok()?;
        let mut ticks_of = |n: usize| words.nth(n)?.parse::<u64>().ok();
        let idle = ticks_of(3)?.saturating_add(ticks_of(0)?);
        Some((core, Duration::from_secs_f64(idle as f64 / TICKS)))
    };
    stat.lines().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(shares: &[f64]) -> BTreeMap<u32, f64> {
        (0..).zip(shares.iter().copied()).collect()
    }

    #[test]
    fn a_full_core_that_is_shared_is_left_for_the_idlest() {
        assert_eq!(roomier(1, 0.55, &idle(&[0.7, 0.0])), Some(0));
        assert_eq!(roomier(0, 0.5, &idle(&[0.02, 0.6, 0.9])), Some(2));
        assert_eq!(roomier(1, 0.55, &idle(&[0.2, 0.0])), None, "no room");
        assert_eq!(roomier(1, 0.98, &idle(&[1.0, 0.0])), None, "alone there");
        assert_eq!(roomier(1, 0.4, &idle(&[1.0, 0.3])), None, "not full");
        assert_eq!(roomier(1, 0.4, &idle(&[1.0])), None, "not a shared core");
    }

    #[test]
    fn a_trial_is_kept_when_it_pays_and_taken_back_when_not() {
        let full = idle(&[0.6, 0.0]);
        let look = |now, own, rate| Look {
            now,
            own,
            rate,
            core: Some(1),
            idle: &full,
        };
        let mut placing = Placing::default();
        assert_eq!(placing.look(&look(0, 0.1, 1e9)), None, "not busy");
        assert_eq!(placing.look(&look(1, 0.6, 1e9)), Some(Move::To(0)));
        assert_eq!(placing.look(&look(2, 0.6, 1.2e9)), None);
        assert_eq!(placing.place, Where::Stays);
        assert_eq!(placing.look(&look(3, 0.6, 1e9)), None, "it holds");
        let later = 4 + HOLDS;
        assert_eq!(placing.look(&look(later, 0.6, 1e9)), Some(Move::To(0)));
        let worse = look(later + 1, 0.6, 1.01e9);
        assert_eq!(placing.look(&worse), Some(Move::Anywhere));
        assert_eq!(placing.look(&look(later + 2, 0.6, 1e9)), None, "it holds");
        assert_eq!(placing.look(&look(later * 2, 0.6, 1e9)), Some(Move::To(0)));
        let idles = look(later * 2 + 1, 0.01, 1e6);
        assert_eq!(placing.look(&idles), Some(Move::Anywhere));
        assert_eq!(placing.look(&idles), None, "once");
    }

    #[test]
    fn idle_time_is_read_from_the_kernels_table() {
        let stat = "cpu  9 9 9 9 9\ncpu0 1 2 3 400 50 6\ncpu12 1 2 3 7 0 6\nintr 5\n";
        let idle = idle_times(stat);
        assert_eq!(idle.len(), 2);
        assert_eq!(idle[&0], Duration::from_secs_f64(450.0 / TICKS));
        assert_eq!(idle[&12], Duration::from_secs_f64(7.0 / TICKS));
        assert!(core_of(std::process::id()).is_some());
    }
}
