//! Tenants whose ways outside are VLANs of one uplink. The far end is a foreign one: frames
//! with tags, from packet sockets, and a kernel's own stack behind each VLAN.

use e2e::frames;
use e2e::outside::Page;
use e2e::talk::Hosts;
use e2e::trunk::Trunk;
use e2e::{Ended, Instance};
use serde_json::Value;
use std::time::Duration;

const VLANS: [u16; 2] = [10, 4094];

/// Behind each VLAN 192.0.2.1, with a way to whom it serves.
const BEHIND: [&str; 4] = [
    "addr add 192.0.2.1/24 dev n0",
    "addr add 2001:db8::1/64 dev n0 nodad",
    "route add 10.9.0.0/24 via 192.0.2.10",
    "route add fd00:9::/64 via 2001:db8::10",
];

/// Red and blue have the same addresses, inside and outside, each in its own VLAN.
fn hosts(far: &Trunk, driver: &str, placement: &str) -> Hosts {
    let mut spec = format!(
        "version: 1\nuplinks: [{{ name: wan, interface: up0, namespace: {}, driver: {driver} }}]\ntenants:\n",
        far.wire.name
    );
    for (tenant, vlan) in ["red", "blue"].iter().zip(VLANS) {
        let low = vlan & 0xff;
        spec += &format!(
            "  - name: {tenant}
    {placement}
    subnets: [{{ name: lan, prefixes: [10.9.0.0/24, \"fd00:9::/64\"] }}]
    endpoints:
      - {{ name: web1, subnet: lan, addresses: [10.9.0.10, \"fd00:9::10\"], attach: {{ tap: {{ namespace: {{ns}}-{tenant}, make: true }} }} }}
    outside:
      - {{ uplink: wan, vlan: {vlan}, address: [192.0.2.10/24, \"2001:db8::10/64\"], gateway: [192.0.2.1, \"2001:db8::1\"], mac: \"02:00:00:00:09:{low:02x}\" }}
"
        );
    }
    Hosts::of(&spec)
}

fn mac(vlan: u16) -> [u8; 6] {
    [2, 0, 0, 0, 9, (vlan & 0xff) as u8]
}

fn status(instance: &Instance) -> Value {
    instance.ask(&["status"]).unwrap()
}

fn no_entry(instance: &Instance) -> u64 {
    let status = status(instance);
    let drops = status["uplinks"][0]["counters"]["drops"]
        .as_array()
        .cloned();
    let mut drops = drops.unwrap_or_default().into_iter();
    let found = drops.find(|drop| drop["reason"] == "fabric-no-entry");
    found.map_or(0, |drop| drop["frames"].as_u64().unwrap_or(0))
}

/// Each tenant and the network behind its VLAN talk, and are who they are.
fn talk(instance: &Instance, far: &Trunk, hosts: &Hosts) {
    let mut servers = Vec::new();
    let mut pages = Vec::new();
    for (net, vlan) in far.behind.iter().zip(VLANS) {
        let folder = instance.folder().join(format!("behind-{vlan}"));
        let page = Page::new(&folder, &format!("behind {vlan}\n").repeat(20_000)).unwrap();
        servers.push(page.serve(net).unwrap());
        pages.push(page);
    }
    let behind = far.behind.iter().zip(VLANS).zip(&pages);
    for (tenant, ((net, vlan), page)) in ["red", "blue"].iter().zip(behind) {
        for host in ["192.0.2.1", "[2001:db8::1]"] {
            assert!(
                page.comes(instance, &hosts.at(tenant), host),
                "{tenant} does not get the page of {host} in VLAN {vlan}"
            );
        }
        for inside in ["10.9.0.10", "fd00:9::10"] {
            let said = net
                .sh(&format!("ping -n -c 2 -i 0.1 -W 2 {inside}"))
                .unwrap();
            assert!(said.ok(), "VLAN {vlan} to {inside}: {}", said.out);
        }
    }
}

#[test]
fn a_vlan_is_its_tenants_alone() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "af_packet", "weight: 1");
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    talk(&instance, &far, &hosts);

    // Of another VLAN, of one that nobody has, of none: for red's own MAC and address.
    let packet = frames::ipv4(
        [192, 0, 2, 1],
        [10, 9, 0, 10],
        17,
        &frames::udp(7, 7777, b"x"),
    );
    let router = [2, 0xaa, 0, 0, 0, 1];
    // Datagrams that came to red's endpoint, whoever was there for them.
    let received = || {
        let text = hosts.sh("red", "grep ^Udp: /proc/net/snmp").out;
        let numbers = text.lines().last().unwrap_or_default();
        let numbers = numbers.split_whitespace().skip(1).take(2);
        numbers.map(|n| n.parse::<u64>().unwrap()).sum::<u64>()
    };
    let own = |vlan: u16| {
        let tagged = [&vlan.to_be_bytes()[..], &[8, 0], &packet].concat();
        frames::ethernet(mac(VLANS[0]), router, 0x8100, &tagged)
    };
    let before = (no_entry(&instance), received());
    let none = frames::ethernet(mac(VLANS[0]), router, 0x0800, &packet);
    for frame in [own(VLANS[1]), own(7), none] {
        frames::send(&far.trunk.name, "r0", &vec![frame; 10]).unwrap();
    }
    let counted = |i: &Instance| no_entry(i) >= before.0 + 30;
    assert!(
        instance.until(Duration::from_secs(5), counted),
        "{}",
        status(&instance)
    );
    assert_eq!(received(), before.1, "a frame came through");
    // Of its own it comes.
    frames::send(&far.trunk.name, "r0", &vec![own(VLANS[0]); 10]).unwrap();
    let came = |_: &Instance| received() >= before.1 + 10;
    assert!(
        instance.until(Duration::from_secs(5), came),
        "{}",
        status(&instance)
    );
}

#[test]
fn vlans_of_an_uplink_by_af_xdp_are_the_same() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let hosts = hosts(&far, "xdp", "weight: 1");
    let instance = Instance::start().unwrap();
    instance.apply(&hosts.spec).unwrap();
    assert_eq!(
        status(&instance)["uplinks"][0]["how"],
        "AF_XDP, copy, queues: 1"
    );
    talk(&instance, &far, &hosts);
}

#[test]
fn a_taken_over_switch_speaks_in_no_vlan_but_its_own() {
    let far = Trunk::make(&VLANS, &BEHIND);
    let heard = std::env::temp_dir().join(format!("{}.pcapng", far.trunk.name));
    let line = format!("exec tshark -q -i r0 -w {} 2>/dev/null", heard.display());
    let mut ear = Ended(far.trunk.command(&line).spawn().unwrap());
    let instance = Instance::start().unwrap();
    assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
    let liar = e2e::program("bulkhead-liar");
    let placement = format!("placement: {{ program: {} }}", liar.display());
    let hosts = hosts(&far, "af_packet", &placement);
    instance.apply(&hosts.spec).unwrap();
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
    // So that it is known to hear: somebody asks, in a VLAN.
    let _ = far.behind[0].sh("ping -n -c 1 -W 1 192.0.2.77");
    ear.end();
    let said = far.trunk.sh(&format!(
        "tshark -r {} -T fields -e vlan.id -e eth.src",
        heard.display()
    ));
    let _ = std::fs::remove_file(&heard);
    let said = said.unwrap();
    let mut spoke = 0;
    for line in said.out.lines() {
        let (tag, from) = line.split_once('\t').unwrap();
        let Some(low) = from.strip_prefix("02:00:00:00:09:") else {
            continue;
        };
        let own = VLANS
            .iter()
            .find(|vlan| format!("{:02x}", **vlan & 0xff) == low);
        assert_eq!(Some(tag), own.map(u16::to_string).as_deref(), "{line}");
        spoke += 1;
    }
    let others = said.out.lines().count() - spoke;
    assert!(others > 0, "the ear is deaf: {}{}", said.out, said.err);
}
