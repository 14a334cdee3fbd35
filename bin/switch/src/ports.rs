//! The ports of a switch, by slot.

use crate::guest::GuestPort;
use crate::parking::Parked;
use port::Device;
use shm::Guest;
use std::os::fd::{AsFd, BorrowedFd};
use switch::{Slot, Workers};
use virtqueue::net::FromGuest;

/// Where a slot's frames come from.
pub enum Source {
    /// Nothing is plugged in.
    None,
    /// A channel's reading end.
    Channel(Box<shm::Receiver>),
    /// The tap or veth, which [`Sink`] holds.
    Device,
    /// What a virtual machine sends, while its memory is mapped; [`Sink`] holds the rest.
    Guest(Option<Box<FromGuest<Guest>>>),
}

/// Where a slot's frames go.
pub enum Sink {
    /// Nothing is plugged in.
    None,
    /// A channel's writing end.
    Channel(Box<shm::Sender>),
    /// A tap or veth, for both directions.
    Device(Device),
    /// A virtual machine's interface.
    Guest(Box<GuestPort>),
    /// Another worker writes to it.
    Elsewhere(u32),
    /// Not a slot at all, but another worker, which handles what is given to it.
    Relay(u32),
}

/// One slot's place in the loop.
pub struct Place {
    /// Turns without a frame since the last one.
    pub idle_turns: u32,
    /// Written to since its writing end was last published.
    pub touched: bool,
    /// The other side has been asked to take part in our restart.
    pub settling: bool,
    /// The supervisor has been asked to replace the channel.
    pub replacing: bool,
    /// Where a frame waits for its receiver; taken out while a batch runs.
    pub parked: Option<Box<Parked>>,
}

impl Place {
    /// Whether a frame waits.
    pub fn is_parked(&self) -> bool {
        self.parked
            .as_ref()
            .is_some_and(|parked| parked.since.is_some())
    }

    fn new() -> Place {
        Place {
            idle_turns: 0,
            touched: false,
            settling: false,
            replacing: false,
            parked: Some(Box::new(Parked::empty())),
        }
    }
}

/// All slots.
pub struct Ports {
    pub sources: Vec<Source>,
    pub sinks: Vec<Sink>,
    pub places: Vec<Place>,
}

impl Ports {
    /// So many empty slots, of which some are another worker's.
    pub fn new(slots: usize, workers: Workers) -> Ports {
        let place = |slot| match workers.is_home(slot) {
            true => Sink::None,
            false => Sink::Elsewhere(workers.home(slot)),
        };
        let relays = match workers.count() {
            1 => 0,
            count => count,
        };
        Ports {
            sources: (0..slots).map(|_| Source::None).collect(),
            sinks: (0..slots as Slot)
                .map(place)
                .chain((0..relays).map(Sink::Relay))
                .collect(),
            places: (0..slots).map(|_| Place::new()).collect(),
        }
    }

    /// Whether a slot is at home at this worker.
    pub fn is_home(&self, slot: Slot) -> bool {
        !matches!(self.sinks.get(slot as usize), Some(Sink::Elsewhere(_)))
    }

    /// The descriptor that says that a slot has something to read.
    pub fn waker(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        match (self.sources.get(slot)?, self.sinks.get(slot)?) {
            (Source::Channel(receiver), _) => Some(receiver.bell.as_fd()),
            (Source::Device, Sink::Device(device)) => Some(device.as_fd()),
            (_, Sink::Guest(port)) => Some(port.link.as_fd()),
            _ => None,
        }
    }

    /// The descriptor of a slot's tap or veth, which is readable as long as it holds a frame.
    pub fn device(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        match self.sinks.get(slot)? {
            Sink::Device(device) => Some(device.as_fd()),
            _ => None,
        }
    }

    /// Empties a slot.
    pub fn unplug(&mut self, slot: usize) {
        if let Some(source) = self.sources.get_mut(slot) {
            *source = Source::None;
        }
        if let Some(sink) = self.sinks.get_mut(slot) {
            *sink = Sink::None;
        }
        if let Some(place) = self.places.get_mut(slot) {
            *place = Place {
                touched: place.touched,
                ..Place::new()
            };
        }
    }
}
