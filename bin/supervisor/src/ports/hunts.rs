//! Sockets of circuits are looked for in processes: what is allowed no more is cut by its operator,
//! which sees neither processes nor their descriptors until it is told where. What is read here is
//! names of links, in /proc: nothing that a program could make wait.

use super::*;
use command::verbs::{Found, Seek, Sought};
use std::fs::{ReadDir, read_dir, read_link};
use std::time::{Duration, Instant};

/// So long at a time.
const TURN: Duration = Duration::from_millis(1);
/// Looks at the clock after so many steps.
const STEPS: usize = 16;
/// A search that takes longer is over, found or not.
const LONGEST: Duration = Duration::from_secs(5);

/// A search for sockets of a compartment's circuits.
pub struct Hunt {
    /// Inodes of those that are not found yet.
    wanted: BTreeSet<u64>,
    began: Option<Instant>,
    /// Processes that are still to be looked at.
    processes: Vec<u32>,
    /// Threads of the one that is: each may have descriptors of its own.
    threads: Vec<(u32, u32)>,
    /// Descriptors of the thread that is.
    of: Option<(u32, ReadDir)>,
}

impl Hunt {
    fn new() -> Hunt {
        Hunt {
            wanted: BTreeSet::new(),
            began: None,
            processes: Vec::new(),
            threads: Vec::new(),
            of: None,
        }
    }

    /// One step: a descriptor, a thread's list of them, or a process. `None`: that was all.
    fn step(&mut self, own: &Path) -> Option<Option<Found>> {
        if let Some((thread, entries)) = &mut self.of {
            let Some(entry) = entries.next() else {
                self.of = None;
                return Some(None);
            };
            let found = entry.ok().and_then(|entry| {
                let number = entry.file_name().to_str()?.parse().ok()?;
                let inode = inode_of(read_link(entry.path()).ok()?.to_str()?)?;
                let thread = *thread;
                self.wanted.contains(&inode).then_some(Found {
                    inode,
                    thread,
                    number,
                })
            });
            return Some(found);
        }
        if let Some((process, thread)) = self.threads.pop() {
            let list = read_dir(format!("/proc/{process}/task/{thread}/fd"));
            self.of = list.ok().map(|list| (thread, list));
            return Some(None);
        }
        let process = self.processes.pop()?;
        // No program of circuits is in the namespace that this process is in.
        let users = read_link(format!("/proc/{process}/ns/user"));
        if users.is_ok_and(|users| users != own) {
            let threads = numbers(&format!("/proc/{process}/task"));
            self.threads = threads.map(|thread| (process, thread)).collect();
        }
        Some(None)
    }
}

impl Supervisor {
    /// An operator wants to know who has these sockets.
    pub(super) fn seek(&mut self, compartment: u32, body: &Seek) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let hunt = circuits.hunt.get_or_insert_with(|| Box::new(Hunt::new()));
        let count = body.count as usize;
        hunt.wanted.extend(body.inodes.iter().take(count));
        if body.last != 0 {
            hunt.began = Some(Instant::now());
            hunt.processes = numbers("/proc").collect();
            (hunt.threads, hunt.of) = (Vec::new(), None);
        }
    }

    /// Goes on with what is looked for; whether there is more to do.
    pub fn go_on_hunting(&mut self) -> bool {
        let is_due = |c: &circuits::Circuits| c.hunt.as_ref().is_some_and(|h| h.began.is_some());
        let all = self.compartments.iter();
        let due = all.filter(|(_, home)| home.circuits.as_deref().is_some_and(is_due));
        let due: Vec<u32> = due.map(|(id, _)| *id).collect();
        let Ok(own) = read_link("/proc/self/ns/user") else {
            return false;
        };
        for compartment in &due {
            self.hunt(*compartment, &own);
        }
        !due.is_empty()
    }

    fn hunt(&mut self, compartment: u32, own: &Path) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let Some(mut hunt) = circuits.hunt.take() else {
            return;
        };
        let operator = circuits.operator;
        let until = Instant::now() + TURN;
        let mut found = Vec::new();
        let mut goes_on = true;
        while goes_on && Instant::now() < until {
            for _ in 0..STEPS {
                match hunt.step(own) {
                    None => goes_on = false,
                    Some(one) => found.extend(one),
                }
            }
        }
        goes_on &= hunt.began.is_some_and(|began| began.elapsed() < LONGEST);
        let Some(operator) = operator else {
            // Its successor looks itself what is still to be cut.
            return;
        };
        for body in found {
            self.tell(operator, &Message::new(0, &body), Vec::new());
        }
        if !goes_on {
            self.tell(operator, &Message::new(0, &Sought::default()), Vec::new());
        } else if let Some(circuits) = self.circuits(compartment) {
            circuits.hunt = Some(hunt);
        }
    }
}

/// A socket's inode, from what a link says: `socket:[123]`.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
