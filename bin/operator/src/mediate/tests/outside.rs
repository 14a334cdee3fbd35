//! Datagrams that lead outside: whose they are, and how many.

use super::*;
use circuit::{Family, Way};
use command::Message;
use command::verbs::{Convey, Hear, Heard, Part, Quiet, Served, Unhear};
use rustix::net::SendFlags;
use seqpacket::Socket as Link;
use std::os::fd::AsRawFd;

/// A datagram socket of NEAR's, bound to port 53.
fn bound(mediator: &mut Mediator) -> Made {
    mediator.opens(NEAR, 8);
    another(mediator)
}

/// One that is connected so, and found where its program has it; and its proxy.
fn connected(mediator: &mut Mediator, way: &Way) -> (Made, Link) {
    let made = bound(mediator);
    let here = rustix::thread::gettid().as_raw_nonzero().get();
    let number = made.fd.as_raw_fd().cast_unsigned();
    let place = place::of_thread(here.cast_unsigned(), number);
    mediator.table.place(made.cookie, place);
    let near = linked(mediator, NEAR);
    mediator.table.connect_datagram(made.cookie, *way).unwrap();
    let linked = mediator.link_outside(&made.fd, made.cookie, way);
    linked.unwrap();
    (made, near)
}

/// One more, which has it as well.
fn another(mediator: &mut Mediator) -> Made {
    let name = secret().unwrap();
    let made = sockets::datagram(true, name).unwrap();
    let table = &mut mediator.table;
    table
        .create_datagram(made.cookie, NEAR, Family::V4, name)
        .unwrap();
    let here = Endpoint {
        ip: of(NEAR),
        port: 53,
    };
    let (bytes, length) = circuit::write(Family::V4, here);
    let on = 1_i32.to_ne_bytes();
    let shares = table.set_option(made.cookie, libc::SOL_SOCKET, libc::SO_REUSEADDR, &on);
    assert_eq!(shares, Ok(circuit::Outcome::Accepted));
    table.bind(made.cookie, &bytes[..length], true, 7).unwrap();
    made
}

/// Somebody sends to port 53 of NEAR from this one, whom its proxy knows not.
fn hears(mediator: &mut Mediator, proxy: &Link, from_port: u32) -> Vec<(Convey, bool)> {
    let heard = Heard {
        from: to(1).remote.ip,
        to: of(NEAR),
        from_port,
        to_port: 53,
    };
    proxy.send(&Message::new(0, &heard), &[]).unwrap();
    mediator.hear_proxy(NEAR, &|_| None).unwrap();
    conveyed(proxy)
}

/// What is conveyed by now, and whether anew; nothing is parted.
fn conveyed(proxy: &Link) -> Vec<(Convey, bool)> {
    let all = told(proxy).into_iter();
    let all = all.inspect(|(message, _)| assert!(message.body::<Part>().is_none()));
    all.filter_map(|(message, fds)| Some((message.body::<Convey>()?, fds > 0)))
        .collect()
}

pub(super) fn linked(mediator: &mut Mediator, slot: u32) -> Link {
    let (link, proxy) = Link::pair().unwrap();
    mediator.link_proxy(slot, link);
    proxy
}

/// What a proxy is told, but that it was told all, and how many descriptors come with it.
pub(super) fn told(proxy: &Link) -> Vec<(Message, usize)> {
    let mut all = Vec::new();
    while let Some((message, fds)) = proxy.recv().unwrap() {
        all.push((message, fds.len()));
    }
    all.retain(|(message, _)| message.body::<Served>().is_none());
    all
}

