//! Segments and checksums: each frame goes unfinished to a veth that can finish nothing, so
//! that the kernel does it, and what comes out at the other end is compared with ours.

use crate::kernel::{Random, Wire, difference};
use wire::offload::{
    BadOffload, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, MAX_FRAME, MIN_GSO, NEEDS_CSUM,
};
use wire::segment::{Segmenter, complete_checksum};
use wire::{RawOffload, checksum, ethernet, ipv6, tcp, udp};

/// Random frames in one run.
const FRAMES: usize = 3000;

/// What we make of a frame.
fn ours(raw: &RawOffload, frame: &[u8]) -> Result<Vec<Vec<u8>>, BadOffload> {
    let parsed = wire::parse(frame, frame.len()).unwrap();
    let offload = wire::offload::check(*raw, &parsed, frame.len(), MIN_GSO)?;
    if offload.gso().is_none() {
        let mut frame = frame.to_vec();
        complete_checksum(&mut frame, &parsed, &offload).unwrap();
        return Ok(vec![frame]);
    }
    let (headers, payload) = frame.split_at(parsed.payload_offset().unwrap());
    let mut segmenter = Segmenter::new(headers, payload, &parsed, &offload).unwrap();
    let mut buffer = vec![0; MAX_FRAME];
    let mut all = Vec::new();
    while let Some(length) = segmenter.next(&mut buffer).unwrap() {
        all.push(buffer[..length].to_vec());
    }
    Ok(all)
}

/// A frame as a sender leaves it to be finished.
#[derive(Clone)]
struct Unfinished {
    raw: RawOffload,
    frame: Vec<u8>,
    /// Where layer 4's payload begins.
    payload_at: usize,
}

