//! Lies on an uplink in its own name: what makes hosts there believe that it is their
//! router, their DHCP server, or another one of them.

use crate::frames::{ethernet, ipv4_sum, put};
use image::compartment::Attachment;

/// In all that it says, so that it is known where it arrives.
const MARK: &[u8; 4] = b"liar";
const ROUTER: [u8; 6] = [2, 0xaa, 0, 0, 0, 1];
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const EVERYBODY: [u8; 6] = [0xff; 6];
/// Addresses that its tenant has inside.
const INSIDE4: [u8; 4] = [10, 9, 0, 10];
const INSIDE6: [u8; 16] = [0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
/// Where a packet may go.
const BEYOND4: [u8; 4] = [198, 51, 100, 2];
/// Who is somebody else there.
const OTHER6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99];
const NODES6: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const CLIENT6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
/// Router solicitation and advertisement, neighbour advertisement, redirect, MLD.
const KINDS: [u8; 6] = [134, 137, 136, 133, 143, 130];
/// No header in front, hop-by-hop options, a fragment header, destination options.
const HEADERS: [u8; 4] = [58, 0, 44, 60];

/// The n-th of them. Each hundredth is the truth, by which one hears that it speaks.
pub fn forge(own: &Attachment, n: u64) -> Vec<u8> {
    let pick = |n: u64, of: usize| (n % of as u64) as usize;
    let to = [ALL_NODES, ROUTER, EVERYBODY][pick(n / 2, 3)];
    if n.is_multiple_of(100) {
        let mut frame = udp4(ROUTER, own.mac, own.address4, (1024, 53), 0x45);
        put(&mut frame, 30, &BEYOND4);
        ipv4_sum(&mut frame);
        return frame;
    }
    // To one station and from where it may, as its tenant's packets go: an answer to a relay
    // of DHCP's, a redirect or a router's advertisement, and what no router sends on.
    match n % 12 {
        4 => {
            let mut frame = udp4(ROUTER, own.mac, own.address4, (67, 67), 0x45);
            put(&mut frame, 30, &BEYOND4);
            ipv4_sum(&mut frame);
            return frame;
        }
        7 => {
            let relayed = [&[2, 35, 2, 35, 0, 12, 0, 0][..], MARK].concat();
            let mut frame = six(ROUTER, own.mac, (own.address6, OTHER6), 58, 17, &relayed);
            put(&mut frame, 21, &[64]);
            return frame;
        }
        8 => {
            let mut frame = udp4(ROUTER, own.mac, own.address4, (0, 0), 0x45);
            put(&mut frame, 23, &[1]);
            put(
                &mut frame,
                34,
                &[[5, 9][pick(n / 12, 2)], 1, 0, 0, 0, 0, 0, 0],
            );
            let sum = frame.get(34..60).map(wire::checksum::internet);
            put(&mut frame, 36, &sum.unwrap_or(0).to_be_bytes());
            put(&mut frame, 30, &BEYOND4);
            ipv4_sum(&mut frame);
            return frame;
        }
        10 => return not_sent_on(own, pick(n / 12, 4)),
        _ => {}
    }
    if n.is_multiple_of(2) {
        let from = [own.address4, INSIDE4][pick(n / 6, 2)];
        // Some behind options, which move the ports.
        let port = [67, 1025][pick(n / 36, 2)];
        return udp4(
            to,
            own.mac,
            from,
            (port, 68),
            [0x45, 0x45, 0x46][pick(n / 12, 3)],
        );
    }
    let m = own.mac;
    let local = [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        m[0] ^ 2,
        m[1],
        m[2],
        0xff,
        0xfe,
        m[3],
        m[4],
        m[5],
    ];
    let from = [local, own.address6, INSIDE6][pick(n / 6, 3)];
    let header = HEADERS[pick(n / 18, 4)];
    let (protocol, message) = match pick(n / 72, 7) {
        6 => (17, [&[2, 35, 2, 34, 0, 12, 0, 0][..], MARK].concat()),
        // The target is another's, or of a router's advertisement its life.
        kind => (
            58,
            [&[KINDS[kind], 0, 0, 0, 0x40, 0, 7, 8][..], &OTHER6, MARK].concat(),
        ),
    };
    let destination = if protocol == 17 { CLIENT6 } else { NODES6 };
    six(to, own.mac, (from, destination), header, protocol, &message)
}

/// VRRP as its routers say it, with the highest time to live, to their group and to a host;
/// IGMP to all nodes' group, and UDP to everybody.
fn not_sent_on(own: &Attachment, nth: usize) -> Vec<u8> {
    let (to, protocol, ttl) = [
        ([224, 0, 0, 18], 112, 255),
        ([192, 0, 2, 1], 112, 255),
        ([224, 0, 0, 1], 2, 1),
        ([255; 4], 17, 64),
    ][nth];
    let mut frame = udp4(ROUTER, own.mac, own.address4, (1025, 1025), 0x45);
    put(&mut frame, 22, &[ttl, protocol]);
    put(&mut frame, 30, &to);
    ipv4_sum(&mut frame);
    frame
}

fn udp4(to: [u8; 6], from: [u8; 6], source: [u8; 4], ports: (u16, u16), version: u8) -> Vec<u8> {
    let options = usize::from(version & 15) * 4 - 20;
    let mut frame = ethernet(to, from, 0x0800, 60 + options);
    let head = [version, 0, 0, 46 + options as u8, 0, 0, 0, 0, 64, 17, 0, 0];
    put(&mut frame, 14, &head);
    put(&mut frame, 26, &source);
    put(&mut frame, 30, &[255; 4]);
    put(&mut frame, 34, &vec![1; options]);
    let ([a, b], [c, d]) = (ports.0.to_be_bytes(), ports.1.to_be_bytes());
    put(&mut frame, 34 + options, &[a, b, c, d, 0, 26, 0, 0]);
    put(&mut frame, 42 + options, MARK);
    if options == 0 {
        ipv4_sum(&mut frame);
    }
    frame
}

fn six(
    to: [u8; 6],
    from: [u8; 6],
    (source, destination): ([u8; 16], [u8; 16]),
    header: u8,
    protocol: u8,
    message: &[u8],
) -> Vec<u8> {
    let hidden = header != 58;
    let first = if hidden { header } else { protocol };
    // Of eight bytes each: padding as an option, or an offset of none.
    let extra = match header {
        58 => vec![],
        44 => vec![protocol, 0, 0, 0, 0, 0, 0, 1],
        _ => vec![protocol, 0, 1, 4, 0, 0, 0, 0],
    };
    let mut frame = ethernet(to, from, 0x86dd, 54);
    let len = (extra.len() + message.len()) as u8;
    put(&mut frame, 14, &[0x60, 0, 0, 0, 0, len, first, 255]);
    put(&mut frame, 22, &source);
    put(&mut frame, 38, &destination);
    frame.extend(extra);
    let at = frame.len();
    frame.extend(message);
    let sum = wire::checksum::pseudo(&source, &destination, protocol, message.len());
    let sum = sum.bytes(message).finish().to_be_bytes();
    put(&mut frame, at + if protocol == 58 { 2 } else { 6 }, &sum);
    frame
}
