//! What is read of a packet.

use flow::Segment;
use flow::segment::{Kind, Tcp};
use proptest::prelude::*;
use wire::address::MacAddress;
use wire::{Offload, build, ethernet, ipv4, parse, tcp};

fn frame(flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let mut out = vec![0; 2000];
    let length = build::ipv4(
        &mut out,
        &ethernet::Header::new(MacAddress([2; 6]), MacAddress([4; 6]), ethernet::IPV4),
        &ipv4::Header::new([10, 0, 0, 1], [10, 0, 0, 2], tcp::PROTOCOL),
        |buffer| {
            let header_len = (20 + options.len()).next_multiple_of(4);
            tcp::Header {
                source: 1,
                destination: 2,
                sequence: 3,
                acknowledgement: 4,
                header_len: header_len as u8,
                flags,
                window: 5,
            }
            .emit(buffer)?;
            buffer[20..20 + options.len()].copy_from_slice(options);
            Ok(header_len + payload)
        },
    );
    out.truncate(length.unwrap());
    out
}

fn read(frame: &[u8]) -> Option<Segment> {
    let parsed = parse(frame, frame.len()).ok()?;
    Segment::read(frame, &parsed, &Offload::NONE, frame.len())
}

#[test]
fn a_syn_says_its_scale() {
    for (flags, options, scale) in [
        (tcp::SYN, &[2, 4, 5, 180, 1, 3, 3, 7][..], Some(7)),
        (tcp::SYN, &[3, 3, 200], Some(14)),
        (tcp::SYN, &[0, 3, 3, 7], None),
        (tcp::SYN, &[3, 4, 7, 7], None),
        (tcp::SYN, &[5, 90, 3, 3], None),
        (tcp::SYN, &[5, 0, 3, 3], None),
        (tcp::SYN, &[], None),
        (tcp::ACK, &[3, 3, 7], None),
    ] {
        let facts = Tcp {
            flags,
            sequence: 3,
            acknowledgement: 4,
            window: 5,
            payload: 100,
            scale,
            more: false,
        };
        let segment = read(&frame(flags, options, 100)).unwrap();
        assert_eq!(segment.kind, Kind::Tcp(facts), "{options:?}");
        assert_eq!(segment.packets, 1);
        assert_eq!(segment.bytes as usize, frame(flags, options, 100).len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_options_make_it_panic(flags: u8, options in prop::collection::vec(any::<u8>(), 0..=40),
        cut in 0usize..120) {
        let frame = frame(flags, &options, 10);
        prop_assert!(read(&frame).is_some());
        let parsed = parse(&frame, frame.len()).unwrap();
        let _ = Segment::read(&frame[..cut.min(frame.len())], &parsed, &Offload::NONE, frame.len());
    }
}
