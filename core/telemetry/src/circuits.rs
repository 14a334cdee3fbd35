//! Layouts of what an operator tells of circuits: a listing, as [`crate::flows`] has one of a
//! switch's connections, each row followed by what is a circuit's alone; what a cut came to; and
//! the page in which a meter counts. Their readers take every word as an allegation.

use crate::flows::{self, ROWS_AT};

/// "BHCIRCS1": the listing is whole. Beside it all is as in [`crate::flows`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"BHCIRCS1");
/// Words of a row.
pub const ROW_WORDS: usize = flows::ROW_WORDS + 6;

/// Bytes of a listing of so many rows.
pub const fn bytes_for(rows: usize) -> usize {
    (ROWS_AT + rows * ROW_WORDS) * 8
}

/// One circuit, or a datagram socket that is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// As a connection.
    pub flow: flows::Row,
    /// The circuit's number, by which it is cut; 0: it is none.
    pub id: u64,
    /// `circuit::Carrier` as its number.
    pub carrier: u8,
    /// Nanoseconds since it began; `u64::MAX`: not known.
    pub age: u64,
    /// Bytes a second just now, of those that are counted. Of a socket that listens, how many wait at it to be accepted, and
    /// its backlog.
    pub rate: [u64; 2],
}

impl Row {
    /// The row as words.
    pub fn words(&self) -> [u64; ROW_WORDS] {
        let mut words = [0; ROW_WORDS];
        let (flow, own) = words.split_at_mut(flows::ROW_WORDS);
        flow.copy_from_slice(&self.flow.words());
        let [from, to] = self.rate;
        own.copy_from_slice(&[self.id, self.carrier.into(), self.age, from, to, 0]);
        words
    }

    /// From words; any are a row.
    pub fn of(words: &[u64; ROW_WORDS]) -> Row {
        let mut flow = [0; flows::ROW_WORDS];
        let (first, own) = words.split_at(flows::ROW_WORDS);
        flow.copy_from_slice(first);
        let own = |at: usize| own.get(at).copied().unwrap_or(0);
        Row {
            flow: flows::Row::of(&flow),
            id: own(0),
            carrier: own(1) as u8,
            age: own(2),
            rate: [own(3), own(4)],
        }
    }
}

/// In place of a rule's number: the other side of an agreement's, which is not known here.
pub const ELSEWHERE: u32 = u32::MAX - 1;

/// What became of a cut: the first word of a page of [`CUT_BYTES`], written last. 0: nothing yet.
pub const CUT_BYTES: usize = (CUT_ROW_AT + ROW_WORDS) * 8;
/// The first word of the circuit's row there, as it was before; its id is 0 where there is no such circuit.
pub const CUT_ROW_AT: usize = 1;
/// Both ends hear that it is over.
pub const CUT_DONE: u64 = 1;
/// There is no such circuit.
pub const CUT_UNKNOWN: u64 = 2;
/// Neither of its programs has it where it was seen; it is looked for.
pub const CUT_HIDDEN: u64 = 3;

/// Circuits that one meter counts at most.
pub const METERED: usize = 4096;
/// Circuits that one carries which may have so many descriptors: each has two sockets and two pipes, and
/// some are its own.
pub const fn carried_by(files: u64) -> usize {
    let room = files.saturating_sub(128) / 6;
    if room < METERED as u64 {
        room as usize
    } else {
        METERED
    }
}

/// Words that a meter writes of each.
pub const METER_WORDS: usize = 8;
/// Bytes of its page.
pub const METER_BYTES: usize = METERED * METER_WORDS * 8;

/// Words of a page in which a meter says that it goes on: rises with each piece of its work.
pub const PULSE_HEARTBEAT: usize = 0;
/// 1 while it waits for something to happen.
pub const PULSE_ASLEEP: usize = 1;
/// Bytes of that page.
pub const PULSE_BYTES: usize = 4096;

/// What a meter says of one circuit. Pairs are (from who began it, to it); times are
/// CLOCK_MONOTONIC, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The circuit's number; 0: nothing is here.
    pub id: u64,
    /// Bytes that were handed on.
    pub bytes: [u64; 2],
    /// Bytes a second in the last span that is over.
    pub rate: [u64; 2],
    /// When that ended.
    pub measured: u64,
    /// When bytes were last handed on.
    pub moved: u64,
}

impl Count {
    /// The count as words.
    pub fn words(&self) -> [u64; METER_WORDS] {
        let ([a, b], [c, d]) = (self.bytes, self.rate);
        [self.id, a, b, c, d, self.measured, self.moved, 0]
    }

    /// From words; any are a count.
    pub fn of(words: &[u64; METER_WORDS]) -> Count {
        let [id, a, b, c, d, measured, moved, _] = *words;
        Count {
            id,
            bytes: [a, b],
            rate: [c, d],
            measured,
            moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_counts_come_back_from_their_words() {
        let row = Row {
            flow: flows::Row {
                protocol: 6,
                bytes: [7, 8],
                silent: 9,
                ..flows::Row::default()
            },
            id: 1 << 40,
            carrier: 2,
            age: u64::MAX,
            rate: [3, 4],
        };
        assert_eq!(Row::of(&row.words()), row);
        let count = Count {
            id: 5,
            bytes: [1, 2],
            rate: [3, 4],
            measured: 6,
            moved: 7,
        };
        assert_eq!(Count::of(&count.words()), count);
    }
}
