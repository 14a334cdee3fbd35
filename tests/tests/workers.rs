//! A tenant whose switch has two workers: all that holds of one with a single worker holds
//! of it too, whichever worker an endpoint is at home at.

use e2e::talk::Hosts;
use e2e::{Ended, Instance, Said, Stage};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Four endpoints, two of each kind, with connections; a and c are not to speak with d by
/// the ports from 9000 on. Blue uses a service of red's.
const SPEC: &str = r#"version: 1
tenants:
  - name: red
    workers: {workers}
    subnets:
      - {name: lan, prefixes: [10.1.1.0/24, "fd00:1::/64"]}
      - {name: far, prefixes: [10.1.2.0/24]}
    endpoints:
      - {name: a, subnet: lan, addresses: [10.1.1.10, "fd00:1::10"], attach: {tap: {namespace: "{ns}-a", interface: eth0, make: true}}}
      - {name: b, subnet: lan, addresses: [10.1.1.11, "fd00:1::11"], attach: {veth: {namespace: "{ns}-b", interface: eth0, make: true}}}
      - {name: c, subnet: lan, addresses: [10.1.1.12, "fd00:1::12"], attach: {tap: {namespace: "{ns}-c", interface: eth0, make: true}}}
      - {name: d, subnet: far, addresses: [10.1.2.13], attach: {veth: {namespace: "{ns}-d", interface: eth0, make: true}}}
    policy:
      rules:
        - {name: not-d, action: deny, to: {endpoint: d}, protocol: tcp, ports: [9000]}
        - {name: not-from-d, action: deny, from: {endpoint: d}, to: {endpoint: a}, protocol: tcp, ports: [9001]}
    offers:
      - {name: web, endpoint: b, protocol: tcp, ports: [80], to: [blue], pool: [10.1.250.0/28]}
      - {name: log, endpoint: c, protocol: udp, ports: [5140], to: [blue], pool: [10.1.251.0/28]}
  - name: blue
    subnets:
      - {name: apps, prefixes: [10.1.1.0/24]}
    endpoints:
      - {name: app, subnet: apps, addresses: [10.1.1.10], attach: {tap: {namespace: "{ns}-app", interface: eth0, make: true}}}
    accepts:
      - {name: reds-web, from: red, service: web, as: [10.1.200.10]}
      - {name: reds-log, from: red, service: log, as: [10.1.200.11]}
"#;
const ALL: [(&str, &str); 4] = [
    ("a", "10.1.1.10"),
    ("b", "10.1.1.11"),
    ("c", "10.1.1.12"),
    ("d", "10.1.2.13"),
];
const SERVES: &str = "serve tcp=80 tcp=9000 tcp=9001 udp=5140";

fn of(workers: u32) -> String {
    SPEC.replace("{workers}", &workers.to_string())
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    ALL.into_iter().flat_map(|(from, _)| {
        ALL.into_iter()
            .filter(move |(to, _)| *to != from)
            .map(move |(to, address)| (from, to, address))
    })
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .count()
}

/// The cores that each thread of a process may use, as the kernel lists them.
fn cores(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let list = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(list.trim().to_owned())
    };
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(list)
        .collect()
}

/// One core of each physical one that this process may use.
fn physical_cores() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mut cores = Vec::new();
    for part in list.unwrap().trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<u32>().unwrap()..=last.parse().unwrap());
    }
    let siblings = |core: &u32| {
        let topology = format!("/sys/devices/system/cpu/cpu{core}/topology");
        std::fs::read_to_string(format!("{topology}/thread_siblings_list")).unwrap_or_default()
    };
    let mut seen = std::collections::BTreeSet::new();
    cores.retain(|core| seen.insert(siblings(core)));
    cores
}

fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let spent = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap();
        let ns = text.split(' ').next().unwrap().parse().unwrap();
        Duration::from_nanos(ns)
    };
    tasks.flatten().map(spent).sum()
}

fn stage(workers: u32) -> Stage {
    Stage::of(&of(workers), &["a", "b", "c", "d"], SERVES)
}

fn all_talk(stage: &Stage) {
    for (from, to, address) in pairs() {
        let words = format!("tcp {address} 80");
        assert!(
            stage.comes_to_ask(from, &words).is_some(),
            "{from} to {to}: {}\n{}",
            stage.instance.say(&["status"]).unwrap().out,
            stage.instance.log()
        );
    }
}

