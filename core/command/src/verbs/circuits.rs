//! The bodies of circuits: what the supervisor and the operator tell each other, and what the
//! operator and who starts a program do.

use crate::message::{Body, Verb};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Addresses of a circuits endpoint at most.
pub const CIRCUITS_ADDRESSES: usize = 16;

body! {
    /// The circuits of a compartment.
    Operate: Operate {
        /// The user id that this process has: of the user namespaces of its programs.
        uid: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// A program whose calls are mediated.
    Program: Program {
        /// The slot of its endpoint.
        slot: u32,
        /// Which one: the operator's number for it.
        number: u32,
    }
}
body! {
    /// A program that is gone, with all that it started.
    ProgramGone: ProgramGone {
        /// The number.
        number: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// What a program in this endpoint is to be like.
    Circuits: Circuits {
        /// Who is to own its user namespace.
        uid: u32,
        /// Addresses that count.
        count: u32,
        /// The endpoint's, IPv4 ones as ::ffff:a.b.c.d.
        addresses: [[u8; 16]; CIRCUITS_ADDRESSES],
    }
}
body! {
    /// Mediate this program.
    Mediate: Mediate {
        /// Zero.
        reserved: u32,
        /// Zero.
        zero: u32,
    }
}
