//! Doing what was decided: rewriting, copying, answering.

use crate::decision::{self, Answer, Decision, Egress, Hop, Refusal};
use crate::finish::{Finish, needed};
use crate::frame::{Frame, Leaving, Sender};
use crate::judgement::{denied_to_many, passes_to_many};
use crate::state::{Limits, State};
use crate::{
    FABRIC, Outgoing, Output, Slot, admission, dhcp, errors, icmp, nd, outside, segment, trace,
};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, FEATURE_ALL, Subnet};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::{ALL_NODES, MacAddress, is_unspecified};
use wire::parse::Version;
use wire::segment::fragments;
use wire::translate::{translate, translate_error};
use wire::{build, ethernet, ipv4, ipv6, nd as message};

/// Does with a frame from beyond this switch what was decided, and lets it leave as was.
pub(crate) fn conclude(
    state: &mut State,
    image: &CompartmentImage<'_>,
    mut frame: Frame<'_>,
    decided: Result<(Decision, Leaving), DropReason>,
    head: &mut [u8],
    out: &mut impl Output,
) {
    trace::judged(out, &mut state.tracking, decided.as_ref().map(|d| &d.1));
    let decision = match decided {
        Ok((decision, leaving)) => {
            frame.leaving = leaving;
            decision
        }
        Err(reason) => Decision::Drop(reason),
    };
    trace::goes(out, image, &decision);
    act(state, image, None, &frame, decision, head, out);
}

/// Acts on a decision about the frame whose private head is `head`. `sender` is
/// absent for frames from outside.
pub(crate) fn act(
    state: &mut State,
    image: &CompartmentImage<'_>,
    sender: Option<&Sender<'_>>,
    frame: &Frame<'_>,
    decision: Decision,
    head: &mut [u8],
    out: &mut impl Output,
) {
    match decision {
        Decision::Drop(reason) => out.dropped(frame.from, reason),
        Decision::Absorb => {}
        Decision::Bridge(index) => match image.endpoints().get(index as usize) {
            Some(endpoint) => unicast(state, frame, &Way::to(state, endpoint), None, head, out),
            None => out.dropped(frame.from, DropReason::UnknownMac),
        },
        Decision::Flood => flood(state, image, sender, frame, head, out),
        Decision::Beyond(subnet) => match image.subnets().get(subnet as usize) {
            Some(subnet) => unicast(state, frame, &Way::beyond(subnet), None, head, out),
            None => out.dropped(frame.from, DropReason::UnknownMac),
        },
        Decision::Ask { target } => {
            let Some(sender) = sender else { return };
            let paid = allowed(state, frame, |config, limits, now| {
                limits.asks.take(now, config.ask_rate, config.ask_burst, 1)
            });
            if !paid && guard!("segment-asks") {
                return out.dropped(frame.from, DropReason::FloodRate);
            }
            segment::ask(image, sender, frame, &target, out);
        }
        Decision::Route(hop) => route(state, image, frame, &hop, head, out),
        Decision::Resolve { next_hop } => {
            let decision = outside::resolve(state, image, frame, next_hop, out);
            if let Decision::Refuse(reason, refusal) = decision {
                refuse(state, frame, reason, refusal, head, out);
            } else {
                out.dropped(frame.from, DropReason::Resolving);
            }
        }
        Decision::Answer(answer) => {
            if !allowed(state, frame, |config, limits, now| {
                limits
                    .replies
                    .take(now, config.reply_rate, config.reply_burst, 1)
            }) {
                return out.dropped(frame.from, DropReason::ReplyRate);
            }
            reply(state, sender, frame, answer, head, out);
        }
        Decision::Refuse(reason, refusal) => refuse(state, frame, reason, refusal, head, out),
    }
}

/// A way out and what it takes.
struct Way {
    slot: Slot,
    tag: u16,
    mtu: u16,
    features: u16,
    admitted: Result<(), DropReason>,
}

