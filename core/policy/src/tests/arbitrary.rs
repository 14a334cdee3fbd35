//! Arbitrary specs: no panic, the same bytes twice, routes as a simple reading of
//! the prefixes has them, no breach.

use super::breaches;
use crate::routes::Prefixes;
use crate::{Ids, Intent, compile, diff};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;
use spec::Prefix;

/// Prefixes that often nest: few networks, many lengths.
fn prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (0u32..4, 0u8..=32)
        .prop_map(|(n, len)| (IpAddr::V4(Ipv4Addr::from_bits(n << 30 | n << 12 | n)), len));
    let v6 = (0u128..4, 0u8..=128)
        .prop_map(|(n, len)| (IpAddr::V6(Ipv6Addr::from_bits(n << 126 | n << 60 | n)), len));
    prop_oneof![v4, v6].prop_map(|(address, len)| Prefix {
        network: Prefix::network_of(address, len),
        len,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ranges_are_longest_prefix_match(list in proptest::collection::vec(prefix(), 0..24), probes in proptest::collection::vec(any::<u128>(), 8)) {
        let mut prefixes = Prefixes::new();
        for (route, prefix) in list.iter().enumerate() {
            prefixes.add(*prefix, route as u32);
        }
        let ranges = prefixes.ranges();
        prop_assert!(ranges.iter().all(|r| r.start <= r.end));
        prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
        // Every edge and its neighbours, and a few of anywhere.
        let edges = list.iter().flat_map(|p| {
            let (a, b) = p.range();
            let (a, b) = (u128::from_be_bytes(a), u128::from_be_bytes(b));
            [a.wrapping_sub(1), a, a.wrapping_add(1), b.wrapping_sub(1), b, b.wrapping_add(1)]
        });
        for probe in edges.chain(probes) {
            let address = Ipv6Addr::from_bits(probe);
            let ip = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            let longest = list.iter().enumerate().filter(|(_, p)| p.contains(ip)).max_by_key(|(at, p)| (p.len, core::cmp::Reverse(*at)));
            let found = ranges.iter().find(|r| (r.start..=r.end).contains(&address.octets()));
            prop_assert_eq!(found.map(|r| r.route), longest.map(|(at, _)| at as u32), "{}", ip);
        }
    }
}

/// A spec of a few tenants, whose parts come and go by these numbers.
fn text(tenants: &[(u8, u8, u8, u8)]) -> String {
    let mut text = String::from(
        "version: 1\nuplinks: [{name: wan0, interface: eth1}, {name: wan1, interface: eth2}]\ntenants:\n",
    );
    for (at, (name, endpoints, shape, outside)) in tenants.iter().enumerate() {
        let per = ["{per: tenant}", "{per: zone, zone: z}", "{per: host}"][usize::from(shape % 3)];
        text += &format!(
            "  - name: t{at}-{}\n    placement: {per}\n    subnets:\n",
            name % 2
        );
        let v6 = if shape & 4 == 0 { ", fd00:1::/64" } else { "" };
        text += &format!(
            "      - {{name: web, prefixes: [10.1.1.0/24{v6}], slaac: {}}}\n",
            !v6.is_empty() && shape & 8 != 0
        );
        text += "      - {name: app, prefixes: [10.1.2.0/28]}\n    endpoints:\n";
        for e in 0..endpoints % 12 {
            let subnet = if e % 2 == 0 { "web" } else { "app" };
            let more = match (shape ^ e) % 5 {
                0 => ", attach: fifo",
                1 => ", configure: none, rate: {bits: 1Gbit}",
                2 => ", state: unauthorised, mtu: 1300",
                _ => "",
            };
            text += &format!("      - {{name: e{e}, subnet: {subnet}{more}}}\n");
        }
        text += "      - {name: fw, subnet: web, roles: [router], prefixes: [172.16.0.0/12]}\n";
        text += "    routes:\n      - {to: 172.16.5.0/24, via: unreachable}\n    outside:\n";
        for uplink in 0..outside % 3 {
            text += &format!(
                "      - {{uplink: wan{uplink}, address: [192.0.{uplink}.{}/24], gateway: [192.0.{uplink}.1], routes: [{}]}}\n",
                at + 10,
                if uplink == 0 {
                    "0.0.0.0/0"
                } else {
                    "198.51.100.0/24"
                }
            );
        }
        if outside % 3 == 0 {
            text = text.trim_end_matches("    outside:\n").to_owned();
        }
    }
    text
}

fn tenants() -> impl Strategy<Value = Vec<(u8, u8, u8, u8)>> {
    proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 1..6)
}

