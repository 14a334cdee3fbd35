//! The data side of an endpoint's interface, of whichever kind.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use wire::RawOffload;

use crate::{PacketSocket, PortError, Tap};

/// An endpoint's interface.
#[derive(Debug)]
pub enum Device {
    /// A tap.
    Tap(Tap),
    /// The outer end of a veth.
    Veth(PacketSocket),
}

impl Device {
    /// Reads one frame into `buffer`, which holds [`wire::offload::MAX_FRAME`] bytes and
    /// 16 more; returns its alleged offloads and where it is, or `None` when there is
    /// none now. One system call.
    ///
    /// # Errors
    /// [`PortError`]: the interface is down or gone, or sent what cannot be received.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Option<(RawOffload, Range<usize>)>, PortError> {
        match self {
            Device::Tap(tap) => {
                let frame = tap.recv(buffer)?;
                Ok(frame.map(|(offload, length)| (offload, 0..length)))
            }
            Device::Veth(socket) => socket.recv(buffer),
        }
    }

    /// Writes one frame, `head` then `tail`. One system call.
    ///
    /// # Errors
    /// [`PortError`]: no room now, the interface is down or gone, or this frame is refused.
    #[inline]
    pub fn send(&self, offload: &RawOffload, head: &[u8], tail: &[u8]) -> Result<(), PortError> {
        match self {
            Device::Tap(tap) => tap.send(offload, head, tail),
            Device::Veth(socket) => socket.send(offload, head, tail),
        }
    }

    /// Frames that it sent and that found no room here since the last call. A tap makes
    /// its own stack wait, or count.
    #[inline]
    pub fn take_lost(&self) -> u32 {
        match self {
            Device::Tap(_) => 0,
            Device::Veth(socket) => socket.take_lost(),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Device::Tap(tap) => tap.as_fd(),
            Device::Veth(socket) => socket.as_fd(),
        }
    }
}
