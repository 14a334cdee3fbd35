//! Captures: a switch mirrors into a one-way channel, and where there are circuits the meter, by
//! which they go meanwhile, into another; a confined auditor writes what comes out of them to a
//! pipe whose other end the controller reads.

use crate::channels::OneWay;
use crate::link::Shared;
use crate::refusal::Refusal;
use crate::supervisor::Supervisor;
use crate::workers::{Purpose, Role};
use command::Message;
use command::message::ErrorCode;
use command::verbs::{AddPort, Capture as CaptureBody, EVERYBODY, PORT_CHANNEL, StartCapture};
use confine::Profile;
use guard::guard;
use shm::Geometry;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Bytes of a capture's channel.
const CAPACITY: usize = 1 << 20;
/// Longest frame that is kept whole.
const LONGEST: usize = 65_664;

/// Captures of one compartment at once by tenants; the provider has one more.
const MOST: usize = 16;

/// Which capture: the compartment, and whose (0 = the provider's, else a tenant's number).
/// Each has its own channel and auditor, so that nobody's is in the way of another's.
pub type CaptureOf = (u32, u32);

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    body: StartCapture,
    channel: OneWay,
    /// What a meter writes, where there are circuits.
    circuits: Option<OneWay>,
    /// The pipe's writing end, until the auditor has it.
    pipe: Option<OwnedFd>,
    auditor: u64,
}

impl Capture {
    /// What a process is told that mirrors into this channel.
    fn asked(&self, of: u32, channel: &OneWay) -> CaptureBody {
        let (capacity, max_record) = channel.shape();
        CaptureBody {
            on: 1,
            drops_only: self.body.drops_only,
            slot: self.body.slot,
            snap: self.body.snap,
            of,
            capacity,
            max_record,
        }
    }
}

