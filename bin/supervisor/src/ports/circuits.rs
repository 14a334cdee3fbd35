//! Circuits: endpoints without packets. What their programs do with sockets is mediated by
//! one operator a compartment, which holds nothing that its successor would lack: the page in
//! which it notes sockets, the network namespace in which it makes them, its uid, and where
//! programs' calls come are kept here.

use super::hunts::Hunt;
use super::meters::Meter;
use super::operators::Owed;
use super::*;
use crate::registry::SeatPart;
use crate::role::{Purpose, Role};
use crate::seats::Image;
use crate::watch::{Backoff, Blame, Death, Standing};
use command::verbs::{
    CAUSE_REPORT, CREATE_CIRCUITS, OTHERS, Operate, PORT_CIRCUITS, Program, ProgramGone, UseImage,
};
use confine::Cgroup;
use seqpacket::{MAX_FDS, Socket};
use shm::PeerWords;
use std::collections::BTreeMap;

/// Datagrams that wait at one socket: Linux's own are so few (10) that any burst is lost, and a
/// UDP socket's buffer takes some hundreds of small ones.
const DATAGRAMS: u32 = 512;
/// After an operator's death, or its spare's, no spare is made for so long, ns: it would take a
/// processor from who answers the calls that waited.
const SPARE_PAUSE: u64 = 200_000_000;

/// Whether an endpoint is to have programs with circuits.
pub fn has_circuits(body: &CreatePort) -> bool {
    body.kind == ENDPOINT_CIRCUITS || body.flags & CREATE_CIRCUITS != 0
}

/// Connections that are accepted and in no program yet, of a compartment: more than may be.
const ACCEPTED: usize = 2048;
/// Where they are: a socket for the tenant's own, the others for those of agreements. With the page
/// they go in one message.
const ROOMS: usize = MAX_FDS - 1;

/// Who follows the operator: confined, or about to be, and told nothing.
#[derive(Clone, Copy, Default)]
struct Spare {
    worker: Option<u64>,
    is_ready: bool,
    /// When one is started, ns.
    due: u64,
}

/// A process that a compartment lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nobody,
    Operator,
    Spare,
}

/// A compartment's circuits.
pub struct Circuits {
    /// Who mediates them.
    pub(super) operator: Option<u64>,
    /// It is confined, and may be told.
    pub(super) is_ready: bool,
    /// When one is started, ns.
    pub(super) due: u64,
    spare: Spare,
    /// When the last one was, ns.
    pub(super) started: u64,
    pub(super) backoff: Backoff,
    /// What the watch saw of it.
    pub(super) standing: Standing,
    /// Programs whose calls operators stood still over.
    pub(super) blame: Blame,
    /// Operators that came after another, since creation.
    pub restarts: u32,
    /// Those of them that came after one that stood still.
    pub stalls: u32,
    /// Programs that nobody answers any more.
    pub given_up: u32,
    /// Sockets that its operator looks for.
    pub(super) hunt: Option<Box<Hunt>>,
    /// Changes of tables that wait for the operator.
    pub(super) owed: Vec<Owed>,
    /// Every operator's here: owner of the programs' user namespaces.
    uid: u32,
    /// What bounds the processes of all of them, where the host has groups.
    pub group: Option<Cgroup>,
    page: Shared,
    /// The same, as allegations to read.
    pub(super) words: Option<PeerWords>,
    network: Shared,
    /// What its operator accepted and has put into no program yet is under way in these; none before
    /// there was an operator.
    rooms: Vec<Shared>,
    /// Where programs' calls come, by number, with their slot.
    pub(super) programs: BTreeMap<u32, (u32, Shared)>,
    /// Its meter, where one is wanted.
    pub(super) meter: Option<Meter>,
}

impl Circuits {
    fn new(uid: u32, page: OwnedFd, network: OwnedFd) -> Circuits {
        Circuits {
            operator: None,
            is_ready: false,
            due: 0,
            spare: Spare::default(),
            started: 0,
            backoff: Backoff::default(),
            standing: Standing::default(),
            blame: Blame::default(),
            restarts: 0,
            stalls: 0,
            given_up: 0,
            hunt: None,
            owed: Vec::new(),
            uid,
            group: None,
            words: PeerWords::map(&page).ok(),
            page: Rc::new(page),
            network: Rc::new(network),
            rooms: Vec::new(),
            programs: BTreeMap::new(),
            meter: None,
        }
    }

