//! Captures: circuits that are carried here, as the packets that TCP would have sent. Records go
//! into a capture's channel, as a switch's frames do, and never wait: what does not fit is not
//! captured but counted.

use super::frames::{Frame, Kind, LONGEST, Named};
use crate::relay::State;
use command::verbs::{Capture as Asked, EVERYBODY};
use guard::guard;
use ring::Geometry;
use ring::record::CaptureNote;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use seqpacket::Fds;
use shm::{Doorbell, ProducerFds, Sender, Start, attach_producer};
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use wire::offload::RawOffload;

/// Captures under way. Bound of each loop: as many as the supervisor lets begin.
#[derive(Default)]
pub struct Captures {
    all: Vec<(u32, Capture)>,
    /// Bits of slots, modulo 64, whose circuits somebody captures.
    slots: u64,
    /// What a program has sent and was looked at last.
    looked: Vec<u8>,
}

struct Capture {
    sender: Sender,
    slot: Option<u32>,
    snap: usize,
    /// Packets that found no room.
    lost: u32,
}

/// How a circuit comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both have said all, or who has said all is gone: the other is told that it is over.
    Said,
    /// This side's program is gone with what it had not read.
    Gone(usize),
    /// It is cut, for both.
    Cut,
}

impl Captures {
    /// A capture begins, instead of that of the same owner, or ends.
    pub fn ask(&mut self, asked: &Asked, fds: Fds) {
        let gone = |of: u32| of == asked.of || asked.of == EVERYBODY;
        self.all.retain(|(of, _)| !gone(*of));
        if asked.on != 0 {
            let geometry = Geometry::records(asked.capacity as usize, asked.max_record as usize);
            let channel = geometry.ok().zip(ProducerFds::from_fds(fds));
            let sender = channel.map(|(it, fds)| attach_producer(fds, &it, Start::Fresh));
            if let Some(Ok(sender)) = sender {
                let capture = Capture {
                    sender,
                    slot: (asked.slot != u32::MAX).then_some(asked.slot),
                    snap: asked.snap as usize,
                    lost: 0,
                };
                self.all.push((asked.of, capture));
            }
        }
        let slots = self.all.iter().map(|(_, one)| one.slot);
        let slots = slots.map(|slot| slot.map_or(u64::MAX, bit));
        self.slots = slots.fold(0, |all, one| all | one);
        match self.all.is_empty() {
            true => self.looked = Vec::new(),
            false => self.looked.resize(LOOK, 0),
        }
    }

    /// Whether somebody captures circuits between these two. One compare, where nobody does.
    #[inline]
    pub fn of(&self, slots: [u32; 2]) -> bool {
        let [from, to] = slots;
        self.slots & (bit(from) | bit(to)) != 0 && self.all.iter().any(|(_, it)| it.has(slots))
    }

    /// Looks at what is there to be taken, so many bytes at most; how many that is.
    ///
    /// # Errors
    /// As of reading: AGAIN, there is nothing yet.
    pub fn look(&mut self, source: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
        let most = most.min(self.looked.len());
        let into = self.looked.get_mut(..most).unwrap_or_default();
        let mut none = RecvAncillaryBuffer::default();
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let came = recvmsg(source, &mut [IoSliceMut::new(into)], &mut none, flags)?;
        Ok(came.bytes)
    }

    /// A circuit begins: who began it asks, the other answers.
    pub fn begins(&mut self, named: &Named, time_ns: u64) {
        let states = [State::default(); 2];
        for (side, kind) in [(0, Kind::Asks), (1, Kind::Answers), (0, Kind::Plain)] {
            self.say(named, side, kind, states, &[], time_ns);
        }
    }

