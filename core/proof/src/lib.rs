//! The proof: what finished table images let through, held against what was agreed.
//!
//! It reads the images, by the structures that the data path walks, and shares no code
//! with the compiler that made them. What it cannot prove within its fuel a solver is asked,
//! where there is one; the rest it refuses.
//! docs/proof.md says what is claimed, and why it holds.
//!
//! `cube` and `space` are about boxes of packets, `meaning` about lists of rules, `solver`
//! about the same questions as texts.
//! `intend` and `lines` say what the spec and the numbers mean, `places` and `inside`
//! hold a compartment's image against it, `reach` is what tenants ask for, `between`,
//! `crossings` and `templates` what joins compartments, `uplinks` what they may say outside.
//! `likely` and `showing` choose what shows a breach, and say which `way` it goes; no proof
//! depends on them. `prove` asks it all, but for
//! what `known` says was proved before.

mod alike;
mod between;
mod breach;
mod crossings;
mod cube;
mod inside;
mod intend;
mod known;
mod likely;
mod lines;
mod meaning;
mod numbers;
mod places;
mod prove;
mod ranges;
mod reach;
mod showing;
mod solver;
mod space;
mod templates;
#[cfg(test)]
mod tests;
mod uplinks;
mod way;

pub use breach::{Breach, Class, Packet, Written};
pub use cube::{Cube, Fuel, OutOfFuel};
pub use inside::TABLE_FUEL;
pub use known::{Known, Read};
pub use meaning::{Cubes, Witness, difference, passes, stopped};
pub use prove::{Claim, prove, prove_by};
pub use solver::{LONGEST_TEXT, NoSolver, Solver, Unsolved};
pub use space::{Addresses, anywhere, packets};
pub use way::{Becomes, Place, Way};
