use crate::{Error, Listener, MAX_FDS, Misdeed, Socket};
use command::message::{BODY_BYTES, MESSAGE_BYTES, VERSION};
use command::verbs::{Done, Quit};
use command::{Message, Verb};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use zerocopy::IntoBytes;

const SOON: Duration = Duration::from_secs(10);

fn done(seq: u32) -> Message {
    Message::new(
        seq,
        &Done {
            value: seq,
            ..Done::default()
        },
    )
}

#[test]
fn messages_arrive_in_order_and_then_there_are_none() {
    let (a, b) = Socket::pair().unwrap();
    for seq in 0..5 {
        a.send(&done(seq), &[]).unwrap();
    }
    for seq in 0..5 {
        let (message, fds) = b.recv().unwrap().unwrap();
        assert_eq!((message, fds.len()), (done(seq), 0));
    }
    assert!(b.recv().unwrap().is_none());
    drop(a);
    assert_eq!(b.recv().unwrap_err(), Error::Closed);
}

#[test]
fn descriptors_come_along_close_on_exec() {
    let (a, b) = Socket::pair().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let many = vec![write.as_fd(); MAX_FDS];
    a.send(&done(1), &many).unwrap();
    drop(write);
    let (_, fds) = b.recv().unwrap().unwrap();
    assert_eq!(fds.len(), MAX_FDS);
    for fd in &fds {
        rustix::io::write(fd, b"x").unwrap();
        assert!(
            rustix::io::fcntl_getfd(fd)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
    }
    drop(fds);
    let mut got = Vec::new();
    File::from(read).read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), MAX_FDS);
}

#[test]
fn what_is_sent_to_itself_waits_for_whoever_has_it_then() {
    let first = Socket::to_itself().unwrap();
    let second = Socket::from_fd(first.as_fd().try_clone_to_owned().unwrap());
    let (read, write) = rustix::pipe::pipe().unwrap();
    for seq in 0..20 {
        first.send(&done(seq), &[write.as_fd()]).unwrap();
    }
    drop((first, write));
    for seq in 0..20 {
        let (message, fds) = second.recv().unwrap().unwrap();
        assert_eq!((message, fds.len()), (done(seq), 1));
    }
    assert!(second.recv().unwrap().is_none());
    assert_eq!(File::from(read).read(&mut [0]).unwrap(), 0);
    let name = rustix::net::getsockname(&second).unwrap();
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let stranger = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        flags,
        None,
    );
    let sent = rustix::net::sendto(stranger.unwrap(), b"x", SendFlags::empty(), &name);
    assert_eq!(sent, Err(rustix::io::Errno::PERM));
}

#[test]
fn too_many_descriptors_are_the_senders_error() {
    let (a, _b) = Socket::pair().unwrap();
    let many = vec![a.as_fd(); MAX_FDS + 1];
    assert_eq!(a.send(&done(1), &many), Err(Error::TooManyDescriptors));
}

/// Of what comes beside a word nothing is this process's, not for a moment, and it stays for another.
#[test]
fn a_peer_of_words_gives_no_descriptor() {
    let (a, b) = Socket::pair().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    assert_eq!(b.recv_word().unwrap(), None);
    a.send(&done(1), &[]).unwrap();
    let peeked = |b: &Socket| b.peek_word().unwrap().map(|(it, has)| (it.seq, has));
    assert_eq!(peeked(&b), Some((1, false)));
    assert_eq!(b.recv_word().unwrap().unwrap().seq, 1);
    a.send(&done(2), &[write.as_fd()]).unwrap();
    assert_eq!(peeked(&b), Some((2, true)));
    let refused = Error::Malformed(Misdeed::Descriptors);
    for _ in 0..2 {
        assert_eq!(b.recv_word().unwrap_err(), refused);
    }
    let (_, fds) = b.recv().unwrap().unwrap();
    assert_eq!(fds.len(), 1);
    drop(a);
    assert_eq!(b.recv_word().unwrap_err(), Error::Closed);
    drop((read, write));
}

/// What its last owner would close with it is thrown away before.
#[test]
fn who_parts_from_a_socket_learns_whether_descriptors_are_left_in_it() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    let has_ended = |read: &rustix::fd::OwnedFd| {
        rustix::io::ioctl_fionbio(read, true).unwrap();
        rustix::io::read(read, &mut [0; 1]) == Ok(0)
    };
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let pair = || {
            let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            (Socket::from_fd(a), Socket::from_fd(b))
        };
        let empty = |a: &Socket| rustix::net::send(a, &[], SendFlags::DONTWAIT).is_ok();
        // Nothing, or words alone.
        for words in 0..3 {
            let (a, b) = pair();
            for n in 0..words {
                a.send(&done(n), &[]).unwrap();
                assert!(empty(&a));
            }
            assert!(!b.is_parted_from_with_descriptors(), "{kind:?} {words}");
            // Nobody sends anything any more.
            assert!(a.send(&done(9), &[]).is_err());
        }
        // Behind a word, behind empty ones, and behind as many as there is room for.
        for many in [0, 100, 20_000] {
            let (a, b) = pair();
            let _ = sockopt::set_socket_send_buffer_size(&a, 1 << 23);
            let (read, write) = rustix::pipe::pipe().unwrap();
            a.send(&done(1), &[]).unwrap();
            for _ in 0..many {
                if rustix::net::send(&a, b"x", SendFlags::DONTWAIT).is_err() || !empty(&a) {
                    break;
                }
            }
            // There is room for this one too.
            while a.send(&done(2), &[write.as_fd()]).is_err() {
                b.skip().unwrap();
            }
            drop(write);
            drop(a);
            assert!(b.is_parted_from_with_descriptors(), "{kind:?} {many}");
            assert!(!has_ended(&read), "{kind:?} {many}");
            crate::empty(b.as_fd());
            assert!(has_ended(&read), "{kind:?} {many}");
        }
    }
}

