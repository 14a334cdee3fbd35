//! What an endpoint may not say, one test for each guard.

use crate::support::*;
use image::compartment::*;
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{ALL_NODES, ALL_ROUTERS, UNSPECIFIED6, link_local, mapped, solicited_node};
use wire::arp::{Message, Operation};
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};

fn to_a2() -> (MacAddress, MacAddress) {
    (mac(A1), mac(A2))
}

#[test]
fn an_honest_frame_passes() {
    let frame = udp4(to_a2(), (v4(A1), v4(A2)), (1000, 2000), b"hello");
    assert_eq!(Site::new().inject(A1, &frame).only().frame, frame);
    let frame = udp6(to_a2(), (v6(A1), v6(A2)), (1000, 2000), b"hello");
    assert_eq!(Site::new().inject(A1, &frame).only().frame, frame);
    let frame = udp6(
        to_a2(),
        (link_local(mac(A1)), link_local(mac(A2))),
        (1000, 2000),
        b"hello",
    );
    assert_eq!(Site::new().inject(A1, &frame).only().frame, frame);
}

#[test]
fn source_mac() {
    let frame = udp4((mac(A2), mac(R)), (v4(A1), v4(R)), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::SourceMac);
}

#[test]
fn group_source() {
    let group = MacAddress([3, 0, 0, 0, 0, 1]);
    let frame = udp4((group, mac(A2)), (v4(A1), v4(A2)), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::GroupSource);
}

#[test]
fn vlan_tag() {
    let mut frame = udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), b"");
    frame.splice(12..12, [0x81, 0, 0, 5]);
    Site::new().refuses(A1, &frame, DropReason::VlanTag);
    frame.splice(12..12, [0x88, 0xa8, 0, 6]);
    Site::new().refuses(A1, &frame, DropReason::VlanTag);
}

#[test]
fn reserved_mac() {
    let frame = udp4(
        (mac(A1), MacAddress([1, 0x80, 0xc2, 0, 0, 0x0e])),
        (v4(A1), v4(A2)),
        (1, 2),
        b"",
    );
    Site::new().refuses(A1, &frame, DropReason::ReservedMac);
}

#[test]
fn ethertype() {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&mac(A2).0);
    frame[6..12].copy_from_slice(&mac(A1).0);
    for (ethertype, name) in [
        ([0x88, 0xcc], "LLDP"),
        ([0, 46], "802.3"),
        ([0x88, 0x8e], "EAPOL"),
    ] {
        frame[12..14].copy_from_slice(&ethertype);
        let seen = Site::new().inject(A1, &frame);
        assert_eq!(
            (seen.reasons(), seen.sent.len()),
            (vec![DropReason::EtherType], 0),
            "{name}"
        );
    }
}

#[test]
fn source_ip4() {
    for source in [
        v4(A2),
        [10, 1, 2, 10],
        [10, 9, 0, 1],
        GATEWAY4,
        [0; 4],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
    ] {
        let frame = udp4(to_a2(), (source, v4(A2)), (1, 2), b"");
        Site::new().refuses(A1, &frame, DropReason::SourceIp);
    }
}

#[test]
fn source_ip6() {
    for source in [
        v6(A2),
        v6(B1),
        GATEWAY6,
        UNSPECIFIED6,
        link_local(mac(A2)),
        link_local(GATEWAY),
        ALL_NODES,
    ] {
        let frame = udp6(to_a2(), (source, v6(A2)), (1, 2), b"");
        Site::new().refuses(A1, &frame, DropReason::SourceIp);
    }
}

#[test]
fn mapped_in_ipv6() {
    let frame = udp6(to_a2(), (mapped(v4(A1)), v6(A2)), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::Martian);
    let frame = udp6((mac(A1), GATEWAY), (v6(A1), mapped(v4(B1))), (1, 2), b"");
    Site::new().refuses(A1, &frame, DropReason::Martian);
}

#[test]
fn a_router_speaks_for_the_prefixes_behind_it_and_no_others() {
    let mut site = Site::new();
    let frame = udp4((mac(R), mac(A1)), ([10, 9, 3, 4], v4(A1)), (1, 2), b"");
    assert_eq!(site.inject(R, &frame).only().slot, A1);
    let frame = udp4((mac(R), mac(A1)), ([10, 8, 3, 4], v4(A1)), (1, 2), b"");
    site.refuses(R, &frame, DropReason::SourceIp);
}

