//! The switch's output: frames to ports, counts to the counters page.

use crate::capture::Captures;
use crate::parking::Parked;
use crate::peers::Peers;
use crate::ports::{Place, Sink};
use crate::telling::Telling;
use guard::guard;
use port::PortError;
use ring::{FIRST, Record};
use rustix::io::Errno;
use shm::{ConsumerEnd, Doorbell, Guest, PushError};
use switch::{
    Amount, Decided, FABRIC, Finish, Hit, Outgoing, Output, Shaper, Slot, Tally, Work, finish,
};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::rules::Outcome;
use virtqueue::net::{GuestFrame, PutError};
use virtqueue::{GuestMemory, flow_of};
use wire::offload::{MAX_FRAME, RawOffload};
use worker::system;

/// Where the ingress frame lies.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// In a ring, where its writer can still change it.
    Record(&'a Record<'a, ConsumerEnd>),
    /// In a guest's memory, where the guest can still change it.
    Guest(&'a GuestFrame<'a, Guest>),
    /// In private memory.
    Buffer(&'a [u8]),
    /// There is none: a timer.
    None,
}

impl Payload<'_> {
    /// Copies the first bytes; says how many there were.
    #[inline(always)]
    pub fn first(&self, into: &mut [u8; FIRST]) -> usize {
        match self {
            Payload::Record(record) => record.first(into),
            // Of a length that is known here.
            Payload::Guest(frame) if frame.len() >= FIRST => frame.copy(0, into),
            other => other.copy(0, into),
        }
    }

    /// Copies bytes from `from` on; says how many there were.
    #[inline(always)]
    pub fn copy(&self, from: usize, into: &mut [u8]) -> usize {
        match self {
            Payload::Record(record) => record.copy(from, into),
            Payload::Guest(frame) => frame.copy(from, into),
            Payload::Buffer(frame) => {
                let rest = frame.get(from..).unwrap_or(&[]);
                let n = rest.len().min(into.len());
                if let (Some(to), Some(from)) = (into.get_mut(..n), rest.get(..n)) {
                    to.copy_from_slice(from);
                }
                n
            }
            Payload::None => 0,
        }
    }

    /// Copies bytes from `from` on into a guest's memory.
    fn copy_to_guest(&self, from: usize, memory: &Guest, at: usize, len: usize) {
        match self {
            Payload::Record(record) => record.place(from, len, |ring, place| {
                memory.copy_from_ring(ring, place, at, len);
            }),
            Payload::Guest(frame) => frame.pieces(from, len, |other, place, done, n| {
                other.copy_to_guest(place, memory, at + done, n);
            }),
            Payload::Buffer(frame) => {
                if let Some(bytes) = frame.get(from..).and_then(|rest| rest.get(..len)) {
                    memory.write(at, bytes);
                }
            }
            Payload::None => {}
        }
    }
}

/// Private memory for frames that are put together here.
pub struct Workshop {
    /// A whole frame.
    pub whole: Box<[u8]>,
    /// One frame that it becomes.
    pub part: Box<[u8]>,
}

impl Workshop {
    /// Untouched memory costs nothing until it is used.
    pub fn new() -> Workshop {
        Workshop {
            whole: vec![0; MAX_FRAME].into(),
            part: vec![0; MAX_FRAME].into(),
        }
    }
}

/// The sinks of a switch and all that is noted about them.
pub struct Outlets<'a> {
    pub sinks: &'a mut [Sink],
    pub places: &'a mut [Place],
    pub touched: &'a mut Vec<Slot>,
    pub telling: &'a mut Telling,
    pub workshop: &'a mut Workshop,
    pub capture: &'a mut Option<Box<Captures>>,
    pub shaper: &'a mut Shaper,
    /// The other workers, where there are some.
    pub peers: &'a mut Option<Box<Peers>>,
    /// Guests that ended, and why.
    pub ended: &'a mut Vec<(Slot, u32)>,
    /// Who sent what goes the short way.
    pub from: Slot,
    /// What is done for the frame that is worked on.
    pub work: Work,
    /// Frames that went the short way in this batch.
    pub gone: Amount,
    /// Until where they go with nothing but themselves looked at.
    pub until: Amount,
    /// Those of them that go to one slot in a row.
    pub run: Run,
    pub now: u64,
}

