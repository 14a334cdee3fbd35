//! Agreements of prefixes: honest ones hold, and what is planted in their sides is found.

use super::hosts::{Compiled, NOW, read};
use super::replay::sent;
use crate::{Breach, Class};
use image::compartment::{CROSSING_BOTH, CROSSING_ROUTED, RoutedPrefix};
use image::{Aligned, CompartmentImage, CompartmentTables};
use std::collections::BTreeMap;
use wire::address::in_prefix;

fn text(edit: impl Fn(&str) -> String) -> String {
    let path = format!("{}/../../examples/routed.yaml", env!("CARGO_MANIFEST_DIR"));
    edit(&std::fs::read_to_string(path).expect("example"))
}

fn host(edit: impl Fn(&str) -> String) -> Compiled {
    let host = Compiled::new(read(&text(edit)));
    let found = host.breaches();
    assert!(found.is_empty(), "{}", found[0]);
    host
}

fn plain(text: &str) -> String {
    text.to_owned()
}

fn both(text: &str) -> String {
    text.replace("to: [blue]", "to: [blue]\n        both: yes")
        .replace("service: lan", "service: lan\n        both: yes")
}

fn plant(host: &mut Compiled, tenant: &str, edit: impl FnOnce(&mut CompartmentTables)) {
    let slot = host.slot_of(tenant);
    let memory = Aligned::copy_of(&host.images[&slot]);
    let mut tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
    edit(&mut tables);
    host.images.insert(slot, tables.finish().unwrap());
}

fn class(breaches: &[Breach], class: Class) -> &Breach {
    let found = breaches.iter().find(|b| b.class == class);
    found.unwrap_or_else(|| panic!("{class:?}: {breaches:?}"))
}

#[test]
fn honest_ones_hold_with_either_switch_taken_over() {
    let ports = |text: &str| {
        text.replace(
            "to: [blue]",
            "to: [blue]\n        protocol: tcp\n        ports: [80, 443]",
        )
    };
    let open = |text: &str| {
        both(text).replace(
            "    accepts:\n",
            "    policy: {default: allow}\n    accepts:\n",
        )
    };
    let edits: [&dyn Fn(&str) -> String; 4] = [&plain, &both, &ports, &open];
    for edit in edits {
        let host = host(edit);
        for tenant in ["red", "blue"] {
            let found = host.but_for(Some(host.slot_of(tenant)));
            assert!(found.is_empty(), "{}", found[0]);
        }
    }
}

#[test]
fn wider_prefixes_are_found_with_a_packet() {
    let (mut planted, mut delivered) = (0, 0);
    for seed in 0..64usize {
        let mut host = host(if seed % 2 == 0 { plain } else { both });
        let tenant = ["red", "blue"][seed / 2 % 2];
        let wanted = {
            let slot = host.slot_of(tenant);
            let memory = Aligned::copy_of(&host.images[&slot]);
            CompartmentImage::map(memory.as_ref())
                .unwrap()
                .decode()
                .routed_prefixes
        };
        let at = seed / 4 % wanted.len();
        let shorter = 1 + (seed / 16) as u32;
        let mut wider = wanted[at].1;
        plant(&mut host, tenant, |tables| {
            wider.len -= shorter;
            let mask = u128::MAX << (128 - wider.len);
            wider.prefix = (u128::from_be_bytes(wider.prefix) & mask).to_be_bytes();
            tables.routed_prefixes[at].1 = wider;
        });
        let breaches = host.breaches();
        let breach = class(&breaches, Class::WrongPrefix);
        assert_eq!(breach.slot, host.slot_of(tenant));
        assert!(
            breach
                .rules
                .iter()
                .any(|r| r.name == "offer lan" && r.line > 1),
            "{breach}"
        );
        // Its packet is one that this image takes, and the agreed one does not.
        let packet: wire::Tuple = breach.packet.expect("a packet").into();
        let agreed = wanted.iter().filter(|(_, p)| p.theirs == wider.theirs);
        let ends = [packet.source, packet.destination].into_iter();
        let mut others = ends.filter(|address| {
            let is = |p: &RoutedPrefix| in_prefix(address, &p.prefix, p.len);
            is(&wider) && !agreed.clone().any(|(_, p)| is(p))
        });
        assert!(others.next().is_some(), "{breach}");
        let honest = self::host(if seed % 2 == 0 { plain } else { both });
        if breach.way.is_some() {
            delivered += u64::from(sent(&host, &honest, breach));
        }
        // The receiver alone says so, also with the other switch taken over.
        let other = if tenant == "red" { "blue" } else { "red" };
        class(&host.but_for(Some(host.slot_of(other))), Class::WrongPrefix);
        // A liar's own image is no evidence.
        let liar = host.but_for(Some(host.slot_of(tenant)));
        assert!(liar.is_empty(), "{liar:?}");
        planted += 1;
    }
    assert_eq!((planted, delivered), (64, 28));
}

