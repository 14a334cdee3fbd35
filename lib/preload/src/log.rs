//! For who wants to see what went by rings: with `BULKHEAD_PRELOAD_LOG=FILE` a line there for each
//! socket that had one.
#![expect(
    unsafe_code,
    reason = "the environment, and a file without the library's own calls"
)]

use crate::real;
use crate::record::Record;
use std::ffi::CStr;
use std::fmt::Write;
use std::sync::atomic::{AtomicPtr, Ordering};

static PATH: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Looks whether somebody wants to.
pub fn begin() {
    // SAFETY: before any other thread.
    let path = unsafe { libc::getenv(c"BULKHEAD_PRELOAD_LOG".as_ptr()) };
    if path.is_null() {
        return;
    }
    // A copy, which is there for good: programs write over their environment.
    // SAFETY: a text that ends.
    let path = unsafe { CStr::from_ptr(path) }.to_owned();
    PATH.store(path.into_raw(), Ordering::Relaxed);
}

/// Says it.
pub fn say(record: &Record) {
    let path = PATH.load(Ordering::Relaxed);
    let [read, written] = record
        .by_ring
        .each_ref()
        .map(|it| it.swap(0, Ordering::Relaxed));
    if path.is_null() || read + written == 0 {
        return;
    }
    let mut line = Line {
        bytes: [0; 160],
        used: 0,
    };
    let mut name = [0_u8; 16];
    // SAFETY: 16 bytes, as PR_GET_NAME writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    let name = name.to_str().unwrap_or("?");
    let _ = writeln!(
        line,
        "{name}: {read} bytes read and {written} written by ring"
    );
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a path that ends, and bytes that are there.
    unsafe {
        let fd = libc::open(path, flags, 0o666);
        if fd >= 0 {
            real::write(fd, line.bytes.as_ptr().cast(), line.used);
            real::close(fd);
        }
    }
}

struct Line {
    bytes: [u8; 160],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.used..).unwrap_or_default();
        for (place, byte) in room.iter_mut().zip(text.bytes()) {
            *place = byte;
            self.used += 1;
        }
        Ok(())
    }
}
