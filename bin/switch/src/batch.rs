//! A batch of frames from one slot: from a channel, a guest, a tap or a veth.

use crate::attached::Attached;
use crate::outlet::{Fate, Outlet, Outlets, Payload, outlets, to_group};
use crate::parking::{Parked, put_parked, take_parked};
use crate::ports::{Place, Sink, Source};
use guard::guard;
use image::MappedCompartment;
use port::PortError;
use ring::record::KIND_FRAME;
use rustix::io::Errno;
use shm::{Receiver, SealedImage};
use switch::{AHEAD, Credit, FABRIC, FORESEEN, HEAD, Hit, Ingress, Outgoing, Slot, Switch, Work};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::offload::RawOffload;
use worker::system;

/// Frames of one slot at most before the next slot's turn.
const BATCH: usize = 64;
/// Frames of a batch after which those who receive them may see them: a guest at whose back
/// the next are due would wait for a whole batch.
const SEEN: usize = 16;
/// And bytes: the answers to what a slot sends wait for the other slots' turns, and
/// 64 offloaded frames are 4 MiB.
const BATCH_BYTES: u64 = 128 << 10;
/// First bytes that are copied of a frame that may be like one before: a whole small one.
const SHORT: usize = 64;

/// What a batch came to.
#[derive(Default)]
pub struct Batch {
    pub frames: usize,
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

    /// Whether another frame may be taken.
    pub fn goes_on(&self, allowance: u64) -> bool {
        self.frames < BATCH && self.bytes < BATCH_BYTES && self.cost < allowance
    }

    /// Counts a frame that was taken in.
    pub fn took(&mut self, bytes: usize, cost: u64) {
        self.frames += 1;
        self.bytes += bytes as u64;
        self.cost += cost;
    }
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
        let mut batch = Batch::default();
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        while batch.goes_on(allowance) {
            if handling.is_paused() {
                batch.end = End::Paused;
                break;
            }
            if batch.frames.is_multiple_of(AHEAD) {
                batch.cost += handling.sought();
                handling.foresee(receiver, batch.frames);
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
            let arrived = Arrived {
                tag: if slot == FABRIC { record.tag() } else { 0 },
                offload: record.offload(),
                total: record.len(),
                known: record.kind() == KIND_FRAME,
            };
            let cost = handling.frame(Work::frame(), arrived, Payload::Record(&record));
            batch.took(record.len(), cost);
            if handling.parked.since.is_some() {
                batch.end = End::Parked;
                break;
            }
            receiver.ring.advance();
        }
        // Counted before it is given back, and so before its sender can know that it came.
        let parked = handling.end();
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
        let mut batch = Batch::default();
        let mut breach = None;
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        while batch.goes_on(allowance) {
            if batch.frames.is_multiple_of(SEEN) && batch.frames != 0 {
                // Given back before it is seen, as at the batch's end: who dies between the two
                // loses frames, and sends none twice.
                handling.settle();
                if let Some(Sink::Guest(port)) = handling.outlets.sinks.get_mut(at) {
                    port.done(from);
                }
                handling.publish();
            }
            if handling.is_paused() {
                batch.end = End::Paused;
                break;
            }
            let frame = match from.peek() {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    batch.end = End::Empty;
                    break;
                }
                Err(found) => {
                    breach = Some(found as u32);
                    batch.end = End::Empty;
                    break;
                }
            };
            let total = frame.len();
            let mut begun = Work::frame();
            begun.scattered(frame.scattered());
            if frame.is_over() {
                let telling = &mut handling.outlets.telling;
                telling.dropped(slot, DropReason::Oversize, now);
                batch.took(0, begun.cost());
                from.advance();
                continue;
            }
            let arrived = Arrived {
                tag: 0,
                offload: frame.offload(),
                total,
                known: true,
            };
            let cost = handling.frame(begun, arrived, Payload::Guest(&frame));
            batch.took(total, cost);
            if handling.parked.since.is_some() {
                batch.end = End::Parked;
                break;
            }
            from.advance();
        }
        let parked = handling.end();
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
        let mut batch = Batch::default();
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, slot, parked);
        while batch.goes_on(allowance) {
            if handling.is_paused() {
                batch.end = End::Paused;
                break;
            }
            let Some(Sink::Device(device)) = handling.outlets.sinks.get(at) else {
                batch.end = End::Empty;
                break;
            };
            let (read, lost) = (device.recv(&mut self.buffer), device.take_lost());
            let telling = &mut *handling.outlets.telling;
            if lost > 0 {
                let counters = &telling.counters;
                counters.dropped(at, DropReason::QueueFull, lost.into());
            }
            let (offload, place) = match read {
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
            let arrived = Arrived {
                tag: 0,
                offload,
                total: place.len(),
                known: true,
            };
            let arrived_bytes = place.len();
            let payload = Payload::Buffer(self.buffer.get(place.clone()).unwrap_or(&[]));
            let cost = handling.frame(tapped(), arrived, payload);
            batch.took(place.len(), cost);
            if handling.parked.since.is_some() {
                // More memory for every tap that waits would be the guests' to ask for.
                let more = (!guard!("switch-spares")).then(|| self.buffer.clone());
                match self.spares.pop().or(more) {
                    Some(spare) => {
                        handling.parked.buffer = Some(core::mem::replace(&mut self.buffer, spare));
                        handling.parked.at = place.start;
                        batch.end = End::Parked;
                        break;
                    }
                    None => {
                        handling.parked.since = None;
                        let to = handling.parked.slot;
                        handling.outlets.lost_waiting(slot, to, arrived_bytes);
                    }
                }
            }
        }
        let parked = handling.end();
        put_parked(&mut self.ports.places, at, parked);
        batch
    }
}

