//! What was used.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What was used in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Usage {
    /// Its first hour, seconds since 1970.
    pub from_s: u64,
    /// Hours that begin from here on are not in it.
    pub to_s: u64,
    /// By tenant: first what its switch used and what crossed the fabric, of that what
    /// crossed by each agreement, then its endpoints and its rules.
    pub rows: Vec<UsageRow>,
}

/// What one tenant, or one endpoint, used; or what one rule let pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UsageRow {
    /// The tenant.
    pub tenant: String,
    /// The endpoint; empty = the tenant as a whole.
    pub endpoint: String,
    /// `OFFERER/OFFER with ACCEPTOR`: what of the tenant's crossed by that agreement, by
    /// the fabric's count; it is in the tenant's own row as well. Empty = all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub agreement: String,
    /// The rule, by kind and name: `rule web`, `guardrail no-smtp`, `offer db`, `default`. Of
    /// such a row what is sent is what the rule let pass, and nothing is got. Rules for several
    /// tenants of one switch (guardrails, defaults) stand under the compartment's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Nobody counts what this endpoint sends and gets just now: see `EndpointRates`. What it has here is of a time in which somebody did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
    /// Packets on the wire that it sent; of a tenant: to the fabric, by the fabric's count.
    pub sent_packets: u64,
    /// Bytes that it sent, likewise.
    pub sent_bytes: u64,
    /// Packets that it got; of a tenant: from the fabric, by the fabric's count.
    pub got_packets: u64,
    /// Bytes that it got, likewise.
    pub got_bytes: u64,
    /// Connections that began on its account; of a tenant: on its endpoints'.
    pub connections: u64,
    /// Nanoseconds of processor time of its switch: of an endpoint its part of them, by what
    /// handling its frames takes on the switch's price list.
    pub cpu_ns: u64,
    /// Resident memory of its switch, times the seconds that it was held: of an endpoint its
    /// part, by the connections and the room in rings that it is given.
    pub memory_byte_seconds: u64,
    /// Of a rule: packets that it denied.
    #[serde(skip_serializing_if = "is_zero")]
    pub denied_packets: u64,
    /// Of a rule: bytes that it denied.
    #[serde(skip_serializing_if = "is_zero")]
    pub denied_bytes: u64,
}

impl UsageRow {
    /// Adds another row's figures to this one's.
    pub fn add(&mut self, other: &UsageRow) {
        for (mine, other) in [
            (&mut self.sent_packets, other.sent_packets),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.got_packets, other.got_packets),
            (&mut self.got_bytes, other.got_bytes),
            (&mut self.connections, other.connections),
            (&mut self.cpu_ns, other.cpu_ns),
            (&mut self.memory_byte_seconds, other.memory_byte_seconds),
            (&mut self.denied_packets, other.denied_packets),
            (&mut self.denied_bytes, other.denied_bytes),
        ] {
            *mine = mine.saturating_add(other);
        }
    }

    /// Whether nothing was used.
    pub fn is_nothing(&self) -> bool {
        let named = UsageRow {
            tenant: self.tenant.clone(),
            endpoint: self.endpoint.clone(),
            agreement: self.agreement.clone(),
            rule: self.rule.clone(),
            ..UsageRow::default()
        };
        *self == named
    }

    /// What tells rows apart, in the order in which they are listed.
    pub fn name(&self) -> [String; 4] {
        [&self.tenant, &self.rule, &self.endpoint, &self.agreement].map(String::clone)
    }
}

fn is_zero(figure: &u64) -> bool {
    *figure == 0
}
