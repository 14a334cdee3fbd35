//! Traced frames: a frame that we never look at goes to a switch or the fabric, with a page
//! of our own making, where that writes what became of it, and which who asked reads.

use crate::link::Shared;
use crate::refusal::Refusal;
use crate::registry::Seat;
use crate::seats::label;
use crate::supervisor::Supervisor;
use command::Message;
use command::message::ErrorCode;
use command::verbs::{FABRIC, TRACE_END, Trace};
use seqpacket::Fds;
use std::rc::Rc;
use telemetry::trace::BYTES;

impl Supervisor {
    /// Has a frame traced; the page where its steps will be. Of the end of a trace none.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such seat, nobody in it, no frame, or no memory.
    pub fn trace(&mut self, body: &Trace, fds: Fds) -> Result<Vec<Shared>, Refusal> {
        let seat = match body.target {
            FABRIC => Seat::Fabric,
            id => Seat::Compartment(id),
        };
        let nobody =
            |what: &str| Refusal::new(ErrorCode::NotFound, format!("{} {what}", label(seat)));
        let state = self.seat(seat).ok_or_else(|| nobody("does not exist"))?;
        let worker = state.worker.ok_or_else(|| nobody("has no process now"))?;
        if body.flags & TRACE_END != 0 {
            self.tell(worker, &Message::new(0, body), Vec::new());
            return Ok(Vec::new());
        }
        let frame = fds
            .into_iter()
            .next()
            .ok_or_else(|| Refusal::new(ErrorCode::BadMessage, "no frame came with the request"))?;
        let page = shm::memory_file("bulkhead-trace", BYTES)
            .map_err(|e| Refusal::system("make a page for a trace", &e))?;
        let ours =
            shm::read_only(&page).map_err(|e| Refusal::system("open a page for reading", &e))?;
        let fds = vec![Rc::new(page), Rc::new(frame)];
        self.tell(worker, &Message::new(0, body), fds);
        Ok(vec![Rc::new(ours)])
    }
}
