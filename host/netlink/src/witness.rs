//! A socket that tells of the sockets of the current network namespace, and of one at a time only:
//! for who is to know whether those live that it knows of, and nothing of others.
#![expect(
    unsafe_code,
    reason = "SO_ATTACH_FILTER takes a pointer, and has no safe wrapper"
)]

use crate::NetlinkError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use std::os::fd::{AsRawFd, OwnedFd};

/// NLM_F_MULTI: of a list.
const MULTI: u32 = 2;
/// NLMSG_ERROR: there is none.
const ERROR: u32 = 2;
/// Bytes of what is told of a socket that nothing more is asked of: struct nlmsghdr, struct
/// unix_diag_msg, and its UNIX_DIAG_SHUTDOWN.
const PLAIN: u32 = 40;

/// Makes one (sock_diag(7)). Of AF_UNIX sockets it answers whether that of an inode and a cookie is
/// there. Lists, names, peers and what waits in queues are held back by a filter that nobody takes
/// off again.
///
/// # Errors
/// [`NetlinkError::Socket`].
pub fn witness() -> Result<OwnedFd, NetlinkError> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::SOCK_DIAG);
    let made = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
    let made = made.map_err(|errno| NetlinkError::Socket(errno.into()))?;
    let load = |size: u32, at: u32| line(libc::BPF_LD | libc::BPF_ABS | size, [0, 0], at);
    let jump = |how: u32, to: [u8; 2], k: u32| line(libc::BPF_JMP | libc::BPF_K | how, to, k);
    let ends = |k: u32| line(libc::BPF_RET | libc::BPF_K, [0, 0], k);
    let mut filter = [
        // nlmsg_flags, whose first byte has it here.
        load(libc::BPF_B, 6),
        jump(libc::BPF_JSET, [5, 0], MULTI),
        // nlmsg_type.
        load(libc::BPF_B, 4),
        jump(libc::BPF_JEQ, [2, 0], ERROR),
        // nlmsg_len, which is not in the network's order.
        load(libc::BPF_W, 0),
        jump(libc::BPF_JEQ, [0, 1], PLAIN.swap_bytes()),
        ends(u32::MAX),
        ends(0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the program, and the instructions that it points to, both of which
    // outlive the call.
    let attached = unsafe {
        libc::setsockopt(
            made.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    done(attached)?;
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one int.
    let locked = unsafe {
        libc::setsockopt(
            made.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LOCK_FILTER,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    done(locked)?;
    Ok(made)
}

fn line(code: u32, [jt, jf]: [u8; 2], k: u32) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

fn done(result: libc::c_int) -> Result<(), NetlinkError> {
    match result {
        0 => Ok(()),
        _ => Err(NetlinkError::Socket(std::io::Error::last_os_error())),
    }
}
