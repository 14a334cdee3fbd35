//! The process: the supervisor, who starts programs, and programs' calls.

use crate::mediate::Mediator;
use crate::runtimes::{Runtimes, Said};
use crate::turns::{Spending, Spent, Turns};
use command::Message;
use command::verbs::{
    AddCrossing, AddPort, CIRCUITS_ADDRESSES, CONTAINER_BUSY, CONTAINER_PROGRAMS, Capture,
    Circuits, ContainerRefused, CutCircuit, Done, EndCrossing, Found, ListFlows, Mediate, OTHERS,
    Operate, PORT_CIRCUITS, PORT_METER, PORT_PROXY, PROGRAM_NUMBERS, Program, ProgramGone,
    ProgramLimit, Quit, RemovePort, Running, Share, Sought, UseImage, WantMeter,
};
use guard::guard;
use notify::{Listener, Sizes};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use seqpacket::{Fds, Socket};
use shm::Words;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Programs at most: a call costs no more where there are many.
const PROGRAMS: usize = 4096;
/// So long a change of tables waits for what is to be cut to be found.
const CUTS: Duration = Duration::from_secs(4);
/// Words of the supervisor's that are heard in a turn.
const SAYINGS: usize = 64;
/// What it does not take now it is told again after so long.
const UNSAID: Duration = Duration::from_millis(1);
/// Who starts a program and has not said which, at most.
const ANNOUNCED: usize = 64;
/// Programs that are looked at beside the set.
const NEAR: usize = 16;
/// Of an endpoint of which more calls wait none is.
const CROWD: usize = 32;
/// Sockets that an endpoint's programs may make, and connections that they may begin or accept, a
/// second, where the spec says nothing: about as many as there can be.
const SETUPS: u32 = 50_000;
/// So long an endpoint waits at most for what its calls took.
const PAUSED_MOST: Duration = Duration::from_secs(30);
/// Events at a time.
const EVENTS: usize = 64;

/// What an event is about: the upper half of its number says the kind.
const CONTROL: u64 = 0;
const SLOT: u64 = 1 << 32;
const ANNOUNCE: u64 = 2 << 32;
const PROGRAM: u64 = 3 << 32;
const PROXY: u64 = 4 << 32;
const DATAGRAM: u64 = 5 << 32;
const METER: u64 = 6 << 32;
const RUNTIMES: u64 = 7 << 32;
const RUNTIME: u64 = 8 << 32;
const CROSSING: u64 = 9 << 32;
const DOOR: u64 = 10 << 32;

/// A compartment's operator.
pub struct Operator {
    control: Socket,
    sizes: Sizes,
    epoll: Option<OwnedFd>,
    uid: u32,
    /// Where programs of a slot's endpoint are announced.
    slots: BTreeMap<u32, seqpacket::Listener>,
    announced: BTreeMap<u32, (u32, Socket)>,
    /// The supervisor has told of all endpoints that have circuits: what of others was is cut.
    is_told: bool,
    /// Where container runtimes come, and who has come.
    runtimes: Runtimes,
    next: u32,
    programs: BTreeMap<u32, (u32, Listener)>,
    /// As many as may be.
    most: usize,
    /// Programs that are looked at beside the set, not by it: see [`Operator::wait`].
    near: VecDeque<u32>,
    mediator: Mediator,
    /// It was said that a meter is wanted.
    wants_meter: bool,
    /// Of the image that it decides by.
    image: Option<u64>,
    /// Since when circuits are cut that it does not allow, and whether it was said that this lasts.
    cutting: Option<Instant>,
    is_late: bool,
    /// What the supervisor has not taken yet.
    unsaid: VecDeque<Message>,
    turns: Turns,
    /// Endpoints that have begun too much, or had this process wait, until then: their programs' calls wait in the kernel.
    paused: BTreeMap<u32, Instant>,
}

