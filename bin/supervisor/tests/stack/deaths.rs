//! Who dies, hangs or is killed, who takes its place, and how often.

use crate::host::{Host, LIMIT, red, tap};
use crate::kill;
use crate::wayward::{FORMER, FORWARDS, PROGRAMS};
use command::message::{ErrorCode, Name};
use command::verbs::*;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use telemetry::counters::Counter;
use telemetry::recorder::EventKind;

/// For `main`.
pub const TESTS: &[(&str, fn())] = &[
    (
        "a_killed_switch_is_replaced_by_a_spare_on_the_same_channel_and_image",
        a_killed_switch_is_replaced_by_a_spare_on_the_same_channel_and_image,
    ),
    (
        "an_outage_lasts_until_the_successor_says_that_it_forwarded_a_frame",
        an_outage_lasts_until_the_successor_says_that_it_forwarded_a_frame,
    ),
    (
        "the_fabric_is_replaced_and_resumes_every_channel",
        the_fabric_is_replaced_and_resumes_every_channel,
    ),
    (
        "a_supervisor_killed_at_any_time_comes_back_and_the_switches_do_not_notice",
        a_supervisor_killed_at_any_time_comes_back_and_the_switches_do_not_notice,
    ),
    (
        "a_fabric_that_waits_out_its_backoff_starts_at_once_when_released",
        a_fabric_that_waits_out_its_backoff_starts_at_once_when_released,
    ),
    (
        "a_switch_that_hangs_is_killed_after_50_ms_of_its_own_cpu",
        a_switch_that_hangs_is_killed_after_50_ms_of_its_own_cpu,
    ),
    (
        "one_of_several_workers_that_hangs_is_seen_and_its_slot_blamed",
        one_of_several_workers_that_hangs_is_seen_and_its_slot_blamed,
    ),
    (
        "of_several_workers_the_one_that_says_it_panicked_is_believed",
        of_several_workers_the_one_that_says_it_panicked_is_believed,
    ),
    (
        "a_switch_that_does_what_it_may_not_trips_and_backs_off",
        a_switch_that_does_what_it_may_not_trips_and_backs_off,
    ),
    (
        "three_crashes_by_one_endpoint_quarantine_it_until_it_is_released",
        three_crashes_by_one_endpoint_quarantine_it_until_it_is_released,
    ),
    (
        "an_operator_that_was_told_half_is_none_that_a_supervisor_takes_over",
        an_operator_that_was_told_half_is_none_that_a_supervisor_takes_over,
    ),
    (
        "whom_something_waits_for_is_none_that_a_supervisor_takes_over",
        whom_something_waits_for_is_none_that_a_supervisor_takes_over,
    ),
    (
        "who_was_taken_over_once_is_not_again_while_something_waits_for_it",
        who_was_taken_over_once_is_not_again_while_something_waits_for_it,
    ),
    (
        "what_hangs_of_a_removed_compartment_holds_up_none_that_has_its_number",
        what_hangs_of_a_removed_compartment_holds_up_none_that_has_its_number,
    ),
];

fn a_killed_switch_is_replaced_by_a_spare_on_the_same_channel_and_image() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 7).unwrap();
    let before = host.inspect(3);
    host.settle();
    kill(before.pid);
    let after = host.wait_for(3, |now| now.pid != before.pid && now.pid != 0);
    assert_eq!(
        (after.restarts, after.cause, after.epoch),
        (1, CAUSE_EXIT, 7)
    );
    assert_eq!(after.digest, before.digest);
    // Its fabric's end did not change: this side resumes.
    host.until("it resumed", |h| h.count(3, 0, Counter::RxBytes) == 1);
    assert_eq!(host.count(FABRIC, 3, Counter::RxFrames), 1);
    host.until("it has the image", |h| h.count(3, 0, Counter::Replies) == 2);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause), (3, CAUSE_EXIT));
    assert_eq!(host.event(EventKind::Attached).target, 3);
    // Kills from outside blame nobody, however many: each endpoint stays plugged in.
    for _ in 0..4 {
        let pid = host.wait_for(3, |now| now.pid != 0).pid;
        std::thread::sleep(Duration::from_millis(150));
        kill(pid);
        host.wait_for(3, |now| now.pid != pid && now.pid != 0);
    }
    assert_eq!(host.inspect(3).state, RUN_UP);
}

