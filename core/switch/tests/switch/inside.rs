//! Inside a subnet: unicast, flooding, isolation, finishing.

use crate::guard::tcp_gso;
use crate::support::*;
use core_switch::Config;
use image::compartment::*;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::ALL_NODES;

#[test]
fn unicast_goes_to_its_owner_alone() {
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 2), b"x");
    let seen = Site::new().inject(A1, &frame);
    assert_eq!(seen.only().slot, A2);
    assert_eq!(seen.count(A1, Counter::RxFrames), 1);
    assert_eq!(seen.count(A1, Counter::RxBytes), frame.len() as u64);
    assert_eq!(seen.count(A1, Counter::RxSegments), 1);
}

#[test]
fn unknown_and_foreign_macs_go_nowhere() {
    for to in [
        mac(B1),
        mac(C2),
        MacAddress([2, 1, 2, 3, 4, 5]),
        gateway_mac(1),
        gateway_mac(2),
    ] {
        let frame = udp4((mac(A1), to), (v4(A1), v4(A2)), (1, 2), b"");
        Site::new().refuses(A1, &frame, DropReason::UnknownMac);
    }
    let frame = udp4((mac(A1), mac(A1)), (v4(A1), v4(A1)), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::Hairpin);
}

#[test]
fn broadcast_and_multicast_reach_the_subnet_and_no_other() {
    let frame = udp4(
        (mac(A1), MacAddress::BROADCAST),
        (v4(A1), [10, 1, 1, 255]),
        (1, 2),
        b"all",
    );
    let seen = Site::new().inject(A1, &frame);
    assert_eq!(seen.slots(), [A2, R]);
    assert!(seen.sent.iter().all(|s| s.frame == frame));
    assert_eq!(seen.count(A2, Counter::TxFlood), 1);
    let group = MacAddress::of_group6(ALL_NODES);
    let frame = udp6((mac(C1), group), (v6(C1), ALL_NODES), (1, 2), b"all");
    assert_eq!(Site::new().inject(C1, &frame).slots(), [C2]);
}

#[test]
fn flood_rate_is_charged_by_the_copy_to_the_sender() {
    let config = Config {
        flood_rate: 3,
        flood_burst: 9,
        ..Config::default()
    };
    let mut site = Site::configured(config, |_| {});
    let frame = udp4(
        (mac(A1), MacAddress::BROADCAST),
        (v4(A1), [255; 4]),
        (1, 2),
        b"",
    );
    let passed = (0..10)
        .filter(|_| site.inject(A1, &frame).drops.is_empty())
        .count();
    assert_eq!(passed, 3);
    site.refuses(A1, &frame, DropReason::FloodRate);
    // Others' budgets are their own.
    let frame = udp4(
        (mac(A2), MacAddress::BROADCAST),
        (v4(A2), [255; 4]),
        (1, 2),
        b"",
    );
    assert!(site.inject(A2, &frame).drops.is_empty());
}

#[test]
fn gso_crosses_whole_where_the_port_takes_it() {
    let (frame, offload) = tcp_gso(30_000, 1448);
    let seen = Site::new().inject_raw(A1, 0, offload, &frame);
    assert_eq!((&seen.only().frame, seen.only().offload), (&frame, offload));
    assert_eq!(seen.count(A1, Counter::RxSegments), 21);
    assert_eq!(seen.count(A1, Counter::RxGsoBytes), frame.len() as u64);
}

#[test]
fn finish_offload_in_software_where_the_port_does_not() {
    let mut site = Site::with(|b| b.endpoints[1].features = 0);
    let (frame, offload) = tcp_gso(30_000, 1448);
    let seen = site.inject_raw(A1, 0, offload, &frame);
    assert_eq!(seen.sent.len(), 21);
    assert_eq!(seen.count(A2, Counter::Finished), 1);
    let mut payload = 0;
    for sent in &seen.sent {
        let parsed = sent.parsed();
        let ip = parsed.ip().unwrap();
        assert_eq!(sent.offload, Default::default());
        assert!(ip.packet_len <= 1500);
        assert!(wire::checksum::verifies(
            &ip.source,
            &ip.destination,
            6,
            sent.transport()
        ));
        payload += sent.transport().len() - 20;
    }
    assert_eq!(payload, 30_000);
}

#[test]
fn egress_mtu_holds_inside_a_subnet_and_the_sender_is_told() {
    let mut site = Site::with(|b| b.endpoints[1].mtu = 1400);
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 2), &[0; 1472]);
    let seen = site.inject(A1, &frame);
    assert_eq!(seen.reasons(), [DropReason::TooBig]);
    let told = &seen.sent[0];
    assert_eq!(
        (told.slot, &told.transport()[..2], &told.transport()[6..8]),
        (A1, &[3, 4][..], &1400u16.to_be_bytes()[..])
    );
    let (frame, offload) = tcp_gso(30_000, 1448);
    assert_eq!(
        site.inject_raw(A1, 0, offload, &frame).reasons(),
        [DropReason::TooBig]
    );
    let (frame, offload) = tcp_gso(30_000, 1348);
    assert!(site.inject_raw(A1, 0, offload, &frame).drops.is_empty());
}

#[test]
fn a_change_of_image_keeps_meters_of_what_stays() {
    let mut site = Site::with(|b| {
        b.endpoints[0].rate_bytes = 1;
        b.endpoints[0].rate_burst = 10;
    });
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 2), b"");
    assert!(site.inject(A1, &frame).drops.is_empty());
    site.change(|b| b.endpoints[1].mtu = 1280);
    site.refuses(A1, &frame, DropReason::IngressRate);
    // Another endpoint in the slot has its own.
    site.change(|b| b.endpoints[0].id = 77);
    assert!(site.inject(A1, &frame).drops.is_empty());
}

#[test]
fn an_unplugged_slot_says_nothing() {
    let frame = udp4((mac(A1), mac(A2)), (v4(A1), v4(A2)), (1, 2), b"");
    for slot in [9, 63, 64, u32::MAX] {
        Site::new().refuses(slot, &frame, DropReason::NoImage);
    }
    let image_without = Site::with(|b| {
        b.endpoints[0].state = STATE_OPEN;
        b.endpoints[0].slot = 9;
    });
    let mut site = image_without;
    site.refuses(A1, &frame, DropReason::NoImage);
}
