//! What was decided about a packet is done again with the next one like it: the guard, the
//! way and the rules see only what two packets of one flow have in common, so a packet
//! whose first bytes are those of one that passed passes as that did. What differs from
//! packet to packet is looked at each time: lengths, checksum, hop limit, meters, the state
//! of the connection.
//!
//! Two tables, both bounded and overwritten where they are full: flows, by addresses and
//! ports, name the connection as well; ways, by addresses alone, serve packets whose flow
//! is not there, and their connection is looked up. A packet that finds nothing, or is in
//! any way odd, is judged anew and nothing is lost but time. Who fills the tables wins
//! nothing: the hash is keyed, so nobody knows whom he overwrites, and what is
//! overwritten costs a look-up.

mod plain;

pub use plain::LEAST;
use plain::{Key, Plain, WAY_4, differ};

use crate::decision::{Decision, Egress};
use crate::frame::{Frame, Leaving, Sender};
use crate::judgement::{End, Met};
use crate::state::State;
use crate::tracking::Tracking;
use crate::{Nanos, Outgoing, Slot};
use flow::{AHEAD, Direction, Found};
use guard::guard;
use image::CompartmentImage;
use image::compartment::FEATURE_CSUM;
use wire::offload::RawOffload;
use wire::parse::{Fragment, Transport, Version};
use wire::{Tuple, ethernet, ipv4};
use zerocopy::{FromBytes, FromZeros, Immutable, KnownLayout};

/// Flows at most, a power of two.
const FLOWS: usize = 8192;
/// Ways at most, a power of two.
const WAYS: usize = 512;
/// Of those that take the place of another, one in so many does.
const REPLACES: u64 = 16;

/// A packet that is sent as one before it was.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Where to.
    pub slot: Slot,
    /// Offload fields, built anew.
    pub offload: RawOffload,
}

impl Hit {
    /// What is to be sent, of a frame of so many bytes whose first are `head`.
    #[inline(always)]
    pub fn outgoing<'a>(&self, head: &'a [u8], total: usize) -> Outgoing<'a> {
        Outgoing {
            slot: self.slot,
            tag: 0,
            offload: self.offload,
            head,
            rest_from: head.len(),
            total,
            segments: 1,
            wire: total,
            came_by: 0,
        }
    }
}

const ROUTED: u8 = 1;
/// Whoever gets it finishes checksums.
const FINISHES: u8 = 2;
/// No rule is asked, and no connection remembered.
const FREE: u8 = 4;
/// The connection's responder sent it.
const BACK: u8 = 8;
/// Another worker handles it, and `to` stands for that one.
const ELSEWHERE: u8 = 16;

/// A flow or a way, and what is done with its packets. All zeroes: nothing.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    key: Key,
    /// Of the cache when this was written; another says nothing.
    version: u32,
    to: Slot,
    /// Of a flow.
    connection: u32,
    generation: u32,
    mtu: u16,
    /// Destination and source behind the gateway.
    macs: [u8; 12],
    flags: u8,
    reserved: [u8; 1],
}

impl Entry {
    #[inline(always)]
    fn is(&self, version: u32, key: &Key) -> bool {
        differ(&self.key, key) | u64::from(self.version ^ version) == 0
    }

    #[inline(always)]
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline(always)]
    fn found(&self) -> Found {
        Found {
            id: self.connection,
            direction: match self.has(BACK) {
                true => Direction::Back,
                false => Direction::Forth,
            },
        }
    }
}

/// What the next packets of one slot will most likely find.
struct Ahead {
    keys: [Key; AHEAD],
    found: [Option<Found>; AHEAD],
    /// The next of them.
    next: usize,
}

impl Ahead {
    const NONE: Ahead = Ahead {
        keys: [[0; 5]; AHEAD],
        found: [None; AHEAD],
        next: AHEAD,
    };

    /// What was foreseen of a packet, and of none before it any more.
    fn of(&mut self, key: &Key) -> Option<Found> {
        let at = (self.next..AHEAD)
            .find(|at| self.keys.get(*at).is_some_and(|it| differ(it, key) == 0))?;
        self.next = at + 1;
        *self.found.get(at)?
    }
}

/// Both tables.
pub(crate) struct Cache {
    flows: Vec<Entry>,
    ways: Vec<Entry>,
    /// What was written under another is not believed.
    version: u32,
    keys: [u64; 2],
    random: u64,
    ahead: Ahead,
    /// Look-ups in the tables of connections since this was last asked, and attempts at one.
    pub(crate) sought: usize,
    /// Those whose flow was not there; and whether most were.
    missed: usize,
    misses: bool,
}

