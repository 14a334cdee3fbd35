//! Pages of circuits are given back in a process of its own: for as long as a program is in the midst of a
//! write to such a file, which may be of memory that a file system of its own does not give (FUSE), the
//! kernel has whoever gives its pages back wait, and not even a signal that kills ends that.

use notify::apart;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use stream::CAPACITY;

/// It takes some ten microseconds. What takes longer is left to itself.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A process that gives back the pages of one file after the other, each when it is asked to.
pub struct Giving {
    asks: OwnedFd,
    hears: OwnedFd,
}

/// One that is at its last file.
pub struct Late {
    hears: OwnedFd,
}

impl Giving {
    /// Of these files, in this order.
    ///
    /// # Errors
    /// The kernel's: no process can be made.
    pub fn of(files: &[BorrowedFd<'_>]) -> Result<Giving, Errno> {
        let (asked, asks) = pipe_with(PipeFlags::CLOEXEC)?;
        let (hears, tells) = pipe_with(PipeFlags::CLOEXEC)?;
        let own = [asked.as_fd(), tells.as_fd()];
        let keeps: Vec<BorrowedFd<'_>> = files.iter().copied().chain(own).collect();
        apart(&keeps, || {
            for file in files {
                // Who is not asked any more ends.
                if rustix::io::read(&asked, &mut [0; 1]) != Ok(1) {
                    return;
                }
                let _ = shm::give_back(file, CAPACITY);
                let _ = rustix::io::write(&tells, &[1]);
            }
        })?;
        Ok(Giving { asks, hears })
    }

    /// The next; `Err`: it takes long, and no more are given back.
    pub fn next(self) -> Result<Giving, Late> {
        let asked = rustix::io::write(&self.asks, &[1]) == Ok(1);
        let came = asked && told(&self.hears, &PATIENCE);
        // A process that is gone gives nothing back any more either.
        if came || !asked {
            let _ = rustix::io::read(&self.hears, &mut [0; 1]);
            return Ok(self);
        }
        Err(Late { hears: self.hears })
    }
}

impl Late {
    /// Whether that is over.
    pub fn is_over(&self) -> bool {
        told(&self.hears, &AT_ONCE)
    }
}

/// Whether it has said something, or is gone.
fn told(hears: &OwnedFd, patience: &Timespec) -> bool {
    let mut ready = [PollFd::new(hears, PollFlags::IN)];
    // Bound: signals that come.
    loop {
        match poll(&mut ready, Some(patience)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
