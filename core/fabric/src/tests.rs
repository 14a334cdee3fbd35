//! A fabric without an operating system: queues for rings, a clock that is an argument.

mod allocations;
mod bench;
mod fairness;
mod forwarding;
mod segment;
