//! Rules and connections.

use crate::support::*;
use image::CompartmentTables;
use image::compartment::NONE;
use image::rules::{Action, Region, Rule, RuleTable};
use proptest::prelude::*;
use std::collections::BTreeSet;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::rules::Outcome;
use wire::MacAddress;
use wire::address::mapped;
use wire::tcp::{ACK, RST, SYN};

const UDP: u8 = 17;
const TCP: u8 = 6;

pub(crate) fn rule(
    protocol: u8,
    ports: core::ops::RangeInclusive<u16>,
    action: Action,
    id: u32,
) -> Rule {
    Rule {
        region: Region {
            protocol: protocol..=protocol,
            destination_port: ports,
            ..Region::ALL
        },
        action,
        log: false,
        id,
    }
}

fn table(rules: Vec<Rule>, default: Action) -> RuleTable {
    RuleTable { rules, default }
}

/// Everybody has the two tables, and room for some connections.
fn judged(egress: RuleTable, ingress: RuleTable) -> impl FnOnce(&mut CompartmentTables) {
    move |tables| {
        tables.rule_tables = vec![egress, ingress];
        for endpoint in &mut tables.endpoints {
            (endpoint.egress, endpoint.ingress) = (0, 1);
            endpoint.connections = 64;
        }
    }
}

/// Anything goes out, UDP port 53 and TCP port 80 go in.
pub(crate) fn servers() -> impl FnOnce(&mut CompartmentTables) {
    judged(
        table(
            vec![
                rule(UDP, 53..=53, Action::Allow, 1),
                rule(UDP, 54..=54, Action::AllowStateless, 4),
                rule(TCP, 80..=80, Action::Allow, 2),
            ],
            Action::Deny,
        ),
        table(
            vec![
                rule(UDP, 53..=54, Action::AllowStateless, 3),
                rule(TCP, 80..=80, Action::AllowStateless, 5),
            ],
            Action::Deny,
        ),
    )
}

const ASKS: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);

fn question(ports: (u16, u16)) -> Vec<u8> {
    udp4(ASKS, (v4(A1), v4(B1)), ports, b"?")
}
fn reply(ports: (u16, u16)) -> Vec<u8> {
    udp4((mac(B1), gateway_mac(1)), (v4(B1), v4(A1)), ports, b"!")
}

#[test]
fn what_no_rule_allows_is_dropped_by_name_on_either_side() {
    let mut site = Site::with(servers());
    site.refuses(A1, &question((1000, 99)), DropReason::EgressRule);
    site.change(|tables| tables.rule_tables[0].default = Action::Allow);
    site.refuses(A1, &question((1000, 99)), DropReason::IngressRule);
    // On one wire as well, and in IPv6.
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 99), b"");
    site.refuses(A1, &frame, DropReason::IngressRule);
    let frame = udp6((mac(A1), mac(A2)), (v6(A1), v6(A2)), (1, 99), b"");
    site.refuses(A1, &frame, DropReason::IngressRule);
    let frame = udp6((mac(A1), mac(A2)), (v6(A1), v6(A2)), (1, 53), b"");
    assert_eq!(site.inject(A1, &frame).only().slot, A2);
}

#[test]
fn what_rules_decide_is_told_once_a_first_packet() {
    let mut site = Site::with(servers());
    let seen = site.inject(A1, &question((1000, 53)));
    let decided = seen.decided.unwrap();
    assert_eq!(decided.outcome, Outcome::Connection);
    assert_eq!(decided.rules, [Some((1, false)), Some((3, false))]);
    assert_eq!((decided.owner, decided.inbound), (A1, false));
    assert_eq!(decided.tuple.destination_port, 53);
    assert_eq!(seen.count(A1, Counter::Connections), 1);
    // What the connection knows asks no rule.
    assert_eq!(site.inject(A1, &question((1000, 53))).decided, None);
    assert_eq!(site.inject(B1, &reply((53, 1000))).decided, None);
    let seen = site.inject(A1, &question((1000, 54)));
    assert_eq!(seen.decided.unwrap().outcome, Outcome::Packet);
    assert_eq!(seen.count(A1, Counter::Connections), 0);
    // Only the rule that denies is told, and whether it logs.
    site.change(|tables| {
        tables.rule_tables[1].rules.insert(
            0,
            Rule {
                log: true,
                ..rule(UDP, 53..=53, Action::Deny, 9)
            },
        );
    });
    let seen = site.inject(A1, &question((2000, 53)));
    assert_eq!(seen.reasons(), [DropReason::IngressRule]);
    let decided = seen.decided.unwrap();
    assert_eq!(decided.outcome, Outcome::Denied);
    assert_eq!(decided.rules, [None, Some((9, true))]);
}

