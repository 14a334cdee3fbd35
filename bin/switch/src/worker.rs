//! The process: what the supervisor says, and the loop.

use crate::capture::{Capture, Captures};
use crate::clock;
use crate::crew::{self, Crew, Desk, Lent, Member};
use crate::guest::LINK;
use crate::listing::{self, Listed, Listing};
use crate::outlet::{Outlets, Workshop, outlets};
use crate::parking::Parked;
use crate::peers::{Inbox, MIRROR, PEER, Peers, unparked};
use crate::ports::{Ports, Sink, Source};
use crate::readiness::{CONTROL, Readiness};
use crate::telling::Telling;
use command::Message;
use command::message::Body;
use command::verbs::{
    AddPort, Attach, Capture as CaptureAsked, Done, ListFlows, NeedReplace, PORT_CHANNEL,
    PORT_PACKET, PORT_TAP, PORT_VHOST, PortClosed, Quit, RemovePort, Running, START_FRESH,
    TRACE_END, Trace, UseImage, WAIT_ADAPTIVE, WAIT_POLL,
};
use guard::guard;
use image::map::NOT_ATTACHED;
use image::{CompartmentImage, MappedCompartment};
use port::{Device, PacketSocket, Tap};
use ring::State;
use rounds::Rounds;
use rustix::io::Errno;
use seqpacket::{Error, Fds, Socket};
use shm::{
    CountersPage, Geometry, ProducerFds, Recorder, SealedImage, Start, Words, attach_producer,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use switch::{Config, FABRIC, Restoration, Shaper, Slot, Switch, UNITS, Workers};
use telemetry::counters::ProcessWord;
use telemetry::drops::DropReason;
use telemetry::recorder::EventKind;
use wire::offload::MAX_FRAME;
use worker::{Journal, Outbox, system};

#[cfg(test)]
mod tests;

/// Buffers that parked frames of taps may hold at once.
const SPARE_BUFFERS: usize = 4;
/// Room for a frame and the byte that shows that it was too long.
const BUFFER: usize = MAX_FRAME + 16;
/// Between the secrets of two workers.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The process.
pub struct Worker {
    pub(crate) control: Socket,
    pub(crate) readiness: Readiness,
    pub(crate) attached: Option<Attached>,
    outbox: Outbox,
    /// Of one of several workers: its ends of the rings between them, until it is attached;
    /// and what it has with the others beside frames.
    rings: Option<(Peers, Inbox)>,
    desk: Option<Desk>,
    /// Of a process that has become several workers: who speaks for them.
    crew: Option<Box<Crew>>,
    quit: bool,
}

/// How it waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// `WAIT_*`.
    pub mode: u32,
    /// Poll period, or how long to spin after the last work, ns.
    pub ns: u64,
}

/// All that it has once it knows its compartment.
pub struct Attached {
    pub ports: Ports,
    pub switch: Switch,
    pub image: Option<MappedCompartment<SealedImage>>,
    pub telling: Telling,
    pub workshop: Workshop,
    pub capture: Option<Box<Captures>>,
    /// Connections being listed, and where to.
    pub listing: Option<Box<(Listing, Lists)>>,
    /// The other workers of this switch, what they have handed over, and what holds a frame
    /// of theirs while it is handled.
    pub peers: Option<Box<Peers>>,
    pub inbox: Inbox,
    /// What the others mirror for captures, by owner.
    pub mirrors: Vec<(u32, Vec<shm::Receiver>)>,
    /// The number of a listing that was just made for all workers together.
    pub has_listed: Option<u32>,
    pub unparked: Option<Box<Parked>>,
    /// When a trace is forgotten that nobody ends; `u64::MAX` = there is none.
    pub traced_until: u64,
    /// Slots that have or may have something, in turns by what they cost; the others are
    /// armed.
    pub rounds: Rounds,
    /// What waits for a rate toward its receiver.
    pub shaper: Shaper,
    /// Slots written to since they were last published.
    pub touched: Vec<Slot>,
    /// Slots whose channel is being taken over from a predecessor.
    pub settling: Vec<Slot>,
    /// Slots with a parked frame.
    pub parked: Vec<Slot>,
    /// Slots whose endpoint has used up its rate.
    pub paused: Vec<Slot>,
    /// When the first of them may go on; `u64::MAX` = there is none.
    pub next_resume: u64,
    /// Slots to be watched again (`true`) or no longer, since the epoll set was told.
    pub watch_changed: Vec<(Slot, bool)>,
    /// The buffer that taps are read into, and spares for it.
    pub buffer: Box<[u8]>,
    pub spares: Vec<Box<[u8]>>,
    /// Closed in this turn: (slot, breach or errno).
    pub closed: Vec<(Slot, u32)>,
    /// Guests that ended in this turn, and why; and those whose helper has said something.
    pub ended: Vec<(Slot, u32)>,
    pub told: Vec<Slot>,
    pub waiting: Waiting,
    pub turns: u64,
    pub now: u64,
    pub last_work: u64,
    /// What was said of a predecessor's connections.
    pub restoration: Restoration,
    start: u32,
}