/// Any frame that a kernel's stack, or a guest's, could leave to be finished.
fn any(random: &mut Random) -> Unfinished {
    let v6 = random.one_in(2);
    let is_tcp = !random.one_in(3);
    let mut frame = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1].to_vec();
    let tags: &[u16] = random.one_of(&[
        &[] as &[u16],
        &[],
        &[ethernet::VLAN],
        &[ethernet::SERVICE_VLAN, ethernet::VLAN],
    ]);
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        // Neither of VLAN 0 nor of 4095.
        let tci = (1 + random.below(4000) as u16) | ((random.below(8) as u16) << 13);
        frame.extend(tci.to_be_bytes());
    }
    let protocol = if is_tcp { tcp::PROTOCOL } else { udp::PROTOCOL };
    let head = transport(random, is_tcp);
    let before = match v6 {
        true => network6(random, &mut frame, protocol),
        false => network4(random, &mut frame, protocol),
    };
    let start = frame.len();
    let room = 65_535 - (start - before) - head.len();
    let (gso_size, length) = sizes(random, room);
    frame.extend(&head);
    frame.extend(random.bytes(length));
    let message = frame.len() - start;
    if v6 {
        let length = (frame.len() - before - ipv6::HEADER) as u16;
        frame[before + 4..before + 6].copy_from_slice(&length.to_be_bytes());
    } else {
        let length = (frame.len() - before) as u16;
        frame[before + 2..before + 4].copy_from_slice(&length.to_be_bytes());
        let sum = checksum::internet(&frame[before..start]);
        frame[before + 10..before + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let checksum_offset = if is_tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    if !is_tcp {
        frame[start + 4..start + 6].copy_from_slice(&(message as u16).to_be_bytes());
    }
    let ecn = is_tcp && head[13] & tcp::CWR != 0 && random.one_in(2);
    let gso_type = match (gso_size, is_tcp, v6) {
        (0, ..) => GSO_NONE,
        (_, false, _) => GSO_UDP_L4,
        (_, true, false) => GSO_TCPV4 | if ecn { GSO_ECN } else { 0 },
        (_, true, true) => GSO_TCPV6 | if ecn { GSO_ECN } else { 0 },
    };
    let raw = RawOffload {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size: gso_size as u16,
        csum_start: start as u16,
        csum_offset: checksum_offset as u16,
    };
    begin_checksum(&mut frame, &raw);
    Unfinished {
        raw,
        frame,
        payload_at: start + head.len(),
    }
}

/// Puts the pseudo header's sum where the checksum is to be.
fn begin_checksum(frame: &mut [u8], raw: &RawOffload) {
    let parsed = wire::parse(frame, frame.len()).unwrap();
    let ip = parsed.ip().unwrap();
    let start = usize::from(raw.csum_start);
    let message = frame.len() - start;
    let sum = checksum::pseudo(&ip.source, &ip.destination, ip.protocol, message).fold();
    let at = start + usize::from(raw.csum_offset);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A TCP header with any flags and options, or a UDP header; without length and checksum.
fn transport(random: &mut Random, is_tcp: bool) -> Vec<u8> {
    let mut head = random.bytes(4);
    if !is_tcp {
        head.extend([0; 4]);
        return head;
    }
    let sequence = random.one_of(&[0, 77, 0xffff_fff0_u32, 0xffff_0000, 0x7fff_ff00]);
    head.extend(sequence.to_be_bytes());
    head.extend(random.bytes(4));
    const NO_OPERATION: u8 = 1;
    let options: Vec<u8> = match random.below(4) {
        0 => Vec::new(),
        // Timestamps, as Linux has them.
        1 => [&[1, 1, 8, 10][..], &random.bytes(8)].concat(),
        // And two blocks of a selective acknowledgement.
        2 => [
            &[1, 1, 8, 10][..],
            &random.bytes(8),
            &[1, 1, 5, 18],
            &random.bytes(16),
        ]
        .concat(),
        _ => vec![NO_OPERATION; 4 * random.below(11)],
    };
    let words = (20 + options.len()) / 4;
    // With the bit that accurate ECN uses, or not.
    head.push(((words as u8) << 4) | random.below(2) as u8);
    let flags = tcp::ACK
        | random.one_of(&[0, tcp::PSH])
        | random.one_of(&[0, 0, tcp::FIN])
        | random.one_of(&[0, tcp::CWR])
        | random.one_of(&[0, 0x40])
        | random.one_of(&[0, 0, 0x20]);
    head.push(flags);
    head.extend(random.bytes(2));
    head.extend([0, 0]);
    head.extend(random.bytes(2));
    head.extend(options);
    head
}

/// Appends EtherType and an IPv4 header with any options; where it begins.
fn network4(random: &mut Random, frame: &mut Vec<u8>, protocol: u8) -> usize {
    frame.extend(ethernet::IPV4.to_be_bytes());
    let at = frame.len();
    let options: &[u8] = random.one_of(&[
        &[] as &[u8],
        &[],
        // Router alert; record route; a timestamp; no-operations.
        &[148, 4, 0, 0],
        &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1; 40],
    ]);
    frame.push(0x45 + (options.len() / 4) as u8);
    frame.push(random.next() as u8);
    frame.extend([0, 0]);
    let id = random.one_of(&[0, 1, 0x1234, 0x7fff, 0xfffe, 0xffff_u16]);
    frame.extend(id.to_be_bytes());
    frame.extend([random.one_of(&[0, 0x40]), 0]);
    frame.extend([1 + random.below(255) as u8, protocol, 0, 0]);
    frame.extend([10, 1, 0, 1, 10, 1, 0, 2]);
    frame.extend(options);
    at
}

/// Appends EtherType, an IPv6 header and any extension headers; where they begin.
fn network6(random: &mut Random, frame: &mut Vec<u8>, protocol: u8) -> usize {
    frame.extend(ethernet::IPV6.to_be_bytes());
    let at = frame.len();
    // In the order of RFC 8200, of 8 to 24 bytes each.
    let mut chain: Vec<(u8, Vec<u8>)> = Vec::new();
    let may = random.one_in(2);
    for kind in [ipv6::HOP_BY_HOP, ipv6::DESTINATION, ipv6::ROUTING] {
        if may && random.one_in(2) {
            let units = random.below(3);
            let mut body = vec![0, units as u8];
            if kind == ipv6::ROUTING {
                // Of an unknown type, at its end: no segment is left.
                body.extend([253, 0, 0, 0, 0, 0]);
            } else {
                // PadN, all of it.
                body.extend([1, 4, 0, 0, 0, 0]);
            }
            for _ in 0..units {
                body.extend([1, 6, 0, 0, 0, 0, 0, 0]);
            }
            chain.push((kind, body));
        }
    }
    let first = chain.first().map_or(protocol, |(kind, _)| *kind);
    frame.extend([0x60, random.next() as u8 & 0x0f, 0, 7, 0, 0, first]);
    frame.push(1 + random.below(255) as u8);
    for last in [1, 2] {
        frame.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    for place in 0..chain.len() {
        let next = chain.get(place + 1).map_or(protocol, |(kind, _)| *kind);
        chain[place].1[0] = next;
        frame.extend(&chain[place].1);
    }
    at
}

/// Bytes of payload a segment, 0 = not to be cut, and bytes of payload, at most `room`.
fn sizes(random: &mut Random, room: usize) -> (usize, usize) {
    if random.one_in(4) {
        let length = random.one_of(&[0, 1, 2, 100, 1460, 8000]);
        return (0, length + random.below(50));
    }
    let size = random.one_of(&[536, 537, 1220, 1400, 1447, 1448, 1460, 8948, 9001]);
    let more = if random.one_in(3) {
        random.below(500)
    } else {
        0
    };
    let size = size + more;
    let many = random.one_of(&[1, 2, 3, 7, 44]);
    // Even, one byte more, one byte short, anything.
    let length = match random.below(4) {
        0 => size * many,
        1 => size * many + 1,
        2 => size * many - 1,
        _ => 1 + random.below(64_000),
    };
    (size, length.min(room))
}

/// Makes the sum of one of its segments zero, by two bytes of its payload.
fn with_a_sum_of_zero(random: &mut Random, mut of: Unfinished) -> Unfinished {
    let segments = ours(&of.raw, &of.frame).unwrap();
    let which = random.below(segments.len());
    let segment = &segments[which];
    let at = of.payload_at;
    if segment.len() < at + 2 {
        return of;
    }
    let field = usize::from(of.raw.csum_start + of.raw.csum_offset);
    let sum = u16::from_be_bytes([segment[field], segment[field + 1]]);
    // Where one's complement has two zeros the field holds either: both are none.
    let sum = if sum == 0xffff { 0 } else { sum };
    let at = at + which * usize::from(of.raw.gso_size);
    let word = u16::from_be_bytes([of.frame[at], of.frame[at + 1]]);
    let word = checksum::Sum::new().word(word).word(sum).fold();
    of.frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    of
}

#[test]
fn what_is_finished_in_software_is_what_the_kernel_makes_of_it() {
    let mut random = Random::seeded();
    let seed = random.0;
    let wire = Wire::new();
    let (mut cut, mut zeros) = (0, 0);
    for number in 0..FRAMES {
        let mut unfinished = any(&mut random);
        if random.one_in(3) {
            unfinished = with_a_sum_of_zero(&mut random, unfinished);
        }
        let Unfinished { raw, frame, .. } = &unfinished;
        let ours = ours(raw, frame).unwrap();
        // A request for a single segment is an ordinary frame to us. The kernel drops some
        // of those: it takes TCP's options for payload when it looks at the size.
        let single = RawOffload {
            gso_type: GSO_NONE,
            gso_size: 0,
            ..*raw
        };
        let asked = if ours.len() == 1 { &single } else { raw };
        let kernels = wire.cut(asked, frame, ours.len());
        if let Some(difference) = difference(&ours, &kernels) {
            let head = &frame[..frame.len().min(160)];
            panic!("SEED={seed}, frame {number}, {raw:?}: {difference}\n{head:02x?}");
        }
        cut += usize::from(ours.len() > 1);
        let field = usize::from(raw.csum_start + raw.csum_offset);
        let sums = ours.iter().map(|frame| [frame[field], frame[field + 1]]);
        zeros += sums
            .filter(|sum| matches!(sum, [0, 0] | [255, 255]))
            .count();
    }
    assert!(cut > FRAMES / 3 && zeros > FRAMES / 10, "{cut} {zeros}");
}

/// A TCP segment of so many bytes of payload behind an IPv6 header and one other.
fn behind(extension: u8, body: &[u8], payload: usize) -> Unfinished {
    let mut frame = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd].to_vec();
    let length = (body.len() + tcp::HEADER + payload) as u16;
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([extension, 64]);
    for last in [1, 2] {
        frame.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend([&[tcp::PROTOCOL], &body[1..]].concat());
    let start = frame.len();
    frame.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, tcp::ACK, 1, 0]);
    frame.extend([0; 4]);
    frame.extend(vec![7; payload]);
    let raw = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV6,
        gso_size: 1000,
        csum_start: start as u16,
        csum_offset: tcp::CHECKSUM as u16,
    };
    begin_checksum(&mut frame, &raw);
    Unfinished {
        raw,
        frame,
        payload_at: start + tcp::HEADER,
    }
}

