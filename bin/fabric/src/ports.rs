//! What is plugged into the slots: channels and uplinks.

use crate::tally::Tally;
use crate::uplink::Xdp;
use crate::vlan;
use command::verbs::closed_by;
use fabric::{Egress, Frame, HEAD, Ingress, Refused};
use guard::guard;
use port::{PacketSocket, PortError};
use ring::record::KIND_FRAME;
use ring::{Breach, Doorbell, PushError, Record, State};
use rustix::io::Errno;
use shm::{Channel, ConsumerEnd, Receiver, Sender};
use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::MAX_FRAME;

/// The doorbell has no other end any more.
const PIPE: u32 = closed_by(Errno::PIPE.raw_os_error());
/// The uplink's interface is gone.
const NODEV: u32 = closed_by(Errno::NODEV.raw_os_error());
/// How long after an interface went down it is looked whether it goes for good, ns.
const DOUBT_NS: u64 = 2_000_000_000;
/// Room for a frame, and for the tag the kernel keeps beside it.
const BUFFER: usize = MAX_FRAME + 16;

/// Every slot's reading and writing side.
pub struct Ports {
    rx: Box<[Rx]>,
    tx: Box<[Tx]>,
    /// Slots written to in this batch.
    touched: Vec<u32>,
    /// Slots to be closed, and why.
    broken: Vec<(u32, u32)>,
    /// A frame read from an uplink; a frame on its way to one.
    inward: Box<[u8]>,
    outward: Box<[u8]>,
    /// One of the frames that a frame on its way becomes.
    part: Box<[u8]>,
    /// Uplinks where frames wait that the kernel is to be asked again for.
    waiting: Vec<u32>,
    /// Uplinks whose interface went down, and until when that is looked into.
    doubtful: Vec<(u32, u64)>,
    calls: Calls,
}

/// System calls for frames in a batch, counted by both of its ends.
#[derive(Default)]
struct Calls {
    made: Cell<u64>,
    frames: Cell<u64>,
    /// The uplink read from is gone.
    gone: Cell<bool>,
    /// Frames that were too long, or found no room in a socket.
    oversize: Cell<u64>,
    overflowed: Cell<u64>,
}

impl Calls {
    fn lost(&self, error: PortError) {
        if error == PortError::Truncated {
            self.oversize.set(self.oversize.get() + 1);
        }
    }

    fn count(&self, frames: u64) {
        self.made.set(self.made.get() + 1);
        self.frames.set(self.frames.get() + frames);
    }
}

enum Rx {
    None,
    Channel(Receiver),
    Uplink {
        socket: Rc<PacketSocket>,
        held: Option<Held>,
    },
    Xdp {
        uplink: Rc<Xdp>,
        held: Option<Held>,
        /// The queue whose turn it is.
        next: usize,
    },
}

/// An uplink's frame that was read and not dealt with yet.
struct Held {
    /// Its VLAN; 0 = it has no tag.
    vlan: u16,
    offload: RawOffload,
    at: Range<usize>,
}

impl Held {
    /// A frame in a buffer, out of which its tag is taken.
    fn new(mut offload: RawOffload, mut at: Range<usize>, buffer: &mut [u8]) -> Held {
        let vlan = buffer.get(at.clone()).map_or(0, vlan::of);
        if vlan != 0 {
            vlan::take_off(&mut offload, &mut at, buffer);
        }
        // Without it in the key a frame of any VLAN would pass as one of none.
        let vlan = if guard!("vlan-key") { vlan } else { 0 };
        Held { vlan, offload, at }
    }
}

enum Tx {
    None,
    Channel { sender: Sender, touched: bool },
    Uplink(Rc<PacketSocket>),
    Xdp { uplink: Rc<Xdp>, touched: bool },
}

impl Ports {
    pub fn new(slots: usize) -> Ports {
        Ports {
            rx: (0..slots).map(|_| Rx::None).collect(),
            tx: (0..slots).map(|_| Tx::None).collect(),
            touched: Vec::with_capacity(slots),
            broken: Vec::with_capacity(slots),
            inward: vec![0; BUFFER].into(),
            outward: vec![0; BUFFER].into(),
            part: vec![0; BUFFER].into(),
            waiting: Vec::with_capacity(slots),
            doubtful: Vec::with_capacity(slots),
            calls: Calls::default(),
        }
    }

    /// Plugs a channel in. `false`: no such slot.
    pub fn add_channel(&mut self, slot: u32, channel: Channel) -> bool {
        let sender = Tx::Channel {
            sender: channel.tx,
            touched: false,
        };
        self.put(slot, Rx::Channel(channel.rx), sender)
    }

