//! The attacks, as data: what is tried, the frames that try it, and the counter
//! that must catch it.

use std::net::{Ipv4Addr, Ipv6Addr};
use wire::checksum;
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};

/// In every frame of an attack, so that a listener knows one when it hears it.
pub const MARK: &[u8; 16] = b"bulkhead-attack!";
/// Frames of each attack.
pub const FRAMES: u64 = 20;

/// One attack.
pub struct Attack {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is tried, for people.
    pub tried: &'static str,
    /// Drop reasons that catch it at the attacker's own port; empty = it is
    /// delivered, but inside the attacker's own subnet only.
    pub caught_by: &'static [&'static str],
    /// The frame, with what it says of its offloads.
    pub frame: fn(&Scene) -> (RawOffload, Vec<u8>),
}

/// Who attacks whom.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The attacker's own MAC and addresses.
    pub own_mac: [u8; 6],
    /// IPv4.
    pub own4: Ipv4Addr,
    /// IPv6.
    pub own6: Ipv6Addr,
    /// The victim's.
    pub victim_mac: [u8; 6],
    /// IPv4; the same as that of an endpoint of the attacker's own tenant.
    pub victim4: Ipv4Addr,
    /// IPv6, likewise.
    pub victim6: Ipv6Addr,
    /// The attacker's gateway.
    pub gateway_mac: [u8; 6],
    /// Its IPv4 address.
    pub gateway4: Ipv4Addr,
}

const BROADCAST: [u8; 6] = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// All of them, in the order of the demo.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "unicast",
        tried: "frames straight to the MAC of red/web1",
        caught_by: &["unknown-mac"],
        frame: |s| plain(ipv4(s.victim_mac, s.own_mac, s.own4, s.victim4, &[])),
    },
    Attack {
        name: "broadcast",
        tried: "broadcasts to everyone on the wire",
        caught_by: &[],
        frame: |s| plain(ipv4(BROADCAST, s.own_mac, s.own4, Ipv4Addr::BROADCAST, &[])),
    },
    Attack {
        name: "source-ip",
        tried: "a forged source address",
        caught_by: &["source-ip"],
        frame: |s| {
            plain(ipv4(
                s.gateway_mac,
                s.own_mac,
                Ipv4Addr::new(10, 1, 2, 99),
                s.victim4,
                &[],
            ))
        },
    },
    Attack {
        name: "source-mac",
        tried: "red/web1's MAC as the sender",
        caught_by: &["source-mac"],
        frame: |s| plain(ipv4(s.gateway_mac, s.victim_mac, s.own4, s.victim4, &[])),
    },
    Attack {
        name: "arp",
        tried: "ARP: \"the gateway's address is mine\"",
        caught_by: &["arp-spoof"],
        frame: |s| plain(arp(s)),
    },
    Attack {
        name: "nd",
        tried: "neighbour advertisement: \"red/web1's address is mine\"",
        caught_by: &["nd-spoof"],
        frame: |s| {
            let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
            message.extend(s.victim6.octets());
            message.extend([2, 1]);
            message.extend(s.own_mac);
            plain(icmpv6(s, message))
        },
    },
    Attack {
        name: "router",
        tried: "router advertisement: \"send everything through me\"",
        caught_by: &["router-advert"],
        frame: |s| {
            let mut message = vec![
                134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1,
            ];
            message.extend(s.own_mac);
            plain(icmpv6(s, message))
        },
    },
    Attack {
        name: "dhcp",
        tried: "a DHCP server's answer",
        caught_by: &["dhcp-server"],
        frame: |s| plain(dhcp_offer(s)),
    },
    Attack {
        name: "vlan",
        tried: "VLAN tags, to slip into another segment",
        caught_by: &["vlan-tag"],
        frame: |s| {
            let mut frame = ipv4(s.victim_mac, s.own_mac, s.own4, s.victim4, &[]);
            frame.splice(12..12, [0x81, 0x00, 0x00, 0x01]);
            plain(frame)
        },
    },
    Attack {
        name: "gateway",
        tried: "through the gateway to an address that blue does not have",
        caught_by: &["no-route", "no-neighbour"],
        frame: |s| {
            plain(ipv4(
                s.gateway_mac,
                s.own_mac,
                s.own4,
                Ipv4Addr::new(10, 1, 200, 10),
                &[],
            ))
        },
    },
    Attack {
        name: "source-route",
        tried: "a source route past the gateway (IP option)",
        caught_by: &["source-route"],
        frame: |s| {
            let [a, b, c, d] = s.victim4.octets();
            plain(ipv4(
                s.gateway_mac,
                s.own_mac,
                s.own4,
                s.victim4,
                &[131, 7, 4, a, b, c, d, 0],
            ))
        },
    },
    Attack {
        name: "gso",
        tried: "a 32 KiB GSO frame to be cut into segments of one byte",
        caught_by: &["bad-offload"],
        frame: |s| {
            let frame = tcp(s, 32_000);
            let offload = RawOffload {
                flags: NEEDS_CSUM,
                gso_type: GSO_TCPV4,
                gso_size: 1,
                csum_start: 34,
                csum_offset: 16,
            };
            (offload, frame)
        },
    },
];

