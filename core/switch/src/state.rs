//! What a switch remembers beside its image: meters, timers, neighbours outside.
//! All of it is sized by the image, never by traffic.

use crate::account::{Among, TenantMeter, Way};
use crate::cache::Cache;
use crate::edit::Edit;
use crate::meter::{Bucket, Credit, Meter, served};
use crate::tracking::{Tracking, keys};
use crate::{FABRIC, Nanos, Slot, Workers};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, FEATURE_ALL, NONE, Rate, SUBNET_RA};

/// How a switch is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Slots there can be, the fabric's included.
    pub slots: usize,
    /// Secret of this start; spreads timers.
    pub seed: u64,
    /// Broadcast and multicast copies a second that one endpoint may cause.
    pub flood_rate: u64,
    /// Copies at once.
    pub flood_burst: u64,
    /// Answers (ARP, ND, RA, DHCP, echo) a second to one endpoint.
    pub reply_rate: u64,
    /// Answers at once.
    pub reply_burst: u64,
    /// ICMP errors a second to one endpoint (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
    pub error_rate: u64,
    /// Errors at once.
    pub error_burst: u64,
    /// Questions a second that one endpoint may have asked beyond its subnet.
    pub ask_rate: u64,
    /// Questions at once.
    pub ask_burst: u64,
    /// Which worker of how many this is.
    pub workers: Workers,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            slots: 64,
            seed: 0,
            flood_rate: 50_000,
            flood_burst: 20_000,
            reply_rate: 20_000,
            reply_burst: 2_000,
            error_rate: 1_000,
            error_burst: 100,
            ask_rate: 500,
            ask_burst: 200,
            workers: Workers::ALONE,
        }
    }
}

/// The buckets of one who may ask for answers: an endpoint or an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) replies: Bucket,
    pub(crate) errors: Bucket,
    pub(crate) floods: Bucket,
    pub(crate) asks: Bucket,
}

impl Limits {
    fn full(now: Nanos, config: &Config) -> Limits {
        Limits {
            replies: Bucket::full(now, config.reply_burst),
            errors: Bucket::full(now, config.error_burst),
            floods: Bucket::full(now, config.flood_burst),
            asks: Bucket::full(now, config.ask_burst),
        }
    }
}

/// One slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortState {
    /// Index into the image's endpoints, or NONE.
    pub(crate) endpoint: u32,
    id: u32,
    /// Index into the image's tenants.
    pub(crate) tenant: u32,
    pub(crate) meter: Meter,
    /// What it may send.
    pub(crate) rate: Rate,
    /// That or its tenant's rate is limited.
    limited: bool,
    /// Its share of its tenant's rate.
    weight: u32,
    /// Its rate is used up until then.
    pub(crate) paused: Nanos,
    /// What it had of its tenant's rate, against its weight.
    pub(crate) served: u64,
    pub(crate) limits: Limits,
}

const UNPLUGGED: PortState = PortState {
    endpoint: NONE,
    id: NONE,
    tenant: 0,
    meter: Meter::EMPTY,
    rate: Rate {
        bytes: 0,
        burst: 0,
        packets: 0,
    },
    limited: false,
    weight: 1,
    paused: 0,
    served: 0,
    limits: Limits {
        replies: Bucket::EMPTY,
        errors: Bucket::EMPTY,
        floods: Bucket::EMPTY,
        asks: Bucket::EMPTY,
    },
};

/// What a tenant's endpoints may send together.
#[derive(Clone, Debug)]
pub(crate) struct TenantState {
    id: u32,
    pub(crate) meter: TenantMeter,
    pub(crate) rate: Rate,
    /// Its rate is used up until then.
    pub(crate) paused: Nanos,
    /// What whoever was served last had had before: who was idle starts from here.
    pub(crate) floor: u64,
}

/// One subnet's advertisements, and what is answered to who is beyond it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubnetState {
    id: u32,
    /// When the next unsolicited advertisement is due; `Nanos::MAX` = never.
    pub(crate) next_ra: Nanos,
    /// Advertisements still to be sent at the initial, shorter interval.
    pub(crate) initial: u8,
    pub(crate) limits: Limits,
}

/// One attachment on an uplink, or one side of an agreement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachmentState {
    tag: u16,
    pub(crate) limits: Limits,
}

