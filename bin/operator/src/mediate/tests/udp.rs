//! Datagrams between endpoints: who may send and answer, and whose sockets are linked, cut and linked again.

use super::*;
use crate::decide::tests::OTHER;

/// WEB may send to NEAR's port 80, and NEAR to nobody.
fn one_way() -> CompartmentTables {
    let mut tables = tables();
    let mut allow = judged(image::rules::Action::Allow, 5);
    for rule in &mut allow.rules {
        rule.region.protocol = decide::UDP..=decide::UDP;
    }
    tables.rule_tables = vec![allow, judged(image::rules::Action::Deny, 6)];
    (tables.endpoints[0].egress, tables.endpoints[1].egress) = (0, 1);
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    tables
}

#[test]
fn only_who_was_asked_answers() {
    let mut mediator = with_datagrams(&one_way());
    let answer = way(NEAR, WEB);
    assert_eq!(mediator.may_send(NEAR, 2, answer), Err(Errno::ACCESS));
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
    // Another port of the same two was not asked.
    let mut other = answer;
    other.local.port = 81;
    assert_eq!(mediator.may_send(NEAR, 2, other), Err(Errno::ACCESS));
    // To who asked and is gone it gets nowhere, nor to who has that port by then, and nobody is told.
    mediator.lost(1);
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(None));
    assert_eq!(mediator.may_send(NEAR, 2, other), Err(Errno::ACCESS));
    assert!(mediator.judge(NEAR, &answer).is_err());
    // Of the last 4096 ways that those asked that are gone.
    let left = |mediator: &Mediator| mediator.ways_left(WEB);
    while left(&mediator) < 4096 {
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(None));
        leaves(&mut mediator, 1);
    }
    leaves(&mut mediator, 1);
    assert_eq!(left(&mediator), 4096);
    assert_eq!(mediator.may_send(NEAR, 2, answer), Err(Errno::ACCESS));
}

/// So many of an endpoint's ask from ports of their own, and are gone.
fn leaves(mediator: &mut Mediator, many: u64) {
    let first = 1000 + mediator.ways_left(WEB) as u64;
    for cookie in first..first + many {
        let (family, name) = (circuit::Family::V4, u128::from(cookie).to_ne_bytes());
        let table = &mut mediator.table;
        table.create_datagram(cookie, WEB, family, name).unwrap();
        let mut other = way(WEB, NEAR);
        other.local.port = cookie as u16;
        assert_eq!(mediator.may_send(WEB, cookie, other), Ok(Some(NEAR)));
        mediator.lost(cookie);
    }
}

#[test]
fn who_asks_again_after_a_long_silence_is_answered() {
    let mut mediator = with_datagrams(&one_way());
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    let connected = mediator.table.connect_datagram(2, way(NEAR, WEB));
    assert_eq!(connected, Ok(()));
    mediator.links(2, WEB);
    mediator.falls_silent(1);
    mediator.link_all(WEB, 80);
    assert_eq!(mediator.datagrams.cut, BTreeSet::from([2]));
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    assert!(mediator.datagrams.cut.is_empty());
}

#[test]
fn who_is_connected_has_asked() {
    let mut mediator = with_datagrams(&one_way());
    let connected = mediator.table.connect_datagram(1, way(WEB, NEAR));
    assert_eq!(connected, Ok(()));
    assert_eq!(mediator.may_send(NEAR, 2, way(NEAR, WEB)), Ok(Some(WEB)));
}

#[test]
fn what_was_judged_by_another_image_is_judged_anew() {
    let mut tables = tables();
    let mut mediator = with_datagrams(&tables);
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    tables.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
    tables.endpoints[0].egress = 0;
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    mediator.use_image(mapped(&tables));
    let denied = mediator.may_send(WEB, 1, way(WEB, NEAR));
    assert_eq!(denied, Err(Errno::ACCESS));
}

#[test]
fn a_socket_remembers_so_many_that_it_asked() {
    let mut mediator = with_datagrams(&tables());
    for port in 1..=500 {
        let mut way = way(WEB, NEAR);
        way.remote.port = port;
        assert_eq!(mediator.may_send(WEB, 1, way), Ok(Some(NEAR)));
    }
    assert_eq!(mediator.asked_by(1), 64);
}

