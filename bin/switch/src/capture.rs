//! Mirroring frames into a capture's channel. It never blocks: what does not fit is
//! not captured but counted, and nothing waits for it.
//!
//! What another tenant's endpoint sends to a service here has that tenant's addresses until
//! it is translated: it is shown where it is delivered, or, where a rule denied it, as that
//! rule saw it. So are the answers, where the endpoint sent them.

use command::verbs::Capture as Asked;
use guard::guard;
use image::CompartmentImage;
use image::compartment::CROSSING_OFFERER;
use ring::record::CaptureNote;
use shm::{ConsumerEnd, Doorbell, Sender};
use switch::{Decided, FABRIC, HEAD, Outgoing, Slot};
use telemetry::counters::MOST_WORKERS;
use telemetry::drops::DropReason;
use wire::Tuple;
use wire::offload::{self, MAX_FRAME, MIN_GSO_FLOOR, RawOffload};
use wire::parse::parse;
use wire::translate::translate;

#[cfg(test)]
mod tests;

/// Captures under way: the provider's and those of tenants whose switch this is.
/// Bound of each loop: as many as the supervisor lets begin.
#[derive(Default)]
pub struct Captures {
    all: Vec<(u32, Capture)>,
    /// Bits of slots, modulo 64, whose frames somebody captures.
    slots: u64,
}

impl Captures {
    /// Instead of that of the same owner, if any.
    pub fn begin(&mut self, owner: u32, capture: Capture) {
        self.all.retain(|(one, _)| *one != owner);
        self.all.push((owner, capture));
        self.changed();
    }

    /// No more for this owner.
    pub fn end(&mut self, owner: u32) {
        self.all.retain(|(one, _)| *one != owner);
        self.changed();
    }

    fn changed(&mut self) {
        let slots = self
            .all
            .iter()
            .map(|(_, one)| one.slot.map_or(u64::MAX, bit));
        self.slots = slots.fold(0, |all, one| all | one);
    }

    /// Takes what another worker mirrored for an owner; `mirror` counts that one's ring among
    /// those of the capture. It has no room: counted with what was lost there.
    pub fn copy(&mut self, owner: u32, mirror: usize, record: &ring::Record<'_, ConsumerEnd>) {
        if let Some((_, capture)) = self.all.iter_mut().find(|(one, _)| *one == owner) {
            capture.copy(mirror, record);
        }
    }

    /// Whether nobody captures.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Capture> {
        self.all.iter_mut().map(|(_, capture)| capture)
    }

    /// Those of a slot's frames. One compare, where there are none.
    #[inline]
    fn of(&mut self, slot: Slot) -> impl Iterator<Item = &mut Capture> {
        let any = self.slots & bit(slot) != 0;
        let all: &mut [_] = if any { &mut self.all } else { &mut [] };
        let all = all.iter_mut().map(|(_, capture)| capture);
        all.filter(move |one| one.slot.is_none_or(|only| only == slot))
    }

    /// A batch begins at this time (CLOCK_REALTIME, ns).
    pub fn begin_batch(&mut self, time_ns: u64) {
        self.all().for_each(|one| one.time_ns = time_ns);
    }

    /// Takes note of a frame's head before it is rewritten.
    pub fn remember(&mut self, from: (Slot, u16), head: &[u8], offload: RawOffload) {
        self.of(from.0)
            .for_each(|one| one.remember(from, head, offload));
    }

    /// An image is used from now on. Allocates.
    pub fn use_image(&mut self, image: &CompartmentImage<'_>) {
        self.all().for_each(|one| one.use_image(image));
    }

    /// Mirrors the ingress frame: passed on, or dropped, for a reason and by a rule.
    pub fn came(
        &mut self,
        from: (Slot, u32),
        why: (Option<DropReason>, Option<&Decided>),
        total: usize,
        rest: &dyn Fn(usize, &mut [u8]) -> usize,
    ) {
        self.of(from.0)
            .for_each(|one| one.came(from, why, total, rest));
    }

    /// Mirrors a frame that went out.
    pub fn went(
        &mut self,
        frame: &Outgoing<'_>,
        endpoint: u32,
        rest: &dyn Fn(usize, &mut [u8]) -> usize,
    ) {
        self.of(frame.slot)
            .for_each(|one| one.went(frame, endpoint, rest));
    }

    /// Once a batch.
    pub fn publish(&mut self) {
        self.all().for_each(Capture::publish);
    }
}

