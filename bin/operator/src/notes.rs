//! What this process would forget with its death, in a page that the keeper holds: programs'
//! calls that have no answer yet, and the table's records. The page is this process's own; what
//! it reads there at its start is checked all the same, for the one before may have been
//! taken over.

use crate::chance;
use crate::decide::{Refused, Ruling};
use crate::mediate::{LIMITS, SLOTS};
use crate::tally::{Seen, Tally};
use circuit::RECORD;
use guard::guard;
use notify::{Listener, Notification};
use shm::Words;
use std::collections::BTreeMap;
use telemetry::drops::DropReason;
use telemetry::operator::{ASLEEP, CUT, HEARTBEAT, SERVES, TAKEN, TAKES, TOUCHES};

/// Calls without an answer at most, of all programs.
pub const CALLS: usize = 2048;
/// Words of one call: whose, what the kernel said, the socket that is being put into its program.
const CALL: usize = 11;

/// With the cookie of a socket that is being connected, in place of one that is put into a program:
/// its program waits at it, and it is not to be left as one that does not block.
pub const UNBLOCKED: u64 = 1 << 63;

/// How many records were ever used, of sockets and, in the upper half, of connections that wait. From [`HEARTBEAT`] on: what the supervisor reads.
const USED: usize = 0;
/// Whose call is being received, and the call.
const RECEIVES: usize = 1;
const RECEIVED: usize = 8;
const FIRST_CALL: usize = RECEIVED + notify::RECEIVED;
const FIRST_RECORD: usize = FIRST_CALL + CALLS * CALL;
const RECORD_WORDS: usize = RECORD / 8;
const SEED: usize = FIRST_RECORD + (LIMITS.sockets + LIMITS.pending) as usize * RECORD_WORDS;
/// The port that each slot's endpoint had, by its number; 0: none, or none that this is known of.
const PORTS: usize = SEED + 1;
/// The number that the next program has; 0: none was noted.
const NEXT: usize = PORTS + SLOTS;
const _: () = assert!(NEXT < CUT, "what was decided lies behind it");

/// The page.
pub struct Notes {
    words: Words,
    free: Vec<u16>,
    /// How many calls came, of those that an operator before left too.
    came: u64,
    /// The endpoint that each call is of, by its place, and how many each has.
    slots: Vec<Option<u32>>,
    counts: BTreeMap<u32, usize>,
    tally: Tally,
}

impl Notes {
    /// A page, and the calls that the process before left in it, by program: those first that came first.
    pub fn recall(words: Words) -> (Notes, Vec<(u32, u16, Notification)>) {
        let (mut free, mut left) = (Vec::with_capacity(CALLS), Vec::new());
        for at in (0..CALLS).rev() {
            let word = |n: usize| words.load(FIRST_CALL + at * CALL + n);
            match word(0) as u32 {
                0 => free.push(at as u16),
                program => left.push((
                    program,
                    at as u16,
                    Notification {
                        id: word(1),
                        thread: word(2) as u32,
                        number: (word(2) >> 32) as i32,
                        arch: word(3) as u32,
                        arguments: core::array::from_fn(|n| word(4 + n)),
                    },
                )),
            }
        }
        let mut notes = Notes {
            tally: Tally::recall(&words),
            words,
            free,
            came: 0,
            slots: vec![None; CALLS],
            counts: BTreeMap::new(),
        };
        left.sort_unstable_by_key(|(_, at, _)| notes.turn(*at));
        let last = left.last().map(|(_, at, _)| notes.turn(*at));
        notes.came = last.map_or(0, |last| last + 1);
        let program = notes.words.load(RECEIVES) as u32;
        if let Some(call) = notify::received(&notes.words, RECEIVED)
            && program != 0
            && !left
                .iter()
                .any(|(of, _, noted)| *of == program && noted.id == call.id)
            && let Some(at) = notes.note(program, &call)
        {
            left.push((program, at, call));
        }
        notes.words.store(RECEIVED, 0);
        notes.words.add(TAKEN, notes.words.load(TAKES).min(1));
        notes.takes(false);
        if notes.seed() == 0
            && let Ok(seed) = chance::bytes()
        {
            notes.words.store(SEED, u64::from_ne_bytes(seed));
        }
        notes.serves(0);
        notes.wakes();
        (notes, left)
    }

