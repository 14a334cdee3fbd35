//! Isolated cores: who has one for itself has it and its siblings alone among all that
//! runs below the keeper. What else runs on the host is the operator's to keep off.

use crate::crews;
use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::label;
use crate::supervisor::Supervisor;
use crate::workers::{Place, Worker};
use command::cores::Cores;
use command::message::ErrorCode;
use guard::guard;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// The cores that the keeper may use, and so we, each with those of its siblings that
/// it may use too. Empty where they cannot be known.
pub fn of_keeper() -> Cores {
    let Ok(ours) = sched_getaffinity(rustix::process::getppid()) else {
        return Cores::default();
    };
    let may = |core: &u32| (*core as usize) < CpuSet::MAX_CPU && ours.is_set(*core as usize);
    let all = (0..CpuSet::MAX_CPU as u32).filter(may);
    Cores::new(all.map(|core| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(path).unwrap_or_default();
        let mut group: BTreeSet<u32> = listed(&siblings).filter(may).collect();
        group.insert(core);
        group
    }))
}

/// The numbers of a kernel's list, as `0-2,8`.
fn listed(text: &str) -> impl Iterator<Item = u32> {
    text.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1).min(CpuSet::MAX_CPU as u32),
            _ => 0..0,
        }
    })
}

impl Supervisor {
    /// Whether there are these cores. That isolated ones do not share, and leave one for
    /// the others, the controller sees to: in the middle of a change they may not.
    ///
    /// # Errors
    /// [`Refusal`] that says why not.
    pub fn has_cores(&self, mut cores: impl Iterator<Item = u32>) -> Result<(), Refusal> {
        let missing = cores.find(|core| !self.cores.has(*core) && guard!("core-there"));
        missing.map_or(Ok(()), |core| {
            let what = format!("core {core} is not there, or not for Bulkhead to use");
            Err(Refusal::new(ErrorCode::Limit, what))
        })
    }

    /// Keeps everybody else off the cores that are isolated now: this process, from
    /// which those to come inherit it, and all that run without a core of their own.
    pub fn share_cores(&self) {
        let set = self.shared_cores();
        // Only in the middle of a change; and where cores are not known.
        if set.count() == 0 || !guard!("cores-apart") {
            return;
        }
        let _ = sched_setaffinity(None, &set);
        for worker in self.workers.values().filter(|w| !self.has_own_core(w)) {
            put(worker.pid, &set);
        }
    }

    /// The cores that nobody has for itself.
    pub fn shared_cores(&self) -> CpuSet {
        let own = self.compartments.values().flat_map(|c| c.body.cores());
        set_of(self.cores.rest(&own.collect()))
    }

    /// Pins a process to its compartment's cores, if that has any of its own; threads that it
    /// starts begin there too.
    pub fn pin(&self, id: u64, compartment: u32) {
        let (Some(worker), Some(compartment)) =
            (self.workers.get(&id), self.compartments.get(&compartment))
        else {
            return;
        };
        let cores = set_of(compartment.body.cores());
        let pid = Pid::from_raw(worker.pid.cast_signed());
        if cores.count() == 0 || pid.is_none() {
            return;
        }
        if let Err(errno) = sched_setaffinity(pid, &cores) {
            confine::say!(
                "supervisor: {} cannot have its cores: {errno}",
                label(Seat::Compartment(compartment.body.id))
            );
        }
    }

    /// Pins each of several workers to its core, once all have begun; whether that is done,
    /// or there is nothing to be done. The thread that speaks for them stays on whichever of
    /// their cores the kernel likes: on others its code would be beside somebody else's.
    pub fn pin_workers(&mut self, seat: Seat, pid: u32) -> bool {
        let Seat::Compartment(id) = seat else {
            return true;
        };
        let Some(compartment) = self.compartments.get_mut(&id) else {
            return true;
        };
        let body = &compartment.body;
        if compartment.seat.is_pinned || body.core == u32::MAX || !guard!("workers-apart") {
            return true;
        }
        let threads = crews::threads(pid);
        if threads.len() != body.workers as usize + 1 {
            return false;
        }
        let workers = threads.into_iter().skip(1);
        for (worker, ((thread, _), core)) in workers.zip(body.cores()).enumerate() {
            let thread = Pid::from_raw(thread.cast_signed());
            if thread.is_some()
                && let Err(errno) = sched_setaffinity(thread, &set_of([core]))
            {
                let label = label(seat);
                confine::say!(
                    "supervisor: worker {worker} of {label} cannot have core {core}: {errno}"
                );
            }
        }
        compartment.seat.is_pinned = true;
        true
    }

    fn has_own_core(&self, worker: &Worker) -> bool {
        matches!(worker.place, Place::Seated(seat) if self.is_pinned(seat))
    }

    /// Whether a seat has a core for itself.
    pub fn is_pinned(&self, seat: Seat) -> bool {
        let Seat::Compartment(id) = seat else {
            return false;
        };
        let compartment = self.compartments.get(&id);
        compartment.is_some_and(|c| c.body.core != u32::MAX)
    }
}

fn set_of(cores: impl IntoIterator<Item = u32>) -> CpuSet {
    let mut set = CpuSet::new();
    let there = |core: &u32| (*core as usize) < CpuSet::MAX_CPU;
    for core in cores.into_iter().filter(there) {
        set.set(core as usize);
    }
    set
}

/// Every thread of a process. One that ends meanwhile is no loss.
pub fn put(pid: u32, set: &CpuSet) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let number = thread.file_name().to_str().and_then(|n| n.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            let _ = sched_setaffinity(Some(thread), set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        let list = |text| listed(text).collect::<Vec<_>>();
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list("3"), [3]);
        assert!(list("").is_empty() && list("x-y").is_empty());
    }
}
