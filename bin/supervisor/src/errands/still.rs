//! Programs of a compartment stand still while a circuit is looked for that was not found otherwise: one that forks all
//! the time, or hands its socket from thread to thread, is never where it was a moment ago. A process for each user namespace stops all in it at
//! once, and has them go on when who searches is done, or dead.

use super::search::{numbers, users_at_once};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::BTreeMap;
use std::io::{Read, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

/// The word by which this program does that.
pub const STILL: &str = "still";
/// They go on after so long, whatever comes.
const LONGEST: Timespec = Timespec {
    tv_sec: 3,
    tv_nsec: 0,
};
/// User namespaces at most whose programs are stopped.
const MOST: usize = 256;
/// For so long the youngest process is looked at again and again: who forks all the time is in no listing.
const CHASE: Duration = Duration::from_millis(20);

/// Those of one user namespace, while this is there.
struct Still {
    child: Child,
    /// They go on with the end of this.
    until: Option<OwnedFd>,
}

impl Drop for Still {
    fn drop(&mut self) {
        drop(self.until.take());
        let _ = self.child.wait();
    }
}

/// All that were stopped go on with the end of this.
#[derive(Default)]
pub struct AllStill(BTreeMap<u64, Still>);

impl AllStill {
    /// Stops the programs of those user namespaces that this user made; says that it goes on.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn of(uid: u32, out: &mut impl Write) -> Result<AllStill> {
        let mut all = AllStill::default();
        // Root's are everybody's.
        if uid == 0 {
            return Ok(all);
        }
        let began = Instant::now();
        while began.elapsed() < CHASE {
            if let Some(process) = youngest() {
                all.stop(process, uid, out)?;
            }
        }
        for process in numbers("/proc") {
            all.stop(process, uid, out)?;
        }
        Ok(all)
    }

    fn stop(&mut self, process: u32, uid: u32, out: &mut impl Write) -> Result<()> {
        let namespace = users_at_once(process);
        let Some(namespace) = namespace.and_then(|it| notify::made_by(it, uid)) else {
            return Ok(());
        };
        let Ok(stat) = rustix::fs::fstat(&namespace) else {
            return Ok(());
        };
        if self.0.len() >= MOST || self.0.contains_key(&stat.st_ino) {
            return Ok(());
        }
        // Nobody holds this one up.
        writeln!(out, "0")?;
        out.flush()?;
        if let Ok(still) = stops(namespace) {
            self.0.insert(stat.st_ino, still);
        }
        Ok(())
    }
}

/// The process that was made last.
fn youngest() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().last()?.parse().ok()
}

/// Has somebody stop all in this user namespace, and waits until they are.
fn stops(namespace: OwnedFd) -> Result<Still> {
    let (until, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    let (mut said, says) = std::io::pipe()?;
    let mut command = super::command(STILL);
    command.stdin(namespace).stdout(says).stderr(until);
    let still = Still {
        child: command.spawn()?,
        until: Some(ours),
    };
    // What it was given is its own alone by then.
    drop(command);
    match said.read(&mut [0])? {
        0 => Err(std::io::ErrorKind::PermissionDenied.into()),
        _ => Ok(still),
    }
}

/// Stops all in the user namespace that is its input, says so, and waits for the end of the third.
///
/// # Errors
/// The kernel's.
pub fn run() -> Result<()> {
    let namespace = std::io::stdin().as_fd().try_clone_to_owned()?;
    notify::stands_still(namespace, || {
        let _ = rustix::io::write(std::io::stdout(), b"\n");
        let until = std::io::stderr();
        let mut ended = [PollFd::new(&until, PollFlags::IN)];
        let _ = poll(&mut ended, Some(&LONGEST));
    })?;
    Ok(())
}
