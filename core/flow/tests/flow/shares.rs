//! Each zone has its share of the room for half-open connections.

use std::collections::{BTreeMap, HashSet, VecDeque};

use flow::{Connection, Connections, Found, Judgement, Refused, Side, state::SECOND};
use proptest::prelude::*;
use wire::tcp::{ACK, SYN};

use crate::{SEED, VERDICT, plain, segment, tuple};

/// Both sides of connection `n` that begins in `zone`, with owner 0 for strangers.
fn sides(protocol: u8, zone: u16, n: u32) -> [Side; 2] {
    let mut tuple = tuple(protocol, (zone as u8, n as u16), (99, 80));
    tuple.source[12] = (n >> 16) as u8;
    [
        Side {
            owner: 0,
            zone,
            tuple,
        },
        Side {
            owner: 1,
            zone: 0,
            tuple: tuple.reversed(),
        },
    ]
}

/// A SYN, and the server's answer to it, if it finds a place.
fn syn(c: &mut Connections, now: u64, zone: u16, n: u32) -> Result<(), Refused> {
    let [a, b] = sides(6, zone, n);
    c.open(now, &a, &b, &VERDICT, &segment(SYN, 1, 0, 0, 60_000))?;
    let back = c.find(now, b.owner, b.zone, &b.tuple).unwrap();
    let answer = segment(SYN | ACK, 5, 2, 0, 60_000);
    assert_eq!(c.packet(now, back, &answer), Judgement::Pass);
    Ok(())
}

/// Whether the connection is still there when its initiator answers the answer.
fn ack(c: &mut Connections, now: u64, zone: u16, n: u32) -> bool {
    let [a, _] = sides(6, zone, n);
    let Some(forth) = c.find(now, a.owner, a.zone, &a.tuple) else {
        return false;
    };
    c.packet(now, forth, &segment(ACK, 2, 6, 0, 60_000)) == Judgement::Pass
}

/// A user whose round trip takes 10 ms begins a connection every 2 ms, while zones flood
/// with so many SYNs a second in all. How many of them it did not get, of how many.
fn beside_a_flood(floods: u16, rate: u64) -> (u32, u32) {
    const USER: u16 = 1000;
    let mut c = Connections::new(SEED, &[8192, 8]).unwrap();
    let (mut lost, mut begun) = (0, 0);
    let mut waiting = VecDeque::new();
    for n in 0..50_000u32 {
        let now = u64::from(n) * SECOND / rate;
        let _ = syn(&mut c, now, 1 + (n % u32::from(floods)) as u16, n);
        while waiting.front().is_some_and(|&(due, _)| due <= now) {
            let (_, which) = waiting.pop_front().unwrap();
            lost += u32::from(!ack(&mut c, now, USER, which));
        }
        if now / (SECOND / 500) >= u64::from(begun) {
            begun += 1;
            match syn(&mut c, now, USER, begun) {
                Ok(()) => waiting.push_back((now + SECOND / 100, begun)),
                Err(_) => lost += 1,
            }
        }
        assert!(c.live(0).1 <= 2048);
    }
    (lost, begun)
}

#[test]
fn a_flood_of_one_user_takes_no_connection_of_another() {
    for (floods, rate) in [(1, 40_000), (1, 215_000), (1, 2_000_000), (100, 215_000)] {
        let (lost, begun) = beside_a_flood(floods, rate);
        assert!(begun >= 12, "{begun}");
        assert_eq!(lost, 0, "of {begun} beside {floods} at {rate}/s");
    }
}

#[test]
fn who_floods_alone_has_all_of_it_and_gives_way_to_who_comes() {
    let mut c = Connections::new(SEED, &[1024, 8]).unwrap();
    let of = |c: &Connections, zone| c.of_owner(0, 0).filter(|told| told.a.zone == zone).count();
    for n in 0..2_000 {
        let _ = syn(&mut c, 0, 1, n);
    }
    assert_eq!(of(&c, 1), 256);
    // Another flood has half then, a third a third.
    for zone in 2..4u16 {
        for n in 0..4_000 {
            for zone in 1..=zone {
                let _ = syn(&mut c, 0, zone, 2_000 + n);
            }
        }
        let each = 256 / usize::from(zone);
        for zone in 1..=zone {
            assert!((each..=each + 2).contains(&of(&c, zone)), "{zone}");
        }
    }
}

