//! An operator gives the supervisor where a program's calls come. One that is taken over may give anything:
//! a process of its own looks at what it is, and only what it is to be is handed on.

use super::send;
use command::Message;
use command::verbs::{Done, Program};
use guard::guard;
use seqpacket::{Fds, Socket};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;

/// The word by which this program looks.
pub const FETCH: &str = "fetch";
/// Who takes longer hangs, ns.
pub const LONGEST: u64 = 2_000_000_000;

/// Somebody who looks at what a process gave.
#[derive(Debug)]
pub struct Fetch {
    child: Child,
    from: Socket,
    /// When it is not waited for any more, ns.
    pub due: u64,
}

impl Fetch {
    /// Has somebody look at what is next in this socket, where it stays.
    ///
    /// # Errors
    /// No process can be made.
    pub fn start(socket: BorrowedFd<'_>, now: u64) -> Result<Fetch> {
        let (from, to) = Socket::pair().map_err(Error::other)?;
        let child = send(FETCH, socket.try_clone_to_owned()?, to.into_fd().into())?;
        Ok(Fetch {
            child,
            from,
            due: now + LONGEST,
        })
    }

    /// What it says: where a program's calls come; none, if it is anything else.
    pub fn says(&self) -> Option<(Message, Fds)> {
        let (message, fds) = self.from.recv().ok()??;
        let is_one = message.body::<Program>().is_some() && fds.len() == 1;
        is_one.then_some((message, fds))
    }

    /// It has said it, or is not waited for.
    pub fn over(self) -> Child {
        self.child
    }
}

impl AsFd for Fetch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

/// Looks at what is next in the socket that is its input; to the socket that is its output it says it, if
/// it is a program's.
///
/// # Errors
/// There is nothing, or nobody listens.
pub fn run() -> Result<()> {
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let socket = own(std::io::stdin().as_fd())?;
    let to = own(std::io::stdout().as_fd())?;
    look(&Socket::from_fd(socket), &Socket::from_fd(to))
}

fn look(socket: &Socket, to: &Socket) -> Result<()> {
    let seen = socket.peek().map_err(Error::other)?;
    let (message, fds) = seen.ok_or(ErrorKind::UnexpectedEof)?;
    let is_one = |fds: &Fds| match fds.as_slice() {
        [fd] => notify::is_called_listener(fd.as_fd()) || !guard!("operator-descriptors"),
        _ => false,
    };
    let said = match message.body::<Program>().filter(|_| is_one(&fds)) {
        Some(_) => {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            to.send(&message, &fds)
        }
        // Before they are closed, which may take as long as it likes.
        None => to.send(&Message::new(0, &Done::default()), &[]),
    };
    said.map_err(Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// A listener, by a filter of this test's thread that lets all pass.
    fn listener() -> OwnedFd {
        let all = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        rustix::thread::set_no_new_privs(true).unwrap();
        notify::filter::install(&all).unwrap()
    }

    #[test]
    fn an_operator_gives_calls_of_programs_and_nothing_else() {
        let (operator, own) = Socket::pair().unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let listener = listener();
        let program = Message::new(
            0,
            &Program {
                slot: 1,
                number: 7,
                port: 0,
            },
        );
        let other = Message::new(0, &Done::default());
        for (message, fds, is_one) in [
            (&program, vec![listener.as_fd()], true),
            (&program, vec![pipe.as_fd()], false),
            (&program, vec![listener.as_fd(), listener.as_fd()], false),
            (&program, vec![], false),
            (&other, vec![listener.as_fd()], false),
        ] {
            operator.send(message, &fds).unwrap();
            let (from, to) = Socket::pair().unwrap();
            look(&own, &to).unwrap();
            let (said, given) = from.recv().unwrap().unwrap();
            let is_given = said.body::<Program>() == program.body() && given.len() == 1;
            assert_eq!((is_given, given.len()), (is_one, usize::from(is_one)));
            // It is there until the supervisor has it.
            own.skip().unwrap();
        }
        let (_from, to) = Socket::pair().unwrap();
        assert!(look(&own, &to).is_err());
    }
}
