//! A virtual machine's interface: its queues, run in its own memory, as its vhost helper
//! says (`bin/vhost`). What its driver does wrong ends its queues, and nobody else's.

use crate::attached::Attached;
use crate::ports::{Sink, Source};
use crate::readiness::Readiness;
use command::Message;
use command::message::Body;
use command::verbs::{
    GUEST_QUEUES, GuestBroken, GuestCall, GuestDone, GuestHalt, GuestLog, GuestMap, GuestRun,
    GuestUnmap,
};
use guard::guard;
use image::compartment::{FEATURE_CSUM, FEATURE_TSO4, FEATURE_TSO6, FEATURE_USO};
use rustix::io::Errno;
use seqpacket::{Error, Fds, Socket};
use shm::{Guest, Region, Words};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use switch::Slot;
use virtqueue::net::{Form, FromGuest, ToGuest};
use virtqueue::{Features, Layout, Queue, Stand};
use worker::system;

/// Virtio's feature bits (`vhostuser::features`; the protocol itself is the helper's).
mod bit {
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
    pub const RING_PACKED: u64 = 1 << 34;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
}

/// Added to a slot: the name of its link in the set of what can wake us.
pub const LINK: u64 = 1 << 32;

/// The parts of an interface that are there whether a front end is or not.
pub struct GuestPort {
    /// To the helper.
    pub link: Socket,
    /// Where the queues got, for a successor: a word each. Absent in tests.
    page: Option<Words>,
    /// While its memory is mapped.
    memory: Option<Rc<Guest>>,
    /// Bytes of it at most.
    most: u64,
    pub to: Option<Box<ToGuest<Guest>>>,
    features: u64,
    kicks: Vec<Option<OwnedFd>>,
    /// Queues whose driver is to be called and whose helper had no room for that.
    calls: u32,
}

/// What a driver takes unfinished.
fn taken(features: u64) -> u16 {
    let has = |bits| features & bits == bits;
    let csum = has(bit::GUEST_CSUM);
    [
        (csum, FEATURE_CSUM),
        (csum && has(bit::GUEST_TSO4), FEATURE_TSO4),
        (csum && has(bit::GUEST_TSO6), FEATURE_TSO6),
        (csum && has(bit::GUEST_USO4 | bit::GUEST_USO6), FEATURE_USO),
    ]
    .iter()
    .filter(|(has, _)| *has)
    .fold(0, |all, (_, feature)| all | feature)
}

/// A queue's place among those of its direction, and whether the guest receives by it.
fn pair(queue: u32) -> (usize, bool) {
    (queue as usize / 2, queue.is_multiple_of(2))
}

impl GuestPort {
    /// Nothing mapped yet, and at most so many bytes ever.
    pub fn new(link: Socket, page: Option<Words>, most: u64) -> GuestPort {
        GuestPort {
            link,
            page,
            memory: None,
            most,
            to: None,
            features: 0,
            kicks: (0..GUEST_QUEUES).map(|_| None).collect(),
            calls: 0,
        }
    }

    /// Whether a part of its memory was cut off.
    pub fn is_broken(&self) -> bool {
        let broken = |memory: &Rc<Guest>| memory.is_broken();
        self.memory.as_ref().is_some_and(broken)
    }

    /// Notes where a queue was and will be: what a successor goes on from.
    #[inline]
    pub fn noting(page: Option<&Words>, receives: bool) -> impl FnMut(usize, Stand, Stand) {
        move |pair, before, after| {
            let half = |stand: Stand| u64::from(stand.used) << 16 | u64::from(stand.available);
            if let Some(page) = page {
                let queue = 2 * pair + usize::from(!receives);
                page.store(queue, half(after) << 32 | half(before));
            }
        }
    }

    /// Shows the guest what came for it, and has its driver called.
    pub fn publish(&mut self) {
        if let Some(to) = &mut self.to {
            let pairs = to.publish(GuestPort::noting(self.page.as_ref(), true));
            self.call(spread(pairs));
        }
    }

    /// Shows it what of its own is done with.
    pub fn done(&mut self, from: &mut FromGuest<Guest>) {
        let pairs = from.publish(GuestPort::noting(self.page.as_ref(), false));
        self.call(spread(pairs) << 1);
    }

    /// Has drivers called.
    pub fn call(&mut self, queues: u32) {
        self.calls |= queues;
        if self.calls == 0 {
            return;
        }
        let body = GuestCall {
            queues: self.calls,
            reserved: 0,
        };
        // A helper that is behind has calls to make already; it is told again next time.
        if self.link.send(&Message::new(0, &body), &[]).is_ok() {
            self.calls = 0;
        }
    }

    fn say<B: Body>(&self, seq: u32, body: &B) {
        let _ = self.link.send(&Message::new(seq, body), &[]);
    }
}

