//! The compartment as a machine of its own on an uplink: what comes from there,
//! and finding the MACs of next hops there.

use crate::act::{advertise_neighbour, conclude};
use crate::decision::{Decision, Egress, Hop, Refusal, decide_outside, refuse, to_endpoint};
use crate::frame::{Face, Frame, Leaving, is_attachment, unusable_source};
use crate::judgement::{End, Passage, known, pass, slot_of};
use crate::state::State;
use crate::translation::Translation;
use crate::{FABRIC, Ingress, Nanos, Output, admission, nd};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Attachment, NONE, ROUTE_SUBNET, ROUTE_VIA};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::address::{self, MacAddress, mapped, solicited_node, unmapped};
use wire::nd::{Message, NeighbourAdvert, NeighbourSolicit};
use wire::offload::{MIN_GSO_FLOOR, Offload};
use wire::parse::{Fragment, Ip, Network, Parsed, Version};
use wire::{arp, build, ethernet, ipv6, offload};

/// Between requests for one MAC, ns (RFC 4861 RETRANS_TIMER).
const RETRY: Nanos = 1_000_000_000;
/// Requests before giving up.
const TRIES: u8 = 3;
/// How long a MAC is believed without confirmation while it is used, ns.
const REACHABLE: Nanos = 30_000_000_000;
/// How long a next hop that did not answer is not asked again, ns.
const HOLD: Nanos = 3_000_000_000;

/// Handles a frame from the fabric.
pub(crate) fn receive(
    state: &mut State,
    image: &CompartmentImage<'_>,
    now: Nanos,
    ingress: Ingress<'_>,
    parsed: &Parsed,
    offload: Offload,
    out: &mut impl Output,
) {
    let Some(index) = state.attachment_of(ingress.tag) else {
        return out.dropped(FABRIC, DropReason::UnknownMac);
    };
    let Some(attachment) = image.attachments().get(index as usize) else {
        return out.dropped(FABRIC, DropReason::UnknownMac);
    };
    let frame = Frame {
        now,
        from: FABRIC,
        parsed,
        offload,
        total: ingress.total,
        face: Face::attachment(attachment, index),
        leaving: Leaving::Same,
    };
    let decided = match judge(state, image, attachment, &frame, ingress.head, out) {
        // An address that is ours and others share: whose it is, connections say.
        Ok(_) if frame.is_shared(attachment) => {
            translated(state, image, index, attachment, &frame, ingress.head)
        }
        Ok(decision) => inward(state, image, attachment.tag, &frame, ingress.head, decision),
        Err(reason) => Err(reason),
    };
    conclude(state, image, frame, decided, ingress.head, out);
}

fn judge(
    state: &mut State,
    image: &CompartmentImage<'_>,
    attachment: &Attachment,
    frame: &Frame<'_>,
    head: &[u8],
    out: &mut impl Output,
) -> Result<Decision, DropReason> {
    let parsed = frame.parsed;
    if parsed.source.is_group() {
        return Err(DropReason::GroupSource);
    }
    if parsed.source.0 == attachment.mac {
        return Err(DropReason::Hairpin);
    }
    if guard!("outside-vlan") && !parsed.tags.is_empty() {
        return Err(DropReason::VlanTag);
    }
    match &parsed.network {
        Network::Unknown => Err(DropReason::EtherType),
        Network::Arp(message) => Ok(on_arp(state, image, attachment, frame, message, out)),
        Network::Ip(ip) => {
            admission::headers(ip)?;
            // Any answer would have an address that the fabric does not let us say.
            if guard!("outside-family") && !speaks(attachment, &ip.destination) {
                return Err(DropReason::EtherType);
            }
            if ip.is_nd() {
                return on_nd(state, image, attachment, frame, ip, head, out);
            }
            if guard!("outside-mac") && parsed.destination.0 != attachment.mac {
                return Err(DropReason::UnknownMac);
            }
            let neighbour =
                address::is_link_local(&ip.source) && is_attachment(attachment, &ip.destination);
            source(image, attachment, &ip.source, neighbour)?;
            let inner = ip.version == Version::V4
                && attachment.nat_block != 0
                && !is_attachment(attachment, &ip.destination);
            if guard!("nat-hides") && inner {
                // Others stand for these addresses: nobody out there knows them.
                return Err(DropReason::Martian);
            }
            Ok(decide_outside(
                state,
                image,
                attachment.tenant,
                attachment,
                ip,
            ))
        }
    }
}

