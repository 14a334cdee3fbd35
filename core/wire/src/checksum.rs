//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), and the
//! completion of a partial one.

use crate::address::{Address, unmapped};
use crate::field;

/// A one's complement sum in the making. Parts may be added in any order; each
/// part but the last must have even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const fn new() -> Self {
        Sum(0)
    }

    /// Adds bytes as big-endian words; an odd last byte is padded with zero.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // In the machine's byte order and 32 bits at a time, which one's
        // complement allows (RFC 1071, section 2) and the compiler vectorises. A
        // 64-bit sum takes 2^32 such words, more than any frame has.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut last = [0u8; 4];
        if let Some(head) = last.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        let sum = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .fold(u64::from(u32::from_ne_bytes(last)), u64::wrapping_add);
        self.word(u16::from_be(Sum(sum).fold()))
    }

    /// Adds one 16-bit word.
    pub const fn word(self, word: u16) -> Self {
        let (sum, carry) = self.0.overflowing_add(word as u64);
        Sum(sum + carry as u64)
    }

    /// The folded 16-bit sum, not complemented: what a partial checksum holds.
    pub const fn fold(self) -> u16 {
        let mut sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        // Three more folds take 33 bits to 16.
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum as u16
    }

    /// The checksum: the complement of the folded sum.
    pub const fn finish(self) -> u16 {
        !self.fold()
    }
}

/// The checksum of a run of bytes (RFC 1071). Over bytes that already hold their
/// checksum it is 0 when that is right.
pub fn internet(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

/// The sum of a pseudo header: IPv4's (RFC 793) when both addresses are
/// v4-mapped, else IPv6's (RFC 8200, section 8.1). `length` is the bytes of
/// transport header and payload.
pub fn pseudo(source: &Address, destination: &Address, protocol: u8, length: usize) -> Sum {
    let sum = match (unmapped(source), unmapped(destination)) {
        (Some(source), Some(destination)) => Sum::new().bytes(&source).bytes(&destination),
        _ => Sum::new().bytes(source).bytes(destination),
    };
    let length = length as u32;
    sum.word((length >> 16) as u16)
        .word(length as u16)
        .word(u16::from(protocol))
}

/// Whether a whole transport message (TCP, UDP, ICMPv6) has the right checksum.
/// UDP over IPv4 without one (zero) counts as right.
pub fn verifies(source: &Address, destination: &Address, protocol: u8, message: &[u8]) -> bool {
    if protocol == crate::udp::PROTOCOL
        && unmapped(source).is_some()
        && field::word(message, 6) == Some(0)
    {
        return true;
    }
    pseudo(source, destination, protocol, message.len())
        .bytes(message)
        .finish()
        == 0
}

/// The checksum after one 16-bit word under it changed (RFC 1624, equation 3).
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().word(!checksum).word(!old).word(new).finish()
}

/// The checksum after a run of bytes under it changed. `old` and `new` have the
/// same even length.
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    // -old is the complement of old's sum.
    Sum::new()
        .word(!checksum)
        .word(Sum::new().bytes(old).finish())
        .bytes(new)
        .finish()
}

/// Finishes a partial checksum: sums `frame` from `start` to its end and stores
/// the result at `start + offset`, where the pseudo header's sum was. A result
/// of 0 is stored as 0xffff, which UDP needs and TCP does not mind.
///
/// `None`, and nothing written, when the field does not lie inside the frame.
/// The caller has cut trailing padding off.
pub fn complete(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let at = start.checked_add(offset)?;
    if at.checked_add(2)? > frame.len() {
        return None;
    }
    let sum = internet(frame.get(start..)?);
    let sum = if sum == 0 { 0xffff } else { sum };
    field::put(frame, at, &sum.to_be_bytes())
}
