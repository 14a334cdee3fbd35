use super::*;

fn listening(backlog: i32) -> Table {
    let mut table = table();
    table.create(1, 0, Family::V6, 0).unwrap();
    table
        .bind(1, &bytes(Family::V6, ANY6, 5000), false, 0)
        .unwrap();
    table.listen(1, backlog, [1; 16], 0).unwrap();
    table
}

fn waiting(token: u64) -> Pending {
    Pending {
        client: at(LO4, 40000 + token as u16),
        local: at(LO4, 5000),
        token,
        crossing: 0,
        relayed: false,
    }
}

/// -1 is by the kernel's source: Python made 0 of it.
#[test]
fn a_queue_takes_one_more_than_its_backlog() {
    for (backlog, room) in [(0, 1), (1, 2), (4, 5), (-1, 6), (100_000, 6)] {
        let mut table = listening(backlog);
        let all = (0..20).map(|it| table.enqueue(1, waiting(it)));
        let results: Vec<_> = all.collect();
        assert_eq!(
            results.iter().filter(|it| it.is_ok()).count(),
            room,
            "{backlog}"
        );
        assert_eq!(results[room], Err(Errno::EAGAIN));
        let found = table.find_listener(0, at(LO4, 5000), 0).unwrap();
        assert!(found.full);
    }
}

#[test]
fn no_endpoint_has_all_that_waits_and_no_socket_all_of_its_endpoint() {
    let mut table = listening(100);
    let port = bytes(Family::V6, ANY6, 5000);
    table.create(2, 1, Family::V6, 0).unwrap();
    table.bind(2, &port, false, 0).unwrap();
    table.listen(2, 100, [2; 16], 0).unwrap();
    let fill = |table: &mut Table, listener| {
        let all = (0..20).map(|it| table.enqueue(listener, waiting(it)));
        all.filter(Result::is_ok).count()
    };
    // Of the same endpoint as the first.
    table.create(3, 0, Family::V6, 0).unwrap();
    let other = bytes(Family::V6, ANY6, 5001);
    table.bind(3, &other, false, 0).unwrap();
    table.listen(3, 100, [3; 16], 0).unwrap();
    let fill_other = |table: &mut Table| {
        let local = at(LO4, 5001);
        let all = (0..20).map(|it| {
            let pending = Pending {
                local,
                ..waiting(it)
            };
            table.enqueue(3, pending)
        });
        all.filter(Result::is_ok).count()
    };
    assert_eq!((fill(&mut table, 1), fill_other(&mut table)), (6, 2));
    assert_eq!(fill(&mut table, 2), 3);
    assert_eq!((fill(&mut table, 1), fill_other(&mut table)), (0, 0));
    table.forget_waiting(1);
    table.forget_waiting(3);
    assert_eq!((fill(&mut table, 2), table.counts().1), (3, 6));
    table.closed(2).unwrap();
    assert_eq!(fill(&mut table, 1), 6);
}

#[test]
fn who_came_first_is_accepted_first() {
    let mut table = listening(5);
    for token in 0..4 {
        table.enqueue(1, waiting(token)).unwrap();
    }
    assert_eq!(table.accepted(1, 10, None), Ok(waiting(0)));
    assert_eq!(table.accepted(1, 11, Some(2)), Ok(waiting(2)));
    table.withdraw(1, 1).unwrap();
    assert_eq!(table.accepted(1, 10, None), Err(Errno::EINVAL));
    assert_eq!(table.accepted(1, 12, None), Ok(waiting(3)));
    assert_eq!(table.accepted(1, 13, None), Err(Errno::EAGAIN));
    assert_eq!(table.getsockname(11), Ok((Family::V6, at(LO4, 5000))));
    assert_eq!(table.getpeername(11), Ok((Family::V6, at(LO4, 40002))));
    // The listener's port is its own: with it closed, those accepted keep others out.
    table.closed(1).unwrap();
    table.create(2, 0, Family::V4, 0).unwrap();
    let taken = table.bind(2, &bytes(Family::V4, LO4, 5000), false, 0);
    assert_eq!(taken, Err(Errno::EADDRINUSE));
    assert_eq!(table.find_listener(0, at(LO4, 5000), 0), None);
    table.retain(|cookie| cookie == 2);
    assert_eq!(table.counts(), (1, 0));
    assert_eq!(
        table.bind(2, &bytes(Family::V4, LO4, 5000), false, 0),
        Ok(())
    );
}

