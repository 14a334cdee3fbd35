//! Which later fragments follow which first (virtual reassembly: nothing is held back).
//!
//! A later fragment names no ports, so that it cannot be judged: it passes if the first
//! of its packet passed before, and does what that one did. One that comes before its
//! first, overlaps another, or leaves more gaps than [`RANGES`] counts is dropped.
//! Each owner has as many packets in the making as [`Fragments::new`] was told; a new
//! one takes the place of the oldest.

use guard::guard;
use wire::Tuple;
use wire::parse::{Fragment, Ip, Version};
use zerocopy::{FromBytes, FromZeros, Immutable, KnownLayout};

use crate::connections::TooMany;
use crate::index;
use crate::record::tick;
use crate::state::SECOND;

/// Packets in the making that an owner has by default.
pub const PACKETS: u32 = 64;
/// Later fragments follow a first for so long, nanoseconds. Hosts wait longer (RFC 791:
/// 15 s; RFC 8200: 60 s), but what takes so long on the way is lost.
pub const HOLD: u64 = 8 * SECOND;
/// Runs of fragments of one packet that may stand apart: how far they may overtake each
/// other.
pub const RANGES: usize = 4;

/// Why a later fragment is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfollowed {
    /// Its first did not pass, or not lately.
    Unknown,
    /// It overlaps one that passed (RFC 5722 for IPv6; RFC 1858).
    Overlap,
    /// Too many gaps.
    Gaps,
}

impl core::fmt::Display for Unfollowed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Unfollowed::Unknown => "a fragment whose first did not pass",
            Unfollowed::Overlap => "a fragment that overlaps another",
            Unfollowed::Gaps => "fragments too far out of order",
        })
    }
}

impl core::error::Error for Unfollowed {}

/// What a slot is of, quick to look through. A tag of 0: nothing.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Mark {
    tag: u32,
    since: u32,
}

/// A packet in the making.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Packet {
    source: [u8; 16],
    destination: [u8; 16],
    id: u32,
    zone: u16,
    protocol: u16,
    /// What passed of it, bytes: from, and the one after. Empty ones are (0, 0).
    ranges: [[u16; 2]; RANGES],
}

/// Packets in the making, and what was judged of each: `T`, the caller's.
pub struct Fragments<T> {
    seed: [u64; 2],
    owners: usize,
    each: usize,
    marks: Vec<Mark>,
    packets: Vec<Packet>,
    judged: Vec<T>,
}

impl<T: Copy + FromZeros> Fragments<T> {
    /// Of nobody: none is remembered.
    pub const fn of_nobody(seed: [u64; 2]) -> Fragments<T> {
        Fragments {
            seed,
            owners: 0,
            each: 0,
            marks: Vec::new(),
            packets: Vec::new(),
            judged: Vec::new(),
        }
    }

    /// Room for `each` packets of each of `owners`. `seed` is random and told to nobody.
    /// All memory is reserved here and becomes resident as it is used.
    ///
    /// # Errors
    /// [`TooMany`]: the memory is not to be had.
    pub fn new(seed: [u64; 2], owners: usize, each: u32) -> Result<Fragments<T>, TooMany> {
        let each = each as usize;
        let size = owners.checked_mul(each).ok_or(TooMany)?;
        Ok(Fragments {
            seed,
            owners,
            each,
            marks: Mark::new_vec_zeroed(size).map_err(|_| TooMany)?,
            packets: Packet::new_vec_zeroed(size).map_err(|_| TooMany)?,
            judged: T::new_vec_zeroed(size).map_err(|_| TooMany)?,
        })
    }

    /// Remembers what was judged of a first fragment that passes. Another first of the
    /// same packet begins it anew. Nothing happens if it is no first fragment or there is
    /// no such owner.
    pub fn first(&mut self, now: u64, owner: u32, zone: u16, ip: &Ip, judged: T) {
        if ip.fragment != Fragment::First {
            return;
        }
        let packet = Packet::of(zone, ip);
        let tag = self.tag(owner, &packet);
        let Some(at) = self
            .look(now, owner, tag, &packet)
            .or_else(|| self.oldest(now, owner))
        else {
            return;
        };
        if let (Some(mark), Some(slot), Some(kept)) = (
            self.marks.get_mut(at),
            self.packets.get_mut(at),
            self.judged.get_mut(at),
        ) {
            *mark = Mark {
                tag,
                since: tick(now),
            };
            *slot = packet;
            *kept = judged;
        }
    }

