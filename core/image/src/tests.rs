//! What is built can be read; what was tampered with cannot.

mod crossings;
mod fixture;
mod rules;
mod tampering;

use crate::compartment::*;
use crate::fabric::*;
use crate::{Aligned, BuildError, CompartmentImage, CompartmentTables, FabricImage, FabricTables};
use fixture::{compartment, fabric, v4};
use proptest::prelude::*;

/// The image of these tables, in aligned memory.
fn built(tables: &CompartmentTables) -> Aligned {
    Aligned::copy_of(&tables.finish().unwrap())
}

#[test]
fn what_is_built_is_found() {
    let bytes = built(&compartment(3, 40));
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    for (index, endpoint) in (0..).zip(image.endpoints()) {
        assert_eq!(
            image.endpoint_by_mac(endpoint.subnet, endpoint.mac),
            Some(index)
        );
        assert_eq!(image.endpoint_by_slot(endpoint.slot), Some(index));
        let other = (endpoint.subnet + 1) % 3;
        assert_eq!(
            image.endpoint_by_mac(other, endpoint.mac),
            None,
            "another subnet's"
        );
    }
    let [a, .., z] = image.members_of(1) else {
        panic!("no members")
    };
    assert_eq!((a.endpoint, z.endpoint), (40, 79));
    assert_eq!(image.members_of(3), &[]);
    assert_eq!(image.endpoint_by_slot(0), None);
    assert_eq!(image.endpoint_by_slot(9_999), None);
}

#[test]
fn routes_are_ranges() {
    let bytes = built(&compartment(2, 2));
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let kind = |tenant, address| image.route(tenant, address).map(|r| (r.kind, r.subnet));
    assert_eq!(kind(0, v4([10, 0, 0, 0])), Some((ROUTE_SUBNET, 0)));
    assert_eq!(kind(0, v4([10, 0, 0, 255])), Some((ROUTE_SUBNET, 0)));
    assert_eq!(kind(0, v4([10, 0, 1, 7])), Some((ROUTE_SUBNET, 1)));
    assert_eq!(kind(0, v4([10, 0, 2, 0])), None);
    assert_eq!(kind(0, v4([9, 255, 255, 255])), None);
    assert_eq!(kind(1, v4([10, 0, 0, 1])), None, "no such tenant");
}

#[test]
fn the_same_tables_give_the_same_bytes() {
    let mut tables = compartment(2, 9);
    let first = tables.finish().unwrap();
    tables.addresses.reverse();
    tables.ranges.reverse();
    assert_eq!(first, tables.finish().unwrap());
    assert_eq!(fabric().finish().unwrap(), fabric().finish().unwrap());
}

#[test]
fn decoding_gives_the_tables_back() {
    let bytes = built(&compartment(2, 5));
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let again = image.decode().finish().unwrap();
    assert_eq!(again, bytes.as_ref());
    let bytes = Aligned::copy_of(&fabric().finish().unwrap());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    assert_eq!(image.decode().finish().unwrap(), bytes.as_ref());
}

#[test]
fn people_can_read_it() {
    let bytes = built(&compartment(1, 1));
    let text = CompartmentImage::map(bytes.as_ref()).unwrap().to_string();
    for part in [
        "10.0.0.0/24",
        "02:00:00:00:00:00",
        "endpoint 0: id 100 slot 1",
        "on subnet 0",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let bytes = Aligned::copy_of(&fabric().finish().unwrap());
    let text = FabricImage::map(bytes.as_ref()).unwrap().to_string();
    for part in [
        "slot 1: compartment 1",
        "any other station: slot 9 tag 0",
        "group 0: slot 9",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn what_is_there_twice_is_refused() {
    let mut tables = compartment(1, 2);
    let mac = tables.endpoints[0].mac;
    tables.endpoints[1].mac = mac;
    assert_eq!(
        tables.finish(),
        Err(BuildError::MacTwice { subnet: 0, mac })
    );
    let mut tables = compartment(1, 2);
    tables.addresses[1].1 = tables.addresses[0].1;
    assert!(matches!(
        tables.finish(),
        Err(BuildError::AddressTwice { .. })
    ));
    let mut tables = fabric();
    tables.forwards.push(tables.forwards[0]);
    assert!(matches!(
        tables.finish(),
        Err(BuildError::ForwardTwice { .. })
    ));
    let mut tables = compartment(1, 1);
    tables.members.push((7, 0));
    assert_eq!(tables.finish(), Err(BuildError::NoOwner(7)));
}

#[test]
fn the_fabric_finds_exact_then_default() {
    let bytes = Aligned::copy_of(&fabric().finish().unwrap());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let exact = image.forward(9, 0, [2, 0, 0, 0, 1, 1]).unwrap();
    assert_eq!((exact.target, exact.out_tag), (1, 5));
    assert_eq!(image.forward(1, 5, [2, 0, 0, 0, 1, 1]), None);
    assert_eq!(
        image.forward(1, 5, [0; 6]),
        None,
        "the default's key is nobody's MAC"
    );
    assert_eq!(image.default(1, 5).unwrap().target, 9);
    assert_eq!(image.default(1, 6), None);
    assert_eq!(image.default(2, 5), None, "another's tag");
    let channel = image.channel(1).unwrap();
    assert_eq!(image.templates(channel).len(), 1);
    assert!(image.channel(0).is_none());
    assert!(image.channel(100).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_key_is_found_and_no_other(
        keys in proptest::collection::btree_set((0u32..4, any::<u128>()), 1..300),
        others in proptest::collection::vec((0u32..4, any::<u128>()), 50),
    ) {
        let mut tables = compartment(4, 1);
        tables.addresses = keys.iter().map(|(s, a)| (*s, a.to_be_bytes())).collect();
        let bytes = built(&tables);
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        for (subnet, address) in &keys {
            let found = image.endpoint_by_address(*subnet, address.to_be_bytes());
            prop_assert_eq!(found, Some(*subnet));
        }
        for (subnet, address) in others {
            let found = image.endpoint_by_address(subnet, address.to_be_bytes());
            prop_assert_eq!(found.is_some(), keys.contains(&(subnet, address)));
        }
    }

    #[test]
    fn neighbouring_keys_fit(n in 1u32..4_000, step in 1u32..300) {
        let mut tables = compartment(1, 1);
        let address = |i: u32| v4((i * step).to_be_bytes());
        tables.addresses = (0..n).map(|i| (0, address(i))).collect();
        let bytes = built(&tables);
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        prop_assert!((0..n).all(|i| image.endpoint_by_address(0, address(i)) == Some(0)));
    }
}

#[test]
fn forward_entries_many_enough_for_a_big_host_fit() {
    let mut tables = FabricTables::default();
    let channel = Channel {
        weight: 1,
        kind: CHANNEL_COMPARTMENT,
        ..Channel::default()
    };
    for slot in 1..=1_000 {
        tables.channels.push(Channel {
            id: slot,
            slot,
            ..channel
        });
    }
    for ingress in 1..=1_000u32 {
        for tag in 1..=20u16 {
            let target = ingress % 1_000 + 1;
            let [.., a, b] = ingress.to_be_bytes();
            let mac = [2, 0, 0, a, b, tag as u8];
            let kind = FORWARD_UNICAST;
            tables.forwards.push(Forward {
                ingress,
                tag,
                mac,
                target,
                out_tag: tag,
                kind,
            });
        }
    }
    tables.finish().unwrap();
}
