//! Which system calls each profile keeps, and why. What is not here kills the
//! process. Every entry is exercised by `tests/confinement/exercises.rs`; a test
//! fails on an entry without an exercise: an unused rule does not stay.

use crate::enter::SOLVER_PROGRAM;
use crate::profile::Profile;

/// One system call that a profile keeps.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name (syscalls(2)).
    pub name: &'static str,
    /// Its number on x86_64.
    pub number: i64,
    /// Ways in which it may be called, one of which must fit; empty = any.
    pub forms: &'static [&'static [Condition]],
    /// What needs it.
    pub reason: &'static str,
}

/// `argument & mask == value`.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Which argument, from 0.
    pub argument: u8,
    /// Its width: the upper half of a 32-bit argument is not the kernel's business.
    pub width: Width,
    /// The bits looked at.
    pub mask: u64,
    /// What they must be.
    pub value: u64,
}

/// Bits of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// int, unsigned.
    Bits32,
    /// long, size_t, pointer.
    Bits64,
}

const fn is(argument: u8, value: i64) -> Condition {
    Condition {
        argument,
        width: Width::Bits32,
        mask: 0xffff_ffff,
        value: value.cast_unsigned(),
    }
}
const fn bits(argument: u8, mask: i64, value: i64) -> Condition {
    let (mask, value) = (mask.cast_unsigned(), value.cast_unsigned());
    Condition {
        argument,
        width: Width::Bits64,
        mask,
        value,
    }
}

macro_rules! entry {
    ($name:ident, $reason:literal) => { entry!($name, [], $reason) };
    ($name:ident, [$([$($condition:expr),+]),*], $reason:literal) => {{
        const FORMS: &[&[Condition]] = &[$(&[$($condition),+]),*];
        Entry {
            // Without its "SYS_".
            name: stringify!($name).split_at(4).1,
            number: libc::$name,
            forms: FORMS,
            reason: $reason,
        }
    }};
}
const EXEC: i64 = libc::PROT_EXEC as i64;
const WRITE_EXEC: i64 = (libc::PROT_WRITE | libc::PROT_EXEC) as i64;
/// ARCH_SET_FS (arch_prctl(2)).
const SET_FS: i64 = 0x1002;
/// What a thread is: everything shared.
const THREAD: i64 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as i64;
/// No namespace is made by the way.
const NAMESPACES: i64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as i64;
/// Pages are given back, the size stays.
const PUNCH: i64 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as i64;
const EMPTY_PATH: i64 = libc::AT_EMPTY_PATH as i64;

/// What any Rust program with a heap does, and how it ends.
const RUNTIME: &[Entry] = &[
    entry!(SYS_brk, "heap"),
    entry!(
        SYS_mmap,
        [[bits(2, EXEC, 0)]],
        "heap; rings, pages and images; never executable"
    ),
    entry!(SYS_munmap, "heap; a port, an image given back"),
    entry!(SYS_mremap, "heap: a vector that grows"),
    entry!(SYS_mprotect, [[bits(2, EXEC, 0)]], "heap; never executable"),
    entry!(SYS_madvise, "heap: pages given back"),
    entry!(SYS_getrandom, "seeds of hash maps; generations of channels"),
    entry!(
        SYS_clock_gettime,
        "time, where the vDSO has no clock to read"
    ),
    entry!(SYS_close, "a port, an image given back"),
    entry!(SYS_futex, "a lock or a once that two meet at"),
    entry!(SYS_rt_sigprocmask, "abort() after a panic"),
    entry!(
        SYS_rt_sigreturn,
        "return from a signal handler (stack overflow)"
    ),
    entry!(
        SYS_rt_sigaction,
        "the runtime's handler of a stack overflow puts the default back"
    ),
    entry!(SYS_sigaltstack, "end of a thread: its signal stack goes"),
    entry!(
        SYS_restart_syscall,
        "a wait resumed after a stop; the kernel makes this call"
    ),
    entry!(SYS_getpid, "abort() after a panic"),
    entry!(SYS_gettid, "abort() after a panic"),
    entry!(
        SYS_tgkill,
        [[is(2, libc::SIGABRT as i64)]],
        "abort() after a panic: a fault, not a trip"
    ),
    entry!(SYS_exit, "end of a thread"),
    entry!(SYS_exit_group, "the end"),
];

