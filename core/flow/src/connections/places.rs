//! Who gets a place, and who gives way.

use guard::guard;
use zerocopy::FromZeros;

use super::{CHAIN, Connections, Counters, GENERATIONS, Refused, Side};
use crate::index::{self, Places, Sets, Ways};
use crate::record::{Record, TRANSLATED, Translation, WAITS};
use crate::state::State;

/// Sets beside its own two in which a new connection looks for a half-open one to evict.
const LOOK: u32 = 8;

/// Whom a newcomer may take a place of.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    zone: u16,
    /// Half-open connections that its zone has, without it.
    has: u32,
    /// What each zone may have of them where others want as much.
    share: u32,
}

impl Connections {
    /// Links of the chain under a head.
    pub(super) fn chain(&self, head: usize) -> usize {
        let mut next = self.heads.get(head).copied().unwrap_or_default();
        let mut length = 0;
        while length < CHAIN
            && let Some(record) = next.checked_sub(1).and_then(|id| self.record(id))
        {
            length += 1;
            next = record.next;
        }
        length
    }

    /// Gives a new record a place, among the half-open ones at first.
    pub(super) fn install(
        &mut self,
        now: u64,
        a: &Side,
        b: &Side,
        mut record: Record,
    ) -> Result<u32, Refused> {
        let known = |side: &Side| (side.owner as usize) < self.owners.len();
        if !known(a) || !known(b) || a.tuple.protocol != b.tuple.protocol {
            return Err(Refused::Sides);
        }
        let (forth, back) = (self.hash(a), self.hash(b));
        // An expired one has its sides no longer.
        for (hash, side) in [(forth, a), (back, b)] {
            let Side { owner, zone, tuple } = side;
            self.fetch(now, hash, *owner, *zone, tuple);
            if let Some(found) = self.look(hash, *owner, *zone, tuple) {
                let has = |r: &Record| !r.expired(now) && self.goes_on(r);
                let taken = self.record(found.id).is_some_and(has);
                if guard!("flow-taken") && taken {
                    return Err(Refused::Taken);
                }
                self.remove(found.id, |counters| &mut counters.expired);
            }
        }
        let head = self.head(back);
        let half_open = record.state().is_some_and(State::is_half_open);
        let may = self.stays(a.owner) && self.stays(b.owner);
        let number = match may && self.chain(head) < CHAIN {
            true => self.room_of(now, a, forth, half_open),
            false => None,
        };
        let (Some(number), Some(places)) = (number, self.places(forth, a.owner)) else {
            if let Some(owner) = self.owners.get_mut(a.owner as usize) {
                owner.counters.refused += 1;
            }
            return Err(Refused::Full);
        };
        let placed = index::insert(&mut self.sets, &places, Ways::HalfOpen, number);
        debug_assert!(placed, "room made one");
        let Some(owner) = self.owners.get_mut(a.owner as usize) else {
            return Err(Refused::Sides);
        };
        let id = owner.first_record + number;
        owner.live += 1;
        record.set(WAITS, true);
        if let Some(slot) = self.heads.get_mut(head) {
            record.next = core::mem::replace(slot, id + 1);
        }
        if record.is(TRANSLATED)
            && let Some(slot) = self.translations.get_mut(id as usize)
        {
            *slot = Translation::of(&b.tuple);
        }
        if let Some(slot) = self.records.get_mut(id as usize) {
            *slot = record;
        }
        self.note(id);
        Ok(id)
    }

    /// As [`Connections::room`], for a connection that `a` begins; it is counted if it is
    /// half-open and got one.
    fn room_of(&mut self, now: u64, a: &Side, hash: u64, half_open: bool) -> Option<u32> {
        if !half_open {
            return self.room(now, a.owner, hash, None);
        }
        let has = self.shares.add(a.owner, a.zone)?;
        let own = self.owners.get_mut(a.owner as usize)?;
        own.zones += u32::from(has == 0);
        let claim = Claim {
            zone: a.zone,
            has,
            share: quarter(own.capacity) / own.zones.max(1),
        };
        let number = self.room(now, a.owner, hash, Some(&claim));
        let own = self.owners.get_mut(a.owner as usize)?;
        own.half_open += 1;
        if number.is_none() {
            self.no_longer_half_open(a.owner, a.zone);
        }
        number
    }

