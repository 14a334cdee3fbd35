//! Breaches planted in live structures: an honest host's images are decoded, changed, and
//! built again. Nothing here is the verifier's.

use super::hosts::{Compiled, read, text};
use super::walk::{Open, joined, walk};
use crate::{Breach, Class, Read};
use image::compartment::{
    CROSSING_OFFERER, NONE, NextHop, ROUTE_OUTSIDE, ROUTE_VIA, Route, ServicePorts,
};
use image::fabric::{FORWARD_UNICAST, Forward};
use image::rules::{Action, Region, Rule};
use image::{Aligned, CompartmentImage, CompartmentTables, FabricImage, FabricTables};
use std::collections::BTreeMap;
use wire::Tuple;

/// Numbers that follow from a seed (splitmix64, Steele et al., OOPSLA '14).
struct Dice(u64);
impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as usize
    }
}

/// Of each class, at least.
const EACH: u64 = 50;

/// A host of its own for each seed: other rules, other defaults.
fn host(seed: u64) -> Compiled {
    let default = ["deny", "{inside: deny, inbound: deny, outbound: deny}"][seed as usize % 2];
    host_by(seed, default)
}

fn host_by(seed: u64, default: &str) -> Compiled {
    let mut dice = Dice(seed ^ 0xabcd);
    let rules = [
        "action: deny, from: {label: {k: one}}, to: {subnet: web}, protocol: tcp, ports: [22, 23], priority: 1",
        "action: deny, to: outside, protocol: udp, ports: [53], priority: 2",
        "action: allow, from: {endpoint: [a, b, d]}, to: {subnet: [web, six]}, protocol: tcp, ports: [443, 8443], priority: 3",
        "action: deny, from: any, to: {endpoint: b}, protocol: icmp, icmp: [redirect], priority: 4",
        "action: allow, from: {subnet: web}, to: {prefix: [203.0.113.0/24, '2001:db8:7::/48']}, protocol: udp, ports: 5000-5999, state: stateless, priority: 5",
    ];
    let rails = [
        "action: deny, to: {prefix: [198.51.100.0/24, '2001:db8:9::/48']}, protocol: tcp, ports: [25]",
    ];
    let first = dice.below(rules.len());
    let own = (0..3)
        .map(|n| rules[(first + n) % rules.len()].to_owned())
        .collect::<Vec<_>>();
    let rails = rails.map(str::to_owned);
    let host = Compiled::new(read(&text(
        &own,
        &rails[..dice.below(2)],
        default,
        "2027-01-01",
    )));
    assert!(host.breaches().is_empty(), "{}", host.breaches()[0]);
    host
}

fn tables(host: &Compiled, slot: u32) -> CompartmentTables {
    let memory = Aligned::copy_of(&host.images[&slot]);
    CompartmentImage::map(memory.as_ref()).unwrap().decode()
}

fn fabric(host: &Compiled) -> FabricTables {
    let memory = Aligned::copy_of(&host.images[&0]);
    FabricImage::map(memory.as_ref()).unwrap().decode()
}

/// Plants, and says what the verifier found; the packets of its rules are judged by the
/// planted image itself, which must do with them what was said.
fn found(host: &Compiled) -> (Vec<Breach>, u64) {
    let breaches = host.breaches();
    let mut walked = 0;
    for breach in &breaches {
        let told = breach.to_string();
        assert!(told.len() > 20, "{told}");
        let verdict = match breach.class {
            Class::WiderRule | Class::MissingDeny => true,
            Class::NarrowerRule => false,
            Class::SixForgotten => breach.what.contains("table says allow"),
            _ => continue,
        };
        let packet: Tuple = breach.packet.expect("a packet").into();
        let (tenant, endpoint) = breach.endpoint.as_ref().unwrap().split_once('/').unwrap();
        let ids: serde_json::Value = serde_json::from_slice(&host.numbers).unwrap();
        let id = ids["tenants"][tenant]["endpoints"][endpoint]["id"]
            .as_u64()
            .unwrap() as u32;
        let memory = Aligned::copy_of(&host.images[&breach.slot]);
        let image = CompartmentImage::map(memory.as_ref()).unwrap();
        let record = image.endpoints().iter().find(|e| e.id == id).unwrap();
        let table = match breach.what.contains("egress") {
            true => record.egress,
            false => record.ingress,
        };
        let does = image.judge(table, &packet).action != Action::Deny;
        assert_eq!(does, verdict, "{told}");
        // Sent for real it goes the same way. The other end's table is proved by itself:
        // here it lets everything through.
        let open = match breach.what.contains("egress") {
            true => Open::Receiver,
            false => Open::Sender,
        };
        if somebody_sends(host, tenant, &packet) {
            walked += 1;
            let end = walk(host, breach.slot, &packet, open);
            match verdict {
                true => assert!(end.passed(), "{told}: {end:?}"),
                false => assert!(end.by_rules(), "{told}: {end:?}"),
            }
        }
    }
    walked += joined(host);
    (breaches, walked)
}

