//! The real keeper with a supervisor that does what the test says: this program
//! plays it too, under the name `bulkhead-supervisor`, and hands its descriptor 3
//! to the test.

use command::message::{ErrorCode, Name};
use command::verbs::{Done, Fetch, Forget, Keep, List, Shutdown};
use command::{Message, Verb};
use rustix::process::{Pid, Signal, kill_process};
use seqpacket::{Error, Listener, Socket};
use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

const TESTS: [(&str, fn()); 17] = [
    (
        "a_host_that_cannot_keep_a_claim_is_refused",
        a_host_that_cannot_keep_a_claim_is_refused,
    ),
    (
        "what_is_kept_survives_the_supervisor",
        what_is_kept_survives_the_supervisor,
    ),
    (
        "names_are_fetched_listed_replaced_and_forgotten",
        names_are_fetched_listed_replaced_and_forgotten,
    ),
    (
        "nonsense_is_answered_and_harms_nothing",
        nonsense_is_answered_and_harms_nothing,
    ),
    (
        "the_control_pair_is_there_before_the_first_start",
        the_control_pair_is_there_before_the_first_start,
    ),
    (
        "a_second_keeper_is_told_who_runs",
        a_second_keeper_is_told_who_runs,
    ),
    (
        "a_run_directory_of_others_is_refused",
        a_run_directory_of_others_is_refused,
    ),
    (
        "a_second_keeper_on_one_state_directory_is_told_who_holds_it",
        a_second_keeper_on_one_state_directory_is_told_who_holds_it,
    ),
    (
        "a_log_is_ours_alone_and_follows_no_link",
        a_log_is_ours_alone_and_follows_no_link,
    ),
    (
        "the_end_is_orderly_and_leaves_no_child",
        the_end_is_orderly_and_leaves_no_child,
    ),
    (
        "a_dead_supervisor_still_gets_to_clean_up",
        a_dead_supervisor_still_gets_to_clean_up,
    ),
    (
        "a_supervisor_that_never_asks_is_hopeless",
        a_supervisor_that_never_asks_is_hopeless,
    ),
    (
        "standard_error_that_takes_nothing_ends_nobody",
        standard_error_that_takes_nothing_ends_nobody,
    ),
    (
        "the_lock_cannot_be_held_by_another_user",
        the_lock_cannot_be_held_by_another_user,
    ),
    (
        "a_log_begins_again_before_it_fills_its_folder",
        a_log_begins_again_before_it_fills_its_folder,
    ),
    ("the_service_manager_stores", the_service_manager_stores),
    (
        "the_service_manager_gives_back",
        the_service_manager_gives_back,
    ),
];

fn main() -> ExitCode {
    let mut words = std::env::args();
    if words
        .next()
        .is_some_and(|name| name.ends_with("bulkhead-supervisor"))
    {
        return play_supervisor();
    }
    let filters: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f));
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS.into_iter().filter(|(name, _)| chosen(name)) {
        let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed");
    ExitCode::from(u8::from(failed != 0))
}

fn start_child() -> u32 {
    Command::new("sleep").arg("1000").spawn().unwrap().id()
}

/// Hands descriptor 3 to the test, then does what its messages say: a `Done` with
/// value n = exit with status n; 1000 = start a child that outlives it.
fn play_supervisor() -> ExitCode {
    let run_dir = PathBuf::from(std::env::args().nth(2).unwrap());
    if run_dir.join("hopeless").exists() {
        return ExitCode::from(3);
    }
    let keeper = confine::descriptor(3).unwrap();
    let test = Socket::connect(&run_dir.join("test.sock")).unwrap();
    let hello = Done {
        value: std::process::id(),
        ..Done::default()
    };
    test.send(&Message::new(1, &hello), &[keeper.as_fd()])
        .unwrap();
    drop(keeper);
    loop {
        let Ok(Some((message, _))) = test.recv_wait(SOON * 6) else {
            return ExitCode::from(9);
        };
        match message.body::<Done>().unwrap().value {
            1000 => {
                let pid = Done {
                    value: start_child(),
                    ..Done::default()
                };
                test.send(&Message::new(2, &pid), &[]).unwrap();
            }
            status => return ExitCode::from(status as u8),
        }
    }
}

/// A keeper in a folder of its own.
struct Stage {
    folder: tempfile::TempDir,
    listener: Listener,
    keeper: Child,
}

