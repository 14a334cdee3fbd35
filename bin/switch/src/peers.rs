//! What a worker hands to the others of its switch, and takes from them: frames that came in
//! at one and are another's to handle, and frames that are handled and whose port is
//! another's. A ring for each pair and direction, of `core/ring` like any other; nothing here
//! locks, and a sleeper is rung once a batch.

use crate::attached::Attached;
use crate::batch::{Batch, End, Next};
use crate::handling::{Arrived, Handling};
use crate::outlet::{Fate, Payload, outlets};
use crate::parking::Parked;
use crate::ports::Sink;
use image::compartment::FEATURE_ALL;
use image::map::MappedCompartment;
use ring::{CopyTo, ProducerMemory};
use shm::{Doorbell, Geometry, PushError, Receiver, Sender};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use switch::{Outgoing, Slot, Work, Workers};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::offload::{MAX_FRAME, RawOffload};

/// Added to a worker's number: the name of its ring's doorbell in the set of what can wake us.
pub const PEER: u64 = 1 << 33;
/// What the doorbells of captures' rings are called there.
pub const MIRROR: u64 = 1 << 34;
/// Captured frames taken from one worker in one turn.
const MIRRORED: usize = 256;
/// Work of one turn for what another worker sends, priced as a port's is: as much as a port has
/// that waited longest, so that what comes by here is dear to those who send it, too.
const ALLOWANCE: u64 = 256 << 10;
/// Bytes of each ring: some of the largest frames, and a batch of all others.
const CAPACITY: usize = 512 << 10;

/// What all workers of a switch know of each other's ports: a word each, written by the
/// slot's home alone.
pub struct Common {
    /// By slot: something is plugged in.
    plugged: Vec<AtomicBool>,
    /// By slot: `FEATURE_*` that its guest takes unfinished.
    takes: Vec<AtomicU16>,
    /// Rises when one of those changes.
    changes: AtomicU64,
}

impl Common {
    /// For so many slots.
    pub fn new(slots: usize) -> Common {
        Common {
            plugged: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            takes: (0..slots).map(|_| AtomicU16::new(FEATURE_ALL)).collect(),
            changes: AtomicU64::new(0),
        }
    }
}

/// One worker's ends of all this.
pub struct Peers {
    pub workers: Workers,
    /// By worker; of this one there is none.
    to: Vec<Option<Outbound>>,
    common: Arc<Common>,
    /// Changes that this worker has followed.
    followed: u64,
}

struct Outbound {
    sender: Sender,
    touched: bool,
}

/// Rings that end at one worker: by worker, with the number of the one that writes.
pub type Inbox = Vec<(u32, Receiver)>;

/// The rings between so many workers: each one's ends.
///
/// # Errors
/// Descriptors or memory ran out.
pub fn between(count: u32, slots: usize) -> std::io::Result<Vec<(Peers, Inbox)>> {
    let longest = Geometry::max_record_for(MAX_FRAME) + 16;
    let geometry = Geometry::records(CAPACITY, longest).map_err(std::io::Error::other)?;
    let common = Arc::new(Common::new(slots));
    let mut all: Vec<(Peers, Inbox)> = (0..count)
        .map(|this| {
            let peers = Peers {
                workers: Workers::new(count, this),
                to: (0..count).map(|_| None).collect(),
                common: Arc::clone(&common),
                followed: 0,
            };
            (peers, Vec::new())
        })
        .collect();
    for from in 0..count {
        for to in (0..count).filter(|to| *to != from) {
            let (sender, receiver) = shm::between(&geometry)?;
            let outbound = Outbound {
                sender,
                touched: false,
            };
            if let Some((peers, _)) = all.get_mut(from as usize)
                && let Some(place) = peers.to.get_mut(to as usize)
            {
                *place = Some(outbound);
            }
            if let Some((_, inbox)) = all.get_mut(to as usize) {
                inbox.push((from, receiver));
            }
        }
    }
    Ok(all)
}

