//! One pass over a frame's first bytes, to layer 4, noting how far it got.

use guard::guard;

use crate::address::{Address, MacAddress, mapped};
use crate::field;
use crate::{arp, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};

/// Bytes of a frame that are copied to private memory and parsed. Everything
/// [`parse`] reads lies in them: Ethernet and two tags (22), the longest IPv4
/// header (60) or IPv6 header (40) and extension chain ([`MAX_EXTENSION_BYTES`]),
/// and the longest TCP header (60), is 250 at most.
pub const HEAD: usize = 256;
/// IPv6 extension headers walked at most. RFC 8200 knows an order of seven.
pub const MAX_EXTENSION_HEADERS: usize = 8;
/// Bytes of IPv6 extension headers at most, so that the layer 4 header is always
/// within [`HEAD`]. Most operators drop longer chains (RFC 7872, RFC 8883).
pub const MAX_EXTENSION_BYTES: usize = 128;

/// Parses a frame of `total_len` bytes of which `head` is a private copy of the
/// first `min(total_len, HEAD)` bytes or more.
///
/// What is returned as a fact was read from `head` and is consistent with
/// `total_len`; payloads, options' contents and transport checksums were not
/// looked at (the IPv4 header checksum was).
///
/// # Errors
/// [`ParseError`]: the frame ends before a header does, or a length contradicts it: the
/// sender's fault, dropped as `malformed` (`extension-chain` for that one).
/// [`ParseError::Head`] is ours: `head` is too short a copy.
pub fn parse(head: &[u8], total_len: usize) -> Result<Parsed, ParseError> {
    let bytes = Bytes {
        head: head.get(..head.len().min(total_len)).unwrap_or(head),
        end: total_len,
    };
    let mut parsed = Parsed {
        destination: MacAddress(bytes.array(0)?),
        source: MacAddress(bytes.array(6)?),
        tags: ethernet::Tags::NONE,
        ethertype: bytes.word(12)?,
        network_offset: ethernet::HEADER,
        packet_end: total_len,
        network: Network::Unknown,
    };
    // Bound: MAX_TAGS turns; a third tag stays as the EtherType, which is unknown.
    while matches!(parsed.ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN)
        && parsed.tags.count() < ethernet::MAX_TAGS
    {
        parsed.tags.push(ethernet::Tag {
            tpid: parsed.ethertype,
            tci: bytes.word(parsed.network_offset)?,
        });
        parsed.ethertype = bytes.word(parsed.network_offset + 2)?;
        parsed.network_offset += ethernet::TAG;
    }
    let at = parsed.network_offset;
    match parsed.ethertype {
        ethernet::ARP => {
            let message: [u8; arp::LEN] = bytes.array(at)?;
            parsed.packet_end = at + arp::LEN;
            parsed.network =
                Network::Arp(arp::Message::parse(&message).map_err(|_| ParseError::Arp)?);
        }
        ethernet::IPV4 => {
            let ip = parse_ipv4(bytes, at)?;
            parsed.packet_end = at + ip.packet_len;
            parsed.network = Network::Ip(ip);
        }
        ethernet::IPV6 => {
            let ip = parse_ipv6(bytes, at)?;
            parsed.packet_end = at + ip.packet_len;
            parsed.network = Network::Ip(ip);
        }
        _ => {}
    }
    Ok(parsed)
}

/// What one pass found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Destination MAC.
    pub destination: MacAddress,
    /// Source MAC.
    pub source: MacAddress,
    /// VLAN tags, outermost first.
    pub tags: ethernet::Tags,
    /// EtherType after the tags.
    pub ethertype: u16,
    /// Where layer 3 starts, bytes from the frame's start.
    pub network_offset: usize,
    /// Where the packet ends, bytes from the frame's start; what follows up to
    /// the frame's end is padding. The frame's end when layer 3 is unknown.
    pub packet_end: usize,
    /// Layer 3.
    pub network: Network,
}

impl Parsed {
    /// The IP facts, if it is an IP packet.
    pub const fn ip(&self) -> Option<&Ip> {
        match &self.network {
            Network::Ip(ip) => Some(ip),
            _ => None,
        }
    }

