//! Switches with several workers: threads of one process, each watched by itself.

use crate::registry::Seat;
use crate::seats::SeatState;
use crate::supervisor::Supervisor;
use crate::watch::Seen;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::time::Duration;
use telemetry::counters::{MOST_WORKERS, ProcessWord};

impl Supervisor {
    /// The workers of a seat's process.
    pub fn workers_of(&self, seat: Seat) -> u32 {
        let Seat::Compartment(id) = seat else {
            return 1;
        };
        let compartment = self.compartments.get(&id);
        compartment.map_or(1, |c| c.body.workers.clamp(1, MOST_WORKERS as u32))
    }

    /// Lets a process have the threads that its seat has workers for, beside its first. A
    /// spare may have as many as any seat: here it loses those that it does not need.
    pub fn allow_threads(&self, id: u64, workers: u32) {
        let Some(worker) = self.workers.get(&id) else {
            return;
        };
        let threads = match workers {
            0 | 1 => 1,
            several => u64::from(several) + 1,
        };
        let limit = Rlimit {
            current: Some(threads),
            maximum: Some(threads),
        };
        let pid = Pid::from_raw(worker.pid.cast_signed());
        // What is not sandboxed shares its user's count.
        if pid.is_some() && worker.profile == worker.role.profile() {
            let _ = prlimit(pid, Resource::Nproc, limit);
        }
    }
}

impl SeatState {
    /// One look at each of several workers.
    pub fn look_at_workers(&mut self, workers: u32, pid: u32) -> Seen {
        // The first thread speaks for them.
        let spent = threads(pid).into_iter().skip(1);
        let mut spent: Vec<Option<Duration>> = spent.map(Some).collect();
        spent.resize(workers as usize, None);
        let mut seen = Seen::Asleep;
        for (worker, cpu) in (0..workers).zip(spent) {
            let heartbeat = self.word_of(worker, ProcessWord::Heartbeat);
            let asleep = self.word_of(worker, ProcessWord::Asleep) == 1;
            let Some(progress) = self.progress.get_mut(worker as usize) else {
                break;
            };
            match progress.look(heartbeat, asleep, || cpu) {
                Seen::Asleep => {}
                Seen::Awake => seen = Seen::Awake,
                Seen::Stalled => {
                    self.stuck = Some(worker);
                    return Seen::Stalled;
                }
            }
        }
        seen
    }
}

/// Processor time of each thread of a process, in the order in which they were started.
fn threads(pid: u32) -> Vec<Duration> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task"));
    let spent = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        let ns = text.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(ns))
    };
    let entries = listed.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| spent(entry.path()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_seen_in_the_order_of_their_start() {
        let before = threads(std::process::id()).len();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::spawn(move || {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(60) {
                std::hint::spin_loop();
            }
            let _ = receiver.recv();
        });
        std::thread::sleep(Duration::from_millis(200));
        let all = threads(std::process::id());
        assert!(all.len() > before);
        assert!(all.last().is_some_and(|last| *last >= Duration::from_millis(20)));
        drop(sender);
        let _ = busy.join();
    }
}
