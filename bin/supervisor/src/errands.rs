//! What a tenant, or a process that it has taken over, can make who does it wait: to look through its
//! programs, to have a descriptor that it sent, to let go of one. The supervisor does none of it. A process
//! of its own program is sent for each, does that one thing, and is left behind where it hangs.

pub mod calls;
pub mod chase;
pub mod fetch;
pub mod owners;
pub mod removed;
pub mod search;
pub mod tasks;

use crate::link::Link;
use guard::guard;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
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

/// Descriptors that are kept free for somebody to be sent, whatever else this process has. One takes ten.
const SPARE: usize = 24;

/// Who was sent and is not back: those that end, or hang, with whose matter it was.
#[derive(Default)]
pub struct Errands {
    ending: Vec<(Whose, Child)>,
    /// Sockets that nobody could be sent for, yet.
    left: Vec<(Whose, OwnedFd, Option<OwnedFd>)>,
    /// Numbers of descriptors that are free as soon as they are wanted.
    spare: Vec<OwnedFd>,
}

/// Does what the word says, if it is one of an errand.
pub fn run(word: Option<&str>) -> Option<Result<()>> {
    match word? {
        search::SEARCH => Some(search::run()),
        tasks::TASKS => Some(tasks::run()),
        fetch::FETCH => Some(fetch::run()),
        removed::REMOVED => Some(removed::run()),
        owners::OWNERS => Some(owners::run()),
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

/// Has somebody do what takes no time, and waits for it.
///
/// # Errors
/// Nobody could be sent, or it was not done.
pub fn says_to(word: &str, text: &str) -> Result<()> {
    let (input, mut ours) = std::io::pipe()?;
    let mut child = send(word, input.into(), Stdio::null())?;
    std::io::Write::write_all(&mut ours, text.as_bytes())?;
    drop(ours);
    match child.wait()?.success() {
        true => Ok(()),
        false => Err(std::io::ErrorKind::PermissionDenied.into()),
    }
}

/// Until whoever has the other end has closed it.
fn until_end(pipe: BorrowedFd<'_>) -> Result<()> {
    while rustix::io::read(pipe, &mut [0; 1])? != 0 {}
    Ok(())
}

impl Errands {
    /// None is under way, and there is room for one whatever comes.
    pub fn new() -> Errands {
        let mut errands = Errands::default();
        errands.keep_spare();
        errands
    }

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

    /// What hangs on one account is on another's.
    pub fn hands_on(&mut self, from: Whose, to: Whose) {
        let ending = self.ending.iter_mut().map(|(of, _)| of);
        let left = self.left.iter_mut().map(|(of, ..)| of);
        for of in ending.chain(left).filter(|of| **of == from) {
            *of = to;
        }
    }

    /// Before a socket is closed to which others wrote, here and by the keeper: nothing that they sent is
    /// closed with it.
    pub fn part(&mut self, of: Whose, socket: BorrowedFd<'_>) {
        let Some(own) = self.copy(socket) else {
            return;
        };
        let own = Socket::from_fd(own);
        if own.is_parted_from_with_descriptors() && guard!("errands-part") {
            self.empty(of, own.into_fd(), None);
        }
    }

    /// The same without a look: of one that has descriptors for sure, or of which others may say where looks begin.
    pub fn part_unseen(&mut self, of: Whose, socket: BorrowedFd<'_>) {
        if let Some(own) = self.copy(socket) {
            let _ = shutdown(&own, Shutdown::Both);
            self.empty(of, own, None);
        }
    }

    /// The same of a link whose peer is dead, or to be, and of what waited to be sent to it.
    pub fn part_link(&mut self, of: Whose, link: &mut Link) {
        for fd in link.give_up() {
            self.part_given(of, fd);
        }
        self.part(of, link.as_fd());
    }

    /// The same of what was to be given to somebody, and nobody else has: of a pair of sockets the other end
    /// may have sent anything. What is no socket has nothing in it.
    pub fn part_given(&mut self, of: Whose, fd: OwnedFd) {
        if socket_type(&fd).is_ok() && guard!("errands-given") {
            self.part_unseen(of, fd.as_fd());
        }
    }

    /// The same of one that listens: nobody connects any more. Who did and was not accepted may have sent
    /// anything, and of a stream one does not see all.
    pub fn part_listener(&mut self, of: Whose, listener: BorrowedFd<'_>) {
        let Some(own) = self.copy(listener) else {
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

    /// Has somebody end what a removed compartment's programs have of circuits: sockets of this namespace, in programs of this
    /// uid's.
    pub fn end_circuits(&mut self, uid: u32, network: BorrowedFd<'_>) {
        let sends = || {
            let mut command = command(removed::REMOVED);
            // Nobody hears of what it could not end but by the log.
            command.arg(uid.to_string()).stderr(Stdio::inherit());
            command
                .stdin(network.try_clone_to_owned()?)
                .stdout(Stdio::null());
            command.spawn()
        };
        let mut sent = sends();
        if sent.is_err() && !self.spare.is_empty() {
            self.spare.clear();
            sent = sends();
        }
        match sent {
            Ok(child) => self.ends(Whose::Uid(uid), child),
            Err(error) => confine::say!(
                "supervisor: nobody ends the circuits of a compartment that is removed: {error}"
            ),
        }
        self.keep_spare();
    }

    /// Has somebody throw away what waits in a socket, or in two. Where nobody can be sent they stay here, open,
    /// until somebody can.
    fn empty(&mut self, of: Whose, socket: OwnedFd, other: Option<OwnedFd>) {
        self.left.push((of, socket, other));
        if let Err(error) = self.send_for_left() {
            confine::say!("supervisor: nobody empties a socket yet: {error}");
        }
    }

    fn send_for_left(&mut self) -> Result<()> {
        while let Some((of, socket, other)) = self.left.pop() {
            let mut sent = emptier(socket.as_fd(), other.as_ref().map(AsFd::as_fd));
            if sent.is_err() && !self.spare.is_empty() {
                self.spare.clear();
                sent = emptier(socket.as_fd(), other.as_ref().map(AsFd::as_fd));
            }
            match sent {
                Ok((child, until)) => {
                    // Ours are closed first, and only then may it end: nobody here is the last to have them.
                    drop((socket, other));
                    drop(until);
                    self.ending.push((of, child));
                }
                Err(error) => {
                    self.left.push((of, socket, other));
                    return Err(error);
                }
            }
        }
        self.keep_spare();
        Ok(())
    }

    /// Another descriptor of a socket, also where this process has as many as it may.
    fn copy(&mut self, socket: BorrowedFd<'_>) -> Option<OwnedFd> {
        let copied = socket.try_clone_to_owned();
        copied
            .or_else(|_| {
                // One is enough, and the others are for who is sent.
                self.spare.pop();
                socket.try_clone_to_owned()
            })
            .inspect_err(|error| confine::say!("supervisor: a socket is not emptied: {error}"))
            .ok()
    }

    fn keep_spare(&mut self) {
        while self.spare.len() < SPARE && guard!("errands-spare") {
            match eventfd(0, EventfdFlags::CLOEXEC) {
                Ok(fd) => self.spare.push(fd),
                Err(_) => break,
            }
        }
    }

    /// Of those that are back nothing is left.
    pub fn reap(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.ending.retain_mut(|(_, child)| is_there(child));
        // It was said when it was left.
        let _ = self.send_for_left();
    }

    /// Whether somebody is not back.
    pub fn is_awaited(&self) -> bool {
        !(self.ending.is_empty() && self.left.is_empty())
    }
}

/// Who throws away what waits in a socket, or in two, and ends once that pipe is closed.
fn emptier(socket: BorrowedFd<'_>, other: Option<BorrowedFd<'_>>) -> Result<(Child, OwnedFd)> {
    let (until, own) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = command(EMPTY);
    command.stdin(socket.try_clone_to_owned()?).stderr(until);
    command.stdout(match other {
        Some(other) => Stdio::from(other.try_clone_to_owned()?),
        None => Stdio::null(),
    });
    Ok((command.spawn()?, own))
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

    /// A socket with somebody's descriptor in it, and where it is seen whether that is closed.
    fn with_one() -> (Socket, Socket, OwnedFd) {
        let (pipe, end) = rustix::pipe::pipe().unwrap();
        let (a, b) = Socket::pair().unwrap();
        let word = Message::new(0, &Done::default());
        a.send(&word, &[end.as_fd()]).unwrap();
        (a, b, pipe)
    }

    /// It is at its end once nobody has the other.
    fn is_closed(pipe: &OwnedFd, errands: &mut Errands) -> bool {
        rustix::io::ioctl_fionbio(pipe, true).unwrap();
        (0..2000).any(|_| {
            errands.reap();
            std::thread::sleep(std::time::Duration::from_millis(2));
            rustix::io::read(pipe, &mut [0; 1]) == Ok(0)
        })
    }

    #[test]
    fn what_waited_for_a_link_that_ends_is_emptied_where_nobody_else_has_it() {
        let (ours, theirs) = Socket::pair().unwrap();
        let mut link = Link::new(ours);
        let word = Message::new(0, &Done::default());
        while link.backlog() == 0 {
            assert!(link.send(&word, Vec::new()));
        }
        let (_far, near, pipe) = with_one();
        let (_other, kept, open) = with_one();
        let kept = std::rc::Rc::new(kept.into_fd());
        assert!(link.send(&word, vec![std::rc::Rc::new(near.into_fd())]));
        assert!(link.send(&word, vec![std::rc::Rc::clone(&kept)]));
        // Whom nothing can be given now has none of it later.
        assert!(!link.send_now(&word, kept.as_fd()));
        drop(theirs);
        assert!(!link.flush(0) && link.backlog() > 0);
        let mut errands = Errands::new();
        errands.part_link(Whose::Uid(7), &mut link);
        assert_eq!((errands.ending.len(), link.backlog()), (1, 0));
        assert!(is_closed(&pipe, &mut errands));
        rustix::io::ioctl_fionbio(&open, true).unwrap();
        assert_eq!(rustix::io::read(&open, &mut [0; 1]), Err(Errno::AGAIN));
    }

    /// In a process of its own: how many descriptors there may be holds for all of it.
    #[test]
    fn somebody_is_sent_where_no_descriptor_is_left() {
        const INSIDE: &str = "ERRANDS_STARVED";
        if std::env::var_os(INSIDE).is_none() {
            let name = "errands::tests::somebody_is_sent_where_no_descriptor_is_left";
            let mut inside = Command::new(std::env::current_exe().unwrap());
            inside.args(["--exact", name]).env(INSIDE, "1");
            let said = inside.output().unwrap();
            return assert!(said.status.success(), "{said:?}");
        }
        let all: Vec<_> = (0..3).map(|_| with_one()).collect();
        let mut errands = Errands::new();
        let soft = rustix::process::Resource::Nofile;
        let mut limit = rustix::process::getrlimit(soft);
        limit.current = Some(100);
        rustix::process::setrlimit(soft, limit).unwrap();
        let starve = || std::iter::from_fn(|| eventfd(0, EventfdFlags::CLOEXEC).ok());
        let mut taken: Vec<OwnedFd> = Vec::new();
        for (_far, near, pipe) in all {
            taken.extend(starve());
            errands.part(Whose::Uid(7), near.as_fd());
            assert_eq!((errands.ending.len(), errands.left.len()), (1, 0));
            drop(near);
            assert!(is_closed(&pipe, &mut errands));
            for (_, child) in &mut errands.ending {
                child.wait().unwrap();
            }
            errands.reap();
        }
        // Where not even that is there it stays open until there is one.
        errands.spare.clear();
        let (_far, near, pipe) = {
            drop((
                taken.pop(),
                taken.pop(),
                taken.pop(),
                taken.pop(),
                taken.pop(),
            ));
            with_one()
        };
        let kept = near.into_fd();
        taken.extend(starve());
        errands.empty(Whose::Uid(7), kept, None);
        assert!(errands.left.len() == 1 && errands.is_awaited());
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        assert_eq!(rustix::io::read(&pipe, &mut [0; 1]), Err(Errno::AGAIN));
        drop(taken);
        assert!(is_closed(&pipe, &mut errands) && errands.left.is_empty());
    }

    #[test]
    fn who_has_as_many_hang_as_may_has_nobody_sent_and_others_have() {
        let mut errands = Errands::default();
        let sleeps = || Command::new("sleep").arg("1000").spawn().unwrap();
        let (one, other) = (Whose::Uid(7), Whose::Ports(7));
        for _ in 0..MOST_HANG {
            assert!(!errands.is_full(one));
            errands.ends(other, sleeps());
            errands.hands_on(other, one);
        }
        assert!(errands.is_full(one) && !errands.is_full(other));
        // What there is is thrown away all the same.
        errands.part(one, with_one().1.as_fd());
        errands.part(other, with_one().1.as_fd());
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
