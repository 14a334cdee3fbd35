//! Images that somebody changed: by a bit, or whole records with the digest put
//! right again.

use super::fixture::{compartment, fabric, v4};
use crate::compartment::*;
use crate::fabric::{EVERY_GROUP, FORWARD_SEGMENT, Forward};
use crate::map::Section;
use crate::{
    Aligned, BuildError, CompartmentImage, CompartmentTables, FabricImage, FabricTables, MapError,
    container, digest,
};
use proptest::prelude::*;

fn rich() -> CompartmentTables {
    let mut tables = compartment(3, 3);
    tables.endpoints[2].roles = ROLE_ROUTER;
    tables.own_prefixes.push((
        2,
        OwnPrefix {
            prefix: v4([10, 9, 0, 0]),
            len: 112,
            reserved: 0,
        },
    ));
    tables.routes.push(Route {
        kind: ROUTE_VIA,
        subnet: 0,
        via: 2,
        reserved: 0,
    });
    tables.routes.push(Route {
        kind: ROUTE_OUTSIDE,
        ..Route::default()
    });
    for (net, route) in [(9, 3), (77, 4)] {
        let (start, end) = (v4([10, net, 0, 0]), v4([10, net, 255, 255]));
        tables.ranges.push((
            0,
            RouteRange {
                start,
                end,
                route,
                reserved: [0; 3],
            },
        ));
    }
    tables
}

#[test]
fn any_flipped_bit_is_seen() {
    for (image, is_fabric) in [
        (rich().finish().unwrap(), false),
        (fabric().finish().unwrap(), true),
    ] {
        // Every fifth: each place in a byte comes up.
        for bit in (0..image.len() * 8).step_by(5) {
            let mut changed = image.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let changed = Aligned::copy_of(&changed);
            let refused = if is_fabric {
                FabricImage::map(changed.as_ref()).is_err()
            } else {
                CompartmentImage::map(changed.as_ref()).is_err()
            };
            assert!(refused, "bit {bit}");
        }
    }
}

#[test]
fn truncated_and_extended_images_are_refused() {
    let image = rich().finish().unwrap();
    for len in (0..image.len()).step_by(7) {
        let mut cut = image[..len].to_vec();
        container::seal(&mut cut);
        assert!(
            CompartmentImage::map(Aligned::copy_of(&cut).as_ref()).is_err(),
            "{len}"
        );
    }
    let mut long = image.clone();
    long.extend([0; 16]);
    container::seal(&mut long);
    let long = Aligned::copy_of(&long);
    assert_eq!(
        CompartmentImage::map(long.as_ref()).unwrap_err(),
        MapError::Length
    );
    let fabric = Aligned::copy_of(&fabric().finish().unwrap());
    assert_eq!(
        CompartmentImage::map(fabric.as_ref()).unwrap_err(),
        MapError::Kind
    );
}

#[test]
fn a_wrong_digest_is_refused() {
    let mut image = rich().finish().unwrap();
    // The last slot's endpoint would still be a legal value elsewhere: only the
    // digest tells.
    assert_eq!(digest(&image).unwrap().0, image[24..56]);
    image[30] ^= 1;
    let image = Aligned::copy_of(&image);
    assert_eq!(
        CompartmentImage::map(image.as_ref()).unwrap_err(),
        MapError::Digest
    );
}

/// Why these tables are refused by mapping.
fn refusal(change: impl FnOnce(&mut CompartmentTables)) -> Section {
    let mut tables = rich();
    change(&mut tables);
    match tables.finish() {
        Err(BuildError::Refused(MapError::Record { section, .. })) => section,
        other => panic!("not refused by a record: {:?}", other.map(|b| b.len())),
    }
}

fn fabric_refusal(change: impl FnOnce(&mut FabricTables)) -> Section {
    let mut tables = fabric();
    change(&mut tables);
    match tables.finish() {
        Err(BuildError::Refused(MapError::Record { section, .. })) => section,
        other => panic!("not refused by a record: {:?}", other.map(|b| b.len())),
    }
}

#[test]
fn flooding_another_subnet_is_refused() {
    assert_eq!(refusal(|t| t.members[0] = (1, 0)), Section::Subnets);
}

