//! Circuits that are metered, and cut.

use super::*;
use command::verbs::{
    Capture, EVERYBODY, EndMetered, METER_COUNTS, MeterPage, MeterRates, Metered,
};
use image::compartment::{ENDPOINT_METERED, Rate};
use seqpacket::Socket;
use std::time::Duration;
use stream::Side;
use telemetry::circuits::{CUT_DONE, CUT_HIDDEN, CUT_UNKNOWN};

/// Where NEAR is counted, and may be sent so many bytes a second (0: as many as there are).
fn metered(to: u64) -> CompartmentTables {
    let mut tables = tables();
    tables.endpoints[1].flags = ENDPOINT_METERED;
    tables.endpoints[1].to = Rate {
        bytes: to,
        burst: to / 100,
        packets: 0,
    };
    tables
}

#[test]
fn what_goes_past_a_rate_is_cut_and_what_is_counted_alone_is_not() {
    let mut mediator = with_circuits(&tables());
    mediator.use_image(mapped(&metered(0)));
    assert_eq!(begun(&mediator), [1, 2]);
    mediator.table.carry(1, Carrier::Meter, 0);
    mediator.write();
    mediator.use_image(mapped(&metered(1 << 20)));
    assert_eq!(begun(&mediator), [1, 2], "the meter keeps it");
    mediator.table.carry(1, Carrier::Ring, 0);
    mediator.write();
    mediator.use_image(mapped(&metered(1 << 20)));
    // Nobody has it here; inside an endpoint there is no rate.
    assert_eq!(mediator.hunted(), [1]);
}

#[test]
fn there_is_no_memory_for_what_is_metered() {
    let mut mediator = with_circuits(&tables());
    let slots = [WEB, NEAR];
    assert_eq!(mediator.connection(1), Ok((1, Side::Began, slots)));
    mediator.table.carry(1, Carrier::Meter, 0);
    assert_eq!(mediator.connection(1), Err(Errno::OPNOTSUPP));
    mediator.table.carry(1, Carrier::Kernel, 0);
    mediator.use_image(mapped(&metered(0)));
    assert_eq!(mediator.connection(1), Err(Errno::OPNOTSUPP));
}

#[test]
fn datagrams_of_who_is_metered_stay_inside() {
    let mut mediator = with_datagrams(&tables());
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
    mediator.use_image(mapped(&metered(0)));
    for (from, to, cookie) in [(WEB, NEAR, 1), (NEAR, WEB, 2)] {
        let outcome = mediator.may_send(from, cookie, way(from, to));
        assert_eq!(outcome, Err(Errno::ACCESS), "{from}");
    }
    assert_eq!(mediator.may_send(NEAR, 2, way(NEAR, NEAR)), Ok(Some(NEAR)));
}

fn told<B: command::Body>(meter: &Socket) -> (B, usize) {
    let (message, fds) = meter.recv().unwrap().expect("nothing is said");
    (message.body::<B>().expect("something else"), fds.len())
}

/// The rates that a meter is told of when it is linked: a page, they, and that these are all.
fn told_of_all(meter: &Socket) -> Vec<MeterRates> {
    assert_eq!(told::<MeterPage>(meter).1, 1);
    let rates = std::iter::repeat_with(|| told::<MeterRates>(meter).0);
    rates.take_while(|it| it.slot != EVERYBODY).collect()
}

