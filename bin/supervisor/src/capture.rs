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
        if let Some(capture) = self.captures.get(&body.compartment) {
            if self.workers.contains_key(&capture.auditor) {
                return Err(Refusal::new(
                    ErrorCode::Conflict,
                    "a capture of this compartment is under way",
                ));
            }
            self.end_capture(body.compartment);
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
        let purpose = Purpose::Capture(body.compartment);
        let auditor = self
            .start_worker(Role::Auditor, Profile::Auditor, "bulkhead-auditor", purpose)
            .ok_or_else(|| {
                Refusal::new(
                    ErrorCode::System,
                    "the auditor cannot be started; see the log",
                )
            })?;
        self.captures.insert(
            body.compartment,
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
    pub fn capture_ready(&mut self, id: u64, compartment: u32) {
        let Some(capture) = self
            .captures
            .get_mut(&compartment)
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
        self.mirror(compartment);
    }

    /// Tells the switch of a compartment to mirror, if a capture is under way.
    pub fn mirror(&mut self, compartment: u32) {
        let Some(capture) = self
            .captures
            .get(&compartment)
            .filter(|capture| capture.pipe.is_none())
        else {
            return;
        };
        let Some(worker) = self
            .compartments
            .get(&compartment)
            .and_then(|c| c.seat.worker)
        else {
            return;
        };
        let (capacity, max_record) = capture.channel.shape();
        let body = CaptureBody {
            on: 1,
            drops_only: capture.body.drops_only,
            slot: capture.body.slot,
            snap: capture.body.snap,
            capacity,
            max_record,
        };
        if let Ok(fds) = capture.channel.writer() {
            self.tell(worker, &Message::new(0, &body), fds);
        }
    }

    /// Ends a capture: its reader is gone, its auditor died, or its switch did (whose
    /// successor cannot go on in the middle of the channel).
    pub fn end_capture(&mut self, compartment: u32) {
        let Some(capture) = self.captures.remove(&compartment) else {
            return;
        };
        if let Some(worker) = self
            .compartments
            .get(&compartment)
            .and_then(|c| c.seat.worker)
        {
            self.tell(
                worker,
                &Message::new(0, &CaptureBody::default()),
                Vec::new(),
            );
        }
        self.kill(capture.auditor, None);
    }
}