impl core::fmt::Debug for Cache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cache")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Empty; `keys` are secret. Its memory is touched as it is used.
    pub(crate) fn new(keys: [u64; 2]) -> Cache {
        let table = |entries| Entry::new_vec_zeroed(entries).unwrap_or_default();
        Cache {
            // One more than are looked through.
            flows: table(FLOWS + 1),
            ways: table(WAYS),
            version: 1,
            keys,
            random: keys[0] | 1,
            ahead: Ahead::NONE,
            sought: 0,
            missed: 0,
            misses: false,
        }
    }

    /// Forgets everything: what was decided may be decided otherwise now.
    pub(crate) fn forget(&mut self) {
        if guard!("hits-forget") {
            self.version = self.version.wrapping_add(1).max(1);
        }
    }

    /// A keyed hash by one long multiplication of what differs most between flows (as in
    /// wyhash; W. Yi). Collisions cost time alone.
    #[inline(always)]
    fn hash(&self, key: &Key) -> usize {
        let a = u128::from(key[3] ^ self.keys[0]);
        let b = u128::from(key[4] ^ key[0].rotate_left(48) ^ self.keys[1]);
        let product = a * b;
        (product as u64 ^ (product >> 64) as u64 ^ key[2] >> 56) as usize
    }

    /// Where a flow is, in the set that begins at `first`.
    #[inline(always)]
    fn flow(&self, first: usize, key: &Key) -> Option<usize> {
        let is = |at: usize| self.flows.get(at).is_some_and(|e| e.is(self.version, key));
        if is(first) {
            Some(first)
        } else if is(first + 1) {
            Some(first + 1)
        } else {
            None
        }
    }

    fn way(&self, key: &Key) -> Option<&Entry> {
        let entry = self.ways.get(self.hash(key) & (WAYS - 1))?;
        entry.is(self.version, key).then_some(entry)
    }

    /// Writes a flow where there is none of this version, else over another in some cases;
    /// where it is: for this once behind the others, where it took nobody's place.
    fn put_flow(&mut self, entry: Entry) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let first = self.hash(&entry.key) & (FLOWS - 2);
        let free = |at: &usize| {
            let old = self.flows.get(*at);
            old.is_some_and(|old| old.version != self.version || old.key == entry.key)
        };
        let at = match [first, first + 1].iter().find(|at| free(at)) {
            Some(at) => *at,
            None if self.random.is_multiple_of(REPLACES) => {
                first + (self.random >> 32 & 1) as usize
            }
            None => FLOWS,
        };
        if let Some(place) = self.flows.get_mut(at) {
            *place = entry;
        }
        at
    }

    fn put_way(&mut self, entry: Entry) {
        let at = self.hash(&entry.key) & (WAYS - 1);
        if let Some(place) = self.ways.get_mut(at) {
            *place = entry;
        }
    }
}

const fn way_key(key: &Key) -> Key {
    [key[0], key[1], key[2], key[3], key[4] & WAY_4]
}

/// Sends a packet the way of one that was like it, if there was one: its head is rewritten
/// and it is counted by its connection. `None`: nothing happened, and it is to be judged.
#[inline(always)]
pub(crate) fn hit(
    state: &mut State,
    now: Nanos,
    from: Slot,
    raw: &RawOffload,
    head: &mut [u8],
    total: usize,
) -> Option<Hit> {
    let packet = Plain::of(from, head)?;
    let first = state.cache.hash(&packet.key) & (FLOWS - 2);
    let at = match state.cache.flow(first, &packet.key) {
        Some(at) => at,
        None => connect(state, now, from, head)?,
    };
    let State {
        cache, tracking, ..
    } = state;
    let entry = cache.flows.get(at)?;
    if !packet.is_summed() || !packet.fits(total) {
        return None;
    }
    if total - ethernet::HEADER > usize::from(entry.mtu) && guard!("hit-mtu") {
        return elsewhere(entry, raw);
    }
    if entry.has(ROUTED) && packet.hop_limit() <= 1 && guard!("hit-hop-limit") {
        return None;
    }
    let offload = packet.offload(raw, total, entry)?;
    if !entry.has(FREE) {
        let (found, generation) = (entry.found(), entry.generation);
        let connections = &mut tracking.connections;
        if packet.is_tcp() || !connections.hit(now, found, generation, None, total as u32) {
            step(tracking, now, entry, head, total as u32)?;
        }
    }
    leaves(entry, head, offload)
}

