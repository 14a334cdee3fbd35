//! Where this library's own few allocations come from: the kernel, page by page. A ring may be
//! taken up inside a signal handler, where the C library's allocator may be in the middle of a call.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

struct Pages;

#[global_allocator]
static PAGES: Pages = Pages;

// SAFETY: each allocation is a mapping of its own, page-aligned and zeroed by the kernel.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 4096 {
            return null_mut();
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping touches no memory that exists.
        let at = unsafe { libc::mmap(null_mut(), layout.size(), access, flags, -1, 0) };
        match at {
            libc::MAP_FAILED => null_mut(),
            at => at.cast(),
        }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: exactly what `alloc` mapped.
        unsafe { libc::munmap(at.cast(), layout.size()) };
    }
}
