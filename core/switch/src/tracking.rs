//! Connections and fragments of a compartment: sized by its image, swept in the
//! background, judged again after a change.

use crate::edit::{Edit, Edits};
use crate::frame::Leaving;
use crate::judgement::{End, again};
use crate::restoration::Restoration;
use crate::trace::Watch;
use crate::{Decided, Nanos};
use flow::{Connection, Connections, Direction, Found, Fragments, Rejudged, Side, Verdict};
use image::CompartmentImage;
use image::compartment::NONE;
use wire::Tuple;
use wire::parse::Ip;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Packets in fragments that an endpoint may have on the way.
const FRAGMENTED: u32 = 64;
/// How long after a connection found no place its answers are served without one.
const UNSTATED: Nanos = 30_000_000_000;
/// Connections looked at in one step of the sweep.
const STEP: u32 = 512;
/// Between two steps, while connections are there that another image let begin: all of
/// 1,000,000 are judged again in 4 s, those with traffic at their next packet.
const HURRY: Nanos = 2_000_000;
/// Between two steps otherwise.
const CALM: Nanos = 500_000_000;

/// All of it.
pub(crate) struct Tracking {
    pub(crate) connections: Connections,
    pub(crate) fragments: Fragments<Follows>,
    /// Number of the image in use, of this process's own counting.
    pub(crate) epoch: u32,
    /// What it and those before it changed.
    edits: Edits,
    pub(crate) seed: u64,
    /// What rules decided about the frame being handled.
    pub(crate) decided: Option<Decided>,
    /// The frame being handled is traced.
    pub(crate) watch: Option<Box<Watch>>,
    random: u64,
    pub(crate) restoration: Restoration,
    /// By owner ([`crate::slot_of`]): the endpoint's id, and how many connections.
    owners: Vec<(u32, u32)>,
    /// By owner: its connections found no place until then.
    full: Vec<Nanos>,
    /// When the sweep goes on; `Nanos::MAX` = nothing to sweep.
    pub(crate) due: Nanos,
    /// Rounds of the sweep that must end before all were judged by this image: the one
    /// under way, and a whole one.
    rounds: u8,
}

impl core::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tracking")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Tracking {
    /// Of nobody yet. `seed` is secret.
    pub(crate) fn new(seed: u64) -> Tracking {
        let keys = keys(seed);
        Tracking {
            connections: Connections::of_nobody(keys),
            fragments: Fragments::of_nobody(keys),
            epoch: 0,
            edits: Edits::default(),
            seed,
            decided: None,
            watch: None,
            random: seed | 1,
            restoration: Restoration::default(),
            owners: Vec::new(),
            full: Vec::new(),
            due: Nanos::MAX,
            rounds: 0,
        }
    }

    /// Takes over the connections of endpoints that are still there. What was let begin
    /// by another image is judged again: at its next packet, or by the sweep. An endpoint's
    /// connections are in equal shares with so many workers.
    pub(crate) fn adopt(
        &mut self,
        image: &CompartmentImage<'_>,
        workers: u32,
        edit: Edit,
        now: Nanos,
    ) {
        self.edits.push(edit);
        self.epoch = self.epoch.wrapping_add(1);
        let mut owners = Vec::new();
        for endpoint in image.endpoints() {
            let slot = endpoint.slot as usize;
            let judged =
                endpoint.egress != NONE || endpoint.ingress != NONE || endpoint.nat_index != NONE;
            if !judged {
                continue;
            }
            // As many for strangers as of its own: theirs never keep it from its own.
            let first = 2 * slot;
            if owners.len() < first + 2 {
                owners.resize(first + 2, (NONE, 0));
            }
            for owner in owners.iter_mut().skip(first).take(2) {
                *owner = (endpoint.id, endpoint.connections.div_ceil(workers));
            }
        }
        if !owners.is_empty() {
            // Who is not judged has the other side of connections, and no room of its own.
            let slots = image
                .endpoints()
                .iter()
                .map(|endpoint| endpoint.slot as usize);
            let last = slots.max().unwrap_or_default();
            owners.resize(owners.len().max(2 * last + 2), (NONE, 0));
        }
        let keys = keys(self.seed);
        if owners != self.owners {
            let stays = |owner: u32| {
                let of = |all: &[(u32, u32)]| all.get(owner as usize).map(|(id, _)| *id);
                of(&owners).is_some() && of(&owners) == of(&self.owners)
            };
            // The memory is not to be had: nobody has connections, and all are served
            // without state. The spec bounds what is asked for.
            if let Ok(resized) = Connections::named(keys, &owners) {
                let before = core::mem::replace(&mut self.connections, resized);
                self.connections.inherit(before, stays);
            }
            self.full = vec![0; owners.len()];
            self.owners = owners;
        }
        let slots = match self.owners.len() {
            0 => 0,
            // The fabric's slot has the fragments that come by a tag.
            n => n.max(1),
        };
        if let Ok(fragments) = Fragments::new(keys, slots, FRAGMENTED) {
            self.fragments = fragments;
        }
        self.rounds = 2;
        let on_their_way = self.connections.is_moving() || self.connections.unread() > 0;
        let idle = self.live() == 0 && !on_their_way;
        self.due = if idle { Nanos::MAX } else { now };
    }

    fn live(&self) -> u64 {
        (0..self.owners.len() as u32)
            .map(|owner| u64::from(self.connections.live(owner).0))
            .sum()
    }

    /// There is something to sweep from now on.
    pub(crate) fn wake(&mut self, now: Nanos) {
        if self.due == Nanos::MAX {
            self.due = now.saturating_add(CALM);
        }
    }

    /// A step of the sweep, if it is due, and first of moving to a new room and of restoring.
    /// Bound: [`STEP`] connections.
    pub(crate) fn sweep(&mut self, image: &CompartmentImage<'_>, now: Nanos) {
        if now < self.due || self.connections.move_some(now, STEP) || self.restore_more(image, now)
        {
            return;
        }
        let (epoch, edits) = (self.epoch, &self.edits);
        let swept =
            self.connections
                .sweep(now, STEP, epoch, &mut |connection| match judged(
                    image, epoch, edits, connection,
                ) {
                    Some(verdict) => Rejudged::Keep(verdict),
                    None => Rejudged::Cut,
                });
        if swept.ended {
            self.rounds = self.rounds.saturating_sub(1);
            if self.live() == 0 {
                self.due = Nanos::MAX;
                return;
            }
        }
        let next = if self.rounds > 0 { HURRY } else { CALM };
        self.due = now.saturating_add(next);
    }

    /// Judges a connection again, if another image let it begin; whether it stands.
    pub(crate) fn stands(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        found: Found,
    ) -> bool {
        if !self.connections.stale(found, self.epoch) {
            return true;
        }
        let connection = self.connections.connection(now, found.id);
        match connection.and_then(|c| judged(image, self.epoch, &self.edits, &c)) {
            Some(verdict) => {
                self.connections.rejudged(found, Rejudged::Keep(verdict));
                true
            }
            None => {
                self.connections.close(found);
                false
            }
        }
    }

    /// Whether a connection stands without a look at any rule: this image let it begin, or
    /// one lately, and nothing that changed since concerns it.
    pub(crate) fn stays(&mut self, found: Found) -> bool {
        if !self.connections.stale(found, self.epoch) {
            return true;
        }
        let (verdict, sides) = (
            self.connections.verdict(found),
            self.connections.sides(found),
        );
        let kept = verdict
            .zip(sides)
            .and_then(|(verdict, [a, b])| kept(self.epoch, &self.edits, verdict, &a, &b));
        if kept.is_some() {
            self.connections.renew(found, self.epoch);
        }
        kept.is_some()
    }

    /// The connection of a tuple; an endpoint's side may be its own or that of one who
    /// came as a stranger.
    pub(crate) fn find(&mut self, now: Nanos, from: End, tuple: &Tuple) -> Option<Found> {
        self.connections.find(now, from.owner, from.zone, tuple)
    }

    /// A connection of this owner found no place.
    pub(crate) fn is_full(&mut self, now: Nanos, owner: u32) {
        if self.watch.is_none()
            && let Some(full) = self.full.get_mut(owner as usize)
        {
            *full = now.saturating_add(UNSTATED);
        }
    }

    /// Whether one found none lately.
    pub(crate) fn was_full_lately(&self, now: Nanos, owner: u32) -> bool {
        self.full
            .get(owner as usize)
            .is_some_and(|until| *until > now)
    }

    /// A number below `n` (xorshift64*).
    pub(crate) fn random_below(&mut self, n: u32) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let random = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        (random as u32).checked_rem(n).unwrap_or(0)
    }
}

