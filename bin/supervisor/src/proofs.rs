//! Proofs: the controller's questions go to the verifier, one at a time, and its verdicts
//! back. What it said that it proved is remembered; no other image is installed.

use crate::images::image_digests;
use crate::link::Shared;
use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::FABRIC_SLOTS;
use crate::solver::Solving;
use crate::supervisor::Supervisor;
use crate::watch::{Backoff, Death, How};
use crate::workers::{Purpose, Role};
use command::Message;
use command::message::ErrorCode;
use command::verbs::{
    CAUSE_REPORT, CAUSE_STALL, FABRIC, LYING_AT_ONCE, Lying, PROVE_INSTALLED, PROVE_TO_INSTALL,
    PROVED_AT_ONCE, Prove, Proved, VERDICT_PROVED, Verdict,
};
use confine::Profile;
use guard::guard;
use seqpacket::Fds;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

/// A verifier that has not answered by then is killed, and the proof refused, ns.
const PROOF_LIMIT: u64 = 10_000_000_000;
/// A question that finds no verifier this long is refused, ns.
const WAIT_LIMIT: u64 = 15_000_000_000;
/// After a failure to start one the next try waits, ns.
const START_RETRY: u64 = 500_000_000;
/// Questions that wait, at most.
const QUESTIONS: usize = 32;
/// Images of one proof: the fabric's, and one for each of its slots.
const MOST_PROVED: usize = FABRIC_SLOTS as usize + 1;

/// A compartment's id or [`FABRIC`], and the digest of an image for it.
type Placed = (u32, [u8; 32]);

/// What is known of proofs.
#[derive(Debug)]
pub struct Proofs {
    /// What may be installed where: of the last proof, and what was in use by then.
    proved: HashSet<Placed>,
    /// First the one under way.
    questions: VecDeque<Question>,
    /// The verifier, once it is ready.
    verifier: Option<u64>,
    /// When it is to be started, ns; `None` while it runs or starts.
    pub due: Option<u64>,
    backoff: Backoff,
    /// Of the last question sent.
    serial: u32,
    /// What the verifier asked a solver.
    pub solving: Option<Solving>,
}

impl Default for Proofs {
    fn default() -> Proofs {
        Proofs {
            proved: HashSet::new(),
            questions: VecDeque::new(),
            verifier: None,
            due: Some(0),
            backoff: Backoff::default(),
            serial: 0,
            solving: None,
        }
    }
}

/// A question of the controller's.
#[derive(Debug)]
struct Question {
    /// Its number there.
    seq: u32,
    purpose: u32,
    compromised: u32,
    bundle: Shared,
    asked: u64,
    /// When it was sent to the verifier, ns.
    sent: Option<u64>,
    /// What the verifier said so far.
    proved: HashSet<Placed>,
}

/// What a seat is called in messages.
fn target(seat: Seat) -> u32 {
    match seat {
        Seat::Fabric => FABRIC,
        Seat::Compartment(id) => id,
    }
}

