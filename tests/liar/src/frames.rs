//! Lies that are well-formed records: who sends, to whom, about what.

use crate::crossings::Crossings;
use crate::lies::Lie;
use crate::post::Post;
use image::compartment::Attachment;
use ring::record::CaptureNote;
use wire::RawOffload;
use wire::offload::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, MAX_FRAME, NEEDS_CSUM};

const BROADCAST: [u8; 6] = [255; 6];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

/// A record to be pushed.
pub struct Forged {
    pub tag: u16,
    pub offload: RawOffload,
    pub note: CaptureNote,
    pub frame: Vec<u8>,
}

/// What it knows, and how far it has come.
#[derive(Default)]
pub struct Forger {
    step: u64,
    /// Its own MAC and tag on the uplink, or in a segment, where it has one: lies next to the
    /// truth.
    own_mac: [u8; 6],
    own_tag: u16,
    own_address: [u8; 4],
    /// All of that.
    own: Attachment,
    /// MACs of its own endpoints: others' look alike.
    macs: Vec<[u8; 6]>,
    crossings: Crossings,
}

impl Forger {
    /// Takes what the image says of its own.
    pub fn learn(&mut self, post: &Post) {
        let (endpoints, attachments) = (&post.endpoints, &post.attachments);
        self.crossings.learn(&post.crossings);
        if self.macs.len() == endpoints.len() && !self.macs.is_empty() {
            return;
        }
        self.macs = endpoints.iter().map(|endpoint| endpoint.mac).collect();
        self.own_mac = self.macs.first().copied().unwrap_or([2, 0, 0, 0, 0, 1]);
        self.own_tag = post.segment;
        if let Some(own) = attachments.first() {
            (self.own_mac, self.own_tag, self.own_address) = (own.mac, own.tag, own.address4);
            self.own = *own;
        }
    }

    /// The next lie of a kind.
    pub fn forge(&mut self, lie: Lie) -> Forged {
        self.step += 1;
        let n = self.step;
        let [.., high, low] = n.to_be_bytes();
        let (to, from, address) = (self.guess(n), self.own_mac, self.own_address);
        let mut forged = Forged {
            tag: self.own_tag,
            offload: RawOffload::default(),
            note: CaptureNote::default(),
            frame: ipv4(to, from, address, 60),
        };
        match lie {
            Lie::SourceMac => forged.frame = ipv4(to, self.guess(n / 7), address, 60),
            Lie::Destination => {
                let to = match n % 6 {
                    0 => BROADCAST,
                    1 => [0x33, 0x33, 0, 0, 0, low],
                    2 => [1, 0, 0x5e, 0, high, low],
                    3 => [1, 0x80, 0xc2, 0, 0, low & 15],
                    4 => [0; 6],
                    _ => to,
                };
                forged.frame = ipv4(to, from, address, 60);
            }
            Lie::Tag => forged.tag = n as u16,
            Lie::SourceIp if n.is_multiple_of(2) => {
                forged.frame = ipv4(to, from, [10, 1, high, low], 60);
            }
            Lie::SourceIp => forged.frame = ipv6(to, from, 17, 80),
            Lie::Arp => forged.frame = arp(from, [10, 1, high, low], n),
            Lie::Nd => {
                forged.frame = ipv6(to, from, 58, 86);
                // Router advertisement, neighbour solicitation, advertisement, redirect.
                put(
                    &mut forged.frame,
                    54,
                    &[[134, 135, 136, 137][n as usize % 4]],
                );
            }
            Lie::EtherType => put(&mut forged.frame, 12, &(n as u16).to_be_bytes()),
            Lie::Vlan => {
                let tpid = [0x8100u16, 0x88a8, 0x9100][n as usize % 3].to_be_bytes();
                let tags = [tpid, [high, low], [0x81, 0], [low, high]].concat();
                forged.frame.splice(12..12, tags);
            }
            Lie::Gso => {
                forged.frame = ipv4(
                    to,
                    from,
                    address,
                    if n.is_multiple_of(9) { 32_000 } else { 600 },
                );
                let kind = [GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, 3, 0x80, 0x7f][n as usize % 6];
                forged.offload = RawOffload {
                    flags: NEEDS_CSUM | (low & 0x83),
                    gso_type: kind,
                    gso_size: [1, 0, 9, 255, u16::MAX][n as usize % 5],
                    // One of them over the source address that was just compared.
                    csum_start: [26, 0, 6, u16::MAX, 34][n as usize / 5 % 5],
                    csum_offset: [0, 16, u16::MAX][n as usize % 3],
                };
            }
            Lie::Length => {
                let len = match n % 3 {
                    0 => MAX_FRAME,
                    1 => n as usize % 15,
                    _ => MAX_FRAME - 16,
                };
                forged.frame = ipv4(to, from, address, len);
            }
            Lie::Crossing => (forged.tag, forged.frame) = self.crossings.forge(from),
            Lie::Uplink => forged.frame = crate::uplink::forge(&self.own, n),
            Lie::Flood => forged.frame = ipv4([2, 0xff, 0, 0, 0, 1], from, address, 64),
            _ => forged.note.endpoint = low.into(),
        }
        forged
    }

    /// A MAC that could be somebody's: its own endpoints' with one byte changed.
    fn guess(&self, n: u64) -> [u8; 6] {
        let mut mac = match self.macs.get(n as usize % self.macs.len().max(1)) {
            Some(mac) => *mac,
            None => self.own_mac,
        };
        if let Some(byte) = mac.get_mut(1 + n as usize / 3 % 5) {
            *byte = byte.wrapping_add((n / 15) as u8);
        }
        mac
    }
}

pub fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

pub fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    put(&mut frame, 0, &to);
    put(&mut frame, 6, &from);
    put(&mut frame, 12, &kind.to_be_bytes());
    frame
}

/// UDP to 10.1.1.10, where the other tenant may have somebody too.
fn ipv4(to: [u8; 6], from: [u8; 6], source: [u8; 4], len: usize) -> Vec<u8> {
    let mut frame = ethernet(to, from, IPV4, len);
    let total = (len.saturating_sub(14) as u16).to_be_bytes();
    put(
        &mut frame,
        14,
        &[0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0],
    );
    put(&mut frame, 26, &source);
    put(&mut frame, 30, &[10, 1, 1, 10]);
    ipv4_sum(&mut frame);
    frame
}

/// Puts in the checksum of an IPv4 header without options (RFC 1071).
pub fn ipv4_sum(frame: &mut [u8]) {
    put(frame, 24, &[0; 2]);
    let sum = frame.get(14..34).map_or(0, |header| {
        let words = header
            .chunks_exact(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    });
    put(frame, 24, &sum.to_be_bytes());
}

fn ipv6(to: [u8; 6], from: [u8; 6], next: u8, len: usize) -> Vec<u8> {
    let mut frame = ethernet(to, from, IPV6, len);
    let payload = (len.saturating_sub(54) as u16).to_be_bytes();
    put(
        &mut frame,
        14,
        &[0x60, 0, 0, 0, payload[0], payload[1], next, 255],
    );
    put(
        &mut frame,
        22,
        &[0xfd, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10],
    );
    put(
        &mut frame,
        38,
        &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    );
    frame
}

/// "This address is mine", asked for or not.
fn arp(from: [u8; 6], address: [u8; 4], n: u64) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, from, ARP, 60);
    put(&mut frame, 14, &[0, 1, 8, 0, 6, 4, 0, 1 + (n % 2) as u8]);
    put(&mut frame, 22, &from);
    put(&mut frame, 28, &address);
    put(&mut frame, 38, &address);
    frame
}
