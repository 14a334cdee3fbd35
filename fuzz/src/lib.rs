//! What libFuzzer drives: a function for each target that takes bytes, does with them what a
//! hostile peer could, and asserts what must hold whatever they are.
//!
//! Where a peer shares memory, the memory itself is made of the input: each load gives the
//! next bytes of it, so that no two looks at the same place need find the same. That is the
//! second thread that rewrites what is being read, at its worst, and every run can be repeated.

mod input;

// Two tenants and a way outside, and an output that writes everything down: the switch's own
// tests'.
#[path = "../../core/switch/tests/switch/seen.rs"]
mod seen;
#[path = "../../core/switch/tests/switch/support.rs"]
mod support;

pub mod circuit;
pub mod command;
pub mod frames;
pub mod image;
pub mod restoration;
pub mod ring;
pub mod spec;
pub mod stream;
pub mod vhostuser;
pub mod virtqueue;
pub mod virtqueue_race;
