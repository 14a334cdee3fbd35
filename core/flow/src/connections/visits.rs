//! Connections visited one after another: those of an owner, all of them in steps, and the
//! background pass.

use super::{Connection, Connections, Counters, Cursor, Rejudged, Swept};
use crate::record::Record;

impl Connections {
    /// The connection of this number, if there is one.
    pub fn connection(&self, now: u64, id: u32) -> Option<Connection> {
        let record = self.record(id)?;
        let [forth, back] = record.counts();
        Some(Connection {
            id,
            a: record.a(),
            b: self.b(id, record),
            state: record.state()?,
            verdict: record.verdict(),
            packets: [forth.0, back.0],
            bytes: [forth.1, back.1],
            silent: record.silent(now),
        })
    }

    /// All connections of an owner, those that it began.
    pub fn of_owner(&self, now: u64, owner: u32) -> impl Iterator<Item = Connection> + '_ {
        let numbers = self.owners.get(owner as usize).map_or(0..0, |owner| {
            owner.first_record..owner.first_record + owner.used
        });
        numbers.filter_map(move |id| self.connection(now, id))
    }

    /// Visits connections from where `at` stands, at most `budget` records of them;
    /// whether that was the last. Those that are silent for too long are passed over.
    /// What is opened or closed between two calls may be seen or not.
    pub fn walk(
        &self,
        now: u64,
        at: &mut Cursor,
        budget: u32,
        visit: &mut impl FnMut(&Connection),
    ) -> bool {
        let mut looked = 0;
        while looked < budget {
            let Some(owner) = self.owners.get(at.owner) else {
                return true;
            };
            looked += 1;
            if at.next >= owner.used {
                *at = Cursor {
                    owner: at.owner + 1,
                    next: 0,
                };
                continue;
            }
            let id = owner.first_record + at.next;
            at.next += 1;
            let lives = |record: &Record| !record.expired(now) && self.goes_on(record);
            let lives = self.record(id).is_some_and(lives);
            if lives && let Some(connection) = self.connection(now, id) {
                visit(&connection);
            }
        }
        false
    }

    /// How many connections of an owner there are: all, and of them the half-open.
    pub fn live(&self, owner: u32) -> (u32, u32) {
        let owner = self.owners.get(owner as usize);
        owner.map_or((0, 0), |owner| (owner.live, owner.half_open))
    }

    /// What happened to an owner's connections.
    pub fn counters(&self, owner: u32) -> Counters {
        let owner = self.owners.get(owner as usize);
        owner.map(|owner| owner.counters).unwrap_or_default()
    }

    /// Goes on with the background pass: looks at up to `budget` records, removes those
    /// that were silent for too long, and has `judge` judge again those that another
    /// image than `epoch`'s decided about.
    pub fn sweep(
        &mut self,
        now: u64,
        budget: u32,
        epoch: u32,
        judge: &mut impl FnMut(&Connection) -> Rejudged,
    ) -> Swept {
        let mut swept = Swept::default();
        // Owners that have nothing are passed by: a budget of their own bounds them.
        let mut passed = 0;
        while swept.looked < budget && passed <= budget {
            let (at, next) = self.cursor;
            let Some(owner) = self.owners.get(at) else {
                self.cursor = (0, 0);
                swept.ended = true;
                break;
            };
            if next >= owner.used {
                self.cursor = (at + 1, 0);
                passed += 1;
                continue;
            }
            let id = owner.first_record + next;
            self.cursor = (at, next + 1);
            swept.looked += 1;
            let Some(record) = self.record(id) else {
                continue;
            };
            if record.expired(now) {
                self.remove(id, |counters| &mut counters.expired);
                swept.expired += 1;
            } else if record.epoch() != epoch
                && let Some(connection) = self.connection(now, id)
            {
                match (judge(&connection), self.records.get_mut(id as usize)) {
                    (Rejudged::Keep(verdict), Some(record)) => {
                        let tally = record.tell();
                        record.judge(&verdict);
                        self.note_tally(tally);
                    }
                    _ => {
                        self.remove(id, |counters| &mut counters.closed);
                        swept.cut += 1;
                    }
                }
            } else if let Some(record) = self.records.get_mut(id as usize) {
                let tally = record.tell();
                self.note_tally(tally);
            }
        }
        swept
    }
}
