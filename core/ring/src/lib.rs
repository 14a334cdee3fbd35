//! The channel's logic: one direction of a lock-free single-producer single-consumer
//! queue whose peer may be hostile. Indices, records, waiting, generations.
//!
//! Sans-IO: all memory is reached through [`ProducerMemory`] and [`ConsumerMemory`],
//! so that the same code runs over shared memory (`host/shm`), in ordinary memory
//! ([`heap`]) and under a model checker. The written protocol is `docs/fifo.md`.
//!
//! Three things are never confused: nothing there (`Ok(None)`, [`PushError::Full`]),
//! the peer's successor settling in ([`State`]), and the peer's misdeed ([`Breach`]),
//! which closes this end for good and harms nothing else.

mod breach;
mod consumer;
pub mod heap;
mod layout;
mod memory;
mod producer;
pub mod record;
mod stream;

pub use breach::Breach;
pub use consumer::{Consumer, Record};
pub use layout::{BadGeometry, FIRST, Geometry, HEADER_WORDS, MAGIC, MAX_HEADER, UNIT, VERSION};
pub use layout::{DATA_AT, HEADER_PAGE_AT, PAGE, PRODUCER_PAGE_AT};
pub use memory::{ConsumerMemory, ConsumerWord, CopyTo, ProducerMemory, ProducerWord};
pub use producer::{Producer, PushError};
pub use record::RawRecord;
pub use stream::{StreamConsumer, StreamProducer};

/// What a poll of the peer's page found out about the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Both sides agree on the generation; records flow.
    Running,
    /// We restarted and wait for the peer's echo. See `overdue`.
    AwaitingEcho,
    /// The peer restarted; we have echoed and wait for it to become active.
    AwaitingPeer,
}

/// Whether the peer sleeps and is owed one byte through its doorbell.
#[must_use = "a peer that sleeps and is not rung never wakes"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// The peer is awake, or was rung already since it armed.
    Quiet,
    /// Ring now: at most once for each time the peer armed.
    Ring,
}

/// What was in flight and is lost since a side restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Frames, as far as their headers could be walked.
    pub records: u64,
    /// Ring bytes, headers and padding included.
    pub bytes: u64,
}

/// Nanoseconds without an echo after which the pair is to be replaced.
pub const ECHO_WITHIN_NS: u64 = 10_000_000;
/// Restarts of a producer without one record between them after which what was left is
/// no longer counted.
pub const MAX_IDLE_RESTARTS: u32 = 64;
/// Doorbell bytes beyond one for each arming that are forgiven.
pub const SPARE_RINGS: u64 = 64;

#[cfg(test)]
mod tests;
