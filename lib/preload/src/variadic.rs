//! Functions that take any arguments, which no function of Rust's can pass on: what is to be done
//! first is done with all registers put aside. `dprintf` writes by calls of the C library's own; `execl` and its kin hand
//! sockets to another program;
//! `clone` and `syscall` go past everything here, so what they would take from a ring leaves it.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::leave::left;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's, found once each.
static NEXT: [AtomicPtr<c_void>; 7] = [const { AtomicPtr::new(null_mut()) }; 7];

fn next(which: usize, name: &CStr) -> *mut c_void {
    let known = NEXT.get(which).map(|it| it.load(Ordering::Relaxed));
    if let Some(at) = known.filter(|at| !at.is_null()) {
        return at;
    }
    // SAFETY: a name that ends.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if let Some(place) = NEXT.get(which) {
        place.store(at, Ordering::Relaxed);
    }
    at
}

/// Where it cannot leave its ring what is written would be nonsense to the peer: then nothing is called, and it fails.
fn leaves(fd: c_long) -> bool {
    left(c_int::try_from(fd).unwrap_or(-1))
}

/// In place of the C library's function; the error number is set by now.
extern "C" fn fails() -> c_long {
    -1
}

/// Before `dprintf(fd, ...)`; where that goes on.
extern "C" fn before_dprintf(fd: c_long) -> *mut c_void {
    match leaves(fd) {
        true => next(0, c"dprintf"),
        false => fails as *mut c_void,
    }
}

/// Before `__dprintf_chk(fd, ...)`; where that goes on.
extern "C" fn before_dprintf_chk(fd: c_long) -> *mut c_void {
    match leaves(fd) {
        true => next(1, c"__dprintf_chk"),
        false => fails as *mut c_void,
    }
}

/// Before `clone(function, stack, flags, ...)`; where that goes on.
extern "C" fn before_clone(_: c_long, _: c_long, flags: c_long) -> *mut c_void {
    copies(flags);
    next(2, c"clone")
}

/// Before `execl(path, ...)`; where that goes on.
extern "C" fn before_execl(_: c_long) -> *mut c_void {
    crate::table::starts();
    next(4, c"execl")
}

/// Before `execlp(file, ...)`; where that goes on.
extern "C" fn before_execlp(_: c_long) -> *mut c_void {
    crate::table::starts();
    next(5, c"execlp")
}

/// Before `execle(path, ...)`; where that goes on.
extern "C" fn before_execle(_: c_long) -> *mut c_void {
    crate::table::starts();
    next(6, c"execle")
}

/// Before `syscall(number, ...)`; where that goes on.
extern "C" fn before_syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
) -> *mut c_void {
    match number {
        libc::SYS_clone => copies(first),
        libc::SYS_fork | libc::SYS_clone3 => copies(0),
        libc::SYS_vfork => copies(0),
        libc::SYS_execve | libc::SYS_execveat => crate::table::starts(),
        libc::SYS_shutdown => {
            let [fd, how] = [first, second].map(|it| c_int::try_from(it).unwrap_or(-1));
            crate::descriptors::shuts(fd, how);
        }
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_recvmsg
        | libc::SYS_sendmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_sendfile
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3
            if !leaves(first) =>
        {
            return fails as *mut c_void;
        }
        libc::SYS_sendmsg if !passes(second) => return fails as *mut c_void,
        // What is asked of a ring the ring knows.
        libc::SYS_connect => return connects as *mut c_void,
        libc::SYS_fcntl => return controls as *mut c_void,
        libc::SYS_setsockopt => return sets as *mut c_void,
        libc::SYS_poll => return polls as *mut c_void,
        libc::SYS_select => return selects as *mut c_void,
        libc::SYS_close => crate::table::forget(c_int::try_from(first).unwrap_or(-1)),
        libc::SYS_close_range if third & c_long::from(libc::CLOSE_RANGE_CLOEXEC) == 0 => {
            let number = |it: c_long| u32::try_from(it).unwrap_or(u32::MAX);
            crate::table::followed(number(first), number(second)).for_each(crate::table::forget);
        }
        libc::SYS_epoll_ctl if second != c_long::from(libc::EPOLL_CTL_DEL) => {
            crate::waits::watches(c_int::try_from(third).unwrap_or(-1));
        }
        // Of this process, perhaps.
        libc::SYS_pidfd_getfd if !leaves(second) => return fails as *mut c_void,
        libc::SYS_splice if !(leaves(first) && leaves(third)) => return fails as *mut c_void,
        _ => {}
    }
    next(3, c"syscall")
}

/// `syscall(SYS_connect, ...)`. This and those that follow may be left by a thread that is cancelled.
extern "C-unwind" fn connects(_: c_long, fd: c_long, name: c_long, length: c_long) -> c_long {
    let fd = c_int::try_from(fd).unwrap_or(-1);
    // SAFETY: the program's own words.
    unsafe { crate::descriptors::connect(fd, name as *const libc::sockaddr, length as u32) }.into()
}

/// What a message of `syscall(SYS_sendmsg, ...)` passes to somebody else leaves its ring.
fn passes(message: c_long) -> bool {
    // SAFETY: the program's own words.
    unsafe { crate::calls::leaves_passed(message as *const libc::msghdr) }
}

/// `syscall(SYS_fcntl, ...)`.
extern "C-unwind" fn controls(_: c_long, fd: c_int, what: c_int, argument: usize) -> c_long {
    // SAFETY: the program's own words.
    unsafe { crate::descriptors::fcntl(fd, what, argument) }.into()
}

/// `syscall(SYS_setsockopt, ...)`.
extern "C-unwind" fn sets(
    _: c_long,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_long {
    // SAFETY: the program's own words.
    unsafe { crate::descriptors::setsockopt(fd, level, name, value, length) }.into()
}

/// `syscall(SYS_poll, ...)`.
extern "C-unwind" fn polls(_: c_long, list: *mut libc::pollfd, n: u32, limit: c_int) -> c_long {
    // SAFETY: the program's own words.
    unsafe { crate::waits::poll(list, n.into(), limit) }.into()
}

/// `syscall(SYS_select, ...)`.
extern "C-unwind" fn selects(
    _: c_long,
    n: c_int,
    to_read: *mut libc::fd_set,
    to_write: *mut libc::fd_set,
    other: *mut libc::fd_set,
    limit: *mut libc::timeval,
) -> c_long {
    // SAFETY: the program's own words.
    unsafe { crate::waits::select(n, to_read, to_write, other, limit) }.into()
}

/// A process is made of which this library hears nothing more.
fn copies(flags: c_long) {
    if flags & c_long::from(libc::CLONE_VM) == 0 || flags & c_long::from(libc::CLONE_FILES) == 0 {
        crate::table::copies();
    }
}

macro_rules! stands_before {
    ($name:ident, $before:ident) => {
        /// The C function.
        ///
        /// # Safety
        /// The C function's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "endbr64",
                // The arguments that come by registers; the stack is a multiple of 16 at the call.
                "push rbp",
                "mov rbp, rsp",
                "push rax",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "sub rsp, 136",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 136",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rax",
                "pop rbp",
                "jmp r11",
                before = sym $before,
            )
        }
    };
}

stands_before!(dprintf, before_dprintf);
stands_before!(__dprintf_chk, before_dprintf_chk);
stands_before!(clone, before_clone);
stands_before!(execl, before_execl);
stands_before!(execlp, before_execlp);
stands_before!(execle, before_execle);
stands_before!(syscall, before_syscall);
