//! AF_XDP on an uplink: one socket for each of the interface's queues, frames in memory
//! that the kernel and the fabric share, no system call a frame.
//!
//! The supervisor [opens](setup::open) all of it; the confined fabric maps it and runs the
//! [queues](Queue). Who owns which chunk of the memory stands in the rings alone: a fabric
//! that dies between any two instructions leaves nothing that its successor cannot go on
//! from, and no chunk is lost or used twice (see `queue.rs`).

mod memory;
mod program;
mod queue;
pub mod setup;

pub use queue::Queue;

/// Bytes of a chunk, which holds one frame.
pub const CHUNK: usize = 4096;
/// Chunks for frames that come, and as many for frames that leave; so long are the rings.
pub const CHUNKS: u32 = 1024;
/// Bytes that the kernel leaves free before a frame that comes (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Bytes of a queue's chunks.
const FRAMES: usize = 2 * CHUNKS as usize * CHUNK;
/// And of what is its part of the memory: a page more, see [`memory::Layout`].
const PART: usize = FRAMES + 4096;

/// The longest MTU: one frame with two tags in one chunk.
pub const MAX_MTU: u32 = (CHUNK - HEADROOM - 14 - 8) as u32;

/// Which of the kernel's ways it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The interface reads and writes the chunks themselves.
    ZeroCopy,
    /// The kernel copies between chunks and its own buffers.
    Copy,
}

impl Mode {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::ZeroCopy => "AF_XDP, zero-copy",
            Mode::Copy => "AF_XDP, copy",
        }
    }
}
