//! A subnet that goes on beyond this host.

use crate::policy::rule;
use crate::restoration::{came, keeping};
use crate::support::*;
use core_switch::{Config, Slot};
use image::CompartmentTables;
use image::rules::{Action, RuleTable};
use proptest::prelude::*;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{link_local, mapped, solicited_node};
use wire::arp::{Message, Operation};
use wire::nd::{NeighbourAdvert, NeighbourSolicit};
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};
use wire::parse::Network;
use wire::tcp::{ACK, SYN};

pub const SEGMENT: u16 = 9;
/// Somebody beyond.
const FAR: MacAddress = MacAddress([2, 0x66, 0, 0, 0, 1]);
const FAR4: [u8; 4] = [10, 1, 1, 77];
const FAR6: [u8; 16] = [0xfd, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 77];
const ZERO: MacAddress = MacAddress::ZERO;

/// A1, A2 and R are in it.
pub fn segment() -> Site {
    Site::with(|tables| tables.subnets[0].segment = SEGMENT)
}

/// Frames of each kind, by slot and tag.
pub fn traffic() -> Vec<(Slot, u16, Vec<u8>)> {
    let everybody = MacAddress::BROADCAST;
    let ask = asked(Operation::Request, (FAR, FAR4), (ZERO, v4(A2)));
    let answer = asked(Operation::Reply, (FAR, FAR4), (mac(A1), v4(A1)));
    let out = udp4((mac(A1), FAR), (v4(A1), FAR4), (1, 2), b"out");
    let all = udp4((mac(A1), everybody), (v4(A1), [255; 4]), (1, 2), b"");
    let in_all = udp4((FAR, everybody), (FAR4, [255; 4]), (1, 2), b"");
    let forged = udp4((FAR, mac(A1)), (v4(A2), v4(A1)), (1, 2), b"");
    vec![
        (A1, 0, out),
        (A1, 0, all),
        (A1, 0, arp_request(A1, v4(A1), FAR4)),
        (FABRIC, SEGMENT, inward(A1, (2, 1))),
        (FABRIC, SEGMENT, in_all),
        (FABRIC, SEGMENT, forged),
        (FABRIC, SEGMENT, arp((FAR, everybody), ask)),
        (FABRIC, SEGMENT, arp((FAR, mac(A1)), answer)),
        (FABRIC, SEGMENT, solicit(FAR6, v6(A2), Some(FAR))),
        (FABRIC, SEGMENT, advert((mac(A1), v6(A1)), FAR6, FAR)),
    ]
}

fn come(site: &mut Site, frame: &[u8]) -> crate::seen::Seen {
    site.inject_raw(FABRIC, SEGMENT, RawOffload::default(), frame)
}

#[track_caller]
fn refuses(site: &mut Site, frame: &[u8], reason: DropReason) {
    let seen = come(site, frame);
    assert_eq!((seen.reasons(), seen.sent.len()), (vec![reason], 0));
}

fn inward(to: Slot, ports: (u16, u16)) -> Vec<u8> {
    udp4((FAR, mac(to)), (FAR4, v4(to)), ports, b"in")
}

fn asked(operation: Operation, from: (MacAddress, [u8; 4]), to: (MacAddress, [u8; 4])) -> Message {
    Message {
        operation,
        sender_mac: from.0,
        sender: from.1,
        target_mac: to.0,
        target: to.1,
    }
}

fn solicit(from: [u8; 16], target: [u8; 16], link: Option<MacAddress>) -> Vec<u8> {
    let group = solicited_node(&target);
    let mut body = [0; 64];
    let message = NeighbourSolicit {
        target,
        source_link: link,
    };
    let length = message.emit(&mut body).unwrap();
    let link = (FAR, MacAddress::of_group6(group));
    icmp6(link, (from, group), 255, &body[..length])
}

fn advert(to: (MacAddress, [u8; 16]), target: [u8; 16], link: MacAddress) -> Vec<u8> {
    let mut body = [0; 64];
    let message = NeighbourAdvert {
        router: true,
        solicited: true,
        overrides: true,
        target,
        target_link: Some(link),
    };
    let length = message.emit(&mut body).unwrap();
    icmp6((FAR, to.0), (FAR6, to.1), 255, &body[..length])
}

