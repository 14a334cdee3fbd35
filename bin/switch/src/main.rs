//! `bulkhead-switch`: one compartment's packets. Confine, receive, loop.
//!
//! It starts as a spare that knows nobody; `Attach`, `AddPort` and `UseImage` come by
//! the control socket, with the descriptors, after it has given everything else up.

use ::worker::start;
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
    bin_switch::Worker::new(control)?.run();
    Ok(())
}
