//! Finishing in software: what comes out is what Linux would send.

use wire::offload::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, MIN_GSO, NEEDS_CSUM, check};
use wire::parse::Transport;
use wire::segment::{Fragmenter, SegmentError, Segmenter, complete_checksum};
use wire::{Offload, Parsed, RawOffload, checksum, parse, tcp};

use crate::frames;

pub fn facts(frame: &[u8], gso_size: u16) -> (Parsed, Offload) {
    let parsed = parse(frame, frame.len()).unwrap();
    let at = parsed.transport_offset().unwrap();
    let ip = parsed.ip().unwrap();
    let (gso_type, csum_offset) = match (ip.transport, at) {
        (Transport::Udp { .. }, _) => (GSO_UDP_L4, 6),
        (_, 34) => (GSO_TCPV4, 16),
        _ => (GSO_TCPV6, 16),
    };
    let raw = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: if gso_size == 0 { 0 } else { gso_type },
        gso_size,
        csum_start: at as u16,
        csum_offset,
    };
    let offload = check(raw, &parsed, frame.len(), MIN_GSO).unwrap();
    (parsed, offload)
}

pub fn cut(frame: &[u8], gso_size: u16) -> Vec<Vec<u8>> {
    let (parsed, offload) = facts(frame, gso_size);
    let (headers, payload) = frame.split_at(parsed.payload_offset().unwrap());
    let mut segmenter = Segmenter::new(headers, payload, &parsed, &offload).unwrap();
    let mut buffer = vec![0; 70_000];
    let mut all = Vec::new();
    while let Some(length) = segmenter.next(&mut buffer).unwrap() {
        all.push(buffer[..length].to_vec());
    }
    assert_eq!(all.len(), offload.segments());
    let bytes: usize = all.iter().map(Vec::len).sum();
    assert_eq!(bytes, offload.wire_bytes(frame.len()));
    all
}

#[test]
fn tcp_segments_differ_where_they_should() {
    for v6 in [false, true] {
        let body = frames::payload(3000);
        let mut frame = frames::tcp(v6, &body);
        if !v6 {
            frame[18..20].copy_from_slice(&0xffffu16.to_be_bytes());
            frames::refresh4(&mut frame);
        }
        let segments = cut(&frame, 1200);
        let at = if v6 { 54 } else { 34 };
        let read: Vec<_> = segments
            .iter()
            .map(|segment| tcp::Header::parse(&segment[at..]).unwrap())
            .collect();
        let sequences: Vec<u32> = read.iter().map(|header| header.sequence).collect();
        assert_eq!(sequences, [0xffff_fff0, 0x4a0, 0x950]);
        let flags: Vec<u8> = read.iter().map(|header| header.flags).collect();
        let all = tcp::ACK | tcp::CWR | tcp::PSH | tcp::FIN;
        assert_eq!(flags, [tcp::ACK | tcp::CWR, tcp::ACK, all & !tcp::CWR]);
        if !v6 {
            let ids: Vec<[u8; 2]> = segments.iter().map(|s| [s[18], s[19]]).collect();
            assert_eq!(ids, [[0xff, 0xff], [0, 0], [0, 1]]);
        }
        let joined: Vec<u8> = segments
            .iter()
            .flat_map(|s| frames::verified_payload(s))
            .collect();
        assert_eq!(joined, body);
    }
}

#[test]
fn udp_segments_are_datagrams_of_their_own() {
    for v6 in [false, true] {
        let body = frames::payload(2500);
        let segments = cut(&frames::udp(v6, &body), 1000);
        let parts: Vec<Vec<u8>> = segments
            .iter()
            .map(|s| frames::verified_payload(s))
            .collect();
        assert_eq!(
            parts.iter().map(Vec::len).collect::<Vec<_>>(),
            [1000, 1000, 500]
        );
        assert_eq!(parts.concat(), body);
    }
}

