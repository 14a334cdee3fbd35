//! A tenant behind one address of an uplink: what it begins comes home, and nothing else.

use e2e::outside::Outside;
use e2e::talk::{Hosts, Talk, last_heard, monotonic_ns};
use e2e::{Ended, Instance};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const SPEC: &str = r#"version: 1
uplinks:
  - {name: wan, interface: up0, namespace: {wire}}
tenants:
  - name: green
    subnets:
      - {name: lan, prefixes: [10.9.0.0/24, "fd00:9::/64"]}
    endpoints:
      - {name: web1, subnet: lan, addresses: [10.9.0.10, "fd00:9::10"], attach: {tap: {namespace: "{ns}-web1", interface: eth0, make: true}}}
      - {name: web2, subnet: lan, addresses: [10.9.0.11, "fd00:9::11"], attach: {tap: {namespace: "{ns}-web2", interface: eth0, make: true}}}
    outside:
      - uplink: wan
        address: [192.0.2.10/24, "2001:db8::10/64"]
        gateway: [192.0.2.1, "2001:db8::1"]
        mac: 02:00:00:00:09:10
        routes: [0.0.0.0/0, "::/0"]
        nat: on
"#;
const POLICY: &str = r#"    policy:
      rules:
        - {name: web, action: allow, from: outside, to: {endpoint: web1}, protocol: tcp, ports: [80]}
"#;
const SERVER: &str = "198.51.100.2";
const SERVES: &str = "serve tcp=80 tcp=22 udp=53 udp=80";

struct Home {
    instance: Instance,
    talk: Talk,
    hosts: Hosts,
    outside: Outside,
    _servers: Vec<(Ended, PathBuf)>,
}

/// With one worker in the tenant's switch, or several.
fn home(policy: &str, workers: u32) -> Home {
    let outside = Outside::make().unwrap();
    let spec = SPEC.replace("{wire}", &outside.wire.name) + policy;
    let green = "name: green\n";
    let spec = spec.replace(green, &format!("{green}    workers: {workers}\n"));
    let hosts = Hosts::of(&spec);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    let servers = vec![
        talk.start(&outside.server, SERVES),
        talk.start(&hosts.at("web1"), SERVES),
    ];
    let home = Home {
        instance,
        talk,
        hosts,
        outside,
        _servers: servers,
    };
    for from in ["web1", "web2"] {
        for to in [SERVER, "2001:db8:1::2"] {
            let words = format!("tcp {to} 80");
            let reached = home.instance.until(Duration::from_secs(5), |_| {
                home.asks(from, &words).is_some()
            });
            assert!(
                reached,
                "{from} {to}: {}",
                home.instance.ask(&["status"]).unwrap()
            );
        }
    }
    home
}

impl Home {
    /// How the server sees the endpoint.
    fn asks(&self, from: &str, words: &str) -> Option<(String, u16)> {
        self.talk.ask(&self.hosts.at(from), words)
    }

    fn server_reaches(&self, words: &str) -> bool {
        self.talk.ask(&self.outside.server, words).is_some()
    }

    /// What the tenant's switch dropped of what came from outside, by reason.
    fn dropped(&self) -> Vec<(String, u64)> {
        let status = self.instance.ask(&["status"]).unwrap();
        let drops = status["compartments"][0]["outside_drops"].clone();
        let one = |d: &Value| Some((d["reason"].as_str()?.to_owned(), d["frames"].as_u64()?));
        drops
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(one)
            .collect()
    }
}

#[test]
fn what_endpoints_begin_has_the_tenants_address_and_ports_of_their_own() {
    for workers in [1, 2] {
        let home = home(POLICY, workers);
        let mut ports = Vec::new();
        for kind in ["tcp", "udp"] {
            // The same source port at both.
            for (from, block) in [("web1", 0), ("web2", 1)] {
                let port = if kind == "tcp" { 80 } else { 53 };
                let words = format!("{kind} {SERVER} {port} 40000");
                let (address, port) = home.asks(from, &words).unwrap();
                assert_eq!(address, "192.0.2.10", "{from} {kind}");
                ports.push((kind, block, port));
                // IPv6 is never translated.
                let own = ["fd00:9::10", "fd00:9::11"][block];
                let (address, port) = home.asks(from, "udp 2001:db8:1::2 53 40000").unwrap();
                assert_eq!((address.as_str(), port), (own, 40_000));
            }
        }
        // 1,024 ports each, from 1024 on.
        let blocks: Vec<usize> = ports
            .iter()
            .map(|(_, _, port)| usize::from(*port) / 1024)
            .collect();
        assert!(blocks.iter().all(|block| *block >= 1), "{ports:?}");
        assert_eq!((blocks[0], blocks[1]), (blocks[2], blocks[3]), "{ports:?}");
        assert_ne!(blocks[0], blocks[1], "{ports:?}");
        for from in ["web1", "web2"] {
            let line = format!("ping -n -c 3 -i 0.1 -W 5 {SERVER}");
            let said = home.hosts.sh(from, &line);
            assert!(said.out.contains(" 0% packet loss"), "{said:?}");
        }
    }
}

