//! Memory shared between processes, and the only unsafe code that touches it.
//!
//! - [`Direction`], [`Pool`], [`attach`]: channels (`docs/fifo.md`) over memory files.
//! - [`Words`], [`PeerWords`], [`CountersPage`], [`Recorder`]: pages of counters.
//! - [`circuit_file`], [`circuit_ends`], [`CircuitWords`]: the memory of a circuit, which both its ends write.
//! - [`Guest`]: the memory of a virtual machine, as its vhost-user front end shares it.
//! - [`SealedImage`]: table images that nobody can write any more.
//!
//! No type here gives a reference to memory that another process can write: bytes
//! are copied in and out, words are loaded and stored atomically. The one `&[u8]`
//! is over memory whose seals forbid writing to everyone.

mod bell;
mod channel;
mod circuit_ring;
mod end;
mod fault;
mod file;
mod guest;
mod kept;
mod mapping;
mod near;
mod pages;
mod pool;
mod sealed;
mod tables;

pub use bell::{Listener, Ringer};
pub use channel::{
    AttachError, Channel, ChannelFds, ConsumerFds, ProducerFds, Receiver, Sender, Start, attach,
    attach_consumer, attach_producer, between, consumer_end, producer_end,
};
pub use circuit_ring::{
    CircuitEnd, CircuitReader, CircuitWaker, CircuitWriter, LINE, circuit_ends, circuit_file,
};
pub use end::{ConsumerEnd, ProducerEnd};
pub use file::{is_sealed_shape, memory_file, read_only, sparse_file};
pub use guest::{Guest, GuestError, MAX_REGIONS, Region, most_notes, shared_bytes};
pub use kept::{CircuitWords, give_back, is_large, take_back};
pub use pages::{CountersPage, PeerWords, Recorder, Words};
pub use pool::{Direction, Pair, Pool};
pub use ring::{Breach, Doorbell, Geometry, PushError, State};
pub use sealed::{SealError, SealedImage};
pub use tables::give_back_tables;

#[cfg(test)]
mod tests;
