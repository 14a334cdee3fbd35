//! Against a map without bounds: what is found is what was opened, exactly.

use std::collections::HashMap;

use flow::{Connections, Direction, Found, Refused, Side, Verdict};
use proptest::prelude::*;
use wire::Tuple;

use crate::{SEED, plain, tuple};

/// Sides of a small world, so that they meet often.
fn side() -> impl Strategy<Value = Side> {
    let tuple = (
        0u8..3,
        0u16..3,
        0u8..3,
        0u16..2,
        prop::sample::select(&[17u8, 132][..]),
    )
        .prop_map(|(a, b, c, d, protocol)| tuple(protocol, (a, b), (c, d)));
    (0u32..3, prop::sample::select(&[0u16, 0, 5][..]), tuple)
        .prop_map(|(owner, zone, tuple)| Side { owner, zone, tuple })
}

#[derive(Clone, Debug)]
enum Step {
    Plain {
        a: Side,
        owner: u32,
    },
    Translated {
        a: Side,
        b: Side,
    },
    Close(Side),
    /// Another room for all; and so many records of it come.
    Resize(u32),
    Move(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (side(), 0u32..3).prop_map(|(a, owner)| Step::Plain { a, owner }),
        (side(), side()).prop_map(|(a, b)| Step::Translated {
            a,
            b: Side {
                tuple: Tuple {
                    protocol: a.tuple.protocol,
                    ..b.tuple
                },
                ..b
            },
        }),
        side().prop_map(Step::Close),
        (600u32..900).prop_map(Step::Resize),
        (0u32..4).prop_map(Step::Move),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_found_is_what_was_opened(steps in prop::collection::vec(step(), 0..120),
        probes in prop::collection::vec(side(), 0..60), seed: [u64; 2]) {
        let mut connections = Connections::new(seed, &[600; 3]).unwrap();
        // By the number of the step that opened it: the connection's own changes.
        let mut model: HashMap<Side, (u32, Direction)> = HashMap::new();
        let mut sides_of: HashMap<u32, [Side; 2]> = HashMap::new();
        let known = |connections: &Connections, found: Option<Found>| {
            found.map(|f| (connections.verdict(f).unwrap(), f.direction))
        };
        let verdict = |number: u32| Verdict { epoch: number, rules: [number; 2] };
        for (number, step) in (0..).zip(steps) {
            let (a, b) = match step {
                Step::Plain { a, owner } => (a, Side { owner, zone: 0, tuple: a.tuple.reversed() }),
                Step::Translated { a, b } => (a, b),
                Step::Close(side) => {
                    let found = connections.find(0, side.owner, side.zone, &side.tuple);
                    let there = model.get(&side).map(|(n, direction)| (verdict(*n), *direction));
                    prop_assert_eq!(known(&connections, found), there);
                    if let (Some(found), Some((number, _))) = (found, there) {
                        connections.close(found);
                        for side in sides_of.remove(&number.epoch).unwrap() {
                            model.remove(&side);
                        }
                    }
                    continue;
                }
                Step::Resize(capacity) => {
                    let room = Connections::new(seed, &[capacity; 3]).unwrap();
                    let before = std::mem::replace(&mut connections, room);
                    connections.inherit(before, |_| true);
                    continue;
                }
                Step::Move(budget) => {
                    connections.move_some(0, budget);
                    continue;
                }
            };
            // A connection to itself by itself: one side is both.
            if a == b {
                continue;
            }
            let opened = connections.open(0, &a, &b, &verdict(number), &plain(60));
            if model.contains_key(&a) || model.contains_key(&b) {
                prop_assert_eq!(opened, Err(Refused::Taken));
                continue;
            }
            prop_assert!(opened.is_ok());
            model.insert(a, (number, Direction::Forth));
            model.insert(b, (number, Direction::Back));
            sides_of.insert(number, [a, b]);
        }
        let all = sides_of.len() as u32;
        for side in probes.iter().chain(sides_of.values().flatten()) {
            let found = connections.find(0, side.owner, side.zone, &side.tuple);
            let there = model.get(side).map(|(n, direction)| (verdict(*n), *direction));
            prop_assert_eq!(known(&connections, found), there);
            if let (Some(found), Some((number, _))) = (found, there) {
                let [a, b] = sides_of[&number.epoch];
                let leaves = match found.direction {
                    Direction::Forth => b.tuple.reversed(),
                    Direction::Back => a.tuple.reversed(),
                };
                prop_assert_eq!(connections.leaves_as(found), Some(leaves));
            }
        }
        while connections.move_some(0, 100) {}
        let live: u32 = (0..3).map(|owner| connections.live(owner).0).sum();
        prop_assert_eq!((live, connections.is_moving()), (all, false));
    }
}

const FULL: u32 = 20_000;

/// Connection `n` that owner 0 begins with owner 1.
fn nth(n: u32) -> [Side; 2] {
    let ends = ((1, 1 + (n % 50_000) as u16), (2, 1 + (n / 50_000) as u16));
    crate::sides(tuple(17, ends.0, ends.1), 0, 1)
}

/// As many as are half-open at most of so many.
fn full() -> Connections {
    let mut c = Connections::new(SEED, &[2 * FULL, 8]).unwrap();
    for [a, b] in (0..FULL).map(nth) {
        c.open(0, &a, &b, &crate::VERDICT, &plain(60)).ok();
    }
    assert!(c.live(0).0 > FULL / 4, "{:?}", c.live(0));
    c
}

#[test]
fn a_full_room_is_changed_in_bounded_steps() {
    let c = full();
    let live = c.live(0).0;
    let mut next = Connections::new(SEED, &[2 * FULL, 16]).unwrap();
    next.inherit(c, |_| true);
    assert_eq!(next.live(0).0, 0, "nothing has been moved yet");
    let mut steps = 0;
    while next.move_some(0, 512) {
        steps += 1;
        assert!(next.live(0).0 <= 512 * steps);
    }
    assert_eq!(next.live(0).0, live);
    assert!(!next.is_moving());
}

#[test]
fn many_changes_one_after_another_move_nobody_at_once() {
    let mut c = full();
    let live = c.live(0).0;
    // None of them has ended when the next comes.
    for more in 1..=10 {
        let third = if more > 8 { 8 } else { 0 };
        let room = Connections::new(SEED, &[2 * FULL + more, 8, third]).unwrap();
        let before = std::mem::replace(&mut c, room);
        c.inherit(before, |_| true);
        assert!(c.move_some(0, 1));
    }
    // Each is found, where it is, and some more come.
    let found = |c: &mut Connections, n| c.find(0, 0, 0, &nth(n)[0].tuple).is_some();
    let there = (0..FULL).step_by(100).filter(|&n| found(&mut c, n)).count();
    assert!(there > 40, "{there}");
    let [mut a, mut b] = nth(FULL);
    assert!(c.open(0, &a, &b, &crate::VERDICT, &plain(60)).is_ok());
    // In the last room alone there is a third.
    (a.owner, b.owner) = (2, 2);
    assert!(c.open(0, &a, &b, &crate::VERDICT, &plain(60)).is_err());
    // What was not moved yet is nearly all of it.
    let mut steps = 0;
    while c.move_some(0, 1) {
        steps += 1;
    }
    assert!(steps > live - 500, "{steps} of {live}");
    assert!(!c.is_moving());
    assert!(c.live(0).0 + 1 >= live, "{:?} of {live}", c.live(0));
    assert!(c.open(0, &a, &b, &crate::VERDICT, &plain(60)).is_ok());
}

#[test]
fn who_goes_is_gone_at_once_though_its_room_waits() {
    let mut c = full();
    for round in 0..6u32 {
        let room = Connections::new(SEED, &[2 * FULL + 1 + round, 8]).unwrap();
        let before = std::mem::replace(&mut c, room);
        c.inherit(before, |_| true);
    }
    let found: Vec<u32> = (0..FULL)
        .filter(|&n| c.find(0, 0, 0, &nth(n)[0].tuple).is_some())
        .take(3)
        .collect();
    // Another is in the first's place, and then in the second's; both changes wait.
    for (round, gone) in [(7, 0u32), (8, 1)] {
        let room = Connections::new(SEED, &[2 * FULL + round, 8]).unwrap();
        let before = std::mem::replace(&mut c, room);
        c.inherit(before, |owner| owner != gone);
        let told = |c: &Connections| {
            let mut told = 0;
            while !c.walk(0, &mut flow::Cursor::default(), u32::MAX, &mut |_| {
                told += 1
            }) {}
            told
        };
        assert_eq!(told(&c), 0);
        let [a, b] = nth(found[(round - 7) as usize]);
        assert_eq!(c.find(0, b.owner, b.zone, &b.tuple), None);
        assert_eq!(c.find(0, a.owner, a.zone, &a.tuple), None);
        // Nor does one begin meanwhile: it would be lost with the room.
        let [a, b] = nth(FULL + round);
        let opened = c.open(0, &a, &b, &crate::VERDICT, &plain(60));
        assert_eq!(opened, Err(Refused::Full));
    }
    while c.move_some(0, 1000) {}
    assert_eq!(c.live(0), (0, 0));
    let [a, b] = nth(found[2]);
    assert!(c.open(0, &a, &b, &crate::VERDICT, &plain(60)).is_ok());
}

#[test]
fn the_seed_moves_everything_and_changes_nothing() {
    let mut one = Connections::new(SEED, &[8]).unwrap();
    let mut two = Connections::new([1, 2], &[8]).unwrap();
    for c in [&mut one, &mut two] {
        let a = Side {
            owner: 0,
            zone: 0,
            tuple: tuple(17, (1, 1), (2, 2)),
        };
        let b = Side {
            owner: 0,
            zone: 0,
            tuple: a.tuple.reversed(),
        };
        let found = c.open(0, &a, &b, &crate::VERDICT, &plain(60)).unwrap();
        assert_eq!(c.find(0, 0, 0, &a.tuple), Some(found));
    }
}
