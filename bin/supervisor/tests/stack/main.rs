//! The supervisor with real processes, confined, in real namespaces: the test is its
//! keeper and its controller, and a worker that moves no frame plays switch and fabric.
//! Needs root.

mod deaths;
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

const TESTS: &[(&str, fn())] = &[
    (
        "a_compartment_comes_up_confined_and_runs_its_image",
        a_compartment_comes_up_confined_and_runs_its_image,
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
        Some("bulkhead-operator") => wayward::operate(),
        Some("bulkhead-loose") => wayward::claim(),
        _ => {}
    }
    let filters: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
    let mut failed = Vec::new();
    let mut count = 0;
    let more = surroundings::TESTS
        .iter()
        .chain(deaths::TESTS)
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
        circuits: 0,
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