fn claim(sender_mac: MacAddress, sender: [u8; 4]) -> Vec<u8> {
    let message = Message {
        operation: Operation::Reply,
        sender_mac,
        sender,
        target_mac: mac(A2),
        target: v4(A2),
    };
    arp((mac(A1), mac(A2)), message)
}

#[test]
fn arp_mac() {
    Site::new().refuses(A1, &claim(mac(R), v4(A1)), DropReason::ArpSpoof);
}

#[test]
fn arp_ip() {
    for address in [v4(R), GATEWAY4, [0; 4]] {
        Site::new().refuses(A1, &claim(mac(A1), address), DropReason::ArpSpoof);
    }
    assert_eq!(
        Site::new().inject(A1, &claim(mac(A1), v4(A1))).only().slot,
        A2
    );
}

fn advert(target: [u8; 16], link: MacAddress) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend_from_slice(&target);
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&link.0);
    message
}

fn nd(ip: ([u8; 16], [u8; 16]), hop_limit: u8, message: &[u8]) -> Vec<u8> {
    icmp6(
        (mac(A1), MacAddress::of_group6(ip.1)),
        ip,
        hop_limit,
        message,
    )
}

#[test]
fn nd_target() {
    for target in [v6(A2), GATEWAY6, link_local(GATEWAY)] {
        let frame = nd((v6(A1), ALL_NODES), 255, &advert(target, mac(A1)));
        Site::new().refuses(A1, &frame, DropReason::NdSpoof);
    }
    let frame = nd((v6(A1), ALL_NODES), 255, &advert(v6(A1), mac(A1)));
    assert_eq!(Site::new().inject(A1, &frame).slots(), [A2, R]);
}

#[test]
fn nd_target_link() {
    let frame = nd((v6(A1), ALL_NODES), 255, &advert(v6(A1), mac(A2)));
    Site::new().refuses(A1, &frame, DropReason::NdSpoof);
}

fn solicit(target: [u8; 16], link: Option<MacAddress>) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&target);
    if let Some(link) = link {
        message.extend_from_slice(&[1, 1]);
        message.extend_from_slice(&link.0);
    }
    message
}

#[test]
fn nd_source_link() {
    let frame = nd(
        (v6(A1), solicited_node(&v6(A2))),
        255,
        &solicit(v6(A2), Some(mac(R))),
    );
    Site::new().refuses(A1, &frame, DropReason::NdSpoof);
    let frame = nd(
        (UNSPECIFIED6, solicited_node(&v6(A2))),
        255,
        &solicit(v6(A2), Some(mac(A1))),
    );
    Site::new().refuses(A1, &frame, DropReason::NdSpoof);
}

#[test]
fn nd_hop_limit() {
    let frame = nd(
        (v6(A1), solicited_node(&v6(A2))),
        64,
        &solicit(v6(A2), Some(mac(A1))),
    );
    Site::new().refuses(A1, &frame, DropReason::NdSpoof);
}

#[test]
fn router_role() {
    let advertisement = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut redirect = vec![137, 0, 0, 0, 0, 0, 0, 0];
    redirect.extend_from_slice(&[v6(A1), v6(A2)].concat());
    for message in [&advertisement[..], &redirect] {
        let frame = nd((link_local(mac(A1)), ALL_NODES), 255, message);
        Site::new().refuses(A1, &frame, DropReason::RouterAdvert);
        let link = (mac(R), MacAddress::of_group6(ALL_NODES));
        let frame = icmp6(link, (link_local(mac(R)), ALL_NODES), 255, message);
        assert_eq!(Site::new().inject(R, &frame).slots(), [A1, A2]);
    }
    let header = wire::ipv4::Header::new(v4(A1), v4(A2), 1);
    let frame = icmp4(to_a2(), header, &[5, 1, 0, 0, 10, 1, 1, 10, 0, 0, 0, 0]);
    Site::new().refuses(A1, &frame, DropReason::RouterAdvert);
}

