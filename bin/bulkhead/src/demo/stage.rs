//! The demo's stage: a daemon of its own, and what runs in the tenants' namespaces.
//! All of it goes when the stage does, however that comes about.

use crate::client::Client;
use crate::exit::{Exit, Trouble};
use crate::verbs::up::keeper;
use api::Status;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// A daemon and its folder.
pub struct Stage {
    folder: PathBuf,
    socket: PathBuf,
    program: PathBuf,
    /// The API.
    pub client: Client,
    keeper: Option<Child>,
}

impl Stage {
    /// Starts a daemon in a folder of its own.
    pub async fn set() -> Result<Stage, Trouble> {
        let folder = private_folder("bulkhead-demo-")?;
        let run_dir = folder.join("run");
        let socket = run_dir.join("api.sock");
        let log = fs::File::create_new(folder.join("log"))?;
        let mut command = Command::from(keeper(
            &run_dir,
            &folder.join("state"),
            confine::rootless::has_single_uid(),
        )?);
        // Ctrl-C at the terminal is for the demo, which ends the keeper in order.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn()?;
        let mut stage = Stage {
            client: Client::new(&socket),
            program: std::env::current_exe()?,
            socket,
            folder,
            keeper: Some(child),
        };
        stage.wait_for_answer().await?;
        Ok(stage)
    }

    /// Waits for a controller that was started anew, at most 15 seconds.
    pub async fn answers_again(&self) -> Result<(), Trouble> {
        let end = Instant::now() + Duration::from_secs(15);
        // Bound: 15 seconds.
        while Instant::now() < end {
            if self.client.answers().await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let what = format!("the daemon does not answer any more:\n{}", self.log());
        Err(Trouble::new(Exit::Failed, what, ""))
    }

    /// A process below the keeper, by its program's name.
    pub fn child(&self, name: &str) -> Option<u32> {
        let mut open = vec![self.keeper.as_ref()?.id()?];
        while let Some(process) = open.pop() {
            let line = fs::read_to_string(format!("/proc/{process}/cmdline"));
            let line = line.unwrap_or_default();
            let program = line.split('\0').next().unwrap_or_default();
            if program.rsplit('/').next() == Some(name) {
                return Some(process);
            }
            let below = format!("/proc/{process}/task/{process}/children");
            let below = fs::read_to_string(below).unwrap_or_default();
            open.extend(below.split_whitespace().flat_map(str::parse::<u32>));
        }
        None
    }

    async fn wait_for_answer(&mut self) -> Result<(), Trouble> {
        let end = Instant::now() + Duration::from_secs(15);
        // Bound: 15 seconds.
        while Instant::now() < end {
            if self.client.answers().await {
                return Ok(());
            }
            if let Some(Ok(Some(status))) = self.keeper.as_mut().map(Child::try_wait) {
                return Err(Trouble::new(
                    Exit::Failed,
                    format!("the daemon ended ({status}):\n{}", self.log()),
                    "`bulkhead doctor` shows what this host lacks",
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(Trouble::new(
            Exit::Failed,
            format!("the daemon does not answer:\n{}", self.log()),
            "",
        ))
    }

    /// Where the demo's own files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the daemon printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// What exists and how it is.
    pub async fn status(&self) -> Result<Status, Trouble> {
        self.client.get("/v1/status").await
    }

    /// `bulkhead run --endpoint ENDPOINT -- COMMAND`, not yet started.
    pub fn at(&self, endpoint: &str, command: &[&str]) -> Command {
        let mut run = Command::new(&self.program);
        run.arg("--socket")
            .arg(&self.socket)
            .args(["run", "--endpoint", endpoint, "--"])
            .args(command);
        run.stdin(Stdio::null()).kill_on_drop(true);
        run
    }

    /// The same with this very program as the command.
    pub fn self_at(&self, endpoint: &str, arguments: &[&str]) -> Command {
        let own = self.program.display().to_string();
        let command: Vec<&str> = std::iter::once(own.as_str())
            .chain(arguments.iter().copied())
            .collect();
        self.at(endpoint, &command)
    }

    /// Runs a command at an endpoint to its end, at most ten seconds.
    pub async fn ask(&self, endpoint: &str, command: &[&str]) -> Result<Output, Trouble> {
        ended(self.at(endpoint, command), &command.join(" ")).await
    }

    /// Ends the daemon in order; what could not be ended is said.
    pub async fn strike(mut self, keep: bool) -> Result<(), Trouble> {
        let Some(mut keeper) = self.keeper.take() else {
            return Ok(());
        };
        if keep {
            return Ok(());
        }
        end(&mut keeper).await;
        let _ = fs::remove_dir_all(&self.folder);
        Ok(())
    }
}

impl Drop for Stage {
    /// Only on the way out of an error: ask the keeper to end everything, and wait a
    /// little for it.
    fn drop(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        terminate(keeper);
        let end = Instant::now() + Duration::from_secs(20);
        // Bound: 20 seconds.
        while matches!(keeper.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A new folder among the temporary ones, for our user alone. Its name is not to be
/// guessed, and one that exists is never taken: whoever made it could have put links
/// in it for a demo of root's to follow.
fn private_folder(prefix: &str) -> std::io::Result<PathBuf> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!("{prefix}{:032x}", u128::from_ne_bytes(random));
    let folder = std::env::temp_dir().join(name);
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Runs a command to its end, at most ten seconds.
pub async fn ended(mut command: Command, name: &str) -> Result<Output, Trouble> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command.output(), name).await
}

/// What came of a command, at most ten seconds from now.
pub async fn finished(
    output: impl Future<Output = std::io::Result<Output>>,
    name: &str,
) -> Result<Output, Trouble> {
    match tokio::time::timeout(Duration::from_secs(10), output).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(Trouble::new(Exit::Failed, format!("{name}: {error}"), "")),
        Err(_) => Err(Trouble::new(
            Exit::Failed,
            format!("{name}: no end within 10 s"),
            "",
        )),
    }
}

fn terminate(child: &Child) {
    let pid = child
        .id()
        .and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Asks a process to end and waits for it, at most 25 seconds.
pub async fn end(child: &mut Child) {
    terminate(child);
    if tokio::time::timeout(Duration::from_secs(25), child.wait())
        .await
        .is_err()
    {
        let _ = child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_folder_of_a_demo_is_new_and_its_own_users() {
        let all = [(); 2].map(|()| private_folder("bulkhead-test-").unwrap());
        let modes = all
            .each_ref()
            .map(|folder| fs::metadata(folder).unwrap().permissions().mode() & 0o777);
        for folder in &all {
            fs::remove_dir(folder).unwrap();
        }
        assert_ne!(all[0], all[1]);
        assert_eq!(modes, [0o700; 2]);
    }
}