/// A segment, or a packet that changes more of its connection than counts.
#[inline(never)]
fn step(tracking: &mut Tracking, now: Nanos, entry: &Entry, head: &[u8], bytes: u32) -> Option<()> {
    let packet = Plain::of(0, head)?;
    if packet.begins() {
        return None;
    }
    let segment = packet.segment();
    let facts = packet.is_tcp().then_some(&segment);
    let (found, generation) = (entry.found(), entry.generation);
    let connections = &mut tracking.connections;
    let passes = facts.is_some() && connections.hit(now, found, generation, facts, bytes)
        || connections.step(now, found, generation, facts, bytes);
    passes.then_some(())
}

#[inline(always)]
fn leaves(entry: &Entry, head: &mut [u8], offload: RawOffload) -> Option<Hit> {
    if entry.has(ROUTED) {
        readdress(head, &entry.macs)?;
    }
    Some(Hit {
        slot: entry.to,
        offload,
    })
}

/// Where it is another worker's: as it came, and all is its owner's to look at.
#[inline(never)]
fn elsewhere(entry: &Entry, raw: &RawOffload) -> Option<Hit> {
    entry.has(ELSEWHERE).then_some(Hit {
        slot: entry.to,
        offload: *raw,
    })
}

/// Remembers that frames like this are another worker's, and what stands for that one.
pub(crate) fn remember_owner(state: &mut State, from: Slot, head: &[u8], to: Slot) {
    let Some(packet) = Plain::of(from, head) else {
        return;
    };
    if !packet.is_plain() || packet.is_dhcp() {
        return;
    }
    let entry = Entry {
        key: packet.key,
        version: state.cache.version,
        to,
        connection: 0,
        generation: 0,
        // Every frame is longer.
        mtu: 0,
        macs: [0; 12],
        flags: ELSEWHERE | FREE,
        reserved: [0; 1],
    };
    if !packet.begins() {
        state.cache.put_flow(entry);
    }
    state.cache.put_way(Entry {
        key: way_key(&packet.key),
        ..entry
    });
}

/// Puts the gateway's MAC and the receiver's in, and counts the hop.
#[inline(never)]
fn readdress(head: &mut [u8], macs: &[u8; 12]) -> Option<()> {
    let (link, rest) = head.split_first_chunk_mut::<12>()?;
    *link = *macs;
    ipv4::decrement_ttl(rest.get_mut(ethernet::HEADER - 12..)?)?;
    Some(())
}

/// How many packets were looked up since this was last asked.
pub(crate) fn sought(state: &mut State) -> usize {
    core::mem::take(&mut state.cache.sought)
}

/// Whether more than half of the last packets were of flows that are not there: of those
/// since this was last asked, where there were [`AHEAD`] of them.
#[inline(always)]
pub(crate) fn misses(state: &mut State, packets: usize) -> bool {
    let missed = core::mem::take(&mut state.cache.missed);
    if packets >= AHEAD {
        state.cache.misses = missed * 2 > packets;
    }
    state.cache.misses
}

/// Looks the next packets of a slot up together, of which the first bytes are these.
#[inline(never)]
pub(crate) fn foresee(state: &mut State, from: Slot, heads: &[[u8; LEAST]]) {
    let State {
        cache, tracking, ..
    } = state;
    let heads = heads.get(..heads.len().min(AHEAD)).unwrap_or(&[]);
    let mut tuples = [Tuple::default(); AHEAD];
    cache.ahead.keys = [[0; 5]; AHEAD];
    let places = cache.ahead.keys.iter_mut().zip(&mut tuples);
    for (head, (key, tuple)) in heads.iter().zip(places) {
        if let Some(packet) = Plain::of(from, head) {
            (*key, *tuple) = (packet.key, packet.tuple());
        }
    }
    // Theirs among the flows, too, is asked for here.
    let mut pulled = 0;
    for key in &cache.ahead.keys {
        let first = cache.hash(key) & (FLOWS - 2);
        for at in [first, first + 1] {
            let entry = cache.flows.get(at);
            pulled ^= entry.map_or(0, |entry| entry.key[0] as u32 ^ entry.version);
        }
    }
    core::hint::black_box(pulled);
    let End { owner, zone } = End::at(from);
    let tuples = tuples.get(..heads.len()).unwrap_or(&[]);
    let found = &mut cache.ahead.found;
    tracking.connections.foresee(owner, zone, tuples, found);
    cache.ahead.next = 0;
}