    /// A half-open connection of this zone is gone, or no longer half-open.
    fn no_longer_half_open(&mut self, owner: u32, zone: u16) {
        let left = self.shares.take(owner, zone);
        if let Some(own) = self.owners.get_mut(owner as usize) {
            own.half_open = own.half_open.saturating_sub(1);
            own.zones = own.zones.saturating_sub(u32::from(left == 0));
        }
    }

    /// A free record of the owner, as its number there, and a free way for it: evicts
    /// as it must, half-open ones by their share if it has a claim. `None`: none may be
    /// evicted.
    fn room(&mut self, now: u64, owner: u32, hash: u64, claim: Option<&Claim>) -> Option<u32> {
        let places = self.places(hash, owner)?;
        let own = self.owners.get(owner as usize)?;
        if own.sets == 0 {
            return None;
        }
        let full = guard!("flow-capacity") && own.live >= own.capacity;
        let many = guard!("flow-half-open-quarter") && own.half_open >= quarter(own.capacity);
        if self.all_stay() && (full || many || !self.has_way(&places)) {
            return None;
        }
        if full || many {
            let over = match many {
                true => None,
                false => self.over_victim(now, owner, places.sets),
            };
            let victim = over
                .or_else(|| self.half_open_victim(now, owner, places.sets, claim))
                .or_else(|| self.nearby(now, owner, claim));
            let victim = match many {
                true => victim,
                // Of the established first who has no place of its own.
                false => victim
                    .or_else(|| self.waiting_victim(now, owner, places.sets))
                    .or_else(|| self.idle_victim(now, owner, places.sets)),
            };
            self.evict(victim?);
        }
        if !self.has_way(&places) {
            let victim = self
                .dead_victim(now, owner, places.sets)
                .or_else(|| self.half_open_victim(now, owner, places.sets, claim))
                .or_else(|| self.waiting_victim(now, owner, places.sets))?;
            self.evict(victim);
        }
        let own = self.owners.get_mut(owner as usize)?;
        if let Some(number) = own.free.checked_sub(1) {
            let free = self.records.get((own.first_record + number) as usize)?;
            own.free = free.next;
            return Some(number);
        }
        if own.used >= own.capacity {
            return None;
        }
        own.used += 1;
        Some(own.used - 1)
    }

    fn all_stay(&self) -> bool {
        self.all_stay && guard!("trace-evicts-none")
    }

    fn has_way(&self, places: &Places) -> bool {
        places
            .sets
            .iter()
            .filter_map(|&at| self.sets.get(at))
            .any(|set| set.numbers(Ways::HalfOpen).count() < index::HALF_OPEN_WAYS)
    }

    /// The records in these sets' half-open ways.
    fn half_open_ways(&self, owner: u32, sets: [usize; 2]) -> impl Iterator<Item = (u32, &Record)> {
        let first = self.owners.get(owner as usize).map(|own| own.first_record);
        sets.into_iter()
            .filter_map(|at| self.sets.get(at))
            .flat_map(|set| set.numbers(Ways::HalfOpen))
            .filter_map(move |number| {
                let id = first? + number;
                Some((id, self.record(id)?))
            })
    }