/// The outlets of an [`Attached`](crate::attached::Attached): only its own fields are borrowed,
/// so that the rest of it can be used beside them.
macro_rules! outlets {
    ($of:expr, $now:expr) => {
        $crate::outlet::Outlets {
            sinks: &mut $of.ports.sinks,
            places: &mut $of.ports.places,
            touched: &mut $of.touched,
            telling: &mut $of.telling,
            workshop: &mut $of.workshop,
            capture: &mut $of.capture,
            shaper: &mut $of.shaper,
            peers: &mut $of.peers,
            ended: &mut $of.ended,
            from: switch::FABRIC,
            work: switch::Work::frame(),
            gone: switch::Amount::default(),
            until: switch::Amount::default(),
            run: $crate::outlet::Run::NONE,
            now: $now,
        }
    };
}
pub(crate) use outlets;

/// Frames in a row that go to one slot the short way: counted and charged together.
pub struct Run {
    slot: Slot,
    /// What had gone before it.
    begun: Amount,
    /// Until where the slot's rates let it go.
    pub until: Amount,
}

impl Run {
    /// There is none.
    pub const NONE: Run = Run {
        slot: Slot::MAX,
        begun: Amount::MAX,
        until: Amount::MAX,
    };
}

/// What became of one frame that was to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is with the port.
    Sent,
    /// The receiver has no room now.
    Full,
    /// It will never be sent.
    Lost(DropReason),
    /// Its port's worker has it, and counts it when it is sent.
    Handed,
    /// Its flow's worker has it, and counts it as received.
    Relayed,
}

