//! Several workers: each pair of slots is two ports of one worker, or of two, and the flow
//! the one's or the other's.

use crate::listing::{judged, list, rows};
use crate::rig::{PATIENCE, Rig, SLOTS};
use crate::{PLAIN, mac, tables, v4};
use command::verbs::*;
use image::CompartmentTables;
use image::rules::{Action, Region, Rule, RuleTable};
use shm::Channel;
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord, worker_word};
use telemetry::drops::DropReason;
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};
use wire::{build, ethernet, ipv4};

const PAIRS: [(u32, u32); 6] = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];

/// A datagram with a number in it, of one of many flows between two slots.
pub fn numbered(from: u32, to: u32, flow: u16, number: u32) -> Vec<u8> {
    let mut buffer = vec![0; 2_000];
    let link = ethernet::Header::new(mac(to), mac(from), ethernet::IPV4);
    let header = ipv4::Header::new(v4(from), v4(to), 17);
    // One flow has the same ports both ways.
    let (low, high) = (1_000 + flow, 20_000 + flow);
    let ports = if from < to { (low, high) } else { (high, low) };
    let size = 4 + (number as usize * 37) % 900;
    let n = build::udp4(&mut buffer, &link, &header, ports, |b| {
        b[..4].copy_from_slice(&number.to_be_bytes());
        Ok(size)
    })
    .unwrap();
    buffer.truncate(n);
    buffer
}

fn read(frame: &[u8]) -> (u32, u16, u32) {
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let number = u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]);
    (u32::from(frame[11]), port(34).min(port(36)) - 1_000, number)
}

/// What there is now.
pub fn come(channel: &mut Channel) -> Option<Vec<u8>> {
    channel.tx.ring.poll().unwrap();
    let record = channel.rx.ring.next().unwrap()?;
    let mut frame = vec![0; record.len()];
    record.copy(0, &mut frame);
    channel.rx.ring.release();
    Some(frame)
}

pub fn push(channel: &mut Channel, frame: &[u8]) -> bool {
    channel.tx.ring.poll().unwrap();
    let pushed = channel.tx.ring.push(0, &PLAIN, frame, &[]).is_ok();
    if channel.tx.ring.publish() == shm::Doorbell::Ring {
        channel.tx.bell.ring().unwrap();
    }
    pushed
}

fn guests(rig: &Rig) -> Vec<Channel> {
    (1..SLOTS).map(|slot| rig.guest(slot)).collect()
}

fn sum(rig: &Rig, counter: Counter) -> u64 {
    (1..SLOTS).map(|slot| rig.count(slot, counter)).sum()
}

pub fn lost(rig: &Rig, reason: DropReason) -> u64 {
    (0..SLOTS).map(|slot| rig.drops(slot, reason)).sum()
}

/// Many flows between all pairs at once, a few frames on the way of each: each comes in its
/// order, once, and is counted once where it came in and once where it went out.
fn all_pairs(rig: &Rig, tables: &CompartmentTables) {
    const FLOWS: u16 = 40;
    const EACH: u32 = 60;
    rig.install(tables, 1);
    let mut guests = guests(rig);
    let before = sum(rig, Counter::RxFrames);
    let mut last = vec![[0u32; FLOWS as usize]; (SLOTS * SLOTS) as usize];
    let (mut sent, mut came) = (0u64, 0u64);
    let mut take = |guests: &mut [Channel], came: &mut u64| {
        for to in 1..SLOTS {
            while let Some(frame) = come(&mut guests[to as usize - 1]) {
                let (from, flow, number) = read(&frame);
                let last = &mut last[(from * SLOTS + to) as usize][flow as usize];
                assert_eq!(number, *last + 1, "from {from} to {to}, flow {flow}");
                *last = number;
                *came += 1;
            }
        }
    };
    let end = Instant::now() + PATIENCE;
    for number in 1..=EACH {
        for flow in 0..FLOWS {
            for (from, to) in PAIRS {
                let frame = numbered(from, to, flow, number);
                while !push(&mut guests[from as usize - 1], &frame) {
                    take(&mut guests, &mut came);
                    assert!(Instant::now() < end, "no room");
                }
                sent += 1;
                // Nobody is full, so that nothing is lost.
                while sent - came > 100 {
                    take(&mut guests, &mut came);
                    assert!(Instant::now() < end, "{came} of {sent} came");
                }
            }
        }
    }
    while came < sent {
        take(&mut guests, &mut came);
        assert!(Instant::now() < end, "{came} of {sent} came");
    }
    assert_eq!(sum(rig, Counter::RxFrames) - before, sent);
    let end = Instant::now() + PATIENCE;
    while sum(rig, Counter::TxFrames) != sum(rig, Counter::RxFrames) {
        assert!(Instant::now() < end, "not all is counted out");
    }
    assert_eq!(sum(rig, Counter::TxBytes), sum(rig, Counter::RxBytes));
    assert_eq!(sum(rig, Counter::TxSegments), sum(rig, Counter::RxSegments));
    for (from, _) in PAIRS {
        let each = u64::from(FLOWS) * u64::from(EACH) * 2;
        assert_eq!(rig.count(from, Counter::TxFrames), each);
    }
}

