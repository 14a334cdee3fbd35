//! A subnet in a VLAN: who speaks there is who is spoken to there.

use super::bench::*;
use crate::Frame;
use image::FabricTables;
use image::fabric::*;
use proptest::prelude::*;
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::NEEDS_CSUM;

const VLAN: u16 = 120;
const TAG: u16 = 8;
/// Endpoints: two in compartment 1's subnet, one in compartment 2's, in another VLAN.
const RED: [[u8; 6]; 2] = [[2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 7, 2]];
const BLUE: [u8; 6] = [2, 0, 0, 0, 7, 3];
const IPV4: [u8; 2] = [8, 0];

fn joined() -> FabricTables {
    let mut tables = tables();
    let mut entry = |ingress, tag, mac, target, out_tag, kind| {
        tables.forwards.push(Forward {
            ingress,
            tag,
            mac,
            target,
            out_tag,
            kind,
        });
    };
    for (slot, tag, vlan, macs) in [(1, TAG, VLAN, &RED[..]), (2, TAG + 1, VLAN + 1, &[BLUE])] {
        for mac in [[0; 6], EVERY_GROUP] {
            entry(slot, tag, mac, UPLINK, vlan, FORWARD_SEGMENT);
        }
        for mac in macs.iter().copied().chain([EVERY_GROUP]) {
            entry(UPLINK, vlan, mac, slot, tag, FORWARD_UNICAST);
        }
    }
    tables
}

fn sent(ingress: u32, tag: u16, to: [u8; 6], from: [u8; 6], kind: [u8; 2]) -> Frame {
    let mut sent = frame(tag, to, from, [10, 1, 1, 1], 100);
    sent.head[12..14].copy_from_slice(&kind);
    assert!(ingress < 12);
    sent
}

fn reached(ingress: u32, frame: Frame) -> Vec<(u32, u16)> {
    let (sink, _) = pass(&joined(), ingress, frame);
    sink.sent
        .iter()
        .map(|(slot, tag, _)| (*slot, *tag))
        .collect()
}

#[track_caller]
fn dropped(ingress: u32, frame: Frame) -> DropReason {
    let (sink, tally) = pass(&joined(), ingress, frame);
    assert!(sink.sent.is_empty(), "reached {:?}", sink.sent[0].0);
    let [(_, reason)] = tally.drops.keys().copied().collect::<Vec<_>>()[..] else {
        panic!("{:?}", tally.drops)
    };
    reason
}

#[test]
fn out_by_its_tag_and_in_by_its_vlan() {
    for mac in RED {
        for kind in [IPV4, [8, 6], [0x86, 0xdd]] {
            let frame = sent(1, TAG, ROUTER, mac, kind);
            assert_eq!(reached(1, frame), [(UPLINK, VLAN)]);
        }
        assert_eq!(
            reached(UPLINK, sent(UPLINK, VLAN, mac, ROUTER, IPV4)),
            [(1, TAG)]
        );
    }
    assert_eq!(
        reached(2, sent(2, TAG + 1, ROUTER, BLUE, IPV4)),
        [(UPLINK, VLAN + 1)]
    );
    for group in [EVERYBODY, [1, 0, 0x5e, 0, 0, 7], [0x33, 0x33, 0, 0, 0, 1]] {
        assert_eq!(
            reached(1, sent(1, TAG, group, RED[0], IPV4)),
            [(UPLINK, VLAN)]
        );
        assert_eq!(
            reached(UPLINK, sent(UPLINK, VLAN, group, ROUTER, IPV4)),
            [(1, TAG)]
        );
        assert_eq!(
            reached(UPLINK, sent(UPLINK, VLAN + 1, group, ROUTER, IPV4)),
            [(2, TAG + 1)]
        );
    }
    // Its way outside is what it was, and has nothing of it.
    assert_eq!(reached(1, honest(200)), [(UPLINK, 0)]);
    assert_eq!(
        dropped(1, sent(1, 5, ROUTER, RED[0], IPV4)),
        DropReason::FabricSource
    );
}