/// The control socket and what comes through it.
const CONTROL: &[Entry] = &[
    entry!(
        SYS_recvmsg,
        "messages and descriptors of the control socket; packet sockets"
    ),
    entry!(SYS_sendmsg, "answers on the control socket; packet sockets"),
    entry!(
        SYS_ppoll,
        "waiting for the control socket, doorbells and taps"
    ),
    entry!(
        SYS_fstat,
        "the size of a ring or an image before it is mapped"
    ),
    entry!(
        SYS_newfstatat,
        [[is(3, EMPTY_PATH)]],
        "fstat as glibc writes it: no path"
    ),
    entry!(
        SYS_statx,
        [[bits(2, EMPTY_PATH, EMPTY_PATH)]],
        "fstat as std writes it: no path"
    ),
    entry!(
        SYS_fcntl,
        [
            [is(1, libc::F_GETFD as i64)],
            [is(1, libc::F_GETFL as i64)],
            [is(1, libc::F_DUPFD_CLOEXEC as i64)],
            [is(1, libc::F_GET_SEALS as i64)]
        ],
        "is it open, does it block (not to change it: the description may be others' too), \
         a copy, and whether an image is sealed"
    ),
];

/// Waiting for many things.
const WAITING: &[Entry] = &[
    entry!(SYS_epoll_create1, "one set for doorbells, taps and control"),
    entry!(SYS_epoll_ctl, "a port joins or leaves the set"),
    entry!(SYS_epoll_wait, "sleep until work comes"),
    entry!(SYS_epoll_pwait, "the same, as std and mio write it"),
    entry!(SYS_poll, "the same, as libc writes it"),
    entry!(SYS_clock_nanosleep, "polling with a period"),
    entry!(
        SYS_sched_yield,
        "a core that is shared is given up between polls"
    ),
];

/// Moving bytes by descriptors that were handed over.
const PORTS: &[Entry] = &[
    entry!(SYS_read, "a doorbell's bytes"),
    entry!(SYS_write, "ring a doorbell; a panic's last words"),
    entry!(SYS_readv, "a frame and its offload header from a tap"),
    entry!(SYS_writev, "a frame and its offload header to a tap"),
];

/// Waits with a nanosecond timeout.
const PRECISE_WAITING: &[Entry] = &[entry!(
    SYS_epoll_pwait2,
    "sleep with a timeout shorter than a millisecond"
)];

/// A thread: of tokio's blocking pool, or one of several workers in a switch. A switch's limits
/// allow it none until the supervisor raises them for one that has workers.
const THREADS: &[Entry] = &[
    entry!(
        SYS_clone3,
        "a thread, as glibc asks first: its flags cannot be filtered, so a second filter \
         answers ENOSYS and glibc takes clone"
    ),
    entry!(
        SYS_clone,
        [[bits(0, THREAD | NAMESPACES, THREAD)]],
        "a thread, never a process"
    ),
    entry!(SYS_set_robust_list, "start of a thread"),
    entry!(SYS_rseq, "start of a thread"),
    entry!(
        SYS_sched_getaffinity,
        "start of a thread; how many cores there are"
    ),
];

/// What tokio's threads are called.
const NAMED: &[Entry] = &[entry!(
    SYS_prctl,
    [[is(0, libc::PR_SET_NAME as i64)]],
    "a thread's name"
)];

/// How workers of one switch speak with who speaks for them.
const WORKERS: &[Entry] = &[entry!(
    SYS_socketpair,
    [[is(0, libc::AF_UNIX as i64)]],
    "workers speak with who speaks for them, and wake each other"
)];