/// Each of them takes some system calls, and the operator is everybody's.
#[test]
fn strangers_are_heard_for_a_while_and_others_have_their_turn() {
    let mut mediator = with_circuits(&tables());
    let _made = bound(&mut mediator);
    let near = linked(&mut mediator, NEAR);
    told(&near);
    for n in 0..150 {
        let heard = Heard {
            from: to(1).remote.ip,
            to: of(NEAR),
            from_port: 4000 + n,
            to_port: 53,
        };
        near.send(&Message::new(0, &heard), &[]).unwrap();
    }
    let mut conveyed = Vec::new();
    while conveyed.iter().sum::<usize>() < 150 {
        mediator.hear_proxy(NEAR, &|_| None).unwrap();
        conveyed.push(told(&near).len());
    }
    assert!(conveyed.len() > 1, "{conveyed:?}");
}

/// In the subnet, where nobody of circuits has it.
fn to(n: u32) -> Way {
    let mut outside = of(NEAR);
    outside[15] = 200;
    Way {
        local: Endpoint {
            ip: of(NEAR),
            port: 53,
        },
        remote: Endpoint {
            ip: outside,
            port: n as u16,
        },
    }
}

#[test]
fn a_proxy_has_its_own_endpoints_programs_hear_and_no_others() {
    let mut mediator = with_circuits(&tables());
    let made = bound(&mut mediator);
    let near = linked(&mut mediator, NEAR);
    let hears = told(&near);
    let at = hears[0].0.body::<Hear>().unwrap();
    assert_eq!((hears.len(), at.ip, at.port), (1, of(NEAR), 53));
    let web = linked(&mut mediator, WEB);
    assert!(told(&web).is_empty());
    let heard = Heard {
        from: to(1).remote.ip,
        to: of(NEAR),
        from_port: 4242,
        to_port: 53,
    };
    for (slot, proxy) in [(WEB, &web), (NEAR, &near)] {
        proxy.send(&Message::new(0, &heard), &[]).unwrap();
        mediator.hear_proxy(slot, &|_| None).unwrap();
    }
    // Who is nobody's is said to be.
    let of_web = told(&web);
    let body = of_web[0].0.body::<Convey>().unwrap();
    assert_eq!((of_web.len(), body.id, body.hears), (1, 0, 0));
    assert_eq!((body.to_port, body.from_port), (4242, 53));
    let conveyed = told(&near);
    let body = conveyed[0].0.body::<Convey>().unwrap();
    assert_eq!((conveyed.len(), conveyed[0].1), (1, 1));
    assert_eq!((body.to_port, body.from_port), (4242, 53));
    // Nor does it end what is another's.
    let quiet = Quiet {
        id: body.id,
        ended: 1,
        reserved: 0,
    };
    for (slot, proxy, left) in [(WEB, &web, true), (NEAR, &near, false)] {
        proxy.send(&Message::new(0, &quiet), &[]).unwrap();
        mediator.hear_proxy(slot, &|_| None).unwrap();
        assert_eq!(mediator.outside.leads(made.cookie, &to(4242)), left);
        assert!(told(proxy).is_empty());
    }
    // One that the proxy has, and nobody knows: the word of its end was lost.
    let quiet = Quiet { ended: 0, ..quiet };
    near.send(&Message::new(0, &quiet), &[]).unwrap();
    mediator.hear_proxy(NEAR, &|_| None).unwrap();
    let all = told(&near);
    assert_eq!(all[0].0.body::<Part>(), Some(Part { id: body.id }));
    // Without its program nothing is heard.
    proxy_is_told_of_its_end(&mut mediator, made, &near);
}

/// So many sockets of NEAR's, each bound to a port of its own.
fn many(mediator: &mut Mediator, ports: std::ops::Range<u16>) -> Vec<Made> {
    let one = |port| {
        let name = secret().unwrap();
        let made = sockets::datagram(true, name).unwrap();
        let table = &mut mediator.table;
        table
            .create_datagram(made.cookie, NEAR, Family::V4, name)
            .unwrap();
        let at = Endpoint { ip: of(NEAR), port };
        let (bytes, length) = circuit::write(Family::V4, at);
        table.bind(made.cookie, &bytes[..length], true, 7).unwrap();
        made
    };
    ports.map(one).collect()
}