#[test]
fn answers_pass_by_their_connection_and_by_nothing_else() {
    let mut site = Site::with(servers());
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
    assert_eq!(site.inject(A1, &question((1000, 53))).only().slot, B1);
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
    // Another port's answer is nobody's, nor is another endpoint's.
    site.refuses(B1, &reply((53, 1001)), DropReason::EgressRule);
    let frame = udp4((mac(A2), mac(A1)), (v4(A2), v4(A1)), (53, 1000), b"");
    site.refuses(A2, &frame, DropReason::EgressRule);
    // And none any more, long after.
    site.after(3600 * SECOND);
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
}

#[test]
fn a_stateless_rule_lets_nothing_come_back() {
    let mut site = Site::with(servers());
    assert_eq!(site.inject(A1, &question((1000, 54))).only().slot, B1);
    site.refuses(B1, &reply((54, 1000)), DropReason::EgressRule);
}

#[test]
fn tcp_begins_with_a_syn_and_stays_in_its_window() {
    let mut site = Site::with(servers());
    let forth = |flags, seq, ack, data: &[u8]| {
        tcp(
            ASKS,
            (mapped(v4(A1)), mapped(v4(B1))),
            (1000, 80),
            (flags, seq, ack),
            data,
        )
    };
    let back = |flags, seq, ack, data: &[u8]| {
        let link = (mac(B1), gateway_mac(1));
        tcp(
            link,
            (mapped(v4(B1)), mapped(v4(A1))),
            (80, 1000),
            (flags, seq, ack),
            data,
        )
    };
    site.refuses(A1, &forth(ACK, 1, 1, b""), DropReason::ConnectionState);
    assert_eq!(site.inject(A1, &forth(SYN, 100, 0, b"")).only().slot, B1);
    assert_eq!(
        site.inject(B1, &back(SYN | ACK, 500, 101, b"")).only().slot,
        A1
    );
    assert_eq!(
        site.inject(A1, &forth(ACK, 101, 501, b"GET")).only().slot,
        B1
    );
    assert_eq!(
        site.inject(B1, &back(ACK, 501, 104, b"page")).only().slot,
        A1
    );
    site.refuses(
        B1,
        &back(RST, 900_000_000, 0, b""),
        DropReason::ConnectionState,
    );
    site.refuses(
        A1,
        &forth(ACK, 800_000_000, 501, b"x"),
        DropReason::ConnectionState,
    );
    assert_eq!(site.inject(A1, &forth(ACK, 104, 505, b"")).only().slot, B1);
}

#[test]
fn an_error_about_a_connection_comes_back_and_another_does_not() {
    let mut site = Site::with(servers());
    let asked = question((1000, 53));
    site.inject(A1, &asked);
    let unreachable = |quoted: &[u8]| {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&quoted[14..]);
        let header = wire::ipv4::Header::new(v4(B1), v4(A1), 1);
        icmp4((mac(B1), gateway_mac(1)), header, &message)
    };
    assert_eq!(site.inject(B1, &unreachable(&asked)).only().slot, A1);
    let never = unreachable(&question((1001, 53)));
    site.refuses(B1, &never, DropReason::EgressRule);
}

#[test]
fn an_edit_is_obeyed_by_the_next_packet_of_a_live_connection() {
    let mut site = Site::with(servers());
    site.inject(A1, &question((1000, 53)));
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
    // Another edit leaves it alone.
    site.change(|tables| {
        tables.rule_tables[0]
            .rules
            .insert(0, rule(UDP, 1..=1, Action::Deny, 9))
    });
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
    let all = site.clone_rules();
    site.change(|tables| tables.rule_tables[1].rules.clear());
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
    site.refuses(A1, &question((1000, 53)), DropReason::IngressRule);
    // What was cut stays cut.
    site.change(|tables| tables.rule_tables = all);
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
}

