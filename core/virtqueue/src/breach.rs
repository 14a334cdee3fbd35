//! A driver's misdeeds, by name and number.

/// What a driver did that no honest one does. The numbers are stable, and begin where those
/// of channels cannot reach: they are in events and in what the switch tells a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Breach {
    /// A queue's size.
    #[error("a queue's size is zero, over 32768, or of a split ring no power of two")]
    Size = 64,
    /// Where a ring lies.
    #[error("a ring that does not lie whole and aligned in one region of guest memory")]
    Ring = 65,
    /// An index too far on, or behind.
    #[error("an index that more buffers would be available by than the ring has entries")]
    Available = 66,
    /// A descriptor's number.
    #[error("a descriptor's number beyond the ring")]
    Descriptor = 67,
    /// A chain without an end.
    #[error("a chain longer than its ring: it loops")]
    Loop = 68,
    /// An indirect table.
    #[error("an indirect table in another, chained on, not offered, unaligned or of no good size")]
    Indirect = 69,
    /// Who reads and who writes.
    #[error("a buffer to be read where one is to be written, or the other way round")]
    Direction = 70,
    /// A buffer's place or size.
    #[error("a buffer that does not lie in guest memory, or an empty one")]
    Buffer = 71,
    /// No room for a header.
    #[error("a chain too short for the header that each frame begins with")]
    Short = 72,
    /// A frame in crumbs.
    #[error("buffers in so many pieces that a frame takes more than any driver's")]
    Scattered = 73,
}

impl Breach {
    /// From its number.
    pub fn from_number(n: u32) -> Option<Breach> {
        use Breach::*;
        [
            Size, Ring, Available, Descriptor, Loop, Indirect, Direction, Buffer, Short, Scattered,
        ]
        .into_iter()
        .find(|breach| *breach as u32 == n)
    }
}