    /// What picks as whom users of other tenants are seen here: the same for every operator of a
    /// compartment.
    pub fn seed(&self) -> u64 {
        self.words.load(SEED)
    }

    /// The number of the port that a slot's endpoint had when that was noted last; 0: none.
    pub fn port(&self, slot: u32) -> u64 {
        match slot as usize {
            slot if slot < SLOTS => self.words.load(PORTS + slot),
            _ => 0,
        }
    }

    /// Another port, or 0: none.
    pub fn has_port(&self, slot: u32, port: u64) {
        if (slot as usize) < SLOTS {
            self.words.store(PORTS + slot as usize, port);
        }
    }

    /// The number that the next program has.
    pub fn next(&self) -> u32 {
        self.words.load(NEXT) as u32
    }

    /// Another, before the one before it is given.
    pub fn has_next(&self, next: u32) {
        self.words.store(NEXT, u64::from(next));
    }

    /// This process goes on.
    pub fn beats(&self) {
        self.words.add(HEARTBEAT, 1);
    }

    /// It has nothing to do, and waits.
    pub fn sleeps(&self) {
        self.words.store(ASLEEP, 1);
    }

    /// It does something again.
    pub fn wakes(&self) {
        self.words.store(ASLEEP, 0);
        self.beats();
    }

    /// What holds this process up from now on is this program's call; 0: nobody's.
    pub fn serves(&self, program: u32) {
        self.words.store(SERVES, u64::from(program));
        self.beats();
    }

    /// It waits for this thread of that program to take a descriptor, until the next word of whom it
    /// serves.
    pub fn hands_to(&self, thread: u32) {
        let program = self.words.load(SERVES) & u64::from(u32::MAX);
        self.words.store(SERVES, program | u64::from(thread) << 32);
        self.beats();
    }

    /// The same of any program of an endpoint, of whom a socket is taken meanwhile.
    pub fn touches(&self, slot: u32) {
        self.words.store(TOUCHES, u64::from(slot) + 1);
        self.beats();
    }

    /// It is over.
    pub fn touched(&self) {
        self.words.store(TOUCHES, 0);
        self.beats();
    }

    /// The endpoint of whose programs a socket was being taken when the process before came to its end.
    pub fn was_touched(&self) -> Option<u32> {
        let touches = self.words.load(TOUCHES) as u32;
        self.touched();
        touches.checked_sub(1)
    }

    /// A connection is in no queue of the kernel's from now on, and in no keeper's yet; or is.
    pub fn takes(&self, takes: bool) {
        self.words.publish(TAKES, takes.into());
    }

    /// Adds to a word that the supervisor reads.
    pub fn counts(&self, word: usize, n: u64) {
        self.words.add(word, n);
    }

    /// A connection began, by these rules.
    pub fn begun(&mut self, seen: &Seen, rules: [Option<Ruling>; 2]) {
        self.tally.begun(&self.words, seen, rules);
    }

    /// Something was refused.
    pub fn refused(&mut self, seen: &Seen, refused: &Refused) {
        self.tally.refused(&self.words, seen, refused);
    }

    /// A program of a slot was refused what has no other end.
    pub fn counts_refused(&self, slot: u32, reason: DropReason) {
        Tally::counts(&self.words, slot, reason, 1);
    }

    /// So many datagrams to a slot's programs, or on from them, were dropped for this reason.
    pub fn counts_dropped(&self, slot: u32, reason: DropReason, datagrams: u64) {
        Tally::counts(&self.words, slot, reason, datagrams);
    }

    /// A slot is the endpoint's of this host-wide number.
    pub fn owns(&self, slot: u32, id: u32) {
        Tally::owns(&self.words, slot, id);
    }

    /// The next call of a program, noted with the very step that takes it from the kernel.
    /// `None`: there is none, or as many wait as may.
    pub fn receive(
        &mut self,
        program: u32,
        listener: &Listener,
    ) -> std::io::Result<Option<(u16, Notification)>> {
        self.words.store(RECEIVED, 0);
        self.words.publish(RECEIVES, u64::from(program));
        let call = listener.receive_at(&self.words, RECEIVED)?;
        let noted = call.and_then(|call| Some((self.note(program, &call)?, call)));
        self.words.store(RECEIVED, 0);
        Ok(noted)
    }