#[test]
fn the_closest_listener_is_found() {
    let mut table = table();
    let group = [(1, ANY4), (2, ANY4), (3, LO4)];
    for (cookie, ip) in group {
        table.create(cookie, 0, Family::V4, 0).unwrap();
        table.set_option(cookie, 1, 15, &[1, 0, 0, 0]).unwrap();
        table
            .bind(cookie, &bytes(Family::V4, ip, 80), true, 0)
            .unwrap();
        table.listen(cookie, 1, [cookie as u8; 16], 0).unwrap();
    }
    let found = |ip, hash| table.find_listener(0, at(ip, 80), hash).map(|it| it.cookie);
    assert_eq!(found(LO4, 0), Some(3));
    assert_eq!(
        (found(OWN4, 0), found(OWN4, 1), found(OWN4, 2)),
        (Some(1), Some(2), Some(1))
    );
    assert_eq!(found(LO6, 0), None);
    assert_eq!(found(v4([10, 0, 0, 9]), 0), None);
    assert_eq!(table.destination(0, &v4([10, 0, 0, 6])), Some(1));
    assert_eq!(table.destination(1, &LO4), Some(1));
    assert_eq!(table.destination(1, &v4([10, 0, 0, 9])), None);
}

/// Who stops between two records has a connection twice rather than not at all.
#[test]
fn an_accepted_socket_is_written_before_its_place_in_the_queue_is_given_up() {
    let mut table = listening(5);
    table.enqueue(1, waiting(9)).unwrap();
    while table.changed().is_some() {}
    table.accepted(1, 30, Some(9)).unwrap();
    let changed: Vec<u32> = core::iter::from_fn(|| table.changed()).collect();
    let limits = table.limits.sockets;
    assert_eq!(changed.len(), 2);
    assert!(changed[0] < limits && changed[1] >= limits, "{changed:?}");
    assert_ne!(table.record(changed[0]), [0; RECORD]);
    assert_eq!(table.record(changed[1]), [0; RECORD]);
}

/// Places for who comes by agreements: beside the tenant's own, which they take nothing from.
#[test]
fn places_of_agreements_are_apart() {
    let mut table = listening(1);
    let across = |crossing: u16, token: u64| Pending {
        crossing,
        ..waiting(token)
    };
    // The same number of two agreements, and of the tenant's own.
    for pending in [across(7, 3), across(7, 5), across(8, 3)] {
        assert_eq!(table.enqueue(1, pending), Ok(()));
    }
    assert_eq!(table.enqueue(1, across(7, 4)), Err(Errno::EAGAIN));
    table.withdraw_crossing(1, 7, 5);
    assert!(!table.find_listener(0, at(LO4, 5000), 0).unwrap().full);
    assert_eq!(
        (0..3)
            .filter(|it| table.enqueue(1, waiting(*it)).is_ok())
            .count(),
        2
    );
    assert_eq!(table.enqueue_beyond(1, across(7, 4), 3), Ok(()));
    assert_eq!(table.counts().1, 5);
    let kept: Vec<(u16, u64)> = table
        .kept()
        .map(|(_, it)| (it.crossing, it.token))
        .collect();
    assert_eq!(kept, [(7, 3), (8, 3), (7, 4)]);
    // What comes takes the place that is its own.
    assert!(table.is_taken(0, &at(LO4, 5000), &at(LO4, 40003)));
    assert!(table.crossed(1, 50, 5, 7).is_err());
    assert_eq!(table.crossed(1, 50, 3, 8), Ok(across(8, 3)));
    table.cross(50, 8, Carrier::Kernel, 9, 1234);
    let socket = *table.socket(50).unwrap();
    assert_eq!(
        (socket.crossing(), socket.inode(), socket.is_initiator()),
        (8, 1234, false)
    );
    table.withdraw_crossing(1, 7, 3);
    table.withdraw_crossing(1, 7, 3);
    // Who listens has nothing of its own any more: the others are on their way.
    table.forget_waiting(1);
    assert_eq!((table.has_waiting(1), table.kept().count()), (false, 1));
    // Whoever follows reads the same of the page.
    table.carry(50, Carrier::Ring, 0);
    let (sockets, pending) = table.counts();
    assert_eq!(
        (sockets, pending, table.socket(50).unwrap().carrier()),
        (2, 1, Carrier::Ring)
    );
}

