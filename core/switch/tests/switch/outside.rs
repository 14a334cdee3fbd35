//! The compartment as a machine on an uplink.

use crate::support::*;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{link_local, mapped, solicited_node};
use wire::arp::{Message, Operation};
use wire::ipv4::Header;
use wire::parse::Network;

const FAR: [u8; 4] = [198, 51, 100, 7];

fn out() -> Vec<u8> {
    udp4((mac(A1), GATEWAY), (v4(A1), FAR), (1, 2), b"out")
}

fn answer(sender_mac: MacAddress, sender: [u8; 4]) -> Vec<u8> {
    let message = Message {
        operation: Operation::Reply,
        sender_mac,
        sender,
        target_mac: OUTSIDE_MAC,
        target: [192, 0, 2, 10],
    };
    arp((sender_mac, OUTSIDE_MAC), message)
}

#[test]
fn a_next_hop_is_asked_for_and_then_used() {
    let mut site = Site::new();
    let seen = site.inject(A1, &out());
    assert_eq!(seen.reasons(), [DropReason::Resolving]);
    let asked = &seen.sent[0];
    assert_eq!((asked.slot, asked.tag), (FABRIC, TAG));
    let Network::Arp(message) = asked.parsed().network else {
        panic!()
    };
    assert_eq!(
        (message.target, message.sender, message.sender_mac),
        ([192, 0, 2, 1], [192, 0, 2, 10], OUTSIDE_MAC)
    );
    // While it is being asked for, nobody asks again.
    assert_eq!(site.inject(A1, &out()).sent.len(), 0);
    site.inject(FABRIC, &answer(NEXT_HOP, [192, 0, 2, 1]));
    let seen = site.inject(A1, &out());
    let sent = seen.only();
    let parsed = sent.parsed();
    assert_eq!((sent.slot, sent.tag), (FABRIC, TAG));
    assert_eq!((parsed.source, parsed.destination), (OUTSIDE_MAC, NEXT_HOP));
    assert_eq!(
        (parsed.ip().unwrap().source, parsed.ip().unwrap().hop_limit),
        (mapped(v4(A1)), 63)
    );
}

#[test]
fn a_next_hop_that_does_not_answer_is_given_up_for_a_while() {
    let mut site = Site::new();
    site.inject(A1, &out());
    let mut asked = 1;
    for _ in 0..5 {
        asked += site
            .after(SECOND)
            .sent
            .iter()
            .filter(|s| s.slot == FABRIC)
            .count();
    }
    assert_eq!(asked, 3);
    let seen = site.inject(A1, &out());
    assert_eq!(seen.reasons(), [DropReason::NoNeighbour]);
    assert_eq!(
        (seen.sent[0].slot, &seen.sent[0].transport()[..2]),
        (A1, &[3, 1][..])
    );
    site.after(5 * SECOND);
    assert_eq!(site.inject(A1, &out()).reasons(), [DropReason::Resolving]);
}

#[test]
fn neighbour_solicited_only() {
    // An answer that nobody asked for teaches nothing.
    let mut site = Site::new();
    site.inject(FABRIC, &answer(NEXT_HOP, [192, 0, 2, 1]));
    assert_eq!(site.inject(A1, &out()).reasons(), [DropReason::Resolving]);
    // Nor does it replace what is known; it makes the switch ask.
    site.inject(FABRIC, &answer(NEXT_HOP, [192, 0, 2, 1]));
    let liar = MacAddress([2, 6, 6, 6, 6, 6]);
    site.inject(FABRIC, &answer(liar, [192, 0, 2, 1]));
    assert_eq!(
        site.inject(A1, &out()).only().parsed().destination,
        NEXT_HOP
    );
    // And of an address that is no next hop nothing is kept at all.
    site.inject(FABRIC, &answer(liar, [192, 0, 2, 66]));
}

