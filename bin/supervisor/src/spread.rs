//! Which core a busy worker runs on, where cores are shared. The kernel likes to wake a
//! switch where its sender runs, as if the sender were about to sleep; it is not, and
//! the two then share one core while another idles. A worker to which that happens is
//! moved, and let go again when it is no longer busy.

use crate::cores::put;
use crate::registry::Seat;
use crate::supervisor::Supervisor;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks, ns.
const EVERY: u64 = 250_000_000;
/// After a move a worker stays for so long, ns.
const STAYS: u64 = 2_000_000_000;
/// From this share of a core on a worker is busy; below half of it no more.
const BUSY: f64 = 0.2;
/// A core with less of its time idle is full.
const FULL: f64 = 0.1;

/// Of /proc/stat, a second: USER_HZ, the same on every Linux.
const TICKS: f64 = 100.0;

/// What the last look saw.
#[derive(Debug, Default)]
pub struct Spread {
    looked: u64,
    /// Idle time of each core since the host started.
    idle: BTreeMap<u32, Duration>,
}

/// What is known of a seat's process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placing {
    /// The worker, and the CPU time it had had.
    seen: Option<(u64, Duration)>,
    /// When it was put on a core of its own choice, ns.
    moved: Option<u64>,
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
        let mut idle: Option<BTreeMap<u32, f64>> = None;
        for (seat, worker, pid, cpu) in spent.iter().copied() {
            if self.is_pinned(seat) {
                continue;
            }
            let Some(state) = self.seat_mut(seat) else {
                continue;
            };
            let before = state.placing.seen.replace((worker, cpu));
            let Some((_, before)) = before.filter(|(who, _)| *who == worker) else {
                state.placing.moved = None;
                continue;
            };
            let own = cpu.saturating_sub(before).as_secs_f64() / window;
            let moved = state.placing.moved;
            if own < BUSY / 2.0 && moved.is_some() {
                state.placing.moved = None;
                put(pid, &self.shared_cores());
                continue;
            }
            if own < BUSY || moved.is_some_and(|at| now.saturating_sub(at) < STAYS) {
                continue;
            }
            let shares = idle.get_or_insert_with(|| self.idle_shares(window));
            let Some(core) = core_of(pid) else { continue };
            if let Some(to) = better(core, own, shares) {
                shares.entry(core).and_modify(|share| *share += own);
                shares.entry(to).and_modify(|share| *share -= own);
                if let Some(state) = self.seat_mut(seat) {
                    state.placing.moved = Some(now);
                }
                let mut set = CpuSet::new();
                set.set(to as usize);
                put(pid, &set);
            }
        }
        if idle.is_none() {
            // Nobody was busy: what is read next time would span all of that.
            self.spread.idle.clear();
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

/// The core to which a worker with this share of `core` is better moved: `core` is
/// full with somebody else's work too, and another has room for all of it.
fn better(core: u32, own: f64, idle: &BTreeMap<u32, f64>) -> Option<u32> {
    let here = *idle.get(&core)?;
    let others = 1.0 - here - own;
    let (to, room) = idle
        .iter()
        .filter(|(other, _)| **other != core)
        .max_by(|a, b| a.1.total_cmp(b.1))?;
    (here < FULL && others >= BUSY && *room >= own * 1.1).then_some(*to)
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

    fn moved(core: u32, own: f64, idle: &[f64]) -> Option<u32> {
        better(core, own, &(0..).zip(idle.iter().copied()).collect())
    }

    #[test]
    fn who_shares_a_full_core_goes_where_there_is_room() {
        assert_eq!(moved(1, 0.55, &[0.74, 0.0]), Some(0));
        assert_eq!(moved(0, 0.5, &[0.02, 0.6, 0.9]), Some(2), "the idlest");
        assert_eq!(moved(1, 0.55, &[0.5, 0.0]), None, "no room for all of it");
        assert_eq!(moved(1, 0.98, &[1.0, 0.0]), None, "alone on its core");
        assert_eq!(moved(1, 0.4, &[1.0, 0.3]), None, "its core is not full");
        assert_eq!(moved(1, 0.4, &[1.0]), None, "its core is not a shared one");
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