    /// Whom it lacks at this time, as long as an endpoint has circuits.
    fn wants(&self, now: u64) -> Wants {
        match self.operator {
            None if self.due <= now => Wants::Operator,
            Some(_)
                if self.is_ready
                    && self.spare.worker.is_none()
                    && self.spare.due <= now
                    // Nobody waits for it where nobody calls.
                    && !self.programs.is_empty() =>
            {
                Wants::Spare
            }
            _ => Wants::Nobody,
        }
    }

    /// The page, and what is noted with it.
    pub(super) fn noted(&self) -> (Shared, Note) {
        let wanted = u64::from(self.meter.is_some());
        let note = Note::default()
            .with("uid", self.uid)
            .with(Meter::WORD, wanted);
        (Rc::clone(&self.page), note)
    }

    /// Every operator's, one after another.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Those of before.
    pub fn adopted((page, note): (OwnedFd, Note), network: OwnedFd) -> Circuits {
        let mut circuits = Circuits::new(note.number("uid") as u32, page, network);
        circuits.meter = (note.number(Meter::WORD) != 0).then(Meter::default);
        circuits
    }
}

impl Supervisor {
    /// What all operators of a compartment have in common.
    pub(super) fn prepare_circuits(&mut self, compartment: u32) -> Result<(), Refusal> {
        let has = |home: &crate::seats::Compartment| home.circuits.is_some();
        if self.compartments.get(&compartment).is_some_and(has) {
            return Ok(());
        }
        let page = shm::sparse_file("bulkhead-circuits", telemetry::operator::BYTES)
            .map_err(|error| Refusal::system("make the circuits' page", &error))?;
        let network = namespace::create().map_err(|error| refuse_namespace(&error))?;
        let raised = namespace::within(network.as_fd(), || {
            std::fs::write("/proc/sys/net/unix/max_dgram_qlen", DATAGRAMS.to_string())
        });
        // As in a container whose sysctls are read-only: streams have no need of it.
        if let Err(error) = raised.map_err(|error| refuse_namespace(&error))? {
            confine::say!(
                "supervisor: weaker here: no more than the kernel's 10 datagrams wait at a socket of circuits ({error}): bursts of UDP are lost"
            );
        }
        let uid = self
            .uids
            .take()
            .ok_or_else(|| Refusal::new(ErrorCode::Limit, "no uid is left for an operator"))?;
        if let Err(error) = self.owners.begins(uid) {
            self.uids.release(uid);
            return Err(Refusal::system("note an operator's uid", &error));
        }
        let key = |part| Key::Seat(Seat::Compartment(compartment), part);
        let note = Note::default().with("uid", uid);
        self.keeper
            .keep(key(SeatPart::Circuits), &note, page.as_fd());
        self.keeper
            .keep(key(SeatPart::Network), &Note::default(), network.as_fd());
        let mut circuits = Box::new(Circuits::new(uid, page, network));
        circuits.group = self.operators_group(compartment, uid);
        if let Some(home) = self.compartments.get_mut(&compartment) {
            home.circuits = Some(circuits);
        }
        self.share_programs();
        Ok(())
    }

    pub(super) fn circuits(&mut self, compartment: u32) -> Option<&mut Circuits> {
        let home = self.compartments.get_mut(&compartment)?;
        home.circuits.as_deref_mut()
    }

    /// The uid and network namespace of a compartment's operator.
    pub fn network_of(&self, compartment: u32) -> Option<(u32, Shared)> {
        let circuits = self.compartments.get(&compartment)?.circuits.as_ref()?;
        Some((circuits.uid, Rc::clone(&circuits.network)))
    }

    /// Who mediates the circuits of this slot's endpoint, if it has circuits.
    pub fn operator_of(&self, compartment: u32, slot: u32) -> Option<u64> {
        let home = self.compartments.get(&compartment)?;
        home.ports.get(&slot).filter(|port| port.is_circuits())?;
        self.operator_in(compartment)
    }

    /// What a compartment's operators note, and tell of what they decide.
    pub fn operators_page(&self, compartment: u32) -> Option<Shared> {
        let circuits = self.compartments.get(&compartment)?.circuits.as_ref()?;
        Some(Rc::clone(&circuits.page))
    }

    /// Whether programs of this slot's endpoint, or of any, have circuits.
    pub fn has_circuits(&self, compartment: u32, slot: u32) -> bool {
        let Some(home) = self.compartments.get(&compartment) else {
            return false;
        };
        match slot {
            u32::MAX => home.ports.values().any(Port::is_circuits),
            slot => home.ports.get(&slot).is_some_and(Port::is_circuits),
        }
    }

    /// Who mediates the circuits of this compartment.
    pub fn operator_in(&self, compartment: u32) -> Option<u64> {
        let circuits = self.compartments.get(&compartment)?.circuits.as_ref()?;
        circuits.operator.filter(|_| circuits.is_ready)
    }

