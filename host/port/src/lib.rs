//! Ports to devices of the kernel: taps and veths in a tenant's namespace, AF_PACKET
//! sockets on an uplink.
//!
//! Opening is the supervisor's: it needs privilege and happens in the namespace
//! that is current. Moving frames is the confined worker's: it starts from a
//! descriptor and makes no system call but `readv`, `writev`, `recvmsg` and
//! `sendmsg`, one per frame. Nothing on that path allocates.

mod device;
pub mod ethtool;
pub mod packet;
pub mod tap;
mod vnet;
pub mod xdp;

pub use device::Device;
pub use packet::PacketSocket;
pub use tap::Tap;

use rustix::io::Errno;

/// Offloads a device takes and gives. The bits are those of the table images'
/// `FEATURE_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    /// Nothing: every frame is complete and at most an MTU long.
    pub const NONE: Features = Features(0);
    /// Partial checksums.
    pub const CSUM: Features = Features(1);
    /// TCP over IPv4 segmentation.
    pub const TSO4: Features = Features(2);
    /// TCP over IPv6 segmentation.
    pub const TSO6: Features = Features(4);
    /// UDP segmentation over both.
    pub const USO: Features = Features(8);
    /// Everything.
    pub const ALL: Features = Features(15);

    /// The bits, as table images hold them.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From bits; unknown ones are dropped.
    pub const fn from_bits(bits: u16) -> Features {
        Features(bits & Features::ALL.0)
    }

    /// Whether all of `other` is here.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// Why a frame was not moved, and what it means for the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The device takes no more now. The frame can be tried again.
    #[error("the device's queue is full")]
    Full,
    /// The interface is down. It may come up again.
    #[error("the interface is down")]
    Down,
    /// The interface is gone, or its descriptor was taken away: the port is over.
    #[error("the interface is gone")]
    Vanished,
    /// A frame longer than the buffer was read; the rest of it is lost.
    #[error("a frame longer than the buffer")]
    Truncated,
    /// The kernel refused this one frame.
    #[error("the kernel refused the frame: {0}")]
    Refused(Errno),
}

impl PortError {
    /// Whether the port itself is at fault, not the frame: nothing more will pass.
    pub const fn is_closed(self) -> bool {
        matches!(self, PortError::Vanished)
    }

    fn from_errno(errno: Errno) -> PortError {
        match errno {
            Errno::AGAIN | Errno::NOBUFS => PortError::Full,
            Errno::NETDOWN | Errno::IO => PortError::Down,
            Errno::BADFD | Errno::NODEV | Errno::NXIO | Errno::BADF => PortError::Vanished,
            errno => PortError::Refused(errno),
        }
    }
}
