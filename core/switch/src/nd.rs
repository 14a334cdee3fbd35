//! Neighbour discovery: guarded, and answered from the tables (RFC 4861, RFC 4862).

use crate::admission::taken;
use crate::crossing::is_service;
use crate::decision::{Answer, Decision, bridge};
use crate::frame::{Sender, owner, owns};
use crate::segment::is_asked;
use guard::guard;
use image::CompartmentImage;
use image::compartment::{NONE, ROLE_ROUTER, SUBNET_RA, Subnet};
use telemetry::drops::DropReason;
use wire::address::{self, MacAddress};
use wire::nd::{HOP_LIMIT, Message, Options, Prefix, RouterAdvert};
use wire::parse::{Ip, Parsed};

/// Seconds that the gateway says it is a default router (RFC 4861 6.2.1:
/// three times the longest interval between advertisements).
pub(crate) const ROUTER_LIFETIME_S: u16 = 1800;
/// The longest interval between unsolicited advertisements, ns.
pub(crate) const INTERVAL: u64 = 600_000_000_000;
/// The interval between the first ones, ns (MAX_INITIAL_RTR_ADVERT_INTERVAL).
pub(crate) const INITIAL_INTERVAL: u64 = 16_000_000_000;

/// Judges a neighbour discovery message of an endpoint.
pub(crate) fn admit(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    parsed: &Parsed,
    ip: &Ip,
    head: &[u8],
) -> Result<(), DropReason> {
    if guard!("nd-hop-limit") && ip.hop_limit != HOP_LIMIT {
        return Err(DropReason::NdSpoof);
    }
    let message = match read(parsed, ip, head) {
        Some(message) => message,
        // A router's advertisement may be longer than what was copied; whether it
        // may send one was judged before.
        None if sender.endpoint.roles & ROLE_ROUTER != 0 && parsed.packet_end > head.len() => {
            return Ok(());
        }
        None => return Err(DropReason::Malformed),
    };
    let own = |mac: Option<MacAddress>| mac.is_none_or(|mac| mac.0 == sender.endpoint.mac);
    match message {
        Message::NeighbourSolicit { options, .. } | Message::RouterSolicit { options } => {
            let unspecified = address::is_unspecified(&ip.source);
            if guard!("nd-source-link")
                && (!own(options.source_link) || (unspecified && options.source_link.is_some()))
            {
                return Err(DropReason::NdSpoof);
            }
        }
        Message::NeighbourAdvert(advert) => {
            if guard!("nd-target") && !owns(image, sender, &advert.target) {
                return Err(DropReason::NdSpoof);
            }
            if guard!("nd-target-link") && !own(advert.target_link) {
                return Err(DropReason::NdSpoof);
            }
        }
        Message::RouterAdvert(_) | Message::Redirect { .. } => {}
    }
    Ok(())
}

/// The message, if all of it is in the head.
pub(crate) fn read(parsed: &Parsed, ip: &Ip, head: &[u8]) -> Option<Message> {
    Message::parse(head.get(ip.transport_offset..parsed.packet_end)?).ok()
}

/// Where an admitted message goes. Solicitations are never flooded.
pub(crate) fn decide(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    parsed: &Parsed,
    ip: &Ip,
    head: &[u8],
) -> Decision {
    let group = parsed.destination.is_group();
    match read(parsed, ip, head) {
        Some(Message::NeighbourSolicit { target, .. }) => solicited(image, sender, ip, target),
        Some(Message::RouterSolicit { .. })
            if sender.subnet.flags & SUBNET_RA != 0 && sender.subnet.prefix6_len != 0 =>
        {
            Decision::Answer(Answer::RouterAdvert)
        }
        _ if sender.endpoint.egress != NONE
            && sender.endpoint.roles & ROLE_ROUTER == 0
            && guard!("nd-under-rules") =>
        {
            // As with ARP: the switch has answered.
            Decision::Absorb
        }
        _ if group => Decision::Flood,
        _ if parsed.destination.0 == sender.subnet.gateway_mac => Decision::Absorb,
        _ => bridge(image, sender, parsed.destination),
    }
}

fn solicited(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    ip: &Ip,
    target: [u8; 16],
) -> Decision {
    let service = || is_service(image, sender.subnet.tenant, &target);
    if sender.is_gateway(&target)
        || (owner(image, sender.subnet_index, &target).is_none() && service())
    {
        let mac = MacAddress(sender.subnet.gateway_mac);
        return Decision::Answer(Answer::NeighbourAdvert {
            target,
            mac,
            router: true,
        });
    }
    match owner(image, sender.subnet_index, &target) {
        Some(index) if taken(image, sender, &target) => match image.endpoints().get(index as usize)
        {
            Some(endpoint) => Decision::Answer(Answer::NeighbourAdvert {
                target,
                mac: MacAddress(endpoint.mac),
                router: endpoint.roles & ROLE_ROUTER != 0,
            }),
            None => Decision::Drop(DropReason::NoNeighbour),
        },
        Some(_) => Decision::Absorb,
        None if is_asked(image, sender, &target) => Decision::Ask { target },
        None if address::is_unspecified(&ip.source) => Decision::Absorb,
        None => Decision::Drop(DropReason::NoNeighbour),
    }
}

/// What the gateway of a subnet advertises.
pub(crate) fn advertisement(subnet: &Subnet) -> RouterAdvert {
    let dns = (subnet.dns6 != [0; 16]).then_some((subnet.dns6, u32::from(ROUTER_LIFETIME_S)));
    RouterAdvert {
        hop_limit: 64,
        lifetime_s: ROUTER_LIFETIME_S,
        options: Options {
            source_link: Some(MacAddress(subnet.gateway_mac)),
            mtu: Some(u32::from(subnet.mtu)),
            prefix: Some(Prefix {
                prefix: subnet.prefix6,
                length: subnet.prefix6_len,
                on_link: true,
                autonomous: subnet.flags & image::compartment::SUBNET_SLAAC != 0,
                valid_s: 86_400,
                preferred_s: 14_400,
            }),
            dns,
            ..Options::default()
        },
        ..RouterAdvert::default()
    }
}
