//! Confinement, looked at from inside and outside. This program plays the confined
//! process too: `probe PROFILE STAGE WHAT` enters the profile (up to that stage) and
//! tries one thing; its exit status is 0 or the errno, or it dies by its filter.
#![expect(
    unsafe_code,
    reason = "the confined side makes raw system calls on purpose"
)]

mod exercises;
mod forbidden;
mod layers;

use host_confine as confine;
use host_confine::{Child, Profile, Spawn, Stage, enter_until, observe, spawn};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// The profiles with a filter.
const SANDBOXED: [Profile; 8] = [
    Profile::Switch,
    Profile::Fabric,
    Profile::Auditor,
    Profile::Verifier,
    Profile::Solver,
    Profile::Operator,
    Profile::Proxy,
    Profile::Controller,
];

/// Those that there can be here: an operator has a uid of its own, which one who is alone in a
/// user namespace has not to give.
fn sandboxed() -> impl Iterator<Item = Profile> {
    let alone = confine::rootless::has_single_uid();
    let all = SANDBOXED.into_iter();
    all.filter(move |profile| !alone || *profile != Profile::Operator)
}
/// Exit status of a probe whose `enter` failed.
const NOT_ENTERED: i32 = 250;
/// Exit status of a probe that does not exist.
const UNKNOWN: i32 = 251;

const TESTS: &[(&str, fn())] = &[
    (
        "every_entry_is_exercised_and_allowed",
        every_entry_is_exercised_and_allowed,
    ),
    (
        "every_entry_has_a_reason_and_is_listed_once",
        every_entry_has_a_reason_and_is_listed_once,
    ),
    ("what_is_forbidden_kills", what_is_forbidden_kills),
    ("each_layer_holds_on_its_own", each_layer_holds_on_its_own),
    (
        "the_solver_becomes_z3_and_reaches_nothing_else",
        the_solver_becomes_z3_and_reaches_nothing_else,
    ),
    (
        "what_is_mounted_below_the_libraries_is_read_only",
        what_is_mounted_below_the_libraries_is_read_only,
    ),
    (
        "only_the_expected_descriptors_are_left",
        only_the_expected_descriptors_are_left,
    ),
    ("the_kernel_confirms_it", the_kernel_confirms_it),
    ("the_baseline_is_what_it_says", the_baseline_is_what_it_says),
    (
        "outside_its_place_nothing_is_entered",
        outside_its_place_nothing_is_entered,
    ),
    (
        "a_program_that_cannot_start_is_reported",
        a_program_that_cannot_start_is_reported,
    ),
    (
        "cpu_time_of_another_process_is_read",
        cpu_time_of_another_process_is_read,
    ),
    (
        "who_may_serve_one_tenant_alone_has_no_barrier_yet",
        who_may_serve_one_tenant_alone_has_no_barrier_yet,
    ),
    ("without_root_the_same_holds", without_root_the_same_holds),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [probe, profile, stage, what] = words.as_slice()
        && probe == "probe"
    {
        run_probe(profile, stage, what);
    }
    if words.first().is_some_and(|word| word == "rootless") {
        return in_user_namespace();
    }
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(*f));
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS.iter().filter(|(name, _)| chosen(name)) {
        let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed");
    ExitCode::from(u8::from(failed != 0))
}

/// The confined side.
fn run_probe(profile: &str, stage: &str, what: &str) -> ! {
    let profile = Profile::from_name(profile).expect("a profile");
    let before = Stage::ALL.into_iter().find(|s| s.name() == stage);
    let probe = exercises::find(profile, what)
        .or_else(|| forbidden::find(what))
        .or_else(|| layers::find(what));
    let status = match (probe, enter_until(profile, before)) {
        (None, _) => UNKNOWN,
        (_, Err(error)) => {
            eprintln!("{}: {error}", profile.name());
            NOT_ENTERED
        }
        (Some(probe), Ok(_)) => probe(),
    };
    // SAFETY: ends this process.
    unsafe { libc::_exit(status) }
}

/// How a probe ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Status(i32),
    Signal(i32),
}

const KILLED: End = End::Signal(libc::SIGSYS);

/// What the confined side is given.
struct Place {
    ours: OwnedFd,
    theirs: OwnedFd,
    listener: UnixListener,
    state: OwnedFd,
    folder: tempfile::TempDir,
    id: u32,
}

