//! Subnets in VLANs of an uplink: planted breaches of the fabric's table and of images, each
//! by one thing.

use super::hosts::{Compiled, read};
use crate::{Breach, Class, Known, prove};
use image::fabric::{CHANNEL_UPLINK, FORWARD_SEGMENT, FORWARD_UNICAST, Forward};
use image::{Aligned, CompartmentImage, FabricImage, FabricTables};

/// Red's web is in VLAN 120 and its way outside in 100; blue's web, of the same prefixes, is in
/// 121; green has neither.
fn text(reach: &str) -> String {
    format!(
        "version: 1
uplinks: [{{name: wan0, interface: eth1}}]
tenants:
  - name: red
    subnets:
      - {{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64'], segment: {{technology: vlan, uplink: wan0, vlan: 120}}}}
      - {{name: app, prefixes: [10.1.2.0/24]}}
    endpoints:
      - {{name: a, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10']}}
      - {{name: b, subnet: web, addresses: [10.1.1.11, 'fd00:1:1::11']}}
      - {{name: c, subnet: app}}
    outside: [{{uplink: wan0, vlan: 100, address: [192.0.2.10/24], gateway: [192.0.2.1]}}]
    policy:
      default: {{inside: deny}}
      rules: [{{name: mdns, action: allow, from: {{endpoint: b}}, to: {{prefix: [224.0.0.251/32]}}, protocol: udp, ports: [5353]}}, {{name: there, action: allow, from: {{endpoint: a}}, to: {{prefix: [10.1.1.64/26]}}, protocol: tcp, ports: [80]}}]
      {reach}
  - name: blue
    subnets: [{{name: web, prefixes: [10.1.1.0/24, 'fd00:1:1::/64'], segment: {{technology: vlan, uplink: wan0, vlan: 121}}}}]
    endpoints: [{{name: x, subnet: web}}, {{name: y, subnet: web}}]
  - name: green
    subnets: [{{name: web, prefixes: [10.1.1.0/24]}}]
    endpoints: [{{name: z, subnet: web}}]
    outside: [{{uplink: wan0, address: [192.0.2.12/24], gateway: [192.0.2.1]}}]
"
    )
}

fn host() -> Compiled {
    Compiled::new(read(&text("")))
}

fn tables(host: &Compiled) -> FabricTables {
    let memory = Aligned::copy_of(&host.images[&0]);
    FabricImage::map(memory.as_ref()).unwrap().decode()
}

/// What is found with other tables of the fabric; `None`: they are no tables at all.
fn found(edit: impl FnOnce(&mut FabricTables)) -> Option<Vec<Breach>> {
    let mut host = host();
    let mut tables = tables(&host);
    edit(&mut tables);
    let bytes = tables.finish().ok()?;
    host.images.insert(0, bytes);
    let all = host.breaches();
    // And it is found whoever was taken over.
    for slot in host.intent.compartments.keys() {
        let but = host.but_for(Some(*slot));
        assert_eq!(but.is_empty(), all.is_empty(), "without {slot}");
    }
    Some(all)
}

fn is_entry(of: &Breach) -> bool {
    of.class == Class::FabricEntry
}

#[test]
fn an_honest_host_is_proved_whoever_is_taken_over() {
    let host = host();
    assert!(host.breaches().is_empty(), "{:?}", host.breaches());
    for slot in host.intent.compartments.keys() {
        assert!(host.but_for(Some(*slot)).is_empty());
    }
    let entries = tables(&host).forwards;
    let joined = entries.iter().filter(|e| e.kind == FORWARD_SEGMENT);
    assert_eq!(joined.count(), 4);
}

#[test]
fn each_entry_of_a_segment_made_another_is_found() {
    let host = host();
    let all = tables(&host);
    let uplinks: Vec<u32> = (all.channels.iter())
        .filter(|c| c.kind == CHANNEL_UPLINK)
        .map(|c| c.slot)
        .collect();
    let slots: Vec<u32> = all.channels.iter().map(|c| c.slot).collect();
    let stations: Vec<[u8; 6]> = (all.forwards.iter())
        .filter(|e| uplinks.contains(&e.ingress) && e.mac[0] & 1 == 0)
        .map(|e| e.mac)
        .collect();
    let mut tried = 0;
    for (at, entry) in all.forwards.iter().enumerate() {
        let outward = entry.kind == FORWARD_SEGMENT;
        let inward = uplinks.contains(&entry.ingress) && [120, 121].contains(&entry.tag);
        if !outward && !inward {
            continue;
        }
        let mut others: Vec<Forward> = Vec::new();
        for vlan in [120, 121, 100, 7, 0] {
            let mut other = *entry;
            *if outward {
                &mut other.out_tag
            } else {
                &mut other.tag
            } = vlan;
            others.push(other);
        }
        for slot in &slots {
            let mut other = *entry;
            *if outward {
                &mut other.ingress
            } else {
                &mut other.target
            } = *slot;
            others.push(other);
        }
        // Each tag that there is, and one that there is not.
        for tag in 0..8 {
            let mut other = *entry;
            *if outward {
                &mut other.tag
            } else {
                &mut other.out_tag
            } = tag;
            others.push(other);
        }
        for mac in stations
            .iter()
            .copied()
            .chain([[2, 7, 7, 7, 7, 7], [0xff; 6], [0; 6]])
        {
            others.push(Forward { mac, ..*entry });
        }
        let kind = if outward {
            FORWARD_UNICAST
        } else {
            FORWARD_SEGMENT
        };
        others.push(Forward { kind, ..*entry });
        for other in others.into_iter().filter(|other| other != entry) {
            // In the place of it, and beside it.
            for beside in [false, true] {
                let said = found(|tables| match beside {
                    true => tables.forwards.push(other),
                    false => tables.forwards[at] = other,
                });
                let Some(said) = said else { continue };
                assert!(
                    said.iter().any(is_entry),
                    "{entry:?} as {other:?}: {said:?}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn a_way_outside_is_no_segment() {
    let host = host();
    let all = tables(&host);
    let mut tried = 0;
    for (at, entry) in all.forwards.iter().enumerate() {
        let outward = all
            .channels
            .iter()
            .any(|c| c.slot == entry.target && c.kind == CHANNEL_UPLINK);
        if entry.kind != FORWARD_UNICAST || !outward {
            continue;
        }
        // Without templates: whatever is from its MAC would leave.
        let said = found(|tables| tables.forwards[at].kind = FORWARD_SEGMENT);
        if let Some(said) = said {
            assert!(said.iter().any(is_entry), "{entry:?}: {said:?}");
            tried += 1;
        }
    }
    // Red's: green's has no VLAN, and is no table so.
    assert!(tried > 0);
}

#[test]
fn another_tag_in_an_image_is_found() {
    for (tenant, subnet) in [("red", 0), ("red", 1), ("blue", 0), ("green", 0)] {
        let mut host = host();
        let slot = host.slot_of(tenant);
        let memory = Aligned::copy_of(&host.images[&slot]);
        let tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
        for tag in [0, 77, tables.subnets[subnet].segment ^ 3] {
            let mut other = tables.clone();
            if other.subnets[subnet].segment == tag {
                continue;
            }
            other.subnets[subnet].segment = tag;
            let Ok(bytes) = other.finish() else { continue };
            host.images.insert(slot, bytes);
            let said = host.breaches();
            let wrong = |b: &Breach| b.class == Class::WrongPlace && b.slot == slot;
            assert!(said.iter().any(wrong), "{tenant} {tag}: {said:?}");
        }
    }
}

#[test]
fn a_vlan_of_two_is_found_though_the_spec_says_so() {
    for vlan in [120, 100] {
        let mut spec = read(&text(""));
        let subnet = &mut spec.document.tenants[1].subnets[0];
        let Some(spec::Segment::Vlan(segment)) = subnet.segment.as_mut().map(|s| &mut s.value)
        else {
            panic!()
        };
        segment.vlan.value = vlan;
        let ids = policy::Ids::assign(&spec, &policy::Ids::default());
        // Stations are others', so that there is a table.
        let Ok(_) = policy::compile(&spec, &ids, super::hosts::NOW) else {
            continue;
        };
        let said = Compiled::new(spec).breaches();
        let found = said
            .iter()
            .any(|b| b.what.contains("stands for two things"));
        assert!(found, "{vlan}: {said:?}");
    }
}

#[test]
fn a_table_that_was_proved_is_looked_at_again_where_a_station_is_another() {
    let old = host();
    let mut known = Known::default();
    assert!(prove(&old.claim(), &mut known).is_ok());
    let other = text("").replace(
        "{name: b, subnet: web,",
        "{name: b, subnet: web, mac: '02:00:00:00:00:77',",
    );
    let mut new = Compiled::with(read(&other), &old.ids);
    assert!(prove(&new.claim(), &mut Known::default()).is_ok());
    new.images.insert(0, old.images[&0].clone());
    let said = prove(&new.claim(), &mut known).unwrap_err();
    assert!(said.iter().any(is_entry), "{said:?}");
}

#[test]
fn what_is_asked_to_reach_nobody_beyond_reaches_nobody() {
    let ask = |what: &str| {
        let reach = format!("reach: [{what}]");
        Compiled::new(read(&text(&reach))).breaches()
    };
    // Port 80 there is allowed to a alone, and nothing from there.
    for (holds, what) in [
        (
            false,
            "{from: {endpoint: a}, to: {prefix: [10.1.1.64/26]}, allowed: no}",
        ),
        (
            true,
            "{from: {endpoint: a}, to: {prefix: [10.1.1.128/26]}, allowed: no}",
        ),
        (
            true,
            "{from: {endpoint: b}, to: {subnet: web}, allowed: no}",
        ),
        (
            true,
            "{from: {prefix: [10.1.1.64/26]}, to: {endpoint: a}, allowed: no}",
        ),
        (
            true,
            "{from: {endpoint: a}, to: {prefix: [10.1.1.64/26]}, protocol: tcp, ports: [80], allowed: yes}",
        ),
        (
            false,
            "{from: {endpoint: b}, to: {prefix: [10.1.1.64/26]}, protocol: tcp, ports: [80], allowed: yes}",
        ),
        (
            false,
            "{from: {prefix: [10.1.1.64/26]}, to: {endpoint: a}, protocol: tcp, ports: [80], allowed: yes}",
        ),
        // What is for a group is heard there.
        (
            false,
            "{from: {endpoint: b}, to: {prefix: [224.0.0.0/4]}, allowed: no}",
        ),
        (
            true,
            "{from: {endpoint: b}, to: {prefix: [224.0.0.0/4]}, protocol: tcp, allowed: no}",
        ),
        // There is no way from another subnet.
        (
            false,
            "{from: {endpoint: c}, to: {prefix: [10.1.1.64/26]}, protocol: tcp, ports: [80], allowed: yes}",
        ),
    ] {
        let said = ask(what);
        assert_eq!(said.is_empty(), holds, "{what}: {said:?}");
        assert!(said.iter().all(|b| b.class == Class::Reach), "{said:?}");
    }
}

#[test]
fn what_passes_beyond_against_the_rules_is_found_and_passes() {
    let rule = "action: allow, from: {endpoint: a}, to: {prefix: [10.1.1.64/26]}";
    let honest = host();
    let wider = [
        // To more of them, to another port, and from there.
        (
            rule,
            "action: allow, from: {endpoint: a}, to: {prefix: [10.1.1.64/26, 10.1.1.128/25]}",
        ),
        (
            "protocol: tcp, ports: [80]}]",
            "protocol: tcp, ports: [80-81]}]",
        ),
        (
            rule,
            "action: allow, to: {endpoint: a}, from: {prefix: [10.1.1.64/26]}",
        ),
    ];
    for (was, is) in wider {
        let text = text("");
        assert!(text.contains(was), "{was}");
        let mut planted = Compiled::with(read(&text.replace(was, is)), &honest.ids);
        planted.spec = crate::Read::new(read(&text));
        let said = planted.breaches();
        let wide = said.iter().find(|b| b.class == Class::WiderRule);
        let wide = wide.unwrap_or_else(|| panic!("{is}: {said:?}"));
        assert!(wide.way.is_some(), "{wide}");
        super::replay::sent(&planted, &honest, wide);
    }
}

#[test]
fn what_reach_finds_beyond_comes_out_there() {
    let reach = "reach: [{from: {endpoint: a}, to: {prefix: [10.1.1.64/26]}, allowed: no}]";
    let host = Compiled::new(read(&text(reach)));
    let said = host.breaches();
    let [only] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(
        only.what.contains("to whoever is beyond its subnet"),
        "{only}"
    );
    // By tables that let nothing pass it does not.
    let none = text("").replace(
        "action: allow, from: {endpoint: a}",
        "action: deny, from: {endpoint: a}",
    );
    let closed = Compiled::with(read(&none), &host.ids);
    super::replay::sent(&host, &closed, only);
}
