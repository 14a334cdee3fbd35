//! A batch of frames from one slot: from a channel, a guest, a tap or a veth.

use crate::attached::Attached;
use crate::handling::{Arrived, Handling};
use crate::outlet::{Payload, outlets};
use crate::parking::{put_parked, take_parked};
use crate::ports::{Place, Sink, Source};
use guard::guard;
use port::PortError;
use ring::record::KIND_FRAME;
use rustix::io::Errno;
use switch::{Slot, Work};
use telemetry::counters::ProcessWord;
use telemetry::drops::DropReason;
use worker::system;

/// What a batch came to.
#[derive(Default)]
pub struct Batch {
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
    /// What was done for them (`switch::Work`).
    pub cost: u64,
    pub end: End,
}

/// How it ended.
#[derive(Default)]
pub enum End {
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
}

/// Before a frame.
pub enum Next {
    /// It may be taken.
    Frame,
    /// It may, and a part of the batch is over, or none has begun.
    Part,
    /// It is left where it is.
    Over(End),
}

impl Attached {
    /// One slot's batch, of so much work at most.
    pub fn run_slot(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        if self.ports.places.get(at).is_some_and(Place::is_parked) {
            return Batch::ended(End::Parked);
        }
        self.telling
            .counters
            .set_own(ProcessWord::Working, u64::from(slot) + 1);
        let mut batch = match self.ports.sources.get(at) {
            Some(Source::Channel(_)) => self.run_channel(slot, allowance, now),
            Some(Source::Device) => self.run_device(slot, allowance, now),
            Some(Source::Guest(Some(_))) => self.run_guest(slot, allowance, now),
            _ => Batch::ended(End::Empty),
        };
        batch.cost += Work::sought(self.switch.sought());
        self.telling.counters.set_own(ProcessWord::Working, 0);
        batch
    }

