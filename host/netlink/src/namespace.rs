//! Network namespaces, by name as `ip netns` has them or by path.
#![expect(
    unsafe_code,
    reason = "unshare can take away what other code relies on; only the network namespace is touched"
)]

use guard::guard;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Where named namespaces are.
pub const DIRECTORY: &str = "/run/netns";

/// The namespace of the calling thread (the process' own link may be another thread's).
const OWN: &str = "/proc/thread-self/ns/net";

/// What went wrong with a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Not a name: empty, too long, or with a `/`. The spec's fault.
    #[error("{0:?} cannot be a network namespace's name")]
    Name(String),
    /// There is none, or the path is not a network namespace. The spec's fault.
    #[error("there is no network namespace at {0}")]
    Missing(PathBuf),
    /// The host's own: whatever were done there would be done to the host. The spec's
    /// fault.
    #[error("{0} is the host's own network namespace")]
    Host(PathBuf),
    /// There is one of this name already.
    #[error("the network namespace {0} exists already")]
    Exists(PathBuf),
    /// The system refused.
    #[error("cannot {what} {path}: {errno}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Makes a namespace with a name, as `ip netns add` does; it stays until
/// [`delete_named`]. Its loopback is down. For the time of the call the calling
/// thread is in it.
///
/// # Errors
/// [`NamespaceError`]: a name that is none or is taken (the spec's fault), or the kernel
/// refuses (the host's).
pub fn create_named(name: &str) -> Result<OwnedFd, NamespaceError> {
    let path = path_of(name)?;
    prepare_directory()?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(_) => {}
        Err(Errno::EXIST) => return Err(NamespaceError::Exists(path)),
        Err(errno) => return Err(refused("make", &path, errno)),
    }
    let made = make_at(&path);
    if made.is_err() {
        let _ = rustix::fs::unlink(&path);
    }
    made
}

/// Makes a namespace without a name, which nobody enters who does not have this
/// descriptor. It goes with its last descriptor, socket and process. For the time of the
/// call the calling thread is in it.
///
/// # Errors
/// [`NamespaceError`]: the kernel refuses (the host's fault).
pub fn create() -> Result<OwnedFd, NamespaceError> {
    let back = Return::here()?;
    // SAFETY: as in `make_at`.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| refused("make a network namespace beside", Path::new(OWN), errno))?;
    let made = open_current();
    drop(back);
    made
}

fn make_at(path: &Path) -> Result<OwnedFd, NamespaceError> {
    let back = Return::here()?;
    // SAFETY: NEWNET alone: descriptors, memory and working directory stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| refused("make a network namespace for", path, errno))?;
    let bound = rustix::mount::mount_bind(OWN, path)
        .map_err(|errno| refused("bind a network namespace to", path, errno));
    drop(back);
    bound?;
    open_path(path)
}

/// Opens a namespace by its name under [`DIRECTORY`] or an absolute path (such as
/// `/proc/PID/ns/net`). The caller's own, the host's, is refused.
///
/// # Errors
/// [`NamespaceError`]: there is none, or it is the host's own (the spec's fault), or it may
/// not be opened.
pub fn open(name_or_path: &str) -> Result<OwnedFd, NamespaceError> {
    let path = place_of(name_or_path)?;
    let namespace = open_path(&path)?;
    let own = open_current()?;
    if guard!("namespace-host") && identity(&namespace) == identity(&own) {
        return Err(NamespaceError::Host(path));
    }
    Ok(namespace)
}

/// Whether this namespace is what the name or path leads to.
pub fn is_at(namespace: BorrowedFd<'_>, name_or_path: &str) -> bool {
    let there = place_of(name_or_path)
        .ok()
        .and_then(|path| rustix::fs::stat(path).ok());
    let there = there.map(|stat| (stat.st_dev, stat.st_ino));
    there.is_some() && there == identity(namespace)
}

