//! `bulkhead-switch`: one compartment's packets.
//!
//! A library so that what is measured of it is the program itself; nothing else takes
//! it up.

mod accounts;
mod attached;
mod batch;
mod capture;
mod crew;
mod guest;
mod handling;
mod listing;
mod outlet;
mod parking;
mod peers;
mod ports;
mod readiness;
mod rules;
mod telling;
mod trace;
mod turn;
mod worker;

use ::worker::clock;

pub use worker::Worker;
