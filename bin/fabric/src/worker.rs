//! The loop: whose turn it is, one batch, what came meanwhile, sleep.

use crate::ports::Ports;
use crate::tally::Tally;
use crate::uplink::Partial;
use crate::wait::{Pace, Waiting, Woken, now};
use command::Message;
use command::verbs::{Attach, Report};
use fabric::{Batch, Outcome, Reports, Rounds, Turn, serve};
use image::MappedFabric;
use ring::State;
use seqpacket::Socket;
use shm::SealedImage;
use telemetry::counters::{Counter, ProcessWord};
use telemetry::recorder::EventKind;
use worker::Outbox;

/// Batches between two looks at the clock for what else came.
const VISITS: usize = 16;
/// Least time between two looks at doorbells and control while there is work, ns.
const LOOK_NS: u64 = 20_000;
/// How often a peer's echo is looked for: it does not ring, ns.
const ECHO_NS: u64 = 200_000;
/// How often it is looked for whether an interface that is down is gone, ns.
const DOUBT_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests;

/// The fabric's process.
pub struct Worker {
    pub(crate) control: Socket,
    pub(crate) outbox: Outbox,
    pub(crate) waiting: Waiting,
    pub(crate) pace: Pace,
    pub(crate) ports: Ports,
    pub(crate) tally: Tally,
    pub(crate) rounds: Rounds,
    pub(crate) reports: Reports,
    pub(crate) image: Option<MappedFabric<SealedImage>>,
    /// When each slot last gave a frame.
    busy: Box<[u64]>,
    /// Since when each slot waits for room; 0 = it does not.
    parked: Box<[u64]>,
    /// Slots whose handshake is under way.
    pub(crate) settling: Vec<u32>,
    /// An uplink that is not plugged in yet.
    pub(crate) partial: Option<Partial>,
    looked: u64,
    pub(crate) quits: bool,
}

impl Worker {
    pub(crate) fn new(control: Socket, attach: &Attach, tally: Tally) -> std::io::Result<Worker> {
        let slots = attach.slots as usize;
        Ok(Worker {
            waiting: Waiting::new(&control)?,
            control,
            outbox: Outbox::new(slots),
            pace: Pace::of(attach),
            ports: Ports::new(slots),
            tally,
            rounds: Rounds::new(slots, fabric::UNITS),
            reports: Reports::new(slots),
            image: None,
            busy: vec![0; slots].into(),
            parked: vec![0; slots].into(),
            settling: Vec::with_capacity(slots),
            partial: None,
            looked: 0,
            quits: false,
        })
    }

    /// One turn of the loop; `false`: told to end.
    ///
    /// # Errors
    /// The control socket or the set of descriptors failed: nothing can go on.
    pub fn turn(&mut self) -> Result<bool, Box<dyn std::error::Error>> {
        self.tally.beat();
        let mut now = now();
        let mut worked = false;
        let mut parked_only = true;
        // Without an image nothing is served, and what came waits where it is.
        if let Some(image) = self.image.take() {
            // Bound: VISITS batches, or each channel once, whichever is less.
            for _ in 0..VISITS.min(self.rounds.active()) {
                let Some((slot, allowance)) = self.rounds.next(now) else {
                    break;
                };
                let (moved, outcome) = self.visit(&image, slot, allowance, now);
                worked |= moved;
                parked_only &= outcome == Outcome::Parked;
                now = crate::wait::now();
            }
            self.image = Some(image);
        }
        // The kernel tells nobody when it would take what waits, or that an interface which
        // is down goes.
        let soon = match (
            self.ports.kick_waiting(&mut self.tally),
            self.ports.look_again(now),
        ) {
            (true, _) => fabric::serve::PARK_NS,
            (false, true) => DOUBT_NS,
            (false, false) => u64::MAX,
        };
        self.settle_channels(now);
        self.close_broken(now);
        self.report(now);

        let active = self.image.is_some() && self.rounds.active() != 0;
        if active && worked && now.saturating_sub(self.looked) < LOOK_NS {
            return Ok(true);
        }
        self.looked = now;
        let timeout = if !active {
            (!self.settling.is_empty()).then_some(ECHO_NS)
        } else if parked_only {
            Some(fabric::serve::PARK_NS)
        } else {
            Some(if worked { 0 } else { self.pace.period_ns() })
        };
        let soonest = timeout.unwrap_or(u64::MAX).min(soon);
        self.look((soonest != u64::MAX).then_some(soonest))?;
        Ok(!self.quits)
    }

