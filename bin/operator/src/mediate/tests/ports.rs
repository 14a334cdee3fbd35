//! Endpoints that are made anew, or lose their circuits, when an operator comes to its end.

use super::*;
use circuit::{Family, Socket};
use telemetry::circuits::CUT_HIDDEN;

/// Operators one after another, all of the same page and image.
fn operators() -> impl Fn() -> Mediator {
    let next = operators_by();
    move || next(&tables())
}

/// The same, each by its own image.
fn operators_by() -> impl Fn(&image::CompartmentTables) -> Mediator {
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    move |tables| {
        let mut mediator = Mediator::default();
        mediator.use_image(mapped(tables));
        mediator.recall(Words::map_whole(&page).unwrap(), Vec::new());
        mediator
    }
}

/// Both endpoints, and all that there are.
fn plug(mediator: &mut Mediator, ports: &[(u32, u64)]) {
    for (slot, port) in ports {
        mediator.plugs(*slot, *port);
        mediator.opens(*slot, 9);
    }
    mediator.has_plugged();
}

/// A connection from WEB to NEAR, the socket of NEAR's that listens, and the one that it accepted.
fn connected(mediator: &mut Mediator) -> [Made; 3] {
    let [listener, accepted] = [(); 2].map(|()| sockets::stream(true).unwrap());
    let (bytes, length) = circuit::write(Family::V4, near());
    let table = &mut mediator.table;
    table.create(listener.cookie, NEAR, Family::V4, 0).unwrap();
    let bound = table.bind(listener.cookie, &bytes[..length], true, 7);
    bound.unwrap();
    table.listen(listener.cookie, 9, [3; 16], 0).unwrap();
    let client = waiting(mediator, &listener, Carrier::Kernel);
    let taken = mediator
        .table
        .accepted(listener.cookie, accepted.cookie, Some(client.cookie));
    taken.unwrap();
    mediator.write();
    [client, listener, accepted]
}

fn near() -> Endpoint {
    Endpoint {
        ip: of(NEAR),
        port: 80,
    }
}

/// A connection of WEB's that waits to be accepted at a socket of NEAR's.
fn waiting(mediator: &mut Mediator, listener: &Made, carrier: Carrier) -> Made {
    let waits = begins(mediator, listener, carrier);
    mediator.table.connected(waits.cookie).unwrap();
    mediator.write();
    waits
}

/// The same, before it is told so.
fn begins(mediator: &mut Mediator, listener: &Made, carrier: Carrier) -> Made {
    let waits = sockets::stream(true).unwrap();
    let (table, (bytes, length)) = (&mut mediator.table, circuit::write(Family::V4, near()));
    table.create(waits.cookie, WEB, Family::V4, 0).unwrap();
    let begun = table.connect_begin(waits.cookie, &bytes[..length], 7);
    begun.unwrap();
    if carrier.is_metered() {
        table.waits_as(waits.cookie, u64::MAX);
    }
    table.carry(waits.cookie, carrier, 5);
    let began = table.socket(waits.cookie).unwrap();
    let pending = Pending {
        client: began.local(),
        local: near(),
        token: began.token(),
        crossing: 0,
        relayed: false,
    };
    table.enqueue(listener.cookie, pending).unwrap();
    mediator.write();
    waits
}

/// Sockets of an endpoint that are known.
fn of_slot(mediator: &Mediator, slot: u32) -> usize {
    let all = mediator.table.all().map(Socket::endpoint);
    all.filter(|it| *it == slot).count()
}

/// It was to be told, and came to its end before it heard.
#[test]
fn what_is_of_a_port_of_before_is_left_behind_by_who_follows() {
    let both: &[(u32, u64)] = &[(WEB, 11), (NEAR, 22)];
    for (ports, left, cut) in [
        (both, [1, 2], false),
        (&[(WEB, 11), (NEAR, 23)], [1, 0], true),
        // It has packets alone by now.
        (&[(WEB, 11)], [1, 0], true),
    ] {
        let next = operators();
        let mut first = next();
        plug(&mut first, both);
        let made = connected(&mut first);
        drop(first);
        let mut second = next();
        plug(&mut second, ports);
        let found = [WEB, NEAR].map(|slot| of_slot(&second, slot));
        assert_eq!(found, left, "{ports:?}");
        assert_eq!(second.hunted() == [made[2].cookie], cut, "{ports:?}");
        // And is no more by the next.
        drop(second);
        let mut third = next();
        plug(&mut third, ports);
        assert_eq!([WEB, NEAR].map(|slot| of_slot(&third, slot)), left);
        assert!(third.hunted().is_empty());
    }
}

