//! Virtqueues from the device's side: split and packed rings, chains of descriptors,
//! indirect tables, suppression of notifications by flag and by event index (Virtual I/O
//! Device 1.2, 2.7 and 2.8).
//!
//! Everything in guest memory is an allegation. A descriptor is read once, into private
//! memory, and what is decided is decided on that copy; what an index says is compared
//! with how far it can have gone; every walk ends after as many steps as the ring has
//! entries. What no honest driver does is a [`Breach`]: the queue is over, and only it.
//! Memory is a trait, so that the same code runs over a guest's pages and in a test.

mod breach;
mod chain;
#[cfg(test)]
mod heap;
mod memory;
pub mod net;
mod packed;
mod queue;
mod split;
mod steering;
#[cfg(test)]
mod tests;

pub use breach::Breach;
pub use chain::{Chain, Direction, MAX_PIECES, Token};
#[cfg(test)]
pub(crate) use heap::Heap;
pub use memory::GuestMemory;
pub use queue::{Features, Layout, MAX_BATCH, MAX_SIZE, Queue, Stand};
pub use steering::flow_of;
