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
