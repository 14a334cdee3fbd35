//! All connections of a compartment, in storage that is sized once.
//!
//! A connection costs 120 bytes of record, 8 of its owner's sets, 2 of the heads of the
//! answers' chains and 4 of the counts of half-open ones by zone (`shares`): 134 bytes, so
//! that a million are 127.8 MiB. Nothing of it is resident before it is used, of the counts
//! as much as there are zones that have half-open ones. A translated one costs 36 bytes more, and one that both
//! sides agreed to 96 in the journal.
//!
//! The side of the initiator lies in its owner's sets (`index`), the side of
//! the responder in one table of chains for the whole compartment. That table evicts
//! nobody: it has room for as many as there are records, and who may have how many
//! records is each owner's own matter. Its chains are short since the hash is keyed;
//! one longer than [`CHAIN`] takes no more.

mod ahead;
mod kept;
mod moving;
mod places;
mod told;
mod visits;

use guard::guard;
use wire::{Tuple, tcp};
use zerocopy::FromZeros;

use crate::index::{self, MOST, Places, Sets};
use crate::journal::Journal;
use crate::record::{RECORD, Record, TRANSLATED, Translation, WAITS};
use crate::segment::{Kind, Segment, Tcp as TcpFacts};
use crate::shares::{self, Shares};
use crate::state::{Invalid, State};
use crate::tally::{Tally, WAITING};
use crate::tcp::Step;
use moving::{Former, Waiting};

pub use ahead::AHEAD;
pub use told::{
    Connection, Counters, Cursor, Direction, Found, Judgement, Refused, Rejudged, Resumed, Side,
    Swept, TooMany, Verdict,
};

/// Answers under one head at most. With half as many heads as records a chain of 33 is
/// less likely than 10^-27.
pub const CHAIN: usize = 32;
/// Owners at most.
pub const OWNERS: usize = 1 << 16;
/// Bytes of memory that a connection takes, index included, translation not.
pub const BYTES: usize =
    RECORD + size_of::<u32>() * index::SLACK as usize + size_of::<u32>() / 2 + shares::BYTES / 4;

/// One owner's bounds.
struct Owner {
    /// What the caller calls it.
    name: u32,
    first_record: u32,
    capacity: u32,
    first_set: u32,
    sets: u32,
    /// Records ever used; those beyond are untouched memory.
    used: u32,
    /// The first free one below that, and 1.
    free: u32,
    live: u32,
    half_open: u32,
    /// Zones that have a half-open one.
    zones: u32,
    hand: u32,
    counters: Counters,
}

/// All connections of a compartment.
pub struct Connections {
    seed: [u64; 2],
    owners: Vec<Owner>,
    sets: Sets,
    shares: Shares,
    heads: Vec<u32>,
    records: Vec<Record>,
    translations: Vec<Translation>,
    /// Where the sweep goes on: an owner, and a record of it.
    cursor: (usize, u32),
    journal: Option<Journal>,
    former: Option<Box<Former>>,
    waiting: Option<Box<Waiting>>,
    /// Nobody gives way to whoever comes.
    all_stay: bool,
    /// What passed of connections and is to be told.
    tallies: Vec<Tally>,
    /// How many connections ended that had this number, modulo [`GENERATIONS`]: who keeps
    /// one's number sees whether it may be another's now.
    generations: Vec<u32>,
}

/// Numbers whose ends are counted apart.
const GENERATIONS: usize = 4096;

