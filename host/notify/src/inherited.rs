//! Descriptors that a program has from who starts it.
#![expect(
    unsafe_code,
    reason = "numbers of descriptors that /proc lists are asked about"
)]

use guard::guard;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use std::os::fd::{BorrowedFd, RawFd};

/// Of what a started program would have, sockets of other families than AF_UNIX are not handed on, but as its
/// input, output and errors: what goes by one would pass every rule by. Their numbers.
///
/// # Errors
/// The kernel's: they cannot be looked at (no /proc).
pub fn keep_network_sockets() -> std::io::Result<Vec<RawFd>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let numbers: Vec<RawFd> = names.filter_map(|it| it.to_str()?.parse().ok()).collect();
    let mut kept = Vec::new();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // SAFETY: it is used here alone, and by calls that fail on a number that is nobody's: nothing is read or
        // written by it, nor is it closed.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let is_network = socket_domain(fd).is_ok_and(|domain| domain != AddressFamily::UNIX);
        let flags = fcntl_getfd(fd).unwrap_or(FdFlags::CLOEXEC);
        if is_network
            && guard!("run-network")
            && !flags.contains(FdFlags::CLOEXEC)
            && fcntl_setfd(fd, FdFlags::CLOEXEC).is_ok()
        {
            kept.push(number);
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketType, socket, socketpair};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_of_the_network_is_not_handed_on() {
        let open = |family| socket(family, SocketType::STREAM, None).unwrap();
        let network = [open(AddressFamily::INET), open(AddressFamily::INET6)];
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            rustix::net::SocketFlags::empty(),
            None,
        )
        .unwrap();
        let kept = keep_network_sockets().unwrap();
        for fd in &network {
            assert!(kept.contains(&fd.as_raw_fd()));
            assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        }
        for fd in [one, other] {
            assert_eq!(fcntl_getfd(&fd).unwrap(), FdFlags::empty());
        }
    }
}
