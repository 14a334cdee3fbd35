//! The record header that stands before each frame on a FIFO (docs/fifo.md).

use wire::offload::RawOffload;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// 16 bytes before each frame; records start and end at multiples of 16.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RawRecord {
    /// Frame bytes after the header (not the padding).
    pub len: u32,
    /// [`KIND_FRAME`], [`KIND_PAD`] or [`KIND_CAPTURE`].
    pub kind: u8,
    /// Header size in 16-byte units, this struct included, so that it can grow.
    pub header_units: u8,
    /// Host-local fabric tag (docs/design.md §1); 0 = none. Only on switch-fabric channels.
    pub tag: u16,
    /// What the frame's writer says of its offload state.
    pub offload: RawOffload,
}

/// An Ethernet frame.
pub const KIND_FRAME: u8 = 1;
/// Fills the ring to its end; `len` covers the rest.
pub const KIND_PAD: u8 = 2;
/// A captured frame: the header is followed by a [`CaptureNote`] (`header_units` = 3).
pub const KIND_CAPTURE: u8 = 3;

/// What a capture record says beside the frame: 32 bytes after the header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CaptureNote {
    /// Nanoseconds, CLOCK_REALTIME.
    pub time_ns: u64,
    /// Host-wide endpoint id the frame came from or went to; 0 = fabric.
    pub endpoint: u32,
    /// Frame length before it was cut to the snap length.
    pub original_len: u32,
    /// `DropReason` as u16; 0 = not dropped.
    pub drop_reason: u16,
    /// 0 = came from the endpoint, 1 = went to it.
    pub direction: u16,
    /// Frames that were to be captured since the start and found no room, before this one.
    pub lost: u32,
    /// 1 = a rule denied it: [`CaptureNote::rule`].
    pub denied: u32,
    /// That rule's number.
    pub rule: u32,
}

impl RawRecord {
    /// The header as the two words that cross the ring (little-endian).
    #[inline(always)]
    pub fn to_words(self) -> [u64; 2] {
        let o = self.offload;
        [
            u64::from(self.len)
                | u64::from(self.kind) << 32
                | u64::from(self.header_units) << 40
                | u64::from(self.tag) << 48,
            u64::from(o.flags)
                | u64::from(o.gso_type) << 8
                | u64::from(o.gso_size) << 16
                | u64::from(o.csum_start) << 32
                | u64::from(o.csum_offset) << 48,
        ]
        .map(u64::to_le)
    }

    /// A header as alleged by the two words. By shifts: a detour over memory would
    /// stall on loads that overlap two stores.
    #[inline(always)]
    pub fn from_words(words: [u64; 2]) -> RawRecord {
        let [a, b] = words.map(u64::from_le);
        RawRecord {
            len: a as u32,
            kind: (a >> 32) as u8,
            header_units: (a >> 40) as u8,
            tag: (a >> 48) as u16,
            offload: RawOffload {
                flags: b as u8,
                gso_type: (b >> 8) as u8,
                gso_size: (b >> 16) as u16,
                csum_start: (b >> 32) as u16,
                csum_offset: (b >> 48) as u16,
            },
        }
    }
}
