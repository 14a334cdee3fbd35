//! What a worker does first thing in `main`: gives up, stage by stage, all that its
//! profile does not need, and looks after each stage whether it took.

use crate::filter;
use crate::kernel;
use crate::profile::{PROFILE_VARIABLE, Profile, Stage, Stages, UID_VARIABLE};
use crate::root;
use crate::spawn::drop_bounding_set;
use crate::speculation;
use guard::guard;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;

/// A stage that failed: the process must end, having read nothing from outside.
#[derive(Debug, thiserror::Error)]
#[error("confinement failed at {}: {reason}", stage.name())]
pub struct StageError {
    /// Where.
    pub stage: Stage,
    /// What the kernel said, or what was found afterwards.
    pub reason: String,
}

/// Confines this process. Call it first thing in `main`: before any thread is
/// started, any file opened and the first byte from outside read; expects the
/// descriptors of [`Profile::descriptors`] and no other (the controller opens its
/// store afterwards, below descriptor 5). A process that [`crate::spawn`] started as
/// [`Profile::Baseline`] is confined as that, whatever it asks here, and the result
/// shows it.
///
/// # Errors
/// [`StageError`]: a stage that the profile needs failed or did not take. End the
/// process; nothing weaker is offered.
pub fn enter(profile: Profile) -> Result<Stages, StageError> {
    enter_until(profile, None)
}

/// As [`enter`], but stops before a stage: for tests that look at one layer without
/// the next in front of it.
///
/// # Errors
/// As [`enter`].
pub fn enter_until(profile: Profile, before: Option<Stage>) -> Result<Stages, StageError> {
    let baseline = std::env::var(PROFILE_VARIABLE).is_ok_and(|p| p == Profile::Baseline.name());
    let profile = if baseline { Profile::Baseline } else { profile };
    let mut done = Stages::default();
    for stage in Stage::ALL {
        if before == Some(stage) {
            return Ok(done);
        }
        let wanted = profile.stages().contains(stage) || stage == Stage::CoreScheduling;
        if !wanted || profile == Profile::Supervisor {
            continue;
        }
        match perform(stage, profile) {
            Ok(()) => done = done.with(stage),
            Err(_) if stage == Stage::CoreScheduling => {}
            Err(reason) => return Err(StageError { stage, reason }),
        }
    }
    Ok(done)
}

type Outcome = Result<(), String>;

fn perform(stage: Stage, profile: Profile) -> Outcome {
    match stage {
        Stage::Descriptors => descriptors(profile),
        Stage::Namespaces => namespaces(profile),
        Stage::Limits => limits(profile),
        Stage::Speculation => speculation::at_start(profile),
        Stage::CoreScheduling => core_scheduling(),
        Stage::Root => new_root(profile),
        Stage::Identity => identity(profile),
        Stage::Capabilities => capabilities(),
        Stage::NoNewPrivileges => no_new_privileges(),
        Stage::Dumpable => dumpable(),
        Stage::Landlock => deny_files_and_network(profile),
        Stage::Seccomp => filter::install(profile),
    }
}

fn says(error: Errno) -> String {
    error.to_string()
}

/// 0 leads to nothing that can be read, the expected descriptors are there, and
/// nothing else is open: `spawn` hands over no more, and this process has opened
/// nothing yet. Nothing is closed here: something of this process might own it.
fn descriptors(profile: Profile) -> Outcome {
    let first = 3 + profile.descriptors();
    let stdin = fstat(kernel::borrow(0)).map_err(says)?;
    if FileType::from_raw_mode(stdin.st_mode) != FileType::CharacterDevice {
        return Err("descriptor 0 is not /dev/null".into());
    }
    let listing = rustix::fs::open(
        "/proc/self/fd",
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| format!("/proc/self/fd: {error}"))?;
    let mut open = BTreeSet::new();
    let number = listing.as_raw_fd().cast_unsigned();
    for entry in Dir::new(listing).map_err(says)? {
        let entry = entry.map_err(says)?;
        // Names that are no numbers are "." and "..".
        open.extend(
            entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.parse::<u32>().ok()),
        );
    }
    open.remove(&number);
    if let Some(missing) = (0..first).find(|number| !open.contains(number)) {
        return Err(format!(
            "descriptor {missing} is not there: not started by the supervisor?"
        ));
    }
    match open.range(first..).next() {
        Some(extra) if guard!("confine-descriptors") => Err(format!(
            "descriptor {extra} is open: enter comes before anything is opened"
        )),
        _ => Ok(()),
    }
}

