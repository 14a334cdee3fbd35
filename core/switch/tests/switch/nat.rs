//! One IPv4 address for many: translation toward an uplink.

use crate::support::*;
use image::rules::{Action, RuleTable};
use telemetry::drops::DropReason;
use wire::address::mapped;
use wire::tcp::{ACK, SYN};
use wire::{MacAddress, Tuple};

const SERVER: [u8; 4] = [198, 51, 100, 7];
const SHARED: [u8; 4] = [192, 0, 2, 10];
const HOP: MacAddress = MacAddress([2, 0xff, 0, 0, 0, 9]);

/// A1 has ports 1024 to 1123, B1 the hundred behind them.
pub(crate) fn shared() -> Site {
    Site::with(|tables| {
        tables.rule_tables = vec![
            RuleTable {
                rules: vec![],
                default: Action::Allow,
            },
            RuleTable {
                rules: vec![],
                default: Action::Deny,
            },
        ];
        for endpoint in &mut tables.endpoints {
            (endpoint.egress, endpoint.ingress) = (0, 1);
            endpoint.connections = 256;
        }
        let attachment = &mut tables.attachments[0];
        (attachment.nat_first, attachment.nat_block) = (1024, 100);
        tables.nat_blocks = vec![(0, 0), (0, 3)];
        tables.next_hops[0].mac = HOP.0;
    })
}

const GOES: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);
const COMES: (MacAddress, MacAddress) = (HOP, OUTSIDE_MAC);

fn ask(from: u16) -> Vec<u8> {
    udp4(GOES, (v4(A1), SERVER), (from, 53), b"?")
}

#[track_caller]
fn out(seen: &Seen) -> Tuple {
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, TAG));
    let tuple = sent.tuple();
    assert_eq!(tuple.source, mapped(SHARED));
    tuple
}

#[test]
fn packets_leave_as_the_shared_address_and_answers_find_home() {
    let mut site = shared();
    for from in [1050, 40_000] {
        let tuple = out(&site.inject(A1, &ask(from)));
        assert!((1024..1124).contains(&tuple.source_port), "{tuple:?}");
        let answer = udp4(COMES, (SERVER, SHARED), (53, tuple.source_port), b"!");
        let home = site.inject(FABRIC, &answer);
        assert_eq!(home.only().slot, A1);
        let home = home.only().tuple();
        assert_eq!(
            (home.destination, home.destination_port),
            (mapped(v4(A1)), from)
        );
        assert_eq!((home.source, home.source_port), (mapped(SERVER), 53));
        // From another server: nobody asked it.
        let lie = udp4(
            COMES,
            ([198, 51, 100, 8], SHARED),
            (53, tuple.source_port),
            b"!",
        );
        assert!(
            site.inject(FABRIC, &lie)
                .slots()
                .iter()
                .all(|slot| *slot == FABRIC)
        );
    }
    // A port that it has keeps its number.
    assert_eq!(out(&site.inject(A1, &ask(1060))).source_port, 1060);
}

#[test]
fn tcp_and_echo_are_translated_too() {
    let mut site = shared();
    let syn = tcp(
        GOES,
        (mapped(v4(A1)), mapped(SERVER)),
        (5000, 443),
        (SYN, 1, 0),
        b"",
    );
    let tuple = out(&site.inject(A1, &syn));
    let back = (mapped(SERVER), mapped(SHARED));
    let answer = tcp(
        COMES,
        back,
        (443, tuple.source_port),
        (SYN | ACK, 9, 2),
        b"",
    );
    let home = site.inject(FABRIC, &answer);
    assert_eq!(
        (home.only().slot, home.only().tuple().destination_port),
        (A1, 5000)
    );

    let echo = |kind: u8, id: u16| {
        let [high, low] = id.to_be_bytes();
        vec![kind, 0, 0, 0, high, low, 0, 1, 7, 7]
    };
    let header = wire::ipv4::Header::new(v4(A1), SERVER, 1);
    let tuple = out(&site.inject(A1, &icmp4(GOES, header, &echo(8, 77))));
    let header = wire::ipv4::Header::new(SERVER, SHARED, 1);
    let answer = icmp4(COMES, header, &echo(0, tuple.source_port));
    let home = site.inject(FABRIC, &answer);
    assert_eq!(
        (home.only().slot, home.only().tuple().destination_port),
        (A1, 77)
    );
}

#[test]
fn each_endpoint_has_ports_of_its_own_and_who_has_none_stays_in() {
    let mut site = shared();
    let other = udp4(
        (mac(B1), gateway_mac(1)),
        (v4(B1), SERVER),
        (1050, 53),
        b"?",
    );
    let tuple = out(&site.inject(B1, &other));
    assert!((1124..1224).contains(&tuple.source_port), "{tuple:?}");
    let none = udp4((mac(A2), GATEWAY), (v4(A2), SERVER), (1050, 53), b"?");
    site.refuses(A2, &none, DropReason::NoTranslation);
    // One that uses up its own takes none of another's.
    for from in 2000..2400 {
        let port = out(&site.inject(A1, &ask(from))).source_port;
        assert!((1024..1124).contains(&port), "{port}");
    }
    let again = udp4(
        (mac(B1), gateway_mac(1)),
        (v4(B1), SERVER),
        (1051, 53),
        b"?",
    );
    out(&site.inject(B1, &again));
}

