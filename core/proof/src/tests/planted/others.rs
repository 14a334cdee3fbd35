//! Planted beside a liar; and of each other class one.

use super::*;
use image::compartment::NONE;
use image::fabric::{FORWARD_UNICAST, Forward};
use image::rules::{Action, Region, Rule};
use std::collections::BTreeMap;

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
        classes.insert(class, has(&found(&host).breaches, &[class]));
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
