//! Traced frames: told step by step, held back, and nothing of them stays.

use crate::support::*;
use core_switch::{Connection, Cursor};
use image::CompartmentTables;
use image::rules::{Action, Region, Rule, RuleTable};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::trace::{Answered, Record, Step};
use wire::MacAddress;
use wire::address::mapped;
use wire::tcp::{ACK, RST, SYN};

const GATED: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);

/// TCP port 80 goes everywhere, by rules 1 and 2; nothing else does.
fn web(tables: &mut CompartmentTables) {
    let rule = |id| Rule {
        region: Region {
            protocol: 6..=6,
            destination_port: 80..=80,
            ..Region::ALL
        },
        action: Action::Allow,
        log: false,
        id,
    };
    let table = |id| RuleTable {
        rules: vec![rule(id)],
        default: Action::Deny,
    };
    tables.rule_tables = vec![table(1), table(2)];
    for endpoint in &mut tables.endpoints {
        (endpoint.egress, endpoint.ingress) = (0, 1);
        endpoint.connections = 64;
    }
}

fn syn(port: u16) -> Vec<u8> {
    segment((SYN, 100, 0), port)
}
fn segment(numbers: (u8, u32, u32), port: u16) -> Vec<u8> {
    let ip = (mapped(v4(A1)), mapped(v4(B1)));
    tcp(GATED, ip, (4000, port), numbers, b"")
}
fn answer(numbers: (u8, u32, u32)) -> Vec<u8> {
    let ip = (mapped(v4(B1)), mapped(v4(A1)));
    tcp((mac(B1), gateway_mac(1)), ip, (80, 4000), numbers, b"")
}

fn connections(site: &Site) -> Vec<Connection> {
    let mut all = Vec::new();
    site.walk(&mut Cursor::default(), &mut |c| all.push(*c));
    all
}

fn dropped(record: &Record) -> Option<DropReason> {
    record.steps().iter().find_map(|step| match step {
        Step::Dropped { reason } => DropReason::from_number(*reason),
        _ => None,
    })
}

#[test]
fn a_packet_that_passes_is_told_whole_and_held_back() {
    let mut site = Site::with(web);
    let (record, seen) = site.traced(A1, &syn(80), false);
    assert_eq!((seen.sent.len(), seen.drops.len()), (0, 0), "{seen:?}");
    assert!(seen.counts.is_empty() && seen.decided.is_none(), "{seen:?}");
    let [parsed, guarded, metered, route, sent, got, begins, out] = record.steps() else {
        panic!("{record:?}");
    };
    assert_eq!(
        [*parsed, *guarded, *metered],
        [Step::Parsed, Step::Guarded, Step::Metered]
    );
    assert_eq!(*route, Step::Routed { slot: B1, tag: 0 });
    for (step, side, owner, id) in [(sent, true, A1, 1), (got, false, B1, 2)] {
        let Step::Rule {
            egress,
            slot,
            rule,
            action,
            tuple,
        } = *step
        else {
            panic!("{step:?}");
        };
        assert_eq!((egress, slot, rule, action), (side, owner, id, 1));
        assert_eq!((tuple.source_port, tuple.destination_port), (4000, 80));
    }
    assert_eq!(*begins, Step::Begins { tracked: true });
    let (slot, bytes, real) = (B1, 54, false);
    let expected = Step::Sent {
        slot,
        tag: 0,
        bytes,
        cut: false,
        real,
    };
    assert_eq!(*out, expected);
    // What left is what the real one would have been.
    let left = record.left().unwrap();
    let twin = Site::with(web).inject(A1, &syn(80)).only().clone();
    assert_eq!(left, (twin.slot, twin.tag, &twin.frame[..]));
}

