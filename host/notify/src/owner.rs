//! Whose a user namespace is, and which threads have their descriptors in common.
#![expect(
    unsafe_code,
    reason = "requests of ioctl_nsfs(2) and of a pidfd, of which one writes a number and two make a descriptor, and kcmp(2), which touches no memory, have no safe form"
)]

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// ioctl_nsfs(2): `_IO(0xb7, 2)` and `_IO(0xb7, 4)`.
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
/// include/uapi/linux/pidfd.h: `_IO(0xff, 9)`, since Linux 6.11.
const PIDFD_GET_USER_NAMESPACE: libc::c_ulong = 0xff09;
/// User namespaces are at most so deep in one another (user_namespaces(7)).
const DEEPEST: usize = 32;

/// The user namespace of a process, asked of its pidfd, which never waits for it: what /proc says of
/// one that is executing another program, for files of its own choice, does. Before
/// Linux 6.11 it is what /proc says.
#[must_use]
pub fn user_namespace(process: u32) -> Option<OwnedFd> {
    // One whose first thread is gone executes nothing.
    user_namespace_at_once(process).unwrap_or_else(|| {
        let file = std::fs::File::open(format!("/proc/{process}/ns/user"));
        file.ok().map(OwnedFd::from)
    })
}

/// The same, where that does not wait. `None`: only /proc says it, if anybody does.
#[must_use]
pub fn user_namespace_at_once(process: u32) -> Option<Option<OwnedFd>> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return Some(None);
    };
    // SAFETY: it has no argument.
    let fd = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0) };
    match fd {
        // SAFETY: the kernel made it for this call, and nobody else knows of it.
        fd if fd >= 0 => Some(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ if matches!(last(), Errno::NOTTY | Errno::INVAL | Errno::SRCH) => None,
        _ => Some(None),
    }
}

/// Whether a user namespace, or one that it is in, was made by who has this uid here.
#[must_use]
pub fn is_within(namespace: OwnedFd, uid: u32) -> bool {
    owners(namespace).any(|owner| owner == uid)
}

/// Who made a user namespace, and those that it is in, as uids here. Bound: as deep as they may be.
pub fn owners(namespace: OwnedFd) -> impl Iterator<Item = u32> {
    let parents = |of: &OwnedFd| parent(of.as_fd()).ok();
    let all = std::iter::successors(Some(namespace), parents).take(DEEPEST + 1);
    all.filter_map(|namespace| owner(namespace.as_fd()).ok())
}

fn owner(namespace: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: of a user namespace it writes one uid; of any other file it fails, as it does on none.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    match done {
        0 => Ok(uid),
        _ => Err(last()),
    }
}

fn parent(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: it has no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    match fd {
        // SAFETY: the kernel made it for this call, and nobody else knows of it.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last()),
    }
}

/// Whether two threads have one table of descriptors. `None`: the kernel does not say, or one of them
/// is gone.
#[must_use]
pub fn share_descriptors(one: u32, other: u32) -> Option<bool> {
    const KCMP_FILES: libc::c_long = 2;
    let [one, other] = [one, other].map(libc::c_long::from);
    // SAFETY: it compares what two threads have, and has no other argument.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) };
    (order >= 0).then_some(order == 0)
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn threads_have_their_descriptors_in_common_and_processes_do_not() {
        let own = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let other = rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned();
                share_descriptors(own, other)
            });
            other.join().unwrap()
        });
        // Where the kernel does not say each thread is looked at.
        assert_ne!(other, Some(false));
        assert_ne!(share_descriptors(own, 1), Some(true));
        assert_eq!(share_descriptors(own, u32::MAX), None);
    }

    #[test]
    fn a_namespace_is_of_who_made_it_and_of_who_made_the_one_around_it() {
        let own = || OwnedFd::from(File::open("/proc/self/ns/user").unwrap());
        let me = rustix::process::geteuid().as_raw();
        // The first one is root's.
        assert!(!is_within(own(), 54_321));
        // One in one that I make: its own maker has no other number here.
        let mut child = Command::new("unshare")
            .args([
                "-Ur",
                "unshare",
                "-Ur",
                "sh",
                "-c",
                "echo in; exec sleep 60",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let file = File::open(format!("/proc/{}/ns/user", child.id()));
        let inner = OwnedFd::from(file.unwrap());
        assert!(is_within(inner.try_clone().unwrap(), me));
        assert!(is_within(user_namespace(child.id()).unwrap(), me));
        assert!(!is_within(
            user_namespace(std::process::id()).unwrap(),
            54_321
        ));
        assert!(!is_within(inner, 54_321));
        // What is no namespace is nobody's.
        assert!(!is_within(File::open("/dev/null").unwrap().into(), me));
        let _ = child.kill();
        let _ = child.wait();
    }
}
