//! The circuits of a compartment that is removed are ended: its operator is gone with it, and what its programs have of them they
//! would go on with. Their sockets are in a network namespace of the compartment's own, but for what was accepted across an
//! agreement: that ends with its other end.

use super::chase::ends;
use super::search::{Says, Wanted, everywhere};
use guard::guard;
use notify::Target;
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeSet;
use std::fs::{metadata, read};
use std::io::{ErrorKind, LineWriter, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// The word by which this program ends them: those of the namespace on its input, in programs of this uid's user namespaces.
pub const REMOVED: &str = "removed";
/// For so long they are looked for, with so long between, and longer each time.
const LONGEST: Duration = Duration::from_secs(20);
const REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Who gets no further for so long is held up where it is, which is looked at last from then on.
const STILL: Duration = Duration::from_millis(300);
/// Those that are being ended at a time, each by a thread: what has come in one's place may have it wait for ever.
const AT_ONCE: usize = 64;
/// What is said by who searches waits, if so much does.
const BACKLOG: usize = 1024;

/// Ends them.
///
/// # Errors
/// What is asked for is not understood; the kernel's.
pub fn run() -> Result<()> {
    let uid = std::env::args().nth(2).and_then(|uid| uid.parse().ok());
    let uid = uid.ok_or(ErrorKind::InvalidInput)?;
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(std::io::stdin().as_fd(), kind)?;
    match end_all(uid, Instant::now() + LONGEST)? {
        0 => {}
        left => confine::say!(
            "supervisor: {left} ends of circuits of a compartment that is removed are found with no process"
        ),
    }
    Ok(())
}

/// Whether a process is one that was sent for this by a supervisor before: it is this user's, and its words say so. What
/// is confined is another user's.
pub fn is_one(process: u32) -> bool {
    let own = metadata(format!("/proc/{process}")).is_ok_and(|it| it.uid() == geteuid().as_raw());
    let words = read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let word = words.split(|byte| *byte == 0).nth(1);
    own && word == Some(REMOVED.as_bytes()) && guard!("removed-goes-on")
}

/// Inodes of all AF_UNIX sockets of this namespace. What is connected and not accepted yet has none, and ends with who connected.
fn listed() -> Result<BTreeSet<u64>> {
    // Their names, which are behind that, are any bytes.
    let text = read("/proc/thread-self/net/unix")?;
    let inode = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').filter(|it| !it.is_empty());
        str::from_utf8(words.nth(6)?).ok()?.parse().ok()
    };
    let all = text.split(|byte| *byte == b'\n').filter_map(inode);
    Ok(all.filter(|inode| *inode != 0).collect())
}

/// How many are left then.
fn end_all(uid: u32, until: Instant) -> Result<usize> {
    let (mut ended, mut late, mut rest) = (BTreeSet::new(), BTreeSet::new(), REST);
    loop {
        let left: BTreeSet<u64> = listed()?.difference(&ended).copied().collect();
        if left.is_empty() || Instant::now() > until {
            return Ok(left.len());
        }
        let wanted = Wanted {
            uid,
            chases: true,
            late: late.clone(),
            inodes: left,
        };
        late.extend(end_some(wanted, until, &mut ended));
        sleep(rest);
        rest = (2 * rest).min(LONGEST_REST);
    }
}

/// Where what is said by who looks goes: whole lines.
struct Out(SyncSender<Vec<u8>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map(|()| bytes.len())
            .map_err(|_| ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Ends those that are found by one search. By whom it was held up, if it was: it is left behind, as is who ends one that
/// turns out to be something else.
fn end_some(wanted: Wanted, until: Instant, ended: &mut BTreeSet<u64>) -> Option<u32> {
    let (says, said) = mpsc::sync_channel(BACKLOG);
    let (tells, told) = mpsc::channel();
    let thread = || Builder::new().stack_size(256 << 10);
    let inodes = wanted.inodes.clone();
    let searches = move || {
        let _ = everywhere(&wanted, &mut LineWriter::new(Out(says)));
    };
    thread().spawn(searches).ok()?;
    let (mut at, mut under_way) = (0, 0);
    let hears = |told: &Receiver<Option<u64>>, under_way: &mut usize, ended: &mut BTreeSet<u64>| {
        for inode in told.try_iter() {
            *under_way -= 1;
            ended.extend(inode);
        }
    };
    let held_up = loop {
        let lines = match said.recv_timeout(STILL) {
            _ if Instant::now() > until => break None,
            Ok(lines) => lines,
            Err(RecvTimeoutError::Timeout) => break Some(at).filter(|at| *at != 0),
            Err(RecvTimeoutError::Disconnected) => break None,
        };
        for line in String::from_utf8_lossy(&lines).lines() {
            hears(&told, &mut under_way, ended);
            match Says::of(line) {
                Some(Says::At(process)) => at = process,
                Some(Says::Chases) => at = 0,
                Some(Says::Ended(process)) => super::calls::say_ended(process),
                // Who chases has ended it.
                Some(Says::Found(inode, 0, _)) => drop(ended.insert(inode)),
                // Where there is no room, or no thread, there is the next time.
                Some(Says::Found(inode, of, number))
                    if under_way < AT_ONCE
                        && inodes.contains(&inode)
                        && !ended.contains(&inode) =>
                {
                    let tells = tells.clone();
                    let end = move || {
                        let target = Target::open(of).ok();
                        let wanted = BTreeSet::from([inode]);
                        let ended = target.and_then(|it| ends(&it, number.cast_signed(), &wanted));
                        let _ = tells.send(ended.map(|(inode, _)| inode));
                    };
                    under_way += usize::from(thread().spawn(end).is_ok());
                }
                _ => {}
            }
        }
    };
    let begun = Instant::now();
    while under_way > 0 && begun.elapsed() < STILL {
        sleep(Duration::from_millis(1));
        hears(&told, &mut under_way, ended);
    }
    held_up
}