    /// Plugs an uplink in. `false`: no such slot.
    pub fn add_uplink(&mut self, slot: u32, socket: PacketSocket) -> bool {
        let socket = Rc::new(socket);
        self.put(
            slot,
            Rx::Uplink {
                socket: Rc::clone(&socket),
                held: None,
            },
            Tx::Uplink(socket),
        )
    }

    /// The same by AF_XDP.
    pub fn add_xdp(&mut self, slot: u32, uplink: Xdp) -> bool {
        let uplink = Rc::new(uplink);
        let sender = Tx::Xdp {
            uplink: Rc::clone(&uplink),
            touched: false,
        };
        let receiver = Rx::Xdp {
            uplink,
            held: None,
            next: 0,
        };
        self.put(slot, receiver, sender)
    }

    pub fn remove(&mut self, slot: u32) {
        self.waiting.retain(|other| *other != slot);
        self.put(slot, Rx::None, Tx::None);
    }

    fn put(&mut self, slot: u32, new_rx: Rx, new_tx: Tx) -> bool {
        let slot = slot as usize;
        let (Some(rx), Some(tx)) = (self.rx.get_mut(slot), self.tx.get_mut(slot)) else {
            return false;
        };
        (*rx, *tx) = (new_rx, new_tx);
        true
    }

