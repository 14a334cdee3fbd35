//! Calls that wait, and go on as what they wait for comes.

use super::*;
use crate::waiting::Key;

/// Whose turn it may be, beside those at sockets at which something has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Also {
    Nobody,
    /// Those that wait for this.
    Of(Why),
    All,
}

/// One look at those that wait.
#[derive(Default)]
struct Round {
    /// Who comes to wait from this number on, or to wait on, is not looked at in it.
    end: u64,
    /// Sockets at which something has changed.
    stirred: BTreeSet<u64>,
    /// Listening sockets of which the kernel has less room than the table says: one try is enough
    /// for all.
    full: BTreeSet<u64>,
    /// Sockets at which somebody could go on who was looked at before.
    missed: BTreeSet<u64>,
}

impl Mediator {
    /// Calls that waited for what has come meanwhile: at sockets at which something changed, and those
    /// that wait for what is named. Bound: each once for every one that goes on.
    pub(super) fn wake(&mut self, also: Also, find: Find<'_>) {
        let mut round = Round {
            end: self.waits.next(),
            ..Round::default()
        };
        // By another's call, or by what came.
        self.has_swept &= also == Also::Nobody;
        let more = match also {
            Also::Nobody => BTreeSet::new(),
            Also::Of(why) => self.waits.sockets(why),
            Also::All => self.waits.all_sockets(),
        };
        for at in more {
            self.wake_at(at, &mut round, find);
        }
        while let Some(at) = self.table.stirred() {
            round.stirred.insert(at);
            self.wake_at(at, &mut round, find);
        }
        let of = (also != Also::All).then_some(&round.stirred);
        self.room_for_crossings(of);
        // Who was tried, and could go on since, is tried the next time.
        for at in round.missed {
            self.table.stir(at);
        }
        self.takes_strays_away(find);
    }

    /// Copies of connections that others have by now, from programs whose threads wait: their next call may be long in coming.
    fn takes_strays_away(&mut self, find: Find<'_>) {
        for thread in self.strays.of_others() {
            let waits = self.waits.of(thread);
            let of = waits.and_then(|waits| Some((waits, find(waits.program)?.1)));
            if let Some((waits, listener)) = of {
                let is_waiting = |cookie| self.unclaimed.is_waiting(cookie);
                self.strays.take_away(&waits.call, listener, is_waiting);
            }
        }
    }

    /// Those go on that wait at a socket and can.
    fn wake_at(&mut self, at: u64, round: &mut Round, find: Find<'_>) {
        for why in self.waits.whys(at) {
            while let Some(first) = self.waits.first(at, why)
                && !(why == Why::Room && round.full.contains(&at))
                && self.is_ready(at, why)
            {
                if first >= round.end {
                    round.missed.insert(at);
                    break;
                }
                if let Some(waits) = self.waits.remove(at, why, first) {
                    self.goes_on(((at, why, first), waits), round, find);
                }
            }
        }
        if self.waits.first(at, Why::Room).is_none() {
            self.waits.catches_up(at, false);
        }
    }

    fn goes_on(&mut self, (key, waits): (Key, Waits), round: &mut Round, find: Find<'_>) {
        let Some((slot, listener)) = find(waits.program) else {
            return self.done_with(waits.note);
        };
        if !listener.is_live(waits.call.id) {
            self.ends(&waits);
            return self.done_with(waits.note);
        }
        let begun = self.starts();
        let again = std::mem::take(&mut self.again);
        let came = self.attempt(slot, waits.program, (waits.note, &waits.call), listener);
        if let Came::Waits { at, why: Why::Room } = came {
            round.full.insert(at);
        }
        self.write();
        // It waits on for as long as it would have; for room, of which there is none for anybody then, in its turn.
        self.until = waits.until.or(self.until);
        self.turn = (waits.why == Why::Room).then_some(Turn::Of(key));
        self.finish(waits.program, waits.note, waits.call, listener, came);
        self.again = again;
        self.done_for(slot, begun);
    }

    /// A signal has ended it. The other side of an agreement would keep a place for nobody, where others wait for one.
    pub(super) fn ends(&mut self, waits: &Waits) {
        if waits.why == Why::Cross && guard!("across-abandoned") {
            self.abandons(waits.at);
        }
    }

    /// Whether what somebody waits for at a socket has come.
    fn is_ready(&self, at: u64, why: Why) -> bool {
        let Some(socket) = self.table.socket(at) else {
            return true;
        };
        let listens = matches!(socket.state(), circuit::State::Listening { .. });
        match why {
            Why::Relay => self.relays.is_over(at),
            Why::Cross => self.crossings.is_over(at),
            Why::Memory => self.crossings.memory.is_told(at),
            Why::Port => {
                let first = self.waits.first(at, Why::Port);
                self.asking.turn == first.map(|number| (at, number))
            }
            Why::Meter => self.meters.takes() || self.meters.is_overdue(),
            // It listens no more: who waits there is told.
            Why::Accept | Why::Room if !listens => true,
            Why::Accept => self.table.has_waiting(at) || self.unclaimed.has(at),
            Why::Room => !self.table.is_full(at) || self.waits.is_passed(at, false),
        }
    }
}
