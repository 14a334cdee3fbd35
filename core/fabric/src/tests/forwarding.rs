//! Who reaches whom.

use super::bench::*;
use crate::forward::{Decision, HEAD, decide};
use crate::{Frame, Reports};
use image::FabricImage;
use image::fabric::*;
use proptest::prelude::*;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::{DATA_VALID, GSO_TCPV4, NEEDS_CSUM};

fn reached(ingress: u32, frame: Frame) -> Vec<(u32, u16)> {
    pass(&tables(), ingress, frame)
        .0
        .sent
        .iter()
        .map(|(slot, tag, _)| (*slot, *tag))
        .collect()
}

fn dropped(ingress: u32, frame: Frame) -> DropReason {
    let (sink, tally) = pass(&tables(), ingress, frame);
    assert!(sink.sent.is_empty(), "reached {:?}", sink.sent[0].0);
    let [(slot, reason)] = tally.drops.keys().copied().collect::<Vec<_>>()[..] else {
        panic!("{:?}", tally.drops)
    };
    assert_eq!(slot, ingress);
    reason
}

#[test]
fn outward_and_back() {
    assert_eq!(reached(1, honest(200)), [(UPLINK, 0)]);
    assert_eq!(
        reached(UPLINK, frame(0, ONE, ROUTER, [8, 8, 8, 8], 200)),
        [(1, 5)]
    );
    assert_eq!(
        reached(UPLINK, frame(0, TWO, ROUTER, [8, 8, 8, 8], 200)),
        [(2, 6)]
    );
}

#[test]
fn a_broadcast_from_outside_reaches_the_attachments() {
    assert_eq!(
        reached(UPLINK, frame(0, EVERYBODY, ROUTER, IP_ONE, 60)),
        [(1, 5), (2, 6)]
    );
    // To a group with itself in it: not back, and not to the other compartment.
    assert_eq!(
        reached(1, frame(5, EVERYBODY, ONE, IP_ONE, 60)),
        [(UPLINK, 0)]
    );
    let (_, tally) = pass(&tables(), UPLINK, frame(0, EVERYBODY, ROUTER, IP_ONE, 60));
    assert_eq!(tally.counts[&(2, Counter::TxFlood)], 1);
}

#[test]
fn another_channels_entries_are_not_mine() {
    // The uplink may send to TWO's MAC without a tag; a compartment may not, whatever
    // tag it writes.
    for tag in [0, 5, 6] {
        for ingress in [1, 2, 3] {
            for mac in [ONE, TWO, EVERYBODY] {
                let sent = reached(ingress, frame(tag, mac, ONE, IP_ONE, 200));
                assert!(
                    sent.iter().all(|(slot, _)| *slot == UPLINK),
                    "{ingress} {tag} {mac:?}: {sent:?}"
                );
            }
        }
    }
    assert_eq!(
        dropped(2, frame(0, ONE, TWO, IP_ONE, 200)),
        DropReason::FabricNoEntry
    );
}

