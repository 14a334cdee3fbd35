//! The system calls that rustix does not offer as safe functions, each wrapped
//! once. Nothing here decides anything.
#![expect(
    unsafe_code,
    reason = "prctl, capset, clone3, mount and friends have no safe wrapper"
)]

use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) fn errno() -> Errno {
    let number = std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}

fn checked(result: i64) -> Result<i64> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// prctl(2) with number arguments only.
pub(crate) fn prctl(option: i32, a: u64, b: u64, c: u64, d: u64) -> Result<i32> {
    // SAFETY: the callers pass only options whose arguments are numbers, so the
    // kernel reads and writes no memory of ours.
    checked(unsafe { libc::prctl(option, a, b, c, d) }.into()).map(|value| value as i32)
}

/// PR_SCHED_CORE create: a cookie of its own for this thread group.
pub(crate) fn core_scheduling_create() -> Result<()> {
    const CREATE: u64 = 1;
    const THREAD_GROUP: u64 = 1;
    prctl(libc::PR_SCHED_CORE, CREATE, 0, THREAD_GROUP, 0).map(drop)
}

/// PR_SCHED_CORE get of this thread: 0 = none.
pub(crate) fn core_scheduling_cookie() -> Result<u64> {
    const GET: u64 = 0;
    let mut cookie = 0_u64;
    // SAFETY: the kernel writes one u64 to `cookie`, which lives on.
    let result = unsafe { libc::prctl(libc::PR_SCHED_CORE, GET, 0_u64, 0_u64, &raw mut cookie) };
    checked(result.into()).map(|_| cookie)
}

/// The three capability sets: effective, permitted, inheritable (capabilities(7)).
pub(crate) type Capabilities = [u64; 3];

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// capget(2) of this thread.
pub(crate) fn capabilities() -> Result<Capabilities> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: version 3 makes the kernel write exactly two data records.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let [low, high] = data;
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok([
        join(low.effective, high.effective),
        join(low.permitted, high.permitted),
        join(low.inheritable, high.inheritable),
    ])
}

/// capset(2) of this thread to nothing.
pub(crate) fn drop_capabilities() -> Result<()> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let data = [CapabilityData::default(); 2];
    // SAFETY: version 3 makes the kernel read exactly two data records.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) }).map(drop)
}

/// setgroups, setresgid, setresuid of this thread alone, in that order. A refusal
/// of the first is left to the check that follows ("deny" in a user namespace).
pub(crate) fn become_identity(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: plain numbers; a length of zero reads no memory.
    unsafe {
        libc::syscall(
            libc::SYS_setgroups,
            0_usize,
            core::ptr::null::<libc::gid_t>(),
        );
        checked(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        checked(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// mount(2).
pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(core::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a C string that outlives the call.
    let result = unsafe {
        libc::mount(
            pointer(source),
            target.as_ptr(),
            pointer(kind),
            flags,
            pointer(data).cast(),
        )
    };
    checked(result.into()).map(drop)
}

/// pivot_root(".", "."): the working directory becomes the root, the old root is
/// mounted on top of it (pivot_root(2), notes).
pub(crate) fn pivot_to_working_directory() -> Result<()> {
    // SAFETY: both arguments are C strings.
    checked(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}

/// mount_setattr(2) of a mount and all below it: read-only, no set-user-id, no devices.
/// From Linux 5.12, else `ENOSYS`.
pub(crate) fn only_read_below(target: &CStr) -> Result<()> {
    const RDONLY_NOSUID_NODEV: u64 = 1 | 2 | 4;
    const RECURSIVE: libc::c_uint = 0x8000;
    // struct mount_attr: what to set, to clear, propagation, a user namespace.
    let attributes: [u64; 4] = [RDONLY_NOSUID_NODEV, 0, 0, 0];
    // SAFETY: a C string, and so many bytes that the kernel reads.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            RECURSIVE,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    })
    .map(drop)
}

/// umount2(2).
pub(crate) fn unmount(target: &CStr, flags: i32) -> Result<()> {
    // SAFETY: a C string and a number.
    checked(unsafe { libc::umount2(target.as_ptr(), flags) }.into()).map(drop)
}

/// setrlimit(2) of this process, soft and hard.
pub(crate) fn limit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the kernel reads one rlimit.
    checked(unsafe { libc::setrlimit(resource, &raw const limit) }.into()).map(drop)
}

/// getrlimit(2) of this process: soft, hard.
pub(crate) fn limits(resource: u32) -> Result<(u64, u64)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit.
    checked(unsafe { libc::getrlimit(resource, &raw mut limit) }.into())?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// close_range(2) over an empty range: whether the call exists.
pub(crate) fn has_close_range() -> bool {
    const CLOEXEC: u32 = 4;
    // SAFETY: marks at most descriptor u32::MAX, which cannot be open.
    checked(unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, CLOEXEC) }).is_ok()
}

/// The Landlock ABI version, 0 = none.
pub(crate) fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: a null attribute of size zero with the version flag reads nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            core::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    result.max(0) as i32
}

/// Whether the kernel knows this seccomp action.
pub(crate) fn has_seccomp_action(action: u32) -> bool {
    // SAFETY: the kernel reads one u32.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0_u32,
            &raw const action,
        )
    };
    result == 0
}

