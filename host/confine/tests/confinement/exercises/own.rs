//! What operators, proxies and switches alone may do, or do otherwise than others.

use super::*;

/// A socket as programs get them.
fn unix() -> c_long {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    call!(SYS_socket, libc::AF_UNIX, kind, 0)
}

/// One that has a name of the kernel's choice and listens under it, and how long that is.
fn listening(name: &mut [u8; 128]) -> (c_long, libc::socklen_t) {
    let fd = unix();
    let family = libc::AF_UNIX as u16;
    call!(SYS_bind, fd, core::ptr::from_ref(&family), size_of::<u16>());
    call!(SYS_listen, fd, 1);
    let mut length = name.len() as libc::socklen_t;
    call!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut length);
    (fd, length)
}

/// What connecting to this process's own came to, and the end that was accepted.
fn connected() -> [c_long; 2] {
    let mut name = [0; 128];
    let (at, length) = listening(&mut name);
    let to = unix();
    let connected = call!(SYS_connect, to, name.as_ptr(), length);
    let accepted = call!(SYS_accept4, at, NONE, NONE, libc::SOCK_CLOEXEC);
    [connected, accepted]
}

/// Requests about notifications, of a descriptor at which there are none.
fn requests() -> i32 {
    [
        libc::SECCOMP_IOCTL_NOTIF_RECV,
        libc::SECCOMP_IOCTL_NOTIF_SEND,
        libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
        libc::SECCOMP_IOCTL_NOTIF_ADDFD,
        libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
    ]
    .into_iter()
    .map(|request| fails(call!(SYS_ioctl, CONTROL, request, memory()), libc::ENOTTY))
    .sum()
}

fn itself() -> c_long {
    let own = call!(SYS_getpid);
    call!(SYS_pidfd_open, own, libc::PIDFD_THREAD)
}

/// Bytes between two places of this process's own memory; how many got there wrong.
fn moved(number: c_long) -> i32 {
    let (mut local, mut remote) = (*b"local", *b"other");
    let own = call!(SYS_getpid);
    // SAFETY: the kernel copies between two arrays of this function.
    let moved = unsafe {
        libc::syscall(
            number,
            own,
            core::ptr::from_ref(&vector(&mut local)),
            1_u64,
            core::ptr::from_ref(&vector(&mut remote)),
            1_u64,
            0_u64,
        )
    };
    i32::from(moved != 5 || local != remote)
}

/// A descriptor in a set, and out of it.
fn joins_and_leaves() -> i32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let set = epoll();
    [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_DEL]
        .into_iter()
        .map(|what| ok(call!(SYS_epoll_ctl, set, what, CONTROL, &raw mut event)))
        .sum()
}

/// What an operator may do otherwise than others, or alone.
pub const OPERATOR: &[(&str, Exercise)] = &[
    ("epoll_ctl", joins_and_leaves),
    ("ioctl", requests),
    ("ftruncate", || ok(call!(SYS_ftruncate, memory_file(), 100))),
    ("fallocate", || {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        ok(call!(SYS_fallocate, memory_file(), punch, 0, PAGE))
    }),
    ("pidfd_open", || ok(itself())),
    ("pidfd_getfd", || {
        ok(call!(SYS_pidfd_getfd, itself(), CONTROL, 0))
    }),
    ("clone", || {
        match call!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
            // SAFETY: the child ends, and nothing else.
            0 => unsafe { libc::_exit(0) },
            child => ok(child),
        }
    }),
    ("close_range", || ok(call!(SYS_close_range, 99, 99, 0))),
    ("process_vm_readv", || moved(libc::SYS_process_vm_readv)),
    ("process_vm_writev", || moved(libc::SYS_process_vm_writev)),
    ("socket", || {
        const SOCK_DIAG: c_int = 4;
        let lists = call!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, SOCK_DIAG);
        ok(unix()) + ok(lists)
    }),
    ("bind", || i32::from(listening(&mut [0; 128]).1 <= 2)),
    ("listen", || ok(listening(&mut [0; 128]).0)),
    ("connect", || ok(connected()[0])),
    ("accept4", || ok(connected()[1])),
    ("prctl", raises_a_barrier),
    ("shutdown", || {
        ok(call!(SYS_shutdown, connected()[1], libc::SHUT_RDWR))
    }),
    ("setsockopt", || {
        let off: c_int = 0;
        ok(call!(
            SYS_setsockopt,
            unix(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            &raw const off,
            size_of::<c_int>()
        ))
    }),
];

