//! TCP, as packet traces.

use flow::state::{self, SECOND};
use flow::{Connections, Direction, Found, Invalid, Judgement, Refused, State};
use wire::tcp::{ACK, FIN, PSH, RST, SYN};

use proptest::prelude::*;

use crate::{SEED, Switch, scaled, segment};

const PASS: Result<Judgement, Refused> = Ok(Judgement::Pass);

const fn invalid(reason: Invalid) -> Result<Judgement, Refused> {
    Ok(Judgement::Invalid(reason))
}

fn switch() -> Switch {
    Switch::of(Connections::new(SEED, &[64, 64]).unwrap(), 6)
}

/// A handshake with these scales, initial numbers 1000 and 5000, windows 60000.
fn open(scales: [Option<u8>; 2]) -> Switch {
    let mut s = switch();
    let with = |segment, scale: Option<u8>| scale.map_or(segment, |n| scaled(segment, n));
    assert_eq!(
        s.send(0, with(segment(SYN, 1000, 0, 0, 60_000), scales[0])),
        PASS
    );
    assert_eq!(s.state(), Some(State::SynSent));
    assert_eq!(
        s.send(
            1,
            with(segment(SYN | ACK, 5000, 1001, 0, 60_000), scales[1])
        ),
        PASS
    );
    assert_eq!(s.state(), Some(State::SynReceived));
    assert_eq!(
        s.send(
            0,
            segment(ACK, 1001, 5001, 0, 60_000 >> scales[0].unwrap_or(0))
        ),
        PASS
    );
    assert_eq!(s.state(), Some(State::Established));
    s
}

#[test]
fn handshake_data_and_fin_both_ways() {
    let mut s = open([None, None]);
    assert_eq!(s.send(0, segment(ACK | PSH, 1001, 5001, 500, 60_000)), PASS);
    assert_eq!(s.send(1, segment(ACK, 5001, 1501, 1400, 60_000)), PASS);
    assert_eq!(s.send(1, segment(ACK, 6401, 1501, 1400, 60_000)), PASS);
    // A retransmission, and an old acknowledgement.
    assert_eq!(s.send(1, segment(ACK, 5001, 1501, 1400, 60_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, 1501, 5001, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, 1501, 7801, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(FIN | ACK, 1501, 7801, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::HalfClosed));
    // The other half goes on.
    assert_eq!(s.send(1, segment(ACK, 7801, 1502, 1400, 60_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, 1502, 9201, 0, 60_000)), PASS);
    assert_eq!(s.send(1, segment(FIN | ACK, 9201, 1502, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::TimeWait));
    assert_eq!(s.send(0, segment(ACK, 1502, 9202, 0, 60_000)), PASS);
    s.now += state::TCP_TIME_WAIT + SECOND;
    assert_eq!(s.state(), None);
    assert_eq!(s.connections.live(0), (0, 0));
}

#[test]
fn what_is_counted_is_what_passed() {
    let mut s = open([None, None]);
    let mut burst = segment(ACK, 1001, 5001, 30_000, 60_000);
    (burst.packets, burst.bytes) = (21, 31_134);
    assert_eq!(s.send(0, burst), PASS);
    assert!(matches!(
        s.send(0, segment(ACK, 500_000, 5001, 9, 60_000)),
        Ok(Judgement::Invalid(_))
    ));
    let found = s.find(0).unwrap();
    let told = s.connections.connection(s.now, found.id).unwrap();
    assert_eq!(told.packets, [23, 1]);
    assert_eq!(told.bytes, [54 + 54 + 31_134, 54]);
    assert_eq!(s.connections.counters(0).invalid, 1);
}

#[test]
fn only_a_syn_begins() {
    for flags in [ACK, SYN | ACK, FIN | ACK, RST, RST | ACK] {
        let refused = switch().send(0, segment(flags, 1, 2, 0, 100));
        assert_eq!(
            refused,
            Err(Refused::Invalid(Invalid::NotSyn)),
            "{flags:#x}"
        );
    }
    for flags in [SYN | FIN, SYN | RST] {
        let refused = switch().send(0, segment(flags, 1, 0, 0, 100));
        assert_eq!(refused, Err(Refused::Invalid(Invalid::Flags)), "{flags:#x}");
    }
    let mut s = open([None, None]);
    for flags in [0, FIN, PSH, SYN | FIN | ACK, RST | FIN] {
        assert_eq!(
            s.send(0, segment(flags, 1001, 5001, 0, 100)),
            invalid(Invalid::Flags)
        );
    }
}

#[test]
fn the_initiator_does_not_go_on_before_the_answer() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(
        s.send(0, segment(ACK, 1001, 5001, 10, 60_000)),
        invalid(Invalid::NotSyn)
    );
    assert_eq!(s.state(), Some(State::SynSent));
}

#[test]
fn sequence_outside_the_window_is_invalid() {
    let mut s = open([None, None]);
    // The responder allowed 60000 after 1001.
    assert_eq!(
        s.send(0, segment(ACK, 61_002, 5001, 1, 60_000)),
        invalid(Invalid::Sequence)
    );
    assert_eq!(s.send(0, segment(ACK, 61_001, 5001, 1, 60_000)), PASS);
    // And the initiator, before what the responder sent.
    assert_eq!(
        s.send(
            1,
            segment(ACK, 5001u32.wrapping_sub(62_000), 1001, 10, 60_000)
        ),
        invalid(Invalid::Sequence)
    );
}

#[test]
fn acknowledgement_of_the_unsent_is_invalid() {
    let mut s = open([None, None]);
    let reason = invalid(Invalid::Acknowledgement);
    assert_eq!(s.send(0, segment(ACK, 1001, 5002, 0, 60_000)), reason);
    assert_eq!(
        s.send(
            0,
            segment(ACK, 1001, 5001u32.wrapping_sub(70_000), 0, 60_000)
        ),
        reason
    );
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 0, 60_000)), PASS);
}

