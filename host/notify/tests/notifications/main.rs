//! Real programs under the filter, and operators without any capability. This program
//! plays both too: `probe WHAT` is a program, whose exit status 0 says that all was as it
//! should be, else the line that was not; `operator WHAT` answers it, with a listener for
//! its standard input.
#![expect(
    unsafe_code,
    reason = "the mediated side makes raw system calls on purpose"
)]

mod calls;
mod operators;
mod probes;

use host_notify::filter::MEDIATED;
use host_notify::{Errno, Error, Plan, Running, Started, User, start};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

/// A uid that nobody has.
const OWNER: u32 = 64_321;
/// And another.
const USER: u32 = 64_322;

const TESTS: &[(&str, fn())] = &[
    (
        "a_socket_is_answered_with_another",
        a_socket_is_answered_with_another,
    ),
    (
        "the_user_of_the_program_needs_no_privilege",
        the_user_of_the_program_needs_no_privilege,
    ),
    (
        "an_unmodified_interpreter_connects",
        an_unmodified_interpreter_connects,
    ),
    ("threads_are_opened", threads_are_opened),
    ("a_stranger_reads_nothing", a_stranger_reads_nothing),
    ("calls_that_do_not_exist", calls_that_do_not_exist),
    (
        "descriptors_of_a_range_are_mediated",
        descriptors_of_a_range_are_mediated,
    ),
    (
        "a_descriptor_is_put_at_its_number",
        a_descriptor_is_put_at_its_number,
    ),
    ("a_second_listener_is_refused", a_second_listener_is_refused),
    ("set_user_id_works_inside", set_user_id_works_inside),
    (
        "the_loopback_has_its_addresses",
        the_loopback_has_its_addresses,
    ),
    (
        "a_caller_that_is_killed_is_gone",
        a_caller_that_is_killed_is_gone,
    ),
    (
        "a_successor_answers_what_was_left",
        a_successor_answers_what_was_left,
    ),
    (
        "without_any_listener_calls_do_not_exist",
        without_any_listener_calls_do_not_exist,
    ),
    (
        "the_program_ends_with_its_launcher",
        the_program_ends_with_its_launcher,
    ),
    ("what_cannot_start_says_why", what_cannot_start_says_why),
    (
        "a_folder_that_is_closed_hides_that_there_is_no_such_program",
        a_folder_that_is_closed_hides_that_there_is_no_such_program,
    ),
    (
        "descriptors_environment_and_signals_are_as_they_were",
        probe_of_surroundings,
    ),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["probe", what, rest @ ..] => return probes::run(what, rest),
        ["operator", what] => return operators::run(what),
        ["launcher"] => return launcher(),
        _ => {}
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("these tests start programs as root does: run them as root");
        return ExitCode::FAILURE;
    }
    let wanted = words.iter().find(|word| !word.starts_with('-'));
    let mut failed = 0;
    for (name, test) in TESTS {
        if wanted.is_some_and(|wanted| !name.contains(wanted)) {
            continue;
        }
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u32::from(!passed);
    }
    if failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// This program as a probe. By /proc: another uid cannot walk to where it was built.
fn probe(words: &[&str], user: Option<u32>) -> Plan {
    plan("/proc/self/exe", &[&["probe"], words].concat(), user)
}

fn plan(program: &str, arguments: &[&str], user: Option<u32>) -> Plan {
    Plan {
        program: program.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        owner: OWNER,
        user: user.map(|id| User {
            uid: id,
            gid: id,
            groups: vec![],
        }),
        addresses: vec![],
        environment: vec![],
    }
}

/// An operator, and the lines it says.
struct Operator {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Operator {
    /// With no capability, and this uid.
    fn new(what: &str, listener: OwnedFd, uid: u32) -> Operator {
        let mut command = Command::new("/proc/self/exe");
        command.args(["operator", what]).uid(uid).gid(uid);
        command.stdin(Stdio::from(listener)).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Operator { child, said }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(started: &Started) -> OwnedFd {
    started.listener().try_clone_to_owned().unwrap()
}

/// Runs a plan to its end with an operator; its exit status, and what the operator said.
fn run(plan: &Plan, operator: &str) -> (Option<i32>, String) {
    let started = start(plan).unwrap();
    let mut operator = Operator::new(operator, copy(&started), OWNER);
    let (running, listener) = started.go().unwrap();
    drop(listener);
    let code = running.wait().unwrap().code();
    let said = operator.line();
    operator.end();
    (code, said)
}

fn finish(plan: &Plan) -> Option<i32> {
    let (running, _listener) = start(plan).unwrap().go().unwrap();
    running.wait().unwrap().code()
}

fn a_socket_is_answered_with_another() {
    let (code, said) = run(&probe(&["connects"], None), "circuits");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said, "connect to 192.0.2.7:4242");
}

fn the_user_of_the_program_needs_no_privilege() {
    let (code, said) = run(&probe(&["connects"], Some(USER)), "circuits");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said, "connect to 192.0.2.7:4242");
}

fn an_unmodified_interpreter_connects() {
    let script = "import socket\ns = socket.socket()\ns.connect(('192.0.2.7', 4242))\n\
                  s.sendall(b'hello')\nassert s.recv(5) == b'hello'";
    let (code, said) = run(&plan("python3", &["-c", script], None), "circuits");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said, "connect to 192.0.2.7:4242");
}

