//! Making bit vectors of rules; see [`crate::compartment::Table`].

use super::BuildError;
use crate::compartment::{
    Field, GROUP_RULES, MAX_GROUPS, OUTCOME_LOG, Outcome, RuleGroup, Summary, Table, Word,
};
use crate::container::MAX_BYTES;
use crate::map::{Classifier, MapError};
use crate::rules::{MAX_RULES, Rule, RuleTable};
use std::collections::HashMap;

/// The sections of rule tables.
#[derive(Default)]
pub(super) struct Written {
    pub(super) tables: Vec<Table>,
    pub(super) groups: Vec<RuleGroup>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) addresses: Vec<u128>,
    pub(super) ports: Vec<u16>,
    pub(super) places: Vec<u16>,
    pub(super) words: Vec<Word>,
    pub(super) summaries: Vec<u64>,
}

/// Where a rule's interval begins, and where what is behind it does, if anything is.
type Span<B> = (B, Option<B>);

/// Writes the tables in their order.
pub(super) fn write(tables: &[RuleTable]) -> Result<Written, BuildError> {
    let mut written = Written::default();
    for (index, table) in (0..).zip(tables) {
        if table.rules.len() > MAX_RULES {
            let rules = table.rules.len();
            return Err(BuildError::Rules {
                table: index,
                rules,
            });
        }
        if let Some(rule) = table.rules.iter().position(|r| r.region.is_empty()) {
            return Err(BuildError::EmptyRegion { table: index, rule });
        }
        written.table(table);
        // Before positions could outgrow their 32 bits.
        if written.words.len() * size_of::<Word>() > MAX_BYTES {
            return Err(MapError::Length.into());
        }
    }
    Ok(written)
}

impl Written {
    fn table(&mut self, table: &RuleTable) {
        let groups_first = self.groups.len();
        for rules in table.rules.chunks(GROUP_RULES) {
            let group = self.group(rules);
            self.groups.push(group);
        }
        let groups_count = self.groups.len() - groups_first;
        let mut summary = [Summary::default(); 5];
        if groups_count > 1 {
            for (number, summary) in summary.iter_mut().enumerate() {
                *summary = self.summary(groups_first, number);
            }
        }
        self.tables.push(Table {
            groups_first: groups_first as u32,
            groups_count: groups_count as u32,
            default_action: table.default as u16,
            reserved: 0,
            summary,
        });
    }

    fn group(&mut self, rules: &[Rule]) -> RuleGroup {
        let outcomes_first = self.outcomes.len() as u32;
        self.outcomes.extend(rules.iter().map(|rule| Outcome {
            rule: rule.id,
            action: rule.action as u16,
            flags: if rule.log { OUTCOME_LOG } else { 0 },
        }));
        let address = |first: &[u8; 16], last: &[u8; 16]| {
            let last = u128::from_be_bytes(*last);
            (u128::from_be_bytes(*first), last.checked_add(1))
        };
        let port = |first: &u16, last: &u16| (*first, last.checked_add(1));
        let Written {
            addresses,
            ports,
            places,
            words,
            ..
        } = self;
        let (places, words) = (places, words);
        let regions = || rules.iter().map(|rule| &rule.region);
        let fields = [
            field(
                regions().map(|r| address(r.source.start(), r.source.end())),
                (addresses, places, words),
            ),
            field(
                regions().map(|r| address(r.destination.start(), r.destination.end())),
                (addresses, places, words),
            ),
            field(
                regions().map(|r| port(r.source_port.start(), r.source_port.end())),
                (ports, places, words),
            ),
            field(
                regions().map(|r| port(r.destination_port.start(), r.destination_port.end())),
                (ports, places, words),
            ),
            field(
                regions().map(|r| {
                    let last = r.protocol.end().checked_add(1);
                    (u16::from(*r.protocol.start()), last.map(u16::from))
                }),
                (ports, places, words),
            ),
        ];
        RuleGroup {
            outcomes_first,
            outcomes_count: rules.len() as u32,
            fields,
        }
    }

