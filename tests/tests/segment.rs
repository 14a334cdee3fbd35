//! Tenants whose subnets go on in VLANs of one uplink. Beyond them is a foreign kernel.

use e2e::frames::{self, arp, ethernet, icmpv6, ipv4, ipv6, udp};
use e2e::talk::Hosts;
use e2e::trunk::Trunk;
use e2e::{Ended, Instance};
use serde_json::Value;
use std::time::Duration;

const VLANS: [u16; 2] = [10, 4094];
const TENANTS: [&str; 2] = ["red", "blue"];
/// Behind each VLAN: one of the subnet, in both the same.
const BEHIND: [&str; 2] = [
    "addr add 10.9.0.77/24 dev n0",
    "addr add fd00:9::77/64 dev n0 nodad",
];
const GATEWAY: [u8; 4] = [10, 9, 0, 1];
const WEB2: [u8; 4] = [10, 9, 0, 11];
/// Somebody on the wire who is nobody.
const FORGER: [u8; 6] = [2, 0xaa, 0, 0, 0, 1];
const WEB1: [u8; 6] = [2, 0, 0, 0, 9, 1];

/// Red and blue are the same but for their VLANs. `more` is said of each tenant.
fn hosts(far: &Trunk, driver: &str, more: &str) -> Hosts {
    let mut spec = format!(
        "version: 1\nuplinks: [{{ name: wan, interface: up0, namespace: {}, driver: {driver} }}]\ntenants:\n",
        far.wire.name
    );
    for (tenant, vlan) in TENANTS.iter().zip(VLANS) {
        spec += &format!(
            "  - name: {tenant}
    {more}
    subnets: [{{ name: lan, prefixes: [10.9.0.0/24, \"fd00:9::/64\"], segment: {{ technology: vlan, uplink: wan, vlan: {vlan} }} }}]
    endpoints:
      - {{ name: web1, subnet: lan, addresses: [10.9.0.10, \"fd00:9::10\"], mac: \"02:00:00:00:09:01\", attach: {{ tap: {{ namespace: {{ns}}-{tenant}1, make: true }} }} }}
      - {{ name: web2, subnet: lan, addresses: [10.9.0.11, \"fd00:9::11\"], mac: \"02:00:00:00:09:02\", attach: {{ veth: {{ namespace: {{ns}}-{tenant}2, make: true }} }} }}
"
        );
    }
    Hosts::of(&spec)
}

fn status(instance: &Instance) -> Value {
    instance.ask(&["status"]).unwrap()
}

/// Frames that a compartment's switch dropped of what came by the fabric, for a reason.
fn refused(instance: &Instance, tenant: &str, reason: &str) -> u64 {
    let status = status(instance);
    let all = status["compartments"].as_array().cloned();
    let own = all.unwrap_or_default();
    let own = own.iter().find(|c| c["name"] == tenant);
    let drops = own.and_then(|c| c["outside_drops"].as_array().cloned());
    let mut drops = drops.unwrap_or_default().into_iter();
    let found = drops.find(|drop| drop["reason"] == reason);
    found.map_or(0, |drop| drop["frames"].as_u64().unwrap_or(0))
}

/// A frame with a tag.
fn tagged(vlan: u16, frame: &[u8]) -> Vec<u8> {
    let [a, b] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, a, b], &frame[12..]].concat()
}

/// Whoever is behind each VLAN has a page of its own, and so has each web1.
fn serve(instance: &Instance, far: &Trunk, hosts: &Hosts) -> Vec<Ended> {
    let page = |name: &str| {
        let folder = instance.folder().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("index.html"), text(name)).unwrap();
        let server = "exec python3 -m http.server --bind :: 80 >/dev/null 2>&1";
        format!("cd {}; {server}", folder.display())
    };
    let mut all = Vec::new();
    for (net, (tenant, vlan)) in far.behind.iter().zip(TENANTS.iter().zip(VLANS)) {
        let line = page(&format!("behind-{vlan}"));
        all.push(Ended(net.command(&line).spawn().unwrap()));
        let line = page(&format!("of-{tenant}"));
        let at = hosts.at(&format!("{tenant}1"));
        all.push(Ended(at.command(&line).spawn().unwrap()));
    }
    all
}

fn text(name: &str) -> String {
    format!("{name}\n").repeat(40_000)
}

/// Both ways, both families, TCP in large frames: each tenant with its own VLAN.
fn talk(instance: &Instance, far: &Trunk, hosts: &Hosts) {
    let _servers = serve(instance, far, hosts);
    for (net, (tenant, vlan)) in far.behind.iter().zip(TENANTS.iter().zip(VLANS)) {
        let inside = |line: &str| hosts.sh(&format!("{tenant}1"), line);
        for (there, here) in [("10.9.0.77", "10.9.0.10"), ("fd00:9::77", "fd00:9::10")] {
            let ping = format!("ping -n -c 3 -i 0.2 -W 2 {there}");
            let pings = |_: &Instance| inside(&ping).ok();
            assert!(
                instance.until(Duration::from_secs(10), pings),
                "{tenant} to {there}"
            );
            let said = net.sh(&format!("ping -n -c 3 -i 0.2 -W 2 {here}")).unwrap();
            assert!(said.ok(), "VLAN {vlan} to {here}: {}", said.out);
            let page = |host: &str| format!("curl -sg --max-time 5 http://[{host}]/");
            let page = |host: &str| match host.contains(':') {
                true => page(host),
                false => page(host).replace(['[', ']'], ""),
            };
            let got = |_: &Instance| inside(&page(there)).out == text(&format!("behind-{vlan}"));
            assert!(
                instance.until(Duration::from_secs(15), got),
                "{tenant} does not get the page of {there} in VLAN {vlan}"
            );
            let of = text(&format!("of-{tenant}"));
            let got = |_: &Instance| net.sh(&page(here)).unwrap().out == of;
            assert!(
                instance.until(Duration::from_secs(15), got),
                "VLAN {vlan} does not get the page of {tenant} at {here}"
            );
        }
        // As ever inside.
        assert!(inside("ping -n -c 1 -W 2 10.9.0.11").ok());
        // And whoever nobody is, is unreachable, whether asked here or beyond.
        assert!(!inside("ping -n -c 1 -W 1 10.9.0.78").ok());
    }
}

#[test]
fn a_subnet_goes_on_in_its_vlan() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "af_packet", "weight: 1");
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    talk(&instance, &far, &hosts);
    let vlans = &status(&instance)["uplinks"][0]["vlans"];
    let shown = |n: usize| (vlans[n]["vlan"].as_u64(), vlans[n]["tenant"].as_str());
    assert_eq!(shown(0), (Some(10), Some("red")), "{vlans}");
    assert_eq!(shown(1), (Some(4094), Some("blue")), "{vlans}");
    assert_eq!(vlans[0]["subnet"], "lan");
    // What each sent and got there, by the fabric's count: two pages and more.
    let usage = instance.ask(&["usage"]).unwrap();
    for tenant in TENANTS {
        let mut rows = usage["rows"].as_array().unwrap().iter();
        let own = rows.find(|row| row["tenant"] == tenant && row["endpoint"] == "");
        for (kind, least) in [("sent_bytes", 400_000), ("got_bytes", 400_000)] {
            let bytes = own.and_then(|row| row[kind].as_u64()).unwrap_or(0);
            assert!(bytes > least, "{tenant} {kind} {bytes}: {usage}");
        }
    }
    let said = instance
        .say(&["explain", "red/web1", "10.9.0.77", "tcp", "80"])
        .unwrap();
    assert!(said.ok() && said.out.contains("10.9.0.77"), "{}", said.out);
    let said = instance
        .say(&["trace", "red/web1", "10.9.0.77", "udp", "53"])
        .unwrap();
    let goes = said.out.contains("to segment (lan), on its subnet")
        && said.out.contains("leads to uplink wan by tag 10");
    assert!(goes, "{}", said.out);
    // A subnet of the same prefix in another place in the wire is another.
    let neighbours = |tenant: &str| {
        hosts
            .sh(&format!("{tenant}1"), "ip neigh show 10.9.0.77")
            .out
    };
    let macs: Vec<String> = far
        .behind
        .iter()
        .map(|net| net.sh("cat /sys/class/net/n0/address").unwrap().out)
        .collect();
    for (tenant, mac) in TENANTS.iter().zip(&macs) {
        assert!(neighbours(tenant).contains(mac.trim()), "{tenant}");
    }
}

#[test]
fn a_segment_by_af_xdp_is_the_same_and_with_two_workers() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "xdp", "workers: 2");
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    assert_eq!(
        status(&instance)["uplinks"][0]["how"],
        "AF_XDP, copy, queues: 1"
    );
    talk(&instance, &far, &hosts);
}

#[test]
fn rules_are_asked_about_who_is_beyond() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let policy = "policy: { default: { inside: deny }, rules: [{ name: web, action: allow, protocol: tcp, ports: [80], from: { endpoint: web1 }, to: { prefix: [10.9.0.77/32] } }], reach: [{ from: { endpoint: web2 }, to: { prefix: [10.9.0.64/26] }, allowed: no }] }";
    let hosts = hosts(&far, "af_packet", policy);
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let _servers = serve(&instance, &far, &hosts);
    let get = "curl -s --max-time 3 http://10.9.0.77/";
    let got = |_: &Instance| hosts.sh("red1", get).out == text("behind-10");
    assert!(instance.until(Duration::from_secs(15), got));
    // What nobody allows: another port there, from another endpoint, from beyond.
    assert!(
        !hosts
            .sh("red1", "curl -s --max-time 1 http://10.9.0.77:81/")
            .ok()
    );
    assert!(!hosts.sh("red1", "ping -n -c 1 -W 1 10.9.0.77").ok());
    assert!(!hosts.sh("red2", get.replace("3", "1").as_str()).ok());
    let inward = "curl -s --max-time 1 http://10.9.0.10/";
    assert!(!far.behind[0].sh(inward).unwrap().ok());
    let counted = |i: &Instance| refused(i, "red", "ingress-rule") > 0;
    assert!(
        instance.until(Duration::from_secs(5), counted),
        "{}",
        status(&instance)
    );
    let flows = instance.ask(&["flows"]).unwrap();
    let flows = flows["flows"].as_array().unwrap().clone();
    let there = flows.iter().any(|f| f["to"] == "segment (lan)");
    assert!(there, "{flows:?}");
    // What cannot hold is refused before it is.
    let wrong = hosts.spec.replace(
        "10.9.0.64/26] }, allowed: no",
        "10.9.0.64/26] }, allowed: yes",
    );
    assert!(instance.apply(&wrong).is_err());
}

#[test]
fn what_the_wire_says_of_who_is_here_is_dropped() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "af_packet", "weight: 1");
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    let pings = |_: &Instance| hosts.sh("red1", "ping -n -c 1 -W 1 10.9.0.77").ok();
    assert!(instance.until(Duration::from_secs(10), pings));
    let everybody = [0xff; 6];
    let packet = |from: [u8; 4], ports: (u16, u16)| {
        ipv4(from, [10, 9, 0, 10], 17, &udp(ports.0, ports.1, b"forged"))
    };
    let stranger = [10, 9, 0, 99];
    let linked = |kind: u8| {
        let mut from = [0; 16];
        (from[0], from[1], from[15]) = (0xfe, 0x80, 0x66);
        let mut to = [0; 16];
        (to[0], to[1], to[15]) = (0xff, 2, 1);
        let mut message = vec![0; 24];
        message[0] = kind;
        // Of a neighbour advertisement: web2's address.
        message[8..10].copy_from_slice(&[0xfd, 0]);
        (message[11], message[23]) = (9, 0x11);
        let payload = icmpv6(from, to, &message);
        ipv6(from, to, 58, 255, &payload)
    };
    let groups = [0x33, 0x33, 0, 0, 0, 1];
    let said = arp(2, (FORGER, GATEWAY), (WEB1, [10, 9, 0, 10]));
    let of_web2 = arp(1, (FORGER, WEB2), ([0; 6], WEB2));
    for (frame, reason) in [
        (
            ethernet(WEB1, [2, 0, 0, 0, 9, 2], 0x0800, &packet(stranger, (7, 7))),
            "source-mac",
        ),
        (
            ethernet(WEB1, FORGER, 0x0800, &packet(WEB2, (7, 7))),
            "source-ip",
        ),
        (
            ethernet(WEB1, FORGER, 0x0800, &packet(GATEWAY, (7, 7))),
            "source-ip",
        ),
        (
            ethernet(WEB1, FORGER, 0x0800, &packet([192, 0, 2, 1], (7, 7))),
            "source-ip",
        ),
        (
            ethernet(WEB1, FORGER, 0x0800, &packet(stranger, (67, 68))),
            "dhcp-server",
        ),
        (ethernet(everybody, FORGER, 0x0806, &of_web2), "arp-spoof"),
        (ethernet(WEB1, FORGER, 0x0806, &said), "arp-spoof"),
        (
            ethernet(groups, FORGER, 0x86dd, &linked(134)),
            "router-advert",
        ),
        (ethernet(groups, FORGER, 0x86dd, &linked(136)), "nd-spoof"),
        (ethernet(WEB1, FORGER, 0x88b5, &[7; 40]), "ethertype"),
        // One tag in another.
        (
            tagged(
                7,
                &ethernet(WEB1, FORGER, 0x0800, &packet(stranger, (7, 7))),
            ),
            "vlan-tag",
        ),
    ] {
        let before = refused(&instance, "red", reason);
        let frame = tagged(VLANS[0], &frame);
        frames::send(&far.trunk.name, "r0", &vec![frame; 10]).unwrap();
        let counted = |i: &Instance| refused(i, "red", reason) >= before + 10;
        assert!(
            instance.until(Duration::from_secs(5), counted),
            "{reason}: {}",
            status(&instance)
        );
    }
    assert_eq!(refused(&instance, "blue", "arp-spoof"), 0);
    // Of another VLAN, of none, and for who is not in it, at the fabric.
    let no_entry = |i: &Instance| {
        let drops = status(i)["uplinks"][0]["counters"]["drops"]
            .as_array()
            .cloned();
        let mut drops = drops.unwrap_or_default().into_iter();
        let found = drops.find(|drop| drop["reason"] == "fabric-no-entry");
        found.map_or(0, |drop| drop["frames"].as_u64().unwrap_or(0))
    };
    let before = no_entry(&instance);
    let honest = ethernet(WEB1, FORGER, 0x0800, &packet(stranger, (7, 7)));
    let elsewhere = ethernet(
        [2, 0, 0, 0, 9, 3],
        FORGER,
        0x0800,
        &packet(stranger, (7, 7)),
    );
    for frame in [
        honest.clone(),
        tagged(7, &honest),
        tagged(VLANS[0], &elsewhere),
    ] {
        frames::send(&far.trunk.name, "r0", &vec![frame; 10]).unwrap();
    }
    assert!(instance.until(Duration::from_secs(5), |i| no_entry(i) >= before + 30));
    // Nobody was misled.
    let known = hosts.sh("red1", "ip neigh").out;
    assert!(!known.contains("02:aa:00:00:00:01"), "{known}");
    assert!(hosts.sh("red1", "ping -n -c 1 -W 1 10.9.0.11").ok());
}