/// Where a listing goes.
pub enum Lists {
    /// Into the page that came with the request.
    Page(Words),
    /// To the one who speaks for all workers.
    Crew(u32, Sender<Listed>),
}

impl Worker {
    /// One of several workers.
    pub fn member(control: Socket, member: Member) -> Result<Worker, Errno> {
        let Member { peers, inbox, desk } = member;
        Ok(Worker {
            rings: Some((peers, inbox)),
            desk: Some(desk),
            ..Worker::new(control)?
        })
    }

    /// A spare that knows nobody.
    pub fn new(control: Socket) -> Result<Worker, Errno> {
        let readiness = Readiness::new()?;
        readiness.join(control.as_fd(), CONTROL)?;
        Ok(Worker {
            control,
            readiness,
            attached: None,
            outbox: Outbox::new(0),
            rings: None,
            desk: None,
            crew: None,
            quit: false,
        })
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) {
        // Bound: none; this is the process's loop.
        while !self.quit {
            self.step();
            if let Some(crew) = &mut self.crew {
                return crew.run();
            }
        }
    }

    /// Once through the loop: a turn, and a look at who is ready where it is time for one.
    pub fn step(&mut self) {
        match self.attached.as_mut() {
            Some(attached) => {
                let patience = attached.turn();
                self.change_watch();
                self.tell_closed();
                self.tell_listed();
                if let Some(limit) = patience {
                    self.look(limit);
                }
            }
            None => self.look(None),
        }
    }

    /// Takes taps whose endpoint is paused out of the epoll set, or back into it.
    fn change_watch(&mut self) {
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        for at in 0..attached.watch_changed.len() {
            let Some((slot, watched)) = attached.watch_changed.get(at).copied() else {
                break;
            };
            let Some(fd) = attached.ports.device(slot as usize) else {
                continue;
            };
            if !watched {
                self.readiness.leave(fd);
                continue;
            }
            match self.readiness.join(fd, u64::from(slot)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => attached.closed.push((slot, system(errno))),
            }
        }
        attached.watch_changed.clear();
    }

    /// Sees who is ready, waiting at most so long (`None` = for ever).
    fn look(&mut self, limit: Option<u64>) {
        self.outbox.flush(&self.control);
        let limit = self.outbox.patience(limit);
        let sleeps = limit != Some(0);
        if let Some(attached) = self.attached.as_mut().filter(|_| sleeps) {
            attached.falls_asleep();
        }
        let mut told = false;
        let attached = &mut self.attached;
        self.readiness
            .wait(limit, |name| match (name, attached.as_mut()) {
                (CONTROL, _) => told = true,
                (name, Some(attached)) if name & LINK != 0 => {
                    attached.told.push((name & !LINK) as Slot);
                }
                (MIRROR, Some(attached)) => attached.mirrors_rung(),
                (name, Some(attached)) if name & PEER != 0 => {
                    attached.rung((name & !PEER) as u32);
                }
                (slot, Some(attached)) => attached.wake(slot as Slot),
                _ => {}
            });
        if let Some(attached) = self.attached.as_mut().filter(|_| sleeps) {
            attached.wakes_up();
        }
        self.hear_guests();
        self.tell_closed();
        if told {
            self.hear();
        }
    }

