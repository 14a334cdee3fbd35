//! Each layer without the next in front of it: what still holds when the system
//! call filter, say, had a hole.

use std::ffi::{c_int, c_long};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// One thing tried by a switch that stopped before a stage.
pub struct Layer {
    pub name: &'static str,
    /// The stage it stopped before; "-" = none.
    pub before: &'static str,
    /// 0, or the errno it must get.
    pub expected: i32,
    probe: Probe,
}

/// The probe with this name.
pub fn find(name: &str) -> Option<Probe> {
    let layer = ALL
        .iter()
        .chain(OPERATOR)
        .find(|layer| layer.name == name)
        .map(|layer| layer.probe);
    layer.or_else(|| {
        OTHERS
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, probe)| *probe)
    })
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        // SAFETY: numbers, C strings, null, or pointers to live memory of the size
        // that the call uses.
        status(unsafe { libc::syscall($number $(, $argument)*) })
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

fn prctl(option: c_int, argument: u64) -> i32 {
    // SAFETY: only options that read numbers.
    unsafe { libc::prctl(option, argument, 0_u64, 0_u64, 0_u64) }
}

type Probe = fn() -> i32;
const NONE: usize = 0;

/// Of an address to bind or connect to: 127.0.0.1, port 80.
fn bind_a_port() -> i32 {
    // SAFETY: an all-zero sockaddr_in is valid, and its size is passed.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut address: libc::sockaddr_in = core::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = 8080_u16.to_be();
        let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        status(libc::bind(socket, (&raw const address).cast(), length).into())
    }
}

fn has_network_rights() -> bool {
    // SAFETY: asks for the version only.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, NONE, 0, 1) >= 4 }
}

fn capability_sets() -> i32 {
    let header = [0x2008_0522_u32, 0];
    let mut data = [0_u32; 6];
    let read = call!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr());
    let bounding = (0..64)
        .filter(|n| prctl(libc::PR_CAPBSET_READ, *n) == 1)
        .count();
    let ambient = (0..64)
        .filter(|n| {
            // SAFETY: PR_CAP_AMBIENT_IS_SET reads numbers.
            let set = unsafe {
                libc::prctl(
                    libc::PR_CAP_AMBIENT,
                    libc::PR_CAP_AMBIENT_IS_SET as u64,
                    *n as u64,
                    0_u64,
                    0_u64,
                )
            };
            set == 1
        })
        .count();
    read + i32::from(data != [0; 6]) + (bounding + ambient) as i32
}

const PRCTL_AND_ENABLED: i32 = 3;

fn its_stores() -> i32 {
    i32::from(prctl(libc::PR_GET_SPECULATION_CTRL, 0) == PRCTL_AND_ENABLED)
}

fn of_who_serves_several() -> i32 {
    host_confine::raise_branch_barrier().map_or(100, |()| speculation())
}

/// Whether this process may be steered by others' branches, and could have itself not be.
pub fn branches() -> bool {
    prctl(libc::PR_GET_SPECULATION_CTRL, 1) == PRCTL_AND_ENABLED
}

/// How many kinds of speculation are on that can be off.
pub fn speculation() -> i32 {
    (0..2)
        .filter(|w| prctl(libc::PR_GET_SPECULATION_CTRL, *w) == PRCTL_AND_ENABLED)
        .count() as i32
}

fn limits() -> i32 {
    limits_with(0)
}

/// So many bytes of a file, and nothing else.
fn limits_with(file: u64) -> i32 {
    [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, file),
        (libc::RLIMIT_MEMLOCK, 0),
    ]
    .into_iter()
    .map(|(resource, value)| {
        let mut limit = libc::rlimit {
            rlim_cur: 1,
            rlim_max: 1,
        };
        // SAFETY: the kernel writes one rlimit.
        unsafe { libc::getrlimit(resource, &raw mut limit) };
        i32::from(limit.rlim_cur != value || limit.rlim_max != value)
    })
    .sum()
}

fn fork() -> i32 {
    // SAFETY: the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) }
    }
    status(pid.into())
}

macro_rules! layer {
    ($name:ident before $before:literal is $expected:expr, $probe:expr) => {
        Layer {
            name: stringify!($name),
            before: $before,
            expected: $expected,
            probe: $probe,
        }
    };
}

