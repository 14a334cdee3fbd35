//! `bulkhead-verifier`: proves table images before they are installed.
//!
//! Confine, receive, prove, answer. It has its control socket and nothing else (while it waits
//! for a solver, that one's pipe); what it is asked comes in sealed memory, and what it says of a digest it worked out from the
//! bytes themselves. The supervisor installs no image whose digest was not said here.

mod judge;
mod memory;
mod report;
mod solver;

use command::Message;
use command::message::Verb;
use command::verbs::{
    FABRIC, LYING_AT_ONCE, Lying, PROVE_TO_INSTALL, PROVED_AT_ONCE, Prove, Proved, ROLE_VERIFIER,
    VERDICT_PROVED, VERDICT_UNREADABLE, Verdict,
};
use confine::Profile;
use judge::{Answer, FABRIC_SLOT, Judge, Seat};
use seqpacket::{Fds, Socket};
use shm::SealedImage;
use solver::Asked;
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use worker::{clock, next, start};

/// The supervisor reads at once, or is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-verifier: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let control = start(Profile::Verifier, ROLE_VERIFIER)?;
    let mut judge = Judge::default();
    let mut lying = BTreeMap::new();
    while let Some((message, fds)) = next(&control)? {
        if let Some(body) = message.body::<Lying>() {
            take(&body, fds, &mut lying);
        } else if let Some(question) = message.body::<Prove>() {
            let begun = clock::monotonic();
            let lying = std::mem::take(&mut lying);
            let solver = Asked::new(&control);
            let answer = prove(&mut judge, question, fds, lying, &solver);
            let took_us = clock::monotonic().saturating_sub(begun) / 1000;
            say(&control, message.seq, question.purpose, &answer, took_us)?;
            judge.tidy();
            if solver.is_over() {
                return Ok(());
            }
        } else if Verb::from_number(message.verb) == Some(Verb::Quit) {
            return Ok(());
        }
    }
    Ok(())
}

/// What lies in seats, by what the supervisor handed over of each.
fn take(body: &Lying, fds: Fds, lying: &mut BTreeMap<u32, Seat>) {
    let count = (body.count as usize).min(LYING_AT_ONCE);
    for (target, fd) in body.targets.iter().take(count).zip(fds) {
        let slot = if *target == FABRIC {
            FABRIC_SLOT
        } else {
            *target
        };
        lying.insert(slot, SealedImage::map(fd).ok().map(Rc::new));
    }
}

fn prove(
    judge: &mut Judge,
    question: Prove,
    fds: Fds,
    lying: BTreeMap<u32, Seat>,
    solver: &Asked<'_>,
) -> Answer {
    let unreadable = |why: &str| Answer::refused(VERDICT_UNREADABLE, why);
    let Some(fd) = fds.into_iter().next() else {
        return unreadable("no bundle came with the question");
    };
    match SealedImage::map(fd) {
        Ok(bundle) => judge.answer(question, &Rc::new(bundle), &lying, solver),
        Err(error) => unreadable(&error.to_string()),
    }
}

/// First what was proved, then the verdict: who has that has all.
fn say(
    control: &Socket,
    seq: u32,
    purpose: u32,
    answer: &Answer,
    took_us: u64,
) -> Result<(), Box<dyn Error>> {
    if answer.outcome == VERDICT_PROVED && purpose == PROVE_TO_INSTALL {
        for some in answer.proved.chunks(PROVED_AT_ONCE) {
            let mut body = Proved {
                count: some.len() as u32,
                ..Proved::default()
            };
            let places = body.targets.iter_mut().zip(&mut body.digests);
            for ((target, digest), (slot, sum)) in places.zip(some) {
                *target = if *slot == FABRIC_SLOT { FABRIC } else { *slot };
                *digest = *sum;
            }
            control.send_wait(&Message::new(seq, &body), &[], PATIENCE)?;
        }
    }
    let body = Verdict {
        outcome: answer.outcome,
        breaches: u32::try_from(answer.breaches.len()).unwrap_or(u32::MAX),
        compartments: answer.compartments,
        endpoints: answer.endpoints,
        entries: answer.entries,
        reserved: 0,
        took_us,
    };
    let report = match answer.breaches.as_slice() {
        [] => None,
        breaches => Some(SealedImage::create("report", &report::json(breaches))?),
    };
    let fds: Vec<_> = report.iter().map(AsFd::as_fd).collect();
    Ok(control.send_wait(&Message::new(seq, &body), &fds, PATIENCE)?)
}
