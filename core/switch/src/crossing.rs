//! Services across agreements: what comes from another tenant by its tag.
//!
//! The tag names the agreement, and nothing else that comes is believed: toward an
//! offerer only the service's ports are reached, toward an acceptor only answers pass.
//! What comes is delivered to one endpoint or dropped, never routed on.
//!
//! Where prefixes are routed, addresses stay what they are: the source must be in the
//! other tenant's prefixes, the destination in its own, and who may begin with what is
//! judged as for a service. The switch tells the other side of errors there.

use crate::act::conclude;
use crate::decision::{Decision, Egress, Hop, Refusal, refuse, to_endpoint};
use crate::frame::{Face, Frame, Leaving, owner};
use crate::judgement::{End, Passage, known, pass};
use crate::state::State;
use crate::translation::Translation;
use crate::{FABRIC, Ingress, Nanos, Output, admission};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{
    CROSSING_OFFERER, Crossing, NONE, ROUTE_SERVICE, ROUTE_SUBNET, ROUTE_VIA, Subnet,
};
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::address::{MacAddress, mapped, unmapped};
use wire::offload::Offload;
use wire::parse::{Fragment, Ip, Network, Parsed};

/// Whom frames across an agreement name: the fabric goes by the tag.
const THERE: MacAddress = MacAddress([0x02, 0x62, 0x68, 0, 0, 2]);
/// As whom they speak.
const HERE: MacAddress = MacAddress([0x02, 0x62, 0x68, 0, 0, 1]);

/// The hop of a packet that leaves by an agreement.
pub(crate) fn hop(image: &CompartmentImage<'_>, tenant: u32, index: u32) -> Decision {
    match image.crossings().get(index as usize) {
        Some(crossing) if crossing.tenant == tenant => Decision::Route(Hop {
            egress: Egress::Service { crossing: index },
            destination: THERE,
            source: HERE,
            mtu: crossing.mtu,
        }),
        _ => Decision::Drop(DropReason::NoRoute),
    }
}

/// Whether an address stands for the service at its acceptor.
pub(crate) fn stands_for(crossing: &Crossing, address: &[u8; 16]) -> bool {
    match unmapped(address) {
        Some([0, 0, 0, 0]) => false,
        Some(_) => *address == mapped(crossing.address4),
        None => *address == crossing.address6 && *address != [0; 16],
    }
}

/// Whether an address in a tenant's network stands for something across an agreement:
/// the gateway answers for it.
pub(crate) fn is_service(image: &CompartmentImage<'_>, tenant: u32, address: &[u8; 16]) -> bool {
    image
        .route(tenant, *address)
        .is_some_and(|route| route.kind == ROUTE_SERVICE)
}

/// Whether a first packet is of what a routed crossing (an index) is for.
pub(crate) fn offers(image: &CompartmentImage<'_>, crossing: u32, tuple: &Tuple) -> bool {
    let crossing = image.crossings().get(crossing as usize);
    crossing.is_some_and(|crossing| {
        crossing.ports_count == 0 || image.serves(crossing, tuple.protocol, tuple.destination_port)
    })
}

/// How an ICMP error about a packet that was not translated leaves. Across an agreement
/// of prefixes a router that is in none of them speaks as who the packet was for: nobody
/// there knows it otherwise. `None`: it cannot be read.
pub(crate) fn error_leaves_as(
    image: &CompartmentImage<'_>,
    to: Option<End>,
    ip: &Ip,
    quoted: &Tuple,
) -> Option<Leaving> {
    let crossing = match to {
        Some(End { zone, .. }) if zone != 0 => image.crossing_by_tag(zone),
        _ => None,
    };
    match crossing {
        Some((_, crossing))
            if crossing.is_routed() && !image.is_routed(crossing, false, &ip.source) =>
        {
            Some(Leaving::Error {
                outer: Tuple {
                    source: quoted.destination,
                    ..Tuple::of_rules(ip)?
                },
                quoted: *quoted,
            })
        }
        _ => Some(Leaving::Same),
    }
}

