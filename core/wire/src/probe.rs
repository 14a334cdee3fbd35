//! Packets to try a way with: the first of a conversation, and what would answer it.

use crate::address::{self, MacAddress, unmapped};
use crate::parse::{Fragment, Transport, Version, parse};
use crate::{
    NoRoom, Tuple, build, checksum, ethernet, field, icmpv4, icmpv6, ipv4, ipv6, tcp, udp,
};

/// A packet to be built; its data are zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Source MAC.
    pub source: MacAddress,
    /// Destination MAC.
    pub destination: MacAddress,
    /// As rules see it: of ICMP the destination port is `type << 8 | code`.
    pub tuple: Tuple,
    /// TCP's flags.
    pub flags: u8,
    /// TCP's sequence number; an echo's identifier (upper half) and number.
    pub sequence: u32,
    /// TCP's acknowledgement number.
    pub acknowledgement: u32,
    /// Bytes of data.
    pub data: usize,
}

impl Probe {
    /// The first packet of a conversation: a SYN, an echo request with this number, or
    /// whatever the tuple says.
    pub const fn first(
        source: MacAddress,
        destination: MacAddress,
        tuple: Tuple,
        number: u32,
    ) -> Probe {
        Probe {
            source,
            destination,
            tuple,
            flags: tcp::SYN,
            sequence: number,
            acknowledgement: 0,
            data: 0,
        }
    }

    /// Bytes of its IP packet without data.
    pub const fn least(&self) -> usize {
        let ip = match unmapped(&self.tuple.source) {
            Some(_) => ipv4::HEADER,
            None => ipv6::HEADER,
        };
        ip + self.header()
    }

    /// What would answer a frame: SYN and ACK, an echo reply, the same protocol the other
    /// way round. `None`: nothing would (it does not parse, is a group's, a fragment, an
    /// ICMP message that is no echo request, or a RST).
    pub fn answer(frame: &[u8]) -> Option<Probe> {
        let head = frame.get(..frame.len().min(crate::parse::HEAD))?;
        let parsed = parse(head, frame.len()).ok()?;
        let ip = parsed.ip()?;
        let many = parsed.destination.is_group() || address::is_multicast(&ip.destination);
        if many || ip.fragment != Fragment::Whole {
            return None;
        }
        let tuple = Tuple::of_rules(ip)?;
        let answer = Probe {
            source: parsed.destination,
            destination: parsed.source,
            tuple: tuple.reversed(),
            flags: 0,
            sequence: 0,
            acknowledgement: 0,
            data: 0,
        };
        match ip.transport {
            Transport::Tcp {
                flags, header_len, ..
            } => {
                let header = tcp::Header::parse(head.get(ip.transport_offset..)?).ok()?;
                if flags & tcp::RST != 0 {
                    return None;
                }
                let end = ip.transport_offset + usize::from(header_len);
                let data = parsed.packet_end.saturating_sub(end) as u32;
                let begins = flags & (tcp::SYN | tcp::ACK) == tcp::SYN;
                let counts = u32::from(flags & tcp::SYN != 0) + u32::from(flags & tcp::FIN != 0);
                Some(Probe {
                    flags: tcp::ACK | if begins { tcp::SYN } else { 0 },
                    // What it begins with is its own choice.
                    sequence: match begins {
                        true => !header.sequence,
                        false => header.acknowledgement,
                    },
                    acknowledgement: header.sequence.wrapping_add(data).wrapping_add(counts),
                    ..answer
                })
            }
            Transport::Icmp { kind, code: 0 } => {
                let reply = match (ip.version, kind) {
                    (Version::V4, icmpv4::ECHO_REQUEST) => icmpv4::ECHO_REPLY,
                    (Version::V6, icmpv6::ECHO_REQUEST) => icmpv6::ECHO_REPLY,
                    _ => return None,
                };
                let number = field::array(head, ip.transport_offset + 4)?;
                Some(Probe {
                    tuple: Tuple {
                        source_port: 0,
                        destination_port: u16::from(reply) << 8,
                        ..answer.tuple
                    },
                    sequence: u32::from_be_bytes(number),
                    ..answer
                })
            }
            Transport::Icmp { .. } | Transport::Later => None,
            Transport::Udp { .. } | Transport::Other => Some(answer),
        }
    }

