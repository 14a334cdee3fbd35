//! Memory files (memfds): made, allocated, sealed; read-only descriptors for the
//! far end.

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A zeroed memory file of so many bytes: allocated, mode 0600, not executable, and
/// sealed against shrinking, growing, executing and further sealing.
///
/// # Errors
/// What the operating system refused: descriptors, memory, an old kernel.
pub fn memory_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = create(name)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
    seal(&fd, SHAPE)?;
    Ok(fd)
}

/// The same without memory: what is touched is taken then, on the account of who touches
/// it. For memory that one process alone writes, by far not always all of it.
///
/// # Errors
/// As [`memory_file`].
pub fn sparse_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = create(name)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    seal(&fd, SHAPE)?;
    Ok(fd)
}

/// A second, read-only descriptor of a memory file, of a file description of its own.
/// With mode 0600 and another owner its holder cannot reopen it for writing.
///
/// # Errors
/// Of `open` on `/proc/self/fd`.
pub fn read_only(fd: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Whether a file's size can no longer be changed by anyone, so that a mapping of it
/// never faults: at least this many bytes, sealed against shrinking.
pub fn is_sealed_shape(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<bool> {
    let size = rustix::fs::fstat(fd)?.st_size;
    let seals = rustix::fs::fcntl_get_seals(fd)?;
    Ok(size >= 0 && size as u64 >= bytes as u64 && seals.contains(SealFlags::SHRINK))
}

pub(crate) const SHAPE: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

pub(crate) fn create(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag; `doctor` says what is lost.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    Ok(fd)
}

pub(crate) fn seal(fd: &OwnedFd, seals: SealFlags) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(fd, seals)?)
}
