//! Plans and applies.

use crate::fault::Finding;
use crate::state::Half;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an apply would do, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Plan {
    /// The steps; empty = what runs is what the spec says.
    pub changes: Vec<Change>,
    /// No steps, and yet another text than the one in force, which it takes the place of.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub restated: bool,
    /// What the host would hold once it is done.
    pub needs: Needs,
    /// SHA-256 of the spec's text, hex.
    pub digest: String,
    /// What the verifier proved of its tables; none = nothing had to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Tenants' own documents, or what they ask for by `reach`, that are set aside because
    /// they do not fit: what is done is done all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Finding>,
    /// Offers and acceptances that come to no agreement, the first of them: the other side may state its own another time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub halves: Vec<Half>,
}

/// What was proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Proof {
    /// Compartments' tables.
    pub compartments: u32,
    /// Endpoints in them.
    pub endpoints: u32,
    /// Entries of the fabric's table.
    pub entries: u32,
    /// Time that it took the verifier, microseconds.
    pub took_us: u64,
    /// The compartment whose switch was taken for a liar, so that all of it holds whatever
    /// that one does. None: every switch was taken for honest inside its own compartment;
    /// between tenants all of it holds with any one of them taken over.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compromised: String,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Change {
    /// `create`, `destroy`, `replace`, `install`, `change` (what a change means for what runs), or `end` (an agreement ends
    /// at another time).
    pub action: String,
    /// What it acts on, e.g. `endpoint red/web1`, `compartment red`.
    pub object: String,
    /// Why.
    pub reason: String,
}

/// What a spec asks of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Needs {
    /// Processes, spares and services included.
    pub processes: u32,
    /// Bytes of memory: channels, images, private memory.
    pub memory_bytes: u64,
    /// Cores taken for their own by `cores: isolated`.
    pub cores: Vec<u32>,
}

/// Answer to an apply or a down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Applied {
    /// Epoch that now runs.
    pub epoch: u64,
    /// What was done; no changes = nothing had to be.
    pub plan: Plan,
    /// Wall time inside the daemon, microseconds.
    pub took_us: u64,
    /// A revocation of what was revoked already.
    pub already: bool,
}

/// An apply that has been started and not ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Undertaking {
    /// Epoch it leads to.
    pub epoch: u64,
    /// How far it is, for people.
    pub phase: String,
    /// Who asked, by uid.
    pub uid: u32,
}
