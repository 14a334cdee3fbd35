//! What passed of connections, for the counts by rule: told when a connection ends, and of
//! those that live whenever the background pass comes by. The packet that is counted touches
//! its record and nothing else.

/// Packets and bytes on the wire that passed, both ways together, of a connection that these
/// rules let begin, and that were not told before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The initiator's rule and the responder's.
    pub rules: [u32; 2],
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Those that wait to be taken: of a step of the sweep, and of what one frame may end.
pub(crate) const WAITING: usize = 1024;

/// So many leading bits of what was told are kept.
const BITS: u32 = 10;

/// A count in 16 bits: its leading bits and where they are, rounded down, so that never
/// more was told than there was, and of what lives all but a thousandth.
pub(crate) const fn rounded(count: u64) -> u16 {
    let places = (64 - BITS).saturating_sub(count.leading_zeros());
    (places << BITS) as u16 | (count >> places) as u16 & ((1 << BITS) - 1)
}

/// The count that [`rounded`] made this of.
pub(crate) const fn exact(rounded: u16) -> u64 {
    ((rounded & ((1 << BITS) - 1)) as u64) << (rounded >> BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_told_is_never_more_and_hardly_less(bits in 0_u32..54, any in any::<u64>()) {
            let count = any & ((1 << bits) - 1);
            let told = exact(rounded(count));
            prop_assert!(told <= count, "{count} became {told}");
            prop_assert!(count - told <= count >> (BITS - 1), "{count} became {told}");
            prop_assert_eq!(rounded(told), rounded(count));
        }
    }
}
