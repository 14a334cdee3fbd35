//! Values that may be written in more than one shape: a word, a list or a mapping.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, choice, model, nearest};
use crate::source::Located;
use crate::tree::{Kind, Node};
use crate::values::{Duration, InterfaceName, Ip, Name, Namespace, Prefix, Size, Toggle};

/// Addresses: `auto`, one, or a list.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressList {
    /// Chosen and kept.
    Auto,
    /// These.
    List(Vec<Located<Ip>>),
}

impl Decode for AddressList {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { text, .. } if text == "auto" => Some(AddressList::Auto),
            Kind::Scalar { .. } => {
                Decode::decode(node, findings).map(|one| AddressList::List(vec![one]))
            }
            _ => Decode::decode(node, findings).map(AddressList::List),
        }
    }
}
impl Serialize for AddressList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            AddressList::Auto => serializer.serialize_str("auto"),
            AddressList::List(list) => list.serialize(serializer),
        }
    }
}
impl JsonSchema for AddressList {
    fn schema_name() -> Cow<'static, str> {
        "AddressList".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let ip = generator.subschema_for::<Ip>();
        json_schema!({
            "description": "`auto`, one address, or a list of addresses",
            "anyOf": [{ "const": "auto" }, ip, { "type": "array", "items": ip }]
        })
    }
}

/// The cores of a switch.
#[derive(Clone, Debug, PartialEq)]
pub enum Cores {
    /// Any, with everyone else; it never spins for more than 5 us.
    Shared,
    /// These, with nobody else; the switch runs on the first.
    Isolated(Vec<Located<u32>>),
}

impl Decode for Cores {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if word(node, "shared") {
            return Some(Cores::Shared);
        }
        if not_word(node, "`cores`", &["shared"], "{isolated: [3]}", findings) {
            return None;
        }
        let (_, value) = choice(node, "`cores`", &["isolated"], findings)?;
        Decode::decode(value, findings).map(Cores::Isolated)
    }
}
impl Serialize for Cores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cores::Shared => serializer.serialize_str("shared"),
            Cores::Isolated(cores) => one(serializer, "isolated", cores),
        }
    }
}
impl JsonSchema for Cores {
    fn schema_name() -> Cow<'static, str> {
        "Cores".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`shared`, or `{isolated: [3]}`: cores that nobody else uses",
            "anyOf": [
                { "const": "shared" },
                keyed("isolated", json_schema!({ "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 })),
            ]
        })
    }
}

/// How a switch waits for work; times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looks for work this often; 0 = always.
    Poll(u64),
    /// Looks for work this long after the last, then sleeps. `None` = as suits the cores.
    Adaptive(Option<u64>),
    /// Sleeps at once.
    Sleep,
}

impl Decode for Wait {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        const WORDS: &[&str] = &["adaptive", "poll", "sleep"];
        if word(node, "adaptive") {
            return Some(Wait::Adaptive(None));
        }
        if word(node, "poll") {
            return Some(Wait::Poll(0));
        }
        if word(node, "sleep") {
            return Some(Wait::Sleep);
        }
        if not_word(node, "`wait`", WORDS, "{poll: 50us}", findings) {
            return None;
        }
        let (key, value) = choice(node, "`wait`", &["adaptive", "poll"], findings)?;
        let Duration(us) = Decode::decode(value, findings)?;
        Some(if key == "poll" {
            Wait::Poll(us)
        } else {
            Wait::Adaptive(Some(us))
        })
    }
}
impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Wait::Poll(0) => serializer.serialize_str("poll"),
            Wait::Poll(us) => one(serializer, "poll", &Duration(*us)),
            Wait::Adaptive(None) => serializer.serialize_str("adaptive"),
            Wait::Adaptive(Some(us)) => one(serializer, "adaptive", &Duration(*us)),
            Wait::Sleep => serializer.serialize_str("sleep"),
        }
    }
}
impl JsonSchema for Wait {
    fn schema_name() -> Cow<'static, str> {
        "Wait".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let time = generator.subschema_for::<Duration>();
        json_schema!({
            "description": "`adaptive`, `poll`, `sleep`, `{poll: 50us}` (look this often) or `{adaptive: 20us}` (look this long, then sleep)",
            "anyOf": [{ "enum": ["adaptive", "poll", "sleep"] }, keyed("poll", time.clone()), keyed("adaptive", time)]
        })
    }
}

