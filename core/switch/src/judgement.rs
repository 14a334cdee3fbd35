//! Whether a packet may pass: by the rules of both ends, or by the connection that
//! they let begin; and how it leaves where its addresses are translated.

mod again;

pub(crate) use again::again;

use crate::crossing;
use crate::frame::{Frame, Leaving};
use crate::state::State;
use crate::tracking::{Follows, Tracking};
use crate::translation::Translation;
use crate::{Decided, Nanos, Slot};
use flow::{Found, Judgement, Refused, Segment, Side, Verdict};
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use image::rules::Action;
use telemetry::drops::DropReason;
use telemetry::rules::Outcome;
use wire::parse::{Fragment, Ip};
use wire::{Tuple, inner};

/// One end of a passage: in whose bounds connections are found there, and by which tag
/// its packets come (0 = inside).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) owner: u32,
    pub(crate) zone: u16,
}

impl End {
    /// An endpoint.
    pub(crate) const fn at(slot: Slot) -> End {
        End {
            owner: own(slot),
            zone: 0,
        }
    }

    /// Where an endpoint's own packets leave by a tag.
    pub(crate) const fn beyond(slot: Slot, zone: u16) -> End {
        End {
            owner: own(slot),
            zone,
        }
    }

    /// Whoever comes to an endpoint by a tag: bounded apart from what it begins itself.
    pub(crate) const fn strangers(slot: Slot, zone: u16) -> End {
        End {
            owner: own(slot) + 1,
            zone,
        }
    }

    const fn slot(self) -> Slot {
        slot_of(self.owner)
    }
}

/// In whose bounds an endpoint's own connections are.
pub(crate) const fn own(slot: Slot) -> u32 {
    slot.saturating_mul(2)
}

/// The slot of the endpoint that an owner of connections stands for: two each, one for
/// what it begins and one for what strangers begin with it.
pub const fn slot_of(owner: u32) -> Slot {
    owner / 2
}

/// From where to where a packet wants to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) from: End,
    pub(crate) to: End,
    /// The sender's table, or NONE.
    pub(crate) egress: u32,
    /// The receiver's.
    pub(crate) ingress: u32,
    /// What happens to the addresses of a connection that begins so.
    pub(crate) translation: Translation,
}

impl Passage {
    /// Nobody asks: it passes, and nothing is remembered of it.
    fn is_free(&self) -> bool {
        self.egress == NONE && self.ingress == NONE && self.translation == Translation::None
    }
}

/// By what a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Nobody asks.
    Nobody,
    /// A connection that was there.
    Known(Found),
    /// Something else: the next one like it may not.
    Anew,
}

/// Judges a packet that knows its way; what it does to state is about this packet's
/// connection alone. `head` is as it came.
pub(crate) fn pass(
    state: &mut State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    head: &[u8],
    passage: &Passage,
) -> Result<(Met, Leaving), DropReason> {
    let Some(ip) = frame.parsed.ip() else {
        return Ok((Met::Anew, Leaving::Same));
    };
    if passage.is_free() || ip.is_nd() {
        return Ok((Met::Nobody, Leaving::Same));
    }
    let (from, to) = (passage.from, Some(passage.to));
    let (met, leaving) = match known(&mut state.tracking, image, frame, ip, head, from, to) {
        Some(Ok((Some(found), leaving))) => (Met::Known(found), leaving),
        Some(known) => (Met::Anew, known?.1),
        None => (Met::Anew, fresh(state, image, frame, ip, head, passage)?),
    };
    if passage.translation.chooses() && leaving == Leaving::Same {
        // Inside addresses never leave where others stand for them.
        return Err(DropReason::NoTranslation);
    }
    Ok((met, leaving))
}

