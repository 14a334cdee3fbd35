//! The supervisor with real processes, confined, in real namespaces: the test is its
//! keeper and its controller, and a worker that moves no frame plays switch and fabric.
//! Needs root.

mod floods;
mod host;
mod journals;
mod misers;
mod proofs;
mod surroundings;
mod wayward;

use command::message::ErrorCode;
use command::verbs::*;
use host::{Host, epoch_image, red, tap};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use telemetry::counters::Counter;
use telemetry::recorder::EventKind;
use wayward::FORWARDS;

const TESTS: &[(&str, fn())] = &[
    (
        "a_compartment_comes_up_confined_and_runs_its_image",
        a_compartment_comes_up_confined_and_runs_its_image,
    ),
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
        "a_tap_is_made_configured_and_removed_with_its_namespace",
        a_tap_is_made_configured_and_removed_with_its_namespace,
    ),
    (
        "an_interface_that_vanishes_is_said_and_made_again_by_the_next_apply",
        an_interface_that_vanishes_is_said_and_made_again_by_the_next_apply,
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
        "a_switch_that_does_what_it_may_not_trips_and_backs_off",
        a_switch_that_does_what_it_may_not_trips_and_backs_off,
    ),
    (
        "three_crashes_by_one_endpoint_quarantine_it_until_it_is_released",
        three_crashes_by_one_endpoint_quarantine_it_until_it_is_released,
    ),
    (
        "an_image_is_refused_unsealed_of_another_digest_or_by_the_switch_and_the_old_one_stays",
        an_image_is_refused_unsealed_of_another_digest_or_by_the_switch_and_the_old_one_stays,
    ),
    (
        "what_the_fabric_reports_is_killed_and_a_channel_is_replaced_at_both_ends",
        what_the_fabric_reports_is_killed_and_a_channel_is_replaced_at_both_ends,
    ),
    (
        "a_fifo_is_attached_by_its_owner_alone_and_its_channel_is_never_used_again",
        a_fifo_is_attached_by_its_owner_alone_and_its_channel_is_never_used_again,
    ),
    (
        "uplinks_are_opened_and_handed_to_the_fabric_over_its_deaths",
        uplinks_are_opened_and_handed_to_the_fabric_over_its_deaths,
    ),
    (
        "only_programs_of_its_own_directory_are_started",
        only_programs_of_its_own_directory_are_started,
    ),
    (
        "a_worker_that_is_not_confined_is_never_used",
        a_worker_that_is_not_confined_is_never_used,
    ),
    (
        "the_end_leaves_nothing_behind_also_after_the_supervisor_was_killed",
        the_end_leaves_nothing_behind_also_after_the_supervisor_was_killed,
    ),
];