/// The API: an already listening unix socket, its connections, the event loop.
const SERVING: &[Entry] = &[
    entry!(SYS_accept4, "a client of the API"),
    entry!(SYS_recvfrom, "a request"),
    entry!(SYS_sendto, "an answer"),
    entry!(
        SYS_getsockopt,
        [
            [
                is(1, libc::SOL_SOCKET as i64),
                is(2, libc::SO_PEERCRED as i64)
            ],
            [is(1, libc::SOL_SOCKET as i64), is(2, libc::SO_ERROR as i64)],
            [is(1, libc::SOL_SOCKET as i64), is(2, libc::SO_TYPE as i64)]
        ],
        "who the client is; whether the socket failed; what kind it is"
    ),
    entry!(
        SYS_getsockname,
        "std and tokio look at a socket's own address"
    ),
    entry!(SYS_getpeername, "std and tokio look at a socket's peer"),
    entry!(SYS_shutdown, "end of a connection"),
    entry!(
        SYS_ioctl,
        [[is(1, libc::FIONBIO as i64)]],
        "std's set_nonblocking on a socket"
    ),
    entry!(SYS_eventfd2, "the event loop's own wake-up"),
    entry!(SYS_pipe2, "the event loop's signals"),
    entry!(
        SYS_socketpair,
        [[is(0, libc::AF_UNIX as i64)]],
        "the event loop's signals: a pair, connected to nobody else"
    ),
    entry!(SYS_getuid, "who owns this daemon"),
    entry!(SYS_geteuid, "who owns this daemon"),
];

/// The store: files below the state directory (Landlock sees to that), and sealed
/// images in memory.
const STORING: &[Entry] = &[
    entry!(
        SYS_openat,
        "the store's files; Landlock keeps it to the state directory"
    ),
    entry!(SYS_lseek, "the length of the store"),
    entry!(SYS_pread64, "the store"),
    entry!(SYS_pwrite64, "the store"),
    entry!(SYS_fsync, "the store"),
    entry!(SYS_fdatasync, "the store"),
    entry!(
        SYS_ftruncate,
        "the store grows and shrinks; an image is sized"
    ),
    entry!(SYS_fallocate, "an image is allocated before it is written"),
    entry!(SYS_flock, "one process has the store"),
    entry!(SYS_unlinkat, "a store that cannot be read is put aside"),
    entry!(SYS_renameat, "a store that cannot be read is put aside"),
    entry!(SYS_renameat2, "the same, as newer libraries write it"),
    entry!(SYS_getdents64, "what the state directory holds"),
    entry!(SYS_memfd_create, "table images"),
    entry!(SYS_fchmod, "an image's file is its maker's alone"),
    entry!(
        SYS_fcntl,
        [
            [is(1, libc::F_ADD_SEALS as i64)],
            [is(1, libc::F_SETFD as i64)],
            [is(1, libc::F_OFD_SETLK as i64)],
            [is(1, libc::F_OFD_GETLK as i64)]
        ],
        "seal an image; one process has the store (locks on ranges)"
    ),
];

/// What the verifier says beside its messages.
const REPORTING: &[Entry] = &[
    entry!(SYS_write, "its report, into memory; a panic's last words"),
    entry!(SYS_read, "the solver's answer, from its pipe"),
    entry!(SYS_memfd_create, "its report; texts for the solver"),
    entry!(SYS_fchmod, "the report's file is its maker's alone"),
    entry!(
        SYS_fcntl,
        [[is(1, libc::F_ADD_SEALS as i64)]],
        "seal the report"
    ),
];

