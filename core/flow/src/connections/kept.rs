//! What of connections is kept in a journal, and gone on with.

use guard::guard;

use super::{Connections, Refused, Resumed, Side, Verdict};
use crate::journal::{Entry, Journal, Memory, Read, Restored};
use crate::record::Record;
use crate::state::State;
use crate::tcp::Track;

impl Connections {
    /// Keeps a journal in this memory from now on. What a predecessor left in it waits
    /// for [`Connections::restore`].
    pub fn keep(&mut self, memory: Box<dyn Memory>) {
        self.journal = Some(Journal::open(memory));
    }

    /// Goes on with what a predecessor left in the journal: reads up to `budget` places,
    /// and opens again what could be a connection of owners that are called the same, that
    /// has free sides and that `judge` lets begin now. The rest is erased. Of TCP the first
    /// packet of each side is believed.
    pub fn restore(
        &mut self,
        now: u64,
        budget: u32,
        judge: &mut impl FnMut(&Restored) -> Option<Verdict>,
    ) -> Resumed {
        let mut resumed = Resumed::default();
        for _ in 0..budget {
            match self.journal.as_mut().and_then(Journal::next) {
                None => break,
                Some(Read::Nothing) => {}
                Some(Read::Refused) => resumed.refused += 1,
                Some(Read::Alleged(restored, place)) => {
                    let verdict = match self.are_known(&restored) {
                        true => judge(&restored),
                        false => None,
                    };
                    if verdict.is_some_and(|v| self.reopen(now, &restored, &v, place).is_ok()) {
                        resumed.restored += 1;
                    } else {
                        self.unwrite(place);
                        resumed.refused += 1;
                    }
                }
            }
        }
        if let Some(journal) = self.journal.as_mut() {
            journal.survived();
        }
        resumed.ended = self.unread() == 0;
        resumed
    }

    /// Places of a predecessor's that are still to be read.
    pub fn unread(&self) -> u32 {
        self.journal.as_ref().map_or(0, Journal::unread)
    }

    /// Whether the owners of both sides are still called as they were.
    fn are_known(&self, restored: &Restored) -> bool {
        let Restored { a, b, names, .. } = restored;
        let name = |side: &Side| self.owners.get(side.owner as usize).map(|owner| owner.name);
        !guard!("journal-owner") || [name(a), name(b)] == names.map(Some)
    }

    fn reopen(
        &mut self,
        now: u64,
        restored: &Restored,
        verdict: &Verdict,
        place: u32,
    ) -> Result<(), Refused> {
        let (a, b) = (&restored.a, &restored.b);
        let mut record = Record::new(now, a, b, verdict);
        match restored.state {
            State::Established => record.set_track(&Track::restored(restored.scales)),
            state => record.set_state(state),
        }
        record.place = place;
        let id = self.install(now, a, b, record)?;
        if let Some(owner) = self.owners.get_mut(a.owner as usize) {
            owner.counters.restored += 1;
        }
        self.promote(now, id, true);
        Ok(())
    }

    /// Brings the journal up to a connection's state: what both sides agreed to and is not
    /// over is there. Nothing else of an entry ever changes.
    pub(super) fn note(&mut self, id: u32) {
        if self.journal.is_none() {
            return;
        }
        let Some((record, state)) = self
            .record(id)
            .and_then(|record| Some((record, record.state()?)))
        else {
            return;
        };
        let kept = !state.is_half_open() && !state.is_over();
        let place = match (kept, record.place) {
            (true, 0) => {
                let (a, b) = (record.a(), self.b(id, record));
                let name = |side: &Side| self.owners.get(side.owner as usize).map_or(0, |o| o.name);
                let (names, scales) = ([name(&a), name(&b)], record.track(state).scales);
                let entry = |slot| Entry::new(slot, names, [&a, &b], state, scales);
                self.journal
                    .as_mut()
                    .map_or(0, |journal| journal.put(entry))
            }
            (false, place) if place != 0 => {
                self.unwrite(place);
                0
            }
            _ => return,
        };
        if let Some(record) = self.records.get_mut(id as usize) {
            record.place = place;
        }
    }

    /// Erases an entry of the journal.
    pub(super) fn unwrite(&mut self, place: u32) {
        if let Some(journal) = self.journal.as_mut().filter(|_| place != 0) {
            journal.erase(place);
        }
    }
}