    /// The summary of the groups from `first` on, by the field of this number.
    fn summary(&mut self, first: usize, number: usize) -> Summary {
        let groups = self.groups.get(first..).unwrap_or(&[]);
        let fields: Vec<Field> = groups
            .iter()
            .filter_map(|group| group.fields.get(number).copied())
            .collect();
        let read = Classifier {
            tables: &[],
            groups: &[],
            outcomes: &[],
            addresses: &self.addresses,
            ports: &self.ports,
            places: &self.places,
            words: &self.words,
            summaries: &[],
        };
        if number < 2 {
            let changes = changes(&read, &self.addresses, &fields);
            summarise(changes, &mut self.addresses, &mut self.summaries)
        } else {
            let changes = changes(&read, &self.ports, &fields);
            summarise(changes, &mut self.ports, &mut self.summaries)
        }
    }
}

/// Writes one field of a group.
fn field<B: Copy + Ord + Default>(
    spans: impl Iterator<Item = Span<B>>,
    (bounds, places, words): (&mut Vec<B>, &mut Vec<u16>, &mut Vec<Word>),
) -> Field {
    let mut edges: Vec<(B, u16)> = Vec::with_capacity(2 * GROUP_RULES);
    for (rule, (start, behind)) in (0..).zip(spans) {
        edges.push((start, rule));
        edges.extend(behind.map(|behind| (behind, rule)));
    }
    edges.sort_unstable();

    let (bounds_first, places_first, words_first) = (bounds.len(), places.len(), words.len());
    // Numbers are given in the order of first use, so they do not depend on the map's.
    let mut known: HashMap<Word, u16> = HashMap::with_capacity(edges.len() + 1);
    let mut interval = |bound: B, word: Word| {
        let new = known.len() as u16;
        let place = *known.entry(word).or_insert(new);
        if place == new {
            words.push(word);
        }
        bounds.push(bound);
        places.push(place);
    };
    let (mut at, mut word): (B, Word) = (B::default(), [0; 4]);
    for (bound, rule) in edges {
        if bound != at {
            interval(at, word);
            at = bound;
        }
        if let Some(bits) = word.get_mut(usize::from(rule / 64)) {
            *bits ^= 1 << (rule % 64);
        }
    }
    interval(at, word);
    Field {
        bounds_first: bounds_first as u32,
        places_first: places_first as u32,
        words_first: words_first as u32,
        bounds_count: (bounds.len() - bounds_first) as u16,
        words_count: (words.len() - words_first) as u16,
    }
}

/// Where each group's cover of a field begins and ends: (boundary, the group's bit).
fn changes<B: Copy>(read: &Classifier<'_>, bounds: &[B], fields: &[Field]) -> Vec<(B, u64)> {
    let mut changes = Vec::new();
    for (number, field) in (0..MAX_GROUPS).zip(fields) {
        let mut before = false;
        for (bound, word) in read.intervals(bounds, field) {
            let covered = word != [0; 4];
            if covered != before {
                changes.push((bound, 1 << number));
            }
            before = covered;
        }
    }
    changes
}

fn summarise<B: Copy + Ord + Default>(
    mut changes: Vec<(B, u64)>,
    bounds: &mut Vec<B>,
    words: &mut Vec<u64>,
) -> Summary {
    let (bounds_first, words_first) = (bounds.len(), words.len());
    changes.sort_unstable();
    let (mut at, mut word) = (B::default(), 0);
    for (bound, bit) in changes {
        if bound != at {
            bounds.push(at);
            words.push(word);
            at = bound;
        }
        word ^= bit;
    }
    bounds.push(at);
    words.push(word);
    Summary {
        bounds_first: bounds_first as u32,
        words_first: words_first as u32,
        count: (bounds.len() - bounds_first) as u32,
    }
}