/// Becoming the host's z3, which the loader puts together; and what that does. What may be
/// opened and executed at all Landlock says.
const SOLVING: &[Entry] = &[
    entry!(
        SYS_dup2,
        [[is(1, 0)], [is(1, 1)]],
        "the text becomes its input, the pipe its output"
    ),
    entry!(
        SYS_execveat,
        [[is(0, SOLVER_PROGRAM as i64), is(4, EMPTY_PATH)]],
        "the program at its descriptor, which is closed by that"
    ),
    entry!(SYS_openat, "libraries; Landlock keeps it to them"),
    entry!(
        SYS_newfstatat,
        [[is(3, 0)]],
        "which of the libraries' folders there are"
    ),
    entry!(SYS_access, "whether there is a list of what to load first"),
    entry!(SYS_read, "a library's head; the text"),
    entry!(SYS_pread64, "a library's head"),
    entry!(
        SYS_mmap,
        [[
            bits(2, WRITE_EXEC, EXEC),
            bits(3, libc::MAP_ANONYMOUS as i64, 0)
        ]],
        "a library's code, from its file"
    ),
    entry!(
        SYS_arch_prctl,
        [[is(0, SET_FS)]],
        "start of a program: where its thread's own data is"
    ),
    entry!(SYS_set_tid_address, "start of a program"),
    entry!(SYS_set_robust_list, "start of a program"),
    entry!(SYS_rseq, "start of a program"),
    entry!(
        SYS_prlimit64,
        [[is(0, 0), bits(2, -1, 0)]],
        "start of a program: how large its stack is (not to change it)"
    ),
    entry!(
        SYS_sched_getaffinity,
        "how many cores there are, where no file says it"
    ),
    entry!(SYS_write, "its answer; last words"),
];

/// A front end's connection and what calls its driver.
const GUEST: &[Entry] = &[
    entry!(SYS_accept4, "a front end"),
    entry!(SYS_write, "a call to a guest's driver; last words"),
    entry!(
        SYS_fstatfs,
        "whether a guest's memory is memory, and a bell a bell"
    ),
    entry!(
        SYS_epoll_ctl,
        [[is(1, libc::EPOLL_CTL_DEL as i64)]],
        "whether a bell is a set of others: nothing ever joins one here"
    ),
    entry!(SYS_memfd_create, "what a front end is known again by"),
    entry!(SYS_ftruncate, "its size"),
    entry!(SYS_fchmod, "it is its maker's alone"),
    entry!(SYS_fcntl, [[is(1, libc::F_ADD_SEALS as i64)]], "seal it"),
];

/// SECCOMP_IOCTL_NOTIF_* (linux/seccomp.h).
const NOTIFICATION: [i64; 5] = [
    0xc050_2100,
    0xc018_2101,
    0x4008_2102,
    0x4018_2103,
    0x4008_2104,
];
const UNIX: i64 = libc::AF_UNIX as i64;
const SOCKET: i64 = libc::SOL_SOCKET as i64;
/// NETLINK_SOCK_DIAG.
const SOCK_DIAG: i64 = 4;

/// PR_SPEC_INDIRECT_BRANCH, PR_SPEC_FORCE_DISABLE.
const BRANCHES: i64 = 1;
const OFF_FOR_GOOD: i64 = 1 << 3;

/// Who may turn out to serve more than one tenant.
const SHARING: &[Entry] = &[entry!(
    SYS_prctl,
    [
        [
            is(0, libc::PR_SET_SPECULATION_CTRL as i64),
            is(1, BRANCHES),
            is(2, OFF_FOR_GOOD)
        ],
        [is(0, libc::PR_GET_SPECULATION_CTRL as i64), is(1, BRANCHES)]
    ],
    "a barrier against other processes' branches is raised, and never taken away"
)];

