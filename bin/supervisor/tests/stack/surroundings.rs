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