    /// Where the layer 4 header starts, if there is one in this frame.
    pub const fn transport_offset(&self) -> Option<usize> {
        match &self.network {
            Network::Ip(ip) if !matches!(ip.transport, Transport::Later) => {
                Some(ip.transport_offset)
            }
            _ => None,
        }
    }

    /// Where the payload of layer 4 starts: after the TCP, UDP or 8-byte ICMP header.
    pub const fn payload_offset(&self) -> Option<usize> {
        match &self.network {
            Network::Ip(ip) => match ip.transport {
                Transport::Tcp { header_len, .. } => {
                    Some(ip.transport_offset + header_len as usize)
                }
                Transport::Udp { .. } | Transport::Icmp { .. } => Some(ip.transport_offset + 8),
                Transport::Other | Transport::Later => None,
            },
            _ => None,
        }
    }
}

/// Layer 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Not looked at: an EtherType that is none of ours.
    Unknown,
    /// ARP for IPv4 over Ethernet.
    Arp(arp::Message),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// An IP packet, to layer 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Version.
    pub version: Version,
    /// Source; IPv4 in its mapped form.
    pub source: Address,
    /// Destination; IPv4 in its mapped form.
    pub destination: Address,
    /// Layer 4 protocol: the last next-header value of an IPv6 chain. In a later
    /// fragment what the fragment header says, which is an allegation.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN: TOS or traffic class.
    pub traffic_class: u8,
    /// May not be fragmented on the way: IPv4's DF; always in IPv6.
    pub dont_fragment: bool,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// An IPv6 fragment header is there, also where it says "not fragmented"
    /// (RFC 6946). In IPv4: it is a fragment.
    pub fragment_header: bool,
    /// What the fragments of one packet have in common: IPv4's identification, the
    /// IPv6 fragment header's; 0 if there is none.
    pub fragment_id: u32,
    /// Where the data is in the original packet, bytes; 0 unless a later fragment.
    pub fragment_place: u16,
    /// Bytes of IP header with IPv4 options, without IPv6 extension headers.
    pub header_len: usize,
    /// Bytes of the whole packet, IP header included.
    pub packet_len: usize,
    /// Where layer 4 (or a later fragment's data) starts, bytes from the frame's start.
    pub transport_offset: usize,
    /// IPv4 options are there.
    pub options: bool,
    /// An IPv4 source route option, loose or strict, is there.
    pub source_route: bool,
    /// Type of the IPv6 routing header, if there is one.
    pub routing_header: Option<u8>,
    /// An IPv6 authentication header is there: it signs this one packet.
    pub authenticated: bool,
    /// IPv6 extension headers walked.
    pub extension_headers: u8,
    /// Bytes of them.
    pub extension_len: usize,
    /// Layer 4.
    pub transport: Transport,
}

impl Ip {
    /// ICMPv6 neighbour discovery.
    pub const fn is_nd(&self) -> bool {
        match (self.version, self.transport) {
            (Version::V6, Transport::Icmp { kind, .. }) => crate::nd::is_nd(kind),
            _ => false,
        }
    }
}

/// How a packet relates to fragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Not fragmented.
    Whole,
    /// The first fragment: it holds the layer 4 header.
    First,
    /// A later one: it holds no layer 4 header.
    Later,
}

/// Layer 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Bytes of header, 20 to 60.
        header_len: u8,
        /// Flag bits, [`tcp`].
        flags: u8,
    },
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Header and payload as the header says. In a whole packet at most what
        /// is there; in a first fragment it says what the whole will be.
        length: u16,
    },
    /// ICMP in IPv4, ICMPv6 in IPv6. At least 8 bytes are there.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// Another protocol: not looked at.
    Other,
    /// None: a later fragment.
    Later,
}