/// The passage of an endpoint's packet to the other side of an agreement, by `index`.
pub(crate) fn outward(
    crossing: &Crossing,
    index: u32,
    slot: u32,
    egress: u32,
    ip: &Ip,
    image: &CompartmentImage<'_>,
) -> Result<Passage, DropReason> {
    if crossing.is_routed() {
        // An error's source is that of whoever tells of it.
        let own = image.is_routed(crossing, false, &ip.source) || wire::inner::is_error(ip);
        let takes_part = own && image.is_routed(crossing, true, &ip.destination);
        if guard!("routed-here") && !takes_part {
            return Err(DropReason::RoutedPrefix);
        }
        return Ok(Passage {
            from: End::at(slot),
            to: End::beyond(slot, crossing.tag),
            egress,
            ingress: NONE,
            translation: match crossing.begins() {
                true => Translation::Routed { crossing: index },
                false => Translation::Answers,
            },
        });
    }
    let offers = crossing.role == CROSSING_OFFERER;
    if !offers && ip.fragment != wire::parse::Fragment::Later {
        let tuple = wire::Tuple::of_rules(ip).ok_or(DropReason::Fragment)?;
        let error = wire::inner::is_error(ip);
        let serves = image.serves(crossing, tuple.protocol, tuple.destination_port);
        if guard!("service-ports-here") && !error && !serves {
            return Err(DropReason::ServicePort);
        }
    }
    Ok(Passage {
        from: End::at(slot),
        to: End::beyond(slot, crossing.tag),
        egress,
        ingress: NONE,
        translation: if offers {
            Translation::Answers
        } else {
            Translation::Tracked
        },
    })
}

/// Handles a frame that came by an agreement's tag.
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
    let mut frame = Frame {
        now,
        from: FABRIC,
        parsed,
        offload,
        total: ingress.total,
        face: Face::nobody(ingress.tag),
        leaving: Leaving::Same,
    };
    let judged = judge(state, image, index, &mut frame, ingress.head);
    conclude(state, image, frame, judged, ingress.head, out);
}

fn judge(
    state: &mut State,
    image: &CompartmentImage<'_>,
    index: u32,
    frame: &mut Frame<'_>,
    head: &[u8],
) -> Result<(Decision, Leaving), DropReason> {
    let crossing = image
        .crossings()
        .get(index as usize)
        .ok_or(DropReason::UnknownMac)?;
    if frame.parsed.source.is_group() || frame.parsed.destination.is_group() {
        return Err(DropReason::GroupSource);
    }
    if guard!("crossing-vlan") && !frame.parsed.tags.is_empty() {
        return Err(DropReason::VlanTag);
    }
    let parsed = frame.parsed;
    let Network::Ip(ip) = &parsed.network else {
        return Err(DropReason::EtherType);
    };
    admission::headers(ip)?;
    if crossing.is_routed() && !ip.is_nd() {
        return routed(state, image, index, crossing, frame, ip, head);
    }
    if ip.is_nd() || ip.hop_limit <= 1 {
        return Err(DropReason::HopLimit);
    }
    if crossing.role == CROSSING_OFFERER {
        to_service(state, image, index, crossing, frame, ip, head)
    } else {
        answer(state, image, crossing, frame, ip, head)
    }
}

/// To the endpoint that serves, and its service's ports alone.
fn to_service(
    state: &mut State,
    image: &CompartmentImage<'_>,
    index: u32,
    crossing: &Crossing,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
) -> Result<(Decision, Leaving), DropReason> {
    let endpoint = image
        .endpoints()
        .get(crossing.endpoint as usize)
        .ok_or(DropReason::NoNeighbour)?;
    if ip.fragment != wire::parse::Fragment::Later && !wire::inner::is_error(ip) {
        let tuple = wire::Tuple::of_rules(ip).ok_or(DropReason::Fragment)?;
        let serves = image.serves(crossing, tuple.protocol, tuple.destination_port);
        if guard!("service-ports") && !serves {
            return Err(DropReason::ServicePort);
        }
    }
    let passage = Passage {
        from: End::strangers(endpoint.slot, crossing.tag),
        to: End::at(endpoint.slot),
        egress: NONE,
        ingress: endpoint.ingress,
        translation: Translation::Pool { crossing: index },
    };
    let (_, leaving) = pass(state, image, frame, head, &passage)?;
    Ok((to_endpoint(image, crossing.endpoint), leaving))
}

