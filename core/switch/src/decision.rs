//! Where a frame goes: a value, made without side effects, so that a flow table can
//! keep it and a test can compare it.

use crate::frame::{
    self, Frame, Sender, is_attachment, owner, unusable_destination, unusable_source,
};
use crate::state::State;
use crate::{arp, crossing, nd, segment};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{
    ROUTE_OUTSIDE, ROUTE_SERVICE, ROUTE_SUBNET, ROUTE_UNREACHABLE, ROUTE_VIA, Route, SUBNET_DHCP4,
    Subnet,
};
use telemetry::drops::DropReason;
use wire::address::{MacAddress, is_link_local, unmapped};
use wire::parse::{Fragment, Ip, Network, Parsed, Transport, Version};
use wire::{icmpv4, icmpv6};

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Thrown away, for this reason.
    Drop(DropReason),
    /// Meant for the switch and answered by silence.
    Absorb,
    /// To one endpoint of the same subnet, unchanged.
    Bridge(u32),
    /// To every other endpoint of the same subnet, and where it goes on beyond this host
    /// there, unchanged.
    Flood,
    /// To beyond this host in the same subnet (an index), unchanged.
    Beyond(u32),
    /// Asked beyond this host in the same subnet, in the sender's name.
    Ask {
        /// The address whose MAC is asked for.
        target: [u8; 16],
    },
    /// Through the gateway.
    Route(Hop),
    /// Through the gateway to a next hop outside whose MAC is not known yet.
    Resolve {
        /// Index into the image's next hops.
        next_hop: u32,
    },
    /// Answered by the switch itself.
    Answer(Answer),
    /// Thrown away for this reason, and the sender is told by ICMP.
    Refuse(DropReason, Refusal),
}

/// One hop of routing: what is rewritten, and where it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Where it leaves.
    pub egress: Egress,
    /// Destination MAC on the way out.
    pub destination: MacAddress,
    /// Source MAC on the way out: the gateway's there, or the compartment's.
    pub source: MacAddress,
    /// MTU there, bytes of IP packet.
    pub mtu: u16,
}

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// An endpoint, as an index into the image's endpoints.
    Endpoint(u32),
    /// The fabric.
    Outside {
        /// Index into the image's attachments, whose tag it carries.
        attachment: u32,
        /// Index into the image's next hops.
        next_hop: u32,
    },
    /// The fabric, across an agreement.
    Service {
        /// Index into the image's crossings.
        crossing: u32,
    },
}

/// What the switch answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The MAC that has the requested address.
    Arp {
        /// The request.
        message: wire::arp::Message,
        /// Who has it.
        mac: MacAddress,
    },
    /// The MAC that has the solicited address.
    NeighbourAdvert {
        /// The address.
        target: [u8; 16],
        /// Who has it.
        mac: MacAddress,
        /// It is a router.
        router: bool,
    },
    /// The gateway advertises itself.
    RouterAdvert,
    /// DHCP.
    Dhcp,
    /// Echo.
    Echo,
}

/// What an ICMP error says, in the terms of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No route to the destination.
    NoRoute,
    /// A route that refuses.
    Prohibited,
    /// Nobody has the address.
    NoNeighbour,
    /// The hop limit ran out.
    HopLimit,
    /// Nobody listens on that port of the gateway.
    Port,
    /// The gateway does not speak that protocol.
    Protocol,
    /// Larger than this MTU.
    TooBig(u16),
}

/// Decides for an admitted frame of an endpoint.
pub(crate) fn decide(
    state: &State,
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    frame: &Frame<'_>,
    head: &[u8],
) -> Decision {
    let parsed = frame.parsed;
    let decision = match &parsed.network {
        Network::Arp(message) => arp::decide(image, sender, parsed.destination, message),
        Network::Ip(ip) if ip.is_nd() => nd::decide(image, sender, parsed, ip, head),
        Network::Ip(ip) if asks_dhcp(sender, parsed, ip) => Decision::Answer(Answer::Dhcp),
        Network::Ip(ip) if parsed.destination.0 == sender.subnet.gateway_mac => {
            route_inside(state, image, sender, ip)
        }
        _ if parsed.destination.is_group() => Decision::Flood,
        _ => bridge(image, sender, parsed.destination),
    };
    match decision {
        Decision::Beyond(_) => match segment::may_leave(image, sender, frame) {
            Ok(()) => decision,
            Err(reason) => Decision::Drop(reason),
        },
        decision => decision,
    }
}

/// To the endpoint of this subnet that has a MAC.
pub(crate) fn bridge(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    mac: MacAddress,
) -> Decision {
    match image.endpoint_by_mac(sender.subnet_index, mac.0) {
        Some(index) if index == sender.index => Decision::Drop(DropReason::Hairpin),
        Some(index) => Decision::Bridge(index),
        None if mac.0 == sender.subnet.gateway_mac => Decision::Absorb,
        None if sender.subnet.segment != 0 => Decision::Beyond(sender.subnet_index),
        None => Decision::Drop(DropReason::UnknownMac),
    }
}

