//! Sockets of circuits are looked for in processes: what is allowed no more is cut by its operator,
//! which sees neither processes nor their descriptors until it is told where. What is read here is
//! names of links, in /proc: nothing that a program could make wait.

use super::*;
use command::verbs::{Found, Seek, Sought};
use std::fs::{File, ReadDir, read_dir, read_link};
use std::time::{Duration, Instant};

/// So long at a time.
const TURN: Duration = Duration::from_millis(1);
/// Looks at the clock after so many steps.
const STEPS: usize = 16;
/// A search that takes longer is over, found or not. Three, and the rests between them, are less than a
/// change of tables waits (`operators::DECIDE_LIMIT`).
const LONGEST: Duration = Duration::from_secs(2);
/// The next of the same compartment begins so many times as long after its end, this long at most.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Sockets of a compartment that are looked for at a time: it has no more.
const MOST: usize = 16_384;

/// A search for sockets of a compartment's circuits.
pub struct Hunt {
    /// Inodes of those that are not found yet.
    wanted: BTreeSet<u64>,
    /// It is to begin, or, while it goes on, to begin anew at its end.
    asked: bool,
    /// The next is not to begin before.
    rests: Option<Instant>,
    began: Option<Instant>,
    /// Processes that are still to be looked at.
    processes: Vec<u32>,
    /// Threads whose descriptors are to be looked at: the first of each process, those others that
    /// have some of their own when all processes were.
    threads: Vec<u32>,
    others: Vec<u32>,
    /// Descriptors of the thread that is.
    of: Option<(u32, ReadDir)>,
}

impl Hunt {
    fn new() -> Hunt {
        Hunt {
            wanted: BTreeSet::new(),
            asked: false,
            rests: None,
            began: None,
            processes: Vec::new(),
            threads: Vec::new(),
            others: Vec::new(),
            of: None,
        }
    }

    /// These too, once the last of them is named. Who names more than there can be, or names them
    /// without end, has a search after the other, and no more memory.
    fn seeks(&mut self, body: &Seek) {
        let room = MOST.saturating_sub(self.wanted.len());
        let count = room.min(body.count as usize);
        self.wanted.extend(body.inodes.iter().take(count));
        self.asked |= body.last != 0;
    }

    /// Whether there is something to do now.
    fn is_due(&self) -> bool {
        let rests = self.rests.is_some_and(|until| Instant::now() < until);
        self.began.is_some() || self.asked && !rests
    }

