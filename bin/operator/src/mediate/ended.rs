//! Calls that a signal has ended while they waited: of these nobody tells.

use super::*;
use crate::waiting::Key;

/// So many of a program's calls that wait are asked about at a time: for each the kernel goes
/// through all of them, which takes tens of microseconds where they are a thousand.
const ENDED: usize = 32;

/// A look for calls of a program that a signal has ended while they waited.
#[derive(Default)]
pub(super) struct Look {
    /// Those up to this one were asked about.
    after: Option<Key>,
    /// It began behind the first.
    midway: bool,
    took: Duration,
    /// None has ended: it is not asked again before this.
    over: Option<Instant>,
}

impl Mediator {
    /// Calls of a program that a signal has ended while they waited: nobody tells of that. Some are
    /// asked about at a time, and all for a tenth of the time at most; whether one was found, or
    /// none is to be.
    pub(super) fn forget_ended(&mut self, program: u32, listener: &Listener) -> bool {
        let began = Instant::now();
        let look = self.looks.entry(program).or_default();
        if look.over.is_some_and(|over| began < over) {
            return true;
        }
        look.over = None;
        let some = self.waits.some_of(program, look.after, ENDED);
        let is_last = some.len() < ENDED;
        look.after = some.last().map(|(key, _)| *key).filter(|_| !is_last);
        let mut ended = Vec::new();
        for ((at, why, number), id) in &some {
            if !listener.is_live(*id)
                && guard!("circuits-ended")
                && let Some(waits) = self.waits.remove(*at, *why, *number)
            {
                ended.push(waits);
            }
        }
        let now = Instant::now();
        let found = !ended.is_empty();
        look.took += now - began;
        if found {
            look.took = Duration::ZERO;
            look.midway = !is_last;
        } else if is_last && !std::mem::take(&mut look.midway) {
            look.over = Some(now + 10 * std::mem::take(&mut look.took));
        }
        let is_over = look.over.is_some();
        for waits in ended {
            self.ends(&waits);
            self.done_with(waits.note);
        }
        found || is_over
    }
}
