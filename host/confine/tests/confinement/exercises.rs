//! One use of every system call that some profile keeps, in each of its forms.
//! 0 = it did what it should.

use host_confine::Profile;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

type Exercise = fn() -> i32;

/// The exercise of the call with this name, as this profile may make it.
pub fn find(profile: Profile, name: &str) -> Option<Exercise> {
    let own: &[_] = match profile {
        Profile::Operator => OPERATOR,
        Profile::Proxy => PROXY,
        Profile::Switch => SWITCH,
        _ => &[],
    };
    own.iter()
        .chain(ALL)
        .find(|(n, _)| *n == name)
        .map(|(_, exercise)| *exercise)
}

/// The calls that are exercised.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter()
        .chain(OPERATOR)
        .chain(PROXY)
        .chain(SWITCH)
        .map(|(name, _)| *name)
}

/// The socket to the test, the listener, the state directory.
const CONTROL: c_int = 3;
const LISTENER: c_int = 4;
const STATE: c_int = 5;
const PAGE: usize = 4096;

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {{
        // SAFETY: arguments are numbers, or pointers to live memory of the size that
        // the call uses, or null where it allows that.
        let result = unsafe { libc::syscall(libc::$number $(, $argument)*) };
        if result < 0 { -c_long::from(errno()) } else { result }
    }};
}

mod own;
use own::{OPERATOR, PROXY, SWITCH};

fn errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// 0 if the result is not an error.
fn ok(result: c_long) -> i32 {
    if result < 0 { (-result) as i32 } else { 0 }
}

/// 0 if the result is this error: the call was let through and had nothing to do.
fn fails(result: c_long, errno: c_int) -> i32 {
    i32::from(result != -c_long::from(errno))
}

fn memory() -> *mut u8 {
    let map = call!(
        SYS_mmap,
        0,
        PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0
    );
    core::ptr::with_exposed_provenance_mut(map as usize)
}

fn state_file() -> c_long {
    call!(
        SYS_openat,
        STATE,
        c"file".as_ptr(),
        libc::O_RDWR | libc::O_CREAT,
        0o600
    )
}

/// A file of the state directory, or where there is none a library.
fn some_file() -> c_long {
    match state_file() {
        error if error == -c_long::from(libc::EBADF) => call!(
            SYS_openat,
            libc::AT_FDCWD,
            c"/lib64/ld-linux-x86-64.so.2".as_ptr(),
            libc::O_RDONLY
        ),
        file => file,
    }
}

fn memory_file() -> c_long {
    call!(
        SYS_memfd_create,
        c"image".as_ptr(),
        libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC
    )
}

static HANDLED: AtomicBool = AtomicBool::new(false);

extern "C" fn handler(_: c_int) {
    HANDLED.store(true, Ordering::Relaxed);
}

/// abort() as far as the signal, with a handler that returns.
fn signal_and_return() -> i32 {
    let handler: extern "C" fn(c_int) = handler;
    // SAFETY: an all-zero sigaction is valid; the handler only stores an atomic.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        libc::sigaction(libc::SIGABRT, &raw const action, core::ptr::null_mut());
    }
    let pid = call!(SYS_getpid);
    let thread = call!(SYS_gettid);
    let sent = call!(SYS_tgkill, pid, thread, libc::SIGABRT);
    if HANDLED.load(Ordering::Relaxed) {
        ok(sent)
    } else {
        1
    }
}

fn poll_record() -> libc::pollfd {
    libc::pollfd {
        fd: CONTROL,
        events: libc::POLLOUT,
        revents: 0,
    }
}

fn epoll() -> c_long {
    call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC)
}

fn no_time() -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    }
}

fn message(use_it: impl Fn(*mut libc::msghdr) -> i32) -> i32 {
    let mut bytes = *b"hello";
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    use_it(&raw mut header)
}

fn pair() -> [c_int; 2] {
    let mut ends = [-1; 2];
    call!(
        SYS_socketpair,
        libc::AF_UNIX,
        libc::SOCK_STREAM,
        0,
        ends.as_mut_ptr()
    );
    ends
}

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