/// One life of the supervisor, in the test's hands.
struct Life {
    /// Its end of the socket to the keeper.
    keeper: Socket,
    process: Socket,
    pid: u32,
    seq: u32,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|_| ())
    }

    fn with(prepare: impl Fn(&mut Command)) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let here = |name: &str| folder.path().join(name);
        std::fs::copy(
            env!("CARGO_BIN_EXE_bulkhead-keeper"),
            here("bulkhead-keeper"),
        )
        .unwrap();
        std::fs::copy(
            std::env::current_exe().unwrap(),
            here("bulkhead-supervisor"),
        )
        .unwrap();
        std::fs::create_dir(here("run")).unwrap();
        let listener = Listener::bind(&here("run/test.sock"), 0o600).unwrap();
        let mut command = keeper_in(folder.path());
        prepare(&mut command);
        let keeper = command.spawn().unwrap();
        Stage {
            folder,
            listener,
            keeper,
        }
    }

    fn life(&self) -> Life {
        let end = Instant::now() + SOON;
        let process = loop {
            if let Some(process) = self.listener.accept().unwrap() {
                break process;
            }
            assert!(Instant::now() < end, "the keeper starts no supervisor");
            std::thread::sleep(Duration::from_millis(1));
        };
        let (hello, mut fds) = process.recv_wait(SOON).unwrap().unwrap();
        let keeper = Socket::from_fd(fds.pop().unwrap());
        let pid = hello.body::<Done>().unwrap().value;
        Life {
            keeper,
            process,
            pid,
            seq: 0,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.keeper), signal).unwrap();
    }

    fn ends(&mut self) -> Option<i32> {
        let end = Instant::now() + SOON * 3;
        while Instant::now() < end {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the keeper does not end");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if matches!(self.keeper.try_wait(), Ok(None)) {
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }
}