impl Outlets<'_> {
    /// Sends a frame that `from` sent, whose payload is `payload`, or keeps it until the
    /// rates toward its receiver allow it.
    pub fn send(&mut self, from: Slot, frame: &Outgoing<'_>, payload: Payload<'_>) -> Fate {
        if !self.shaper.is_limited(frame.slot) {
            return self.transmit(from, frame, payload);
        }
        if self.shaper.may_go(self.now, frame.slot) {
            match self.transmit(from, frame, payload) {
                Fate::Full => {}
                Fate::Sent => {
                    self.shaper.sent(frame);
                    return Fate::Sent;
                }
                other => return other,
            }
        }
        self.work
            .copied(frame.head.len() + frame.total.saturating_sub(frame.rest_from));
        let at = frame.slot as usize;
        if self
            .shaper
            .hold(self.now, from, frame, |from, into| payload.copy(from, into))
        {
            self.telling
                .counters
                .count(at, Counter::Held, frame.wire as u64);
        } else if frame.slot == FABRIC {
            // Its own sender waits, as for any channel without room.
            return Fate::Full;
        } else {
            // The receiver's rate, and no fault of the sender's.
            self.telling
                .dropped(frame.slot, DropReason::EgressRate, self.now);
        }
        Fate::Sent
    }

    /// Sends a frame the short way, of whose first bytes, so many, `head` takes the place, if
    /// its receiver takes it at once; and what that took, after `begun`. Where its rate has
    /// nothing left it is full.
    #[inline(always)]
    pub fn forward(
        &mut self,
        begun: Work,
        hit: &Hit,
        (head, length): (&[u8; FIRST], usize),
        total: usize,
        payload: Payload<'_>,
    ) -> (Fate, Work) {
        if self.run.slot != hit.slot && !self.begin_run(hit.slot) {
            return (Fate::Full, begun);
        }
        let sent = match (self.sinks.get_mut(hit.slot as usize), payload) {
            (Some(Sink::Channel(sender)), Payload::Record(record)) => {
                let fate = pushed(sender.ring.forward_first(&hit.offload, head, record));
                return (fate, begun);
            }
            (Some(Sink::Guest(port)), payload) if length == FIRST => {
                let (flow, rest) = (|| flow_of(head), total.saturating_sub(FIRST));
                let fill = |memory: &Guest, at, from, n| {
                    payload.copy_to_guest(FIRST + from, memory, at, n);
                };
                port.to
                    .as_mut()
                    .is_some_and(|to| to.send_plain(flow, &hit.offload, head, rest, fill))
            }
            _ => false,
        };
        if sent {
            return (Fate::Sent, begun);
        }
        self.work = begun;
        let head = head.get(..length).unwrap_or(&[]);
        let fate = self.give(self.from, &hit.outgoing(head, total), payload);
        (fate, self.work)
    }

    /// Goes on with another slot; whether anything may go there.
    #[inline(never)]
    fn begin_run(&mut self, slot: Slot) -> bool {
        self.end_run();
        let credit = self.shaper.credit(self.now, slot);
        self.run = Run {
            slot,
            begun: self.gone,
            until: credit.after(self.gone),
        };
        self.until = self.until.and(self.run.until);
        credit.is_left()
    }

    /// Counts and charges what went the short way to one slot. The next frame begins anew.
    pub fn end_run(&mut self) {
        let run = core::mem::replace(&mut self.run, Run::NONE);
        if run.slot == Slot::MAX {
            return;
        }
        let Amount { frames, bytes } = self.gone.since(run.begun);
        if frames != 0 {
            let frames = frames.into();
            self.shaper.charge(run.slot, bytes, frames);
            self.went(run.slot, frames, bytes, frames, 0, true);
        }
    }

    /// Counts a frame that goes the short way, and whose port is not given it now.
    pub fn gone_otherwise(&mut self, total: usize) {
        self.gone.add(total);
        if self.run.slot != Slot::MAX {
            self.run.begun.add(total);
        }
    }

    /// Gives a frame to its port, and notes that it did.
    pub fn transmit(&mut self, from: Slot, frame: &Outgoing<'_>, payload: Payload<'_>) -> Fate {
        let fate = self.give(from, frame, payload);
        match fate {
            Fate::Sent => self.sent(frame, payload),
            Fate::Handed | Fate::Relayed => {
                let rest = frame.total.saturating_sub(frame.rest_from);
                self.work.copied(frame.head.len() + rest);
            }
            _ => {}
        }
        fate
    }

    /// Gives a frame to its port, or to the worker that has it.
    fn give(&mut self, from: Slot, frame: &Outgoing<'_>, payload: Payload<'_>) -> Fate {
        let slot = frame.slot as usize;
        match (self.sinks.get_mut(slot), payload) {
            (Some(Sink::Channel(sender)), Payload::Record(record)) => pushed(sender.ring.forward(
                frame.tag,
                &frame.offload,
                frame.head,
                record,
                frame.rest_from,
            )),
            (Some(Sink::Channel(sender)), Payload::Buffer(bytes)) => {
                let tail = bytes.get(frame.rest_from..).unwrap_or(&[]);
                pushed(
                    sender
                        .ring
                        .push(frame.tag, &frame.offload, frame.head, tail),
                )
            }
            (Some(Sink::Channel(sender)), Payload::None) => {
                pushed(sender.ring.push(frame.tag, &frame.offload, frame.head, &[]))
            }
            (Some(Sink::Channel(sender)), Payload::Guest(from)) => {
                let rest = frame.total.saturating_sub(frame.rest_from);
                let (tag, offload) = (frame.tag, &frame.offload);
                pushed(
                    sender
                        .ring
                        .push_with(tag, offload, frame.head, rest, |ring, at| {
                            from.pieces(frame.rest_from, rest, |memory, place, done, n| {
                                memory.copy_to_ring(place, ring, at + done, n);
                            });
                        }),
                )
            }
            (Some(Sink::Guest(port)), payload) => match &mut port.to {
                Some(to) => {
                    let rest = frame.total.saturating_sub(frame.rest_from);
                    let fill = |memory: &Guest, at, from, n| {
                        payload.copy_to_guest(frame.rest_from + from, memory, at, n);
                    };
                    let flow = || flow_of(frame.head);
                    let sent = to.send(flow, &frame.offload, frame.head, rest, fill);
                    self.work.scattered(to.scattered());
                    match sent {
                        Err(PutError::Breach(breach)) => {
                            ends(self.ended, frame.slot, breach as u32);
                        }
                        // Rings that were cut off are zeroes: there is never room.
                        Err(PutError::Full) if port.is_broken() => {
                            ends(self.ended, frame.slot, system(Errno::FAULT));
                        }
                        _ => {}
                    }
                    put(sent)
                }
                None => Fate::Lost(DropReason::PortClosed),
            },
            (Some(Sink::Device(device)), payload) => {
                self.telling.frame_calls(1);
                self.work.called();
                let rest = frame.total.saturating_sub(frame.rest_from);
                let sent = match payload {
                    Payload::Buffer(bytes) => device.send(
                        &frame.offload,
                        frame.head,
                        bytes.get(frame.rest_from..).unwrap_or(&[]),
                    ),
                    payload => {
                        let Some(tail) = self.workshop.whole.get_mut(..rest) else {
                            return Fate::Lost(DropReason::Oversize);
                        };
                        let n = payload.copy(frame.rest_from, tail);
                        device.send(&frame.offload, frame.head, tail.get(..n).unwrap_or(&[]))
                    }
                };
                match sent {
                    Ok(()) => Fate::Sent,
                    Err(PortError::Full) => Fate::Lost(DropReason::QueueFull),
                    Err(PortError::Vanished) => Fate::Lost(DropReason::PortClosed),
                    Err(_) => Fate::Lost(DropReason::PortRefused),
                }
            }
            (Some(Sink::Elsewhere(worker)), payload) => match self.peers {
                Some(peers) => peers.hand(*worker, from, frame, payload),
                None => Fate::Lost(DropReason::PortClosed),
            },
            (Some(Sink::Relay(worker)), payload) => match self.peers {
                Some(peers) => peers.relay(*worker, from, frame, payload),
                None => Fate::Lost(DropReason::PortClosed),
            },
            _ => Fate::Lost(DropReason::PortClosed),
        }
    }

    fn sent(&mut self, frame: &Outgoing<'_>, payload: Payload<'_>) {
        let bytes = frame.head.len() + frame.total.saturating_sub(frame.rest_from);
        self.work.copied(bytes);
        let gso = match frame.offload.gso_type {
            0 => 0,
            _ => bytes as u64,
        };
        // An answer or advertisement of our own is nothing forwarded.
        let forwarded = !matches!(payload, Payload::None);
        let segments = frame.segments.into();
        self.went(frame.slot, 1, bytes as u64, segments, gso, forwarded);
        if let Some(capture) = self.capture.as_mut() {
            let endpoint = self.telling.endpoint(frame.slot);
            capture.went(frame, endpoint, &|from, into| payload.copy(from, into));
        }
    }

    /// Whether this stands for another worker.
    pub fn is_relay(&self, slot: Slot) -> bool {
        slot as usize >= self.places.len()
    }

    /// Counts a frame of `from` that waited in vain; of one that waited for another worker,
    /// which would have counted it, also that it came.
    pub fn lost_waiting(&mut self, from: Slot, to: Slot, bytes: usize) {
        if self.is_relay(to) {
            let counters = &self.telling.counters;
            counters.count(from as usize, Counter::RxFrames, 1);
            counters.count(from as usize, Counter::RxBytes, bytes as u64);
        }
        self.telling.dropped(from, DropReason::QueueFull, self.now);
    }

    /// Counts what went to a slot, for the end of the turn.
    fn went(
        &mut self,
        slot: Slot,
        frames: u64,
        bytes: u64,
        segments: u64,
        gso_bytes: u64,
        forwarded: bool,
    ) {
        if self.telling.going.slot != slot {
            self.settle(slot);
        }
        let sum = &mut self.telling.going;
        sum.frames += frames;
        sum.bytes += bytes;
        sum.segments += segments;
        sum.gso_bytes += gso_bytes;
        sum.forwarded |= forwarded;
    }

    /// Counts what was sent to one slot in a row, and goes on with another.
    #[inline(never)]
    fn settle(&mut self, next: Slot) {
        if let Some(slot) = self.telling.settle_going(next, self.now)
            && let Some(place) = self.places.get_mut(slot as usize)
            && !place.touched
            && self.touched.len() < self.touched.capacity()
        {
            place.touched = true;
            self.touched.push(slot);
        }
    }

    /// Lets receivers see what was sent, and wakes those that sleep. Once a batch, or a few times of a long one.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.settle(FABRIC);
        while let Some(slot) = self.touched.pop() {
            if let Some(place) = self.places.get_mut(slot as usize) {
                place.touched = false;
            }
            let sink = self.sinks.get_mut(slot as usize);
            if let Some(Sink::Guest(port)) = sink {
                port.publish();
                // What is written where its owner cut it off is lost.
                if port.is_broken() {
                    ends(self.ended, slot, system(Errno::FAULT));
                }
            } else if let Some(Sink::Channel(sender)) = sink
                && sender.ring.publish() == Doorbell::Ring
            {
                let _ = sender.bell.ring();
            }
        }
        if let Some(peers) = self.peers {
            peers.publish();
        }
        if let Some(capture) = self.capture.as_mut() {
            capture.publish();
        }
    }
}

