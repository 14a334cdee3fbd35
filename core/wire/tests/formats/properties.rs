//! Properties: no bytes make anything panic, what is written is read back, what
//! is cut joins again.

use proptest::prelude::*;
use wire::offload::{MIN_GSO, check};
use wire::segment::{Segmenter, complete_checksum};
use wire::{RawOffload, arp, checksum, dhcpv4, ethernet, icmpv4, ipv4, ipv6, nd, parse, tcp, udp};

use crate::frames;
use crate::segment::cut;

/// Frames that are nearly right: a real one with some bytes overwritten.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let real = prop_oneof![
        (any::<bool>(), 0usize..400).prop_map(|(v6, n)| frames::tcp(v6, &frames::payload(n))),
        (any::<bool>(), 0usize..400).prop_map(|(v6, n)| frames::udp(v6, &frames::payload(n))),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(|(next, body)| frames::raw6(next, &body)),
    ];
    let changes = prop::collection::vec((0usize..120, any::<u8>()), 0..6);
    (real, changes, any::<bool>()).prop_map(|(mut frame, changes, fix)| {
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        let header = frame.get(14).map_or(0, |byte| usize::from(byte & 15) * 4);
        if fix && frame[12..14] == [8, 0] && header >= 20 && 14 + header <= frame.len() {
            frames::refresh4(&mut frame);
        }
        frame
    })
}

fn offloads() -> impl Strategy<Value = RawOffload> {
    let likely = |values: &'static [u16]| prop_oneof![prop::sample::select(values), any::<u16>()];
    (
        prop_oneof![Just(1u8), any::<u8>()],
        prop_oneof![prop::sample::select(&[0u8, 1, 4, 5, 0x81][..]), any::<u8>()],
        likely(&[0, 536, 1448]),
        likely(&[34, 54]),
        likely(&[6, 16]),
    )
        .prop_map(
            |(flags, gso_type, gso_size, csum_start, csum_offset)| RawOffload {
                flags,
                gso_type,
                gso_size,
                csum_start,
                csum_offset,
            },
        )
}

