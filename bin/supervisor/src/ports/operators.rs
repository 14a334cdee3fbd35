//! Operators, watched over: one that a program holds up in the kernel is replaced, a program that
//! does so again and again is given up, and no change of tables is done before the operator
//! decides by it.

use super::*;
use crate::process::{Does, does};
use crate::seats::label;
use crate::watch::{Death, PROGRAM_STALLS, Seen};
use command::verbs::{CAUSE_STALL, Inspect, PROGRAM_NUMBERS};
use telemetry::operator::{ASLEEP, CUT, DELAYED, HEARTBEAT, SERVES, TAKEN, TOUCHES, UNFOUND};

/// A change of tables whose operator says nothing this long is not done, ns: longer than three
/// operators, one after another, may stand still.
const DECIDE_LIMIT: u64 = 10_000_000_000;

/// A change of tables that waits for an operator's word.
pub struct Owed {
    /// The controller's request.
    seq: u32,
    /// Of the image.
    epoch: u64,
    /// When it is given up, ns.
    until: u64,
    /// It is done all the same then.
    must: bool,
}

/// Who had an operator wait: a program by its call, or any of an endpoint, whose socket it took.
#[derive(Clone, Copy)]
enum Whose {
    Program(u32),
    Endpoint(u32),
}

impl Whose {
    /// Programs and endpoints by numbers that are never the same.
    fn number(self) -> u32 {
        match self {
            Whose::Program(program) => program,
            Whose::Endpoint(slot) => slot | PROGRAM_NUMBERS,
        }
    }
}

impl Owed {
    /// The controller's request.
    pub fn seq(&self) -> u32 {
        self.seq
    }
}

impl Supervisor {
    /// Looks for operators that stand still; whether there is any, and whether any is awake.
    pub fn look_at_operators(&mut self, now: u64) -> (bool, bool) {
        let (mut any, mut awake, mut stalled) = (false, false, Vec::new());
        for (compartment, home) in &mut self.compartments {
            let Some(circuits) = home.circuits.as_deref_mut().filter(|c| c.is_ready) else {
                continue;
            };
            let worker = circuits.operator.and_then(|id| self.workers.get(&id));
            let (Some(pid), Some(words)) = (worker.map(|worker| worker.pid), &circuits.words)
            else {
                continue;
            };
            any = true;
            let says = (words.load(HEARTBEAT), words.load(ASLEEP) == 1);
            let spent = || confine::clock::process_cpu_time(pid).ok();
            let serves = (words.load(SERVES) >> 32) as u32;
            let state = || match does(pid) {
                // An allegation, which can only keep one that stands still a little longer.
                Does::Waits if serves != 0 && does(serves) == Does::Runs => Does::Hands,
                does => does,
            };
            match circuits.standing.look(now, says, spent, state) {
                Seen::Asleep => {}
                Seen::Awake => awake = true,
                Seen::Stalled => stalled.push(*compartment),
            }
        }
        for compartment in stalled {
            self.replace_operator(compartment);
        }
        (any, awake)
    }

    /// What is to be known of a compartment's operator.
    pub fn inspect_operator(&self, seat: Seat) -> Inspect {
        let circuits = match seat {
            Seat::Compartment(id) => self.compartments.get(&id).and_then(|c| c.circuits.as_ref()),
            Seat::Fabric => None,
        };
        let Some(circuits) = circuits else {
            return Inspect::default();
        };
        let worker = circuits.operator.and_then(|id| self.workers.get(&id));
        let alleged = |word| circuits.words.as_ref().map_or(0, |words| words.load(word));
        Inspect {
            operator: worker.map_or(0, |worker| worker.pid),
            operator_restarts: circuits.restarts,
            operator_stalls: circuits.stalls,
            given_up: circuits.given_up,
            delayed: alleged(DELAYED),
            unfound: alleged(UNFOUND),
            taken: alleged(TAKEN),
            cut: alleged(CUT),
            ..Inspect::default()
        }
    }