fn an_outage_lasts_until_the_successor_says_that_it_forwarded_a_frame() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    // Its word stays in the page when it dies, and is no word of its successor's.
    host.install(3, FORWARDS).unwrap();
    host.install(3, 7).unwrap();
    let before = host.inspect(3);
    host.settle();
    kill(before.pid);
    host.wait_for(3, |now| now.pid != before.pid && now.pid != 0);
    let seated = host.event(EventKind::Attached).value;
    // Several looks of the watch.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(host.inspect(3).outage_ns, 0, "it has forwarded nothing");
    host.install(3, FORWARDS).unwrap();
    let after = host.wait_for(3, |now| now.outage_ns != 0);
    assert!(after.outage_ns > seated + 200_000_000, "{after:?}");
    assert_eq!(host.event(EventKind::Restarted).value, after.outage_ns);
}

fn the_fabric_is_replaced_and_resumes_every_channel() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&red(4, 0));
    host.install(3, 1).unwrap();
    host.install(FABRIC, 5).unwrap();
    host.settle();
    let before = host.inspect(FABRIC);
    kill(before.pid);
    let after = host.wait_for(FABRIC, |now| now.pid != before.pid && now.pid != 0);
    assert_eq!((after.restarts, after.epoch), (1, 5));
    host.until("both channels resumed", |h| {
        h.count(FABRIC, 3, Counter::RxBytes) == 1 && h.count(FABRIC, 4, Counter::RxBytes) == 1
    });
    assert_eq!(
        host.count(3, 0, Counter::RxFrames),
        1,
        "the switches heard nothing of it"
    );
}

fn a_supervisor_killed_at_any_time_comes_back_and_the_switches_do_not_notice() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&tap(3, 1, &host.namespace("a")));
    host.install(3, FORWARDS).unwrap();
    let before = (host.inspect(3).pid, host.inspect(FABRIC).pid);
    for round in 0..3 {
        host.kill_supervisor();
        host.restart_supervisor();
        let ready = host.event(EventKind::Ready);
        assert_eq!(ready.target, SUPERVISOR);
        assert_eq!(
            (host.inspect(3).pid, host.inspect(FABRIC).pid),
            before,
            "round {round}"
        );
    }
    assert_eq!(host.inspect(3).epoch, FORWARDS);
    // It heard nothing: one fabric channel, one tap.
    assert_eq!(host.count(3, 0, Counter::RxFrames), 1);
    assert_eq!(host.count(3, 1, Counter::RxFrames), 1);
    assert_eq!(host.inventory().len(), 2);
    // What happened before is remembered.
    kill(before.0);
    let after = host.wait_for(3, |now| now.pid != before.0 && now.outage_ns != 0);
    host.settle();
    host.kill_supervisor();
    host.restart_supervisor();
    let seen = host.inspect(3);
    assert_eq!(
        (seen.pid, seen.restarts, seen.cause, seen.outage_ns),
        (after.pid, 1, CAUSE_EXIT, after.outage_ns)
    );
    let before = (after.pid, before.1);
    // All is known again: the same requests change nothing, and a death is seen.
    host.ok(&red(3, 0));
    host.ok(&tap(3, 1, &host.namespace("a")));
    kill(before.0);
    host.wait_for(3, |now| now.pid != before.0 && now.pid != 0);
    // In the middle of an apply, at whatever instruction it is.
    for delay in [0, 1, 2, 5, 10, 20] {
        for id in 10..20 {
            host.send(&red(id, 0));
        }
        host.send(&tap(3, 2, &host.namespace("b")));
        std::thread::sleep(Duration::from_millis(delay));
        host.kill_supervisor();
        host.restart_supervisor();
        host.drain();
        for id in 10..20 {
            host.ok(&red(id, 0));
        }
        host.ok(&tap(3, 2, &host.namespace("b")));
        for id in 10..20 {
            host.install(id, 1).unwrap();
            host.ok(&DestroyCompartment { id });
        }
        host.ok(&DestroyPort {
            compartment: 3,
            slot: 2,
            keep_namespace: 0,
        });
    }
    host.until("no process is left over", |h| h.children() <= 8);
}

fn a_switch_that_hangs_is_killed_after_50_ms_of_its_own_cpu() {
    let mut host = Host::start();
    host.ok(&red(3, 102));
    let asked = Instant::now();
    host.send_install(3, 1);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause), (3, CAUSE_STALL));
    assert!(asked.elapsed() < Duration::from_secs(5));
}

fn one_of_several_workers_that_hangs_is_seen_and_its_slot_blamed() {
    let mut host = Host::start();
    host.ok(&CreateCompartment {
        workers: 2,
        ..red(3, 120)
    });
    host.send_install(3, 1);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause, died.slot), (3, CAUSE_STALL, 1));
}

