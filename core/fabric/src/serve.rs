//! One batch of one channel's frames, moved as [`crate::forward`] decides.

use crate::forward::{self, Decision, Frame};
use guard::guard;
use image::FabricImage;
use image::fabric::{CHANNEL_COMPARTMENT, GroupMember};
use rounds::{Outcome, Share};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::offload::{GSO_NONE, segments};

/// Most frames of a batch.
pub const BATCH: usize = 64;
/// What a record costs beside its bytes, so that small ones pay for their handling.
pub const RECORD_COST: u64 = 256;
/// What a system call costs beside: a frame that needs one takes some twenty times the time
/// of one between two rings, and others wait as long for their turn.
pub const CALL_COST: u64 = 4096;
/// How long a sender waits for a receiver without room, nanoseconds (docs/design.md §4).
pub const PARK_NS: u64 = 50_000;

/// Where frames come from.
pub trait Ingress {
    /// The frame where it lies, to copy the rest from.
    type Source<'a>
    where
        Self: 'a;
    /// The next frame, without going on. `None`: nothing there, or closed.
    fn peek(&mut self) -> Option<(Frame, Self::Source<'_>)>;
    /// Goes on behind the frame last peeked at.
    fn advance(&mut self);
}

/// Where frames go.
pub trait Egress<I: Ingress> {
    /// Sends `frame.head` from the private copy, and what is behind it from
    /// `source`, with `frame.offload` as it is.
    ///
    /// # Errors
    /// [`Refused`].
    fn send(
        &mut self,
        slot: u32,
        tag: u16,
        frame: &Frame,
        source: &I::Source<'_>,
    ) -> Result<(), Refused>;
    /// System calls made so far in this batch to read frames and to send them.
    fn calls(&self) -> u64;
}

/// What is told to the world.
pub trait Counters {
    /// Adds to a slot's counter.
    fn add(&mut self, slot: u32, counter: Counter, n: u64);
    /// What was sent on of what this compartment's channel sent to another with a tag.
    fn crossed(&mut self, ingress: u32, tag: u16, segments: u64, bytes: u64);
    /// A frame that came from this slot was dropped.
    fn dropped(&mut self, slot: u32, reason: DropReason, frame: &Frame);
}

/// Why a frame was not taken by an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now.
    Full,
    /// Longer than it takes.
    TooLong,
    /// Nothing is plugged in there, or it was closed.
    Gone,
    /// The operating system refused this frame.
    System,
}

/// A channel's turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// What the batch may cost; the last frame may exceed it.
    pub allowance: u64,
    /// Nanoseconds.
    pub now: u64,
    /// Since when the channel has waited for a receiver's room; 0 = it does not.
    pub parked: u64,
    /// Whether it may wait at all: an uplink may not, many share it.
    pub may_park: bool,
}

/// What a batch came to.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Bytes, [`RECORD_COST`] a wire segment, once for each copy, and [`CALL_COST`] a system
    /// call; a dropped frame costs as one sent.
    pub cost: u64,
    /// Bytes taken.
    pub bytes: u64,
    /// How the channel stands.
    pub outcome: Outcome,
}

/// What an image says each channel is to get.
pub fn shares<'a>(image: &FabricImage<'a>) -> impl Iterator<Item = Share> + Clone + 'a {
    image.channels().iter().map(|channel| Share {
        slot: channel.slot,
        weight: channel.weight,
        min_bytes: channel.min_bytes,
    })
}