    fn run_channel(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        let Some(Source::Channel(receiver)) = self.ports.sources.get_mut(at) else {
            return Batch::ended(End::Empty);
        };
        let Some(parked) = take_parked(&mut self.ports.places, at) else {
            return Batch::ended(End::Empty);
        };
        let outlets = outlets!(self, now);
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        handling.allowance = allowance;
        let end = loop {
            match handling.next() {
                Next::Frame => {}
                Next::Part => handling.foresee(receiver),
                Next::Over(end) => break end,
            }
            let record = match receiver.ring.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break End::Empty,
                Err(breach) => break End::Closed(breach as u32),
            };
            let arrived = Arrived {
                tag: record.tag(),
                offload: record.offload(),
                total: record.len(),
                known: record.kind() == KIND_FRAME,
            };
            handling.frame(Work::frame(), arrived, Payload::Record(&record));
            if handling.parked.since.is_some() {
                break End::Parked;
            }
            receiver.ring.advance();
        };
        // Counted before it is given back, and so before its sender can know that it came.
        let (batch, parked) = handling.end(end);
        if !matches!(batch.end, End::Parked) {
            receiver.ring.release();
        }
        let lost = receiver.ring.take_lost().records;
        if lost > 0 {
            self.telling.counters.dropped(at, DropReason::Restart, lost);
        }
        put_parked(&mut self.ports.places, at, parked);
        batch
    }

    fn run_guest(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        let Some(Source::Guest(Some(from))) = self.ports.sources.get_mut(at) else {
            return Batch::ended(End::Empty);
        };
        let Some(parked) = take_parked(&mut self.ports.places, at) else {
            return Batch::ended(End::Empty);
        };
        let outlets = outlets!(self, now);
        let mut breach = None;
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        handling.allowance = allowance;
        let end = loop {
            match handling.next() {
                Next::Frame => {}
                Next::Part if handling.has_begun() => {
                    // Given back before it is seen, as at the batch's end: who dies between the
                    // two loses frames, and sends none twice.
                    handling.settle();
                    if let Some(Sink::Guest(port)) = handling.outlets.sinks.get_mut(at) {
                        port.done(from);
                    }
                    handling.publish();
                    continue;
                }
                Next::Part => {}
                Next::Over(end) => break end,
            }
            let frame = match from.peek() {
                Ok(Some(frame)) => frame,
                Ok(None) => break End::Empty,
                Err(found) => {
                    breach = Some(found as u32);
                    break End::Empty;
                }
            };
            let total = frame.len();
            let mut begun = Work::frame();
            begun.scattered(frame.scattered());
            if frame.is_over() {
                let telling = &mut handling.outlets.telling;
                telling.dropped(slot, DropReason::Oversize, now);
                handling.took(0, begun.cost());
                from.advance();
                continue;
            }
            let arrived = Arrived {
                tag: 0,
                offload: frame.offload(),
                total,
                known: true,
            };
            handling.frame(begun, arrived, Payload::Guest(&frame));
            if handling.parked.since.is_some() {
                break End::Parked;
            }
            from.advance();
        };
        let (batch, parked) = handling.end(end);
        if let Some(Sink::Guest(port)) = self.ports.sinks.get_mut(at) {
            port.done(from);
            // What is read where its owner cut it off is zeroes.
            if port.is_broken() {
                breach = breach.or(Some(system(Errno::FAULT)));
            }
        }
        if let Some(reason) = breach
            && self.ended.len() < self.ended.capacity()
        {
            self.ended.push((slot, reason));
        }
        put_parked(&mut self.ports.places, at, parked);
        batch
    }

    fn run_device(&mut self, slot: Slot, allowance: u64, now: u64) -> Batch {
        let at = slot as usize;
        let Some(parked) = take_parked(&mut self.ports.places, at) else {
            return Batch::ended(End::Empty);
        };
        let outlets = outlets!(self, now);
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        handling.allowance = allowance;
        let end = loop {
            if let Next::Over(end) = handling.next() {
                break end;
            }
            let Some(Sink::Device(device)) = handling.outlets.sinks.get(at) else {
                break End::Empty;
            };
            let (read, lost) = (device.recv(&mut self.buffer), device.take_lost());
            let telling = &mut *handling.outlets.telling;
            if lost > 0 {
                let counters = &telling.counters;
                counters.dropped(at, DropReason::QueueFull, lost.into());
            }
            let (offload, place) = match read {
                Ok(Some(frame)) => frame,
                Ok(None) => break End::Empty,
                Err(PortError::Truncated) => {
                    telling.dropped(slot, DropReason::Oversize, now);
                    handling.took(0, lost_call());
                    continue;
                }
                // Reading fails when the interface is gone: one that is down has
                // nothing to read.
                Err(PortError::Vanished | PortError::Down) => {
                    break End::Closed(system(Errno::NODEV));
                }
                Err(_) => {
                    telling.dropped(slot, DropReason::PortRefused, now);
                    handling.took(0, lost_call());
                    continue;
                }
            };
            telling.frame_calls(1);
            let arrived = Arrived {
                tag: 0,
                offload,
                total: place.len(),
                known: true,
            };
            let arrived_bytes = place.len();
            let payload = Payload::Buffer(self.buffer.get(place.clone()).unwrap_or(&[]));
            handling.frame(tapped(), arrived, payload);
            if handling.parked.since.is_some() {
                // More memory for every tap that waits would be the guests' to ask for.
                let more = (!guard!("switch-spares")).then(|| self.buffer.clone());
                match self.spares.pop().or(more) {
                    Some(spare) => {
                        handling.parked.buffer = Some(core::mem::replace(&mut self.buffer, spare));
                        handling.parked.at = place.start;
                        break End::Parked;
                    }
                    None => {
                        handling.parked.since = None;
                        let to = handling.parked.slot;
                        handling.outlets.lost_waiting(slot, to, arrived_bytes);
                    }
                }
            }
        };
        let (batch, parked) = handling.end(end);
        put_parked(&mut self.ports.places, at, parked);
        batch
    }
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
