//! The real program in its place: confined, fed by a channel, read by a pipe.

use command::Message;
use command::verbs::{AddPort, PORT_CHANNEL, ROLE_AUDITOR, Ready};
use confine::{Profile, Spawn};
use ring::Geometry;
use ring::record::CaptureNote;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use seqpacket::Socket;
use shm::{Direction, Doorbell, Start, attach_producer};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn readable(fd: BorrowedFd<'_>) -> bool {
    let patience = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).expect("poll") > 0
}

/// Starts an auditor; its control socket, and its pidfd.
fn start() -> (Socket, OwnedFd) {
    let program = File::open(env!("CARGO_BIN_EXE_bulkhead-auditor")).expect("built");
    let (ours, its) = Socket::pair().expect("sockets");
    let root = rustix::process::geteuid().is_root();
    let uid = if root {
        3_900_001
    } else {
        rustix::process::geteuid().as_raw()
    };
    let gid = if root {
        3_900_001
    } else {
        rustix::process::getegid().as_raw()
    };
    let child = confine::spawn(&Spawn {
        profile: Profile::Auditor,
        program: program.as_fd(),
        name: "bulkhead-auditor",
        arguments: &[],
        uid,
        gid,
        descriptors: &[its.as_fd()],
        stderr: Some(std::io::stderr().as_fd()),
        cgroup: None,
    })
    .expect("starts");
    drop(its);
    let (message, _) = ours.recv_wait(PATIENCE).expect("alive").expect("in time");
    let ready: Ready = message.body().expect("Ready");
    assert_eq!(ready.role, ROLE_AUDITOR);
    (ours, child.pidfd)
}

/// Its exit code, once it has ended by itself.
fn ended(pidfd: &OwnedFd) -> Option<i32> {
    assert!(readable(pidfd.as_fd()), "it does not end");
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
    status.expect("ended").exit_status()
}

fn read_until(pipe: &OwnedFd, got: &mut Vec<u8>, what: &[u8]) {
    while !got.windows(what.len()).any(|w| w == what) {
        assert!(readable(pipe.as_fd()), "nothing comes out");
        let mut bytes = [0; 65536];
        let n = rustix::io::read(pipe, &mut bytes).expect("reads");
        assert_ne!(n, 0, "it ended");
        got.extend(&bytes[..n]);
    }
}

#[test]
fn frames_come_out_as_they_go_in_and_the_end_of_the_pipe_is_the_end() {
    let (control, pidfd) = start();
    let geometry = Geometry::records(1 << 20, Geometry::max_record_for(65_664)).expect("legal");
    let direction = Direction::create(&geometry).expect("memory");
    let fds = direction.producer_end().expect("fds");
    let mut tx = attach_producer(fds, &geometry, Start::Fresh).expect("attaches");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
    let plug = AddPort {
        kind: PORT_CHANNEL,
        capacity: geometry.capacity() as u32,
        max_record: geometry.max_record() as u32,
        version: 1,
        ..AddPort::default()
    };
    let ends = direction.consumer_end().expect("fds");
    let [data, page, bell] = ends.as_fds();
    control
        .send(&Message::new(0, &plug), &[data, page, bell, write.as_fd()])
        .expect("sent");
    drop((ends, write));
    let mut got = Vec::new();
    read_until(&read, &mut got, b"bulkhead-auditor");
    for n in 0..300u32 {
        let mark = format!("frame number {n} of three hundred");
        let note = CaptureNote {
            endpoint: n % 3,
            drop_reason: 4,
            ..CaptureNote::default()
        };
        let filler = vec![0xaa; (n * 211 % 60_000) as usize];
        tx.ring
            .push_capture(0, &Default::default(), &note, mark.as_bytes(), &filler)
            .expect("it keeps up");
        if tx.ring.publish() == Doorbell::Ring {
            tx.bell.ring().expect("alive");
        }
        read_until(&read, &mut got, mark.as_bytes());
        got.clear();
    }
    drop(read);
    assert_eq!(ended(&pidfd), Some(0));
}

#[test]
fn a_switch_that_breaks_the_protocol_ends_its_capture_only() {
    let (control, pidfd) = start();
    let geometry = Geometry::records(1 << 16, 4096).expect("legal");
    let direction = Direction::create(&geometry).expect("memory");
    let scribble = shm::Words::map(direction.as_fds()[0], 8192).expect("the producer's own");
    scribble.store(512, 12_345);
    let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
    let plug = AddPort {
        kind: PORT_CHANNEL,
        capacity: 1 << 16,
        max_record: 4096,
        ..AddPort::default()
    };
    let ends = direction.consumer_end().expect("fds");
    let [data, page, bell] = ends.as_fds();
    control
        .send(&Message::new(0, &plug), &[data, page, bell, write.as_fd()])
        .expect("sent");
    assert_eq!(
        ended(&pidfd),
        Some(1),
        "an error with its name, not a signal"
    );
}

#[test]
fn it_ends_with_its_control_socket() {
    let (control, pidfd) = start();
    drop(control);
    assert_eq!(ended(&pidfd), Some(0));
}