    /// Looks at a slot again, as when the epoll set names it.
    pub fn wake(&mut self, slot: Slot) {
        if let Some(attached) = self.attached.as_mut() {
            attached.wake(slot);
        }
    }

    /// Does what vhost helpers say.
    fn hear_guests(&mut self) {
        while let Some(attached) = self.attached.as_mut()
            && let Some(slot) = attached.told.pop()
        {
            attached.hear_guest(slot, &self.readiness);
        }
    }

    /// Does what the supervisor says. Bound: what is in the socket.
    pub fn hear(&mut self) {
        loop {
            // What comes after it is for the one who speaks for all.
            if self.crew.is_some() {
                return;
            }
            match self.control.recv() {
                Ok(Some((message, fds))) => self.obey(&message, fds),
                Ok(None) => return,
                // Nobody is left who could ever say anything.
                Err(Error::Closed) => {
                    self.quit = true;
                    return;
                }
                Err(Error::Malformed(_)) => {}
                Err(_) => return,
            }
        }
    }

    fn obey(&mut self, message: &Message, fds: Fds) {
        if let Some(body) = message.body::<Attach>() {
            self.attach(&body, fds);
        } else if let Some(body) = message.body::<AddPort>() {
            self.add_port(&body, fds);
        } else if let Some(body) = message.body::<RemovePort>() {
            self.unplug(body.slot);
        } else if let Some(body) = message.body::<UseImage>() {
            let refused = self.use_image(&body, fds);
            self.say(
                message.seq,
                &Running {
                    epoch: body.epoch,
                    refused,
                    reserved: 0,
                },
            );
        } else if let Some(body) = message.body::<CaptureAsked>() {
            self.capture(&body, fds);
        } else if let Some(body) = message.body::<ListFlows>() {
            self.list(message.seq, &body, fds);
        } else if let Some(body) = message.body::<Trace>() {
            self.trace(message, &body, fds);
        } else if message.body::<Quit>().is_some() {
            self.quit = true;
        }
    }

    fn say<B: Body>(&mut self, seq: u32, body: &B) {
        self.outbox.say(&self.control, Message::new(seq, body));
    }

    fn attach(&mut self, body: &Attach, fds: Fds) {
        if body.workers > 1 && self.desk.is_none() {
            return self.become_several(body, &fds);
        }
        let workers = self.desk.as_ref().map_or(Workers::ALONE, |d| d.workers);
        let mut fds = fds.into_iter();
        let (Some(counters), Some(recorder)) = (fds.next(), fds.next()) else {
            return;
        };
        let slots = body.slots as usize;
        let (Ok(counters), Ok(recorder)) = (
            CountersPage::open(counters, slots),
            Recorder::open(recorder),
        ) else {
            return;
        };
        if self.desk.is_none() {
            Telling::begin(&counters);
        }
        let (counters, recorder) = crew::pages(counters, recorder, workers);
        let telling = Telling::new(counters, recorder);
        let rings = self.rings.take();
        for (from, receiver) in rings.iter().flat_map(|(_, inbox)| inbox) {
            let name = PEER | u64::from(*from);
            if let Err(errno) = self.readiness.join(receiver.bell.as_fd(), name) {
                confine::say!("bulkhead-switch: a doorbell between workers: {errno}");
                std::process::abort();
            }
        }
        let mut attached = Attached::new(body, workers, rings, telling);
        // Without one connections end with the process.
        let (this, count) = (workers.this() as usize, workers.count() as usize);
        let journal = fds.next().map(|fd| Journal::part(fd, this, count));
        if let Some(Ok(journal)) = journal {
            attached.switch.keep(Box::new(journal));
        }
        attached.telling.record(
            clock::monotonic(),
            EventKind::Attached,
            0,
            u64::from(body.compartment),
            0,
        );
        self.attached = Some(attached);
        self.outbox.allow(slots);
        if let Some(desk) = &self.desk {
            desk.meet();
        }
    }

