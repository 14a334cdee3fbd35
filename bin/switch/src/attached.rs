//! All that a worker has once it knows its compartment: its pages, ports, switch, image, and
//! what is under way.

use crate::capture::Captures;
use crate::clock;
use crate::listing::{Listed, Listing};
use crate::outlet::{Outlets, Workshop, outlets};
use crate::parking::Parked;
use crate::peers::{Inbox, Peers, unparked};
use crate::ports::{Ports, Sink, Source};
use crate::telling::Telling;
use command::verbs::{AddPort, Attach, PORT_PACKET, START_FRESH, WAIT_ADAPTIVE, WAIT_POLL};
use guard::guard;
use image::{CompartmentImage, MappedCompartment};
use port::{Device, PacketSocket, Tap};
use ring::State;
use rounds::Rounds;
use rustix::io::Errno;
use seqpacket::Fds;
use shm::{CountersPage, SealedImage, Words};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use switch::{Config, Restoration, Shaper, Slot, Switch, UNITS, Workers};
use telemetry::counters::ProcessWord;
use telemetry::drops::DropReason;
use telemetry::recorder::EventKind;
use wire::offload::MAX_FRAME;
use worker::system;

/// Buffers that parked frames of taps may hold at once.
pub const SPARE_BUFFERS: usize = 4;
/// Room for a frame and the byte that shows that it was too long.
const BUFFER: usize = MAX_FRAME + 16;
/// Between the secrets of two workers.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

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
    /// Its heartbeat, which rises with each turn and each batch.
    pub beats: u64,
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

/// The counters page as one of so many workers has it.
pub fn counters_of(counters: CountersPage, workers: Workers) -> CountersPage {
    match workers.count() {
        1 => counters,
        _ => counters.of_worker(workers.this() as usize),
    }
}

impl Attached {
    /// Nothing plugged in, and no image.
    pub fn new(
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
            beats: 0,
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

    pub fn plug_channel(&mut self, slot: usize, body: &AddPort, fds: Fds) -> Result<(), u32> {
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

    pub fn plug_device(&mut self, slot: usize, kind: u32, fds: Vec<OwnedFd>) -> Result<(), u32> {
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
    pub fn wants_replacing(&mut self, slot: Slot) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use command::verbs::WAIT_SLEEP;

    #[test]
    fn shared_cores_are_spun_on_for_5_us_at_most() {
        let spins = |wait, wait_us, shared: bool| {
            let shared_cores = shared.into();
            let attach = Attach {
                wait,
                wait_us,
                shared_cores,
                ..Attach::default()
            };
            Waiting::of(&attach).ns
        };
        assert_eq!(spins(WAIT_SLEEP, 1_000, false), 0);
        assert_eq!(spins(WAIT_ADAPTIVE, 1_000, false), 1_000_000);
        assert_eq!(spins(WAIT_ADAPTIVE, 1_000, true), 5_000);
        assert_eq!(spins(WAIT_ADAPTIVE, 3, true), 3_000);
    }
}
