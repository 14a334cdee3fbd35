//! UDP: as measured on Linux 6.18, but where a comment says otherwise.

use super::*;
use Errno::{EAFNOSUPPORT, EDESTADDRREQ, EINVAL, ENETUNREACH, EOPNOTSUPP};

fn made(family: Family) -> Table {
    let mut table = table();
    table.create_datagram(1, 0, family, [1; 16]).unwrap();
    table
}

/// One step of a socket with cookie 1.
fn step(table: &mut Table, word: &str) -> Result<(), Errno> {
    let connect = |table: &mut Table, ip, port| {
        table.bind_by_use(1, 3)?;
        let way = table.way(1, at(ip, port), None)?;
        table.connect_datagram(1, way)
    };
    match word {
        "fresh" => Ok(()),
        "bind" => table.bind(1, &bytes(Family::V4, LO4, 0), true, 1),
        "bind-any" => table.bind(1, &bytes(Family::V4, ANY4, 0), true, 1),
        "bind-port" => table.bind(1, &bytes(Family::V4, ANY4, 5000), true, 1),
        "send" => table.bind_by_use(1, 9),
        "connect" => connect(table, LO4, 53),
        "connect-far" => connect(table, v4([10, 0, 0, 6]), 53),
        // No way leads to a group.
        "connect-fails" => connect(table, v4([224, 0, 0, 1]), 53),
        "unspec" => table.disconnect(1),
        "listen" => table.listen(1, 5, [9; 16], 0),
        other => panic!("{other}"),
    }
}

