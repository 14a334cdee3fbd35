//! Table images with a right digest and anything else in them, as a compiler that was taken
//! over could make them.
//!
//! Held: an image is refused, or every way into it stays inside it, each endpoint has a slot
//! of its own, and a switch runs by it whatever comes.

use crate::frames;
use crate::input::Input;
use crate::support::{FABRIC, Seen};
use core_switch::{Config, Ingress, Switch};
use image::compartment::ROUTE_SUBNET;
use image::fabric::{CHANNEL_COMPARTMENT, CHANNEL_UPLINK, Channel, FORWARD_UNICAST, Forward};
use image::{Aligned, CompartmentImage, FabricImage, FabricTables, MappedCompartment};
use std::collections::BTreeSet;
use wire::address::mapped;

/// Where an image has its digest.
const DIGEST: core::ops::Range<usize> = 24..56;
/// Where it says of each section the bytes of a record, where they begin, and how many.
const SECTIONS: usize = 64;
const SECTION: usize = 32;

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let what = input.byte();
    let mut bytes = match what % 4 {
        0 => fabric().finish().expect("legal tables"),
        1..3 => frames::site().switch().0.finish().expect("legal tables"),
        _ => input.rest(),
    };
    for _ in 0..what >> 4 {
        change(&input, &mut bytes);
    }
    if let Some(digest) = image::digest(&bytes)
        && let Some(place) = bytes.get_mut(DIGEST)
    {
        place.copy_from_slice(&digest.0);
        let claimed = image::claimed_digest(&bytes);
        assert!(claimed.is_none_or(|claimed| claimed == digest), "it moved");
    }
    let aligned = Aligned::copy_of(&bytes);
    if let Ok(image) = FabricImage::map(aligned.as_ref()) {
        walk_fabric(&image);
    }
    if let Ok(image) = CompartmentImage::map(aligned.as_ref()) {
        walk(&image);
        drive(&input, aligned);
    }
}

/// A byte anywhere; or of a record, one that another record of its section has there, or what
/// the input says: so that records come to say the same.
fn change(input: &Input, bytes: &mut [u8]) {
    let what = input.byte();
    if what & 1 == 0 {
        let at = input.u16() as usize % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = input.byte();
        }
        return;
    }
    let word = |at: usize| {
        let word = bytes.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    let entry = SECTIONS + SECTION * usize::from(input.byte() % 24);
    let place = (|| Some((word(entry)? & 0xffff, word(entry + 8)?, word(entry + 16)?)))();
    let Some((size @ 1.., begin, count @ 1..)) = place else {
        return;
    };
    let one = begin.wrapping_add(input.below(count.min(64)) * size);
    let other = begin.wrapping_add(input.below(count.min(64)) * size);
    let field = input.below(size.min(256)) & !3;
    let range = |record: usize| record.wrapping_add(field)..record.wrapping_add(field + 4);
    match (what & 2 == 0, bytes.get(range(other)).map(<[u8]>::to_vec)) {
        (true, Some(word)) => {
            if let Some(place) = bytes.get_mut(range(one)) {
                place.copy_from_slice(&word);
            }
        }
        _ => {
            if let Some(byte) = bytes.get_mut(one.wrapping_add(field)) {
                *byte = input.byte();
            }
        }
    }
}

/// Two compartments and an uplink.
fn fabric() -> FabricTables {
    let channel = |id: u32, kind| Channel {
        id,
        slot: id,
        weight: 1,
        kind,
        ..Channel::default()
    };
    let mut tables = FabricTables {
        channels: vec![
            channel(1, CHANNEL_COMPARTMENT),
            channel(2, CHANNEL_COMPARTMENT),
            channel(3, CHANNEL_UPLINK),
        ],
        ..FabricTables::default()
    };
    for (ingress, target) in [(1, 2), (2, 1), (1, 3), (2, 3)] {
        tables.forwards.push(Forward {
            ingress,
            tag: target as u16 + 4,
            mac: [2, 0, 0, 0, 0, target as u8],
            target,
            out_tag: target as u16 + 4,
            kind: FORWARD_UNICAST,
        });
    }
    tables
}

fn walk_fabric(image: &FabricImage<'_>) {
    let _ = image.to_string();
    for entry in image.decode().forwards {
        assert!(image.channel(entry.ingress).is_some(), "from nowhere");
        let found = image.forward(entry.ingress, entry.tag, entry.mac);
        assert!(
            found.is_some_and(|found| found.target != entry.ingress),
            "back"
        );
    }
}

fn walk(image: &CompartmentImage<'_>) {
    let _ = image.to_string();
    let tables = image.decode();
    let endpoints = image.endpoints();
    let mut slots = BTreeSet::new();
    for endpoint in endpoints {
        assert!(slots.insert(endpoint.slot), "two in a slot");
        let by_mac = image.endpoint_by_mac(endpoint.subnet, endpoint.mac);
        assert!(by_mac.is_some_and(|n| (n as usize) < endpoints.len()));
        let _ = image.own_prefixes_of(endpoint);
    }
    for (subnet, address) in &tables.addresses {
        let found = image.endpoint_by_address(*subnet, *address);
        if let Some(endpoint) = found.and_then(|n| endpoints.get(n as usize)) {
            assert_eq!(endpoint.subnet, *subnet, "an address in another's subnet");
        }
    }
    for tenant in 0..image.tenants().len() as u32 {
        let ranges = image.ranges_of(tenant);
        assert!(ranges.is_sorted_by(|a, b| a.end < b.start), "in no order");
        for address in [
            [0; 16],
            [255; 16],
            mapped([10, 1, 1, 10]),
            mapped([10, 9, 0, 1]),
        ] {
            if let Some(route) = image
                .route(tenant, address)
                .filter(|r| r.kind == ROUTE_SUBNET)
            {
                let subnet = tables.subnets.get(route.subnet as usize);
                assert!(
                    subnet.is_some_and(|s| s.tenant == tenant),
                    "another tenant's"
                );
            }
        }
    }
}

/// A switch that is told to run by it.
fn drive(input: &Input, image: Aligned) {
    let image = MappedCompartment::map(image).expect("it was mapped before");
    let mut switch = Switch::new(Config::default());
    let mut now = 1_000_000_000;
    switch.use_image(&image.image(), now);
    for from in [1, 2, 4, 5, FABRIC, 1, 3] {
        let (frame, offload) = frames::frame(input, from);
        let (mut head, mut seen) = Seen::of(&frame);
        let ingress = Ingress {
            from,
            tag: if from == FABRIC { 7 } else { 0 },
            offload,
            head: &mut head,
            total: frame.len(),
        };
        switch.process(&image.image(), now, ingress, &mut seen);
        now += 1_000_000;
        switch.tick(&image.image(), now, &mut seen);
    }
}
