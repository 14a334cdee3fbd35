//! The short way: a packet like one that passed fares as if it were judged anew.

use crate::policy::{rule, servers};
use crate::properties;
use crate::support::*;
use core_switch::{Connection, Cursor};
use image::rules::Action;
use proptest::prelude::*;
use wire::MacAddress;
use wire::address::mapped;
use wire::offload::{NEEDS_CSUM, RawOffload};
use wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Two sites that see the same: one takes the short way where it can, one never.
struct Twins {
    short: Site,
    long: Site,
    hits: u32,
}

fn all(site: &Site) -> Vec<Connection> {
    let mut found = Vec::new();
    site.walk(&mut Cursor::default(), &mut |c| found.push(*c));
    found
}

impl Twins {
    fn new() -> Twins {
        let site = || {
            Site::with(|tables| {
                servers()(tables);
                tables.rule_tables[0]
                    .rules
                    .push(rule(17, 2000..=2010, Action::Allow, 7));
                tables.rule_tables[1]
                    .rules
                    .push(rule(17, 2000..=2010, Action::Allow, 8));
                // B1 takes less, A2 nothing unfinished, and A1 may not send for ever.
                tables.endpoints[3].mtu = 1280;
                tables.endpoints[1].features = 0;
                tables.endpoints[0].rate_bytes = 20_000;
                tables.endpoints[0].rate_burst = 6_000;
            })
        };
        Twins {
            short: site(),
            long: site(),
            hits: 0,
        }
    }

    /// Of a flow from A1 to B1 that takes the short way.
    fn begun() -> Twins {
        let mut twins = Twins::new();
        for _ in 0..2 {
            twins.plain(A1, &asks(1000));
            assert_eq!(twins.hits, 0);
        }
        twins.hits(A1, &asks(1000));
        twins
    }

    /// The same frame into both; what came of it.
    #[track_caller]
    fn both(&mut self, from: u32, offload: RawOffload, frame: &[u8]) -> Seen {
        let (hit, short) = self.short.inject_short(from, offload, frame);
        let long = self.long.judge(from, offload, frame);
        self.hits += u32::from(hit);
        assert_eq!(short.sent, long.sent, "from {from}: {frame:02x?}");
        assert_eq!(short.drops, long.drops, "from {from}: {frame:02x?}");
        assert_eq!(short.counts, long.counts, "from {from}: {frame:02x?}");
        assert_eq!(short.decided, long.decided, "from {from}: {frame:02x?}");
        short
    }

    #[track_caller]
    fn plain(&mut self, from: u32, frame: &[u8]) -> Seen {
        self.both(from, RawOffload::default(), frame)
    }

    /// One that takes the short way.
    #[track_caller]
    fn hits(&mut self, from: u32, frame: &[u8]) -> Seen {
        let before = self.hits;
        let seen = self.plain(from, frame);
        assert_eq!(self.hits, before + 1, "{seen:?}");
        seen
    }

    #[track_caller]
    fn same_connections(&self) {
        assert_eq!(all(&self.short), all(&self.long));
    }

    fn after(&mut self, time: u64) {
        self.short.after(time);
        self.long.after(time);
    }

    /// Time passes and nothing falls due.
    fn later(&mut self, time: u64) {
        self.short.now += time;
        self.long.now += time;
    }
}

const BRIDGED: (MacAddress, MacAddress) = (
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
);
const ROUTED: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);
const BACK: (MacAddress, MacAddress) = (
    MacAddress([2, 0, 0, 0, 0, 4]),
    MacAddress([2, 0x99, 0, 0, 0, 1]),
);

fn asks(port: u16) -> Vec<u8> {
    udp4(ROUTED, (v4(A1), v4(B1)), (port, 2000), &[7; 30])
}
fn answers(port: u16) -> Vec<u8> {
    udp4(BACK, (v4(B1), v4(A1)), (2000, port), &[8; 30])
}