    /// A direction went on from `before` to how far it is now: of what was looked at so many bytes
    /// were taken.
    pub fn moved(
        &mut self,
        named: &Named,
        way: usize,
        before: State,
        states: [State; 2],
        time_ns: u64,
    ) {
        let Some(now) = states.get(way).copied() else {
            return;
        };
        let at = |state: State| {
            let mut states = states;
            if let Some(it) = states.get_mut(way) {
                *it = state;
            }
            states
        };
        let looked = std::mem::take(&mut self.looked);
        let length = now.taken.saturating_sub(before.taken) as usize;
        let bytes = looked.get(..length).unwrap_or_default();
        let mut taken = before.taken;
        for part in bytes.chunks(LONGEST) {
            let sent = State { taken, ..before };
            taken += part.len() as u64;
            let kind = match taken == now.taken {
                true => Kind::Last,
                false => Kind::Plain,
            };
            self.say(named, way, kind, at(sent), part, time_ns);
        }
        self.looked = looked;
        if now.ended && !before.ended {
            let ending = State {
                taken: now.taken,
                ..before
            };
            self.say(named, way, Kind::Ends, at(ending), &[], time_ns);
        }
        if now.handed > before.handed || now.told != before.told {
            self.say(named, 1 - way.min(1), Kind::Plain, states, &[], time_ns);
        }
    }

    /// A circuit is over.
    pub fn ends(&mut self, named: &Named, mut states: [State; 2], end: End, time_ns: u64) {
        match end {
            End::Said => {
                for way in 0..2 {
                    let Some(state) = states.get_mut(way) else {
                        continue;
                    };
                    let before = *state;
                    (state.ended, state.told) = (true, true);
                    // What was taken and not handed on nobody reads any more.
                    self.moved(named, way, before, states, time_ns);
                }
            }
            End::Gone(side) => self.say(named, side, Kind::Resets, states, &[], time_ns),
            End::Cut => {
                for side in 0..2 {
                    self.say(named, side, Kind::Resets, states, &[], time_ns);
                }
            }
        }
    }

    /// One packet, from a side.
    fn say(
        &mut self,
        named: &Named,
        side: usize,
        kind: Kind,
        states: [State; 2],
        payload: &[u8],
        time_ns: u64,
    ) {
        let frame = Frame {
            named,
            side,
            kind,
            states,
        };
        let (head, length) = frame.head(payload);
        let Some(head) = head.get(..length) else {
            return;
        };
        let all = self.all.iter_mut().map(|(_, capture)| capture);
        for capture in all.filter(|it| it.has(named.slots)) {
            capture.write(named, side, head, payload, time_ns);
        }
    }

    /// Once a turn.
    pub fn publish(&mut self) {
        for (_, Capture { sender, .. }) in &mut self.all {
            let _ = sender.ring.poll();
            if sender.ring.publish() == Doorbell::Ring {
                let _ = sender.bell.ring();
            }
        }
    }
}

/// Bytes that are looked at, and so taken, at a time.
const LOOK: usize = super::pace::TURN as usize;

const fn bit(slot: u32) -> u64 {
    1 << (slot % 64)
}

impl Capture {
    fn has(&self, slots: [u32; 2]) -> bool {
        let own = |slot: u32| slots.contains(&slot) || !guard!("capture-circuits-own");
        self.slot.is_none_or(own)
    }

    fn write(&mut self, named: &Named, side: usize, head: &[u8], payload: &[u8], time_ns: u64) {
        // As its endpoint sees it; of all, as who sends does.
        let own = self.slot.and_then(|slot| named.side_of(slot));
        let own = own.unwrap_or(side);
        let note = CaptureNote {
            time_ns,
            endpoint: named.endpoints.get(own).copied().unwrap_or(0),
            original_len: (head.len() + payload.len()) as u32,
            direction: (own != side).into(),
            lost: self.lost,
            ..CaptureNote::default()
        };
        let head = head.get(..self.snap).unwrap_or(head);
        let left = self.snap.saturating_sub(head.len());
        let tail = payload.get(..left).unwrap_or(payload);
        let ring = &mut self.sender.ring;
        let pushed = ring.push_capture(0, &RawOffload::default(), &note, head, tail);
        self.lost = self.lost.wrapping_add(pushed.is_err().into());
    }
}

#[cfg(test)]
mod tests;
