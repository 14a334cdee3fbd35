//! What runs under the filter.

use crate::calls::{connect, i386, raw, socket};
use host_notify::filter;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// Ends the probe where something is not so.
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            eprintln!("line {}: not so: {}", line!(), stringify!($condition));
            return false;
        }
    };
}

pub(crate) fn run(what: &str, rest: &[&str]) -> ExitCode {
    let fine = match what {
        "connects" => connects(),
        "connects-in-a-thread" => std::thread::spawn(connects).join().unwrap(),
        "io-uring" => io_uring(),
        "i386" => old_convention(),
        "x32" => x32(),
        "allowed" => allowed(),
        "range" => range(rest[0].parse().unwrap(), rest[1].parse().unwrap()),
        "put-at" => put_at(),
        "second-listener" => {
            filter::install(&filter::program()).err() == Some(host_notify::Errno::BUSY)
        }
        "filter-of-its-own" => filter_of_its_own(),
        "may-gain-privileges" => may_gain_privileges(),
        "two-threads" => two_threads(),
        "enosys" => enosys(),
        _ => false,
    };
    if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(99)
    }
}

/// Makes an internet socket, connects it, and hears what it says.
fn connects() -> bool {
    let fd = match socket(libc::AF_INET) {
        Ok(fd) => fd,
        Err(number) => {
            eprintln!("socket: {number}");
            return false;
        }
    };
    check!(connect(fd) == Ok(0));
    // SAFETY: the operator has just made this descriptor for us.
    let mut stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    check!(stream.write_all(b"hello").is_ok());
    let mut heard = [0; 5];
    check!(stream.read_exact(&mut heard).is_ok());
    check!(&heard == b"hello");
    true
}

fn io_uring() -> bool {
    for number in [libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        check!(raw(number, [0; 6]) == Err(libc::ENOSYS));
    }
    // Who asks for one is answered by the operator, which counts it.
    check!(raw(libc::SYS_io_uring_setup, [0; 6]) == Err(libc::EIO));
    true
}

fn old_convention() -> bool {
    // getpid is there, so it is the filter that refuses the others.
    check!(i386(20, 0, 0, 0) == std::process::id() as i32);
    let refused = [
        102, 337, 345, 359, 360, 361, 362, 364, 366, 369, 373, 417, 425, 426, 427,
    ];
    for number in refused {
        check!(i386(number, 2, 1, 0) == -libc::ENOSYS);
    }
    // close is not refused: EBADF.
    check!(i386(6, 9_999, 0, 0) == -libc::EBADF);
    true
}

fn x32() -> bool {
    // getpid, socket, and recvfrom of x32.
    for number in [39, 41, 517] {
        check!(raw(number | 0x4000_0000, [0; 6]) == Err(libc::ENOSYS));
    }
    true
}

/// Nobody answers here: what is notified would hang.
fn allowed() -> bool {
    check!(socket(libc::AF_UNIX).is_ok());
    let netlink = [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 0, 0, 0, 0];
    check!(raw(libc::SYS_socket, netlink).is_ok());
    let (mut a, mut b) = UnixStream::pair().unwrap();
    check!(a.write_all(b"x").is_ok() && b.read_exact(&mut [0]).is_ok());
    // The upper half of a descriptor, which the kernel does not look at.
    let fd = a.as_raw_fd() as u64 | (7 << 32);
    let text = b"y".as_ptr().addr() as u64;
    check!(raw(libc::SYS_sendto, [fd, text, 1, 0, 0, 0]) == Ok(1));
    for name in filter::PLAIN {
        let (mut value, mut length) = ([0_u64; 2], 16_u32);
        let at = (&raw mut value).addr() as u64;
        let length_at = (&raw mut length).addr() as u64;
        let option = [a.as_raw_fd() as u64, 1, name as u64, at, length_at, 0];
        check!(raw(libc::SYS_getsockopt, option) == Ok(0));
    }
    // No descriptor at all.
    check!(raw(libc::SYS_recvmsg, [u64::MAX, 0, 0, 0, 0, 0]) == Err(libc::EBADF));
    true
}

