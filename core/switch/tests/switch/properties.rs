//! Whatever comes in: no panic, and nothing leaves its tenant.

use crate::guard::tcp_gso;
use crate::support::*;
use proptest::prelude::*;
use wire::offload::RawOffload;

fn tenant(slot: u32) -> u32 {
    match slot {
        A1 | A2 | R | B1 => 0,
        C1 | C2 => 1,
        // Red's attachment is the only one.
        FABRIC => 0,
        _ => panic!("slot {slot}"),
    }
}

pub fn offload() -> impl Strategy<Value = RawOffload> {
    prop_oneof![
        3 => Just(RawOffload::default()),
        1 => (any::<u8>(), any::<u8>(), any::<u16>(), any::<u16>(), any::<u16>()).prop_map(
            |(flags, gso_type, gso_size, csum_start, csum_offset)| RawOffload { flags, gso_type, gso_size, csum_start, csum_offset }
        ),
        1 => (0u8..4, 0u8..6, 256u16..9000).prop_map(|(flags, gso_type, gso_size)| RawOffload {
            flags, gso_type, gso_size, csum_start: 34, csum_offset: 16
        }),
    ]
}

/// Frames that look real and are then bent: so that they reach far into the pipeline.
pub fn frame() -> impl Strategy<Value = Vec<u8>> {
    let macs = prop::sample::select(vec![
        mac(A1),
        mac(A2),
        mac(R),
        mac(B1),
        mac(C1),
        mac(C2),
        GATEWAY,
        gateway_mac(1),
        gateway_mac(2),
        wire::MacAddress::BROADCAST,
        wire::MacAddress([0x33, 0x33, 0, 0, 0, 1]),
        OUTSIDE_MAC,
        NEXT_HOP,
    ]);
    let v4s = prop::sample::select(vec![
        v4(A1),
        v4(A2),
        v4(B1),
        GATEWAY4,
        [0; 4],
        [255; 4],
        [8, 8, 8, 8],
        [198, 51, 100, 1],
        [10, 9, 1, 1],
        [192, 0, 2, 10],
        [224, 0, 0, 1],
    ]);
    let v6s = prop::sample::select(vec![
        v6(A1),
        v6(A2),
        v6(B1),
        GATEWAY6,
        [0; 16],
        outside(10),
        outside(1),
        wire::address::ALL_NODES,
        wire::address::link_local(mac(A1)),
        wire::address::mapped(v4(A1)),
    ]);
    let ports = (
        prop::sample::select(vec![67u16, 68, 546, 547, 53, 1000]),
        prop::sample::select(vec![67u16, 68, 546, 547, 53, 1000]),
    );
    let payload = prop::collection::vec(any::<u8>(), 0..1600);
    let base = (
        macs.clone(),
        macs,
        (v4s.clone(), v4s),
        (v6s.clone(), v6s),
        ports,
        payload,
        0u8..6,
    )
        .prop_map(|(source, destination, four, six, ports, payload, kind)| {
            let link = (source, destination);
            match kind {
                0 => udp4(link, four, ports, &payload),
                1 => udp6(link, six, ports, &payload),
                2 => icmp6(
                    link,
                    six,
                    if payload.len() % 3 == 0 { 64 } else { 255 },
                    &[
                        &[128 + (ports.0 % 12) as u8, 0, 0, 0, 0, 0, 0, 0][..],
                        &payload,
                    ]
                    .concat(),
                ),
                3 => icmp4(
                    link,
                    wire::ipv4::Header::new(four.0, four.1, 1),
                    &[&[(ports.1 % 13) as u8, 0, 0, 0, 0, 0, 0, 0][..], &payload].concat(),
                ),
                4 => arp(
                    link,
                    wire::arp::Message {
                        operation: if payload.len() % 2 == 0 {
                            wire::arp::Operation::Request
                        } else {
                            wire::arp::Operation::Reply
                        },
                        sender_mac: source,
                        sender: four.0,
                        target_mac: destination,
                        target: four.1,
                    },
                ),
                _ => tcp_gso(payload.len() * 20, 1000).0,
            }
        });
    let bends = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    prop_oneof![
        6 => (base, bends).prop_map(|(mut frame, bends)| {
            for (at, value) in bends {
                let at = at.index(frame.len().min(80));
                frame[at] = value;
            }
            frame
        }),
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_nothing_leaves_its_tenant(
        frames in prop::collection::vec((0u32..7, frame(), offload(), prop::sample::select(vec![TAG, 0, 9])), 1..20)
    ) {
        let mut site = Site::with(|b| { b.endpoints[1].features = 0; b.endpoints[3].mtu = 1280; });
        for (from, frame, offload, tag) in frames {
            let tag = if from == FABRIC { tag } else { 0 };
            let seen = site.inject_raw(from, tag, offload, &frame);
            for sent in &seen.sent {
                prop_assert_eq!(tenant(sent.slot), tenant(from), "from {} to {}", from, sent.slot);
                prop_assert_eq!(sent.tag, if sent.slot == FABRIC { TAG } else { 0 });
                // What comes out is well formed, and from a MAC of ours or the sender's own.
                let parsed = wire::parse(&sent.frame, sent.frame.len());
                prop_assert!(parsed.is_ok(), "{:?}", parsed);
            }
            site.after(100_000_000);
        }
    }
}
