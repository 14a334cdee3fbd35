//! Echo, answered in place: the payload is the ingress frame's own.

use crate::frame::Frame;
use wire::address::unmapped;
use wire::parse::{Ip, Version};
use wire::{checksum, ethernet, icmpv4, icmpv6};

/// Hop limit of what the switch sends.
const HOP_LIMIT: u8 = 64;

/// Turns an echo request in `head` into its reply. `None`, and nothing to send,
/// when it is none or does not fit the head.
pub(crate) fn echo(frame: &Frame<'_>, ip: &Ip, head: &mut [u8]) -> Option<()> {
    let at = frame.parsed.network_offset;
    let message = head.get_mut(ip.transport_offset..)?;
    match ip.version {
        Version::V4 => icmpv4::echo_in_place(message)?,
        Version::V6 => icmpv6::echo_in_place(message)?,
    }
    let packet = head.get_mut(at..)?;
    match ip.version {
        Version::V4 => {
            let header = packet.get_mut(..ip.header_len)?;
            *header.get_mut(8)? = HOP_LIMIT;
            header
                .get_mut(12..16)?
                .copy_from_slice(&unmapped(&ip.destination)?);
            header
                .get_mut(16..20)?
                .copy_from_slice(&unmapped(&ip.source)?);
            header.get_mut(10..12)?.fill(0);
            let sum = checksum::internet(header);
            header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        Version::V6 => {
            *packet.get_mut(7)? = HOP_LIMIT;
            packet.get_mut(8..24)?.copy_from_slice(&ip.destination);
            packet.get_mut(24..40)?.copy_from_slice(&ip.source);
        }
    }
    ethernet::readdress(head, frame.parsed.source, frame.face.mac)
}