/// Why a frame is not well formed: the sender's fault, but for [`ParseError::Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The frame ends before its headers do.
    Truncated,
    /// The caller's private copy is too short: our bug.
    Head,
    /// ARP that is not IPv4 over Ethernet.
    Arp,
    /// The version field contradicts the EtherType.
    Version,
    /// An IP length field contradicts the frame or itself.
    Length,
    /// The IPv4 header checksum is wrong.
    Checksum,
    /// An IPv4 option runs past the header.
    Options,
    /// A fragment's place or size is impossible.
    Fragment,
    /// A first fragment too short for its headers, or a later one that would
    /// overwrite a TCP header (RFC 1858, RFC 3128, RFC 7112).
    TinyFragment,
    /// An IPv6 extension chain longer than [`MAX_EXTENSION_HEADERS`] or
    /// [`MAX_EXTENSION_BYTES`], out of order, or of a header not known here.
    ExtensionChain,
    /// A TCP, UDP or ICMP length contradicts the packet.
    TransportLength,
}

impl core::fmt::Display for ParseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ParseError::Truncated => "the frame ends before its headers do",
            ParseError::Head => "the private copy is shorter than the headers",
            ParseError::Arp => "ARP that is not IPv4 over Ethernet",
            ParseError::Version => "the IP version contradicts the EtherType",
            ParseError::Length => "an IP length contradicts the frame",
            ParseError::Checksum => "the IPv4 header checksum is wrong",
            ParseError::Options => "an IPv4 option runs past the header",
            ParseError::Fragment => "a fragment with an impossible place or size",
            ParseError::TinyFragment => "a fragment that cuts or overwrites a header",
            ParseError::ExtensionChain => "an IPv6 extension chain too long or unknown",
            ParseError::TransportLength => "a transport length contradicts the packet",
        })
    }
}

impl core::error::Error for ParseError {}

/// The private copy, and where the layer being read ends.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    head: &'a [u8],
    end: usize,
}

impl Bytes<'_> {
    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], ParseError> {
        if at.saturating_add(N) > self.end {
            return Err(ParseError::Truncated);
        }
        field::array(self.head, at).ok_or(ParseError::Head)
    }

    fn word(self, at: usize) -> Result<u16, ParseError> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// The same bytes, ending where the packet does.
    fn ending(self, end: usize) -> Result<Self, ParseError> {
        if guard!("parse-length") && end > self.end {
            return Err(ParseError::Length);
        }
        Ok(Bytes { end, ..self })
    }
}

fn parse_ipv4(bytes: Bytes<'_>, at: usize) -> Result<Ip, ParseError> {
    let b: [u8; ipv4::HEADER] = bytes.array(at)?;
    if b[0] >> 4 != 4 {
        return Err(ParseError::Version);
    }
    let header_len = usize::from(b[0] & 0xf) * 4;
    let packet_len = usize::from(u16::from_be_bytes([b[2], b[3]]));
    if header_len < ipv4::HEADER || packet_len < header_len {
        return Err(ParseError::Length);
    }
    let bytes = bytes.ending(at + packet_len)?;
    let header = bytes
        .head
        .get(at..at + header_len)
        .ok_or(ParseError::Head)?;
    if guard!("ipv4-checksum") && checksum::internet(header) != 0 {
        return Err(ParseError::Checksum);
    }
    let source_route = walk_options(header.get(ipv4::HEADER..).unwrap_or(&[]))?;
    let field = u16::from_be_bytes([b[6], b[7]]);
    let more = field & ipv4::MORE_FRAGMENTS != 0;
    let place = usize::from(field & 0x1fff) * 8;
    let fragment = fragment(place, more, packet_len - header_len)?;
    let transport_offset = at + header_len;
    let protocol = b[9];
    Ok(Ip {
        version: Version::V4,
        source: mapped([b[12], b[13], b[14], b[15]]),
        destination: mapped([b[16], b[17], b[18], b[19]]),
        protocol,
        hop_limit: b[8],
        traffic_class: b[1],
        dont_fragment: field & ipv4::DONT_FRAGMENT != 0,
        fragment,
        fragment_header: fragment != Fragment::Whole,
        fragment_id: u32::from(u16::from_be_bytes([b[4], b[5]])),
        fragment_place: place as u16,
        header_len,
        packet_len,
        transport_offset,
        options: header_len > ipv4::HEADER,
        source_route,
        routing_header: None,
        authenticated: false,
        extension_headers: 0,
        extension_len: 0,
        transport: parse_transport(
            bytes,
            transport_offset,
            Version::V4,
            protocol,
            (fragment, place),
        )?,
    })
}

