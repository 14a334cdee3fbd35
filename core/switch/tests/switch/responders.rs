//! ARP, ND, RA and DHCP, answered from the tables.

use crate::support::*;
use image::compartment::*;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{ALL_NODES, ALL_ROUTERS, UNSPECIFIED6, link_local, mapped, solicited_node};
use wire::arp::{Message, Operation};
use wire::nd::{self, NeighbourAdvert};
use wire::parse::Network;

fn arp_answer(seen: &Seen) -> Message {
    match seen.only().parsed().network {
        Network::Arp(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arp_is_answered_for_gateway_and_neighbours_and_flooded_to_nobody() {
    for (target, owner) in [(GATEWAY4, GATEWAY), (v4(A2), mac(A2)), (v4(R), mac(R))] {
        let seen = Site::new().inject(A1, &arp_request(A1, v4(A1), target));
        let answer = arp_answer(&seen);
        assert_eq!(
            (answer.operation, answer.sender, answer.sender_mac),
            (Operation::Reply, target, owner)
        );
        assert_eq!((answer.target, answer.target_mac), (v4(A1), mac(A1)));
        assert_eq!(
            (seen.only().slot, seen.only().parsed().destination),
            (A1, mac(A1))
        );
        assert_eq!(seen.count(A1, Counter::Replies), 1);
    }
    Site::new().refuses(
        A1,
        &arp_request(A1, v4(A1), [10, 1, 1, 99]),
        DropReason::NoNeighbour,
    );
    // The other subnet's addresses are not on this link.
    Site::new().refuses(
        A1,
        &arp_request(A1, v4(A1), v4(B1)),
        DropReason::NoNeighbour,
    );
}

#[test]
fn arp_probe_is_answered_only_where_another_has_the_address() {
    let silent = |frame: Vec<u8>| {
        let seen = Site::new().inject(A1, &frame);
        assert_eq!((seen.sent.len(), seen.drops.len()), (0, 0));
    };
    silent(arp_request(A1, [0; 4], v4(A1)));
    silent(arp_request(A1, [0; 4], [10, 1, 1, 99]));
    for taken in [v4(A2), GATEWAY4] {
        let answer = arp_answer(&Site::new().inject(A1, &arp_request(A1, [0; 4], taken)));
        assert_eq!(answer.sender, taken);
    }
}

#[test]
fn announcements_of_the_owner_pass() {
    let seen = Site::new().inject(A1, &arp_request(A1, v4(A1), v4(A1)));
    assert_eq!(seen.slots(), [A2, R]);
}

pub fn neighbour_solicit(source: [u8; 16], target: [u8; 16]) -> Vec<u8> {
    let mut message = [0; 64];
    let link = (source != UNSPECIFIED6).then_some(mac(A1));
    let n = nd::NeighbourSolicit {
        target,
        source_link: link,
    }
    .emit(&mut message)
    .unwrap();
    let group = solicited_node(&target);
    icmp6(
        (mac(A1), MacAddress::of_group6(group)),
        (source, group),
        255,
        &message[..n],
    )
}

fn advertised(seen: &Seen) -> ([u8; 16], NeighbourAdvert) {
    let sent = seen.only();
    let parsed = sent.parsed();
    let ip = parsed.ip().unwrap();
    assert_eq!((sent.slot, ip.hop_limit), (A1, 255));
    assert!(wire::checksum::verifies(
        &ip.source,
        &ip.destination,
        58,
        sent.transport()
    ));
    match nd::Message::parse(sent.transport()).unwrap() {
        nd::Message::NeighbourAdvert(advert) => (ip.destination, advert),
        other => panic!("{other:?}"),
    }
}

#[test]
fn neighbour_solicitations_are_answered_from_the_table() {
    for (target, owner, router) in [
        (GATEWAY6, GATEWAY, true),
        (link_local(GATEWAY), GATEWAY, true),
        (v6(A2), mac(A2), false),
        (link_local(mac(A2)), mac(A2), false),
        (v6(R), mac(R), true),
    ] {
        let seen = Site::new().inject(A1, &neighbour_solicit(v6(A1), target));
        let (to, advert) = advertised(&seen);
        assert_eq!(
            (to, advert.target, advert.target_link),
            (v6(A1), target, Some(owner))
        );
        assert_eq!(
            (advert.router, advert.solicited, advert.overrides),
            (router, true, true)
        );
    }
    let mut nobody = v6(A1);
    nobody[15] = 99;
    Site::new().refuses(
        A1,
        &neighbour_solicit(v6(A1), nobody),
        DropReason::NoNeighbour,
    );
}

#[test]
fn duplicate_address_detection_is_never_answered_falsely() {
    let mut free = v6(A1);
    free[15] = 99;
    for target in [v6(A1), link_local(mac(A1)), free] {
        let seen = Site::new().inject(A1, &neighbour_solicit(UNSPECIFIED6, target));
        assert_eq!((seen.sent.len(), seen.drops.len()), (0, 0), "{target:?}");
    }
    for target in [v6(A2), GATEWAY6, link_local(GATEWAY)] {
        let (to, advert) =
            advertised(&Site::new().inject(A1, &neighbour_solicit(UNSPECIFIED6, target)));
        assert_eq!(
            (to, advert.target, advert.solicited),
            (ALL_NODES, target, false)
        );
    }
}

fn router_advert(sent: &Sent) -> nd::RouterAdvert {
    let parsed = sent.parsed();
    let ip = parsed.ip().unwrap();
    assert_eq!(ip.hop_limit, 255);
    assert!(wire::checksum::verifies(
        &ip.source,
        &ip.destination,
        58,
        sent.transport()
    ));
    match nd::Message::parse(sent.transport()).unwrap() {
        nd::Message::RouterAdvert(advert) => advert,
        other => panic!("{other:?}"),
    }
}

#[test]
fn router_solicitations_are_answered() {
    let frame = icmp6(
        (mac(A1), MacAddress::of_group6(ALL_ROUTERS)),
        (link_local(mac(A1)), ALL_ROUTERS),
        255,
        &[133, 0, 0, 0, 0, 0, 0, 0],
    );
    let seen = Site::new().inject(A1, &frame);
    let sent = seen.only();
    assert_eq!((sent.slot, sent.parsed().destination), (A1, mac(A1)));
    assert_eq!(sent.parsed().ip().unwrap().source, link_local(GATEWAY));
    let advert = router_advert(sent);
    let prefix = advert.options.prefix.unwrap();
    assert_eq!(
        (prefix.prefix[..6].to_vec(), prefix.length),
        (v6(A1)[..6].to_vec(), 64)
    );
    assert!(prefix.on_link && prefix.autonomous && advert.lifetime_s > 0);
    assert_eq!(advert.options.mtu, Some(1500));
    assert_eq!(advert.options.source_link, Some(GATEWAY));
    assert_eq!(advert.options.dns.map(|d| d.0), Some(GATEWAY6));

    let mut site = Site::with(|b| b.subnets[0].flags &= !SUBNET_SLAAC);
    assert!(
        !router_advert(site.inject(A1, &frame).only())
            .options
            .prefix
            .unwrap()
            .autonomous
    );
    let mut site = Site::with(|b| b.subnets[0].flags = 0);
    assert_eq!(site.inject(A1, &frame).slots(), [A2, R]);
}

#[test]
fn advertisements_come_by_themselves_at_first_often_then_rarely() {
    let mut site = Site::new();
    let mut seen = Vec::new();
    let start = site.now;
    while site.now < start + 3600 * SECOND {
        let wait = site.deadline().saturating_sub(site.now);
        assert!(wait > 0, "a deadline that has passed was not served");
        let due = site.after(wait);
        seen.extend(
            due.sent
                .iter()
                .filter(|s| s.slot == A1)
                .map(|_| (site.now - start) / SECOND),
        );
        assert!(
            due.sent
                .iter()
                .all(|s| s.parsed().destination == MacAddress::of_group6(ALL_NODES))
        );
    }
    assert_eq!(&seen[..4], &[0, 16, 32, 48]);
    assert!((10..=13).contains(&seen.len()), "{seen:?}");
    let mut quiet = Site::with(|b| b.subnets.iter_mut().for_each(|s| s.flags = 0));
    assert_eq!(
        (quiet.deadline(), quiet.after(3600 * SECOND).sent.len()),
        (u64::MAX, 0)
    );
}

pub fn dhcp(kind: u8, options: &[u8]) -> Vec<u8> {
    dhcp_from(mac(A1), [0; 4], kind, options)
}

fn dhcp_from(client: MacAddress, ciaddr: [u8; 4], kind: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[4..8].copy_from_slice(&[1, 2, 3, 4]);
    message[12..16].copy_from_slice(&ciaddr);
    message[28..34].copy_from_slice(&client.0);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend_from_slice(&[53, 1, kind]);
    message.extend_from_slice(options);
    message.push(255);
    if ciaddr == [0; 4] {
        udp4(
            (mac(A1), MacAddress::BROADCAST),
            ([0; 4], [255; 4]),
            (68, 67),
            &message,
        )
    } else {
        udp4((mac(A1), GATEWAY), (ciaddr, GATEWAY4), (68, 67), &message)
    }
}

/// Type, yiaddr and an option of a reply.
fn offered(seen: &Seen, option: u8) -> (u8, [u8; 4], Option<Vec<u8>>) {
    let sent = seen.only();
    let parsed = sent.parsed();
    let ip = parsed.ip().unwrap();
    assert_eq!((sent.slot, ip.source), (A1, mapped(GATEWAY4)));
    assert!(wire::checksum::verifies(
        &ip.source,
        &ip.destination,
        17,
        sent.transport()
    ));
    let m = &sent.transport()[8..];
    let mut options = &m[240..];
    let mut found = std::collections::BTreeMap::new();
    while let [kind, rest @ ..] = options {
        if *kind == 255 {
            break;
        }
        let n = usize::from(rest[0]);
        found.insert(*kind, rest[1..=n].to_vec());
        options = &rest[1 + n..];
    }
    (
        found[&53][0],
        [m[16], m[17], m[18], m[19]],
        found.get(&option).cloned(),
    )
}

#[test]
fn dhcp_offers_and_gives_the_one_address() {
    let mut site = Site::new();
    let seen = site.inject(A1, &dhcp(1, &[]));
    assert_eq!(offered(&seen, 1), (2, v4(A1), Some(vec![255, 255, 255, 0])));
    assert_eq!(offered(&seen, 3).2, Some(GATEWAY4.to_vec()));
    assert_eq!(offered(&seen, 6).2, Some(vec![10, 1, 1, 53]));
    assert_eq!(offered(&seen, 26).2, Some(1500u16.to_be_bytes().to_vec()));
    assert_eq!(offered(&seen, 51).2, Some(3600u32.to_be_bytes().to_vec()));
    assert_eq!(offered(&seen, 54).2, Some(GATEWAY4.to_vec()));
    let [a, b, c, d] = v4(A1);
    let seen = site.inject(A1, &dhcp(3, &[50, 4, a, b, c, d, 54, 4, 10, 1, 1, 1]));
    assert_eq!(offered(&seen, 51).0, 5);
    let seen = site.inject(A1, &dhcp_from(mac(A1), v4(A1), 3, &[]));
    assert_eq!(
        (offered(&seen, 51).0, seen.only().parsed().destination),
        (5, mac(A1))
    );
    assert_eq!(
        offered(&site.inject(A1, &dhcp_from(mac(A1), v4(A1), 8, &[])), 51),
        (5, [0; 4], None)
    );
}

#[test]
fn dhcp_refuses_other_addresses_and_leaves_other_servers_alone() {
    let mut site = Site::new();
    let seen = site.inject(A1, &dhcp(3, &[50, 4, 10, 1, 1, 11, 54, 4, 10, 1, 1, 1]));
    assert_eq!(offered(&seen, 1), (6, [0; 4], None));
    for (kind, options) in [
        (3, &[50, 4, 10, 1, 1, 10, 54, 4, 10, 1, 1, 2][..]),
        (4, &[]),
        (7, &[]),
    ] {
        let seen = site.inject(A1, &dhcp(kind, options));
        assert_eq!((seen.sent.len(), seen.drops.len()), (0, 0));
    }
}

#[test]
fn dhcp_client_must_speak_of_its_own_mac() {
    Site::new().refuses(A1, &dhcp_from(mac(A2), [0; 4], 1, &[]), DropReason::BadDhcp);
}

#[test]
fn dhcp_that_is_malformed_is_dropped() {
    for payload in [&[1u8, 1, 6, 0][..], &[0; 300], &[0xff; 1400]] {
        let frame = udp4(
            (mac(A1), MacAddress::BROADCAST),
            ([0; 4], [255; 4]),
            (68, 67),
            payload,
        );
        Site::new().refuses(A1, &frame, DropReason::BadDhcp);
    }
}

#[test]
fn dhcp_where_it_is_off_is_the_subnets_own_affair() {
    let mut site = Site::with(|b| b.subnets[0].flags = 0);
    assert_eq!(site.inject(A1, &dhcp(1, &[])).slots(), [A2, R]);
}
