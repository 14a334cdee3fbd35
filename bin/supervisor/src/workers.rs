//! Processes: spawned, confined, waiting as spares; seated, dead, reaped.

use crate::errands::Whose;
use crate::errands::fetch::Fetch;
use crate::link::{Link, Shared};
use crate::poll::{Source, Token};
use crate::process::LAST_WORDS;
use crate::registry::{Key, Note, Seat, WorkerPart};
pub use crate::role::{Place, Purpose, Role};
use crate::supervisor::Supervisor;
use crate::watch::Bucket;
use command::Message;
use command::verbs::{CAUSE_STALL, Ready};
use confine::{Profile, Spawn, Stages};
use guard::guard;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

/// Spare switches kept ready.
const SPARE_SWITCHES: usize = 2;
/// Spare fabrics kept ready.
const SPARE_FABRICS: usize = 1;
/// Processes that start at the same time, at most.
const STARTING: usize = 8;
/// After a failure to start one, the next try waits, ns.
const START_RETRY: u64 = 500_000_000;

/// A process.
#[derive(Debug)]
pub struct Worker {
    /// Its id on the host.
    pub pid: u32,
    /// Readable when it has died.
    pub pidfd: OwnedFd,
    /// To talk to it; the controller has a socket of its own.
    pub link: Option<Link>,
    /// What it is.
    pub role: Role,
    /// Its uid on the host.
    pub uid: u32,
    /// Stages of confinement that it said it has done, and that the kernel confirmed.
    pub stages: u32,
    /// Its standard error's other end; not of one taken over.
    pub words: Option<OwnedFd>,
    /// Where it is.
    pub place: Place,
    /// What the keeper is to note of that, once all that it was told has gone out.
    pub unnoted: Option<String>,
    /// What the keeper has noted of that.
    pub noted: Option<String>,
    /// When it was started, ns.
    pub started: u64,
    /// `CAUSE_*`: why we killed it.
    pub killed: Option<u32>,
    /// What it may still say.
    pub budget: Bucket,
    /// Who looks at what it gives.
    pub fetch: Option<(Fetch, Token)>,
    /// The compartment that it was ended in.
    pub ended_in: Option<u32>,
    /// It is dead, and heard to the end no longer than until then, ns.
    pub last_words: Option<u64>,
    /// Its profile.
    pub profile: Profile,
    /// Registrations: death, control.
    pub tokens: (Token, Option<Token>),
}

impl Supervisor {
    /// Starts what is needed most, at most one process a call; whether there is more.
    pub fn start_one(&mut self) -> bool {
        let now = self.now();
        if self.start_again > now || self.is_ending {
            return false;
        }
        let starting = self
            .workers
            .values()
            .filter(|w| matches!(w.place, Place::Starting(_)))
            .count();
        if starting >= STARTING {
            return false;
        }
        // First what has no spare that would fit.
        let special = self
            .waiting
            .iter()
            .copied()
            .find(|seat| self.seat_is_due(*seat, now) && self.is_special(*seat));
        if let Some(seat) = special {
            let (role, profile, program) = self.wish_of(seat);
            self.waiting.remove(&seat);
            if self
                .start_worker(role, profile, &program, Purpose::Seat(seat))
                .is_none()
            {
                self.waiting.insert(seat);
            }
            return true;
        }
        if self.start_helper(now)
            || self.start_operator(now)
            || self.start_proxy(now)
            || self.start_meter(now)
        {
            return true;
        }
        for (role, spares) in [
            (Role::Fabric, SPARE_FABRICS),
            (Role::Switch, SPARE_SWITCHES),
        ] {
            let fits = |seat: &Seat| {
                (*seat == Seat::Fabric) == (role == Role::Fabric) && !self.is_special(*seat)
            };
            let waiting = self.waiting.iter().filter(|seat| fits(seat)).count();
            let wanted = if now < self.refill_after {
                waiting
            } else {
                spares + waiting
            };
            let have = self
                .workers
                .values()
                .filter(|w| {
                    w.role == role
                        && matches!(w.place, Place::Spare | Place::Starting(Purpose::Spare))
                })
                .count();
            if have < wanted {
                let program = format!("bulkhead-{}", role.name());
                return self
                    .start_worker(role, role.profile(), &program, Purpose::Spare)
                    .is_some();
            }
        }
        false
    }

