//! A frame whose receiver is full waits, and its source with it, for 50 us at most.

use crate::attached::Attached;
use crate::outlet::{Fate, Payload, outlets};
use crate::ports::{Place, Sink, Source};
use switch::{HEAD, Outgoing, Slot};
use telemetry::drops::DropReason;
use wire::offload::RawOffload;

/// How long a source is parked before its frame is dropped, ns.
pub const PATIENCE: u64 = 50_000;

/// The same where it waits for another worker of this switch, which goes on whatever its
/// receivers do, once it has a core; one that does not is killed.
const PEER_PATIENCE: u64 = 20_000_000;

/// What was to be sent, while it waits. Its payload stays where it came from: in the
/// source's ring, not released, or in a buffer that is lent to it.
pub struct Parked {
    head: [u8; HEAD],
    head_len: usize,
    pub slot: Slot,
    pub tag: u16,
    pub offload: RawOffload,
    pub rest_from: usize,
    pub total: usize,
    pub segments: u32,
    pub wire: usize,
    pub came_by: u16,
    /// When it was parked; `None` = nothing is.
    pub since: Option<u64>,
    /// The buffer that holds the frame of a tap or veth, and where in it.
    pub buffer: Option<Box<[u8]>>,
    pub at: usize,
}

impl Parked {
    /// Nothing parked.
    pub fn empty() -> Parked {
        Parked {
            head: [0; HEAD],
            head_len: 0,
            slot: 0,
            tag: 0,
            offload: RawOffload::default(),
            rest_from: 0,
            total: 0,
            segments: 0,
            wire: 0,
            came_by: 0,
            since: None,
            buffer: None,
            at: 0,
        }
    }

    /// Keeps a frame; `false` where one is kept already or its head is too long.
    pub fn keep(&mut self, frame: &Outgoing<'_>, now: u64) -> bool {
        let Some(head) = self.head.get_mut(..frame.head.len()) else {
            return false;
        };
        if self.since.is_some() {
            return false;
        }
        head.copy_from_slice(frame.head);
        self.head_len = frame.head.len();
        self.slot = frame.slot;
        self.tag = frame.tag;
        self.offload = frame.offload;
        self.rest_from = frame.rest_from;
        self.total = frame.total;
        self.segments = frame.segments;
        self.wire = frame.wire;
        self.came_by = frame.came_by;
        self.since = Some(now);
        true
    }

    /// The frame as it is to be sent.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            slot: self.slot,
            tag: self.tag,
            offload: self.offload,
            head: self.head.get(..self.head_len).unwrap_or(&[]),
            rest_from: self.rest_from,
            total: self.total,
            segments: self.segments,
            wire: self.wire,
            came_by: self.came_by,
        }
    }
}

impl Attached {
    /// Tries parked frames again. Those that have waited long enough are dropped.
    pub fn retry_parked(&mut self, now: u64) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(slot) = self.parked.get(at).copied() {
            if self.retry(slot, now) {
                self.parked.swap_remove(at);
                self.activate(slot);
                moved = true;
            } else {
                at += 1;
            }
        }
        moved
    }

    /// Whether a slot's frame is gone: sent, or dropped.
    fn retry(&mut self, slot: Slot, now: u64) -> bool {
        let at = slot as usize;
        let Some(mut parked) = take_parked(&mut self.ports.places, at) else {
            return true;
        };
        let Some(since) = parked.since else {
            put_parked(&mut self.ports.places, at, parked);
            return true;
        };
        let mut outlets = outlets!(self, now);
        let frame = parked.outgoing();
        let patience = match outlets.sinks.get(frame.slot as usize) {
            Some(Sink::Elsewhere(_) | Sink::Relay(_)) => PEER_PATIENCE,
            _ => PATIENCE,
        };
        let fate = match (parked.buffer.as_deref(), self.ports.sources.get_mut(at)) {
            (Some(buffer), _) => outlets.send(
                slot,
                &frame,
                Payload::Buffer(
                    buffer
                        .get(parked.at..parked.at + frame.total)
                        .unwrap_or(&[]),
                ),
            ),
            (None, Some(Source::Channel(receiver))) => {
                // Read anew: its writer may have changed it meanwhile, or died.
                match receiver.ring.peek() {
                    Ok(Some(record)) if record.len() == frame.total => {
                        outlets.send(slot, &frame, Payload::Record(&record))
                    }
                    _ => Fate::Lost(DropReason::Malformed),
                }
            }
            (None, Some(Source::Guest(Some(from)))) => match from.peek() {
                Ok(Some(held)) if held.len() == frame.total => {
                    outlets.send(slot, &frame, Payload::Guest(&held))
                }
                _ => Fate::Lost(DropReason::Malformed),
            },
            _ => Fate::Lost(DropReason::PortClosed),
        };
        let gone = match fate {
            Fate::Sent | Fate::Handed | Fate::Relayed => true,
            Fate::Lost(reason) => {
                self.telling.dropped(slot, reason, now);
                true
            }
            Fate::Full if now.saturating_sub(since) >= patience => {
                outlets.lost_waiting(slot, frame.slot, frame.total);
                true
            }
            Fate::Full => false,
        };
        if gone {
            parked.since = None;
            match parked.buffer.take() {
                Some(buffer) => self.spares.push(buffer),
                None => match (self.ports.sources.get_mut(at), self.ports.sinks.get_mut(at)) {
                    (Some(Source::Channel(receiver)), _) => {
                        receiver.ring.advance();
                        receiver.ring.release();
                    }
                    (Some(Source::Guest(Some(from))), Some(Sink::Guest(port))) => {
                        from.advance();
                        port.done(from);
                    }
                    _ => {}
                },
            }
        }
        put_parked(&mut self.ports.places, at, parked);
        gone
    }

    /// Takes back the buffer that a slot's parked frame holds; the frame is dropped.
    pub fn take_back(&mut self, slot: Slot) {
        let Some(place) = self.ports.places.get_mut(slot as usize) else {
            return;
        };
        let Some(parked) = place.parked.as_mut() else {
            return;
        };
        if parked.since.take().is_some() {
            self.telling
                .counters
                .dropped(slot as usize, DropReason::PortClosed, 1);
        }
        if let Some(buffer) = parked.buffer.take() {
            self.spares.push(buffer);
        }
    }
}

/// Out of its slot, to be worked with.
pub fn take_parked(places: &mut [Place], at: usize) -> Option<Box<Parked>> {
    places.get_mut(at)?.parked.take()
}

/// And back.
pub fn put_parked(places: &mut [Place], at: usize, parked: Box<Parked>) {
    if let Some(place) = places.get_mut(at) {
        place.parked = Some(parked);
    }
}
