//! The records, as JSON: readable with nothing but a hex viewer in bad hours.

use serde::{Deserialize, Serialize};

/// What is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Applied {
    /// Its epoch, rising with each apply.
    pub epoch: u64,
    /// The spec's text; empty after a down.
    pub spec: String,
    /// The spec's file name as given.
    pub source: String,
    /// SHA-256 of the text, hex.
    pub digest: String,
    /// The numbers given out to what the spec names, as JSON of `policy::Ids`.
    pub ids: String,
    /// Documents of tenants that manage themselves, by tenant. Kept over a down.
    pub documents: std::collections::BTreeMap<String, Document>,
    /// Offers and acceptances that were revoked and are still stated, as (tenant, name).
    pub revoked: std::collections::BTreeSet<(String, String)>,
    /// Those of them that the provider revoked: the tenant does not take them back.
    pub barred: std::collections::BTreeSet<Barred>,
    /// What of tenants' own documents is set aside, by tenant.
    pub aside: std::collections::BTreeMap<String, api::Aside>,
    /// It is a down: what tenants state and their tokens wait for the next spec.
    pub down: bool,
}

/// An offer or an acceptance that the provider revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Barred {
    /// The tenant.
    pub tenant: String,
    /// What it calls it.
    pub name: String,
    /// Of an acceptance: whose service, by whatever name it is accepted.
    pub from: String,
    /// Which service.
    pub service: String,
}

/// A tenant's own document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Its file name as given.
    pub source: String,
    /// Its text.
    pub text: String,
}

/// A token, without its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Token {
    /// By which it is known; public.
    pub id: String,
    /// What its maker calls it.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Whether it may only look.
    pub read_only: bool,
    /// When it was made, Unix time in seconds.
    pub created_s: u64,
    /// When it ends, likewise; 0 = never.
    pub until_s: u64,
    /// SHA-256 of its text, hex.
    pub digest: String,
}

/// An apply that was begun. One that is found at a start was not concluded: what
/// it did is undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Undertaking {
    /// The epoch it would lead to.
    pub epoch: u64,
    /// SHA-256 of the spec's text, hex.
    pub digest: String,
    /// Name of the spec file.
    pub source: String,
    /// Who asked, by uid.
    pub uid: u32,
    /// Unix time, seconds.
    pub time_s: u64,
}

/// One past apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryEntry {
    /// Unix time, seconds.
    pub time_s: u64,
    /// Who, by uid.
    pub uid: u32,
    /// Epoch it led to, or would have.
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

/// Counters as they were when they were added up last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// By compartment id.
    pub targets: std::collections::BTreeMap<u32, SeenTarget>,
    /// The fabric's page.
    pub fabric_page: String,
    /// What the fabric said of each compartment and tag (`telemetry::crossed`).
    pub crossed: std::collections::BTreeMap<u32, [u64; 2]>,
}

/// One compartment's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenTarget {
    /// Which counters page it was: another one begins from 0.
    pub page: String,
    /// The fabric's page.
    pub fabric_page: String,
    /// When, Unix time in seconds.
    pub time_s: u64,
    /// Its process.
    pub pid: u32,
    /// Processor time of that process, ns.
    pub cpu_ns: u64,
    /// And of those before it that the supervisor knew of, ns.
    pub spent_ns: u64,
    /// Restarts since creation.
    pub restarts: u32,
    /// What its switch said of its channel to the fabric.
    pub own: [u64; 4],
    /// What the fabric said of it.
    pub crossed: [u64; 4],
    /// What its switch said of each slot.
    pub slots: std::collections::BTreeMap<u32, [u64; 5]>,
    /// What handling each slot's frames took, by what it said.
    pub work: std::collections::BTreeMap<u32, u64>,
    /// What it said of each rule, by its number.
    pub rules: std::collections::BTreeMap<u32, [u64; 6]>,
    /// What its operator said of each endpoint, by its number, connections that were begun; and of each rule. Its page
    /// comes and goes apart from the switch's.
    pub begun: std::collections::BTreeMap<u32, u64>,
    /// The same of each rule.
    pub of_circuits: std::collections::BTreeMap<u32, [u64; 6]>,
}