    /// After a failed start: what was started for a seat of special wishes holds up
    /// that seat alone.
    pub fn put_off(&mut self, purpose: Purpose) {
        let next = self.now() + START_RETRY;
        match purpose {
            Purpose::Seat(seat) => {
                if let Some(state) = self.seat_mut(seat) {
                    state.due = state.due.max(next);
                }
            }
            Purpose::Spare => self.start_again = next,
            // The verifier has its own times, and its question no second try.
            Purpose::Capture(_)
            | Purpose::Verifier
            | Purpose::Solver
            | Purpose::Guest(_)
            | Purpose::Circuits(_)
            | Purpose::Proxy(_)
            | Purpose::Meter(_) => {}
        }
    }

    /// Starts one process; `None` after saying why not.
    pub fn start_worker(
        &mut self,
        role: Role,
        profile: Profile,
        program: &str,
        purpose: Purpose,
    ) -> Option<u64> {
        match self.try_start_worker(role, profile, program, purpose) {
            Ok(id) => Some(id),
            Err(reason) => {
                confine::say!("supervisor: cannot start a {}: {reason}", role.name());
                self.put_off(purpose);
                None
            }
        }
    }

    fn try_start_worker(
        &mut self,
        role: Role,
        profile: Profile,
        program: &str,
        purpose: Purpose,
    ) -> Result<u64, String> {
        let file = self
            .programs
            .open(program)
            .map_err(|e| format!("{program}: {e}"))?;
        let (ours, theirs) = seqpacket::Socket::pair().map_err(|e| e.to_string())?;
        // Room for the ports of a large tenant at once.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1 << 20);
        // Those have descriptors of tenants', and none to send.
        if matches!(role, Role::Vhost | Role::Proxy) {
            let _ = notify::refuse_descriptors(ours.as_fd());
        }
        let (uid, network) = match purpose {
            Purpose::Circuits(compartment) => self
                .network_of(compartment)
                .map_or((None, None), |(uid, network)| (Some(uid), Some(network))),
            Purpose::Proxy(place) => {
                let namespace = self.namespace_of(place).map(|(namespace, _)| namespace);
                (None, Some(namespace.ok_or("its namespace is gone")?))
            }
            // Nothing is in its namespace: all that it has is handed to it.
            Purpose::Meter(_) => {
                let namespace = netlink::namespace::create().map_err(|e| e.to_string())?;
                (None, Some(Rc::new(namespace)))
            }
            _ => (None, None),
        };
        let is_own = uid.is_none();
        let uid = match uid {
            Some(uid) => uid,
            None => self.uid_for_worker().ok_or("no uid is left")?,
        };
        let id = self.next_worker;
        self.next_worker += 1;
        // First the intent: without the pidfd this is a half-made process, and a
        // supervisor after us ends it.
        self.keeper.keep(
            Key::Worker(id, WorkerPart::Control),
            &place_note(role, "starting", profile),
            ours.as_fd(),
        );
        let more = match role {
            Role::Solver => Some(self.solver_program().map_err(|e| e.to_string())?),
            _ => None,
        };
        let given: Vec<BorrowedFd<'_>> = [theirs.as_fd()]
            .into_iter()
            .chain(more.as_ref().map(AsFd::as_fd))
            .collect();
        let start = || self.spawn(profile, &file, program, uid, &given, &[]);
        let started = match &network {
            Some(network) => {
                let within = netlink::namespace::within(network.as_fd(), start);
                within.unwrap_or_else(|error| Err(error.to_string()))
            }
            None => start(),
        };
        drop(theirs);
        match started.and_then(|(child, words)| {
            self.enrol(
                id,
                child,
                Some(words),
                Some(ours),
                role,
                profile,
                uid,
                Place::Starting(purpose),
            )
        }) {
            Ok(()) => Ok(id),
            Err(reason) => {
                if is_own {
                    self.release_uid(uid);
                }
                self.keeper.forget(&format!("worker/{id}/"));
                Err(reason)
            }
        }
    }

