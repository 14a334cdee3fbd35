//! Connections that a proxy has let in: from whom they can have come, and whether they may go on, as the endpoint's switch
//! decides of their packets.

use super::{
    Asked, NO_IMAGE, Refused, Ruling, TCP, across, admitted, endpoint, located, ruled, tenant,
};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, ROUTE_OUTSIDE, ROUTE_SUBNET, ROUTE_VIA};
use image::rules::Action;
use rustix::io::Errno;
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::address::is_link_local;

/// A connection that a proxy has let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetIn {
    /// The slot of who began it, where that is here.
    pub slot: Option<u32>,
    /// The tag of the agreement that it came by; 0: none.
    pub tag: u16,
    /// As of [`Decided`](super::Decided).
    pub rules: [Option<Ruling>; 2],
}

/// Whether one may be of somebody who has packets, at `own` in this slot: its switch judges them, and this is what it
/// says. One that answers nobody's question is not told from one that does.
///
/// # Errors
/// EACCES: it may not any more, or nobody can have begun it.
pub fn lets_in(
    image: &CompartmentImage<'_>,
    slot: u32,
    own: circuit::Endpoint,
    remote: circuit::Endpoint,
) -> Result<LetIn, Refused> {
    let asked = |slot, from: circuit::Endpoint, to: circuit::Endpoint| Asked {
        slot,
        from: from.ip,
        from_port: from.port,
        to: to.ip,
        to_port: to.port,
        protocol: TCP,
    };
    let tuple = Tuple {
        source: remote.ip,
        destination: own.ip,
        source_port: remote.port,
        destination_port: own.port,
        protocol: TCP,
    };
    let to = endpoint(image, slot).ok_or(NO_IMAGE)?;
    admitted(to)?;
    let (from, tag) = match located(image, &asked(slot, own, remote)) {
        Ok(from) => (Some(from), 0),
        Err(_) => (None, comes_from(image, &asked(slot, remote, own), to)?),
    };
    let egress = match from {
        Some(from) => {
            admitted(from)?;
            passes(image, from.egress, &tuple, DropReason::EgressRule)?
        }
        None => None,
    };
    let ingress = passes(image, to.ingress, &tuple, DropReason::IngressRule)?;
    Ok(LetIn {
        slot: from.map(|it| it.slot),
        tag,
        rules: [egress, ingress],
    })
}

/// By which agreement something comes to an endpoint from beyond its tenant's own, or 0.
fn comes_from(image: &CompartmentImage<'_>, asked: &Asked, to: &Endpoint) -> Result<u16, Refused> {
    if let Some(tag) = across::brings(image, asked) {
        return Ok(tag);
    }
    let segment = |subnet: u32| {
        image
            .subnets()
            .get(subnet as usize)
            .map_or(0, |it| it.segment)
    };
    let tenant = tenant(image, asked.slot).ok_or(NO_IMAGE)?;
    let may = is_link_local(&asked.from)
        || segment(to.subnet) != 0
        || image
            .route(tenant, asked.from)
            .is_some_and(|route| match route.kind {
                ROUTE_SUBNET => segment(route.subnet) != 0,
                kind => kind == ROUTE_VIA || kind == ROUTE_OUTSIDE,
            });
    match may || !guard!("circuits-let-in-by-whom") {
        true => Ok(0),
        false => Err(Refused::new(Errno::ACCESS, DropReason::ServiceUnasked)),
    }
}

/// As the switch judges packets: what a stateless rule allows passes.
fn passes(
    image: &CompartmentImage<'_>,
    table: u32,
    tuple: &Tuple,
    reason: DropReason,
) -> Result<Option<Ruling>, Refused> {
    match ruled(image, table, tuple) {
        Some((Action::Deny, by)) => Err(Refused {
            by: Some(by),
            ..Refused::new(Errno::ACCESS, reason)
        }),
        ruled => Ok(ruled.map(|(_, by)| by)),
    }
}
