//! Each check alone: one fault, one sentence about it.

use super::hosts::{Compiled, read, text};
use crate::{Known, prove};
use image::compartment::{CROSSING_OFFERER, NONE};
use image::fabric::{CHANNEL_COMPARTMENT, Channel, FORWARD_UNICAST, Forward};
use image::rules::{Action, Region, Rule};
use image::{Aligned, CompartmentImage, CompartmentTables, FabricImage, FabricTables};

fn honest() -> Compiled {
    let rail = "action: deny, to: {prefix: 198.51.100.0/24}, protocol: tcp, ports: [25]".to_owned();
    Compiled::new(read(&text(&[], &[rail], "deny", "2027-01-01")))
}

/// What is said of a host whose red has other tables.
fn said(edit: impl FnOnce(&mut CompartmentTables)) -> Vec<String> {
    let mut host = honest();
    let slot = host.slot_of("red");
    let memory = Aligned::copy_of(&host.images[&slot]);
    let mut tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
    edit(&mut tables);
    host.images.insert(slot, tables.finish().unwrap());
    host.breaches().iter().map(ToString::to_string).collect()
}

fn said_of_fabric(edit: impl FnOnce(&mut FabricTables, &Compiled)) -> Vec<String> {
    let mut host = honest();
    let memory = Aligned::copy_of(&host.images[&0]);
    let mut tables = FabricImage::map(memory.as_ref()).unwrap().decode();
    edit(&mut tables, &host);
    host.images.insert(0, tables.finish().unwrap());
    host.breaches().iter().map(ToString::to_string).collect()
}

#[track_caller]
fn holds(said: &[String], words: &str) {
    assert!(said.iter().any(|s| s.contains(words)), "{words}: {said:?}");
}

fn entry(ingress: u32, tag: u16, target: u32, out_tag: u16) -> Forward {
    Forward {
        ingress,
        tag,
        mac: [0; 6],
        target,
        out_tag,
        kind: FORWARD_UNICAST,
    }
}

#[test]
fn of_the_fabric() {
    let more = said_of_fabric(|t, _| {
        t.channels.push(Channel {
            id: 900,
            slot: 900,
            kind: CHANNEL_COMPARTMENT,
            weight: 1,
            ..Channel::default()
        });
    });
    holds(&more, "its channels");
    let foreign = said_of_fabric(|t, host| {
        let uplink = t
            .channels
            .iter()
            .find(|c| c.kind != CHANNEL_COMPARTMENT)
            .unwrap()
            .slot;
        t.forwards
            .push(entry(host.slot_of("green"), 30_000, uplink, 0));
    });
    holds(&foreign, "the tag is no attachment of it there");
    let other = said_of_fabric(|t, host| {
        t.forwards.push(entry(
            host.slot_of("red"),
            30_000,
            host.slot_of("blue"),
            30_000,
        ));
    });
    holds(&other, "the tag is no live agreement's of the two");
    let changed = said_of_fabric(|t, host| {
        let (red, blue) = (host.slot_of("red"), host.slot_of("blue"));
        let mut all = t.forwards.iter_mut();
        all.find(|f| (f.ingress, f.target) == (red, blue))
            .unwrap()
            .out_tag = 30_000;
    });
    holds(&changed, "it gets another tag on the way");
}

#[test]
fn of_a_compartment() {
    let server = said(|t| {
        let crossing = t
            .crossings
            .iter_mut()
            .find(|c| c.role == CROSSING_OFFERER)
            .unwrap();
        let four = wire::address::mapped(crossing.address4);
        let six = crossing.address6;
        crossing.endpoint ^= 1;
        let at = crossing.endpoint;
        t.addresses.retain(|(_, a)| *a != four && *a != six);
        t.addresses.extend([(at, four), (at, six)]);
    });
    holds(&server, "leads to another endpoint");
    holds(&server, "has other addresses");
    let rail = said(|t| {
        for table in &mut t.rule_tables {
            let rule = Rule {
                region: Region::ALL,
                action: Action::Allow,
                log: false,
                id: 1,
            };
            table.rules.insert(0, rule);
        }
    });
    holds(&rail, "guardrail: ");
    holds(
        &said(|t| t.subnets[0].flags ^= image::compartment::SUBNET_SLAAC),
        "the subnet web of red",
    );
    holds(
        &said(|t| t.attachments[0].tag = 30_000),
        "an attachment has tag 30000",
    );
    holds(
        &said(|t| {
            let last = t.nat_blocks.len() - 1;
            t.nat_blocks[last].1 = NONE;
        }),
        "blocks of ports behind attachment",
    );
    holds(
        &said(|t| t.endpoints[0].ingress = NONE),
        "everything passes",
    );
    let more = said(|t| {
        let mut one = t.endpoints[0];
        one.id = 4000;
        one.slot = 20;
        one.mac[5] ^= 0x55;
        let at = t.endpoints.len() as u32;
        t.endpoints.push(one);
        t.members.push((one.subnet, at));
    });
    holds(&more, "nobody asked for");
}

#[test]
fn of_numbers_and_what_is_known() {
    let mut host = honest();
    let tag = host.ids.agreements["blue/web/red"].tag;
    let text = String::from_utf8(host.numbers.clone()).unwrap();
    let other = host.ids.agreements["red/mine/blue"].tag;
    host.numbers = text
        .replace(&format!("\"tag\":{tag},"), &format!("\"tag\":{other},"))
        .into_bytes();
    let said: Vec<String> = host.breaches().iter().map(ToString::to_string).collect();
    holds(&said, "stands for two things");
    // A fabric that was proved is asked again when what it is for has changed.
    let host = honest();
    let mut known = Known::default();
    prove(&host.claim(), &mut known).expect("honest");
    let mut late = host.claim();
    late.now = 1_798_761_600;
    let breaches = prove(&late, &mut known).expect_err("it has ended");
    assert!(breaches.iter().any(|b| b.slot == 0));
}
