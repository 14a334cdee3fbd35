//! The program as the supervisor starts it: confined, by messages and descriptors,
//! with a test at the other end of its channels.

mod accounts;
mod calls;
mod guests;
mod listing;
mod orders;
mod pace;
mod rates;
mod rates_to;
mod rig;
mod several;
mod taps;

use crate::rig::{PATIENCE, Rig, SLOTS};
use command::verbs::*;
use command::{Message, Verb};
use image::CompartmentTables;
use image::compartment::*;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use shm::{Channel, Start};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};
use wire::{MacAddress, build, ethernet, ipv4};

fn mac(slot: u32) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, slot as u8])
}
fn v4(slot: u32) -> [u8; 4] {
    [10, 1, 1, 10 + slot as u8]
}

/// Three endpoints in one subnet.
fn tables() -> CompartmentTables {
    let endpoint = |slot: u32| Endpoint {
        id: 100 + slot,
        slot,
        mac: mac(slot).0,
        mtu: 9000,
        min_gso: 536,
        features: FEATURE_ALL,
        dhcp4: v4(slot),
        ..Endpoint::default()
    };
    let start = wire::address::mapped([10, 1, 1, 0]);
    let end = wire::address::mapped([10, 1, 1, 255]);
    CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        subnets: vec![Subnet {
            id: 1,
            prefix4: [10, 1, 1, 0],
            prefix4_len: 24,
            gateway4: [10, 1, 1, 1],
            gateway_mac: [2, 9, 9, 9, 9, 9],
            mtu: 9000,
            ..Subnet::default()
        }],
        endpoints: (1..SLOTS).map(endpoint).collect(),
        addresses: (1..SLOTS)
            .map(|slot| (slot - 1, wire::address::mapped(v4(slot))))
            .collect(),
        members: (1..SLOTS).map(|slot| (0, slot - 1)).collect(),
        routes: vec![Route {
            kind: ROUTE_SUBNET,
            ..Route::default()
        }],
        ranges: vec![(
            0,
            RouteRange {
                start,
                end,
                route: 0,
                reserved: [0; 3],
            },
        )],
        ..CompartmentTables::default()
    }
}

fn frame(from: u32, to: u32, payload: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(mac(to), mac(from), ethernet::IPV4);
    let header = ipv4::Header::new(v4(from), v4(to), 17);
    let n = build::udp4(&mut buffer, &link, &header, (1000, 2000), |b| {
        b[..payload.len()].copy_from_slice(payload);
        Ok(payload.len())
    })
    .unwrap();
    buffer.truncate(n);
    buffer
}

fn send(channel: &mut Channel, offload: &RawOffload, frame: &[u8]) {
    let end = Instant::now() + PATIENCE;
    while channel.tx.ring.push(0, offload, frame, &[]).is_err() {
        channel.tx.ring.poll().unwrap();
        assert!(Instant::now() < end, "no room");
    }
    if channel.tx.ring.publish() == shm::Doorbell::Ring {
        channel.tx.bell.ring().unwrap();
    }
}

fn receive(channel: &mut Channel) -> Vec<u8> {
    receive_record(channel).1
}

fn receive_record(channel: &mut Channel) -> (RawOffload, Vec<u8>) {
    let end = Instant::now() + PATIENCE;
    loop {
        // Both ends, as any peer does: a restart is seen on either.
        channel.tx.ring.poll().unwrap();
        if let Some(record) = channel.rx.ring.next().unwrap() {
            let mut frame = vec![0; record.len()];
            record.copy(0, &mut frame);
            let offload = record.offload();
            channel.rx.ring.release();
            return (offload, frame);
        }
        assert!(Instant::now() < end, "nothing came");
        std::thread::sleep(Duration::from_micros(50));
    }
}

const PLAIN: RawOffload = RawOffload {
    flags: 0,
    gso_type: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

#[test]
fn frames_cross_and_are_counted() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 3);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    for n in 0..200u32 {
        let sent = frame(1, 2, &vec![n as u8; (n * 40) as usize]);
        send(&mut one, &PLAIN, &sent);
        assert_eq!(receive(&mut two), sent);
    }
    assert_eq!(rig.count(1, Counter::RxFrames), 200);
    assert_eq!(rig.count(2, Counter::TxFrames), 200);
    assert_eq!(rig.words().load(ProcessWord::Epoch as usize), 3);
    assert!(rig.words().load(ProcessWord::FirstFrame as usize) > 0);
    // No system call moved any of them.
    assert_eq!(rig.words().load(ProcessWord::FrameSyscalls as usize), 0);
    let spoofed = frame(3, 2, b"");
    send(&mut one, &PLAIN, &spoofed);
    let sent = frame(1, 2, b"after");
    send(&mut one, &PLAIN, &sent);
    assert_eq!(receive(&mut two), sent);
    assert_eq!(rig.drops(1, DropReason::SourceMac), 1);
}

