//! The supervisor: its state, its start on what the keeper holds, its one loop.

use crate::capture::{Capture, CaptureOf};
use crate::channels::Channels;
use crate::errands::{Errands, Whose};
use crate::events::{Happened, Subject};
use crate::executables::{Programs, Uids};
use crate::keeper::{Keeper, Wish};
use crate::limits::{WITHOUT_GROUPS, is_group_of};
use crate::link::{Link, Shared};
use crate::namespaces::Namespaces;
use crate::owners::Owners;
use crate::poll::{Poll, Source};
use crate::ports::crossings::Crossings;
use crate::ports::hunts::Searchers;
use crate::proofs::Proofs;
use crate::refusal::Refusal;
use crate::registry::{Key, Note, Rebuilt, Seat, SeatPart, rebuild};
use crate::seats::{Compartment, FABRIC_SLOTS, SeatState, Uplink};
use crate::settings::{RANGE, Settings};
use crate::spread::Spread;
use crate::watch::{Bucket, Seen, Silence, limits_are_due};
use crate::workers::Worker;
use crate::{accounts, adopt, cores, ranges, uplinks};
use command::cores::Cores;
use command::message::ErrorCode;
use command::verbs::CAUSE_STALL;
use confine::Cgroup;
use confine::cgroup::Hierarchy;
use rustix::time::{ClockId, clock_gettime};
use seqpacket::Socket;
use shm::Recorder;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use telemetry::counters::ProcessWord;
use telemetry::recorder::EventKind;

/// The watch looks so often while a process is awake, ns.
const WATCH_AWAKE: u64 = 10_000_000;
/// And so often while all sleep: a process that wakes and hangs is seen by the second
/// look at the latest.
const WATCH_ASLEEP: u64 = 40_000_000;

/// Everything that the supervisor knows.
pub struct Supervisor {
    /// Where it works.
    pub settings: Settings,
    /// Who holds the descriptors.
    pub keeper: Keeper,
    /// What the loop waits for.
    pub poll: Poll,
    /// To the controller.
    pub control: Link,
    /// The controller's end of that, for the next controller.
    pub controller_end: OwnedFd,
    /// The API's listening socket, for the next controller.
    pub api: OwnedFd,
    /// When the controller is to be started, ns; `None` while it runs.
    pub controller_due: Option<u64>,
    /// Its waits between restarts.
    pub controller_backoff: crate::watch::Backoff,
    /// How long it has said nothing.
    pub controller_silence: Silence,
    /// Processes by serial number.
    pub workers: BTreeMap<u64, Worker>,
    /// The next serial number.
    pub next_worker: u64,
    /// uids for them.
    pub uids: Uids,
    /// Their programs.
    pub programs: Programs,
    /// No process is started before, ns.
    pub start_again: u64,
    /// Spares are not made before, ns: something more urgent goes on.
    pub refill_after: u64,
    /// What the verifier said, and what it is asked.
    pub proofs: Proofs,
    /// Who does what may have to wait.
    pub errands: Errands,
    /// Who looks for sockets of circuits.
    pub searchers: Searchers,
    /// The fabric's seat.
    pub fabric: SeatState,
    /// Compartments by id.
    pub compartments: BTreeMap<u32, Compartment>,
    /// Uplinks by number.
    pub uplinks: BTreeMap<u32, Uplink>,
    /// Agreements by which circuits go from one compartment to another.
    pub crossings: Crossings,
    /// Seats without a process.
    pub waiting: BTreeSet<Seat>,
    /// Channels made ahead.
    pub channels: Channels,
    /// Fifos that were connected to too often, by (compartment, slot), and when they are
    /// listened to again, ns.
    pub resting: BTreeMap<(u32, u32), u64>,
    /// Captures by compartment and owner.
    pub captures: BTreeMap<CaptureOf, Capture>,
    /// This host's cores, by physical core.
    pub cores: Cores,
    /// Where busy workers run.
    pub spread: Spread,
    /// Restarts of the whole host, but the fabric's.
    pub limit: Bucket,
    /// Namespaces made here.
    pub namespaces: Namespaces,
    /// cgroups, where the host has them.
    pub hierarchy: Option<Hierarchy>,
    /// Groups of compartments that are gone, to be removed once they are empty.
    pub old_cgroups: Vec<Cgroup>,
    /// Processes with their compartments whose limits are still to be set, and since when
    /// they are seated, or ready to operate, ns; the oldest first.
    pub unlimited: Vec<(u64, u32, u64)>,
    /// Whose uids may own programs.
    pub owners: Owners,
    /// Programs of a compartment that are kept, at most, as operators were told.
    pub shared_programs: usize,
    /// Our flight recorder.
    pub recorder: Recorder,
    /// Its memory.
    pub recorder_page: Shared,
    /// Nothing is started any more.
    pub is_ending: bool,
    /// When the watch looks next, ns.
    next_watch: Option<u64>,
    /// When the keeper is told next that this process goes on, ns.
    next_beat: u64,
}

