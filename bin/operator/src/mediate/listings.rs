//! Listings that were asked for, one after the other and for a tenth of the time: who asks all the time has it take
//! longer for who asks, and not for who has circuits.

use super::*;
use std::collections::VecDeque;
use worker::clock::spent;

/// So many times as long as a listing took the next one waits, this long at most: who asked gives up after some seconds.
const TIMES: u32 = 9;
const PAUSE: Duration = Duration::from_millis(500);
/// Those that wait: more than are asked for by one who waits for each. The oldest goes, which nobody waits for any more.
const MOST: usize = 64;

/// Those that are still to be written.
#[derive(Default)]
pub(in crate::mediate) struct Listings {
    asked: VecDeque<(ListFlows, OwnedFd)>,
    after: Option<Instant>,
}

impl Listings {
    fn insert(&mut self, asked: ListFlows, page: OwnedFd) {
        if self.asked.len() >= MOST {
            self.asked.pop_front();
        }
        self.asked.push_back((asked, page));
    }

    fn next(&mut self, now: Instant) -> Option<(ListFlows, OwnedFd)> {
        let is_due = self.after.is_none_or(|after| after <= now);
        let may = is_due || !guard!("circuits-listings");
        may.then(|| self.asked.pop_front()).flatten()
    }

    /// One took so long.
    fn took(&mut self, time: Duration, now: Instant) {
        self.after = Some(now + (TIMES * time).min(PAUSE));
    }

    /// How long until the next is to be written; `None`: there is none.
    pub(in crate::mediate) fn due(&self, now: Instant) -> Option<Duration> {
        let after = self.after.unwrap_or(now);
        (!self.asked.is_empty()).then(|| after.saturating_duration_since(now))
    }
}

impl Mediator {
    /// A listing is to be written, when it is time.
    pub fn wants_list(&mut self, asked: ListFlows, page: OwnedFd) {
        self.listings.insert(asked, page);
    }

    /// Writes the next one.
    pub(in crate::mediate) fn listings_tick(&mut self) {
        if let Some((asked, page)) = self.listings.next(Instant::now()) {
            let begun = spent();
            self.list(&asked, page);
            let took = Duration::from_nanos(spent().saturating_sub(begun));
            self.listings.took(took, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_listings_all_the_time_has_them_for_a_tenth_of_it() {
        let (mut all, mut now) = (Listings::default(), Instant::now());
        let ms = Duration::from_millis;
        let ask = |all: &mut Listings, slot| {
            let asked = ListFlows {
                compartment: 0,
                slot,
                most: 9,
                circuits: 1,
            };
            all.insert(asked, shm::sparse_file("listing", 4096).unwrap());
        };
        assert_eq!(all.due(now), None);
        // Each takes 20 ms, and somebody asks all the time.
        let (begun, mut written) = (now, 0);
        while now < begun + ms(2000) {
            ask(&mut all, 7);
            match all.next(now) {
                Some(_) => {
                    written += 1;
                    now += ms(20);
                    all.took(ms(20), now);
                }
                None => now += ms(1),
            }
        }
        assert_eq!(written, 10);
        assert_eq!(all.asked.len(), MOST);
        // One that took very long keeps others no longer than who asks waits.
        all.took(ms(1000), now);
        assert_eq!(all.due(now), Some(PAUSE));
        ask(&mut all, 8);
        let rest: Vec<u32> = std::iter::from_fn(|| all.next(now + PAUSE))
            .map(|(asked, _)| asked.slot)
            .collect();
        assert_eq!((rest.len(), rest.last()), (MOST, Some(&8)));
    }
}
