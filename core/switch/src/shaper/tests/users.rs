//! Those who use one endpoint: a flood of one takes no share of another's.

use super::*;
use image::compartment::{
    CROSSING_ACCEPTOR, CROSSING_OFFERER, Crossing, ROUTE_SERVICE, ROUTE_SUBNET, Route, RouteRange,
    ServicePorts,
};
use wire::address::mapped;

/// Tags of agreements: the first so many are of services that slot 1 offers, then one that
/// its tenant uses.
const FIRST: u16 = 40;

/// An endpoint that serves so many agreements, and a tenant that uses another's.
fn serving(agreements: u8, to: Rate) -> CompartmentTables {
    let mut tables = CompartmentTables {
        classes: classes(0).classes,
        ..tables(&[to], Rate::default())
    };
    tables.subnets[0].prefix4 = [10, 0, 0, 0];
    tables.subnets[0].prefix4_len = 24;
    tables.subnets[0].gateway4 = [10, 0, 0, 1];
    tables.addresses = vec![(0, mapped([10, 0, 0, 10]))];
    tables.endpoints[0].own_first = 0;
    tables.routes = vec![Route {
        kind: ROUTE_SUBNET,
        ..Route::default()
    }];
    let range = |start: [u8; 4], bits: u8, route: u32| {
        let end = [start[0], start[1], start[2], start[3] | bits];
        let (start, end) = (mapped(start), mapped(end));
        let reserved = [0; 3];
        (
            0,
            RouteRange {
                start,
                end,
                route,
                reserved,
            },
        )
    };
    tables.ranges = vec![range([10, 0, 0, 0], 255, 0)];
    for number in 0..=agreements {
        let uses = number == agreements;
        let address = [10, 0, 1 + number, 0];
        let via = u32::from(number);
        tables.crossings.push(Crossing {
            agreement: 900 + via,
            tag: FIRST + u16::from(number),
            role: if uses {
                CROSSING_ACCEPTOR
            } else {
                CROSSING_OFFERER
            },
            mtu: 1500,
            endpoint: if uses { NONE } else { 0 },
            address4: if uses { address } else { [10, 0, 0, 10] },
            pool4: if uses { [0; 4] } else { address },
            pool4_len: if uses { 0 } else { 28 },
            ..Crossing::default()
        });
        let ports = ServicePorts {
            protocol: 17,
            first: 53,
            last: 53,
            ..ServicePorts::default()
        };
        tables.service_ports.push((via, ports));
        tables.routes.push(Route {
            kind: ROUTE_SERVICE,
            via,
            ..Route::default()
        });
        let bits = if uses { 0 } else { 15 };
        tables.ranges.push(range(address, bits, 1 + via));
    }
    tables
}

/// Who sends to slot 1: by which tag, marked how, in frames of which length, how many bytes
/// a second.
#[derive(Clone, Copy, Debug)]
struct User {
    came_by: u16,
    dscp: u8,
    length: usize,
    bytes: u64,
}

/// What of each came in a second, after one to fill the queues.
fn came(shaper: &mut Shaper, users: &[User]) -> Vec<u64> {
    let (step, mut came, mut sent) = (500_000, vec![0; users.len()], vec![0; users.len()]);
    let mut now = 0;
    // Whose a frame is is in its first byte.
    let count = |came: &mut Vec<u64>, frame: &Outgoing<'_>, now: Nanos| {
        came[usize::from(frame.head[0])] += u64::from(now >= SECOND) * frame.wire as u64;
    };
    while now < 2 * SECOND {
        for (number, user) in users.iter().enumerate() {
            let mut bytes = head(user.dscp, user.length);
            bytes[0] = number as u8;
            let frame = Outgoing {
                came_by: user.came_by,
                ..frame(1, &bytes)
            };
            while sent[number] < user.bytes * now / SECOND {
                sent[number] += user.length as u64;
                if shaper.may_go(now, 1) {
                    shaper.sent(&frame);
                    count(&mut came, &frame, now);
                } else {
                    shaper.hold(now, FABRIC, &frame, |_, _| 0);
                }
            }
        }
        for _ in 0..20 {
            shaper.release(now, |frame| {
                count(&mut came, frame, now);
                Handed::Sent
            });
        }
        now += step;
    }
    came
}

#[test]
fn a_user_that_floods_an_endpoint_takes_nothing_of_another_users_share() {
    let rate = rate(1_000_000, 0);
    let honest = User {
        came_by: FIRST,
        dscp: 0,
        length: 1400,
        bytes: 450_000,
    };
    // More of it, in smaller or larger frames, by an answer or from within, and marked as a
    // class of three times the weight.
    let floods = [
        (FIRST + 1, 0, 1400, 10_000_000),
        (FIRST + 1, 0, 100, 5_000_000),
        (FIRST + 1, 0, 60_000, 20_000_000),
        (FIRST + 2, 0, 1400, 10_000_000),
        (0, 0, 1400, 10_000_000),
        (FIRST + 1, 10, 1400, 900_000),
        (FIRST + 1, 10, 1400, 10_000_000),
    ];
    for (came_by, dscp, length, bytes) in floods {
        let mut shaper = shaper(&serving(2, rate));
        let flood = User {
            came_by,
            dscp,
            length,
            bytes,
        };
        let got = came(&mut shaper, &[flood, honest]);
        assert!(
            got[1] * 100 >= honest.bytes * 95,
            "{got:?} beside {flood:?}"
        );
        // And what it leaves is not lost.
        assert!(got[0] + got[1] > 950_000, "{got:?} beside {flood:?}");
    }
}

