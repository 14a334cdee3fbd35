//! What a process that was taken over would try. Each must kill it.

use std::ffi::{c_int, c_long};

type Probe = fn() -> i32;

/// The probe with this name.
pub fn find(name: &str) -> Option<Probe> {
    let all = ALL.iter().chain(REFUSED);
    all.into_iter()
        .find(|(n, _)| *n == name)
        .map(|(_, probe)| *probe)
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        // SAFETY: meant to be refused; the arguments are numbers, C strings or null,
        // with which none of these calls touches memory that is in use.
        let result = unsafe { libc::syscall($number $(, $argument)*) };
        status(result)
    }};
}

fn status(result: c_long) -> i32 {
    if result < 0 {
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    } else {
        0
    }
}

const NONE: usize = 0;
const PAGE: usize = 4096;
const STATE: c_int = 5;
const X32: c_long = 0x4000_0000;

/// Allowed to the controller, by its list.
pub const CONTROLLER_MAY: &[&str] = &["openat", "memfd_create", "add_seals", "clone3_process"];
/// Allowed to the verifier, by its list: its report.
pub const VERIFIER_MAY: &[&str] = &["memfd_create", "add_seals"];

/// Answered to a switch with ENOSYS, as by a kernel without it.
pub const SWITCH_MAY: &[&str] = &["clone3_process"];
/// Allowed to the solver, by its list: libraries, and what its own limits are.
pub const SOLVER_MAY: &[&str] = &["openat", "stat_by_path", "prlimit"];
/// Allowed to an operator, by its list: of a program that calls, of its socket, of its memory; and
/// the processes by which it cuts circuits.
pub const OPERATOR_MAY: &[&str] = &[
    "set_flags",
    "clone_process",
    "memfd_create",
    "add_seals",
    "connect",
    "bind",
    "listen",
    "setsockopt",
    "pidfd_open",
    "pidfd_getfd",
    "process_vm_readv",
];

/// What the proxy may, beside: TCP.
pub const PROXY_MAY: &[&str] = &[
    "connect",
    "bind",
    "listen",
    "setsockopt",
    "splice",
    "set_pipe_size",
];