    /// A connection in these sets' half-open ways that is over, or was silent for too long:
    /// anybody takes its place before that of one that lives.
    fn dead_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
        self.half_open_ways(owner, sets)
            .find(|(_, record)| is_dead(record, now))
            .map(|(id, _)| id)
    }

    /// Of the half-open connections in these sets the one that gives way to a newcomer
    /// first.
    fn half_open_victim(
        &self,
        now: u64,
        owner: u32,
        sets: [usize; 2],
        claim: Option<&Claim>,
    ) -> Option<u32> {
        self.half_open_ways(owner, sets)
            .filter(|(_, record)| record.state().is_some_and(State::is_half_open))
            .filter_map(|(id, record)| {
                let turn = self.turn(now, owner, record, claim)?;
                Some((turn, record.age(now), id))
            })
            .max_by_key(|&(turn, age, _)| (turn, age))
            .map(|(.., id)| id)
    }

    /// Whether a half-open connection gives way to a newcomer with this claim, the highest
    /// first: what is expired to anyone, of zones that have more than their share to one that
    /// has less, else of its own zone alone.
    fn turn(&self, now: u64, owner: u32, record: &Record, claim: Option<&Claim>) -> Option<u8> {
        if record.expired(now) {
            return Some(2);
        }
        let Some(&Claim { zone, has, share }) = claim else {
            return Some(0);
        };
        if record.zone() == zone || !guard!("flow-zone-share") {
            return Some(0);
        }
        // Where there are more zones than places, one that has none is below its share.
        let below = has < share || has == 0;
        let over = || self.shares.count(owner, record.zone()) > share.max(has);
        (below && over()).then_some(1)
    }

    /// Of the established connections in these sets that wait for a place the one that was
    /// silent longest.
    fn waiting_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
        self.half_open_ways(owner, sets)
            .filter(|(_, record)| record.state().is_some_and(|state| !state.is_half_open()))
            .max_by_key(|(_, record)| record.age(now))
            .map(|(id, _)| id)
    }

    /// A half-open one in the sets where the owner's hand stands. Bound: [`LOOK`] sets.
    fn nearby(&mut self, now: u64, owner: u32, claim: Option<&Claim>) -> Option<u32> {
        let own = self.owners.get_mut(owner as usize)?;
        let (first, count, hand) = (own.first_set, own.sets, own.hand);
        own.hand = (hand + LOOK) % count.max(1);
        (0..LOOK.min(count))
            .map(|step| (first + (hand + step) % count) as usize)
            .find_map(|set| self.half_open_victim(now, owner, [set, set], claim))
    }

    /// A connection in these sets that is over, or was silent for too long.
    fn over_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
        let first = self.owners.get(owner as usize)?.first_record;
        sets.iter()
            .filter_map(|&at| self.sets.get(at))
            .flat_map(|set| {
                let waiting = set.numbers(Ways::HalfOpen);
                set.numbers(Ways::Established).chain(waiting)
            })
            .map(|number| first + number)
            .find(|&id| self.record(id).is_some_and(|record| is_dead(record, now)))
    }

    /// Of the established connections in these sets the idle one that was silent
    /// longest.
    fn idle_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
        let first = self.owners.get(owner as usize)?.first_record;
        sets.iter()
            .filter_map(|&at| self.sets.get(at))
            .flat_map(|set| set.numbers(Ways::Established))
            .map(|number| first + number)
            .filter(|&id| {
                let idle = self.record(id).is_none_or(|record| record.idle(now));
                !guard!("flow-evicts-idle") || idle
            })
            .max_by_key(|&id| self.record(id).map_or(0, |record| record.age(now)))
    }

    pub(super) fn evict(&mut self, id: u32) {
        let Some(record) = self.record(id) else {
            return;
        };
        let half_open = record.state().is_some_and(State::is_half_open);
        let waits = record.is(WAITS);
        self.remove(id, |counters| match (half_open, waits) {
            (true, _) => &mut counters.evicted_half_open,
            (_, true) => &mut counters.evicted_unstated,
            _ => &mut counters.evicted_idle,
        });
    }

    /// A connection changed its state.
    pub(super) fn changed(&mut self, now: u64, id: u32, before: State, state: State) {
        if before.is_half_open() && !state.is_half_open() {
            let Some(a) = self.record(id).map(Record::a) else {
                return;
            };
            self.no_longer_half_open(a.owner, a.zone);
            if let Some(owner) = self.owners.get_mut(a.owner as usize) {
                // What ended before it was established needs no place.
                owner.counters.established += u64::from(!state.is_over());
            }
            if !state.is_over() {
                self.promote(now, id, true);
            }
        }
        self.note(id);
    }

    /// Moves an established connection to the ways for these. Where they are full it
    /// evicts an idle one, if it `may`; else it stays where newer ones evict it.
    pub(super) fn promote(&mut self, now: u64, id: u32, may: bool) {
        let Some(side) = self.record(id).map(Record::a) else {
            return;
        };
        let hash = self.hash(&side);
        let (Some(places), Some(own)) = (
            self.places(hash, side.owner),
            self.owners.get(side.owner as usize),
        ) else {
            return;
        };
        let number = id - own.first_record;
        let full = |sets: &Sets| {
            places
                .sets
                .iter()
                .filter_map(|&at| sets.get(at))
                .all(|set| {
                    set.numbers(Ways::Established).count() == index::WAYS - index::HALF_OPEN_WAYS
                })
        };
        if full(&self.sets) {
            if !may || self.all_stay() {
                return;
            }
            let Some(victim) = self.idle_victim(now, side.owner, places.sets) else {
                if let Some(owner) = self.owners.get_mut(side.owner as usize) {
                    owner.counters.unstated += 1;
                }
                return;
            };
            self.evict(victim);
        }
        index::remove(&mut self.sets, &places, number);
        let placed = index::insert(&mut self.sets, &places, Ways::Established, number);
        debug_assert!(placed, "it was not full");
        if let Some(record) = self.records.get_mut(id as usize) {
            record.set(WAITS, false);
        }
    }

    /// Takes a connection out of everything, and tells what passed of it.
    pub(super) fn remove(&mut self, id: u32, counter: impl FnOnce(&mut Counters) -> &mut u64) {
        if let Some(tally) = self.record(id).map(Record::untold) {
            self.note_tally(tally);
        }
        self.take_out(id, counter);
    }

    /// Takes a connection out of everything.
    pub(super) fn take_out(&mut self, id: u32, counter: impl FnOnce(&mut Counters) -> &mut u64) {
        let Some(record) = self.record(id).copied() else {
            return;
        };
        let (a, b) = (record.a(), self.b(id, &record));
        if let Some(places) = self.places(self.hash(&a), a.owner) {
            let first = self
                .owners
                .get(a.owner as usize)
                .map_or(0, |o| o.first_record);
            index::remove(&mut self.sets, &places, id - first);
        }
        self.unchain(id, self.head(self.hash(&b)), record.next);
        let Some(owner) = self.owners.get_mut(a.owner as usize) else {
            return;
        };
        owner.live = owner.live.saturating_sub(1);
        *counter(&mut owner.counters) += 1;
        if let Some(ended) = self.generations.get_mut(id as usize % GENERATIONS) {
            *ended = ended.saturating_add(1);
        }
        if let Some(slot) = self.records.get_mut(id as usize) {
            slot.zero();
            slot.next = core::mem::replace(&mut owner.free, id - owner.first_record + 1);
        }
        self.unwrite(record.place);
        if record.state().is_some_and(State::is_half_open) {
            self.no_longer_half_open(a.owner, a.zone);
        }
    }

    fn unchain(&mut self, id: u32, head: usize, after: u32) {
        let Some(slot) = self.heads.get_mut(head) else {
            return;
        };
        if *slot == id + 1 {
            *slot = after;
            return;
        }
        let mut next = *slot;
        for _ in 0..CHAIN {
            let Some(record) = next
                .checked_sub(1)
                .and_then(|before| self.records.get_mut(before as usize))
            else {
                return;
            };
            if record.next == id + 1 {
                record.next = after;
                return;
            }
            next = record.next;
        }
    }
}

/// Whether a connection is over, or was silent for too long.
fn is_dead(record: &Record, now: u64) -> bool {
    record.state().is_some_and(State::is_over) || record.expired(now)
}

/// The half-open connections that an owner may have at once.
pub(super) const fn quarter(capacity: u32) -> u32 {
    capacity.div_ceil(4)
}
