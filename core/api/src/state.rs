//! What exists and how it is.

use crate::change::Undertaking;
use crate::fault::Finding;
use crate::live::{DropCount, EndpointRates, Happening};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Status {
    /// Release of the daemon.
    pub version: String,
    /// `ok`, or a sentence on what is degraded.
    pub health: String,
    /// What this host cannot separate as well as the best one can: a sentence each.
    pub weaker: Vec<String>,
    /// Epoch applied; 0 = nothing yet.
    pub epoch: u64,
    /// Name of the spec file applied.
    pub source: String,
    /// SHA-256 of its text, hex.
    pub digest: String,
    /// An apply that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undertaking: Option<Undertaking>,
    /// The last applies, newest first.
    pub history: Vec<HistoryEntry>,
    /// The fabric.
    pub fabric: Compartment,
    /// Compartments in order of their ids.
    pub compartments: Vec<Compartment>,
    /// Tenants in the spec's order.
    pub tenants: Vec<Tenant>,
    /// Uplinks.
    pub uplinks: Vec<Uplink>,
    /// Live agreements between tenants.
    pub agreements: Vec<Agreement>,
    /// Offers and acceptances that no live agreement is made of, the first hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub halves: Vec<Half>,
    /// Offers and acceptances that count as not stated, the first hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<Revoked>,
}

/// An offer or an acceptance that was revoked: whatever its document says, it counts as not stated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Revoked {
    /// Whose it is.
    pub tenant: String,
    /// Its name there.
    pub name: String,
    /// By whom: `provider`, who alone takes that back, or `tenant`.
    pub by: String,
}

impl core::fmt::Display for Revoked {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (tenant, name) = (&self.tenant, &self.name);
        let (by, whose) = match self.by.as_str() {
            "provider" => ("the provider of this host", " (the provider's alone)"),
            _ => ("its tenant", ""),
        };
        write!(
            out,
            "{tenant}/{name} is revoked by {by}: `bulkhead revoke --undo {tenant}/{name}`{whose} takes that back"
        )
    }
}

/// An offer or an acceptance that no live agreement is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Half {
    /// Whose it is.
    pub tenant: String,
    /// Its name there.
    pub name: String,
    /// The tenant that it is to agree with.
    pub other: String,
    /// What it lacks, in words.
    pub lacks: String,
}

/// A live agreement between two tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Agreement {
    /// As it is called everywhere: `agreement TENANT/OFFER with TENANT`.
    pub name: String,
    /// The tenant that offers.
    pub offerer: String,
    /// The tenant that accepts.
    pub acceptor: String,
    /// Whether circuits across it may go by memory that programs of both tenants share.
    pub rings: bool,
    /// The tenant that alone asks for that, so that nothing comes of it; empty: neither or both.
    pub rings_asked_by: String,
}

/// One past apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HistoryEntry {
    /// Unix time, seconds.
    pub time_s: u64,
    /// Who, by uid.
    pub uid: u32,
    /// Epoch it led to.
    pub epoch: u64,
    /// SHA-256 of the spec's text, hex.
    pub digest: String,
    /// Name of the spec file.
    pub source: String,
    /// Steps it took.
    pub changes: u32,
    /// `applied`, `down`, `rolled back: ...`.
    pub outcome: String,
}

/// A compartment, or the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Compartment {
    /// Id; the fabric's is 4294967295.
    pub id: u32,
    /// Name: the tenant's, `zone:ZONE` or `host:all`; `fabric`.
    pub name: String,
    /// Tenants it serves.
    pub tenants: Vec<String>,
    /// `starting`, `up`, `backoff`, `quarantined`, `unknown`.
    pub state: String,
    /// Process id on the host, 0 = none.
    pub pid: u32,
    /// Host uid it runs as.
    pub uid: u32,
    /// Restarts since it was made.
    pub restarts: u32,
    /// Why it last died: `exit`, `trip`, `stall`, `report`, or empty.
    pub last_cause: String,
    /// Last outage, nanoseconds: from the death, as the supervisor saw it, to the first frame
    /// that the successor says it forwarded (where nobody sends, that frame is late); 0 = it
    /// has forwarded none.
    pub last_outage_ns: u64,
    /// Epoch of the image the supervisor installed.
    pub epoch: u64,
    /// Digest of that image, hex.
    pub image: String,
    /// Epoch it says it runs: an allegation.
    pub alleged_epoch: u64,
    /// Stages of confinement it passed, a bit mask in order.
    pub stages: u32,
    /// Turns of its loop, alleged.
    pub heartbeat: u64,
    /// 1 = says it sleeps in the kernel.
    pub asleep: bool,
    /// Host kernel calls for frames, alleged.
    pub frame_syscalls: u64,
    /// Frames those calls moved.
    pub frame_syscall_frames: u64,
    /// Connections of its predecessor that go on, alleged.
    pub restored: u64,
    /// Those of its predecessor that nothing let begin now, alleged.
    pub not_restored: u64,
    /// Times the fabric reported it for speaking with what is not its own (the fabric's count).
    pub reports: u64,
    /// Drops on its fabric channel as the fabric counts them, by reason.
    pub fabric_drops: Vec<DropCount>,
    /// What came to it by its fabric channel and was dropped by its switch, alleged.
    pub outside_drops: Vec<DropCount>,
    /// The operator of its circuits.
    pub operator: Operator,
}

