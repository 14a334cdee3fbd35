//! A host around a real, confined fabric: the test is the supervisor and the
//! switches, and holds the other end of the wire.
#![allow(dead_code, reason = "each test file uses its part")]

use command::Message;
use command::message::{Body, Verb};
use command::verbs::*;
use confine::{Profile, Spawn, Stages};
use image::fabric::*;
use image::{FabricTables, digest};
use ring::{Doorbell, Geometry, PushError};
use rustix::process::{Signal, WaitIdOptions, pidfd_send_signal, waitid};
use seqpacket::Socket;
use shm::{Channel, Pair, PeerWords, SealedImage, Start};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use telemetry::counters::{self, Counter, ProcessWord};
use telemetry::drops::DropReason;
use telemetry::recorder;
use wire::RawOffload;

pub const SLOTS: u32 = 16;
pub const UPLINK: u32 = 9;
pub const LONG: Duration = Duration::from_secs(10);
const CAPACITY: usize = 1 << 19;

/// MAC of the compartment in a slot.
pub fn mac(slot: u32) -> [u8; 6] {
    [2, 0, 0, 0, 1, slot as u8]
}

/// A frame with a number in it.
pub fn frame(to: [u8; 6], from: [u8; 6], number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0xab; len.max(22)];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    frame
}

pub fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[14..22].try_into().unwrap())
}

/// Compartments 2 and 3 may talk with each other (as if they had an agreement, tag
/// 7); 1 has an uplink, tag 5.
pub fn tables() -> FabricTables {
    let channel = |id, kind, slot| Channel_ {
        id,
        kind,
        slot,
        weight: 1,
        ..Channel_::default()
    };
    let entry = |ingress, tag, mac, target, out_tag| Forward {
        ingress,
        tag,
        mac,
        target,
        out_tag,
        kind: FORWARD_UNICAST,
    };
    let mut template = Template {
        egress: UPLINK,
        tag: 5,
        len: 14,
        ..Template::default()
    };
    template.mask[6..12].fill(255);
    template.value[6..12].copy_from_slice(&mac(1));
    FabricTables {
        channels: vec![
            channel(1, CHANNEL_COMPARTMENT, 1),
            channel(2, CHANNEL_COMPARTMENT, 2),
            channel(3, CHANNEL_COMPARTMENT, 3),
            channel(0, CHANNEL_UPLINK, UPLINK),
        ],
        forwards: vec![
            entry(2, 7, mac(3), 3, 7),
            entry(3, 7, mac(2), 2, 7),
            entry(1, 5, [0; 6], UPLINK, 0),
            entry(UPLINK, 0, mac(1), 1, 5),
        ],
        groups: vec![],
        templates: vec![(0, template)],
    }
}
type Channel_ = image::fabric::Channel;

/// A process under test, killed when it goes out of scope.
pub struct Process {
    pub control: Socket,
    pub pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Starts and confines a program, and waits until it says that it is.
    pub fn start(path: &Path, name: &str, profile: Profile) -> Process {
        static UIDS: AtomicU32 = AtomicU32::new(3_900_000);
        let own = rustix::process::getuid().as_raw();
        let uid = if own == 0 {
            UIDS.fetch_add(1, Ordering::Relaxed)
        } else {
            own
        };
        let gid = if own == 0 {
            uid
        } else {
            rustix::process::getgid().as_raw()
        };
        let program =
            File::open(path).unwrap_or_else(|e| panic!("{}: {e}: build it first", path.display()));
        let (control, theirs) = Socket::pair().unwrap();
        let stderr = std::io::stderr();
        let child = confine::spawn(&Spawn {
            profile,
            program: program.as_fd(),
            name,
            arguments: &[],
            uid,
            gid,
            descriptors: &[theirs.as_fd()],
            stderr: Some(stderr.as_fd()),
            cgroup: None,
        })
        .unwrap();
        let (message, _) = control
            .recv_wait(LONG)
            .unwrap()
            .expect("it says that it is ready");
        let ready: Ready = message.body().unwrap();
        assert_eq!(Stages(ready.stages).missing(profile), []);
        Process {
            control,
            pid: child.pid,
            pidfd: child.pidfd,
        }
    }

    pub fn fabric() -> Process {
        Process::start(
            Path::new(env!("CARGO_BIN_EXE_bulkhead-fabric")),
            "bulkhead-fabric",
            Profile::Fabric,
        )
    }