fn of_several_workers_the_one_that_says_it_panicked_is_believed() {
    for (mode, blamed) in [(121, 1), (122, 0)] {
        let mut host = Host::start();
        host.ok(&CreateCompartment {
            workers: 2,
            ..red(3, mode)
        });
        host.send_install(3, 1);
        let died = host.event(EventKind::Died);
        assert_eq!((died.target, died.slot), (3, blamed), "{mode}");
    }
}

fn a_switch_that_does_what_it_may_not_trips_and_backs_off() {
    let mut host = Host::start();
    host.ok(&red(3, 103));
    assert_eq!(host.install(3, 1).unwrap_err(), ErrorCode::BadImage as u32);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause), (3, CAUSE_TRIP));
    // The image under which it died twice is not tried again: it lives without.
    let now = host.wait_for(3, |now| now.state == RUN_UP);
    assert_eq!((now.epoch, now.restarts), (0, 2));
}

fn three_crashes_by_one_endpoint_quarantine_it_until_it_is_released() {
    let mut host = Host::start();
    host.ok(&red(3, 101));
    host.ok(&tap(3, 1, &host.namespace("q")));
    for _ in 0..2 {
        assert_eq!(host.install(3, 1).unwrap_err(), ErrorCode::BadImage as u32);
    }
    let quarantine = host.event(EventKind::Quarantine);
    assert_eq!((quarantine.target, quarantine.slot), (3, 1));
    host.wait_for(3, |now| now.state == RUN_UP);
    host.settle();
    let before = host.count(3, 1, Counter::RxFrames);
    // Over a supervisor's death as well.
    host.kill_supervisor();
    host.restart_supervisor();
    let pid = host.inspect(3).pid;
    kill(pid);
    host.wait_for(3, |now| now.pid != pid && now.pid != 0);
    host.settle();
    assert_eq!(
        host.count(3, 1, Counter::RxFrames),
        before,
        "it is not plugged in"
    );
    host.ok(&Release { target: 3, slot: 1 });
    host.until("plugged in again", |h| {
        h.count(3, 1, Counter::RxFrames) == before + 1
    });
}

fn a_fabric_that_waits_out_its_backoff_starts_at_once_when_released() {
    let mut host = Host::start();
    let mut waits = 0;
    // The waits double up to a second; the first of them are too short to be seen.
    for _ in 0..9 {
        let pid = host.wait_for(FABRIC, |now| now.state == RUN_UP).pid;
        kill(pid);
        host.wait_for(FABRIC, |now| now.pid != pid);
        if host.inspect(FABRIC).state == RUN_BACKOFF {
            waits += 1;
        }
    }
    assert!(waits > 0, "it never waited");
    // Of several times: a machine may stand still.
    let is_at_once = (0..3).any(|_| {
        let pid = host.wait_for(FABRIC, |now| now.state == RUN_UP).pid;
        kill(pid);
        host.wait_for(FABRIC, |now| now.state == RUN_BACKOFF);
        let asked = Instant::now();
        host.ok(&Release {
            target: FABRIC,
            slot: u32::MAX,
        });
        host.wait_for(FABRIC, |now| now.state == RUN_UP);
        asked.elapsed() < Duration::from_millis(500)
    });
    assert!(is_at_once);
}

fn an_operator_that_was_told_half_is_none_that_a_supervisor_takes_over() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&CreatePort {
        kind: ENDPOINT_CIRCUITS,
        flags: 0,
        name: Name::new("red/web1").unwrap(),
        ..tap(3, 1, "")
    });
    // It says more than a compartment may have.
    const KEPT: usize = 4096;
    const { assert!(PROGRAMS as usize > KEPT) };
    let programs = KEPT;
    // Some ten thousand messages: a busy machine takes longer than for anything else here.
    host.until_in(4 * LIMIT, "its programs are kept", |host| {
        host.kept_below("program/3/") == programs
    });
    // Those of a port that the slot has no more are not.
    for number in FORMER..FORMER + 3 {
        assert_eq!(host.kept_below(&format!("program/3/{number}")), 0);
    }
    // It goes on saying more.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(host.kept_below("program/3/"), programs);
    let first = host.noted("place=circuits-3").expect("it was told all");
    kill(first);
    // Whoever comes after it reads nothing of all the programs, and is replaced for that.
    let mut seen = 0;
    host.until("two more are replaced", |host| {
        let noted = host.noted("place=circuits-3");
        assert!(noted.is_none_or(|pid| pid == first), "half of it was told");
        seen = host.inspect(3).operator_restarts;
        seen >= 3
    });
    host.kill_supervisor();
    host.restart_supervisor();
    host.event(EventKind::Ready);
    assert_eq!(
        host.kept_below("program/3/"),
        programs,
        "and nothing is lost"
    );
}