impl Supervisor {
    /// Starts a capture; the reading end of its pipe.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn start_capture(&mut self, body: StartCapture) -> Result<Shared, Refusal> {
        if !self.compartments.contains_key(&body.compartment) {
            return Err(Refusal::new(
                ErrorCode::NotFound,
                format!("compartment {} does not exist", body.compartment),
            ));
        }
        let of = (body.compartment, body.of);
        if let Some(capture) = self.captures.get(&of) {
            if self.workers.contains_key(&capture.auditor) {
                return Err(Refusal::new(
                    ErrorCode::Conflict,
                    "a capture of yours of this compartment is under way",
                ));
            }
            self.end_capture(of);
        }
        let tenants = self
            .captures
            .range((body.compartment, 1)..=(body.compartment, u32::MAX));
        if body.of != 0 && tenants.count() >= MOST {
            return Err(Refusal::new(
                ErrorCode::Limit,
                format!("{MOST} tenants capture in this compartment already"),
            ));
        }
        let geometry = Geometry::records(CAPACITY, Geometry::max_record_for(LONGEST))
            .map_err(|e| Refusal::new(ErrorCode::Limit, e.to_string()))?;
        let channel = || {
            OneWay::create(geometry).map_err(|e| Refusal::system("make a capture's channel", &e))
        };
        // Nothing of a circuit is ever dropped.
        let circuits = body.circuits != 0 && body.drops_only == 0;
        let has_circuits = circuits && self.has_circuits(body.compartment, body.slot);
        let (channel, circuits) = (channel()?, has_circuits.then(channel).transpose()?);
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| Refusal::errno("make a pipe", errno))?;
        // The controller may not change a descriptor's flags itself.
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK)
            .map_err(|errno| Refusal::errno("make a pipe", errno))?;
        let purpose = Purpose::Capture(of);
        let auditor = self
            .start_worker(Role::Auditor, Profile::Auditor, "bulkhead-auditor", purpose)
            .ok_or_else(|| {
                Refusal::new(
                    ErrorCode::System,
                    "the auditor cannot be started; see the log",
                )
            })?;
        self.captures.insert(
            of,
            Capture {
                body,
                channel,
                circuits,
                pipe: Some(write),
                auditor,
            },
        );
        // Before who asked is answered: what it finds to be direct then began before, and nothing
        // else does.
        if has_circuits {
            self.capture_circuits(of);
        }
        Ok(Rc::new(read))
    }

    /// Has circuits that begin go by the meter, and the meter show them.
    fn capture_circuits(&mut self, of: CaptureOf) {
        let (compartment, _) = of;
        self.want_meter(compartment);
        // The meter first: of what it is handed from then on it shows all.
        if let Some(meter) = self.meter_in(compartment) {
            self.show_circuits(meter, of);
        }
        if let Some(operator) = self.operator_in(compartment) {
            self.divert_circuits(operator, of);
        }
    }

    /// Has an operator hand circuits that begin to the meter.
    fn divert_circuits(&mut self, operator: u64, of: CaptureOf) {
        if let Some(capture) = self.captures.get(&of)
            && let Some(channel) = &capture.circuits
        {
            let body = capture.asked(of.1, channel);
            self.tell(operator, &Message::new(0, &body), Vec::new());
        }
    }

    /// Has a meter show the circuits that it carries.
    fn show_circuits(&mut self, meter: u64, of: CaptureOf) {
        let Some(capture) = self.captures.get(&of) else {
            return;
        };
        if let Some(channel) = &capture.circuits
            && let Ok(fds) = channel.writer()
        {
            let body = capture.asked(of.1, channel);
            self.tell(meter, &Message::new(0, &body), fds);
        }
    }

    /// An operator that starts, or a meter, is told of the captures under way.
    pub fn tell_of_captures(&mut self, id: u64, compartment: u32) {
        let all = self.captures_of(compartment);
        for of in all {
            match self.meter_in(compartment) == Some(id) {
                true => self.show_circuits(id, of),
                false => self.divert_circuits(id, of),
            }
        }
    }

    fn captures_of(&self, compartment: u32) -> Vec<CaptureOf> {
        let all = (self.captures).range((compartment, 0)..=(compartment, u32::MAX));
        all.map(|(of, _)| *of).collect()
    }

    /// A process that goes on from before knows of captures that ended with the supervisor that
    /// began them.
    pub fn forget_captures(&mut self, id: u64) {
        let body = CaptureBody {
            of: EVERYBODY,
            ..CaptureBody::default()
        };
        if guard!("capture-forgotten") {
            self.tell(id, &Message::new(0, &body), Vec::new());
        }
    }

    /// A meter is gone, in the middle of what it wrote.
    pub fn end_circuit_captures(&mut self, compartment: u32) {
        for of in self.captures_of(compartment) {
            let shows = |capture: &Capture| capture.circuits.is_some();
            if self.captures.get(&of).is_some_and(shows) {
                self.end_capture(of);
            }
        }
    }

    /// The auditor is confined: it gets the channel and the pipe, then the switch is
    /// told to mirror.
    pub fn capture_ready(&mut self, id: u64, of: CaptureOf) {
        let Some(capture) = self
            .captures
            .get_mut(&of)
            .filter(|capture| capture.auditor == id)
        else {
            return self.kill(id, None);
        };
        let (capacity, max_record) = capture.channel.shape();
        let plug = AddPort {
            kind: PORT_CHANNEL,
            capacity,
            max_record,
            version: crate::channels::VERSION,
            ..AddPort::default()
        };
        let (Ok(mut fds), Some(pipe)) = (capture.channel.reader(), capture.pipe.take()) else {
            return self.kill(id, None);
        };
        if let Some(circuits) = &capture.circuits {
            let Ok(more) = circuits.reader() else {
                return self.kill(id, None);
            };
            fds.extend(more);
        }
        fds.push(Rc::new(pipe));
        self.tell(id, &Message::new(0, &plug), fds);
        self.mirror(of);
    }

    /// Tells the switch of a compartment to mirror, if this capture is under way.
    fn mirror(&mut self, of: CaptureOf) {
        let Some(capture) = self
            .captures
            .get(&of)
            .filter(|capture| capture.pipe.is_none())
        else {
            return;
        };
        let Some(worker) = self.compartments.get(&of.0).and_then(|c| c.seat.worker) else {
            return;
        };
        let body = capture.asked(of.1, &capture.channel);
        if let Ok(fds) = capture.channel.writer() {
            self.tell(worker, &Message::new(0, &body), fds);
        }
    }

    /// Ends all captures of a compartment: its switch died, whose successor cannot go on in
    /// the middle of a channel, or it is no more.
    pub fn end_captures(&mut self, compartment: u32) {
        let all = self.captures_of(compartment);
        all.into_iter().for_each(|of| self.end_capture(of));
    }

    /// An endpoint comes, which may be another tenant's: what tenants capture of the whole
    /// compartment, being alone in it, ends.
    pub fn end_captures_of_all(&mut self, compartment: u32) {
        self.end_captures_if(compartment, |of, slot| of != 0 && slot == u32::MAX);
    }

    /// An endpoint goes, and its slot may be another tenant's next.
    pub fn end_captures_at(&mut self, compartment: u32, gone: u32) {
        self.end_captures_if(compartment, |_, slot| slot == gone);
    }

    fn end_captures_if(&mut self, compartment: u32, ends: impl Fn(u32, u32) -> bool) {
        for of in self.captures_of(compartment) {
            let slot = self.captures.get(&of).map(|capture| capture.body.slot);
            if slot.is_some_and(|slot| ends(of.1, slot)) && guard!("capture-apart") {
                self.end_capture(of);
            }
        }
    }

    /// Ends a capture: its reader is gone, or its auditor died.
    pub fn end_capture(&mut self, of: CaptureOf) {
        let Some(capture) = self.captures.remove(&of) else {
            return;
        };
        let body = CaptureBody {
            of: of.1,
            ..CaptureBody::default()
        };
        let switch = self.compartments.get(&of.0).and_then(|c| c.seat.worker);
        let others = [self.operator_in(of.0), self.meter_in(of.0)];
        let others = others.into_iter().filter(|_| capture.circuits.is_some());
        for id in switch.into_iter().chain(others.flatten()) {
            self.tell(id, &Message::new(0, &body), Vec::new());
        }
        self.kill(capture.auditor, None);
    }
}