#[test]
fn two_endpoints_in_a_slot_are_refused() {
    assert_eq!(
        refusal(|t| t.endpoints[1].slot = t.endpoints[0].slot),
        Section::Endpoints
    );
    assert_eq!(refusal(|t| t.endpoints[1].slot = 0), Section::Endpoints);
}

#[test]
fn overlapping_ranges_are_refused() {
    let refused = refusal(|t| t.ranges[1].1.start = v4([10, 0, 0, 200]));
    assert_eq!(refused, Section::Tenants);
    assert_eq!(
        refusal(|t| t.ranges[0].1.end = v4([9, 0, 0, 0])),
        Section::Tenants
    );
}

#[test]
fn a_route_into_another_tenant_is_refused() {
    let refused = refusal(|t| {
        t.tenants.push(Tenant {
            id: 8,
            ..Tenant::default()
        });
        t.subnets[1].tenant = 1;
    });
    assert_eq!(refused, Section::Tenants);
    let refused = refusal(|t| {
        t.tenants.push(Tenant {
            id: 8,
            ..Tenant::default()
        });
        t.attachments[0].tenant = 1;
    });
    assert_eq!(refused, Section::Tenants);
}

#[test]
fn two_attachments_of_one_tag_are_refused() {
    assert_eq!(
        refusal(|t| t.attachments.push(t.attachments[0])),
        Section::Attachments
    );
}

#[test]
fn a_segment_with_anothers_tag_is_refused() {
    for change in [
        |t: &mut CompartmentTables| t.subnets[0].segment = 5,
        |t: &mut CompartmentTables| {
            t.subnets[0].segment = 6;
            t.subnets[1].segment = 6;
        },
    ] {
        assert_eq!(refusal(change), Section::Subnets);
    }
    let mut tables = compartment(2, 1);
    tables.subnets[0].segment = 6;
    tables.subnets[1].segment = 7;
    assert!(tables.finish().is_ok());
}

#[test]
fn routes_that_lead_nowhere_are_refused() {
    for change in [
        |t: &mut CompartmentTables| t.routes[0].subnet = 9,
        |t: &mut CompartmentTables| t.routes[0].kind = 9,
        |t: &mut CompartmentTables| t.routes[3].via = 1,
        |t: &mut CompartmentTables| t.routes[4].via = 5,
    ] {
        assert_eq!(refusal(change), Section::Routes);
    }
}

#[test]
fn a_channel_in_anothers_slot_is_refused() {
    assert_eq!(
        fabric_refusal(|t| t.channels[1].slot = 1),
        Section::Channels
    );
    assert_eq!(
        fabric_refusal(|t| t.channels[1].weight = 0),
        Section::Channels
    );
}

#[test]
fn an_entry_back_to_its_ingress_is_refused() {
    assert_eq!(
        fabric_refusal(|t| t.forwards[0].target = 1),
        Section::Forwards
    );
    assert_eq!(
        fabric_refusal(|t| (t.forwards[0].target, t.forwards[0].out_tag) = (1, 5)),
        Section::Forwards
    );
    assert_eq!(
        fabric_refusal(|t| (t.forwards[2].target, t.forwards[2].out_tag) = (9, 5)),
        Section::Forwards
    );
    // By another tag it is another tenant's of that compartment.
    let mut told = fabric();
    (told.forwards[0].target, told.forwards[0].out_tag) = (1, 6);
    assert!(told.finish().is_ok());
    assert_eq!(
        fabric_refusal(|t| t.forwards[0].target = 77),
        Section::Forwards
    );
    assert_eq!(
        fabric_refusal(|t| t.forwards[1].target = 1),
        Section::Forwards
    );
}

#[test]
fn a_template_must_compare_a_whole_ethernet_header() {
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.len = 13),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.mask[20] = 1),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.value[0] = 1),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.egress = 2),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.except_value[0] = 1),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.reserved = 1),
        Section::Templates
    );
}