#[test]
fn an_error_from_the_way_is_about_the_endpoints_own_packet() {
    let mut site = shared();
    let sent = site.inject(A1, &ask(40_000));
    out(&sent);
    let mut message = vec![11, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&sent.only().frame[14..]);
    let header = wire::ipv4::Header::new([203, 0, 113, 1], SHARED, 1);
    let home = site.inject(FABRIC, &icmp4(COMES, header, &message));
    let home = home.only();
    assert_eq!(home.slot, A1);
    home.tuple();
    let quote = wire::inner::parse(&home.frame, &home.parsed())
        .unwrap()
        .tuple;
    assert_eq!((quote.source, quote.source_port), (mapped(v4(A1)), 40_000));
    let parsed = home.parsed();
    assert_eq!(parsed.ip().unwrap().destination, mapped(v4(A1)));
}

#[test]
fn the_address_itself_still_answers_and_lets_nobody_in() {
    let mut site = shared();
    let header = wire::ipv4::Header::new(SERVER, SHARED, 1);
    let echo = icmp4(COMES, header, &[8, 0, 0, 0, 0, 7, 0, 1]);
    let seen = site.inject(FABRIC, &echo);
    assert_eq!((seen.only().slot, seen.only().transport()[0]), (FABRIC, 0));
    for port in [22, 1050, 1150, 60_000] {
        let syn = tcp(
            COMES,
            (mapped(SERVER), mapped(SHARED)),
            (1, port),
            (SYN, 1, 0),
            b"",
        );
        let seen = site.inject(FABRIC, &syn);
        assert!(seen.slots().iter().all(|slot| *slot == FABRIC), "{seen:?}");
        assert_eq!(seen.reasons()[0], DropReason::GatewayPort);
    }
}

#[test]
fn what_is_no_connections_is_not_translated() {
    let mut site = shared();
    let stray = tcp(
        GOES,
        (mapped(v4(A1)), mapped(SERVER)),
        (5000, 443),
        (ACK, 1, 1),
        b"",
    );
    site.refuses(A1, &stray, DropReason::ConnectionState);
    let mut other = udp4(GOES, (v4(A1), SERVER), (1, 2), b"");
    other[23] = 47;
    other[24..26].fill(0);
    let sum = wire::checksum::internet(&other[14..34]);
    other[24..26].copy_from_slice(&sum.to_be_bytes());
    site.refuses(A1, &other, DropReason::NoTranslation);
}

#[test]
fn inside_addresses_are_not_known_out_there_and_never_leave() {
    let mut site = shared();
    site.change(|tables| tables.rule_tables[1].default = Action::Allow);
    // To a gateway and to an endpoint by their own addresses: neither is answered, since
    // the answer would have them.
    for inner in [GATEWAY4, v4(A1)] {
        let header = wire::ipv4::Header::new(SERVER, inner, 1);
        let echo = icmp4(COMES, header, &[8, 0, 0, 0, 0, 7, 0, 1]);
        site.refuses(FABRIC, &echo, DropReason::Martian);
        let syn = tcp(
            COMES,
            (mapped(SERVER), mapped(inner)),
            (1, 80),
            (SYN, 1, 0),
            b"",
        );
        site.refuses(FABRIC, &syn, DropReason::Martian);
    }
    // An error about an inside connection, to outside.
    let inside = udp4((mac(A2), mac(A1)), (v4(A2), v4(A1)), (1, 7), b"x");
    site.inject(A2, &inside);
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&inside[14..]);
    let error = icmp4(GOES, wire::ipv4::Header::new(v4(A1), SERVER, 1), &message);
    assert!(site.inject(A1, &error).sent.is_empty());
}

#[test]
fn strangers_take_no_place_of_what_the_endpoint_begins() {
    let mut site = shared();
    site.change(|tables| {
        tables.rule_tables[1].default = Action::Allow;
        tables.attachments[0].nat_block = 0;
        tables.attachments[0].nat_first = 0;
        tables.nat_blocks.clear();
        tables.endpoints[0].connections = 16;
    });
    for port in 1000..1400 {
        let ask = udp4(COMES, (SERVER, v4(A1)), (port, 53), b"?");
        site.inject(FABRIC, &ask);
        let answer = udp4(GOES, (v4(A1), SERVER), (53, port), b"!");
        site.inject(A1, &answer);
    }
    site.change(|tables| tables.rule_tables[1].default = Action::Deny);
    let own = udp4(GOES, (v4(A1), SERVER), (7777, 53), b"?");
    assert_eq!(site.inject(A1, &own).only().slot, FABRIC);
    let answer = udp4(COMES, (SERVER, v4(A1)), (53, 7777), b"!");
    assert_eq!(site.inject(FABRIC, &answer).only().slot, A1);
}

#[test]
fn a_connection_of_before_is_translated_or_over() {
    let mut site = shared();
    let with = |tables: &mut image::CompartmentTables, first: u16| {
        (
            tables.attachments[0].nat_first,
            tables.attachments[0].nat_block,
        ) = (first, 100);
        tables.nat_blocks = vec![(0, 0), (0, 3)];
    };
    site.change(|tables| {
        (
            tables.attachments[0].nat_first,
            tables.attachments[0].nat_block,
        ) = (0, 0);
        tables.nat_blocks.clear();
    });
    let plain = site.inject(A1, &ask(40_000));
    assert_eq!(plain.only().tuple().source, mapped(v4(A1)));
    site.change(|tables| with(tables, 1024));
    let tuple = out(&site.inject(A1, &ask(40_000)));
    assert!((1024..1124).contains(&tuple.source_port), "{tuple:?}");
    // Its ports are another's now.
    site.change(|tables| with(tables, 2024));
    let tuple = out(&site.inject(A1, &ask(40_000)));
    assert!((2024..2124).contains(&tuple.source_port), "{tuple:?}");
}
