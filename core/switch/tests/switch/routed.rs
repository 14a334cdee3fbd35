//! Agreements of prefixes: two switches, the tag between them, and addresses that stay
//! what they are.

use crate::support::*;
use core_switch::Slot;
use image::CompartmentTables;
use image::compartment::*;
use image::rules::{Action, RuleTable};
use telemetry::drops::DropReason;
use wire::address::mapped;
use wire::tcp::{ACK, SYN};
use wire::{MacAddress, Tuple};

const AGREED: u16 = 9;
/// As the fabric carries it.
const LINK: (MacAddress, MacAddress) = (
    MacAddress([2, 0x62, 0x68, 0, 0, 1]),
    MacAddress([2, 0x62, 0x68, 0, 0, 2]),
);

/// Blue's: A1 and A2's networks.
fn users() -> Vec<([u8; 16], u32)> {
    vec![(mapped([10, 1, 1, 0]), 120), (network(A1), 64)]
}
/// Red's: B1's networks, and what is behind its router.
fn offered() -> Vec<([u8; 16], u32)> {
    vec![
        (mapped([10, 1, 2, 0]), 120),
        (mapped([10, 9, 0, 0]), 112),
        (network(B1), 64),
    ]
}
fn network(slot: Slot) -> [u8; 16] {
    let mut address = v6(slot);
    address[8..].fill(0);
    address
}

/// A side, with the ports of it (none = all) and who begins.
fn side(role: u16, flags: u16, ports: &[(u8, u16, u16)]) -> Site {
    Site::with(|tables| {
        tables.rule_tables = vec![RuleTable {
            rules: vec![],
            default: Action::Allow,
        }];
        for endpoint in &mut tables.endpoints {
            (endpoint.egress, endpoint.ingress) = (0, 0);
            endpoint.connections = 64;
        }
        tables.crossings = vec![Crossing {
            agreement: 5,
            tag: AGREED,
            mtu: 1400,
            role,
            flags: CROSSING_ROUTED | flags,
            endpoint: NONE,
            ..Crossing::default()
        }];
        let ports = ports.iter().map(|(protocol, first, last)| ServicePorts {
            protocol: *protocol,
            first: *first,
            last: *last,
            ..ServicePorts::default()
        });
        tables.service_ports = ports.map(|ports| (0, ports)).collect();
        let (own, theirs) = match role {
            CROSSING_OFFERER => (offered(), users()),
            _ => (users(), offered()),
        };
        for (theirs, list) in [(0, own), (1, theirs.clone())] {
            let of = |(prefix, len)| RoutedPrefix {
                prefix,
                len,
                theirs,
            };
            let list = list.into_iter().map(|p| (0, of(p)));
            tables.routed_prefixes.extend(list);
        }
        let route = tables.routes.len() as u32;
        tables.routes.push(Route {
            kind: ROUTE_SERVICE,
            via: 0,
            ..Route::default()
        });
        for (tenant, range) in &mut tables.ranges {
            if *tenant == 0 && theirs.iter().any(|(prefix, _)| *prefix == range.start) {
                range.route = route;
            }
        }
    })
}

fn red(flags: u16) -> Site {
    side(CROSSING_OFFERER, flags, &[])
}
fn blue(flags: u16) -> Site {
    side(CROSSING_ACCEPTOR, flags, &[])
}

/// What one switch sent by the tag, into the other.
#[track_caller]
fn cross(seen: &Seen, to: &mut Site) -> Seen {
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, AGREED));
    to.inject_raw(FABRIC, AGREED, sent.offload, &sent.frame)
}

/// Whatever a switch that was taken over says.
fn lie(to: &mut Site, frame: &[u8]) -> Seen {
    to.inject_raw(FABRIC, AGREED, Default::default(), frame)
}

#[track_caller]
fn refused(seen: &Seen, reason: DropReason) {
    assert_eq!(
        (seen.reasons(), seen.sent.len()),
        (vec![reason], 0),
        "{seen:?}"
    );
}

fn gateway_of(slot: Slot) -> (MacAddress, MacAddress) {
    (mac(slot), gateway_mac(u32::from(slot == B1)))
}

fn syn(from: Slot, ip: ([u8; 16], [u8; 16]), port: u16) -> Vec<u8> {
    tcp(gateway_of(from), ip, (4000, port), (SYN, 100, 0), b"")
}

