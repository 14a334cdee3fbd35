//! Programs that fork all the time, and end as often, are in no listing of processes: the youngest process is asked
//! again and again for what it has. Others hand a socket from number to number within themselves: who had one is asked again
//! and again, too. What is wanted is ended here, for it is gone before anybody is told.
//! To let go of a descriptor that was taken may wait for ever (a file of a FUSE that came into the socket's place):
//! who is held up so is counted apart (`ports::hunts`).

use super::search::{Held, Seen, Wanted, inode_of, may_be_its};
use guard::guard;
use notify::Target;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, fstat, open, readlinkat, seek};
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, connect_unspec, shutdown};
use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::io::{Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// So long it lasts.
pub(super) const CHASE: Duration = Duration::from_millis(100);
/// Where nobody forked for so long there is nobody to be chased.
const QUIET: Duration = Duration::from_millis(20);
/// Descriptors of a process that are looked at before the youngest may be another. The next are those of
/// higher numbers, of whichever process: who forks hands its numbers on.
const WINDOW: usize = 64;
/// Where one that was seen was gone, so many numbers beyond it are tried, and so many at most.
const BEYOND: u32 = 1024;
const MOST: u32 = 1 << 17;
/// So many wait at a listening socket at most, and more than operators let.
const MOST_WAIT: usize = 1 << 14;

/// Who was listed was searched; these had some of what is wanted.
pub(super) fn chase(
    wanted: &Wanted,
    listed: &[u32],
    seen: Seen,
    out: &mut impl Write,
) -> Result<()> {
    if !wanted.chases || !guard!("hunt-chase") {
        return Ok(());
    }
    writeln!(out, "chases")?;
    out.flush()?;
    let began = Instant::now();
    let (mut last, mut since, mut from) = (0, began, 0);
    let mut left = wanted.inodes.clone();
    let mut movers: Vec<(u32, Held, u64)> = match guard!("hunt-chase-movers") {
        true => seen.into_iter().map(|(at, of)| (at, of, 0)).collect(),
        false => Vec::new(),
    };
    while began.elapsed() < CHASE && !left.is_empty() {
        // Others' turn comes first with the next.
        if movers.len() > 1 {
            movers.rotate_left(1);
        }
        for (thread, held, from) in &mut movers {
            if began.elapsed() >= CHASE || !may_be_its(*thread, wanted) {
                continue;
            }
            if !held.inodes.is_disjoint(&left) {
                *from = ends_from(*thread, *from, &mut left, out)?;
            }
            if let Some(gone) = held.gone.filter(|_| guard!("hunt-chase-fast")) {
                let until = (gone.saturating_add(BEYOND), began + CHASE);
                ends_up_to(*thread, until, &mut left, out)?;
            }
        }
        movers.retain(|(_, held, _)| held.gone.is_some() || !held.inodes.is_disjoint(&left));
        let Some(thread) = youngest() else {
            return Ok(());
        };
        if thread != last {
            (last, since) = (thread, Instant::now());
        }
        if since.elapsed() > QUIET && movers.is_empty() {
            return Ok(());
        }
        // Also one that looks as if it executed another program: it may for as long as it likes.
        if listed.contains(&thread) || !may_be_its(thread, wanted) {
            continue;
        }
        let next = ends_from(thread, from, &mut left, out)?;
        from = if guard!("hunt-chase-on") { next } else { 0 };
    }
    Ok(())
}

/// Ends what is left of what is wanted where it is seen, at once, in a window of a thread's descriptors. Where the next
/// one begins.
fn ends_from(
    thread: u32,
    from: u64,
    left: &mut BTreeSet<u64>,
    out: &mut impl Write,
) -> Result<u64> {
    let mut said = Ok(());
    let next = sockets_from(thread, from, |inode, number| {
        if left.contains(&inode)
            && let Ok(target) = Target::open(thread)
            && let Some(ended) = ends(&target, number, left)
            && let Err(error) = says(ended, left, out)
        {
            said = Err(error);
        }
    });
    said.map(|()| next)
}

/// The same at each of these numbers, without asking first what is there: by then who hands a socket on a million times
/// a second has it elsewhere, and whoever goes the same way comes up with it.
fn ends_up_to(
    thread: u32,
    (last, end): (u32, Instant),
    left: &mut BTreeSet<u64>,
    out: &mut impl Write,
) -> Result<()> {
    let Ok(target) = Target::open(thread) else {
        return Ok(());
    };
    for number in 0..last.min(MOST) {
        if number % 256 == 0 && Instant::now() >= end {
            break;
        }
        if let Some(ended) = ends(&target, number.cast_signed(), left) {
            says(ended, left, out)?;
        }
    }
    Ok(())
}

/// Nobody has it to be cut.
fn says(
    (inode, kind): (u64, SocketType),
    left: &mut BTreeSet<u64>,
    out: &mut impl Write,
) -> Result<()> {
    left.remove(&inode);
    writeln!(out, "{inode} 0 {}", u8::from(kind == SocketType::DGRAM))?;
    out.flush()
}

/// The process, or thread, that was made last.
fn youngest() -> Option<u32> {
    let text = read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().last()?.parse().ok()
}

/// Sockets of a thread, by inode, and their numbers: of a window of its descriptors that begins at this number. Where
/// the next one begins: at 0 behind the last.
fn sockets_from(thread: u32, from: u64, mut meets: impl FnMut(u64, i32)) -> u64 {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = open(format!("/proc/{thread}/fd"), flags, Mode::empty()) else {
        // It is gone: the next has the same.
        return from;
    };
    // The folder is read from any number on, behind its two own entries.
    let _ = seek(&folder, SeekFrom::Start(from + 2));
    let (mut room, mut next) = ([MaybeUninit::uninit(); 4096], from);
    let mut entries = RawDir::new(&folder, &mut room);
    for _ in 0..WINDOW {
        let Some(Ok(entry)) = entries.next() else {
            return 0;
        };
        let name = entry.file_name();
        let Some(number) = name.to_str().ok().and_then(|it| it.parse::<u32>().ok()) else {
            continue;
        };
        next = u64::from(number) + 1;
        let link = readlinkat(&folder, name, Vec::new()).ok();
        let inode = link.and_then(|link| inode_of(link.to_str().ok()?));
        if let Some(inode) = inode {
            meets(inode, number.cast_signed());
        }
    }
    next
}

/// Ends what goes by this socket, for all who have it, if it is one that is wanted: a stream is over, datagrams go to
/// nobody. Its inode and its kind.
pub(super) fn ends(
    target: &Target,
    number: i32,
    wanted: &BTreeSet<u64>,
) -> Option<(u64, SocketType)> {
    let fd = target.take(number).ok()?;
    let inode = fstat(&fd).ok()?.st_ino;
    if !wanted.contains(&inode) {
        return None;
    }
    let kind = socket_type(&fd).ok()?;
    if socket_acceptconn(&fd) == Ok(true) && guard!("hunt-listeners") {
        empties(&fd);
        return Some((inode, kind));
    }
    let ended = match kind == SocketType::DGRAM && guard!("hunt-chase-datagrams") {
        true => connect_unspec(&fd),
        false => shutdown(&fd, Shutdown::Both),
    };
    ended.is_ok().then_some((inode, kind))
}

/// Who waits at a listening socket is closed. The socket itself is left as it is: one that is shut, or that somebody waits
/// at, is readable for ever, and who polls it would never rest.
fn empties(listener: &OwnedFd) {
    for _ in 0..MOST_WAIT {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec::default()));
        // Nobody else accepts: a program's calls are answered by nobody.
        if ready != Ok(1) || accept_with(listener, SocketFlags::CLOEXEC).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SendFlags, socketpair};
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// Before it takes anything: who is held up then is counted apart.
    #[test]
    fn that_it_chases_is_said_first_and_it_does_if_it_is_to() {
        for (chases, said) in [(true, "chases\n"), (false, "")] {
            let wanted = Wanted {
                chases,
                ..Wanted::default()
            };
            let mut out = Vec::new();
            chase(&wanted, &[], Seen::new(), &mut out).unwrap();
            assert_eq!(out, said.as_bytes());
        }
    }

    /// Also beyond what is looked at in one process: it goes on where it was, and begins anew behind the last.
    #[test]
    fn who_has_many_descriptors_is_looked_at_window_after_window() {
        let many: Vec<File> = (0..3 * WINDOW)
            .map(|_| File::open("/dev/null").unwrap())
            .collect();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = fstat(&socket).unwrap().st_ino;
        let me = std::process::id();
        let (mut from, mut found) = (0, Vec::new());
        for window in 0..1000 {
            let next = sockets_from(me, from, |it, number| {
                found.extend((it == inode).then_some((it, number)));
            });
            assert!(next == 0 || next > from);
            from = next;
            if from == 0 {
                assert!(window >= 3);
                break;
            }
        }
        assert_eq!((found, from), (vec![(inode, socket.as_raw_fd())], 0));
        drop(many);
        assert_eq!(sockets_from(u32::MAX >> 1, 7, |_, _| panic!()), 7);
    }

    /// They go on once they may again: one that is shut down is so for good.
    #[test]
    fn datagrams_are_not_over_but_go_to_nobody() {
        let pair =
            |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let me = Target::open(std::process::id()).unwrap();
        let kinds = [
            (SocketType::STREAM, Errno::PIPE),
            (SocketType::DGRAM, Errno::NOTCONN),
        ];
        for (kind, told) in kinds {
            let (one, _other) = pair(kind);
            let inode = fstat(&one).unwrap().st_ino;
            let ends = |inode| ends(&me, one.as_raw_fd(), &BTreeSet::from([inode]));
            assert_eq!(ends(inode + 1), None);
            let sends = || rustix::net::send(&one, b"x", SendFlags::NOSIGNAL);
            assert_eq!(sends(), Ok(1));
            assert_eq!(ends(inode), Some((inode, kind)));
            assert_eq!(sends(), Err(told));
        }
    }
    /// A hundred thousand numbers of each of many processes would be seconds.
    #[test]
    fn numbers_are_tried_for_as_long_as_a_chase_lasts() {
        let kind = SocketType::STREAM;
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (one, _other) = pair.unwrap();
        let inode = fstat(&one).unwrap().st_ino;
        let last = one.as_raw_fd().cast_unsigned() + 1;
        let now = Instant::now();
        let tries = |end| {
            let (mut left, mut out) = (BTreeSet::from([inode]), Vec::new());
            ends_up_to(std::process::id(), (last, end), &mut left, &mut out).unwrap();
            left.is_empty()
        };
        assert_eq!(
            [now, now + Duration::from_secs(60)].map(tries),
            [false, true]
        );
    }
}
