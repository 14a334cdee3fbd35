//! What circuits need of this kernel: their operator, and who starts programs.

use super::{Feature, Found, in_child_bits, yes_if};
use crate::kernel;
use std::fs;

const PASSRIGHTS: u32 = 1;
const LISTENER: u32 = 1 << 1;
const INSTALLS: u32 = 1 << 2;
const GETS: u32 = 1 << 3;
const READS: u32 = 1 << 4;
const LISTS: u32 = 1 << 5;

/// Fewer programs of a compartment than this at a time are worth a word.
const PROGRAMS: u64 = 4096;

/// All of them. None makes Bulkhead refuse to run: endpoints with packets need none.
pub(super) fn circuits() -> Vec<Feature> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
    let seen = in_child_bits(flags, bits).unwrap_or(0);
    let has = |bit: u32| yes_if(seen & bit != 0);
    let (traced, trace) = tracing(sysctl("kernel/yama/ptrace_scope"), seen & READS != 0);
    let (named, names) = programs(
        sysctl("user/max_user_namespaces"),
        sysctl("user/max_net_namespaces"),
    );
    let (roomy, room) = room(sysctl("net/core/wmem_max"));
    let abi = kernel::landlock_abi();
    let feature = |name, kernel, used_by, (found, detail): (Found, String), lost| Feature {
        name,
        kernel,
        used_by,
        found,
        detail,
        lost,
        required: false,
    };
    let plain = |found| (found, String::new());
    vec![
        feature(
            "seccomp user notification",
            "5.0; 5.9 to put descriptors",
            "circuits: the operator answers programs' socket calls",
            match (seen & LISTENER != 0, seen & INSTALLS != 0) {
                (true, true) => plain(Found::Yes),
                (true, false) => (Found::No, "no SECCOMP_IOCTL_NOTIF_ADDFD".into()),
                (false, _) => (
                    Found::No,
                    "no listener: is this inside of another's container?".into(),
                ),
            },
            "no circuits: attach endpoints by veth, tap or fifo, or take a newer kernel",
        ),
        feature(
            "sockets that refuse descriptors (SO_PASSRIGHTS)",
            "6.16",
            "circuits: no descriptor passes from one endpoint to another",
            plain(has(PASSRIGHTS)),
            "no circuits: attach endpoints by veth, tap or fifo, or take Linux 6.16",
        ),
        feature(
            "pidfd_getfd",
            "5.6",
            "circuits: the operator acts on a program's own socket",
            plain(has(GETS)),
            "no circuits: attach endpoints by veth, tap or fifo, or take a newer kernel",
        ),
        feature(
            "reading programs by owning their user namespace",
            "3.2; CONFIG_CROSS_MEMORY_ATTACH",
            "circuits: an operator without capabilities reads what a call points to",
            (traced, trace),
            "no call of a program's is answered: set kernel.yama.ptrace_scope to 2 or less where the \
             host boots (3 stays until then)",
        ),
        feature(
            "user namespaces for programs",
            "3.8",
            "circuits: one for each program and container, of its operator's user",
            (named, names),
            "fewer programs with circuits, or none: raise the sysctls user.max_user_namespaces and \
             user.max_net_namespaces",
        ),
        feature(
            "room for what nobody has read",
            "",
            "circuits: programs that write megabytes before they read",
            (roomy, room),
            "who writes more than that to a socket before anything is read waits for ever, where TCP would go on: set the \
             sysctl net.core.wmem_max to 2097152 or more (packaging/sysctl)",
        ),
        feature(
            "Landlock scope of abstract names",
            "6.12",
            "circuits: no program uses a circuit's name that it has seen",
            (yes_if(abi >= 6), format!("ABI {abi}")),
            "no program with circuits is started: take Linux 6.12, with landlock among lsm= at boot",
        ),
        feature(
            "sock_diag of AF_UNIX",
            "3.3; CONFIG_UNIX_DIAG",
            "circuits: which sockets live, when a port is taken or a limit reached",
            plain(has(LISTS)),
            "sockets that programs closed go on to count against their endpoints: load the module unix_diag",
        ),
    ]
}

