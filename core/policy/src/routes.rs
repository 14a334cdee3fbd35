//! Longest prefix match, resolved: prefixes to disjoint ranges.

use guard::guard;
use image::compartment::RouteRange;
use spec::Prefix;
use std::collections::BTreeMap;

/// Where no route of IPv6 may reach: IPv4 in its ::ffff: form (RFC 4291, section 2.5.5.2).
const MAPPED: ([u8; 16], u32) = ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0], 96);

/// A tenant's prefixes, the first of equal ones counting.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// (first address, length in the 128-bit form) to the route's index; `None` = a hole.
    by_start: BTreeMap<([u8; 16], u32), Option<u32>>,
}

impl Prefixes {
    pub fn new() -> Prefixes {
        Prefixes {
            by_start: guard!("route-family")
                .then_some((MAPPED, None))
                .into_iter()
                .collect(),
        }
    }

    /// Adds a prefix, unless an equal one is there.
    pub fn add(&mut self, prefix: Prefix, route: u32) {
        let (start, _) = prefix.range();
        match self.by_start.get_mut(&(start, prefix.len128())) {
            // 0.0.0.0/0 is the hole itself, filled.
            Some(hole @ None) => *hole = Some(route),
            Some(Some(_)) => {}
            None => {
                self.by_start.insert((start, prefix.len128()), Some(route));
            }
        }
    }

    /// Whether an equal prefix is there.
    pub fn has(&self, prefix: Prefix) -> bool {
        let (start, _) = prefix.range();
        matches!(self.by_start.get(&(start, prefix.len128())), Some(Some(_)))
    }

    /// Disjoint ranges in order, neighbours with one route joined. Prefixes nest or
    /// are apart, and come sorted by start, the outer first: one pass with a stack.
    pub fn ranges(&self) -> Vec<RouteRange> {
        let mut out = Ranges(Vec::new());
        // (last address, route) of the prefixes that are open, the innermost on top.
        let mut open: Vec<(u128, Option<u32>)> = Vec::new();
        // The first address not yet covered; `None` = past the end of all addresses.
        let mut next: Option<u128> = Some(0);
        for ((start, len), route) in &self.by_start {
            let start = u128::from_be_bytes(*start);
            let last = start | u128::MAX.checked_shr(*len).unwrap_or(0);
            while let Some((end, outer)) = open.last().copied()
                && end < start
            {
                out.push(next, end, outer);
                next = end.checked_add(1);
                open.pop();
            }
            if let (Some((_, outer)), Some(before)) = (open.last().copied(), start.checked_sub(1)) {
                out.push(next, before, outer);
            }
            next = Some(start);
            open.push((last, *route));
        }
        while let Some((end, outer)) = open.pop() {
            out.push(next, end, outer);
            next = end.checked_add(1);
        }
        out.0
    }
}

struct Ranges(Vec<RouteRange>);

impl Ranges {
    fn push(&mut self, first: Option<u128>, last: u128, route: Option<u32>) {
        let (Some(first), Some(route)) = (first, route) else {
            return;
        };
        if first > last {
            return;
        }
        if let Some(before) = self.0.last_mut()
            && before.route == route
            && u128::from_be_bytes(before.end).checked_add(1) == Some(first)
        {
            before.end = last.to_be_bytes();
            return;
        }
        self.0.push(RouteRange {
            start: first.to_be_bytes(),
            end: last.to_be_bytes(),
            route,
            reserved: [0; 3],
        });
    }
}
