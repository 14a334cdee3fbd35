//! Listening on a path.

use crate::{Error, Result, Socket};
use rustix::fs::{FileType, Mode, chmod, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 128;

/// A listening socket. Its path is left alone on drop: remove it where you made it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Binds to `path` (at most 107 bytes) and listens; the file has `mode` and
    /// never a wider one. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// [`Error::InUse`] where somebody listens there, or the path is not a socket.
    pub fn bind(path: &Path, mode: u32) -> Result<Listener> {
        let fd = bind_as(SocketType::SEQPACKET, path, mode)?;
        Ok(Listener { fd })
    }

    /// The same of a SOCK_STREAM socket, for who speaks another protocol than ours: the
    /// descriptor, whose connections are the caller's to accept and to read.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_stream(path: &Path, mode: u32) -> Result<OwnedFd> {
        bind_as(SocketType::STREAM, path, mode)
    }

    /// Takes over a descriptor, which must be a listening SOCK_SEQPACKET socket.
    pub fn from_fd(fd: OwnedFd) -> Listener {
        Listener { fd }
    }

    /// The next connection, if one waits. Never blocks.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn accept(&self) -> Result<Option<Socket>> {
        loop {
            match accept_with(&self.fd, SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(Some(Socket::from_fd(fd))),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(Error::System(errno)),
            }
        }
    }
}

impl Socket {
    /// Connects to a [`Listener`] at `path`.
    ///
    /// # Errors
    /// [`Error::System`]: ENOENT or ECONNREFUSED where nobody listens, EACCES
    /// without rights; [`Error::Full`] where its queue is full.
    pub fn connect(path: &Path) -> Result<Socket> {
        let address = SocketAddrUnix::new(path)?;
        let fd = socket(SocketType::SEQPACKET)?;
        connect(&fd, &address)?;
        Ok(Socket::from_fd(fd))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn bind_as(kind: SocketType, path: &Path, mode: u32) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = socket(kind)?;
    let mode = Mode::from_raw_mode(mode);
    // The file gets the socket's own mode less the umask: so it is never
    // wider than asked, not even for a moment.
    fchmod(&fd, mode)?;
    match bind(&fd, &address) {
        Err(Errno::ADDRINUSE) if is_stale(kind, path, &address)? => {
            unlink(path)?;
            bind(&fd, &address)?;
        }
        other => other?,
    }
    chmod(path, mode)?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

fn socket(kind: SocketType) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// Whether `path` is a socket that nobody listens on.
fn is_stale(kind: SocketType, path: &Path, address: &SocketAddrUnix) -> Result<bool> {
    let file = lstat(path)?;
    if FileType::from_raw_mode(file.st_mode) != FileType::Socket {
        return Ok(false);
    }
    Ok(connect(socket(kind)?, address) == Err(Errno::CONNREFUSED))
}
