//! One turn of the loop: a batch from each active slot, then timers, then the
//! question how long to wait.

use crate::clock;
use crate::outlet::{Fate, Outlet, Outlets, Payload};
use crate::parking::{PATIENCE, Parked, put_parked, take_parked};
use crate::ports::{Place, Sink, Source};
use crate::worker::Attached;
use command::verbs::WAIT_POLL;
use guard::guard;
use image::CompartmentImage;
use port::PortError;
use ring::record::KIND_FRAME;
use rounds::Outcome;
use rustix::io::Errno;
use switch::{FABRIC, HEAD, Handed, Ingress, Slot, Switch, Work};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::offload::RawOffload;
use worker::system;

/// Frames of one slot at most before the next slot's turn.
const BATCH: usize = 64;
/// And bytes: the answers to what a slot sends wait for the other slots' turns, and
/// 64 offloaded frames are 4 MiB.
const BATCH_BYTES: u64 = 128 << 10;
/// Turns without a frame after which a channel is armed and left alone.
const IDLE_TURNS: u32 = 16;
/// Turns between looks at the epoll set while there is work.
const LOOK_EVERY: u64 = 8;
/// How often a channel is polled whose peer owes its echo, ns: an echo does not ring.
const ECHO_POLL: u64 = 200_000;

/// Slots at most that go on at a time with their rate: of those that wait for one rate
/// together the first use it up, and the rest would have been woken for nothing.
const RESUMED: usize = 4;
/// Between two looks at slots that wait for their rate, for each of them, ns.
const RESUME_SPACING: u64 = 100;

/// What a batch came to.
#[derive(Default)]
struct Batch {
    frames: usize,
    /// Their bytes.
    bytes: u64,
    /// What was done for them (`switch::Work`).
    cost: u64,
    end: End,
}

/// How it ended.
#[derive(Default)]
enum End {
    /// There is, or may be, more.
    #[default]
    More,
    /// There is nothing more.
    Empty,
    /// A frame waits for its receiver.
    Parked,
    /// The rate of the endpoint or its tenant is used up.
    Paused,
    /// The slot is over: a reason for `PortClosed`.
    Closed(u32),
}

impl Batch {
    fn ended(end: End) -> Batch {
        Batch {
            end,
            ..Batch::default()
        }
    }

    /// Whether another frame may be taken.
    fn goes_on(&self, allowance: u64) -> bool {
        self.frames < BATCH && self.bytes < BATCH_BYTES && self.cost < allowance
    }

    /// Counts a frame that was taken in.
    fn took(&mut self, bytes: usize, cost: u64) {
        self.frames += 1;
        self.bytes += bytes as u64;
        self.cost += cost;
    }
}

impl Attached {
    /// One turn. Then: `None` = go on at once; else look at the epoll set and wait at
    /// most so long (`Some(None)` = for ever).
    pub fn turn(&mut self) -> Option<Option<u64>> {
        self.turns = self.turns.wrapping_add(1);
        self.telling
            .counters
            .set(ProcessWord::Heartbeat, self.turns);
        let now = clock::monotonic();
        self.now = now;
        if let Some(capture) = self.capture.as_mut() {
            capture.begin_batch(clock::realtime());
        }
        self.settle(now);
        self.resume(now);
        let unparked = self.retry_parked(now);
        let worked = self.run_active(now) | unparked;
        self.tick(now);
        if now >= self.traced_until {
            self.end_trace(now);
        }
        let worked = worked | self.release(now) | self.list(now);
        self.outlets(now).publish();
        if worked {
            self.last_work = now;
            return self.turns.is_multiple_of(LOOK_EVERY).then_some(Some(0));
        }
        Some(self.patience(now))
    }

