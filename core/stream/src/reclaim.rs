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

/// A circuit's memory, of whoever keeps it. Nothing, where the operating system refused.
pub trait Kept {
    /// Whether it has more than its words and a page each way.
    fn is_large(&self) -> bool;
    /// A word of who writes this direction.
    fn of_writer(&self, side: Side, word: ProducerWord) -> Option<u64>;
    /// A word of who reads it.
    fn of_reader(&self, side: Side, word: ConsumerWord) -> Option<u64>;
    /// Stores [`ConsumerWord::Reclaims`] of it: 0 or 1.
    fn reclaims(&self, side: Side, value: u8) -> Option<()>;
    /// Gives back all pages of both directions' data: they are zeroes from then on.
    fn give_back(&self) -> Option<()>;
}

/// When [`Reclaim::tick`] is to be called next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// After [`LOOKS`].
    Later,
    /// After [`SETTLES`], and not before.
    Soon,
}

impl Tick {
    /// That time.
    #[must_use]
    pub const fn after(self) -> Duration {
        match self {
            Tick::Later => LOOKS,
            Tick::Soon => SETTLES,
        }
    }
}

/// Memory is given back by which nothing went for so long.
const LOOKS: Duration = Duration::from_secs(1);
/// A processor's store is seen by all others within less than a millionth of that.
const SETTLES: Duration = Duration::from_millis(50);

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
    /// Looks at it, and gives its memory back where nothing has moved since the last look.
    pub fn tick(&mut self, memory: &impl Kept) -> Tick {
        if self.asked {
            self.asked = false;
            if self.is_idle(memory) == Some(true) {
                memory.give_back();
            }
            for side in SIDES {
                memory.reclaims(side, 0);
            }
            return Tick::Later;
        }
        if !memory.is_large() {
            (self.seen, self.unread) = (None, 0);
            return Tick::Later;
        }
        let published = SIDES.map(|side| memory.of_writer(side, ProducerWord::Published));
        let [Some(one), Some(other)] = published else {
            return Tick::Later;
        };
        if self.seen != Some([one, other]) {
            (self.seen, self.unread) = (Some([one, other]), 0);
            return Tick::Later;
        }
        if self.is_idle(memory) != Some(true) {
            self.unread = self.unread.saturating_add(1);
            return Tick::Later;
        }
        self.unread = 0;
        self.asked = SIDES.iter().all(|side| memory.reclaims(*side, 1).is_some());
        match self.asked {
            true => Tick::Soon,
            false => Tick::Later,
        }
    }

    /// Looks since something moved, at which not all was read: is anybody there at all?
    #[must_use]
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// Nobody writes, and all that was written is read.
    fn is_idle(&self, memory: &impl Kept) -> Option<bool> {
        let seen = self.seen?;
        for side in SIDES {
            // Before the position: whoever has stopped since has published.
            if memory.of_writer(side, ProducerWord::Fills)? != 0 && guard!("stream-reclaim-fills") {
                return Some(false);
            }
        }
        for (side, seen) in SIDES.into_iter().zip(seen) {
            let read = memory.of_reader(side, ConsumerWord::Consumed)?;
            let is_read = read == seen || !guard!("stream-reclaim-unread");
            if memory.of_writer(side, ProducerWord::Published)? != seen || !is_read {
                return Some(false);
            }
        }
        Some(true)
    }
}