impl Life {
    fn ask(
        &mut self,
        body: &impl command::Body,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> (Message, seqpacket::Fds) {
        self.seq += 1;
        self.keeper
            .ask(&Message::new(self.seq, body), fds, SOON)
            .unwrap()
    }

    fn keep(&mut self, name: &str, note: &str, fd: impl AsFd) {
        let body = Keep {
            name: Name::new(name).unwrap(),
            note: Name::new(note).unwrap(),
        };
        assert_eq!(self.ask(&body, &[fd.as_fd()]).0.error, 0);
    }

    fn fetch(&mut self, name: &str) -> Option<(String, std::os::fd::OwnedFd)> {
        let (answer, fds) = self.ask(
            &Fetch {
                name: Name::new(name).unwrap(),
                ..Fetch::default()
            },
            &[],
        );
        let Some(body) = answer.body::<Fetch>() else {
            assert_eq!(answer.error, ErrorCode::NotFound as u32);
            return None;
        };
        Some((
            body.note.as_str().to_owned(),
            fds.into_iter().next().unwrap(),
        ))
    }

    fn list(&mut self, prefix: &str) -> Vec<String> {
        let (mut answer, mut fds) = self.ask(
            &List {
                name: Name::new(prefix).unwrap(),
                ..List::default()
            },
            &[],
        );
        let mut names = Vec::new();
        while let Some(entry) = answer.body::<List>() {
            assert_eq!(fds.len(), 1);
            names.push(entry.name.as_str().to_owned());
            (answer, fds) = self.keeper.answer_to(self.seq, SOON).unwrap();
        }
        assert_eq!(Verb::from_number(answer.verb), Some(Verb::Done));
        names
    }

    fn forget(&mut self, name: &str, exact: u32) {
        let body = Forget {
            name: Name::new(name).unwrap(),
            exact,
        };
        assert_eq!(self.ask(&body, &[]).0.error, 0);
    }

    fn tell(&self, value: u32) {
        self.process
            .send(
                &Message::new(
                    9,
                    &Done {
                        value,
                        ..Done::default()
                    },
                ),
                &[],
            )
            .unwrap();
    }
}

fn keeper_in(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("bulkhead-keeper"));
    command
        .arg("--run-dir")
        .arg(folder.join("run"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
    command
}

fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn what_is_kept_survives_the_supervisor() {
    use std::io::{Read, Write};
    let stage = Stage::new();
    let mut first = stage.life();
    let (mut read, write) = pipe();
    first.keep("compartment/3/doorbell", "of the third", &write);
    drop(write);
    // The last request before its death is carried out without an answer read.
    let (_other, other) = pipe();
    let body = Keep {
        name: Name::new("last").unwrap(),
        note: Name::default(),
    };
    first
        .keeper
        .send(&Message::new(77, &body), &[other.as_fd()])
        .unwrap();
    kill_process(
        Pid::from_raw(first.pid.cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    drop(first);
    let mut second = stage.life();
    let (note, fd) = second.fetch("compartment/3/doorbell").unwrap();
    assert_eq!(note, "of the third");
    std::fs::File::from(fd).write_all(b"!").unwrap();
    let mut byte = [0];
    read.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"!");
    assert!(second.fetch("last").is_some());
    assert!(second.fetch("other").is_none());
}

fn names_are_fetched_listed_replaced_and_forgotten() {
    let stage = Stage::new();
    let mut life = stage.life();
    let (read, write) = pipe();
    for name in ["a/1", "a/2", "a/10", "b/1"] {
        life.keep(name, "", &read);
    }
    assert_eq!(life.list("a/"), ["a/1", "a/10", "a/2"]);
    life.keep("a/2", "newer", &write);
    assert_eq!(life.fetch("a/2").unwrap().0, "newer");
    life.forget("a/1", 1);
    assert_eq!(life.list("a/"), ["a/10", "a/2"]);
    life.forget("a/", 0);
    assert_eq!(
        life.list(""),
        ["b/1", "control/controller", "control/supervisor"]
    );
    // Many more than a socket's queue holds.
    for n in 0..1000 {
        life.keep(&format!("many/{n:04}"), "n", &read);
    }
    assert_eq!(life.list("many/").len(), 1000);
}

fn nonsense_is_answered_and_harms_nothing() {
    let stage = Stage::new();
    let mut life = stage.life();
    let unnamed = life.ask(&Keep::default(), &[]).0;
    assert_eq!(unnamed.error, ErrorCode::BadMessage as u32);
    let empty = Keep {
        name: Name::new("x").unwrap(),
        ..Keep::default()
    };
    assert_eq!(life.ask(&empty, &[]).0.error, ErrorCode::BadMessage as u32);
    let strange = life.ask(&command::verbs::Quit::default(), &[]).0;
    assert_eq!(strange.error, ErrorCode::BadMessage as u32);
    assert!(life.fetch("x").is_none());
    // A datagram that is no message ends this supervisor, not the keeper.
    let (read, _write) = pipe();
    life.keep("kept", "", &read);
    rustix::io::write(&life.keeper, b"short").unwrap();
    let mut next = stage.life();
    assert!(next.fetch("kept").is_some());
    assert!(matches!(life.process.recv_wait(SOON), Err(Error::Closed)));
}

fn the_control_pair_is_there_before_the_first_start() {
    let stage = Stage::new();
    let mut life = stage.life();
    let ours = Socket::from_fd(life.fetch("control/supervisor").unwrap().1);
    let theirs = Socket::from_fd(life.fetch("control/controller").unwrap().1);
    let message = Message::new(5, &Done::default());
    ours.send(&message, &[]).unwrap();
    assert_eq!(theirs.recv_wait(SOON).unwrap().unwrap().0, message);
}

fn a_second_keeper_is_told_who_runs() {
    let stage = Stage::new();
    let mut life = stage.life();
    let output = keeper_in(stage.folder.path()).output().unwrap();
    assert!(!output.status.success());
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(
        says.contains(&format!("another Bulkhead (pid {})", stage.keeper.id())),
        "{says}"
    );
    assert!(life.list("control/").len() == 2, "the first one goes on");
}

/// A host without user namespaces, as far as this process goes.
fn a_host_that_cannot_keep_a_claim_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && \
         exec timeout 20 {} --rootless --run-dir {1}/run --state-dir {1}/state",
        env!("CARGO_BIN_EXE_bulkhead-keeper"),
        folder.path().display()
    );
    let said = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(5), "{words}");
    assert!(
        words.contains("refused on this host: user namespaces"),
        "{words}"
    );
    assert!(!folder.path().join("run").exists(), "nothing was begun");
}

