//! A circuit's stream of bytes: by a socket at first, then by a ring in memory that both
//! programs have, without a byte lost or out of order, with the socket as doorbell, sign of
//! life and way out where the ring is full. Each direction by itself.
//!
//! - Both sides say that they have the memory (`Joined`). A reader that saw it looks at the
//!   socket before it takes from it, and says so (`Consents`).
//! - The writer then notes how many bytes it had sent (`Plain`), sends a token, and goes on in
//!   the ring. From there on the socket has frames: tokens, and bytes for want of room (*spill*).
//! - A reader that found the ring empty announces its sleep by a number (`Armed`) and looks
//!   again; who writes then sends one token with that number. Old tokens are taken only after
//!   that, and the newest is left there: so whoever polls the socket finds it readable for as
//!   long as there is something to read.
//! - Who reads and polls no socket may sleep by the memory instead (a *nap*): it is woken there,
//!   and no token comes. What it leaves in the ring then no poll tells of.
//! - A writer that finds the ring full may sleep for room, or sends what it has by the socket,
//!   which blocks it as any socket does. It uses the ring again when all that was read
//!   (`Spilled`): never is there something in the ring behind bytes in the socket.
//! - A side may say of its sending, before its socket does, that it has ended, or that it closes upon what it has not
//!   read ([`Says`]): a socket that hangs up tells neither.
//! - Memory of a circuit that nobody uses is given back by who keeps it and is neither end
//!   (`reclaim`); a writer that finds it at that goes by the socket.
//!
//! Sans-IO: the memory is `ring`'s traits, the socket is a [`Line`]. Positions, breaches and
//! waiting are `ring`'s (`StreamProducer`, `StreamConsumer`); this crate is apart from it because switch and fabric,
//! which lean on `ring`, know no sockets.

mod asked;
mod frame;
mod layout;
mod patience;
mod reader;
pub mod reclaim;
mod writer;

pub use asked::{GIVEN, Given, LEVEL, RING};
pub use frame::{LONGEST_SPILL, SPILL, TOKEN};
pub use layout::{
    CAPACITY, CONSUMER_WORDS_AT, PRODUCER_WORDS_AT, Says, Side, VERSION, WORDS, data_at, file_bytes,
};
pub use patience::{LOOK_BYTES, LOOK_WRITES, Patience, SLEEP, SPIN, Turn};
pub use reader::Reader;
pub use ring::{Breach, ConsumerWord, Doorbell, ProducerWord};
pub use writer::{Full, Writer};

/// The socket under a circuit, as it does not block.
pub trait Line {
    /// Sends the one and then the other, as much as it takes now; how many bytes of both.
    ///
    /// # Errors
    /// [`Stop::Blocked`], [`Stop::Socket`].
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop>;
    /// Takes bytes from it; none: it has ended.
    ///
    /// # Errors
    /// [`Stop::Blocked`], [`Stop::Socket`].
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop>;
    /// The same of a token, by which nothing is said but that somebody is to look: who goes on with what another left
    /// need not know whether it was sent.
    ///
    /// # Errors
    /// As [`Line::send`].
    fn send_token(&self, token: &[u8]) -> Result<usize, Stop> {
        self.send(token, &[])
    }
    /// The same of tokens, nor whether they were taken.
    ///
    /// # Errors
    /// As [`Line::take`].
    fn take_tokens(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.take(out)
    }
    /// Copies the bytes that are taken next, and leaves them there; none: it has ended.
    ///
    /// # Errors
    /// [`Stop::Blocked`], [`Stop::Socket`].
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop>;
    /// Wakes the peer that sleeps by the memory (futex(2)): of a writer's line who reads, of a
    /// reader's who waits for room.
    fn wake(&self);
}

/// Why nothing was written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The socket takes, or has, nothing now: it is to be polled.
    Blocked,
    /// The ring is full.
    Full,
    /// The socket failed, by this error number: the peer is gone, most often.
    Socket(i32),
    /// The peer's misdeed. This end is closed for good.
    Peer(Breach),
}

impl From<Breach> for Stop {
    fn from(breach: Breach) -> Stop {
        Stop::Peer(breach)
    }
}

#[cfg(test)]
mod tests;
