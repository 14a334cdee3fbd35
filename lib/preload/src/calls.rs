//! The calls that move bytes.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::cancelled::{Held, may_end};
use crate::leave::left;
use crate::real::{self, fail};
use crate::receive::receive;
use crate::record::{ASKING, COUNTED, Moves, RING, Record};
use crate::send::send as ring_send;
use crate::{moves, table};
use libc::{
    MSG_OOB, MSG_PEEK, cmsghdr, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// A call on a descriptor: the kernel's where it is none that is followed, or is not by a ring;
/// counted as long as it may come to be.
#[inline]
unsafe fn moved(
    fd: c_int,
    moves: Moves,
    kernel: impl Fn() -> ssize_t,
    ring: impl Fn(&Record) -> Option<ssize_t>,
) -> ssize_t {
    let Some(record) = table::hold(fd) else {
        return kernel();
    };
    let held = Held(record);
    // Who writes found that it may, and not that its peer has answered and is gone: that it would not look at again after
    // a write that failed, so what takes a while comes after the write.
    let writes = moves == Moves::Out;
    if !writes {
        record.may_ask(fd);
    }
    // Bound: the operator's answer to who asks for the ring.
    let n = loop {
        match record.state.load(Ordering::Acquire) {
            RING => {
                may_end();
                break ring(record).unwrap_or_else(&kernel);
            }
            COUNTED => {
                if let Some(n) = record.counted(moves, &kernel) {
                    if writes {
                        record.may_ask(fd);
                    }
                    break n;
                }
            }
            ASKING => std::thread::yield_now(),
            _ => break kernel(),
        }
    };
    let errno = if n < 0 { real::errno() } else { 0 };
    drop(held);
    if n < 0 {
        real::set_errno(errno);
    }
    n
}

/// A byte out of band is about to be sent: it may be taken otherwise than in its turn, or never, which nobody counts.
fn stays(fd: c_int) {
    if let Some(held) = table::hold(fd).map(Held) {
        held.0.stay();
    }
}

/// What a receiving call with these flags moves.
fn taken(flags: c_int) -> Moves {
    match flags & MSG_PEEK {
        0 => Moves::In,
        _ => Moves::Nothing,
    }
}

fn part(at: *const c_void, n: usize) -> [iovec; 1] {
    [iovec {
        iov_base: at.cast_mut(),
        iov_len: n,
    }]
}

unsafe fn parts<'a>(parts: *const iovec, n: usize) -> Option<&'a [iovec]> {
    if n > 1024 || (parts.is_null() && n > 0) {
        return None;
    }
    if n == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(parts, n) };
    // The kernel knows lengths with a sign.
    let is_length = |it: &iovec| isize::try_from(it.iov_len).is_ok();
    parts.iter().all(is_length).then_some(parts)
}

/// No part.
pub const EMPTY: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// No more bytes than the kernel moves in a call (MAX_RW_COUNT), of these parts; `one` has room for a part of one.
pub fn within<'a>(parts: &'a [iovec], one: &'a mut [iovec; 1]) -> &'a [iovec] {
    const MOST: usize = 0x7fff_f000;
    let mut all = 0;
    for (n, part) in parts.iter().enumerate() {
        if part.iov_len <= MOST - all {
            all += part.iov_len;
            continue;
        }
        if all > 0 {
            return parts.get(..n).unwrap_or_default();
        }
        let iov_base = part.iov_base;
        *one = [iovec {
            iov_base,
            iov_len: MOST,
        }];
        return one;
    }
    parts
}

/// What `recv` with these flags does to the count of plain bytes, and whether a ring knows them.
unsafe fn received(
    fd: c_int,
    to: *mut c_void,
    n: usize,
    flags: c_int,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let by_ring = |record: &Record| match flags & (MSG_OOB | libc::MSG_ERRQUEUE) {
        // SAFETY: the caller's promise.
        0 => unsafe { receive(record, fd, &part(to, n), flags) },
        _ => Some(kernel()),
    };
    // SAFETY: the caller's promise.
    unsafe { moved(fd, taken(flags), &kernel, by_ring) }
}

unsafe fn sent(
    fd: c_int,
    from: *const c_void,
    n: usize,
    flags: c_int,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    if flags & MSG_OOB != 0 {
        stays(fd);
    }
    let by_ring = |record: &Record| match flags & MSG_OOB {
        // SAFETY: the caller's promise.
        0 => unsafe { ring_send(record, fd, &part(from, n), flags) },
        _ => Some(fail(libc::EOPNOTSUPP)),
    };
    // SAFETY: the caller's promise.
    unsafe { moved(fd, Moves::Out, &kernel, by_ring) }
}

