//! What of a connection outlives the process that tracked it.
//!
//! The switch writes an [`Entry`] for each connection that both sides have agreed to, into
//! memory that another holds; its successor reads them. Whoever wrote them may have been
//! taken over, so that what is read is an allegation: [`Entry::read`] takes only what a
//! connection can be, and the caller judges it by the present tables before it is opened
//! again.
//!
//! A connection keeps its place in the journal over restarts and changes of room, so that
//! nothing is copied there and a process that dies while it reads loses nothing. A
//! process that dies at any instruction leaves each entry whole, or one whose check does
//! not fit. Of the rest of the memory only this process's own writes are believed, and
//! these no further than that the links of free places end.

use core::ops::Range;
use guard::guard;
use wire::address::{is_multicast, is_unspecified, unmapped};
use wire::{Tuple, icmpv4, icmpv6, tcp, udp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::connections::Side;
use crate::state::State;
use crate::tcp::NO_SCALE;

/// Words that outlive the process. None of it blocks or fails: what lies outside is not
/// written, and reads as zeros.
pub trait Memory {
    /// Words there are.
    fn words(&self) -> usize;
    /// Words from `at` on.
    fn read(&self, at: usize, words: &mut [u64]);
    /// Stores words from `at` on, each at once, and after all that was written before.
    fn write(&mut self, at: usize, words: &[u64]);
}

/// Words before the first entry: [`MAGIC`], the places ever used, and the one that is
/// being read, and 1.
const HEADER: usize = 8;
/// "BHFLOWS" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"BHFLOWS2");
const USED: usize = 1;
const READING: usize = 2;

/// Bytes of memory for so many connections.
pub const fn bytes_for(connections: usize) -> usize {
    HEADER * 8 + connections * ENTRY
}

/// A journal, and where it stands.
pub(crate) struct Journal {
    memory: Box<dyn Memory>,
    slots: u32,
    used: u32,
    /// The first place that was given back, and 1.
    free: u32,
    /// Places of before that were not read yet.
    unread: Range<u32>,
}

/// What was found at a place.
pub(crate) enum Read {
    /// Nothing.
    Nothing,
    /// What could not be a connection; it is gone.
    Refused,
    /// What could, and its place.
    Alleged(Restored, u32),
}

impl Journal {
    /// Goes on with what a predecessor left there, if it left something of this layout.
    pub(crate) fn open(memory: Box<dyn Memory>) -> Journal {
        let room = memory.words().saturating_sub(HEADER) / WORDS;
        let mut journal = Journal {
            memory,
            slots: u32::try_from(room).unwrap_or(u32::MAX - 1),
            used: 0,
            free: 0,
            unread: 0..0,
        };
        if journal.word(0) == MAGIC {
            journal.used = (journal.word(USED)).min(u64::from(journal.slots)) as u32;
        }
        journal.unread = 0..journal.used;
        // What killed its reader is not read again.
        let killer = u32::try_from(journal.word(READING)).unwrap_or(0);
        if (1..=journal.used).contains(&killer) && guard!("journal-killer") {
            journal.memory.write(at(killer - 1), &[0]);
        }
        journal.memory.write(READING, &[0]);
        journal.memory.write(USED, &[journal.used.into()]);
        journal.memory.write(0, &[MAGIC]);
        journal
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0];
        self.memory.read(at, &mut word);
        word[0]
    }

    /// Writes an entry; its place and 1, or 0 where there is none.
    pub(crate) fn put(&mut self, entry: impl FnOnce(u32) -> Entry) -> u32 {
        let slot = match self.free.checked_sub(1) {
            Some(slot) => {
                let next = self.word(at(slot) + 1);
                // It is our own, and yet of memory: no place is beyond those used.
                self.free = u32::try_from(next).map_or(0, |next| match next <= self.used {
                    true => next,
                    false => 0,
                });
                slot
            }
            None if self.used < self.slots => {
                self.used += 1;
                self.memory.write(USED, &[self.used.into()]);
                self.used - 1
            }
            None => return 0,
        };
        let [first, rest @ ..] = entry(slot).words();
        // Until the first, with the check, it is none.
        self.memory.write(at(slot) + 1, &rest);
        self.memory.write(at(slot), &[first]);
        slot + 1
    }

    /// Erases the entry at a place that [`Journal::put`] or [`Journal::next`] gave.
    pub(crate) fn erase(&mut self, place: u32) {
        let Some(slot) = place.checked_sub(1).filter(|slot| *slot < self.used) else {
            return;
        };
        self.memory.write(at(slot), &[0]);
        self.memory.write(at(slot) + 1, &[self.free.into()]);
        self.free = place;
    }

    /// Reads the next place of before; `None`: all were read. What is alleged stays there
    /// unless it is erased.
    pub(crate) fn next(&mut self) -> Option<Read> {
        let slot = self.unread.next()?;
        let mut words = [0; WORDS];
        self.memory.read(at(slot), &mut words);
        let is_empty = words.first() == Some(&0);
        let read = match is_empty {
            true => None,
            false => {
                self.memory.write(READING, &[u64::from(slot) + 1]);
                Entry::of(&words).read(slot)
            }
        };
        Some(match read {
            Some(restored) => Read::Alleged(restored, slot + 1),
            None => {
                self.erase(slot + 1);
                match is_empty {
                    true => Read::Nothing,
                    false => Read::Refused,
                }
            }
        })
    }

    /// What was read last has killed nobody.
    pub(crate) fn survived(&mut self) {
        self.memory.write(READING, &[0]);
    }

    /// Places that are still to be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread.len() as u32
    }
}