/// The verdict of a connection that another image let begin.
fn judged(
    image: &CompartmentImage<'_>,
    epoch: u32,
    edits: &Edits,
    connection: &Connection,
) -> Option<Verdict> {
    let (a, b) = (&connection.a, &connection.b);
    kept(epoch, edits, connection.verdict, a, b).or_else(|| again(image, epoch, a, b))
}

/// What it was, where nothing that changed since concerns the connection.
fn kept(epoch: u32, edits: &Edits, verdict: Verdict, a: &Side, b: &Side) -> Option<Verdict> {
    let ago = epoch.wrapping_sub(verdict.epoch);
    edits
        .leave(ago, a, b)
        .then_some(Verdict { epoch, ..verdict })
}

/// Two keys of one secret (splitmix64).
pub(crate) fn keys(seed: u64) -> [u64; 2] {
    let mut state = seed;
    [(); 2].map(|()| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    })
}

/// What becomes of a packet's later fragments.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Follows {
    source: [u8; 16],
    destination: [u8; 16],
    /// Connection's number and 1; 0 = none.
    connection: u32,
    back: u16,
    translated: u16,
    /// Where it goes: the owner and 1, 0 = the connection says; and by which zone.
    to: u32,
    zone: u32,
}

impl Follows {
    pub(crate) fn new(found: Option<Found>, leaving: Leaving, to: Option<End>) -> Follows {
        let (source, destination, translated) = match leaving {
            Leaving::As(tuple) => (tuple.source, tuple.destination, 1),
            _ => ([0; 16], [0; 16], 0),
        };
        Follows {
            source,
            destination,
            connection: found.map_or(0, |found| found.id.saturating_add(1)),
            back: found.map_or(0, |found| found.direction as u16),
            translated,
            to: to.map_or(0, |to| to.owner.saturating_add(1)),
            zone: to.map_or(0, |to| to.zone.into()),
        }
    }

    /// Whether the first went there, as far as that is known.
    pub(crate) fn leads_to(&self, to: Option<End>) -> bool {
        match (self.to.checked_sub(1), to) {
            (Some(owner), Some(to)) => (owner, self.zone) == (to.owner, to.zone.into()),
            _ => true,
        }
    }

    pub(crate) fn found(&self) -> Option<Found> {
        Some(Found {
            id: self.connection.checked_sub(1)?,
            direction: match self.back {
                0 => Direction::Forth,
                _ => Direction::Back,
            },
        })
    }

    pub(crate) fn leaving(&self, ip: &Ip) -> Leaving {
        match self.translated {
            0 => Leaving::Same,
            _ => Leaving::As(Tuple {
                source: self.source,
                destination: self.destination,
                source_port: 0,
                destination_port: 0,
                protocol: ip.protocol,
            }),
        }
    }
}
