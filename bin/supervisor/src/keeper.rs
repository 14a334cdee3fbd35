//! The keeper, as its client sees it: descriptors by name, held over our death.
//!
//! Keeping and forgetting do not wait for the answer: what is in the keeper's queue
//! is done even if this process dies at its next instruction.

use crate::registry::{Key, Note};
use command::message::Name;
use command::verbs::{Beat, Done, Forget, Keep, List, Shutdown};
use command::{Message, Verb};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seqpacket::{Error, Fds, Socket};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest wait for a keeper that does not read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the keeper wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    None,
    /// End everything.
    Shutdown,
}

/// The connection to the keeper.
#[derive(Debug)]
pub struct Keeper {
    socket: Socket,
    seq: u32,
    /// What was sent and not yet answered, for the message when it fails.
    unanswered: HashMap<u32, String>,
    wish: Wish,
    is_gone: bool,
}

impl Keeper {
    /// Over this socket.
    pub fn new(socket: Socket) -> Keeper {
        Keeper {
            socket,
            seq: 0,
            unanswered: HashMap::new(),
            wish: Wish::None,
            is_gone: false,
        }
    }

    /// All that the keeper holds.
    ///
    /// # Errors
    /// What the socket says; the keeper is gone or hangs.
    pub fn all(&mut self) -> Result<Vec<(String, Note, OwnedFd)>, Error> {
        let seq = self.number("list".to_owned());
        self.unanswered.remove(&seq);
        let mut found = Vec::new();
        let (mut message, mut fds) =
            self.socket
                .ask(&Message::new(seq, &List::default()), &[], PATIENCE)?;
        // Ends with the keeper's Done; bounded by what it holds.
        while let Some(entry) = message.body::<List>() {
            if let Some(fd) = fds.pop() {
                found.push((
                    entry.name.as_str().to_owned(),
                    Note::from_text(entry.note.as_str()),
                    fd,
                ));
            }
            (message, fds) = self.socket.answer_to(seq, PATIENCE)?;
        }
        Ok(found)
    }

    /// Keeps a duplicate of a descriptor under a name, in place of what had that name.
    pub fn keep(&mut self, key: Key, note: &Note, fd: BorrowedFd<'_>) {
        let name = key.to_string();
        let body = Keep {
            name: Name::new(&name).unwrap_or_default(),
            note: Name::new(note.as_str()).unwrap_or_default(),
        };
        let seq = self.number(name);
        self.send(&Message::new(seq, &body), &[fd]);
    }

    /// Forgets every name that begins with `prefix`.
    pub fn forget(&mut self, prefix: &str) {
        let body = Forget {
            name: Name::new(prefix).unwrap_or_default(),
            exact: 0,
        };
        let seq = self.number(prefix.to_owned());
        self.send(&Message::new(seq, &body), &[]);
    }

    /// Forgets one name.
    pub fn forget_one(&mut self, key: Key) {
        let name = key.to_string();
        let body = Forget {
            name: Name::new(&name).unwrap_or_default(),
            exact: 1,
        };
        let seq = self.number(name);
        self.send(&Message::new(seq, &body), &[]);
    }

    /// Says that this process goes on.
    pub fn beat(&mut self) {
        self.send(&Message::new(0, &Beat::default()), &[]);
    }

    /// Takes what has arrived.
    ///
    /// # Errors
    /// The keeper is gone: nobody holds anything any more.
    pub fn listen(&mut self) -> Result<Wish, Error> {
        while let Some((message, fds)) = self.socket.recv()? {
            self.take(&message, fds);
        }
        Ok(self.wish)
    }

    fn take(&mut self, message: &Message, _fds: Fds) {
        if message.body::<Shutdown>().is_some() {
            self.wish = Wish::Shutdown;
        }
        let asked = self.unanswered.remove(&message.seq);
        if message.error != 0 && Verb::from_number(message.verb) == Some(Verb::Done) {
            let done = message.body::<Done>().unwrap_or_default();
            confine::say!(
                "supervisor: the keeper refused {:?}: {} (errno {})",
                asked.unwrap_or_default(),
                done.detail.as_str(),
                done.errno
            );
        }
    }

    fn number(&mut self, what: String) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
        self.unanswered.insert(self.seq, what);
        self.seq
    }

    fn send(&mut self, message: &Message, fds: &[BorrowedFd<'_>]) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.socket.send(message, fds) {
                Ok(()) => return,
                Err(Error::Full) if Instant::now() < end => {
                    // It may wait for us to read its answers.
                    if self.listen().is_err() {
                        return;
                    }
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    let _ = poll(
                        &mut fds,
                        Some(&Timespec {
                            tv_sec: 0,
                            tv_nsec: 1_000_000,
                        }),
                    );
                }
                Err(error) => {
                    // Said once; the loop sees the end of the socket itself.
                    if !std::mem::replace(&mut self.is_gone, true) {
                        confine::say!("supervisor: the keeper does not take a message: {error}");
                    }
                    return;
                }
            }
        }
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
