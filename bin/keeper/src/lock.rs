//! One keeper per run directory.

use rustix::fs::{Mode, OFlags, fstat, open, openat};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Held as long as the keeper lives; the kernel gives it back whatever happens.
pub struct Lock(#[expect(dead_code, reason = "the lock lives as long as the file is open")] File);

impl Lock {
    /// Makes the directory where it is missing, and takes its lock.
    ///
    /// # Errors
    /// Another keeper has it (and which), or the directory cannot be used.
    pub fn take(run_dir: &Path) -> Result<Lock, String> {
        make_directory(run_dir, 0o755)?;
        let directory = ours_alone(run_dir)?;
        let path = run_dir.join("keeper.lock");
        let says = |error: std::io::Error| format!("{}: {error}", path.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let mut file = openat(&directory, "keeper.lock", flags, mode)
            .map(File::from)
            .map_err(|errno| says(errno.into()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(format!(
                    "another Bulkhead (pid {}) runs in {}: stop that one, or give this one its \
                     own --run-dir and --state-dir",
                    pid.trim(),
                    run_dir.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(says(error)),
        }
        file.set_len(0)
            .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()))
            .map_err(says)?;
        Ok(Lock(file))
    }
}

/// The run directory, opened: nobody but root and our own user may change what is in
/// it, for they could put a link, or their own socket, where ours belongs.
fn ours_alone(run_dir: &Path) -> Result<OwnedFd, String> {
    let place = run_dir.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = open(run_dir, flags, Mode::empty())
        .map_err(|errno| format!("{place}: {errno}; it must be a directory, not a link to one"))?;
    let stat = fstat(&directory).map_err(|errno| format!("{place}: {errno}"))?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(format!(
            "{place} belongs to uid {}, who could change what is in it: give a --run-dir that \
             belongs to root or to the user who starts this",
            stat.st_uid
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(format!(
            "{place} can be written by others than its owner (mode {:o}): `chmod go-w {place}`, \
             or give another --run-dir",
            stat.st_mode & 0o7777
        ));
    }
    Ok(directory)
}

/// Makes a directory and those above it.
///
/// # Errors
/// What the system says, with the path.
pub fn make_directory(path: &Path, mode: u32) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| format!("{}: {error}", path.display()))
}
