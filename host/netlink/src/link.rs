//! What the kernel says about interfaces and addresses.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use netlink_packet_route::link::{LinkAttribute, LinkFlags};

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC, if it is of Ethernet kind.
    pub mac: Option<[u8; 6]>,
    /// Its MTU, bytes of IP packet.
    pub mtu: u32,
    /// It is set up by its administrator.
    pub up: bool,
    /// It has a carrier and the kernel has taken note: what is sent now leaves.
    pub running: bool,
    /// Index of the interface that it is a part of (a bridge, a bond), if it is.
    pub master: Option<u32>,
}

impl Link {
    pub(crate) fn of(message: &RouteNetlinkMessage) -> Option<Link> {
        let RouteNetlinkMessage::NewLink(message) = message else {
            return None;
        };
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            running: message.header.flags.contains(LinkFlags::Running),
            master: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(mac) => link.mac = mac.as_slice().try_into().ok(),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Controller(index) => link.master = Some(*index),
                _ => {}
            }
        }
        Some(link)
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's index.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Its prefix length.
    pub prefix_len: u8,
    /// Duplicate address detection has not ended: it cannot be used yet.
    pub tentative: bool,
}

impl Address {
    pub(crate) fn of(message: &RouteNetlinkMessage) -> Option<Address> {
        let RouteNetlinkMessage::NewAddress(message) = message else {
            return None;
        };
        let mut found = None;
        let mut tentative = false;
        for attribute in &message.attributes {
            match attribute {
                // On a point-to-point interface `Address` is the peer's.
                AddressAttribute::Local(address) => found = Some(*address),
                AddressAttribute::Address(address) => found = found.or(Some(*address)),
                AddressAttribute::Flags(flags) => {
                    tentative = flags.contains(AddressFlags::Tentative)
                }
                _ => {}
            }
        }
        Some(Address {
            index: message.header.index,
            address: found?,
            prefix_len: message.header.prefix_len,
            tentative,
        })
    }
}
