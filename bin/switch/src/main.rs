//! `bulkhead-switch`: one compartment's packets. Confine, receive, loop.
//!
//! It starts as a spare that knows nobody; `Attach`, `AddPort` and `UseImage` come by
//! the control socket, with the descriptors, after it has given everything else up.

mod capture;
mod clock;
mod outlet;
mod parking;
mod ports;
mod readiness;
mod telling;
mod turn;
mod worker;

use command::Message;
use command::verbs::Ready;
use confine::Profile;
use seqpacket::Socket;
use std::process::ExitCode;

/// `Ready::role` of a switch.
const ROLE: u32 = 1;
/// The control socket's descriptor, where the parent placed it.
const CONTROL: u32 = 3;

fn main() -> ExitCode {
    let Some(control) = confine::descriptor(CONTROL) else {
        confine::say!("bulkhead-switch: descriptor 3 is not open: it is started by the supervisor");
        return ExitCode::from(2);
    };
    // The first look at the clock finds the vDSO, which takes system calls that are
    // given up in a moment.
    let _ = (clock::monotonic(), clock::realtime());
    let stages = match confine::enter(Profile::Switch) {
        Ok(stages) => stages,
        Err(error) => {
            confine::say!("bulkhead-switch: {error}");
            return ExitCode::from(3);
        }
    };
    let control = Socket::from_fd(control);
    let ready = Ready {
        role: ROLE,
        stages: stages.0,
    };
    if control.send(&Message::new(0, &ready), &[]).is_err() {
        return ExitCode::from(4);
    }
    match worker::Worker::new(control) {
        Ok(mut worker) => worker.run(),
        Err(_) => ExitCode::from(5),
    }
}
