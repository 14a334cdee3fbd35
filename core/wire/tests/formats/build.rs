//! Builders against etherparse, and representations against themselves.

use etherparse::{NetSlice, SlicedPacket};
use wire::address::{self, mapped};
use wire::nd::{self, Message, NeighbourAdvert, NeighbourSolicit, Options, Prefix, RouterAdvert};
use wire::{MacAddress, Malformed, arp, build, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::frames::{self, BLUE, BLUE4, BLUE6, RED, RED4, RED6};

#[test]
fn addresses_are_derived_as_the_rfcs_say() {
    let mac = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    let expected = [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56,
    ];
    assert_eq!(address::link_local(mac), expected);
    let group = address::solicited_node(&expected);
    assert_eq!(group[11..], [1, 0xff, 0x12, 0x34, 0x56]);
    assert_eq!(
        MacAddress::of_group6(group),
        MacAddress([0x33, 0x33, 0xff, 0x12, 0x34, 0x56])
    );
    assert_eq!(
        MacAddress::of_group4([239, 129, 2, 3]),
        MacAddress([1, 0, 0x5e, 1, 2, 3])
    );
    assert_eq!(address::unmapped(&mapped(RED4)), Some(RED4));
    assert_eq!(address::unmapped(&RED6), None);
    assert!(MacAddress([1, 0x80, 0xc2, 0, 0, 0xe]).is_reserved());
    assert!(!MacAddress([1, 0x80, 0xc2, 0, 0, 0x10]).is_reserved());
    assert!(address::in_prefix(
        &mapped([10, 1, 2, 3]),
        &mapped([10, 1, 0, 0]),
        112
    ));
    assert!(!address::in_prefix(
        &mapped([10, 2, 2, 3]),
        &mapped([10, 1, 0, 0]),
        112
    ));
    assert!(address::in_prefix(&RED6, &BLUE6, 0));
    assert_eq!(mac.to_string(), "52:54:00:12:34:56");
}

#[test]
fn datagrams_are_what_etherparse_makes() {
    let body = b"question";
    let write = |buffer: &mut [u8]| {
        buffer[..body.len()].copy_from_slice(body);
        Ok(body.len())
    };
    let mut buffer = [0xaa; 200];
    let ethernet4 = ethernet::Header::new(BLUE, RED, ethernet::IPV4);
    let ip4 = ipv4::Header::new(RED4, BLUE4, 0);
    let length = build::udp4(&mut buffer, &ethernet4, &ip4, (5000, 53), write).unwrap();
    assert_eq!(buffer[..length], frames::udp(false, body));
    let ethernet6 = ethernet::Header::new(BLUE, RED, ethernet::IPV6);
    let ip6 = ipv6::Header::new(RED6, BLUE6, 0);
    let length = build::udp6(&mut buffer, &ethernet6, &ip6, (5000, 53), write).unwrap();
    assert_eq!(buffer[..length], frames::udp(true, body));
    assert!(build::udp6(&mut buffer[..60], &ethernet6, &ip6, (1, 2), |_| Ok(0)).is_err());
}

#[test]
fn arp_is_read_and_answered() {
    let request = arp::Message {
        operation: arp::Operation::Request,
        sender_mac: RED,
        sender: RED4,
        target_mac: MacAddress::ZERO,
        target: BLUE4,
    };
    let mut buffer = [0; 42];
    let ethernet = ethernet::Header::new(MacAddress::BROADCAST, RED, ethernet::ARP);
    assert_eq!(build::arp(&mut buffer, &ethernet, &request), Ok(42));
    let copy = buffer;
    let sliced = SlicedPacket::from_ethernet(&copy).unwrap();
    let Some(NetSlice::Arp(slice)) = sliced.net else {
        panic!("not ARP")
    };
    assert_eq!(
        (slice.sender_protocol_addr(), slice.target_protocol_addr()),
        (&RED4[..], &BLUE4[..])
    );
    let parsed = wire::parse(&buffer, 42).unwrap();
    let wire::parse::Network::Arp(read) = parsed.network else {
        panic!("not ARP")
    };
    assert_eq!(read, request);
    let reply = read.reply(BLUE);
    assert_eq!(
        (reply.sender_mac, reply.sender, reply.target),
        (BLUE, BLUE4, RED4)
    );
    buffer[14 + 7] = 3;
    assert_eq!(wire::parse(&buffer, 42), Err(wire::ParseError::Arp));
}

#[test]
fn echo_is_answered_in_place_with_the_right_checksum() {
    let echo = icmpv4::Echo {
        request: true,
        id: 1,
        sequence: 2,
        data: b"abc",
    };
    let mut buffer = [0; 11];
    assert_eq!(echo.emit(&mut buffer), Ok(11));
    icmpv4::echo_in_place(&mut buffer).unwrap();
    assert_eq!(
        icmpv4::Echo::parse(&buffer),
        Ok(icmpv4::Echo {
            request: false,
            ..echo
        })
    );
    assert_eq!(icmpv4::echo_in_place(&mut buffer), None);
    buffer[9] ^= 1;
    assert_eq!(icmpv4::Echo::parse(&buffer), Err(Malformed::Checksum));

    let mut frame = [0; 100];
    let ethernet = ethernet::Header::new(BLUE, RED, ethernet::IPV6);
    let ip = ipv6::Header::new(RED6, BLUE6, 0);
    let echo = icmpv6::Echo {
        request: true,
        id: 1,
        sequence: 2,
        data: b"abc",
    };
    let length = build::icmpv6(&mut frame, &ethernet, &ip, |b| echo.emit(b)).unwrap();
    let message = &mut frame[54..length];
    assert_eq!(icmpv6::Echo::parse(message, &RED6, &BLUE6), Ok(echo));
    icmpv6::echo_in_place(message).unwrap();
    assert_eq!(
        icmpv6::Echo::parse(message, &BLUE6, &RED6),
        Ok(icmpv6::Echo {
            request: false,
            ..echo
        })
    );
}

#[test]
fn errors_quote_and_carry_the_mtu() {
    let quote = frames::udp(false, b"x");
    let mut buffer = [0; 300];
    let error = icmpv4::Error::FragmentationNeeded { mtu: 1400 };
    let length = error.emit(&mut buffer, &quote[14..]).unwrap();
    assert_eq!(checksum::internet(&buffer[..length]), 0);
    assert_eq!(buffer[..2], [3, 4]);
    assert_eq!(buffer[4..8], [0, 0, 5, 120]);
    assert_eq!(buffer[8..length], quote[14..]);

    let ethernet = ethernet::Header::new(RED, BLUE, ethernet::IPV6);
    let ip = ipv6::Header::new(BLUE6, RED6, 0);
    let error = icmpv6::Error::PacketTooBig { mtu: 1400 };
    let length = build::icmpv6(&mut buffer, &ethernet, &ip, |b| error.emit(b, &quote)).unwrap();
    assert!(checksum::verifies(
        &BLUE6,
        &RED6,
        icmpv6::PROTOCOL,
        &buffer[54..length]
    ));
    assert_eq!(buffer[54..56], [2, 0]);
    assert_eq!(buffer[58..62], [0, 0, 5, 120]);
}

#[test]
fn neighbour_discovery_is_read_as_it_was_written() {
    let mut buffer = [0; 200];
    let solicit = NeighbourSolicit {
        target: BLUE6,
        source_link: Some(RED),
    };
    let length = solicit.emit(&mut buffer).unwrap();
    let read = Message::parse(&buffer[..length]).unwrap();
    let options = Options {
        source_link: Some(RED),
        ..Options::default()
    };
    assert_eq!(
        read,
        Message::NeighbourSolicit {
            target: BLUE6,
            options
        }
    );

    let advert = NeighbourAdvert {
        router: true,
        solicited: true,
        overrides: false,
        target: BLUE6,
        target_link: Some(BLUE),
    };
    let length = advert.emit(&mut buffer).unwrap();
    assert_eq!(
        Message::parse(&buffer[..length]),
        Ok(Message::NeighbourAdvert(advert))
    );

    let advert = RouterAdvert {
        hop_limit: 64,
        managed: false,
        other: true,
        lifetime_s: 1800,
        reachable_ms: 0,
        retransmit_ms: 0,
        options: Options {
            source_link: Some(BLUE),
            mtu: Some(1450),
            prefix: Some(Prefix {
                prefix: [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                length: 64,
                on_link: true,
                autonomous: false,
                valid_s: 86400,
                preferred_s: 14400,
            }),
            dns: Some((BLUE6, 3600)),
            ..Options::default()
        },
    };
    let length = advert.emit(&mut buffer).unwrap();
    assert_eq!(length, 16 + 8 + 8 + 32 + 24);
    assert_eq!(
        Message::parse(&buffer[..length]),
        Ok(Message::RouterAdvert(advert))
    );
}

#[test]
fn neighbour_discovery_that_lies_is_refused() {
    let mut solicit = [0; 32];
    NeighbourSolicit {
        target: BLUE6,
        source_link: Some(RED),
    }
    .emit(&mut solicit)
    .unwrap();
    let refused = |at: usize, value: u8| {
        let mut bytes = solicit;
        bytes[at] = value;
        Message::parse(&bytes).unwrap_err()
    };
    assert_eq!(refused(1, 1), Malformed::Field);
    assert_eq!(refused(8, 0xff), Malformed::Field);
    assert_eq!(refused(25, 0), Malformed::Length);
    assert_eq!(refused(25, 2), Malformed::Length);
    assert_eq!(refused(0, 138), Malformed::Field);
    assert_eq!(Message::parse(&solicit[..20]), Err(Malformed::Truncated));
    assert_eq!(Message::parse(&solicit[..25]), Err(Malformed::Truncated));
    let mut twice = solicit.to_vec();
    twice.extend_from_slice(&solicit[24..]);
    assert_eq!(Message::parse(&twice), Err(Malformed::Field));
    let mut many = solicit[..24].to_vec();
    for _ in 0..=nd::MAX_OPTIONS {
        many.extend([200, 1, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(Message::parse(&many), Err(Malformed::Length));
}

#[test]
fn hop_limits_go_down_with_the_checksum_right() {
    let mut frame = frames::udp(false, b"x");
    for left in (0..64).rev() {
        assert_eq!(ipv4::decrement_ttl(&mut frame[14..]), Some(left));
        assert!(wire::parse(&frame, frame.len()).is_ok(), "{left}");
    }
    assert_eq!(ipv4::decrement_ttl(&mut frame[14..]), None);
    let mut frame = frames::udp(true, b"x");
    assert_eq!(ipv6::decrement_hop_limit(&mut frame[14..]), Some(63));
    assert_eq!(
        wire::parse(&frame, frame.len())
            .unwrap()
            .ip()
            .unwrap()
            .hop_limit,
        63
    );
}
