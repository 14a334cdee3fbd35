//! Whole frames from their representations: lengths and checksums are filled in.
//!
//! Each function writes an Ethernet header, an IP header and what `body` writes
//! into the rest of the buffer, and returns the length of the frame. Frames are
//! not padded to the Ethernet minimum: the device that puts them on a wire does.

use crate::address::mapped;
use crate::field;
use crate::{NoRoom, arp, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, udp};

/// An ARP message in a frame.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, which is our fault.
pub fn arp(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    message: &arp::Message,
) -> Result<usize, NoRoom> {
    let at = ethernet.emit(buffer)?;
    Ok(at + message.emit(rest(buffer, at)?)?)
}

/// An IPv4 packet: `ip.payload_len` is replaced by what `body` wrote.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn ipv4(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv4::Header,
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let at = ethernet.emit(buffer)?;
    let start = at + ipv4::HEADER;
    let length = body(rest(buffer, start)?)?;
    let ip = ipv4::Header {
        payload_len: short(length + ipv4::HEADER)? - ipv4::HEADER as u16,
        ..*ip
    };
    ip.emit(rest(buffer, at)?)?;
    Ok(start + length)
}

/// An IPv6 packet: `ip.payload_len` is replaced by what `body` wrote.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn ipv6(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv6::Header,
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let at = ethernet.emit(buffer)?;
    let start = at + ipv6::HEADER;
    let length = body(rest(buffer, start)?)?;
    let ip = ipv6::Header {
        payload_len: short(length)?,
        ..*ip
    };
    ip.emit(rest(buffer, at)?)?;
    Ok(start + length)
}

/// An ICMP packet; `body` writes its message with the checksum right already.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn icmpv4(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv4::Header,
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let ip = ipv4::Header {
        protocol: icmpv4::PROTOCOL,
        ..*ip
    };
    ipv4(buffer, ethernet, &ip, body)
}

/// An ICMPv6 packet; `body` writes its message with a zero checksum.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn icmpv6(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv6::Header,
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let ip = ipv6::Header {
        next_header: icmpv6::PROTOCOL,
        ..*ip
    };
    let total = ipv6(buffer, ethernet, &ip, body)?;
    let start = ethernet.len() + ipv6::HEADER;
    let message = buffer
        .get_mut(start..total)
        .ok_or(NoRoom { needed: total })?;
    let sum = checksum::pseudo(&ip.source, &ip.destination, icmpv6::PROTOCOL, message.len())
        .bytes(message)
        .finish();
    field::put(message, 2, &sum.to_be_bytes()).ok_or(NoRoom { needed: total })?;
    Ok(total)
}

/// A UDP datagram over IPv4, checksum included.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn udp4(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv4::Header,
    ports: (u16, u16),
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let ip = ipv4::Header {
        protocol: udp::PROTOCOL,
        ..*ip
    };
    let (source, destination) = (mapped(ip.source), mapped(ip.destination));
    ipv4(buffer, ethernet, &ip, |buffer| {
        datagram(buffer, ports, (&source, &destination), body)
    })
}

/// A UDP datagram over IPv6, checksum included.
///
/// # Errors
/// [`NoRoom`]: `buffer` is too short, or the packet too long for its length field: our fault.
pub fn udp6(
    buffer: &mut [u8],
    ethernet: &ethernet::Header,
    ip: &ipv6::Header,
    ports: (u16, u16),
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let ip = ipv6::Header {
        next_header: udp::PROTOCOL,
        ..*ip
    };
    ipv6(buffer, ethernet, &ip, |buffer| {
        datagram(buffer, ports, (&ip.source, &ip.destination), body)
    })
}

fn datagram(
    buffer: &mut [u8],
    (source, destination): (u16, u16),
    (from, to): (&[u8; 16], &[u8; 16]),
    body: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>,
) -> Result<usize, NoRoom> {
    let length = udp::HEADER + body(rest(buffer, udp::HEADER)?)?;
    udp::Header {
        source,
        destination,
        length: short(length)?,
    }
    .emit(buffer)?;
    let message = buffer.get_mut(..length).ok_or(NoRoom { needed: length })?;
    let sum = checksum::pseudo(from, to, udp::PROTOCOL, length)
        .bytes(message)
        .finish();
    let sum = if sum == 0 { 0xffff } else { sum };
    field::put(message, udp::CHECKSUM, &sum.to_be_bytes()).ok_or(NoRoom { needed: length })?;
    Ok(length)
}

fn rest(buffer: &mut [u8], at: usize) -> Result<&mut [u8], NoRoom> {
    buffer.get_mut(at..).ok_or(NoRoom { needed: at })
}

fn short(length: usize) -> Result<u16, NoRoom> {
    u16::try_from(length).map_err(|_| NoRoom { needed: length })
}