#[test]
fn gso_crosses_whole_or_is_finished() {
    let rig = Rig::with_channels();
    let mut with = tables();
    with.endpoints[2].features = 0;
    rig.install(&with, 1);
    let (mut one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    let tcp = |to: u32| {
        let mut segment = vec![7; 20 + 60_000];
        segment[12] = 0x50;
        segment[13] = 0x18;
        let mut buffer = vec![0; 66_000];
        let link = ethernet::Header::new(mac(to), mac(1), ethernet::IPV4);
        let n = build::ipv4(
            &mut buffer,
            &link,
            &ipv4::Header::new(v4(1), v4(to), 6),
            |b| {
                b[..segment.len()].copy_from_slice(&segment);
                Ok(segment.len())
            },
        )
        .unwrap();
        buffer.truncate(n);
        buffer
    };
    let gso = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 8000,
        csum_start: 34,
        csum_offset: 16,
    };
    let whole = tcp(2);
    send(&mut one, &gso, &whole);
    assert_eq!(receive_record(&mut two), (gso, whole));
    send(&mut one, &gso, &tcp(3));
    let lengths: Vec<usize> = (0..8).map(|_| receive(&mut three).len() - 54).collect();
    assert_eq!(lengths, [8000, 8000, 8000, 8000, 8000, 8000, 8000, 4000]);
}

#[test]
fn a_breach_closes_its_own_slot_alone() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    // Slot 1's guest scribbles over its published position: the first word of the
    // second page of the file that it may write.
    drop(one);
    let data = rig.pairs[0].end_b().unwrap().tx.data;
    rustix::io::pwrite(&data, &0xdead_beef_0001u64.to_le_bytes(), 4096).unwrap();
    let bell = rig.pairs[0].end_b().unwrap().tx.bell;
    rustix::io::write(&bell, &[1]).unwrap();
    let closed: PortClosed = rig.hear();
    assert_eq!(
        (closed.slot, closed.reason),
        (1, ring::Breach::Unaligned as u32)
    );
    let sent = frame(2, 3, b"still here");
    send(&mut two, &PLAIN, &sent);
    assert_eq!(receive(&mut three), sent);
    // What is for the closed slot is dropped by name.
    send(&mut two, &PLAIN, &frame(2, 1, b""));
    send(&mut two, &PLAIN, &sent);
    assert_eq!(receive(&mut three), sent);
    assert_eq!(rig.drops(2, DropReason::PortClosed), 1);
}

#[test]
fn a_successor_goes_on_with_the_same_channels() {
    let mut rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    for n in 1..=5u8 {
        send(&mut one, &PLAIN, &frame(1, 2, b"before"));
        receive(&mut two);
        rig.restart();
        rig.install(&tables(), u64::from(n) + 1);
        // What the successor resumes from is settled when a frame has crossed; what
        // was sent before that is lost, so send until one arrives.
        let sent = frame(1, 2, &[n; 100]);
        let end = Instant::now() + PATIENCE;
        let mut crossed = false;
        while !crossed && Instant::now() < end {
            let _ = one.rx.ring.poll().unwrap();
            let _ = two.tx.ring.poll().unwrap();
            let _ = one.tx.ring.poll().unwrap();
            if one.tx.ring.push(0, &PLAIN, &sent, &[]).is_ok()
                && one.tx.ring.publish() == shm::Doorbell::Ring
            {
                one.tx.bell.ring().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
            while let Some(record) = two.rx.ring.next().unwrap() {
                let mut got = vec![0; record.len()];
                record.copy(0, &mut got);
                assert_eq!(got, sent, "a successor never misreads what was left");
                crossed = true;
            }
            two.rx.ring.release();
        }
        assert!(crossed, "restart {n}");
    }
}

#[test]
fn a_full_receiver_delays_its_own_senders_only() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    // Nobody reads at slot 3.
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let flood = frame(1, 3, &[0; 8000]);
    let sent = frame(2, 1, b"through");
    for _ in 0..200 {
        send(&mut one, &PLAIN, &flood);
        send(&mut two, &PLAIN, &sent);
        assert_eq!(receive(&mut one), sent);
    }
    let end = Instant::now() + PATIENCE;
    while rig.drops(1, DropReason::QueueFull) == 0 {
        assert!(Instant::now() < end, "nothing was dropped");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rig.drops(2, DropReason::QueueFull), 0);
}

