//! Names and options of sockets whose family is not known: as bytes.
#![expect(
    unsafe_code,
    reason = "getsockopt(2) and getsockname(2) with bytes of any family have no safe wrapper"
)]

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// SO_PASSRIGHTS (asm-generic/socket.h), since Linux 6.16.
pub const PASS_RIGHTS: i32 = 83;
/// Bytes of the longest name (struct sockaddr_storage).
const NAME: usize = 128;

/// Nobody can pass a descriptor to who receives from this socket, nor from one that it
/// accepts, which inherits that.
///
/// # Errors
/// NOPROTOOPT: Linux 6.16 is needed.
pub fn refuse_descriptors(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_option(fd, libc::SOL_SOCKET, PASS_RIGHTS, &0_i32.to_ne_bytes())
}

/// Whether that is so.
///
/// # Errors
/// The kernel's.
pub fn refuses_descriptors(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut passes = [0; 4];
    option(fd, libc::SOL_SOCKET, PASS_RIGHTS, &mut passes)?;
    Ok(passes == [0; 4])
}

/// setsockopt(2).
///
/// # Errors
/// The kernel's.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `length` bytes of `value`. An option that holds a pointer is
    // not for here: the caller passes plain values only, and the kernel checks what it reads.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    checked(result)
}

/// getsockopt(2): how many bytes the value has of those that there is room for.
///
/// # Errors
/// The kernel's.
pub fn option(fd: BorrowedFd<'_>, level: i32, name: i32, into: &mut [u8]) -> Result<usize, Errno> {
    let mut length = libc::socklen_t::try_from(into.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel writes at most `length` bytes to `into`, and how many it wrote.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            into.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    checked(result).map(|()| (length as usize).min(into.len()))
}

/// getsockname(2), or getpeername(2): the whole name.
///
/// # Errors
/// The kernel's.
pub fn name_of(fd: BorrowedFd<'_>, peer: bool) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0_u8; NAME];
    let mut length = NAME as libc::socklen_t;
    let call = if peer {
        libc::getpeername
    } else {
        libc::getsockname
    };
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, and how long the name is.
    let result = unsafe { call(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut length) };
    checked(result)?;
    bytes.truncate(length as usize);
    Ok(bytes)
}

fn checked(result: i32) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let number = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(number.unwrap_or(libc::EIO)))
}
