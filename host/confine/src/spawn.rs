//! Starting a process in its place: namespaces, uid, descriptors at fixed numbers.
#![expect(
    unsafe_code,
    reason = "what runs between clone3 and execveat is raw system calls"
)]

use crate::cgroup::{Cgroup, CgroupError};
use crate::kernel;
use crate::profile::{PROFILE_VARIABLE, Profile, UID_VARIABLE};
use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Most descriptors handed to a new process.
pub const MAX_DESCRIPTORS: usize = 16;
/// A program that does not begin within it is not started.
const START_LIMIT: Duration = Duration::from_secs(10);
/// And is not waited for longer.
const END_LIMIT: Duration = Duration::from_secs(1);

/// What to start and how.
///
/// The environment of the new process is fixed (`PATH`, and the profile's name):
/// nothing of the parent's gets through. SIGINT of a terminal does not reach it
/// (a session of its own), and it does not die with its parent: switches outlive
/// the supervisor, and the keeper is what ends them.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Decides the namespaces and, in the new process, the stages.
    pub profile: Profile,
    /// The program, opened O_PATH or O_RDONLY; others may execute it.
    pub program: BorrowedFd<'a>,
    /// argv\[0\].
    pub name: &'a str,
    /// The arguments after it.
    pub arguments: &'a [&'a str],
    /// Its uid on the host (as this process sees it). Inside its user namespace it
    /// is 0, and it is the only one there.
    pub uid: u32,
    /// Its gid on the host.
    pub gid: u32,
    /// Become 3, 4, ... in this order; at most `MAX_DESCRIPTORS`.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// Its descriptor 2; `None` = /dev/null. 0 and 1 are always /dev/null.
    pub stderr: Option<BorrowedFd<'a>>,
    /// Joined before the program starts.
    pub cgroup: Option<&'a Cgroup>,
}

/// What else the host's root needs to be mapped.
fn needs(id: u32) -> &'static str {
    match id {
        0 => " (the service that starts Bulkhead needs CAP_SETFCAP in its bounding set)",
        _ => "",
    }
}

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    /// Its id in this process's pid namespace.
    pub pid: u32,
    /// Readable when it has died; rustix's `waitid(WaitId::PidFd(..))` tells how.
    pub pidfd: OwnedFd,
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An argument holds a zero byte, or too many descriptors: the caller's fault.
    #[error("an argument cannot be passed to a program")]
    Argument,
    /// No pipe, no /dev/null.
    #[error("cannot prepare a new process: {0}")]
    Prepare(Errno),
    /// clone3 refused: user namespaces may be switched off on this host.
    #[error("the kernel refuses a process in new namespaces: {0}")]
    Clone(Errno),
    /// The uid or gid cannot be mapped: this process lacks privilege over it.
    #[error("cannot map host id {id} into the new user namespace ({file}): {error}{}", needs(*.id))]
    Mapping {
        /// `uid_map` or `gid_map`.
        file: &'static str,
        /// The host id.
        id: u32,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A step in the new process failed.
    #[error("the new process failed to {step}: {error}")]
    Child {
        /// What it was about to do.
        step: &'static str,
        /// What the kernel said.
        error: Errno,
    },
}

/// Starts a process. Returns once its program runs (its `main` is about to start),
/// or with the reason why not and nothing left behind.
///
/// # Errors
/// [`SpawnError`].
pub fn spawn(spawn: &Spawn<'_>) -> Result<Child, SpawnError> {
    let prepared = Prepared::new(spawn)?;
    let (go_read, go_write) = pipe()?;
    let (status_read, status_write) = pipe()?;
    // SAFETY: the child calls only `Prepared::run`, which neither allocates nor
    // locks, and ends in execveat or _exit.
    let forked = unsafe { kernel::fork_into(namespaces(spawn.profile)) };
    let Some((pid, pidfd)) = forked.map_err(SpawnError::Clone)? else {
        prepared.run(
            go_read.as_raw_fd(),
            go_write.as_raw_fd(),
            status_write.as_raw_fd(),
        );
    };
    drop(status_write);
    let child = Child { pid, pidfd };
    let result = settle(spawn, pid)
        .and_then(|()| {
            rustix::io::write(&go_write, &[1])
                .map(drop)
                .map_err(SpawnError::Prepare)
        })
        .and_then(|()| outcome(&status_read));
    if let Err(error) = result {
        // Without the go-ahead it ends by itself; with it, it has ended already.
        drop(go_write);
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL);
        let _ = is_readable(child.pidfd.as_fd(), END_LIMIT);
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(child.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG,
        );
        return Err(error);
    }
    Ok(child)
}

