//! What asks for more and more: it gets no more of this host's memory and time than is
//! its due.

use crate::host::{self, Host, red, tap};
use command::message::ErrorCode;
use command::verbs::*;
use std::os::fd::AsFd;
use telemetry::recorder::EventKind;

/// For `main`.
pub const TESTS: &[(&str, fn())] = &[
    (
        "a_fifo_is_attached_a_bounded_number_of_times_and_its_memory_is_taken_back",
        a_fifo_is_attached_a_bounded_number_of_times_and_its_memory_is_taken_back,
    ),
    (
        "a_fifos_owner_can_send_no_descriptor",
        a_fifos_owner_can_send_no_descriptor,
    ),
    (
        "who_calls_the_api_can_send_no_descriptor",
        who_calls_the_api_can_send_no_descriptor,
    ),
    (
        "who_wants_new_channels_without_end_is_killed",
        who_wants_new_channels_without_end_is_killed,
    ),
    (
        "who_talks_without_end_is_killed",
        who_talks_without_end_is_killed,
    ),
    (
        "what_is_closed_already_is_not_closed_again",
        what_is_closed_already_is_not_closed_again,
    ),
    (
        "who_writes_to_its_standard_error_without_end_delays_nobody",
        who_writes_to_its_standard_error_without_end_delays_nobody,
    ),
];

/// A host with a fifo, and where its owner connects.
fn with_fifo() -> (Host, std::path::PathBuf) {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&CreatePort {
        kind: ENDPOINT_FIFO,
        capacity: 1 << 18,
        max_record: 2048,
        name: command::Name::new("red/gen").unwrap(),
        ..tap(3, 1, "")
    });
    let path = host.run_dir().join("fifo/red/gen.sock");
    (host, path)
}

fn a_fifo_is_attached_a_bounded_number_of_times_and_its_memory_is_taken_back() {
    let (mut host, path) = with_fifo();
    let mut held = Vec::new();
    let refused = loop {
        match host::attach_fifo(&path) {
            Ok(attached) => held.push(attached.fds),
            // The one before is being let go.
            Err(code) if code == ErrorCode::Conflict as u32 => {}
            Err(code) => break code,
        }
        assert!(held.len() < 40, "nobody says stop");
    };
    assert_eq!(refused, ErrorCode::Limit as u32);
    assert!(held.len() >= 8, "only {}", held.len());
    host.until("what is held has no memory", |_| {
        held.iter().flatten().all(|fd| {
            let stat = rustix::fs::fstat(fd).unwrap();
            stat.st_blocks == 0
        })
    });
    host.until("after a while it is open again", |_| {
        host::attach_fifo(&path).is_ok()
    });
}

/// Who lets go of it may have to wait for what it is of.
fn a_fifos_owner_can_send_no_descriptor() {
    let (mut host, path) = with_fifo();
    let attached = host::attach_fifo(&path).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let word = command::Message::new(0, &NeedReplace { slot: 1 });
    let sent = attached.socket.send(&word, &[write.as_fd()]);
    drop(write);
    // Before Linux 6.16 there is no way to refuse it; then somebody else lets go of it.
    if notify::refuse_descriptors(attached.socket.as_fd()).is_ok() {
        let refused = seqpacket::Error::System(rustix::io::Errno::PERM);
        assert_eq!(sent, Err(refused));
        return;
    }
    host.until("it is let go of", |_| {
        let _ = rustix::io::ioctl_fionbio(&read, true);
        rustix::io::read(&read, &mut [0]) == Ok(0)
    });
}

/// Anybody may call, and who closes what was called by waits for what came with it.
fn who_calls_the_api_can_send_no_descriptor() {
    let host = Host::start();
    let path = host.run_dir().join("api.sock");
    let call = std::os::unix::net::UnixStream::connect(path).unwrap();
    let call = seqpacket::Socket::from_fd(call.into());
    let word = command::Message::new(0, &NeedReplace { slot: 1 });
    assert_eq!(call.send(&word, &[]), Ok(()));
    let sent = call.send(&word, &[call.as_fd()]);
    // Before Linux 6.16 there is no way to refuse it.
    if notify::refuse_descriptors(call.as_fd()).is_ok() {
        let refused = seqpacket::Error::System(rustix::io::Errno::PERM);
        assert_eq!(sent, Err(refused));
    }
}

fn who_wants_new_channels_without_end_is_killed() {
    let mut host = Host::start();
    host.ok(&red(3, 110));
    host.send_install(3, 1);
    let killed = host.wait_for(3, |now| now.restarts > 0);
    assert_eq!(killed.cause, CAUSE_REPORT);
}

fn who_talks_without_end_is_killed() {
    let mut host = Host::start();
    host.ok(&red(3, 108));
    host.send_install(3, 1);
    let killed = host.wait_for(3, |now| now.restarts > 0);
    assert_eq!(killed.cause, CAUSE_REPORT);
}

fn what_is_closed_already_is_not_closed_again() {
    let mut host = Host::start();
    let namespace = host.namespace("once");
    host.ok(&red(3, 109));
    host.ok(&CreatePort {
        flags: CREATE_NAMESPACE,
        ..tap(3, 1, &namespace)
    });
    host.send_install(3, 1);
    // The first that is heard of is the one that was open.
    let event = host.event(EventKind::PortClosed);
    assert_eq!((event.target, event.slot), (3, 1));
}

fn who_writes_to_its_standard_error_without_end_delays_nobody() {
    let mut host = Host::start();
    host.ok(&red(3, 111));
    host.send_install(3, 1);
    let died = host.wait_for(3, |now| now.restarts > 1);
    assert_eq!(died.cause, CAUSE_EXIT);
    // The supervisor reads none of it while the worker lives, and goes on.
    host.ok(&red(4, 0));
    host.send_install(4, 1);
    host.wait_for(4, |now| now.epoch == 1);
}
