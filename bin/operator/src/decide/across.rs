//! What leaves for another tenant, by an agreement, and what comes from there: decided on each
//! side by its own image, as its switch does for the first packet of a connection.
//!
//! By which agreement something comes is known from the link that it comes by, never from what is
//! said there.

use super::{Asked, At, NOBODY, Refused, Ruling, TCP, admitted, endpoint, judge, tenant};
use circuit::{Socket, State};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Crossing, ROUTE_SERVICE, ROUTE_SUBNET};
use rustix::io::Errno;
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::address::is_link_local;

/// By no agreement of now.
const UNASKED: Refused = Refused::new(Errno::ACCESS, DropReason::ServiceUnasked);

/// By which agreement a connection leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Its tag on this side.
    pub tag: u16,
    /// The sender's rule; none where nobody asks.
    pub rule: Option<Ruling>,
}

/// Where a connection that comes by an agreement goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrives {
    /// The slot of the endpoint.
    pub slot: u32,
    /// Its address.
    pub local: [u8; 16],
    /// As whom it sees who begins it.
    pub client: [u8; 16],
    /// The receiver's rule; none where nobody asks.
    pub rule: Option<Ruling>,
}

/// The agreement by which a connection of an endpoint leaves. `None`: none leads there.
///
/// # Errors
/// EACCES: it may not.
pub fn leaves(image: &CompartmentImage<'_>, asked: &Asked) -> Option<Result<Leaves, Refused>> {
    let from = endpoint(image, asked.slot)?;
    let tenant = tenant(image, asked.slot)?;
    let own = image.endpoint_by_address(from.subnet, asked.from);
    if own != image.endpoint_by_slot(asked.slot) && guard!("across-source") {
        return None;
    }
    let is_near = image.endpoint_by_address(from.subnet, asked.to).is_some();
    if is_near || is_link_local(&asked.from) {
        return None;
    }
    let route = image
        .route(tenant, asked.to)
        .filter(|route| route.kind == ROUTE_SERVICE)?;
    let crossing = image.crossings().get(route.via as usize)?;
    if crossing.tenant != tenant {
        return None;
    }
    Some(admitted(from).and_then(|()| {
        let tuple = tuple(asked.from, asked);
        if !(crossing.begins() && offers(image, crossing, &tuple)) && guard!("across-ports-here") {
            return Err(Refused::new(Errno::ACCESS, DropReason::ServicePort));
        }
        let takes_part = !crossing.is_routed()
            || image.is_routed(crossing, false, &asked.from)
                && image.is_routed(crossing, true, &asked.to);
        if !takes_part && guard!("across-prefix-here") {
            return Err(Refused::new(Errno::ACCESS, DropReason::RoutedPrefix));
        }
        Ok(Leaves {
            tag: crossing.tag,
            rule: judge(image, from.egress, &tuple, DropReason::EgressRule)?,
        })
    }))
}

/// Where a connection goes that comes by the agreement of this tag; its slot is not looked at.
/// `seed`: what picks the address of the range that its user has here.
///
/// # Errors
/// EHOSTUNREACH: there is no such agreement, or nobody there. EACCES: it may not.
pub fn arrives(
    image: &CompartmentImage<'_>,
    tag: u16,
    asked: &Asked,
    seed: u64,
) -> Result<Arrives, Refused> {
    let (_, crossing) = image.crossing_by_tag(tag).ok_or(NOBODY)?;
    if !crossing.is_begun_with() && guard!("across-begun") {
        return Err(UNASKED);
    }
    let (index, local, client) = match crossing.is_routed() {
        true => routed(image, crossing, asked)?,
        false => {
            let ends = crossing.as_user(&asked.from, seed);
            let [client, local] = ends.ok_or(NOBODY)?;
            (crossing.endpoint, local, client)
        }
    };
    delivered(image, crossing, (index, local, client), asked)
}

/// Whether a connection across an agreement may be, by its end here: the rule of this side that
/// lets it be, none where nobody asks.
///
/// # Errors
/// EACCES, EHOSTUNREACH: it may not be any more.
pub fn stays(image: &CompartmentImage<'_>, socket: &Socket) -> Result<Option<Ruling>, Refused> {
    let remote = socket.remote().ok_or(NOBODY)?;
    let began = socket.is_initiator() || socket.state() == State::Connecting;
    let (from, to) = match began {
        true => (socket.local(), remote),
        false => (remote, socket.local()),
    };
    let asked = Asked {
        slot: socket.endpoint(),
        from: from.ip,
        from_port: from.port,
        to: to.ip,
        to_port: to.port,
        protocol: TCP,
    };
    match began {
        true => {
            let leaves = leaves(image, &asked).ok_or(NOBODY)??;
            let same = leaves.tag == socket.crossing();
            same.then_some(leaves.rule).ok_or(UNASKED)
        }
        false => stays_here(image, socket.crossing(), &asked),
    }
}