    /// What else wakes us for this slot: queues.
    pub fn queues(&self, slot: u32) -> impl Iterator<Item = BorrowedFd<'_>> {
        let uplink = match self.rx.get(slot as usize) {
            Some(Rx::Xdp { uplink, .. }) => Some(uplink),
            _ => None,
        };
        uplink.into_iter().flat_map(|uplink| uplink.descriptors())
    }

    /// What wakes us for this slot, or says that it is over.
    pub fn descriptor(&self, slot: u32) -> Option<BorrowedFd<'_>> {
        match self.rx.get(slot as usize)? {
            Rx::None => None,
            Rx::Channel(receiver) => Some(receiver.bell.as_fd()),
            Rx::Uplink { socket, .. } => Some(socket.as_fd()),
            Rx::Xdp { uplink, .. } => Some(uplink.guard.as_fd()),
        }
    }

    pub fn is_channel(&self, slot: u32) -> bool {
        matches!(self.rx.get(slot as usize), Some(Rx::Channel(_)))
    }

    /// A compartment waits for its receiver's room; an uplink's frames are many
    /// receivers', and nobody waits for another's.
    pub fn may_park(&self, slot: u32) -> bool {
        self.is_channel(slot)
    }

    /// The two ends of a batch that comes from `slot`.
    pub fn ends(&mut self, slot: u32) -> (From<'_>, To<'_>) {
        // Borrowed apart: reading side, writing sides.
        let Ports {
            rx,
            tx,
            touched,
            broken,
            inward,
            outward,
            part,
            calls,
            ..
        } = self;
        let from = From {
            rx: rx.get_mut(slot as usize),
            buffer: inward,
            calls,
        };
        let to = To {
            tx,
            from: slot,
            touched,
            broken,
            buffer: outward,
            part,
            calls,
        };
        (from, to)
    }

    /// After a batch: gives back what was read, shows what was written, rings.
    pub fn end_batch(&mut self, slot: u32, tally: &mut Tally) {
        while let Some(egress) = self.touched.pop() {
            if let Some(Tx::Xdp { .. }) = self.tx.get(egress as usize) {
                self.kick(egress);
            }
            if let Some(Tx::Channel { sender, touched }) = self.tx.get_mut(egress as usize) {
                *touched = false;
                if sender.ring.publish() == Doorbell::Ring && sender.bell.ring().is_err() {
                    fail(&mut self.broken, egress, PIPE);
                }
            }
        }
        if let Some(Rx::Channel(receiver)) = self.rx.get_mut(slot as usize) {
            receiver.ring.release();
            // A misdeed ends the flow of records; which one it was is said here.
            if let Err(breach) = receiver.ring.poll() {
                fail(&mut self.broken, slot, number(breach));
            }
            tally.lost(slot, receiver.ring.take_lost().records);
        }
        if let Some(Rx::Uplink { socket, .. }) = self.rx.get(slot as usize) {
            self.calls.overflowed.set(socket.take_lost().into());
        }
        // Chunks that were given back, where its interface has run out of them.
        if let Some(Rx::Xdp { .. }) = self.rx.get(slot as usize) {
            self.kick(slot);
        }
        let Calls {
            made,
            frames,
            gone,
            oversize,
            overflowed,
        } = std::mem::take(&mut self.calls);
        if made.get() != 0 || frames.get() != 0 {
            tally.called(made.get(), frames.get());
        }
        for (reason, lost) in [
            (DropReason::Oversize, oversize),
            (DropReason::QueueFull, overflowed),
        ] {
            if lost.get() != 0 {
                tally.counters.dropped(slot as usize, reason, lost.get());
            }
        }
        if gone.get() {
            fail(&mut self.broken, slot, NODEV);
        }
    }

    /// Asks the kernel to go on with an uplink's queues, and notes where it is to be asked
    /// again.
    fn kick(&mut self, slot: u32) {
        let Some(Tx::Xdp { uplink, touched }) = self.tx.get_mut(slot as usize) else {
            return;
        };
        *touched = false;
        match uplink.kick() {
            Ok(calls) => self
                .calls
                .made
                .set(self.calls.made.get() + u64::from(calls)),
            Err(_) => fail(&mut self.broken, slot, NODEV),
        }
        // Bound: the slots, each of which is in it at most once.
        if uplink.is_waiting() && !self.waiting.contains(&slot) {
            self.waiting.push(slot);
        }
    }

    /// Asks again where frames wait; whether some still do.
    pub fn kick_waiting(&mut self, tally: &mut Tally) -> bool {
        // Bound: what is in it now; what has to be asked again is put behind that.
        for _ in 0..self.waiting.len() {
            let slot = self.waiting.swap_remove(0);
            self.kick(slot);
        }
        let made = self.calls.made.take();
        if made != 0 {
            tally.called(made, 0);
        }
        !self.waiting.is_empty()
    }

    /// The descriptor that tells of an uplink's interface woke us.
    pub fn look_after(&mut self, slot: u32, now: u64) {
        let Some(Rx::Xdp { uplink, .. }) = self.rx.get(slot as usize) else {
            return;
        };
        // Nothing comes by it but that the interface is down.
        let _ = uplink.guard.recv(&mut self.inward);
        if self.doubtful.iter().all(|(other, _)| *other != slot) {
            self.doubtful.push((slot, now + DOUBT_NS));
        }
    }

    /// Looks again at interfaces that went down: one that goes for good is down first, and
    /// says nothing more. Whether some are to be looked at once more.
    pub fn look_again(&mut self, now: u64) -> bool {
        let (rx, broken) = (&self.rx, &mut self.broken);
        self.doubtful.retain(|(slot, until)| {
            let Some(Rx::Xdp { uplink, .. }) = rx.get(*slot as usize) else {
                return false;
            };
            // A frame that is none is refused for that only where the interface is there.
            let sent = uplink.guard.send(&RawOffload::default(), &[], &[]);
            if sent == Err(PortError::Vanished) {
                fail(broken, *slot, NODEV);
            }
            sent == Err(PortError::Down) && now < *until
        });
        !self.doubtful.is_empty()
    }

    /// Before a channel is left alone. `false`: something came, do not sleep on it.
    pub fn arm(&mut self, slot: u32) -> bool {
        match self.rx.get_mut(slot as usize) {
            Some(Rx::Channel(receiver)) => match receiver.ring.arm() {
                Ok(quiet) => quiet,
                Err(breach) => {
                    fail(&mut self.broken, slot, number(breach));
                    true
                }
            },
            // An uplink's socket wakes as long as it holds a frame.
            _ => true,
        }
    }

    /// Its descriptor woke us. `true`: there may be frames.
    pub fn wake(&mut self, slot: u32, tally: &mut Tally) -> bool {
        let index = slot as usize;
        let Some(rx) = self.rx.get_mut(index) else {
            return false;
        };
        let Rx::Channel(receiver) = rx else {
            return matches!(rx, Rx::Uplink { .. } | Rx::Xdp { .. });
        };
        let Ok(rings) = receiver.bell.drain() else {
            fail(&mut self.broken, slot, PIPE);
            return false;
        };
        tally
            .counters
            .add_process(telemetry::counters::ProcessWord::Doorbells, 1);
        let polled = receiver
            .ring
            .rung(rings)
            .and_then(|()| receiver.ring.poll());
        if let Err(breach) = polled {
            fail(&mut self.broken, slot, number(breach));
            return false;
        }
        tally.lost(slot, receiver.ring.take_lost().records);
        // The peer may have restarted as a whole: it then waits for our echo here too.
        if let Some(Tx::Channel { sender, .. }) = self.tx.get_mut(index) {
            if let Err(breach) = sender.ring.poll() {
                fail(&mut self.broken, slot, number(breach));
                return false;
            }
            tally.lost(slot, sender.ring.take_lost().records);
        }
        true
    }

    /// The worse state of the two directions.
    pub fn state(&self, slot: u32) -> State {
        let rx = match self.rx.get(slot as usize) {
            Some(Rx::Channel(receiver)) => receiver.ring.state(),
            _ => State::Running,
        };
        let tx = match self.tx.get(slot as usize) {
            Some(Tx::Channel { sender, .. }) => sender.ring.state(),
            _ => State::Running,
        };
        if rx == State::AwaitingEcho { rx } else { tx }
    }

    /// Looks whether the peer has echoed. `None`: settled, or gone. `Some(None)`: not
    /// yet. `Some(Some(_))`: too late, the pair is to be replaced.
    #[expect(
        clippy::option_option,
        reason = "three answers of which one has a reason"
    )]
    pub fn settle(&mut self, slot: u32, now: u64) -> Option<Option<()>> {
        let index = slot as usize;
        let (Some(Rx::Channel(receiver)), Some(Tx::Channel { sender, .. })) =
            (self.rx.get_mut(index), self.tx.get_mut(index))
        else {
            return None;
        };
        for polled in [receiver.ring.poll(), sender.ring.poll()] {
            if let Err(breach) = polled {
                fail(&mut self.broken, slot, number(breach));
                return None;
            }
        }
        if receiver.ring.overdue(now) || sender.ring.overdue(now) {
            return Some(Some(()));
        }
        let states = [receiver.ring.state(), sender.ring.state()];
        states.contains(&State::AwaitingEcho).then_some(None)
    }

    /// A slot whose peer broke the protocol, once each time it did.
    pub fn next_broken(&mut self) -> Option<(u32, u32)> {
        loop {
            // Bound: each turn takes one out.
            let (slot, reason) = self.broken.pop()?;
            if self.descriptor(slot).is_some() {
                return Some((slot, reason));
            }
        }
    }
}