/// A socket as a proxy makes them, of this family.
fn internet(family: c_int) -> c_long {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    call!(SYS_socket, family, kind, libc::IPPROTO_TCP)
}

/// It raises the barrier, which no other call than that one's may change; EPERM: it is up already.
fn raises_a_barrier() -> i32 {
    const BRANCHES: c_int = 1;
    let state = call!(SYS_prctl, libc::PR_GET_SPECULATION_CTRL, BRANCHES, 0, 0, 0);
    let raised = call!(SYS_prctl, libc::PR_SET_SPECULATION_CTRL, BRANCHES, 8, 0, 0);
    let can = state >= 0 && state & 1 != 0;
    ok(state.max(0)) + if can { ok(raised) } else { 0 }
}

/// What a switch may do otherwise than others.
pub const SWITCH: &[(&str, Exercise)] = &[("prctl", raises_a_barrier)];

/// What a proxy may do otherwise than others, or alone.
pub const PROXY: &[(&str, Exercise)] = &[
    ("prctl", raises_a_barrier),
    ("epoll_ctl", joins_and_leaves),
    ("socket", || {
        ok(internet(libc::AF_INET)) + ok(internet(libc::AF_INET6))
    }),
    ("bind", || {
        // SAFETY: all zero is an address: any, at any port.
        let mut any: libc::sockaddr_in = unsafe { core::mem::zeroed() };
        any.sin_family = libc::AF_INET as u16;
        let fd = internet(libc::AF_INET);
        ok(call!(SYS_bind, fd, &raw const any, size_of_val(&any)))
    }),
    ("listen", || {
        ok(call!(SYS_listen, internet(libc::AF_INET), 1))
    }),
    ("connect", || {
        let nowhere = call!(SYS_connect, internet(libc::AF_INET), NONE, 0);
        fails(nowhere, libc::EINVAL)
    }),
    ("accept4", || {
        let fd = internet(libc::AF_INET);
        let kind = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        fails(call!(SYS_accept4, fd, NONE, NONE, kind), libc::EINVAL)
    }),
    ("setsockopt", || {
        let on: c_int = 1;
        let set = |level: c_int, name: c_int| {
            let fd = internet(libc::AF_INET6);
            let length = size_of::<c_int>();
            ok(call!(
                SYS_setsockopt,
                fd,
                level,
                name,
                &raw const on,
                length
            ))
        };
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR)
            + set(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)
            + set(libc::IPPROTO_TCP, libc::TCP_NODELAY)
            + set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
    }),
    ("fcntl", || {
        let mut pipe = [0 as c_int; 2];
        let made = call!(SYS_pipe2, pipe.as_mut_ptr(), libc::O_CLOEXEC);
        let sized = call!(SYS_fcntl, pipe[0], libc::F_SETPIPE_SZ, 16_384);
        ok(made) + ok(sized)
    }),
    ("splice", || {
        let mut pipe = [0 as c_int; 2];
        let made = call!(SYS_pipe2, pipe.as_mut_ptr(), libc::O_NONBLOCK);
        let none = call!(SYS_splice, pipe[0], NONE, pipe[1], NONE, 1, 0);
        // A pipe into itself.
        ok(made) + fails(none, libc::EINVAL)
    }),
    ("shutdown", || {
        let one = internet(libc::AF_INET);
        fails(call!(SYS_shutdown, one, libc::SHUT_RDWR), libc::ENOTCONN)
    }),
];