#[test]
fn a_meter_is_told_of_rates_and_of_circuits_and_of_their_ends() {
    let mut mediator = with_circuits(&tables());
    assert!(!mediator.wants_meter());
    mediator.table.carry(1, Carrier::Meter, 0);
    mediator.write();
    mediator.use_image(mapped(&metered(1000)));
    assert!(mediator.wants_meter());
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    let rates = MeterRates {
        slot: NEAR,
        flags: METER_COUNTS,
        to: 1000,
        to_burst: 10,
        ..MeterRates::default()
    };
    assert_eq!(told_of_all(&meter), [rates]);
    // Only what is another, and what is none any more.
    mediator.use_image(mapped(&metered(1000)));
    mediator.use_image(mapped(&metered(2000)));
    assert_eq!(told::<MeterRates>(&meter).0.to, 2000);
    mediator.use_image(mapped(&tables()));
    let none = MeterRates {
        slot: NEAR,
        ..MeterRates::default()
    };
    assert_eq!(told::<MeterRates>(&meter), (none, 0));
    mediator.table.carry(1, Carrier::Kernel, 0);

    let (served, asks) = (
        sockets::stream(true).unwrap(),
        sockets::stream(false).unwrap(),
    );
    let name = sockets::name(&served.fd).unwrap();
    sockets::listens(&served.fd, name).unwrap();
    let far = sockets::stream(true).unwrap();
    let body = mediator.described(1, [WEB, NEAR], [NOBODY; 2]);
    let body = (&body, Carrier::Meter);
    let connected = mediator.connect_metered(body, &far, (&asks.fd, name));
    assert_eq!(connected, Ok(()));
    let (told_of, ends) = told::<Metered>(&meter);
    assert_eq!((&told_of, ends), (body.0, 2));
    assert_eq!((told_of.id, told_of.from, told_of.to), (1, WEB, NEAR));
    assert_eq!(mediator.table.socket(1).unwrap().carrier(), Carrier::Meter);
    let accepted = sockets::accepts(&served.fd, true, || {}).unwrap().unwrap();
    assert_eq!(sockets::began(&accepted), Some(far.cookie));
    // One that nobody listens for is not begun.
    let gone = sockets::stream(true).unwrap();
    let (other, name) = (
        sockets::stream(false).unwrap(),
        sockets::name(&gone.fd).unwrap(),
    );
    let far = sockets::stream(true).unwrap();
    let refused = mediator.connect_metered(body, &far, (&other.fd, name));
    assert_eq!(refused, Err(Errno::CONNREFUSED));
    assert!(meter.recv().unwrap().is_none());

    assert_eq!(mediator.cut_one(7), CUT_UNKNOWN);
    assert_eq!(mediator.cut_one(1), CUT_DONE, "whoever has it");
    assert_eq!(told::<EndMetered>(&meter).0.id, 1);
    assert_eq!(mediator.cut_one(1), CUT_UNKNOWN);
    assert_eq!(mediator.cut_one(2), CUT_HIDDEN, "no program has it");
    assert_eq!((begun(&mediator), mediator.hunted()), (vec![2], vec![2]));
    drop(meter);
    assert!(mediator.meter_is_gone());
}

/// Who has no image does not know that there are none.
#[test]
fn rates_of_before_hold_until_an_image_says_which_there_are() {
    let mut mediator = Mediator::default();
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    assert_eq!(told::<MeterPage>(&meter).1, 1);
    assert!(meter.recv().unwrap().is_none());
    mediator.use_image(mapped(&metered(1000)));
    assert_eq!(told::<MeterRates>(&meter).0.to, 1000);
    assert_eq!(told::<MeterRates>(&meter).0.slot, EVERYBODY);
    assert!(meter.recv().unwrap().is_none());
}

#[test]
fn what_was_to_be_cut_before_its_meter_was_linked_is_over_with_that() {
    let mut mediator = with_circuits(&tables());
    mediator.table.carry(1, Carrier::Meter, 0);
    mediator.write();
    assert_eq!([1, 2].map(|id| mediator.cut_one(id)), [CUT_HIDDEN; 2]);
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    assert_eq!(told::<MeterPage>(&meter).1, 1);
    assert_eq!(told::<EndMetered>(&meter).0.id, 1);
    assert_eq!(told::<MeterRates>(&meter).0.slot, EVERYBODY);
    assert_eq!((begun(&mediator), mediator.hunted()), (vec![2], vec![2]));
}

/// More than its link has room for, and nobody reads there meanwhile.
#[test]
fn what_a_meter_is_not_told_to_end_now_it_is_told_later() {
    let mut mediator = with_circuits(&tables());
    mediator.table.carry(1, Carrier::Meter, 0);
    mediator.write();
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    while mediator.meters.end(99) {}
    assert_eq!(mediator.cut_one(1), CUT_HIDDEN);
    assert!(mediator.sleep().is_some_and(|it| it.tv_sec == 0));
    mediator.meter_tick(&|_| None);
    assert_eq!(mediator.hunted(), [1]);
    while meter.recv().unwrap().is_some() {}
    mediator.meter_tick(&|_| None);
    assert_eq!(told::<EndMetered>(&meter).0.id, 1);
    assert!(mediator.hunted().is_empty() && mediator.sleep().is_none());
}