fn threads_are_opened() {
    let (code, said) = run(&probe(&["connects-in-a-thread"], None), "circuits");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said, "connect to 192.0.2.7:4242");
}

/// Another uid than the owner, that holds the listener nevertheless.
fn a_stranger_reads_nothing() {
    let started = start(&probe(&["connects"], None)).unwrap();
    let mut operator = Operator::new("circuits", copy(&started), OWNER + 7);
    let (running, listener) = started.go().unwrap();
    drop(listener);
    assert_eq!(operator.line(), "refused: EPERM EPERM");
    operator.end();
    assert_ne!(running.wait().unwrap().code(), Some(0));
}

fn calls_that_do_not_exist() {
    let (code, _) = run(&probe(&["io-uring"], None), "says-eio");
    assert_eq!(code, Some(0));
    assert_eq!(finish(&probe(&["i386"], None)), Some(0));
    assert_eq!(finish(&probe(&["x32"], None)), Some(0));
    assert_eq!(finish(&probe(&["allowed"], None)), Some(0));
}

fn descriptors_of_a_range_are_mediated() {
    let (from, to) = (MEDIATED.start.to_string(), MEDIATED.end.to_string());
    let (code, _) = run(&probe(&["range", &from, &to], None), "says-eio");
    assert_eq!(code, Some(0));
}

fn a_descriptor_is_put_at_its_number() {
    let (code, said) = run(&probe(&["put-at"], None), "puts-at");
    assert_eq!((code, said.as_str()), (Some(0), "700 EBADF"));
}

fn a_second_listener_is_refused() {
    assert_eq!(finish(&probe(&["second-listener"], None)), Some(0));
    // A filter of the program's own that allows everything lets nothing past ours.
    let (code, said) = run(&probe(&["filter-of-its-own"], None), "circuits");
    assert_eq!(code, Some(0), "{said}");
}

fn set_user_id_works_inside() {
    assert_eq!(finish(&probe(&["may-gain-privileges"], None)), Some(0));
    assert_eq!(
        finish(&probe(&["may-gain-privileges"], Some(USER))),
        Some(0)
    );
    // A set-user-id program started by an ordinary user is root inside, and not outside.
    let directory = std::path::Path::new("/var/tmp").join(format!("notify-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let program = directory.join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).unwrap();
    let command = format!(
        "test \"$({} -u)\" = 0 && test \"$(id -u)\" = {USER}",
        program.display()
    );
    let code = finish(&plan("sh", &["-c", &command], Some(USER)));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(code, Some(0));
}

fn the_loopback_has_its_addresses() {
    let mut plan = plan(
        "sh",
        &[
            "-c",
            "grep -q 0a01020300000000000000000000 /proc/net/if_inet6; \
                 grep -q fd000000000000000000000000000005 /proc/net/if_inet6 && \
                 grep -q 10.1.2.3 /proc/net/fib_trie && ! test -e /sys/class/net/eth9",
        ],
        None,
    );
    plan.addresses = vec![
        ("10.1.2.3".parse().unwrap(), 32),
        ("fd00::5".parse().unwrap(), 128),
    ];
    assert_eq!(finish(&plan), Some(0));
}

fn a_caller_that_is_killed_is_gone() {
    let started = start(&probe(&["connects"], None)).unwrap();
    let mut operator = Operator::new("kills", copy(&started), OWNER);
    let (running, _listener) = started.go().unwrap();
    assert_eq!(operator.line(), "live, gone, gone, gone");
    operator.end();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(running.wait().unwrap().signal(), Some(9));
}

/// The first operator dies with one call received; another, which holds a copy, learns of
/// it from the next call's number.
fn a_successor_answers_what_was_left() {
    let started = start(&probe(&["two-threads"], None)).unwrap();
    let mut first = Operator::new("receives-one", copy(&started), OWNER);
    let listener = copy(&started);
    let (running, kept) = started.go().unwrap();
    assert_eq!(first.line(), "received");
    first.end();
    let mut second = Operator::new("succeeds", listener, OWNER);
    assert_eq!(second.line(), "1 was left");
    assert_eq!(running.wait().unwrap().code(), Some(0));
    second.end();
    drop(kept);
}

fn without_any_listener_calls_do_not_exist() {
    let started = start(&probe(&["enosys"], None)).unwrap();
    let first = Operator::new("receives-one", copy(&started), OWNER);
    let (running, listener) = started.go().unwrap();
    drop(listener);
    let mut first = first;
    assert_eq!(first.line(), "received");
    first.end();
    assert_eq!(running.wait().unwrap().code(), Some(0));
}

/// The launcher of `the_program_ends_with_its_launcher`: says whom it started, and dies.
fn launcher() -> ExitCode {
    let started = start(&plan("true", &[], None)).unwrap();
    println!("{}", started.pid());
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
    // Not by a return, which would end the child itself.
    std::process::abort()
}

fn the_program_ends_with_its_launcher() {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("launcher")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pid = rustix::process::Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let word: Option<ChildStdin> = child.stdin.take();
    drop(word);
    assert!(!child.wait().unwrap().success());
    let mut ended = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    let five = rustix::event::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut ended, Some(&five)), Ok(1));

    // Dropped, it is gone at once, and reaped.
    let started = start(&plan("true", &[], None)).unwrap();
    let process = format!("/proc/{}", started.pid());
    assert!(std::fs::exists(&process).unwrap());
    drop(started);
    assert!(!std::fs::exists(&process).unwrap());
}

