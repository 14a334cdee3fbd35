//! The memory and the descriptors of a program that waits for an answer.
#![expect(
    unsafe_code,
    reason = "process_vm_readv(2) and process_vm_writev(2) have no safe wrapper"
)]

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// Parts of one [`Target::write`].
pub const PARTS: usize = 2;

/// Why a thread could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no such thread, or its number is 0: it is not in our pid namespace.
    #[error("the thread is gone, or is in another pid namespace")]
    Gone,
    /// Not the first thread of its process, and the kernel has no PIDFD_THREAD.
    #[error("this kernel opens only a program's first thread: Linux 6.9 is needed for the others")]
    Thread,
    /// The kernel refused: the host's fault, as where descriptors run out.
    #[error("cannot open a thread: {0}")]
    Refused(Errno),
}

/// A thread of a program, and through it the program. Everything here is asked of the
/// kernel with the right to trace: that of the uid which owns the program's user
/// namespace, or of root.
///
/// Numbers of threads are given out again. So after [`Target::open`], and again after
/// every [`Target::read`], the caller asks [`Listener::is_live`](crate::Listener::is_live):
/// if the call still waits then, it was its thread throughout. Before [`Target::write`]
/// likewise, as late as possible.
#[derive(Debug)]
pub struct Target {
    thread: Pid,
    pidfd: OwnedFd,
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Target {
    /// Opens a thread by the number in a [`Notification`](crate::Notification). No right
    /// is needed for this yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(thread: u32) -> Result<Target, OpenError> {
        const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
        let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
        let thread = thread.ok_or(OpenError::Gone)?;
        let opened = match pidfd_open(thread, THREAD) {
            // Before Linux 6.9 the flag is unknown; a leader opens without it.
            Err(Errno::INVAL) => match pidfd_open(thread, PidfdFlags::empty()) {
                Err(Errno::INVAL | Errno::NOENT) => return Err(OpenError::Thread),
                opened => opened,
            },
            opened => opened,
        };
        match opened {
            Ok(pidfd) => Ok(Target { thread, pidfd }),
            Err(Errno::SRCH) => Err(OpenError::Gone),
            Err(errno) => Err(OpenError::Refused(errno)),
        }
    }

    /// Copies the program's memory from an address on, all of `into` or nothing that
    /// counts. It is a copy: the program may have changed its own by now.
    ///
    /// # Errors
    /// FAULT: not all of it is readable memory, the program's misdeed, and the answer the
    /// kernel would give it. SRCH: it is gone. PERM: the operator may not trace it.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = remote(address, into.len());
        // SAFETY: the kernel writes at most `iov_len` bytes of `into`; the remote address
        // is looked up in the other process only.
        let moved = unsafe {
            libc::process_vm_readv(
                self.thread.as_raw_pid(),
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        complete(moved, into.len())
    }

    /// Copies bytes to the program's memory, each part from its address on: at most
    /// [`PARTS`]. On an error some of them may have been written.
    ///
    /// # Errors
    /// As for [`Target::read`]. INVAL: too many parts.
    pub fn write(&self, parts: &[(u64, &[u8])]) -> Result<(), Errno> {
        let mut there = [remote(0, 0); PARTS];
        let mut here = there;
        if parts.len() > PARTS {
            return Err(Errno::INVAL);
        }
        let mut length = 0;
        for (n, (address, bytes)) in parts.iter().enumerate() {
            there[n] = remote(*address, bytes.len());
            here[n] = libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            length += bytes.len();
        }
        // SAFETY: the kernel only reads the parts, and no more of either array than it has;
        // the remote addresses are looked up in the other process only.
        let moved = unsafe {
            libc::process_vm_writev(
                self.thread.as_raw_pid(),
                here.as_ptr(),
                parts.len() as libc::c_ulong,
                there.as_ptr(),
                parts.len() as libc::c_ulong,
                0,
            )
        };
        complete(moved, length)
    }

    /// Takes a copy of the thread's descriptor of this number; close-on-exec here.
    ///
    /// # Errors
    /// BADF: it has none, the program's misdeed. SRCH: it is gone. PERM: the operator may
    /// not trace it.
    pub fn take(&self, fd: RawFd) -> Result<OwnedFd, Errno> {
        pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty())
    }
}

fn remote(address: u64, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::without_provenance_mut(address as usize),
        iov_len: length,
    }
}

/// The kernel stops at the first page that it may not touch and says how far it came.
fn complete(moved: isize, length: usize) -> Result<(), Errno> {
    match usize::try_from(moved) {
        Ok(moved) if moved == length => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => {
            let number = std::io::Error::last_os_error().raw_os_error();
            Err(Errno::from_raw_os_error(number.unwrap_or(libc::EIO)))
        }
    }
}
