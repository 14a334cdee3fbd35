//! The head of the page in which an operator notes what it does: what the supervisor reads of it
//! there, each word an allegation that can hide nothing but a hang of its own.

/// Rises with each turn of its loop, with each call and with each piece of long work.
pub const HEARTBEAT: usize = 2;
/// 1 while it waits for somebody to call.
pub const ASLEEP: usize = 3;
/// The number of the program whose call it does; 0: none's. The upper half: the thread of it that is
/// to take a descriptor, for which it waits.
pub const SERVES: usize = 4;
/// Set-ups that were delayed.
pub const DELAYED: usize = 5;
/// Ends of circuits that were to be cut and that no process was found with.
pub const UNFOUND: usize = 6;
/// The slot, and 1, of an endpoint whatever of whose programs it takes a socket from; 0: none.
/// The upper half is the operator's own.
pub const TOUCHES: usize = 7;
