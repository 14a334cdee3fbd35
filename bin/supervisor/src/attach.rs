//! A process takes a seat, loses it, and the channels between seats.

use crate::channels::{End, each_part};
use crate::events::{Happened, Subject};
use crate::link::Shared;
use crate::registry::{Key, Note, Seat, SeatPart};
use crate::seats::{FABRIC_SLOTS, label};
use crate::supervisor::Supervisor;
use crate::watch::{CHANNEL_DEATHS, ENDPOINT_DEATHS, Ending, How, ending, restart_wait};
use crate::workers::Place;
use command::Message;
use command::message::MAX_FDS;
use command::verbs::{
    AddPort, Attach, CAUSE_REPORT, PORT_PACKET, PORT_XDP, RemovePort, START_FAULT, UseImage,
    WAIT_ADAPTIVE,
};
use guard::guard;
use port::Features;
use shm::Geometry;
use std::rc::Rc;
use telemetry::counters::ProcessWord;
use telemetry::recorder::EventKind;

/// MTU that a channel between switch and fabric carries: jumbo frames fit; the
/// image says what each route may use.
const CHANNEL_MTU: u32 = 9000;
/// After a restart no spare is made for so long, ns.
const REFILL_PAUSE: u64 = 20_000_000;
/// The fabric spins this long after its last work, microseconds.
const FABRIC_SPIN: u32 = 5;