/// A packet whose way is known and whose flow is not: the connection is looked up, and the
/// flow known from now on.
#[inline(never)]
fn connect(state: &mut State, now: Nanos, from: Slot, head: &[u8]) -> Option<usize> {
    let packet = Plain::of(from, head)?;
    let foreseen = state.cache.ahead.of(&packet.key);
    let way = *state.cache.way(&way_key(&packet.key))?;
    // What begins a connection is not looked for.
    if packet.begins() || packet.is_dhcp() || state.tracking.watch.is_some() {
        return None;
    }
    // Connections may end by this, and what passed of them has to be told first.
    if !state.tracking.connections.may_end() {
        return None;
    }
    state.cache.missed += 1;
    state.cache.sought += match way.has(ELSEWHERE) {
        // Most of what another worker does for a flow that begins.
        true => 8,
        false => usize::from(!way.has(FREE)),
    };
    let mut entry = Entry {
        key: packet.key,
        ..way
    };
    if !way.has(FREE) {
        let tracking = &mut state.tracking;
        let (End { owner, zone }, tuple) = (End::at(from), packet.tuple());
        let connections = &tracking.connections;
        let found = foreseen.and_then(|it| connections.confirm(now, it, owner, zone, &tuple));
        let found = match found {
            Some(found) => found,
            None => tracking.find(now, End::at(from), &tuple)?,
        };
        if !tracking.stays(found) {
            return None;
        }
        let far = tracking.connections.far(found);
        let leads = far.is_some_and(|(owner, zone)| {
            (crate::slot_of(owner), zone) == (way.to, 0)
                && !tracking.connections.is_translated(found)
        });
        if !leads && guard!("hit-leads") {
            return None;
        }
        entry.connection = found.id;
        entry.generation = tracking.connections.generation(found);
        if found.direction == Direction::Back {
            entry.flags |= BACK;
        }
    }
    Some(state.cache.put_flow(entry))
}

/// Remembers what was decided about a frame that passes.
pub(crate) fn remember(
    state: &mut State,
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    frame: &Frame<'_>,
    decision: &Decision,
    met: Met,
    head: &[u8],
) {
    let (index, hop) = match decision {
        Decision::Bridge(index) => (*index, None),
        Decision::Route(hop) => match hop.egress {
            Egress::Endpoint(index) => (index, Some(hop)),
            _ => return,
        },
        _ => return,
    };
    let Some(ip) = frame.parsed.ip() else { return };
    let whole = ip.fragment == Fragment::Whole && ip.version == Version::V4;
    let known = matches!(ip.transport, Transport::Tcp { .. } | Transport::Udp { .. });
    let Some(packet) = Plain::of(frame.from, head) else {
        return;
    };
    if !(whole && known && packet.is_plain())
        || packet.begins()
        || packet.is_dhcp()
        || frame.leaving != Leaving::Same
        || frame.offload.gso().is_some()
        || state.tracking.watch.is_some()
        || sender.endpoint.slot != frame.from
    {
        return;
    }
    let Some(to) = image.endpoints().get(index as usize) else {
        return;
    };
    if crate::admission::state(to).is_err() {
        return;
    }
    let mut flags = 0;
    if to.features & state.taken(to.slot) & FEATURE_CSUM != 0 {
        flags |= FINISHES;
    }
    let mut macs = [0; 12];
    if let Some(hop) = hop {
        flags |= ROUTED;
        let (destination, source) = macs.split_at_mut(6);
        destination.copy_from_slice(&hop.destination.0);
        source.copy_from_slice(&hop.source.0);
    }
    let way = Entry {
        key: way_key(&packet.key),
        version: state.cache.version,
        to: to.slot,
        connection: 0,
        generation: 0,
        mtu: to.mtu,
        macs,
        flags: flags | if matches!(met, Met::Nobody) { FREE } else { 0 },
        reserved: [0; 1],
    };
    match met {
        Met::Anew => return,
        Met::Nobody => {}
        Met::Known(found) => {
            let back = match found.direction {
                Direction::Forth => 0,
                Direction::Back => BACK,
            };
            state.cache.put_flow(Entry {
                key: packet.key,
                connection: found.id,
                generation: state.tracking.connections.generation(found),
                flags: way.flags | back,
                ..way
            });
        }
    }
    state.cache.put_way(way);
}
