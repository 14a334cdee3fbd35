//! A program asks for the memory of a circuit.

use super::*;
use stream::{CAPACITY, GIVEN, Given, Side, VERSION};

impl Mediator {
    /// Puts it into the program, and says which number it has there.
    pub(super) fn ring(&mut self, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        if call.room()? < GIVEN as i32 {
            return Err(Errno::INVAL);
        }
        let (began, side, slots) = self.connection(cookie)?;
        if !self.rings.has_room(slots) {
            self.sweep();
        }
        let memory = self.rings.memory(began, side, slots)?;
        let hands_to = |thread| self.notes.iter().for_each(|notes| notes.hands_to(thread));
        hands_to(call.thread());
        let number = call.install(memory);
        hands_to(0);
        let number = number?;
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

    /// The connection that a socket is an end of: who began it, which side this is, the slots
    /// of both. Both are endpoints of one tenant, and it may still be begun.
    pub(super) fn connection(&self, cookie: u64) -> Result<(u64, Side, [u32; 2]), Errno> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(Errno::NETDOWN)?;
        let own = self.table.socket(cookie).ok_or(Errno::BADF)?;
        if own.crossing() != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let tenant = |slot: u32| decide::tenant(&image, slot);
        let (began, side) = match own.is_initiator() {
            true => (own, Side::Began),
            false => {
                let mut others = self.table.other_ends(cookie);
                let of = |it: &&circuit::Socket| {
                    it.is_initiator() && tenant(it.endpoint()) == tenant(own.endpoint())
                };
                (others.find(of).ok_or(Errno::NOTCONN)?, Side::Accepted)
            }
        };
        let remote = began.remote().ok_or(Errno::NOTCONN)?;
        let to = self.decided(&image, began.endpoint(), began.local(), remote)?;
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
