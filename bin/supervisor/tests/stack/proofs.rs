//! Nothing is installed but what the verifier, and nobody else, said that it proved.

use crate::host::{Host, epoch_bytes, epoch_image, question, red};
use crate::kill;
use crate::wayward::NEVER_PROVED;
use command::message::ErrorCode;
use command::verbs::*;
use std::time::{Duration, Instant};
use telemetry::recorder::EventKind;

pub const TESTS: &[(&str, fn())] = &[
    (
        "an_image_that_was_not_proved_is_refused",
        an_image_that_was_not_proved_is_refused,
    ),
    (
        "what_is_in_use_may_be_installed_again_until_the_next_proof_is_settled",
        what_is_in_use_may_be_installed_again_until_the_next_proof_is_settled,
    ),
    (
        "a_switch_or_a_controller_that_speaks_of_proofs_counts_for_nothing",
        a_switch_or_a_controller_that_speaks_of_proofs_counts_for_nothing,
    ),
    (
        "a_switch_that_asks_for_a_solver_is_killed",
        a_switch_that_asks_for_a_solver_is_killed,
    ),
    (
        "a_verifier_that_dies_at_its_work_is_replaced_and_proves_nothing",
        a_verifier_that_dies_at_its_work_is_replaced_and_proves_nothing,
    ),
    (
        "a_verifier_that_hangs_is_killed_and_the_proof_refused",
        a_verifier_that_hangs_is_killed_and_the_proof_refused,
    ),
    (
        "a_verifier_that_says_what_it_was_not_asked_is_replaced",
        a_verifier_that_says_what_it_was_not_asked_is_replaced,
    ),
    (
        "what_lies_in_the_seats_is_shown_to_the_verifier",
        what_lies_in_the_seats_is_shown_to_the_verifier,
    ),
];

const NOT_PROVED: u32 = ErrorCode::NotProved as u32;

fn unasked(host: &mut Host, target: u32, epoch: u64) -> Result<(), u32> {
    let (fd, body) = epoch_image(target, epoch);
    host.ask_with(&body, &[&fd]).map(|_| ())
}

fn proved(host: &mut Host, epochs: &[u64]) {
    let images: Vec<Vec<u8>> = epochs.iter().map(|epoch| epoch_bytes(*epoch)).collect();
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    let verdict = host.prove("honest", PROVE_TO_INSTALL, &images).unwrap();
    assert_eq!(
        (verdict.outcome, verdict.compartments as usize),
        (VERDICT_PROVED, epochs.len())
    );
}

fn an_image_that_was_not_proved_is_refused() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    assert_eq!(unasked(&mut host, 3, 1), Err(NOT_PROVED));
    assert_eq!(unasked(&mut host, FABRIC, 1), Err(NOT_PROVED));
    // What somebody only wants to know of, and what was not proved, is not installed.
    let (image, knows) = (epoch_bytes(1), PROVE_TO_KNOW);
    host.prove("honest", knows, &[&image]).unwrap();
    assert_eq!(unasked(&mut host, 3, 1), Err(NOT_PROVED));
    let verdict = host.prove("breach", PROVE_TO_INSTALL, &[&image]).unwrap();
    assert_eq!(verdict.outcome, VERDICT_BREACHES);
    assert_eq!(unasked(&mut host, 3, 1), Err(NOT_PROVED));
    assert_eq!(host.inspect(3).epoch, 0);
    // More images than one message has digests.
    let many: Vec<u64> = (1..=40).collect();
    proved(&mut host, &many);
    assert_eq!(unasked(&mut host, 3, 40), Ok(()));
    assert_eq!(unasked(&mut host, 3, 1), Ok(()));
    assert_eq!(unasked(&mut host, 3, 41), Err(NOT_PROVED));
    assert_eq!(
        host.ask(&Prove::default()).unwrap_err(),
        ErrorCode::BadMessage as u32
    );
}

fn what_is_in_use_may_be_installed_again_until_the_next_proof_is_settled() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    // An apply of 2 and 3 that is undone.
    proved(&mut host, &[2, 3]);
    unasked(&mut host, 3, 2).unwrap();
    unasked(&mut host, 3, 1).unwrap();
    // Another one that stands: 1 was in use when it was proved, 3 was not.
    proved(&mut host, &[4]);
    assert_eq!(unasked(&mut host, 3, 3), Err(NOT_PROVED));
    unasked(&mut host, 3, 4).unwrap();
    unasked(&mut host, 3, 1).unwrap();
    unasked(&mut host, 3, 4).unwrap();
    proved(&mut host, &[5]);
    assert_eq!(unasked(&mut host, 3, 1), Err(NOT_PROVED));
    // What was proved for one is no other's.
    host.ok(&red(4, 0));
    let image = epoch_bytes(8);
    host.prove("for-three", PROVE_TO_INSTALL, &[&image])
        .unwrap();
    assert_eq!(unasked(&mut host, 4, 8), Err(NOT_PROVED));
    unasked(&mut host, 3, 8).unwrap();
    unasked(&mut host, 3, 4).unwrap();
    // A supervisor that starts knows what is in use, and no more.
    host.kill_supervisor();
    host.restart_supervisor();
    host.event(EventKind::Ready);
    assert_eq!(unasked(&mut host, 3, 5), Err(NOT_PROVED));
    unasked(&mut host, 3, 4).unwrap();
    // In its own seat.
    assert_eq!(unasked(&mut host, 4, 4), Err(NOT_PROVED));
}