#[test]
fn dhcp_server() {
    let frame = udp4(to_a2(), (v4(A1), v4(A2)), (67, 68), &[2; 300]);
    Site::new().refuses(A1, &frame, DropReason::DhcpServer);
    let frame = udp6(to_a2(), (v6(A1), v6(A2)), (547, 546), &[7; 30]);
    Site::new().refuses(A1, &frame, DropReason::DhcpServer);
    // Nor from a port that is not a server's.
    let frame = udp4(to_a2(), (v4(A1), v4(A2)), (1025, 68), &[2; 300]);
    Site::new().refuses(A1, &frame, DropReason::DhcpServer);
    let frame = udp6(to_a2(), (v6(A1), v6(A2)), (1025, 546), &[7; 30]);
    Site::new().refuses(A1, &frame, DropReason::DhcpServer);
    let mut site = Site::with(|b| b.endpoints[0].roles = ROLE_DHCP_SERVER);
    let frame = udp4(to_a2(), (v4(A1), v4(A2)), (67, 68), &[2; 300]);
    assert_eq!(site.inject(A1, &frame).only().slot, A2);
}

/// An IPv6 packet of the given extension headers before an ICMPv6 message.
fn extended(extensions: &[u8], first: u8, message: &[u8]) -> Vec<u8> {
    let mut frame = nd((v6(A1), ALL_NODES), 255, &[extensions, message].concat());
    frame[14 + 6] = first;
    // What the builder took for a checksum.
    frame[14 + 40 + 2..14 + 40 + 4].copy_from_slice(&extensions[2..4]);
    frame
}

#[test]
fn nd_fragment() {
    let frame = extended(&[58, 0, 0, 0, 0, 0, 0, 1], 44, &advert(v6(A1), mac(A1)));
    Site::new().refuses(A1, &frame, DropReason::NdFragment);
}

#[test]
fn long_and_unknown_extension_chains() {
    let pad = [60, 0, 1, 4, 0, 0, 0, 0];
    let long: Vec<u8> = pad.repeat(9);
    Site::new().refuses(
        A1,
        &extended(&long, 60, &advert(v6(A1), mac(A1))),
        DropReason::ExtensionChain,
    );
    Site::new().refuses(
        A1,
        &extended(&pad, 135, &advert(v6(A1), mac(A1))),
        DropReason::ExtensionChain,
    );
}

#[test]
fn source_route() {
    let frame = extended(&[58, 0, 0, 0, 0, 0, 0, 0], 43, &[128, 0, 0, 0, 0, 0, 0, 0]);
    Site::new().refuses(A1, &frame, DropReason::SourceRoute);
    let mut frame = udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), b"");
    frame[14] = 0x47;
    frame[17] += 8;
    frame.splice(34..34, [131, 7, 4, 10, 1, 1, 12, 0]);
    frame[24..26].fill(0);
    let sum = wire::checksum::internet(&frame[14..42]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    Site::new().refuses(A1, &frame, DropReason::SourceRoute);
}

#[test]
fn unauthorised() {
    let mut site = Site::with(|b| b.endpoints[0].state = STATE_UNAUTHORISED);
    site.refuses(
        A1,
        &udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), b""),
        DropReason::Unauthorised,
    );
    // Nor does anything reach it.
    let frame = udp4((mac(A2), mac(A1)), (v4(A2), v4(A1)), (1, 2), b"");
    site.refuses(A2, &frame, DropReason::Unauthorised);
}

#[test]
fn quarantined() {
    let mut site = Site::with(|b| b.endpoints[0].state = STATE_QUARANTINED);
    site.refuses(
        A1,
        &udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), b""),
        DropReason::Quarantined,
    );
    let frame = udp4(
        (mac(A2), MacAddress::BROADCAST),
        (v4(A2), [255; 4]),
        (1, 2),
        b"",
    );
    assert_eq!(site.inject(A2, &frame).slots(), [R]);
}

#[test]
fn ingress_meter_counts_wire_bytes_and_packets() {
    let mut site = Site::with(|b| {
        b.endpoints[0].rate_bytes = 10_000;
        b.endpoints[0].rate_burst = 3_000;
    });
    let frame = udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), &[0; 958]);
    let passed = (0..10)
        .filter(|_| site.inject(A1, &frame).drops.is_empty())
        .count();
    assert_eq!(passed, 3);
    site.refuses(A1, &frame, DropReason::IngressRate);
    site.now += SECOND;
    assert!(site.inject(A1, &frame).drops.is_empty());

    let mut site = Site::with(|b| b.endpoints[0].rate_packets = 10);
    let passed = (0..200)
        .filter(|_| site.inject(A1, &frame).drops.is_empty())
        .count();
    assert_eq!(passed, 64);
}