fn plain(frame: Vec<u8>) -> (RawOffload, Vec<u8>) {
    (RawOffload::default(), frame)
}

fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend(to);
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame
}

fn ipv4_header(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    options: &[u8],
    payload: usize,
) -> Vec<u8> {
    let length = 20 + options.len();
    let total = u16::try_from(length + payload).unwrap_or(u16::MAX);
    let mut header = vec![0x40 | (length / 4) as u8, 0];
    header.extend(total.to_be_bytes());
    header.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    header.extend(options);
    let sum = checksum::internet(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// UDP to port 9 (discard) with the mark.
fn ipv4(
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: Ipv4Addr,
    to: Ipv4Addr,
    options: &[u8],
) -> Vec<u8> {
    udp(to_mac, from_mac, (from, 9), (to, 9), options, MARK)
}

fn udp(
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let length = 8 + payload.len();
    let mut frame = ethernet(to_mac, from_mac, 0x0800);
    frame.extend(ipv4_header(from.0, to.0, 17, options, length));
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend((length as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn tcp(scene: &Scene, payload: usize) -> Vec<u8> {
    let mut frame = ethernet(scene.gateway_mac, scene.own_mac, 0x0800);
    frame.extend(ipv4_header(scene.own4, scene.victim4, 6, &[], 20 + payload));
    // Ports 9, sequence 1, ACK and PSH, a window.
    frame.extend([
        0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0x10, 0, 0, 0, 0, 0,
    ]);
    frame.extend(MARK.iter().cycle().take(payload));
    frame
}

fn arp(scene: &Scene) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, scene.own_mac, 0x0806);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(scene.own_mac);
    frame.extend(scene.gateway4.octets());
    frame.extend(BROADCAST);
    frame.extend(scene.gateway4.octets());
    frame.extend(MARK);
    frame.resize(60, 0);
    frame
}

fn icmpv6(scene: &Scene, mut message: Vec<u8>) -> Vec<u8> {
    // A router speaks from its link-local address (RFC 4861, 4.2).
    let from = if message.first() == Some(&134) {
        Ipv6Addr::from(wire::address::link_local(wire::MacAddress(scene.own_mac)))
    } else {
        scene.own6
    };
    let sum = checksum::pseudo(&from.octets(), &ALL_NODES.octets(), 58, message.len())
        .bytes(&message)
        .finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet(ALL_NODES_MAC, scene.own_mac, 0x86dd);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]);
    frame.extend(from.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame.extend(MARK);
    frame
}

fn dhcp_offer(scene: &Scene) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..4].copy_from_slice(&[2, 1, 6, 0]);
    message[16..20].copy_from_slice(&scene.victim4.octets());
    message[44..60].copy_from_slice(MARK);
    message[236..240].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, 2, 255]);
    udp(
        BROADCAST,
        scene.own_mac,
        (scene.own4, 67),
        (Ipv4Addr::BROADCAST, 68),
        &[],
        &message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene {
            own_mac: [2, 0, 0, 0, 0, 1],
            own4: Ipv4Addr::new(10, 1, 2, 12),
            own6: "fd00:1:1:2::12".parse().unwrap(),
            victim_mac: [2, 0, 0, 0, 0, 9],
            victim4: Ipv4Addr::new(10, 1, 1, 10),
            victim6: "fd00:1:1:1::10".parse().unwrap(),
            gateway_mac: [2, 0, 0, 0, 0, 5],
            gateway4: Ipv4Addr::new(10, 1, 2, 1),
        }
    }

    /// An attack that is caught for being malformed would prove nothing of the guard
    /// it is aimed at.
    #[test]
    fn every_attack_is_a_well_formed_frame_with_the_mark() {
        for attack in ATTACKS {
            let (_, frame) = (attack.frame)(&scene());
            assert!(
                wire::parse(&frame[..frame.len().min(256)], frame.len()).is_ok(),
                "{}: {:?}",
                attack.name,
                wire::parse(&frame, frame.len())
            );
            assert!(
                frame.windows(MARK.len()).any(|part| part == MARK),
                "{}",
                attack.name
            );
        }
    }

    #[test]
    fn every_counter_named_is_a_drop_reason() {
        let reasons: Vec<&str> = telemetry::drops::DropReason::ALL
            .iter()
            .map(|reason| reason.slug())
            .collect();
        for attack in ATTACKS {
            assert!(
                attack
                    .caught_by
                    .iter()
                    .all(|reason| reasons.contains(reason)),
                "{}",
                attack.name
            );
        }
    }
}
