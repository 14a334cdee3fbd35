//! What a compartment may say to an uplink, whatever its switch is: by frames' bytes, as
//! the standards write them.

use crate::intend::Attachment;
use image::fabric::{TEMPLATE_BYTES, Template};
use std::collections::BTreeSet;
use wire::MacAddress;
use wire::address::{ALL_NODES, link_local, solicited_node, unmapped};

/// Whether what a template lets pass, one of those demands does that the attachment may
/// have.
pub(crate) fn holds(own: &Attachment, template: &Template) -> bool {
    let may = demands(own);
    may.iter().any(|demand| demand.is_met_by(template))
}

/// Each way to speak that an attachment has.
pub(crate) fn demands(own: &Attachment) -> Vec<Demand> {
    let mut may: Vec<Demand> = Vec::new();
    for address in &own.addresses {
        match unmapped(address) {
            Some(four) => may.extend([routed4(own.mac, &four, 32), arp(own.mac, &four)]),
            None => {
                for from in [*address, link_local(MacAddress(own.mac))] {
                    may.extend(icmp6(own.mac, &from));
                }
            }
        }
    }
    for prefix in &own.sources {
        may.push(match prefix.network {
            core::net::IpAddr::V4(a) => routed4(own.mac, &a.octets(), prefix.len),
            core::net::IpAddr::V6(a) => routed6(own.mac, &a.octets(), prefix.len),
        });
    }
    may
}

/// Whether an attachment may send to this group on its uplink: ARP asks everybody
/// (RFC 826), neighbour discovery asks solicited nodes, and answers all nodes who asks
/// without an address (RFC 4861, 7.2).
pub(crate) fn may_ask(own: &Attachment, group: &[u8; 6]) -> bool {
    let speaks = |four: bool| own.addresses.iter().any(|a| unmapped(a).is_some() == four);
    match group {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => speaks(true),
        [0x33, 0x33, 0xff, ..] | [0x33, 0x33, 0, 0, 0, 1] => speaks(false),
        _ => false,
    }
}

/// The groups on an uplink that an attachment listens to.
pub(crate) fn groups(own: &Attachment) -> BTreeSet<[u8; 6]> {
    let mut all = BTreeSet::new();
    for address in &own.addresses {
        if unmapped(address).is_some() {
            all.insert([0xff; 6]);
            continue;
        }
        for group in [
            ALL_NODES,
            solicited_node(address),
            solicited_node(&link_local(MacAddress(own.mac))),
        ] {
            let [.., a, b, c, d] = group;
            all.insert([0x33, 0x33, a, b, c, d]);
        }
    }
    all
}

/// IPv4 from there, as a router forwards it: its source behind 12 bytes of its header (RFC
/// 791), to one station. A time to live of 255 is that of protocols of the link, such as
/// VRRP (RFC 5798), and groups and everybody are from 224 on (RFC 1112, RFC 919): neither is
/// sent on. Nothing of DHCP's, which is UDP to port 67 or 68 (RFC 2131), and no
/// ICMP redirect or router's advertisement, types 5 (RFC 792) and 9 (RFC 1256). Ports and
/// types are in a packet's first fragment, and there where no option moves them.
fn routed4(mac: [u8; 6], source: &[u8; 4], len: u8) -> Demand {
    let mut demand = Demand::speak(mac, [8, 0]);
    demand.station();
    demand.all(14, &[0x45]);
    demand.first(26, source, len.into());
    demand.most = vec![(22, 254), (30, 223)];
    let first = |protocol, kind: &[(usize, u8, u8)]| {
        let first = [(20, 0x1f, 0), (21, 0xff, 0), (23, 0xff, protocol)];
        [&first, kind].concat()
    };
    demand.never = vec![
        first(17, &[(36, 0xff, 0), (37, 0xff, 67)]),
        first(17, &[(36, 0xff, 0), (37, 0xff, 68)]),
        first(1, &[(34, 0xff, 5)]),
        first(1, &[(34, 0xff, 9)]),
    ];
    demand
}

/// IPv6 from there, as a router forwards it: its source behind 8 bytes of its header (RFC
/// 8200), to one station. A hop limit of 255 is neighbour discovery's, in whatever it is
/// wrapped (RFC 4861, 6.1 and 7.1); who gets an address from a DHCP server is spoken to
/// by its address of the link or a group (RFC 8415), fe00::/7; and no message goes to
/// such a client's port, 546, or to a relay's, 547.
fn routed6(mac: [u8; 6], source: &[u8; 16], len: u8) -> Demand {
    let mut demand = Demand::speak(mac, [0x86, 0xdd]);
    demand.station();
    demand.first(14, &[0x60], 4);
    demand.first(22, source, len.into());
    demand.most = vec![(21, 254), (38, 0xfd)];
    demand.never = [34, 35]
        .map(|port| vec![(20, 0xff, 17), (56, 0xff, 2), (57, 0xff, port)])
        .into();
    demand
}

