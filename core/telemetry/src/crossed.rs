//! What crossed by agreement: the fabric's counters page has it where a switch's has what
//! rules decided ([`crate::rules`]). An entry is the number that [`key`] makes, wire
//! segments sent on, bytes sent on, zero; the last entry ([`crate::rules::MOST`]) is that
//! of all who found no room for their own.

/// Word of an entry: wire segments.
pub const SEGMENTS: usize = 1;
/// Word of an entry: bytes.
pub const BYTES: usize = 2;

/// Of frames that came from the channel in a slot with a tag. Not 0: no agreement's tag is.
pub const fn key(ingress: u32, tag: u16) -> u32 {
    ingress << 16 | tag as u32
}

/// The slot and the tag of a key.
pub const fn parts(key: u32) -> (u32, u16) {
    (key >> 16, key as u16)
}