    /// What was judged of the first fragment that this later one follows.
    ///
    /// # Errors
    /// [`Unfollowed`]: it is dropped.
    pub fn later(&mut self, now: u64, owner: u32, zone: u16, ip: &Ip) -> Result<T, Unfollowed> {
        let packet = Packet::of(zone, ip);
        let tag = self.tag(owner, &packet);
        let at = self
            .look(now, owner, tag, &packet)
            .ok_or(Unfollowed::Unknown)?;
        let judged = self.judged.get(at).copied().ok_or(Unfollowed::Unknown)?;
        let slot = self.packets.get_mut(at).ok_or(Unfollowed::Unknown)?;
        // What it covers is the first range of its own.
        let [covers, ..] = packet.ranges;
        add(&mut slot.ranges, covers)?;
        Ok(judged)
    }

    /// Packets in the making of an owner, old ones too.
    pub fn live(&self, owner: u32) -> usize {
        let marks = self.marks.get(self.range(owner)).unwrap_or_default();
        marks.iter().filter(|mark| mark.tag != 0).count()
    }

    fn range(&self, owner: u32) -> core::ops::Range<usize> {
        let owner = owner as usize;
        if owner >= self.owners {
            return 0..0;
        }
        owner * self.each..(owner + 1) * self.each
    }

    fn tag(&self, owner: u32, packet: &Packet) -> u32 {
        let tuple = Tuple {
            source: packet.source,
            destination: packet.destination,
            source_port: (packet.id >> 16) as u16,
            destination_port: packet.id as u16,
            protocol: packet.protocol as u8,
        };
        index::hash(self.seed, owner, packet.zone, &tuple) as u32 | 1
    }

    /// Bound: the packets of one owner.
    fn look(&self, now: u64, owner: u32, tag: u32, packet: &Packet) -> Option<usize> {
        self.range(owner).find(|&at| {
            let fresh = self.marks.get(at).is_some_and(|mark| {
                mark.tag == tag && !(guard!("fragment-hold") && over(mark, now))
            });
            fresh && self.packets.get(at).is_some_and(|slot| slot.is(packet))
        })
    }

    fn oldest(&self, now: u64, owner: u32) -> Option<usize> {
        let age = |at: &usize| match self.marks.get(*at) {
            Some(mark) if mark.tag != 0 => tick(now).wrapping_sub(mark.since),
            _ => u32::MAX,
        };
        self.range(owner).max_by_key(age)
    }
}

/// The first came longer ago than [`HOLD`].
const fn over(mark: &Mark, now: u64) -> bool {
    tick(now).wrapping_sub(mark.since) as u64 > HOLD >> 24
}

impl Packet {
    fn of(zone: u16, ip: &Ip) -> Packet {
        // Before a first fragment's data in IPv6 its fragment header is taken to be all
        // there is: other headers belong to the data, as senders have it, and one that
        // stands before is counted as data, so that never too little is covered.
        let headers = ip.header_len
            + match (ip.version, ip.fragment) {
                (Version::V4, _) => 0,
                (Version::V6, Fragment::First) => 8,
                (Version::V6, _) => ip.extension_len,
            };
        let length = ip.packet_len.saturating_sub(headers) as u16;
        Packet {
            source: ip.source,
            destination: ip.destination,
            id: ip.fragment_id,
            zone,
            // In IPv6 the first alone says it, and receivers join without (RFC 8200,
            // section 4.5).
            protocol: match ip.version {
                Version::V4 => u16::from(ip.protocol),
                Version::V6 => 0x100,
            },
            ranges: {
                let mut ranges = [[0; 2]; RANGES];
                let place = ip.fragment_place;
                ranges[0] = [place, place.saturating_add(length)];
                ranges
            },
        }
    }

    fn is(&self, other: &Packet) -> bool {
        self.source == other.source
            && self.destination == other.destination
            && (self.id, self.zone, self.protocol) == (other.id, other.zone, other.protocol)
    }
}

/// Adds a range, joined with those that it touches. Bound: [`RANGES`] turns.
fn add(ranges: &mut [[u16; 2]; RANGES], [mut start, mut end]: [u16; 2]) -> Result<(), Unfollowed> {
    let empty = |range: &[u16; 2]| range[0] == range[1];
    let overlaps = |range: &[u16; 2]| start < range[1] && range[0] < end;
    if guard!("fragment-overlap") && ranges.iter().any(|r| !empty(r) && overlaps(r)) {
        return Err(Unfollowed::Overlap);
    }
    let touches = |range: &[u16; 2]| range[1] == start || range[0] == end;
    if !ranges.iter().any(|range| empty(range) || touches(range)) {
        return Err(Unfollowed::Gaps);
    }
    for range in ranges.iter_mut().filter(|range| !empty(range)) {
        if range[1] == start {
            start = range[0];
            *range = [0; 2];
        } else if range[0] == end {
            end = range[1];
            *range = [0; 2];
        }
    }
    if let Some(range) = ranges.iter_mut().find(|range| empty(range)) {
        *range = [start, end];
    }
    Ok(())
}
