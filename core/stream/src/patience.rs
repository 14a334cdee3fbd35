//! How long who uses a ring looks at it, and when it looks past it: the same by whichever library.

use core::time::Duration;
use guard::guard;

/// How long who waits looks at the ring before it sleeps: as long as a poller of a shared core may.
pub const SPIN: Duration = Duration::from_micros(5);
/// How long who sleeps for room sleeps before it looks whether the peer lives.
pub const SLEEP: Duration = Duration::from_millis(10);
/// Bytes, and writes, after which it is looked whether the peer still reads: the ring says nothing
/// of that, and a circuit that is cut ends.
pub const LOOK_BYTES: usize = 256 << 10;
/// See [`LOOK_BYTES`].
pub const LOOK_WRITES: u32 = 1024;

/// For a KiB that went by the socket a write may wait so long until what did is read, altogether; of no more than so
/// much; and no longer at a time while nothing of it is read, which takes some tens of microseconds where it is much.
const A_KIB: Duration = Duration::from_micros(1);
const MOST: Duration = Duration::from_millis(4);
const STILL: Duration = Duration::from_millis(1);
/// The first of a wait is spent looking; the rest in sleeps as long, for who reads may have no other processor. Less
/// than half of it is not worth beginning.
const LOOKS: Duration = Duration::from_micros(50);

/// How long a writer that does not block may wait to come back to its ring: a part of the time that the bytes took
/// to write that went by the socket, so that neither who reads little nor who says that he reads costs more than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience(Duration);

impl Patience {
    /// So many bytes went by the socket.
    pub fn earns(&mut self, bytes: usize) {
        let earned = A_KIB * u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        self.0 = MOST.min(self.0.saturating_add(earned));
    }

    /// Waits until nothing is `unread`, for as long as it is being read. `now` is a clock; `pause` lets time pass: so
    /// much, or none at all.
    pub fn waits(
        &mut self,
        unread: impl Fn() -> u64,
        now: impl Fn() -> Duration,
        pause: impl Fn(Duration),
    ) {
        let mut least = unread();
        if least == 0 || self.0 < LOOKS / 2 || !guard!("stream-patience") {
            return;
        }
        let begun = now();
        let (mut moved, mut time) = (begun, begun);
        while least > 0 && time.saturating_sub(moved) < STILL && time.saturating_sub(begun) < self.0
        {
            match time.saturating_sub(begun) < LOOKS {
                true => pause(Duration::ZERO),
                false => pause(LOOKS),
            }
            time = now();
            let there = unread();
            if there < least {
                (least, moved) = (there, time);
            }
        }
        if guard!("stream-patience-spent") {
            self.0 = self.0.saturating_sub(time.saturating_sub(begun));
        }
    }
}

/// How long a writer that does not block looks for room at a time, before its bytes go by the socket: about as long as a
/// reader takes to copy a large piece.
const MOMENT: Duration = Duration::from_micros(20);
/// Room of less than this is little, and so often in a call a reader may make so little.
const LITTLE: usize = 512;
const LITTLES: u32 = 64;

/// One call that does not block, and a reader that makes room, which may do so byte by byte: what it waits is a moment,
/// and a part of the time that what it wrote took. Then it waits no more; and who makes little again and again has the
/// rest by the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    waited: Duration,
    littles: u32,
}

impl Turn {
    /// How long it may look for room now, by which so many bytes went.
    #[must_use]
    pub fn may_wait(&self, done: usize) -> Duration {
        let earned = A_KIB * u32::try_from(done >> 10).unwrap_or(u32::MAX);
        MOMENT
            .saturating_add(earned)
            .saturating_sub(self.waited)
            .min(MOMENT)
    }

    /// It did for so long.
    pub fn waited(&mut self, time: Duration) {
        if guard!("stream-turn-waited") {
            self.waited = self.waited.saturating_add(time);
        }
    }