#[test]
fn toward_an_uplink_only_its_own_words_pass() {
    let source = DropReason::FabricSource;
    assert_eq!(
        dropped(1, frame(5, ROUTER, TWO, IP_ONE, 200)),
        source,
        "another's MAC"
    );
    assert_eq!(
        dropped(1, frame(5, ROUTER, ONE, [192, 0, 2, 2], 200)),
        source,
        "another's address"
    );
    let mut other = honest(200);
    other.head[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(dropped(1, other), source, "an ethertype no template names");
    assert_eq!(
        dropped(1, honest(29)),
        source,
        "ends inside what is compared"
    );
    let broadcast = frame(5, EVERYBODY, TWO, IP_ONE, 60);
    assert_eq!(dropped(1, broadcast), source, "a group is no way around");
}

#[test]
fn no_entry_no_way() {
    let none = DropReason::FabricNoEntry;
    assert_eq!(dropped(3, honest(200)), none, "connected to nothing");
    assert_eq!(
        dropped(1, frame(6, ROUTER, ONE, IP_ONE, 200)),
        none,
        "another's tag"
    );
    assert_eq!(
        dropped(1, frame(5, [1, 128, 194, 0, 0, 14], ONE, IP_ONE, 200)),
        none,
        "a group without entry"
    );
    assert_eq!(
        dropped(UPLINK, frame(0, ROUTER, ONE, IP_ONE, 200)),
        none,
        "for nobody here"
    );
    assert_eq!(
        dropped(77, honest(200)),
        none,
        "an ingress the image does not know"
    );
    assert_eq!(dropped(1, honest(13)), DropReason::Malformed);
}

#[test]
fn a_checksum_cannot_be_written_over_the_source() {
    let mut forged = honest(200);
    // "Store the checksum at byte 26": into the source address that was compared.
    for (start, offset) in [(20, 6), (14, 12), (0, 26), (29, 0), (199, 0), (100, 200)] {
        forged.offload = RawOffload {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..RawOffload::default()
        };
        assert_eq!(
            dropped(1, forged),
            DropReason::BadOffload,
            "{start} + {offset}"
        );
    }
    forged.offload.csum_start = 34;
    forged.offload.csum_offset = 16;
    assert_eq!(reached(1, forged), [(UPLINK, 0)]);
}

/// The tables where compartment 1 may not speak UDP from port 67, nor with a TTL of 255.
fn excepting() -> image::FabricTables {
    let mut tables = tables();
    let template = &mut tables.templates[0].1;
    for (at, mask, value) in [(20, 0x1f, 0), (23, 255, 17), (34, 255, 0), (35, 255, 67)] {
        (template.except_mask[at], template.except_value[at]) = (mask, value);
    }
    template.looked = 36;
    template.bounds[1] = Bound { at: 22, most: 254 };
    tables
}

#[test]
fn what_a_template_excepts_does_not_pass() {
    let tables = excepting();
    let passes = |change: &[(usize, u8)]| {
        let mut frame = honest(200);
        for (at, byte) in [(22, 64), (23, 17), (35, 67)].iter().chain(change) {
            frame.head[*at] = *byte;
        }
        let (sink, tally) = pass(&tables, 1, frame);
        let refused = tally.drops.contains_key(&(1, DropReason::FabricSource));
        assert_ne!(refused, sink.sent.len() == 1);
        !refused
    };
    assert!(!passes(&[]), "the exception, whole");
    assert!(passes(&[(35, 68)]), "another port");
    assert!(passes(&[(23, 6)]), "another protocol");
    assert!(passes(&[(20, 1)]), "a later fragment");
    assert!(!passes(&[(20, 0x20)]), "a first fragment");
    assert!(!passes(&[(0, 4)]), "what it does not look at is not asked");
}

#[test]
fn a_byte_over_its_bound_does_not_pass() {
    let tables = excepting();
    for (limit, reached) in [(0, true), (254, true), (255, false)] {
        let mut frame = honest(200);
        frame.head[22] = limit;
        let (sink, _) = pass(&tables, 1, frame);
        assert_eq!(sink.sent.len() == 1, reached, "{limit}");
    }
}

#[test]
fn a_checksum_cannot_be_written_over_what_was_excepted() {
    let tables = excepting();
    let stored = |start, offset| {
        let mut forged = honest(200);
        forged.offload = RawOffload {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..RawOffload::default()
        };
        let (sink, tally) = pass(&tables, 1, forged);
        let refused = tally.drops.contains_key(&(1, DropReason::BadOffload));
        assert_ne!(refused, sink.sent.len() == 1);
        !refused
    };
    // The port would be the checksum: 67, if the sender likes.
    for (start, offset) in [(34, 0), (30, 4), (30, 5), (34, 1)] {
        assert!(!stored(start, offset), "{start} + {offset}");
    }
    // UDP, TCP, and ICMP.
    for offset in [6, 16, 2] {
        assert!(stored(34, offset), "34 + {offset}");
    }
}

#[test]
fn a_checksum_may_begin_before_a_port_that_was_compared() {
    let mut tables = tables();
    let template = &mut tables.templates[0].1;
    // An odd port, as one of the templates for UDP demands.
    (template.mask[37], template.value[37], template.len) = (1, 1, 38);
    let mut udp = honest(200);
    udp.head[37] = 53;
    let mut passes = |start, offset| {
        udp.offload = RawOffload {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..RawOffload::default()
        };
        pass(&tables, 1, udp).0.sent.len() == 1
    };
    assert!(passes(34, 6), "a UDP checksum that is not finished");
    for (start, offset) in [(34, 3), (36, 0), (33, 7)] {
        assert!(!passes(start, offset), "{start} + {offset}");
    }
}

#[test]
fn a_storm_of_tiny_segments_is_refused() {
    let mut large = honest(32_000);
    large.offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1,
        csum_start: 34,
        csum_offset: 16,
    };
    assert_eq!(dropped(1, large), DropReason::BadOffload);
    large.offload.gso_size = 1400;
    assert_eq!(reached(1, large), [(UPLINK, 0)]);
    for (flags, gso_type) in [
        (0, GSO_TCPV4),
        (NEEDS_CSUM, 3),
        (NEEDS_CSUM, 0),
        (NEEDS_CSUM, 0x80),
        (4, GSO_TCPV4),
    ] {
        large.offload.flags = flags;
        large.offload.gso_type = gso_type;
        assert_eq!(
            dropped(1, large),
            DropReason::BadOffload,
            "{flags} {gso_type}"
        );
    }
}