/// A socket of NEAR (30) that listens where 1 leads, at which somebody waits to be accepted (77).
fn waits_at_near(table: &mut Table, client: Endpoint, crossing: u16) {
    let local = table.socket(1).unwrap().remote().unwrap();
    let (bytes, length) = circuit::write(circuit::Family::V4, local);
    table.create(30, NEAR, circuit::Family::V4, 0).unwrap();
    table.bind(30, &bytes[..length], true, 7).unwrap();
    table.listen(30, 9, [7; 16], 7).unwrap();
    let pending = Pending {
        client,
        local,
        token: 77,
        crossing,
        relayed: false,
    };
    table.enqueue(30, pending).unwrap();
}

/// The meter knows it by who began it, and that is not whose endpoint goes.
#[test]
fn what_was_begun_to_an_endpoint_that_goes_is_ended_by_the_meter() {
    for (room, is_gone) in [(true, false), (false, false), (true, true)] {
        let mut mediator = with_circuits(&tables());
        let table = &mut mediator.table;
        table.carry(1, Carrier::Meter, 0);
        table.waits_as(1, 77);
        let began = *table.socket(1).unwrap();
        waits_at_near(table, began.local(), 0);
        table.accepted(30, 31, Some(77)).unwrap();
        mediator.write();
        let (link, meter) = Socket::pair().unwrap();
        mediator.link_meter(link, &|_| None);
        assert_eq!(told_of_all(&meter), []);
        while !room && mediator.meters.end(99) {}
        if is_gone {
            let mut tables = tables();
            let address = tables.addresses.iter_mut().find(|it| it.1 == of(NEAR));
            address.unwrap().1 = of(99);
            mediator.use_image(mapped(&tables));
        } else {
            mediator.closes(NEAR);
        }
        if !room {
            assert!(!mediator.hunted().is_empty());
            while meter.recv().unwrap().is_some() {}
        }
        mediator.meter_tick(&|_| None);
        assert_eq!(told::<EndMetered>(&meter).0.id, 1, "{room} {is_gone}");
        assert!(meter.recv().unwrap().is_none());
        assert!(mediator.hunted().is_empty(), "{room} {is_gone}");
        assert_eq!(begun(&mediator), [2], "{room} {is_gone}");
    }
}

/// What it carries goes on when the program that began it has closed it, or the one that took it in from across an agreement.
#[test]
fn what_a_meter_carries_lives_until_the_meter_has_done_with_it() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(WEB, 9);
    mediator.live = Some(Live::new().unwrap());
    let ends = [0, 1].map(|_| sockets::stream(true).unwrap());
    let table = &mut mediator.table;
    let client = Endpoint {
        ip: of(77),
        port: 7,
    };
    waits_at_near(table, client, 5);
    table.crossed(30, 41, 77, 5).unwrap();
    table.cross(41, 5, Carrier::Meter, 1, 0);
    table.carry(1, Carrier::Meter, 0);
    for (cookie, end) in [1, 41].into_iter().zip(&ends) {
        table.waits_as(cookie, end.cookie);
    }
    mediator.write();
    mediator.sweep();
    let known = |mediator: &Mediator| [1, 2, 41].map(|it| mediator.table.socket(it).is_some());
    assert_eq!(known(&mediator), [true, false, true]);
    assert_eq!(mediator.counts[&WEB], 0, "it is no socket of a program's");
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    assert_eq!(told_of_all(&meter), []);
    assert_eq!([1, 41].map(|it| mediator.cut_one(it)), [CUT_DONE; 2]);
    assert_eq!([0; 2].map(|_| told::<EndMetered>(&meter).0.id), [1, 41]);
    // It is cut, and what has ended by itself is none.
    let table = &mut mediator.table;
    table.carry(1, Carrier::Meter, 0);
    mediator.write();
    drop(ends);
    mediator.sweep();
    assert_eq!(known(&mediator), [false; 3]);
}

