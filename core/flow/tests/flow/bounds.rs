//! Bounds hold whatever comes, and nobody pays for another's flood.

use flow::state::{SECOND, TCP_IDLE};
use flow::{Connections, Found, Judgement, Refused, Rejudged, Verdict, connections::BYTES};
use proptest::prelude::*;
use std::collections::BTreeSet;
use wire::tcp::{ACK, SYN};

use crate::{SEED, VERDICT, plain, segment, sides, tuple};

/// Opens the UDP connection number `n` from `owner` to endpoint 1.
fn udp(c: &mut Connections, now: u64, owner: u32, n: u32) -> Result<Found, Refused> {
    let ends = ((owner as u8 * 16 + (n >> 16) as u8, n as u16), (99, 53));
    let [a, b] = sides(tuple(17, ends.0, ends.1), owner, 1);
    c.open(now, &a, &b, &VERDICT, &plain(60))
}

/// The same, answered.
fn answered(c: &mut Connections, now: u64, owner: u32, n: u32) -> Result<Found, Refused> {
    let found = udp(c, now, owner, n)?;
    let back = Found {
        direction: found.direction.reversed(),
        ..found
    };
    assert_eq!(c.packet(now, back, &plain(60)), Judgement::Pass);
    Ok(found)
}

fn found(c: &mut Connections, now: u64, owner: u32, n: u32) -> bool {
    let ends = ((owner as u8 * 16 + (n >> 16) as u8, n as u16), (99, 53));
    let [a, b] = sides(tuple(17, ends.0, ends.1), owner, 1);
    let forth = c.find(now, owner, 0, &a.tuple);
    let back = c.find(now, 1, 0, &b.tuple);
    assert_eq!(forth.map(|f| f.id), back.map(|f| f.id));
    forth.is_some()
}

#[test]
fn a_million_connections_fit_128_mib() {
    assert_eq!(BYTES, 134);
    const { assert!(BYTES * 1_000_000 <= 128 << 20) };
    // And are all there at once: of a fiftieth here.
    let mut c = Connections::new(SEED, &[20_000, 1]).unwrap();
    for n in 0..20_000 {
        answered(&mut c, 0, 0, n).unwrap();
    }
    assert_eq!(c.live(0), (20_000, 0));
    assert_eq!(c.counters(0).unstated, 0);
    assert!((0..20_000).all(|n| found(&mut c, 0, 0, n)));
    assert_eq!(udp(&mut c, 0, 0, 20_000), Err(Refused::Full));
}

#[test]
fn a_half_open_flood_leaves_the_established_alone() {
    let mut c = Connections::new(SEED, &[256, 1]).unwrap();
    for n in 0..100 {
        answered(&mut c, 0, 0, n).unwrap();
    }
    for n in 1000..20_000 {
        udp(&mut c, u64::from(n), 0, n).unwrap();
        let (live, half_open) = c.live(0);
        assert!(live <= 256 && half_open <= 64, "{live} {half_open}");
    }
    assert!((0..100).all(|n| found(&mut c, 20_000, 0, n)));
    let counters = c.counters(0);
    assert_eq!((counters.evicted_idle, counters.evicted_unstated), (0, 0));
    assert_eq!(counters.evicted_half_open, 19_000 - 64);
    // The newest is among what is left.
    assert!(found(&mut c, 20_000, 0, 19_999));
}

#[test]
fn a_full_table_of_established_refuses_and_keeps_them() {
    let mut c = Connections::new(SEED, &[64, 1]).unwrap();
    for n in 0..64 {
        answered(&mut c, 0, 0, n).unwrap();
    }
    for n in 100..1000 {
        assert_eq!(udp(&mut c, SECOND, 0, n), Err(Refused::Full));
    }
    assert!((0..64).all(|n| found(&mut c, SECOND, 0, n)));
    assert_eq!(c.counters(0).refused, 900);
}

