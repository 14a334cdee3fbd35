//! A compartment's meter: a process with nothing but the circuits that the operator hands it,
//! started when the operator says that some of them are to be metered, and from then on whenever
//! there is none.

use super::*;
use crate::process::does;
use crate::registry::SeatPart;
use crate::role::{Purpose, Role};
use crate::seats::label;
use crate::watch::{Seen, Standing};
use command::verbs::{CAUSE_EXIT, CAUSE_STALL, Meter as MeterBody, PORT_METER};
use shm::PeerWords;
use telemetry::circuits::{PULSE_ASLEEP, PULSE_BYTES, PULSE_HEARTBEAT};

/// After a meter's death the next one waits, ns.
const AGAIN: u64 = 100_000_000;

/// One that is wanted.
#[derive(Default)]
pub struct Meter {
    process: Option<u64>,
    /// Whether it is confined, and may be told.
    is_ready: bool,
    /// When one is started, ns.
    due: u64,
    /// In which it says that it goes on: an allegation, which can hide nothing but a hang of its
    /// own.
    pulse: Option<PeerWords>,
    /// What the watch saw of it.
    standing: Standing,
}

impl Meter {
    /// What a compartment's note says of it: whether it is wanted.
    pub const WORD: &'static str = "meter";
}

impl Supervisor {
    fn meter(&mut self, compartment: u32) -> Option<&mut Meter> {
        self.circuits(compartment)?.meter.as_mut()
    }

    /// The meter of a compartment, if it is there and may be told.
    pub fn meter_in(&self, compartment: u32) -> Option<u64> {
        let meter = self.compartments.get(&compartment)?.meter()?;
        meter.process.filter(|_| meter.is_ready)
    }