/// Has a proxy hear all that is to be said; the ports where it hears by then.
fn hears_all(mediator: &mut Mediator, proxy: &Link, mut heard: BTreeSet<u32>) -> BTreeSet<u32> {
    for _ in 0..100 {
        for (message, _) in told(proxy) {
            heard.extend(message.body::<Hear>().map(|it| it.port));
            if let Some(Unhear { port, .. }) = message.body() {
                heard.remove(&port);
            }
        }
        mediator.outside_tick();
    }
    assert!(!mediator.outside.is_late() && !mediator.relays.is_late());
    heard
}

/// Many are bound when a proxy comes: what its link has no room for is said when it has read.
#[test]
fn a_proxy_is_told_of_all_that_are_bound_however_many() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 2000);
    let _kept = many(&mut mediator, 2000..2900);
    let proxy = linked(&mut mediator, NEAR);
    assert!(mediator.relays.is_late() && mediator.sleep().is_some());
    let heard = hears_all(&mut mediator, &proxy, BTreeSet::new());
    assert_eq!(heard.len(), 900);
}

/// Many are closed, and one of their ports is another's before the proxy has read of it.
#[test]
fn a_proxy_is_told_in_order_of_what_is_heard_no_more() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 2000);
    let made = many(&mut mediator, 2000..2900);
    let proxy = linked(&mut mediator, NEAR);
    let heard = hears_all(&mut mediator, &proxy, BTreeSet::new());
    for made in made {
        mediator.table.closed(made.cookie).unwrap();
    }
    mediator.settle_relays();
    let mut first = None;
    // Its link has room for some more.
    for _ in 0..10 {
        first = first.or(proxy.recv().unwrap());
    }
    let first = first.and_then(|(message, _)| message.body::<Unhear>());
    assert!(first.is_some());
    let another = many(&mut mediator, 2899..2900);
    mediator.hear_bound(another[0].cookie);
    let heard = hears_all(&mut mediator, &proxy, heard);
    let left: BTreeSet<u32> = (2000..2010).collect();
    let heard: Vec<u32> = heard.difference(&left).copied().collect();
    assert_eq!(heard, [2899]);
}

fn proxy_is_told_of_its_end(mediator: &mut Mediator, made: Made, near: &Link) {
    mediator
        .deliver_outside((made.cookie, &made.fd), &to(9), b"gone out")
        .unwrap();
    let all = told(near);
    assert!(all[0].0.body::<Convey>().is_some());
    mediator.table.closed(made.cookie).unwrap();
    mediator.settle_relays();
    let all = told(near);
    assert!(all[0].0.body::<Part>().is_some());
    assert!(all[1].0.body::<Unhear>().is_some());
}