/// Runs the tests whose name contains an argument, one after the other. Under the name
/// of a worker this program is that worker.
fn main() -> ExitCode {
    let mut words = std::env::args();
    let own = words.next().unwrap_or_default();
    match own.rsplit('/').next() {
        Some("bulkhead-switch") => wayward::run(false),
        Some("bulkhead-fabric") => wayward::run(true),
        Some("bulkhead-verifier") => wayward::verify(),
        Some("bulkhead-loose") => wayward::claim(),
        _ => {}
    }
    let filters: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
    let mut failed = Vec::new();
    let mut count = 0;
    let more = surroundings::TESTS
        .iter()
        .chain(floods::TESTS)
        .chain(misers::TESTS)
        .chain(journals::TESTS)
        .chain(proofs::TESTS);
    for (name, test) in TESTS.iter().chain(more) {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        count += 1;
        println!("test {name} ...");
        match std::panic::catch_unwind(test) {
            Ok(()) => println!("test {name} ... ok"),
            Err(_) => failed.push(*name),
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed",
        count - failed.len(),
        failed.len()
    );
    if failed.is_empty() && count > 0 {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:#?}");
    ExitCode::FAILURE
}

fn a_compartment_comes_up_confined_and_runs_its_image() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    let seen = host.inspect(3);
    assert_eq!(
        (seen.state, seen.restarts, seen.epoch, seen.slots),
        (RUN_UP, 0, 1, 4)
    );
    let kernel = confine::observe(seen.pid).unwrap();
    assert!(kernel.is_confined(), "{kernel:?}");
    assert_eq!(kernel.uids, [seen.uid; 4]);
    assert_ne!(seen.uid, 0);
    // Its channel with the fabric is fresh at both ends.
    assert_eq!(host.count(3, 0, Counter::RxFrames), 1);
    assert_eq!(host.count(3, 0, Counter::RxBytes), 0);
    host.until("the fabric has the channel", |h| {
        h.count(FABRIC, 3, Counter::RxFrames) == 1
    });
    // What its process used is known, of the dead too; its connections are asked for in a
    // page that nobody but it can write.
    let ask = ListFlows {
        compartment: 3,
        slot: u32::MAX,
        most: 5,
        reserved: 0,
    };
    let (answer, fds) = host.ask(&ask).unwrap();
    assert_eq!(answer.body::<ListFlows>(), Some(ask));
    assert!(rustix::io::pwrite(&fds[0], &[1], 0).is_err());
    host.until("a page", |h| {
        // The program of these tests lists nothing, but its supervisor goes on.
        h.inspect(3).memory > 0
    });
    let none = ListFlows {
        compartment: 9,
        ..ask
    };
    assert_eq!(host.ask(&none).unwrap_err(), ErrorCode::NotFound as u32);
    // The same id with another wish is a conflict and changes nothing.
    let other = CreateCompartment {
        memory: 1 << 30,
        ..red(3, 0)
    };
    assert_eq!(host.ask(&other).unwrap_err(), ErrorCode::Conflict as u32);
    host.ok(&DestroyCompartment { id: 3 });
    host.ok(&DestroyCompartment { id: 3 });
    assert_eq!(
        host.ask(&Inspect {
            target: 3,
            ..Inspect::default()
        })
        .unwrap_err(),
        ErrorCode::NotFound as u32
    );
    host.until("the process is gone", |_| {
        confine::observe(seen.pid).is_err()
    });
}

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

fn a_tap_is_made_configured_and_removed_with_its_namespace() {
    let mut host = Host::start();
    let name = host.namespace("t");
    host.ok(&red(3, 0));
    host.ok(&tap(3, 1, &name));
    host.install(3, 1).unwrap();
    host.until("the switch has the tap", |h| {
        h.count(3, 1, Counter::RxFrames) == 1
    });
    let shown = host::run(&["ip", "-n", &name, "addr"]);
    assert!(
        shown.contains("10.9.0.2/24") && shown.contains("fd00:9::2/64"),
        "{shown}"
    );
    assert!(
        shown.contains("02:00:00:00:00:09") && shown.contains("mtu 1400"),
        "{shown}"
    );
    assert!(!shown.contains("tentative"), "{shown}");
    assert!(host::run(&["ip", "-n", &name, "route"]).contains("default via 10.9.0.1"));
    assert!(host::run(&["ip", "-n", &name, "-6", "route"]).contains("default via fd00:9::1"));
    // Another's namespace of that name is left alone, and said so.
    let foreign = host.namespace("f");
    host::run(&["ip", "netns", "add", &foreign]);
    assert_eq!(
        host.ask(&tap(3, 2, &foreign)).unwrap_err(),
        ErrorCode::Conflict as u32
    );
    assert!(host::netns_exists(&foreign));
    // One that is expected and missing.
    let mut missing = tap(3, 2, &host.namespace("m"));
    missing.flags = 0;
    assert_eq!(
        host.ask(&missing).unwrap_err(),
        ErrorCode::NoNamespace as u32
    );
    host.ok(&DestroyPort {
        compartment: 3,
        slot: 1,
        keep_namespace: 0,
    });
    assert!(!host::netns_exists(&name));
    host.until("the switch let go", |h| {
        h.count(3, 1, Counter::TxFrames) == 1
    });
    host::run(&["ip", "netns", "del", &foreign]);
}

fn an_interface_that_vanishes_is_said_and_made_again_by_the_next_apply() {
    let mut host = Host::start();
    let name = host.namespace("v");
    host.ok(&red(3, 106));
    host.ok(&tap(3, 1, &name));
    host.install(3, 1).unwrap();
    let closed = host.event(EventKind::PortClosed);
    assert_eq!((closed.target, closed.slot, closed.cause), (3, 1, 1019));
    host.until("the inventory shows it", |h| {
        h.inventory()
            .iter()
            .any(|e| e.kind == 2 && e.created == [0; 32])
    });
    host.ok(&tap(3, 1, &name));
    host.until("plugged in again", |h| {
        h.count(3, 1, Counter::RxFrames) == 2
    });
    assert!(host.inventory().iter().all(|e| e.created != [0; 32]));
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
    let pid = host.wait_for(FABRIC, |now| now.state == RUN_UP).pid;
    kill(pid);
    host.wait_for(FABRIC, |now| now.state == RUN_BACKOFF);
    let asked = Instant::now();
    host.ok(&Release {
        target: FABRIC,
        slot: u32::MAX,
    });
    host.wait_for(FABRIC, |now| now.state == RUN_UP);
    assert!(asked.elapsed() < Duration::from_millis(500));
}

fn an_image_is_refused_unsealed_of_another_digest_or_by_the_switch_and_the_old_one_stays() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    let (fd, mut body) = epoch_image(3, 2);
    body.digest[0] ^= 1;
    assert_eq!(
        host.ask_with(&body, &[&fd]).unwrap_err(),
        ErrorCode::BadImage as u32
    );
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&open, &[0; 64]).unwrap();
    assert_eq!(
        host.ask_with(&body, &[&open]).unwrap_err(),
        ErrorCode::BadImage as u32
    );
    assert_eq!(host.ask(&body).unwrap_err(), ErrorCode::BadMessage as u32);
    assert_eq!(host.inspect(3).epoch, 1);
    // One that the process refuses, and one on which it is silent.
    host.ok(&red(4, 104));
    assert_eq!(host.install(4, 1).unwrap_err(), ErrorCode::BadImage as u32);
    assert_eq!(host.inspect(4).epoch, 0);
    host.ok(&red(5, 105));
    assert_eq!(host.install(5, 1).unwrap_err(), ErrorCode::System as u32);
}

