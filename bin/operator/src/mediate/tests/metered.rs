//! Circuits that are metered, and cut.

use super::*;
use command::verbs::{EndMetered, METER_COUNTS, MeterPage, MeterRates, Metered};
use image::compartment::{ENDPOINT_METERED, Rate};
use seqpacket::Socket;
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
    assert_eq!(begun(&mediator), [2], "inside an endpoint there is none");
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
    assert_eq!(mediator.may_send(WEB, 1, way(WEB, NEAR)), Ok(NEAR));
    mediator.use_image(mapped(&metered(0)));
    for (from, to, cookie) in [(WEB, NEAR, 1), (NEAR, WEB, 2)] {
        let outcome = mediator.may_send(from, cookie, way(from, to));
        assert_eq!(outcome, Err(Errno::ACCESS), "{from}");
    }
    assert_eq!(mediator.may_send(NEAR, 2, way(NEAR, NEAR)), Ok(NEAR));
}

fn told<B: command::Body>(meter: &Socket) -> (B, usize) {
    let (message, fds) = meter.recv().unwrap().expect("nothing is said");
    (message.body::<B>().expect("something else"), fds.len())
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
    assert_eq!(told::<MeterRates>(&meter), (rates, 0));
    assert_eq!(told::<MeterPage>(&meter).1, 1);
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
    let far = mediator.connect_far(1, name).unwrap();
    let connected = mediator.connect_near(1, [WEB, NEAR], &asks.fd, &far);
    assert_eq!(connected, Ok(()));
    drop(far);
    let (body, ends) = told::<Metered>(&meter);
    assert_eq!((body.id, body.from, body.to, ends), (1, WEB, NEAR, 2));
    assert_eq!(mediator.table.socket(1).unwrap().carrier(), Carrier::Meter);
    assert!(sockets::accepts(&served.fd, true).unwrap().is_some());
    // One that nobody listens for is not begun.
    let gone = sockets::stream(true).unwrap();
    let name = sockets::name(&gone.fd).unwrap();
    let refused = mediator.connect_far(1, name);
    assert_eq!(refused.map(drop), Err(Errno::CONNREFUSED));
    assert!(meter.recv().unwrap().is_none());

    assert_eq!(mediator.cut(7), CUT_UNKNOWN);
    assert_eq!(mediator.cut(1), CUT_DONE, "whoever has it");
    assert_eq!(told::<EndMetered>(&meter).0.id, 1);
    assert_eq!(mediator.cut(1), CUT_UNKNOWN);
    assert_eq!(mediator.cut(2), CUT_HIDDEN, "no program has it");
    assert_eq!(begun(&mediator), [0; 0]);
    drop(meter);
    assert!(mediator.meter_is_gone());
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

#[test]
fn who_waits_at_a_listener_keeps_its_place_whatever_becomes_of_the_rest() {
    let mut mediator = with_circuits(&metered(0));
    let served = sockets::stream(true).unwrap();
    let name = sockets::name(&served.fd).unwrap();
    sockets::listens(&served.fd, name).unwrap();
    let table = &mut mediator.table;
    let own = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, own);
    table.create(20, NEAR, circuit::Family::V4, 0).unwrap();
    table.bind(20, &bytes[..length], true, 7).unwrap();
    table.listen(20, 5, name, 7).unwrap();
    for (cookie, connects) in [(30, false), (31, true)] {
        let table = &mut mediator.table;
        table.create(cookie, WEB, circuit::Family::V4, 0).unwrap();
        table.connect_begin(cookie, &bytes[..length], 9).unwrap();
        let pending = Pending {
            client: table.socket(cookie).unwrap().local(),
            local: own,
            token: cookie,
        };
        table.enqueue(20, pending).unwrap();
        if connects {
            drop(mediator.connect_far(cookie, name).unwrap());
        }
        // The operator dies; its successor begins again.
        mediator.withdraw_unconnected(cookie);
    }
    let waiting: Vec<u64> = mediator.table.waiting(20).map(|it| it.token).collect();
    assert_eq!(waiting, [31], "as many as wait in the kernel");
    assert!(sockets::accepts(&served.fd, true).unwrap().is_some());
    assert!(sockets::accepts(&served.fd, true).unwrap().is_none());
}
