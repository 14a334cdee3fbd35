//! The numbers that names were given, read from the store's own words.

use core::net::IpAddr;
use serde::Deserialize;
use std::collections::BTreeMap;

/// All numbers of a host that the proof goes by.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Numbers {
    pub tenants: BTreeMap<String, OfTenant>,
    /// By [`spec::Tenant::compartment`].
    pub compartments: BTreeMap<String, OfCompartment>,
    pub uplinks: BTreeMap<String, OfUplink>,
    /// By `OFFERER/OFFER/ACCEPTOR`.
    pub agreements: BTreeMap<String, OfAgreement>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfTenant {
    pub id: u32,
    pub subnets: BTreeMap<String, u32>,
    pub endpoints: BTreeMap<String, OfEndpoint>,
    pub attachments: BTreeMap<String, OfAttachment>,
    /// By subnet.
    pub segments: BTreeMap<String, OfSegment>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfEndpoint {
    pub id: u32,
    pub slot: u32,
    pub chosen: Vec<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfCompartment {
    pub id: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfUplink {
    pub number: u32,
    pub slot: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfAgreement {
    pub id: u32,
    pub tag: u16,
    /// The offerer's side's; 0 = `tag` is both's.
    pub back: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfSegment {
    pub tag: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OfAttachment {
    pub tag: u16,
    /// By endpoint, the number of its block of ports.
    pub blocks: BTreeMap<String, u32>,
}
