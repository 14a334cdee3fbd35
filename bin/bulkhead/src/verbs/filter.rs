//! `capture --filter`: which frames of a pcapng stream to keep.
//!
//! The expression is a list of terms that must all hold. Frames are parsed by the
//! same code as the data path's; one that does not parse matches no term but the
//! empty filter, so captures of malformed frames take no filter.

use std::net::IpAddr;
use wire::parse::{Network, Transport, Version};

/// Terms that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Arp,
    Ip4,
    Ip6,
    Tcp,
    Udp,
    Icmp,
    Host([u8; 16]),
    Port(u16),
}

/// No frame is both.
const NEVER_BOTH: [(Term, Term, &str); 9] = [
    (Term::Tcp, Term::Udp, "tcp and udp"),
    (Term::Tcp, Term::Icmp, "tcp and icmp"),
    (Term::Udp, Term::Icmp, "udp and icmp"),
    (Term::Ip4, Term::Ip6, "ip and ip6"),
    (Term::Arp, Term::Ip4, "arp and ip"),
    (Term::Arp, Term::Ip6, "arp and ip6"),
    (Term::Arp, Term::Tcp, "arp and tcp"),
    (Term::Arp, Term::Udp, "arp and udp"),
    (Term::Arp, Term::Icmp, "arp and icmp"),
];

impl std::str::FromStr for Filter {
    type Err = String;
    fn from_str(text: &str) -> Result<Filter, String> {
        let mut words = text.split_whitespace().peekable();
        let mut terms = Vec::new();
        if words.peek().is_none() {
            return Err("it is empty: without a filter all frames are kept".into());
        }
        while let Some(word) = words.next() {
            terms.push(match word {
                "arp" => Term::Arp,
                "ip" => Term::Ip4,
                "ip6" => Term::Ip6,
                "tcp" => Term::Tcp,
                "udp" => Term::Udp,
                "icmp" => Term::Icmp,
                "host" => {
                    let address = words.next().unwrap_or_default();
                    match address.parse() {
                        Ok(IpAddr::V4(address)) => Term::Host(address.to_ipv6_mapped().octets()),
                        Ok(IpAddr::V6(address)) => Term::Host(address.octets()),
                        Err(_) => return Err(format!("`host {address}`: not an address")),
                    }
                }
                "port" => {
                    let port = words.next().unwrap_or_default();
                    Term::Port(port.parse().map_err(|_| format!("`port {port}`: not a port"))?)
                }
                other => return Err(format!("`{other}`: not one of arp, ip, ip6, tcp, udp, icmp, host ADDRESS, port NUMBER")),
            });
            // Between two terms, where it may also be left out.
            if words.next_if_eq(&"and").is_some() && words.peek().is_none() {
                return Err("`and`: another term is to follow".into());
            }
        }
        for (one, other, names) in NEVER_BOTH {
            if terms.contains(&one) && terms.contains(&other) {
                return Err(format!("no frame is both {names}"));
            }
        }
        let is_port = |term: &Term| matches!(term, Term::Port(_));
        if terms.contains(&Term::Arp) && terms.iter().any(is_port) {
            return Err("no frame of arp has a port".into());
        }
        Ok(Filter { terms })
    }
}

impl Filter {
    /// Whether a frame of `original_len` bytes, of which these are the first, is kept.
    pub fn keeps(&self, bytes: &[u8], original_len: usize) -> bool {
        if self.terms.is_empty() {
            return true;
        }
        let Ok(parsed) = wire::parse(bytes, original_len) else {
            return false;
        };
        self.terms.iter().all(|term| match (&parsed.network, term) {
            (Network::Arp(_), Term::Arp) => true,
            (Network::Arp(arp), Term::Host(host)) => {
                let mapped =
                    |address: [u8; 4]| std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
                mapped(arp.sender) == *host || mapped(arp.target) == *host
            }
            (Network::Ip(ip), term) => match (term, ip.transport) {
                (Term::Ip4, _) => ip.version == Version::V4,
                (Term::Ip6, _) => ip.version == Version::V6,
                (Term::Host(host), _) => ip.source == *host || ip.destination == *host,
                (Term::Tcp, Transport::Tcp { .. })
                | (Term::Udp, Transport::Udp { .. })
                | (Term::Icmp, Transport::Icmp { .. }) => true,
                (
                    Term::Port(port),
                    Transport::Tcp {
                        source,
                        destination,
                        ..
                    }
                    | Transport::Udp {
                        source,
                        destination,
                        ..
                    },
                ) => source == *port || destination == *port,
                _ => false,
            },
            _ => false,
        })
    }
}

/// Cuts a pcapng stream (little-endian, as ours is) into blocks and keeps those
/// that are no packets, or packets that the filter keeps.
#[derive(Debug, Default)]
pub struct Blocks {
    rest: Vec<u8>,
    /// Packets that passed.
    pub packets: u64,
    /// Packets that came too fast to be in the stream, as it says itself.
    pub lost: u64,
}