const fn at(slot: u32) -> usize {
    HEADER + slot as usize * WORDS
}

/// `Entry::version` of this layout.
const VERSION: u8 = 2;

/// A connection as written: 96 bytes, host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// A hash of the rest and of the place: what was torn or moved is not taken. It
    /// keeps no one from forging.
    check: u32,
    version: u8,
    protocol: u8,
    state: u8,
    scales: u8,
    /// Names of the owners, and their numbers.
    names: [u32; 2],
    owners: [u16; 2],
    zones: [u16; 2],
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
    sources: [[u8; 16]; 2],
    destinations: [[u8; 16]; 2],
}

/// Bytes of an [`Entry`].
pub const ENTRY: usize = size_of::<Entry>();
const WORDS: usize = ENTRY / 8;
/// Odd, and else of no pattern: the multiples of 2^64 / the golden ratio, squared.
const FACTORS: [u64; WORDS] = {
    let mut factors = [0; WORDS];
    let mut at = 0;
    while at < WORDS {
        let step = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1);
        factors[at] = step.wrapping_mul(step ^ step >> 31) | 1;
        at += 1;
    }
    factors
};
const _: () = assert!(ENTRY == 96);

/// A connection that a journal alleges, and that could be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The initiator's side.
    pub a: Side,
    /// The responder's side.
    pub b: Side,
    /// What the owners of both sides were called ([`crate::Connections::named`]).
    pub names: [u32; 2],
    /// [`State::Established`], [`State::Replied`] or [`State::Stream`].
    pub state: State,
    pub(crate) scales: [u8; 2],
}

impl Entry {
    pub(crate) fn new(
        slot: u32,
        names: [u32; 2],
        [a, b]: [&Side; 2],
        state: State,
        scales: [u8; 2],
    ) -> Entry {
        let mut entry = Entry {
            check: 0,
            version: VERSION,
            protocol: a.tuple.protocol,
            state: state as u8,
            scales: scales[0] & 15 | scales[1] << 4,
            names,
            owners: [a.owner as u16, b.owner as u16],
            zones: [a.zone, b.zone],
            source_ports: [a.tuple.source_port, b.tuple.source_port],
            destination_ports: [a.tuple.destination_port, b.tuple.destination_port],
            sources: [a.tuple.source, b.tuple.source],
            destinations: [a.tuple.destination, b.tuple.destination],
        };
        entry.check = entry.sum(slot);
        entry
    }