fn what_cannot_start_says_why() {
    let error = start(&plan("/nowhere/at all", &[], None)).unwrap().go();
    assert!(matches!(error, Err(Error::Program { .. })));
    let mut plan = plan("true", &[], None);
    plan.arguments.push("a\0b".into());
    assert!(matches!(start(&plan), Err(Error::Argument)));
    plan.arguments.clear();
    plan.addresses.push(("10.1.2.3".parse().unwrap(), 77));
    assert!(matches!(start(&plan), Err(Error::Address(_))));
}

/// Nor does it say so of one that is there and may not be executed.
fn a_folder_that_is_closed_hides_that_there_is_no_such_program() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("notify-search-{}", std::process::id()));
    let (closed, open) = (folder.join("closed"), folder.join("open"));
    for (made, mode) in [(&folder, 0o755), (&closed, 0o700), (&open, 0o755)] {
        std::fs::create_dir_all(made).unwrap();
        std::fs::set_permissions(made, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::write(open.join("no-program"), "").unwrap();
    std::fs::create_dir(open.join("a-folder")).unwrap();
    let before = std::env::var_os("PATH").unwrap();
    let paths = std::env::split_paths(&before);
    let path = std::env::join_paths([closed, open].into_iter().chain(paths)).unwrap();
    // SAFETY: no other thread of this program reads the environment.
    unsafe { std::env::set_var("PATH", path) };
    for (program, why) in [
        ("no-such-program", Some(Errno::NOENT)),
        ("a-folder", Some(Errno::NOENT)),
        ("no-program", Some(Errno::ACCESS)),
        ("true", None),
    ] {
        match start(&plan(program, &[], Some(USER))).unwrap().go() {
            Err(Error::Program { errno, .. }) => assert_eq!(Some(errno), why, "{program}"),
            other => assert!(why.is_none() && other.is_ok(), "{program}: {other:?}"),
        }
    }
    // SAFETY: as before.
    unsafe { std::env::set_var("PATH", before) };
    std::fs::remove_dir_all(folder).unwrap();
}

fn probe_of_surroundings() {
    // SAFETY: no other thread of this program reads the environment.
    unsafe { std::env::set_var("NOTIFY_TEST", "seen") };
    let directory = std::env::current_dir().unwrap();
    let command = "set -e
        test \"$NOTIFY_TEST\" = seen
        test \"$(pwd -P)\" = \"$0\"
        # Not SIGPIPE, and nothing blocked.
        grep -q 'SigIgn:.*[02468ace]...$' /proc/self/status
        grep -q 'SigBlk:.*0000000000000000$' /proc/self/status
        # Not by `ls -l`, which asks nscd: a connect that nobody answers here.
        for fd in /proc/$$/fd/*; do
            case $(readlink $fd) in *seccomp*|*pidfd*) exit 9;; esac
        done";
    let arguments = ["-c", command, directory.to_str().unwrap()];
    assert_eq!(finish(&plan("sh", &arguments, None)), Some(0));
    let running: Running = start(&plan("sleep", &["60"], None))
        .unwrap()
        .go()
        .unwrap()
        .0;
    let status = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status(running.pid()).contains("NoNewPrivs:\t0"));
    rustix::process::pidfd_send_signal(running.as_fd(), rustix::process::Signal::TERM).unwrap();
    assert!(!running.wait().unwrap().success());
}