    /// Starts the workers, of which this is none: it speaks for them from now on.
    fn become_several(&mut self, body: &Attach, fds: &Fds) {
        self.readiness.leave(self.control.as_fd());
        let control = self.control.as_fd().try_clone_to_owned();
        let crew = control
            .map_err(|error| error.to_string())
            .and_then(|control| Crew::start(Socket::from_fd(control), body, fds));
        match crew {
            Ok(crew) => self.crew = Some(Box::new(crew)),
            Err(error) => {
                confine::say!("bulkhead-switch: no workers: {error}");
                self.quit = true;
            }
        }
    }

    fn add_port(&mut self, body: &AddPort, fds: Fds) {
        self.unplug(body.slot);
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        let slot = body.slot as usize;
        if slot >= attached.ports.places.len() {
            return;
        }
        let plugged = match body.kind {
            PORT_CHANNEL => attached.plug_channel(slot, body, fds),
            PORT_TAP | PORT_PACKET => attached.plug_device(slot, body.kind, fds),
            PORT_VHOST => attached.plug_guest(slot, fds),
            _ => Err(system(Errno::INVAL)),
        };
        let name = match body.kind {
            PORT_VHOST => LINK | slot as u64,
            _ => slot as u64,
        };
        let joined = plugged.and_then(|()| match attached.ports.waker(slot) {
            Some(fd) => self.readiness.join(fd, name).map_err(system),
            None => Err(system(Errno::INVAL)),
        });
        let now = clock::monotonic();
        match joined {
            Ok(()) => {
                attached.telling.record(
                    now,
                    EventKind::PortAdded,
                    body.slot,
                    u64::from(body.kind),
                    0,
                );
                attached.activate(body.slot);
                if let Some(peers) = &attached.peers {
                    peers.plugged(body.slot, true);
                }
            }
            Err(reason) => attached.closed.push((body.slot, reason)),
        }
        self.tell_closed();
    }

    /// Empties a slot. What was parked there, or for it, is dropped in its turn.
    fn unplug(&mut self, slot: Slot) {
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        if let Some(fd) = attached.ports.waker(slot as usize) {
            self.readiness.leave(fd);
        }
        attached.unmap_guest(slot, &self.readiness);
        attached.take_back(slot);
        attached.ports.unplug(slot as usize);
        if let Some(peers) = &attached.peers {
            peers.plugged(slot, false);
        }
        attached.rounds.remove(slot);
        attached.forget(slot);
        attached.settling.retain(|s| *s != slot);
        attached.paused.retain(|s| *s != slot);
    }

    fn use_image(&mut self, body: &UseImage, fds: Fds) -> u32 {
        let Some(attached) = self.attached.as_mut() else {
            return NOT_ATTACHED;
        };
        let now = clock::monotonic();
        match worker::image(body, fds, MappedCompartment::map, MappedCompartment::digest) {
            Ok(image) => {
                match &attached.image {
                    Some(before) => {
                        let before = before.image();
                        attached.switch.swap_image(&before, &image.image(), now);
                    }
                    None => attached.switch.use_image(&image.image(), now),
                }
                let Attached {
                    shaper,
                    telling,
                    capture,
                    ..
                } = &mut *attached;
                if let Some(capture) = capture {
                    capture.use_image(&image.image());
                }
                shaper.use_image(&image.image(), now, |slot, frames| {
                    telling.no_longer_wait(slot, frames, DropReason::EgressRate);
                });
                attached.rounds.configure(switch::shares(&image.image()));
                attached.telling.place(&image.image());
                // Of several workers all must run it before that is said.
                if attached.peers.is_none() {
                    let counters = &attached.telling.counters;
                    counters.set(ProcessWord::Epoch, body.epoch);
                }
                attached.image = Some(image);
                let [a, b, c, d, e, f, g, h, ..] = body.digest;
                let digits = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                attached
                    .telling
                    .record(now, EventKind::ImageSwapped, 0, body.epoch, digits);
                attached.tell_restored(now);
                0
            }
            Err(refused) => {
                attached.telling.record(
                    now,
                    EventKind::ImageRefused,
                    0,
                    body.epoch,
                    u64::from(refused),
                );
                refused
            }
        }
    }

