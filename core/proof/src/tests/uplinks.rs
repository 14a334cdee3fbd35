//! Templates toward an uplink that are too wide, each by one thing.

use super::hosts::{Compiled, read, text};
use crate::Class;
use image::fabric::{Bound, FORWARD_UNICAST, Forward, Template};
use image::{Aligned, FabricImage, FabricTables};

/// A host whose fabric has other tables. Nothing: none of them has anything to change.
fn breaches(edit: impl FnOnce(&mut FabricTables) -> bool) -> Option<Vec<(Class, String)>> {
    let mut host = Compiled::new(read(&text(&[], &[], "deny", "2027-01-01")));
    let memory = Aligned::copy_of(&host.images[&0]);
    let mut tables = FabricImage::map(memory.as_ref()).unwrap().decode();
    if !edit(&mut tables) {
        return None;
    }
    host.images.insert(0, tables.finish().unwrap());
    let all = host.breaches();
    Some(all.into_iter().map(|b| (b.class, b.what)).collect())
}

/// That each template of this kind, made wider so, is found alone. Returns how many.
fn wider(of: fn(&Template) -> bool, widen: impl Fn(&mut Template)) -> usize {
    let mut tried = 0;
    loop {
        let said = breaches(|tables| {
            let mut all = tables.templates.iter_mut().map(|t| &mut t.1);
            let Some(template) = all.by_ref().filter(|t| of(t)).nth(tried) else {
                return false;
            };
            widen(template);
            true
        });
        let Some(said) = said else { return tried };
        let [(Class::FabricEntry, what)] = &said[..] else {
            panic!("of template {tried}: {said:?}")
        };
        assert!(what.contains("say what is not its own"), "{what}");
        tried += 1;
    }
}

fn kind(template: &Template) -> (u16, u8) {
    let [a, b] = [template.value[12], template.value[13]];
    (u16::from_be_bytes([a, b]), template.value[54])
}
fn four(template: &Template) -> bool {
    kind(template).0 == 0x0800
}
fn udp(template: &Template) -> bool {
    four(template) && template.value[23] == 17
}
fn icmp(template: &Template) -> bool {
    four(template) && template.value[23] == 1
}
fn six(template: &Template) -> bool {
    kind(template).0 == 0x86dd && template.mask[20] == 0
}
fn icmp6(template: &Template) -> bool {
    kind(template).0 == 0x86dd && template.mask[20] != 0
}
fn advert(template: &Template) -> bool {
    icmp6(template) && kind(template).1 == 136
}

fn open(template: &mut Template, at: usize) {
    (template.mask[at], template.value[at]) = (0, 0);
}

#[test]
fn as_they_are_they_hold() {
    assert_eq!(breaches(|_| true), Some(vec![]));
}

#[test]
fn a_dhcp_server() {
    let none = |template: &mut Template| {
        (template.except_mask, template.except_value) = ([0; 80], [0; 80]);
    };
    let narrower = |template: &mut Template| {
        template.except_mask[40] = 255;
        template.looked = 80;
    };
    for of in [four, six] {
        assert!(wider(of, none) > 0);
        // What it excepts it does from one port alone, or to another port.
        assert!(wider(of, narrower) > 0);
        assert!(
            wider(of, |t| {
                let last = t.except_mask.iter().rposition(|m| *m != 0).unwrap();
                let mask = t.except_mask[last];
                t.except_value[last] ^= mask & mask.wrapping_neg();
            }) > 0
        );
    }
    // To a relay, 547, as to a client.
    let one = |t: &mut Template| (t.except_mask[57], t.except_value[57]) = (255, 34);
    assert!(wider(six, one) > 0);
    // What tells apart the templates of which each excepts another port or type.
    assert!(wider(udp, |t| open(t, 37)) > 0);
    assert!(wider(icmp, |t| open(t, 34)) > 0);
    assert!(wider(udp, |t| open(t, 23)) > 0);
    assert!(wider(icmp, |t| open(t, 23)) > 0);
    assert!(wider(udp, |t| t.value[37] ^= 1) > 0);
    assert!(wider(icmp, |t| t.value[34] ^= 4) > 0);
    // Ports that options move.
    assert!(wider(four, |t| (t.mask[14], t.value[14]) = (0xf0, 0x40)) > 0);
}

#[test]
fn another_than_a_router() {
    let bound = |nth: usize| move |template: &mut Template| template.bounds[nth] = Bound::default();
    for (of, most) in [(four as fn(&Template) -> bool, 224), (six, 254)] {
        assert!(wider(of, bound(0)) > 0);
        assert!(wider(of, bound(1)) > 0);
        assert!(wider(of, |t| t.bounds[0].most = 255) > 0);
        assert!(wider(of, |t| t.bounds[1].most = most) > 0);
        // Another byte than the one that counts.
        assert!(wider(of, |t| t.bounds[0].at += 1) > 0);
    }
}

