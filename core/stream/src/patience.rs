//! How long who uses a ring looks at it, and when it looks past it: the same by whichever library.

use core::time::Duration;

/// How long who waits looks at the ring before it sleeps: as long as a poller of a shared core may.
pub const SPIN: Duration = Duration::from_micros(5);
/// How long who sleeps for room sleeps before it looks whether the peer lives.
pub const SLEEP: Duration = Duration::from_millis(10);
/// Bytes, and writes, after which it is looked whether the peer still reads: the ring says nothing
/// of that, and a circuit that is cut ends.
pub const LOOK_BYTES: usize = 256 << 10;
/// See [`LOOK_BYTES`].
pub const LOOK_WRITES: u32 = 1024;
