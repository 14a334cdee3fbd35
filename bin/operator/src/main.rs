//! `bulkhead-operator`: a compartment's circuits.
//!
//! Programs in endpoints of circuits use ordinary sockets. What they do with them before data
//! flows (make, connect, bind, listen, accept, names, options) comes here as seccomp
//! notifications; it is judged by the same table image as packets are, and done by this
//! process itself, on copies: no other thread of the program can change what was judged. Data
//! never comes here, but of UDP where each datagram has its own destination or source. What this
//! process knows of sockets is in a page that its successor reads.

mod call;
mod callers;
mod chance;
mod circuits;
mod crossings;
mod decide;
mod giving;
mod live;
mod mediate;
mod meters;
mod msghdr;
mod notes;
mod operator;
mod place;
#[cfg(test)]
mod planted;
mod proxies;
mod put;
mod receivers;
mod rings;
mod runtimes;
mod sockets;
mod strays;
mod tally;
mod threads;
mod turns;
mod unclaimed;
mod waiting;

use command::verbs::ROLE_OPERATOR;
use confine::Profile;
use notify::Sizes;
use operator::Operator;
use rustix::process::{Resource, getrlimit};
use std::fmt::Display;
use std::process::ExitCode;
use worker::start;

fn main() -> ExitCode {
    // Its filter does not let it ask later. Of a meter it is as of this process.
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let files = files.min(confine::FILES);
    let sizes = match Sizes::of_kernel() {
        Ok(sizes) => sizes,
        Err(error) => return said(error),
    };
    notify::leave_no_children();
    match start(Profile::Operator, ROLE_OPERATOR) {
        Ok(control) => match Operator::new(control, sizes, files).run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => said(error),
        },
        Err(error) => said(error),
    }
}

fn said(error: impl Display) -> ExitCode {
    confine::say!("bulkhead-operator: {error}");
    ExitCode::FAILURE
}
