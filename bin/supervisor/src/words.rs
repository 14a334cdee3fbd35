//! What processes say, and what they give with it.

use crate::role::Place;
use command::Message;
use command::verbs::Program;
use guard::guard;
use seqpacket::{Fds, Misdeed, Socket};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;

/// What a process says, with its descriptors where it has any to send. What comes beside other
/// words this process never has: who closes a descriptor waits for what it is of, and a
/// program that an operator was taken over by has one of a FUSE.
pub fn said(place: Place, socket: &Socket) -> Result<Option<(Message, Fds)>, seqpacket::Error> {
    match place {
        Place::Verifier | Place::Solver => return socket.recv(),
        Place::Circuits(_) if guard!("operator-descriptors") => {}
        _ => return Ok(socket.recv_word()?.map(|message| (message, Fds::new()))),
    }
    let Some(message) = socket.peek_word()? else {
        return Ok(None);
    };
    if message.body::<Program>().is_none() {
        return Ok(socket.recv_word()?.map(|message| (message, Fds::new())));
    }
    let mut fds = socket.recv_unclosed()?;
    let is_one = fds.len() == 1 && fds.iter().all(|fd| notify::is_called_listener(fd.as_fd()));
    match fds.pop().filter(|_| is_one) {
        Some(fd) => Ok(Some((message, vec![ManuallyDrop::into_inner(fd)]))),
        // They stay open: it is killed for them, once.
        None => Err(seqpacket::Error::Malformed(Misdeed::Descriptors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Seat;
    use command::verbs::Running;
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
        let program = Message::new(0, &Program { slot: 1, number: 7 });
        let other = Message::new(0, &Running::default());
        let circuits = Place::Circuits(3);
        operator.send(&program, &[listener.as_fd()]).unwrap();
        let (message, fds) = said(circuits, &own).unwrap().unwrap();
        assert!(message.body::<Program>().is_some() && fds.len() == 1);
        operator.send(&other, &[]).unwrap();
        assert!(said(circuits, &own).unwrap().unwrap().1.is_empty());
        let refused = Err(seqpacket::Error::Malformed(Misdeed::Descriptors));
        for (place, message, fds) in [
            (circuits, &program, vec![pipe.as_fd()]),
            (circuits, &program, vec![listener.as_fd(), pipe.as_fd()]),
            (circuits, &program, vec![]),
            (circuits, &other, vec![listener.as_fd()]),
            (Place::Meter(3), &program, vec![listener.as_fd()]),
            (Place::Seated(Seat::Fabric), &other, vec![pipe.as_fd()]),
        ] {
            operator.send(message, &fds).unwrap();
            assert_eq!(said(place, &own).map(|said| said.is_some()), refused);
        }
        assert!(said(circuits, &own).unwrap().is_none());
    }
}