impl Supervisor {
    /// Gives a confined, waiting process its seat: pages, ports, image. All of it was
    /// made before; nothing here waits for anyone.
    pub fn attach(&mut self, id: u64, seat: Seat) {
        let Some(attach) = self.attach_body(seat) else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.place = Place::Seated(seat);
        }
        // If we die before the second note, a supervisor after us ends this process:
        // it may have heard half.
        self.note_place(id, "attaching");
        let now = self.now();
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        state.worker = Some(id);
        state.attached = now;
        // Over when a frame has been forwarded, not when somebody was told to.
        state.outage = 0;
        state.awaits_frame = state.died != 0;
        state.progress = Default::default();
        state.stuck = None;
        state.has_refused = false;
        state.is_pinned = false;
        let (restarts, seated) = (state.restarts, now.saturating_sub(state.died));
        let mut pages = vec![Rc::clone(&state.counters), Rc::clone(&state.recorder)];
        pages.extend(self.journal(seat));
        self.allow_threads(id, attach.workers);
        if let Seat::Compartment(compartment) = seat {
            // Before it may start threads: they inherit it.
            self.pin(id, compartment);
        }
        self.tell(id, &Message::new(0, &attach), pages);
        for (body, fds) in self.ports_of(seat) {
            self.tell(id, &Message::new(0, &body), fds);
        }
        if let Seat::Compartment(compartment) = seat {
            self.link_helpers(compartment);
        }
        self.tell_image(id, seat);
        self.note_place(id, &place_of(seat));
        if let Seat::Compartment(compartment) = seat {
            self.unlimited.push((id, compartment, now));
        }
        if restarts > 0 {
            // The processor belongs to the successor first.
            self.refill_after = now + REFILL_PAUSE;
            let attached = Happened::new(EventKind::Attached, Subject::Seat(seat)).value(seated);
            self.happened(attached.at(now));
        }
        self.watch_now();
    }

    /// Ends the outage of a seat whose successor says that it has forwarded a frame. Its
    /// word alone: a time before it was seated or yet to come is not believed.
    pub fn look_for_first_frame(&mut self, seat: Seat) {
        let now = self.now();
        let Some(state) = self.seat_mut(seat).filter(|state| state.awaits_frame) else {
            return;
        };
        let (said, Some(id)) = (state.word(ProcessWord::FirstFrame), state.worker) else {
            return;
        };
        if said < state.attached && guard!("first-frame-of-before") || said == 0 {
            return;
        }
        let first = said.min(now);
        state.awaits_frame = false;
        state.outage = first.saturating_sub(state.died).max(1);
        let outage = state.outage;
        self.note_place(id, &place_of(seat));
        let restarted = Happened::new(EventKind::Restarted, Subject::Seat(seat)).value(outage);
        self.happened(restarted.at(first));
    }

    fn attach_body(&mut self, seat: Seat) -> Option<Attach> {
        let workers = self.workers_of(seat);
        let (wait, wait_us, core) = match seat {
            Seat::Fabric => (WAIT_ADAPTIVE, FABRIC_SPIN, u32::MAX),
            Seat::Compartment(id) => self
                .compartments
                .get(&id)
                .map(|c| (c.body.wait, c.body.wait_us, c.body.core))?,
        };
        let state = self.seat_mut(seat)?;
        let mut seed = [0; 16];
        // The kernel's random source; it does not fail for 16 bytes once it is seeded.
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        Some(Attach {
            compartment: match seat {
                Seat::Fabric => 0,
                Seat::Compartment(id) => id,
            },
            slots: state.slots,
            wait,
            wait_us,
            shared_cores: u32::from(core == u32::MAX),
            start: state.start,
            seed,
            suspect: state.suspect,
            workers,
        })
    }

    /// Every port that the process in this seat is to have.
    fn ports_of(&mut self, seat: Seat) -> Vec<(AddPort, Vec<Shared>)> {
        match seat {
            Seat::Fabric => {
                let mut ports = Vec::new();
                let ids: Vec<u32> = self.compartments.keys().copied().collect();
                for id in ids {
                    ports.extend(self.channel_port(id, End::Far));
                }
                ports.extend(
                    self.uplinks
                        .values()
                        .filter(|uplink| !uplink.closed)
                        .flat_map(uplink_ports),
                );
                ports
            }
            Seat::Compartment(id) => {
                let mut ports: Vec<_> = self.channel_port(id, End::Switch).into_iter().collect();
                if let Some(compartment) = self.compartments.get_mut(&id) {
                    ports.extend(
                        compartment
                            .ports
                            .values_mut()
                            .filter_map(|port| port.plug()),
                    );
                }
                ports
            }
        }
    }

    /// One end of the channel between a compartment and the fabric. Where nobody is
    /// alive at the other end and this end is not fresh, the channel is replaced: two
    /// successors would wait for each other.
    fn channel_port(&mut self, id: u32, end: End) -> Option<(AddPort, Vec<Shared>)> {
        let fabric_lives = self.fabric.worker.is_some();
        let compartment = self.compartments.get(&id)?;
        if end == End::Far && compartment.quarantined {
            return None;
        }
        let other_lives = match end {
            End::Switch => fabric_lives && !compartment.quarantined,
            End::Far => compartment.seat.worker.is_some(),
        };
        let stale = compartment
            .channel
            .as_ref()
            .is_none_or(|channel| channel.was_handed(end) && !other_lives);
        if stale {
            self.renew_channel(id);
            if other_lives {
                // There was no channel at all: the other end waits for one as well.
                self.plug(id, end.other());
            }
        }
        let slot = match end {
            End::Switch => 0,
            End::Far => id,
        };
        let channel = self.compartments.get_mut(&id)?.channel.as_mut()?;
        match channel.hand(end, slot, CHANNEL_MTU, u32::from(Features::ALL.bits())) {
            Ok(port) => Some(port),
            Err(error) => {
                confine::say!(
                    "supervisor: the channel of {} cannot be handed out: {error}",
                    label(Seat::Compartment(id))
                );
                None
            }
        }
    }

    /// A channel that nobody has mapped, in place of the compartment's present one.
    pub fn renew_channel(&mut self, id: u32) {
        let now = self.now();
        let Some(compartment) = self.compartments.get_mut(&id) else {
            return;
        };
        let geometry = Geometry::records(
            compartment.body.capacity as usize,
            compartment.body.max_record as usize,
        );
        let made = geometry
            .map_err(|e| e.to_string())
            .and_then(|g| self.channels.take(g).map_err(|e| e.to_string()));
        let old = match made {
            Ok(channel) => {
                let note = Note::default().with("pair", channel.serial());
                let keeper = &mut self.keeper;
                each_part(&channel, |n, part| {
                    keeper.keep(
                        Key::Seat(Seat::Compartment(id), SeatPart::Channel(n)),
                        &note,
                        part,
                    );
                });
                compartment.channel.replace(channel)
            }
            Err(error) => {
                confine::say!(
                    "supervisor: no channel for {}: {error}",
                    label(Seat::Compartment(id))
                );
                compartment.channel.take()
            }
        };
        if let Some(old) = old {
            self.channels.retire((id, 0), old, now);
        }
    }

    /// Replaces the channel between a compartment and the fabric, because one of them
    /// asks for it. Who asks without end is taken over: a switch that does not echo
    /// makes an honest fabric ask.
    pub fn want_replacement(&mut self, id: u32) {
        let now = self.now();
        let Some(compartment) = self.compartments.get_mut(&id) else {
            return;
        };
        if compartment.seat.replaced.spend(now).is_ok() || !guard!("channel-replacements") {
            return self.replace_channel(id);
        }
        confine::say!(
            "supervisor: {} wants new channels too often; it is killed",
            label(Seat::Compartment(id))
        );
        self.give_up_channel(id);
    }

    /// The process in a compartment broke its channel's protocol: it is killed, and its
    /// successor has another channel.
    pub fn give_up_channel(&mut self, id: u32) {
        let now = self.now();
        let Some(compartment) = self.compartments.get_mut(&id) else {
            return;
        };
        let old = compartment.channel.take();
        let worker = compartment.seat.worker;
        if let Some(old) = old {
            self.channels.retire((id, 0), old, now);
        }
        if let Some(worker) = worker {
            self.kill(worker, Some(CAUSE_REPORT));
        }
    }

    /// Replaces the channel between a compartment and the fabric, at both ends that
    /// are alive.
    pub fn replace_channel(&mut self, id: u32) {
        self.renew_channel(id);
        self.plug(id, End::Switch);
        self.plug(id, End::Far);
    }

    /// Plugs one end of the compartment's channel into the process that is there, in
    /// place of what it had.
    pub fn plug(&mut self, id: u32, end: End) {
        let (worker, slot) = match end {
            End::Switch => (self.compartments.get(&id).and_then(|c| c.seat.worker), 0),
            End::Far => (self.fabric.worker, id),
        };
        let Some(worker) = worker else { return };
        self.tell(worker, &Message::new(0, &RemovePort { slot }), Vec::new());
        if let Some((body, fds)) = self.channel_port(id, end) {
            self.tell(worker, &Message::new(0, &body), fds);
        }
    }

    /// Unplugs a slot of the fabric that runs.
    pub fn unplug_from_fabric(&mut self, slot: u32) {
        if let Some(fabric) = self.fabric.worker {
            self.tell(fabric, &Message::new(0, &RemovePort { slot }), Vec::new());
        }
    }

    fn tell_image(&mut self, id: u64, seat: Seat) {
        let now = self.now();
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        let mut images: Vec<_> = state.image.iter().cloned().collect();
        if let Some(install) = state.installs.front_mut() {
            install.sent = Some(now);
            install.attempts += 1;
            images.push(install.image.clone());
        }
        for image in images {
            let body = UseImage {
                epoch: image.epoch,
                digest: image.digest,
            };
            self.tell(id, &Message::new(0, &body), vec![image.fd]);
        }
    }

    /// The process in a seat died: the next one, at once where that is allowed.
    pub fn seat_lost(&mut self, seat: Seat, id: u64, killed: Option<u32>, how: How) {
        let now = self.now();
        let Ending {
            cause,
            death,
            start,
            blames,
        } = ending(killed, how);
        let mut host = self.limit;
        let workers = self.workers_of(seat);
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        if state.worker != Some(id) {
            return;
        }
        let limit = restart_wait(&mut host, &mut state.limit, seat == Seat::Fabric, now);
        state.worker = None;
        state.restarts += 1;
        state.cause = cause;
        state.died = now;
        state.start = start;
        let is_clean = start == START_FAULT;
        let wait = state
            .backoff
            .died(death, now.saturating_sub(state.attached));
        state.due = now + wait.max(limit);
        // An allegation, which can only blame a port of its own.
        let slot = state.worked_on(workers).filter(|_| blames);
        state.suspect = slot.map_or(0, |slot| slot + 1);
        self.limit = host;
        if !is_clean {
            self.distrust(seat);
        }
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        let deaths = if seat == Seat::Fabric {
            CHANNEL_DEATHS
        } else {
            ENDPOINT_DEATHS
        };
        let guilty = slot.filter(|slot| state.blame.died(now, *slot, deaths));
        if let Some(install) = state.installs.front_mut() {
            install.sent = None;
        }
        if let Some(slot) = guilty {
            self.quarantine(seat, slot);
        }
        let died = Happened::new(EventKind::Died, Subject::Seat(seat))
            .cause(cause)
            .slot(slot.unwrap_or(0));
        self.happened(died.at(now));
        self.fail_hopeless_installs(seat);
        if let Seat::Compartment(id) = seat {
            self.end_captures(id);
        }
        self.waiting.insert(seat);
        self.fill_seats();
        confine::say!(
            "supervisor: the process of {} died ({how:?}, cause {cause})",
            label(seat)
        );
    }

    /// Unplugs what kills.
    fn quarantine(&mut self, seat: Seat, slot: u32) {
        let compartment = match seat {
            Seat::Fabric if slot < FABRIC_SLOTS => self.compartments.get_mut(&slot),
            Seat::Compartment(id) => self.compartments.get_mut(&id),
            Seat::Fabric => None,
        };
        // An uplink is not taken away from everybody: what it brought is skipped.
        let Some(compartment) = compartment else {
            return;
        };
        match seat {
            Seat::Compartment(_) if slot != 0 => match compartment.ports.get_mut(&slot) {
                Some(port) => port.quarantined = true,
                None => return,
            },
            _ => compartment.quarantined = true,
        }
        let id = compartment.body.id;
        match seat {
            Seat::Compartment(_) if slot != 0 => {
                self.note_port(id, slot);
                self.drop_client(id, slot);
            }
            Seat::Compartment(_) => self.unplug_from_fabric(id),
            Seat::Fabric => {}
        }
        self.happened(Happened::new(EventKind::Quarantine, Subject::Seat(seat)).slot(slot));
    }

    /// The fabric caught this compartment saying what is not its own: it is taken over
    /// until shown otherwise.
    pub fn reported(&mut self, slot: u32, reason: u32) {
        let Some(compartment) = self.compartments.get(&slot) else {
            return;
        };
        let Some(id) = compartment.seat.worker else {
            return;
        };
        let subject = Subject::Seat(Seat::Compartment(slot));
        self.happened(
            Happened::new(EventKind::Report, subject)
                .slot(slot)
                .cause(reason),
        );
        self.kill(id, Some(CAUSE_REPORT));
    }
}