#[test]
fn a_fixed_mac_needs_no_question_and_cannot_be_changed() {
    let mut site = Site::new();
    let far = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let frame = udp6((mac(A1), GATEWAY), (v6(A1), far), (1, 2), b"out");
    assert_eq!(
        site.inject(A1, &frame).only().parsed().destination,
        NEXT_HOP
    );
    site.now += 3600 * SECOND;
    assert_eq!(
        site.inject(A1, &frame).only().parsed().destination,
        NEXT_HOP
    );
}

#[test]
fn a_next_hop_in_use_is_confirmed_again() {
    let mut site = Site::new();
    site.inject(A1, &out());
    site.inject(FABRIC, &answer(NEXT_HOP, [192, 0, 2, 1]));
    assert_eq!(site.inject(A1, &out()).sent.len(), 1);
    site.now += 60 * SECOND;
    let seen = site.inject(A1, &out());
    assert_eq!(seen.slots(), [FABRIC, FABRIC]);
    assert!(matches!(seen.sent[0].parsed().network, Network::Arp(_)));
}

fn inward(source: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    udp4((NEXT_HOP, OUTSIDE_MAC), (source, to), (1, 2), b"in")
}

#[test]
fn frames_from_outside_reach_the_tenants_endpoints() {
    let seen = Site::new().inject(FABRIC, &inward(FAR, v4(B1)));
    let sent = seen.only();
    assert_eq!(
        (sent.slot, sent.tag, sent.parsed().source),
        (B1, 0, gateway_mac(1))
    );
    let seen = Site::new().inject(
        FABRIC,
        &udp4((NEXT_HOP, OUTSIDE_MAC), (FAR, [10, 9, 0, 1]), (1, 2), b""),
    );
    assert_eq!(seen.only().slot, R);
}

#[test]
fn outside_source_inside_the_tenant_is_a_martian() {
    for source in [
        v4(A1),
        [10, 9, 0, 1],
        [192, 0, 2, 10],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255; 4],
        [0; 4],
    ] {
        Site::new().refuses(FABRIC, &inward(source, v4(B1)), DropReason::Martian);
    }
    let frame = udp6((NEXT_HOP, OUTSIDE_MAC), (v6(A1), v6(B1)), (1, 2), b"");
    Site::new().refuses(FABRIC, &frame, DropReason::Martian);
    let frame = udp6(
        (NEXT_HOP, OUTSIDE_MAC),
        (link_local(NEXT_HOP), v6(B1)),
        (1, 2),
        b"",
    );
    Site::new().refuses(FABRIC, &frame, DropReason::Martian);
}

#[test]
fn no_transit() {
    let mut site = Site::new();
    let frame = inward([203, 0, 113, 1], FAR);
    site.refuses(FABRIC, &frame, DropReason::Martian);
    site.inject(A1, &out());
    site.inject(FABRIC, &answer(NEXT_HOP, [192, 0, 2, 1]));
    site.refuses(FABRIC, &frame, DropReason::Martian);
}

#[test]
fn unknown_tags_foreign_macs_and_vlans_are_dropped() {
    let frame = inward(FAR, v4(B1));
    for tag in [0, 1, TAG + 1, u16::MAX] {
        let seen = Site::new().inject_raw(FABRIC, tag, Default::default(), &frame);
        assert_eq!(
            (seen.reasons(), seen.sent.len()),
            (vec![DropReason::UnknownMac], 0)
        );
    }
    outside_mac();
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    Site::new().refuses(FABRIC, &tagged, DropReason::VlanTag);
}

#[test]
fn outside_mac() {
    for to in [MacAddress::BROADCAST, NEXT_HOP, mac(B1), gateway_mac(1)] {
        let frame = udp4((NEXT_HOP, to), (FAR, v4(B1)), (1, 2), b"");
        let seen = Site::new().inject(FABRIC, &frame);
        assert_eq!(seen.sent.len(), 0, "{to:?}");
        assert_eq!(seen.drops.len(), 1, "{to:?}");
    }
}

#[test]
fn outside_vlan() {
    let mut tagged = inward(FAR, v4(B1));
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    Site::new().refuses(FABRIC, &tagged, DropReason::VlanTag);
}

