//! IPv6 headers and the numbers of its extension headers (RFC 8200).

use crate::address::Address;
use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// Bytes of the fixed header.
pub const HEADER: usize = 40;
/// The smallest MTU a link may have.
pub const MIN_MTU: u16 = 1280;

/// Next header: hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// Next header: routing.
pub const ROUTING: u8 = 43;
/// Next header: fragment.
pub const FRAGMENT: u8 = 44;
/// Next header: authentication (RFC 4302).
pub const AUTHENTICATION: u8 = 51;
/// Next header: destination options.
pub const DESTINATION: u8 = 60;
/// Next header: mobility (RFC 6275).
pub const MOBILITY: u8 = 135;
/// Next header: host identity (RFC 7401).
pub const HOST_IDENTITY: u8 = 139;
/// Next header: shim6 (RFC 5533).
pub const SHIM6: u8 = 140;

/// A fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source.
    pub source: Address,
    /// Destination.
    pub destination: Address,
    /// What follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the fixed header.
    pub payload_len: u16,
}

impl Header {
    /// An ordinary header: hop limit 64.
    pub const fn new(source: Address, destination: Address, next_header: u8) -> Self {
        Header {
            source,
            destination,
            next_header,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
        }
    }

    /// Reads the fixed header. `bytes` may hold padding after the packet.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let first = field::long(bytes, 0).ok_or(Malformed::Truncated)?;
        if first >> 28 != 6 {
            return Err(Malformed::Field);
        }
        let header = Header::read(bytes, first).ok_or(Malformed::Truncated)?;
        if HEADER + usize::from(header.payload_len) > bytes.len() {
            return Err(Malformed::Length);
        }
        Ok(header)
    }

    fn read(bytes: &[u8], first: u32) -> Option<Header> {
        Some(Header {
            source: field::array(bytes, 8)?,
            destination: field::array(bytes, 24)?,
            next_header: field::byte(bytes, 6)?,
            hop_limit: field::byte(bytes, 7)?,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: field::word(bytes, 4)?,
        })
    }

    /// Writes it to the start of `buffer`; returns [`HEADER`].
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        Writer::new(buffer)
            .u32(first)
            .u16(self.payload_len)
            .u8(self.next_header)
            .u8(self.hop_limit)
            .bytes(&self.source)
            .bytes(&self.destination)
            .finish()
    }
}

/// Takes one off the hop limit of the packet that starts at `packet[0]`.
/// `None`, and nothing changed, when it is 0 already or the packet is too short.
pub fn decrement_hop_limit(packet: &mut [u8]) -> Option<u8> {
    let new = field::byte(packet, 7)?.checked_sub(1)?;
    field::put(packet, 7, &[new])?;
    Some(new)
}