/// clone3(2) like fork. In the parent: `Some(pid)` and the pidfd; in the child: `None`.
///
/// # Safety
/// The child of a process with threads may hold locks whose owners do not exist in
/// it: until it executes or exits it must not allocate nor take locks.
pub(crate) unsafe fn fork_into(namespaces: u64) -> Result<Option<(u32, OwnedFd)>> {
    let mut pidfd = -1_i32;
    // SAFETY: all zeros is a valid clone_args.
    let mut arguments: libc::clone_args = unsafe { core::mem::zeroed() };
    arguments.flags = namespaces | libc::CLONE_PIDFD as u64;
    arguments.pidfd = (&raw mut pidfd).addr() as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the child has its own copy of everything; the kernel
    // reads `arguments` and writes `pidfd`, which live on in both.
    let result = checked(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    })?;
    if result == 0 {
        return Ok(None);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Some((result as u32, pidfd)))
}

/// The wait status of the process behind a pidfd, once its parent has reaped it
/// (PIDFD_GET_INFO, include/uapi/linux/pidfd.h). ENODATA: it was not; EINVAL or ENOTTY:
/// the kernel does not say (before Linux 6.15).
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Result<i32> {
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    /// The structure's first version.
    #[repr(C)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    // _IOWR(0xff, 11, Info): what is new in later versions is left out by size.
    const GET_INFO: libc::c_ulong = 0xc000_ff0b | (size_of::<Info>() as libc::c_ulong) << 16;
    let mut info = Info {
        mask: PIDFD_INFO_EXIT,
        cgroup: 0,
        ids: [0; 11],
        exit_code: 0,
    };
    // SAFETY: the kernel reads and writes one `Info`, whose size is in the request.
    checked(unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) }.into())?;
    match info.mask & PIDFD_INFO_EXIT {
        0 => Err(Errno::NODATA),
        _ => Ok(info.exit_code),
    }
}

/// unshare(2).
pub(crate) fn unshare(flags: i32) -> Result<()> {
    // SAFETY: none of the flags in use unshares the descriptor table, so every
    // descriptor keeps its meaning.
    checked(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// A descriptor by its fixed number (0 to 5), as `spawn` placed it.
pub(crate) fn borrow(fd: u32) -> BorrowedFd<'static> {
    // SAFETY: at the start of `main` nobody closes descriptors; were it not open,
    // the kernel would say EBADF and nothing else.
    unsafe { BorrowedFd::borrow_raw(fd.cast_signed()) }
}
