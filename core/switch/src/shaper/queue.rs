//! Frames that wait, in memory that was taken once.

use crate::{Outgoing, Slot};
use wire::offload::RawOffload;

/// Bytes before each frame, and what all is rounded up to.
const HEADER: usize = 32;
/// Length that says: the next frame is at the beginning.
const AROUND: u32 = u32::MAX;

/// A ring of frames, each in one piece.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bytes: Box<[u8]>,
    /// Where the first frame begins.
    head: usize,
    /// Bytes in use from there on.
    used: usize,
}

/// The first frame of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Front<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) tag: u16,
    pub(super) offload: RawOffload,
    pub(super) segments: u32,
    pub(super) wire: usize,
}

impl Queue {
    /// With room for so many bytes, headers included. Untouched memory costs nothing
    /// until it is used.
    pub(super) fn new(bytes: usize) -> Queue {
        Queue {
            bytes: vec![0; bytes / HEADER * HEADER].into(),
            head: 0,
            used: 0,
        }
    }

    /// Bytes in use.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Bytes that a frame takes.
    pub(super) const fn need(frame: &Outgoing<'_>) -> usize {
        let behind = frame.total.saturating_sub(frame.rest_from);
        HEADER + (frame.head.len() + behind).next_multiple_of(HEADER)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a frame, whose bytes behind the head `rest` copies; `false`: no room.
    pub(super) fn push(
        &mut self,
        frame: &Outgoing<'_>,
        mut rest: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> bool {
        let behind = frame.total.saturating_sub(frame.rest_from);
        let length = frame.head.len() + behind;
        let need = Queue::need(frame);
        let capacity = self.bytes.len();
        let Some(mut at) = (self.head + self.used).checked_rem(capacity) else {
            return false;
        };
        let to_end = capacity - at;
        let skipped = if need > to_end { to_end } else { 0 };
        if self.used + skipped + need > capacity {
            return false;
        }
        if skipped != 0 {
            put(&mut self.bytes, at, AROUND.to_le_bytes());
            at = 0;
        }
        let Some(place) = self.bytes.get_mut(at..at + HEADER + length) else {
            return false;
        };
        let (header, body) = place.split_at_mut(HEADER);
        let (head, tail) = body.split_at_mut(frame.head.len());
        head.copy_from_slice(frame.head);
        if behind != 0 && rest(frame.rest_from, tail) != behind {
            return false;
        }
        let RawOffload {
            flags,
            gso_type,
            gso_size,
            csum_start,
            csum_offset,
        } = frame.offload;
        put(header, 0, (length as u32).to_le_bytes());
        put(header, 4, frame.segments.to_le_bytes());
        put(header, 8, (frame.wire as u64).to_le_bytes());
        put(header, 16, frame.tag.to_le_bytes());
        put(header, 18, [flags, gso_type]);
        put(header, 20, gso_size.to_le_bytes());
        put(header, 22, csum_start.to_le_bytes());
        put(header, 24, csum_offset.to_le_bytes());
        self.used += skipped + need;
        true
    }

    /// The first frame.
    pub(super) fn front(&self) -> Option<Front<'_>> {
        let at = self.first()?;
        let header = self.bytes.get(at..at + HEADER)?;
        let length = u32::from_le_bytes(take(header, 0)) as usize;
        let [flags, gso_type] = take(header, 18);
        Some(Front {
            bytes: self.bytes.get(at + HEADER..at + HEADER + length)?,
            tag: u16::from_le_bytes(take(header, 16)),
            offload: RawOffload {
                flags,
                gso_type,
                gso_size: u16::from_le_bytes(take(header, 20)),
                csum_start: u16::from_le_bytes(take(header, 22)),
                csum_offset: u16::from_le_bytes(take(header, 24)),
            },
            segments: u32::from_le_bytes(take(header, 4)),
            wire: u64::from_le_bytes(take(header, 8)) as usize,
        })
    }

    /// Takes the first frame out.
    pub(super) fn pop(&mut self) {
        let Some(at) = self.first() else { return };
        let length = self
            .bytes
            .get(at..at + 4)
            .map_or(0, |header| u32::from_le_bytes(take(header, 0)) as usize);
        let skipped = if at < self.head {
            self.bytes.len() - self.head
        } else {
            0
        };
        let taken = skipped + HEADER + length.next_multiple_of(HEADER);
        self.used = self.used.saturating_sub(taken);
        self.head = match self.used {
            // An empty ring has its whole room in one piece.
            0 => 0,
            _ => (self.head + taken) % self.bytes.len().max(1),
        };
    }

    /// Forgets all frames.
    pub(super) const fn clear(&mut self) {
        self.head = 0;
        self.used = 0;
    }

    /// Where the first frame's header is.
    fn first(&self) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let header = self.bytes.get(self.head..self.head + 4)?;
        match u32::from_le_bytes(take(header, 0)) {
            AROUND => Some(0),
            _ => Some(self.head),
        }
    }
}

impl Front<'_> {
    /// The frame as it is to be sent.
    pub(super) const fn outgoing(&self, slot: Slot) -> Outgoing<'_> {
        Outgoing {
            slot,
            tag: self.tag,
            offload: self.offload,
            head: self.bytes,
            rest_from: 0,
            total: 0,
            segments: self.segments,
            wire: self.wire,
            came_by: 0,
        }
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(&value);
    }
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    if let Some(from) = bytes.get(at..at + N) {
        value.copy_from_slice(from);
    }
    value
}