fn asks_dhcp(sender: &Sender<'_>, parsed: &Parsed, ip: &Ip) -> bool {
    sender.subnet.flags & SUBNET_DHCP4 != 0
        && sender.subnet.prefix4_len != 0
        && ip.version == Version::V4
        && matches!(
            ip.transport,
            Transport::Udp {
                source: 68,
                destination: 67,
                ..
            }
        )
        && (parsed.destination.is_broadcast() || frame::is_gateway(sender.subnet, &ip.destination))
}

fn route_inside(
    state: &State,
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    ip: &Ip,
) -> Decision {
    if sender.is_gateway(&ip.destination) {
        return local(ip);
    }
    if guard!("martian-source") && unusable_source(&ip.source) {
        // RFC 4291 2.5.6: never forwarded beyond its link.
        return Decision::Drop(DropReason::Martian);
    }
    match route(state, image, sender.subnet.tenant, ip) {
        Decision::Route(Hop {
            egress: Egress::Endpoint(index),
            ..
        }) if index == sender.index => Decision::Drop(DropReason::Hairpin),
        decision => decision,
    }
}

/// Routes a packet inside one tenant. Bound: one look-up of a route, one of a
/// neighbour.
pub(crate) fn route(state: &State, image: &CompartmentImage<'_>, tenant: u32, ip: &Ip) -> Decision {
    let to = &ip.destination;
    if guard!("martian-destination") && unusable_destination(to) {
        return Decision::Drop(DropReason::Martian);
    }
    let Some(route) = image.route(tenant, *to) else {
        return refuse(ip, DropReason::NoRoute, Refusal::NoRoute);
    };
    if let Some(answer) = own_address(image, route, ip) {
        return answer;
    }
    if guard!("hop-limit") && ip.hop_limit <= 1 {
        return refuse(ip, DropReason::HopLimit, Refusal::HopLimit);
    }
    match route.kind {
        ROUTE_SUBNET => on_link(image, route.subnet, ip),
        ROUTE_VIA => to_endpoint(image, route.via),
        ROUTE_OUTSIDE => outside(state, image, tenant, route.via, ip),
        ROUTE_SERVICE => crossing::hop(image, tenant, route.via),
        ROUTE_UNREACHABLE => refuse(ip, DropReason::NoRoute, Refusal::Prohibited),
        _ => refuse(ip, DropReason::NoRoute, Refusal::NoRoute),
    }
}

/// Addresses that the switch itself has beyond the sender's own gateway: other
/// subnets' gateways, and the attachment that the route would leave by.
fn own_address(image: &CompartmentImage<'_>, route: &Route, ip: &Ip) -> Option<Decision> {
    let own = match route.kind {
        ROUTE_SUBNET => {
            frame::is_gateway(image.subnets().get(route.subnet as usize)?, &ip.destination)
        }
        ROUTE_OUTSIDE => {
            let hop = image.next_hops().get(route.via as usize)?;
            is_attachment(
                image.attachments().get(hop.attachment as usize)?,
                &ip.destination,
            )
        }
        _ => false,
    };
    own.then(|| local(ip))
}

fn on_link(image: &CompartmentImage<'_>, subnet_index: u32, ip: &Ip) -> Decision {
    let Some(subnet) = image.subnets().get(subnet_index as usize) else {
        return Decision::Drop(DropReason::NoRoute);
    };
    if guard!("directed-broadcast") && names_network(subnet, &ip.destination) {
        return Decision::Drop(DropReason::Martian);
    }
    match owner(image, subnet_index, &ip.destination) {
        Some(index) => to_endpoint(image, index),
        None => refuse(ip, DropReason::NoNeighbour, Refusal::NoNeighbour),
    }
}

/// A subnet's IPv4 network or broadcast address (RFC 2644: not forwarded).
pub(crate) fn names_network(subnet: &Subnet, address: &[u8; 16]) -> bool {
    let Some(v4) = unmapped(address) else {
        return false;
    };
    if subnet.prefix4_len == 0 || subnet.prefix4_len > 30 {
        return false;
    }
    let host = u32::MAX >> subnet.prefix4_len;
    let bits = u32::from_be_bytes(v4) & host;
    bits == 0 || bits == host
}

pub(crate) fn to_endpoint(image: &CompartmentImage<'_>, index: u32) -> Decision {
    let Some(endpoint) = image.endpoints().get(index as usize) else {
        return Decision::Drop(DropReason::NoNeighbour);
    };
    let Some(subnet) = image.subnets().get(endpoint.subnet as usize) else {
        return Decision::Drop(DropReason::NoNeighbour);
    };
    Decision::Route(Hop {
        egress: Egress::Endpoint(index),
        destination: MacAddress(endpoint.mac),
        source: MacAddress(subnet.gateway_mac),
        mtu: endpoint.mtu,
    })
}

