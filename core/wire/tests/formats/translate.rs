//! Translation: every checksum recomputed agrees, there and back gives the same bytes.

use proptest::prelude::*;
use wire::address::{MacAddress, mapped, unmapped};
use wire::parse::Transport;
use wire::translate::{translate, translate_error};
use wire::{Offload, Tuple, build, checksum, ethernet, icmpv4, icmpv6, inner, ipv4, ipv6};
use wire::{parse, tcp, udp};

const FROM: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const TO: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// What a test's packet is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Tcp,
    TcpPartial,
    Udp,
    UdpWithout,
    UdpPartial,
    Request,
    Reply,
    Sctp,
}

const ALL: [What; 8] = [
    What::Tcp,
    What::TcpPartial,
    What::Udp,
    What::UdpWithout,
    What::UdpPartial,
    What::Request,
    What::Reply,
    What::Sctp,
];

fn protocol(v6: bool, what: What) -> u8 {
    match what {
        What::Tcp | What::TcpPartial => tcp::PROTOCOL,
        What::Udp | What::UdpWithout | What::UdpPartial => udp::PROTOCOL,
        What::Sctp => 132,
        _ if v6 => icmpv6::PROTOCOL,
        _ => icmpv4::PROTOCOL,
    }
}

fn addresses(v6: bool, a: u128, b: u128) -> ([u8; 16], [u8; 16]) {
    let one = |n: u128| match v6 {
        true => (n | 0xfd << 120).to_be_bytes(),
        false => mapped((n as u32).to_be_bytes()),
    };
    (one(a), one(b))
}

/// A tuple of this kind with these addresses and ports.
fn tuple(v6: bool, what: What, (a, b): (u128, u128), (c, d): (u16, u16)) -> Tuple {
    let (source, destination) = addresses(v6, a, b);
    let (source_port, destination_port) = match what {
        What::Request => (c, 0),
        What::Reply => (0, c),
        What::Sctp => (0, 0),
        _ => (c, d),
    };
    Tuple {
        source,
        destination,
        source_port,
        destination_port,
        protocol: protocol(v6, what),
    }
}

/// The packet of a tuple, checksums in place.
fn frame(what: What, tuple: &Tuple, body: &[u8]) -> Vec<u8> {
    let v6 = unmapped(&tuple.source).is_none();
    let message = match what {
        What::Request | What::Reply => {
            let request = what == What::Request;
            let id = tuple.source_port | tuple.destination_port;
            let mut out = vec![0; 8 + body.len()];
            if v6 {
                icmpv6::Echo {
                    request,
                    id,
                    sequence: 7,
                    data: body,
                }
                .emit(&mut out)
                .unwrap();
            } else {
                icmpv4::Echo {
                    request,
                    id,
                    sequence: 7,
                    data: body,
                }
                .emit(&mut out)
                .unwrap();
            }
            out
        }
        What::Tcp | What::TcpPartial => {
            let header = tcp::Header {
                source: tuple.source_port,
                destination: tuple.destination_port,
                sequence: 0xffff_fff0,
                acknowledgement: 3,
                header_len: 24,
                flags: tcp::ACK,
                window: 512,
            };
            let mut out = vec![0; 24 + body.len()];
            header.emit(&mut out).unwrap();
            out[24..].copy_from_slice(body);
            out
        }
        What::Sctp => [&[0, 9, 0, 9, 1, 2, 3, 4], body].concat(),
        _ => {
            let header = udp::Header {
                source: tuple.source_port,
                destination: tuple.destination_port,
                length: (8 + body.len()) as u16,
            };
            let mut out = vec![0; 8 + body.len()];
            header.emit(&mut out).unwrap();
            out[8..].copy_from_slice(body);
            out
        }
    };
    let mut message = message;
    let pseudo = checksum::pseudo(
        &tuple.source,
        &tuple.destination,
        tuple.protocol,
        message.len(),
    );
    let at = match what {
        What::Tcp | What::TcpPartial => Some(tcp::CHECKSUM),
        What::Udp | What::UdpPartial => Some(udp::CHECKSUM),
        What::Request | What::Reply if v6 => Some(2),
        _ => None,
    };
    if let Some(at) = at {
        let sum = match what {
            What::TcpPartial | What::UdpPartial => pseudo.fold(),
            What::Udp => match pseudo.bytes(&message).finish() {
                0 => 0xffff,
                sum => sum,
            },
            _ => pseudo.bytes(&message).finish(),
        };
        message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    packet(tuple, tuple.protocol, &message)
}

fn packet(tuple: &Tuple, protocol: u8, message: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 54 + message.len()];
    let body = |buffer: &mut [u8]| {
        buffer[..message.len()].copy_from_slice(message);
        Ok(message.len())
    };
    let length = match (unmapped(&tuple.source), unmapped(&tuple.destination)) {
        (Some(source), Some(destination)) => build::ipv4(
            &mut out,
            &ethernet::Header::new(TO, FROM, ethernet::IPV4),
            &ipv4::Header::new(source, destination, protocol),
            body,
        ),
        _ => build::ipv6(
            &mut out,
            &ethernet::Header::new(TO, FROM, ethernet::IPV6),
            &ipv6::Header::new(tuple.source, tuple.destination, protocol),
            body,
        ),
    };
    out.truncate(length.unwrap());
    out
}

