//! Counts by agreement, in the counters page's table of rules: an entry for each channel
//! and tag by which frames come that cross to another tenant. They are what is billed.

use shm::CountersPage;
use telemetry::crossed::{BYTES, SEGMENTS, key};
use telemetry::rules::{ENTRY_WORDS, MOST, entry_word, used_word};

/// Places of the hash table: twice as many as there are entries.
const PLACES: usize = 2048;
const _: () = assert!(PLACES >= 2 * MOST && PLACES.is_power_of_two());
/// Places that are looked at for one key.
const PROBES: usize = 16;

/// Where each agreement's entry is.
pub struct Crossed {
    /// (key, entry); key 0 = free.
    places: Box<[(u32, u32)]>,
}

impl Crossed {
    /// Goes on with the entries that a predecessor left, as far as they are some.
    pub fn new(counters: &CountersPage) -> Crossed {
        let mut crossed = Crossed {
            places: vec![(0, 0); PLACES].into(),
        };
        let slots = counters.slots();
        let used = (counters.words().load(used_word(slots)) as usize).min(MOST);
        for entry in 0..used {
            let key = counters.words().load(entry_word(slots, entry)) as u32;
            if let Some(place) = crossed.place(key).filter(|_| key != 0) {
                *place = (key, entry as u32);
            }
        }
        counters.words().store(used_word(slots), used as u64);
        crossed
    }

    /// Counts what was sent on of what a channel sent with a tag. Bound: [`PROBES`].
    #[inline]
    pub fn count(
        &mut self,
        counters: &CountersPage,
        ingress: u32,
        tag: u16,
        segments: u64,
        bytes: u64,
    ) {
        let key = key(ingress, tag);
        let entry = match self.place(key) {
            Some((0, _)) => self.claim(counters, key),
            Some((_, entry)) => *entry as usize,
            None => MOST,
        };
        let at = entry_word(counters.slots(), entry);
        const { assert!(SEGMENTS < ENTRY_WORDS && BYTES < ENTRY_WORDS) };
        counters.add(at + SEGMENTS, segments);
        counters.add(at + BYTES, bytes);
    }

    /// The place of a key, or a free one for it; `None`: there is none near.
    #[inline]
    fn place(&mut self, key: u32) -> Option<&mut (u32, u32)> {
        // Multiplicative hashing (Knuth, The Art of Computer Programming, 6.4).
        let first = (key.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        let places = (first..first + PROBES).map(|at| at % PLACES);
        let at = places.into_iter().find(|at| {
            let found = self.places.get(*at).map_or(0, |(found, _)| *found);
            found == key || found == 0
        })?;
        self.places.get_mut(at)
    }

    /// A new entry for a key, or that of all others. Those whose agreement has gone are
    /// not given again: their figures may not have been read yet.
    #[cold]
    fn claim(&mut self, counters: &CountersPage, key: u32) -> usize {
        let slots = counters.slots();
        let entry = counters.words().load(used_word(slots)) as usize;
        if entry >= MOST {
            return MOST;
        }
        if let Some(place) = self.place(key) {
            *place = (key, entry as u32);
        }
        let words = counters.words();
        words.store(entry_word(slots, entry), u64::from(key));
        words.store(used_word(slots), entry as u64 + 1);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SLOTS: usize = 2;

    fn page() -> (std::os::fd::OwnedFd, CountersPage) {
        let bytes = telemetry::counters::bytes_for(SLOTS);
        let file = shm::memory_file("counters", bytes).unwrap();
        let page = CountersPage::open(&file, SLOTS).unwrap();
        (file, page)
    }

    fn counted(page: &CountersPage) -> BTreeMap<u32, [u64; 2]> {
        let words = page.words();
        let used = words.load(used_word(SLOTS)) as usize;
        let entry = |entry: usize| {
            let at = entry_word(SLOTS, entry);
            let figures = [words.load(at + SEGMENTS), words.load(at + BYTES)];
            (words.load(at) as u32, figures)
        };
        // Key 0: the others'.
        (0..used).chain([MOST]).map(entry).collect()
    }

    proptest! {
        #[test]
        fn each_agreement_has_its_counts_and_a_successor_goes_on(
            sent in prop::collection::vec((1u32..60, 1u16..40, 1u64..50, 60u64..9000), 0..3000),
            dies in 0usize..3000,
        ) {
            let (_file, page) = page();
            let mut crossed = Crossed::new(&page);
            let mut model = BTreeMap::new();
            for (n, (ingress, tag, segments, bytes)) in sent.into_iter().enumerate() {
                if n == dies {
                    crossed = Crossed::new(&page);
                }
                crossed.count(&page, ingress, tag, segments, bytes);
                let sum: &mut [u64; 2] = model.entry(key(ingress, tag)).or_default();
                *sum = [sum[0] + segments, sum[1] + bytes];
            }
            let counted = counted(&page);
            // Each has its own, or is among the others: nothing is lost, nothing anybody else's.
            for (key, figures) in counted.iter().filter(|(key, _)| **key != 0) {
                prop_assert_eq!(Some(figures), model.get(key));
            }
            let sum = |of: &BTreeMap<u32, [u64; 2]>| {
                of.values().fold([0; 2], |sum, more| [sum[0] + more[0], sum[1] + more[1]])
            };
            prop_assert_eq!(sum(&counted), sum(&model));
            if model.len() < 500 {
                prop_assert_eq!(counted.len(), model.len() + 1);
            }
        }
    }

    #[test]
    fn a_predecessors_nonsense_harms_nothing() {
        let (_file, page) = page();
        page.words().store(used_word(SLOTS), u64::MAX);
        for entry in 0..=MOST {
            page.words().store(entry_word(SLOTS, entry), 77 << 40 | 5);
        }
        let mut crossed = Crossed::new(&page);
        crossed.count(&page, 1, 2, 3, 4);
        assert_eq!(page.words().load(used_word(SLOTS)), MOST as u64);
        assert_eq!(page.words().load(entry_word(SLOTS, MOST) + BYTES), 4);
    }
}