    /// One batch of one channel. `true`: frames moved.
    fn visit(
        &mut self,
        image: &MappedFabric<SealedImage>,
        slot: u32,
        allowance: u64,
        now: u64,
    ) -> (bool, Outcome) {
        let index = slot as usize;
        let parked = self.parked.get(index).copied().unwrap_or(0);
        let turn = Turn {
            allowance,
            now,
            parked,
            may_park: self.ports.may_park(slot),
        };
        self.tally.now = now;
        // Kept by the keeper: if this batch kills us, it is known whose it was.
        self.tally
            .counters
            .set(ProcessWord::Working, u64::from(slot) + 1);
        let Batch {
            cost,
            bytes,
            outcome,
        } = {
            let (mut from, mut to) = self.ports.ends(slot);
            serve(
                &image.image(),
                slot,
                &mut from,
                &mut to,
                &mut self.tally,
                turn,
            )
        };
        self.ports.end_batch(slot, &mut self.tally);
        self.tally.counters.set(ProcessWord::Working, 0);
        if let Some(parked) = self.parked.get_mut(index) {
            *parked = match (outcome, *parked) {
                (Outcome::Parked, 0) => now,
                (Outcome::Parked, since) => since,
                // A batch that ended otherwise has moved or dropped what waited.
                _ => 0,
            };
        }
        if cost != 0
            && let Some(busy) = self.busy.get_mut(index)
        {
            *busy = now;
        }
        let mut stay = false;
        if outcome == Outcome::Empty {
            let idle = now.saturating_sub(self.busy.get(index).copied().unwrap_or(0));
            stay = self.ports.is_channel(slot) && self.pace.lingers(idle);
            // Arming fails where something came meanwhile: then it stays.
            stay |= !stay && !self.ports.arm(slot);
        }
        self.rounds.price(slot, cost, bytes);
        self.rounds.settle(slot, cost, outcome, stay);
        (cost != 0, outcome)
    }

    /// Doorbells, uplinks and the control socket; sleeps where there is nothing to do.
    fn look(&mut self, timeout: Option<u64>) -> Result<(), Box<dyn std::error::Error>> {
        self.outbox.flush(&self.control);
        let timeout = self.outbox.patience(timeout);
        let sleeps = timeout != Some(0);
        if sleeps {
            self.tally.counters.add_process(ProcessWord::Sleeps, 1);
            self.tally.counters.set(ProcessWord::Asleep, 1);
        }
        let woken = self.waiting.wait(timeout);
        if sleeps {
            self.tally.counters.set(ProcessWord::Asleep, 0);
        }
        let woken = woken?;
        let now = now();
        for event in 0..woken {
            match self.waiting.event(event) {
                Some(Woken::Control) => self.receive(now)?,
                Some(Woken::Port(slot)) if self.ports.wake(slot, &mut self.tally) => {
                    self.settling_again(slot);
                    self.rounds.activate(slot, now);
                }
                Some(Woken::Guard(slot)) => self.ports.look_after(slot, now),
                _ => {}
            }
        }
        self.close_broken(now);
        Ok(())
    }

    pub(crate) fn settling_again(&mut self, slot: u32) {
        let waits = self.ports.state(slot) == State::AwaitingEcho;
        if waits && !self.settling.contains(&slot) {
            self.settling.push(slot);
        }
    }

    /// Handshakes under way: whether the peer has echoed, or is to be replaced.
    /// Bound: the slots.
    fn settle_channels(&mut self, now: u64) {
        let mut at = 0;
        while let Some(slot) = self.settling.get(at).copied() {
            let waited = self.ports.settle(slot, now);
            match waited {
                Some(None) => {
                    at += 1;
                    continue;
                }
                Some(Some(_)) => self.replace(slot),
                None => {
                    self.tally.record(EventKind::Resynced, slot, 0, 0, now);
                    self.rounds.activate(slot, now);
                }
            }
            self.settling.swap_remove(at);
        }
    }

    /// Closes what broke its protocol, and nothing else.
    fn close_broken(&mut self, now: u64) {
        while let Some((slot, reason)) = self.ports.next_broken() {
            self.tally
                .record(EventKind::PortClosed, slot, reason.into(), 0, now);
            self.unplug(slot);
            self.say_closed(slot, reason);
        }
    }

    pub(crate) fn unplug(&mut self, slot: u32) {
        self.waiting.forget(self.ports.descriptor(slot));
        for queue in self.ports.queues(slot) {
            self.waiting.forget(Some(queue));
        }
        self.ports.remove(slot);
        self.partial.take_if(|partial| partial.slot == slot);
        self.rounds.remove(slot);
        self.settling.retain(|other| *other != slot);
        if let Some(parked) = self.parked.get_mut(slot as usize) {
            *parked = 0;
        }
    }

    /// Tells on a channel that spoke with what is not its own.
    fn report(&mut self, now: u64) {
        let Some((slot, reason, head)) = self.tally.suspicious.take() else {
            return;
        };
        if !self.reports.is_due(slot, now) {
            return;
        }
        self.tally
            .counters
            .count(slot as usize, Counter::Reports, 1);
        self.tally
            .record(EventKind::Report, slot, reason as u64, 0, now);
        self.say(Message::new(
            0,
            &Report {
                slot,
                reason: reason as u32,
                head: head.first_chunk().copied().unwrap_or([0; 64]),
            },
        ));
    }
}
