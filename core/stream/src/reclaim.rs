//! Memory of circuits that nobody uses, given back. Who is idle runs nothing of ours; so this is done
//! on behalf of whoever made the memory and kept a descriptor of it, who is neither end.
//!
//! A writer says that it writes (`Fills`), and then looks whether the memory is being given back (`Reclaims`).
//! Who gives it back says so ([`look`]), and looks for writers not before [`SETTLES`] ([`is_idle`]): by then each
//! writer that did not see that has been seen. Writers that did go by the socket, until it is over ([`done`]); readers
//! have nothing to read. So nobody waits for anybody, and nobody's death or sleep loses a byte: who
//! dies in between leaves a circuit that goes by its socket.

use crate::Side;
use core::time::Duration;
use guard::guard;
use ring::{ConsumerWord, ProducerWord};

/// Memory is looked at after so long, and given back where nothing has gone by it since.
pub const LOOKS: Duration = Duration::from_secs(1);
/// A processor's store is seen by all others within less than a millionth of that.
pub const SETTLES: Duration = Duration::from_millis(50);

const SIDES: [Side; 2] = [Side::Began, Side::Accepted];

/// A circuit's memory, of whoever gives it back. What its words say are allegations of its ends: who lies
/// loses data of its own.
pub trait Kept {
    /// Loads a word of who writes this direction, acquire.
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64;
    /// Loads a word of who reads it, acquire.
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64;
    /// Stores [`ConsumerWord::Reclaims`] of it, release.
    fn reclaims(&self, side: Side, value: u64);
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Something went by it since the last: the writers' positions now.
    Moved([u64; 2]),
    /// Nothing did, and yet somebody writes, or not all is read.
    Unread,
    /// Writers are told that it is being given back: after [`SETTLES`], where [`is_idle`] still says so, all pages
    /// of both directions' data may be. Then [`done`], whatever came of it, and never while it may still be done.
    Asked,
}

/// Looks whether nothing went by it since the writers' positions were these, and asks for it then.
pub fn look(memory: &impl Kept, seen: [u64; 2]) -> Look {
    let published = SIDES.map(|side| memory.of_writer(side, ProducerWord::Published));
    if published != seen {
        return Look::Moved(published);
    }
    if !is_idle(memory, seen) {
        return Look::Unread;
    }
    for side in SIDES {
        memory.reclaims(side, 1);
    }
    Look::Asked
}

/// Nobody writes, and all that was written up to these positions is read, and no more was written.
pub fn is_idle(memory: &impl Kept, seen: [u64; 2]) -> bool {
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

/// Nothing more is taken away: both ends may use it again.
pub fn done(memory: &impl Kept) {
    for side in SIDES {
        memory.reclaims(side, 0);
    }
}