/// The way to a state; what the last step of it comes to; whether it has an address, a port,
/// a peer then; what binding it once more comes to.
#[test]
fn each_transition_of_a_datagram_socket() {
    type Row = (&'static str, Result<(), Errno>, Ip, bool, bool, bool);
    let own = OWN4;
    let rows: [Row; 20] = [
        ("fresh", Ok(()), ANY4, false, false, true),
        ("bind", Ok(()), LO4, true, false, false),
        ("bind-port", Ok(()), ANY4, true, false, false),
        ("send", Ok(()), ANY4, true, false, false),
        ("connect", Ok(()), LO4, true, true, false),
        ("connect-far", Ok(()), own, true, true, false),
        // What connect bound stays bound where it fails.
        ("connect-fails", Err(ENETUNREACH), ANY4, true, false, false),
        ("connect-fails connect", Ok(()), LO4, true, true, false),
        // And the connection that there was goes on.
        (
            "connect connect-fails",
            Err(ENETUNREACH),
            LO4,
            true,
            true,
            false,
        ),
        ("connect connect", Ok(()), LO4, true, true, false),
        ("connect unspec", Ok(()), ANY4, false, false, true),
        ("send unspec", Ok(()), ANY4, false, false, true),
        ("unspec", Ok(()), ANY4, false, false, true),
        ("connect unspec connect-far", Ok(()), own, true, true, false),
        // An address that it chose stays, a port that was chosen for it does not.
        ("bind unspec", Ok(()), LO4, false, false, true),
        ("bind connect unspec", Ok(()), LO4, false, false, true),
        ("bind-port connect unspec", Ok(()), ANY4, true, false, false),
        ("bind-any connect unspec", Ok(()), ANY4, false, false, true),
        ("listen", Err(EOPNOTSUPP), ANY4, false, false, true),
        ("connect listen", Err(EOPNOTSUPP), LO4, true, true, false),
    ];
    for (way, last, ip, port, peer, binds) in rows {
        let mut table = made(Family::V4);
        let mut got = Ok(());
        for word in way.split(' ') {
            got = step(&mut table, word);
        }
        assert_eq!(got, last, "{way}");
        let socket = table.socket(1).unwrap();
        assert_eq!(socket.local().ip, ip, "{way}");
        assert_eq!(socket.local().port != 0, port, "{way}");
        assert_eq!(table.getpeername(1).is_ok(), peer, "{way}");
        assert_eq!(step(&mut table, "bind").is_ok(), binds, "{way}");
        assert_eq!(table.socket(1).unwrap().name(), [1; 16], "{way}");
    }
}

#[test]
fn a_port_stays_through_all_connections() {
    let mut table = made(Family::V4);
    step(&mut table, "connect").unwrap();
    let port = table.socket(1).unwrap().local().port;
    step(&mut table, "connect").unwrap();
    assert_eq!(table.socket(1).unwrap().local().port, port);
    // Ports of UDP are not TCP's.
    table.create(2, 0, Family::V4, 0).unwrap();
    let taken = bytes(Family::V4, LO4, port);
    assert_eq!(table.bind(2, &taken, true, 0), Ok(()));
    table.create_datagram(3, 0, Family::V4, [3; 16]).unwrap();
    assert_eq!(table.bind(3, &taken, true, 0), Err(Errno::EADDRINUSE));
    assert_eq!(
        table.create_datagram(4, 0, Family::V4, [3; 16]),
        Err(EINVAL)
    );
}

/// What is named, and what connect and sendto of IPv4 and of IPv6 say to it.
#[test]
fn destinations_are_read_as_linux_reads_them() {
    type Said = Option<Errno>;
    let four = bytes(Family::V4, LO4, 53);
    let of = |family: u16| [&family.to_ne_bytes(), &four[2..]].concat();
    let six = bytes(Family::V6, LO6, 53);
    let rows: [(Vec<u8>, Said, Said, Said, Said); 8] = [
        (four.clone(), None, None, None, None),
        (
            four[..15].to_vec(),
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
        ),
        (of(0), None, None, None, Some(EDESTADDRREQ)),
        (
            of(77),
            Some(EAFNOSUPPORT),
            Some(EAFNOSUPPORT),
            Some(EINVAL),
            Some(EINVAL),
        ),
        (
            vec![2],
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
        ),
        (
            vec![2, 0],
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
        ),
        (six, Some(EAFNOSUPPORT), Some(EAFNOSUPPORT), None, None),
        (
            vec![],
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
            Some(EINVAL),
        ),
    ];
    for (named, connect4, send4, connect6, send6) in rows {
        for (family, connect, send) in
            [(Family::V4, connect4, send4), (Family::V6, connect6, send6)]
        {
            let table = made(family);
            assert_eq!(
                table.datagram_peer(1, &named).err(),
                connect,
                "{family:?} {named:?}"
            );
            let to = match table.datagram_to(1, &named) {
                Ok(None) => Some(EDESTADDRREQ),
                to => to.err(),
            };
            assert_eq!(to, send, "{family:?} {named:?}");
        }
    }
    let nowhere = bytes(Family::V4, LO4, 0);
    assert_eq!(made(Family::V4).datagram_to(1, &nowhere), Err(EINVAL));
    assert!(made(Family::V4).datagram_peer(1, &nowhere).is_ok());
    // IPv6 alone, by the kernel's source.
    let mut only = made(Family::V6);
    only.set_option(1, 41, 26, &[1, 0, 0, 0]).unwrap();
    let mapped = bytes(Family::V6, LO4, 53);
    assert_eq!(only.datagram_to(1, &mapped), Err(ENETUNREACH));
    assert_eq!(only.datagram_to(1, &four), Err(ENETUNREACH));
    assert_eq!(only.datagram_peer(1, &four), Err(EAFNOSUPPORT));
}

#[test]
fn a_source_is_one_of_its_own() {
    let mut table = made(Family::V4);
    table
        .bind(1, &bytes(Family::V4, ANY4, 53), true, 0)
        .unwrap();
    let far = at(v4([10, 0, 0, 6]), 9);
    let from = |ip| table.way(1, far, Some(ip)).map(|way| way.local);
    assert_eq!(from(OWN4), Ok(at(OWN4, 53)));
    assert_eq!(from(ANY4), Ok(at(OWN4, 53)));
    assert_eq!(from(v4([10, 0, 0, 6])), Err(ENETUNREACH));
    assert_eq!(from([7; 16]), Err(EINVAL));
    // A loopback address leaves no endpoint.
    assert_eq!(from(LO4), Err(EINVAL));
    assert_eq!(table.way(1, at(v4([255; 4]), 9), None), Err(ENETUNREACH));
}

/// Sockets that have port 53, by cookie: where each is bound and connected to. Who hears what
/// comes from where.
#[test]
fn the_closest_receiver_hears_it() {
    let mut table = table();
    let peer = v4([10, 0, 0, 6]);
    let on = [1, 0, 0, 0];
    let places = [
        (11, Family::V4, ANY4, None),
        (12, Family::V4, OWN4, None),
        (13, Family::V6, ANY6, None),
        (14, Family::V4, OWN4, Some(at(peer, 7))),
    ];
    for (cookie, family, ip, remote) in places {
        table
            .create_datagram(cookie, 0, family, [cookie as u8; 16])
            .unwrap();
        table.set_option(cookie, 1, 2, &on).unwrap();
        table.bind(cookie, &bytes(family, ip, 53), true, 0).unwrap();
        if let Some(remote) = remote {
            let way = table.way(cookie, remote, None).unwrap();
            table.connect_datagram(cookie, way).unwrap();
        }
    }
    let found = |table: &Table, from, port, to| {
        let way = Way {
            local: at(from, port),
            remote: at(to, 53),
        };
        table.find_receiver(0, &way, 0).map(|it| it.cookie)
    };
    assert_eq!(
        found(&table, peer, 7, OWN4),
        Some(14),
        "who is connected to it"
    );
    assert_eq!(found(&table, peer, 8, OWN4), Some(12), "its very address");
    assert_eq!(found(&table, LO4, 8, LO4), Some(11), "any address");
    assert_eq!(found(&table, LO6, 8, LO6), Some(13));
    assert_eq!(found(&table, OWN6, 8, OWN6), Some(13));
    assert_eq!(
        found(&table, peer, 7, v4([10, 0, 0, 9])),
        None,
        "not of this endpoint"
    );
    table.closed(11).unwrap();
    assert_eq!(found(&table, LO4, 8, LO4), Some(13), "any of both families");
    table.closed(13).unwrap();
    assert_eq!(found(&table, LO4, 8, LO4), None);
    let connected = |table: &Table| {
        let all = table.connected_to(at(peer, 7), 0, 0);
        all.map(|(_, it)| it.cookie).collect::<Vec<_>>()
    };
    assert_eq!(connected(&table), [14]);
    assert_eq!(table.by_name(&[12; 16]).map(Socket::cookie), Some(12));
    table.disconnect(14).unwrap();
    assert!(connected(&table).is_empty());
    assert_eq!(table.by_name(&[14; 16]).map(Socket::cookie), Some(14));
    // Of two that are alike the newest.
    assert_eq!(found(&table, peer, 7, OWN4), Some(14));
}

/// Who is connected elsewhere is not gone through, by however many sockets and to whichever port.
#[test]
fn who_is_connected_to_a_place_is_found_by_the_place() {
    let mut table = table();
    let peer = v4([10, 0, 0, 6]);
    let mut connect = |cookie, endpoint, to| {
        let (family, name) = (Family::V4, [cookie as u8; 16]);
        table
            .create_datagram(cookie, endpoint, family, name)
            .unwrap();
        table.bind_by_use(cookie, cookie as u32).unwrap();
        let way = table.way(cookie, to, None).unwrap();
        table.connect_datagram(cookie, way).unwrap();
        way
    };
    for cookie in 10..30 {
        connect(cookie, 1, at(v4([10, 0, 0, 9]), 7));
    }
    let way = connect(1, 0, at(peer, 7));
    connect(2, 0, at(peer, 8));
    connect(3, 1, at(peer, 7));
    connect(4, 1, at(LO4B, 7));
    connect(5, 0, at(LO4, 7));
    let all: Vec<_> = table.connectors(1, 7).collect();
    let cookies: Vec<Vec<u64>> = all
        .iter()
        .map(|(to, of)| table.connected_to(*to, *of, 0))
        .map(|all| all.map(|(_, it)| it.cookie).collect())
        .collect();
    assert_eq!(cookies, [vec![4], vec![1], vec![3]], "{all:?}");
    let by: Vec<u64> = table.connected_by(0, way).map(|it| it.cookie).collect();
    assert_eq!(by, [1]);
    // Each endpoint that has some comes up once.
    let elsewhere = at(v4([10, 0, 0, 9]), 7);
    let many: Vec<u32> = table.sockets.connectors(elsewhere).collect();
    assert_eq!(many, [1]);
    let (third, _) = table.connected_to(elsewhere, 1, 0).nth(2).unwrap();
    assert_eq!(table.connected_to(elsewhere, 1, third).count(), 18);
}

#[test]
fn who_shares_a_port_shares_what_comes() {
    let mut table = table();
    for cookie in 1..=3 {
        table
            .create_datagram(cookie, 0, Family::V4, [cookie as u8; 16])
            .unwrap();
        table.set_option(cookie, 1, 15, &[1, 0, 0, 0]).unwrap();
        table
            .bind(cookie, &bytes(Family::V4, ANY4, 53), true, 0)
            .unwrap();
    }
    let way = Way {
        local: at(LO4, 9),
        remote: at(LO4, 53),
    };
    assert_eq!(table.datagrams_at(0, 53).count(), 3);
    assert_eq!(table.datagrams_at(1, 53).count(), 0);
    let found = |table: &Table| {
        let all = (0..3).filter_map(|hash| table.find_receiver(0, &way, hash));
        all.map(|it| it.cookie).collect::<Vec<_>>()
    };
    assert_eq!(found(&table), [1, 2, 3]);
    // Who stays keeps what it has, but the last, which comes into the place of who goes.
    table.closed(1).unwrap();
    assert_eq!(found(&table), [3, 2, 3]);
}

/// Measured: one that merely reuses the address, and is the newest, has all of it as long as it is there.
#[test]
fn who_does_not_share_what_comes_leaves_it_to_those_that_do() {
    let mut table = table();
    let mut open = |cookie: u64, options: &[i32]| {
        let name = [cookie as u8; 16];
        table.create_datagram(cookie, 0, Family::V4, name).unwrap();
        for option in options {
            table.set_option(cookie, 1, *option, &[1, 0, 0, 0]).unwrap();
        }
        let port = bytes(Family::V4, ANY4, 53);
        table.bind(cookie, &port, true, 0).unwrap();
    };
    open(1, &[2, 15]);
    open(2, &[2, 15]);
    open(3, &[2]);
    let way = Way {
        local: at(LO4, 9),
        remote: at(LO4, 53),
    };
    let found = |table: &Table| {
        let all = (0..3).filter_map(|hash| table.find_receiver(0, &way, hash));
        all.map(|it| it.cookie).collect::<Vec<_>>()
    };
    assert_eq!(found(&table), [3, 3, 3]);
    table.closed(3).unwrap();
    assert_eq!(found(&table), [1, 2, 1]);
}

/// An endpoint's sockets that share a port may be thousands: whoever sends there pays for one.
#[test]
fn however_many_share_a_port_one_is_looked_at() {
    let own = Addresses::new(&[OWN4]).unwrap();
    let limits = Limits {
        sockets: 5000,
        pending: 1,
    };
    let mut table = Table::new(limits, vec![own]);
    let way = Way {
        local: at(LO4, 9),
        remote: at(LO4, 53),
    };
    for cookie in 1..=4000_u64 {
        let name = u128::from(cookie).to_ne_bytes();
        table.create_datagram(cookie, 0, Family::V4, name).unwrap();
        for option in [2, 15] {
            table.set_option(cookie, 1, option, &[1, 0, 0, 0]).unwrap();
        }
        let any = bytes(Family::V4, ANY4, 53);
        table.bind(cookie, &any, true, 0).unwrap();
    }
    let looks = |table: &Table, hash| {
        let before = crate::tests::LOOKS.get();
        let found = table.find_receiver(0, &way, hash).unwrap();
        assert!(crate::tests::LOOKS.get() - before <= 2);
        found.cookie
    };
    assert_eq!(
        [0, 1999, 4000].map(|hash| looks(&table, hash)),
        [1, 2000, 1]
    );
    assert!(!table.is_connected(0, &way));
    // Where one does not share, the newest has all.
    table.set_option(7, 1, 15, &[0, 0, 0, 0]).unwrap();
    assert_eq!([0, 7].map(|hash| looks(&table, hash)), [4000, 4000]);
    table.closed(7).unwrap();
    assert_eq!(looks(&table, 6), 4000, "in the place of who is gone");
    let other = at(LO4, 5353);
    let connected = Way {
        local: at(LO4, 53),
        remote: other,
    };
    table.connect_datagram(9, connected).unwrap();
    assert!(table.is_connected(0, &connected));
    let to_it = Way {
        local: other,
        remote: at(LO4, 53),
    };
    let found = table.find_receiver(0, &to_it, 5).unwrap();
    assert_eq!(found.cookie, 9);
}

#[test]
fn a_record_of_one_that_listens_is_nonsense() {
    let mut table = made(Family::V4);
    step(&mut table, "bind").unwrap();
    let mut record = table.record(0);
    let restored = |record: [u8; RECORD]| {
        let records = [(0, &record)];
        let endpoints = table.endpoints.clone();
        Table::restore(table.limits, endpoints, records).1
    };
    assert!(restored(record).is_empty());
    // The state: listening, connecting.
    for state in [3, 4] {
        record[2] = state;
        assert_eq!(restored(record), [0]);
    }
}

/// It goes on with who follows, and ends with what it is of.
#[test]
fn whom_a_connected_socket_is_linked_to_is_in_its_record() {
    let mut table = made(Family::V4);
    let cookie = table.all().next().unwrap().cookie();
    let linked = |table: &Table| table.socket(cookie).unwrap().linked();
    step(&mut table, "bind").unwrap();
    table.link(cookie, Some(7));
    assert_eq!(linked(&table), None, "to nobody");
    step(&mut table, "connect").unwrap();
    for to in [0, 7, u32::MAX - 1] {
        table.link(cookie, Some(to));
        let record = table.record(0);
        let endpoints = table.endpoints.clone();
        let (restored, rejected) = Table::restore(table.limits, endpoints, [(0, &record)]);
        assert_eq!((linked(&restored), rejected), (Some(to), Vec::new()));
    }
    step(&mut table, "connect").unwrap();
    assert_eq!(linked(&table), None, "anew");
    table.link(cookie, Some(7));
    table.disconnect(cookie).unwrap();
    assert_eq!(linked(&table), None);
    table.link(cookie, Some(7));
    assert_eq!(linked(&table), None);
}

/// What both are bound and connected to says it; else the last way; else the first addresses.
#[test]
fn the_way_between_two_follows_from_both() {
    let far = v4([10, 0, 0, 6]);
    let way = |from, to| Way {
        local: at(from, 9),
        remote: at(to, 53),
    };
    let two = |receiver: u32, bound: Ip| {
        let mut table = table();
        table.create_datagram(1, 1, Family::V4, [1; 16]).unwrap();
        let any = bytes(Family::V4, ANY4, 9);
        table.bind(1, &any, true, 0).unwrap();
        let v4 = Family::V4;
        table.create_datagram(2, receiver, v4, [2; 16]).unwrap();
        let bound = bytes(Family::V4, bound, 53);
        table.bind(2, &bound, true, 0).unwrap();
        table
    };
    let between = |table: &Table, last| {
        let (sender, receiver) = (table.socket(1).unwrap(), table.socket(2).unwrap());
        table.way_between(sender, receiver, last)
    };
    // Of two endpoints, both bound to any address: the first ones, or the last way.
    let mut table = two(0, ANY4);
    assert_eq!(between(&table, None), way(far, OWN4));
    let last = way(far, v4([10, 0, 0, 5]));
    assert_eq!(between(&table, Some(last)), last);
    // One that its receiver cannot have heard is none.
    let other = Way {
        local: at(far, 10),
        ..last
    };
    assert_eq!(between(&table, Some(other)), way(far, OWN4));
    // Who is connected hears its peer alone.
    table
        .connect_datagram(
            2,
            Way {
                local: at(OWN4, 53),
                remote: at(far, 9),
            },
        )
        .unwrap();
    assert_eq!(between(&table, None), way(far, OWN4));
    // Of one endpoint loopback's, the bound one, or what the sender is connected to.
    assert_eq!(between(&two(1, ANY4), None), way(LO4, LO4));
    assert_eq!(between(&two(1, LO4B), None), way(LO4, LO4B));
    let mut table = two(1, ANY4);
    table.connect_datagram(1, way(far, far)).unwrap();
    assert_eq!(between(&table, None), way(far, far));
}

/// Measured. Cookies follow no order, each processor having its own; what is found is so over an operator's death too.
#[test]
fn who_came_last_to_hear_it_has_what_comes_whatever_its_cookie() {
    let mut table = table();
    let peer = at(v4([10, 0, 0, 6]), 9);
    let mut open = |cookie: u64, family, port| {
        let name = [cookie as u8; 16];
        table.create_datagram(cookie, 0, family, name).unwrap();
        table.set_option(cookie, 1, 2, &[1, 0, 0, 0]).unwrap();
        let any = bytes(family, family.any(), port);
        table.bind(cookie, &any, true, 0).unwrap();
    };
    for cookie in [5, 9, 3] {
        open(cookie, Family::V4, 53);
    }
    open(7, Family::V6, 54);
    open(4, Family::V4, 54);
    open(8, Family::V6, 54);
    let has = |table: &Table, port| {
        let way = Way {
            local: peer,
            remote: at(OWN4, port),
        };
        let found = |table: &Table| table.find_receiver(0, &way, 0).unwrap().cookie;
        let records = (0..)
            .zip(0..table.slots())
            .map(|(at, it)| (at, table.record(it)));
        let records: Vec<_> = records.collect();
        let records = records.iter().map(|(at, it)| (*at, it));
        let (again, _) = Table::restore(table.limits, table.endpoints.clone(), records);
        assert_eq!(found(&again), found(table));
        found(table)
    };
    let connect = |table: &mut Table, cookie| {
        let way = table.way(cookie, peer, None).unwrap();
        table.connect_datagram(cookie, way).unwrap();
    };
    assert_eq!(has(&table, 53), 3);
    for cookie in [9, 5, 3] {
        connect(&mut table, cookie);
        assert_eq!(has(&table, 53), cookie);
    }
    // To nobody, and to the same again.
    table.disconnect(5).unwrap();
    assert_eq!(has(&table, 53), 3);
    connect(&mut table, 5);
    assert_eq!(has(&table, 53), 5);
    // One of IPv4 before those of both.
    assert_eq!(has(&table, 54), 4);
    for cookie in [4, 7, 8] {
        connect(&mut table, cookie);
        assert_eq!(has(&table, 54), 4);
    }
    table.closed(4).unwrap();
    assert_eq!(has(&table, 54), 8);
}
