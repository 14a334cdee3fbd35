//! Rates and classes between real network stacks, as status and `why` show them.

use e2e::talk::{Hosts, Talk};
use e2e::{Instance, Stage};
use std::time::{Duration, Instant};

/// One may send 16 Mbit/s, the other may be sent as much.
const SPEC: &str = r#"version: 1
classes:
  - {name: voice, dscp: [ef], strict: 2Mbit}
tenants:
  - name: red
    rate: {from: 1Gbit, to: 1Gbit}
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints:
      - {name: slow, subnet: lan, addresses: [10.1.1.10], rate: {bits: 16Mbit, burst: 100KiB}, attach: {tap: {namespace: "{ns}-slow", interface: eth0, make: true}}}
      - {name: narrow, subnet: lan, addresses: [10.1.1.11], rate: {to: {bits: 16Mbit, burst: 100KiB}}, weight: 3, attach: {tap: {namespace: "{ns}-narrow", interface: eth0, make: true}}}
      - {name: free, subnet: lan, addresses: [10.1.1.12], attach: {tap: {namespace: "{ns}-free", interface: eth0, make: true}}}
"#;
/// Bytes of a transfer, and what passes at once.
const BYTES: u64 = 4_000_000;
const BURST: u64 = 100 << 10;
/// 16 Mbit/s.
const A_SECOND: f64 = 2e6;

#[test]
fn what_is_limited_takes_its_time_and_the_rest_does_not() {
    let hosts = Hosts::of(SPEC);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    let _free = talk.start(&hosts.at("free"), "serve tcp=5001");
    let _narrow = talk.start(&hosts.at("narrow"), "serve tcp=5001");
    let bulk = |from: &str, to: &str| {
        let begun = Instant::now();
        let words = format!("bulk {to} 5001 {BYTES}");
        let said = talk.say(&hosts.at(from), &words);
        assert_eq!(said.out, format!("go\n{BYTES}\n"), "{from}: {said:?}");
        begun.elapsed()
    };
    assert!(instance.until(Duration::from_secs(5), |_| {
        talk.ask(&hosts.at("slow"), "tcp 10.1.1.12 5001").is_some()
    }));
    // Not before its bytes can have passed; a bucket may owe a large frame.
    let least = Duration::from_secs_f64((BYTES - BURST - 70_000) as f64 / A_SECOND);
    for (from, to) in [("slow", "10.1.1.12"), ("free", "10.1.1.11")] {
        let took = bulk(from, to);
        assert!(took >= least, "{from}: {took:?} of {least:?}");
    }
    // Toward who may send little nothing is limited.
    let _slow = talk.start(&hosts.at("slow"), "serve tcp=5001");
    let took = bulk("free", "10.1.1.10");
    assert!(took < least, "{took:?}");

    let slow = instance.endpoint("red", "slow").unwrap();
    assert_eq!(slow["from"]["bits"], 16_000_000);
    assert!(slow["counters"]["paused"].as_u64() > Some(0), "{slow}");
    assert_eq!(instance.drops("red", "slow", "ingress-rate").unwrap(), 0);
    let narrow = instance.endpoint("red", "narrow").unwrap();
    assert_eq!(narrow["to"]["bits"], 16_000_000);
    assert_eq!(
        (&narrow["weight"], &narrow["counters"]["waiting_bytes"]),
        (&3.into(), &0.into())
    );
    let why = instance.say(&["why", "red/narrow"]).unwrap();
    assert!(why.out.contains("at most 16.0 Mbit/s to it"), "{why:?}");

    // Images with rates are proved like any.
    let proof = instance.say(&["verify"]).unwrap();
    assert!(proof.ok(), "{proof:?}");
}