#[test]
fn a_drop_is_told_with_its_rule_and_where_nobody_asked() {
    let mut site = Site::with(web);
    let (record, seen) = site.traced(A1, &syn(81), false);
    assert_eq!(dropped(&record), Some(DropReason::EgressRule));
    let [.., rule, _] = record.steps() else {
        panic!("{record:?}")
    };
    let denied = matches!(
        rule,
        Step::Rule {
            egress: false,
            rule: u32::MAX,
            action: 0,
            ..
        }
    );
    assert!(denied, "both ends are told: {record:?}");
    assert!(record.left().is_none() && seen.sent.is_empty());
    // Before rules: the guard, and what does not parse.
    let ip = (mapped(v4(A2)), mapped(v4(B1)));
    let spoofed = tcp(GATED, ip, (4000, 80), (SYN, 1, 0), b"");
    let (record, _) = site.traced(A1, &spoofed, false);
    assert_eq!(dropped(&record), Some(DropReason::SourceIp));
    assert_eq!(record.steps().len(), 2);
    let (record, _) = site.traced(A1, &[0; 10], false);
    assert_eq!(dropped(&record), Some(DropReason::Malformed));
    assert_eq!(record.steps().len(), 1);
}

#[test]
fn what_answers_is_traced_by_the_connection_and_then_nothing_is_left_of_it() {
    let mut site = Site::with(web);
    site.traced(A1, &syn(80), false);
    let (record, _) = site.traced(B1, &answer((SYN | ACK, 500, 101)), false);
    assert_eq!(dropped(&record), None, "{record:?}");
    let known = record.steps().iter().find_map(|step| match step {
        Step::Connection {
            back, own, rules, ..
        } => Some((*back, *own, *rules)),
        _ => None,
    });
    assert_eq!(known, Some((true, true, [1, 2])), "{record:?}");
    assert_eq!(connections(&site).len(), 1);
    site.end_trace();
    assert_eq!(connections(&site), []);
    // Nobody began it: what answers is nothing any more.
    site.refuses(B1, &answer((SYN | ACK, 500, 101)), DropReason::EgressRule);
    // A new image ends it as well: numbers may be others' then.
    site.traced(A1, &syn(80), false);
    site.change(|_| {});
    assert_eq!(connections(&site), []);
}

#[test]
fn connections_of_others_are_asked_and_not_touched() {
    let mut site = Site::with(web);
    for (from, frame) in [
        (A1, syn(80)),
        (B1, answer((SYN | ACK, 500, 101))),
        (A1, segment((ACK, 101, 501), 80)),
    ] {
        assert_eq!(site.inject(from, &frame).sent.len(), 1);
    }
    let before = connections(&site);
    // A reset that fits would end it, a packet would be counted, a SYN is out of place.
    for (numbers, reason) in [
        ((ACK, 101, 501), None),
        ((RST | ACK, 101, 501), None),
        ((SYN, 900_000, 0), Some(DropReason::ConnectionState)),
    ] {
        let (record, _) = site.traced(A1, &segment(numbers, 80), false);
        let reset = record.steps().iter().any(
            |step| matches!(step, Step::Connection { own: false, state, .. } if *state == flow::State::Established as u8),
        );
        assert!(reset, "{record:?}");
        if reason.is_none() {
            assert_eq!(dropped(&record), None, "{record:?}");
        }
        assert_eq!(connections(&site), before);
    }
    site.end_trace();
    assert_eq!(connections(&site), before);
    let seen = site.inject(B1, &answer((ACK, 501, 101)));
    assert_eq!(seen.sent.len(), 1, "it goes on: {seen:?}");
}

#[test]
fn a_connection_that_took_its_number_stays() {
    let mut site = Site::with(web);
    site.traced(A1, &syn(80), false);
    let traced = connections(&site);
    // It is reset by what the workload really said, forgotten, and the next has its place.
    site.inject(B1, &answer((RST | ACK, 0, 101)));
    site.after(3600 * SECOND);
    for _ in 0..10 {
        site.after(SECOND);
    }
    assert_eq!(connections(&site), []);
    let ip = (mapped(v4(A1)), mapped(v4(B1)));
    let other = tcp(GATED, ip, (4001, 80), (SYN, 1, 0), b"");
    assert_eq!(site.inject(A1, &other).sent.len(), 1);
    let now = connections(&site);
    assert_eq!((now.len(), now[0].id), (1, traced[0].id), "the same number");
    site.end_trace();
    assert_eq!(connections(&site), now);
}

