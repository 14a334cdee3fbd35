//! Who sent a frame, who owns an address, and the face that the switch shows.

use crate::{FABRIC, Nanos, Slot};
use image::CompartmentImage;
use image::compartment::{Attachment, Endpoint, ROLE_ROUTER, Subnet};
use wire::Tuple;
use wire::address::{self, MacAddress, mapped, unmapped};
use wire::offload::Offload;
use wire::parse::Parsed;

/// An endpoint that sent a frame, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// Index into the image's endpoints.
    pub(crate) index: u32,
    pub(crate) subnet: &'a Subnet,
    pub(crate) subnet_index: u32,
}

impl Sender<'_> {
    pub(crate) fn of<'a>(image: &CompartmentImage<'a>, index: u32) -> Option<Sender<'a>> {
        let endpoint = image.endpoints().get(index as usize)?;
        let subnet = image.subnets().get(endpoint.subnet as usize)?;
        Some(Sender {
            endpoint,
            index,
            subnet,
            subnet_index: endpoint.subnet,
        })
    }

    /// Whether the gateway of this subnet answers for the address.
    pub(crate) fn is_gateway(&self, address: &[u8; 16]) -> bool {
        is_gateway(self.subnet, address)
            || *address == address::link_local(MacAddress(self.subnet.gateway_mac))
    }
}

/// Whether an address is a subnet's gateway (its link-local one aside).
pub(crate) fn is_gateway(subnet: &Subnet, address: &[u8; 16]) -> bool {
    match unmapped(address) {
        Some(v4) => subnet.prefix4_len != 0 && v4 == subnet.gateway4,
        None => subnet.prefix6_len != 0 && *address == subnet.gateway6,
    }
}

/// The endpoint that an address of a subnet is bound to.
pub(crate) fn owner(image: &CompartmentImage<'_>, subnet: u32, address: &[u8; 16]) -> Option<u32> {
    image.endpoint_by_address(subnet, *address)
}

/// Whether the sender may speak from an address: bound to it, the EUI-64
/// link-local address of its MAC, or in a prefix behind it when it is a router.
/// Bound: the prefixes of this one endpoint.
pub(crate) fn owns(image: &CompartmentImage<'_>, sender: &Sender<'_>, address: &[u8; 16]) -> bool {
    if owner(image, sender.subnet_index, address) == Some(sender.index) {
        return true;
    }
    if *address == address::link_local(MacAddress(sender.endpoint.mac)) {
        return true;
    }
    if sender.endpoint.roles & ROLE_ROUTER == 0 || unusable_source(address) {
        return false;
    }
    image
        .own_prefixes_of(sender.endpoint)
        .iter()
        .any(|own| address::in_prefix(address, &own.prefix, own.len))
}

/// Addresses that no packet may be routed from.
pub(crate) fn unusable_source(address: &[u8; 16]) -> bool {
    address::is_unspecified(address)
        || address::is_loopback(address)
        || address::is_multicast(address)
        || address::is_link_local(address)
        // "This network", and what is reserved, with everybody at its end (RFC 1112, 4): the
        // fabric lets no answer to those out.
        || unmapped(address).is_some_and(|v4| v4[0] == 0 || v4[0] >= 0xf0)
}

/// Addresses that no packet may be routed to.
pub(crate) fn unusable_destination(address: &[u8; 16]) -> bool {
    unusable_source(address)
}

/// Who asks, and in whose name the switch answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Face {
    pub(crate) slot: Slot,
    pub(crate) tag: u16,
    /// Index of the attachment, for what came from outside.
    pub(crate) attachment: Option<u32>,
    /// Index of the subnet, for what came from beyond it.
    pub(crate) segment: Option<u32>,
    /// Index of the crossing, for what came from another tenant and is answered.
    pub(crate) crossing: Option<u32>,
    /// Our MAC there.
    pub(crate) mac: MacAddress,
    /// Our IPv4 address there; zero = none.
    pub(crate) address4: [u8; 4],
    /// Our IPv6 address there.
    pub(crate) address6: [u8; 16],
}

impl Face {
    /// The gateway of a sender's subnet.
    pub(crate) fn gateway(sender: &Sender<'_>) -> Face {
        let mac = MacAddress(sender.subnet.gateway_mac);
        let global = sender.subnet.prefix6_len != 0 && sender.subnet.gateway6 != [0; 16];
        Face {
            slot: sender.endpoint.slot,
            tag: 0,
            attachment: None,
            segment: None,
            crossing: None,
            mac,
            address4: sender.subnet.gateway4,
            address6: if global {
                sender.subnet.gateway6
            } else {
                address::link_local(mac)
            },
        }
    }

    /// For what comes from another tenant to a service: nothing is ever answered there.
    pub(crate) fn nobody(tag: u16) -> Face {
        Face {
            slot: FABRIC,
            tag,
            attachment: None,
            segment: None,
            crossing: None,
            mac: MacAddress::ZERO,
            address4: [0; 4],
            address6: [0; 16],
        }
    }

    /// For what comes from beyond a subnet: endpoints are answered for, and nobody else.
    pub(crate) fn segment(subnet: &Subnet, index: u32) -> Face {
        Face {
            segment: Some(index),
            ..Face::nobody(subnet.segment)
        }
    }

    /// Whether nothing is answered to whoever sent it.
    pub(crate) fn is_nobody(&self) -> bool {
        self.mac == MacAddress::ZERO
    }

    /// The compartment as a machine on an uplink.
    pub(crate) fn attachment(attachment: &Attachment, index: u32) -> Face {
        let mac = MacAddress(attachment.mac);
        let global = attachment.address6 != [0; 16];
        Face {
            slot: FABRIC,
            tag: attachment.tag,
            attachment: Some(index),
            segment: None,
            crossing: None,
            mac,
            address4: attachment.address4,
            address6: if global {
                attachment.address6
            } else {
                address::link_local(mac)
            },
        }
    }
}

/// Whether an address is one of an attachment's own.
pub(crate) fn is_attachment(attachment: &Attachment, address: &[u8; 16]) -> bool {
    match unmapped(address) {
        Some([0, 0, 0, 0]) => false,
        Some(_) => *address == mapped(attachment.address4),
        None => {
            (*address == attachment.address6 && attachment.address6 != [0; 16])
                || *address == address::link_local(MacAddress(attachment.mac))
        }
    }
}

/// A frame that was admitted: the facts that act on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) now: Nanos,
    pub(crate) from: Slot,
    pub(crate) parsed: &'a Parsed,
    pub(crate) offload: Offload,
    pub(crate) total: usize,
    pub(crate) face: Face,
    pub(crate) leaving: Leaving,
}

impl Frame<'_> {
    /// Whether it goes to an IPv4 address that an attachment's endpoints share.
    pub(crate) fn is_shared(&self, attachment: &Attachment) -> bool {
        attachment.nat_block != 0
            && self
                .parsed
                .ip()
                .is_some_and(|ip| unmapped(&ip.destination) == Some(attachment.address4))
    }
}

/// With which addresses and ports a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Its own.
    Same,
    /// These.
    As(Tuple),
    /// An ICMP error: these outside, and these in the packet that it quotes.
    Error {
        /// The error's addresses.
        outer: Tuple,
        /// The quoted packet's addresses and ports.
        quoted: Tuple,
    },
}