/// What is known of a next hop's MAC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeighbourState {
    address: [u8; 16],
    tag: u16,
    /// Its MAC, while `known`.
    pub(crate) mac: [u8; 6],
    pub(crate) known: bool,
    /// Requests sent since it was last confirmed or asked for.
    pub(crate) tries: u8,
    /// When it was last confirmed (`known`) or given up.
    pub(crate) since: Nanos,
    /// When the next request is due, while `tries` > 0.
    pub(crate) next: Nanos,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    /// Of several workers.
    pub(crate) among: Option<Among>,
    pub(crate) ports: Vec<PortState>,
    /// By slot: what its port takes unfinished, of what the image says it does. A guest says
    /// that when it starts.
    takes: Vec<u16>,
    pub(crate) tenants: Vec<TenantState>,
    pub(crate) subnets: Vec<SubnetState>,
    pub(crate) attachments: Vec<AttachmentState>,
    /// By crossing.
    pub(crate) crossings: Vec<AttachmentState>,
    pub(crate) neighbours: Vec<NeighbourState>,
    /// (tag, attachment), sorted by tag.
    tags: Vec<(u16, u32)>,
    /// (tag, subnet) of those that go on beyond this host, sorted by tag.
    segments: Vec<(u16, u32)>,
    pub(crate) tracking: Tracking,
    pub(crate) cache: Cache,
    random: u64,
    /// Nothing falls due before this.
    pub(crate) deadline: Nanos,
    /// Identification field of IPv4 packets that the switch makes.
    pub(crate) ident: u16,
}

impl State {
    pub(crate) fn new(config: Config) -> State {
        State {
            among: None,
            ports: vec![UNPLUGGED; config.slots.max(1)],
            takes: vec![FEATURE_ALL; config.slots.max(1)],
            tenants: Vec::new(),
            subnets: Vec::new(),
            attachments: Vec::new(),
            crossings: Vec::new(),
            neighbours: Vec::new(),
            tags: Vec::new(),
            segments: Vec::new(),
            tracking: Tracking::new(config.seed),
            cache: Cache::new(keys(!config.seed)),
            random: config.seed | 1,
            deadline: Nanos::MAX,
            ident: (config.seed >> 32) as u16,
            config,
        }
    }

    /// `FEATURE_*` that a slot's port takes.
    #[inline]
    pub(crate) fn taken(&self, slot: Slot) -> u16 {
        self.takes.get(slot as usize).copied().unwrap_or(0)
    }

    /// Says what it takes.
    pub(crate) fn take(&mut self, slot: Slot, features: u16) {
        if let Some(place) = self.takes.get_mut(slot as usize)
            && *place != features
        {
            *place = features;
            self.cache.forget();
        }
    }

