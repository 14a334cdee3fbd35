//! Whom a rule is about: endpoints by name, label or subnet, prefixes, agreements.

use core::fmt;
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, choice, nearest};
use crate::source::Located;
use crate::tree::{Kind, Node};
use crate::values::{Name, Prefix};

/// One value or a list of them.
#[derive(Clone, Debug, PartialEq)]
pub struct OneOrMore<T>(pub Vec<Located<T>>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        OneOrMore(Vec::new())
    }
}
impl<T> OneOrMore<T> {
    /// Whether nothing is written, or an empty list.
    pub const fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}
impl<T> core::ops::Deref for OneOrMore<T> {
    type Target = [Located<T>];
    fn deref(&self) -> &[Located<T>] {
        &self.0
    }
}
impl<T: Decode> Decode for OneOrMore<T> {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { .. } if !node.is_null() => {
                Decode::decode(node, findings).map(|one| OneOrMore(vec![one]))
            }
            _ => Decode::decode(node, findings).map(OneOrMore),
        }
    }
}
impl<T: Serialize> Serialize for OneOrMore<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
impl<T: JsonSchema> JsonSchema for OneOrMore<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMore{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// Labels, each a name with a value: what an endpoint has, or what it must have.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Labels(pub Vec<(Located<Name>, Located<Name>)>);

impl Labels {
    /// Whether all of these are among them.
    pub fn include(&self, asked: &Labels) -> bool {
        asked.0.iter().all(|want| self.0.contains(want))
    }
}
impl Decode for Labels {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        let Kind::Mapping(entries) = &node.kind else {
            findings
                .add(
                    "type",
                    node.span,
                    format!("expected labels (a mapping), found {}", node.describe()),
                )
                .help("for example: {role: web, env: prod}");
            return None;
        };
        let one = |(key, value): &(crate::tree::Key, Node), findings: &mut Findings| {
            let key = Node {
                span: key.span,
                kind: Kind::Scalar {
                    text: key.text.clone(),
                    plain: false,
                },
            };
            let key = Decode::decode(&key, findings);
            Some((key?, Decode::decode(value, findings)?))
        };
        let list: Vec<_> = entries.iter().filter_map(|e| one(e, findings)).collect();
        (list.len() == entries.len()).then_some(Labels(list))
    }
}
impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}
impl JsonSchema for Labels {
    fn schema_name() -> Cow<'static, str> {
        "Labels".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = generator.subschema_for::<Name>();
        json_schema!({
            "description": "labels and their values: `{role: web, env: prod}`",
            "type": "object",
            "additionalProperties": name
        })
    }
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Selector {
    /// Everyone.
    Any,
    /// Whoever is neither in the tenant's subnets nor behind its routers.
    Outside,
    /// Endpoints of the tenant by name, each with what is behind it.
    Endpoint(OneOrMore<Name>),
    /// Endpoints of the tenant that have all of these labels.
    Label(Labels),
    /// Endpoints of the tenant in these subnets, and the subnets' other addresses.
    Subnet(OneOrMore<Name>),
    /// Addresses, whoever has them.
    Prefix(OneOrMore<Prefix>),
    /// The other side of an agreement, by the name of the tenant's offer or acceptance.
    Agreement(Located<Name>),
}

const KEYS: &[&str] = &["endpoint", "label", "subnet", "prefix", "agreement"];

