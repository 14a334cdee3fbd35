//! Whose journal of connections goes on, and whose does not.

use crate::host::{Host, red};
use command::verbs::*;
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use telemetry::counters::Counter;

/// For `main`.
pub const TESTS: &[(&str, fn())] = &[
    (
        "a_journal_goes_on_after_a_clean_fault_also_of_a_supervisor_before",
        a_journal_goes_on_after_a_clean_fault_also_of_a_supervisor_before,
    ),
    (
        "a_journal_ends_with_who_is_not_trusted",
        a_journal_ends_with_who_is_not_trusted,
    ),
];

/// Journals of a compartment so far: that a predecessor wrote in, and that nobody did.
fn journals(host: &mut Host) -> (u64, u64) {
    let of = |host: &mut Host, counter| host.count(3, 0, counter);
    (of(host, Counter::Finished), of(host, Counter::Connections))
}

fn dies(host: &mut Host) {
    let before = host.inspect(3);
    let pid = Pid::from_raw(before.pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // What is no child of the supervisor any more is ours, and reaped as the keeper does.
    let reaper = std::thread::spawn(move || {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    });
    host.until("a successor", |host| {
        let now = host.inspect(3);
        now.restarts > before.restarts && now.state == RUN_UP
    });
    reaper.join().unwrap();
    let all = u64::from(before.restarts) + 2;
    host.until("its journal", |host| {
        let (found, fresh) = journals(host);
        found + fresh == all
    });
}

fn a_journal_goes_on_after_a_clean_fault_also_of_a_supervisor_before() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    assert_eq!(journals(&mut host), (0, 1));
    dies(&mut host);
    assert_eq!(journals(&mut host), (1, 1));
    // A process that another supervisor started.
    host.kill_supervisor();
    host.restart_supervisor();
    dies(&mut host);
    assert_eq!(journals(&mut host), (2, 1));
    // And one that died while there was none.
    let pid = Pid::from_raw(host.inspect(3).pid.cast_signed()).unwrap();
    host.kill_supervisor();
    kill_process(pid, Signal::KILL).unwrap();
    let reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    assert!(reaped.is_ok_and(|one| one.is_some()));
    host.restart_supervisor();
    host.until("its journal", |host| journals(host) == (3, 1));
    // Another compartment has another.
    host.ok(&DestroyCompartment { id: 3 });
    host.ok(&red(3, 0));
    host.install(3, 2).unwrap();
    assert_eq!(journals(&mut host), (0, 1));
}

fn a_journal_ends_with_who_is_not_trusted() {
    // Trips at its image, twice; crashes; spins.
    for (mode, found, fresh) in [(103, 0, 3), (101, 2, 1), (102, 2, 1)] {
        let mut host = Host::start();
        host.ok(&red(3, mode));
        assert!(host.install(3, 1).is_err());
        host.until("the last journal", |host| {
            let (found, fresh) = journals(host);
            found + fresh == 3
        });
        assert_eq!(journals(&mut host), (found, fresh), "{mode}");
    }
    // The fabric reports it.
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    host.install(FABRIC, 1003).unwrap();
    host.until("another journal", |host| journals(host) == (0, 2));
    // So does a supervisor after the one that killed it know.
    host.kill_supervisor();
    host.restart_supervisor();
    dies(&mut host);
    assert_eq!(journals(&mut host), (1, 2));
}
