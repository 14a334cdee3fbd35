//! Where the operator writes names and options to: memory of this library's own, and from there to where its program wants them. A
//! signal's handler may leave a call by `siglongjmp` that the operator is about to answer; what it writes then would be
//! another function's memory by now.
#![expect(unsafe_code, reason = "memory of a C program's")]

use crate::real::{self, whole};
use libc::socklen_t;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// As much as is told there: any name, and any option that a circuit has. What there is more room for goes by itself.
const ROOM: usize = 512;

/// Calls one after another have another place each. The operator answers late, if it does, before it looks at what is called next: what it
/// writes is not where that says how much room there is. Two would do; with more a handler may ask as well.
const PLACES: u64 = 4;

struct Place {
    bytes: [u8; ROOM],
    length: socklen_t,
}

struct Told {
    /// How many calls of this thread began to be told something.
    calls: AtomicU64,
    places: [UnsafeCell<Place>; PLACES as usize],
}

thread_local! {
    static TOLD: Told = const {
        Told {
            calls: AtomicU64::new(0),
            places: [const {
                UnsafeCell::new(Place { bytes: [0; ROOM], length: 0 })
            }; PLACES as usize],
        }
    };
}

/// What came of a call that tells something.
enum Came {
    /// Its answer; what it told is where it is to be.
    Well(c_int),
    /// Its answer; a handler called meanwhile, so often that what was told may have been in this one's place. Nothing is told.
    Over(c_int),
}

/// A call that Linux lets no signal end, and tells the same however often it is made.
///
/// # Safety
/// `value` and `length` are null, or as much as there is at `length` is at `value`; `call` writes nothing but what it is given.
pub unsafe fn told(
    value: *mut c_void,
    length: *mut socklen_t,
    mut call: impl FnMut(*mut c_void, *mut socklen_t) -> c_int,
) -> c_int {
    loop {
        // SAFETY: the caller's promise, which holds as long as nothing is told.
        let came = unsafe { once(value, length, |to, n| whole(|| call(to, n))) };
        if let Came::Well(done) = came {
            return done;
        }
    }
}

/// The same of an `accept`, which a signal may end.
///
/// # Safety
/// As for [`told`].
pub unsafe fn accepted(
    name: *mut c_void,
    length: *mut socklen_t,
    call: impl FnMut(*mut c_void, *mut socklen_t) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let fd = match unsafe { once(name, length, call) } {
        Came::Well(done) => return done,
        Came::Over(fd) => fd,
    };
    // SAFETY: the caller's promise, and nothing was told.
    unsafe { told(name, length, |to, n| real::getpeername(fd, to.cast(), n)) };
    fd
}

unsafe fn once(
    value: *mut c_void,
    length: *mut socklen_t,
    mut call: impl FnMut(*mut c_void, *mut socklen_t) -> c_int,
) -> Came {
    if value.is_null() || length.is_null() {
        return Came::Well(call(value, length));
    }
    // SAFETY: the caller's promise.
    let room = unsafe { length.read_unaligned() };
    if room as usize > ROOM {
        return Came::Well(call(value, length));
    }
    TOLD.with(|own| {
        // In one step: a handler counts as well.
        let count = own.calls.fetch_add(1, Ordering::Relaxed);
        // INVARIANT: less than there are.
        let place = own.places[(count % PLACES) as usize].get();
        // SAFETY: it is this thread's own, and there are no references to it.
        let (to, n) = unsafe { (&raw mut (*place).bytes, &raw mut (*place).length) };
        // What an option says is read by some as well.
        // SAFETY: as above, and the caller's promise: there is so much.
        unsafe {
            ptr::copy_nonoverlapping(value.cast::<u8>(), to.cast(), room as usize);
            n.write_volatile(room);
        }
        let done = call(to.cast(), n);
        if done == -1 {
            return Came::Well(done);
        }
        // Taken before it is looked whose it is.
        // SAFETY: as above.
        let (long, bytes) = unsafe { (n.read_volatile(), to.read_volatile()) };
        if own.calls.load(Ordering::Relaxed) - count > PLACES {
            return Came::Over(done);
        }
        // SAFETY: the caller's promise: there is so much room.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), room.min(long) as usize);
            length.write_unaligned(long);
        }
        Came::Well(done)
    })
}

/// Whether the operator may answer for an option. The kernel does of all others: some count their length by other things than bytes, or
/// say how much room they need as they fail.
pub fn is_option(level: c_int, option: c_int) -> bool {
    const OWN: [c_int; 12] = [
        libc::SO_REUSEADDR,
        libc::SO_REUSEPORT,
        libc::SO_TYPE,
        libc::SO_ACCEPTCONN,
        libc::SO_PROTOCOL,
        libc::SO_DOMAIN,
        libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO,
        libc::SO_PASSCRED,
        libc::SO_PASSSEC,
        libc::SO_PEERNAME,
        libc::SO_PEERCRED,
    ];
    match level {
        libc::SOL_SOCKET => OWN.contains(&option),
        libc::IPPROTO_TCP | libc::IPPROTO_UDP | libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        level => level == stream::LEVEL,
    }
}
