//! Frames into a switch of two tenants, and into its twin that never takes the short way.
//!
//! Held: the two do the same with every frame, and have the same connections in the end; what
//! comes out goes to the sender's own tenant, by that tenant's tag, and is well formed.

use crate::input::Input;
use crate::support::*;
use core_switch::{Connection, Cursor};
use image::CompartmentTables;
use image::rules::{Action, Region, Rule, RuleTable};
use wire::MacAddress;
use wire::address::{ALL_NODES, link_local, mapped};
use wire::offload::RawOffload;
use wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Frames of one run.
const STEPS: usize = 48;
const LONGEST: usize = 4000;

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let mut twins = [site(), site()];
    for step in 0..STEPS {
        if input.is_over() {
            break;
        }
        let what = input.byte();
        let from = u32::from(what % 7);
        let (frame, offload) = frame(&input, from);
        if what & 0x80 != 0 && from != FABRIC {
            // What begins alike is looked up ahead, be it right or wrong.
            twins[0].foresee(from, &[&frame, &frame]);
        }
        both(&mut twins, from, offload, &frame);
        let time = [
            0,
            0,
            1000,
            1_000_000,
            20_000_000,
            500_000_000,
            10 * SECOND,
            90 * SECOND,
        ];
        let time = time[usize::from(what >> 4 & 7)];
        twins.iter_mut().for_each(|site| drop(site.after(time)));
        if what == 0x77 {
            for site in &mut twins {
                site.change(|tables| edit(tables, step));
            }
        }
    }
    assert_eq!(connections(&twins[0]), connections(&twins[1]));
}

/// Of both: the same came of it, and nothing that it should not.
fn both([short, long]: &mut [Site; 2], from: u32, offload: RawOffload, frame: &[u8]) {
    let (_, one) = short.inject_short(from, offload, frame);
    let other = long.judge(from, offload, frame);
    assert_eq!(one.sent, other.sent);
    assert_eq!(one.drops, other.drops);
    assert_eq!(one.counts, other.counts);
    assert_eq!(one.decided, other.decided);
    for sent in &one.sent {
        assert_eq!(
            tenant(sent.slot),
            tenant(from),
            "from {from} to {}",
            sent.slot
        );
        assert_eq!(sent.tag, if sent.slot == FABRIC { TAG } else { 0 });
        let parsed = wire::parse(&sent.frame, sent.frame.len());
        assert!(parsed.is_ok(), "{parsed:?}");
    }
}

fn connections(site: &Site) -> Vec<Connection> {
    let mut found = Vec::new();
    site.walk(&mut Cursor::default(), &mut |connection| {
        found.push(*connection)
    });
    found
}

/// The fabric's channel is red's alone.
pub fn tenant(slot: u32) -> u32 {
    u32::from([C1, C2].contains(&slot))
}

/// Rules, room for connections, and receivers of several kinds.
pub fn site() -> Site {
    Site::with(|tables| {
        let rule = |protocol: u8, ports, action, id| Rule {
            region: Region {
                protocol: protocol..=protocol,
                destination_port: ports,
                ..Region::ALL
            },
            action,
            log: false,
            id,
        };
        let table = |rules| RuleTable {
            rules,
            default: Action::Deny,
        };
        tables.rule_tables = vec![
            table(vec![
                rule(17, 53..=53, Action::Allow, 1),
                rule(17, 54..=54, Action::AllowStateless, 2),
                rule(6, 80..=80, Action::Allow, 3),
                rule(1, 0..=u16::MAX, Action::Allow, 4),
                rule(58, 0..=u16::MAX, Action::Allow, 5),
                rule(17, 2000..=2010, Action::Allow, 6),
            ]),
            table(vec![
                rule(17, 53..=54, Action::AllowStateless, 7),
                rule(6, 80..=80, Action::AllowStateless, 8),
                rule(1, 0..=u16::MAX, Action::Allow, 9),
                rule(58, 0..=u16::MAX, Action::Allow, 10),
                rule(17, 2000..=2010, Action::Allow, 11),
            ]),
        ];
        for endpoint in &mut tables.endpoints {
            (endpoint.egress, endpoint.ingress) = (0, 1);
            endpoint.connections = 8;
        }
        tables.endpoints[3].mtu = 1280;
        tables.endpoints[1].features = 0;
    })
}

