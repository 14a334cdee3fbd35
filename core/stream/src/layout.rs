//! Where things lie in a circuit's memory file: a page of words, and the data of both directions.
//! Direction 0 is that of side 0, which began the connection.

use ring::PAGE;

/// What this release speaks; who is told of another has no ring.
pub const VERSION: u32 = 4;
/// Bytes of a direction where nothing else is said: the two fit a second-level cache.
pub const CAPACITY: usize = 1 << 20;
/// The writers' words, side 0's first: all lie in the file's first page, which both sides write.
pub const PRODUCER_WORDS_AT: usize = 0;
/// The readers', those of direction 0 first.
pub const CONSUMER_WORDS_AT: usize = 2 * WORDS;
/// Bytes from one's words to the next's: whole pairs of cache lines, which processors fetch
/// together.
pub const WORDS: usize = 256;

/// What a side says of its sending ([`ProducerWord::Ended`](ring::ProducerWord)), before its socket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Neither that it has ended nor that it has not.
    Nothing = 0,
    /// It has not, and this side would say so.
    Open = 1,
    /// It was shut down: that its socket hangs up too is no reset.
    Ended = 2,
    /// It closes, and has not read all that lies in the ring.
    Unread = 3,
}

impl Says {
    /// From its number.
    #[must_use]
    pub const fn of(number: u64) -> Says {
        match number {
            1 => Says::Open,
            2 => Says::Ended,
            3 => Says::Unread,
            _ => Says::Nothing,
        }
    }
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// That which began it.
    Began = 0,
    /// That which accepted it.
    Accepted = 1,
}

impl Side {
    /// The other.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Began => Side::Accepted,
            Side::Accepted => Side::Began,
        }
    }

    /// From its number.
    #[must_use]
    pub const fn of(number: u32) -> Option<Side> {
        match number {
            0 => Some(Side::Began),
            1 => Some(Side::Accepted),
            _ => None,
        }
    }
}

/// Where the data lies that a side writes.
#[must_use]
pub const fn data_at(side: Side, capacity: usize) -> usize {
    PAGE + side as usize * capacity
}

/// Bytes of the file.
#[must_use]
pub const fn file_bytes(capacity: usize) -> usize {
    data_at(Side::Accepted, capacity) + capacity
}
