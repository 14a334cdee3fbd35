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
/// So many hang on somebody's account, and no more are sent: what they are to throw away stays where it
/// is, and who would give more is not started.
const MOST_HANG: usize = 16;

/// On whose account somebody is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Processes of this uid: all operators of a compartment have the same.
    Uid(u32),
    /// Who connects to this compartment's ports.
    Ports(u32),
}

/// Who was sent and is not back.
#[derive(Default)]
pub struct Errands {
    /// Those that end, or hang, with whose matter it was.
    ending: Vec<(Whose, Child)>,
    /// Sockets for which there was nobody to be sent.
    kept: Vec<(Whose, OwnedFd)>,
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
    pub fn ends(&mut self, of: Whose, child: Child) {
        self.ending.push((of, child));
    }

    /// It is not waited for any more.
    pub fn gives_up(&mut self, of: Whose, mut child: Child) {
        let _ = child.kill();
        self.ending.push((of, child));
    }

    /// Whether as many hang for a compartment as may.
    pub fn is_full(&self, of: Whose) -> bool {
        let hang = self.ending.iter().filter(|(whose, _)| *whose == of);
        hang.count() >= MOST_HANG && guard!("errands-full")
    }

    /// Before a socket is closed to which others wrote, here and by the keeper: nothing that they sent is
    /// closed with it.
    pub fn part(&mut self, of: Whose, socket: BorrowedFd<'_>) {
        let Ok(own) = socket.try_clone_to_owned() else {
            return;
        };
        let own = Socket::from_fd(own);
        if own.is_parted_from_with_descriptors() == Ok(true) && guard!("errands-part") {
            self.empty(of, own.into_fd());
        }
    }

    /// The same of one that listens: nobody connects any more, and who did and was not accepted is parted
    /// from.
    pub fn part_listener(&mut self, of: Whose, listener: BorrowedFd<'_>) {
        let Ok(own) = listener.try_clone_to_owned() else {
            return;
        };
        let _ = rustix::net::shutdown(&own, rustix::net::Shutdown::Both);
        let listener = Listener::from_fd(own);
        // As many as may wait; then it says that it is shut.
        while let Ok(Some(connection)) = listener.accept() {
            self.part(of, connection.as_fd());
        }
    }

    /// Has somebody throw away what waits in a socket. It is not closed before nothing does.
    fn empty(&mut self, of: Whose, socket: OwnedFd) {
        let own = socket.try_clone();
        let sent = own.and_then(|own| match self.is_full(of) {
            false => send(EMPTY, own, Stdio::null()),
            true => Err(std::io::ErrorKind::WouldBlock.into()),
        });
        match sent {
            Ok(child) => self.ending.push((of, child)),
            Err(_) => self.kept.push((of, socket)),
        }
    }

    /// Of those that are back nothing is left, and what waited for somebody to be sent is seen to.
    pub fn reap(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.ending.retain_mut(|(_, child)| is_there(child));
        let next = self.kept.iter().position(|(of, _)| !self.is_full(*of));
        if let Some(next) = next {
            let (of, socket) = self.kept.swap_remove(next);
            self.empty(of, socket);
        }
    }

    /// Whether somebody is not back.
    pub fn is_awaited(&self) -> bool {
        !self.ending.is_empty() || !self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::Message;
    use command::verbs::Done;

    #[test]
    fn who_has_as_many_hang_as_may_has_nobody_sent_and_others_have() {
        let mut errands = Errands::default();
        let sleeps = || Command::new("sleep").arg("1000").spawn().unwrap();
        let (one, other) = (Whose::Uid(7), Whose::Ports(7));
        for _ in 0..MOST_HANG {
            assert!(!errands.is_full(one));
            errands.ends(one, sleeps());
        }
        assert!(errands.is_full(one) && !errands.is_full(other));
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let with_one = || {
            let (a, b) = Socket::pair().unwrap();
            let word = Message::new(0, &Done::default());
            a.send(&word, &[pipe.as_fd()]).unwrap();
            b
        };
        // It is kept open until somebody can be sent.
        let socket = with_one();
        errands.part(one, socket.as_fd());
        assert_eq!((errands.ending.len(), errands.kept.len()), (MOST_HANG, 1));
        errands.part(other, with_one().as_fd());
        assert_eq!(errands.ending.len(), MOST_HANG + 1);
        errands.reap();
        assert_eq!(errands.kept.len(), 1);
        let (_, mut last) = errands.ending.remove(0);
        last.kill().unwrap();
        last.wait().unwrap();
        errands.reap();
        assert!(errands.kept.is_empty() && errands.is_full(one));
        for (_, child) in &mut errands.ending {
            let _ = child.kill();
            let _ = child.wait();
        }
        errands.reap();
        assert!(!errands.is_awaited());
    }
}
