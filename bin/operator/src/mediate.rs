//! Programs' calls, one by one: judged, done, answered.
//!
//! A call that comes again, because a signal ended its first wait or because the operator died
//! between doing it and answering, finds done what it asks for.

mod acts;
mod arrives;
mod cuts;
mod ended;
mod gone;
mod holders;
mod leaves;
mod listings;
mod looks;
mod metered;
mod proxied;
mod queue;
mod recall;
mod ring;
mod state;
mod sweeps;
mod udp;
mod wake;

use crate::call::{Call, Ended};
use crate::callers::Callers;
use crate::chance;
use crate::circuits;
use crate::crossings::Crossings;
use crate::decide::{self, Asked as Wish, Decided, Refused};
use crate::live::Live;
use crate::meters::Meters;
use crate::notes::{Notes, UNBLOCKED};
use crate::place;
use crate::proxies::{Relays, Said};
use crate::put::{Put, heard, install};
use crate::rings::Rings;
use crate::sockets::{self, Made};
use crate::strays::Strays;
use crate::threads::Targets;
use crate::turns::{SLOW, Spending, Spent};
use crate::unclaimed::{By, Unclaimed};
use crate::waiting::{Binds, Late, Turn, Waiting, Waits, Why};
use circuit::{
    Addresses, Asked, Carrier, Connect, Endpoint, Kind, Limits, Outcome, Pending, Table,
};
use command::verbs::ListFlows;
use cuts::Hunts;
use guard::guard;
use image::{CompartmentImage, MappedCompartment};
use listings::Listings;
use notify::{Listener, Notification};
use queue::Accepted;
use rustix::io::Errno;
use shm::{SealedImage, Words};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use telemetry::drops::DropReason;
use udp::{Datagrams, Outside};
use wake::Also;
use worker::clock::monotonic;

/// Sockets of a compartment at most, and connections that wait to be accepted.
pub const LIMITS: Limits = Limits {
    sockets: 16_384,
    pending: 8_192,
};
/// Sockets more than live, at least, before it is asked which do: a successor reads of all of them.
const GROWTH: usize = 1024;
/// How many connections more than a listener's backlog may wait there of those that must not
/// block; the next is told EAGAIN.
const BEYOND_BACKLOG: usize = 2048;
/// Operators, one after another, that a call may end.
const TRIES: u64 = 3;
/// Slots that can have an endpoint of circuits.
pub const SLOTS: usize = 4096;