fn used(stage: &Stage) -> [u64; 2] {
    let usage = stage.instance.ask(&["usage"]).unwrap();
    let rows = usage["rows"].as_array().unwrap().iter();
    let red = rows.filter(|row| row["tenant"] == "red" && row["endpoint"] != "");
    let mut sums = [0; 2];
    for row in red {
        for (sum, name) in sums.iter_mut().zip(["sent_bytes", "got_bytes"]) {
            *sum += row[name].as_u64().unwrap();
        }
    }
    sums
}

#[test]
fn every_pair_talks_whichever_workers_their_endpoints_are_at() {
    let stage = stage(2);
    assert_eq!(threads(stage.instance.pid("red").unwrap()), 3);
    assert_eq!(threads(stage.instance.pid("blue").unwrap()), 1);
    all_talk(&stage);
    for (from, to, address) in pairs() {
        let ping = format!("ping -n -c 3 -i 0.05 -W 2 {address}");
        assert!(stage.hosts.sh(from, &ping).ok(), "{from} to {to}");
        // Longer than the MTU: fragments.
        let ping = format!("ping -n -c 2 -i 0.05 -s 4000 -W 2 {address}");
        assert!(
            stage.hosts.sh(from, &ping).ok(),
            "{from} to {to}, fragments"
        );
    }
    for (from, _) in &ALL[..3] {
        for host in ["10", "11", "12"] {
            let ping = format!("ping -n -c 1 -W 2 fd00:1::{host}");
            assert!(stage.hosts.sh(from, &ping).ok(), "{from} to ::{host}");
        }
        let gateway = stage.hosts.sh(from, "ping -n -c 2 -i 0.05 -W 2 10.1.1.1");
        assert!(gateway.ok(), "{from} to its gateway");
    }

    // All flows are listed, each with packets of both directions.
    let flows = stage.instance.ask(&["flows"]).unwrap();
    let listed = flows["flows"].as_array().unwrap();
    for (from, to, _) in pairs() {
        let (from, to) = (format!("red/{from}"), format!("red/{to}"));
        for protocol in ["tcp", "icmp"] {
            let is = |flow: &&Value| {
                (&flow["from"], &flow["to"], &flow["protocol"])
                    == (&from.as_str().into(), &to.as_str().into(), &protocol.into())
            };
            let flow = listed.iter().find(is);
            let flow = flow.unwrap_or_else(|| panic!("{from} to {to} is not in {flows}"));
            let packets = |n: usize| flow["packets"][n].as_u64();
            assert!(packets(0) > Some(2) && packets(1) > Some(2), "{flow}");
        }
    }

    // What was sent is what was got: of what goes between them nothing is counted twice or
    // not at all.
    let before = used(&stage);
    let count = 4u64 << 20;
    for (from, address) in [("a", "10.1.1.11"), ("d", "10.1.1.12"), ("b", "10.1.2.13")] {
        let said = stage
            .talk
            .say(&stage.hosts.at(from), &format!("bulk {address} 80 {count}"));
        assert!(said.out.contains(&count.to_string()), "{from}: {said:?}");
    }
    let after = used(&stage);
    let [sent, got] = [after[0] - before[0], after[1] - before[1]];
    assert!(sent >= 3 * count && got >= 3 * count, "{sent} {got}");
    assert!(sent.abs_diff(got) < count / 20, "{sent} sent, {got} got");
}