#[test]
fn a_router_of_the_uplink() {
    // Its advertisements, redirects, and what hides them.
    for at in [20, 54] {
        assert!(wider(icmp6, |t| open(t, at)) > 0, "byte {at}");
    }
    for kind in [130, 133, 134, 137, 143] {
        assert!(wider(advert, |t| t.value[54] = kind) > 0, "type {kind}");
    }
    for header in [0, 43, 44, 60] {
        assert!(
            wider(icmp6, |t| t.value[20] = header) > 0,
            "header {header}"
        );
    }
}

#[test]
fn another_ones_neighbour() {
    for at in 62..78 {
        assert!(wider(advert, |t| open(t, at)) > 0, "byte {at}");
    }
}

#[test]
fn packets_to_a_group() {
    assert!(wider(four, |t| open(t, 0)) > 0);
    assert!(wider(six, |t| open(t, 0)) > 0);
}

#[test]
fn groups_that_nobody_needs() {
    for (mac, why) in [
        ([0x33, 0x33, 0, 0, 0, 2], "all routers"),
        ([0x33, 0x33, 0, 1, 0, 2], "DHCPv6 servers"),
        ([1, 0, 0x5e, 0, 0, 1], "all IPv4 nodes"),
        ([1, 0x80, 0xc2, 0, 0, 0], "bridges"),
    ] {
        let said = breaches(|tables| {
            let own = tables.templates[0].1;
            let slot = tables.channels[tables.templates[0].0 as usize].slot;
            tables.forwards.push(Forward {
                ingress: slot,
                tag: own.tag,
                mac,
                target: own.egress,
                out_tag: 0,
                kind: FORWARD_UNICAST,
            });
            true
        });
        let said = said.unwrap();
        assert!(
            matches!(&said[..], [(Class::FabricEntry, what)] if what.contains("no such group")),
            "{why}: {said:?}"
        );
    }
}

/// The hosts' spec with its ways outside in VLANs.
fn in_vlans() -> Compiled {
    let text = text(&[], &[], "deny", "2027-01-01");
    let first = "{uplink: wan0, address: [192.0.2.10/24";
    let second = "{uplink: wan0, address: [192.0.2.11/24";
    assert!(text.contains(first) && text.contains(second));
    let text = text.replace(first, "{uplink: wan0, vlan: 100, address: [192.0.2.10/24");
    Compiled::new(read(&text.replace(
        second,
        "{uplink: wan0, vlan: 4094, address: [192.0.2.11/24",
    )))
}

#[test]
fn another_vlan_in_either_direction() {
    let host = in_vlans();
    assert!(host.breaches().is_empty(), "{:?}", host.breaches());
    let memory = Aligned::copy_of(&host.images[&0]);
    let tables = FabricImage::map(memory.as_ref()).unwrap().decode();
    let uplinks: Vec<u32> = (tables.channels.iter())
        .filter(|c| c.kind == image::fabric::CHANNEL_UPLINK)
        .map(|c| c.slot)
        .collect();
    let is_uplink = |slot: u32| uplinks.contains(&slot);
    let mut tried = [0, 0];
    for (at, entry) in tables.forwards.iter().enumerate() {
        let (inward, tag) = match (is_uplink(entry.ingress), is_uplink(entry.target)) {
            (true, _) => (true, entry.tag),
            (false, true) if entry.kind == FORWARD_UNICAST => (false, entry.out_tag),
            _ => continue,
        };
        assert!([100, 4094].contains(&tag), "{entry:?}");
        // The other's, one that nobody has, and none.
        for other in [if tag == 100 { 4094 } else { 100 }, 7, 0] {
            let mut changed = tables.clone();
            let place = &mut changed.forwards[at];
            *if inward {
                &mut place.tag
            } else {
                &mut place.out_tag
            } = other;
            let Ok(bytes) = changed.finish() else {
                // Two entries for one key: no table at all.
                continue;
            };
            let mut host = in_vlans();
            host.images.insert(0, bytes);
            let said = host.breaches();
            let found = said
                .iter()
                .any(|b| b.class == Class::FabricEntry && b.what.contains("VLAN"));
            assert!(found, "{entry:?} with {other}: {said:?}");
            tried[usize::from(inward)] += 1;
        }
    }
    assert!(tried.iter().all(|tried| *tried > 5), "{tried:?}");
}