/// How a workload is attached.
#[derive(Clone, Debug, PartialEq)]
pub enum Attach {
    /// By a tap interface in a network namespace.
    Tap(Interface),
    /// By a veth in a network namespace, whose other end the switch has.
    Veth(Interface),
    /// By a channel in shared memory.
    Fifo(Fifo),
    /// As a virtual machine's interface, by vhost-user.
    Vhost(Vhost),
    /// By no packet interface: the sockets of its programs are circuits.
    Circuits(Circuits),
}

model! {
    /// An interface in a network namespace.
    pub struct Interface as "an interface" {
        optional {
            /// The namespace. Default: TENANT-ENDPOINT.
            namespace: Located<Namespace>,
            /// The interface's name inside. Default: eth0.
            interface: Located<InterfaceName>,
            /// Make the namespace and remove it afterwards. Default: on where no namespace is named.
            make: Located<Toggle>,
            /// Programs that `bulkhead run` starts in it have circuits, and a proxy in the namespace for whatever has packets. Default: no.
            circuits: Circuits,
        }
    }
}

model! {
    /// A channel in shared memory, for one process that attaches to it.
    pub struct Fifo as "a fifo" {
        optional {
            /// The user id that may attach, beside root. Default: 0.
            owner: Located<u32>,
            /// Bytes of each direction: a power of two, 16KiB to 16MiB. Default: 1MiB.
            capacity: Located<Size>,
        }
    }
}

model! {
    /// A virtual machine's interface: a socket that a vhost-user front end connects to.
    pub struct Vhost as "a virtual machine's interface" {
        optional {
            /// The user id that may connect, beside root. Default: 0.
            owner: Located<u32>,
            /// Pairs of queues, 1 to 16. Default: 1.
            queues: Located<u32>,
            /// Memory that the machine may share, at most, 1MiB to 1024GiB. Default: 4GiB.
            memory: Located<Size>,
        }
    }
}

model! {
    /// An endpoint without packets: programs that `bulkhead run` starts in it.
    pub struct Circuits as "a circuits endpoint" {
        optional {
            /// Sockets of its programs at most, 1 to 16384. Default: 4096.
            sockets: Located<u32>,
            /// Sockets that its programs may make, and connections that they may begin or accept,
            /// a second, 1 to 1000000: more wait. Default: 50000.
            setups: Located<u32>,
            /// Have a process carry its circuits that counts their bytes, as where it has a rate. Default: no.
            metered: Located<Toggle>,
        }
    }
}

/// Bytes that a machine may share where nothing else is said.
pub(crate) const MACHINE_MEMORY: u64 = 4 << 30;

impl Vhost {
    /// Pairs of queues.
    pub fn queues(&self) -> u32 {
        self.queues.map_or(1, |q| q.value)
    }
    /// Memory that the machine may share, at most, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(MACHINE_MEMORY, |m| m.value.0)
    }
}

impl Circuits {
    /// Sockets at most.
    pub fn sockets(&self) -> u32 {
        self.sockets.map_or(4096, |s| s.value)
    }
    /// Set-ups a second; 0: nothing is said of them.
    pub fn setups(&self) -> u32 {
        self.setups.map_or(0, |s| s.value)
    }

    /// Whether it is asked for that its circuits are counted.
    pub fn metered(&self) -> bool {
        self.metered.is_some_and(|toggle| toggle.value.0)
    }
}

impl Default for Attach {
    fn default() -> Self {
        Attach::Tap(Interface::unnamed())
    }
}
impl Interface {
    /// In a namespace of the endpoint's own.
    const fn unnamed() -> Interface {
        Interface {
            namespace: None,
            interface: None,
            make: None,
            circuits: None,
        }
    }
}
impl Attach {
    /// Its settings, where it is an interface in a namespace.
    pub fn interface(&self) -> Option<&Interface> {
        match self {
            Attach::Tap(interface) | Attach::Veth(interface) => Some(interface),
            Attach::Fifo(_) | Attach::Vhost(_) | Attach::Circuits(_) => None,
        }
    }