/// Opens the calling thread's own namespace.
///
/// # Errors
/// [`NamespaceError`]: the host's fault: /proc is missing, or descriptors ran out.
pub fn open_current() -> Result<OwnedFd, NamespaceError> {
    open_path(Path::new(OWN))
}

fn place_of(name_or_path: &str) -> Result<PathBuf, NamespaceError> {
    if name_or_path.starts_with('/') {
        Ok(name_or_path.into())
    } else {
        path_of(name_or_path)
    }
}

fn identity(namespace: impl AsFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(namespace).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

fn open_path(path: &Path) -> Result<OwnedFd, NamespaceError> {
    // Opening some files does something (a device, a pipe): looked at first, by a
    // descriptor that does nothing, and then that very file is opened.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => NamespaceError::Missing(path.to_owned()),
        errno => refused("open", path, errno),
    })?;
    // A namespace lies on nsfs; a name left over by a reboot is an empty file.
    let on = rustix::fs::fstatfs(&found).map_err(|errno| refused("look at", path, errno))?;
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    if guard!("namespace-nsfs") && on.f_type as u64 != NSFS_MAGIC {
        return Err(NamespaceError::Missing(path.to_owned()));
    }
    let itself = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(itself, flags, Mode::empty()).map_err(|errno| refused("open", path, errno))
}

/// Removes a named namespace; what is in it goes with its last process and
/// descriptor. No error if there is none.
///
/// # Errors
/// [`NamespaceError`]: a name that is none, or the kernel refuses.
pub fn delete_named(name: &str) -> Result<(), NamespaceError> {
    let path = path_of(name)?;
    match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
        // EINVAL: an empty file that nothing is mounted on.
        Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
        Err(errno) => return Err(refused("unmount", &path, errno)),
    }
    match rustix::fs::unlink(&path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(refused("remove", &path, errno)),
    }
}

/// Runs `work` with the calling thread in another network namespace, then goes
/// back, also when `work` panics. If the way back fails the process aborts: it
/// would go on in a tenant's namespace otherwise.
///
/// # Errors
/// [`NamespaceError`]: the namespace was not entered, and nothing was done.
pub fn within<T>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T) -> Result<T, NamespaceError> {
    let _back = Return::here()?;
    enter(namespace).map_err(|errno| refused("enter", Path::new("the namespace"), errno))?;
    Ok(work())
}

/// Goes back on drop.
struct Return {
    home: OwnedFd,
}

impl Return {
    fn here() -> Result<Return, NamespaceError> {
        open_current().map(|home| Return { home })
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        if enter(self.home.as_fd()).is_err() {
            std::process::abort();
        }
    }
}

fn enter(namespace: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
}

fn path_of(name: &str) -> Result<PathBuf, NamespaceError> {
    let legal = !name.is_empty()
        && name.len() <= 255
        && !matches!(name, "." | "..")
        && !name.contains(['/', '\0']);
    if !legal {
        return Err(NamespaceError::Name(name.to_owned()));
    }
    Ok(Path::new(DIRECTORY).join(name))
}

/// Makes the directory a shared mount, as `ip netns` does, so that a namespace
/// made here is seen, and can be removed, in other mount namespaces too.
///
/// # Errors
/// [`NamespaceError`]: the host refuses the directory or its mount.
pub fn prepare_directory() -> Result<(), NamespaceError> {
    let path = Path::new(DIRECTORY);
    let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
    match rustix::fs::mkdir(path, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(refused("make", path, errno)),
    }
    let share = || {
        let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
        rustix::mount::mount_change(path, flags)
    };
    match share() {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => rustix::mount::mount_bind_recursive(path, path)
            .and_then(|()| share())
            .map_err(|errno| refused("share", path, errno)),
        Err(errno) => Err(refused("share", path, errno)),
    }
}

fn refused(what: &'static str, path: &Path, errno: Errno) -> NamespaceError {
    NamespaceError::Refused {
        what,
        path: path.to_owned(),
        errno,
    }
}

impl From<NamespaceError> for io::Error {
    fn from(error: NamespaceError) -> io::Error {
        io::Error::other(error)
    }
}
