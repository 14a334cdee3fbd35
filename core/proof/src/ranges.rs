//! Sets of addresses as sorted, disjoint ranges, IPv4 in its ::ffff: form.

use spec::Prefix;

/// Both ends belong to it.
pub(crate) type Range = ([u8; 16], [u8; 16]);

/// What IPv6's prefixes never cover (RFC 4291, section 2.5.5.2).
const MAPPED: (u128, u128) = (0xffff_0000_0000, 0xffff_ffff_ffff);

const fn wide(address: &[u8; 16]) -> u128 {
    u128::from_be_bytes(*address)
}

/// Everything.
pub(crate) fn everything() -> Vec<Range> {
    vec![([0; 16], [0xff; 16])]
}

pub(crate) const fn one(address: [u8; 16]) -> Range {
    (address, address)
}

/// The addresses of a prefix.
pub(crate) fn of_prefix(prefix: &Prefix) -> impl Iterator<Item = Range> + use<> {
    let host_bits = (if prefix.is_v4() { 32 } else { 128 }) - u32::from(prefix.len);
    let first = wide(&spec::mapped(prefix.network));
    let last = if host_bits == 128 {
        u128::MAX
    } else {
        first | ((1u128 << host_bits) - 1)
    };
    let range = |first: u128, last: u128| (first.to_be_bytes(), last.to_be_bytes());
    let all = if !prefix.is_v4() && first <= MAPPED.0 && last >= MAPPED.1 {
        [
            Some(range(first, MAPPED.0 - 1)),
            Some(range(MAPPED.1 + 1, last)),
        ]
    } else {
        [Some(range(first, last)), None]
    };
    all.into_iter().flatten()
}

/// Sorted, and neighbours joined.
pub(crate) fn tidy(mut ranges: Vec<Range>) -> Vec<Range> {
    // As numbers: bytes would be compared by calls.
    ranges.sort_unstable_by_key(|(first, last)| (wide(first), wide(last)));
    ranges.dedup_by(|next, before| {
        let (last, first) = (wide(&before.1), wide(&next.0));
        let joins = last >= first || last.wrapping_add(1) == first;
        if joins {
            before.1 = wide(&next.1).max(last).to_be_bytes();
        }
        joins
    });
    ranges
}

/// What is not in these (tidy) ranges.
pub(crate) fn others(ranges: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let mut next = Some(0u128);
    for (first, last) in ranges {
        if let Some(from) = next
            && from < wide(first)
        {
            out.push((from.to_be_bytes(), (wide(first) - 1).to_be_bytes()));
        }
        next = wide(last).checked_add(1);
    }
    out.extend(next.map(|from| (from.to_be_bytes(), [0xff; 16])));
    out
}

/// What is in both (any order).
pub(crate) fn common(some: &[Range], more: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    for a in some {
        for b in more {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                out.push((first, last));
            }
        }
    }
    tidy(out)
}

/// Whether a range has an address of these (tidy).
pub(crate) fn meets(ranges: &[Range], range: &Range) -> bool {
    let (first, last) = (wide(&range.0), wide(&range.1));
    let at = ranges.partition_point(|r| wide(&r.1) < first);
    ranges.get(at).is_some_and(|r| wide(&r.0) <= last)
}

/// Whether an address is in these (tidy).
pub(crate) fn holds(ranges: &[Range], address: &[u8; 16]) -> bool {
    meets(ranges, &one(*address))
}
