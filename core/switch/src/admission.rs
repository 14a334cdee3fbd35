//! What an endpoint may say: the guard of docs/design.md §5.2, whole.
//!
//! Every refusal has its own [`DropReason`] and its own `guard!` name, so that each
//! can be taken out alone and seen to be missed.

use crate::frame::{Sender, owner, owns};
use crate::nd;
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, ROLE_DHCP_SERVER, ROLE_ROUTER, STATE_OPEN, STATE_QUARANTINED};
use telemetry::drops::DropReason;
use wire::address::{self, mapped, unmapped};
use wire::parse::{Ip, Network, ParseError, Parsed, Transport, Version};
use wire::{arp, icmpv4, icmpv6};

/// Whether an endpoint's admission state lets it send and receive.
pub(crate) fn state(endpoint: &Endpoint) -> Result<(), DropReason> {
    match endpoint.state {
        STATE_OPEN => Ok(()),
        STATE_QUARANTINED if guard!("quarantined") => Err(DropReason::Quarantined),
        STATE_QUARANTINED => Ok(()),
        _ if guard!("unauthorised") => Err(DropReason::Unauthorised),
        _ => Ok(()),
    }
}

/// The reason a frame that does not parse is dropped with.
pub(crate) fn malformed(error: ParseError) -> DropReason {
    match error {
        ParseError::ExtensionChain => DropReason::ExtensionChain,
        _ => DropReason::Malformed,
    }
}

/// Judges a parsed frame from an endpoint. `head` is what was parsed.
pub(crate) fn admit(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    parsed: &Parsed,
    head: &[u8],
) -> Result<(), DropReason> {
    link(sender, parsed)?;
    match &parsed.network {
        Network::Unknown => {
            if guard!("ethertype") {
                return Err(DropReason::EtherType);
            }
        }
        Network::Arp(message) => arp_sender(image, sender, message)?,
        Network::Ip(ip) => {
            headers(ip)?;
            source(image, sender, ip)?;
            roles(sender, ip)?;
            if ip.is_nd() {
                nd::admit(image, sender, parsed, ip, head)?;
            }
        }
    }
    Ok(())
}

fn link(sender: &Sender<'_>, parsed: &Parsed) -> Result<(), DropReason> {
    if guard!("group-source") && parsed.source.is_group() {
        return Err(DropReason::GroupSource);
    }
    if guard!("source-mac") && parsed.source.0 != sender.endpoint.mac && !parsed.source.is_group() {
        return Err(DropReason::SourceMac);
    }
    if guard!("vlan-tag") && !parsed.tags.is_empty() {
        return Err(DropReason::VlanTag);
    }
    if guard!("reserved-mac") && parsed.destination.is_reserved() {
        return Err(DropReason::ReservedMac);
    }
    Ok(())
}

fn arp_sender(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    message: &arp::Message,
) -> Result<(), DropReason> {
    if guard!("arp-mac") && message.sender_mac.0 != sender.endpoint.mac {
        return Err(DropReason::ArpSpoof);
    }
    let probe = message.sender == [0; 4] && message.operation == arp::Operation::Request;
    if guard!("arp-ip") && !probe && !owns(image, sender, &mapped(message.sender)) {
        return Err(DropReason::ArpSpoof);
    }
    Ok(())
}

/// Headers that no endpoint may use.
pub(crate) fn headers(ip: &Ip) -> Result<(), DropReason> {
    if guard!("source-route") && (ip.source_route || ip.routing_header.is_some()) {
        return Err(DropReason::SourceRoute);
    }
    if guard!("nd-fragment") && ip.fragment_header && ip.is_nd() {
        return Err(DropReason::NdFragment);
    }
    // In an IPv6 header the mapped form would stand for an IPv4 address of the
    // tables (RFC 4291 2.5.5.2 never lets it on a wire).
    let disguised = ip.version == Version::V6
        && (unmapped(&ip.source).is_some() || unmapped(&ip.destination).is_some());
    if guard!("mapped-in-ipv6") && disguised {
        return Err(DropReason::Martian);
    }
    Ok(())
}

fn source(image: &CompartmentImage<'_>, sender: &Sender<'_>, ip: &Ip) -> Result<(), DropReason> {
    if owns(image, sender, &ip.source)
        || (address::is_unspecified(&ip.source) && may_be_unspecified(ip))
    {
        return Ok(());
    }
    match ip.version {
        Version::V4 if guard!("source-ip4") => Err(DropReason::SourceIp),
        Version::V6 if guard!("source-ip6") => Err(DropReason::SourceIp),
        _ => Ok(()),
    }
}

/// Who has no address yet asks for one (RFC 2131), checks it (RFC 4862), looks
/// for routers (RFC 4861) or says which groups it listens to (RFC 3376, RFC 3590).
pub(crate) fn may_be_unspecified(ip: &Ip) -> bool {
    match (ip.version, ip.transport) {
        (
            Version::V4,
            Transport::Udp {
                source: 68,
                destination: 67,
                ..
            },
        ) => ip.destination == address::BROADCAST4,
        (Version::V4, Transport::Other) => {
            ip.protocol == IGMP && address::is_multicast(&ip.destination)
        }
        (Version::V6, Transport::Icmp { kind, .. }) => {
            address::is_multicast(&ip.destination)
                && matches!(
                    kind,
                    wire::nd::NEIGHBOUR_SOLICIT
                        | wire::nd::ROUTER_SOLICIT
                        | icmpv6::MLD_REPORT
                        | icmpv6::MLD_DONE
                        | icmpv6::MLD2_REPORT
                )
        }
        _ => false,
    }
}

fn roles(sender: &Sender<'_>, ip: &Ip) -> Result<(), DropReason> {
    let roles = sender.endpoint.roles;
    if guard!("router-role") && is_routers(ip) && roles & ROLE_ROUTER == 0 {
        return Err(DropReason::RouterAdvert);
    }
    // Many clients do not look at the port that an answer comes from.
    let serves = match (ip.version, ip.transport) {
        (
            Version::V4,
            Transport::Udp {
                source,
                destination,
                ..
            },
        ) => destination == 68 || (source, destination) == (67, 67),
        (
            Version::V6,
            Transport::Udp {
                source,
                destination,
                ..
            },
        ) => destination == 546 || (source, destination) == (547, 547),
        _ => false,
    };
    if guard!("dhcp-server") && serves && roles & ROLE_DHCP_SERVER == 0 {
        return Err(DropReason::DhcpServer);
    }
    Ok(())
}

/// Whether a packet says what a router alone says: where else to send, and that it is one.
pub(crate) fn is_routers(ip: &Ip) -> bool {
    match (ip.version, ip.transport) {
        (Version::V4, Transport::Icmp { kind, .. }) => {
            matches!(kind, icmpv4::REDIRECT | icmpv4::ROUTER_ADVERT)
        }
        (Version::V6, Transport::Icmp { kind, .. }) => {
            matches!(kind, wire::nd::ROUTER_ADVERT | wire::nd::REDIRECT)
        }
        _ => false,
    }
}

/// IGMP (RFC 3376).
const IGMP: u8 = 2;

/// Whether an address belongs to another endpoint of the sender's subnet, or to
/// its gateway.
pub(crate) fn taken(image: &CompartmentImage<'_>, sender: &Sender<'_>, address: &[u8; 16]) -> bool {
    sender.is_gateway(address)
        || owner(image, sender.subnet_index, address).is_some_and(|o| o != sender.index)
}
