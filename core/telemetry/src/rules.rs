//! What rules decided: a table behind the slots of the counters page.
//!
//! Its first word says how many entries are used; entries of [`ENTRY_WORDS`] follow:
//! the rule's number, connections that it let begin, packets that it let pass by
//! themselves, packets that it denied. Entries only ever grow, also over restarts. Behind
//! it, entry by entry ([`passed_word`]), is what passed and what did not: bytes let pass,
//! packets of connections, bytes denied, zero. A page of a release before has no such part.

use crate::counters::{PROCESS_WORDS, SLOT_WORDS};

/// Rules that have an entry of their own; what the others decide is in the last entry.
pub const MOST: usize = 1023;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;
/// Words of the table of decisions.
pub const DECIDED_WORDS: usize = 8 + (MOST + 1) * ENTRY_WORDS;
/// Words of all of it.
pub const WORDS: usize = DECIDED_WORDS + (MOST + 1) * ENTRY_WORDS;

/// What a rule did about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Outcome {
    /// It let a connection begin.
    Connection = 1,
    /// It let it pass; nothing follows from it.
    Packet = 2,
    /// It denied it.
    Denied = 3,
}

impl Outcome {
    /// From its number.
    pub const fn from_number(number: u8) -> Option<Outcome> {
        match number {
            1 => Some(Outcome::Connection),
            2 => Some(Outcome::Packet),
            3 => Some(Outcome::Denied),
            _ => None,
        }
    }
}

/// Word with the number of entries, in the counters page of so many slots.
pub const fn used_word(slots: usize) -> usize {
    PROCESS_WORDS + slots * SLOT_WORDS
}

/// First word of an entry; the last one ([`MOST`]) is that of the others.
pub const fn entry_word(slots: usize, entry: usize) -> usize {
    used_word(slots) + 8 + entry * ENTRY_WORDS
}

/// First word of what an entry's rule let pass or denied: see [`Passed`].
pub const fn passed_word(slots: usize, entry: usize) -> usize {
    used_word(slots) + DECIDED_WORDS + entry * ENTRY_WORDS
}

/// What is counted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Passed {
    /// Bytes on the wire that it let pass: by themselves, and of connections.
    Bytes = 0,
    /// Packets on the wire of connections that it let begin.
    Packets = 1,
    /// Bytes on the wire that it denied.
    Denied = 2,
}

/// A logged packet, as it lies in the flight recorder's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The rule.
    pub rule: u32,
    /// What it did, [`Outcome`] as its number.
    pub outcome: u8,
    /// The packet comes to the event's slot; otherwise it comes from it.
    pub inbound: bool,
    /// The other end's address: all of IPv4, the last 32 bits of IPv6.
    pub peer: [u8; 4],
    /// It is IPv6.
    pub six: bool,
    /// IP protocol.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port; of ICMP type and code.
    pub destination_port: u16,
    /// It is a circuit, and no packet.
    pub circuit: bool,
    /// Of what an operator refused: why, [`crate::drops::DropReason`] as its number; else 0.
    pub reason: u8,
}

/// As a rule: none decided.
pub const NO_RULE: u32 = u32::MAX - 1;

impl Logged {
    /// As [`crate::recorder::Event`]'s `a` and `b`.
    pub const fn words(&self) -> [u64; 2] {
        let flags = self.inbound as u64 | (self.six as u64) << 1 | (self.circuit as u64) << 2;
        [
            self.rule as u64 | (u32::from_be_bytes(self.peer) as u64) << 32,
            self.protocol as u64
                | (self.outcome as u64) << 8
                | flags << 16
                | (self.reason as u64) << 24
                | (self.source_port as u64) << 32
                | (self.destination_port as u64) << 48,
        ]
    }

    /// From them; any are one.
    pub const fn of([a, b]: [u64; 2]) -> Logged {
        Logged {
            rule: a as u32,
            peer: ((a >> 32) as u32).to_be_bytes(),
            protocol: b as u8,
            outcome: (b >> 8) as u8,
            inbound: b >> 16 & 1 == 1,
            six: b >> 17 & 1 == 1,
            circuit: b >> 18 & 1 == 1,
            source_port: (b >> 32) as u16,
            destination_port: (b >> 48) as u16,
            reason: (b >> 24) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_packet_comes_back_from_its_words() {
        for (inbound, six, circuit) in [(false, true, true), (true, false, false)] {
            let logged = Logged {
                rule: u32::MAX - 2,
                outcome: 3,
                inbound,
                peer: [198, 51, 100, 7],
                six,
                circuit,
                protocol: 17,
                source_port: 65_535,
                destination_port: 53,
                reason: 39,
            };
            assert_eq!(Logged::of(logged.words()), logged);
        }
    }
}