#[test]
fn an_idle_one_gives_way() {
    let mut c = Connections::new(SEED, &[8, 1]).unwrap();
    for n in 0..8 {
        answered(&mut c, u64::from(n) * SECOND, 0, n).unwrap();
    }
    let later = 62 * SECOND;
    assert!(udp(&mut c, later, 0, 100).is_ok());
    assert_eq!(c.counters(0).evicted_idle, 1);
    assert!(!found(&mut c, later, 0, 0), "the one silent longest");
    assert!((1..8).all(|n| found(&mut c, later, 0, n)));
}

#[test]
fn established_tcp_is_idle_after_a_quarter_of_an_hour() {
    let mut c = Connections::new(SEED, &[1, 1]).unwrap();
    let [a, b] = sides(tuple(6, (1, 1), (99, 80)), 0, 1);
    let forth = c
        .open(0, &a, &b, &VERDICT, &segment(SYN, 1, 0, 0, 100))
        .unwrap();
    let back = c.find(0, 1, 0, &b.tuple).unwrap();
    c.packet(0, back, &segment(SYN | ACK, 5, 2, 0, 100));
    c.packet(0, forth, &segment(ACK, 2, 6, 0, 100));
    assert_eq!(udp(&mut c, TCP_IDLE - SECOND, 0, 1), Err(Refused::Full));
    assert!(udp(&mut c, TCP_IDLE + SECOND, 0, 1).is_ok());
}

#[test]
fn one_owners_flood_is_its_own_matter() {
    // 0 floods endpoint 1, to which 2 has connections and 1 itself has some.
    let mut c = Connections::new(SEED, &[512, 32, 32, 0]).unwrap();
    for n in 0..16 {
        answered(&mut c, 0, 2, n).unwrap();
        answered(&mut c, 0, 1, n).unwrap();
        udp(&mut c, 0, 2, 100 + n % 8).ok();
    }
    let before = (c.live(1), c.live(2));
    for n in 0..5_000 {
        let _ = answered(&mut c, u64::from(n), 0, n);
        let _ = udp(&mut c, u64::from(n), 0, 10_000 + n);
    }
    assert_eq!((c.live(1), c.live(2)), before);
    assert!((0..16).all(|n| found(&mut c, 5_000, 2, n) && found(&mut c, 5_000, 1, n)));
    // And may begin new ones.
    assert!(answered(&mut c, 5_000, 2, 16).is_ok());
    assert!(answered(&mut c, 5_000, 1, 16).is_ok());
    // Who may have none has none.
    assert_eq!(udp(&mut c, 0, 3, 1), Err(Refused::Full));
}

#[test]
fn a_sweep_is_bounded_and_sees_all() {
    let mut c = Connections::new(SEED, &[64, 0, 64]).unwrap();
    for n in 0..40 {
        answered(&mut c, 0, 0, n).unwrap();
        answered(&mut c, 200 * SECOND, 2, n).unwrap();
    }
    let mut total = flow::Swept::default();
    let mut judged = 0;
    for _ in 0..100 {
        let swept = c.sweep(302 * SECOND, 7, 2, &mut |connection| {
            judged += 1;
            match connection.a.tuple.source_port % 2 {
                0 => Rejudged::Cut,
                _ => Rejudged::Keep(Verdict {
                    epoch: 2,
                    ..VERDICT
                }),
            }
        });
        assert!(swept.looked <= 7);
        total.looked += swept.looked;
        total.expired += swept.expired;
        total.cut += swept.cut;
        if swept.ended {
            break;
        }
    }
    // The first forty are silent for longer than five minutes, the others judged.
    assert_eq!(
        (total.looked, total.expired, total.cut, judged),
        (80, 40, 20, 40)
    );
    assert_eq!((c.live(0).0, c.live(2).0), (0, 20));
    assert_eq!(c.of_owner(0, 2).count(), 20);
    assert!(c.of_owner(0, 2).all(|told| told.verdict.epoch == 2));
    // A second round has nothing left to judge.
    let swept = c.sweep(302 * SECOND, 1000, 2, &mut |_| panic!("judged already"));
    assert!(swept.ended && swept.looked == 80, "{swept:?}");
}