/// As servers accept by UDP: another socket at the port, which is connected to one peer then. No other peer is lost by that, whoever
/// of them sends meanwhile, and what the first has for each of them goes on.
#[test]
fn who_binds_and_connects_has_its_peer_and_no_others() {
    let mut mediator = with_circuits(&tables());
    let first = bound(&mut mediator);
    let near = linked(&mut mediator, NEAR);
    told(&near);
    let [its, other] = [7, 8].map(|port| {
        let all = hears(&mut mediator, &near, port);
        assert!(matches!(all[..], [(_, true)]));
        all[0].0.id
    });
    let second = another(&mut mediator);
    mediator.settles_peers(NEAR, 53);
    let all = conveyed(&near);
    let ids: Vec<_> = all.iter().map(|(body, anew)| (body.id, *anew)).collect();
    assert_eq!(ids, [(0, false), (0, false)], "they are asked for again");
    mediator.settles_peers(NEAR, 53);
    assert!(conveyed(&near).is_empty(), "it is said once");
    let all = hears(&mut mediator, &near, 8);
    assert!(matches!(all[..], [(body, true)] if body.to_port == 8 && body.id != other));
    let table = &mut mediator.table;
    table.connect_datagram(second.cookie, to(7)).unwrap();
    let linked = mediator.link_outside(&second.fd, second.cookie, &to(7));
    linked.unwrap();
    mediator.settles_peers(NEAR, 53);
    let all = conveyed(&near);
    let ids: Vec<_> = all
        .iter()
        .map(|(body, anew)| (body.to_port, *anew))
        .collect();
    assert_eq!(ids, [(7, true), (8, false)]);
    assert_eq!(all[1].0.id, other, "by what the first has for it");
    // Whoever sent before it was connected may still be asked for. What it sends goes on by what it has.
    let again = hears(&mut mediator, &near, 7);
    assert_eq!(again, [(all[0].0, false)]);
    assert_eq!(sockets::name(&second.fd).map(|_| ()), Some(()));
    let sent = rustix::net::send(&second.fd, b"x", SendFlags::NOSIGNAL);
    assert_eq!(
        sent,
        Err(Errno::CONNREFUSED),
        "nobody keeps its far end here"
    );
    // The first answers the one that is the second's: so it stays.
    let by = (first.cookie, &first.fd);
    mediator.part(first.cookie, &to(7));
    told(&near);
    mediator.deliver_outside(by, &to(7), b"late").unwrap();
    let sends = conveyed(&near);
    assert!(matches!(sends[..], [(body, true)] if body.hears == 0 && body.id != its));
    // Connected no more it hears whoever sends, as the newest.
    mediator.table.disconnect(second.cookie).unwrap();
    sockets::disconnects(&second.fd).unwrap();
    mediator.settles_peers(NEAR, 53);
    let ids: Vec<_> = conveyed(&near)
        .iter()
        .map(|(body, _)| (body.to_port, body.id))
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(ids[0].0, 8);
}

/// Its proxy, or operator, was replaced meanwhile, and it was heard for at its connection's address alone, or at none.
#[test]
fn who_is_connected_no_more_is_heard_for_where_it_is_bound() {
    let mut mediator = with_circuits(&tables());
    let made = bound(&mut mediator);
    mediator.table.connect_datagram(made.cookie, to(7)).unwrap();
    let near = linked(&mut mediator, NEAR);
    assert!(told(&near).is_empty());
    mediator.table.disconnect(made.cookie).unwrap();
    for _ in 0..2 {
        mediator.hears_anew(NEAR, made.cookie);
        let all = told(&near);
        let heard: Vec<_> = all
            .iter()
            .filter_map(|(message, _)| message.body::<Hear>())
            .map(|it| (it.port, it.id))
            .collect();
        assert_eq!(heard, [(53, made.cookie)], "and asked for again");
    }
}

/// What a connected socket had is gone at its proxy: with the next that comes it is linked anew, what it sends with it.
#[test]
fn who_is_connected_is_linked_anew_when_its_proxy_has_nothing_for_it() {
    let mut mediator = with_circuits(&tables());
    let (made, near) = connected(&mut mediator, &to(7));
    let id = conveyed(&near)[0].0.id;
    let quiet = Quiet {
        id,
        ended: 1,
        reserved: 0,
    };
    near.send(&Message::new(0, &quiet), &[]).unwrap();
    assert!(hears(&mut mediator, &near, 7).is_empty());
    assert!(mediator.outside.is_late());
    mediator.outside_tick();
    let all: Vec<_> = std::iter::from_fn(|| near.recv().unwrap()).collect();
    let sent = rustix::net::send(&made.fd, b"x", SendFlags::NOSIGNAL);
    assert_eq!((all.len(), sent), (1, Ok(1)));
}

