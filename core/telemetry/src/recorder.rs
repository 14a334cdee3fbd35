//! Flight recorder: the last 4,096 events of a process, fixed size, no payload.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Events kept.
pub const EVENTS: usize = 4096;
/// Bytes of the recorder: one header page (word 0 = next event number) and the events.
pub const BYTES: usize = 4096 + EVENTS * size_of::<Event>();

/// One event, 32 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Event {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// [`EventKind`] as u32.
    pub kind: u32,
    /// Slot or channel it concerns, or 0.
    pub slot: u32,
    /// Meaning by kind.
    pub a: u64,
    /// Meaning by kind.
    pub b: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// Process confined and ready; a = pid it sees.
    Ready = 1,
    /// Attached to compartment a. Supervisor, of a successor: b = ns since it saw the death.
    Attached = 2,
    /// Port added at `slot`; a = port kind.
    PortAdded = 3,
    /// Port at `slot` closed; a = breach number (see docs/fifo.md), b = detail.
    PortClosed = 4,
    /// Image of epoch a in use; b = first 8 digest bytes.
    ImageSwapped = 5,
    /// Image of epoch a refused; b = reason.
    ImageRefused = 6,
    /// Generation a of the channel at `slot` echoed; b = ns it took.
    Resynced = 7,
    /// Drop, sampled at most once a reason and second; a = DropReason, b = first bytes' hash.
    Drop = 8,
    /// Fabric report about channel `slot`; a = DropReason.
    Report = 9,
    /// Quarantined `slot`.
    Quarantine = 10,
    /// Supervisor: process died; a = compartment, b = cause.
    Died = 11,
    /// Supervisor: a successor said it forwarded a frame; a = compartment, b = ns from the
    /// death, as the supervisor saw it, to that frame.
    Restarted = 12,
    /// A rule that logs decided about a packet at `slot`: a, b = [`crate::rules::Logged`].
    Rule = 13,
    /// All of a predecessor's connections were judged; a = go on, b = do not.
    ConnectionsRestored = 14,
    /// Supervisor: an operator stood still and is replaced; a = compartment, b = the program over
    /// whose call, of the endpoint at `slot`; 0: none's.
    OperatorReplaced = 15,
    /// Supervisor: nobody answers a program of the endpoint at `slot` any more, over whose calls
    /// operators stood still; a = compartment, b = the program.
    ProgramGivenUp = 16,
    /// Supervisor: a container runtime handed over a container of the endpoint at `slot`, and the
    /// operator does not take it; a = compartment, b = why (`CONTAINER_*`).
    ContainerRefused = 17,
    /// Supervisor: a meter died, or stood still and is replaced (by the cause); a = compartment.
    MeterLost = 18,
    /// Operator: what a program of the endpoint at `slot` asked for was refused; a, b =
    /// [`crate::rules::Logged`], whose outcome is denied, with the reason in it.
    Refused = 19,
    /// Supervisor: the endpoint at `slot` goes, or is made anew, and its programs of circuits are left
    /// behind; a = compartment, b = how many.
    ProgramsLeft = 20,
    /// Supervisor: the proxy of the endpoint at `slot` is gone, and what it carried; a = compartment.
    ProxyLost = 21,
}
