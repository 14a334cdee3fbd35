//! The functions in whose place this library's stand: the next ones of their names.
#![expect(unsafe_code, reason = "functions found by name")]

use libc::{FILE, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Finds one, once.
fn found(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let at = place.load(Ordering::Relaxed);
    if !at.is_null() {
        return at;
    }
    // SAFETY: a name that ends; the answer is an address or null.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if at.is_null() {
        // Nothing can be answered without it, and nobody could be told.
        std::process::abort();
    }
    place.store(at, Ordering::Relaxed);
    at
}

macro_rules! real {
    ($($name:ident($($it:ident: $is:ty),*) -> $answer:ty;)*) => {$(
        #[allow(non_snake_case, reason = "names of C")]
        /// The next of this name.
        ///
        /// # Safety
        /// The C function's.
        #[inline]
        pub unsafe fn $name($($it: $is),*) -> $answer {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let at = found(&AT, NAME);
            type Function = unsafe extern "C-unwind" fn($($is),*) -> $answer;
            // SAFETY: the C library's function of this name has this signature (x86_64: one that
            // takes more arguments takes these by the same registers).
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(at) };
            // SAFETY: the caller's promise.
            unsafe { function($($it),*) }
        }
    )*};
}

real! {
    read(fd: c_int, to: *mut c_void, n: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, to: *mut c_void, n: size_t, flags: c_int, name: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, limit: *mut libc::timespec) -> c_int;
    write(fd: c_int, from: *const c_void, n: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, from: *const c_void, n: size_t, flags: c_int, name: *const sockaddr, length: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, from: c_int, at: *mut off_t, n: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, n: size_t, flags: c_uint) -> ssize_t;
    preadv2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    ioctl(fd: c_int, what: libc::c_ulong, argument: usize) -> c_int;
    fcntl(fd: c_int, what: c_int, argument: usize) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, length: socklen_t) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int;
    poll(fds: *mut libc::pollfd, n: libc::nfds_t, limit: c_int) -> c_int;
    ppoll(fds: *mut libc::pollfd, n: libc::nfds_t, limit: *const libc::timespec, signals: *const libc::sigset_t) -> c_int;
    select(n: c_int, to_read: *mut libc::fd_set, to_write: *mut libc::fd_set, other: *mut libc::fd_set, limit: *mut libc::timeval) -> c_int;
    pselect(n: c_int, to_read: *mut libc::fd_set, to_write: *mut libc::fd_set, other: *mut libc::fd_set, limit: *const libc::timespec, signals: *const libc::sigset_t) -> c_int;
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    aio_read(one: *mut libc::aiocb) -> c_int;
    aio_write(one: *mut libc::aiocb) -> c_int;
    lio_listio(how: c_int, list: *const *mut libc::aiocb, n: c_int, event: *mut libc::sigevent) -> c_int;
    execve(path: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, words: *const *const c_char) -> c_int;
    execvp(file: *const c_char, words: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(folder: c_int, path: *const c_char, words: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    pthread_testcancel() -> ();
    pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fork() -> libc::pid_t;
    _Fork() -> libc::pid_t;
    setuid(user: libc::uid_t) -> c_int;
    setreuid(user: libc::uid_t, effective: libc::uid_t) -> c_int;
    setresuid(user: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    system(line: *const c_char) -> c_int;
    popen(line: *const c_char, mode: *const c_char) -> *mut FILE;
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t, how: *const libc::posix_spawnattr_t, words: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t, how: *const libc::posix_spawnattr_t, words: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// The thread's error number.
pub fn errno() -> c_int {
    // SAFETY: each thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(errno: c_int) {
    // SAFETY: each thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// A call that Linux lets no signal end. The operator answers it, and one that comes before that ends it: it is called again, as
/// where its handler restarts calls.
pub fn whole(mut call: impl FnMut() -> c_int) -> c_int {
    loop {
        let done = call();
        if done != -1 || errno() != libc::EINTR {
            return done;
        }
    }
}

/// Fails so.
pub fn fail(errno: c_int) -> ssize_t {
    set_errno(errno);
    -1
}

/// A system call by itself: the C library's function of this name is stood in front of, or may be the end of a
/// thread that is cancelled.
pub fn raw<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> isize {
    let mut all = [0_usize; 6];
    for (place, argument) in all.iter_mut().zip(arguments) {
        *place = argument;
    }
    let [a, b, c, d, e, f] = all;
    let answer;
    // SAFETY: the callers' calls touch memory of theirs that is there; the kernel keeps all other
    // registers. Not one that returns on another stack.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer
}

/// The same, with the error number where the C library has it.
pub fn told<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> isize {
    match raw(number, arguments) {
        error @ -4095..0 => fail(-error as c_int),
        answer => answer,
    }
}

/// As `close`, whoever is cancelled.
pub fn shut(fd: c_int) {
    raw(libc::SYS_close, [fd.cast_unsigned() as usize]);
}
