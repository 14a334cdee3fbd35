//! The controller's requests. Many may be under way; each is answered once (an
//! inventory by several answers and a last one), and asking the same again is no error.

use crate::attach::place_of;
use crate::bodies;
use crate::channels::End;
use crate::events::{Happened, Subject};
use crate::images;
use crate::link::Shared;
use crate::process::{processor_time, resident};
use crate::refusal::Refusal;
use crate::registry::{Key, Note, Seat, SeatPart, made, making};
use crate::seats::{Compartment, FABRIC_SLOTS, SeatState, label};
use crate::supervisor::Supervisor;
use command::Message;
use command::message::{ErrorCode, Name};
use command::verbs::{
    Beat, CreateCompartment, CreatePort, CreateUplink, CutCircuit, DestroyCompartment, DestroyPort,
    DestroyUplink, Done, FABRIC, Inspect, Install, Inventory, ListFlows, Prove, RUN_UP, Release,
    SUPERVISOR, Settle, StartCapture, Trace,
};
use seqpacket::Fds;
use shm::Geometry;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::rc::Rc;
use telemetry::recorder::EventKind;

/// Requests taken in one turn.
const BATCH: usize = 32;
/// While so many answers wait, no more is asked of us.
const BACKLOG: usize = 1024;
/// Slots that a compartment's counters page may have.
const MOST_SLOTS: u32 = 8192;

/// What an answer carries beside "done".
enum Answer {
    Done,
    /// It follows later.
    Later,
    With(Box<Message>, Vec<Shared>),
}

impl Supervisor {
    /// Takes what the controller asks.
    pub fn hear_controller(&mut self) {
        for _ in 0..BATCH {
            if self.control.backlog() > BACKLOG {
                return;
            }
            match self.control.socket().recv() {
                Ok(Some((message, fds))) => self.serve(&message, fds),
                Ok(None) => return,
                // Malformed: nothing to answer to. The keeper holds both ends, so the
                // socket does not close.
                Err(error) => {
                    confine::say!("supervisor: controller: {error}");
                    return;
                }
            }
        }
    }

    fn serve(&mut self, message: &Message, fds: Fds) {
        let seq = message.seq;
        match self.answer(message, fds) {
            Ok(Answer::Done) => self.done(seq),
            Ok(Answer::Later) => {}
            Ok(Answer::With(answer, fds)) => {
                self.control.send(&answer, fds);
            }
            Err(refusal) => self.refuse(seq, &refusal),
        }
    }

    fn answer(&mut self, message: &Message, fds: Fds) -> Result<Answer, Refusal> {
        let seq = message.seq;
        if let Some(body) = message.body::<CreateCompartment>() {
            return self.create_compartment(body).map(|()| Answer::Done);
        }
        if let Some(body) = message.body::<DestroyCompartment>() {
            self.destroy_compartment(body.id);
            return Ok(Answer::Done);
        }
        if let Some(body) = message.body::<CreatePort>() {
            return self.create_port(body).map(|()| Answer::Done);
        }
        if let Some(body) = message.body::<DestroyPort>() {
            self.remove_port(body.compartment, body.slot, body.keep_namespace != 0);
            return Ok(Answer::Done);
        }
        if message.body::<Settle>().is_some() {
            self.namespaces.settle();
            return Ok(Answer::Done);
        }
        if let Some(body) = message.body::<CreateUplink>() {
            return self.create_uplink(body).map(|()| Answer::Done);
        }
        if let Some(body) = message.body::<DestroyUplink>() {
            self.destroy_uplink(body.uplink);
            return Ok(Answer::Done);
        }
        if let Some(body) = message.body::<Install>() {
            let seat = self.named_seat(body.target)?;
            let fd = fds.into_iter().next();
            let fd = fd.ok_or_else(|| {
                Refusal::new(ErrorCode::BadMessage, "no image came with the request")
            })?;
            let image = images::check(Rc::new(fd), body.epoch, body.digest)?;
            self.may_install(seat, &image.digest)?;
            let must = body.must != 0 && seat != Seat::Fabric;
            self.install(seq, seat, image, must);
            return Ok(Answer::Later);
        }
        if let Some(body) = message.body::<Prove>() {
            return self.prove(seq, body, fds).map(|()| Answer::Later);
        }
        if let Some(body) = message.body::<Inspect>() {
            let (answer, fds) = self.inspect(body.target)?;
            return Ok(Answer::With(Box::new(Message::new(seq, &answer)), fds));
        }
        if let Some(body) = message.body::<StartCapture>() {
            let pipe = self.start_capture(body)?;
            return Ok(Answer::With(Box::new(Message::new(seq, &body)), vec![pipe]));
        }
        if let Some(body) = message.body::<ListFlows>() {
            let page = self.list_flows(&body)?;
            return Ok(Answer::With(Box::new(Message::new(seq, &body)), vec![page]));
        }
        if let Some(body) = message.body::<CutCircuit>() {
            let page = self.cut_circuit(&body)?;
            return Ok(Answer::With(Box::new(Message::new(seq, &body)), vec![page]));
        }
        if let Some(body) = message.body::<Trace>() {
            let page = self.trace(&body, fds)?;
            return Ok(Answer::With(Box::new(Message::new(seq, &body)), page));
        }
        if message.body::<Inventory>().is_some() {
            for entry in self.inventory() {
                self.control.send(&Message::new(seq, &entry), Vec::new());
            }
            return Ok(Answer::Done);
        }
        if let Some(body) = message.body::<Release>() {
            return self.release(body).map(|()| Answer::Done);
        }
        if message.body::<Beat>().is_some() {
            self.controller_silence.heard();
            return Ok(Answer::Later);
        }
        Err(Refusal::new(
            ErrorCode::BadMessage,
            format!("request {} is not known to this release", message.verb),
        ))
    }