    /// Spawns the program confined as its profile says; it, and where its last words
    /// will be.
    pub fn spawn(
        &self,
        profile: Profile,
        program: &OwnedFd,
        name: &str,
        uid: u32,
        descriptors: &[BorrowedFd<'_>],
        arguments: &[&str],
    ) -> Result<(confine::Child, OwnedFd), String> {
        let gid = if self.settings.rootless {
            rustix::process::getgid().as_raw()
        } else {
            uid
        };
        // A pipe of its own: of a descriptor shared with us and the keeper it could
        // change the flags, and fill what is behind it.
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (words, stderr) = pipe_with(flags).map_err(|e| e.to_string())?;
        let _ = fcntl_setpipe_size(&stderr, LAST_WORDS);
        let child = confine::spawn(&Spawn {
            profile,
            program: program.as_fd(),
            name: Path::new(name)
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or(name),
            arguments,
            uid,
            gid,
            descriptors,
            stderr: Some(stderr.as_fd()),
            cgroup: None,
        });
        Ok((child.map_err(|e| e.to_string())?, words))
    }

    /// Takes a process that was just spawned into the books.
    #[expect(clippy::too_many_arguments, reason = "all of what a process is")]
    pub fn enrol(
        &mut self,
        id: u64,
        child: confine::Child,
        words: Option<OwnedFd>,
        control: Option<seqpacket::Socket>,
        role: Role,
        profile: Profile,
        uid: u32,
        place: Place,
    ) -> Result<(), String> {
        let confine::Child { pid, pidfd } = child;
        let person = Note::default().with("pid", pid).with("uid", uid);
        self.keeper
            .keep(Key::Worker(id, WorkerPart::Pidfd), &person, pidfd.as_fd());
        let started = self.now();
        let death = match self.poll.watch(&pidfd, Source::Death(id)) {
            Ok(token) => token,
            Err(errno) => {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                if let Some(control) = control {
                    self.errands.part(Whose::Uid(uid), control.as_fd());
                }
                return Err(errno.to_string());
            }
        };
        let link = control.map(Link::new);
        let heard = link
            .as_ref()
            .and_then(|link| self.poll.watch(link, Source::Worker(id)).ok());
        self.uids.adopt(uid);
        let worker = Worker {
            pid,
            pidfd,
            link,
            role,
            uid,
            stages: 0,
            words,
            place,
            started,
            unnoted: None,
            noted: None,
            killed: None,
            budget: Bucket::of_words(role),
            fetch: None,
            ended_in: None,
            last_words: None,
            profile,
            tokens: (death, heard),
        };
        self.workers.insert(id, worker);
        Ok(())
    }

    fn uid_for_worker(&mut self) -> Option<u32> {
        if self.settings.rootless {
            Some(rustix::process::getuid().as_raw())
        } else {
            self.uids.take()
        }
    }

    /// The program, profile and role that a seat wants.
    fn wish_of(&self, seat: Seat) -> (Role, Profile, String) {
        match seat {
            Seat::Fabric => (Role::Fabric, Profile::Fabric, "bulkhead-fabric".to_owned()),
            Seat::Compartment(id) => {
                let body = self
                    .compartments
                    .get(&id)
                    .map(|c| c.body)
                    .unwrap_or_default();
                let profile = if body.sandbox == 0 {
                    Profile::Baseline
                } else {
                    Profile::Switch
                };
                let program = match body.program.as_str() {
                    "" => "bulkhead-switch",
                    other => other,
                };
                (Role::Switch, profile, program.to_owned())
            }
        }
    }

    fn is_special(&self, seat: Seat) -> bool {
        match seat {
            Seat::Fabric => false,
            Seat::Compartment(id) => self
                .compartments
                .get(&id)
                .is_some_and(|c| c.body.sandbox == 0 || !c.body.program.as_str().is_empty()),
        }
    }

    fn seat_is_due(&self, seat: Seat, now: u64) -> bool {
        self.seat(seat).is_some_and(|state| state.due <= now)
    }

    /// Gives spares to the seats that wait and are due.
    pub fn fill_seats(&mut self) {
        if self.waiting.is_empty() || self.is_ending {
            return;
        }
        let now = self.now();
        let due: Vec<Seat> = self
            .waiting
            .iter()
            .copied()
            .filter(|seat| self.seat_is_due(*seat, now))
            .collect();
        for seat in due {
            if self.is_special(seat) {
                continue;
            }
            let role = if seat == Seat::Fabric {
                Role::Fabric
            } else {
                Role::Switch
            };
            let spare = self
                .workers
                .iter()
                .find(|(_, w)| w.role == role && w.place == Place::Spare);
            if let Some(id) = spare.map(|(id, _)| *id) {
                self.waiting.remove(&seat);
                self.attach(id, seat);
            }
        }
    }

    /// A worker says that it is confined and waits.
    pub fn ready(&mut self, id: u64, body: &Ready) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let Place::Starting(purpose) = worker.place else {
            return;
        };
        if body.role != worker.role.number() {
            confine::say!(
                "supervisor: process {} says it is of another role",
                worker.pid
            );
            // Its place stays: its death says what to start again.
            self.end_process(id);
            return;
        }
        // Not the worker's word alone: the kernel's.
        let observed = confine::observe(worker.pid);
        let confined = match (&observed, worker.profile) {
            (Ok(_), Profile::Baseline) => true,
            (Ok(seen), _) => seen.is_confined() && seen.uids == [worker.uid; 4],
            (Err(_), _) => false,
        };
        let missing = Stages(body.stages).missing(worker.profile);
        if guard!("worker-confined") && !(confined && missing.is_empty()) {
            confine::say!(
                "supervisor: process {} is not confined (missing {missing:?}, seen {observed:?})",
                worker.pid
            );
            self.end_process(id);
            return;
        }
        worker.stages = body.stages;
        worker.place = Place::Spare;
        match purpose {
            Purpose::Spare => {
                self.note_place(id, "spare");
                self.fill_seats();
            }
            Purpose::Seat(seat) => {
                if self.seat(seat).is_some_and(|state| state.worker.is_none()) {
                    self.attach(id, seat);
                } else {
                    self.kill(id, None);
                }
            }
            Purpose::Capture(of) => {
                worker.place = Place::Capture(of);
                self.capture_ready(id, of);
            }
            Purpose::Verifier => {
                worker.place = Place::Verifier;
                self.verifier_ready(id);
            }
            Purpose::Solver => {
                worker.place = Place::Solver;
                self.solver_ready(id);
            }
            Purpose::Guest(place) => {
                worker.place = Place::Guest(place);
                self.helper_ready(id, place);
            }
            Purpose::Circuits(compartment) => {
                worker.place = Place::Circuits(compartment);
                // Also who is to follow: what takes so long is done before it is waited for.
                self.unlimited.push((id, compartment, self.now()));
                self.operator_ready(id, compartment);
            }
            Purpose::Proxy(place) => {
                worker.place = Place::Proxy(place);
                self.proxy_ready(id, place);
            }
            Purpose::Meter(compartment) => {
                worker.place = Place::Meter(compartment);
                self.meter_ready(id, compartment);
            }
        }
    }

