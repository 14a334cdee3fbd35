//! What was decided of circuits, told as a switch tells of packets: whom rules let begin or deny,
//! who is refused and why, and the last of both.
//!
//! It lies in the page behind the notes, and goes on over an operator's death. Who reads it takes
//! each word as an allegation; so does this, of what the operator before wrote.

use crate::decide::{Refused, Ruling};
use guard::guard;
use shm::Words;
use std::collections::BTreeMap;
use telemetry::drops::{DropReason, MAX_REASONS};
use telemetry::operator::{
    DECIDED_AT, RECORDER_AT, RULES_USED, UNLOGGED, begun_word, entry_word, owner_word, refused_word,
};
use telemetry::recorder::{EVENTS, Event, EventKind};
use telemetry::rules::{Logged, MOST, NO_RULE, Outcome};
use wire::address::unmapped;
use worker::clock::monotonic;

/// Events of rules that log at once, and a second: more would wash all else out.
const LOG_BURST: u64 = 50;
const LOG_EVERY: u64 = 1_000_000_000 / 20;
/// Of what one endpoint is refused for one reason, or by one rule, one event in this time, ns; and so
/// many of all.
const SAMPLE: u64 = 1_000_000_000;
const SAMPLES: usize = 8;
/// Slots that are counted: as many as there can be endpoints.
const SLOTS: u32 = 4096;
const WORD: usize = 8;
const HEAD: usize = 4096 / WORD;

/// A connection, or a datagram, as rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The slot of the endpoint that it is told of.
    pub slot: u32,
    /// It comes to that endpoint.
    pub inbound: bool,
    /// The other end, IPv4 as ::ffff:a.b.c.d.
    pub peer: [u8; 16],
    /// Ports: of who sends, of where it goes.
    pub ports: [u16; 2],
    /// IP protocol.
    pub protocol: u8,
}

/// What an endpoint was refused for that was recorded, since when.
#[derive(Default)]
struct Samples {
    since: u64,
    of: Vec<(u8, u32)>,
}

/// Where each rule's entry is, and what was recorded last of each slot.
#[derive(Default)]
pub struct Tally {
    places: BTreeMap<u32, usize>,
    samples: BTreeMap<u32, Samples>,
    tokens: u64,
    earned: u64,
}

impl Tally {
    /// Goes on with the entries that the operator before left, as far as they are some.
    pub fn recall(words: &Words) -> Tally {
        let used = decided(words, RULES_USED).min(MOST as u64);
        words.store(DECIDED_AT / WORD + RULES_USED, used);
        let rule = |entry| (decided(words, entry_word(entry)) as u32, entry);
        // The first of a rule counts; there is one of each.
        let places = (0..used as usize).rev().map(rule).collect();
        Tally {
            places,
            tokens: LOG_BURST,
            ..Tally::default()
        }
    }

    /// A connection began, by these rules of both ends, if they are there.
    pub fn begun(&mut self, words: &Words, seen: &Seen, rules: [Option<Ruling>; 2]) {
        if seen.slot < SLOTS && !seen.inbound {
            words.add(DECIDED_AT / WORD + begun_word(seen.slot as usize), 1);
        }
        let [sent, got] = rules;
        // One rule at both ends is one decision.
        for by in [sent, got.filter(|_| got != sent)].into_iter().flatten() {
            self.count(words, by.rule, Outcome::Connection);
            self.log(words, seen, by, Outcome::Connection);
        }
    }

    /// A program of a slot was refused something for this reason so many times, or lost so many datagrams by it.
    pub fn counts(words: &Words, slot: u32, reason: DropReason, times: u64) {
        if slot < SLOTS {
            let at = refused_word(slot as usize, reason);
            words.add(DECIDED_AT / WORD + at, times);
        }
    }

