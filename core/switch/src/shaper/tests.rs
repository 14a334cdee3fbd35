//! Against simple models: what comes out, how much of it, and in which turns.

use super::queue::Queue;
use super::*;
use image::compartment::{Endpoint, Subnet, Tenant as TenantRecord};
use image::{Aligned, CompartmentTables, MappedCompartment};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use wire::offload::RawOffload;

mod users;

const SECOND: Nanos = 1_000_000_000;

fn rate(bytes: u64, packets: u64) -> Rate {
    Rate {
        bytes,
        burst: 20_000,
        packets,
    }
}

/// One tenant, endpoints in slots 1, 2, ...
fn tables(to: &[Rate], all: Rate) -> CompartmentTables {
    CompartmentTables {
        tenants: vec![TenantRecord {
            id: 7,
            to: all,
            ..TenantRecord::default()
        }],
        subnets: vec![Subnet {
            id: 1,
            gateway_mac: [2, 9, 0, 0, 0, 1],
            mtu: 1500,
            ..Subnet::default()
        }],
        endpoints: (1..)
            .zip(to)
            .map(|(slot, to)| Endpoint {
                id: 100 + slot,
                slot,
                mac: [2, 0, 0, 0, 0, slot as u8],
                mtu: 1500,
                to: *to,
                own_first: NONE,
                ..Endpoint::default()
            })
            .collect(),
        ..CompartmentTables::default()
    }
}

fn used(shaper: &mut Shaper, tables: &CompartmentTables, now: Nanos) {
    let bytes = tables.finish().unwrap();
    let mapped = MappedCompartment::map(Aligned::copy_of(&bytes)).unwrap();
    shaper.use_image(&mapped.image(), now, |_, _| ());
}

fn shaper(tables: &CompartmentTables) -> Shaper {
    let mut shaper = Shaper::new(16, crate::Workers::ALONE);
    used(&mut shaper, tables, 0);
    shaper
}

/// An IPv4 frame of a DSCP value.
fn head(dscp: u8, length: usize) -> Vec<u8> {
    let mut head = vec![0; length.max(34)];
    head[12..16].copy_from_slice(&[8, 0, 0x45, dscp << 2]);
    head
}

fn frame(slot: Slot, head: &[u8]) -> Outgoing<'_> {
    Outgoing {
        slot,
        tag: 0,
        offload: RawOffload::default(),
        head,
        rest_from: 0,
        total: 0,
        segments: 1,
        wire: head.len(),
        came_by: 0,
    }
}

/// Senders that always have more, for so long: bytes that came, by slot and DSCP value.
fn pour(
    shaper: &mut Shaper,
    senders: &[(Slot, u8, usize)],
    from: Nanos,
    until: Nanos,
    step: Nanos,
) -> BTreeMap<(Slot, u8), u64> {
    let mut came = BTreeMap::new();
    let mut now = from;
    while now < until {
        for (slot, mark, length) in senders {
            let head = head(*mark, *length);
            let frame = frame(*slot, &head);
            for _ in 0..200 {
                if shaper.may_go(now, *slot) {
                    shaper.sent(&frame);
                    *came.entry((*slot, *mark)).or_default() += frame.wire as u64;
                } else if !shaper.hold(now, 0, &frame, |_, _| 0) {
                    break;
                }
            }
        }
        for _ in 0..20 {
            shaper.release(now, |frame| {
                let mark = dscp(frame.head);
                *came.entry((frame.slot, mark)).or_default() += frame.wire as u64;
                Handed::Sent
            });
        }
        now += step;
    }
    came
}

#[test]
fn the_long_run_rate_is_the_one_asked_for() {
    for (bytes, length, step) in [
        (125_000, 1514, 100_000),
        (125_000_000, 1514, 50_000),
        (12_500_000, 64, 333_000),
        (1_250_000, 60_000, 700_000),
    ] {
        let mut shaper = shaper(&tables(&[rate(bytes, 0)], Rate::default()));
        let came = pour(&mut shaper, &[(1, 0, length)], 0, 4 * SECOND, step);
        let burst = 20_000.max(bytes / 200);
        let off = came[&(1, 0)].abs_diff(4 * bytes + burst);
        // What is owed or saved at the end: frames, what is waited for.
        let slack = 2 * length as u64 + 20_000 + bytes / 500;
        assert!(off <= slack, "{bytes}, {length}: {off}");
    }
}

