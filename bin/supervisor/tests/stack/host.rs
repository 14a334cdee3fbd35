//! The test's side: a keeper that holds what it is given, a controller that asks.

use command::bundle::{Bundle, Part};
use command::message::Name;
use command::verbs::*;
use command::{Body, Message, Verb};
use confine::{Profile, Spawn};
use rustix::process::{Pid, Signal, WaitOptions};
use seqpacket::Socket;
use shm::PeerWords;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, counter_word};
use telemetry::recorder::EventKind;

/// Waits end with a panic after this long.
pub const LIMIT: Duration = Duration::from_secs(15);

type Vault = Arc<Mutex<BTreeMap<String, (OwnedFd, String)>>>;

/// A host with a supervisor on it.
pub struct Host {
    folder: tempfile::TempDir,
    prefix: String,
    vault: Vault,
    control: Socket,
    supervisor: Option<(confine::Child, Arc<Socket>)>,
    events: VecDeque<Event>,
    answers: Vec<(Message, Vec<OwnedFd>)>,
    seq: u32,
}

impl Host {
    pub fn start() -> Host {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let prefix = format!(
            "bhg{}-{}-",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let programs = folder.path().join("bin");
        std::fs::create_dir_all(&programs).unwrap();
        let copy = |from: &Path, name: &str| std::fs::copy(from, programs.join(name)).unwrap();
        copy(
            Path::new(env!("CARGO_BIN_EXE_bulkhead-supervisor")),
            "bulkhead-supervisor",
        );
        for name in [
            "bulkhead-switch",
            "bulkhead-fabric",
            "bulkhead-verifier",
            "bulkhead-operator",
            "bulkhead-loose",
        ] {
            copy(&std::env::current_exe().unwrap(), name);
        }
        let (ours, theirs) = Socket::pair().unwrap();
        let control = ours;
        let (supervisor_end, controller_end) = (theirs, Socket::pair().unwrap().0);
        let vault = Vault::default();
        vault.lock().unwrap().insert(
            "control/supervisor".into(),
            (supervisor_end.into_fd(), String::new()),
        );
        vault.lock().unwrap().insert(
            "control/controller".into(),
            (controller_end.into_fd(), String::new()),
        );
        let mut host = Host {
            folder,
            prefix,
            vault,
            control,
            supervisor: None,
            events: VecDeque::new(),
            answers: Vec::new(),
            seq: 0,
        };
        host.restart_supervisor();
        host.event(EventKind::Ready);
        host
    }

    pub fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Puts one more program beside the supervisor.
    pub fn add_program(&self, name: &str) {
        std::fs::copy(
            std::env::current_exe().unwrap(),
            self.folder.path().join("bin").join(name),
        )
        .unwrap();
    }

    /// A name for a namespace that nobody else has.
    pub fn namespace(&self, word: &str) -> String {
        format!("{}{word}", self.prefix)
    }

    pub fn restart_supervisor(&mut self) {
        std::fs::create_dir_all(self.run_dir()).unwrap();
        let program = self.folder.path().join("bin/bulkhead-supervisor");
        let program = rustix::fs::open(
            &program,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        let (ours, theirs) = Socket::pair().unwrap();
        let run = self.run_dir().display().to_string();
        let state = self.folder.path().join("state").display().to_string();
        let child = confine::spawn(&Spawn {
            profile: Profile::Supervisor,
            program: program.as_fd(),
            name: "bulkhead-supervisor",
            arguments: &["--run-dir", &run, "--state-dir", &state],
            uid: 0,
            gid: 0,
            descriptors: &[theirs.as_fd()],
            stderr: Some(std::io::stderr().as_fd()),
            cgroup: None,
        })
        .unwrap();
        drop(theirs);
        let socket = Arc::new(ours);
        let (vault, keeper) = (self.vault.clone(), socket.clone());
        std::thread::spawn(move || serve(&keeper, &vault));
        self.supervisor = Some((child, socket));
    }

    pub fn kill_supervisor(&mut self) {
        if let Some((child, _)) = self.supervisor.take() {
            rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL).unwrap();
            reap(child.pid);
        }
        self.events.clear();
    }

    /// What a keeper does at the end.
    pub fn shut_down(&mut self) {
        let Some((child, socket)) = self.supervisor.take() else {
            return;
        };
        socket
            .send_wait(&Message::new(0, &Shutdown::default()), &[], LIMIT)
            .unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &child.pidfd,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 15,
            tv_nsec: 0,
        };
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&limit)),
            Ok(1),
            "the supervisor ends"
        );
        reap(child.pid);
        // The keeper takes what falls to it.
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        std::thread::sleep(Duration::from_millis(20));
    }

    pub fn kept(&self) -> usize {
        self.vault.lock().unwrap().len()
    }

    /// The supervisor's process.
    pub fn supervisor_pid(&self) -> u32 {
        self.supervisor.as_ref().map_or(0, |(child, _)| child.pid)
    }

    /// Processes below this one.
    pub fn children(&self) -> usize {
        // As a keeper does: what fell to it and is dead is taken.
        let supervisor = self.supervisor.as_ref().map(|(child, _)| child.pid);
        let mut count = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            count += text.split_whitespace().count();
            for pid in text.split_whitespace() {
                if pid.parse().ok() != supervisor {
                    let dead = rustix::process::waitpid(
                        pid.parse().ok().and_then(Pid::from_raw),
                        WaitOptions::NOHANG,
                    );
                    count -= usize::from(matches!(dead, Ok(Some(_))));
                }
                let own = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
                    .unwrap_or_default();
                count += own.split_whitespace().count();
            }
        }
        count
    }

    pub fn send<B: Body>(&mut self, body: &B) -> u32 {
        self.send_with(body, &[])
    }

    pub fn send_with<B: Body>(&mut self, body: &B, fds: &[&OwnedFd]) -> u32 {
        self.seq += 1;
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.control
            .send_wait(&Message::new(self.seq, body), &fds, LIMIT)
            .unwrap();
        self.seq
    }

    pub fn answer(&mut self, seq: u32) -> (Message, Vec<OwnedFd>) {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(at) = self
                .answers
                .iter()
                .position(|(message, _)| message.seq == seq)
            {
                return self.answers.remove(at);
            }
            assert!(Instant::now() < end, "the supervisor does not answer");
            self.hear(Duration::from_millis(50));
        }
    }

    fn hear(&mut self, limit: Duration) {
        if let Some((message, fds)) = self.control.recv_wait(limit).unwrap() {
            match message.body::<Event>() {
                Some(event) if message.seq == 0 => self.events.push_back(event),
                _ => self.answers.push((message, fds)),
            }
        }
    }

    /// Takes whatever a supervisor that is dead had said.
    pub fn drain(&mut self) {
        self.event(EventKind::Ready);
        self.answers.clear();
        self.events.clear();
    }

    pub fn ask<B: Body>(&mut self, body: &B) -> Result<(Message, Vec<OwnedFd>), u32> {
        self.ask_with(body, &[])
    }

    pub fn ask_with<B: Body>(
        &mut self,
        body: &B,
        fds: &[&OwnedFd],
    ) -> Result<(Message, Vec<OwnedFd>), u32> {
        let seq = self.send_with(body, fds);
        let (message, fds) = self.answer(seq);
        if message.error == 0 {
            return Ok((message, fds));
        }
        let done = message.body::<Done>().expect("a refusal is a Done");
        assert!(!done.detail.as_str().is_empty(), "a refusal has a sentence");
        Err(message.error)
    }

    pub fn ok<B: Body>(&mut self, body: &B) {
        let seq = self.send(body);
        let (message, _) = self.answer(seq);
        let done = message.body::<Done>().unwrap_or_default();
        assert_eq!(message.error, 0, "{}", done.detail.as_str());
        assert_eq!(message.verb, Verb::Done as u16);
    }

    /// Asks the stand-in for the verifier, which does by the bundle's name what it is to.
    pub fn prove(&mut self, how: &str, purpose: u32, images: &[&[u8]]) -> Result<Verdict, u32> {
        let (body, fd) = question(how, purpose, images);
        let (message, _) = self.ask_with(&body, &[&fd])?;
        Ok(message.body().expect("a verdict"))
    }

    pub fn install(&mut self, target: u32, epoch: u64) -> Result<(), u32> {
        self.prove("honest", PROVE_TO_INSTALL, &[&epoch_bytes(epoch)])?;
        let (fd, body) = epoch_image(target, epoch);
        self.ask_with(&body, &[&fd]).map(|_| ())
    }

    pub fn send_install(&mut self, target: u32, epoch: u64) {
        let proved = self.prove("honest", PROVE_TO_INSTALL, &[&epoch_bytes(epoch)]);
        assert_eq!(proved.map(|verdict| verdict.outcome), Ok(VERDICT_PROVED));
        let (fd, body) = epoch_image(target, epoch);
        self.send_with(&body, &[&fd]);
    }

    /// The verifier's process id.
    pub fn verifier(&mut self) -> u32 {
        let mut found = None;
        self.until("a verifier that is ready", |host| {
            found = host.noted("place=verifier");
            found.is_some()
        });
        found.unwrap()
    }

    /// The process of which the keeper has such a note.
    pub fn noted(&self, word: &str) -> Option<u32> {
        let vault = self.vault.lock().unwrap();
        let has = |note: &str| note.split_whitespace().any(|one| one == word);
        let (name, _) =
            (vault.iter()).find(|(name, (_, note))| name.ends_with("/control") && has(note))?;
        let (_, note) = vault.get(&name.replace("/control", "/pidfd"))?;
        let mut words = note.split_whitespace();
        words.find_map(|word| word.strip_prefix("pid=")?.parse().ok())
    }

    /// Of the process that is noted there little waits in its socket, whatever this machine permits.
    pub fn narrows(&self, word: &str) {
        let vault = self.vault.lock().unwrap();
        let has = |note: &str| note.split_whitespace().any(|one| one == word);
        let mut all = vault.iter();
        let (_, (socket, _)) = all
            .find(|(name, (_, note))| name.ends_with("/control") && has(note))
            .unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 1 << 16).unwrap();
    }

    /// How many names that begin like this the keeper has.
    pub fn kept_below(&self, prefix: &str) -> usize {
        let vault = self.vault.lock().unwrap();
        vault.keys().filter(|name| name.starts_with(prefix)).count()
    }

    pub fn inspect(&mut self, target: u32) -> Inspect {
        self.ask(&Inspect {
            target,
            ..Inspect::default()
        })
        .unwrap()
        .0
        .body()
        .unwrap()
    }

    /// A counter of a slot, from the page that the supervisor gives read-only.
    pub fn count(&mut self, target: u32, slot: usize, counter: Counter) -> u64 {
        let (_, fds) = self
            .ask(&Inspect {
                target,
                ..Inspect::default()
            })
            .unwrap();
        PeerWords::map(&fds[0])
            .unwrap()
            .load(counter_word(slot, counter))
    }

    pub fn inventory(&mut self) -> Vec<Inventory> {
        let seq = self.send(&Inventory::default());
        let mut all = Vec::new();
        loop {
            let (message, _) = self.answer(seq);
            match message.body::<Inventory>() {
                Some(entry) => all.push(entry),
                None => return all,
            }
        }
    }

    /// The next event of this kind; earlier ones of others are dropped.
    pub fn event(&mut self, kind: EventKind) -> Event {
        let end = Instant::now() + LIMIT;
        loop {
            while let Some(event) = self.events.pop_front() {
                if event.kind == kind as u32 {
                    return event;
                }
            }
            assert!(Instant::now() < end, "no event {kind:?}");
            self.hear(Duration::from_millis(50));
        }
    }

    /// The next event, of whatever kind.
    pub fn any_event(&mut self) -> Event {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(Instant::now() < end, "no event");
            self.hear(Duration::from_millis(50));
        }
    }

    pub fn wait_for(&mut self, target: u32, holds: impl Fn(&Inspect) -> bool) -> Inspect {
        let end = Instant::now() + LIMIT;
        loop {
            let seen = self.inspect(target);
            if holds(&seen) {
                return seen;
            }
            assert!(Instant::now() < end, "{seen:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn until(&mut self, what: &str, holds: impl FnMut(&mut Host) -> bool) {
        self.until_in(LIMIT, what, holds);
    }

    pub fn until_in(
        &mut self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut(&mut Host) -> bool,
    ) {
        let end = Instant::now() + limit;
        while !holds(self) {
            assert!(Instant::now() < end, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Until spares are there again.
    pub fn settle(&mut self) {
        std::thread::sleep(Duration::from_millis(300));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.supervisor.is_none() && self.kept() > 0 {
            self.restart_supervisor();
        }
        if !std::thread::panicking() {
            self.shut_down();
            return;
        }
        if let Some((_, socket)) = &self.supervisor {
            let _ = socket.send(&Message::new(0, &Shutdown::default()), &[]);
            std::thread::sleep(Duration::from_secs(2));
        }
        for entry in std::fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&self.prefix) {
                let _ = Command::new("ip").args(["netns", "del", &name]).status();
            }
        }
    }
}

/// The keeper's part of the protocol.
fn serve(socket: &Socket, vault: &Vault) {
    loop {
        let (message, mut fds) = match socket.recv_wait(Duration::from_secs(60)) {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(_) => return,
        };
        let done = Message::new(message.seq, &Done::default());
        let mut vault = vault.lock().unwrap();
        if let Some(body) = message.body::<Keep>() {
            vault.insert(
                body.name.as_str().into(),
                (fds.remove(0), body.note.as_str().into()),
            );
        } else if let Some(body) = message.body::<Forget>() {
            let name = body.name.as_str();
            vault.retain(|key, _| {
                if body.exact == 1 {
                    key != name
                } else {
                    !key.starts_with(name)
                }
            });
        } else if message.body::<List>().is_some() {
            for (name, (fd, note)) in vault.iter() {
                let body = List {
                    name: Name::new(name).unwrap(),
                    note: Name::new(note).unwrap(),
                };
                let _ = socket.send_wait(&Message::new(message.seq, &body), &[fd.as_fd()], LIMIT);
            }
        }
        // What a supervisor asked before it died is still done.
        let _ = socket.send_wait(&done, &[], LIMIT);
    }
}

fn reap(pid: u32) {
    let _ = rustix::process::waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::empty());
}

/// A compartment whose stand-in misbehaves by `mode`.
pub fn red(id: u32, mode: u32) -> CreateCompartment {
    CreateCompartment {
        workers: 0,
        other_cores: [0; 7],
        id,
        wait: WAIT_ADAPTIVE,
        wait_us: mode,
        core: u32::MAX,
        sandbox: 1,
        slots: 4,
        capacity: 1 << 18,
        max_record: 2048,
        memory: 64 << 20,
        name: Name::new(&format!("red-{id}")).unwrap(),
        program: Name::default(),
    }
}

/// A tap in a namespace that is made.
pub fn tap(compartment: u32, slot: u32, namespace: &str) -> CreatePort {
    CreatePort {
        compartment,
        slot,
        endpoint: 77,
        kind: ENDPOINT_TAP,
        flags: CREATE_NAMESPACE,
        mtu: 1400,
        address4: [10, 9, 0, 2],
        gateway4: [10, 9, 0, 1],
        address6: "fd00:9::2".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        gateway6: "fd00:9::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        prefix4_len: 24,
        prefix6_len: 64,
        mac: [2, 0, 0, 0, 0, 9],
        interface: Name::new("eth0").unwrap(),
        namespace: Name::new(namespace).unwrap(),
        name: Name::new("red/web1").unwrap(),
        ..CreatePort::default()
    }
}

/// A fifo.
pub fn fifo(compartment: u32, slot: u32, name: &str) -> CreatePort {
    CreatePort {
        kind: ENDPOINT_FIFO,
        flags: 0,
        capacity: 1 << 16,
        max_record: 2048,
        name: Name::new(name).unwrap(),
        ..tap(compartment, slot, "")
    }
}

/// Sealed bytes that are no real image (nobody here reads them), and the request.
pub fn epoch_image(target: u32, epoch: u64) -> (OwnedFd, Install) {
    let bytes = epoch_bytes(epoch);
    let fd = shm::SealedImage::create("test-image", &bytes).unwrap();
    let digest = image::digest(&bytes).unwrap().0;
    (
        fd,
        Install {
            target,
            must: 0,
            epoch,
            digest,
        },
    )
}

pub fn epoch_bytes(epoch: u64) -> Vec<u8> {
    let mut bytes = vec![0xA5; 256];
    bytes.extend(epoch.to_le_bytes());
    bytes
}

/// A question about these images.
pub fn question(how: &str, purpose: u32, images: &[&[u8]]) -> (Prove, OwnedFd) {
    let images = (1..).zip(images.iter().map(|bytes| Part::Bytes(bytes)));
    let bundle = Bundle {
        compartments: images.collect(),
        ..Bundle::ahead(how, b"")
    };
    let fd = shm::SealedImage::create("test-bundle", &bundle.write()).unwrap();
    let body = Prove {
        purpose,
        compromised: 0,
    };
    (body, fd)
}

/// What a fifo's client gets.
#[derive(Debug)]
pub struct Attached {
    pub socket: Socket,
    pub body: AddPort,
    pub fds: Vec<OwnedFd>,
}

/// Connects to a fifo.
pub fn attach_fifo(path: &Path) -> Result<Attached, u32> {
    let socket = Socket::connect(path).unwrap();
    let (message, fds) = socket.recv_wait(LIMIT).unwrap().expect("an answer");
    match message.body::<AddPort>() {
        Some(body) if message.error == 0 => Ok(Attached { socket, body, fds }),
        _ => Err(message.error),
    }
}

/// Whether a process of this uid is let in; by a connection made in a child that has
/// no other uid.
pub fn attach_as(path: &Path, uid: u32) -> bool {
    let script = "import socket,sys,os\n\
        os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n\
        s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n\
        d=s.recv(512); sys.exit(0 if d[8:12]==b'\\0\\0\\0\\0' and d[0]==18 else 9)";
    let mut opened = path.to_owned();
    // The way there is closed to others (a temporary directory).
    while let Some(parent) = opened
        .parent()
        .map(Path::to_owned)
        .filter(|p| p != Path::new("/tmp") && p != Path::new("/"))
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&parent, std::fs::Permissions::from_mode(0o755)).unwrap();
        opened = parent;
    }
    let status = Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(path)
        .arg(uid.to_string())
        .status()
        .unwrap();
    status.success()
}

/// Runs a command and gives what it printed.
pub fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether there is a named namespace.
pub fn netns_exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}
