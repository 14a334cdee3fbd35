//! What a supervisor that starts takes over from the one before it.

use crate::channels::Channel;
use crate::deaths::ENDING;
use crate::errands::{self, Whose};
use crate::ports::circuits::{self, Circuits};
use crate::ports::{guests, meters, proxies};
use crate::registry::{KeptSeat, KeptWorker};
use crate::seats::{Compartment, FABRIC_SLOTS, SeatState};
use crate::supervisor::Supervisor;
use crate::workers::{Place, Role};
use crate::{attach, bodies, images};
use command::Message;
use command::verbs::{CreateCompartment, RemovePort};
use seqpacket::Socket;
use shm::Geometry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

impl Supervisor {
    pub fn adopt_compartment(&mut self, id: u32, kept: KeptSeat<OwnedFd>) {
        let Some(compartment) = compartment(kept) else {
            self.keeper.forget(&format!("compartment/{id}/"));
            return;
        };
        // It is its operators', whether one lives just now or not.
        if let Some(circuits) = &compartment.circuits {
            self.uids.adopt(circuits.uid());
        }
        self.compartments.insert(id, compartment);
    }

    /// The limits of compartments of before, once their ports are known.
    pub fn adopt_limits(&mut self) {
        let all = self.compartments.iter();
        let all: Vec<_> = all.map(|(id, c)| (*id, c.body, c.memory())).collect();
        for (id, body, memory) in all {
            let cgroup = self.cgroup_for(&body, memory);
            let uid = self.compartments.get(&id).and_then(|home| {
                let circuits = home.circuits.as_ref();
                circuits.map(|circuits| circuits.uid())
            });
            let group = uid.and_then(|uid| self.operators_group(id, uid));
            let Some(compartment) = self.compartments.get_mut(&id) else {
                continue;
            };
            compartment.cgroup = cgroup;
            if let Some(circuits) = compartment.circuits.as_deref_mut() {
                circuits.group = group;
            }
        }
    }

