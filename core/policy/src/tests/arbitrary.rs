//! Arbitrary prefixes: routes as a simple reading of them has them. Arbitrary specs are
//! the controller's test (`difference/tests/specs.rs`), which carries them out.

use crate::routes::Prefixes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;
use spec::Prefix;

/// Prefixes that often nest: few networks, many lengths.
fn prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (0u32..4, 0u8..=32)
        .prop_map(|(n, len)| (IpAddr::V4(Ipv4Addr::from_bits(n << 30 | n << 12 | n)), len));
    let v6 = (0u128..4, 0u8..=128)
        .prop_map(|(n, len)| (IpAddr::V6(Ipv6Addr::from_bits(n << 126 | n << 60 | n)), len));
    prop_oneof![v4, v6].prop_map(|(address, len)| Prefix {
        network: Prefix::network_of(address, len),
        len,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ranges_are_longest_prefix_match(list in proptest::collection::vec(prefix(), 0..24), probes in proptest::collection::vec(any::<u128>(), 8)) {
        let mut prefixes = Prefixes::new();
        for (route, prefix) in list.iter().enumerate() {
            prefixes.add(*prefix, route as u32);
        }
        let ranges = prefixes.ranges();
        prop_assert!(ranges.iter().all(|r| r.start <= r.end));
        prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
        // Every edge and its neighbours, and a few of anywhere.
        let edges = list.iter().flat_map(|p| {
            let (a, b) = p.range();
            let (a, b) = (u128::from_be_bytes(a), u128::from_be_bytes(b));
            [a.wrapping_sub(1), a, a.wrapping_add(1), b.wrapping_sub(1), b, b.wrapping_add(1)]
        });
        for probe in edges.chain(probes) {
            let address = Ipv6Addr::from_bits(probe);
            let ip = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            let longest = list.iter().enumerate().filter(|(_, p)| p.contains(ip)).max_by_key(|(at, p)| (p.len, core::cmp::Reverse(*at)));
            let found = ranges.iter().find(|r| (r.start..=r.end).contains(&address.octets()));
            prop_assert_eq!(found.map(|r| r.route), longest.map(|(at, _)| at as u32), "{}", ip);
        }
    }
}