/// Notes that a slot is to be closed, for the first reason there is.
#[cold]
fn fail(broken: &mut Vec<(u32, u32)>, slot: u32, reason: u32) {
    // Bound: the slots, each of which is in it at most once; a batch toward a broken
    // receiver comes here once a frame.
    if !guard!("fabric-broken-once") || broken.iter().all(|(other, _)| *other != slot) {
        broken.push((slot, reason));
    }
}

fn number(breach: Breach) -> u32 {
    breach as u32
}

/// Where a batch's frames come from.
pub struct From<'p> {
    rx: Option<&'p mut Rx>,
    buffer: &'p mut [u8],
    calls: &'p Calls,
}

/// A frame where it lies.
pub enum Source<'a> {
    Record(Record<'a, ConsumerEnd>),
    Bytes(&'a [u8]),
}

impl Ingress for From<'_> {
    type Source<'a>
        = Source<'a>
    where
        Self: 'a;

    #[inline]
    fn peek(&mut self) -> Option<(Frame, Source<'_>)> {
        match self.rx.as_deref_mut()? {
            Rx::None => None,
            Rx::Channel(receiver) => {
                // A misdeed is said again by the poll after the batch.
                let record = receiver.ring.peek().ok().flatten()?;
                let mut head = [0; HEAD];
                record.copy(0, &mut head);
                // Anything but a frame is none: too short to be forwarded.
                let len = if record.kind() == KIND_FRAME {
                    record.len()
                } else {
                    0
                };
                let frame = Frame {
                    tag: record.tag(),
                    offload: record.offload(),
                    len,
                    head,
                };
                Some((frame, Source::Record(record)))
            }
            Rx::Uplink { socket, held } => {
                if held.is_none() {
                    let received = socket.recv(self.buffer);
                    self.calls.count(u64::from(matches!(received, Ok(Some(_)))));
                    match received {
                        Ok(Some((offload, at))) => {
                            *held = Some(Held::new(offload, at, self.buffer));
                        }
                        Ok(None) => return None,
                        // One frame lost, or nothing to come: the next call tells.
                        Err(error) => {
                            self.calls.lost(error);
                            self.calls
                                .gone
                                .set(self.calls.gone.get() || error.is_closed());
                            return None;
                        }
                    }
                }
                from_wire(held.as_ref()?, self.buffer)
            }
            Rx::Xdp { uplink, held, next } => {
                if held.is_none() {
                    match uplink.recv(next, self.buffer) {
                        Ok(Some(length)) => {
                            self.calls.frames.set(self.calls.frames.get() + 1);
                            let offload = RawOffload::default();
                            *held = Some(Held::new(offload, 0..length, self.buffer));
                        }
                        Ok(None) => return None,
                        Err(error) => {
                            self.calls.lost(error);
                            return None;
                        }
                    }
                }
                from_wire(held.as_ref()?, self.buffer)
            }
        }
    }

    #[inline]
    fn advance(&mut self) {
        match self.rx.as_deref_mut() {
            Some(Rx::Channel(receiver)) => receiver.ring.advance(),
            Some(Rx::Uplink { held, .. } | Rx::Xdp { held, .. }) => *held = None,
            _ => {}
        }
    }
}

