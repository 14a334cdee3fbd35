//! What a process does with the descriptors of a channel: attach, and use both ends.

use crate::bell::{Listener, Ringer};
use crate::end::{ConsumerEnd, ProducerEnd, between_threads};
use crate::file::is_sealed_shape;
use guard::guard;
use ring::{Consumer, Geometry, PAGE, Producer};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;

/// Descriptors of the writing end of one direction.
#[derive(Debug)]
pub struct ProducerFds {
    /// File D, read-write.
    pub data: OwnedFd,
    /// File C, read-only.
    pub consumer: OwnedFd,
    /// Doorbell, write end.
    pub bell: OwnedFd,
}

/// Descriptors of the reading end of one direction.
#[derive(Debug)]
pub struct ConsumerFds {
    /// File D, read-only.
    pub data: OwnedFd,
    /// File C, read-write.
    pub consumer: OwnedFd,
    /// Doorbell, read end.
    pub bell: OwnedFd,
}

/// Descriptors of one side of a channel, both directions.
#[derive(Debug)]
pub struct ChannelFds {
    /// What this side reads.
    pub rx: ConsumerFds,
    /// What this side writes.
    pub tx: ProducerFds,
}

/// Whether this process is the first on its side of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The rings were made for it.
    Fresh,
    /// It takes over from one that died.
    Resume {
        /// From a random source that the predecessor did not share.
        generation: u64,
        /// CLOCK_MONOTONIC, ns.
        now: u64,
    },
}