#[test]
fn who_is_not_here_is_beyond_and_comes_from_there() {
    let mut site = segment();
    let frame = udp4((mac(A1), FAR), (v4(A1), FAR4), (1, 2), b"out");
    let seen = site.inject(A1, &frame);
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, SEGMENT));
    assert_eq!(sent.frame, frame);
    let frame = udp6((mac(A1), FAR), (v6(A1), FAR6), (1, 2), b"out");
    assert_eq!(site.inject(A1, &frame).only().tag, SEGMENT);
    for slot in [A1, A2, R] {
        let frame = inward(slot, (2, 1));
        let seen = come(&mut site, &frame);
        assert_eq!((seen.only().slot, seen.only().tag), (slot, 0));
        assert_eq!(seen.only().frame, frame);
    }
    let own = link_local(FAR);
    let frame = udp6((FAR, mac(A1)), (own, link_local(mac(A1))), (1, 2), b"in");
    assert_eq!(come(&mut site, &frame).only().slot, A1);
    // Here as ever, and other subnets are where they are.
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 2), b"");
    assert_eq!(site.inject(A1, &frame).only().slot, A2);
    let frame = udp4((mac(B1), FAR), (v4(B1), FAR4), (1, 2), b"");
    site.refuses(B1, &frame, DropReason::UnknownMac);
    // By no router out there does it leave, nor in a frame for all.
    for far in [[8, 8, 8, 8], [10, 1, 2, 77], [10, 9, 0, 1]] {
        let frame = udp4((mac(A1), FAR), (v4(A1), far), (1, 2), b"");
        site.refuses(A1, &frame, DropReason::NoNeighbour);
        let all = udp4((mac(A1), MacAddress::BROADCAST), (v4(A1), far), (1, 2), b"");
        assert!(!site.inject(A1, &all).slots().contains(&FABRIC));
    }
    let frame = udp6((mac(A1), FAR), (v6(A1), outside(1)), (1, 2), b"");
    site.refuses(A1, &frame, DropReason::NoNeighbour);
    // Nobody is routed there: who is beyond has no other way back.
    let frame = udp4((mac(B1), gateway_mac(1)), (v4(B1), FAR4), (1, 2), b"");
    let seen = site.inject(B1, &frame);
    assert_eq!(seen.reasons(), [DropReason::NoNeighbour]);
    assert!(seen.sent.iter().all(|sent| sent.slot == B1));
}

#[test]
fn a_large_frame_leaves_as_it_is() {
    let mut site = segment();
    let payload = vec![7; 4000];
    let frame = tcp(
        (mac(A1), FAR),
        (mapped(v4(A1)), mapped(FAR4)),
        (1, 80),
        (ACK, 1, 1),
        &payload,
    );
    let offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
    };
    let seen = site.inject_raw(A1, 0, offload, &frame);
    assert_eq!(
        (seen.only().tag, seen.only().frame.len()),
        (SEGMENT, frame.len())
    );
    // Larger than the subnet's packets it is not.
    let offload = RawOffload {
        gso_size: 1461,
        ..offload
    };
    let seen = site.inject_raw(A1, 0, offload, &frame);
    assert_eq!(seen.reasons(), [DropReason::TooBig]);
}

#[test]
fn what_is_for_all_goes_beyond_once_and_comes_to_all() {
    let mut site = segment();
    let everybody = MacAddress::BROADCAST;
    let frame = udp4((mac(A1), everybody), (v4(A1), [255; 4]), (1, 2), b"all");
    let mut slots = site.inject(A1, &frame).slots();
    slots.sort_unstable();
    assert_eq!(slots, [FABRIC, A2, R]);
    let frame = udp4((FAR, everybody), (FAR4, [10, 1, 1, 255]), (1, 2), b"all");
    let mut slots = come(&mut site, &frame).slots();
    slots.sort_unstable();
    assert_eq!(slots, [A1, A2, R]);
    // A group's frame with one station's packet in it.
    let frame = udp4((FAR, everybody), (FAR4, v4(A1)), (1, 2), b"");
    refuses(&mut site, &frame, DropReason::Martian);
    // An attached tenant's other subnets hear nothing of it.
    let frame = udp4((mac(B1), everybody), (v4(B1), [255; 4]), (1, 2), b"");
    assert_eq!(site.inject(B1, &frame).slots(), []);
}

