//! What a compartment's frames must say to leave by an uplink, and a frame that gets past a
//! template that demands less.

use crate::intend::Attachment;
use core::net::IpAddr;
use image::fabric::{TEMPLATE_BYTES, Template};
use wire::address::{link_local, unmapped};
use wire::{MacAddress, Tuple};

/// A frame's first bytes.
pub(crate) type Head = [u8; TEMPLATE_BYTES];

/// A station that nobody is asked about.
pub(crate) const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Each way to speak that an attachment has: a template demands at least one of these whole,
/// the full source MAC and a source of its own.
pub(crate) fn demands(own: &Attachment) -> Vec<Demand> {
    let mut may: Vec<Demand> = Vec::new();
    for address in &own.addresses {
        match unmapped(address) {
            Some(four) => {
                may.push(Demand::four(own.mac, &four, 32));
                may.push(Demand::arp(own.mac, &four));
            }
            None => {
                may.push(Demand::six(own.mac, address, 128));
                may.push(Demand::six(own.mac, &link_local(MacAddress(own.mac)), 128));
            }
        }
    }
    for prefix in &own.sources {
        may.push(match prefix.network {
            IpAddr::V4(a) => Demand::four(own.mac, &a.octets(), prefix.len),
            IpAddr::V6(a) => Demand::six(own.mac, &a.octets(), prefix.len),
        });
    }
    may
}

/// Bits of a frame that must have values.
pub(crate) struct Demand {
    /// (place, mask, value).
    bytes: Vec<(usize, u8, u8)>,
}

impl Demand {
    fn speak(mac: [u8; 6], ethertype: [u8; 2]) -> Demand {
        let mut demand = Demand { bytes: Vec::new() };
        demand.all(6, &mac);
        demand.all(12, &ethertype);
        demand
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
    /// IPv4 has its source behind 12 bytes of its header (RFC 791), IPv6 behind 8 (RFC
    /// 8200), ARP its sender's behind 8 (RFC 826).
    fn four(mac: [u8; 6], source: &[u8; 4], len: u8) -> Demand {
        let mut demand = Demand::speak(mac, [8, 0]);
        demand.first(14, &[0x40], 4);
        demand.first(26, source, len.into());
        demand
    }
    fn six(mac: [u8; 6], source: &[u8; 16], len: u8) -> Demand {
        let mut demand = Demand::speak(mac, [0x86, 0xdd]);
        demand.first(14, &[0x60], 4);
        demand.first(22, source, len.into());
        demand
    }
    fn arp(mac: [u8; 6], sender: &[u8; 4]) -> Demand {
        let mut demand = Demand::speak(mac, [8, 6]);
        demand.all(14, &[0, 1, 8, 0, 6, 4]);
        demand.all(22, &mac);
        demand.all(28, sender);
        demand
    }
    pub fn is_met_by(&self, template: &Template) -> bool {
        self.bytes.iter().all(|(at, mask, value)| {
            let (Some(own_mask), Some(own)) = (template.mask.get(*at), template.value.get(*at))
            else {
                return false;
            };
            *at < usize::from(template.len) && own_mask & mask == *mask && own & mask == *value
        })
    }
    fn is_said_in(&self, head: &Head) -> bool {
        let mut all = self.bytes.iter();
        all.all(|(at, mask, value)| head.get(*at).is_some_and(|byte| byte & mask == *value))
    }
}

/// A frame that a template lets out and none of these demands does; `None`: there is none
/// that differs by one bit from what the attachment itself says.
pub(crate) fn forged(own: &Attachment, template: &Template, demands: &[Demand]) -> Option<Head> {
    let mut head = said(own, template);
    let len = usize::from(template.len);
    let bits = template.mask.iter().zip(&template.value).take(len);
    for (byte, (mask, value)) in head.iter_mut().zip(bits) {
        *byte = *byte & !mask | value;
    }
    let is_forged = |head: &Head| !demands.iter().any(|demand| demand.is_said_in(head));
    if is_forged(&head) {
        return Some(head);
    }
    let free = demands.iter().flat_map(|demand| &demand.bytes);
    free.filter_map(|(at, mask, _)| {
        let demanded = template.mask.get(*at).filter(|_| *at < len);
        let bits = mask & !demanded.copied().unwrap_or(0);
        let mut other = head;
        *other.get_mut(*at)? ^= bits & bits.wrapping_neg();
        Some(other)
    })
    .find(is_forged)
}

/// What the attachment itself says, of the kind of packet that the template is for.
fn said(own: &Attachment, template: &Template) -> Head {
    let speaks = |v4: bool| own.addresses.iter().find(|a| unmapped(a).is_some() == v4);
    let four = speaks(true).and_then(unmapped).unwrap_or([0; 4]);
    let six = speaks(false).copied().unwrap_or([0; 16]);
    let kind = match template.value.get(12..14) {
        Some(&[high, low]) => [high, low],
        _ => [0; 2],
    };
    let mut head = link(STATION, own.mac, kind);
    // RFC 826; RFC 8200, section 3; RFC 791, section 3.1.
    match kind {
        [8, 6] => {
            put(&mut head, 14, &[0, 1, 8, 0, 6, 4, 0, 1]);
            put(&mut head, 22, &own.mac);
            put(&mut head, 28, &four);
        }
        [0x86, 0xdd] => {
            put(&mut head, 14, &[0x60, 0, 0, 0, 0, 20, 6, 64]);
            put(&mut head, 22, &six);
            put(&mut head, 38, &[0x20, 1, 0xd, 0xb8]);
            put(&mut head, 54, &[4, 0, 0, 80]);
        }
        _ => {
            put(&mut head, 14, &[0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6]);
            put(&mut head, 26, &four);
            put(&mut head, 30, &[198, 51, 100, 1]);
            put(&mut head, 34, &[4, 0, 0, 80]);
        }
    }
    head
}

/// A frame with an Ethernet header.
pub(crate) fn link(to: [u8; 6], from: [u8; 6], kind: [u8; 2]) -> Head {
    let mut head = [0; TEMPLATE_BYTES];
    put(&mut head, 0, &to);
    put(&mut head, 6, &from);
    put(&mut head, 12, &kind);
    head
}

fn put(head: &mut Head, at: usize, bytes: &[u8]) {
    let place = head.iter_mut().skip(at);
    place.zip(bytes).for_each(|(to, from)| *to = *from);
}

/// The packet in a frame, if it is IP's.
pub(crate) fn packet(head: &Head) -> Option<Tuple> {
    let part = |at: usize, len: usize| head.get(at..at + len);
    let port = |at: usize| Some(u16::from_be_bytes(part(at, 2)?.try_into().ok()?));
    let four = |at: usize| Some(wire::address::mapped(part(at, 4)?.try_into().ok()?));
    let six = |at: usize| part(at, 16)?.try_into().ok();
    let (source, destination, protocol, ports) = match part(12, 2)? {
        [8, 0] => (four(26)?, four(30)?, *head.get(23)?, 34),
        [0x86, 0xdd] => (six(22)?, six(38)?, *head.get(20)?, 54),
        _ => return None,
    };
    Some(Tuple {
        source,
        destination,
        source_port: port(ports)?,
        destination_port: port(ports + 2)?,
        protocol,
    })
}