/// Walks IPv4 options; whether one is a source route. Bound: 40 bytes, each turn
/// takes at least one.
fn walk_options(mut options: &[u8]) -> Result<bool, ParseError> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    let mut source_route = false;
    while let Some(&kind) = options.first() {
        let length = match kind {
            END => return Ok(source_route),
            NO_OPERATION => 1,
            _ => match options.get(1) {
                Some(&length) if length >= 2 => usize::from(length),
                _ => return Err(ParseError::Options),
            },
        };
        source_route |= matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE);
        options = options.get(length..).ok_or(ParseError::Options)?;
    }
    Ok(source_route)
}

fn parse_ipv6(bytes: Bytes<'_>, at: usize) -> Result<Ip, ParseError> {
    let b: [u8; ipv6::HEADER] = bytes.array(at)?;
    if b[0] >> 4 != 6 {
        return Err(ParseError::Version);
    }
    let packet_len = ipv6::HEADER + usize::from(u16::from_be_bytes([b[4], b[5]]));
    let bytes = bytes.ending(at + packet_len)?;
    let mut ip = Ip {
        version: Version::V6,
        source: field::array(&b, 8).ok_or(ParseError::Truncated)?,
        destination: field::array(&b, 24).ok_or(ParseError::Truncated)?,
        protocol: b[6],
        hop_limit: b[7],
        traffic_class: b[0] << 4 | b[1] >> 4,
        dont_fragment: true,
        fragment: Fragment::Whole,
        fragment_header: false,
        fragment_id: 0,
        fragment_place: 0,
        header_len: ipv6::HEADER,
        packet_len,
        transport_offset: at + ipv6::HEADER,
        options: false,
        source_route: false,
        routing_header: None,
        authenticated: false,
        extension_headers: 0,
        extension_len: 0,
        transport: Transport::Other,
    };
    let place = walk_extensions(bytes, &mut ip)?;
    ip.transport = parse_transport(
        bytes,
        ip.transport_offset,
        Version::V6,
        ip.protocol,
        (ip.fragment, place),
    )?;
    Ok(ip)
}

/// Walks the extension chain from `ip.transport_offset` on; returns the place of
/// a fragment's data in the original packet, bytes.
fn walk_extensions(bytes: Bytes<'_>, ip: &mut Ip) -> Result<usize, ParseError> {
    let mut place = 0;
    // Bound: each turn counts one header, at most MAX_EXTENSION_HEADERS.
    loop {
        let length = match ip.protocol {
            ipv6::HOP_BY_HOP if ip.extension_headers > 0 => return Err(ParseError::ExtensionChain),
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION => {
                let [_, units] = chain(bytes.array(ip.transport_offset), ip)?;
                (usize::from(units) + 1) * 8
            }
            ipv6::AUTHENTICATION => {
                let [_, units] = chain(bytes.array(ip.transport_offset), ip)?;
                (usize::from(units) + 2) * 4
            }
            ipv6::FRAGMENT if ip.fragment_header => return Err(ParseError::ExtensionChain),
            ipv6::FRAGMENT => 8,
            ipv6::MOBILITY | ipv6::HOST_IDENTITY | ipv6::SHIM6 => {
                return Err(ParseError::ExtensionChain);
            }
            _ => return Ok(place),
        };
        ip.extension_headers += 1;
        ip.extension_len += length;
        if guard!("extension-chain")
            && (usize::from(ip.extension_headers) > MAX_EXTENSION_HEADERS
                || ip.extension_len > MAX_EXTENSION_BYTES)
        {
            return Err(ParseError::ExtensionChain);
        }
        let start = ip.transport_offset;
        let end = start + length;
        if end > bytes.end {
            return Err(chain_cut(ip));
        }
        let [next, _, third, fourth] = bytes.array(start)?;
        match ip.protocol {
            ipv6::ROUTING => ip.routing_header = Some(third),
            ipv6::AUTHENTICATION => ip.authenticated = true,
            ipv6::FRAGMENT => {
                let field = u16::from_be_bytes([third, fourth]);
                place = usize::from(field & 0xfff8);
                ip.fragment_header = true;
                ip.fragment_id = u32::from_be_bytes(bytes.array(start + 4)?);
                ip.fragment_place = field & 0xfff8;
                ip.fragment = fragment(place, field & 1 != 0, bytes.end - end)?;
            }
            _ => {}
        }
        ip.protocol = next;
        ip.transport_offset = end;
        if ip.fragment == Fragment::Later {
            return Ok(place);
        }
    }
}

