//! A port whose sockets were accepted from across an agreement, where who wants it calls.

use super::*;
use crate::mediate::holders::Holders;
use circuit::Family;

/// Of NEAR, with an agreement by whose witness it is told what lives.
fn with_agreement() -> Mediator {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 900);
    let link = seqpacket::Socket::pair().unwrap().0;
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let fds = [file, ::netlink::witness().unwrap()];
    mediator.crossings.link(9, link, [7; 16], fds);
    mediator
}

fn made(mediator: &mut Mediator, slot: u32) -> Made {
    let made = sockets::stream(true).unwrap();
    let created = mediator.table.create(made.cookie, slot, Family::V4, 0);
    created.unwrap();
    made
}

fn port_of_near() -> Vec<u8> {
    let end = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(Family::V4, end);
    bytes[..length].to_vec()
}

/// So many connections that were accepted at NEAR's port, whose listening socket is closed.
fn accepted(mediator: &mut Mediator, many: u16) -> Vec<Made> {
    let listener = made(mediator, NEAR);
    let table = &mut mediator.table;
    let bound = table.bind(listener.cookie, &port_of_near(), true, 7);
    bound.unwrap();
    table.listen(listener.cookie, 900, [3; 16], 0).unwrap();
    let mut all = Vec::new();
    for port in 1..=many {
        let made = sockets::stream(true).unwrap();
        let inode = rustix::fs::fstat(&made.fd).unwrap().st_ino as u32;
        let pending = Pending {
            client: Endpoint { ip: of(WEB), port },
            local: Endpoint {
                ip: of(NEAR),
                port: 80,
            },
            token: port.into(),
            crossing: 9,
            relayed: false,
        };
        let table = &mut mediator.table;
        table.enqueue(listener.cookie, pending).unwrap();
        let taken = table.crossed(listener.cookie, made.cookie, port.into(), 9);
        taken.unwrap();
        table.cross(made.cookie, 9, Carrier::Kernel, 1, inode);
        all.push(made);
    }
    table_closes(mediator, listener);
    all
}

fn table_closes(mediator: &mut Mediator, made: Made) {
    mediator.table.closed(made.cookie).unwrap();
    mediator.write();
    drop(made);
}

/// What its call comes to in as many turns as there are.
fn in_turns(mediator: &mut Mediator, made: &Made) -> Holders {
    loop {
        mediator.asking.turn = Some((made.cookie, 0));
        match mediator.who_holds(made.cookie, &port_of_near()) {
            Holders::Unknown => std::thread::yield_now(),
            known => return known,
        }
    }
}

fn is_bound(mediator: &mut Mediator, made: &Made) -> Option<Result<(), Errno>> {
    match mediator.bind(made.cookie, &port_of_near()) {
        Ok(Came::To(Ok(_))) => Some(Ok(())),
        Ok(Came::Waits { why: Why::Port, .. }) => None,
        Err(errno) => Some(Err(errno)),
        Ok(_) => panic!("it is something else"),
    }
}

/// When the others are asked of, and how many there are, is no matter.
#[test]
fn a_port_is_free_when_what_came_to_it_by_an_agreement_is_closed() {
    let mut mediator = with_agreement();
    let later = Some(Instant::now() + Duration::from_secs(3600));
    mediator.sweeps_after = later;
    let mut all = accepted(&mut mediator, 300);
    let wants = made(&mut mediator, NEAR);
    let last = all.pop();
    drop(all);
    assert_eq!(in_turns(&mut mediator, &wants), Holders::Live);
    drop(last);
    // A process that another test is starting may have it for a moment.
    let until = Instant::now() + Duration::from_secs(20);
    while in_turns(&mut mediator, &wants) != Holders::None {
        assert!(Instant::now() < until, "what is closed is in the way");
    }
    assert_eq!(is_bound(&mut mediator, &wants), Some(Ok(())));
    assert_eq!(mediator.sweeps_after, later, "all was asked for");
}

/// What it takes to look for those of here is its endpoint's, whose next calls wait for that.
#[test]
fn who_fails_for_what_lives_here_is_charged_for_the_look() {
    let mut mediator = with_agreement();
    let has = made(&mut mediator, NEAR);
    assert_eq!(is_bound(&mut mediator, &has), Some(Ok(())));
    assert_eq!(mediator.swept(), Duration::ZERO);
    let wants = made(&mut mediator, NEAR);
    let failed = Some(Err(Errno::ADDRINUSE));
    let begun = mediator.starts();
    assert_eq!(is_bound(&mut mediator, &wants), failed);
    // Another's goes on by it, which had nobody look.
    let other = mediator.starts();
    mediator.done_for(NEAR + 1, other);
    mediator.done_for(NEAR, begun);
    let spent = mediator.spent();
    let charged = |slot| {
        spent
            .iter()
            .any(|it| it.slot == slot && !it.sweeping.is_zero())
    };
    assert!(charged(NEAR) && !charged(NEAR + 1));
    assert_eq!(mediator.swept(), Duration::ZERO, "once");
}

