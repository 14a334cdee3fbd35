//! Who is at the other end of a socket, as the kernel saw it at connect time.
#![expect(
    unsafe_code,
    reason = "SO_PEERCRED: a peer outside our pid namespace has pid 0, which rustix's type cannot hold"
)]

use crate::{Error, Result};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The peer's identity (SO_PEERCRED), translated into our own namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; 0 where the peer is outside our pid namespace.
    pub pid: u32,
    /// User id; the overflow id (65534) where it is not mapped here.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
}

pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Credentials> {
    let mut ucred = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `ucred`, and
    // any bytes are a valid `ucred`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut ucred).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        let errno = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        return Err(Error::System(Errno::from_raw_os_error(errno)));
    }
    Ok(Credentials {
        pid: ucred.pid.cast_unsigned(),
        uid: ucred.uid,
        gid: ucred.gid,
    })
}
