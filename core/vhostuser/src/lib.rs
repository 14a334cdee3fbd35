//! The back end's side of vhost-user (QEMU's `docs/interop/vhost-user.rst`) for a network
//! device: what a front end may ask, in which order, and what follows from it. No sockets,
//! no memory: descriptors are a type that is passed through, and who runs the queues is a
//! [`Device`].
//!
//! What a front end says is an allegation. What no honest one says is a [`Fault`]: its
//! connection is over, and nothing else.

mod request;
mod session;
#[cfg(test)]
mod tests;

pub use request::{
    Fault, HEADER_BYTES, Header, MAX_PAYLOAD, MemoryRegion, REPLY, Request, VERSION,
};
pub use session::{Device, Failed, QueueSetup, Reply, Session};

/// Virtio features of the ring and the network device that are offered (Virtio 1.2, 5.1.3
/// and 6).
pub mod features {
    /// The device completes checksums.
    pub const CSUM: u64 = 1;
    /// The driver takes unfinished checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The driver takes TCP over IPv4 to be segmented, over IPv6, with ECN.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// TCP over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// TCP with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device takes TCP over IPv4 to be segmented.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// TCP with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// Frames over several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The guest says where it is when it has moved.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// Written pages are noted.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Chains in tables of their own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Calls and kicks by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// There are protocol features.
    pub const PROTOCOL: u64 = 1 << 30;
    /// Version 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
    /// The driver takes UDP over IPv4 to be segmented.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// UDP over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device takes UDP to be segmented.
    pub const HOST_USO: u64 = 1 << 56;

    /// All that is offered.
    pub const OFFERED: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | MRG_RXBUF
        | GUEST_ANNOUNCE
        | MQ
        | LOG_ALL
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1
        | RING_PACKED
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
}

/// Features of the protocol itself that are offered.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1;
    /// The log of written pages is a file.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Requests are acknowledged.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front end keeps what says which of its queues are under way.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Regions of memory come and go one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The device's status is told.
    pub const STATUS: u64 = 1 << 16;

    /// All that is offered.
    pub const OFFERED: u64 =
        MQ | LOG_SHMFD | REPLY_ACK | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS | STATUS;
}
