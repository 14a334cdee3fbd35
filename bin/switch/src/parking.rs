//! A frame whose receiver is full waits, and its source with it, for 50 us at most.

use switch::{HEAD, Outgoing, Slot};
use wire::offload::RawOffload;

/// How long a source is parked before its frame is dropped, ns.
pub const PATIENCE: u64 = 50_000;

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
    /// When it was parked; `None` = nothing is.
    pub since: Option<u64>,
    /// The buffer that holds the frame of a tap.
    pub buffer: Option<Box<[u8]>>,
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
            since: None,
            buffer: None,
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
        }
    }
}
