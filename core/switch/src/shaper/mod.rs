//! What waits on its way out: for the rate toward an endpoint or toward its tenant, and
//! at the channel to the fabric where there are classes.
//!
//! A frame goes at once where nothing waits before it and the buckets hold something.
//! Else it is copied into the queue of its class, which is bounded and was taken when the
//! image came; what finds no room is lost, and counted on the receiver. The sender does
//! not wait: its frames to others are not this receiver's fault. When the buckets hold a
//! millisecond's worth, the classes that go first do so up to their rate, and the others
//! in the order of what each had against its weight (start-time fair queueing); among a
//! tenant's endpoints that wait for its rate likewise, and in each class whoever sends to one:
//! the tenant itself, the outside, each agreement. What comes by an agreement is of no class:
//! its DSCP field is another tenant's.

mod class;
mod queue;
mod shared;
#[cfg(test)]
mod tests;

use crate::account::{Among, TenantMeter, Way};
use crate::meter::{Bucket, Credit, Meter, served};
use crate::{FABRIC, Nanos, Outgoing, Slot, Workers};
use class::{Class, INSIDE, OUTSIDE};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{CROSSING_OFFERER, NONE, Rate, ServiceClass};
use telemetry::drops::DropReason;

/// How long a receiver without room is left alone.
const RETRY: Nanos = 1_000_000;
/// Frames of one port in one go.
const AT_ONCE: usize = 64;
/// Between two looks at what waits, for each port where something does: so that the cost
/// of looking is bounded however many wait.
const SPACING: Nanos = 1_000;
/// Memory of each class's queue at the channel to the fabric.
const FABRIC_QUEUE: usize = 256 << 10;

/// What became of a frame that was handed to its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// The port has it.
    Sent,
    /// The receiver has no room now.
    Full,
    /// It will never be sent.
    Lost(DropReason),
}

/// What waits, by slot.
#[derive(Debug)]
pub struct Shaper {
    workers: Workers,
    /// Of several workers.
    among: Option<Among>,
    /// Ports where frames may have to wait.
    ports: Vec<Option<Box<Port>>>,
    /// By the sender's slot: the DSCP value that its unmarked packets count as.
    marks: Vec<u8>,
    tenants: Vec<Tenant>,
    /// Tags of all agreements, sorted.
    agreed: Vec<u16>,
    classes: Vec<ServiceClass>,
    /// The class of each DSCP value.
    class_of: [u8; 64],
    /// Slots where something waits.
    waiting: Vec<Slot>,
    /// Nothing is to be done before this.
    due: Nanos,
}

impl Default for Shaper {
    fn default() -> Shaper {
        Shaper::new(0, Workers::ALONE)
    }
}

#[derive(Debug)]
struct Port {
    id: u32,
    tenant: u32,
    rate: Rate,
    weight: u32,
    meter: Meter,
    /// What it had of its tenant's rate, against its weight.
    served: u64,
    /// What whoever of its classes was served last had had before.
    floor: u64,
    classes: Vec<Class>,
    /// Tags of services that it serves, sorted.
    offers: Vec<u16>,
    /// Frames that wait.
    frames: usize,
    /// All frames go by the queues, and leave them in the same turn.
    sorts: bool,
    /// It cannot send before: its rates, or its receiver without room.
    due: Nanos,
}

#[derive(Debug)]
struct Tenant {
    id: u32,
    rate: Rate,
    meter: TenantMeter,
    floor: u64,
    /// Ports where something waits.
    waiting: usize,
    /// Something may come from outside.
    outside: bool,
    /// Tags of agreements by which something may come to any of its endpoints, sorted.
    agreed: Vec<u16>,
}

/// Who may send to a port.
struct Senders {
    offers: Vec<u16>,
    /// Agreements, those included.
    agreements: usize,
    outside: bool,
}

impl Shaper {
    /// For slots below `slots`, of which it looks after those that are at home at this worker.
    pub fn new(slots: usize, workers: Workers) -> Shaper {
        Shaper {
            workers,
            among: None,
            ports: (0..slots).map(|_| None).collect(),
            marks: vec![0; slots],
            tenants: Vec::new(),
            agreed: Vec::new(),
            classes: Vec::new(),
            class_of: [0; 64],
            waiting: Vec::with_capacity(slots),
            due: Nanos::MAX,
        }
    }

