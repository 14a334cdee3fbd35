//! Counts by rule, in the counters page; a log of the packets that log rules decide.

use shm::CountersPage;
use telemetry::rules::{ENTRY_WORDS, MOST, Outcome, entry_word, used_word};

/// Logged packets at once, and a second: more would wash all else out of the recorder.
const LOG_BURST: u64 = 50;
const LOG_RATE: u64 = 20;

/// Where each rule's entry is.
pub struct Rules {
    /// By rule number: its entry. Room for all from the start.
    places: Vec<(u32, usize)>,
    /// Packets that may be logged, in 1/[`LOG_RATE`] seconds each; and since when.
    tokens: u64,
    since: u64,
}

impl Rules {
    /// Goes on with the entries that a predecessor left, as far as they are some.
    pub fn new(counters: &CountersPage) -> Rules {
        let slots = counters.slots();
        let used = (counters.words().load(used_word(slots)) as usize).min(MOST);
        let mut places: Vec<(u32, usize)> = Vec::with_capacity(MOST);
        for entry in 0..used {
            let rule = counters.words().load(entry_word(slots, entry)) as u32;
            if let Err(at) = places.binary_search_by_key(&rule, |(rule, _)| *rule) {
                places.insert(at, (rule, entry));
            }
        }
        counters.words().store(used_word(slots), used as u64);
        Rules {
            places,
            tokens: LOG_BURST,
            since: 0,
        }
    }

    /// Counts what a rule did. Bound: a binary search; for a rule that is new, a move of
    /// the places behind it.
    pub fn count(&mut self, counters: &CountersPage, rule: u32, outcome: Outcome) {
        let slots = counters.slots();
        let found = self.places.binary_search_by_key(&rule, |(rule, _)| *rule);
        let entry = match found {
            Ok(at) => self.places.get(at).map_or(MOST, |(_, entry)| *entry),
            Err(at) => self.claim(counters, at, rule),
        };
        const { assert!((Outcome::Denied as usize) < ENTRY_WORDS) };
        counters.add(entry_word(slots, entry) + outcome as usize, 1);
    }

    fn claim(&mut self, counters: &CountersPage, at: usize, rule: u32) -> usize {
        let slots = counters.slots();
        let entry = counters.words().load(used_word(slots)) as usize;
        if entry >= MOST || self.places.len() >= self.places.capacity() {
            return MOST;
        }
        self.places.insert(at, (rule, entry));
        counters
            .words()
            .store(entry_word(slots, entry), u64::from(rule));
        counters.words().store(used_word(slots), entry as u64 + 1);
        entry
    }

    /// Whether one more packet may be logged now.
    pub fn may_log(&mut self, now: u64) -> bool {
        const EVERY: u64 = 1_000_000_000 / LOG_RATE;
        let earned = now.saturating_sub(self.since) / EVERY;
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(LOG_BURST);
            self.since = now;
        }
        let may = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 2;

    fn page() -> (std::os::fd::OwnedFd, CountersPage) {
        let bytes = telemetry::counters::bytes_for(SLOTS);
        let file = shm::memory_file("counters", bytes).unwrap();
        let page = CountersPage::open(&file, SLOTS).unwrap();
        (file, page)
    }

    fn counted(page: &CountersPage, entry: usize) -> [u64; 4] {
        core::array::from_fn(|word| page.words().load(entry_word(SLOTS, entry) + word))
    }

    #[test]
    fn each_rule_has_its_counts_and_a_successor_goes_on() {
        let (file, page) = page();
        let mut rules = Rules::new(&page);
        rules.count(&page, 9, Outcome::Connection);
        rules.count(&page, 4, Outcome::Denied);
        rules.count(&page, 9, Outcome::Packet);
        drop(page);
        let page = CountersPage::open(&file, SLOTS).unwrap();
        let mut rules = Rules::new(&page);
        rules.count(&page, 9, Outcome::Connection);
        rules.count(&page, u32::MAX, Outcome::Denied);
        assert_eq!(counted(&page, 0), [9, 2, 1, 0]);
        assert_eq!(counted(&page, 1), [4, 0, 0, 1]);
        assert_eq!(counted(&page, 2), [u64::from(u32::MAX), 0, 0, 1]);
        assert_eq!(page.words().load(used_word(SLOTS)), 3);
    }

    #[test]
    fn more_rules_than_entries_are_counted_together() {
        let (_file, page) = page();
        let mut rules = Rules::new(&page);
        for rule in (0..MOST as u32 + 5).rev() {
            rules.count(&page, rule, Outcome::Connection);
        }
        assert_eq!(counted(&page, MOST), [0, 5, 0, 0]);
        assert_eq!(counted(&page, MOST - 1), [5, 1, 0, 0]);
    }

    #[test]
    fn a_predecessors_nonsense_is_bounded() {
        let (_file, page) = page();
        page.words().store(used_word(SLOTS), u64::MAX);
        let mut rules = Rules::new(&page);
        rules.count(&page, 7, Outcome::Connection);
        assert_eq!(page.words().load(used_word(SLOTS)), MOST as u64);
    }

    #[test]
    fn the_log_has_a_rate() {
        let (_file, page) = page();
        let mut rules = Rules::new(&page);
        let second = 1_000_000_000;
        let logged = |rules: &mut Rules, now| (0..1000).filter(|_| rules.may_log(now)).count();
        assert_eq!(logged(&mut rules, second) as u64, LOG_BURST);
        assert_eq!(logged(&mut rules, 2 * second) as u64, LOG_RATE);
    }
}
