//! What a tenant that captures its compartment learns of those that it serves: nothing.

use super::*;
use image::compartment::*;
use image::{Aligned, CompartmentTables, MappedCompartment};
use ring::Geometry;
use shm::{Direction, Start, attach_consumer, attach_producer};
use telemetry::rules::Outcome;
use wire::address::mapped;
use wire::{MacAddress, build, ethernet, ipv4};

/// Tags: of a service offered, of one used, of an agreement that is no more.
const OFFERED: u16 = 41;
const USED: u16 = 40;
const GONE: u16 = 42;
const USER: [u8; 4] = [172, 23, 99, 77];
const STANDS: [u8; 4] = [172, 23, 200, 10];
const SERVER: [u8; 4] = [10, 1, 1, 10];
const POOL: [u8; 4] = [10, 1, 250, 3];

fn tables() -> CompartmentTables {
    let crossing = Crossing {
        agreement: 900,
        tag: USED,
        role: CROSSING_ACCEPTOR,
        mtu: 1500,
        endpoint: NONE,
        address4: [10, 1, 200, 10],
        ..Crossing::default()
    };
    let offered = Crossing {
        agreement: 901,
        tag: OFFERED,
        role: CROSSING_OFFERER,
        endpoint: 0,
        address4: SERVER,
        pool4: [10, 1, 250, 0],
        pool4_len: 28,
        ..crossing
    };
    let ports = ServicePorts {
        protocol: 17,
        first: 53,
        last: 53,
        ..ServicePorts::default()
    };
    let prefix = |start: [u8; 4], bits: u8, route: u32| {
        let mut end = start;
        end[3] |= bits;
        let range = RouteRange {
            start: mapped(start),
            end: mapped(end),
            route,
            reserved: [0; 3],
        };
        (0, range)
    };
    let service = |via| Route {
        kind: ROUTE_SERVICE,
        via,
        ..Route::default()
    };
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
            mtu: 1500,
            ..Subnet::default()
        }],
        endpoints: vec![Endpoint {
            id: 101,
            slot: 1,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            min_gso: 536,
            features: FEATURE_ALL,
            ..Endpoint::default()
        }],
        addresses: vec![(0, mapped(SERVER))],
        routes: vec![
            Route {
                kind: ROUTE_SUBNET,
                ..Route::default()
            },
            service(0),
            service(1),
        ],
        ranges: vec![
            prefix([10, 1, 1, 0], 255, 0),
            prefix([10, 1, 200, 10], 0, 1),
            prefix([10, 1, 250, 0], 15, 2),
        ],
        crossings: vec![crossing, offered],
        service_ports: vec![(0, ports), (1, ports)],
        ..CompartmentTables::default()
    }
}

fn packet(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut buffer = vec![0; 200];
    let link = ethernet::Header::new(MacAddress([2; 6]), MacAddress([4; 6]), ethernet::IPV4);
    let header = ipv4::Header::new(from, to, 17);
    let length = build::udp4(&mut buffer, &link, &header, (4000, 53), |b| {
        b[..4].copy_from_slice(b"what");
        Ok(4)
    });
    buffer.truncate(length.unwrap());
    buffer
}

/// What a capture mirrors of these, in order: frames with their notes.
fn mirrored(play: impl FnOnce(&mut Capture)) -> Vec<(CaptureNote, Vec<u8>)> {
    mirrored_of(u32::MAX, |captures| play(&mut captures.all[0].1))
}

/// The same of one slot.
fn mirrored_of(slot: u32, play: impl FnOnce(&mut Captures)) -> Vec<(CaptureNote, Vec<u8>)> {
    let geometry = Geometry::records(1 << 16, 2048).unwrap();
    let mirror = Direction::create(&geometry).unwrap();
    let producer = mirror.producer_end().unwrap();
    let sender = attach_producer(producer, &geometry, Start::Fresh).unwrap();
    let consumer = mirror.consumer_end().unwrap();
    let mut reader = attach_consumer(consumer, &geometry, Start::Fresh).unwrap();
    let asked = Asked {
        on: 1,
        drops_only: 0,
        of: 0,
        slot,
        snap: 256,
        capacity: geometry.capacity() as u32,
        max_record: geometry.max_record() as u32,
    };
    let bytes = tables().finish().unwrap();
    let image = MappedCompartment::map(Aligned::copy_of(&bytes)).unwrap();
    let mut captures = Captures::default();
    captures.begin(7, Capture::new(sender, &asked, Some(&image.image())));
    play(&mut captures);
    captures.publish();
    let mut all = Vec::new();
    while let Some(record) = reader.ring.next().unwrap() {
        let mut frame = vec![0; record.len()];
        record.copy(0, &mut frame);
        all.push((record.note().unwrap(), frame));
    }
    all
}