impl Operator {
    /// One that knows nobody but the supervisor.
    pub fn new(control: Socket, sizes: Sizes, files: u64) -> Operator {
        let mut mediator = Mediator::default();
        mediator.has_files(files);
        Operator {
            control,
            sizes,
            epoll: None,
            uid: 0,
            slots: BTreeMap::new(),
            announced: BTreeMap::new(),
            is_told: false,
            runtimes: Runtimes::default(),
            next: 1,
            programs: BTreeMap::new(),
            most: PROGRAMS,
            near: VecDeque::with_capacity(NEAR),
            mediator,
            wants_meter: false,
            image: None,
            cutting: None,
            is_late: false,
            unsaid: VecDeque::new(),
            turns: Turns::default(),
            paused: BTreeMap::new(),
        }
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        self.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let control = self.control.as_fd().try_clone_to_owned()?;
        self.watch(&control, CONTROL)?;
        let came = self.mediator.receivers()?.try_clone_to_owned()?;
        self.watch(&came, DATAGRAM)?;
        let mut events = Vec::with_capacity(EVENTS);
        // Bound: none; this is the process's loop.
        loop {
            events.clear();
            self.mediator.sleeps();
            let looked = self.wait(&mut events)?;
            self.mediator.wakes();
            self.end_pauses()?;
            let of_set = events.iter().filter_map(|event: &epoll::Event| {
                let (data, flags) = (event.data.u64(), event.flags);
                let number = (data >> 32 << 32 == PROGRAM).then_some(data as u32)?;
                Some((number, flags.contains(EventFlags::IN)))
            });
            let programs: Vec<(u32, bool)> = looked.into_iter().flatten().chain(of_set).collect();
            let calling = programs
                .iter()
                .filter_map(|(number, _)| self.programs.get(number));
            let most = self.turns.most(calling.map(|(slot, _)| *slot));
            for (number, calls) in programs {
                self.serve(number, calls, most)?;
            }
            for event in &events {
                let data = event.data.u64();
                let (kind, number) = (data >> 32 << 32, data as u32);
                match kind {
                    CONTROL if !self.obey()? => return Ok(()),
                    CONTROL => {}
                    SLOT => self.meet(number),
                    ANNOUNCE => self.hear(number),
                    RUNTIMES => self.meet_runtime(number)?,
                    RUNTIME => self.hear_runtime(number)?,
                    PROXY => self.hear_proxy(number),
                    DATAGRAM => self.receive(),
                    METER => self.hear_meter(),
                    CROSSING => self.hear_crossing(number as u16),
                    DOOR => self.comes_in(number as u16),
                    // Served already.
                    _ => {}
                }
            }
            self.mediator.link_late();
            if self.mediator.cuts_found() {
                self.seeks_again()?;
            } else if self.mediator.is_to_seek() {
                self.seeks()?;
            }
            let is_over = |since: Instant| since.elapsed() >= CUTS;
            if self.cutting.is_some_and(is_over) && !self.is_late {
                self.says_late()?;
            }
            // Who asks is told of nothing in time where much is not said yet.
            let asks = self.mediator.asks_memory().into_iter();
            for body in asks.filter(|_| self.unsaid.is_empty()).collect::<Vec<_>>() {
                self.say(&body)?;
            }
            self.flush()?;
            let programs = &self.programs;
            self.mediator
                .receivers_tick(&|number| programs.get(&number).map(|(slot, it)| (*slot, it)));
            self.mediator
                .meter_tick(&|number| programs.get(&number).map(|(slot, it)| (*slot, it)));
            // It may have ended all that was left to be cut.
            if self.cutting.is_some() && !self.mediator.hunts() {
                self.says_what_decides()?;
            }
            for spent in self.mediator.spent() {
                self.charge(&spent)?;
            }
        }
    }

