//! A frame that is traced for the supervisor: handled as if it had come by a port, written
//! down, and held back unless it is to be delivered.

use crate::attached::Attached;
use crate::clock;
use crate::outlet::{Outlet, Payload};
use command::verbs::{TRACE_DELIVER, Trace};
use switch::{FABRIC, HEAD, Ingress};
use telemetry::drops::DropReason;
use telemetry::trace::{Record, Step};
use wire::offload::RawOffload;

/// What a trace left behind is forgotten after so long, also if nobody says that it is
/// over, ns.
const PATIENCE: u64 = 5_000_000_000;

impl Attached {
    /// Handles the frame, and writes what became of it down.
    pub fn follow(&mut self, body: &Trace, bytes: &[u8], record: &mut Record) {
        let now = clock::monotonic();
        let deliver = body.flags & TRACE_DELIVER != 0;
        let mut head = [0; HEAD];
        let length = bytes.len().min(HEAD);
        head.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        let ingress = Ingress {
            from: body.slot,
            tag: if body.slot == FABRIC {
                body.tag as u16
            } else {
                0
            },
            offload: RawOffload::default(),
            head: head.get_mut(..length).unwrap_or(&mut []),
            total: bytes.len(),
        };
        let reason = self.handle_traced(ingress, bytes, now, deliver, record);
        self.outlets(now).publish();
        self.traced_until = now.saturating_add(PATIENCE);
        let closed = record
            .left()
            .is_some_and(|(slot, ..)| !self.is_plugged(slot));
        // What was to be delivered says itself why it was not.
        let reason = reason.or((closed && !deliver).then_some(DropReason::PortClosed));
        if let Some(reason) = reason {
            record.push(Step::Dropped {
                reason: reason as u8,
            });
        }
    }

    /// Whether what was to go out for real was lost.
    fn handle_traced(
        &mut self,
        ingress: Ingress<'_>,
        bytes: &[u8],
        now: u64,
        deliver: bool,
        record: &mut Record,
    ) -> Option<DropReason> {
        let (switch, Some(image), mut outlets) = self.parts(now) else {
            return Some(DropReason::NoImage);
        };
        let mut outlet = Outlet {
            outlets: &mut outlets,
            payload: Payload::Buffer(bytes),
            from: ingress.from,
            parked: None,
            reason: None,
            denied: None,
        };
        switch.trace(&image, now, ingress, deliver, record, &mut outlet);
        outlet.reason
    }

    /// The trace is over, or nobody says that it is.
    pub fn end_trace(&mut self, now: u64) {
        self.traced_until = u64::MAX;
        self.switch.end_trace(now);
    }
}