#[test]
fn a_change_costs_nobody_a_switch_and_a_switch_that_dies_comes_back() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "af_packet", "weight: 1");
    let instance = Instance::start().unwrap();
    // At first red's is on this host only.
    let segment = ", segment: { technology: vlan, uplink: wan, vlan: 10 }";
    let local = hosts.spec.replace(segment, "");
    assert_ne!(local, hosts.spec);
    instance.apply(&local).unwrap();
    assert!(!hosts.sh("red1", "ping -n -c 1 -W 1 10.9.0.77").ok());
    let talks = |ping: &str| {
        let talks = |_: &Instance| hosts.sh("red1", ping).ok();
        instance.until(Duration::from_secs(10), talks)
    };
    let once = "ping -n -c 1 -W 1 10.9.0.77";
    instance.apply(&hosts.spec).unwrap();
    assert!(talks(once));
    // Somebody talks while somebody else comes and goes.
    let more = hosts.spec.replacen(
        "      - { name: web2",
        "      - { name: web3, subnet: lan }\n      - { name: web2",
        1,
    );
    let flood = "ping -n -q -i 0.002 -c 1500 -W 5 10.9.0.77";
    let at = hosts.at("red1");
    let mut command = at.command(flood);
    let pinging = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..3 {
        instance.apply(&more).unwrap();
        instance.apply(&hosts.spec).unwrap();
    }
    let said = pinging.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let received = said.split(" received").next().unwrap_or_default();
    let received: u32 = received.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(received > 1200, "{said}");
    let status = status(&instance);
    for compartment in status["compartments"].as_array().unwrap() {
        assert_eq!(compartment["reports"], 0, "{compartment}");
        assert_eq!(compartment["restarts"], 0, "{compartment}");
    }
    instance.kill("red");
    assert!(talks(once));
    // And in another VLAN it is not there.
    let moved = hosts.spec.replace("vlan: 10 }", "vlan: 11 }");
    instance.apply(&moved).unwrap();
    assert!(!hosts.sh("red1", once).ok());
}

