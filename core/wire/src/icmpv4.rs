//! ICMP for IPv4 (RFC 792): echo and errors.

use crate::field::{self, Writer};
use crate::{Malformed, NoRoom, checksum};

/// IP protocol number.
pub const PROTOCOL: u8 = 1;
/// Bytes of the header of every message here.
pub const HEADER: usize = 8;

/// Type: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// Type: source quench (obsolete, RFC 6633).
pub const SOURCE_QUENCH: u8 = 4;
/// Type: redirect.
pub const REDIRECT: u8 = 5;
/// Type: router advertisement (RFC 1256).
pub const ROUTER_ADVERT: u8 = 9;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 8;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;

/// Whether a message of this type is an error, about which no error is sent
/// (RFC 1122, section 3.2.2).
pub const fn is_error(kind: u8) -> bool {
    matches!(
        kind,
        UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM
    )
}

/// An echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// A request, else a reply.
    pub request: bool,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Returned as it came.
    pub data: &'a [u8],
}

impl<'a> Echo<'a> {
    /// Reads a whole echo message, checksum verified.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(message: &'a [u8]) -> Result<Echo<'a>, Malformed> {
        let [kind, code, _, _, id0, id1, seq0, seq1] =
            field::array::<HEADER>(message, 0).ok_or(Malformed::Truncated)?;
        if !matches!(kind, ECHO_REQUEST | ECHO_REPLY) || code != 0 {
            return Err(Malformed::Field);
        }
        if checksum::internet(message) != 0 {
            return Err(Malformed::Checksum);
        }
        Ok(Echo {
            request: kind == ECHO_REQUEST,
            id: u16::from_be_bytes([id0, id1]),
            sequence: u16::from_be_bytes([seq0, seq1]),
            data: message.get(HEADER..).unwrap_or(&[]),
        })
    }

    /// Writes it, checksum included; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let kind = if self.request {
            ECHO_REQUEST
        } else {
            ECHO_REPLY
        };
        let rest = u32::from(self.id) << 16 | u32::from(self.sequence);
        emit(buffer, kind, 0, rest, self.data)
    }
}

/// Turns the echo request at `message[0]` into its reply in place: only the
/// first four bytes change, so the rest need not be at hand. `None`, and nothing
/// changed, when it is no echo request.
pub fn echo_in_place(message: &mut [u8]) -> Option<()> {
    let sum = field::word(message, 2)?;
    if field::word(message, 0)? != u16::from(ECHO_REQUEST) << 8 {
        return None;
    }
    let sum = checksum::update(
        sum,
        u16::from(ECHO_REQUEST) << 8,
        u16::from(ECHO_REPLY) << 8,
    );
    field::put(message, 0, &[ECHO_REPLY, 0])?;
    field::put(message, 2, &sum.to_be_bytes())
}

/// Errors a router or host sends about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No route to the network (3/0).
    NetUnreachable,
    /// Nobody has the address (3/1).
    HostUnreachable,
    /// No such protocol here (3/2).
    ProtocolUnreachable,
    /// Nobody listens on the port (3/3).
    PortUnreachable,
    /// Too big and not to be fragmented (3/4, RFC 1191).
    FragmentationNeeded {
        /// MTU of the next hop, bytes of IP packet.
        mtu: u16,
    },
    /// Forbidden by administration (3/13).
    Prohibited,
    /// The hop limit ran out (11/0).
    TimeExceeded,
}

impl Error {
    /// Type and code.
    pub const fn kind(self) -> (u8, u8) {
        match self {
            Error::NetUnreachable => (UNREACHABLE, 0),
            Error::HostUnreachable => (UNREACHABLE, 1),
            Error::ProtocolUnreachable => (UNREACHABLE, 2),
            Error::PortUnreachable => (UNREACHABLE, 3),
            Error::FragmentationNeeded { .. } => (UNREACHABLE, 4),
            Error::Prohibited => (UNREACHABLE, 13),
            Error::TimeExceeded => (TIME_EXCEEDED, 0),
        }
    }

    /// Writes the error about the packet `quote` (its IP header and as much as
    /// the caller gives; RFC 1812 section 4.3.2.3: at most 548 bytes so that the
    /// whole stays within 576), checksum included; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(self, buffer: &mut [u8], quote: &[u8]) -> Result<usize, NoRoom> {
        let (kind, code) = self.kind();
        let rest = match self {
            Error::FragmentationNeeded { mtu } => u32::from(mtu),
            _ => 0,
        };
        emit(buffer, kind, code, rest, quote)
    }
}

/// The most bytes of a packet quoted in an error about it.
pub const MAX_QUOTE: usize = 576 - crate::ipv4::HEADER - HEADER;

fn emit(buffer: &mut [u8], kind: u8, code: u8, rest: u32, body: &[u8]) -> Result<usize, NoRoom> {
    let head = [kind, code];
    let sum = checksum::Sum::new()
        .bytes(&head)
        .bytes(&rest.to_be_bytes())
        .bytes(body)
        .finish();
    Writer::new(buffer)
        .bytes(&head)
        .u16(sum)
        .u32(rest)
        .bytes(body)
        .finish()
}