/// Sums an IPv4 header again.
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let sum = wire::checksum::internet(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn a_packet_like_one_before_takes_the_short_way_both_ways() {
    let mut twins = Twins::begun();
    twins.plain(B1, &answers(1000));
    // The first packet of either side makes a way known, and the others go it.
    twins.hits(B1, &answers(1000));
    twins.hits(A1, &asks(1000));
    let seen = twins.hits(A1, &asks(1000));
    let sent = seen.only();
    assert_eq!((sent.slot, &sent.frame[0..6]), (B1, &mac(B1).0[..]));
    assert_eq!(sent.frame[22] + 1, asks(1000)[22], "a hop is counted");
    // Another flow by the same way is not judged anew either, once it is there.
    twins.plain(A1, &asks(1001));
    twins.hits(A1, &asks(1001));
    let bridged = udp4(BRIDGED, (v4(A1), v4(A2)), (5, 2001), &[1; 30]);
    twins.plain(A1, &bridged);
    twins.plain(A1, &bridged);
    assert_eq!(twins.hits(A1, &bridged).only().frame, bridged);
    twins.same_connections();
}

#[test]
fn what_follows_the_first_segments_takes_it_to_the_end() {
    let mut twins = Twins::new();
    let forth = |port, flags, seq, ack, data: &[u8]| {
        let ip = (mapped(v4(A1)), mapped(v4(B1)));
        tcp(ROUTED, ip, (port, 80), (flags, seq, ack), data)
    };
    let back = |port, flags, seq, ack, data: &[u8]| {
        let ip = (mapped(v4(B1)), mapped(v4(A1)));
        tcp(BACK, ip, (80, port), (flags, seq, ack), data)
    };
    for port in [1000, 1001, 1002] {
        let short = port != 1000;
        let before = twins.hits;
        twins.plain(A1, &forth(port, SYN, 100, 0, b""));
        twins.plain(B1, &back(port, SYN | ACK, 500, 101, b""));
        assert_eq!(twins.hits, before);
        // By the first connection the ways become known.
        twins.plain(A1, &forth(port, ACK, 101, 501, b""));
        assert_eq!(twins.hits, before + u32::from(short));
        twins.hits(A1, &forth(port, ACK | PSH, 101, 501, b"GET"));
        let before = twins.hits;
        twins.plain(B1, &back(port, ACK, 501, 104, b"page"));
        assert_eq!(twins.hits, before + u32::from(short));
        twins.hits(B1, &back(port, ACK, 505, 104, b"and more"));
        // Windows are watched all the same.
        let before = twins.hits;
        twins.plain(A1, &forth(port, ACK, 800_000_000, 501, b"x"));
        twins.plain(B1, &back(port, ACK, 505, 900_000_000, b""));
        twins.plain(B1, &back(port, RST, 900_000_000, 0, b""));
        twins.plain(B1, &back(port, FIN | ACK, 900_000_000, 104, b""));
        assert_eq!(twins.hits, before);
        twins.same_connections();
        match port {
            1002 => twins.hits(A1, &forth(port, RST, 104, 0, b"")),
            _ => {
                twins.hits(A1, &forth(port, ACK | FIN, 104, 513, b""));
                twins.hits(B1, &back(port, ACK, 513, 105, b""));
                twins.hits(B1, &back(port, ACK | FIN, 513, 105, b""));
                twins.hits(A1, &forth(port, ACK, 105, 514, b""))
            }
        };
        twins.same_connections();
    }
}

/// A flow that takes the short way, and a change that keeps it from that.
fn odd(change: impl Fn(&mut Vec<u8>)) -> Twins {
    let mut twins = Twins::begun();
    let mut frame = asks(1000);
    change(&mut frame);
    twins.plain(A1, &frame);
    assert_eq!(twins.hits, 1);
    twins.same_connections();
    twins
}

#[test]
fn a_wrong_checksum_is_seen() {
    odd(|frame| frame[25] ^= 1);
    odd(|frame| frame[18] ^= 0x80);
}

#[test]
fn a_length_that_is_not_true_is_seen() {
    odd(|frame| {
        frame[17] += 1;
        *frame = summed(frame.clone());
    });
    odd(|frame| frame[39] += 1);
    odd(|frame| frame[38..40].copy_from_slice(&[0, 7]));
    odd(|frame| frame.truncate(60));
}

#[test]
fn what_its_receiver_takes_no_longer_is_seen() {
    odd(|frame| *frame = udp4(ROUTED, (v4(A1), v4(B1)), (1000, 2000), &[7; 1300]));
    // Padding counts on a wire.
    odd(|frame| frame.resize(1400, 0));
}

#[test]
fn the_last_hop_is_seen() {
    for left in [0, 1] {
        odd(|frame| {
            frame[22] = left;
            *frame = summed(frame.clone());
        });
    }
}

#[test]
fn other_headers_are_other_packets() {
    // Fragments, options, a tag, another class, another MAC.
    odd(|frame| {
        frame[20] |= 0x20;
        *frame = summed(frame.clone());
    });
    odd(|frame| {
        frame[14] = 0x46;
        *frame = summed(frame.clone());
    });
    odd(|frame| frame[12..14].copy_from_slice(&[0x81, 0]));
    odd(|frame| frame[11] = 9);
    odd(|frame| frame[5] = 9);
    odd(|frame| {
        frame[23] = 47;
        *frame = summed(frame.clone());
    });
}

#[test]
fn a_checksum_to_be_finished_goes_on_as_it_came_or_is_finished() {
    let partial = RawOffload {
        flags: NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..RawOffload::default()
    };
    let mut twins = Twins::new();
    let bridged = udp4(BRIDGED, (v4(A1), v4(A2)), (5, 2001), &[1; 30]);
    for (frame, hits) in [(asks(1000), 1), (bridged, 0)] {
        twins.plain(A1, &frame);
        twins.plain(A1, &frame);
        let before = twins.hits;
        twins.both(A1, partial, &frame);
        assert_eq!(twins.hits - before, hits, "A2 wants it finished");
        let mut padded = frame.clone();
        padded.extend([0; 9]);
        twins.both(A1, partial, &padded);
        for odd in [
            RawOffload {
                csum_start: 33,
                ..partial
            },
            RawOffload {
                csum_offset: 16,
                ..partial
            },
            RawOffload {
                gso_type: 5,
                gso_size: 600,
                ..partial
            },
            RawOffload {
                flags: 4,
                ..RawOffload::default()
            },
        ] {
            twins.both(A1, odd, &frame);
        }
    }
    twins.same_connections();
}

#[test]
fn a_connections_number_that_is_anothers_now_is_not_its_own() {
    let mut twins = Twins::begun();
    // It ends, and another gets its place.
    twins.after(400 * SECOND);
    twins.after(SECOND);
    twins.after(SECOND);
    assert_eq!(all(&twins.short), []);
    twins.plain(A1, &asks(1001));
    twins.plain(A1, &asks(1000));
    assert_eq!(all(&twins.short).len(), 2);
    twins.same_connections();
}

#[test]
fn a_number_of_a_former_room_is_not_believed_in_the_next() {
    let mut twins = Twins::new();
    let ports = 1000..1003;
    for port in ports.clone() {
        twins.plain(A1, &asks(port));
    }
    // More changes of room than may be under way: the last one waits.
    for n in 0..5 {
        for site in [&mut twins.short, &mut twins.long] {
            site.change(|tables| tables.endpoints[4].connections = 80 + n);
        }
    }
    for port in ports.clone() {
        twins.plain(A1, &asks(port));
    }
    twins.after(SECOND);
    for port in ports.rev().chain([1000]) {
        twins.plain(A1, &asks(port));
        twins.same_connections();
    }
}

/// Three connections' flows are not there, and their way is.
fn foreseen() -> Twins {
    let mut twins = Twins::new();
    for port in [1001, 1002, 1003, 1000, 1000] {
        twins.plain(A1, &asks(port));
    }
    let frames = [asks(1001), asks(1002), asks(1003)];
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    twins.short.foresee(A1, &frames);
    twins
}

#[test]
fn packets_are_looked_up_together() {
    let mut twins = foreseen();
    twins.short.sought();
    // One of them is not the next after all.
    for port in [1001, 1003, 1002, 1001] {
        twins.hits(A1, &asks(port));
    }
    // Who sent them pays for that, once each.
    assert_eq!(twins.short.sought(), 3);
    let frames = [answers(1003), answers(1001)];
    for port in [1000, 1001, 1003] {
        twins.plain(B1, &answers(port));
    }
    // All is forgotten, and then one way is known again.
    twins.short.takes(A2, 0);
    twins.long.takes(A2, 0);
    twins.plain(B1, &answers(1000));
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    twins.short.foresee(B1, &frames);
    for frame in frames {
        twins.hits(B1, frame);
    }
    twins.same_connections();
}

#[test]
fn what_was_foreseen_of_a_connection_is_not_believed_of_another() {
    for others in [0, 3] {
        let mut twins = foreseen();
        // They end, and others may have their places.
        for _ in 0..3 {
            twins.after(400 * SECOND);
        }
        assert_eq!(all(&twins.short), []);
        for port in 1010..1010 + others {
            twins.plain(A1, &asks(port));
        }
        for port in [1001, 1002, 1003] {
            twins.plain(A1, &asks(port));
            twins.same_connections();
        }
    }
}

#[test]
fn one_that_was_silent_for_too_long_begins_anew() {
    let mut twins = Twins::begun();
    twins.later(121 * SECOND);
    let seen = twins.plain(A1, &asks(1000));
    assert!(seen.decided.is_some(), "{seen:?}");
    twins.same_connections();
}

#[test]
fn an_edit_and_what_a_port_takes_are_seen_at_once() {
    let mut twins = Twins::begun();
    for site in [&mut twins.short, &mut twins.long] {
        site.change(|tables| tables.rule_tables[1].rules.retain(|rule| rule.id != 8));
    }
    assert_eq!(twins.plain(A1, &asks(1000)).sent, []);
    let mut twins = Twins::new();
    let partial = RawOffload {
        flags: NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..RawOffload::default()
    };
    twins.plain(A1, &asks(1000));
    twins.plain(A1, &asks(1000));
    twins.both(A1, partial, &asks(1000));
    assert_eq!(twins.hits, 1);
    twins.short.takes(B1, 0);
    twins.long.takes(B1, 0);
    let seen = twins.both(A1, partial, &asks(1000));
    assert_eq!(seen.only().offload, RawOffload::default());
}

/// Denies what goes to this port.
fn deny(twins: &mut Twins, port: u16) {
    for site in [&mut twins.short, &mut twins.long] {
        site.change(|tables| {
            let deny = rule(17, port..=port, Action::Deny, 90);
            tables.rule_tables[0].rules.insert(0, deny);
        });
    }
}

#[test]
fn an_edit_leaves_what_it_does_not_concern_on_the_short_way() {
    let to = |port| udp4(ROUTED, (v4(A1), v4(B1)), (1000, port), &[7; 30]);
    let mut twins = Twins::new();
    for port in [2000, 2001, 2002, 2003] {
        twins.plain(A1, &to(port));
    }
    deny(&mut twins, 2001);
    twins.plain(A1, &to(2000));
    // The way is known again, and nobody looks at a rule for this one.
    twins.hits(A1, &to(2002));
    twins.hits(A1, &to(2003));
    assert_eq!(twins.plain(A1, &to(2001)).sent, []);
    // Of several edits each is looked at, and of more than are remembered the rules.
    deny(&mut twins, 2003);
    for port in [2010, 2011, 2012] {
        deny(&mut twins, port);
    }
    twins.plain(A1, &to(2000));
    twins.hits(A1, &to(2002));
    assert_eq!(twins.plain(A1, &to(2003)).sent, []);
    for port in 2013..2018 {
        deny(&mut twins, port);
    }
    twins.plain(A1, &to(2000));
    let before = twins.hits;
    twins.plain(A1, &to(2002));
    assert_eq!(twins.hits, before);
    twins.hits(A1, &to(2002));
    twins.same_connections();
}

#[test]
fn a_connection_that_leads_elsewhere_is_judged() {
    // Through the router's MAC, to the same address.
    let around = |port| {
        let link = (mac(A1), mac(R));
        udp4(link, (v4(A1), v4(B1)), (port, 2000), &[7; 30])
    };
    let mut twins = Twins::begun();
    for _ in 0..3 {
        assert_eq!(twins.plain(A1, &around(1001)).only().slot, R);
    }
    assert_eq!(twins.hits, 2);
    twins.plain(A1, &around(1000));
    assert_eq!(twins.hits, 2);
    twins.same_connections();
}

#[test]
fn whose_rate_is_used_up_is_refused_as_before() {
    let mut twins = Twins::new();
    twins.plain(A1, &asks(1000));
    for _ in 0..400 {
        twins.plain(A1, &asks(1000));
        twins.later(SECOND / 1000);
    }
    assert!(twins.hits > 50 && twins.hits < 300, "{}", twins.hits);
    twins.same_connections();
}

/// What stations say to each other, mostly of few flows, now and then bent.
fn step() -> impl Strategy<Value = (u32, Vec<u8>, RawOffload, u64)> {
    let flow = (
        prop::sample::select(vec![(A1, B1), (B1, A1), (A1, A2), (A2, A1), (C1, C2)]),
        prop::sample::select(vec![
            (17u8, 1000u16, 2000u16),
            (17, 1001, 53),
            (6, 1000, 80),
        ]),
        prop::sample::select(vec![SYN, SYN | ACK, ACK, ACK, ACK | PSH, FIN | ACK, RST]),
        0u32..4,
        prop::sample::select(vec![0usize, 10, 30, 1200, 1300]),
    )
        .prop_map(|((from, to), (protocol, a, b), flags, number, length)| {
            let ports = if from < to { (a, b) } else { (b, a) };
            let beyond = [from, to].contains(&B1);
            let link = match (from, beyond) {
                (B1, _) => BACK,
                (_, true) => (mac(from), GATEWAY),
                _ => (mac(from), mac(to)),
            };
            let data = vec![5; length];
            let frame = match protocol {
                17 => udp4(link, (v4(from), v4(to)), ports, &data),
                _ => {
                    let ip = (mapped(v4(from)), mapped(v4(to)));
                    tcp(link, ip, ports, (flags, 100 + number, 100 + number), &data)
                }
            };
            (from, frame)
        });
    let bend = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
    let bent = (flow, bend).prop_map(|((from, mut frame), bend)| {
        if let Some((at, value)) = bend {
            let at = at.index(frame.len().min(60));
            frame[at] = value;
        }
        (from, frame)
    });
    let any = (1u32..7, properties::frame());
    let time = prop::sample::select(vec![0, 0, 1000, 1_000_000, 20_000_000, 90 * SECOND]);
    (
        prop_oneof![12 => bent, 1 => any],
        prop_oneof![5 => Just(RawOffload::default()), 1 => properties::offload()],
        time,
    )
        .prop_map(|((from, frame), offload, time)| (from, frame, offload, time))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_short_way_and_the_long_one_come_to_the_same(
        steps in prop::collection::vec(step(), 1..120), edit in 0usize..120, ahead in 1usize..9
    ) {
        let mut twins = Twins::new();
        for (n, (from, frame, offload, time)) in steps.iter().enumerate() {
            let (from, offload, time) = (*from, *offload, *time);
            if n.is_multiple_of(ahead) {
                let next = steps[n..].iter().filter(|step| step.0 == from);
                let next: Vec<&[u8]> = next.map(|step| step.1.as_slice()).collect();
                twins.short.foresee(from, &next);
            }
            if n % 7 == 3 && n > edit {
                // Rooms change, one behind another.
                for site in [&mut twins.short, &mut twins.long] {
                    site.change(|tables| tables.endpoints[4].connections += 1);
                }
            }
            if n == edit {
                for site in [&mut twins.short, &mut twins.long] {
                    site.change(|tables| tables.rule_tables[0].rules.retain(|rule| rule.id != 1));
                }
            }
            twins.both(from, offload, frame);
            twins.after(time);
        }
        twins.same_connections();
    }
}
