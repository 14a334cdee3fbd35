//! The part that is honest, so that the rest is let near the fabric: takes its
//! place, its channel and its image, and says what a switch says.

use command::Message;
use command::message::Verb;
use command::verbs::{AddPort, Attach, PORT_CHANNEL, Running, UseImage};
use image::MappedCompartment;
use image::compartment::{Attachment, Crossing, Endpoint, ServicePorts};
use ring::State;
use seqpacket::{Error, Fds, Socket};
use shm::{Channel, CountersPage};
use std::time::Duration;
use telemetry::counters::{Counter, ProcessWord};
pub use worker::clock::monotonic as now;

/// The fabric's slot in a switch.
const FABRIC: u32 = 0;
/// Word of the process block that counts the liar's starts (a switch's `Sleeps`).
const STARTS: ProcessWord = ProcessWord::Sleeps;

/// What the supervisor gave.
pub struct Post {
    control: Socket,
    counters: Option<CountersPage>,
    /// The channel to the fabric.
    pub channel: Option<Channel>,
    /// As in the image.
    pub endpoints: Vec<Endpoint>,
    /// As in the image.
    pub attachments: Vec<Attachment>,
    /// The tag of the first subnet that goes on beyond the host; 0 = none does.
    pub segment: u16,
    /// As in the image, each with its service's ports.
    pub crossings: Vec<(Crossing, Vec<ServicePorts>)>,
    /// Starts of this compartment so far, this one included.
    pub starts: u64,
    beats: u64,
}

impl Post {
    pub fn new(control: Socket) -> Post {
        Post {
            control,
            counters: None,
            channel: None,
            endpoints: Vec::new(),
            attachments: Vec::new(),
            segment: 0,
            crossings: Vec::new(),
            starts: 0,
            beats: 0,
        }
    }

    /// What the supervisor says; with `wait`, at least a moment. `false`: the end.
    ///
    /// # Errors
    /// The control socket failed.
    pub fn receive(&mut self, wait: bool) -> Result<bool, Box<dyn std::error::Error>> {
        self.beats += 1;
        if let Some(counters) = &self.counters {
            counters.set(ProcessWord::Heartbeat, self.beats);
        }
        let moment = Duration::from_micros(if wait { 500 } else { 0 });
        loop {
            match self.control.recv_wait(moment) {
                Ok(Some((message, _))) if message.verb == Verb::Quit as u16 => return Ok(false),
                Ok(Some((message, fds))) => self.obey(&message, fds),
                Ok(None) => return Ok(true),
                Err(Error::Closed) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Frames of a kind that were told.
    pub fn count(&self, kind: usize, frames: u64, bytes: u64) {
        let Some(counters) = &self.counters else {
            return;
        };
        for slot in [FABRIC as usize, kind] {
            counters.count(slot, Counter::TxFrames, frames);
            counters.count(slot, Counter::TxBytes, bytes);
        }
    }

    fn obey(&mut self, message: &Message, fds: Fds) {
        if let Some(body) = message.body::<Attach>() {
            let page = fds.into_iter().next();
            self.counters = page.and_then(|fd| CountersPage::open(fd, body.slots as usize).ok());
            if let Some(counters) = &self.counters {
                counters.add_process(STARTS, 1);
                counters.set(ProcessWord::Asleep, 0);
                self.starts = counters.process(STARTS);
            }
        } else if let Some(body) = message.body::<AddPort>() {
            if body.slot == FABRIC && body.kind == PORT_CHANNEL {
                self.channel = worker::channel(&body, fds, now()).ok();
            }
        } else if let Some(body) = message.body::<UseImage>() {
            let refused = self.read_image(&body, fds).err().unwrap_or(0);
            let answer = Running {
                epoch: body.epoch,
                refused,
                reserved: 0,
            };
            let _ = self.control.send(&Message::new(message.seq, &answer), &[]);
        }
    }

    fn read_image(&mut self, body: &UseImage, fds: Fds) -> Result<(), u32> {
        let mapped = worker::image(body, fds, MappedCompartment::map, MappedCompartment::digest)?;
        self.endpoints = mapped.image().endpoints().to_vec();
        self.attachments = mapped.image().attachments().to_vec();
        let image = mapped.image();
        let mut segments = image.subnets().iter().map(|subnet| subnet.segment);
        self.segment = segments.find(|tag| *tag != 0).unwrap_or(0);
        let crossings = image.crossings().iter();
        self.crossings = crossings
            .map(|crossing| (*crossing, image.service_ports_of(crossing).to_vec()))
            .collect();
        if let Some(counters) = &self.counters {
            counters.set(ProcessWord::Epoch, body.epoch);
        }
        Ok(())
    }

    /// Whether the channel can be written to: after a restart the fabric echoes first.
    pub fn is_open(&mut self) -> bool {
        let Some(channel) = &mut self.channel else {
            return false;
        };
        let rx = channel.rx.ring.poll();
        // What the fabric sends is not listened to.
        while let Ok(Some(_)) = channel.rx.ring.next() {}
        channel.rx.ring.release();
        rx.is_ok() && channel.tx.ring.poll() == Ok(State::Running)
    }
}
