//! Sockets between Bulkhead's processes: AF_UNIX SOCK_SEQPACKET, one
//! `Message` a datagram, descriptors beside it (unix(7)).
//!
//! Nothing here ever blocks unless its name says `wait` or it takes a timeout.
//! The receiving path of a confined worker uses `recvmsg`, `sendmsg` and `ppoll`
//! and no other system call. A peer that sends what is not a message (too short,
//! too long, too many descriptors) gets [`Error::Malformed`] on this side; what
//! came with it is closed, and the owner should close the socket.

mod credentials;
mod listener;
mod socket;
#[cfg(test)]
mod tests;

pub use command::message::MAX_FDS;
pub use credentials::Credentials;
pub use listener::Listener;
pub use socket::{Fds, Socket, empty};

use rustix::io::Errno;

/// What went wrong, and whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The peer is gone (or sent an empty datagram, which is treated the same).
    #[error("the other side closed the socket")]
    Closed,
    /// The peer sent what is not one of our messages.
    #[error("the other side sent a malformed datagram: {0}")]
    Malformed(Misdeed),
    /// The peer does not read: its queue is full.
    #[error("the other side does not read its messages")]
    Full,
    /// No answer in time.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// More descriptors than [`MAX_FDS`]: the caller's fault.
    #[error("more descriptors than a message carries")]
    TooManyDescriptors,
    /// Another process listens on this path.
    #[error("another process is listening there already")]
    InUse,
    /// The operating system refused.
    #[error("{0}")]
    System(Errno),
}

/// How a datagram failed to be a message: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// Fewer bytes than a message.
    Short,
    /// More bytes than a message.
    Long,
    /// More descriptors than [`MAX_FDS`], or other control data.
    Descriptors,
}

impl core::fmt::Display for Misdeed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Misdeed::Short => "shorter than a message",
            Misdeed::Long => "longer than a message",
            Misdeed::Descriptors => "too many descriptors",
        })
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        match errno {
            Errno::CONNRESET | Errno::PIPE => Error::Closed,
            Errno::AGAIN | Errno::NOBUFS => Error::Full,
            Errno::ADDRINUSE => Error::InUse,
            other => Error::System(other),
        }
    }
}

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;
