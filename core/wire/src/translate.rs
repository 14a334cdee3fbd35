//! A packet's addresses and ports replaced in its private head, every checksum over
//! them kept exact without its payload (RFC 1624, RFC 3022).
//!
//! A checksum that was wrong stays wrong by as much: nothing is made to look whole.

use crate::address::unmapped;
use crate::inner::{self, Inner};
use crate::parse::{HEAD, Ip, Parsed, Transport, Version};
use crate::tuple::Tuple;
use crate::{Offload, checksum, field, icmpv4, icmpv6, tcp, udp};

/// Where the checksum is in an IPv4 header.
const HEADER_CHECKSUM: usize = 10;

/// Where a packet's fields lie, bytes from the frame's start.
struct Places {
    version: Version,
    network: usize,
    /// `None`: a later fragment, or a protocol that has no ports.
    ports: Option<Ports>,
}

/// What of layer 4 changes.
#[derive(Clone, Copy)]
struct Ports {
    /// Where the ports start (or the identifier), and which are there.
    at: usize,
    which: Which,
    /// Where the checksum is, unless a quote is cut before it.
    checksum: Option<usize>,
    covers: Covers,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Source and destination port.
    Both,
    /// An echo request's identifier, the tuple's source port.
    Request,
    /// An echo reply's, the tuple's destination port.
    Reply,
    /// None, but a checksum over the addresses.
    None,
}

/// What a layer 4 checksum is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Covers {
    /// Pseudo header and message.
    Whole,
    /// The same, and 0 means that there is none (RFC 768, RFC 6935).
    WholeOrNone,
    /// The message alone: ICMP in IPv4.
    Message,
    /// The field holds the pseudo header's sum, not complemented.
    Partial,
}

/// Rewrites the packet that `head` holds to the tuple `to`: addresses, and ports or an
/// echo's identifier, with the checksums of IPv4, TCP, UDP, ICMP and ICMPv6, finished
/// or partial as `offload` says. A later fragment has its addresses rewritten: the
/// checksum over the whole datagram is in the first.
///
/// `None`, and nothing written: `to` is of another family or protocol, the packet is
/// an ICMP error (see [`translate_error`]) or has a routing header or source route, or
/// is of a protocol whose checksum covers addresses and is not known here, or `head` is
/// not what was parsed.
pub fn translate(head: &mut [u8], parsed: &Parsed, offload: &Offload, to: &Tuple) -> Option<()> {
    let ip = parsed.ip()?;
    if inner::is_error(ip) || !translatable(ip) {
        return None;
    }
    let places = Places {
        version: ip.version,
        network: parsed.network_offset,
        ports: match ip.transport {
            Transport::Later => None,
            Transport::Icmp { kind, .. } => Some(icmp(ip.version, kind, ip.transport_offset)),
            _ => ports(ip.protocol, ip.transport_offset, offload.is_partial()),
        },
    };
    // A later fragment's protocol is an allegation.
    if !matches!(ip.transport, Transport::Later) && to.protocol != ip.protocol {
        return None;
    }
    rewrite(head, &places, to)
}

/// Rewrites an ICMP error: its outer addresses to `outer`'s, the quoted packet to the
/// tuple `quoted` with its own checksums as far as they are quoted, and the error's
/// checksum over all of that.
///
/// `None`, and nothing written: no error, or one whose quote cannot be read (see
/// [`inner::parse`]), or a tuple of another family, or a quote of another protocol.
pub fn translate_error(
    head: &mut [u8],
    parsed: &Parsed,
    outer: &Tuple,
    quoted: &Tuple,
) -> Option<()> {
    let ip = parsed.ip()?;
    let quote = inner::parse(head, parsed)?;
    if !translatable(ip)
        || quoted.protocol != quote.tuple.protocol
        || [outer.source, outer.destination]
            .iter()
            .any(|a| unmapped(a).is_some() != (ip.version == Version::V4))
    {
        return None;
    }
    // The copy is what the checksum knew: the difference to it is put into the sum.
    let start = ip.transport_offset;
    let end = parsed.packet_end.min(head.len()).min(start + HEAD);
    let mut old = [0u8; HEAD];
    let before = old.get_mut(..end.checked_sub(start)?)?;
    before.copy_from_slice(head.get(start..end)?);
    let ports = quoted_ports(head, &quote, end);
    rewrite(
        head.get_mut(..end)?,
        &Places {
            version: quote.version(),
            network: quote.network_offset,
            ports,
        },
        quoted,
    )?;
    // Only whole words change; a last odd byte is none of them.
    let words = before.len() & !1;
    let now = head.get(start..start + words)?;
    let sum = checksum::update_bytes(field::word(head, start + 2)?, before.get(..words)?, now);
    field::put(head, start + 2, &sum.to_be_bytes())?;
    rewrite(
        head,
        &Places {
            version: ip.version,
            network: parsed.network_offset,
            ports: Some(Ports {
                which: Which::None,
                ..icmp(ip.version, 0, start)
            }),
        },
        outer,
    )
}

/// Whether the addresses in the IP header are the ones that checksums are over, and
/// nothing else in the packet says them.
const fn translatable(ip: &Ip) -> bool {
    // DCCP and UDP-Lite have a checksum over addresses that nobody here updates.
    const DCCP: u8 = 33;
    const UDP_LITE: u8 = 136;
    !matches!(ip.protocol, DCCP | UDP_LITE) && !ip.source_route && ip.routing_header.is_none()
}

