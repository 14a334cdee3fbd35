//! The keeper: starts first, holds every descriptor by name, starts the supervisor
//! again whenever it dies, and is the parent that every orphan falls back to, so
//! that nothing is left behind at the end.
//!
//! It thinks as little as it can: whoever holds everything must not die. It speaks
//! with the supervisor alone, in fixed-size messages, and reads nothing else. What
//! it starts needs privilege, so it can give up none of its own that a child would
//! have to regain; it does set no-new-privileges, which every child inherits: no
//! program below the keeper gains anything by executing a set-uid file.

mod arguments;
mod children;
mod lock;
mod vault;

use arguments::Arguments;
use children::{kill, kill_all};
use command::Message;
use command::verbs::{Beat, Shutdown};
use confine::signals::Signals;
use confine::{Child, Profile, Spawn, rootless, spawn};
use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};
use seqpacket::{Error, Socket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use vault::Vault;

/// After a death in a row the supervisor waits this long, doubled for each, and at
/// most that long; after the first not at all.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// A supervisor that lived this long breaks the row.
const STEADY: Duration = Duration::from_secs(30);
/// Starts in a row that never came to asking for its descriptors: then it is no use.
const HOPELESS: u32 = 5;
/// A supervisor is to say every five seconds that it goes on: one that says nothing for so long stands still.
const SILENT: Duration = Duration::from_secs(20);
/// How long the supervisor may take to end everything in order.
const FAREWELL: Duration = Duration::from_secs(20);
/// Open files asked for; less where the host gives less.
const FILES: u64 = 1 << 18;

/// Exit code where the host cannot keep a claim of SECURITY.md.
const HOST_REFUSED: u8 = 5;

fn main() -> ExitCode {
    let lacks = lacks();
    if guard!("keeper-host") && !lacks.is_empty() {
        for feature in lacks {
            confine::say!(
                "bulkhead-keeper: refused on this host: {} ({}): without it {}",
                feature.name,
                feature.detail,
                feature.lost
            );
        }
        confine::say!("bulkhead-keeper: `bulkhead doctor` shows all that it needs");
        return ExitCode::from(HOST_REFUSED);
    }
    match Keeper::new().and_then(Keeper::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            confine::say!("bulkhead-keeper: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What this host lacks without which nothing may run.
fn lacks() -> Vec<confine::Feature> {
    let mut features = confine::features();
    features.retain(confine::Feature::refuses);
    features
}

/// A supervisor that runs.
struct Supervisor {
    child: Child,
    socket: Socket,
    since: Instant,
    /// When it said last that it goes on, or began.
    beat: Instant,
}

impl Supervisor {
    /// When it is killed, unless it goes on.
    fn patience(&self) -> Option<Instant> {
        let until = self.beat.checked_add(SILENT);
        until.filter(|_| guard!("keeper-silent"))
    }
}

struct Keeper {
    arguments: Arguments,
    program: PathBuf,
    signals: Signals,
    vault: Vault,
    supervisor: Option<Supervisor>,
    /// When the supervisor is started, if it does not run.
    next_start: Instant,
    /// Its deaths in a row.
    deaths: u32,
    /// Starts since one last asked for its descriptors.
    fruitless: u32,
    ready: bool,
    /// When ending in order: until when.
    ending: Option<Instant>,
    /// The supervisor has ended everything and itself.
    ended: bool,
    /// When this process looked last.
    looked: Instant,
    lock: lock::Lock,
}

impl Keeper {
    fn new() -> Result<Keeper, String> {
        let arguments = Arguments::parse(std::env::args().skip(1))?;
        let system =
            |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
        let _ = rustix::thread::set_name(c"keeper");
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let program = program.with_file_name("bulkhead-supervisor");
        if arguments.rootless && !(rootless::is_root() && rootless::has_single_uid()) {
            rootless::enter_user_namespace().map_err(|error| error.to_string())?;
            confine::say!(
                "bulkhead-keeper: running without root: {}",
                rootless::WEAKER
            );
        } else if !rootless::is_root() {
            return Err("needs root; or give --rootless to run inside a user namespace".into());
        }
        let lock = lock::Lock::take(&arguments.run_dir, &arguments.state_dir)?;
        if arguments.log {
            lock.log()?;
        }
        rustix::thread::set_no_new_privs(true).map_err(system("no-new-privileges"))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(system("subreaper"))?;
        more_files();
        let signals = Signals::new(
            &[Signal::TERM, Signal::INT, Signal::HUP, Signal::CHILD].map(Signal::as_raw),
        )
        .map_err(system("signals"))?;
        let mut vault = Vault::open();
        // The pair between supervisor and controller: made once, so that either may
        // die without the other noticing.
        if !vault.has("control/supervisor") || !vault.has("control/controller") {
            let (ours, theirs) = Socket::pair().map_err(|error| error.to_string())?;
            vault.keep("control/supervisor", "", ours.into_fd());
            vault.keep("control/controller", "", theirs.into_fd());
        }
        Ok(Keeper {
            arguments,
            program,
            signals,
            vault,
            supervisor: None,
            next_start: Instant::now(),
            deaths: 0,
            fruitless: 0,
            ready: false,
            ending: None,
            ended: false,
            looked: Instant::now(),
            lock,
        })
    }

    /// Until the end: one wait, then whatever has happened.
    fn run(mut self) -> Result<(), String> {
        let result = loop {
            if self.supervisor.is_none() && Instant::now() >= self.next_start {
                self.start();
            }
            self.wait();
            if self.arguments.log {
                self.lock.trim_log();
            }
            while let Some(number) = self.signals.next_arrived() {
                if number != Signal::CHILD.as_raw() {
                    self.end();
                }
            }
            self.hear();
            self.watch();
            self.reap();
            let over = self.ending.is_some_and(|until| Instant::now() >= until);
            if self.ended || over {
                break Ok(());
            }
            if self.fruitless >= HOPELESS {
                break Err(format!(
                    "{} does not start; its messages are above",
                    self.program.display()
                ));
            }
        };
        kill_all();
        result
    }

    fn start(&mut self) {
        self.fruitless += 1;
        match self.launch() {
            Ok(supervisor) => self.supervisor = Some(supervisor),
            Err(message) => {
                confine::say!("bulkhead-keeper: {}: {message}", self.program.display());
                self.put_off();
            }
        }
        if self.ending.is_some() {
            self.tell_to_end();
        }
    }

    fn launch(&self) -> Result<Supervisor, String> {
        let program =
            rustix::fs::open(&self.program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| error.to_string())?;
        let (socket, theirs) = Socket::pair().map_err(|error| error.to_string())?;
        let passed = self.arguments.passed();
        let passed: Vec<&str> = passed.iter().map(String::as_str).collect();
        let child = spawn(&Spawn {
            profile: Profile::Supervisor,
            program: program.as_fd(),
            name: "bulkhead-supervisor",
            arguments: &passed,
            uid: 0,
            gid: 0,
            descriptors: &[theirs.as_fd()],
            stderr: Some(std::io::stderr().as_fd()),
            cgroup: None,
        })
        .map_err(|error| error.to_string())?;
        Ok(Supervisor {
            child,
            socket,
            since: Instant::now(),
            beat: Instant::now(),
        })
    }

    fn wait(&self) {
        let now = Instant::now();
        let start = self.supervisor.is_none().then_some(self.next_start);
        let patience = self.supervisor.as_ref().and_then(Supervisor::patience);
        let patience = patience.map(|until| until.min(now + SILENT / 4));
        let until = [start, self.ending, patience].into_iter().flatten().min();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if let Some(supervisor) = &self.supervisor {
            fds.push(PollFd::new(&supervisor.socket, PollFlags::IN));
            fds.push(PollFd::new(&supervisor.child.pidfd, PollFlags::IN));
        }
        // An interruption is as good as an event: everything is looked at anyway.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// What the supervisor asks.
    fn hear(&mut self) {
        let mut end = false;
        while let Some(supervisor) = &mut self.supervisor {
            match supervisor.socket.recv() {
                Ok(Some((message, fds))) => {
                    self.fruitless = 0;
                    if message.body::<Beat>().is_some() {
                        supervisor.beat = Instant::now();
                    }
                    end |= message.body::<Shutdown>().is_some();
                    match self.vault.serve(&supervisor.socket, &message, fds) {
                        // It is dead, but what it asked before is still done.
                        Ok(()) | Err(Error::Closed) => {}
                        Err(error) => {
                            confine::say!("bulkhead-keeper: supervisor: {error}");
                            kill(&supervisor.child);
                            break;
                        }
                    }
                    if !std::mem::replace(&mut self.ready, true) {
                        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
                    }
                }
                Ok(None) => break,
                Err(Error::Closed) => break,
                Err(error) => {
                    confine::say!("bulkhead-keeper: supervisor: {error}");
                    kill(&supervisor.child);
                    break;
                }
            }
        }
        if end {
            self.end();
        }
    }

    /// Kills a supervisor that stands still: another takes its place.
    fn watch(&mut self) {
        // Who was stopped with it, or had no processor either, has not seen that it stands still.
        let was_away = self.looked.elapsed() > SILENT / 2;
        self.looked = Instant::now();
        let Some(supervisor) = &mut self.supervisor else {
            return;
        };
        if was_away {
            supervisor.beat = Instant::now();
        }
        if supervisor
            .patience()
            .is_some_and(|end| Instant::now() >= end)
        {
            confine::say!("bulkhead-keeper: the supervisor stands still; it is killed");
            kill(&supervisor.child);
            // Once more in a while, if it is not dead by then.
            supervisor.beat = Instant::now();
        }
    }

    /// Takes the dead: the supervisor, or an orphan of one.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let is_it = |s: &Supervisor| Pid::from_raw(s.child.pid.cast_signed()) == Some(pid);
            if !self.supervisor.as_ref().is_some_and(is_it) {
                continue;
            }
            self.hear();
            let Some(supervisor) = self.supervisor.take() else {
                continue;
            };
            if supervisor.since.elapsed() >= STEADY {
                self.deaths = 0;
            }
            self.put_off();
            self.ended = self.ending.is_some() && status.exit_status() == Some(0);
            if !self.ended {
                confine::say!("bulkhead-keeper: the supervisor died ({status:?}); it starts again");
            }
        }
    }

    /// Sets the next start after one more death.
    fn put_off(&mut self) {
        let doubled = |n| BACKOFF.0 * 2_u32.saturating_pow(n);
        let wait = self.deaths.checked_sub(1).map_or(Duration::ZERO, doubled);
        self.next_start = Instant::now() + wait.min(BACKOFF.1);
        self.deaths = (self.deaths + 1).min(20);
    }

    /// Begins the orderly end, once.
    fn end(&mut self) {
        if self.ending.is_none() {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
            self.ending = Some(Instant::now() + FAREWELL);
            self.next_start = Instant::now();
            self.tell_to_end();
        }
    }

    fn tell_to_end(&self) {
        if let Some(supervisor) = &self.supervisor {
            let message = Message::new(0, &Shutdown::default());
            if supervisor.socket.send(&message, &[]).is_err() {
                kill(&supervisor.child);
            }
        }
    }
}

/// Each channel takes six descriptors, and all of them are here.
fn more_files() {
    let limit = |files| Rlimit {
        current: Some(files),
        maximum: Some(files),
    };
    if rustix::process::setrlimit(Resource::Nofile, limit(FILES)).is_err()
        && let Some(most) = rustix::process::getrlimit(Resource::Nofile).maximum
    {
        let _ = rustix::process::setrlimit(Resource::Nofile, limit(most));
    }
}
