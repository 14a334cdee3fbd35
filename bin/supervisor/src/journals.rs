//! Journals of connections: memory of our making that a compartment's switch alone maps,
//! and after its death the next one. What is in it we never look at.

use crate::link::Shared;
use crate::registry::{Key, Note, Seat, SeatPart};
use crate::seats::label;
use crate::supervisor::Supervisor;
use guard::guard;
use std::os::fd::AsFd;
use std::rc::Rc;

/// A compartment without a limit has a journal as one with so much memory, bytes.
const USUAL: u64 = 64 << 20;

impl Supervisor {
    /// The journal that a process in this seat is to go on with; the fabric has none.
    pub fn journal(&mut self, seat: Seat) -> Option<Shared> {
        let Seat::Compartment(id) = seat else {
            return None;
        };
        let compartment = self.compartments.get_mut(&id)?;
        if let Some(journal) = &compartment.seat.journal {
            return Some(Rc::clone(journal));
        }
        // Connections and their journal have half its memory (core/policy), and none of it
        // is there before it is used.
        let bytes = match compartment.body.memory {
            0 => USUAL,
            memory => memory,
        } / 2;
        let made = shm::sparse_file("bulkhead-journal", usize::try_from(bytes).unwrap_or(0));
        let journal = match made {
            Ok(journal) => Rc::new(journal),
            Err(error) => {
                confine::say!(
                    "supervisor: no journal for {}, its connections end with its process: {error}",
                    label(seat)
                );
                return None;
            }
        };
        compartment.seat.journal = Some(Rc::clone(&journal));
        let key = Key::Seat(seat, SeatPart::Journal);
        self.keeper.keep(key, &Note::default(), journal.as_fd());
        Some(journal)
    }

    /// The process in this seat has shown that it is not to be trusted: nothing that it
    /// wrote goes on. Before it is killed, so that a supervisor after us knows it as well.
    pub fn distrust(&mut self, seat: Seat) {
        if !guard!("journal-distrust") {
            return;
        }
        if let Some(state) = self.seat_mut(seat)
            && state.journal.take().is_some()
        {
            self.keeper.forget_one(Key::Seat(seat, SeatPart::Journal));
        }
    }
}
