//! The mediator between compartments and uplinks.
//!
//! [`forward`] is all it decides: by (ingress channel, tag, destination MAC) and
//! static tables, in one file. [`serve()`] moves one batch by those decisions,
//! [`rounds`] (its crate) says whose turn it is, [`report`] whom to tell on. Sans-IO: memory,
//! sockets and time are arguments.

pub mod forward;
pub mod report;
pub mod serve;

pub use forward::{Decision, Frame, HEAD, decide};
pub use report::Reports;
pub use rounds::{Outcome, Rounds};
pub use serve::{BATCH, Batch, CALL_COST, Counters, Egress, Ingress, Refused, Turn, serve, shares};

/// What a unit of a channel's weight earns in a round: bytes.
pub const UNITS: rounds::Units = rounds::Units {
    most: 16 << 10,
    least: 512,
    round: 64 << 10,
    // A frame of 1,000 bytes by a system call.
    dearest: 6,
};

#[cfg(test)]
mod tests;