impl Way {
    fn to(state: &State, endpoint: &Endpoint) -> Way {
        Way {
            slot: endpoint.slot,
            tag: 0,
            mtu: endpoint.mtu,
            features: endpoint.features & state.taken(endpoint.slot),
            admitted: admission::state(endpoint),
        }
    }

    /// To whoever is beyond a subnet: the uplink is as wide as the subnet.
    fn beyond(subnet: &Subnet) -> Way {
        Way {
            slot: FABRIC,
            tag: subnet.segment,
            mtu: subnet.mtu,
            features: FEATURE_ALL,
            admitted: Ok(()),
        }
    }
}

fn route(
    state: &mut State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    hop: &Hop,
    head: &mut [u8],
    out: &mut impl Output,
) {
    let way = match hop.egress {
        Egress::Endpoint(index) => image
            .endpoints()
            .get(index as usize)
            .map(|endpoint| Way::to(state, endpoint)),
        Egress::Outside {
            attachment,
            next_hop,
        } => {
            outside::refresh(state, image, frame.now, next_hop, out);
            image
                .attachments()
                .get(attachment as usize)
                .map(|attachment| Way {
                    slot: FABRIC,
                    tag: attachment.tag,
                    mtu: attachment.mtu,
                    features: FEATURE_ALL,
                    admitted: Ok(()),
                })
        }
        Egress::Service { crossing } => {
            image
                .crossings()
                .get(crossing as usize)
                .map(|crossing| Way {
                    slot: FABRIC,
                    tag: crossing.tag,
                    mtu: crossing.mtu,
                    features: FEATURE_ALL,
                    admitted: Ok(()),
                })
        }
    };
    match way {
        Some(way) => unicast(state, frame, &way, Some(hop), head, out),
        None => out.dropped(frame.from, DropReason::NoRoute),
    }
}

/// Sends to one receiver; with `hop`, as a router.
fn unicast(
    state: &mut State,
    frame: &Frame<'_>,
    way: &Way,
    hop: Option<&Hop>,
    head: &mut [u8],
    out: &mut impl Output,
) {
    if let Err(reason) = way.admitted {
        return out.dropped(frame.from, reason);
    }
    let fragment = match fits(frame, way.mtu) {
        Fit::Whole => None,
        Fit::Fragments => Some(way.mtu),
        Fit::Never => return out.dropped(frame.from, DropReason::Oversize),
        Fit::TooBig => {
            return match frame
                .parsed
                .ip()
                .map(|ip| decision::refuse(ip, DropReason::TooBig, Refusal::TooBig(way.mtu)))
            {
                Some(Decision::Refuse(reason, refusal)) => {
                    refuse(state, frame, reason, refusal, head, out)
                }
                _ => out.dropped(frame.from, DropReason::TooBig),
            };
        }
    };
    if let Some(hop) = hop
        && rewrite(frame, hop, head).is_none()
    {
        return out.dropped(frame.from, DropReason::HopLimit);
    }
    let translated = match &frame.leaving {
        Leaving::Same => Some(()),
        Leaving::As(to) => translate(head, frame.parsed, &frame.offload, to),
        Leaving::Error { outer, quoted } => translate_error(head, frame.parsed, outer, quoted),
    };
    if translated.is_none() {
        return out.dropped(frame.from, DropReason::NoTranslation);
    }
    if let Some(mtu) = fragment {
        cut(state, frame, mtu);
    }
    emit(frame, way, fragment, head, out);
}

/// A packet leaves in fragments: those beyond the one that it came as, and their headers,
/// are its sender's as well.
#[cold]
fn cut(state: &mut State, frame: &Frame<'_>, mtu: u16) {
    let Some(ip) = frame.parsed.ip() else { return };
    let payload = ip.packet_len.saturating_sub(ip.header_len);
    let more = fragments(ip.header_len, payload, usize::from(mtu)) - 1;
    let headers = frame.parsed.network_offset + ip.header_len;
    if guard!("fragments-charged") {
        state.charge(frame.from, (more * headers) as u64, more as u64);
    }
}

