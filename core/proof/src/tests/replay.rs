//! What shows a breach is sent for real: by the switch's and the fabric's own code, from the
//! planted images, it comes out where the verifier says; from honest ones it does not.

use super::hosts::Compiled;
use super::walk::{ROUTER, handled};
use crate::{Becomes, Breach, Class, Place, Way};
use ::switch::FABRIC;
use fabric::forward::{clean, decide};
use fabric::{Decision, Frame};
use image::rules::{Action, RuleTable};
use image::{Aligned, CompartmentImage, CompartmentTables, FabricImage};
use telemetry::drops::DropReason;
use wire::address::unmapped;
use wire::offload::RawOffload;
use wire::{MacAddress, Probe, Tuple};

/// Who speaks across agreements: the fabric goes by the tag.
const SWITCHES: [[u8; 6]; 2] = [[2, 0x62, 0x68, 0, 0, 2], [2, 0x62, 0x68, 0, 0, 1]];

/// Where a frame came out, and as what.
#[derive(Clone, Debug, PartialEq)]
struct Out {
    at: Place,
    frame: Vec<u8>,
    why: Option<DropReason>,
}

impl Out {
    fn dropped(slot: u32, why: DropReason) -> Out {
        Out {
            at: Place::Dropped { slot },
            frame: Vec::new(),
            why: Some(why),
        }
    }
    fn packet(&self) -> Option<Tuple> {
        let head = &self.frame[..self.frame.len().min(wire::parse::HEAD)];
        let parsed = wire::parse(head, self.frame.len()).ok()?;
        Tuple::of_rules(parsed.ip()?)
    }
    fn hop_limit(&self) -> u8 {
        let head = &self.frame[..self.frame.len().min(wire::parse::HEAD)];
        let parsed = wire::parse(head, self.frame.len()).unwrap();
        parsed.ip().unwrap().hop_limit
    }
}

/// Whose rules let everything through: rules are proved by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Open {
    Nobodys,
    Everybodys,
    Senders,
    Receivers,
}

fn open_for(breach: &Breach) -> Open {
    match breach.class {
        // These say themselves that it passes.
        Class::Reach | Class::ImageSwapped => Open::Nobodys,
        Class::WiderRule
        | Class::MissingDeny
        | Class::NarrowerRule
        | Class::SixForgotten
        | Class::Guardrail
        | Class::WrongState => match breach.what.contains("egress") {
            true => Open::Receivers,
            false => Open::Senders,
        },
        _ => Open::Everybodys,
    }
}

fn decoded(image: &[u8]) -> CompartmentTables {
    let memory = Aligned::copy_of(image);
    CompartmentImage::map(memory.as_ref()).unwrap().decode()
}

/// A compartment's tables as it is running: next hops are known.
fn running(host: &Compiled, image: &[u8], packet: &Tuple, open: Open) -> CompartmentTables {
    let mut tables = decoded(image);
    for hop in &mut tables.next_hops {
        hop.mac = station_of(host, &hop.address).unwrap_or(ROUTER);
    }
    let all = tables.rule_tables.len() as u32;
    tables.rule_tables.push(RuleTable {
        rules: vec![],
        default: Action::Allow,
    });
    let whose = |address: &[u8; 16]| {
        let found = tables.addresses.iter().find(|(_, a)| a == address);
        found.map(|(endpoint, _)| *endpoint as usize)
    };
    let (sender, receiver) = (whose(&packet.source), whose(&packet.destination));
    match (open, sender, receiver) {
        (Open::Everybodys, ..) => tables
            .endpoints
            .iter_mut()
            .for_each(|e| (e.egress, e.ingress) = (all, all)),
        (Open::Senders, Some(sender), _) => tables.endpoints[sender].egress = all,
        (Open::Receivers, _, Some(receiver)) => tables.endpoints[receiver].ingress = all,
        _ => {}
    }
    tables
}