fn whom_something_waits_for_is_none_that_a_supervisor_takes_over() {
    falls_behind(false);
}

fn who_was_taken_over_once_is_not_again_while_something_waits_for_it() {
    falls_behind(true);
}

/// An operator does, of the first supervisor or of one that took it over.
fn falls_behind(is_taken_over: bool) {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    let port = |slot| CreatePort {
        kind: ENDPOINT_CIRCUITS,
        flags: 0,
        name: Name::new(&format!("red/web{slot}")).unwrap(),
        ..tap(3, slot, "")
    };
    host.ok(&port(1));
    let mut first = None;
    host.until("it was told all", |host| {
        first = host.noted("place=circuits-3");
        first.is_some()
    });
    let first = rustix::process::Pid::from_raw(first.unwrap().cast_signed()).unwrap();
    let old = first.as_raw_nonzero().get().unsigned_abs();
    if is_taken_over {
        host.kill_supervisor();
        host.restart_supervisor();
        host.event(EventKind::Ready);
        assert_eq!(host.noted("place=circuits-3"), Some(old));
    }
    // It reads nothing more, and is dead before that is held against it.
    host.narrows("place=circuits-3");
    rustix::process::kill_process(first, Signal::STOP).unwrap();
    let mut is_behind = false;
    for _ in 0..1000 {
        is_behind = host.noted("place=behind") == Some(old);
        if is_behind {
            break;
        }
        host.ok(&port(2));
        host.ok(&DestroyPort {
            compartment: 3,
            slot: 2,
            keep_namespace: 0,
        });
    }
    assert!(is_behind, "what waits for it is noted nowhere");
    assert_eq!(host.noted("place=circuits-3"), None);
    host.kill_supervisor();
    host.restart_supervisor();
    host.event(EventKind::Ready);
    host.until("another is there", |host| {
        let noted = host.noted("place=circuits-3");
        assert_ne!(
            noted,
            Some(old),
            "it was taken over, and told nothing again"
        );
        noted.is_some()
    });
}

/// What hangs in the kernel and does not die, though it is killed: here by a tracer that lets nobody end.
const HANGS: &str = "
import ctypes, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
SEIZE, TRACEEXIT = 0x4206, 0x40
for pid in sys.stdin:
    print(ptrace(SEIZE, int(pid), None, ctypes.c_void_p(TRACEEXIT)), flush=True)
";

fn what_hangs_of_a_removed_compartment_holds_up_none_that_has_its_number() {
    use std::io::{BufRead, BufReader, Write};
    let mut host = Host::start();
    // A supervisor that starts ends its keeper's other children.
    let mut tracer = std::process::Command::new("python3")
        .args(["-c", HANGS])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut pids, said) = (tracer.stdin.take().unwrap(), tracer.stdout.take().unwrap());
    let mut said = BufReader::new(said).lines();
    host.ok(&red(3, 0));
    let port = CreatePort {
        kind: ENDPOINT_CIRCUITS,
        flags: 0,
        name: Name::new("red/web1").unwrap(),
        ..tap(3, 1, "")
    };
    let gone = DestroyPort {
        compartment: 3,
        slot: 1,
        keep_namespace: 0,
    };
    const MOST_HELD_UP: usize = 16;
    let mut operator = None;
    for _ in 0..MOST_HELD_UP {
        host.ok(&port);
        // That one before ends may be noted later than it was told: it is not there to be held, or is held already.
        host.until("an operator", |host| {
            let noted = host.noted("place=circuits-3");
            let Some(pid) = noted.filter(|_| noted != operator) else {
                return false;
            };
            operator = noted;
            writeln!(pids, "{pid}").unwrap();
            said.next().unwrap().unwrap() == "0"
        });
        host.ok(&gone);
    }
    host.ok(&port);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(host.noted("place=circuits-3"), None, "it is held up");
    host.ok(&DestroyCompartment { id: 3 });
    host.ok(&red(3, 0));
    host.ok(&port);
    host.until("the next has an operator", |host| {
        host.noted("place=circuits-3").is_some()
    });
    assert_eq!(
        host.noted("place=ending-3"),
        None,
        "nor by who comes after us"
    );
    drop(pids);
    tracer.wait().unwrap();
}
