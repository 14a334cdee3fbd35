//! The process: what the operator says, and what happens at sockets.

use crate::meter::Metering;
use crate::relay::{Relay as Joined, Turn};
use crate::tcp;
use crate::udp::{self, Datagrams, Say};
use command::Message;
use command::verbs::{
    AddPort, Came, Capture, Convey, EndMetered, Hear, Join, Meter, MeterPage, MeterRates, Metered,
    PORT_METER, PORT_PROXY, Part, Quiet, Quit, Refuse, Relay, Relayed, Serve, Unhear, Unserve,
};
use guard::guard;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use seqpacket::{Fds, Socket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use worker::clock::{monotonic, timespec};

/// Descriptors that no connection, socket or circuit takes, of as many as there may be: what the operator hands over
/// needs some, and is cut off where there is none.
const SPARE: u64 = 64;
/// Connections at most, joined and not.
const MOST: usize = 4096;
/// Those that nobody has joined yet.
const UNJOINED: usize = 512;
/// And they for so long: longer than a connect takes.
const UNJOINED_FOR: Duration = Duration::from_secs(15);
/// What is listened for at most.
const SERVED: usize = 1024;
/// What an operator had listened for goes on for so long for who follows it: longer than one follows another.
const LEFT_FOR: Duration = Duration::from_secs(5);
/// What could not be listened for is tried again after so long.
const AGAIN: Duration = Duration::from_millis(900);
/// Connections of one that are taken in a turn.
const TURN: usize = 64;
/// Events at a time.
const EVENTS: usize = 256;
/// Messages that wait for room at the operator.
const SAID: usize = 1024;

/// What an event is about: the upper half of its number says the kind.
const CONTROL: u64 = 0;
const LINK: u64 = 1 << 56;
const LISTENER: u64 = 2 << 56;
const BEGUN: u64 = 3 << 56;
const JOINED: u64 = 4 << 56;
const METERED: u64 = 5 << 56;
const DATAGRAMS: u64 = 6 << 56;
const KIND: u64 = 0xff << 56;
/// Set in the numbers of connections that came from outside.
const OUTSIDE: u64 = 1 << 63;

/// A connection that waits to be joined.
struct Waits {
    fd: OwnedFd,
    /// Connected; else it is under way.
    ready: bool,
    /// Since when.
    since: Instant,
    /// What the operator was told of one that came from outside, and by which listener that came.
    came: Option<(u64, Came)>,
}

/// Where is listened.
struct Served {
    body: Serve,
    /// For which sockets of programs, several of which may share a place, and how many may wait at each.
    ids: BTreeMap<u64, u32>,
    fd: OwnedFd,
}

impl Served {
    /// As many wait there as may at the one with the most; where the kernel refuses that, as many as before.
    fn settles(&mut self) {
        let most = self.ids.values().copied().max().unwrap_or(0);
        if std::mem::replace(&mut self.body.backlog, most) != most {
            let _ = tcp::listens(&self.fd, most);
        }
    }
}

/// An endpoint's proxy.
pub struct Proxy {
    control: Socket,
    epoll: OwnedFd,
    link: Option<Socket>,
    /// Index of the endpoint's interface.
    interface: u32,
    /// What the link had no room for.
    unsaid: VecDeque<Message>,
    /// What is listened for, by the number of events.
    served: BTreeMap<u64, Served>,
    /// What was for the operator before, and since when: who connects waits there for the next to say the same of one of these sockets.
    left: BTreeMap<u64, Served>,
    left_since: Instant,
    /// What could not be listened for, and when that was tried last.
    unserved: Vec<Serve>,
    tried: Instant,
    waits: BTreeMap<u64, Waits>,
    /// Connections that are begun, by the number of events.
    begun: BTreeMap<u64, u64>,
    joined: BTreeMap<u64, Joined>,
    /// Those that have more to move.
    again: BTreeSet<u64>,
    metering: Metering,
    datagrams: Datagrams,
    next: u64,
    /// Descriptors from this number on are spare.
    spare: u64,
}

impl Proxy {
    /// One that knows nobody but the supervisor, and may have so many descriptors.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(control: Socket, files: u64) -> Result<Proxy, Box<dyn Error>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let proxy = Proxy {
            control,
            epoll,
            link: None,
            interface: 0,
            unsaid: VecDeque::new(),
            served: BTreeMap::new(),
            left: BTreeMap::new(),
            left_since: Instant::now(),
            unserved: Vec::new(),
            tried: Instant::now(),
            waits: BTreeMap::new(),
            begun: BTreeMap::new(),
            joined: BTreeMap::new(),
            again: BTreeSet::new(),
            metering: Metering::default(),
            datagrams: Datagrams::new(Instant::now()),
            next: 1,
            spare: files.min(confine::FILES).saturating_sub(SPARE),
        };
        proxy.watch(&proxy.control, CONTROL, EventFlags::IN)?;
        Ok(proxy)
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let mut events = Vec::with_capacity(EVENTS);
        // Bound: none; this is the process's loop.
        loop {
            events.clear();
            let patience = self.patience(monotonic()).map(timespec);
            self.metering.pulse.sleeps();
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), patience.as_ref());
            self.metering.pulse.wakes();
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            self.flush();
            for event in &events {
                let data = event.data.u64();
                let number = data & !KIND;
                match data & KIND {
                    CONTROL if !self.obey()? => return Ok(()),
                    CONTROL => {}
                    // A capture that began before a circuit did shows it from its beginning.
                    LINK if !self.obey()? => return Ok(()),
                    LINK => self.hear()?,
                    LISTENER => self.meet(number),
                    BEGUN => self.begun(number),
                    METERED => self.metering.stirred(number),
                    DATAGRAMS => self.datagrams.stirred(number, Instant::now()),
                    _ => self.turn(number),
                }
            }
            for number in std::mem::take(&mut self.again) {
                self.turn(number);
            }
            self.metering.turn(monotonic());
            self.forget(Instant::now());
            self.say_of_datagrams();
        }
    }

    /// How long it may sleep, ns; `None`: until something happens.
    fn patience(&self, now: u64) -> Option<u64> {
        let own = match (self.again.is_empty(), self.unsaid.is_empty()) {
            (false, _) => Some(0),
            (true, false) => Some(5_000_000),
            (true, true) => match (
                self.waits.is_empty() && self.left.is_empty() && self.unserved.is_empty(),
                self.datagrams.waits(),
            ) {
                (true, (false, false)) => None,
                (true, (false, true)) => Some(10_000_000_000),
                _ => Some(1_000_000_000),
            },
        };
        let metering = self.metering.due().map(|due| due.saturating_sub(now));
        own.into_iter().chain(metering).min()
    }

    fn watch(&self, fd: impl AsFd, data: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(data), flags)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What the supervisor says; `false`: the end.
    fn obey(&mut self) -> Result<bool, Box<dyn Error>> {
        loop {
            match self.control.recv() {
                Ok(None) => return Ok(true),
                Ok(Some((message, _))) if message.body::<Quit>().is_some() => return Ok(false),
                Ok(Some((message, fds))) => {
                    if let Some(body) = message.body::<Capture>() {
                        self.metering.captures.ask(&body, fds);
                        continue;
                    }
                    let mut fds = fds.into_iter();
                    let Some(fd) = fds.next() else {
                        continue;
                    };
                    if let Some(Meter { slots, .. }) = message.body::<Meter>() {
                        // Of a compartment, whose tenants may be several.
                        confine::raise_branch_barrier()?;
                        self.metering.counts.use_counters(&fd, slots)?;
                        if let Some(page) = fds.next() {
                            self.metering.pulse.use_page(&page)?;
                        }
                    } else if let Some(port) = message.body::<AddPort>()
                        && [PORT_PROXY, PORT_METER].contains(&port.kind)
                    {
                        self.begin_link(Socket::from_fd(fd), port.max_record)?;
                    }
                }
                Err(seqpacket::Error::Closed) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Another operator: what the one before asked for and has not got is over. Joined
    /// connections go on, and who comes waits for it.
    fn begin_link(&mut self, link: Socket, interface: u32) -> Result<(), Errno> {
        // What it gave before it died is here: circuits' ends, which nobody else has.
        if guard!("proxy-last-words")
            && let Err(error) = self.hear()
        {
            confine::say!("bulkhead-proxy: what an operator said last is lost: {error}");
        }
        self.end_link();
        self.watch(&link, LINK, EventFlags::IN)?;
        self.link = Some(link);
        if std::mem::replace(&mut self.interface, interface) != interface {
            self.leave_all();
        }
        Ok(())
    }

    fn end_link(&mut self) {
        if self.link.take().is_some() {
            self.left_since = Instant::now();
        }
        self.unsaid.clear();
        self.unserved.clear();
        for served in self.served.values() {
            let _ = epoll::delete(&self.epoll, &served.fd);
        }
        self.left.append(&mut self.served);
        self.begun.clear();
        let unwatch = |fd: BorrowedFd<'_>| {
            let _ = epoll::delete(&self.epoll, fd);
        };
        self.datagrams.clear(Instant::now(), unwatch);
        self.reset(|waits| waits.came.is_none());
    }

    /// Connections that nobody has joined end.
    fn reset(&mut self, is_one: impl Fn(&Waits) -> bool) {
        for (_, waits) in self.waits.extract_if(.., |_, waits| is_one(waits)) {
            tcp::resets(&waits.fd);
        }
    }

    /// All that was for the operator before.
    fn leave_all(&mut self) {
        self.leave(|_| true);
        self.datagrams.leave();
    }

    /// What the operator before had listened for, of which this is so, is over, with who came there.
    fn leave(&mut self, is_one: impl Fn(&Served) -> bool) {
        let gone = self.left.extract_if(.., |_, it| is_one(it));
        let gone: BTreeMap<u64, Served> = gone.collect();
        self.reset(|waits| waits.came.is_some_and(|(by, _)| gone.contains_key(&by)));
    }

    /// What the operator says.
    ///
    /// # Errors
    /// It is no word of an operator's. A link is made for a process that begins, so this one is to end.
    fn hear(&mut self) -> Result<(), seqpacket::Error> {
        // Bound: what it has sent, which the socket limits.
        while let Some(link) = &self.link {
            match link.recv() {
                Ok(None) => break,
                Ok(Some((message, fds))) => self.take(&message, fds),
                Err(seqpacket::Error::Closed) => self.end_link(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, message: &Message, fds: Fds) {
        if let Some(body) = message.body::<Relay>() {
            if let Err(errno) = self.begin(&body) {
                self.relayed(body.id, Err(errno));
            }
        } else if let Some(Join { id }) = message.body::<Join>() {
            let waits = self.waits.remove(&id).filter(|waits| waits.ready);
            // Whose other end is closed knows that it came to nothing.
            if let (Some(waits), Some(circuit)) = (waits, fds.into_iter().next()) {
                self.join(waits.fd, circuit);
            }
        } else if let Some(Refuse { id }) = message.body::<Refuse>() {
            if let Some(waits) = self.waits.remove(&id) {
                tcp::resets(&waits.fd);
            }
        } else if let Some(body) = message.body::<Serve>() {
            self.serve(&body);
        } else if let Some(Unserve { id }) = message.body::<Unserve>() {
            self.ends(id, |_| true);
            self.unserved.retain(|it| it.id != id);
        } else if message.body::<command::verbs::Served>().is_some() {
            self.leave(|_| guard!("proxy-told-all"));
        } else if let Some(body) = message.body::<Hear>() {
            self.hear_at(tcp::address(body.ip, body.port), body.id);
        } else if let Some(body) = message.body::<Unhear>() {
            let at = tcp::address(body.ip, body.port);
            self.datagrams.unhear(&at, body.id);
        } else if let Some(body) = message.body::<Convey>() {
            match fds.into_iter().next() {
                Some(far) => self.convey(&body, far),
                None => self.datagrams.point(&body, Instant::now()),
            }
        } else if let Some(Part { id }) = message.body::<Part>() {
            self.datagrams.part(id, Instant::now());
        } else {
            self.meter(message, fds);
        }
    }

    fn hear_at(&mut self, at: SocketAddr, id: u64) {
        let number = self.number();
        let heard = self.datagrams.hear(at, number, (self.interface, id));
        let heard = heard.and_then(|fd| match fd {
            Some(fd) if !has_room(fd, self.spare) => Err(Errno::NFILE),
            Some(fd) => {
                let data = EventData::new_u64(DATAGRAMS | number);
                epoll::add(&self.epoll, fd, data, EventFlags::IN)
            }
            None => Ok(()),
        });
        if let Err(errno) = heard {
            self.datagrams.closes(&at);
            confine::say!("bulkhead-proxy: cannot hear datagrams at {at}: {errno}");
        }
    }

    fn convey(&mut self, body: &Convey, far: OwnedFd) {
        let (number, now) = (self.number(), Instant::now());
        if !has_room(&far, self.spare) {
            return;
        }
        let data = EventData::new_u64(DATAGRAMS | number);
        let conveyed = self.datagrams.convey(body, far, number, now);
        if conveyed
            .and_then(|far| epoll::add(&self.epoll, far, data, EventFlags::IN))
            .is_err()
        {
            self.datagrams.part(body.id, now);
        }
    }

    fn say_of_datagrams(&mut self) {
        self.datagrams.forget(Instant::now());
        for say in self.datagrams.says() {
            let quiet = |id, ended| Quiet {
                id,
                ended,
                reserved: 0,
            };
            self.say(match say {
                Say::Heard(pair) => Message::new(0, &udp::heard(pair)),
                Say::Ended(id) => Message::new(0, &quiet(id, 1)),
                Say::Quiet(id) => Message::new(0, &quiet(id, 0)),
            });
        }
    }

    /// What is said to a meter.
    fn meter(&mut self, message: &Message, fds: Fds) {
        let mut fds = fds.into_iter();
        if let Some(body) = message.body::<Metered>() {
            if let (Some(one), Some(other)) = (fds.next(), fds.next()) {
                self.carry(&body, [one, other]);
            }
        } else if let Some(EndMetered { id }) = message.body::<EndMetered>() {
            self.metering.end(id);
        } else if let Some(body) = message.body::<MeterRates>() {
            self.metering.rates(&body, monotonic());
        } else if let (Some(_), Some(page)) = (message.body::<MeterPage>(), fds.next()) {
            self.metering.use_page(&page);
        }
    }

    /// A circuit that is not carried is closed, at both its ends.
    fn carry(&mut self, body: &Metered, ends: [OwnedFd; 2]) {
        let is_one = |end: &OwnedFd| is_nonblocking(end) && has_room(end, self.spare);
        if self.is_full() || !ends.iter().all(is_one) {
            return;
        }
        let number = self.number();
        let joined = self.metering.join(number, body, ends, monotonic());
        let any = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = |end| epoll::add(&self.epoll, end, EventData::new_u64(METERED | number), any);
        let watched = joined.and_then(|()| self.metering.ends(number).try_for_each(watched));
        // What was free below may have gone to its ends alone.
        let has_room = self
            .metering
            .pipes(number)
            .all(|end| has_room(end, self.spare));
        if watched.is_err() || !has_room {
            self.metering.end(body.id);
        }
    }

    /// Connections that nobody has joined in time are over: whoever was told of them has lost
    /// the word, or the mind.
    fn forget(&mut self, now: Instant) {
        self.reset(|waits| now.saturating_duration_since(waits.since) > UNJOINED_FOR);
        if now.saturating_duration_since(self.left_since) > LEFT_FOR {
            self.leave_all();
        }
        if !self.unserved.is_empty() && now.saturating_duration_since(self.tried) > AGAIN {
            self.tried = now;
            let unserved = std::mem::take(&mut self.unserved);
            let still = unserved
                .into_iter()
                .filter(|body| !self.joins_others(body) && self.try_serve(body, None).is_err());
            self.unserved = still.collect();
        }
        let waits = &self.waits;
        self.begun.retain(|_, id| waits.contains_key(id));
    }

    fn is_full(&self) -> bool {
        let all = self.waits.len() + self.joined.len() + self.metering.len();
        (all >= MOST || self.waits.len() >= UNJOINED) && guard!("proxy-connections")
    }

    fn begin(&mut self, body: &Relay) -> Result<(), Errno> {
        if self.is_full() || body.id & OUTSIDE != 0 {
            return Err(Errno::NFILE);
        }
        let from = tcp::address(body.from, body.from_port);
        let to = tcp::address(body.to, body.to_port);
        let fd = tcp::begin(&from, &to, self.interface)?;
        if !has_room(&fd, self.spare) {
            return Err(Errno::NFILE);
        }
        let number = self.number();
        self.watch(&fd, BEGUN | number, EventFlags::OUT | EventFlags::ET)?;
        self.begun.insert(number, body.id);
        let waits = Waits {
            fd,
            ready: false,
            since: Instant::now(),
            came: None,
        };
        self.waits.insert(body.id, waits);
        Ok(())
    }

    /// A connect is over.
    fn begun(&mut self, number: u64) {
        let Some(id) = self.begun.get(&number).copied() else {
            return;
        };
        let Some(waits) = self.waits.get_mut(&id).filter(|waits| !waits.ready) else {
            return;
        };
        let outcome = tcp::begun(&waits.fd);
        waits.ready = outcome.is_ok();
        // What happens to it from now on is seen by whoever has it.
        let _ = epoll::delete(&self.epoll, &waits.fd);
        self.begun.remove(&number);
        if outcome.is_err() {
            self.waits.remove(&id);
        }
        self.relayed(id, outcome);
    }

    fn relayed(&mut self, id: u64, outcome: Result<(), Errno>) {
        let errno = outcome.err();
        self.say(Message::new(
            0,
            &Relayed {
                id,
                errno: errno.map_or(0, |errno| errno.raw_os_error().unsigned_abs()),
                reserved: 0,
            },
        ));
    }

    fn serve(&mut self, body: &Serve) {
        self.ends(body.id, |it| !is_place_of(body, it));
        self.unserved.retain(|it| it.id != body.id);
        if self.joins_others(body) {
            return;
        }
        let is_left = |it: &Served| is_place_of(body, &it.body) && it.ids.contains_key(&body.id);
        let left = self.left.extract_if(.., |_, it| is_left(it)).next();
        let left = left.filter(|_| guard!("proxy-listens-on"));
        // What is another's by now would have some of those who come.
        self.leave(|it| is_place_of(body, &it.body));
        let number = left.as_ref().map(|(number, _)| *number);
        if let Err(errno) = self.try_serve(body, left) {
            let at = tcp::address(body.ip, body.port);
            confine::say!("bulkhead-proxy: cannot listen at {at}: {errno}");
            // A program of the namespace's own may have it, for now.
            if self.unserved.len() < SERVED && guard!("proxy-serves-later") {
                self.unserved.push(*body);
            }
        } else if let Some(number) = number {
            // The operator before was told, and did not say what becomes of them.
            let came = self.waits.values().filter_map(|waits| waits.came);
            let came = came.filter(|(by, _)| *by == number);
            let came: Vec<Came> = came
                .map(|(_, came)| Came {
                    at: body.id,
                    ..came
                })
                .collect();
            for came in came {
                self.say(Message::new(0, &came));
            }
        }
    }

    /// Whether others share its place, for which this listens already.
    fn joins_others(&mut self, body: &Serve) -> bool {
        let mut served = self.served.values_mut();
        let same = served.find(|it| is_place_of(body, &it.body) && guard!("proxy-goes-on-for"));
        let joined = same.map(|it| {
            it.ids.insert(body.id, body.backlog);
            it.settles();
        });
        joined.is_some()
    }

    /// A socket listens no more where this is so; where none does nothing is listened for.
    fn ends(&mut self, id: u64, is_one: impl Fn(&Serve) -> bool) {
        self.served.retain(|_, it| {
            let ends = is_one(&it.body) && it.ids.remove(&id).is_some();
            let is_over = ends && it.ids.is_empty();
            if ends && !is_over {
                it.settles();
            }
            !is_over
        });
    }

    fn try_serve(&mut self, body: &Serve, left: Option<(u64, Served)>) -> Result<(), Errno> {
        if self.served.len() >= SERVED {
            return Err(Errno::NFILE);
        }
        let at = tcp::address(body.ip, body.port);
        let (number, mut served) = match left {
            Some(left) => left,
            None => {
                let fd = tcp::serve(&at, body.backlog, body.only6 != 0, self.interface)?;
                let (body, ids) = (*body, BTreeMap::new());
                (self.number(), Served { body, ids, fd })
            }
        };
        if !has_room(&served.fd, self.spare) {
            return Err(Errno::NFILE);
        }
        // Whoever else shared the place is said by this operator too, or gone.
        served.ids = BTreeMap::from([(body.id, body.backlog)]);
        served.settles();
        self.watch(&served.fd, LISTENER | number, EventFlags::IN)?;
        self.served.insert(number, served);
        Ok(())
    }

    /// Somebody connects to a program.
    fn meet(&mut self, number: u64) {
        for _ in 0..TURN {
            let Some(Served { ids, fd, .. }) = self.served.get(&number) else {
                return;
            };
            let first = ids.first_key_value().map(|(id, _)| *id);
            let (Some(at), Ok((fd, from, to))) = (first, tcp::accept(fd)) else {
                return;
            };
            if self.is_full() || !has_room(&fd, self.spare) {
                tcp::resets(&fd);
                continue;
            }
            let id = OUTSIDE | self.number();
            let ((from, from_port), (to, to_port)) = (tcp::numbers(from), tcp::numbers(to));
            let came = Came {
                id,
                at,
                from,
                to,
                from_port,
                to_port,
            };
            let waits = Waits {
                fd,
                ready: true,
                since: Instant::now(),
                came: Some((number, came)),
            };
            self.waits.insert(id, waits);
            self.say(Message::new(0, &came));
        }
    }

    fn join(&mut self, tcp: OwnedFd, circuit: OwnedFd) {
        // One that blocks would have all others wait.
        if !is_nonblocking(&circuit) || !has_room(&circuit, self.spare) {
            return tcp::resets(&tcp);
        }
        let Ok(joined) = Joined::new(tcp, circuit) else {
            return;
        };
        if !joined.pipes().iter().all(|end| has_room(end, self.spare)) {
            return joined.refuse();
        }
        let number = self.number();
        let any = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        for end in joined.ends() {
            if self.watch(end, JOINED | number, any).is_err() {
                return;
            }
        }
        self.joined.insert(number, joined);
        self.again.insert(number);
    }

    fn turn(&mut self, number: u64) {
        match self.joined.get_mut(&number).map(Joined::turn) {
            Some(Turn::More) => {
                self.again.insert(number);
            }
            Some(Turn::Over) => {
                self.joined.remove(&number);
            }
            Some(Turn::Waits) | None => {}
        }
    }

    /// Tells the operator; never waits for it.
    fn say(&mut self, message: Message) {
        if self.unsaid.len() < SAID {
            self.unsaid.push_back(message);
        }
        self.flush();
    }

    fn flush(&mut self) {
        let Some(link) = &self.link else {
            return self.unsaid.clear();
        };
        while let Some(message) = self.unsaid.front() {
            match link.send(message, &[]) {
                Err(seqpacket::Error::Full) => return,
                _ => self.unsaid.pop_front(),
            };
        }
    }
}

fn is_place_of(one: &Serve, other: &Serve) -> bool {
    let place = |it: &Serve| (it.ip, it.port, it.only6);
    place(one) == place(other)
}

/// Whether this descriptor, the newest, leaves the spare ones alone: the kernel gives the lowest number that is free.
fn has_room(newest: impl AsFd, spare: u64) -> bool {
    let number = newest.as_fd().as_raw_fd().unsigned_abs();
    u64::from(number) < spare || !guard!("proxy-descriptors")
}

fn is_nonblocking(fd: &OwnedFd) -> bool {
    fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests;