/// What is said beside a frame in such a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    /// The slot whose port it is for; none: it is as it came in, and to be handled.
    to: Option<Slot>,
    /// Who sent it.
    from: Slot,
    /// As in [`Outgoing`].
    wire: u32,
    segments: u16,
    came_by: u16,
    /// The switch made it.
    ours: bool,
}

const UNHANDLED: u32 = u32::MAX;
const OURS: u16 = 1 << 15;

impl Note {
    fn words(self) -> [u64; 2] {
        let to = self.to.unwrap_or(UNHANDLED);
        let segments = self.segments & !OURS | if self.ours { OURS } else { 0 };
        [
            u64::from(to) | u64::from(self.from) << 32,
            u64::from(self.wire) | u64::from(segments) << 32 | u64::from(self.came_by) << 48,
        ]
    }

    fn of([a, b]: [u64; 2]) -> Note {
        let (to, segments) = (a as u32, (b >> 32) as u16);
        Note {
            to: (to != UNHANDLED).then_some(to),
            from: (a >> 32) as u32,
            wire: b as u32,
            segments: segments & !OURS,
            came_by: (b >> 48) as u16,
            ours: segments & OURS != 0,
        }
    }
}

impl Peers {
    /// Hands over a frame whose port is at home at another worker.
    pub fn hand(
        &mut self,
        worker: u32,
        from: Slot,
        frame: &Outgoing<'_>,
        payload: Payload<'_>,
    ) -> Fate {
        let note = Note {
            to: Some(frame.slot),
            from,
            wire: frame.wire as u32,
            segments: frame.segments as u16,
            came_by: frame.came_by,
            ours: matches!(payload, Payload::None) && frame.total == 0,
        };
        self.push(worker, note, frame, payload, Fate::Handed)
    }

    /// Hands over a frame as it came in.
    pub fn relay(
        &mut self,
        worker: u32,
        from: Slot,
        frame: &Outgoing<'_>,
        payload: Payload<'_>,
    ) -> Fate {
        let note = Note {
            to: None,
            from,
            wire: 0,
            segments: 0,
            came_by: 0,
            ours: false,
        };
        self.push(worker, note, frame, payload, Fate::Relayed)
    }

    fn push(
        &mut self,
        worker: u32,
        note: Note,
        frame: &Outgoing<'_>,
        payload: Payload<'_>,
        done: Fate,
    ) -> Fate {
        let Some(Some(outbound)) = self.to.get_mut(worker as usize) else {
            return Fate::Lost(DropReason::PortClosed);
        };
        let (first, rest) = (frame.rest_from, frame.total.saturating_sub(frame.rest_from));
        let what = (frame.tag, &frame.offload);
        let pushed =
            outbound
                .sender
                .ring
                .push_beside(
                    note.words(),
                    what,
                    frame.head,
                    rest,
                    |ring, at| match payload {
                        Payload::Record(record) => {
                            record.place(first, rest, |from, place| {
                                from.copy_to(place, ring, at, rest);
                            });
                        }
                        Payload::Guest(guest) => {
                            guest.pieces(first, rest, |memory, place, done, n| {
                                memory.copy_to_ring(place, ring, at + done, n);
                            });
                        }
                        Payload::Buffer(bytes) => {
                            if let Some(tail) = bytes.get(first..).and_then(|b| b.get(..rest))
                                && !tail.is_empty()
                            {
                                ring.write(at, tail);
                            }
                        }
                        Payload::None => {}
                    },
                );
        match pushed {
            Ok(()) => {
                outbound.touched = true;
                done
            }
            Err(PushError::Full) => Fate::Full,
            Err(PushError::TooLong) => Fate::Lost(DropReason::Oversize),
            Err(PushError::Breach(breach)) => broken(breach as u32),
        }
    }

    /// Lets the others see what was handed to them, and wakes those that sleep. Once a batch.
    pub fn publish(&mut self) {
        for outbound in self.to.iter_mut().flatten() {
            if core::mem::take(&mut outbound.touched)
                && outbound.sender.ring.publish() == Doorbell::Ring
            {
                let _ = outbound.sender.bell.ring();
            }
        }
    }

