//! Where things lie in a circuit's memory file: four pages, and the data of both directions.
//! Direction 0 is that of side 0, which began the connection.

use ring::PAGE;

/// What this release speaks; who is told of another has no ring.
pub const VERSION: u32 = 1;
/// Bytes of a direction where nothing else is said: the two fit a second-level cache.
pub const CAPACITY: usize = 1 << 20;
/// The writers' pages, side 0's first.
pub const PRODUCER_PAGES_AT: usize = 0;
/// The readers' pages, that of direction 0 first.
pub const CONSUMER_PAGES_AT: usize = 2 * PAGE;

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
    CONSUMER_PAGES_AT + 2 * PAGE + side as usize * capacity
}

/// Bytes of the file.
#[must_use]
pub const fn file_bytes(capacity: usize) -> usize {
    data_at(Side::Accepted, capacity) + capacity
}