    /// Answers a request with plain success.
    pub fn done(&mut self, seq: u32) {
        self.control
            .send(&Message::new(seq, &Done::default()), Vec::new());
    }

    /// Answers a request with why not.
    pub fn refuse(&mut self, seq: u32, refusal: &Refusal) {
        self.control.send(
            &Message::new(seq, &refusal.body()).failed(refusal.code),
            Vec::new(),
        );
    }

    fn named_seat(&self, target: u32) -> Result<Seat, Refusal> {
        let seat = if target == FABRIC {
            Seat::Fabric
        } else {
            Seat::Compartment(target)
        };
        match self.seat(seat) {
            Some(_) => Ok(seat),
            None => Err(Refusal::new(
                ErrorCode::NotFound,
                format!("{} does not exist", label(seat)),
            )),
        }
    }

    fn create_compartment(&mut self, body: CreateCompartment) -> Result<(), Refusal> {
        let created = bodies::digest(&body);
        if let Some(there) = self.compartments.get(&body.id) {
            return if there.created == created {
                Ok(())
            } else {
                Err(Refusal::new(
                    ErrorCode::Conflict,
                    format!("compartment {} exists and differs", body.id),
                ))
            };
        }
        let limit = |what: String| Refusal::new(ErrorCode::Limit, what);
        if body.id >= FABRIC_SLOTS
            || self
                .uplinks
                .values()
                .any(|uplink| uplink.body.slot == body.id)
        {
            return Err(limit(format!(
                "compartment id {} is out of range, or its slot is an uplink's",
                body.id
            )));
        }
        if body.slots == 0 || body.slots > MOST_SLOTS {
            return Err(limit(format!(
                "{} slots are out of range (1 to {MOST_SLOTS})",
                body.slots
            )));
        }
        Geometry::records(body.capacity as usize, body.max_record as usize)
            .map_err(|error| limit(error.to_string()))?;
        if !body.program.as_str().is_empty() {
            self.programs
                .open(body.program.as_str())
                .map_err(|e| Refusal::system("start that program", &e))?;
        }
        self.has_workers(&body)?;
        self.has_cores(body.cores())?;
        let place = Seat::Compartment(body.id);
        let kept = bodies::store(&body).map_err(|e| Refusal::system("keep a request", &e))?;
        self.keeper
            .keep(Key::Seat(place, SeatPart::Body), &making(), kept.as_fd());
        let seat = match SeatState::create(body.slots) {
            Ok(seat) => seat,
            Err(error) => {
                self.keeper.forget(&format!("compartment/{}/", body.id));
                return Err(Refusal::system("make a compartment's pages", &error));
            }
        };
        self.keeper.keep(
            Key::Seat(place, SeatPart::Counters),
            &Note::default(),
            seat.counters.as_fd(),
        );
        self.keeper.keep(
            Key::Seat(place, SeatPart::Recorder),
            &Note::default(),
            seat.recorder.as_fd(),
        );
        let cgroup = self.cgroup_for(&body, body.memory);
        let compartment = Compartment {
            body,
            created,
            seat,
            channel: None,
            quarantined: false,
            ports: BTreeMap::new(),
            cgroup,
            circuits: None,
        };
        self.compartments.insert(body.id, compartment);
        if body.core != u32::MAX {
            self.share_cores();
        }
        self.renew_channel(body.id);
        if self
            .compartments
            .get(&body.id)
            .is_none_or(|c| c.channel.is_none())
        {
            self.destroy_compartment(body.id);
            return Err(Refusal::new(
                ErrorCode::System,
                "no memory for the compartment's channel",
            ));
        }
        self.plug(body.id, End::Far);
        self.keeper
            .keep(Key::Seat(place, SeatPart::Body), &made(), kept.as_fd());
        self.waiting.insert(place);
        self.fill_seats();
        Ok(())
    }

