//! Random operations: nothing panics, no limit is passed, no two listeners are in each
//! other's way, and what the records say is the table.

use super::*;
use crate::binding::conflicts;
use crate::groups::Hears;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Create(u64, u32, bool, u32, u8),
    Datagram(u64, u32, bool, u8, u8),
    Use(u64, Ip, u16, bool),
    Bind(u64, Ip, u16, u32),
    Listen(u64, i32, u32),
    Connect(u64, Ip, u16, u32),
    Outcome(u64, bool),
    Accept(u64, u64),
    Option(u64, i32, i32, i32),
    Disconnect(u64),
    Close(u64),
    Bytes(u64, Vec<u8>),
    Retain(u64),
}

const LIMITS: Limits = Limits {
    sockets: 8,
    pending: 5,
};

fn step() -> impl Strategy<Value = Step> {
    let cookie = || 0..12_u64;
    let ip = || {
        prop::sample::select(vec![
            ANY4,
            ANY6,
            LO4,
            LO4B,
            LO6,
            OWN4,
            OWN6,
            v4([10, 0, 0, 6]),
        ])
    };
    let port = || prop::sample::select(vec![0_u16, 5000, 5000, 5001, 80, 33000]);
    prop_oneof![
        3 => (cookie(), 0..3_u32, any::<bool>(), 0..2_u32, any::<u8>())
            .prop_map(|(a, b, c, d, e)| Step::Create(a, b, c, d, e)),
        3 => (cookie(), 0..3_u32, any::<bool>(), 0..16_u8, any::<u8>())
            .prop_map(|(a, b, c, d, e)| Step::Datagram(a, b, c, d, e)),
        4 => (cookie(), ip(), port(), any::<bool>()).prop_map(|(a, b, c, d)| Step::Use(a, b, c, d)),
        4 => (cookie(), ip(), port(), any::<u32>()).prop_map(|(a, b, c, d)| Step::Bind(a, b, c, d)),
        4 => (cookie(), -1..4, any::<u32>()).prop_map(|(a, b, c)| Step::Listen(a, b, c)),
        5 => (cookie(), ip(), port(), any::<u32>()).prop_map(|(a, b, c, d)| Step::Connect(a, b, c, d)),
        2 => (cookie(), any::<bool>()).prop_map(|(a, b)| Step::Outcome(a, b)),
        4 => (cookie(), cookie()).prop_map(|(a, b)| Step::Accept(a, b)),
        // Those that bear on bindings are set at the start alone.
        2 => (cookie(), prop::sample::select(vec![0, 6, 41]), 1..26, any::<i32>())
            .prop_map(|(a, b, c, d)| Step::Option(a, b, c, d)),
        1 => cookie().prop_map(Step::Disconnect),
        1 => cookie().prop_map(Step::Close),
        1 => (cookie(), prop::collection::vec(any::<u8>(), 0..30)).prop_map(|(a, b)| Step::Bytes(a, b)),
        1 => cookie().prop_map(Step::Retain),
    ]
}

/// Those that may get what goes this way: all that share it, or the newest of those that do not.
fn fitting(table: &Table, way: &Way) -> std::collections::BTreeSet<u64> {
    if !table.endpoints[0].local(&way.remote.ip) {
        return Default::default();
    }
    let hears = |socket: &Socket| {
        if socket.family == Family::V4 && !crate::address::is_v4(&way.local.ip) {
            return None;
        }
        let fit = crate::binding::fit(socket, &way.remote.ip)?;
        match socket.remote() {
            Some(peer) => (peer == way.local).then_some((true, fit)),
            None => Some((false, fit)),
        }
    };
    let all = table.datagrams_at(0, way.remote.port);
    let score = |it: &Socket| Some((hears(it)?, it.family == Family::V4));
    let all: Vec<_> = all.filter_map(|it| Some((score(it)?, it))).collect();
    let best = all.iter().map(|(score, _)| *score).max();
    let best: Vec<_> = all
        .iter()
        .filter(|(score, _)| Some(*score) == best)
        .collect();
    let newest = best.iter().map(|(_, it)| *it).max_by_key(|it| it.token);
    // Those of IPv6 alone share nothing with those of both.
    let is_one = |it: &&Socket| newest.is_some_and(|one| Hears::of(one) == Hears::of(it));
    let group = || best.iter().map(|(_, it)| *it).filter(is_one);
    match group().all(|it| it.options.reuse_port()) {
        true => group().map(|it| it.cookie).collect(),
        false => newest.map(|it| it.cookie).into_iter().collect(),
    }
}