#[test]
fn a_socket_that_is_linked_to_who_had_the_address_before_is_cut() {
    let tables = tables();
    let mut mediator = with_datagrams(&tables);
    let connected = mediator.table.connect_datagram(1, way(WEB, NEAR));
    assert_eq!(connected, Ok(()));
    mediator.write();
    mediator.links(1, NEAR);
    mediator.use_image(mapped(&tables));
    assert!(mediator.hunted().is_empty());
    mediator.links(1, WEB);
    mediator.use_image(mapped(&tables));
    // Nobody has it here who could be linked to whose it is now.
    assert_eq!(mediator.hunted(), [1]);
    assert!(mediator.is_sought_no_more(1));
    // Nor is who has the address now, if its programs were left behind.
    mediator.links(1, NEAR);
    mediator.unlinks_from(NEAR);
    mediator.use_image(mapped(&tables));
    assert_eq!(mediator.hunted(), [1]);
    assert!(mediator.is_sought_no_more(1));
    // One that is linked to nobody, and not found, is looked for to be linked where it is.
    mediator.unlinks(1);
    mediator.link_everybody();
    assert_eq!(mediator.hunted(), [1]);
}

#[test]
fn connected_sockets_that_may_send_no_more_are_cut_until_they_may() {
    let tables = tables();
    let mut mediator = with_datagrams(&tables);
    let connected = mediator.table.connect_datagram(1, way(WEB, NEAR));
    assert_eq!(connected, Ok(()));
    mediator.links(1, NEAR);
    mediator.write();
    mediator.use_image(mapped(&tables));
    assert!(mediator.datagrams.cut.is_empty());
    let denied = no_datagrams(&tables);
    mediator.use_image(mapped(&denied));
    assert_eq!(mediator.datagrams.cut, BTreeSet::from([1]));
    // An operator that starts is told of its endpoints last, and cuts none for that.
    mediator.datagrams.cut.clear();
    mediator.limits.clear();
    mediator.use_image(mapped(&tables));
    assert!(mediator.datagrams.cut.is_empty());
    mediator.opens(NEAR, 9);
    mediator.use_image(mapped(&denied));
    assert_eq!(mediator.hunted(), [1]);
    mediator.use_image(mapped(&tables));
    // Nobody has it here who could be joined, and nobody looks for it to cut it: it is linked as it was.
    assert!(mediator.datagrams.cut.is_empty() && mediator.hunted().is_empty());
    mediator.use_image(mapped(&denied));
    assert_eq!(mediator.hunted(), [1], "denied once more");
}

#[test]
fn what_nobody_heard_of_is_kept_within_bounds() {
    let mut datagrams = Datagrams::default();
    for cookie in 0..64 {
        let taken = || crate::mediate::udp::Taken {
            data: vec![0; 256 << 10],
            length: 256 << 10,
            name: None,
        };
        datagrams.taken = (0..64).map(|_| (cookie, taken())).collect();
        datagrams.not_heard();
    }
    let all = datagrams.unheard.values().flatten();
    let bytes: usize = all.map(|taken| taken.data.len()).sum();
    assert_eq!(bytes, 4 << 20);
}

#[test]
fn of_many_that_are_connected_to_a_port_some_are_linked_at_a_time() {
    let mut mediator = with_datagrams(&tables());
    connects(&mut mediator, WEB, 10..50);
    mediator.link_all(NEAR, 80);
    assert!(mediator.is_late());
    // It took its time, perhaps, and another has its turn first.
    let until = Instant::now() + Duration::from_secs(10);
    while mediator.is_late() && Instant::now() < until {
        mediator.link_late();
    }
    assert!(!mediator.is_late());
}

/// Sockets of an endpoint are connected to another's port 80.
fn connects(mediator: &mut Mediator, from: u32, cookies: core::ops::Range<u64>) {
    for cookie in cookies {
        let (family, table) = (circuit::Family::V4, &mut mediator.table);
        let made = table.create_datagram(cookie, from, family, [cookie as u8; 16]);
        made.unwrap();
        table.bind_by_use(cookie, cookie as u32).unwrap();
        let local = table.socket(cookie).unwrap().local();
        let way = circuit::Way {
            local: Endpoint {
                ip: of(from),
                ..local
            },
            ..way(from, NEAR)
        };
        table.connect_datagram(cookie, way).unwrap();
    }
}

