//! Listings of connections: a page of our own making goes to the switch, which writes
//! it, and to who asked, who reads it. What is in it we never look at.

use crate::link::Shared;
use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::label;
use crate::supervisor::Supervisor;
use command::Message;
use command::message::ErrorCode;
use command::verbs::{CutCircuit, ListFlows};
use std::rc::Rc;
use telemetry::circuits::CUT_BYTES;
use telemetry::flows::MOST;

impl Supervisor {
    /// Asks a compartment's switch for its connections; the page where they will be.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such compartment, nobody in it, or no memory.
    pub fn list_flows(&mut self, body: &ListFlows) -> Result<Shared, Refusal> {
        let seat = Seat::Compartment(body.compartment);
        let nobody =
            |what: &str| Refusal::new(ErrorCode::NotFound, format!("{} {what}", label(seat)));
        let state = self.seat(seat).ok_or_else(|| nobody("does not exist"))?;
        let worker = match body.circuits {
            0 => state.worker.ok_or_else(|| nobody("has no process now"))?,
            _ => {
                let operator = self.operator_in(body.compartment);
                operator.ok_or_else(|| nobody("has no operator now"))?
            }
        };
        let asked = ListFlows {
            most: body.most.min(MOST as u32),
            ..*body
        };
        let most = asked.most as usize;
        let bytes = match body.circuits {
            0 => telemetry::flows::bytes_for(most),
            _ => telemetry::circuits::bytes_for(most),
        };
        self.tell_with_page(worker, &Message::new(0, &asked), bytes)
    }

    /// Has a compartment's operator cut a circuit; the page where it will be what came of it.
    ///
    /// # Errors
    /// [`Refusal`]: there is no operator there, or no memory.
    pub fn cut_circuit(&mut self, body: &CutCircuit) -> Result<Shared, Refusal> {
        let operator = self.operator_in(body.compartment);
        let operator = operator.ok_or_else(|| {
            let seat = label(Seat::Compartment(body.compartment));
            Refusal::new(ErrorCode::NotFound, format!("{seat} has no operator now"))
        })?;
        self.tell_with_page(operator, &Message::new(0, body), CUT_BYTES)
    }

    /// Tells a process something, and gives it a page to answer in.
    fn tell_with_page(
        &mut self,
        worker: u64,
        message: &Message,
        bytes: usize,
    ) -> Result<Shared, Refusal> {
        let page = shm::memory_file("bulkhead-answer", bytes)
            .map_err(|e| Refusal::system("make a page for an answer", &e))?;
        let ours =
            shm::read_only(&page).map_err(|e| Refusal::system("open a page for reading", &e))?;
        self.tell(worker, message, vec![Rc::new(page)]);
        Ok(Rc::new(ours))
    }
}
