//! UDP headers (RFC 768).

use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// IP protocol number.
pub const PROTOCOL: u8 = 17;
/// Bytes of the header.
pub const HEADER: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM: usize = 6;

/// A header; its checksum is written by [`crate::build`] or finished by an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Bytes of header and payload, at least 8.
    pub length: u16,
}

impl Header {
    /// Reads a header; `bytes` holds the whole datagram and nothing after it
    /// need be there.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let b: [u8; HEADER] = field::array(bytes, 0).ok_or(Malformed::Truncated)?;
        let header = Header {
            source: u16::from_be_bytes([b[0], b[1]]),
            destination: u16::from_be_bytes([b[2], b[3]]),
            length: u16::from_be_bytes([b[4], b[5]]),
        };
        if usize::from(header.length) < HEADER || usize::from(header.length) > bytes.len() {
            return Err(Malformed::Length);
        }
        Ok(header)
    }

    /// Writes it with a zero checksum to the start of `buffer`; returns [`HEADER`].
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        Writer::new(buffer)
            .u16(self.source)
            .u16(self.destination)
            .u16(self.length)
            .u16(0)
            .finish()
    }
}
