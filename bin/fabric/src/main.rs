//! `bulkhead-fabric`: the mediator between compartments and uplinks.
//!
//! Confine, receive, loop. What may pass is decided in `core/fabric/src/forward.rs`;
//! here are the descriptors: channels, packet sockets, doorbells and the control
//! socket. It asks nothing of anyone, holds no name and opens nothing.

mod control;
mod ports;
mod tally;
mod wait;
mod worker;

use command::Message;
use command::verbs::Ready;
use confine::{Profile, descriptor, enter};
use seqpacket::Socket;
use worker::Worker;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let control =
        descriptor(3).ok_or("descriptor 3 is not there: bulkhead-supervisor starts this")?;
    // The first look at the clock asks the kernel where its vDSO is, which the filter
    // would not allow any more.
    let _ = wait::now();
    let stages = enter(Profile::Fabric)?;
    let control = Socket::from_fd(control);
    control.send(
        &Message::new(
            0,
            &Ready {
                role: control::ROLE,
                stages: stages.0,
            },
        ),
        &[],
    )?;
    let Some(mut worker) = Worker::attach(control)? else {
        return Ok(());
    };
    while worker.turn()? {}
    Ok(())
}