#[test]
fn what_nobody_uses_is_cut_in_the_background_within_four_seconds() {
    let mut site = Site::with(servers());
    for port in 0..40 {
        site.inject(A1, &question((1000 + port, 53)));
        site.inject(B1, &reply((53, 1000 + port)));
    }
    let all = site.clone_rules();
    site.change(|tables| tables.rule_tables[1].rules.clear());
    let end = site.now + 4 * SECOND;
    while site.deadline() < end {
        site.after(site.deadline().saturating_sub(site.now).max(1));
    }
    // Nothing is left that these rules would keep.
    site.change(|tables| tables.rule_tables = all);
    for port in 0..40 {
        site.refuses(B1, &reply((53, 1000 + port)), DropReason::EgressRule);
    }
}

#[test]
fn a_change_elsewhere_keeps_connections_and_another_endpoint_in_the_slot_ends_them() {
    let mut site = Site::with(servers());
    site.inject(A1, &question((1000, 53)));
    // More room: the table is made anew around what is in it.
    site.change(|tables| tables.endpoints[1].connections = 500);
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
    site.change(|tables| tables.endpoints[0].id = 77);
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
}

#[test]
fn an_address_that_moved_takes_no_connection_along() {
    let mut site = Site::with(servers());
    site.inject(A1, &question((1000, 53)));
    site.change(|tables| {
        for (owner, address) in &mut tables.addresses {
            if *owner == 0 && *address == mapped(v4(A1)) {
                *owner = 1;
            }
        }
    });
    // A2 has A1's address now; what A1 asked for is not told to it.
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
}

#[test]
fn what_goes_to_many_is_judged_for_each() {
    let all = || judged(table(vec![], Action::Allow), table(vec![], Action::Allow));
    let frame = udp4(
        (mac(A1), MacAddress::BROADCAST),
        (v4(A1), [10, 1, 1, 255]),
        (1, 7),
        b"",
    );
    let mut site = Site::with(all());
    assert_eq!(site.inject(A1, &frame).slots(), [A2, R]);
    site.change(|tables| {
        tables.rule_tables.push(table(vec![], Action::Deny));
        tables.endpoints[1].ingress = 2;
    });
    assert_eq!(site.inject(A1, &frame).slots(), [R]);
    site.change(|tables| tables.endpoints[0].egress = 2);
    site.refuses(A1, &frame, DropReason::EgressRule);
}

