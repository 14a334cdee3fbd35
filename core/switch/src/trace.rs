//! A traced frame: it goes the way of any other, each step is written down, nothing of it
//! leaves unless asked, and what it changed is undone.
//!
//! Connections that others began are asked and not touched, and none gives way to one of
//! a trace: where no place is free, that has none. Those that a trace begins
//! last until its end, so that what answers can be traced as well. What is learnt of
//! next hops outside stays, and so do the questions for their MACs.

use crate::decision::{Answer, Decision, Egress};
use crate::frame::Leaving;
use crate::judgement::End;
use crate::pipeline::Switch;
use crate::tracking::Tracking;
use crate::{Decided, FABRIC, Finish, Ingress, Nanos, Outgoing, Output, Slot, Tally};
use flow::{Connection, Found, Judgement, Segment, Side};
use guard::guard;
use image::CompartmentImage;
use image::rules::{Action, Verdict};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::trace::{Answered, Record, Step};
use wire::Tuple;
use wire::offload::Offload;

/// Connections that one trace may begin: one for each frame of it, and some.
const OWN: usize = 8;
/// Notes about one frame's judgement.
const NOTES: usize = 8;

/// What is noted of a traced frame where it is judged.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    notes: [Step; NOTES],
    noted: usize,
    /// Connections that began by this trace.
    own: [Option<(Found, Side, Side)>; OWN],
    begun: usize,
}

impl Watch {
    fn note(&mut self, step: Step) {
        if let Some(place) = self.notes.get_mut(self.noted) {
            *place = step;
            self.noted += 1;
        }
    }

    /// Rules of both ends were asked, about the packet as each sees it.
    pub(crate) fn asked(
        &mut self,
        ends: [End; 2],
        packets: [&Tuple; 2],
        verdicts: [Option<Verdict>; 2],
    ) {
        for (at, verdict) in verdicts.into_iter().enumerate() {
            if let (Some(verdict), Some(end), Some(packet)) =
                (verdict, ends.get(at), packets.get(at))
            {
                self.note(Step::Rule {
                    egress: at == 0,
                    slot: crate::slot_of(end.owner),
                    rule: verdict.rule,
                    action: verdict.action as u8,
                    tuple: told(packet),
                });
            }
        }
    }

    /// A connection begins, or would and finds no place.
    pub(crate) fn begins(&mut self, tracked: bool) {
        self.note(Step::Begins { tracked });
    }

    /// This one began.
    pub(crate) fn began(&mut self, found: Found, a: Side, b: Side) {
        if let Some(place) = self.own.get_mut(self.begun) {
            *place = Some((found, a, b));
            self.begun += 1;
        }
    }

    fn is_own(&self, connection: &Connection) -> bool {
        let is = |(found, a, b): &(Found, Side, Side)| {
            (found.id, a, b) == (connection.id, &connection.a, &connection.b)
        };
        self.own.iter().flatten().any(is)
    }

    /// It belongs to this connection; whether that began by the trace.
    fn met(&mut self, connection: &Connection, found: Found) -> bool {
        let own = self.is_own(connection);
        self.note(Step::Connection {
            state: connection.state as u8,
            back: found.direction == flow::Direction::Back,
            own,
            rules: connection.verdict.rules,
        });
        own
    }
}

impl Tracking {
    /// Judges a packet of a connection.
    #[inline]
    pub(crate) fn judge(&mut self, now: Nanos, found: Found, segment: &Segment) -> Judgement {
        match self.watch {
            None => self.connections.packet(now, found, segment),
            Some(_) => self.judge_traced(now, found, segment),
        }
    }

    #[cold]
    fn judge_traced(&mut self, now: Nanos, found: Found, segment: &Segment) -> Judgement {
        let connection = self.connections.connection(now, found.id);
        let own = match (&mut self.watch, &connection) {
            (Some(watch), Some(connection)) => watch.met(connection, found),
            _ => false,
        };
        if own || !guard!("trace-untouched") {
            return self.connections.packet(now, found, segment);
        }
        let judgement = self.connections.would(found, segment);
        if judgement == Judgement::Anew {
            // It is over, and in the way of what begins.
            self.connections.close(found);
        }
        judgement
    }

    /// An ICMP error about a connection, as it is counted there.
    pub(crate) fn counted(&mut self, found: Found, offload: &Offload, total: usize) -> Segment {
        let segment = Segment::counted(offload, total);
        let Some(watch) = &mut self.watch else {
            return segment;
        };
        if let Some(connection) = self.connections.connection(0, found.id) {
            watch.met(&connection, found);
        }
        Segment {
            packets: 0,
            bytes: 0,
            ..segment
        }
    }
}

