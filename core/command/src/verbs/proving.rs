//! The bodies of the proof: what the supervisor, its verifier, its auditor and the solver tell each
//! other.

use crate::message::{Body, Verb};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

body! {
    /// Prove this (a bundle, see [`crate::bundle`], in a sealed memfd beside it).
    Prove: Prove {
        /// `PROVE_*`.
        purpose: u32,
        /// The compartment whose switch is taken for a liar: its image is no evidence, and
        /// nothing may be installed by the answer. 0 = none.
        compromised: u32,
    }
}
/// Images that are to be installed: once proved they may be.
pub const PROVE_TO_INSTALL: u32 = 0;
/// Images that somebody wants to know about; nothing may be installed by it.
pub const PROVE_TO_KNOW: u32 = 1;
/// The images in use, which the supervisor hands over; the bundle names what they should be.
pub const PROVE_INSTALLED: u32 = 2;
/// Nothing yet: read the bundle's spec, which a question will be about.
pub const PROVE_AHEAD: u32 = 3;

/// Most digests in one [`Proved`].
pub const PROVED_AT_ONCE: usize = 13;
body! {
    /// These images were proved, each for its place.
    Proved: Proved {
        /// How many of them.
        count: u32,
        /// Zero.
        reserved: u32,
        /// For whom: compartment ids, or [`super::FABRIC`].
        targets: [u32; PROVED_AT_ONCE],
        /// Digest of each.
        digests: [[u8; 32]; PROVED_AT_ONCE],
    }
}
body! {
    /// What came of a question, with its number.
    Verdict: Verdict {
        /// `VERDICT_*`.
        outcome: u32,
        /// Reasons against it, all of which the report has.
        breaches: u32,
        /// Compartments that were looked at.
        compartments: u32,
        /// Endpoints in them.
        endpoints: u32,
        /// Entries of the fabric's table.
        entries: u32,
        /// Zero.
        reserved: u32,
        /// Time that it took, microseconds.
        took_us: u64,
    }
}
/// Proved.
pub const VERDICT_PROVED: u32 = 0;
/// Not proved: the report says why.
pub const VERDICT_BREACHES: u32 = 1;
/// Something was named by its digest that the verifier does not hold (any more): ask again
/// with the whole.
pub const VERDICT_NEED: u32 = 2;
/// The question could not be understood: the report says why.
pub const VERDICT_UNREADABLE: u32 = 3;

/// Most images in one [`Lying`].
pub const LYING_AT_ONCE: usize = 12;
body! {
    /// What lies in these seats.
    Lying: Lying {
        /// How many of them.
        count: u32,
        /// Compartment id of each; [`super::FABRIC`] = the fabric.
        targets: [u32; LYING_AT_ONCE],
    }
}
body! {
    /// Solve this: a text in SMT-LIB 2, in a sealed memfd beside it.
    Solve: Solve {
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// What comes of [`Solve`].
    Solving: Solving {
        /// `SOLVER_*`.
        state: u32,
    }
}
/// The answer comes by the pipe beside this, and ends where it ends.
pub const SOLVER_ASKED: u32 = 0;
/// There is no solver on this host.
pub const SOLVER_ABSENT: u32 = 1;