/// Else it would go on at once, without a rate.
#[test]
fn what_is_to_end_is_told_before_its_rate_is_over() {
    for full in [false, true] {
        let mut mediator = with_circuits(&metered(1000));
        let end = sockets::stream(true).unwrap();
        mediator.live = Some(Live::new().unwrap());
        mediator.table.carry(1, Carrier::Meter, 0);
        mediator.table.waits_as(1, end.cookie);
        mediator.write();
        let (link, meter) = Socket::pair().unwrap();
        mediator.link_meter(link, &|_| None);
        assert_eq!(told_of_all(&meter).len(), 1);
        while full && mediator.meters.end(99) {}
        let mut none = tables();
        none.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
        none.endpoints[0].egress = 0;
        mediator.use_image(mapped(&none));
        if full {
            // Nobody has it any more but the meter.
            let _ = mediator.seeks();
            while meter.recv().unwrap().is_some() {}
            mediator.meter_tick(&|_| None);
        }
        assert_eq!(told::<EndMetered>(&meter).0.id, 1, "{full}");
        mediator.meter_tick(&|_| None);
        assert_eq!(told::<MeterRates>(&meter).0.to, 0, "{full}");
    }
}

#[test]
fn nobody_takes_all_of_a_meter() {
    let mut mediator = with_circuits(&metered(0));
    mediator.live = None;
    mediator.opens(WEB, 9);
    // Room for eight.
    mediator.has_files(128 + 6 * 8);
    let asks = |mediator: &mut Mediator, by| mediator.room_at_meter(Carrier::Meter, by, of(NEAR));
    let mut cookies = 100..;
    let mut begins = |mediator: &mut Mediator, slot, to| {
        let to = Endpoint {
            ip: of(to),
            port: 80,
        };
        let (bytes, length) = circuit::write(circuit::Family::V4, to);
        let mut begun = 0;
        while begun < 9 && asks(mediator, (slot, 0)).is_ok() {
            let (cookie, table) = (cookies.next().unwrap(), &mut mediator.table);
            table.create(cookie, slot, circuit::Family::V4, 0).unwrap();
            let chance = cookie as u32;
            table
                .connect_begin(cookie, &bytes[..length], chance)
                .unwrap();
            table.connected(cookie).unwrap();
            table.carry(cookie, Carrier::Meter, 0);
            mediator.meters.carries_one((slot, 0));
            begun += 1;
        }
        begun
    };
    assert_eq!(begins(&mut mediator, WEB, NEAR), 4);
    assert_eq!(begins(&mut mediator, NEAR, WEB), 2);
    let by_agreement = (u32::MAX, 7);
    for more in [Ok(()), Err(Errno::NOBUFS)] {
        assert_eq!(asks(&mut mediator, by_agreement), more);
        assert_eq!(begins(&mut mediator, NEAR, WEB), 0);
        assert_eq!(
            mediator.room_at_meter(Carrier::Kernel, (NEAR, 0), of(WEB)),
            Ok(())
        );
        mediator.has_files(128 + 6 * 6);
    }
    // What its programs have closed counts by where to, whatever `sockets` it may have.
    mediator.has_files(128 + 6 * 64);
    let all = mediator.table.all().map(circuit::Socket::cookie);
    mediator.orphans = all.filter(|it| *it >= 100).collect();
    mediator.counts_carried();
    assert_eq!(begins(&mut mediator, WEB, NEAR), 9, "four are left");
    mediator.orphans.extend(106..110);
    mediator.counts_carried();
    let own = |mediator: &mut Mediator, to| mediator.room_at_meter(Carrier::Meter, (WEB, 0), to);
    assert_eq!(own(&mut mediator, of(NEAR)), Err(Errno::NOBUFS));
    assert_eq!(own(&mut mediator, of(WEB)), Ok(()));
    // Where there is much room it is 256, for who may have fewer sockets.
    mediator.has_files(u64::MAX);
    for (left, room) in [(255, Ok(())), (256, Err(Errno::NOBUFS))] {
        let these = (0..1000).map(|n| ((WEB, 0), (n < left).then_some(of(NEAR))));
        mediator.meters.carries_these(these);
        assert_eq!(own(&mut mediator, of(NEAR)), room, "{left}");
    }
}