#[test]
fn with_more_zones_than_places_each_comes_in() {
    let mut c = Connections::new(SEED, &[64, 0]).unwrap();
    for n in 0..20 {
        for zone in 1..=50 {
            assert!(syn(&mut c, 0, zone, n).is_ok() || n > 0, "{zone}");
        }
    }
    assert_eq!(c.live(0), (16, 16));
}

#[derive(Clone, Debug)]
enum Step {
    Open(u16),
    /// So many of a zone in a row.
    Flood(u16, u32),
    Answer(usize),
    Close(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let zone = || prop::sample::select(&[0u16, 1, 2, 300, 65_535][..]);
    prop_oneof![
        8 => zone().prop_map(Step::Open),
        2 => (zone(), 1u32..30).prop_map(|(zone, many)| Step::Flood(zone, many)),
        2 => any::<usize>().prop_map(Step::Answer),
        1 => any::<usize>().prop_map(Step::Close),
        1 => (0u64..100).prop_map(|n| Step::Wait(n * SECOND)),
    ]
}

/// Half-open ones by zone, as they are told.
fn counts(told: &[Connection]) -> BTreeMap<u16, u32> {
    let mut counts = BTreeMap::new();
    for connection in told.iter().filter(|told| told.state.is_half_open()) {
        *counts.entry(connection.a.zone).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// By what is told alone: whoever made way for a newcomer was of its zone, or of one
    /// that had more than its share while the newcomer's had less, or was expired.
    #[test]
    fn who_makes_way_is_of_the_newcomers_zone_or_of_one_over_its_share(
        steps in prop::collection::vec(step(), 0..150), capacity in 4u32..200, seed: [u64; 2]) {
        let mut c = Connections::new(seed, &[capacity, 0]).unwrap();
        let (mut now, mut next) = (0, 0);
        let quarter = capacity.div_ceil(4);
        for step in steps {
            let all: Vec<Connection> = c.of_owner(now, 0).collect();
            let one = |index: usize| all.get(index % all.len().max(1));
            let (zone, many) = match step {
                Step::Open(zone) => (zone, 1),
                Step::Flood(zone, many) => (zone, many),
                Step::Answer(index) => {
                    if let Some(told) = one(index)
                        && let Some(found) = c.find(now, 1, 0, &told.b.tuple) {
                        c.packet(now, found, &plain(60));
                    }
                    continue;
                }
                Step::Close(index) => {
                    if let Some(told) = one(index) {
                        c.close(Found { id: told.id, direction: flow::Direction::Forth });
                    }
                    continue;
                }
                Step::Wait(time) => {
                    now += time;
                    continue;
                }
            };
            for _ in 0..many {
                next += 1;
                let before: Vec<Connection> = c.of_owner(now, 0).collect();
                let had = counts(&before);
                let own = had.get(&zone).copied().unwrap_or(0);
                let share = quarter / (had.len() as u32 + u32::from(own == 0));
                let [a, b] = sides(17, zone, next);
                let opened = c.open(now, &a, &b, &VERDICT, &plain(60));
                let after: HashSet<Side> = c.of_owner(now, 0).map(|told| told.a).collect();
                prop_assert_eq!(opened.is_ok(), after.contains(&a));
                let mut left = had.clone();
                for gone in before.iter().filter(|told| !after.contains(&told.a)) {
                    let expired = gone.silent > gone.state.timeout(17);
                    if !gone.state.is_half_open() || expired {
                        continue;
                    }
                    let count = left.get_mut(&gone.a.zone).unwrap();
                    let over = *count > share.max(own) && (own < share || own == 0);
                    prop_assert!(gone.a.zone == zone || over, "{gone:?} for {zone} of {had:?}");
                    *count -= 1;
                }
                prop_assert!(c.live(0).1 <= quarter);
            }
        }
    }
}
