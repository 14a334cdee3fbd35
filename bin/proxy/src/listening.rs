//! Programs' listening sockets, as those with packets see them.

use crate::tcp;
use command::verbs::Serve;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is listened for at most.
const MOST: usize = 1024;
/// Connections of one that are taken in a turn.
pub const TURN: usize = 64;

/// They, by the operator's number.
#[derive(Default)]
pub struct Listening(BTreeMap<u64, OwnedFd>);

impl Listening {
    /// Listens for one more, or anew.
    ///
    /// # Errors
    /// The kernel's: somebody in the namespace has the port.
    pub fn serve(&mut self, body: &Serve) -> Result<BorrowedFd<'_>, Errno> {
        self.0.remove(&body.id);
        if self.0.len() >= MOST {
            return Err(Errno::NFILE);
        }
        let at = tcp::address(body.ip, body.port);
        let fd = tcp::serve(&at, body.backlog, body.only6 != 0)?;
        let at: &OwnedFd = self.0.entry(body.id).or_insert(fd);
        Ok(at.as_fd())
    }

    /// No more; it.
    pub fn unserve(&mut self, id: u64) -> Option<OwnedFd> {
        self.0.remove(&id)
    }

    /// Who connected to one, if anybody did.
    pub fn accept(&self, id: u64) -> Option<(OwnedFd, SocketAddr, SocketAddr)> {
        tcp::accept(self.0.get(&id)?).ok()
    }
}