#[test]
fn packets_are_counted_as_the_segments_of_a_large_frame() {
    let mut shaper = shaper(&tables(&[rate(0, 1000)], Rate::default()));
    let head = head(0, 3000);
    let large = Outgoing {
        segments: 10,
        wire: 3540,
        ..frame(1, &head)
    };
    let (mut now, mut packets) = (0, 0u64);
    while now < 2 * SECOND {
        if shaper.may_go(now, 1) {
            shaper.sent(&large);
            packets += 10;
        } else {
            shaper.hold(now, 0, &large, |_, _| 0);
        }
        shaper.release(now, |frame| {
            assert_eq!(
                (frame.segments, frame.wire, frame.head.len()),
                (10, 3540, 3000)
            );
            packets += 10;
            Handed::Sent
        });
        now += 200_000;
    }
    assert!(packets.abs_diff(2000 + 64) <= 80, "{packets}");
}

#[test]
fn without_a_limit_nothing_ever_waits() {
    let mut shaper = shaper(&tables(&[Rate::default(), rate(1000, 0)], Rate::default()));
    assert!(!shaper.is_limited(1) && shaper.is_limited(2) && !shaper.is_limited(FABRIC));
    assert!(shaper.may_go(0, 1) && shaper.due() == Nanos::MAX);
    let head = head(0, 100);
    assert!(!shaper.hold(0, 0, &frame(1, &head), |_, _| 0));
}

#[test]
fn what_finds_no_room_is_refused_and_others_are_not_concerned() {
    let mut shaper = shaper(&tables(&[rate(1000, 0), rate(1000, 0)], Rate::default()));
    let head = head(0, 1000);
    let mut kept = 0;
    while shaper.hold(0, 2, &frame(1, &head), |_, _| 0) {
        kept += 1;
    }
    let room = rate(1000, 0).queue_bytes() as usize / (1000 + 64);
    assert!((room - 1..=room + 1).contains(&kept), "{kept} of {room}");
    assert_eq!(shaper.frames(1), kept);
    assert!(shaper.hold(0, 1, &frame(2, &head), |_, _| 0));
    assert_eq!(shaper.forget(1), kept);
    assert_eq!((shaper.frames(1), shaper.frames(2)), (0, 1));
}

#[test]
fn a_tenants_endpoints_share_its_rate_whatever_they_are_sent() {
    // One is sent large frames and one small ones; the third weighs twice as much.
    let all = rate(10_000_000, 0);
    let mut tables = tables(&[Rate::default(); 3], all);
    tables.endpoints[2].weight = 2;
    let mut shaper = shaper(&tables);
    let senders = [(1, 0, 30_000), (2, 0, 200), (3, 0, 1500)];
    let came = pour(&mut shaper, &senders, 0, 8 * SECOND, 200_000);
    let sum: u64 = came.values().sum();
    assert!(sum.abs_diff(8 * all.bytes) < 100_000, "{sum}");
    for (slot, share) in [(1, 0.25), (2, 0.25), (3, 0.5)] {
        let got = came[&(slot, 0)] as f64 / sum as f64;
        assert!((got - share).abs() < 0.03, "slot {slot}: {got} of {share}");
    }
}

#[test]
fn an_endpoints_rate_holds_inside_its_tenants() {
    let to = [rate(1_000_000, 0), Rate::default()];
    let mut shaper = shaper(&tables(&to, rate(10_000_000, 0)));
    let came = pour(
        &mut shaper,
        &[(1, 0, 1500), (2, 0, 1500)],
        0,
        4 * SECOND,
        200_000,
    );
    assert!(came[&(1, 0)] < 4_100_000, "{came:?}");
    assert!(came[&(2, 0)].abs_diff(36_000_000) < 500_000, "{came:?}");
}

fn classes(strict: u64) -> CompartmentTables {
    let class = |dscp: u8, weight, strict_bytes| ServiceClass {
        dscp: 1 << dscp,
        strict_bytes,
        strict_burst: 16_384,
        weight,
        reserved: 0,
    };
    CompartmentTables {
        classes: vec![class(46, 1, strict), class(10, 3, 0)],
        ..tables(&[rate(1_000_000, 0)], Rate::default())
    }
}