/// Moves at most [`BATCH`] frames that came from the channel in slot `ingress`.
pub fn serve<I: Ingress, E: Egress<I>, C: Counters>(
    image: &FabricImage<'_>,
    ingress: u32,
    from: &mut I,
    to: &mut E,
    counters: &mut C,
    turn: Turn,
) -> Batch {
    let (mut cost, mut bytes) = (0, 0);
    let end = |cost, bytes, outcome| Batch {
        cost,
        bytes,
        outcome,
    };
    // After the time is over, what does not fit is dropped for the whole batch.
    let patience =
        turn.may_park && (turn.parked == 0 || turn.now.saturating_sub(turn.parked) < PARK_NS);
    for _ in 0..BATCH {
        if cost >= turn.allowance {
            return end(cost, bytes, Outcome::More);
        }
        let Some((mut frame, source)) = from.peek() else {
            return end(cost, bytes, Outcome::Empty);
        };
        let decision = forward::decide(image, ingress, &frame);
        frame.offload = forward::clean(frame.offload);
        // To read is not charged: what an uplink brings is for all.
        let before = to.calls();
        let load = match decision {
            // Its offload fields were not judged, and count for nothing.
            Decision::Drop(_) => Load {
                bytes: frame.len as u64,
                segments: 1,
                is_gso: false,
            },
            _ => Load::of(&frame),
        };
        let mut copies = 1;
        match decision {
            Decision::Unicast { slot, tag } => match to.send(slot, tag, &frame, &source) {
                Ok(()) => {
                    load.count(counters, slot, Direction::Sent);
                    let is_compartment = |slot| {
                        image
                            .channel(slot)
                            .is_some_and(|channel| channel.kind == CHANNEL_COMPARTMENT)
                    };
                    // What an uplink brings is no tenant's: its tag is a VLAN.
                    if frame.tag != 0 && is_compartment(slot) && is_compartment(ingress) {
                        counters.crossed(ingress, frame.tag, load.segments, load.bytes);
                    }
                }
                Err(Refused::Full) if patience => return end(cost, bytes, Outcome::Parked),
                Err(refused) => counters.dropped(ingress, refused.reason(), &frame),
            },
            Decision::Group(members) => {
                copies = flood(image, ingress, &frame, members, counters, |slot, tag| {
                    to.send(slot, tag, &frame, &source)
                });
            }
            Decision::Drop(reason) => counters.dropped(ingress, reason, &frame),
        }
        load.count(counters, ingress, Direction::Received);
        cost += load.cost() * copies;
        if guard!("fabric-calls") {
            cost += CALL_COST * to.calls().saturating_sub(before);
        }
        bytes += load.bytes;
        drop(source);
        from.advance();
    }
    end(cost, bytes, Outcome::More)
}

/// Copies to a group, and how many there were, at least one. Bound: the members.
fn flood<C: Counters>(
    image: &FabricImage<'_>,
    ingress: u32,
    frame: &Frame,
    members: &[GroupMember],
    counters: &mut C,
    mut send: impl FnMut(u32, u16) -> Result<(), Refused>,
) -> u64 {
    let mut copies = 0;
    for member in members {
        match forward::may_join(image, ingress, member, frame) {
            Ok(()) => {}
            Err(None) => continue,
            Err(Some(reason)) => {
                counters.dropped(ingress, reason, frame);
                continue;
            }
        }
        copies += 1;
        // A group never waits for its slowest member.
        match send(member.slot, member.out_tag) {
            Ok(()) => {
                Load::of(frame).count(counters, member.slot, Direction::Sent);
                counters.add(member.slot, Counter::TxFlood, 1);
            }
            Err(refused) => counters.dropped(ingress, refused.reason(), frame),
        }
    }
    copies.max(1)
}

impl Refused {
    /// The counted reason.
    pub const fn reason(self) -> DropReason {
        match self {
            Refused::Full => DropReason::QueueFull,
            Refused::TooLong => DropReason::Oversize,
            Refused::Gone => DropReason::PortClosed,
            Refused::System => DropReason::PortRefused,
        }
    }
}

/// What a frame weighs.
#[derive(Clone, Copy)]
struct Load {
    bytes: u64,
    segments: u64,
    is_gso: bool,
}

enum Direction {
    Received,
    Sent,
}

impl Load {
    fn of(frame: &Frame) -> Load {
        let is_gso = frame.offload.gso_type != GSO_NONE;
        // Headers counted as payload: at most one segment too many.
        let segments = if is_gso {
            segments(frame.len, frame.offload.gso_size)
        } else {
            1
        };
        Load {
            bytes: frame.len as u64,
            segments: segments as u64,
            is_gso,
        }
    }
    fn cost(self) -> u64 {
        self.bytes + RECORD_COST * self.segments
    }
    fn count(self, counters: &mut impl Counters, slot: u32, direction: Direction) {
        let [frames, bytes, segments, gso] = match direction {
            Direction::Received => [
                Counter::RxFrames,
                Counter::RxBytes,
                Counter::RxSegments,
                Counter::RxGsoBytes,
            ],
            Direction::Sent => [
                Counter::TxFrames,
                Counter::TxBytes,
                Counter::TxSegments,
                Counter::TxGsoBytes,
            ],
        };
        counters.add(slot, frames, 1);
        counters.add(slot, bytes, self.bytes);
        counters.add(slot, segments, self.segments);
        if self.is_gso {
            counters.add(slot, gso, self.bytes);
        }
    }
}