/// Another tenant's may be connected to the same address and port, which is its own place there.
#[test]
fn who_leads_elsewhere_does_not_come_up_where_somebody_binds() {
    let mut mediator = with_datagrams(&tables());
    connects(&mut mediator, OTHER, 10..90);
    mediator.link_all(NEAR, 80);
    assert!(!mediator.is_late());
    connects(&mut mediator, WEB, 90..92);
    mediator.link_all(NEAR, 80);
    let linked = |cookie| mediator.table.socket(cookie).unwrap().linked();
    assert_eq!(linked(10), None);
    assert!(!mediator.is_late());
}

/// Of thousands that share a port whoever sent last counts, and each that is gone asked nothing any more.
#[test]
fn an_answer_is_found_by_its_way_however_many_could_have_asked() {
    let mut mediator = with_datagrams(&one_way());
    let (ask, answer) = (way(WEB, NEAR), way(NEAR, WEB));
    mediator.table.set_option(1, 1, 15, &[1, 0, 0, 0]).unwrap();
    for cookie in 10..14_u64 {
        let (family, table) = (circuit::Family::V4, &mut mediator.table);
        let made = table.create_datagram(cookie, WEB, family, [cookie as u8; 16]);
        made.unwrap();
        table.set_option(cookie, 1, 15, &[1, 0, 0, 0]).unwrap();
        let own = Endpoint {
            ip: of(WEB),
            port: 80,
        };
        let (bytes, length) = circuit::write(family, own);
        table.bind(cookie, &bytes[..length], true, 0).unwrap();
        assert_eq!(mediator.may_send(WEB, cookie, ask), Ok(Some(NEAR)));
    }
    assert_eq!(mediator.ways_asked(), 1);
    for cookie in 10..14_u64 {
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        mediator.lost(cookie);
    }
    assert_eq!(mediator.ways_asked(), 0);
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(None));
    assert_eq!(mediator.may_send(WEB, 1, ask), Ok(Some(NEAR)));
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
    // As many ways of one socket as are remembered of it.
    for port in 1000..1100 {
        let mut other = ask;
        other.local.port = port;
        mediator.may_send(WEB, 1, other).unwrap();
    }
    assert_eq!(mediator.ways_asked(), mediator.asked_by(1));
    mediator.lost(1);
    assert_eq!(mediator.ways_asked(), 0);
}

/// All may send to all by UDP, but as these rules say of who sends.
fn but(denied: [bool; 2]) -> CompartmentTables {
    let mut tables = tables();
    let rules = |id, denies| {
        let mut all = judged(image::rules::Action::Deny, id);
        all.default = image::rules::Action::Allow;
        for rule in &mut all.rules {
            rule.region.protocol = decide::UDP..=decide::UDP;
        }
        all.rules.retain(|_| denies);
        all
    };
    tables.rule_tables = vec![rules(5, denied[0]), rules(6, denied[1])];
    (tables.endpoints[0].egress, tables.endpoints[1].egress) = (0, 1);
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    tables
}

/// Web asks, and a server answers for ever; each is allowed, and then web is not.
#[test]
fn what_was_asked_ends_with_its_rule_and_so_do_answers() {
    let (ask, answer) = (way(WEB, NEAR), way(NEAR, WEB));
    for connected in [false, true] {
        let mut mediator = with_datagrams(&but([false, false]));
        if connected {
            mediator.table.connect_datagram(1, ask).unwrap();
            mediator.links(1, NEAR);
        }
        let exchange = |mediator: &mut Mediator| {
            let asked = mediator.may_send(WEB, 1, ask);
            (asked, mediator.may_send(NEAR, 2, answer))
        };
        assert_eq!(exchange(&mut mediator), (Ok(Some(NEAR)), Ok(Some(WEB))));
        // What another rule says changes nothing.
        mediator.use_image(mapped(&but([false, false])));
        assert_eq!(exchange(&mut mediator), (Ok(Some(NEAR)), Ok(Some(WEB))));
        // Nor that who answers may ask nobody.
        mediator.use_image(mapped(&but([false, true])));
        assert_eq!(exchange(&mut mediator), (Ok(Some(NEAR)), Ok(Some(WEB))));
        mediator.use_image(mapped(&but([false, false])));
        assert_eq!(exchange(&mut mediator), (Ok(Some(NEAR)), Ok(Some(WEB))));
        mediator.use_image(mapped(&but([true, false])));
        assert_eq!(mediator.hunted(), if connected { vec![1] } else { vec![] });
        // What waited unread is answered still.
        for _ in 0..3 {
            assert_eq!(
                exchange(&mut mediator),
                (Err(Errno::ACCESS), Ok(Some(WEB))),
                "{connected}"
            );
        }
        // Later it is a question, as any other.
        mediator.ended_long_ago();
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        assert_eq!(mediator.may_send(WEB, 1, ask), Ok(Some(NEAR)));
    }
}

