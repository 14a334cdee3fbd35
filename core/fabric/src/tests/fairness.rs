//! Who gets how much.

use super::bench::*;
use crate::serve::{Batch, Turn, serve};
use crate::{Outcome, Rounds};
use image::{FabricImage, FabricTables};
use proptest::prelude::*;

/// 1 GB/s: what the rounds cost in bytes is a nanosecond each.
const LINK: u64 = 1_000_000_000;

fn weighted(one: u32, two: u32) -> FabricTables {
    let mut tables = tables();
    tables.channels[0].weight = one;
    tables.channels[1].weight = two;
    tables
}

/// Part of the whole that slot 1 got, in percent.
fn share(got: &std::collections::BTreeMap<u32, u64>) -> f64 {
    let whole: u64 = got.values().sum();
    100.0 * got[&1] as f64 / whole as f64
}

#[test]
fn shares_follow_weights() {
    for (one, two, expected) in [(1, 1, 50.0), (3, 1, 75.0), (1, 9, 10.0), (200, 50, 80.0)] {
        let share = share(&contend(&weighted(one, two), &[(1, 1500), (2, 1500)], LINK));
        assert!((share - expected).abs() < 2.0, "{one}:{two} gave {share} %");
    }
}

#[test]
fn large_records_gain_nothing() {
    // A GSO record is far more than a round's credit; small records pay 256 each.
    let share = share(&contend(&weighted(1, 1), &[(1, 65_000), (2, 64)], LINK));
    assert!((share - 50.0).abs() < 2.0, "{share} %");
}

#[test]
fn a_guaranteed_minimum_is_held() {
    // By weight slot 1 would get 4 MB/s of the 1 GB/s; it is promised 300.
    let mut tables = weighted(1, 250);
    tables.channels[0].min_bytes = 300_000_000;
    let got = contend(&tables, &[(1, 1500), (2, 1500)], LINK);
    assert!(got[&1] >= 300_000_000, "{}", got[&1]);
    assert!(
        got[&2] >= 600_000_000,
        "what is left is the other's: {}",
        got[&2]
    );
}

#[test]
fn a_flood_starves_nobody() {
    // Slot 2 has everything queued; slot 1 one frame now and then. Each waits for at
    // most one visit of the flooder: a round's credit and a frame.
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let mut rounds = Rounds::new(64, crate::UNITS);
    rounds.configure(crate::shares(&image));
    rounds.activate(2, 0);
    let mut waited = 0;
    for _ in 0..200 {
        // In the middle of the flooder's visit.
        let mut before = 0;
        rounds.activate(1, 0);
        loop {
            let (slot, allowance) = rounds.next(0).unwrap();
            if slot == 1 {
                rounds.settle(1, 1756, Outcome::Empty, false);
                break;
            }
            let (mut from, mut to, mut tally) =
                (Queue::default(), Sink::default(), Tally::default());
            from.0
                .extend((0..64).map(|_| frame(6, ROUTER, TWO, IP_ONE, 1500)));
            let turn = Turn {
                allowance,
                now: 0,
                parked: 0,
                may_park: true,
            };
            let Batch { cost, outcome, .. } =
                serve(&image, 2, &mut from, &mut to, &mut tally, turn);
            before += cost;
            rounds.settle(2, cost, outcome, true);
            assert!(before < 1 << 20, "starved behind {before} bytes");
        }
        waited = waited.max(before);
    }
    assert!(
        waited <= 2 * ((16 << 10) + 1756),
        "waited for {waited} bytes"
    );
}

#[test]
fn who_sends_by_system_calls_has_few_of_them_in_a_visit() {
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let mut rounds = Rounds::new(64, crate::UNITS);
    rounds.configure(crate::shares(&image));
    rounds.activate(2, 0);
    let mut visit = |called: Vec<u32>| {
        let (_, allowance) = rounds.next(0).unwrap();
        let (mut from, mut tally) = (Queue::default(), Tally::default());
        let mut to = Sink {
            called,
            ..Sink::default()
        };
        from.0
            .extend((0..64).map(|_| frame(6, ROUTER, TWO, IP_ONE, 64)));
        let turn = Turn {
            allowance,
            ..turn()
        };
        let batch = serve(&image, 2, &mut from, &mut to, &mut tally, turn);
        rounds.settle(2, batch.cost, batch.outcome, true);
        (to.sent.len(), batch.cost)
    };
    let (frames, cost) = visit(vec![UPLINK]);
    assert_eq!((frames, cost), (4, 4 * (64 + 256 + 4096)));
    assert!(visit(Vec::new()).0 > 40);
}

#[test]
fn a_guarantee_is_of_bytes_whatever_they_cost() {
    // 1500 bytes cost 5,852 to where each frame is a call: 256 MB/s in all.
    let mut tables = weighted(1, 250);
    tables.channels[0].min_bytes = 150_000_000;
    let got = contend_by(&tables, &[(1, 1500), (2, 1500)], LINK, &[UPLINK]);
    assert!(got[&1].1 >= 148_000_000, "{:?}", got[&1]);
    assert!(got[&2].1 >= 90_000_000, "{:?}", got[&2]);
}

#[test]
fn a_guarantee_does_not_buy_the_fabric_with_small_frames() {
    // 60 bytes cost 4,412: at what they cost 50 MB/s would be 3.7 of the 1 GB/s there are.
    let mut tables = weighted(1, 1);
    tables.channels[0].min_bytes = 50_000_000;
    let got = contend_by(&tables, &[(1, 60), (2, 1500)], LINK, &[UPLINK]);
    assert!(got[&2].0 >= 300_000_000, "{:?}", got[&2]);
}

