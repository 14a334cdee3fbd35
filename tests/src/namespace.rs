//! Network namespaces of the caller's own, and commands run inside them.

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A name nobody else has: `prefix`, this process's id, a number.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{prefix}{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A new folder among the temporary ones, for our user alone: a name that is not to
/// be guessed, and an error where it exists.
pub fn private_folder(prefix: &str) -> Result<PathBuf, String> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| e.to_string())?;
    let name = format!("{prefix}{:016x}", u64::from_ne_bytes(random));
    let folder = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// A named network namespace, removed on drop.
pub struct Namespace {
    /// Its name below /run/netns.
    pub name: String,
}

impl Namespace {
    /// Makes one, with its loopback up.
    pub fn make() -> Result<Namespace, String> {
        let namespace = Namespace {
            name: unique("bht"),
        };
        ip(&format!("netns add {}", namespace.name))?;
        ip(&format!("-n {} link set lo up", namespace.name))?;
        Ok(namespace)
    }

    /// Takes care of one that something else makes: removed on drop if it is still there.
    pub fn named(name: impl Into<String>) -> Namespace {
        Namespace { name: name.into() }
    }

    /// Runs a shell line inside.
    pub fn sh(&self, line: &str) -> Result<Said, String> {
        Said::of(&mut self.command(line))
    }

    /// A shell line inside, not yet run.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name, "sh", "-c", line])
            .stdin(Stdio::null());
        command
    }

    /// Runs an `ip` line inside.
    pub fn ip(&self, line: &str) -> Result<(), String> {
        ip(&format!("-n {} {line}", self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::path::Path::new("/run/netns").join(&self.name).exists() {
            let _ = ip(&format!("netns del {}", self.name));
        }
    }
}

/// Runs an `ip` line.
fn ip(line: &str) -> Result<(), String> {
    let said = Said::of(Command::new("ip").args(line.split_whitespace()))?;
    if said.code == 0 {
        Ok(())
    } else {
        Err(format!("ip {line}: {}", said.err))
    }
}

/// A process that ends when this is dropped.
pub struct Ended(pub Child);

impl Ended {
    /// Asks it to end and waits for that.
    pub fn end(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Said {
    /// Exit code; -1 = by a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// Runs it to its end.
    pub fn of(command: &mut Command) -> Result<Said, String> {
        let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
        Ok(Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Exit code 0?
    pub fn ok(&self) -> bool {
        self.code == 0
    }
}

/// Moves this thread into a named namespace and gives the way back.
pub fn enter(name: &str) -> Result<File, String> {
    let home = File::open("/proc/thread-self/ns/net").map_err(|e| e.to_string())?;
    let there = File::open(format!("/run/netns/{name}")).map_err(|e| format!("{name}: {e}"))?;
    leave_to(&there)?;
    Ok(home)
}

/// Moves this thread into an open namespace.
pub fn leave_to(network: &File) -> Result<(), String> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| format!("setns: {e}"))
}
