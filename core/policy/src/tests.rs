//! Numbers that stay, tables that mean what the spec says.

mod agreements;
mod arbitrary;
mod carried;
mod connections;
mod interpret;
mod numbers;
mod routed;
mod rules;
mod segments;

use crate::{Ids, Intent, compile};
use image::compartment::{ROUTE_OUTSIDE, ROUTE_SUBNET, ROUTE_UNREACHABLE, ROUTE_VIA};
use image::fabric::TEMPLATE_BYTES;
use image::{Aligned, FabricImage, MappedCompartment, MappedFabric};
use spec::Spec;

/// 2026-01-01, seconds since 1970.
pub(crate) const NOW: u64 = 1_767_225_600;

pub(crate) fn read(text: &str) -> Spec {
    spec::parse("spec.yaml", text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
}

pub(crate) fn example(name: &str) -> Spec {
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    read(&std::fs::read_to_string(path).expect(name))
}

pub(crate) fn intent(spec: &Spec) -> (Ids, Intent) {
    let ids = Ids::assign(spec, &Ids::default());
    let intent = compile(spec, &ids, NOW).unwrap_or_else(|errors| panic!("{}", errors[0]));
    (ids, intent)
}

fn table(intent: &Intent, compartment: u32) -> MappedCompartment<Aligned> {
    MappedCompartment::map(Aligned::copy_of(
        &intent.compartments[&compartment].image.bytes,
    ))
    .expect("image")
}

fn fabric(intent: &Intent) -> MappedFabric<Aligned> {
    MappedFabric::map(Aligned::copy_of(&intent.fabric.bytes)).expect("image")
}

fn address(text: &str) -> [u8; 16] {
    spec::mapped(text.parse().expect("address"))
}

#[test]
fn the_demo_has_two_tenants_with_the_same_addresses() {
    let (_, intent) = intent(&example("two-tenants.yaml"));
    assert_eq!(intent.compartments.len(), 2);
    for compartment in intent.compartments.values() {
        let name = &compartment.name;
        let port = &intent
            .endpoint(&format!("{name}/web1"))
            .expect("web1")
            .1
            .create;
        assert_eq!(port.namespace.as_str(), format!("{name}-web1"));
        assert_eq!(
            (port.address4, port.prefix4_len, port.gateway4),
            ([10, 1, 1, 10], 24, [10, 1, 1, 1])
        );
        assert_eq!(port.gateway6, address("fd00:1:1:1::1"));
    }
    let [red, blue] = [1, 2].map(|id| table(&intent, id));
    let [red, blue] = [red.image(), blue.image()];
    assert_eq!(red.endpoints().len(), blue.endpoints().len());
    assert_ne!(red.endpoints()[0].mac, blue.endpoints()[0].mac);
    assert_ne!(red.subnets()[0].gateway_mac, blue.subnets()[0].gateway_mac);
    // No entry at all: nothing leaves a compartment.
    assert!(fabric(&intent).image().forwards().is_empty());
}

#[test]
fn every_example_compiles() {
    for name in [
        "two-tenants.yaml",
        "uplink.yaml",
        "fifo.yaml",
        "levels.yaml",
        "policy.yaml",
        "agreement.yaml",
        "routed.yaml",
        "segment.yaml",
        "reference.yaml",
    ] {
        let (_, intent) = intent(&example(name));
        assert!(!intent.compartments.is_empty(), "{name}");
    }
}

#[test]
fn levels_share_compartments() {
    let (_, intent) = intent(&example("levels.yaml"));
    let placed: Vec<_> = intent
        .compartments
        .values()
        .map(|c| (c.name.as_str(), c.tenants.len(), c.weight))
        .collect();
    assert_eq!(
        placed,
        [("bank", 1, 1), ("zone:shop", 2, 5), ("host:all", 2, 2)]
    );
    assert_eq!(intent.compartments[&1].create.core, 1);
    assert_eq!(intent.compartments[&2].create.core, u32::MAX);
    // Both tenants of the zone have 10.1.0.2, each in its own subnet.
    let zone = table(&intent, 2);
    let image = zone.image();
    let owners = [0, 1].map(|subnet| {
        image
            .endpoint_by_address(subnet, address("10.1.0.2"))
            .expect("address")
    });
    assert_ne!(owners[0], owners[1]);
}

#[test]
fn a_guest_is_known_by_each_of_its_addresses() {
    let spec = read(
        "version: 1
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/24, fd00:1::/64], slaac: on}]
    endpoints: [{name: a, subnet: web, mac: '02:11:22:33:44:55', addresses: [10.1.1.9, 'fd00:1::9', 10.1.1.10]}]",
    );
    let (_, intent) = intent(&spec);
    let mapped = table(&intent, 1);
    let image = mapped.image();
    for known in [
        "10.1.1.9",
        "10.1.1.10",
        "fd00:1::9",
        "fe80::11:22ff:fe33:4455",
        "fd00:1::11:22ff:fe33:4455",
    ] {
        assert_eq!(
            image.endpoint_by_address(0, address(known)),
            Some(0),
            "{known}"
        );
    }
    for unknown in ["10.1.1.1", "fd00:1::1", "10.1.1.11"] {
        assert_eq!(
            image.endpoint_by_address(0, address(unknown)),
            None,
            "{unknown}"
        );
    }
    assert_eq!(image.endpoints()[0].dhcp4, [10, 1, 1, 9]);
    assert_eq!(
        image.endpoint_by_mac(0, [2, 0x11, 0x22, 0x33, 0x44, 0x55]),
        Some(0)
    );
}

