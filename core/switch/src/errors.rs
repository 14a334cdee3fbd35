//! ICMP errors, in both families (RFC 792, RFC 1812, RFC 4443).

use crate::Output;
use crate::decision::Refusal;
use crate::frame::{Face, Frame};
use telemetry::counters::Counter;
use wire::address::unmapped;
use wire::parse::{Ip, Version};
use wire::{build, ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// The longest error: what fits the smallest IPv6 MTU.
const LONGEST: usize = ethernet::HEADER + ipv6::MIN_MTU as usize;

/// Tells the sender of a packet, in the name of `frame.face`, why it was refused.
/// `head` is the frame's head as it came in.
pub(crate) fn send(
    frame: &Frame<'_>,
    ip: &Ip,
    refusal: Refusal,
    head: &[u8],
    ident: u16,
    out: &mut impl Output,
) {
    if frame.face.is_nobody() {
        return;
    }
    let mut quote = [0u8; icmpv6::MAX_QUOTE];
    let limit = match ip.version {
        Version::V4 => icmpv4::MAX_QUOTE,
        Version::V6 => icmpv6::MAX_QUOTE,
    };
    let length = quoted(frame, head, quote.get_mut(..limit).unwrap_or(&mut []), out);
    let quote = quote.get(..length).unwrap_or(&[]);
    let mut buffer = [0u8; LONGEST];
    let built = match ip.version {
        Version::V4 => error4(&mut buffer, frame, ip, refusal, ident, quote),
        Version::V6 => error6(&mut buffer, frame, ip, refusal, quote),
    };
    if let Some(bytes) = built.and_then(|n| buffer.get(..n)) {
        out.count(frame.from, Counter::Replies, 1);
        out.reply(frame.face.slot, frame.face.tag, bytes);
    }
}

/// Copies the start of the packet, from the head and then from the rest.
fn quoted(frame: &Frame<'_>, head: &[u8], into: &mut [u8], out: &mut impl Output) -> usize {
    let start = frame.parsed.network_offset;
    let wanted = frame
        .parsed
        .packet_end
        .saturating_sub(start)
        .min(into.len());
    let have = head.get(start..).unwrap_or(&[]);
    let from_head = have.len().min(wanted);
    let (Some(a), Some(b)) = (into.get_mut(..from_head), have.get(..from_head)) else {
        return 0;
    };
    a.copy_from_slice(b);
    match into.get_mut(from_head..wanted) {
        Some(rest) if !rest.is_empty() => from_head + out.ingress(head.len(), rest).min(rest.len()),
        _ => from_head,
    }
}

fn link(face: &Face, frame: &Frame<'_>, ethertype: u16) -> ethernet::Header {
    ethernet::Header::new(frame.parsed.source, face.mac, ethertype)
}

fn error4(
    buffer: &mut [u8],
    frame: &Frame<'_>,
    ip: &Ip,
    refusal: Refusal,
    ident: u16,
    quote: &[u8],
) -> Option<usize> {
    let error = match refusal {
        Refusal::NoRoute => icmpv4::Error::NetUnreachable,
        Refusal::Prohibited => icmpv4::Error::Prohibited,
        Refusal::NoNeighbour => icmpv4::Error::HostUnreachable,
        Refusal::HopLimit => icmpv4::Error::TimeExceeded,
        Refusal::Port => icmpv4::Error::PortUnreachable,
        Refusal::Protocol => icmpv4::Error::ProtocolUnreachable,
        Refusal::TooBig(mtu) => icmpv4::Error::FragmentationNeeded { mtu },
    };
    let face = &frame.face;
    if face.address4 == [0; 4] {
        return None;
    }
    let header = ipv4::Header {
        // RFC 1812 4.3.2.5: precedence of network control.
        tos: 0xc0,
        id: ident,
        dont_fragment: false,
        ..ipv4::Header::new(face.address4, unmapped(&ip.source)?, icmpv4::PROTOCOL)
    };
    build::icmpv4(
        buffer,
        &link(face, frame, ethernet::IPV4),
        &header,
        |body| error.emit(body, quote),
    )
    .ok()
}

fn error6(
    buffer: &mut [u8],
    frame: &Frame<'_>,
    ip: &Ip,
    refusal: Refusal,
    quote: &[u8],
) -> Option<usize> {
    let error = match refusal {
        Refusal::NoRoute => icmpv6::Error::NoRoute,
        Refusal::Prohibited => icmpv6::Error::Prohibited,
        Refusal::NoNeighbour => icmpv6::Error::AddressUnreachable,
        Refusal::HopLimit => icmpv6::Error::TimeExceeded,
        Refusal::Port => icmpv6::Error::PortUnreachable,
        Refusal::Protocol => {
            let extensions = ip
                .transport_offset
                .saturating_sub(frame.parsed.network_offset);
            // The next-header field that names the protocol; without extensions
            // it is byte 6 of the fixed header.
            let pointer = if extensions == ipv6::HEADER {
                6
            } else {
                ipv6::HEADER
            };
            icmpv6::Error::UnknownNextHeader {
                pointer: u32::try_from(pointer).ok()?,
            }
        }
        Refusal::TooBig(mtu) => icmpv6::Error::PacketTooBig {
            mtu: u32::from(mtu),
        },
    };
    let face = &frame.face;
    let header = ipv6::Header::new(face.address6, ip.source, icmpv6::PROTOCOL);
    build::icmpv6(
        buffer,
        &link(face, frame, ethernet::IPV6),
        &header,
        |body| error.emit(body, quote),
    )
    .ok()
}