/// A frame that an uplink brought.
fn from_wire<'a>(held: &Held, buffer: &'a [u8]) -> Option<(Frame, Source<'a>)> {
    let bytes = buffer.get(held.at.clone())?;
    let mut head = [0; HEAD];
    head.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let frame = Frame {
        tag: held.vlan,
        offload: held.offload,
        len: bytes.len(),
        head,
    };
    Some((frame, Source::Bytes(bytes)))
}

/// Where a batch's frames go.
pub struct To<'p> {
    tx: &'p mut [Tx],
    from: u32,
    touched: &'p mut Vec<u32>,
    broken: &'p mut Vec<(u32, u32)>,
    buffer: &'p mut [u8],
    part: &'p mut [u8],
    calls: &'p Calls,
}

impl Egress<From<'_>> for To<'_> {
    fn calls(&self) -> u64 {
        self.calls.made.get()
    }

    #[inline]
    fn send(
        &mut self,
        slot: u32,
        tag: u16,
        frame: &Frame,
        source: &Source<'_>,
    ) -> Result<(), Refused> {
        // What was judged is what is sent: the head from the private copy.
        let head = frame.head.get(..frame.len).unwrap_or(&frame.head);
        match self.tx.get_mut(slot as usize) {
            None | Some(Tx::None) => Err(Refused::Gone),
            Some(Tx::Channel { sender, touched }) => {
                let pushed = match source {
                    Source::Record(record) => {
                        sender
                            .ring
                            .forward(tag, &frame.offload, head, record, head.len())
                    }
                    Source::Bytes(bytes) => {
                        let rest = bytes.get(head.len()..).unwrap_or(&[]);
                        sender.ring.push(tag, &frame.offload, head, rest)
                    }
                };
                match pushed {
                    Ok(()) if *touched => Ok(()),
                    Ok(()) => {
                        *touched = true;
                        self.touched.push(slot);
                        Ok(())
                    }
                    Err(PushError::Full) => Err(Refused::Full),
                    Err(PushError::TooLong) => Err(Refused::TooLong),
                    Err(PushError::Breach(breach)) => {
                        fail(self.broken, slot, number(breach));
                        Err(Refused::Gone)
                    }
                }
            }
            Some(Tx::Xdp { uplink, touched }) => {
                let copy = |into: &mut [u8]| match source {
                    Source::Record(record) => record.copy(head.len(), into),
                    Source::Bytes(bytes) => {
                        let rest = bytes.get(head.len()..).unwrap_or(&[]);
                        into.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                        rest.len().min(into.len())
                    }
                };
                let mut tagged = [0; HEAD + vlan::TAG];
                let (head, offload) = vlan::put_on(tag, head, frame.offload, &mut tagged);
                let rest = frame.len.saturating_sub(HEAD);
                let parts = (head, rest, offload);
                let sent = uplink.send(self.from, parts, copy, self.buffer, self.part);
                if sent.is_ok() {
                    self.calls.frames.set(self.calls.frames.get() + 1);
                }
                if !*touched {
                    *touched = true;
                    self.touched.push(slot);
                }
                sent
            }
            Some(Tx::Uplink(socket)) => {
                let rest = match source {
                    Source::Record(record) => {
                        if record.len() > self.buffer.len() {
                            return Err(Refused::TooLong);
                        }
                        let copied = record.copy(head.len(), self.buffer);
                        self.buffer.get(..copied).unwrap_or(&[])
                    }
                    Source::Bytes(bytes) => bytes.get(head.len()..).unwrap_or(&[]),
                };
                let mut tagged = [0; HEAD + vlan::TAG];
                let (head, offload) = vlan::put_on(tag, head, frame.offload, &mut tagged);
                let sent = socket.send(&offload, head, rest);
                self.calls.count(u64::from(sent.is_ok()));
                match sent {
                    Ok(()) => Ok(()),
                    Err(PortError::Full) => Err(Refused::Full),
                    Err(error) => {
                        if error.is_closed() {
                            fail(self.broken, slot, NODEV);
                        }
                        Err(Refused::System)
                    }
                }
            }
        }
    }
}
