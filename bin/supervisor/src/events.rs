//! What happened: to the controller, and into our own flight recorder.

use crate::registry::Seat;
use crate::supervisor::Supervisor;
use command::Message;
use command::verbs::{Event, FABRIC, SUPERVISOR};
use telemetry::recorder::EventKind;

/// Events queued for a controller that does not read, at most; later ones are lost
/// to it, not to the recorder.
const QUEUE: usize = 4096;

/// Whom it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The fabric or a compartment.
    Seat(Seat),
    /// This supervisor.
    Supervisor,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Happened {
    kind: EventKind,
    subject: Subject,
    slot: u32,
    cause: u32,
    value: u64,
    at: Option<u64>,
}

impl Happened {
    /// Of this kind.
    pub fn new(kind: EventKind, subject: Subject) -> Happened {
        Happened {
            kind,
            subject,
            slot: 0,
            cause: 0,
            value: 0,
            at: None,
        }
    }
    /// Concerns this slot.
    pub fn slot(self, slot: u32) -> Happened {
        Happened { slot, ..self }
    }
    /// `CAUSE_*`, breach or drop reason.
    pub fn cause(self, cause: u32) -> Happened {
        Happened { cause, ..self }
    }
    /// By kind.
    pub fn value(self, value: u64) -> Happened {
        Happened { value, ..self }
    }
    /// Happened then, ns.
    pub fn at(self, at: u64) -> Happened {
        Happened {
            at: Some(at),
            ..self
        }
    }
}

impl Supervisor {
    /// Records it and tells the controller.
    pub fn happened(&mut self, event: Happened) {
        let time_ns = event.at.unwrap_or_else(|| self.now());
        let target = match event.subject {
            Subject::Seat(Seat::Fabric) => FABRIC,
            Subject::Seat(Seat::Compartment(id)) => id,
            Subject::Supervisor => SUPERVISOR,
        };
        let b = if event.kind == EventKind::Died {
            u64::from(event.cause)
        } else {
            event.value
        };
        let record = telemetry::recorder::Event {
            time_ns,
            kind: event.kind as u32,
            slot: event.slot,
            a: u64::from(target),
            b,
        };
        self.recorder.record(record);
        let body = Event {
            kind: event.kind as u32,
            target,
            slot: event.slot,
            cause: event.cause,
            time_ns,
            value: event.value,
        };
        if self.control.backlog() < QUEUE {
            self.control.send(&Message::new(0, &body), Vec::new());
        }
    }
}
