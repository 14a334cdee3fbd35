//! What belongs to the host around the processes: its namespaces and its cores.

use crate::host::{self, Host, red, tap};
use crate::kill;
use command::message::ErrorCode;
use command::verbs::*;
use telemetry::recorder::EventKind;

pub const TESTS: &[(&str, fn())] = &[
    (
        "a_namespace_deleted_from_outside_is_said_and_made_again",
        a_namespace_deleted_from_outside_is_said_and_made_again,
    ),
    (
        "an_isolated_core_is_its_switchs_alone",
        an_isolated_core_is_its_switchs_alone,
    ),
    (
        "each_of_several_workers_is_on_its_isolated_core",
        each_of_several_workers_is_on_its_isolated_core,
    ),
];

fn a_namespace_deleted_from_outside_is_said_and_made_again() {
    let mut host = Host::start();
    let name = host.namespace("d");
    host.ok(&red(3, 0));
    host.ok(&tap(3, 1, &name));
    host.install(3, 1).unwrap();
    host::run(&["ip", "netns", "del", &name]);
    let closed = host.event(EventKind::PortClosed);
    assert_eq!((closed.target, closed.slot, closed.cause), (3, 1, 1019));
    host.ok(&tap(3, 1, &name));
    let added = host.event(EventKind::PortAdded);
    assert_eq!((added.target, added.slot), (3, 1));
    assert!(host::run(&["ip", "-n", &name, "addr"]).contains("10.9.0.2/24"));
    // One that is made again under its name is not the one that the port is in.
    host::run(&["ip", "netns", "del", &name]);
    host.event(EventKind::PortClosed);
    host::run(&["ip", "netns", "add", &name]);
    host.ok(&DestroyPort {
        compartment: 3,
        slot: 1,
        keep_namespace: 0,
    });
    // It is theirs, and stays.
    let stays = host::netns_exists(&name);
    host::run(&["ip", "netns", "del", &name]);
    assert!(stays, "somebody else's namespace was removed");
}

/// Needs two cores that are no siblings of each other.
fn an_isolated_core_is_its_switchs_alone() {
    let on = |pid: u32, core: usize| {
        rustix::thread::sched_getaffinity(rustix::process::Pid::from_raw(pid.cast_signed()))
            .unwrap()
            .is_set(core)
    };
    let mut host = Host::start();
    let isolated = |id, core| CreateCompartment { core, ..red(id, 0) };
    host.ok(&red(4, 0));
    host.ok(&isolated(3, 1));
    let apart = |h: &mut Host| {
        let (own, shared, fabric) = (h.inspect(3).pid, h.inspect(4).pid, h.inspect(FABRIC).pid);
        let all = own != 0 && shared != 0 && fabric != 0;
        all && on(own, 1)
            && !on(own, 0)
            && on(shared, 0)
            && !on(shared, 1)
            && on(fabric, 0)
            && !on(fabric, 1)
    };
    host.until("each is on its own cores", apart);
    // What is started later keeps off as well, also by the supervisor's successor.
    kill(host.inspect(4).pid);
    host.kill_supervisor();
    host.restart_supervisor();
    kill(host.inspect(FABRIC).pid);
    host.until("each is on its own cores again", apart);
    assert_eq!(
        host.ask(&isolated(5, 900)).unwrap_err(),
        ErrorCode::Limit as u32
    );
    host.ok(&DestroyCompartment { id: 3 });
    host.until("the core is everybody's again", |h| {
        let (shared, fabric) = (h.inspect(4).pid, h.inspect(FABRIC).pid);
        shared != 0 && fabric != 0 && on(shared, 1) && on(fabric, 1)
    });
}

/// Needs two cores. Where there are no more, none is left for the rest, which then stays:
/// that there is one the controller sees to.
fn each_of_several_workers_is_on_its_isolated_core() {
    let mut host = Host::start();
    let two = |id, other| {
        let mut body = CreateCompartment {
            workers: 2,
            core: 1,
            ..red(id, 123)
        };
        body.other_cores[0] = other;
        body
    };
    host.ok(&two(3, 0));
    // Who speaks for them has both; they are in order.
    let apart = |h: &mut Host| threads_cores(h.inspect(3).pid) == ["0-1", "1", "0"];
    host.until("each worker is on its core", apart);
    let first = host.inspect(3).pid;
    kill(first);
    host.until("so are its successor's", |h| {
        h.inspect(3).pid != first && apart(h)
    });
    let pid = host.inspect(3).pid;
    host.kill_supervisor();
    assert_eq!(threads_cores(pid), ["0-1", "1", "0"], "it lasts");
    // As if that one had died before it had done it.
    let mut both = rustix::thread::CpuSet::new();
    (0..2).for_each(|core| both.set(core));
    for thread in threads(pid) {
        rustix::thread::sched_setaffinity(Some(thread), &both).unwrap();
    }
    host.restart_supervisor();
    host.until("a supervisor that starts does it too", apart);
    assert_eq!(host.ask(&two(5, 900)).unwrap_err(), ErrorCode::Limit as u32);
}

fn threads(pid: u32) -> Vec<rustix::process::Pid> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task"));
    let name = |thread: std::fs::DirEntry| thread.file_name().to_str()?.parse().ok();
    let all = listed.into_iter().flatten().flatten();
    all.filter_map(name)
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}

/// The cores that each thread of a process may use, as the kernel lists them.
fn threads_cores(pid: u32) -> Vec<String> {
    let cores = |thread: rustix::process::Pid| {
        let number = thread.as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{number}/status")).ok()?;
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(list.trim().to_owned())
    };
    threads(pid).into_iter().filter_map(cores).collect()
}