    /// An operator wants one, or somebody captures.
    pub fn want_meter(&mut self, compartment: u32) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        if circuits.meter.is_some() {
            return;
        }
        circuits.meter = Some(Meter::default());
        let (page, note) = circuits.noted();
        let key = Key::Seat(Seat::Compartment(compartment), SeatPart::Circuits);
        self.keeper.keep(key, &note, page.as_fd());
    }

    /// Starts a meter for a compartment that wants one and has none; whether there was one.
    pub fn start_meter(&mut self, now: u64) -> bool {
        let wants = |meter: &Meter| meter.process.is_none() && meter.due <= now;
        let mut all = self.compartments.iter();
        let due = all.find(|(id, home)| home.meter().is_some_and(wants) && !self.is_held_up(**id));
        let Some(compartment) = due.map(|(id, _)| *id) else {
            return false;
        };
        let (role, profile) = (Role::Proxy, Role::Proxy.profile());
        let purpose = Purpose::Meter(compartment);
        let started = self.start_worker(role, profile, "bulkhead-proxy", purpose);
        if let Some(meter) = self.meter(compartment) {
            meter.process = started;
            meter.due = now + AGAIN;
        }
        true
    }

    /// When to look whether a meter is to be started, ns.
    pub fn next_meter(&self, now: u64) -> Option<u64> {
        const SOON: u64 = 1_000_000;
        let all = self
            .compartments
            .iter()
            .filter(|(id, _)| !self.is_held_up(**id));
        let due = all
            .filter_map(|(_, home)| home.meter())
            .filter(|meter| meter.process.is_none());
        due.map(|meter| meter.due.max(now.saturating_add(SOON)))
            .min()
    }

    /// A meter is confined and waits.
    pub fn meter_ready(&mut self, id: u64, compartment: u32) {
        match self.meter(compartment).filter(|it| it.process == Some(id)) {
            Some(meter) => meter.is_ready = true,
            None => return self.kill(id, None),
        }
        self.give_pages(id, compartment);
        self.tell_of_captures(id, compartment);
        self.link_meter(compartment);
        self.note_place(id, &format!("meter-{compartment}"));
    }

    /// Where a meter counts, and where it says that it goes on: each supervisor's is another.
    pub fn give_pages(&mut self, id: u64, compartment: u32) {
        let pulse = shm::memory_file("bulkhead-pulse", PULSE_BYTES);
        let words = pulse.as_ref().ok().and_then(|it| PeerWords::map(it).ok());
        let Some(home) = self.compartments.get(&compartment) else {
            return;
        };
        let slots = home.body.slots;
        let body = MeterBody { slots, reserved: 0 };
        let mut pages = vec![Rc::clone(&home.seat.counters)];
        pages.extend(pulse.ok().map(Rc::new));
        self.tell(id, &Message::new(0, &body), pages);
        if let Some(meter) = self.meter(compartment) {
            meter.pulse = words;
            meter.standing = Standing::default();
        }
        self.watch_now();
    }

    /// Looks for meters that stand still; whether there is any, and whether any is awake.
    pub fn look_at_meters(&mut self, now: u64) -> (bool, bool) {
        let (mut any, mut awake, mut stalled) = (false, false, Vec::new());
        for (compartment, home) in &mut self.compartments {
            let circuits = home.circuits.as_deref_mut();
            let meter = circuits.and_then(|it| it.meter.as_mut());
            let Some(meter) = meter.filter(|it| it.is_ready) else {
                continue;
            };
            let worker = meter
                .process
                .and_then(|id| Some((id, self.workers.get(&id)?)));
            let (Some((id, worker)), Some(pulse)) = (worker, &meter.pulse) else {
                continue;
            };
            any = true;
            let pid = worker.pid;
            let says = (pulse.load(PULSE_HEARTBEAT), pulse.load(PULSE_ASLEEP) == 1);
            let spent = || confine::clock::process_cpu_time(pid).ok();
            match meter.standing.look(now, says, spent, || does(pid)) {
                Seen::Asleep => {}
                Seen::Awake => awake = true,
                Seen::Stalled => stalled.push((*compartment, id)),
            }
        }
        for (compartment, id) in stalled.into_iter().filter(|_| guard!("meter-stall")) {
            let name = label(Seat::Compartment(compartment));
            confine::say!("supervisor: the meter of {name} stands still and is replaced");
            // Its successor does not wait for its death, which the kernel may put off.
            self.kill(id, None);
            self.meter_ended(id, compartment, CAUSE_STALL);
        }
        (any, awake)
    }

    /// A new link between an operator and a meter, if both are there.
    pub(super) fn link_meter(&mut self, compartment: u32) {
        let operator = self.operator_in(compartment);
        let meter = self.meter(compartment).filter(|meter| meter.is_ready);
        let (Some(operator), Some(meter)) = (operator, meter.and_then(|meter| meter.process))
        else {
            return;
        };
        let Ok((near, far)) = Socket::pair() else {
            confine::say!("supervisor: no link for a meter; the next one may have one");
            return self.end_process(meter);
        };
        let body = AddPort {
            kind: PORT_METER,
            ..AddPort::default()
        };
        // The operator is given none by the meter.
        let _ = notify::refuse_descriptors(near.as_fd());
        let message = Message::new(0, &body);
        if self.hand_over(meter, &message, far.into_fd()) {
            self.tell(operator, &message, vec![Rc::new(near.into_fd())]);
        }
    }

    /// A meter is dead, and the circuits that it carried with it. The next one comes soon.
    pub fn meter_lost(&mut self, id: u64, compartment: u32) {
        self.meter_ended(id, compartment, CAUSE_EXIT);
    }

    fn meter_ended(&mut self, id: u64, compartment: u32, cause: u32) {
        let now = self.now();
        let Some(meter) = self.meter(compartment).filter(|it| it.process == Some(id)) else {
            return;
        };
        (meter.process, meter.pulse) = (None, None);
        meter.due = meter.due.max(now + AGAIN);
        // One that was on its way has begun nothing.
        if std::mem::take(&mut meter.is_ready) {
            self.end_circuit_captures(compartment);
            let subject = Subject::Seat(Seat::Compartment(compartment));
            self.happened(Happened::new(EventKind::MeterLost, subject).cause(cause));
        }
    }

    /// A meter of before goes on; whether there is such a place.
    pub fn adopt_meter(&mut self, id: u64, compartment: u32) -> bool {
        match self.meter(compartment).filter(|it| it.process.is_none()) {
            Some(meter) => {
                meter.process = Some(id);
                meter.is_ready = true;
                true
            }
            None => false,
        }
    }

    /// A compartment has no circuits any more.
    pub(super) fn end_meter(&mut self, meter: Option<Meter>) {
        if let Some(process) = meter.and_then(|meter| meter.process) {
            self.kill(process, None);
        }
    }
}

impl crate::seats::Compartment {
    fn meter(&self) -> Option<&Meter> {
        self.circuits.as_ref()?.meter.as_ref()
    }
}

/// A compartment from its word.
pub fn place_of(word: &str) -> Option<u32> {
    word.strip_prefix("meter-")?.parse().ok()
}