#[test]
fn a_change_of_rates_leaves_connections_alone() {
    let hosts = Hosts::of(SPEC);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    let _narrow = talk.start(&hosts.at("narrow"), "serve tcp=5001");
    assert!(instance.until(Duration::from_secs(5), |_| {
        talk.ask(&hosts.at("free"), "tcp 10.1.1.11 5001").is_some()
    }));
    let words = format!("bulk 10.1.1.11 5001 {}", 10 * BYTES);
    let free = hosts.at("free");
    // At 16 Mbit/s it would take longer than its patience.
    let said = std::thread::scope(|scope| {
        let sender = scope.spawn(|| talk.say(&free, &words));
        let waits = |instance: &Instance| {
            let narrow = instance.endpoint("red", "narrow").unwrap();
            narrow["counters"]["waiting_bytes"].as_u64() > Some(0)
        };
        assert!(instance.until(Duration::from_secs(5), waits));
        instance
            .apply(
                &hosts
                    .other(SPEC)
                    .replace("to: {bits: 16Mbit", "to: {bits: 800Mbit"),
            )
            .unwrap();
        sender.join().unwrap()
    });
    assert_eq!(said.out, format!("go\n{}\n", 10 * BYTES), "{said:?}");
}

/// A tenant with two workers, whose endpoints may all together send 16 Mbit/s.
const SEVERAL: &str = r#"version: 1
tenants:
  - name: red
    workers: 2
    rate: {from: {bits: 16Mbit, burst: 100KiB}}
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints:
      - {name: a, subnet: lan, addresses: [10.1.1.10], attach: {tap: {namespace: "{ns}-a", interface: eth0, make: true}}}
      - {name: b, subnet: lan, addresses: [10.1.1.11], attach: {veth: {namespace: "{ns}-b", interface: eth0, make: true}}}
      - {name: c, subnet: lan, addresses: [10.1.1.12], attach: {tap: {namespace: "{ns}-c", interface: eth0, make: true}}}
      - {name: d, subnet: lan, addresses: [10.1.1.13], attach: {veth: {namespace: "{ns}-d", interface: eth0, make: true}}}
"#;

#[test]
fn a_tenants_rate_is_one_for_several_workers() {
    for way in ["from", "to"] {
        let stage = Stage::of(
            &SEVERAL.replace("from", way),
            &["a", "b", "c", "d"],
            "serve tcp=5001",
        );
        let slots = ["a", "b"].map(|name| stage.instance.endpoint("red", name).unwrap());
        let [a, b] = slots.map(|endpoint| endpoint["slot"].as_u64().unwrap());
        assert_ne!(a % 2, b % 2, "they are to be at different workers");
        let bulk = |from: &str, to: &str, bytes: u64| {
            let words = format!("bulk {to} 5001 {bytes}");
            let said = stage.talk.say(&stage.hosts.at(from), &words);
            assert_eq!(said.out, format!("go\n{bytes}\n"), "{from}: {said:?}");
        };
        for (from, to) in [("a", "10.1.1.12"), ("b", "10.1.1.13")] {
            assert!(
                stage
                    .comes_to_ask(from, &format!("tcp {to} 5001"))
                    .is_some()
            );
        }
        // A worker may owe a large frame.
        let least = Duration::from_secs_f64((BYTES - BURST - 2 * 70_000) as f64 / A_SECOND);
        // Both workers' at once, then one's alone, which has all of it and not a half.
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| bulk("a", "10.1.1.12", BYTES / 2));
            scope.spawn(|| bulk("b", "10.1.1.13", BYTES / 2));
        });
        let took = begun.elapsed();
        assert!(took >= least, "{way}: {took:?} of {least:?}");
        for (from, to) in [("a", "10.1.1.12"), ("b", "10.1.1.13")] {
            // Who has a half of it takes twice as long each time; on a busy machine one does so once.
            let mut all = Vec::new();
            let has_all = (0..3).any(|_| {
                let begun = Instant::now();
                bulk(from, to, BYTES);
                let took = begun.elapsed();
                assert!(took >= least, "{way}, {from}: {took:?} of {least:?}");
                all.push(took);
                took < least * 9 / 5
            });
            assert!(has_all, "{way}, {from}: {all:?} of {least:?}");
        }
        let drops = |name: &str| stage.instance.drops("red", name, "ingress-rate").unwrap();
        assert_eq!(["a", "b", "c", "d"].map(drops), [0; 4]);
    }
}