/// Who mediates a compartment's circuits; all zero where it has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Operator {
    /// Process id on the host, 0 = none.
    pub pid: u32,
    /// Operators that came after another.
    pub restarts: u32,
    /// Those of them that came after one that stood still.
    pub stalls: u32,
    /// Programs that nobody answers any more: one operator after another stood still over their
    /// calls.
    pub given_up: u32,
    /// Set-ups that were delayed, being too many, or of an endpoint whose calls had the operator wait, alleged.
    pub delayed: u64,
    /// Ends of circuits that were to be cut, or of datagrams that were to be linked, and that no process was found with; alleged.
    pub unfound: u64,
    /// Those that came after one that died while it took a connection in: so many connections at
    /// most went with them. Alleged.
    pub taken: u64,
    /// Circuits that were cut, being allowed no more: by rules, agreements, addresses. Alleged.
    pub cut: u64,
}

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Tenant {
    /// Name.
    pub name: String,
    /// 24-bit id.
    pub id: u32,
    /// Compartment it runs in.
    pub compartment: u32,
    /// `tenant`, `zone` or `host`.
    pub per: String,
    /// `process` or `vm`.
    pub kind: String,
    /// Whether its switch is sandboxed.
    pub sandbox: bool,
    /// What its endpoints may send together, by the spec.
    pub from: Limit,
    /// What may be sent to them together, by the spec.
    pub to: Limit,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// What of its own document does not hold any more; none = all of it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aside: Option<Aside>,
}

/// What of a tenant's own document is set aside, because it does not fit what the provider
/// applied after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Aside {
    /// `reach`: what it asks for by `reach`, and nothing else; `closed`: all but its subnets
    /// and endpoints, and nothing passes; `whole`: all of it.
    pub what: String,
    /// Why: what does not fit.
    pub findings: Vec<Finding>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Endpoint {
    /// Tenant's name.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// Host-wide id.
    pub id: u32,
    /// Subnet's name.
    pub subnet: String,
    /// Compartment.
    pub compartment: u32,
    /// Slot in its switch.
    pub slot: u32,
    /// `tap`, `veth`, `fifo`, `vhost` or `circuits`.
    pub kind: String,
    /// Whether programs with circuits are started in it.
    pub circuits: bool,
    /// Network namespace (tap, veth): a name below /run/netns, or an absolute path.
    pub namespace: String,
    /// Interface inside it (tap, veth).
    pub interface: String,
    /// MAC.
    pub mac: String,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Admission state by the spec: `open`, `unauthorised`, `quarantined`.
    pub state: String,
    /// `open`, or why its port is closed.
    pub port: String,
    /// What it may send, by the spec.
    pub from: Limit,
    /// What may be sent to it, by the spec.
    pub to: Limit,
    /// Its share of its switch's work when all are busy.
    pub weight: u32,
    /// What its switch does for it at least, bits a second.
    pub guarantee_bits: u64,
    /// Totals; rates are 0 here unless asked of `top`.
    pub counters: EndpointRates,
}

/// A limit by the spec; 0 = none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Limit {
    /// Bits on the wire a second.
    pub bits: u64,
    /// Packets on the wire a second.
    pub packets: u64,
    /// Bytes at once.
    pub burst: u64,
}

/// An uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Uplink {
    /// Name.
    pub name: String,
    /// Number.
    pub number: u32,
    /// Interface.
    pub interface: String,
    /// The fabric's slot.
    pub slot: u32,
    /// How frames are read and written there, and why not otherwise; empty = it is not open.
    pub how: String,
    /// Its VLANs, in order, and whose each is.
    pub vlans: Vec<Vlan>,
    /// Totals as the fabric counts them.
    pub counters: EndpointRates,
}

/// A VLAN of an uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Vlan {
    /// Its number, 1 to 4094.
    pub vlan: u16,
    /// Whose it is.
    pub tenant: String,
    /// The subnet that goes on in it; empty = the tenant's way outside is in it.
    pub subnet: String,
}

/// An answer to "why does this endpoint not work (or: is it all right)?".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Why {
    /// The verdict in plain sentences, worst first.
    pub verdict: Vec<String>,
    /// What to do, in the same order; may be empty.
    pub advice: Vec<String>,
    /// Whether anything is wrong.
    pub healthy: bool,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its compartment.
    pub compartment: Compartment,
    /// Deaths and restarts of its compartment, newest first.
    pub deaths: Vec<Death>,
    /// Flight recorder events of its slot, newest first.
    pub recorded: Vec<Recorded>,
    /// What the controller heard of it, newest first.
    pub happenings: Vec<Happening>,
}

/// A death of a compartment's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Death {
    /// Unix time, milliseconds.
    pub time_ms: u64,
    /// `exit`, `trip`, `stall`, `report`.
    pub cause: String,
    /// Outage, nanoseconds, as [`Compartment::last_outage_ns`]; 0 = no frame forwarded since.
    pub outage_ns: u64,
}

/// One flight recorder event, decoded. Written by the process itself: an allegation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Recorded {
    /// Nanoseconds before the answer was made.
    pub age_ns: u64,
    /// Kind by name.
    pub kind: String,
    /// Slot.
    pub slot: u32,
    /// One sentence for a person.
    pub message: String,
}