#[test]
fn dhcp_ends_at_the_host_either_way() {
    let mut site = segment();
    let discover = udp4(
        (mac(A1), MacAddress::BROADCAST),
        ([0; 4], [255; 4]),
        (68, 67),
        &[0; 300],
    );
    assert!(!site.inject(A1, &discover).slots().contains(&FABRIC));
    site.change(|tables| tables.subnets[0].flags = 0);
    let seen = site.inject(A1, &discover);
    assert!(!seen.slots().contains(&FABRIC) && seen.slots().contains(&A2));
    let asks = udp4((mac(A1), FAR), (v4(A1), FAR4), (68, 67), b"");
    site.refuses(A1, &asks, DropReason::DhcpServer);
    let asks = udp6((mac(A1), FAR), (v6(A1), FAR6), (546, 547), b"");
    site.refuses(A1, &asks, DropReason::DhcpServer);
    for ports in [(67, 68), (68, 67), (67, 67)] {
        refuses(&mut site, &inward(A1, ports), DropReason::DhcpServer);
    }
    let frame = udp6((FAR, mac(A1)), (FAR6, v6(A1)), (547, 546), b"");
    refuses(&mut site, &frame, DropReason::DhcpServer);
}

#[test]
fn the_wire_speaks_for_nobody_who_is_here() {
    let mut site = segment();
    for taken in [mac(A2), gateway_mac(0)] {
        let frame = udp4((taken, mac(A1)), (FAR4, v4(A1)), (1, 2), b"");
        refuses(&mut site, &frame, DropReason::SourceMac);
    }
    let others = [
        v4(A2),
        v4(A1),
        GATEWAY4,
        [10, 1, 1, 0],
        [10, 1, 1, 255],
        [10, 1, 2, 77],
        [10, 9, 0, 1],
        [192, 0, 2, 1],
        [8, 8, 8, 8],
        [169, 254, 7, 7],
        [127, 0, 0, 1],
        [0; 4],
    ];
    for source in others {
        let frame = udp4((FAR, mac(A1)), (source, v4(A1)), (1, 2), b"");
        refuses(&mut site, &frame, DropReason::SourceIp);
    }
    let others = [
        v6(A2),
        GATEWAY6,
        v6(B1),
        outside(1),
        link_local(mac(A2)),
        link_local(gateway_mac(0)),
        [0; 16],
    ];
    for source in others {
        let frame = udp6((FAR, mac(A1)), (source, v6(A1)), (1, 2), b"");
        refuses(&mut site, &frame, DropReason::SourceIp);
    }
    let group = MacAddress([3, 0, 0, 0, 0, 1]);
    let frame = udp4((group, mac(A1)), (FAR4, v4(A1)), (1, 2), b"");
    refuses(&mut site, &frame, DropReason::GroupSource);
    let mut tagged = inward(A1, (1, 2));
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    refuses(&mut site, &tagged, DropReason::VlanTag);
    let mut other = inward(A1, (1, 2));
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    refuses(&mut site, &other, DropReason::EtherType);
    // To a station with another's address in it, and to nobody's.
    let frame = udp4((FAR, mac(A1)), (FAR4, [10, 1, 2, 10]), (1, 2), b"");
    refuses(&mut site, &frame, DropReason::NoNeighbour);
    for to in [FAR, gateway_mac(0), mac(B1), mac(C1)] {
        let frame = udp4((FAR, to), (FAR4, v4(A1)), (1, 2), b"");
        refuses(&mut site, &frame, DropReason::UnknownMac);
    }
    // A router and what it says is here.
    for kind in [134, 137] {
        let frame = icmp6(
            (FAR, mac(A1)),
            (link_local(FAR), link_local(mac(A1))),
            255,
            &[kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        );
        refuses(&mut site, &frame, DropReason::RouterAdvert);
    }
    // Without an IPv6 prefix addresses of the link are in no table.
    site.change(|tables| {
        tables.subnets[0].prefix6_len = 0;
        tables.addresses.retain(|(_, a)| a[0] != 0xfe);
    });
    let frame = udp6(
        (FAR, mac(A1)),
        (link_local(mac(A2)), link_local(mac(A1))),
        (1, 2),
        b"",
    );
    refuses(&mut site, &frame, DropReason::SourceIp);
}

#[test]
fn arp_is_asked_beyond_in_the_askers_name_and_says_no_more() {
    let mut site = segment();
    let mut message = asked(Operation::Request, (mac(A1), v4(A1)), (ZERO, FAR4));
    message.target_mac = MacAddress([7; 6]);
    let mut frame = arp((mac(A1), MacAddress::BROADCAST), message);
    frame.extend_from_slice(b"and what else it likes");
    let seen = site.inject(A1, &frame);
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, SEGMENT));
    let parsed = sent.parsed();
    assert_eq!(
        (parsed.source, parsed.destination),
        (mac(A1), MacAddress::BROADCAST)
    );
    let Network::Arp(said) = parsed.network else {
        panic!("{parsed:?}")
    };
    assert_eq!(
        said,
        asked(Operation::Request, (mac(A1), v4(A1)), (ZERO, FAR4))
    );
    assert!(!sent.frame.windows(4).any(|w| w == b"what"));
    // A station there may be asked alone; no station here is named to them.
    for (to, as_said) in [(FAR, true), (mac(A2), false), (GATEWAY, false)] {
        let message = asked(Operation::Request, (mac(A1), v4(A1)), (ZERO, FAR4));
        let seen = site.inject(A1, &arp((mac(A1), to), message));
        let destination = seen.only().parsed().destination;
        let all = MacAddress::BROADCAST;
        assert_eq!(destination, if as_said { to } else { all });
    }
    // A probe as well; who is here is answered for here; what is elsewhere nobody asks for.
    let probe = site.inject(A1, &arp_request(A1, [0; 4], FAR4));
    assert_eq!(probe.only().slot, FABRIC);
    assert_eq!(
        site.inject(A1, &arp_request(A1, v4(A1), v4(A2)))
            .only()
            .slot,
        A1
    );
    for target in [[10, 1, 2, 77], [10, 1, 1, 255], [8, 8, 8, 8]] {
        site.refuses(
            A1,
            &arp_request(A1, v4(A1), target),
            DropReason::NoNeighbour,
        );
    }
    // Where nothing goes on, nothing is asked.
    site.refuses(
        B1,
        &arp_request(B1, v4(B1), [10, 1, 2, 77]),
        DropReason::NoNeighbour,
    );
}