/// The MAC of this host's own place on an uplink that has an address.
fn station_of(host: &Compiled, address: &[u8; 16]) -> Option<[u8; 6]> {
    let images = host.images.iter().filter(|(slot, _)| **slot != 0);
    images.into_iter().find_map(|(_, image)| {
        let all = decoded(image).attachments;
        let own = all
            .iter()
            .find(|a| wire::address::mapped(a.address4) == *address || a.address6 == *address);
        Some(own?.mac)
    })
}

fn frame(from: [u8; 6], to: [u8; 6], packet: &Tuple) -> Vec<u8> {
    let probe = Probe::first(MacAddress(from), MacAddress(to), *packet, 1);
    let mut buffer = vec![0; 200];
    let length = probe.emit(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// A frame with the packet, as it comes to a switch at this place.
fn arriving(tables: &CompartmentTables, from: &Place, packet: &Tuple) -> Vec<u8> {
    match from {
        Place::Port { port, .. } => {
            let sender = tables.endpoints.iter().find(|e| e.slot == *port).unwrap();
            let subnet = &tables.subnets[sender.subnet as usize];
            let near = tables
                .addresses
                .iter()
                .find(|(_, a)| *a == packet.destination && *a != packet.source);
            let near = near.map(|(at, _)| &tables.endpoints[*at as usize]);
            let near = near.filter(|e| e.subnet == sender.subnet);
            let four = unmapped(&packet.destination);
            let on_link = match four {
                Some(four) => subnet.prefix4_len == 24 && four[..3] == subnet.prefix4[..3],
                None => subnet.prefix6_len == 64 && packet.destination[..8] == subnet.prefix6[..8],
            };
            let gateway = match subnet.segment != 0 && on_link {
                true => ROUTER,
                false => subnet.gateway_mac,
            };
            let to = near.map_or(gateway, |e| e.mac);
            frame(sender.mac, to, packet)
        }
        Place::Channel { tag, .. } => match tables.attachments.iter().find(|a| a.tag == *tag) {
            Some(own) => frame(ROUTER, own.mac, packet),
            None if tables.subnets.iter().any(|s| s.segment == *tag) => {
                let mut all = tables.addresses.iter();
                let (at, _) = all.find(|(_, a)| *a == packet.destination).unwrap();
                frame(ROUTER, tables.endpoints[*at as usize].mac, packet)
            }
            None => frame(SWITCHES[1], SWITCHES[0], packet),
        },
        _ => panic!("no frame comes to a switch from {from}"),
    }
}

fn by_switch(image: &[u8], slot: u32, from: &Place, frame: &[u8]) -> Out {
    let (port, tag) = match from {
        Place::Port { port, .. } => (*port, 0),
        Place::Channel { tag, .. } => (FABRIC, *tag),
        _ => unreachable!(),
    };
    match handled(image, port, tag, frame) {
        Err(why) => Out::dropped(slot, why),
        Ok((FABRIC, tag, frame)) => Out {
            at: Place::Channel { slot, tag },
            frame,
            why: None,
        },
        Ok((port, _, frame)) => Out {
            at: Place::Port {
                slot,
                port,
                who: None,
            },
            frame,
            why: None,
        },
    }
}

fn by_fabric(image: &[u8], from: &Place, bytes: &[u8]) -> Out {
    let memory = Aligned::copy_of(image);
    let image = FabricImage::map(memory.as_ref()).unwrap();
    let (slot, tag) = match from {
        Place::Channel { slot, tag } => (*slot, *tag),
        Place::Uplink { slot } => (*slot, 0),
        _ => panic!("no frame comes to the fabric from {from}"),
    };
    let mut head = [0; fabric::HEAD];
    let both = head.iter_mut().zip(bytes);
    both.for_each(|(to, from)| *to = *from);
    let alleged = Frame {
        tag,
        offload: clean(RawOffload::default()),
        len: bytes.len(),
        head,
    };
    let frame = bytes.to_vec();
    let place = |slot: u32, tag: u16| match image.channel(slot).map(|c| c.kind) {
        Some(image::fabric::CHANNEL_UPLINK) => Place::Uplink { slot },
        _ => Place::Channel { slot, tag },
    };
    match decide(&image, slot, &alleged) {
        Decision::Unicast { slot, tag } => Out {
            at: place(slot, tag),
            frame,
            why: None,
        },
        Decision::Drop(why) => Out::dropped(0, why),
        Decision::Group(_) => panic!("to many"),
    }
}

/// Places are the same whoever is said to be there.
fn same(a: &Place, b: &Place) -> bool {
    match (a, b) {
        (
            Place::Port { slot, port, .. },
            Place::Port {
                slot: there,
                port: other,
                ..
            },
        ) => (slot, port) == (there, other),
        _ => a == b,
    }
}

fn holds(becomes: &Becomes, packet: &Tuple) -> bool {
    let (first, last) = becomes.source;
    let source = spec::mapped(first)..=spec::mapped(last);
    let (low, high) = becomes.source_port;
    source.contains(&packet.source)
        && (low..=high).contains(&packet.source_port)
        && packet.destination == spec::mapped(becomes.destination)
}

/// Who is said to be at a port is plugged in there by the compiler's own word.
fn is_plugged(host: &Compiled, place: &Place) -> bool {
    let Place::Port { slot, port, who } = place else {
        return true;
    };
    let there = host.intent.compartments.get(slot);
    let there = there.and_then(|c| c.ports.get(port));
    let name = there.map(|p| format!("{}/{}", p.tenant, p.endpoint));
    name == *who
}

/// Sends what shows a breach; it arrives where it is said, and `honest` ones, of the same
/// spec and time, do not take it there. A packet that is said to come back comes back.
/// Whether, sent on, it ends with somebody of another compartment than it began in.
pub fn sent(host: &Compiled, honest: &Compiled, breach: &Breach) -> bool {
    let way = breach.way.as_ref().expect("a way");
    assert!(is_plugged(host, &way.from), "{breach}");
    assert!(is_plugged(host, &way.to), "{breach}");
    let (slot, open) = (breach.slot, open_for(breach));
    let packet: Option<Tuple> = breach.packet.map(Into::into);
    let (bytes, out, then) = if slot == 0 {
        let bytes = match (&way.frame[..], packet) {
            ([], packet) => frame(SWITCHES[1], SWITCHES[0], &packet.expect("a packet")),
            (head, _) => head.to_vec(),
        };
        let out = by_fabric(&host.images[&0], &way.from, &bytes);
        let then = by_fabric(&honest.images[&0], &way.from, &bytes);
        (bytes, out, Some(then))
    } else {
        let packet = packet.expect("a packet");
        let tables = running(host, &host.images[&slot], &packet, open);
        let bytes = arriving(&tables, &way.from, &packet);
        let out = by_switch(&tables.finish().unwrap(), slot, &way.from, &bytes);
        let then = honest.images.get(&slot).map(|image| {
            let tables = running(honest, image, &packet, open);
            by_switch(&tables.finish().unwrap(), slot, &way.from, &bytes)
        });
        (bytes, out, then)
    };
    assert!(same(&out.at, &way.to), "{breach}: {out:?}");
    assert!(!bytes.is_empty());
    if let Some(becomes) = &way.becomes {
        let packet = out.packet().expect("a packet");
        assert!(holds(becomes, &packet), "{breach}: {packet:?}");
    }
    // What is tracked, and what not, goes the same way at first.
    if let Some(then) = then.filter(|_| breach.class != Class::WrongState) {
        assert!(
            (&then.at, &then.frame) != (&out.at, &out.frame),
            "{breach}: {then:?}"
        );
    }
    if let Some(back) = way.back {
        returns(host, breach, way, &out, back);
    }
    crosses(host, breach, out)
}

/// Follows a packet to its end.
fn crosses(host: &Compiled, breach: &Breach, mut out: Out) -> bool {
    let slot_of = |place: &Place| match place {
        Place::Port { slot, .. } | Place::Channel { slot, .. } => Some(*slot),
        _ => None,
    };
    let from = &breach.way.as_ref().unwrap().from;
    let mut at_fabric = breach.slot != 0;
    // What comes to a switch by the fabric is another's.
    let foreign = at_fabric && matches!(from, Place::Channel { .. });
    let begun = slot_of(from).filter(|_| !foreign);
    // Bound: a packet crosses at most once.
    for _ in 0..4 {
        out = match &out.at {
            Place::Port { slot, .. } => return begun != Some(*slot),
            Place::Channel { .. } if at_fabric => by_fabric(&host.images[&0], &out.at, &out.frame),
            Place::Channel { slot, .. } => match host.images.get(slot) {
                None => return false,
                Some(image) => {
                    let none = Tuple::default();
                    let tables = running(host, image, &none, Open::Everybodys);
                    by_switch(&tables.finish().unwrap(), *slot, &out.at, &out.frame)
                }
            },
            _ => return false,
        };
        at_fabric = !at_fabric;
    }
    panic!("{breach} goes on and on")
}

/// Why a switch sends a packet that comes back no third time: its sender is who it would
/// go to, or not whose source it has; it comes from outside and would go outside, or has a
/// family that nobody speaks there.
const AGAIN: [DropReason; 4] = [
    DropReason::Hairpin,
    DropReason::SourceIp,
    DropReason::Martian,
    DropReason::EtherType,
];

/// Who got the packet sends it on by the only way that it has: it is at a switch of the host
/// again, with a hop less to go, and that switch sends it no third time.
fn returns(host: &Compiled, breach: &Breach, way: &Way, out: &Out, back: u32) {
    let first = out.hop_limit();
    assert_eq!(first, 63, "{breach}");
    let packet: Tuple = breach.packet.unwrap().into();
    let (to, from): (&[u8], &[u8]) = (&out.frame[..6], &out.frame[6..12]);
    let (at, bytes) = match &way.to {
        Place::Port { .. } => {
            // The router's gateway is who it came from.
            let rest = out.frame[12..].iter();
            let bytes = from.iter().chain(to).chain(rest).copied().collect();
            (way.to.clone(), bytes)
        }
        channel => {
            let uplink = by_fabric(&host.images[&0], channel, &out.frame);
            assert!(
                matches!(uplink.at, Place::Uplink { .. }),
                "{breach}: {uplink:?}"
            );
            let again = by_fabric(&host.images[&0], &uplink.at, &out.frame);
            (again.at, again.frame)
        }
    };
    let slot = match &at {
        Place::Port { slot, .. } | Place::Channel { slot, .. } => *slot,
        other => panic!("{breach}: {other}"),
    };
    assert_eq!(slot, back, "{breach}");
    let tables = running(host, &host.images[&slot], &packet, Open::Everybodys);
    let end = by_switch(&tables.finish().unwrap(), slot, &at, &bytes);
    let why = end.why.unwrap_or_else(|| panic!("{breach}: {end:?}"));
    assert!(AGAIN.contains(&why), "{breach}: {end:?}");
}

/// That nobody can send what shows a breach, by another reckoning than the verifier's.
pub fn nobodys(host: &Compiled, honest: &Compiled, breach: &Breach) {
    match open_for(breach) {
        Open::Senders | Open::Receivers => no_host_notices(host, honest, breach),
        _ if breach.path.contains("leads to that switch with that tag") => {
            let fabric = |image: &[u8]| {
                let memory = Aligned::copy_of(image);
                FabricImage::map(memory.as_ref()).unwrap().decode()
            };
            let entries = fabric(&host.images[&0]).forwards;
            let brought = entries.iter().filter(|f| f.target == breach.slot);
            let brought: Vec<u16> = brought.map(|f| f.out_tag).collect();
            let own = decoded(&host.images[&breach.slot]).crossings;
            assert!(own.iter().any(|c| !brought.contains(&c.tag)), "{breach}");
        }
        _ if breach.slot == 0 => dead_entries(host, honest, breach),
        _ => {}
    }
}

/// Entries that are not the compiler's take no frame anywhere.
fn dead_entries(host: &Compiled, honest: &Compiled, breach: &Breach) {
    let decoded = |host: &Compiled| {
        let memory = Aligned::copy_of(&host.images[&0]);
        FabricImage::map(memory.as_ref()).unwrap().decode()
    };
    let (planted, before) = (decoded(host), decoded(honest));
    let new = planted
        .forwards
        .iter()
        .filter(|f| !before.forwards.contains(f));
    for entry in new {
        let uplink = (planted.channels.iter())
            .any(|c| c.slot == entry.ingress && c.kind == image::fabric::CHANNEL_UPLINK);
        let from = match uplink {
            true => Place::Uplink {
                slot: entry.ingress,
            },
            false => Place::Channel {
                slot: entry.ingress,
                tag: entry.tag,
            },
        };
        let packet = Tuple {
            source: spec::mapped("10.1.1.10".parse().unwrap()),
            destination: spec::mapped("198.51.100.1".parse().unwrap()),
            source_port: 1024,
            destination_port: 80,
            protocol: 6,
        };
        let out = by_fabric(
            &host.images[&0],
            &from,
            &frame(SWITCHES[1], SWITCHES[0], &packet),
        );
        assert!(matches!(out.at, Place::Dropped { .. }), "{breach}: {out:?}");
    }
}

/// Between addresses that endpoints were given, and some outside, the table does with TCP,
/// UDP and pings what the honest one does.
fn no_host_notices(host: &Compiled, honest: &Compiled, breach: &Breach) {
    let (tenant, endpoint) = breach.endpoint.as_ref().unwrap().split_once('/').unwrap();
    let table = |host: &Compiled| {
        let image = decoded(&host.images[&breach.slot]);
        let id = host.ids.tenants[tenant].endpoints[endpoint].id;
        let own = image.endpoints.iter().find(|e| e.id == id).unwrap();
        let at = match breach.what.contains("egress") {
            true => own.egress,
            false => own.ingress,
        };
        image.rule_tables[at as usize].clone()
    };
    let tables = [table(host), table(honest)];
    let given = |of: &dyn Fn(&str) -> bool| -> Vec<[u8; 16]> {
        let ports = host.intent.ports().map(|(_, port)| port);
        let ports = ports.filter(|p| p.tenant == tenant && of(&p.endpoint));
        let all = ports.flat_map(|p| p.addresses.iter().map(|a| spec::mapped(*a)));
        all.collect()
    };
    let own = given(&|name| name == endpoint);
    let mut peers = given(&|name| name != endpoint);
    if breach.what.contains("egress") {
        for outside in [
            "8.8.8.8",
            "203.0.113.9",
            "198.51.100.1",
            "2001:db8:7::1",
            "2a00::1",
        ] {
            peers.push(spec::mapped(outside.parse().unwrap()));
        }
    }
    let rules = tables.iter().flat_map(|table| &table.rules);
    let ports: std::collections::BTreeSet<u16> = rules
        .flat_map(|rule| {
            let (first, last) = rule.region.destination_port.clone().into_inner();
            [first.max(1), last, last.saturating_add(1)]
        })
        .chain([1, 80, u16::MAX])
        .collect();
    for mine in &own {
        for theirs in &peers {
            if unmapped(mine).is_some() != unmapped(theirs).is_some() {
                continue;
            }
            let (source, destination) = match breach.what.contains("egress") {
                true => (*mine, *theirs),
                false => (*theirs, *mine),
            };
            let tcp_udp = ports
                .iter()
                .flat_map(|port| [(6, 1024, *port), (17, 1024, *port)]);
            for (protocol, source_port, destination_port) in tcp_udp {
                let packet = Tuple {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                };
                let [does, did] = tables.each_ref().map(|table| table.judge(&packet).action);
                // Another breach may say that it is another table altogether.
                let denied = |action| action == Action::Deny;
                assert_eq!(denied(does), denied(did), "{breach}: {packet:?}");
            }
        }
    }
}