#[test]
fn every_flow_of_every_pair_keeps_its_order_and_is_counted_once() {
    for workers in [2, 3, 4, 8] {
        all_pairs(&Rig::of_several(workers), &tables());
    }
}

#[test]
fn the_same_where_rules_judge_and_connections_are_kept() {
    for workers in [2, 3] {
        let rig = Rig::of_several(workers);
        let mut tables = judged();
        for endpoint in &mut tables.endpoints {
            endpoint.connections = 4096;
        }
        all_pairs(&rig, &tables);
        let (seen, all) = rows(&list(&rig, u32::MAX, 1000));
        assert_eq!((seen, all.len()), (120, 120));
        // Each has packets both ways: it is one worker's.
        assert!(all.iter().all(|row| row.packets == [60, 60]), "{all:?}");
        let (seen, some) = rows(&list(&rig, 2, 7));
        assert_eq!((seen, some.len()), (80, 7));
        let bytes = |row: &telemetry::flows::Row| row.bytes[0] + row.bytes[1];
        assert!(some.windows(2).all(|two| bytes(&two[0]) >= bytes(&two[1])));
    }
}

/// Only who begins may: answers pass by the connection alone.
fn one_way() -> CompartmentTables {
    let rule = |id: u32, action| Rule {
        region: Region::ALL,
        action,
        log: false,
        id,
    };
    let table = |id, action| RuleTable {
        rules: vec![rule(id, action)],
        default: Action::Deny,
    };
    let mut tables = judged();
    tables.rule_tables = vec![table(1, Action::Allow), table(2, Action::Deny)];
    for endpoint in &mut tables.endpoints {
        let begins = endpoint.slot == 2;
        (endpoint.egress, endpoint.ingress) = if begins { (0, 1) } else { (0, 0) };
    }
    tables
}

#[test]
fn answers_pass_by_a_connection_that_another_worker_may_have_begun() {
    for workers in [2, 3] {
        let rig = Rig::of_several(workers);
        rig.install(&one_way(), 1);
        let mut guests = guests(&rig);
        let mut carry = |from: u32, to: u32, flow| {
            let frame = numbered(from, to, flow, 1);
            assert!(push(&mut guests[from as usize - 1], &frame));
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                if come(&mut guests[to as usize - 1]).is_some() {
                    return true;
                }
            }
            false
        };
        for other in [1, 3] {
            assert!(!carry(other, 2, 1), "{other} may not begin");
            assert!(carry(2, other, 2), "2 may, to {other}");
            assert!(carry(other, 2, 2), "{other} may answer");
        }
        assert_eq!(lost(&rig, DropReason::IngressRule), 2);
    }
}

#[test]
fn a_receiver_that_does_not_read_costs_its_senders_frames_and_nobody_elses() {
    let rig = Rig::of_several(2);
    rig.install(&tables(), 1);
    let mut guests = guests(&rig);
    let big = |from, to, number| {
        let mut frame = numbered(from, to, 1, number);
        frame.resize(2_000, 0);
        frame
    };
    let (mut sent, mut came) = (0, 0);
    let end = Instant::now() + PATIENCE;
    // Slot 3 is the other worker's, and nobody reads there.
    while lost(&rig, DropReason::QueueFull) < 100 {
        sent += u64::from(push(&mut guests[1], &big(2, 3, 1)));
        sent += u64::from(push(&mut guests[0], &numbered(1, 2, 2, 1)));
        came += u64::from(come(&mut guests[1]).is_some());
        assert!(Instant::now() < end, "nothing is dropped");
    }
    assert!(rig.drops(2, DropReason::QueueFull) > 0);
    assert_eq!(rig.drops(1, DropReason::QueueFull), 0);
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(200) {
        if come(&mut guests[1]).is_some() || come(&mut guests[2]).is_some() {
            quiet = Instant::now();
            came += 1;
        }
    }
    assert_eq!(sum(&rig, Counter::RxFrames), sent);
    assert_eq!(came + lost(&rig, DropReason::QueueFull), sent);
}