#[test]
fn a_partial_checksum_is_completed() {
    for (v6, mut frame) in [
        (false, frames::tcp(false, b"odd")),
        (true, frames::tcp(true, b"odd")),
        (false, frames::udp(false, b"odd")),
        (true, frames::udp(true, b"odd")),
    ] {
        let right = frame.clone();
        let (parsed, offload) = facts(&frame, 0);
        let ip = parsed.ip().unwrap();
        let at = parsed.transport_offset().unwrap();
        let place = at + offload.checksum_offset().unwrap();
        let sum = checksum::pseudo(&ip.source, &ip.destination, ip.protocol, frame.len() - at);
        frame[place..place + 2].copy_from_slice(&sum.fold().to_be_bytes());
        let after = complete_checksum(&mut frame, &parsed, &offload).unwrap();
        assert_eq!(frame, right, "v6 {v6}");
        assert!(!after.is_partial());
    }
}

#[test]
fn a_buffer_too_short_is_said() {
    let frame = frames::tcp(false, &frames::payload(3000));
    let (parsed, offload) = facts(&frame, 1200);
    let (headers, payload) = frame.split_at(66);
    let mut segmenter = Segmenter::new(headers, payload, &parsed, &offload).unwrap();
    let error = segmenter.next(&mut [0; 1000]).unwrap_err();
    assert_eq!(error, SegmentError::NoRoom(wire::NoRoom { needed: 1266 }));
    // Nothing was skipped.
    assert_eq!(segmenter.next(&mut [0; 2000]), Ok(Some(1266)));
}

fn fragments(frame: &[u8], header_len: usize, mtu: usize) -> Vec<Vec<u8>> {
    let (headers, payload) = frame.split_at(14 + header_len);
    let mut fragmenter = Fragmenter::new(headers, payload, 14, mtu).unwrap();
    let mut buffer = vec![0; 2000];
    let mut all = Vec::new();
    while let Some(length) = fragmenter.next(&mut buffer).unwrap() {
        assert!(length - 14 <= mtu);
        all.push(buffer[..length].to_vec());
    }
    all
}

fn join(fragments: &[Vec<u8>], header_len: usize) -> Vec<u8> {
    let mut joined = Vec::new();
    for (at, fragment) in fragments.iter().enumerate() {
        let field = u16::from_be_bytes([fragment[20], fragment[21]]);
        assert_eq!(usize::from(field & 0x1fff) * 8, joined.len());
        assert_eq!(field & 0x2000 != 0, at + 1 < fragments.len());
        assert!(parse(fragment, fragment.len()).is_ok());
        joined.extend(&fragment[14 + header_len..]);
    }
    joined
}

#[test]
fn ipv4_fragments_join_to_the_packet() {
    let mut frame = frames::udp(false, &frames::payload(1400));
    frame[20] = 0;
    frames::refresh4(&mut frame);
    let all = fragments(&frame, 20, 576);
    assert_eq!(all.len(), 3);
    assert_eq!(join(&all, 20), frame[34..]);
    // A fragment is cut again without losing its place.
    let again = fragments(&all[1], 20, 300);
    let field = |frame: &[u8]| u16::from_be_bytes([frame[20], frame[21]]);
    assert_eq!(field(&again[0]), 0x2000 | (552 / 8));
    assert_eq!(field(&again[1]), 0x2000 | ((552 + 280) / 8));
}

#[test]
fn options_that_are_not_copied_stay_in_the_first_fragment() {
    let mut frame = frames::udp(false, &frames::payload(1000));
    // Record route (not copied), then a router alert (copied).
    frame.splice(34..34, [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0]);
    frame[14] = 0x48;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[20] = 0;
    frames::refresh4(&mut frame);
    let all = fragments(&frame, 32, 600);
    assert_eq!(all[0][34..46], frame[34..46]);
    assert_eq!(all[1][34..46], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0]);
    assert_eq!(join(&all, 32), frame[46..]);
}

#[test]
fn what_must_not_be_fragmented_is_not() {
    let mut frame = frames::udp(false, &frames::payload(1000));
    frame[20] = 0x40;
    let (headers, payload) = frame.split_at(34);
    let refused = |mtu| Fragmenter::new(headers, payload, 14, mtu).map(drop);
    assert_eq!(refused(576), Err(SegmentError::Indivisible));
    frame[20] = 0;
    let (headers, payload) = frame.split_at(34);
    let refused = |mtu| Fragmenter::new(headers, payload, 14, mtu).map(drop);
    assert_eq!(refused(27), Err(SegmentError::Indivisible));
}
