//! Doorbells: a pipe, each end a file description of its own, so that neither side
//! can make the other's call block.

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reads in one drain: a peer that writes all the while does not keep us here.
const MAX_READS: usize = 4;

/// The end that wakes.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

/// The end that sleeps: readable when rung.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Ringer {
    /// Wakes the peer. A full pipe is a peer that will wake anyway.
    ///
    /// # Errors
    /// `BrokenPipe`: the peer has closed its end (needs SIGPIPE ignored, as Rust's
    /// start-up does).
    #[inline]
    pub fn ring(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &[1]) {
            Ok(_) | Err(Errno::AGAIN) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Listener {
    /// Empties the doorbell; returns how often it was rung (for
    /// `ring::Consumer::rung`).
    ///
    /// # Errors
    /// `UnexpectedEof`: nobody is left who could ring.
    pub fn drain(&self) -> io::Result<usize> {
        let mut bytes = [0; 1024];
        let mut rings = 0;
        for _ in 0..MAX_READS {
            match rustix::io::read(&self.0, &mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    rings += n;
                    if n < bytes.len() {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rings)
    }
}

impl From<OwnedFd> for Ringer {
    fn from(fd: OwnedFd) -> Self {
        Ringer(fd)
    }
}
impl From<OwnedFd> for Listener {
    fn from(fd: OwnedFd) -> Self {
        Listener(fd)
    }
}
impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A new doorbell: (read end, write end), neither ever blocks.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // One page instead of sixteen: what a user may hold in pipes is limited.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, 4096);
    Ok((read, write))
}