#[test]
fn delivered_it_is_one_that_goes_out() {
    let mut site = Site::with(web);
    let (record, seen) = site.traced(A1, &syn(80), true);
    let twin = Site::with(web).inject(A1, &syn(80)).only().clone();
    assert_eq!(seen.sent, vec![twin]);
    assert!(matches!(
        record.steps().last(),
        Some(Step::Sent { real: true, .. })
    ));
    // But not to the fabric: there who asked hands it on.
    let mut site = Site::new();
    let mut beyond = outside(77);
    beyond[5] = 9;
    let frame = udp6(GATED, (v6(A1), beyond), (1, 2), b"x");
    let (record, seen) = site.traced(A1, &frame, true);
    assert_eq!(seen.sent, vec![]);
    let left = record.left().map(|(slot, tag, _)| (slot, tag));
    assert_eq!(left, Some((FABRIC, TAG)), "{record:?}");
}

#[test]
fn rates_and_budgets_are_as_before() {
    let mut site = Site::with(|tables| {
        web(tables);
        for endpoint in &mut tables.endpoints {
            endpoint.rate_bytes = 1000;
            endpoint.rate_burst = 100;
        }
    });
    for _ in 0..100 {
        let (record, _) = site.traced(A1, &syn(80), false);
        assert_eq!(
            dropped(&record),
            None,
            "its own share is as it was: {record:?}"
        );
        site.end_trace();
    }
    let seen = site.inject(A1, &syn(80));
    assert_eq!(seen.count(A1, Counter::RxFrames), 1);
    assert_eq!(seen.sent.len(), 1);
}

#[test]
fn what_the_switch_answers_itself_is_told_and_held_back() {
    let mut site = Site::new();
    let ping = icmp4(
        GATED,
        wire::ipv4::Header::new(v4(A1), GATEWAY4, 1),
        &[8, 0, 0, 0, 0, 1, 0, 1],
    );
    let (record, seen) = site.traced(A1, &ping, false);
    assert!(
        record
            .steps()
            .contains(&Step::Answered(Answered::Echo as u8))
    );
    assert_eq!(record.left().map(|(slot, ..)| slot), Some(A1));
    assert_eq!(seen.sent, vec![]);
    // An error is told beside the drop.
    let nobody = udp4(GATED, (v4(A1), [10, 1, 2, 200]), (1, 2), b"x");
    let (record, seen) = site.traced(A1, &nobody, false);
    assert_eq!(dropped(&record), Some(DropReason::NoNeighbour));
    assert!(matches!(
        record.steps().last(),
        Some(Step::Replied {
            slot: A1,
            real: false,
            ..
        })
    ));
    assert_eq!(seen.sent, vec![]);
}

#[test]
fn a_next_hop_is_asked_for_in_earnest() {
    let mut site = Site::new();
    let frame = udp4(GATED, (v4(A1), [198, 51, 100, 9]), (1, 2), b"x");
    let (record, seen) = site.traced(A1, &frame, false);
    assert_eq!(dropped(&record), Some(DropReason::Resolving));
    let resolving = Step::Resolving {
        address: mapped([192, 0, 2, 1]),
    };
    assert!(record.steps().contains(&resolving));
    assert_eq!(seen.slots(), [FABRIC], "the question goes out");
}

