//! How a subnet's frames cross between hosts.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, model, words};
use crate::source::Located;
use crate::tree::{Kind, Node};
use crate::values::Name;

words! {
    /// On the wire as what.
    pub enum Technology as "a segment's technology" {
        /// In an 802.1Q VLAN of an uplink.
        Vlan = "vlan",
    }
}

model! {
    /// A subnet that goes on in a VLAN.
    pub struct VlanSegment as "a segment" {
        required {
            /// `vlan`.
            technology: Located<Technology>,
            /// The uplink.
            uplink: Located<Name>,
            /// The 802.1Q VLAN of the uplink, 1 to 4094, which is this subnet's alone.
            vlan: Located<u32>,
        }
    }
}

/// How a subnet's frames cross between hosts.
#[derive(Clone, Debug, PartialEq)]
pub enum Segment {
    /// They do not: the subnet is on this host only.
    Local,
    /// In a VLAN of an uplink, with whoever else is in it.
    Vlan(VlanSegment),
}

impl Decode for Segment {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { text, .. } if text == "local" => Some(Segment::Local),
            Kind::Scalar { text, .. } => {
                let shown: String = text.chars().take(60).collect();
                findings
                    .add("value", node.span, format!("`{shown}` is not a segment"))
                    .help("it is `local`, or {technology: vlan, uplink: wan0, vlan: 120}");
                None
            }
            _ => Decode::decode(node, findings).map(Segment::Vlan),
        }
    }
}
impl Serialize for Segment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Segment::Local => serializer.serialize_str("local"),
            Segment::Vlan(vlan) => vlan.serialize(serializer),
        }
    }
}
impl JsonSchema for Segment {
    fn schema_name() -> Cow<'static, str> {
        "Segment".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let vlan = generator.subschema_for::<VlanSegment>();
        json_schema!({
            "description": "`local`, or `{technology: vlan, uplink: UPLINK, vlan: 120}`",
            "anyOf": [{ "const": "local" }, vlan]
        })
    }
}
