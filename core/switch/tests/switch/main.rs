//! The switch's behaviour, told as packet traces.
mod allocations;
mod gateway;
mod guard;
mod guest;
mod inside;
mod outside;
mod properties;
mod responders;
mod simulation;
mod support;