#[test]
fn questions_have_a_limit_of_their_own() {
    let config = Config {
        ask_rate: 1,
        ask_burst: 3,
        ..Config::default()
    };
    let mut site = Site::configured(config, |tables| tables.subnets[0].segment = SEGMENT);
    for _ in 0..3 {
        assert_eq!(
            site.inject(A1, &arp_request(A1, v4(A1), FAR4)).sent.len(),
            1
        );
    }
    site.refuses(A1, &arp_request(A1, v4(A1), FAR4), DropReason::FloodRate);
    // Each for itself, and not for long.
    assert_eq!(
        site.inject(A2, &arp_request(A2, v4(A2), FAR4)).sent.len(),
        1
    );
    site.now += SECOND;
    assert_eq!(
        site.inject(A1, &arp_request(A1, v4(A1), FAR4)).sent.len(),
        1
    );
}

#[test]
fn the_switch_answers_the_wire_for_who_is_here() {
    let mut site = segment();
    let ask = |target| {
        arp(
            (FAR, MacAddress::BROADCAST),
            asked(Operation::Request, (FAR, FAR4), (ZERO, target)),
        )
    };
    let seen = come(&mut site, &ask(v4(A2)));
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, SEGMENT));
    let parsed = sent.parsed();
    assert_eq!((parsed.source, parsed.destination), (mac(A2), FAR));
    // The gateway is here alone, and others are others' to say.
    for target in [GATEWAY4, [10, 1, 1, 78], v4(B1)] {
        assert_eq!(come(&mut site, &ask(target)).sent.len(), 0);
    }
    let seen = come(&mut site, &solicit(FAR6, v6(A2), Some(FAR)));
    assert_eq!(seen.only().parsed().source, mac(A2));
    assert_eq!(seen.only().tag, SEGMENT);
    assert_eq!(
        come(&mut site, &solicit(FAR6, GATEWAY6, Some(FAR)))
            .sent
            .len(),
        0
    );
    // Who looks whether an address is free hears that it is not.
    let seen = come(&mut site, &solicit([0; 16], v6(A2), None));
    assert_eq!(seen.only().parsed().source, mac(A2));
    // One that is cut off is not answered for.
    site.change(|tables| tables.endpoints[1].state = image::compartment::STATE_QUARANTINED);
    assert_eq!(come(&mut site, &ask(v4(A2))).sent.len(), 0);
}

