//! One turn of the loop: a batch from each active slot, then timers, then the
//! question how long to wait.

use crate::attached::{Attached, Lists};
use crate::batch::End;
use crate::clock;
use crate::listing::{self, Listed};
use crate::outlet::{Fate, Outlet, Payload};
use crate::parking::PATIENCE;
use crate::ports::{Place, Sink, Source};
use command::verbs::WAIT_POLL;
use guard::guard;
use rounds::Outcome;
use rustix::io::Errno;
use switch::{FABRIC, Handed, Slot};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use worker::system;

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

impl Attached {
    /// One turn. Then: `None` = go on at once; else look at the epoll set and wait at
    /// most so long (`Some(None)` = for ever).
    pub fn turn(&mut self) -> Option<Option<u64>> {
        self.turns = self.turns.wrapping_add(1);
        self.beat();
        let now = clock::monotonic();
        self.now = now;
        if let Some(capture) = self.capture.as_mut() {
            capture.begin_batch(clock::realtime());
        }
        self.settle(now);
        self.resume(now);
        let unparked = self.retry_parked(now);
        self.follow_guests();
        let worked = self.run_active(now) | self.run_inbox(now) | unparked;
        self.tick(now);
        if now >= self.traced_until {
            self.end_trace(now);
        }
        let worked = worked | self.release(now) | self.list(now) | self.run_mirrors();
        self.outlets(now).publish();
        self.switch.settle();
        self.shaper.settle();
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
            // A turn has as many of these as there are slots, and each may be dear.
            self.beat();
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
            self.telling
                .counters
                .count(slot as usize, Counter::Work, batch.cost);
            self.rounds.price(slot, batch.cost, batch.bytes);
            self.rounds.settle(slot, batch.cost, outcome, stays);
        }
        worked
    }

    /// Says that it lives.
    pub fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
        self.telling
            .counters
            .set_own(ProcessWord::Heartbeat, self.beats);
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
        let first = may.min(RESUMED);
        for slot in self.paused.get(..first).unwrap_or_default() {
            self.switch.resumes(*slot, now);
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
    fn stays(&mut self, slot: Slot, frames: u32) -> bool {
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
            // The epoll set tells when a tap or veth has more.
            Source::Device | Source::Guest(None) => false,
            Source::Guest(Some(_)) if frames > 0 => {
                place.idle_turns = 0;
                true
            }
            Source::Guest(Some(_)) if polls => true,
            Source::Guest(Some(from)) => {
                place.idle_turns += 1;
                // A breach shows in the next batch.
                place.idle_turns < IDLE_TURNS || !from.arm().unwrap_or(false)
            }
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
            let fate = match outlets.transmit(FABRIC, frame, whole) {
                Fate::Full => {
                    outlets.publish();
                    outlets.transmit(FABRIC, frame, whole)
                }
                fate => fate,
            };
            let handed = match fate {
                // What waits does so at its port's worker.
                Fate::Sent | Fate::Handed | Fate::Relayed => Handed::Sent,
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
        let Some(under_way) = self.listing.as_mut() else {
            return false;
        };
        let (listing, to) = &mut **under_way;
        if listing.step(&self.switch, now) {
            let (rows, seen) = listing.rows();
            match to {
                Lists::Page(page) => listing::write(page, rows, seen),
                Lists::Crew(number, crew) => {
                    let listed = Listed {
                        number: *number,
                        rows: rows.to_vec(),
                        seen,
                    };
                    let _ = crew.send(listed);
                    self.has_listed = Some(*number);
                }
            }
            self.listing = None;
        }
        true
    }

    fn tick(&mut self, now: u64) {
        if now < self.switch.next_deadline() {
            return;
        }
        let (switch, Some(image), mut outlets) = self.parts(now) else {
            return;
        };
        let mut outlet = Outlet {
            outlets: &mut outlets,
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
            // Arming fails where something came meanwhile, or the peer misbehaved.
            match ports.sources.get_mut(at) {
                _ if stays => {}
                Some(Source::Channel(receiver)) => {
                    more = !receiver.ring.arm().unwrap_or(false);
                }
                Some(Source::Guest(Some(from))) => more = !from.arm().unwrap_or(false),
                _ => {}
            }
            stays || more
        });
        if more || !self.arm_inbox() {
            return Some(0);
        }
        limit
    }

    /// Before sleeping.
    pub fn falls_asleep(&mut self) {
        self.telling.counters.set_own(ProcessWord::Asleep, 1);
        self.telling.counters.add_process(ProcessWord::Sleeps, 1);
    }

    /// After it.
    pub fn wakes_up(&mut self) {
        self.telling.counters.set_own(ProcessWord::Asleep, 0);
    }

    /// A slot has something to read: its doorbell rang, or its tap is readable.
    pub fn wake(&mut self, slot: Slot) {
        let at = slot as usize;
        let mut closed = None;
        if let Some(Source::Guest(Some(from))) = self.ports.sources.get_mut(at) {
            self.telling.counters.add_process(ProcessWord::Doorbells, 1);
            from.disarm();
        }
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