    pub fn tell<B: Body>(&self, body: &B, fds: &[BorrowedFd<'_>]) {
        self.control
            .send_wait(&Message::new(0, body), fds, LONG)
            .unwrap();
    }

    /// The next message of a kind; others are passed over.
    pub fn hears<B: Body>(&self, within: Duration) -> Option<B> {
        let end = Instant::now() + within;
        while let Some((message, _)) = self
            .control
            .recv_wait(end.saturating_duration_since(Instant::now()))
            .ok()?
        {
            if let Some(body) = message.body() {
                return Some(body);
            }
        }
        None
    }

    pub fn is_alive(&self) -> bool {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(rustix::process::WaitId::PidFd(self.pidfd.as_fd()), how)
            .unwrap()
            .is_none()
    }

    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(
            rustix::process::WaitId::PidFd(self.pidfd.as_fd()),
            WaitIdOptions::EXITED,
        );
    }
}

/// What outlives the fabric: pages, channels, the uplink.
pub struct Host {
    pub fabric: Process,
    counters: OwnedFd,
    recorder: OwnedFd,
    pub words: PeerWords,
    pairs: BTreeMap<u32, Pair>,
    wires: BTreeMap<u32, UnixDatagram>,
    epoch: u64,
    /// `WAIT_*`, microseconds, whether the cores are shared.
    waiting: (u32, u32, u32),
}

impl Host {
    pub fn new() -> Host {
        Host::waiting((WAIT_ADAPTIVE, 5, 1))
    }

    fn waiting(waiting: (u32, u32, u32)) -> Host {
        let counters = shm::memory_file("counters", counters::bytes_for(SLOTS as usize)).unwrap();
        let recorder = shm::memory_file("recorder", recorder::BYTES).unwrap();
        let words = PeerWords::map(&counters).unwrap();
        let host = Host {
            fabric: Process::fabric(),
            counters,
            recorder,
            words,
            pairs: BTreeMap::new(),
            wires: BTreeMap::new(),
            epoch: 0,
            waiting,
        };
        host.attach(START_FRESH);
        host
    }

    /// With the usual tables, and honest switches in 2 and 3.
    pub fn usual() -> (Host, Switch, Switch) {
        Host::that_waits((WAIT_ADAPTIVE, 5, 1))
    }

    /// The same, waiting otherwise.
    pub fn that_waits(waiting: (u32, u32, u32)) -> (Host, Switch, Switch) {
        let mut host = Host::waiting(waiting);
        let (two, three) = (host.switch(2), host.switch(3));
        assert_eq!(host.install(&tables()), 0);
        (host, two, three)
    }

    fn attach(&self, start: u32) {
        let (wait, wait_us, shared_cores) = self.waiting;
        let body = Attach {
            slots: SLOTS,
            wait,
            wait_us,
            shared_cores,
            start,
            seed: [7; 16],
            ..Attach::default()
        };
        self.fabric
            .tell(&body, &[self.counters.as_fd(), self.recorder.as_fd()]);
    }

    /// Plugs a channel into a slot; returns the switch's end.
    pub fn switch(&mut self, slot: u32) -> Switch {
        let pair = self.pair(slot);
        let channel = shm::attach(pair.end_a().unwrap(), &geometry(), Start::Fresh).unwrap();
        Switch { channel, slot }
    }

    /// Plugs a channel into a slot; its other end is for whoever gets it.
    pub fn pair(&mut self, slot: u32) -> &Pair {
        let pair = Pair::create(&geometry()).unwrap();
        self.plug(slot, &pair, 0);
        self.pairs.insert(slot, pair);
        &self.pairs[&slot]
    }

    fn plug(&self, slot: u32, pair: &Pair, resume: u32) {
        let fds = pair.end_b().unwrap();
        self.fabric.tell(&channel_body(slot, resume), &fds.as_fds());
    }

    /// Plugs a socket in as an uplink: the wire is a pair of datagram sockets, which
    /// carry an offload header and a frame as a packet socket does.
    pub fn uplink(&mut self) -> Wire {
        let (inside, outside) = UnixDatagram::pair().unwrap();
        for end in [&inside, &outside] {
            end.set_nonblocking(true).unwrap();
        }
        let body = AddPort {
            slot: UPLINK,
            kind: PORT_PACKET,
            mtu: 1500,
            ..AddPort::default()
        };
        self.fabric.tell(&body, &[inside.as_fd()]);
        self.wires.insert(UPLINK, inside);
        Wire(outside)
    }

    /// Installs an image; returns what `Running` says was refused.
    pub fn install(&mut self, tables: &FabricTables) -> u32 {
        let bytes = tables.finish().unwrap();
        let digest = digest(&bytes).unwrap().0;
        self.install_bytes(&bytes, digest)
    }

    pub fn install_bytes(&mut self, bytes: &[u8], digest: [u8; 32]) -> u32 {
        let fd = SealedImage::create("image", bytes).unwrap();
        self.install_fd(&fd, digest)
    }

    pub fn install_fd(&mut self, fd: &OwnedFd, digest: [u8; 32]) -> u32 {
        self.epoch += 1;
        self.fabric.tell(
            &UseImage {
                epoch: self.epoch,
                digest,
            },
            &[fd.as_fd()],
        );
        let running: Running = self.fabric.hears(LONG).expect("an answer");
        assert_eq!(running.epoch, self.epoch);
        running.refused
    }

