//! What the one pass finds, and what it refuses, frame by frame.

use wire::address::mapped;
use wire::parse::{Fragment, Network, ParseError, Transport, Version};
use wire::{Parsed, ethernet, parse};

use crate::frames::{self, BLUE, BLUE4, BLUE6, RED, RED4, RED6};

fn whole(frame: &[u8]) -> Result<Parsed, ParseError> {
    parse(frame, frame.len())
}

#[test]
fn tcp_over_ipv4_is_read_to_its_ports() {
    let frame = frames::tcp(false, b"hello");
    let parsed = whole(&frame).unwrap();
    assert_eq!((parsed.source, parsed.destination), (RED, BLUE));
    assert_eq!(parsed.packet_end, frame.len());
    assert_eq!(parsed.transport_offset(), Some(34));
    assert_eq!(parsed.payload_offset(), Some(34 + 32));
    let ip = parsed.ip().unwrap();
    assert_eq!((ip.source, ip.destination), (mapped(RED4), mapped(BLUE4)));
    assert_eq!((ip.version, ip.fragment), (Version::V4, Fragment::Whole));
    assert!(matches!(
        ip.transport,
        Transport::Tcp {
            source: 1000,
            destination: 80,
            header_len: 32,
            ..
        }
    ));
}

#[test]
fn udp_over_ipv6_is_read_to_its_ports() {
    let frame = frames::udp(true, b"hello");
    let parsed = whole(&frame).unwrap();
    let ip = parsed.ip().unwrap();
    assert_eq!((ip.source, ip.destination), (RED6, BLUE6));
    assert_eq!(
        ip.transport,
        Transport::Udp {
            source: 5000,
            destination: 53,
            length: 13
        }
    );
}

#[test]
fn padding_of_short_frames_is_no_part_of_the_packet() {
    let mut frame = frames::udp(false, b"x");
    let end = frame.len();
    frame.resize(60, 0xee);
    let parsed = whole(&frame).unwrap();
    assert_eq!(parsed.packet_end, end);
}

#[test]
fn tags_are_noted_and_a_third_is_left_unknown() {
    let plain = frames::udp(false, b"x");
    let mut frame = plain[..12].to_vec();
    frame.extend([0x88, 0xa8, 0x20, 7, 0x81, 0, 0, 9]);
    frame.extend(&plain[12..]);
    let parsed = whole(&frame).unwrap();
    let ids: Vec<u16> = parsed.tags.as_slice().iter().map(|tag| tag.id()).collect();
    assert_eq!(ids, [7, 9]);
    assert_eq!(parsed.transport_offset(), Some(42));
    frame.splice(12..12, [0x81, 0, 0, 1]);
    let parsed = whole(&frame).unwrap();
    assert_eq!(
        (parsed.ethertype, parsed.network),
        (ethernet::VLAN, Network::Unknown)
    );
}

#[test]
fn a_head_shorter_than_its_headers_is_our_bug_and_not_the_senders() {
    let frame = frames::tcp(true, &frames::payload(3000));
    assert!(parse(&frame[..256], frame.len()).is_ok());
    assert_eq!(parse(&frame[..60], frame.len()), Err(ParseError::Head));
    assert_eq!(parse(&frame[..30], 30), Err(ParseError::Truncated));
}

#[test]
fn length_beyond_the_frame_is_refused() {
    for v6 in [false, true] {
        let frame = frames::udp(v6, &frames::payload(100));
        assert_eq!(
            parse(&frame, frame.len() - 1),
            Err(ParseError::Length),
            "v6 {v6}"
        );
    }
}

#[test]
fn ipv4_length_below_its_header_is_refused() {
    let mut frame = frames::udp(false, b"hello");
    frame[17] = 19;
    frames::refresh4(&mut frame);
    assert_eq!(whole(&frame), Err(ParseError::Length));
}

#[test]
fn ipv4_checksum_is_verified() {
    let mut frame = frames::udp(false, b"hello");
    frame[24] ^= 1;
    assert_eq!(whole(&frame), Err(ParseError::Checksum));
}

#[test]
fn version_must_match_the_ethertype() {
    let mut frame = frames::udp(false, &frames::payload(80));
    frame[12..14].copy_from_slice(&ethernet::IPV6.to_be_bytes());
    assert_eq!(whole(&frame), Err(ParseError::Version));
}

