//! Switches with several workers: threads of one process, each watched by itself.

use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::SeatState;
use crate::supervisor::Supervisor;
use crate::watch::Seen;
use command::message::ErrorCode;
use command::verbs::CreateCompartment;
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

    /// Whether a compartment may have so many workers.
    ///
    /// # Errors
    /// [`Refusal`] that says why not.
    pub fn has_workers(&self, body: &CreateCompartment) -> Result<(), Refusal> {
        if body.workers <= MOST_WORKERS as u32 {
            return Ok(());
        }
        let workers = body.workers;
        let why = format!("{workers} workers are out of range (1 to {MOST_WORKERS})");
        Err(Refusal::new(ErrorCode::Limit, why))
    }

    /// Lets a process have the threads that its seat has workers for, beside its first. All
    /// others may have none.
    pub fn allow_threads(&self, id: u64, workers: u32) {
        let Some(worker) = self.workers.get(&id) else {
            return;
        };
        // What is not sandboxed has no such limit.
        if workers < 2 || worker.profile != worker.role.profile() {
            return;
        }
        let threads = Some(u64::from(workers) + 1);
        let limit = Rlimit {
            current: threads,
            maximum: Some(MOST_WORKERS as u64 + 1),
        };
        let Some(pid) = Pid::from_raw(worker.pid.cast_signed()) else {
            return;
        };
        if let Err(errno) = prlimit(Some(pid), Resource::Nproc, limit) {
            confine::say!("supervisor: {workers} workers cannot be allowed: {errno}");
        }
    }
}

impl SeatState {
    /// One look at each of several workers.
    pub fn look_at_workers(&mut self, workers: u32, pid: u32) -> Seen {
        // The first thread speaks for them.
        let spent = threads(pid).into_iter().skip(1);
        let mut spent: Vec<Option<Duration>> = spent.map(|(_, cpu)| Some(cpu)).collect();
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

/// Each thread of a process and its processor time, in the order in which they were started.
pub fn threads(pid: u32) -> Vec<(u32, Duration)> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task"));
    let spent = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
        let ns = text.split_ascii_whitespace().next()?.parse().ok()?;
        Some((number, Duration::from_nanos(ns)))
    };
    let entries = listed.into_iter().flatten().flatten();
    entries.filter_map(spent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    #[test]
    fn threads_are_seen_in_the_order_of_their_start_with_what_each_has_spent() {
        let (tell, told) = mpsc::channel();
        let mut running = Vec::new();
        for busy in [Duration::ZERO, Duration::from_millis(60)] {
            let (end, ended) = mpsc::channel::<()>();
            let tell = tell.clone();
            let thread = std::thread::spawn(move || {
                let began = Instant::now();
                while began.elapsed() < busy {
                    std::hint::spin_loop();
                }
                let own = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(own.cast_unsigned()).unwrap();
                let _ = ended.recv();
            });
            running.push((thread, end));
            let own = told.recv().unwrap();
            let all = threads(std::process::id());
            let (last, spent) = all.iter().rev().find(|(one, _)| *one == own).unwrap();
            assert_eq!(*last, own);
            assert!(*spent >= busy / 4, "{spent:?} of {busy:?}");
        }
        let order: Vec<u32> = threads(std::process::id())
            .iter()
            .map(|(n, _)| *n)
            .collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(order, sorted, "numbers rise as threads are started");
        for (thread, end) in running {
            drop(end);
            thread.join().unwrap();
        }
    }
}