    /// Starts using an image. What waits for endpoints that are still there and still
    /// limited waits on, where the classes are the same; of what does not `lost` is told
    /// how many frames that were. The only call that allocates.
    pub fn use_image(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        mut lost: impl FnMut(Slot, usize),
    ) {
        let waited: Vec<(Slot, usize)> = self
            .waiting
            .iter()
            .map(|slot| (*slot, self.frames(*slot)))
            .collect();
        let same = self.classes == image.classes();
        if !same {
            self.classes = image.classes().to_vec();
            self.class_of = [0; 64];
            for (number, class) in (1..).zip(&self.classes) {
                for (value, place) in self.class_of.iter_mut().enumerate() {
                    if class.dscp >> value & 1 == 1 {
                        *place = number;
                    }
                }
            }
        }
        let old = core::mem::take(&mut self.tenants);
        let mut offered: Vec<(u32, u16)> = Vec::new();
        let mut agreed: Vec<(u32, u16)> = Vec::new();
        for crossing in image.crossings() {
            match crossing.role == CROSSING_OFFERER && !crossing.is_routed() {
                true => offered.push((crossing.endpoint, crossing.tag)),
                false => agreed.push((crossing.tenant, crossing.tag)),
            }
        }
        offered.sort_unstable();
        agreed.sort_unstable();
        self.agreed = offered.iter().chain(&agreed).map(|(_, tag)| *tag).collect();
        self.agreed.sort_unstable();
        self.tenants = (0..)
            .zip(image.tenants())
            .map(|(index, tenant)| {
                let before = old.iter().find(|t| t.id == tenant.id);
                Tenant {
                    id: tenant.id,
                    rate: tenant.to,
                    meter: TenantMeter::adopt(
                        before.map(|t| &t.meter),
                        (tenant.id, Way::To),
                        &tenant.to,
                        now,
                        self.among.as_ref(),
                    ),
                    floor: before.map_or(0, |t| t.floor),
                    waiting: 0,
                    outside: image.attachments().iter().any(|a| a.tenant == index),
                    agreed: tags_of(&agreed, index),
                }
            })
            .collect();
        self.marks.fill(0);
        let slots = self.ports.len();
        let mut before: Vec<_> = core::mem::take(&mut self.ports);
        self.ports = (0..slots).map(|_| None).collect();
        let fabric = before.get_mut(FABRIC as usize).and_then(Option::take);
        if !self.classes.is_empty() {
            let wanted = Rate::default();
            self.put(
                FABRIC,
                NONE,
                NONE,
                wanted,
                1,
                FABRIC_QUEUE,
                // Who sends there waits where it is.
                Senders {
                    offers: Vec::new(),
                    agreements: 0,
                    outside: false,
                },
                fabric,
                same,
                now,
            );
        }
        for (index, endpoint) in (0..).zip(image.endpoints()) {
            let at = endpoint.slot as usize;
            if let Some(mark) = self.marks.get_mut(at) {
                *mark = endpoint.class << 3;
            }
            let tenant = image
                .subnets()
                .get(endpoint.subnet as usize)
                .map_or(NONE, |subnet| subnet.tenant);
            let all = image.tenants().get(tenant as usize).map(|t| t.to);
            let all = all.unwrap_or_default();
            let before = before.get_mut(at).and_then(Option::take);
            if !endpoint.to.is_limited() && !all.is_limited() {
                continue;
            }
            let by = if endpoint.to.is_limited() {
                endpoint.to
            } else {
                all
            };
            let offers = tags_of(&offered, index);
            let of_all = self.tenants.get(tenant as usize);
            let senders = Senders {
                agreements: offers.len() + of_all.map_or(0, |all| all.agreed.len()),
                outside: of_all.is_some_and(|all| all.outside),
                offers,
            };
            self.put(
                endpoint.slot,
                endpoint.id,
                tenant,
                endpoint.to,
                endpoint.weight,
                by.queue_bytes() as usize,
                senders,
                before,
                same,
                now,
            );
        }
        for (slot, before) in waited {
            let still = self.frames(slot);
            if still < before {
                lost(slot, before - still);
            }
        }
        let Shaper { ports, tenants, .. } = self;
        self.waiting.retain(|slot| {
            let port = ports.get(*slot as usize).and_then(Option::as_ref);
            let Some(port) = port.filter(|port| port.frames != 0) else {
                return false;
            };
            if let Some(tenant) = tenants.get_mut(port.tenant as usize) {
                tenant.waiting += 1;
            }
            true
        });
        self.due = if self.waiting.is_empty() {
            Nanos::MAX
        } else {
            now
        };
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a port's fields, as they are found"
    )]
    fn put(
        &mut self,
        slot: Slot,
        id: u32,
        tenant: u32,
        rate: Rate,
        weight: u32,
        bytes: usize,
        senders: Senders,
        before: Option<Box<Port>>,
        same: bool,
        now: Nanos,
    ) {
        if !self.workers.is_home(slot) {
            return;
        }
        let fits = |port: &Port| {
            let room = port.classes.first().map(Class::room);
            port.id == id && same && room == Some(bytes)
        };
        let mut port = match before {
            Some(port) if fits(&port) => port,
            _ => Box::new(Port {
                id,
                tenant,
                rate,
                weight: 1,
                meter: Meter::full(now, &rate),
                served: 0,
                floor: 0,
                classes: core::iter::once(0)
                    .chain(self.classes.iter().map(|class| class.strict_burst))
                    .map(|burst| Class::new(bytes, Bucket::full(now, burst)))
                    .collect(),
                offers: Vec::new(),
                frames: 0,
                sorts: slot == FABRIC,
                due: 0,
            }),
        };
        let other_unit = in_packets(&port.rate) != in_packets(&rate);
        for (number, class) in port.classes.iter_mut().enumerate() {
            if other_unit {
                class.count_anew();
            }
            // What comes by agreements is of none but the first.
            let agreements = if number == 0 { senders.agreements } else { 0 };
            class.resize(class::places(senders.outside, agreements));
        }
        port.offers = senders.offers;
        port.due = 0;
        port.tenant = tenant;
        port.rate = rate;
        port.weight = weight;
        if let Some(place) = self.ports.get_mut(slot as usize) {
            *place = Some(port);
        }
    }

    /// Whether frames to a slot may have to wait at all.
    #[inline]
    pub fn is_limited(&self, slot: Slot) -> bool {
        matches!(self.ports.get(slot as usize), Some(Some(_)))
    }

    /// Whether a frame to a slot may go now: nothing waits before it, and the rates
    /// allow it. One that goes is to be [charged](Shaper::sent).
    #[inline]
    pub fn may_go(&mut self, now: Nanos, slot: Slot) -> bool {
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            return true;
        };
        let tenant = self.tenants.get(port.tenant as usize);
        // Who waits for the rate that they share goes first.
        let waited_for = tenant.is_some_and(|t| t.waiting != 0 && t.rate.is_limited());
        port.frames == 0
            && !port.sorts
            && !(waited_for && guard!("egress-queue-first"))
            && is_free(port, &mut self.tenants, now)
    }

    /// What may go to a slot now before this is asked again, as [`Shaper::may_go`]. What
    /// went is to be [charged](Shaper::charge).
    pub fn credit(&mut self, now: Nanos, slot: Slot) -> Credit {
        if !self.may_go(now, slot) {
            return Credit::NONE;
        }
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            return Credit::UNLIMITED;
        };
        let own = port.meter.credit(now, &port.rate);
        match self.tenants.get_mut(port.tenant as usize) {
            Some(tenant) => own.and(tenant.meter.credit(now, &tenant.rate)),
            None => own,
        }
    }

    /// Charges what went to a slot on such a credit.
    pub fn charge(&mut self, slot: Slot, bytes: u64, packets: u64) {
        if let Some(Some(port)) = self.ports.get_mut(slot as usize) {
            charge(port, &mut self.tenants, bytes, packets);
        }
    }

    /// Charges a frame that went at once.
    #[inline]
    pub fn sent(&mut self, frame: &Outgoing<'_>) {
        if let Some(Some(port)) = self.ports.get_mut(frame.slot as usize) {
            let (bytes, packets) = (frame.wire as u64, u64::from(frame.segments));
            charge(port, &mut self.tenants, bytes, packets);
        }
    }

    /// Keeps a frame, which `from` sent and whose bytes behind the head `rest` copies,
    /// until it may go. `false`: its class has no room.
    pub fn hold(
        &mut self,
        now: Nanos,
        from: Slot,
        frame: &Outgoing<'_>,
        rest: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> bool {
        let mark = self.marks.get(from as usize).copied().unwrap_or(0);
        let class = match dscp(frame.head) {
            0 => mark,
            marked => marked,
        };
        let agreed = self.agreed.binary_search(&frame.came_by).is_ok();
        let class = match agreed && guard!("agreed-marks") {
            true => 0,
            false => self.class_of.get(usize::from(class)).copied().unwrap_or(0),
        };
        let Some(Some(port)) = self.ports.get_mut(frame.slot as usize) else {
            return false;
        };
        let place = match frame.came_by {
            0 => INSIDE,
            tag if agreed => {
                let of_all = self.tenants.get(port.tenant as usize);
                agreement(&port.offers, of_all, tag).map_or(OUTSIDE, class::agreed)
            }
            _ => OUTSIDE,
        };
        let floor = port.floor;
        let Some(class) = port.classes.get_mut(usize::from(class)) else {
            return false;
        };
        if class.is_empty() {
            // Nothing is earned for having been idle.
            class.served = class.served.max(floor);
        }
        if !class.push(place, frame, rest) {
            return false;
        }
        port.frames += 1;
        if port.frames == 1 {
            let at = if port.sorts {
                now
            } else {
                free_at(port, &mut self.tenants).max(now)
            };
            port.due = 0;
            if let Some(tenant) = self.tenants.get_mut(port.tenant as usize) {
                tenant.waiting += 1;
            }
            self.due = self.due.min(at);
            // Each slot is in it at most once: there is room.
            self.waiting.push(frame.slot);
        }
        true
    }

    /// When [`Shaper::release`] has something to do; `Nanos::MAX` = never.
    pub const fn due(&self) -> Nanos {
        self.due
    }

    /// Frames that wait toward a slot.
    pub fn frames(&self, slot: Slot) -> usize {
        match self.ports.get(slot as usize) {
            Some(Some(port)) => port.frames,
            _ => 0,
        }
    }

    /// Hands over what may go, and tells of each frame that left its queue. Bound:
    /// `AT_ONCE` frames of each port where something waits.
    pub fn release(&mut self, now: Nanos, mut hand: impl FnMut(&Outgoing<'_>) -> Handed) {
        if now < self.due {
            return;
        }
        let mut waiting = core::mem::take(&mut self.waiting);
        let ports = &self.ports;
        let served = |slot: &Slot| match ports.get(*slot as usize) {
            Some(Some(port)) => port.served,
            _ => 0,
        };
        if guard!("egress-turns") {
            waiting.sort_unstable_by_key(served);
        }
        let mut due = Nanos::MAX;
        // A tenant whose rate somebody has not used up in one go: whose turn it is then is
        // seen the next time, or the others would get what small frames could not use.
        let mut more = None;
        waiting.retain(|slot| {
            let Some(Some(port)) = self.ports.get_mut(*slot as usize) else {
                return false;
            };
            if more == Some(port.tenant) {
                return true;
            }
            let next = serve(
                port,
                &mut self.tenants,
                &self.classes,
                *slot,
                now,
                &mut hand,
            );
            due = due.min(next);
            let shares = |tenant: &Tenant| tenant.rate.is_limited();
            if next <= now && self.tenants.get(port.tenant as usize).is_some_and(shares) {
                more = Some(port.tenant);
            }
            if port.frames == 0
                && let Some(tenant) = self.tenants.get_mut(port.tenant as usize)
            {
                tenant.waiting = tenant.waiting.saturating_sub(1);
            }
            port.frames != 0
        });
        self.due = match due {
            Nanos::MAX => due,
            // Some had more than is handed over in one go.
            due if due <= now => due,
            due => due.max(now + SPACING * waiting.len() as u64),
        };
        self.waiting = waiting;
    }

    /// Forgets what waits toward a slot: its port is gone. How many frames that were.
    pub fn forget(&mut self, slot: Slot) -> usize {
        self.waiting.retain(|other| *other != slot);
        let Some(Some(port)) = self.ports.get_mut(slot as usize) else {
            return 0;
        };
        for class in &mut port.classes {
            class.clear();
        }
        if port.frames != 0
            && let Some(tenant) = self.tenants.get_mut(port.tenant as usize)
        {
            tenant.waiting = tenant.waiting.saturating_sub(1);
        }
        core::mem::take(&mut port.frames)
    }
}

/// Hands over a port's frames while it may send; when it may again.
fn serve(
    port: &mut Port,
    tenants: &mut [Tenant],
    kinds: &[ServiceClass],
    slot: Slot,
    now: Nanos,
    hand: &mut impl FnMut(&Outgoing<'_>) -> Handed,
) -> Nanos {
    if now < port.due {
        return port.due;
    }
    if port.due != 0 {
        // It waited: that it is later than it asked for costs it nothing of its rate.
        port.meter.late(now, &port.rate);
        if let Some(tenant) = tenants.get_mut(port.tenant as usize) {
            tenant.meter.late(now, &tenant.rate);
        }
        port.due = 0;
    }
    for _ in 0..AT_ONCE {
        if port.frames == 0 {
            return Nanos::MAX;
        }
        if !is_free(port, tenants, now) {
            port.due = free_at(port, tenants).max(now + 1);
            return port.due;
        }
        let Some((number, first)) = next_class(port, kinds, now) else {
            return Nanos::MAX;
        };
        let Some(class) = port.classes.get_mut(number) else {
            return Nanos::MAX;
        };
        let Some((place, front)) = class.front() else {
            return Nanos::MAX;
        };
        let (wire, segments) = (front.wire, front.segments);
        let handed = hand(&front.outgoing(slot));
        if handed == Handed::Full {
            port.due = now + if port.sorts { RETRY / 20 } else { RETRY };
            return port.due;
        }
        let cost = match handed {
            Handed::Sent => cost(&port.rate, wire, segments),
            _ => 0,
        };
        class.pop(place, cost);
        port.frames -= 1;
        if handed == Handed::Sent {
            if first {
                class.first.charge(wire as u64);
            } else {
                let weight = match number.checked_sub(1).and_then(|n| kinds.get(n)) {
                    Some(kind) => u64::from(kind.weight.max(1)),
                    None => 1,
                };
                port.floor = class.served;
                // In parts, so that heavy classes lose nothing to rounding.
                class.served += wire as u64 * 256 / weight;
            }
            charge(port, tenants, wire as u64, u64::from(segments));
        }
    }
    now
}

/// Of these, sorted by whose they are, the tags of one, sorted.
fn tags_of(all: &[(u32, u16)], whose: u32) -> Vec<u16> {
    let from = all.partition_point(|(of, _)| *of < whose);
    let own = all.iter().skip(from).take_while(|(of, _)| *of == whose);
    own.map(|(_, tag)| *tag).collect()
}

/// Which of the agreements, by which something may come to a port, has this tag.
fn agreement(offers: &[u16], of_all: Option<&Tenant>, tag: u16) -> Option<usize> {
    let own = offers.binary_search(&tag).ok();
    own.or_else(|| Some(offers.len() + of_all?.agreed.binary_search(&tag).ok()?))
}

/// Whether shares of a rate are counted in packets, else in bytes.
const fn in_packets(rate: &Rate) -> bool {
    rate.bytes == 0 && rate.packets != 0
}

/// What a frame costs the share of whoever sent it: of what the rate is in.
fn cost(rate: &Rate, wire: usize, segments: u32) -> u64 {
    let (wire, segments) = (wire as u64, u64::from(segments));
    match (rate.bytes, rate.packets) {
        _ if in_packets(rate) => segments,
        (_, 0) => wire,
        // A packet takes as much of its limit as so many bytes of theirs.
        (bytes, packets) => wire.max(segments.saturating_mul(bytes / packets)),
    }
}

/// The class whose frame goes next, and whether it goes before its turn.
fn next_class(port: &mut Port, kinds: &[ServiceClass], now: Nanos) -> Option<(usize, bool)> {
    for (number, (class, kind)) in (1..).zip(port.classes.iter_mut().skip(1).zip(kinds)) {
        if kind.strict_bytes != 0
            && !class.is_empty()
            && (class
                .first
                .is_free(now, kind.strict_bytes, || kind.strict_burst)
                || !guard!("strict-class-rate"))
        {
            return Some((number, true));
        }
    }
    let waiting = port.classes.iter().enumerate();
    waiting
        .filter(|(_, class)| !class.is_empty())
        .min_by_key(|(_, class)| class.served)
        .map(|(number, _)| (number, false))
}

#[inline]
fn is_free(port: &mut Port, tenants: &mut [Tenant], now: Nanos) -> bool {
    let own = port.meter.is_free(now, &port.rate) || !guard!("egress-meter");
    let all = match tenants.get_mut(port.tenant as usize) {
        Some(tenant) => tenant.meter.is_free(now, &tenant.rate),
        None => true,
    };
    own && (all || !guard!("tenant-egress-meter"))
}

fn free_at(port: &Port, tenants: &mut [Tenant]) -> Nanos {
    let all = tenants
        .get_mut(port.tenant as usize)
        .map_or(0, |tenant| tenant.meter.free_at(&tenant.rate));
    port.meter.free_at(&port.rate).max(all)
}

#[inline]
fn charge(port: &mut Port, tenants: &mut [Tenant], bytes: u64, packets: u64) {
    port.meter.charge(&port.rate, bytes, packets);
    if let Some(tenant) = tenants.get_mut(port.tenant as usize) {
        tenant.meter.charge(&tenant.rate, bytes, packets);
        let floor = &mut tenant.floor;
        port.served = served(port.served, floor, &tenant.rate, bytes, port.weight);
    }
}

/// The DSCP field of a frame's IP header (RFC 2474); 0 where there is none.
fn dscp(head: &[u8]) -> u8 {
    match head.get(12..16) {
        Some([0x08, 0x00, _, tos]) => tos >> 2,
        Some([0x86, 0xdd, high, low]) => (high & 0xf) << 2 | low >> 6,
        _ => 0,
    }
}