/// Looks a program's listener up.
pub type Find<'a> = &'a dyn Fn(u32) -> Option<(u32, &'a Listener)>;

/// A compartment's circuits.
pub struct Mediator {
    image: Option<MappedCompartment<SealedImage>>,
    notes: Option<Notes>,
    table: Table,
    /// Sockets of each slot's programs at most.
    limits: BTreeMap<u32, u32>,
    /// What is of an endpoint's port of before was left behind, and others that were linked there are to be looked at.
    is_anew: bool,
    counts: BTreeMap<u32, u32>,
    /// The same as it was when those that are closed were looked for.
    counted: BTreeMap<u32, u32>,
    strays: Strays,
    /// With so many sockets it is asked which of them live.
    sweeps_at: usize,
    /// Who asks for it can have that asked again from then on.
    sweeps_after: Option<Instant>,
    /// What asking which sockets live took for who is served.
    sweeping: Cell<Duration>,
    /// In this turn.
    has_swept: bool,
    asking: holders::Asking,
    listings: Listings,
    /// How long the call waits that is attempted, if it does, and what it is told then.
    until: Option<(Instant, Errno)>,
    /// Whose turn it is to wait there, if it waited before.
    turn: Option<Turn>,
    /// There was an operator before.
    follows: bool,
    live: Option<Live>,
    rings: Rings,
    waits: Waiting,
    late: Late,
    bound: Binds,
    /// By programs.
    looks: BTreeMap<u32, ended::Look>,
    /// Calls that the operator before left without an answer, until their program is known.
    left: Vec<(u32, u16, Notification)>,
    /// Connected, and nobody heard that it is: to which address.
    unheard: BTreeMap<u64, Vec<u8>>,
    /// What the call that is done asks to be connected, and to which address.
    asked: Option<(u64, Vec<u8>)>,
    unclaimed: Unclaimed,
    /// By how many of nobody's, for those, listening sockets are readable.
    shown: BTreeMap<u64, usize>,
    /// When it was last looked whether the listeners of those are still there.
    unclaimed_looked: Option<Instant>,
    /// The call that is done was begun by the operator before.
    again: bool,
    /// Sockets that do not block because that one had them so, and was to undo it: until any call of theirs.
    unblocked: BTreeSet<u64>,
    /// Some program accepts at its own sockets, and so may at one of circuits that it puts there meanwhile.
    accepts_natively: bool,
    /// What a meter carries and no program has any more: it is nobody's socket. As of the last sweep.
    orphans: BTreeSet<u64>,
    /// The namespace that circuits are of, once it was asked for.
    namespace: Option<u64>,
    /// Where the call that is done is noted.
    note: u16,
    targets: Targets,
    relays: Relays,
    crossings: Crossings,
    meters: Meters,
    datagrams: Datagrams,
    outside: Outside,
    callers: Callers,
    hunts: Hunts,
    /// Endpoints that have made a socket, or begun or accepted a connection, once for each.
    begun: Vec<u32>,
    /// What calls took that went on by another's, or by none.
    spent: Vec<Spent>,
    /// The same of what was looked at, of whose programs.
    stood: RefCell<looks::Stood>,
    /// Sockets that are not where they were seen, but something that has who looks wait.
    misplaced: RefCell<Vec<u64>>,
}

impl Default for Mediator {
    fn default() -> Mediator {
        Mediator {
            image: None,
            notes: None,
            table: Table::new(LIMITS, Vec::new()),
            limits: BTreeMap::new(),
            is_anew: false,
            counts: BTreeMap::new(),
            counted: BTreeMap::new(),
            strays: Strays::default(),
            sweeps_at: GROWTH,
            follows: false,
            sweeps_after: None,
            sweeping: Cell::default(),
            has_swept: false,
            asking: holders::Asking::default(),
            listings: Listings::default(),
            until: None,
            turn: None,
            live: None,
            rings: Rings::default(),
            waits: Waiting::default(),
            late: Late::default(),
            bound: Binds::default(),
            looks: BTreeMap::new(),
            left: Vec::new(),
            unheard: BTreeMap::new(),
            asked: None,
            unclaimed: Unclaimed::default(),
            shown: BTreeMap::new(),
            unclaimed_looked: None,
            again: false,
            unblocked: BTreeSet::new(),
            accepts_natively: false,
            orphans: BTreeSet::new(),
            namespace: None,
            note: 0,
            targets: Targets::default(),
            relays: Relays::default(),
            crossings: Crossings::default(),
            meters: Meters::default(),
            datagrams: Datagrams::default(),
            outside: Outside::default(),
            callers: Callers::default(),
            hunts: Hunts::default(),
            begun: Vec::new(),
            spent: Vec::new(),
            stood: RefCell::default(),
            misplaced: RefCell::default(),
        }
    }
}

/// What a call comes to.
enum Came {
    /// This is its answer.
    To(Result<i64, Errno>),
    /// The kernel does it: it is none of a circuit, or nothing that a circuit differs in.
    Native,
    /// A socket is put into the program, and is the answer.
    Socket(Made, bool),
    /// This socket is in the program, at this number, which nobody has heard.
    Stray(u64, u32),
    /// The same, of a connection.
    Accepted(Accepted),
    /// A socket is put into the program in the place of the one that it called by.
    Anew { was: u64, made: Made },
    /// A datagram socket is put into the program, at a number at which its messages are mediated.
    Datagram(Made, bool),
    /// It waits.
    Waits { at: u64, why: Why },
    /// It waits for a datagram at this copy of its socket.
    Receives { fd: OwnedFd, until: Option<Instant> },
}

impl Mediator {
    /// Calls of a program of before that have no answer yet are done now.
    pub fn resume(&mut self, program: u32, find: Find<'_>) {
        let Some((slot, listener)) = find(program) else {
            return;
        };
        let mine: Vec<(u16, Notification)> = self
            .left
            .extract_if(.., |(of, ..)| *of == program)
            .map(|(_, note, call)| (note, call))
            .collect();
        // Nobody is charged for what an operator before was asked for.
        let _ = self.swept();
        for (note, call) in mine {
            if let Some(notes) = &mut self.notes {
                notes.belongs(note, slot);
            }
            let noted = self.notes.as_ref().map_or(0, |notes| notes.put(note));
            // Who waits no more had its answer, and may have closed what it got, or is dead.
            let is_put = noted != 0 && noted & UNBLOCKED == 0;
            if is_put && !listener.is_live(call.id) && guard!("circuits-delivered") {
                self.unclaimed.is_over(noted);
                self.done_with(note);
                continue;
            }
            self.serves(program);
            let put = self.was_put(note, &call);
            self.serves(0);
            if let Some(number) = put {
                let _ = listener.answer(call.id, Ok(i64::from(number)));
                self.unclaimed.is_over(noted);
                self.done_with(note);
                continue;
            }
            self.put_back(noted);
            let tries = self.notes.as_ref().map_or(0, |notes| notes.begins(note));
            if tries > TRIES && guard!("circuits-tries") {
                confine::say!(
                    "bulkhead-operator: a call ({}) that {TRIES} of us did not survive is refused",
                    call.number
                );
                let _ = listener.answer(call.id, Err(Errno::IO));
                self.done_with(note);
                continue;
            }
            self.again = true;
            self.handle(slot, program, note, call, listener, find);
            self.again = false;
            if let Some(notes) = &self.notes {
                notes.ended(note);
            }
        }
        let _ = self.swept();
    }

    /// The next call of a program that has one, noted. It is left in the kernel for as long as it
    /// is looked for calls that have ended.
    ///
    /// # Errors
    /// The kernel's.
    pub fn next(
        &mut self,
        slot: u32,
        program: u32,
        listener: &Listener,
    ) -> std::io::Result<Option<(u16, Notification)>> {
        if self.notes.as_ref().is_some_and(|notes| notes.is_full(slot))
            && !self.forget_ended(program, listener)
        {
            return Ok(None);
        }
        let Some(notes) = &mut self.notes else {
            return Ok(None);
        };
        if !notes.is_full(slot) {
            let next = notes.receive(program, listener)?;
            if let Some((at, _)) = next {
                notes.belongs(at, slot);
            }
            return Ok(next);
        }
        if let Some(call) = listener.receive()? {
            let errno = self.counts_refused(slot, Errno::NOBUFS, DropReason::SocketLimit);
            let _ = listener.answer(call.id, Err(errno));
        }
        Ok(None)
    }

    /// Does a call that is noted.
    pub fn mediate(
        &mut self,
        slot: u32,
        program: u32,
        (note, call): (u16, Notification),
        listener: &Listener,
        find: Find<'_>,
    ) {
        // What was done for nobody's call before.
        let _ = self.swept();
        // Who waited at a socket, and does not any more, keeps its port from nobody.
        if call.number == libc::SYS_bind as i32 {
            self.receivers_ended_of(slot, find);
        }
        self.handle(slot, program, note, call, listener, find);
    }

    fn handle(
        &mut self,
        slot: u32,
        program: u32,
        note: u16,
        call: Notification,
        listener: &Listener,
        find: Find<'_>,
    ) {
        self.callers.calls(slot, call.thread);
        let came = self.attempt(slot, program, (note, &call), listener);
        self.write();
        self.finish(program, note, call, listener, came);
        self.wake(Also::Nobody, find);
    }

    /// Who holds this process up meanwhile is the program, until [`Mediator::finish`] is over.
    fn attempt(
        &mut self,
        slot: u32,
        program: u32,
        (note, call): (u16, &Notification),
        listener: &Listener,
    ) -> Came {
        self.serves(program);
        self.note = note;
        self.asked = None;
        self.until = None;
        self.turn = None;
        self.datagrams.taken.clear();
        self.strays
            .take_away(call, listener, |cookie| self.unclaimed.is_waiting(cookie));
        let came = match Call::of(call, listener, &mut self.targets) {
            Ok(mut call) => match self.perform(slot, &mut call) {
                Ok(came) => came,
                Err(errno) => Came::To(Err(errno)),
            },
            Err(Ended::Gone) => Came::To(Err(Errno::INTR)),
            Err(Ended::With(errno)) => Came::To(Err(errno)),
        };
        // Its socket is as it was, and from its answer on the program's to change.
        self.notes_at_call(0);
        came
    }

    /// Whether a call's number is still of this socket.
    fn is_at_number(&mut self, cookie: u64, call: &Notification, listener: &Listener) -> bool {
        let again = Call::of(call, listener, &mut self.targets);
        again.is_ok_and(|again| again.cookie() == Ok(cookie))
    }

    fn serves(&self, program: u32) {
        if let Some(notes) = &self.notes {
            notes.serves(program);
        }
    }

    /// Answers, or lets it wait.
    fn finish(
        &mut self,
        program: u32,
        note: u16,
        call: Notification,
        listener: &Listener,
        came: Came,
    ) {
        self.answer(program, note, call, listener, came);
        self.serves(0);
    }

    fn answer(
        &mut self,
        program: u32,
        note: u16,
        call: Notification,
        listener: &Listener,
        came: Came,
    ) {
        let connected = matches!(came, Came::To(Ok(_)));
        let makes = matches!(
            came,
            Came::Socket(..) | Came::Anew { .. } | Came::Datagram(..) | Came::Accepted(..)
        );
        // One that waits begins when its wait is over.
        let begins = call.number == libc::SYS_connect as i32 && !matches!(came, Came::Waits { .. });
        if makes || begins {
            let slot = self.notes.as_ref().and_then(|notes| notes.slot(note));
            self.begun.extend(slot);
        }
        let heard = match came {
            Came::To(result) => heard(listener.answer(call.id, result)),
            Came::Native => heard(listener.proceed(call.id)),
            Came::Socket(made, closes) => {
                self.puts(note, made.cookie, call.thread);
                let put = install(listener, call.id, &made.fd, closes, None);
                self.strays.puts(made.cookie, &call, &put);
                put.is_heard()
            }
            Came::Stray(cookie, number) => {
                let put = Put::of(listener, call.id, number);
                self.strays.puts(cookie, &call, &put);
                put.is_heard()
            }
            // Another thread has closed it meanwhile, and perhaps opened something there.
            Came::Anew { was, .. } if !self.is_at_number(was, &call, listener) => {
                heard(listener.answer(call.id, Err(Errno::BADF)))
            }
            Came::Anew { made, .. } => {
                // Who follows finds it in its place, and is told the same; or the one of before.
                self.puts(note, 0, call.thread);
                let at = call.arguments[0] as u32;
                match listener.install_at(call.id, made.fd.as_fd(), true, at) {
                    Ok(notify::Outcome::Done(_)) => heard(listener.answer(call.id, Ok(0))),
                    Ok(notify::Outcome::Gone) => false,
                    Err(_) => heard(listener.answer(call.id, Err(Errno::NOBUFS))),
                }
            }
            Came::Datagram(made, closes) => {
                self.puts(note, made.cookie, call.thread);
                self.put_datagram(&call, listener, &made, closes)
            }
            Came::Receives { fd, until } => {
                let slot = self.notes.as_ref().and_then(|notes| notes.slot(note));
                let slot = slot.unwrap_or(u32::MAX);
                let (mut until, now) = (until, Instant::now());
                if let Some(before) = self.datagrams.receivers.ended_by(&call) {
                    self.done_with(before.note);
                    until = before.left_of(&call, until, now);
                } else if let Some(over) = self.late.of(&call, now) {
                    until = until.map(|_| over);
                }
                let receivers = &mut self.datagrams.receivers;
                match receivers.wait(slot, (program, note, call), fd, until) {
                    Ok(()) => return,
                    Err(errno) => heard(listener.answer(call.id, Err(errno))),
                }
            }
            Came::Accepted(accepted) => self.put_accepted(note, &call, listener, accepted),
            Came::Waits { at, why } => {
                let mut until = self.until.take();
                let left = self.notes.as_ref().filter(|_| self.again);
                let left = left.map(|notes| Turn::Left(notes.turn(note)));
                let mut turn = self.turn.take().or(left);
                let own = self.asked.as_ref().map_or(0, |(own, _)| *own);
                // A signal has it begin anew, and it waits no longer for that: neither than TCP would, nor than its program says.
                let now = Instant::now();
                if let Some((key, ended)) = self.waits.ended_by(&call) {
                    if let Some(notes) = self.notes.as_ref().filter(|_| (key.0, key.1) == (at, why))
                    {
                        notes.has_turn(note, ended.note);
                    }
                    self.done_with(ended.note);
                    until = ended.left_of(&call, (at, own), until, now);
                    turn = Some(Turn::Of(key));
                    if (ended.at, ended.why) != (at, why) {
                        self.ends(&ended);
                    }
                } else if let Some(over) = self.late.of(&call, now) {
                    // As TCP gives up it does so by what it is called for.
                    until = until.map(|(by_itself, errno)| match errno {
                        Errno::TIMEDOUT => (by_itself, errno),
                        errno => (over, errno),
                    });
                }
                let waits = Waits {
                    program,
                    note,
                    call,
                    at,
                    why,
                    own,
                    until,
                };
                self.waits.push(waits, turn);
                return;
            }
        };
        if !heard {
            self.datagrams.not_heard();
        }
        // Its thread's next connect of the same socket to the same address is this one again.
        if !heard
            && connected
            && let Some((cookie, address)) = self.asked.take()
            // Of UDP it is done again, and comes to the same.
            && let Some(socket) = self.table.socket(cookie)
            && socket.kind() == Kind::Stream
        {
            self.unheard.insert(cookie, address);
        }
        self.done_with(note);
    }

    /// Before a socket is put into a program: who dies in between leaves it there, and the call
    /// without an answer.
    fn puts(&self, note: u16, cookie: u64, thread: u32) {
        if let Some(notes) = &self.notes {
            notes.puts(note, cookie);
            notes.hands_to(thread);
        }
    }

    /// The number in the program of what the operator before put there for this call.
    fn was_put(&self, note: u16, call: &Notification) -> Option<u32> {
        let cookie = self.notes.as_ref().map(|notes| notes.put(note));
        let is_one = |cookie: &u64| *cookie != 0 && cookie & UNBLOCKED == 0;
        circuits::number_of(call.thread, cookie.filter(is_one)?)
    }

    fn done_with(&mut self, note: u16) {
        if let Some(notes) = &mut self.notes {
            notes.answered(note);
        }
    }

    fn perform(&mut self, slot: u32, call: &mut Call<'_>) -> Result<Came, Errno> {
        if call.is(libc::SYS_socket) {
            // Once more, after a signal.
            return match self.strays.of(call.notification()) {
                Some((cookie, number)) if self.is_of(slot, cookie) => {
                    Ok(Came::Stray(cookie, number))
                }
                _ => self.socket(slot, call),
            };
        }
        if call.is(libc::SYS_socketpair) {
            return Err(Errno::OPNOTSUPP);
        }
        if call.is(libc::SYS_io_uring_setup) {
            return Err(self.counts_refused(slot, Errno::NOSYS, DropReason::IoUring));
        }
        let cookie = call.cookie()?;
        if !call.is(libc::SYS_bind) {
            self.bound.goes_on(cookie);
        }
        let Some(socket) = self.table.socket(cookie) else {
            return self.foreign(call);
        };
        // Passed on, inherited or taken: whose rules would hold for it is not the caller's.
        if socket.endpoint() != slot && guard!("circuits-own") {
            return Err(Errno::ACCESS);
        }
        if self.unblocked.contains(&cookie) && guard!("circuits-unblocked") {
            sockets::blocks(call.fd()?, true)?;
            self.unblocked.remove(&cookie);
        }
        if socket.kind() == Kind::Datagram
            && let Some(came) = self.perform_datagram(slot, cookie, call)
        {
            return came;
        }
        let nothing = Came::To(Ok(0));
        if call.is(libc::SYS_connect) {
            self.connect(slot, cookie, call)
        } else if call.is(libc::SYS_bind) {
            self.bind_of(cookie, call)
        } else if call.is(libc::SYS_listen) {
            self.listen(cookie, call)?;
            Ok(nothing)
        } else if call.is(libc::SYS_shutdown) {
            self.shut(cookie, call)
        } else if call.is(libc::SYS_accept) || call.is(libc::SYS_accept4) {
            self.accept(cookie, call)
        } else if call.is(libc::SYS_getsockname) {
            let (family, name) = self.table.getsockname(cookie).map_err(number)?;
            call.tell_name(family, name)?;
            Ok(nothing)
        } else if call.is(libc::SYS_getpeername) {
            let (family, name) = self.table.getpeername(cookie).map_err(number)?;
            call.tell_name(family, name)?;
            Ok(nothing)
        } else if call.is(libc::SYS_setsockopt) {
            let value = call.value()?;
            let (level, name) = call.option();
            let outcome = self.table.set_option(cookie, level, name, &value);
            said(outcome.map_err(number)?, call)
        } else if call.is(libc::SYS_getsockopt) && call.option() == (stream::LEVEL, stream::RING) {
            self.ring(cookie, call)
        } else if call.is(libc::SYS_getsockopt) {
            let (level, name) = call.option();
            let room = call.room()?;
            let outcome = self.table.read_option(cookie, level, name, room);
            said(outcome.map_err(number)?, call)
        } else {
            Ok(Came::Native)
        }
    }

    /// Whether a socket is known, and of this endpoint.
    fn is_of(&self, slot: u32, cookie: u64) -> bool {
        let socket = self.table.socket(cookie);
        socket.is_some_and(|socket| socket.endpoint() == slot)
    }

    /// What the rules say of a connection of an endpoint; to itself it needs none.
    fn decided(
        &self,
        image: &CompartmentImage<'_>,
        slot: u32,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<Decided, Refused> {
        if self.table.destination(slot, &remote.ip) == Some(slot) {
            return Ok(Decided {
                slot,
                rules: [None; 2],
            });
        }
        let wish = Wish {
            slot,
            from: local.ip,
            from_port: local.port,
            to: remote.ip,
            to_port: remote.port,
            protocol: decide::TCP,
        };
        decide::decide(image, &wish)
    }
}

const NOBODY: Endpoint = Endpoint {
    ip: [0; 16],
    port: 0,
};

/// What came of an option.
fn said(outcome: Outcome, call: &mut Call<'_>) -> Result<Came, Errno> {
    match outcome {
        Outcome::Native => Ok(Came::Native),
        Outcome::Accepted => Ok(Came::To(Ok(0))),
        Outcome::Fails(errno) => Err(number(errno)),
        Outcome::Answer(bytes) => {
            call.tell_option(&bytes)?;
            Ok(Came::To(Ok(0)))
        }
    }
}

fn number(errno: circuit::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}

/// A name that nobody guesses.
pub fn secret() -> Result<[u8; 16], Errno> {
    chance::bytes()
}

#[cfg(test)]
mod tests;