/// A frame that arrived.
pub struct Arrived {
    pub tag: u16,
    pub offload: RawOffload,
    pub total: usize,
    /// It is of a kind that a switch takes.
    pub known: bool,
}

/// What the frames of one batch are handled with.
pub struct Handling<'a, 'b> {
    switch: &'a mut Switch,
    image: &'a Option<MappedCompartment<SealedImage>>,
    pub outlets: Outlets<'b>,
    slot: Slot,
    pub parked: Box<Parked>,
    /// Other workers' slots sent them, and they are this one's to handle.
    pub is_relayed: bool,
    /// Frames like ones before go the short way: nobody captures, and they come from an
    /// endpoint.
    short: bool,
    /// What the sender may still send so before its rates are asked again, and what it did
    /// since they were charged.
    credit: Credit,
    frames: u64,
    bytes: u64,
    head: [u8; SHORT],
}

impl<'a, 'b> Handling<'a, 'b> {
    pub fn new(
        switch: &'a mut Switch,
        image: &'a Option<MappedCompartment<SealedImage>>,
        outlets: Outlets<'b>,
        slot: Slot,
        parked: Box<Parked>,
    ) -> Handling<'a, 'b> {
        let outlets = Outlets {
            from: slot,
            ..outlets
        };
        Handling {
            short: slot != FABRIC && image.is_some() && outlets.capture.is_none(),
            switch,
            image,
            outlets,
            slot,
            parked,
            is_relayed: false,
            credit: Credit::NONE,
            frames: 0,
            bytes: 0,
            head: [0; SHORT],
        }
    }

    /// Looks up together what the next frames begin with, where most of the last ones, so many
    /// of this batch, were not like ones before.
    #[inline(never)]
    fn foresee(&mut self, receiver: &Receiver, frames: usize) {
        if !self.short || !self.switch.misses(frames.min(AHEAD)) {
            return;
        }
        let mut heads = [[0; FORESEEN]; AHEAD];
        let n = receiver.ring.ahead(AHEAD, |at, record| {
            if let Some(head) = heads.get_mut(at) {
                record.copy(0, head);
            }
        });
        self.switch
            .foresee(self.slot, heads.get(..n).unwrap_or(&[]));
    }

    /// Whether the slot's frames are to be left where they are.
    #[inline(always)]
    fn is_paused(&mut self) -> bool {
        !self.credit.is_left() && self.asks()
    }

    /// Asks the sender's rates, after what it sent was charged.
    #[inline(never)]
    fn asks(&mut self) -> bool {
        self.settle();
        let now = self.outlets.now;
        if now < self.switch.paused_until(self.slot) {
            return true;
        }
        if self.short {
            self.credit = self.switch.credit(now, self.slot);
            self.short = self.credit.is_left();
        }
        false
    }

    /// Counts and charges what went the short way.
    fn settle(&mut self) {
        if self.frames != 0 {
            self.switch.charge(self.slot, self.bytes, self.frames);
            let telling = &mut self.outlets.telling;
            telling.came(self.slot, self.frames, self.bytes);
            (self.frames, self.bytes) = (0, 0);
        }
        self.credit = Credit::NONE;
    }

