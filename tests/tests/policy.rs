//! A tenant's rules, held by its switch between real network stacks.

use e2e::Instance;
use e2e::talk::{Hosts, Talk, last_heard, monotonic_ns};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Like examples/policy.yaml, with a rule of each kind.
const SPEC: &str = r#"version: 1
tenants:
  - name: shop
    subnets:
      - {name: front, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
      - {name: back, prefixes: [10.1.2.0/24, "fd00:1:1:2::/64"]}
    endpoints:
      - {name: web1, subnet: front, labels: {role: web}, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-web1", interface: eth0, make: true}}}
      - {name: app1, subnet: back, labels: {role: app}, addresses: [10.1.2.10, "fd00:1:1:2::10"], attach: {tap: {namespace: "{ns}-app1", interface: eth0, make: true}}}
      - {name: db1, subnet: back, labels: {role: db}, addresses: [10.1.2.20, "fd00:1:1:2::20"], attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}
    policy:
      default: {inside: deny}
      rules:
        - {name: web-to-app, action: allow, from: {label: {role: web}}, to: {label: {role: app}}, protocol: tcp, ports: [8000-8099]}
        - {name: names, action: allow, from: {label: {role: web}}, to: {label: {role: app}}, protocol: udp, ports: [53]}
        - {name: app-to-db, action: allow, from: {label: {role: app}}, to: {endpoint: db1}, protocol: tcp, ports: [5432]}
        - {name: tell, action: allow, from: {label: {role: web}}, to: {endpoint: db1}, protocol: udp, ports: [7000], state: stateless}
        - {name: found, action: allow, from: {endpoint: app1}, protocol: udp, ports: [9999]}
        - {name: ping, action: allow, from: {subnet: front}, to: {subnet: back}, protocol: icmp, icmp: [echo-request]}
        - {name: ping6, action: allow, from: {subnet: front}, to: {subnet: back}, protocol: icmp6, icmp: [echo-request]}
"#;
const APP: [&str; 2] = ["10.1.2.10", "fd00:1:1:2::10"];
const DB: [&str; 2] = ["10.1.2.20", "fd00:1:1:2::20"];
const WEB: [&str; 2] = ["10.1.1.10", "fd00:1:1:1::10"];

struct Shop {
    instance: Instance,
    talk: Talk,
    hosts: Hosts,
}

fn shop() -> Shop {
    let hosts = Hosts::of(SPEC);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    Shop {
        instance,
        talk,
        hosts,
    }
}

impl Shop {
    fn asks(&self, from: &str, words: &str) -> bool {
        self.talk.ask(&self.hosts.at(from), words).is_some()
    }

    /// The same, tried until the interfaces are as they will be.
    fn comes_to_ask(&self, from: &str, words: &str) -> bool {
        let tries = Duration::from_secs(5);
        self.instance.until(tries, |_| self.asks(from, words))
    }

    fn pings(&self, from: &str, to: &str) -> bool {
        let line = format!("ping -n -c 2 -i 0.1 -W 1 {to}");
        self.hosts.sh(from, &line).ok()
    }

    fn drops(&self, endpoint: &str, reason: &str) -> u64 {
        self.instance.drops("shop", endpoint, reason).unwrap()
    }
}

#[test]
fn what_a_rule_allows_passes_with_its_answers_and_nothing_else() {
    let shop = shop();
    let ports = "serve tcp=8080 tcp=5432 tcp=22 udp=53 udp=5432 udp=7000";
    let _app = shop.talk.start(&shop.hosts.at("app1"), ports);
    let (_db, heard) = shop.talk.start(&shop.hosts.at("db1"), ports);
    let _web = shop.talk.start(&shop.hosts.at("web1"), ports);
    for family in 0..2 {
        let (app, db, web) = (APP[family], DB[family], WEB[family]);
        for (from, words) in [
            ("web1", format!("tcp {app} 8080")),
            ("web1", format!("udp {app} 53")),
            ("app1", format!("tcp {db} 5432")),
        ] {
            assert!(shop.comes_to_ask(from, &words), "{from}: {words}");
        }
        assert!(shop.pings("web1", app) && shop.pings("web1", db));
        for (from, words) in [
            // No rule, another port, another protocol, the other way round.
            ("web1", format!("tcp {db} 5432")),
            ("web1", format!("tcp {app} 22")),
            ("app1", format!("udp {db} 5432")),
            ("app1", format!("tcp {web} 8080")),
            ("db1", format!("tcp {app} 8080")),
        ] {
            let before = shop.drops(from, "egress-rule");
            assert!(!shop.asks(from, &words), "{from}: {words}");
            assert!(shop.drops(from, "egress-rule") > before, "{from}: {words}");
        }
        assert!(!shop.pings("app1", web));

        // Stateless: it arrives, and its answer has no rule.
        let before = shop.drops("db1", "egress-rule");
        assert!(!shop.asks("web1", &format!("udp {db} 7000")));
        let came = std::fs::read_to_string(&heard).unwrap();
        assert!(came.contains(&format!("udp 7000 {web} ")), "{came}");
        assert_eq!(shop.drops("db1", "egress-rule"), before + 1);
    }
}

#[test]
fn a_broadcast_is_heard_by_whom_a_rule_lets_hear_it() {
    let shop = shop();
    assert!(shop.instance.until(Duration::from_secs(5), |_| {
        shop.pings("web1", "10.1.2.10") && shop.pings("web1", "10.1.2.20")
    }));
    // To a group is to no endpoint: db1's own switch port says that it does not listen.
    let muted = "        - {name: muted, action: deny, to: {endpoint: db1}, protocol: udp, ports: [9997]}\n        - {name: found,";
    let edited = SPEC
        .replace("        - {name: found,", muted)
        .replace("[9999]", "[9999, 9997]");
    shop.instance.apply(&shop.hosts.other(&edited)).unwrap();
    for (from, to, port, should, caught) in [
        ("app1", "db1", 9999, true, None),
        ("app1", "db1", 9998, false, Some(("app1", "egress-rule"))),
        // A copy that is not made is no drop.
        ("app1", "db1", 9997, false, None),
        ("db1", "app1", 9999, false, Some(("db1", "egress-rule"))),
    ] {
        let (mut ear, heard) = shop.talk.start(&shop.hosts.at(to), &format!("hear {port}"));
        let words = format!("shout {port} 10.1.2.255");
        let dropped = || caught.map(|(at, reason)| shop.drops(at, reason));
        let before = dropped();
        assert!(shop.talk.say(&shop.hosts.at(from), &words).ok());
        let _ = ear.0.wait();
        let heard = std::fs::read_to_string(heard).unwrap();
        assert_eq!(heard.contains("shouted"), should, "{from} {to} {port}");
        assert!(caught.is_none() || dropped() > before, "{from} {to} {port}");
    }
}

/// A stream that is heard just now.
fn is_live(instance: &Instance, heard: &Path) -> bool {
    let fresh = |_: &Instance| monotonic_ns().saturating_sub(last_heard(heard)) < 50_000_000;
    instance.until(Duration::from_secs(5), fresh)
}

#[test]
fn an_edit_that_denies_cuts_a_live_connection_at_once() {
    let shop = shop();
    let _app = shop.talk.start(&shop.hosts.at("app1"), "serve tcp=8080");
    assert!(shop.comes_to_ask("web1", "tcp 10.1.2.10 8080"));
    for to in APP {
        shop.instance.apply(&shop.hosts.spec).unwrap();
        let words = format!("stream {to} 8080");
        let (_stream, heard) = shop.talk.start(&shop.hosts.at("web1"), &words);
        assert!(is_live(&shop.instance, &heard), "{to}");
        // An edit about something else leaves it alone.
        let other = SPEC.replace("[5432]", "[5432, 5433]");
        shop.instance.apply(&shop.hosts.other(&other)).unwrap();
        assert!(is_live(&shop.instance, &heard), "{to}");

        let denied = SPEC.replace("ports: [8000-8099]", "ports: [8000]");
        let begun = monotonic_ns();
        shop.instance.apply(&shop.hosts.other(&denied)).unwrap();
        let applied = monotonic_ns();
        std::thread::sleep(Duration::from_millis(700));
        let last = last_heard(&heard);
        let (took, after) = (last.saturating_sub(begun), last.saturating_sub(applied));
        let (took, after) = (took / 1_000_000, after / 1_000_000);
        println!("{to}: the last byte {took} ms after the apply began, {after} after it returned");
        assert!(after <= 400, "{to}: {after} ms");
    }
}

#[test]
fn a_restart_keeps_connections_and_opens_nothing() {
    let shop = shop();
    let ports = "serve tcp=8080 tcp=5432 udp=5432 udp=53";
    let _app = shop.talk.start(&shop.hosts.at("app1"), ports);
    let (_db, at_db) = shop.talk.start(&shop.hosts.at("db1"), ports);
    assert!(shop.comes_to_ask("web1", "udp 10.1.2.10 53"));
    let streams = APP.map(|to| {
        let words = format!("stream {to} 8080");
        shop.talk.start(&shop.hosts.at("web1"), &words)
    });
    for (_, heard) in &streams {
        assert!(is_live(&shop.instance, heard));
    }
    // What is denied is tried all the while.
    let flood = "exec python3 -c \"
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while True: s.sendto(b'x',('10.1.2.20',5432)); time.sleep(0.001)\"";
    let flood = shop.hosts.at("web1").command(flood).spawn().unwrap();
    let _flood = e2e::Ended(flood);
    let denied = |shop: &Shop| shop.drops("web1", "egress-rule");
    let instance = &shop.instance;
    assert!(instance.until(Duration::from_secs(5), |_| denied(&shop) > 100));

    let sent = "1000000000";
    let upload = format!("bulk 10.1.2.10 8080 {sent}");
    let (mut upload, uploaded) = shop.talk.start(&shop.hosts.at("web1"), &upload);
    for round in 0..4 {
        if round == 2 {
            // What a supervisor before it started, its successor knows as well.
            let log = || instance.log().matches("the supervisor died").count();
            let before = log();
            instance.kill_program("bulkhead-supervisor");
            let back = |i: &Instance| log() > before && i.ask(&["status"]).is_ok();
            assert!(instance.until(Duration::from_secs(10), back));
        }
        let pid = instance.kill("shop");
        let back = |i: &Instance| i.pid("shop").is_ok_and(|now| now != pid);
        assert!(instance.until(Duration::from_secs(5), back));
        let before = denied(&shop);
        assert!(instance.until(Duration::from_secs(5), |_| denied(&shop) > before + 100));
        for (_, heard) in &streams {
            assert!(is_live(instance, heard), "round {round}");
        }
        let (restored, _) = kept(instance);
        assert!(restored >= 3, "round {round}: {restored}");
    }
    assert!(upload.0.wait().unwrap().success());
    let said = std::fs::read_to_string(&uploaded).unwrap();
    assert_eq!(said, format!("go\n{sent}\n"));
    let why = instance.say(&["why", "shop/web1"]).unwrap();
    assert!(why.out.contains("connections went on"), "{}", why.out);
    let came = std::fs::read_to_string(&at_db).unwrap();
    assert!(!came.contains("udp 5432"), "{came}");
    assert!(shop.comes_to_ask("web1", "tcp 10.1.2.10 8080"));
    assert!(!shop.asks("web1", "tcp 10.1.2.20 5432"));

    // The rules of now, not of then: what they deny is over, though its switch died first.
    let denied = SPEC.replace("ports: [8000-8099]", "ports: [8000]");
    instance.kill("shop");
    instance.apply(&shop.hosts.other(&denied)).unwrap();
    for (_, heard) in &streams {
        // What came before may be printed after.
        assert!(instance.until(Duration::from_secs(5), |_| !is_live_now(heard)));
    }
    instance.kill("shop");
    for (_, heard) in &streams {
        assert!(!is_live_now(heard));
    }
}

/// Connections that the newest switch says it goes on with, and those that it does not.
fn kept(instance: &Instance) -> (u64, u64) {
    let status = instance.ask(&["status"]).unwrap();
    let shop = &status["compartments"][0];
    let number = |key: &str| shop[key].as_u64().unwrap();
    (number("restored"), number("not_restored"))
}

fn is_live_now(heard: &Path) -> bool {
    let before = last_heard(heard);
    std::thread::sleep(Duration::from_millis(700));
    last_heard(heard) > before
}

#[test]
fn explain_names_the_rule_its_line_and_its_switch_and_agrees_with_what_happens() {
    let shop = shop();
    let _app = shop
        .talk
        .start(&shop.hosts.at("app1"), "serve tcp=8080 tcp=22");
    assert!(shop.comes_to_ask("web1", "tcp 10.1.2.10 8080"));
    let explain = |words: &str, code: i32| -> Value {
        let words: Vec<&str> = ["--json", "explain"]
            .into_iter()
            .chain(words.split_whitespace())
            .collect();
        let said = shop.instance.say(&words).unwrap();
        assert_eq!(said.code, code, "{words:?}: {said:?}");
        serde_json::from_str(&said.out).unwrap()
    };
    let line = |what: &str| {
        let at = shop.hosts.spec.lines().position(|l| l.contains(what));
        at.unwrap() as u64 + 1
    };

    let answer = explain("shop/web1 shop/app1 tcp 8080", 0);
    let there = answer["there"].as_array().unwrap();
    assert_eq!((there.len(), &answer["allowed"]), (2, &Value::Bool(true)));
    for way in there {
        assert_eq!(way["answers"], Value::Bool(true));
        let sides = way["verdicts"].as_array().unwrap();
        for (verdict, (endpoint, side)) in sides
            .iter()
            .zip([("shop/web1", "egress"), ("shop/app1", "ingress")])
        {
            assert_eq!(verdict["compartment"], "shop");
            assert_eq!(
                (&verdict["endpoint"], &verdict["side"]),
                (&endpoint.into(), &side.into())
            );
            assert_eq!(
                (&verdict["by"], &verdict["name"]),
                (&"rule".into(), &"web-to-app".into())
            );
            assert_eq!(verdict["where"]["line"], line("web-to-app"));
            let file = verdict["where"]["file"].as_str().unwrap();
            assert!(file.ends_with("spec.yaml"), "{file}");
        }
    }
    // What begins at the other end is not what answers.
    for way in answer["back"].as_array().unwrap() {
        assert_eq!(way["allowed"], Value::Bool(false));
        assert_eq!(way["verdicts"][0]["by"], "default");
        assert_eq!(way["verdicts"][0]["name"], "inside");
        assert_eq!(way["verdicts"][0]["where"]["line"], line("default:"));
    }
    let tell = explain("shop/web1 10.1.2.20 udp 7000", 0);
    assert_eq!(tell["there"][0]["answers"], Value::Bool(false));
    explain("shop/web1 shop/db1", 0);
    explain("shop/app1 shop/web1", 6);
    explain("outside shop/web1 tcp 443", 6);
    // Its rules would let it, but there is no uplink.
    let none = explain("shop/web1 outside tcp 443", 6);
    assert_eq!(none["there"].as_array().map(Vec::len), Some(0));
    assert_eq!(
        explain("shop/web1 shop/app1 tcp 22", 6)["allowed"],
        Value::Bool(false)
    );
    assert!(!shop.asks("web1", "tcp 10.1.2.10 22"));
    for (words, code) in [
        ("shop/web1 shop/nobody tcp 22", 1),
        ("shop/web1 shop/app1 tcp", 2),
        ("shop/web1 nonsense tcp 22", 2),
        ("10.1.1.10 10.1.2.10 tcp 22", 2),
    ] {
        explain(words, code);
    }

    let said = shop
        .instance
        .say(&["explain", "shop/web1", "shop/app1", "tcp", "8080"])
        .unwrap();
    let expected = format!("spec.yaml:{}:", line("web-to-app"));
    for part in ["allowed", "rule web-to-app", "default inside", &expected] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
}
