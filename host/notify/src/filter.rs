//! The filter that notifies, as a table and as the kernel's program.
#![expect(
    unsafe_code,
    reason = "seccomp(2) has no safe wrapper that makes a listener"
)]

use core::ops::Range;
use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd};

/// Descriptors of these numbers are ones whose messages the operator takes too (UDP): a
/// filter cannot see what a descriptor is, only its number. At others sending and receiving
/// are never notified. They are high, so that what a program opens seldom gets there by
/// itself, and below the 1024 that select(2) knows and that programs may open by default.
pub const MEDIATED: Range<u32> = 512..1024;

/// When a listed call is notified. Only 32 bits of a descriptor or a domain count, as in
/// the kernel, which takes them for an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Whatever its arguments.
    Always,
    /// Unless the first argument, a domain, is one of these.
    DomainOtherThan(&'static [i32]),
    /// Unless it is about one of these options of SOL_SOCKET, which are those of whatever
    /// socket a descriptor is: of a circuit too, nothing in them differs from TCP's.
    OptionOtherThan(&'static [i32]),
    /// The same; and one of [`UNSEEN`] is set at once (0), whatever the value.
    OptionToSet(&'static [i32]),
    /// If the first argument is a descriptor of [`MEDIATED`].
    Mediated,
    /// The same, and the fifth, a destination or where a source is to be told, is not null.
    MediatedWithName,
    /// Never: it does not exist (ENOSYS).
    Refused,
    /// Where these bits of an argument are one of these it fails, else it is allowed.
    RefusedWhere {
        /// Which argument, from 0 on.
        argument: u32,
        /// Of its low half.
        mask: u32,
        /// What they are.
        values: &'static [u32],
        /// Why it fails.
        errno: i32,
    },
}

/// What is done with the calls of x86_64; all others are allowed. That it is an AF_UNIX
/// socket (the C library asks nscd by one) a filter cannot see: the operator lets those
/// proceed. The often made ones
/// first: those that depend on arguments the kernel cannot decide once for all.
pub const CALLS: &[(i64, When)] = &[
    (libc::SYS_sendto, When::MediatedWithName),
    (libc::SYS_recvfrom, When::MediatedWithName),
    (libc::SYS_sendmsg, When::Mediated),
    (libc::SYS_recvmsg, When::Mediated),
    (libc::SYS_sendmmsg, When::Mediated),
    (libc::SYS_recvmmsg, When::Mediated),
    (
        libc::SYS_socket,
        When::DomainOtherThan(&[libc::AF_UNIX, libc::AF_NETLINK]),
    ),
    (
        libc::SYS_socketpair,
        When::DomainOtherThan(&[libc::AF_UNIX]),
    ),
    (libc::SYS_accept4, When::Always),
    (libc::SYS_accept, When::Always),
    (libc::SYS_connect, When::Always),
    (libc::SYS_bind, When::Always),
    (libc::SYS_listen, When::Always),
    (libc::SYS_shutdown, When::Always),
    (libc::SYS_getsockname, When::Always),
    (libc::SYS_getpeername, When::Always),
    (libc::SYS_setsockopt, When::OptionToSet(&PLAIN)),
    (libc::SYS_getsockopt, When::OptionOtherThan(&PLAIN)),
    // Its requests make sockets past every filter: who asks for it is refused, and counted.
    (libc::SYS_io_uring_setup, When::Always),
    (libc::SYS_io_uring_enter, When::Refused),
    (libc::SYS_io_uring_register, When::Refused),
    // Pages taken out of a ring's memory: while the kernel does that for who has mapped it some hundred thousand times
    // the other end's program, of another tenant perhaps, waits for seconds at each access. A filter cannot see of what file.
    (
        libc::SYS_fallocate,
        When::RefusedWhere {
            argument: 1,
            mask: libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned(),
            values: &[libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned()],
            errno: libc::EOPNOTSUPP,
        },
    ),
    (
        libc::SYS_madvise,
        When::RefusedWhere {
            argument: 2,
            mask: u32::MAX,
            values: &TAKES_PAGES,
            errno: libc::EINVAL,
        },
    ),
    // Of the caller's own memory it takes any advice (Linux 6.13).
    (
        libc::SYS_process_madvise,
        When::RefusedWhere {
            argument: 3,
            mask: u32::MAX,
            values: &TAKES_PAGES,
            errno: libc::EINVAL,
        },
    ),
    (libc::SYS_ioctl, IOCTL),
];

/// What a file's space is given up by, as file systems of their own began it: FS_IOC_UNRESVSP and FS_IOC_UNRESVSP64, whose
/// numbers' upper halves are i386's own there.
const IOCTL: When = When::RefusedWhere {
    argument: 1,
    mask: 0xffff,
    values: &[0x5829, 0x582b],
    errno: libc::EOPNOTSUPP,
};

/// ioctl's number of i386.
const IOCTL_I386: u32 = 54;

/// Advice by which pages of a file leave whoever has them mapped: taken out, or put together to larger ones
/// (MADV_COLLAPSE, 25).
const TAKES_PAGES: [u32; 2] = [libc::MADV_REMOVE.cast_unsigned(), 25];

/// Options that the kernel answers for: those that programs ask for at every connection.
pub const PLAIN: [i32; 7] = [
    libc::SO_ERROR,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_RCVTIMEO,
    // Set at the beginning of each ring.
    libc::SO_OOBINLINE,
];

/// Options of TCP that change nothing at a circuit, which neither delays nor holds back what is
/// sent. Programs set them at every connection, or at every answer.
pub const UNSEEN: [i32; 3] = [libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_QUICKACK];

/// The calls of i386 that do not exist, first to last: all about sockets and io_uring, and what takes pages out of files.
/// A 32-bit program runs, without a network.
pub const REFUSED_I386: &[(u32, u32)] = &[
    // socketcall
    (102, 102),
    // madvise
    (219, 219),
    // fallocate
    (324, 324),
    // recvmmsg, sendmmsg
    (337, 337),
    (345, 345),
    // socket to shutdown
    (359, 373),
    // recvmmsg with 64-bit time
    (417, 417),
    // io_uring
    (425, 427),
    // process_madvise
    (440, 440),
];

/// Set in the number of every call by the x32 convention: refused altogether.
const X32: u32 = 0x4000_0000;
const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;

/// What the kernel says when it executes one.
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const DONE: u32 = libc::SECCOMP_RET_ERRNO;
const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}
const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

type Instruction = libc::sock_filter;

/// BPF_LD | BPF_W | BPF_ABS
const fn load(offset: u32) -> Instruction {
    instruction(0x20, 0, 0, offset)
}
/// BPF_RET | BPF_K
const fn end(with: u32) -> Instruction {
    instruction(0x06, 0, 0, with)
}
/// BPF_JMP | BPF_JEQ | BPF_K: over so many where it is, over so many where not.
const fn equal(to: u32, yes: u8, no: u8) -> Instruction {
    instruction(0x15, yes, no, to)
}
/// BPF_JMP | BPF_JGE | BPF_K
const fn at_least(least: u32, yes: u8, no: u8) -> Instruction {
    instruction(0x35, yes, no, least)
}
/// BPF_JMP | BPF_JSET | BPF_K
const fn has_bit(bit: u32, yes: u8, no: u8) -> Instruction {
    instruction(0x45, yes, no, bit)
}
/// BPF_ALU | BPF_AND | BPF_K
const fn masked(mask: u32) -> Instruction {
    instruction(0x54, 0, 0, mask)
}
const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// The table as the kernel's program. No argument is loaded before the number is known:
/// the kernel then finds out by itself which calls are always allowed and does not run
/// the program for them.
pub fn program() -> Vec<Instruction> {
    let mut program = vec![load(ARCH), equal(ARCH_X86_64, 0, 0)];
    let mut foreign = vec![equal(ARCH_I386, 1, 0), end(NO_SUCH_CALL), load(NUMBER)];
    for &(first, last) in REFUSED_I386 {
        foreign.extend([
            at_least(first, 0, 2),
            at_least(last + 1, 1, 0),
            end(NO_SUCH_CALL),
        ]);
    }
    let ioctl = body(IOCTL);
    foreign.push(equal(IOCTL_I386, 0, short(ioctl.len())));
    foreign.extend(ioctl);
    foreign.push(end(ALLOW));
    // x86_64 is over what follows for the others.
    if let Some(is_x86_64) = program.last_mut() {
        is_x86_64.jt = short(foreign.len());
    }
    program.extend(foreign);
    program.extend([load(NUMBER), has_bit(X32, 0, 1), end(NO_SUCH_CALL)]);
    for &(number, when) in CALLS {
        let body = body(when);
        program.push(equal(number as u32, 0, short(body.len())));
        program.extend(body);
    }
    program.push(end(ALLOW));
    program
}

/// What decides about one call; ends in every case.
fn body(when: When) -> Vec<Instruction> {
    // A negative descriptor, which is none, is a high number here.
    let mediated = [
        load(low(0)),
        at_least(MEDIATED.end, 1, 0),
        at_least(MEDIATED.start, 1, 0),
        end(ALLOW),
    ];
    match when {
        When::Always => vec![end(NOTIFY)],
        When::Refused => vec![end(NO_SUCH_CALL)],
        When::RefusedWhere {
            argument,
            mask,
            values,
            errno,
        } => {
            let mut body = vec![load(low(argument)), masked(mask)];
            for value in values {
                body.extend([equal(*value, 0, 1), end(DONE | errno.cast_unsigned())]);
            }
            body.push(end(ALLOW));
            body
        }
        When::DomainOtherThan(domains) => {
            let mut body = vec![load(low(0))];
            for domain in domains {
                body.extend([equal(domain.cast_unsigned(), 0, 1), end(ALLOW)]);
            }
            body.push(end(NOTIFY));
            body
        }
        When::OptionOtherThan(names) => {
            [&options(libc::SOL_SOCKET, names, ALLOW)[..], &[end(NOTIFY)]].concat()
        }
        When::OptionToSet(names) => [
            &options(libc::SOL_TCP, &UNSEEN, DONE)[..],
            &options(libc::SOL_SOCKET, names, ALLOW),
            &[end(NOTIFY)],
        ]
        .concat(),
        When::Mediated => [&mediated[..], &[end(NOTIFY)]].concat(),
        When::MediatedWithName => {
            let name = [
                load(low(4)),
                equal(0, 0, 2),
                load(high(4)),
                equal(0, 1, 0),
                end(NOTIFY),
                end(ALLOW),
            ];
            [&mediated[..], &name].concat()
        }
    }
}

/// What ends so where it is about one of these options of this level.
fn options(level: i32, names: &[i32], so: u32) -> Vec<Instruction> {
    let after = short(1 + 2 * names.len());
    let mut body = vec![
        load(low(1)),
        equal(level.cast_unsigned(), 0, after),
        load(low(2)),
    ];
    for name in names {
        body.extend([equal(name.cast_unsigned(), 0, 1), end(so)]);
    }
    body
}

/// INVARIANT: the tables are constants and a body is a dozen instructions, so a jump is
/// less than 256; the tests make the program.
fn short(length: usize) -> u8 {
    assert!(length < 256, "a jump too far");
    length as u8
}

/// Installs the filter on the calling thread, for good and for all that comes of it, and
/// returns the listener (close-on-exec). The thread needs CAP_SYS_ADMIN in its user
/// namespace, or no_new_privs.
///
/// A signal ends the wait for an answer, as it ends a blocking accept(2) or connect(2): with
/// EINTR, or the call is made anew. The operator finds the answer refused then, and knows the
/// call when it comes again (docs/decisions/0023).
///
/// # Errors
/// INVAL: Linux 5.0 is needed. BUSY: there is a listener already, as inside another
/// supervisor's container. ACCES: neither the capability nor no_new_privs.
pub fn install(program: &[Instruction]) -> Result<OwnedFd, Errno> {
    const FLAGS: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions, writes none, and checks them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            FLAGS,
            &raw const program,
        )
    };
    match i32::try_from(result) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => {
            let number = std::io::Error::last_os_error().raw_os_error();
            Err(Errno::from_raw_os_error(number.unwrap_or(libc::EIO)))
        }
    }
}