/// Made by `spawn`; here only looked at. Reads /proc, so it comes before the root.
fn namespaces(profile: Profile) -> Outcome {
    if profile != Profile::Operator {
        alone(profile)?;
    }
    match profile {
        // Its endpoint's.
        Profile::Proxy => Ok(()),
        _ => no_interface(),
    }
}

fn alone(profile: Profile) -> Outcome {
    if std::process::id() != 1 {
        return Err("not the first process of a pid namespace".into());
    }
    let map = fs::read_to_string("/proc/self/uid_map").map_err(|e| format!("uid_map: {e}"))?;
    let mut words = map.split_whitespace();
    let (inside, length) = (words.next(), words.nth(1));
    // The controller's may also name its callers.
    let more = words.next().is_some() && profile != Profile::Controller;
    if inside != Some("0") || length != Some("1") || more {
        return Err("the user namespace maps more than one uid".into());
    }
    Ok(())
}

fn no_interface() -> Outcome {
    let devices = fs::read_to_string("/proc/self/net/dev").map_err(|e| format!("net/dev: {e}"))?;
    let foreign = devices
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| !is_innate(name.trim()));
    match foreign {
        Some((name, _)) => Err(format!(
            "the network namespace has the interface {}",
            name.trim()
        )),
        None => Ok(()),
    }
}

/// lo, and the fallback devices that some kernels put in every new namespace.
fn is_innate(name: &str) -> bool {
    const FALLBACK: [&str; 12] = [
        "lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0",
        "ip6gre0", "teql0", "dummy0",
    ];
    FALLBACK.contains(&name)
}

/// Open files of a process at most: each channel takes up to 8, and SCM_RIGHTS counts against it.
pub const FILES: u64 = 65_536;
/// The verifier's report and its texts for the solver, sealed memory, may each have so many.
const REPORT_BYTES: u64 = 16 << 20;
/// What a front end is known again by is a page of memory, a file to this limit.
const KEEPSAKE_BYTES: u64 = 4096;
/// The solver may have so much memory, its program included.
const SOLVER_BYTES: u64 = 1 << 30;
/// And so much processor time, seconds.
const SOLVER_SECONDS: u64 = 5;
/// The controller's store may grow to this.
const STORE_BYTES: u64 = 4 << 30;
/// tokio's blocking pool and redb.
const CONTROLLER_THREADS: u64 = 64;

/// The most workers that a switch may be given, and who speaks for them: the supervisor may
/// raise its limit so far, before it learns that it has them.
const SWITCH_THREADS: u64 = 9;

/// An operator, who is to follow it, those of before that a program still holds in the kernel, and
/// those by which it cuts circuits and gives memory back. The kernel counts the compartment's
/// programs on its uid as well, which owns their user namespaces: the supervisor has a group keep
/// this number, where the host has groups, and raises the limit then, to [`OPERATOR_TASKS`] at most.
pub const OPERATOR_PROCESSES: u32 = 18;
/// More than programs of a compartment have processes and threads.
pub const OPERATOR_TASKS: u64 = 1 << 20;

