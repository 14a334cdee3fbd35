//! Signals as something to wait for, like any descriptor (signalfd(2)).
#![expect(unsafe_code, reason = "signalfd and sigprocmask have no safe wrapper")]

use crate::kernel;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals that arrive as reads. They stay blocked when this goes; [`crate::spawn`]
/// unblocks them in what it starts.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks these signals for this thread (call it before any other is started) and
    /// takes them here: SIGTERM, SIGINT, SIGCHLD... by number.
    ///
    /// # Errors
    /// What the kernel says; EINVAL for a number that is no signal.
    pub fn new(numbers: &[i32]) -> Result<Signals, Errno> {
        let mut set = 0_u64;
        for number in numbers {
            let bit = number.checked_sub(1).filter(|bit| (0..64).contains(bit));
            set |= 1 << bit.ok_or(Errno::INVAL)?;
        }
        // SAFETY: the kernel reads the eight bytes of `set`.
        let blocked = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                &raw const set,
                core::ptr::null::<u64>(),
                8_usize,
            )
        };
        if blocked != 0 {
            return Err(kernel::errno());
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: as above.
        let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const set, 8_usize, flags) };
        if fd < 0 {
            return Err(kernel::errno());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Signals { fd })
    }

    /// The next signal that has arrived, by number; `None` = none. Never blocks.
    pub fn next_arrived(&self) -> Option<i32> {
        let mut bytes = [0_u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.fd, &mut bytes).ok()?;
        // ssi_signo is the first field.
        let number = bytes.first_chunk::<4>().filter(|_| read == bytes.len())?;
        Some(u32::from_ne_bytes(*number).cast_signed())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
