//! Memory of circuits that nobody uses, given back. Who is idle runs nothing of ours; so this is done
//! by whoever made the memory and kept a descriptor of it, who is neither end.
//!
//! A writer says that it writes (`Fills`), and then looks whether the memory is being given back (`Reclaims`).
//! Who gives it back says so, and looks for writers not before [`SETTLES`]: by then each writer that
//! did not see that has been seen. Writers that did go by the socket, until it is done; readers
//! have nothing to read. So nobody waits for anybody, and nobody's death or sleep loses a byte: who
//! dies in between leaves a circuit that goes by its socket.

use crate::Side;
use core::time::Duration;
use guard::guard;
use ring::{ConsumerWord, ProducerWord};

/// A circuit's memory, of whoever keeps it.
pub trait Kept {
    /// Whether it has more than its words and a page each way.
    fn is_large(&self) -> bool;
    /// Loads a word of who writes this direction, acquire.
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64;
    /// Loads a word of who reads it, acquire.
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64;
    /// Stores [`ConsumerWord::Reclaims`] of it, release.
    fn reclaims(&self, side: Side, value: u64);
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// [`Reclaim::tick`], after [`LOOKS`].
    Later,
    /// The same, after [`SETTLES`], and not before.
    Soon,
    /// All pages of both directions' data are to be given back: they are zeroes from then on. Then
    /// [`Reclaim::done`], also where that failed; never while it may still be done.
    GiveBack,
}

/// Memory is given back by which nothing went for so long.
pub const LOOKS: Duration = Duration::from_secs(1);
/// A processor's store is seen by all others within less than a millionth of that.
pub const SETTLES: Duration = Duration::from_millis(50);

const SIDES: [Side; 2] = [Side::Began, Side::Accepted];

/// Where it stands with one circuit. What the two ends say are allegations: who lies loses data of
/// its own.
#[derive(Debug, Default)]
pub struct Reclaim {
    /// The writers' positions, as they were seen last.
    seen: Option<[u64; 2]>,
    asked: bool,
    /// Looks at which nothing had moved, and yet not all was read.
    unread: u32,
}

impl Reclaim {
    /// Looks at it: it is to be given back where nothing has moved since the last look.
    pub fn tick(&mut self, memory: &impl Kept) -> Tick {
        if self.asked {
            if self.is_idle(memory) {
                return Tick::GiveBack;
            }
            self.done(memory);
            return Tick::Later;
        }
        if !memory.is_large() {
            (self.seen, self.unread) = (None, 0);
            return Tick::Later;
        }
        let published = SIDES.map(|side| memory.of_writer(side, ProducerWord::Published));
        if self.seen != Some(published) {
            (self.seen, self.unread) = (Some(published), 0);
            return Tick::Later;
        }
        if !self.is_idle(memory) {
            self.unread = self.unread.saturating_add(1);
            return Tick::Later;
        }
        self.unread = 0;
        for side in SIDES {
            memory.reclaims(side, 1);
        }
        self.asked = true;
        Tick::Soon
    }

    /// Nothing more is taken away: both ends may use it again.
    pub fn done(&mut self, memory: &impl Kept) {
        self.asked = false;
        for side in SIDES {
            memory.reclaims(side, 0);
        }
    }

    /// Looks since something moved, at which not all was read: is anybody there at all?
    #[must_use]
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// Nobody writes, and all that was written is read.
    fn is_idle(&self, memory: &impl Kept) -> bool {
        let Some(seen) = self.seen else {
            return false;
        };
        // Before the positions: whoever has stopped since has published.
        let fills = |side: &Side| memory.of_writer(*side, ProducerWord::Fills) != 0;
        if SIDES.iter().any(fills) && guard!("stream-reclaim-fills") {
            return false;
        }
        SIDES.iter().zip(seen).all(|(side, seen)| {
            let read = memory.of_reader(*side, ConsumerWord::Consumed);
            let is_read = read == seen || !guard!("stream-reclaim-unread");
            memory.of_writer(*side, ProducerWord::Published) == seen && is_read
        })
    }
}