#[test]
fn a_handshake_is_completed_by_who_saw_the_answer() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    for wrong in [1000, 1002, 900] {
        let answer = segment(SYN | ACK, 5000, wrong, 0, 60_000);
        assert_eq!(
            s.send(1, answer),
            invalid(Invalid::Acknowledgement),
            "{wrong}"
        );
    }
    assert_eq!(s.send(1, segment(SYN | ACK, 5000, 1001, 0, 60_000)), PASS);
    for wrong in [5000, 5002, 4900] {
        let last = segment(ACK, 1001, wrong, 0, 60_000);
        assert_eq!(
            s.send(0, last),
            invalid(Invalid::Acknowledgement),
            "{wrong}"
        );
    }
    assert_eq!(s.connections.live(0), (1, 1));
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 0, 60_000)), PASS);
    assert_eq!(s.connections.live(0), (1, 0));
}

#[test]
fn scale_counts_if_both_offer_it() {
    // Scaled by 128, the responder's 60000 allow 7.6 MB once it said so after the SYN.
    for (scales, far) in [
        ([Some(7), Some(7)], true),
        ([Some(7), None], false),
        ([None, Some(7)], false),
    ] {
        let mut s = open(scales);
        assert_eq!(s.send(1, segment(ACK, 5001, 1001, 0, 60_000)), PASS);
        let probe = s.send(0, segment(ACK, 1001 + 7_000_000, 5001, 100, 400));
        let expected = if far {
            PASS
        } else {
            invalid(Invalid::Sequence)
        };
        assert_eq!(probe, expected, "{scales:?}");
    }
}

