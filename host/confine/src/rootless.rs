//! Running without root: the whole of Bulkhead inside a user namespace in which the
//! caller is root.
//!
//! What is weaker then: every confined process runs under the same host uid (the
//! caller's), so their separation rests on namespaces, seccomp and Landlock without
//! the uid underneath; the caller's supplementary groups stay; limits of cgroups hold
//! only where the caller's group is delegated to it; and no uplink of the host is
//! reachable, for the network namespace is a new one.

use crate::kernel::{mount, unshare};
use rustix::io::Errno;
use std::fs;

/// Said to people where Bulkhead runs like this.
pub const WEAKER: &str = "without root all confined processes share one host uid, the caller's \
groups stay with them, memory limits hold only in a delegated cgroup, and no interface of the \
host can be an uplink";

/// Why it cannot be.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    /// The kernel (or its settings) refuses user namespaces to this user.
    #[error(
        "this host refuses user namespaces to an ordinary user ({0}): run as root, or allow \
         them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns)"
    )]
    Refused(Errno),
    /// The ids could not be mapped.
    #[error("cannot map this user to root in a new namespace: {0}")]
    Mapping(std::io::Error),
    /// A private /run could not be mounted.
    #[error("cannot mount a private /run: {0}")]
    Mount(Errno),
}

/// Whether this process already is root over its network (real root, or inside such
/// a namespace).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether only one uid exists here, so that every worker must run as uid 0 of this
/// namespace.
pub fn has_single_uid() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut words = map.split_whitespace();
    words.nth(2) == Some("1") && words.next().is_none()
}

/// Moves this process, which must have one thread only, into new user, mount, net,
/// ipc and uts namespaces, as root there; /run is private and empty but for
/// `/run/netns`. Everything started afterwards is inside, and all of it goes when
/// the last process does.
///
/// # Errors
/// [`RootlessError`]; nothing is half done but for the namespaces themselves, so end.
pub fn enter_user_namespace() -> Result<(), RootlessError> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    unshare(
        libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS,
    )
    .map_err(RootlessError::Refused)?;
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1\n")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1\n")))
        .map_err(RootlessError::Mapping)?;
    let strict = libc::MS_NOSUID | libc::MS_NODEV;
    mount(None, c"/", None, libc::MS_REC | libc::MS_SLAVE, None)
        .and_then(|()| {
            mount(
                Some(c"run"),
                c"/run",
                Some(c"tmpfs"),
                strict,
                Some(c"size=64m,mode=0755"),
            )
        })
        .map_err(RootlessError::Mount)?;
    fs::create_dir("/run/netns").map_err(RootlessError::Mapping)
}