/// What is known of the packet without asking a rule: `None` = nothing, it is to be
/// judged as a first packet. Else the connection it belongs to (none for a fragment
/// that follows another), and how it leaves. With `to`, where it goes: a connection that
/// leads elsewhere is over.
pub(crate) fn known(
    tracking: &mut Tracking,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
    from: End,
    to: Option<End>,
) -> Option<Result<(Option<Found>, Leaving), DropReason>> {
    let now = frame.now;
    if ip.fragment == Fragment::Later {
        return Some(tracking.follow(now, from, to, frame, ip));
    }
    if inner::is_error(ip) {
        return related(tracking, image, frame, head, from, to);
    }
    let segment = &Segment::read(head, frame.parsed, &frame.offload, frame.total);
    let tuple = &Tuple::of_connection(ip, head);
    let (segment, tuple) = (segment.as_ref()?, tuple.as_ref()?);
    let found = live(tracking, image, now, from, to, tuple)?;
    match tracking.judge(now, found, segment) {
        Judgement::Pass if !tracking.connections.is_translated(found) => {
            tracking.remember_first(now, from, to, ip, Some(found), Leaving::Same);
            Some(Ok((Some(found), Leaving::Same)))
        }
        Judgement::Pass => {
            let leaving = tracking.leaving(found);
            tracking.remember_first(now, from, to, ip, Some(found), leaving);
            Some(Ok((Some(found), leaving)))
        }
        Judgement::Invalid(_) if guard!("connection-state") => {
            Some(Err(DropReason::ConnectionState))
        }
        Judgement::Invalid(_) => Some(Ok((Some(found), tracking.leaving(found)))),
        Judgement::Anew => None,
    }
}

/// The connection of a tuple, judged again where another image let it begin.
fn live(
    tracking: &mut Tracking,
    image: &CompartmentImage<'_>,
    now: Nanos,
    from: End,
    to: Option<End>,
    tuple: &Tuple,
) -> Option<Found> {
    let found = tracking.find(now, from, tuple)?;
    if !tracking.stands(image, now, found) {
        return None;
    }
    let leads = |to: End| {
        let far = tracking.connections.far(found);
        far.is_some_and(|(owner, zone)| (slot_of(owner), zone) == (to.slot(), to.zone))
    };
    if guard!("connection-leads") && !to.is_none_or(leads) {
        tracking.connections.close(found);
        return None;
    }
    Some(found)
}

/// An ICMP error about a connection goes where the quoted packet came from.
fn related(
    tracking: &mut Tracking,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    head: &[u8],
    from: End,
    to: Option<End>,
) -> Option<Result<(Option<Found>, Leaving), DropReason>> {
    let quote = inner::parse(head, frame.parsed)?;
    let ip = frame.parsed.ip()?;
    // It is told to who sent what it quotes, and to nobody else.
    if guard!("error-goes-home") && ip.destination != quote.tuple.source {
        return None;
    }
    let answers = quote.tuple.reversed();
    let found = live(tracking, image, frame.now, from, to, &answers)?;
    let segment = tracking.counted(found, &frame.offload, frame.total);
    match tracking
        .connections
        .related(found, quote.sequence, &segment)
    {
        Judgement::Pass => {}
        _ => return Some(Err(DropReason::ConnectionState)),
    }
    if !tracking.connections.is_translated(found) {
        let leaving = crossing::error_leaves_as(image, to, ip, &quote.tuple)?;
        return Some(Ok((Some(found), leaving)));
    }
    let leaves = tracking.connections.leaves_as(found)?;
    // A router on the way speaks as itself, but beyond a translation nobody knows it.
    let outer = Tuple {
        destination: leaves.destination,
        source: leaves.source,
        ..Tuple::of_rules(ip)?
    };
    let quoted = leaves.reversed();
    Some(Ok((Some(found), Leaving::Error { outer, quoted })))
}