#[test]
fn only_its_own_stations_speak() {
    let none = DropReason::FabricNoEntry;
    for other in [BLUE, ONE, TWO, ROUTER, [0; 6], EVERY_GROUP, EVERYBODY] {
        assert_eq!(
            dropped(1, sent(1, TAG, ROUTER, other, IPV4)),
            none,
            "{other:?}"
        );
        assert_eq!(
            dropped(1, sent(1, TAG, EVERYBODY, other, IPV4)),
            none,
            "{other:?}"
        );
    }
    // By nobody else's channel or tag.
    for (ingress, tag) in [(2, TAG), (1, TAG + 1), (3, TAG), (1, 0), (1, VLAN)] {
        assert_eq!(
            dropped(ingress, sent(ingress, tag, ROUTER, RED[0], IPV4)),
            none
        );
    }
    let foreign = sent(2, TAG + 1, ROUTER, RED[0], IPV4);
    assert_eq!(dropped(2, foreign), none, "another VLAN's station");
}

#[test]
fn no_tag_and_no_bridge_s_word_stands_in_it() {
    let source = DropReason::FabricSource;
    for kind in [
        [0x81, 0],
        [0x88, 0xa8],
        [0x91, 0],
        [0x88, 0xcc],
        [0x88, 9],
        [0, 38],
        [0x88, 0xb5],
    ] {
        assert_eq!(
            dropped(1, sent(1, TAG, ROUTER, RED[0], kind)),
            source,
            "{kind:x?}"
        );
    }
    for group in [
        [1, 0x80, 0xc2, 0, 0, 0],
        [1, 0, 0xc, 0xcc, 0xcc, 0xcd],
        [3, 0, 0, 0, 0, 1],
    ] {
        assert_eq!(
            dropped(1, sent(1, TAG, group, RED[0], IPV4)),
            source,
            "{group:x?}"
        );
    }
    // A checksum is not stored in what was looked at.
    let mut over = sent(1, TAG, ROUTER, RED[0], IPV4);
    over.offload = RawOffload {
        flags: NEEDS_CSUM,
        csum_start: 6,
        csum_offset: 2,
        ..RawOffload::default()
    };
    assert_eq!(dropped(1, over), DropReason::BadOffload);
}

#[test]
fn of_the_wire_only_what_is_for_it_comes() {
    let none = DropReason::FabricNoEntry;
    for (vlan, mac) in [
        (VLAN, BLUE),
        (VLAN, ROUTER),
        (VLAN, ONE),
        (0, RED[0]),
        (VLAN + 1, RED[0]),
        (VLAN + 2, RED[0]),
        (TAG, RED[0]),
    ] {
        assert_eq!(dropped(UPLINK, sent(UPLINK, vlan, mac, ROUTER, IPV4)), none);
    }
    assert_eq!(
        dropped(UPLINK, sent(UPLINK, VLAN + 2, EVERYBODY, ROUTER, IPV4)),
        none
    );
}

proptest! {
    #[test]
    fn whoever_says_whatever_each_vlan_has_its_own_stations(
        ingress in 1u32..4,
        tag in prop_oneof![Just(TAG), Just(TAG + 1), any::<u16>()],
        to in prop_oneof![Just(ROUTER), Just(EVERYBODY), Just(RED[0]), any::<[u8; 6]>()],
        from in prop_oneof![Just(RED[0]), Just(RED[1]), Just(BLUE), Just(ROUTER), any::<[u8; 6]>()],
        kind in prop_oneof![Just(IPV4), Just([8, 6]), any::<[u8; 2]>()],
    ) {
        for (slot, out) in reached(ingress, sent(ingress, tag, to, from, kind)) {
            prop_assert_eq!(slot, UPLINK);
            match out {
                VLAN => prop_assert!(ingress == 1 && tag == TAG && RED.contains(&from)),
                0 => prop_assert!(tag < TAG),
                other => prop_assert!(other == VLAN + 1 && ingress == 2 && from == BLUE),
            }
        }
    }
}