    /// Whether a process of ours lives, or stands still, that has this uid.
    pub fn has_worker_of(&self, uid: u32) -> bool {
        self.workers.values().any(|worker| worker.uid == uid)
    }

    /// Whether this uid is one that operators have after each other.
    pub fn is_operators(&self, uid: u32) -> bool {
        let circuits = self
            .compartments
            .values()
            .filter_map(|c| c.circuits.as_ref());
        circuits.into_iter().any(|c| c.uid == uid)
    }

    /// Starts an operator for a compartment that has circuits and none, and one to follow it where
    /// there are programs; whether there was anything to start.
    pub fn start_operator(&mut self, now: u64) -> bool {
        let of = |(id, home): (&u32, &crate::seats::Compartment)| {
            let circuits = home.circuits.as_ref()?;
            let wanted = home.ports.values().any(Port::is_circuits)
                && !self.errands.is_full(Whose::Uid(circuits.uid))
                && !self.is_held_up(*id);
            wanted.then(|| (*id, circuits.wants(now)))
        };
        let all = || self.compartments.iter().filter_map(of);
        let with = |wish| all().find(|(_, wants)| *wants == wish);
        let Some((compartment, wants)) = with(Wants::Operator).or_else(|| with(Wants::Spare))
        else {
            return false;
        };
        if wants == Wants::Operator && self.follow(compartment) {
            return true;
        }
        let (role, profile) = (Role::Operator, Role::Operator.profile());
        let purpose = Purpose::Circuits(compartment);
        let started = self.start_worker(role, profile, "bulkhead-operator", purpose);
        let Some(circuits) = self.circuits(compartment) else {
            return true;
        };
        if wants == Wants::Spare {
            circuits.spare = Spare {
                worker: started,
                is_ready: false,
                due: now + SPARE_PAUSE,
            };
            return true;
        }
        circuits.operator = started;
        circuits.started = now;
        if started.is_none() {
            circuits.due = now + circuits.backoff.died(Death::Breakout, 0);
        }
        true
    }

    /// The spare is the operator from now on, if there is one, and none before it is due; whether
    /// that is so.
    pub(super) fn follow(&mut self, compartment: u32) -> bool {
        let now = self.now();
        let Some(circuits) = self.circuits(compartment) else {
            return false;
        };
        let spare = circuits.spare;
        let (Wants::Operator, Some(id)) = (circuits.wants(now), spare.worker) else {
            return false;
        };
        circuits.spare = Spare {
            due: now + SPARE_PAUSE,
            ..Spare::default()
        };
        circuits.operator = Some(id);
        circuits.started = now;
        if spare.is_ready {
            self.operator_ready(id, compartment);
        }
        true
    }

    /// When to look whether an operator is to be started, ns. One that has come to be due
    /// since that was looked at last is due soon: nothing else would wake this process for it.
    pub fn next_operator(&self, now: u64) -> Option<u64> {
        const SOON: u64 = 1_000_000;
        let homes = self.compartments.iter();
        let circuits = homes
            .filter(|(id, home)| {
                home.ports.values().any(Port::is_circuits) && !self.is_held_up(**id)
            })
            .filter_map(|(_, home)| home.circuits.as_ref());
        let circuits = circuits.filter(|c| !self.errands.is_full(Whose::Uid(c.uid)));
        let due = circuits.filter_map(|c| match c.wants(u64::MAX) {
            Wants::Operator => Some(c.due),
            Wants::Spare => Some(c.spare.due),
            Wants::Nobody => None,
        });
        due.map(|due| due.max(now.saturating_add(SOON))).min()
    }