/// Judges a packet that no connection knows. Bound: two tables, and a few ports.
fn fresh(
    state: &mut State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    ip: &Ip,
    head: &[u8],
    passage: &Passage,
) -> Result<Leaving, DropReason> {
    let now = frame.now;
    let asked = Tuple::of_rules(ip).ok_or(DropReason::Fragment)?;
    if let Translation::Routed { crossing } = passage.translation
        && !crossing::offers(image, crossing, &asked)
        && guard!("routed-ports")
    {
        return Err(DropReason::ServicePort);
    }
    let delivered = match passage.translation {
        Translation::Pool { crossing } => {
            let seed = state.tracking.seed;
            state
                .tracking
                .pool_tuple(image, crossing, &asked, seed)
                .ok_or(DropReason::ServiceUnasked)?
        }
        _ => asked,
    };
    let verdict = |table: u32, tuple: &Tuple| (table != NONE).then(|| image.judge(table, tuple));
    let (sent, got) = (
        verdict(passage.egress, &asked),
        verdict(passage.ingress, &delivered),
    );
    if let Some(watch) = &mut state.tracking.watch {
        watch.asked(
            [passage.from, passage.to],
            [&asked, &delivered],
            [sent, got],
        );
    }
    let denied = |verdict: &Option<image::rules::Verdict>| {
        verdict
            .as_ref()
            .is_some_and(|verdict| verdict.action == Action::Deny)
    };
    let barred = denied(&sent) && guard!("egress-rules");
    if barred || (denied(&got) && guard!("ingress-rules")) {
        let reason = if barred {
            DropReason::EgressRule
        } else {
            DropReason::IngressRule
        };
        if unstated(state, image, frame, &asked, passage) {
            return Ok(Leaving::Same);
        }
        let denies = |verdict| Some(verdict).filter(denied).flatten();
        let by = match denies(sent) {
            Some(sent) => (Some(sent), None),
            None => (None, got),
        };
        // As the receiver would have got it: the addresses before are another tenant's.
        let told = if guard!("denied-as-delivered") {
            &delivered
        } else {
            &asked
        };
        state.tracking.decided = Some(decided(passage, frame, told, by, Outcome::Denied));
        return Err(reason);
    }
    let stateful = [&sent, &got]
        .into_iter()
        .flatten()
        .any(|verdict| verdict.action == Action::Allow);
    let translates = passage.translation != Translation::None;
    let note = decided(passage, frame, &delivered, (sent, got), Outcome::Packet);
    if passage.translation == Translation::Answers {
        return Err(DropReason::ServiceUnasked);
    }
    if !stateful && !translates {
        state.tracking.decided = Some(note);
        state
            .tracking
            .remember_first(now, passage.from, Some(passage.to), ip, None, Leaving::Same);
        return Ok(Leaving::Same);
    }
    let segment = Segment::read(head, frame.parsed, &frame.offload, frame.total);
    let Some((segment, tuple)) = segment.zip(Tuple::of_connection(ip, head)) else {
        // ICMP that is no echo: nothing follows from it.
        return if translates {
            Err(DropReason::ServiceUnasked)
        } else {
            state.tracking.decided = Some(note);
            Ok(Leaving::Same)
        };
    };
    let rule = |verdict: Option<image::rules::Verdict>| verdict.map_or(NONE, |v| v.rule);
    let verdict = Verdict {
        epoch: state.tracking.epoch,
        rules: [rule(sent), rule(got)],
    };
    let opened = open(state, image, now, ip, &tuple, passage, &verdict, &segment);
    if opened.is_err() {
        // Both sides were asked for nothing, and nobody is told of it.
        state.cache.sought += 2;
    }
    // One that found no place is served packet by packet.
    let (leaving, tracked) = opened?;
    if let Some(watch) = &mut state.tracking.watch {
        watch.begins(tracked);
    }
    state.tracking.decided = Some(Decided {
        outcome: match tracked {
            true => Outcome::Connection,
            false => Outcome::Packet,
        },
        ..note
    });
    Ok(leaving)
}

/// What is told of rules that decided.
fn decided(
    passage: &Passage,
    frame: &Frame<'_>,
    tuple: &Tuple,
    (sent, got): (Option<image::rules::Verdict>, Option<image::rules::Verdict>),
    outcome: Outcome,
) -> Decided {
    Decided {
        owner: passage.from.slot(),
        inbound: passage.from.zone != 0,
        tuple: *tuple,
        outcome,
        rules: [sent, got].map(|verdict| verdict.map(|v| (v.rule, v.log))),
        packets: frame.offload.segments() as u32,
        bytes: frame.offload.wire_bytes(frame.total) as u32,
    }
}

