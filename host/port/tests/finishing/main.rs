//! What we finish in software against what the kernel makes of the same frames, byte by
//! byte. Needs root.

mod fragments;
mod kernel;
mod segments;
