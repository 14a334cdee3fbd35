//! What passed is told by rule once, whatever becomes of the connection.

use flow::{Connections, Direction, Found, Judgement, Rejudged, Verdict};
use proptest::prelude::*;
use std::collections::BTreeMap;

use crate::{SEED, plain, sides, tuple};

#[derive(Clone, Debug)]
enum Deed {
    Packet(u16, bool, u16),
    Close(u16),
    Sweep(bool),
    Later(u64),
    Resize,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (0..40_u16, any::<bool>(), 60..9000_u16).prop_map(|(n, back, size)| Deed::Packet(n, back, size)),
        1 => (0..40_u16).prop_map(Deed::Close),
        2 => any::<bool>().prop_map(Deed::Sweep),
        1 => (1..200_u64).prop_map(Deed::Later),
        1 => Just(Deed::Resize),
    ]
}

fn room() -> Connections {
    // So few that new ones evict.
    Connections::new(SEED, &[24, 4]).unwrap()
}

proptest! {
    #[test]
    fn each_byte_that_passed_is_told_once(deeds in prop::collection::vec(deed(), 1..300)) {
        let (mut c, mut now, mut epoch) = (room(), 0, 0);
        let (mut truth, mut told) = ((0_u64, 0_u64), BTreeMap::<[u32; 2], (u64, u64)>::new());
        let take = |c: &mut Connections, told: &mut BTreeMap<[u32; 2], (u64, u64)>| {
            while let Some(tally) = c.tallied() {
                let sum = told.entry(tally.rules).or_default();
                *sum = (sum.0 + tally.packets, sum.1 + tally.bytes);
            }
        };
        for deed in deeds {
            let verdict = Verdict { epoch, rules: [epoch, 9] };
            match deed {
                Deed::Packet(n, back, size) => {
                    let [a, b] = sides(tuple(17, (1, n), (2, 53)), 0, 1);
                    let segment = plain(size.into());
                    let found = match c.find(now, 0, 0, &a.tuple) {
                        Some(found) => {
                            let direction = if back { Direction::Back } else { Direction::Forth };
                            let found = Found { direction, ..found };
                            c.packet(now, found, &segment) == Judgement::Pass
                        }
                        None => c.open(now, &a, &b, &verdict, &segment).is_ok(),
                    };
                    if found {
                        truth = (truth.0 + 1, truth.1 + u64::from(size));
                    }
                }
                Deed::Close(n) => {
                    let [a, _] = sides(tuple(17, (1, n), (2, 53)), 0, 1);
                    if let Some(found) = c.find(now, 0, 0, &a.tuple) {
                        c.close(found);
                    }
                }
                Deed::Sweep(edit) => {
                    epoch += u32::from(edit);
                    let verdict = Verdict { epoch, rules: [epoch, 9] };
                    c.sweep(now, 100, epoch, &mut |_| Rejudged::Keep(verdict));
                }
                Deed::Later(seconds) => now += seconds * flow::state::SECOND,
                Deed::Resize => {
                    let before = core::mem::replace(&mut c, room());
                    c.inherit(before, |owner| owner == 0);
                    // Some go now, the rest when they are asked for.
                    c.move_some(now, 10);
                }
            }
            take(&mut c, &mut told);
            let sum = told.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            prop_assert!(sum.0 <= truth.0 && sum.1 <= truth.1, "{sum:?} of {truth:?}");
        }
        while c.move_some(now, 1000) {
            take(&mut c, &mut told);
        }
        // A sweep has told all but a thousandth of what lives.
        c.sweep(now, 1000, epoch, &mut |_| Rejudged::Cut);
        take(&mut c, &mut told);
        let all: Vec<_> = c.of_owner(now, 0).collect();
        for connection in &all {
            c.close(Found { id: connection.id, direction: Direction::Forth });
        }
        take(&mut c, &mut told);
        let sum = told.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        prop_assert_eq!(sum, truth);
    }
}
