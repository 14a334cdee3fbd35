//! What the loop waits for.

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Events taken from the kernel at once.
const BATCH: usize = 128;

/// Whose descriptor became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The keeper's socket.
    Keeper,
    /// The controller's socket.
    Controller,
    /// A namespace's name was removed.
    Namespaces,
    /// A process died.
    Death(u64),
    /// A process says something.
    Worker(u64),
    /// What a process gives is looked at.
    Fetch(u64),
    /// Somebody connects to the fifo at (compartment, slot).
    Listener(u32, u32),
    /// The client of the fifo at (compartment, slot) says something or is gone.
    Client(u32, u32),
}

/// Names one registration; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// An epoll instance and what its tokens stand for.
#[derive(Debug)]
pub struct Poll {
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next: u64,
}

impl Poll {
    /// A new one.
    pub fn new() -> Result<Poll, Errno> {
        Ok(Poll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sources: HashMap::new(),
            next: 1,
        })
    }

    /// Watches a descriptor for input. [`Poll::unwatch`] it before it is closed: the
    /// keeper has a duplicate, so closing alone would not end the watch.
    pub fn watch(&mut self, fd: impl AsFd, source: Source) -> Result<Token, Errno> {
        let token = self.next;
        self.next += 1;
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN,
        )?;
        self.sources.insert(token, source);
        Ok(Token(token))
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, fd: impl AsFd, token: Token) {
        if self.sources.remove(&token.0).is_some() {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Waits for events, at most `timeout` (`None` = for ever).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<(Token, Source)>, Errno> {
        let mut events = Vec::with_capacity(BATCH);
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs().min(1 << 30).cast_signed(),
            tv_nsec: t.subsec_nanos().into(),
        });
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let known = |event: &epoll::Event| {
            let token = event.data.u64();
            self.sources
                .get(&token)
                .map(|source| (Token(token), *source))
        };
        Ok(events.iter().filter_map(known).collect())
    }

    /// Whether the registration still stands: an event may come behind its end.
    pub fn stands(&self, token: Token) -> bool {
        self.sources.contains_key(&token.0)
    }
}
