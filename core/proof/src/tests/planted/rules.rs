//! Planted in tables of rules.

use super::*;
use image::rules::{Action, Region, Rule};
use wire::Tuple;

/// Changes the tables of an endpoint of red.
fn edit_table(
    host: &mut Compiled,
    dice: &mut Dice,
    edit: impl FnOnce(&mut Vec<Rule>, &mut Dice) -> Option<()>,
) -> Option<()> {
    let slot = host.slot_of("red");
    let mut tables = tables(host, slot);
    let at = dice.below(tables.rule_tables.len());
    edit(&mut tables.rule_tables[at].rules, dice)?;
    host.images.insert(slot, tables.finish().unwrap());
    Some(())
}

/// Which rule numbers are the spec's: others are the defaults'.
fn denies(rules: &[Rule]) -> Vec<usize> {
    let all = rules.iter().enumerate();
    all.filter(|(_, r)| r.action == Action::Deny)
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn a_wider_rule() {
    let classes = [Class::WiderRule, Class::MissingDeny, Class::SixForgotten];
    let tally = planted(&classes, |host, dice| {
        edit_table(host, dice, |rules, dice| {
            let allows: Vec<usize> = (0..rules.len())
                .filter(|at| {
                    let rule = &rules[*at];
                    rule.action != Action::Deny && *rule.region.destination_port.end() < u16::MAX
                })
                .collect();
            let at = *allows.get(dice.below(allows.len()))?;
            let ports = &mut rules[at].region.destination_port;
            *ports = *ports.start()..=*ports.end() + 1;
            Some(())
        })
    });
    assert_eq!(tally, Tally::of(65, 0));
}

#[test]
fn a_missing_deny() {
    let host = |seed| host_by(seed, "allow");
    let tally = planted_in(
        &[Class::MissingDeny, Class::Guardrail],
        host,
        |host, dice| {
            let red = &host.ids.tenants["red"];
            let named = red.rules.values().chain(host.ids.guardrails.values());
            let named: Vec<u32> = named.copied().collect();
            edit_table(host, dice, |rules, dice| {
                let four = |range: &core::ops::RangeInclusive<[u8; 16]>| {
                    u128::from_be_bytes(*range.start()) >> 32 == 0xffff
                };
                let all = denies(rules).into_iter().filter(|at| {
                    let rule = &rules[*at];
                    let v4 = four(&rule.region.source) || four(&rule.region.destination);
                    named.contains(&rule.id) && v4
                });
                let all: Vec<usize> = all.collect();
                rules.remove(*all.get(dice.below(all.len()))?);
                Some(())
            })
        },
    );
    assert_eq!(tally, Tally::of(50, 0));
}

#[test]
fn six_forgotten() {
    let tally = planted(&[Class::SixForgotten], |host, dice| {
        let slot = host.slot_of("red");
        let mut tables = tables(host, slot);
        let both = |a: &Region| {
            let six = |r: &core::ops::RangeInclusive<[u8; 16]>| {
                u128::from_be_bytes(*r.end()) >> 32 != 0xffff
            };
            six(&a.source) && six(&a.destination)
        };
        // Endpoints that have both families: web's.
        let ends = tables
            .endpoints
            .iter()
            .filter(|e| e.dhcp4[..3] == [10, 1, 1]);
        let mine: Vec<u32> = ends.flat_map(|e| [e.egress, e.ingress]).collect();
        let at = mine[dice.below(mine.len())] as usize;
        let mut one = tables.rule_tables[at].clone();
        let six: Vec<usize> = (0..one.rules.len())
            .filter(|n| both(&one.rules[*n].region))
            .collect();
        let last = *six.get(dice.below(six.len()))?;
        // What was said of both is said of IPv4 alone; what was said of IPv6, no more.
        let four = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        let mut end = four;
        end[12..].fill(0xff);
        let rule = &mut one.rules[last];
        if rule.region.source == Region::ALL.source
            && rule.region.destination == Region::ALL.destination
        {
            rule.region.source = four..=end;
        } else {
            one.rules.remove(last);
        }
        // Of no consequence where the rest says the same about it.
        let here = tables.rule_tables.len() as u32;
        let removed = tables.rule_tables[at].rules[last].clone();
        let probe = |t: &image::rules::RuleTable| {
            let r = &removed.region;
            let s = if *r.source.start() == [0; 16] {
                spec::mapped("fd00:1:1::10".parse().unwrap())
            } else {
                *r.source.start()
            };
            let d = if *r.destination.start() == [0; 16] {
                spec::mapped("fd00:1:1::11".parse().unwrap())
            } else {
                *r.destination.start()
            };
            t.judge(&Tuple {
                source: s,
                destination: d,
                source_port: *r.source_port.start(),
                destination_port: *r.destination_port.start(),
                protocol: *r.protocol.start(),
            })
            .action
        };
        let own: Vec<[u8; 16]> = tables.addresses.iter().map(|a| a.1).collect();
        let is_own = |range: &core::ops::RangeInclusive<[u8; 16]>| {
            *range == Region::ALL.source || own.iter().any(|a| range.contains(a))
        };
        if probe(&tables.rule_tables[at]) == probe(&one)
            || removed.region.protocol == (1..=1)
            || !is_own(&removed.region.source) && !is_own(&removed.region.destination)
        {
            return None;
        }
        tables.rule_tables[at] = one;
        let _ = here;
        host.images.insert(slot, tables.finish().unwrap());
        Some(())
    });
    assert_eq!(tally, Tally::of(35, 0));
}