pub const ALL: &[Layer] = &[
    layer!(the_root_has_no_proc before "landlock" is libc::ENOENT, || {
        call!(libc::SYS_open, c"/proc".as_ptr(), libc::O_PATH)
    }),
    layer!(the_root_has_no_host_file before "landlock" is libc::ENOENT, || {
        call!(libc::SYS_open, c"/etc/passwd".as_ptr(), libc::O_RDONLY)
    }),
    layer!(the_root_is_read_only before "landlock" is libc::EROFS, || {
        call!(libc::SYS_open, c"/new".as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600)
    }),
    layer!(the_root_has_nothing_above before "landlock" is libc::ENOENT, || {
        call!(libc::SYS_open, c"/../../etc".as_ptr(), libc::O_PATH)
    }),
    layer!(a_namespace_gives_nothing_back before "seccomp" is libc::EPERM, || {
        call!(libc::SYS_mount, c"x".as_ptr(), c"/".as_ptr(), c"tmpfs".as_ptr(), 0, NONE)
    }),
    layer!(no_capability_is_left before "seccomp" is 0, capability_sets),
    layer!(no_new_privilege_can_come before "landlock" is 1, || {
        prctl(libc::PR_GET_NO_NEW_PRIVS, 0)
    }),
    layer!(nobody_dumps_it before "seccomp" is 0, || prctl(libc::PR_GET_DUMPABLE, 0)),
    layer!(its_stores_are_not_bypassed before "seccomp" is 0, its_stores),
    layer!(speculation_is_off_of_who_serves_several before "seccomp" is 0, of_who_serves_several),
    layer!(limits_are_set before "seccomp" is 0, limits),
    layer!(no_process_can_be_made before "seccomp" is libc::EAGAIN, fork),
    layer!(no_other_uid_exists before "seccomp" is libc::EINVAL, || {
        call!(libc::SYS_setresuid, 5, 5, 5)
    }),
    layer!(no_other_process_exists before "seccomp" is libc::ESRCH, || {
        call!(libc::SYS_kill, 2, 0)
    }),
    layer!(the_parent_is_out_of_sight before "seccomp" is 0, || {
        // SAFETY: no arguments.
        unsafe { libc::getppid() }
    }),
    layer!(it_does_not_die_with_its_parent before "seccomp" is 0, || {
        let mut signal: c_int = -1;
        // SAFETY: the kernel writes one int.
        unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) };
        signal
    }),
    layer!(files_are_open_without_landlock before "landlock" is 0, || {
        call!(libc::SYS_open, c"/".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY)
    }),
    layer!(files_are_denied_by_landlock before "seccomp" is libc::EACCES, || {
        call!(libc::SYS_open, c"/".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY)
    }),
    layer!(ports_are_denied_by_landlock before "seccomp" is libc::EACCES, || {
        if has_network_rights() { bind_a_port() } else { libc::EACCES }
    }),
];

/// An operator is in the host's user and pid namespaces, and without Landlock: its own uid, an
/// empty root and no capability hold, and an empty network.
pub const OPERATOR: &[Layer] = &[
    layer!(the_root_has_no_proc before "seccomp" is libc::ENOENT, || {
        call!(libc::SYS_open, c"/proc".as_ptr(), libc::O_PATH)
    }),
    layer!(the_root_has_no_host_file before "seccomp" is libc::ENOENT, || {
        call!(libc::SYS_open, c"/etc/passwd".as_ptr(), libc::O_RDONLY)
    }),
    layer!(the_root_is_read_only before "seccomp" is libc::EROFS, || {
        call!(libc::SYS_open, c"/new".as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600)
    }),
    layer!(a_namespace_gives_nothing_back before "seccomp" is libc::EPERM, || {
        call!(libc::SYS_mount, c"x".as_ptr(), c"/".as_ptr(), c"tmpfs".as_ptr(), 0, NONE)
    }),
    layer!(no_capability_is_left before "seccomp" is 0, capability_sets),
    layer!(no_new_privilege_can_come before "seccomp" is 1, || {
        prctl(libc::PR_GET_NO_NEW_PRIVS, 0)
    }),
    layer!(nobody_dumps_it before "seccomp" is 0, || prctl(libc::PR_GET_DUMPABLE, 0)),
    // A circuit's memory is a file to the limit: two mebibytes and four pages.
    layer!(limits_of_its_own_are_set before "seccomp" is 0, || limits_with((2 << 20) + 4096)),
    layer!(it_is_root_no_more before "seccomp" is libc::EPERM, || {
        call!(libc::SYS_setresuid, 0, 0, 0)
    }),
    layer!(the_hosts_processes_are_not_its_own before "seccomp" is libc::EPERM, || {
        call!(libc::SYS_kill, 1, 0)
    }),
    layer!(the_hosts_processes_are_not_looked_into before "seccomp" is libc::EPERM, || {
        let mut into = 0_u64;
        let mut part = libc::iovec { iov_base: (&raw mut into).cast(), iov_len: 8 };
        call!(libc::SYS_process_vm_readv, 1, &raw mut part, 1_u64, &raw mut part, 1_u64, 0_u64)
    }),
    layer!(its_network_leads_nowhere before "seccomp" is libc::ENETUNREACH, || {
        // SAFETY: an all-zero sockaddr_in is valid, and its size is passed.
        unsafe {
            let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
            let mut address: libc::sockaddr_in = core::mem::zeroed();
            address.sin_family = libc::AF_INET as u16;
            address.sin_port = 53_u16.to_be();
            address.sin_addr.s_addr = 0x0100_0009;
            let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            status(libc::connect(socket, (&raw const address).cast(), length).into())
        }
    }),
];

