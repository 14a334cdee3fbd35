//! What may have who does it wait for ever is done in a copy of this process: so is the ending of connections
//! of sockets that a program has. What a program has at a number may be a file of a file system of its own by now, which is asked when
//! it is closed again (FUSE_FLUSH), or a pipe whose other end it holds in the midst of a write:
//! even a signal that kills does not end such a wait.
#![expect(
    unsafe_code,
    reason = "a copy of this process has no safe form; it makes raw calls alone"
)]

use crate::target::Target;
use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// What one may take, where processors are scarce: it takes some microseconds.
const EACH: Duration = Duration::from_millis(1);

/// Seconds after which it ends itself, if what it waits for lets who is killed go.
const ENDS: i64 = 1;

/// How a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both ways, for all who have the socket.
    Shut,
    /// It is connected to nobody any more (datagrams).
    Disconnect,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It is ended.
    Ended,
    /// The socket is not there, or not connected.
    NotThere,
    /// What is there has who looks wait.
    Held,
}

/// A socket that a thread was seen with.
#[derive(Debug)]
pub struct Seen {
    /// The thread.
    pub target: Target,
    /// At which number.
    pub number: u32,
    /// By which the kernel knows it.
    pub cookie: u64,
    /// What is to be done.
    pub end: End,
}