    /// How long it rests before what it was asked for; none: it has begun, or is not asked.
    fn rests(&self) -> Option<Duration> {
        let waits = self.began.is_none() && self.asked;
        let until = self.rests.filter(|_| waits)?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn begins(&mut self) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.asked = false;
            self.processes = numbers("/proc").collect();
            (self.threads, self.others, self.of) = (Vec::new(), Vec::new(), None);
        }
    }

    /// It is over. Whether all that was asked for was looked for: else another begins.
    fn ends(&mut self) -> bool {
        let took = self.began.take().map(|began| began.elapsed());
        let rest = (took.unwrap_or_default() * REST).min(LONGEST_REST);
        self.rests = Instant::now().checked_add(rest);
        if !self.asked {
            self.wanted.clear();
        }
        !self.asked
    }

    /// One step: a descriptor, a thread's list of them, or a process. `None`: that was all.
    fn step(&mut self, uid: u32) -> Option<Option<Found>> {
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
        if let Some(thread) = self.threads.pop() {
            let list = read_dir(format!("/proc/{thread}/fd"));
            self.of = list.ok().map(|list| (thread, list));
            return Some(None);
        }
        let Some(process) = self.processes.pop() else {
            self.threads.push(self.others.pop()?);
            return Some(None);
        };
        // All programs of a compartment's circuits are in user namespaces of its operator's: of others'
        // it is told nothing.
        let users = File::open(format!("/proc/{process}/ns/user"));
        let is_its = |users: File| notify::is_within(users.into(), uid) || !guard!("hunt-own");
        if users.is_ok_and(is_its) {
            let (first, others) = tables(process);
            self.threads.extend(first);
            self.others.extend(others);
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
        hunt.seeks(body);
    }

    /// Goes on with what is looked for; whether there is more to do.
    pub fn go_on_hunting(&mut self) -> bool {
        let is_due = |c: &circuits::Circuits| c.hunt.as_ref().is_some_and(|h| h.is_due());
        let all = self.compartments.iter();
        let due = all.filter(|(_, home)| home.circuits.as_deref().is_some_and(is_due));
        let due: Vec<u32> = due.map(|(id, _)| *id).collect();
        for compartment in &due {
            self.hunt(*compartment);
        }
        !due.is_empty()
    }

    /// When one that rests is to begin.
    pub fn next_hunt(&self, now: u64) -> Option<u64> {
        let circuits = self.compartments.values();
        let circuits = circuits.filter_map(|home| home.circuits.as_deref());
        let rests = circuits.filter_map(|circuits| circuits.hunt.as_ref()?.rests());
        let least = rests.min()?;
        Some(now + least.as_nanos() as u64)
    }

    fn hunt(&mut self, compartment: u32) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let Some(mut hunt) = circuits.hunt.take() else {
            return;
        };
        let (operator, uid) = (circuits.operator, circuits.uid());
        let until = Instant::now() + TURN;
        hunt.begins();
        let mut found = Vec::new();
        let mut goes_on = true;
        while goes_on && Instant::now() < until {
            for _ in 0..STEPS {
                match hunt.step(uid) {
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
        if !goes_on && hunt.ends() {
            self.tell(operator, &Message::new(0, &Sought::default()), Vec::new());
        }
        if let Some(circuits) = self.circuits(compartment) {
            circuits.hunt = Some(hunt);
        }
    }
}

/// Threads of a process of which no two have their descriptors in common, as far as the kernel says:
/// who makes thousands has nobody look at the same thousands of times.
fn tables(process: u32) -> (Option<u32>, Vec<u32>) {
    /// Tables that the others are compared with.
    const KNOWN: usize = 8;
    let mut tables: Vec<u32> = Vec::new();
    let mut threads: Vec<u32> = numbers(&format!("/proc/{process}/task")).collect();
    threads.sort_by_key(|thread| *thread != process);
    for thread in threads {
        let known = tables.iter().take(KNOWN);
        let mut same = known.map(|table| notify::share_descriptors(*table, thread));
        if !same.any(|same| same == Some(true)) {
            tables.push(thread);
        }
    }
    let mut tables = tables.into_iter();
    (tables.next(), tables.collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(last: u32, from: u64) -> Seek {
        let mut body = Seek {
            count: 60,
            last,
            ..Seek::default()
        };
        for (n, inode) in body.inodes.iter_mut().enumerate() {
            *inode = from + n as u64;
        }
        body
    }

    #[test]
    fn who_names_without_end_has_no_more_memory_and_no_more_searches() {
        let mut hunt = Hunt::new();
        for n in 0..1000 {
            hunt.seeks(&seek(0, n * 60));
        }
        assert_eq!(hunt.wanted.len(), MOST);
        assert!(!hunt.is_due() && hunt.rests().is_none());
        hunt.seeks(&seek(1, 0));
        assert!(hunt.is_due());
        hunt.begins();
        let began = hunt.began;
        hunt.seeks(&seek(1, 0));
        hunt.begins();
        assert_eq!(hunt.began, began, "one after the other");
        std::thread::sleep(Duration::from_millis(20));
        assert!(!hunt.ends(), "it was asked again meanwhile");
        // It rests before it does.
        assert!(!hunt.is_due());
        let rests = hunt.rests().unwrap();
        assert!(rests > Duration::from_millis(40), "{rests:?}");
        hunt.rests = Some(Instant::now());
        assert!(hunt.is_due());
        hunt.begins();
        assert!(hunt.ends() && hunt.wanted.is_empty());
        assert!(!hunt.is_due() && hunt.rests().is_none());
    }

    #[test]
    fn of_others_programs_nothing_is_told() {
        let says = "import os, socket, time; s = socket.socket(); \
            print(os.fstat(s.fileno()).st_ino, flush=True); time.sleep(60)";
        let mut child = std::process::Command::new("unshare")
            .args(["-Ur", "python3", "-c", says])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let inode: u64 = line.trim().parse().unwrap();
        let found = |uid| {
            let mut hunt = Hunt::new();
            hunt.wanted.insert(inode);
            hunt.begins();
            hunt.processes = vec![child.id()];
            std::iter::from_fn(|| hunt.step(uid)).flatten().count()
        };
        let me = rustix::process::geteuid().as_raw();
        assert_eq!((found(me), found(me + 54_321)), (1, 0));
        let _ = child.kill();
        let _ = child.wait();
    }
}