    /// An operator is confined and waits: it is told all that the one before knew.
    pub fn operator_ready(&mut self, id: u64, compartment: u32) {
        let circuits = self.circuits(compartment);
        let circuits = match circuits {
            Some(circuits) if circuits.spare.worker == Some(id) => {
                circuits.spare.is_ready = true;
                return;
            }
            Some(circuits) if circuits.operator == Some(id) => circuits,
            _ => return self.kill(id, None),
        };
        circuits.is_ready = true;
        let operate = Operate {
            uid: circuits.uid,
            reserved: 0,
        };
        let parts = vec![Rc::clone(&circuits.page)];
        let programs: Vec<(Message, Shared)> = circuits
            .programs
            .iter()
            .map(|(&number, (slot, fd))| {
                let body = Program {
                    slot: *slot,
                    number,
                    port: 0,
                };
                (Message::new(0, &body), Rc::clone(fd))
            })
            .collect();
        let image = self
            .compartments
            .get(&compartment)
            .and_then(|home| home.seat.image.clone());
        if let Some(image) = image {
            self.tell(id, &use_image(&image), vec![image.fd]);
        }
        let rooms = self.rooms(compartment);
        let parts = parts.into_iter().chain(rooms).collect();
        self.tell(id, &Message::new(0, &operate), parts);
        self.tell_of_limit(id);
        self.tell_of_captures(id, compartment);
        let slots: Vec<u32> = self
            .compartments
            .get(&compartment)
            .map(|home| home.ports.keys().copied().collect())
            .unwrap_or_default();
        for slot in slots {
            self.plug_circuits(compartment, slot);
        }
        // What is to be cut may go by it.
        self.link_meter(compartment);
        // The one before may not have been told that some have gone. Before programs, whose calls may hold
        // this one up: rules are in force by then.
        self.tell(
            id,
            &Message::new(0, &RemovePort { slot: OTHERS }),
            Vec::new(),
        );
        self.link_crossings(compartment);
        for (message, fd) in programs {
            self.tell(id, &message, vec![fd]);
        }
        let others = ProgramGone {
            number: OTHERS,
            reserved: 0,
        };
        self.tell(id, &Message::new(0, &others), Vec::new());
        self.note_place(id, &format!("circuits-{compartment}"));
        self.watch_now();
    }

    /// Where its operator's accepted connections outlive it; none where those cannot be made. The keeper
    /// has each by itself: as long as one is in a message under way, the kernel looks for what nobody can
    /// reach whenever anybody on the host closes a socket of AF_UNIX.
    fn rooms(&mut self, compartment: u32) -> Vec<Shared> {
        let Some(circuits) = self.circuits(compartment) else {
            return Vec::new();
        };
        let (network, mut rooms) = (Rc::clone(&circuits.network), circuits.rooms.clone());
        // A supervisor before us may have died with some of them made, and nobody told.
        let missing = namespace::within(network.as_fd(), || {
            let all: Result<Vec<Socket>, _> =
                (rooms.len()..ROOMS).map(|_| Socket::to_itself()).collect();
            all
        });
        let Ok(Ok(missing)) = missing else {
            return Vec::new();
        };
        for (room, number) in missing.into_iter().zip(rooms.len() as u8..) {
            // Without privilege it has less, and what came by an agreement beyond that dies with an operator.
            let _ = room.make_room(ACCEPTED);
            let room = Rc::new(room.into_fd());
            let key = Key::Room(compartment, number);
            self.keeper.keep(key, &Note::default(), room.as_fd());
            rooms.push(room);
        }
        if let Some(circuits) = self.circuits(compartment) {
            circuits.rooms.clone_from(&rooms);
        }
        rooms
    }

    /// A room of before; they come in order.
    pub fn adopt_room(&mut self, compartment: u32, number: u8, fd: OwnedFd) {
        match self.circuits(compartment) {
            Some(circuits) if circuits.rooms.len() == usize::from(number) => {
                circuits.rooms.push(Rc::new(fd));
            }
            _ => {
                self.errands
                    .part_unseen(Whose::Ports(compartment), fd.as_fd());
                self.keeper.forget_one(Key::Room(compartment, number));
            }
        }
    }

    /// Tells an operator of an endpoint, if both are there.
    pub(super) fn plug_circuits(&mut self, compartment: u32, slot: u32) {
        let Some(home) = self.compartments.get(&compartment) else {
            return;
        };
        let operator = home.circuits.as_ref().filter(|c| c.is_ready);
        let (Some(operator), Some(port)) =
            (operator.and_then(|c| c.operator), home.ports.get(&slot))
        else {
            return;
        };
        if let Some(Announced {
            listener, runtimes, ..
        }) = &port.circuits
        {
            let body = AddPort {
                slot,
                kind: PORT_CIRCUITS,
                capacity: port.body.pairs,
                max_record: port.body.max_record,
                mtu: port.body.mtu,
                ..AddPort::default()
            };
            let fds = [listener].into_iter().chain(runtimes).map(Rc::clone);
            let fds = fds.collect();
            self.tell(operator, &Message::new(0, &body), fds);
            self.link_proxy((compartment, slot));
        }
    }

    /// The compartment has another image: its operator decides by it from now on.
    pub fn image_for_operator(&mut self, seat: Seat, image: &Image) {
        let Seat::Compartment(compartment) = seat else {
            return;
        };
        let ready = self.circuits(compartment).filter(|c| c.is_ready);
        if let Some(operator) = ready.and_then(|c| c.operator) {
            self.tell(operator, &use_image(image), vec![Rc::clone(&image.fd)]);
        }
    }

