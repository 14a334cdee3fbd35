//! IPv4 headers (RFC 791).

use crate::field::{self, Writer};
use crate::{Malformed, NoRoom, checksum};

/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Flag bit of the fragment field: do not fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Flag bit of the fragment field: more fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The smallest MTU a link may have (RFC 791, section 3.2).
pub const MIN_MTU: u16 = 68;

/// A header without options, of a packet that is not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source.
    pub source: [u8; 4],
    /// Destination.
    pub destination: [u8; 4],
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// The packet must not be fragmented.
    pub dont_fragment: bool,
    /// Bytes after the header, at most 65,515.
    pub payload_len: u16,
}

impl Header {
    /// An ordinary header: TTL 64, DF set.
    pub const fn new(source: [u8; 4], destination: [u8; 4], protocol: u8) -> Self {
        Header {
            source,
            destination,
            protocol,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: true,
            payload_len: 0,
        }
    }

    /// Reads a header without options of a whole packet (anything else is
    /// [`Malformed::Field`]), its checksum verified. `bytes` may hold padding
    /// after the packet.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let b: [u8; HEADER] = field::array(bytes, 0).ok_or(Malformed::Truncated)?;
        let fragment = u16::from_be_bytes([b[6], b[7]]);
        if b[0] != 0x45 || fragment & !DONT_FRAGMENT != 0 {
            return Err(Malformed::Field);
        }
        let total = u16::from_be_bytes([b[2], b[3]]);
        let payload_len = total.checked_sub(HEADER as u16).ok_or(Malformed::Length)?;
        if usize::from(total) > bytes.len() {
            return Err(Malformed::Length);
        }
        if checksum::internet(&b) != 0 {
            return Err(Malformed::Checksum);
        }
        Ok(Header {
            source: [b[12], b[13], b[14], b[15]],
            destination: [b[16], b[17], b[18], b[19]],
            protocol: b[9],
            ttl: b[8],
            tos: b[1],
            id: u16::from_be_bytes([b[4], b[5]]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            payload_len,
        })
    }

    /// Writes it, checksum included, to the start of `buffer`; returns [`HEADER`].
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let fragment = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let mut header = [0u8; HEADER];
        Writer::new(&mut header)
            .u8(0x45)
            .u8(self.tos)
            .u16(self.payload_len.saturating_add(HEADER as u16))
            .u16(self.id)
            .u16(fragment)
            .u8(self.ttl)
            .u8(self.protocol)
            .u16(0)
            .bytes(&self.source)
            .bytes(&self.destination)
            .finish()?;
        let sum = checksum::internet(&header).to_be_bytes();
        [header[10], header[11]] = sum;
        Writer::new(buffer).bytes(&header).finish()
    }
}

/// Takes one off the TTL of the packet that starts at `packet[0]` and updates
/// the header checksum (RFC 1624). `None`, and nothing changed, when it is 0
/// already or the packet is too short. The caller has refused a TTL of 1.
pub fn decrement_ttl(packet: &mut [u8]) -> Option<u8> {
    let [ttl, protocol] = field::array(packet, 8)?;
    let sum = field::word(packet, 10)?;
    let new = ttl.checked_sub(1)?;
    let sum = checksum::update(
        sum,
        u16::from_be_bytes([ttl, protocol]),
        u16::from_be_bytes([new, protocol]),
    );
    field::put(packet, 8, &[new])?;
    field::put(packet, 10, &sum.to_be_bytes())?;
    Some(new)
}
