//! Packets to try a way with are packets, and their answers answer them.

use proptest::prelude::*;
use wire::address::{link_local, mapped};
use wire::{MacAddress, Probe, Tuple, checksum, parse, tcp};

fn built(probe: &Probe) -> Vec<u8> {
    let mut buffer = vec![0; 2000];
    let length = probe.emit(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// The packet as rules see it; every checksum is right.
fn tuple(frame: &[u8]) -> Tuple {
    let parsed = parse(frame, frame.len()).unwrap();
    let ip = parsed.ip().unwrap();
    let message = &frame[ip.transport_offset..parsed.packet_end];
    match (ip.protocol, ip.version) {
        (6 | 17, _) | (58, wire::parse::Version::V6) => {
            let sound = checksum::verifies(&ip.source, &ip.destination, ip.protocol, message);
            assert!(sound, "{frame:?}");
        }
        (1, wire::parse::Version::V4) => assert_eq!(checksum::internet(message), 0),
        _ => {}
    }
    Tuple::of_rules(ip).unwrap()
}

proptest! {
    #[test]
    fn a_probe_is_the_packet_that_was_asked_for_and_its_answer_turns_it_round(
        six: bool, hosts in prop::array::uniform2(1u8..250),
        protocol in prop::sample::select(vec![6u8, 17, 1, 58, 47, 132, 99]),
        ports: (u16, u16), number: u32, data in 0usize..1000,
    ) {
        let [a, b] = hosts.map(|host| match six {
            true => [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host],
            false => mapped([10, 0, 0, host]),
        });
        let icmp = protocol == if six { 58 } else { 1 };
        // What parses as the other family's is no ICMP of this one.
        let (source_port, destination_port) = match protocol {
            6 | 17 => ports,
            _ if icmp => (0, if six { 0x8000 } else { 0x0800 }),
            _ => (0, 0),
        };
        let asked = Tuple { source: a, destination: b, source_port, destination_port, protocol };
        let (from, to) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
        let probe = Probe { data, ..Probe::first(from, to, asked, number) };
        let frame = built(&probe);
        prop_assert_eq!(frame.len(), 14 + probe.least() + data);
        prop_assert_eq!(tuple(&frame), asked);
        let answer = Probe::answer(&frame).unwrap();
        prop_assert_eq!((answer.source, answer.destination), (to, from));
        let answered = tuple(&built(&answer));
        match icmp {
            true => {
                let reply = if six { 0x8100 } else { 0 };
                prop_assert_eq!(answered.destination_port, reply);
                prop_assert_eq!(answer.sequence, number);
                // Nothing answers a reply.
                prop_assert_eq!(Probe::answer(&built(&answer)), None);
            }
            false => prop_assert_eq!(answered, asked.reversed()),
        }
        if protocol == 6 {
            prop_assert_eq!(answer.flags, tcp::SYN | tcp::ACK);
            prop_assert_eq!(answer.acknowledgement, number.wrapping_add(1 + data as u32));
            // The handshake's third.
            let third = Probe::answer(&built(&answer)).unwrap();
            prop_assert_eq!(third.flags, tcp::ACK);
            prop_assert_eq!(third.acknowledgement, answer.sequence.wrapping_add(1));
            prop_assert_eq!(third.sequence, answer.acknowledgement);
        }
    }

    #[test]
    fn any_bytes_are_answered_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Probe::answer(&bytes);
    }
}

#[test]
fn what_nobody_would_answer_has_no_answer() {
    let (from, to) = (
        MacAddress([2, 0, 0, 0, 0, 1]),
        MacAddress([2, 0, 0, 0, 0, 2]),
    );
    let tuple = Tuple {
        source: link_local(from),
        destination: link_local(to),
        protocol: 17,
        ..Tuple::default()
    };
    let good = Probe::first(from, to, tuple, 0);
    assert!(Probe::answer(&built(&good)).is_some());
    let to_all = Probe {
        destination: MacAddress::BROADCAST,
        ..good
    };
    let reset = Probe {
        flags: tcp::RST,
        tuple: Tuple {
            protocol: 6,
            ..tuple
        },
        ..good
    };
    let error = Probe {
        tuple: Tuple {
            protocol: 58,
            destination_port: 0x0103,
            ..tuple
        },
        ..good
    };
    for probe in [to_all, reset, error] {
        assert_eq!(Probe::answer(&built(&probe)), None, "{probe:?}");
    }
    assert!(good.emit(&mut [0; 40]).is_err());
}