#[test]
fn what_another_worker_handles_is_paid_for_at_home() {
    let config = core_switch::Config {
        workers: core_switch::Workers::new(2, 0),
        ..core_switch::Config::default()
    };
    let mut site = Site::configured(config, |tables| {
        tables.endpoints[1].rate_bytes = 10_000;
        tables.endpoints[1].rate_burst = 3_000;
    });
    let back = udp4((mac(A2), mac(A1)), (v4(A2), v4(A1)), (1, 2), &[0; 958]);
    let said: Vec<_> = (0..5).map(|_| site.owner(A2, &back)).collect();
    let late = Err(DropReason::IngressRate);
    assert_eq!(said, [Ok(1), Ok(1), Ok(1), late, late]);
}

/// Sends a packet of 8,000 bytes for so many seconds, as fast as it may: packets that
/// came out.
fn packets_of_large_ones(site: &mut Site, seconds: u64, link: (MacAddress, MacAddress)) -> u64 {
    let mut header = wire::ipv4::Header::new(v4(A1), v4(A2), 17);
    header.dont_fragment = false;
    let frame = udp4_with(link, header, (1, 2), &[7; 7972]);
    let (mut came, end) = (0, site.now + seconds * SECOND);
    while site.now < end {
        if site.switch().1.paused_until(A1) <= site.now {
            let seen = site.inject(A1, &frame);
            came += seen.slots().iter().filter(|slot| **slot == A2).count() as u64;
        }
        site.now += SECOND / 1000;
    }
    came
}

#[test]
fn fragments_are_charged_to_who_sent_the_packet() {
    for (own, mtu, group) in [(true, 1280, false), (false, 1280, false), (true, 576, true)] {
        let mut site = Site::with(|b| {
            for subnet in &mut b.subnets {
                subnet.mtu = 9000;
            }
            b.endpoints[0].mtu = 9000;
            for narrow in &mut b.endpoints[1..] {
                narrow.mtu = mtu;
            }
            match own {
                true => b.endpoints[0].rate_packets = 100,
                false => b.tenants[0].from.packets = 100,
            }
        });
        let link = match group {
            true => (mac(A1), MacAddress([0xff; 6])),
            false => (mac(A1), mac(A2)),
        };
        let came = packets_of_large_ones(&mut site, 10, link);
        // A rate of 100 a second, 64 at once, and one packet's into debt.
        assert!((900..=1100).contains(&came), "{came} of {mtu}");
    }
}

#[test]
fn tenant_meter_is_one_for_all_of_its_endpoints() {
    let mut site = Site::with(|b| {
        b.tenants[0].from = image::compartment::Rate {
            bytes: 10_000,
            burst: 3_000,
            packets: 0,
        };
    });
    let there = udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), &[0; 958]);
    let back = udp4((mac(A2), mac(A1)), (v4(A2), v4(A1)), (1, 2), &[0; 958]);
    assert!(site.inject(A1, &there).drops.is_empty());
    assert!(site.inject(A2, &back).drops.is_empty());
    assert!(site.inject(A1, &there).drops.is_empty());
    site.refuses(A2, &back, DropReason::IngressRate);
    site.refuses(A1, &there, DropReason::IngressRate);
    // They wait, and nothing that comes to them from outside.
    let paused =
        [A1, A2, core_switch::FABRIC].map(|slot| site.switch().1.paused_until(slot) > site.now);
    assert_eq!(paused, [true, true, false]);
    site.now += SECOND;
    assert!(site.inject(A2, &back).drops.is_empty());
}

#[test]
fn a_gso_record_is_metered_as_its_segments() {
    let mut site = Site::with(|b| b.endpoints[0].rate_packets = 10);
    let (frame, offload) = tcp_gso(60_000, 1000);
    assert!(site.inject_raw(A1, 0, offload, &frame).drops.is_empty());
    // 60 of 64 are spent: a second one goes into debt, a third does not pass.
    assert!(site.inject_raw(A1, 0, offload, &frame).drops.is_empty());
    assert_eq!(
        site.inject_raw(A1, 0, offload, &frame).reasons(),
        [DropReason::IngressRate]
    );
}