    /// Writes the frame, its checksums complete, to the start of `buffer`; returns its
    /// length.
    ///
    /// # Errors
    /// [`NoRoom`]: the buffer is too short, or the packet too long for its length field.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let tuple = &self.tuple;
        let addresses = unmapped(&tuple.source).zip(unmapped(&tuple.destination));
        let ethertype = match addresses {
            Some(_) => ethernet::IPV4,
            None => ethernet::IPV6,
        };
        let link = ethernet::Header::new(self.destination, self.source, ethertype);
        let (start, end) = match addresses {
            Some((source, destination)) => {
                let ip = ipv4::Header::new(source, destination, tuple.protocol);
                let end = build::ipv4(buffer, &link, &ip, |body| self.body(body))?;
                (link.len() + ipv4::HEADER, end)
            }
            None => {
                let ip = ipv6::Header::new(tuple.source, tuple.destination, tuple.protocol);
                let end = build::ipv6(buffer, &link, &ip, |body| self.body(body))?;
                (link.len() + ipv6::HEADER, end)
            }
        };
        let short = NoRoom { needed: end };
        let message = buffer.get_mut(start..end).ok_or(short)?;
        let pseudo = |message: &[u8]| {
            let (from, to) = (&tuple.source, &tuple.destination);
            let sum = checksum::pseudo(from, to, tuple.protocol, message.len());
            sum.bytes(message).finish()
        };
        let (at, sum) = match (tuple.protocol, addresses) {
            (tcp::PROTOCOL, _) => (tcp::CHECKSUM, pseudo(message)),
            // None is written as 0 (RFC 768).
            (udp::PROTOCOL, _) => match pseudo(message) {
                0 => (udp::CHECKSUM, u16::MAX),
                sum => (udp::CHECKSUM, sum),
            },
            (icmpv4::PROTOCOL, Some(_)) => (ICMP_CHECKSUM, checksum::internet(message)),
            (icmpv6::PROTOCOL, None) => (ICMP_CHECKSUM, pseudo(message)),
            _ => return Ok(end),
        };
        field::put(message, at, &sum.to_be_bytes()).ok_or(short)?;
        Ok(end)
    }

    /// Bytes of layer 4 before the data.
    const fn header(&self) -> usize {
        match (self.tuple.protocol, unmapped(&self.tuple.source)) {
            (tcp::PROTOCOL, _) => tcp::HEADER,
            (udp::PROTOCOL, _) => udp::HEADER,
            (icmpv4::PROTOCOL, Some(_)) | (icmpv6::PROTOCOL, None) => icmpv4::HEADER,
            _ => 0,
        }
    }

    fn body(&self, body: &mut [u8]) -> Result<usize, NoRoom> {
        let length = self.header() + self.data;
        let body = body.get_mut(..length).ok_or(NoRoom { needed: length })?;
        body.fill(0);
        let tuple = &self.tuple;
        match (tuple.protocol, unmapped(&tuple.source)) {
            (tcp::PROTOCOL, _) => {
                let header = tcp::Header {
                    source: tuple.source_port,
                    destination: tuple.destination_port,
                    sequence: self.sequence,
                    acknowledgement: self.acknowledgement,
                    header_len: tcp::HEADER as u8,
                    flags: self.flags,
                    window: WINDOW,
                };
                header.emit(body)?;
            }
            (udp::PROTOCOL, _) => {
                let header = udp::Header {
                    source: tuple.source_port,
                    destination: tuple.destination_port,
                    length: u16::try_from(length).map_err(|_| NoRoom { needed: length })?,
                };
                header.emit(body)?;
            }
            (icmpv4::PROTOCOL, Some(_)) | (icmpv6::PROTOCOL, None) => {
                let [kind, code] = tuple.destination_port.to_be_bytes();
                let short = NoRoom { needed: length };
                field::put(body, 0, &[kind, code]).ok_or(short)?;
                field::put(body, 4, &self.sequence.to_be_bytes()).ok_or(short)?;
            }
            _ => {}
        }
        Ok(length)
    }
}

/// Offset of the checksum in an ICMP header.
const ICMP_CHECKSUM: usize = 2;
/// TCP's window.
const WINDOW: u16 = 64_240;
