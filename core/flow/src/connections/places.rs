//! Who gets a place, and who gives way.

use guard::guard;
use zerocopy::FromZeros;

use super::{CHAIN, Connections, Counters, Refused, Side};
use crate::index::{self, Places, Sets, Ways};
use crate::record::{Record, TRANSLATED, Translation, WAITS};
use crate::state::State;

/// Sets beside its own two in which a new connection looks for a half-open one to evict.
const LOOK: u32 = 8;

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
            self.fetch(now, hash, side);
            if let Some(found) = self.look(hash, side) {
                let taken = self.record(found.id).is_some_and(|r| !r.expired(now));
                if guard!("flow-taken") && taken {
                    return Err(Refused::Taken);
                }
                self.remove(found.id, |counters| &mut counters.expired);
            }
        }
        let head = self.head(back);
        let room = self.chain(head) < CHAIN;
        let number = match room {
            true => self.room(now, a.owner, forth),
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
        let state = record.state();
        let Some(owner) = self.owners.get_mut(a.owner as usize) else {
            return Err(Refused::Sides);
        };
        let id = owner.first_record + number;
        owner.live += 1;
        owner.half_open += u32::from(state.is_some_and(State::is_half_open));
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

    /// A free record of the owner, as its number there, and a free way for it: evicts
    /// as it must. `None`: none may be evicted.
    pub(super) fn room(&mut self, now: u64, owner: u32, hash: u64) -> Option<u32> {
        let places = self.places(hash, owner)?;
        let own = self.owners.get(owner as usize)?;
        if own.sets == 0 {
            return None;
        }
        let full = guard!("flow-capacity") && own.live >= own.capacity;
        let many = guard!("flow-half-open-quarter") && own.half_open >= quarter(own.capacity);
        if full || many {
            let over = match many {
                true => None,
                false => self.over_victim(now, owner, places.sets),
            };
            let victim = over
                .or_else(|| self.half_open_victim(now, owner, places.sets, true))
                .or_else(|| self.nearby(now, owner));
            let victim = match many {
                true => victim,
                // Of the established first who has no place of its own.
                false => victim
                    .or_else(|| self.half_open_victim(now, owner, places.sets, false))
                    .or_else(|| self.idle_victim(now, owner, places.sets)),
            };
            self.evict(victim?);
        }
        if !self.has_way(&places) {
            let victim = self
                .half_open_victim(now, owner, places.sets, true)
                .or_else(|| self.half_open_victim(now, owner, places.sets, false))?;
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

    pub(super) fn has_way(&self, places: &Places) -> bool {
        places
            .sets
            .iter()
            .filter_map(|&at| self.sets.get(at))
            .any(|set| set.numbers(Ways::HalfOpen).count() < index::HALF_OPEN_WAYS)
    }

    /// Of the connections in these sets' half-open ways the one that was silent
    /// longest: of those that are half-open, else of those that wait for a place.
    pub(super) fn half_open_victim(
        &self,
        now: u64,
        owner: u32,
        sets: [usize; 2],
        half_open: bool,
    ) -> Option<u32> {
        let first = self.owners.get(owner as usize)?.first_record;
        sets.iter()
            .filter_map(|&at| self.sets.get(at))
            .flat_map(|set| set.numbers(Ways::HalfOpen))
            .map(|number| first + number)
            .filter(|&id| {
                let state = self.record(id).and_then(Record::state);
                state.is_some_and(|state| state.is_half_open() == half_open)
            })
            .max_by_key(|&id| self.record(id).map_or(0, |record| record.age(now)))
    }

    /// A half-open one in the sets where the owner's hand stands. Bound: [`LOOK`] sets.
    pub(super) fn nearby(&mut self, now: u64, owner: u32) -> Option<u32> {
        let own = self.owners.get_mut(owner as usize)?;
        let (first, count, hand) = (own.first_set, own.sets, own.hand);
        own.hand = (hand + LOOK) % count.max(1);
        (0..LOOK.min(count))
            .map(|step| (first + (hand + step) % count) as usize)
            .find_map(|set| self.half_open_victim(now, owner, [set, set], true))
    }

    /// A connection in these sets that is over, or was silent for too long.
    pub(super) fn over_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
        let first = self.owners.get(owner as usize)?.first_record;
        sets.iter()
            .filter_map(|&at| self.sets.get(at))
            .flat_map(|set| {
                let waiting = set.numbers(Ways::HalfOpen);
                set.numbers(Ways::Established).chain(waiting)
            })
            .map(|number| first + number)
            .find(|&id| {
                let over = |record: &Record| record.state().is_some_and(State::is_over);
                self.record(id)
                    .is_some_and(|record| over(record) || record.expired(now))
            })
    }

    /// Of the established connections in these sets the idle one that was silent
    /// longest.
    pub(super) fn idle_victim(&self, now: u64, owner: u32, sets: [usize; 2]) -> Option<u32> {
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
            let owner = self.record(id).map(|record| record.a().owner);
            if let Some(owner) = owner.and_then(|o| self.owners.get_mut(o as usize)) {
                owner.half_open = owner.half_open.saturating_sub(1);
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
            if !may {
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

    /// Takes a connection out of everything.
    pub(super) fn remove(&mut self, id: u32, counter: impl FnOnce(&mut Counters) -> &mut u64) {
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
        let half_open = record.state().is_some_and(State::is_half_open);
        owner.half_open = owner.half_open.saturating_sub(u32::from(half_open));
        *counter(&mut owner.counters) += 1;
        if let Some(slot) = self.records.get_mut(id as usize) {
            slot.zero();
            slot.next = core::mem::replace(&mut owner.free, id - owner.first_record + 1);
        }
        self.unwrite(record.place);
    }

    pub(super) fn unchain(&mut self, id: u32, head: usize, after: u32) {
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

/// The half-open connections that an owner may have at once.
const fn quarter(capacity: u32) -> u32 {
    capacity.div_ceil(4)
}
