//! The memory and the descriptors of a program that waits for an answer.
#![expect(
    unsafe_code,
    reason = "process_vm_readv(2) and process_vm_writev(2) have no safe wrapper"
)]

use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pieces of memory that are copied in one step at most: UIO_MAXIOV.
pub const PIECES: usize = 1024;

/// How long this process has been copying, or taking descriptors, ns.
static COPYING: AtomicU64 = AtomicU64::new(0);

/// How long this process has been copying from and to programs' memory, and taking descriptors of theirs: microseconds each, but
/// for who keeps its memory's map from everybody, or has files that are long in closing.
#[must_use]
pub fn copying() -> Duration {
    Duration::from_nanos(COPYING.load(Ordering::Relaxed))
}

fn timed<T>(copies: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let copied = copies();
    COPYING.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    copied
}

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
    /// What tells it from others of its number, once it was asked for.
    own: OnceCell<u32>,
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
            Ok(pidfd) => Ok(Target {
                thread,
                pidfd,
                own: OnceCell::new(),
            }),
            Err(Errno::SRCH) => Err(OpenError::Gone),
            Err(errno) => Err(OpenError::Refused(errno)),
        }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.thread.as_raw_pid().unsigned_abs()
    }

    /// What tells it from another that has this number at another time (pidfs, Linux 6.9; the same for all
    /// before): twenty bits of what the kernel counts threads by.
    pub fn own(&self) -> u32 {
        const BITS: u64 = (1 << 20) - 1;
        let ask = || rustix::fs::fstat(&self.pidfd).map_or(0, |it| (it.st_ino & BITS) as u32);
        *self.own.get_or_init(ask)
    }

    /// Copies the program's memory from an address on, all of `into` or nothing that
    /// counts. It is a copy: the program may have changed its own by now.
    ///
    /// # Errors
    /// FAULT: not all of it is readable memory, the program's misdeed, and the answer the
    /// kernel would give it. SRCH: it is gone. PERM: the operator may not trace it.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let length = into.len();
        self.read_pieces(&[(address, length)], into)
    }

    /// The same of several pieces, one after another: an address and a length each, up to
    /// [`PIECES`] of them.
    ///
    /// # Errors
    /// As for [`Target::read`]; INVAL: more pieces than that.
    pub fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> Result<(), Errno> {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = remote(pieces, into.len())?;
        // SAFETY: the kernel writes at most `iov_len` bytes of `into`; the remote addresses
        // are looked up in the other process only.
        let moved = timed(|| unsafe {
            libc::process_vm_readv(
                self.thread.as_raw_pid(),
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        });
        complete(moved, into.len())
    }

    /// Copies bytes to the program's memory from an address on. On an error some of them
    /// may have been written.
    ///
    /// # Errors
    /// As for [`Target::read`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write_pieces(&[(address, bytes.len())], bytes)
    }

    /// The same to several pieces, as many of them as the bytes fill.
    ///
    /// # Errors
    /// As for [`Target::write`]; INVAL: more than [`PIECES`].
    pub fn write_pieces(&self, pieces: &[(u64, usize)], bytes: &[u8]) -> Result<(), Errno> {
        let local = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let remote = remote(pieces, bytes.len())?;
        // SAFETY: the kernel only reads `bytes`; the remote addresses are looked up in the
        // other process only.
        let moved = timed(|| unsafe {
            libc::process_vm_writev(
                self.thread.as_raw_pid(),
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        });
        complete(moved, bytes.len())
    }

    /// Takes a copy of the thread's descriptor of this number; close-on-exec here.
    ///
    /// # Errors
    /// BADF: it has none, the program's misdeed. SRCH: it is gone. PERM: the operator may
    /// not trace it.
    pub fn take(&self, fd: RawFd) -> Result<OwnedFd, Errno> {
        pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty())
    }

    /// The same, of a socket, and its cookie. Whatever else it is, is closed again, where the
    /// program may have this process wait: somebody is to watch over it, and to know whose it is.
    ///
    /// # Errors
    /// As for [`Target::take`]; NOTSOCK: it is none.
    pub fn take_socket(&self, fd: RawFd) -> Result<(OwnedFd, u64), Errno> {
        timed(|| {
            let taken = self.take(fd)?;
            let cookie = socket_cookie(&taken)?;
            Ok((taken, cookie))
        })
    }
}

/// As much of the pieces as `length` bytes are.
fn remote(pieces: &[(u64, usize)], length: usize) -> Result<Vec<libc::iovec>, Errno> {
    if pieces.len() > PIECES {
        return Err(Errno::INVAL);
    }
    let mut left = length;
    let all = pieces.iter().map(|&(address, room)| {
        let taken = room.min(left);
        left -= taken;
        libc::iovec {
            iov_base: core::ptr::without_provenance_mut(address as usize),
            iov_len: taken,
        }
    });
    Ok(all.filter(|piece| piece.iov_len > 0).collect())
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
