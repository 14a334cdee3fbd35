//! Connection tracking: which packets belong to a connection that was judged, in
//! storage that is sized once and that no traffic grows.
//!
//! [`Connections`] holds all connections of a compartment, [`Segment`] what they need
//! to know of a packet, [`Fragments`] which later fragments follow which first, and
//! [`journal`] what of them outlives the process. All is a pure function of its
//! arguments: time is nanoseconds, the seed is given.
//!
//! Whose connection it is: each is charged to the owner of its initiator's side, so
//! that an owner that floods evicts and refuses its own alone.

pub mod connections;
pub mod fragments;
mod index;
pub mod journal;
mod record;
pub mod segment;
mod shares;
mod sip;
pub mod state;
mod tally;
mod tcp;

pub use connections::{
    AHEAD, Connection, Connections, Counters, Cursor, Direction, Found, Judgement, Refused,
    Rejudged, Resumed, Side, Swept, TooMany, Verdict,
};
pub use fragments::{Fragments, Unfollowed};
pub use journal::{Entry, Memory, Restored};
pub use segment::Segment;
pub use state::{Invalid, State};
pub use tally::Tally;