/// Its proxy's kernel would refuse that, where nobody is told of it.
#[test]
fn what_is_for_all_of_the_own_subnet_leads_nowhere() {
    let mut tables = tables();
    let mut mediator = with_circuits(&tables);
    let made = bound(&mut mediator);
    let _proxy = linked(&mut mediator, NEAR);
    let ending = |subnet, host| {
        let mut way = to(9);
        (way.remote.ip[14], way.remote.ip[15]) = (subnet, host);
        way
    };
    let told = mediator.may_send(NEAR, made.cookie, ending(0, 255));
    assert_eq!(told, Err(Errno::HOSTUNREACH));
    let leads = |mediator: &Mediator| {
        let of = [
            ending(0, 255),
            ending(0, 254),
            ending(0, 127),
            ending(1, 255),
        ];
        of.map(|way| mediator.is_outside(NEAR, &way))
    };
    // Another subnet's is its switch's to judge.
    assert_eq!(leads(&mediator), [false, true, true, true]);
    // Of two addresses both are somebody's (RFC 3021).
    for (length, expected) in [
        (25, [true, true, false, true]),
        (31, [true, true, true, true]),
        (32, [true, true, true, true]),
        (0, [true, true, true, true]),
    ] {
        tables.subnets[0].prefix4_len = length;
        mediator.use_image(mapped(&tables));
        assert_eq!(leads(&mediator), expected, "{length}");
    }
}

#[test]
fn an_endpoint_has_as_many_peers_as_it_may_and_who_is_connected_keeps_its_own() {
    let mut mediator = with_circuits(&tables());
    let made = bound(&mut mediator);
    let near = linked(&mut mediator, NEAR);
    assert!(mediator.is_outside(NEAR, &to(1)), "nobody has the address");
    let mut beyond = to(1);
    beyond.remote.ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1];
    assert!(!mediator.is_outside(NEAR, &beyond), "no route leads there");
    mediator.table.connect_datagram(made.cookie, to(1)).unwrap();
    mediator
        .link_outside(&made.fd, made.cookie, &to(1))
        .unwrap();
    let other = another(&mut mediator);
    let mut parted = 0;
    for n in 2..1500 {
        let by = (other.cookie, &other.fd);
        mediator.deliver_outside(by, &to(n), b"x").unwrap();
        // Its room is the kernel's, which is not what is tried here.
        let all = told(&near);
        parted += all
            .iter()
            .filter(|(it, _)| it.body::<Part>().is_some())
            .count();
    }
    assert_eq!(parted, 1499 - 1000);
    assert!(
        mediator.outside.known() <= 1000,
        "no more of those that are parted"
    );
    assert!(mediator.outside.leads(made.cookie, &to(1)));
    assert!(!mediator.outside.leads(other.cookie, &to(2)));
    assert!(mediator.outside.leads(other.cookie, &to(1499)));
    // Another endpoint's are its own; a proxy that is gone takes all of them along.
    mediator.unlink_proxy(NEAR, &|_| None);
    assert!(!mediator.outside.leads(made.cookie, &to(1)));
    assert!(mediator.is_outside(NEAR, &to(1)), "it comes back");
    let by = (made.cookie, &made.fd);
    assert_eq!(mediator.deliver_outside(by, &to(3), b"lost"), Ok(()));
}

/// What it sends goes to who had that address inside, wherever its program has it.
#[test]
fn who_is_linked_inside_and_leads_outside_by_now_is_cut() {
    let (tables, mut mediator) = (tables(), with_datagrams(&tables()));
    let made = super::hunts::connected(&mut mediator);
    let way = mediator.table.socket(made.cookie).unwrap().way().unwrap();
    mediator.links(made.cookie, NEAR);
    let _proxy = linked(&mut mediator, WEB);
    mediator.use_image(mapped(&tables));
    assert!(mediator.hunted().is_empty());
    // An operator that starts is told of its endpoints one by one: of this one it is not yet.
    mediator.limits.remove(&NEAR);
    assert!(mediator.is_outside(WEB, &way));
    mediator.use_image(mapped(&tables));
    assert!(mediator.hunted().is_empty());
    // Who has the address has packets by now.
    mediator.closes(NEAR);
    assert_eq!(mediator.hunted(), [made.cookie]);
}