fn limits(profile: Profile) -> Outcome {
    let solver = profile == Profile::Solver;
    let file_bytes = match profile {
        Profile::Controller => STORE_BYTES,
        Profile::Verifier => REPORT_BYTES,
        Profile::Vhost => KEEPSAKE_BYTES,
        Profile::Operator => stream::file_bytes(stream::CAPACITY) as u64,
        _ => 0,
    };
    let (_, most) = kernel::limits(libc::RLIMIT_NOFILE).map_err(says)?;
    for (resource, value) in [
        (libc::RLIMIT_NOFILE, most.min(FILES)),
        // A core dump would hold tenants' packets.
        (libc::RLIMIT_CORE, 0),
        // It writes into memory, pipes and sockets, never into a file.
        (libc::RLIMIT_FSIZE, file_bytes),
        // Itself, and no more.
        (
            libc::RLIMIT_NPROC,
            match profile {
                Profile::Controller => CONTROLLER_THREADS,
                Profile::Operator => u64::from(OPERATOR_PROCESSES),
                _ => 1,
            },
        ),
        (libc::RLIMIT_MSGQUEUE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_RTPRIO, 0),
        (
            libc::RLIMIT_AS,
            if solver { SOLVER_BYTES } else { u64::MAX },
        ),
        (
            libc::RLIMIT_CPU,
            if solver { SOLVER_SECONDS } else { u64::MAX },
        ),
    ] {
        // The baseline shares its uid's count with others in the same namespace.
        if resource == libc::RLIMIT_NPROC && profile == Profile::Baseline {
            continue;
        }
        let (_, hard) = kernel::limits(resource).map_err(says)?;
        let value = value.min(hard);
        // It cannot raise it itself: no filter lets it set a limit.
        let most = match (profile, resource) {
            (Profile::Switch, libc::RLIMIT_NPROC) => SWITCH_THREADS.min(hard),
            (Profile::Operator, libc::RLIMIT_NPROC) => OPERATOR_TASKS.min(hard),
            _ => value,
        };
        if guard!("confine-limits") {
            kernel::limit(resource, value, most).map_err(says)?;
            if kernel::limits(resource) != Ok((value, most)) {
                return Err(format!("limit {resource} did not take"));
            }
        }
    }
    Ok(())
}

fn core_scheduling() -> Outcome {
    kernel::core_scheduling_create().map_err(says)?;
    match kernel::core_scheduling_cookie() {
        Ok(0) => Err("no cookie".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(says(error)),
    }
}

fn new_root(profile: Profile) -> Outcome {
    if !guard!("confine-root") {
        return Ok(());
    }
    let libraries = profile == Profile::Solver;
    root::replace(libraries).map_err(says)?;
    root::verify(libraries)
}

fn identity(profile: Profile) -> Outcome {
    use rustix::process::{getegid, geteuid, getgid, getgroups, getuid};
    if profile == Profile::Operator {
        let uid = std::env::var(UID_VARIABLE)
            .ok()
            .and_then(|uid| uid.parse().ok());
        let uid: u32 = uid.filter(|uid| *uid != 0).ok_or("no uid was given")?;
        drop_bounding_set();
        kernel::become_identity(uid, uid).map_err(says)?;
    } else if profile != Profile::Baseline {
        kernel::become_identity(0, 0).map_err(says)?;
    }
    if getuid() != geteuid() || getgid() != getegid() {
        return Err("real and effective ids differ".into());
    }
    // Where setgroups is denied (no privilege on the host) the groups of the user
    // who started Bulkhead stay, and show as unmapped.
    const UNMAPPED: u32 = 65_534;
    let groups = getgroups().map_err(says)?;
    if groups
        .iter()
        .any(|group| group.as_raw() != UNMAPPED && *group != getgid())
    {
        return Err("supplementary groups are left".into());
    }
    Ok(())
}

fn capabilities() -> Outcome {
    const LAST: u64 = 63;
    // SECBIT_NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock, and
    // the lock of KEEP_CAPS (capabilities(7)).
    const SECUREBITS: u64 = 0b1110_1111;
    if guard!("confine-capabilities") {
        kernel::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL as u64,
            0,
            0,
            0,
        )
        .map_err(says)?;
        // Needs CAP_SETPCAP; a process without it could not gain any either.
        match kernel::prctl(libc::PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) {
            Ok(_) | Err(Errno::PERM) => {}
            Err(error) => return Err(format!("securebits: {error}")),
        }
        for capability in 0..=LAST {
            match kernel::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) {
                Ok(_) | Err(Errno::PERM) => {}
                Err(Errno::INVAL) => break,
                Err(error) => return Err(format!("bounding set: {error}")),
            }
        }
        kernel::drop_capabilities().map_err(says)?;
        if kernel::capabilities().map_err(says)? != [0; 3] {
            return Err("capabilities are left".into());
        }
        for capability in 0..=LAST {
            match kernel::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) {
                Ok(0) => {}
                Ok(_) => return Err(format!("capability {capability} is in the bounding set")),
                Err(_) => break,
            }
        }
    }
    Ok(())
}

