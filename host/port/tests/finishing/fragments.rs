//! IPv4 fragments: each packet is forwarded by a kernel to a link of another MTU, and what
//! comes out there is compared with ours.

use crate::kernel::{Random, Wire, difference};
use host_port::{PacketSocket, packet};
use netlink::namespace;
use std::os::fd::AsFd;
use std::process::Command;
use wire::segment::{Fragmenter, SegmentError, fragments};
use wire::{RawOffload, checksum, ethernet, ipv4, udp};

/// Random packets over each MTU.
const PACKETS: usize = 400;
/// Of every residue by 8 that the room for payload can have, and the least there is.
const MTUS: [usize; 9] = [68, 576, 1280, 1491, 1493, 1494, 1495, 1497, 1500];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const NEXT: [u8; 6] = [2, 0, 0, 0, 0, 4];

/// Makes a router of the namespace at the far end, with one link more.
fn onward(wire: &Wire) -> PacketSocket {
    let [near, far] = &wire.names;
    for line in [
        format!("ip -n {far} link set far address 02:00:00:00:00:03"),
        format!(
            "ip -n {far} link add out address 02:00:00:00:00:03 type veth peer name end netns {near}"
        ),
        format!("ip -n {far} link set out addrgenmode none up"),
        format!("ip -n {near} link set end addrgenmode none up"),
        format!(
            "ip netns exec {far} sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.far.rp_filter=0"
        ),
        format!("ip -n {far} route add 10.1.0.2/32 dev out scope link"),
        format!("ip -n {far} neigh add 10.1.0.2 lladdr 02:00:00:00:00:04 dev out nud permanent"),
    ] {
        run(&line);
    }
    let open = || packet::open("end").unwrap();
    let there = std::fs::File::open(format!("/run/netns/{near}")).unwrap();
    PacketSocket::from_fd(namespace::within(there.as_fd(), open).unwrap())
}

fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(done.status.success(), "{line}: {done:?}");
}

/// A packet to the router, whole or itself a fragment.
fn any(random: &mut Random, mtu: usize) -> Vec<u8> {
    // Whose copied bit says that they are in every fragment, and others; none that a router
    // writes into.
    let options: &[u8] = random.one_of(&[
        &[] as &[u8],
        &[],
        &[148, 4, 0, 0],
        &[136, 4, 0, 7],
        &[11, 4, 5, 220],
        &[
            1, 1, 11, 4, 5, 220, 148, 4, 0, 0, 82, 12, 0, 1, 0, 0, 0, 0, 10, 1, 0, 1, 0, 0,
        ],
        &[1; 40],
    ]);
    let header = ipv4::HEADER + options.len();
    // About one link's room, or several, exactly or by a few bytes more or less.
    let room = mtu - header;
    let length = match random.below(3) {
        0 => room * (1 + random.below(5)),
        1 => (room & !7) * (1 + random.below(5)),
        _ => udp::HEADER + random.below(9000),
    };
    // No more than a kernel's backlog takes at once.
    let most = 20_000.min((room & !7) * 300);
    let length = (length + random.below(20)).saturating_sub(10);
    let length = length.clamp(udp::HEADER, most);
    let (mut field, mut length) = (0, length);
    if random.one_in(8) {
        field = ipv4::DONT_FRAGMENT;
    } else if random.one_in(4) {
        // A part of something that was longer.
        field = random.one_of(&[0, 100, 3000]) as u16;
        if field == 0 || random.one_in(2) {
            field |= ipv4::MORE_FRAGMENTS;
            length &= !7;
        }
    }
    let mut frame = [
        &ROUTER[..],
        &[2, 0, 0, 0, 0, 1],
        &ethernet::IPV4.to_be_bytes(),
    ]
    .concat();
    frame.extend([0x45 + (options.len() / 4) as u8, random.next() as u8]);
    frame.extend(((header + length) as u16).to_be_bytes());
    frame.extend(random.bytes(2));
    frame.extend(field.to_be_bytes());
    frame.extend([
        2 + random.below(250) as u8,
        253,
        0,
        0,
        10,
        1,
        0,
        1,
        10,
        1,
        0,
        2,
    ]);
    frame.extend(options);
    frame.extend(random.bytes(length));
    seal(&mut frame);
    frame
}

/// Sets the header's checksum.
fn seal(frame: &mut [u8]) {
    let end = ethernet::HEADER + usize::from(frame[ethernet::HEADER] & 15) * 4;
    frame[24..26].fill(0);
    let sum = checksum::internet(&frame[ethernet::HEADER..end]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// What we make of it, one hop on.
fn ours(frame: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&NEXT);
    frame[6..12].copy_from_slice(&ROUTER);
    frame[22] -= 1;
    seal(&mut frame);
    if frame.len() - ethernet::HEADER <= mtu {
        return vec![frame];
    }
    let header = usize::from(frame[ethernet::HEADER] & 15) * 4;
    let (headers, payload) = frame.split_at(ethernet::HEADER + header);
    let mut fragmenter = match Fragmenter::new(headers, payload, ethernet::HEADER, mtu) {
        Err(SegmentError::Indivisible) => return Vec::new(),
        made => made.unwrap(),
    };
    let (mut all, mut buffer) = (Vec::new(), vec![0; 2000]);
    while let Some(length) = fragmenter.next(&mut buffer).unwrap() {
        all.push(buffer[..length].to_vec());
    }
    assert_eq!(all.len(), fragments(header, payload.len(), mtu));
    all
}

#[test]
fn fragments_are_what_the_kernel_makes_of_the_packet() {
    let mut random = Random::seeded();
    let seed = random.0;
    let wire = Wire::new();
    let end = onward(&wire);
    let (mut cut, mut refused) = (0, 0);
    for mtu in MTUS {
        run(&format!("ip -n {} link set out mtu {mtu}", wire.names[1]));
        for number in 0..PACKETS {
            let frame = any(&mut random, mtu);
            let ours = ours(&frame, mtu);
            let kernels = wire.given(&RawOffload::default(), &frame, (&end, ours.len()));
            if let Some(difference) = difference(&ours, &kernels) {
                let head = &frame[..80.min(frame.len())];
                panic!("SEED={seed}, MTU {mtu}, packet {number}: {difference}\n{head:02x?}");
            }
            cut += usize::from(ours.len() > 1);
            refused += usize::from(ours.is_empty());
        }
    }
    let all = PACKETS * MTUS.len();
    assert!(cut > all / 3 && refused > all / 30, "{cut} {refused}");
}
