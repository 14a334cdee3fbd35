//! Endpoints by veth beside one by tap: they talk, through every death, and their outer
//! ends are where nobody else is.

use e2e::talk::{Hosts, Talk};
use e2e::{Instance, Namespace};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

const SPEC: &str = "version: 1
tenants:
  - name: red
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24, \"fd00:1::/64\"] }
    endpoints:
      - { name: a, subnet: lan, addresses: [10.1.1.10, \"fd00:1::10\"], attach: { veth: { namespace: {ns}-a, make: true } } }
      - { name: b, subnet: lan, addresses: [10.1.1.11, \"fd00:1::11\"], attach: { veth: { namespace: {ns}-b, make: true } } }
      - { name: c, subnet: lan, addresses: [10.1.1.12, \"fd00:1::12\"], attach: { {c}: { namespace: {ns}-c, make: true } } }
";

fn by(kind: &str) -> String {
    SPEC.replace("{c}", kind)
}

fn pings(hosts: &Hosts, from: &str, to: &str) -> bool {
    hosts.sh(from, &format!("ping -n -c 1 -W 1 {to}")).ok()
}

/// Of the namespace of each packet socket that a process has: its inode, its interfaces,
/// and how many IPv6 addresses it has.
fn around_sockets(pid: u32) -> BTreeSet<String> {
    const PROGRAM: &str = "
import ctypes, fcntl, os, socket, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
whole = os.pidfd_open(pid)
for name in os.listdir(f'/proc/{pid}/fd'):
    if not os.readlink(f'/proc/{pid}/fd/{name}').startswith('socket:'): continue
    s = socket.socket(fileno=libc.syscall(438, whole, int(name), 0))
    if s.family != socket.AF_PACKET: continue
    namespace = fcntl.ioctl(s, 0x894C)
    if os.fork() == 0:
        assert libc.setns(namespace, 0) == 0
        addresses = len(open('/proc/thread-self/net/if_inet6').readlines())
        print(os.fstat(namespace).st_ino, *sorted(n for _, n in socket.if_nameindex()), addresses, flush=True)
        os._exit(0)
    os.wait()
";
    let output = Command::new("python3")
        .args(["-c", PROGRAM, &pid.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn endpoints_by_veth_talk_and_go_on_through_every_death() {
    let hosts = Hosts::of(&by("tap"));
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let talk = Talk::new(instance.folder());
    let servers: Vec<_> = ["a", "c"]
        .map(|at| talk.start(&hosts.at(at), "serve tcp=80"))
        .into();
    for died in ["", "switch", "supervisor", "fabric"] {
        match died {
            "" => {}
            "switch" => drop(instance.kill("red")),
            program => instance.kill_program(&format!("bulkhead-{program}")),
        }
        for (from, to) in [
            ("a", "10.1.1.11"),
            ("a", "10.1.1.12"),
            ("c", "fd00:1::10"),
            ("b", "fd00:1::12"),
        ] {
            let reached = instance.until(Duration::from_secs(10), |_| pings(&hosts, from, to));
            assert!(
                reached,
                "{from} does not reach {to} after the death of {died:?}"
            );
        }
        // 8 MiB whole, to a veth and to a tap.
        for (from, to) in [("b", "10.1.1.10"), ("a", "10.1.1.12"), ("c", "fd00:1::10")] {
            let words = format!("bulk {to} 80 8388608");
            let said = talk.say(&hosts.at(from), &words);
            assert!(
                said.out.ends_with("8388608\n"),
                "{from} to {to}: {}{}",
                said.out,
                said.err
            );
        }
    }
    drop(servers);
    let endpoint = instance.endpoint("red", "a").unwrap();
    assert_eq!(endpoint["kind"], "veth");
    let counters = &endpoint["counters"];
    assert!(counters["rx_frames"].as_u64() > Some(100), "{counters}");
}

#[test]
fn the_outer_end_of_a_veth_is_where_nobody_else_is() {
    let hosts = Hosts::of(&by("veth"));
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    assert!(instance.until(Duration::from_secs(5), |_| pings(&hosts, "a", "10.1.1.12")));
    let around = around_sockets(instance.pid("red").unwrap());
    // Three namespaces, each with the one outer end and a loopback that is down, and no
    // stack that would answer.
    assert_eq!(around.len(), 3, "{around:?}");
    for line in &around {
        assert!(line.ends_with(" lo outer 0"), "{around:?}");
    }
}

#[test]
fn a_veth_that_vanished_is_made_again_and_another_kind_takes_its_place() {
    let hosts = Hosts::of(&by("veth"));
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let reaches = |_: &Instance| pings(&hosts, "a", "10.1.1.12");
    assert!(instance.until(Duration::from_secs(5), reaches));
    assert!(hosts.sh("c", "ip link del eth0").ok());
    let port = |i: &Instance| i.endpoint("red", "c").unwrap()["port"].clone();
    assert!(instance.until(Duration::from_secs(5), |i| port(i) != "open"));
    instance.apply(&hosts.spec).unwrap();
    assert!(instance.until(Duration::from_secs(5), reaches));
    for kind in ["tap", "veth"] {
        instance.apply(&hosts.other(&by(kind))).unwrap();
        assert!(instance.until(Duration::from_secs(5), reaches), "by {kind}");
        let shown = hosts.sh("c", "ip -d -o link show eth0").out;
        let is_veth = shown.contains(" veth ");
        assert_eq!(is_veth, kind == "veth", "{shown}");
    }
    // A name that is taken is said, and what ran runs.
    let other = Namespace::make().unwrap();
    other.ip("link add eth0 type veth peer name e1").unwrap();
    let own = format!("namespace: {}, make: true", hosts.at("c").name);
    let foreign = hosts.other(&by("veth"));
    let foreign = foreign.replace(&own, &format!("namespace: {}", other.name));
    let refused = instance.apply(&foreign).unwrap_err();
    assert!(refused.contains("there already"), "{refused}");
    assert!(instance.until(Duration::from_secs(5), reaches));
}