#[test]
fn more_than_there_are_numbers_is_refused() {
    assert!(Connections::new(SEED, &[1 << 24]).is_err());
    assert!(Connections::new(SEED, &vec![0; (1 << 16) + 1]).is_err());
    assert!(Connections::new(SEED, &[]).is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Open {
        owner: u32,
        n: u32,
        established: bool,
    },
    Wait(u64),
    Close {
        owner: u32,
        n: u32,
    },
    Sweep(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u32..3, 0u32..60, any::<bool>())
            .prop_map(|(owner, n, established)| Step::Open { owner, n, established }),
        1 => (0u64..100).prop_map(|n| Step::Wait(n * SECOND)),
        1 => (0u32..3, 0u32..60).prop_map(|(owner, n)| Step::Close { owner, n }),
        1 => (0u32..20).prop_map(Step::Sweep),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However it is used, no owner has more than its own, what is told is what is
    /// there, and each side that is found leads to the connection that has it.
    #[test]
    fn bounds_hold_under_any_sequence(steps in steps(), capacities in prop::array::uniform3(0u32..24)) {
        let mut c = Connections::new(SEED, &capacities).unwrap();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Open { owner, n, established: true } => drop(answered(&mut c, now, owner, n)),
                Step::Open { owner, n, .. } => drop(udp(&mut c, now, owner, n)),
                Step::Wait(time) => now += time,
                Step::Close { owner, n } => {
                    let [a, _] = sides(tuple(17, (owner as u8 * 16, n as u16), (99, 53)), owner, 1);
                    if let Some(found) = c.find(now, owner, 0, &a.tuple) {
                        c.close(found);
                    }
                }
                Step::Sweep(budget) => {
                    c.sweep(now, budget, 1, &mut |told| Rejudged::Keep(told.verdict));
                }
            }
            for owner in 0..3 {
                let told: Vec<_> = c.of_owner(now, owner).collect();
                let half_open = told.iter().filter(|t| t.state.is_half_open()).count() as u32;
                let (live, halves) = c.live(owner);
                prop_assert_eq!((told.len() as u32, half_open), (live, halves));
                prop_assert!(live <= capacities[owner as usize]);
                prop_assert!(halves <= capacities[owner as usize].div_ceil(4));
            }
        }
        for owner in 0..3 {
            for told in c.of_owner(now, owner).collect::<Vec<_>>() {
                for side in [told.a, told.b] {
                    let found = c.find(now, side.owner, side.zone, &side.tuple);
                    prop_assert!(found.is_none_or(|found| found.id == told.id));
                }
            }
        }
    }
}

#[test]
fn a_walk_sees_each_living_connection_once_in_bounded_steps() {
    let mut c = Connections::new(SEED, &[50, 0, 50]).unwrap();
    let now = 1_000 * SECOND;
    let opened: BTreeSet<u32> = [(0, 7), (2, 30)]
        .into_iter()
        .flat_map(|(owner, n)| (0..n).map(move |n| (owner, n)))
        .filter_map(|(owner, n)| udp(&mut c, now, owner, n).ok())
        .map(|found| found.id)
        .collect();
    // The newer ones among the half-open took places of older ones.
    assert!(opened.len() > 15, "{}", opened.len());
    let (mut at, mut seen, mut steps) = (flow::Cursor::default(), Vec::new(), 0);
    loop {
        let before = seen.len();
        let ended = c.walk(now, &mut at, 8, &mut |connection| seen.push(connection.id));
        assert!(seen.len() - before <= 8);
        steps += 1;
        if ended {
            break;
        }
    }
    assert!((3..20).contains(&steps), "{steps}");
    assert_eq!(seen, opened.into_iter().collect::<Vec<_>>());
    // Those that are over are passed over.
    let mut none = 0;
    let later = now + 10_000 * SECOND;
    assert!(
        c.walk(later, &mut flow::Cursor::default(), 1000, &mut |_| none +=
            1)
    );
    assert_eq!(none, 0);
}