#[test]
fn super_frames_fill_the_window() {
    let mut s = open([Some(9), Some(9)]);
    assert_eq!(s.send(1, segment(ACK, 5001, 1001, 0, 2_000)), PASS);
    let mut sequence = 1001u32;
    // A megabyte in GSO frames, none acknowledged; over the edge one more begins.
    for _ in 0..15 {
        assert_eq!(s.send(0, segment(ACK, sequence, 5001, 65_160, 400)), PASS);
        sequence += 65_160;
    }
    assert_eq!(s.send(1, segment(ACK, 5001, sequence, 0, 2_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, sequence, 5001, 65_160, 400)), PASS);
}

#[test]
fn numbers_go_round() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, u32::MAX - 100, 0, 0, 60_000)), PASS);
    assert_eq!(
        s.send(1, segment(SYN | ACK, u32::MAX, u32::MAX - 99, 0, 60_000)),
        PASS
    );
    assert_eq!(
        s.send(0, segment(ACK, u32::MAX - 99, 0, 1400, 60_000)),
        PASS
    );
    assert_eq!(s.send(1, segment(ACK, 0, 1300, 1400, 60_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, 1300, 1400, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Established));
}

#[test]
fn reset_in_the_window_ends_and_outside_does_not() {
    let mut s = open([None, None]);
    for wrong in [5001 + 70_000, 5001 - 100, 5001u32.wrapping_add(1 << 31)] {
        assert_eq!(
            s.send(1, segment(RST, wrong, 0, 0, 0)),
            invalid(Invalid::Reset),
            "{wrong}"
        );
    }
    assert_eq!(s.state(), Some(State::Established));
    assert_eq!(s.send(1, segment(RST, 5001, 0, 0, 0)), PASS);
    assert_eq!(s.state(), Some(State::Reset));
    s.now += state::TCP_RESET + SECOND;
    assert_eq!(s.state(), None);
}

#[test]
fn who_goes_on_after_a_reset_did_not_send_it() {
    let mut s = open([None, None]);
    assert_eq!(s.send(1, segment(RST, 5001, 0, 0, 0)), PASS);
    // What was on its way to it changes nothing; data of its own does.
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 100, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Reset));
    assert_eq!(s.send(1, segment(ACK, 5001, 1101, 100, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Established));
}

#[test]
fn a_refused_syn_is_over() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(
        s.send(1, segment(RST | ACK, 0, 999, 0, 0)),
        invalid(Invalid::Acknowledgement)
    );
    assert_eq!(s.send(1, segment(RST, 0, 0, 0, 0)), invalid(Invalid::Reset));
    assert_eq!(s.state(), Some(State::SynSent));
    assert_eq!(s.send(1, segment(RST | ACK, 0, 1001, 0, 0)), PASS);
    assert_eq!(s.state(), Some(State::Reset));
    assert_eq!(s.connections.live(0), (1, 0));
    // And may be tried again at once.
    assert_eq!(s.send(0, segment(SYN, 9000, 0, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::SynSent));
}

#[test]
fn an_initiator_may_give_up() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(s.send(1, segment(SYN | ACK, 5000, 1001, 0, 60_000)), PASS);
    assert_eq!(
        s.send(0, segment(RST, 77, 0, 0, 0)),
        invalid(Invalid::Reset)
    );
    assert_eq!(s.send(0, segment(RST, 1001, 0, 0, 0)), PASS);
    assert_eq!(s.state(), Some(State::Reset));
}

#[test]
fn a_syn_again_is_the_same_or_begins_anew() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(SYN, 2000, 0, 0, 60_000)), PASS);
    assert_eq!(
        s.send(1, segment(SYN | ACK, 5000, 1001, 0, 60_000)),
        invalid(Invalid::Acknowledgement)
    );
    assert_eq!(s.send(1, segment(SYN | ACK, 5000, 2001, 0, 60_000)), PASS);
    // A responder with SYN cookies answers the same SYN by another number.
    assert_eq!(s.send(1, segment(SYN | ACK, 7000, 2001, 0, 60_000)), PASS);
    assert_eq!(
        s.send(0, segment(ACK, 2001, 5001, 0, 60_000)),
        invalid(Invalid::Acknowledgement)
    );
    assert_eq!(s.send(0, segment(ACK, 2001, 7001, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Established));
}

