//! `bulkhead-fabric`: the mediator between compartments and uplinks.
//!
//! Confine, receive, loop. What may pass is decided in `core/fabric/src/forward.rs`;
//! here are the descriptors: channels, packet sockets, queues of uplinks, doorbells and the
//! control socket. It asks nothing of anyone, holds no name and opens nothing.

mod control;
mod crossed;
mod finish;
mod ports;
mod tally;
mod trace;
mod uplink;
mod vlan;
mod wait;
mod worker;

use ::worker::start;
use command::verbs::ROLE_FABRIC;
use confine::Profile;
use std::error::Error;
use std::process::ExitCode;
use worker::Worker;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-fabric: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let control = start(Profile::Fabric, ROLE_FABRIC)?;
    let Some(mut worker) = Worker::attach(control)? else {
        return Ok(());
    };
    while worker.turn()? {}
    Ok(())
}
