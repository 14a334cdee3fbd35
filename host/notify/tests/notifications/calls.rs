//! Raw system calls, in this architecture's convention and in the old one.

use std::os::fd::RawFd;

/// A call with up to six arguments; its value or its error number.
pub(crate) fn raw(number: i64, arguments: [u64; 6]) -> Result<i64, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the probes pass numbers, or addresses of what they keep for the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(result)
    }
}

/// A call by `int 0x80`: of i386, whatever the program is.
pub(crate) fn i386(number: u32, a: u32, b: u32, c: u32) -> i32 {
    let result: i32;
    // SAFETY: the calls tried take numbers, or are refused before they look at any
    // pointer. rbx cannot be named, so it is swapped in and out.
    unsafe {
        core::arch::asm!(
            "xchg rbx, {b:r}",
            "int 0x80",
            "xchg rbx, {b:r}",
            b = inout(reg) u64::from(a) => _,
            inlateout("eax") number => result,
            in("ecx") b,
            in("edx") c,
            in("esi") 0,
            in("edi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

pub(crate) fn socket(domain: i32) -> Result<RawFd, i32> {
    raw(
        libc::SYS_socket,
        [domain as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0],
    )
    .map(|fd| fd as RawFd)
}

/// connect(2) to 192.0.2.7:4242.
pub(crate) fn connect(fd: RawFd) -> Result<i64, i32> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 4242_u16.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([192, 0, 2, 7]),
        },
        sin_zero: [0; 8],
    };
    let length = size_of_val(&address) as u64;
    let at = (&raw const address).addr() as u64;
    raw(libc::SYS_connect, [fd as u64, at, length, 0, 0, 0])
}
