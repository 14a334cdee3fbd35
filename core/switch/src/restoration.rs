//! Connections of a predecessor: each is judged as if its first packet came now, and only
//! what that packet could have begun goes on.
//!
//! A predecessor may have been taken over. Where a packet goes and who may send it is
//! decided anew for each packet in any case; what a connection adds is that rules are not
//! asked, that answers pass, and that addresses are translated. So the rules are asked
//! here, and the two sides must be those that a first packet's way would have given them.

use crate::frame::{is_attachment, owner, unusable_destination, unusable_source};
use crate::judgement::{again, opening, own, slot_of};
use crate::tracking::Tracking;
use crate::{Nanos, admission, outside};
use flow::{Memory, Restored, Side, Verdict};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{
    Attachment, CROSSING_ACCEPTOR, Crossing, Endpoint, NONE, ROUTE_OUTSIDE, ROUTE_SERVICE,
    ROUTE_SUBNET, ROUTE_VIA, Route,
};
use image::rules::Action;
use wire::address::{mapped, unmapped};
use wire::{Tuple, icmpv4, tcp, udp};

/// Places of the journal read before the first frame: some 2 ms.
const AT_ONCE: u32 = 2048;
/// And in each turn after that.
const STEP: u32 = 512;

/// What came of a predecessor's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restoration {
    /// Those that go on.
    pub restored: u64,
    /// Those that are no connection, or that nothing lets begin now.
    pub refused: u64,
    /// Places that are still to be read.
    pub unread: u32,
}

impl Tracking {
    /// Keeps a journal in this memory from now on; what a predecessor left in it goes on
    /// once there is an image.
    pub(crate) fn keep(&mut self, memory: Box<dyn Memory>) {
        self.connections.keep(memory);
    }

    /// Restores the first connections.
    pub(crate) fn restore_first(&mut self, image: &CompartmentImage<'_>, now: Nanos) {
        self.restore(image, now, AT_ONCE);
    }

    /// Restores some more, while there are some; whether there were.
    pub(crate) fn restore_more(&mut self, image: &CompartmentImage<'_>, now: Nanos) -> bool {
        let more = self.connections.unread() > 0;
        if more {
            self.restore(image, now, STEP);
        }
        more
    }

    /// Bound: `budget` places, each at the cost of a first packet.
    fn restore(&mut self, image: &CompartmentImage<'_>, now: Nanos, budget: u32) {
        let epoch = self.epoch;
        let resumed = self
            .connections
            .restore(now, budget, &mut |restored| begins(image, epoch, restored));
        self.restoration.restored += u64::from(resumed.restored);
        self.restoration.refused += u64::from(resumed.refused);
        self.restoration.unread = self.connections.unread();
        if resumed.restored > 0 {
            self.wake(now);
        }
    }
}

/// The verdict of what an alleged connection's first packet would begin now.
fn begins(image: &CompartmentImage<'_>, epoch: u32, restored: &Restored) -> Option<Verdict> {
    let (a, b) = (&restored.a, &restored.b);
    let way = way(image, a, b)?;
    if guard!("journal-way") && !leads(image, &way, a, b) {
        return None;
    }
    if guard!("journal-stateful") && !is_tracked(image, &way, a, b) {
        return None;
    }
    again(image, epoch, a, b)
}

/// The kinds of ways that connections have.
enum Way<'a> {
    /// Between two endpoints.
    Inside,
    /// From an endpoint to the uplink of this attachment, or back.
    Outside(u32, &'a Attachment),
    /// From an endpoint of this subnet to beyond it, or back.
    Segment(u32),
    /// From a user to a service, or from its users.
    Service(u32, &'a Crossing),
}

fn way<'a>(image: &CompartmentImage<'a>, a: &Side, b: &Side) -> Option<Way<'a>> {
    let zone = match (a.zone, b.zone) {
        (0, 0) => return Some(Way::Inside),
        (zone, 0) | (0, zone) => zone,
        _ => return None,
    };
    if let Some((index, crossing)) = image.crossing_by_tag(zone) {
        return Some(Way::Service(index, crossing));
    }
    let mut subnets = (0..).zip(image.subnets());
    if let Some((index, _)) = subnets.find(|(_, s)| s.segment == zone) {
        return Some(Way::Segment(index));
    }
    let mut attachments = (0..).zip(image.attachments());
    let (index, attachment) = attachments.find(|(_, a)| a.tag == zone)?;
    Some(Way::Outside(index, attachment))
}

/// Whether both sides are those that a packet on this way begins: in whose bounds, to
/// where it is sent, and translated as on this way packets are, or not at all.
fn leads(image: &CompartmentImage<'_>, way: &Way<'_>, a: &Side, b: &Side) -> bool {
    let (Some(from), Some(to)) = (endpoint(image, a), endpoint(image, b)) else {
        return false;
    };
    let (mine, theirs) = (own(from.slot), own(to.slot));
    let owners = match (a.zone, b.zone) {
        (0, 0) => mine != theirs && (a.owner, b.owner) == (mine, theirs),
        (0, _) => mine == theirs && (a.owner, b.owner) == (mine, mine),
        // Strangers.
        _ => mine == theirs && (a.owner, b.owner) == (mine + 1, mine),
    };
    let delivered = b.tuple.reversed();
    let arrives = arrives(image, way, a, from, to).unwrap_or(false);
    owners && arrives && delivered == translated(way, a, &delivered)
}