#[test]
fn addresses_stay_and_answers_come_back_in_both_families() {
    for (asker, server) in [(mapped(v4(A1)), mapped(v4(B1))), (v6(A1), v6(B1))] {
        let (mut red, mut blue) = (red(0), blue(0));
        let came = cross(&blue.inject(A1, &syn(A1, (asker, server), 5432)), &mut red);
        assert_eq!(came.only().slot, B1);
        let expected = Tuple {
            source: asker,
            destination: server,
            source_port: 4000,
            destination_port: 5432,
            protocol: 6,
        };
        assert_eq!(came.only().tuple(), expected);
        assert_eq!(came.only().parsed().ip().unwrap().hop_limit, 62);
        let back = tcp(
            gateway_of(B1),
            (server, asker),
            (5432, 4000),
            (SYN | ACK, 500, 101),
            b"",
        );
        let answer = cross(&red.inject(B1, &back), &mut blue);
        assert_eq!(answer.only().slot, A1);
        assert_eq!(answer.only().tuple(), expected.reversed());
    }
}

#[test]
fn a_receiver_believes_no_address_that_takes_no_part() {
    let a = mapped(v4(A1));
    let b = mapped(v4(B1));
    let elsewhere = [mapped([10, 1, 7, 7]), mapped([198, 51, 100, 7]), b];
    for from in elsewhere {
        let frame = tcp(LINK, (from, b), (1, 80), (SYN, 1, 0), b"");
        refused(
            &lie(&mut red(CROSSING_BOTH), &frame),
            DropReason::RoutedPrefix,
        );
    }
    // Red's own others, and by red to elsewhere.
    for to in [
        mapped(v4(A2)),
        mapped([198, 51, 100, 7]),
        mapped([172, 16, 0, 1]),
    ] {
        let frame = tcp(LINK, (a, to), (1, 80), (SYN, 1, 0), b"");
        refused(
            &lie(&mut red(CROSSING_BOTH), &frame),
            DropReason::RoutedPrefix,
        );
    }
    // An endpoint whose own address takes no part.
    let mut blue = blue(0);
    blue.change(|tables| {
        tables.routed_prefixes[0].1 = RoutedPrefix {
            prefix: a,
            len: 128,
            theirs: 0,
        };
    });
    assert_eq!(blue.inject(A1, &syn(A1, (a, b), 80)).only().slot, FABRIC);
    let other = syn(A2, (mapped(v4(A2)), b), 80);
    blue.refuses(A2, &other, DropReason::RoutedPrefix);
}

#[test]
fn only_what_is_offered_begins_also_by_a_switch_that_lies() {
    let ports = [(6, 5432, 5433)];
    let mut blue = side(CROSSING_ACCEPTOR, 0, &ports);
    let mut red = side(CROSSING_OFFERER, 0, &ports);
    let (a, b) = (mapped(v4(A1)), mapped(v4(B1)));
    let wrong = syn(A1, (a, b), 22);
    blue.refuses(A1, &wrong, DropReason::ServicePort);
    refused(&lie(&mut red, &wrong), DropReason::ServicePort);
    let udp = udp4(LINK, (v4(A1), v4(B1)), (1, 5432), b"?");
    refused(&lie(&mut red, &udp), DropReason::ServicePort);
    let right = cross(&blue.inject(A1, &syn(A1, (a, b), 5433)), &mut red);
    assert_eq!(right.only().slot, B1);
}

#[test]
fn the_offerer_begins_only_where_both_say_so() {
    let (a, b) = (mapped(v4(A1)), mapped(v4(B1)));
    let begins = syn(B1, (b, a), 80);
    red(0).refuses(B1, &begins, DropReason::ServiceUnasked);
    refused(&lie(&mut blue(0), &begins), DropReason::ServiceUnasked);
    // An answer to nothing is none.
    let answer = tcp(LINK, (b, a), (80, 4000), (SYN | ACK, 1, 1), b"");
    refused(&lie(&mut blue(0), &answer), DropReason::ServiceUnasked);

    let (mut red, mut blue) = (red(CROSSING_BOTH), blue(CROSSING_BOTH));
    let came = cross(&red.inject(B1, &begins), &mut blue);
    assert_eq!(came.only().slot, A1);
    let back = tcp(gateway_of(A1), (a, b), (80, 4000), (SYN | ACK, 9, 101), b"");
    let answer = cross(&blue.inject(A1, &back), &mut red);
    assert_eq!(answer.only().slot, B1);
    let data = tcp(gateway_of(B1), (b, a), (4000, 80), (ACK, 101, 10), b"x");
    assert_eq!(cross(&red.inject(B1, &data), &mut blue).only().slot, A1);
    // Taken back by either: what is live is cut at that side.
    for site in [&mut red, &mut blue] {
        site.change(|tables| tables.crossings[0].flags = CROSSING_ROUTED);
    }
    red.refuses(B1, &data, DropReason::ServiceUnasked);
    refused(&lie(&mut blue, &data), DropReason::ServiceUnasked);
}

