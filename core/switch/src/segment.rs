//! A subnet that goes on beyond this host: what comes from there, who may be there, and
//! what is asked there.
//!
//! Nobody is learned: whatever MAC is no endpoint's of the subnet is beyond, and there is
//! one way there. Frames from there are believed as far as they speak for somebody who is
//! not here.

use crate::act::conclude;
use crate::crossing;
use crate::decision::{Decision, bridge};
use crate::frame::{Face, Frame, Leaving, Sender, is_gateway, owner, owns};
use crate::outside::inward;
use crate::state::State;
use crate::{FABRIC, Ingress, Nanos, Output, admission, nd};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, ROUTE_SUBNET, Subnet};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::{self, MacAddress, mapped, solicited_node, unmapped};
use wire::nd::{Message, NeighbourAdvert, NeighbourSolicit};
use wire::offload::Offload;
use wire::parse::{Ip, Network, Parsed, Transport, Version};
use wire::{arp, build, ethernet, ipv6};

/// A subnet beyond which there is more, and its place.
#[derive(Clone, Copy)]
struct There<'a> {
    index: u32,
    subnet: &'a Subnet,
}

/// Handles a frame that came by the fabric with a segment's tag.
#[expect(clippy::too_many_arguments, reason = "one caller, all of them facts")]
pub(crate) fn receive(
    state: &mut State,
    image: &CompartmentImage<'_>,
    now: Nanos,
    index: u32,
    ingress: Ingress<'_>,
    parsed: &Parsed,
    offload: Offload,
    out: &mut impl Output,
) {
    let Some(subnet) = image.subnets().get(index as usize) else {
        return out.dropped(FABRIC, DropReason::UnknownMac);
    };
    let there = There { index, subnet };
    let frame = Frame {
        now,
        from: FABRIC,
        parsed,
        offload,
        total: ingress.total,
        face: Face::segment(subnet, index),
        leaving: Leaving::Same,
    };
    let decided = judge(image, &there, &frame, ingress.head, out);
    let decided = decided
        .and_then(|decision| inward(state, image, subnet.segment, &frame, ingress.head, decision));
    conclude(state, image, frame, decided, ingress.head, out);
}

fn judge(
    image: &CompartmentImage<'_>,
    there: &There<'_>,
    frame: &Frame<'_>,
    head: &[u8],
    out: &mut impl Output,
) -> Result<Decision, DropReason> {
    let parsed = frame.parsed;
    if parsed.source.is_group() {
        return Err(DropReason::GroupSource);
    }
    let ours = |mac: &[u8; 6]| {
        *mac == there.subnet.gateway_mac || image.endpoint_by_mac(there.index, *mac).is_some()
    };
    if guard!("segment-source-mac") && ours(&parsed.source.0) {
        return Err(DropReason::SourceMac);
    }
    if guard!("segment-vlan") && !parsed.tags.is_empty() {
        return Err(DropReason::VlanTag);
    }
    if parsed.destination.is_reserved() {
        return Err(DropReason::ReservedMac);
    }
    match &parsed.network {
        Network::Unknown => Err(DropReason::EtherType),
        Network::Arp(message) => on_arp(image, there, frame, message, out),
        Network::Ip(ip) => {
            admission::headers(ip)?;
            let nameless = address::is_unspecified(&ip.source) && admission::may_be_unspecified(ip);
            let stranger = is_beyond(image, there.index, &ip.source);
            if guard!("segment-source-ip") && !stranger && !nameless {
                return Err(DropReason::SourceIp);
            }
            if guard!("segment-router") && admission::is_routers(ip) {
                return Err(DropReason::RouterAdvert);
            }
            if guard!("segment-dhcp-in") && is_dhcp(ip) {
                return Err(DropReason::DhcpServer);
            }
            if ip.is_nd() {
                return on_nd(image, there, frame, ip, head, out);
            }
            if parsed.destination.is_group() {
                let many = is_many(there.subnet, &ip.destination);
                return match many || !guard!("segment-group") {
                    true => Ok(Decision::Flood),
                    false => Err(DropReason::Martian),
                };
            }
            let index = station(image, there, parsed)?;
            let receiver = Sender::of(image, index).ok_or(DropReason::NoImage)?;
            if guard!("segment-destination") && !owns(image, &receiver, &ip.destination) {
                return Err(DropReason::NoNeighbour);
            }
            Ok(Decision::Bridge(index))
        }
    }
}

/// The endpoint that a frame is for.
fn station(
    image: &CompartmentImage<'_>,
    there: &There<'_>,
    parsed: &Parsed,
) -> Result<u32, DropReason> {
    image
        .endpoint_by_mac(there.index, parsed.destination.0)
        .ok_or(DropReason::UnknownMac)
}