    /// So many bytes were written, of so many.
    pub fn wrote(&mut self, n: usize, of: usize) {
        self.littles = match n < LITTLE && n < of {
            true => self.littles.saturating_add(1),
            false => self.littles,
        };
    }

    /// Whether all that follows goes by the socket.
    #[must_use]
    pub fn goes_aside(&self) -> bool {
        self.littles >= LITTLES && guard!("stream-turn-littles")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// One wait, in which a microsecond passes with each look, and a reader that has read `by` bytes of so many by
    /// then; how long it took, and what is left unread.
    fn waited(
        patience: &mut Patience,
        there: u64,
        by: impl Fn(Duration) -> u64,
    ) -> (Duration, u64) {
        let time = Cell::new(Duration::ZERO);
        let unread = || there.saturating_sub(by(time.get()));
        patience.waits(
            unread,
            || time.get(),
            |pause| time.set(time.get() + pause.max(micros(1))),
        );
        (time.get(), unread())
    }

    #[test]
    fn who_does_not_read_costs_no_more_than_was_written_earns() {
        let mut patience = Patience::default();
        // A server of many slow readers: each write is a little, and waits for less.
        let mut spent = Duration::ZERO;
        for _ in 0..10_000 {
            patience.earns(4 << 10);
            spent += waited(&mut patience, 1 << 20, |_| 0).0;
        }
        let earned = micros(10_000 * 4);
        assert!(
            spent > earned / 2 && spent <= earned + 2 * LOOKS,
            "{spent:?}"
        );
        // Who says at each look that a byte is read has no more of it.
        let mut spent = Duration::ZERO;
        for _ in 0..10_000 {
            patience.earns(4 << 10);
            spent += waited(&mut patience, 1 << 20, |time| time.as_micros() as u64).0;
        }
        assert!(spent <= earned + 2 * LOOKS, "{spent:?}");
    }

    #[test]
    fn who_makes_room_byte_by_byte_holds_no_call_up() {
        let (mut turn, mut done, mut spent) = (Turn::default(), 0, Duration::ZERO);
        // A byte each time that it would be given up.
        while !turn.goes_aside() && done < 1000 {
            let time = turn.may_wait(done);
            turn.waited(time);
            turn.wrote(1, 1 << 20);
            (done, spent) = (done + 1, spent + time);
        }
        assert_eq!((done, spent), (64, MOMENT));
        // Who reads as fast as memory is has the call wait for it as long as it writes.
        let (mut turn, mut done) = (Turn::default(), 0);
        for _ in 0..1000 {
            assert_eq!(turn.may_wait(done), MOMENT);
            turn.waited(MOMENT);
            turn.wrote(64 << 10, 1 << 20);
            done += 64 << 10;
        }
        // The last of what there was is not little.
        (0..1000).for_each(|_| turn.wrote(1, 1));
        assert!(!turn.goes_aside());
    }

    #[test]
    fn who_is_being_read_is_waited_for() {
        let mut patience = Patience::default();
        patience.earns(100 << 20);
        // A MiB at 2 GB/s, after the reader got a processor.
        let reads = |time: Duration| (time.saturating_sub(micros(200)).as_nanos() * 2) as u64;
        let (took, unread) = waited(&mut patience, 1 << 20, reads);
        assert!(
            unread == 0 && took > micros(700) && took < micros(800),
            "{took:?}"
        );
        // Nothing of it is read: a millisecond at a time, and four of what is earned at most.
        let mut patience = Patience::default();
        patience.earns(usize::MAX);
        let all: Vec<u64> = (0..6)
            .map(|_| waited(&mut patience, 9, |_| 0).0.as_micros() as u64 / 100)
            .collect();
        assert_eq!(all[..3], [10; 3]);
        assert!(all.iter().sum::<u64>() <= 41 && all[5] == 0, "{all:?}");
        assert_eq!(waited(&mut patience, 0, |_| 0).0, Duration::ZERO);
    }
}