const fn bit(slot: Slot) -> u64 {
    1 << (slot % 64)
}

/// A capture under way.
pub struct Capture {
    sender: Sender,
    drops_only: bool,
    slot: Option<Slot>,
    snap: usize,
    /// CLOCK_REALTIME at the start of the batch, ns.
    time_ns: u64,
    /// The ingress frame's first bytes, as they came.
    head: [u8; HEAD],
    head_len: usize,
    offload: RawOffload,
    /// It is as another tenant sent it.
    foreign: bool,
    /// Fabric tags whose frames have no addresses of another tenant's, sorted.
    own: Vec<u16>,
    /// Private memory for what follows a head.
    tail: Vec<u8>,
    /// Frames that found no room, or cannot be shown; and those of other workers, by ring.
    lost: u32,
    lost_elsewhere: [u32; MOST_WORKERS],
}

impl Capture {
    /// Mirrors as asked, into `sender`.
    pub fn new(sender: Sender, asked: &Asked, image: Option<&CompartmentImage<'_>>) -> Capture {
        Capture {
            sender,
            drops_only: asked.drops_only != 0,
            slot: (asked.slot != u32::MAX).then_some(asked.slot),
            snap: asked.snap as usize,
            time_ns: 0,
            head: [0; HEAD],
            head_len: 0,
            offload: RawOffload::default(),
            foreign: false,
            own: image.map_or_else(Vec::new, own),
            tail: vec![0; MAX_FRAME],
            lost: 0,
            lost_elsewhere: [0; MOST_WORKERS],
        }
    }

    fn copy(&mut self, mirror: usize, record: &ring::Record<'_, ConsumerEnd>) {
        let Some(note) = record.note() else { return };
        if let Some(lost) = self.lost_elsewhere.get_mut(mirror) {
            *lost = note.lost;
        }
        let note = CaptureNote {
            lost: self.all_lost(),
            ..note
        };
        let (ring, offload) = (&mut self.sender.ring, record.offload());
        let pushed = ring.forward_capture(&offload, &note, &[], record, 0, usize::MAX);
        self.lost = self.lost.wrapping_add(pushed.is_err().into());
    }

    fn all_lost(&self) -> u32 {
        let elsewhere = self.lost_elsewhere.iter();
        elsewhere.fold(self.lost, |all, one| all.wrapping_add(*one))
    }

    fn use_image(&mut self, image: &CompartmentImage<'_>) {
        self.own = own(image);
    }

    /// Whether frames there have another tenant's addresses.
    fn is_foreign(&self, slot: Slot, tag: u16) -> bool {
        let foreign = slot == FABRIC && self.own.binary_search(&tag).is_err();
        foreign && guard!("capture-foreign")
    }

    /// Takes note of a frame's head before it is rewritten.
    fn remember(&mut self, (slot, tag): (Slot, u16), head: &[u8], offload: RawOffload) {
        self.foreign = self.is_foreign(slot, tag);
        let length = head.len().min(HEAD);
        if let (Some(to), Some(from)) = (self.head.get_mut(..length), head.get(..length)) {
            to.copy_from_slice(from);
            self.head_len = length;
            self.offload = offload;
        }
    }