/// Functions of C: each body is unsafe for what the C function asks of its caller.
macro_rules! exported {
    ($($name:ident($($it:ident: $is:ty),*) -> $answer:ty $body:block)*) => {$(
        /// The C function.
        ///
        /// # Safety
        /// The C function's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($it: $is),*) -> $answer {
            // SAFETY: the caller's promise, which is the C function's.
            unsafe { $body }
        }
    )*};
}
pub(crate) use exported;

exported! {
    read(fd: c_int, to: *mut c_void, n: size_t) -> ssize_t {
        received(fd, to, n, 0, || real::read(fd, to, n))
    }
    __read(fd: c_int, to: *mut c_void, n: size_t) -> ssize_t { read(fd, to, n) }
    __read_chk(fd: c_int, to: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        if n > room { std::process::abort() }
        read(fd, to, n)
    }
    recv(fd: c_int, to: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        received(fd, to, n, flags, || real::recv(fd, to, n, flags))
    }
    __recv(fd: c_int, to: *mut c_void, n: size_t, flags: c_int) -> ssize_t { recv(fd, to, n, flags) }
    __recv_chk(fd: c_int, to: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
        if n > room { std::process::abort() }
        recv(fd, to, n, flags)
    }
    recvfrom(fd: c_int, to: *mut c_void, n: size_t, flags: c_int, name: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        let kernel = || real::recvfrom(fd, to, n, flags, name, length);
        let by_ring = |record: &Record| match flags & (MSG_OOB | libc::MSG_ERRQUEUE) {
            0 => {
                let came = receive(record, fd, &part(to, n), flags);
                if came.is_some_and(|n| n >= 0) && !name.is_null() && !length.is_null() {
                    // As of TCP.
                    *length = 0;
                }
                came
            }
            _ => Some(kernel()),
        };
        moved(fd, taken(flags), kernel, by_ring)
    }
    __recvfrom_chk(fd: c_int, to: *mut c_void, n: size_t, room: size_t, flags: c_int, name: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        if n > room { std::process::abort() }
        recvfrom(fd, to, n, flags, name, length)
    }
    readv(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        let by_ring = |record: &Record| match parts(list, n as usize) {
            Some(list) => receive(record, fd, list, 0),
            None => Some(fail(libc::EINVAL)),
        };
        moved(fd, Moves::In, || real::readv(fd, list, n), by_ring)
    }
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let kernel = || real::recvmsg(fd, message, flags);
        let by_ring = |record: &Record| {
            if flags & (MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
                return Some(kernel());
            }
            let Some(message) = message.as_mut() else { return Some(fail(libc::EFAULT)) };
            let Some(list) = parts(message.msg_iov, message.msg_iovlen) else { return Some(fail(libc::EMSGSIZE)) };
            let came = receive(record, fd, list, flags);
            if came.is_some_and(|n| n >= 0) {
                (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
            }
            came
        };
        moved(fd, taken(flags), kernel, by_ring)
    }
    write(fd: c_int, from: *const c_void, n: size_t) -> ssize_t {
        sent(fd, from, n, 0, || real::write(fd, from, n))
    }
    __write(fd: c_int, from: *const c_void, n: size_t) -> ssize_t { write(fd, from, n) }
    send(fd: c_int, from: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        sent(fd, from, n, flags, || real::send(fd, from, n, flags))
    }
    __send(fd: c_int, from: *const c_void, n: size_t, flags: c_int) -> ssize_t { send(fd, from, n, flags) }
    sendto(fd: c_int, from: *const c_void, n: size_t, flags: c_int, name: *const sockaddr, length: socklen_t) -> ssize_t {
        sent(fd, from, n, flags, || real::sendto(fd, from, n, flags, name, length))
    }
    writev(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        let by_ring = |record: &Record| match parts(list, n as usize) {
            Some(list) => ring_send(record, fd, list, 0),
            None => Some(fail(libc::EINVAL)),
        };
        moved(fd, Moves::Out, || real::writev(fd, list, n), by_ring)
    }
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if !leaves_passed(message) {
            return -1;
        }
        if flags & MSG_OOB != 0 {
            stays(fd);
        }
        let by_ring = |record: &Record| {
            if flags & MSG_OOB != 0 {
                return Some(fail(libc::EOPNOTSUPP));
            }
            let Some(message) = message.as_ref() else { return Some(fail(libc::EFAULT)) };
            if passed(message).next().is_some() {
                return Some(fail(libc::EPERM));
            }
            let Some(list) = parts(message.msg_iov, message.msg_iovlen) else { return Some(fail(libc::EMSGSIZE)) };
            ring_send(record, fd, list, flags)
        };
        moved(fd, Moves::Out, || real::sendmsg(fd, message, flags), by_ring)
    }
    recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, limit: *mut libc::timespec) -> c_int {
        match left(fd) {
            true => real::recvmmsg(fd, messages, n, flags, limit),
            false => -1,
        }
    }
    sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
        if !left(fd) {
            return -1;
        }
        for at in 0..n as usize {
            if messages.is_null() || !leaves_passed(&raw const (*messages.add(at)).msg_hdr) {
                break;
            }
        }
        real::sendmmsg(fd, messages, n, flags)
    }
    preadv2(fd: c_int, list: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        match at == -1 && !left(fd) {
            true => -1,
            false => real::preadv2(fd, list, n, at, flags),
        }
    }
    preadv64v2(fd: c_int, list: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        preadv2(fd, list, n, at, flags)
    }
    pwritev2(fd: c_int, list: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        match at == -1 && !left(fd) {
            true => -1,
            false => real::pwritev2(fd, list, n, at, flags),
        }
    }
    pwritev64v2(fd: c_int, list: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        pwritev2(fd, list, n, at, flags)
    }
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, n: size_t, flags: c_uint) -> ssize_t {
        match left(from) && left(to) {
            true => real::splice(from, from_at, to, to_at, n, flags),
            false => -1,
        }
    }
    sendfile(out: c_int, from: c_int, at: *mut off_t, n: size_t) -> ssize_t {
        if !left(from) {
            return -1;
        }
        let by_ring = |record: &Record| {
            let offset = if at.is_null() { libc::lseek(from, 0, libc::SEEK_CUR) } else { *at };
            if offset < 0 {
                let is_none = at.is_null() && real::errno() == libc::EBADF;
                return Some(fail(if is_none { libc::EBADF } else { libc::EINVAL }));
            }
            let went = moves::send_file(record, out, from, offset, n.min(0x7fff_f000))?;
            if went > 0 && at.is_null() {
                libc::lseek(from, offset + went as i64, libc::SEEK_SET);
            } else if went > 0 {
                *at = offset + went as i64;
            }
            Some(went)
        };
        moved(out, Moves::Out, || real::sendfile(out, from, at, n), by_ring)
    }
    sendfile64(out: c_int, from: c_int, at: *mut off_t, n: size_t) -> ssize_t { sendfile(out, from, at, n) }
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        match left(fd) {
            true => real::vdprintf(fd, format, arguments),
            false => -1,
        }
    }
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        match left(fd) {
            true => real::__vdprintf_chk(fd, flag, format, arguments),
            false => -1,
        }
    }
}