/// Parses, and when that goes well does all that a switch would with the facts.
fn drive(frame: &[u8], head: usize, total: usize, raw: RawOffload) {
    let head = &frame[..head.min(frame.len())];
    let Ok(parsed) = parse(head, total) else {
        return;
    };
    assert!(parsed.packet_end <= total);
    assert!(parsed.network_offset <= parsed.packet_end);
    for at in [parsed.transport_offset(), parsed.payload_offset()]
        .into_iter()
        .flatten()
    {
        assert!(at <= parsed.packet_end && at <= head.len().max(wire::parse::HEAD));
    }
    let Ok(offload) = check(raw, &parsed, total, MIN_GSO) else {
        return;
    };
    assert!(offload.segments() <= wire::offload::MAX_SEGMENTS);
    assert!(offload.wire_bytes(total) >= total);
    let raw = offload.rebuild(parsed.transport_offset().unwrap_or(0));
    assert_eq!(check(raw, &parsed, total, MIN_GSO), Ok(offload));
    if total != frame.len() {
        return;
    }
    let mut copy = frame.to_vec();
    if offload.gso().is_none() {
        assert!(complete_checksum(&mut copy, &parsed, &offload).is_ok());
    } else {
        let (headers, payload) = frame.split_at(parsed.payload_offset().unwrap());
        let mut segmenter = Segmenter::new(headers, payload, &parsed, &offload).unwrap();
        let mut buffer = vec![0; 70_000];
        while let Some(length) = segmenter.next(&mut buffer).unwrap() {
            assert!(parse(&buffer[..length], length).is_ok());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_anything_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        total in 0usize..70_000,
        raw in offloads(),
    ) {
        drive(&bytes, bytes.len(), total, raw);
        drive(&bytes, bytes.len(), bytes.len(), raw);
        let _ = nd::Message::parse(&bytes);
        let _ = dhcpv4::parse(&bytes);
        let _ = arp::Message::parse(&bytes);
        let _ = icmpv4::Echo::parse(&bytes);
        let _ = (ipv4::Header::parse(&bytes), ipv6::Header::parse(&bytes));
        let _ = (tcp::Header::parse(&bytes), udp::Header::parse(&bytes));
        let _ = ethernet::Header::parse(&bytes);
        let mut copy = bytes.clone();
        let _ = checksum::complete(&mut copy, total, bytes.len());
        let _ = (ipv4::decrement_ttl(&mut copy), ipv6::decrement_hop_limit(&mut copy));
    }

    #[test]
    fn nearly_right_frames_make_nothing_panic(
        frame in nearly(),
        more in 0usize..100,
        less in 0usize..100,
        raw in offloads(),
    ) {
        drive(&frame, frame.len(), frame.len(), raw);
        drive(&frame, frame.len(), frame.len() + more, raw);
        drive(&frame, frame.len() - less.min(frame.len()), frame.len(), raw);
    }

    #[test]
    fn options_of_nearly_right_dhcp_make_nothing_panic(
        options in prop::collection::vec(prop_oneof![0u8..5, 50u8..62, any::<u8>()], 0..300),
    ) {
        let mut message = vec![0u8; 240];
        message[..3].copy_from_slice(&[1, 1, 6]);
        message[236..].copy_from_slice(&[99, 130, 83, 99]);
        message.extend(options);
        let _ = dhcpv4::parse(&message);
    }

    #[test]
    fn etherparse_agrees_about_what_is_accepted(frame in nearly()) {
        let Ok(parsed) = parse(&frame, frame.len()) else { return Ok(()) };
        let Some(ip) = parsed.ip() else { return Ok(()) };
        let Ok(sliced) = etherparse::SlicedPacket::from_ethernet(&frame) else { return Ok(()) };
        use etherparse::TransportSlice;
        use wire::parse::Transport;
        match (ip.transport, sliced.transport) {
            (Transport::Tcp { source, destination, .. }, Some(TransportSlice::Tcp(tcp))) => {
                prop_assert_eq!((source, destination), (tcp.source_port(), tcp.destination_port()));
            }
            (Transport::Udp { source, destination, .. }, Some(TransportSlice::Udp(udp))) => {
                prop_assert_eq!((source, destination), (udp.source_port(), udp.destination_port()));
            }
            (Transport::Tcp { .. } | Transport::Udp { .. }, Some(other)) => {
                prop_assert!(false, "{:?} is {:?}", ip.transport, other);
            }
            _ => {}
        }
    }

    #[test]
    fn segments_join_to_what_was_cut(
        v6 in any::<bool>(),
        is_tcp in any::<bool>(),
        length in 0usize..65_000,
        size in 536u16..9000,
    ) {
        let body = frames::payload(length);
        let frame = if is_tcp { frames::tcp(v6, &body) } else { frames::udp(v6, &body) };
        let segments = cut(&frame, size);
        let joined: Vec<u8> = segments.iter().flat_map(|s| frames::verified_payload(s)).collect();
        prop_assert_eq!(joined, body);
    }

    #[test]
    fn incremental_update_equals_a_sum_anew(
        mut bytes in prop::collection::vec(any::<u8>(), 8..100),
        at in 0usize..3,
        new in any::<[u8; 2]>(),
    ) {
        let before = checksum::internet(&bytes);
        let old = [bytes[at * 2], bytes[at * 2 + 1]];
        bytes[at * 2..at * 2 + 2].copy_from_slice(&new);
        let after = checksum::internet(&bytes);
        let (old_word, new_word) = (u16::from_be_bytes(old), u16::from_be_bytes(new));
        // Both zeros of one's complement stand for the same sum.
        let same = |a: u16, b: u16| a == b || (a == 0 || a == 0xffff) && (b == 0 || b == 0xffff);
        prop_assert!(same(checksum::update(before, old_word, new_word), after));
        prop_assert!(same(checksum::update_bytes(before, &old, &new), after));
    }

    #[test]
    fn checksum_equals_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let mut sum: u64 = 0;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        prop_assert_eq!(checksum::internet(&bytes), !(sum as u16));
    }

    #[test]
    fn headers_are_read_as_they_were_written(
        source in any::<[u8; 4]>(), destination in any::<[u8; 4]>(), protocol in any::<u8>(),
        ttl in any::<u8>(), tos in any::<u8>(), id in any::<u16>(), dont_fragment in any::<bool>(),
        payload_len in 0u16..400, flow_label in 0u32..0x10_0000,
    ) {
        let header = ipv4::Header {
            source, destination, protocol, ttl, tos, id, dont_fragment, payload_len,
        };
        let mut buffer = [0; 440];
        prop_assert_eq!(header.emit(&mut buffer), Ok(20));
        prop_assert_eq!(ipv4::Header::parse(&buffer), Ok(header));
        let header = ipv6::Header {
            source: frames::RED6, destination: frames::BLUE6, next_header: protocol,
            hop_limit: ttl, traffic_class: tos, flow_label, payload_len,
        };
        prop_assert_eq!(header.emit(&mut buffer), Ok(40));
        prop_assert_eq!(ipv6::Header::parse(&buffer), Ok(header));
    }
}
