//! A tenant's rate, both ways, where several workers move its frames: slots 1 and 3 are at
//! home at one of two, slot 2 at the other.

use crate::rig::{Rig, SLOTS};
use crate::several::{come, lost, numbered, push};
use crate::tables;
use image::compartment::Rate;
use shm::Channel;
use std::time::{Duration, Instant};
use telemetry::drops::DropReason;

const RATE: Rate = Rate {
    bytes: 2_000_000,
    burst: 50_000,
    packets: 0,
};
const FRAME: usize = 1_000;
/// What is counted at the end may be the last two frames of a turn more, and what lies in rings.
const SLACK: u64 = 8 * FRAME as u64;

/// All send what they can for a second; how many bytes came to each, and what may have come.
fn pour(guests: &mut [Channel], pairs: &[(u32, u32)]) -> ([u64; SLOTS as usize], u64) {
    let mut came = [0; SLOTS as usize];
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        for (from, to) in pairs {
            let mut frame = numbered(*from, *to, 1, 1);
            frame.resize(FRAME, 0);
            push(&mut guests[*from as usize - 1], &frame);
        }
        for (came, guest) in came.iter_mut().skip(1).zip(guests.iter_mut()) {
            while let Some(frame) = come(guest) {
                *came += frame.len() as u64;
            }
        }
    }
    let may = RATE.bytes * begun.elapsed().as_millis() as u64 / 1_000;
    (came, may)
}

fn guests(rig: &Rig) -> Vec<Channel> {
    (1..SLOTS).map(|slot| rig.guest(slot)).collect()
}

/// Of each of these at a time what comes is within the rate, most of it, and nobody's is all of it.
fn holds(guests: &mut [Channel], all_pairs: &[&[(u32, u32)]]) {
    let mut before = RATE.burst;
    for pairs in all_pairs {
        let (came, may) = pour(guests, pairs);
        let all: u64 = came.iter().sum();
        assert!(
            all <= before + may + SLACK,
            "{pairs:?}: {came:?}, {may} may"
        );
        assert!(all * 20 >= may * 11, "{pairs:?}: {came:?} of {may}");
        for (_, to) in *pairs {
            let part = came[*to as usize] * 6 * pairs.len() as u64;
            assert!(part >= all, "{pairs:?}: {came:?}");
        }
        // What came late is the next one's, and what lay in the rings.
        before = RATE.burst + 200_000;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_a_tenant_sends_by_several_workers_is_within_its_rate_and_not_shared_out() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    tables.tenants[0].from = RATE;
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    // One worker's senders alone, the other's, then both, who send to each other's.
    holds(
        &mut guests,
        &[
            &[(1, 3)][..],
            &[(2, 1)],
            &[(1, 2), (2, 3)],
            &[(3, 2), (2, 1)],
        ],
    );
    // Who sent too much waited.
    assert_eq!(lost(&rig, DropReason::IngressRate), 0);
}

#[test]
fn what_a_tenant_is_sent_by_several_workers_is_within_its_rate_and_not_shared_out() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    tables.tenants[0].to = RATE;
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    holds(
        &mut guests,
        &[
            &[(1, 2)][..],
            &[(1, 3)],
            &[(1, 2), (2, 3)],
            &[(3, 2), (3, 1)],
        ],
    );
}

#[test]
fn a_rate_that_changes_is_the_same_for_all_workers() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    let slow = Rate {
        bytes: 200_000,
        ..RATE
    };
    for (epoch, rate) in [(2, RATE), (3, slow), (4, RATE)] {
        tables.tenants[0].from = rate;
        rig.install(&tables, epoch);
        let (came, may) = pour(&mut guests, &[(1, 3), (2, 1)]);
        let may = may * rate.bytes / RATE.bytes;
        let all: u64 = came.iter().sum();
        // What lay in the rings, or was there to be sent at once.
        assert!(
            all <= may + 4 * RATE.burst + SLACK,
            "{epoch}: {came:?}, {may} may"
        );
        assert!(all * 10 >= may * 6, "{epoch}: {came:?} of {may}");
    }
}
