//! Programs with circuits: where their calls come is kept for operators, which hand it over, and what else they say.

use super::*;
use crate::seats::label;
use command::verbs::{
    ContainerRefused, PROGRAM_NUMBERS, Program, ProgramGone, ProgramLimit, Running, Seek, Share,
    WantMeter,
};
use seqpacket::Fds;

/// Programs of a compartment at most.
pub const PROGRAMS: usize = 4096;
/// And at least, however many compartments share this process' descriptors.
const LEAST_PROGRAMS: usize = 64;

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
            // Its port may have gone while it was handed over.
            let is_there = self.has_announced(compartment, body.slot, body.port);
            let Some(circuits) = self.circuits(compartment).filter(|_| is_there) else {
                return;
            };
            // No honest one says it.
            if !(1..PROGRAM_NUMBERS).contains(&body.number) {
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
            let note = note.with("port", body.port);
            let key = Key::Program(compartment, body.number);
            self.keeper.keep(key, &note, fd.as_fd());
        } else if let Some(body) = message.body::<ProgramGone>()
            && let Some(circuits) = self.circuits(compartment)
            && circuits.programs.remove(&body.number).is_some()
        {
            self.keeper
                .forget_one(Key::Program(compartment, body.number));
        }
    }

    /// Where the calls of a program of before come.
    pub fn adopt_program(&mut self, (compartment, number): (u32, u32), fd: OwnedFd, note: &Note) {
        let slot = note.number("slot") as u32;
        // Its port may have gone with a supervisor that had not come to its programs yet.
        let is_there = self.has_announced(compartment, slot, note.number("port"));
        match self.circuits(compartment).filter(|_| is_there) {
            Some(circuits) => {
                circuits.programs.insert(number, (slot, Rc::new(fd)));
            }
            None => self.keeper.forget_one(Key::Program(compartment, number)),
        }
    }

    /// Whether programs are announced at this slot, at the port of this number; 0: at any, as one of the release
    /// before says.
    fn has_announced(&self, compartment: u32, slot: u32, port: u64) -> bool {
        let home = self.compartments.get(&compartment);
        let announced = home.and_then(|home| home.ports.get(&slot)?.circuits.as_ref());
        let is_it = |it: &Announced| port == 0 || it.number() == port;
        announced.is_some_and(|it| is_it(it) || !guard!("operator-former-port"))
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
    pub(super) fn tell_of_limit(&mut self, id: u64) {
        let most = self.most_programs() as u32;
        let body = ProgramLimit { most, reserved: 0 };
        self.tell(id, &Message::new(0, &body), Vec::new());
    }

    /// There is one compartment more with circuits, or less: all have another part.
    pub(super) fn share_programs(&mut self) {
        let most = self.most_programs();
        if most == std::mem::replace(&mut self.shared_programs, most) {
            return;
        }
        let homes = self.compartments.keys();
        let operators = homes.filter_map(|id| self.operator_in(*id));
        for operator in operators.collect::<Vec<_>>() {
            self.tell_of_limit(operator);
        }
    }
}