#[test]
fn later_fragments_follow_their_first() {
    let mut site = Site::with(servers());
    let part = |place: u16, more: bool, id: u16| {
        let header = wire::ipv4::Header {
            id,
            ..wire::ipv4::Header::new(v4(A1), v4(B1), UDP)
        };
        let mut frame = udp4_with(ASKS, header, (1000, 53), &[7; 64]);
        let field = (place / 8) | if more { 0x2000 } else { 0 };
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[24..26].fill(0);
        let sum = wire::checksum::internet(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    site.refuses(A1, &part(72, false, 5), DropReason::Fragment);
    assert_eq!(site.inject(A1, &part(0, true, 5)).only().slot, B1);
    assert_eq!(site.inject(A1, &part(72, false, 5)).only().slot, B1);
    // Again, over what came; and of another packet.
    site.refuses(A1, &part(72, false, 5), DropReason::Fragment);
    site.refuses(A1, &part(72, false, 6), DropReason::Fragment);
}

#[test]
fn a_flood_of_beginnings_leaves_established_ones_alone_and_starves_nobody() {
    let mut site = Site::with(servers());
    site.inject(A1, &question((1000, 53)));
    site.inject(B1, &reply((53, 1000)));
    site.inject(A1, &question((1000, 53)));
    for port in 2000..5000 {
        assert_eq!(site.inject(A1, &question((port, 53))).only().slot, B1);
    }
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
}

#[test]
fn who_has_no_room_for_connections_is_served_without() {
    let mut site = Site::with(|tables| {
        servers()(tables);
        for endpoint in &mut tables.endpoints {
            endpoint.connections = 0;
        }
    });
    let syn = tcp(
        ASKS,
        (mapped(v4(A1)), mapped(v4(B1))),
        (1000, 80),
        (SYN, 1, 0),
        b"",
    );
    let answers = |from: u16, to: [u8; 4], flags| {
        let link = (mac(B1), gateway_mac(1));
        let ip = (mapped(v4(B1)), mapped(to));
        tcp(link, ip, (from, 1000), (flags, 1, 2), b"")
    };
    // Before it was refused a place, an answer is a stranger.
    let answer = answers(80, v4(A1), SYN | ACK);
    site.refuses(B1, &answer, DropReason::EgressRule);
    assert_eq!(site.inject(A1, &syn).only().slot, B1);
    assert_eq!(site.inject(B1, &answer).only().slot, A1);
    // No more than that: not what begins, nor to what was no question, nor to another.
    let begins = answers(80, v4(A1), SYN);
    site.refuses(B1, &begins, DropReason::EgressRule);
    let other = answers(99, v4(A1), ACK);
    site.refuses(B1, &other, DropReason::EgressRule);
    let other = answers(80, v4(A2), ACK);
    site.refuses(B1, &other, DropReason::EgressRule);
    // UDP does not say whether it answers.
    assert_eq!(site.inject(A1, &question((1000, 53))).only().slot, B1);
    site.refuses(B1, &reply((53, 1000)), DropReason::EgressRule);
    site.after(60 * SECOND);
    site.refuses(B1, &answer, DropReason::EgressRule);
}

#[test]
fn what_has_no_rules_answers_who_has_whatever_its_slot() {
    let mut site = Site::with(|tables| {
        servers()(tables);
        for endpoint in tables.endpoints.iter_mut().filter(|e| e.slot != A1) {
            (endpoint.egress, endpoint.ingress) = (NONE, NONE);
        }
    });
    site.refuses(B1, &reply((53, 1000)), DropReason::IngressRule);
    assert_eq!(site.inject(A1, &question((1000, 53))).only().slot, B1);
    assert_eq!(site.inject(B1, &reply((53, 1000))).only().slot, A1);
}

#[test]
fn who_comes_while_rooms_change_is_served_without_until_its_own_is_there() {
    const NEW: u32 = 9;
    let mut site = Site::with(|tables| {
        servers()(tables);
        tables.endpoints[0].connections = 8192;
    });
    // So many that they are not moved at once.
    for port in 2000..6000 {
        site.inject(A1, &question((port, 53)));
        site.inject(B1, &reply((53, port)));
    }
    // More changes of room than can be under way, and in the last another comes for B1.
    for round in 1..=6u32 {
        site.change(|tables| {
            tables.endpoints[0].connections += round;
            if round == 6 {
                let other = tables.endpoints.iter_mut().find(|e| e.slot == B1).unwrap();
                (other.slot, other.id) = (NEW, 7777);
            }
        });
    }
    let ip = (mapped(v4(B1)), mapped(v4(A1)));
    let asks = tcp((mac(B1), gateway_mac(1)), ip, (1000, 80), (SYN, 1, 2), b"");
    let answer = tcp(ASKS, (ip.1, ip.0), (80, 1000), (SYN | ACK, 1, 2), b"");
    site.refuses(A1, &answer, DropReason::EgressRule);
    assert_eq!(site.inject(NEW, &asks).only().slot, A1);
    assert_eq!(site.inject(A1, &answer).only().slot, NEW);
}

#[test]
fn a_connection_leads_to_its_other_end_alone() {
    let mut site = Site::with(judged(
        table(vec![], Action::Allow),
        table(vec![], Action::Allow),
    ));
    site.change(|tables| {
        tables.rule_tables.push(table(vec![], Action::Deny));
        // R takes nothing.
        tables.endpoints[2].ingress = 2;
    });
    let to = |slot| udp4((mac(A1), mac(slot)), (v4(A1), v4(A2)), (1, 7), b"x");
    assert_eq!(site.inject(A1, &to(A2)).only().slot, A2);
    // The same packet to another's MAC is that one's to refuse.
    site.refuses(A1, &to(R), DropReason::IngressRule);
}

#[test]
fn an_error_goes_to_who_sent_what_it_quotes_and_to_nobody_else() {
    let mut site = Site::with(|tables| {
        judged(
            table(vec![rule(UDP, 7..=7, Action::Allow, 1)], Action::Deny),
            table(vec![rule(UDP, 7..=7, Action::Allow, 1)], Action::Deny),
        )(tables);
    });
    let asked = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 7), b"x");
    assert_eq!(site.inject(A1, &asked).only().slot, A2);
    let error = |to: u32| {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&asked[14..]);
        let header = wire::ipv4::Header::new(v4(A2), v4(to), 1);
        icmp4((mac(A2), mac(to)), header, &message)
    };
    site.refuses(A2, &error(R), DropReason::EgressRule);
    assert_eq!(site.inject(A2, &error(A1)).only().slot, A1);
    // Nor by the right address at another's MAC.
    let mut crooked = error(A1);
    crooked[..6].copy_from_slice(&mac(R).0);
    site.refuses(A2, &crooked, DropReason::EgressRule);
}

