//! The switch: everything that happens to the packets of a compartment's tenants.
//!
//! Sans-IO and run to completion: the caller copies the first bytes of a frame to
//! private memory and calls [`Switch::process`]; the switch parses once, guards,
//! decides, acts, and speaks through [`Output`]. Time, randomness, table images and
//! ports are arguments. Nothing here allocates after [`Switch::use_image`], locks,
//! or can panic on a frame.
//!
//! docs/design.md §5: parse → `admission` (what this endpoint may say) → `decision`
//! (where it goes) → `judgement` (whether it may pass: rules, connections) → `act`
//! (rewrite, answer, copy). A packet like one that passed takes the short way (`cache`).

mod account;
mod act;
mod admission;
mod arp;
mod cache;
mod crossing;
mod decision;
mod dhcp;
mod edit;
mod errors;
mod finish;
mod frame;
mod icmp;
mod judgement;
mod meter;
mod nd;
mod outside;
mod pipeline;
mod restoration;
mod segment;
mod shaper;
mod state;
mod trace;
mod tracking;
mod translation;
mod work;
mod workers;

pub use account::{Account, Accounts, Way};
pub use cache::{Hit, LEAST as FORESEEN};
pub use decision::{Answer, Decision, Egress, Hop};
pub use finish::{Finish, finish, needed};
pub use flow::AHEAD;
pub use flow::{Connection, Cursor, Memory, Side, Tally, journal::bytes_for};
pub use judgement::slot_of;
pub use meter::{Amount, Credit, Meter, byte_burst};
pub use pipeline::Switch;
pub use restoration::Restoration;
pub use shaper::{Handed, Shaper};
pub use state::Config;
pub use work::{UNITS, Work, shares};
pub use workers::Workers;

use telemetry::{counters::Counter, drops::DropReason, rules::Outcome, trace::Step};
use wire::Tuple;
use wire::offload::RawOffload;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
/// A switch's port number; [`FABRIC`] is the channel to the fabric.
pub type Slot = u32;

/// The slot of the channel to the fabric.
pub const FABRIC: Slot = 0;
/// Bytes of each frame that the caller copies to private memory before
/// [`Switch::process`]: the longest header chain that the parser accepts.
pub const HEAD: usize = 256;

/// A frame as it came in.
#[derive(Debug)]
pub struct Ingress<'a> {
    /// The slot it came from.
    pub from: Slot,
    /// The record's fabric tag; 0 from any slot but [`FABRIC`].
    pub tag: u16,
    /// The offload state that its writer alleges.
    pub offload: RawOffload,
    /// Private copy of its first `min(total, HEAD)` bytes. Rewritten in place.
    pub head: &'a mut [u8],
    /// Bytes of the whole frame.
    pub total: usize,
}

/// A frame to send: new header bytes, then the ingress frame's.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Where to.
    pub slot: Slot,
    /// Fabric tag; 0 to any slot but [`FABRIC`].
    pub tag: u16,
    /// Offload fields, built anew from checked facts.
    pub offload: RawOffload,
    /// Its first bytes.
    pub head: &'a [u8],
    /// The rest are the ingress frame's bytes from here to `total`.
    pub rest_from: usize,
    /// Bytes of the whole frame; `head.len() + total - rest_from` are sent.
    pub total: usize,
    /// Wire frames it stands for.
    pub segments: u32,
    /// Bytes of those frames together.
    pub wire: usize,
    /// The fabric tag that the ingress frame came by; 0 from any slot but [`FABRIC`], and
    /// of what the switch made.
    pub came_by: u16,
}

/// What rules decided about a packet that no connection knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The endpoint at whose bounds the sender's side is counted.
    pub owner: Slot,
    /// The packet comes from outside.
    pub inbound: bool,
    /// The packet as rules see it.
    pub tuple: Tuple,
    /// What became of it.
    pub outcome: Outcome,
    /// The sender's rule and the receiver's, and whether they log. No table: no rule; of
    /// a packet that is denied there is only the rule that does it.
    pub rules: [Option<(u32, bool)>; 2],
    /// Packets on the wire that it is.
    pub packets: u32,
    /// Bytes of them.
    pub bytes: u32,
}

/// What the switch does with frames: the caller's side of the ports.
///
/// "The ingress frame" is the one that [`Switch::process`] was called with; in
/// [`Switch::tick`] there is none, and only [`Output::reply`] is used.
pub trait Output {
    /// Whether [`Output::step`] is to be told.
    const TRACES: bool = false;
    /// Copies bytes of the ingress frame, from `offset`, to `into`; says how many.
    /// Only ever called for bytes beyond the head, once each.
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize;
    /// Sends a frame.
    fn send(&mut self, frame: &Outgoing<'_>);
    /// The same, for a port that cannot take the frame as it is: the caller
    /// assembles the whole frame in private memory and calls [`finish`].
    fn finish(&mut self, frame: &Outgoing<'_>, how: &Finish);
    /// Sends a whole frame that the switch made; checksums are complete.
    fn reply(&mut self, slot: Slot, tag: u16, frame: &[u8]);
    /// The ingress frame (or one copy of it) was thrown away; counted on `slot`.
    fn dropped(&mut self, slot: Slot, reason: DropReason);
    /// Adds to a counter of `slot`.
    fn count(&mut self, slot: Slot, counter: Counter, n: u64);
    /// Rules decided about the ingress frame, which no connection knew.
    fn decided(&mut self, _decided: &Decided) {}
    /// What passed of a connection by the rules that let it begin, and was not told before:
    /// when it ends, and while it lives when the sweep comes by.
    fn tallied(&mut self, _tally: &Tally) {}
    /// A step of the ingress frame on its way, where it is traced: see [`Switch::trace`].
    fn step(&mut self, _step: &Step) {}
}