fn no_new_privileges() -> Outcome {
    if guard!("confine-no-new-privileges") {
        kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).map_err(says)?;
        if kernel::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != Ok(1) {
            return Err("did not take".into());
        }
    }
    Ok(())
}

fn dumpable() -> Outcome {
    if guard!("confine-dumpable") {
        kernel::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).map_err(says)?;
        if kernel::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) != Ok(0) {
            return Err("did not take".into());
        }
    }
    Ok(())
}

/// Denies every file, network and scope right of the ABI that the kernel has; the
/// controller alone keeps files below its state directory (descriptor 5), the solver reads
/// libraries, and may execute its program (descriptor 4) and the loader, and the proxy has TCP.
fn deny_files_and_network(profile: Profile) -> Outcome {
    if !guard!("confine-landlock") {
        return Ok(());
    }
    let abi = ABI::from(kernel::landlock_abi());
    if abi == ABI::Unsupported {
        return Err("the kernel has no Landlock".into());
    }
    let says = |error: landlock::RulesetError| error.to_string();
    // Exactly the rights of this kernel's ABI, and each of them is a must.
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(says)?;
    // To connect and to listen is all that a proxy does.
    let network = profile != Profile::Proxy;
    if network && !AccessNet::from_all(abi).is_empty() {
        ruleset = ruleset
            .handle_access(AccessNet::from_all(abi))
            .map_err(says)?;
    }
    if !Scope::from_all(abi).is_empty() {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(says)?;
    }
    let mut created = ruleset.create().map_err(says)?;
    if profile == Profile::Controller {
        let files = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::MakeReg
            | AccessFs::RemoveFile
            | AccessFs::Truncate;
        let allowed = files & AccessFs::from_all(abi);
        created = created
            .add_rule(PathBeneath::new(kernel::borrow(STATE_DIRECTORY), allowed))
            .map_err(says)?;
    }
    if profile == Profile::Solver {
        let file = AccessFs::ReadFile | AccessFs::Execute;
        created = created
            .add_rule(PathBeneath::new(kernel::borrow(SOLVER_PROGRAM), file))
            .map_err(says)?;
        for (path, allowed) in [(root::LOADER, file)]
            .into_iter()
            .chain(root::LIBRARIES.map(|path| (path, AccessFs::ReadFile.into())))
        {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(fd) => {
                    created = created
                        .add_rule(PathBeneath::new(fd, allowed))
                        .map_err(says)?;
                }
                // Not every host has each of them.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    let status = created.restrict_self().map_err(says)?;
    if status.ruleset != landlock::RulesetStatus::FullyEnforced || !status.no_new_privs {
        return Err(format!("enforced only in part: {:?}", status.ruleset));
    }
    Ok(())
}

/// The controller's state directory.
const STATE_DIRECTORY: u32 = 5;
/// What the solver becomes.
pub(crate) const SOLVER_PROGRAM: u32 = 4;