#[test]
fn dhcp_does_not_leave_the_host() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let heard = std::env::temp_dir().join(format!("{}.pcapng", far.trunk.name));
    let line = format!("exec tshark -q -i r0 -w {} 2>/dev/null", heard.display());
    let mut ear = Ended(far.trunk.command(&line).spawn().unwrap());
    let hosts = hosts(&far, "af_packet", "weight: 1");
    // Blue's switch does not answer.
    let off = hosts
        .spec
        .replace("vlan: 4094 } }", "vlan: 4094 }, dhcp: off }");
    assert_ne!(off, hosts.spec);
    let instance = Instance::start().unwrap();
    assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
    instance.apply(&off).unwrap();
    let discover = {
        let mut body = vec![1, 1, 6, 0, 7, 7, 7, 7];
        body.resize(236, 0);
        body[28..34].copy_from_slice(&WEB1);
        body.extend([99, 130, 83, 99, 53, 1, 1, 255]);
        ipv4([0; 4], [255; 4], 17, &udp(68, 67, &body))
    };
    for host in ["red1", "blue1"] {
        let frame = ethernet([0xff; 6], WEB1, 0x0800, &discover);
        frames::send(&hosts.at(host).name, "eth0", &vec![frame; 5]).unwrap();
        // So that it is known to hear.
        let pings = |_: &Instance| hosts.sh(host, "ping -n -c 1 -W 1 10.9.0.77").ok();
        assert!(instance.until(Duration::from_secs(10), pings));
    }
    std::thread::sleep(Duration::from_millis(300));
    ear.end();
    let said = far
        .trunk
        .sh(&format!(
            "tshark -r {} -T fields -e vlan.id -e udp.port -e arp.opcode -e icmpv6.type",
            heard.display()
        ))
        .unwrap();
    let _ = std::fs::remove_file(&heard);
    let lines: Vec<Vec<&str>> = said.out.lines().map(|l| l.split('\t').collect()).collect();
    for vlan in ["10", "4094"] {
        let asked = |l: &&Vec<&str>| l[0] == vlan && l.get(2) == Some(&"1");
        assert!(
            lines.iter().any(|l| asked(&l)),
            "deaf: {}{}",
            said.out,
            said.err
        );
    }
    for line in lines {
        let port = line.get(1).copied().unwrap_or_default();
        assert!(!port.contains("67") && !port.contains("68"), "{line:?}");
        // Nor the gateway's own advertisements.
        assert_ne!(line.get(3), Some(&"134"), "{line:?}");
    }
}

