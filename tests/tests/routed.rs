//! Prefixes that two tenants route to each other: addresses stay, both tenants' rules
//! hold, and either ends it.

use e2e::Stage;
use e2e::talk::{last_heard, monotonic_ns};
use std::time::Duration;

/// Like examples/routed.yaml; red's links are narrower, and one endpoint's yet more.
const SPEC: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - {name: data, mtu: 1400, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
      - {name: admin, mtu: 1400, prefixes: [10.1.9.0/24, "fd00:1:1:9::/64"]}
    endpoints:
      - {name: db1, subnet: data, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}
      - {name: small, subnet: data, mtu: 1300, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: {tap: {namespace: "{ns}-small", interface: eth0, make: true}}}
      - {name: ops, subnet: admin, addresses: [10.1.9.10, "fd00:1:1:9::10"], attach: {tap: {namespace: "{ns}-ops", interface: eth0, make: true}}}
    policy:
      rules:
        - {name: no-ssh, action: deny, from: {agreement: lan}, protocol: tcp, ports: [22]}
    offers:
      - name: lan
        route: [10.1.1.0/24, "fd00:1:1:1::/64"]
        users: [10.2.0.0/16, "fd00:2::/32"]
        to: [blue]
  - name: blue
    subnets:
      - {name: apps, prefixes: [10.2.1.0/24, "fd00:2:1:1::/64"]}
    endpoints:
      - {name: app1, subnet: apps, addresses: [10.2.1.10, "fd00:2:1:1::10"], labels: {role: app}, attach: {tap: {namespace: "{ns}-app1", interface: eth0, make: true}}}
      - {name: other, subnet: apps, addresses: [10.2.1.11, "fd00:2:1:1::11"], attach: {tap: {namespace: "{ns}-other", interface: eth0, make: true}}}
    accepts:
      - name: reds-lan
        from: red
        service: lan
        route: [10.1.0.0/16, "fd00:1::/32"]
        users: [10.2.1.0/24, "fd00:2:1:1::/64"]
        endpoints: {label: {role: app}}
"#;
const DB: [&str; 2] = ["10.1.1.10", "fd00:1:1:1::10"];
const SMALL: [&str; 2] = ["10.1.1.11", "fd00:1:1:1::11"];
const OPS: [&str; 2] = ["10.1.9.10", "fd00:1:1:9::10"];
const APP: [&str; 2] = ["10.2.1.10", "fd00:2:1:1::10"];
const GATEWAY: [&str; 2] = ["10.1.1.1", "fd00:1:1:1::1"];
const SERVES: &str = "serve tcp=5432 tcp=22 udp=5140";

fn two(spec: &str) -> Stage {
    Stage::of(spec, &["db1", "small", "ops", "app1", "other"], SERVES)
}

/// Both say that both begin.
fn both() -> String {
    SPEC.replace("to: [blue]", "to: [blue]\n        both: yes")
        .replace("service: lan", "service: lan\n        both: yes")
}

#[test]
fn addresses_stay_and_the_rules_of_both_hold() {
    let two = two(SPEC);
    for family in 0..2 {
        let (db, app, ops) = (DB[family], APP[family], OPS[family]);
        // Red sees them as they are.
        let user = two.comes_to_ask("app1", &format!("tcp {db} 5432"));
        assert_eq!(user.as_deref(), Some(app));
        let user = two.comes_to_ask("app1", &format!("udp {db} 5140"));
        assert_eq!(user.as_deref(), Some(app));
        let ping = format!("ping -n -c 1 -W 2 {db}");
        assert!(two.hosts.sh("app1", &ping).ok(), "{ping}");
        for (from, words) in [
            // Red's rule; blue's choice of users; what red did not offer; who begins.
            ("app1", format!("tcp {db} 22")),
            ("other", format!("tcp {db} 5432")),
            ("app1", format!("tcp {ops} 5432")),
            ("db1", format!("tcp {app} 5432")),
            ("ops", format!("tcp {app} 5432")),
        ] {
            assert_eq!(two.asks(from, &words), None, "{from}: {words}");
        }
    }
    assert!(two.instance.ask(&["verify"]).is_ok());
    let said = two
        .instance
        .say(&["explain", "blue/app1", "red/db1", "tcp", "5432"])
        .unwrap();
    assert!(
        said.ok() && said.out.contains("routed by red/lan"),
        "{said:?}"
    );
    for (words, code) in [
        (["blue/app1", "red/db1", "tcp", "22"], 6),
        (["red/db1", "blue/app1", "tcp", "5432"], 6),
        (["blue/other", "red/db1", "tcp", "5432"], 6),
        (["blue/app1", "10.1.1.10", "udp", "53"], 0),
    ] {
        let all: Vec<&str> = ["explain"].into_iter().chain(words).collect();
        assert_eq!(two.instance.say(&all).unwrap().code, code, "{words:?}");
    }
}

#[test]
fn each_switch_is_a_hop_and_tells_what_is_wrong() {
    let two = two(SPEC);
    for family in 0..2 {
        let (db, gateway) = (DB[family], GATEWAY[family]);
        assert!(
            two.comes_to_ask("app1", &format!("udp {db} 5140"))
                .is_some()
        );
        // Two hops end at red's gateway, three at the database.
        let said = two
            .hosts
            .sh("app1", &format!("ping -n -c 1 -W 2 -t 2 {db}"));
        assert!(
            !said.ok() && said.out.contains(&format!("From {gateway} ")),
            "{said:?}"
        );
        assert!(
            two.hosts
                .sh("app1", &format!("ping -n -c 1 -W 2 -t 3 {db}"))
                .ok()
        );
        let nobody = ["10.1.1.99", "fd00:1:1:1::99"][family];
        let said = two.hosts.sh("app1", &format!("ping -n -c 1 -W 2 {nobody}"));
        assert!(
            !said.ok() && said.out.contains(&format!("From {gateway} ")),
            "{said:?}"
        );
        // Told by blue's switch, and by red's.
        for (to, mtu) in [(db, "1400"), (SMALL[family], "1300")] {
            assert!(
                two.comes_to_ask("app1", &format!("udp {to} 5140"))
                    .is_some()
            );
            let said = two
                .talk
                .say(&two.hosts.at("app1"), &format!("mtu {to} 5140"));
            assert_eq!(said.out.trim(), mtu, "{to}: {said:?}");
            let said = two
                .talk
                .say(&two.hosts.at("app1"), &format!("bulk {to} 5432 20000000"));
            assert_eq!(said.out, "go\n20000000\n", "{to}: {said:?}");
        }
    }
}

#[test]
fn the_offerer_begins_where_both_say_so_until_one_takes_it_back() {
    let two = two(&both());
    for family in 0..2 {
        let (db, app) = (DB[family], APP[family]);
        let user = two.comes_to_ask("db1", &format!("tcp {app} 5432"));
        assert_eq!(user.as_deref(), Some(db));
        assert!(
            two.comes_to_ask("app1", &format!("tcp {db} 5432"))
                .is_some()
        );
        let others = ["10.2.1.11", "fd00:2:1:1::11"][family];
        assert_eq!(two.asks("db1", &format!("tcp {others} 5432")), None);
    }
    let stream = two.stream("db1", APP[0], 5432);
    // Blue takes it back.
    two.apply(&both().replace("service: lan\n        both: yes", "service: lan"));
    let applied = monotonic_ns();
    std::thread::sleep(Duration::from_millis(700));
    let after = last_heard(&stream.1).saturating_sub(applied) / 1_000_000;
    assert!(after <= 400, "{after} ms");
    assert_eq!(two.asks("db1", &format!("tcp {} 5432", APP[0])), None);
    assert!(two.asks("app1", &format!("tcp {} 5432", DB[0])).is_some());
}

#[test]
fn either_side_ends_it_at_once() {
    let two = two(SPEC);
    let revoked = [
        (
            "offers",
            SPEC.replace("to: [blue]", "to: [green]")
                .replace("  - name: blue", "  - name: green\n  - name: blue"),
        ),
        (
            "accepts",
            SPEC.split("    accepts:").next().unwrap().to_owned(),
        ),
    ];
    for (side, revoked) in revoked {
        for to in DB {
            two.apply(SPEC);
            let stream = two.stream("app1", to, 5432);
            two.apply(&revoked);
            let applied = monotonic_ns();
            std::thread::sleep(Duration::from_millis(700));
            let after = last_heard(&stream.1).saturating_sub(applied) / 1_000_000;
            println!("{side}, {to}: the last byte {after} ms after the apply returned");
            assert!(after <= 400, "{side}: {after} ms");
            assert_eq!(two.asks("app1", &format!("tcp {to} 5432")), None);
        }
    }
}

#[test]
fn tenants_of_one_switch_agree_by_the_fabric() {
    let near = |text: &str| {
        ["red", "blue"].iter().fold(text.to_owned(), |text, name| {
            let line = format!("  - name: {name}\n");
            text.replace(&line, &format!("{line}    placement: {{per: host}}\n"))
        })
    };
    let two = two(&near(SPEC));
    for family in 0..2 {
        let (db, app, ops) = (DB[family], APP[family], OPS[family]);
        let user = two.comes_to_ask("app1", &format!("tcp {db} 5432"));
        assert_eq!(user.as_deref(), Some(app));
        for (from, words) in [
            ("app1", format!("tcp {db} 22")),
            ("other", format!("tcp {db} 5432")),
            ("app1", format!("tcp {ops} 5432")),
            ("db1", format!("tcp {app} 5432")),
        ] {
            assert_eq!(two.asks(from, &words), None, "{from}: {words}");
        }
        // Out and back: a hop on each side.
        let said = two
            .hosts
            .sh("app1", &format!("ping -n -c 1 -W 2 -t 2 {db}"));
        assert!(!said.ok() && said.out.contains(&format!("From {} ", GATEWAY[family])));
        assert!(
            two.hosts
                .sh("app1", &format!("ping -n -c 1 -W 2 -t 3 {db}"))
                .ok()
        );
        let said = two
            .talk
            .say(&two.hosts.at("app1"), &format!("bulk {db} 5432 20000000"));
        assert_eq!(said.out, "go\n20000000\n", "{said:?}");
    }
    assert!(two.instance.ask(&["verify"]).is_ok());
    let stream = two.stream("app1", DB[0], 5432);
    two.apply(near(SPEC).split("    accepts:").next().unwrap());
    let applied = monotonic_ns();
    std::thread::sleep(Duration::from_millis(700));
    let after = last_heard(&stream.1).saturating_sub(applied) / 1_000_000;
    assert!(after <= 400, "{after} ms");
    assert_eq!(two.asks("app1", &format!("tcp {} 5432", DB[0])), None);
}
