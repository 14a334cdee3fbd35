//! The packets that there are: not every box over the five fields is a packet's.

use crate::cube::Cube;
use core::ops::RangeInclusive;
use wire::{icmpv4, icmpv6, tcp, udp};

/// A range of addresses of one family, IPv4 in its ::ffff: form.
pub type Addresses = RangeInclusive<[u8; 16]>;

/// ::ffff:0.0.0.0 and ::ffff:255.255.255.255: what is in between is IPv4.
const FOUR: (u128, u128) = (0xffff_0000_0000, 0xffff_ffff_ffff);

/// All addresses of both families.
pub fn anywhere() -> Vec<Addresses> {
    let range = |first: u128, last: u128| first.to_be_bytes()..=last.to_be_bytes();
    vec![
        range(FOUR.0, FOUR.1),
        range(0, FOUR.0 - 1),
        range(FOUR.1 + 1, u128::MAX),
    ]
}

/// The packets from some addresses to some: both of one family, and ports where the
/// protocol has them. An ICMP message has its type and code in place of the
/// destination port ([`wire::Tuple::of_rules`]).
pub fn packets(sources: &[Addresses], destinations: &[Addresses]) -> Vec<Cube> {
    let mut cubes = Vec::new();
    for (source, destination) in sources
        .iter()
        .flat_map(|source| destinations.iter().map(move |to| (source, to)))
    {
        let four = is_four(source);
        if four != is_four(destination) {
            continue;
        }
        let icmp = if four {
            icmpv4::PROTOCOL
        } else {
            icmpv6::PROTOCOL
        };
        let mut add = |protocol: RangeInclusive<u8>, ports: bool, icmp: bool| {
            let none = 0..=0;
            let all = 0..=u16::MAX;
            cubes.push(Cube::new(
                source,
                destination,
                if ports { &all } else { &none },
                if ports || icmp { &all } else { &none },
                &protocol,
            ));
        };
        let mut special = [icmp, tcp::PROTOCOL, udp::PROTOCOL];
        special.sort_unstable();
        let mut next = 0;
        for one in special {
            if next < one {
                add(next..=one - 1, false, false);
            }
            add(one..=one, one != icmp, one == icmp);
            next = one + 1;
        }
        add(next..=u8::MAX, false, false);
    }
    cubes
}

fn is_four(range: &Addresses) -> bool {
    (FOUR.0..=FOUR.1).contains(&u128::from_be_bytes(*range.start()))
}
