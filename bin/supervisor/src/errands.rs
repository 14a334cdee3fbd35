//! What a tenant, or a process that it has taken over, can make who does it wait: to look through its
//! programs, to have a descriptor that it sent, to let go of one. The supervisor does none of it. A process
//! of its own program is sent for each, does that one thing, and is left behind where it hangs.

pub mod fetch;
pub mod search;

use guard::guard;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};
use seqpacket::Socket;
use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// The word by which this program throws away what waits in its input, and in its output. Both are sockets, or
/// the latter nothing; it goes on to have them until its standard error is at its end.
const EMPTY: &str = "empty";
/// With so many that hang on somebody's account who could give more is not started, nor accepted.
const MOST_HANG: usize = 16;

/// On whose account somebody is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Processes of this uid: all operators of a compartment have the same.
    Uid(u32),
    /// Who connects to this compartment's ports.
    Ports(u32),
}

/// Who was sent and is not back: those that end, or hang, with whose matter it was.
#[derive(Default)]
pub struct Errands {
    ending: Vec<(Whose, Child)>,
}

/// Does what the word says, if it is one of an errand.
pub fn run(word: Option<&str>) -> Option<Result<()>> {
    match word? {
        search::SEARCH => Some(search::run()),
        fetch::FETCH => Some(fetch::run()),
        EMPTY => {
            seqpacket::empty(std::io::stdin().as_fd());
            seqpacket::empty(std::io::stdout().as_fd());
            Some(until_end(std::io::stderr().as_fd()))
        }
        _ => None,
    }
}

/// Sends somebody, with this input and output.
///
/// # Errors
/// No process can be made.
pub fn send(word: &str, input: OwnedFd, output: Stdio) -> Result<Child> {
    command(word).stdin(input).stdout(output).spawn()
}

fn command(word: &str) -> Command {
    // This very program, also where another release is in its place by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg(word).stderr(Stdio::null());
    command
}

/// Until whoever has the other end has closed it.
fn until_end(pipe: BorrowedFd<'_>) -> Result<()> {
    while rustix::io::read(pipe, &mut [0; 1])? != 0 {}
    Ok(())
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
        if own.is_parted_from_with_descriptors() && guard!("errands-part") {
            self.empty(of, own.into_fd(), None);
        }
    }

    /// The same without a look: of one that has descriptors for sure, or of which others may say where looks begin.
    pub fn part_unseen(&mut self, of: Whose, socket: BorrowedFd<'_>) {
        if let Ok(own) = socket.try_clone_to_owned() {
            let _ = shutdown(&own, Shutdown::Both);
            self.empty(of, own, None);
        }
    }

    /// The same of one that listens: nobody connects any more. Who did and was not accepted may have sent
    /// anything, and of a stream one does not see all.
    pub fn part_listener(&mut self, of: Whose, listener: BorrowedFd<'_>) {
        let Ok(own) = listener.try_clone_to_owned() else {
            return;
        };
        let _ = shutdown(&own, Shutdown::Both);
        let first = accept_with(&own, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match first {
            // It is shut, and nobody waits.
            Err(Errno::INVAL | Errno::AGAIN) if guard!("errands-listener") => {}
            Ok(first) => {
                let _ = shutdown(&first, Shutdown::Both);
                self.empty(of, own, Some(first));
            }
            _ => self.empty(of, own, None),
        }
    }

    /// Has somebody throw away what waits in a socket, or in two.
    fn empty(&mut self, of: Whose, socket: OwnedFd, other: Option<OwnedFd>) {
        let sent = pipe_with(PipeFlags::CLOEXEC).map_err(Into::into);
        let sent = sent.and_then(|(until, own)| {
            // Ours are closed with the command, and only then may it end: nobody here is the last to have them.
            let mut command = command(EMPTY);
            command.stdin(socket).stderr(until);
            command.stdout(other.map_or_else(Stdio::null, Stdio::from));
            let child = command.spawn();
            drop(command);
            drop(own);
            child
        });
        match sent {
            Ok(child) => self.ending.push((of, child)),
            Err(error) => {
                confine::say!("supervisor: nobody empties a socket: {error}");
            }
        }
    }

    /// Of those that are back nothing is left.
    pub fn reap(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.ending.retain_mut(|(_, child)| is_there(child));
    }

    /// Whether somebody is not back.
    pub fn is_awaited(&self) -> bool {
        !self.ending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::Message;
    use command::verbs::Done;

    /// What it sent, some of which no look shows (bytes out of band), is thrown away there.
    #[test]
    fn who_waits_at_what_listens_is_left_to_another() {
        let folder = tempfile::tempdir().unwrap();
        for comes in [false, true] {
            let path = folder.path().join(format!("socket-{comes}"));
            let listener = seqpacket::Listener::bind_stream(&path, 0o600).unwrap();
            let came = comes.then(|| std::os::unix::net::UnixStream::connect(&path).unwrap());
            let mut errands = Errands::default();
            errands.part_listener(Whose::Ports(1), listener.as_fd());
            assert_eq!(errands.ending.len(), usize::from(comes));
            for (_, child) in &mut errands.ending {
                child.wait().unwrap();
            }
            drop(came);
            assert!(std::os::unix::net::UnixStream::connect(&path).is_err());
        }
    }

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
        // What there is is thrown away all the same.
        errands.part(one, with_one().as_fd());
        errands.part(other, with_one().as_fd());
        assert_eq!(errands.ending.len(), MOST_HANG + 2);
        assert!(!errands.is_full(other));
        for (_, child) in errands.ending.iter_mut().skip(1) {
            let _ = child.kill();
            let _ = child.wait();
        }
        errands.reap();
        assert!(!errands.is_full(one) && errands.is_awaited());
        for (_, child) in &mut errands.ending {
            let _ = child.kill();
            let _ = child.wait();
        }
        errands.reap();
        assert!(!errands.is_awaited());
    }
}
