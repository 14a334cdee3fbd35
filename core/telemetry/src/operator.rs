//! The page in which an operator notes what it does. Its head is what the supervisor reads of it,
//! each word an allegation that can hide nothing but a hang of its own. From its middle on is
//! what the controller reads, as it does a switch's pages: what rules decided, whom it refused and
//! why, and the last of both, as events.

use crate::drops::{DropReason, MAX_REASONS};
use crate::rules::{ENTRY_WORDS, MOST};

/// Rises with each turn of its loop, with each call and with each piece of long work.
pub const HEARTBEAT: usize = 2;
/// 1 while it waits for somebody to call.
pub const ASLEEP: usize = 3;
/// The number of the program whose call it does; 0: none's. The upper half: the thread of it that is
/// to take a descriptor, for which it waits.
pub const SERVES: usize = 4;
/// Set-ups that were delayed.
pub const DELAYED: usize = 5;
/// Ends of circuits that were to be cut, or of datagrams that were to be linked, and that no process was found with.
pub const UNFOUND: usize = 6;
/// The slot, and 1, of an endpoint whatever of whose programs it takes a socket from; 0: none.
pub const TOUCHES: usize = 7;

/// Bytes of the page; nothing of it is there before it is used.
pub const BYTES: usize = 32 << 20;
/// First byte of what was decided.
pub const DECIDED_AT: usize = 16 << 20;
/// Ends of circuits, one of each circuit, that were cut because they are allowed no more.
pub const CUT: usize = DECIDED_AT / 8 - 3;
/// 1 while it takes a connection out of a queue of the kernel's, until its successor would find it.
pub const TAKES: usize = DECIDED_AT / 8 - 2;
/// Operators that came to their end meanwhile: so many connections at most went with them.
pub const TAKEN: usize = DECIDED_AT / 8 - 1;
/// First byte of a recorder, as [`crate::recorder`] has it.
pub const RECORDER_AT: usize = 31 << 20;

/// Words from [`DECIDED_AT`] on. Decisions of rules that log and were not recorded, being too many.
pub const UNLOGGED: usize = 0;
/// Entries of rules that are used.
pub const RULES_USED: usize = 1;
const RULES_AT: usize = 8;
const REFUSED_AT: usize = RULES_AT + (MOST + 1) * ENTRY_WORDS;

/// First word of an entry: the rule's number, connections that it let begin, datagrams that it let
/// pass by themselves, what it denied; the last one ([`MOST`]) is that of the others.
pub const fn entry_word(entry: usize) -> usize {
    RULES_AT + entry * ENTRY_WORDS
}

/// What of a slot's programs was refused for a reason: calls, and datagrams. No reason is 0.
pub const fn refused_word(slot: usize, reason: DropReason) -> usize {
    REFUSED_AT + slot * MAX_REASONS + reason as usize
}

/// Connections that a slot's programs began to others.
pub const fn begun_word(slot: usize) -> usize {
    REFUSED_AT + slot * MAX_REASONS
}

/// Whose these are: the host-wide id of the slot's endpoint, and 1; 0: nobody's.
pub const fn owner_word(slot: usize) -> usize {
    REFUSED_AT + slot * MAX_REASONS + MAX_REASONS - 1
}

/// Bytes of what was decided, of so many slots.
pub const fn decided_bytes(slots: usize) -> usize {
    (REFUSED_AT + slots * MAX_REASONS) * 8
}
