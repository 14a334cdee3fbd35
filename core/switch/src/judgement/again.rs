//! Connections that are there, judged anew: after an edit of the rules, after a restart.

use super::{opening, slot_of};
use crate::frame::{Sender, owns};
use crate::{crossing, segment};
use flow::{Side, Verdict};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{CROSSING_ACCEPTOR, CROSSING_OFFERER, NONE};
use image::rules::Action;
use wire::Tuple;

/// Judges a connection as if its first packet came now.
pub(crate) fn again(
    image: &CompartmentImage<'_>,
    epoch: u32,
    a: &Side,
    b: &Side,
) -> Option<Verdict> {
    let sent = end(image, a, &a.tuple, true)?;
    let got = end(image, b, &b.tuple.reversed(), false)?;
    if let Some((_, crossing)) = image.crossing_by_tag(a.zone)
        && !crossing.is_routed()
        && !crossing.has_user(&b.tuple.destination)
    {
        return None;
    }
    Some(Verdict {
        epoch,
        rules: [sent, got],
    })
}

/// One side of a connection, `tuple` being its first packet there: the rule that lets it
/// pass (NONE = there are no rules), if it does.
fn end(image: &CompartmentImage<'_>, side: &Side, tuple: &Tuple, sends: bool) -> Option<u32> {
    let index = image.endpoint_by_slot(slot_of(side.owner))?;
    let sender = Sender::of(image, index)?;
    if side.zone != 0 {
        return beyond(image, index, &sender, side, tuple, sends).then_some(NONE);
    }
    let (own, table) = match sends {
        true => (&tuple.source, sender.endpoint.egress),
        false => (&tuple.destination, sender.endpoint.ingress),
    };
    if !owns(image, &sender, own) {
        return None;
    }
    if table == NONE {
        return Some(NONE);
    }
    let verdict = image.judge(table, &opening(tuple));
    let passes = verdict.action != Action::Deny || !guard!("again-rules");
    passes.then_some(verdict.rule)
}

/// Whether a side outside is still what it was: an uplink, or a live agreement.
fn beyond(
    image: &CompartmentImage<'_>,
    index: u32,
    sender: &Sender<'_>,
    side: &Side,
    tuple: &Tuple,
    sends: bool,
) -> bool {
    let tenant = sender.subnet.tenant;
    if let Some((at, crossing)) = image.crossing_by_tag(side.zone) {
        if crossing.is_routed() {
            let (begins, own, theirs) = match sends {
                true => (crossing.is_begun_with(), &tuple.destination, &tuple.source),
                false => (crossing.begins(), &tuple.source, &tuple.destination),
            };
            let part =
                image.is_routed(crossing, false, own) && image.is_routed(crossing, true, theirs);
            let offered = begins && crossing::offers(image, at, &opening(tuple));
            return crossing.tenant == tenant && part && (offered || !guard!("again-routed"));
        }
        let ports = image.serves(crossing, tuple.protocol, tuple.destination_port);
        return crossing.tenant == tenant
            && match (crossing.role, sends) {
                // What comes is for the service; whom it appears as, the other side says.
                (CROSSING_OFFERER, true) => crossing.endpoint == index && ports,
                // What goes is to the address that stands for it.
                (CROSSING_ACCEPTOR, false) => {
                    ports && crossing::stands_for(crossing, &tuple.destination)
                }
                _ => false,
            };
    }
    if image.subnets().iter().any(|s| s.segment == side.zone) {
        let (own, theirs) = match sends {
            true => (&tuple.destination, &tuple.source),
            false => (&tuple.source, &tuple.destination),
        };
        let there = segment::is_beyond(image, sender.subnet_index, theirs);
        return sender.subnet.segment == side.zone
            && owns(image, sender, own)
            && (there || !guard!("again-segment"));
    }
    let mut attachments = (0..).zip(image.attachments());
    let Some((at, attachment)) = attachments.find(|(_, a)| a.tag == side.zone) else {
        return false;
    };
    if attachment.tenant != tenant {
        return false;
    }
    let inner = if sends {
        &tuple.destination
    } else {
        &tuple.source
    };
    if attachment.nat_block == 0 || wire::address::unmapped(inner).is_none() {
        return *inner != wire::address::mapped(attachment.address4);
    }
    // What leaves here is translated, to ports that must still be the endpoint's own.
    let shared = *inner == wire::address::mapped(attachment.address4);
    let own = image.nat_ports(at, index);
    let owns = own.is_some_and(|ports| ports.contains(&tuple.source_port));
    !sends && shared && (owns || !guard!("again-nat"))
}
