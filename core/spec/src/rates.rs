//! What may be sent and received: rates of endpoints and tenants, classes of packets.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, Scalar, model, scalar};
use crate::model::Endpoint;
use crate::shapes::Attach;
use crate::source::Located;
use crate::tree::{Kind, Node};
use crate::values::{BitRate, Name, Size};

/// Least burst of a class that goes first, bytes: a frame or two of the longest MTU.
const STRICT_BURST: u64 = 16 << 10;

/// Limits of both directions, seen from the endpoint or the tenant. What is written
/// without a direction is about what it sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What it may send.
    pub from: Option<Limit>,
    /// What may be sent to it.
    pub to: Option<Limit>,
}

/// A token bucket: bits a second, or a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Bits on the wire a second.
    pub bits: Option<Located<BitRate>>,
    /// What passes at once.
    pub burst: Option<Located<Size>>,
    /// Packets on the wire a second.
    pub packets: Option<Located<u64>>,
}

model! {
    /// A token bucket.
    pub struct LongLimit as "a rate" {
        optional {
            /// Bits on the wire a second.
            bits: Located<BitRate>,
            /// What passes at once; less than 5 ms of `bits` counts as that. Default: 10 ms of `bits`, at least 128 KiB.
            burst: Located<Size>,
            /// Packets on the wire a second.
            packets: Located<u64>,
        }
    }
}

model! {
    /// A rate for each direction.
    pub struct BothWays as "a rate" {
        optional {
            /// What it may send. Default: no limit.
            from: Limit,
            /// What may be sent to it. Default: no limit.
            to: Limit,
        }
    }
}

model! {
    /// A class of packets, by their DSCP field. What no class lists is best effort, of weight 1.
    pub struct ServiceClass as "a class" {
        required {
            /// Its name.
            name: Located<Name>,
            /// The DSCP values that are in it: 0 to 63, cs0 to cs7, af11 to af43, ef.
            dscp: Vec<Located<Dscp>>,
        }
        optional {
            /// Its share of what waits, against the other classes, 1 to 255. Default: 1.
            weight: Located<u32>,
            /// Up to so many bits a second it goes before all others. Default: it never does.
            strict: Located<BitRate>,
        }
    }
}

impl Limit {
    /// Wire bytes a second, burst in bytes, wire packets a second; 0 = no limit.
    pub fn meter(&self) -> (u64, u64, u64) {
        let bits = self.bits.map_or(0, |b| b.value.0);
        let bytes = bits.div_ceil(8);
        let burst = self
            .burst
            .map_or((bytes / 100).max(128 << 10), |b| b.value.0);
        (
            bytes,
            if bytes == 0 { 0 } else { burst },
            self.packets.map_or(0, |p| p.value),
        )
    }
}

impl Endpoint {
    /// Whether its circuits are carried by a process that counts them and keeps its rates.
    pub fn is_metered(&self) -> bool {
        let Attach::Circuits(circuits) = self.attach() else {
            return false;
        };
        circuits.metered() || self.limits_circuits()
    }
    /// Whether its circuits have a rate.
    pub fn limits_circuits(&self) -> bool {
        let limits = self.rate.iter().flat_map(|rate| [&rate.from, &rate.to]);
        let any = limits.flatten().any(|limit| limit.bits.is_some());
        any && matches!(self.attach(), Attach::Circuits(_))
    }
}

impl ServiceClass {
    /// Its weight, 1 to 255.
    pub fn weight(&self) -> u32 {
        self.weight.map_or(1, |w| w.value)
    }
    /// Wire bytes a second that go first, and at once; 0 = none do.
    pub fn strict(&self) -> (u64, u64) {
        match self.strict {
            Some(bits) => {
                let bytes = bits.value.0.div_ceil(8);
                (bytes, (bytes / 100).max(STRICT_BURST))
            }
            None => (0, 0),
        }
    }
    /// Its DSCP values, bit n standing for value n.
    pub fn values(&self) -> u64 {
        self.dscp.iter().fold(0, |all, d| all | 1 << d.value.0)
    }
}

impl Decode for Limit {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if let Kind::Scalar { .. } = node.kind {
            return Decode::decode(node, findings).map(|bits| Limit {
                bits: Some(bits),
                burst: None,
                packets: None,
            });
        }
        let LongLimit {
            bits,
            burst,
            packets,
        } = Decode::decode(node, findings)?;
        Some(Limit {
            bits,
            burst,
            packets,
        })
    }
}
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LongLimit {
            bits: self.bits,
            burst: self.burst,
            packets: self.packets,
        }
        .serialize(serializer)
    }
}
impl JsonSchema for Limit {
    fn schema_name() -> Cow<'static, str> {
        "Limit".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "bits a second, or `{bits: ..., burst: ..., packets: ...}`",
            "anyOf": [generator.subschema_for::<BitRate>(), generator.subschema_for::<LongLimit>()]
        })
    }
}

impl Decode for Rate {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        let directed = match &node.kind {
            Kind::Mapping(entries) => entries
                .iter()
                .any(|(key, _)| BothWays::KEYS.contains(&key.text.as_str())),
            _ => false,
        };
        if directed {
            let BothWays { from, to } = Decode::decode(node, findings)?;
            return Some(Rate { from, to });
        }
        Decode::decode(node, findings).map(|from| Rate {
            from: Some(from),
            to: None,
        })
    }
}
impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.from, &self.to) {
            (Some(from), None) => from.serialize(serializer),
            (from, to) => BothWays {
                from: from.clone(),
                to: to.clone(),
            }
            .serialize(serializer),
        }
    }
}
impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "what it may send, or `{from: ..., to: ...}`: what it may send, and what may be sent to it",
            "anyOf": [generator.subschema_for::<Limit>(), generator.subschema_for::<BothWays>()]
        })
    }
}

/// A value of the DSCP field (RFC 2474), 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(pub u8);

impl Scalar for Dscp {
    const WHAT: &'static str = "a DSCP value";
    const EXAMPLE: &'static str = "46, ef, cs5, af41";
}
impl FromStr for Dscp {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = |text: &str| text.parse::<u8>().ok();
        let value = match text.to_ascii_lowercase().as_str() {
            // RFC 3246, RFC 2474, RFC 2597.
            "ef" => Some(46),
            word => match (word.strip_prefix("cs"), word.strip_prefix("af")) {
                (Some(n), _) => digits(n).filter(|n| *n < 8).map(|n| n << 3),
                (_, Some(n)) => digits(n)
                    .map(|n| (n / 10, n % 10))
                    .filter(|(class, drop)| (1..5).contains(class) && (1..4).contains(drop))
                    .map(|(class, drop)| class << 3 | drop << 1),
                _ => digits(word),
            },
        };
        value
            .filter(|v| *v < 64)
            .map(Dscp)
            .ok_or_else(|| "it is 0 to 63, cs0 to cs7, af11 to af43 or ef".into())
    }
}
impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl Decode for Dscp {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        scalar(node, findings)
    }
}
impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}
impl JsonSchema for Dscp {
    fn schema_name() -> Cow<'static, str> {
        "Dscp".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a DSCP value: 0 to 63, cs0 to cs7, af11 to af43, ef",
            "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": 63 },
                { "type": "string", "pattern": "^([0-9]+|cs[0-7]|af[1-4][1-3]|ef)$" }
            ]
        })
    }
}
