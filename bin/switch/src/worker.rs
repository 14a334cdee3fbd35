//! The process: what the supervisor says, and the loop.

use crate::attached::{Attached, Lists};
use crate::capture::{Capture, Captures};
use crate::clock;
use crate::crew::{self, Crew, Desk, Lent, Member};
use crate::guest::LINK;
use crate::listing::{self, Listing};
use crate::peers::{Inbox, MIRROR, PEER, Peers};
use crate::readiness::{CONTROL, Readiness};
use crate::telling::Telling;
use command::Message;
use command::message::Body;
use command::verbs::{
    AddPort, Attach, Capture as CaptureAsked, Done, ListFlows, NeedReplace, PORT_CHANNEL,
    PORT_PACKET, PORT_TAP, PORT_VHOST, PortClosed, Quit, RemovePort, Running, TRACE_END, Trace,
    UseImage,
};
use guard::guard;
use image::map::NOT_ATTACHED;
use rustix::io::Errno;
use seqpacket::{Error, Fds, Socket};
use shm::{CountersPage, Geometry, ProducerFds, Recorder, SealedImage, Start, attach_producer};
use std::os::fd::AsFd;
use switch::{FABRIC, Slot, Workers};
use telemetry::counters::ProcessWord;
use telemetry::drops::DropReason;
use telemetry::recorder::EventKind;
use worker::{Journal, Outbox, system};

#[cfg(test)]
mod tests;

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

    /// Does what a slot's vhost helper says, as when the epoll set names its link.
    pub fn hear_helper(&mut self, slot: Slot) {
        if let Some(attached) = self.attached.as_mut() {
            attached.hear_guest(slot, &self.readiness);
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
        let slots = body.slots as usize;
        let pages = fds.next().zip(fds.next()).and_then(|(counters, recorder)| {
            let counters = CountersPage::open(counters, slots).ok()?;
            Some((counters, Recorder::open(recorder).ok()?))
        });
        let Some((counters, recorder)) = pages else {
            // One of several would leave the others waiting for it.
            self.quit |= self.desk.is_some();
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
        if let Some(desk) = &self.desk {
            attached.switch.share(desk.accounts.clone());
            attached.shaper.share(desk.accounts.clone());
        }
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
            PORT_VHOST => attached.plug_guest(slot, body.capacity, fds),
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
        match worker::compartment(body, fds) {
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
                // Who waits for a rate may have another now.
                if guard!("rate-resumes") {
                    attached.next_resume = now;
                }
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
