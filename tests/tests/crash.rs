//! Any process may die at any moment; the rest go on.

use e2e::frames::TwoTenants;
use e2e::{Instance, Namespace, unique};
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
        .command("ping -n -q -c 300 -i 0.01 -W 5 10.1.1.10")
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
    // By its successor's word, and not before it has forwarded something.
    let status = instance.ask(&["status"]).unwrap();
    let red = status["compartments"].as_array().unwrap().iter();
    let red = red.rev().find(|c| c["name"] == "red").unwrap();
    assert!(red["last_outage_ns"].as_u64() > Some(0), "{red}");
    let why = instance.say(&["why", "red/app1"]).unwrap();
    assert!(why.ok(), "{}", why.err);
    assert!(
        why.out.contains("says that it forwarded a frame"),
        "{}",
        why.out
    );
}

/// A tenant behind an uplink, and a stranger at its far side: what passes between them
/// crosses the fabric.
struct Beyond {
    wire: Namespace,
    far: Namespace,
    tenant: String,
}

impl Beyond {
    fn make() -> Result<Beyond, String> {
        let beyond = Beyond {
            wire: Namespace::make()?,
            far: Namespace::make()?,
            tenant: unique("bht-green-"),
        };
        beyond.wire.ip(&format!(
            "link add up0 type veth peer name r0 netns {}",
            beyond.far.name
        ))?;
        beyond.wire.ip("link set up0 up")?;
        for line in [
            "link set r0 up",
            "addr add 192.0.2.1/24 dev r0",
            "route add 10.9.0.0/24 via 192.0.2.10",
        ] {
            beyond.far.ip(line)?;
        }
        Ok(beyond)
    }

    fn spec(&self) -> String {
        format!(
            "version: 1
uplinks:
  - {{ name: wan, interface: up0, namespace: {} }}
tenants:
  - name: green
    subnets:
      - {{ name: lan, prefixes: [10.9.0.0/24] }}
    endpoints:
      - name: web1
        subnet: lan
        addresses: [10.9.0.10]
        attach: {{ tap: {{ namespace: {}, interface: eth0, make: true }} }}
    outside:
      - {{ uplink: wan, address: [192.0.2.10/24], gateway: [192.0.2.1], mac: \"02:00:00:00:09:10\" }}
",
            self.wire.name, self.tenant
        )
    }

    fn reaches(&self) -> bool {
        let tenant = std::mem::ManuallyDrop::new(Namespace::named(&self.tenant));
        tenant.sh("ping -n -c 1 -W 1 192.0.2.1").unwrap().ok()
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        drop(Namespace::named(&self.tenant));
    }
}

/// Frames that the fabric has sent to the uplink.
fn crossed(instance: &Instance) -> u64 {
    let status = instance.ask(&["status"]).unwrap();
    status["uplinks"][0]["counters"]["tx_frames"]
        .as_u64()
        .unwrap()
}

#[test]
fn the_fabric_may_die_and_what_crosses_it_goes_on() {
    let beyond = Beyond::make().unwrap();
    let instance = Instance::start().unwrap();
    instance.apply(&beyond.spec()).unwrap();
    assert!(instance.until(Duration::from_secs(5), |_| beyond.reaches()));
    let green = instance.pid("green").unwrap();
    for _ in 0..3 {
        let fabric = instance.pid("fabric").unwrap();
        kill(fabric);
        assert!(
            instance.until(Duration::from_secs(3), |i| {
                i.pid("fabric").is_ok_and(|p| p != fabric) && beyond.reaches()
            }),
            "nothing crosses the new fabric: {}",
            instance.ask(&["status"]).unwrap()
        );
        let before = crossed(&instance);
        assert!(beyond.reaches());
        assert!(crossed(&instance) > before, "it did not cross the fabric");
    }
    assert_eq!(
        instance.pid("green").unwrap(),
        green,
        "its switch was touched"
    );
    // The word of the last fabric that it forwarded something.
    assert!(instance.until(Duration::from_secs(3), |i| {
        i.ask(&["status"]).unwrap()["fabric"]["last_outage_ns"].as_u64() > Some(0)
    }));
}

#[test]
fn the_supervisor_and_the_controller_may_die() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let red = instance.pid("red").unwrap();
    for name in ["bulkhead-supervisor", "bulkhead-controller"] {
        let pid = instance
            .child(name)
            .unwrap_or_else(|| panic!("no {name} below the keeper"));
        kill(pid);
        assert!(pings(&tenants, "red"), "forwarding needs {name}");
        assert!(
            instance.until(Duration::from_secs(5), |i| i
                .child(name)
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

/// Nothing of its ends by that, and its successor goes on with all.
#[test]
fn a_supervisor_that_stands_still_is_replaced() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    let limit = Duration::from_secs(3);
    assert!(instance.until(limit, |_| pings(&tenants, "red")));
    let supervisor = instance.child("bulkhead-supervisor").unwrap();
    let switch = instance.pid("red").unwrap();
    let stopped = Command::new("kill")
        .args(["-STOP", &supervisor.to_string()])
        .status();
    assert!(stopped.unwrap().success());
    let another = |i: &Instance| {
        i.child("bulkhead-supervisor")
            .is_some_and(|pid| pid != supervisor)
    };
    assert!(
        instance.until(Duration::from_secs(40), another),
        "nobody misses it"
    );
    assert!(instance.until(limit, |i| i.pid("red") == Ok(switch)));
    assert!(pings(&tenants, "red"));
    assert!(
        instance.log().contains("stands still"),
        "{}",
        instance.log()
    );
}
