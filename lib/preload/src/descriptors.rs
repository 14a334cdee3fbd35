//! The calls that make, copy and close descriptors, or say how they are.
#![expect(unsafe_code, reason = "functions of C, by their names")]

use crate::calls::exported;
use crate::cancelled::Held;
use crate::leave::left;
use crate::real::{self, whole};
use crate::record::{RESET, RING, Record};
use crate::told::{accepted, is_option, told};
use crate::{forking, gate, given, receive, table, waits};
use libc::{FD_CLOEXEC, O_NONBLOCK, SOCK_STREAM, c_ulong, sockaddr, socklen_t};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

const FIONREAD: c_ulong = libc::FIONREAD as c_ulong;
const FIONBIO: c_ulong = libc::FIONBIO as c_ulong;
const FIOASYNC: c_ulong = libc::FIOASYNC as c_ulong;
const FIOCLEX: c_ulong = libc::FIOCLEX as c_ulong;
const FIONCLEX: c_ulong = libc::FIONCLEX as c_ulong;

/// Whether a descriptor closes when another program is executed.
pub fn is_close_on_exec(fd: c_int) -> bool {
    // SAFETY: a descriptor's flags.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) & FD_CLOEXEC != 0 }
}

/// Has it close then; whether it did before.
pub fn close_on_exec(fd: c_int) -> bool {
    let did = is_close_on_exec(fd);
    if !did {
        // SAFETY: a descriptor's flags.
        unsafe { real::fcntl(fd, libc::F_SETFD, FD_CLOEXEC as usize) };
    }
    did
}

fn is_ring(record: &Record) -> bool {
    record.state.load(Ordering::Acquire) == RING
}

/// With a descriptor's record if it is by a ring.
fn ring<T>(fd: c_int, with: impl FnOnce(&Record) -> T) -> Option<T> {
    let record = table::hold(fd)?;
    let answer = is_ring(record).then(|| with(record));
    table::put(record);
    answer
}

/// A copy of a descriptor at a number, which programs that are executed take for theirs up to 2. `kernel` makes one, with the flag
/// to close on exec as it is told, and answers its number. `closes`: as the program asked for.
fn copied(fd: c_int, closes: bool, kernel: impl FnOnce(bool) -> c_int) -> c_int {
    let Some(record) = table::hold(fd) else {
        return kernel(closes);
    };
    let inside = gate::enter();
    // Or it has left its ring meanwhile.
    let is_followed = table::is_of(fd, record);
    let is_ring = is_followed && is_ring(record);
    let mut number = kernel(closes || is_ring);
    if number >= 0 && number != fd {
        table::forget(number);
        if is_followed {
            table::share(number, fd, record, is_ring && !closes);
        }
    }
    drop(inside);
    if number != fd && (0..=2).contains(&number) && !left(number) {
        let errno = real::errno();
        table::forget(number);
        real::shut(number);
        real::set_errno(errno);
        number = -1;
    }
    table::put(record);
    number
}

/// Whether a copy may be at this number: one that is there already may be beyond what is permitted by now.
pub fn may_be(number: c_int) -> bool {
    let mut limit: libc::rlimit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for the answer.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    !told || u64::try_from(number).is_ok_and(|number| number < limit.rlim_cur)
}

/// A copy at this number, which programs that are executed take for theirs up to 2.
fn copied_to(fd: c_int, to: c_int, closes: bool, kernel: impl FnOnce(bool) -> c_int) -> c_int {
    // SAFETY: a descriptor's flags, or an error where there is none.
    let is_one = unsafe { real::fcntl(fd, libc::F_GETFD, 0) } >= 0;
    if fd == to || !is_one || !may_be(to) {
        // It fails, and what is at the number stays there.
        return kernel(closes);
    }
    if let Some(held) = table::hold(fd).map(Held)
        && to > 2
        && table::is_of(to, held.0)
    {
        return copied_again(fd, to, closes, held.0, kernel);
    }
    let _ending = Ending::of(to);
    match (0..=2).contains(&to) {
        true if !left(fd) => -1,
        true => kernel(closes),
        false => copied(fd, closes, kernel),
    }
}

