//! `up`: the daemon, which is the keeper and what it starts; `bench`, a program beside us.

use crate::args::{Bench, Up};
use crate::client::Client;
use crate::exit::{Exit, Trouble};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take from its start to its first answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts the daemon: in the foreground by becoming it, or detached.
pub async fn up(up: &Up, client: &Client, socket: &Path, json: bool) -> Result<Exit, Trouble> {
    let mut command = keeper(&up.run_dir, &up.state_dir, up.rootless)?;
    for (word, number) in [("--owner", up.owner), ("--readers", up.readers)] {
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
    let mut child = command
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
        if client.answers().await {
            break;
        }
        if let Some(status) = child.try_wait()? {
            return Err(Trouble::new(
                Exit::Failed,
                format!("the daemon ended at once ({status})"),
                "its messages are above; `bulkhead doctor` shows what this host lacks",
            ));
        }
        if Instant::now() >= end {
            return Err(Trouble::new(
                Exit::Failed,
                format!(
                    "no answer at {} within {} s",
                    socket.display(),
                    PATIENCE.as_secs()
                ),
                "its messages are above; is --socket that of --run-dir?",
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if json {
        return super::as_json(&serde_json::json!({ "pid": child.id(), "socket": socket }));
    }
    crate::print(format!("running, pid {}, socket {}\n", child.id(), socket.display()).as_bytes())
}

/// The keeper's command line.
pub fn keeper(run_dir: &Path, state_dir: &Path, rootless: bool) -> Result<Command, Trouble> {
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
    let mut command = Command::new(beside("bulkhead-bench")?);
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