/// Whether a first packet would be taken from its sender and go that way.
fn arrives(
    image: &CompartmentImage<'_>,
    way: &Way<'_>,
    a: &Side,
    from: &Endpoint,
    to: &Endpoint,
) -> Option<bool> {
    let tenant = image.subnets().get(from.subnet as usize)?.tenant;
    if a.zone == 0 && admission::state(from).is_err() {
        return Some(false);
    }
    if matches!(way, Way::Inside) && from.subnet == to.subnet {
        // By its MAC.
        return Some(true);
    }
    if let Way::Segment(subnet) = way {
        // By its MAC; who may be beyond, its rules' judge asks.
        return Some(from.subnet == *subnet);
    }
    if unusable_source(&a.tuple.source) || unusable_destination(&a.tuple.destination) {
        return Some(false);
    }
    let to_index = image.endpoint_by_slot(to.slot);
    let route = |address| image.route(tenant, address);
    let inside = |route: &Route, address: &[u8; 16]| match route.kind {
        ROUTE_SUBNET => owner(image, route.subnet, address),
        ROUTE_VIA => Some(route.via),
        _ => None,
    };
    if let (Way::Service(_, _), true) = (way, a.zone != 0) {
        // Whatever address it was sent to: one endpoint serves.
        return Some(true);
    }
    let sent = route(a.tuple.destination)?;
    Some(match way {
        Way::Inside => inside(sent, &a.tuple.destination) == to_index,
        Way::Segment(_) => false,
        Way::Service(index, _) => sent.kind == ROUTE_SERVICE && sent.via == *index,
        Way::Outside(index, attachment) if a.zone == 0 => {
            let hop = image.next_hops().get(sent.via as usize)?;
            // What is for the switch itself does not leave it.
            let ours =
                guard!("journal-own-address") && is_attachment(attachment, &a.tuple.destination);
            sent.kind == ROUTE_OUTSIDE && hop.attachment == *index && !ours
        }
        Way::Outside(_, attachment) => {
            outside::source(image, attachment, &a.tuple.source, false).is_ok()
                && inside(sent, &a.tuple.destination) == to_index
        }
    })
}

fn endpoint<'a>(image: &CompartmentImage<'a>, side: &Side) -> Option<&'a Endpoint> {
    let index = image.endpoint_by_slot(slot_of(side.owner))?;
    image.endpoints().get(index as usize)
}

/// How the first packet is delivered on this way, where that is free as `delivered` says:
/// a port of NAT, a user's address and port at a service. That these are in their ranges
/// is judged with the rules.
fn translated(way: &Way<'_>, a: &Side, delivered: &Tuple) -> Tuple {
    let four = unmapped(&a.tuple.source).is_some();
    match way {
        Way::Outside(_, attachment) if a.zone == 0 && four && attachment.nat_block != 0 => {
            match a.tuple.protocol {
                tcp::PROTOCOL | udp::PROTOCOL | icmpv4::PROTOCOL => Tuple {
                    source: mapped(attachment.address4),
                    source_port: delivered.source_port,
                    ..a.tuple
                },
                _ => a.tuple,
            }
        }
        Way::Service(_, crossing) if a.zone != 0 && crossing.has_user(&delivered.source) => Tuple {
            source: delivered.source,
            source_port: delivered.source_port,
            destination: match four {
                true => mapped(crossing.address4),
                false => crossing.address6,
            },
            ..a.tuple
        },
        _ => a.tuple,
    }
}

/// Whether a packet on this way begins a connection at all: what only stateless rules let
/// pass does not, nor what nobody judges.
fn is_tracked(image: &CompartmentImage<'_>, way: &Way<'_>, a: &Side, b: &Side) -> bool {
    let translates = match way {
        Way::Inside | Way::Segment(_) => false,
        Way::Outside(_, attachment) => {
            attachment.nat_block != 0 && unmapped(&a.tuple.source).is_some()
        }
        Way::Service(_, crossing) => a.zone != 0 || crossing.role == CROSSING_ACCEPTOR,
    };
    let allows = |side: &Side, tuple: &Tuple, sends: bool| {
        let table = endpoint(image, side).map_or(NONE, |endpoint| match sends {
            true => endpoint.egress,
            false => endpoint.ingress,
        });
        side.zone == 0
            && table != NONE
            && image.judge(table, &opening(tuple)).action == Action::Allow
    };
    translates || allows(a, &a.tuple, true) || allows(b, &b.tuple.reversed(), false)
}
