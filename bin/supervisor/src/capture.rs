//! Captures: a switch mirrors into a one-way channel, a confined auditor writes what
//! comes out of it to a pipe whose other end the controller reads.

use crate::channels::OneWay;
use crate::link::Shared;
use crate::refusal::Refusal;
use crate::supervisor::Supervisor;
use crate::workers::{Purpose, Role};
use command::Message;
use command::message::ErrorCode;
use command::verbs::{AddPort, Capture as CaptureBody, PORT_CHANNEL, StartCapture};
use confine::Profile;
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
    /// The pipe's writing end, until the auditor has it.
    pipe: Option<OwnedFd>,
    auditor: u64,
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
        let channel = OneWay::create(geometry)
            .map_err(|e| Refusal::system("make a capture's channel", &e))?;
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
                pipe: Some(write),
                auditor,
            },
        );
        Ok(Rc::new(read))
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
        let (capacity, max_record) = capture.channel.shape();
        let body = CaptureBody {
            on: 1,
            drops_only: capture.body.drops_only,
            slot: capture.body.slot,
            snap: capture.body.snap,
            of: of.1,
            capacity,
            max_record,
        };
        if let Ok(fds) = capture.channel.writer() {
            self.tell(worker, &Message::new(0, &body), fds);
        }
    }

    /// Ends all captures of a compartment: its switch died, whose successor cannot go on in
    /// the middle of a channel, or it is no more.
    pub fn end_captures(&mut self, compartment: u32) {
        let all = self
            .captures
            .range((compartment, 0)..=(compartment, u32::MAX));
        let all: Vec<CaptureOf> = all.map(|(of, _)| *of).collect();
        all.into_iter().for_each(|of| self.end_capture(of));
    }

    /// Ends a capture: its reader is gone, or its auditor died.
    pub fn end_capture(&mut self, of: CaptureOf) {
        let Some(capture) = self.captures.remove(&of) else {
            return;
        };
        if let Some(worker) = self.compartments.get(&of.0).and_then(|c| c.seat.worker) {
            let body = CaptureBody {
                of: of.1,
                ..CaptureBody::default()
            };
            self.tell(worker, &Message::new(0, &body), Vec::new());
        }
        self.kill(capture.auditor, None);
    }
}
