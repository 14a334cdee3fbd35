//! An operator's limit of processes is raised, by a process of its own, where the supervisor has no
//! CAP_SYS_RESOURCE, as in a container: then only who has the operator's uid and gid may. That as its real
//! ones alone: so it keeps what nobody else of that uid may look into. The supervisor itself never has a
//! tenant's: whoever has the same could send it a signal.

use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, prlimit};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::io::{ErrorKind, Read, Result};

/// The word by which this program does that.
pub const TASKS: &str = "tasks";

/// Both of an operator's limits of processes.
///
/// # Errors
/// The kernel's.
pub fn raise(pid: Pid, most: u64) -> rustix::io::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    prlimit(Some(pid), Resource::Nproc, limit).map(|_| ())
}

/// Raises that of the process that is on its input, with its uid and gid and how far.
///
/// # Errors
/// What is asked for is not understood; the kernel's.
pub fn run() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut words = text.split_whitespace();
    let mut next = || words.next()?.parse::<u32>().ok();
    let (Some(pid), Some(uid), Some(gid), Some(most)) = (next(), next(), next(), next()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(ErrorKind::InvalidInput)?;
    set_thread_res_gid(Gid::from_raw(gid), None, None)?;
    set_thread_res_uid(Uid::from_raw(uid), None, None)?;
    Ok(raise(pid, most.into())?)
}