    /// What was looked up since this was last asked cost.
    pub fn sought(&mut self) -> u64 {
        Work::sought(self.switch.sought())
    }

    /// Lets receivers see what was sent, before the batch is over.
    #[inline(never)]
    fn publish(&mut self) {
        self.outlets.end_run();
        self.outlets.publish();
    }

    /// The end of the batch.
    pub fn end(mut self) -> Box<Parked> {
        self.settle();
        self.outlets.end_run();
        self.parked
    }

    /// Handles a frame, of which `begun` was done already; what it cost.
    #[inline(always)]
    pub fn frame(&mut self, begun: Work, frame: Arrived, payload: Payload<'_>) -> u64 {
        if self.short && frame.known {
            let length = payload.copy(0, &mut self.head);
            let head = self.head.get_mut(..length).unwrap_or(&mut []);
            let (now, slot, total) = (self.outlets.now, self.slot, frame.total);
            if let Some(hit) = self.switch.hit(now, slot, &frame.offload, head, total) {
                self.credit.take(total);
                self.frames += 1;
                self.bytes += total as u64;
                self.outlets.work = begun;
                return match self.outlets.forward(&hit, head, total, payload) {
                    Fate::Sent => self.outlets.work.passed(total),
                    fate => self.otherwise(fate, &hit, total, length, payload),
                };
            }
        }
        self.judge(begun, frame, payload)
    }

    /// Goes on with what another slot of another worker's sent.
    pub fn turn_to(&mut self, slot: Slot) {
        if self.slot != slot {
            self.settle();
            self.slot = slot;
            self.outlets.from = slot;
            self.short = self.image.is_some() && self.outlets.capture.is_none();
        }
        // Its home has it pay: here it has all it wants.
        let _ = self.is_paused();
    }

    /// Sends what another worker has handled to a port of this one's; what it cost.
    pub fn deliver(
        &mut self,
        from: Slot,
        frame: &Outgoing<'_>,
        payload: Payload<'_>,
        ours: bool,
    ) -> u64 {
        self.outlets.end_run();
        self.outlets.work = Work::frame();
        let mut head = [0u8; HEAD];
        let length = payload.copy(0, &mut head);
        let head = head.get(..length).unwrap_or(&[]);
        // What the switch made itself is nothing forwarded.
        let payload = match ours && length == frame.total {
            true => Payload::None,
            false => payload,
        };
        let frame = Outgoing {
            head,
            rest_from: length,
            ..*frame
        };
        let takes = self.switch.may_take(frame.slot, &frame.offload);
        let outlets = &mut self.outlets;
        let fate = match takes {
            true => outlets.send(from, &frame, payload),
            false => Fate::Lost(DropReason::PortRefused),
        };
        let fate = match fate {
            Fate::Full => {
                outlets.publish();
                outlets.send(from, &frame, payload)
            }
            fate => fate,
        };
        let (telling, now) = (&mut outlets.telling, outlets.now);
        match fate {
            Fate::Sent | Fate::Handed | Fate::Relayed => {}
            Fate::Full => telling.dropped(from, DropReason::QueueFull, now),
            Fate::Lost(DropReason::PortClosed) if to_group(head) => {}
            Fate::Lost(reason) => telling.dropped(from, reason, now),
        }
        outlets.work.cost()
    }

    /// One that another worker has now, which counts it.
    fn relayed(&mut self, total: usize) -> u64 {
        self.frames -= 1;
        self.bytes -= total as u64;
        self.outlets.work.passed(total)
    }

