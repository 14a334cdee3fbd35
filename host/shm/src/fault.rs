//! What a fault in memory whose owner cut it off comes to: zeroes of our own in its place,
//! and a word that says so. Without it one front end that truncates its file would end the
//! process, and with it every other endpoint of the compartment.
#![expect(unsafe_code, reason = "a signal's handler, and mapping memory")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that are watched at most, in one process.
const MOST: usize = 1024;

struct Entry {
    taken: AtomicBool,
    /// 0 = nothing is watched.
    base: AtomicUsize,
    len: AtomicUsize,
    hit: AtomicBool,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; MOST];

/// A mapping that is watched until this is dropped, which is to be done before it is
/// unmapped.
pub(crate) struct Watch(&'static Entry);

impl Watch {
    /// Whether a fault there was mended.
    #[inline]
    pub fn was_hit(&self) -> bool {
        self.0.hit.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.base.store(0, Ordering::SeqCst);
        self.0.hit.store(false, Ordering::SeqCst);
        self.0.taken.store(false, Ordering::SeqCst);
    }
}

/// Watches `len` bytes from `base` on, page-aligned; `None`: as many are already.
pub(crate) fn watch(base: *mut u8, len: usize) -> Option<Watch> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::SeqCst) {
        install();
    }
    let free = |entry: &&Entry| !entry.taken.swap(true, Ordering::SeqCst);
    let entry = ENTRIES.iter().find(free)?;
    entry.len.store(len, Ordering::SeqCst);
    entry.base.store(base as usize, Ordering::SeqCst);
    Some(Watch(entry))
}

fn install() {
    // SAFETY: `sigaction` is plain data, for which all zeros is a value; the handler does
    // only what a handler may (atomics, mmap, sigaction).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Puts zeroes where the fault was, in the whole mapping: huge pages can only be replaced
/// whole. A fault anywhere else has the end that it would have had.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo, of a fault one
    // with an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in &ENTRIES {
        let (base, len) = (
            entry.base.load(Ordering::SeqCst),
            entry.len.load(Ordering::SeqCst),
        );
        if base == 0 || address < base || address - base >= len {
            continue;
        }
        // Shared with nobody, but not private: that would count against RLIMIT_DATA, which
        // a guest may be larger than.
        // SAFETY: the whole of a mapping that is ours and alive: it is watched no longer
        // than that. What is there is replaced at once, by what can be read and written.
        let mended = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mended != libc::MAP_FAILED {
            entry.hit.store(true, Ordering::SeqCst);
            return;
        }
    }
    // SAFETY: puts the default back; the access is repeated and ends the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}
