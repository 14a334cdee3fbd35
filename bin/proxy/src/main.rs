//! `bulkhead-proxy`: where an endpoint's circuits become TCP, and its datagrams UDP.
//!
//! A program with circuits that connects to one who has packets, and one with packets who
//! connects to such a program, meet here: in the endpoint's network namespace, by ordinary
//! sockets of the kernel's, from and to the endpoint's own address, so that switches see
//! packets and judge them by the same rules. The compartment's operator says what to connect
//! and where to listen, and hands over the circuits' other ends. Bytes are spliced: this
//! process sees none of them.
//!
//! Another of these processes, one a compartment, has a namespace with nothing in it, and is the
//! compartment's *meter*: circuits whose endpoints have a rate, or are counted, go through it, and
//! those that begin while somebody captures, which it alone sees as long as that is.
//!
//! `proxy` is the process and its loop, for both. Of the first task are `tcp`, `udp` and `relay`, whose
//! pipe is the second's as well; all else of the second is in `meter`.

mod meter;
mod proxy;
mod relay;
mod tcp;
mod udp;

use command::verbs::ROLE_PROXY;
use confine::Profile;
use proxy::Proxy;
use rustix::process::{Resource, getrlimit};
use std::fmt::Display;
use std::process::ExitCode;
use worker::start;

fn main() -> ExitCode {
    // Confined, it may not ask any more.
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    match start(Profile::Proxy, ROLE_PROXY) {
        Ok(control) => match Proxy::new(control, files).and_then(|mut proxy| proxy.run()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => said(error),
        },
        Err(error) => said(error),
    }
}

fn said(error: impl Display) -> ExitCode {
    confine::say!("bulkhead-proxy: {error}");
    ExitCode::FAILURE
}
