//! What the frames of one batch are handled with: the short way where they are like ones
//! before, the pipeline where they are not.

use crate::batch::{Batch, End, Next};
use crate::outlet::{Fate, Outlet, Outlets, Payload, to_group};
use crate::parking::Parked;
use guard::guard;
use image::MappedCompartment;
use ring::FIRST;
use shm::{Receiver, SealedImage};
use switch::{AHEAD, Amount, FABRIC, FORESEEN, HEAD, Hit, Ingress, Outgoing, Slot, Switch, Work};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::offload::RawOffload;

/// Frames of one slot at most before the next slot's turn, and bytes: the answers to what it
/// sends wait for the other slots' turns, and 64 offloaded frames are 4 MiB.
const BATCH: Amount = Amount {
    frames: 64,
    bytes: 128 << 10,
};
/// Frames of a batch after which the next are looked up together, and those who receive the
/// last may see them: a guest at whose back the next are due would wait for a whole batch.
const PART: u32 = AHEAD as u32;

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
    /// Work at most.
    pub allowance: u64,
    /// Work so far.
    cost: u64,
    /// Until where its sender's rates let the short way go, and until where they were charged.
    credit: Amount,
    charged: Amount,
    /// Frames that went another way.
    others: Amount,
    /// Frames after which a part of the batch is over.
    part: u32,
    head: [u8; FIRST],
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
            allowance: 0,
            cost: 0,
            credit: Amount::default(),
            charged: Amount::default(),
            others: Amount::default(),
            part: 0,
            head: [0; FIRST],
        }
    }

    /// Whether the next frame may be taken.
    #[inline(always)]
    pub fn next(&mut self) -> Next {
        let outlets = &self.outlets;
        if outlets.gone.is_below(&outlets.until) && self.cost < self.allowance {
            return Next::Frame;
        }
        self.look()
    }

    /// The same where more than that has to be looked at.
    #[inline(never)]
    fn look(&mut self) -> Next {
        let all = self.taken();
        if !all.is_below(&BATCH) || self.cost >= self.allowance {
            return Next::Over(End::More);
        }
        if !self.outlets.gone.is_below(&self.credit) && self.asks() {
            return Next::Over(End::Paused);
        }
        if !self.outlets.gone.is_below(&self.outlets.run.until) {
            self.outlets.end_run();
        }
        let part = all.frames >= self.part;
        if part {
            self.part = (all.frames / PART + 1) * PART;
        }
        self.reach();
        match part {
            true => Next::Part,
            false => Next::Frame,
        }
    }

    /// Finds out until where nothing is to be looked at.
    fn reach(&mut self) {
        let Outlets { run, until, .. } = &mut self.outlets;
        let batch = Amount {
            frames: BATCH
                .frames
                .min(self.part)
                .saturating_sub(self.others.frames),
            bytes: BATCH.bytes.saturating_sub(self.others.bytes),
        };
        *until = batch.and(self.credit).and(run.until);
    }

    /// Frames that were taken.
    fn taken(&self) -> Amount {
        Amount {
            frames: self.outlets.gone.frames + self.others.frames,
            bytes: self.outlets.gone.bytes + self.others.bytes,
        }
    }

    /// Whether any was taken.
    pub fn has_begun(&self) -> bool {
        self.taken() != Amount::default()
    }

    /// Counts one that did not go the short way.
    pub fn took(&mut self, bytes: usize, cost: u64) {
        self.others.add(bytes);
        self.cost += cost;
        self.reach();
    }

    /// Looks up together what the next frames begin with, where most of the last ones were not
    /// like ones before.
    #[inline(never)]
    pub fn foresee(&mut self, receiver: &Receiver) {
        self.seek();
        let last = self.taken().frames.min(PART);
        if !self.short || !self.switch.misses(last as usize) {
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

    /// Asks the sender's rates, after what it sent was charged; whether its frames are to be
    /// left where they are.
    fn asks(&mut self) -> bool {
        self.settle();
        let now = self.outlets.now;
        self.switch.look_among(now, self.slot);
        if now < self.switch.paused_until(self.slot) {
            return true;
        }
        if self.short {
            let credit = self.switch.credit(now, self.slot);
            self.credit = credit.after(self.outlets.gone);
            self.short = credit.is_left();
        }
        false
    }

    /// Counts and charges what went the short way. The sender's rates are asked again before
    /// anything else does.
    pub fn settle(&mut self) {
        let gone = self.outlets.gone;
        let Amount { frames, bytes } = gone.since(self.charged);
        if frames != 0 {
            self.switch.charge(self.slot, bytes, frames.into());
            self.outlets.telling.came(self.slot, frames.into(), bytes);
        }
        (self.charged, self.credit, self.outlets.until) = (gone, gone, gone);
    }

    /// Adds what was looked up since.
    pub fn seek(&mut self) {
        self.cost += Work::sought(self.switch.sought());
    }

    /// Work so far.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Lets receivers see what was sent, before the batch is over.
    #[inline(never)]
    pub fn publish(&mut self) {
        self.outlets.end_run();
        self.outlets.publish();
    }

    /// The end of the batch.
    pub fn end(mut self, end: End) -> (Batch, Box<Parked>) {
        self.settle();
        self.outlets.end_run();
        let taken = self.taken();
        let batch = Batch {
            frames: taken.frames,
            bytes: taken.bytes,
            cost: self.cost,
            end,
        };
        (batch, self.parked)
    }

    /// Handles a frame, of which `begun` was done already.
    #[inline(always)]
    pub fn frame(&mut self, begun: Work, frame: Arrived, payload: Payload<'_>) {
        if self.short && frame.known {
            let length = payload.first(&mut self.head);
            let head = self.head.get_mut(..length).unwrap_or(&mut []);
            let (now, slot, total) = (self.outlets.now, self.slot, frame.total);
            if let Some(hit) = self.switch.hit(now, slot, &frame.offload, head, total) {
                let first = (&self.head, length);
                let (fate, work) = self.outlets.forward(begun, &hit, first, total, payload);
                if fate == Fate::Sent {
                    self.outlets.gone.add(total);
                    self.cost += work.passed(total);
                } else {
                    self.outlets.work = work;
                    self.otherwise(fate, &hit, total, length, payload);
                }
                return;
            }
        }
        let total = frame.total;
        let cost = self.judge(begun, frame, payload);
        self.took(total, cost);
    }

    /// Goes on with what another slot of another worker's sent.
    pub fn turn_to(&mut self, slot: Slot) {
        if self.slot != slot {
            self.settle();
            self.slot = slot;
            self.outlets.from = slot;
            self.short = self.image.is_some() && self.outlets.capture.is_none();
            // Its home has it pay: here it has all it wants.
            let _ = self.asks();
            self.reach();
        }
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
    fn relayed(&mut self, total: usize) {
        self.outlets.gone_otherwise(total);
        self.charged.add(total);
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
    ) {
        let cost = match fate {
            Fate::Sent | Fate::Handed => {
                self.outlets.gone_otherwise(total);
                self.outlets.work.passed(total)
            }
            Fate::Relayed => {
                self.relayed(total);
                self.outlets.work.passed(total)
            }
            Fate::Full => self.send(hit, total, length, payload),
            Fate::Lost(reason) => {
                self.outlets.gone_otherwise(total);
                self.lost(reason)
            }
        };
        self.cost += cost;
    }

    /// Sends one that its receiver, or its rate, did not take at once.
    #[cold]
    #[inline(never)]
    fn send(&mut self, hit: &Hit, total: usize, length: usize, payload: Payload<'_>) -> u64 {
        match self.outlets.is_relay(hit.slot) {
            true => self.relayed(total),
            false => self.outlets.gone_otherwise(total),
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
    fn judge(&mut self, begun: Work, mut frame: Arrived, payload: Payload<'_>) -> u64 {
        // Only the fabric's tags say anything.
        if self.slot != FABRIC {
            frame.tag = 0;
        }
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
