//! Agreements: a service of red's at an address of blue's, two switches and the tag
//! between them.

use crate::support::*;
use image::compartment::*;
use image::rules::{Action, RuleTable};
use telemetry::drops::DropReason;
use wire::address::mapped;
use wire::tcp::{ACK, SYN};
use wire::{MacAddress, Tuple};

/// The agreement's tag.
const AGREED: u16 = 9;
const AS4: [u8; 4] = [10, 1, 200, 10];
const AS6: [u8; 16] = [0xfd, 0, 0, 1, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
const POOL4: [u8; 4] = [10, 1, 250, 0];
const POOL6: [u8; 16] = [0xfd, 0, 0, 1, 0, 250, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn everything() -> RuleTable {
    RuleTable {
        rules: vec![],
        default: Action::Allow,
    }
}

fn agreed(tables: &mut image::CompartmentTables, crossing: Crossing) {
    tables.rule_tables = vec![everything()];
    for endpoint in &mut tables.endpoints {
        (endpoint.egress, endpoint.ingress) = (0, 0);
        endpoint.connections = 64;
    }
    tables.crossings = vec![Crossing {
        agreement: 5,
        tag: AGREED,
        mtu: 1400,
        ..crossing
    }];
    tables.service_ports = [(6, 5432, 5433), (17, 5432, 5432)]
        .map(|(protocol, first, last)| {
            let ports = ServicePorts {
                protocol,
                first,
                last,
                ..ServicePorts::default()
            };
            (0, ports)
        })
        .to_vec();
    let route = tables.routes.len() as u32;
    tables.routes.push(Route {
        kind: ROUTE_SERVICE,
        via: 0,
        ..Route::default()
    });
    let ends = |len: u8, four: bool| match four {
        true => u128::MAX >> (96 + len),
        false => u128::MAX >> len,
    };
    let crossing = tables.crossings[0];
    let both = match crossing.role {
        CROSSING_ACCEPTOR => [(mapped(AS4), 0), (AS6, 0)],
        _ => [(mapped(POOL4), ends(28, true)), (POOL6, ends(112, false))],
    };
    for (start, more) in both {
        let end = (u128::from_be_bytes(start) | more).to_be_bytes();
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
        .ranges
        .sort_by_key(|(tenant, range)| (*tenant, range.start));
}

/// Red: B1 serves.
pub(crate) fn red() -> Site {
    Site::with(|tables| {
        let crossing = Crossing {
            role: CROSSING_OFFERER,
            endpoint: 3,
            address4: v4(B1),
            address6: v6(B1),
            pool4: POOL4,
            pool4_len: 28,
            pool6: POOL6,
            pool6_len: 112,
            ..Crossing::default()
        };
        agreed(tables, crossing);
    })
}

/// Blue: with the same addresses as red, A1 asks.
pub(crate) fn blue() -> Site {
    Site::with(|tables| {
        let crossing = Crossing {
            role: CROSSING_ACCEPTOR,
            endpoint: NONE,
            address4: AS4,
            address6: AS6,
            ..Crossing::default()
        };
        agreed(tables, crossing);
    })
}

const GOES: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);

/// What one switch sent by the tag, into the other.
#[track_caller]
pub(crate) fn cross(seen: &Seen, to: &mut Site) -> Seen {
    let sent = seen.only();
    assert_eq!((sent.slot, sent.tag), (FABRIC, AGREED));
    to.inject_raw(FABRIC, AGREED, sent.offload, &sent.frame)
}

#[track_caller]
fn refused(seen: &Seen, reason: DropReason) {
    assert_eq!(
        (seen.reasons(), seen.sent.len()),
        (vec![reason], 0),
        "{seen:?}"
    );
}

fn connects(asker: [u8; 16], service: [u8; 16], server: [u8; 16], pool: ([u8; 16], u32)) {
    let (mut red, mut blue) = (red(), blue());
    let syn = tcp(GOES, (asker, service), (4000, 5432), (SYN, 100, 0), b"");
    let came = cross(&blue.inject(A1, &syn), &mut red);
    assert_eq!(came.only().slot, B1);
    let asked = came.only().tuple();
    assert_eq!((asked.destination, asked.destination_port), (server, 5432));
    let host = u128::from_be_bytes(asked.source) ^ u128::from_be_bytes(pool.0);
    assert!(host >> pool.1 == 0, "{asked:?} is not of the pool");
    assert_eq!(came.only().parsed().ip().unwrap().hop_limit, 62);

    // The answer comes from where blue's endpoint asked.
    let back = tcp(
        (mac(B1), gateway_mac(1)),
        (server, asked.source),
        (5432, asked.source_port),
        (SYN | ACK, 500, 101),
        b"",
    );
    let answer = cross(&red.inject(B1, &back), &mut blue);
    assert_eq!(answer.only().slot, A1);
    let expected = Tuple {
        source: service,
        destination: asker,
        source_port: 5432,
        destination_port: 4000,
        protocol: 6,
    };
    assert_eq!(answer.only().tuple(), expected);
    let data = tcp(
        GOES,
        (asker, service),
        (4000, 5432),
        (ACK, 101, 501),
        &[7; 1000],
    );
    let came = cross(&blue.inject(A1, &data), &mut red);
    assert_eq!(came.only().tuple(), asked);
}

#[test]
fn red_serves_blue_at_blues_own_address_in_both_families() {
    connects(
        mapped(v4(A1)),
        mapped(AS4),
        mapped(v4(B1)),
        (mapped(POOL4), 4),
    );
    connects(v6(A1), AS6, v6(B1), (POOL6, 16));
}

#[test]
fn only_the_services_ports_are_reached_also_by_a_switch_that_lies() {
    let (mut red, mut blue) = (red(), blue());
    let other = tcp(
        GOES,
        (mapped(v4(A1)), mapped(AS4)),
        (1, 22),
        (SYN, 1, 0),
        b"",
    );
    blue.refuses(A1, &other, DropReason::ServicePort);
    // Blue's switch taken over: whatever it sends by the tag, and to whomever.
    let lies = [
        (v4(A1), v4(B1), 22, DropReason::ServicePort),
        (v4(A1), v4(A2), 22, DropReason::ServicePort),
        (v4(B1), v4(A2), 80, DropReason::ServicePort),
    ];
    for (from, to, port, reason) in lies {
        let lie = tcp(
            GOES,
            (mapped(from), mapped(to)),
            (1, port),
            (SYN, 1, 0),
            b"",
        );
        refused(
            &red.inject_raw(FABRIC, AGREED, Default::default(), &lie),
            reason,
        );
    }
    // Another destination with the right port is the service all the same.
    let lie = tcp(
        GOES,
        (mapped([9; 4]), mapped(v4(A2))),
        (1, 5432),
        (SYN, 1, 0),
        b"",
    );
    let seen = red.inject_raw(FABRIC, AGREED, Default::default(), &lie);
    assert_eq!(seen.only().slot, B1);
    // Neighbour discovery, ARP, tags, groups: nothing of that crosses.
    let ask = arp_request(A1, v4(A1), v4(A2));
    let seen = red.inject_raw(FABRIC, AGREED, Default::default(), &ask);
    refused(&seen, DropReason::GroupSource);
    let mut tagged = lie.clone();
    tagged.splice(12..12, [0x81, 0, 0, 1]);
    let seen = red.inject_raw(FABRIC, AGREED, Default::default(), &tagged);
    refused(&seen, DropReason::VlanTag);
}

#[test]
fn the_offerer_begins_nothing_and_unasked_answers_reach_nobody() {
    let (mut red, mut blue) = (red(), blue());
    let mut pool = mapped(POOL4);
    pool[15] |= 3;
    let begins = tcp(
        (mac(B1), gateway_mac(1)),
        (mapped(v4(B1)), pool),
        (1, 80),
        (SYN, 1, 0),
        b"",
    );
    red.refuses(B1, &begins, DropReason::ServiceUnasked);
    // Red's switch taken over: to blue's endpoints, as the service.
    for (source, port) in [(mapped(AS4), 5432), (mapped(v4(A2)), 80)] {
        let lie = tcp(
            GOES,
            (source, mapped(v4(A1))),
            (port, 4000),
            (SYN | ACK, 1, 1),
            b"",
        );
        let seen = blue.inject_raw(FABRIC, AGREED, Default::default(), &lie);
        refused(&seen, DropReason::ServiceUnasked);
    }
    let lie = udp4(GOES, (AS4, v4(A1)), (5432, 4000), b"");
    let seen = blue.inject_raw(FABRIC, AGREED, Default::default(), &lie);
    refused(&seen, DropReason::ServiceUnasked);
    // To outside, through blue: never.
    let lie = udp4(GOES, (AS4, [198, 51, 100, 7]), (5432, 4000), b"");
    let seen = blue.inject_raw(FABRIC, AGREED, Default::default(), &lie);
    refused(&seen, DropReason::NoNeighbour);
}

#[test]
fn what_is_too_long_is_said_at_home() {
    let mut blue = blue();
    let long = tcp(
        GOES,
        (mapped(v4(A1)), mapped(AS4)),
        (4000, 5432),
        (SYN, 1, 0),
        &[7; 1420],
    );
    let seen = blue.inject(A1, &long);
    assert_eq!(seen.reasons(), [DropReason::TooBig]);
    let error = &seen.sent[0];
    assert_eq!(error.slot, A1);
    assert_eq!(
        error.transport()[..8],
        [
            3,
            4,
            error.transport()[2],
            error.transport()[3],
            0,
            0,
            5,
            0x78
        ]
    );
    // It quotes what A1 sent.
    assert_eq!(error.transport()[8 + 12..8 + 20], long[14 + 12..14 + 20]);
}

#[test]
fn an_error_of_the_servers_comes_home_with_the_askers_own_addresses() {
    let (mut red, mut blue) = (red(), blue());
    let question = udp4(GOES, (v4(A1), AS4), (4000, 5432), b"?");
    let came = cross(&blue.inject(A1, &question), &mut red);
    let asked = came.only().clone();
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&asked.frame[14..]);
    let source = wire::address::unmapped(&asked.tuple().source).unwrap();
    let header = wire::ipv4::Header::new(v4(B1), source, 1);
    let error = icmp4((mac(B1), gateway_mac(1)), header, &message);
    let home = cross(&red.inject(B1, &error), &mut blue);
    let home = home.only();
    assert_eq!(home.slot, A1);
    let ip = home.parsed();
    let ip = ip.ip().unwrap();
    assert_eq!((ip.source, ip.destination), (mapped(AS4), mapped(v4(A1))));
    home.tuple();
    let quote = wire::inner::parse(&home.frame, &home.parsed())
        .unwrap()
        .tuple;
    let expected = Tuple {
        source: mapped(v4(A1)),
        destination: mapped(AS4),
        source_port: 4000,
        destination_port: 5432,
        protocol: 17,
    };
    assert_eq!(quote, expected);
}

#[test]
fn two_users_with_one_port_are_told_apart() {
    let (mut red, mut blue) = (red(), blue());
    let mut seen = Vec::new();
    for slot in [A1, A2] {
        let syn = tcp(
            (mac(slot), GATEWAY),
            (mapped(v4(slot)), mapped(AS4)),
            (4000, 5432),
            (SYN, 1, 0),
            b"",
        );
        let came = cross(&blue.inject(slot, &syn), &mut red);
        let asked = came.only().tuple();
        let back = tcp(
            (mac(B1), gateway_mac(1)),
            (asked.destination, asked.source),
            (5432, asked.source_port),
            (SYN | ACK, 5, 2),
            b"",
        );
        let answer = cross(&red.inject(B1, &back), &mut blue);
        assert_eq!(answer.only().slot, slot);
        seen.push(asked);
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn a_revoked_agreement_ends_at_either_side_at_once() {
    for revoked_by_red in [true, false] {
        let (mut red, mut blue) = (red(), blue());
        let question = udp4(GOES, (v4(A1), AS4), (4000, 5432), b"?");
        let asked = cross(&blue.inject(A1, &question), &mut red).only().tuple();
        let ends = |tables: &mut image::CompartmentTables| {
            tables.crossings.clear();
            tables.service_ports.clear();
            let routes: Vec<u32> = (0..)
                .zip(&tables.routes)
                .filter(|(_, route)| route.kind == ROUTE_SERVICE)
                .map(|(at, _)| at)
                .collect();
            tables
                .ranges
                .retain(|(_, range)| !routes.contains(&range.route));
            tables.routes.retain(|route| route.kind != ROUTE_SERVICE);
        };
        let source = wire::address::unmapped(&asked.source).unwrap();
        let link = (mac(B1), gateway_mac(1));
        let reply = udp4(link, (v4(B1), source), (5432, asked.source_port), b"!");
        if revoked_by_red {
            red.change(ends);
            assert_eq!(red.inject(B1, &reply).reasons()[0], DropReason::NoRoute);
            let sent = blue.inject(A1, &question);
            let seen = red.inject_raw(FABRIC, AGREED, Default::default(), &sent.only().frame);
            refused(&seen, DropReason::UnknownMac);
        } else {
            let sent = red.inject(B1, &reply);
            blue.change(ends);
            assert_eq!(blue.inject(A1, &question).reasons()[0], DropReason::NoRoute);
            let seen = blue.inject_raw(FABRIC, AGREED, Default::default(), &sent.only().frame);
            refused(&seen, DropReason::UnknownMac);
        }
    }
}

#[test]
fn the_servers_own_rules_hold_for_the_pool() {
    let (mut red, mut blue) = (red(), blue());
    red.change(|tables| {
        tables.rule_tables.push(RuleTable {
            rules: vec![],
            default: Action::Deny,
        });
        tables.endpoints[3].ingress = 1;
    });
    let question = udp4(GOES, (v4(A1), AS4), (4000, 5432), b"?");
    let seen = cross(&blue.inject(A1, &question), &mut red);
    refused(&seen, DropReason::IngressRule);
    blue.change(|tables| {
        tables.rule_tables.push(RuleTable {
            rules: vec![],
            default: Action::Deny,
        });
        tables.endpoints[0].egress = 1;
    });
    let seen = blue.inject(A1, &question);
    refused(&seen, DropReason::EgressRule);
}

#[test]
fn answers_follow_the_agreement_that_the_pool_is_of() {
    let (mut red, mut blue) = (red(), blue());
    let question = udp4(GOES, (v4(A1), AS4), (4000, 5432), b"?");
    let asked = cross(&blue.inject(A1, &question), &mut red).only().tuple();
    // The pool is another agreement's now; this one's is elsewhere.
    red.change(|tables| {
        let first = tables.crossings[0];
        tables.crossings.push(Crossing {
            agreement: 6,
            tag: AGREED + 1,
            ..first
        });
        tables.crossings[0].pool4 = [10, 1, 251, 0];
        let ports: Vec<_> = tables
            .service_ports
            .iter()
            .map(|(_, ports)| (1, *ports))
            .collect();
        tables.service_ports.extend(ports);
        for route in tables
            .routes
            .iter_mut()
            .filter(|route| route.kind == ROUTE_SERVICE)
        {
            route.via = 1;
        }
    });
    let source = wire::address::unmapped(&asked.source).unwrap();
    let link = (mac(B1), gateway_mac(1));
    let reply = udp4(link, (v4(B1), source), (5432, asked.source_port), b"!");
    red.refuses(B1, &reply, DropReason::ServiceUnasked);
}

#[test]
fn a_user_that_floods_a_service_takes_no_beginning_of_another_user() {
    const OTHER: u16 = AGREED + 1;
    let mut red = red();
    red.change(|tables| {
        let mut pool4 = POOL4;
        pool4[3] = 16;
        tables.crossings.push(Crossing {
            agreement: 6,
            tag: OTHER,
            pool4,
            pool6: [0; 16],
            pool6_len: 0,
            ..tables.crossings[0]
        });
        let ports: Vec<_> = tables.service_ports.iter().map(|(_, p)| (1, *p)).collect();
        tables.service_ports.extend(ports);
        let route = tables.routes.len() as u32;
        tables.routes.push(Route {
            kind: ROUTE_SERVICE,
            via: 1,
            ..Route::default()
        });
        let (start, mut end) = (mapped(pool4), mapped(pool4));
        end[15] |= 15;
        let reserved = [0; 3];
        let range = RouteRange {
            start,
            end,
            route,
            reserved,
        };
        tables.ranges.push((0, range));
        tables.ranges.sort_by_key(|(tenant, r)| (*tenant, r.start));
    });
    let ask = |red: &mut Site, tag, from: [u8; 4], port, flags, (seq, ack)| {
        let ends = (mapped(from), mapped(v4(B1)));
        let frame = tcp(GOES, ends, (port, 5432), (flags, seq, ack), b"");
        red.inject_raw(FABRIC, tag, Default::default(), &frame)
    };
    for round in 0..20u16 {
        let came = ask(&mut red, OTHER, v4(A2), round, SYN, (100, 0));
        let asked = came.only().tuple();
        // Blue's switch taken over, or an endpoint of blue's that may.
        for port in 0..200 {
            ask(&mut red, AGREED, v4(A1), 200 * round + port, SYN, (7, 0));
        }
        let back = tcp(
            (mac(B1), gateway_mac(1)),
            (asked.destination, asked.source),
            (5432, asked.source_port),
            (SYN | ACK, 500, 101),
            b"",
        );
        let sent = red.inject(B1, &back);
        let answer = sent.only();
        assert_eq!((answer.slot, answer.tag), (FABRIC, OTHER), "{round}");
        let done = ask(&mut red, OTHER, v4(A2), round, ACK, (101, 501));
        assert_eq!(done.only().tuple(), asked);
    }
}