    /// Something was refused. Of what comes by an agreement it is nobody's program: it is counted
    /// with that of all, as a switch counts what the fabric brings.
    pub fn refused(&mut self, words: &Words, seen: &Seen, refused: &Refused) {
        let counted = match seen.inbound {
            true => 0,
            false => seen.slot,
        };
        Tally::counts(words, counted, refused.reason, 1);
        if let Some(by) = refused.by {
            self.count(words, by.rule, Outcome::Denied);
            self.log(words, seen, by, Outcome::Denied);
        }
        let now = monotonic();
        // The last word of a slot says whose it is.
        const { assert!(DropReason::ALL.len() + 1 < MAX_REASONS) };
        let rule = refused.by.map_or(NO_RULE, |by| by.rule);
        let of = (refused.reason as u8, rule);
        let samples = self.samples.entry(seen.slot.min(SLOTS)).or_default();
        if now.saturating_sub(samples.since) >= SAMPLE {
            samples.since = now;
            samples.of.clear();
        }
        if samples.of.len() < SAMPLES && !samples.of.contains(&of) {
            samples.of.push(of);
            let logged = Logged {
                reason: refused.reason as u8,
                ..logged(seen, rule, Outcome::Denied)
            };
            record(words, now, EventKind::Refused, seen.slot, &logged);
        }
    }

    /// What a slot's endpoint was refused, and by whom, the next one's tenant is not told. Bound: events that are kept.
    fn forgets(words: &Words, slot: u32) {
        if slot >= SLOTS || !guard!("circuits-tally-owner") {
            return;
        }
        let first = DECIDED_AT / WORD + begun_word(slot as usize);
        (first..first + MAX_REASONS).for_each(|word| words.store(word, 0));
        for event in 0..EVENTS {
            let at = RECORDER_AT / WORD + HEAD + event * 4;
            if words.load(at + 1) >> 32 == u64::from(slot) {
                (at..at + 4).for_each(|word| words.store(word, 0));
            }
        }
    }

    /// A slot is the endpoint's of this number: what another's was is forgotten, whoever was there
    /// when that went. What is of an endpoint that is no more nobody is told.
    pub fn owns(words: &Words, slot: u32, id: u32) {
        if slot >= SLOTS {
            return;
        }
        let (word, owner) = (
            DECIDED_AT / WORD + owner_word(slot as usize),
            u64::from(id) + 1,
        );
        if words.load(word) != owner {
            Tally::forgets(words, slot);
            words.store(word, owner);
        }
    }

    fn count(&mut self, words: &Words, rule: u32, outcome: Outcome) {
        let entry = match self.places.get(&rule) {
            Some(entry) => *entry,
            None => self.claim(words, rule),
        };
        let at = DECIDED_AT / WORD + entry_word(entry);
        words.add(at + outcome as usize, 1);
    }

    /// A new entry; the last one is that of all for whom there is none.
    fn claim(&mut self, words: &Words, rule: u32) -> usize {
        let used = DECIDED_AT / WORD + RULES_USED;
        let entry = words.load(used) as usize;
        if entry >= MOST {
            return MOST;
        }
        self.places.insert(rule, entry);
        words.store(DECIDED_AT / WORD + entry_word(entry), u64::from(rule));
        words.store(used, entry as u64 + 1);
        entry
    }

    fn log(&mut self, words: &Words, seen: &Seen, by: Ruling, outcome: Outcome) {
        if !by.logs {
            return;
        }
        let now = monotonic();
        let earned = now.saturating_sub(self.earned) / LOG_EVERY;
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(LOG_BURST);
            self.earned = now;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            words.add(DECIDED_AT / WORD + UNLOGGED, 1);
            return;
        };
        self.tokens = left;
        let logged = logged(seen, by.rule, outcome);
        record(words, now, EventKind::Rule, seen.slot, &logged);
    }
}

fn decided(words: &Words, word: usize) -> u64 {
    words.load(DECIDED_AT / WORD + word)
}

fn logged(seen: &Seen, rule: u32, outcome: Outcome) -> Logged {
    let [source_port, destination_port] = seen.ports;
    let [.., a, b, c, d] = seen.peer;
    Logged {
        rule,
        outcome: outcome as u8,
        inbound: seen.inbound,
        peer: [a, b, c, d],
        six: unmapped(&seen.peer).is_none(),
        protocol: seen.protocol,
        source_port,
        destination_port,
        circuit: true,
        reason: 0,
    }
}

