//! The real keeper with a supervisor that does what the test says: this program
//! plays it too, under the name `bulkhead-supervisor`, and hands its descriptor 3
//! to the test.

mod folders;
mod stage;

use command::Message;
use command::message::{ErrorCode, Name};
use command::verbs::{Done, Keep, Shutdown};
use rustix::process::{Pid, Signal, kill_process};
use seqpacket::{Error, Socket};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use stage::{SOON, Stage, exists, pipe};

const TESTS: &[(&str, fn())] = &[
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
    ("the_service_manager_stores", the_service_manager_stores),
    (
        "notes_are_written_anew_before_they_are_long",
        notes_are_written_anew_before_they_are_long,
    ),
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
    let all = TESTS.iter().chain(folders::TESTS);
    for (name, test) in all.filter(|(name, _)| chosen(name)) {
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

/// What was noted of who came and went is not kept for ever.
fn notes_are_written_anew_before_they_are_long() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let stage = Stage::with(|command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let hears = std::thread::spawn(move || {
        let (mut buffer, mut is_new) = ([0; 4096], false);
        while let Ok(length) = manager.recv(&mut buffer) {
            let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let of = |name: &str| said.lines().any(|line| line == format!("FDNAME={name}"));
            is_new |= of("keeper/notes/1");
            if is_new && said.contains("FDSTOREREMOVE=1") && of("keeper/notes") {
                return true;
            }
        }
        false
    });
    let mut life = stage.life();
    let (read, _write) = pipe();
    let note = "x".repeat(200);
    for _ in 0..6000 {
        life.keep("port/1/tap", &note, &read);
    }
    drop(life);
    assert!(hears.join().unwrap());
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
