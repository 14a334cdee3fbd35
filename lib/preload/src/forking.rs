//! Processes that are being made, and sockets that begin to be followed meanwhile: whose child may have one of which nobody
//! told the record that it does.

use crate::patience::{PATIENCE, Patience};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::LocalKey;

/// Threads that make a process, how often any began to, and such as begin a record meanwhile. A socket that the copy has and whose
/// record is not told of that gets none: it would become a ring that is not mapped there, or not known.
static FORKING: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicU32 = AtomicU32::new(0);
static BEGINNING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How often this thread is in the midst of [`BEGINNING`]: a handler that forks would wait for it.
    static BEGINS: Cell<u32> = const { Cell::new(0) };
    /// How often of [`FORKING`]: a handler would wait for that.
    static FORKS: Cell<u32> = const { Cell::new(0) };
    /// As manyth of all that were begun to be made as the last that this thread began was.
    static OWN: Cell<u32> = const { Cell::new(0) };
    /// In how manyth of the processes it is that were forked one by another.
    static CHILD: Cell<u32> = const { Cell::new(0) };
}

/// Counts this thread in, or out, there and by itself. The child of a handler that forks in between has itself alone.
fn counts(all: &AtomicU32, own: &'static LocalKey<Cell<u32>>, is_in: bool) {
    let child = CHILD.get();
    match is_in {
        // By itself as long as it is counted there: its handlers wait for others alone.
        true => {
            own.set(own.get() + 1);
            all.fetch_add(1, Ordering::SeqCst);
        }
        false => {
            all.fetch_sub(1, Ordering::SeqCst);
            own.set(own.get().saturating_sub(1));
        }
    }
    if CHILD.get() != child {
        all.store(own.get(), Ordering::SeqCst);
    }
}

/// From here on no process is begun to be made; whether none is being made.
pub fn stands() -> bool {
    counts(&BEGINNING, &BEGINS, true);
    FORKING.load(Ordering::SeqCst) == 0
}

pub fn goes_on() {
    counts(&BEGINNING, &BEGINS, false);
}

/// When a socket was not there yet, by the processes that were made; none: one was being made.
#[derive(Clone, Copy)]
pub struct Before(Option<u32>);

/// Now.
pub fn before() -> Before {
    let forked = FORKED.load(Ordering::SeqCst);
    // Last: whoever had begun by then is over.
    Before((FORKING.load(Ordering::SeqCst) == 0).then_some(forked))
}

impl Before {
    /// Before anything.
    pub const NEVER: Before = Before(None);

    /// Whether none was begun to be made since, nor was being made.
    pub fn is_now(self) -> bool {
        self.0 == Some(FORKED.load(Ordering::SeqCst))
    }
}

/// Waits until no process is being made, and has none begun to be; to be followed by [`goes_on`].
pub fn stands_still() {
    let mut patience = Patience::of(PATIENCE);
    // Bound: its time.
    while !stands() && FORKING.load(Ordering::SeqCst) > FORKS.get() && !patience.is_over() {
        goes_on();
        patience.rests();
    }
}

/// Whether one is being made.
pub fn is_under_way() -> bool {
    FORKING.load(Ordering::SeqCst) > 0
}

/// How many began to be.
pub fn forked() -> u32 {
    FORKED.load(Ordering::SeqCst)
}

/// In one that this thread has made: as manyth as it is.
pub fn own() -> u32 {
    OWN.get()
}

/// One is about to be made: nothing begins to be followed from here on.
pub fn begins() {
    counts(&FORKING, &FORKS, true);
    OWN.set(FORKED.fetch_add(1, Ordering::SeqCst).wrapping_add(1));
    let mut patience = Patience::of(PATIENCE);
    // Bound: its time.
    while BEGINNING.load(Ordering::SeqCst) > BEGINS.get() && !patience.is_over() {
        patience.rests();
    }
}

/// It was made, or was not: in the one that makes it.
pub fn ends() {
    counts(&FORKING, &FORKS, false);
}

/// In it: no other thread goes on here.
pub fn is_forked() {
    CHILD.set(CHILD.get().wrapping_add(1));
    // That one is over, and what its handler interrupted goes on.
    FORKS.set(FORKS.get().saturating_sub(1));
    FORKING.store(FORKS.get(), Ordering::SeqCst);
    BEGINNING.store(BEGINS.get(), Ordering::SeqCst);
}