fn what_the_fabric_reports_is_killed_and_a_channel_is_replaced_at_both_ends() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    let pid = host.inspect(3).pid;
    // The stand-in for the fabric reports slot 3 when it is given this epoch.
    host.install(FABRIC, 1003).unwrap();
    let report = host.event(EventKind::Report);
    assert_eq!(report.target, 3);
    let after = host.wait_for(3, |now| now.pid != pid && now.pid != 0);
    assert_eq!(after.cause, CAUSE_REPORT);
    host.ok(&red(4, 107));
    host.install(4, 1).unwrap();
    host.until("both ends have a fresh one", |h| {
        h.count(4, 0, Counter::RxFrames) == 2
            && h.count(FABRIC, 4, Counter::RxFrames) == 2
            && h.count(4, 0, Counter::RxBytes) == 0
            && h.count(FABRIC, 4, Counter::RxBytes) == 0
    });
}

fn a_fifo_is_attached_by_its_owner_alone_and_its_channel_is_never_used_again() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    let owner = 4242;
    let body = CreatePort {
        kind: ENDPOINT_FIFO,
        capacity: 1 << 18,
        max_record: 2048,
        owner,
        name: command::Name::new("red/gen").unwrap(),
        ..tap(3, 1, "")
    };
    host.ok(&body);
    let path = host.run_dir().join("fifo/red/gen.sock");
    let inode = |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    let first = host::attach_fifo(&path).unwrap();
    assert_eq!(
        (first.body.slot, first.body.resume, first.fds.len()),
        (1, 0, 6)
    );
    host.until("the switch has it", |h| {
        h.count(3, 1, Counter::RxFrames) == 1
    });
    // One at a time.
    assert_eq!(
        host::attach_fifo(&path).unwrap_err(),
        ErrorCode::Conflict as u32
    );
    // The far end of what it reads cannot be written.
    assert!(rustix::io::write(&first.fds[0], &[1]).is_err());
    let inodes: Vec<u64> = first.fds.iter().map(inode).collect();
    drop(first.socket);
    host.until("the switch let go", |h| {
        h.count(3, 1, Counter::TxFrames) == 1
    });
    let second = host::attach_fifo(&path).unwrap();
    assert!(
        second
            .fds
            .iter()
            .map(inode)
            .all(|inode| !inodes.contains(&inode))
    );
    drop(second.socket);
    host.until("the switch let go again", |h| {
        h.count(3, 1, Counter::TxFrames) == 2
    });
    // The socket is the owner's by its mode; and by the kernel's word where somebody
    // has it passed along.
    let meta = std::fs::metadata(&path).unwrap();
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    assert_eq!(
        (meta.uid(), meta.permissions().mode() & 0o777),
        (owner, 0o600)
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(host.run_dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Others pass through the tenant's folder and see nothing of it.
    let folder = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!(
        (folder.uid(), folder.permissions().mode() & 0o777),
        (0, 0o711)
    );
    assert!(host::attach_as(&path, owner));
    assert!(!host::attach_as(&path, owner + 1));
    host.ok(&DestroyPort {
        compartment: 3,
        slot: 1,
        keep_namespace: 0,
    });
    assert!(!path.exists() && !path.parent().unwrap().exists());
}

fn uplinks_are_opened_and_handed_to_the_fabric_over_its_deaths() {
    let mut host = Host::start();
    let name = host.namespace("u");
    host::run(&["ip", "netns", "add", &name]);
    host::run(&[
        "ip", "-n", &name, "link", "add", "up0", "type", "veth", "peer", "name", "up1",
    ]);
    let body = CreateUplink {
        uplink: 0,
        slot: 900,
        interface: command::Name::new("up0").unwrap(),
        namespace: command::Name::new(&name).unwrap(),
        ..CreateUplink::default()
    };
    host.ok(&body);
    host.ok(&body);
    host.until("the fabric has it", |h| {
        h.count(FABRIC, 900, Counter::RxFrames) == 1
    });
    let wrong = CreateUplink {
        uplink: 1,
        slot: 901,
        interface: command::Name::new("nope").unwrap(),
        ..body
    };
    assert_eq!(host.ask(&wrong).unwrap_err(), ErrorCode::NoInterface as u32);
    let nowhere = CreateUplink {
        uplink: 1,
        slot: 901,
        namespace: command::Name::new("bh-no-such").unwrap(),
        ..body
    };
    assert_eq!(
        host.ask(&nowhere).unwrap_err(),
        ErrorCode::NoNamespace as u32
    );
    let pid = host.inspect(FABRIC).pid;
    host.settle();
    kill(pid);
    host.until("its successor has it", |h| {
        h.count(FABRIC, 900, Counter::RxFrames) == 2
    });
    host.ok(&DestroyUplink { uplink: 0 });
    host::run(&["ip", "netns", "del", &name]);
}

fn only_programs_of_its_own_directory_are_started() {
    let mut host = Host::start();
    // There, and of the right kind, but not one of ours.
    host.add_program("stray");
    for program in [
        "/bin/sh",
        "../bin/sh",
        "/bin/bulkhead-switch",
        "bulkhead-no-such",
        "stray",
    ] {
        let body = CreateCompartment {
            program: command::Name::new(program).unwrap(),
            ..red(3, 0)
        };
        assert!(host.ask(&body).is_err(), "{program}");
    }
    assert!(host.inventory().is_empty());
}

fn a_worker_that_is_not_confined_is_never_used() {
    let mut host = Host::start();
    let program = command::Name::new("bulkhead-loose").unwrap();
    host.ok(&CreateCompartment {
        program,
        ..red(3, 0)
    });
    // It says that it did every stage; the kernel says that it did not.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert_ne!(host.inspect(3).state, RUN_UP);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn the_end_leaves_nothing_behind_also_after_the_supervisor_was_killed() {
    for killed in [false, true] {
        let mut host = Host::start();
        let name = host.namespace("e");
        host.ok(&red(3, 0));
        host.ok(&tap(3, 1, &name));
        host.install(3, 1).unwrap();
        let pids = [host.inspect(3).pid, host.inspect(FABRIC).pid];
        if killed {
            host.kill_supervisor();
            host.restart_supervisor();
        }
        host.shut_down();
        assert!(!host::netns_exists(&name));
        for pid in pids {
            host.until("the process is gone", |_| confine::observe(pid).is_err());
        }
        assert!(!host.run_dir().join("api.sock").exists());
        assert!(!host.run_dir().join("fifo").exists());
        host.until("the keeper holds nothing", |h| h.kept() == 0);
    }
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process to kill");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
