//! The daemon as a process: found by the lock that its keeper holds.

use crate::exit::{Exit, Trouble};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The keeper gives the rest 20 s to end in order.
const FAREWELL: Duration = Duration::from_secs(30);

/// The keeper of an instance.
pub struct Daemon {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Daemon {
    /// The one whose API socket this is.
    pub fn of(socket: &Path) -> Result<Daemon, Trouble> {
        let lock = socket.with_file_name("keeper.lock");
        let text = fs::read_to_string(&lock).map_err(|e| {
            Trouble::new(
                Exit::NotRunning,
                format!("{}: {e}", lock.display()),
                "a daemon leaves its process id there; is --socket in its run directory?",
            )
        })?;
        let pid = text
            .trim()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| {
                Trouble::new(
                    Exit::Failed,
                    format!("{}: no process id in it", lock.display()),
                    "",
                )
            })?;
        let gone = |_| {
            Trouble::new(
                Exit::NotRunning,
                format!("the daemon (pid {pid}) has ended"),
                "",
            )
        };
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(gone)?;
        Ok(Daemon { pid, pidfd })
    }

    /// How it is ended where nothing can be taken down before.
    pub fn by_hand(&self) -> String {
        format!(
            "the daemon goes on: `kill {}` ends it and all that it made, and forgets nothing: the next `bulkhead up` \
             on this state directory makes that again",
            self.pid
        )
    }

    /// Ends it in order and waits for that.
    pub fn stop(&self) -> Result<(), Trouble> {
        match pidfd_send_signal(&self.pidfd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => {
                return Err(Trouble::new(
                    Exit::Denied,
                    format!(
                        "the daemon (pid {}) may not be signalled: {errno}",
                        self.pid
                    ),
                    "end it as the user who started it",
                ));
            }
        }
        let end = Instant::now() + FAREWELL;
        // Bound: FAREWELL.
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let time = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&time)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
        }
        Err(Trouble::new(
            Exit::Failed,
            format!(
                "the daemon (pid {}) has not ended within {} s",
                self.pid,
                FAREWELL.as_secs()
            ),
            "",
        ))
    }

    /// Goes where an instance without root lives: into its user namespace, in which
    /// the same user is root, and to its mounts. Nothing where it is our own.
    pub fn enter_user_namespace(&self) -> Result<(), Trouble> {
        let theirs = |kind: &str| format!("/proc/{}/ns/{kind}", self.pid);
        let (Ok(user), Ok(own)) = (
            fs::read_link(theirs("user")),
            fs::read_link("/proc/self/ns/user"),
        ) else {
            return Ok(());
        };
        if user == own {
            return Ok(());
        }
        for (kind, what) in [
            ("user", LinkNameSpaceType::User),
            ("mnt", LinkNameSpaceType::Mount),
        ] {
            let path = theirs(kind);
            open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|namespace| move_into_link_name_space(namespace.as_fd(), Some(what)))
                .map_err(|errno| {
                    Trouble::new(
                        Exit::Denied,
                        format!("{path}: entering it was refused: {errno}"),
                        "ask as the user who started the daemon",
                    )
                })?;
        }
        Ok(())
    }
}
