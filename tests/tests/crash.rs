//! Any process may die at any moment; the rest go on.

use e2e::Instance;
use e2e::frames::TwoTenants;
use std::process::Command;
use std::time::Duration;

fn kill(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

fn pings(tenants: &TwoTenants, tenant: &str) -> bool {
    tenants
        .sh(tenant, "app1", "ping -n -c 1 -W 1 10.1.1.10")
        .unwrap()
        .ok()
}

/// The process with this program name below the keeper.
fn child(instance: &Instance, name: &str) -> Option<u32> {
    let mut open = vec![instance.keeper()];
    while let Some(parent) = open.pop() {
        let line = std::fs::read_to_string(format!("/proc/{parent}/cmdline")).unwrap_or_default();
        if line
            .split('\0')
            .next()
            .is_some_and(|program| program.rsplit('/').next() == Some(name))
        {
            return Some(parent);
        }
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
            .unwrap_or_default();
        open.extend(
            children
                .split_whitespace()
                .filter_map(|w| w.parse::<u32>().ok()),
        );
    }
    None
}

#[test]
fn a_switch_comes_back_and_the_other_tenant_sees_nothing() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    assert!(
        instance.until(Duration::from_secs(3), |_| pings(&tenants, "red")
            && pings(&tenants, "blue"))
    );
    let blue = std::mem::ManuallyDrop::new(tenants.at("blue", "app1"));
    let witness = blue
        .command("ping -n -q -c 300 -i 0.01 -W 1 10.1.1.10")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..5 {
        let pid = instance.pid("red").unwrap();
        kill(pid);
        assert!(
            instance.until(Duration::from_secs(3), |i| i
                .pid("red")
                .is_ok_and(|p| p != pid)
                && pings(&tenants, "red")),
            "red does not come back: {}",
            instance.ask(&["status"]).unwrap()
        );
    }
    let said = String::from_utf8(witness.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        said.contains("300 received") || said.contains(" 0% packet loss"),
        "blue lost packets: {said}"
    );
    let why = instance.say(&["why", "red/app1"]).unwrap();
    assert!(why.ok(), "{}", why.err);
}

#[test]
fn the_fabric_the_supervisor_and_the_controller_may_die() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let red = instance.pid("red").unwrap();
    let fabric = instance.pid("fabric").unwrap();
    kill(fabric);
    assert!(instance.until(Duration::from_secs(3), |i| {
        i.pid("fabric").is_ok_and(|p| p != fabric)
    }));
    for name in ["bulkhead-supervisor", "bulkhead-controller"] {
        let pid = child(&instance, name).unwrap_or_else(|| panic!("no {name} below the keeper"));
        kill(pid);
        assert!(pings(&tenants, "red"), "forwarding needs {name}");
        assert!(
            instance.until(Duration::from_secs(5), |i| child(i, name)
                .is_some_and(|p| p != pid)
                && i.ask(&["status"]).is_ok()),
            "{name} does not come back; log: {}",
            instance.log()
        );
        assert_eq!(
            instance.pid("red").unwrap(),
            red,
            "red's switch was touched when {name} died"
        );
        assert!(pings(&tenants, "red"));
        let again = instance.apply(&tenants.spec).unwrap();
        assert_eq!(
            again["plan"]["changes"].as_array().map(Vec::len),
            Some(0),
            "{again}"
        );
    }
    // And a switch that dies afterwards is still somebody's business.
    kill(red);
    assert!(instance.until(
        Duration::from_secs(3),
        |i| i.pid("red").is_ok_and(|p| p != red) && pings(&tenants, "red")
    ));
}

#[test]
fn nothing_is_left_when_it_ends() {
    let tenants = TwoTenants::default();
    let mut instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let switch = instance.pid("red").unwrap();
    instance.stop();
    assert!(
        !std::path::Path::new(&format!("/proc/{switch}")).exists(),
        "the switch outlived the keeper"
    );
    assert!(
        !std::path::Path::new("/run/netns")
            .join(tenants.name("red", "web1"))
            .exists(),
        "a namespace was left"
    );
}
