//! Later fragments follow their first.

use std::collections::BTreeMap;

use flow::fragments::HOLD;
use flow::{Fragments, Unfollowed};
use proptest::prelude::*;
use wire::address::MacAddress;
use wire::parse::Ip;
use wire::{build, ethernet, ipv4, ipv6, parse};

use crate::SEED;

/// A fragment of datagram `id`: `length` bytes at `place`.
fn fragment(v6: bool, id: u16, place: u16, length: usize, more: bool) -> Ip {
    let mut out = vec![0; 3000];
    let (a, b) = (MacAddress([2; 6]), MacAddress([4; 6]));
    let length = if v6 {
        let [mut from, mut to] = [[0xfd; 16]; 2];
        (from[15], to[15]) = (1, 2);
        build::ipv6(
            &mut out,
            &ethernet::Header::new(a, b, ethernet::IPV6),
            &ipv6::Header::new(from, to, ipv6::FRAGMENT),
            |buffer| {
                // What a later fragment says of its protocol is worth nothing.
                let next = if place == 0 {
                    17
                } else {
                    6 + (place % 7) as u8 * 20
                };
                let field = place | u16::from(more);
                buffer[..2].copy_from_slice(&[next, 0]);
                buffer[2..4].copy_from_slice(&field.to_be_bytes());
                buffer[4..8].copy_from_slice(&u32::from(id).to_be_bytes());
                buffer[12..14].copy_from_slice(&2000u16.to_be_bytes());
                Ok(8 + length)
            },
        )
        .unwrap()
    } else {
        let length = build::ipv4(
            &mut out,
            &ethernet::Header::new(a, b, ethernet::IPV4),
            &ipv4::Header {
                id,
                ..ipv4::Header::new([10, 0, 0, 1], [10, 0, 0, 2], 17)
            },
            |buffer| {
                buffer[4..6].copy_from_slice(&2000u16.to_be_bytes());
                Ok(length)
            },
        )
        .unwrap();
        let field = (place / 8) | if more { 0x2000 } else { 0 };
        out[20..22].copy_from_slice(&field.to_be_bytes());
        out[24..26].fill(0);
        let sum = wire::checksum::internet(&out[14..34]);
        out[24..26].copy_from_slice(&sum.to_be_bytes());
        length
    };
    *parse(&out[..length], length).unwrap().ip().unwrap()
}

#[test]
fn the_first_goes_before_and_decides() {
    for v6 in [false, true] {
        let mut f: Fragments<u32> = Fragments::new(SEED, 2, 4).unwrap();
        let parts = [(0, true), (1000, true), (2000, false)]
            .map(|(at, more)| fragment(v6, 7, at, 1000, more));
        assert_eq!(f.later(0, 0, 0, &parts[1]), Err(Unfollowed::Unknown));
        f.first(0, 0, 0, &parts[0], 42);
        // Not in another zone, of another owner, of another packet.
        assert_eq!(f.later(0, 0, 1, &parts[1]), Err(Unfollowed::Unknown));
        assert_eq!(f.later(0, 1, 0, &parts[1]), Err(Unfollowed::Unknown));
        assert_eq!(f.later(0, 2, 0, &parts[1]), Err(Unfollowed::Unknown));
        assert_eq!(
            f.later(0, 0, 0, &fragment(v6, 8, 1000, 1000, true)),
            Err(Unfollowed::Unknown)
        );
        assert_eq!(f.later(0, 0, 0, &parts[2]), Ok(42));
        assert_eq!(f.later(0, 0, 0, &parts[1]), Ok(42));
        assert_eq!(f.later(0, 0, 0, &parts[1]), Err(Unfollowed::Overlap));
    }
}

#[test]
fn no_fragment_overlaps_another() {
    let mut f: Fragments<u32> = Fragments::new(SEED, 1, 4).unwrap();
    f.first(0, 0, 0, &fragment(false, 7, 0, 1000, true), 42);
    for place in [8, 992] {
        let over = fragment(false, 7, place, 1000, true);
        assert_eq!(f.later(0, 0, 0, &over), Err(Unfollowed::Overlap), "{place}");
    }
    assert_eq!(
        f.later(0, 0, 0, &fragment(false, 7, 1000, 80, true)),
        Ok(42)
    );
}

#[test]
fn a_first_is_followed_for_its_time() {
    let mut f: Fragments<u32> = Fragments::new(SEED, 1, 4).unwrap();
    f.first(0, 0, 0, &fragment(false, 7, 0, 800, true), 42);
    assert_eq!(
        f.later(HOLD - 1, 0, 0, &fragment(false, 7, 800, 80, true)),
        Ok(42)
    );
    let late = f.later(HOLD + HOLD / 8, 0, 0, &fragment(false, 7, 880, 80, true));
    assert_eq!(late, Err(Unfollowed::Unknown));
}

#[test]
fn a_new_packet_takes_the_oldest_place_and_no_other_owners() {
    let mut f: Fragments<u32> = Fragments::new(SEED, 2, 4).unwrap();
    f.first(0, 1, 0, &fragment(false, 1, 0, 800, true), 1);
    for id in 0..5u16 {
        let now = u64::from(id) << 26;
        f.first(now, 0, 0, &fragment(false, id, 0, 800, true), u32::from(id));
        assert!(f.live(0) <= 4);
    }
    let later = |id| fragment(false, id, 800, 80, true);
    assert_eq!(f.later(1 << 29, 0, 0, &later(0)), Err(Unfollowed::Unknown));
    for id in 1..5u16 {
        assert_eq!(f.later(1 << 29, 0, 0, &later(id)), Ok(u32::from(id)));
    }
    assert_eq!(f.later(1 << 29, 1, 0, &later(1)), Ok(1));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What passes never overlaps, by a map of the bytes that passed.
    #[test]
    fn what_passes_is_disjoint(v6: bool, parts in prop::collection::vec((1u16..100, 1usize..12), 0..40)) {
        let mut f: Fragments<u32> = Fragments::new(SEED, 1, 2).unwrap();
        f.first(0, 0, 0, &fragment(v6, 7, 0, 64, true), 1);
        let mut passed: BTreeMap<u16, ()> = (0..8).map(|n| (n, ())).collect();
        for (place, length) in parts {
            let place = place + 7;
            let units: Vec<u16> = (place..place + length as u16).collect();
            let free = units.iter().all(|unit| !passed.contains_key(unit));
            match f.later(0, 0, 0, &fragment(v6, 7, place * 8, length * 8, true)) {
                Ok(_) => {
                    prop_assert!(free);
                    passed.extend(units.into_iter().map(|unit| (unit, ())));
                }
                Err(Unfollowed::Overlap) => prop_assert!(!free),
                Err(Unfollowed::Gaps) => prop_assert!(free),
                Err(Unfollowed::Unknown) => prop_assert!(false),
            }
        }
    }
}
