//! Sockets are looked for in processes, by a process of its own that does nothing else (`ports::hunts`): what
//! /proc says of a program that is executing another waits until that has closed its files, and a file of a
//! FUSE is closed when its owner likes. Such are looked at last, each by a thread that is left behind; whoever
//! asked knows where this one stands, and kills it if it waits all the same.

use super::calls::end_calls;
use super::chase::{CHASE, chase};
use guard::guard;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{read_dir, read_link};
use std::io::{Read, Result, Write};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The word by which this program searches.
pub const SEARCH: &str = "search";
/// A search that takes longer is over, found or not.
pub const LONGEST: Duration = Duration::from_secs(2);
/// It says where it is after so many descriptors, or threads, of one process.
const SAYS: usize = 512;
/// So many descriptors of each table are looked at before those beyond of any: nobody keeps others' from being
/// found by having many.
const FEW: usize = 256;
/// Of what may wait so many are asked at a time: one that answers makes room for another. When none has
/// answered for so long (`hunts` takes somebody who is longer still for held up) those that are left wait.
const LATE: Duration = Duration::from_millis(150);
const MOST_LATE: usize = 256;

/// What is looked for: sockets, by inode, in processes of user namespaces that are this user's, in these
/// last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Who made the namespaces.
    pub uid: u32,
    /// Who is in no listing is chased.
    pub chases: bool,
    /// Processes, and threads, that held somebody up a while ago.
    pub late: BTreeSet<u32>,
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
    /// Into so many it could not look.
    Missed(u32),
    /// This process was ended: by a call that did not end it kept what may be wanted.
    Ended(u32),
    /// It has looked everywhere, and chases.
    Chases,
}

/// What is looked at last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Late {
    Process(u32),
    Thread(u32),
}

impl Wanted {
    /// As a searcher is told it.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}\n", self.uid, u8::from(self.chases));
        for process in &self.late {
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
        let (uid, chases) = lines.next()?.split_once(' ')?;
        let late = lines.next()?.split_whitespace();
        let late = late.map(str::parse).collect::<std::result::Result<_, _>>();
        let inodes = lines.next().unwrap_or_default().split_whitespace();
        let inodes = inodes
            .map(str::parse)
            .collect::<std::result::Result<_, _>>();
        Some(Wanted {
            uid: uid.parse().ok()?,
            chases: chases == "1",
            late: late.ok()?,
            inodes: inodes.ok()?,
        })
    }
}

