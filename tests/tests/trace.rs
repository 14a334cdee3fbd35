//! `bulkhead trace`: packets sent for real through the whole stack, told step by step.

use e2e::outside::Outside;
use e2e::talk::{Hosts, Talk};
use e2e::{Ended, Instance, Said};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const SPEC: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - {name: data, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
    endpoints:
      - {name: db1, subnet: data, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}
    policy:
      rules:
        - {name: seen, action: allow, from: {agreement: db}, to: {endpoint: db1}, protocol: udp, ports: [5140]}
    offers:
      - {name: db, endpoint: db1, protocol: udp, ports: [5140], to: [blue], pool: [10.1.250.0/28, "fd00:1:250::/64"]}
  - name: blue
    subnets:
      - {name: apps, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
      - {name: webs, prefixes: [10.1.2.0/24, "fd00:1:1:2::/64"]}
    endpoints:
      - {name: app1, subnet: apps, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-app1", interface: eth0, make: true}}}
      - {name: web1, subnet: webs, addresses: [10.1.2.10, "fd00:1:1:2::10"], attach: {tap: {namespace: "{ns}-web1", interface: eth0, make: true}}}
    policy:
      default: {inside: deny}
      rules:
        - {name: web, action: allow, to: {endpoint: web1}, protocol: tcp, ports: [80]}
        - {name: names, action: allow, to: {endpoint: web1}, protocol: udp, ports: [53]}
        - {name: no-ssh, action: deny, to: {endpoint: web1}, protocol: tcp, ports: [22]}
    accepts:
      - {name: reds-db, from: red, service: db, as: [10.1.200.10, "fd00:1:200::10"]}
"#;

struct Two {
    instance: Instance,
    talk: Talk,
    hosts: Hosts,
}

fn two() -> Two {
    let hosts = Hosts::of(SPEC);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    Two {
        instance,
        talk,
        hosts,
    }
}

impl Two {
    fn trace(&self, words: &str) -> (i32, Value) {
        let said = self.say(&format!("--json trace {words}"));
        let told = serde_json::from_str(&said.out);
        (
            said.code,
            told.unwrap_or_else(|_| panic!("{words}: {said:?}")),
        )
    }

    fn say(&self, words: &str) -> Said {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.instance.say(&words).unwrap()
    }

    /// How many connections there are.
    fn connections(&self) -> usize {
        let flows = self.instance.ask(&["flows"]).unwrap();
        assert_eq!(flows["silent"], Value::Array(vec![]), "{flows}");
        flows["flows"].as_array().unwrap().len()
    }
}

/// The line of the spec with this on it, from 1.
fn line_of(what: &str) -> u64 {
    let at = SPEC.lines().position(|line| line.contains(what));
    at.unwrap() as u64 + 1
}

/// The steps of a way as (switch, step, name of the rule, its line).
fn steps(way: &Value) -> Vec<(String, String, String, u64)> {
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let all = way["steps"].as_array().unwrap().iter();
    all.map(|step| {
        let line = step["where"]["line"].as_u64().unwrap_or(0);
        (
            text(step, "at"),
            text(step, "step"),
            text(step, "name"),
            line,
        )
    })
    .collect()
}

fn rules(way: &Value) -> Vec<(String, String, u64)> {
    let all = steps(way).into_iter();
    all.filter(|(_, step, ..)| step == "rule")
        .map(|(at, _, name, line)| (at, name, line))
        .collect()
}

fn lines(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("udp")).count()
}

#[test]
fn what_passes_and_what_a_rule_denies_is_told_with_its_line() {
    let two = two();
    let (code, told) = two.trace("blue/app1 blue/web1 tcp 80");
    assert_eq!((code, &told["passed"]), (0, &true.into()), "{told}");
    let traces = told["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2, "both families: {told}");
    for traced in traces {
        let (packet, answer) = (&traced["packet"], &traced["answer"]);
        for (way, from, to) in [
            (packet, "blue/app1", "blue/web1"),
            (answer, "blue/web1", "blue/app1"),
        ] {
            assert_eq!(way["outcome"], "held", "{told}");
            assert_eq!((&way["from"], &way["to"]), (&from.into(), &to.into()));
        }
        let web = ("blue".to_owned(), "web".to_owned(), line_of("name: web,"));
        assert_eq!(rules(packet), [web.clone(), web], "{told}");
        // The answer passes by the connection.
        assert_eq!(rules(answer), [], "{told}");
        let by = answer["steps"].as_array().unwrap().iter();
        let by: Vec<_> = by.filter(|step| step["step"] == "connection").collect();
        assert!(by[0]["says"].as_str().unwrap().contains("this trace began"));
    }
    assert_eq!(two.connections(), 0, "it leaves none");

    let (code, told) = two.trace("blue/app1 blue/web1 tcp 22");
    assert_eq!((code, &told["passed"]), (6, &false.into()), "{told}");
    for traced in told["traces"].as_array().unwrap() {
        let packet = &traced["packet"];
        assert_eq!(packet["outcome"], "dropped");
        assert_eq!(packet["reason"], "egress-rule", "{told}");
        let denied = &rules(packet)[0];
        let line = line_of("name: no-ssh");
        assert_eq!((denied.1.as_str(), denied.2), ("no-ssh", line), "{told}");
        assert_eq!(traced["answer"], Value::Null);
    }
    let said = two.say("trace blue/app1 blue/web1 tcp 22");
    let place = format!("spec.yaml:{}:", line_of("name: no-ssh"));
    assert!(said.out.contains("DROPPED: egress-rule"), "{}", said.out);
    assert!(said.out.contains(&place), "{}", said.out);

    // A default has its line too; the gateway answers for itself.
    let (code, told) = two.trace("blue/app1 blue/web1 udp 9");
    assert_eq!(code, 6);
    let first = &rules(&told["traces"][0]["packet"])[0];
    assert_eq!(
        (first.1.as_str(), first.2),
        ("inside", line_of("inside: deny"))
    );
    let (code, told) = two.trace("blue/app1 10.1.1.1");
    assert_eq!(
        (code, &told["traces"][0]["packet"]["outcome"]),
        (0, &"answered".into())
    );
    // A frame of one's own, which the guard refuses: another's MAC.
    let frame = format!("ffffffffffff0200000000ff0800{}", "45".repeat(30));
    let said = two.say(&format!("--json trace blue/app1 --packet {frame}"));
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(told["traces"][0]["packet"]["outcome"], "dropped", "{told}");
    // Who asks wrongly is told how.
    for words in ["blue/nobody blue/web1 tcp 1", "blue/app1 red/db1 tcp"] {
        let said = two.say(&format!("trace {words}"));
        assert!([1, 2].contains(&said.code), "{words}: {said:?}");
        assert!(said.err.contains("help:"), "{words}: {said:?}");
    }
}

#[test]
fn across_an_agreement_both_switches_and_the_fabric_tell_both_ways() {
    let two = two();
    for to in ["red/db1", "blue/reds-db", "10.1.200.10", "fd00:1:200::10"] {
        let (code, told) = two.trace(&format!("blue/app1 {to} udp 5140"));
        assert_eq!(code, 0, "{to}: {told}");
        for traced in told["traces"].as_array().unwrap() {
            let (packet, answer) = (&traced["packet"], &traced["answer"]);
            assert_eq!(
                (&packet["to"], &answer["to"]),
                (&"red/db1".into(), &"blue/app1".into())
            );
            let who = |way: &Value| {
                let mut all: Vec<String> = steps(way).into_iter().map(|step| step.0).collect();
                all.dedup();
                all
            };
            assert_eq!(who(packet), ["blue", "fabric", "red"], "{told}");
            assert_eq!(who(answer), ["red", "fabric", "blue"], "{told}");
            let said: Vec<_> = rules(packet).into_iter().map(|rule| rule.1).collect();
            assert_eq!(said, ["reds-db", "seen"], "{told}");
            // Red sees its own pool, blue the address that it accepted.
            let leaves = |way: &Value| {
                let mut all = way["steps"].as_array().unwrap().iter();
                let step = all.find(|step| step["step"] == "translation");
                step.unwrap()["says"].as_str().unwrap().to_owned()
            };
            assert!(leaves(packet).contains("1:250") || leaves(packet).contains("10.1.250."));
            assert!(leaves(answer).contains("1:200") || leaves(answer).contains("10.1.200.10"));
        }
    }
    // A port that is not the service's does not leave blue.
    let (code, told) = two.trace("blue/app1 10.1.200.10 udp 53");
    assert_eq!(code, 6);
    assert_eq!(
        told["traces"][0]["packet"]["reason"], "service-port",
        "{told}"
    );
    assert_eq!(two.connections(), 0);
    // Nothing was counted anywhere: it was no traffic. The sweep has come by, too.
    std::thread::sleep(Duration::from_secs(1));
    let status = two.instance.ask(&["status"]).unwrap();
    assert_eq!(status["health"], "ok");
    for tenant in ["red", "blue"] {
        let told = two.instance.ask(&["rules", tenant]).unwrap();
        for rule in told["rules"].as_array().unwrap() {
            let count = |what: &str| rule[what].as_u64().unwrap();
            // Namespaces of their own accord say what is denied.
            let counted = ["connections", "packets", "bytes"].map(count);
            assert_eq!(counted, [0; 3], "{tenant}: {rule}");
        }
    }
}

#[test]
fn held_back_the_workload_sees_nothing_and_delivered_it_does() {
    let two = two();
    let (_db, at_db) = two.talk.start(&two.hosts.at("db1"), "serve udp=5140");
    let (_web, at_web) = two.talk.start(&two.hosts.at("web1"), "serve udp=53");
    let settled = |from: &str, words: &str| {
        let tries = Duration::from_secs(5);
        two.instance.until(tries, |_| {
            two.talk.ask(&two.hosts.at(from), words).is_some()
        })
    };
    assert!(settled("app1", "udp 10.1.2.10 53") && settled("app1", "udp 10.1.200.10 5140"));
    for (words, heard) in [
        ("blue/app1 10.1.2.10 udp 53", &at_web),
        ("blue/app1 10.1.200.10 udp 5140", &at_db),
    ] {
        let (before, connections) = (lines(heard), two.connections());
        let (code, told) = two.trace(words);
        assert_eq!(
            (code, &told["traces"][0]["packet"]["outcome"]),
            (0, &"held".into())
        );
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(lines(heard), before, "{words}: the workload heard of it");
        let (code, told) = two.trace(&format!("{words} --deliver --answer no"));
        assert_eq!(code, 0, "{told}");
        assert_eq!(told["traces"][0]["packet"]["outcome"], "delivered");
        assert_eq!(told["traces"][0]["answer"], Value::Null);
        let came = |_: &Instance| lines(heard) == before + 1;
        assert!(two.instance.until(Duration::from_secs(3), came), "{words}");
        assert_eq!(two.connections(), connections, "{words}");
    }
}

#[test]
fn live_drops_are_told_with_the_rule_that_denied_them() {
    let two = two();
    let path: PathBuf = two.instance.folder().join("live");
    let file = std::fs::File::create(&path).unwrap();
    let mut command = two
        .instance
        .command(&["--json", "trace", "--live", "--drops"]);
    let child = command.stdout(file).stderr(Stdio::inherit()).spawn();
    let _live = Ended(child.unwrap());
    let line = line_of("name: no-ssh");
    let seen = |_: &Instance| {
        let _ = two.talk.ask(&two.hosts.at("app1"), "tcp 10.1.2.10 22");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let told = text
            .lines()
            .filter_map(|l| serde_json::from_str::<Value>(l).ok());
        told.into_iter().any(|one| {
            assert_eq!(one["verdict"], "dropped", "{one}");
            if one["reason"] == "egress-rule" && one["endpoint"] != "fabric" {
                assert!(one["rule"]["place"]["line"].is_u64(), "{one}");
            }
            one["endpoint"] == "blue/app1"
                && one["reason"] == "egress-rule"
                && one["rule"]["name"] == "blue/no-ssh"
                && one["rule"]["place"]["line"] == line
                && one["packet"].as_str().unwrap().ends_with("> 10.1.2.10:22")
        })
    };
    assert!(
        two.instance.until(Duration::from_secs(10), seen),
        "{}",
        std::fs::read_to_string(&path).unwrap()
    );
}

const OUTSIDE: &str = r#"version: 1
uplinks:
  - {name: wan, interface: up0, namespace: {wire}}
tenants:
  - name: green
    subnets:
      - {name: lan, prefixes: [10.9.0.0/24]}
    endpoints:
      - {name: web1, subnet: lan, addresses: [10.9.0.10], attach: {tap: {namespace: "{ns}-web1", interface: eth0, make: true}}}
    outside:
      - {uplink: wan, address: [192.0.2.10/24], gateway: [192.0.2.1], mac: "02:00:00:00:09:10", routes: [0.0.0.0/0], nat: on}
"#;

#[test]
fn outside_by_translation_and_home_again() {
    let outside = Outside::make().unwrap();
    let hosts = Hosts::of(&OUTSIDE.replace("{wire}", &outside.wire.name));
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let mut last = Value::Null;
    let passes = instance.until(Duration::from_secs(10), |instance| {
        let said = instance.say(&["--json", "trace", "green/web1", "198.51.100.2", "udp", "53"]);
        let said = said.unwrap();
        last = serde_json::from_str(&said.out).unwrap_or(Value::Null);
        said.code == 0
    });
    assert!(passes, "{last}");
    let traced = &last["traces"][0];
    assert_eq!(traced["packet"]["to"], "uplink wan", "{last}");
    assert_eq!(traced["answer"]["from"], "uplink wan", "{last}");
    assert_eq!(traced["answer"]["to"], "green/web1", "{last}");
    let text = traced.to_string();
    assert!(text.contains("leaves as udp 192.0.2.10:"), "{text}");
}
