//! The proof: what finished table images let through, held against what was agreed.
//!
//! It reads the images, by the structures that the data path walks, and shares no code
//! with the compiler that made them. What it cannot prove within its fuel it refuses.
//!
//! `cube` and `space` are about boxes of packets, `meaning` about lists of rules.

mod cube;
mod meaning;
mod prove;
mod space;
#[cfg(test)]
mod tests;

pub use cube::{Cube, Fuel, OutOfFuel};
pub use meaning::{Cubes, Witness, difference, passes, stopped};
pub use prove::{Breach, Claim, Known, prove};
pub use space::{Addresses, anywhere, packets};
