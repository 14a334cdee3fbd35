//! UDP, echo, other protocols, translation, zones.

use flow::state::{self, SECOND};
use flow::{Connections, Direction, Invalid, Judgement, Refused, Rejudged, Side, State, Verdict};

use crate::{SEED, Switch, VERDICT, echo, plain, segment, sides, tuple};

const PASS: Result<Judgement, Refused> = Ok(Judgement::Pass);

fn switch(protocol: u8) -> Switch {
    Switch::of(Connections::new(SEED, &[64, 64]).unwrap(), protocol)
}

#[test]
fn udp_is_unreplied_then_replied_then_a_stream() {
    let mut s = switch(17);
    assert_eq!(s.send(0, plain(100)), PASS);
    assert_eq!(s.send(0, plain(100)), PASS);
    assert_eq!(s.state(), Some(State::Unreplied));
    assert_eq!(s.connections.live(0), (1, 1));
    assert_eq!(s.send(1, plain(300)), PASS);
    assert_eq!(s.state(), Some(State::Replied));
    assert_eq!(s.connections.live(0), (1, 0));
    assert_eq!(s.send(0, plain(100)), PASS);
    assert_eq!(s.state(), Some(State::Stream));
    s.now += state::UDP_REPLIED - SECOND;
    assert_eq!(s.state(), Some(State::Stream));
    s.now += 2 * SECOND;
    assert_eq!(s.state(), None);
    // What the responder sends now begins a connection of its own.
    let [a, b] = s.sides;
    s.sides = [b, a];
    assert_eq!(s.send(0, plain(300)), PASS);
    assert_eq!(s.connections.live(1), (1, 1));
}

#[test]
fn an_echo_is_answered_by_its_reply_alone() {
    let mut s = switch(1);
    assert_eq!(
        s.send(1, echo(false)),
        Err(Refused::Invalid(Invalid::Unsolicited))
    );
    assert_eq!(s.send(0, echo(true)), PASS);
    assert_eq!(s.send(1, echo(false)), PASS);
    assert_eq!(s.state(), Some(State::Replied));
    assert_eq!(
        s.send(0, echo(false)),
        Ok(Judgement::Invalid(Invalid::Unsolicited))
    );
    assert_eq!(
        s.send(1, echo(true)),
        Ok(Judgement::Invalid(Invalid::Unsolicited))
    );
    s.now += state::ECHO + SECOND;
    assert_eq!(s.state(), None);
}

#[test]
fn a_packet_of_another_kind_is_invalid() {
    let mut s = switch(17);
    let tcp = segment(wire::tcp::SYN, 1, 0, 0, 100);
    assert_eq!(s.send(0, tcp), Err(Refused::Invalid(Invalid::Kind)));
    assert_eq!(s.send(0, plain(9)), PASS);
    assert_eq!(s.send(0, tcp), Ok(Judgement::Invalid(Invalid::Kind)));
}

#[test]
fn a_translated_connection_is_found_on_both_sides() {
    let mut connections = Connections::new(SEED, &[8, 8]).unwrap();
    let a = Side {
        owner: 0,
        zone: 0,
        tuple: tuple(17, (1, 5000), (9, 53)),
    };
    let b = Side {
        owner: 1,
        zone: 33,
        tuple: tuple(17, (2, 53), (200, 1024)),
    };
    let forth = connections.open(0, &a, &b, &VERDICT, &plain(60)).unwrap();
    assert!(connections.is_translated(forth));
    assert_eq!(connections.leaves_as(forth), Some(b.tuple.reversed()));
    let back = connections.find(0, 1, 33, &b.tuple).unwrap();
    assert_eq!((back.id, back.direction), (forth.id, Direction::Back));
    assert_eq!(connections.leaves_as(back), Some(a.tuple.reversed()));
    // Neither in another zone, nor of another owner, nor by the untranslated tuple.
    assert_eq!(connections.find(0, 1, 0, &b.tuple), None);
    assert_eq!(connections.find(0, 1, 34, &b.tuple), None);
    assert_eq!(connections.find(0, 0, 33, &b.tuple), None);
    assert_eq!(connections.find(0, 1, 33, &a.tuple.reversed()), None);
    assert_eq!(connections.find(0, 0, 33, &a.tuple), None);
    // An error about it, from the responder's side, quotes what left there.
    let quoted = connections.leaves_as(forth).unwrap();
    assert_eq!(connections.find(0, 1, 33, &quoted.reversed()), Some(back));
    assert_eq!(connections.related(back, None, &plain(70)), Judgement::Pass);
}

#[test]
fn a_side_belongs_to_one_connection() {
    let mut connections = Connections::new(SEED, &[8, 8]).unwrap();
    let pool = |port| Side {
        owner: 1,
        zone: 3,
        tuple: tuple(17, (2, 53), (200, port)),
    };
    let from = |port| Side {
        owner: 0,
        zone: 0,
        tuple: tuple(17, (1, port), (9, 53)),
    };
    let mut open = |a, b, now| connections.open(now, &a, &b, &VERDICT, &plain(60));
    assert!(open(from(1), pool(7), 0).is_ok());
    assert_eq!(open(from(2), pool(7), 0), Err(Refused::Taken));
    assert_eq!(open(from(1), pool(8), 0), Err(Refused::Taken));
    assert!(open(from(2), pool(8), 0).is_ok());
    // One that expired has it no longer.
    assert!(open(from(3), pool(7), 1000 * SECOND).is_ok());
}

#[test]
fn sides_must_be_of_owners_and_of_one_protocol() {
    let mut connections = Connections::new(SEED, &[8, 8]).unwrap();
    let [a, b] = sides(tuple(17, (1, 1), (2, 2)), 0, 1);
    let stranger = Side { owner: 2, ..a };
    let other = Side {
        tuple: wire::Tuple {
            protocol: 132,
            ..b.tuple
        },
        ..b
    };
    for (a, b) in [
        (stranger, b),
        (b, stranger),
        (a, other),
        (
            a,
            Side {
                owner: 1 << 16,
                ..b
            },
        ),
    ] {
        let refused = connections.open(0, &a, &b, &VERDICT, &plain(60));
        assert_eq!(refused, Err(Refused::Sides));
    }
}

#[test]
fn an_older_verdict_is_stale_until_judged_again() {
    let mut s = switch(17);
    assert_eq!(s.send(0, plain(100)), PASS);
    let found = s.find(0).unwrap();
    assert_eq!(s.connections.verdict(found), Some(VERDICT));
    assert!(!s.connections.stale(found, 1));
    assert!(s.connections.stale(found, 2));
    let next = Verdict {
        epoch: 2,
        rules: [1, 2],
    };
    s.connections.rejudged(found, Rejudged::Keep(next));
    assert!(!s.connections.stale(found, 2));
    assert_eq!(s.connections.verdict(found), Some(next));
    s.connections.rejudged(found, Rejudged::Cut);
    assert_eq!((s.find(0), s.find(1)), (None, None));
}
