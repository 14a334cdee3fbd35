//! Planted in the fabric, in routes, and in whose image is where.

use super::*;
use image::compartment::{NONE, NextHop, ROUTE_OUTSIDE, ROUTE_VIA, Route};
use image::fabric::{FORWARD_UNICAST, Forward};
use std::collections::BTreeSet;

#[test]
fn an_entry_of_the_fabric() {
    let tally = planted(&[Class::FabricEntry], |host, dice| {
        let mut tables = fabric(host);
        let slots: Vec<u32> = tables.channels.iter().map(|c| c.slot).collect();
        match dice.below(5) {
            // One more that joins two.
            0 => {
                let green = host.slot_of("green");
                let a = slots[dice.below(slots.len())];
                // With a tag that nobody has, or one that somebody takes for its own.
                let own = tables.forwards.iter().filter(|f| f.target == a);
                // In an order of their own, which is not the table's.
                let own: Vec<u16> = own
                    .map(|f| f.out_tag)
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let b = match (dice.below(4), own.get(dice.below(own.len()))) {
                    (0..3, Some(tag)) => *tag,
                    _ => dice.below(60_000) as u16,
                };
                let (ingress, target) = if dice.below(2) == 0 {
                    (green, a)
                } else {
                    (a, green)
                };
                tables.forwards.push(Forward {
                    ingress,
                    tag: 20_000,
                    mac: [0; 6],
                    target,
                    out_tag: b,
                    kind: FORWARD_UNICAST,
                });
            }
            // A template that leaves the MAC, or the source, open.
            1 => {
                let at = dice.below(tables.templates.len());
                let template = &mut tables.templates[at].1;
                let byte = 6 + dice.below(6);
                (template.mask[byte], template.value[byte]) = (0, 0);
            }
            2 => {
                let at = dice.below(tables.templates.len());
                let template = &mut tables.templates[at].1;
                for byte in 22..38.min(usize::from(template.len)) {
                    (template.mask[byte], template.value[byte]) = (0, 0);
                }
            }
            // Another's MAC leads here.
            3 => {
                let tagged = tables
                    .forwards
                    .iter_mut()
                    .filter(|f| f.out_tag != 0 && f.mac[0] & 1 == 0 && f.mac != [0; 6]);
                let mut tagged: Vec<&mut Forward> = tagged.collect();
                let at = dice.below(tagged.len());
                tagged[at].mac[5] ^= 1 + dice.below(200) as u8;
            }
            // A way is gone.
            _ => {
                let (red, blue) = (host.slot_of("red"), host.slot_of("blue"));
                let at = tables
                    .forwards
                    .iter()
                    .position(|f| (f.ingress, f.target) == (red, blue))?;
                tables.forwards.remove(at);
            }
        }
        host.images.insert(0, tables.finish().ok()?);
        Some(())
    });
    assert_eq!(tally, Tally::of(4, 1));
}

#[test]
fn an_image_swapped() {
    let tally = planted(&[Class::ImageSwapped], |host, dice| {
        let slots = ["red", "blue", "green"].map(|t| host.slot_of(t));
        let (a, b) = (slots[dice.below(3)], slots[dice.below(3)]);
        if a == b {
            return None;
        }
        let image = host.images[&a].clone();
        host.images.insert(b, image);
        Some(())
    });
    assert_eq!(tally, Tally::of(13, 13));
}

#[test]
fn a_loop() {
    let tally = planted(&[Class::Loop], |host, dice| {
        let slot = host.slot_of("red");
        let mut tables = tables(host, slot);
        let router = tables
            .endpoints
            .iter()
            .position(|e| e.own_count != 0 || e.roles == 1)? as u32;
        let subnet = tables.endpoints[router as usize].subnet;
        let new = tables.routes.len() as u32;
        let route = match dice.below(2) {
            // To a router that has nothing of the kind behind it.
            0 => Route {
                kind: ROUTE_VIA,
                subnet,
                via: router,
                reserved: 0,
            },
            // To another switch of the host, or to itself.
            _ => {
                let address = ["192.0.2.10", "192.0.2.11"][dice.below(2)].parse().unwrap();
                let hop = NextHop {
                    address: spec::mapped(address),
                    attachment: 0,
                    mac: [0; 6],
                    reserved: [0; 6],
                };
                tables.next_hops.push(hop);
                Route {
                    kind: ROUTE_OUTSIDE,
                    subnet: NONE,
                    via: tables.next_hops.len() as u32 - 1,
                    reserved: 0,
                }
            }
        };
        tables.routes.push(route);
        let behind: [u8; 16] = spec::mapped("10.9.0.0".parse().unwrap());
        let at = dice.below(tables.ranges.len());
        let range = &mut tables.ranges[at].1;
        if route.kind == ROUTE_VIA && (range.start..=range.end).contains(&behind)
            || tables.routes[range.route as usize] == route
        {
            return None;
        }
        let inner = range.start[..4] == behind[..4] && range.start[12..14] == [10, 9]
            || range.start[..2] == [0xfd, 0] && range.start[3] == 9;
        if route.kind == ROUTE_VIA && inner {
            return None;
        }
        range.route = new;
        host.images.insert(slot, tables.finish().ok()?);
        Some(())
    });
    assert_eq!(tally, Tally::of(2, 0));
}