    /// As many batches as slots are active, in turns. Slots with nothing to read leave the
    /// line. Who sends what is dear to handle gets fewer frames, and not more of the time.
    fn run_active(&mut self, now: u64) -> bool {
        let mut worked = false;
        for _ in 0..self.rounds.active() {
            let Some((slot, allowance)) = self.rounds.next(now) else {
                break;
            };
            let batch = self.run_slot(slot, allowance, now);
            worked |= batch.frames > 0;
            let (outcome, stays) = match batch.end {
                End::More => (Outcome::More, true),
                // Others go on; this one has its next turn when its frame is gone.
                End::Parked => {
                    if self.parked.len() < self.parked.capacity() && !self.parked.contains(&slot) {
                        self.parked.push(slot);
                    }
                    (Outcome::Parked, true)
                }
                End::Paused => {
                    self.pause(slot);
                    (Outcome::Empty, false)
                }
                End::Closed(reason) => {
                    if self.closed.len() < self.closed.capacity() {
                        self.closed.push((slot, reason));
                    }
                    (Outcome::Empty, false)
                }
                End::Empty => (Outcome::Empty, self.stays(slot, batch.frames)),
            };
            self.rounds.price(slot, batch.cost, batch.bytes);
            self.rounds.settle(slot, batch.cost, outcome, stays);
        }
        worked
    }

    /// Leaves a slot alone until its endpoint may send again. Nothing rings or wakes for
    /// it meanwhile: its channel is not armed, its tap leaves the epoll set.
    fn pause(&mut self, slot: Slot) {
        if self.paused.len() < self.paused.capacity() && !self.paused.contains(&slot) {
            self.paused.push(slot);
            self.next_resume = self.next_resume.min(self.switch.paused_until(slot));
            self.telling
                .counters
                .count(slot as usize, Counter::Paused, 1);
            self.watch_changed.push((slot, false));
        }
    }

    /// Goes on with slots whose endpoint may send again: of those that wait for a rate
    /// together, with the one that had least of it.
    fn resume(&mut self, now: u64) {
        if now < self.next_resume {
            return;
        }
        let switch = &self.switch;
        // Those that may to the front.
        let mut may = 0;
        for at in 0..self.paused.len() {
            let until = self.paused.get(at).map(|slot| switch.paused_until(*slot));
            if until.is_some_and(|until| until <= now) {
                self.paused.swap(may, at);
                may += 1;
            }
        }
        if let Some(front) = self.paused.get_mut(..may)
            && guard!("resume-turns")
        {
            front.sort_unstable_by_key(|slot| switch.served(*slot));
        }
        let image = self.image.as_ref().map(|mapped| mapped.image());
        let first = may.min(RESUMED);
        if let (Some(image), Some(slots)) = (&image, self.paused.get(..first)) {
            for slot in slots {
                self.switch.resumes(image, *slot, now);
            }
        }
        for _ in 0..first {
            let slot = self.paused.remove(0);
            self.watch_changed.push((slot, true));
            self.activate(slot);
        }
        let switch = &self.switch;
        let next = self.paused.iter().map(|slot| switch.paused_until(*slot));
        // Looking costs by how many wait: it is done less often where they are many.
        let spaced = now + RESUME_SPACING * self.paused.len() as u64;
        self.next_resume = match next.min() {
            Some(_) if may > RESUMED => now,
            Some(until) => until.max(spaced),
            None => u64::MAX,
        };
    }

    /// Whether a slot stays in the line after a batch that ended for want of frames.
    fn stays(&mut self, slot: Slot, frames: usize) -> bool {
        let at = slot as usize;
        let polls = self.waiting.mode == WAIT_POLL;
        let (Some(source), Some(place)) = (
            self.ports.sources.get_mut(at),
            self.ports.places.get_mut(at),
        ) else {
            return false;
        };
        match source {
            Source::None => false,
            // The epoll set tells when a tap has more.
            Source::Tap => false,
            Source::Channel(_) if frames > 0 => {
                place.idle_turns = 0;
                true
            }
            Source::Channel(_) if polls || place.settling => true,
            Source::Channel(receiver) => {
                place.idle_turns += 1;
                if place.idle_turns < IDLE_TURNS {
                    return true;
                }
                // A breach shows in the next batch.
                !receiver.ring.arm().unwrap_or(false)
            }
        }
    }

