//! Sockets are looked for in processes, by a process of its own that does nothing else (`ports::hunts`): what
//! /proc says of a program that is executing another waits until that has closed its files, and a file of a
//! FUSE is closed when its owner likes. Whoever asked knows where this one stands, and kills it.

use guard::guard;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{read_dir, read_link};
use std::io::{Read, Result, Write};
use std::time::{Duration, Instant};

/// The word by which this program searches.
pub const SEARCH: &str = "search";
/// A search that takes longer is over, found or not.
pub const LONGEST: Duration = Duration::from_secs(2);
/// It says where it is after so many descriptors, or threads, of one process.
const SAYS: usize = 512;
/// So many descriptors of each table are looked at before those beyond of any: nobody keeps others' from being
/// found by having many.
const FEW: usize = 256;

/// What is looked for: sockets, by inode, in processes of user namespaces that are this user's, but not in
/// these.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Who made the namespaces.
    pub uid: u32,
    /// Processes that are passed over.
    pub not_in: BTreeSet<u32>,
    /// Inodes.
    pub inodes: BTreeSet<u64>,
}

/// What is said of it, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// This process, or thread, is looked at.
    At(u32),
    /// It has the socket of this inode, by this number.
    Found(u64, u32, u32),
}

impl Wanted {
    /// As a searcher is told it.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.uid);
        for process in &self.not_in {
            let _ = write!(text, "{process} ");
        }
        text.push('\n');
        for inode in &self.inodes {
            let _ = write!(text, "{inode} ");
        }
        text
    }

    fn of(text: &str) -> Option<Wanted> {
        let mut lines = text.lines();
        let uid = lines.next()?.parse().ok()?;
        let not_in = lines.next()?.split_whitespace();
        let not_in = not_in
            .map(str::parse)
            .collect::<std::result::Result<_, _>>();
        let inodes = lines.next().unwrap_or_default().split_whitespace();
        let inodes = inodes
            .map(str::parse)
            .collect::<std::result::Result<_, _>>();
        Some(Wanted {
            uid,
            not_in: not_in.ok()?,
            inodes: inodes.ok()?,
        })
    }
}

impl Says {
    /// From a line.
    pub fn of(line: &str) -> Option<Says> {
        let mut words = line.split(' ');
        let one = words.next()?.parse().ok()?;
        let Some(thread) = words.next() else {
            return Some(Says::At(u32::try_from(one).ok()?));
        };
        let number = words.next()?.parse().ok()?;
        Some(Says::Found(one, thread.parse().ok()?, number))
    }
}

/// Searches for what is on its input, and says what it finds.
///
/// # Errors
/// What is asked for is not understood; nobody listens.
pub fn run() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let wanted = Wanted::of(&text).ok_or(std::io::ErrorKind::InvalidInput)?;
    search(&wanted, numbers("/proc").collect(), &mut std::io::stdout())
}

/// In these processes.
fn search(wanted: &Wanted, processes: Vec<u32>, out: &mut impl Write) -> Result<()> {
    let began = Instant::now();
    let (mut others, mut many) = (Vec::new(), Vec::new());
    for process in processes {
        if wanted.not_in.contains(&process) || began.elapsed() > LONGEST {
            continue;
        }
        writeln!(out, "{process}")?;
        out.flush()?;
        // All programs of a compartment's circuits are in user namespaces of its operator's: of others'
        // it is told nothing.
        let users = notify::user_namespace(process);
        let is_its = |users| notify::is_within(users, wanted.uid) || !guard!("hunt-own");
        if !users.is_some_and(is_its) {
            continue;
        }
        let mut tables = tables(process, out)?.into_iter();
        if let Some(first) = tables.next()
            && !look(first, 0..FEW, wanted, out)?
        {
            many.push(first);
        }
        others.extend(tables);
    }
    let others = others.into_iter().map(|thread| (thread, 0));
    for (thread, from) in others.chain(many.into_iter().map(|thread| (thread, FEW))) {
        if !wanted.not_in.contains(&thread) && began.elapsed() <= LONGEST {
            look(thread, from..usize::MAX, wanted, out)?;
        }
    }
    out.flush()
}

