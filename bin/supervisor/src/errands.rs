//! What a tenant, or a process that it has taken over, can make who does it wait: to look through its
//! programs, to have a descriptor that it sent, to let go of one. The supervisor does none of it. A process
//! of its own program is sent for each, does that one thing, and is left behind where it hangs.

pub mod fetch;
pub mod search;

use guard::guard;
use seqpacket::{Listener, Socket};
use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// The word by which this program throws away what waits in the socket that is its input.
const EMPTY: &str = "empty";
/// So many that hang, and no more are sent: what they are to throw away stays where it is.
const MOST_HANG: usize = 64;

/// Who was sent and is not back.
#[derive(Default)]
pub struct Errands {
    /// Those that end, or hang.
    ending: Vec<Child>,
    /// Sockets for which there was nobody to be sent.
    kept: Vec<OwnedFd>,
}

/// Does what the word says, if it is one of an errand.
pub fn run(word: Option<&str>) -> Option<Result<()>> {
    match word? {
        search::SEARCH => Some(search::run()),
        fetch::FETCH => Some(fetch::run()),
        EMPTY => {
            seqpacket::empty(std::io::stdin().as_fd());
            Some(Ok(()))
        }
        _ => None,
    }
}

/// Sends somebody, with this input and output.
///
/// # Errors
/// No process can be made.
pub fn send(word: &str, input: OwnedFd, output: Stdio) -> Result<Child> {
    // This very program, also where another release is in its place by now.
    Command::new("/proc/self/exe")
        .arg(word)
        .stdin(input)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
}

impl Errands {
    /// It ends by itself, or is left to itself.
    pub fn ends(&mut self, child: Child) {
        self.ending.push(child);
    }

    /// It is not waited for any more.
    pub fn gives_up(&mut self, mut child: Child) {
        let _ = child.kill();
        self.ending.push(child);
    }

    /// Before a socket is closed to which others wrote, here and by the keeper: nothing that they sent is
    /// closed with it.
    pub fn part(&mut self, socket: BorrowedFd<'_>) {
        let Ok(own) = socket.try_clone_to_owned() else {
            return;
        };
        let own = Socket::from_fd(own);
        if own.is_parted_from_with_descriptors() == Ok(true) && guard!("errands-part") {
            self.empty(own.into_fd());
        }
    }

    /// The same of one that listens: nobody connects any more, and who did and was not accepted is parted
    /// from.
    pub fn part_listener(&mut self, listener: BorrowedFd<'_>) {
        let Ok(own) = listener.try_clone_to_owned() else {
            return;
        };
        let _ = rustix::net::shutdown(&own, rustix::net::Shutdown::Both);
        let listener = Listener::from_fd(own);
        // As many as may wait; then it says that it is shut.
        while let Ok(Some(connection)) = listener.accept() {
            self.part(connection.as_fd());
        }
    }

    /// Has somebody throw away what waits in a socket. It is not closed before nothing does.
    fn empty(&mut self, socket: OwnedFd) {
        let own = socket.try_clone();
        let room = self.ending.len() < MOST_HANG;
        match own.and_then(|own| match room {
            true => send(EMPTY, own, Stdio::null()),
            false => Err(std::io::ErrorKind::WouldBlock.into()),
        }) {
            Ok(child) => self.ending.push(child),
            Err(_) => self.kept.push(socket),
        }
    }

    /// Of those that are back nothing is left, and what waited for somebody to be sent is seen to.
    pub fn reap(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.ending.retain_mut(is_there);
        if self.ending.len() < MOST_HANG
            && let Some(socket) = self.kept.pop()
        {
            self.empty(socket);
        }
    }

    /// Whether somebody is not back.
    pub fn is_awaited(&self) -> bool {
        !self.ending.is_empty() || !self.kept.is_empty()
    }
}
