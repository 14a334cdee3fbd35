//! Stream mode ends: bytes, with a doorbell each way (data, and space).

use crate::bell::{Listener, Ringer};
use crate::channel::{AttachError, ConsumerFds, ProducerFds, consumer_end, producer_end};
use crate::end::{ConsumerEnd, ProducerEnd};
use ring::{Geometry, StreamConsumer, StreamProducer};
use std::os::fd::OwnedFd;

/// The writing end.
pub struct StreamSender {
    /// Index logic and memory.
    pub ring: StreamProducer<ProducerEnd>,
    /// Wakes the reader.
    pub bell: Ringer,
    /// Wakes us when there is space.
    pub space: Listener,
}

/// The reading end.
pub struct StreamReceiver {
    /// Index logic and memory.
    pub ring: StreamConsumer<ConsumerEnd>,
    /// Wakes us.
    pub bell: Listener,
    /// Wakes the writer when there is space.
    pub space: Ringer,
}

/// Attaches the writing end of a stream. `space` is the read end of its doorbell.
///
/// # Errors
/// [`AttachError`].
pub fn attach_stream_producer(
    fds: ProducerFds,
    space: OwnedFd,
    geometry: &Geometry,
) -> Result<StreamSender, AttachError> {
    let end = producer_end(&fds, geometry)?;
    let ring = StreamProducer::fresh(end, geometry);
    Ok(StreamSender {
        ring,
        bell: fds.bell.into(),
        space: space.into(),
    })
}

/// Attaches the reading end of a stream. `space` is the write end of its doorbell.
///
/// # Errors
/// [`AttachError`].
pub fn attach_stream_consumer(
    fds: ConsumerFds,
    space: OwnedFd,
    geometry: &Geometry,
) -> Result<StreamReceiver, AttachError> {
    let end = consumer_end(&fds, geometry)?;
    let ring = StreamConsumer::fresh(end, geometry);
    Ok(StreamReceiver {
        ring,
        bell: fds.bell.into(),
        space: space.into(),
    })
}
