//! Time, and waiting for many things.

use command::verbs::{Attach, WAIT_ADAPTIVE, WAIT_POLL};
use guard::guard;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub use worker::clock::monotonic as now;
use worker::clock::timespec;

/// Longest spin where the cores are shared, ns (DESIGN §3).
const SHARED_SPIN_NS: u64 = 5_000;
/// Events taken at once; the rest come with the next look.
const EVENTS: usize = 64;
/// The control socket among the slots.
const CONTROL: u64 = u64::MAX;
/// Beside a slot's number: what tells of its interface, and brings no frame.
const GUARD: u64 = 1 << 32;

/// How long to stay awake without work.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    linger_ns: u64,
    period_ns: u64,
}

impl Pace {
    pub fn of(attach: &Attach) -> Pace {
        let wait_ns = u64::from(attach.wait_us) * 1_000;
        let shared = attach.shared_cores != 0;
        match attach.wait {
            // A period of 0 never sleeps; on shared cores there is one.
            WAIT_POLL if shared => Pace {
                linger_ns: u64::MAX,
                period_ns: wait_ns.max(10 * SHARED_SPIN_NS),
            },
            WAIT_POLL => Pace {
                linger_ns: u64::MAX,
                period_ns: wait_ns,
            },
            WAIT_ADAPTIVE => {
                let longest = if shared && guard!("fabric-shared-spin") {
                    SHARED_SPIN_NS
                } else {
                    u64::MAX
                };
                Pace {
                    linger_ns: wait_ns.min(longest),
                    period_ns: 0,
                }
            }
            _ => Pace {
                linger_ns: 0,
                period_ns: 0,
            },
        }
    }
    /// Whether a channel that has been idle so long is asked again.
    pub fn lingers(&self, idle_ns: u64) -> bool {
        idle_ns < self.linger_ns
    }
    /// Sleep between two rounds that found nothing.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }
}

/// What woke us.
pub enum Woken {
    Control,
    Port(u32),
    /// What tells of an uplink's interface.
    Guard(u32),
}

/// The set of descriptors that wake us: control, doorbells, uplinks.
pub struct Waiting {
    set: OwnedFd,
    events: [MaybeUninit<Event>; EVENTS],
    /// What the last wait gave.
    woken: [u64; EVENTS],
}

impl Waiting {
    pub fn new(control: &impl AsFd) -> io::Result<Waiting> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, control, EventData::new_u64(CONTROL), EventFlags::IN)?;
        Ok(Waiting {
            set,
            events: [const { MaybeUninit::uninit() }; EVENTS],
            woken: [0; EVENTS],
        })
    }

    /// Waits at most so many ns; `None` = for ever. Returns how many events there are.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<usize> {
        let timeout = timeout_ns.map(timespec);
        let events = match epoll::wait(&self.set, &mut self.events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        };
        for (to, event) in self.woken.iter_mut().zip(&*events) {
            *to = event.data.u64();
        }
        Ok(events.len())
    }

    /// One of the events of the last wait.
    pub fn event(&self, index: usize) -> Option<Woken> {
        match *self.woken.get(index)? {
            CONTROL => Some(Woken::Control),
            name if name & GUARD != 0 => Some(Woken::Guard((name & !GUARD) as u32)),
            slot => Some(Woken::Port(u32::try_from(slot).ok()?)),
        }
    }

    pub fn add(&self, fd: BorrowedFd<'_>, slot: u32) -> io::Result<()> {
        self.put(fd, slot.into())
    }

    /// What tells of an uplink's interface.
    pub fn add_guard(&self, fd: BorrowedFd<'_>, slot: u32) -> io::Result<()> {
        self.put(fd, GUARD | u64::from(slot))
    }

    fn put(&self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let data = EventData::new_u64(name);
        Ok(epoll::add(&self.set, fd, data, EventFlags::IN)?)
    }

    /// Takes a descriptor out of the set; others may hold its description, so that
    /// closing ours does not.
    pub fn forget(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            let _ = epoll::delete(&self.set, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::verbs::WAIT_SLEEP;

    fn spins(wait: u32, wait_us: u32, shared: bool) -> u64 {
        let attach = Attach {
            wait,
            wait_us,
            shared_cores: shared.into(),
            ..Attach::default()
        };
        let pace = Pace::of(&attach);
        // The longest time without work that it is still awake after.
        let longest = (0..3_000_000).step_by(500).filter(|&ns| pace.lingers(ns));
        longest.last().map_or(0, |ns| ns + 500)
    }

    #[test]
    fn shared_cores_are_spun_on_for_5_us_at_most() {
        assert_eq!(spins(WAIT_SLEEP, 1_000, false), 0);
        assert_eq!(spins(WAIT_ADAPTIVE, 1_000, false), 1_000_000);
        assert_eq!(spins(WAIT_ADAPTIVE, 1_000, true), 5_000);
        assert_eq!(spins(WAIT_ADAPTIVE, 3, true), 3_000);
    }
}