/// Whether a packet from outside, by a tag, may reach the endpoint that it goes to.
pub(crate) fn inward(
    state: &mut State,
    image: &CompartmentImage<'_>,
    tag: u16,
    frame: &Frame<'_>,
    head: &[u8],
    decision: Decision,
) -> Result<(Decision, Leaving), DropReason> {
    let index = match decision {
        Decision::Bridge(index)
        | Decision::Route(Hop {
            egress: Egress::Endpoint(index),
            ..
        }) => index,
        _ => return Ok((decision, Leaving::Same)),
    };
    let endpoint = image
        .endpoints()
        .get(index as usize)
        .ok_or(DropReason::NoNeighbour)?;
    // Answers to what the endpoint began, before strangers' own.
    let answers = End::beyond(endpoint.slot, tag);
    let to = Some(End::at(endpoint.slot));
    if let Some(ip) = frame.parsed.ip()
        && let Some(known) = known(&mut state.tracking, image, frame, ip, head, answers, to)
        // A later fragment may follow a stranger's first.
        && (known.is_ok() || ip.fragment != Fragment::Later)
    {
        return known.map(|(_, leaving)| (decision, leaving));
    }
    let from = End::strangers(endpoint.slot, tag);
    let passage = Passage {
        from,
        to: End::at(endpoint.slot),
        egress: NONE,
        ingress: endpoint.ingress,
        translation: Translation::None,
    };
    let (_, leaving) = pass(state, image, frame, head, &passage)?;
    Ok((decision, leaving))
}

/// A packet to an address that endpoints share: the port says whose it is, if there is
/// a connection; else it is the switch's own.
fn translated(
    state: &mut State,
    image: &CompartmentImage<'_>,
    index: u32,
    attachment: &Attachment,
    frame: &Frame<'_>,
    head: &[u8],
) -> Result<(Decision, Leaving), DropReason> {
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let own = || Ok((crate::decision::local_outside(ip), Leaving::Same));
    let shared = End {
        owner: FABRIC,
        zone: attachment.tag,
    };
    let port = match wire::inner::parse(head, frame.parsed) {
        Some(quote) => Some(quote.tuple.source_port),
        None => Tuple::of_connection(ip, head).map(|tuple| tuple.destination_port),
    };
    let known = if ip.fragment == Fragment::Later {
        known(&mut state.tracking, image, frame, ip, head, shared, None)
    } else {
        let Some(endpoint) = port.and_then(|port| image.endpoint_by_nat_port(index, port)) else {
            return own();
        };
        let owner = image
            .endpoints()
            .get(endpoint as usize)
            .ok_or(DropReason::NoNeighbour)?
            .slot;
        let from = End::beyond(owner, attachment.tag);
        known(&mut state.tracking, image, frame, ip, head, from, None)
    };
    let (found, leaving) = match known {
        Some(known) => known?,
        None => return own(),
    };
    let tracking = &mut state.tracking;
    tracking.remember_first(frame.now, shared, None, ip, found, leaving);
    let connection = found.and_then(|found| tracking.connections.connection(frame.now, found.id));
    let to = connection
        .and_then(|connection| image.endpoint_by_slot(slot_of(connection.a.owner)))
        .ok_or(DropReason::NoNeighbour)?;
    match ip.hop_limit {
        0 | 1 => Err(DropReason::HopLimit),
        _ => Ok((to_endpoint(image, to), leaving)),
    }
}

/// Whether an attachment has an address of this one's family.
fn speaks(attachment: &Attachment, address: &[u8; 16]) -> bool {
    match unmapped(address) {
        Some(_) => attachment.address4 != [0; 4],
        None => attachment.address6 != [0; 16],
    }
}

