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

use wire::Tuple;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::sip;

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
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct Set([u32; WAYS]);

/// All sets, each in one cache line.
pub(crate) struct Sets {
    /// An allocation that asks for alignment is zeroed by hand and so resident at once;
    /// this one is aligned by leaving its first words out.
    words: Vec<u32>,
    skip: usize,
}

impl Sets {
    /// None.
    pub(crate) const NONE: Sets = Sets {
        words: Vec::new(),
        skip: 0,
    };

    /// `None`: the memory is not to be had.
    pub(crate) fn new(count: usize) -> Option<Sets> {
        let words = u32::new_vec_zeroed((count + 1).checked_mul(WAYS)?).ok()?;
        let skip = words.as_ptr().align_offset(size_of::<Set>()).min(WAYS);
        Some(Sets { words, skip })
    }

    fn place(&self, at: usize) -> core::ops::Range<usize> {
        let start = self.skip + at * WAYS;
        start..start + WAYS
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&Set> {
        Set::ref_from_bytes(self.words.get(self.place(at))?.as_bytes()).ok()
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut Set> {
        let place = self.place(at);
        Set::mut_from_bytes(self.words.get_mut(place)?.as_mut_bytes()).ok()
    }
}

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
    #[inline]
    pub(crate) fn tagged(&self, tag: u32) -> impl Iterator<Item = u32> + '_ {
        // All are compared before any is looked at, which the compiler does at once.
        let mut same = 0u32;
        for (index, way) in self.0.iter().enumerate() {
            same |= u32::from(way & !NUMBER == tag) << index;
        }
        core::iter::from_fn(move || {
            let index = same.trailing_zeros() as usize;
            let way = self.0.get(index)?;
            same &= same.wrapping_sub(1);
            Some(way & NUMBER)
        })
        .filter_map(|number| number.checked_sub(1))
    }

    /// Its first way, whatever that is: with it comes the rest.
    #[inline]
    pub(crate) fn first(&self) -> u32 {
        let [first, ..] = self.0;
        first
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
pub(crate) fn insert(sets: &mut Sets, places: &Places, ways: Ways, number: u32) -> bool {
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
pub(crate) fn remove(sets: &mut Sets, places: &Places, number: u32) -> bool {
    places
        .sets
        .iter()
        .any(|&at| sets.get_mut(at).is_some_and(|set| set.remove(number)))
}

/// Sets of an owner of this capacity; none if it may have no connection.
pub(crate) const fn sets(capacity: u32) -> u32 {
    (capacity as u64 * SLACK).div_ceil(WAYS as u64) as u32
}

/// The hash of a side: of 41 bytes, or where both addresses are IPv4's of the 17 in which
/// these differ, so that no two sides are one message.
#[inline(always)]
pub(crate) fn hash(seed: [u64; 2], owner: u32, zone: u16, tuple: &Tuple) -> u64 {
    let [a, b] = halves(&tuple.source);
    let [c, d] = halves(&tuple.destination);
    // Owners have 16 bits.
    let rest = u64::from(tuple.source_port) << 48
        | u64::from(tuple.destination_port) << 32
        | u64::from(zone) << 16
        | u64::from(owner as u16);
    let protocol = u64::from(tuple.protocol);
    if (a | c, b as u32, d as u32) == (0, MAPPED, MAPPED) {
        let both = b >> 32 | d & !u64::from(u32::MAX);
        return sip::hash(seed, [both, rest], 17 << 56 | protocol);
    }
    sip::hash(seed, [a, b, c, d, rest], 41 << 56 | protocol)
}

/// What comes before the IPv4 address in the second half of its ::ffff: form.
const MAPPED: u32 = u32::from_le_bytes([0, 0, 0xff, 0xff]);

fn halves(address: &[u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(*address);
    [all as u64, (all >> 64) as u64]
}