#[test]
fn the_rules_of_both_ends_hold() {
    let question = udp4(gateway_of(A1), (v4(A1), v4(B1)), (4000, 53), b"?");
    let (mut red, mut blue) = (red(0), blue(0));
    let deny = RuleTable {
        rules: vec![],
        default: Action::Deny,
    };
    let denies = |tables: &mut CompartmentTables, endpoint: usize, ingress: bool| {
        tables.rule_tables.push(deny.clone());
        match ingress {
            true => tables.endpoints[endpoint].ingress = 1,
            false => tables.endpoints[endpoint].egress = 1,
        }
    };
    assert_eq!(cross(&blue.inject(A1, &question), &mut red).only().slot, B1);
    // What is live is cut by the receiver's rule.
    red.change(|tables| denies(tables, 3, true));
    refused(
        &cross(&blue.inject(A1, &question), &mut red),
        DropReason::IngressRule,
    );
    blue.change(|tables| denies(tables, 0, false));
    blue.refuses(A1, &question, DropReason::EgressRule);
}

/// An ICMP error's kind and code, of whom it tells, and the packet that it quotes.
#[track_caller]
fn told(sent: &Sent) -> (u8, u8, [u8; 16], Tuple) {
    sent.tuple();
    let parsed = sent.parsed();
    let quoted = wire::inner::parse(&sent.frame, &parsed).unwrap().tuple;
    let transport = sent.transport();
    (
        transport[0],
        transport[1],
        parsed.ip().unwrap().source,
        quoted,
    )
}

#[test]
fn the_other_switch_tells_of_errors_as_the_gateway_there() {
    let tuple = |to: [u8; 16]| Tuple {
        source: mapped(v4(A1)),
        destination: to,
        source_port: 4000,
        destination_port: 53,
        protocol: 17,
    };
    let gateway = mapped([10, 1, 2, 1]);
    let ask = |to: [u8; 4], hop_limit: u8, more: usize| {
        let header = wire::ipv4::Header {
            ttl: hop_limit,
            dont_fragment: true,
            ..wire::ipv4::Header::new(v4(A1), to, 17)
        };
        udp4_with(gateway_of(A1), header, (4000, 53), &vec![7; more])
    };
    let mut red = red(0);
    red.change(|tables| tables.endpoints[3].mtu = 1300);
    for (frame, to, reason, kind) in [
        (ask(v4(B1), 2, 1), v4(B1), DropReason::HopLimit, (11, 0)),
        (
            ask([10, 1, 2, 77], 64, 1),
            [10, 1, 2, 77],
            DropReason::NoNeighbour,
            (3, 1),
        ),
        (ask(v4(B1), 64, 1350), v4(B1), DropReason::TooBig, (3, 4)),
    ] {
        let mut blue = blue(0);
        let sent = blue.inject(A1, &frame);
        let there = lie(&mut red, &sent.only().frame);
        assert_eq!(there.reasons(), [reason], "{there:?}");
        let error = &there.sent[0];
        assert_eq!(
            (error.slot, error.tag, there.sent.len()),
            (FABRIC, AGREED, 1)
        );
        let home = lie(&mut blue, &error.frame);
        assert_eq!(home.only().slot, A1);
        let (is, code, source, quoted) = told(home.only());
        assert_eq!((is, code), kind, "{reason:?}");
        assert_eq!((source, quoted), (gateway, tuple(mapped(to))));
    }
    // To those whom no prefix of the agreement has, nothing is told.
    let stranger = udp4(LINK, ([10, 1, 7, 7], [10, 1, 2, 77]), (1, 2), b"?");
    refused(&lie(&mut red, &stranger), DropReason::RoutedPrefix);
}

