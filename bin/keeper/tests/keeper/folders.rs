//! What a keeper holds of its host: its folders, its locks and its log, or it does not start.

use crate::stage::{Stage, keeper_in};
use rustix::process::Signal;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// For `main`.
pub const TESTS: &[(&str, fn())] = &[
    (
        "a_host_that_cannot_keep_a_claim_is_refused",
        a_host_that_cannot_keep_a_claim_is_refused,
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
        "a_state_directory_that_cannot_be_written_is_refused_at_once",
        a_state_directory_that_cannot_be_written_is_refused_at_once,
    ),
    (
        "a_log_is_ours_alone_and_follows_no_link",
        a_log_is_ours_alone_and_follows_no_link,
    ),
    (
        "the_lock_cannot_be_held_by_another_user",
        the_lock_cannot_be_held_by_another_user,
    ),
    (
        "a_log_begins_again_before_it_fills_its_folder",
        a_log_begins_again_before_it_fills_its_folder,
    ),
];

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

fn a_state_directory_that_cannot_be_written_is_refused_at_once() {
    let stage = Stage::new();
    let folder = stage.folder.path();
    let (run, state) = (folder.join("elsewhere"), folder.join("unwritten"));
    for directory in [&run, &state] {
        std::fs::create_dir(directory).unwrap();
    }
    // One that is not refused ends as well, for the test to see it.
    std::fs::write(run.join("hopeless"), "").unwrap();
    // In a namespace of mounts: it goes with the keeper.
    let line = "mount -t tmpfs -o ro,mode=700 bht \"$2\" && exec \"$0\" --run-dir \"$1\" --state-dir \"$2\"";
    let alone = if rustix::process::geteuid().is_root() {
        "-m"
    } else {
        "-rm"
    };
    let output = Command::new("unshare")
        .args([alone, "sh", "-c", line])
        .args([&folder.join("bulkhead-keeper"), &run, &state])
        .env_remove("NOTIFY_SOCKET")
        .output()
        .unwrap();
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && says.contains("/unwritten cannot be written (Read-only"),
        "{says}"
    );
    assert!(
        !says.contains("hopeless") && !says.contains("does not start"),
        "nothing was begun: {says}"
    );
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
