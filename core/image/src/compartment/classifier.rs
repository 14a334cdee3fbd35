//! Rule tables as they lie in an image: Lucent bit vectors (Lakshman and Stiliadis,
//! SIGCOMM '98). Every field's values fall into intervals that begin at its boundaries;
//! an interval's word has a bit for each rule that contains it. The AND of five words,
//! one a field, are the rules that contain a packet, and its lowest bit decides.
//!
//! Past 256 rules a table has several groups of 256, and a summary: the same with a bit
//! for each group, set where any of its rules contains the interval.
//!
//! The rules are nowhere else: each one's bits in a field are one run, which is its
//! interval. Boundaries are sections of their own: addresses as numbers (`u128`; IPv4 in
//! the ::ffff: form), ports and protocols as `u16`. So are words, and which word an
//! interval has (`u16`, counted from the field's first).

use super::NONE;
use crate::rules::MAX_RULES;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Rules of a group, at most; all groups of a table but the last have as many.
pub const GROUP_RULES: usize = 256;
/// Groups of a table, at most: bits of a summary's word.
pub const MAX_GROUPS: usize = MAX_RULES / GROUP_RULES;
const _: () = assert!(MAX_GROUPS <= u64::BITS as usize && NONE > MAX_RULES as u32);

/// A bit for each rule of a group: rule `n` is bit `n % 64` of element `n / 64`.
pub type Word = [u64; GROUP_RULES / 64];

record! {
    /// The rules of one direction of one endpoint, or of several with equal ones.
    pub struct Table {
        /// First of its [`RuleGroup`]s.
        pub groups_first: u32,
        /// How many.
        pub groups_count: u32,
        /// What happens where no rule decides, an [`crate::rules::Action`].
        pub default_action: u16,
        /// Zero.
        pub reserved: u16,
        /// Of more than one group; else zeros: source, destination, source port,
        /// destination port, protocol.
        pub summary: [Summary; 5],
    }
}
record! {
    /// Which groups to look at, by one field.
    pub struct Summary {
        /// First of its boundaries, which begin at 0 and rise.
        pub bounds_first: u32,
        /// First of its words (`u64`).
        pub words_first: u32,
        /// How many boundaries, and as many words.
        pub count: u32,
    }
}
record! {
    /// At most [`GROUP_RULES`] rules.
    pub struct RuleGroup {
        /// First of its [`Outcome`]s.
        pub outcomes_first: u32,
        /// How many: its rules.
        pub outcomes_count: u32,
        /// Source, destination, source port, destination port, protocol.
        pub fields: [Field; 5],
    }
}
record! {
    /// One field of a group.
    pub struct Field {
        /// First of its boundaries, which begin at 0 and rise.
        pub bounds_first: u32,
        /// First of its places: the number of each interval's word.
        pub places_first: u32,
        /// First of its words. The numbers are given in the order of first use.
        pub words_first: u32,
        /// How many boundaries, and as many places.
        pub bounds_count: u16,
        /// How many words.
        pub words_count: u16,
    }
}
record! {
    /// What a rule does.
    pub struct Outcome {
        /// Host-wide number of the rule in the spec.
        pub rule: u32,
        /// An [`crate::rules::Action`].
        pub action: u16,
        /// `OUTCOME_*` bits.
        pub flags: u16,
    }
}
/// [`Outcome::flags`]: log what it decides about.
pub const OUTCOME_LOG: u16 = 1;