/// Each kills every sandboxed process (controller and verifier: but for what they may).
pub const ALL: &[(&str, Probe)] = &[
    // Files.
    ("open", || {
        call!(libc::SYS_open, c"/etc/passwd".as_ptr(), libc::O_RDONLY)
    }),
    ("openat", || {
        call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/etc/passwd".as_ptr(),
            libc::O_RDONLY
        )
    }),
    ("openat2", || {
        call!(libc::SYS_openat2, libc::AT_FDCWD, c"/".as_ptr(), NONE, 0)
    }),
    ("stat_by_path", || {
        call!(libc::SYS_newfstatat, libc::AT_FDCWD, c"/".as_ptr(), NONE, 0)
    }),
    ("statx_by_path", || {
        call!(libc::SYS_statx, libc::AT_FDCWD, c"/".as_ptr(), 0, 0, NONE)
    }),
    ("chdir", || call!(libc::SYS_chdir, c"/".as_ptr())),
    ("fchdir", || call!(libc::SYS_fchdir, 3)),
    ("mknodat", || {
        call!(
            libc::SYS_mknodat,
            libc::AT_FDCWD,
            c"x".as_ptr(),
            libc::S_IFCHR,
            0
        )
    }),
    ("linkat", || {
        call!(
            libc::SYS_linkat,
            3,
            c"".as_ptr(),
            3,
            c"x".as_ptr(),
            libc::AT_EMPTY_PATH
        )
    }),
    ("mount", || {
        call!(libc::SYS_mount, NONE, c"/".as_ptr(), NONE, 0, NONE)
    }),
    ("umount2", || {
        call!(libc::SYS_umount2, c"/".as_ptr(), libc::MNT_DETACH)
    }),
    ("pivot_root", || {
        call!(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())
    }),
    ("chroot", || call!(libc::SYS_chroot, c"/".as_ptr())),
    ("open_tree", || {
        call!(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 1)
    }),
    ("fsopen", || call!(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0)),
    ("name_to_handle_at", || {
        call!(libc::SYS_name_to_handle_at, 3, c"".as_ptr(), NONE, NONE, 0)
    }),
    ("open_by_handle_at", || {
        call!(libc::SYS_open_by_handle_at, 3, NONE, 0)
    }),
    ("memfd_create", || {
        call!(libc::SYS_memfd_create, c"x".as_ptr(), 0)
    }),
    ("memfd_secret", || call!(libc::SYS_memfd_secret, 0)),
    ("add_seals", || {
        call!(libc::SYS_fcntl, 3, libc::F_ADD_SEALS, libc::F_SEAL_SEAL)
    }),
    ("set_flags", || {
        call!(libc::SYS_fcntl, 2, libc::F_SETFL, libc::O_NONBLOCK)
    }),
    ("set_owner", || call!(libc::SYS_fcntl, 3, libc::F_SETOWN, 1)),
    ("set_pipe_size", || {
        call!(libc::SYS_fcntl, 3, libc::F_SETPIPE_SZ, 1 << 20)
    }),
    // Network.
    ("socket_internet", || {
        call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)
    }),
    ("socket_netlink", || {
        call!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0)
    }),
    ("socket_packet", || {
        call!(libc::SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, 0)
    }),
    ("socket_vsock", || {
        call!(libc::SYS_socket, libc::AF_VSOCK, libc::SOCK_STREAM, 0)
    }),
    ("socketpair_netlink", || {
        call!(
            libc::SYS_socketpair,
            libc::AF_INET,
            libc::SOCK_STREAM,
            0,
            NONE
        )
    }),
    ("connect", || call!(libc::SYS_connect, 3, NONE, 0)),
    ("bind", || call!(libc::SYS_bind, 3, NONE, 0)),
    ("listen", || call!(libc::SYS_listen, 3, 1)),
    ("setsockopt", || {
        call!(libc::SYS_setsockopt, 3, 1, 1, NONE, 0)
    }),
    ("ioctl_tunsetiff", || {
        call!(libc::SYS_ioctl, 3, 0x4004_54ca_u64, NONE)
    }),
    ("setsockopt_of_packets", || {
        call!(libc::SYS_setsockopt, 3, libc::SOL_PACKET, 1, NONE, 0)
    }),
    ("socket_diagnosis_of_others", || {
        let (kind, generic) = (libc::SOCK_RAW, 16);
        call!(libc::SYS_socket, libc::AF_NETLINK, kind, generic)
    }),
    ("ioctl_tiocsti", || {
        call!(libc::SYS_ioctl, 0, libc::TIOCSTI, NONE)
    }),
    // Processes.
    ("fork", || call!(libc::SYS_fork)),
    ("vfork", || call!(libc::SYS_vfork)),
    ("clone_process", || {
        call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)
    }),
    ("clone_namespace", || {
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        call!(libc::SYS_clone, thread | libc::CLONE_NEWUSER, 0, 0, 0, 0)
    }),
    ("clone3_process", || call!(libc::SYS_clone3, NONE, 0)),
    ("execve", || {
        call!(libc::SYS_execve, c"/bin/sh".as_ptr(), NONE, NONE)
    }),
    ("execveat_control", || {
        call!(
            libc::SYS_execveat,
            3,
            c"".as_ptr(),
            NONE,
            NONE,
            libc::AT_EMPTY_PATH
        )
    }),
    ("kill", || call!(libc::SYS_kill, -1, libc::SIGKILL)),
    ("tkill", || call!(libc::SYS_tkill, 1, libc::SIGKILL)),
    ("tgkill_other_signal", || {
        call!(libc::SYS_tgkill, 1, 1, libc::SIGTERM)
    }),
    ("pidfd_open", || call!(libc::SYS_pidfd_open, 1, 0)),
    ("pidfd_getfd", || call!(libc::SYS_pidfd_getfd, 3, 0, 0)),
    ("ptrace", || {
        call!(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)
    }),
    ("process_vm_readv", || {
        call!(libc::SYS_process_vm_readv, 1, NONE, 0, NONE, 0, 0)
    }),
    ("kcmp", || call!(libc::SYS_kcmp, 1, 1, 0, 0, 0)),
    ("setns", || call!(libc::SYS_setns, 3, 0)),
    ("unshare", || call!(libc::SYS_unshare, libc::CLONE_NEWUSER)),
    ("setuid", || call!(libc::SYS_setresuid, 5, 5, 5)),
    ("capset", || call!(libc::SYS_capset, NONE, NONE)),
    ("prctl_dumpable", || {
        call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)
    }),
    ("prctl_speculation", || {
        call!(libc::SYS_prctl, libc::PR_SET_SPECULATION_CTRL, 0, 2, 0, 0)
    }),
    ("prlimit", || {
        call!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, NONE, NONE)
    }),
    ("prlimit_set", || {
        let nowhere = 8;
        call!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, nowhere, NONE)
    }),
    ("sched_setaffinity", || {
        call!(libc::SYS_sched_setaffinity, 0, 8, NONE)
    }),
    ("sched_setscheduler", || {
        call!(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, NONE)
    }),
    // Memory.
    ("mmap_executable", || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        call!(
            libc::SYS_mmap,
            0,
            PAGE,
            libc::PROT_READ | libc::PROT_EXEC,
            flags,
            -1,
            0
        )
    }),
    ("mprotect_executable", || {
        call!(
            libc::SYS_mprotect,
            PAGE,
            PAGE,
            libc::PROT_READ | libc::PROT_EXEC
        )
    }),
    ("pkey_mprotect", || {
        call!(libc::SYS_pkey_mprotect, PAGE, PAGE, libc::PROT_EXEC, -1)
    }),
    ("remap_file_pages", || {
        call!(libc::SYS_remap_file_pages, PAGE, PAGE, 0, 0, 0)
    }),
    ("shmget", || call!(libc::SYS_shmget, 0, PAGE, 0)),
    ("userfaultfd", || call!(libc::SYS_userfaultfd, 0)),
    ("mlockall", || call!(libc::SYS_mlockall, 1)),
    // The kernel's large surfaces.
    ("bpf", || call!(libc::SYS_bpf, 0, NONE, 0)),
    ("io_uring_setup", || {
        call!(libc::SYS_io_uring_setup, 1, NONE)
    }),
    ("perf_event_open", || {
        call!(libc::SYS_perf_event_open, NONE, 0, -1, -1, 0)
    }),
    ("seccomp", || call!(libc::SYS_seccomp, 0, 0, NONE)),
    ("keyctl", || call!(libc::SYS_keyctl, 0, 0, 0, 0, 0)),
    ("add_key", || {
        call!(libc::SYS_add_key, NONE, NONE, NONE, 0, 0)
    }),
    ("init_module", || {
        call!(libc::SYS_init_module, NONE, 0, NONE)
    }),
    ("kexec_load", || call!(libc::SYS_kexec_load, 0, 0, NONE, 0)),
    ("reboot", || call!(libc::SYS_reboot, 0, 0, 0, NONE)),
    ("clock_settime", || call!(libc::SYS_clock_settime, 0, NONE)),
    ("iopl", || call!(libc::SYS_iopl, 3)),
    ("modify_ldt", || call!(libc::SYS_modify_ldt, 0, NONE, 0)),
    ("personality", || call!(libc::SYS_personality, 0x0040_0000)),
    ("splice", || call!(libc::SYS_splice, 3, NONE, 3, NONE, 1, 0)),
    ("x32_getpid", || call!(X32 | libc::SYS_getpid)),
];

/// What the controller may call but not use for this, and the error it gets.
pub const CONTROLLER_REFUSED: &[(&str, c_int)] = &[
    ("open_above_state", libc::EACCES),
    ("open_root", libc::EACCES),
    ("open_host_file", libc::ENOENT),
    ("make_directory_above", libc::EACCES),
    ("clone3_process", libc::ENOSYS),
];

const REFUSED: &[(&str, Probe)] = &[
    ("open_above_state", || {
        call!(
            libc::SYS_openat,
            STATE,
            c"../secret".as_ptr(),
            libc::O_RDONLY
        )
    }),
    ("open_root", || {
        call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::O_RDONLY
        )
    }),
    ("open_host_file", || {
        call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/etc/passwd".as_ptr(),
            libc::O_RDONLY
        )
    }),
    ("make_directory_above", || {
        call!(
            libc::SYS_openat,
            STATE,
            c"../new".as_ptr(),
            libc::O_RDWR | libc::O_CREAT,
            0o600
        )
    }),
];