#[test]
fn simultaneous_open() {
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    assert_eq!(s.send(1, segment(SYN, 5000, 0, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::SynReceived));
    assert_eq!(s.send(0, segment(SYN | ACK, 1000, 5001, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::SynReceived));
    assert_eq!(s.send(1, segment(SYN | ACK, 5000, 1001, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Established));
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 1400, 60_000)), PASS);
    assert_eq!(s.send(1, segment(ACK, 5001, 2401, 1400, 60_000)), PASS);
}

#[test]
fn time_wait_is_reused_by_either_side_as_a_new_connection() {
    for side in [0, 1] {
        let mut s = open([None, None]);
        assert_eq!(s.send(0, segment(FIN | ACK, 1001, 5001, 0, 60_000)), PASS);
        assert_eq!(s.send(1, segment(FIN | ACK, 5001, 1002, 0, 60_000)), PASS);
        assert_eq!(s.send(0, segment(ACK, 1002, 5002, 0, 60_000)), PASS);
        let found = s.find(side).unwrap();
        let syn = segment(SYN, 90_000, 0, 0, 60_000);
        assert_eq!(s.connections.packet(s.now, found, &syn), Judgement::Anew);
        assert_eq!(s.find(side), None);
        // Judged and opened by who begins now.
        let (this, other) = (s.sides[side], s.sides[1 - side]);
        let opened = s
            .connections
            .open(s.now, &this, &other, &crate::VERDICT, &syn);
        assert_eq!(opened.unwrap().direction, Direction::Forth);
        assert_eq!(s.find(1 - side).unwrap().direction, Direction::Back);
    }
}

#[test]
fn a_host_that_forgot_finds_out() {
    // The initiator crashed and tries the same ports: the other answers as RFC 5961 says.
    let mut s = open([None, None]);
    assert_eq!(s.send(0, segment(SYN, 777, 0, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::Established));
    assert_eq!(s.send(1, segment(ACK, 5001, 1001, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(RST, 1001, 0, 0, 0)), PASS);
    assert_eq!(s.state(), Some(State::Reset));
    assert_eq!(s.send(0, segment(SYN, 777, 0, 0, 60_000)), PASS);
    assert_eq!(s.state(), Some(State::SynSent));
    // Here only the responder has the old connection: its bare challenge passes.
    assert_eq!(s.send(1, segment(ACK, 123_456, 654_321, 0, 60_000)), PASS);
    assert_eq!(
        s.send(1, segment(ACK, 123_456, 654_321, 10, 60_000)),
        invalid(Invalid::Acknowledgement)
    );
    assert_eq!(s.send(0, segment(RST, 654_321, 0, 0, 0)), PASS);
    assert_eq!(s.state(), Some(State::SynSent));
}

#[test]
fn a_closed_window_takes_a_probe() {
    let mut s = open([None, None]);
    assert_eq!(s.send(1, segment(ACK, 5001, 1001, 0, 0)), PASS);
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 60_000, 60_000)), PASS);
    assert_eq!(s.send(1, segment(ACK, 5001, 61_001, 0, 0)), PASS);
    assert_eq!(s.send(0, segment(ACK, 61_001, 5001, 1, 60_000)), PASS);
    // A keep-alive is of the byte before.
    assert_eq!(s.send(0, segment(ACK, 61_001, 5001, 0, 60_000)), PASS);
}

#[test]
fn a_fragmented_segment_is_acknowledged_whole() {
    let mut s = open([None, None]);
    let mut first = segment(ACK, 1001, 5001, 1480, 60_000);
    if let flow::segment::Kind::Tcp(tcp) = &mut first.kind {
        tcp.more = true;
    }
    assert_eq!(s.send(0, first), PASS);
    assert_eq!(s.send(1, segment(ACK, 5001, 1001 + 8000, 0, 60_000)), PASS);
    assert_eq!(s.send(0, segment(ACK, 9001, 5001, 100, 60_000)), PASS);
}