    /// Notes with the keeper where a process is: after it was told all that it needs there. Who
    /// heard half of it when we die is noted nowhere, and ended by the supervisor after us. What
    /// still waits to be sent dies with us, so its note waits as well.
    pub fn note_place(&mut self, id: u64, place: &str) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let waits = worker.link.as_ref().is_some_and(|link| link.backlog() > 0);
        worker.unnoted = (waits && guard!("place-told")).then(|| place.to_owned());
        if worker.unnoted.is_none() {
            worker.noted = Some(place.to_owned());
            self.keep_place(id, place);
        }
    }

    fn keep_place(&mut self, id: u64, place: &str) {
        let Some(worker) = self.workers.get(&id) else {
            return;
        };
        let Some(link) = &worker.link else { return };
        let mut note = place_note(worker.role, place, worker.profile).with("stages", worker.stages);
        if let Place::Seated(seat) = worker.place
            && let Some(state) = self.seat(seat)
        {
            note = note
                .with("restarts", state.restarts)
                .with("cause", state.cause)
                .with("outage", state.outage);
        }
        self.keeper
            .keep(Key::Worker(id, WorkerPart::Control), &note, link.as_fd());
    }

    /// Sends a message to a process.
    pub fn tell(&mut self, id: u64, message: &Message, fds: Vec<Shared>) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let Some(link) = &mut worker.link else { return };
        let (sent, waits) = (link.send(message, fds), link.backlog() > 0);
        for fd in link.unplugged() {
            self.errands.part_given(Whose::Uid(worker.uid), fd);
        }
        if sent {
            if waits {
                self.is_behind(id);
            }
            return;
        }
        // Gone, or deaf: its death is what is handled.
        if waits {
            self.distrust_process(id);
        }
        self.kill_seated(id, CAUSE_STALL);
    }

    /// What waits for it dies with us, and nobody tells it again: until it has that it is noted nowhere.
    fn is_behind(&mut self, id: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        if let Some(place) = worker.noted.take_if(|_| guard!("place-behind")) {
            worker.unnoted.get_or_insert(place);
            self.keep_place(id, "behind");
        }
    }

    /// Gives a process one end of a link of which the other goes to who may be a tenant's by now: as long as
    /// only we have an end, what comes in by the other would be ours to close. It is given first, now or
    /// not at all, and who does not take it is ended. Whether it has it.
    pub fn hand_over(&mut self, id: u64, message: &Message, end: OwnedFd) -> bool {
        let link = self
            .workers
            .get(&id)
            .and_then(|worker| worker.link.as_ref());
        let given = link.is_some_and(|link| link.send_now(message, end.as_fd()));
        if !given {
            self.kill_seated(id, CAUSE_STALL);
        }
        given
    }
}

/// The note on a process's control socket.
pub fn place_note(role: Role, place: &str, profile: Profile) -> Note {
    Note::default()
        .with("role", role.name())
        .with("place", place)
        .with("profile", profile.name())
}