/// A program with packets comes by a proxy from an address and port at which a circuit begins as well; a program keeps
/// what it accepted from there before.
#[test]
fn nobody_is_the_other_end_but_who_began_it() {
    let mut table = table();
    let there = v4([10, 0, 0, 6]);
    table.create(1, 1, Family::V4, 0).unwrap();
    let port = bytes(Family::V4, there, 80);
    table.bind(1, &port, true, 0).unwrap();
    table.listen(1, 5, [1; 16], 0).unwrap();
    let begin = |table: &mut Table, cookie, own: u16| {
        table.create(cookie, 0, Family::V4, 0).unwrap();
        let own = bytes(Family::V4, OWN4, own);
        table.bind(cookie, &own, false, 0).unwrap();
        table.connect_begin(cookie, &port, 7).unwrap();
        table.connected(cookie).unwrap();
    };
    let accept = |table: &mut Table, cookie, (own, token), relayed| {
        let pending = Pending {
            client: at(OWN4, own),
            local: at(there, 80),
            token,
            crossing: 0,
            relayed,
        };
        table.enqueue(1, pending).unwrap();
        table.accepted(1, cookie, Some(token)).unwrap();
    };
    begin(&mut table, 8, 5000);
    accept(&mut table, 2, (5000, 8), false);
    table.closed(8).unwrap();
    accept(&mut table, 3, (5000, 77), true);
    begin(&mut table, 9, 5000);
    accept(&mut table, 4, (5000, 9), false);
    // What a meter carries waits as another of its sockets.
    begin(&mut table, 10, 5001);
    table.waits_as(10, 555);
    table.link(10, Some(7));
    accept(&mut table, 5, (5001, 555), false);
    // One is to end, and another has.
    begin(&mut table, 11, 5002);
    table.condemn(10);
    table.condemn(11);
    table.link(11, Some(7));
    table.disconnect(11).unwrap();
    // Nobody who was accepted leads anywhere.
    table.link(5, Some(7));
    // As an operator that follows finds them.
    let records: Vec<_> = (0..table.slots())
        .map(|it| (it, table.record(it)))
        .collect();
    let endpoints = [[OWN4].as_slice(), &[there]].map(|it| Addresses::new(it).unwrap());
    let records = records.iter().map(|(at, record)| (*at, record));
    let (table, _) = Table::restore(table.limits, endpoints.into(), records);
    let ends = |cookie| -> Vec<u64> { table.other_ends(cookie).map(Socket::cookie).collect() };
    let expected = [vec![4], vec![9], vec![], vec![], vec![5], vec![10]];
    assert_eq!([9, 4, 2, 3, 10, 5].map(ends), expected);
    let condemned = table.all().filter(|it| it.is_condemned());
    assert_eq!(condemned.map(Socket::cookie).collect::<Vec<_>>(), [10]);
    let linked = table.all().filter(|it| it.linked() == Some(7));
    assert_eq!(linked.map(Socket::cookie).collect::<Vec<_>>(), [10]);
}

