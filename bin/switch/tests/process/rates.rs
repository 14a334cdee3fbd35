//! An endpoint's rate makes its sender wait where the frames are; nothing is lost.

use crate::rig::Rig;
use crate::{PLAIN, frame, receive, send, tables, taps};
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;

#[test]
fn a_fifo_over_its_rate_waits_and_delays_nobody_else() {
    let rig = Rig::with_channels();
    let mut tables = tables();
    let (rate, burst) = (1_000_000, 50_000);
    (
        tables.endpoints[0].rate_bytes,
        tables.endpoints[0].rate_burst,
    ) = (rate, burst);
    rig.install(&tables, 1);
    let (mut one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    let limited = frame(1, 2, &[7; 958]);
    let free = frame(3, 2, b"free");
    let begun = Instant::now();
    let all = 300;
    let mut came = 0;
    for _ in 0..all {
        send(&mut one, &PLAIN, &limited);
    }
    // The other's frame overtakes what waits.
    send(&mut three, &PLAIN, &free);
    while receive(&mut two) != free {
        came += 1;
    }
    assert!(came < all, "{came} of {all} came before");
    for _ in came..all {
        assert_eq!(receive(&mut two), limited);
    }
    let bytes = all * limited.len() as u64;
    let least = Duration::from_nanos((bytes - burst - 2_000) * 1_000_000_000 / rate);
    assert!(
        begun.elapsed() >= least,
        "{:?} of {least:?}",
        begun.elapsed()
    );
    assert_eq!(rig.drops(1, DropReason::IngressRate), 0);
}

#[test]
fn what_is_dear_to_handle_is_charged_for() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let plain = frame(1, 2, &[7; 24]);
    let mut piece = plain.clone();
    // The first part of a packet (RFC 791, section 3.1).
    piece[20] = 0x20;
    piece[24..26].fill(0);
    let sum = wire::checksum::internet(&piece[14..34]);
    piece[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut work = |frame: &[u8]| {
        let before = rig.count(1, Counter::Work);
        for _ in 0..100 {
            send(&mut one, &PLAIN, frame);
            receive(&mut two);
        }
        // It is counted at the end of its batch.
        let end = Instant::now() + Duration::from_secs(5);
        let mut seen = 0;
        while Instant::now() < end {
            let now = rig.count(1, Counter::Work) - before;
            if now == seen && now != 0 {
                break;
            }
            seen = now;
            std::thread::sleep(Duration::from_millis(20));
        }
        seen
    };
    work(&plain);
    let (cheap, dear) = (work(&plain), work(&piece));
    assert!(dear > 6 * cheap, "{dear} against {cheap}");
}

#[test]
fn a_tap_over_its_rate_waits_and_the_switch_sleeps_meanwhile() {
    let mut limited = taps::tables();
    let (rate, burst) = (250_000, 20_000);
    (
        limited.endpoints[0].rate_bytes,
        limited.endpoints[0].rate_burst,
    ) = (rate, burst);
    let Some((rig, one, _two)) = taps::pair_of(&limited) else {
        return;
    };
    one.must("ping -c 1 -W 5 10.1.2.10");
    let (received, slept) = (
        rig.count(1, Counter::RxBytes),
        rig.words().load(ProcessWord::Sleeps as usize),
    );
    let begun = Instant::now();
    // 20 Mbit/s for a second, to whom nobody listens.
    let flood = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/flood.py");
    let sent = one.must(&format!("python3 {flood} 10.1.2.10"));
    let took = begun.elapsed().as_secs_f64();
    let sent: u64 = sent.trim().parse().unwrap();
    let took_in = rig.count(1, Counter::RxBytes) - received;
    assert!(sent * 1000 > 2 * rate, "{sent}");
    assert!(
        took_in as f64 <= rate as f64 * took + burst as f64 + 4_000.0,
        "{took_in} in {took}"
    );
    assert!(took_in > rate / 2, "{took_in}");
    assert_eq!(rig.drops(1, DropReason::IngressRate), 0);
    // A tap that is full and left alone wakes nobody.
    let slept = rig.words().load(ProcessWord::Sleeps as usize) - slept;
    assert!(slept < 3_000, "{slept} times awake");
}

#[test]
fn a_veth_over_its_rate_waits_in_its_socket_and_what_finds_no_room_is_counted() {
    let mut limited = taps::tables();
    (
        limited.endpoints[0].rate_bytes,
        limited.endpoints[0].rate_burst,
    ) = (250_000, 20_000);
    let kinds = [taps::Kind::Veth, taps::Kind::Tap];
    let Some((rig, one, _two)) = taps::pair_by(&limited, kinds) else {
        return;
    };
    one.must("ping -c 1 -W 5 10.1.2.10");
    let before = rig.count(1, Counter::RxFrames);
    let flood = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/flood.py");
    let mut sent = 0;
    // More than its socket holds: a frame takes some 2.3 kB of it.
    while sent < 12_000 {
        let more = one.must(&format!("python3 {flood} 10.1.2.10"));
        sent += more.trim().parse::<u64>().unwrap();
    }
    let waited = rig.count(1, Counter::RxFrames) - before;
    assert!(waited < sent / 2, "{waited} of {sent} were taken at once");
    // Without the rate what waited comes, and the last of it tells what was lost.
    rig.install(&taps::tables(), 2);
    let end = Instant::now() + Duration::from_secs(10);
    let done = || {
        let came = rig.count(1, Counter::RxFrames) - before;
        let lost = rig.drops(1, DropReason::QueueFull);
        lost > 0 && came > waited && came + lost + 200 >= sent
    };
    while !done() {
        // A frame more knows of those before it.
        one.must("ping -c 1 -W 5 10.1.2.10");
        assert!(
            Instant::now() < end,
            "of {sent} {} came, {} found no room",
            rig.count(1, Counter::RxFrames) - before,
            rig.drops(1, DropReason::QueueFull)
        );
    }
    assert_eq!(rig.drops(1, DropReason::IngressRate), 0);
}
