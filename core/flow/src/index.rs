//! Where connections are found: of each owner a set-associative table of those that it
//! began, one cache line a set.
//!
//! Each connection has two sets that it may lie in, by two parts of one keyed hash, and
//! takes the emptier: with twice as many places as connections nearly none finds
//! both full. A quarter of a set's ways is for half-open connections.
//!
//! The hash is SipHash-1-3 with a secret key of 128 bits over the whole key, a
//! pseudo-random function as far as anyone knows: who chooses tuples cannot choose
//! sets (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; three
//! finalisation rounds as in Linux, Rust and Python, where nobody sees the hash).

use siphasher::sip::SipHasher13;
use wire::Tuple;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Ways of a set.
pub(crate) const WAYS: usize = 16;
/// The first of them are for half-open connections.
pub(crate) const HALF_OPEN_WAYS: usize = WAYS / 4;
/// Places per connection that an owner may have.
pub(crate) const SLACK: u64 = 2;
/// Connections that one owner may have: numbers of 24 bits, and none.
pub(crate) const MOST: u32 = (1 << 24) - 2;

/// A set: of each way the connection's number among its owner's and 1 (24 bits), and a
/// tag out of its hash (8 bits). 0: nothing.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(crate) struct Set([u32; WAYS]);

/// Which ways of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ways {
    HalfOpen,
    Established,
}

impl Ways {
    const fn range(self) -> core::ops::Range<usize> {
        match self {
            Ways::HalfOpen => 0..HALF_OPEN_WAYS,
            Ways::Established => HALF_OPEN_WAYS..WAYS,
        }
    }
}

const NUMBER: u32 = 0x00ff_ffff;

impl Set {
    /// Numbers that are there under `tag`. Bound: the ways.
    pub(crate) fn tagged(&self, tag: u32) -> impl Iterator<Item = u32> + '_ {
        self.0
            .iter()
            .filter(move |&&way| way & !NUMBER == tag && way & NUMBER != 0)
            .map(|way| (way & NUMBER) - 1)
    }

    /// Numbers in some ways.
    pub(crate) fn numbers(&self, ways: Ways) -> impl Iterator<Item = u32> + '_ {
        self.0
            .get(ways.range())
            .unwrap_or_default()
            .iter()
            .filter_map(|way| (way & NUMBER).checked_sub(1))
    }

    fn empty(&self, ways: Ways) -> usize {
        let range = self.0.get(ways.range()).unwrap_or_default();
        range.iter().filter(|&&way| way == 0).count()
    }

    fn insert(&mut self, ways: Ways, tag: u32, number: u32) -> bool {
        let range = self.0.get_mut(ways.range()).unwrap_or_default();
        let Some(way) = range.iter_mut().find(|way| **way == 0) else {
            return false;
        };
        *way = tag | (number + 1) & NUMBER;
        true
    }

    fn remove(&mut self, number: u32) -> bool {
        let found = self.0.iter_mut().find(|way| **way & NUMBER == number + 1);
        found.map(|way| *way = 0).is_some()
    }
}

/// The two sets of a key, and its tag.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) sets: [usize; 2],
    pub(crate) tag: u32,
}

impl Places {
    /// Those of `hash` among `count` sets from `base` on.
    pub(crate) const fn of(hash: u64, base: u32, count: u32) -> Places {
        Places {
            sets: [
                base as usize + reduce((hash >> 32) as u32, count),
                base as usize + reduce(hash as u32, count),
            ],
            // The lowest bits, which decide least about the second set.
            tag: (hash as u32) << 24,
        }
    }
}

/// A hash brought below `count` (Lemire, "Fast Random Integer Generation in an
/// Interval", 2019).
pub(crate) const fn reduce(hash: u32, count: u32) -> usize {
    ((hash as u64 * count as u64) >> 32) as usize
}

/// Puts `number` into the emptier of its sets; `false`: both are full.
pub(crate) fn insert(sets: &mut [Set], places: &Places, ways: Ways, number: u32) -> bool {
    let [first, second] = places.sets;
    let empty = |at: usize| sets.get(at).map_or(0, |set| set.empty(ways));
    let at = if empty(second) > empty(first) {
        second
    } else {
        first
    };
    sets.get_mut(at)
        .is_some_and(|set| set.insert(ways, places.tag, number))
}

/// Takes `number` out of its sets.
pub(crate) fn remove(sets: &mut [Set], places: &Places, number: u32) -> bool {
    places
        .sets
        .iter()
        .any(|&at| sets.get_mut(at).is_some_and(|set| set.remove(number)))
}

/// Sets of an owner of this capacity; none if it may have no connection.
pub(crate) const fn sets(capacity: u32) -> u32 {
    (capacity as u64 * SLACK).div_ceil(WAYS as u64) as u32
}

/// The hash of a side.
pub(crate) fn hash(hasher: &SipHasher13, owner: u32, zone: u16, tuple: &Tuple) -> u64 {
    let mut key = [0u8; 43];
    let (addresses, rest) = key.split_at_mut(32);
    let (source, destination) = addresses.split_at_mut(16);
    source.copy_from_slice(&tuple.source);
    destination.copy_from_slice(&tuple.destination);
    let ports = u32::from(tuple.source_port) << 16 | u32::from(tuple.destination_port);
    let last = u64::from(ports) << 24 | u64::from(zone) << 8 | u64::from(tuple.protocol);
    let (last_bytes, owner_bytes) = rest.split_at_mut(7);
    last_bytes.copy_from_slice(last.to_le_bytes().get(..7).unwrap_or(&[0; 7]));
    owner_bytes.copy_from_slice(&owner.to_le_bytes());
    hasher.hash(&key)
}