fn outside(
    state: &State,
    image: &CompartmentImage<'_>,
    tenant: u32,
    via: u32,
    ip: &Ip,
) -> Decision {
    let next = image.next_hops().get(via as usize);
    let attachment = next.and_then(|n| image.attachments().get(n.attachment as usize));
    let (Some(next), Some(attachment), Some(neighbour)) =
        (next, attachment, state.neighbours.get(via as usize))
    else {
        return Decision::Drop(DropReason::NoRoute);
    };
    if attachment.tenant != tenant {
        return Decision::Drop(DropReason::NoRoute);
    }
    if guard!("outside-words")
        && let Err(reason) = may_leave(ip)
    {
        return Decision::Drop(reason);
    }
    if !neighbour.known {
        return Decision::Resolve { next_hop: via };
    }
    Decision::Route(Hop {
        egress: Egress::Outside {
            attachment: next.attachment,
            next_hop: via,
        },
        destination: MacAddress(neighbour.mac),
        source: MacAddress(attachment.mac),
        mtu: attachment.mtu,
    })
}

/// What the fabric lets nobody say to an uplink, and would report this switch for.
fn may_leave(ip: &Ip) -> Result<(), DropReason> {
    let udp_to = match ip.transport {
        Transport::Udp { destination, .. } => Some(destination),
        _ => None,
    };
    match ip.version {
        // Behind them the ports lie elsewhere.
        Version::V4 if ip.options => Err(DropReason::SourceRoute),
        // What is for DHCP clients and relays, whoever it is from.
        Version::V4 if matches!(udp_to, Some(67 | 68)) => Err(DropReason::DhcpServer),
        Version::V6 if matches!(udp_to, Some(546 | 547)) => Err(DropReason::DhcpServer),
        // What a router alone says: where else to send, and that it is one.
        Version::V4
            if matches!(ip.transport, Transport::Icmp { kind, .. }
                if matches!(kind, icmpv4::REDIRECT | icmpv4::ROUTER_ADVERT)) =>
        {
            Err(DropReason::RouterAdvert)
        }
        // Addresses of the link, of a site (RFC 3879), and what nobody assigned there.
        Version::V6 if ip.destination.first() >= Some(&0xfe) => Err(DropReason::Martian),
        _ => Ok(()),
    }
}

/// The same for what comes from outside: an echo with its options or extension headers
/// would be an answer that the fabric does not let us say.
pub(crate) fn local_outside(ip: &Ip) -> Decision {
    let plain = !ip.options && ip.extension_headers == 0;
    match local(ip) {
        Decision::Answer(_) if !plain && guard!("outside-echo") => {
            Decision::Drop(DropReason::ExtensionChain)
        }
        decision => decision,
    }
}

/// For a packet to one of the switch's own addresses.
pub(crate) fn local(ip: &Ip) -> Decision {
    let refuse_port = refuse(ip, DropReason::GatewayPort, Refusal::Port);
    if ip.fragment != Fragment::Whole {
        return Decision::Drop(DropReason::GatewayPort);
    }
    match (ip.version, ip.transport) {
        (
            Version::V4,
            Transport::Icmp {
                kind: icmpv4::ECHO_REQUEST,
                code: 0,
            },
        )
        | (
            Version::V6,
            Transport::Icmp {
                kind: icmpv6::ECHO_REQUEST,
                code: 0,
            },
        ) => Decision::Answer(Answer::Echo),
        // Other ICMP is for nobody, and earns no error.
        (_, Transport::Icmp { .. }) => Decision::Absorb,
        (_, Transport::Udp { .. } | Transport::Tcp { .. }) => refuse_port,
        _ => refuse(ip, DropReason::GatewayPort, Refusal::Protocol),
    }
}

/// Refuses, and says so where an error may be sent about this packet: not about
/// errors, later fragments, or packets from or to what is no single host
/// (RFC 1122 3.2.2, RFC 4443 2.4 e).
pub(crate) fn refuse(ip: &Ip, reason: DropReason, refusal: Refusal) -> Decision {
    let about_error = match (ip.version, ip.transport) {
        (Version::V4, Transport::Icmp { kind, .. }) => icmpv4::is_error(kind),
        (Version::V6, Transport::Icmp { kind, .. }) => icmpv6::is_error(kind),
        _ => false,
    };
    if guard!("no-error-about-error") && about_error {
        return Decision::Drop(reason);
    }
    let nobody = unusable_source(&ip.source) && !is_link_local(&ip.source);
    let many =
        wire::address::is_multicast(&ip.destination) || ip.destination == wire::address::BROADCAST4;
    if ip.fragment == Fragment::Later || nobody || many {
        return Decision::Drop(reason);
    }
    Decision::Refuse(reason, refusal)
}

/// Decides for an admitted frame from outside.
pub(crate) fn decide_outside(
    state: &State,
    image: &CompartmentImage<'_>,
    tenant: u32,
    attachment: &image::compartment::Attachment,
    ip: &Ip,
) -> Decision {
    if is_attachment(attachment, &ip.destination) {
        return local_outside(ip);
    }
    match route(state, image, tenant, ip) {
        // Nobody passes through a tenant from uplink to uplink.
        Decision::Route(Hop {
            egress: Egress::Outside { .. } | Egress::Service { .. },
            ..
        })
        | Decision::Resolve { .. }
            if guard!("no-transit") =>
        {
            Decision::Drop(DropReason::Martian)
        }
        decision => decision,
    }
}