/// The same where another worker cuts it.
pub(crate) fn pay_for_fragments(state: &mut State, frame: &Frame<'_>, mtu: u16) {
    if let Fit::Fragments = fits(frame, mtu) {
        cut(state, frame, mtu);
    }
}

/// How a frame relates to an MTU.
enum Fit {
    Whole,
    Fragments,
    TooBig,
    /// The frame is longer than its packet: no error would help.
    Never,
}

fn fits(frame: &Frame<'_>, mtu: u16) -> Fit {
    let mtu = usize::from(mtu);
    let carried = frame.total.saturating_sub(frame.parsed.network_offset);
    let Some(ip) = frame.parsed.ip() else {
        return if carried > mtu {
            Fit::Never
        } else {
            Fit::Whole
        };
    };
    if guard!("egress-mtu") && frame.offload.largest_packet(ip.packet_len) > mtu {
        let divisible =
            ip.version == Version::V4 && !ip.dont_fragment && frame.offload.gso().is_none();
        return if divisible {
            Fit::Fragments
        } else {
            Fit::TooBig
        };
    }
    if frame.offload.gso().is_none() && ip.packet_len <= mtu && carried > mtu {
        return Fit::Never;
    }
    Fit::Whole
}

fn rewrite(frame: &Frame<'_>, hop: &Hop, head: &mut [u8]) -> Option<()> {
    ethernet::readdress(head, hop.destination, hop.source)?;
    let packet = head.get_mut(frame.parsed.network_offset..)?;
    match frame.parsed.ip()?.version {
        Version::V4 => ipv4::decrement_ttl(packet),
        Version::V6 => ipv6::decrement_hop_limit(packet),
    }
    .map(|_| ())
}

fn emit(frame: &Frame<'_>, way: &Way, fragment: Option<u16>, head: &[u8], out: &mut impl Output) {
    let transport = frame.parsed.transport_offset().unwrap_or(0);
    let outgoing = Outgoing {
        slot: way.slot,
        tag: way.tag,
        offload: frame.offload.rebuild(transport),
        head,
        rest_from: head.len(),
        total: frame.total,
        segments: u32::try_from(frame.offload.segments()).unwrap_or(1),
        wire: frame.offload.wire_bytes(frame.total),
        came_by: frame.face.tag,
    };
    if fragment.is_some() || needed(&frame.offload, way.features) {
        out.count(way.slot, Counter::Finished, 1);
        out.finish(
            &outgoing,
            &Finish {
                parsed: *frame.parsed,
                offload: frame.offload,
                fragment,
            },
        );
    } else {
        out.send(&outgoing);
    }
}