fn came(
    capture: &mut Capture,
    tag: u16,
    frame: &[u8],
    why: (Option<DropReason>, Option<&Decided>),
) {
    capture.remember((FABRIC, tag), frame, RawOffload::default());
    capture.came((FABRIC, 0), why, frame.len(), &|_, _| 0);
}

fn went(capture: &mut Capture, tag: u16, frame: &[u8]) {
    let outgoing = Outgoing {
        slot: FABRIC,
        tag,
        offload: RawOffload::default(),
        head: frame,
        rest_from: 0,
        total: 0,
        segments: 1,
        wire: frame.len(),
        came_by: 0,
    };
    capture.went(&outgoing, 0, &|_, _| 0);
}

fn denied() -> Decided {
    Decided {
        packets: 1,
        bytes: 60,
        owner: 1,
        inbound: true,
        tuple: Tuple {
            source: mapped(POOL),
            destination: mapped(SERVER),
            source_port: 4000,
            destination_port: 53,
            protocol: 17,
        },
        outcome: Outcome::Denied,
        rules: [None, Some((7, true))],
    }
}

#[test]
fn a_users_own_addresses_are_in_no_frame_that_its_server_captures() {
    let (asks, answers) = (packet(USER, STANDS), packet(STANDS, USER));
    let all = mirrored(|capture| {
        for tag in [OFFERED, GONE, 0] {
            came(capture, tag, &asks, (None, None));
            came(capture, tag, &asks, (Some(DropReason::ServicePort), None));
            went(capture, tag, &answers);
        }
        let rule = (Some(DropReason::IngressRule), Some(&denied()));
        came(capture, OFFERED, &asks, rule);
    });
    for (_, frame) in &all {
        for address in [USER, STANDS] {
            assert!(!frame.windows(4).any(|bytes| bytes == address), "{frame:?}");
        }
    }
    // What a rule denied is shown as it saw it, and how many are missing is said.
    let [(note, frame)] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!((note.denied, note.rule, note.lost), (1, 7, 3));
    assert_eq!(*frame, {
        let mut as_seen = packet(POOL, SERVER);
        // The link's own addresses are nobody's.
        as_seen[..12].copy_from_slice(&asks[..12]);
        as_seen
    });
}

#[test]
fn what_a_tenant_asks_others_for_is_shown_as_it_goes_and_comes() {
    let (asks, answers) = (packet(SERVER, POOL), packet(POOL, SERVER));
    let all = mirrored(|capture| {
        went(capture, USED, &asks);
        came(capture, USED, &answers, (None, None));
        came(
            capture,
            USED,
            &answers,
            (Some(DropReason::ServiceUnasked), None),
        );
    });
    let frames: Vec<_> = all.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames, [asks, answers.clone(), answers]);
}

#[test]
fn a_capture_takes_note_of_its_own_slots_frames_alone() {
    let frame = packet(SERVER, USER);
    let all = mirrored_of(3, |captures| {
        // 67 has the same bit as 3.
        for slot in [2, 67, FABRIC, 3] {
            captures.remember((slot, 0), &frame, RawOffload::default());
            captures.came((slot, slot), (None, None), frame.len(), &|_, _| 0);
            let of = captures.all[0].1.head_len;
            assert_eq!(of, if slot == 3 { frame.len() } else { 0 }, "slot {slot}");
        }
    });
    let of: Vec<u32> = all.iter().map(|(note, _)| note.endpoint).collect();
    assert_eq!(of, [3]);
}
