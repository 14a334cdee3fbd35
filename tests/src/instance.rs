//! A running instance and its command line.

use crate::namespace::Said;
use serde_json::Value;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long what should come within `limit` is waited for. Shared machines stand still for many seconds at times; no
/// test is about how long that is. What must not come is waited for briefly, for as long as told.
pub fn patience(limit: Duration) -> Duration {
    match limit >= Duration::from_secs(3) {
        true => 3 * limit,
        false => limit,
    }
}

/// A Bulkhead of the caller's own.
pub struct Instance {
    folder: PathBuf,
    keeper: Child,
}

impl Instance {
    /// Starts one and waits until its API answers.
    pub fn start() -> Result<Instance, String> {
        Instance::start_with(&[])
    }

    /// The same with more arguments to `bulkhead up`.
    pub fn start_with(arguments: &[&str]) -> Result<Instance, String> {
        // Bound: one of 16,000 folders comes to the uids of another that is in use just now.
        loop {
            let folder = crate::private_folder("bulkhead-")?;
            match Instance::start_in(folder, arguments) {
                Err(why) if why.contains("comes to the same numbers") => {}
                started => return started,
            }
        }
    }

    /// The same on a folder that an earlier instance may have left its state in.
    pub fn start_in(folder: PathBuf, arguments: &[&str]) -> Result<Instance, String> {
        Instance::start_under(Command::new(program("bulkhead")), folder, arguments)
    }