    /// An operator is dead. The next one comes at once, unless this one did not live long.
    /// One that did what an honest one does not is not followed by the next at once.
    pub fn operator_lost(&mut self, id: u64, compartment: u32, killed: Option<u32>) {
        let now = self.now();
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        if circuits.spare.worker == Some(id) {
            circuits.spare = Spare {
                due: now + SPARE_PAUSE,
                ..Spare::default()
            };
        }
        if circuits.operator == Some(id) {
            circuits.operator = None;
            circuits.is_ready = false;
            circuits.hunt = None;
            circuits.restarts += 1;
            let lived = now.saturating_sub(circuits.started);
            let death = match killed {
                Some(CAUSE_REPORT) => Death::Breakout,
                _ => Death::Fault,
            };
            circuits.due = now + circuits.backoff.died(death, lived);
            self.follow(compartment);
        }
    }

    /// An operator of before goes on; whether there is such a place.
    pub fn adopt_operator(&mut self, id: u64, compartment: u32) -> bool {
        match self.circuits(compartment) {
            Some(circuits) if circuits.operator.is_none() => {
                circuits.operator = Some(id);
                circuits.is_ready = true;
                true
            }
            _ => false,
        }
    }

    /// An endpoint of circuits goes: what its programs ask from now on is answered by nobody,
    /// and so refused by the kernel. With the last one its operator ends.
    pub(super) fn end_circuits(&mut self, compartment: u32, slot: u32) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let its = circuits.programs.iter().filter(|(_, (of, _))| *of == slot);
        let gone: Vec<u32> = its.map(|(number, _)| *number).collect();
        for number in &gone {
            circuits.programs.remove(number);
        }
        let (operator, spare) = (circuits.operator, circuits.spare.worker);
        self.leaves_programs(compartment, slot, gone.len());
        for number in gone {
            self.keeper.forget_one(Key::Program(compartment, number));
        }
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return;
        };
        if home.ports.values().any(Port::is_circuits) {
            if let Some(operator) = operator {
                self.tell(operator, &Message::new(0, &RemovePort { slot }), Vec::new());
            }
            return;
        }
        let mut circuits = home.circuits.take();
        let meter = circuits.as_mut().and_then(|circuits| circuits.meter.take());
        let uid = circuits.as_ref().map(|circuits| circuits.uid);
        let group = circuits.as_mut().and_then(|circuits| circuits.group.take());
        self.old_cgroups.extend(group);
        let rooms = circuits.iter_mut().flat_map(|it| it.rooms.drain(..));
        for (number, room) in (0..).zip(rooms) {
            // It has descriptors, and its operators may say where looks begin.
            self.errands
                .part_unseen(Whose::Uid(uid.unwrap_or(0)), room.as_fd());
            self.keeper.forget_one(Key::Room(compartment, number));
        }
        self.end_meter(meter);
        self.end_crossings(compartment);
        for process in operator.into_iter().chain(spare) {
            self.kill(process, None);
        }
        // From now on nobody makes another.
        if let Some(circuits) = circuits.as_deref().filter(|_| guard!("circuits-removed")) {
            self.errands
                .end_circuits(circuits.uid, circuits.network.as_fd());
        }
        // Last: who follows a supervisor that died before ends them in its place.
        for part in [SeatPart::Circuits, SeatPart::Network] {
            let key = Key::Seat(Seat::Compartment(compartment), part);
            self.keeper.forget_one(key);
        }
        // Once all that have it are dead it is free.
        if let Some(uid) = uid {
            self.release_uid(uid);
        }
        self.share_programs();
        // What a change would have cut is ended with the rest.
        for owed in circuits.into_iter().flat_map(|circuits| circuits.owed) {
            self.done(owed.seq());
        }
    }
}

impl Supervisor {
    /// They go on to run, and all that they ask for fails from now on.
    fn leaves_programs(&mut self, compartment: u32, slot: u32, count: usize) {
        if count > 0 && guard!("circuits-left-told") {
            let seat = Subject::Seat(Seat::Compartment(compartment));
            let happened = Happened::new(EventKind::ProgramsLeft, seat).slot(slot);
            self.happened(happened.value(count as u64));
        }
    }
}

impl Port {
    /// Whether its programs' sockets are circuits.
    pub fn is_circuits(&self) -> bool {
        self.circuits.is_some()
    }
}

fn use_image(image: &Image) -> Message {
    let body = UseImage {
        epoch: image.epoch,
        digest: image.digest,
    };
    Message::new(0, &body)
}

/// A compartment from its word.
pub fn place_of(word: &str) -> Option<u32> {
    word.strip_prefix("circuits-")?.parse().ok()
}