#[test]
fn who_has_nothing_waiting_does_not_go_before_who_waits_for_the_same_rate() {
    let all = rate(1_000_000, 0);
    let mut shaper = shaper(&tables(&[Rate::default(); 2], all));
    let head = head(0, 1000);
    let (one, two) = (frame(1, &head), frame(2, &head));
    while shaper.may_go(0, 1) {
        shaper.sent(&one);
    }
    assert!(shaper.hold(0, 0, &one, |_, _| 0));
    // The bucket holds something again, but what waits has not gone yet.
    let now = shaper.due();
    assert!(!shaper.may_go(now, 2));
    assert!(shaper.hold(now, 0, &two, |_, _| 0));
    let mut order = Vec::new();
    let mut at = now;
    while shaper.frames(1) + shaper.frames(2) != 0 {
        shaper.release(at, |frame| {
            order.push(frame.slot);
            Handed::Sent
        });
        at += 1_000_000;
    }
    assert_eq!(order.len(), 2);
    assert!(shaper.may_go(at + SECOND, 2));
}

#[test]
fn classes_share_by_weight() {
    let mut shaper = shaper(&classes(0));
    let senders = [(1, 0, 1000), (1, 46, 300), (1, 10, 1400)];
    let came = pour(&mut shaper, &senders, 0, 10 * SECOND, 500_000);
    let sum: u64 = came.values().sum();
    for (dscp, share) in [(0, 0.2), (46, 0.2), (10, 0.6)] {
        let got = came[&(1, dscp)] as f64 / sum as f64;
        assert!((got - share).abs() < 0.03, "{dscp}: {got} of {share}");
    }
}

#[test]
fn a_class_that_goes_first_does_so_up_to_its_rate_and_starves_nobody() {
    // It has 300 kB/s before all others, of 1 MB/s, and a fifth of the rest.
    let mut shaper = shaper(&classes(300_000));
    let senders = [(1, 0, 1000), (1, 46, 300), (1, 10, 1400)];
    let came = pour(&mut shaper, &senders, 0, 10 * SECOND, 500_000);
    let sum: u64 = came.values().sum();
    for (dscp, share) in [(0, 0.14), (46, 0.44), (10, 0.42)] {
        let got = came[&(1, dscp)] as f64 / sum as f64;
        assert!((got - share).abs() < 0.03, "{dscp}: {got} of {share}");
    }
    // Alone among what waits, one frame of it overtakes all of the others.
    let voice = head(46, 200);
    for _ in 0..10 {
        shaper.forget(1);
    }
    let bulk = head(0, 1000);
    for _ in 0..20 {
        shaper.hold(20 * SECOND, 0, &frame(1, &bulk), |_, _| 0);
    }
    shaper.hold(20 * SECOND, 0, &frame(1, &voice), |_, _| 0);
    let mut first = None;
    shaper.release(20 * SECOND, |frame| {
        first.get_or_insert(dscp(frame.head));
        Handed::Sent
    });
    assert_eq!(first, Some(46));
}

#[test]
fn unmarked_packets_are_of_their_senders_class() {
    let mut tables = classes(0);
    tables.endpoints[0].class = 5;
    tables.classes[0].dscp = 1 << 40;
    let mut shaper = shaper(&tables);
    let (plain, marked) = (head(0, 100), head(10, 100));
    shaper.hold(0, 1, &frame(1, &plain), |_, _| 0);
    shaper.hold(0, 1, &frame(1, &marked), |_, _| 0);
    shaper.hold(0, 2, &frame(1, &plain), |_, _| 0);
    let Some(Some(port)) = shaper.ports.get(1) else {
        panic!("it is limited");
    };
    let full: Vec<bool> = port.classes.iter().map(|c| !c.is_empty()).collect();
    assert_eq!(full, [true, true, true]);
}