    /// Waits for what the set has, and for calls of the programs that called last; which of these
    /// are to be looked at, and whether they have calls.
    ///
    /// The kernel wakes who waits at a listener on the caller's own processor
    /// (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP), and who waits at a set wherever it ran
    /// last, if nothing runs there: a sleeping processor's wake-up is several times what a call
    /// takes. poll(2) hands the kernel's word on, epoll(7) does not. But it asks each of them every time, for which the kernel
    /// goes through all calls that wait there; the set asks who has called.
    fn wait(&self, events: &mut Vec<epoll::Event>) -> Result<[Option<(u32, bool)>; NEAR], Errno> {
        let epoll = self.epoll.as_ref().ok_or(Errno::BADF)?;
        let sleep = self.sleep();
        let near = self.near.iter().filter_map(|number| {
            let (_, listener) = self.programs.get(number)?;
            Some((*number, listener))
        });
        let mut looked = [None; NEAR];
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(NEAR + 1);
        fds.push(PollFd::new(epoll, PollFlags::IN));
        fds.extend(near.clone().map(|(_, it)| PollFd::new(it, PollFlags::IN)));
        match poll(&mut fds, sleep.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut fds = fds.iter();
        if fds.next().is_some_and(|set| !set.revents().is_empty()) {
            epoll::wait(epoll, spare_capacity(events), Some(&Timespec::default()))?;
        }
        for ((place, (number, _)), fd) in looked.iter_mut().zip(near).zip(fds) {
            let came = fd.revents();
            *place = (!came.is_empty()).then(|| (number, came.contains(PollFlags::IN)));
        }
        Ok(looked)
    }

    /// Looks at a program that called beside the set from now on, instead of the one that came
    /// first of those.
    fn draw_near(&mut self, number: u32) -> Result<(), Errno> {
        if self.near.contains(&number) {
            return Ok(());
        }
        let listener = |of: u32| self.programs.get(&of).map(|(_, listener)| listener);
        if self.near.len() == NEAR
            && let Some(first) = self.near.pop_front()
            && let Some(listener) = listener(first)
        {
            self.watch(listener, PROGRAM | u64::from(first))?;
        }
        if let Some(listener) = listener(number) {
            self.unwatch(listener);
            self.near.push_back(number);
        }
        Ok(())
    }

    /// Where to look at a program that has called, of whose endpoint so many calls have no answer.
    fn looks_at(&mut self, number: u32, unanswered: usize) -> Result<(), Errno> {
        match unanswered > CROWD && guard!("circuits-crowd") {
            true => self.step_back(number),
            false => self.draw_near(number),
        }
    }

    /// Looks at a program by the set alone.
    fn step_back(&mut self, number: u32) -> Result<(), Errno> {
        let Some(at) = self.near.iter().position(|near| *near == number) else {
            return Ok(());
        };
        self.near.remove(at);
        match self.programs.get(&number) {
            Some((_, listener)) => self.watch(listener, PROGRAM | u64::from(number)),
            None => Ok(()),
        }
    }

    /// Looks at a program no more, neither by the set nor beside it.
    fn look_away(&mut self, number: u32) {
        match self.near.iter().position(|near| *near == number) {
            Some(at) => drop(self.near.remove(at)),
            None => {
                if let Some((_, listener)) = self.programs.get(&number) {
                    self.unwatch(listener);
                }
            }
        }
    }

    fn watch(&self, fd: impl AsFd, data: u64) -> Result<(), Errno> {
        let epoll = self.epoll.as_ref().ok_or(Errno::BADF)?;
        epoll::add(epoll, fd, EventData::new_u64(data), EventFlags::IN)
    }

    fn unwatch(&self, fd: impl AsFd) {
        if let Some(epoll) = &self.epoll {
            // The description lives on with who else has it: the set would go on to tell of it.
            let _ = epoll::delete(epoll, fd);
        }
    }

    /// What a proxy says.
    fn hear_proxy(&mut self, slot: u32) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        if self.mediator.hear_proxy(slot, &find).is_err() {
            self.drop_proxy(slot);
        }
    }

