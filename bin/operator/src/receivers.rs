//! Calls that wait for a datagram: at a copy of their socket, which this process watches, for
//! what is sent natively passes it by.

use crate::notes::CALLS;
use crate::waiting::GRACE;
use guard::guard;
use notify::Notification;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often it is looked whether those that wait still do: a call that a signal ended tells
/// nobody, and the copy of its socket keeps that alive.
pub const LOOK: Duration = Duration::from_secs(1);
/// Calls that wait so at most: half of those that can be noted, so that others go on.
const MOST: usize = CALLS / 2;
/// So many are asked about at a time: for each the kernel goes through all calls of its program.
const SOME: usize = 32;
/// Events at a time.
const EVENTS: usize = 64;

/// One that waits.
pub struct Receives {
    /// Whose it is.
    pub program: u32,
    /// Where it is noted.
    pub note: u16,
    /// The call.
    pub call: Notification,
    /// When it is told that nothing came.
    pub until: Option<Instant>,
    slot: u32,
    fd: OwnedFd,
}

impl Receives {
    /// Until when the same call waits that comes after a signal has ended this one; `until`: by itself. As of those that wait for
    /// connections: with a limit of its own it has what is left of that.
    pub fn left_of(
        &self,
        again: &Notification,
        until: Option<Instant>,
        now: Instant,
    ) -> Option<Instant> {
        let is_alike = self.call.is_alike(again);
        let left = self.until.filter(|it| is_alike && *it + GRACE > now);
        until.map(|until| left.map_or(until, |left| left.min(until)))
    }
}

/// All of them.
#[derive(Default)]
pub struct Receivers {
    epoll: Option<OwnedFd>,
    waiting: BTreeMap<u16, Receives>,
    /// When those are over that do not wait for ever: each turn of the loop asks, and most wait.
    due: BTreeSet<(Instant, u16)>,
    /// Those of each endpoint.
    of: BTreeSet<(u32, u16)>,
    /// Where the call of a thread is noted that waits.
    threads: BTreeMap<u32, u16>,
    /// How many each endpoint has.
    counts: BTreeMap<u32, usize>,
    looked: Option<Instant>,
    /// Those noted up to here were asked about.
    after: Option<u16>,
}