fn a_run_directory_of_others_is_refused() {
    let mut stage = Stage::new();
    let _life = stage.life();
    stage.signal(Signal::KILL);
    stage.ends();
    let run = stage.folder.path().join("run");
    // One that is not refused ends as well, for the test to see it.
    std::fs::write(run.join("hopeless"), "").unwrap();
    let lock = run.join("keeper.lock");
    let refused = |why: &str| {
        let output = keeper_in(stage.folder.path()).output().unwrap();
        let says = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && says.contains(why), "{says}");
    };
    let mode = |mode| std::fs::set_permissions(&run, Permissions::from_mode(mode)).unwrap();
    mode(0o1777);
    refused("can be written by others");
    mode(0o755);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&run, Some(4242), None).unwrap();
        refused("belongs to uid 4242");
        std::os::unix::fs::chown(&run, Some(0), None).unwrap();
    }
    let above = stage.folder.path();
    std::fs::set_permissions(above, Permissions::from_mode(0o777)).unwrap();
    refused("could be replaced by others");
    std::fs::set_permissions(above, Permissions::from_mode(0o700)).unwrap();
    let victim = stage.folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(&victim, &lock).unwrap();
    refused("keeper.lock");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

fn a_second_keeper_on_one_state_directory_is_told_who_holds_it() {
    let stage = Stage::new();
    let mut life = stage.life();
    // One that is not refused ends as well, for the test to see it.
    std::fs::create_dir(stage.folder.path().join("elsewhere")).unwrap();
    std::fs::write(stage.folder.path().join("elsewhere/hopeless"), "").unwrap();
    let mut second = Command::new(stage.folder.path().join("bulkhead-keeper"));
    let output = second
        .arg("--run-dir")
        .arg(stage.folder.path().join("elsewhere"))
        .arg("--state-dir")
        .arg(stage.folder.path().join("state"))
        .env_remove("NOTIFY_SOCKET")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let says = String::from_utf8(output.stderr).unwrap();
    let pid = stage.keeper.id();
    assert!(
        says.contains(&format!("another Bulkhead (pid {pid}) runs in"))
            && says.contains("/state: stop"),
        "{says}"
    );
    assert!(life.list("control/").len() == 2, "the first one goes on");
}

fn a_log_is_ours_alone_and_follows_no_link() {
    let mut stage = Stage::with(|command| {
        let run = Path::new(command.get_args().nth(1).unwrap()).to_owned();
        std::fs::write(run.join("../victim"), "precious").unwrap();
        std::os::unix::fs::symlink(run.join("../victim"), run.join("log")).unwrap();
        command.arg("--log").stderr(Stdio::piped());
    });
    let life = stage.life();
    let mut inherited = String::new();
    // The end of the pipe comes while the keeper lives: it holds none of it.
    std::io::Read::read_to_string(&mut stage.keeper.stderr.take().unwrap(), &mut inherited)
        .unwrap();
    assert_eq!(inherited, "");
    // Something to say: the supervisor died.
    life.tell(7);
    let _next = stage.life();
    let log = stage.folder.path().join("run/log");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("the supervisor died"), "{said}");
    let status = std::fs::symlink_metadata(&log).unwrap();
    assert!(status.is_file() && status.permissions().mode() & 0o777 == 0o600);
    let victim = stage.folder.path().join("victim");
    assert_eq!(std::fs::read(victim).unwrap(), b"precious");
}

/// What a process that shares the description can do: make it non-blocking, and fill it.
fn standard_error_that_takes_nothing_ends_nobody() {
    let (_read, write) = pipe();
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    let stage = Stage::with(|command| {
        command.stderr(write.try_clone().unwrap());
    });
    // Each death is something to say.
    let mut first = stage.life();
    first.keep("kept", "", &_read);
    first.tell(7);
    stage.life().tell(7);
    assert!(stage.life().fetch("kept").is_some());
}

