//! Services between tenants: one offers, the other accepts, and just that works, for as
//! long as both want it.

use e2e::talk::{last_heard, monotonic_ns};
use e2e::{Ended, Instance, Said, Stage};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Like examples/agreement.yaml, and a service by UDP; red's links are narrower.
const SPEC: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - {name: data, mtu: 1400, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
    endpoints:
      - {name: db1, subnet: data, addresses: [10.1.1.10, "fd00:1:1:1::10"], attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}
      - {name: backup, subnet: data, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: {tap: {namespace: "{ns}-backup", interface: eth0, make: true}}}
    policy:
      rules:
        - {name: seen, action: allow, from: {agreement: db}, to: {endpoint: db1}, protocol: tcp, ports: [5432], log: on}
    offers:
      - {name: db, endpoint: db1, protocol: tcp, ports: [5432], to: [blue], until: 2100-01-01, pool: [10.1.250.0/28, "fd00:1:250::/64"]}
      - {name: log, endpoint: db1, protocol: udp, ports: [5140], to: [blue], pool: [10.1.251.0/28, "fd00:1:251::/64"]}
  - name: blue
    subnets:
      - {name: apps, prefixes: [10.1.1.0/24, "fd00:1:1:1::/64"]}
    endpoints:
      - {name: app1, subnet: apps, addresses: [10.1.1.10, "fd00:1:1:1::10"], labels: {role: app}, attach: {tap: {namespace: "{ns}-app1", interface: eth0, make: true}}}
      - {name: other, subnet: apps, addresses: [10.1.1.11, "fd00:1:1:1::11"], attach: {tap: {namespace: "{ns}-other", interface: eth0, make: true}}}
    accepts:
      - {name: reds-db, from: red, service: db, as: [10.1.200.10, "fd00:1:200::10"], endpoints: {label: {role: app}}}
      - {name: reds-log, from: red, service: log, as: [10.1.200.11, "fd00:1:200::11"]}
"#;
const DB: [&str; 2] = ["10.1.200.10", "fd00:1:200::10"];
const LOG: [&str; 2] = ["10.1.200.11", "fd00:1:200::11"];
const SERVES: &str = "serve tcp=5432 tcp=22 udp=5140 udp=5432";

fn two(spec: &str) -> Stage {
    Stage::of(spec, &["db1", "backup"], SERVES)
}

/// A stream from the database to blue's application.
fn stream(two: &Stage, to: &str) -> (Ended, PathBuf) {
    two.stream("app1", to, 5432)
}

fn explain(two: &Stage, words: &str) -> Said {
    let mut all = vec!["--json", "explain"];
    all.extend(words.split_whitespace());
    two.instance.say(&all).unwrap()
}

/// A spec without the lines of which one begins so.
fn without(begin: &str) -> String {
    let kept = SPEC.lines().filter(|l| !l.trim_start().starts_with(begin));
    kept.map(|line| format!("{line}\n")).collect()
}

#[test]
fn an_accepted_service_works_at_an_address_of_ones_own_and_nothing_else_does() {
    let two = two(SPEC);
    let pools = [["10.1.250.", "10.1.251."], ["fd00:1:250:", "fd00:1:251:"]];
    for (family, [of_db, of_log]) in pools.into_iter().enumerate() {
        let (db, log) = (DB[family], LOG[family]);
        // Red sees its users come from its own pool.
        let user = two.comes_to_ask("app1", &format!("tcp {db} 5432")).unwrap();
        assert!(user.starts_with(of_db), "{user}");
        let user = two
            .comes_to_ask("app1", &format!("udp {log} 5140"))
            .unwrap();
        assert!(user.starts_with(of_log), "{user}");
        assert!(
            two.comes_to_ask("other", &format!("udp {log} 5140"))
                .is_some()
        );

        // Only that endpoint, that port, that protocol; not the one beside it.
        for (from, words) in [
            ("other", format!("tcp {db} 5432")),
            ("app1", format!("tcp {db} 22")),
            ("app1", format!("udp {db} 5432")),
            ("app1", format!("tcp {log} 5432")),
            (
                "app1",
                format!("tcp {of_db}{} 5432", if family == 0 { "1" } else { ":1" }),
            ),
            // The addresses of both tenants are the same: these are blue's own.
            (
                "app1",
                format!("tcp {} 5432", ["10.1.1.11", "fd00:1:1:1::11"][family]),
            ),
            (
                "other",
                format!("tcp {} 5432", ["10.1.1.10", "fd00:1:1:1::10"][family]),
            ),
        ] {
            assert_eq!(two.asks(from, &words), None, "{from}: {words}");
        }
        let ping = format!("ping -n -c 2 -i 0.1 -W 1 {db}");
        assert!(!two.hosts.sh("app1", &ping).ok(), "{ping}");
    }
    // Who offers begins nothing: neither toward its users nor by the address they use.
    let _app = two.talk.start(&two.hosts.at("app1"), SERVES);
    assert!(two.comes_to_ask("other", "tcp 10.1.1.10 5432").is_some());
    for to in ["10.1.250.0", "10.1.250.1", DB[0], "fd00:1:250::", DB[1]] {
        assert_eq!(two.asks("db1", &format!("tcp {to} 5432")), None, "{to}");
    }
    assert!(two.instance.ask(&["verify"]).is_ok());
}

#[test]
fn neither_side_learns_an_address_of_the_other_from_what_it_may_watch() {
    // Blue's addresses are in no network of red's, and red denies one service with a log.
    let (red, blue) = SPEC.split_once("  - name: blue").unwrap();
    let blue = blue.replace("10.1.1.", "172.23.99.");
    let spy = "rules:\n        - {name: spy, action: deny, from: {agreement: log}, log: on}\n";
    let red = red.replacen("rules:\n", spy, 1);
    let two = two(&format!("{red}  - name: blue{blue}"));
    let file = two.instance.folder().join("red.pcapng");
    let words = ["capture", "--endpoint", "red", "-w", file.to_str().unwrap()];
    let mut capture = Ended(two.instance.command(&words).spawn().unwrap());
    let all = |file: &PathBuf| std::fs::read(file).unwrap_or_default();
    let has = |file: &PathBuf, address: [u8; 4]| all(file).windows(4).any(|b| b == address);
    // Denied and delivered packets, until the capture has both.
    let both = two.instance.until(Duration::from_secs(10), |_| {
        assert_eq!(two.asks("app1", &format!("udp {} 5140", LOG[0])), None);
        let user = two.comes_to_ask("app1", &format!("tcp {} 5432", DB[0]));
        assert!(user.unwrap().starts_with("10.1.250."));
        let bytes = all(&file);
        let of = |pool: [u8; 3]| bytes.windows(3).any(|b| b == pool);
        of([10, 1, 250]) && of([10, 1, 251])
    });
    assert!(both, "the capture shows neither");
    let _ = capture.0.kill();
    let _ = capture.0.wait();
    for address in [[172, 23, 99, 10], [10, 1, 200, 10], [10, 1, 200, 11]] {
        assert!(!has(&file, address), "{address:?} is in red's capture");
    }
    let why = two.instance.say(&["why", "red/db1"]).unwrap();
    assert!(
        why.out.contains("denied a packet from 10.1.251."),
        "{why:?}"
    );
    assert!(!why.out.contains("172.23.99."), "{why:?}");
}

#[test]
fn a_narrower_link_behind_a_service_is_found_out_and_much_gets_through() {
    let two = two(SPEC);
    for family in 0..2 {
        let (db, log) = (DB[family], LOG[family]);
        assert!(
            two.comes_to_ask("app1", &format!("udp {log} 5140"))
                .is_some()
        );
        let said = two
            .talk
            .say(&two.hosts.at("app1"), &format!("mtu {log} 5140"));
        assert_eq!(said.out.trim(), "1400", "{log}: {said:?}");
        assert!(
            two.comes_to_ask("app1", &format!("tcp {db} 5432"))
                .is_some()
        );
        let said = two
            .talk
            .say(&two.hosts.at("app1"), &format!("bulk {db} 5432 50000000"));
        assert_eq!(said.out, "go\n50000000\n", "{db}: {said:?}");
    }
}

#[test]
fn what_crosses_goes_on_when_either_switch_dies() {
    let two = two(SPEC);
    let streams = DB.map(|to| stream(&two, to));
    for dies in [&["red"][..], &["blue"], &["red", "blue"]] {
        let pids: Vec<(&str, u32)> = dies.iter().map(|d| (*d, two.instance.kill(d))).collect();
        for (name, pid) in pids {
            let back = |i: &Instance| i.pid(name).is_ok_and(|now| now != pid);
            assert!(two.instance.until(Duration::from_secs(5), back));
        }
        for (_, heard) in &streams {
            assert!(two.is_live(heard), "{dies:?}");
        }
    }
    assert_eq!(two.asks("app1", &format!("tcp {} 22", DB[0])), None);
    assert_eq!(two.asks("other", &format!("tcp {} 5432", DB[0])), None);
    // Revoked while a switch is dead.
    two.instance.kill("red");
    let revoked = without("- {name: db, endpoint").replace("from: {agreement: db}", "from: any");
    two.apply(&revoked);
    for (_, heard) in &streams {
        // What came before may be printed after.
        let is_silent = |_: &Instance| {
            let before = last_heard(heard);
            std::thread::sleep(Duration::from_millis(700));
            last_heard(heard) == before
        };
        assert!(two.instance.until(Duration::from_secs(5), is_silent));
    }
}

#[test]
fn either_side_ends_it_at_once() {
    let two = two(SPEC);
    for (side, revoked) in [
        ("offers", without("- {name: db, endpoint")),
        ("accepts", without("- {name: reds-db, from")),
    ] {
        // The rule about the agreement goes with it.
        let revoked = match side {
            "offers" => revoked.replace("from: {agreement: db}", "from: any"),
            _ => revoked,
        };
        for to in DB {
            two.apply(SPEC);
            let (_stream, heard) = stream(&two, to);
            let begun = monotonic_ns();
            two.apply(&revoked);
            let applied = monotonic_ns();
            std::thread::sleep(Duration::from_millis(700));
            let last = last_heard(&heard);
            let (took, after) = (last.saturating_sub(begun), last.saturating_sub(applied));
            let (took, after) = (took / 1_000_000, after / 1_000_000);
            println!(
                "{side}, {to}: the last byte {took} ms after the apply began, {after} after it returned"
            );
            assert!(after <= 400, "{side}: {after} ms");
            assert_eq!(two.asks("app1", &format!("tcp {to} 5432")), None);
            // The other service is not touched.
            assert!(two.asks("app1", &format!("udp {} 5140", LOG[0])).is_some());
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn until(seconds: u64) -> String {
    let moment = format!("@{seconds}");
    let said = Said::of(Command::new("date").args(["-u", "-d", &moment, "+%Y-%m-%dT%H:%M:%SZ"]));
    SPEC.replace("2100-01-01", said.unwrap().out.trim())
}

#[test]
fn an_agreement_ends_when_it_says_so_and_nobody_has_to_do_anything() {
    let two = two(&until(now() - 1));
    assert!(
        two.comes_to_ask("app1", &format!("udp {} 5140", LOG[0]))
            .is_some()
    );
    assert_eq!(two.asks("app1", &format!("tcp {} 5432", DB[0])), None);

    // Both streams begin before it, also where others have the processors.
    let ends = now() + 15;
    two.apply(&until(ends));
    let epoch = two.instance.ask(&["status"]).unwrap()["epoch"].clone();
    let (_stream, heard) = stream(&two, DB[0]);
    let (_stream6, heard6) = stream(&two, DB[1]);
    assert!(now() < ends, "the machine is too slow for this test");
    let over = |_: &Instance| now() >= ends;
    assert!(two.instance.until(Duration::from_secs(30), over));
    let end = monotonic_ns();
    std::thread::sleep(Duration::from_millis(1500));
    for heard in [heard, heard6] {
        let after = last_heard(&heard).saturating_sub(end) / 1_000_000;
        println!("the last byte {after} ms after the end");
        assert!(after <= 1200, "{after} ms");
    }
    assert_eq!(two.asks("app1", &format!("tcp {} 5432", DB[0])), None);
    assert!(two.asks("app1", &format!("udp {} 5140", LOG[0])).is_some());
    let status = two.instance.ask(&["status"]).unwrap();
    assert_eq!(status["epoch"].as_u64(), epoch.as_u64().map(|e| e + 1));
    assert_eq!(status["history"][0]["outcome"], "an agreement ended");
    assert_eq!(status["health"], "ok");
    assert!(two.instance.ask(&["verify"]).is_ok());
    // The same file says the same still.
    let again = two.instance.apply(&two.hosts.other(&until(ends))).unwrap();
    assert_eq!(again["plan"]["changes"], Value::Array(vec![]), "{again}");
}

#[test]
fn explain_shows_the_translation_and_who_decides_on_both_sides() {
    let two = two(SPEC);
    let said = explain(&two, "blue/app1 red/db1 tcp 5432");
    assert_eq!(said.code, 0, "{said:?}");
    let answer: Value = serde_json::from_str(&said.out).unwrap();
    for (family, there) in answer["there"].as_array().unwrap().iter().enumerate() {
        assert_eq!(there["destination"], DB[family]);
        let service = &there["service"];
        assert_eq!(
            (&service["offer"], &service["offered"]),
            (&"red/db".into(), &true.into())
        );
        let inner = ["10.1.1.10", "fd00:1:1:1::10"][family];
        assert_eq!(service["destination"], inner);
        let verdicts = there["verdicts"].as_array().unwrap();
        let said: Vec<_> = verdicts
            .iter()
            .map(|v| ["compartment", "by", "name"].map(|key| v[key].as_str().unwrap()))
            .collect();
        let expected = [["blue", "acceptance", "reds-db"], ["red", "rule", "seen"]];
        assert_eq!(said, expected);
    }
    assert_eq!(answer["back"], Value::Array(vec![]));
    for (words, code) in [
        ("blue/app1 10.1.200.10 tcp 5432", 0),
        ("blue/app1 10.1.200.10 tcp 22", 6),
        ("blue/other 10.1.200.10 tcp 5432", 6),
        ("red/db1 blue/app1 tcp 5432", 6),
        ("blue/app1 10.1.200.10", 6),
    ] {
        assert_eq!(explain(&two, words).code, code, "{words}");
    }
    let shown = two
        .instance
        .say(&["explain", "blue/app1", "red/db1", "tcp", "5432"])
        .unwrap();
    assert!(shown.out.contains("the service red/db"), "{}", shown.out);
    two.apply(&without("- {name: reds-db, from"));
    assert_eq!(explain(&two, "blue/app1 red/db1 tcp 5432").code, 6);
}

#[test]
fn a_controller_that_hangs_is_replaced_and_the_agreement_ends_all_the_same() {
    let ends = now() + 6;
    let two = two(&until(ends));
    let (stream, _heard) = stream(&two, DB[0]);
    assert!(now() < ends, "the machine is too slow for this test");
    let controller = |i: &Instance| i.child("bulkhead-controller");
    let pid = controller(&two.instance).unwrap();
    let stop = Said::of(Command::new("kill").args(["-STOP", &pid.to_string()])).unwrap();
    assert!(stop.ok(), "{stop:?}");
    let replaced = two.instance.until(Duration::from_secs(60), |i| {
        controller(i).is_some_and(|now| now != pid)
    });
    assert!(
        replaced,
        "a controller that is stopped goes on being the controller"
    );
    // The successor finds at its start that it is over.
    let db = format!("tcp {} 5432", DB[0]);
    let over = two.instance.until(Duration::from_secs(30), |_| {
        now() >= ends && two.asks("app1", &db).is_none()
    });
    assert!(over, "{:?}", two.instance.ask(&["status"]));
    assert!(
        two.comes_to_ask("app1", &format!("udp {} 5140", LOG[0]))
            .is_some()
    );
    assert!(two.instance.ask(&["verify"]).is_ok());
    drop(stream);
}