    fn of(words: &[u64; WORDS]) -> Entry {
        zerocopy::transmute!(*words)
    }

    fn words(&self) -> [u64; WORDS] {
        zerocopy::transmute!(*self)
    }

    /// Words by odd numbers, which no one word's change leaves as it was, added up.
    fn sum(&self, slot: u32) -> u32 {
        // The place in place of the sum.
        let words = Entry {
            check: slot,
            ..*self
        };
        let add = |sum: u64, (word, factor): (u64, u64)| {
            sum.wrapping_add((word ^ word >> 32).wrapping_mul(factor))
        };
        let sum = words.words().into_iter().zip(FACTORS).fold(0, add);
        (sum ^ sum >> 29).wrapping_mul(FACTORS[0]).wrapping_shr(32) as u32
    }

    /// Reads what was found at place `slot`. `None`: nothing, or nothing that a connection
    /// could be: torn, of another version, half-open or over, of contradicting sides.
    /// That owners exist and that sides are free is seen when it is opened.
    pub fn read(&self, slot: u32) -> Option<Restored> {
        if self.version != VERSION || (guard!("journal-torn") && self.check != self.sum(slot)) {
            return None;
        }
        let state = match (State::of(self.state)?, self.protocol) {
            // What was closing may close once more.
            (State::Established | State::HalfClosed, tcp::PROTOCOL) => State::Established,
            (State::Replied | State::Stream, tcp::PROTOCOL) => return None,
            (state @ (State::Replied | State::Stream), _) => state,
            _ => return None,
        };
        let scales = [self.scales & 15, self.scales >> 4];
        // Both sides scale or neither does.
        let scaled = scales.iter().filter(|&&scale| scale != NO_SCALE).count();
        if state == State::Established && scaled == 1 {
            return None;
        }
        let [a, b] = [0, 1].map(|index| self.side(index));
        let (a, b) = (a?, b?);
        if guard!("journal-sides") && !(sound(&a.tuple, false) && sound(&b.tuple, true)) {
            return None;
        }
        let family = |side: &Side| unmapped(&side.tuple.source).is_some();
        if family(&a) != family(&b) {
            return None;
        }
        Some(Restored {
            a,
            b,
            names: self.names,
            state,
            scales,
        })
    }

    fn side(&self, index: usize) -> Option<Side> {
        Some(Side {
            owner: (*self.owners.get(index)?).into(),
            zone: *self.zones.get(index)?,
            tuple: Tuple {
                source: *self.sources.get(index)?,
                destination: *self.destinations.get(index)?,
                source_port: *self.source_ports.get(index)?,
                destination_port: *self.destination_ports.get(index)?,
                protocol: self.protocol,
            },
        })
    }
}

/// Whether a connection can have such a side: addresses of one family that one host
/// has, ports as the protocol has them.
fn sound(tuple: &Tuple, responder: bool) -> bool {
    let v4 = unmapped(&tuple.source).is_some();
    let addresses = [&tuple.source, &tuple.destination];
    let hosts = addresses
        .iter()
        .all(|a| unmapped(a).is_some() == v4 && !is_multicast(a) && !is_unspecified(a));
    let (source, destination) = (tuple.source_port, tuple.destination_port);
    let ports = match (tuple.protocol, v4) {
        (tcp::PROTOCOL | udp::PROTOCOL, _) => true,
        (icmpv4::PROTOCOL, true) | (icmpv6::PROTOCOL, false) => match responder {
            false => destination == 0,
            true => source == 0,
        },
        _ => (source, destination) == (0, 0),
    };
    hosts && ports
}