#[test]
fn who_begins_what_is_for_and_whose_it_is_must_be_as_agreed() {
    type Plant = fn(&mut CompartmentTables);
    let plants: [(&str, Class, Plant); 5] = [
        ("red", Class::WrongPrefix, |t| {
            t.crossings[0].flags |= CROSSING_BOTH
        }),
        ("blue", Class::WrongPrefix, |t| {
            t.crossings[0].flags |= CROSSING_BOTH
        }),
        ("red", Class::WrongTag, |t| t.crossings[0].tag = 30_000),
        ("red", Class::StaleAgreement, |t| {
            t.crossings[0].agreement = 77
        }),
        ("red", Class::WrongService, |t| t.service_ports.clear()),
    ];
    let ports = |text: &str| {
        text.replace(
            "to: [blue]",
            "to: [blue]\n        protocol: tcp\n        ports: [443]",
        )
    };
    for (tenant, is, edit) in plants {
        let mut host = host(ports);
        plant(&mut host, tenant, edit);
        let breaches = host.breaches();
        let breach = class(&breaches, is);
        assert_eq!(breach.slot, host.slot_of(tenant), "{breach}");
    }
    // Only one way is agreed, and both are let begin: a packet shows it.
    let mut one = host(plain);
    plant(&mut one, "blue", |t| t.crossings[0].flags |= CROSSING_BOTH);
    let breaches = one.breaches();
    assert!(class(&breaches, Class::WrongPrefix).packet.is_some());
    // A service in place of prefixes.
    plant(&mut one, "blue", |t| {
        t.routed_prefixes.clear();
        t.crossings[0].flags &= !(CROSSING_ROUTED | CROSSING_BOTH);
        t.crossings[0].address4 = [10, 1, 1, 10];
    });
    let breaches = one.breaches();
    class(&breaches, Class::WrongPrefix);
    class(&breaches, Class::WrongTranslation);
}

#[test]
fn what_is_over_is_stale_at_either_side_and_in_the_fabric() {
    let with = |until: &str| {
        let until = format!("to: [blue]\n        until: {until}");
        text(|text| text.replace("to: [blue]", &until))
    };
    let mut host = Compiled::new(read(&with("2027-01-01")));
    assert!(host.breaches().is_empty());
    host.now = NOW + 366 * 86_400;
    let breaches = host.breaches();
    let mut classes: BTreeMap<u32, Vec<Class>> = BTreeMap::new();
    for breach in &breaches {
        classes.entry(breach.slot).or_default().push(breach.class);
    }
    assert!(classes[&0].contains(&Class::FabricEntry), "{breaches:?}");
    for tenant in ["red", "blue"] {
        let own = &classes[&host.slot_of(tenant)];
        assert!(own.contains(&Class::StaleAgreement), "{breaches:?}");
        assert!(own.contains(&Class::WrongRoute), "{breaches:?}");
    }
}

#[test]
fn reach_is_asked_across_what_is_routed() {
    let asks = |reach: &str| {
        let policy = format!(
            "    policy:\n      default: {{inbound: allow}}\n      reach: [{reach}]\n    accepts:\n"
        );
        move |text: &str| both(text).replace("    accepts:\n", &policy)
    };
    for holds in [
        "{from: {endpoint: app1}, to: {agreement: reds-lan}, allowed: yes}",
        "{from: {agreement: reds-lan}, to: {endpoint: app1}, allowed: yes}",
        "{from: {endpoint: other}, to: {agreement: reds-lan}, allowed: no}",
        "{from: {agreement: reds-lan}, to: {endpoint: other}, allowed: no}",
    ] {
        let host = Compiled::new(read(&text(asks(holds))));
        let found = host.breaches();
        assert!(found.is_empty(), "{holds}: {}", found[0]);
        let turned = if holds.contains("yes") {
            holds.replace("yes", "no")
        } else {
            holds.replace("allowed: no", "allowed: yes")
        };
        let host = Compiled::new(read(&text(asks(&turned))));
        class(&host.breaches(), Class::Reach);
    }
}

#[test]
fn two_of_one_compartment_are_told_apart_by_their_tags() {
    let near = |text: &str| {
        ["red", "blue"].iter().fold(text.to_owned(), |text, name| {
            let line = format!("  - name: {name}\n");
            text.replace(&line, &format!("{line}    placement: {{per: host}}\n"))
        })
    };
    let mut service = std::fs::read_to_string(format!(
        "{}/../../examples/agreement.yaml",
        env!("CARGO_MANIFEST_DIR")
    ))
    .expect("example");
    service = near(&service);
    let found = Compiled::new(read(&service)).breaches();
    assert!(found.is_empty(), "{}", found[0]);

    let honest = || host(|text| near(&both(text)));
    let slot = honest().slot_of("red");
    assert_eq!(slot, honest().slot_of("blue"));
    // Each takes the other's tag.
    let mut swapped = honest();
    plant(&mut swapped, "red", |t| {
        let tag = t.crossings[0].tag;
        t.crossings[0].tag = t.crossings[1].tag;
        t.crossings[1].tag = tag;
    });
    class(&swapped.breaches(), Class::WrongTag);
    // What comes back has a tag that is nobody's.
    let mut fabric = honest();
    let memory = Aligned::copy_of(&fabric.images[&0]);
    let mut tables = image::FabricImage::map(memory.as_ref()).unwrap().decode();
    tables.forwards[0].out_tag = 30_000;
    fabric.images.insert(0, tables.finish().unwrap());
    assert_eq!(class(&fabric.breaches(), Class::WrongTag).slot, 0);
    // One number for both sides.
    let mut one = honest();
    let ids = &one.ids.agreements["red/lan/blue"];
    let (tag, back) = (ids.tag, format!("\"back\":{}", ids.back));
    let text = String::from_utf8(one.numbers.clone()).unwrap();
    assert!(text.contains(&back), "{text}");
    for other in [0, tag] {
        let other = text.replace(&back, &format!("\"back\":{other}"));
        one.numbers = other.into_bytes();
        class(&one.breaches(), Class::WrongTag);
    }
}
