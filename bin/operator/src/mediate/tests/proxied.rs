//! Proxies that listen for programs.

use super::outside::{linked, told};
use super::*;
use circuit::Family;
use command::Message;
use command::verbs::{Came, Join, Serve, Unserve};

/// A socket of NEAR's that listens at this port, where others may too.
fn listens(mediator: &mut Mediator, port: u16) -> Made {
    let made = sockets::stream(true).unwrap();
    let table = &mut mediator.table;
    table.create(made.cookie, NEAR, Family::V4, 0).unwrap();
    // SO_REUSEPORT.
    table.set_option(made.cookie, 1, 15, &[1, 0, 0, 0]).unwrap();
    let at = Endpoint { ip: of(NEAR), port };
    let (bytes, length) = circuit::write(Family::V4, at);
    table.bind(made.cookie, &bytes[..length], true, 7).unwrap();
    let name = sockets::name(&made.fd).map_or_else(secret, Ok).unwrap();
    table.listen(made.cookie, 8, name, 7).unwrap();
    sockets::listens(&made.fd, name).unwrap();
    made
}

/// Within some seconds, where it listened for them before: what its link has no room for is said when it has read.
#[test]
fn a_proxy_is_told_of_all_that_listen_however_many() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 2000);
    let kept: Vec<Made> = (2000..2900)
        .map(|port| listens(&mut mediator, port))
        .collect();
    let proxy = linked(&mut mediator, NEAR);
    assert!(mediator.relays.is_late() && mediator.sleep().is_some());
    let mut served = BTreeSet::new();
    for _ in 0..100 {
        for (message, _) in told(&proxy) {
            served.extend(message.body::<Serve>().map(|it| it.port));
        }
        mediator.outside_tick();
    }
    assert_eq!(served.len(), 900);
    assert!(!mediator.relays.is_late());
    drop(kept);
}

/// A proxy is told of each that listens, also with another backlog, and of each that does no more: by its own, for one socket that it has
/// for all that share a port.
#[test]
fn those_that_share_a_port_are_listened_for_as_long_as_one_does() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 9);
    let [first, second] = [(); 2].map(|()| listens(&mut mediator, 80));
    let words = |all: &[(Message, usize)]| -> Vec<(bool, u64)> {
        let serves = |it: &Message| it.body::<Serve>().map(|it| (true, it.id));
        let ends = |it: &Message| it.body::<Unserve>().map(|it| (false, it.id));
        let all = all.iter().map(|(message, _)| message);
        all.filter_map(|it| serves(it).or(ends(it))).collect()
    };
    let proxy = linked(&mut mediator, NEAR);
    let both = [(true, first.cookie), (true, second.cookie)];
    assert_eq!(words(&told(&proxy)), both);
    for (backlog, told_again) in [(8, 0), (9, 1), (9, 0)] {
        let name = sockets::name(&first.fd).unwrap();
        mediator
            .table
            .listen(first.cookie, backlog, name, 7)
            .unwrap();
        mediator
            .relays
            .serve(mediator.table.socket(first.cookie).unwrap());
        assert_eq!(words(&told(&proxy)), both[..told_again]);
    }
    let mut come = |ids: std::ops::Range<u64>| -> Vec<(Message, usize)> {
        ids.flat_map(|id| {
            let came = Came {
                id: 1 << 63 | id,
                at: first.cookie,
                from: of(WEB),
                to: of(NEAR),
                from_port: 4000 + id as u32,
                to_port: 80,
            };
            proxy.send(&Message::new(0, &came), &[]).unwrap();
            mediator.hear_proxy(NEAR, &|_| None).unwrap();
            told(&proxy)
        })
        .collect()
    };
    let joined = |all: &[(Message, usize)]| {
        let is_one =
            |(message, fds): &&(Message, usize)| message.body::<Join>().is_some() && *fds == 1;
        all.iter().filter(is_one).count()
    };
    // Each has some of them.
    assert_eq!(joined(&come(0..24)), 24);
    let is_empty = |it: &Made| matches!(sockets::accepts(&it.fd, true, || {}), Ok(None));
    assert!(!is_empty(&first) && !is_empty(&second));
    // Its program is gone, of which nobody is told: who comes then is another's.
    drop(first.fd);
    let said = come(24..48);
    assert_eq!(joined(&said), 24);
    assert_eq!(words(&said), [(false, first.cookie)]);
    drop(second);
    // What its peers have this process do is its endpoint's.
    assert!(mediator.spent().iter().any(|it| it.slot == NEAR));
}
