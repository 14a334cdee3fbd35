//! Back from bit vectors to rules, and to text for people.

use super::Address;
use crate::compartment::{Field, GROUP_RULES, OUTCOME_LOG, Word};
use crate::map::{Classifier, CompartmentImage};
use crate::rules::{Action, Region, Rule, RuleTable};
use core::fmt;
use core::ops::RangeInclusive;

impl CompartmentImage<'_> {
    /// The rules of a table (an index), exactly as they were built. A table that is not
    /// there lets nothing pass.
    pub fn rule_table(&self, table: u32) -> RuleTable {
        let mut into = RuleTable {
            rules: Vec::new(),
            default: Action::Deny,
        };
        self.rule_table_into(table, &mut into);
        into
    }

    /// The same into a table that is there already, whose rules it replaces: one pass
    /// over the table's words, and no allocation once `into` has had as many rules.
    pub fn rule_table_into(&self, table: u32, into: &mut RuleTable) {
        into.rules.clear();
        into.default = Action::Deny;
        let Some(table) = self.tables().get(table as usize) else {
            return;
        };
        into.default = Action::from_number(table.default_action);
        let classifier = self.classifier();
        for group in classifier.groups_of(table) {
            let start = into.rules.len();
            let rules = classifier.outcomes_of(group).iter().map(|outcome| Rule {
                region: Region::ALL,
                action: Action::from_number(outcome.action),
                log: outcome.flags & OUTCOME_LOG != 0,
                id: outcome.rule,
            });
            into.rules.extend(rules);
            let rules = into.rules.get_mut(start..).unwrap_or_default();
            let [source, destination, source_port, destination_port, protocol] = &group.fields;
            let (addresses, ports) = (classifier.addresses, classifier.ports);
            edges(classifier, addresses, source, |rule, edge| {
                cut(rules, rule, |r| &mut r.source, address(edge));
            });
            edges(classifier, addresses, destination, |rule, edge| {
                cut(rules, rule, |r| &mut r.destination, address(edge));
            });
            edges(classifier, ports, source_port, |rule, edge| {
                cut(rules, rule, |r| &mut r.source_port, port(edge));
            });
            edges(classifier, ports, destination_port, |rule, edge| {
                cut(rules, rule, |r| &mut r.destination_port, port(edge));
            });
            edges(classifier, ports, protocol, |rule, edge| {
                let edge = match port(edge) {
                    Edge::First(first) => Edge::First(first as u8),
                    Edge::Last(last) => Edge::Last(last as u8),
                };
                cut(rules, rule, |r| &mut r.protocol, edge);
            });
        }
    }
}

/// One end of a rule's interval. [`edges`] gives, as the last, the value behind it.
enum Edge<B> {
    First(B),
    Last(B),
}

/// Each begin and end of a rule in a field, but for the end of the field's values: where
/// neighbouring intervals' words differ.
fn edges<B: Copy>(
    classifier: &Classifier<'_>,
    bounds: &[B],
    field: &Field,
    mut found: impl FnMut(usize, Edge<B>),
) {
    let mut before: Word = [0; 4];
    for (bound, word) in classifier.intervals(bounds, field) {
        for ((base, old), new) in (0..GROUP_RULES).step_by(64).zip(before).zip(word) {
            let mut differ = old ^ new;
            // Bound: 64 bits.
            while differ != 0 {
                let bit = differ.trailing_zeros();
                differ &= differ - 1;
                let begins = new >> bit & 1 == 1;
                let edge = if begins { Edge::First } else { Edge::Last };
                found(base + bit as usize, edge(bound));
            }
        }
        before = word;
    }
}

#[inline]
fn address(edge: Edge<u128>) -> Edge<[u8; 16]> {
    match edge {
        Edge::First(first) => Edge::First(first.to_be_bytes()),
        Edge::Last(behind) => Edge::Last(behind.wrapping_sub(1).to_be_bytes()),
    }
}

#[inline]
fn port(edge: Edge<u16>) -> Edge<u16> {
    match edge {
        Edge::First(first) => Edge::First(first),
        Edge::Last(behind) => Edge::Last(behind.wrapping_sub(1)),
    }
}

#[inline]
fn cut<B: Copy>(
    rules: &mut [Rule],
    rule: usize,
    field: impl Fn(&mut Region) -> &mut RangeInclusive<B>,
    edge: Edge<B>,
) {
    if let Some(rule) = rules.get_mut(rule) {
        let range = field(&mut rule.region);
        *range = match edge {
            Edge::First(first) => first..=*range.end(),
            Edge::Last(last) => *range.start()..=last,
        };
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Deny => "deny",
            Action::Allow => "allow",
            Action::AllowStateless => "allow stateless",
        })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Region::ALL;
        let show = |a: &[u8; 16]| Address(*a);
        let protocol = Range(&self.protocol, &all.protocol, |p: &u8| *p);
        write!(f, "protocol {protocol}")?;
        write!(f, " from {}", Range(&self.source, &all.source, show))?;
        let port = |p: &u16| *p;
        let source = Range(&self.source_port, &all.source_port, port);
        write!(f, " port {source}")?;
        write!(
            f,
            " to {}",
            Range(&self.destination, &all.destination, show)
        )?;
        let destination = Range(&self.destination_port, &all.destination_port, port);
        write!(f, " port {destination}")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} by rule {}", self.action, self.region, self.id)?;
        f.write_str(if self.log { ", logged" } else { "" })
    }
}

/// A range, all values, and how one is shown.
struct Range<'a, B, S>(&'a RangeInclusive<B>, &'a RangeInclusive<B>, S);
impl<B: PartialEq, S: Fn(&B) -> T, T: fmt::Display> fmt::Display for Range<'_, B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range(range, all, show) = self;
        let (first, last) = (range.start(), range.end());
        if range == all {
            f.write_str("any")
        } else if first == last {
            write!(f, "{}", show(first))
        } else {
            write!(f, "{}-{}", show(first), show(last))
        }
    }
}
