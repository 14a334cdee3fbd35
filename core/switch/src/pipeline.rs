//! One frame from beginning to end, and what falls due by itself.

use crate::act::{act, advertise};
use crate::decision::{Decision, Egress, decide};
use crate::edit::Edit;
use crate::frame::{Face, Frame, Leaving, Sender};
use crate::judgement::{End, Passage, pass};
use crate::restoration::Restoration;
use crate::state::{Config, State, charge, sends};
use crate::trace::Watch;
use crate::translation::Translation;
use crate::{FABRIC, Ingress, Nanos, Output, Slot, admission, crossing, nd, outside, trace};
use flow::{Connection, Cursor, Memory};
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::rules::Outcome;
use telemetry::trace::Step;
use wire::address::{ALL_NODES, MacAddress};
use wire::offload::{self, Offload};
use wire::parse::{Parsed, Version, parse};

/// The pipeline of one compartment: what it remembers beside its image.
#[derive(Debug)]
pub struct Switch {
    pub(crate) state: State,
    /// A trace under way, while none of its frames is handled.
    pub(crate) traced: Option<Box<Watch>>,
}

impl Switch {
    /// A switch without an image.
    pub fn new(config: Config) -> Switch {
        Switch {
            state: State::new(config),
            traced: None,
        }
    }

    /// Keeps a journal of connections in this memory from now on, before the first image:
    /// what a predecessor left in it goes on as far as that image lets it begin, some of
    /// it at once and the rest by [`Switch::tick`].
    pub fn keep(&mut self, memory: Box<dyn Memory>) {
        self.state.tracking.keep(memory);
    }

    /// What came of a predecessor's connections so far.
    pub fn restoration(&self) -> Restoration {
        self.state.tracking.restoration
    }

    /// Starts using an image, at a batch edge. Meters, timers and resolved next
    /// hops of things that are still there go on. The only call that allocates;
    /// every later call is given this same image.
    pub fn use_image(&mut self, image: &CompartmentImage<'_>, now: Nanos) {
        self.end_trace(now);
        self.state.adopt(image, Edit::all(), now);
        self.state.tracking.restore_first(image, now);
        self.state.plan();
    }

    /// The same in place of the image that was in use: connections that the difference
    /// does not concern keep their verdicts.
    pub fn swap_image(
        &mut self,
        before: &CompartmentImage<'_>,
        image: &CompartmentImage<'_>,
        now: Nanos,
    ) {
        // Connections may have other numbers then.
        self.end_trace(now);
        self.state.adopt(image, Edit::between(before, image), now);
    }

    /// Handles one frame to its end.
    pub fn process(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: Ingress<'_>,
        out: &mut impl Output,
    ) {
        let from = ingress.from;
        out.count(from, Counter::RxFrames, 1);
        out.count(from, Counter::RxBytes, ingress.total as u64);
        let done = if from == FABRIC {
            self.accept_outside(image, now, ingress, out)
        } else {
            self.accept_inside(image, now, ingress, out)
        };
        if let Some(decided) = self.state.tracking.decided.take() {
            if decided.outcome == Outcome::Connection {
                out.count(decided.owner, Counter::Connections, 1);
            }
            out.decided(&decided);
        }
        self.tell_tallies(out);
        if let Err(reason) = done {
            out.dropped(from, reason);
        }
    }

    /// Sends what falls due: router advertisements, requests for next hops.
    pub fn tick(&mut self, image: &CompartmentImage<'_>, now: Nanos, out: &mut impl Output) {
        if now < self.state.deadline {
            return;
        }
        for index in 0..self.state.subnets.len() {
            self.advertise(image, now, index, out);
        }
        outside::tick(&mut self.state, image, now, out);
        self.state.tracking.sweep(image, now);
        self.tell_tallies(out);
        self.state.plan();
    }

    /// Bound: connections that one frame, or one step of the sweep, ended or came by.
    fn tell_tallies(&mut self, out: &mut impl Output) {
        while let Some(tally) = self.state.tracking.connections.tallied() {
            out.tallied(&tally);
        }
    }

    /// When [`Switch::tick`] has something to do; `Nanos::MAX` = never.
    pub fn next_deadline(&self) -> Nanos {
        self.state.deadline
    }

    /// What a slot's port takes unfinished, `FEATURE_*`: as much of it as the image says too
    /// is used. Everything, until this says otherwise.
    pub fn takes(&mut self, slot: Slot, features: u16) {
        self.state.take(slot, features);
    }

    /// Until when nothing need be taken from a slot: its endpoint or its tenant has used
    /// up its rate, and what is left where it is makes its sender wait instead of losing
    /// it. 0 = now.
    pub fn paused_until(&self, slot: Slot) -> Nanos {
        let Some(port) = self.state.ports.get(slot as usize) else {
            return 0;
        };
        let tenant = self.state.tenants.get(port.tenant as usize);
        port.paused.max(tenant.map_or(0, |tenant| tenant.paused))
    }