/// Whether somebody beyond may have an address: it is of the subnet, or of its link, and
/// nobody's here: no endpoint's, not the gateway's, no router's or service's.
pub(crate) fn is_beyond(
    image: &CompartmentImage<'_>,
    subnet_index: u32,
    address: &[u8; 16],
) -> bool {
    let Some(subnet) = image.subnets().get(subnet_index as usize) else {
        return false;
    };
    if owner(image, subnet_index, address).is_some() || is_gateway(subnet, address) {
        return false;
    }
    if address::is_link_local(address) {
        if unmapped(address).is_some() {
            return false;
        }
        // Where there is no IPv6 prefix endpoints' own are in no table.
        let [.., a, b, c, ff, fe, d, e, f] = *address;
        let mac = [a ^ 2, b, c, d, e, f];
        return (ff, fe) != (0xff, 0xfe)
            || mac != subnet.gateway_mac && image.endpoint_by_mac(subnet_index, mac).is_none();
    }
    let here = image.route(subnet.tenant, *address);
    here.is_some_and(|route| route.kind == ROUTE_SUBNET && route.subnet == subnet_index)
        && !is_edge(subnet, address)
}

/// Whether an address is the subnet's own or its broadcast address (RFC 1122, 3.2.1.3).
fn is_edge(subnet: &Subnet, address: &[u8; 16]) -> bool {
    crate::decision::names_network(subnet, address)
}

/// DHCP of either family, to servers, relays or clients: it ends at the host.
fn is_dhcp(ip: &Ip) -> bool {
    match (ip.version, ip.transport) {
        (
            Version::V4,
            Transport::Udp {
                source,
                destination,
                ..
            },
        ) => [source, destination].iter().any(|p| matches!(p, 67 | 68)),
        (
            Version::V6,
            Transport::Udp {
                source,
                destination,
                ..
            },
        ) => [source, destination].iter().any(|p| matches!(p, 546 | 547)),
        _ => false,
    }
}

/// Whether an endpoint's frame may leave for beyond. What is for a group that is not IP's the
/// fabric lets nobody say, and would report this switch for. And a packet goes to somebody who
/// may be there, or to many: by no router out there is it outside.
pub(crate) fn may_leave(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    frame: &Frame<'_>,
) -> Result<(), DropReason> {
    let to = frame.parsed.destination;
    let spoken = matches!(to.0, [1, 0, 0x5e, ..] | [0x33, 0x33, ..]) || to.is_broadcast();
    if to.is_group() && !spoken && guard!("segment-words") {
        return Err(DropReason::ReservedMac);
    }
    let Some(ip) = frame.parsed.ip() else {
        return Ok(());
    };
    if is_dhcp(ip) && guard!("segment-dhcp-out") {
        return Err(DropReason::DhcpServer);
    }
    let there = match to.is_group() {
        true => is_many(sender.subnet, &ip.destination),
        false => {
            address::is_multicast(&ip.destination)
                || is_beyond(image, sender.subnet_index, &ip.destination)
        }
    };
    match there || !guard!("segment-on-link") {
        true => Ok(()),
        false => Err(DropReason::NoNeighbour),
    }
}

/// Whether an address is that of many at once.
fn is_many(subnet: &Subnet, address: &[u8; 16]) -> bool {
    address::is_multicast(address) || *address == address::BROADCAST4 || is_edge(subnet, address)
}

/// Answers for endpoints, as an endpoint would, and hands answers to who asked.
fn on_arp(
    image: &CompartmentImage<'_>,
    there: &There<'_>,
    frame: &Frame<'_>,
    message: &arp::Message,
    out: &mut impl Output,
) -> Result<Decision, DropReason> {
    let sender = mapped(message.sender);
    let probe = message.sender == [0; 4] && message.operation == arp::Operation::Request;
    let stranger = probe || is_beyond(image, there.index, &sender);
    let lies = message.sender_mac != frame.parsed.source || !stranger;
    if guard!("segment-arp") && lies {
        return Err(DropReason::ArpSpoof);
    }
    let target = mapped(message.target);
    let owner = owner(image, there.index, &target);
    let endpoint = owner.and_then(|at| image.endpoints().get(at as usize));
    let Some(endpoint) = endpoint.filter(|e| admission::state(e).is_ok()) else {
        return Ok(Decision::Absorb);
    };
    match message.operation {
        arp::Operation::Request => Ok(Decision::Answer(crate::Answer::Arp {
            message: *message,
            mac: MacAddress(endpoint.mac),
        })),
        arp::Operation::Reply => {
            // To who asked alone, and nothing but what was asked for.
            if endpoint.mac != frame.parsed.destination.0 && guard!("segment-arp-asker") {
                return Ok(Decision::Absorb);
            }
            let link =
                ethernet::Header::new(MacAddress(endpoint.mac), frame.parsed.source, ethernet::ARP);
            let told = arp::Message {
                target_mac: MacAddress(endpoint.mac),
                ..*message
            };
            let mut buffer = [0u8; 64];
            let length = build::arp(&mut buffer, &link, &told).ok();
            hand(endpoint, length.and_then(|n| buffer.get(..n)), out);
            Ok(Decision::Absorb)
        }
    }
}