const fn icmp(version: Version, kind: u8, at: usize) -> Ports {
    let which = match (version, kind) {
        (Version::V4, icmpv4::ECHO_REQUEST) | (Version::V6, icmpv6::ECHO_REQUEST) => Which::Request,
        (Version::V4, icmpv4::ECHO_REPLY) | (Version::V6, icmpv6::ECHO_REPLY) => Which::Reply,
        _ => Which::None,
    };
    Ports {
        at: at + 4,
        which,
        checksum: Some(at + 2),
        covers: match version {
            Version::V4 => Covers::Message,
            Version::V6 => Covers::Whole,
        },
    }
}

const fn ports(protocol: u8, at: usize, partial: bool) -> Option<Ports> {
    let (checksum, covers) = match protocol {
        tcp::PROTOCOL => (tcp::CHECKSUM, Covers::Whole),
        udp::PROTOCOL => (udp::CHECKSUM, Covers::WholeOrNone),
        _ => return None,
    };
    Some(Ports {
        at,
        which: Which::Both,
        checksum: Some(at + checksum),
        covers: if partial { Covers::Partial } else { covers },
    })
}

/// The same of a quote that ends at `end`: its ports are there, its checksum may not be,
/// and half of one is left as it is.
fn quoted_ports(head: &[u8], quote: &Inner, end: usize) -> Option<Ports> {
    let at = quote.transport_offset;
    let found = match quote.tuple.protocol {
        icmpv4::PROTOCOL | icmpv6::PROTOCOL => icmp(quote.version(), field::byte(head, at)?, at),
        protocol => ports(protocol, at, false)?,
    };
    Some(Ports {
        checksum: found.checksum.filter(|place| place + 2 <= end),
        ..found
    })
}

/// Writes `to` where `places` says. Everything is read and checked before anything is
/// written.
fn rewrite(head: &mut [u8], places: &Places, to: &Tuple) -> Option<()> {
    let mut addresses = [0u8; 32];
    let length = match places.version {
        Version::V4 => {
            let (source, destination) = (unmapped(&to.source)?, unmapped(&to.destination)?);
            field::put(&mut addresses, 0, &source)?;
            field::put(&mut addresses, 4, &destination)?;
            8
        }
        Version::V6 => {
            if unmapped(&to.source).is_some() || unmapped(&to.destination).is_some() {
                return None;
            }
            field::put(&mut addresses, 0, &to.source)?;
            field::put(&mut addresses, 16, &to.destination)?;
            32
        }
    };
    let new = addresses.get(..length)?;
    let at = match places.version {
        Version::V4 => places.network.checked_add(12)?,
        Version::V6 => places.network.checked_add(8)?,
    };
    let mut before = [0u8; 32];
    let old = before.get_mut(..length)?;
    old.copy_from_slice(head.get(at..at.checked_add(length)?)?);

    let mut said = [0u8; 4];
    let mut was = [0u8; 4];
    let mut said_len = 0usize;
    let mut sum = None;
    if let Some(ports) = places.ports {
        let [a, b] = to.source_port.to_be_bytes();
        let [c, d] = to.destination_port.to_be_bytes();
        (said, said_len) = match ports.which {
            Which::Both => ([a, b, c, d], 4),
            Which::Request => ([a, b, 0, 0], 2),
            Which::Reply => ([c, d, 0, 0], 2),
            Which::None => ([0; 4], 0),
        };
        was.get_mut(..said_len)?
            .copy_from_slice(head.get(ports.at..ports.at.checked_add(said_len)?)?);
        if let Some(place) = ports.checksum {
            let field = field::word(head, place)?;
            sum = Some((
                place,
                updated(field, ports.covers, (old, new), (&was, &said)),
            ));
        }
    }
    let header = match places.version {
        Version::V4 => {
            let place = places.network.checked_add(HEADER_CHECKSUM)?;
            Some((
                place,
                checksum::update_bytes(field::word(head, place)?, old, new),
            ))
        }
        Version::V6 => None,
    };
    // From here on every place was read.
    field::put(head, at, new)?;
    for (place, value) in [header, sum].into_iter().flatten() {
        field::put(head, place, &value.to_be_bytes())?;
    }
    match places.ports {
        Some(ports) => field::put(head, ports.at, said.get(..said_len)?),
        None => Some(()),
    }
}

/// A layer 4 checksum after addresses and ports changed; each pair is (old, new). What
/// of the ports does not change is 0 in both.
fn updated(
    field: u16,
    covers: Covers,
    addresses: (&[u8], &[u8]),
    ports: (&[u8; 4], &[u8; 4]),
) -> u16 {
    let over = |sum, (old, new): (&[u8], &[u8])| checksum::update_bytes(sum, old, new);
    match covers {
        Covers::Message => over(field, (ports.0, ports.1)),
        Covers::Partial => !over(!field, addresses),
        Covers::WholeOrNone if field == 0 => 0,
        Covers::Whole => over(over(field, addresses), (ports.0, ports.1)),
        Covers::WholeOrNone => match over(over(field, addresses), (ports.0, ports.1)) {
            0 => 0xffff,
            sum => sum,
        },
    }
}