impl Switch {
    /// Handles one frame as [`Switch::process`] does, and writes down what becomes of it.
    /// It is counted nowhere, and what it makes is sent only where `deliver` says so;
    /// never to the fabric, where [`Record::left`] is what would be sent.
    pub fn trace(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: Ingress<'_>,
        deliver: bool,
        record: &mut Record,
        out: &mut impl Output,
    ) {
        let from = ingress.from;
        let attachment = self.state.attachment_of(ingress.tag);
        let attachment = attachment.filter(|_| from == FABRIC).unwrap_or(u32::MAX) as usize;
        let port = self.state.ports.get(from as usize).copied();
        let limits = self.state.attachments.get(attachment).copied();
        let subnets = self.state.subnets.clone();
        let (tenants, crossings) = (self.state.tenants.clone(), self.state.crossings.clone());
        let ident = self.state.ident;
        let mut watch = self.traced.take().unwrap_or_default();
        watch.noted = 0;
        self.state.tracking.watch = Some(watch);
        self.state.tracking.connections.let_all_stay(true);
        let mut recorder = Recorder {
            out,
            record,
            from,
            deliver,
        };
        self.process(image, now, ingress, &mut recorder);
        self.state.tracking.connections.let_all_stay(false);
        self.traced = self.state.tracking.watch.take();
        let own = self.traced.iter().flat_map(|watch| watch.own);
        for (found, a, b) in own.flatten() {
            let connections = &mut self.state.tracking.connections;
            let connection = connections.connection(now, found.id);
            if connection.is_some_and(|c| (c.a, c.b) == (a, b)) && guard!("trace-untold") {
                connections.passed_untold(found);
            }
        }
        self.state.ident = ident;
        (self.state.tenants, self.state.crossings) = (tenants, crossings);
        self.state.subnets = subnets;
        if let (Some(place), Some(port)) = (self.state.ports.get_mut(from as usize), port) {
            *place = port;
        }
        if let (Some(place), Some(limits)) = (self.state.attachments.get_mut(attachment), limits) {
            *place = limits;
        }
    }

    /// Ends a trace: connections that it began are forgotten.
    pub fn end_trace(&mut self, now: Nanos) {
        let Some(watch) = self.traced.take() else {
            return;
        };
        let connections = &mut self.state.tracking.connections;
        for (found, a, b) in watch.own.into_iter().flatten() {
            // Its number may be another's by now.
            let connection = connections.connection(now, found.id);
            if connection.is_some_and(|c| (c.a, c.b) == (a, b)) && guard!("trace-forgotten") {
                connections.close(found);
            }
        }
    }
}

/// Tells a step of the frame that is handled; costs nothing where it is not traced.
pub(crate) fn tell<O: Output>(out: &mut O, step: impl FnOnce() -> Step) {
    if O::TRACES {
        out.step(&step());
    }
}

/// Tells where a frame goes.
pub(crate) fn goes<O: Output>(out: &mut O, image: &CompartmentImage<'_>, decision: &Decision) {
    if O::TRACES
        && let Some(step) = way(image, decision)
    {
        out.step(&step);
    }
}

fn way(image: &CompartmentImage<'_>, decision: &Decision) -> Option<Step> {
    let slot = |index: u32| image.endpoints().get(index as usize).map(|e| e.slot);
    Some(match decision {
        // What follows says it.
        Decision::Drop(_) | Decision::Refuse(..) => return None,
        Decision::Absorb => Step::Absorbed,
        Decision::Bridge(index) => Step::Bridged {
            slot: slot(*index)?,
        },
        Decision::Flood => Step::Flooded,
        Decision::Beyond(subnet) => Step::Routed {
            slot: FABRIC,
            tag: image.subnets().get(*subnet as usize)?.segment,
        },
        Decision::Ask { target } => Step::Resolving { address: *target },
        Decision::Route(hop) => match hop.egress {
            Egress::Endpoint(index) => Step::Routed {
                slot: slot(index)?,
                tag: 0,
            },
            Egress::Outside { attachment, .. } => Step::Routed {
                slot: FABRIC,
                tag: image.attachments().get(attachment as usize)?.tag,
            },
            Egress::Service { crossing } => Step::Routed {
                slot: FABRIC,
                tag: image.crossings().get(crossing as usize)?.tag,
            },
        },
        Decision::Resolve { next_hop } => Step::Resolving {
            address: image.next_hops().get(*next_hop as usize)?.address,
        },
        Decision::Answer(answer) => Step::Answered(match answer {
            Answer::Arp { .. } => Answered::Arp,
            Answer::NeighbourAdvert { .. } => Answered::Neighbour,
            Answer::RouterAdvert => Answered::Router,
            Answer::Dhcp => Answered::Dhcp,
            Answer::Echo => Answered::Echo,
        } as u8),
    })
}