    /// Removes a compartment and all that is in it. One that is not there is no error.
    pub fn destroy_compartment(&mut self, id: u32) {
        self.end_captures(id);
        let slots: Vec<u32> = self
            .compartments
            .get(&id)
            .map(|c| c.ports.keys().copied().collect())
            .unwrap_or_default();
        let seat = Seat::Compartment(id);
        self.waiting.remove(&seat);
        if let Some(worker) = self.compartments.get(&id).and_then(|c| c.seat.worker) {
            self.kill(worker, None);
        }
        for slot in slots {
            self.remove_port(id, slot, false);
        }
        let Some(compartment) = self.compartments.remove(&id) else {
            return;
        };
        self.unplug_from_fabric(id);
        if let Some(channel) = compartment.channel {
            self.channels.retire((id, 0), channel, self.now());
        }
        for install in compartment.seat.installs {
            self.refuse(
                install.seq,
                &Refusal::new(ErrorCode::NotFound, format!("{} was removed", label(seat))),
            );
        }
        let of_operators = compartment.circuits.and_then(|circuits| circuits.group);
        self.old_cgroups
            .extend(compartment.cgroup.into_iter().chain(of_operators));
        self.keeper.forget(&format!("compartment/{id}/"));
        self.disown(id);
        if compartment.body.core != u32::MAX {
            self.share_cores();
        }
    }

    fn inspect(&mut self, target: u32) -> Result<(Inspect, Vec<Shared>), Refusal> {
        let read_only = |fd: &Shared| {
            shm::read_only(&**fd)
                .map(Rc::new)
                .map_err(|e| Refusal::system("open a page for reading", &e))
        };
        if target == SUPERVISOR {
            let answer = Inspect {
                target,
                pid: std::process::id(),
                state: RUN_UP,
                ..Inspect::default()
            };
            return Ok((answer, vec![read_only(&self.recorder_page)?]));
        }
        let seat = self.named_seat(target)?;
        let now = self.now();
        let quarantined = match seat {
            Seat::Fabric => false,
            Seat::Compartment(id) => self.compartments.get(&id).is_some_and(|c| c.quarantined),
        };
        let state = self
            .seat(seat)
            .ok_or_else(|| Refusal::new(ErrorCode::NotFound, place_of(seat)))?;
        let worker = state.worker.and_then(|id| self.workers.get(&id));
        let image = state.image.as_ref();
        let answer = Inspect {
            target,
            pid: worker.map_or(0, |w| w.pid),
            state: state.run_state(now, quarantined),
            restarts: state.restarts,
            cause: state.cause,
            uid: worker.map_or(0, |w| w.uid),
            epoch: image.map_or(0, |i| i.epoch),
            outage_ns: state.outage,
            digest: image.map_or([0; 32], |i| i.digest),
            slots: state.slots,
            stages: worker.map_or(0, |w| w.stages),
            cpu_ns: worker.map_or(0, |w| processor_time(w.pid)),
            spent_ns: state.spent,
            memory: worker.map_or(0, |w| resident(w.pid)),
            ..self.inspect_operator(seat)
        };
        let operator = match seat {
            Seat::Compartment(id) => self.operators_page(id),
            Seat::Fabric => None,
        };
        let mut pages = vec![read_only(&state.counters)?, read_only(&state.recorder)?];
        if let Some(page) = operator {
            pages.push(read_only(&page)?);
        }
        Ok((answer, pages))
    }