    fn capture(&mut self, body: &CaptureAsked, fds: Fds) {
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        if let Some(captures) = attached.capture.as_mut() {
            captures.end(body.of);
        }
        attached.mirrors.retain(|(of, _)| *of != body.of);
        attached.capture = attached.capture.take().filter(|all| !all.is_empty());
        if body.on == 0 {
            return;
        }
        let geometry = Geometry::records(body.capacity as usize, body.max_record as usize);
        let channel = geometry.ok().zip(ProducerFds::from_fds(fds));
        let channel = channel.map(|(geometry, fds)| attach_producer(fds, &geometry, Start::Fresh));
        let lent = self.desk.as_ref().map(|desk| desk.lent.try_recv());
        let sender = match lent {
            Some(Ok(Lent::Mirror(sender))) => Some(sender),
            Some(Ok(Lent::Mirrors(mirrors))) => {
                for mirror in &mirrors {
                    // What does not wake us is read when something else does.
                    let _ = self.readiness.join(mirror.bell.as_fd(), MIRROR);
                }
                attached.mirrors.push((body.of, mirrors));
                channel.and_then(Result::ok)
            }
            _ => channel.and_then(Result::ok),
        };
        if let Some(sender) = sender {
            let image = attached.image.as_ref().map(|mapped| mapped.image());
            let capture = Capture::new(sender, body, image.as_ref());
            let captures: &mut Captures = attached.capture.get_or_insert_default();
            captures.begin(body.of, capture);
        }
    }

    /// Begins a listing of connections; one under way is given up for it.
    fn list(&mut self, seq: u32, body: &ListFlows, fds: Fds) {
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        let lists = match &self.desk {
            Some(desk) => Some(Lists::Crew(seq, desk.listed.clone())),
            None => fds
                .into_iter()
                .next()
                .and_then(|page| listing::page(page, listing::most(body)))
                .map(Lists::Page),
        };
        attached.listing = lists.map(|lists| Box::new((Listing::new(body), lists)));
    }

    /// Says that a listing is with the one who speaks for all workers.
    fn tell_listed(&mut self) {
        if let Some(attached) = self.attached.as_mut()
            && let Some(number) = attached.has_listed.take()
        {
            self.say(number, &Done::default());
        }
    }

    fn trace(&mut self, message: &Message, body: &Trace, fds: Fds) {
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        if let (Some(desk), Some(frame)) = (&self.desk, fds.get(1))
            && body.slot != FABRIC
            && attached.ports.is_home(body.slot)
            && let Ok(frame) = frame.try_clone().map(SealedImage::map)
            && let Ok(frame) = frame
            && let Some(worker) = attached.another(body.slot, frame.as_slice(), clock::monotonic())
        {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            return desk.pass_on(worker, message, &fds);
        }
        if body.flags & TRACE_END != 0 {
            attached.end_trace(clock::monotonic());
        }
        worker::traced(body, fds, |bytes, record| {
            attached.follow(body, bytes, record)
        });
    }

    /// Closes what misbehaved or vanished in this turn, and says so; the rest goes on.
    fn tell_closed(&mut self) {
        while let Some(attached) = self.attached.as_mut()
            && let Some((slot, reason)) = attached.ended.pop()
        {
            attached.end_guest(slot, reason, &self.readiness);
        }
        while let Some((slot, reason)) = self.attached.as_mut().and_then(|a| a.closed.pop()) {
            self.unplug(slot);
            self.say(0, &PortClosed { slot, reason });
            if let Some(attached) = self.attached.as_mut() {
                let now = clock::monotonic();
                attached
                    .telling
                    .record(now, EventKind::PortClosed, slot, u64::from(reason), 0);
            }
        }
        let Some(attached) = self.attached.as_mut() else {
            return;
        };
        for at in 0..attached.settling.len() {
            let Some(slot) = attached.settling.get(at).copied() else {
                break;
            };
            if attached.wants_replacing(slot) {
                let message = Message::new(0, &NeedReplace { slot });
                self.outbox.say(&self.control, message);
            }
        }
    }
}