    /// Notes a call before anything is done about it. `None`: as many wait as may.
    pub fn note(&mut self, program: u32, call: &Notification) -> Option<u16> {
        let at = self.free.pop()?;
        let store = |n: usize, value: u64| {
            self.words
                .store(FIRST_CALL + usize::from(at) * CALL + n, value);
        };
        store(1, call.id);
        store(
            2,
            u64::from(call.thread) | u64::from(call.number.cast_unsigned()) << 32,
        );
        store(3, u64::from(call.arch) | self.came << 32);
        self.came += 1;
        store(10, 0);
        for (n, argument) in call.arguments.iter().enumerate() {
            store(4 + n, *argument);
        }
        // Whose comes last: without it there is no note.
        self.words
            .publish(FIRST_CALL + usize::from(at) * CALL, u64::from(program));
        Some(at)
    }

    /// How many calls had come before this one, of those noted still. (Of four billion, as if none had.)
    pub fn turn(&self, at: u16) -> u64 {
        self.words.load(FIRST_CALL + usize::from(at) * CALL + 3) >> 32
    }

    /// A call is one that came before, which a signal has ended: it has that one's turn.
    pub fn has_turn(&self, at: u16, of: u16) {
        let word = |at: u16| FIRST_CALL + usize::from(at) * CALL + 3;
        let arch = self.words.load(word(at)) & u64::from(u32::MAX);
        self.words.store(word(at), arch | self.turn(of) << 32);
    }

    /// How many calls came: each that comes has had none of these turns.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// The socket of this cookie is put into the program next.
    pub fn puts(&self, at: u16, cookie: u64) {
        self.words
            .publish(FIRST_CALL + usize::from(at) * CALL + 10, cookie);
    }

    /// The socket that was put into the program of a call of before, or was about to be.
    pub fn put(&self, at: u16) -> u64 {
        self.words.load(FIRST_CALL + usize::from(at) * CALL + 10)
    }

    /// A call of before is begun once more; how often it has been, without this process coming
    /// to its end.
    pub fn begins(&self, at: u16) -> u64 {
        let word = FIRST_CALL + usize::from(at) * CALL;
        let noted = self.words.load(word);
        let tries = (noted >> 32) + 1;
        self.words
            .publish(word, noted & u64::from(u32::MAX) | tries << 32);
        tries
    }

    /// Whatever came of it, it did not end this process.
    pub fn ended(&self, at: u16) {
        let word = FIRST_CALL + usize::from(at) * CALL;
        let noted = self.words.load(word);
        self.words.store(word, noted & u64::from(u32::MAX));
    }

    /// A call is of this endpoint.
    pub fn belongs(&mut self, at: u16, slot: u32) {
        if let Some(place) = self.slots.get_mut(usize::from(at))
            && place.replace(slot).is_none()
        {
            *self.counts.entry(slot).or_default() += 1;
        }
    }

    /// The endpoint that a call is of.
    pub fn slot(&self, at: u16) -> Option<u32> {
        self.slots.get(usize::from(at)).copied().flatten()
    }

    /// It has its answer, or nobody waits for one.
    pub fn answered(&mut self, at: u16) {
        let slot = self.slots.get_mut(usize::from(at));
        if let Some(slot) = slot.and_then(Option::take)
            && let Some(count) = self.counts.get_mut(&slot)
        {
            *count = count.saturating_sub(1);
        }
        self.words.store(FIRST_CALL + usize::from(at) * CALL, 0);
        self.free.push(at);
    }

    /// Calls of an endpoint that have no answer yet.
    pub fn unanswered(&self, slot: u32) -> usize {
        self.counts.get(&slot).copied().unwrap_or(0)
    }

    /// Whether as many calls of an endpoint wait as may: as many as there is room for others.
    pub fn is_full(&self, slot: u32) -> bool {
        let has = self.unanswered(slot);
        match guard!("circuits-calls-apart") {
            true => has >= self.free.len(),
            false => self.free.is_empty(),
        }
    }

