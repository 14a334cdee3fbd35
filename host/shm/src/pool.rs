//! Making channels: the supervisor's side. A pair is made before it is needed, handed
//! out once, and destroyed after a tenant has mapped it.

use crate::bell::pipe;
use crate::channel::{ChannelFds, ConsumerFds, ProducerFds};
use crate::file::{memory_file, read_only};
use crate::mapping::WritableMapping;
use ring::{Geometry, HEADER_PAGE_AT, PAGE};
use rustix::fs::{FallocateFlags, OFlags};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// The files and the doorbell of one direction, with full rights: never handed out
/// as they are.
#[derive(Debug)]
pub struct Direction {
    data: OwnedFd,
    consumer: OwnedFd,
    bell_read: OwnedFd,
    bell_write: OwnedFd,
}

impl Direction {
    /// New memory, allocated and sealed, with its header page written.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn create(geometry: &Geometry) -> io::Result<Direction> {
        let data = memory_file("bulkhead-ring", geometry.data_file_bytes())?;
        let consumer = memory_file("bulkhead-ring-consumer", PAGE)?;
        let header = WritableMapping::new(data.as_fd(), PAGE)?;
        for (i, word) in geometry.header_words().into_iter().enumerate() {
            header.store(HEADER_PAGE_AT + i * 8, word, Ordering::Release);
        }
        let (bell_read, bell_write) = pipe()?;
        Ok(Direction {
            data,
            consumer,
            bell_read,
            bell_write,
        })
    }

    /// What the writing process gets. The consumer page is read-only.
    ///
    /// # Errors
    /// Of `open` and `dup`.
    pub fn producer_end(&self) -> io::Result<ProducerFds> {
        Ok(ProducerFds {
            data: self.data.try_clone()?,
            consumer: read_only(&self.consumer)?,
            bell: never_blocks(&self.bell_write)?,
        })
    }

    /// What the reading process gets. The data is read-only.
    ///
    /// # Errors
    /// Of `open` and `dup`.
    pub fn consumer_end(&self) -> io::Result<ConsumerFds> {
        Ok(ConsumerFds {
            data: read_only(&self.data)?,
            consumer: self.consumer.try_clone()?,
            bell: never_blocks(&self.bell_read)?,
        })
    }

    /// Gives the memory back to the system, whoever else has it open or mapped: they see
    /// zeros, and what they touch from then on is allocated, and charged, to them.
    ///
    /// # Errors
    /// Of `fallocate`: the descriptors are not those of a direction.
    pub fn discard(&self) -> io::Result<()> {
        for file in [&self.data, &self.consumer] {
            let bytes = rustix::fs::fstat(file)?.st_size.cast_unsigned();
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, hole, 0, bytes)?;
        }
        Ok(())
    }

    /// The descriptors, for a keeper: data, consumer page, doorbell read, write end.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 4] {
        [
            self.data.as_fd(),
            self.consumer.as_fd(),
            self.bell_read.as_fd(),
            self.bell_write.as_fd(),
        ]
    }

    /// Back from a keeper, in the same order.
    pub fn from_fds(fds: [OwnedFd; 4]) -> Direction {
        let [data, consumer, bell_read, bell_write] = fds;
        Direction {
            data,
            consumer,
            bell_read,
            bell_write,
        }
    }
}

/// A duplicate that surely does not block: a holder that died may have changed the
/// flags of the description we share with it.
fn never_blocks(fd: &OwnedFd) -> io::Result<OwnedFd> {
    rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK)?;
    fd.try_clone()
}

/// Both directions of a channel between a side A and a side B.
#[derive(Debug)]
pub struct Pair {
    /// Written by A.
    pub a_to_b: Direction,
    /// Written by B.
    pub b_to_a: Direction,
}

impl Pair {
    /// New memory for both directions.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn create(geometry: &Geometry) -> io::Result<Pair> {
        Ok(Pair {
            a_to_b: Direction::create(geometry)?,
            b_to_a: Direction::create(geometry)?,
        })
    }
    /// Side A's descriptors, in the order of `AddPort` by [`ChannelFds::as_fds`].
    ///
    /// # Errors
    /// Of `open` and `dup`.
    pub fn end_a(&self) -> io::Result<ChannelFds> {
        Ok(ChannelFds {
            rx: self.b_to_a.consumer_end()?,
            tx: self.a_to_b.producer_end()?,
        })
    }
    /// Side B's descriptors.
    ///
    /// # Errors
    /// Of `open` and `dup`.
    pub fn end_b(&self) -> io::Result<ChannelFds> {
        Ok(ChannelFds {
            rx: self.a_to_b.consumer_end()?,
            tx: self.b_to_a.producer_end()?,
        })
    }
}

/// Pairs made ahead, so that an attachment waits for no allocation.
#[derive(Debug)]
pub struct Pool {
    geometry: Geometry,
    ready: VecDeque<Pair>,
    target: usize,
}

impl Pool {
    /// An empty pool that [`Pool::refill`] brings to `target` pairs.
    pub fn new(geometry: Geometry, target: usize) -> Pool {
        Pool {
            geometry,
            ready: VecDeque::with_capacity(target),
            target,
        }
    }
    /// What its pairs look like.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Pairs ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
    /// A pair nobody has mapped: one made ahead, else a new one.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn take(&mut self) -> io::Result<Pair> {
        match self.ready.pop_front() {
            Some(pair) => Ok(pair),
            None => Pair::create(&self.geometry),
        }
    }
    /// Makes at most `most` pairs toward the target, in quiet moments. Returns
    /// whether the target is reached.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn refill(&mut self, most: usize) -> io::Result<bool> {
        for _ in 0..most {
            if self.ready.len() >= self.target {
                break;
            }
            self.ready.push_back(Pair::create(&self.geometry)?);
        }
        Ok(self.ready.len() >= self.target)
    }
}
