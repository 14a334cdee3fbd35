//! An uplink by AF_XDP: the queues of its interface, and the socket that holds it open.

use crate::finish::{finish, is_needed};
use fabric::Refused;
use port::xdp::Queue;
use port::{PacketSocket, PortError};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::RawOffload;
use wire::offload::segments;

/// An uplink's queues.
pub struct Xdp {
    /// Receives nothing, and says when the interface goes.
    pub guard: PacketSocket,
    queues: Box<[Queue]>,
}

/// One whose descriptors have not all come yet.
pub struct Partial {
    pub slot: u32,
    mtu: u32,
    guard: OwnedFd,
    memory: OwnedFd,
    queues: Vec<OwnedFd>,
    wanted: usize,
}

impl Partial {
    /// From the first message's descriptors.
    pub fn new(slot: u32, mtu: u32, wanted: u32, fds: Vec<OwnedFd>) -> Result<Partial, Errno> {
        let mut fds = fds.into_iter();
        let (Some(guard), Some(memory)) = (fds.next(), fds.next()) else {
            return Err(Errno::BADF);
        };
        let wanted = wanted as usize;
        let queues = fds.collect();
        Ok(Partial {
            slot,
            mtu,
            guard,
            memory,
            queues,
            wanted,
        })
    }

    /// More of them, of which the first is queue number `first`.
    pub fn add(&mut self, first: u32, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        if first as usize != self.queues.len() {
            return Err(Errno::INVAL);
        }
        self.queues.extend(fds);
        Ok(())
    }

    /// Whether all have come.
    pub fn is_whole(&self) -> bool {
        self.queues.len() >= self.wanted
    }

    /// The uplink, all of its queues going on where a predecessor left them.
    pub fn attach(self) -> Result<Xdp, Errno> {
        let memory = self.memory.as_fd();
        let attach = |(number, fd)| Queue::attach(fd, memory, number, self.mtu);
        let queues: Result<Vec<Queue>, Errno> =
            self.queues.into_iter().enumerate().map(attach).collect();
        let queues = queues?.into_boxed_slice();
        if queues.is_empty() {
            return Err(Errno::BADF);
        }
        let guard = PacketSocket::from_fd(self.guard);
        Ok(Xdp { guard, queues })
    }
}

impl Xdp {
    /// What wakes us where there are frames.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd)
    }

    /// The next frame of any queue, each in its turn, from queue number `next` on. Bound:
    /// the queues.
    ///
    /// # Errors
    /// A frame was lost: it was too long.
    #[inline]
    pub fn recv(&self, next: &mut usize, buffer: &mut [u8]) -> Result<Option<usize>, PortError> {
        for _ in 0..self.queues.len() {
            let at = *next % self.queues.len().max(1);
            *next = at + 1;
            if let Some(queue) = self.queues.get(at) {
                match queue.recv(buffer) {
                    Ok(None) => {}
                    other => return other,
                }
            }
        }
        Ok(None)
    }

    /// Puts a frame of the channel `from` into a queue, always the same for that channel: so
    /// its frames keep their order. It is a head, so many bytes behind it, which `copy` gives,
    /// and its offload fields. What is not finished is finished in `whole`, by way of `part`.
    #[inline]
    pub fn send(
        &self,
        from: u32,
        (head, rest, offload): (&[u8], usize, RawOffload),
        copy: impl Fn(&mut [u8]) -> usize,
        whole: &mut [u8],
        part: &mut [u8],
    ) -> Result<(), Refused> {
        let queue = from as usize % self.queues.len().max(1);
        let queue = self.queues.get(queue).ok_or(Refused::Gone)?;
        let length = head.len().saturating_add(rest);
        if !is_needed(&offload) {
            let sent = queue.send(head, rest, |into| {
                copy(into);
            });
            return sent.map_err(refused);
        }
        // All of its segments or none.
        let count = segments(length, offload.gso_size.max(1));
        if offload.gso_type != 0 && (queue.room() as usize) < count {
            return Err(Refused::Full);
        }
        let whole = whole.get_mut(..length).ok_or(Refused::TooLong)?;
        let (start, behind) = whole
            .split_at_mut_checked(head.len())
            .ok_or(Refused::TooLong)?;
        start.copy_from_slice(head);
        if copy(behind) != rest {
            return Err(Refused::System);
        }
        let sent = finish(whole, &offload, part, |bytes| queue.send(bytes, 0, |_| {}));
        match sent {
            Ok(sent) => sent.map_err(refused),
            Err(_) => Err(Refused::System),
        }
    }

    /// Has the kernel go on with what was sent and given back; returns the system calls.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn kick(&self) -> Result<u32, PortError> {
        let mut calls = 0;
        for queue in &self.queues {
            match queue.kick() {
                Ok(made) => calls += made,
                // What is in the ring leaves when it is up again.
                Err(PortError::Down) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(calls)
    }

    /// Whether frames wait that the kernel did not take at the last kick.
    pub fn is_waiting(&self) -> bool {
        self.queues.iter().any(Queue::is_waiting)
    }
}

fn refused(error: PortError) -> Refused {
    match error {
        PortError::Full => Refused::Full,
        PortError::Truncated => Refused::TooLong,
        PortError::Vanished => Refused::Gone,
        PortError::Down | PortError::Refused(_) => Refused::System,
    }
}