    /// Says whether something is plugged in a slot of this worker's.
    pub fn plugged(&self, slot: Slot, is: bool) {
        if let Some(place) = self.common.plugged.get(slot as usize) {
            place.store(is, Ordering::Relaxed);
        }
    }

    /// Whether something is plugged in a slot, whosever it is.
    pub fn is_plugged(&self, slot: Slot) -> bool {
        let place = self.common.plugged.get(slot as usize);
        place.is_some_and(|place| place.load(Ordering::Relaxed))
    }

    /// Says what a guest of this worker's takes unfinished.
    pub fn takes(&self, slot: Slot, features: u16) {
        if let Some(place) = self.common.takes.get(slot as usize) {
            place.store(features, Ordering::Release);
            self.common.changes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Attached {
    /// Follows what other workers' guests take unfinished. A look at one word, mostly.
    pub fn follow_guests(&mut self) {
        let Some(peers) = self.peers.as_mut() else {
            return;
        };
        let changes = peers.common.changes.load(Ordering::Acquire);
        if changes == peers.followed {
            return;
        }
        peers.followed = changes;
        for (slot, features) in peers.common.takes.iter().enumerate() {
            let features = features.load(Ordering::Acquire);
            self.switch.takes(slot as Slot, features);
        }
    }

    /// A batch from each of the other workers; whether there was anything.
    pub fn run_inbox(&mut self, now: u64) -> bool {
        let mut worked = false;
        for at in 0..self.inbox.len() {
            let batch = self.run_peer(at, now);
            self.beat();
            worked |= batch.frames > 0;
        }
        worked
    }

    fn run_peer(&mut self, at: usize, now: u64) -> Batch {
        let Some((_, receiver)) = self.inbox.get_mut(at) else {
            return Batch::default();
        };
        let Some(parked) = self.unparked.take() else {
            return Batch::default();
        };
        let outlets = outlets!(self, now);
        let first = switch::FABRIC;
        let mut handling = Handling::new(&mut self.switch, &self.image, outlets, first, parked);
        handling.is_relayed = true;
        handling.allowance = ALLOWANCE;
        let end = loop {
            if let Next::Over(end) = handling.next() {
                break end;
            }
            let record = match receiver.ring.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break End::Empty,
                Err(breach) => broken(breach as u32),
            };
            let Some(note) = record.beside().map(Note::of) else {
                receiver.ring.advance();
                continue;
            };
            let (from, total) = (note.from, record.len());
            let counters = &handling.outlets.telling.counters;
            counters.set_own(ProcessWord::Working, u64::from(from) + 1);
            let payload = Payload::Record(&record);
            let before = handling.cost();
            match note.to {
                None => {
                    handling.turn_to(from);
                    let arrived = Arrived {
                        tag: 0,
                        offload: record.offload(),
                        total,
                        known: true,
                    };
                    handling.frame(Work::frame(), arrived, payload);
                }
                Some(to) => {
                    let frame = Outgoing {
                        slot: to,
                        tag: record.tag(),
                        offload: record.offload(),
                        head: &[],
                        rest_from: 0,
                        total,
                        segments: note.segments.into(),
                        wire: note.wire as usize,
                        came_by: note.came_by,
                    };
                    let cost = handling.deliver(from, &frame, payload, note.ours);
                    handling.took(total, cost);
                }
            }
            handling.seek();
            let cost = handling.cost() - before;
            // Nobody waits here: others' frames come by the same ring.
            if handling.parked.since.take().is_some() {
                let telling = &mut handling.outlets.telling;
                telling.dropped(from, DropReason::QueueFull, now);
            }
            let counters = &handling.outlets.telling.counters;
            counters.count(from as usize, Counter::Work, cost);
            receiver.ring.advance();
        };
        // Counted before it is given back, and so before its sender can know that it came.
        let (batch, parked) = handling.end(end);
        self.unparked = Some(parked);
        receiver.ring.release();
        self.telling.counters.set_own(ProcessWord::Working, 0);
        batch
    }

    /// Announces to the other workers that this one is about to sleep; whether it may.
    pub fn arm_inbox(&mut self) -> bool {
        let inbox = self.inbox.iter_mut().map(|(_, receiver)| receiver);
        let mirrors = self.mirrors.iter_mut().flat_map(|(_, all)| all);
        let mut all = inbox.chain(mirrors);
        all.all(|receiver| match receiver.ring.arm() {
            Ok(may) => may,
            Err(breach) => broken(breach as u32),
        })
    }

    /// Puts what the others mirrored into the captures' channels; whether there was anything.
    pub fn run_mirrors(&mut self) -> bool {
        let Some(captures) = self.capture.as_mut() else {
            return false;
        };
        let mut worked = false;
        for (owner, mirrors) in &mut self.mirrors {
            for (receiver, mirror) in mirrors.iter_mut().zip(0..) {
                for _ in 0..MIRRORED {
                    match receiver.ring.next() {
                        Ok(Some(record)) => captures.copy(*owner, mirror, &record),
                        Ok(None) => break,
                        Err(breach) => broken(breach as u32),
                    }
                    worked = true;
                }
                receiver.ring.release();
            }
        }
        worked
    }

    /// Some of the others rang for a capture.
    pub fn mirrors_rung(&mut self) {
        for receiver in self.mirrors.iter_mut().flat_map(|(_, all)| all) {
            let rings = receiver.bell.drain().unwrap_or_default();
            if let Err(breach) = receiver.ring.rung(rings) {
                broken(breach as u32)
            }
        }
    }

    /// One of the others rang.
    pub fn rung(&mut self, worker: u32) {
        let Some((_, receiver)) = self.inbox.iter_mut().find(|(from, _)| *from == worker) else {
            return;
        };
        self.telling.counters.add_process(ProcessWord::Doorbells, 1);
        let rings = receiver.bell.drain().unwrap_or_default();
        if let Err(breach) = receiver.ring.rung(rings) {
            broken(breach as u32)
        }
    }

    /// Whether something is plugged in a slot.
    pub fn is_plugged(&self, slot: Slot) -> bool {
        match (self.ports.sinks.get(slot as usize), &self.peers) {
            (None | Some(Sink::None), _) => false,
            (Some(Sink::Elsewhere(_)), Some(peers)) => peers.is_plugged(slot),
            _ => true,
        }
    }

    /// Which worker a frame from a slot of this one's is for, where it is not this one.
    pub fn another(&mut self, from: Slot, bytes: &[u8], now: u64) -> Option<u32> {
        let workers = self.peers.as_ref()?.workers;
        let image = self.image.as_ref().map(MappedCompartment::image)?;
        let mut head = [0; switch::HEAD];
        let length = bytes.len().min(head.len());
        let head = head.get_mut(..length)?;
        head.copy_from_slice(bytes.get(..length)?);
        let ingress = switch::Ingress {
            from,
            tag: 0,
            offload: RawOffload::default(),
            head,
            total: bytes.len(),
        };
        let owner = self.switch.owner(&image, now, &ingress).ok()?;
        (owner != workers.this()).then_some(owner)
    }
}

/// Nobody but this program writes these rings: its memory is not what it was left as, and
/// nothing in it is to be believed any longer.
#[cold]
fn broken(breach: u32) -> ! {
    confine::say!("bulkhead-switch: a ring between workers is broken (breach {breach})");
    std::process::abort()
}

/// What holds a frame that finds no room, while it is handled.
pub fn unparked() -> Option<Box<Parked>> {
    Some(Box::new(Parked::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_beside_a_frame_is_read_again() {
        for note in [
            Note {
                to: None,
                from: 7,
                wire: 0,
                segments: 0,
                came_by: 0,
                ours: false,
            },
            Note {
                to: Some(300),
                from: 0,
                wire: 70_000,
                segments: 124,
                came_by: 4095,
                ours: true,
            },
        ] {
            assert_eq!(Note::of(note.words()), note);
        }
    }
}