/// The messages that plug an uplink into the fabric.
pub fn uplink_ports(uplink: &crate::seats::Uplink) -> Vec<(AddPort, Vec<Shared>)> {
    let body = AddPort {
        slot: uplink.body.slot,
        kind: PORT_PACKET,
        mtu: CHANNEL_MTU,
        features: u32::from(Features::ALL.bits()),
        ..AddPort::default()
    };
    let Some(xdp) = &uplink.xdp else {
        return vec![(body, vec![Rc::clone(&uplink.socket)])];
    };
    let body = AddPort {
        kind: PORT_XDP,
        mtu: xdp.mtu,
        features: u32::from(Features::NONE.bits()),
        capacity: xdp.queues.len() as u32,
        ..body
    };
    let mut messages = Vec::new();
    let mut fds = vec![Rc::clone(&uplink.socket), Rc::clone(&xdp.memory)];
    let mut first = 0;
    for (queue, number) in xdp.queues.iter().zip(0..) {
        if fds.len() == MAX_FDS {
            let resume = first;
            messages.push((AddPort { resume, ..body }, std::mem::take(&mut fds)));
            first = number;
        }
        fds.push(Rc::clone(queue));
    }
    messages.push((
        AddPort {
            resume: first,
            ..body
        },
        fds,
    ));
    messages
}

/// A seat as a word of a note.
pub fn place_of(seat: Seat) -> String {
    match seat {
        Seat::Fabric => "seat:fabric".to_owned(),
        Seat::Compartment(id) => format!("seat:{id}"),
    }
}

/// The seat that such a word names.
pub fn seat_of(place: &str) -> Option<Seat> {
    match place.strip_prefix("seat:")? {
        "fabric" => Some(Seat::Fabric),
        id => id.parse().ok().map(Seat::Compartment),
    }
}
