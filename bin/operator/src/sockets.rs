//! The sockets that programs get for those they asked for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::os::fd::{AsFd, OwnedFd};

/// Connections that wait for an accept, in the kernel's queue: more than the table lets wait,
/// so that a connect never does.
const BACKLOG: i32 = 4096;

/// A socket of ours, and its cookie.
pub struct Made {
    /// The socket.
    pub fd: OwnedFd,
    /// What the kernel knows it by, for as long as it lives.
    pub cookie: u64,
}

/// A stream socket. Nobody can pass a descriptor to who reads it, or to who reads one that it
/// accepts.
pub fn stream(nonblocking: bool) -> Result<Made, Errno> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    notify::refuse_descriptors(fd.as_fd())?;
    made(fd)
}

fn made(fd: OwnedFd) -> Result<Made, Errno> {
    let cookie = socket_cookie(&fd)?;
    Ok(Made { fd, cookie })
}

/// The cookie of whatever a program has there.
pub fn cookie(fd: &OwnedFd) -> Result<u64, Errno> {
    socket_cookie(fd)
}

/// The name that it listens by, or did.
pub fn name(fd: &OwnedFd) -> Option<[u8; 16]> {
    let name = notify::name_of(fd.as_fd(), false).ok()?;
    // sun_family, and a zero: an abstract name.
    match name.split_first_chunk::<3>()? {
        ([_, _, 0], name) => name.try_into().ok(),
        _ => None,
    }
}

/// Has it listen under a name that nobody can guess, in a network namespace that no program
/// is in.
pub fn listens(fd: &OwnedFd, name: [u8; 16]) -> Result<(), Errno> {
    let address = SocketAddrUnix::new_abstract_name(&name)?;
    match bind(fd, &address) {
        // It listened before.
        Ok(()) | Err(Errno::INVAL) => listen(fd, BACKLOG),
        Err(errno) => Err(errno),
    }
}

/// Connects it to who listens under a name.
pub fn connects(fd: &OwnedFd, name: [u8; 16]) -> Result<(), Errno> {
    connect(fd, &SocketAddrUnix::new_abstract_name(&name)?)
}

/// The connection that waits longest; `None`: none does. Nobody else accepts here, so that one
/// that waited still does.
pub fn accepts(fd: &OwnedFd, nonblocking: bool) -> Result<Option<Made>, Errno> {
    let now = Timespec::default();
    if poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now))? == 0 {
        return Ok(None);
    }
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    made(accept_with(fd, flags)?).map(Some)
}
