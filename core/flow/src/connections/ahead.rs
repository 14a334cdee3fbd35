//! Several packets' connections at once: the memory of all is asked for before any is
//! looked at, so that one waits for the others' and not each for its own (software group
//! prefetching; Chen, Ailamaki, Gibbons and Mowry, "Improving Hash Join Performance through
//! Prefetching", ICDE 2004). Where there are a million connections that is most of the time.

use guard::guard;

use super::{Connections, Direction, Found};
use crate::index::{self, Places};
use crate::record::Record;
use wire::Tuple;

/// Packets that are looked up at once.
pub const AHEAD: usize = 16;

/// What a packet's memory is asked for by.
#[derive(Clone, Copy)]
struct Asked {
    places: Places,
    head: usize,
}

impl Connections {
    /// What the packets of `owner`'s in `zone` will most likely find: numbers that nobody has
    /// compared with the packets yet, for [`Connections::confirm`]. Nothing changes by it.
    pub fn foresee(
        &self,
        owner: u32,
        zone: u16,
        tuples: &[Tuple],
        foreseen: &mut [Option<Found>; AHEAD],
    ) {
        *foreseen = [None; AHEAD];
        // What is to be fetched from a former room first is not in this one.
        let (None, Some(own)) = (&self.former, self.owners.get(owner as usize)) else {
            return;
        };
        let mut asked = [Asked {
            places: Places::of(0, 0, 0),
            head: 0,
        }; AHEAD];
        for (asked, tuple) in asked.iter_mut().zip(tuples) {
            let hash = index::hash(self.seed, owner, zone, tuple);
            *asked = Asked {
                places: Places::of(hash, own.first_set, own.sets),
                head: self.head(hash),
            };
        }
        let asked = asked.get(..tuples.len()).unwrap_or(&[]);
        let mut heads = [0; AHEAD];
        let mut pulled = 0;
        for (asked, head) in asked.iter().zip(&mut heads) {
            *head = self.heads.get(asked.head).copied().unwrap_or(0);
            for set in asked.places.sets {
                pulled ^= self.sets.get(set).map_or(0, |set| set.first());
            }
        }
        core::hint::black_box(pulled);
        for ((asked, head), found) in asked.iter().zip(heads).zip(&mut *foreseen) {
            let mut sets = asked.places.sets.iter();
            let number = sets.find_map(|at| self.sets.get(*at)?.tagged(asked.places.tag).next());
            let forth = number.filter(|_| own.live != 0);
            let forth = forth.map(|number| (own.first_record + number, Direction::Forth));
            let back = || head.checked_sub(1).map(|id| (id, Direction::Back));
            let either = forth.or_else(back);
            *found = either.map(|(id, direction)| Found { id, direction });
        }
        let mut pulled = 0;
        for found in foreseen.iter().flatten() {
            let record = self.records.get(found.id as usize);
            pulled ^= record.map_or(0, Record::pull);
        }
        core::hint::black_box(pulled);
    }

    /// As [`Connections::find`], of a packet whose connection was foreseen. `None`: it is to be
    /// looked up.
    #[inline(always)]
    pub fn confirm(
        &self,
        now: u64,
        foreseen: Found,
        owner: u32,
        zone: u16,
        tuple: &Tuple,
    ) -> Option<Found> {
        let record = self.record(foreseen.id)?;
        let is = !guard!("flow-foreseen")
            || match foreseen.direction {
                Direction::Forth => record.is_a(owner, zone, tuple),
                Direction::Back => self.is_b(foreseen.id, record, owner, zone, tuple),
            };
        let alone = self.former.is_none() && self.waiting.is_none();
        (is && alone && !record.expired(now)).then_some(foreseen)
    }
}
