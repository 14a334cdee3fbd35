//! Rates toward an endpoint, and rates that several endpoints share.

use crate::rig::Rig;
use crate::{PLAIN, frame, receive, tables};
use image::compartment::Rate;
use shm::{Channel, Doorbell};
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;

const RATE: Rate = Rate {
    bytes: 1_000_000,
    burst: 50_000,
    packets: 0,
};

/// Puts as many into the ring as fit; how many that were.
fn pour(guest: &mut Channel, frame: &[u8], most: usize) -> usize {
    let _ = guest.tx.ring.poll();
    let mut sent = 0;
    while sent < most && guest.tx.ring.push(0, &PLAIN, frame, &[]).is_ok() {
        sent += 1;
    }
    if guest.tx.ring.publish() == Doorbell::Ring {
        let _ = guest.tx.bell.ring();
    }
    sent
}

/// How many frames are there.
fn taken(guest: &mut Channel) -> u64 {
    let _ = guest.rx.bell.drain();
    let _ = guest.rx.ring.poll();
    let mut came = 0;
    while let Ok(Some(_)) = guest.rx.ring.next() {
        came += 1;
    }
    guest.rx.ring.release();
    came
}

#[test]
fn toward_an_endpoint_frames_wait_and_neither_sender_nor_others_do() {
    let rig = Rig::with_channels();
    let mut tables = tables();
    tables.endpoints[1].to = RATE;
    rig.install(&tables, 1);
    let (mut one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    let limited = frame(1, 2, &[7; 958]);
    let free = frame(1, 3, b"free");
    let begun = Instant::now();
    // More than the burst, less than waits: none is lost.
    let all = 120;
    assert_eq!(pour(&mut one, &limited, all), all);
    assert_eq!(pour(&mut one, &free, 1), 1);
    assert_eq!(receive(&mut three), free);
    let soon = taken(&mut two);
    assert!(soon < all as u64, "{soon} came at once");
    // What waits is to be seen.
    let waits = rig.count(2, Counter::Held) - rig.count(2, Counter::Released);
    assert!(waits > 0 || rig.count(2, Counter::Held) > 0);
    let mut came = soon;
    while came < all as u64 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{came}");
        came += taken(&mut two);
        std::thread::sleep(Duration::from_millis(1));
    }
    let bytes = all as u64 * limited.len() as u64;
    let least = Duration::from_nanos((bytes - RATE.burst - 2_000) * 1_000);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    assert_eq!(rig.count(2, Counter::Held), rig.count(2, Counter::Released));
    assert_eq!(rig.drops(2, DropReason::EgressRate), 0);
    assert_eq!(rig.count(1, Counter::Paused), 0);
}

#[test]
fn what_finds_no_room_to_wait_is_lost_and_counted_on_the_receiver() {
    let rig = Rig::with_channels();
    let mut tables = tables();
    tables.endpoints[1].to = RATE;
    rig.install(&tables, 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let limited = frame(1, 2, &[7; 958]);
    let begun = Instant::now();
    let (mut sent, mut came) = (0, 0);
    while begun.elapsed() < Duration::from_secs(1) {
        sent += pour(&mut one, &limited, 100);
        came += taken(&mut two);
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = begun.elapsed().as_secs_f64();
    let bytes = came as f64 * limited.len() as f64;
    assert!(
        bytes <= RATE.bytes as f64 * took + RATE.burst as f64 + 4_000.0,
        "{bytes} in {took}"
    );
    assert!(bytes > RATE.bytes as f64 * 0.7, "{bytes}");
    assert!(sent as u64 > 2 * came, "{sent} of which {came}");
    assert!(rig.drops(2, DropReason::EgressRate) > 100);
    assert_eq!(rig.drops(1, DropReason::EgressRate), 0);
    // Between two releases it sleeps.
    let slept = rig.words().load(ProcessWord::Sleeps as usize);
    assert!(slept > 100, "{slept}");
}

#[test]
fn endpoints_of_a_tenant_share_its_rate_by_turns() {
    let rig = Rig::with_channels();
    let mut tables = tables();
    tables.tenants[0].from = RATE;
    rig.install(&tables, 1);
    let (mut one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    // One sends large frames and one small ones, both all the time.
    let (large, small) = (frame(1, 2, &[7; 1400]), frame(3, 2, &[8; 100]));
    let begun = Instant::now();
    let (mut of_one, mut of_three) = (0u64, 0u64);
    while begun.elapsed() < Duration::from_secs(2) {
        pour(&mut one, &large, 1000);
        pour(&mut three, &small, 1000);
        let _ = two.rx.bell.drain();
        let _ = two.rx.ring.poll();
        while let Ok(Some(record)) = two.rx.ring.next() {
            let bytes = record.len() as u64;
            if record.len() == large.len() {
                of_one += bytes;
            } else {
                of_three += bytes;
            }
        }
        two.rx.ring.release();
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = begun.elapsed().as_secs_f64();
    let sum = (of_one + of_three) as f64;
    assert!(
        sum <= RATE.bytes as f64 * took + RATE.burst as f64 + 4_000.0,
        "{sum} in {took}"
    );
    assert!(sum > RATE.bytes as f64 * took * 0.8, "{sum} in {took}");
    for part in [of_one, of_three] {
        assert!(part as f64 > sum * 0.35, "{of_one} and {of_three}");
    }
    assert!(rig.count(1, Counter::Paused) > 10 && rig.count(3, Counter::Paused) > 10);
    assert_eq!(rig.drops(1, DropReason::IngressRate), 0);
}
