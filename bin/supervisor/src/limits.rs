//! What a compartment's processes may use, kept by groups where the host has them.

use crate::errands::{self, tasks};
use crate::registry::Seat;
use crate::seats::label;
use crate::settings::RANGE;
use crate::supervisor::Supervisor;
use crate::workers::Role;
use command::verbs::CreateCompartment;
use confine::{Cgroup, Limits, OPERATOR_PROCESSES, OPERATOR_TASKS};
use guard::guard;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use telemetry::counters::MOST_WORKERS;

/// What is so where the host has no groups.
pub const WITHOUT_GROUPS: &str = "memory is limited by rlimits alone, and operators' processes are counted with their tenants' programs";

/// How names of groups begin, of a compartment's and of its operators'.
const COMPARTMENT: &str = "compartment-";
const OPERATORS: &str = "operators-";

/// Whether a group of this name is of the instance whose uids begin here.
pub fn is_group_of(name: &str, first: u32) -> bool {
    let number = |text: &str| text.parse().ok();
    let compartment = || number(name.strip_prefix(COMPARTMENT)?.split_once('-')?.0);
    let uid = number(name.strip_prefix(OPERATORS).unwrap_or_default());
    let is_ours = |uid: u32| uid.checked_sub(first).is_some_and(|nth| nth < RANGE);
    compartment() == Some(first) || uid.is_some_and(is_ours)
}

impl Supervisor {
    /// The compartment's limits, where the host has something to keep them with; `memory`:
    /// of all that is charged to it, bytes.
    pub fn cgroup_for(&mut self, body: &CreateCompartment, memory: u64) -> Option<Cgroup> {
        let limits = Limits {
            memory: (memory != 0).then_some(memory),
            processes: Some(4 + body.workers.min(MOST_WORKERS as u32)),
            weight: None,
        };
        // Another instance on this host has a compartment of the same number, and other limits.
        let name = format!("{COMPARTMENT}{}-{}", self.settings.first_uid(), body.id);
        self.group(&name, &limits, body.id)
    }

    /// What bounds the processes of a compartment's operators, and theirs alone: by their uid the
    /// kernel counts the compartment's programs too. It has its name from that uid, not the
    /// compartment's number: what hangs of a compartment that is gone is on no other's account.
    pub fn operators_group(&mut self, compartment: u32, uid: u32) -> Option<Cgroup> {
        let limits = Limits {
            processes: Some(OPERATOR_PROCESSES),
            ..Limits::default()
        };
        let group = self.group(&format!("{OPERATORS}{uid}"), &limits, compartment)?;
        if group.bounds_processes() {
            return Some(group);
        }
        confine::say!(
            "supervisor: {}: no cgroup bounds processes here: its operators' are counted with their tenants' programs",
            label(Seat::Compartment(compartment))
        );
        let _ = group.remove();
        None
    }

    fn group(&mut self, name: &str, limits: &Limits, compartment: u32) -> Option<Cgroup> {
        let hierarchy = self.hierarchy.as_ref()?;
        match Cgroup::create(hierarchy, name, limits) {
            Ok(group) => {
                // One of before that was to be removed, and is this one now.
                self.old_cgroups.retain(|old| *old != group);
                Some(group)
            }
            Err(error) => {
                // Said once: the next would be refused as well.
                self.hierarchy = None;
                let of = label(Seat::Compartment(compartment));
                confine::say!("supervisor: {of}: {error}; {WITHOUT_GROUPS}");
                None
            }
        }
    }

    /// Puts processes that were seated, and operators, under their compartments' limits. The kernel
    /// takes some 10 ms to move a process between cgroups, and hardly longer for many:
    /// so this comes behind all that is urgent, and for all at once.
    pub fn limit_seated(&mut self) {
        for (id, compartment, _) in std::mem::take(&mut self.unlimited) {
            let (Some(worker), Some(home)) =
                (self.workers.get(&id), self.compartments.get(&compartment))
            else {
                continue;
            };
            let Some(pid) = Pid::from_raw(worker.pid.cast_signed()) else {
                continue;
            };
            // Also one that was killed meanwhile, and may hang; not of a compartment of before.
            let is_operator = worker.role == Role::Operator;
            let circuits = home.circuits.as_ref();
            let circuits = circuits.filter(|circuits| circuits.uid() == worker.uid);
            let group = match is_operator {
                true => circuits.and_then(|circuits| circuits.group.as_ref()),
                false => home.cgroup.as_ref(),
            };
            match group.map(|group| group.add(worker.pid)) {
                Some(Ok(())) if is_operator => {
                    raise_tasks(pid, worker.uid);
                    continue;
                }
                Some(Ok(())) => continue,
                Some(Err(error)) => confine::say!(
                    "supervisor: {}: {error}",
                    label(Seat::Compartment(compartment))
                ),
                None => {}
            }
            if home.body.memory != 0 && !is_operator {
                // Without cgroups: at least its private memory is bounded.
                let most = Some(home.body.memory);
                let _ = prlimit(
                    Some(pid),
                    Resource::Data,
                    Rlimit {
                        current: most,
                        maximum: most,
                    },
                );
            }
        }
    }

    /// Raises a compartment's limit to what its machines may share. Nothing but a
    /// supervisor's restart lowers it again: what a machine that is gone from here still holds may still be charged, and the kernel
    /// would end the switch for it.
    pub fn make_room(&mut self, compartment: u32) {
        let Some(home) = self.compartments.get(&compartment) else {
            return;
        };
        let (most, group) = (home.memory(), home.cgroup.as_ref());
        if most > home.body.memory
            && let Some(Err(error)) = group.map(|group| group.allow_memory(most))
        {
            confine::say!(
                "supervisor: {}: {error}",
                label(Seat::Compartment(compartment))
            );
        }
    }
}

/// An operator is bounded by its group: the limit that counts its compartment's programs as well
/// has nothing left to do. To no more than what it took for its most, which is no privilege.
fn raise_tasks(pid: Pid, uid: u32) {
    let own = getrlimit(Resource::Nproc).maximum;
    let most = own.map_or(OPERATOR_TASKS, |own| own.min(OPERATOR_TASKS));
    if !guard!("operator-tasks") || tasks::raise(pid, most).is_ok() {
        return;
    }
    let words = format!("{} {uid} {uid} {most}", pid.as_raw_nonzero());
    if let Err(error) = errands::says_to(tasks::TASKS, &words) {
        confine::say!(
            "supervisor: an operator's processes are counted with its tenant's programs: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_another_instance_are_left_alone() {
        for (name, is) in [
            ("operators-1000", true),
            ("operators-17383", true),
            ("operators-17384", false),
            ("operators-999", false),
            ("operators-", false),
            ("operators-1000-1", false),
            ("compartment-1000-7", true),
            ("compartment-1001-7", false),
            ("compartment-1000", false),
            ("test-1000", false),
        ] {
            assert_eq!(is_group_of(name, 1000), is, "{name}");
        }
    }
}