/// Copies to every member of the sender's subnet but the sender, and beyond where it goes
/// on there, within the sender's budget; what comes from beyond goes to every member.
/// Bound: the subnet's members.
fn flood(
    state: &mut State,
    image: &CompartmentImage<'_>,
    sender: Option<&Sender<'_>>,
    frame: &Frame<'_>,
    head: &[u8],
    out: &mut impl Output,
) {
    let Some(index) = sender.map(|s| s.subnet_index).or(frame.face.segment) else {
        return;
    };
    if let Some(sender) = sender
        && !passes_to_many(image, sender.endpoint.egress, frame)
    {
        let denied = denied_to_many(image, sender.endpoint.egress, frame);
        if let Some(denied) = &denied {
            trace::denied(out, denied);
            out.decided(denied);
        }
        return out.dropped(frame.from, DropReason::EgressRule);
    }
    let beyond = sender
        .filter(|sender| sender.subnet.segment != 0)
        .filter(|sender| segment::may_leave(image, sender, frame).is_ok())
        .map(|sender| Way::beyond(sender.subnet));
    let members = image.members_of(index);
    let copies = members.len() as u64 + u64::from(beyond.is_some());
    let paid = allowed(state, frame, |config, limits, now| {
        limits
            .floods
            .take(now, config.flood_rate, config.flood_burst, copies)
    });
    if guard!("flood-rate") && !paid {
        return out.dropped(frame.from, DropReason::FloodRate);
    }
    let mut narrowest = None;
    let mut copy = |way: &Way| match fits(frame, way.mtu) {
        Fit::Whole => {
            out.count(way.slot, Counter::TxFlood, 1);
            emit(frame, way, None, head, out);
        }
        Fit::Fragments => {
            out.count(way.slot, Counter::TxFlood, 1);
            narrowest = Some(narrowest.map_or(way.mtu, |mtu: u16| mtu.min(way.mtu)));
            emit(frame, way, Some(way.mtu), head, out);
        }
        Fit::TooBig | Fit::Never => out.dropped(frame.from, DropReason::TooBig),
    };
    let from = sender.map(|s| s.index);
    for member in members.iter().filter(|m| Some(m.endpoint) != from) {
        let Some(endpoint) = image.endpoints().get(member.endpoint as usize) else {
            continue;
        };
        let way = Way::to(state, endpoint);
        if way.admitted.is_err() || !passes_to_many(image, endpoint.ingress, frame) {
            continue;
        }
        copy(&way);
    }
    if let Some(way) = &beyond {
        copy(way);
    }
    // What goes to many was sent once: as it is to the one that takes most packets.
    if let Some(mtu) = narrowest {
        cut(state, frame, mtu);
    }
}

fn refuse(
    state: &mut State,
    frame: &Frame<'_>,
    reason: DropReason,
    refusal: Refusal,
    head: &[u8],
    out: &mut impl Output,
) {
    out.dropped(frame.from, reason);
    // An error is about what one station sent to us alone.
    if frame.parsed.destination.is_group() && !matches!(refusal, Refusal::TooBig(_)) {
        return;
    }
    let Some(ip) = frame.parsed.ip() else { return };
    let paid = allowed(state, frame, |config, limits, now| {
        limits
            .errors
            .take(now, config.error_rate, config.error_burst, 1)
    });
    if guard!("error-rate") && !paid {
        return out.dropped(frame.from, DropReason::ReplyRate);
    }
    state.ident = state.ident.wrapping_add(1);
    errors::send(frame, ip, refusal, head, state.ident, out);
}

/// Asks the bucket of whoever sent the frame.
fn allowed(
    state: &mut State,
    frame: &Frame<'_>,
    take: impl FnOnce(&crate::Config, &mut Limits, u64) -> bool,
) -> bool {
    let face = &frame.face;
    let limits = match (face.attachment, face.crossing) {
        _ if face.segment.is_some() => face
            .segment
            .and_then(|index| state.subnets.get_mut(index as usize))
            .map(|s| &mut s.limits),
        (Some(index), _) => state
            .attachments
            .get_mut(index as usize)
            .map(|a| &mut a.limits),
        (None, Some(index)) => state
            .crossings
            .get_mut(index as usize)
            .map(|c| &mut c.limits),
        (None, None) => state
            .ports
            .get_mut(frame.from as usize)
            .map(|p| &mut p.limits),
    };
    limits.is_some_and(|limits| take(&state.config, limits, frame.now))
}

