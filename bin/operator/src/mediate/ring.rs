//! A program asks for the memory of a circuit.

use super::leaves::ELSEWHERE;
use super::*;
use crate::decide::across;
use crate::rings::{Across, End};
use command::verbs::{HasMemory, Share};
use stream::{CAPACITY, GIVEN, Given, Side, VERSION};

impl Mediator {
    /// Puts it into the program, and says which number it has there.
    pub(super) fn ring(&mut self, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        if call.room()? < GIVEN as i32 {
            return Err(Errno::INVAL);
        }
        let tag = self
            .table
            .socket(cookie)
            .map_or(0, circuit::Socket::crossing);
        let found = match tag {
            0 => self.connection(cookie)?,
            _ => self.crossing(cookie)?,
        };
        let (began, side, slots) = found;
        self.makes_room(began, slots, tag != 0);
        if tag != 0 && !self.rings.has(cookie) {
            let asked = (tag, self.number_across(cookie, side, call)?);
            let of = (slots[0], self.rings.has_room_across(slots[0]));
            return match self.crossings.memory.ask(of, cookie, asked) {
                None => Ok(Came::Waits {
                    at: cookie,
                    why: Why::Memory,
                }),
                Some(why) => Err(why),
            };
        }
        let inode = rustix::fs::fstat(call.fd()?)?.st_ino as u32;
        let id = match tag {
            0 => 0,
            _ => self.number_across(cookie, side, call)?,
        };
        let memory = self.rings.memory(began, side, slots)?;
        let hands_to = |thread| self.notes.iter().for_each(|notes| notes.hands_to(thread));
        hands_to(call.thread());
        let number = call.install(memory);
        hands_to(0);
        let number = number?;
        let is_far = tag != 0 && side == Side::Accepted;
        let place = is_far.then(|| self.crossings.place(tag, (inode, cookie)));
        let end = End { inode, cookie };
        self.rings.handed(began, side, end, place.flatten());
        // Before anything else fails that its program has in its hands.
        if tag != 0 {
            let body = HasMemory {
                id,
                cookie,
                inode,
                reserved: 0,
            };
            self.crossings.shares(tag, &body);
        }
        let given = Given {
            number: number.cast_signed(),
            side: side as u32,
            capacity: CAPACITY as u32,
            version: VERSION,
        };
        call.tell_option(&given.to_bytes())?;
        if self.rings.given(began, side) {
            self.table.carry(began, Carrier::Ring, 0);
        }
        Ok(Came::To(Ok(0)))
    }

    /// Some that are closed are looked for before an endpoint has as many as it may: what is taken back takes
    /// a little.
    fn makes_room(&mut self, began: u64, slots: [u32; 2], is_across: bool) {
        if self.rings.has(began) || !self.rings.is_near_full(slots, is_across) {
            return;
        }
        let begun = Instant::now();
        match is_across {
            true => drop(self.sweep_at_times()),
            false => self.sweep_of(false),
        }
        self.rings.looked_for(begun.elapsed());
    }

    /// What both sides call a connection across an agreement.
    fn number_across(&self, cookie: u64, side: Side, call: &Call<'_>) -> Result<u64, Errno> {
        match side {
            Side::Began => Ok(cookie),
            Side::Accepted => sockets::began(call.fd()?).ok_or(Errno::OPNOTSUPP),
        }
    }

