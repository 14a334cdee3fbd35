//! Tables to ask about, judged one rule after another.

use image::rules::{Action, Region, Rule, RuleTable};
use proptest::prelude::*;
use wire::Tuple;

const FOUR: u128 = 0xffff_0000_0000;

/// What a table does with a packet, and by which rule.
pub fn decide(table: &RuleTable, tuple: &Tuple) -> (Action, Option<usize>) {
    let hit = table
        .rules
        .iter()
        .position(|rule| contains(&rule.region, tuple));
    let by = hit.and_then(|at| table.rules.get(at));
    (by.map_or(table.default, |rule| rule.action), hit)
}

fn contains(region: &Region, tuple: &Tuple) -> bool {
    region.source.contains(&tuple.source)
        && region.destination.contains(&tuple.destination)
        && region.source_port.contains(&tuple.source_port)
        && region.destination_port.contains(&tuple.destination_port)
        && region.protocol.contains(&tuple.protocol)
}

/// Whether there is such a packet.
pub fn in_space(tuple: &Tuple) -> bool {
    let four = |address| u128::from_be_bytes(address) >> 32 == FOUR >> 32;
    let ports = (tuple.source_port, tuple.destination_port);
    four(tuple.source) == four(tuple.destination)
        && match (tuple.protocol, four(tuple.source)) {
            (6 | 17, _) => true,
            (1, true) | (58, false) => ports.0 == 0,
            _ => ports == (0, 0),
        }
}

/// A packet for each way in which these tables' intervals can be met.
pub fn grid(tables: &[&RuleTable]) -> Vec<Tuple> {
    let rules = || tables.iter().flat_map(|table| &table.rules);
    fn points<T: Ord + Copy>(mut all: Vec<T>) -> Vec<T> {
        all.sort_unstable();
        all.dedup();
        all
    }
    let address = |of: fn(&Region) -> &core::ops::RangeInclusive<[u8; 16]>| {
        let mut all = vec![0u128, FOUR, FOUR + (1 << 32)];
        for rule in rules() {
            let range = of(&rule.region);
            all.push(u128::from_be_bytes(*range.start()));
            all.extend(u128::from_be_bytes(*range.end()).checked_add(1));
        }
        points(all)
    };
    let port = |of: fn(&Region) -> &core::ops::RangeInclusive<u16>| {
        let mut all = vec![0u16];
        for rule in rules() {
            all.push(*of(&rule.region).start());
            all.extend(of(&rule.region).end().checked_add(1));
        }
        points(all)
    };
    let mut protocols = vec![0u8, 1, 2, 6, 7, 17, 18, 58, 59];
    for rule in rules() {
        protocols.push(*rule.region.protocol.start());
        protocols.extend(rule.region.protocol.end().checked_add(1));
    }
    let protocols = points(protocols);
    let (sources, destinations) = (address(|r| &r.source), address(|r| &r.destination));
    let (from, to) = (port(|r| &r.source_port), port(|r| &r.destination_port));
    let mut out = Vec::new();
    for source in &sources {
        for destination in &destinations {
            for protocol in &protocols {
                for source_port in &from {
                    for destination_port in &to {
                        out.push(Tuple {
                            source: source.to_be_bytes(),
                            destination: destination.to_be_bytes(),
                            source_port: *source_port,
                            destination_port: *destination_port,
                            protocol: *protocol,
                        });
                    }
                }
            }
        }
    }
    out.retain(in_space);
    out
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Deny),
        Just(Action::Allow),
        Just(Action::AllowStateless)
    ]
}

fn range<T: Ord + Copy + core::fmt::Debug + 'static>(
    from: Vec<T>,
) -> impl Strategy<Value = core::ops::RangeInclusive<T>> {
    (
        prop::sample::select(from.clone()),
        prop::sample::select(from),
    )
        .prop_map(|(a, b)| a.min(b)..=a.max(b))
}

fn addresses() -> impl Strategy<Value = core::ops::RangeInclusive<[u8; 16]>> {
    let some = [
        0,
        FOUR,
        FOUR + 0x0a00_0000,
        FOUR + 0x0a00_00ff,
        FOUR + 0xffff_ffff,
        0xfd00 << 112,
        u128::MAX,
    ];
    range(some.map(u128::to_be_bytes).to_vec())
}

/// A table of up to `rules` rules, over few values, so that they often meet.
pub fn small_table(rules: usize) -> impl Strategy<Value = RuleTable> {
    let ports = || {
        prop_oneof![
            2 => Just(0..=u16::MAX),
            1 => range(vec![0u16, 22, 80, 443, 2048, 65535]),
        ]
    };
    let rule = (
        addresses(),
        addresses(),
        ports(),
        ports(),
        prop_oneof![2 => Just(0..=255u8), 2 => range(vec![1u8, 6, 17, 58, 255])],
        any_action(),
    )
        .prop_map(
            |(source, destination, source_port, destination_port, protocol, action)| Rule {
                region: Region {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                },
                action,
                log: false,
                id: 0,
            },
        );
    (proptest::collection::vec(rule, 0..=rules), any_action())
        .prop_map(|(rules, default)| RuleTable { rules, default })
}

/// Two tables of the same meaning in other words: one of slabs across each other's
/// fields, the other the same in reverse (the slabs all do the same).
pub fn adversarial(rules: u16) -> [RuleTable; 2] {
    let slab = |n: u16| {
        let at = |n: u16| (FOUR + u128::from(n) * 7).to_be_bytes();
        let mut region = Region::ALL;
        match n % 4 {
            0 => region.source = at(n)..=at(n + 900),
            1 => region.destination = at(n)..=at(n + 900),
            2 => region.source_port = n * 13..=n * 13 + 9000,
            _ => region.destination_port = n * 17..=n * 17 + 9000,
        }
        Rule {
            region,
            action: Action::Deny,
            log: false,
            id: n.into(),
        }
    };
    let rules: Vec<Rule> = (0..rules).map(slab).collect();
    let table = |rules: Vec<Rule>| RuleTable {
        rules,
        default: Action::Allow,
    };
    let reversed = rules.iter().rev().cloned().collect();
    [table(rules), table(reversed)]
}