#[test]
fn who_listens_for_ipv6_alone_is_not_found_by_ipv4() {
    for v6only in [false, true] {
        let mut table = table();
        table.create(1, 0, Family::V6, 0).unwrap();
        let value = i32::from(v6only).to_ne_bytes();
        table.set_option(1, 41, 26, &value).unwrap();
        table
            .bind(1, &bytes(Family::V6, ANY6, 80), true, 0)
            .unwrap();
        table.listen(1, 5, [1; 16], 0).unwrap();
        let is_found = |ip| table.find_listener(0, at(ip, 80), 0).is_some();
        assert_eq!([LO4, OWN4].map(is_found), [!v6only; 2]);
        assert_eq!([LO6, OWN6].map(is_found), [true; 2]);
    }
}

/// Whether its address was chosen, by the kernel's source (`sk_clone_lock`); and its user, for who shares its port.
#[test]
fn what_is_accepted_has_its_listeners_address_and_user() {
    for (bound, after) in [(LO4, LO4), (ANY4, ANY4)] {
        let mut table = table();
        table.create(1, 0, Family::V4, 7).unwrap();
        table.set_option(1, 1, 15, &[1, 0, 0, 0]).unwrap();
        let port = bytes(Family::V4, bound, 5000);
        table.bind(1, &port, false, 0).unwrap();
        table.listen(1, 5, [1; 16], 0).unwrap();
        table.enqueue(1, waiting(3)).unwrap();
        table.accepted(1, 10, None).unwrap();
        table.closed(1).unwrap();
        // The one that was accepted has the port.
        for (cookie, uid, expected) in [(2, 8, Err(Errno::EADDRINUSE)), (3, 7, Ok(()))] {
            table.create(cookie, 0, Family::V4, uid).unwrap();
            table.set_option(cookie, 1, 15, &[1, 0, 0, 0]).unwrap();
            assert_eq!(table.bind(cookie, &port, false, 0), expected);
        }
        table.disconnect(10).unwrap();
        assert_eq!(table.getsockname(10).unwrap().1.ip, after);
    }
}

#[test]
fn at_a_listener_waits_what_was_connected_to_its_port_and_while_it_listens() {
    let mut table = listening(5);
    for (local, expected) in [
        (at(LO4, 5001), Err(Errno::EINVAL)),
        (at(v4([10, 0, 0, 6]), 5000), Err(Errno::EINVAL)),
        (at(OWN4, 5000), Ok(())),
        (at(LO6, 5000), Ok(())),
    ] {
        let pending = Pending {
            local,
            ..waiting(1)
        };
        assert_eq!(table.enqueue(1, pending), expected, "{local:?}");
    }
    // A page that says otherwise is not believed.
    let moved = |port: u16| {
        let mut page: Vec<_> = (0..table.slots()).map(|it| table.record(it)).collect();
        let (local, changed) = (5000_u16.to_ne_bytes(), port.to_ne_bytes());
        let at = table.limits.sockets as usize;
        let places = page[at].windows(2).filter(|it| **it == local).count();
        assert_eq!(places, 1);
        let place = page[at].windows(2).position(|it| *it == local).unwrap();
        page[at][place..place + 2].copy_from_slice(&changed);
        let all = (0..).zip(&page);
        Table::restore(table.limits, table.endpoints.clone(), all).1
    };
    assert_eq!(moved(5000), Vec::<u32>::new());
    assert_eq!(moved(5001), [table.limits.sockets]);
    table.disconnect(1).unwrap();
    assert_eq!(table.counts(), (1, 0));
    table.listen(1, 5, [1; 16], 0).unwrap();
    assert!(!table.has_waiting(1));
    assert_eq!(table.accepted(1, 10, None), Err(Errno::EAGAIN));
}