#[test]
fn at_the_fabrics_channel_classes_leave_in_their_order() {
    let mut shaper = shaper(&classes(300_000));
    let (bulk, voice) = (head(0, 1000), head(46, 100));
    for _ in 0..3 {
        assert!(!shaper.may_go(0, FABRIC));
        shaper.hold(0, 1, &frame(FABRIC, &bulk), |_, _| 0);
    }
    shaper.hold(0, 1, &frame(FABRIC, &voice), |_, _| 0);
    let mut seen = Vec::new();
    // A channel without room keeps what it has not taken.
    shaper.release(0, |frame| {
        if seen.len() == 2 {
            return Handed::Full;
        }
        seen.push(dscp(frame.head));
        Handed::Sent
    });
    assert_eq!((seen.as_slice(), shaper.frames(FABRIC)), (&[46, 0][..], 2));
    let later = shaper.due();
    shaper.release(later, |_| Handed::Sent);
    assert_eq!((shaper.frames(FABRIC), shaper.due()), (0, Nanos::MAX));
}

#[test]
fn what_waits_outlives_a_new_image() {
    let mut shaper = shaper(&tables(&[rate(1000, 0)], Rate::default()));
    let head = head(0, 1000);
    shaper.hold(0, 0, &frame(1, &head), |_, _| 0);
    used(&mut shaper, &tables(&[rate(2000, 0)], Rate::default()), 5);
    assert_eq!((shaper.frames(1), shaper.due()), (1, 5));
    // What does not is told.
    let bytes = tables(&[Rate::default()], Rate::default())
        .finish()
        .unwrap();
    let mapped = MappedCompartment::map(Aligned::copy_of(&bytes)).unwrap();
    let mut lost = Vec::new();
    shaper.use_image(&mapped.image(), 6, |slot, frames| lost.push((slot, frames)));
    assert_eq!(lost, [(1, 1)]);
    assert_eq!((shaper.frames(1), shaper.due()), (0, Nanos::MAX));
}

proptest! {
    #[test]
    fn a_queue_is_a_queue(
        steps in proptest::collection::vec((any::<bool>(), 0usize..3000, any::<u16>()), 1..300),
        capacity in 1usize..8192,
    ) {
        let mut queue = Queue::new(capacity);
        let mut model: VecDeque<(Vec<u8>, u16)> = VecDeque::new();
        for (push, length, tag) in steps {
            if push {
                let bytes: Vec<u8> = (0..length).map(|n| (n as u16 ^ tag) as u8).collect();
                let split = length / 3;
                let frame = Outgoing {
                    tag,
                    rest_from: 40,
                    total: 40 + length - split,
                    wire: length + 7,
                    offload: RawOffload { gso_size: tag, ..RawOffload::default() },
                    ..frame(1, &bytes[..split])
                };
                let kept = queue.push(&frame, |from, into| {
                    assert_eq!(from, 40);
                    into.copy_from_slice(&bytes[split..]);
                    into.len()
                });
                if kept {
                    model.push_back((bytes, tag));
                }
                let held: usize = model.iter().map(|(b, _)| b.len() + 64).sum();
                prop_assert!(kept || held + length + 3100 > capacity, "refused with room");
            } else {
                queue.pop();
                model.pop_front();
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            match (queue.front(), model.front()) {
                (None, None) => {}
                (Some(front), Some((bytes, tag))) => {
                    prop_assert_eq!(front.bytes, bytes.as_slice());
                    prop_assert_eq!((front.tag, front.offload.gso_size), (*tag, *tag));
                    prop_assert_eq!(front.wire, bytes.len() + 7);
                }
                (front, model) => prop_assert!(false, "{front:?} of {model:?}"),
            }
        }
    }

    #[test]
    fn nobody_starves_and_the_rate_holds(
        senders in proptest::collection::vec((1u32..6, 0u8..64, 64usize..9000), 2..8),
        bytes in 1_000_000u64..20_000_000,
    ) {
        let mut tables = tables(&[Rate::default(); 5], rate(bytes, 0));
        tables.classes = classes(bytes / 10).classes;
        let mut shaper = shaper(&tables);
        let came = pour(&mut shaper, &senders, 0, SECOND, 500_000);
        let sum: u64 = came.values().sum();
        prop_assert!(sum.abs_diff(bytes) < 20_000 + 5 * 9000 + bytes / 200, "{} of {}", sum, bytes);
        for (slot, _, _) in &senders {
            let got: u64 = came.iter().filter(|((s, _), _)| s == slot).map(|(_, n)| n).sum();
            let slots: std::collections::BTreeSet<_> = senders.iter().map(|s| s.0).collect();
            let fair = bytes / slots.len() as u64;
            prop_assert!(got * 10 > fair * 8, "slot {} got {} of {}", slot, got, fair);
        }
    }
}