    /// A slot that waited [so long](Switch::paused_until) goes on: that it is later than
    /// that costs it nothing of its rate.
    pub fn resumes(&mut self, image: &CompartmentImage<'_>, slot: Slot, now: Nanos) {
        let Some(index) = self.state.endpoint_at(slot) else {
            return;
        };
        let (Some(endpoint), Some(port)) = (
            image.endpoints().get(index as usize),
            self.state.ports.get_mut(slot as usize),
        ) else {
            return;
        };
        port.meter.late(now, &sends(endpoint));
        let at = port.tenant as usize;
        if let (Some(tenant), Some(record)) =
            (self.state.tenants.get_mut(at), image.tenants().get(at))
        {
            tenant.meter.late(now, &record.from);
        }
    }

    /// What a slot's endpoint had of its tenant's rate, against its weight: of several
    /// that wait for it, the one that had least goes on first.
    pub fn served(&self, slot: Slot) -> u64 {
        let port = self.state.ports.get(slot as usize);
        port.map_or(0, |port| port.served)
    }

    /// The endpoint plugged in a slot by the image in use (index into its endpoints).
    pub fn endpoint_at(&self, slot: Slot) -> Option<u32> {
        self.state.endpoint_at(slot)
    }

    /// Visits connections from where `at` stands; whether that was the last. Bound:
    /// `budget` records.
    pub fn walk(
        &self,
        now: Nanos,
        at: &mut Cursor,
        budget: u32,
        visit: &mut impl FnMut(&Connection),
    ) -> bool {
        self.state.tracking.connections.walk(now, at, budget, visit)
    }

    /// The connection with this number, if there is one.
    pub fn connection(&self, now: Nanos, id: u32) -> Option<Connection> {
        self.state.tracking.connections.connection(now, id)
    }

    fn accept_inside(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: Ingress<'_>,
        out: &mut impl Output,
    ) -> Result<(), DropReason> {
        let index = self
            .state
            .endpoint_at(ingress.from)
            .ok_or(DropReason::NoImage)?;
        let sender = Sender::of(image, index).ok_or(DropReason::NoImage)?;
        admission::state(sender.endpoint)?;
        // Where it was written it stays: a copy would wait for what was just stored.
        let parsed = &parse(ingress.head, ingress.total);
        let parsed = parsed
            .as_ref()
            .map_err(|error| admission::malformed(*error))?;
        let offload = &offload::check(
            ingress.offload,
            parsed,
            ingress.total,
            sender.endpoint.min_gso,
        );
        let offload = offload.as_ref().map_err(|_| DropReason::BadOffload)?;
        received(&ingress, offload, out);
        trace::tell(out, || Step::Parsed);
        admission::admit(image, &sender, parsed, ingress.head)?;
        trace::tell(out, || Step::Guarded);
        self.meter(image, &sender, now, &ingress, offload)?;
        trace::tell(out, || Step::Metered);
        let mut frame = self.frame(now, &ingress, parsed, *offload, Face::gateway(&sender));
        let decision = decide(&self.state, image, &sender, &frame, ingress.head);
        trace::goes(out, image, &decision);
        if let Some(passage) = passage(image, &sender, &frame, &decision)? {
            let leaving = pass(&mut self.state, image, &frame, ingress.head, &passage);
            trace::judged(out, &mut self.state.tracking, leaving.as_ref());
            match leaving? {
                Leaving::Same => {}
                other => frame.leaving = other,
            }
        }
        act(
            &mut self.state,
            image,
            Some(&sender),
            &frame,
            decision,
            ingress.head,
            out,
        );
        Ok(())
    }

    fn accept_outside(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: Ingress<'_>,
        out: &mut impl Output,
    ) -> Result<(), DropReason> {
        let parsed = &parse(ingress.head, ingress.total);
        let parsed = parsed
            .as_ref()
            .map_err(|error| admission::malformed(*error))?;
        let offload = outside::check(&ingress, parsed)?;
        received(&ingress, &offload, out);
        trace::tell(out, || Step::Parsed);
        let state = &mut self.state;
        match image.crossing_by_tag(ingress.tag) {
            Some((index, _)) => {
                crossing::receive(state, image, now, index, ingress, parsed, offload, out);
            }
            None => outside::receive(state, image, now, ingress, parsed, offload, out),
        }
        Ok(())
    }