    /// Mirrors the ingress frame: passed on, or dropped, for a reason and by a rule.
    fn came(
        &mut self,
        (_, endpoint): (Slot, u32),
        (reason, denied): (Option<DropReason>, Option<&Decided>),
        total: usize,
        rest: &dyn Fn(usize, &mut [u8]) -> usize,
    ) {
        if self.drops_only && reason.is_none() {
            return;
        }
        if self.foreign {
            if reason.is_none() {
                return;
            }
            if denied
                .and_then(|by| self.becomes(&by.tuple, total))
                .is_none()
            {
                self.lost = self.lost.wrapping_add(1);
                return;
            }
        }
        let rule = denied.and_then(|by| {
            let [sent, got] = by.rules;
            sent.or(got).map(|(rule, _)| rule)
        });
        let note = CaptureNote {
            denied: u32::from(rule.is_some()),
            rule: rule.unwrap_or(0),
            ..self.note(endpoint, 0, total, reason)
        };
        let (head, length, offload) = (self.head, self.head_len, self.offload);
        self.write(
            &note,
            &offload,
            head.get(..length).unwrap_or(&[]),
            length,
            total,
            rest,
        );
    }

    /// Gives the ingress frame the addresses that rules saw; `None`: it cannot have them.
    fn becomes(&mut self, seen: &Tuple, total: usize) -> Option<()> {
        let head = self.head.get_mut(..self.head_len)?;
        let parsed = parse(head, total).ok()?;
        let offload = offload::check(self.offload, &parsed, total, MIN_GSO_FLOOR).ok()?;
        let to = Tuple {
            source: seen.source,
            destination: seen.destination,
            ..Tuple::of_connection(parsed.ip()?, head)?
        };
        translate(head, &parsed, &offload, &to)
    }

    /// Mirrors a frame that went out.
    fn went(
        &mut self,
        frame: &Outgoing<'_>,
        endpoint: u32,
        rest: &dyn Fn(usize, &mut [u8]) -> usize,
    ) {
        if self.drops_only || self.is_foreign(frame.slot, frame.tag) {
            return;
        }
        let total = frame.head.len() + frame.total.saturating_sub(frame.rest_from);
        let note = self.note(endpoint, 1, total, None);
        self.write(
            &note,
            &frame.offload,
            frame.head,
            frame.rest_from,
            frame.total,
            rest,
        );
    }

    fn note(
        &self,
        endpoint: u32,
        direction: u16,
        total: usize,
        reason: Option<DropReason>,
    ) -> CaptureNote {
        CaptureNote {
            time_ns: self.time_ns,
            endpoint,
            original_len: u32::try_from(total).unwrap_or(u32::MAX),
            drop_reason: reason.map_or(0, |r| r as u16),
            direction,
            lost: self.all_lost(),
            denied: 0,
            rule: 0,
        }
    }

    /// Bytes beyond the head are copied by pieces through private memory.
    fn write(
        &mut self,
        note: &CaptureNote,
        offload: &RawOffload,
        head: &[u8],
        rest_from: usize,
        total: usize,
        rest: &dyn Fn(usize, &mut [u8]) -> usize,
    ) {
        let head = head.get(..self.snap).unwrap_or(head);
        let wanted = total
            .saturating_sub(rest_from)
            .min(self.snap.saturating_sub(head.len()));
        let length = match self.tail.get_mut(..wanted) {
            Some(into) => rest(rest_from, into),
            None => 0,
        };
        let tail = self.tail.get(..length).unwrap_or(&[]);
        let pushed = self.sender.ring.push_capture(0, offload, note, head, tail);
        self.lost = self.lost.wrapping_add(pushed.is_err().into());
    }

    /// Once a batch.
    fn publish(&mut self) {
        let _ = self.sender.ring.poll();
        if self.sender.ring.publish() == Doorbell::Ring {
            let _ = self.sender.bell.ring();
        }
    }
}

/// The tags of uplinks, of segments, of what is routed from tenant to tenant, and of services that are
/// used here. What comes by one that the image does not know is another's.
fn own(image: &CompartmentImage<'_>) -> Vec<u16> {
    let agreed = image.crossings().iter();
    let agreed = agreed.filter(|one| one.is_routed() || one.role != CROSSING_OFFERER);
    let outside = image.attachments().iter().map(|one| one.tag);
    let segments = image.subnets().iter().map(|one| one.segment);
    let outside = outside.chain(segments.filter(|tag| *tag != 0));
    let mut all: Vec<u16> = agreed.map(|one| one.tag).chain(outside).collect();
    all.sort_unstable();
    all
}