/// Kind of a block with a frame.
pub const ENHANCED_PACKET: u32 = 6;
/// Kind of a block that says what was lost.
const STATISTICS: u32 = 5;
/// Its option that does, and of how many bytes: isb_ifdrop, since the capture began.
const LOST: u32 = 5 | 8 << 16;
/// Longest block: a frame of 64 KiB and its options.
const LONGEST_BLOCK: usize = 128 << 10;

impl Blocks {
    /// The bytes to write for these bytes; at most `most` packets in all. `None` =
    /// the stream is not pcapng.
    pub fn take(&mut self, bytes: &[u8], filter: &Filter, most: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        cut(&mut self.rest, bytes, |kind, block| {
            if kind == STATISTICS && word(block, 20) == Some(LOST) {
                let [low, high] = [24, 28].map(|at| u64::from(word(block, at).unwrap_or(0)));
                self.lost = low | high << 32;
            }
            if kind != ENHANCED_PACKET {
                out.extend_from_slice(block);
            } else if self.packets < most && kept(block, filter) {
                self.packets += 1;
                out.extend_from_slice(block);
            }
        })?;
        Some(out)
    }
}

/// Visits the blocks that these bytes complete, and keeps the rest. `None` = the stream is
/// not pcapng.
pub fn cut(rest: &mut Vec<u8>, bytes: &[u8], mut visit: impl FnMut(u32, &[u8])) -> Option<()> {
    rest.extend_from_slice(bytes);
    let mut at = 0;
    while let (Some(kind), Some(length)) = (word(rest, at), word(rest, at + 4)) {
        let length = usize::try_from(length).ok()?;
        if !(12..=LONGEST_BLOCK).contains(&length) || length % 4 != 0 {
            return None;
        }
        let Some(block) = rest.get(at..at + length) else {
            break;
        };
        visit(kind, block);
        at += length;
    }
    rest.drain(..at);
    Some(())
}

fn kept(block: &[u8], filter: &Filter) -> bool {
    let (Some(captured), Some(original)) = (word(block, 20), word(block, 24)) else {
        return false;
    };
    let frame = block.get(28..28 + captured as usize).unwrap_or_default();
    filter.keeps(frame, original as usize)
}

/// A word of a block.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP 10.1.1.10:5000 → 10.1.1.11:53, as etherparse would write it.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let mut ip = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 1, 10, 10, 1, 1, 11,
        ];
        let sum: u32 = ip
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        frame.extend([0x13, 0x88, 0, 53, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn terms_must_all_hold() {
        for (filter, kept) in [
            ("udp", true),
            ("udp and port 53", true),
            ("host 10.1.1.10 and port 5000", true),
            ("ip udp host 10.1.1.11", true),
            ("tcp", false),
            ("udp and port 54", false),
            ("host fd00::1", false),
            ("ip6", false),
            ("arp", false),
        ] {
            assert_eq!(
                filter.parse::<Filter>().unwrap().keeps(&frame(), 42),
                kept,
                "{filter}"
            );
        }
        assert!(Filter::default().keeps(&frame(), 42));
        for (filter, says) in [
            ("host 10.1.1", "not an address"),
            ("", "empty"),
            (" ", "empty"),
            ("and", "`and`: not one of"),
            ("and tcp", "`and`: not one of"),
            ("tcp and", "another term"),
            ("tcp and and port 80", "`and`: not one of"),
            ("udp port 9 and tcp", "tcp and udp"),
            ("ip6 arp", "arp and ip6"),
            ("arp port 9", "has a port"),
        ] {
            let said = filter.parse::<Filter>().unwrap_err();
            assert!(said.contains(says), "{filter}: {said}");
        }
        assert!(
            "vlan 3"
                .parse::<Filter>()
                .unwrap_err()
                .contains("not one of")
        );
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (12 + body.len()) as u32;
        [
            &kind.to_le_bytes()[..],
            &length.to_le_bytes(),
            body,
            &length.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn blocks_are_cut_and_counted_wherever_the_bytes_break() {
        let mut packet = [0, 0, 0, 42, 42].map(u32::to_le_bytes).concat();
        packet.extend(frame());
        packet.extend([0, 0]);
        let stream = [
            block(0x0A0D_0D0A, &[0; 16]),
            block(6, &packet),
            block(5, &[0, 0, 0, LOST, 3, 1, 0].map(u32::to_le_bytes).concat()),
            block(6, &packet),
        ]
        .concat();
        for cut in 0..stream.len() {
            let mut blocks = Blocks::default();
            let mut out = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                out.extend(blocks.take(part, &"udp".parse().unwrap(), 1).unwrap());
            }
            let whole = (out.len(), blocks.packets, blocks.lost);
            assert_eq!(whole, (28 + 76 + 40, 1, 3 + (1 << 32)), "cut at {cut}");
        }
        assert!(
            Blocks::default()
                .take(&[0xff; 64], &Filter::default(), 1)
                .is_none()
        );
    }
}