#[test]
fn a_template_says_how_far_it_looks() {
    // Where it looks at more, a checksum could be stored after the look.
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.except_mask[35] = 255),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.bounds[1].at = 14),
        Section::Templates
    );
    assert_eq!(
        fabric_refusal(|t| t.templates[0].1.looked = 81),
        Section::Templates
    );
}

/// Byte offset in an image of these bytes' first occurrence.
fn find(image: &[u8], bytes: &[u8]) -> usize {
    image.windows(bytes.len()).position(|w| w == bytes).unwrap()
}

#[test]
fn a_mac_slot_of_another_endpoint_is_refused() {
    // The builder cannot make this: a slot whose MAC is not its endpoint's.
    let mut image = rich().finish().unwrap();
    let (bytes, other) = ([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 1, 0xee]);
    let at = find(&image, &bytes);
    image[at..at + 6].copy_from_slice(&other);
    container::seal(&mut image);
    let image = Aligned::copy_of(&image);
    let refused = CompartmentImage::map(image.as_ref()).unwrap_err();
    let what = "a MAC that is not its endpoint's";
    assert!(
        matches!(refused, MapError::Record { section: Section::Macs, what: w, .. } if w == what),
        "{refused}"
    );
}

#[test]
fn an_address_in_another_subnet_is_refused() {
    // A slot whose endpoint lives in another subnet: the key stays where it is.
    let mut image = rich().finish().unwrap();
    let at = find(&image, &v4([10, 0, 1, 10])) + 20;
    assert_eq!(image[at..at + 4], [3, 0, 0, 0], "its endpoint");
    image[at] = 0;
    container::seal(&mut image);
    let image = Aligned::copy_of(&image);
    let refused = CompartmentImage::map(image.as_ref()).unwrap_err();
    assert!(
        matches!(
            refused,
            MapError::Record {
                section: Section::Addresses,
                ..
            }
        ),
        "{refused}"
    );
}

/// Uses every way into an image that mapping let through.
fn walk(image: &CompartmentImage<'_>) {
    let _ = image.to_string();
    let _ = image.decode();
    for endpoint in image.endpoints() {
        let found = image.endpoint_by_mac(endpoint.subnet, endpoint.mac);
        assert!((found.unwrap() as usize) < image.endpoints().len());
        let _ = image.own_prefixes_of(endpoint);
    }
    for tenant in 0..image.tenants().len() as u32 {
        for address in [[0; 16], [255; 16], v4([10, 0, 0, 3])] {
            let _ = image.route(tenant, address);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn tampering_with_a_right_digest_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut image = rich().finish().unwrap();
        for (at, value) in &changes {
            let at = at.index(image.len());
            image[at] = *value;
        }
        container::seal(&mut image);
        if let Ok(image) = CompartmentImage::map(Aligned::copy_of(&image).as_ref()) {
            walk(&image);
        }
    }

    #[test]
    fn a_tampered_fabric_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = fabric().finish().unwrap();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        container::seal(&mut bytes);
        if let Ok(image) = FabricImage::map(Aligned::copy_of(&bytes).as_ref()) {
            let _ = image.to_string();
            for entry in image.decode().forwards {
                assert!(image.channel(entry.ingress).is_some());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Aligned::copy_of(&bytes);
        prop_assert!(CompartmentImage::map(bytes.as_ref()).is_err());
        prop_assert!(FabricImage::map(bytes.as_ref()).is_err());
    }
}

#[test]
fn a_segment_joins_a_compartment_to_an_uplink_by_tags() {
    let entry = |tables: &mut FabricTables, ingress, tag, target, out_tag| {
        tables.forwards.push(Forward {
            ingress,
            tag,
            mac: EVERY_GROUP,
            target,
            out_tag,
            kind: FORWARD_SEGMENT,
        });
    };
    for (ingress, tag, target, out_tag) in [(1, 8, 2, 7), (9, 7, 1, 8), (1, 0, 9, 7), (1, 8, 9, 0)]
    {
        assert_eq!(
            fabric_refusal(|t| entry(t, ingress, tag, target, out_tag)),
            Section::Forwards,
            "{ingress} {target}"
        );
    }
    let mut told = fabric();
    entry(&mut told, 1, 8, 9, 7);
    assert!(told.finish().is_ok());
}
