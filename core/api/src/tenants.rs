//! Tenants' tokens, and the log of who did what.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token, without its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Token {
    /// By which it is revoked.
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
}

/// A token just made. Its text is told once and kept nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewToken {
    /// What goes into `Authorization: Bearer`.
    pub text: String,
    /// The token.
    pub token: Token,
}

/// All tokens that the caller may know of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Tokens {
    /// In the order in which they were made.
    pub tokens: Vec<Token>,
}

/// Who did what, and what came of it. To a tenant only what is its own is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditEntry {
    /// Number, from 0, each one more than the one before; what was cut is missing. 0 in what a tenant is told.
    pub number: u64,
    /// Unix time, milliseconds.
    pub time_ms: u64,
    /// Who, by the kernel's word: uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// And process id, as it was at the connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// With which token: its id and name; empty = by its uid alone.
    pub token: String,
    /// The tenant whose token that is; empty = the provider or the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Whom it concerns.
    pub tenants: Vec<String>,
    /// `apply`, `down`, `token-created`, `token-revoked`, `capture`, `release`, `revoke`,
    /// `revoke-undone`, `circuit-cut`, `refused`, `shared`, `ended`, `cut` (what the log itself has
    /// dropped).
    pub kind: String,
    /// On what.
    pub object: String,
    /// What it was in particular, a line each: digests of documents, steps of the plan.
    pub details: Vec<String>,
    /// `done`, or why not.
    pub outcome: String,
    /// Digest of the entry before, hex; empty in what a tenant is told.
    pub previous: String,
    /// SHA-256 of this entry as JSON with this field empty, hex.
    pub digest: String,
}

/// A part of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Audit {
    /// The oldest first.
    pub entries: Vec<AuditEntry>,
}

/// Whether the audit log is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditCheck {
    /// Whether every entry is as it was written, and none is missing.
    pub whole: bool,
    /// Entries that are kept.
    pub entries: u64,
    /// Number of the oldest.
    pub first: u64,
    /// Number of the newest.
    pub last: u64,
    /// Digest of the newest, hex: kept elsewhere, it shows later whether the log still
    /// leads there.
    pub head: String,
    /// Entries at which it is broken, the first ones.
    pub broken: Vec<u64>,
}