/// A source outside may not be an address inside, nor our own, nor none; `neighbour`: it
/// speaks to the attachment itself, from an address of the link.
pub(crate) fn source(
    image: &CompartmentImage<'_>,
    attachment: &Attachment,
    address: &[u8; 16],
    neighbour: bool,
) -> Result<(), DropReason> {
    if unusable_source(address) && !neighbour {
        return Err(DropReason::Martian);
    }
    let inside = image
        .route(attachment.tenant, *address)
        .is_some_and(|r| matches!(r.kind, ROUTE_SUBNET | ROUTE_VIA));
    if guard!("outside-source") && (inside || is_attachment(attachment, address)) {
        return Err(DropReason::Martian);
    }
    Ok(())
}

fn on_arp(
    state: &mut State,
    image: &CompartmentImage<'_>,
    attachment: &Attachment,
    frame: &Frame<'_>,
    message: &arp::Message,
    out: &mut impl Output,
) -> Decision {
    if message.sender_mac != frame.parsed.source {
        return Decision::Drop(DropReason::ArpSpoof);
    }
    learn(
        state,
        image,
        frame,
        &mapped(message.sender),
        message.sender_mac,
    );
    let asked = message.operation == arp::Operation::Request;
    if asked && attachment.address4 != [0; 4] && message.target == attachment.address4 {
        let mac = MacAddress(attachment.mac);
        return Decision::Answer(crate::Answer::Arp {
            message: *message,
            mac,
        });
    }
    let _ = out;
    Decision::Absorb
}

fn on_nd(
    state: &mut State,
    image: &CompartmentImage<'_>,
    attachment: &Attachment,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
    out: &mut impl Output,
) -> Result<Decision, DropReason> {
    if ip.hop_limit != wire::nd::HOP_LIMIT {
        return Err(DropReason::NdSpoof);
    }
    match nd::read(frame.parsed, ip, head) {
        Some(Message::NeighbourSolicit { target, options }) => {
            if let Some(mac) = options
                .source_link
                .filter(|mac| *mac == frame.parsed.source)
            {
                learn(state, image, frame, &ip.source, mac);
            }
            if !is_attachment(attachment, &target) {
                return Ok(Decision::Absorb);
            }
            let mut buffer = [0u8; 128];
            let mac = MacAddress(attachment.mac);
            if let Some(bytes) = advertise_neighbour(&mut buffer, frame, target, mac, true)
                .and_then(|n| buffer.get(..n))
            {
                out.count(FABRIC, Counter::Replies, 1);
                out.reply(FABRIC, attachment.tag, bytes);
            }
            Ok(Decision::Absorb)
        }
        Some(Message::NeighbourAdvert(NeighbourAdvert {
            target,
            target_link,
            ..
        })) => {
            let mac = target_link.unwrap_or(frame.parsed.source);
            if mac.is_station() {
                learn(state, image, frame, &target, mac);
            }
            Ok(Decision::Absorb)
        }
        // Routes outside are the spec's, never learned.
        Some(_) => Ok(Decision::Absorb),
        None => Err(DropReason::Malformed),
    }
}

/// Takes note of a next hop's MAC, where we asked for it. What nobody asked for
/// only makes us ask. Bound: the compartment's next hops.
fn learn(
    state: &mut State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    address: &[u8; 16],
    mac: MacAddress,
) {
    let mut changed = false;
    for (hop, neighbour) in image.next_hops().iter().zip(state.neighbours.iter_mut()) {
        if Some(hop.attachment) != frame.face.attachment
            || hop.address != *address
            || neighbour.since == Nanos::MAX
        {
            continue;
        }
        changed = true;
        if guard!("neighbour-solicited") && neighbour.tries == 0 {
            if neighbour.known && neighbour.mac != mac.0 {
                neighbour.tries = 1;
                neighbour.next = frame.now;
            }
            continue;
        }
        neighbour.mac = mac.0;
        neighbour.known = true;
        neighbour.tries = 0;
        neighbour.since = frame.now;
        neighbour.next = Nanos::MAX;
    }
    if changed {
        state.plan();
    }
}