/// To the endpoint that has the address: what it asked for, or what may begin with it.
/// Bound: the prefixes of the agreement, one look-up of a route, one of a neighbour.
fn routed(
    state: &mut State,
    image: &CompartmentImage<'_>,
    index: u32,
    crossing: &Crossing,
    frame: &mut Frame<'_>,
    ip: &Ip,
    head: &[u8],
) -> Result<(Decision, Leaving), DropReason> {
    if guard!("routed-source") && !image.is_routed(crossing, true, &ip.source) {
        return Err(DropReason::RoutedPrefix);
    }
    if guard!("routed-destination") && !image.is_routed(crossing, false, &ip.destination) {
        return Err(DropReason::RoutedPrefix);
    }
    let route = image.route(crossing.tenant, ip.destination);
    let told = |reason, refusal| Ok((refuse(ip, reason, refusal), Leaving::Same));
    let subnet = route.and_then(|route| image.subnets().get(route.subnet as usize));
    frame.face = face(image, index, crossing, subnet, ip);
    let found = route.and_then(|route| match route.kind {
        ROUTE_SUBNET => owner(image, route.subnet, &ip.destination),
        ROUTE_VIA => Some(route.via),
        _ => None,
    });
    if ip.hop_limit <= 1 {
        return told(DropReason::HopLimit, Refusal::HopLimit);
    }
    let endpoint = found.and_then(|at| Some((at, image.endpoints().get(at as usize)?)));
    let Some((at, endpoint)) = endpoint else {
        return told(DropReason::NoNeighbour, Refusal::NoNeighbour);
    };
    let to = End::at(endpoint.slot);
    if crossing.begins() {
        let from = End::beyond(endpoint.slot, crossing.tag);
        match known(&mut state.tracking, image, frame, ip, head, from, Some(to)) {
            Some(Ok((_, leaving))) => return Ok((to_endpoint(image, at), leaving)),
            // A later fragment may follow a stranger's first.
            Some(Err(reason)) if ip.fragment != Fragment::Later => return Err(reason),
            _ => {}
        }
    }
    if guard!("routed-answers") && !crossing.is_begun_with() {
        return Err(DropReason::ServiceUnasked);
    }
    let passage = Passage {
        from: End::strangers(endpoint.slot, crossing.tag),
        to,
        egress: NONE,
        ingress: endpoint.ingress,
        translation: Translation::Routed { crossing: index },
    };
    let (_, leaving) = pass(state, image, frame, head, &passage)?;
    Ok((to_endpoint(image, at), leaving))
}

/// As whom the switch tells the other side of errors: the destination's gateway, where
/// that is in a prefix of the agreement, else the destination.
fn face(
    image: &CompartmentImage<'_>,
    index: u32,
    crossing: &Crossing,
    subnet: Option<&Subnet>,
    ip: &Ip,
) -> Face {
    let own = |address: &[u8; 16]| image.is_routed(crossing, false, address);
    let gateway4 = subnet.filter(|s| s.prefix4_len != 0).map(|s| s.gateway4);
    let gateway6 = subnet.filter(|s| s.prefix6_len != 0).map(|s| s.gateway6);
    Face {
        mac: HERE,
        crossing: Some(index),
        address4: (gateway4.filter(|a| own(&mapped(*a))))
            .or(unmapped(&ip.destination))
            .unwrap_or_default(),
        address6: gateway6.filter(own).unwrap_or(ip.destination),
        ..Face::nobody(crossing.tag)
    }
}

/// To the endpoint that asked, if it did.
fn answer(
    state: &mut State,
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
) -> Result<(Decision, Leaving), DropReason> {
    let route = image
        .route(crossing.tenant, ip.destination)
        .ok_or(DropReason::NoRoute)?;
    let index = match route.kind {
        ROUTE_SUBNET => owner(image, route.subnet, &ip.destination),
        ROUTE_VIA => Some(route.via),
        _ => None,
    };
    let index = index.ok_or(DropReason::NoNeighbour)?;
    let slot = image
        .endpoints()
        .get(index as usize)
        .ok_or(DropReason::NoNeighbour)?
        .slot;
    let (from, to) = (End::beyond(slot, crossing.tag), Some(End::at(slot)));
    let known = known(&mut state.tracking, image, frame, ip, head, from, to);
    match known {
        Some(Ok((_, leaving))) => Ok((to_endpoint(image, index), leaving)),
        Some(Err(reason)) => Err(reason),
        None if guard!("crossing-answers") => Err(DropReason::ServiceUnasked),
        None => Ok((to_endpoint(image, index), Leaving::Same)),
    }
}
