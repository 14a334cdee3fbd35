//! Rates and events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One sample of every endpoint's counters, with rates since the sample before.
/// Every number was read from pages that confined processes write: an allegation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sample {
    /// Unix time, milliseconds.
    pub time_ms: u64,
    /// Seconds the rates are over; 0 = no sample before, all rates are 0.
    pub seconds: f64,
    /// One for each endpoint, and one for each uplink (`endpoint` = its name, `tenant` empty).
    pub endpoints: Vec<EndpointRates>,
}

/// Totals and rates of one endpoint. rx = from the workload into its switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct EndpointRates {
    /// Tenant's name.
    pub tenant: String,
    /// Endpoint's name.
    pub endpoint: String,
    /// Nobody counts what it sends and gets, whose programs are connected directly: 0 says nothing here. Not set where its circuits are
    /// metered, or it has packets.
    pub uncounted: bool,
    /// Wire segments a second sent by the workload.
    pub rx_pps: f64,
    /// Bits a second sent by the workload.
    pub rx_bps: f64,
    /// Wire segments a second delivered to it.
    pub tx_pps: f64,
    /// Bits a second delivered to it.
    pub tx_bps: f64,
    /// Frames dropped a second, all reasons.
    pub drops_ps: f64,
    /// Totals. A frame is what crossed at once: a large one is many segments on a wire.
    pub rx_frames: u64,
    /// Wire segments in all.
    pub rx_segments: u64,
    /// Bytes in all.
    pub rx_bytes: u64,
    /// Frames delivered in all.
    pub tx_frames: u64,
    /// Wire segments delivered in all.
    pub tx_segments: u64,
    /// Bytes delivered in all.
    pub tx_bytes: u64,
    /// Bytes sent by the workload that came in GSO frames.
    pub rx_gso_bytes: u64,
    /// Bytes delivered to it in GSO frames.
    pub tx_gso_bytes: u64,
    /// Wire bytes that wait for a rate toward it, or behind others.
    pub waiting_bytes: u64,
    /// Times that its frames were left where they are, its rate or its tenant's being
    /// used up.
    pub paused: u64,
    /// Those a second.
    pub paused_ps: f64,
    /// Drops by reason, totals, those that are not 0.
    pub drops: Vec<DropCount>,
}

/// Drops for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DropCount {
    /// The reason's name, e.g. `source-ip`.
    pub reason: String,
    /// Frames.
    pub frames: u64,
    /// Frames a second since the sample before.
    pub per_second: f64,
    /// One sentence for a person.
    pub explain: String,
}

/// Something happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Happening {
    /// Unix time, milliseconds, when the controller heard of it.
    pub time_ms: u64,
    /// `died`, `restarted`, `quarantine`, `report`, `port-closed`, `applied`, ...
    pub kind: String,
    /// Compartment's name, or `fabric`.
    pub target: String,
    /// Endpoint it concerns as `tenant/name`, or empty.
    pub endpoint: String,
    /// Cause by name.
    pub cause: String,
    /// One sentence for a person.
    pub message: String,
    /// By kind: nanoseconds since the death was seen for `attached` and `restarted`.
    pub value: u64,
    /// What its tenant is told in place of `message`, where that says more than it may know. Never
    /// sent.
    #[serde(skip)]
    pub own: String,
}