    /// Takes over what concerns things that the new image still has.
    pub(crate) fn adopt(&mut self, image: &CompartmentImage<'_>, edit: Edit, now: Nanos) {
        let limits = Limits::full(now, &self.config);
        let mut ports = vec![UNPLUGGED; self.ports.len()];
        for (index, endpoint) in image.endpoints().iter().enumerate() {
            let slot = endpoint.slot as usize;
            let Some(port) = ports.get_mut(slot) else {
                continue;
            };
            *port = match self.ports.get(slot) {
                Some(old) if old.id == endpoint.id => *old,
                _ => PortState {
                    endpoint: 0,
                    id: endpoint.id,
                    tenant: 0,
                    meter: Meter::full(now, &sends(endpoint)),
                    limits,
                    ..UNPLUGGED
                },
            };
            port.endpoint = u32::try_from(index).unwrap_or(NONE);
            port.tenant = image
                .subnets()
                .get(endpoint.subnet as usize)
                .map_or(NONE, |subnet| subnet.tenant);
            port.rate = sends(endpoint);
            port.weight = endpoint.weight;
            let all = image.tenants().get(port.tenant as usize);
            // Elsewhere its home has it pay.
            port.limited = self.config.workers.is_home(endpoint.slot)
                && (port.rate.is_limited() || all.is_some_and(|all| all.from.is_limited()));
            // It waits as long as the present rate says, not the one before.
            if guard!("rate-raised") {
                port.paused = match port.limited {
                    true => port.meter.free_at(&port.rate),
                    false => 0,
                };
            }
        }
        self.ports = ports;

        let old = core::mem::take(&mut self.tenants);
        self.tenants = image
            .tenants()
            .iter()
            .map(|tenant| {
                let rate = tenant.from;
                let kept = old.iter().find(|t| t.id == tenant.id);
                let whose = (tenant.id, Way::From);
                let before = kept.map(|old| &old.meter);
                let mut meter = TenantMeter::adopt(before, whose, &rate, now, self.among.as_ref());
                TenantState {
                    id: tenant.id,
                    // As of a port; of what several workers share the account is asked again.
                    paused: match rate.is_limited() && !meter.is_shared() {
                        true => meter.free_at(&rate),
                        false => 0,
                    },
                    meter,
                    rate,
                    floor: kept.map_or(0, |old| old.floor),
                }
            })
            .collect();

        let mut old = core::mem::take(&mut self.subnets);
        old.sort_unstable_by_key(|s| s.id);
        for subnet in image.subnets() {
            let advertises = subnet.flags & SUBNET_RA != 0
                && subnet.prefix6_len != 0
                && self.config.workers.this() == 0;
            let kept = old
                .binary_search_by_key(&subnet.id, |s| s.id)
                .ok()
                .and_then(|i| old.get(i))
                .copied();
            let state = match kept {
                Some(state) if (state.next_ra != Nanos::MAX) == advertises => state,
                _ => SubnetState {
                    id: subnet.id,
                    next_ra: if advertises {
                        now + self.random_below(500_000_000)
                    } else {
                        Nanos::MAX
                    },
                    initial: 3,
                    limits,
                },
            };
            self.subnets.push(state);
        }

        let segments = (0..).zip(image.subnets());
        let segments = segments.filter(|(_, subnet)| subnet.segment != 0);
        self.segments = segments.map(|(at, subnet)| (subnet.segment, at)).collect();
        self.segments.sort_unstable();

        let old = core::mem::take(&mut self.attachments);
        self.tags.clear();
        for (index, attachment) in image.attachments().iter().enumerate() {
            let limits = old
                .iter()
                .find(|a| a.tag == attachment.tag)
                .map_or(limits, |a| a.limits);
            self.attachments.push(AttachmentState {
                tag: attachment.tag,
                limits,
            });
            self.tags
                .push((attachment.tag, u32::try_from(index).unwrap_or(NONE)));
        }
        self.tags.sort_unstable();

        let mut old = core::mem::take(&mut self.crossings);
        old.sort_unstable_by_key(|c| c.tag);
        self.crossings.extend(image.crossings().iter().map(|c| {
            let kept = old.binary_search_by_key(&c.tag, |c| c.tag).ok();
            let kept = kept.and_then(|at| old.get(at)).copied();
            kept.unwrap_or(AttachmentState { tag: c.tag, limits })
        }));

        let mut old = core::mem::take(&mut self.neighbours);
        old.sort_unstable_by_key(|n| (n.tag, n.address));
        for hop in image.next_hops() {
            let tag = image
                .attachments()
                .get(hop.attachment as usize)
                .map_or(0, |a| a.tag);
            let kept = old
                .binary_search_by_key(&(tag, hop.address), |n| (n.tag, n.address))
                .ok();
            let fresh = NeighbourState {
                address: hop.address,
                tag,
                mac: [0; 6],
                known: false,
                tries: 0,
                since: 0,
                next: Nanos::MAX,
            };
            let mut state = kept.and_then(|i| old.get(i)).copied().unwrap_or(fresh);
            if hop.mac != [0; 6] {
                state = NeighbourState {
                    mac: hop.mac,
                    known: true,
                    since: Nanos::MAX,
                    ..fresh
                };
            }
            self.neighbours.push(state);
        }
        let workers = self.config.workers.count();
        self.tracking.adopt(image, workers, edit, now);
        self.cache.forget();
        self.plan();
    }

    /// The endpoint plugged in a slot, as an index into the image's endpoints.
    pub(crate) fn endpoint_at(&self, slot: Slot) -> Option<u32> {
        if slot == FABRIC {
            return None;
        }
        self.ports
            .get(slot as usize)
            .map(|p| p.endpoint)
            .filter(|e| *e != NONE)
    }

    /// The attachment that a fabric tag names.
    pub(crate) fn attachment_of(&self, tag: u16) -> Option<u32> {
        let at = self.tags.binary_search_by_key(&tag, |t| t.0).ok()?;
        self.tags.get(at).map(|t| t.1)
    }

    /// The subnet that a fabric tag names.
    pub(crate) fn segment_of(&self, tag: u16) -> Option<u32> {
        let at = self.segments.binary_search_by_key(&tag, |t| t.0).ok()?;
        self.segments.get(at).map(|t| t.1)
    }