    /// An operator stands still. It is killed, which takes effect when the kernel lets it go, and
    /// that may be never: nothing of it runs any more, and its successor does not wait for it.
    fn replace_operator(&mut self, compartment: u32) {
        let now = self.now();
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let Some(id) = circuits.operator.take() else {
            return;
        };
        circuits.is_ready = false;
        circuits.hunt = None;
        circuits.restarts += 1;
        circuits.stalls += 1;
        circuits.standing = Default::default();
        let lived = now.saturating_sub(circuits.started);
        circuits.due = now + circuits.backoff.died(Death::Fault, lived);
        // An allegation, which can only blame a program of its own.
        let word = |at| circuits.words.as_ref().map_or(0, |words| words.load(at));
        let whose = match word(TOUCHES) as u32 {
            0 => Whose::Program(word(SERVES) as u32),
            slot => Whose::Endpoint(slot - 1),
        };
        let slot = match whose {
            Whose::Endpoint(slot) => Some(slot),
            Whose::Program(program) => circuits.programs.get(&program).map(|(slot, _)| *slot),
        };
        let blamed = slot.is_some() && circuits.blame.died(now, whose.number(), PROGRAM_STALLS);
        let programs = circuits
            .programs
            .iter()
            .filter(|(number, (of, _))| match whose {
                Whose::Program(program) => **number == program,
                Whose::Endpoint(slot) => *of == slot,
            });
        let programs: Vec<u32> = programs.map(|(number, _)| *number).collect();
        self.kill(id, None);
        let seat = Seat::Compartment(compartment);
        confine::say!(
            "supervisor: the operator of {} stands still and is replaced",
            label(seat)
        );
        let happened = Happened::new(EventKind::OperatorReplaced, Subject::Seat(seat));
        let happened = happened.slot(slot.unwrap_or(0)).cause(CAUSE_STALL);
        let program = match whose {
            Whose::Program(program) => program,
            Whose::Endpoint(_) => 0,
        };
        self.happened(happened.value(u64::from(program)));
        if blamed && guard!("circuits-give-up") {
            for program in programs {
                self.give_up(compartment, program);
            }
        }
        self.follow(compartment);
    }

    /// Nobody answers a program's calls any more: they are refused by the kernel (ENOSYS).
    fn give_up(&mut self, compartment: u32, program: u32) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let Some((slot, _)) = circuits.programs.remove(&program) else {
            return;
        };
        circuits.given_up += 1;
        self.keeper.forget_one(Key::Program(compartment, program));
        let seat = Subject::Seat(Seat::Compartment(compartment));
        let happened = Happened::new(EventKind::ProgramGivenUp, seat).slot(slot);
        self.happened(happened.value(u64::from(program)));
    }

    /// A switch runs an image. The request for it is done when nothing of what it denies goes on
    /// by a circuit either; where nobody can have one, at once.
    pub fn done_when_decided(&mut self, seq: u32, seat: Seat, epoch: u64, must: bool) {
        let until = self.now() + DECIDE_LIMIT;
        let circuits = match seat {
            Seat::Compartment(compartment) => self.circuits(compartment),
            Seat::Fabric => None,
        };
        let Some(circuits) = circuits.filter(|c| c.is_ready || !c.programs.is_empty()) else {
            return self.done(seq);
        };
        if !guard!("circuits-decided") {
            return self.done(seq);
        }
        circuits.owed.push(Owed {
            seq,
            epoch,
            until,
            must,
        });
    }

    /// An operator has cut what the image of this epoch does not allow.
    pub(super) fn operator_decides(&mut self, compartment: u32, epoch: u64) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let done = circuits.owed.extract_if(.., |owed| owed.epoch <= epoch);
        let done: Vec<u32> = done.map(|owed| owed.seq).collect();
        for seq in done {
            self.done(seq);
        }
    }

    /// Answers for operators that say nothing; when to look again, ns.
    pub fn expire_owed(&mut self, now: u64) -> Option<u64> {
        let mut late = Vec::new();
        let mut next = None;
        for (id, home) in &mut self.compartments {
            let Some(circuits) = home.circuits.as_deref_mut() else {
                continue;
            };
            late.extend(
                circuits
                    .owed
                    .extract_if(.., |owed| owed.until <= now)
                    .map(|owed| (*id, owed)),
            );
            next = next
                .into_iter()
                .chain(circuits.owed.iter().map(|owed| owed.until))
                .min();
        }
        for (id, owed) in late {
            let name = self.compartments.get(&id).map(|home| home.body.name);
            let detail = format!(
                "the operator of {} did not say in time that it decides by its tables: connections of programs that they do not allow may go on",
                name.as_ref().map_or("a compartment", |name| name.as_str())
            );
            match owed.must {
                true => {
                    confine::say!("supervisor: {detail}");
                    self.done(owed.seq);
                }
                false => self.refuse(owed.seq, &Refusal::new(ErrorCode::System, detail)),
            }
        }
        next
    }
}