    /// Gives a frame to the worker that owns its flow; whether it is done with here.
    fn relay(&mut self, frame: &Arrived, head: &mut [u8], payload: Payload<'_>) -> bool {
        let Some(workers) = self.outlets.peers.as_ref().map(|peers| peers.workers) else {
            return false;
        };
        let Some(image) = self.image.as_ref().map(MappedCompartment::image) else {
            return false;
        };
        if self.is_relayed || self.slot == FABRIC || !frame.known {
            return false;
        }
        let length = head.len();
        let ingress = Ingress {
            from: self.slot,
            tag: frame.tag,
            offload: frame.offload,
            head,
            total: frame.total,
        };
        let now = self.outlets.now;
        match self.switch.owner(&image, now, &ingress) {
            Ok(owner) if owner == workers.this() => false,
            Ok(owner) => {
                let whole = Outgoing {
                    slot: workers.relay(self.outlets.places.len(), owner),
                    tag: 0,
                    offload: frame.offload,
                    head: ingress.head,
                    rest_from: length,
                    total: frame.total,
                    segments: 1,
                    wire: frame.total,
                    came_by: 0,
                };
                let mut outlet = Outlet {
                    outlets: &mut self.outlets,
                    payload,
                    from: self.slot,
                    parked: Some(&mut self.parked),
                    reason: None,
                    denied: None,
                };
                switch::Output::send(&mut outlet, &whole);
                true
            }
            Err(reason) => {
                let (at, telling) = (self.slot as usize, &mut self.outlets.telling);
                telling.counters.count(at, Counter::RxFrames, 1);
                let bytes = frame.total as u64;
                telling.counters.count(at, Counter::RxBytes, bytes);
                telling.dropped(self.slot, reason, now);
                true
            }
        }
    }

    /// One that did not go to a port of this worker's at once.
    #[inline(never)]
    fn otherwise(
        &mut self,
        fate: Fate,
        hit: &Hit,
        total: usize,
        length: usize,
        payload: Payload<'_>,
    ) -> u64 {
        match fate {
            Fate::Sent | Fate::Handed => self.outlets.work.passed(total),
            Fate::Relayed => self.relayed(total),
            Fate::Full => self.send(hit, total, length, payload),
            Fate::Lost(reason) => self.lost(reason),
        }
    }

    /// Sends one that its receiver, or its rate, did not take at once.
    #[cold]
    #[inline(never)]
    fn send(&mut self, hit: &Hit, total: usize, length: usize, payload: Payload<'_>) -> u64 {
        if self.outlets.is_relay(hit.slot) {
            self.frames -= 1;
            self.bytes -= total as u64;
        }
        self.outlets.end_run();
        let head = self.head.get(..length).unwrap_or(&[]);
        let outgoing = hit.outgoing(head, total);
        let mut outlet = Outlet {
            outlets: &mut self.outlets,
            payload,
            from: self.slot,
            parked: Some(&mut self.parked),
            reason: None,
            denied: None,
        };
        switch::Output::send(&mut outlet, &outgoing);
        self.outlets.work.cost()
    }

    /// One that its port will never take.
    #[cold]
    #[inline(never)]
    fn lost(&mut self, reason: DropReason) -> u64 {
        let outlets = &mut self.outlets;
        outlets.telling.dropped(self.slot, reason, outlets.now);
        outlets.work.cost()
    }

    /// Handles a frame of which nothing is known.
    #[inline(never)]
    fn judge(&mut self, begun: Work, frame: Arrived, payload: Payload<'_>) -> u64 {
        self.settle();
        self.outlets.end_run();
        self.outlets.work = begun;
        if guard!("work-handled") {
            self.outlets.work.handled();
        }
        let now = self.outlets.now;
        let mut head = [0u8; HEAD];
        let length = payload.copy(0, &mut head);
        let head = head.get_mut(..length).unwrap_or(&mut []);
        if self.relay(&frame, head, payload) {
            return self.outlets.work.cost();
        }
        if let Some(capture) = self.outlets.capture.as_mut() {
            capture.remember((self.slot, frame.tag), head, frame.offload);
        }
        let mut outlet = Outlet {
            outlets: &mut self.outlets,
            payload,
            from: self.slot,
            parked: Some(&mut self.parked),
            reason: None,
            denied: None,
        };
        match self.image.as_ref().map(MappedCompartment::image) {
            Some(image) if frame.known => {
                let ingress = Ingress {
                    from: self.slot,
                    tag: frame.tag,
                    offload: frame.offload,
                    head,
                    total: frame.total,
                };
                self.switch.judge(&image, now, ingress, &mut outlet);
            }
            Some(_) => switch::Output::dropped(&mut outlet, self.slot, DropReason::Malformed),
            None => switch::Output::dropped(&mut outlet, self.slot, DropReason::NoImage),
        }
        let (reason, denied) = (outlet.reason, outlet.denied);
        if let Some(capture) = self.outlets.capture.as_mut() {
            let endpoint = self.outlets.telling.endpoint(self.slot);
            let rest = |from: usize, into: &mut [u8]| payload.copy(from.max(length), into);
            capture.came(
                (self.slot, endpoint),
                (reason, denied.as_ref()),
                frame.total,
                &rest,
            );
        }
        self.outlets.work.cost()
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
