//! The packet that an ICMP error is about, as much of it as the error quotes
//! (RFC 792; RFC 4443, section 3).
//!
//! Whoever sent the error says what it quotes: all of it is an allegation. It is read
//! to the ports and no further than the private copy; lengths and checksums are not
//! verified, since a quote is cut short and routers have altered it.

use guard::guard;

use crate::address::{Address, mapped};
use crate::parse::{
    Fragment, Ip, MAX_EXTENSION_BYTES, MAX_EXTENSION_HEADERS, Parsed, Transport, Version,
};
use crate::tuple::Tuple;
use crate::{field, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};

/// What an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The quoted packet's tuple, as [`Tuple::of_connection`] has it: what the
    /// receiver of the error is alleged to have sent.
    pub tuple: Tuple,
    /// TCP's sequence number, if it is TCP.
    pub sequence: Option<u32>,
    /// Where the quoted IP header starts, bytes from the frame's start.
    pub network_offset: usize,
    /// Where the quoted layer 4 header starts, bytes from the frame's start.
    pub transport_offset: usize,
}

impl Inner {
    /// The version of the quoted packet, which is the error's own.
    pub const fn version(&self) -> Version {
        match crate::address::unmapped(&self.tuple.source) {
            Some(_) => Version::V4,
            None => Version::V6,
        }
    }
}

/// Whether this is an ICMP error about a packet: one that quotes it. Redirects are
/// not, since nobody relays them.
pub const fn is_error(ip: &Ip) -> bool {
    match (ip.version, ip.transport) {
        (Version::V4, Transport::Icmp { kind, .. }) => matches!(
            kind,
            icmpv4::UNREACHABLE
                | icmpv4::SOURCE_QUENCH
                | icmpv4::TIME_EXCEEDED
                | icmpv4::PARAMETER_PROBLEM
        ),
        (Version::V6, Transport::Icmp { kind, .. }) => matches!(
            kind,
            icmpv6::UNREACHABLE
                | icmpv6::PACKET_TOO_BIG
                | icmpv6::TIME_EXCEEDED
                | icmpv6::PARAMETER_PROBLEM
        ),
        _ => false,
    }
}

/// Reads the quote of the ICMP error that `head` holds. `None`: no error, itself a
/// fragment, cut before the ports (8 bytes of layer 4, which RFC 792 promises), a
/// later fragment, or an ICMP message that is no echo, about which none is sent.
pub fn parse(head: &[u8], parsed: &Parsed) -> Option<Inner> {
    let ip = parsed.ip()?;
    if !is_error(ip) || ip.fragment != Fragment::Whole {
        return None;
    }
    // What follows the packet is padding, which nobody quoted.
    let head = head.get(..head.len().min(parsed.packet_end))?;
    // Both ICMPs have 8 bytes before the quote.
    let at = ip.transport_offset.checked_add(icmpv4::HEADER)?;
    let found = match ip.version {
        Version::V4 => addresses4(head, at)?,
        Version::V6 => addresses6(head, at)?,
    };
    let (source, destination, protocol, transport_offset) = found;
    let [a, b, c, d, e, f, g, h] = field::array(head, transport_offset)?;
    let word = |high, low| u16::from_be_bytes([high, low]);
    let mut sequence = None;
    let (source_port, destination_port) = match (protocol, ip.version) {
        (tcp::PROTOCOL, _) => {
            sequence = Some(u32::from_be_bytes([e, f, g, h]));
            (word(a, b), word(c, d))
        }
        (udp::PROTOCOL, _) => (word(a, b), word(c, d)),
        (icmpv4::PROTOCOL, Version::V4) | (icmpv6::PROTOCOL, Version::V6) => {
            match (ip.version, a, b) {
                (Version::V4, icmpv4::ECHO_REQUEST, 0) | (Version::V6, icmpv6::ECHO_REQUEST, 0) => {
                    (word(e, f), 0)
                }
                (Version::V4, icmpv4::ECHO_REPLY, 0) | (Version::V6, icmpv6::ECHO_REPLY, 0) => {
                    (0, word(e, f))
                }
                _ => return None,
            }
        }
        _ => (0, 0),
    };
    Some(Inner {
        tuple: Tuple {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
        },
        sequence,
        network_offset: at,
        transport_offset,
    })
}

fn addresses4(head: &[u8], at: usize) -> Option<(Address, Address, u8, usize)> {
    let b: [u8; ipv4::HEADER] = field::array(head, at)?;
    let header_len = usize::from(b[0] & 0xf) * 4;
    let place = u16::from_be_bytes([b[6], b[7]]) & 0x1fff;
    if b[0] >> 4 != 4 || header_len < ipv4::HEADER || place != 0 {
        return None;
    }
    Some((
        mapped([b[12], b[13], b[14], b[15]]),
        mapped([b[16], b[17], b[18], b[19]]),
        b[9],
        at + header_len,
    ))
}

fn addresses6(head: &[u8], at: usize) -> Option<(Address, Address, u8, usize)> {
    let b: [u8; ipv6::HEADER] = field::array(head, at)?;
    let source: Address = field::array(&b, 8)?;
    let destination = field::array(&b, 24)?;
    // An address of the other family in this one would be another's tuple.
    let foreign = |address| crate::address::unmapped(address).is_some();
    let foreign = guard!("inner-family") && (foreign(&source) || foreign(&destination));
    if b[0] >> 4 != 6 || foreign {
        return None;
    }
    let start = at + ipv6::HEADER;
    let (mut protocol, mut end) = (b[6], start);
    // Bound: MAX_EXTENSION_HEADERS turns.
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let length = match protocol {
            ipv6::HOP_BY_HOP | ipv6::DESTINATION => {
                (usize::from(field::byte(head, end + 1)?) + 1) * 8
            }
            ipv6::FRAGMENT => {
                if field::word(head, end + 2)? & 0xfff8 != 0 {
                    return None;
                }
                8
            }
            // Routing moves the destination, and nothing is translated under
            // authentication.
            ipv6::ROUTING | ipv6::AUTHENTICATION => return None,
            _ => return Some((source, destination, protocol, end)),
        };
        protocol = field::byte(head, end)?;
        end += length;
        if end - start > MAX_EXTENSION_BYTES {
            return None;
        }
    }
    None
}
