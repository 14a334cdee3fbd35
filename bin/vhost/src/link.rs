//! The switch that runs the queues, or the place where the next one will be.

use command::Message;
use command::message::Body;
use command::verbs::{
    GUEST_QUEUES, GUEST_REGIONS, GuestDone, GuestHalt, GuestLog, GuestMap, GuestRun, GuestUnmap,
};
use seqpacket::{Error, Socket};
use shm::Words;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use vhostuser::{Device, Failed, MemoryRegion, QueueSetup};
use virtqueue::Stand;

/// A switch answers between two of its batches, or is dead and its socket says so. One
/// that does neither is killed by the supervisor in this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the front end's requests come to.
pub struct Link {
    socket: Option<Socket>,
    /// Where the queues got: a word each, written by the switch, which is believed as far
    /// as its own tenant's guest goes.
    page: Option<Words>,
    seq: u32,
    calls: [Option<OwnedFd>; GUEST_QUEUES],
}

impl Link {
    /// Nobody yet.
    pub fn new() -> Link {
        Link {
            socket: None,
            page: None,
            seq: 0,
            calls: [const { None }; GUEST_QUEUES],
        }
    }

    /// A switch that knows nothing, and the page.
    pub fn join(&mut self, socket: Socket, page: Option<Words>) {
        self.socket = Some(socket);
        if page.is_some() {
            self.page = page;
        }
    }

    /// The switch is gone.
    pub fn lost(&mut self) {
        self.socket = None;
    }

    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// What calls a queue's driver.
    pub fn caller(&self, queue: usize) -> Option<BorrowedFd<'_>> {
        self.calls.get(queue)?.as_ref().map(AsFd::as_fd)
    }

    /// The front end is gone: nothing of it stays.
    pub fn forget(&mut self) {
        self.calls = [const { None }; GUEST_QUEUES];
        self.unmap();
    }

    /// Asks the switch. Where there is none, what is asked is what its successor will be
    /// told; one that dies meanwhile has done it.
    fn ask<B: Body>(&mut self, body: &B, fds: &[BorrowedFd<'_>]) -> Option<GuestDone> {
        let socket = self.socket.as_ref()?;
        self.seq += 1;
        match socket.ask(&Message::new(self.seq, body), fds, PATIENCE) {
            Ok((message, _)) => message.body(),
            Err(Error::Malformed(_)) => None,
            Err(_) => {
                self.socket = None;
                None
            }
        }
    }

    fn is_done(&mut self, done: Option<GuestDone>) -> Result<(), Failed> {
        match done {
            Some(done) if done.error != 0 => Err(Failed),
            _ => Ok(()),
        }
    }

    /// Notes where a queue begins, and where it is.
    fn note(&self, queue: u32, stand: Stand) {
        let half = u64::from(stand.available) | u64::from(stand.used) << 16;
        if let Some(page) = &self.page {
            page.store(queue as usize, half << 32 | half);
        }
    }

    fn noted(&self, queue: u32) -> Stand {
        let word = self.page.as_ref().map_or(0, |p| p.load(queue as usize)) >> 32;
        Stand {
            available: (word >> 16) as u16,
            used: (word >> 16) as u16,
        }
    }
}

impl Device for Link {
    type Fd = OwnedFd;

    fn map(&mut self, features: u64, regions: &[(MemoryRegion, OwnedFd)]) -> Result<(), Failed> {
        let mut body = GuestMap {
            features,
            count: regions.len() as u32,
            ..GuestMap::default()
        };
        if regions.len() > GUEST_REGIONS {
            return Err(Failed);
        }
        for (n, (region, _)) in regions.iter().enumerate() {
            let places = (
                body.guest.get_mut(n),
                body.size.get_mut(n),
                body.offset.get_mut(n),
            );
            if let (Some(guest), Some(size), Some(offset)) = places {
                (*guest, *size, *offset) = (region.guest, region.size, region.offset);
            }
        }
        let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|(_, fd)| fd.as_fd()).collect();
        let done = self.ask(&body, &fds);
        self.is_done(done)
    }

    fn unmap(&mut self) {
        self.ask(&GuestUnmap::default(), &[]);
    }

    fn run(&mut self, setup: &QueueSetup, kick: Option<&OwnedFd>) -> Result<(), Failed> {
        if let Some(stand) = setup.stand {
            self.note(setup.queue, stand);
        }
        let body = GuestRun {
            queue: setup.queue,
            size: setup.layout.size.into(),
            descriptors: setup.layout.descriptors,
            driver: setup.layout.driver,
            device: setup.layout.device,
        };
        let fds: Vec<BorrowedFd<'_>> = kick.into_iter().map(AsFd::as_fd).collect();
        let done = self.ask(&body, &fds);
        self.is_done(done)
    }

    fn halt(&mut self, queue: u32) -> Stand {
        match self.ask(&GuestHalt { queue, reserved: 0 }, &[]) {
            Some(done) if done.error == 0 => Stand {
                available: done.available as u16,
                used: done.used as u16,
            },
            _ => self.noted(queue),
        }
    }

    fn log(&mut self, size: u64, offset: u64, fd: Option<OwnedFd>) -> Result<(), Failed> {
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        let done = self.ask(&GuestLog { size, offset }, &fds);
        self.is_done(done)
    }

    fn call(&mut self, queue: u32, fd: Option<OwnedFd>) {
        if let Some(place) = self.calls.get_mut(queue as usize) {
            *place = fd;
        }
    }
}