#[test]
fn answers_come_to_who_asked_and_claim_nobody_here() {
    let mut site = segment();
    let answer = |from: (MacAddress, [u8; 4]), to: (MacAddress, [u8; 4])| {
        arp((FAR, to.0), asked(Operation::Reply, from, to))
    };
    let to = (mac(A1), v4(A1));
    let mut frame = answer((FAR, FAR4), to);
    frame.extend_from_slice(b"and what else it likes");
    let seen = come(&mut site, &frame);
    assert_eq!(seen.only().slot, A1);
    assert!(!seen.only().frame.windows(4).any(|w| w == b"what"));
    for claimed in [v4(A2), GATEWAY4, [10, 1, 2, 77], [0; 4]] {
        refuses(&mut site, &answer((FAR, claimed), to), DropReason::ArpSpoof);
    }
    refuses(
        &mut site,
        &answer((mac(A2), FAR4), to),
        DropReason::ArpSpoof,
    );
    // Everybody is told nothing, nor is one what another asked.
    let all = answer((FAR, FAR4), (MacAddress::BROADCAST, v4(A1)));
    assert_eq!(come(&mut site, &all).sent.len(), 0);
    let other = answer((FAR, FAR4), (mac(A2), v4(A1)));
    assert_eq!(come(&mut site, &other).sent.len(), 0);
    // Announcing an address of somebody's here is a lie, one's own is nobody's business.
    let gratuitous = |of| {
        arp(
            (FAR, MacAddress::BROADCAST),
            asked(Operation::Request, (FAR, of), (ZERO, of)),
        )
    };
    refuses(&mut site, &gratuitous(v4(A2)), DropReason::ArpSpoof);
    assert_eq!(come(&mut site, &gratuitous(FAR4)).sent.len(), 0);

    let to = (mac(A1), v6(A1));
    let seen = come(&mut site, &advert(to, FAR6, FAR));
    assert_eq!(seen.only().slot, A1);
    // No router is beyond.
    assert_eq!(seen.only().transport()[4] & 0x80, 0);
    for claimed in [v6(A2), GATEWAY6, outside(1)] {
        refuses(&mut site, &advert(to, claimed, FAR), DropReason::NdSpoof);
    }
    refuses(&mut site, &advert(to, FAR6, mac(A2)), DropReason::NdSpoof);
    refuses(
        &mut site,
        &solicit(FAR6, v6(A2), Some(mac(A2))),
        DropReason::NdSpoof,
    );
}

#[test]
fn neighbours_are_solicited_beyond_in_the_askers_name() {
    let mut site = segment();
    let ask = |source: [u8; 16], target: [u8; 16]| {
        let group = solicited_node(&target);
        let mut body = [0; 64];
        let source_link = (source != [0; 16]).then_some(mac(A1));
        let length = NeighbourSolicit {
            target,
            source_link,
        }
        .emit(&mut body)
        .unwrap();
        let link = (mac(A1), MacAddress::of_group6(group));
        icmp6(link, (source, group), 255, &body[..length])
    };
    for source in [v6(A1), link_local(mac(A1)), [0; 16]] {
        let seen = site.inject(A1, &ask(source, FAR6));
        let sent = seen.only();
        assert_eq!((sent.slot, sent.tag), (FABRIC, SEGMENT));
        assert_eq!(sent.parsed().ip().unwrap().source, source);
        sent.tuple();
    }
    assert_eq!(
        site.inject(A1, &ask(v6(A1), link_local(FAR))).only().slot,
        FABRIC
    );
    assert_eq!(site.inject(A1, &ask(v6(A1), v6(A2))).only().slot, A1);
    site.refuses(A1, &ask(v6(A1), outside(1)), DropReason::NoNeighbour);
    // Gateway's own advertisements stay here.
    for sent in site.after(20 * SECOND).sent {
        assert_ne!((sent.slot, sent.tag), (FABRIC, SEGMENT), "{sent:?}");
    }
}

