//! Asking the operator for a circuit's memory.
#![expect(
    unsafe_code,
    reason = "getsockopt(2) of a level of its own; its descriptor"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use stream::{GIVEN, Given, LEVEL, RING, Side, VERSION};

/// The memory of a circuit, which side this is, and bytes each way, once. `None`: it has none,
/// is no circuit, or there is no operator. [`Circuit::from_fd`](crate::Circuit::from_fd) asks
/// itself.
pub fn memory_of(socket: impl AsFd) -> Option<(OwnedFd, Side, usize)> {
    let mut bytes = [0; GIVEN];
    let mut length = GIVEN as libc::socklen_t;
    // SAFETY: the kernel, or the operator in its place, writes at most `length` bytes there.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            LEVEL,
            RING,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done != 0 || length as usize != GIVEN {
        return None;
    }
    let given = Given::of(&bytes);
    if given.number < 0 {
        return None;
    }
    // SAFETY: the operator has just put it there for us.
    let memory = unsafe { OwnedFd::from_raw_fd(given.number) };
    let side = Side::of(given.side).filter(|_| given.version == VERSION)?;
    if !takes_all_in_line(socket.as_fd()) {
        return None;
    }
    Some((memory, side, given.capacity as usize))
}

/// Has what a peer sends out of band come in its turn, as any other byte: beside the others it would leave the socket
/// readable, and nothing there that is ever taken. `false`: it cannot.
#[doc(hidden)]
pub fn takes_all_in_line(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::set_socket_oobinline(socket, true).is_ok()
}
