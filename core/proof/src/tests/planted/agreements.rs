//! Planted in sides of agreements, and in the entries that join them.

use super::*;
use crate::Read;
use image::compartment::{CROSSING_OFFERER, NONE, ServicePorts};

#[test]
fn a_wrong_tag() {
    let tally = planted(&[Class::WrongTag], |host, dice| {
        let other = 20_000 + dice.below(40_000) as u16;
        if dice.below(2) == 0 {
            let slot = host.slot_of(["red", "blue"][dice.below(2)]);
            let mut tables = tables(host, slot);
            let at = dice.below(tables.crossings.len());
            if dice.below(2) == 0 && tables.crossings.len() > 1 {
                let (a, b) = (tables.crossings[0].tag, tables.crossings[1].tag);
                (tables.crossings[0].tag, tables.crossings[1].tag) = (b, a);
            } else {
                tables.crossings[at].tag = other;
            }
            host.images.insert(slot, tables.finish().unwrap());
        } else {
            let mut tables = fabric(host);
            let (red, blue) = (host.slot_of("red"), host.slot_of("blue"));
            let between: Vec<usize> = (0..tables.forwards.len())
                .filter(|at| {
                    let f = &tables.forwards[*at];
                    [red, blue].contains(&f.ingress) && [red, blue].contains(&f.target)
                })
                .collect();
            let entry = &mut tables.forwards[between[dice.below(between.len())]];
            match dice.below(2) {
                0 => entry.tag = other,
                _ => entry.out_tag = other,
            }
            host.images.insert(0, tables.finish().unwrap());
        }
        Some(())
    });
    assert_eq!(tally, Tally::of(5, 22));
}

#[test]
fn a_stale_agreement() {
    let tally = planted(&[Class::StaleAgreement], |host, dice| {
        match dice.below(3) {
            // It has ended, and the images have not.
            0 => host.now = 1_798_761_600 + dice.below(100_000_000) as u64,
            // One that never was.
            1 => {
                let slot = host.slot_of(["red", "blue"][dice.below(2)]);
                let mut tables = tables(host, slot);
                let crossing = tables.crossings[dice.below(tables.crossings.len())];
                let ports = ServicePorts {
                    protocol: 6,
                    first: 1,
                    last: 9,
                    ..ServicePorts::default()
                };
                tables
                    .service_ports
                    .push((tables.crossings.len() as u32, ports));
                tables.crossings.push(image::compartment::Crossing {
                    agreement: 100 + dice.below(1000) as u32,
                    tag: 20_000 + dice.below(1000) as u16,
                    ..crossing
                });
                host.images.insert(slot, tables.finish().unwrap());
            }
            // One side took its part out.
            _ => {
                let text = host
                    .spec
                    .source
                    .text()
                    .replace("to: [green, blue]", "to: [green]");
                host.spec = Read::new(read(&text));
            }
        }
        Some(())
    });
    assert_eq!(tally, Tally::of(23, 50));
}

#[test]
fn a_wrong_translation() {
    let tally = planted(&[Class::WrongTranslation], |host, dice| {
        let slot = host.slot_of(["red", "blue"][dice.below(2)]);
        let mut tables = tables(host, slot);
        let at = dice.below(tables.crossings.len());
        let crossing = &mut tables.crossings[at];
        match (dice.below(5), crossing.role) {
            (0, _) => crossing.address4[3] ^= 1 + dice.below(7) as u8,
            (1, _) => crossing.address6[15] ^= 1 + dice.below(7) as u8,
            (2, CROSSING_OFFERER) => crossing.pool4[2] ^= 1 + dice.below(100) as u8,
            (3, CROSSING_OFFERER) => crossing.pool6[4] ^= 1 + dice.below(100) as u8,
            (4, CROSSING_OFFERER) => crossing.pool4_len += 1,
            _ if !tables.nat_blocks.is_empty() => {
                let (a, b) = (
                    dice.below(tables.nat_blocks.len()),
                    dice.below(tables.nat_blocks.len()),
                );
                if tables.nat_blocks[a].1 == tables.nat_blocks[b].1 {
                    return None;
                }
                tables.nat_blocks.swap(a, b);
            }
            _ => return None,
        }
        let image = tables.finish().ok()?;
        host.images.insert(slot, image);
        Some(())
    });
    assert_eq!(tally, Tally::of(70, 31));
}

#[test]
fn a_wrong_service() {
    let tally = planted(&[Class::WrongService], |host, dice| {
        let slot = host.slot_of(["red", "blue"][dice.below(2)]);
        let mut tables = tables(host, slot);
        match dice.below(3) {
            0 => {
                let at = dice.below(tables.service_ports.len());
                tables.service_ports[at].1.last += 1;
            }
            1 => {
                let at = dice.below(tables.service_ports.len());
                tables.service_ports[at].1.protocol = 17;
            }
            _ => {
                let server = tables.crossings.iter_mut().find(|c| c.endpoint != NONE)?;
                server.endpoint ^= 1;
                let (a4, a6) = (server.address4, server.address6);
                let endpoint = server.endpoint;
                // Mapping refuses another's address: as its own it would be let through.
                tables
                    .addresses
                    .retain(|(_, a)| *a != wire::address::mapped(a4) && *a != a6);
                tables.addresses.push((endpoint, wire::address::mapped(a4)));
                tables.addresses.push((endpoint, a6));
            }
        }
        let image = tables.finish().ok()?;
        host.images.insert(slot, image);
        Some(())
    });
    assert_eq!(tally, Tally::of(0, 38));
}
