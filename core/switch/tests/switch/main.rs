//! The switch's behaviour, told as packet traces.
mod allocations;
mod gateway;
mod guard;
mod guest;
mod hits;
mod inside;
mod nat;
mod outside;
mod policy;
mod properties;
mod responders;
mod restoration;
mod routed;
mod services;
mod simulation;
mod support;
mod tracing;