#[test]
fn surplus_descriptors_are_refused_and_closed() {
    for count in [MAX_FDS + 1, MAX_FDS + 2, 64, 253] {
        let (a, b) = Socket::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let many: Vec<BorrowedFd<'_>> = vec![write.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = [0; MESSAGE_BYTES];
        sendmsg(
            &a,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert_eq!(
            b.recv().unwrap_err(),
            Error::Malformed(Misdeed::Descriptors),
            "{count}"
        );
        // End of file on the pipe: no copy of the write end is left open.
        drop(write);
        let mut got = Vec::new();
        File::from(read).read_to_end(&mut got).unwrap();
    }
}

#[test]
fn what_is_not_a_message_is_an_error() {
    for (length, misdeed) in [
        (1, Misdeed::Short),
        (MESSAGE_BYTES - 1, Misdeed::Short),
        (MESSAGE_BYTES + 1, Misdeed::Long),
        (4 * MESSAGE_BYTES, Misdeed::Long),
    ] {
        let (a, b) = Socket::pair().unwrap();
        send(&a, &vec![7; length], SendFlags::empty()).unwrap();
        assert_eq!(b.recv().unwrap_err(), Error::Malformed(misdeed), "{length}");
        // The next one is whole again: datagrams do not run into each other.
        a.send(&done(2), &[]).unwrap();
        assert_eq!(b.recv().unwrap().unwrap().0, done(2));
    }
}

#[test]
fn an_empty_datagram_counts_as_the_end() {
    let (a, b) = Socket::pair().unwrap();
    send(&a, &[], SendFlags::empty()).unwrap();
    assert_eq!(b.recv().unwrap_err(), Error::Closed);
}

#[test]
fn a_peer_that_does_not_read_blocks_nobody() {
    let (a, _b) = Socket::pair().unwrap();
    let mut sent = 0;
    let error = loop {
        match a.send(&done(sent), &[]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Full);
    assert!(sent > 0);
    assert_eq!(
        a.send_wait(&done(0), &[], Duration::from_millis(5)),
        Err(Error::Full)
    );
}

#[test]
fn ask_finds_its_answer_and_keeps_the_rest() {
    let (a, b) = Socket::pair().unwrap();
    b.send(&done(1), &[]).unwrap();
    b.send(&done(7), &[]).unwrap();
    b.send(&done(2), &[b.as_fd()]).unwrap();
    b.send(&done(7), &[]).unwrap();
    let request = Message::new(7, &Quit::default());
    assert_eq!(a.ask(&request, &[], SOON).unwrap().0, done(7));
    assert_eq!(b.recv_wait(SOON).unwrap().unwrap().0, request);
    assert_eq!(a.answer_to(7, SOON).unwrap().0, done(7));
    assert_eq!(a.recv().unwrap().unwrap().0, done(1));
    let (message, fds) = a.recv_wait(SOON).unwrap().unwrap();
    assert_eq!((message, fds.len()), (done(2), 1));
    assert!(a.recv().unwrap().is_none());
    let brief = Duration::from_millis(5);
    assert_eq!(a.ask(&request, &[], brief).unwrap_err(), Error::TimedOut);
    assert!(a.recv_wait(brief).unwrap().is_none());
    assert_eq!(a.answer_to(99, brief).unwrap_err(), Error::TimedOut);
}

#[test]
fn any_bytes_of_the_right_length_are_a_message_that_may_have_no_body() {
    let (a, b) = Socket::pair().unwrap();
    let odd = Message {
        verb: 0xffff,
        version: VERSION + 1,
        seq: 3,
        error: 9,
        reserved: 1,
        body: [0xa5; BODY_BYTES],
    };
    send(&a, odd.as_bytes(), SendFlags::empty()).unwrap();
    let (message, _) = b.recv().unwrap().unwrap();
    assert_eq!(message, odd);
    assert_eq!(Verb::from_number(message.verb), None);
    assert_eq!(message.body::<Done>(), None);
}

#[test]
fn listening_accepts_knows_the_caller_and_replaces_what_is_stale() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = Listener::bind(&path, 0o660).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o660
    );
    assert!(listener.accept().unwrap().is_none());
    let client = Socket::connect(&path).unwrap();
    let server = listener.accept().unwrap().unwrap();
    let who = server.peer_credentials().unwrap();
    assert_eq!(who.pid, std::process::id());
    assert_eq!(who.uid, rustix::process::getuid().as_raw());
    client.send(&done(4), &[]).unwrap();
    assert_eq!(server.recv_wait(SOON).unwrap().unwrap().0, done(4));

    assert_eq!(Listener::bind(&path, 0o600).unwrap_err(), Error::InUse);
    drop(listener);
    let again = Listener::bind(&path, 0o600).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    drop(again);

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(Listener::bind(&file, 0o600).unwrap_err(), Error::InUse);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn what_a_peer_sent_before_it_died_with_answers_unread_still_arrives() {
    let (a, b) = Socket::pair().unwrap();
    a.send(&Message::new(1, &Done::default()), &[]).unwrap();
    b.send(&Message::new(2, &Done::default()), &[]).unwrap();
    b.send(&Message::new(3, &Done::default()), &[]).unwrap();
    drop(b);
    assert_eq!(a.recv().unwrap().map(|(message, _)| message.seq), Some(2));
    assert_eq!(a.recv().unwrap().map(|(message, _)| message.seq), Some(3));
    assert_eq!(a.recv().unwrap_err(), Error::Closed);
}