impl Place {
    fn new() -> Place {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::fs::write(
            folder.path().join("secret"),
            "not below the state directory",
        )
        .unwrap();
        let own = rustix::process::geteuid().as_raw();
        let single = confine::rootless::has_single_uid();
        let id = if own == 0 && !single {
            3_100_000 + std::process::id() % 50_000
        } else {
            own
        };
        if id != own {
            std::os::unix::fs::chown(&state, Some(id), Some(id)).unwrap();
        }
        let state =
            rustix::fs::open(state, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Place {
            ours,
            theirs,
            listener,
            state,
            folder,
            id,
        }
    }

    fn start(&self, spawned: Profile, asked: Profile, before: &str, what: &str) -> Child {
        // Who tries to read what is not there is not to wait: a confined process cannot
        // change that itself.
        let tries = ["read", "readv"].contains(&what);
        rustix::io::ioctl_fionbio(&self.theirs, tries).unwrap();
        let own = std::env::current_exe().unwrap();
        let program = rustix::fs::open(own, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let z3 = (asked == Profile::Solver).then(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            rustix::fs::open("/usr/bin/z3", flags, Mode::empty()).expect("z3 (tools/setup test)")
        });
        let all: [BorrowedFd<'_>; 3] = [
            self.theirs.as_fd(),
            z3.as_ref().map_or(self.listener.as_fd(), AsFd::as_fd),
            self.state.as_fd(),
        ];
        let given = if what == "extra_descriptor" {
            3
        } else {
            asked.descriptors() as usize
        };
        let arguments = ["probe", asked.name(), before, what];
        let errors = std::io::stderr();
        let plan = Spawn {
            profile: spawned,
            program: program.as_fd(),
            name: "confined",
            arguments: &arguments,
            uid: self.id,
            gid: self.id,
            descriptors: &all[..given],
            stderr: Some(errors.as_fd()),
            cgroup: None,
        };
        let among_others = what == "among_interfaces";
        if spawned != Profile::Operator {
            return spawn(&plan).unwrap();
        }
        without_interface(|| {
            if among_others {
                let line = ["link", "add", "other", "type", "bridge"];
                let added = std::process::Command::new("ip").args(line).status();
                assert!(added.unwrap().success());
            }
            spawn(&plan).unwrap()
        })
    }
}

impl Place {
    /// Waits for the child's word that it is in.
    fn hear_from(&self, child: &Child) {
        let mut ready = [
            PollFd::new(&self.ours, PollFlags::IN),
            PollFd::new(&child.pidfd, PollFlags::IN),
        ];
        poll(&mut ready, None).unwrap();
        assert!(ready[1].revents().is_empty(), "it died instead");
        let mut word = [0; 1];
        assert_eq!(rustix::io::read(&self.ours, &mut word), Ok(1));
    }
}

fn wait(child: &Child) -> End {
    let status = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)
        .unwrap()
        .unwrap();
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => End::Status(status),
        (_, Some(signal)) => End::Signal(signal),
        _ => panic!("{status:?}"),
    }
}

fn probe(profile: Profile, before: &str, what: &str) -> End {
    wait(&Place::new().start(profile, profile, before, what))
}

/// Does it where there is no interface, as the supervisor does for an operator.
fn without_interface<T: Send>(then: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let apart = || {
            // SAFETY: this thread alone, which does nothing else.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
                .unwrap();
            then()
        };
        scope.spawn(apart).join().unwrap()
    })
}

