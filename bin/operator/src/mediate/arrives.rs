//! Another tenant connects to a program, by an agreement: who comes is decided here, by this side's
//! own tables, whatever the other side has decided.

use super::acts::leaving;
use super::leaves::{ELSEWHERE, asked};
use super::*;
use crate::crossings::Said;
use crate::decide::across;
use crate::tally::Seen;
use crate::waiting::Why as For;
use command::verbs::Cross;
use std::time::Duration;

/// So long it is asked about those that came by agreements in one look at what lives.
const ASKED: Duration = Duration::from_millis(20);
/// The same of those that an agreement's end, or a cut, is about: that is nobody's to ask for often.
const ASKED_AT_END: Duration = Duration::from_millis(100);
/// So many at a time.
const AT_ONCE: usize = 64;
/// Ports that are tried for somebody whose own another has here, as the endpoint sees them.
const PORTS: usize = 64;
/// IPv4's 0.0.0.0.
const NO_ADDRESS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
/// Through one door at a time, before others have their turn.
const TURN: usize = 16;

/// Why somebody is not let in.
enum Why {
    /// This is what connect(2) says; whether somebody there may be reached by packets.
    Not(Errno, bool),
    /// There is no room at this listening socket.
    Full(u64),
}

impl Mediator {
    pub(super) fn crossing_said(&mut self, tag: u16, said: Said) {
        match said {
            Said::Nothing => {}
            Said::Shares(body) => self.other_has_memory(tag, body),
            Said::Cross(body) => self.asks_in(tag, body),
            Said::Uncross(id) => {
                self.crossings.stops_waiting(tag, id);
                self.gives_up_place(tag, id);
                self.write();
            }
        }
    }

    fn gives_up_place(&mut self, tag: u16, id: u64) {
        if let Some(at) = self.crossings.leave(tag, id) {
            self.table.withdraw_crossing(at, tag, id);
        }
    }

    /// The other side of an agreement asks for a connection: it has a place, or is told why not,
    /// or waits for room.
    fn asks_in(&mut self, tag: u16, body: Cross) {
        // What it asked before for this socket is over.
        self.crossings.stops_waiting(tag, body.id);
        let outcome = self.lets_in(tag, &body);
        self.write();
        if let Err(Why::Full(at)) = outcome
            && body.waits != 0
            && self.crossings.wait(tag, body, at)
        {
            return self.crossings.has_it_wait(tag, &body);
        }
        self.answers(tag, &body, outcome);
    }

    fn answers(&mut self, tag: u16, asked: &Cross, outcome: Result<(), Why>) {
        let outcome = outcome.map_err(|why| match why {
            Why::Not(errno, packets) => (errno, packets),
            Why::Full(_) => (Errno::AGAIN, false),
        });
        self.crossings.answer(tag, asked, outcome);
    }

    /// Those go on that waited for room where there is some, of these listening sockets or of all.
    pub(super) fn room_for_crossings(&mut self, of: Option<&BTreeSet<u64>>) {
        // Bound: as many wait as may, each once.
        let mut tried = BTreeSet::new();
        loop {
            let awaited = self.crossings.awaited();
            let awaited: BTreeSet<_> = awaited
                .filter(|(_, at)| of.is_none_or(|of| of.contains(at)))
                .collect();
            let is_ready = |it: &(u16, u64)| {
                self.beats();
                let more = self.beyond(it.1, true);
                let is_full = self.is_full(it.1, it.0, more);
                !tried.contains(it) && !is_full && self.has_places(it.0, it.1)
            };
            let ready: BTreeSet<_> = awaited.into_iter().filter(is_ready).collect();
            if ready.is_empty() {
                break;
            }
            let next = self.crossings.next_waiting(|it| ready.contains(&it));
            let Some((tag, body, since)) = next else {
                break;
            };
            match self.lets_in(tag, &body) {
                Err(Why::Full(at)) => {
                    tried.insert((tag, at));
                    self.crossings.waits_on((tag, body, since), at);
                }
                outcome => {
                    self.write();
                    self.answers(tag, &body, outcome);
                }
            }
        }
        for at in of.into_iter().flatten() {
            if self.waits.is_passed(*at, true) && !self.crossings.is_awaited(*at) {
                self.waits.catches_up(*at, true);
            }
        }
    }

    /// Whether as many wait at a listening socket as may, for who comes by this agreement: places
    /// for those of others', who may never come, do not count. One that listens no more is not
    /// full: who waits there is told.
    fn is_full(&self, listener: u64, tag: u16, more: usize) -> bool {
        let socket = self.table.socket(listener).map(circuit::Socket::state);
        let Some(circuit::State::Listening { backlog }) = socket else {
            return false;
        };
        let waiting = self.table.waiting_by(listener, tag);
        let waiting = waiting + self.unclaimed.count(|at, _| at == listener);
        waiting > (backlog as usize).saturating_add(more)
    }