    /// Whether what a slot sends is paid for here.
    pub(crate) fn is_limited(&self, slot: Slot) -> bool {
        let port = self.ports.get(slot as usize);
        port.is_some_and(|port| port.limited)
    }

    /// Whether an endpoint's rate and its tenant's have room for a frame.
    #[inline]
    pub(crate) fn free(&mut self, now: Nanos, slot: Slot) -> Paid {
        let Some(port) = self.ports.get_mut(slot as usize) else {
            return Paid::Nobody;
        };
        if !port.limited {
            return Paid::Yes;
        }
        let Some(tenant) = self.tenants.get_mut(port.tenant as usize) else {
            return Paid::Nobody;
        };
        let own = port.meter.is_free(now, &port.rate);
        let all = tenant.meter.is_free(now, &tenant.rate);
        match (own, all) {
            (true, true) => Paid::Yes,
            (false, _) => Paid::NotOwn,
            (true, false) => Paid::NotTenant,
        }
    }

    /// Has an endpoint wait, as if it had done so itself, where its tenant's other workers have
    /// used up what they all may send. Else there is something for its next frame.
    #[inline]
    pub(crate) fn look_among(&mut self, now: Nanos, slot: Slot) {
        if self.among.is_none() {
            return;
        }
        let port = self.ports.get(slot as usize).filter(|port| port.limited);
        let tenant = port.map(|port| port.tenant as usize);
        if let Some(tenant) = tenant.and_then(|tenant| self.tenants.get_mut(tenant))
            && now >= tenant.paused
            && tenant.meter.is_shared()
            && !tenant.meter.is_free(now, &tenant.rate)
        {
            tenant.paused = tenant.meter.free_at(&tenant.rate);
        }
    }

    /// What an endpoint may send now before its rates are asked again.
    pub(crate) fn credit(&mut self, now: Nanos, slot: Slot) -> Credit {
        let Some(port) = self.ports.get_mut(slot as usize) else {
            return Credit::NONE;
        };
        if !port.limited {
            return Credit::UNLIMITED;
        }
        let Some(tenant) = self.tenants.get_mut(port.tenant as usize) else {
            return Credit::NONE;
        };
        let own = port.meter.credit(now, &port.rate);
        own.and(tenant.meter.credit(now, &tenant.rate))
    }

    /// Charges both with what a frame of the endpoint's is on a wire; whether it waits now
    /// until they have room again.
    #[inline]
    pub(crate) fn charge(&mut self, slot: Slot, bytes: u64, packets: u64) -> bool {
        let Some(port) = self.ports.get_mut(slot as usize) else {
            return false;
        };
        if !port.limited {
            return false;
        }
        let Some(tenant) = self.tenants.get_mut(port.tenant as usize) else {
            return false;
        };
        port.meter.charge(&port.rate, bytes, packets);
        tenant.meter.charge(&tenant.rate, bytes, packets);
        // Who waits for the tenant's rate goes on in the order of what each had.
        port.served = served(
            port.served,
            &mut tenant.floor,
            &tenant.rate,
            bytes,
            port.weight,
        );
        port.paused = port.meter.free_at(&port.rate);
        tenant.paused = tenant.meter.free_at(&tenant.rate);
        port.paused | tenant.paused != 0
    }

    /// Recomputes the earliest deadline. Cost: subnets + next hops of this compartment.
    pub(crate) fn plan(&mut self) {
        let advertisements = self
            .subnets
            .iter()
            .map(|s| s.next_ra)
            .min()
            .unwrap_or(Nanos::MAX);
        let requests = self
            .neighbours
            .iter()
            .filter(|n| n.tries > 0)
            .map(|n| n.next)
            .min();
        self.deadline = advertisements
            .min(requests.unwrap_or(Nanos::MAX))
            .min(self.tracking.due);
    }

    /// A number below `n` (xorshift64*; spreads timers, protects nothing).
    pub(crate) fn random_below(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) % n.max(1)
    }
}

/// Whether a frame's rates had room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paid {
    /// They had, or there are none.
    Yes,
    /// The endpoint's had not.
    NotOwn,
    /// The tenant's had not.
    NotTenant,
    /// No image plugs the slot.
    Nobody,
}

/// What an endpoint may send.
pub(crate) fn sends(endpoint: &Endpoint) -> Rate {
    Rate {
        bytes: endpoint.rate_bytes,
        burst: endpoint.rate_burst,
        packets: endpoint.rate_packets,
    }
}