fn option(name: c_int, length: usize) -> i32 {
    let mut value = [0_u8; 16];
    let mut length = length as libc::socklen_t;
    ok(call!(
        SYS_getsockopt,
        CONTROL,
        libc::SOL_SOCKET,
        name,
        value.as_mut_ptr(),
        &raw mut length
    ))
}

fn address(number: c_long) -> i32 {
    let mut bytes = [0_u8; 128];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    ok(unsafe { libc::syscall(number, CONTROL, bytes.as_mut_ptr(), &raw mut length) })
}

const NONE: usize = 0;

const ALL: &[(&str, Exercise)] = &[
    // The runtime.
    ("brk", || ok(call!(SYS_brk, 0))),
    ("mmap", || i32::from(memory().is_null())),
    ("munmap", || ok(call!(SYS_munmap, memory(), PAGE))),
    ("mremap", || {
        ok(call!(
            SYS_mremap,
            memory(),
            PAGE,
            2 * PAGE,
            libc::MREMAP_MAYMOVE
        ))
    }),
    ("mprotect", || {
        ok(call!(SYS_mprotect, memory(), PAGE, libc::PROT_READ))
    }),
    ("madvise", || {
        ok(call!(SYS_madvise, memory(), PAGE, libc::MADV_DONTNEED))
    }),
    ("getrandom", || ok(call!(SYS_getrandom, memory(), 16, 0))),
    ("clock_gettime", || {
        ok(call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, memory()))
    }),
    ("close", || ok(call!(SYS_close, CONTROL))),
    ("futex", || {
        ok(call!(SYS_futex, memory(), libc::FUTEX_WAKE, 1))
    }),
    ("rt_sigprocmask", || {
        ok(call!(
            SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            NONE,
            memory(),
            8
        ))
    }),
    ("rt_sigreturn", signal_and_return),
    ("rt_sigaction", || {
        ok(call!(SYS_rt_sigaction, libc::SIGSEGV, NONE, memory(), 8))
    }),
    ("sigaltstack", || ok(call!(SYS_sigaltstack, NONE, memory()))),
    ("restart_syscall", || {
        fails(call!(SYS_restart_syscall), libc::EINTR)
    }),
    ("getpid", || i32::from(call!(SYS_getpid) <= 0)),
    ("gettid", || {
        i32::from(call!(SYS_gettid) != call!(SYS_getpid))
    }),
    ("tgkill", signal_and_return),
    ("exit", || ok(call!(SYS_exit, 0))),
    ("exit_group", || ok(call!(SYS_exit_group, 0))),
    // Control.
    ("recvmsg", || {
        message(|m| {
            fails(
                call!(SYS_recvmsg, CONTROL, m, libc::MSG_DONTWAIT),
                libc::EAGAIN,
            )
        })
    }),
    ("sendmsg", || {
        message(|m| ok(call!(SYS_sendmsg, CONTROL, m, libc::MSG_DONTWAIT)))
    }),
    ("ppoll", || {
        ok(call!(
            SYS_ppoll,
            core::ptr::from_mut(&mut poll_record()),
            1,
            core::ptr::from_mut(&mut no_time()),
            NONE,
            8
        ))
    }),
    ("fstat", || ok(call!(SYS_fstat, CONTROL, memory()))),
    ("newfstatat", || {
        ok(call!(
            SYS_newfstatat,
            CONTROL,
            c"".as_ptr(),
            memory(),
            libc::AT_EMPTY_PATH
        ))
    }),
    ("statx", || {
        ok(call!(
            SYS_statx,
            CONTROL,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_BASIC_STATS,
            memory()
        ))
    }),
    ("fcntl", || {
        let simple = [libc::F_GETFD, libc::F_GETFL]
            .iter()
            .map(|command| ok(call!(SYS_fcntl, CONTROL, *command)))
            .sum::<i32>();
        let copy = ok(call!(SYS_fcntl, CONTROL, libc::F_DUPFD_CLOEXEC, 10));
        let seals = fails(call!(SYS_fcntl, CONTROL, libc::F_GET_SEALS), libc::EINVAL);
        let mut locks = 0;
        // Who has a state directory locks ranges of its store.
        if ok(call!(SYS_fcntl, STATE, libc::F_GETFD)) == 0 {
            let store = call!(
                SYS_openat,
                STATE,
                c"locked".as_ptr(),
                libc::O_RDWR | libc::O_CREAT,
                0o600
            );
            // Zeros are a read lock on the whole file.
            let set = ok(call!(SYS_fcntl, store, libc::F_OFD_SETLK, memory()));
            let own = ok(call!(SYS_fcntl, store, libc::F_SETFD, libc::FD_CLOEXEC));
            locks = own + set + ok(call!(SYS_fcntl, store, libc::F_OFD_GETLK, memory()));
        }
        simple + copy + seals + locks
    }),
    // Waiting.
    ("epoll_create1", || ok(epoll())),
    ("epoll_ctl", || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        ok(call!(
            SYS_epoll_ctl,
            epoll(),
            libc::EPOLL_CTL_ADD,
            CONTROL,
            &raw mut event
        ))
    }),
    ("epoll_wait", || {
        ok(call!(SYS_epoll_wait, epoll(), memory(), 1, 0))
    }),
    ("epoll_pwait", || {
        ok(call!(SYS_epoll_pwait, epoll(), memory(), 1, 0, NONE, 8))
    }),
    ("epoll_pwait2", || {
        ok(call!(
            SYS_epoll_pwait2,
            epoll(),
            memory(),
            1,
            core::ptr::from_ref(&no_time()),
            NONE,
            8
        ))
    }),
    ("poll", || {
        ok(call!(
            SYS_poll,
            core::ptr::from_mut(&mut poll_record()),
            1,
            0
        ))
    }),
    ("clock_nanosleep", || {
        ok(call!(
            SYS_clock_nanosleep,
            libc::CLOCK_MONOTONIC,
            0,
            core::ptr::from_ref(&no_time()),
            NONE
        ))
    }),
    ("sched_yield", || ok(call!(SYS_sched_yield))),
    // Ports.
    ("read", || {
        fails(call!(SYS_read, CONTROL, memory(), 8), libc::EAGAIN)
    }),
    ("write", || ok(call!(SYS_write, CONTROL, memory(), 8))),
    ("readv", || {
        let mut bytes = [0; 8];
        fails(
            call!(
                SYS_readv,
                CONTROL,
                core::ptr::from_ref(&vector(&mut bytes)),
                1
            ),
            libc::EAGAIN,
        )
    }),
    ("writev", || {
        let mut bytes = [0; 8];
        ok(call!(
            SYS_writev,
            CONTROL,
            core::ptr::from_ref(&vector(&mut bytes)),
            1
        ))
    }),
    // Threads.
    ("clone3", || fails(call!(SYS_clone3, NONE, 0), libc::ENOSYS)),
    ("clone", || {
        // Its limit is its own affair (`layers`): the filter alone is looked at.
        let thread = std::thread::Builder::new().spawn(|| 7);
        let refused = thread
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN));
        i32::from(!refused && thread.ok().and_then(|thread| thread.join().ok()) != Some(7))
    }),
    ("set_robust_list", || {
        ok(call!(SYS_set_robust_list, memory(), 24))
    }),
    ("rseq", || {
        fails(call!(SYS_rseq, NONE, 0, 0, 0), libc::EINVAL)
    }),
    ("sched_getaffinity", || {
        ok(call!(SYS_sched_getaffinity, 0, 128, memory()))
    }),
    ("prctl", || {
        ok(call!(SYS_prctl, libc::PR_SET_NAME, c"pool".as_ptr()))
    }),
    // Serving.
    ("accept4", || {
        fails(
            call!(SYS_accept4, LISTENER, NONE, NONE, libc::SOCK_NONBLOCK),
            libc::EAGAIN,
        )
    }),
    ("recvfrom", || {
        fails(
            call!(
                SYS_recvfrom,
                CONTROL,
                memory(),
                8,
                libc::MSG_DONTWAIT,
                NONE,
                NONE
            ),
            libc::EAGAIN,
        )
    }),
    ("sendto", || {
        ok(call!(SYS_sendto, CONTROL, memory(), 8, 0, NONE, 0))
    }),
    ("getsockopt", || {
        option(libc::SO_PEERCRED, 12) + option(libc::SO_ERROR, 4) + option(libc::SO_TYPE, 4)
    }),
    ("getsockname", || address(libc::SYS_getsockname)),
    ("getpeername", || address(libc::SYS_getpeername)),
    ("shutdown", || {
        ok(call!(SYS_shutdown, pair()[0], libc::SHUT_RDWR))
    }),
    ("ioctl", || {
        let on: c_int = 1;
        ok(call!(SYS_ioctl, CONTROL, libc::FIONBIO, &raw const on))
    }),
    ("eventfd2", || {
        ok(call!(SYS_eventfd2, 0, libc::EFD_NONBLOCK))
    }),
    ("setitimer", || {
        ok(call!(SYS_setitimer, libc::ITIMER_VIRTUAL, memory(), 0))
    }),
    ("pipe2", || ok(call!(SYS_pipe2, memory(), libc::O_CLOEXEC))),
    ("socketpair", || i32::from(pair()[0] < 0)),
    ("getuid", || ok(call!(SYS_getuid))),
    ("geteuid", || ok(call!(SYS_geteuid))),
    // Storing.
    ("openat", || ok(some_file())),
    ("lseek", || {
        ok(call!(SYS_lseek, state_file(), 0, libc::SEEK_END))
    }),
    ("pread64", || {
        ok(call!(SYS_pread64, some_file(), memory(), 8, 0))
    }),
    ("pwrite64", || {
        ok(call!(SYS_pwrite64, state_file(), memory(), 8, 0))
    }),
    ("fsync", || ok(call!(SYS_fsync, state_file()))),
    ("fdatasync", || ok(call!(SYS_fdatasync, state_file()))),
    ("ftruncate", || ok(call!(SYS_ftruncate, state_file(), 100))),
    ("fallocate", || {
        ok(call!(SYS_fallocate, memory_file(), 0, 0, PAGE))
    }),
    ("flock", || {
        ok(call!(
            SYS_flock,
            state_file(),
            libc::LOCK_EX | libc::LOCK_NB
        ))
    }),
    ("unlinkat", || {
        state_file();
        ok(call!(SYS_unlinkat, STATE, c"file".as_ptr(), 0))
    }),
    ("renameat", || {
        state_file();
        ok(call!(
            SYS_renameat,
            STATE,
            c"file".as_ptr(),
            STATE,
            c"aside".as_ptr()
        ))
    }),
    ("renameat2", || {
        state_file();
        ok(call!(
            SYS_renameat2,
            STATE,
            c"file".as_ptr(),
            STATE,
            c"aside".as_ptr(),
            libc::RENAME_NOREPLACE
        ))
    }),
    ("getdents64", || {
        let folder = call!(SYS_openat, STATE, c".".as_ptr(), libc::O_DIRECTORY);
        ok(call!(SYS_getdents64, folder, memory(), PAGE))
    }),
    ("memfd_create", || {
        let file = memory_file();
        ok(call!(
            SYS_fcntl,
            file,
            libc::F_ADD_SEALS,
            libc::F_SEAL_SHRINK
        ))
    }),
    ("fchmod", || ok(call!(SYS_fchmod, memory_file(), 0o600))),
    // Becoming another program: `the_solver_becomes_z3` does it all in earnest.
    ("dup2", || ok(call!(SYS_dup2, CONTROL, 0))),
    ("execveat", || {
        let (nowhere, program) = (1, LISTENER);
        let flags = libc::AT_EMPTY_PATH;
        fails(
            call!(SYS_execveat, program, nowhere, NONE, NONE, flags),
            libc::EFAULT,
        )
    }),
    ("access", || {
        fails(
            call!(SYS_access, c"/etc/ld.so.preload".as_ptr(), libc::R_OK),
            libc::ENOENT,
        )
    }),
    ("arch_prctl", || {
        const SET_FS: c_int = 0x1002;
        fails(call!(SYS_arch_prctl, SET_FS, u64::MAX), libc::EPERM)
    }),
    ("set_tid_address", || {
        ok(call!(SYS_set_tid_address, memory()))
    }),
    ("prlimit64", || {
        ok(call!(SYS_prlimit64, 0, libc::RLIMIT_STACK, NONE, memory()))
    }),
];
