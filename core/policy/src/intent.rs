//! What the host shall hold.

use crate::agreements::Agreement;
use command::verbs::{
    CREATE_CIRCUITS, CreateCompartment, CreatePort, CreateUplink, ENDPOINT_CIRCUITS,
};
use image::Digest;
use image::rules::RuleTable;
use spec::Prefix;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the host shall hold: in terms of the commands that make it. The default is
/// a host with nothing on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// By compartment id.
    pub compartments: BTreeMap<u32, Arc<CompartmentIntent>>,
    /// By uplink number.
    pub uplinks: BTreeMap<u32, UplinkIntent>,
    /// The fabric's table.
    pub fabric: Image,
    /// The live agreements, by id.
    pub agreements: Vec<Agreement>,
    /// When the first of them ends, seconds since 1970: it must be compiled again then.
    pub expires: Option<u64>,
}

/// A table image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its bytes; empty = none.
    pub bytes: Arc<[u8]>,
    /// Its SHA-256 as `Install` carries it ([`image::digest`]).
    pub digest: Digest,
}

impl Default for Image {
    fn default() -> Self {
        Image {
            bytes: Arc::new([]),
            digest: Digest([0; 32]),
        }
    }
}
impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}
impl Eq for Image {}

impl Image {
    pub(crate) fn new(bytes: Vec<u8>) -> Image {
        // The builder has just computed it, and checked it by mapping what it wrote.
        let digest = image::claimed_digest(&bytes).unwrap_or(Digest([0; 32]));
        Image {
            bytes: bytes.into(),
            digest,
        }
    }
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A compartment, its ports and its table.
#[derive(Clone, Debug, PartialEq)]
pub struct CompartmentIntent {
    /// The command that makes it.
    pub create: CreateCompartment,
    /// Its name.
    pub name: String,
    /// Its tenants by name, in the spec's order.
    pub tenants: Vec<String>,
    /// Cores of its own; empty = shared.
    pub cores: Vec<u32>,
    /// Its weight on the fabric, 1 to 255.
    pub weight: u32,
    /// Guaranteed minimum on the fabric, wire bytes a second.
    pub min_bytes: u64,
    /// By slot.
    pub ports: BTreeMap<u32, PortIntent>,
    /// Its places on uplinks.
    pub attachments: Vec<AttachmentIntent>,
    /// Its subnets that go on beyond the host.
    pub segments: Vec<SegmentIntent>,
    /// Its rule tables, which its ports name by their place.
    pub tables: Vec<RuleTable>,
    /// The live agreements that one of its tenants has, by id.
    pub agreements: Vec<Agreement>,
    /// Its table.
    pub image: Image,
}

/// An endpoint's port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortIntent {
    /// The command that makes it.
    pub create: CreatePort,
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub endpoint: String,
    /// Its subnet.
    pub subnet: String,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its addresses, written or chosen.
    pub addresses: Vec<core::net::IpAddr>,
    /// Place of the table of what it may send; `None` = everything, untracked.
    pub egress: Option<u32>,
    /// Place of the table of what may be sent to it; `None` = everything, untracked.
    pub ingress: Option<u32>,
    /// Connections of its own that are tracked at a time.
    pub connections: u32,
    /// Its circuits are carried by its compartment's meter.
    pub metered: bool,
}

impl PortIntent {
    /// Whether no packet comes from it or reaches it: it has circuits alone.
    pub fn has_circuits_alone(&self) -> bool {
        self.create.kind == ENDPOINT_CIRCUITS
    }

    /// Whether it has circuits, alone or beside an interface.
    pub fn has_circuits(&self) -> bool {
        self.has_circuits_alone() || self.create.flags & CREATE_CIRCUITS != 0
    }
}

/// An uplink.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkIntent {
    /// The command that opens it.
    pub create: CreateUplink,
    /// Its name.
    pub name: String,
}

/// A tenant's place on an uplink, as the fabric knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentIntent {
    /// Its tenant.
    pub tenant: String,
    /// Uplink number.
    pub uplink: u32,
    /// Tag between its compartment and the fabric.
    pub tag: u16,
    /// The uplink's VLAN that it is in; 0 = none.
    pub vlan: u16,
    /// Its MAC there.
    pub mac: [u8; 6],
    /// Its own addresses there, IPv4 in its ::ffff: form, the link-local one not included.
    pub addresses: Vec<[u8; 16]>,
    /// Prefixes that its packets may come from besides.
    pub sources: Vec<Prefix>,
    /// Next hops that it asks for by neighbour discovery.
    pub next_hops: Vec<[u8; 16]>,
    /// Ports that each endpoint has behind its IPv4 address; 0 = nothing is translated.
    pub nat_ports: u16,
    /// Which endpoint has which block of them, by number: block `n` begins at port
    /// `FIRST_NAT_PORT + n * nat_ports`.
    pub nat: Vec<NatBlock>,
}

/// A subnet that goes on in a VLAN, as the fabric knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIntent {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub subnet: String,
    /// Uplink number.
    pub uplink: u32,
    /// Tag between its compartment and the fabric.
    pub tag: u16,
    /// The uplink's VLAN.
    pub vlan: u16,
    /// The MACs of its endpoints.
    pub stations: Vec<[u8; 6]>,
}

/// An endpoint's block of ports behind an IPv4 address outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatBlock {
    /// The block's number, from 0.
    pub number: u32,
    /// The endpoint's slot.
    pub slot: u32,
}

impl Intent {
    /// A port by `TENANT/ENDPOINT`, with its compartment.
    pub fn endpoint(&self, name: &str) -> Option<(&CompartmentIntent, &PortIntent)> {
        let (tenant, endpoint) = name.split_once('/')?;
        self.ports()
            .find(|(_, port)| port.tenant == tenant && port.endpoint == endpoint)
    }

    /// All ports with their compartments, by compartment and slot.
    pub fn ports(&self) -> impl Iterator<Item = (&CompartmentIntent, &PortIntent)> {
        self.compartments
            .values()
            .flat_map(|c| c.ports.values().map(move |p| (&**c, p)))
    }

    /// The compartment of a tenant.
    pub fn compartment_of(&self, tenant: &str) -> Option<&CompartmentIntent> {
        self.compartments
            .values()
            .map(|c| &**c)
            .find(|c| c.tenants.iter().any(|t| t == tenant))
    }
}