#[test]
fn what_is_said_outside_about_a_translated_packet_comes_home() {
    for workers in [1, 2] {
        let home = home(POLICY, workers);
        // Two hops: the tenant's own gateway, and the router out there.
        let line = format!("ping -n -c 1 -t 2 -W 1 {SERVER}");
        let said = home.hosts.sh("web1", &line);
        assert!(said.out.contains("Time to live exceeded"), "{said:?}");
        // Nobody there.
        let said = home
            .talk
            .say(&home.hosts.at("web1"), &format!("udp {SERVER} 9"));
        assert!(said.err.contains("ConnectionRefusedError"), "{said:?}");
        // A narrower link out there.
        for at in [(&home.outside.router, "r1"), (&home.outside.server, "s0")] {
            at.0.ip(&format!("link set {} mtu 1300", at.1)).unwrap();
        }
        for to in [SERVER, "2001:db8:1::2"] {
            let words = format!("mtu {to} 53");
            let said = home.talk.say(&home.hosts.at("web2"), &words);
            assert_eq!(said.out.trim(), "1300", "{to}: {said:?}");
        }
        let words = format!("bulk {SERVER} 80 20000000");
        let said = home.talk.say(&home.hosts.at("web1"), &words);
        assert_eq!(said.out, "go\n20000000\n", "{said:?}");
    }
}

#[test]
fn what_is_translated_goes_on_over_a_restart() {
    for workers in [1, 2] {
        let home = home(POLICY, workers);
        let words = format!("stream {SERVER} 80");
        let streams = ["web1", "web2"].map(|from| home.talk.start(&home.hosts.at(from), &words));
        let are_live = |home: &Home| {
            let live = |(_, heard): &(Ended, PathBuf)| {
                let fresh =
                    |_: &Instance| monotonic_ns().saturating_sub(last_heard(heard)) < 50_000_000;
                home.instance.until(Duration::from_secs(5), fresh)
            };
            streams.iter().all(live)
        };
        assert!(are_live(&home));
        for _ in 0..3 {
            let pid = home.instance.kill("green");
            let back = |i: &Instance| i.pid("green").is_ok_and(|now| now != pid);
            assert!(home.instance.until(Duration::from_secs(5), back));
            assert!(are_live(&home));
            // What was heard just before it died may still count as fresh, so this may come late.
            let are_restored = |i: &Instance| {
                let status = i.ask(&["status"]).unwrap();
                status["compartments"][0]["restored"].as_u64() >= Some(2)
            };
            assert!(home.instance.until(Duration::from_secs(5), are_restored));
        }
        assert!(!home.server_reaches("tcp 192.0.2.10 80"));
    }
}

#[test]
fn what_nobody_asked_for_is_refused() {
    unasked(POLICY);
}

#[test]
fn what_nobody_asked_for_is_refused_without_a_policy_as_well() {
    unasked("");
}

fn unasked(policy: &str) {
    let open = policy.is_empty();
    let home = home(policy, 1);
    // The server has just spoken with both, from port 80: other ports are strangers.
    for words in [
        "tcp 192.0.2.10 80",
        "udp 192.0.2.10 53",
        "udp 192.0.2.10 1024",
        // Past the translation, by a route that the router happens to have.
        "tcp 10.9.0.10 22",
        "udp 10.9.0.10 53",
    ] {
        // Without a policy nothing says that this may not come in; its answer does not leave.
        if open && words.contains("10.9.") {
            assert!(!home.server_reaches(words), "{words}");
            continue;
        }
        let before = home.dropped();
        assert!(!home.server_reaches(words), "{policy}: {words}");
        assert_ne!(home.dropped(), before, "{words}");
    }
    // IPv6 is not hidden by a translation: there the rules decide.
    let denied = |home: &Home| {
        let all = home.dropped();
        let found = all.iter().find(|(reason, _)| reason == "ingress-rule");
        found.map_or(0, |(_, frames)| *frames)
    };
    assert!(home.server_reaches("tcp fd00:9::10 80"));
    let before = denied(&home);
    assert_eq!(home.server_reaches("tcp fd00:9::10 22"), open);
    assert_eq!(denied(&home) > before, !open, "{:?}", home.dropped());
    // Yet what answers comes in.
    assert!(home.asks("web1", "tcp 2001:db8:1::2 80").is_some());
    assert!(home.asks("web1", &format!("tcp {SERVER} 80")).is_some());
}