/// Children of this process leave nothing behind that is to be waited for. Once, before
/// [`apart`].
pub fn leave_no_children() {
    // SAFETY: no function of ours becomes a handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Does something in a copy of this process that has nothing but these descriptors, and ends with it.
/// What it does neither allocates nor takes a lock.
///
/// # Errors
/// The kernel's: no process can be made.
pub fn apart(keeps: &[BorrowedFd<'_>], work: impl FnOnce()) -> Result<(), Errno> {
    let keeps = keeps.iter().map(|fd| fd.as_raw_fd().cast_unsigned());
    let mut keeps: Vec<u32> = keeps.collect();
    keeps.sort_unstable();
    const FLAGS: usize = libc::SIGCHLD as usize;
    // SAFETY: without CLONE_VM the child has its own copy of everything; it does only what needs
    // neither memory nor locks, and never returns.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, FLAGS, 0_usize, 0_usize, 0_usize, 0_usize) };
    match child {
        0 => {}
        -1 => return Err(errno()),
        _ => return Ok(()),
    }
    // What waits for ever is to hold nothing else.
    let mut first = 0;
    for last in keeps.iter().chain([&u32::MAX]) {
        if *last > first {
            // SAFETY: descriptors of this copy, that nothing of it uses any more.
            unsafe { libc::close_range(first, last - 1, 0) };
        }
        first = last.saturating_add(1);
    }
    work();
    // SAFETY: ends this process without anything of its maker's being run.
    unsafe { libc::_exit(0) }
}

/// Ends the connections of those that are where they were seen: of each group in a copy of its own, one after
/// another. Of a group that is not through in time, for what is there has who looks wait, what came of
/// the first of them is told, and [`Came::Held`] behind it. `patience` is for all together, and of what takes
/// its time honestly a little more is waited for.
///
/// # Errors
/// Of a group: the kernel's, no process can be made.
pub fn end_apart(groups: &[Vec<Seen>], patience: Duration) -> Vec<Result<Vec<Came>, Errno>> {
    let began: Vec<_> = groups.iter().map(|all| begins_to_end(all)).collect();
    let many = groups.iter().map(Vec::len).max().unwrap_or(0);
    let patience = patience + EACH * u32::try_from(many).unwrap_or(u32::MAX);
    let patience = match guard!("circuits-apart-all") {
        true => patience,
        false => patience * 1000,
    };
    let until = Instant::now() + patience;
    let told = |(all, hears): (&Vec<Seen>, Result<Option<OwnedFd>, Errno>)| {
        hears?.map_or(Ok(Vec::new()), |hears| hears_of(all, &hears, until))
    };
    groups.iter().zip(began).map(told).collect()
}

/// A copy begins to do so, where there is something to do; what it tells with, a byte for each.
fn begins_to_end(all: &[Seen]) -> Result<Option<OwnedFd>, Errno> {
    if all.is_empty() {
        return Ok(None);
    }
    let (hears, tells) = pipe_with(PipeFlags::CLOEXEC)?;
    let keeps: Vec<BorrowedFd<'_>> = all
        .iter()
        .map(|seen| seen.target.as_fd())
        .chain([tells.as_fd()])
        .collect();
    apart(&keeps, || {
        for seen in all {
            if guard!("circuits-apart-ends") {
                ends_in_time();
            }
            let done = u8::from(end_if(seen, || is_heard(tells.as_fd())) == Came::Ended);
            if rustix::io::write(&tells, &[done]).is_err() {
                break;
            }
        }
    })?;
    Ok(Some(hears))
}

/// What came of them, up to then.
fn hears_of(all: &[Seen], hears: &OwnedFd, until: Instant) -> Result<Vec<Came>, Errno> {
    let mut ended = Vec::with_capacity(all.len());
    while ended.len() < all.len() {
        let mut told = [0_u8; 256];
        let mut ready = [PollFd::new(hears, PollFlags::IN)];
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let came = match poll(&mut ready, Some(&left)) {
            Ok(0) => 0,
            Ok(_) => rustix::io::read(hears, &mut told)?,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        if came == 0 {
            ended.push(Came::Held);
            break;
        }
        ended.extend(told.iter().take(came).map(|byte| match byte {
            1 => Came::Ended,
            _ => Came::NotThere,
        }));
    }
    Ok(ended)
}

/// This copy ends by itself where it is not through by then, and what it waits for lets who is killed go: a
/// thread that executes another program does.
fn ends_in_time() {
    let seconds = |tv_sec| libc::timeval { tv_sec, tv_usec: 0 };
    let once = libc::itimerval {
        it_interval: seconds(0),
        it_value: seconds(ENDS),
    };
    let nothing = core::ptr::null_mut::<libc::itimerval>();
    // SAFETY: the kernel reads a value of ours, and writes none.
    unsafe {
        libc::syscall(
            libc::SYS_setitimer,
            libc::ITIMER_REAL,
            &raw const once,
            nothing,
        )
    };
}

/// Whether somebody still waits for what such a copy tells: what it was to end may be allowed again by now.
fn is_heard(tells: BorrowedFd<'_>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(tells, PollFlags::empty())];
    let polled = poll(&mut ready, Some(&Timespec::default()));
    // The other end of a pipe is closed.
    let is_closed = polled.is_err() || ready[0].revents().contains(PollFlags::ERR);
    !is_closed || !guard!("circuits-apart-heard")
}

/// Ends one here, where what is there may have this process wait.
pub fn end(seen: &Seen) -> Came {
    end_if(seen, || true)
}

/// The same, if that is so once it is found.
fn end_if(seen: &Seen, is_wanted: impl FnOnce() -> bool) -> Came {
    // SAFETY: numbers, and memory of ours of the size that is told.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_pidfd_getfd,
            seen.target.as_fd().as_raw_fd(),
            seen.number,
            0_u32,
        ) as i32;
        if fd < 0 {
            return Came::NotThere;
        }
        let mut cookie = 0_u64;
        let mut length = size_of::<u64>() as libc::socklen_t;
        let at = (&raw mut cookie).cast();
        let got = libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, at, &raw mut length);
        let is_it = got == 0 && cookie == seen.cookie;
        let ended = is_it
            && is_wanted()
            && match seen.end {
                End::Shut => libc::shutdown(fd, libc::SHUT_RDWR) == 0,
                End::Disconnect => {
                    let nobody = libc::AF_UNSPEC as libc::sa_family_t;
                    let size = size_of_val(&nobody) as libc::socklen_t;
                    libc::connect(fd, (&raw const nobody).cast(), size) == 0
                }
            };
        libc::close(fd);
        match ended {
            true => Came::Ended,
            false => Came::NotThere,
        }
    }
}

fn errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::socket_cookie;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_nobody_waits_for_any_more_ends_nothing() {
        let (one, mut other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let seen = Seen {
            target: Target::open(std::process::id()).unwrap(),
            number: one.as_raw_fd().cast_unsigned(),
            cookie: socket_cookie(&one).unwrap(),
            end: End::Shut,
        };
        let (hears, tells) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(hears);
        let came = end_if(&seen, || is_heard(tells.as_fd()));
        assert_eq!(came, Came::NotThere);
        assert!(other.read(&mut [0]).is_err());
        let (_hears, tells) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let came = end_if(&seen, || is_heard(tells.as_fd()));
        assert_eq!(came, Came::Ended);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }
}