#[test]
fn large_frames_are_finished_for_a_port_of_another_worker() {
    for (from, to) in [(1, 2), (2, 1), (3, 2), (2, 3)] {
        let rig = Rig::of_several(2);
        let mut tables = tables();
        tables.endpoints[to as usize - 1].features = 0;
        rig.install(&tables, 1);
        let mut guests = guests(&rig);
        let mut buffer = vec![0; 66_000];
        let link = ethernet::Header::new(mac(to), mac(from), ethernet::IPV4);
        let header = ipv4::Header::new(v4(from), v4(to), 6);
        let n = build::ipv4(&mut buffer, &link, &header, |segment| {
            segment[12..14].copy_from_slice(&[0x50, 0x10]);
            Ok(20 + 14_480)
        })
        .unwrap();
        let gso = RawOffload {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        crate::send(&mut guests[from as usize - 1], &gso, &buffer[..n]);
        for _ in 0..10 {
            let (offload, part) = crate::receive_record(&mut guests[to as usize - 1]);
            assert_eq!((offload, part.len()), (PLAIN, 54 + 1448));
        }
        assert_eq!(rig.count(from, Counter::RxSegments), 10);
        assert_eq!(rig.count(to, Counter::TxSegments), 10);
    }
}

#[test]
fn broadcasts_reach_everybody_and_are_answered_once() {
    let rig = Rig::of_several(2);
    rig.install(&tables(), 1);
    let mut guests = guests(&rig);
    let mut buffer = vec![0; 64];
    let everybody = wire::MacAddress::BROADCAST;
    let link = ethernet::Header::new(everybody, mac(1), ethernet::ARP);
    let ask = |target| wire::arp::Message {
        operation: wire::arp::Operation::Request,
        sender_mac: mac(1),
        sender: v4(1),
        target_mac: wire::MacAddress::ZERO,
        target,
    };
    // Of an address that another's is, the switch answers.
    let n = build::arp(&mut buffer, &link, &ask([10, 1, 1, 1])).unwrap();
    crate::send(&mut guests[0], &PLAIN, &buffer[..n]);
    let answer = crate::receive(&mut guests[0]);
    assert_eq!(&answer[6..12], [2, 9, 9, 9, 9, 9]);
    // Anything else goes to all.
    let mut frame = vec![0; 2_000];
    let link = ethernet::Header::new(everybody, mac(1), ethernet::IPV4);
    let header = ipv4::Header::new(v4(1), [10, 1, 1, 255], 17);
    let n = build::udp4(&mut frame, &link, &header, (5, 6), |_| Ok(100)).unwrap();
    crate::send(&mut guests[0], &PLAIN, &frame[..n]);
    for to in [1, 2] {
        assert_eq!(crate::receive(&mut guests[to]), &frame[..n]);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(guests.iter_mut().all(|guest| come(guest).is_none()));
    assert_eq!(
        rig.count(1, Counter::TxFlood) + sum(&rig, Counter::TxFlood),
        2
    );
}

#[test]
fn a_senders_rate_holds_wherever_its_frames_go() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    let (rate, burst) = (1_000_000, 50_000);
    // Its flow with slot 1 is the other worker's, that with slot 3 its own.
    let limited = &mut tables.endpoints[1];
    (limited.rate_bytes, limited.rate_burst) = (rate, burst);
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    let begun = Instant::now();
    let (mut bytes, mut came) = (0, 0);
    for n in 0..300u32 {
        let to = if n % 2 == 0 { 1 } else { 3 };
        let mut frame = numbered(2, to, 1, n);
        frame.resize(1_000, 0);
        bytes += frame.len() as u64;
        while !push(&mut guests[1], &frame) {}
    }
    while came < 300 {
        came += u64::from(come(&mut guests[0]).is_some());
        came += u64::from(come(&mut guests[2]).is_some());
        assert!(begun.elapsed() < PATIENCE, "{came} came");
    }
    let least = Duration::from_nanos((bytes - burst - 2_000) * 1_000_000_000 / rate);
    let took = begun.elapsed();
    assert!(took >= least, "{took:?} of {least:?}");
    assert_eq!(lost(&rig, DropReason::IngressRate), 0);
}

#[test]
fn what_a_sender_has_cut_by_another_worker_is_paid_for() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    tables.endpoints[0].mtu = 256;
    let rate = 1_000;
    tables.endpoints[1].rate_packets = rate;
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    let mut frame = numbered(2, 1, 1, 24);
    // It may be cut, and comes in five parts.
    frame[20] = 0;
    frame[24..26].fill(0);
    let sum = wire::checksum::internet(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let begun = Instant::now();
    let (mut sent, mut came) = (0, 0u64);
    while begun.elapsed() < Duration::from_secs(1) {
        sent += u64::from(push(&mut guests[1], &frame));
        came += u64::from(come(&mut guests[0]).is_some());
    }
    let most = rate * begun.elapsed().as_millis() as u64 / 1_000;
    assert!(sent > 0 && came >= most / 3, "{came} of {most} came");
    // What it may send at once comes besides.
    assert!(came <= most + most / 2, "{came} of {most} came");
}

#[test]
fn a_receivers_rate_holds_whoever_sends() {
    let rig = Rig::of_several(2);
    let mut tables = tables();
    let (rate, burst) = (1_000_000, 50_000);
    tables.endpoints[1].to = image::compartment::Rate {
        bytes: rate,
        burst,
        packets: 0,
    };
    rig.install(&tables, 1);
    let mut guests = guests(&rig);
    let begun = Instant::now();
    let mut bytes = 0;
    while begun.elapsed() < Duration::from_millis(500) {
        for from in [1, 3] {
            let mut frame = numbered(from, 2, 1, 1);
            frame.resize(1_000, 0);
            push(&mut guests[from as usize - 1], &frame);
        }
        while let Some(frame) = come(&mut guests[1]) {
            bytes += frame.len() as u64;
        }
    }
    let most = burst + rate * begun.elapsed().as_millis() as u64 / 1_000 + 5_000;
    assert!(bytes <= most, "{bytes} came, {most} may");
    assert!(bytes > burst, "{bytes} came of {most}");
    assert!(rig.drops(2, DropReason::EgressRate) > 0);
}

#[test]
fn idle_workers_sleep_and_any_frame_wakes_those_it_needs() {
    let rig = Rig::of_several(3);
    rig.install(&tables(), 1);
    let mut guests = guests(&rig);
    let words = rig.words();
    let word = |worker, word: ProcessWord| words.load(worker_word(worker, word as usize));
    let asleep = || {
        let end = Instant::now() + PATIENCE;
        while (0..3).any(|worker| word(worker, ProcessWord::Asleep) == 0) {
            assert!(Instant::now() < end, "they do not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    assert_eq!(words.load(ProcessWord::Workers as usize), 3);
    for n in 1..50 {
        asleep();
        for (from, to) in PAIRS {
            assert!(push(
                &mut guests[from as usize - 1],
                &numbered(from, to, 1, n)
            ));
            crate::receive(&mut guests[to as usize - 1]);
        }
    }
    asleep();
    std::thread::sleep(Duration::from_millis(20));
    let beats = || [0, 1, 2].map(|worker| word(worker, ProcessWord::Heartbeat));
    let before = beats();
    std::thread::sleep(Duration::from_millis(300));
    let turns: u64 = beats().iter().zip(before).map(|(a, b)| a - b).sum();
    // What falls due by itself, and nothing else.
    assert!(turns < 20, "{turns} turns of nothing");
}

#[test]
fn they_die_together_and_their_successors_go_on() {
    let mut rig = Rig::of_several(2);
    rig.install(&tables(), 1);
    let mut guests = guests(&rig);
    for round in 0..3 {
        for (from, to) in PAIRS {
            assert!(push(
                &mut guests[from as usize - 1],
                &numbered(from, to, 1, 1)
            ));
            crate::receive(&mut guests[to as usize - 1]);
        }
        rig.restart();
        // Both ends of a channel look at it before it is used again.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            for guest in &mut guests {
                guest.tx.ring.poll().unwrap();
                let _ = guest.rx.ring.next().unwrap().is_some();
            }
        }
        rig.install(&tables(), 2 + round);
    }
    assert_eq!(rig.words().load(ProcessWord::Epoch as usize), 4);
}

#[test]
fn an_image_that_is_none_is_refused_by_all_and_one_that_changes_is_used_by_all() {
    let rig = Rig::of_several(2);
    rig.install(&tables(), 1);
    let fd = shm::SealedImage::create("image", &[0; 4096]).unwrap();
    let body = UseImage {
        epoch: 2,
        digest: [0; 32],
    };
    rig.tell(&body, &[&fd]);
    let running: Running = rig.hear();
    assert_eq!(running.epoch, 2);
    assert_ne!(running.refused, 0);
    let mut guests = guests(&rig);
    let mut denied = judged();
    denied.rule_tables[0].rules[0].action = Action::Deny;
    rig.install(&denied, 3);
    for (from, to) in PAIRS {
        assert!(push(
            &mut guests[from as usize - 1],
            &numbered(from, to, 1, 1)
        ));
    }
    let end = Instant::now() + PATIENCE;
    while lost(&rig, DropReason::EgressRule) < 6 {
        assert!(Instant::now() < end);
    }
    assert!(guests.iter_mut().all(|guest| come(guest).is_none()));
    assert_eq!(rig.words().load(ProcessWord::Epoch as usize), 3);
}