/// Everybody sends what they like; of what comes only TCP to port 80 is let in, and that
/// its answers leave follows from it.
fn judged(tables: &mut CompartmentTables) {
    tables.subnets[0].segment = SEGMENT;
    let of = |rules, default| RuleTable { rules, default };
    tables.rule_tables = vec![
        of(
            vec![
                rule(17, 53..=53, Action::Allow, 1),
                rule(6, 443..=443, Action::Allow, 2),
            ],
            Action::Deny,
        ),
        of(vec![rule(6, 80..=80, Action::Allow, 3)], Action::Deny),
    ];
    for endpoint in &mut tables.endpoints {
        (endpoint.egress, endpoint.ingress) = (0, 1);
        endpoint.connections = 64;
    }
}

fn segment_of(out: bool, ports: (u16, u16), numbers: (u8, u32, u32)) -> Vec<u8> {
    let (here, there) = ((mac(A1), mapped(v4(A1))), (FAR, mapped(FAR4)));
    let (from, to) = if out { (here, there) } else { (there, here) };
    tcp((from.0, to.0), (from.1, to.1), ports, numbers, b"")
}

#[test]
fn rules_are_asked_and_connections_kept() {
    let mut site = Site::with(judged);
    // What begins here.
    site.refuses(
        A1,
        &segment_of(true, (1000, 25), (SYN, 1, 0)),
        DropReason::EgressRule,
    );
    site.inject(A1, &segment_of(true, (1000, 443), (SYN, 100, 0)))
        .only();
    let back = segment_of(false, (443, 1000), (SYN | ACK, 500, 101));
    assert_eq!(come(&mut site, &back).only().slot, A1);
    // What does not answer it.
    refuses(
        &mut site,
        &segment_of(false, (443, 1001), (SYN | ACK, 5, 5)),
        DropReason::IngressRule,
    );
    // What begins there.
    refuses(
        &mut site,
        &segment_of(false, (2000, 81), (SYN, 1, 0)),
        DropReason::IngressRule,
    );
    let frame = segment_of(false, (2000, 80), (SYN, 100, 0));
    assert_eq!(come(&mut site, &frame).only().slot, A1);
    let frame = segment_of(true, (80, 2000), (SYN | ACK, 500, 101));
    assert_eq!(site.inject(A1, &frame).only().tag, SEGMENT);
    site.refuses(
        A1,
        &segment_of(true, (80, 2001), (SYN | ACK, 5, 5)),
        DropReason::EgressRule,
    );
    // What is for all, to each by its own rules.
    let all = udp4((FAR, MacAddress::BROADCAST), (FAR4, [255; 4]), (1, 9), b"");
    assert_eq!(come(&mut site, &all).sent.len(), 0);
    // Another tenant's tag is another's.
    let seen = site.inject_raw(
        FABRIC,
        SEGMENT + 1,
        RawOffload::default(),
        &segment_of(false, (443, 1000), (ACK, 501, 101)),
    );
    assert_eq!(seen.sent.len(), 0);
}

#[test]
fn connections_end_when_who_is_beyond_is_here() {
    let mut site = Site::with(judged);
    site.inject(A1, &segment_of(true, (1000, 443), (SYN, 100, 0)))
        .only();
    let back = segment_of(false, (443, 1000), (SYN | ACK, 500, 101));
    assert_eq!(come(&mut site, &back).only().slot, A1);
    // An edit that has nothing to do with it.
    site.change(|tables| tables.endpoints[5].mtu = 1400);
    let on = segment_of(true, (1000, 443), (ACK, 101, 501));
    assert_eq!(site.inject(A1, &on).only().tag, SEGMENT);
    // Now A2 has that address.
    site.change(|tables| tables.addresses.push((1, mapped(FAR4))));
    let frame = segment_of(true, (1000, 443), (ACK, 101, 501));
    site.refuses(A1, &frame, DropReason::NoNeighbour);
    let frame = segment_of(false, (443, 1000), (ACK, 501, 101));
    refuses(&mut site, &frame, DropReason::SourceIp);
}