/// The counters page as one of so many workers has it.
pub fn counters_of(counters: CountersPage, workers: Workers) -> CountersPage {
    match workers.count() {
        1 => counters,
        _ => counters.of_worker(workers.this() as usize),
    }
}

impl Attached {
    fn new(
        body: &Attach,
        workers: Workers,
        rings: Option<(Peers, Inbox)>,
        telling: Telling,
    ) -> Attached {
        let slots = body.slots as usize;
        let (peers, inbox) = rings.unzip();
        let [a, b, c, d, e, f, g, h, ..] = body.seed;
        let config = Config {
            slots,
            // Another for each worker.
            seed: u64::from_le_bytes([a, b, c, d, e, f, g, h])
                ^ u64::from(workers.this()).wrapping_mul(SEED_STEP),
            workers,
            ..Config::default()
        };
        Attached {
            ports: Ports::new(slots, workers),
            switch: Switch::new(config),
            image: None,
            telling,
            workshop: Workshop::new(),
            capture: None,
            listing: None,
            has_listed: None,
            peers: peers.map(Box::new),
            inbox: inbox.unwrap_or_default(),
            mirrors: Vec::new(),
            unparked: unparked(),
            traced_until: u64::MAX,
            rounds: Rounds::new(slots, UNITS),
            shaper: Shaper::new(slots, workers),
            touched: Vec::with_capacity(slots),
            settling: Vec::with_capacity(slots),
            parked: Vec::with_capacity(slots),
            paused: Vec::with_capacity(slots),
            next_resume: u64::MAX,
            watch_changed: Vec::with_capacity(2 * slots),
            buffer: vec![0; BUFFER].into(),
            spares: (0..SPARE_BUFFERS).map(|_| vec![0; BUFFER].into()).collect(),
            closed: Vec::with_capacity(2 * slots),
            ended: Vec::with_capacity(slots),
            told: Vec::with_capacity(slots),
            waiting: Waiting::of(body),
            turns: 0,
            now: 0,
            last_work: 0,
            restoration: Restoration::default(),
            start: body.start,
        }
    }

    /// Says what came of a predecessor's connections, where there is news; and once that all
    /// were looked at.
    pub fn tell_restored(&mut self, now: u64) {
        let Restoration {
            restored,
            refused,
            unread,
        } = self.switch.restoration();
        if self.restoration == self.switch.restoration() {
            return;
        }
        let before = core::mem::replace(&mut self.restoration, self.switch.restoration());
        let counters = &self.telling.counters;
        let more = restored.wrapping_sub(before.restored);
        counters.add_process(ProcessWord::Restored, more);
        let more = refused.wrapping_sub(before.refused);
        counters.add_process(ProcessWord::NotRestored, more);
        if unread == 0 {
            let kind = EventKind::ConnectionsRestored;
            self.telling.record(now, kind, 0, restored, refused);
        }
    }

    fn plug_channel(&mut self, slot: usize, body: &AddPort, fds: Fds) -> Result<(), u32> {
        let channel = worker::channel(body, fds, clock::monotonic())?;
        let resumes = body.resume != 0;
        if let (Some(source), Some(sink), Some(place)) = (
            self.ports.sources.get_mut(slot),
            self.ports.sinks.get_mut(slot),
            self.ports.places.get_mut(slot),
        ) {
            *source = Source::Channel(Box::new(channel.rx));
            *sink = Sink::Channel(Box::new(channel.tx));
            place.settling = resumes;
        }
        if resumes {
            self.settling.push(slot as Slot);
        }
        Ok(())
    }