fn namespaces(profile: Profile) -> u64 {
    if profile == Profile::Operator {
        return (libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;
    }
    if !profile.is_namespaced() {
        return 0;
    }
    // Its TCP is that of an endpoint's namespace, over which it has no capability.
    let network = match profile {
        Profile::Proxy => 0,
        _ => libc::CLONE_NEWNET,
    };
    (network
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS) as u64
}

/// What id 0 of the host is called inside the controller's user namespace, where 0
/// is the controller itself.
pub const HOST_ROOT: u32 = u32::MAX - 1;

/// The id map of the controller: itself as 0, and names for those who may call its
/// API, for the kernel tells who calls (SO_PEERCRED) in the terms of its own user
/// namespace and knows no other. To have a name is no right: every capability over
/// the namespace is given up before the first call is taken.
fn named_callers(id: u32) -> String {
    format!("0 {id} 1\n1 1 {}\n{HOST_ROOT} 0 1\n", id - 1)
}

/// What the parent does while the child waits: ids and cgroup.
fn settle(spawn: &Spawn<'_>, pid: u32) -> Result<(), SpawnError> {
    if let Some(cgroup) = spawn.cgroup {
        cgroup.add(pid)?;
    }
    if !spawn.profile.is_namespaced() {
        return Ok(());
    }
    let mapping = |file, id, error| SpawnError::Mapping { file, id, error };
    let users = format!("/proc/{pid}/uid_map");
    let groups = format!("/proc/{pid}/gid_map");
    let callers =
        |id: u32| (spawn.profile == Profile::Controller && id > 1).then(|| named_callers(id));
    // Only a parent with privilege over all ids may name the callers. Without it the
    // one caller there can be is the one user there is, who is mapped below. Who has privilege
    // over another's id and cannot name root would refuse root for ever after.
    let is_own = spawn.uid == rustix::process::geteuid().as_raw();
    match callers(spawn.uid).map(|map| fs::write(&users, map)) {
        Some(Ok(())) => {}
        Some(Err(error))
            if !is_own
                && error.kind() == std::io::ErrorKind::PermissionDenied
                && guard!("controller-names-root") =>
        {
            return Err(mapping("uid_map", 0, error));
        }
        _ => fs::write(&users, format!("0 {} 1\n", spawn.uid))
            .map_err(|error| mapping("uid_map", spawn.uid, error))?,
    }
    if callers(spawn.gid).is_some_and(|map| fs::write(&groups, map).is_ok()) {
        return Ok(());
    }
    let line = format!("0 {} 1\n", spawn.gid);
    if fs::write(&groups, &line).is_err() {
        // Without privilege over the gid the kernel wants setgroups denied first.
        let denied = fs::write(format!("/proc/{pid}/setgroups"), "deny");
        denied
            .and_then(|()| fs::write(&groups, &line))
            .map_err(|error| mapping("gid_map", spawn.gid, error))?;
    }
    Ok(())
}

/// Reads what the child says: nothing (it executes) or where it failed.
fn outcome(status: &OwnedFd) -> Result<(), SpawnError> {
    let mut report = [0_u8; 8];
    // As where the program is on a file system that does not answer.
    if !is_readable(status.as_fd(), START_LIMIT).map_err(SpawnError::Prepare)? {
        return Err(SpawnError::Child {
            step: "execute the program in time",
            error: Errno::TIMEDOUT,
        });
    }
    loop {
        match rustix::io::read(status, &mut report) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(SpawnError::Prepare(error)),
            Ok(0) => return Ok(()),
            Ok(_) => {
                let [a, b, c, d, step, ..] = report;
                let error = Errno::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
                let step = STEPS.get(usize::from(step)).copied().unwrap_or("start");
                return Err(SpawnError::Child { step, error });
            }
        }
    }
}