#[test]
fn copies_to_a_group_are_charged_to_the_sender() {
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let cost = |to| {
        let (mut from, mut out, mut tally) = (Queue::default(), Sink::default(), Tally::default());
        from.0.push_back(frame(0, to, ROUTER, IP_ONE, 1000));
        serve(&image, UPLINK, &mut from, &mut out, &mut tally, turn()).cost
    };
    assert_eq!(cost(ONE), 1256);
    assert_eq!(cost(EVERYBODY), 2 * 1256);
    assert_eq!(
        cost([2, 7, 7, 7, 7, 7]),
        1256,
        "a dropped frame costs as one sent"
    );
}

#[test]
fn a_segment_costs_as_a_record() {
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let mut large = honest(14_600);
    large.offload.gso_type = wire::offload::GSO_TCPV4;
    large.offload.gso_size = 1460;
    large.offload.flags = wire::offload::NEEDS_CSUM;
    large.offload.csum_start = 34;
    large.offload.csum_offset = 16;
    let (mut from, mut out, mut tally) = (Queue::default(), Sink::default(), Tally::default());
    from.0.push_back(large);
    let cost = serve(&image, 1, &mut from, &mut out, &mut tally, turn()).cost;
    assert_eq!((out.sent.len(), cost), (1, 14_600 + 10 * 256));
}

#[test]
fn an_idle_channel_leaves_and_saves_nothing_up() {
    let mut rounds = Rounds::new(4, crate::UNITS);
    rounds.activate(1, 0);
    let (_, first) = rounds.next(0).unwrap();
    rounds.settle(1, 0, Outcome::Empty, false);
    assert_eq!((rounds.active(), rounds.next(0)), (0, None));
    rounds.activate(1, 1_000_000_000);
    assert_eq!(rounds.next(1_000_000_000), Some((1, first)));
}

#[test]
fn a_debtor_pays_before_it_is_served_again() {
    let mut rounds = Rounds::new(4, crate::UNITS);
    rounds.activate(1, 0);
    rounds.activate(2, 0);
    let (slot, credit) = rounds.next(0).unwrap();
    rounds.settle(slot, 10 * credit, Outcome::More, true);
    // The other is served nine rounds of credit before.
    let mut others = 0;
    while let Some((next, credit)) = rounds.next(0)
        && next != slot
    {
        others += credit;
        rounds.settle(next, credit, Outcome::More, true);
    }
    assert!(others >= 8 * credit, "{others}");
    // Alone in debt, it does not wait for rounds that nobody uses.
    rounds.remove(2);
    rounds.settle(1, 1 << 40, Outcome::More, true);
    assert!(rounds.next(0).is_some());
}

#[test]
fn a_full_receiver_parks_its_sender_alone_and_not_for_long() {
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let (mut from, mut to, mut tally) = (Queue::default(), Sink::default(), Tally::default());
    from.0.push_back(honest(100));
    to.full.push(UPLINK);
    let served = serve(&image, 1, &mut from, &mut to, &mut tally, turn());
    assert_eq!((served.cost, served.outcome), (0, Outcome::Parked));
    assert_eq!(from.0.len(), 1, "the frame stays");
    let late = Turn {
        now: 60_000,
        parked: 1,
        ..turn()
    };
    let outcome = serve(&image, 1, &mut from, &mut to, &mut tally, late).outcome;
    assert_eq!(outcome, Outcome::Empty);
    assert_eq!(
        tally.drops[&(1, telemetry::drops::DropReason::QueueFull)],
        1
    );
    // An uplink never waits: others' frames are behind this one.
    let (mut from, mut to) = (
        Queue::default(),
        Sink {
            full: vec![1],
            ..Sink::default()
        },
    );
    from.0.push_back(frame(0, ONE, ROUTER, IP_ONE, 100));
    from.0.push_back(frame(0, TWO, ROUTER, IP_ONE, 100));
    let served = serve(
        &image,
        UPLINK,
        &mut from,
        &mut to,
        &mut tally,
        Turn {
            may_park: false,
            ..turn()
        },
    );
    assert_eq!((served.outcome, to.sent.len()), (Outcome::Empty, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_weights_any_sizes(
        one in 1u32..=255, two in 1u32..=255, sizes in (64usize..65_000, 64usize..65_000),
    ) {
        let got = contend(&weighted(one, two), &[(1, sizes.0), (2, sizes.1)], LINK);
        let expected = 100.0 * f64::from(one) / f64::from(one + two);
        prop_assert!((share(&got) - expected).abs() < 3.0, "{} not {expected}", share(&got));
    }

    #[test]
    fn the_line_is_never_lost(steps in proptest::collection::vec((0u32..6, 0u64..1 << 24, 0u8..4), 1..200)) {
        let mut rounds = Rounds::new(6, crate::UNITS);
        let mut active = std::collections::BTreeSet::new();
        for (now, (slot, cost, what)) in (0..).zip(steps) {
            match what {
                0 => { rounds.activate(slot, now); active.insert(slot); }
                1 => { rounds.remove(slot); active.remove(&slot); }
                _ => if let Some((next, credit)) = rounds.next(now) {
                    prop_assert!(credit > 0 && active.contains(&next));
                    let outcome = [Outcome::More, Outcome::Empty, Outcome::Parked][(cost % 3) as usize];
                    rounds.settle(next, cost, outcome, false);
                    if outcome == Outcome::Empty { active.remove(&next); }
                } else {
                    prop_assert!(active.is_empty());
                }
            }
            prop_assert_eq!(rounds.active(), active.len());
        }
    }
}
