//! The proof: what finished table images let through, held against what was agreed.
//!
//! It reads the images, by the structures that the data path walks, and shares no code
//! with the compiler that made them. What it cannot prove within its fuel it refuses.
//! docs/proof.md says what is claimed, and why it holds.
//!
//! `cube` and `space` are about boxes of packets, `meaning` about lists of rules.
//! `intend` and `lines` say what the spec and the numbers mean, `places` and `inside`
//! hold a compartment's image against it, `likely` chooses what shows a breach, `reach` is
//! what tenants ask for, `between` what joins compartments, `uplinks`
//! what they may say outside. `prove` asks it all, but for
//! what `known` says was proved before.

mod between;
mod breach;
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
mod space;
#[cfg(test)]
mod tests;
mod uplinks;

pub use breach::{Breach, Class, Packet, Written};
pub use cube::{Cube, Fuel, OutOfFuel};
pub use inside::TABLE_FUEL;
pub use known::{Known, Read};
pub use meaning::{Cubes, Witness, difference, passes, stopped};
pub use prove::{Claim, prove};
pub use space::{Addresses, anywhere, packets};
