//! Sets of addresses, IPv4 in its ::ffff: form.

use core::ops::RangeInclusive;
use guard::guard;
use spec::Prefix;

/// Addresses as ranges: in order, apart, no two adjacent. One set has one form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(Vec<(u128, u128)>);

impl Set {
    pub fn all() -> Set {
        Set(vec![(0, u128::MAX)])
    }

    pub fn of(ranges: impl IntoIterator<Item = (u128, u128)>) -> Set {
        let mut ranges: Vec<(u128, u128)> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let mut out: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match out.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => out.push((first, last)),
            }
        }
        Set(out)
    }

    pub fn of_prefixes<'a>(prefixes: impl IntoIterator<Item = &'a Prefix>) -> Set {
        Set::of(prefixes.into_iter().flat_map(ranges))
    }

    /// Everything else.
    pub fn complement(&self) -> Set {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0u128);
        for (first, last) in &self.0 {
            if let (Some(from), Some(to)) = (next, first.checked_sub(1))
                && from <= to
            {
                out.push((from, to));
            }
            next = last.checked_add(1);
        }
        out.extend(next.map(|from| (from, u128::MAX)));
        Set(out)
    }

    /// Whether a range and the set have an address in common.
    pub fn meets(&self, (first, last): (u128, u128)) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < first);
        self.0.get(at).is_some_and(|(start, _)| *start <= last)
    }

    /// The ranges, by place, that have an address in common with another set. Bound: the
    /// other's ranges and what is found.
    pub fn met_by(&self, other: &Set) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for (first, last) in &other.0 {
            let from = self.0.partition_point(|(_, end)| end < first);
            // The last one found may reach into this range as well.
            let from = found.last().map_or(from, |last| from.max(last + 1));
            let rest = self.0.iter().enumerate().skip(from);
            found.extend(
                rest.take_while(|(_, (start, _))| start <= last)
                    .map(|(at, _)| at),
            );
        }
        found
    }

    pub fn ranges(&self) -> &[(u128, u128)] {
        &self.0
    }
}

/// The addresses of a prefix: IPv6's do not include IPv4's form (RFC 4291, section
/// 2.5.5.2), however short it is.
pub(crate) fn ranges(prefix: &Prefix) -> impl Iterator<Item = (u128, u128)> + use<> {
    let (first, last) = prefix.range();
    let (first, last) = (u128::from_be_bytes(first), u128::from_be_bytes(last));
    let around = !prefix.is_v4() && first <= MAPPED.0 && MAPPED.1 <= last && guard!("rule-family");
    let parts = if around {
        [Some((first, MAPPED.0 - 1)), Some((MAPPED.1 + 1, last))]
    } else {
        [Some((first, last)), None]
    };
    parts.into_iter().flatten()
}

/// IPv4 in its ::ffff: form.
const MAPPED: (u128, u128) = (0xffff_0000_0000, 0xffff_ffff_ffff);

/// As rules have it.
pub(crate) fn closed((first, last): (u128, u128)) -> RangeInclusive<[u8; 16]> {
    first.to_be_bytes()..=last.to_be_bytes()
}

/// Ranges of numbers, likewise in one form; none = all.
pub(crate) fn numbers(ranges: impl IntoIterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = ranges.into_iter().collect();
    if ranges.is_empty() {
        return vec![(0, u16::MAX)];
    }
    ranges.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => out.push((first, last)),
        }
    }
    out
}