/// A guest's side of its queues is worth nothing, whoever found that: it ends alone, once.
#[cold]
fn ends(ended: &mut Vec<(Slot, u32)>, slot: Slot, reason: u32) {
    let known = ended.iter().any(|(of, _)| *of == slot);
    if guard!("guest-receives-alone") && !known && ended.len() < ended.capacity() {
        ended.push((slot, reason));
    }
}

fn pushed(result: Result<(), PushError>) -> Fate {
    match result {
        Ok(()) => Fate::Sent,
        Err(PushError::Full) => Fate::Full,
        Err(PushError::TooLong) => Fate::Lost(DropReason::Oversize),
        // The slot is closed when its turn comes.
        Err(PushError::Breach(_)) => Fate::Lost(DropReason::PortClosed),
    }
}

fn put(result: Result<(), PutError>) -> Fate {
    match result {
        Ok(()) => Fate::Sent,
        Err(PutError::Full) => Fate::Full,
        Err(PutError::TooLong) => Fate::Lost(DropReason::Oversize),
        Err(PutError::NoQueue) => Fate::Lost(DropReason::PortClosed),
        Err(PutError::Breach(_)) => Fate::Lost(DropReason::PortClosed),
    }
}

/// Whether a frame's destination is broadcast or multicast.
pub fn to_group(head: &[u8]) -> bool {
    head.first().is_some_and(|first| first & 1 == 1)
}

