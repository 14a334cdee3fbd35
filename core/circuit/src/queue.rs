//! Connections that wait to be accepted.

use crate::Endpoint;

/// One that waits at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Where it comes from: what `accept` tells.
    pub client: Endpoint,
    /// Where it was connected to: what `getsockname` tells of the accepted socket.
    pub local: Endpoint,
    /// By which the operator knows it.
    pub token: u64,
    /// The tag of the agreement that it is to come by: a place that is kept for it. 0: it waits in
    /// the kernel's queue.
    pub crossing: u16,
    /// Its client has packets: a proxy of the endpoint's lets it in.
    pub relayed: bool,
}

/// Such a one as it is kept: with its place in the queue of its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// Slot of the listener.
    pub(crate) listener: u32,
    /// Cookie of the listener, by which one is told from another in the same slot.
    pub(crate) cookie: u64,
    /// The lower came first.
    pub(crate) sequence: u64,
    pub(crate) pending: Pending,
}