/// Tells how a frame was judged, and as what it leaves.
pub(crate) fn judged<O: Output>(
    out: &mut O,
    tracking: &mut Tracking,
    leaving: Result<&Leaving, &DropReason>,
) {
    if !O::TRACES {
        return;
    }
    let Some(watch) = &mut tracking.watch else {
        return;
    };
    let noted = core::mem::take(&mut watch.noted);
    for step in watch.notes.iter().take(noted) {
        out.step(step);
    }
    match leaving {
        Ok(Leaving::As(tuple)) => out.step(&Step::Leaves(told(tuple))),
        Ok(Leaving::Error { outer, .. }) => out.step(&Step::Leaves(told(outer))),
        Ok(Leaving::Same) if noted == 0 => out.step(&Step::NoRules),
        _ => {}
    }
}

/// Tells that a rule denied what was to go to many.
pub(crate) fn denied<O: Output>(out: &mut O, decided: &Decided) {
    if let ([Some((rule, _)), _], true) = (decided.rules, O::TRACES) {
        out.step(&Step::Rule {
            egress: true,
            slot: decided.owner,
            rule,
            action: Action::Deny as u8,
            tuple: told(&decided.tuple),
        });
    }
}

fn told(tuple: &Tuple) -> telemetry::trace::Tuple {
    telemetry::trace::Tuple {
        source: tuple.source,
        destination: tuple.destination,
        source_port: tuple.source_port,
        destination_port: tuple.destination_port,
        protocol: tuple.protocol,
    }
}

/// The output of a traced frame.
struct Recorder<'a, O> {
    out: &'a mut O,
    record: &'a mut Record,
    from: Slot,
    deliver: bool,
}

impl<O: Output> Recorder<'_, O> {
    /// Writes down a frame that would be sent; whether it is.
    fn sends(&mut self, frame: &Outgoing<'_>, cut: bool) -> bool {
        let rest = frame.total.saturating_sub(frame.rest_from);
        let length = frame.head.len() + rest;
        let real = self.deliver && frame.slot != FABRIC;
        let out = &mut *self.out;
        self.record.leaves(frame.slot, frame.tag, length, |into| {
            if let Some((head, tail)) = into.split_at_mut_checked(frame.head.len()) {
                head.copy_from_slice(frame.head);
                if !tail.is_empty() {
                    out.ingress(frame.rest_from, tail);
                }
            }
        });
        self.record.push(Step::Sent {
            slot: frame.slot,
            tag: frame.tag,
            bytes: u32::try_from(length).unwrap_or(u32::MAX),
            cut,
            real,
        });
        real || !guard!("trace-held")
    }
}

impl<O: Output> Output for Recorder<'_, O> {
    const TRACES: bool = true;
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        self.out.ingress(offset, into)
    }
    fn send(&mut self, frame: &Outgoing<'_>) {
        if self.sends(frame, false) {
            self.out.send(frame);
        }
    }
    fn finish(&mut self, frame: &Outgoing<'_>, how: &Finish) {
        if self.sends(frame, true) {
            self.out.finish(frame, how);
        }
    }
    fn reply(&mut self, slot: Slot, tag: u16, frame: &[u8]) {
        // The switch's own question for a next hop is no answer to this frame.
        let asks = slot == FABRIC && self.from != FABRIC;
        let real = asks || self.deliver && slot != FABRIC;
        if !asks {
            self.record.push(Step::Replied {
                slot,
                bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX),
                real,
            });
        }
        if real {
            self.out.reply(slot, tag, frame);
        }
    }
    fn dropped(&mut self, _: Slot, reason: DropReason) {
        self.record.push(Step::Dropped {
            reason: reason as u8,
        });
    }
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
    // Of others, that waited to be told.
    fn tallied(&mut self, tally: &Tally) {
        self.out.tallied(tally);
    }
    fn step(&mut self, step: &Step) {
        self.record.push(*step);
    }
}