/// The operator says EIO to all that it hears of.
fn range(from: u64, to: u64) -> bool {
    let refused = Err(libc::EIO);
    check!(socket(libc::AF_INET6) == Err(libc::EIO));
    check!(raw(libc::SYS_socket, [(7 << 32) | 2, 1, 0, 0, 0, 0]) == refused);
    check!(raw(libc::SYS_socketpair, [libc::AF_INET as u64, 1, 0, 0, 0, 0]) == refused);
    let always = [
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_setsockopt,
        libc::SYS_getsockopt,
    ];
    for number in always {
        check!(raw(number, [9_999, 0, 0, 0, 0, 0]) == refused);
    }
    // An option by the same number of another level.
    for level in [libc::SOL_TCP, libc::SOL_IP, libc::SOL_IPV6] {
        for name in filter::PLAIN {
            let option = [9_999, level as u64, name as u64, 0, 0, 0];
            let unseen = level == libc::SOL_TCP && filter::UNSEEN.contains(&name);
            check!(raw(libc::SYS_setsockopt, option) == if unseen { Ok(0) } else { refused });
            check!(raw(libc::SYS_getsockopt, option) == refused);
        }
    }
    for name in filter::UNSEEN {
        let option = [9_999, libc::SOL_TCP as u64, name as u64, 0, 0, 0];
        check!(raw(libc::SYS_setsockopt, option) == Ok(0));
        check!(raw(libc::SYS_getsockopt, option) == refused);
    }
    let by_number = [
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
    ];
    let bad = Err(libc::EBADF);
    let others = [from - 1, to, to + 60_000, u64::MAX];
    for number in by_number {
        for fd in [from, to - 1, (from + 5) | (9 << 32)] {
            check!(raw(number, [fd, 0, 0, 0, 0, 0]) == refused);
        }
        for fd in others {
            check!(raw(number, [fd, 0, 0, 0, 0, 0]) == bad);
        }
    }
    for number in [libc::SYS_sendto, libc::SYS_recvfrom] {
        check!(raw(number, [from, 0, 0, 0, 8, 16]) == refused);
        check!(raw(number, [to - 1, 0, 0, 0, 1 << 40, 16]) == refused);
        check!(raw(number, [from, 0, 0, 0, 0, 0]) == bad);
        for fd in others {
            check!(raw(number, [fd, 0, 0, 0, 8, 16]) == bad);
        }
    }
    true
}

/// The operator puts what is asked for at 700, and then where this limit does not allow it.
fn put_at() -> bool {
    let fd = socket(libc::AF_INET);
    check!(fd == Ok(700));
    let limit = libc::rlimit {
        rlim_cur: 600,
        rlim_max: 600,
    };
    let at = (&raw const limit).addr() as u64;
    let nofile = u64::from(libc::RLIMIT_NOFILE);
    check!(raw(libc::SYS_setrlimit, [nofile, at, 0, 0, 0, 0]) == Ok(0));
    check!(socket(libc::AF_INET) == Err(libc::EMFILE));
    true
}

fn filter_of_its_own() -> bool {
    let allow = [libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: allow.as_ptr().cast_mut(),
    };
    let at = (&raw const program).addr() as u64;
    check!(raw(libc::SYS_seccomp, [1, 0, at, 0, 0, 0]) == Ok(0));
    connects()
}

fn may_gain_privileges() -> bool {
    rustix::thread::no_new_privs() == Ok(false)
}

/// The first call is lost with the first operator (ECANCELED by the second, who cannot know
/// what it asked), the second is answered.
fn two_threads() -> bool {
    let first = std::thread::spawn(|| socket(libc::AF_INET));
    // Until the first operator must have received it. Its end is what the second waits for.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let second = socket(libc::AF_INET);
    let first = first.join().unwrap();
    let lost = Err(libc::ECANCELED);
    check!((first == lost) != (second == lost));
    check!(first.is_ok() != second.is_ok());
    true
}

/// The operator dies with the first call, and nobody else has the listener.
fn enosys() -> bool {
    check!(socket(libc::AF_INET) == Err(libc::ENOSYS));
    check!(socket(libc::AF_INET) == Err(libc::ENOSYS));
    true
}
