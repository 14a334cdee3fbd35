//! Who answers: with the owner's uid and no capability.

use host_notify::{Errno, Listener, Notification, Outcome, Sizes, Target};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

pub(crate) fn run(what: &str) -> ExitCode {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(
        status.contains("CapPrm:\t0000000000000000"),
        "no capability"
    );
    assert!(
        status.contains("CapEff:\t0000000000000000"),
        "no capability"
    );
    let fd: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    // Ours alone: the last copy is to go when this process does.
    let listener = Listener::new(fd, Sizes::of_kernel().unwrap());
    listener.set_flags();
    match what {
        "circuits" => circuits(&listener),
        "says-eio" => says_eio(&listener),
        "puts-at" => puts_at(&listener),
        "kills" => kills(&listener),
        "receives-one" => receives_one(&listener),
        "succeeds" => succeeds(&listener),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The next call; `None` when the program has ended.
fn next(listener: &Listener) -> Option<Notification> {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        let events = ready[0].revents();
        if events.contains(PollFlags::IN) {
            if let Some(notification) = listener.receive().unwrap() {
                return Some(notification);
            }
        } else if events.contains(PollFlags::HUP) {
            return None;
        }
    }
}

/// A descriptor, and its number as the answer.
fn put(listener: &Listener, id: u64, fd: &UnixStream, cloexec: bool) {
    let Outcome::Done(number) = listener.install(id, fd.as_fd(), cloexec).unwrap() else {
        panic!("the caller is gone");
    };
    assert!(number > 2);
    let _ = listener.answer(id, Ok(i64::from(number))).unwrap();
}

/// Answers socket with one end of a pair, and connect by echoing on the other, once.
fn circuits(listener: &Listener) {
    let mut ends = Vec::new();
    while let Some(call) = next(listener) {
        let target = Target::open(call.thread).unwrap();
        assert!(listener.is_live(call.id));
        let [fd, address, length, ..] = call.arguments;
        match i64::from(call.number) {
            libc::SYS_socket => {
                let (own, theirs) = UnixStream::pair().unwrap();
                ends.push(own);
                let cloexec = address & libc::SOCK_CLOEXEC as u64 != 0;
                put(listener, call.id, &theirs, cloexec);
            }
            // Of an IPv4 address; the C library asks nscd by a longer one (AF_UNIX).
            libc::SYS_connect if length == 16 => {
                let mut bytes = [0; 16];
                let read = target.read(address, &mut bytes);
                let taken = target.take(fd as i32);
                if let (Err(read), Err(taken)) = (&read, &taken) {
                    let name = |errno: &Errno| if *errno == Errno::PERM { "EPERM" } else { "?" };
                    say(&format!("refused: {} {}", name(read), name(taken)));
                    let _ = listener.answer(call.id, Err(Errno::ACCESS)).unwrap();
                    continue;
                }
                // All of it or nothing; and nothing of ours can be meant.
                assert_eq!(target.read(8, &mut [0; 4]), Err(Errno::FAULT));
                assert_eq!(target.take(9_999).err(), Some(Errno::BADF));
                assert_eq!(target.write(address, &bytes), Ok(()));
                assert!(listener.is_live(call.id));
                let [_, _, high, low, a, b, c, d, ..] = bytes;
                let port = u16::from_be_bytes([high, low]);
                say(&format!("connect to {}:{port}", Ipv4Addr::new(a, b, c, d)));
                // The descriptor is the very socket: what is sent there comes here.
                let own = ends.last_mut().unwrap();
                UnixStream::from(taken.unwrap()).write_all(b"!").unwrap();
                own.read_exact(&mut [0]).unwrap();
                assert_eq!(listener.answer(call.id, Ok(0)).unwrap(), Outcome::Done(()));
                let mut heard = [0; 5];
                own.read_exact(&mut heard).unwrap();
                own.write_all(&heard).unwrap();
            }
            // An interpreter asks what it has; a socket of AF_UNIX answers for itself.
            _ => assert_eq!(listener.proceed(call.id).unwrap(), Outcome::Done(())),
        }
    }
}

fn says_eio(listener: &Listener) {
    while let Some(call) = next(listener) {
        let _ = listener.answer(call.id, Err(Errno::IO)).unwrap();
    }
}

/// Answers one call with a descriptor at 700, and finds the same impossible for the next.
fn puts_at(listener: &Listener) {
    let (fd, _other) = UnixStream::pair().unwrap();
    let call = next(listener).unwrap();
    let put = listener.install_at(call.id, fd.as_fd(), true, 700).unwrap();
    let Outcome::Done(number) = put else {
        panic!("the caller is gone");
    };
    let _ = listener.answer(call.id, Ok(i64::from(number))).unwrap();
    let call = next(listener).unwrap();
    let put = listener.install_at(call.id, fd.as_fd(), true, 701);
    let refused = put.unwrap_err().raw_os_error() == Some(libc::EBADF);
    let _ = listener.answer(call.id, Err(Errno::MFILE)).unwrap();
    say(&format!("{number} {}", if refused { "EBADF" } else { "?" }));
    std::thread::park();
}

/// The caller dies while its call is looked at.
fn kills(listener: &Listener) {
    let call = next(listener).unwrap();
    let before = listener.is_live(call.id);
    let target = Target::open(call.thread).unwrap();
    // The owner has every capability over the program, CAP_KILL too.
    rustix::process::pidfd_send_signal(&target, rustix::process::Signal::KILL).unwrap();
    let mut ended = [PollFd::new(&target, PollFlags::IN)];
    poll(&mut ended, None).unwrap();
    let name = |outcome: Outcome<()>| match outcome {
        Outcome::Done(()) => "live",
        Outcome::Gone => "gone",
    };
    let number = |outcome: Outcome<u32>| match outcome {
        Outcome::Done(_) => "live",
        Outcome::Gone => "gone",
    };
    let (fd, _other) = UnixStream::pair().unwrap();
    let after = listener.is_live(call.id);
    say(&format!(
        "{}, {}, {}, {}",
        if before { "live" } else { "gone" },
        if after { "live" } else { "gone" },
        name(listener.answer(call.id, Ok(0)).unwrap()),
        number(listener.install(call.id, fd.as_fd(), true).unwrap()),
    ));
    assert!(Target::open(0).is_err());
}

fn receives_one(listener: &Listener) {
    let call = next(listener).unwrap();
    assert!(listener.is_live(call.id));
    say("received");
    std::thread::park();
}

fn succeeds(listener: &Listener) {
    // What was received already is not delivered again: this is the next call.
    let call = next(listener).unwrap();
    let before = (1..=100).map(|back| call.id.wrapping_sub(back));
    let left: Vec<u64> = before.filter(|id| listener.is_live(*id)).collect();
    for id in &left {
        let _ = listener.answer(*id, Err(Errno::CANCELED)).unwrap();
    }
    let (fd, _other) = UnixStream::pair().unwrap();
    put(listener, call.id, &fd, true);
    say(&format!("{} was left", left.len()));
    std::thread::park();
}