/// A TCP frame over IPv4 from A1 to A2 with a partial checksum, to be segmented.
pub fn tcp_gso(payload: usize, size: u16) -> (Vec<u8>, RawOffload) {
    let mut segment = vec![0; 20 + payload];
    segment[12] = 0x50;
    segment[13] = 0x18;
    let mut buffer = vec![0; 66_000];
    let link = wire::ethernet::Header::new(mac(A2), mac(A1), wire::ethernet::IPV4);
    let header = wire::ipv4::Header::new(v4(A1), v4(A2), 6);
    let n = wire::build::ipv4(&mut buffer, &link, &header, |b| {
        b[..segment.len()].copy_from_slice(&segment);
        Ok(segment.len())
    })
    .unwrap();
    buffer.truncate(n);
    let sum = wire::checksum::pseudo(&mapped(v4(A1)), &mapped(v4(A2)), 6, segment.len()).fold();
    buffer[34 + 16..34 + 18].copy_from_slice(&sum.to_be_bytes());
    let offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
    };
    (buffer, offload)
}

#[test]
fn absurd_offloads() {
    let (frame, good) = tcp_gso(30_000, 1448);
    assert!(Site::new().inject_raw(A1, 0, good, &frame).drops.is_empty());
    for (bad, name) in [
        (
            RawOffload {
                gso_size: 1,
                ..good
            },
            "32,000 segments",
        ),
        (
            RawOffload {
                gso_size: 0,
                ..good
            },
            "no size",
        ),
        (
            RawOffload {
                gso_type: 4,
                ..good
            },
            "IPv6",
        ),
        (
            RawOffload {
                gso_type: 3,
                ..good
            },
            "UFO",
        ),
        (
            RawOffload {
                flags: 0x80,
                ..good
            },
            "unknown flag",
        ),
        (
            RawOffload {
                csum_start: 14,
                ..good
            },
            "checksum of the IP header",
        ),
        (
            RawOffload {
                csum_offset: 0,
                ..good
            },
            "checksum over the ports",
        ),
        (RawOffload { flags: 0, ..good }, "no checksum"),
    ] {
        let seen = Site::new().inject_raw(A1, 0, bad, &frame);
        assert_eq!(
            (seen.reasons(), seen.sent.len()),
            (vec![DropReason::BadOffload], 0),
            "{name}"
        );
    }
}

#[test]
fn an_offload_is_rebuilt_and_data_valid_is_not_believed() {
    let (frame, good) = tcp_gso(30_000, 1448);
    let seen = Site::new().inject_raw(A1, 0, RawOffload { flags: 3, ..good }, &frame);
    assert_eq!(seen.only().offload, good);
}

#[test]
fn dhcp_client_without_an_address_is_the_only_nameless_speaker() {
    let frame = udp4(
        (mac(A1), MacAddress::BROADCAST),
        ([0; 4], [255; 4]),
        (68, 69),
        b"",
    );
    Site::new().refuses(A1, &frame, DropReason::SourceIp);
    let frame = nd(
        (UNSPECIFIED6, ALL_ROUTERS),
        255,
        &[128, 0, 0, 0, 0, 0, 0, 0],
    );
    Site::new().refuses(A1, &frame, DropReason::SourceIp);
}

/// Who waits for a rate that is raised, or is there no more, waits for it no longer.
#[test]
fn a_raised_rate_is_had_at_once() {
    use image::compartment::Rate;
    let of = |bytes| Rate {
        bytes,
        burst: 1_500,
        packets: 0,
    };
    for (own, raised) in [(true, 0), (true, 1 << 27), (false, 0), (false, 1 << 27)] {
        let set = |tables: &mut image::CompartmentTables, bytes| match own {
            true => {
                (
                    tables.endpoints[0].rate_bytes,
                    tables.endpoints[0].rate_burst,
                ) = (bytes, 1_500)
            }
            false => tables.tenants[0].from = of(bytes),
        };
        let mut site = Site::with(|tables| {
            tables.subnets.iter_mut().for_each(|it| it.mtu = 9000);
            tables.endpoints.iter_mut().for_each(|it| it.mtu = 9000);
            set(tables, 1_000);
        });
        let frame = udp4(to_a2(), (v4(A1), v4(A2)), (1, 2), &[0; 8900]);
        assert!(site.inject(A1, &frame).drops.is_empty());
        let waits = |site: &Site| site.switch().1.paused_until(A1).saturating_sub(site.now);
        // One that stays as it was is waited for as before.
        site.change(|tables| set(tables, 1_000));
        assert!(waits(&site) > 5 * SECOND, "{own}");
        site.change(|tables| set(tables, raised));
        assert!(
            waits(&site) < SECOND / 10,
            "{own} {raised}: {}",
            waits(&site)
        );
    }
}
