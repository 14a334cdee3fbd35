//! `libbulkhead`: circuits for programs in C. What each function does stands in `bulkhead.h`.
#![expect(unsafe_code, reason = "pointers of C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the caller is C: bulkhead.h says what it must keep to"
)]

use bulkhead::{Circuit, Way};
use std::ffi::{c_int, c_uint, c_void};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::slice;
use std::time::Duration;

/// A circuit.
pub struct Handle {
    circuit: Circuit,
    /// What may be consumed: C has no type that holds its caller to it.
    peeked: usize,
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub extern "C" fn bulkhead_from_fd(fd: c_int) -> *mut Handle {
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller gives it away.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Box::into_raw(Box::new(Handle {
        circuit: Circuit::from_fd(fd),
        peeked: 0,
    }))
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_close(circuit: *mut Handle) {
    if !circuit.is_null() {
        // SAFETY: of `bulkhead_from_fd`, and used no more.
        drop(unsafe { Box::from_raw(circuit) });
    }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_fd(circuit: *const Handle) -> c_int {
    // SAFETY: of `bulkhead_from_fd`, or null.
    match unsafe { circuit.as_ref() } {
        Some(handle) => handle.circuit.as_fd().as_raw_fd(),
        None => -1,
    }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_is_ring(circuit: *mut Handle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(circuit, |it| Ok(isize::from(it.circuit.way() == Way::Ring))) as c_int }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_set_nonblocking(circuit: *mut Handle, on: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(circuit, |it| {
            it.circuit.set_nonblocking(on != 0).map(|()| 0)
        }) as c_int
    }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_set_spin_us(circuit: *mut Handle, microseconds: c_uint) {
    let spin = Duration::from_micros(microseconds.into());
    let set = |it: &mut Handle| {
        it.circuit.set_spin(spin);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    let _ = unsafe { with(circuit, set) };
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_set_polled(circuit: *mut Handle, polled: c_int) {
    let set = |it: &mut Handle| {
        it.circuit.set_polled(polled != 0);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    let _ = unsafe { with(circuit, set) };
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_read(
    circuit: *mut Handle,
    bytes: *mut c_void,
    length: usize,
) -> isize {
    if length == 0 || bytes.is_null() {
        return of_nothing(length);
    }
    // SAFETY: the caller's promise: so many bytes that nobody else touches meanwhile.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
    // SAFETY: the caller's promise.
    unsafe {
        with(circuit, |it| {
            it.peeked = 0;
            it.circuit.read(bytes).map(|n| n as isize)
        })
    }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_write(
    circuit: *mut Handle,
    bytes: *const c_void,
    length: usize,
) -> isize {
    if length == 0 || bytes.is_null() {
        return of_nothing(length);
    }
    // SAFETY: the caller's promise: so many bytes that nobody changes meanwhile.
    let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) };
    // SAFETY: the caller's promise.
    unsafe { with(circuit, |it| it.circuit.write(bytes).map(|n| n as isize)) }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_reserve(
    circuit: *mut Handle,
    least: usize,
    at: *mut *mut c_void,
) -> isize {
    let reserve = |it: &mut Handle| {
        let (place, length) = it.circuit.reserve(least)?.into_place();
        if !at.is_null() {
            // SAFETY: the caller's promise: a pointer that may be written.
            unsafe { at.write(place.as_ptr().cast()) };
        }
        Ok(length as isize)
    };
    // SAFETY: the caller's promise.
    unsafe { with(circuit, reserve) }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_commit(circuit: *mut Handle, length: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { with(circuit, |it| it.circuit.commit(length).map(|n| n as isize)) }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_peek(circuit: *mut Handle, at: *mut *const c_void) -> isize {
    let peek = |it: &mut Handle| {
        it.peeked = 0;
        let peeked = it.circuit.peek()?;
        if !at.is_null() {
            // SAFETY: the caller's promise: a pointer that may be written.
            unsafe { at.write(peeked.place().as_ptr().cast()) };
        }
        it.peeked = peeked.len();
        Ok(it.peeked as isize)
    };
    // SAFETY: the caller's promise.
    unsafe { with(circuit, peek) }
}

/// See `bulkhead.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bulkhead_consume(circuit: *mut Handle, length: usize) -> c_int {
    let consume = |it: &mut Handle| {
        it.peeked = it
            .peeked
            .checked_sub(length)
            .ok_or(ErrorKind::InvalidInput)?;
        it.circuit.consume(length);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(circuit, consume) as c_int }
}

/// Does it, and turns an error into errno and -1.
///
/// # Safety
/// The pointer is null, or of `bulkhead_from_fd` and not closed, and nobody else uses it now.
unsafe fn with(
    circuit: *mut Handle,
    does: impl FnOnce(&mut Handle) -> std::io::Result<isize>,
) -> isize {
    // SAFETY: the caller's promise.
    let Some(handle) = (unsafe { circuit.as_mut() }) else {
        return failed(libc::EINVAL);
    };
    does(handle).unwrap_or_else(|error| failed(number(&error)))
}

/// Of no bytes: nothing; of a null pointer to some: an error.
fn of_nothing(length: usize) -> isize {
    match length {
        0 => 0,
        _ => failed(libc::EFAULT),
    }
}

fn number(error: &Error) -> c_int {
    match error.kind() {
        _ if error.raw_os_error().is_some() => error.raw_os_error().unwrap_or(libc::EIO),
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        _ => libc::EIO,
    }
}

fn failed(errno: c_int) -> isize {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

#[cfg(test)]
mod tests;
