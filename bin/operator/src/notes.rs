//! What this process would forget with its death, in a page that the keeper holds: programs'
//! calls that have no answer yet, and the table's records. The page is this process's own; what
//! it reads there at its start is checked all the same, for the one before may have been
//! taken over.

use circuit::RECORD;
use notify::Notification;
use shm::Words;

/// Calls without an answer at most, of all programs.
pub const CALLS: usize = 2048;
/// Programs whose last call is known.
const PROGRAMS: usize = 4096;
/// Words of one call: whose, then what the kernel said.
const CALL: usize = 10;

/// How many records were ever used.
const USED: usize = 0;
const FIRST_CALL: usize = 8;
const FIRST_PROGRAM: usize = FIRST_CALL + CALLS * CALL;
const FIRST_RECORD: usize = FIRST_PROGRAM + PROGRAMS;
const RECORD_WORDS: usize = RECORD / 8;

/// The page.
pub struct Notes {
    words: Words,
    free: Vec<u16>,
}

impl Notes {
    /// A page, and the calls that the process before left in it: by program.
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
        (Notes { words, free }, left)
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
        store(3, u64::from(call.arch));
        for (n, argument) in call.arguments.iter().enumerate() {
            store(4 + n, *argument);
        }
        // Whose comes last: without it there is no note.
        self.words
            .publish(FIRST_CALL + usize::from(at) * CALL, u64::from(program));
        self.words
            .store(FIRST_PROGRAM + program as usize % PROGRAMS, call.id);
        Some(at)
    }

    /// It has its answer, or nobody waits for one.
    pub fn answered(&mut self, at: u16) {
        self.words.store(FIRST_CALL + usize::from(at) * CALL, 0);
        self.free.push(at);
    }

    /// The last call of a program that was noted.
    pub fn last(&self, program: u32) -> u64 {
        self.words.load(FIRST_PROGRAM + program as usize % PROGRAMS)
    }

    /// Writes a record of the table.
    pub fn write(&self, slot: u32, record: &[u8; RECORD]) {
        let first = FIRST_RECORD + slot as usize * RECORD_WORDS;
        let (words, _) = record.as_chunks::<8>();
        for (n, word) in words.iter().enumerate() {
            self.words.store(first + n, u64::from_ne_bytes(*word));
        }
        if self.words.load(USED) <= u64::from(slot) {
            self.words.store(USED, u64::from(slot) + 1);
        }
    }

    /// The records that were ever written, of `slots` at most.
    pub fn records(&self, slots: u32) -> Vec<(u32, [u8; RECORD])> {
        let used = self.words.load(USED).min(u64::from(slots)) as u32;
        (0..used)
            .map(|slot| {
                let first = FIRST_RECORD + slot as usize * RECORD_WORDS;
                let mut record = [0; RECORD];
                for (n, bytes) in record.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    *bytes = self.words.load(first + n).to_ne_bytes();
                }
                (slot, record)
            })
            .collect()
    }
}
