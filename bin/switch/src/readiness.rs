//! One epoll set for doorbells, taps and the control socket.

use crate::clock;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What the control socket is called in the set.
pub const CONTROL: u64 = u64::MAX;
/// Events taken at once.
pub const AT_ONCE: usize = 64;

/// The set.
pub struct Readiness {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Readiness {
    /// An empty set.
    pub fn new() -> Result<Readiness, Errno> {
        Ok(Readiness {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(AT_ONCE),
        })
    }

    /// Joins the set.
    pub fn join(&self, fd: BorrowedFd<'_>, name: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(name), EventFlags::IN)
    }

    /// Joins the set, to be named once for each time that it becomes ready: it need not be
    /// read for that.
    pub fn join_edge(&self, fd: BorrowedFd<'_>, name: u64) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.epoll, fd, EventData::new_u64(name), flags)
    }

    /// Leaves the set. To be done before the descriptor is closed: the supervisor
    /// holds another to the same thing, which would keep it in.
    pub fn leave(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for something, at most so many ns (`None` = for ever), and gives the
    /// names of what is ready.
    pub fn wait(&mut self, limit: Option<u64>, mut ready: impl FnMut(u64)) {
        let limit = limit.map(clock::timespec);
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        // The one error there is would be a signal, of which this process has none.
        if epoll::wait(&self.epoll, room, limit.as_ref()).is_ok() {
            self.events.iter().for_each(|event| ready(event.data.u64()));
        }
    }
}