/// Two use a service that may be sent 8 Mbit/s.
const SHARED: &str = r#"version: 1
classes:
  - {name: business, dscp: [af21], weight: 16}
tenants:
  - name: red
    subnets: [{name: data, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: db1, subnet: data, addresses: [10.1.1.10], rate: {to: 8Mbit}, attach: {tap: {namespace: "{ns}-db1", interface: eth0, make: true}}}]
    offers: [{name: db, endpoint: db1, protocol: udp, ports: [5000], to: [blue, green], pool: [10.1.250.0/28]}]
  - name: blue
    subnets: [{name: apps, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: app1, subnet: apps, addresses: [10.1.1.10], attach: {tap: {namespace: "{ns}-blue", interface: eth0, make: true}}}]
    accepts: [{name: db, from: red, service: db, as: [10.1.200.10]}]
  - name: green
    subnets: [{name: apps, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: app1, subnet: apps, addresses: [10.1.1.10], attach: {tap: {namespace: "{ns}-green", interface: eth0, make: true}}}]
    accepts: [{name: db, from: red, service: db, as: [10.1.200.10]}]
"#;

#[test]
fn a_user_that_floods_a_service_leaves_another_its_share() {
    let hosts = Hosts::of(SHARED);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    // Datagrams of each by their first byte, until one says that it is over.
    let server = "exec python3 -c \"
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.setsockopt(1,33,16<<20);s.bind(('0.0.0.0',5000))
s.settimeout(20);n={98:0,103:0}
while True:
    d=s.recv(2000)
    if d[0]==122: break
    n[d[0]]+=1
print(n[98],n[103],flush=True)\"";
    // So many Mbit/s for 4 s, and how many datagrams those were.
    let user = |name: &str, mbit: u32, tos: u8| {
        format!(
            "exec python3 -c \"
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.setsockopt(0,1,{tos});r={mbit}e6/8/1400
t=time.monotonic();n=0
while time.monotonic()-t<4:
    while n<(time.monotonic()-t)*r: s.sendto(b'{name}'*1400,('10.1.200.10',5000));n+=1
    time.sleep(.001)
print(n)\""
        )
    };
    for (mbit, tos) in [(80, 0), (8, 0x48), (80, 0x48)] {
        let begin = |name: &str, line: &str| {
            let mut command = hosts.at(name).command(line);
            command.stdout(std::process::Stdio::piped());
            command.spawn().unwrap()
        };
        let serving = begin("db1", server);
        let hears = |_: &Instance| {
            let bound = hosts.sh("db1", "ss -ulnH 'sport = :5000'");
            !bound.out.is_empty()
        };
        assert!(instance.until(Duration::from_secs(10), hears));
        let flood = begin("blue", &user("b", mbit, tos));
        let sent = hosts.sh("green", &user("g", 3, 0));
        let sent: u64 = sent.out.trim().parse().unwrap();
        flood.wait_with_output().unwrap();
        // What waits is gone by then.
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..3 {
            hosts.sh("green", "echo z | socat -u - UDP4:10.1.200.10:5000");
        }
        let heard = serving.wait_with_output().unwrap().stdout;
        let heard = String::from_utf8_lossy(&heard).into_owned();
        let heard: Vec<u64> = heard
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        println!("{mbit} Mbit/s, {tos:#x}: {heard:?} of {sent}");
        assert!(
            heard[1] * 10 >= sent * 9,
            "{mbit}, {tos}: {heard:?} of {sent}"
        );
        assert!(heard[0] > heard[1], "what it leaves: {heard:?}");
    }
}