/// Not tied to a layer.
const OTHERS: &[(&str, Probe)] = &[
    ("speculation", speculation),
    ("extra_descriptor", || {
        call!(libc::SYS_fcntl, 4, libc::F_GETFD)
    }),
    ("among_interfaces", || 0),
    ("control_descriptor", || {
        call!(libc::SYS_fcntl, 3, libc::F_GETFD)
    }),
    ("wait_for_a_word", || {
        let byte = [1_u8];
        call!(libc::SYS_write, 3, byte.as_ptr(), 1);
        let mut nothing = libc::pollfd {
            fd: 3,
            events: 0,
            revents: 0,
        };
        call!(libc::SYS_ppoll, &raw mut nothing, 1, NONE, NONE, 0)
    }),
    ("become_z3", || {
        let control = |_| {
            // SAFETY: a copy; touches no memory.
            let copy = unsafe { libc::fcntl(3, libc::F_DUPFD_CLOEXEC, 3) };
            // SAFETY: a new descriptor, owned by nobody else.
            unsafe { OwnedFd::from_raw_fd(copy) }
        };
        let [input, output] = [0, 1].map(control);
        // SAFETY: it was given to this program, which closes nothing.
        let program = unsafe { BorrowedFd::borrow_raw(4) };
        let words = [c"z3", c"-in", c"-smt2"];
        host_confine::become_solver(program, input, output, &words).raw_os_error()
    }),
    ("no_other_program", || {
        // SAFETY: C strings and null. That it may be read is what this is about.
        unsafe {
            let file = libc::open(c"/usr/lib/os-release".as_ptr(), libc::O_RDONLY);
            assert!(file > 4, "libraries can be read");
            libc::dup2(file, 4);
        }
        call!(
            libc::SYS_execveat,
            4,
            c"".as_ptr(),
            NONE,
            NONE,
            libc::AT_EMPTY_PATH
        )
    }),
    ("no_other_file", || {
        call!(libc::SYS_open, c"/etc/passwd".as_ptr(), libc::O_RDONLY)
    }),
    ("no_file_is_written", || {
        call!(
            libc::SYS_open,
            c"/usr/lib/new".as_ptr(),
            libc::O_CREAT | libc::O_WRONLY,
            0o600
        )
    }),
    ("nothing_below_is_written", || {
        let path = std::ffi::CString::new(format!("{}/new", below())).unwrap();
        call!(
            libc::SYS_open,
            path.as_ptr(),
            libc::O_CREAT | libc::O_WRONLY,
            0o600
        )
    }),
    ("little_memory", || {
        // SAFETY: a mapping of its own, if any.
        let map = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(
                core::ptr::null_mut(),
                1 << 30,
                libc::PROT_READ,
                flags,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            libc::ENOMEM
        } else {
            0
        }
    }),
    ("burn", || {
        let byte = [1_u8];
        call!(libc::SYS_write, 3, byte.as_ptr(), 1);
        loop {
            core::hint::spin_loop();
        }
    }),
];

/// A folder among the libraries, the same each time.
pub fn below() -> &'static str {
    let all = [
        "/usr/lib/tmpfiles.d",
        "/usr/lib/terminfo",
        "/usr/lib/systemd",
    ];
    let mut there = all
        .into_iter()
        .filter(|path| std::path::Path::new(path).is_dir());
    there.next().expect("a folder among the libraries")
}
