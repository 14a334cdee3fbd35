//! Against a map without bounds: what is found is what was opened, exactly.

use std::collections::HashMap;

use flow::{Connections, Direction, Refused, Side, Verdict};
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
    Plain { a: Side, owner: u32 },
    Translated { a: Side, b: Side },
    Close(Side),
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
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_found_is_what_was_opened(steps in prop::collection::vec(step(), 0..120),
        probes in prop::collection::vec(side(), 0..60), seed: [u64; 2]) {
        let mut connections = Connections::new(seed, &[600; 3]).unwrap();
        let mut model: HashMap<Side, (u32, Direction)> = HashMap::new();
        let mut sides_of: HashMap<u32, [Side; 2]> = HashMap::new();
        let mut told: HashMap<u32, Verdict> = HashMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            let (a, b) = match step {
                Step::Plain { a, owner } => (a, Side { owner, zone: 0, tuple: a.tuple.reversed() }),
                Step::Translated { a, b } => (a, b),
                Step::Close(side) => {
                    let found = connections.find(0, side.owner, side.zone, &side.tuple);
                    prop_assert_eq!(found.map(|f| (f.id, f.direction)), model.get(&side).copied());
                    if let Some(found) = found {
                        connections.close(found);
                        for side in sides_of.remove(&found.id).unwrap() {
                            model.remove(&side);
                        }
                        told.remove(&found.id);
                    }
                    continue;
                }
            };
            // A connection to itself by itself: one side is both.
            if a == b {
                continue;
            }
            let verdict = Verdict { epoch: number as u32, rules: [number as u32; 2] };
            let opened = connections.open(0, &a, &b, &verdict, &plain(60));
            if model.contains_key(&a) || model.contains_key(&b) {
                prop_assert_eq!(opened, Err(Refused::Taken));
                continue;
            }
            let id = opened.unwrap().id;
            model.insert(a, (id, Direction::Forth));
            model.insert(b, (id, Direction::Back));
            sides_of.insert(id, [a, b]);
            told.insert(id, verdict);
        }
        for side in probes.iter().chain(sides_of.values().flatten()) {
            let found = connections.find(0, side.owner, side.zone, &side.tuple);
            prop_assert_eq!(found.map(|f| (f.id, f.direction)), model.get(side).copied());
            if let Some(found) = found {
                prop_assert_eq!(connections.verdict(found), told.get(&found.id).copied());
                let [a, b] = sides_of[&found.id];
                let leaves = match found.direction {
                    Direction::Forth => b.tuple.reversed(),
                    Direction::Back => a.tuple.reversed(),
                };
                prop_assert_eq!(connections.leaves_as(found), Some(leaves));
            }
        }
    }
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
