//! TCP headers (RFC 9293), without options.

use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// IP protocol number.
pub const PROTOCOL: u8 = 6;
/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Offset of the checksum in the header.
pub const CHECKSUM: usize = 16;

/// Flag: the sender has no more data.
pub const FIN: u8 = 0x01;
/// Flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Flag: reset.
pub const RST: u8 = 0x04;
/// Flag: push.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgement field is meant.
pub const ACK: u8 = 0x10;
/// Flag: congestion window reduced (RFC 3168).
pub const CWR: u8 = 0x80;

/// A header; its checksum is written by [`crate::build`] or finished by an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// Next sequence number expected.
    pub acknowledgement: u32,
    /// Bytes of header with options: 20 to 60, a multiple of 4.
    pub header_len: u8,
    /// The flag bits above.
    pub flags: u8,
    /// Receive window, unscaled.
    pub window: u16,
}

impl Header {
    /// Reads a header; options must be there but are not looked into.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let b: [u8; HEADER] = field::array(bytes, 0).ok_or(Malformed::Truncated)?;
        let header_len = (b[12] >> 4) * 4;
        if usize::from(header_len) < HEADER || usize::from(header_len) > bytes.len() {
            return Err(Malformed::Length);
        }
        Ok(Header {
            source: u16::from_be_bytes([b[0], b[1]]),
            destination: u16::from_be_bytes([b[2], b[3]]),
            sequence: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            acknowledgement: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            header_len,
            flags: b[13],
            window: u16::from_be_bytes([b[14], b[15]]),
        })
    }

    /// Writes it with a zero checksum, options as end-of-list (zeros), to the
    /// start of `buffer`; returns `header_len`.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let words = (self.header_len / 4).clamp(5, 15);
        Writer::new(buffer)
            .u16(self.source)
            .u16(self.destination)
            .u32(self.sequence)
            .u32(self.acknowledgement)
            .u8(words << 4)
            .u8(self.flags)
            .u16(self.window)
            .u32(0)
            .zeros_to(usize::from(words) * 4)
            .finish()
    }
}