/// Starts finding a next hop's MAC for a packet that needs it: the packet is
/// dropped as `Resolving`, or refused where the next hop did not answer lately.
pub(crate) fn resolve(
    state: &mut State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    next_hop: u32,
    out: &mut impl Output,
) -> Decision {
    let Some(neighbour) = state.neighbours.get_mut(next_hop as usize) else {
        return Decision::Drop(DropReason::NoRoute);
    };
    if neighbour.tries == 0 {
        let held = neighbour.next != Nanos::MAX && frame.now < neighbour.next;
        if held {
            return match frame.parsed.ip() {
                Some(ip) => refuse(ip, DropReason::NoNeighbour, Refusal::NoNeighbour),
                None => Decision::Drop(DropReason::NoNeighbour),
            };
        }
        neighbour.tries = 1;
        neighbour.next = frame.now.saturating_add(RETRY);
        state.deadline = state.deadline.min(frame.now.saturating_add(RETRY));
        ask(image, next_hop, out);
    }
    Decision::Drop(DropReason::Resolving)
}

/// Asks again for a MAC that is used and was not confirmed for a while.
pub(crate) fn refresh(
    state: &mut State,
    image: &CompartmentImage<'_>,
    now: Nanos,
    next_hop: u32,
    out: &mut impl Output,
) {
    let Some(neighbour) = state.neighbours.get_mut(next_hop as usize) else {
        return;
    };
    if neighbour.tries == 0 && now.saturating_sub(neighbour.since) > REACHABLE {
        neighbour.tries = 1;
        neighbour.next = now.saturating_add(RETRY);
        state.deadline = state.deadline.min(neighbour.next);
        ask(image, next_hop, out);
    }
}

/// Repeats requests that are due. Bound: the compartment's next hops.
pub(crate) fn tick(
    state: &mut State,
    image: &CompartmentImage<'_>,
    now: Nanos,
    out: &mut impl Output,
) {
    for (index, neighbour) in state.neighbours.iter_mut().enumerate() {
        if neighbour.tries == 0 || now < neighbour.next {
            continue;
        }
        if neighbour.tries < TRIES {
            neighbour.tries += 1;
            neighbour.next = now.saturating_add(RETRY);
            ask(image, u32::try_from(index).unwrap_or(u32::MAX), out);
        } else {
            neighbour.tries = 0;
            neighbour.known = false;
            neighbour.since = now;
            neighbour.next = now.saturating_add(HOLD);
        }
    }
}

fn ask(image: &CompartmentImage<'_>, next_hop: u32, out: &mut impl Output) {
    let Some(hop) = image.next_hops().get(next_hop as usize) else {
        return;
    };
    let Some(attachment) = image.attachments().get(hop.attachment as usize) else {
        return;
    };
    if !speaks(attachment, &hop.address) {
        return;
    }
    let face = Face::attachment(attachment, hop.attachment);
    let mut buffer = [0u8; 128];
    let length = match unmapped(&hop.address) {
        Some(target) => {
            let message = arp::Message {
                operation: arp::Operation::Request,
                sender_mac: face.mac,
                sender: face.address4,
                target_mac: MacAddress::ZERO,
                target,
            };
            let link = ethernet::Header::new(MacAddress::BROADCAST, face.mac, ethernet::ARP);
            build::arp(&mut buffer, &link, &message).ok()
        }
        None => {
            let group = solicited_node(&hop.address);
            let link =
                ethernet::Header::new(MacAddress::of_group6(group), face.mac, ethernet::IPV6);
            let source = if address::is_link_local(&hop.address) {
                address::link_local(face.mac)
            } else {
                face.address6
            };
            let header = ipv6::Header {
                hop_limit: wire::nd::HOP_LIMIT,
                ..ipv6::Header::new(source, group, 58)
            };
            let solicit = NeighbourSolicit {
                target: hop.address,
                source_link: Some(face.mac),
            };
            build::icmpv6(&mut buffer, &link, &header, |body| solicit.emit(body)).ok()
        }
    };
    if let Some(bytes) = length.and_then(|n| buffer.get(..n)) {
        out.reply(FABRIC, face.tag, bytes);
    }
}

/// Offload facts of a frame from the fabric: the host's own receive offload makes
/// segments of any real size.
pub(crate) fn check(ingress: &Ingress<'_>, parsed: &Parsed) -> Result<Offload, DropReason> {
    offload::check(ingress.offload, parsed, ingress.total, MIN_GSO_FLOOR)
        .map_err(|_| DropReason::BadOffload)
}