/// What an operator may change while all goes on.
fn edit(tables: &mut CompartmentTables, step: usize) {
    match step % 3 {
        0 => tables.endpoints[4].connections += 1,
        1 => tables.rule_tables[0].rules.truncate(5),
        _ => tables.rule_tables[1].default = Action::AllowStateless,
    }
}

/// One that makes sense, bent in a few places; or bytes.
pub fn frame(input: &Input, from: u32) -> (Vec<u8>, RawOffload) {
    let what = input.byte();
    let mut offload = RawOffload::default();
    if what & 0x80 != 0 {
        let [flags, gso_type, length] = [input.byte(), input.byte(), input.byte()];
        offload = RawOffload {
            flags: flags & 7,
            gso_type: gso_type % 6,
            gso_size: u16::from(length) * 16,
            csum_start: 34 + u16::from(flags >> 7) * 20,
            csum_offset: [6, 16, u16::from(flags)][usize::from(gso_type >> 6) % 3],
        };
    }
    if what & 0x40 != 0 {
        let length = input.u16() as usize % LONGEST;
        return (input.take(length), offload);
    }
    let mut frame = likely(input, from, what & 0x3f);
    for _ in 0..input.byte() % 4 {
        let at = input.below(frame.len().min(256));
        let value = input.byte();
        frame[at] = match value {
            0xff => frame[at] ^ 1 << (at % 8),
            value => value,
        };
    }
    if what & 0x20 != 0 && frame.len() >= 34 && frame[12..14] == [8, 0] {
        frame[24..26].fill(0);
        let sum = wire::checksum::internet(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    (frame, offload)
}

/// Frames as stations send them.
fn likely(input: &Input, from: u32, kind: u8) -> Vec<u8> {
    let own = from.max(1);
    let to = u32::from(input.byte()) % 7;
    let (ports, extra) = (input.byte(), input.byte());
    let beyond = to == FABRIC;
    let link = match (from, to) {
        (FABRIC, _) => (NEXT_HOP, OUTSIDE_MAC),
        (B1, _) => (mac(B1), gateway_mac(1)),
        (_, B1 | FABRIC) => (mac(own), GATEWAY),
        (C1 | C2, to) if extra & 0x80 != 0 => (mac(own), gateway_mac(to)),
        _ => (mac(own), mac(to)),
    };
    let four = match from {
        FABRIC => ([198, 51, 100, 7], [192, 0, 2, 10]),
        _ if beyond => (v4(own), [198, 51, 100, 7]),
        _ => (v4(own), v4(to)),
    };
    let six = match from {
        FABRIC => (outside(1), outside(10)),
        _ if beyond => (v6(own), outside(3)),
        _ => (v6(own), v6(to)),
    };
    let port = |n: u8| [53, 54, 80, 1000, 2000, 2001, 67, 68][usize::from(n) % 8];
    let ports = (port(ports), port(ports >> 4));
    let data = vec![5; usize::from(extra) * [0, 1, 8, 15][usize::from(kind >> 4) % 4]];
    match kind % 16 {
        0..3 => udp4(link, four, ports, &data),
        3 => udp6(link, six, ports, &data),
        4..7 => {
            let flags = [SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK, 0];
            let numbers = (
                flags[usize::from(extra) % 8],
                100,
                100 + u32::from(extra >> 6),
            );
            match kind % 16 {
                6 => tcp(link, six, ports, numbers, &data),
                _ => tcp(
                    link,
                    (mapped(four.0), mapped(four.1)),
                    ports,
                    numbers,
                    &data,
                ),
            }
        }
        7 => arp_request(own, v4(own), if extra & 1 == 0 { GATEWAY4 } else { v4(to) }),
        8 => arp(
            link,
            wire::arp::Message {
                operation: wire::arp::Operation::Reply,
                sender_mac: link.0,
                sender: if from == FABRIC {
                    [192, 0, 2, 1]
                } else {
                    v4(own)
                },
                target_mac: link.1,
                target: four.1,
            },
        ),
        9 => dhcp(own, extra),
        10 => {
            let message = [[8, 0, 0, 0, 0, 1, 0, extra].as_slice(), &data].concat();
            let to = if extra & 1 == 0 { four.1 } else { GATEWAY4 };
            icmp4(link, wire::ipv4::Header::new(four.0, to, 1), &message)
        }
        11 => {
            let message = [[128, 0, 0, 0, 0, 1, 0, extra].as_slice(), &data].concat();
            let to = if extra & 1 == 0 { six.1 } else { GATEWAY6 };
            icmp6(link, (six.0, to), 64, &message)
        }
        12 => errors(input, link, four),
        _ => neighbours(own, to, kind % 16, extra),
    }
}

/// DHCP, with options as the input has them.
fn dhcp(own: u32, extra: u8) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    message[28..34].copy_from_slice(&mac(own).0);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    let [a, b, c, d] = v4(own);
    message.extend_from_slice(&[53, 1, extra % 10, 50, 4, a, b, c, d]);
    message.extend_from_slice(&[55, 3, 1, 3, 6, 255]);
    let link = (mac(own), MacAddress::BROADCAST);
    udp4(link, ([0; 4], [255; 4]), (68, 67), &message)
}

/// An error about what may have been sent.
fn errors(input: &Input, link: (MacAddress, MacAddress), four: ([u8; 4], [u8; 4])) -> Vec<u8> {
    let inner = udp4(link, (four.1, four.0), (2000, 53), &[7; 8]);
    let [kind, code] = [input.byte() % 13, input.byte() % 8];
    let message = [[kind, code, 0, 0, 0, 0, 2, 0].as_slice(), &inner[14..]].concat();
    icmp4(link, wire::ipv4::Header::new(four.0, four.1, 1), &message)
}

/// Solicitations and advertisements of IPv6.
fn neighbours(own: u32, to: u32, kind: u8, extra: u8) -> Vec<u8> {
    let own_mac = mac(own);
    let target = if extra & 1 == 0 { GATEWAY6 } else { v6(to) };
    let (message, destination, to_mac) = match kind {
        13 => {
            let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
            message.extend_from_slice(&target);
            message.extend_from_slice(&[1, 1]);
            message.extend_from_slice(&own_mac.0);
            let mut group = [0; 16];
            group[..13].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
            group[13..].copy_from_slice(&target[13..]);
            let [.., a, b, c] = target;
            (message, group, MacAddress([0x33, 0x33, 0xff, a, b, c]))
        }
        14 => {
            let mut message = vec![133, 0, 0, 0, 0, 0, 0, 0, 1, 1];
            message.extend_from_slice(&own_mac.0);
            let mut routers = ALL_NODES;
            routers[15] = 2;
            (message, routers, MacAddress([0x33, 0x33, 0, 0, 0, 2]))
        }
        _ => {
            let mut message = vec![136, 0, 0, 0, extra & 0xe0, 0, 0, 0];
            message.extend_from_slice(&v6(own));
            message.extend_from_slice(&[2, 1]);
            message.extend_from_slice(&own_mac.0);
            (message, ALL_NODES, MacAddress([0x33, 0x33, 0, 0, 0, 1]))
        }
    };
    let source = if extra & 2 == 0 {
        v6(own)
    } else {
        link_local(own_mac)
    };
    icmp6((own_mac, to_mac), (source, destination), 255, &message)
}