#[test]
fn rules_deny_and_services_serve_as_with_one_worker() {
    let stage = stage(2);
    all_talk(&stage);
    for from in ["a", "b", "c"] {
        assert!(stage.asks(from, "tcp 10.1.2.13 9000").is_none(), "{from}");
        assert!(stage.asks(from, "tcp 10.1.2.13 80").is_some(), "{from}");
    }
    assert!(stage.asks("d", "tcp 10.1.1.10 9001").is_none());
    assert!(stage.asks("b", "tcp 10.1.1.10 9001").is_some());
    let rules = stage.instance.ask(&["rules", "red"]).unwrap();
    let denied = |name: &str| {
        let all = rules["rules"].as_array().unwrap().iter();
        let mut of = all.filter(|rule| rule["rule"]["name"] == name);
        of.next().unwrap_or_else(|| panic!("{rules}"))["denied"]
            .as_u64()
            .unwrap()
    };
    assert!(denied("red/not-d") >= 3, "{rules}");
    assert!(denied("red/not-from-d") >= 1, "{rules}");
    let user = stage.comes_to_ask("app", "tcp 10.1.200.10 80").unwrap();
    assert!(user.starts_with("10.1.250."), "{user}");
    let user = stage.comes_to_ask("app", "udp 10.1.200.11 5140").unwrap();
    assert!(user.starts_with("10.1.251."), "{user}");
    // A broadcast comes to those of the subnet, and to no other.
    let hear = |at: &str| stage.talk.start(&stage.hosts.at(at), "hear 7000");
    let mut said = [false; 3];
    for _ in 0..5 {
        let heard: Vec<_> = ["b", "c", "d"].map(hear).into();
        stage
            .talk
            .say(&stage.hosts.at("a"), "shout 7000 10.1.1.255");
        std::thread::sleep(Duration::from_millis(2_500));
        for ((_, path), said) in heard.iter().zip(&mut said) {
            *said |= std::fs::read_to_string(path).unwrap().contains("shouted");
        }
        if said == [true, true, false] {
            break;
        }
    }
    assert_eq!(said, [true, true, false]);
    // Followed frames end where real ones do, and are told of by who handles them.
    for (from, to, port, passes) in [
        ("a", "10.1.1.11", "80", true),
        ("d", "10.1.1.12", "80", true),
        ("b", "10.1.2.13", "9000", false),
        ("c", "10.1.2.13", "9000", false),
    ] {
        let said = stage
            .instance
            .say(&["trace", &format!("red/{from}"), to, "tcp", port])
            .unwrap();
        let denied = said.out.contains("not-d");
        assert_eq!(denied, !passes, "{from} to {to}: {} {}", said.out, said.err);
    }
    // A capture is whole: of each packet where it came in and where it went out, whichever
    // worker that was.
    let file = stage.instance.folder().join("c.pcapng");
    let words = [
        "capture",
        "-e",
        "red",
        "-f",
        "icmp and ip",
        "-c",
        "48",
        "-w",
    ];
    let mut words = words.map(str::to_owned).to_vec();
    words.push(file.to_str().unwrap().to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut capture = Ended(stage.instance.command(&words).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(4));
    for (from, _, address) in pairs() {
        let ping = format!("ping -n -c 1 -W 2 {address}");
        assert!(stage.hosts.sh(from, &ping).ok());
    }
    let whole = stage.instance.until(Duration::from_secs(5), |_| {
        matches!(capture.0.try_wait(), Ok(Some(_)))
    });
    assert!(whole, "not all of 12 echoes and answers, twice each");
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r", file.to_str().unwrap(), "-T", "fields"]);
    tshark.args(["-e", "ip.src", "-e", "ip.dst", "-e", "icmp.type"]);
    let said = Said::of(&mut tshark).unwrap();
    for (from, _, address) in pairs() {
        let (_, own) = ALL.iter().find(|(name, _)| *name == from).unwrap();
        for line in [
            format!("{own}\t{address}\t8"),
            format!("{address}\t{own}\t0"),
        ] {
            let seen = said.out.lines().filter(|l| **l == line).count();
            assert_eq!(seen, 2, "{line} in {}", said.out);
        }
    }
}

#[test]
fn they_sleep_when_idle_and_come_back_from_death_and_change_under_load() {
    let stage = stage(2);
    all_talk(&stage);
    // Streams that cross from worker to worker and stay with one.
    let streams: Vec<(Ended, _)> = [("a", "10.1.1.11"), ("c", "10.1.1.10"), ("d", "10.1.1.12")]
        .map(|(at, to)| stage.stream(at, to, 80))
        .into();
    assert!(streams.iter().all(|(_, heard)| stage.is_live(heard)));
    // A change of image under load: not one of them ends.
    let stricter = of(2).replace("ports: [9000]", "ports: [9000, 9002]");
    for _ in 0..3 {
        stage.apply(&stage.hosts.other(&stricter));
        assert!(streams.iter().all(|(_, heard)| stage.is_live(heard)));
        stage.apply(&stage.hosts.other(&of(2)));
    }
    // A death under load: nor then, whose connections are in the journals of both workers.
    for _ in 0..3 {
        let dead = stage.instance.kill("red");
        let back = stage.instance.until(Duration::from_secs(5), |instance| {
            instance.pid("red").is_ok_and(|pid| pid != dead)
        });
        assert!(back, "{}", stage.instance.log());
        // What came before it died is not taken for what comes after.
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            streams.iter().all(|(_, heard)| stage.is_live(heard)),
            "{}",
            stage.instance.log()
        );
    }
    stage.instance.kill_program("bulkhead-supervisor");
    assert!(streams.iter().all(|(_, heard)| stage.is_live(heard)));
    drop(streams);
    all_talk(&stage);
    // Nothing to do, and nothing done.
    let pid = stage.instance.pid("red").unwrap();
    assert_eq!(threads(pid), 3);
    std::thread::sleep(Duration::from_secs(2));
    // Who does something does so all the time.
    let shares = (0..3).map(|_| {
        let (began, before) = (Instant::now(), cpu(pid));
        std::thread::sleep(Duration::from_secs(3));
        (cpu(pid) - before).as_secs_f64() / began.elapsed().as_secs_f64()
    });
    let busy: Vec<f64> = shares.take_while(|share| *share >= 0.02).collect();
    assert!(busy.len() < 3, "{busy:?} of a core while idle");
    // One worker, and several again.
    stage.apply(&stage.hosts.other(&of(1)));
    all_talk(&stage);
    assert_eq!(threads(stage.instance.pid("red").unwrap()), 1);
    stage.apply(&stage.hosts.other(&of(4)));
    all_talk(&stage);
    assert_eq!(threads(stage.instance.pid("red").unwrap()), 5);
}