/// Whether there is somebody who has the packet's source, and somebody, here or outside,
/// who gets it.
fn somebody_sends(host: &Compiled, tenant: &str, packet: &Tuple) -> bool {
    let has = |address: &[u8; 16]| {
        let mut all = host
            .intent
            .ports()
            .filter(|(_, port)| port.tenant == tenant);
        all.any(|(_, port)| port.addresses.iter().any(|a| spec::mapped(*a) == *address))
    };
    // Of documentation, and what a box that means all begins with.
    let v4 = wire::address::unmapped(&packet.destination);
    let outside = match v4 {
        Some([first, ..]) => ![0, 10, 192].contains(&first) && first < 224,
        None => packet.destination[0] >> 4 == 2,
    };
    // A switch sends nothing back to who sent it.
    let other = packet.source != packet.destination;
    other && has(&packet.source) && (has(&packet.destination) || outside)
}

fn has(breaches: &[Breach], classes: &[Class]) -> bool {
    breaches.iter().any(|b| classes.contains(&b.class))
}

/// `plant` changes a host by these dice, or says that there is nothing to change (then
/// the next seed is taken); one of `classes` must be found each time.
/// How many packets that show it went their way for real.
fn planted(classes: &[Class], plant: impl FnMut(&mut Compiled, &mut Dice) -> Option<()>) -> u64 {
    planted_in(classes, host, plant)
}

fn planted_in(
    classes: &[Class],
    host: impl Fn(u64) -> Compiled,
    mut plant: impl FnMut(&mut Compiled, &mut Dice) -> Option<()>,
) -> u64 {
    let mut done = 0;
    let mut walked = 0;
    let mut seed = 0;
    while done < EACH {
        seed += 1;
        assert!(seed < 20 * EACH, "only {done} could be planted");
        let mut host = host(seed);
        let mut dice = Dice(seed);
        if plant(&mut host, &mut dice).is_none() {
            continue;
        }
        let (breaches, sent) = found(&host);
        walked += sent;
        assert!(
            has(&breaches, classes),
            "seed {seed}: {:?}",
            breaches.first().map(ToString::to_string)
        );
        done += 1;
    }
    walked
}

/// Changes the tables of an endpoint of red.
fn edit_table(
    host: &mut Compiled,
    dice: &mut Dice,
    edit: impl FnOnce(&mut Vec<Rule>, &mut Dice) -> Option<()>,
) -> Option<()> {
    let slot = host.slot_of("red");
    let mut tables = tables(host, slot);
    let at = dice.below(tables.rule_tables.len());
    edit(&mut tables.rule_tables[at].rules, dice)?;
    host.images.insert(slot, tables.finish().unwrap());
    Some(())
}