    fn plug_device(&mut self, slot: usize, kind: u32, fds: Vec<OwnedFd>) -> Result<(), u32> {
        let fd = fds.into_iter().next().ok_or(system(Errno::BADF))?;
        let device = match kind {
            PORT_PACKET => Device::Veth(PacketSocket::from_fd(fd)),
            _ => Device::Tap(Tap::from_fd(fd)),
        };
        if let (Some(source), Some(sink)) = (
            self.ports.sources.get_mut(slot),
            self.ports.sinks.get_mut(slot),
        ) {
            *source = Source::Device;
            *sink = Sink::Device(device);
        }
        Ok(())
    }

    /// Whether a slot's peer has owed its echo too long and this is to be said now.
    fn wants_replacing(&mut self, slot: Slot) -> bool {
        let at = slot as usize;
        let now = clock::monotonic();
        let overdue = match (self.ports.sources.get(at), self.ports.sinks.get(at)) {
            (Some(Source::Channel(rx)), Some(Sink::Channel(tx))) => {
                rx.ring.overdue(now) || tx.ring.overdue(now)
            }
            _ => false,
        };
        match self.ports.places.get_mut(at) {
            Some(place) if overdue && !place.replacing => {
                place.replacing = true;
                true
            }
            _ => false,
        }
    }

    /// Polls both ends of the channels that are being taken over, until both agree.
    pub fn settle(&mut self, now: u64) {
        let mut at = 0;
        while let Some(slot) = self.settling.get(at).copied() {
            match self.settled(slot) {
                Ok(true) => {
                    self.settling.swap_remove(at);
                    if let Some(place) = self.ports.places.get_mut(slot as usize) {
                        place.settling = false;
                    }
                    self.telling.record(
                        now,
                        EventKind::Resynced,
                        slot,
                        u64::from(self.start != START_FRESH),
                        0,
                    );
                }
                Ok(false) => at += 1,
                Err(breach) => {
                    self.settling.swap_remove(at);
                    self.closed.push((slot, breach));
                }
            }
        }
    }

    fn settled(&mut self, slot: Slot) -> Result<bool, u32> {
        let at = slot as usize;
        let (Some(Source::Channel(rx)), Some(Sink::Channel(tx))) =
            (self.ports.sources.get_mut(at), self.ports.sinks.get_mut(at))
        else {
            return Ok(true);
        };
        let read = rx.ring.poll().map_err(|breach| breach as u32)?;
        let written = tx.ring.poll().map_err(|breach| breach as u32)?;
        let lost = rx.ring.take_lost().records + tx.ring.take_lost().records;
        if lost > 0 {
            self.telling.counters.dropped(at, DropReason::Restart, lost);
        }
        Ok(read == State::Running && written == State::Running)
    }

    /// Puts a slot in the line of those that are looked at.
    pub fn activate(&mut self, slot: Slot) {
        if let Some(place) = self.ports.places.get_mut(slot as usize)
            && !self.rounds.is_active(slot)
        {
            place.idle_turns = 0;
            self.rounds.activate(slot, self.now);
        }
    }

    /// The switch, its image if there is one, and the outlets, apart.
    pub fn parts(&mut self, now: u64) -> (&mut Switch, Option<CompartmentImage<'_>>, Outlets<'_>) {
        let outlets = outlets!(self, now);
        let image = self.image.as_ref().map(MappedCompartment::image);
        (&mut self.switch, image, outlets)
    }

    /// The outlets alone.
    pub fn outlets(&mut self, now: u64) -> Outlets<'_> {
        outlets!(self, now)
    }
}

impl Waiting {
    /// Cores that are shared are never spun on for more than 5 us.
    fn of(body: &Attach) -> Waiting {
        let asked = u64::from(body.wait_us) * 1000;
        let shared = body.shared_cores != 0;
        let ns = match body.wait {
            WAIT_ADAPTIVE if shared && guard!("switch-shared-spin") => asked.min(5_000),
            WAIT_POLL if shared => asked.max(50_000),
            WAIT_ADAPTIVE | WAIT_POLL => asked,
            _ => 0,
        };
        Waiting {
            mode: body.wait,
            ns,
        }
    }
}
