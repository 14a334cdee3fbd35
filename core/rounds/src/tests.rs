use crate::{Outcome, Rounds, Share, Units};

const UNITS: Units = Units {
    most: 64,
    least: 4,
    round: 256,
    dearest: 16,
};

fn rounds() -> Rounds {
    let mut rounds = Rounds::new(8, UNITS);
    let share = |(slot, weight)| Share {
        slot,
        weight,
        min_bytes: 0,
    };
    rounds.configure([(0, 16), (1, 1), (2, 1)].into_iter().map(share));
    rounds
}

/// What each is given when its turn comes, all of it used.
fn visits(rounds: &mut Rounds, count: usize) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (slot, given) = rounds.next(0).unwrap();
        rounds.settle(slot, given, Outcome::More, true);
        all.push((slot, given));
    }
    all
}

#[test]
fn who_is_heavy_and_idle_makes_nobodys_batches_smaller() {
    let mut rounds = rounds();
    rounds.activate(1, 0);
    rounds.activate(2, 0);
    assert_eq!(visits(&mut rounds, 3), [(1, 64), (2, 64), (1, 64)]);
    // It comes: what the heaviest has at once bounds what the others wait.
    rounds.activate(0, 0);
    assert_eq!(
        visits(&mut rounds, 4),
        [(2, 16), (1, 16), (0, 256), (2, 16)]
    );
    // It goes, in whatever way it leaves the line.
    rounds.remove(0);
    assert_eq!(visits(&mut rounds, 2), [(1, 64), (2, 64)]);
    rounds.activate(0, 0);
    rounds.retain(|slot| slot != 0);
    assert_eq!(visits(&mut rounds, 2), [(1, 64), (2, 64)]);
    rounds.activate(0, 0);
    while let Some((slot, given)) = rounds.next(0) {
        let (outcome, stays) = match slot {
            0 => (Outcome::Empty, false),
            _ => (Outcome::More, true),
        };
        rounds.settle(slot, given, outcome, stays);
        if slot == 0 {
            break;
        }
    }
    assert_eq!(visits(&mut rounds, 2), [(1, 64), (2, 64)]);
}

#[test]
fn weights_that_change_count_at_once() {
    let mut rounds = rounds();
    rounds.activate(0, 0);
    rounds.activate(1, 0);
    assert_eq!(visits(&mut rounds, 2), [(0, 256), (1, 16)]);
    let equal = Share {
        slot: 0,
        weight: 1,
        min_bytes: 0,
    };
    rounds.configure([equal].into_iter());
    assert_eq!(visits(&mut rounds, 2), [(0, 64), (1, 64)]);
}