/// The same of one that came by an agreement and was let in then, by its ends as its program sees
/// them.
///
/// # Errors
/// As for [`arrives`].
pub fn stays_here(
    image: &CompartmentImage<'_>,
    tag: u16,
    asked: &Asked,
) -> Result<Option<Ruling>, Refused> {
    let (_, crossing) = image.crossing_by_tag(tag).ok_or(NOBODY)?;
    let (index, local) = reached(image, crossing, asked)?;
    let arrives = delivered(image, crossing, (index, local, asked.from), asked)?;
    match (arrives.slot, local) == (asked.slot, asked.to) && crossing.is_begun_with() {
        true => Ok(arrives.rule),
        false => Err(UNASKED),
    }
}

/// Index of the endpoint that this is at, by its ends as its program sees them, and its address.
fn reached(
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    asked: &Asked,
) -> Result<(u32, [u8; 16]), Refused> {
    if crossing.is_routed() {
        return routed(image, crossing, asked).map(|(index, local, _)| (index, local));
    }
    // Of another range than now it may be another user's by now.
    if !crossing.has_user(&asked.from) && guard!("across-pool") {
        return Err(UNASKED);
    }
    let local = crossing.address_like(&asked.from);
    Ok((crossing.endpoint, local.ok_or(NOBODY)?))
}

/// By which agreement, if by any, this can have come to the endpoint in its slot as packets: whether a rule of the
/// receiver's lets it is not asked.
pub fn brings(image: &CompartmentImage<'_>, asked: &Asked) -> Option<u16> {
    let own = image.endpoint_by_slot(asked.slot)?;
    let brings = |it: &&Crossing| {
        let at = reached(image, it, asked);
        let is_it = at.is_ok_and(|at| at == (own, asked.to));
        is_it && it.is_begun_with() && offers(image, it, &tuple(asked.from, asked))
    };
    image.crossings().iter().find(brings).map(|it| it.tag)
}

/// What comes to an endpoint, if its tenant's tables let it.
fn delivered(
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    (index, local, client): Found,
    asked: &Asked,
) -> Result<Arrives, Refused> {
    let to = image.endpoints().get(index as usize);
    let to = to.ok_or(NOBODY)?;
    admitted(to)?;
    let delivered = Tuple {
        destination: local,
        ..tuple(client, asked)
    };
    let slot = to.slot;
    let at = At { slot, client };
    let told = |refused: Refused| Refused {
        at: Some(at),
        ..refused
    };
    if !offers(image, crossing, &delivered) && guard!("across-ports") {
        let refused = Refused::new(Errno::ACCESS, DropReason::ServicePort);
        return Err(told(refused));
    }
    let rule = judge(image, to.ingress, &delivered, DropReason::IngressRule);
    Ok(Arrives {
        slot,
        local,
        client,
        rule: rule.map_err(told)?,
    })
}

/// Whether programs of both sides of an agreement may have memory of a circuit in common.
pub fn shares(image: &CompartmentImage<'_>, tag: u16) -> bool {
    let crossing = image.crossing_by_tag(tag);
    crossing.is_some_and(|(_, crossing)| crossing.has_rings()) || !guard!("across-rings")
}

/// Index of the endpoint, its address, and that of who begins it.
type Found = (u32, [u8; 16], [u8; 16]);

/// Between prefixes of both tenants addresses stay what they are.
fn routed(
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    asked: &Asked,
) -> Result<Found, Refused> {
    let takes_part =
        image.is_routed(crossing, true, &asked.from) && image.is_routed(crossing, false, &asked.to);
    if !takes_part && guard!("across-prefix") {
        return Err(Refused::new(Errno::ACCESS, DropReason::RoutedPrefix));
    }
    let route = image.route(crossing.tenant, asked.to);
    let subnet = route.filter(|route| route.kind == ROUTE_SUBNET);
    let subnet = subnet.ok_or(NOBODY)?.subnet;
    let index = image.endpoint_by_address(subnet, asked.to);
    Ok((index.ok_or(NOBODY)?, asked.to, asked.from))
}

/// Whether a crossing is for this.
fn offers(image: &CompartmentImage<'_>, crossing: &Crossing, tuple: &Tuple) -> bool {
    let all = crossing.is_routed() && crossing.ports_count == 0;
    all || image.serves(crossing, tuple.protocol, tuple.destination_port)
}

fn tuple(source: [u8; 16], asked: &Asked) -> Tuple {
    Tuple {
        source,
        destination: asked.to,
        source_port: asked.from_port,
        destination_port: asked.to_port,
        protocol: asked.protocol,
    }
}
