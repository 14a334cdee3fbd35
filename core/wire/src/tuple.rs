//! The five things about a packet that rules and connections go by.

use crate::address::Address;
use crate::parse::{Ip, Transport, Version};
use crate::{field, icmpv4, icmpv6};

/// Who speaks to whom by what, as the packet says it.
///
/// Ports are 0 where the protocol has none. What ICMP puts in their place depends on
/// who asks: see [`Tuple::of_rules`] and [`Tuple::of_connection`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Source, IPv4 in its ::ffff: form.
    pub source: Address,
    /// Destination.
    pub destination: Address,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

impl Tuple {
    /// What rules look at: an ICMP message's destination port is its type and code
    /// (`type << 8 | code`), its source port 0. `None`: a later fragment, which names
    /// neither.
    pub const fn of_rules(ip: &Ip) -> Option<Tuple> {
        let (source_port, destination_port) = match ip.transport {
            Transport::Tcp {
                source,
                destination,
                ..
            }
            | Transport::Udp {
                source,
                destination,
                ..
            } => (source, destination),
            Transport::Icmp { kind, code } => (0, (kind as u16) << 8 | code as u16),
            Transport::Other => (0, 0),
            Transport::Later => return None,
        };
        Some(Tuple {
            source: ip.source,
            destination: ip.destination,
            source_port,
            destination_port,
            protocol: ip.protocol,
        })
    }

    /// What names a connection: an echo request has its identifier as source port and
    /// 0 as destination port, its reply the reverse. `None`: a later fragment, or an
    /// ICMP message that begins and answers nothing. `head` is the private copy that
    /// was parsed.
    pub fn of_connection(ip: &Ip, head: &[u8]) -> Option<Tuple> {
        let tuple = Tuple::of_rules(ip)?;
        let Transport::Icmp { kind, code: 0 } = ip.transport else {
            return match ip.transport {
                Transport::Icmp { .. } => None,
                _ => Some(tuple),
            };
        };
        let id = u16::from_be_bytes(field::array(head, ip.transport_offset + 4)?);
        let (source_port, destination_port) = match (ip.version, kind) {
            (Version::V4, icmpv4::ECHO_REQUEST) | (Version::V6, icmpv6::ECHO_REQUEST) => (id, 0),
            (Version::V4, icmpv4::ECHO_REPLY) | (Version::V6, icmpv6::ECHO_REPLY) => (0, id),
            _ => return None,
        };
        Some(Tuple {
            source_port,
            destination_port,
            ..tuple
        })
    }

    /// The tuple of the answers.
    #[must_use]
    pub const fn reversed(self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }
}