fn reply(
    state: &mut State,
    sender: Option<&Sender<'_>>,
    frame: &Frame<'_>,
    answer: Answer,
    head: &mut [u8],
    out: &mut impl Output,
) {
    match answer {
        Answer::Echo => echo(frame, head, out),
        Answer::Dhcp => {
            let Some(sender) = sender else { return };
            state.ident = state.ident.wrapping_add(1);
            if let Err(reason) = dhcp::answer(sender, frame, head, state.ident, out) {
                out.dropped(frame.from, reason);
            }
        }
        Answer::RouterAdvert => {
            let Some(sender) = sender else { return };
            let Some(ip) = frame.parsed.ip() else { return };
            let to = if is_unspecified(&ip.source) {
                ALL_NODES
            } else {
                ip.source
            };
            let mac = if is_unspecified(&ip.source) {
                MacAddress::of_group6(ALL_NODES)
            } else {
                frame.parsed.source
            };
            let mut buffer = [0u8; 256];
            if let Some(length) = advertise(&mut buffer, sender.subnet, mac, to) {
                send(frame, buffer.get(..length), out);
            }
        }
        Answer::Arp { message, mac } => {
            let link = ethernet::Header::new(frame.parsed.source, mac, ethernet::ARP);
            let mut buffer = [0u8; 64];
            let length = build::arp(&mut buffer, &link, &message.reply(mac)).ok();
            send(frame, length.and_then(|n| buffer.get(..n)), out);
        }
        Answer::NeighbourAdvert {
            target,
            mac,
            router,
        } => {
            let mut buffer = [0u8; 128];
            let length = advertise_neighbour(&mut buffer, frame, target, mac, router);
            send(frame, length.and_then(|n| buffer.get(..n)), out);
        }
    }
}

fn send(frame: &Frame<'_>, bytes: Option<&[u8]>, out: &mut impl Output) {
    if let Some(bytes) = bytes {
        out.count(frame.from, Counter::Replies, 1);
        out.reply(frame.face.slot, frame.face.tag, bytes);
    }
}

fn echo(frame: &Frame<'_>, head: &mut [u8], out: &mut impl Output) {
    let Some(ip) = frame.parsed.ip() else { return };
    if frame.offload.is_partial() || icmp::echo(frame, ip, head).is_none() {
        return out.dropped(frame.from, DropReason::Malformed);
    }
    out.count(frame.from, Counter::Replies, 1);
    out.send(&Outgoing {
        slot: frame.face.slot,
        tag: frame.face.tag,
        offload: Default::default(),
        head,
        rest_from: head.len(),
        total: frame.total,
        segments: 1,
        wire: frame.total,
        came_by: 0,
    });
}

/// Answers a neighbour solicitation: to its sender, or to all nodes where the
/// sender has no address yet (RFC 4861 7.2.4).
pub(crate) fn advertise_neighbour(
    buffer: &mut [u8],
    frame: &Frame<'_>,
    target: [u8; 16],
    mac: MacAddress,
    router: bool,
) -> Option<usize> {
    let ip = frame.parsed.ip()?;
    let nameless = is_unspecified(&ip.source);
    let to = if nameless { ALL_NODES } else { ip.source };
    let to_mac = if nameless {
        MacAddress::of_group6(ALL_NODES)
    } else {
        frame.parsed.source
    };
    let link = ethernet::Header::new(to_mac, mac, ethernet::IPV6);
    let header = ipv6::Header {
        hop_limit: message::HOP_LIMIT,
        ..ipv6::Header::new(target, to, 58)
    };
    let advert = message::NeighbourAdvert {
        router,
        solicited: !nameless,
        overrides: true,
        target,
        target_link: Some(mac),
    };
    build::icmpv6(buffer, &link, &header, |body| advert.emit(body)).ok()
}

/// Writes a router advertisement of a subnet's gateway.
pub(crate) fn advertise(
    buffer: &mut [u8],
    subnet: &image::compartment::Subnet,
    mac: MacAddress,
    to: [u8; 16],
) -> Option<usize> {
    let gateway = MacAddress(subnet.gateway_mac);
    let link = ethernet::Header::new(mac, gateway, ethernet::IPV6);
    let source = wire::address::link_local(gateway);
    let header = ipv6::Header {
        hop_limit: message::HOP_LIMIT,
        ..ipv6::Header::new(source, to, 58)
    };
    let advert = nd::advertisement(subnet);
    build::icmpv6(buffer, &link, &header, |body| advert.emit(body)).ok()
}
