//! Programs with circuits: where their calls come is kept for operators, which hand it over, and what else they say.

use super::*;
use crate::seats::label;
use command::verbs::{
    ContainerRefused, Program, ProgramGone, ProgramLimit, Running, Seek, Share, WantMeter,
};
use seqpacket::Fds;

/// Programs of a compartment at most.
pub const PROGRAMS: usize = 4096;
/// And at least, however many compartments share this process' descriptors.
const LEAST_PROGRAMS: usize = 64;
/// The greatest number of one: what an operator alleges is no reason for the next to have none left.
const MOST_NUMBER: u32 = 1 << 31;

impl Supervisor {
    /// What an operator says.
    pub fn operator_says(&mut self, compartment: u32, message: &Message, fds: Fds) {
        if message.body::<WantMeter>().is_some() {
            return self.want_meter(compartment);
        }
        if let Some(body) = message.body::<ContainerRefused>() {
            let seat = Subject::Seat(Seat::Compartment(compartment));
            let happened = Happened::new(EventKind::ContainerRefused, seat).slot(body.slot);
            return self.happened(happened.value(body.why.into()));
        }
        if let Some(body) = message.body::<Running>() {
            return self.operator_decides(compartment, body.epoch);
        }
        if let Some(body) = message.body::<Seek>() {
            return self.seek(compartment, &body);
        }
        if let Some(body) = message.body::<Share>() {
            return self.share(compartment, &body);
        }
        let fd = fds.into_iter().next();
        if let (Some(body), Some(fd)) = (message.body::<Program>(), fd) {
            let most = self.most_programs();
            let is_there = self.has_circuits(compartment, body.slot);
            let Some(circuits) = self.circuits(compartment) else {
                return;
            };
            // Its port went while it was handed over; or it is an allegation, of which no more is kept than of programs.
            if !is_there || body.number > MOST_NUMBER {
                if body.number <= MOST_NUMBER && circuits.gone.len() < PROGRAMS {
                    circuits.gone.insert(body.number);
                }
                return;
            }
            if guard!("operator-programs") && circuits.programs.len() >= most {
                // An honest one was told how many: it asked before it had heard.
                let seat = label(Seat::Compartment(compartment));
                return confine::say!(
                    "supervisor: a program of {seat} is not kept and ends with its operator: there are {most} already"
                );
            }
            if let Err(refusal) = spare_descriptors(&fd) {
                return confine::say!("supervisor: a program is not kept: {}", refusal.detail);
            }
            let fd = Rc::new(fd);
            circuits
                .programs
                .insert(body.number, (body.slot, Rc::clone(&fd)));
            let note = Note::default().with("slot", body.slot);
            let key = Key::Program(compartment, body.number);
            self.keeper.keep(key, &note, fd.as_fd());
        } else if let Some(body) = message.body::<ProgramGone>()
            && let Some(circuits) = self.circuits(compartment)
        {
            // Who says so has none of its calls noted.
            circuits.gone.remove(&body.number);
            if circuits.programs.remove(&body.number).is_some() {
                self.keeper
                    .forget_one(Key::Program(compartment, body.number));
            }
        }
    }

    /// Programs of a compartment that are kept, at most: of the descriptors that this process may have all
    /// compartments' together take a quarter.
    fn most_programs(&self) -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |it| usize::try_from(it).unwrap_or(usize::MAX));
        let homes = self.compartments.values();
        let all = homes.filter(|home| home.circuits.is_some()).count().max(1);
        PROGRAMS.min((limit / 4 / all).max(LEAST_PROGRAMS))
    }

    /// Tells an operator of that limit.
    pub(super) fn tell_of_limit(&mut self, compartment: u32, id: u64) {
        let most = self.most_programs() as u32;
        let last = self.circuits(compartment).and_then(|circuits| {
            let numbers = circuits.programs.keys().chain(&circuits.gone);
            numbers.max().copied()
        });
        let body = ProgramLimit {
            most,
            next: last.map_or(0, |last| last.saturating_add(1)),
        };
        self.tell(id, &Message::new(0, &body), Vec::new());
    }

    /// There is one compartment more with circuits, or less: all have another part.
    pub(super) fn share_programs(&mut self) {
        let most = self.most_programs();
        if most == std::mem::replace(&mut self.shared_programs, most) {
            return;
        }
        let homes = self.compartments.keys();
        let operators = homes.filter_map(|id| Some((*id, self.operator_in(*id)?)));
        for (compartment, operator) in operators.collect::<Vec<_>>() {
            self.tell_of_limit(compartment, operator);
        }
    }
}