impl Says {
    /// From a line.
    pub fn of(line: &str) -> Option<Says> {
        if line == "chases" {
            return Some(Says::Chases);
        }
        if let Some(missed) = line.strip_prefix("missed ") {
            return Some(Says::Missed(missed.parse().ok()?));
        }
        if let Some(process) = line.strip_prefix("ended ") {
            return Some(Says::Ended(process.parse().ok()?));
        }
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
    everywhere(&wanted, &mut std::io::stdout())
}

/// In all processes, and where nothing that is listed shows them.
pub(super) fn everywhere(wanted: &Wanted, out: &mut impl Write) -> Result<()> {
    let (began, listed): (_, Vec<u32>) = (Instant::now(), numbers("/proc").collect());
    let seen = search(wanted, listed.clone(), out)?;
    let is_seen = |inode: &u64| seen.values().any(|held| held.inodes.contains(inode));
    if !wanted.inodes.iter().all(is_seen) && guard!("hunt-calls") {
        // It leaves time to chase.
        end_calls(wanted, numbers("/proc"), began + LONGEST - 2 * CHASE, out)?;
    }
    chase(wanted, &listed, seen, out)
}

/// Who had which of what is looked for, or may have had: a descriptor that was listed was gone when it was looked at.
pub(super) type Seen = BTreeMap<u32, Held>;

/// What one was seen with.
#[derive(Default)]
pub(super) struct Held {
    /// Inodes.
    pub(super) inodes: BTreeSet<u64>,
    /// The highest number of one that was gone.
    pub(super) gone: Option<u32>,
}

/// In these processes.
fn search(wanted: &Wanted, processes: Vec<u32>, out: &mut impl Write) -> Result<Seen> {
    let mut seen = Seen::new();
    let began = Instant::now();
    let is_over = || began.elapsed() > LONGEST;
    let (mut its, mut many, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for process in processes {
        if is_over() {
            break;
        }
        writeln!(out, "{process}")?;
        out.flush()?;
        if wanted.late.contains(&process) || is_executing(process) && guard!("hunt-executing") {
            // Others' do not count.
            if may_be_its(process, wanted) {
                late.push(Late::Process(process));
            }
        } else if is_its(process, wanted) {
            let more = look(process, 0, FEW, wanted, &mut seen, out)?;
            many.extend(more.map(|from| (process, from)));
            its.push(process);
        }
    }
    // What threads have of their own is behind what processes have, but its first as well before
    // what is beyond of any. To compare tables waits, too, for who executes another program.
    for process in its {
        if is_over() {
            break;
        }
        writeln!(out, "{process}")?;
        out.flush()?;
        for thread in tables(process, out)? {
            if wanted.late.contains(&thread) {
                late.push(Late::Thread(thread));
            } else if thread != process && !is_over() {
                let more = look(thread, 0, FEW, wanted, &mut seen, out)?;
                many.extend(more.map(|from| (thread, from)));
            }
        }
    }
    for (thread, from) in many {
        if !is_over() {
            look(thread, from, usize::MAX, wanted, &mut seen, out)?;
        }
    }
    let missed = if is_over() {
        late.len().max(1)
    } else if guard!("hunt-late") {
        // Those that are left are others each time.
        let first = first_of(late.len());
        late.rotate_left(first);
        look_late(wanted, &late, began, out)?
    } else {
        0
    };
    if missed > 0 {
        writeln!(out, "missed {missed}")?;
    }
    out.flush()?;
    Ok(seen)
}

/// One of so many, by the clock.
pub(super) fn first_of(all: usize) -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_micros() as usize;
    now.checked_rem(all).unwrap_or_default()
}

/// All programs of a compartment's circuits are in user namespaces of its operator's: of others' it is told
/// nothing.
pub(super) fn is_its(process: u32, wanted: &Wanted) -> bool {
    let users = notify::user_namespace(process);
    users.is_some_and(|users| notify::is_within(users, wanted.uid) || !guard!("hunt-own"))
}

/// The same, without waiting; `true` also where only who may wait is told.
pub(super) fn may_be_its(process: u32, wanted: &Wanted) -> bool {
    let users = notify::user_namespace_at_once(process);
    let is_within = |users| notify::is_within(users, wanted.uid);
    users.is_none_or(|users| users.is_some_and(is_within)) || !guard!("hunt-late-own")
}

/// Whether a process is in the midst of executing another program: it has memory, and in that no program
/// yet. Who asks this does not wait. Programs can look like it for as long as they like, and there are ways to
/// have others wait.
fn is_executing(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let mut pages = text.split_whitespace();
    let (size, code) = (pages.next(), pages.nth(2));
    size.is_some_and(|size| size != "0") && code == Some("0")
}

/// What may wait, by a thread each, which ends with this process at the latest. (What /proc/T/fdinfo says
/// of a socket's inode does not wait here, but does for an epoll that another thread is held up in, and
/// beyond SIGKILL.) How many did not answer, or were not asked.
fn look_late(
    wanted: &Wanted,
    late: &[Late],
    began: Instant,
    out: &mut impl Write,
) -> Result<usize> {
    let (says, said) = mpsc::channel();
    let shared = Arc::new(wanted.clone());
    let asks = |late: Late| {
        let (wanted, says) = (Arc::clone(&shared), says.clone());
        let looks = move || {
            let (mut found, mut seen) = (Vec::new(), Seen::new());
            let tables = match late {
                Late::Thread(thread) => Ok(vec![thread]),
                Late::Process(process) if is_its(process, &wanted) => tables(process, &mut found),
                Late::Process(_) => Ok(Vec::new()),
            };
            for thread in tables.into_iter().flatten() {
                let _ = look(thread, 0, usize::MAX, &wanted, &mut seen, &mut found);
            }
            let _ = says.send(found);
        };
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        thread.spawn(looks).is_ok()
    };
    let (mut next, mut waiting, mut missed) = (late.iter().copied(), 0, late.len());
    while began.elapsed() < LONGEST {
        while waiting < MOST_LATE {
            // Where there is no thread, it is missed.
            let Some(late) = next.next() else { break };
            if !asks(late) {
                break;
            }
            waiting += 1;
        }
        if waiting == 0 || missed + MOST_LATE == late.len() && !guard!("hunt-windows") {
            break;
        }
        let Ok(found) = said.recv_timeout(LATE) else {
            break;
        };
        (waiting, missed) = (waiting - 1, missed - 1);
        // Nobody holds this one up.
        writeln!(out, "0")?;
        out.write_all(&found)?;
        out.flush()?;
    }
    Ok(missed)
}

/// Through so many of the descriptors of a thread that have this number or a higher one, in their order;
/// the number of the next, if there is one. By numbers: those before may be closed meanwhile.
fn look(
    thread: u32,
    from: u32,
    most: usize,
    wanted: &Wanted,
    seen: &mut Seen,
    out: &mut impl Write,
) -> Result<Option<u32>> {
    /// Of a socket that has many numbers in a table it is enough to know a few: it is one socket.
    const NUMBERS: u32 = 4;
    let mut told: BTreeMap<u64, u32> = BTreeMap::new();
    let mut looked = 0;
    let entries = read_dir(format!("/proc/{thread}/fd"));
    for (n, entry) in entries.into_iter().flatten().flatten().enumerate() {
        if n % SAYS == 0 {
            writeln!(out, "{thread}")?;
            out.flush()?;
        }
        let number = entry.file_name();
        let number = number.to_str().and_then(|it| it.parse::<u32>().ok());
        let Some(number) = number.filter(|it| *it >= from) else {
            continue;
        };
        if looked >= most && guard!("hunt-few") {
            return Ok(Some(number));
        }
        looked += 1;
        let link = read_link(entry.path());
        if link.is_err() {
            let held = seen.entry(thread).or_default();
            held.gone = held.gone.max(Some(number));
        }
        let inode = link.ok().and_then(|link| inode_of(link.to_str()?));
        if let Some(inode) = inode
            && wanted.inodes.contains(&inode)
        {
            let told = told.entry(inode).or_default();
            *told += 1;
            if *told > NUMBERS && guard!("hunt-numbers") {
                continue;
            }
            seen.entry(thread).or_default().inodes.insert(inode);
            writeln!(out, "{inode} {thread} {number}")?;
        }
    }
    Ok(None)
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
pub(super) fn inode_of(link: &str) -> Option<u64> {
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
pub(super) mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood_and_what_is_said_too() {
        let wanted = Wanted {
            uid: 70_000,
            chases: true,
            late: [3, 77].into(),
            inodes: [1, u64::MAX].into(),
        };
        assert_eq!(Wanted::of(&wanted.text()), Some(wanted));
        let none = Wanted::default();
        assert_eq!(Wanted::of(&none.text()), Some(none));
        assert_eq!(Wanted::of("no"), None);
        assert_eq!(Says::of("17"), Some(Says::At(17)));
        assert_eq!(Says::of("9 17 3"), Some(Says::Found(9, 17, 3)));
        assert_eq!(Says::of("missed 9"), Some(Says::Missed(9)));
        assert_eq!(Says::of("ended 9"), Some(Says::Ended(9)));
        assert_eq!(Says::of("chases"), Some(Says::Chases));
        for line in ["", "x", "9 17", "9 17 x", "99999999999", "missed", "ended"] {
            assert_eq!(Says::of(line), None, "{line}");
        }
    }

    /// A program in a user namespace of this user's that does this and has a socket `s`, and its inode.
    pub fn program(makes: &str) -> (std::process::Child, u64) {
        let says = format!(
            "import os, socket, sys, threading, time
{makes}
print(os.fstat(s.fileno()).st_ino, flush=True)
for line in sys.stdin: exec(line); print('done', flush=True)"
        );
        let mut child = std::process::Command::new("unshare")
            .args(["-Ur", "python3", "-c", &says])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let inode = line_of(&mut child).parse().unwrap();
        (child, inode)
    }

    /// What it says, byte by byte: the rest is for who asks next.
    #[expect(clippy::unbuffered_bytes, reason = "it says a line at a time")]
    pub fn line_of(child: &mut std::process::Child) -> String {
        let said = child.stdout.as_mut().unwrap();
        let each = said.bytes().map(|byte| char::from(byte.unwrap()));
        each.take_while(|byte| *byte != '\n').collect()
    }

    /// The sockets that are found of these, in their order.
    fn found_in(children: &[&std::process::Child], inodes: &[u64]) -> Vec<u64> {
        found_of(&said_of(children, inodes, &[]))
    }

    fn found_of(said: &[Says]) -> Vec<u64> {
        let found = said.iter().filter_map(|says| match says {
            Says::Found(inode, ..) => Some(*inode),
            _ => None,
        });
        found.collect()
    }

    /// All that is said, if these are looked at last.
    fn said_of(children: &[&std::process::Child], inodes: &[u64], late: &[u32]) -> Vec<Says> {
        let wanted = Wanted {
            uid: rustix::process::geteuid().as_raw(),
            late: late.iter().copied().collect(),
            inodes: inodes.iter().copied().collect(),
            ..Wanted::default()
        };
        let mut out = Vec::new();
        let processes = children.iter().map(|child| child.id()).collect();
        search(&wanted, processes, &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        said.lines().map(|line| Says::of(line).unwrap()).collect()
    }

    pub fn end(children: &mut [&mut std::process::Child]) {
        for child in children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    #[test]
    fn of_others_programs_nothing_is_told() {
        let (mut child, inode) = program("s = socket.socket(); d = [s.dup() for _ in range(9)]");
        let found = |uid, late: &[u32]| {
            let wanted = Wanted {
                uid,
                late: late.iter().copied().collect(),
                inodes: [inode].into(),
                ..Wanted::default()
            };
            let mut out = Vec::new();
            search(&wanted, vec![child.id()], &mut out).unwrap();
            let said = String::from_utf8(out).unwrap();
            let all = said.lines().map(|line| Says::of(line).unwrap());
            all.filter(|it| matches!(it, Says::Found(..))).count()
        };
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(found(me, &[]), 4);
        let other = me + 54_321;
        assert_eq!((found(other, &[]), found(other, &[child.id()])), (0, 0));
        let _ = child.kill();
        let _ = child.wait();
    }

    /// It is looked for and chased in this user's namespaces.
    fn chased(inode: u64) -> Wanted {
        Wanted {
            uid: rustix::process::geteuid().as_raw(),
            chases: true,
            inodes: [inode].into(),
            ..Wanted::default()
        }
    }

    /// Where it was seen it is no more when anybody has been told.
    #[test]
    fn who_hands_a_socket_from_number_to_number_is_chased() {
        let (mut child, inode) = program(
            "f = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); f.connect(('127.0.0.1', 9))
os.dup2(f.fileno(), 100); f.close()
class s: fileno = staticmethod(lambda: 100)
def moves():
    at = 100
    time.sleep(0.3)
    while True:
        for n in range(101, 400):
            os.dup2(at, n); os.close(at); at = n; time.sleep(0.0002)
threading.Thread(target=moves, daemon=True).start()",
        );
        std::thread::sleep(Duration::from_millis(500));
        let wanted = chased(inode);
        let mut out = Vec::new();
        let listed = vec![child.id()];
        let seen = search(&wanted, listed.clone(), &mut out).unwrap();
        chase(&wanted, &listed, seen, &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        let ended = Some(Says::Found(inode, 0, 1));
        assert!(said.lines().any(|line| Says::of(line) == ended), "{said}");
        end(&mut [&mut child]);
    }

    /// It is at another number when what is at the one that was listed is asked for.
    #[test]
    fn who_hands_a_socket_on_faster_than_it_is_listed_is_met_on_the_way() {
        let (mut child, inode) = program("s = socket.create_server(('127.0.0.1', 0))");
        let wanted = chased(inode);
        // Not at the number that was listed, and beyond what one window has.
        let mut out = Vec::new();
        let said = "import fcntl; fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, 300); s.close(); [os.open('/dev/null', 0) for _ in range(200)]";
        let input = child.stdin.as_mut().unwrap();
        writeln!(input, "{said}").unwrap();
        assert_eq!(line_of(&mut child), "done");
        let held = Held {
            inodes: BTreeSet::new(),
            gone: Some(17),
        };
        let seen = Seen::from([(child.id(), held)]);
        chase(&wanted, &[child.id()], seen, &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        let ended = format!("{inode} 0 0");
        assert!(said.lines().any(|line| line == ended), "{said}");
        end(&mut [&mut child]);
    }

    /// Also a thread.
    #[test]
    fn who_held_somebody_up_is_looked_at_last_and_is() {
        let (mut one, first) = program("s = socket.socket()");
        let (mut other, second) = program(
            "def alone():
    import ctypes
    assert ctypes.CDLL(None).unshare(0x400) == 0
    s = socket.socket()
    print(os.fstat(s.fileno()).st_ino, flush=True)
    threading.Event().wait()
threading.Thread(target=alone, daemon=True).start()
threading.Event().wait(60)",
        );
        let tasks = numbers(&format!("/proc/{}/task", other.id()));
        let threads: Vec<u32> = tasks.filter(|it| *it != other.id()).collect();
        let found = |late: &[u32]| found_of(&said_of(&[&one, &other], &[first, second], late));
        assert_eq!(found(&[]), [first, second]);
        assert_eq!(found(&[one.id()]), [second, first]);
        assert_eq!(found(&threads), [first, second]);
        end(&mut [&mut one, &mut other]);
    }

    /// However many are late: who only looks like it keeps nobody else's from being found.
    #[test]
    fn of_more_late_ones_than_wait_at_a_time_each_is_looked_at() {
        let (mut child, inode) = program("s = socket.socket()");
        let wanted = Wanted {
            uid: rustix::process::geteuid().as_raw(),
            inodes: [inode].into(),
            ..Wanted::default()
        };
        let late = vec![Late::Process(child.id()); MOST_LATE + 60];
        let mut out = Vec::new();
        let missed = look_late(&wanted, &late, Instant::now(), &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        let said: Vec<Says> = said.lines().map(|line| Says::of(line).unwrap()).collect();
        assert_eq!((found_of(&said).len(), missed), (late.len(), 0));
        // Whoever has no time left says so.
        let past = Instant::now().checked_sub(LONGEST).unwrap();
        let missed = look_late(&wanted, &late, past, &mut Vec::new()).unwrap();
        assert_eq!(missed, late.len());
        // Others' are not among them; and none is the first each time.
        let other = Wanted {
            uid: wanted.uid + 54_321,
            ..wanted.clone()
        };
        assert!(may_be_its(child.id(), &wanted) && !may_be_its(child.id(), &other));
        let firsts = (0..200).map(|_| {
            std::thread::sleep(Duration::from_micros(7));
            first_of(97)
        });
        assert!(firsts.collect::<BTreeSet<_>>().len() > 9 && first_of(0) == 0);
        end(&mut [&mut child]);
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
        assert_eq!(found_in(&[&many, &few], &[hidden, plain]), [plain, hidden]);
        end(&mut [&mut many, &mut few]);
    }

    /// Also where a thread has them, which shares them with no other.
    #[test]
    fn a_thread_that_has_many_keeps_nobody_elses_from_being_found_first() {
        let has = |descriptors: usize| {
            program(&format!(
                "def alone():
    import ctypes
    assert ctypes.CDLL(None).unshare(0x400) == 0
    d = [os.open('/dev/null', 0) for _ in range({descriptors})]
    s = socket.socket()
    print(os.fstat(s.fileno()).st_ino, flush=True)
    threading.Event().wait()
threading.Thread(target=alone, daemon=True).start()
threading.Event().wait(60)"
            ))
        };
        let [(mut many, hidden), (mut few, plain)] = [FEW + 50, 3].map(has);
        let (mut table, beyond) = program(&format!(
            "d = [os.open('/dev/null', 0) for _ in range({FEW} + 50)]; s = socket.socket()"
        ));
        let found = found_in(&[&table, &many, &few], &[hidden, plain, beyond]);
        assert_eq!(found, [plain, beyond, hidden]);
        end(&mut [&mut many, &mut few, &mut table]);
    }

    /// What is looked at later is what was not: numbers do not move when others are closed.
    #[test]
    fn what_is_closed_meanwhile_hides_nothing() {
        let (mut child, inode) = program(&format!(
            "d = [os.open('/dev/null', 0) for _ in range({FEW})]; s = socket.socket()"
        ));
        let (process, wanted) = (child.id(), Wanted::default());
        let next = look(process, 0, FEW, &wanted, &mut Seen::new(), &mut Vec::new()).unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        writeln!(stdin, "[os.close(it) for it in d]").unwrap();
        assert_eq!(line_of(&mut child), "done");
        let wanted = Wanted {
            inodes: [inode].into(),
            ..Wanted::default()
        };
        let mut out = Vec::new();
        assert_eq!(
            look(
                process,
                next.unwrap(),
                usize::MAX,
                &wanted,
                &mut Seen::new(),
                &mut out
            )
            .unwrap(),
            None
        );
        let said = String::from_utf8(out).unwrap();
        assert_eq!(said.lines().count(), 2, "{said}");
        end(&mut [&mut child]);
    }
}