/// Begins a connection; with a translation, under the first ports that are free. Whether
/// it found a place.
#[expect(clippy::too_many_arguments, reason = "one caller, all of them facts")]
fn open(
    state: &mut State,
    image: &CompartmentImage<'_>,
    now: Nanos,
    ip: &Ip,
    tuple: &Tuple,
    passage: &Passage,
    verdict: &Verdict,
    segment: &Segment,
) -> Result<(Leaving, bool), DropReason> {
    let a = Side {
        owner: passage.from.owner,
        zone: passage.from.zone,
        tuple: *tuple,
    };
    let tracking = &mut state.tracking;
    for attempt in 0..TRIES {
        state.cache.sought += 1;
        let leaves = passage
            .translation
            .leaves_as(image, tracking, tuple, attempt)
            .ok_or(DropReason::NoTranslation)?;
        let b = Side {
            owner: passage.to.owner,
            zone: passage.to.zone,
            tuple: leaves.reversed(),
        };
        match tracking.connections.open(now, &a, &b, verdict, segment) {
            Ok(found) => {
                if let Some(watch) = &mut tracking.watch {
                    watch.began(found, a, b);
                }
                tracking.wake(now);
                let leaving = tracking.leaving(found);
                state.deadline = state.deadline.min(tracking.due);
                let to = Some(passage.to);
                tracking.remember_first(now, passage.from, to, ip, Some(found), leaving);
                return Ok((leaving, true));
            }
            Err(Refused::Taken) if passage.translation.chooses() => {}
            // An endpoint whose room is yet to come, while a change of rooms waits, has none.
            Err(Refused::Full | Refused::Sides) => {
                tracking.is_full(now, passage.from.owner);
                return if passage.translation == Translation::None {
                    Ok((Leaving::Same, false))
                } else {
                    Err(DropReason::NoTranslation)
                };
            }
            Err(Refused::Taken | Refused::Invalid(_)) if guard!("connection-first") => {
                return Err(DropReason::ConnectionState);
            }
            Err(_) if passage.translation == Translation::None => {
                return Ok((Leaving::Same, false));
            }
            Err(_) => return Err(DropReason::NoTranslation),
        }
    }
    Err(DropReason::NoTranslation)
}

/// Ports tried for one connection.
const TRIES: u32 = 32;

/// Whether a packet that no rule lets pass may answer a connection that found no place
/// lately: the other way round the rules would have let it begin, and it begins nothing
/// itself.
fn unstated(
    state: &State,
    image: &CompartmentImage<'_>,
    frame: &Frame<'_>,
    asked: &Tuple,
    passage: &Passage,
) -> bool {
    // Between endpoints of the tenant alone: beyond a tag nothing is known of the asker.
    let inside =
        passage.translation == Translation::None && (passage.from.zone, passage.to.zone) == (0, 0);
    if !inside
        || !state.tracking.was_full_lately(frame.now, passage.to.owner)
        || begins(frame, asked)
    {
        return false;
    }
    let table = |end: &End, egress: bool| {
        let endpoint = image
            .endpoints()
            .get(image.endpoint_by_slot(end.slot())? as usize)?;
        Some(match egress {
            true => endpoint.egress,
            false => endpoint.ingress,
        })
    };
    let opening = answered(asked);
    let verdict = |table: Option<u32>| match table {
        None => Action::Deny,
        Some(NONE) => Action::AllowStateless,
        Some(table) => image.judge(table, &opening).action,
    };
    let verdicts = [
        verdict(table(&passage.to, true)),
        verdict(table(&passage.from, false)),
    ];
    verdicts.contains(&Action::Allow) && !verdicts.contains(&Action::Deny)
}

/// Whether a packet asks for a connection.
fn begins(frame: &Frame<'_>, asked: &Tuple) -> bool {
    use wire::parse::Transport;
    match frame.parsed.ip().map(|ip| ip.transport) {
        Some(Transport::Tcp { flags, .. }) => {
            flags & wire::tcp::RST == 0 && flags & wire::tcp::ACK == 0
        }
        Some(Transport::Icmp { .. }) => !matches!(
            (asked.protocol, asked.destination_port >> 8),
            (1, 0) | (58, 129)
        ),
        // It does not say.
        _ => true,
    }
}

/// The tuple, as rules see it, of what a packet answers.
fn answered(asked: &Tuple) -> Tuple {
    let request = match (asked.protocol, asked.destination_port >> 8) {
        (1, 0) => Some(8u16 << 8),
        (58, 129) => Some(128 << 8),
        _ => None,
    };
    match request {
        Some(destination_port) => Tuple {
            source_port: 0,
            destination_port,
            ..asked.reversed()
        },
        None => asked.reversed(),
    }
}