#[test]
fn what_a_flood_leaves_of_the_room_takes_a_whole_large_frame() {
    let mut shaper = shaper(&serving(2, rate(1000, 0)));
    let (small, large) = (head(0, 100), head(0, 65_000));
    let by = |came_by, head| Outgoing {
        came_by,
        ..frame(1, head)
    };
    while shaper.hold(0, FABRIC, &by(FIRST, &small), |_, _| 0) {}
    assert!(shaper.hold(0, FABRIC, &by(FIRST + 1, &large), |_, _| 0));
    assert!(!shaper.hold(0, FABRIC, &by(FIRST + 1, &large), |_, _| 0));
    // What is by nobody's tag shares the place of the outside.
    assert!(shaper.hold(0, FABRIC, &by(7, &large), |_, _| 0));
    let frames = shaper.frames(1);
    assert_eq!(shaper.forget(1), frames);
    assert!(shaper.hold(0, FABRIC, &by(FIRST, &large), |_, _| 0));
}

#[test]
fn what_waits_outlives_agreements_that_come_and_go() {
    let rate = rate(1000, 0);
    let mut shaper = shaper(&serving(3, rate));
    let head = head(0, 1000);
    for tag in 0..4 {
        let frame = Outgoing {
            came_by: FIRST + tag,
            ..frame(1, &head)
        };
        assert!(shaper.hold(0, FABRIC, &frame, |_, _| 0));
    }
    for agreements in [1, 9, 0] {
        used(&mut shaper, &serving(agreements, rate), 5);
        assert_eq!(shaper.frames(1), 4);
    }
    let mut now = 0;
    while shaper.frames(1) != 0 {
        now += SECOND;
        shaper.release(now, |_| Handed::Sent);
    }
    // Their places went with them.
    used(&mut shaper, &serving(0, rate), now);
    let Some(Some(port)) = &shaper.ports.get(1) else {
        panic!("it is limited");
    };
    assert_eq!(port.classes[0].places(), 3);
    assert_eq!(port.classes[1].places(), 1);
}

#[test]
fn a_limit_of_packets_is_shared_by_packets() {
    let mut shaper = shaper(&serving(2, rate(0, 1000)));
    let user = |came_by, length| User {
        came_by,
        dscp: 0,
        length,
        bytes: 3000 * length as u64,
    };
    let users = [user(FIRST, 100), user(FIRST + 1, 1400)];
    let got = came(&mut shaper, &users);
    let packets = [got[0] / 100, got[1] / 1400];
    assert!(packets[0].abs_diff(packets[1]) < 50, "{packets:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn nobody_who_uses_an_endpoint_starves(
        users in proptest::collection::vec((64usize..9000, 0u8..64, 1u64..40), 2..7),
    ) {
        // Each by an agreement of its own, all together more than there is.
        let rate = rate(2_000_000, 0);
        let mut shaper = shaper(&serving(6, rate));
        let users: Vec<User> = (0..).zip(&users).map(|(n, (length, dscp, times))| User {
            came_by: FIRST + n,
            dscp: *dscp,
            length: *length,
            bytes: times * 500_000,
        }).collect();
        let got = came(&mut shaper, &users);
        let fair = rate.bytes / users.len() as u64;
        for (user, got) in users.iter().zip(&got) {
            let asked = user.bytes.min(fair);
            prop_assert!(*got * 10 >= asked * 8, "{:?} got {} of {}", user, got, asked);
        }
    }
}

#[test]
fn what_each_had_is_counted_anew_where_the_unit_is_another() {
    let mut shaper = shaper(&serving(2, rate(1_000_000, 0)));
    let user = |came_by: u16, length: usize| User {
        came_by,
        dscp: 0,
        length,
        bytes: 2_000_000,
    };
    // One alone has a frame's bytes more than who comes next, which is no thousand packets.
    came(&mut shaper, &[user(FIRST, 1000)]);
    let mut now = 2 * SECOND;
    while shaper.due() != Nanos::MAX {
        shaper.release(now, |_| Handed::Sent);
        now += 1_000_000;
    }
    used(&mut shaper, &serving(2, rate(0, 1000)), now);
    let mut order = Vec::new();
    for number in 0..20u8 {
        for tag in [FIRST, FIRST + 1] {
            let mut bytes = head(0, 100);
            bytes[0] = tag as u8;
            bytes[1] = number;
            let frame = Outgoing {
                came_by: tag,
                ..frame(1, &bytes)
            };
            assert!(shaper.hold(now, 0, &frame, |_, _| 0));
        }
    }
    while shaper.due() != Nanos::MAX {
        shaper.release(now, |frame| {
            order.push(u16::from(frame.head[0]));
            Handed::Sent
        });
        now += 1_000_000;
    }
    let of_first = order[..20].iter().filter(|tag| **tag == FIRST);
    assert_eq!((order.len(), of_first.count()), (40, 10), "{order:?}");
}
