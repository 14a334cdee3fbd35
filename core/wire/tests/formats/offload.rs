//! Offload fields are allegations: each lie has its refusal.

use wire::offload::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GsoKind, MIN_GSO, NEEDS_CSUM,
    check,
};
use wire::{BadOffload, Offload, RawOffload, parse};

use crate::frames;

fn checked(frame: &[u8], raw: RawOffload) -> Result<Offload, BadOffload> {
    let parsed = parse(frame, frame.len()).unwrap();
    check(raw, &parsed, frame.len(), MIN_GSO)
}

fn tso4() -> (Vec<u8>, RawOffload) {
    let raw = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    (frames::tcp(false, &frames::payload(5000)), raw)
}

#[test]
fn an_honest_request_becomes_facts_and_is_rebuilt_as_it_was() {
    let (frame, raw) = tso4();
    let offload = checked(&frame, raw).unwrap();
    assert_eq!(offload.rebuild(34), raw);
    assert_eq!(offload.segments(), 4);
    assert_eq!(offload.wire_bytes(frame.len()), frame.len() + 3 * 66);
    assert_eq!(offload.largest_packet(frame.len() - 14), 20 + 32 + 1448);
    // A tag was put on: the checksum moves with layer 4.
    assert_eq!(offload.rebuild(38).csum_start, 38);
}

#[test]
fn every_kind_is_known() {
    for (v6, gso_type, ecn) in [(true, GSO_TCPV6, false), (false, GSO_TCPV4 | GSO_ECN, true)] {
        let frame = frames::tcp(v6, &frames::payload(5000));
        let raw = RawOffload {
            gso_type,
            csum_start: if v6 { 54 } else { 34 },
            ..tso4().1
        };
        let offload = checked(&frame, raw).unwrap();
        let kind = if v6 {
            GsoKind::Tcp6 { ecn }
        } else {
            GsoKind::Tcp4 { ecn }
        };
        assert_eq!(offload.gso().unwrap().kind, kind);
        assert_eq!(offload.rebuild(usize::from(raw.csum_start)), raw);
    }
    for v6 in [false, true] {
        let frame = frames::udp(v6, &frames::payload(5000));
        let raw = RawOffload {
            gso_type: GSO_UDP_L4,
            csum_start: if v6 { 54 } else { 34 },
            csum_offset: 6,
            ..tso4().1
        };
        assert_eq!(checked(&frame, raw).unwrap().segments(), 4);
    }
}

#[test]
fn data_valid_is_not_believed() {
    let (frame, _) = tso4();
    let raw = RawOffload {
        flags: DATA_VALID,
        ..RawOffload::default()
    };
    assert_eq!(
        checked(&frame, raw).unwrap().rebuild(34),
        RawOffload::default()
    );
}

#[test]
fn fields_that_mean_nothing_are_not_passed_on() {
    let (frame, _) = tso4();
    let raw = RawOffload {
        csum_start: 7,
        csum_offset: 9,
        ..RawOffload::default()
    };
    assert_eq!(
        checked(&frame, raw).unwrap().rebuild(34),
        RawOffload::default()
    );
}

#[test]
fn unknown_flags_are_refused() {
    let (frame, raw) = tso4();
    for flags in [4, 8, 0x80] {
        let raw = RawOffload {
            flags: NEEDS_CSUM | flags,
            ..raw
        };
        assert_eq!(checked(&frame, raw), Err(BadOffload::Unknown));
    }
}

#[test]
fn unknown_types_and_ufo_are_refused() {
    let (frame, raw) = tso4();
    for gso_type in [
        2,
        3,
        6,
        7,
        0x7f,
        GSO_ECN,
        GSO_UDP_L4 | GSO_ECN,
        0x40 | GSO_TCPV4,
    ] {
        let raw = RawOffload { gso_type, ..raw };
        assert_eq!(
            checked(&frame, raw),
            Err(BadOffload::Unknown),
            "{gso_type:#x}"
        );
    }
}