/// Sockets that a message passes to somebody else leave their rings; `false`: one cannot.
///
/// # Safety
/// None, or one for `sendmsg`.
pub unsafe fn leaves_passed(message: *const msghdr) -> bool {
    // SAFETY: the caller's promise: a message for `sendmsg`, whose control bytes are as it says.
    unsafe {
        message
            .as_ref()
            .is_none_or(|message| passed(message).all(left))
    }
}

/// Descriptors that a message passes to somebody else.
///
/// # Safety
/// Its control bytes are as it says.
unsafe fn passed(message: &msghdr) -> impl Iterator<Item = c_int> {
    // One whose length goes round would come again.
    let behind = |at: *mut cmsghdr, before: *mut cmsghdr| (at > before).then_some(at);
    let is_none = message.msg_control.is_null();
    // SAFETY: the caller's promise.
    let first = (!is_none).then(|| unsafe { libc::CMSG_FIRSTHDR(message) });
    let first = first.and_then(|at| behind(at, std::ptr::null_mut()));
    let all = std::iter::successors(first, move |at| {
        // SAFETY: the caller's promise; each lies behind the one before, in those bytes.
        behind(unsafe { libc::CMSG_NXTHDR(message, *at) }, *at)
    });
    let end = (message.msg_control as usize).saturating_add(message.msg_controllen);
    all.flat_map(move |at| {
        // SAFETY: a whole head is there; what is behind it is not looked at.
        let (head, from) = unsafe { (&*at, libc::CMSG_DATA(at).cast::<c_int>()) };
        let passes = head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS;
        let said = (at as usize).saturating_add(head.cmsg_len).min(end);
        let bytes = if passes {
            said.saturating_sub(from as usize)
        } else {
            0
        };
        // SAFETY: so many are there.
        (0..bytes / size_of::<c_int>()).map(move |n| unsafe { from.add(n).read_unaligned() })
    })
}
