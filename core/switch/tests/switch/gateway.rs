//! The gateway that is always there: routing between subnets, errors, echo, MTU.

use crate::support::*;
use core_switch::Config;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{link_local, mapped};
use wire::ipv4::Header;
use wire::parse::Fragment;

const VIA: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);

fn to_b1(payload: &[u8]) -> Vec<u8> {
    udp4(VIA, (v4(A1), v4(B1)), (1, 2), payload)
}

#[test]
fn routes_between_the_subnets_of_a_tenant() {
    let seen = Site::new().inject(A1, &to_b1(b"hello"));
    let sent = seen.only();
    assert_eq!(sent.slot, B1);
    let parsed = sent.parsed();
    assert_eq!(
        (parsed.destination, parsed.source),
        (mac(B1), gateway_mac(1))
    );
    assert_eq!(parsed.ip().unwrap().hop_limit, 63);

    let frame = udp6(VIA, (v6(A1), v6(B1)), (1, 2), b"hello");
    let seen = Site::new().inject(A1, &frame);
    let parsed = seen.only().parsed();
    assert_eq!((seen.only().slot, parsed.source), (B1, gateway_mac(1)));
    assert_eq!(parsed.ip().unwrap().hop_limit, 63);
}

#[test]
fn long_frames_are_routed_whole() {
    let frame = to_b1(&[7; 1400]);
    let seen = Site::new().inject(A1, &frame);
    assert_eq!(seen.only().frame[42..], frame[42..]);
}

#[test]
fn routes_through_a_router_endpoint() {
    let frame = udp4(VIA, (v4(A1), [10, 9, 0, 7]), (1, 2), b"");
    assert_eq!(Site::new().inject(A1, &frame).only().slot, R);
    // What the router itself sends there would come straight back.
    let frame = udp4((mac(R), GATEWAY), (v4(R), [10, 9, 0, 7]), (1, 2), b"");
    Site::new().refuses(R, &frame, DropReason::Hairpin);
}

/// An ICMP error to A1: (type, code, rest of header, quote).
fn error(seen: &crate::support::Seen) -> (u8, u8, u32, Vec<u8>) {
    assert_eq!(seen.sent.len(), 1, "{seen:?}");
    let sent = &seen.sent[0];
    let parsed = sent.parsed();
    let ip = parsed.ip().unwrap();
    assert_eq!(
        (sent.slot, parsed.destination, parsed.source),
        (A1, mac(A1), GATEWAY)
    );
    let m = sent.transport();
    match ip.version {
        wire::parse::Version::V4 => {
            assert_eq!(
                (ip.source, ip.destination),
                (mapped(GATEWAY4), mapped(v4(A1)))
            );
            assert_eq!(wire::checksum::internet(m), 0);
            assert!(ip.packet_len <= 576);
        }
        wire::parse::Version::V6 => {
            assert_eq!((ip.source, ip.destination), (GATEWAY6, v6(A1)));
            assert!(wire::checksum::verifies(&ip.source, &ip.destination, 58, m));
            assert!(ip.packet_len <= 1280);
        }
    }
    (
        m[0],
        m[1],
        u32::from_be_bytes([m[4], m[5], m[6], m[7]]),
        m[8..].to_vec(),
    )
}

#[test]
fn hop_limit() {
    let frame = udp4_with(
        VIA,
        Header {
            ttl: 1,
            ..Header::new(v4(A1), v4(B1), 17)
        },
        (1, 2),
        &[9; 1000],
    );
    let seen = Site::new().inject(A1, &frame);
    assert_eq!(seen.reasons(), [DropReason::HopLimit]);
    let (kind, code, _, quote) = error(&seen);
    assert_eq!((kind, code), (11, 0));
    assert_eq!(quote, frame[14..14 + 548]);

    let mut frame = udp6(VIA, (v6(A1), v6(B1)), (1, 2), &[9; 1300]);
    frame[14 + 7] = 1;
    let (kind, code, _, quote) = error(&Site::new().inject(A1, &frame));
    assert_eq!((kind, code), (3, 0));
    assert_eq!(quote, frame[14..14 + 1232]);
}

