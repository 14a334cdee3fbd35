//! Rule tables: judging by them, and checking what they are made of.

use super::{Lists, MapError, Section as Name, each, must, part};
use crate::compartment::{
    Field, GROUP_RULES, MAX_GROUPS, OUTCOME_LOG, Outcome, RuleGroup, Summary, Table, Word,
};
use crate::rules::{Action, Verdict};
use guard::guard;
use wire::Tuple;
use zerocopy::IntoBytes;

/// The sections of rule tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classifier<'a> {
    pub(crate) tables: &'a [Table],
    pub(crate) groups: &'a [RuleGroup],
    pub(crate) outcomes: &'a [Outcome],
    pub(crate) addresses: &'a [u128],
    pub(crate) ports: &'a [u16],
    pub(crate) places: &'a [u16],
    pub(crate) words: &'a [Word],
    pub(crate) summaries: &'a [u64],
}

/// A packet's fields as boundaries are.
struct Key {
    source: u128,
    destination: u128,
    source_port: u16,
    destination_port: u16,
    protocol: u16,
}

impl Classifier<'_> {
    /// See [`crate::CompartmentImage::judge`].
    #[inline]
    pub(super) fn judge(&self, table: u32, tuple: &Tuple) -> Verdict {
        let Some(table) = self.tables.get(table as usize) else {
            return Verdict::by_default(Action::Deny);
        };
        let key = Key {
            source: u128::from_be_bytes(tuple.source),
            destination: u128::from_be_bytes(tuple.destination),
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
            protocol: tuple.protocol.into(),
        };
        let groups = self.groups_of(table);
        let mut left = self.candidates(table, &key);
        // Bound: at most 64 bits, and as many groups as the table has.
        while left != 0 {
            let number = left.trailing_zeros();
            left &= left - 1;
            let Some(group) = groups.get(number as usize) else {
                break;
            };
            if let Some(bit) = self.first(group, &key) {
                let at = group.outcomes_first as usize + bit as usize;
                return match self.outcomes.get(at) {
                    Some(outcome) => Verdict {
                        action: Action::from_number(outcome.action),
                        log: outcome.flags & OUTCOME_LOG != 0,
                        rule: outcome.rule,
                        place: number * GROUP_RULES as u32 + bit,
                    },
                    None => Verdict::by_default(Action::Deny),
                };
            }
        }
        Verdict::by_default(Action::from_number(table.default_action))
    }

    /// See [`crate::CompartmentImage::same_rules`]. Summaries follow from the rest.
    pub(super) fn same_rules(&self, table: u32, other: &Classifier<'_>, others: u32) -> bool {
        let (Some(table), Some(others)) = (
            self.tables.get(table as usize),
            other.tables.get(others as usize),
        ) else {
            return false;
        };
        let pairs = || self.groups_of(table).iter().zip(other.groups_of(others));
        table.default_action == others.default_action
            && table.groups_count == others.groups_count
            && pairs().all(|(a, b)| {
                self.outcomes_of(a).as_bytes() == other.outcomes_of(b).as_bytes()
                    && (a.fields.iter().zip(&b.fields).enumerate()).all(|(at, (a, b))| {
                        let (a, b) = (self.lists(at, a), other.lists(at, b));
                        a == b
                    })
            })
    }

    /// The lists of a group's field, by its place among the five: boundaries, places, words.
    fn lists(&self, at: usize, field: &Field) -> [&[u8]; 3] {
        let count = field.bounds_count.into();
        let bounds = match at {
            0 | 1 => part(self.addresses, field.bounds_first, count).as_bytes(),
            _ => part(self.ports, field.bounds_first, count).as_bytes(),
        };
        let places = part(self.places, field.places_first, count);
        let words = part(self.words, field.words_first, field.words_count.into());
        [bounds, places.as_bytes(), words.as_bytes()]
    }

    /// The groups that may hold a rule that contains the packet.
    #[inline]
    fn candidates(&self, table: &Table, key: &Key) -> u64 {
        if table.groups_count <= 1 {
            return table.groups_count.into();
        }
        let [source, destination, source_port, destination_port, protocol] = &table.summary;
        self.summary(self.addresses, source, key.source)
            & self.summary(self.addresses, destination, key.destination)
            & self.summary(self.ports, source_port, key.source_port)
            & self.summary(self.ports, destination_port, key.destination_port)
            & self.summary(self.ports, protocol, key.protocol)
    }

    #[inline]
    fn summary<B: Copy + Ord>(&self, bounds: &[B], field: &Summary, value: B) -> u64 {
        let bounds = part(bounds, field.bounds_first, field.count);
        let words = part(self.summaries, field.words_first, field.count);
        words.get(interval(bounds, value)).copied().unwrap_or(0)
    }

    /// The first rule of a group that contains the packet. Nothing branches on what the
    /// rules or the packet are before the AND is there, so that no packet is dearer.
    #[inline]
    fn first(&self, group: &RuleGroup, key: &Key) -> Option<u32> {
        let [source, destination, source_port, destination_port, protocol] = &group.fields;
        let fields = [
            self.word(self.addresses, source, key.source),
            self.word(self.addresses, destination, key.destination),
            self.word(self.ports, source_port, key.source_port),
            self.word(self.ports, destination_port, key.destination_port),
            self.word(self.ports, protocol, key.protocol),
        ];
        let mut all: Word = [u64::MAX; 4];
        for word in fields {
            for (all, word) in all.iter_mut().zip(word) {
                *all &= word;
            }
        }
        let numbered = (0u32..).zip(all).find(|(_, bits)| *bits != 0);
        numbered.map(|(number, bits)| number * u64::BITS + bits.trailing_zeros())
    }

    #[inline]
    fn word<B: Copy + Ord>(&self, bounds: &[B], field: &Field, value: B) -> Word {
        let bounds = part(bounds, field.bounds_first, field.bounds_count.into());
        let at = field.places_first as usize;
        let place = self.places.get(at.wrapping_add(interval(bounds, value)));
        let at = field.words_first as usize + usize::from(place.copied().unwrap_or(0));
        self.words.get(at).copied().unwrap_or([0; 4])
    }
}