fn a_switch_or_a_controller_that_speaks_of_proofs_counts_for_nothing() {
    let mut host = Host::start();
    // It speaks while a question is under way.
    let (body, fd) = question("hangs", PROVE_TO_INSTALL, &[]);
    host.ok(&red(3, 117));
    host.ok(&red(4, 0));
    proved(&mut host, &[1]);
    let asked = host.send_with(&body, &[&fd]);
    let pid = host.inspect(3).pid;
    let (fd, install) = epoch_image(3, 1);
    host.send_with(&install, &[&fd]);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause), (3, CAUSE_REPORT));
    host.until("the process is gone", |_| confine::observe(pid).is_err());
    assert_eq!(unasked(&mut host, 4, NEVER_PROVED), Err(NOT_PROVED));
    let digest = image::digest(&epoch_bytes(NEVER_PROVED)).unwrap().0;
    let claim = Proved {
        count: 1,
        digests: [digest; PROVED_AT_ONCE],
        ..Proved::default()
    };
    let unknown = ErrorCode::BadMessage as u32;
    assert_eq!(host.ask(&claim).unwrap_err(), unknown);
    assert_eq!(host.ask(&Verdict::default()).unwrap_err(), unknown);
    assert_eq!(unasked(&mut host, 4, NEVER_PROVED), Err(NOT_PROVED));
    // Not by their word: the verifier was killed for its silence.
    assert_eq!(host.answer(asked).0.error, NOT_PROVED);
}

fn a_switch_that_asks_for_a_solver_is_killed() {
    let mut host = Host::start();
    host.ok(&red(3, 118));
    proved(&mut host, &[1]);
    let (fd, install) = epoch_image(3, 1);
    host.send_with(&install, &[&fd]);
    let died = host.event(EventKind::Died);
    assert_eq!((died.target, died.cause), (3, CAUSE_REPORT));
}

fn a_verifier_that_dies_at_its_work_is_replaced_and_proves_nothing() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    host.install(3, 1).unwrap();
    let before = host.inspect(3).pid;
    let image = epoch_bytes(2);
    for _ in 0..3 {
        let refused = host.prove("dies", PROVE_TO_INSTALL, &[&image]).unwrap_err();
        assert_eq!(refused, NOT_PROVED);
        assert_eq!(unasked(&mut host, 3, 2), Err(NOT_PROVED));
    }
    // What was proved stays so; what runs goes on; the next one does its work.
    unasked(&mut host, 3, 1).unwrap();
    proved(&mut host, &[2]);
    unasked(&mut host, 3, 2).unwrap();
    assert_eq!(host.inspect(3).pid, before);
    // Killed from outside while nothing is asked.
    let pid = host.verifier();
    kill(pid);
    host.until("another is there", |h| h.verifier() != pid);
    proved(&mut host, &[3]);
}

fn a_verifier_that_hangs_is_killed_and_the_proof_refused() {
    let mut host = Host::start();
    let before = host.verifier();
    let begun = Instant::now();
    let image = epoch_bytes(1);
    let refused = host
        .prove("hangs", PROVE_TO_INSTALL, &[&image])
        .unwrap_err();
    assert_eq!(refused, NOT_PROVED);
    assert!(begun.elapsed() >= Duration::from_secs(10));
    proved(&mut host, &[2]);
    assert_ne!(host.verifier(), before);
    assert!(confine::observe(before).is_err());
}

fn a_verifier_that_says_what_it_was_not_asked_is_replaced() {
    let mut host = Host::start();
    host.ok(&red(3, 0));
    let image = epoch_bytes(1);
    // Of another question; more than a message has; where nothing is to be installed.
    for (how, purpose) in [
        ("other", PROVE_TO_INSTALL),
        ("many", PROVE_TO_INSTALL),
        ("talks", PROVE_TO_KNOW),
    ] {
        let pid = host.verifier();
        let refused = host.prove(how, purpose, &[&image]).unwrap_err();
        assert_eq!(refused, NOT_PROVED, "{how}");
        assert_eq!(unasked(&mut host, 3, 1), Err(NOT_PROVED), "{how}");
        host.until("another is there", |h| h.verifier() != pid);
    }
}

fn what_lies_in_the_seats_is_shown_to_the_verifier() {
    let mut host = Host::start();
    let lies = |host: &mut Host| {
        let verdict = host.prove("honest", PROVE_INSTALLED, &[]).unwrap();
        verdict.entries
    };
    assert_eq!(lies(&mut host), 0);
    host.install(FABRIC, 1).unwrap();
    for id in 3..20 {
        host.ok(&red(id, 0));
        host.install(id, 1).unwrap();
    }
    assert_eq!(lies(&mut host), 18);
    let seq = host.send(&DestroyCompartment { id: 3 });
    host.answer(seq);
    assert_eq!(lies(&mut host), 17);
}