/// Whether there is something to read, or the end, within this time.
fn is_readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, Errno> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&left),
        ) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

const STEPS: [&str; 5] = [
    "wait for its parent",
    "take its identity",
    "give up capabilities",
    "arrange its descriptors",
    "execute the program",
];
const STEP_WAIT: u8 = 0;
const STEP_IDENTITY: u8 = 1;
const STEP_CAPABILITIES: u8 = 2;
const STEP_DESCRIPTORS: u8 = 3;
const STEP_EXECUTE: u8 = 4;

/// All that the child needs, made before the fork: it must not allocate.
struct Prepared {
    profile: Profile,
    program: RawFd,
    null: OwnedFd,
    stderr: RawFd,
    descriptors: Vec<RawFd>,
    identity: Option<(u32, u32)>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    _texts: Vec<CString>,
}

impl Prepared {
    fn new(spawn: &Spawn<'_>) -> Result<Prepared, SpawnError> {
        if spawn.descriptors.len() > MAX_DESCRIPTORS {
            return Err(SpawnError::Argument);
        }
        let text = |s: &str| CString::new(s).map_err(|_| SpawnError::Argument);
        let mut texts = vec![text(spawn.name)?];
        for argument in spawn.arguments {
            texts.push(text(argument)?);
        }
        let split = texts.len();
        texts.push(text(
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )?);
        texts.push(text(&format!(
            "{PROFILE_VARIABLE}={}",
            spawn.profile.name()
        ))?);
        // It gives up being root once its root directory is replaced.
        if spawn.profile == Profile::Operator {
            texts.push(text(&format!("{UID_VARIABLE}={}", spawn.uid))?);
        }
        #[cfg(mutants)]
        for name in ["BULKHEAD_MUTANT"] {
            if let Ok(value) = std::env::var(name) {
                texts.push(text(&format!("{name}={value}"))?);
            }
        }
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts
                .iter()
                .map(|t| t.as_ptr())
                .chain([core::ptr::null()])
                .collect()
        };
        let (arguments, environment) = texts.split_at(split);
        let (arguments, environment) = (pointers(arguments), pointers(environment));
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(SpawnError::Prepare)?;
        let identity = match spawn.profile {
            Profile::Supervisor | Profile::Operator => None,
            Profile::Baseline => Some((spawn.uid, spawn.gid)),
            _ => Some((0, 0)),
        };
        Ok(Prepared {
            profile: spawn.profile,
            program: spawn.program.as_raw_fd(),
            stderr: spawn.stderr.map_or(null.as_raw_fd(), |fd| fd.as_raw_fd()),
            null,
            descriptors: spawn.descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
            identity,
            arguments,
            environment,
            _texts: texts,
        })
    }

    /// In the child: everything until the program runs.
    fn run(&self, go: RawFd, go_write: RawFd, status: RawFd) -> ! {
        let mut status = status;
        let mut step = STEP_WAIT;
        let Err(error) = self.attempt(go, go_write, &mut status, &mut step);
        let [a, b, c, d] = error.raw_os_error().to_ne_bytes();
        let report = [a, b, c, d, step, 0, 0, 0];
        // SAFETY: writes eight bytes of our own and ends.
        unsafe {
            libc::write(status, report.as_ptr().cast(), report.len());
            libc::_exit(127)
        }
    }

    fn attempt(
        &self,
        go: RawFd,
        go_write: RawFd,
        status: &mut RawFd,
        step: &mut u8,
    ) -> Result<core::convert::Infallible, Errno> {
        let mut byte = [0_u8; 1];
        // SAFETY: closes our copy of the parent's end, so that its death shows as
        // the end of the pipe; reads at most one byte to `byte`.
        let read = unsafe {
            libc::close(go_write);
            libc::read(go, byte.as_mut_ptr().cast(), 1)
        };
        if read != 1 {
            return Err(Errno::PIPE);
        }
        if let Some((uid, gid)) = self.identity {
            if self.profile == Profile::Baseline {
                *step = STEP_CAPABILITIES;
                drop_bounding_set();
            }
            *step = STEP_IDENTITY;
            kernel::become_identity(uid, gid)?;
        }
        *step = STEP_DESCRIPTORS;
        // SAFETY: the set is all zeros = empty; raw calls on our own process. A
        // blocked signal would stay blocked in the program.
        unsafe {
            let none = 0_u64;
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const none,
                core::ptr::null::<u64>(),
                8_usize,
            );
            libc::setsid();
            libc::umask(0o077);
        }
        // First everything away from the low numbers, then into place.
        let first = 3 + self.descriptors.len() as RawFd;
        let null = duplicate(self.null.as_raw_fd(), first)?;
        let stderr = duplicate(self.stderr, first)?;
        let program = duplicate(self.program, first)?;
        *status = duplicate(*status, first)?;
        let mut sources = [0; MAX_DESCRIPTORS];
        for (source, fd) in sources.iter_mut().zip(&self.descriptors) {
            *source = duplicate(*fd, first)?;
        }
        place(null, 0)?;
        place(null, 1)?;
        place(stderr, 2)?;
        for (target, source) in (3..).zip(sources.iter().take(self.descriptors.len())) {
            place(*source, target)?;
        }
        // SAFETY: marks close-on-exec whatever else is open.
        let marked = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                first as u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        if marked != 0 {
            return Err(kernel::errno());
        }
        *step = STEP_EXECUTE;
        // SAFETY: both arrays end in null and hold C strings that live in `_texts`.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                program,
                c"".as_ptr(),
                self.arguments.as_ptr(),
                self.environment.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
        }
        Err(kernel::errno())
    }
}