    fn run_slot(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        if self.ports.places.get(at).is_some_and(Place::is_parked) {
            return Batch::ended(End::Parked);
        }
        self.telling
            .counters
            .set(ProcessWord::Working, u64::from(slot) + 1);
        let batch = match self.ports.sources.get(at) {
            Some(Source::Channel(_)) => self.run_channel(slot, allowance, now),
            Some(Source::Tap) => self.run_tap(slot, allowance, now),
            _ => Batch::ended(End::Empty),
        };
        self.telling.counters.set(ProcessWord::Working, 0);
        batch
    }

    fn run_channel(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        let Attached {
            ports,
            switch,
            image,
            telling,
            workshop,
            capture,
            shaper,
            touched,
            ..
        } = self;
        let image = image.as_ref().map(|mapped| mapped.image());
        let Some(Source::Channel(receiver)) = ports.sources.get_mut(at) else {
            return Batch::ended(End::Empty);
        };
        let Some(mut parked) = take_parked(&mut ports.places, at) else {
            return Batch::ended(End::Empty);
        };
        let mut batch = Batch::default();
        while batch.goes_on(allowance) {
            if now < switch.paused_until(slot) {
                batch.end = End::Paused;
                break;
            }
            let record = match receiver.ring.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    batch.end = End::Empty;
                    break;
                }
                Err(breach) => {
                    batch.end = End::Closed(breach as u32);
                    break;
                }
            };
            let outlets = Outlets {
                sinks: &mut ports.sinks,
                places: &mut ports.places,
                touched: &mut *touched,
                telling: &mut *telling,
                workshop: &mut *workshop,
                capture: &mut *capture,
                shaper: &mut *shaper,
                work: Work::frame(),
                now,
            };
            let mut head = [0u8; HEAD];
            let length = record.copy(0, &mut head);
            let frame = Arrived {
                slot,
                tag: if slot == FABRIC { record.tag() } else { 0 },
                offload: record.offload(),
                total: record.len(),
                known: record.kind() == KIND_FRAME,
            };
            let head = head.get_mut(..length).unwrap_or(&mut []);
            let cost = handle(
                switch,
                image.as_ref(),
                outlets,
                frame,
                head,
                Payload::Record(&record),
                &mut parked,
            );
            batch.took(record.len(), cost);
            if parked.since.is_some() {
                batch.end = End::Parked;
                break;
            }
            receiver.ring.advance();
        }
        if !matches!(batch.end, End::Parked) {
            receiver.ring.release();
        }
        let lost = receiver.ring.take_lost().records;
        if lost > 0 {
            telling.counters.dropped(at, DropReason::Restart, lost);
        }
        put_parked(&mut ports.places, at, parked);
        batch
    }

    fn run_tap(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        let Attached {
            ports,
            switch,
            image,
            telling,
            workshop,
            capture,
            shaper,
            touched,
            buffer,
            spares,
            ..
        } = self;
        let image = image.as_ref().map(|mapped| mapped.image());
        let Some(mut parked) = take_parked(&mut ports.places, at) else {
            return Batch::ended(End::Empty);
        };
        let mut batch = Batch::default();
        while batch.goes_on(allowance) {
            if now < switch.paused_until(slot) {
                batch.end = End::Paused;
                break;
            }
            let Some(Sink::Tap(tap)) = ports.sinks.get(at) else {
                batch.end = End::Empty;
                break;
            };
            let (offload, total) = match tap.recv(buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    batch.end = End::Empty;
                    break;
                }
                Err(PortError::Truncated) => {
                    telling.dropped(slot, DropReason::Oversize, now);
                    batch.took(0, lost_call());
                    continue;
                }
                // Reading fails when the interface is gone: one that is down has
                // nothing to read.
                Err(PortError::Vanished | PortError::Down) => {
                    batch.end = End::Closed(system(Errno::NODEV));
                    break;
                }
                Err(_) => {
                    telling.dropped(slot, DropReason::PortRefused, now);
                    batch.took(0, lost_call());
                    continue;
                }
            };
            telling.frame_calls(1);
            let mut head = [0u8; HEAD];
            let length = total.min(HEAD);
            if let (Some(to), Some(from)) = (head.get_mut(..length), buffer.get(..length)) {
                to.copy_from_slice(from);
            }
            let outlets = Outlets {
                sinks: &mut ports.sinks,
                places: &mut ports.places,
                touched: &mut *touched,
                telling: &mut *telling,
                workshop: &mut *workshop,
                capture: &mut *capture,
                shaper: &mut *shaper,
                work: tapped(),
                now,
            };
            let frame = Arrived {
                slot,
                tag: 0,
                offload,
                total,
                known: true,
            };
            let head = head.get_mut(..length).unwrap_or(&mut []);
            let payload = Payload::Buffer(buffer.get(..total).unwrap_or(&[]));
            let cost = handle(
                switch,
                image.as_ref(),
                outlets,
                frame,
                head,
                payload,
                &mut parked,
            );
            batch.took(total, cost);
            if parked.since.is_some() {
                // More memory for every tap that waits would be the guests' to ask for.
                let more = (!guard!("switch-spares")).then(|| buffer.clone());
                match spares.pop().or(more) {
                    Some(spare) => {
                        parked.buffer = Some(core::mem::replace(buffer, spare));
                        batch.end = End::Parked;
                        break;
                    }
                    None => {
                        parked.since = None;
                        telling.dropped(slot, DropReason::QueueFull, now);
                    }
                }
            }
        }
        put_parked(&mut ports.places, at, parked);
        batch
    }

    /// Hands over what waited for a rate toward its receiver and may go now; whether
    /// anything did.
    fn release(&mut self, now: u64) -> bool {
        if now < self.shaper.due() {
            return false;
        }
        // Apart while the ports are lent; nothing is put into what stands in its place.
        let mut shaper = core::mem::take(&mut self.shaper);
        let mut outlets = self.outlets(now);
        let mut moved = false;
        shaper.release(now, |frame| {
            let whole = Payload::Buffer(&[]);
            let fate = match outlets.transmit(frame, whole) {
                Fate::Full => {
                    outlets.publish();
                    outlets.transmit(frame, whole)
                }
                fate => fate,
            };
            let handed = match fate {
                Fate::Sent => Handed::Sent,
                Fate::Full => return Handed::Full,
                Fate::Lost(reason) => {
                    outlets.telling.dropped(frame.slot, reason, now);
                    Handed::Lost(reason)
                }
            };
            moved = true;
            let at = frame.slot as usize;
            outlets
                .telling
                .counters
                .count(at, Counter::Released, frame.wire as u64);
            handed
        });
        self.shaper = shaper;
        moved
    }

    /// Forgets what waits for a slot, whose port is gone.
    pub fn forget(&mut self, slot: Slot) {
        let frames = self.shaper.forget(slot);
        if frames > 0 {
            let reason = DropReason::PortClosed;
            self.telling.no_longer_wait(slot, frames, reason);
        }
    }

    /// A step of the listing that is under way; whether there was one.
    fn list(&mut self, now: u64) -> bool {
        let Some(listing) = self.listing.as_mut() else {
            return false;
        };
        if listing.step(&self.switch, now) {
            self.listing = None;
        }
        true
    }

    fn tick(&mut self, now: u64) {
        if now < self.switch.next_deadline() {
            return;
        }
        let (switch, Some(image), outlets) = self.parts(now) else {
            return;
        };
        let mut outlet = Outlet {
            outlets,
            payload: Payload::None,
            from: FABRIC,
            parked: None,
            reason: None,
            denied: None,
        };
        switch.tick(&image, now, &mut outlet);
        self.tell_restored(now);
    }

    /// How long to wait after a turn without work: not at all while it still spins,
    /// for ever once everything is armed.
    fn patience(&mut self, now: u64) -> Option<u64> {
        let until = |time: u64| time.saturating_sub(now);
        let mut limit = match self.switch.next_deadline() {
            u64::MAX => None,
            deadline => Some(until(deadline)),
        };
        let mut at_most = |ns: u64| limit = Some(limit.map_or(ns, |l| l.min(ns)));
        if !self.parked.is_empty() {
            at_most(PATIENCE / 2);
        }
        if !self.paused.is_empty() {
            at_most(until(self.next_resume));
        }
        if self.shaper.due() != u64::MAX {
            at_most(until(self.shaper.due()));
        }
        if !self.settling.is_empty() {
            at_most(ECHO_POLL);
        }
        if self.traced_until != u64::MAX {
            at_most(until(self.traced_until));
        }
        if self.waiting.mode == WAIT_POLL {
            at_most(self.waiting.ns);
            return limit;
        }
        if now.saturating_sub(self.last_work) < self.waiting.ns {
            return Some(0);
        }
        let Attached { rounds, ports, .. } = self;
        let mut more = false;
        rounds.retain(|slot| {
            let at = slot as usize;
            let waits = |place: &Place| place.is_parked() || place.settling;
            let stays = more || ports.places.get(at).is_some_and(waits);
            if !stays && let Some(Source::Channel(receiver)) = ports.sources.get_mut(at) {
                // Arming fails where something came meanwhile, or the peer misbehaved.
                more = !receiver.ring.arm().unwrap_or(false);
            }
            stays || more
        });
        if more {
            return Some(0);
        }
        limit
    }

    /// Before sleeping.
    pub fn falls_asleep(&mut self) {
        self.telling.counters.set(ProcessWord::Asleep, 1);
        self.telling.counters.add_process(ProcessWord::Sleeps, 1);
    }

    /// After it.
    pub fn wakes_up(&mut self) {
        self.telling.counters.set(ProcessWord::Asleep, 0);
    }

    /// A slot has something to read: its doorbell rang, or its tap is readable.
    pub fn wake(&mut self, slot: Slot) {
        let at = slot as usize;
        let mut closed = None;
        if let Some(Source::Channel(receiver)) = self.ports.sources.get_mut(at) {
            self.telling.counters.add_process(ProcessWord::Doorbells, 1);
            match receiver.bell.drain() {
                Ok(rings) => closed = receiver.ring.rung(rings).err().map(|breach| breach as u32),
                Err(_) => closed = Some(system(Errno::PIPE)),
            }
            if let Some(Sink::Channel(sender)) = self.ports.sinks.get_mut(at)
                && let Err(breach) = sender.ring.poll()
            {
                closed = Some(breach as u32);
            }
        }
        match closed {
            Some(reason) => self.closed.push((slot, reason)),
            None => self.activate(slot),
        }
    }
}