impl Receivers {
    /// What is readable when something came.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watched(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        if self.epoll.is_none() {
            self.epoll = Some(epoll::create(CreateFlags::CLOEXEC)?);
        }
        self.epoll.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// What a thread waited for before this call: it has one at a time, so a signal has ended
    /// that one. Were it left until it is looked who waits, a thread that is interrupted often
    /// would soon wait in more places than may be.
    pub fn ended_by(&mut self, call: &Notification) -> Option<Receives> {
        let before = *self.threads.get(&call.thread)?;
        match guard!("circuits-waits-once") {
            true => self.take(before),
            false => None,
        }
    }

    /// Lets a call wait at a copy of its socket.
    ///
    /// # Errors
    /// NOBUFS: as many of its endpoint wait as may, as many as there is room for others; or 500
    /// at this socket. The kernel's.
    pub fn wait(
        &mut self,
        slot: u32,
        (program, note, call): (u32, u16, Notification),
        fd: OwnedFd,
        until: Option<Instant>,
    ) -> Result<(), Errno> {
        let has = self.counts.get(&slot).copied().unwrap_or(0);
        if has >= MOST.saturating_sub(self.waiting.len()) && guard!("circuits-receivers") {
            return Err(Errno::NOBUFS);
        }
        let data = EventData::new_u64(note.into());
        match epoll::add(self.watched()?, &fd, data, EventFlags::IN) {
            // By so many ways at most it wakes a set that is in another: 500 (path_limits).
            Err(Errno::INVAL) => return Err(Errno::NOBUFS),
            added => added?,
        }
        *self.counts.entry(slot).or_default() += 1;
        let receives = Receives {
            slot,
            program,
            note,
            call,
            until,
            fd,
        };
        self.threads.insert(call.thread, note);
        self.of.insert((slot, note));
        self.due.extend(until.map(|until| (until, note)));
        self.waiting.insert(note, receives);
        Ok(())
    }

    /// Those for which something came, by where they are noted.
    pub fn ready(&mut self) -> Vec<u16> {
        let mut events = Vec::with_capacity(EVENTS);
        if let Some(epoll) = &self.epoll {
            let now = Timespec::default();
            let _ = epoll::wait(epoll, spare_capacity(&mut events), Some(&now));
        }
        events.iter().map(|it| it.data.u64() as u16).collect()
    }

    /// Nothing comes for those of an endpoint, for now; or what came meanwhile does.
    ///
    /// # Errors
    /// The kernel's, of one that would wait for ever.
    pub fn hold(&mut self, slot: u32, holds: bool) -> Result<(), Errno> {
        let Some(epoll) = &self.epoll else {
            return Ok(());
        };
        for it in self.all_of(slot) {
            let data = EventData::new_u64(it.note.into());
            let done = match holds {
                true if guard!("circuits-receivers-held") => epoll::delete(epoll, &it.fd),
                true => Ok(()),
                false => epoll::add(epoll, &it.fd, data, EventFlags::IN),
            };
            match done {
                // It is so already.
                Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those whose time is over.
    pub fn overdue(&mut self, now: Instant) -> Vec<Receives> {
        let over = self.due.range(..=(now, u16::MAX));
        let over: Vec<u16> = over.map(|(_, note)| *note).collect();
        self.take_all(over)
    }

    fn all_of(&self, slot: u32) -> impl Iterator<Item = &Receives> {
        let of = self.of.range((slot, 0)..=(slot, u16::MAX));
        of.filter_map(|(_, note)| self.waiting.get(note))
    }

    /// Those of some that do not wait any more, asked of this at times: of each within about [`LOOK`].
    pub fn ended(&mut self, now: Instant, waits: impl Fn(&Receives) -> bool) -> Vec<Receives> {
        if self
            .looked
            .is_some_and(|looked| now < looked + self.pause())
        {
            return Vec::new();
        }
        self.looked = Some(now);
        let after = self.after.map_or(0, |after| after.saturating_add(1));
        let some: Vec<u16> = self
            .waiting
            .range(after..)
            .map(|(it, _)| *it)
            .take(SOME)
            .collect();
        self.after = some.last().copied().filter(|_| some.len() == SOME);
        let has_ended = |it: &u16| self.waiting.get(it).is_some_and(|it| !waits(it));
        let ended: Vec<u16> = some.into_iter().filter(has_ended).collect();
        self.take_all(ended)
    }

    /// How long until the next are asked about.
    fn pause(&self) -> Duration {
        let turns = self.waiting.len().div_ceil(SOME).max(1);
        LOOK / u32::try_from(turns).unwrap_or(u32::MAX)
    }

    /// Those of a program.
    pub fn gone(&mut self, program: u32) -> Vec<Receives> {
        let of = self.waiting.values().filter(|it| it.program == program);
        let of = of.map(|it| it.note).collect();
        self.take_all(of)
    }

    /// Those of an endpoint that do not wait any more, asked of this at once.
    pub fn ended_of(&mut self, slot: u32, waits: impl Fn(&Receives) -> bool) -> Vec<Receives> {
        let ended = self.all_of(slot).filter(|it| !waits(it));
        let ended = ended.map(|it| it.note).collect();
        self.take_all(ended)
    }

    fn take_all(&mut self, notes: Vec<u16>) -> Vec<Receives> {
        notes.into_iter().filter_map(|it| self.take(it)).collect()
    }

    /// How long this process may sleep.
    pub fn sleep(&self, now: Instant) -> Option<Duration> {
        let until = self.due.first().map(|(until, _)| *until);
        let left = until.map_or(LOOK, |until| until.saturating_duration_since(now));
        (!self.waiting.is_empty()).then(|| left.min(self.pause()))
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// One that waits no more.
    pub fn take(&mut self, note: u16) -> Option<Receives> {
        let receives = self.waiting.remove(&note)?;
        let thread = receives.call.thread;
        self.of.remove(&(receives.slot, note));
        if let Some(until) = receives.until {
            self.due.remove(&(until, note));
        }
        if self.threads.get(&thread) == Some(&note) {
            self.threads.remove(&thread);
        }
        if let Some(count) = self.counts.get_mut(&receives.slot) {
            *count = count.saturating_sub(1);
        }
        if let Some(epoll) = &self.epoll {
            // The description lives on in the program: the set would go on to tell of it.
            let _ = epoll::delete(epoll, &receives.fd);
        }
        Some(receives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::unix::net::UnixDatagram;

    fn call(id: u64) -> Notification {
        Notification {
            id,
            thread: 1,
            number: 0,
            arch: 0,
            arguments: [0; 6],
        }
    }

    fn ready(all: &mut Receivers) -> Vec<u64> {
        let notes = all.ready();
        ids(notes.into_iter().filter_map(|it| all.take(it)).collect())
    }

    fn ids(all: Vec<Receives>) -> Vec<u64> {
        all.iter().map(|it| it.call.id).collect()
    }

    #[test]
    fn each_is_found_once_by_what_came_by_its_time_or_by_its_end() {
        let mut all = Receivers::default();
        let (one, other) = UnixDatagram::pair().unwrap();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let now = Instant::now();
        assert_eq!(all.sleep(now), None);
        let copy = |it: &UnixDatagram| OwnedFd::from(it.try_clone().unwrap());
        let soon = Some(now + Duration::from_millis(5));
        all.wait(7, (1, 1, call(1)), copy(&one), None).unwrap();
        all.wait(7, (1, 2, call(2)), copy(&one), soon).unwrap();
        all.wait(7, (2, 3, call(3)), copy(&quiet), soon).unwrap();
        all.wait(7, (2, 4, call(4)), copy(&quiet), None).unwrap();
        assert!(all.ready().is_empty() && all.overdue(now).is_empty());
        assert_eq!(all.sleep(now), Some(Duration::from_millis(5)));
        other.send(b"x").unwrap();
        // Of who is held nothing comes for now.
        all.hold(7, true).unwrap();
        assert!(all.ready().is_empty());
        all.hold(7, false).unwrap();
        assert_eq!(all.ready().len(), 2);
        let mut came = ready(&mut all);
        came.sort_unstable();
        assert_eq!(came, [1, 2]);
        assert!(all.ready().is_empty(), "nobody waits there any more");
        assert_eq!(ids(all.overdue(now + LOOK)), [3]);
        assert_eq!(all.sleep(now), Some(LOOK));
        assert!(all.ended_of(8, |_| false).is_empty(), "another's");
        assert!(all.ended_of(7, |_| true).is_empty(), "it waits");
        assert_eq!(ids(all.ended(now, |it| it.program == 9)), [4]);
        assert!(all.is_empty());
    }

    #[test]
    fn half_of_all_calls_may_wait_for_datagrams_and_no_endpoint_has_all_of_them() {
        let most = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut all = Receivers::default();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let one = || OwnedFd::from(quiet.try_clone().unwrap());
        let mut note = 0;
        let mut fill = |all: &mut Receivers, slot| {
            let from = note;
            while all.wait(slot, (1, note, call(1)), one(), None) == Ok(()) {
                note += 1;
            }
            (from..note).len()
        };
        assert_eq!(fill(&mut all, 7), MOST / 2);
        assert_eq!(
            [8, 9].map(|slot| fill(&mut all, slot)),
            [MOST / 4, MOST / 8]
        );
        assert_eq!(fill(&mut all, 7), 0);
        // Some at a time, and all of them in about the time that few take.
        let (mut now, mut ended, began) = (Instant::now(), 0, Instant::now());
        while ended < 200 {
            let some = all.ended(now, |it| it.note >= 200).len();
            assert!(some <= SOME && all.ended(now, |_| false).is_empty());
            ended += some;
            now += LOOK / 64;
        }
        assert!(now < began + LOOK, "{:?}", now - began);
        assert!(fill(&mut all, 10) > MOST / 8);
    }

    #[test]
    fn a_call_that_a_signal_ended_has_what_is_left_of_its_limit() {
        let mut all = Receivers::default();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let one = || OwnedFd::from(quiet.try_clone().unwrap());
        let (now, long) = (Instant::now(), Duration::from_secs(9));
        let early = now + Duration::from_secs(1);
        for (before, left) in [
            (Some(early), early),
            // Its time was over just now, or before that.
            (Some(now), now),
            (now.checked_sub(GRACE), now + long),
            (None, now + long),
        ] {
            all.wait(7, (1, 1, call(1)), one(), before).unwrap();
            let ended = all.ended_by(&call(2)).unwrap();
            assert_eq!(ended.left_of(&call(2), Some(now + long), now), Some(left));
            assert_eq!(
                ended.left_of(&call(2), None, now),
                None,
                "it has none any more"
            );
            let other = Notification {
                arguments: [9; 6],
                ..call(2)
            };
            assert_eq!(
                ended.left_of(&other, Some(now + long), now),
                Some(now + long)
            );
        }
    }

    #[test]
    fn a_thread_waits_once_and_as_many_at_a_socket_as_the_kernel_has_ways_for() {
        let mut all = Receivers::default();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let one = || OwnedFd::from(quiet.try_clone().unwrap());
        // As the process's own set has it.
        let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let inner = all.watched().unwrap().try_clone_to_owned().unwrap();
        epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN).unwrap();
        // A signal every time, which nobody tells of.
        for note in 0..600_u16 {
            let again = call(u64::from(note));
            let before = all.ended_by(&again).map(|it| it.note);
            assert_eq!(before, note.checked_sub(1));
            assert_eq!(all.wait(7, (1, note, again), one(), None), Ok(()));
        }
        assert_eq!((all.waiting.len(), all.threads.len()), (1, 1));
        let mut thread = 2;
        let wait = |all: &mut Receivers, thread| {
            let call = Notification { thread, ..call(1) };
            assert!(all.ended_by(&call).is_none());
            let note = 1000 + thread as u16;
            all.wait(7, (1, note, call), one(), None)
        };
        while wait(&mut all, thread).is_ok() {
            thread += 1;
        }
        assert_eq!(thread, 501);
        assert_eq!(wait(&mut all, thread), Err(Errno::NOBUFS));
    }

    /// Each turn of the loop asks who is overdue: of those that wait for ever none is looked at.
    #[test]
    fn who_merely_waits_is_not_gone_through() {
        let mut all = Receivers::default();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let one = || OwnedFd::from(quiet.try_clone().unwrap());
        let now = Instant::now();
        for note in 0..100_u16 {
            let until = (note < 3).then(|| now + LOOK * u32::from(note));
            let call = Notification {
                thread: u32::from(note),
                ..call(u64::from(note))
            };
            let slot = u32::from(note % 2);
            all.wait(slot, (1, note, call), one(), until).unwrap();
        }
        assert_eq!((all.due.len(), all.all_of(1).count()), (3, 50));
        assert_eq!(ids(all.overdue(now + LOOK)), [0, 1]);
        all.take(2);
        assert!(all.due.is_empty());
        let mut asked = std::cell::Cell::new(0);
        let waits = |_: &Receives| {
            asked.set(asked.get() + 1);
            false
        };
        assert_eq!(all.ended_of(1, waits).len(), 49);
        assert_eq!(*asked.get_mut(), 49);
        assert_eq!((all.of.len(), all.gone(1).len()), (48, 48));
        assert!(all.of.is_empty() && all.is_empty());
    }

    #[test]
    fn it_is_asked_at_times_who_waits() {
        let mut all = Receivers::default();
        let (quiet, _kept) = UnixDatagram::pair().unwrap();
        let now = Instant::now();
        all.wait(7, (1, 1, call(1)), quiet.into(), None).unwrap();
        assert!(all.ended(now, |_| true).is_empty());
        assert!(all.ended(now, |_| false).is_empty(), "not so soon");
        assert_eq!(ids(all.ended(now + LOOK, |_| false)), [1]);
    }
}