/// A copy at a number that is one of the same socket: nothing ends there, and a process that is forked meanwhile has it.
fn copied_again(
    fd: c_int,
    to: c_int,
    closes: bool,
    record: &Record,
    kernel: impl FnOnce(bool) -> c_int,
) -> c_int {
    let _inside = gate::enter();
    let is_ring = table::is_of(fd, record) && is_ring(record);
    let number = kernel(closes || is_ring);
    if number == to {
        if !table::is_of(to, record) {
            // Another thread has closed it, just before.
            table::forget(to);
            table::share(to, fd, record, false);
        }
        table::hands_on(to, is_ring && !closes);
    }
    number
}

/// As the program sees and sets a ring's flags: the kernel's say that it closes on exec.
fn handed_on(fd: c_int, does: bool) -> c_int {
    let was = table::is_handed_on(fd);
    match (was, does) {
        // That is for somebody who knows nothing of the ring.
        (false, true) if !left(fd) => -1,
        // SAFETY: a descriptor's flags.
        (false, true) => unsafe { real::fcntl(fd, libc::F_SETFD, 0) },
        _ => {
            table::hands_on(fd, does);
            0
        }
    }
}

/// A number that may be another socket's once the kernel is back, or the thread is cancelled: others' calls wait for
/// that, and no circuit leaves its ring meanwhile.
struct Given {
    before: given::Gives,
    _inside: gate::Inside,
}

impl Given {
    fn new(fd: c_int) -> Option<Given> {
        let inside = gate::enter();
        let before = given::gives(fd)?;
        Some(Given {
            before,
            _inside: inside,
        })
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let errno = real::errno();
        given::takes_back(self.before);
        real::set_errno(errno);
    }
}

/// A number that the kernel closes, or makes another, meanwhile, or the thread is cancelled: it is of no record.
struct Ending {
    fd: c_int,
    before: c_int,
}

impl Ending {
    fn of(fd: c_int) -> Option<Ending> {
        let before = table::is_followed(fd).then(|| given::ends_alone(fd))?;
        Some(Ending { fd, before })
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        given::has_ended(self.fd);
        given::ends_no_more(self.before);
    }
}

/// It is about to be shut down so; whether it was for sending before, if it is followed.
pub fn shuts(fd: c_int, how: c_int) -> Option<u32> {
    let held = table::hold(fd).map(Held)?;
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        held.0.heard_all.store(1, Ordering::Release);
    }
    if !matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        return None;
    }
    let before = held.0.said_all.fetch_or(1, Ordering::SeqCst);
    held.0.says_end();
    Some(before)
}

/// Whether a socket is bound as this name says, as far as its port tells.
fn has_its_port(fd: c_int, name: *const sockaddr, length: socklen_t) -> bool {
    let errno = real::errno();
    // SAFETY: all zero is an address.
    let mut own: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&own) as socklen_t;
    let at = (&raw mut own).cast();
    // SAFETY: it has room for what is told.
    let asked = unsafe {
        told(at, &raw mut size, |to, n| {
            real::getsockname(fd, to.cast(), n)
        })
    };
    real::set_errno(errno);
    let lengths = size_of::<libc::sockaddr_in>()..=size_of::<libc::sockaddr_storage>();
    if asked != 0 || own.sin6_port == 0 || !lengths.contains(&(length as usize)) {
        return false;
    }
    // Both families have it at the same place.
    // SAFETY: of such a length the operator has read it.
    let port =
        unsafe { (&raw const (*name.cast::<libc::sockaddr_in>()).sin_port).read_unaligned() };
    port == 0 || port == own.sin6_port
}