fn apply(table: &mut Table, step: &Step) -> Result<(), Errno> {
    let on = 1_i32.to_ne_bytes();
    match step {
        Step::Create(cookie, endpoint, six, uid, flags) => {
            let family = if *six { Family::V6 } else { Family::V4 };
            table.create(*cookie, *endpoint, family, *uid)?;
            for (bit, level, name) in [(1, 1, 2), (2, 1, 15), (4, 41, 26)] {
                if flags & bit != 0 {
                    table.set_option(*cookie, level, name, &on)?;
                }
            }
        }
        Step::Datagram(cookie, endpoint, six, name, flags) => {
            let family = if *six { Family::V6 } else { Family::V4 };
            table.create_datagram(*cookie, *endpoint, family, [*name; 16])?;
            for (bit, level, name) in [(1, 1, 2), (2, 1, 15), (4, 41, 26)] {
                if flags & bit != 0 {
                    table.set_option(*cookie, level, name, &on)?;
                }
            }
        }
        Step::Use(cookie, ip, port, connects) => {
            table.bind_by_use(*cookie, u32::from(*port))?;
            let to = Endpoint {
                ip: *ip,
                port: *port,
            };
            let way = table.way(*cookie, to, None)?;
            if *connects {
                table.connect_datagram(*cookie, way)?;
            }
            if let Some(found) = table.find_receiver(0, &way, 7) {
                let found = table.socket(found.cookie).unwrap();
                assert_eq!(found.local().port, way.remote.port);
                assert!(found.remote().is_none_or(|peer| peer == way.local));
                assert_eq!(table.by_name(&found.name()), Some(found));
            }
            // What is found by groups is what a look at each comes to, whoever asks.
            for from in [way.local.ip, LO4, LO6, OWN4, OWN6] {
                let asked = |ip| Way {
                    local: Endpoint {
                        ip: from,
                        ..way.local
                    },
                    remote: Endpoint { ip, ..way.remote },
                };
                for way in [way.remote.ip, LO4, LO6, OWN4, OWN6].map(asked) {
                    let fitting = fitting(table, &way);
                    let found = |hash| Some(table.find_receiver(0, &way, hash)?.cookie);
                    let found: Vec<u64> =
                        (0..fitting.len().max(1) as u32).filter_map(found).collect();
                    let all: std::collections::BTreeSet<u64> = found.iter().copied().collect();
                    assert_eq!(all, fitting, "{way:?}");
                }
            }
        }
        Step::Bind(cookie, ip, port, chance) => {
            let family = table.socket(*cookie).map_or(Family::V4, Socket::family);
            table.bind(*cookie, &bytes(family, *ip, *port), false, *chance)?;
        }
        Step::Listen(cookie, backlog, chance) => {
            table.listen(*cookie, *backlog, [7; 16], *chance)?
        }
        Step::Connect(cookie, ip, port, chance) => {
            let socket = table.socket(*cookie).ok_or(Errno::EBADF)?;
            let (family, from) = (socket.family(), socket.endpoint());
            let begun = table.connect_begin(*cookie, &bytes(family, *ip, *port), *chance)?;
            let Connect::To { local, remote, .. } = begun else {
                return Ok(());
            };
            let to = table
                .destination(from, &remote.ip)
                .ok_or(Errno::ENETUNREACH)?;
            let found = table
                .find_listener(to, remote, *chance)
                .ok_or(Errno::ECONNREFUSED)?;
            let pending = Pending {
                client: local,
                local: remote,
                token: *cookie,
                crossing: 0,
                relayed: false,
            };
            assert_ne!(table.enqueue(found.cookie, pending), Err(Errno::EINVAL));
        }
        Step::Outcome(cookie, true) => table.connected(*cookie)?,
        Step::Outcome(cookie, false) => table.connect_failed(*cookie)?,
        Step::Accept(cookie, new) => drop(table.accepted(*cookie, *new, None)?),
        Step::Option(cookie, level, name, value) => {
            table.set_option(*cookie, *level, *name, &value.to_ne_bytes())?;
            table.read_option(*cookie, *level, *name, *value)?;
        }
        Step::Disconnect(cookie) => table.disconnect(*cookie)?,
        Step::Close(cookie) => table.closed(*cookie)?,
        Step::Bytes(cookie, bytes) => {
            let _ = table.bind(*cookie, bytes, true, 0);
            let _ = table.connect_begin(*cookie, bytes, 0);
        }
        Step::Retain(cookie) => table.retain(|it| it != *cookie),
    }
    Ok(())
}