    fn inventory(&self) -> Vec<Inventory> {
        let mut all = Vec::new();
        for (id, compartment) in &self.compartments {
            all.push(Inventory {
                kind: 1,
                id: *id,
                created: compartment.created,
                ..Inventory::default()
            });
            for (slot, port) in &compartment.ports {
                let endpoint = port.body.endpoint;
                // A port whose interface is gone is not what was asked for.
                let created = if port.is_interface() && port.closed != 0 {
                    [0; 32]
                } else {
                    port.created
                };
                all.push(Inventory {
                    kind: 2,
                    id: *id,
                    slot: *slot,
                    endpoint,
                    closed: port.closed,
                    quarantined: u32::from(port.quarantined),
                    created,
                    ..Inventory::default()
                });
            }
        }
        for (number, uplink) in &self.uplinks {
            let created = if uplink.closed {
                [0; 32]
            } else {
                uplink.created
            };
            all.push(Inventory {
                kind: 3,
                id: *number,
                slot: uplink.body.slot,
                created,
                how: Name::new(&uplink.how).unwrap_or_default(),
                ..Inventory::default()
            });
        }
        all
    }

    /// Lifts a quarantine, and the wait before the next start: of one slot, of the
    /// compartment and all its slots, or of the fabric and all channels that killed it.
    fn release(&mut self, body: Release) -> Result<(), Refusal> {
        if body.target != FABRIC {
            return self.release_compartment(body.target, body.slot);
        }
        if body.slot != u32::MAX {
            return self.release_compartment(body.slot, u32::MAX);
        }
        self.start_again = 0;
        self.release_seat(Seat::Fabric);
        let unplugged = self.compartments.iter().filter(|(_, c)| c.quarantined);
        for id in unplugged.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.plug_in_again(id);
        }
        Ok(())
    }

    fn release_compartment(&mut self, id: u32, slot: u32) -> Result<(), Refusal> {
        let seat = self.named_seat(id)?;
        let one_port = (slot != u32::MAX && slot != 0).then_some(slot);
        let ports = self.compartments.get(&id).map(|c| &c.ports);
        if let (Some(one), Some(ports)) = (one_port, ports)
            && !ports.contains_key(&one)
        {
            return Err(Refusal::new(
                ErrorCode::NotFound,
                format!("compartment {id} has no port {one}"),
            ));
        }
        let slots: Vec<u32> = ports
            .into_iter()
            .flatten()
            .filter(|(slot, port)| port.quarantined && one_port.is_none_or(|one| one == **slot))
            .map(|(slot, _)| *slot)
            .collect();
        self.release_seat(seat);
        if one_port.is_none() && self.compartments.get(&id).is_some_and(|c| c.quarantined) {
            self.plug_in_again(id);
        }
        for slot in slots {
            let Some(compartment) = self.compartments.get_mut(&id) else {
                break;
            };
            compartment.seat.blame.forgive(slot);
            let worker = compartment.seat.worker;
            let Some(port) = compartment.ports.get_mut(&slot) else {
                continue;
            };
            port.quarantined = false;
            let plug = port.plug();
            if let (Some(worker), Some((body, fds))) = (worker, plug) {
                self.tell(worker, &Message::new(0, &body), fds);
            }
            self.note_port(id, slot);
            self.happened(Happened::new(EventKind::PortAdded, Subject::Seat(seat)).slot(slot));
        }
        Ok(())
    }

    /// The next start waits for nothing any more.
    fn release_seat(&mut self, seat: Seat) {
        if let Some(state) = self.seat_mut(seat) {
            state.backoff.reset();
            state.due = 0;
        }
    }

    /// A compartment whose channel killed the fabric is given another one.
    fn plug_in_again(&mut self, id: u32) {
        if let Some(compartment) = self.compartments.get_mut(&id) {
            compartment.quarantined = false;
        }
        self.fabric.blame.forgive(id);
        self.replace_channel(id);
        let seat = Subject::Seat(Seat::Compartment(id));
        self.happened(Happened::new(EventKind::PortAdded, seat));
    }
}
