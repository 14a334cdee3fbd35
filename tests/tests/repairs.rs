//! What was taken away from outside is said, and the next apply makes it again.

use e2e::frames::TwoTenants;
use e2e::{Instance, Namespace, unique};
use std::process::Command;
use std::time::Duration;

fn port(instance: &Instance) -> String {
    let endpoint = instance.endpoint("red", "app1").unwrap();
    endpoint["port"].as_str().unwrap_or_default().to_owned()
}

fn pings(tenants: &TwoTenants) -> bool {
    tenants
        .sh("red", "app1", "ping -n -c 1 -W 1 10.1.1.10")
        .unwrap()
        .ok()
}

#[test]
fn what_vanished_is_closed_until_an_apply_and_open_again_afterwards() {
    let tenants = TwoTenants::default();
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    assert!(instance.until(Duration::from_secs(3), |_| pings(&tenants)));
    let name = tenants.name("red", "app1");
    for line in [
        format!("-n {name} link del eth0"),
        format!("netns del {name}"),
    ] {
        let status = Command::new("ip").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "ip {line}");
        assert!(
            instance.until(Duration::from_secs(3), |i| port(i) != "open"),
            "ip {line} is not noticed"
        );
        instance.apply(&tenants.spec).unwrap();
        assert_eq!(port(&instance), "open", "after ip {line}");
        let why = instance.say(&["why", "red/app1"]).unwrap();
        assert!(!why.out.contains("'s port is closed"), "{}", why.out);
        assert!(instance.until(Duration::from_secs(3), |_| pings(&tenants)));
    }
}

#[test]
fn the_hosts_own_namespace_is_refused_at_the_line_that_names_it() {
    let namespace = Namespace::named(unique("bht"));
    let instance = Instance::start().unwrap();
    let spec = |place: &str| {
        format!(
            "version: 1\ntenants:\n  - name: red\n    subnets:\n      - {{ name: lan, prefixes: [10.1.1.0/24] }}\n    endpoints:\n      - {{ name: one, subnet: lan, addresses: [10.1.1.10], attach: {{ tap: {{ namespace: {}, interface: bhteth0, make: true }} }} }}\n      - {{ name: host, subnet: lan, addresses: [10.1.1.11], attach: {{ tap: {{ namespace: {place}, interface: bhteth0 }} }} }}\n",
            namespace.name
        )
    };
    let file = instance.folder().join("host.yaml");
    std::fs::write(&file, spec("/proc/self/ns/net")).unwrap();
    let said = instance
        .say(&["apply", &file.display().to_string()])
        .unwrap();
    let all = format!("{}{}", said.out, said.err);
    assert_eq!(said.code, 1, "{all}");
    assert!(all.contains("the host's own network namespace"), "{all}");
    assert!(all.contains("host.yaml:8"), "{all}");
}