/// The error that quotes `quote`, its checksum in place.
fn error(outer: &Tuple, quote: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 100 + quote.len()];
    let length = match (unmapped(&outer.source), unmapped(&outer.destination)) {
        (Some(source), Some(destination)) => build::icmpv4(
            &mut out,
            &ethernet::Header::new(TO, FROM, ethernet::IPV4),
            &ipv4::Header::new(source, destination, 0),
            |buffer| icmpv4::Error::FragmentationNeeded { mtu: 1400 }.emit(buffer, quote),
        ),
        _ => build::icmpv6(
            &mut out,
            &ethernet::Header::new(TO, FROM, ethernet::IPV6),
            &ipv6::Header::new(outer.source, outer.destination, 0),
            |buffer| icmpv6::Error::PacketTooBig { mtu: 1400 }.emit(buffer, quote),
        ),
    };
    out.truncate(length.unwrap());
    out
}

fn kinds() -> impl Strategy<Value = (bool, What)> {
    (any::<bool>(), prop::sample::select(&ALL[..]))
}

/// What leaves its sender finished, as what is quoted or in fragments is.
const WHOLE: [What; 6] = [
    What::Tcp,
    What::Udp,
    What::UdpWithout,
    What::Request,
    What::Reply,
    What::Sctp,
];

type Ends = ((u128, u128), (u16, u16));

fn ends() -> impl Strategy<Value = Ends> {
    let address = prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>()];
    let port = prop_oneof![Just(0u16), Just(u16::MAX), any::<u16>()];
    ((address.clone(), address), (port.clone(), port))
}

