//! Sides of agreements and blocks of ports: found, and refused where they lead to others.

use super::built;
use super::fixture::{compartment, section_at, v4};
use crate::compartment::*;
use crate::map::Section;
use crate::{Aligned, BuildError, CompartmentImage, CompartmentTables, MapError, container};
use proptest::prelude::*;

/// Tenant 0 with an acceptor's side (tag 40) and an offerer's (tag 41, by endpoint 1),
/// tenant 1 with subnet 2 and endpoints 4 and 5, and ports for endpoints 0, 1 and 3.
fn tables() -> CompartmentTables {
    let mut tables = compartment(3, 2);
    tables.tenants.push(Tenant {
        id: 8,
        ..Tenant::default()
    });
    tables.subnets[2].tenant = 1;
    tables.ranges[2].0 = 1;
    let crossing = Crossing {
        agreement: 900,
        tag: 40,
        role: CROSSING_ACCEPTOR,
        mtu: 1500,
        endpoint: NONE,
        address4: [10, 0, 200, 10],
        ..Crossing::default()
    };
    tables.crossings = vec![
        crossing,
        Crossing {
            agreement: 901,
            tag: 41,
            role: CROSSING_OFFERER,
            endpoint: 1,
            address4: [10, 0, 0, 11],
            pool4: [10, 0, 250, 0],
            pool4_len: 28,
            ..crossing
        },
    ];
    let ports = |protocol, first, last| ServicePorts {
        protocol,
        first,
        last,
        ..ServicePorts::default()
    };
    tables.service_ports = vec![
        (1, ports(17, 53, 53)),
        (1, ports(6, 8000, 8999)),
        (1, ports(6, 443, 443)),
    ];
    for (last, via) in [(200, 0), (250, 1)] {
        let route = tables.routes.len() as u32;
        tables.routes.push(Route {
            kind: ROUTE_SERVICE,
            via,
            ..Route::default()
        });
        let (start, end) = (v4([10, 0, last, 0]), v4([10, 0, last, 15]));
        let reserved = [0; 3];
        tables.ranges.push((
            0,
            RouteRange {
                start,
                end,
                route,
                reserved,
            },
        ));
    }
    tables.attachments[0].address4 = [192, 0, 2, 10];
    tables.attachments[0].nat_first = 1024;
    tables.attachments[0].nat_block = 512;
    tables.nat_blocks = vec![(0, 0), (0, NONE), (0, 3), (0, 1)];
    tables
}

/// Why these tables are refused by mapping.
fn refusal(change: impl FnOnce(&mut CompartmentTables)) -> (Section, &'static str) {
    let mut tables = tables();
    change(&mut tables);
    match tables.finish() {
        Err(BuildError::Refused(MapError::Record { section, what, .. })) => (section, what),
        other => panic!("not refused by a record: {:?}", other.map(|b| b.len())),
    }
}

#[test]
fn crossings_are_found_by_their_tags_and_routes() {
    let bytes = built(&tables());
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let by_tag = |tag| image.crossing_by_tag(tag).map(|(i, c)| (i, c.agreement));
    assert_eq!(by_tag(40), Some((0, 900)));
    assert_eq!(by_tag(41), Some((1, 901)));
    assert_eq!(by_tag(5), None, "an attachment's");
    assert_eq!(by_tag(0), None);
    let route = image.route(0, v4([10, 0, 250, 7])).unwrap();
    assert_eq!((route.kind, route.via), (ROUTE_SERVICE, 1));
    assert_eq!(image.route(1, v4([10, 0, 250, 7])), None);

    let (_, offered) = image.crossing_by_tag(41).unwrap();
    for (protocol, port, served) in [
        (6, 443, true),
        (6, 442, false),
        (6, 444, false),
        (6, 7999, false),
        (6, 8000, true),
        (6, 8999, true),
        (6, 9000, false),
        (17, 53, true),
        (17, 443, false),
        (1, 0, false),
    ] {
        let found = image.serves(offered, protocol, port);
        assert_eq!(found, served, "{protocol} {port}");
    }
    let (_, accepted) = image.crossing_by_tag(40).unwrap();
    assert!(!image.serves(accepted, 6, 443), "it serves nothing");
}

