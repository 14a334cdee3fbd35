//! The bodies of virtual machines: what the supervisor tells a helper, and a helper a switch.

use crate::message::{Body, Verb};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

body! {
    /// Serve a virtual machine's interface at the listening socket beside this.
    ServeGuest: ServeGuest {
        /// Virtio features that are offered at most.
        features: u64,
        /// Pairs of queues.
        pairs: u32,
        /// MiB of memory that the machine may share at most.
        memory: u32,
    }
}
/// Regions of one guest's memory at most.
pub const GUEST_REGIONS: usize = 8;
/// Virtqueues of one guest at most: those that it receives by have even numbers, those that
/// it sends by odd ones.
pub const GUEST_QUEUES: usize = 32;
body! {
    /// A guest's memory.
    GuestMap: GuestMap {
        /// Virtio features that both sides agreed to.
        features: u64,
        /// Regions that count.
        count: u32,
        /// Zero.
        reserved: u32,
        /// Guest-physical address of each.
        guest: [u64; GUEST_REGIONS],
        /// Bytes.
        size: [u64; GUEST_REGIONS],
        /// Where it begins in its file.
        offset: [u64; GUEST_REGIONS],
    }
}
body! {
    /// No memory any more.
    GuestUnmap: GuestUnmap {
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// A queue's rings: guest-physical addresses.
    GuestRun: GuestRun {
        /// The descriptors.
        descriptors: u64,
        /// What the driver writes.
        driver: u64,
        /// What the device writes.
        device: u64,
        /// Its number: where it begins stands in the page.
        queue: u32,
        /// Entries.
        size: u32,
    }
}
body! {
    /// A queue stops.
    GuestHalt: GuestHalt {
        /// Its number.
        queue: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Where written pages are noted.
    GuestLog: GuestLog {
        /// Bytes of the bitmap; 0 = nothing is noted any more.
        size: u64,
        /// Where it begins in its file.
        offset: u64,
    }
}
body! {
    /// It is done, or cannot be.
    GuestDone: GuestDone {
        /// 0, or as [`crate::verbs::PortClosed::reason`].
        error: u32,
        /// Of [`GuestHalt`]: the next to be taken.
        available: u32,
        /// The next to be given back.
        used: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Queues, as bits by their numbers.
    GuestCall: GuestCall {
        /// Those to be called.
        queues: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// What the guest's side did.
    GuestBroken: GuestBroken {
        /// As [`crate::verbs::PortClosed::reason`].
        reason: u32,
        /// Zero.
        reserved: u32,
    }
}