/// Its token is what the other side's operator says.
#[test]
fn what_came_by_an_agreement_is_of_no_circuit_inside() {
    let mut mediator = with_circuits(&tables());
    let table = &mut mediator.table;
    table.carry(2, Carrier::Meter, 0);
    table.waits_as(2, 77);
    let client = Endpoint {
        ip: of(77),
        port: 7,
    };
    waits_at_near(table, client, 5);
    table.crossed(30, 41, 77, 5).unwrap();
    mediator.write();
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    assert_eq!(told_of_all(&meter), []);
    let mut tables = tables();
    let address = tables.addresses.iter_mut().find(|it| it.1 == of(NEAR));
    address.unwrap().1 = of(99);
    mediator.use_image(mapped(&tables));
    mediator.meter_tick(&|_| None);
    assert!(meter.recv().unwrap().is_none(), "it is another's");
    assert!(begun(&mediator).contains(&2));
    assert!(mediator.hunted().contains(&41));
}

#[test]
fn who_connects_waits_for_a_meter_but_not_for_ever() {
    let mut mediator = with_circuits(&metered(1000));
    assert!(mediator.sleep().is_none());
    let came = mediator.without_meter(1);
    assert!(matches!(
        came,
        Ok(Came::Waits {
            why: Why::Meter,
            ..
        })
    ));
    assert!(mediator.sleep().is_some());
    mediator
        .meters
        .await_since(std::time::Duration::from_secs(6));
    assert!(matches!(mediator.without_meter(1), Err(Errno::NETDOWN)));
    mediator.meter_tick(&|_| None);
    assert!(mediator.sleep().is_none());
    assert!(mediator.without_meter(1).is_ok(), "the next one waits anew");
}

/// Its link is full, for nobody reads there: what it is not told now it is told later.
#[test]
fn a_meter_that_is_slow_misses_no_rate_and_who_connects_waits() {
    let mut mediator = with_circuits(&metered(1000));
    let (link, meter) = Socket::pair().unwrap();
    mediator.link_meter(link, &|_| None);
    assert!(mediator.meters.takes());
    let mut last = 1000;
    while !mediator.meters.is_behind() && last < 5_000 {
        last += 1;
        mediator.use_image(mapped(&metered(last)));
    }
    assert!(mediator.meters.is_behind() && last > 1010, "{last}");
    last += 1;
    mediator.use_image(mapped(&metered(last)));
    // It would not be carried, and nothing is begun for it.
    let ends = [0, 1].map(|_| sockets::stream(true).unwrap().fd);
    let body = mediator.described(1, [WEB, NEAR], [NOBODY; 2]);
    let [one, other] = &ends;
    assert_eq!(
        mediator.meters.carry(&body, [one, other]),
        Err(Errno::NOBUFS)
    );
    assert!(mediator.without_meter(1).is_ok());
    mediator.meter_tick(&|_| None);
    assert!(mediator.meters.is_awaited() && mediator.meters.is_behind());
    let sleep = mediator.sleep().unwrap();
    assert!(sleep.tv_sec == 0 && sleep.tv_nsec < 100_000_000);
    let mut told = 0;
    let mut hear = || {
        while let Some((message, _)) = meter.recv().unwrap() {
            let rates = message.body::<MeterRates>();
            told = rates.map_or(told, |it| it.to);
        }
        told
    };
    assert!(hear() < last);
    mediator.meter_tick(&|_| None);
    assert_eq!(hear(), last);
    assert!(!mediator.meters.is_awaited() && mediator.sleep().is_none());
    // A link that is full of something else is as good as none.
    while mediator.meters.end(1) {}
    assert!(!mediator.meters.takes() && !mediator.meters.is_behind());
    hear();
    assert!(mediator.meters.takes());
}

/// A call that waits for a meter at a socket.
fn waits(mediator: &mut Mediator) {
    waits_at(mediator, 1, Why::Meter);
    mediator.meters.awaits();
}

fn still(mediator: &Mediator) -> usize {
    mediator.waits.sockets(Why::Meter).len()
}