/// A frame that arrived.
struct Arrived {
    slot: Slot,
    tag: u16,
    offload: RawOffload,
    total: usize,
    /// It is of a kind that a switch takes.
    known: bool,
}

/// Handles a frame; what that cost.
fn handle(
    switch: &mut Switch,
    image: Option<&CompartmentImage<'_>>,
    outlets: Outlets<'_>,
    frame: Arrived,
    head: &mut [u8],
    payload: Payload<'_>,
    parked: &mut Parked,
) -> u64 {
    let now = outlets.now;
    if let Some(capture) = outlets.capture.as_mut() {
        capture.remember((frame.slot, frame.tag), head, frame.offload);
    }
    let length = head.len();
    let mut outlet = Outlet {
        outlets,
        payload,
        from: frame.slot,
        parked: Some(parked),
        reason: None,
        denied: None,
    };
    match image {
        Some(image) if frame.known => {
            let ingress = Ingress {
                from: frame.slot,
                tag: frame.tag,
                offload: frame.offload,
                head,
                total: frame.total,
            };
            switch.process(image, now, ingress, &mut outlet);
        }
        Some(_) => switch::Output::dropped(&mut outlet, frame.slot, DropReason::Malformed),
        None => switch::Output::dropped(&mut outlet, frame.slot, DropReason::NoImage),
    }
    let (reason, denied) = (outlet.reason, outlet.denied);
    if let Some(capture) = outlet.outlets.capture.as_mut() {
        let endpoint = outlet.outlets.telling.endpoint(frame.slot);
        let rest = |from: usize, into: &mut [u8]| payload.copy(from.max(length), into);
        capture.came(
            (frame.slot, endpoint),
            (reason, denied.as_ref()),
            frame.total,
            &rest,
        );
    }
    outlet.outlets.work.cost()
}

/// A frame read by a system call.
const fn tapped() -> Work {
    let mut work = Work::frame();
    work.called();
    work
}

/// What a call cost that gave no frame.
const fn lost_call() -> u64 {
    tapped().cost()
}