const ROUTED: &str = "version: 1
host: {name: h1}
uplinks: [{name: wan0, interface: eth1, mtu: 1400, overhead: 50}]
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/24, fd00:1::/64]}]
    endpoints:
      - {name: fw, subnet: web, roles: [router], prefixes: [10.9.0.0/16]}
    routes:
      - {to: 10.9.5.0/24, via: unreachable}
      - {to: 10.0.0.0/8, via: outside}
    outside:
      - uplink: wan0
        address: [192.0.2.10/24, 2001:db8::10/64]
        gateway: [192.0.2.1, '2001:db8::1']
        routes: [::/0, {to: 10.128.0.0/9, gateway: 192.0.2.2}]";

#[test]
fn the_longest_prefix_decides() {
    let (_, intent) = intent(&read(ROUTED));
    let mapped = table(&intent, 1);
    let image = mapped.image();
    let kind = |to: &str| image.route(0, address(to)).map(|r| r.kind);
    let hop = |to: &str| {
        let route = image.route(0, address(to)).expect(to);
        assert_eq!(route.kind, ROUTE_OUTSIDE, "{to}");
        image.next_hops()[route.via as usize].address
    };
    assert_eq!(kind("10.1.1.77"), Some(ROUTE_SUBNET));
    assert_eq!(kind("fd00:1::77"), Some(ROUTE_SUBNET));
    assert_eq!(kind("10.9.1.1"), Some(ROUTE_VIA));
    assert_eq!(kind("10.9.5.1"), Some(ROUTE_UNREACHABLE));
    assert_eq!(hop("10.2.0.1"), address("192.0.2.1"));
    assert_eq!(hop("10.200.0.1"), address("192.0.2.2"));
    assert_eq!(hop("2001:db8:9::1"), address("2001:db8::1"));
    // ::/0 is no route for IPv4, whose form lies inside it.
    assert_eq!(kind("8.8.8.8"), None);
    assert_eq!(image.attachments()[0].mtu, 1350);
}

#[test]
fn everything_goes_outside_where_nothing_else_is_said() {
    let (_, intent) = intent(&example("uplink.yaml"));
    let mapped = table(&intent, 1);
    for to in ["8.8.8.8", "2600::1"] {
        assert_eq!(
            mapped.image().route(0, address(to)).map(|r| r.kind),
            Some(ROUTE_OUTSIDE),
            "{to}"
        );
    }
}

type Head = [u8; TEMPLATE_BYTES];