/// ARP has its sender's MAC and address behind 8 bytes (RFC 826).
fn arp(mac: [u8; 6], sender: &[u8; 4]) -> Demand {
    let mut demand = Demand::speak(mac, [8, 6]);
    demand.all(14, &[0, 1, 8, 0, 6, 4]);
    demand.all(22, &mac);
    demand.all(28, sender);
    demand
}

/// What a host says of itself by ICMPv6, which follows its header at once: errors, echo
/// replies, who has an address (135), and that it has its own (136; RFC 4443, RFC 4861).
/// No router's 134 or 137.
fn icmp6(mac: [u8; 6], own: &[u8; 16]) -> [Demand; 4] {
    [
        (0xf8, 0, true),
        (0xff, 129, true),
        (0xff, 135, false),
        (0xff, 136, false),
    ]
    .map(|(mask, kind, station)| {
        let mut demand = Demand::speak(mac, [0x86, 0xdd]);
        demand.first(14, &[0x60], 4);
        demand.all(20, &[58]);
        demand.all(22, own);
        demand.bytes.push((54, mask, kind));
        if station {
            demand.station();
        }
        if kind == 136 {
            demand.all(62, own);
        }
        demand
    })
}

/// What a frame must have and must not.
pub(crate) struct Demand {
    /// Bits that must have values: (place, mask, value).
    pub bytes: Vec<(usize, u8, u8)>,
    /// The most that a byte may be.
    pub most: Vec<(u8, u8)>,
    /// Things that must not be: each by bits that must not all have these values.
    pub never: Vec<Vec<(usize, u8, u8)>>,
}

impl Demand {
    fn speak(mac: [u8; 6], ethertype: [u8; 2]) -> Demand {
        let mut demand = Demand {
            bytes: Vec::new(),
            most: Vec::new(),
            never: Vec::new(),
        };
        demand.all(6, &mac);
        demand.all(12, &ethertype);
        demand
    }
    /// No group's MAC (IEEE 802: the first bit on the wire).
    fn station(&mut self) {
        self.bytes.push((0, 1, 0));
    }
    fn all(&mut self, at: usize, value: &[u8]) {
        self.first(at, value, value.len() * 8);
    }
    fn first(&mut self, at: usize, value: &[u8], bits: usize) {
        for (byte, value) in value.iter().enumerate() {
            let mask = match bits.saturating_sub(byte * 8) {
                0 => continue,
                left @ 1..8 => !(0xffu8 >> left),
                _ => 0xff,
            };
            self.bytes.push((at + byte, mask, value & mask));
        }
    }
    /// Whether a frame is what is meant.
    pub fn is_said_in(&self, head: &[u8; TEMPLATE_BYTES]) -> bool {
        let byte = |at: usize| head.get(at).copied().unwrap_or(0);
        let is = |bits: &[(usize, u8, u8)]| bits.iter().all(|(at, mask, v)| byte(*at) & mask == *v);
        let mut most = self.most.iter();
        is(&self.bytes)
            && most.all(|(at, most)| byte(usize::from(*at)) <= *most)
            && !self.never.iter().any(|never| is(never))
    }
    fn is_met_by(&self, template: &Template) -> bool {
        let demanded = self.bytes.iter().all(|(at, mask, value)| {
            let (Some(own_mask), Some(own)) = (template.mask.get(*at), template.value.get(*at))
            else {
                return false;
            };
            *at < usize::from(template.len) && own_mask & mask == *mask && own & mask == *value
        });
        let bounded = self.most.iter().all(|(at, most)| {
            let mut bounds = template.bounds.iter();
            bounds.any(|bound| bound.at == *at && bound.most <= *most)
        });
        demanded && bounded && self.excepts(template)
    }
    /// Whether the template passes nothing that must never be: what it demands is something
    /// else, or, where all of that is, all that its exception asks for is.
    fn excepts(&self, template: &Template) -> bool {
        let own = |at: usize| {
            let bytes = template.mask.iter().zip(&template.value);
            let mut bytes = bytes.take(template.len.into());
            bytes
                .nth(at)
                .map_or((0, 0), |(mask, value)| (*mask, *value))
        };
        let other = |never: &[(usize, u8, u8)]| {
            never.iter().any(|(at, mask, value)| {
                let (own_mask, is) = own(*at);
                (is ^ value) & own_mask & mask != 0
            })
        };
        let excepted = |never: &[(usize, u8, u8)]| {
            let there = |at: usize| {
                let (own_mask, is) = own(at);
                let known = never.iter().find(|never| never.0 == at);
                known.map_or((own_mask, is), |(_, mask, value)| {
                    (own_mask | mask, is & !mask | value & mask)
                })
            };
            let asked = template.except_mask.iter().zip(&template.except_value);
            template.except_mask.iter().any(|mask| *mask != 0)
                && asked.enumerate().all(|(at, (mask, value))| {
                    let (known, is) = there(at);
                    mask & !known == 0 && is & mask == *value
                })
        };
        let mut never = self.never.iter();
        never.all(|never| other(never) || excepted(never))
    }
}