#[test]
fn what_goes_to_many_is_told_once_and_held_back() {
    let mut site = Site::new();
    let (_, seen) = site.traced(A1, &arp_request(A1, v4(A1), [10, 1, 1, 99]), false);
    assert_eq!(seen.sent, vec![]);
    let frame = udp4(
        (mac(A1), MacAddress::BROADCAST),
        (v4(A1), [255; 4]),
        (1, 2),
        b"x",
    );
    let (record, seen) = site.traced(A1, &frame, false);
    assert!(record.steps().contains(&Step::Flooded));
    assert_eq!(seen.sent, vec![]);
    assert_eq!(
        record
            .steps()
            .iter()
            .filter(|s| matches!(s, Step::Sent { .. }))
            .count(),
        2
    );
}

#[test]
fn what_may_not_go_to_many_is_told_with_its_rule() {
    let mut site = Site::with(web);
    let to_all = (mac(A1), MacAddress::BROADCAST);
    let frame = udp4(to_all, (v4(A1), [255; 4]), (1, 2), b"x");
    let (record, seen) = site.traced(A1, &frame, false);
    assert_eq!(dropped(&record), Some(DropReason::EgressRule));
    let told = record.steps().iter().find_map(|step| match step {
        Step::Rule { slot, rule, .. } => Some((*slot, *rule)),
        _ => None,
    });
    assert_eq!(told, Some((A1, u32::MAX)), "{record:?}");
    assert!(seen.decided.is_none());
    // The same of a real one, once.
    let decided = site.inject(A1, &frame).decided.unwrap();
    assert_eq!(decided.outcome, telemetry::rules::Outcome::Denied);
    assert_eq!(decided.rules, [Some((u32::MAX, false)), None]);
}

#[test]
fn without_rules_nobody_is_asked_and_nothing_begins() {
    let mut site = Site::new();
    let (record, _) = site.traced(A1, &syn(9), false);
    assert!(record.steps().contains(&Step::NoRules), "{record:?}");
    assert_eq!(connections(&site), []);
}

#[test]
fn no_connection_gives_way_to_a_traced_one() {
    // Half-open ones, established ones that are idle, and some of either.
    for (established, fresh) in [(0, 64), (16, 64), (64, 64), (12, 0)] {
        let mut site = Site::with(|tables| {
            web(tables);
            for endpoint in &mut tables.endpoints {
                endpoint.connections = 16;
            }
        });
        let ends = (mapped(v4(A1)), mapped(v4(B1)));
        let back = (mac(B1), gateway_mac(1));
        for port in 5000..5000 + established.max(fresh) {
            let syn = tcp(GATED, ends, (port, 80), (SYN, 100, 0), b"");
            site.inject(A1, &syn);
            if port < 5000 + established {
                let answer = (SYN | ACK, 500, 101);
                let answer = tcp(back, (ends.1, ends.0), (80, port), answer, b"");
                site.inject(B1, &answer);
                let ack = tcp(GATED, ends, (port, 80), (ACK, 101, 501), b"");
                site.inject(A1, &ack);
            }
        }
        // Established ones are idle by then, half-open ones are over: some are new again.
        site.now += 400 * SECOND;
        for port in 6000..6000 + fresh {
            let syn = tcp(GATED, ends, (port, 80), (SYN, 100, 0), b"");
            site.inject(A1, &syn);
        }
        let before = connections(&site);
        assert!(before.len() >= 4, "{before:?}");
        let mut begun = 0;
        for port in 61_000..61_032 {
            let syn = tcp(GATED, ends, (port, 80), (SYN, 100, 0), b"");
            let (record, _) = site.traced(A1, &syn, false);
            begun += u32::from(record.steps().contains(&Step::Begins { tracked: true }));
            // Were it let in, an answer would want a place among the established.
            let answer = tcp(
                back,
                (ends.1, ends.0),
                (80, port),
                (SYN | ACK, 500, 101),
                b"",
            );
            site.traced(B1, &answer, false);
            site.end_trace();
        }
        let after = connections(&site);
        for one in &before {
            assert!(after.iter().any(|o| o.a == one.a), "{one:?} gave way");
        }
        // Where no half-open ones are, there is room for one of those.
        assert_eq!(begun > 0, fresh == 0);
    }
}