#[test]
fn blocks_of_ports_are_found_both_ways() {
    let bytes = built(&tables());
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    for (endpoint, ports) in [
        (0, Some(1024..=1535)),
        (1, Some(2560..=3071)),
        (3, Some(2048..=2559)),
        (2, None),
        (99, None),
    ] {
        assert_eq!(image.nat_ports(0, endpoint), ports, "{endpoint}");
        assert_eq!(image.nat_ports(1, endpoint), None, "no such attachment");
        for port in ports.into_iter().flatten() {
            assert_eq!(image.endpoint_by_nat_port(0, port), Some(endpoint));
        }
    }
    for port in [0, 1023, 1536, 2047, 3072, u16::MAX] {
        assert_eq!(image.endpoint_by_nat_port(0, port), None, "{port}");
    }
}

#[test]
fn crossings_and_ports_decode() {
    let tables = tables();
    let bytes = built(&tables);
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let decoded = image.decode();
    assert_eq!(decoded.nat_blocks, tables.nat_blocks);
    assert_eq!(decoded.service_ports.len(), 3);
    assert_eq!(decoded.crossings[1].pool4, [10, 0, 250, 0]);
    assert_eq!(decoded.finish().unwrap(), bytes.as_ref());
    let text = image.to_string();
    for part in [
        "across by crossing 1",
        "crossing 0: agreement 900 tenant 0 tag 40 mtu 1500 uses it at 10.0.200.10",
        "serves by endpoint 1 at 10.0.0.11 :: pool 10.0.250.0/28",
        "  protocol 6 ports 8000 to 8999\n",
        "  ports 2048 to 2559: endpoint 3\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_tag_of_two_crossings_is_refused() {
    let what = (Section::Crossings, "its tag is another's too");
    assert_eq!(refusal(|t| t.crossings[0].tag = 0), what, "that is inside");
    let attachment = |t: &mut CompartmentTables| t.crossings[0].tag = t.attachments[0].tag;
    // Both see it; attachments are looked at first.
    let (_, why) = refusal(attachment);
    assert_eq!(why, what.1);
    let mut tables = tables();
    tables.crossings[0].tag = 41;
    assert_eq!(tables.finish(), Err(BuildError::TagTwice { tag: 41 }));
}

#[test]
fn a_service_of_another_tenants_endpoint_is_refused() {
    let what = (Section::Crossings, "its endpoint is another tenant's");
    assert_eq!(refusal(|t| t.crossings[1].endpoint = 4), what);
    assert_eq!(refusal(|t| t.crossings[1].endpoint = 99), what);
    assert_eq!(refusal(|t| t.crossings[1].endpoint = NONE), what);
}

#[test]
fn a_service_at_another_endpoints_address_is_refused() {
    let what = (Section::Crossings, "an address that is not its endpoint's");
    let refused = refusal(|t| t.crossings[1].address4 = [10, 0, 0, 10]);
    assert_eq!(refused, what);
    assert_eq!(refusal(|t| t.crossings[1].address6 = [9; 16]), what);
}

#[test]
fn a_route_to_another_tenants_crossing_is_refused() {
    let (section, what) = refusal(|t| t.ranges[3].0 = 1);
    assert_eq!(
        (section, what),
        (Section::Tenants, "a route into another tenant")
    );
    let what = (Section::Routes, "leads nowhere");
    assert_eq!(refusal(|t| t.routes[3].via = 2), what);
}

#[test]
fn services_in_no_order_are_refused() {
    let what = (Section::Crossings, "its ports are not in order");
    assert_eq!(refusal(|t| t.service_ports[1].1.first = 400), what);
    assert_eq!(refusal(|t| t.service_ports[2].1.last = 442), what);
}

#[test]
fn crossings_that_cannot_be_are_refused() {
    type Change = fn(&mut Crossing);
    let changes: [(Change, &str); 8] = [
        (|c| c.tenant = 2, "no such tenant"),
        (|c| c.role = 3, "an unknown role"),
        (|c| c.mtu = 67, "an MTU below 68 (RFC 791)"),
        (|c| c.pool4_len = 33, "a pool that is no prefix"),
        (|c| c.pool4 = [10, 0, 250, 1], "a pool that is no prefix"),
        (|c| c.pool6_len = 129, "a pool that is no prefix"),
        (|c| c.address4 = [0; 4], "no address"),
        (|c| c.pool4_len = 0, "a pool that is no prefix"),
    ];
    for (change, what) in changes {
        let refused = refusal(|t| change(&mut t.crossings[1]));
        assert_eq!(refused, (Section::Crossings, what));
    }
    let (_, what) = refusal(|t| t.crossings[0].endpoint = 0);
    assert_eq!(what, "an acceptor that serves");
    let (_, what) = refusal(|t| (t.crossings[1].pool4, t.crossings[1].pool4_len) = ([0; 4], 0));
    assert_eq!(what, "no family has both an address and a pool");
    let (_, what) = refusal(|t| t.service_ports.clear());
    assert_eq!(what, "a service without ports");
}

#[test]
fn ports_beyond_the_last_are_refused() {
    let what = (Section::Attachments, "blocks beyond 1024 to 65535");
    assert_eq!(refusal(|t| t.attachments[0].nat_first = 1023), what);
    assert_eq!(refusal(|t| t.attachments[0].nat_block = 16_129), what);
    let mut most = tables();
    most.attachments[0].nat_block = 16_128;
    let bytes = built(&most);
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    assert_eq!(image.nat_ports(0, 1), Some(49_408..=u16::MAX));
    assert_eq!(image.endpoint_by_nat_port(0, u16::MAX), Some(1));
}

#[test]
fn an_endpoint_of_two_blocks_is_refused() {
    let what = (Section::Attachments, "a block that its endpoint has not");
    assert_eq!(refusal(|t| t.nat_blocks.push((0, 0))), what);
    assert_eq!(refusal(|t| t.nat_blocks.push((0, 99))), what);
}

#[test]
fn a_block_of_another_tenants_endpoint_is_refused() {
    let what = (Section::Attachments, "a block of another tenant's endpoint");
    assert_eq!(refusal(|t| t.nat_blocks.push((0, 4))), what);
    let (_, what) = refusal(|t| t.attachments[0].address4 = [0; 4]);
    assert_eq!(what, "translation without an IPv4 address");
    let (_, what) = refusal(|t| t.attachments[0].nat_block = 0);
    assert_eq!(what, "blocks of no ports");
}

#[test]
fn a_tag_slot_of_another_crossing_is_refused() {
    // The builder cannot make this: each slot leads to the other's crossing.
    let mut image = tables().finish().unwrap();
    let (start, len) = section_at(&image, Section::CrossingTags as usize);
    for slot in image[start..start + len].chunks_exact_mut(8) {
        if slot[0] < 2 {
            slot[0] ^= 1;
        }
    }
    container::seal(&mut image);
    let refused = CompartmentImage::map(Aligned::copy_of(&image).as_ref()).unwrap_err();
    let what = "a tag that is not its crossing's";
    assert!(
        matches!(refused, MapError::Record { section: Section::CrossingTags, what: w, .. } if w == what),
        "{refused}"
    );
}

proptest! {
    #[test]
    fn tampered_crossings_are_refused_or_stay_their_tenants(
        changes in proptest::collection::vec(
            (17usize..21, any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut image = tables().finish().unwrap();
        for (section, at, value) in changes {
            let (start, len) = section_at(&image, section);
            image[start + at.index(len)] = value;
        }
        container::seal(&mut image);
        let bytes = Aligned::copy_of(&image);
        if let Ok(image) = CompartmentImage::map(bytes.as_ref()) {
            let _ = image.to_string();
            let tenant = |endpoint: u32| {
                let subnet = image.endpoints()[endpoint as usize].subnet;
                image.subnets()[subnet as usize].tenant
            };
            for (index, crossing) in (0..).zip(image.crossings()) {
                prop_assert_eq!(image.crossing_by_tag(crossing.tag), Some((index, crossing)));
                if crossing.role == CROSSING_OFFERER {
                    prop_assert_eq!(tenant(crossing.endpoint), crossing.tenant);
                }
            }
            for port in (0..=u16::MAX).step_by(97) {
                if let Some(endpoint) = image.endpoint_by_nat_port(0, port) {
                    prop_assert_eq!(tenant(endpoint), image.attachments()[0].tenant);
                    prop_assert!(image.nat_ports(0, endpoint).unwrap().contains(&port));
                }
            }
        }
    }
}

/// A routed crossing (tag 42) in place of none: its own subnet 0, another's 10.5.0.0/16.
fn routed() -> CompartmentTables {
    let mut tables = tables();
    tables.crossings.push(Crossing {
        agreement: 902,
        tag: 42,
        role: CROSSING_OFFERER,
        mtu: 1500,
        flags: CROSSING_ROUTED,
        endpoint: NONE,
        ..Crossing::default()
    });
    tables.routed_prefixes = [(v4([10, 0, 0, 0]), 120, 0), (v4([10, 5, 0, 0]), 112, 1)]
        .map(|(prefix, len, theirs)| {
            (
                2,
                RoutedPrefix {
                    prefix,
                    len,
                    theirs,
                },
            )
        })
        .to_vec();
    tables
}

#[test]
fn routed_prefixes_are_found_and_decode() {
    let tables = routed();
    let bytes = built(&tables);
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let (_, crossing) = image.crossing_by_tag(42).unwrap();
    let is = |theirs, address| image.is_routed(crossing, theirs, &v4(address));
    assert!(is(false, [10, 0, 0, 255]) && is(true, [10, 5, 255, 1]));
    assert!(!is(true, [10, 0, 0, 255]) && !is(false, [10, 5, 255, 1]));
    assert!(!is(false, [10, 0, 1, 0]) && !is(true, [10, 6, 0, 0]));
    assert!(crossing.is_begun_with() && !crossing.begins());
    let decoded = image.decode();
    assert_eq!(decoded.routed_prefixes, tables.routed_prefixes);
    assert_eq!(decoded.finish().unwrap(), bytes.as_ref());
    let text = image.to_string();
    for part in [
        "tag 42 mtu 1500 routed, the other begins\n",
        "  own 10.0.0.0/24\n  theirs 10.5.0.0/16\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn prefixes_that_cannot_be_routed_are_refused() {
    type Change = fn(&mut CompartmentTables);
    let changes: [(Change, &str); 9] = [
        (|t| t.crossings[2].flags = CROSSING_BOTH, "no address"),
        (
            |t| t.crossings[0].flags = CROSSING_BOTH,
            "prefixes of a service",
        ),
        (|t| t.crossings[2].flags |= 8, "reserved is not zero"),
        (
            |t| t.crossings[2].endpoint = 1,
            "a routed crossing that translates",
        ),
        (
            |t| t.routed_prefixes[0].1.theirs = 1,
            "a side without prefixes",
        ),
        (
            |t| t.routed_prefixes[0].1.theirs = 2,
            "reserved is not zero",
        ),
        (
            |t| t.routed_prefixes[0].1.len = 100,
            "a prefix that is none",
        ),
        (
            |t| t.routed_prefixes[0].1 = RoutedPrefix::default(),
            "a prefix that is none",
        ),
        (
            |t| {
                let one = t.routed_prefixes[0];
                t.routed_prefixes.extend(vec![one; MAX_ROUTED as usize]);
            },
            "too many prefixes",
        ),
    ];
    for (change, what) in changes {
        let mut tables = routed();
        change(&mut tables);
        match tables.finish() {
            Err(BuildError::Refused(MapError::Record { what: w, .. })) => assert_eq!(w, what),
            other => panic!("{what}: {:?}", other.map(|b| b.len())),
        }
    }
}