    /// How many more than its backlog a listener has for one by an agreement: for who waits, in its turn, as many as that
    /// agreement has places ([`has_places`](Self::has_places)), for the tenant's own could take any other number.
    fn beyond(&self, at: u64, waits: bool) -> usize {
        match (waits, self.waits.is_passed(at, true)) {
            (false, _) => BEYOND_BACKLOG,
            (true, false) => 0,
            (true, true) => usize::MAX,
        }
    }

    /// Whether one more by an agreement may have a place at a listening socket.
    fn has_places(&self, tag: u16, at: u64) -> bool {
        let socket = |cookie| self.table.socket(cookie);
        let is_its = |cookie| socket(cookie).is_some_and(|it| it.crossing() == tag);
        let unclaimed = &self.unclaimed;
        let here = unclaimed.count(|of, cookie| of == at && is_its(cookie));
        let of_one = unclaimed.count(|_, cookie| is_its(cookie));
        let of_all = unclaimed.count(|_, _| true);
        self.crossings.has_places(tag, at, [here, of_one, of_all])
    }

    /// Keeps a place for a connection from across an agreement, if it may come.
    fn lets_in(&mut self, tag: u16, body: &Cross) -> Result<(), Why> {
        let not = |errno| Why::Not(errno, false);
        // It was told so, and did not hear. Its other word counts.
        self.gives_up_place(tag, body.id);
        let port = |port: u32| u16::try_from(port).map_err(|_| not(Errno::INVAL));
        let from = Endpoint {
            ip: body.from,
            port: port(body.from_port)?,
        };
        let to = Endpoint {
            ip: body.to,
            port: port(body.to_port)?,
        };
        let (slot, pending) = match self.comes_as(tag, body.id, from, to) {
            Ok(found) => found,
            // Packets may find the way, and are told of by who judges them.
            Err(refused) if refused.errno == Errno::HOSTUNREACH => {
                return Err(Why::Not(refused.errno, true));
            }
            Err(refused) => {
                // By the address that its endpoint knows, or by none: the other tenant's own is not this
                // one's to know.
                let (slot, client) = match refused.at {
                    Some(at) if guard!("across-told") => (at.slot, at.client),
                    Some(at) => (at.slot, from.ip),
                    None => (0, NO_ADDRESS),
                };
                let from = Endpoint { ip: client, ..from };
                let seen = arriving(slot, from, to);
                return Err(not(self.refuses(&seen, &refused)));
            }
        };
        let has_packets = self.relays.has(slot);
        if !self.limits.contains_key(&slot) {
            return Err(Why::Not(Errno::HOSTUNREACH, true));
        }
        let found = self
            .table
            .find_listener(slot, pending.local, chance::number());
        let listener = found.ok_or(Why::Not(Errno::CONNREFUSED, has_packets))?;
        let at = listener.cookie;
        let many = !self.has_places(tag, at);
        // Who must not wait is let in beyond the backlog, as those of the tenant's own are.
        let more = self.beyond(at, body.waits != 0);
        if self.is_full(at, tag, more) || many {
            return Err(Why::Full(at));
        }
        // Whose sockets are as many as may be waits until some are closed. Of those that came so
        // nobody says that they are: they are looked for before there is no room.
        if self.table.counts().0 >= self.sweeps_at {
            self.sweep_grown();
        } else if !self.has_room(slot, 1, 2) {
            self.sweep_at_times();
        }
        if !self.has_room_for(slot) {
            return Err(Why::Full(at));
        }
        let carrier = self.carrier([ELSEWHERE, slot]);
        if carrier.is_metered() && !self.meters.is_linked() {
            self.meters.awaits();
            return match self.meters.is_overdue() {
                true => Err(not(Errno::NETDOWN)),
                false => Err(Why::Full(at)),
            };
        }
        self.room_at_meter(carrier, (ELSEWHERE, tag), NO_ADDRESS)
            .map_err(not)?;
        let is_beyond = self.is_full(at, tag, 0);
        match self.table.enqueue_beyond(at, pending, more) {
            Ok(()) => {}
            Err(circuit::Errno::EAGAIN | circuit::Errno::ENOBUFS) => return Err(Why::Full(at)),
            Err(errno) => return Err(not(number(errno))),
        }
        match body.waits {
            0 if is_beyond => self.passes(at),
            0 => {}
            _ => self.waits.catches_up(at, true),
        }
        self.crossings.keep(tag, body.id, at);
        Ok(())
    }

