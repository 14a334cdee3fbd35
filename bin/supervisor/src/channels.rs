//! Channels between processes: made by `shm`, handed out by descriptor, never mapped
//! here beyond the header page they are born with.

use crate::link::Shared;
use command::verbs::AddPort;
use guard::guard;
use shm::{ChannelFds, Direction, Geometry, Pair, Pool};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// Descriptors that make up a channel, for the keeper.
pub const PARTS: usize = 8;
/// Pairs kept ready of each geometry that was asked for.
const AHEAD: usize = 4;
/// Geometries for which pairs are kept ready.
const GEOMETRIES: usize = 8;
/// Memory of a channel out of use is taken back so much later, ns: an honest process has
/// let go of it by then, and does not see it go. Sooner where the next of its place goes
/// out of use: so a place has the memory of two channels at most, as `plan` says.
const RECLAIM_AFTER: u64 = 2_000_000_000;
/// The protocol version that this release fixes at creation.
pub const VERSION: u32 = 1;

/// Which of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The switch's.
    Switch,
    /// The fabric's, or a fifo client's.
    Far,
}

impl End {
    /// The one at the other side.
    pub fn other(self) -> End {
        match self {
            End::Switch => End::Far,
            End::Far => End::Switch,
        }
    }
}

/// A channel: both directions, and which of its ends were ever handed out.
#[derive(Debug)]
pub struct Channel {
    pair: Pair,
    geometry: Geometry,
    serial: u64,
    handed: [bool; 2],
}

impl Channel {
    /// From the keeper's parts, in order: somebody had both ends.
    pub fn from_parts(parts: Vec<OwnedFd>, geometry: Geometry, serial: u64) -> Option<Channel> {
        let mut parts = parts.into_iter();
        let mut direction = || {
            Some(Direction::from_fds([
                parts.next()?,
                parts.next()?,
                parts.next()?,
                parts.next()?,
            ]))
        };
        let pair = Pair {
            a_to_b: direction()?,
            b_to_a: direction()?,
        };
        Some(Channel {
            pair,
            geometry,
            serial,
            handed: [true; 2],
        })
    }

    /// The parts, for the keeper.
    pub fn parts(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pair
            .a_to_b
            .as_fds()
            .into_iter()
            .chain(self.pair.b_to_a.as_fds())
    }

    /// Tells this channel's parts from another's in the keeper.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether this end was handed out before: its next holder must resume.
    pub fn was_handed(&self, end: End) -> bool {
        self.handed[end as usize]
    }

    /// The message and the descriptors that plug this end into `slot`.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn hand(
        &mut self,
        end: End,
        slot: u32,
        mtu: u32,
        features: u32,
    ) -> io::Result<(AddPort, Vec<Shared>)> {
        let fds = match end {
            End::Switch => self.pair.end_a()?,
            End::Far => self.pair.end_b()?,
        };
        let ChannelFds { rx, tx } = fds;
        let fds = [rx.data, rx.consumer, tx.data, tx.consumer, rx.bell, tx.bell].map(Rc::new);
        let body = AddPort {
            slot,
            kind: command::verbs::PORT_CHANNEL,
            capacity: self.geometry.capacity() as u32,
            max_record: self.geometry.max_record() as u32,
            resume: u32::from(self.handed[end as usize]),
            version: VERSION,
            mtu,
            features,
        };
        self.handed[end as usize] = true;
        Ok((body, fds.to_vec()))
    }
}

/// One direction, for a capture: the switch writes, the auditor reads.
#[derive(Debug)]
pub struct OneWay {
    direction: Direction,
    geometry: Geometry,
}

impl OneWay {
    /// A new one.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn create(geometry: Geometry) -> io::Result<OneWay> {
        Ok(OneWay {
            direction: Direction::create(&geometry)?,
            geometry,
        })
    }
    /// (capacity, longest record), bytes.
    pub fn shape(&self) -> (u32, u32) {
        (
            self.geometry.capacity() as u32,
            self.geometry.max_record() as u32,
        )
    }
    /// Data (rw), consumer page (ro), doorbell (write end).
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn writer(&self) -> io::Result<Vec<Shared>> {
        let end = self.direction.producer_end()?;
        Ok([end.data, end.consumer, end.bell].map(Rc::new).to_vec())
    }
    /// Data (ro), consumer page (rw), doorbell (read end).
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn reader(&self) -> io::Result<Vec<Shared>> {
        let end = self.direction.consumer_end()?;
        Ok([end.data, end.consumer, end.bell].map(Rc::new).to_vec())
    }
}

/// Channels made ahead, by geometry.
#[derive(Debug, Default)]
pub struct Channels {
    pools: HashMap<Geometry, Pool>,
    serial: u64,
    /// Out of use: of which (compartment, slot), and when their memory is taken back, ns.
    retired: VecDeque<(u64, (u32, u32), [Direction; 2])>,
}

