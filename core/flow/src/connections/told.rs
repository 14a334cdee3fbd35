//! What connections are asked and what they tell.

use wire::Tuple;

use crate::state::{Invalid, State};

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    /// In whose bounds it is found: an endpoint's index.
    pub owner: u32,
    /// 0 inside, else the tag that the side's packets come by.
    pub zone: u16,
    /// The side's packets, as it sends them.
    pub tuple: Tuple,
}

/// What was decided about a connection. Pairs are (from the initiator, from the
/// responder).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Of the image that decided; only compared.
    pub epoch: u32,
    /// Rules that decided, at the initiator and at the responder.
    pub rules: [u32; 2],
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the initiator.
    Forth = 0,
    /// From the responder.
    Back = 1,
}

impl Direction {
    /// The other one.
    #[must_use]
    pub const fn reversed(self) -> Direction {
        match self {
            Direction::Forth => Direction::Back,
            Direction::Back => Direction::Forth,
        }
    }
}

/// A connection, and which of its directions. It names the connection until one is
/// opened, closed or swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// The connection's number.
    pub id: u32,
    /// The packet's direction.
    pub direction: Direction,
}

/// What is to be done with a packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It passes.
    Pass,
    /// It is dropped.
    Invalid(Invalid),
    /// It begins a new connection; the old one is closed. It is to be judged as the
    /// first packet of its tuple.
    Anew,
}

/// Why a connection is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No first packet of a connection: dropped.
    Invalid(Invalid),
    /// The owner has no place: served without state.
    Full,
    /// A connection has one of the sides already: another port is to be chosen, or the
    /// connection found.
    Taken,
    /// No such owner, or sides of different protocols: the caller's fault.
    Sides,
}

/// [`crate::Connections::new`] was asked for more owners or connections than there are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// What happened to an owner's connections since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Opened.
    pub opened: u64,
    /// Became established.
    pub established: u64,
    /// Restored.
    pub restored: u64,
    /// Half-open ones evicted by newer ones.
    pub evicted_half_open: u64,
    /// Established ones without a place of their own, evicted by newer ones.
    pub evicted_unstated: u64,
    /// Idle ones evicted.
    pub evicted_idle: u64,
    /// Became established and found no place of their own.
    pub unstated: u64,
    /// Refused for want of a place.
    pub refused: u64,
    /// Silent for too long.
    pub expired: u64,
    /// Closed by the caller, cut, or begun anew.
    pub closed: u64,
    /// Packets that did not fit their connection.
    pub invalid: u64,
}

/// A connection as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its number.
    pub id: u32,
    /// The initiator's side.
    pub a: Side,
    /// The responder's side.
    pub b: Side,
    /// Where it stands.
    pub state: State,
    /// What was decided about it.
    pub verdict: Verdict,
    /// Packets on the wire, forth and back.
    pub packets: [u64; 2],
    /// Bytes on the wire, forth and back.
    pub bytes: [u64; 2],
    /// Nanoseconds since a packet passed, to about 17 ms.
    pub silent: u64,
}

/// Where a walk over all connections stands; it begins with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) owner: usize,
    pub(super) next: u32,
}

/// What a new judgement says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejudged {
    /// It stays, under this verdict.
    Keep(Verdict),
    /// It is denied now.
    Cut,
}

/// What one call of [`crate::Connections::restore`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Connections that go on.
    pub restored: u32,
    /// Entries that were no connection, or are none any more.
    pub refused: u32,
    /// Everything that a predecessor left was read.
    pub ended: bool,
}

/// What one call of [`crate::Connections::sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records looked at.
    pub looked: u32,
    /// Removed because they were silent.
    pub expired: u32,
    /// Judged again and cut.
    pub cut: u32,
    /// The round ended with this call: every connection was looked at since the last
    /// end.
    pub ended: bool,
}