    /// Kills the fabric, and starts another on the same channels, pages and image. The
    /// switches, which run meanwhile, see it come.
    pub fn restart(&mut self, switches: &mut [&mut Switch]) {
        let spare = Process::fabric();
        std::mem::replace(&mut self.fabric, spare).kill();
        let bytes = tables().finish().unwrap();
        let (fd, digest) = (
            SealedImage::create("image", &bytes).unwrap(),
            digest(&bytes).unwrap().0,
        );
        self.attach(START_FAULT);
        for (slot, pair) in &self.pairs {
            self.plug(*slot, pair, 1);
        }
        self.epoch += 1;
        self.fabric.tell(
            &UseImage {
                epoch: self.epoch,
                digest,
            },
            &[fd.as_fd()],
        );
        let end = Instant::now() + LONG;
        while self.process(ProcessWord::Epoch) != self.epoch {
            assert!(Instant::now() < end, "the fabric does not come back");
            switches.iter_mut().for_each(|switch| switch.poll());
        }
    }

    /// Replaces channels where the fabric waited too long for an echo: on a busy
    /// machine this process may not have run for that long.
    pub fn mend(&mut self, switches: &mut [&mut Switch]) {
        while let Some(asked) = self.fabric.hears::<NeedReplace>(Duration::ZERO) {
            for switch in switches
                .iter_mut()
                .filter(|switch| switch.slot == asked.slot)
            {
                **switch = self.switch(asked.slot);
            }
        }
    }

    pub fn dropped(&self, slot: u32, reason: DropReason) -> u64 {
        self.words.load(counters::drop_word(slot as usize, reason))
    }
    pub fn counter(&self, slot: u32, counter: Counter) -> u64 {
        self.words
            .load(counters::counter_word(slot as usize, counter))
    }
    pub fn process(&self, word: ProcessWord) -> u64 {
        self.words.load(word as usize)
    }
}

pub fn channel_body(slot: u32, resume: u32) -> AddPort {
    let (capacity, max_record) = (geometry().capacity() as u32, geometry().max_record() as u32);
    AddPort {
        slot,
        kind: PORT_CHANNEL,
        capacity,
        max_record,
        resume,
        version: ring::VERSION,
        mtu: 9000,
        ..AddPort::default()
    }
}

pub fn geometry() -> Geometry {
    Geometry::records(CAPACITY, Geometry::max_record_for(wire::offload::MAX_FRAME)).unwrap()
}

/// A switch's end of a channel.
pub struct Switch {
    pub channel: Channel,
    pub slot: u32,
}

impl Switch {
    pub fn send(&mut self, tag: u16, frame: &[u8]) {
        self.send_with(tag, &RawOffload::default(), frame);
    }

    /// Sends, and waits for room as long as the test may take.
    pub fn send_with(&mut self, tag: u16, offload: &RawOffload, frame: &[u8]) {
        let end = Instant::now() + LONG;
        loop {
            match self.channel.tx.ring.push(tag, offload, frame, &[]) {
                Ok(()) => break,
                Err(PushError::Full) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_micros(50))
                }
                Err(error) => panic!("slot {}: {error:?}", self.slot),
            }
        }
        if self.channel.tx.ring.publish() == Doorbell::Ring {
            self.channel.tx.bell.ring().unwrap();
        }
    }

    /// Looks whether the fabric restarted, as a switch does that is awake.
    pub fn poll(&mut self) {
        self.channel.tx.ring.poll().unwrap();
        self.channel.rx.ring.poll().unwrap();
    }

    /// The next frame within a time, with its tag and offload fields.
    pub fn receive(&mut self, within: Duration) -> Option<(u16, RawOffload, Vec<u8>)> {
        let end = Instant::now() + within;
        loop {
            self.poll();
            if let Some(record) = self.channel.rx.ring.next().unwrap() {
                let mut frame = vec![0; record.len()];
                record.copy(0, &mut frame);
                let (tag, offload) = (record.tag(), record.offload());
                self.channel.rx.ring.release();
                return Some((tag, offload, frame));
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// The outer end of an uplink.
pub struct Wire(UnixDatagram);

impl Wire {
    pub fn send(&self, frame: &[u8]) {
        self.0.send(&[&[0; 10], frame].concat()).unwrap();
    }
    pub fn receive(&self, within: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + within;
        let mut buffer = vec![0; 70_000];
        loop {
            if let Ok(len) = self.0.recv(&mut buffer) {
                return Some(buffer[10..len].to_vec());
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The verb of a message, for those that are awaited by hand.
pub fn verb(message: &Message) -> Option<Verb> {
    Verb::from_number(message.verb)
}