#[test]
fn addresses_are_given_out_by_whichever_worker_an_endpoint_is_at() {
    let stage = stage(2);
    for (name, address) in ALL {
        let said = stage.hosts.sh(
            name,
            "ip addr flush dev eth0 scope global; d=$(mktemp -d); \
             printf '#!/bin/sh\\n[ \"$1\" = bound ] && echo got $ip\\n' > $d/s; chmod +x $d/s; \
             busybox udhcpc -i eth0 -n -q -t 5 -T 1 -s $d/s; rm -r $d",
        );
        let got = format!("got {address}");
        assert!(said.out.contains(&got), "{name}: {} {}", said.out, said.err);
    }
}

/// Two cores for the workers, and one that is left: where there are only two, that is said.
#[test]
fn each_worker_polls_on_an_isolated_core_of_its_own() {
    let there = physical_cores();
    let [.., x, y] = *there.as_slice() else {
        panic!("one core: workers have nothing to run beside each other on")
    };
    let own = format!("workers: 2\n    cores: {{isolated: [{y}, {x}]}}\n    wait: poll\n");
    let spec = of(2).replace("workers: 2\n", &own);
    if there.len() == 2 {
        let hosts = Hosts::of(&spec);
        let refused = Instance::start().unwrap().apply(&hosts.spec).unwrap_err();
        assert!(
            refused.contains("no core is left for the fabric"),
            "{refused}"
        );
        return;
    }
    let stage = Stage::of(&spec, &["a", "b", "c", "d"], SERVES);
    // The first speaks for them, and nobody else's are among its cores.
    let wanted = [format!("{x}-{y}"), y.to_string(), x.to_string()];
    let wanted = match y - x {
        1 => wanted,
        _ => [format!("{x},{y}"), y.to_string(), x.to_string()],
    };
    let apart = |instance: &Instance, after: u32| {
        let apart = instance.until(Duration::from_secs(5), |instance| {
            let pid = instance.pid("red").ok().filter(|pid| *pid != after);
            pid.is_some_and(|pid| cores(pid) == wanted)
        });
        let pid = instance.pid("red").unwrap();
        assert!(apart, "{:?}\n{}", cores(pid), instance.log());
        for other in ["blue", "fabric"] {
            let others = cores(instance.pid(other).unwrap()).join(",");
            let mut others = others.split([',', '-']).map(|n| n.parse::<u32>().unwrap());
            assert!(others.all(|core| core != x && core != y), "{other}");
        }
        pid
    };
    let first = apart(&stage.instance, 0);
    all_talk(&stage);
    let (_stream, heard) = stage.stream("a", "10.1.1.11", 80);
    assert_eq!(stage.instance.kill("red"), first);
    let second = apart(&stage.instance, first);
    assert!(stage.is_live(&heard), "{}", stage.instance.log());
    stage.instance.kill_program("bulkhead-supervisor");
    assert!(stage.is_live(&heard), "{}", stage.instance.log());
    assert_eq!(apart(&stage.instance, 0), second);
    // They spin, and still answer what is asked of them all.
    let flows = stage.instance.ask(&["flows", "red/a"]).unwrap();
    assert!(!flows["flows"].as_array().unwrap().is_empty(), "{flows}");
    all_talk(&stage);
}