    /// Its circuits, alone or beside an interface.
    pub fn circuits(&self) -> Option<&Circuits> {
        match self {
            Attach::Circuits(circuits) => Some(circuits),
            _ => self.interface()?.circuits.as_ref(),
        }
    }
}
impl Fifo {
    /// Bytes of each direction.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity.map_or(1 << 20, |c| c.value.0)
    }
    /// Longest record: a quarter of the capacity, at most 65,664 bytes.
    pub fn max_record(&self) -> u64 {
        max_record(self.capacity_bytes())
    }
}

/// The longest record of a channel: at most a quarter of it, and a whole large frame.
pub fn max_record(capacity: u64) -> u64 {
    (capacity / 4).min(65_664)
}

const ATTACHMENTS: &[&str] = &["tap", "veth", "fifo", "vhost", "circuits"];

impl Decode for Attach {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if word(node, "tap") {
            return Some(Attach::default());
        }
        if word(node, "veth") {
            return Some(Attach::Veth(Interface::unnamed()));
        }
        if word(node, "fifo") {
            return Some(Attach::Fifo(Fifo {
                owner: None,
                capacity: None,
            }));
        }
        if word(node, "vhost") {
            return Some(Attach::Vhost(Vhost {
                owner: None,
                queues: None,
                memory: None,
            }));
        }
        if word(node, "circuits") {
            return Some(Attach::Circuits(Circuits {
                sockets: None,
                setups: None,
                metered: None,
            }));
        }
        if not_word(
            node,
            "`attach`",
            ATTACHMENTS,
            "{tap: {namespace: red-web1}} (circuits beside it: {tap: {circuits: {}}})",
            findings,
        ) {
            return None;
        }
        let (key, value) = choice(node, "`attach`", ATTACHMENTS, findings)?;
        match key {
            "tap" => Decode::decode(value, findings).map(Attach::Tap),
            "veth" => Decode::decode(value, findings).map(Attach::Veth),
            "fifo" => Decode::decode(value, findings).map(Attach::Fifo),
            "circuits" => Decode::decode(value, findings).map(Attach::Circuits),
            _ => Decode::decode(value, findings).map(Attach::Vhost),
        }
    }
}
impl Serialize for Attach {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Attach::Tap(tap) => one(serializer, "tap", tap),
            Attach::Veth(veth) => one(serializer, "veth", veth),
            Attach::Fifo(fifo) => one(serializer, "fifo", fifo),
            Attach::Vhost(vhost) => one(serializer, "vhost", vhost),
            Attach::Circuits(circuits) => one(serializer, "circuits", circuits),
        }
    }
}
impl JsonSchema for Attach {
    fn schema_name() -> Cow<'static, str> {
        "Attach".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`tap`, `veth`, `fifo`, `vhost`, `circuits`, or one with its settings: `{tap: {...}}`, `{veth: {...}}`, `{fifo: {...}}`, `{vhost: {...}}`, `{circuits: {...}}`",
            "anyOf": [
                { "enum": ATTACHMENTS },
                keyed("tap", generator.subschema_for::<Interface>()),
                keyed("veth", generator.subschema_for::<Interface>()),
                keyed("fifo", generator.subschema_for::<Fifo>()),
                keyed("vhost", generator.subschema_for::<Vhost>()),
                keyed("circuits", generator.subschema_for::<Circuits>()),
            ]
        })
    }
}

/// A service class, 0 to 7 (DSCP class selector).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(pub u8);

const CLASSES: &[(&str, u8)] = &[
    ("best-effort", 0),
    ("background", 1),
    ("video", 4),
    ("voice", 5),
    ("control", 6),
];

impl Decode for Class {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if let Kind::Scalar { text, .. } = &node.kind {
            if let Some((_, class)) = CLASSES.iter().find(|(name, _)| name == text) {
                return Some(Class(*class));
            }
            if let Some(class) = text
                .strip_prefix("cs")
                .unwrap_or(text)
                .parse()
                .ok()
                .filter(|c| *c < 8)
            {
                return Some(Class(class));
            }
        }
        let names: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
        findings
            .add(
                "value",
                node.span,
                "a service class is a number of 0 to 7 or a name",
            )
            .help(format!("the names are: cs0 to cs7, {}", names.join(", ")));
        None
    }
}
impl Serialize for Class {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}
impl JsonSchema for Class {
    fn schema_name() -> Cow<'static, str> {
        "Class".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "service class: 0 to 7, cs0 to cs7, or a name",
            "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": 7 },
                { "enum": ["cs0", "cs1", "cs2", "cs3", "cs4", "cs5", "cs6", "cs7", "best-effort", "background", "video", "voice", "control"] }
            ]
        })
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// To an endpoint with the role router.
    Endpoint(Name),
    /// Outside, by this uplink; `None` = the tenant's only one.
    Outside(Option<Name>),
    /// Nowhere: refused with an ICMP error.
    Unreachable,
}

