//! Listings of connections: a page of our own making goes to the switch, which writes
//! it, and to who asked, who reads it. What is in it we never look at.

use crate::link::Shared;
use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::label;
use crate::supervisor::Supervisor;
use command::Message;
use command::message::ErrorCode;
use command::verbs::ListFlows;
use std::rc::Rc;
use telemetry::flows::{MOST, bytes_for};

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
        let page = shm::memory_file("bulkhead-flows", bytes_for(asked.most as usize))
            .map_err(|e| Refusal::system("make a page for connections", &e))?;
        let ours =
            shm::read_only(&page).map_err(|e| Refusal::system("open a page for reading", &e))?;
        self.tell(worker, &Message::new(0, &asked), vec![Rc::new(page)]);
        Ok(Rc::new(ours))
    }
}