/// Carries out a plan on a list of what exists, as the supervisor would.
fn carry_out(old: &Intent, new: &Intent) -> Result<(), String> {
    use crate::Action::*;
    use std::collections::{BTreeMap, BTreeSet};
    let ports = |i: &Intent| {
        i.ports()
            .map(|(_, p)| ((p.create.compartment, p.create.slot), p.create))
            .collect::<BTreeMap<_, _>>()
    };
    let (mut have, mut compartments) = (
        ports(old),
        old.compartments.keys().copied().collect::<BTreeSet<_>>(),
    );
    let mut images: BTreeMap<u32, _> = old
        .compartments
        .iter()
        .map(|(id, c)| (*id, c.image.digest))
        .collect();
    images.insert(command::verbs::FABRIC, old.fabric.digest);
    let wrong = |what: &str, step: &crate::Step| {
        Err(format!("{what}: {} {}", step.change.as_str(), step.object))
    };
    for step in &diff(old, new).steps {
        match &step.action {
            CreateCompartment(c) => {
                if !compartments.insert(c.id) {
                    return wrong("is there already", step);
                }
            }
            DestroyCompartment(c) => {
                images.remove(&c.id);
                if !compartments.remove(&c.id) || have.keys().any(|(id, _)| *id == c.id) {
                    return wrong("is not there, or not empty", step);
                }
            }
            CreatePort(p) => {
                let taken = have.values().any(|h| {
                    h.kind == command::verbs::ENDPOINT_TAP
                        && h.kind == p.kind
                        && (h.namespace, h.interface) == (p.namespace, p.interface)
                });
                if taken
                    || !compartments.contains(&p.compartment)
                    || have.insert((p.compartment, p.slot), *p).is_some()
                {
                    return wrong("has no place", step);
                }
            }
            DestroyPort(p) => {
                if have.remove(&(p.compartment, p.slot)).is_none() {
                    return wrong("is not there", step);
                }
            }
            Install { target, image } => {
                if *target != command::verbs::FABRIC && !compartments.contains(target) {
                    return wrong("has no compartment", step);
                }
                images.insert(*target, image.digest);
            }
            CreateUplink(_) | DestroyUplink(_) => {}
        }
    }
    let mut wanted: BTreeMap<u32, _> = new
        .compartments
        .iter()
        .map(|(id, c)| (*id, c.image.digest))
        .collect();
    wanted.insert(command::verbs::FABRIC, new.fabric.digest);
    if new.fabric.is_none() {
        let empty = images.insert(command::verbs::FABRIC, new.fabric.digest);
        if !old.fabric.is_none() && empty == Some(new.fabric.digest) {
            return Err("the fabric's last table is none".into());
        }
    }
    if have != ports(new) || images != wanted || !compartments.iter().eq(new.compartments.keys()) {
        return Err("the end is not the new intent".into());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn specs_compile_the_same_twice_and_change_into_each_other(first in tenants(), second in tenants()) {
        let specs = [&first, &second].map(|t| spec::parse("x", text(t).as_bytes()).unwrap_or_else(|e| panic!("{e}\n{}", text(t))));
        let before = Ids::assign(&specs[0], &Ids::default());
        prop_assert_eq!(&before, &Ids::assign(&specs[0], &before));
        let after = Ids::assign(&specs[1], &before);
        let one = compile(&specs[0], &before).map_err(|e| TestCaseError::fail(e[0].to_string()))?;
        let two = compile(&specs[1], &after).map_err(|e| TestCaseError::fail(e[0].to_string()))?;
        prop_assert_eq!(&two.fabric.bytes, &compile(&specs[1], &after).expect("compiles").fabric.bytes);
        prop_assert_eq!(breaches(&one), []);
        prop_assert_eq!(breaches(&two), []);
        for (old, new) in [(&Intent::default(), &one), (&one, &two), (&two, &one), (&two, &Intent::default()), (&one, &one)] {
            prop_assert_eq!(carry_out(old, new), Ok(()));
        }
    }
}
