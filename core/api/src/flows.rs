//! Connections, and what rules decided.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Where;

/// Connections just now, the busiest first. All of it is what confined switches allege.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Flows {
    /// At most so many as were asked for.
    pub flows: Vec<Flow>,
    /// Connections that there were in all.
    pub seen: u64,
    /// Compartments whose switch did not answer in time.
    pub silent: Vec<String>,
}

/// One connection, as one switch knows it. Pairs are (from the initiator, from the
/// responder). One that crosses to another tenant is known by the switches of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Flow {
    /// Compartment whose switch knows it.
    pub compartment: String,
    /// Who began it: an endpoint, an agreement or an uplink.
    pub from: String,
    /// Who answers.
    pub to: String,
    /// Protocol by name, or its number.
    pub protocol: String,
    /// As the initiator sends: source.
    pub source: String,
    /// As the initiator sends: destination.
    pub destination: String,
    /// Whether its addresses are translated.
    pub translated: bool,
    /// As it reaches the responder: source.
    pub source_there: String,
    /// As it reaches the responder: destination.
    pub destination_there: String,
    /// `established`, `unreplied`, ...
    pub state: String,
    /// Packets on the wire.
    pub packets: [u64; 2],
    /// Bytes on the wire.
    pub bytes: [u64; 2],
    /// Nanoseconds since a packet passed.
    pub silent_ns: u64,
    /// What let it begin: the initiator's rule, the responder's.
    pub rules: [RuleName; 2],
    /// Where it is a circuit, of which the operator tells instead of a switch: what it has that
    /// others do not. Its packets are 0; its bytes, of data, and its silence are known of those
    /// that are metered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit: Option<Circuit>,
}

/// What a circuit has beside a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Circuit {
    /// By which it is cut; empty for a datagram socket that is connected, and for tenants.
    pub id: String,
    /// By what its bytes go: `kernel`, `ring`, `metered`, `proxied`.
    pub kind: String,
    /// It is metered because somebody captured when it began.
    pub captured: bool,
    /// Nanoseconds since it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ns: Option<u64>,
    /// Bytes a second just now, of one that is metered.
    pub rate: [u64; 2],
    /// Whether its bytes, its rate and its silence are known: what nobody counts is 0 otherwise.
    pub counted: bool,
}

/// Sockets of circuits that wait for whoever comes: listening ones, and those of UDP that are bound and not connected.
/// All of it is what confined operators allege.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Listeners {
    /// At most so many as were asked for.
    pub listeners: Vec<Listener>,
    /// How many there were in all.
    pub seen: u64,
    /// Compartments whose operator did not answer in time.
    pub silent: Vec<String>,
}

/// One of them.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(default)]
pub struct Listener {
    /// Whose programs have it.
    pub endpoint: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// `ADDRESS:PORT`; `0.0.0.0` and `[::]`: any of its endpoint's.
    pub address: String,
    /// Connections that wait to be accepted; nothing of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// How many may, but for what an endpoint may have waiting; nothing of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
}

/// A rule by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RuleName {
    /// `rule`, `guardrail`, `offer`, `acceptance`; `default` where none decided; `elsewhere`: another
    /// tenant's, which is not known.
    pub kind: String,
    /// `TENANT/RULE`; a guardrail's own name; empty for the default.
    pub name: String,
    /// Where it stands in the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Where>,
}

/// What each rule of a tenant decided since its compartment was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Rules {
    /// The tenant.
    pub tenant: String,
    /// Its compartment. Guardrails and defaults count for all of its tenants.
    pub compartment: String,
    /// In the order of the spec: guardrails, rules, offers, acceptances; the default last.
    pub rules: Vec<RuleCount>,
    /// Packets of log rules that are not among the events, being too many.
    pub unlogged: u64,
}

/// What one rule decided; an allegation of the compartment's switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RuleCount {
    /// The rule.
    pub rule: RuleName,
    /// Connections that it let begin, at one end or both.
    pub connections: u64,
    /// Packets that it let pass by themselves.
    pub packets: u64,
    /// Packets that it denied.
    pub denied: u64,
    /// Packets on the wire of connections that it let begin, both ways: told when one ends,
    /// and of those that live as the switch comes by.
    pub carried: u64,
    /// Bytes on the wire that it let pass: of those packets, and of those by themselves.
    pub bytes: u64,
    /// Bytes on the wire that it denied.
    pub denied_bytes: u64,
}