#[test]
fn connections_outlive_their_switch_while_who_is_beyond_is_not_here() {
    let (mut site, page) = keeping(Site::with(judged));
    site.inject(A1, &segment_of(true, (1000, 443), (SYN, 100, 0)))
        .only();
    let frame = segment_of(false, (443, 1000), (SYN | ACK, 500, 101));
    come(&mut site, &frame).only();
    let frame = segment_of(true, (1000, 443), (ACK, 101, 501));
    site.inject(A1, &frame).only();
    let frame = segment_of(false, (2000, 80), (SYN, 100, 0));
    come(&mut site, &frame).only();
    let frame = segment_of(true, (80, 2000), (SYN | ACK, 500, 101));
    site.inject(A1, &frame).only();
    let frame = segment_of(false, (2000, 80), (ACK, 101, 501));
    come(&mut site, &frame).only();
    let before = page.left();
    site.crash(Some(&page));
    assert_eq!(came(&site), (2, 0));
    let frame = segment_of(false, (443, 1000), (ACK, 501, 101));
    assert_eq!(come(&mut site, &frame).only().slot, A1);
    let frame = segment_of(true, (80, 2000), (ACK, 501, 101));
    assert_eq!(site.inject(A1, &frame).only().tag, SEGMENT);
    site.change(|tables| tables.addresses.push((1, mapped(FAR4))));
    site.crash(Some(&before));
    assert_eq!(came(&site), (0, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever an endpoint sends: an honest switch says nothing in the VLAN that the fabric
    /// would report it for, nor as anybody but its endpoints.
    #[test]
    fn what_leaves_is_what_the_fabric_lets_out(
        frame in crate::properties::frame(),
        offload in crate::properties::offload(),
        to in prop_oneof![
            Just(FAR),
            Just(MacAddress([3, 0, 0, 0, 0, 1])),
            Just(MacAddress([1, 0, 0, 0, 0, 0])),
            Just(MacAddress([1, 0, 0x5e, 1, 2, 3])),
            Just(MacAddress([0x33, 0x33, 0, 0, 0, 7])),
            Just(MacAddress::BROADCAST),
            any::<[u8; 6]>().prop_map(MacAddress),
        ],
        kept in any::<bool>(),
    ) {
        let mut site = segment();
        let mut frame = frame;
        if !kept && frame.len() >= 12 {
            frame[..6].copy_from_slice(&to.0);
            frame[6..12].copy_from_slice(&mac(A1).0);
        }
        let plain = udp4((mac(A1), to), (v4(A1), [239, 1, 2, 3]), (1, 2), b"");
        for (offload, frame) in [(offload, &frame), (RawOffload::default(), &plain)] {
            for sent in site.inject_raw(A1, 0, offload, frame).sent {
                if (sent.slot, sent.tag) != (FABRIC, SEGMENT) {
                    continue;
                }
                let head = &sent.frame[..14];
                prop_assert_eq!(&head[6..12], &mac(A1).0);
                prop_assert!(matches!(head[12..14], [8, 0] | [8, 6] | [0x86, 0xdd]), "{head:x?}");
                let group = matches!(head[..6], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] | [1, 0, 0x5e, ..] | [0x33, 0x33, ..]);
                prop_assert!(group || head[0] & 1 == 0, "{head:x?}");
            }
        }
    }

    /// Whatever comes: it reaches endpoints of the subnet alone, from MACs and addresses that
    /// are nobody's here.
    #[test]
    fn what_comes_reaches_who_is_in_the_subnet(
        from in prop_oneof![Just(FAR), Just(mac(A2)), Just(gateway_mac(0)), any::<[u8; 6]>().prop_map(MacAddress)],
        to in prop_oneof![Just(mac(A1)), Just(mac(B1)), Just(MacAddress::BROADCAST), any::<[u8; 6]>().prop_map(MacAddress)],
        source in prop_oneof![Just(FAR4), Just(v4(A2)), Just(GATEWAY4), (0u8..=255).prop_map(|n| [10, 1, 1, n]), any::<[u8; 4]>()],
        destination in prop_oneof![Just(v4(A1)), Just(v4(B1)), Just([255; 4]), any::<[u8; 4]>()],
        ports in any::<(u16, u16)>(),
    ) {
        let mut site = segment();
        let frame = udp4((from, to), (source, destination), ports, b"x");
        let seen = come(&mut site, &frame);
        for sent in &seen.sent {
            prop_assert!([A1, A2, R].contains(&sent.slot), "{sent:?}");
            prop_assert!(!from.is_group() && ![mac(A1), mac(A2), mac(R), gateway_mac(0)].contains(&from));
            let beyond = source[..3] == [10, 1, 1] && ![0, 1, 10, 11, 12, 255].contains(&source[3]);
            prop_assert!(beyond, "{source:?}");
        }
        prop_assert!(!seen.sent.is_empty() || seen.drops.len() == 1, "{seen:?}");
    }
}