impl Start {
    /// Takes over from one that died, by a generation from the kernel's random source:
    /// peers read generations, so that nothing secret may be guessed from them.
    ///
    /// # Errors
    /// The kernel gave no random bytes.
    pub fn resume(now: u64) -> io::Result<Start> {
        let mut generation = [0; 8];
        match rustix::rand::getrandom(&mut generation, rustix::rand::GetRandomFlags::empty())? {
            8 => Ok(Start::Resume {
                generation: u64::from_ne_bytes(generation),
                now,
            }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A channel that could not be attached: nothing of it is left mapped.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The memory file is too short or can still shrink.
    #[error("a memory file of the channel is shorter than its geometry, or can be truncated")]
    Shape,
    /// The header page does not say what the supervisor said.
    #[error("the channel's header page does not agree with the geometry given")]
    Header,
    /// The operating system refused.
    #[error("mapping the channel: {0}")]
    System(#[from] io::Error),
}

/// The reading end.
pub struct Receiver {
    /// Index logic and memory.
    pub ring: Consumer<ConsumerEnd>,
    /// Wakes us.
    pub bell: Listener,
}

/// The writing end.
pub struct Sender {
    /// Index logic and memory.
    pub ring: Producer<ProducerEnd>,
    /// Wakes the peer.
    pub bell: Ringer,
}

/// One side of a channel.
pub struct Channel {
    /// What we read.
    pub rx: Receiver,
    /// What we write.
    pub tx: Sender,
}

/// A direction between two threads of this process: nobody else has its memory or its
/// doorbell.
///
/// # Errors
/// Descriptors or memory ran out.
pub fn between(geometry: &Geometry) -> io::Result<(Sender, Receiver)> {
    let (producer, consumer) = between_threads(geometry)?;
    // Of this process's own making alone: a pair of sockets does what a pipe does.
    let (write, read) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    let sender = Sender {
        ring: Producer::fresh(producer, geometry),
        bell: Ringer::from(write),
    };
    let receiver = Receiver {
        ring: Consumer::fresh(consumer, geometry),
        bell: Listener::from(read),
    };
    Ok((sender, receiver))
}

/// Attaches to both directions. Asks nothing of anyone; where it resumes, it rings
/// the peer once, so that a sleeping peer sees the new generation.
///
/// # Errors
/// [`AttachError`].
pub fn attach(fds: ChannelFds, geometry: &Geometry, start: Start) -> Result<Channel, AttachError> {
    let rx = attach_consumer(fds.rx, geometry, start)?;
    let tx = attach_producer(fds.tx, geometry, start)?;
    Ok(Channel { rx, tx })
}

/// Attaches the reading end of one direction. Forgets what the doorbell held.
///
/// # Errors
/// [`AttachError`].
pub fn attach_consumer(
    fds: ConsumerFds,
    geometry: &Geometry,
    start: Start,
) -> Result<Receiver, AttachError> {
    let end = consumer_end(&fds, geometry)?;
    let bell = Listener::from(fds.bell);
    let ring = match start {
        Start::Fresh => Consumer::fresh(end, geometry),
        Start::Resume { generation, now } => {
            let _ = bell.drain();
            Consumer::resume(end, geometry, generation, now)
        }
    };
    Ok(Receiver { ring, bell })
}

/// Attaches the writing end of one direction.
///
/// # Errors
/// [`AttachError`].
pub fn attach_producer(
    fds: ProducerFds,
    geometry: &Geometry,
    start: Start,
) -> Result<Sender, AttachError> {
    let end = producer_end(&fds, geometry)?;
    let bell = Ringer::from(fds.bell);
    let ring = match start {
        Start::Fresh => Producer::fresh(end, geometry),
        Start::Resume { generation, now } => {
            let ring = Producer::resume(end, geometry, generation, now);
            let _ = bell.ring();
            ring
        }
    };
    Ok(Sender { ring, bell })
}

/// The reading end's memory alone, for a ring of another shape to be tried in.
///
/// # Errors
/// [`AttachError`].
pub fn consumer_end(fds: &ConsumerFds, geometry: &Geometry) -> Result<ConsumerEnd, AttachError> {
    check_shape(fds.data.as_fd(), fds.consumer.as_fd(), geometry)?;
    let end = ConsumerEnd::map(fds.data.as_fd(), fds.consumer.as_fd(), geometry)?;
    if !geometry.agrees_with(&end.header()) && guard!("channel-header") {
        return Err(AttachError::Header);
    }
    Ok(end)
}

/// The writing end's memory alone, for a ring of another shape to be tried in.
///
/// # Errors
/// [`AttachError`].
pub fn producer_end(fds: &ProducerFds, geometry: &Geometry) -> Result<ProducerEnd, AttachError> {
    check_shape(fds.data.as_fd(), fds.consumer.as_fd(), geometry)?;
    let end = ProducerEnd::map(fds.data.as_fd(), fds.consumer.as_fd(), geometry)?;
    if !geometry.agrees_with(&end.header()) && guard!("channel-header-producer") {
        return Err(AttachError::Header);
    }
    Ok(end)
}

fn check_shape(
    data: BorrowedFd<'_>,
    consumer: BorrowedFd<'_>,
    geometry: &Geometry,
) -> Result<(), AttachError> {
    let shape =
        is_sealed_shape(data, geometry.data_file_bytes())? && is_sealed_shape(consumer, PAGE)?;
    if !shape && guard!("channel-sealed") {
        return Err(AttachError::Shape);
    }
    Ok(())
}

impl ChannelFds {
    /// From the descriptors beside an `AddPort` message, in its order: rx data, rx
    /// consumer page, tx data, tx consumer page, rx doorbell, tx doorbell. `None`
    /// when there are fewer than six.
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> Option<ChannelFds> {
        let mut fds = fds.into_iter();
        let (rx_data, rx_consumer) = (fds.next()?, fds.next()?);
        let (tx_data, tx_consumer) = (fds.next()?, fds.next()?);
        let (rx_bell, tx_bell) = (fds.next()?, fds.next()?);
        Some(ChannelFds {
            rx: ConsumerFds {
                data: rx_data,
                consumer: rx_consumer,
                bell: rx_bell,
            },
            tx: ProducerFds {
                data: tx_data,
                consumer: tx_consumer,
                bell: tx_bell,
            },
        })
    }

    /// In the order of `AddPort`.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 6] {
        [
            self.rx.data.as_fd(),
            self.rx.consumer.as_fd(),
            self.tx.data.as_fd(),
            self.tx.consumer.as_fd(),
            self.rx.bell.as_fd(),
            self.tx.bell.as_fd(),
        ]
    }
}

impl ProducerFds {
    /// From data (rw), consumer page (ro), doorbell (write end): the order of `Capture`.
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> Option<ProducerFds> {
        let mut fds = fds.into_iter();
        Some(ProducerFds {
            data: fds.next()?,
            consumer: fds.next()?,
            bell: fds.next()?,
        })
    }
    /// In the same order.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.data.as_fd(), self.consumer.as_fd(), self.bell.as_fd()]
    }
}

impl ConsumerFds {
    /// From data (ro), consumer page (rw), doorbell (read end).
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> Option<ConsumerFds> {
        let mut fds = fds.into_iter();
        Some(ConsumerFds {
            data: fds.next()?,
            consumer: fds.next()?,
            bell: fds.next()?,
        })
    }
    /// In the same order.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.data.as_fd(), self.consumer.as_fd(), self.bell.as_fd()]
    }
}