/// The output while one frame is processed.
pub struct Outlet<'a, 'b> {
    pub outlets: &'a mut Outlets<'b>,
    pub payload: Payload<'a>,
    pub from: Slot,
    /// Where a frame of this source waits; absent for timers.
    pub parked: Option<&'a mut Parked>,
    /// The first reason this frame was dropped for.
    pub reason: Option<DropReason>,
    /// What a rule that denied it saw.
    pub denied: Option<Decided>,
}

impl Output for Outlet<'_, '_> {
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        self.payload.copy(offset, into)
    }

    fn send(&mut self, frame: &Outgoing<'_>) {
        let fate = match self.outlets.send(self.from, frame, self.payload) {
            Fate::Full => {
                self.outlets.publish();
                self.outlets.send(self.from, frame, self.payload)
            }
            fate => fate,
        };
        match fate {
            Fate::Sent | Fate::Handed | Fate::Relayed => {}
            Fate::Full => {
                let now = self.outlets.now;
                let kept = self
                    .parked
                    .as_mut()
                    .is_some_and(|parked| parked.keep(frame, now));
                if !kept {
                    self.dropped(self.from, DropReason::QueueFull);
                }
            }
            // A member of a group that is not there, or not yet, is no loss of the sender's.
            Fate::Lost(DropReason::PortClosed) if to_group(frame.head) => {}
            Fate::Lost(reason) => self.dropped(self.from, reason),
        }
    }

    fn finish(&mut self, frame: &Outgoing<'_>, how: &Finish) {
        let length = frame.head.len() + frame.total.saturating_sub(frame.rest_from);
        // Out of the workshop while its parts are sent, so that sending can use it.
        let mut whole = core::mem::take(&mut self.outlets.workshop.whole);
        let mut part = core::mem::take(&mut self.outlets.workshop.part);
        let mut lost = None;
        match whole
            .get_mut(..length)
            .and_then(|w| w.split_at_mut_checked(frame.head.len()))
        {
            Some((head, rest)) => {
                head.copy_from_slice(frame.head);
                self.outlets.work.copied(length);
                let n = self.payload.copy(frame.rest_from, rest);
                if n == rest.len()
                    && let Some(whole) = whole.get_mut(..length)
                {
                    let finished = finish(how, whole, &mut part, |offload, bytes| {
                        let piece = Outgoing {
                            offload: *offload,
                            head: bytes,
                            rest_from: 0,
                            total: 0,
                            segments: 1,
                            wire: bytes.len(),
                            ..*frame
                        };
                        match self.outlets.send(self.from, &piece, Payload::None) {
                            Fate::Sent | Fate::Handed | Fate::Relayed => {}
                            Fate::Full => lost = Some(DropReason::QueueFull),
                            Fate::Lost(reason) => lost = Some(reason),
                        }
                    });
                    if finished.is_err() {
                        lost = Some(DropReason::TooBig);
                    }
                }
            }
            None => lost = Some(DropReason::Oversize),
        }
        self.outlets.workshop.whole = whole;
        self.outlets.workshop.part = part;
        if let Some(reason) = lost {
            self.dropped(self.from, reason);
        }
    }

    fn reply(&mut self, slot: Slot, tag: u16, frame: &[u8]) {
        let outgoing = Outgoing {
            slot,
            tag,
            offload: RawOffload::default(),
            head: frame,
            rest_from: 0,
            total: 0,
            segments: 1,
            wire: frame.len(),
            came_by: 0,
        };
        match self.outlets.send(self.from, &outgoing, Payload::None) {
            Fate::Sent | Fate::Handed | Fate::Relayed => {}
            Fate::Full => {
                self.outlets
                    .telling
                    .dropped(slot, DropReason::QueueFull, self.outlets.now)
            }
            Fate::Lost(DropReason::PortClosed) if to_group(frame) => {}
            Fate::Lost(reason) => self.outlets.telling.dropped(slot, reason, self.outlets.now),
        }
    }

    fn dropped(&mut self, slot: Slot, reason: DropReason) {
        self.reason.get_or_insert(reason);
        let rule = match reason {
            DropReason::EgressRule | DropReason::IngressRule => self.denied,
            _ => None,
        };
        let rule = rule.and_then(|denied| denied.rules.into_iter().flatten().next());
        self.outlets
            .telling
            .dropped_by(slot, reason, rule.map(|(rule, _)| rule), self.outlets.now);
    }

    fn decided(&mut self, decided: &Decided) {
        if decided.outcome == Outcome::Denied {
            self.denied = Some(*decided);
        }
        let opened = decided.outcome == Outcome::Connection;
        self.outlets.work.judged(opened);
        self.outlets.telling.decided(decided, self.outlets.now);
    }

    fn tallied(&mut self, tally: &Tally) {
        self.outlets.telling.tallied(tally);
    }

    fn count(&mut self, slot: Slot, counter: Counter, n: u64) {
        self.outlets
            .telling
            .counters
            .count(slot as usize, counter, n);
    }
}
