//! Whether one may talk to another, and what says so.

use crate::fault::Where;
use crate::state::Revoked;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The answer to "may `from` begin to talk to `to`?".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Explanation {
    /// Whether it may, over each family that there is a way for.
    pub allowed: bool,
    /// The ways from the first to the second, one a family; empty = nothing joins them.
    pub there: Vec<Way>,
    /// The same the other way round: a connection that the second begins.
    pub back: Vec<Way>,
    /// Where it may not, and no agreement leads there: offers and acceptances of theirs that are revoked. To a tenant its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<Revoked>,
}

/// How a first packet would fare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Way {
    /// Its source as it is sent.
    pub source: String,
    /// Its destination as it is sent.
    pub destination: String,
    /// IP protocol by number.
    pub protocol: u8,
    /// Destination port, or `type << 8 | code` of an ICMP message.
    pub port: u16,
    /// Whether it passes.
    pub allowed: bool,
    /// Whether what answers it passes because of it.
    pub answers: bool,
    /// Whether the other side's half is not known here, as to a tenant of a way across an
    /// agreement: `allowed` and `answers` are this side's alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub half: bool,
    /// Who judges it, in order; those after a refusal would not be asked.
    pub verdicts: Vec<Judgement>,
    /// Why nothing carries it, whatever the rules say: an end has circuits alone. Empty: something
    /// does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bar: String,
    /// Whether circuits alone carry it: an end, to a tenant its own, has no packets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub circuits: bool,
    /// The service of another tenant that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Translation>,
}

/// One switch's word at one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Judgement {
    /// The compartment whose switch judges.
    pub compartment: String,
    /// The endpoint, as `TENANT/ENDPOINT`.
    pub endpoint: String,
    /// `egress`, what it may send, or `ingress`, what may be sent to it.
    pub side: String,
    /// `allow`, `allow stateless` or `deny`.
    pub action: String,
    /// `rule`, `guardrail`, `offer`, `acceptance`, `default`, or `nothing`: no rules at all.
    pub by: String,
    /// Its name; of a default `inside`, `inbound` or `outbound`.
    pub name: String,
    /// Where that is written.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<Where>,
}

/// What a crossing to another tenant does to the packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Translation {
    /// Number of the agreement.
    pub agreement: u32,
    /// Tag between the two switches.
    pub tag: u16,
    /// The offer, as `TENANT/OFFER`.
    pub offer: String,
    /// Whether protocol and port are the service's; routed: addresses and direction too.
    pub offered: bool,
    /// The source that the serving endpoint sees: an address of `pool`, its first here, or
    /// routed the packet's own.
    pub source: String,
    /// The pool's part of which the serving switch gives each connection an address, as a
    /// prefix; empty: it is routed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// The serving endpoint's address.
    pub destination: String,
}