/// There may be thousands, who all fail as one of them goes on.
#[test]
fn who_fails_in_one_turn_with_others_has_no_look_of_its_own() {
    let mut mediator = with_agreement();
    let all: Vec<_> = (0..3).map(|_| made(&mut mediator, NEAR)).collect();
    assert_eq!(is_bound(&mut mediator, &all[0]), Some(Ok(())));
    let failed = Some(Err(Errno::ADDRINUSE));
    for turn in 0..2 {
        assert_eq!(is_bound(&mut mediator, &all[1]), failed);
        let once = mediator.sweeping.get();
        assert!(!once.is_zero(), "{turn}: nobody looked");
        assert_eq!(is_bound(&mut mediator, &all[2]), failed);
        assert_eq!(mediator.swept(), once, "{turn}");
    }
}

/// One that lives is in the way; and whoever asks for that all the time waits in between.
#[test]
fn who_fails_for_what_lives_elsewhere_has_it_asked_for_at_times() {
    let mut mediator = with_agreement();
    let _all = accepted(&mut mediator, 2);
    let wants = made(&mut mediator, NEAR);
    let failed = Some(Err(Errno::ADDRINUSE));
    assert_eq!(is_bound(&mut mediator, &wants), failed);
    mediator.asking.after = Some(Instant::now() + Duration::from_secs(3600));
    assert_eq!(is_bound(&mut mediator, &wants), None);
    assert!(mediator.holders_sleep().is_none(), "nobody waits");
    waits_at(&mut mediator, wants.cookie, Why::Port);
    assert!(mediator.holders_sleep().is_some());
    assert!(mediator.sleep().is_some());
    mediator.asking.after = None;
    mediator.asking.in_vain.clear();
    // It comes first.
    let other = made(&mut mediator, NEAR);
    assert_eq!(is_bound(&mut mediator, &other), None);
    assert_eq!(mediator.holders_sleep(), Some(Duration::ZERO));
    mediator.holders_tick(&|_| None);
    assert!(!mediator.waits.any(Why::Port), "its program is gone");
    assert_eq!(is_bound(&mut mediator, &other), failed);
}

/// A thousand threads may call at one socket, and each that goes on is looked at the holders for.
#[test]
fn of_those_that_wait_at_one_socket_one_goes_on_at_a_time() {
    let mut mediator = with_agreement();
    let _all = accepted(&mut mediator, 2);
    let wants = made(&mut mediator, NEAR);
    for _ in 0..3 {
        waits_at(&mut mediator, wants.cookie, Why::Port);
    }
    let waiting = |it: &Mediator| it.waits.first(wants.cookie, Why::Port);
    for _ in 0..3 {
        let first = waiting(&mediator);
        assert!(first.is_some());
        mediator.holders_tick(&|_| None);
        assert_ne!(waiting(&mediator), first);
    }
    assert_eq!(waiting(&mediator), None);
}

#[test]
fn of_those_that_wait_for_a_port_each_endpoint_has_its_turn() {
    let mut mediator = with_agreement();
    let web = [(); 2].map(|()| made(&mut mediator, WEB));
    let near = made(&mut mediator, NEAR);
    for one in web.iter().rev().chain([&near]) {
        waits_at(&mut mediator, one.cookie, Why::Port);
    }
    let next = |it: &mut Mediator, last| {
        it.asking.last = last;
        it.next_holders().map(|(.., at)| at)
    };
    let [first, other] = [WEB.min(NEAR), WEB.max(NEAR)];
    let of = |slot| Some(if slot == WEB { &web[1] } else { &near }.cookie);
    assert_eq!(next(&mut mediator, first), of(other));
    assert_eq!(next(&mut mediator, other), of(first));
    // Who fails has its own wait.
    mediator.asking.took(Duration::from_secs(9), Some(WEB));
    assert_eq!(next(&mut mediator, first), None);
    mediator.asking.after = None;
    for last in [first, other] {
        assert_eq!(next(&mut mediator, last), Some(near.cookie));
    }
}