#[test]
fn errors_that_are_asked_for_are_as_many_as_for_an_endpoint() {
    let mut red = red(0);
    let mut told = 0;
    for port in 0..500 {
        let frame = udp4(LINK, (v4(A1), [10, 1, 2, 77]), (port, 2), b"?");
        told += lie(&mut red, &frame).sent.len();
    }
    assert_eq!(told, 100);
}

#[test]
fn a_router_without_an_address_there_speaks_as_who_was_asked() {
    let (mut red, mut blue) = (red(0), blue(0));
    let behind = [10, 9, 1, 1];
    let question = udp4(gateway_of(A1), (v4(A1), behind), (4000, 53), b"?");
    let came = cross(&blue.inject(A1, &question), &mut red);
    assert_eq!(came.only().slot, R);
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&came.only().frame[14..]);
    let error = |source, message: &[u8]| {
        let header = wire::ipv4::Header::new(source, v4(A1), 1);
        icmp4((mac(R), GATEWAY), header, message)
    };
    let home = cross(&red.inject(R, &error(v4(R), &message)), &mut blue);
    let (kind, code, source, quoted) = told(home.only());
    assert_eq!((kind, code, source), (3, 1, mapped(behind)));
    assert_eq!(quoted.destination, mapped(behind));
    // One that quotes what nobody sent goes nowhere.
    let end = message.len() - 1;
    message[8 + 20] ^= 1;
    message[end] ^= 1;
    let seen = red.inject(R, &error(v4(R), &message));
    assert!(seen.sent.is_empty(), "{seen:?}");
}

#[test]
fn echo_and_later_fragments_pass() {
    let (mut red, mut blue) = (red(0), blue(0));
    let header = wire::ipv4::Header::new(v4(A1), v4(B1), 1);
    let ping = icmp4(gateway_of(A1), header, &[8, 0, 0, 0, 0, 7, 0, 1]);
    assert_eq!(cross(&blue.inject(A1, &ping), &mut red).only().slot, B1);
    let header = wire::ipv4::Header::new(v4(B1), v4(A1), 1);
    let pong = icmp4(gateway_of(B1), header, &[0, 0, 0, 0, 0, 7, 0, 1]);
    assert_eq!(cross(&red.inject(B1, &pong), &mut blue).only().slot, A1);

    let whole = udp4(gateway_of(A1), (v4(A1), v4(B1)), (4000, 53), &[7; 64]);
    let mut first = whole.clone();
    first.truncate(14 + 20 + 40);
    let mut later = whole[..34].to_vec();
    later.extend_from_slice(&whole[14 + 20 + 40..]);
    for (frame, field) in [(&mut first, 0x2000u16), (&mut later, 5)] {
        let length = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[24..26].fill(0);
        let sum = wire::checksum::internet(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    // A later one alone follows nothing.
    refused(&lie(&mut red, &later), DropReason::Fragment);
    for frame in [&first, &later] {
        assert_eq!(cross(&blue.inject(A1, frame), &mut red).only().slot, B1);
    }
}

#[test]
fn prefixes_that_change_cut_what_is_live() {
    let (mut red, mut blue) = (red(0), blue(0));
    let question = udp4(gateway_of(A1), (v4(A1), v4(B1)), (4000, 53), b"?");
    let reply = udp4(gateway_of(B1), (v4(B1), v4(A1)), (53, 4000), b"!");
    assert_eq!(cross(&blue.inject(A1, &question), &mut red).only().slot, B1);
    let answer = red.inject(B1, &reply);
    assert_eq!(cross(&answer, &mut blue).only().slot, A1);
    let narrower = |tables: &mut CompartmentTables, theirs: u32| {
        for (_, prefix) in &mut tables.routed_prefixes {
            if prefix.theirs == theirs && prefix.len == 120 {
                prefix.len = 128;
            }
        }
    };
    let mut other = self::red(0);
    other.change(|tables| narrower(tables, 1));
    red.change(|tables| narrower(tables, 1));
    let sent = blue.inject(A1, &question);
    refused(&cross(&sent, &mut red), DropReason::RoutedPrefix);
    red.refuses(B1, &reply, DropReason::RoutedPrefix);
    blue.change(|tables| narrower(tables, 1));
    refused(
        &lie(&mut blue, &answer.only().frame),
        DropReason::RoutedPrefix,
    );
}