#[test]
fn who_waits_for_a_meter_is_let_go_on_whatever_room_its_link_has() {
    let mut mediator = with_circuits(&metered(1000));
    // None comes: it is told so.
    waits(&mut mediator);
    mediator.meter_tick(&|_| None);
    assert_eq!(still(&mediator), 1);
    let ago = std::time::Duration::from_secs(6);
    mediator.meters.await_since(ago);
    mediator.meter_tick(&|_| None);
    assert_eq!(still(&mediator), 0);
    // One comes, whose link is full.
    waits(&mut mediator);
    let (link, meter) = Socket::pair().unwrap();
    let fills = Socket::from_fd(rustix::io::dup(&link).unwrap());
    let fills = || {
        while fills
            .send(&command::Message::new(0, &EndMetered { id: 9 }), &[])
            .is_ok()
        {}
    };
    let empties = || while meter.recv().unwrap().is_some() {};
    fills();
    mediator.link_meter(link, &|_| None);
    mediator.meter_tick(&|_| None);
    assert_eq!(still(&mediator), 1);
    assert!(mediator.sleep().is_some_and(|it| it.tv_sec == 0));
    empties();
    // Who goes on takes all the room: the next one waits for more.
    waits(&mut mediator);
    mediator.meter_tick(&|_| {
        fills();
        None
    });
    assert_eq!(still(&mediator), 1);
    assert!(mediator.sleep().is_some_and(|it| it.tv_sec == 0));
    empties();
    mediator.meter_tick(&|_| None);
    assert_eq!(still(&mediator), 0);
    assert!(mediator.sleep().is_none());
}

fn asked(of: u32, on: u32, slot: u32) -> Capture {
    Capture {
        of,
        on,
        slot,
        ..Capture::default()
    }
}

#[test]
fn what_begins_while_somebody_captures_goes_by_the_meter_and_nothing_else_changes() {
    let mut mediator = with_circuits(&tables());
    let slots = [WEB, NEAR];
    assert_eq!(mediator.carrier(slots), Carrier::Kernel);
    // Of another slot; of this one, by two; of all.
    mediator.capture(&asked(0, 1, 77));
    assert_eq!(mediator.carrier(slots), Carrier::Kernel);
    mediator.capture(&asked(3, 1, NEAR));
    assert_eq!(mediator.carrier(slots), Carrier::Captured);
    assert_eq!(mediator.carrier([NEAR, WEB]), Carrier::Captured);
    assert_eq!(mediator.carrier([WEB, WEB]), Carrier::Kernel, "its own");
    mediator.capture(&asked(0, 1, u32::MAX));
    mediator.capture(&asked(3, 0, NEAR));
    assert_eq!(mediator.carrier(slots), Carrier::Captured);
    // No ring, also of one that began before.
    assert_eq!(mediator.connection(1), Err(Errno::OPNOTSUPP));
    // Where no meter comes it is as if nobody captured.
    mediator.meters.await_since(Duration::from_secs(60));
    assert_eq!(mediator.carrier(slots), Carrier::Kernel);
    mediator.meters.forget_awaited();
    assert_eq!(mediator.carrier(slots), Carrier::Captured);
    // One that is metered anyhow is that.
    mediator.use_image(mapped(&metered(0)));
    assert_eq!(mediator.carrier(slots), Carrier::Meter);
    mediator.use_image(mapped(&tables()));
    mediator.capture(&asked(EVERYBODY, 0, 0));
    assert_eq!(mediator.carrier(slots), Carrier::Kernel);
    assert_eq!(mediator.connection(1), Ok((1, Side::Began, slots)));
    // One that was captured stays so, for who comes after this operator too.
    mediator.table.carry(1, Carrier::Captured, 0);
    assert_eq!(mediator.connection(1), Err(Errno::OPNOTSUPP));
}

#[test]
fn datagrams_of_who_is_captured_go_as_ever() {
    let mut mediator = with_datagrams(&tables());
    mediator.capture(&asked(0, 1, u32::MAX));
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(Some(NEAR)));
}

#[test]
fn a_meter_is_told_who_a_circuit_is_between() {
    let mediator = with_circuits(&tables());
    let ends = [WEB, NEAR].map(|slot| Endpoint {
        ip: of(slot),
        port: 80 + slot as u16,
    });
    let body = mediator.described(9, [WEB, NEAR], ends);
    let image = mapped(&tables());
    for (at, slot) in [WEB, NEAR].into_iter().enumerate() {
        let known = decide::endpoint(&image.image(), slot).unwrap();
        assert_eq!((body.endpoints[at], body.macs[at]), (known.id, known.mac));
        let end = (of(slot), 80 + slot);
        assert_eq!((body.addresses[at], body.ports[at]), end);
    }
    assert_eq!((body.id, body.from, body.to), (9, WEB, NEAR));
}