impl Channels {
    /// None yet; `serial` is above every serial in use.
    pub fn new(serial: u64) -> Channels {
        Channels {
            pools: HashMap::new(),
            serial,
            retired: VecDeque::new(),
        }
    }

    /// The channel of this (compartment, slot) goes out of use. Whoever has it open or
    /// mapped would keep its memory; what is left of the one before it goes at once.
    pub fn retire(&mut self, place: (u32, u32), channel: Channel, now: u64) {
        // What nobody was handed goes with its descriptors.
        if channel.handed != [false; 2] {
            let before = self.retired.iter().position(|(_, of, _)| *of == place);
            if let Some(before) = before.filter(|_| guard!("channel-memory"))
                && let Some((_, _, directions)) = self.retired.remove(before)
            {
                discard(&directions);
            }
            let Pair { a_to_b, b_to_a } = channel.pair;
            self.retired
                .push_back((now + RECLAIM_AFTER, place, [a_to_b, b_to_a]));
        }
    }

    /// Takes the memory of channels out of use from whoever still holds it; when to
    /// come again. What a holder writes there afterwards is its own memory.
    pub fn reclaim(&mut self, now: u64) -> Option<u64> {
        while let Some((_, _, directions)) = self.retired.pop_front_if(|(due, ..)| *due <= now) {
            if guard!("channel-reclaim") {
                discard(&directions);
            }
        }
        self.retired.front().map(|(due, ..)| *due)
    }

    /// A channel that nobody has mapped.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn take(&mut self, geometry: Geometry) -> io::Result<Channel> {
        self.serial += 1;
        let pair = match self.pools.get_mut(&geometry) {
            Some(pool) => pool.take()?,
            None => {
                if self.pools.len() < GEOMETRIES {
                    self.pools.insert(geometry, Pool::new(geometry, AHEAD));
                }
                Pair::create(&geometry)?
            }
        };
        Ok(Channel {
            pair,
            geometry,
            serial: self.serial,
            handed: [false; 2],
        })
    }

    /// Makes at most one pair ahead; whether more are to be made.
    pub fn refill(&mut self) -> bool {
        let Some(pool) = self.pools.values_mut().find(|pool| pool.ready() < AHEAD) else {
            return false;
        };
        match pool.refill(1) {
            Ok(_) => true,
            Err(error) => {
                confine::say!("supervisor: no channel can be made ahead: {error}");
                false
            }
        }
    }
}

/// Takes a channel's memory from whoever holds it.
fn discard(directions: &[Direction; 2]) {
    for direction in directions {
        if let Err(error) = direction.discard() {
            confine::say!(
                "supervisor: a channel's memory cannot be taken back: {error}; whoever has it mapped keeps it"
            );
        }
    }
}

/// Hands each part of a channel to `keep`, with its number.
pub fn each_part(channel: &Channel, mut keep: impl FnMut(u8, BorrowedFd<'_>)) {
    for (n, part) in (0..).zip(channel.parts()) {
        keep(n, part.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(fds: &[Shared]) -> i64 {
        let stats = fds.iter().map(|fd| rustix::fs::fstat(&**fd).unwrap());
        stats.map(|stat| stat.st_blocks).sum()
    }

    #[test]
    fn a_place_keeps_the_memory_of_its_newest_channel_out_of_use_alone() {
        let mut channels = Channels::new(1);
        let geometry = Geometry::records(1 << 16, 2048).unwrap();
        let mut retire = |place: (u32, u32)| {
            let mut channel = channels.take(geometry).unwrap();
            let (_, held) = channel.hand(End::Far, place.1, 1500, 0).unwrap();
            channels.retire(place, channel, 10);
            held
        };
        let other = retire((3, 2));
        let held: Vec<_> = (0..9).map(|_| retire((3, 1))).collect();
        let (newest, before) = held.split_last().unwrap();
        assert!(before.iter().all(|fds| blocks(fds) == 0));
        assert!(blocks(newest) > 0, "an honest process has not let go yet");
        assert!(blocks(&other) > 0, "what others do does not concern it");
    }

    #[test]
    fn a_channel_out_of_use_gives_its_memory_back_whoever_holds_it() {
        let mut channels = Channels::new(1);
        let geometry = Geometry::records(1 << 16, 2048).unwrap();
        let mut channel = channels.take(geometry).unwrap();
        let (_, held) = channel.hand(End::Far, 1, 1500, 0).unwrap();
        assert!(blocks(&held) * 512 >= 2 << 16);
        channels.retire((3, 1), channel, 10);
        // Honest processes let go of it first.
        let due = channels.reclaim(10).expect("one waits");
        assert!(due > 10 && blocks(&held) > 0);
        assert_eq!(channels.reclaim(due), None);
        assert_eq!(blocks(&held), 0);
        // What nobody has goes at once.
        let fresh = channels.take(geometry).unwrap();
        channels.retire((3, 1), fresh, due);
        assert_eq!(channels.reclaim(due), None);
    }
}
