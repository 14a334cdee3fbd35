//! Fixed-size messages between Bulkhead's processes: one 512-byte datagram on a
//! SOCK_SEQPACKET socket, with descriptors beside it. No lengths, no nesting,
//! nothing to parse but fixed offsets.
pub mod bundle;
pub mod cores;
pub mod message;
pub mod verbs;
pub use message::{Body, Message, Name, Verb};