/// Over the oldest event.
fn record(words: &Words, now: u64, kind: EventKind, slot: u32, logged: &Logged) {
    const { assert!(size_of::<Event>() == 4 * WORD) };
    let next = words.load(RECORDER_AT / WORD);
    let at = RECORDER_AT / WORD + HEAD + (next % EVENTS as u64) as usize * 4;
    let [a, b] = logged.words();
    let event = [now, u64::from(kind as u32) | u64::from(slot) << 32, a, b];
    for (n, word) in event.into_iter().enumerate() {
        words.store(at + n, word);
    }
    words.publish(RECORDER_AT / WORD, next.wrapping_add(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::operator::BYTES;

    const SEEN: Seen = Seen {
        slot: 3,
        inbound: false,
        peer: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 7],
        ports: [40_000, 5432],
        protocol: 6,
    };

    fn page() -> Words {
        let page = shm::sparse_file("notes", BYTES).unwrap();
        Words::map_whole(page).unwrap()
    }

    fn by(rule: u32, logs: bool) -> Option<Ruling> {
        Some(Ruling { rule, logs })
    }

    fn denied(rule: u32, logs: bool) -> Refused {
        Refused {
            by: by(rule, logs),
            ..Refused::new(rustix::io::Errno::ACCESS, DropReason::EgressRule)
        }
    }

    fn entry(words: &Words, entry: usize) -> [u64; 4] {
        core::array::from_fn(|n| decided(words, entry_word(entry) + n))
    }

    fn events(words: &Words) -> Vec<(u32, u32, Logged)> {
        let event = |n: u64| {
            let at = RECORDER_AT / WORD + HEAD + n as usize * 4;
            let [kind, a, b] = [1, 2, 3].map(|n| words.load(at + n));
            (kind as u32, (kind >> 32) as u32, Logged::of([a, b]))
        };
        (0..words.load(RECORDER_AT / WORD)).map(event).collect()
    }

    #[test]
    fn each_rule_has_its_counts_and_a_successor_goes_on() {
        let words = page();
        let mut tally = Tally::recall(&words);
        tally.begun(&words, &SEEN, [by(9, false), by(4, false)]);
        tally.begun(&words, &SEEN, [by(9, false), by(9, false)]);
        tally.refused(&words, &SEEN, &denied(6, false));
        let mut tally = Tally::recall(&words);
        tally.begun(&words, &SEEN, [None, by(4, false)]);
        tally.refused(&words, &SEEN, &denied(6, false));
        tally.refused(&words, &SEEN, &crate::decide::NOBODY);
        assert_eq!(entry(&words, 0), [9, 2, 0, 0]);
        assert_eq!(entry(&words, 1), [4, 2, 0, 0]);
        assert_eq!(entry(&words, 2), [6, 0, 0, 2]);
        assert_eq!(decided(&words, RULES_USED), 3);
        assert_eq!(decided(&words, begun_word(3)), 3);
        let refused = |reason| decided(&words, refused_word(3, reason));
        assert_eq!(refused(DropReason::EgressRule), 2);
        assert_eq!(refused(DropReason::NoNeighbour), 1);
        assert_eq!(refused(DropReason::IngressRule), 0);
    }

    #[test]
    fn what_was_anothers_is_forgotten_with_its_events() {
        let words = page();
        let mut tally = Tally::recall(&words);
        let other = Seen { slot: 4, ..SEEN };
        for slot in [3, 4] {
            Tally::owns(&words, slot, 70 + slot);
        }
        for seen in [SEEN, other] {
            tally.begun(&words, &seen, [None, None]);
            tally.refused(&words, &seen, &denied(6, false));
        }
        let refused = |slot| {
            let refused = decided(&words, refused_word(slot, DropReason::EgressRule));
            let events = events(&words).into_iter();
            let events = events.filter(|(kind, of, _)| *kind != 0 && *of as usize == slot);
            (refused, decided(&words, begun_word(slot)), events.count())
        };
        // The same one again, as a successor says it.
        Tally::owns(&words, 3, 73);
        assert_eq!((refused(3), refused(4)), ((1, 1, 1), (1, 1, 1)));
        Tally::owns(&words, 3, 90);
        assert_eq!((refused(3), refused(4)), ((0, 0, 0), (1, 1, 1)));
        Tally::forgets(&words, 4);
        assert_eq!(refused(4), (0, 0, 0));
    }

    #[test]
    fn what_comes_is_counted_with_all_and_told_of_its_endpoint() {
        let words = page();
        let mut tally = Tally::recall(&words);
        let comes = Seen {
            inbound: true,
            ..SEEN
        };
        tally.refused(&words, &comes, &denied(6, true));
        let of = |slot| decided(&words, refused_word(slot, DropReason::EgressRule));
        assert_eq!((of(0), of(3)), (1, 0));
        assert!(
            events(&words)
                .iter()
                .all(|(_, slot, it)| *slot == 3 && it.inbound)
        );
    }

    #[test]
    fn no_endpoint_keeps_another_from_being_told_of_and_none_tells_without_end() {
        let words = page();
        let mut tally = Tally::recall(&words);
        for rule in 0..100 {
            tally.refused(&words, &SEEN, &denied(rule, false));
        }
        let other = Seen { slot: 4, ..SEEN };
        let comes = |slot| Seen {
            inbound: true,
            slot,
            ..SEEN
        };
        for seen in [other, comes(5), comes(6)] {
            tally.refused(&words, &seen, &denied(1, false));
        }
        let slots: Vec<u32> = events(&words).iter().map(|(_, slot, _)| *slot).collect();
        assert_eq!(slots, [[3; SAMPLES].as_slice(), &[4, 5, 6]].concat());
    }

    #[test]
    fn more_rules_than_entries_are_counted_together_and_nonsense_is_bounded() {
        let words = page();
        words.store(DECIDED_AT / WORD + RULES_USED, u64::MAX);
        let mut tally = Tally::recall(&words);
        assert_eq!(decided(&words, RULES_USED), MOST as u64);
        tally.begun(&words, &SEEN, [by(7, false), None]);
        let others = Seen {
            slot: u32::MAX,
            ..SEEN
        };
        tally.refused(&words, &others, &denied(8, false));
        Tally::forgets(&words, u32::MAX);
        assert_eq!(entry(&words, MOST), [0, 1, 0, 1]);
    }

    #[test]
    fn refusals_are_recorded_now_and_then_and_what_logs_within_a_rate() {
        let words = page();
        let mut tally = Tally::recall(&words);
        for _ in 0..5 {
            tally.refused(&words, &SEEN, &denied(6, false));
        }
        tally.refused(&words, &SEEN, &denied(7, false));
        tally.refused(&words, &SEEN, &crate::decide::NOBODY);
        let all = events(&words);
        let kind = EventKind::Refused as u32;
        let told: Vec<_> = all
            .iter()
            .map(|(of, slot, it)| (*of, *slot, it.rule, it.reason))
            .collect();
        let (rule, nobody) = (DropReason::EgressRule as u8, DropReason::NoNeighbour as u8);
        assert_eq!(
            told,
            [
                (kind, 3, 6, rule),
                (kind, 3, 7, rule),
                (kind, 3, NO_RULE, nobody)
            ]
        );
        let first = all[0].2;
        assert_eq!(
            (first.peer, first.six, first.destination_port),
            ([10, 0, 0, 7], false, 5432)
        );
        for _ in 0..LOG_BURST + 10 {
            tally.begun(&words, &SEEN, [by(9, true), None]);
        }
        let logged = |all: &[(u32, u32, Logged)]| {
            all.iter()
                .filter(|(of, ..)| *of == EventKind::Rule as u32)
                .count() as u64
        };
        let (told, not) = (logged(&events(&words)), decided(&words, UNLOGGED));
        assert_eq!(told + not, LOG_BURST + 10);
        assert!((LOG_BURST..LOG_BURST + 5).contains(&told), "{told}");
    }
}