/// The keeper is told so often that this process goes on, ns.
const BEAT: u64 = 5_000_000_000;

impl Supervisor {
    /// Starts on what the keeper holds: processes that run go on running, what is
    /// half made is removed.
    ///
    /// # Errors
    /// A sentence: without keeper, run directory or own pages nothing can be done.
    pub fn start(settings: Settings, mut keeper: Keeper) -> Result<Supervisor, String> {
        let found: Rebuilt<OwnedFd> =
            rebuild(keeper.all().map_err(|e| format!("the keeper: {e}"))?);
        let mut errands = Errands::new();
        for (compartment, socket) in &found.half_sockets {
            errands.part_unseen(Whose::Ports(*compartment), socket.as_fd());
        }
        for prefix in &found.forget {
            keeper.forget(prefix);
        }
        let says = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let no = |what: &'static str| move |e: rustix::io::Errno| format!("{what}: {e}");
        let mut poll = Poll::new().map_err(no("epoll"))?;
        let control = Link::new(Socket::from_fd(
            found
                .control
                .ok_or("the keeper has no socket to the controller")?,
        ));
        let controller_end = found
            .controller
            .ok_or("the keeper has no socket for the controller")?;
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&control, 1 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&controller_end, 1 << 20);
        poll.watch(&keeper, Source::Keeper)
            .map_err(no("watch the keeper"))?;
        poll.watch(&control, Source::Controller)
            .map_err(no("watch the controller"))?;
        settings.prepare().map_err(says("the run directory"))?;
        let owners = Owners::recall(&settings.run_dir).map_err(says("operators.uids"))?;
        if !settings.rootless && found.uids.is_none() {
            let first = settings.first_uid();
            accounts::keep_clear_of(first, RANGE)?;
            accounts::are_mapped(first, RANGE)?;
            let lock = ranges::take(first, &settings.run_dir)?;
            // The keeper holds it over our death.
            keeper.keep(Key::Uids, &Note::default(), lock.as_fd());
        }
        let api = match found.api {
            Some(api) => api,
            None => {
                let api = settings
                    .listen_for_api()
                    .map_err(|e| format!("the API's socket: {e}"))?;
                keeper.keep(Key::ApiListener, &Note::default(), api.as_fd());
                api
            }
        };
        let recorder_page = match found.recorder {
            Some(page) => page,
            None => {
                let page = shm::memory_file("bulkhead-recorder", telemetry::recorder::BYTES)
                    .map_err(says("pages"))?;
                keeper.keep(Key::Recorder, &Note::default(), page.as_fd());
                page
            }
        };
        let recorder = Recorder::open(&recorder_page).map_err(says("the flight recorder"))?;
        let is_first = found.fabric.is_none();
        let fabric = match found.fabric.and_then(adopt::fabric) {
            Some(fabric) => fabric,
            None => {
                let fabric = SeatState::create(FABRIC_SLOTS).map_err(says("the fabric's pages"))?;
                keeper.keep(
                    Key::Seat(Seat::Fabric, SeatPart::Counters),
                    &Note::default(),
                    fabric.counters.as_fd(),
                );
                keeper.keep(
                    Key::Seat(Seat::Fabric, SeatPart::Recorder),
                    &Note::default(),
                    fabric.recorder.as_fd(),
                );
                fabric
            }
        };
        let hierarchy = match Hierarchy::find() {
            Ok(hierarchy) => Some(hierarchy),
            Err(error) => {
                confine::say!("supervisor: {error}; {WITHOUT_GROUPS}");
                None
            }
        };
        // What an instance before this one left is removed once nobody is in it, or is this one's again.
        let left = hierarchy.as_ref().filter(|_| is_first);
        let is_ours = |name: &str| is_group_of(name, settings.first_uid());
        let old_cgroups = left.map_or_else(Vec::new, |all| Cgroup::existing(all, is_ours));
        let mut namespaces =
            Namespaces::new(&settings.run_dir).map_err(says("the run directory"))?;
        if is_first {
            // What an instance before this one left: it was killed whole.
            namespaces.settle();
        }
        if let Some(watch) = namespaces.watch() {
            poll.watch(watch, Source::Namespaces)
                .map_err(no("watch the namespaces"))?;
        }
        let now = clock();
        // A supervisor before us kept itself off what was isolated: the keeper did not.
        let cores = cores::of_keeper();
        let mut this = Supervisor {
            uids: Uids::new(settings.first_uid()),
            programs: Programs::beside_us().map_err(says("own path"))?,
            settings,
            keeper,
            poll,
            control,
            controller_end,
            api,
            controller_due: Some(0),
            controller_backoff: Default::default(),
            controller_silence: Silence::default(),
            workers: BTreeMap::new(),
            next_worker: found.workers.keys().next_back().map_or(1, |last| last + 1),
            start_again: 0,
            refill_after: 0,
            proofs: Proofs::default(),
            errands,
            searchers: Searchers::default(),
            fabric,
            compartments: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            crossings: Crossings::default(),
            waiting: BTreeSet::new(),
            // Serials only have to differ: the clock never gives the same twice.
            channels: Channels::new(now),
            resting: BTreeMap::new(),
            captures: BTreeMap::new(),
            cores,
            spread: Spread::default(),
            limit: Bucket::of_host(),
            namespaces,
            hierarchy,
            old_cgroups,
            unlimited: Vec::new(),
            owners,
            shared_programs: 0,
            recorder,
            recorder_page: Rc::new(recorder_page),
            is_ending: false,
            next_watch: None,
            next_beat: 0,
        };
        for (id, kept) in found.compartments {
            this.adopt_compartment(id, kept);
        }
        for ((compartment, number), fd) in found.rooms {
            this.adopt_room(compartment, number, fd);
        }
        for (side, (fd, note)) in found.doors {
            this.adopt_door(side, fd, &note);
        }
        for ((compartment, slot), kept) in found.ports {
            let port = this.adopt_port(kept);
            if let (Some(port), Some(home)) = (port, this.compartments.get_mut(&compartment)) {
                home.ports.insert(slot, port);
            }
        }
        for (key, (fd, note)) in found.programs {
            this.adopt_program(key, fd, &note);
        }
        this.adopt_limits();
        for (number, kept) in found.uplinks {
            match uplinks::adopt(kept) {
                Some(uplink) => drop(this.uplinks.insert(number, uplink)),
                None => this.keeper.forget(&format!("uplink/{number}/")),
            }
        }
        // The youngest first: of two with one seat the older is the one that died.
        for (id, kept) in found.workers.into_iter().rev() {
            this.adopt_worker(id, kept);
        }
        this.adopt_owners();
        this.share_cores();
        this.end_orphans();
        for body in found.half_ports {
            this.remove_half_port(body);
        }
        for prefix in &found.forget {
            this.unplug_half_made(prefix);
        }
        let all = this.seats();
        this.waiting = all
            .into_iter()
            .filter(|seat| this.seat(*seat).is_some_and(|s| s.worker.is_none()))
            .collect();
        let unconnected: Vec<u32> = this
            .compartments
            .iter()
            .filter(|(_, c)| c.channel.is_none())
            .map(|(id, _)| *id)
            .collect();
        for id in unconnected {
            this.replace_channel(id);
        }
        this.happened(
            Happened::new(EventKind::Ready, Subject::Supervisor)
                .value(u64::from(std::process::id())),
        );
        this.watch_now();
        Ok(this)
    }

    /// The loop; ends when the keeper says so.
    ///
    /// # Errors
    /// A sentence: the keeper is gone.
    pub fn run(&mut self) -> Result<(), String> {
        loop {
            self.fill_seats();
            self.go_on_hunting();
            let more = self.start_one()
                || self.start_verifier_if_due()
                || self.start_controller_if_due()
                || (self.waiting.is_empty() && self.channels.refill());
            let quiet = !more && !self.unlimited.is_empty() && self.now() >= self.refill_after;
            let timeout = self.until_next(more || quiet);
            let mut events = self.poll.wait(timeout).map_err(|e| format!("epoll: {e}"))?;
            let seated = self.unlimited.first().map(|(_, _, since)| *since);
            if seated
                .is_some_and(|since| limits_are_due(quiet && events.is_empty(), since, clock()))
            {
                self.limit_seated();
            }
            // The dead first: their tenants wait.
            events.sort_by_key(|(_, source)| !matches!(source, Source::Death(_)));
            for (token, source) in events {
                if !self.poll.stands(token) {
                    continue;
                }
                match source {
                    Source::Death(id) => self.reap(id),
                    Source::Worker(id) => self.hear_worker(id),
                    Source::Fetch(id) => self.fetched(id),
                    Source::Controller => self.hear_controller(),
                    Source::Namespaces => self.namespaces_deleted(),
                    Source::Listener(compartment, slot) => self.accept(compartment, slot),
                    Source::Client(compartment, slot) => self.hear_client(compartment, slot),
                    Source::Keeper => {
                        if self
                            .keeper
                            .listen()
                            .map_err(|e| format!("the keeper: {e}"))?
                            == Wish::Shutdown
                        {
                            self.end_everything();
                            return Ok(());
                        }
                    }
                }
            }
            self.look_at_all();
        }
    }

    /// How long the loop may sleep.
    fn until_next(&mut self, more: bool) -> Option<Duration> {
        let now = self.now();
        let backlog = self.flush(now);
        let mut next = vec![
            self.wake_listeners(now),
            self.next_helper(now),
            self.next_operator(now),
            self.next_proxy(now),
            self.next_meter(now),
            self.next_hunt(now),
            self.look_for_owners(now),
            self.expire_fetches(now),
            self.expire_installs(now),
            self.expire_owed(now),
            self.expire_starts(now),
            self.expire_proofs(now),
            self.proofs.due,
            self.next_watch,
            self.beat(now),
            self.controller_due,
            self.listen_for_controller(now),
            self.channels.reclaim(now),
        ];
        next.extend(backlog.then_some(Some(now + 1_000_000)));
        next.push((self.refill_after > now).then_some(self.refill_after));
        next.push((self.start_again > now).then_some(self.start_again));
        let dues = self
            .waiting
            .iter()
            .filter_map(|seat| self.seat(*seat))
            .map(|state| state.due);
        // A due one waits for a process to get ready, which is an event.
        next.push(dues.filter(|due| *due > now).min());
        if more {
            return Some(Duration::ZERO);
        }
        let next = next.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Tells the keeper that this process goes on; when it is to be told next.
    fn beat(&mut self, now: u64) -> Option<u64> {
        if now >= self.next_beat {
            self.keeper.beat();
            self.next_beat = now + BEAT;
        }
        Some(self.next_beat)
    }

    fn flush(&mut self, now: u64) -> bool {
        let mut waits = self.control.flush(now);
        let (mut deaf, mut told, mut heard) = (Vec::new(), Vec::new(), Vec::new());
        for (id, worker) in &mut self.workers {
            let Some(link) = worker.link.as_mut().filter(|link| link.backlog() > 0) else {
                continue;
            };
            if link.flush(now) {
                waits = true;
            } else if let Some(place) = worker.unnoted.take() {
                told.push((*id, place));
            }
            if link.is_deaf(now) {
                confine::say!(
                    "supervisor: process {} does not listen; it is killed",
                    worker.pid
                );
                for fd in link.give_up() {
                    self.errands.part_given(Whose::Uid(worker.uid), fd);
                }
                deaf.push(*id);
            } else if link.backlog() == 0 {
                heard.push(*id);
            }
        }
        for id in heard {
            if let Some(crate::role::Place::Seated(Seat::Compartment(compartment))) =
                self.workers.get(&id).map(|worker| worker.place)
            {
                self.link_helpers(compartment);
            }
        }
        for (id, place) in told {
            self.note_place(id, &place);
        }
        for id in deaf {
            self.distrust_process(id);
            self.kill_seated(id, CAUSE_STALL);
        }
        waits
    }

    /// Nanoseconds, CLOCK_MONOTONIC.
    pub fn now(&self) -> u64 {
        clock()
    }

    /// The state of a seat.
    pub fn seat(&self, seat: Seat) -> Option<&SeatState> {
        match seat {
            Seat::Fabric => Some(&self.fabric),
            Seat::Compartment(id) => self.compartments.get(&id).map(|c| &c.seat),
        }
    }

    /// The same, to change.
    pub fn seat_mut(&mut self, seat: Seat) -> Option<&mut SeatState> {
        match seat {
            Seat::Fabric => Some(&mut self.fabric),
            Seat::Compartment(id) => self.compartments.get_mut(&id).map(|c| &mut c.seat),
        }
    }

    /// Every seat.
    pub fn seats(&self) -> Vec<Seat> {
        std::iter::once(Seat::Fabric)
            .chain(self.compartments.keys().copied().map(Seat::Compartment))
            .collect()
    }

    /// The watch's next look is soon: something woke.
    pub fn watch_now(&mut self) {
        self.next_watch = Some(self.now() + WATCH_AWAKE);
    }

    /// Looks for processes that burn their processor and get nowhere.
    fn look_at_all(&mut self) {
        let now = self.now();
        if self.next_watch.is_none_or(|next| next > now) {
            return;
        }
        let (mut any, mut awake, mut stalled) = (false, false, Vec::new());
        let mut spent = Vec::new();
        for seat in self.seats() {
            let Some(id) = self.seat(seat).and_then(|state| state.worker) else {
                continue;
            };
            self.look_for_first_frame(seat);
            let Some(pid) = self.workers.get(&id).map(|worker| worker.pid) else {
                continue;
            };
            let workers = self.workers_of(seat);
            if workers > 1 {
                awake |= !self.pin_workers(seat, pid);
            }
            let Some(state) = self.seat_mut(seat) else {
                continue;
            };
            any = true;
            if workers > 1 {
                match state.look_at_workers(workers, pid) {
                    Seen::Asleep => {}
                    Seen::Awake => awake = true,
                    Seen::Stalled => stalled.push(id),
                }
                continue;
            }
            let (heartbeat, asleep) = (
                state.word(ProcessWord::Heartbeat),
                state.word(ProcessWord::Asleep) == 1,
            );
            let [progress, ..] = &mut state.progress;
            match progress.look(heartbeat, asleep, || {
                let cpu = confine::clock::process_cpu_time(pid).ok();
                spent.extend(cpu.map(|cpu| (seat, id, pid, cpu)));
                cpu
            }) {
                Seen::Asleep => {}
                Seen::Awake => awake = true,
                Seen::Stalled => stalled.push(id),
            }
        }
        for id in stalled {
            self.kill(id, Some(CAUSE_STALL));
        }
        let (operators, operates) = self.look_at_operators(now);
        let (meters, meter) = self.look_at_meters(now);
        any |= operators || meters;
        awake |= operates || meter;
        if awake && self.spread.is_due(now) {
            self.spread(now, &spent);
        }
        self.next_watch = any.then(|| now + if awake { WATCH_AWAKE } else { WATCH_ASLEEP });
        self.old_cgroups.retain(|group| group.remove().is_err());
    }

    /// The orderly end: nothing of this instance is left behind.
    fn end_everything(&mut self) {
        self.is_ending = true;
        let workers: Vec<u64> = self.workers.keys().copied().collect();
        for id in workers {
            self.kill(id, None);
        }
        let ids: Vec<u32> = self.compartments.keys().copied().collect();
        let gone = Refusal::new(ErrorCode::System, "everything is being ended");
        self.refuse_questions(&gone);
        for id in ids {
            if let Some(compartment) = self.compartments.get_mut(&id) {
                for install in std::mem::take(&mut compartment.seat.installs) {
                    self.refuse(install.seq, &gone);
                }
            }
            self.destroy_compartment(id);
        }
        self.searchers.end();
        self.namespaces.unmake_all();
        self.settings.clear();
        if !self.settings.rootless {
            ranges::remove(self.settings.first_uid());
        }
        for worker in self.workers.values_mut() {
            if let Some(link) = &mut worker.link {
                self.errands.part_link(Whose::Uid(worker.uid), link);
            }
        }
        self.errands
            .part_listener(Whose::Ports(u32::MAX), self.api.as_fd());
        // One second for all: some do not die as long as somebody likes.
        let until = self.now() + 1_000_000_000;
        for worker in self.workers.values() {
            let mut fds = [rustix::event::PollFd::new(
                &worker.pidfd,
                rustix::event::PollFlags::IN,
            )];
            let left = until.saturating_sub(self.now()).min(999_999_999);
            let left = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: left.cast_signed(),
            };
            let _ = rustix::event::poll(&mut fds, Some(&left));
            let status =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(worker.pidfd.as_fd()),
                status,
            );
        }
        // Who ends circuits would be killed with this process.
        while self.errands.is_awaited() && self.now() < until {
            std::thread::sleep(std::time::Duration::from_millis(2));
            self.errands.reap();
        }
        self.old_cgroups.retain(|group| group.remove().is_err());
        self.keeper.forget("");
    }
}

fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
