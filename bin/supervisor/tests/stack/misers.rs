//! What a switch that has been taken over, or a fifo's owner, may take of what all share:
//! descriptors, patience, history.

use crate::host::{self, Host, epoch_bytes, epoch_image, fifo, red};
use command::message::ErrorCode;
use command::verbs::*;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use seqpacket::Socket;
use telemetry::counters::Counter;
use telemetry::recorder::EventKind;

/// For `main`.
pub const TESTS: &[(&str, fn())] = &[
    (
        "who_does_not_listen_is_killed_and_holds_no_descriptors",
        who_does_not_listen_is_killed_and_holds_no_descriptors,
    ),
    (
        "descriptors_are_left_for_restarts",
        descriptors_are_left_for_restarts,
    ),
    (
        "who_refuses_what_nobody_gave_it_is_heard_once",
        who_refuses_what_nobody_gave_it_is_heard_once,
    ),
    (
        "who_does_not_take_its_image_is_replaced_by_one_that_does",
        who_does_not_take_its_image_is_replaced_by_one_that_does,
    ),
    (
        "no_switch_is_in_the_way_of_what_must_be",
        no_switch_is_in_the_way_of_what_must_be,
    ),
    (
        "a_fifo_that_broke_its_protocol_is_closed_until_somebody_attaches",
        a_fifo_that_broke_its_protocol_is_closed_until_somebody_attaches,
    ),
    (
        "who_knocks_without_end_waits_outside",
        who_knocks_without_end_waits_outside,
    ),
];

fn descriptors(host: &Host) -> usize {
    let path = format!("/proc/{}/fd", host.supervisor_pid());
    std::fs::read_dir(path).unwrap().count()
}

/// The most descriptors that the supervisor may be given.
fn hard_limit(host: &Host) -> u64 {
    let path = format!("/proc/{}/limits", host.supervisor_pid());
    let limits = std::fs::read_to_string(path).unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words = line.unwrap().split_whitespace();
    words.rev().nth(1).unwrap().parse().unwrap()
}

fn who_does_not_listen_is_killed_and_holds_no_descriptors() {
    // So many that what one switch's socket takes is less than what they bring.
    const FIFOS: u32 = 320;
    let mut host = Host::start();
    host.ok(&CreateCompartment {
        slots: FIFOS + 1,
        ..red(3, 112)
    });
    for slot in 1..=FIFOS {
        host.ok(&fifo(3, slot, &format!("red/f{slot}")));
    }
    let pid = host.install(3, 1).map(|()| host.inspect(3).pid).unwrap();
    let before = descriptors(&host);
    for turn in 0..6 {
        for slot in 1..=FIFOS {
            let path = host.run_dir().join(format!("fifo/red/f{slot}.sock"));
            // In time it comes in; it goes at once.
            drop(Socket::connect(&path).map(|socket| socket.recv_wait(host::LIMIT)));
        }
        if host.inspect(3).pid != pid {
            break;
        }
        let now = descriptors(&host);
        // The eight of a channel whose memory is soon taken back, and nothing more.
        assert!(
            now < before + 9 * FIFOS as usize,
            "{turn}: {before}, then {now}"
        );
    }
    let killed = host.wait_for(3, |now| now.restarts > 0);
    assert_eq!(killed.cause, CAUSE_STALL);
    // And nothing that it wrote of its connections goes on.
    host.wait_for(3, |now| now.state == RUN_UP);
    host.until("a journal of its own", |h| {
        h.count(3, 0, Counter::Connections) == 2
    });
    assert_eq!(host.count(3, 0, Counter::Finished), 0);
}