fn on_nd(
    image: &CompartmentImage<'_>,
    there: &There<'_>,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
    out: &mut impl Output,
) -> Result<Decision, DropReason> {
    if ip.hop_limit != wire::nd::HOP_LIMIT {
        return Err(DropReason::NdSpoof);
    }
    let own = |mac: Option<MacAddress>| mac.is_none_or(|mac| mac == frame.parsed.source);
    let here = |address: &[u8; 16]| {
        let at = owner(image, there.index, address)?;
        let endpoint = image.endpoints().get(at as usize)?;
        admission::state(endpoint).is_ok().then_some(endpoint)
    };
    match nd::read(frame.parsed, ip, head).ok_or(DropReason::Malformed)? {
        Message::NeighbourSolicit { target, options } => {
            if guard!("segment-nd") && !own(options.source_link) {
                return Err(DropReason::NdSpoof);
            }
            let Some(endpoint) = here(&target) else {
                return Ok(Decision::Absorb);
            };
            Ok(Decision::Answer(crate::Answer::NeighbourAdvert {
                target,
                mac: MacAddress(endpoint.mac),
                router: false,
            }))
        }
        Message::NeighbourAdvert(advert) => {
            let lies = !own(advert.target_link) || !is_beyond(image, there.index, &advert.target);
            if guard!("segment-nd-target") && lies {
                return Err(DropReason::NdSpoof);
            }
            let Some(endpoint) = here(&ip.destination) else {
                return Ok(Decision::Absorb);
            };
            if endpoint.mac != frame.parsed.destination.0 {
                return Ok(Decision::Absorb);
            }
            let mac = MacAddress(endpoint.mac);
            let link = ethernet::Header::new(mac, frame.parsed.source, ethernet::IPV6);
            let header = ipv6::Header {
                hop_limit: wire::nd::HOP_LIMIT,
                ..ipv6::Header::new(ip.source, ip.destination, 58)
            };
            let told = NeighbourAdvert {
                router: false,
                target_link: Some(frame.parsed.source),
                ..advert
            };
            let mut buffer = [0u8; 128];
            let length = build::icmpv6(&mut buffer, &link, &header, |body| told.emit(body)).ok();
            hand(endpoint, length.and_then(|n| buffer.get(..n)), out);
            Ok(Decision::Absorb)
        }
        // Who asks for routers finds none here.
        _ => Ok(Decision::Absorb),
    }
}

fn hand(endpoint: &Endpoint, bytes: Option<&[u8]>, out: &mut impl Output) {
    if let Some(bytes) = bytes {
        out.count(endpoint.slot, Counter::Replies, 1);
        out.reply(endpoint.slot, 0, bytes);
    }
}

/// Whether a sender's question about an address that nobody has here is one for beyond.
pub(crate) fn is_asked(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    target: &[u8; 16],
) -> bool {
    sender.subnet.segment != 0
        && !crossing::is_service(image, sender.subnet.tenant, target)
        && is_beyond(image, sender.subnet_index, target)
}

/// Asks beyond in a sender's name for the MAC of an address, and says nothing besides: the
/// question is made anew.
pub(crate) fn ask(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    frame: &Frame<'_>,
    target: &[u8; 16],
    out: &mut impl Output,
) {
    let mac = MacAddress(sender.endpoint.mac);
    let mut buffer = [0u8; 128];
    // One station out there is asked whether it is still there. Whoever is here is not named.
    let station = frame.parsed.destination;
    let is_there = bridge(image, sender, station) == Decision::Beyond(sender.subnet_index);
    let alone =
        (!station.is_group() && (is_there || !guard!("segment-asked-alone"))).then_some(station);
    let length = match (&frame.parsed.network, unmapped(target)) {
        (Network::Arp(asked), Some(target)) => {
            let message = arp::Message {
                operation: arp::Operation::Request,
                sender_mac: mac,
                sender: asked.sender,
                target_mac: MacAddress::ZERO,
                target,
            };
            let to = alone.unwrap_or(MacAddress::BROADCAST);
            let link = ethernet::Header::new(to, mac, ethernet::ARP);
            build::arp(&mut buffer, &link, &message).ok()
        }
        (Network::Ip(ip), None) => {
            let group = solicited_node(target);
            let (to, destination) = match alone {
                Some(station) => (station, *target),
                None => (MacAddress::of_group6(group), group),
            };
            let link = ethernet::Header::new(to, mac, ethernet::IPV6);
            let header = ipv6::Header {
                hop_limit: wire::nd::HOP_LIMIT,
                ..ipv6::Header::new(ip.source, destination, 58)
            };
            let solicit = NeighbourSolicit {
                target: *target,
                source_link: (!address::is_unspecified(&ip.source)).then_some(mac),
            };
            build::icmpv6(&mut buffer, &link, &header, |body| solicit.emit(body)).ok()
        }
        _ => None,
    };
    if let Some(bytes) = length.and_then(|n| buffer.get(..n)) {
        out.reply(FABRIC, sender.subnet.segment, bytes);
    }
}
