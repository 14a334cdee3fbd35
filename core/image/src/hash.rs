//! Static hash tables: open addressing, a power of two of slots, at most
//! [`PROBES`] looked at for any key.
//!
//! Keys come from the spec, never from traffic, and a lookup is bounded whatever
//! they are; so the seed is no secret. It is the first that keeps every key within
//! the bound, which makes the bytes a function of the keys alone.

use crate::compartment::{AddressSlot, CrossingSlot, MacSlot, NONE};
use crate::fabric::Forward;
use guard::guard;

/// Most slots looked at for a key.
pub(crate) const PROBES: usize = 8;

/// Seeds tried before the table is doubled.
const SEEDS: u64 = 16;
/// Most slots for each key.
const MAX_SPREAD: usize = 64;

/// A record that is a slot of a table.
pub(crate) trait Keyed: Copy + PartialEq {
    /// The empty slot.
    const EMPTY: Self;
    fn key(&self) -> [u64; 3];
    fn is_empty(&self) -> bool;
}

/// A MAC as a number.
#[inline]
pub(crate) const fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

#[inline]
pub(crate) const fn mac_key(subnet: u32, mac: [u8; 6]) -> [u64; 3] {
    [subnet as u64, mac_word(mac), 0]
}

#[inline]
pub(crate) const fn address_key(subnet: u32, address: [u8; 16]) -> [u64; 3] {
    let word = u128::from_le_bytes(address);
    [subnet as u64, word as u64, (word >> 64) as u64]
}

#[inline]
pub(crate) const fn tag_key(tag: u16) -> [u64; 3] {
    [tag as u64, 0, 0]
}

#[inline]
pub(crate) const fn forward_key(ingress: u32, tag: u16, mac: [u8; 6]) -> [u64; 3] {
    [ingress as u64, tag as u64 | mac_word(mac) << 16, 0]
}

impl Keyed for MacSlot {
    const EMPTY: MacSlot = MacSlot {
        subnet: 0,
        endpoint: NONE,
        mac: [0; 6],
        reserved: 0,
    };
    #[inline]
    fn key(&self) -> [u64; 3] {
        mac_key(self.subnet, self.mac)
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.endpoint == NONE
    }
}

impl Keyed for AddressSlot {
    const EMPTY: AddressSlot = AddressSlot {
        address: [0; 16],
        subnet: 0,
        endpoint: NONE,
        reserved: [0; 2],
    };
    #[inline]
    fn key(&self) -> [u64; 3] {
        address_key(self.subnet, self.address)
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.endpoint == NONE
    }
}

impl Keyed for CrossingSlot {
    const EMPTY: CrossingSlot = CrossingSlot {
        crossing: NONE,
        tag: 0,
        reserved: 0,
    };
    #[inline]
    fn key(&self) -> [u64; 3] {
        tag_key(self.tag)
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.crossing == NONE
    }
}

impl Keyed for Forward {
    const EMPTY: Forward = Forward {
        ingress: 0,
        tag: 0,
        mac: [0; 6],
        target: 0,
        out_tag: 0,
        kind: 0,
    };
    #[inline]
    fn key(&self) -> [u64; 3] {
        forward_key(self.ingress, self.tag, self.mac)
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.kind == 0
    }
}

/// Finds a key.
#[inline]
pub(crate) fn find<T: Keyed>(table: &[T], seed: u64, key: [u64; 3]) -> Option<&T> {
    // As right, and slower with every key that is not asked for.
    if !guard!("image-probes") {
        return table.iter().find(|s| !s.is_empty() && s.key() == key);
    }
    let mask = table.len().checked_sub(1)?;
    let start = hash(seed, key) as usize;
    for i in 0..PROBES {
        let slot = table.get(start.wrapping_add(i) & mask)?;
        if slot.is_empty() {
            return None;
        }
        if slot.key() == key {
            return Some(slot);
        }
    }
    None
}

/// Makes the table of these records and says its seed; or the key that is there twice.
pub(crate) fn build<T: Keyed>(records: &[T]) -> Result<(Vec<T>, u64), T> {
    let mut records = records.to_vec();
    records.sort_by_key(Keyed::key);
    if let Some([twice, _]) = records.array_windows().find(|[a, b]| a.key() == b.key()) {
        return Err(*twice);
    }
    if records.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let mut slots = (records.len() * 2).next_power_of_two();
    loop {
        for seed in 1..=SEEDS {
            if let Some(table) = place(&records, slots, seed) {
                return Ok((table, seed));
            }
        }
        slots *= 2;
        // At 64 slots a key and 16 seeds a size, nine keys in one run of a dozen
        // slots are out of the question for keys that are all different.
        assert!(
            slots / records.len() <= 2 * MAX_SPREAD,
            "a hash that does not spread"
        );
    }
}

/// Robin Hood insertion: whoever is further from home keeps the slot, which keeps
/// the longest way short.
fn place<T: Keyed>(records: &[T], slots: usize, seed: u64) -> Option<Vec<T>> {
    let mask = slots - 1;
    let mut table = vec![T::EMPTY; slots];
    for record in records {
        let mut moving = *record;
        let mut way = 0;
        let mut at = hash(seed, moving.key()) as usize & mask;
        while way < PROBES {
            let here = table.get_mut(at)?;
            if here.is_empty() {
                *here = moving;
                break;
            }
            let home = hash(seed, here.key()) as usize & mask;
            let their_way = at.wrapping_sub(home) & mask;
            if their_way < way {
                core::mem::swap(here, &mut moving);
                way = their_way;
            }
            way += 1;
            at = (at + 1) & mask;
        }
        if way == PROBES {
            return None;
        }
    }
    Some(table)
}

/// Folded multiplication of each word, as wyhash does.
#[inline]
fn hash(seed: u64, key: [u64; 3]) -> u64 {
    let [a, b, c] = key;
    let mut h = seed ^ 0xa076_1d64_78bd_642f;
    h = fold(h ^ a, 0xe703_7ed1_a0b4_28db);
    h = fold(h ^ b, 0x8ebc_6af0_9c88_c6e3);
    fold(h ^ c, 0x5899_65cc_7537_4cc3)
}

#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}
