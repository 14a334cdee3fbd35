//! Full sets, which take chosen tuples: those that fall into one set.

use super::*;
use crate::state::OTHER_IDLE;
use wire::address::mapped;

const CAPACITY: u32 = 128;

fn plain() -> Segment {
    Segment {
        packets: 1,
        bytes: 60,
        kind: Kind::Plain,
    }
}

/// Sides of connections whose two sets are both the first.
fn chosen(connections: &Connections) -> impl Iterator<Item = Side> + use<> {
    let seed = connections.seed;
    let sets = connections.owners[0].sets;
    (0..u32::MAX)
        .map(|n| Side {
            owner: 0,
            zone: 0,
            tuple: Tuple {
                source: mapped([10, 0, 0, 1]),
                destination: mapped([10, 0, (n >> 24) as u8, (n >> 16) as u8]),
                source_port: n as u16,
                destination_port: 53,
                protocol: 17,
            },
        })
        .filter(move |side| {
            let hash = index::hash(seed, 0, 0, &side.tuple);
            Places::of(hash, 0, sets).sets == [0, 0]
        })
}

fn open(connections: &mut Connections, now: u64, a: &Side) -> Result<Found, Refused> {
    let b = Side {
        tuple: a.tuple.reversed(),
        ..*a
    };
    connections.open(now, a, &b, &Verdict::default(), &plain())
}

fn answer(connections: &mut Connections, now: u64, found: Found) {
    let back = Found {
        direction: Direction::Back,
        ..found
    };
    assert_eq!(connections.packet(now, back, &plain()), Judgement::Pass);
}

/// As many established connections as a set has ways for these, and one more, which
/// found no place.
fn crowded() -> (Connections, Vec<Side>, impl Iterator<Item = Side>) {
    let mut connections = Connections::new([1, 2], &[CAPACITY]).unwrap();
    let mut sides = chosen(&connections);
    let places = index::WAYS - index::HALF_OPEN_WAYS;
    let first: Vec<Side> = sides.by_ref().take(places + 1).collect();
    for side in &first {
        let found = open(&mut connections, 0, side).unwrap();
        answer(&mut connections, 0, found);
    }
    (connections, first, sides)
}

fn there(connections: &mut Connections, now: u64, side: &Side) -> bool {
    connections.find(now, 0, 0, &side.tuple).is_some()
}

#[test]
fn an_established_one_without_a_place_is_evicted_by_half_open_ones() {
    let (mut connections, first, sides) = crowded();
    assert_eq!(connections.counters(0).unstated, 1);
    let mut counted = 0;
    for (n, side) in sides.take(40).enumerate() {
        open(&mut connections, n as u64, &side).unwrap();
        let counters = connections.counters(0);
        counted = counters.evicted_unstated;
        assert_eq!(counters.evicted_idle, 0);
    }
    // Half-open ones went first, as long as there were any.
    assert_eq!(counted, 0);
    assert!(first.iter().all(|side| there(&mut connections, 0, side)));

    let (mut connections, first, mut sides) = crowded();
    let more: Vec<Side> = sides.by_ref().take(3).collect();
    for side in &more {
        let found = open(&mut connections, 1 << 30, side).unwrap();
        answer(&mut connections, 1 << 30, found);
    }
    // All four ways hold established ones: the one that was silent longest goes.
    open(&mut connections, 2 << 30, &sides.next().unwrap()).unwrap();
    assert_eq!(connections.counters(0).evicted_unstated, 1);
    assert!(!there(&mut connections, 2 << 30, first.last().unwrap()));
    assert!(
        more.iter()
            .all(|side| there(&mut connections, 2 << 30, side))
    );
}

#[test]
fn who_becomes_established_evicts_the_idle_alone() {
    let (mut connections, first, mut sides) = crowded();
    let later = OTHER_IDLE + (4 << 24);
    // All but one go on.
    for side in first.iter().skip(1) {
        let found = connections.find(later, 0, 0, &side.tuple).unwrap();
        assert_eq!(connections.packet(later, found, &plain()), Judgement::Pass);
    }
    let side = sides.next().unwrap();
    let found = open(&mut connections, later, &side).unwrap();
    answer(&mut connections, later, found);
    let counters = connections.counters(0);
    assert_eq!((counters.evicted_idle, counters.unstated), (1, 1));
    assert!(!there(&mut connections, later, &first[0]));
    assert!(
        first[1..]
            .iter()
            .all(|side| there(&mut connections, later, side))
    );
}

/// It rises no more: that of who follows is the same.
#[test]
fn of_the_last_generation_nobody_is_known() {
    for (generation, known) in [(7, true), (u32::MAX, false)] {
        let mut connections = Connections::new([1, 2], &[CAPACITY]).unwrap();
        connections.generations.fill(generation);
        let side = chosen(&connections).next().unwrap();
        let found = open(&mut connections, 0, &side).unwrap();
        let (hit, step) = (
            connections.hit(1, found, generation, None, 60),
            connections.step(1, found, generation, None, 60),
        );
        assert_eq!((hit, step), (known, known), "{generation}");
    }
}

#[test]
fn who_waits_gets_the_next_free_place() {
    let (mut connections, first, _) = crowded();
    let gone = connections.find(0, 0, 0, &first[0].tuple).unwrap();
    connections.close(gone);
    let last = connections
        .find(0, 0, 0, &first.last().unwrap().tuple)
        .unwrap();
    assert!(connections.records[last.id as usize].is(WAITS));
    assert_eq!(connections.packet(0, last, &plain()), Judgement::Pass);
    assert!(!connections.records[last.id as usize].is(WAITS));
    assert!(there(&mut connections, 0, first.last().unwrap()));
}

#[test]
fn the_dead_give_way_before_the_living_whoever_they_are_of() {
    // Half-open ways full of one zone's, and an established one that waits among them and
    // was silent for too long.
    let (mut connections, first, sides) = crowded();
    let dead = first.last().unwrap();
    let later = 10 * OTHER_IDLE;
    let zoned = |side: Side| Side { zone: 7, ..side };
    let seed = connections.seed;
    let sets = connections.owners[0].sets;
    let own: Vec<Side> = sides
        .map(zoned)
        .filter(|side| {
            let hash = index::hash(seed, 0, 7, &side.tuple);
            Places::of(hash, 0, sets).sets == [0, 0]
        })
        .take(index::HALF_OPEN_WAYS)
        .collect();
    for side in &own[..index::HALF_OPEN_WAYS - 1] {
        open(&mut connections, later, side).unwrap();
    }
    assert_eq!(
        connections.owners[0].live as usize,
        first.len() + own.len() - 1
    );
    open(&mut connections, later, own.last().unwrap()).unwrap();
    let lives = |connections: &mut Connections, side: &Side| {
        connections.find(later, 0, side.zone, &side.tuple).is_some()
    };
    assert!(own.iter().all(|side| lives(&mut connections, side)));
    assert!(!lives(&mut connections, dead));
}