impl Decode for Selector {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if let Kind::Scalar { text, .. } = &node.kind {
            match text.as_str() {
                "any" => return Some(Selector::Any),
                "outside" => return Some(Selector::Outside),
                _ => {}
            }
            let shown: String = text.chars().take(60).collect();
            let help = match nearest(text, &["any", "outside"]) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!(
                    "it is any, outside, or a mapping with one of: {}; for example {{endpoint: [{shown}]}}",
                    KEYS.join(", ")
                ),
            };
            findings
                .add("value", node.span, format!("`{shown}` is not a selector"))
                .help(help);
            return None;
        }
        let (key, value) = choice(node, "a selector", KEYS, findings)?;
        match key {
            "endpoint" => Decode::decode(value, findings).map(Selector::Endpoint),
            "label" => Decode::decode(value, findings).map(Selector::Label),
            "subnet" => Decode::decode(value, findings).map(Selector::Subnet),
            "prefix" => Decode::decode(value, findings).map(Selector::Prefix),
            _ => Decode::decode(value, findings).map(Selector::Agreement),
        }
    }
}
impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn one<S: Serializer, T: Serialize>(s: S, key: &str, of: &T) -> Result<S::Ok, S::Error> {
            let mut map = s.serialize_map(Some(1))?;
            map.serialize_entry(key, of)?;
            map.end()
        }
        match self {
            Selector::Any => serializer.serialize_str("any"),
            Selector::Outside => serializer.serialize_str("outside"),
            Selector::Endpoint(names) => one(serializer, "endpoint", names),
            Selector::Label(labels) => one(serializer, "label", labels),
            Selector::Subnet(names) => one(serializer, "subnet", names),
            Selector::Prefix(prefixes) => one(serializer, "prefix", prefixes),
            Selector::Agreement(name) => one(serializer, "agreement", name),
        }
    }
}
impl JsonSchema for Selector {
    fn schema_name() -> Cow<'static, str> {
        "Selector".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names = generator.subschema_for::<OneOrMore<Name>>();
        let keyed = |key: &str, value: Schema| json_schema!({ "type": "object", "properties": { key: value }, "required": [key], "additionalProperties": false });
        json_schema!({
            "description": "`any`, `outside`, `{endpoint: [NAME]}`, `{label: {KEY: VALUE}}`, `{subnet: NAME}`, `{prefix: [PREFIX]}` or `{agreement: NAME}`",
            "anyOf": [
                { "enum": ["any", "outside"] },
                keyed("endpoint", names.clone()),
                keyed("label", generator.subschema_for::<Labels>()),
                keyed("subnet", names),
                keyed("prefix", generator.subschema_for::<OneOrMore<Prefix>>()),
                keyed("agreement", generator.subschema_for::<Name>()),
            ]
        })
    }
}
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(
            f: &mut fmt::Formatter<'_>,
            key: &str,
            of: &[Located<T>],
        ) -> fmt::Result {
            write!(f, "{{{key}: [")?;
            for (at, one) in of.iter().enumerate() {
                write!(f, "{}{}", if at > 0 { ", " } else { "" }, one.value)?;
            }
            f.write_str("]}")
        }
        match self {
            Selector::Any => f.write_str("any"),
            Selector::Outside => f.write_str("outside"),
            Selector::Endpoint(names) => list(f, "endpoint", names),
            Selector::Subnet(names) => list(f, "subnet", names),
            Selector::Prefix(prefixes) => list(f, "prefix", prefixes),
            Selector::Agreement(name) => write!(f, "{{agreement: {}}}", name.value),
            Selector::Label(labels) => {
                f.write_str("{label: {")?;
                for (at, (key, value)) in labels.0.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{}: {}", key.value, value.value)?;
                }
                f.write_str("}}")
            }
        }
    }
}

/// Tenants: all, or these.
#[derive(Clone, Debug, PartialEq)]
pub enum TenantList {
    /// All of the host.
    Any,
    /// These.
    List(OneOrMore<Name>),
}

impl TenantList {
    /// Whether the tenant is one of them.
    pub fn includes(&self, tenant: &Name) -> bool {
        match self {
            TenantList::Any => true,
            TenantList::List(list) => list.iter().any(|name| name.value == *tenant),
        }
    }
}
impl Decode for TenantList {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { text, .. } if text == "any" => Some(TenantList::Any),
            _ => Decode::decode(node, findings).map(TenantList::List),
        }
    }
}
impl Serialize for TenantList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TenantList::Any => serializer.serialize_str("any"),
            TenantList::List(list) => list.serialize(serializer),
        }
    }
}
impl JsonSchema for TenantList {
    fn schema_name() -> Cow<'static, str> {
        "TenantList".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names = generator.subschema_for::<OneOrMore<Name>>();
        json_schema!({
            "description": "`any`, or tenants by name",
            "anyOf": [{ "const": "any" }, names]
        })
    }
}