#[test]
fn a_fragment_goes_where_its_first_went() {
    let mut site = Site::with(judged(
        table(vec![], Action::Allow),
        table(vec![], Action::Allow),
    ));
    let part = |slot: u32, place: u16, more: bool| {
        let header = wire::ipv4::Header {
            id: 5,
            ..wire::ipv4::Header::new(v4(A1), v4(A2), UDP)
        };
        let mut frame = udp4_with((mac(A1), mac(slot)), header, (1000, 53), &[7; 64]);
        let field = (place / 8) | if more { 0x2000 } else { 0 };
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[24..26].fill(0);
        let sum = wire::checksum::internet(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    assert_eq!(site.inject(A1, &part(A2, 0, true)).only().slot, A2);
    site.refuses(A1, &part(R, 72, true), DropReason::Fragment);
    assert_eq!(site.inject(A1, &part(A2, 144, false)).only().slot, A2);
}

#[test]
fn neighbours_find_each_other_under_any_rules() {
    let mut site = Site::with(judged(
        table(vec![], Action::Deny),
        table(vec![], Action::Deny),
    ));
    let seen = site.inject(A1, &arp_request(A1, v4(A1), v4(A2)));
    assert_eq!(seen.only().slot, A1);
    let echo = icmp4(
        ASKS,
        wire::ipv4::Header::new(v4(A1), GATEWAY4, 1),
        &[8, 0, 0, 0, 0, 1, 0, 1],
    );
    assert_eq!(site.inject(A1, &echo).only().slot, A1);
}

#[test]
fn under_rules_neighbours_say_nothing_to_each_other() {
    let mut site = Site::with(judged(
        table(vec![], Action::Deny),
        table(vec![], Action::Deny),
    ));
    let reply = arp(
        (mac(A1), mac(A2)),
        wire::arp::Message {
            operation: wire::arp::Operation::Reply,
            sender_mac: mac(A1),
            sender: v4(A1),
            target_mac: mac(A2),
            target: v4(A2),
        },
    );
    assert!(site.inject(A1, &reply).sent.is_empty());
    let announce = arp_request(A1, v4(A1), v4(A1));
    assert!(site.inject(A1, &announce).sent.is_empty());
    let mut advert = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    advert.extend_from_slice(&v6(A1));
    let advert = icmp6((mac(A1), mac(A2)), (v6(A1), v6(A2)), 255, &advert);
    assert!(site.inject(A1, &advert).sent.is_empty());
}

#[test]
fn without_tables_nothing_is_tracked() {
    let mut site = Site::with(|tables| {
        for endpoint in &mut tables.endpoints {
            assert_eq!((endpoint.egress, endpoint.ingress), (NONE, NONE));
            endpoint.connections = 64;
        }
    });
    assert_eq!(site.inject(A1, &question((1000, 53))).only().slot, B1);
    assert_eq!(site.inject(B1, &reply((1, 1000))).only().slot, A1);
}

fn small_table() -> impl Strategy<Value = RuleTable> {
    let action = || {
        prop_oneof![
            Just(Action::Deny),
            Just(Action::Allow),
            Just(Action::AllowStateless)
        ]
    };
    let one = (50u16..56, 0u16..3, action()).prop_map(|(first, more, action)| {
        rule(UDP, first..=first + more, action, u32::from(first))
    });
    (proptest::collection::vec(one, 0..5), action())
        .prop_map(|(rules, default)| RuleTable { rules, default })
}

proptest! {
    /// The verdict that a connection keeps is the one that the rules give: against a
    /// model that asks the rules each time and remembers who began what.
    #[test]
    fn a_kept_verdict_is_the_slow_paths(
        egress in small_table(),
        ingress in small_table(),
        packets in proptest::collection::vec((any::<bool>(), 50u16..58, 50u16..58), 1..60),
    ) {
        // Room for all: what is evicted is another matter.
        let mut site = Site::with(|tables| {
            judged(egress.clone(), ingress.clone())(tables);
            tables.endpoints.iter_mut().for_each(|e| e.connections = 512);
        });
        // By (from A1, source port, destination port) as they were begun.
        let mut begun: BTreeSet<(bool, u16, u16)> = BTreeSet::new();
        for (from_a, source, destination) in packets {
            let (frame, slot) = match from_a {
                true => (question((source, destination)), A1),
                false => (reply((source, destination)), B1),
            };
            let parsed = wire::parse(&frame, frame.len()).unwrap();
            let tuple = wire::Tuple::of_rules(parsed.ip().unwrap()).unwrap();
            let verdicts = [egress.judge(&tuple).action, ingress.judge(&tuple).action];
            let known = begun.contains(&(from_a, source, destination))
                || begun.contains(&(!from_a, destination, source));
            let passes = known || !verdicts.contains(&Action::Deny);
            if !known && passes && verdicts.contains(&Action::Allow) {
                begun.insert((from_a, source, destination));
            }
            prop_assert_eq!(site.inject(slot, &frame).sent.len(), usize::from(passes));
        }
    }
}

proptest! {
    /// After an edit each live connection stands or falls as the new rules say, also
    /// where only what differs between the lists was looked at.
    #[test]
    fn after_an_edit_connections_are_what_the_new_rules_say(
        before in proptest::collection::vec(small_table(), 2),
        (which, edited, at) in (0usize..2, small_table(), 0usize..6),
        ports in proptest::collection::btree_set((50u16..58, 50u16..58), 1..30),
    ) {
        let mut site = Site::with(|tables| {
            judged(before[0].clone(), before[1].clone())(tables);
            tables.endpoints.iter_mut().for_each(|e| e.connections = 512);
        });
        let tuple = |(source, destination): (u16, u16)| {
            let frame = question((source, destination));
            let parsed = wire::parse(&frame, frame.len()).unwrap();
            wire::Tuple::of_rules(parsed.ip().unwrap()).unwrap()
        };
        let says = |tables: &[RuleTable], ports| {
            tables.iter().map(|table| table.judge(&tuple(ports)).action).collect::<Vec<_>>()
        };
        let mut begun = Vec::new();
        for &(a, b) in ports.iter().filter(|(a, b)| !ports.contains(&(*b, *a)) || a < b) {
            let verdicts = says(&before, (a, b));
            let sent = site.inject(A1, &question((a, b))).sent.len();
            prop_assert_eq!(sent == 1, !verdicts.contains(&Action::Deny));
            if sent == 1 && verdicts.contains(&Action::Allow) {
                begun.push((a, b));
            }
        }
        // One rule in, out or moved; or another list altogether.
        let mut after = before.clone();
        match (at, edited.rules.first()) {
            (0, _) => after[which] = edited,
            (1, Some(rule)) => after[which].rules.insert(0, rule.clone()),
            (2, Some(rule)) => after[which].rules.push(rule.clone()),
            (3, _) => drop(after[which].rules.pop()),
            (4, _) => after[which].rules.reverse(),
            _ => after[which].default = edited.default,
        }
        site.change(|tables| tables.rule_tables = after.clone());
        for (a, b) in begun {
            let stands = !says(&after, (a, b)).contains(&Action::Deny);
            let back = says(&after, (b, a));
            let passes = stands || !back.contains(&Action::Deny);
            prop_assert_eq!(site.inject(B1, &reply((b, a))).sent.len() == 1, passes);
        }
    }
}

#[test]
fn rules_and_connections_cost_no_memory_a_packet() {
    let mut site = Site::with(servers());
    for port in 1000..1200 {
        for (from, frame) in [
            (A1, question((port, 53))),
            (B1, reply((53, port))),
            (A1, question((port, 99))),
        ] {
            assert_eq!(crate::allocations::cost(&mut site, from, &frame), 0);
        }
    }
}