fn the_lock_cannot_be_held_by_another_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut stage = Stage::new();
    let lock = stage.folder.path().join("run/keeper.lock");
    let _life = stage.life();
    stage.signal(Signal::KILL);
    stage.ends();
    // As a keeper before this rule left it.
    std::fs::set_permissions(&lock, Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(stage.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut keeper = keeper_in(stage.folder.path()).spawn().unwrap();
    let _life = stage.life();
    let held =
        std::os::unix::process::CommandExt::uid(Command::new("flock").args(["-s", "-n"]), 4242)
            .arg(&lock)
            .arg("true")
            .output()
            .unwrap();
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    let says = String::from_utf8_lossy(&held.stderr).into_owned();
    assert!(!held.status.success() && says.contains("denied"), "{says}");
}

fn a_log_begins_again_before_it_fills_its_folder() {
    let stage = Stage::with(|command| {
        command.arg("--log");
    });
    let life = stage.life();
    let place = |name: &str| stage.folder.path().join("run").join(name);
    let log = std::fs::OpenOptions::new()
        .append(true)
        .open(place("log"))
        .unwrap();
    std::io::Write::write_all(&mut &log, &vec![b'x'; (1 << 20) + 1]).unwrap();
    life.tell(7);
    let mut next = stage.life();
    next.list("");
    let length = |name: &str| std::fs::metadata(place(name)).unwrap().len();
    assert!(length("log") < 1 << 20, "{}", length("log"));
    assert!(length("log.old") > 1 << 20);
    assert_eq!(
        std::fs::metadata(place("log.old"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
}

fn the_end_is_orderly_and_leaves_no_child() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut stage = Stage::new();
        let life = stage.life();
        life.tell(1000);
        let (orphan, _) = life.process.recv_wait(SOON).unwrap().unwrap();
        let orphan = orphan.body::<Done>().unwrap().value;
        assert!(exists(orphan));
        stage.signal(signal);
        let (message, _) = life.keeper.recv_wait(SOON).unwrap().unwrap();
        assert!(message.body::<Shutdown>().is_some());
        // Nothing is killed while the supervisor still tidies up.
        assert!(exists(orphan));
        life.tell(0);
        assert_eq!(stage.ends(), Some(0));
        assert!(!exists(life.pid) && !exists(orphan));
    }
}

fn a_dead_supervisor_still_gets_to_clean_up() {
    let mut stage = Stage::new();
    let mut life = stage.life();
    life.list("");
    stage.signal(Signal::TERM);
    let (message, _) = life.keeper.recv_wait(SOON).unwrap().unwrap();
    assert!(message.body::<Shutdown>().is_some());
    life.tell(4);
    let again = stage.life();
    let (message, _) = again.keeper.recv_wait(SOON).unwrap().unwrap();
    assert!(message.body::<Shutdown>().is_some());
    again.tell(0);
    assert_eq!(stage.ends(), Some(0));
}

fn a_supervisor_that_never_asks_is_hopeless() {
    let mut stage = Stage::with(|command| {
        command.stderr(Stdio::null());
    });
    // The first life may be before the file: it is ended.
    std::fs::write(stage.folder.path().join("run/hopeless"), "").unwrap();
    if let Ok(Some(process)) = stage.listener.accept() {
        let _ = process.send(
            &Message::new(
                9,
                &Done {
                    value: 3,
                    ..Done::default()
                },
            ),
            &[],
        );
    }
    assert_eq!(stage.ends(), Some(1));
}

fn the_service_manager_stores() {
    // The service manager's side: a datagram socket that takes descriptors.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let stage = Stage::with(|command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let mut life = stage.life();
    let (read, _write) = pipe();
    life.keep("port/1/tap", "of red", &read);
    life.forget("port/", 0);
    let mut said = String::new();
    let mut buffer = [0; 4096];
    while !said.contains("FDSTOREREMOVE=1") {
        let length = manager.recv(&mut buffer).unwrap();
        said += std::str::from_utf8(&buffer[..length]).unwrap();
        said.push('\n');
    }
    for line in [
        "READY=1",
        "FDNAME=keeper/notes",
        "FDNAME=control/supervisor",
        "FDNAME=port/1/tap",
        "FDPOLL=0",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
}

fn the_service_manager_gives_back() {
    let folder = tempfile::tempdir().unwrap();
    let here = |name: &str| folder.path().join(name);
    let manager = std::os::unix::net::UnixDatagram::bind(here("notify")).unwrap();
    std::fs::write(here("tap"), "the tap").unwrap();
    std::fs::write(here("notes"), "port/1/tap\0old\nport/1/tap\0of red\n").unwrap();
    // Only a shell places descriptors at 3 and 4 and knows the pid beforehand.
    let stage = Stage::with(|command| {
        let keeper = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = Command::new("sh");
        command
            .arg("-c")
            .arg("exec 3<\"$TAP\" 4<>\"$NOTES\"; LISTEN_PID=$$ exec \"$@\"")
            .arg("sh")
            .arg(keeper)
            .args(arguments)
            .envs([("TAP", here("tap")), ("NOTES", here("notes"))])
            .env("NOTIFY_SOCKET", here("notify"))
            .env("LISTEN_FDS", "2")
            .env("LISTEN_FDNAMES", "port/1/tap:keeper/notes");
    });
    let (note, fd) = stage.life().fetch("port/1/tap").unwrap();
    assert_eq!(note, "of red");
    assert_eq!(
        std::io::read_to_string(std::fs::File::from(fd)).unwrap(),
        "the tap"
    );
    drop(manager);
}