#[test]
fn a_taken_over_switch_speaks_in_its_vlan_as_its_own_endpoints_alone() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let heard = std::env::temp_dir().join(format!("{}.pcapng", far.trunk.name));
    let line = format!("exec tshark -q -i r0 -w {} 2>/dev/null", heard.display());
    let mut ear = Ended(far.trunk.command(&line).spawn().unwrap());
    let instance = Instance::start().unwrap();
    assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
    let liar = e2e::program("bulkhead-liar");
    let more = format!("placement: {{ program: {} }}", liar.display());
    // So that whose frames they are is seen: blue's stations are others.
    let hosts = hosts(&far, "af_packet", &more);
    let (first, second) = hosts.spec.split_once("- name: blue").unwrap();
    let spec = format!(
        "{first}- name: blue{}",
        second.replace("00:00:09:0", "00:00:0a:0")
    );
    instance.apply(&spec).unwrap();
    let caught = |i: &Instance| {
        let all = status(i)["compartments"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let of = |c: &Value| c["fabric_drops"].as_array().cloned().unwrap_or_default();
        let drops = all.iter().flat_map(of);
        drops
            .map(|drop| drop["frames"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    let all = instance.until(Duration::from_secs(20), |i| caught(i) > 400);
    assert!(all, "{}", status(&instance));
    let _ = far.behind[0].sh("ping -n -c 1 -W 1 10.9.0.78");
    ear.end();
    let said = far
        .trunk
        .sh(&format!(
            "tshark -r {} -T fields -E occurrence=a -e vlan.id -e eth.src -e vlan.etype -e eth.dst",
            heard.display()
        ))
        .unwrap();
    let _ = std::fs::remove_file(&heard);
    let own = [
        ("10", ["02:00:00:00:09:01", "02:00:00:00:09:02"]),
        ("4094", ["02:00:00:00:0a:01", "02:00:00:00:0a:02"]),
    ];
    let behind: Vec<String> = far
        .behind
        .iter()
        .map(|net| {
            net.sh("cat /sys/class/net/n0/address")
                .unwrap()
                .out
                .trim()
                .to_owned()
        })
        .collect();
    let mut spoke = 0;
    for line in said.out.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if behind.iter().any(|mac| mac == fields[1]) {
            continue;
        }
        let allowed = own.iter().find(|(vlan, _)| *vlan == fields[0]);
        let is_own = allowed.is_some_and(|(_, macs)| macs.contains(&fields[1]));
        assert!(is_own, "{line}");
        // One tag, and ARP or IP in it.
        let kinds = ["0x0800", "0x0806", "0x86dd"];
        assert!(kinds.contains(&fields[2]), "{line}");
        assert!(!fields[3].starts_with("01:80:c2"), "{line}");
        spoke += 1;
    }
    assert!(spoke > 0, "nobody said anything: {}{}", said.out, said.err);
}
