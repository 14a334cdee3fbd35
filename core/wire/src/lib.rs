//! Wire formats: checked views to read, legal-values representations to build.
//!
//! The way in is [`parse::parse`]: one pass over the private copy of a frame's
//! first bytes. What is built or answered uses the protocol modules: each has a
//! representation that can only hold legal values, with `parse` and `emit`, and
//! [`build`] puts them into whole frames. Everything is a pure function of its
//! arguments; nothing allocates, and no input can make it panic.
//!
//! IP addresses are `[u8; 16]` wherever both families meet, IPv4 in its
//! v4-mapped form `::ffff:a.b.c.d` (RFC 4291, section 2.5.5.2): see [`address`].

pub mod address;
pub mod arp;
pub mod build;
pub mod checksum;
pub mod dhcpv4;
pub mod ethernet;
mod field;
pub mod icmpv4;
pub mod icmpv6;
pub mod inner;
pub mod ipv4;
pub mod ipv6;
pub mod nd;
pub mod offload;
pub mod parse;
pub mod probe;
pub mod segment;
pub mod tcp;
pub mod translate;
pub mod tuple;
pub mod udp;

pub use address::MacAddress;
pub use inner::Inner;
pub use offload::{BadOffload, Offload, RawOffload};
pub use parse::{ParseError, Parsed, parse};
pub use probe::Probe;
pub use tuple::Tuple;

/// Why bytes are not the message they are said to be: the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end before the message does.
    Truncated,
    /// A length field contradicts the bytes that are there.
    Length,
    /// A field holds a value that the message may not have.
    Field,
    /// The checksum is wrong.
    Checksum,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "ends before its headers do",
            Malformed::Length => "a length field contradicts the bytes",
            Malformed::Field => "a field holds an illegal value",
            Malformed::Checksum => "the checksum is wrong",
        })
    }
}

impl core::error::Error for Malformed {}

/// The caller's buffer is too short for what is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that were needed.
    pub needed: usize,
}

impl core::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "the buffer is too short: {} bytes are needed",
            self.needed
        )
    }
}

impl core::error::Error for NoRoom {}