fn descriptors_are_left_for_restarts() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&fifo(3, 1, "red/f"));
    host.install(3, 1).unwrap();
    host.settle();
    let pid = Pid::from_raw(host.supervisor_pid().cast_signed());
    let most = descriptors(&host) as u64 * 7 / 6;
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(hard_limit(&host)),
    };
    let before = prlimit(pid, Resource::Nofile, limit).unwrap();
    let path = host.run_dir().join("fifo/red/f.sock");
    assert_eq!(
        host::attach_fifo(&path).unwrap_err(),
        ErrorCode::Limit as u32
    );
    assert_eq!(
        host.ask(&fifo(3, 2, "red/g")).unwrap_err(),
        ErrorCode::Limit as u32
    );
    // For a restart there is enough.
    let now = host.inspect(3).pid;
    rustix::process::kill_process(
        Pid::from_raw(now.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    host.wait_for(3, |seen| seen.pid != now && seen.state == RUN_UP);
    prlimit(pid, Resource::Nofile, before).unwrap();
    host::attach_fifo(&path).unwrap();
}

fn who_refuses_what_nobody_gave_it_is_heard_once() {
    let mut host = Host::start();
    host.ok(&red(3, 113));
    host.install(3, 1).unwrap();
    // The image's event is behind the refusals that came before it.
    let mut refused = 0;
    loop {
        let event = host.any_event();
        refused += u32::from(event.kind == EventKind::ImageRefused as u32);
        if event.kind == EventKind::ImageSwapped as u32 {
            break;
        }
    }
    assert_eq!(refused, 1);
}

fn who_does_not_take_its_image_is_replaced_by_one_that_does() {
    let mut host = Host::start();
    for (id, mode, cause) in [(3, 114, CAUSE_REPORT), (4, 115, CAUSE_STALL)] {
        host.ok(&red(id, mode));
        host.install(id, 1).unwrap();
        let now = host.inspect(id);
        assert_eq!((now.epoch, now.restarts, now.cause), (1, 1, cause));
    }
}

fn no_switch_is_in_the_way_of_what_must_be() {
    let mut host = Host::start();
    // One that refuses, one that says nothing, one that dies of it, and one that takes it.
    for (id, mode) in [(3, 104), (4, 105), (5, 103), (6, 0)] {
        host.ok(&red(id, mode));
        assert_eq!(host.install(id, 1).is_ok(), mode == 0, "{mode}");
        for epoch in [2, 3] {
            // The second time it is still down after the first, or just back.
            let proved = host.prove("honest", PROVE_TO_INSTALL, &[&epoch_bytes(epoch)]);
            assert!(proved.is_ok());
            let (fd, body) = epoch_image(id, epoch);
            let body = Install { must: 1, ..body };
            assert_eq!(host.ask_with(&body, &[&fd]).err(), None, "{mode}, {epoch}");
            let digest = host.inspect(id).digest;
            assert_eq!(digest, body.digest, "{mode}, {epoch}");
        }
        let now = host.inspect(id);
        assert_eq!(now.restarts > 0 || now.pid == 0, mode != 0, "{mode}");
    }
    assert_eq!(host.inspect(6).epoch, 3);
}

fn a_fifo_that_broke_its_protocol_is_closed_until_somebody_attaches() {
    let mut host = Host::start();
    host.ok(&red(3, 116));
    host.ok(&fifo(3, 1, "red/f"));
    let path = host.run_dir().join("fifo/red/f.sock");
    let first = host::attach_fifo(&path).unwrap();
    host.install(3, 1).unwrap();
    let closed = host.event(EventKind::PortClosed);
    assert_eq!((closed.target, closed.slot, closed.cause), (3, 1, 3));
    let port = |host: &mut Host| {
        let all = host.inventory();
        *all.iter().find(|thing| thing.kind == 2).unwrap()
    };
    let created = port(&mut host).created;
    assert_ne!(created, [0; 32], "it is what was asked for");
    assert_eq!(port(&mut host).closed, 3);
    // Also a supervisor after this one knows.
    host.kill_supervisor();
    host.restart_supervisor();
    host.drain();
    assert_eq!(port(&mut host).closed, 3);
    drop(first);
    let _second = host::attach_fifo(&path).unwrap();
    assert_eq!(host.event(EventKind::PortAdded).slot, 1);
    assert_eq!(port(&mut host).closed, 0);
    host.kill_supervisor();
    host.restart_supervisor();
    host.drain();
    assert_eq!(port(&mut host).closed, 0);
    assert!(host.count(3, 1, Counter::RxFrames) > 0);
}

fn who_knocks_without_end_waits_outside() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&fifo(3, 1, "red/f"));
    let path = host.run_dir().join("fifo/red/f.sock");
    let _inside = host::attach_fifo(&path).unwrap();
    let knocks: Vec<Socket> = (0..100)
        .map_while(|_| Socket::connect(&path).ok())
        .collect();
    // Time enough to hear all of them, were all of them heard.
    let end = std::time::Instant::now() + std::time::Duration::from_millis(500);
    while std::time::Instant::now() < end {
        host.inspect(3);
    }
    let answered = |socket: &&Socket| !matches!(socket.recv(), Ok(None));
    let at_once = knocks.iter().filter(answered).count();
    assert!(
        at_once > 0 && at_once < knocks.len(),
        "{at_once} of {}",
        knocks.len()
    );
    host.until("those who wait are heard in time", |_| {
        knocks.iter().filter(answered).count() == knocks.len() || {
            let last = knocks.last().unwrap();
            !matches!(last.recv(), Ok(None))
        }
    });
}