/// Bounded by the 64 capabilities that there can be.
pub(crate) fn drop_bounding_set() {
    for capability in 0..64 {
        if kernel::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0).is_err() {
            return;
        }
    }
}

fn duplicate(fd: RawFd, least: RawFd) -> Result<RawFd, Errno> {
    // SAFETY: makes a new descriptor; touches no memory.
    let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) };
    if new < 0 {
        Err(kernel::errno())
    } else {
        Ok(new)
    }
}

fn place(fd: RawFd, target: RawFd) -> Result<(), Errno> {
    // SAFETY: in the child between fork and exec, where no `OwnedFd` is used or
    // dropped any more, so replacing a number breaks nobody's ownership.
    if unsafe { libc::dup2(fd, target) } < 0 {
        Err(kernel::errno())
    } else {
        Ok(())
    }
}

/// Becomes a program, with input and output from and to there, and no environment: what the
/// solver does once it is confined, whose filter wants the program to be descriptor 4.
/// Returns only if it fails.
pub fn become_solver(
    program: BorrowedFd<'_>,
    input: OwnedFd,
    output: OwnedFd,
    arguments: &[&CStr],
) -> Errno {
    for (fd, target) in [(input, 0), (output, 1)] {
        if let Err(error) = place(fd.as_raw_fd(), target) {
            return error;
        }
    }
    let ends = [core::ptr::null::<c_char>()];
    let arguments: Vec<_> = (arguments.iter().map(|word| word.as_ptr()))
        .chain(ends)
        .collect();
    // SAFETY: both arrays end in null and hold C strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            ends.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    kernel::errno()
}

fn pipe() -> Result<(OwnedFd, OwnedFd), SpawnError> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(SpawnError::Prepare)
}
