//! `bench forward`: packets through one compartment on one core, against what users would
//! pick instead.

mod count;
pub mod inside;
mod site;

use crate::Options;
use crate::results::Figure;
pub use count::{Gate, gate};

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    count::figures(options)
}