    /// Writes a record of the table.
    pub fn write(&self, slot: u32, record: &[u8; RECORD]) {
        let first = FIRST_RECORD + slot as usize * RECORD_WORDS;
        let (words, _) = record.as_chunks::<8>();
        for (n, word) in words.iter().enumerate() {
            self.words.store(first + n, u64::from_ne_bytes(*word));
        }
        let [sockets, pending] = self.used();
        let used = match slot.checked_sub(LIMITS.sockets) {
            Some(slot) => [sockets, pending.max(slot + 1)],
            None => [sockets.max(slot + 1), pending],
        };
        if used != [sockets, pending] {
            let [sockets, pending] = used.map(u64::from);
            self.words.store(USED, sockets | pending << 32);
        }
    }

    /// Whether an operator of before wrote a record.
    pub fn says_anything(&self) -> bool {
        self.used() != [0; 2]
    }

    fn used(&self) -> [u32; 2] {
        let used = self.words.load(USED);
        [used as u32, (used >> 32) as u32]
    }

    /// The records that say anything, of the first `slots`.
    pub fn records(&self, slots: u32) -> Vec<(u32, [u8; RECORD])> {
        let [sockets, pending] = self.used();
        let pending = LIMITS.sockets..LIMITS.sockets.saturating_add(pending).min(slots);
        // Those of an operator of before count on into the others.
        let sockets = 0..sockets.min(slots);
        let pending = pending.start.max(sockets.end)..pending.end;
        let word = |slot: u32, n| {
            let first = FIRST_RECORD + slot as usize * RECORD_WORDS;
            self.words.load(first + n)
        };
        let read = |slot: u32| {
            let mut record = [0; RECORD];
            for (n, bytes) in record.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *bytes = word(slot, n).to_ne_bytes();
            }
            (slot, record)
        };
        let all = sockets.chain(pending);
        all.filter(|slot| word(*slot, 0) != 0).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};

    fn page() -> OwnedFd {
        shm::sparse_file("notes", 32 << 20).unwrap()
    }

    fn notes(page: &OwnedFd) -> (Notes, Vec<(u32, u16, Notification)>) {
        Notes::recall(Words::map_whole(page.as_fd()).unwrap())
    }

    fn call(id: u64) -> Notification {
        Notification {
            id,
            thread: 77,
            number: -42,
            arch: 0xc000_003e,
            arguments: [1, u64::MAX, 3, 4, 5, id],
        }
    }

    #[test]
    fn what_was_noted_is_recalled_until_it_is_answered() {
        let page = page();
        let (mut first, left) = notes(&page);
        assert!(left.is_empty());
        let places = [1, 2, 3].map(|id| first.note(9, &call(id)).unwrap());
        first.answered(places[1]);
        let (mut second, left) = notes(&page);
        assert_eq!(left, [(9, places[0], call(1)), (9, places[2], call(3))]);
        assert_eq!(second.free.len(), CALLS - 2);
        // Whatever places they have, and in which life of an operator they came.
        second.answered(places[0]);
        let more = [4, 5].map(|id| second.note(9, &call(id)).unwrap());
        assert!(more.contains(&places[0]));
        let (third, left) = notes(&page);
        let came: Vec<u64> = left.iter().map(|(.., call)| call.id).collect();
        assert_eq!(came, [3, 4, 5]);
        let turns: Vec<u64> = left.iter().map(|(_, at, _)| third.turn(*at)).collect();
        assert_eq!((turns, third.came()), (vec![2, 3, 4], 5));
        // After a signal the first is another call.
        let mut third = third;
        let (again, first) = (third.note(9, &call(6)).unwrap(), left[0].1);
        third.has_turn(again, first);
        third.answered(first);
        let came: Vec<u64> = notes(&page).1.iter().map(|(.., call)| call.id).collect();
        assert_eq!(came, [6, 4, 5]);
    }

    #[test]
    fn who_dies_over_a_connection_is_counted_once() {
        let page = page();
        let words = Words::map_whole(page.as_fd()).unwrap();
        for (takes, taken) in [(false, 0), (true, 1), (false, 1), (true, 2)] {
            notes(&page).0.takes(takes);
            drop(notes(&page));
            drop(notes(&page));
            assert_eq!(words.load(TAKEN), taken);
        }
    }

    #[test]
    fn as_many_wait_as_may_and_a_place_is_given_again() {
        let page = page();
        let (mut notes, _) = notes(&page);
        let all: Vec<u16> = (0..CALLS as u64)
            .map(|id| notes.note(1, &call(id)).unwrap())
            .collect();
        assert_eq!(notes.note(1, &call(0)), None);
        notes.answered(all[7]);
        assert_eq!(notes.note(2, &call(0)), Some(all[7]));
    }

    #[test]
    fn no_endpoint_has_all_calls_that_wait() {
        let page = page();
        let (mut notes, _) = notes(&page);
        let fill = |notes: &mut Notes, slot| {
            let mut all = Vec::new();
            while !notes.is_full(slot) {
                let at = notes.note(1, &call(1)).unwrap();
                notes.belongs(at, slot);
                all.push(at);
            }
            all
        };
        let first = fill(&mut notes, 7);
        assert_eq!(
            (first.len(), fill(&mut notes, 8).len()),
            (CALLS / 2, CALLS / 4)
        );
        assert!(notes.is_full(7) && !notes.is_full(9));
        for at in first {
            assert_eq!(notes.slot(at), Some(7));
            notes.answered(at);
        }
        assert!(!notes.is_full(7) && !notes.is_full(8));
    }

    #[test]
    fn records_come_back_as_they_were_written() {
        let page = page();
        let (first, _) = notes(&page);
        let record = |n: u8| core::array::from_fn(|at| n ^ at as u8);
        let (waits, most) = (LIMITS.sockets, LIMITS.sockets + LIMITS.pending);
        for (slot, n) in [(0, 1), (3, 2), (waits + 2, 4), (0, 3), (4, 5)] {
            first.write(slot, &record(n));
        }
        first.write(4, &[0; RECORD]);
        let (second, _) = notes(&page);
        let all = [(0, record(3)), (3, record(2)), (waits + 2, record(4))];
        assert_eq!(second.records(most), all, "no empty ones");
        assert_eq!(second.records(1), all[..1], "no more than the table has");
        assert_eq!(second.records(waits + 2), all[..2]);
        // An operator of before did not tell the two kinds from each other.
        let words = Words::map_whole(page.as_fd()).unwrap();
        words.store(USED, u64::from(waits) + 3);
        assert_eq!(second.records(most), all);
    }

    #[test]
    fn garbage_is_recalled_within_bounds() {
        let page = page();
        let words = Words::map_whole(page.as_fd()).unwrap();
        for at in 0..FIRST_RECORD + 4 * RECORD_WORDS {
            words.store(at, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1));
        }
        let (mut notes, left) = notes(&page);
        assert!(left.len() <= CALLS && notes.free.len() + left.len() == CALLS);
        assert_eq!(notes.records(64).len(), 4, "what is there");
        // What was left is answered once its program is told of, or not at all.
        for (_, at, _) in left {
            notes.answered(at);
        }
        assert_eq!(notes.free.len(), CALLS);
    }

    #[test]
    fn a_page_that_is_too_small_holds_nothing_and_is_no_fault() {
        let page = shm::sparse_file("notes", 4096).unwrap();
        let (mut notes, _) = notes(&page);
        for id in 0..CALLS as u64 {
            notes.note(1, &call(id));
        }
        notes.write(16_000, &[7; RECORD]);
        assert_eq!(notes.records(16_001), []);
    }

    #[test]
    fn a_call_that_ends_each_who_begins_it_is_counted() {
        let page = page();
        let (mut first, _) = notes(&page);
        let at = first.note(9, &call(5)).unwrap();
        for times in 1..=4 {
            let (next, left) = notes(&page);
            assert_eq!((left.len(), left[0].0, left[0].2.id), (1, 9, 5));
            assert_eq!(next.begins(at), times);
        }
        let (next, _) = notes(&page);
        next.ended(at);
        let (next, left) = notes(&page);
        assert_eq!(left.len(), 1);
        assert_eq!(next.begins(at), 1);
    }
}
