//! What the kernel says of a process's confinement. The parent asks here; what the
//! process says of itself proves nothing once it may be taken over.

use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

/// Facts from `/proc/PID/status` (proc_pid_status(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Real, effective, saved and file system uid, as this process sees them.
    pub uids: [u32; 4],
    /// Effective, permitted, inheritable, bounding, ambient capabilities.
    pub capabilities: [u64; 5],
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privileges: bool,
    /// 2 = filtered.
    pub seccomp: u32,
    /// Seccomp filters installed.
    pub filters: u32,
    /// Threads.
    pub threads: u32,
    /// Depth of pid namespaces below this process's: 0 = the same one.
    pub pid_depth: u32,
}

/// The wait status (wait(2)) of a process that another reaps; `None`: it has not yet.
///
/// # Errors
/// Unsupported: the kernel does not say (Linux before 6.15).
pub fn exit_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    match crate::kernel::exit_status(pidfd) {
        Ok(status) => Ok(Some(status)),
        Err(Errno::NODATA) => Ok(None),
        Err(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Looks at the process with this pid.
///
/// # Errors
/// NotFound where there is none.
pub fn observe(pid: u32) -> io::Result<Observed> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(parse(&text))
}

impl Observed {
    /// Whether every capability set is empty, nothing can be gained, and a filter
    /// stands: what every sandboxed profile must show.
    pub fn is_confined(&self) -> bool {
        self.capabilities == [0; 5] && self.no_new_privileges && self.seccomp == 2
    }
}

fn parse(text: &str) -> Observed {
    let mut seen = Observed::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        let number = || value.parse().unwrap_or(u32::MAX);
        // An unreadable set counts as full: never safer than it is.
        let set = || u64::from_str_radix(value, 16).unwrap_or(u64::MAX);
        let [effective, permitted, inheritable, bounding, ambient] = &mut seen.capabilities;
        match key {
            "Uid" => {
                for (to, from) in seen.uids.iter_mut().zip(value.split_whitespace()) {
                    *to = from.parse().unwrap_or(0);
                }
            }
            "CapEff" => *effective = set(),
            "CapPrm" => *permitted = set(),
            "CapInh" => *inheritable = set(),
            "CapBnd" => *bounding = set(),
            "CapAmb" => *ambient = set(),
            "NoNewPrivs" => seen.no_new_privileges = value == "1",
            "Seccomp" => seen.seccomp = number(),
            "Seccomp_filters" => seen.filters = number(),
            "Threads" => seen.threads = number(),
            "NSpid" => seen.pid_depth = value.split_whitespace().count().saturating_sub(1) as u32,
            _ => {}
        }
    }
    seen
}
