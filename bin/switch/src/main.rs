//! `bulkhead-switch`: one compartment's packets. Confine, receive, loop.
//!
//! It starts as a spare that knows nobody; `Attach`, `AddPort` and `UseImage` come by
//! the control socket, with the descriptors, after it has given everything else up.

mod batch;
mod capture;
mod guest;
mod listing;
mod outlet;
mod parking;
mod ports;
mod readiness;
mod rules;
mod telling;
mod trace;
mod turn;
mod worker;

use ::worker::{clock, start};
use command::verbs::ROLE_SWITCH;
use confine::Profile;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-switch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let control = start(Profile::Switch, ROLE_SWITCH)?;
    worker::Worker::new(control)?.run();
    Ok(())
}
