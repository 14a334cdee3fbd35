//! Who watches a descriptor that becomes another socket: a set of epoll knows the file, not the number, so what it
//! has of the one is taken out, and put in again for the other. `/proc` tells what that is.
//!
//! Of sets that this process has made, alone: one that it was forked with is its parent's too, which watches the
//! circuit still.
#![expect(
    unsafe_code,
    reason = "functions of C, by their names, and a file without the library's own calls"
)]

use crate::calls::exported;
use crate::real;
use libc::epoll_event;
use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sets that are known at a time.
const SETS: usize = 32;

/// The process that made it, and its number; 0: none. That it is closed is seen when it is read.
static KNOWN: [AtomicU64; SETS] = [const { AtomicU64::new(0) }; SETS];

fn by_this_process(set: c_int) -> u64 {
    (u64::from(std::process::id()) << 32) | u64::from(set.cast_unsigned())
}

/// A set is new.
fn follow(set: c_int) {
    let own = by_this_process(set);
    for place in &KNOWN {
        let before = place.load(Ordering::Relaxed);
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        let is_free = before == own || before >> 32 != own >> 32;
        if is_free && place.compare_exchange(before, own, done, not).is_ok() {
            return;
        }
    }
}

/// What is watched of a descriptor, by each set that does.
pub struct Watched([Option<(c_int, epoll_event)>; SETS]);

impl Watched {
    /// Takes it out of them.
    pub fn take_out(fd: c_int) -> Watched {
        Watched(KNOWN.each_ref().map(|place| {
            let set = place.load(Ordering::Acquire);
            let number = (set as u32).cast_signed();
            if set != by_this_process(number) {
                return None;
            }
            let (event, none) = (watched(number, fd)?, std::ptr::null_mut());
            // SAFETY: no event is looked at.
            let out = unsafe { real::epoll_ctl(number, libc::EPOLL_CTL_DEL, fd, none) };
            (out == 0).then_some((number, event))
        }))
    }

    /// Puts it in again.
    pub fn put_in(self, fd: c_int) {
        for (set, mut event) in self.0.into_iter().flatten() {
            // SAFETY: an event that is there.
            unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        }
    }
}

/// What a set watches of a descriptor, if it does, and if it is a set.
fn watched(set: c_int, fd: c_int) -> Option<epoll_event> {
    let mut path = Text::<40>::default();
    write!(path, "/proc/self/fdinfo/{set}\0").ok()?;
    let path = CStr::from_bytes_until_nul(&path.bytes).ok()?;
    // SAFETY: a path that ends.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let (mut line, mut bytes, mut found) = (Text::<160>::default(), [0_u8; 1024], None);
    // Bound: the descriptors that the set watches.
    while found.is_none() {
        // SAFETY: room for so many.
        let n = unsafe { real::read(file, bytes.as_mut_ptr().cast(), bytes.len()) };
        let Some(there) = usize::try_from(n).ok().filter(|n| *n > 0) else {
            break;
        };
        for byte in bytes.iter().take(there) {
            if *byte != b'\n' {
                line.push(*byte);
                continue;
            }
            found = found.or_else(|| line.event(fd));
            line.used = 0;
        }
    }
    // SAFETY: this function's own.
    unsafe { real::close(file) };
    found
}

/// A short text; what is more than fits is not kept.
struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Text<N> {
        Text {
            bytes: [0; N],
            used: 0,
        }
    }
}

impl<const N: usize> Text<N> {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.used) {
            *place = byte;
            self.used += 1;
        }
    }

    /// As the kernel writes it: `tfd: 5 events: 19 data: 5 ...`, all but the first in hexadecimal digits.
    fn event(&self, fd: c_int) -> Option<epoll_event> {
        let line = std::str::from_utf8(self.bytes.get(..self.used)?).ok()?;
        let mut words = line.split_whitespace();
        let mut after = |name: &str| match words.next()? == name {
            true => words.next(),
            false => None,
        };
        let of: c_int = after("tfd:")?.parse().ok()?;
        let events = u32::from_str_radix(after("events:")?, 16).ok()?;
        let u64 = u64::from_str_radix(after("data:")?, 16).ok()?;
        (of == fd).then_some(epoll_event { events, u64 })
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

exported! {
    epoll_create(size: c_int) -> c_int {
        let set = real::epoll_create(size);
        if set >= 0 {
            follow(set);
        }
        set
    }
    epoll_create1(flags: c_int) -> c_int {
        let set = real::epoll_create1(flags);
        if set >= 0 {
            follow(set);
        }
        set
    }
}
