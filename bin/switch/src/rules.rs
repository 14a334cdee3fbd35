//! Counts by rule, in the counters page; a log of the packets that log rules decide.

use shm::CountersPage;
use telemetry::rules::{ENTRY_WORDS, MOST, Outcome, Passed, entry_word, passed_word, used_word};

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
        let said = counters.words().load(used_word(slots));
        let used = (said as usize).min(MOST);
        let mut places: Vec<(u32, usize)> = Vec::with_capacity(MOST);
        for entry in 0..used {
            let rule = counters.words().load(entry_word(slots, entry)) as u32;
            if let Err(at) = places.binary_search_by_key(&rule, |(rule, _)| *rule) {
                places.insert(at, (rule, entry));
            }
        }
        if said != used as u64 {
            counters.words().store(used_word(slots), used as u64);
        }
        Rules {
            places,
            tokens: LOG_BURST,
            since: 0,
        }
    }

    /// Counts what a rule did about so many packets and bytes; of a connection that they
    /// begin it is one, and they are [passed](Rules::passed) with its others.
    pub fn count(
        &mut self,
        counters: &CountersPage,
        rule: u32,
        outcome: Outcome,
        (packets, bytes): (u64, u64),
    ) {
        let slots = counters.slots();
        let entry = self.entry(counters, rule);
        const { assert!((Outcome::Denied as usize) < ENTRY_WORDS) };
        let at = entry_word(slots, entry) + outcome as usize;
        let which = match outcome {
            Outcome::Connection => return counters.add(at, 1),
            Outcome::Packet => Passed::Bytes,
            Outcome::Denied => Passed::Denied,
        };
        counters.add(at, packets);
        counters.add(passed_word(slots, entry) + which as usize, bytes);
    }

    /// Counts what passed of connections that a rule let begin.
    pub fn passed(&mut self, counters: &CountersPage, rule: u32, packets: u64, bytes: u64) {
        let at = passed_word(counters.slots(), self.entry(counters, rule));
        counters.add(at + Passed::Packets as usize, packets);
        counters.add(at + Passed::Bytes as usize, bytes);
    }

    /// A rule's entry. Bound: a binary search; for a rule that is new, a move of the places
    /// behind it.
    fn entry(&mut self, counters: &CountersPage, rule: u32) -> usize {
        let found = self.places.binary_search_by_key(&rule, |(rule, _)| *rule);
        match found {
            Ok(at) => self.places.get(at).map_or(MOST, |(_, entry)| *entry),
            Err(at) => self.claim(counters, at, rule),
        }
    }

    /// The entry that another worker has for a rule. Bound: the entries, once for each rule.
    fn of_another(&self, counters: &CountersPage, rule: u32) -> Option<usize> {
        let slots = counters.slots();
        let used = counters.words().load(used_word(slots)) as usize;
        // One that was only just begun has no number yet, and looks like 0.
        (0..used.min(MOST))
            .find(|entry| counters.words().load(entry_word(slots, *entry)) == u64::from(rule))
            .filter(|_| rule != 0)
    }

    fn claim(&mut self, counters: &CountersPage, at: usize, rule: u32) -> usize {
        let slots = counters.slots();
        let used = used_word(slots);
        let free = |entry: usize| entry < MOST && self.places.len() < self.places.capacity();
        if !free(counters.words().load(used) as usize) {
            return MOST;
        }
        // Of several workers two may begin an entry for the same rule: their sum is the rule's.
        let others = || self.of_another(counters, rule);
        let entry = match counters.is_shared() {
            true => match others() {
                Some(entry) => {
                    self.places.insert(at, (rule, entry));
                    return entry;
                }
                None => counters.words().fetch_add(used, 1) as usize,
            },
            false => counters.words().load(used) as usize,
        };
        if !free(entry) {
            return MOST;
        }
        self.places.insert(at, (rule, entry));
        counters
            .words()
            .store(entry_word(slots, entry), u64::from(rule));
        if !counters.is_shared() {
            counters.words().store(used, entry as u64 + 1);
        }
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
        rules.count(&page, 9, Outcome::Connection, (1, 60));
        rules.count(&page, 4, Outcome::Denied, (1, 60));
        rules.count(&page, 9, Outcome::Packet, (1, 60));
        drop(page);
        let page = CountersPage::open(&file, SLOTS).unwrap();
        let mut rules = Rules::new(&page);
        rules.count(&page, 9, Outcome::Connection, (1, 60));
        rules.count(&page, u32::MAX, Outcome::Denied, (1, 60));
        assert_eq!(counted(&page, 0), [9, 2, 1, 0]);
        assert_eq!(counted(&page, 1), [4, 0, 0, 1]);
        assert_eq!(counted(&page, 2), [u64::from(u32::MAX), 0, 0, 1]);
        assert_eq!(page.words().load(used_word(SLOTS)), 3);
    }

    #[test]
    fn bytes_are_those_that_pass_by_themselves_and_those_of_connections() {
        let (_file, page) = page();
        let mut rules = Rules::new(&page);
        rules.count(&page, 9, Outcome::Connection, (1, 60));
        rules.count(&page, 9, Outcome::Packet, (2, 3000));
        rules.count(&page, 9, Outcome::Denied, (3, 180));
        rules.passed(&page, 9, 10, 5060);
        rules.passed(&page, 4, 1, 60);
        let passed = |entry: usize| {
            core::array::from_fn(|word| page.words().load(passed_word(SLOTS, entry) + word))
        };
        assert_eq!(counted(&page, 0), [9, 1, 2, 3]);
        assert_eq!(passed(0), [8060, 10, 180, 0]);
        assert_eq!(passed(1), [60, 1, 0, 0]);
    }

    #[test]
    fn more_rules_than_entries_are_counted_together() {
        let (_file, page) = page();
        let mut rules = Rules::new(&page);
        for rule in (0..MOST as u32 + 5).rev() {
            rules.count(&page, rule, Outcome::Connection, (1, 60));
        }
        assert_eq!(counted(&page, MOST), [0, 5, 0, 0]);
        assert_eq!(counted(&page, MOST - 1), [5, 1, 0, 0]);
    }

    #[test]
    fn a_predecessors_nonsense_is_bounded() {
        let (_file, page) = page();
        page.words().store(used_word(SLOTS), u64::MAX);
        let mut rules = Rules::new(&page);
        rules.count(&page, 7, Outcome::Connection, (1, 60));
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
