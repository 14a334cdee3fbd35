//! Connections that others begin.

use crate::Circuit;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket that listens.
pub struct Listener(TcpListener);

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// As `TcpListener::bind`.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Listener> {
        TcpListener::bind(address).map(Listener)
    }

    /// The next connection, and who began it.
    ///
    /// # Errors
    /// As `TcpListener::accept`.
    pub fn accept(&self) -> io::Result<(Circuit, SocketAddr)> {
        let (stream, who) = self.0.accept()?;
        Ok((Circuit::from_fd(stream.into()), who))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `TcpListener::local_addr`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Whether accepting blocks.
    ///
    /// # Errors
    /// As `TcpListener::set_nonblocking`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Listener {
    fn from(fd: OwnedFd) -> Listener {
        Listener(fd.into())
    }
}