    /// The same of a connection across an agreement, whose other end is elsewhere: by its own end,
    /// where both tenants ask for it, and it may still be.
    fn crossing(&self, cookie: u64) -> Result<(u64, Side, [u32; 2]), Errno> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(Errno::NETDOWN)?;
        let own = self.table.socket(cookie).ok_or(Errno::BADF)?;
        if own.state() != circuit::State::Connected {
            return Err(Errno::NOTCONN);
        }
        let slot = own.endpoint();
        let metered = own.carrier().is_metered() || self.carrier([slot, ELSEWHERE]).is_metered();
        if metered || !across::shares(&image, own.crossing()) {
            return Err(Errno::OPNOTSUPP);
        }
        across::stays(&image, own).map_err(|_| Errno::ACCESS)?;
        let side = match own.is_initiator() {
            true => Side::Began,
            false => Side::Accepted,
        };
        Ok((cookie, side, [slot; 2]))
    }

    /// The end here of a connection across an agreement, by what both sides call it.
    fn end_across(&self, tag: u16, id: u64) -> Option<(u64, Side)> {
        let here = |cookie: u64| self.table.socket(cookie).filter(|it| it.crossing() == tag);
        if here(id).is_some_and(circuit::Socket::is_initiator) {
            return Some((id, Side::Began));
        }
        let cookie = self.crossings.memory.came_as(tag, id)?;
        here(cookie).map(|_| (cookie, Side::Accepted))
    }

    /// The supervisor gives memory of a connection to both sides, or says why there is none. One
    /// that is not there any more, or may not have it, has none.
    pub fn takes_memory(&mut self, body: &Share, memory: Option<OwnedFd>, find: Find<'_>) {
        let tag = body.tag as u16;
        let kept = match (self.end_across(tag, body.id), memory) {
            (Some((cookie, _)), Some(memory)) => {
                let may = self.crossing(cookie);
                may.and_then(|(own, side, slots)| {
                    self.makes_room(own, slots, true);
                    let across = Across {
                        tag,
                        id: body.id,
                        is_here: side == Side::Began,
                        place: None,
                        ends: [None; 2],
                    };
                    self.rings.keep(own, slots[0], across, memory)
                })
                .map(|()| cookie)
            }
            _ => Err(Errno::OPNOTSUPP),
        };
        if kept.is_ok()
            && let Some(said) = self.crossings.memory.other_was_early(tag, body.id)
        {
            self.other_has_memory(tag, said);
        }
        let kept = kept.map(drop);
        self.crossings.memory.answered(tag, body.id, kept);
        self.wake(Also::Of(Why::Memory), find);
    }

    /// Pages that nobody uses are given back.
    pub(super) fn rings_tick(&mut self) {
        if self.rings.tick() {
            self.sweep_at_times();
        }
        let asks = self.rings.asks_ends();
        if asks.is_empty() {
            return;
        }
        let begun = Instant::now();
        for (own, across) in asks {
            self.beats();
            match self.lives_across(&across) {
                Some(true) => {}
                Some(false) => self.rings.is_over(own),
                None => self.rings.gives_up(own),
            }
        }
        self.rings.asked_ends(begun.elapsed());
    }

    /// Whether an end of a circuit across an agreement lives; `None`: that is told by nobody.
    fn lives_across(&self, across: &Across) -> Option<bool> {
        let ends = across.ends.iter().flatten();
        let asked: Vec<(u32, u64)> = ends.map(|end| (end.inode, end.cookie)).collect();
        let told = match across.is_here {
            true => self.live.as_ref().map(|live| live.those(&asked)),
            // What was made elsewhere, in a place that is known no more, may live.
            false => self.crossings.told_of((across.tag, across.place?), &asked),
        };
        // What is refused once is not for ever.
        told.map(|told| told.map_or(true, |all| !all.is_empty()))
    }

    /// When such are looked for.
    pub(super) fn rings_sleep(&self) -> Option<Duration> {
        let due = self.rings.due()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// What the supervisor is to be asked for.
    pub fn asks_memory(&mut self) -> Vec<Share> {
        self.crossings.memory.asks()
    }

    /// The other side's program has the memory of a connection.
    pub(super) fn other_has_memory(&mut self, tag: u16, said: HasMemory) {
        let (inode, cookie) = (said.inode, said.cookie);
        let end = End { inode, cookie };
        if self.rings.given_late((tag, said.id), end) {
            return;
        }
        let Some((cookie, side)) = self.end_across(tag, said.id) else {
            return self.crossings.memory.other_is_early(tag, said);
        };
        let other = match side {
            Side::Began => Side::Accepted,
            Side::Accepted => Side::Began,
        };
        match self.rings.given_far(cookie, other, end) {
            None => self.crossings.memory.other_is_early(tag, said),
            Some(false) => {}
            Some(true) => {
                self.table.carry(cookie, Carrier::Ring, 0);
                self.write();
            }
        }
    }

    /// The connection that a socket is an end of: who began it, which side this is, the slots
    /// of both. Both are endpoints of one tenant, and it may still be begun.
    pub(super) fn connection(&self, cookie: u64) -> Result<(u64, Side, [u32; 2]), Errno> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(Errno::NETDOWN)?;
        let own = self.table.socket(cookie).ok_or(Errno::BADF)?;
        let tenant = |slot: u32| decide::tenant(&image, slot);
        let (began, side) = match own.is_initiator() {
            true => (own, Side::Began),
            false => {
                let began = self.table.other_ends(cookie).next();
                (began.ok_or(Errno::NOTCONN)?, Side::Accepted)
            }
        };
        let remote = began.remote().ok_or(Errno::NOTCONN)?;
        let decided = self.decided(&image, began.endpoint(), began.local(), remote)?;
        let to = decided.slot;
        let slots = [began.endpoint(), to];
        // What goes by memory nobody counts, and nobody sees.
        let metered = began.carrier().is_metered() || self.carrier(slots).is_metered();
        if metered && guard!("circuits-metered-ring") {
            return Err(Errno::OPNOTSUPP);
        }
        match tenant(slots[0]).is_some() && tenant(slots[0]) == tenant(slots[1]) {
            true => Ok((began.cookie(), side, slots)),
            false => Err(Errno::OPNOTSUPP),
        }
    }
}
