//! Frames made by etherparse, and how they are read back by it.

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use wire::address::{MacAddress, mapped};

pub const RED: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
pub const BLUE: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
pub const RED4: [u8; 4] = [10, 1, 0, 1];
pub const BLUE4: [u8; 4] = [10, 1, 0, 2];
pub const RED6: [u8; 16] = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const BLUE6: [u8; 16] = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

pub fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}

pub fn tcp(v6: bool, body: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(RED.0, BLUE.0);
    let mut out = Vec::new();
    let ip = if v6 {
        link.ipv6(RED6, BLUE6, 64)
    } else {
        link.ipv4(RED4, BLUE4, 64)
    };
    let packet = ip
        .tcp(1000, 80, 0xffff_fff0, 512)
        .ack(77)
        .psh()
        .fin()
        .cwr()
        .options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
        .unwrap();
    packet.write(&mut out, body).unwrap();
    out
}

pub fn udp(v6: bool, body: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(RED.0, BLUE.0);
    let mut out = Vec::new();
    let ip = if v6 {
        link.ipv6(RED6, BLUE6, 64)
    } else {
        link.ipv4(RED4, BLUE4, 64)
    };
    ip.udp(5000, 53).write(&mut out, body).unwrap();
    out
}

/// An IPv6 frame whose payload, from `next` on, is given raw.
pub fn raw6(next: u8, body: &[u8]) -> Vec<u8> {
    let ip = wire::ipv6::Header::new(RED6, BLUE6, next);
    let mut out = vec![0; 54 + body.len()];
    let ethernet = wire::ethernet::Header::new(BLUE, RED, wire::ethernet::IPV6);
    let length = wire::build::ipv6(&mut out, &ethernet, &ip, |buffer| {
        buffer[..body.len()].copy_from_slice(body);
        Ok(body.len())
    });
    assert_eq!(length, Ok(out.len()));
    out
}

/// Sets the IPv4 header checksum right again after a test changed the header.
pub fn refresh4(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = wire::checksum::internet(&frame[14..end]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Panics unless etherparse finds the frame's transport checksum right; returns
/// the payload.
pub fn verified_payload(frame: &[u8]) -> Vec<u8> {
    let packet = SlicedPacket::from_ethernet(frame).expect("well formed");
    let (source, destination, v4) = match packet.net.as_ref().expect("IP") {
        etherparse::NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(
                header.to_header().calc_header_checksum(),
                header.header_checksum()
            );
            (mapped(header.source()), mapped(header.destination()), true)
        }
        etherparse::NetSlice::Ipv6(ip) => (ip.header().source(), ip.header().destination(), false),
        _ => panic!("not IP"),
    };
    let four = |address: [u8; 16]| <[u8; 4]>::try_from(&address[12..]).unwrap();
    match packet.transport.expect("transport") {
        TransportSlice::Tcp(tcp) => {
            let sum = if v4 {
                tcp.calc_checksum_ipv4(four(source), four(destination))
            } else {
                tcp.calc_checksum_ipv6(source, destination)
            };
            assert_eq!(sum.unwrap(), tcp.checksum());
            tcp.payload().to_vec()
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let sum = if v4 {
                header.calc_checksum_ipv4_raw(four(source), four(destination), udp.payload())
            } else {
                header.calc_checksum_ipv6_raw(source, destination, udp.payload())
            };
            assert_eq!(sum.unwrap(), udp.checksum());
            udp.payload().to_vec()
        }
        _ => panic!("neither TCP nor UDP"),
    }
}