#[test]
fn unreachable() {
    let v4_of = |to| udp4(VIA, (v4(A1), to), (1, 2), b"q");
    for (to, reason, kind, code) in [
        ([8, 8, 8, 8], DropReason::NoRoute, 3, 0),
        ([10, 1, 2, 77], DropReason::NoNeighbour, 3, 1),
        ([172, 16, 1, 1], DropReason::NoRoute, 3, 13),
        (GATEWAY4, DropReason::GatewayPort, 3, 3),
        ([10, 1, 2, 1], DropReason::GatewayPort, 3, 3),
    ] {
        let frame = v4_of(to);
        let seen = Site::new().inject(A1, &frame);
        assert_eq!(seen.reasons(), [reason], "{to:?}");
        let (k, c, _, quote) = error(&seen);
        assert_eq!((k, c), (kind, code), "{to:?}");
        assert_eq!(quote, frame[14..]);
    }
    let far = [0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut nobody = v6(B1);
    nobody[15] = 99;
    for (to, reason, code) in [
        (far, DropReason::NoRoute, 0),
        (nobody, DropReason::NoNeighbour, 3),
        (GATEWAY6, DropReason::GatewayPort, 4),
    ] {
        let seen = Site::new().inject(A1, &udp6(VIA, (v6(A1), to), (1, 2), b"q"));
        assert_eq!(seen.reasons(), [reason], "{to:?}");
        assert_eq!(error(&seen).1, code, "{to:?}");
    }
}

#[test]
fn a_tenant_never_routes_to_another() {
    // Blue has no route to red's second subnet, though red does.
    let frame = udp4((mac(C1), gateway_mac(2)), (v4(C1), v4(B1)), (1, 2), b"");
    let seen = Site::new().inject(C1, &frame);
    assert_eq!(
        (seen.reasons(), seen.slots()),
        (vec![DropReason::NoRoute], vec![C1])
    );
    // The same address is somebody else for each.
    let frame = udp4((mac(C1), gateway_mac(2)), (v4(C1), v4(A2)), (1, 2), b"");
    assert_eq!(Site::new().inject(C1, &frame).only().slot, C2);
}

#[test]
fn martian_destination() {
    for to in [
        [127, 0, 0, 1],
        [0; 4],
        [255; 4],
        [169, 254, 1, 1],
        [224, 0, 0, 5],
        [240, 0, 0, 1],
    ] {
        Site::new().refuses(
            A1,
            &udp4(VIA, (v4(A1), to), (1, 2), b""),
            DropReason::Martian,
        );
    }
    let multicast = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    for to in [[0; 16], link_local(mac(A2)), multicast] {
        Site::new().refuses(
            A1,
            &udp6(VIA, (v6(A1), to), (1, 2), b""),
            DropReason::Martian,
        );
    }
}

#[test]
fn martian_source_is_not_routed_beyond_its_link() {
    let frame = udp6(VIA, (link_local(mac(A1)), v6(B1)), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::Martian);
}

#[test]
fn directed_broadcast() {
    // An endpoint that wrongly holds the broadcast address must not make it one.
    let mut site = Site::with(|b| b.addresses[9].1 = mapped([10, 1, 2, 255]));
    site.refuses(
        A1,
        &udp4(VIA, (v4(A1), [10, 1, 2, 255]), (1, 2), b""),
        DropReason::Martian,
    );
}

#[test]
fn no_error_about_an_error_or_a_later_fragment() {
    let header = Header::new(v4(A1), [8, 8, 8, 8], 1);
    for kind in [3, 4, 11, 12] {
        Site::new().refuses(
            A1,
            &icmp4(VIA, header, &[kind, 0, 0, 0, 0, 0, 0, 0]),
            DropReason::NoRoute,
        );
    }
    let far = [0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let frame = icmp6(VIA, (v6(A1), far), 64, &[1, 0, 0, 0, 0, 0, 0, 0]);
    Site::new().refuses(A1, &frame, DropReason::NoRoute);
    let mut later = udp4(VIA, (v4(A1), [8, 8, 8, 8]), (1, 2), &[0; 100]);
    later[20..22].copy_from_slice(&0x0010u16.to_be_bytes());
    later[24..26].fill(0);
    let sum = wire::checksum::internet(&later[14..34]);
    later[24..26].copy_from_slice(&sum.to_be_bytes());
    Site::new().refuses(A1, &later, DropReason::NoRoute);
}

#[test]
fn error_rate() {
    let mut site = Site::configured(
        Config {
            error_rate: 1,
            error_burst: 5,
            ..Config::default()
        },
        |_| {},
    );
    let frame = udp4(VIA, (v4(A1), [8, 8, 8, 8]), (1, 2), b"");
    let told: usize = (0..50).map(|_| site.inject(A1, &frame).sent.len()).sum();
    assert_eq!(told, 5);
    assert_eq!(
        site.inject(A1, &frame).reasons(),
        [DropReason::NoRoute, DropReason::ReplyRate]
    );
}

#[test]
fn path_mtu() {
    let mut site = Site::with(|b| b.endpoints[3].mtu = 1300);
    let seen = site.inject(A1, &to_b1(&[1; 1400]));
    assert_eq!(seen.reasons(), [DropReason::TooBig]);
    let (kind, code, rest, _) = error(&seen);
    assert_eq!((kind, code, rest), (3, 4, 1300));
    let frame = udp6(VIA, (v6(A1), v6(B1)), (1, 2), &[1; 1400]);
    let (kind, code, rest, _) = error(&site.inject(A1, &frame));
    assert_eq!((kind, code, rest), (2, 0, 1300));
}

#[test]
fn fragments_what_may_be_fragmented() {
    let mut site = Site::with(|b| b.endpoints[3].mtu = 600);
    let header = Header {
        dont_fragment: false,
        id: 77,
        ..Header::new(v4(A1), v4(B1), 17)
    };
    let frame = udp4_with(VIA, header, (1, 2), &[5; 1400]);
    let seen = site.inject(A1, &frame);
    assert_eq!((seen.slots(), seen.reasons()), (vec![B1; 3], vec![]));
    let mut payload = Vec::new();
    for sent in &seen.sent {
        let parsed = sent.parsed();
        let ip = parsed.ip().unwrap();
        assert!(ip.packet_len <= 600 && ip.fragment != Fragment::Whole);
        assert_eq!((ip.hop_limit, parsed.destination), (63, mac(B1)));
        payload.extend_from_slice(&sent.frame[34..parsed.packet_end]);
    }
    assert_eq!(payload, frame[34..]);
}

#[test]
fn echo() {
    let mut site = Site::new();
    for to in [GATEWAY4, [10, 1, 2, 1], [192, 0, 2, 10]] {
        let frame = icmp4(
            VIA,
            Header::new(v4(A1), to, 1),
            &[&[8, 0, 0, 0, 0, 9, 0, 1][..], &[0xab; 1000]].concat(),
        );
        let seen = site.inject(A1, &frame);
        let sent = seen.only();
        let parsed = sent.parsed();
        let ip = parsed.ip().unwrap();
        assert_eq!(
            (sent.slot, parsed.destination, parsed.source),
            (A1, mac(A1), GATEWAY)
        );
        assert_eq!((ip.source, ip.destination), (mapped(to), mapped(v4(A1))));
        assert_eq!(
            (
                sent.transport()[0],
                wire::checksum::internet(sent.transport())
            ),
            (0, 0)
        );
        assert_eq!(sent.transport()[8..], [0xab; 1000]);
    }
    let mut other = GATEWAY6;
    other[5] = 2;
    for to in [GATEWAY6, link_local(GATEWAY), other] {
        let frame = icmp6(VIA, (v6(A1), to), 64, &[128, 0, 0, 0, 0, 9, 0, 1, 7, 7]);
        let seen = site.inject(A1, &frame);
        let sent = seen.only();
        let ip = *sent.parsed().ip().unwrap();
        assert_eq!(
            (ip.source, ip.destination, sent.transport()[0]),
            (to, v6(A1), 129)
        );
        assert!(wire::checksum::verifies(
            &ip.source,
            &ip.destination,
            58,
            sent.transport()
        ));
    }
}

#[test]
fn reply_rate() {
    let mut site = Site::configured(
        Config {
            reply_rate: 1,
            reply_burst: 4,
            ..Config::default()
        },
        |_| {},
    );
    let frame = arp_request(A1, v4(A1), GATEWAY4);
    let told: usize = (0..50).map(|_| site.inject(A1, &frame).sent.len()).sum();
    assert_eq!(told, 4);
    site.refuses(A1, &frame, DropReason::ReplyRate);
}