/// Which rule numbers are the spec's: others are the defaults'.
fn denies(rules: &[Rule]) -> Vec<usize> {
    let all = rules.iter().enumerate();
    all.filter(|(_, r)| r.action == Action::Deny)
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn a_wider_rule() {
    let classes = [Class::WiderRule, Class::MissingDeny, Class::SixForgotten];
    let walked = planted(&classes, |host, dice| {
        edit_table(host, dice, |rules, dice| {
            let allows: Vec<usize> = (0..rules.len())
                .filter(|at| {
                    let rule = &rules[*at];
                    rule.action != Action::Deny && *rule.region.destination_port.end() < u16::MAX
                })
                .collect();
            let at = *allows.get(dice.below(allows.len()))?;
            let ports = &mut rules[at].region.destination_port;
            *ports = *ports.start()..=*ports.end() + 1;
            Some(())
        })
    });
    assert!(walked >= 20, "only {walked} could be sent");
}

#[test]
fn a_missing_deny() {
    let host = |seed| host_by(seed, "allow");
    let walked = planted_in(
        &[Class::MissingDeny, Class::Guardrail],
        host,
        |host, dice| {
            let red = &host.ids.tenants["red"];
            let named = red.rules.values().chain(host.ids.guardrails.values());
            let named: Vec<u32> = named.copied().collect();
            edit_table(host, dice, |rules, dice| {
                let four = |range: &core::ops::RangeInclusive<[u8; 16]>| {
                    u128::from_be_bytes(*range.start()) >> 32 == 0xffff
                };
                let all = denies(rules).into_iter().filter(|at| {
                    let rule = &rules[*at];
                    let v4 = four(&rule.region.source) || four(&rule.region.destination);
                    named.contains(&rule.id) && v4
                });
                let all: Vec<usize> = all.collect();
                rules.remove(*all.get(dice.below(all.len()))?);
                Some(())
            })
        },
    );
    assert!(walked >= 10, "only {walked} could be sent");
}

#[test]
fn six_forgotten() {
    let walked = planted(&[Class::SixForgotten], |host, dice| {
        let slot = host.slot_of("red");
        let mut tables = tables(host, slot);
        let both = |a: &Region| {
            let six = |r: &core::ops::RangeInclusive<[u8; 16]>| {
                u128::from_be_bytes(*r.end()) >> 32 != 0xffff
            };
            six(&a.source) && six(&a.destination)
        };
        // Endpoints that have both families: web's.
        let ends = tables
            .endpoints
            .iter()
            .filter(|e| e.dhcp4[..3] == [10, 1, 1]);
        let mine: Vec<u32> = ends.flat_map(|e| [e.egress, e.ingress]).collect();
        let at = mine[dice.below(mine.len())] as usize;
        let mut one = tables.rule_tables[at].clone();
        let six: Vec<usize> = (0..one.rules.len())
            .filter(|n| both(&one.rules[*n].region))
            .collect();
        let last = *six.get(dice.below(six.len()))?;
        // What was said of both is said of IPv4 alone; what was said of IPv6, no more.
        let four = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        let mut end = four;
        end[12..].fill(0xff);
        let rule = &mut one.rules[last];
        if rule.region.source == Region::ALL.source
            && rule.region.destination == Region::ALL.destination
        {
            rule.region.source = four..=end;
        } else {
            one.rules.remove(last);
        }
        // Of no consequence where the rest says the same about it.
        let here = tables.rule_tables.len() as u32;
        let removed = tables.rule_tables[at].rules[last].clone();
        let probe = |t: &image::rules::RuleTable| {
            let r = &removed.region;
            let s = if *r.source.start() == [0; 16] {
                spec::mapped("fd00:1:1::10".parse().unwrap())
            } else {
                *r.source.start()
            };
            let d = if *r.destination.start() == [0; 16] {
                spec::mapped("fd00:1:1::11".parse().unwrap())
            } else {
                *r.destination.start()
            };
            t.judge(&Tuple {
                source: s,
                destination: d,
                source_port: *r.source_port.start(),
                destination_port: *r.destination_port.start(),
                protocol: *r.protocol.start(),
            })
            .action
        };
        let own: Vec<[u8; 16]> = tables.addresses.iter().map(|a| a.1).collect();
        let is_own = |range: &core::ops::RangeInclusive<[u8; 16]>| {
            *range == Region::ALL.source || own.iter().any(|a| range.contains(a))
        };
        if probe(&tables.rule_tables[at]) == probe(&one)
            || removed.region.protocol == (1..=1)
            || !is_own(&removed.region.source) && !is_own(&removed.region.destination)
        {
            return None;
        }
        tables.rule_tables[at] = one;
        let _ = here;
        host.images.insert(slot, tables.finish().unwrap());
        Some(())
    });
    assert!(walked >= 10, "only {walked} could be sent");
}

#[test]
fn a_wrong_tag() {
    let walked = planted(&[Class::WrongTag], |host, dice| {
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
    assert!(walked >= 20, "only {walked} could be sent");
}

#[test]
fn a_stale_agreement() {
    planted(&[Class::StaleAgreement], |host, dice| {
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
}

#[test]
fn a_wrong_translation() {
    planted(&[Class::WrongTranslation], |host, dice| {
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
}

#[test]
fn a_wrong_service() {
    planted(&[Class::WrongService], |host, dice| {
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
}

#[test]
fn an_entry_of_the_fabric() {
    let walked = planted(&[Class::FabricEntry], |host, dice| {
        let mut tables = fabric(host);
        let slots: Vec<u32> = tables.channels.iter().map(|c| c.slot).collect();
        match dice.below(5) {
            // One more that joins two.
            0 => {
                let green = host.slot_of("green");
                let (a, b) = (slots[dice.below(slots.len())], dice.below(60_000) as u16);
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
    assert!(walked >= 15, "only {walked} could be sent");
}

#[test]
fn an_image_swapped() {
    planted(&[Class::ImageSwapped], |host, dice| {
        let slots = ["red", "blue", "green"].map(|t| host.slot_of(t));
        let (a, b) = (slots[dice.below(3)], slots[dice.below(3)]);
        if a == b {
            return None;
        }
        let image = host.images[&a].clone();
        host.images.insert(b, image);
        Some(())
    });
}

#[test]
fn a_loop() {
    planted(&[Class::Loop], |host, dice| {
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
}

#[test]
fn a_liar_is_no_evidence_and_the_rest_stands() {
    for seed in 1..=EACH {
        let mut host = host(seed);
        let mut dice = Dice(seed);
        let tenants = ["red", "blue", "green"];
        let liar = host.slot_of(tenants[dice.below(3)]);
        // Whatever it has for an image.
        match dice.below(3) {
            0 => drop(host.images.remove(&liar)),
            1 => drop(host.images.insert(liar, vec![0xa5; dice.below(4000)])),
            _ => {
                let other = host.slot_of(tenants[dice.below(3)]);
                let image = host.images[&other].clone();
                host.images.insert(liar, image);
            }
        }
        assert!(host.but_for(Some(liar)).is_empty(), "seed {seed}");
        // What the others or the fabric have wrong is found all the same.
        let other = tenants
            .map(|t| host.slot_of(t))
            .into_iter()
            .find(|s| *s != liar && *s != host.slot_of("green"))
            .unwrap();
        let mut tables = tables(&host, other);
        tables.crossings[0].tag = 30_000;
        let good = host.images.insert(other, tables.finish().unwrap()).unwrap();
        assert!(has(&host.but_for(Some(liar)), &[Class::WrongTag]));
        host.images.insert(other, good);
        let mut tables = fabric(&host);
        tables.forwards.push(Forward {
            ingress: liar,
            tag: 20_000,
            mac: [0; 6],
            target: other,
            out_tag: 20_000,
            kind: FORWARD_UNICAST,
        });
        host.images.insert(0, tables.finish().unwrap());
        assert!(has(
            &host.but_for(Some(liar)),
            &[Class::FabricEntry, Class::WrongTag]
        ));
    }
}

#[test]
fn each_other_class_is_found() {
    let mut classes = BTreeMap::new();
    let mut plant = |class: Class, edit: &dyn Fn(&mut Compiled)| {
        let mut host = host(3);
        edit(&mut host);
        classes.insert(class, has(&found(&host).0, &[class]));
    };
    let red = |host: &mut Compiled, edit: &dyn Fn(&mut CompartmentTables)| {
        let slot = host.slot_of("red");
        let mut tables = tables(host, slot);
        edit(&mut tables);
        host.images.insert(slot, tables.finish().unwrap());
    };
    plant(Class::Unreadable, &|host| {
        let slot = host.slot_of("red");
        host.images.get_mut(&slot).unwrap()[100] ^= 1;
    });
    plant(Class::NoImage, &|host| {
        drop(host.images.remove(&host.slot_of("red")))
    });
    plant(Class::NoTables, &|host| {
        red(host, &|t| t.endpoints[0].ingress = NONE)
    });
    plant(Class::WrongPlace, &|host| {
        red(host, &|t| {
            let mut more = t.addresses[0];
            more.1[15] ^= 0x40;
            t.addresses.push(more);
        })
    });
    plant(Class::WrongRoute, &|host| {
        red(host, &|t| {
            let last = t.ranges.len() - 1;
            t.ranges.remove(last);
        })
    });
    plant(Class::NarrowerRule, &|host| {
        red(host, &|t| {
            let table = &mut t.rule_tables[0];
            let deny = Rule {
                region: Region::ALL,
                action: Action::Deny,
                log: false,
                id: 1,
            };
            table.rules.insert(0, deny);
        })
    });
    plant(Class::WrongState, &|host| {
        red(host, &|t| {
            for table in &mut t.rule_tables {
                for rule in table.rules.iter_mut().filter(|r| r.action == Action::Allow) {
                    rule.action = Action::AllowStateless;
                }
            }
        })
    });
    let text_with = |reach: &str| {
        let host = host(3);
        let text = host.spec.source.text().replace(
            "    offers:\n      - {name: mine",
            &format!("      reach: [{{{reach}}}]\n    offers:\n      - {{name: mine"),
        );
        Compiled::new(read(&text))
    };
    for (reach, holds) in [
        ("from: {endpoint: a}, to: {endpoint: fw}, allowed: no", true),
        (
            "from: {endpoint: a}, to: {endpoint: fw}, allowed: yes",
            false,
        ),
        (
            "from: {endpoint: a}, to: {agreement: theirs}, protocol: tcp, ports: [443], allowed: yes",
            true,
        ),
        (
            "from: {endpoint: a}, to: {agreement: theirs}, protocol: tcp, ports: [443], allowed: no",
            false,
        ),
        (
            "from: {agreement: mine}, to: {endpoint: a}, protocol: tcp, ports: [80], allowed: no",
            false,
        ),
        (
            "from: {endpoint: a}, to: {endpoint: a}, allowed: yes",
            false,
        ),
        (
            "from: outside, to: {endpoint: [a, b, c, d]}, protocol: udp, ports: [53], allowed: no",
            true,
        ),
    ] {
        let host = text_with(reach);
        assert_eq!(host.breaches().is_empty(), holds, "{reach}");
        if !holds {
            assert!(has(&host.breaches(), &[Class::Reach]));
        }
    }
    assert!(classes.values().all(|found| *found), "{classes:?}");
}
