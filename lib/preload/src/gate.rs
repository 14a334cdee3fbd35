//! Numbers of descriptors stand still while a circuit leaves its ring: what would close or copy one, or have a set watch it,
//! waits meanwhile, for another file may have a number as soon as it is closed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Who leaves takes some milliseconds. One that was copied by `clone` in the midst of that waits no longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Calls that are within.
static INSIDE: AtomicU32 = AtomicU32::new(0);
static SHUT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Of these, this thread's: one, and those of handlers that interrupt it.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// It is within as long as there is this.
pub struct Inside(());

/// Waits until no circuit leaves its ring. A handler that interrupts who is within is too.
pub fn enter() -> Inside {
    let begun = Instant::now();
    // Bound: its time.
    loop {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let is_shut = SHUT.load(Ordering::SeqCst) && OWN.get() == 0;
        if !is_shut || begun.elapsed() >= PATIENCE {
            OWN.set(OWN.get() + 1);
            return Inside(());
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        std::thread::yield_now();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}

/// One that has entered is within no more.
pub fn leave() {
    OWN.set(OWN.get().saturating_sub(1));
    let less = |it: u32| it.checked_sub(1);
    // In a child that was forked within there are none.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// Nobody else is within as long as there is this.
pub struct Shut(());

/// Has all others wait. Signals are blocked: a handler would wait for whom it interrupts. None: somebody within takes too long.
pub fn shut() -> Option<Shut> {
    let begun = Instant::now();
    let is_late = || begun.elapsed() >= PATIENCE;
    while SHUT.swap(true, Ordering::SeqCst) {
        if is_late() {
            return None;
        }
        std::thread::yield_now();
    }
    let shut = Shut(());
    while INSIDE.load(Ordering::SeqCst) > OWN.get() {
        if is_late() {
            return None;
        }
        std::thread::yield_now();
    }
    Some(shut)
}

impl Drop for Shut {
    fn drop(&mut self) {
        SHUT.store(false, Ordering::SeqCst);
    }
}

/// A process that was forked has this thread alone, which is within no more.
pub fn is_forked() {
    OWN.set(0);
    INSIDE.store(0, Ordering::SeqCst);
    SHUT.store(false, Ordering::SeqCst);
}