/// A proxy, or an operator, came to its end and took along where it led.
#[test]
fn who_leads_outside_and_is_not_found_when_a_proxy_starts_is_looked_for() {
    let mut mediator = with_circuits(&tables());
    let made = bound(&mut mediator);
    mediator.table.connect_datagram(made.cookie, to(1)).unwrap();
    let _proxy = linked(&mut mediator, NEAR);
    assert_eq!(mediator.hunted(), [made.cookie]);
}

/// A search has cut it since it was linked, and what is known of its way says nothing of that.
#[test]
fn who_was_cut_by_a_search_and_may_go_on_leads_outside_again() {
    let mut mediator = with_circuits(&tables());
    let (made, near) = connected(&mut mediator, &to(1));
    let sends = || {
        // Their descriptors with them, as long as this.
        let all = std::iter::from_fn(|| near.recv().unwrap());
        let conveyed: Vec<_> = all
            .filter(|(message, _)| message.body::<Served>().is_none())
            .collect();
        (
            rustix::net::send(&made.fd, b"x", SendFlags::NOSIGNAL),
            conveyed.len(),
        )
    };
    assert_eq!(sends(), (Ok(1), 2), "it is heard, and conveyed");
    sockets::disconnects(&made.fd).unwrap();
    assert_eq!(sends(), (Err(Errno::NOTCONN), 0));
    mediator.found(&command::verbs::Found {
        inode: rustix::fs::fstat(&made.fd).unwrap().st_ino,
        thread: 0,
        number: 1,
    });
    assert!(!mediator.cuts_found());
    mediator.outside_tick();
    assert_eq!(sends().0, Ok(1));
}

/// As its switch lets in: also by what is stateless, and from where something can come at all.
#[test]
fn what_a_proxy_let_in_is_cut_when_its_switch_drops_it_and_no_sooner() {
    use image::rules::Action;
    let outside = to(1).remote.ip;
    let rows = [
        (of(WEB), None, false),
        (of(WEB), Some(Action::Allow), false),
        (of(WEB), Some(Action::AllowStateless), false),
        (of(WEB), Some(Action::Deny), true),
        // What stays in the endpoint's own namespace its switch does not see.
        (of(NEAR), Some(Action::Deny), false),
        // From there nobody can come.
        (outside, None, true),
    ];
    for (client, action, is_cut) in rows {
        let mut tables = tables();
        let mut mediator = with_circuits(&tables);
        let (listener, family) = (sockets::stream(true).unwrap(), Family::V4);
        let at = |ip, port| Endpoint { ip, port };
        let table = &mut mediator.table;
        table.create(listener.cookie, NEAR, family, 0).unwrap();
        let (bytes, length) = circuit::write(family, at(of(NEAR), 80));
        let bound = table.bind(listener.cookie, &bytes[..length], true, 1);
        bound.unwrap();
        table.listen(listener.cookie, 9, [3; 16], 0).unwrap();
        for token in [77, 78] {
            let pending = Pending {
                client: at(client, 5000 + token as u16),
                local: at(of(NEAR), 80),
                token,
                crossing: 0,
                relayed: true,
            };
            table.enqueue(listener.cookie, pending).unwrap();
        }
        let accepted = sockets::stream(true).unwrap();
        let taken = table.accepted(listener.cookie, accepted.cookie, Some(77));
        assert!(taken.is_ok());
        mediator.write();
        if let Some(action) = action {
            tables.rule_tables = vec![judged(action, 1)];
            tables.endpoints[1].ingress = 0;
            for endpoint in &mut tables.endpoints {
                endpoint.connections = 64;
            }
        }
        mediator.use_image(mapped(&tables));
        let hunted = mediator.hunted().contains(&accepted.cookie);
        let waits = mediator.table.relayed().count();
        let expected = (is_cut, usize::from(!is_cut));
        assert_eq!((hunted, waits), expected, "{client:?} {action:?}");
    }
}