/// Bits of pairs as bits of queues: every other one.
fn spread(pairs: u32) -> u32 {
    // Bound: pairs of queues. Most often one.
    (0..GUEST_QUEUES as u32 / 2)
        .filter(|pair| pairs >> pair & 1 == 1)
        .fold(0, |queues, pair| queues | 1 << (2 * pair))
}

impl Attached {
    /// A link to a helper, in a slot, of a guest that may share so many MiB.
    pub fn plug_guest(&mut self, slot: usize, mib: u32, fds: Fds) -> Result<(), u32> {
        let mut fds = fds.into_iter();
        let link = fds.next().ok_or(system(Errno::BADF))?;
        let page = match fds.next() {
            Some(fd) => Some(Words::map_whole(fd).map_err(|_| system(Errno::INVAL))?),
            None => None,
        };
        if let (Some(source), Some(sink)) = (
            self.ports.sources.get_mut(slot),
            self.ports.sinks.get_mut(slot),
        ) {
            *source = Source::Guest(None);
            let port = GuestPort::new(Socket::from_fd(link), page, u64::from(mib) << 20);
            *sink = Sink::Guest(Box::new(port));
        }
        Ok(())
    }

    /// What a helper says. Bound: what its socket holds.
    pub fn hear_guest(&mut self, slot: Slot, readiness: &Readiness) {
        loop {
            let Some(Sink::Guest(port)) = self.ports.sinks.get_mut(slot as usize) else {
                return;
            };
            match port.link.recv() {
                Ok(Some((message, fds))) => {
                    let done = self.obey_guest(slot, &message, fds, readiness);
                    if let Some(Sink::Guest(port)) = self.ports.sinks.get_mut(slot as usize) {
                        port.say(message.seq, &done);
                    }
                }
                Ok(None) => return,
                Err(Error::Malformed(_)) => {}
                // The helper is gone: the supervisor brings another.
                Err(_) => {
                    readiness.leave(port.link.as_fd());
                    return self.unmap_guest(slot, readiness);
                }
            }
        }
    }

    fn obey_guest(
        &mut self,
        slot: Slot,
        message: &Message,
        fds: Fds,
        readiness: &Readiness,
    ) -> GuestDone {
        let answer = if let Some(body) = message.body::<GuestMap>() {
            self.unmap_guest(slot, readiness);
            self.map_guest(slot, &body, &fds)
        } else if message.body::<GuestUnmap>().is_some() {
            self.unmap_guest(slot, readiness);
            Ok(GuestDone::default())
        } else if let Some(body) = message.body::<GuestRun>() {
            self.run_queue(slot, &body, fds, readiness)
        } else if let Some(body) = message.body::<GuestHalt>() {
            self.halt_queue(slot, body.queue, readiness)
        } else if let Some(body) = message.body::<GuestLog>() {
            self.log_guest(slot, &body, &fds)
        } else {
            Err(system(Errno::INVAL))
        };
        answer.unwrap_or_else(|error| GuestDone {
            error,
            ..GuestDone::default()
        })
    }

    fn guest(
        &mut self,
        slot: Slot,
    ) -> Option<(&mut Option<Box<FromGuest<Guest>>>, &mut GuestPort)> {
        let at = slot as usize;
        match (self.ports.sources.get_mut(at), self.ports.sinks.get_mut(at)) {
            (Some(Source::Guest(from)), Some(Sink::Guest(port))) => Some((from, port)),
            _ => None,
        }
    }

    fn map_guest(&mut self, slot: Slot, body: &GuestMap, fds: &Fds) -> Result<GuestDone, u32> {
        let places = body.guest.iter().zip(&body.size).zip(&body.offset);
        let regions: Vec<_> = places
            .map(|((guest, size), offset)| Region {
                guest: *guest,
                size: *size,
                offset: *offset,
            })
            .zip(fds.iter().map(AsFd::as_fd))
            .take(body.count as usize)
            .collect();
        if regions.len() != body.count as usize {
            return Err(system(Errno::BADF));
        }
        let (_, port) = self.guest(slot).ok_or(system(Errno::BADF))?;
        let memory = match Guest::map(&regions, port.most) {
            Ok(memory) => Rc::new(memory),
            Err(_) => return Err(system(Errno::NOMEM)),
        };
        let (from, port) = self.guest(slot).ok_or(system(Errno::BADF))?;
        let form = Form {
            merged: body.features & bit::MRG_RXBUF != 0,
            modern: body.features & bit::VERSION_1 != 0,
        };
        *from = Some(Box::new(FromGuest::new(Rc::clone(&memory), form)));
        port.to = Some(Box::new(ToGuest::new(Rc::clone(&memory), form)));
        port.memory = Some(memory);
        port.features = body.features;
        let takes = taken(body.features);
        self.switch.takes(slot, takes);
        if let Some(peers) = &self.peers {
            peers.takes(slot, takes);
        }
        Ok(GuestDone::default())
    }