/// A chain cut short: by the packet's end, which in a first fragment has a name.
fn chain<T>(read: Result<T, ParseError>, ip: &Ip) -> Result<T, ParseError> {
    read.map_err(|error| match error {
        ParseError::Truncated => chain_cut(ip),
        other => other,
    })
}

const fn chain_cut(ip: &Ip) -> ParseError {
    match ip.fragment {
        Fragment::First => ParseError::TinyFragment,
        _ => ParseError::Truncated,
    }
}

/// What a fragment of `length` bytes at `place` is, if it can be.
fn fragment(place: usize, more: bool, length: usize) -> Result<Fragment, ParseError> {
    if place == 0 && !more {
        return Ok(Fragment::Whole);
    }
    let impossible = place + length > usize::from(u16::MAX)
        || length == 0
        || (more && !length.is_multiple_of(8));
    if guard!("fragment-place") && impossible {
        return Err(ParseError::Fragment);
    }
    Ok(if place == 0 {
        Fragment::First
    } else {
        Fragment::Later
    })
}

fn parse_transport(
    bytes: Bytes<'_>,
    at: usize,
    version: Version,
    protocol: u8,
    (fragment, place): (Fragment, usize),
) -> Result<Transport, ParseError> {
    if fragment == Fragment::Later {
        // A fragment within the first 60 bytes could overwrite a TCP header that
        // was judged already (RFC 3128): no honest path MTU makes one.
        if guard!("tiny-fragment") && protocol == tcp::PROTOCOL && place < 64 {
            return Err(ParseError::TinyFragment);
        }
        return Ok(Transport::Later);
    }
    let cut = |error| match (error, fragment) {
        (ParseError::Truncated, Fragment::First) => ParseError::TinyFragment,
        (ParseError::Truncated, _) => ParseError::TransportLength,
        (other, _) => other,
    };
    let room = bytes.end.saturating_sub(at);
    match (protocol, version) {
        (tcp::PROTOCOL, _) => {
            let b: [u8; tcp::HEADER] = bytes.array(at).map_err(cut)?;
            let header_len = (b[12] >> 4) * 4;
            if usize::from(header_len) < tcp::HEADER {
                return Err(ParseError::TransportLength);
            }
            if usize::from(header_len) > room {
                return Err(cut(ParseError::Truncated));
            }
            Ok(Transport::Tcp {
                source: u16::from_be_bytes([b[0], b[1]]),
                destination: u16::from_be_bytes([b[2], b[3]]),
                header_len,
                flags: b[13],
            })
        }
        (udp::PROTOCOL, _) => {
            let b: [u8; udp::HEADER] = bytes.array(at).map_err(cut)?;
            let length = u16::from_be_bytes([b[4], b[5]]);
            let long = fragment == Fragment::Whole && usize::from(length) > room;
            if guard!("udp-length") && (usize::from(length) < udp::HEADER || long) {
                return Err(ParseError::TransportLength);
            }
            Ok(Transport::Udp {
                source: u16::from_be_bytes([b[0], b[1]]),
                destination: u16::from_be_bytes([b[2], b[3]]),
                length,
            })
        }
        (icmpv4::PROTOCOL, Version::V4) | (icmpv6::PROTOCOL, Version::V6) => {
            let [kind, code, ..]: [u8; 8] = bytes.array(at).map_err(cut)?;
            Ok(Transport::Icmp { kind, code })
        }
        _ => Ok(Transport::Other),
    }
}
