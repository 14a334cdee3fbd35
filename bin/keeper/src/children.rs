//! The end of children.

use confine::Child;
use rustix::process::{Pid, Signal, WaitOptions};
use std::time::{Duration, Instant};

/// Kills one.
pub fn kill(child: &Child) {
    let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
}

/// Kills every process that is left below this one, and theirs as they fall to it.
pub fn kill_all() {
    let until = Instant::now() + Duration::from_secs(5);
    let list = format!(
        "/proc/self/task/{}/children",
        rustix::thread::gettid().as_raw_nonzero()
    );
    // A child that was not waited for keeps its pid: none of these is a stranger.
    while Instant::now() < until {
        let children = std::fs::read_to_string(&list).unwrap_or_default();
        for pid in children
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}
