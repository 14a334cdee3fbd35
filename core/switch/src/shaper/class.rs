//! What waits in one class toward one port: apart by where it came from, so that nobody who
//! sends to an endpoint takes what another's share of its rate is. The places take turns in
//! the order of what each had (start-time fair queueing).

use super::queue::{Front, Queue};
use crate::Outgoing;
use crate::meter::Bucket;
use guard::guard;

/// Places at most: what comes from within the tenant, from outside, and by agreements; of
/// more agreements than that some share one.
const PLACES: usize = 8;
/// From within the tenant.
pub(super) const INSIDE: usize = 0;
/// From outside.
pub(super) const OUTSIDE: usize = 1;
/// By the first agreement.
const AGREED: usize = 2;

/// The place of what comes by the n-th agreement.
pub(super) const fn agreed(n: usize) -> usize {
    AGREED + n % (PLACES - AGREED)
}

/// Places for what comes from within, from outside if anything does, and by so many
/// agreements.
pub(super) fn places(outside: bool, agreements: usize) -> usize {
    match agreements {
        0 => 1 + usize::from(outside),
        n => AGREED + n.min(PLACES - AGREED),
    }
}

/// A class of a port.
#[derive(Debug)]
pub(super) struct Class {
    places: Vec<Place>,
    /// Bytes of all places together where more than one wants them.
    room: usize,
    /// What whoever was served last had had before.
    floor: u64,
    /// Of what goes before its turn.
    pub(super) first: Bucket,
    /// What the class had, against its weight.
    pub(super) served: u64,
}

#[derive(Debug)]
struct Place {
    queue: Queue,
    served: u64,
}

impl Class {
    /// With so many bytes of room. Untouched memory costs nothing until it is used.
    pub(super) fn new(room: usize, first: Bucket) -> Class {
        Class {
            places: Vec::new(),
            room,
            floor: 0,
            first,
            served: 0,
        }
    }

    /// Has so many places from now on, and more while something waits there. Allocates.
    pub(super) fn resize(&mut self, places: usize) {
        while self.places.len() > places && self.places.last().is_some_and(Place::is_empty) {
            self.places.pop();
        }
        let room = self.room;
        while self.places.len() < places {
            self.places.push(Place {
                queue: Queue::new(room),
                served: 0,
            });
        }
    }

    /// Nobody had anything yet: what they had was counted in another unit.
    pub(super) fn count_anew(&mut self) {
        self.floor = 0;
        self.places.iter_mut().for_each(|place| place.served = 0);
    }

    /// Places that it has.
    #[cfg(test)]
    pub(super) const fn places(&self) -> usize {
        self.places.len()
    }

    /// Bytes it has room for.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.iter().all(Place::is_empty)
    }

    /// Adds a frame, whose bytes behind the head `rest` copies; `false`: no room. Where all
    /// is in use, each place that has something has an equal part of it, and one frame at
    /// least. Bound: [`PLACES`].
    pub(super) fn push(
        &mut self,
        place: usize,
        frame: &Outgoing<'_>,
        rest: impl FnMut(usize, &mut [u8]) -> usize,
    ) -> bool {
        let all: usize = self.places.iter().map(|one| one.queue.used()).sum();
        let others = self.places.iter().filter(|one| !one.is_empty()).count();
        let at = match guard!("place-turns") {
            true => place.min(self.places.len().saturating_sub(1)),
            false => INSIDE,
        };
        let Some(place) = self.places.get_mut(at) else {
            return false;
        };
        let (own, need) = (place.queue.used(), Queue::need(frame));
        let sharers = others + usize::from(own == 0);
        let part = self.room / sharers.max(1);
        if own != 0 && all + need > self.room && own + need > part {
            return false;
        }
        if own == 0 {
            // Nothing is earned for having been idle.
            place.served = place.served.max(self.floor);
        }
        place.queue.push(frame, rest)
    }

    /// The frame whose turn it is, and the place it waits in.
    pub(super) fn front(&self) -> Option<(usize, Front<'_>)> {
        let waiting = self.places.iter().enumerate();
        let (at, place) = waiting
            .filter(|(_, place)| !place.is_empty())
            .min_by_key(|(_, place)| place.served)?;
        Some((at, place.queue.front()?))
    }

    /// Takes the first frame of a place out, which cost its share so much.
    pub(super) fn pop(&mut self, at: usize, cost: u64) {
        if let Some(place) = self.places.get_mut(at) {
            self.floor = self.floor.max(place.served);
            place.served += cost;
            place.queue.pop();
        }
    }

    /// Forgets all frames.
    pub(super) fn clear(&mut self) {
        for place in &mut self.places {
            place.queue.clear();
        }
    }
}

impl Place {
    const fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