fn check(table: &Table) {
    let (sockets, pending) = table.counts();
    assert!(sockets <= LIMITS.sockets as usize && pending <= LIMITS.pending as usize);
    let all: Vec<&Socket> = (0..12).filter_map(|it| table.socket(it)).collect();
    assert_eq!(all.len(), sockets);
    for one in &all {
        let waiting = table.waiting(one.cookie()).count();
        assert_eq!(table.waiting_by(one.cookie(), 0), waiting);
        assert_eq!(table.has_waiting(one.cookie()), waiting > 0);
    }
    let listens = |it: &&&Socket| matches!(it.state(), State::Listening { .. });
    for one in all.iter().filter(listens) {
        for other in all.iter().filter(listens) {
            let same = one.endpoint() == other.endpoint() && one.local().port == other.local().port;
            let differ = one.cookie() != other.cookie();
            assert!(
                !(same && differ && conflicts(one, &one.local().ip, other)),
                "{one:?} {other:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_its_records(steps in prop::collection::vec(step(), 0..80)) {
        let endpoints = table().endpoints;
        let mut table = Table::new(LIMITS, endpoints.clone());
        let mut page = vec![[0; RECORD]; table.slots() as usize];
        for step in &steps {
            let _ = apply(&mut table, step);
            check(&table);
            // As many as there are slots at most.
            while let Some(slot) = table.changed() {
                page[slot as usize] = table.record(slot);
            }
            let (again, rejected) = Table::restore(LIMITS, endpoints.clone(), (0..).zip(&page));
            prop_assert_eq!(rejected, Vec::<u32>::new());
            prop_assert_eq!(&again, &table);
        }
    }

    #[test]
    fn nonsense_is_rejected(
        steps in prop::collection::vec(step(), 0..60),
        scribbles in prop::collection::vec((0..13_usize, 0..RECORD, any::<u8>()), 1..20),
    ) {
        let endpoints = table().endpoints;
        let mut table = Table::new(LIMITS, endpoints.clone());
        for step in &steps {
            let _ = apply(&mut table, step);
        }
        let mut page: Vec<_> = (0..table.slots()).map(|it| table.record(it)).collect();
        for (slot, byte, value) in scribbles {
            page[slot][byte] = value;
        }
        let (mut again, rejected) = Table::restore(LIMITS, endpoints.clone(), (0..).zip(&page));
        // What was rejected is written anew, and then all is in order.
        let mut written = Vec::new();
        while let Some(slot) = again.changed() {
            page[slot as usize] = again.record(slot);
            written.push(slot);
        }
        for slot in &rejected {
            prop_assert!(written.contains(slot));
        }
        let (third, rejected) = Table::restore(LIMITS, endpoints, (0..).zip(&page));
        prop_assert_eq!(rejected, Vec::<u32>::new());
        prop_assert_eq!(third, again);
    }
}
