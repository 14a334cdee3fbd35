//! What the supervisor says, and what it is told.

use crate::tally::Tally;
use crate::uplink::{Partial, Xdp};
use crate::wait::now;
use crate::worker::Worker;
use command::Message;
use command::message::Verb;
use command::verbs::{
    AddPort, Attach, NeedReplace, PORT_CHANNEL, PORT_PACKET, PORT_XDP, PortClosed, RemovePort,
    Running, Trace, UseImage,
};
use guard::guard;
use image::MappedFabric;
use port::PacketSocket;
use rustix::io::Errno;
use seqpacket::{Error, Fds, Socket};
use shm::{CountersPage, Recorder};
use std::time::Duration;
use telemetry::counters::ProcessWord;
use telemetry::recorder::EventKind;
use worker::{by, system};

/// Messages of the supervisor taken in one turn.
const MESSAGES: usize = 64;

impl Worker {
    /// Waits, confined, for its place. `None`: told to end, or nobody is left.
    ///
    /// # Errors
    /// The pages handed over cannot be mapped.
    pub fn attach(control: Socket) -> Result<Option<Worker>, Box<dyn std::error::Error>> {
        loop {
            let (message, fds) = match control.recv_wait(Duration::from_secs(3600)) {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                Err(Error::Closed) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if message.verb == Verb::Quit as u16 {
                return Ok(None);
            }
            let Some(attach) = message.body::<Attach>() else {
                continue;
            };
            let mut fds = fds.into_iter();
            let (Some(counters), Some(recorder)) = (fds.next(), fds.next()) else {
                return Err("no counters or recorder beside the message".into());
            };
            let counters = CountersPage::open(counters, attach.slots as usize)?;
            let mut tally = Tally::new(counters, Recorder::open(recorder)?);
            tally.record(
                EventKind::Attached,
                attach.suspect.saturating_sub(1),
                0,
                0,
                now(),
            );
            return Ok(Some(Worker::new(control, &attach, tally)?));
        }
    }

    /// What the control socket holds, or the first of it: the next look takes the rest,
    /// with a heartbeat and packets in between.
    pub(crate) fn receive(&mut self, now: u64) -> Result<(), Box<dyn std::error::Error>> {
        let most = if guard!("fabric-control-turn") {
            MESSAGES
        } else {
            usize::MAX
        };
        for _ in 0..most {
            match self.control.recv() {
                Ok(Some((message, fds))) => self.obey(&message, fds, now),
                Ok(None) => return Ok(()),
                Err(Error::Closed) => {
                    self.quits = true;
                    return Ok(());
                }
                Err(Error::Malformed(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn obey(&mut self, message: &Message, fds: Fds, now: u64) {
        if let Some(body) = message.body::<AddPort>() {
            // What follows a message belongs to what that one plugs in.
            if body.kind != PORT_XDP || body.resume == 0 {
                self.unplug(body.slot);
            }
            match self.plug(&body, fds, now) {
                Ok(()) => {
                    self.tally
                        .record(EventKind::PortAdded, body.slot, body.kind.into(), 0, now);
                }
                Err(reason) => {
                    self.unplug(body.slot);
                    self.say_closed(body.slot, reason);
                }
            }
        } else if let Some(body) = message.body::<RemovePort>() {
            self.unplug(body.slot);
        } else if let Some(body) = message.body::<UseImage>() {
            let refused = self.use_image(&body, fds, now).err().unwrap_or(0);
            if refused != 0 {
                let number = refused.into();
                self.tally
                    .record(EventKind::ImageRefused, 0, body.epoch, number, now);
            }
            self.say(Message::new(
                message.seq,
                &Running {
                    epoch: body.epoch,
                    refused,
                    reserved: 0,
                },
            ));
        } else if let Some(body) = message.body::<Trace>() {
            worker::traced(&body, fds, |bytes, record| {
                self.follow(&body, bytes, record)
            });
        } else if message.verb == Verb::Quit as u16 {
            self.quits = true;
        }
        // Anything else is not for a fabric; its descriptors are closed.
    }

    /// Plugs a port in. The error is a reason for `PortClosed`.
    fn plug(&mut self, body: &AddPort, fds: Fds, now: u64) -> Result<(), u32> {
        let slot = body.slot;
        let plugged = match body.kind {
            PORT_CHANNEL => self
                .ports
                .add_channel(slot, worker::channel(body, fds, now)?),
            PORT_PACKET => {
                let socket = fds.into_iter().next().ok_or(system(Errno::BADF))?;
                self.ports.add_uplink(slot, PacketSocket::from_fd(socket))
            }
            PORT_XDP => match self.gather(body, fds).map_err(system)? {
                Some(uplink) => self.ports.add_xdp(slot, uplink),
                // The rest is on its way.
                None => return Ok(()),
            },
            _ => false,
        };
        let descriptor = self
            .ports
            .descriptor(slot)
            .filter(|_| plugged)
            .ok_or(system(Errno::INVAL))?;
        let queues = body.kind == PORT_XDP;
        let added = match queues {
            true => self.waiting.add_guard(descriptor, slot),
            false => self.waiting.add(descriptor, slot),
        };
        added.map_err(|error| by(&error))?;
        for queue in self.ports.queues(slot) {
            self.waiting.add(queue, slot).map_err(|error| by(&error))?;
        }
        self.settling_again(slot);
        // Whatever came before it was plugged in rang no bell that we heard.
        self.rounds.activate(slot, now);
        Ok(())
    }

    /// Descriptors of an uplink by AF_XDP; the uplink, once all have come.
    fn gather(&mut self, body: &AddPort, fds: Fds) -> Result<Option<Xdp>, Errno> {
        match &mut self.partial {
            Some(partial) if body.resume != 0 && partial.slot == body.slot => {
                partial.add(body.resume, fds)?;
            }
            _ if body.resume != 0 => return Err(Errno::INVAL),
            partial => *partial = Some(Partial::new(body.slot, body.mtu, body.capacity, fds)?),
        }
        let whole = self.partial.take_if(|partial| partial.is_whole());
        whole.map(Partial::attach).transpose()
    }

    /// Swaps images between two batches. The error is for `Running`; the old one stays.
    fn use_image(&mut self, body: &UseImage, fds: Fds, now: u64) -> Result<(), u32> {
        let mapped = worker::image(body, fds, MappedFabric::map, MappedFabric::digest)?;
        if let Some(before) = &self.image {
            // A slot is given again only after an image without it: what is counted
            // there was somebody else's.
            let used = before.image();
            let image = mapped.image();
            let is_new = |slot: u32| used.channels().iter().all(|c| c.slot != slot);
            let new = image.channels().iter().filter(|c| is_new(c.slot));
            new.filter(|_| guard!("fabric-slot-counters"))
                .for_each(|c| self.tally.counters.clear(c.slot as usize));
        }
        self.rounds.configure(fabric::shares(&mapped.image()));
        self.reports.swapped(now);
        let [a, b, c, d, e, f, g, h, ..] = body.digest;
        let mark = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        self.tally
            .record(EventKind::ImageSwapped, 0, body.epoch, mark, now);
        self.tally.counters.set(ProcessWord::Epoch, body.epoch);
        self.image = Some(mapped);
        Ok(())
    }

    pub(crate) fn say_closed(&mut self, slot: u32, reason: u32) {
        self.say(Message::new(0, &PortClosed { slot, reason }));
    }

    /// No echo in time: asks for a fresh pair and lets go of this one.
    pub(crate) fn replace(&mut self, slot: u32) {
        self.waiting.forget(self.ports.descriptor(slot));
        self.ports.remove(slot);
        self.rounds.remove(slot);
        self.say(Message::new(0, &NeedReplace { slot }));
    }

    /// Tells the supervisor; never waits for it.
    pub(crate) fn say(&mut self, message: Message) {
        self.outbox.say(&self.control, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn one_turn_takes_a_bounded_number_of_messages_and_the_next_the_rest() {
        let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (far, near) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, kind, None).unwrap();
        let far = Socket::from_fd(far);
        let pages = |bytes| shm::memory_file("test", bytes).unwrap();
        let slots = 4;
        let counters = pages(telemetry::counters::bytes_for(slots));
        let counters = CountersPage::open(counters, slots).unwrap();
        let recorder = Recorder::open(pages(telemetry::recorder::BYTES)).unwrap();
        let attach = Attach {
            slots: slots as u32,
            ..Attach::default()
        };
        let tally = Tally::new(counters, recorder);
        let mut worker = Worker::new(Socket::from_fd(near), &attach, tally).unwrap();
        let word = Message::new(0, &RemovePort { slot: 1 });
        let mut sent = 0;
        while sent < MESSAGES + 1 && far.send(&word, &[]).is_ok() {
            sent += 1;
        }
        // Else the socket holds too few to tell anything.
        assert_eq!(sent, MESSAGES + 1);
        worker.receive(1).unwrap();
        assert!(worker.waiting.wait(Some(0)).unwrap() == 1, "none is left");
        worker.receive(2).unwrap();
        assert_eq!(worker.waiting.wait(Some(0)).unwrap(), 0);
    }
}