/// No rule says so.
#[test]
fn what_was_to_be_cut_by_its_id_is_looked_for_by_who_follows() {
    let both: &[(u32, u64)] = &[(WEB, 11), (NEAR, 22)];
    let next = operators();
    let mut first = next();
    plug(&mut first, both);
    let made = connected(&mut first);
    assert_eq!(first.cut_one(made[0].cookie), CUT_HIDDEN);
    let hunted = first.hunted();
    assert!(!hunted.is_empty());
    drop(first);
    let mut second = next();
    plug(&mut second, both);
    assert_eq!(second.hunted(), hunted);
}

/// Who was told of both has nothing of the former to leave behind, and says so to who follows.
#[test]
fn a_port_is_known_by_who_follows_from_when_it_is_opened() {
    let next = operators();
    let mut first = next();
    plug(&mut first, &[(WEB, 11), (NEAR, 22)]);
    let _made = connected(&mut first);
    first.closes(NEAR);
    plug(&mut first, &[(NEAR, 23)]);
    let notes = |it: &Mediator, slot| it.notes.as_ref().unwrap().port(slot);
    assert_eq!([WEB, NEAR].map(|slot| notes(&first, slot)), [11, 23]);
    assert_eq!(of_slot(&first, NEAR), 0);
}

/// Of what is linked there the others are looked at, too.
#[test]
fn who_is_linked_to_what_was_left_behind_is_cut() {
    let next = operators();
    let mut first = next();
    plug(&mut first, &[(WEB, 11), (NEAR, 22)]);
    let made = super::hunts::connected(&mut first);
    drop(first);
    let mut second = next();
    plug(&mut second, &[(WEB, 11), (NEAR, 23)]);
    assert_eq!(second.hunted(), [made.cookie]);
}

/// It has another address.
fn without(slot: u32) -> image::CompartmentTables {
    let mut tables = tables();
    let address = tables.addresses.iter_mut().find(|it| it.1 == of(slot));
    address.unwrap().1 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 9];
    tables
}

/// Its program keeps the socket, and nobody would ever tell.
#[test]
fn who_waits_at_what_was_left_behind_waits_no_more() {
    let all = [Carrier::Kernel, Carrier::Meter].map(|it| [(it, false), (it, true)]);
    for (carrier, by_image) in all.concat() {
        let next = operators();
        let mut mediator = next();
        plug(&mut mediator, &[(WEB, 11), (NEAR, 22)]);
        // Who has an interface beside may reach by packets what has no circuits.
        mediator.link_proxy(WEB, seqpacket::Socket::pair().unwrap().0);
        let made = connected(&mut mediator);
        let waits = [begins, waiting].map(|it| it(&mut mediator, &made[1], carrier));
        match by_image {
            true => mediator.use_image(mapped(&without(NEAR))),
            false => mediator.closes(NEAR),
        }
        let hunted = mediator.hunted();
        for waits in waits {
            assert!(hunted.contains(&waits.cookie), "{carrier:?} {by_image}");
        }
    }
}

/// Who follows has no table of before: by the page.
#[test]
fn what_was_by_an_address_that_went_meanwhile_is_cut_by_who_follows() {
    for slot in [WEB, NEAR] {
        let next = operators_by();
        let mut first = next(&tables());
        plug(&mut first, &[(WEB, 11), (NEAR, 22)]);
        let made = connected(&mut first);
        let waits = waiting(&mut first, &made[1], Carrier::Kernel);
        drop(first);
        let mut second = next(&without(slot));
        plug(&mut second, &[(WEB, 11), (NEAR, 22)]);
        let mut expected = match slot {
            WEB => vec![made[0].cookie, waits.cookie],
            _ => vec![made[2].cookie, waits.cookie],
        };
        expected.sort_unstable();
        assert_eq!(second.hunted(), expected, "{slot}");
    }
}