/// Through these of the descriptors of a thread; whether there are no more.
fn look(
    thread: u32,
    which: std::ops::Range<usize>,
    wanted: &Wanted,
    out: &mut impl Write,
) -> Result<bool> {
    /// Of a socket that has many numbers in a table it is enough to know a few: it is one socket.
    const NUMBERS: u32 = 4;
    let mut told: BTreeMap<u64, u32> = BTreeMap::new();
    let entries = read_dir(format!("/proc/{thread}/fd"));
    for (n, entry) in entries.into_iter().flatten().flatten().enumerate() {
        if n % SAYS == 0 {
            writeln!(out, "{thread}")?;
            out.flush()?;
        }
        if n >= which.end && guard!("hunt-few") {
            return Ok(false);
        }
        if n < which.start {
            continue;
        }
        let inode = read_link(entry.path()).ok();
        let inode = inode.and_then(|link| inode_of(link.to_str()?));
        let number = entry
            .file_name()
            .to_str()
            .and_then(|it| it.parse::<u32>().ok());
        if let (Some(inode), Some(number)) = (inode, number)
            && wanted.inodes.contains(&inode)
        {
            let told = told.entry(inode).or_default();
            *told += 1;
            if *told > NUMBERS && guard!("hunt-numbers") {
                continue;
            }
            writeln!(out, "{inode} {thread} {number}")?;
        }
    }
    Ok(true)
}

/// Threads of a process of which no two have their descriptors in common, as far as the kernel says:
/// who makes thousands has nobody look at the same thousands of times.
fn tables(process: u32, out: &mut impl Write) -> Result<Vec<u32>> {
    /// Tables that the others are compared with.
    const KNOWN: usize = 8;
    let mut tables: Vec<u32> = Vec::new();
    let mut threads: Vec<u32> = numbers(&format!("/proc/{process}/task")).collect();
    threads.sort_by_key(|thread| *thread != process);
    for (n, thread) in threads.into_iter().enumerate() {
        if n % SAYS == SAYS - 1 {
            writeln!(out, "{process}")?;
            out.flush()?;
        }
        let known = tables.iter().take(KNOWN);
        let mut same = known.map(|table| notify::share_descriptors(*table, thread));
        if !same.any(|same| same == Some(true)) {
            tables.push(thread);
        }
    }
    Ok(tables)
}

/// A socket's inode, from what a link says: `socket:[123]`.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The entries of a folder that are numbers.
pub(super) fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood_and_what_is_said_too() {
        let wanted = Wanted {
            uid: 70_000,
            not_in: [3, 77].into(),
            inodes: [1, u64::MAX].into(),
        };
        assert_eq!(Wanted::of(&wanted.text()), Some(wanted));
        let none = Wanted::default();
        assert_eq!(Wanted::of(&none.text()), Some(none));
        assert_eq!(Wanted::of("no"), None);
        assert_eq!(Says::of("17"), Some(Says::At(17)));
        assert_eq!(Says::of("9 17 3"), Some(Says::Found(9, 17, 3)));
        for line in ["", "x", "9 17", "9 17 x", "99999999999"] {
            assert_eq!(Says::of(line), None, "{line}");
        }
    }

    /// A program in a user namespace of this user's that has a socket `s`, and its inode.
    fn program(makes: &str) -> (std::process::Child, u64) {
        let says = format!(
            "import os, socket, time; {makes}; print(os.fstat(s.fileno()).st_ino, flush=True); time.sleep(60)"
        );
        let mut child = std::process::Command::new("unshare")
            .args(["-Ur", "python3", "-c", &says])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let inode = line.trim().parse().unwrap();
        (child, inode)
    }

    #[test]
    fn of_others_programs_nothing_is_told() {
        let (mut child, inode) = program("s = socket.socket(); d = [s.dup() for _ in range(9)]");
        let found = |uid, not_in: &[u32]| {
            let wanted = Wanted {
                uid,
                not_in: not_in.iter().copied().collect(),
                inodes: [inode].into(),
            };
            let mut out = Vec::new();
            search(&wanted, vec![child.id()], &mut out).unwrap();
            let said = String::from_utf8(out).unwrap();
            let all = said.lines().map(|line| Says::of(line).unwrap());
            all.filter(|it| matches!(it, Says::Found(..))).count()
        };
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(found(me, &[]), 4);
        assert_eq!((found(me + 54_321, &[]), found(me, &[child.id()])), (0, 0));
        let _ = child.kill();
        let _ = child.wait();
    }

    /// What others have by the hundred is looked at after what everybody has few of.
    #[test]
    fn who_has_many_keeps_nobody_elses_from_being_found_first() {
        let has = |descriptors: usize| {
            program(&format!(
                "d = [os.open('/dev/null', 0) for _ in range({descriptors})]; s = socket.socket()"
            ))
        };
        let [(mut many, hidden), (mut few, plain)] = [FEW + 50, 3].map(has);
        let wanted = Wanted {
            uid: rustix::process::geteuid().as_raw(),
            not_in: BTreeSet::new(),
            inodes: [hidden, plain].into(),
        };
        let mut out = Vec::new();
        search(&wanted, vec![many.id(), few.id()], &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        let found = said.lines().filter_map(|line| match Says::of(line) {
            Some(Says::Found(inode, ..)) => Some(inode),
            _ => None,
        });
        assert_eq!(found.collect::<Vec<_>>(), [plain, hidden]);
        for child in [&mut many, &mut few] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
