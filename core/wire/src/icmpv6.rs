//! ICMPv6 (RFC 4443): echo and errors. Neighbour discovery is in [`crate::nd`].
//!
//! Messages are written with a zero checksum; [`crate::build::icmpv6`] fills it,
//! because it covers the IP addresses.

use crate::address::Address;
use crate::field::{self, Writer};
use crate::{Malformed, NoRoom, checksum};

/// Next-header number.
pub const PROTOCOL: u8 = 58;
/// Bytes of the header of every message here.
pub const HEADER: usize = 8;

/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 1;
/// Type: packet too big.
pub const PACKET_TOO_BIG: u8 = 2;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type: echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Type: multicast listener report (RFC 2710).
pub const MLD_REPORT: u8 = 131;
/// Type: multicast listener done (RFC 2710).
pub const MLD_DONE: u8 = 132;
/// Type: multicast listener report, version 2 (RFC 3810).
pub const MLD2_REPORT: u8 = 143;

/// Whether a message of this type is an error, about which no error is sent
/// (RFC 4443, section 2.4 e): types below 128. Redirects (137) count too.
pub const fn is_error(kind: u8) -> bool {
    kind < 128 || kind == crate::nd::REDIRECT
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
    /// Reads a whole echo message between these addresses, checksum verified.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(
        message: &'a [u8],
        source: &Address,
        destination: &Address,
    ) -> Result<Echo<'a>, Malformed> {
        let [kind, code, _, _, id0, id1, seq0, seq1] =
            field::array::<HEADER>(message, 0).ok_or(Malformed::Truncated)?;
        if !matches!(kind, ECHO_REQUEST | ECHO_REPLY) || code != 0 {
            return Err(Malformed::Field);
        }
        if !checksum::verifies(source, destination, PROTOCOL, message) {
            return Err(Malformed::Checksum);
        }
        Ok(Echo {
            request: kind == ECHO_REQUEST,
            id: u16::from_be_bytes([id0, id1]),
            sequence: u16::from_be_bytes([seq0, seq1]),
            data: message.get(HEADER..).unwrap_or(&[]),
        })
    }

    /// Writes it with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let kind = if self.request {
            ECHO_REQUEST
        } else {
            ECHO_REPLY
        };
        Writer::new(buffer)
            .bytes(&[kind, 0, 0, 0])
            .u16(self.id)
            .u16(self.sequence)
            .bytes(self.data)
            .finish()
    }
}

/// Turns the echo request at `message[0]` into its reply in place: only the
/// first four bytes change, so the rest need not be at hand. The addresses are
/// to be swapped by the caller, which leaves the checksum right. `None`, and
/// nothing changed, when it is no echo request.
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
    /// No route to the destination (1/0).
    NoRoute,
    /// Forbidden by administration (1/1).
    Prohibited,
    /// Nobody has the address (1/3).
    AddressUnreachable,
    /// Nobody listens on the port (1/4).
    PortUnreachable,
    /// Does not fit the next link (2/0).
    PacketTooBig {
        /// MTU of the next hop, bytes of IP packet.
        mtu: u32,
    },
    /// The hop limit ran out (3/0).
    TimeExceeded,
    /// A next header that is not known here (4/1).
    UnknownNextHeader {
        /// Where it is, bytes from the start of the packet.
        pointer: u32,
    },
}

impl Error {
    /// Type and code.
    pub const fn kind(self) -> (u8, u8) {
        match self {
            Error::NoRoute => (UNREACHABLE, 0),
            Error::Prohibited => (UNREACHABLE, 1),
            Error::AddressUnreachable => (UNREACHABLE, 3),
            Error::PortUnreachable => (UNREACHABLE, 4),
            Error::PacketTooBig { .. } => (PACKET_TOO_BIG, 0),
            Error::TimeExceeded => (TIME_EXCEEDED, 0),
            Error::UnknownNextHeader { .. } => (PARAMETER_PROBLEM, 1),
        }
    }

    /// Writes the error about the packet `quote` (as much of it as the caller
    /// gives, at most [`MAX_QUOTE`]) with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(self, buffer: &mut [u8], quote: &[u8]) -> Result<usize, NoRoom> {
        let (kind, code) = self.kind();
        let rest = match self {
            Error::PacketTooBig { mtu } => mtu,
            Error::UnknownNextHeader { pointer } => pointer,
            _ => 0,
        };
        Writer::new(buffer)
            .bytes(&[kind, code, 0, 0])
            .u32(rest)
            .bytes(quote)
            .finish()
    }
}

/// The most bytes of a packet quoted in an error about it: the whole fits the
/// smallest IPv6 MTU (RFC 4443, section 2.4 c).
pub const MAX_QUOTE: usize = crate::ipv6::MIN_MTU as usize - crate::ipv6::HEADER - HEADER;