#[test]
fn type_must_be_the_frames() {
    let (frame, raw) = tso4();
    for gso_type in [GSO_TCPV6, GSO_UDP_L4] {
        let raw = RawOffload { gso_type, ..raw };
        assert_eq!(checked(&frame, raw), Err(BadOffload::Type));
    }
    let arp = {
        let mut frame = [0; 60];
        let message = wire::arp::Message {
            operation: wire::arp::Operation::Request,
            sender_mac: frames::RED,
            sender: frames::RED4,
            target_mac: wire::MacAddress::ZERO,
            target: frames::BLUE4,
        };
        let ethernet = wire::ethernet::Header::new(frames::BLUE, frames::RED, wire::ethernet::ARP);
        wire::build::arp(&mut frame, &ethernet, &message).unwrap();
        frame
    };
    assert_eq!(
        checked(&arp, RawOffload { flags: 0, ..raw }),
        Err(BadOffload::Type)
    );
    assert_eq!(checked(&arp, raw), Err(BadOffload::Checksum));
}

#[test]
fn min_gso_is_the_least_segment() {
    let (frame, raw) = tso4();
    for gso_size in [1, MIN_GSO - 1] {
        assert_eq!(
            checked(&frame, RawOffload { gso_size, ..raw }),
            Err(BadOffload::Size)
        );
    }
    assert!(
        checked(
            &frame,
            RawOffload {
                gso_size: MIN_GSO,
                ..raw
            }
        )
        .is_ok()
    );
    let parsed = parse(&frame, frame.len()).unwrap();
    let small = RawOffload {
        gso_size: 255,
        ..raw
    };
    assert_eq!(check(small, &parsed, frame.len(), 0), Err(BadOffload::Size));
}

#[test]
fn size_and_type_come_together() {
    let (frame, raw) = tso4();
    let raw_size = RawOffload {
        gso_type: GSO_NONE,
        ..raw
    };
    assert_eq!(checked(&frame, raw_size), Err(BadOffload::Size));
    assert_eq!(
        checked(&frame, RawOffload { gso_size: 0, ..raw }),
        Err(BadOffload::Size)
    );
}

#[test]
fn segmentation_needs_a_partial_checksum() {
    let (frame, raw) = tso4();
    assert_eq!(
        checked(&frame, RawOffload { flags: 0, ..raw }),
        Err(BadOffload::NoChecksum)
    );
}

#[test]
fn checksum_position_must_be_the_frames() {
    let (frame, raw) = tso4();
    for (csum_start, csum_offset) in [(14, 10), (34, 6), (35, 16), (0, 0), (65535, 65535)] {
        let raw = RawOffload {
            csum_start,
            csum_offset,
            ..raw
        };
        assert_eq!(checked(&frame, raw), Err(BadOffload::Checksum));
    }
}

#[test]
fn fragments_have_no_offloads() {
    let mut frame = frames::udp(false, &frames::payload(80));
    frame[20] = 0x20;
    frames::refresh4(&mut frame);
    let partial = RawOffload {
        flags: NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..RawOffload::default()
    };
    assert_eq!(checked(&frame, partial), Err(BadOffload::Fragment));
    let gso = RawOffload {
        flags: 0,
        ..tso4().1
    };
    assert_eq!(checked(&frame, gso), Err(BadOffload::Fragment));
}

#[test]
fn padding_does_not_go_with_a_partial_checksum() {
    let mut frame = frames::udp(false, b"x");
    let partial = RawOffload {
        flags: NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..RawOffload::default()
    };
    assert!(checked(&frame, partial).is_ok());
    frame.resize(60, 0);
    assert_eq!(checked(&frame, partial), Err(BadOffload::Length));
    assert!(checked(&frame, RawOffload::default()).is_ok());
}

#[test]
fn a_single_segment_is_an_ordinary_frame() {
    let frame = frames::tcp(false, &frames::payload(1000));
    let offload = checked(&frame, tso4().1).unwrap();
    assert_eq!(offload.gso(), None);
    assert!(offload.is_partial());
    assert_eq!(
        (offload.segments(), offload.wire_bytes(frame.len())),
        (1, frame.len())
    );
}
