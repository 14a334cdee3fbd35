//! Traced packets: sent for real, and told step by step.

use crate::fault::Where;
use crate::flows::RuleName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What became of the packets of one question: one a family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Traces {
    /// Whether all came through, and what answers them too.
    pub passed: bool,
    /// Each packet with its answer.
    pub traces: Vec<Traced>,
}

/// A packet, and what answers it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Traced {
    /// The packet.
    pub packet: Passage,
    /// What answers it, sent from where the packet came out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Passage>,
    /// Why there is no answer; empty = there is one, or none was asked for.
    pub unanswered: String,
}

/// One packet's way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Passage {
    /// Where it was sent: `TENANT/ENDPOINT`, or an uplink.
    pub from: String,
    /// Where it came out; empty = nowhere.
    pub to: String,
    /// The packet as it was sent.
    pub packet: String,
    /// Bytes of its frame.
    pub bytes: u64,
    /// `delivered`, `held` (it would be: nothing is delivered unless asked), `answered` (by a
    /// switch itself), `absorbed` (meant for a switch, which stays silent), `flooded` (to
    /// many), or `dropped`.
    pub outcome: String,
    /// Drop reason by name; empty = it was not dropped.
    pub reason: String,
    /// The reason in a sentence.
    pub explain: String,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// One step of a packet's way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Step {
    /// The compartment whose switch tells it, or `fabric`.
    pub at: String,
    /// `parse`, `guard`, `rate`, `route`, `rule`, `connection`, `translation`, `entry`,
    /// `answer`, `send` or `drop`.
    pub step: String,
    /// What it came to.
    pub says: String,
    /// What in the spec decided: `rule`, `guardrail`, `offer`, `acceptance` or `default`;
    /// empty = nothing of it.
    pub by: String,
    /// Its name; of a default `inside`, `inbound` or `outbound`.
    pub name: String,
    /// Where that is written.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<Where>,
}

impl Passage {
    /// Whether it came through.
    pub fn passed(&self) -> bool {
        !matches!(self.outcome.as_str(), "dropped" | "absorbed" | "")
    }
}

/// What the numbers in captures are called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Names {
    /// `TENANT/ENDPOINT` by its number.
    pub endpoints: BTreeMap<u32, String>,
    /// Rules by their numbers.
    pub rules: BTreeMap<u32, RuleName>,
    /// Each tenant's `default`, where it wrote one.
    pub defaults: BTreeMap<String, RuleName>,
}