#[test]
fn it_sleeps_when_there_is_nothing_to_do() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    for _ in 0..20 {
        let end = Instant::now() + PATIENCE;
        while rig.words().load(ProcessWord::Asleep as usize) == 0 {
            assert!(Instant::now() < end, "it never sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = frame(1, 2, b"wake up");
        send(&mut one, &PLAIN, &sent);
        assert_eq!(receive(&mut two), sent);
    }
}

#[test]
fn captures_mirror_what_passes_and_what_is_dropped() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let mirror = shm::Direction::create(&rig.geometry).unwrap();
    let mut reader =
        shm::attach_consumer(mirror.consumer_end().unwrap(), &rig.geometry, Start::Fresh).unwrap();
    let ends = mirror.producer_end().unwrap();
    let body = Capture {
        on: 1,
        drops_only: 0,
        slot: u32::MAX,
        snap: 60,
        of: 0,
        capacity: rig.geometry.capacity() as u32,
        max_record: rig.geometry.max_record() as u32,
    };
    rig.control
        .send(&Message::new(0, &body), &ends.as_fds())
        .unwrap();
    let passed = frame(1, 2, &[1; 1000]);
    let spoofed = frame(3, 2, &[2; 1000]);
    let mut notes = Vec::new();
    let end = Instant::now() + PATIENCE;
    while notes.len() < 3 {
        assert!(Instant::now() < end, "{notes:?}");
        if notes.is_empty() {
            send(&mut one, &PLAIN, &passed);
            receive(&mut two);
            send(&mut one, &PLAIN, &spoofed);
        }
        std::thread::sleep(Duration::from_millis(5));
        while let Some(record) = reader.ring.next().unwrap() {
            let note = record.note().unwrap();
            let mut kept = vec![0; record.len()];
            record.copy(0, &mut kept);
            let whole = if note.drop_reason == 0 {
                &passed
            } else {
                &spoofed
            };
            assert_eq!((kept.len(), note.original_len as usize), (60, whole.len()));
            assert_eq!(kept, whole[..60]);
            notes.push((note.endpoint, note.direction, note.drop_reason));
        }
        reader.ring.release();
    }
    notes.sort_unstable();
    notes.dedup();
    assert_eq!(
        notes,
        [
            (101, 0, 0),
            (101, 0, DropReason::SourceMac as u16),
            (102, 1, 0)
        ]
    );
}

#[test]
fn what_a_capture_lost_is_counted_in_what_comes_after() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    // Room for 36 records of 112 bytes.
    let geometry = ring::Geometry::records(4096, 128).unwrap();
    let mirror = shm::Direction::create(&geometry).unwrap();
    let mut reader =
        shm::attach_consumer(mirror.consumer_end().unwrap(), &geometry, Start::Fresh).unwrap();
    let ends = mirror.producer_end().unwrap();
    let body = Capture {
        on: 1,
        drops_only: 0,
        slot: 1,
        snap: 60,
        of: 0,
        capacity: 4096,
        max_record: 128,
    };
    rig.control
        .send(&Message::new(0, &body), &ends.as_fds())
        .unwrap();
    let sent = frame(1, 2, &[1; 100]);
    let mut captured = 0;
    let mut lost = 0;
    let end = Instant::now() + PATIENCE;
    // The first frames may come before the switch has heard of the capture.
    while lost == 0 {
        assert!(Instant::now() < end, "{captured} captured");
        for _ in 0..50 {
            send(&mut one, &PLAIN, &sent);
            receive(&mut two);
        }
        while let Some(record) = reader.ring.next().unwrap() {
            captured += 1;
            lost = record.note().unwrap().lost;
        }
        reader.ring.release();
    }
    assert!(
        captured >= 36 && lost <= 64,
        "{captured} captured, {lost} lost"
    );
}

#[test]
fn it_ends_when_told_and_when_nobody_is_left() {
    let rig = Rig::with_channels();
    rig.tell(&Quit::default(), &[]);
    let status = waitid(WaitId::PidFd(rig.pidfd.as_fd()), WaitIdOptions::EXITED)
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(0));
    assert_eq!(Verb::from_number(Verb::Quit as u16), Some(Verb::Quit));
}
