//! One frame from beginning to end, and what falls due by itself.

use crate::account::{Accounts, Among};
use crate::act::{act, advertise};
use crate::decision::{Decision, Egress, decide};
use crate::edit::Edit;
use crate::frame::{Face, Frame, Leaving, Sender};
use crate::judgement::{End, Passage, pass};
use crate::restoration::Restoration;
use crate::state::{Config, Paid, State};
use crate::trace::Watch;
use crate::translation::Translation;
use crate::{
    Credit, FABRIC, FORESEEN, Hit, Ingress, Nanos, Output, Slot, admission, cache, crossing, nd,
    outside, segment, trace,
};
use flow::{Connection, Cursor, Memory};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{FEATURE_CSUM, FEATURE_TSO4, FEATURE_TSO6, FEATURE_USO, NONE};
use std::sync::Arc;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::rules::Outcome;
use telemetry::trace::Step;
use wire::address::{ALL_NODES, MacAddress};
use wire::offload::{self, Offload, RawOffload};
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
    pub fn process<O: Output>(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: Ingress<'_>,
        out: &mut O,
    ) {
        let (from, total) = (ingress.from, ingress.total);
        let hit = match !O::TRACES && self.credit(now, from).is_left() {
            true => self.hit(now, from, &ingress.offload, ingress.head, total),
            false => None,
        };
        let Some(hit) = hit else {
            return self.judge(image, now, ingress, out);
        };
        self.charge(from, total as u64, 1);
        out.count(from, Counter::RxFrames, 1);
        out.count(from, Counter::RxBytes, total as u64);
        out.count(from, Counter::RxSegments, 1);
        out.send(&hit.outgoing(ingress.head, total));
    }

    /// The first half of [`Switch::process`]: a frame like one that passed goes the same
    /// way, and has been judged by its connection, counted there and rewritten. What is left
    /// is to count it as received, to [charge](Switch::charge) it, and to send it. `None`:
    /// nothing has happened, and [`Switch::judge`] is to be asked. Only to be called while
    /// its sender has [credit](Switch::credit).
    #[inline(always)]
    pub fn hit(
        &mut self,
        now: Nanos,
        from: Slot,
        offload: &RawOffload,
        head: &mut [u8],
        total: usize,
    ) -> Option<Hit> {
        cache::hit(&mut self.state, now, from, offload, head, total)
    }

    /// Whether most of the last packets, so many since this was last asked, were of flows that
    /// [`Switch::hit`] did not know: then [`Switch::foresee`] is worth its while.
    #[inline(always)]
    pub fn misses(&mut self, packets: usize) -> bool {
        cache::misses(&mut self.state, packets)
    }

    /// How many look-ups of connections the last frames took since this was last asked, and
    /// attempts to begin one: part of what a sender's frames [cost](crate::Work).
    #[inline(never)]
    pub fn sought(&mut self) -> usize {
        cache::sought(&mut self.state)
    }

    /// Looks the next packets of a slot up together, of which the first bytes are these, for
    /// [`Switch::hit`]; nothing else changes by it.
    pub fn foresee(&mut self, from: Slot, heads: &[[u8; FORESEEN]]) {
        cache::foresee(&mut self.state, from, heads);
    }

    /// What a slot may send now by [`Switch::hit`] before this is asked again.
    pub fn credit(&mut self, now: Nanos, from: Slot) -> Credit {
        self.state.credit(now, from)
    }

    /// Charges what went on such a credit: so many frames of so many bytes.
    pub fn charge(&mut self, from: Slot, bytes: u64, packets: u64) {
        self.state.charge(from, bytes, packets);
    }

    /// The second half: a frame of which nothing is known.
    pub fn judge(
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

    /// Whether a slot's port takes a frame with these offload fields, as it last said: who
    /// finished it, if another worker did, may not have heard.
    pub fn may_take(&self, slot: Slot, offload: &RawOffload) -> bool {
        let gso = match offload.gso_type & !offload::GSO_ECN {
            offload::GSO_NONE => 0,
            offload::GSO_TCPV4 => FEATURE_TSO4,
            offload::GSO_TCPV6 => FEATURE_TSO6,
            _ => FEATURE_USO,
        };
        let partial = offload.flags & offload::NEEDS_CSUM != 0;
        let wants = gso | if partial { FEATURE_CSUM } else { 0 };
        self.state.taken(slot) & wants == wants
    }

    /// Until when nothing need be taken from a slot: its endpoint or its tenant has used
    /// up its rate, and what is left where it is makes its sender wait instead of losing
    /// it. 0 = now.
    pub fn paused_until(&self, slot: Slot) -> Nanos {
        // What comes from the fabric, or is another worker's, is not paid for here.
        let port = self.state.ports.get(slot as usize);
        let Some(port) = port.filter(|_| self.state.is_limited(slot)) else {
            return 0;
        };
        let tenant = self.state.tenants.get(port.tenant as usize);
        port.paused.max(tenant.map_or(0, |tenant| tenant.paused))
    }

    /// Keeps tenants' rates in accounts with the other workers, from the next image on.
    pub fn share(&mut self, accounts: Arc<dyn Accounts>) {
        let worker = self.state.config.workers.this();
        self.state.among = Some(Among { accounts, worker });
    }

    /// Before it is asked [how long](Switch::paused_until) a slot is to wait: others may have
    /// used up the rate that it has with them.
    #[inline]
    pub fn look_among(&mut self, now: Nanos, slot: Slot) {
        self.state.look_among(now, slot);
    }

    /// The end of a turn: what was taken of shared rates and not used is others' again.
    pub fn settle(&mut self) {
        if self.state.among.is_some() {
            let tenants = self.state.tenants.iter_mut();
            tenants.for_each(|tenant| tenant.meter.settle());
        }
    }

    /// A slot that waited [so long](Switch::paused_until) goes on: that it is later than
    /// that costs it nothing of its rate.
    pub fn resumes(&mut self, slot: Slot, now: Nanos) {
        let Some(port) = self.state.ports.get_mut(slot as usize) else {
            return;
        };
        port.meter.late(now, &port.rate);
        if let Some(tenant) = self.state.tenants.get_mut(port.tenant as usize) {
            tenant.meter.late(now, &tenant.rate);
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
        self.meter(now, &ingress, offload)?;
        trace::tell(out, || Step::Metered);
        let mut frame = self.frame(now, &ingress, parsed, *offload, Face::gateway(&sender));
        let decision = decide(&self.state, image, &sender, &frame, ingress.head);
        trace::goes(out, image, &decision);
        if let Some(passage) = passage(image, &sender, &frame, &decision)? {
            let passed = pass(&mut self.state, image, &frame, ingress.head, &passage);
            let leaving = passed.as_ref().map(|(_, leaving)| leaving);
            trace::judged(out, &mut self.state.tracking, leaving);
            let (met, leaving) = passed?;
            match leaving {
                Leaving::Same => {}
                other => frame.leaving = other,
            }
            let (state, head) = (&mut self.state, &*ingress.head);
            cache::remember(state, image, &sender, &frame, &decision, met, head);
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
            None => match state.segment_of(ingress.tag) {
                Some(index) => {
                    segment::receive(state, image, now, index, ingress, parsed, offload, out);
                }
                None => outside::receive(state, image, now, ingress, parsed, offload, out),
            },
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
        now: Nanos,
        ingress: &Ingress<'_>,
        offload: &Offload,
    ) -> Result<(), DropReason> {
        let bytes = offload.wire_bytes(ingress.total) as u64;
        let segments = offload.segments() as u64;
        match self.state.free(now, ingress.from) {
            Paid::Nobody => Err(DropReason::NoImage),
            Paid::NotOwn if guard!("ingress-meter") => Err(DropReason::IngressRate),
            Paid::NotTenant if guard!("tenant-meter") => Err(DropReason::IngressRate),
            _ => {
                self.state.charge(ingress.from, bytes, segments);
                Ok(())
            }
        }
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
        Decision::Beyond(_) => {
            return Ok(Some(Passage {
                from,
                to: End::beyond(endpoint.slot, sender.subnet.segment),
                egress: endpoint.egress,
                ingress: NONE,
                translation: Translation::None,
            }));
        }
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