fn every_entry_is_exercised_and_allowed() {
    let mut wrong = Vec::new();
    for profile in sandboxed() {
        let names: BTreeSet<_> = confine::lists::entries(profile)
            .map(|entry| entry.name)
            .collect();
        for name in names {
            let end = match exercises::find(profile, name) {
                None => format!("{} has {name}, which no test exercises", profile.name()),
                Some(_) => match probe(profile, "-", name) {
                    End::Status(0) => continue,
                    end => format!("{} {name}: {end:?}", profile.name()),
                },
            };
            wrong.push(end);
        }
    }
    // An exercise without an entry is a leftover.
    let listed: BTreeSet<_> = SANDBOXED
        .into_iter()
        .flat_map(confine::lists::entries)
        .map(|entry| entry.name)
        .collect();
    wrong.extend(
        exercises::names()
            .filter(|name| !listed.contains(name))
            .map(|n| format!("{n} is in no list")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn every_entry_has_a_reason_and_is_listed_once() {
    for profile in sandboxed() {
        let mut seen = BTreeSet::new();
        for entry in confine::lists::entries(profile) {
            assert!(entry.reason.len() > 3, "{}", entry.name);
            let again = !seen.insert(entry.name);
            assert!(
                !again || !entry.forms.is_empty(),
                "{} twice in {}",
                entry.name,
                profile.name()
            );
        }
    }
}

fn what_is_forbidden_kills() {
    let mut wrong = Vec::new();
    for profile in sandboxed() {
        for (name, _) in forbidden::ALL {
            let may = match profile {
                Profile::Controller => forbidden::CONTROLLER_MAY,
                Profile::Switch => forbidden::SWITCH_MAY,
                Profile::Verifier => forbidden::VERIFIER_MAY,
                Profile::Solver => forbidden::SOLVER_MAY,
                Profile::Operator => forbidden::OPERATOR_MAY,
                Profile::Proxy => forbidden::PROXY_MAY,
                _ => &[],
            };
            if may.contains(name) {
                continue;
            }
            let end = probe(profile, "-", name);
            if end != KILLED {
                wrong.push(format!("{} {name}: {end:?}", profile.name()));
            }
        }
    }
    for (name, errno) in forbidden::CONTROLLER_REFUSED {
        let end = probe(Profile::Controller, "-", name);
        if end != End::Status(*errno) {
            wrong.push(format!("controller {name}: {end:?}"));
        }
    }
    let end = probe(Profile::Switch, "-", "clone3_process");
    if end != End::Status(libc::ENOSYS) {
        wrong.push(format!("switch clone3_process: {end:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn each_layer_holds_on_its_own() {
    let mut wrong = Vec::new();
    let operator = sandboxed().any(|profile| profile == Profile::Operator);
    let of_operator = layers::OPERATOR.iter().filter(|_| operator);
    let all = layers::ALL.iter().map(|layer| (Profile::Switch, layer));
    for (profile, layer) in all.chain(of_operator.map(|layer| (Profile::Operator, layer))) {
        let end = probe(profile, layer.before, layer.name);
        if end != End::Status(layer.expected) {
            wrong.push(format!(
                "{}: {end:?} instead of {}",
                layer.name, layer.expected
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of all others it is up from the start; where the processor has one, which this process shows.
fn who_may_serve_one_tenant_alone_has_no_barrier_yet() {
    let on = layers::branches();
    for profile in sandboxed() {
        let is_on = i32::from(profile.may_be_one_tenants() && on);
        let end = probe(profile, "seccomp", "speculation");
        assert_eq!(end, End::Status(is_on), "{}", profile.name());
    }
}

fn the_solver_becomes_z3_and_reaches_nothing_else() {
    let place = Place::new();
    let child = place.start(Profile::Solver, Profile::Solver, "-", "become_z3");
    let text = b"(declare-const p (_ BitVec 8)) (assert (= p #x2a)) (check-sat) (get-value (p))\n";
    rustix::io::write(&place.ours, text).unwrap();
    rustix::net::shutdown(&place.ours, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(wait(&child), End::Status(0));
    let mut said = [0; 256];
    let mut all = Vec::new();
    rustix::io::ioctl_fionbio(&place.ours, true).unwrap();
    while let Ok(count @ 1..) = rustix::io::read(&place.ours, &mut said) {
        all.extend_from_slice(&said[..count]);
    }
    assert_eq!(String::from_utf8_lossy(&all), "sat\n((p #x2a))\n");
    // Each layer without the filter in front of it.
    for (what, before, expected) in [
        ("no_other_program", "seccomp", libc::EACCES),
        ("no_other_file", "landlock", libc::ENOENT),
        ("no_file_is_written", "landlock", libc::EROFS),
        ("ports_are_denied_by_landlock", "seccomp", libc::EACCES),
        ("little_memory", "seccomp", libc::ENOMEM),
    ] {
        let end = probe(Profile::Solver, before, what);
        assert_eq!(end, End::Status(expected), "{what} before {before}");
    }
}

/// In a mount namespace of its own, where a file system is mounted below a library folder.
fn what_is_mounted_below_the_libraries_is_read_only() {
    if std::env::var_os("BELOW").is_some() {
        let end = probe(Profile::Solver, "landlock", "nothing_below_is_written");
        assert_eq!(end, End::Status(libc::EROFS));
        return;
    }
    if !confine::rootless::is_root() {
        return;
    }
    let line = "mount -t tmpfs none $0 && exec $1 what_is_mounted_below_the_libraries_is_read_only";
    let status = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", line, layers::below()])
        .arg(std::env::current_exe().unwrap())
        .env("BELOW", "1")
        .status();
    assert!(status.unwrap().success());
}

fn only_the_expected_descriptors_are_left() {
    assert_eq!(
        probe(Profile::Switch, "-", "extra_descriptor"),
        End::Status(NOT_ENTERED)
    );
    assert_eq!(
        probe(Profile::Switch, "-", "control_descriptor"),
        End::Status(0)
    );
    assert_eq!(
        probe(Profile::Controller, "-", "extra_descriptor"),
        End::Status(0)
    );
}

fn the_kernel_confirms_it() {
    for profile in sandboxed() {
        let place = Place::new();
        let child = place.start(profile, profile, "-", "wait_for_a_word");
        place.hear_from(&child);
        let seen = observe(child.pid).unwrap();
        assert!(seen.is_confined(), "{} {seen:?}", profile.name());
        assert_eq!(seen.uids, [place.id; 4]);
        // An operator sees programs by the host's numbers.
        let depth = u32::from(profile != Profile::Operator);
        assert_eq!((seen.pid_depth, seen.threads), (depth, 1));
        let two = matches!(profile, Profile::Controller | Profile::Switch);
        assert_eq!(seen.filters, 1 + u32::from(two));
        assert!(std::fs::read_link(format!("/proc/{}/exe", child.pid)).is_ok());
        pidfd_send_signal(&child.pidfd, Signal::KILL).unwrap();
        assert_eq!(wait(&child), End::Signal(libc::SIGKILL));
    }
    assert!(!observe(std::process::id()).unwrap().is_confined());
}

fn the_baseline_is_what_it_says() {
    // Whoever starts one is root, of the host or of a user namespace.
    if !confine::rootless::is_root() {
        return;
    }
    let place = Place::new();
    // It asks to be a switch; its parent decided otherwise.
    let child = place.start(Profile::Baseline, Profile::Switch, "-", "wait_for_a_word");
    place.hear_from(&child);
    let seen = observe(child.pid).unwrap();
    assert_eq!(seen.capabilities, [0; 5]);
    assert!(seen.no_new_privileges && seen.seccomp == 0);
    assert_eq!((seen.uids, seen.pid_depth), ([place.id; 4], 0));
    pidfd_send_signal(&child.pidfd, Signal::KILL).unwrap();
    wait(&child);
}

fn outside_its_place_nothing_is_entered() {
    let own = std::env::current_exe().unwrap();
    for profile in sandboxed() {
        let status = std::process::Command::new(&own)
            .args(["probe", profile.name(), "-", "getpid"])
            .stdin(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(NOT_ENTERED), "{}", profile.name());
    }
    if sandboxed().any(|profile| profile == Profile::Operator) {
        let end = probe(Profile::Operator, "-", "among_interfaces");
        assert_eq!(end, End::Status(NOT_ENTERED));
    }
    // In namespaces, but as another profile expects its descriptors.
    let place = Place::new();
    let child = place.start(Profile::Switch, Profile::Switch, "-", "getpid");
    assert_eq!(wait(&child), End::Status(0));
}

fn a_program_that_cannot_start_is_reported() {
    let place = Place::new();
    let path = place.folder.path().join("secret");
    let program = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let refused = spawn(&Spawn {
        profile: Profile::Switch,
        program: program.as_fd(),
        name: "x",
        arguments: &[],
        uid: place.id,
        gid: place.id,
        descriptors: &[],
        stderr: None,
        cgroup: None,
    });
    let says = refused.unwrap_err().to_string();
    assert!(says.contains("execute the program"), "{says}");
}

fn cpu_time_of_another_process_is_read() {
    let place = Place::new();
    let child = place.start(Profile::Switch, Profile::Switch, "-", "burn");
    place.hear_from(&child);
    let first = confine::clock::process_cpu_time(child.pid).unwrap();
    let mut second = first;
    while second <= first {
        second = confine::clock::process_cpu_time(child.pid).unwrap();
    }
    pidfd_send_signal(&child.pidfd, Signal::KILL).unwrap();
    wait(&child);
    assert!(confine::clock::process_cpu_time(child.pid).is_err());
}

/// Everything again with a single uid, as an ordinary user has it.
fn without_root_the_same_holds() {
    let own = std::env::current_exe().unwrap();
    let status = std::process::Command::new(own)
        .arg("rootless")
        .status()
        .unwrap();
    assert!(status.success());
}

fn in_user_namespace() -> ExitCode {
    confine::rootless::enter_user_namespace().unwrap();
    assert!(confine::rootless::is_root() && confine::rootless::has_single_uid());
    assert_eq!(std::fs::read_dir("/run/netns").unwrap().count(), 0);
    for profile in sandboxed() {
        assert_eq!(probe(profile, "-", "getpid"), End::Status(0));
        assert_eq!(probe(profile, "-", "socket_internet"), KILLED);
    }
    the_kernel_confirms_it();
    the_baseline_is_what_it_says();
    the_solver_becomes_z3_and_reaches_nothing_else();
    ExitCode::SUCCESS
}
