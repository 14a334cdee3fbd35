//! A circuit's packets as TCP would have them: Ethernet, IPv4 or IPv6, TCP, with the numbers and
//! checksums that belong there. Pure.

use crate::relay::State;
use command::verbs::Metered;
use wire::address::{Address, unmapped};
use wire::{MacAddress, checksum, ethernet, ipv4, ipv6, tcp};

/// Bytes of one packet's payload at most, as an interface that segments late would have them.
pub const LONGEST: usize = 16 << 10;
/// A header's longest: Ethernet, IPv6, TCP with what a first packet says.
const HEAD: usize = ethernet::HEADER + ipv6::HEADER + tcp::HEADER + OPTIONS;
/// Bytes of those options: the longest payload, and by how much windows are shifted.
const OPTIONS: usize = 8;
/// So that no window is ever full: who reads too slowly is seen by what is not acknowledged.
const SHIFT: u8 = 10;

/// Who a circuit is between: who began it first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Their slots.
    pub slots: [u32; 2],
    /// Host-wide ids of their endpoints.
    pub endpoints: [u32; 2],
    addresses: [Address; 2],
    ports: [u16; 2],
    macs: [MacAddress; 2],
    /// The number before each one's first byte.
    first: [u32; 2],
}

impl Named {
    /// As the operator says; `None`: it is of a release that does not.
    pub fn of(body: &Metered) -> Option<Named> {
        let mac = |at: usize| match body.macs[at] {
            [0, 0, 0, 0, 0, 0] => {
                let [a, b, c, d] = body.endpoints[at].to_be_bytes();
                MacAddress([2, 0, a, b, c, d])
            }
            mac => MacAddress(mac),
        };
        // The same ports again are another connection.
        let first = (body.id as u32).wrapping_mul(0x9e37_79b1);
        (body.endpoints != [0; 2]).then(|| Named {
            slots: [body.from, body.to],
            endpoints: body.endpoints,
            addresses: body.addresses,
            ports: body.ports.map(|port| port as u16),
            macs: [mac(0), mac(1)],
            first: [first, first.rotate_left(16) ^ 0x5bd1_e995],
        })
    }

    /// Which side the endpoint in this slot is.
    pub fn side_of(&self, slot: u32) -> Option<usize> {
        self.slots.iter().position(|of| *of == slot)
    }
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SYN.
    Asks,
    /// SYN and ACK.
    Answers,
    /// Bytes, of which more follow at once, or what has come.
    Plain,
    /// Bytes that are all for now.
    Last,
    /// FIN.
    Ends,
    /// RST.
    Resets,
}

/// One packet.
pub struct Frame<'a> {
    /// Of which circuit.
    pub named: &'a Named,
    /// Who sends it: 0 began the circuit.
    pub side: usize,
    /// What for.
    pub kind: Kind,
    /// How far each direction is, before this packet: the first is what the first side sends.
    pub states: [State; 2],
}

impl Frame<'_> {
    /// Its headers before this payload, and how long they are.
    pub fn head(&self, payload: &[u8]) -> ([u8; HEAD], usize) {
        let mut head = [0; HEAD];
        let length = self.emit(&mut head, payload).unwrap_or(0);
        (head, length)
    }

    fn emit(&self, head: &mut [u8; HEAD], payload: &[u8]) -> Option<usize> {
        let (own, other) = (self.side.min(1), 1 - self.side.min(1));
        let Named {
            addresses,
            ports,
            macs,
            ..
        } = self.named;
        let (source, destination) = (addresses.get(own)?, addresses.get(other)?);
        let header = self.tcp(*ports.get(own)?, *ports.get(other)?)?;
        let length = usize::from(header.header_len) + payload.len();
        let four = [source, destination].map(unmapped);
        let link = |ethertype| {
            Some(ethernet::Header::new(
                *macs.get(other)?,
                *macs.get(own)?,
                ethertype,
            ))
        };
        let at = match four {
            [Some(source), Some(destination)] => {
                let at = link(ethernet::IPV4)?.emit(head).ok()?;
                let ip = ipv4::Header {
                    payload_len: length as u16,
                    ..ipv4::Header::new(source, destination, tcp::PROTOCOL)
                };
                at + ip.emit(head.get_mut(at..)?).ok()?
            }
            _ => {
                let at = link(ethernet::IPV6)?.emit(head).ok()?;
                let ip = ipv6::Header {
                    payload_len: length as u16,
                    ..ipv6::Header::new(*source, *destination, tcp::PROTOCOL)
                };
                at + ip.emit(head.get_mut(at..)?).ok()?
            }
        };
        let end = at + header.emit(head.get_mut(at..)?).ok()?;
        if header.flags & tcp::SYN != 0 {
            let [a, b] = (LONGEST as u16).to_be_bytes();
            let options = [2, 4, a, b, 1, 3, 3, SHIFT];
            head.get_mut(at + tcp::HEADER..end)?
                .copy_from_slice(&options);
        }
        let sum = checksum::pseudo(source, destination, tcp::PROTOCOL, length);
        let sum = sum.bytes(head.get(at..end)?).bytes(payload).finish();
        let field = at + tcp::CHECKSUM;
        head.get_mut(field..field + 2)?
            .copy_from_slice(&sum.to_be_bytes());
        Some(end)
    }

    fn tcp(&self, source: u16, destination: u16) -> Option<tcp::Header> {
        let (own, other) = (self.side.min(1), 1 - self.side.min(1));
        let (sends, hears) = (self.states.get(own)?, self.states.get(other)?);
        let [first, theirs] = [own, other].map(|side| self.named.first.get(side).copied());
        let (first, theirs) = (first?, theirs?);
        let begun = |first: u32, bytes: u64, ended: bool| {
            let after = first.wrapping_add(1).wrapping_add(bytes as u32);
            after.wrapping_add(ended.into())
        };
        let (sequence, flags) = match self.kind {
            Kind::Asks => (first, tcp::SYN),
            Kind::Answers => (first, tcp::SYN | tcp::ACK),
            Kind::Plain => (begun(first, sends.taken, sends.ended), tcp::ACK),
            Kind::Last => (begun(first, sends.taken, sends.ended), tcp::PSH | tcp::ACK),
            Kind::Ends => (begun(first, sends.taken, sends.ended), tcp::FIN | tcp::ACK),
            Kind::Resets => (begun(first, sends.taken, sends.ended), tcp::RST | tcp::ACK),
        };
        let acknowledgement = match self.kind {
            Kind::Asks => 0,
            _ => begun(theirs, hears.handed, hears.told),
        };
        let options = if flags & tcp::SYN != 0 { OPTIONS } else { 0 };
        Some(tcp::Header {
            source,
            destination,
            sequence,
            acknowledgement,
            header_len: (tcp::HEADER + options) as u8,
            flags,
            window: u16::MAX,
        })
    }
}