/// Which interval a value lies in: the last boundary that is not above it.
#[inline]
fn interval<B: Copy + Ord>(bounds: &[B], value: B) -> usize {
    bounds
        .partition_point(|bound| *bound <= value)
        .wrapping_sub(1)
}

/// That every list lies behind the one before it, so that all of a check is one pass.
#[derive(Default)]
struct Cursor {
    groups: Lists,
    outcomes: Lists,
    addresses: Lists,
    ports: Lists,
    places: Lists,
    words: Lists,
    summaries: Lists,
}

impl Classifier<'_> {
    /// Every table means exactly one list of rules, and is judged by as that list says.
    pub(super) fn check(&self) -> Result<(), MapError> {
        let mut cursor = Cursor::default();
        each(Name::Tables, self.tables, |_, table| {
            must(
                table.default_action <= Action::AllowStateless as u16,
                "an unknown action",
            )?;
            must(table.reserved == 0, "reserved is not zero")?;
            must(
                table.groups_count as usize <= MAX_GROUPS,
                "too many groups of rules",
            )?;
            cursor.groups.take(table.groups_first, table.groups_count)?;
            let groups = self.groups_of(table);
            for (number, group) in (1u32..).zip(groups) {
                let rules = group.outcomes_count as usize;
                let last = number == table.groups_count;
                let full = rules == GROUP_RULES || last && rules < GROUP_RULES;
                must(full && rules != 0, "a group of another size")?;
                self.check_group(group, &mut cursor)?;
            }
            self.check_summaries(table, groups, &mut cursor)
        })?;
        cursor.groups.end(Name::RuleGroups, self.groups.len())?;
        cursor.outcomes.end(Name::Outcomes, self.outcomes.len())?;
        let addresses = self.addresses.len();
        cursor.addresses.end(Name::AddressBounds, addresses)?;
        cursor.ports.end(Name::PortBounds, self.ports.len())?;
        cursor.places.end(Name::Places, self.places.len())?;
        cursor.words.end(Name::Words, self.words.len())?;
        cursor.summaries.end(Name::Summaries, self.summaries.len())
    }

    fn check_group(&self, group: &RuleGroup, cursor: &mut Cursor) -> Result<(), &'static str> {
        let (first, count) = (group.outcomes_first, group.outcomes_count);
        cursor.outcomes.take(first, count)?;
        for outcome in self.outcomes_of(group) {
            must(
                outcome.action <= Action::AllowStateless as u16,
                "an unknown action",
            )?;
            must(outcome.flags & !OUTCOME_LOG == 0, "unknown flags")?;
        }
        let mut rules: Word = [0; 4];
        for (word, first) in rules.iter_mut().zip([0, 64, 128, 192]) {
            let here = count.saturating_sub(first).min(64);
            *word = u64::MAX.checked_shr(64 - here).unwrap_or(0);
        }
        let [source, destination, source_port, destination_port, protocol] = &group.fields;
        for field in [source, destination] {
            let count = field.bounds_count.into();
            cursor.addresses.take(field.bounds_first, count)?;
            let bounds = part(self.addresses, field.bounds_first, count);
            self.check_field(bounds, field, u128::MAX, rules, cursor)?;
        }
        for (field, most) in [
            (source_port, u16::MAX),
            (destination_port, u16::MAX),
            (protocol, u8::MAX.into()),
        ] {
            let count = field.bounds_count.into();
            cursor.ports.take(field.bounds_first, count)?;
            let bounds = part(self.ports, field.bounds_first, count);
            self.check_field(bounds, field, most, rules, cursor)?;
        }
        Ok(())
    }

    /// `rules`: a bit for each rule that there is.
    fn check_field<B: Copy + Ord + Default>(
        &self,
        bounds: &[B],
        field: &Field,
        most: B,
        rules: Word,
        cursor: &mut Cursor,
    ) -> Result<(), &'static str> {
        check_bounds(bounds, most)?;
        let (first, count) = (field.places_first, field.bounds_count.into());
        cursor.places.take(first, count)?;
        let places = part(self.places, first, count);
        let (first, count) = (field.words_first, field.words_count.into());
        cursor.words.take(first, count)?;
        let words = part(self.words, first, count);

        let mut used = 0;
        let (mut before, mut begun, mut again): (Word, Word, u64) = ([0; 4], [0; 4], 0);
        for place in places {
            let place = usize::from(*place);
            must(
                place <= used || !guard!("image-word-place"),
                "words that are not in the order of their use",
            )?;
            used += usize::from(place == used);
            let word = words.get(place).copied().unwrap_or_default();
            for ((word, before), begun) in word.iter().zip(before).zip(&mut begun) {
                again |= word & !before & *begun;
                *begun |= word;
            }
            before = word;
        }
        must(
            used == words.len() || !guard!("image-word-used"),
            "words that no interval has",
        )?;
        must(
            again == 0 || !guard!("image-rule-box"),
            "a rule of two intervals in one field",
        )?;
        must(
            begun == rules || !guard!("image-rule-bits"),
            "bits that are not its rules'",
        )
    }

    fn check_summaries(
        &self,
        table: &Table,
        groups: &[RuleGroup],
        cursor: &mut Cursor,
    ) -> Result<(), &'static str> {
        if table.groups_count <= 1 {
            let none = table.summary == [Summary::default(); 5];
            return must(none, "a summary of one group");
        }
        let [source, destination, source_port, destination_port, protocol] = &table.summary;
        for (field, pick) in [(source, 0), (destination, 1)] {
            cursor.addresses.take(field.bounds_first, field.count)?;
            let fields = groups.iter().filter_map(|group| group.fields.get(pick));
            self.check_summary(self.addresses, field, fields, cursor)?;
        }
        for (field, pick) in [(source_port, 2), (destination_port, 3), (protocol, 4)] {
            cursor.ports.take(field.bounds_first, field.count)?;
            let fields = groups.iter().filter_map(|group| group.fields.get(pick));
            self.check_summary(self.ports, field, fields, cursor)?;
        }
        Ok(())
    }

    /// Each change of a group's cover is a change of its bit in the summary, at the same
    /// boundary; and there are no others, for there are as many.
    fn check_summary<'f, B: Copy + Ord + Default>(
        &self,
        all: &[B],
        summary: &Summary,
        fields: impl Iterator<Item = &'f Field>,
        cursor: &mut Cursor,
    ) -> Result<(), &'static str> {
        cursor.summaries.take(summary.words_first, summary.count)?;
        let words = part(self.summaries, summary.words_first, summary.count);
        let bounds = part(all, summary.bounds_first, summary.count);
        // A value beyond the field's greatest would be no change of any group's.
        must(rising(bounds), "boundaries that do not rise from 0")?;
        let mut changes = 0;
        for (number, field) in (0u32..).zip(fields) {
            let mut before = false;
            for (bound, word) in self.intervals(all, field) {
                let covered = word != [0; 4];
                if covered == before {
                    continue;
                }
                before = covered;
                changes += 1;
                let at = bounds.partition_point(|b| *b < bound);
                let here = bounds.get(at) == Some(&bound);
                let word = words.get(at).copied().unwrap_or(0);
                let last = at.checked_sub(1).and_then(|at| words.get(at));
                let last = last.copied().unwrap_or(0);
                let same = word >> number & 1 == u64::from(covered)
                    && last >> number & 1 == u64::from(!covered);
                must(
                    here && same || !guard!("image-summary"),
                    "a summary of other groups",
                )?;
            }
        }
        let mut last = 0;
        let found: u32 = words
            .iter()
            .map(|word| (word ^ core::mem::replace(&mut last, *word)).count_ones())
            .sum();
        must(
            found == changes || !guard!("image-summary-more"),
            "a summary of more than its groups",
        )
    }

    /// A table's groups.
    #[inline]
    pub(crate) fn groups_of(&self, table: &Table) -> &[RuleGroup] {
        part(self.groups, table.groups_first, table.groups_count)
    }

    /// What a group's rules do.
    #[inline]
    pub(crate) fn outcomes_of(&self, group: &RuleGroup) -> &[Outcome] {
        part(self.outcomes, group.outcomes_first, group.outcomes_count)
    }

    /// The intervals of a field, from 0 on: where each begins, and its word.
    pub(crate) fn intervals<'b, B: Copy>(
        &'b self,
        bounds: &'b [B],
        field: &Field,
    ) -> impl Iterator<Item = (B, Word)> + use<'b, B> {
        let count = field.bounds_count.into();
        let bounds = part(bounds, field.bounds_first, count);
        let places = part(self.places, field.places_first, count);
        let words = part(self.words, field.words_first, field.words_count.into());
        let word = |place: &u16| words.get(usize::from(*place)).copied().unwrap_or([0; 4]);
        let each = bounds.iter().zip(places);
        each.map(move |(bound, place)| (*bound, word(place)))
    }
}

fn check_bounds<B: Copy + Ord + Default>(bounds: &[B], most: B) -> Result<(), &'static str> {
    must(
        rising(bounds) || !guard!("image-bound-order"),
        "boundaries that do not rise from 0",
    )?;
    let within = bounds.last().is_none_or(|last| *last <= most);
    must(
        within || !guard!("image-bound-most"),
        "a boundary beyond the field's last value",
    )
}

fn rising<B: Copy + Ord + Default>(bounds: &[B]) -> bool {
    let zero = bounds.first() == Some(&B::default());
    zero && bounds.array_windows().all(|[a, b]| a < b)
}
