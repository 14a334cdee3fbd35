//! Frames of one connection go by one pair of queues.

use crate::flow_of;

/// A frame's first bytes: so many of IPv4's options, a protocol, a source port, and what
/// changes from frame to frame.
fn four(options: usize, fragment: u16, protocol: u8, port: u16, changes: u8) -> Vec<u8> {
    let mut head = vec![changes & 1; 12];
    head.extend([8, 0, 0x45 + (options / 4) as u8, 0, 0, changes, changes, 1]);
    head.extend(fragment.to_be_bytes());
    head.extend([64, protocol, changes, changes, 10, 0, 0, 1, 10, 0, 0, 2]);
    head.extend(vec![changes; options]);
    head.extend(port.to_be_bytes());
    head.extend([0, 80]);
    head.extend([changes; 16]);
    head
}

fn six(next: u8, port: u16, changes: u8) -> Vec<u8> {
    let mut head = vec![changes & 1; 12];
    head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, changes, next, 64]);
    head.extend([[0xfd; 16], [0xfe; 16]].concat());
    head.extend(port.to_be_bytes());
    head.extend([0, 80]);
    head.extend([changes; 16]);
    head
}

#[test]
fn a_connection_keeps_to_one_number_and_connections_differ() {
    let kinds: [&dyn Fn(u16, u8) -> Vec<u8>; 4] = [
        &|port, changes| four(0, 0x4000, 6, port, changes),
        &|port, changes| four(40, 0, 17, port, changes),
        &|port, changes| six(6, port, changes),
        &|port, changes| six(17, port, changes),
    ];
    for (n, kind) in kinds.iter().enumerate() {
        let mut by_four = [0; 4];
        for port in 1000..1400 {
            let flow = flow_of(&kind(port, 0));
            assert!(
                (1..200).all(|changes| flow_of(&kind(port, changes)) == flow),
                "{n} {port}"
            );
            by_four[flow as usize % 4] += 1;
        }
        assert!(
            by_four.iter().all(|n| (50..200).contains(n)),
            "{n}: {by_four:?}"
        );
    }
    // What has no ports, or not in every piece, keeps to its addresses.
    for (a, b) in [
        (four(0, 0x2000, 17, 1, 0), four(0, 0x2000, 17, 2, 9)),
        (four(0, 0x0001, 17, 1, 0), four(0, 0x2000, 17, 2, 9)),
        (four(0, 0x0100, 17, 1, 0), four(0, 0x2000, 17, 2, 9)),
        (four(0, 0, 1, 1, 0), four(0, 0, 1, 2, 9)),
        (six(58, 1, 0), six(58, 2, 9)),
    ] {
        assert_eq!(flow_of(&a), flow_of(&b), "{a:?}");
    }
    // However short.
    for n in 0..60 {
        flow_of(four(40, 0, 17, 1, 0).get(..n).unwrap());
        flow_of(six(17, 1, 0).get(..n).unwrap());
    }
}
