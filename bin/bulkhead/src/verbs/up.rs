//! `up`: the daemon, which is the keeper and what it starts; `bench`, a program beside us.

use crate::args::{self, Bench, Up};
use crate::client::Client;
use crate::exit::{Exit, Trouble};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon's programs, each in the folder of this one.
const DAEMON: [&str; 11] = [
    "auditor",
    "controller",
    "fabric",
    "keeper",
    "operator",
    "proxy",
    "solver",
    "supervisor",
    "switch",
    "verifier",
    "vhost",
];
/// How long a daemon may take from its start to its first answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts the daemon: in the foreground by becoming it, or detached.
pub async fn up(up: &Up, said: &Path, json: bool) -> Result<Exit, Trouble> {
    if !up.rootless && !confine::rootless::is_root() {
        return Err(Trouble::new(
            Exit::Denied,
            "starting the daemon needs root",
            "`bulkhead up --rootless` runs inside a user namespace, which is weaker",
        ));
    }
    let run_dir = std::path::absolute(&up.run_dir)?;
    let state_dir = std::path::absolute(&up.state_dir)?;
    let socket = run_dir.join("api.sock");
    // What the environment says is for whoever asks a daemon.
    if said != args::socket_unsaid() && std::path::absolute(said)? != socket {
        return Err(Trouble::new(
            Exit::Usage,
            format!(
                "this daemon's socket is {}, not {}",
                socket.display(),
                said.display()
            ),
            "it is `api.sock` in --run-dir: give `up` another --run-dir, or no --socket",
        ));
    }
    let mut command = keeper(&run_dir, &state_dir, up.rootless)?;
    if let Some(solver) = &up.solver {
        command.arg("--solver").arg(std::path::absolute(solver)?);
    }
    for (word, number) in [
        ("--owner", up.owner),
        ("--readers", up.readers),
        ("--prove-every", up.prove_every),
        ("--audit-days", up.audit_days),
        ("--audit-entries", up.audit_entries),
    ] {
        if let Some(number) = number {
            command.arg(word).arg(number.to_string());
        }
    }
    if !up.detach {
        let error = command.exec();
        return Err(Trouble::new(
            Exit::Failed,
            format!("{}: {error}", command.get_program().display()),
            "are all programs of Bulkhead installed in one folder?",
        ));
    }
    let log = run_dir.join("log");
    let client = Client::new(&socket);
    let mut child = command
        .arg("--log")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| {
            Trouble::new(
                Exit::Failed,
                format!("{}: {error}", command.get_program().display()),
                "are all programs of Bulkhead installed in one folder?",
            )
        })?;
    let end = Instant::now() + PATIENCE;
    // Bound: PATIENCE.
    loop {
        // Another daemon's answer is none: the one that holds the directory must be ours.
        if holder(&run_dir) == Some(child.id()) && client.answers().await {
            break;
        }
        if let Some(status) = child.try_wait()? {
            let exit = if status.code() == Some(Exit::Refused as i32) {
                Exit::Refused
            } else {
                Exit::Failed
            };
            return Err(Trouble::new(
                exit,
                format!("the daemon ended at once ({status})"),
                format!(
                    "its messages are above, or in {}; `bulkhead doctor` shows what this host lacks",
                    log.display()
                ),
            ));
        }
        if Instant::now() >= end {
            return Err(Trouble::new(
                Exit::Failed,
                format!(
                    "no answer at {} within {} s; the daemon (pid {}) goes on trying",
                    socket.display(),
                    PATIENCE.as_secs(),
                    child.id()
                ),
                format!(
                    "`kill {}` ends it; the last of its messages, which are in {}:\n{}",
                    child.id(),
                    log.display(),
                    last_lines(&log)
                ),
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if json {
        return super::as_json(
            &serde_json::json!({ "pid": child.id(), "socket": socket, "log": log }),
        );
    }
    crate::print(
        format!(
            "running, pid {}, socket {}, log {}\n",
            child.id(),
            socket.display(),
            log.display()
        )
        .as_bytes(),
    )
}

/// Whose lock the run directory has.
fn holder(run_dir: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(run_dir.join("keeper.lock")).ok()?;
    text.trim().parse().ok()
}

/// The last lines of a log, as far as it can be read.
fn last_lines(log: &Path) -> String {
    const MOST: usize = 5;
    // The keeper keeps it small.
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(MOST);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// The keeper's command line.
pub fn keeper(run_dir: &Path, state_dir: &Path, rootless: bool) -> Result<Command, Trouble> {
    for name in DAEMON {
        // One that is not there would be missed only where it is needed.
        beside(&format!("bulkhead-{name}"))?;
    }
    let mut command = Command::new(beside("bulkhead-keeper")?);
    command
        .arg("--run-dir")
        .arg(run_dir)
        .arg("--state-dir")
        .arg(state_dir);
    if rootless {
        command.arg("--rootless");
    }
    Ok(command)
}

/// Becomes bulkhead-bench with these arguments.
pub fn bench(bench: &Bench) -> Result<Exit, Trouble> {
    let program = beside("bulkhead-bench").map_err(|trouble| {
        let advice = "it is no part of an installation: it measures what is built in a checkout (`make build`), \
             where its peers and results are; see docs/benching.md";
        Trouble::new(trouble.exit, trouble.fault.message, advice)
    })?;
    let mut command = Command::new(program);
    let error = command.args(&bench.arguments).exec();
    Err(Trouble::new(
        Exit::Failed,
        format!("bulkhead-bench: {error}"),
        "it is built by `make build`",
    ))
}

/// A program in the folder that this one is in.
pub fn beside(name: &str) -> Result<PathBuf, Trouble> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name(name);
    if !path.exists() {
        return Err(Trouble::new(
            Exit::Failed,
            format!("{} does not exist", path.display()),
            "all programs of Bulkhead belong in one folder: `make build` or `make install`",
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_the_last_lines_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(last_lines(&log), "");
        std::fs::write(&log, "1\n2\n").unwrap();
        assert_eq!(last_lines(&log), "1\n2");
        std::fs::write(&log, b"1\n2\n3\n4\n5\n6\n\xff\n").unwrap();
        assert_eq!(last_lines(&log), "3\n4\n5\n6\n\u{fffd}");
    }

    #[test]
    fn every_program_of_the_daemon_is_looked_for() {
        let bin = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
        let all = std::fs::read_dir(bin).unwrap().flatten();
        let all = all.filter(|it| it.path().join("Cargo.toml").exists());
        let mut all: Vec<_> = all
            .map(|it| it.file_name().into_string().unwrap())
            .collect();
        all.retain(|name| name != "bulkhead");
        all.sort();
        assert_eq!(all, DAEMON);
    }
}
