//! A frame that gets past a template toward an uplink that demands too little.

use crate::intend::Attachment;
use crate::uplinks::Demand;
use image::fabric::{TEMPLATE_BYTES, Template};
use wire::Tuple;
use wire::address::unmapped;

/// A frame's first bytes.
pub(crate) type Head = [u8; TEMPLATE_BYTES];

/// A station that nobody is asked about.
pub(crate) const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// A frame that a template lets out and none of these demands does; `None`: there is none
/// that differs by one thing from what the attachment itself says.
pub(crate) fn forged(own: &Attachment, template: &Template, demands: &[Demand]) -> Option<Head> {
    let mut head = said(own, template);
    let len = usize::from(template.len);
    let bits = template.mask.iter().zip(&template.value).take(len);
    for (byte, (mask, value)) in head.iter_mut().zip(bits) {
        *byte = *byte & !mask | value;
    }
    let is_forged = |head: &Head| {
        lets_out(template, head) && !demands.iter().any(|demand| demand.is_said_in(head))
    };
    if is_forged(&head) {
        return Some(head);
    }
    let all = || demands.iter();
    let bit = all().flat_map(|demand| &demand.bytes);
    let bit = bit.filter_map(|(at, mask, _)| {
        let demanded = template.mask.get(*at).filter(|_| *at < len);
        let bits = mask & !demanded.copied().unwrap_or(0);
        let mut other = head;
        *other.get_mut(*at)? ^= bits & bits.wrapping_neg();
        Some(other)
    });
    let over = all().flat_map(|demand| &demand.most);
    let over = over.filter_map(|(at, most)| {
        let mut other = head;
        *other.get_mut(usize::from(*at))? = most.checked_add(1)?;
        Some(other)
    });
    let never = all().flat_map(|demand| &demand.never);
    let never = never.filter_map(|never| {
        let mut other = head;
        for (at, mask, value) in never {
            let byte = other.get_mut(*at)?;
            *byte = *byte & !mask | value;
        }
        Some(other)
    });
    bit.chain(over).chain(never).find(is_forged)
}

/// Whether a frame gets past a template, as the fabric looks at it.
fn lets_out(template: &Template, head: &Head) -> bool {
    let is = |mask: &Head, value: &Head| {
        let mut bits = head.iter().zip(mask.iter().zip(value));
        bits.all(|(byte, (mask, value))| byte & mask == *value)
    };
    let Template {
        bounds,
        except_mask,
        except_value,
        ..
    } = template;
    let over = |at: u8, most: u8| head.get(usize::from(at)).is_none_or(|byte| *byte > most);
    is(&template.mask, &template.value)
        && !bounds.iter().any(|b| b.at != 0 && over(b.at, b.most))
        && !(except_mask.iter().any(|mask| *mask != 0) && is(except_mask, except_value))
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