    /// Ends every queue and unmaps the memory.
    pub fn unmap_guest(&mut self, slot: Slot, readiness: &Readiness) {
        self.take_back(slot);
        let Some((from, port)) = self.guest(slot) else {
            return;
        };
        *from = None;
        port.to = None;
        port.memory = None;
        for kick in &mut port.kicks {
            if let Some(kick) = kick.take() {
                // Its front end has it too, which would keep it in the set.
                readiness.leave(kick.as_fd());
            }
        }
    }

    fn run_queue(
        &mut self,
        slot: Slot,
        body: &GuestRun,
        fds: Fds,
        readiness: &Readiness,
    ) -> Result<GuestDone, u32> {
        let (from, port) = self.guest(slot).ok_or(system(Errno::BADF))?;
        let (Some(from), Some(to), Some(memory)) = (from, &mut port.to, &port.memory) else {
            return Err(system(Errno::NOMEM));
        };
        let features = Features {
            packed: port.features & bit::RING_PACKED != 0,
            indirect: port.features & bit::INDIRECT_DESC != 0,
            event_index: port.features & bit::EVENT_IDX != 0,
        };
        let layout = Layout {
            size: u16::try_from(body.size).unwrap_or(0),
            descriptors: body.descriptors,
            driver: body.driver,
            device: body.device,
        };
        let word = port
            .page
            .as_ref()
            .map_or(0, |p| p.load(body.queue as usize));
        let (before, after) = stands(word);
        let queue = Queue::recover(&**memory, &layout, features, before, after);
        let queue = queue.map_err(|breach| breach as u32)?;
        let (pair, receives) = pair(body.queue);
        match receives {
            true => to.put(pair, Some(queue)),
            false => from.put(pair, Some(queue)),
        }
        let place = port.kicks.get_mut(body.queue as usize);
        let kick = fds.into_iter().next().filter(|_| !receives);
        if let (Some(place), Some(kick)) = (place, kick) {
            // Never read: whoever shares it could make us wait.
            match readiness.join_edge(kick.as_fd(), u64::from(slot)) {
                Ok(()) => *place = Some(kick),
                Err(errno) => return Err(system(errno)),
            }
        }
        // Its driver is called for what the one before us showed it.
        if guard!("guest-begun-call") {
            match receives {
                true => port.publish(),
                false => port.done(from),
            }
        }
        self.activate(slot);
        Ok(GuestDone::default())
    }

    fn halt_queue(
        &mut self,
        slot: Slot,
        queue: u32,
        readiness: &Readiness,
    ) -> Result<GuestDone, u32> {
        self.take_back(slot);
        let (from, port) = self.guest(slot).ok_or(system(Errno::BADF))?;
        if let Some(kick) = port.kicks.get_mut(queue as usize).and_then(Option::take) {
            readiness.leave(kick.as_fd());
        }
        let (pair, receives) = pair(queue);
        let stand = match (receives, from) {
            (true, _) => {
                port.publish();
                let to = port.to.as_mut().ok_or(system(Errno::NOMEM))?;
                let stand = to.stand(pair);
                to.put(pair, None);
                stand
            }
            (false, Some(from)) => {
                port.done(from);
                let stand = from.stand(pair);
                from.put(pair, None);
                stand
            }
            (false, None) => None,
        };
        let stand = stand.ok_or(system(Errno::BADF))?;
        Ok(GuestDone {
            available: stand.available.into(),
            used: stand.used.into(),
            ..GuestDone::default()
        })
    }

    fn log_guest(&mut self, slot: Slot, body: &GuestLog, fds: &Fds) -> Result<GuestDone, u32> {
        let (_, port) = self.guest(slot).ok_or(system(Errno::BADF))?;
        let memory = port.memory.as_ref().ok_or(system(Errno::NOMEM))?;
        match fds.first() {
            Some(fd) if body.size > 0 => memory
                .log(fd.as_fd(), body.offset, body.size)
                .map_err(|_| system(Errno::NOMEM))?,
            _ => memory.end_log(),
        }
        Ok(GuestDone::default())
    }

    /// A guest broke the protocol, or its memory was cut off: its queues end, and its
    /// helper, which ends its connection, is told.
    pub fn end_guest(&mut self, slot: Slot, reason: u32, readiness: &Readiness) {
        if !guard!("guest-alone") {
            self.closed.push((slot, reason));
            return;
        }
        self.unmap_guest(slot, readiness);
        if let Some((_, port)) = self.guest(slot) {
            let reserved = 0;
            port.say(0, &GuestBroken { reason, reserved });
        }
    }
}

/// Both halves of a word: where a queue was, and would be.
fn stands(word: u64) -> (Stand, Stand) {
    let stand = |half: u32| Stand {
        available: half as u16,
        used: (half >> 16) as u16,
    };
    (stand(word as u32), stand((word >> 32) as u32))
}