/// A frame toward the uplink with these fields.
fn frame(source: [u8; 6], ethertype: u16, at: usize, bytes: &[u8], version: u8) -> Head {
    let mut frame = [0; TEMPLATE_BYTES];
    frame[6..12].copy_from_slice(&source);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame[14] = version;
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn passes(image: &FabricImage<'_>, slot: u32, frame: &Head) -> bool {
    let channel = image.channel(slot).expect("channel");
    let is =
        |mask: &Head, value: &Head| (0..TEMPLATE_BYTES).all(|i| frame[i] & mask[i] == value[i]);
    image.templates(channel).iter().any(|t| {
        let bounded = t.bounds.iter().filter(|b| b.at != 0);
        let but = t.except_mask.iter().any(|m| *m != 0) && is(&t.except_mask, &t.except_value);
        is(&t.mask, &t.value)
            && !but
            && bounded
                .into_iter()
                .all(|b| frame[usize::from(b.at)] <= b.most)
    })
}

#[test]
fn toward_the_uplink_a_tenant_speaks_as_itself_only() {
    let (ids, intent) = intent(&read(ROUTED));
    let mapped = fabric(&intent);
    let image = mapped.image();
    let own = intent.compartments[&1].attachments[0].mac;
    let v4 = |source: [u8; 4]| frame(own, 0x0800, 26, &source, 0x45);
    let v6 = |source: &str| {
        let mut six = frame(own, 0x86dd, 22, &address(source), 0x60);
        six[38] = 0x20;
        six
    };
    let says = |source: &[u8; 16], kind: u8| {
        let mut six = frame(own, 0x86dd, 22, source, 0x60);
        (six[20], six[21], six[54]) = (58, 255, kind);
        (six[38..40]).copy_from_slice(&[0xff, 2]);
        six[62..78].copy_from_slice(source);
        six
    };
    let arp = |mac: [u8; 6], ip: [u8; 4]| {
        let mut arp = frame(own, 0x0806, 28, &ip, 0);
        arp[14..20].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        arp[22..28].copy_from_slice(&mac);
        arp
    };
    let link_local = wire::address::link_local(wire::MacAddress(own));
    for good in [
        v4([192, 0, 2, 10]),
        v4([10, 1, 1, 200]),
        v4([10, 9, 200, 1]),
        v6("fd00:1::abcd"),
        says(&address("2001:db8::10"), 1),
        says(&address("2001:db8::10"), 4),
        says(&address("2001:db8::10"), 129),
        says(&address("2001:db8::10"), 135),
        says(&address("2001:db8::10"), 136),
        says(&link_local, 129),
        says(&link_local, 135),
        says(&link_local, 136),
        arp(own, [192, 0, 2, 10]),
    ] {
        assert!(passes(&image, 1, &good), "refused {good:02x?}");
    }
    for bad in [
        v4([192, 0, 2, 11]),
        v4([10, 1, 2, 1]),
        v4([10, 8, 0, 1]),
        v6("2001:db8::10"),
        v6("2001:db8::11"),
        frame(own, 0x86dd, 22, &link_local, 0x6f),
        v6("fe80::1"),
        v6("::"),
        arp(own, [192, 0, 2, 1]),
        arp([2, 0, 0, 0, 0, 9], [192, 0, 2, 10]),
        frame([2, 0, 0, 0, 0, 9], 0x0800, 26, &[192, 0, 2, 10], 0x45),
        frame(own, 0x8100, 26, &[192, 0, 2, 10], 0x45),
        frame(own, 0x0800, 26, &[192, 0, 2, 10], 0x60),
    ] {
        assert!(!passes(&image, 1, &bad), "passed {bad:02x?}");
    }
    // Where it may send: any station, and the groups that discovery needs.
    let tag = ids.tenants["red"].attachments["wan0"].tag;
    let uplink = ids.uplinks["wan0"].slot;
    assert_eq!(image.default(1, tag).map(|f| f.target), Some(uplink));
    assert!(image.default(1, tag + 1).is_none());
    let asks = wire::MacAddress::of_group6(wire::address::solicited_node(&address("2001:db8::1")));
    for group in [[0xff; 6], asks.0] {
        assert_eq!(image.forward(1, tag, group).map(|f| f.target), Some(uplink));
    }
    assert!(image.forward(1, tag, [0x33, 0x33, 0xff, 1, 2, 3]).is_none());
    // And back.
    assert_eq!(
        image.forward(uplink, 0, own).map(|f| (f.target, f.out_tag)),
        Some((1, tag))
    );
    assert!(image.forward(uplink, 0, [2, 0, 0, 0, 0, 9]).is_none());
    let broadcast = image.forward(uplink, 0, [0xff; 6]).expect("broadcast");
    assert_eq!(
        image
            .group(broadcast.target)
            .iter()
            .map(|m| (m.slot, m.out_tag))
            .collect::<Vec<_>>(),
        [(1, tag)]
    );
}

/// How many of red's frames, all of which pass, do when they are changed.
fn changed(frames: &[Head], change: &[(usize, u8)]) -> usize {
    let (_, intent) = intent(&read(ROUTED));
    let mapped = fabric(&intent);
    let image = mapped.image();
    let own = intent.compartments[&1].attachments[0].mac;
    let with = |frame: &Head, change: &[(usize, u8)]| {
        let mut frame = *frame;
        frame[6..12].copy_from_slice(&own);
        for (at, byte) in change {
            frame[*at] = *byte;
        }
        frame
    };
    for frame in frames {
        assert!(passes(&image, 1, &with(frame, &[])), "{frame:02x?}");
    }
    let changed = frames.iter().map(|frame| with(frame, change));
    changed.filter(|frame| passes(&image, 1, frame)).count()
}

/// Of the tenant's address, as a router sends it on.
fn routed(source: &str) -> Head {
    let source = address(source);
    match wire::address::unmapped(&source) {
        Some(v4) => frame([0; 6], 0x0800, 26, &v4, 0x45),
        None => {
            let mut six = frame([0; 6], 0x86dd, 22, &source, 0x60);
            (six[21], six[38]) = (63, 0x20);
            six
        }
    }
}

#[test]
fn toward_the_uplink_nobody_is_a_dhcp_server() {
    let four = [routed("10.1.1.200"), routed("192.0.2.10")];
    let offer = [(23, 17), (36, 0), (37, 68)];
    assert_eq!(changed(&four, &offer), 0);
    // Nor to a relay; every other port is anybody's, whatever it shares with those.
    for port in 0..=1024u16 {
        let [high, low] = port.to_be_bytes();
        let said = changed(&four, &[(23, 17), (36, high), (37, low)]);
        assert_eq!(said, if matches!(port, 67 | 68) { 0 } else { 2 }, "{port}");
    }
    assert_eq!(changed(&four, &[(23, 6), (36, 0), (37, 68)]), 2);
    // In a first fragment too; behind options there are no ports to be seen.
    let first = [&offer[..], &[(20, 0x20)]].concat();
    assert_eq!(changed(&four, &first), 0);
    let later = [&offer[..], &[(20, 0x20), (21, 9)]].concat();
    assert_eq!(changed(&four, &later), 2);
    assert_eq!(changed(&four, &[(14, 0x46)]), 0);
    let six = [routed("fd00:1::abcd")];
    for port in 0..=1024u16 {
        let [high, low] = port.to_be_bytes();
        let said = changed(&six, &[(20, 17), (56, high), (57, low)]);
        assert_eq!(said, usize::from(!matches!(port, 546 | 547)), "{port}");
    }
}

#[test]
fn toward_the_uplink_nobody_redirects_or_is_a_router_by_icmp() {
    let four = [routed("10.1.1.200"), routed("192.0.2.10")];
    for kind in 0..=255 {
        let said = changed(&four, &[(23, 1), (34, kind)]);
        assert_eq!(said, if matches!(kind, 5 | 9) { 0 } else { 2 }, "{kind}");
        // A later fragment has no type, and what is no ICMP neither.
        assert_eq!(changed(&four, &[(23, 1), (21, 9), (34, kind)]), 2);
        assert_eq!(changed(&four, &[(23, 1), (20, 0x1f), (34, kind)]), 2);
        assert_eq!(changed(&four, &[(23, kind | 2), (34, 5)]), 2);
        assert_eq!(changed(&four, &[(23, kind | 2), (34, 9)]), 2);
    }
    // In a first fragment it has one.
    assert_eq!(changed(&four, &[(23, 1), (20, 0x20), (34, 5)]), 0);
}

#[test]
fn toward_the_uplink_a_tenants_packets_are_those_of_a_router() {
    let six = [routed("fd00:1::abcd")];
    // Neighbour discovery has this hop limit, whatever it is wrapped in.
    assert_eq!(changed(&six, &[(21, 255)]), 0);
    assert_eq!(changed(&six, &[(21, 254)]), 1);
    // To the link, and to groups.
    assert_eq!(changed(&six, &[(38, 0xfe), (39, 0x80)]), 0);
    assert_eq!(changed(&six, &[(38, 0xff), (39, 2)]), 0);
    assert_eq!(changed(&six, &[(38, 0xfd)]), 1);

    // The same of IPv4, whose protocols of the link have the highest time to live, whatever
    // their protocol and type are.
    let four = [routed("10.1.1.200"), routed("192.0.2.10")];
    for protocol in [1, 2, 6, 17, 112] {
        let of = |change: &[(usize, u8)]| changed(&four, &[&[(23, protocol)], change].concat());
        for ttl in 0..=255 {
            assert_eq!(of(&[(22, ttl)]), if ttl < 255 { 2 } else { 0 }, "{ttl}");
        }
        for first in 0..=255 {
            let said = of(&[(30, first)]);
            assert_eq!(said, if first < 224 { 2 } else { 0 }, "{first}");
        }
    }
}

#[test]
fn toward_the_uplink_packets_go_to_stations() {
    let all = [
        routed("10.1.1.200"),
        routed("192.0.2.10"),
        routed("fd00:1::abcd"),
    ];
    assert_eq!(changed(&all, &[(0, 0xff)]), 0);
    assert_eq!(changed(&all, &[(0, 0x33)]), 0);
    assert_eq!(changed(&all, &[(0, 2)]), 3);
}

#[test]
fn toward_the_uplink_of_icmp6_only_what_a_host_says_of_itself() {
    let (_, intent) = intent(&read(ROUTED));
    let own = intent.compartments[&1].attachments[0].mac;
    for source in [
        address("2001:db8::10"),
        wire::address::link_local(wire::MacAddress(own)),
    ] {
        let mut advert = frame(own, 0x86dd, 22, &source, 0x60);
        (advert[20], advert[21], advert[54]) = (58, 255, 136);
        advert[62..78].copy_from_slice(&source);
        let advert = [advert];
        assert_eq!(changed(&advert, &[(54, 136)]), 1);
        for kind in (0..=255).filter(|kind| !matches!(kind, 0..8 | 129 | 135 | 136)) {
            assert_eq!(changed(&advert, &[(54, kind)]), 0, "type {kind}");
        }
        // A header in front, a fragment, or what is no ICMPv6 at all.
        for header in [0, 6, 17, 43, 44, 50, 51, 59, 60, 135] {
            assert_eq!(changed(&advert, &[(20, header)]), 0, "header {header}");
        }
        // Whose neighbour another would be: each byte of it is looked at.
        for at in 62..78 {
            let other = advert[0][at] ^ 1;
            assert_eq!(changed(&advert, &[(at, other)]), 0, "byte {at}");
        }
    }
}

#[test]
fn a_prefix_that_is_full_says_so() {
    let spec = read(
        "version: 1
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/30]}]
    endpoints: [{name: a, subnet: web}, {name: b, subnet: web}]",
    );
    let errors = compile(&spec, &Ids::assign(&spec, &Ids::default()), NOW).expect_err("compiled");
    assert_eq!(
        (errors[0].code, errors[0].line(), errors[0].message.as_str()),
        ("no-address", 5, "no address is left in 10.1.1.0/30 for `b`")
    );
}