    fn drop_proxy(&mut self, slot: u32) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        if let Some(link) = self.mediator.unlink_proxy(slot, &find) {
            self.unwatch(&link);
        }
    }

    /// A meter says nothing: it is gone.
    fn hear_meter(&mut self) {
        if self.mediator.meter_is_gone() {
            self.drop_meter();
        }
    }

    fn drop_meter(&mut self) {
        if let Some(link) = self.mediator.unlink_meter() {
            self.unwatch(&link);
        }
    }

    /// Who starts a program in this endpoint connects, and is told what it is to be like.
    fn meet(&mut self, slot: u32) {
        let Some(listener) = self.slots.get(&slot) else {
            return;
        };
        let Ok(Some(socket)) = listener.accept() else {
            return;
        };
        if self.announced.len() >= ANNOUNCED {
            // Who waits longest is who never said what it starts.
            self.announced.pop_first();
        }
        let mut circuits = Circuits {
            uid: self.uid,
            ..Circuits::default()
        };
        for (place, address) in circuits
            .addresses
            .iter_mut()
            .zip(self.mediator.addresses(slot))
        {
            *place = address;
            circuits.count += 1;
        }
        debug_assert!(circuits.count as usize <= CIRCUITS_ADDRESSES);
        let number = self.number();
        if socket.send(&Message::new(0, &circuits), &[]).is_ok()
            && self.watch(&socket, ANNOUNCE | u64::from(number)).is_ok()
        {
            self.announced.insert(number, (slot, socket));
        }
    }

    /// The number of a program that comes. Noted first: who follows gives it to no other, whether the
    /// supervisor heard of it or not, for calls of it may be noted.
    fn number(&mut self) -> u32 {
        let is_free = |it: &u32| !self.programs.contains_key(it);
        // An operator before this one may have noted anything, and where they end they begin anew.
        let mut all = (self.next..PROGRAM_NUMBERS).chain(1..PROGRAM_NUMBERS);
        let number = all.find(is_free).unwrap_or(PROGRAM_NUMBERS);
        self.next = number + 1;
        if guard!("operator-numbers") {
            self.mediator.has_next_program(self.next);
        }
        number
    }

    /// It hands over where the program's calls come.
    fn hear(&mut self, number: u32) {
        let Some((slot, socket)) = self.announced.remove(&number) else {
            return;
        };
        let Ok(Some((message, fds))) = socket.recv() else {
            return;
        };
        let fd = fds.into_iter().next();
        let (Some(_), Some(fd)) = (message.body::<Mediate>(), fd) else {
            return;
        };
        let done = self.adopt(slot, number, fd);
        let answer = Done {
            errno: done
                .err()
                .map_or(0, |errno| errno.raw_os_error().unsigned_abs()),
            ..Done::default()
        };
        let _ = socket.send(&Message::new(0, &answer), &[]);
    }

    /// A container runtime connects: what it says comes by another event.
    fn meet_runtime(&mut self, slot: u32) -> Result<(), seqpacket::Error> {
        let number = self.number();
        match self.runtimes.meet(slot) {
            Ok(Some(socket)) if self.watch(&socket, RUNTIME | u64::from(number)).is_ok() => {
                self.runtimes.met(number, slot, socket);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(why) => self.refuses(slot, why),
        }
    }

    /// It hands over where a container's calls come, and waits for no answer.
    fn hear_runtime(&mut self, number: u32) -> Result<(), seqpacket::Error> {
        match self.runtimes.hear(number) {
            Said::More | Said::Over => Ok(()),
            Said::Container { slot, listener } => match self.adopt(slot, number, listener) {
                Ok(()) => Ok(()),
                Err(Errno::NOMEM) => self.refuses(slot, CONTAINER_PROGRAMS),
                Err(errno) => {
                    confine::say!("bulkhead-operator: a container is not taken: {errno}");
                    self.refuses(slot, CONTAINER_BUSY)
                }
            },
            Said::Refused { slot, why } => self.refuses(slot, why),
        }
    }

    fn adopt(&mut self, slot: u32, number: u32, fd: OwnedFd) -> Result<(), Errno> {
        if self.programs.len() >= self.most && guard!("circuits-programs") {
            return Err(Errno::NOMEM);
        }
        let port = self.slots.get(&slot).map_or(0, number_of);
        let told = Message::new(0, &Program { slot, number, port });
        let full = |error| match error {
            seqpacket::Error::Full => Errno::AGAIN,
            _ => Errno::PIPE,
        };
        // Behind what was said before: of a program that is gone, by which there is room for this one.
        self.flush().map_err(full)?;
        if !self.unsaid.is_empty() {
            return Err(Errno::AGAIN);
        }
        // First kept: nobody's call is lost with this process.
        self.control.send(&told, &[fd.as_fd()]).map_err(full)?;
        self.add(slot, number, fd).inspect_err(|_| {
            let gone = ProgramGone {
                number,
                reserved: 0,
            };
            let _ = self.say(&gone);
        })
    }

    fn add(&mut self, slot: u32, number: u32, fd: OwnedFd) -> Result<(), Errno> {
        let listener = Listener::new(fd, self.sizes);
        listener.set_flags();
        // Of an endpoint that waits all are looked at when that is over.
        if !self.paused.contains_key(&slot) {
            self.watch(&listener, PROGRAM | u64::from(number))?;
        }
        self.programs.insert(number, (slot, listener));
        Ok(())
    }

    /// A call of a program, and those of others that go on by it.
    fn serve(&mut self, number: u32, calls: bool, most: Duration) -> Result<(), Box<dyn Error>> {
        if !calls {
            // Nobody is under its filter any more.
            self.forget(number);
            let gone = ProgramGone {
                number,
                reserved: 0,
            };
            return Ok(self.say(&gone)?);
        }
        let programs = &self.programs;
        let Some((slot, listener)) = programs.get(&number) else {
            return Ok(());
        };
        let slot = *slot;
        if !self.turns.has_turn(slot, most) || self.paused.contains_key(&slot) {
            return Ok(());
        }
        let spending = Spending::begins();
        // The kernel counts calls that it has told of, also those that ended since: of one that
        // is not there any more it says so, and this does not wait.
        let next = self.mediator.next(slot, number, listener)?;
        let is_done = next.is_some();
        if let Some(call) = next {
            self.mediator
                .mediate(slot, number, call, listener, &|number| {
                    programs.get(&number).map(|(slot, it)| (*slot, it))
                });
        }
        let others = self.mediator.spent();
        let mut own = spending.ends(slot, &others);
        own.sweeping = self.mediator.swept();
        // Also of a call that is refused, which takes its time: who is not charged for that has its
        // turn for ever.
        if !is_done {
            if guard!("circuits-refused-turns") {
                self.charge(&own)?;
            }
            return Ok(());
        }
        let now = Instant::now();
        self.turns.called(slot, now);
        self.looks_at(number, self.mediator.unanswered(slot))?;
        for spent in others.iter().chain([&own]) {
            self.charge(spent)?;
        }
        for slot in self.mediator.begun() {
            if let Some(until) = self.turns.begins(slot, now) {
                self.pause(slot, until);
            }
        }
        Ok(())
    }

    /// Something was done for an endpoint.
    fn charge(&mut self, spent: &Spent) -> Result<(), Errno> {
        self.turns.took(spent.slot, spent.time);
        let now = Instant::now();
        if let Some(pause) = self.turns.pause(spent, now) {
            // Several times: one after the other, but not for ever.
            let before = self.paused.get(&spent.slot).copied();
            let until = before.map_or(now, |it| it.max(now)) + pause;
            self.pause(spent.slot, until.min(now + PAUSED_MOST));
            self.mediator.holds(spent.slot, true)?;
        }
        Ok(())
    }

    /// How long this process may sleep.
    fn sleep(&self) -> Option<Timespec> {
        let now = Instant::now();
        let links = self
            .mediator
            .late_in()
            .and_then(|time| Timespec::try_from(time).ok());
        let late = self.cutting.filter(|_| !self.is_late);
        let late = late.and_then(|since| since.checked_add(CUTS));
        let unsaid = (!self.unsaid.is_empty()).then(|| now + UNSAID);
        let due = self.paused.values().copied();
        let due = due.chain(late).chain(unsaid).min();
        let due = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        [due, links, self.mediator.sleep()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Calls of an endpoint's programs wait.
    fn pause(&mut self, slot: u32, until: Instant) {
        let before = self.paused.get(&slot).copied();
        let until = before.map_or(until, |before| before.max(until));
        if self.paused.insert(slot, until).is_none() {
            self.mediator.delays();
            let of = self.programs.iter().filter(|(_, (of, _))| *of == slot);
            let of: Vec<u32> = of.map(|(number, _)| *number).collect();
            for number in of {
                self.look_away(number);
            }
        }
    }

    fn end_pauses(&mut self) -> Result<(), Errno> {
        let now = Instant::now();
        let over = self.paused.extract_if(.., |_, until| *until <= now);
        let over: BTreeSet<u32> = over.map(|(slot, _)| slot).collect();
        if over.is_empty() {
            return Ok(());
        }
        for slot in over.iter().filter(|_| guard!("circuits-holds-end")) {
            self.mediator.holds(*slot, false)?;
        }
        for (number, (slot, listener)) in &self.programs {
            if over.contains(slot) {
                // One that came meanwhile is there.
                let _ = self.watch(listener, PROGRAM | u64::from(*number));
            }
        }
        Ok(())
    }

    /// Calls that waited for a datagram that came.
    fn receive(&mut self) {
        let programs = &self.programs;
        self.mediator
            .receivers_ready(&|number| programs.get(&number).map(|(slot, it)| (*slot, it)));
    }

    fn forget(&mut self, number: u32) {
        self.look_away(number);
        self.programs.remove(&number);
        self.mediator.program_gone(number);
    }
}

/// The number of the port that programs are announced at there.
fn number_of(listener: impl AsFd) -> u64 {
    rustix::fs::fstat(listener).map_or(0, |it| it.st_ino)
}

mod crossings;
mod orders;
#[cfg(test)]
mod tests;
