//! A switch process as the supervisor starts it.

use command::Message;
use command::message::Body;
use command::verbs::*;
use image::CompartmentTables;
use image::compartment::FEATURE_ALL;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use seqpacket::Socket;
use shm::{Channel, Geometry, Pair, PeerWords, SealedImage, Start, attach};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use telemetry::counters::{self, Counter};
use telemetry::drops::DropReason;

pub const SLOTS: u32 = 4;
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A switch process and what outlives it.
pub struct Rig {
    pub control: Socket,
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub counters: OwnedFd,
    pub recorder: OwnedFd,
    pub geometry: Geometry,
    pub pairs: Vec<Pair>,
    /// `WAIT_*`, microseconds, whether the cores are shared.
    pub waiting: (u32, u32, u32),
    pub workers: u32,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Rig {
    pub fn new() -> Rig {
        Rig::that_waits((WAIT_ADAPTIVE, 5, 1))
    }

    pub fn that_waits(waiting: (u32, u32, u32)) -> Rig {
        Rig::of(waiting, 1)
    }

    /// With channels in all its slots, and so many workers.
    pub fn of_several(workers: u32) -> Rig {
        let rig = Rig::of((WAIT_ADAPTIVE, 5, 1), workers);
        rig.plug(0);
        rig
    }

    fn of(waiting: (u32, u32, u32), workers: u32) -> Rig {
        let bytes = counters::bytes_for(SLOTS as usize);
        let geometry = Geometry::records(1 << 19, Geometry::max_record_for(65_664)).unwrap();
        let counters = shm::memory_file("counters", bytes).unwrap();
        let recorder = shm::memory_file("recorder", telemetry::recorder::BYTES).unwrap();
        let pairs = (1..SLOTS)
            .map(|_| Pair::create(&geometry).unwrap())
            .collect();
        let (control, pid, pidfd) = start();
        let rig = Rig {
            control,
            pid,
            pidfd,
            counters,
            recorder,
            geometry,
            pairs,
            waiting,
            workers,
        };
        rig.attach(START_FRESH);
        rig
    }

    /// With channels in all its slots.
    pub fn with_channels() -> Rig {
        let rig = Rig::new();
        rig.plug(0);
        rig
    }

    pub fn attach(&self, how: u32) {
        let (wait, wait_us, shared_cores) = self.waiting;
        let body = Attach {
            compartment: 7,
            slots: SLOTS,
            wait,
            wait_us,
            shared_cores,
            start: how,
            seed: if how == START_FRESH { [5; 16] } else { [6; 16] },
            workers: self.workers,
            ..Attach::default()
        };
        if self.workers > 1 {
            let threads = Some(u64::from(self.workers) + 1);
            let limit = rustix::process::Rlimit {
                current: threads,
                maximum: Some(9),
            };
            let which = rustix::process::Resource::Nproc;
            rustix::process::prlimit(Some(self.pid), which, limit).unwrap();
        }
        self.tell(&body, &[&self.counters, &self.recorder]);
    }

    pub fn plug(&self, resume: u32) {
        for (pair, slot) in self.pairs.iter().zip(1..) {
            self.plug_one(pair, slot, resume);
        }
    }

    /// The message that plugs a channel in.
    pub fn port(&self, slot: u32, resume: u32) -> AddPort {
        AddPort {
            slot,
            kind: PORT_CHANNEL,
            capacity: self.geometry.capacity() as u32,
            max_record: self.geometry.max_record() as u32,
            resume,
            version: ring::VERSION,
            mtu: 9000,
            features: u32::from(FEATURE_ALL),
        }
    }

    pub fn plug_one(&self, pair: &Pair, slot: u32, resume: u32) {
        let body = self.port(slot, resume);
        self.control
            .send(&Message::new(0, &body), &pair.end_a().unwrap().as_fds())
            .unwrap();
    }

    pub fn tell<B: Body>(&self, body: &B, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.control.send(&Message::new(0, body), &fds).unwrap();
    }

    /// The next message of a kind.
    pub fn hear<B: Body>(&self) -> B {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let heard = self.control.recv_wait(Duration::from_millis(100));
            if let Ok(Some((message, _))) = heard
                && let Some(body) = message.body::<B>()
            {
                return body;
            }
        }
        panic!("nothing heard");
    }

    pub fn install(&self, tables: &CompartmentTables, epoch: u64) {
        let bytes = tables.finish().unwrap();
        let image = image::MappedCompartment::map(image::Aligned::copy_of(&bytes)).unwrap();
        let fd = SealedImage::create("image", &bytes).unwrap();
        self.tell(
            &UseImage {
                epoch,
                digest: image.digest().0,
            },
            &[&fd],
        );
        let running: Running = self.hear();
        assert_eq!((running.epoch, running.refused), (epoch, 0));
    }

    pub fn guest(&self, slot: u32) -> Channel {
        let pair = &self.pairs[slot as usize - 1];
        attach(pair.end_b().unwrap(), &self.geometry, Start::Fresh).unwrap()
    }

    pub fn words(&self) -> PeerWords {
        PeerWords::map(&self.counters).unwrap()
    }

    pub fn drops(&self, slot: u32, reason: DropReason) -> u64 {
        self.words()
            .load(counters::drop_word(slot as usize, reason))
    }

    pub fn count(&self, slot: u32, counter: Counter) -> u64 {
        self.words()
            .load(counters::counter_word(slot as usize, counter))
    }

    pub fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }

    /// Kills it and seats another in its place.
    pub fn restart(&mut self) {
        self.kill();
        (self.control, self.pid, self.pidfd) = start();
        self.attach(START_FAULT);
        self.plug(1);
    }
}

pub fn start() -> (Socket, Pid, OwnedFd) {
    let (ours, theirs) = Socket::pair().unwrap();
    let theirs = theirs.into_fd();
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_bulkhead-switch")).unwrap();
    let root = rustix::process::geteuid().is_root();
    let (uid, gid) = if root {
        (3_900_000 + std::process::id(), 3_900_000)
    } else {
        (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
    };
    let stderr = std::io::stderr();
    let child = confine::spawn(&confine::Spawn {
        profile: confine::Profile::Switch,
        program: program.as_fd(),
        name: "bulkhead-switch",
        arguments: &[],
        uid,
        gid,
        descriptors: &[theirs.as_fd()],
        stderr: Some(stderr.as_fd()),
        cgroup: None,
    })
    .unwrap();
    drop(theirs);
    let (ready, _) = ours
        .recv_wait(PATIENCE)
        .unwrap()
        .expect("it says that it is ready");
    let ready = ready.body::<Ready>().unwrap();
    assert_eq!(ready.role, 1);
    assert!(
        confine::Stages(ready.stages)
            .missing(confine::Profile::Switch)
            .is_empty()
    );
    (ours, Pid::from_raw(child.pid as i32).unwrap(), child.pidfd)
}