impl Supervisor {
    /// Has it proved; the verdict follows when the verifier has spoken.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn prove(&mut self, seq: u32, body: Prove, fds: Fds) -> Result<(), Refusal> {
        let bundle = fds.into_iter().next().ok_or_else(|| {
            Refusal::new(ErrorCode::BadMessage, "no bundle came with the question")
        })?;
        if self.proofs.questions.len() >= QUESTIONS {
            return Err(Refusal::new(
                ErrorCode::Limit,
                "too many proofs were asked for",
            ));
        }
        self.proofs.questions.push_back(Question {
            seq,
            purpose: body.purpose,
            compromised: body.compromised,
            bundle: Rc::new(bundle),
            asked: self.now(),
            sent: None,
            proved: HashSet::new(),
        });
        self.push_question();
        Ok(())
    }

    /// Whether the image with this digest may be put in this seat.
    ///
    /// # Errors
    /// [`ErrorCode::NotProved`] with a sentence.
    pub fn may_install(&self, seat: Seat, digest: &[u8; 32]) -> Result<(), Refusal> {
        let lies_there = self
            .seat(seat)
            .and_then(|state| state.image.as_ref())
            .is_some_and(|image| image.digest == *digest);
        if guard!("install-proved")
            && !lies_there
            && !self.proofs.proved.contains(&(target(seat), *digest))
        {
            return Err(Refusal::new(
                ErrorCode::NotProved,
                "the verifier has not proved this image",
            ));
        }
        Ok(())
    }

    /// Starts the verifier if it is time; whether it was.
    pub fn start_verifier_if_due(&mut self) -> bool {
        let now = self.now();
        if self.is_ending || self.proofs.due.is_none_or(|due| due > now) {
            return false;
        }
        let (role, profile) = (Role::Verifier, Profile::Verifier);
        let started = self.start_worker(role, profile, "bulkhead-verifier", Purpose::Verifier);
        self.proofs.due = started.is_none().then_some(now + START_RETRY);
        started.is_some()
    }

    /// It is confined and waits.
    pub fn verifier_ready(&mut self, id: u64) {
        self.proofs.verifier = Some(id);
        self.note_place(id, "verifier");
        self.push_question();
    }

    /// It died, ready or not: what it was asked is refused, what runs goes on.
    pub fn verifier_lost(&mut self, started: u64, how: How) {
        let now = self.now();
        confine::say!("supervisor: the verifier died ({how:?})");
        let wait = self
            .proofs
            .backoff
            .died(Death::Fault, now.saturating_sub(started));
        self.proofs.due = Some(now + wait);
        self.proofs.verifier = None;
        self.end_solver();
        self.refuse_question("the verifier died while it proved; nothing was installed");
    }

    /// Refuses the question that is under way, if one is.
    fn refuse_question(&mut self, why: &str) {
        let under_way = self.proofs.questions.front();
        if under_way.is_some_and(|question| question.sent.is_some())
            && let Some(question) = self.proofs.questions.pop_front()
        {
            self.refuse(question.seq, &Refusal::new(ErrorCode::NotProved, why));
        }
    }

    /// Sends the next question, if the verifier waits for one.
    fn push_question(&mut self) {
        let now = self.now();
        let Some(verifier) = self.proofs.verifier else {
            return;
        };
        let Some(question) = self.proofs.questions.front_mut() else {
            return;
        };
        if question.sent.is_some() {
            return;
        }
        question.sent = Some(now);
        self.proofs.serial = self.proofs.serial.wrapping_add(1);
        let body = Prove {
            purpose: question.purpose,
            compromised: question.compromised,
        };
        let (serial, bundle) = (self.proofs.serial, question.bundle.clone());
        if body.purpose == PROVE_INSTALLED {
            self.show_what_lies(verifier);
        }
        self.tell(verifier, &Message::new(serial, &body), vec![bundle]);
    }

    /// Hands over the images in use themselves: nobody's word for them.
    fn show_what_lies(&mut self, verifier: u64) {
        let seats = self.seats().into_iter().filter_map(|seat| {
            let target = target(seat);
            let image = self.seat(seat)?.image.as_ref()?;
            Some((target, image.fd.clone()))
        });
        let seats: Vec<(u32, Shared)> = seats.collect();
        for some in seats.chunks(LYING_AT_ONCE) {
            let mut body = Lying {
                count: some.len() as u32,
                ..Lying::default()
            };
            for (to, (target, _)) in body.targets.iter_mut().zip(some) {
                *to = *target;
            }
            let fds = some.iter().map(|(_, fd)| fd.clone()).collect();
            self.tell(verifier, &Message::new(0, &body), fds);
        }
    }

    /// Whether a question is with the verifier.
    pub fn is_proving(&self) -> bool {
        let under_way = self.proofs.questions.front();
        under_way.is_some_and(|question| question.sent.is_some())
    }

    /// Whether a process may speak of proofs. Anybody else who does is killed.
    pub fn may_judge(&mut self, id: u64) -> bool {
        let role = self.workers.get(&id).map(|worker| worker.role);
        if guard!("proved-by-verifier")
            && !(role == Some(Role::Verifier) && self.proofs.verifier == Some(id))
        {
            confine::say!("supervisor: a process that is not the verifier speaks of proofs");
            self.kill(id, Some(CAUSE_REPORT));
            return false;
        }
        true
    }

    /// The verifier says what it proved.
    pub fn proved(&mut self, id: u64, serial: u32, body: &Proved) {
        if !self.may_judge(id) {
            return;
        }
        let current = self.proofs.serial;
        let question = self.proofs.questions.front_mut().filter(|question| {
            question.sent.is_some() && serial == current && question.purpose == PROVE_TO_INSTALL
        });
        let count = body.count as usize;
        let Some(question) = question.filter(|question| {
            count <= PROVED_AT_ONCE && question.proved.len() + count <= MOST_PROVED
        }) else {
            return self.kill(id, Some(CAUSE_REPORT));
        };
        let places = body.targets.iter().copied().zip(body.digests);
        question.proved.extend(places.take(count));
    }

    /// The verifier has answered.
    pub fn verdict(&mut self, id: u64, serial: u32, body: Verdict, fds: Fds) {
        if !self.may_judge(id) {
            return;
        }
        let under_way = self.proofs.questions.front();
        if serial != self.proofs.serial || under_way.is_none_or(|q| q.sent.is_none()) {
            return self.kill(id, Some(CAUSE_REPORT));
        }
        self.end_solver();
        let Some(question) = self.proofs.questions.pop_front() else {
            return;
        };
        if body.outcome == VERDICT_PROVED && question.purpose == PROVE_TO_INSTALL {
            self.proofs.proved = question.proved;
            // What is in use may be wanted again, until the change is settled.
            let seats = self.seats().into_iter();
            let in_use = seats.filter_map(|seat| Some((target(seat), self.seat(seat)?)));
            let in_use: Vec<Placed> = in_use
                .flat_map(|(target, state)| image_digests(state).map(move |sum| (target, sum)))
                .collect();
            self.proofs.proved.extend(in_use);
        }
        let fds = fds.into_iter().take(1).map(Rc::new).collect();
        self.control.send(&Message::new(question.seq, &body), fds);
        self.push_question();
    }

    /// Gives up on proofs that took too long; when to look again.
    pub fn expire_proofs(&mut self, now: u64) -> Option<u64> {
        loop {
            let question = self.proofs.questions.front()?;
            let end = match question.sent {
                Some(sent) => sent + PROOF_LIMIT,
                None => question.asked + WAIT_LIMIT,
            };
            if end > now {
                return Some(end);
            }
            if question.sent.is_some() {
                self.refuse_question("the verifier did not answer in time; it is started anew");
                if let Some(id) = self.proofs.verifier.take() {
                    self.kill(id, Some(CAUSE_STALL));
                }
            } else if let Some(question) = self.proofs.questions.pop_front() {
                let why = "there is no verifier; see the log";
                self.refuse(question.seq, &Refusal::new(ErrorCode::NotProved, why));
            }
        }
    }

    /// Refuses all that is asked: the end.
    pub fn refuse_questions(&mut self, refusal: &Refusal) {
        for question in std::mem::take(&mut self.proofs.questions) {
            self.refuse(question.seq, refusal);
        }
    }
}
