//! The formats against an independent implementation (etherparse), by hand-made
//! frames, and by properties.

extern crate core_wire as wire;

mod build;
mod dhcp;
mod frames;
mod offload;
mod parse;
mod probe;
mod properties;
mod segment;
mod translate;