exported! {
    shutdown(fd: c_int, how: c_int) -> c_int {
        let before = shuts(fd, how);
        let done = whole(|| real::shutdown(fd, how));
        if done != 0 && let Some(before) = before && let Some(held) = table::hold(fd).map(Held) {
            held.0.said_all.store(before, Ordering::Release);
        }
        done
    }
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let before = forking::before();
        let fd = whole(|| real::socket(domain, kind, protocol));
        if fd >= 0 {
            table::forget(fd);
            let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == SOCK_STREAM;
            if is_stream && matches!(domain, libc::AF_INET | libc::AF_INET6) {
                table::follow(fd, before);
            }
        }
        fd
    }
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut std::ffi::c_void, length: *mut socklen_t) -> c_int {
        let done = match is_option(level, option) {
            true => told(value, length, |to, n| real::getsockopt(fd, level, option, to, n)),
            false => whole(|| real::getsockopt(fd, level, option, value, length)),
        };
        let is_error = (level, option) == (libc::SOL_SOCKET, libc::SO_ERROR);
        if done == 0 && is_error && *length as usize >= size_of::<c_int>()
            && value.cast::<c_int>().read_unaligned() == libc::ECONNRESET
        {
            // Told by this, once.
            ring(fd, |record| record.said_all.fetch_or(RESET, Ordering::AcqRel));
        }
        done
    }
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const std::ffi::c_void, length: socklen_t) -> c_int {
        let done = whole(|| real::setsockopt(fd, level, option, value, length));
        if done == 0 && (level, option) == (libc::SOL_SOCKET, libc::SO_OOBINLINE) {
            // What is said there of a ring is not for the program.
            ring(fd, |_| bulkhead::takes_all_in_line(std::os::fd::BorrowedFd::borrow_raw(fd)));
        }
        let is_long = length as usize >= size_of::<[i64; 2]>();
        if done == 0 && level == libc::SOL_SOCKET && is_long && let Some(record) = table::hold(fd) {
            record.limits(option, value.cast::<[i64; 2]>().read_unaligned());
            table::put(record);
        }
        done
    }
    connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
        let named = !name.is_null() && length as usize >= size_of::<libc::sa_family_t>();
        let family = || c_int::from((&raw const (*name).sa_family).read_unaligned());
        // Taken from its connection it is another socket.
        let is_taken = table::follows() && named && family() == libc::AF_UNSPEC;
        let _given = is_taken.then(|| Given::new(fd)).flatten();
        real::connect(fd, name, length)
    }
    __connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int { connect(fd, name, length) }
    bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
        let done = real::bind(fd, name, length);
        if done == 0 || real::errno() != libc::EINTR {
            return done;
        }
        let again = whole(|| real::bind(fd, name, length));
        // The signal may have come between what was done and the word of it, to an operator that is no more.
        let is_done = || again == -1 && real::errno() == libc::EINVAL;
        match is_done() && has_its_port(fd, name, length) {
            true => 0,
            false => again,
        }
    }
    getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
        told(name.cast(), length, |to, n| real::getsockname(fd, to.cast(), n))
    }
    getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
        told(name.cast(), length, |to, n| real::getpeername(fd, to.cast(), n))
    }
    listen(fd: c_int, backlog: c_int) -> c_int {
        let done = whole(|| real::listen(fd, backlog));
        if done == 0 {
            table::forget(fd);
        }
        done
    }
    accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
        let before = forking::before();
        let fd = accepted(name.cast(), length, |to, n| real::accept(fd, to.cast(), n));
        if fd >= 0 {
            table::follow(fd, before);
        }
        fd
    }
    accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        let before = forking::before();
        let fd = accepted(name.cast(), length, |to, n| real::accept4(fd, to.cast(), n, flags));
        if fd >= 0 {
            table::follow(fd, before);
        }
        fd
    }
    close(fd: c_int) -> c_int {
        let _ending = Ending::of(fd);
        real::close(fd)
    }
    __close(fd: c_int) -> c_int { close(fd) }
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const KNOWN: c_uint = libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE;
        let fails = first > last || flags.cast_unsigned() & !KNOWN != 0;
        let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
        if !fails && closes {
            table::followed(first, last).for_each(given::ends);
        } else if !fails {
            table::followed(first, last).for_each(|fd| table::hands_on(fd, false));
        }
        let done = real::close_range(first, last, flags);
        if !fails && closes {
            table::followed(first, last).for_each(given::has_ended);
        }
        done
    }
    closefrom(first: c_int) -> () {
        let all = || table::followed(first.max(0).cast_unsigned(), u32::MAX);
        all().for_each(given::ends);
        real::closefrom(first);
        all().for_each(given::has_ended);
    }
    dup(fd: c_int) -> c_int {
        copied(fd, false, |closes| match closes {
            true => real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0),
            false => real::dup(fd),
        })
    }
    dup2(fd: c_int, to: c_int) -> c_int {
        copied_to(fd, to, false, |closes| match closes {
            true => real::dup3(fd, to, libc::O_CLOEXEC),
            false => real::dup2(fd, to),
        })
    }
    __dup2(fd: c_int, to: c_int) -> c_int { dup2(fd, to) }
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if flags & !libc::O_CLOEXEC != 0 {
            return real::dup3(fd, to, flags);
        }
        copied_to(fd, to, flags & libc::O_CLOEXEC != 0, |closes| {
            real::dup3(fd, to, if closes { libc::O_CLOEXEC } else { flags })
        })
    }
    fcntl(fd: c_int, what: c_int, argument: usize) -> c_int {
        match what {
            libc::F_DUPFD => copied(fd, false, |closes| {
                let what = if closes { libc::F_DUPFD_CLOEXEC } else { what };
                real::fcntl(fd, what, argument)
            }),
            libc::F_DUPFD_CLOEXEC => copied(fd, true, |_| real::fcntl(fd, what, argument)),
            libc::F_SETFL => {
                let done = real::fcntl(fd, what, argument);
                if done >= 0 {
                    let nonblocking = argument & O_NONBLOCK as usize != 0;
                    ring(fd, |it| it.nonblocking.store(u32::from(nonblocking), Ordering::Relaxed));
                    if argument & libc::O_ASYNC as usize != 0 {
                        waits::watches(fd);
                    }
                }
                done
            }
            libc::F_GETFD => match ring(fd, |_| table::is_handed_on(fd)) {
                Some(true) => 0,
                _ => real::fcntl(fd, what, argument),
            },
            libc::F_SETFD => match ring(fd, |_| ()) {
                Some(()) => handed_on(fd, argument & FD_CLOEXEC as usize == 0),
                None => real::fcntl(fd, what, argument),
            },
            _ => real::fcntl(fd, what, argument),
        }
    }
    fcntl64(fd: c_int, what: c_int, argument: usize) -> c_int { fcntl(fd, what, argument) }
    __fcntl(fd: c_int, what: c_int, argument: usize) -> c_int { fcntl(fd, what, argument) }
    ioctl(fd: c_int, what: c_ulong, argument: usize) -> c_int {
        match what {
            FIONREAD => {
                let done = real::ioctl(fd, what, argument);
                let place = argument as *mut c_int;
                if done < 0 || place.is_null() {
                    return done;
                }
                let queued = || {
                    let mut there: c_int = 0;
                    real::ioctl(fd, what, (&raw mut there) as usize);
                    there.max(0).cast_unsigned() as usize
                };
                match ring(fd, |record| receive::pending(record, fd, queued)) {
                    Some(Ok(there)) => *place = c_int::try_from(there).unwrap_or(c_int::MAX),
                    Some(Err(errno)) => {
                        real::set_errno(errno);
                        return -1;
                    }
                    None => {}
                }
                done
            }
            FIONBIO => {
                let done = real::ioctl(fd, what, argument);
                if done >= 0 {
                    let nonblocking = *(argument as *const c_int) != 0;
                    ring(fd, |it| it.nonblocking.store(u32::from(nonblocking), Ordering::Relaxed));
                }
                done
            }
            FIOASYNC => {
                let done = real::ioctl(fd, what, argument);
                if done >= 0 && *(argument as *const c_int) != 0 {
                    waits::watches(fd);
                }
                done
            }
            FIOCLEX | FIONCLEX => match ring(fd, |_| ()) {
                Some(()) => handed_on(fd, what == FIONCLEX),
                None => real::ioctl(fd, what, argument),
            },
            _ => real::ioctl(fd, what, argument),
        }
    }
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        // Its reads and writes are the C library's own, which nothing stands in front of.
        match left(fd) {
            true => real::fdopen(fd, mode),
            false => std::ptr::null_mut(),
        }
    }
}