impl Connections {
    /// As [`Connections::named`], of owners that are called nothing.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn new(seed: [u64; 2], capacities: &[u32]) -> Result<Connections, TooMany> {
        let owners: Vec<(u32, u32)> = capacities.iter().map(|&capacity| (0, capacity)).collect();
        Connections::named(seed, &owners)
    }

    /// Of nobody: none of it is found, opened or restored.
    pub const fn of_nobody(seed: [u64; 2]) -> Connections {
        Connections {
            seed,
            owners: Vec::new(),
            sets: Sets::NONE,
            shares: Shares::NONE,
            heads: Vec::new(),
            records: Vec::new(),
            translations: Vec::new(),
            cursor: (0, 0),
            journal: None,
            former: None,
            waiting: None,
            all_stay: false,
            tallies: Vec::new(),
            generations: Vec::new(),
        }
    }

    /// Whether no connection gives way to another from now on: one that begins and finds no
    /// free place gets none.
    pub const fn let_all_stay(&mut self, stay: bool) {
        self.all_stay = stay;
    }

    /// Room for as many connections of each owner as is said beside its name, by which a
    /// successor knows it again. `seed` is random and told to nobody. The memory is
    /// reserved here, once, and becomes resident as it is used.
    ///
    /// # Errors
    /// [`TooMany`]: more than [`OWNERS`] owners, 16,777,214 connections of one, or
    /// 2^32 - 1 together; or the memory is not to be had.
    pub fn named(seed: [u64; 2], all: &[(u32, u32)]) -> Result<Connections, TooMany> {
        if all.len() > OWNERS || all.iter().any(|&(_, capacity)| capacity > MOST) {
            return Err(TooMany);
        }
        let (mut records, mut sets, mut half_open) = (0u32, 0u32, 0usize);
        let mut owners = Vec::with_capacity(all.len());
        for &(name, capacity) in all {
            let own = index::sets(capacity);
            owners.push(Owner {
                name,
                first_record: records,
                capacity,
                first_set: sets,
                sets: own,
                used: 0,
                free: 0,
                live: 0,
                half_open: 0,
                zones: 0,
                hand: 0,
                counters: Counters::default(),
            });
            records = records.checked_add(capacity).ok_or(TooMany)?;
            sets = sets.checked_add(own).ok_or(TooMany)?;
            half_open += places::quarter(capacity) as usize;
        }
        let size = records as usize;
        Ok(Connections {
            owners,
            sets: Sets::new(sets as usize).ok_or(TooMany)?,
            // A newcomer is counted before another makes way for it.
            shares: Shares::new(seed[0], half_open + 1).ok_or(TooMany)?,
            heads: u32::new_vec_zeroed(size.div_ceil(2)).map_err(|_| TooMany)?,
            records: Record::new_vec_zeroed(size).map_err(|_| TooMany)?,
            translations: Translation::new_vec_zeroed(size).map_err(|_| TooMany)?,
            tallies: Vec::with_capacity(WAITING),
            generations: vec![0; GENERATIONS],
            ..Connections::of_nobody(seed)
        })
    }

    /// The connection that a packet of `owner`'s side in `zone` belongs to.
    pub fn find(&mut self, now: u64, owner: u32, zone: u16, tuple: &Tuple) -> Option<Found> {
        let hash = index::hash(self.seed, owner, zone, tuple);
        self.fetch(now, hash, owner, zone, tuple);
        let found = self.look(hash, owner, zone, tuple)?;
        let record = self.record(found.id)?;
        if record.expired(now) {
            self.remove(found.id, |counters| &mut counters.expired);
            return None;
        }
        if self.waiting.is_some() && !self.goes_on(record) {
            self.close(found);
            return None;
        }
        Some(found)
    }

    /// Opens the connection that `segment` is the first packet of, from `a` to `b`. The
    /// packet is judged and counted by this: [`Connections::packet`] is for those after
    /// it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        &mut self,
        now: u64,
        a: &Side,
        b: &Side,
        verdict: &Verdict,
        segment: &Segment,
    ) -> Result<Found, Refused> {
        let mut record = Record::new(now, a, b, verdict);
        match (segment.kind, a.tuple.protocol == tcp::PROTOCOL) {
            (Kind::Tcp(facts), true) => {
                if facts.flags & (tcp::SYN | tcp::ACK) != tcp::SYN {
                    return Err(Refused::Invalid(Invalid::NotSyn));
                }
                let mut track = record.track(State::SynSent);
                track.judge(0, &facts).map_err(Refused::Invalid)?;
                record.set_track(&track);
            }
            (Kind::Echo { request: false }, false) => {
                return Err(Refused::Invalid(Invalid::Unsolicited));
            }
            (Kind::Plain | Kind::Echo { .. }, false) => record.set_state(State::Unreplied),
            _ => return Err(Refused::Invalid(Invalid::Kind)),
        }
        record.count(0, segment.packets, segment.bytes);
        let id = self.install(now, a, b, record)?;
        if let Some(owner) = self.owners.get_mut(a.owner as usize) {
            owner.counters.opened += 1;
        }
        Ok(Found {
            id,
            direction: Direction::Forth,
        })
    }

    /// Judges a packet that [`Connections::find`] found a connection for, and counts it
    /// if it passes.
    pub fn packet(&mut self, now: u64, found: Found, segment: &Segment) -> Judgement {
        let judgement = self.admit(now, found, segment);
        match judgement {
            Judgement::Pass => {}
            Judgement::Anew => self.remove(found.id, |counters| &mut counters.closed),
            Judgement::Invalid(_) => {
                let owner = self.record(found.id).map(|record| record.a().owner);
                let owner = owner.and_then(|owner| self.owners.get_mut(owner as usize));
                if let Some(owner) = owner {
                    owner.counters.invalid += 1;
                }
            }
        }
        judgement
    }

    /// The same, but that nothing changes if it does not pass.
    #[inline]
    fn admit(&mut self, now: u64, found: Found, segment: &Segment) -> Judgement {
        let side = found.direction as usize;
        let Some(record) = self.records.get_mut(found.id as usize) else {
            return Judgement::Anew;
        };
        let Some(before) = record.state() else {
            return Judgement::Anew;
        };
        match (segment.kind, record.protocol() == tcp::PROTOCOL) {
            (Kind::Tcp(facts), true) => {
                let mut track = record.track(before);
                match track.judge(side, &facts) {
                    Ok(Step::Pass) => record.set_track(&track),
                    Ok(Step::Anew) => return Judgement::Anew,
                    Err(invalid) => return Judgement::Invalid(invalid),
                }
            }
            (Kind::Echo { request }, false) if request != (side == 0) => {
                return Judgement::Invalid(Invalid::Unsolicited);
            }
            (Kind::Plain | Kind::Echo { .. }, false) => match (before, found.direction) {
                (State::Unreplied, Direction::Back) => record.set_state(State::Replied),
                (State::Replied, Direction::Forth) => record.set_state(State::Stream),
                _ => {}
            },
            _ => return Judgement::Invalid(Invalid::Kind),
        }
        record.touch(now);
        record.count(side, segment.packets, segment.bytes);
        let (state, waits) = (record.state().unwrap_or(before), record.is(WAITS));
        if state != before {
            self.changed(now, found.id, before, state);
        }
        if waits && !before.is_half_open() && !state.is_over() {
            self.promote(now, found.id, false);
        }
        Judgement::Pass
    }

    /// What [`Connections::hit`] knows a connection by, beside its number, until it ends.
    #[inline(always)]
    pub fn generation(&self, found: Found) -> u32 {
        let at = found.id as usize % GENERATIONS;
        self.generations.get(at).copied().unwrap_or_default()
    }

    /// [`Connections::packet`] in short, for one packet on a wire of a connection that was
    /// found when its generation was this: where nothing changes but counts, windows and the
    /// time of the last packet. `false`: nothing changed; it is to be found and judged.
    #[inline(always)]
    pub fn hit(
        &mut self,
        now: u64,
        found: Found,
        generation: u32,
        segment: Option<&TcpFacts>,
        bytes: u32,
    ) -> bool {
        if !self.is_same(found, generation) && guard!("flow-generation") {
            return false;
        }
        match self.records.get_mut(found.id as usize) {
            Some(record) if self.waiting.is_none() => {
                record.hit(now, found.direction as usize, segment, bytes)
            }
            _ => false,
        }
    }

    /// The same where more may change: a connection is established by the packet, or begins to
    /// end. `false`: nothing changed.
    #[inline(never)]
    pub fn step(
        &mut self,
        now: u64,
        found: Found,
        generation: u32,
        segment: Option<&TcpFacts>,
        bytes: u32,
    ) -> bool {
        let segment = Segment {
            packets: 1,
            bytes,
            kind: segment.map_or(Kind::Plain, |facts| Kind::Tcp(*facts)),
        };
        let expired = |record: &Record| record.expired(now) && guard!("flow-step-expires");
        (self.is_same(found, generation) || !guard!("flow-generation-step"))
            && self.waiting.is_none()
            && self.record(found.id).is_some_and(|it| !expired(it))
            && self.may_end()
            && self.admit(now, found, &segment) == Judgement::Pass
    }

    /// Whether there is room to tell of connections that end: what waits is told by who judges
    /// packets, who has to come by first.
    #[inline]
    pub fn may_end(&self) -> bool {
        self.tallies.len() < WAITING / 2
    }

    /// Whether the number is the connection's that had it at this generation.
    #[inline(always)]
    fn is_same(&self, found: Found, generation: u32) -> bool {
        let now_is = self.generation(found);
        // The last one is never known again.
        now_is == generation && (now_is != u32::MAX || !guard!("flow-generation-last"))
    }

    /// What [`Connections::packet`] would say of a packet; nothing changes by it.
    pub fn would(&self, found: Found, segment: &Segment) -> Judgement {
        let side = found.direction as usize;
        let record = self.record(found.id);
        let Some((record, before)) = record.and_then(|r| Some((r, r.state()?))) else {
            return Judgement::Anew;
        };
        let judged = match (segment.kind, record.protocol() == tcp::PROTOCOL) {
            (Kind::Tcp(facts), true) => record.track(before).judge(side, &facts),
            (Kind::Echo { request }, false) if request != (side == 0) => Err(Invalid::Unsolicited),
            (Kind::Plain | Kind::Echo { .. }, false) => Ok(Step::Pass),
            _ => Err(Invalid::Kind),
        };
        match judged {
            Ok(Step::Pass) => Judgement::Pass,
            Ok(Step::Anew) => Judgement::Anew,
            Err(invalid) => Judgement::Invalid(invalid),
        }
    }

    /// Judges an ICMP error that is alleged to be about the connection, and counts it.
    /// The error goes `found.direction`, as the answers to what it quotes do: it is
    /// found by the quoted tuple reversed. `sequence` is the quoted TCP sequence number,
    /// which must have been sent.
    pub fn related(&mut self, found: Found, sequence: Option<u32>, segment: &Segment) -> Judgement {
        let Some(record) = self.records.get_mut(found.id as usize) else {
            return Judgement::Invalid(Invalid::Unrelated);
        };
        let sender = found.direction.reversed() as usize;
        let sent = match (record.state(), sequence) {
            (None, _) => false,
            (Some(state), Some(sequence)) => record.track(state).sent(sender, sequence),
            (Some(_), None) => record.protocol() != tcp::PROTOCOL,
        };
        if guard!("flow-related") && !sent {
            return Judgement::Invalid(Invalid::Unrelated);
        }
        // An error keeps nothing alive.
        record.count(found.direction as usize, segment.packets, segment.bytes);
        Judgement::Pass
    }

    /// Counts a later fragment, which follows its first without a judgement of its own.
    /// `false`: the connection is gone.
    pub fn follow(&mut self, now: u64, found: Found, segment: &Segment) -> bool {
        match self.records.get_mut(found.id as usize) {
            Some(record) if record.state().is_some() => {
                record.touch(now);
                record.count(found.direction as usize, segment.packets, segment.bytes);
                true
            }
            _ => false,
        }
    }

    /// What was decided about the connection.
    pub fn verdict(&self, found: Found) -> Option<Verdict> {
        Some(self.record(found.id)?.verdict())
    }

    /// Whether another image than `epoch`'s decided about it.
    pub fn stale(&self, found: Found, epoch: u32) -> bool {
        self.record(found.id)
            .is_none_or(|record| guard!("flow-epoch") && record.epoch() != epoch)
    }

    /// Notes a new judgement: the connection stays under it, or is closed.
    pub fn rejudged(&mut self, found: Found, rejudged: Rejudged) {
        match (rejudged, self.records.get_mut(found.id as usize)) {
            (Rejudged::Keep(verdict), Some(record)) => {
                let tally = record.tell();
                record.judge(&verdict);
                self.note_tally(tally);
            }
            _ => self.close(found),
        }
    }

    /// Notes that the connection stands under another image as it stood before.
    pub fn renew(&mut self, found: Found, epoch: u32) {
        if let Some(record) = self.records.get_mut(found.id as usize) {
            record.renew(epoch);
        }
    }

    /// Both sides, the initiator's first.
    pub fn sides(&self, found: Found) -> Option<[Side; 2]> {
        let record = self.record(found.id)?;
        Some([record.a(), self.b(found.id, record)])
    }

    /// What passed of connections by the rules that let them begin, in no order, each once:
    /// to be asked after every packet and every step of the sweep until there is no more.
    #[inline]
    pub fn tallied(&mut self) -> Option<Tally> {
        match (self.tallies.pop(), &mut self.former) {
            (None, Some(former)) => former.connections.tallied(),
            (tally, _) => tally,
        }
    }

    /// What has passed of the connection so far is told of no more.
    pub fn passed_untold(&mut self, found: Found) {
        if let Some(record) = self.records.get_mut(found.id as usize) {
            record.tell();
        }
    }

    /// Without room, which who asks in time leaves, it is not told.
    fn note_tally(&mut self, tally: Tally) {
        if (tally.packets, tally.bytes) != (0, 0) && self.tallies.len() < self.tallies.capacity() {
            self.tallies.push(tally);
        }
    }

    /// Forgets the connection.
    pub fn close(&mut self, found: Found) {
        self.remove(found.id, |counters| &mut counters.closed);
    }

    /// The tuple that a packet going `found.direction` leaves with: its own, unless the
    /// connection is translated.
    pub fn leaves_as(&self, found: Found) -> Option<Tuple> {
        let record = self.record(found.id)?;
        Some(match found.direction {
            Direction::Forth => self.b(found.id, record).tuple.reversed(),
            Direction::Back => record.a().tuple.reversed(),
        })
    }

    /// Where packets going `found.direction` arrive: in whose bounds, and by which zone, the
    /// other side's packets are found.
    pub fn far(&self, found: Found) -> Option<(u32, u16)> {
        let record = self.record(found.id)?;
        let side = match found.direction {
            Direction::Forth => record.plain_b(),
            Direction::Back => record.a(),
        };
        Some((side.owner, side.zone))
    }

    /// Whether the connection's packets leave with another tuple than they come with.
    pub fn is_translated(&self, found: Found) -> bool {
        self.record(found.id)
            .is_some_and(|record| record.is(TRANSLATED))
    }

    fn hash(&self, side: &Side) -> u64 {
        index::hash(self.seed, side.owner, side.zone, &side.tuple)
    }

    /// The record of this number, if it holds a connection.
    fn record(&self, id: u32) -> Option<&Record> {
        let record = self.records.get(id as usize)?;
        record.state().is_some().then_some(record)
    }

    /// Whether both owners stay where another room waits.
    fn goes_on(&self, record: &Record) -> bool {
        self.stays(record.a().owner) && self.stays(record.plain_b().owner)
    }

    fn b(&self, id: u32, record: &Record) -> Side {
        let plain = record.plain_b();
        match self.translations.get(id as usize) {
            Some(translation) if record.is(TRANSLATED) => Side {
                tuple: translation.tuple(record.protocol()),
                ..plain
            },
            _ => plain,
        }
    }

    /// Whether this is the responder's side.
    fn is_b(&self, id: u32, record: &Record, owner: u32, zone: u16, tuple: &Tuple) -> bool {
        if !record.is_b_of(owner, zone) {
            return false;
        }
        match self.translations.get(id as usize) {
            Some(translation) if record.is(TRANSLATED) => {
                translation.tuple(record.protocol()) == *tuple
            }
            _ => record.is_answered_by(tuple),
        }
    }

    fn places(&self, hash: u64, owner: u32) -> Option<Places> {
        let owner = self.owners.get(owner as usize)?;
        Some(Places::of(hash, owner.first_set, owner.sets))
    }

    fn head(&self, hash: u64) -> usize {
        index::reduce((hash >> 16) as u32, self.heads.len() as u32)
    }

    /// The connection that has this side.
    fn look(&self, hash: u64, owner: u32, zone: u16, tuple: &Tuple) -> Option<Found> {
        let name = owner;
        let owner = self.owners.get(owner as usize)?;
        let places = Places::of(hash, owner.first_set, owner.sets);
        // Asked for first, so that this memory comes while the sets are looked through.
        let mut next = *self.heads.get(self.head(hash))?;
        if owner.live != 0 {
            for set in places.sets.iter().filter_map(|&at| self.sets.get(at)) {
                for number in set.tagged(places.tag) {
                    let id = owner.first_record + number;
                    let record = self.record(id);
                    if record.is_some_and(|record| record.is_a(name, zone, tuple)) {
                        return Some(Found {
                            id,
                            direction: Direction::Forth,
                        });
                    }
                }
            }
        }
        // Bound: CHAIN, which `install` keeps.
        for _ in 0..CHAIN {
            let id = next.checked_sub(1)?;
            let record = self.record(id)?;
            if self.is_b(id, record, name, zone, tuple) {
                return Some(Found {
                    id,
                    direction: Direction::Back,
                });
            }
            next = record.next;
        }
        None
    }
}

#[cfg(test)]
mod tests;