/// Each is connected to the other, and who of them asks is not known: each may what its own rule says.
#[test]
fn of_two_that_are_connected_to_each_other_each_goes_by_its_own_rule() {
    for denied in [[true, false], [false, true]] {
        let mut mediator = with_datagrams(&but([false, false]));
        let (ask, answer) = (way(WEB, NEAR), way(NEAR, WEB));
        mediator.table.connect_datagram(2, answer).unwrap();
        mediator.table.connect_datagram(1, ask).unwrap();
        mediator.links(2, WEB);
        mediator.links(1, NEAR);
        mediator.use_image(mapped(&but([false, false])));
        assert!(mediator.hunted().is_empty());
        for _ in 0..2 {
            mediator.use_image(mapped(&but(denied)));
            assert_eq!(mediator.hunted(), [if denied[0] { 1 } else { 2 }]);
            let sent = [mediator.judge(WEB, &ask), mediator.judge(NEAR, &answer)];
            assert_eq!(sent.map(|it| it.is_err()), denied);
            // And again with its rule.
            mediator.use_image(mapped(&but([false, false])));
            assert!(mediator.hunted().is_empty());
        }
    }
    // By one that is merely connected to who asks, and sends nothing, that one is not answered.
    let mut mediator = with_datagrams(&but([false, false]));
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    mediator.table.connect_datagram(2, way(NEAR, WEB)).unwrap();
    mediator.links(2, WEB);
    mediator.use_image(mapped(&but([true, false])));
    let denied = mediator.may_send(WEB, 1, way(WEB, NEAR));
    assert_eq!(denied, Err(Errno::ACCESS));
}

/// A client sends natively: that it asked is seen where it is received, and it may be answered for as long as it may ask.
#[test]
fn what_is_asked_natively_is_known_by_who_receives_it() {
    let mut mediator = with_datagrams(&but([false, false]));
    let (ask, answer) = (way(WEB, NEAR), way(NEAR, WEB));
    mediator.table.connect_datagram(1, ask).unwrap();
    mediator.links(1, NEAR);
    mediator.use_image(mapped(&but([false, false])));
    mediator.datagrams.taken.push((
        2,
        crate::mediate::udp::Taken {
            data: Vec::new(),
            length: 0,
            name: Some([1; 16]),
        },
    ));
    mediator.hears_askers();
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
    mediator.use_image(mapped(&but([false, true])));
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
    assert!(mediator.hunted().is_empty());
}

/// So many others are asked that the first is not remembered; or an operator before remembered it.
#[test]
fn what_may_be_an_answer_to_what_was_forgotten_is_no_question_once_that_is_denied() {
    let (ask, answer) = (way(WEB, NEAR), way(NEAR, WEB));
    for (follows, web_first) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut mediator = with_datagrams(&but([false, false]));
        if follows {
            mediator.datagrams.follows = Some(Instant::now());
        } else {
            assert_eq!(mediator.may_send(WEB, 1, ask), Ok(Some(NEAR)));
            for port in 1000..1100 {
                let mut other = ask;
                other.remote.port = port;
                mediator.may_send(WEB, 1, other).unwrap();
            }
        }
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        assert_eq!(mediator.may_send(WEB, 1, ask), Ok(Some(NEAR)));
        mediator.use_image(mapped(&but([false, false])));
        assert_eq!(mediator.may_send(WEB, 1, ask), Ok(Some(NEAR)));
        mediator.use_image(mapped(&but([true, false])));
        if web_first {
            assert_eq!(mediator.may_send(WEB, 1, ask), Err(Errno::ACCESS));
        }
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        assert_eq!(mediator.may_send(WEB, 1, ask), Err(Errno::ACCESS));
    }
}