#[test]
fn udp_length_beyond_the_packet_is_refused() {
    let mut frame = frames::udp(true, b"hello");
    for length in [7u16, 14] {
        frame[58..60].copy_from_slice(&length.to_be_bytes());
        assert_eq!(whole(&frame), Err(ParseError::TransportLength), "{length}");
    }
    // Shorter than the packet is legal (RFC 9868).
    frame[58..60].copy_from_slice(&8u16.to_be_bytes());
    assert!(whole(&frame).is_ok());
}

#[test]
fn tcp_header_beyond_the_packet_is_refused() {
    let mut frame = frames::tcp(false, b"");
    frame[34 + 12] = 0xf0;
    assert_eq!(whole(&frame), Err(ParseError::TransportLength));
    frame[34 + 12] = 0x40;
    assert_eq!(whole(&frame), Err(ParseError::TransportLength));
}

fn with_options(options: &[u8]) -> Vec<u8> {
    let mut frame = frames::udp(false, b"hello");
    frame.splice(34..34, options.iter().copied());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    frame[17] += options.len() as u8;
    frames::refresh4(&mut frame);
    frame
}

#[test]
fn source_route_options_are_noted_and_broken_options_refused() {
    let noted = |options: &[u8]| {
        let parsed = whole(&with_options(options)).unwrap();
        let ip = parsed.ip().unwrap();
        (ip.options, ip.source_route)
    };
    assert_eq!(noted(&[1, 1, 1, 0]), (true, false));
    assert_eq!(noted(&[131, 7, 4, 9, 9, 9, 9, 0]), (true, true));
    assert_eq!(noted(&[1, 137, 7, 4, 9, 9, 9, 9]), (true, true));
    // After the end of the list there is nothing.
    assert_eq!(noted(&[0, 131, 3, 4]), (true, false));
    for broken in [[131, 9, 4, 0], [131, 1, 0, 0], [1, 1, 1, 131]] {
        assert_eq!(
            whole(&with_options(&broken)),
            Err(ParseError::Options),
            "{broken:?}"
        );
    }
}

fn fragment4(field: u16, frame: &mut [u8]) -> Result<Parsed, ParseError> {
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frames::refresh4(frame);
    whole(frame)
}

#[test]
fn fragments_of_ipv4_are_told_apart() {
    let mut frame = frames::udp(false, &frames::payload(80));
    let first = fragment4(0x2000, &mut frame).unwrap();
    let ip = first.ip().unwrap();
    assert_eq!(ip.fragment, Fragment::First);
    assert!(matches!(
        ip.transport,
        Transport::Udp {
            destination: 53,
            ..
        }
    ));
    let later = fragment4(0x0010, &mut frame).unwrap();
    let ip = later.ip().unwrap();
    assert_eq!(
        (ip.fragment, ip.transport),
        (Fragment::Later, Transport::Later)
    );
    assert_eq!(later.transport_offset(), None);
    assert!(ip.fragment_header);
}

#[test]
fn fragment_past_the_largest_packet_is_refused() {
    let mut frame = frames::udp(false, &frames::payload(80));
    assert_eq!(fragment4(0x1fff, &mut frame), Err(ParseError::Fragment));
    // All but the last are multiples of eight.
    let mut frame = frames::udp(false, &frames::payload(81));
    assert_eq!(fragment4(0x2000, &mut frame), Err(ParseError::Fragment));
}

#[test]
fn tiny_fragment_that_would_overwrite_a_tcp_header_is_refused() {
    let mut frame = frames::tcp(false, &frames::payload(80));
    assert_eq!(fragment4(0x2001, &mut frame), Err(ParseError::TinyFragment));
    assert_eq!(fragment4(0x0007, &mut frame), Err(ParseError::TinyFragment));
    assert!(fragment4(0x0008, &mut frame).is_ok());
}

#[test]
fn first_fragment_that_cuts_its_tcp_header_is_refused() {
    let mut frame = frames::tcp(false, &[]);
    frame.truncate(34 + 16);
    frame[17] = 36;
    assert_eq!(fragment4(0x2000, &mut frame), Err(ParseError::TinyFragment));
}

const UDP: [u8; 8] = [0x13, 0x88, 0, 53, 0, 8, 1, 1];

/// A chain of destination options headers, each 8 bytes, then UDP.
fn destinations(count: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for at in 0..count {
        let next = if at + 1 == count { 17 } else { 60 };
        body.extend([next, 0, 1, 4, 0, 0, 0, 0]);
    }
    body.extend(UDP);
    frames::raw6(60, &body)
}

