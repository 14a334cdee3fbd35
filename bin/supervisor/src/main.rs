//! The supervisor: the only process with privilege. It makes namespaces, taps, memory
//! and sandboxes, hands descriptors to processes that have none, and puts a new one in
//! the place of one that died. It never reads a packet.

mod accounts;
mod adopt;
mod attach;
mod bodies;
mod capture;
mod channels;
mod control;
mod controller;
mod cores;
mod crews;
mod deaths;
mod errands;
mod events;
mod executables;
mod flows;
mod images;
mod journals;
mod keeper;
mod limits;
mod link;
mod namespaces;
mod owners;
mod poll;
mod ports;
mod process;
mod proofs;
mod ranges;
mod refusal;
mod registry;
mod role;
mod seats;
mod settings;
mod solver;
mod spread;
mod supervisor;
mod taps;
mod trace;
mod uplinks;
mod watch;
mod words;
mod workers;

use keeper::Keeper;
use settings::Settings;
use std::process::ExitCode;
use supervisor::Supervisor;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            confine::say!("bulkhead-supervisor: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    if let Some(done) = errands::run(std::env::args().nth(1).as_deref()) {
        return done.map_err(|error| error.to_string());
    }
    let settings = Settings::parse(std::env::args().skip(1))?;
    let _ = rustix::thread::set_name(c"supervisor");
    for what in confine::weaker() {
        confine::say!("supervisor: weaker here: {what}");
    }
    let socket = confine::inherited::descriptor(3)
        .ok_or("descriptor 3 is not the keeper's socket; the keeper starts this program")?;
    let keeper = Keeper::new(seqpacket::Socket::from_fd(socket));
    Supervisor::start(settings, keeper)?.run()
}