#[test]
fn what_is_not_to_be_cut_is_refused_as_the_kernel_refuses_it() {
    let wire = Wire::new();
    for (extension, body, cuts) in [
        (ipv6::DESTINATION, vec![0, 0, 1, 4, 0, 0, 0, 0], true),
        // One fragment that is the whole (RFC 6946): its number is one packet's.
        (ipv6::FRAGMENT, vec![0, 0, 0, 0, 0, 0, 0, 7], false),
        // What is signed is the packet as it is.
        (
            ipv6::AUTHENTICATION,
            [&[0, 4][..], &[0; 22]].concat(),
            false,
        ),
    ] {
        let Unfinished { raw, frame, .. } = behind(extension, &body, 3000);
        let kernels = wire.cut(&raw, &frame, if cuts { 3 } else { 0 });
        assert_eq!(kernels.len(), if cuts { 3 } else { 0 }, "{extension}");
        match cuts {
            true => assert_eq!(ours(&raw, &frame), Ok(kernels)),
            false => assert_eq!(ours(&raw, &frame), Err(BadOffload::Fragment), "{extension}"),
        }
        // A checksum alone is completed whatever is before it.
        let Unfinished { mut raw, frame, .. } = behind(extension, &body, 1000);
        (raw.gso_type, raw.gso_size) = (GSO_NONE, 0);
        let kernels = wire.cut(&raw, &frame, 1);
        assert_eq!(ours(&raw, &frame), Ok(kernels), "{extension}");
    }
}