#[test]
fn extension_chain_is_walked_to_layer_4() {
    let mut body = vec![43, 0, 5, 2, 0, 0, 0, 0]; // hop-by-hop: router alert
    body.extend([51, 0, 0, 0, 0, 0, 0, 0]); // routing, type 0
    body.extend([60, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // authentication, 16 bytes
    body.extend([17, 0, 1, 4, 0, 0, 0, 0]); // destination options
    body.extend(UDP);
    let parsed = whole(&frames::raw6(0, &body)).unwrap();
    let ip = parsed.ip().unwrap();
    assert_eq!((ip.extension_headers, ip.extension_len), (4, 40));
    assert_eq!(ip.routing_header, Some(0));
    assert_eq!(ip.protocol, 17);
    assert!(matches!(
        ip.transport,
        Transport::Udp {
            destination: 53,
            ..
        }
    ));
}

#[test]
fn extension_chain_too_long_is_refused() {
    assert!(whole(&destinations(8)).is_ok());
    assert_eq!(whole(&destinations(9)), Err(ParseError::ExtensionChain));
    let mut long = vec![17, 16];
    long.resize(136, 0);
    long.extend(UDP);
    assert_eq!(
        whole(&frames::raw6(60, &long)),
        Err(ParseError::ExtensionChain)
    );
}

#[test]
fn extension_chain_out_of_order_or_unknown_is_refused() {
    let second_hop_by_hop = [0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(
        whole(&frames::raw6(60, &second_hop_by_hop)),
        Err(ParseError::ExtensionChain)
    );
    for unknown in [135, 139, 140] {
        let body = [17, 0, 0, 0, 0, 0, 0, 0, 0x13, 0x88, 0, 53, 0, 8, 1, 1];
        assert_eq!(
            whole(&frames::raw6(unknown, &body)),
            Err(ParseError::ExtensionChain)
        );
    }
    let two_fragments = [44, 0, 0, 0, 0, 0, 0, 1, 17, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(
        whole(&frames::raw6(44, &two_fragments)),
        Err(ParseError::ExtensionChain)
    );
}

#[test]
fn extension_header_beyond_the_packet_is_refused() {
    assert_eq!(
        whole(&frames::raw6(60, &[17, 3, 0, 0, 0, 0, 0, 0])),
        Err(ParseError::Truncated)
    );
    assert_eq!(whole(&frames::raw6(0, &[])), Err(ParseError::Truncated));
}

#[test]
fn fragments_of_ipv6_are_told_apart() {
    let fragment = |field: u16, body: &[u8]| {
        let [a, b] = field.to_be_bytes();
        let mut all = vec![17, 0, a, b, 0, 0, 0, 9];
        all.extend(body);
        whole(&frames::raw6(44, &all))
    };
    let facts = |parsed: Result<Parsed, ParseError>| {
        let ip = *parsed.unwrap().ip().unwrap();
        (
            ip.fragment,
            ip.fragment_header,
            ip.transport == Transport::Later,
        )
    };
    assert_eq!(facts(fragment(0, &UDP)), (Fragment::Whole, true, false));
    assert_eq!(facts(fragment(1, &UDP)), (Fragment::First, true, false));
    assert_eq!(facts(fragment(8, &UDP)), (Fragment::Later, true, true));
    assert_eq!(fragment(1, &[0; 4]), Err(ParseError::Fragment));
    assert_eq!(fragment(1, &[]), Err(ParseError::Fragment));
    assert_eq!(fragment(0xfff8, &UDP), Err(ParseError::Fragment));
    // A first fragment that ends within its chain (RFC 7112).
    let cut = [60, 0, 0, 1, 0, 0, 0, 9, 17, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        whole(&frames::raw6(44, &cut)),
        Err(ParseError::TinyFragment)
    );
}

#[test]
fn neighbour_discovery_is_recognised_behind_extension_headers() {
    let mut body = vec![58, 0, 1, 4, 0, 0, 0, 0];
    body.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(BLUE6);
    let parsed = whole(&frames::raw6(60, &body)).unwrap();
    assert!(parsed.ip().unwrap().is_nd());
}

#[test]
fn icmp_of_the_other_family_is_only_another_protocol() {
    let parsed = whole(&frames::raw6(1, &[8, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    assert_eq!(parsed.ip().unwrap().transport, Transport::Other);
}