fn partial(what: What) -> Offload {
    match what {
        What::TcpPartial => Offload::partial(tcp::CHECKSUM),
        What::UdpPartial => Offload::partial(udp::CHECKSUM),
        _ => Offload::NONE,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A translated packet is the packet that its new tuple's sender would have built,
    /// to the byte, and translated back it is what it was.
    #[test]
    fn translated_is_as_built((v6, what) in kinds(), from in ends(), to in ends(),
        body in prop::collection::vec(any::<u8>(), 0..300)) {
        let (from, to) = (tuple(v6, what, from.0, from.1), tuple(v6, what, to.0, to.1));
        let before = frame(what, &from, &body);
        let expected = frame(what, &to, &body);
        let parsed = parse(&before, before.len()).unwrap();
        let mut now = before.clone();
        // The private head is all that is at hand.
        let head = now.len().min(256);
        translate(&mut now[..head], &parsed, &partial(what), &to).unwrap();
        prop_assert_eq!(&now, &expected);
        let parsed = parse(&now, now.len()).unwrap();
        translate(&mut now, &parsed, &partial(what), &from).unwrap();
        prop_assert_eq!(&now, &before);
    }

    /// The same of an error and its quote, however short that is. Of a checksum that is
    /// quoted by half nobody can say what it would be, since the other half's carry is not
    /// known: it stays, and the error's own checksum is over it.
    #[test]
    fn a_translated_error_is_as_built(v6: bool, what in prop::sample::select(&WHOLE[..]),
        from in ends(), to in ends(),
        outer in ends(), outer_to in ends(), body in prop::collection::vec(any::<u8>(), 0..300),
        cut in prop_oneof![0usize..12, 0usize..300]) {
        let (from, to) = (tuple(v6, what, from.0, from.1), tuple(v6, what, to.0, to.1));
        let outer = tuple(v6, What::Request, outer.0, (0, 0));
        let outer_to = tuple(v6, What::Request, outer_to.0, (0, 0));
        let transport = if v6 { 40 } else { 20 };
        let quote = |of: &Tuple| {
            let packet = frame(what, of, &body);
            packet[14..packet.len().min(14 + transport + 8 + cut)].to_vec()
        };
        let (quoted, mut translated) = (quote(&from), quote(&to));
        let half = transport + tcp::CHECKSUM;
        if what == What::Tcp && quoted.len() == half + 1 {
            translated[half] = quoted[half];
        }
        let before = error(&outer, &quoted);
        let expected = error(&outer_to, &translated);
        let parsed = parse(&before, before.len()).unwrap();
        prop_assert_eq!(inner::parse(&before, &parsed).unwrap().tuple, from);
        // `translate` leaves errors to this.
        prop_assert_eq!(translate(&mut before.clone(), &parsed, &Offload::NONE, &outer_to), None);
        let mut now = before.clone();
        let head = now.len().min(256);
        translate_error(&mut now[..head], &parsed, &outer_to, &to).unwrap();
        prop_assert_eq!(&now, &expected);
        let parsed = parse(&now, now.len()).unwrap();
        translate_error(&mut now, &parsed, &outer, &from).unwrap();
        prop_assert_eq!(&now, &before);
    }

    /// A datagram cut into fragments, each translated for itself, is the translated
    /// datagram cut: the first fragment's checksum is the whole's.
    #[test]
    fn fragments_add_up(from in ends(), to in ends(), what in prop::sample::select(&WHOLE[..3]),
        body in prop::collection::vec(any::<u8>(), 64..200)) {
        let (from, to) = (tuple(false, what, from.0, from.1), tuple(false, what, to.0, to.1));
        let cut = |packet: &[u8]| -> Vec<Vec<u8>> {
            let data = &packet[34..];
            [(0, 64), (64, data.len())].iter().map(|&(start, end): &(usize, usize)| {
                let mut out = [&packet[..34], &data[start..end]].concat();
                let field = (start / 8) as u16 | if start == 0 { 0x2000 } else { 0 };
                out[16..18].copy_from_slice(&(20 + (end - start) as u16).to_be_bytes());
                out[18..20].copy_from_slice(&77u16.to_be_bytes());
                out[20..22].copy_from_slice(&field.to_be_bytes());
                crate::frames::refresh4(&mut out);
                out
            }).collect()
        };
        let mut parts = cut(&frame(what, &from, &body));
        for (index, part) in parts.iter_mut().enumerate() {
            let parsed = parse(part, part.len()).unwrap();
            let ip = parsed.ip().unwrap();
            prop_assert_eq!((ip.fragment_id, ip.fragment_place), (77, 64 * index as u16));
            translate(part, &parsed, &Offload::NONE, &to).unwrap();
        }
        prop_assert_eq!(parts, cut(&frame(what, &to, &body)));
    }

    /// Whatever the bytes, nothing panics, and what is refused is left as it was.
    #[test]
    fn no_bytes_make_a_translation_panic((v6, what) in kinds(), from in ends(), to in ends(),
        changes in prop::collection::vec((0usize..160, any::<u8>()), 0..8), cut in 0usize..160,
        quoted in any::<bool>(), other in any::<bool>()) {
        let from = tuple(v6, what, from.0, from.1);
        let to = tuple(v6 ^ other, what, to.0, to.1);
        let mut bytes = frame(what, &from, &[5; 40]);
        if quoted {
            bytes = error(&tuple(v6, What::Request, (1, 2), (0, 0)), &bytes[14..]);
        }
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if bytes[12..15] == [8, 0, 0x45] {
            crate::frames::refresh4(&mut bytes);
        }
        let Ok(parsed) = parse(&bytes, bytes.len()) else { return Ok(()) };
        let _ = inner::parse(&bytes, &parsed);
        let mut head = bytes[..cut.min(bytes.len())].to_vec();
        let before = head.clone();
        if translate(&mut head, &parsed, &partial(what), &to).is_none() {
            prop_assert_eq!(&head, &before);
        }
        let before = head.clone();
        if translate_error(&mut head, &parsed, &to, &to).is_none() {
            prop_assert_eq!(&head, &before);
        }
    }
}

#[test]
fn families_and_protocols_do_not_change() {
    let four = tuple(false, What::Udp, (1, 2), (3, 4));
    let six = tuple(true, What::Udp, (1, 2), (3, 4));
    let mut packet = frame(What::Udp, &four, b"body");
    let before = packet.clone();
    let parsed = parse(&packet, packet.len()).unwrap();
    assert!(matches!(
        parsed.ip().unwrap().transport,
        Transport::Udp { .. }
    ));
    for to in [
        six,
        Tuple {
            protocol: tcp::PROTOCOL,
            ..four
        },
    ] {
        assert_eq!(translate(&mut packet, &parsed, &Offload::NONE, &to), None);
        assert_eq!(packet, before);
    }
}

#[test]
fn a_quote_in_ipv6_names_no_ipv4_host() {
    let six = tuple(true, What::Udp, (1, 2), (3, 4));
    let quote = frame(What::Udp, &six, b"body");
    for at in [8, 24] {
        let mut quote = quote[14..].to_vec();
        quote[at..at + 16].copy_from_slice(&mapped([10, 0, 0, 1]));
        let packet = error(&six, &quote);
        let parsed = parse(&packet, packet.len()).unwrap();
        assert_eq!(inner::parse(&packet, &parsed), None);
    }
}

#[test]
fn a_later_fragment_is_not_quoted() {
    let four = tuple(false, What::Udp, (1, 2), (3, 4));
    let mut quote = frame(What::Udp, &four, b"body")[14..].to_vec();
    let packet = error(&four.reversed(), &quote);
    let parsed = parse(&packet, packet.len()).unwrap();
    assert_eq!(
        inner::parse(&packet, &parsed).map(|inner| inner.tuple),
        Some(four)
    );
    quote[7] = 1;
    let packet = error(&four.reversed(), &quote);
    let parsed = parse(&packet, packet.len()).unwrap();
    assert_eq!(inner::parse(&packet, &parsed), None);
}