#[test]
fn offload_fields_that_nobody_judged_are_not_sent_on() {
    let mut sender = honest(200);
    sender.offload = RawOffload {
        flags: DATA_VALID,
        csum_start: 7,
        csum_offset: 9,
        ..RawOffload::default()
    };
    let (sink, _) = pass(&tables(), 1, sender);
    assert_eq!(sink.sent[0].2.offload, RawOffload::default());
}

#[test]
fn reports_are_rare() {
    let second = 1_000_000_000;
    let mut reports = Reports::new(4);
    reports.swapped(0);
    assert!(!reports.is_due(1, second / 2), "two images may overlap");
    assert!(reports.is_due(1, second));
    assert!(!reports.is_due(1, second + second / 2));
    assert!(
        reports.is_due(2, second + second / 2),
        "each channel for itself"
    );
    assert!(reports.is_due(1, 2 * second));
    assert!(!reports.is_due(4, 9 * second), "no such slot");
}

/// Whether some entry of the tables, or a group it names, leads from here to there.
fn is_named(tables: &image::FabricTables, ingress: u32, tag: u16, to: u32) -> bool {
    tables
        .forwards
        .iter()
        .filter(|f| f.ingress == ingress && f.tag == tag)
        .any(|f| match f.kind {
            FORWARD_UNICAST => f.target == to,
            _ => tables.groups[f.target as usize]
                .iter()
                .any(|m| m.slot == to),
        })
}

proptest! {
    #[test]
    fn whatever_ingress_says_egress_is_named_by_an_entry(
        ingress in 0u32..12,
        tag in prop_oneof![0u16..8, any::<u16>()],
        mac in prop_oneof![Just(ONE), Just(TWO), Just(EVERYBODY), Just(ROUTER), any::<[u8; 6]>()],
        from in prop_oneof![Just(ONE), Just(TWO), any::<[u8; 6]>()],
        source in prop_oneof![Just(IP_ONE), any::<[u8; 4]>()],
        len in 0usize..70_000,
        offload in any::<[u8; 8]>(),
        plain in any::<bool>(),
    ) {
        let mut sent = frame(tag, mac, from, source, len);
        if !plain {
            sent.offload = likely_offload(offload);
        }
        let tables = tables();
        let (sink, tally) = pass(&tables, ingress, sent);
        for (slot, _, out) in &sink.sent {
            prop_assert!(is_named(&tables, ingress, tag, *slot));
            prop_assert_ne!(*slot, ingress);
            prop_assert_eq!(&out.head, &sent.head);
            if *slot == UPLINK {
                // Its own MAC, and what the kernel is told to write lies behind it.
                let own = if ingress == 1 { ONE } else { TWO };
                prop_assert_eq!(&out.head[6..12], &own);
                let behind = out.offload.flags & NEEDS_CSUM == 0 || out.offload.csum_start >= 14;
                prop_assert!(behind);
            }
        }
        let counted: u64 = tally.drops.values().sum();
        prop_assert!(!sink.sent.is_empty() || counted == 1, "lost without a reason");
    }

    #[test]
    fn any_head_is_decided(ingress in 0u32..12, tag: u16, head in any::<[[u8; 16]; HEAD / 16]>(), len in 0usize..2000) {
        let bytes = image(&tables());
        let image = FabricImage::map(bytes.as_ref()).unwrap();
        let head = head.as_flattened().try_into().unwrap();
        let frame = Frame { tag, offload: RawOffload::default(), len, head };
        if let Decision::Unicast { slot, .. } = decide(&image, ingress, &frame) {
            prop_assert_ne!(slot, ingress);
        }
    }
}

fn likely_offload(bytes: [u8; 8]) -> RawOffload {
    let [flags, gso_type, a, b, c, d, e, _] = bytes;
    let word = |low, high| u16::from_le_bytes([low, high]);
    // Small values are the likelier ones to be let through.
    RawOffload {
        flags: flags & 7,
        gso_type: gso_type & 0x87,
        gso_size: word(a, b & 7),
        csum_start: word(c, d & 1),
        csum_offset: word(e & 31, 0),
    }
}
