//! One keeper per run directory, and one per state directory.

use guard::guard;
use rustix::fs::{
    Access, AtFlags, FlockOperation, Mode, OFlags, accessat, fchmod, flock, fstat, open, openat,
    renameat, stat,
};
use rustix::io::Errno;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Both directories, held as long as the keeper lives; the kernel gives them back
/// whatever happens.
pub struct Lock {
    run: OwnedFd,
    _file: File,
    _state: OwnedFd,
}

impl Lock {
    /// Makes the directories where they are missing, and takes their locks.
    ///
    /// # Errors
    /// Another keeper has one (and which keeper), or a directory cannot be used.
    pub fn take(run_dir: &Path, state_dir: &Path) -> Result<Lock, String> {
        make_directory(run_dir, 0o755, "--run-dir")?;
        let run = ours_alone(run_dir, "--run-dir")?;
        let path = run_dir.join("keeper.lock");
        let says = |error: std::io::Error| format!("{}: {error}", path.display());
        // Whoever may open it could hold its lock, and keep us from ever starting again.
        let mode = if guard!("keeper-lock-mode") {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::from_raw_mode(0o644)
        };
        let mut file = openat(&run, "keeper.lock", OFlags::RDWR | OURS, mode)
            .and_then(|file| fchmod(&file, mode).map(|()| file))
            .map(File::from)
            .map_err(|errno| says(errno.into()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(taken(pid.trim(), run_dir));
            }
            Err(TryLockError::Error(error)) => return Err(says(error)),
        }
        file.set_len(0)
            .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()))
            .map_err(says)?;
        Ok(Lock {
            run,
            _file: file,
            _state: take_state(state_dir)?,
        })
    }

    /// From here on, standard output and error go to `log` in the run directory, whose
    /// predecessor is kept as `log.old`: nobody waits at the end of a pipe for us.
    ///
    /// # Errors
    /// What the system says.
    pub fn log(&self) -> Result<(), String> {
        let says = |errno: Errno| format!("log in the run directory: {errno}");
        match renameat(&self.run, "log", &self.run, "log.old") {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(says(errno)),
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::EXCL | OURS;
        let log = openat(&self.run, "log", flags, Mode::RUSR | Mode::WUSR).map_err(says)?;
        rustix::stdio::dup2_stdout(&log)
            .and_then(|()| rustix::stdio::dup2_stderr(&log))
            .map_err(says)
    }
}

impl Lock {
    /// Keeps the log small: its folder is in memory, and shared. A copy is its `log.old`,
    /// and it begins again in place, for the supervisor writes to the same file.
    pub fn trim_log(&self) {
        let log = rustix::stdio::stderr();
        if !fstat(log).is_ok_and(|status| status.st_size > MOST_LOG && guard!("keeper-log-size")) {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::TRUNC | OURS;
        let from = openat(&self.run, "log", OFlags::RDONLY | OURS, Mode::empty());
        let to = openat(&self.run, "log.old", flags, Mode::RUSR | Mode::WUSR);
        if let (Ok(from), Ok(to)) = (from, to) {
            // Where there is no room for both, the new one is the one to have.
            let _ = std::io::copy(&mut File::from(from), &mut File::from(to));
        }
        let _ = rustix::fs::ftruncate(log, 0);
    }
}

/// Bytes of a log, then it becomes the old one.
const MOST_LOG: i64 = 1 << 20;

/// How a file of ours is opened: made where it is missing, and no link followed.
const OURS: OFlags = OFlags::CREATE
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// Locks the state directory itself: what is in it becomes the controller's, which
/// may not decide who else runs on it.
fn take_state(state_dir: &Path) -> Result<OwnedFd, String> {
    make_directory(state_dir, 0o700, "--state-dir")?;
    let place = state_dir.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        open(state_dir, flags, Mode::empty()).map_err(|errno| format!("{place}: {errno}"))?;
    // Else each controller would be of no use, and end, for ever. A full disk is another thing: it may have room again.
    let writes = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    if let Err(errno) = accessat(&directory, c".", writes, AtFlags::empty())
        && guard!("keeper-state-write")
    {
        return Err(format!(
            "{place} cannot be written ({errno}): have it mounted for writing and be this user's, or give \
             another --state-dir"
        ));
    }
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(Errno::WOULDBLOCK) if guard!("keeper-state-lock") => {
            let holder = holder(&directory).unwrap_or_else(|| "unknown".to_owned());
            Err(taken(&holder, state_dir))
        }
        Err(Errno::WOULDBLOCK) => Ok(directory),
        Err(errno) => Err(format!("{place}: cannot be locked: {errno}")),
    }
}

fn taken(pid: &str, directory: &Path) -> String {
    format!(
        "another Bulkhead (pid {pid}) runs in {}: stop that one, or give this one its \
         own --run-dir and --state-dir",
        directory.display()
    )
}

/// The process that has the lock on this, as the kernel's list of locks has it:
/// `1: FLOCK  ADVISORY  WRITE 733 fe:00:15 0 EOF`.
fn holder(of: impl AsFd) -> Option<String> {
    let inode = format!(":{}", fstat(of).ok()?.st_ino);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5)?.ends_with(&inode))
            .then(|| words.get(4).map(|&pid| pid.to_owned()))?
    })
}

/// The run directory, opened: nobody but root and our own user may change what is in
/// it, for they could put a link, or their own socket, where ours belongs. Nor may they
/// put another directory in its place.
fn ours_alone(directory: &Path, option: &str) -> Result<OwnedFd, String> {
    let place = directory.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(directory, flags, Mode::empty())
        .map_err(|errno| format!("{place}: {errno}; it must be a directory, not a link to one"))?;
    let status = fstat(&opened).map_err(|errno| format!("{place}: {errno}"))?;
    let own = rustix::process::geteuid().as_raw();
    if guard!("keeper-run-owner") && status.st_uid != 0 && status.st_uid != own {
        return Err(format!(
            "{place} belongs to uid {}, who could change what is in it: give a {option} that \
             belongs to root or to the user who starts this",
            status.st_uid
        ));
    }
    if guard!("keeper-run-mode") && status.st_mode & 0o022 != 0 {
        return Err(format!(
            "{place} can be written by others than its owner (mode {:o}): `chmod go-w {place}`, \
             or give another {option}",
            status.st_mode & 0o7777
        ));
    }
    let real = fs::canonicalize(directory).map_err(|error| format!("{place}: {error}"))?;
    for above in real.ancestors().skip(1) {
        let status = stat(above).map_err(|errno| format!("{}: {errno}", above.display()))?;
        // In a user namespace root has no number of its own, and shows as the one below.
        let trusted = [0, own, NUMBERLESS].contains(&status.st_uid);
        // In a sticky directory only the owner of an entry may rename it.
        let open_to_others = status.st_mode & 0o022 != 0 && status.st_mode & 0o1000 == 0;
        if guard!("keeper-run-above") && (!trusted || open_to_others) {
            return Err(format!(
                "{place} could be replaced by others, who may write in {} (uid {}, mode {:o}): \
                 give another {option}",
                above.display(),
                status.st_uid,
                status.st_mode & 0o7777
            ));
        }
    }
    Ok(opened)
}

/// The kernel's stand-in for users without a number in our namespace.
const NUMBERLESS: u32 = 65534;

/// Makes a directory and those above it.
fn make_directory(path: &Path, mode: u32, word: &str) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| {
            format!(
                "{} cannot be made a directory ({error}): give another {word}",
                path.display()
            )
        })
}