#[test]
fn established_stays_for_hours_and_half_open_does_not() {
    let mut s = open([None, None]);
    s.now += 2 * 3600 * SECOND;
    assert_eq!(s.state(), Some(State::Established));
    s.now += 600 * SECOND;
    assert_eq!(s.state(), None);
    let mut s = switch();
    assert_eq!(s.send(0, segment(SYN, 1000, 0, 0, 60_000)), PASS);
    s.now += state::TCP_TRANSITORY + SECOND;
    assert_eq!(s.state(), None);
}

#[test]
fn an_error_is_about_what_was_sent() {
    let mut s = open([None, None]);
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 1400, 60_000)), PASS);
    // It comes to the initiator, as answers do: found by what it quotes, reversed.
    let quoted = s.sides[0].tuple.reversed();
    let found = s.connections.find(s.now, 1, 0, &quoted).unwrap();
    assert_eq!(found.direction, Direction::Back);
    let counted = crate::plain(70);
    for (sequence, expected) in [
        (Some(1001), Judgement::Pass),
        (Some(2401), Judgement::Pass),
        (Some(2402), Judgement::Invalid(Invalid::Unrelated)),
        (Some(1_000_000), Judgement::Invalid(Invalid::Unrelated)),
        (None, Judgement::Invalid(Invalid::Unrelated)),
    ] {
        assert_eq!(
            s.connections.related(found, sequence, &counted),
            expected,
            "{sequence:?}"
        );
    }
    let gone = Found { id: 63, ..found };
    let judged = s.connections.related(gone, Some(1001), &counted);
    assert_eq!(judged, Judgement::Invalid(Invalid::Unrelated));
}

fn flags() -> impl Strategy<Value = u8> {
    let likely = [SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK];
    prop_oneof![9 => prop::sample::select(likely.to_vec()), 1 => any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever two hosts send: nothing panics, and only one who was answered by the
    /// right number is established.
    #[test]
    fn no_segments_break_it(steps in prop::collection::vec(
        (0usize..2, flags(), 0u32..4, 0u32..4, prop_oneof![Just(0u32), Just(1), 0u32..65_160],
         any::<u16>(), prop::option::of(0u8..15), any::<bool>()), 0..60), base: u32) {
        let mut s = switch();
        // Numbers near those that were sent, so that many fit.
        let mut next = [base, base.wrapping_add(1 << 30)];
        let mut acknowledged = [false; 2];
        for (side, flags, near, ack, payload, window, scale, more) in steps {
            let sequence = next[side].wrapping_add(near).wrapping_sub(1);
            let acknowledgement = next[1 - side].wrapping_add(ack).wrapping_sub(1);
            let mut packet = segment(flags, sequence, acknowledgement, payload, window);
            if let flow::segment::Kind::Tcp(tcp) = &mut packet.kind {
                (tcp.scale, tcp.more) = (scale, more);
            }
            let before = s.state();
            let judged = s.send(side, packet);
            let after = s.state();
            if before.is_none() || after == Some(State::SynSent) {
                acknowledged = [false; 2];
            }
            if judged == PASS {
                acknowledged[1 - side] |= flags & ACK != 0;
                let counted = payload + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
                next[side] = sequence.wrapping_add(counted);
            } else {
                prop_assert_eq!(before, after);
            }
            if after == Some(State::Established) {
                prop_assert_eq!(acknowledged, [true; 2]);
            }
            let (live, half_open) = s.connections.live(0);
            let (lived, halves) = s.connections.live(1);
            prop_assert!(live + lived <= 1);
            prop_assert_eq!(half_open + halves > 0, after.is_some_and(State::is_half_open));
        }
    }
}
