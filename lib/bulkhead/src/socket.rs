//! The socket under a circuit.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use rustix::thread::futex;
use shm::CircuitWaker;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use stream::{Line, Stop};

/// It, and what wakes a peer that sleeps by the memory.
pub(crate) struct Socket<'a> {
    pub(crate) fd: &'a OwnedFd,
    pub(crate) peer: Option<&'a CircuitWaker>,
}

impl Line for Socket<'_> {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut nothing = SendAncillaryBuffer::default();
        said(sendmsg(self.fd, &parts, &mut nothing, flags))
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        said(recv(self.fd, out, RecvFlags::DONTWAIT).map(|(n, _)| n))
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        said(recv(self.fd, out, flags).map(|(n, _)| n))
    }
    fn wake(&self) {
        if let Some(peer) = self.peer {
            wake(peer);
        }
    }
}

fn said(done: rustix::io::Result<usize>) -> Result<usize, Stop> {
    done.map_err(|errno| match errno {
        // Nothing is waited for: a signal ends nothing, and the next attempt is as good.
        Errno::AGAIN | Errno::INTR => Stop::Blocked,
        errno => Stop::Socket(errno.raw_os_error()),
    })
}

/// Sleeps until the word is another, or somebody wakes who sleeps there, or so much time is over.
/// Whatever ends it, the caller looks again.
pub(crate) fn sleep(word: Option<&AtomicU32>, seen: u32, at_most: Duration) {
    let limit = futex::Timespec {
        tv_sec: at_most.as_secs() as i64,
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    if let Some(word) = word {
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&limit));
    }
}

/// Wakes a peer that sleeps by the memory.
pub(crate) fn wake(peer: &CircuitWaker) {
    if let Some(word) = peer.sleeps_by() {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Waits until the socket is as asked, failed or hung up; `false`: the time is over. A signal ends it not.
pub(crate) fn wait(fd: &OwnedFd, flags: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
    let begun = Instant::now();
    // Bound: the signals.
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        // More than the kernel can count is for ever.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(fd, flags)], left.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether nobody reads any more at the other end.
pub(crate) fn is_over(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    let now = Timespec::default();
    let polled = poll(&mut fds, Some(&now));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