#[test]
fn answers_for_its_own_addresses_outside() {
    let question = Message {
        operation: Operation::Request,
        sender_mac: NEXT_HOP,
        sender: [192, 0, 2, 1],
        target_mac: MacAddress::ZERO,
        target: [192, 0, 2, 10],
    };
    let seen = Site::new().inject(FABRIC, &arp((NEXT_HOP, MacAddress::BROADCAST), question));
    let sent = seen.only();
    let Network::Arp(told) = sent.parsed().network else {
        panic!()
    };
    assert_eq!(
        (sent.slot, sent.tag, told.sender_mac, told.sender),
        (FABRIC, TAG, OUTSIDE_MAC, [192, 0, 2, 10])
    );
    let other = Message {
        target: v4(A1),
        ..question
    };
    assert!(
        Site::new()
            .inject(FABRIC, &arp((NEXT_HOP, MacAddress::BROADCAST), other))
            .sent
            .is_empty()
    );

    let mut message = [0; 64];
    let solicit = wire::nd::NeighbourSolicit {
        target: outside(10),
        source_link: Some(NEXT_HOP),
    };
    let n = solicit.emit(&mut message).unwrap();
    let group = solicited_node(&outside(10));
    let frame = icmp6(
        (NEXT_HOP, MacAddress::of_group6(group)),
        (outside(1), group),
        255,
        &message[..n],
    );
    let seen = Site::new().inject(FABRIC, &frame);
    assert_eq!((seen.only().tag, seen.only().transport()[0]), (TAG, 136));

    let ping = icmp4(
        (NEXT_HOP, OUTSIDE_MAC),
        Header::new(FAR, [192, 0, 2, 10], 1),
        &[8, 0, 0, 0, 0, 1, 0, 1],
    );
    let seen = Site::new().inject(FABRIC, &ping);
    let sent = seen.only();
    assert_eq!(
        (sent.slot, sent.tag, sent.parsed().destination),
        (FABRIC, TAG, NEXT_HOP)
    );
}

#[test]
fn errors_about_what_came_from_outside_go_back_there() {
    let seen = Site::new().inject(FABRIC, &inward(FAR, [10, 1, 2, 99]));
    assert_eq!(seen.reasons(), [DropReason::NoNeighbour]);
    let sent = &seen.sent[0];
    assert_eq!(
        (sent.slot, sent.tag, sent.parsed().source),
        (FABRIC, TAG, OUTSIDE_MAC)
    );
    assert_eq!(sent.parsed().ip().unwrap().source, mapped([192, 0, 2, 10]));
}

#[test]
fn an_uplink_without_an_address_of_a_family_says_nothing_in_it() {
    let of4_alone = || Site::with(|tables| tables.attachments[0].address6 = [0; 16]);
    let mut message = [0; 64];
    let solicit = wire::nd::NeighbourSolicit {
        target: link_local(OUTSIDE_MAC),
        source_link: Some(NEXT_HOP),
    };
    let n = solicit.emit(&mut message).unwrap();
    let (there, here) = (link_local(NEXT_HOP), link_local(OUTSIDE_MAC));
    let asked = icmp6((NEXT_HOP, OUTSIDE_MAC), (there, here), 255, &message[..n]);
    let ping = [128, 0, 0, 0, 0, 1, 0, 1];
    for to in [here, outside(10), outside(77), v6(A1)] {
        // The last hop: what is routed on would be an error.
        for (from, hops) in [(there, 64), (outside(1), 1), (outside(1), 64)] {
            let frame = icmp6((NEXT_HOP, OUTSIDE_MAC), (from, to), hops, &ping);
            let seen = of4_alone().inject(FABRIC, &frame);
            assert!(seen.slots().iter().all(|slot| *slot != FABRIC), "{seen:?}");
        }
    }
    of4_alone().refuses(FABRIC, &asked, DropReason::EtherType);
    // Nor is a neighbour asked for in it.
    let frame = icmp6((mac(A1), GATEWAY), (v6(A1), [0x3f; 16]), 64, &ping);
    let seen = of4_alone().inject(A1, &frame);
    assert!(seen.slots().iter().all(|slot| *slot != FABRIC), "{seen:?}");
}
