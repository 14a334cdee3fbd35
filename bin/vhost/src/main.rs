//! `bulkhead-vhost`: one virtual machine's network interface, as vhost-user has it.
//!
//! It ends the front end's protocol and holds what a switch needs to run the queues: the
//! files of the guest's memory, where its rings lie, what its driver kicks. The switch may
//! die and come back meanwhile; the front end sees nothing of that. The switch maps the
//! memory, this process never does; this process writes the descriptors that call the
//! driver, the switch never does: whoever shares such a descriptor can make the writer wait.

mod front;
mod helper;
mod link;

use command::verbs::ROLE_VHOST;
use confine::Profile;
use helper::Helper;
use seqpacket::Socket;
use std::fmt::Display;
use std::process::ExitCode;
use worker::start;

fn main() -> ExitCode {
    match start(Profile::Vhost, ROLE_VHOST) {
        Ok(control) => serve(control),
        Err(error) => said(error),
    }
}

fn serve(control: Socket) -> ExitCode {
    let mut helper = match Helper::new(control) {
        Ok(helper) => helper,
        Err(error) => return said(error),
    };
    // Said while the supervisor is still listened to: it kills who hangs up.
    match helper.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => said(error),
    }
}

fn said(error: impl Display) -> ExitCode {
    confine::say!("bulkhead-vhost: {error}");
    ExitCode::FAILURE
}