/// Of a sysctl, if there is one.
fn sysctl(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Yama lets an owner read up to 2; at 3 nobody reads.
fn tracing(yama: Option<u64>, reads: bool) -> (Found, String) {
    match (yama, reads) {
        (Some(scope @ 3..), _) => (Found::No, format!("kernel.yama.ptrace_scope is {scope}")),
        (_, false) => (Found::No, "process_vm_readv is refused".into()),
        (Some(scope), true) => (Found::Yes, format!("kernel.yama.ptrace_scope is {scope}")),
        (None, true) => (Found::Yes, String::new()),
    }
}

/// As many programs as there may be namespaces of a user's.
fn programs(users: Option<u64>, networks: Option<u64>) -> (Found, String) {
    let most = users.into_iter().chain(networks).min();
    let found = match most {
        Some(0) => Found::No,
        Some(most) if most < PROGRAMS => Found::Partly,
        _ => Found::Yes,
    };
    (
        found,
        most.map_or_else(String::new, |most| format!("{most} at a time")),
    )
}

/// Of a stream socket, whose operator asks for 2 MiB and has twice that.
fn room(most: Option<u64>) -> (Found, String) {
    const ASKED: u64 = 2 << 20;
    let has = 2 * most.unwrap_or(ASKED).min(ASKED);
    let found = if has < 2 * ASKED {
        Found::Partly
    } else {
        Found::Yes
    };
    (found, format!("{} KiB a socket", has >> 10))
}

/// In a child that is alone in new user and network namespaces: what works there. Allocates
/// nothing.
fn bits() -> u32 {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let mut seen = 0;
    // SAFETY: descriptors made here, numbers, and values of our own that live on; the child exits
    // next, so nothing needs closing.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
        let off: libc::c_int = 0;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        let value = (&raw const off).cast();
        if libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, value, length) == 0 {
            seen |= PASSRIGHTS;
        }
        let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0_u32);
        if own >= 0 && libc::syscall(libc::SYS_pidfd_getfd, own, socket, 0_u32) >= 0 {
            seen |= GETS;
        }
        let (from, mut to) = (1_u8, 0_u8);
        let remote = libc::iovec {
            iov_base: (&raw const from).cast_mut().cast(),
            iov_len: 1,
        };
        let local = libc::iovec {
            iov_base: (&raw mut to).cast(),
            iov_len: 1,
        };
        if libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == 1
        {
            seen |= READS;
        }
        if lists() {
            seen |= LISTS;
        }
        // Last, for it stays: a filter that lets everything pass.
        let mut pass = libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut pass,
        };
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        ) as libc::c_int;
        if listener >= 0 {
            seen |= LISTENER;
            let request = libc::seccomp_notif_addfd {
                id: 0,
                flags: 0,
                srcfd: socket.cast_unsigned(),
                newfd: 0,
                newfd_flags: 0,
            };
            // There is no such call: a kernel that knows the request says so.
            let put = libc::ioctl(
                listener,
                libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                &raw const request,
            );
            if put < 0 && *libc::__errno_location() == libc::ENOENT {
                seen |= INSTALLS;
            }
        }
    }
    seen
}

/// Whether the kernel lists AF_UNIX sockets (unix_diag): its answer to a request for all.
fn lists() -> bool {
    const BY_FAMILY: u16 = 20;
    const REQUEST_ALL: u16 = 0x301;
    const LENGTH: usize = 40;
    // struct nlmsghdr: length, (type, flags), sequence, port; struct unix_diag_req: (family,
    // protocol, padding), states, inode, what to show, cookie.
    let request: [u32; LENGTH / 4] = [
        LENGTH as u32,
        (BY_FAMILY as u32) | (REQUEST_ALL as u32) << 16,
        0,
        0,
        libc::AF_UNIX as u32,
        u32::MAX,
        0,
        0,
        u32::MAX,
        u32::MAX,
    ];
    let mut answer = [0_u32; 1024];
    // SAFETY: the kernel reads the request and writes no more than the answer has room for.
    unsafe {
        let socket = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG);
        libc::send(socket, request.as_ptr().cast(), LENGTH, 0) == LENGTH as isize
            && libc::recv(socket, answer.as_mut_ptr().cast(), size_of_val(&answer), 0) >= 20
            // NLMSG_ERROR says that nobody lists them.
            && answer[1] as u16 != libc::NLMSG_ERROR as u16
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, programs, room, tracing};

    #[test]
    fn what_the_host_set_is_told_with_its_cost() {
        let little = (Found::Partly, "416 KiB a socket".to_owned());
        assert_eq!(room(Some(212_992)), little);
        assert_eq!(room(Some(4 << 20)).1, "4096 KiB a socket");
        assert_eq!(
            (room(Some(2 << 20)).0, room(None).0),
            (Found::Yes, Found::Yes)
        );
        assert_eq!(tracing(Some(1), true).0, Found::Yes);
        assert_eq!(tracing(Some(2), true).0, Found::Yes);
        let (found, detail) = tracing(Some(3), true);
        assert_eq!(
            (found, detail.as_str()),
            (Found::No, "kernel.yama.ptrace_scope is 3")
        );
        assert_eq!(tracing(None, false).0, Found::No);
        assert_eq!(programs(Some(0), Some(9000)).0, Found::No);
        assert_eq!(
            programs(Some(9000), Some(100)),
            (Found::Partly, "100 at a time".into())
        );
        assert_eq!(programs(None, None).0, Found::Yes);
    }
}