/// Programs' calls, and the sockets that are made for them.
const OPERATING: &[Entry] = &[
    entry!(SYS_epoll_create1, "one set for programs' calls and control"),
    entry!(
        SYS_epoll_ctl,
        [
            [is(1, libc::EPOLL_CTL_ADD as i64)],
            [is(1, libc::EPOLL_CTL_DEL as i64)]
        ],
        "a program comes or goes"
    ),
    entry!(SYS_epoll_pwait2, "sleep until somebody calls"),
    entry!(SYS_accept4, "who starts a program; a program's connection"),
    entry!(
        SYS_ioctl,
        [
            [is(1, NOTIFICATION[0])],
            [is(1, NOTIFICATION[1])],
            [is(1, NOTIFICATION[2])],
            [is(1, NOTIFICATION[3])],
            [is(1, NOTIFICATION[4])]
        ],
        "a call, its answer, whether it still waits, a socket put into its place"
    ),
    entry!(SYS_pidfd_open, "the program that calls"),
    entry!(SYS_pidfd_getfd, "its socket"),
    entry!(
        SYS_clone,
        [[is(0, libc::SIGCHLD as i64)]],
        "circuits are cut by a process that a program may have wait for ever"
    ),
    entry!(SYS_close_range, "that one has nothing else"),
    entry!(SYS_setitimer, "and ends in time, if it may"),
    entry!(SYS_pipe2, "what that one tells"),
    entry!(SYS_read, "the same"),
    entry!(SYS_process_vm_readv, "an address, an option"),
    entry!(SYS_process_vm_writev, "the same, answered"),
    entry!(
        SYS_socket,
        [
            [is(0, UNIX)],
            [is(0, libc::AF_NETLINK as i64), is(2, SOCK_DIAG)]
        ],
        "a program's socket; which of them live"
    ),
    entry!(SYS_sendto, "a program's datagram; which sockets live"),
    entry!(SYS_memfd_create, "a circuit's memory, for who asks"),
    entry!(SYS_ftruncate, "its size"),
    entry!(SYS_fchmod, "it is its maker's alone"),
    entry!(
        SYS_fallocate,
        [[is(1, PUNCH)]],
        "the pages of one that nobody uses are given back, by a process that a program may have wait for ever"
    ),
    entry!(
        SYS_fcntl,
        [
            [is(1, libc::F_ADD_SEALS as i64)],
            [is(1, libc::F_SETFL as i64)]
        ],
        "seal it; a program's socket is not to wait while it is connected"
    ),
    entry!(
        SYS_shutdown,
        "a circuit that is allowed no more; a program's datagram socket"
    ),
    entry!(SYS_recvfrom, "the same, received and answered"),
    entry!(SYS_getsockname, "the name of a socket that is no circuit"),
    entry!(SYS_getpeername, "the same"),
    entry!(
        SYS_bind,
        "a program's socket listens, or has datagrams sent to it"
    ),
    entry!(SYS_listen, "a program's socket listens"),
    entry!(SYS_connect, "a program's socket connects"),
    entry!(
        SYS_getsockopt,
        [[is(1, SOCKET)]],
        "which socket it is, and its options"
    ),
    entry!(
        SYS_setsockopt,
        [
            // SO_PASSRIGHTS and what is like it: PASSCRED, PASSSEC, PASSPIDFD, and those that are read alone.
            [is(1, SOCKET), is(2, 83)],
            [is(1, SOCKET), is(2, libc::SO_PASSCRED as i64)],
            [is(1, SOCKET), is(2, libc::SO_PEERNAME as i64)],
            [is(1, SOCKET), is(2, libc::SO_PASSSEC as i64)],
            [is(1, SOCKET), is(2, 76)],
            [is(1, SOCKET), is(2, libc::SO_RCVTIMEO as i64)],
            [is(1, SOCKET), is(2, 66)],
            [is(1, SOCKET), is(2, libc::SO_SNDTIMEO as i64)],
            [is(1, SOCKET), is(2, 67)],
            [is(1, SOCKET), is(2, libc::SO_SNDBUF as i64)]
        ],
        "no descriptor comes through it, and it does not wait; what it has under way; no looking past what is next"
    ),
    entry!(SYS_write, "last words; what such a process tells"),
];

