//! `bulkhead-solver`: becomes the host's z3 for one text of the verifier's.
//!
//! Confine, receive, execute. z3 is a large program of others' and the text comes out of
//! tenants' specs, so it lives as a switch does: a uid and namespaces of its own, no network,
//! of all files only libraries, little memory and time. It has the text and a pipe to the
//! verifier, which takes a packet that it names for a hint and its "unsat" for an answer.

use command::message::Verb;
use command::verbs::{ROLE_SOLVER, Solve};
use confine::{Profile, descriptor};
use std::error::Error;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use worker::{next, start};

/// z3, where the supervisor placed it.
const PROGRAM: u32 = 4;
/// A text comes in, in SMT-LIB 2.
const WORDS: [&CStr; 3] = [c"z3", c"-in", c"-smt2"];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-solver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // Close-on-exec, as the control socket is: z3 has neither.
    let program = descriptor(PROGRAM)
        .ok_or("descriptor 4 is not open: bulkhead-supervisor starts this program")?;
    let control = start(Profile::Solver, ROLE_SOLVER)?;
    while let Some((message, fds)) = next(&control)? {
        if message.body::<Solve>().is_some() {
            let mut fds = fds.into_iter();
            let (Some(text), Some(answer)) = (fds.next(), fds.next()) else {
                return Err("no text came, or nowhere for the answer".into());
            };
            let error = confine::become_solver(program.as_fd(), text, answer, &WORDS);
            return Err(format!("z3 cannot be executed: {error}").into());
        }
        if Verb::from_number(message.verb) == Some(Verb::Quit) {
            return Ok(());
        }
    }
    Ok(())
}
