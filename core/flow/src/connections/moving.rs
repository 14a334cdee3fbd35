//! A change of room: connections move from the old one a few at a time, and each that a
//! packet asks for at once, so that the change keeps nobody waiting however many there are.

use super::{Connections, Side};
use crate::state::State;
use guard::guard;
use wire::Tuple;

/// Records moved between two times that memory is given back.
const GIVE_BACK: usize = 1 << 14;
/// Changes of room of which connections are on their way at once. One more waits until
/// all have come.
const CHANGES: u32 = 4;

/// The room of before.
pub(super) struct Former {
    pub(super) connections: Connections,
    /// Owners whose connections have not all come.
    owners: usize,
    /// By owner: whether its connections go on.
    stays: Box<[bool]>,
}

/// A room that waits until the connections of former ones have come. Until then the present
/// one is used, and whoever has no room there has no connections.
pub(super) struct Waiting {
    room: Connections,
    /// By owner in the present room: whether its connections go on. Those that do not are
    /// gone at once.
    stays: Box<[bool]>,
}

impl Connections {
    /// Takes over from other connections, those between owners that `stays` names, as far
    /// as they find a place; and their journal. They come by [`Connections::move_some`],
    /// and where they are asked for before; no call takes longer for how many there are. While
    /// those of some changes before are still on their way, this one waits.
    pub fn inherit(&mut self, mut before: Connections, stays: impl Fn(u32) -> bool) {
        if before.changes() >= CHANGES || before.waiting.is_some() {
            let room = core::mem::replace(self, before);
            let stays =
                (0..self.owners.len() as u32).map(|owner| self.stays(owner) && stays(owner));
            let stays = stays.collect();
            self.waiting = Some(Box::new(Waiting { room, stays }));
            return;
        }
        // Who kept a number of before does not find it here.
        for (own, of) in self.generations.iter_mut().zip(&before.generations) {
            if guard!("flow-rooms-apart") {
                *own = of.saturating_add(1);
            }
        }
        self.journal = before.journal.take();
        while let Some(tally) = before.tallies.pop() {
            self.note_tally(tally);
        }
        for (owner, own) in before.owners.iter().zip(&mut self.owners) {
            own.counters = owner.counters;
        }
        let stays = (0..before.owners.len() as u32).map(stays).collect();
        if before.former.is_some() || before.owners.iter().any(|owner| owner.live != 0) {
            self.former = Some(Box::new(Former {
                owners: before.owners.len(),
                connections: before,
                stays,
            }));
        }
    }

    /// Whether connections of before a change of room are still on their way.
    pub fn is_moving(&self) -> bool {
        self.former.is_some() || self.waiting.is_some()
    }

    /// Whether an owner's connections go on in the room that waits, if one does.
    pub(super) fn stays(&self, owner: u32) -> bool {
        let Some(waiting) = self.waiting.as_ref().filter(|_| guard!("flow-waiting")) else {
            return true;
        };
        waiting.stays.get(owner as usize) == Some(&true)
    }

    /// Moves some of them, at most `budget` records; whether there are more.
    pub fn move_some(&mut self, now: u64, budget: u32) -> bool {
        for _ in 0..budget {
            let Some(former) = &mut self.former else {
                let Some(waiting) = self.waiting.take() else {
                    return false;
                };
                let Waiting { room, stays } = *waiting;
                let before = core::mem::replace(self, room);
                self.inherit(before, |owner| stays.get(owner as usize) == Some(&true));
                continue;
            };
            if former.connections.move_some(now, 1) {
                continue;
            }
            let Some(at) = former.owners.checked_sub(1) else {
                if let Some(mut former) = self.former.take() {
                    while let Some(tally) = former.connections.tallies.pop() {
                        self.note_tally(tally);
                    }
                }
                continue;
            };
            let before = &mut former.connections;
            let owner = before.owners.get_mut(at).filter(|owner| owner.used != 0);
            let Some(owner) = owner else {
                former.owners = at;
                continue;
            };
            owner.used -= 1;
            let number = owner.first_record + owner.used;
            self.take_over(now, number);
            if let Some(former) = &mut self.former {
                former.connections.give_back(number as usize);
            }
        }
        self.is_moving()
    }

    /// Does without the records from here on.
    fn give_back(&mut self, number: usize) {
        self.records.truncate(number);
        self.translations.truncate(number);
        if number.is_multiple_of(GIVE_BACK) {
            self.records.shrink_to_fit();
            self.translations.shrink_to_fit();
        }
    }

    /// Has the connection that a packet's side is of, if it is still on its way.
    #[inline]
    pub(super) fn fetch(&mut self, now: u64, hash: u64, owner: u32, zone: u16, tuple: &Tuple) {
        if self.former.is_some() && guard!("flow-moving") {
            self.fetch_former(now, hash, owner, zone, tuple);
        }
    }

    #[cold]
    fn fetch_former(&mut self, now: u64, hash: u64, owner: u32, zone: u16, tuple: &Tuple) {
        let found = self.former.as_mut().and_then(|former| {
            former.connections.fetch(now, hash, owner, zone, tuple);
            former.connections.look(hash, owner, zone, tuple)
        });
        if let Some(found) = found {
            self.take_over(now, found.id);
        }
    }

    /// Moves the former connection of this number, if there is one and it goes on.
    fn take_over(&mut self, now: u64, number: u32) {
        let Some(former) = &mut self.former else {
            return;
        };
        let before = &mut former.connections;
        let Some(record) = before.record(number).copied() else {
            return;
        };
        let (a, b) = (record.a(), before.b(number, &record));
        let goes_on = |side: &Side| former.stays.get(side.owner as usize) == Some(&true);
        let goes_on = !record.expired(now) && goes_on(&a) && goes_on(&b);
        // What passed of it goes with it.
        before.take_out(number, |counters| &mut counters.closed);
        let installed = match goes_on {
            true => self.install(now, &a, &b, record).ok(),
            false => None,
        };
        match installed {
            Some(id) if !record.state().is_some_and(State::is_half_open) => {
                self.promote(now, id, false);
            }
            Some(_) => {}
            None => {
                self.note_tally(record.untold());
                self.unwrite(record.place);
            }
        }
    }

    /// How many changes of room connections are on their way of.
    fn changes(&self) -> u32 {
        let mut count = 0;
        let mut at = self;
        while let Some(former) = &at.former {
            (count, at) = (count + 1, &former.connections);
        }
        count
    }
}