    /// The same by a command that executes `bulkhead` with what it is given.
    pub fn start_under(
        mut bulkhead: Command,
        folder: PathBuf,
        arguments: &[&str],
    ) -> Result<Instance, String> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(folder.join("log"))
            .map_err(|e| e.to_string())?;
        let keeper = bulkhead
            .arg("up")
            .arg("--run-dir")
            .arg(folder.join("run"))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| e.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("bulkhead up: {e}"))?;
        let instance = Instance { folder, keeper };
        let deadline = Instant::now() + Duration::from_secs(10);
        while instance.ask(&["status"]).is_err() {
            if Instant::now() > deadline {
                return Err(format!(
                    "bulkhead up does not answer within 10 s; its log:\n{}",
                    instance.log()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(instance)
    }

    /// Where its sockets are.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// A folder for the caller's own files, gone with the instance.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it and its processes printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Process id of the keeper, the parent of all.
    pub fn keeper(&self) -> u32 {
        self.keeper.id()
    }

    /// The process with this program name below the keeper; the eldest: of operators not the one
    /// that waits to follow.
    pub fn child(&self, name: &str) -> Option<u32> {
        self.children(name).first().copied()
    }

    /// All of them, the eldest first.
    pub fn children(&self, name: &str) -> Vec<u32> {
        let (mut open, mut found) = (vec![self.keeper()], Vec::new());
        while let Some(parent) = open.pop() {
            let line = std::fs::read_to_string(format!("/proc/{parent}/cmdline"));
            let line = line.unwrap_or_default();
            let program = line.split('\0').next().unwrap_or_default();
            if program.rsplit('/').next() == Some(name) {
                found.push(parent);
            }
            let children = format!("/proc/{parent}/task/{parent}/children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            open.extend(
                children
                    .split_whitespace()
                    .rev()
                    .filter_map(|w| w.parse::<u32>().ok()),
            );
        }
        found
    }

    /// A command of this instance's command line, not yet run.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program("bulkhead"));
        command
            .arg("--socket")
            .arg(self.run_dir().join("api.sock"))
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// Runs a verb and says how it ended, whatever that was.
    pub fn say(&self, words: &[&str]) -> Result<Said, String> {
        Said::of(&mut self.command(words))
    }

    /// Runs a verb with `--json`; what it printed if it succeeded.
    pub fn ask(&self, words: &[&str]) -> Result<Value, String> {
        let mut all = vec!["--json"];
        all.extend(words);
        let said = self.say(&all)?;
        if said.code != 0 {
            return Err(format!(
                "bulkhead {}: {}{}",
                words.join(" "),
                said.err,
                said.out
            ));
        }
        serde_json::from_str(&said.out)
            .map_err(|e| format!("bulkhead {}: {e}: {}", words.join(" "), said.out))
    }

    /// Applies a spec.
    pub fn apply(&self, spec: &str) -> Result<Value, String> {
        let file = self.folder.join("spec.yaml");
        std::fs::write(&file, spec).map_err(|e| e.to_string())?;
        self.ask(&["apply", &file.display().to_string()])
    }

    /// Process id of the compartment called `name`; "fabric" is the fabric.
    pub fn pid(&self, name: &str) -> Result<u32, String> {
        let status = self.ask(&["status"])?;
        let compartment = if name == "fabric" {
            Some(&status["fabric"])
        } else {
            status["compartments"]
                .as_array()
                .and_then(|all| all.iter().find(|c| c["name"] == name))
        };
        compartment
            .and_then(|c| c["pid"].as_u64())
            .filter(|pid| *pid != 0)
            .and_then(|pid| u32::try_from(pid).ok())
            .ok_or_else(|| format!("status names no running compartment {name}: {status}"))
    }

    /// Kills the process of the compartment called `name`; its process id.
    ///
    /// # Panics
    /// There is none.
    pub fn kill(&self, name: &str) -> u32 {
        let mut pid = None;
        self.until(Duration::from_secs(5), |instance| {
            pid = instance.pid(name).ok();
            pid.is_some()
        });
        let pid = pid.unwrap_or_else(|| panic!("no process of {name}"));
        signal_kill(pid);
        pid
    }

    /// Kills the process below the keeper that runs this program.
    ///
    /// # Panics
    /// There is none.
    pub fn kill_program(&self, program: &str) {
        // Who has ended by itself since it was found is none.
        let kills = |i: &Instance| i.running(program).into_iter().next().is_some_and(killed);
        let done = self.until(Duration::from_secs(5), kills);
        assert!(done, "no {program} below the keeper");
    }

    /// Kills all of a program's processes.
    pub fn kill_all(&self, program: &str) {
        self.running(program).into_iter().for_each(signal_kill);
    }

    fn running(&self, program: &str) -> Vec<u32> {
        let below = |pid: u32| -> Vec<u32> {
            let list = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(list).unwrap_or_default();
            children.split_whitespace().flat_map(str::parse).collect()
        };
        // What a supervisor has started is below it, and below the keeper when it has died.
        let own = below(self.keeper());
        let all = own
            .iter()
            .copied()
            .chain(own.iter().flat_map(|pid| below(*pid)));
        let runs = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(first).rsplit('/').next() == Some(program)
        };
        all.collect::<Vec<u32>>().into_iter().filter(runs).collect()
    }

    /// What `status` says of an endpoint.
    pub fn endpoint(&self, tenant: &str, endpoint: &str) -> Result<Value, String> {
        let status = self.ask(&["status"])?;
        let named = |all: &Value, name: &str| -> Option<Value> {
            all.as_array()?
                .iter()
                .find(|one| one["name"] == name)
                .cloned()
        };
        named(&status["tenants"], tenant)
            .and_then(|tenant| named(&tenant["endpoints"], endpoint))
            .ok_or_else(|| format!("status names no endpoint {tenant}/{endpoint}"))
    }

    /// Frames of an endpoint dropped so far for a reason.
    pub fn drops(&self, tenant: &str, endpoint: &str, reason: &str) -> Result<u64, String> {
        let found = self.endpoint(tenant, endpoint)?;
        Ok(found["counters"]["drops"]
            .as_array()
            .and_then(|all| all.iter().find(|d| d["reason"] == reason))
            .and_then(|d| d["frames"].as_u64())
            .unwrap_or(0))
    }

    /// Waits until `holds`, at most `limit` (of a machine that is not stood still, see [`patience`]).
    pub fn until(&self, limit: Duration, mut holds: impl FnMut(&Instance) -> bool) -> bool {
        let deadline = Instant::now() + patience(limit);
        loop {
            if holds(self) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills every process of it at once, as a power cut would, and gives the folder
    /// with what they left, for `start_in`.
    pub fn cut_off(mut self) -> PathBuf {
        let mut all = vec![self.keeper.id()];
        let mut next = 0;
        while let Some(&parent) = all.get(next) {
            next += 1;
            let list = format!("/proc/{parent}/task/{parent}/children");
            let children = std::fs::read_to_string(list).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|w| w.parse::<u32>().ok()),
            );
        }
        // The keeper first: it would start the others again.
        for pid in &all {
            let _ = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
        let _ = self.keeper.wait();
        std::mem::take(&mut self.folder)
    }

    /// Asks the keeper to end everything and waits for it; then the folder is still there.
    pub fn stop(&mut self) {
        let _ = Command::new("kill")
            .arg("-TERM")
            .arg(self.keeper.id().to_string())
            .stderr(Stdio::null())
            .status();
        let deadline = Instant::now() + Duration::from_secs(30);
        while matches!(self.keeper.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the instance:\n{}", self.log());
        }
        if !self.folder.as_os_str().is_empty() {
            self.stop();
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn signal_kill(pid: u32) {
    assert!(killed(pid), "{pid}");
}

/// Whether there was a process of this id to kill.
fn killed(pid: u32) -> bool {
    let done = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .status();
    done.is_ok_and(|status| status.success())
}

/// A program of the build under test: in `BULKHEAD_BIN_DIR`, or beside this one.
pub fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("BULKHEAD_BIN_DIR") {
        return Path::new(&folder).join(name);
    }
    let here = std::env::current_exe().unwrap_or_default();
    // A test's own program is in deps/, one below the programs.
    here.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}