/// TCP and UDP in an endpoint's namespace, and circuits' other ends.
const PROXYING: &[Entry] = &[
    entry!(SYS_epoll_create1, "one set for connections and control"),
    entry!(
        SYS_epoll_ctl,
        [
            [is(1, libc::EPOLL_CTL_ADD as i64)],
            [is(1, libc::EPOLL_CTL_DEL as i64)]
        ],
        "a connection comes or goes"
    ),
    entry!(SYS_epoll_pwait2, "sleep until bytes come"),
    entry!(
        SYS_socket,
        [
            [is(0, libc::AF_INET as i64), is(2, libc::IPPROTO_TCP as i64)],
            [
                is(0, libc::AF_INET6 as i64),
                is(2, libc::IPPROTO_TCP as i64)
            ]
        ],
        "a connection of TCP"
    ),
    entry!(
        SYS_socket,
        [
            [is(0, libc::AF_INET as i64), is(2, libc::IPPROTO_UDP as i64)],
            [
                is(0, libc::AF_INET6 as i64),
                is(2, libc::IPPROTO_UDP as i64)
            ]
        ],
        "datagrams of UDP"
    ),
    entry!(SYS_sendto, "a datagram goes on"),
    entry!(SYS_recvfrom, "a datagram comes"),
    entry!(SYS_bind, "from the endpoint's address"),
    entry!(SYS_listen, "for a program that listens"),
    entry!(SYS_connect, "to where a program connects"),
    entry!(SYS_accept4, "who connects to a program"),
    entry!(SYS_getsockname, "to which address"),
    entry!(
        SYS_getsockopt,
        [[is(1, SOCKET)], [is(1, libc::IPPROTO_TCP as i64)]],
        "what came of a connect, and how far it is"
    ),
    entry!(
        SYS_setsockopt,
        [
            [is(1, SOCKET), is(2, libc::SO_REUSEADDR as i64)],
            [is(1, SOCKET), is(2, libc::SO_REUSEPORT as i64)],
            [is(1, SOCKET), is(2, libc::SO_LINGER as i64)],
            [is(1, SOCKET), is(2, libc::SO_BINDTOIFINDEX as i64)],
            [is(1, libc::IPPROTO_TCP as i64)],
            [is(1, libc::IPPROTO_IPV6 as i64)]
        ],
        "a port again, a reset, one interface, no delay, one family"
    ),
    entry!(SYS_pipe2, "bytes on their way"),
    entry!(
        SYS_fcntl,
        [[is(1, libc::F_SETPIPE_SZ as i64)]],
        "as many as help"
    ),
    entry!(SYS_splice, "bytes from one to the other, unseen"),
    entry!(SYS_shutdown, "one side has said all"),
    entry!(SYS_write, "last words"),
];

/// The list of a profile, in groups. A call may stand in several with different
/// forms. Empty = no filter (supervisor, baseline).
pub fn groups(profile: Profile) -> &'static [&'static [Entry]] {
    match profile {
        Profile::Switch => &[
            RUNTIME,
            CONTROL,
            WAITING,
            PORTS,
            PRECISE_WAITING,
            THREADS,
            WORKERS,
            SHARING,
        ],
        Profile::Fabric => &[RUNTIME, CONTROL, WAITING, PORTS, PRECISE_WAITING],
        Profile::Auditor => &[RUNTIME, CONTROL, WAITING, PORTS, PRECISE_WAITING],
        Profile::Verifier => &[RUNTIME, CONTROL, REPORTING],
        Profile::Solver => &[RUNTIME, CONTROL, SOLVING],
        Profile::Vhost => &[RUNTIME, CONTROL, GUEST],
        Profile::Operator => &[RUNTIME, CONTROL, SHARING, OPERATING],
        Profile::Proxy => &[RUNTIME, CONTROL, SHARING, PROXYING],
        Profile::Controller => &[
            RUNTIME, CONTROL, WAITING, PORTS, THREADS, NAMED, SERVING, STORING,
        ],
        Profile::Supervisor | Profile::Baseline => &[],
    }
}

/// Every entry of a profile.
pub fn entries(profile: Profile) -> impl Iterator<Item = &'static Entry> {
    groups(profile).iter().flat_map(|group| group.iter())
}

/// Calls of a profile that are answered ENOSYS instead of being carried out.
pub fn refused(profile: Profile) -> &'static [i64] {
    match profile {
        Profile::Controller | Profile::Switch => &[libc::SYS_clone3],
        _ => &[],
    }
}