    /// Whom somebody who comes by an agreement comes to, and as whom. A port that another has
    /// here already, who is seen as the same address, is changed, as where addresses are
    /// translated.
    fn comes_as(
        &self,
        tag: u16,
        id: u64,
        from: Endpoint,
        to: Endpoint,
    ) -> Result<(u32, Pending), Refused> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(decide::NOBODY)?;
        let seed = self.notes.as_ref().map_or(0, Notes::seed);
        let mut from = from;
        // Bound: ports that are tried.
        for _ in 0..PORTS {
            let wish = asked(ELSEWHERE, from, to);
            let arrives = across::arrives(&image, tag, &wish, seed)?;
            let end = |ip, port| Endpoint { ip, port };
            let client = end(arrives.client, from.port);
            let local = end(arrives.local, to.port);
            if !self.table.is_taken(arrives.slot, &local, &client) || !guard!("across-taken") {
                let pending = Pending {
                    client,
                    local,
                    token: id,
                    crossing: tag,
                    relayed: false,
                };
                return Ok((arrives.slot, pending));
            }
            from.port = 0x8000 | chance::number() as u16;
        }
        let reason = DropReason::NoTranslation;
        Err(Refused::new(Errno::ADDRNOTAVAIL, reason))
    }

    /// Those who came through an agreement's door wait to be accepted; whether there may be more.
    pub fn comes_in(&mut self, tag: u16, find: Find<'_>) -> bool {
        let mut came = 0;
        while came < TURN
            && let Ok(Some(fd)) = self.crossings.comes(tag, || self.takes(true))
        {
            came += 1;
            self.beats();
            // Who has no place costs no more than this.
            let id = sockets::began(&fd);
            let is_awaited = id.is_some_and(|id| self.crossings.has_place(tag, id));
            if is_awaited && let Ok(made) = self.unclaimed.keeps(By::Door(tag), fd) {
                self.takes(false);
                self.is_in(tag, made);
            }
        }
        self.takes(false);
        self.wake(Also::Of(For::Cross), find);
        came == TURN
    }

    /// What came through a door, if there is a place for it: else it is closed.
    fn is_in(&mut self, tag: u16, made: Made) {
        let cookie = made.cookie;
        let id = sockets::began(&made.fd);
        let place = id.and_then(|id| Some((id, self.crossings.leave(tag, id)?)));
        let Some((id, at)) = place else {
            return self.unclaimed.is_over(cookie);
        };
        if self.comes_to((tag, id), at, made).is_err() {
            self.table.withdraw_crossing(at, tag, id);
            self.unclaimed.is_over(cookie);
        }
        self.write();
    }

    /// The other side's socket is connected: this end of it waits at a listening socket; or that
    /// of who meters it does.
    fn comes_to(&mut self, (tag, id): (u16, u64), at: u64, came: Made) -> Result<(), Errno> {
        let slot = self.table.socket(at).ok_or(Errno::CONNREFUSED)?.endpoint();
        let carrier = self.carrier([ELSEWHERE, slot]);
        if !carrier.is_metered() {
            self.takes_place((tag, id), at, &came, carrier)?;
            self.crossings.memory.came(tag, id, came.cookie);
            self.waits_to_be_accepted(at, came);
            return Ok(());
        }
        // Of many that had a place each was alone with it.
        self.room_at_meter(carrier, (ELSEWHERE, tag), NO_ADDRESS)?;
        let near = sockets::stream(true)?;
        let own = self.relays.circuit(&near.fd)?;
        let made = self.unclaimed.keeps(By::Listener(at), own)?;
        let pending = self.takes_place((tag, id), at, &made, carrier);
        let pending = pending.inspect_err(|_| self.unclaimed.is_over(made.cookie))?;
        self.table.waits_as(made.cookie, near.cookie);
        self.write();
        self.meters.carries_one((ELSEWHERE, tag));
        let ends = [pending.client, pending.local];
        let body = self.described(made.cookie, [ELSEWHERE, slot], ends);
        // Where it is not carried both ends are closed.
        let _ = self.meters.carry(&body, [&came.fd, &near.fd]);
        self.unclaimed.is_over(came.cookie);
        self.waits_to_be_accepted(at, made);
        Ok(())
    }

    /// What came is a socket of the listening one's endpoint, in the place that was kept for it.
    fn takes_place(
        &mut self,
        (tag, id): (u16, u64),
        at: u64,
        made: &Made,
        carrier: Carrier,
    ) -> Result<Pending, Errno> {
        let crossed = self.table.crossed(at, made.cookie, id, tag);
        let pending = crossed.map_err(number)?;
        self.counts_one(made);
        // A meter's is one of this namespace, and lives there.
        let inode = match carrier.is_metered() {
            false => rustix::fs::fstat(&made.fd).map_or(0, |of| of.st_ino as u32),
            true => 0,
        };
        self.table
            .cross(made.cookie, tag, carrier, monotonic(), inode);
        // By what holds now: the place was kept by what held then.
        let image = self.image.as_ref().map(MappedCompartment::image);
        let socket = image.zip(self.table.socket(made.cookie));
        let stays = socket.and_then(|(image, socket)| {
            let rule = across::stays(&image, socket).ok()?;
            Some((socket.endpoint(), rule))
        });
        match stays {
            Some((slot, rule)) => {
                let seen = arriving(slot, pending.client, pending.local);
                self.begins(&seen, [None, rule]);
            }
            None => drop(self.table.closed(made.cookie)),
        }
        self.write();
        stays.map(|_| pending).ok_or(Errno::ACCESS)
    }

    /// The listening socket to which came what the operator before had taken in: noted, or to be
    /// noted now. `None`: it is over, or waits there already.
    pub(super) fn had_come(&mut self, tag: u16, made: &Made) -> Option<u64> {
        let Some(socket) = self.table.socket(made.cookie).copied() else {
            // As if it had come this moment.
            if let Ok(fd) = made.fd.try_clone() {
                let cookie = made.cookie;
                self.is_in(tag, Made { fd, cookie });
            }
            return None;
        };
        let (slot, local) = (socket.endpoint(), socket.local());
        let found = self.table.find_listener(slot, local, 0);
        if found.is_none() {
            self.unclaimed.is_over(made.cookie);
        }
        found.map(|listener| listener.cookie)
    }

    /// Places that nobody came to in time are others'.
    pub(super) fn crossings_tick(&mut self, find: Find<'_>) {
        if !self.crossings.is_timed() || !self.crossings.is_due() {
            return;
        }
        for (tag, id, at) in self.crossings.overdue() {
            self.table.withdraw_crossing(at, tag, id);
        }
        self.write();
        self.crossings.tick();
        // Who waited too long for an answer or for memory too.
        self.wake(Also::All, find);
    }

    /// Places that the operator before kept.
    pub(super) fn recall_crossings(&mut self) {
        let kept = self.table.kept();
        let kept: Vec<(u64, Pending)> = kept.map(|(at, it)| (at, *it)).collect();
        for (at, pending) in kept {
            self.crossings.keep(pending.crossing, pending.token, at);
        }
    }

    /// Those of sockets that came by agreements that live, with their inodes: the kernel lists
    /// them where who began them is.
    pub(super) fn living_crossings(&mut self) -> BTreeMap<u64, u64> {
        let mut by_tag: BTreeMap<u16, Vec<(u32, u64)>> = BTreeMap::new();
        for socket in self.table.all().filter(|it| it.inode() != 0) {
            let of = by_tag.entry(socket.crossing()).or_default();
            of.push((socket.inode(), socket.cookie()));
        }
        // The kernel goes through all of the other side's sockets for each: some at a time, in turns;
        // of the others it is taken that they live.
        let share = ASKED / (by_tag.len() as u32).max(1);
        let mut living = BTreeMap::new();
        for (tag, of) in &mut by_tag {
            let begin = self.crossings.next_asked(*tag) % of.len().max(1);
            of.rotate_left(begin);
            let (since, mut asked) = (Instant::now(), 0);
            for some in of.chunks(AT_ONCE) {
                self.beats();
                if asked == 0 || since.elapsed() < share {
                    living.extend(self.crossings.living(*tag, some));
                    asked += some.len();
                } else {
                    let taken = some
                        .iter()
                        .map(|(inode, cookie)| (*cookie, (*inode).into()));
                    living.extend(taken);
                }
            }
            self.crossings.asked_up_to(*tag, begin + asked);
        }
        living
    }

    /// Those that live of these, in the table or not, that came by agreements.
    pub(super) fn living_far(&self, all: &[circuit::Socket]) -> BTreeMap<u64, u64> {
        let mut by_tag: BTreeMap<u16, Vec<(u32, u64)>> = BTreeMap::new();
        for socket in all.iter().filter(|it| it.inode() != 0) {
            let of = by_tag.entry(socket.crossing()).or_default();
            of.push((socket.inode(), socket.cookie()));
        }
        let share = ASKED_AT_END / (by_tag.len() as u32).max(1);
        let mut living = BTreeMap::new();
        for (tag, of) in by_tag {
            let since = Instant::now();
            for some in of.chunks(AT_ONCE) {
                self.beats();
                match since.elapsed() < share {
                    true => living.extend(self.crossings.living(tag, some)),
                    false => living.extend(some.iter().map(|(inode, it)| (*it, (*inode).into()))),
                }
            }
        }
        living
    }
}

/// A connection as it is told of whom it comes to.
fn arriving(slot: u32, from: Endpoint, to: Endpoint) -> Seen {
    Seen {
        inbound: true,
        peer: from.ip,
        ..leaving(slot, from, to)
    }
}
