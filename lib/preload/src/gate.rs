//! Numbers of descriptors stand still while a circuit leaves its ring: what would close or copy one, or have a set watch it,
//! waits meanwhile, for another file may have a number as soon as it is closed.

use crate::lock::thread;
use crate::patience::{PATIENCE, Patience};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

/// Of a place: its thread is within, and not on its way.
const WITHIN: u32 = 1 << 31;

/// Threads that are within, or on their way, each in a place of its own: a handler that interrupts one finds there which it
/// is, at any step, as a number of all of them would not tell.
static PLACES: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
static SHUT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls of this thread that need its place: one, and those of handlers that interrupt it.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// It is within as long as there is this.
pub struct Inside(());

/// Waits until no circuit leaves its ring. A handler that interrupts who is within is too.
pub fn enter() -> Inside {
    let mut patience = Patience::of(PATIENCE);
    // First: a handler that comes in before this one leaves it the place.
    OWN.set(OWN.get() + 1);
    compiler_fence(Ordering::SeqCst);
    // Bound: its time.
    while !comes_in() && !patience.is_over() {
        patience.rests();
    }
    Inside(())
}

/// Whether this thread is within, or is by now.
fn comes_in() -> bool {
    let own = thread();
    let is_within = |it: &AtomicU32| it.load(Ordering::SeqCst) == own | WITHIN;
    if PLACES.iter().any(is_within) {
        return true;
    }
    // Whom this interrupts on its way is on it no more: it would be waited for, while this waits.
    gives(own);
    if SHUT.load(Ordering::Relaxed) {
        // Who is about to be alone is to see no place taken for a moment, again and again.
        return false;
    }
    let Some(place) = PLACES.iter().find(|it| swap(it, 0, own)) else {
        return false;
    };
    let to = match SHUT.load(Ordering::SeqCst) {
        true => 0,
        false => own | WITHIN,
    };
    // Or a handler has taken it, and may have come in itself.
    let came = swap(place, own, to) && to != 0;
    if thread() != own {
        // A handler forked, and this is its child: it is another by now, and comes in as that.
        gives(own);
        gives(own | WITHIN);
        return false;
    }
    came
}

fn swap(place: &AtomicU32, from: u32, to: u32) -> bool {
    let (done, not) = (Ordering::SeqCst, Ordering::Relaxed);
    place.compare_exchange(from, to, done, not).is_ok()
}

/// Nobody is so in any place.
fn gives(own: u32) {
    for place in &PLACES {
        if place.load(Ordering::Relaxed) == own {
            swap(place, own, 0);
        }
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
    compiler_fence(Ordering::SeqCst);
    // In a child that was forked within there is none.
    if OWN.get() == 0 {
        gives(thread() | WITHIN);
    }
}

/// Nobody else is within as long as there is this.
pub struct Shut(());

/// Has all others wait. Signals are blocked: a handler would wait for whom it interrupts. None: somebody within takes too long.
pub fn shut() -> Option<Shut> {
    let mut patience = Patience::of(PATIENCE);
    while SHUT.swap(true, Ordering::SeqCst) {
        if patience.is_over() {
            return None;
        }
        patience.rests();
    }
    let shut = Shut(());
    let own = thread();
    let is_another = |it: &AtomicU32| ![0, own].contains(&(it.load(Ordering::SeqCst) & !WITHIN));
    while PLACES.iter().any(is_another) {
        if patience.is_over() {
            return None;
        }
        patience.rests();
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
    for place in &PLACES {
        place.store(0, Ordering::SeqCst);
    }
    SHUT.store(false, Ordering::SeqCst);
}