    fn frame<'a>(
        &self,
        now: Nanos,
        ingress: &Ingress<'_>,
        parsed: &'a Parsed,
        offload: Offload,
        face: Face,
    ) -> Frame<'a> {
        Frame {
            now,
            from: ingress.from,
            parsed,
            offload,
            total: ingress.total,
            face,
            leaving: Leaving::Same,
        }
    }

    /// The ingress meters, the endpoint's and its tenant's, count what the frame stands
    /// for on a wire, not records.
    fn meter(
        &mut self,
        image: &CompartmentImage<'_>,
        sender: &Sender<'_>,
        now: Nanos,
        ingress: &Ingress<'_>,
        offload: &Offload,
    ) -> Result<(), DropReason> {
        let own = sends(sender.endpoint);
        let tenant = sender.subnet.tenant as usize;
        let all = image.tenants().get(tenant).map(|tenant| tenant.from);
        let all = all.unwrap_or_default();
        if !own.is_limited() && !all.is_limited() {
            return Ok(());
        }
        let port = self.state.ports.get_mut(ingress.from as usize);
        let (Some(port), Some(tenant)) = (port, self.state.tenants.get_mut(tenant)) else {
            return Err(DropReason::NoImage);
        };
        let bytes = offload.wire_bytes(ingress.total) as u64;
        let segments = offload.segments() as u64;
        let paid = port.meter.is_free(now, &own);
        let all_paid = tenant.meter.is_free(now, &all);
        if paid && all_paid {
            charge(port, tenant, sender.endpoint, &all, bytes, segments);
        }
        port.paused = port.meter.free_at(&own);
        tenant.paused = tenant.meter.free_at(&all);
        if guard!("ingress-meter") && !paid {
            return Err(DropReason::IngressRate);
        }
        if guard!("tenant-meter") && !all_paid {
            return Err(DropReason::IngressRate);
        }
        Ok(())
    }

    /// An unsolicited advertisement to every member, if it is due. Bound: members.
    fn advertise(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        index: usize,
        out: &mut impl Output,
    ) {
        let Some(state) = self.state.subnets.get_mut(index) else {
            return;
        };
        if now < state.next_ra {
            return;
        }
        let initial = state.initial > 0;
        state.initial = state.initial.saturating_sub(1);
        let spread = self.state.random_below(nd::INTERVAL / 4);
        let interval = if initial {
            nd::INITIAL_INTERVAL
        } else {
            nd::INTERVAL - spread
        };
        if let Some(state) = self.state.subnets.get_mut(index) {
            state.next_ra = now.saturating_add(interval);
        }
        let Some(subnet) = image.subnets().get(index) else {
            return;
        };
        let mut buffer = [0u8; 256];
        let group = MacAddress::of_group6(ALL_NODES);
        let Some(length) = advertise(&mut buffer, subnet, group, ALL_NODES) else {
            return;
        };
        let Some(bytes) = buffer.get(..length) else {
            return;
        };
        for member in image.members_of(u32::try_from(index).unwrap_or(u32::MAX)) {
            if let Some(endpoint) = image.endpoints().get(member.endpoint as usize)
                && admission::state(endpoint).is_ok()
            {
                out.count(endpoint.slot, Counter::Replies, 1);
                out.reply(endpoint.slot, 0, bytes);
            }
        }
    }
}

/// From where to where an endpoint's packet goes by a decision, where that is a way to
/// another.
fn passage(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    frame: &Frame<'_>,
    decision: &Decision,
) -> Result<Option<Passage>, DropReason> {
    let endpoint = sender.endpoint;
    let from = End::at(endpoint.slot);
    let egress = match decision {
        Decision::Bridge(index) => Egress::Endpoint(*index),
        Decision::Route(hop) => hop.egress,
        _ => return Ok(None),
    };
    let passage = match egress {
        Egress::Endpoint(index) => {
            let to = image
                .endpoints()
                .get(index as usize)
                .ok_or(DropReason::NoNeighbour)?;
            Passage {
                from,
                to: End::at(to.slot),
                egress: endpoint.egress,
                ingress: to.ingress,
                translation: Translation::None,
            }
        }
        Egress::Outside { attachment, .. } => {
            let there = image
                .attachments()
                .get(attachment as usize)
                .ok_or(DropReason::NoRoute)?;
            let four = frame
                .parsed
                .ip()
                .is_some_and(|ip| ip.version == Version::V4);
            Passage {
                from,
                to: End::beyond(endpoint.slot, there.tag),
                egress: endpoint.egress,
                ingress: NONE,
                translation: if four && there.nat_block != 0 {
                    Translation::Nat {
                        attachment,
                        endpoint: sender.index,
                    }
                } else {
                    Translation::None
                },
            }
        }
        Egress::Service { crossing } => {
            let there = image
                .crossings()
                .get(crossing as usize)
                .ok_or(DropReason::NoRoute)?;
            let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
            crossing::outward(there, crossing, endpoint.slot, endpoint.egress, ip, image)?
        }
    };
    Ok(Some(passage))
}

fn received(ingress: &Ingress<'_>, offload: &Offload, out: &mut impl Output) {
    out.count(ingress.from, Counter::RxSegments, offload.segments() as u64);
    if offload.gso().is_some() {
        out.count(ingress.from, Counter::RxGsoBytes, ingress.total as u64);
    }
}