impl Decode for Via {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { text, .. } if text == "outside" => Some(Via::Outside(None)),
            Kind::Scalar { text, .. } if text == "unreachable" => Some(Via::Unreachable),
            Kind::Scalar { .. } => Decode::decode(node, findings).map(Via::Endpoint),
            _ => {
                let (_, value) = choice(node, "`via`", &["outside"], findings)?;
                Decode::decode(value, findings).map(|name| Via::Outside(Some(name)))
            }
        }
    }
}
impl Serialize for Via {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Via::Endpoint(name) => name.serialize(serializer),
            Via::Outside(None) => serializer.serialize_str("outside"),
            Via::Outside(Some(uplink)) => one(serializer, "outside", uplink),
            Via::Unreachable => serializer.serialize_str("unreachable"),
        }
    }
}
impl JsonSchema for Via {
    fn schema_name() -> Cow<'static, str> {
        "Via".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let name = generator.subschema_for::<Name>();
        json_schema!({
            "description": "an endpoint's name, `outside`, `{outside: UPLINK}` or `unreachable`",
            "anyOf": [name.clone(), keyed("outside", name)]
        })
    }
}

/// A route outside: a prefix, or a prefix with a router of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OutsideRoute {
    /// Destinations.
    pub to: Located<Prefix>,
    /// The router; `None` = the way outside's own.
    pub gateway: Option<Located<Ip>>,
}

model! {
    /// A prefix with a router of its own.
    pub struct LongOutsideRoute as "a route outside" {
        required {
            /// Destinations.
            to: Located<Prefix>,
        }
        optional {
            /// The router. Default: the way outside's own.
            gateway: Located<Ip>,
        }
    }
}

impl Decode for OutsideRoute {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if let Kind::Mapping(_) = node.kind {
            let LongOutsideRoute { to, gateway } = Decode::decode(node, findings)?;
            return Some(OutsideRoute { to, gateway });
        }
        Decode::decode(node, findings).map(|to| OutsideRoute { to, gateway: None })
    }
}
impl Serialize for OutsideRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.gateway {
            None => self.to.serialize(serializer),
            Some(_) => LongOutsideRoute {
                to: self.to,
                gateway: self.gateway,
            }
            .serialize(serializer),
        }
    }
}
impl JsonSchema for OutsideRoute {
    fn schema_name() -> Cow<'static, str> {
        "OutsideRoute".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a prefix, or `{to: PREFIX, gateway: ADDRESS}`",
            "anyOf": [generator.subschema_for::<Prefix>(), generator.subschema_for::<LongOutsideRoute>()]
        })
    }
}

fn word(node: &Node, expected: &str) -> bool {
    matches!(&node.kind, Kind::Scalar { text, .. } if text == expected)
}

/// Reports a single word that is none of the known ones.
fn not_word(
    node: &Node,
    what: &str,
    known: &[&str],
    example: &str,
    findings: &mut Findings,
) -> bool {
    let Kind::Scalar { text, .. } = &node.kind else {
        return false;
    };
    let shown: String = text.chars().take(60).collect();
    let help = match nearest(text, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("it is one of: {}, {example}", known.join(", ")),
    };
    findings
        .add(
            "value",
            node.span,
            format!("`{shown}` is not a value of {what}"),
        )
        .help(help);
    true
}

fn one<S: Serializer, T: Serialize + ?Sized>(
    serializer: S,
    key: &str,
    value: &T,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(key, value)?;
    map.end()
}

fn keyed(key: &str, value: Schema) -> Schema {
    json_schema!({ "type": "object", "properties": { key: value }, "required": [key], "additionalProperties": false })
}