/// A connection's first packet as rules see it.
pub(crate) fn opening(tuple: &Tuple) -> Tuple {
    let destination_port = match tuple.protocol {
        wire::icmpv4::PROTOCOL => u16::from(wire::icmpv4::ECHO_REQUEST) << 8,
        wire::icmpv6::PROTOCOL => u16::from(wire::icmpv6::ECHO_REQUEST) << 8,
        _ => return *tuple,
    };
    Tuple {
        source_port: 0,
        destination_port,
        ..*tuple
    }
}

/// Whether a frame that goes to many may leave its sender, and reach one of them.
/// Nothing follows from it.
pub(crate) fn passes_to_many(image: &CompartmentImage<'_>, table: u32, frame: &Frame<'_>) -> bool {
    let Some(ip) = frame.parsed.ip().filter(|ip| !ip.is_nd()) else {
        return true;
    };
    if table == NONE {
        return true;
    }
    // A later fragment says too little to be judged.
    let passes =
        Tuple::of_rules(ip).is_some_and(|tuple| image.judge(table, &tuple).action != Action::Deny);
    passes || !guard!("flood-rules")
}

/// What is told where [`passes_to_many`] does not let a frame leave its sender.
#[cold]
pub(crate) fn denied_to_many(
    image: &CompartmentImage<'_>,
    table: u32,
    frame: &Frame<'_>,
) -> Option<Decided> {
    let tuple = Tuple::of_rules(frame.parsed.ip()?)?;
    let verdict = image.judge(table, &tuple);
    Some(Decided {
        owner: frame.from,
        inbound: false,
        tuple,
        outcome: Outcome::Denied,
        rules: [Some((verdict.rule, verdict.log)), None],
        packets: frame.offload.segments() as u32,
        bytes: frame.offload.wire_bytes(frame.total) as u32,
    })
}

impl Tracking {
    /// How a packet of a connection leaves.
    pub(crate) fn leaving(&self, found: Found) -> Leaving {
        if !self.connections.is_translated(found) {
            return Leaving::Same;
        }
        match self.connections.leaves_as(found) {
            Some(tuple) => Leaving::As(tuple),
            None => Leaving::Same,
        }
    }

    /// Notes what becomes of a packet whose first fragment this is.
    pub(crate) fn remember_first(
        &mut self,
        now: Nanos,
        from: End,
        to: Option<End>,
        ip: &Ip,
        found: Option<Found>,
        leaving: Leaving,
    ) {
        if ip.fragment != Fragment::First || self.watch.is_some() {
            return;
        }
        let follows = Follows::new(found, leaving, to);
        self.fragments
            .first(now, from.owner, from.zone, ip, follows);
    }

    fn follow(
        &mut self,
        now: Nanos,
        from: End,
        to: Option<End>,
        frame: &Frame<'_>,
        ip: &Ip,
    ) -> Result<(Option<Found>, Leaving), DropReason> {
        let follows = match self.fragments.later(now, from.owner, from.zone, ip) {
            Ok(follows) => follows,
            Err(_) if guard!("fragment-follows") => return Err(DropReason::Fragment),
            Err(_) => return Ok((None, Leaving::Same)),
        };
        if guard!("fragment-leads") && !follows.leads_to(to) {
            return Err(DropReason::Fragment);
        }
        let leaving = follows.leaving(ip);
        let found = follows.found();
        if let Some(found) = found {
            // Another connection may have that number by now.
            let same = match (self.leaving(found), leaving) {
                (Leaving::As(a), Leaving::As(b)) => {
                    (a.source, a.destination) == (b.source, b.destination)
                }
                (Leaving::Same, Leaving::Same) => self
                    .connections
                    .leaves_as(found)
                    .is_some_and(|t| (t.source, t.destination) == (ip.source, ip.destination)),
                _ => false,
            };
            if same && self.watch.is_none() {
                let segment = Segment::counted(&frame.offload, frame.total);
                self.connections.follow(now, found, &segment);
            } else if !same && leaving != Leaving::Same {
                return Err(DropReason::Fragment);
            }
        }
        Ok((found, leaving))
    }
}