    /// A process of before goes on where it is; one that was on its way is ended.
    pub fn adopt_worker(&mut self, id: u64, kept: KeptWorker<OwnedFd>) {
        let KeptWorker {
            control,
            pidfd,
            note,
            person,
        } = kept;
        let role = note.value("role").and_then(Role::from_name);
        let profile = note.value("profile").and_then(confine::Profile::from_name);
        let place = match note.value("place") {
            Some("spare") => Some(Place::Spare),
            Some("controller") => Some(Place::Controller),
            // It knows nothing that a new one could not be told, and what it was asked
            // is forgotten.
            Some("verifier" | "solver") => None,
            Some(word) if word.starts_with(ENDING) => Some(Place::Ending),
            Some(word) => attach::seat_of(word)
                .map(Place::Seated)
                .or(guests::place_of(word).map(Place::Guest))
                .or(circuits::place_of(word).map(Place::Circuits))
                .or(proxies::place_of(word).map(Place::Proxy))
                .or(meters::place_of(word).map(Place::Meter)),
            None => None,
        };
        let free = match place {
            Some(Place::Seated(seat)) => {
                self.seat(seat).is_some_and(|state| state.worker.is_none())
            }
            Some(Place::Guest(place)) => self.adopt_helper(id, place),
            Some(Place::Circuits(compartment)) => self.adopt_operator(id, compartment),
            Some(Place::Proxy(place)) => self.adopt_proxy(id, place),
            Some(Place::Meter(compartment)) => self.adopt_meter(id, compartment),
            Some(_) => true,
            None => false,
        };
        let (Some(role), Some(profile), Some(place), true) = (role, profile, place, free) else {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            // The controller's is everybody's who comes after it.
            if role != Some(Role::Controller) {
                let of = Whose::Uid(person.number("uid") as u32);
                self.errands.part(of, control.as_fd());
            }
            self.keeper.forget(&format!("worker/{id}/"));
            return;
        };
        let child = confine::Child {
            pid: person.number("pid") as u32,
            pidfd,
        };
        let control = (role != Role::Controller).then(|| Socket::from_fd(control));
        if let Err(error) = self.enrol(
            id,
            child,
            None,
            control,
            role,
            profile,
            person.number("uid") as u32,
            place,
        ) {
            confine::say!("supervisor: a process of before is not taken over: {error}");
            self.keeper.forget(&format!("worker/{id}/"));
            return;
        }
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.stages = note.number("stages") as u32;
            // It may fall behind as well. Who ends is noted so for good.
            let noted = note.value("place").filter(|_| place != Place::Ending);
            worker.noted = noted.map(str::to_owned);
        }
        match place {
            Place::Seated(seat) => {
                let now = self.now();
                if let Some(state) = self.seat_mut(seat) {
                    state.worker = Some(id);
                    state.attached = now;
                    state.restarts = note.number("restarts") as u32;
                    state.cause = note.number("cause") as u32;
                    state.outage = note.number("outage");
                }
            }
            Place::Controller => self.controller_due = None,
            Place::Ending => {
                let of = note.value("place").and_then(|it| it.strip_prefix(ENDING));
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.ended_in = of.and_then(|it| it.parse().ok());
                    let _ = rustix::process::pidfd_send_signal(
                        &worker.pidfd,
                        rustix::process::Signal::KILL,
                    );
                }
            }
            Place::Circuits(compartment) => {
                self.forget_captures(id);
                // The one before us may have died before it did.
                self.unlimited.push((id, compartment, self.now()));
            }
            Place::Meter(compartment) => {
                self.forget_captures(id);
                self.give_pages(id, compartment);
            }
            _ => {}
        }
    }

    /// Ends children of a supervisor before us that nobody knows: it died between
    /// starting them and saying so.
    pub fn end_orphans(&self) {
        let Some(keeper) = rustix::process::getppid() else {
            return;
        };
        let path = format!("/proc/{0}/task/{0}/children", keeper.as_raw_nonzero());
        let children = std::fs::read_to_string(path).unwrap_or_default();
        let known: BTreeSet<u32> = self
            .workers
            .values()
            .map(|worker| worker.pid)
            .chain([std::process::id()])
            .collect();
        for pid in children
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u32>().ok())
        {
            // Who ends circuits goes on, for a while: nobody else does it again.
            if known.contains(&pid) || errands::removed::is_one(pid) {
                continue;
            }
            // It stays the keeper's child until the keeper reaps it, so the number is
            // its own.
            if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Takes back what a half-made object may have been plugged into.
    pub fn unplug_half_made(&mut self, prefix: &str) {
        let words: Vec<&str> = prefix.trim_end_matches('/').split('/').collect();
        let number = |word: &str| word.parse::<u32>().ok();
        match words.as_slice() {
            ["compartment", id] => {
                if let Some(id) = number(id) {
                    self.unplug_from_fabric(id);
                }
            }
            ["port", compartment, slot] => {
                let (Some(compartment), Some(slot)) = (number(compartment), number(slot)) else {
                    return;
                };
                let worker = self
                    .compartments
                    .get(&compartment)
                    .and_then(|c| c.seat.worker);
                if let Some(worker) = worker {
                    self.tell(worker, &Message::new(0, &RemovePort { slot }), Vec::new());
                }
                if let Some(operator) = self.operator_in(compartment) {
                    self.tell(operator, &Message::new(0, &RemovePort { slot }), Vec::new());
                }
            }
            _ => {}
        }
    }
}

pub fn fabric(kept: KeptSeat<OwnedFd>) -> Option<SeatState> {
    seat(kept, FABRIC_SLOTS)
}

fn compartment(mut kept: KeptSeat<OwnedFd>) -> Option<Compartment> {
    let (body, _) = kept.body.take()?;
    let body: CreateCompartment = bodies::load(&body)?;
    let geometry = Geometry::records(body.capacity as usize, body.max_record as usize).ok()?;
    let channel = std::mem::take(&mut kept.channel);
    let circuits = kept.circuits.take();
    let circuits = circuits.map(|(page, network)| Circuits::adopted(page, network));
    Some(Compartment {
        created: bodies::digest(&body),
        seat: seat(kept, body.slots)?,
        channel: Channel::from_parts(channel, geometry, 0),
        quarantined: false,
        ports: BTreeMap::new(),
        cgroup: None,
        circuits: circuits.map(Box::new),
        body,
    })
}

fn seat(kept: KeptSeat<OwnedFd>, slots: u32) -> Option<SeatState> {
    let (counters, recorder) = (Rc::new(kept.counters), Rc::new(kept.recorder));
    let mut seat = SeatState::from_pages(counters, recorder, slots).ok()?;
    let image = kept.image;
    seat.image = image.and_then(|(fd, note)| images::from_note(Rc::new(fd), &note));
    seat.journal = kept.journal.map(Rc::new);
    Some(seat)
}
