//! Sending without blocking: what a peer does not take now waits in a queue.

use command::Message;
use seqpacket::{Error, Socket};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A descriptor with several owners in this process.
pub type Shared = Rc<OwnedFd>;

/// Messages queued for one peer, at most; a peer that lets more pile up is dead.
const LONGEST: usize = 16_384;

/// A socket and what waits to be sent on it.
#[derive(Debug)]
pub struct Link {
    socket: Socket,
    queue: VecDeque<(Message, Vec<Shared>)>,
}

impl Link {
    /// Over this socket.
    pub fn new(socket: Socket) -> Link {
        Link {
            socket,
            queue: VecDeque::new(),
        }
    }

    /// Sends now, or as soon as the peer takes it. `false`: the peer is gone, or so
    /// far behind that it counts as gone.
    pub fn send(&mut self, message: &Message, fds: Vec<Shared>) -> bool {
        if self.queue.is_empty() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.socket.send(message, &borrowed) {
                Ok(()) => return true,
                Err(Error::Full) => {}
                Err(_) => return false,
            }
        }
        if self.queue.len() >= LONGEST {
            return false;
        }
        self.queue.push_back((*message, fds));
        true
    }

    /// Sends what waits; whether something still does.
    pub fn flush(&mut self) -> bool {
        while let Some((message, fds)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.socket.send(message, &borrowed) {
                Err(Error::Full) => return true,
                // Gone: its death is handled where it is seen.
                Err(_) => self.queue.clear(),
                Ok(()) => {
                    self.queue.pop_front();
                }
            }
        }
        false
    }

    /// Messages that wait.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