/// The server answers when whom it was asked by has given its port up, or is gone, and was followed by others.
#[test]
fn what_was_asked_from_a_port_that_was_given_up_is_answered_not_asked_back() {
    let (mut ask, mut answer) = (way(WEB, NEAR), way(NEAR, WEB));
    let (family, cookie) = (circuit::Family::V4, 10);
    for (how, late) in ["unspec", "connected", "closed", "followed"]
        .into_iter()
        .flat_map(|how| [(how, false), (how, true)])
    {
        let mut mediator = with_datagrams(&but([false, false]));
        let binds = |mediator: &mut Mediator, cookie: u64| {
            let (table, name) = (&mut mediator.table, u128::from(cookie).to_ne_bytes());
            table.create_datagram(cookie, WEB, family, name).unwrap();
            table.bind_by_use(cookie, 7).unwrap();
            table.socket(cookie).unwrap().local().port
        };
        let port = binds(&mut mediator, cookie);
        (ask.local.port, answer.remote.port) = (port, port);
        if how == "connected" {
            mediator.table.connect_datagram(cookie, ask).unwrap();
            mediator.may_ask((WEB, cookie), ask, false).unwrap();
        } else {
            assert_eq!(mediator.may_send(WEB, cookie, ask), Ok(Some(NEAR)));
        }
        let mut again = cookie;
        match how {
            "unspec" | "connected" => drop(mediator.disconnects(WEB, cookie).unwrap()),
            _ => {
                mediator.lost(cookie);
                again = 11;
            }
        }
        if how == "followed" {
            leaves(&mut mediator, 5000);
        }
        if again != cookie {
            let (table, name) = (&mut mediator.table, [11; 16]);
            table.create_datagram(again, WEB, family, name).unwrap();
        }
        let (bytes, length) = circuit::write(family, Endpoint { port, ip: of(WEB) });
        let bound = mediator.table.bind(again, &bytes[..length], true, 0);
        bound.unwrap();
        let denied = but([true, false]);
        if late {
            mediator.use_image(mapped(&denied));
        }
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        mediator.use_image(mapped(&denied));
        for _ in 0..2 {
            let asked = mediator.may_send(WEB, again, ask);
            assert_eq!(asked, Err(Errno::ACCESS), "{how} {late}");
            assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        }
        // Later it is a question, as any other.
        mediator.ended_long_ago();
        assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
        assert_eq!(mediator.may_send(WEB, again, ask), Ok(Some(NEAR)));
    }
}

/// However many sockets an endpoint has, and whatever they ask; and another image asks nothing of it until it is answered.
#[test]
fn what_many_sockets_asked_is_a_part_of_each_and_judged_anew_where_it_is_answered() {
    let mut mediator = with_datagrams(&but([false, false]));
    let cookies = 1000..1256;
    let asks = |cookie: u64, to: u64| {
        let mut ask = way(WEB, NEAR);
        ask.local.port = (cookie - 1000) as u16 * 64 + to as u16;
        ask
    };
    for cookie in cookies.clone() {
        let (family, name) = (circuit::Family::V4, u128::from(cookie).to_ne_bytes());
        let table = &mut mediator.table;
        table.create_datagram(cookie, WEB, family, name).unwrap();
        for to in 1..=64 {
            mediator.may_send(WEB, cookie, asks(cookie, to)).unwrap();
        }
    }
    let asked_by = [1000, 1255].map(|it| mediator.asked_by(it));
    assert_eq!(asked_by, [64, 8192 / 256]);
    assert!(mediator.asked_in_all(WEB) < 2 * 8192);
    let ways = mediator.ways_asked();
    mediator.use_image(mapped(&but([true, false])));
    assert_eq!(mediator.ways_asked(), ways);
    // The last of what the last one asked is answered, and is nobody's question then.
    let last = asks(1255, 64);
    let answer = circuit::Way {
        local: last.remote,
        remote: last.local,
    };
    assert_eq!(mediator.may_send(NEAR, 2, answer), Ok(Some(WEB)));
    assert_eq!(mediator.ways_asked(), ways - 1);
    let denied = mediator.may_send(WEB, 1255, last);
    assert_eq!(denied, Err(Errno::ACCESS));
    for cookie in cookies {
        mediator.lost(cookie);
    }
    assert_eq!(
        (mediator.asked_in_all(WEB), mediator.ways_left(WEB)),
        (0, 4096)
    );
}
