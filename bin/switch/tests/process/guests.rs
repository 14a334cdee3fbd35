//! A virtual machine's interface, the test being its vhost helper and its driver.

use crate::rig::{PATIENCE, Rig};
use crate::{PLAIN, frame, receive, send, tables};
use command::Message;
use command::message::Body;
use command::verbs::*;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate};
use seqpacket::Socket;
use shm::{Guest, Region, memory_file};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telemetry::counters::{Counter, ProcessWord};
use virtqueue::GuestMemory;

/// Where the guest has its memory, and in it: two queues' rings, and their buffers.
const BASE: u64 = 0x4000_0000;
const BYTES: u64 = 1 << 20;
const SIZE: u16 = 64;
const VERSION_1: u64 = 1 << 32;
const MERGED: u64 = 1 << 15;

/// Of queue `n`: descriptors, what the driver writes, what the device writes, buffers.
fn rings(n: u64) -> [u64; 4] {
    let at = BASE + n * 0x4000;
    [at, at + 0x1000, at + 0x2000, BASE + 0x10_000 + n * 0x40_000]
}

/// A machine's memory. Not sealed against shrinking: as front ends have it.
fn file_of(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("vm", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

struct Machine {
    link: Socket,
    file: OwnedFd,
    page: OwnedFd,
    memory: Guest,
    /// What the driver of queue 1 kicks.
    kick: OwnedFd,
    /// What each driver has made available.
    available: [u16; 2],
    seq: u32,
}

impl Machine {
    /// One in slot 1 whose queues do not run yet.
    fn plugged(rig: &Rig) -> Machine {
        let (link, theirs) = Socket::pair().unwrap();
        let machine = Machine::plugged_to(link, 0);
        let port = AddPort {
            slot: 1,
            kind: PORT_VHOST,
            mtu: 9000,
            capacity: (BYTES >> 20) as u32,
            ..AddPort::default()
        };
        rig.tell(&port, &[&theirs.into_fd(), &machine.page]);
        machine
    }

    /// One whose helper has this link already.
    fn plugged_to(link: Socket, seq: u32) -> Machine {
        let file = file_of(BYTES);
        let page = memory_file("page", 4096).unwrap();
        let region = Region {
            guest: BASE,
            size: BYTES,
            offset: 0,
        };
        let memory = Guest::map(&[(region, file.as_fd())], BYTES).unwrap();
        // One that blocks whoever reads it: the driver's side can make it so at any time.
        let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        Machine {
            link,
            file,
            page,
            memory,
            kick,
            available: [0; 2],
            seq,
        }
    }

    fn ask<B: Body>(&mut self, body: &B, fds: &[&OwnedFd]) -> GuestDone {
        self.seq += 1;
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let message = Message::new(self.seq, body);
        let (answer, _) = self.link.ask(&message, &fds, PATIENCE).unwrap();
        answer.body().unwrap()
    }

    fn map(&mut self) -> u32 {
        let mut body = GuestMap {
            features: VERSION_1 | MERGED,
            count: 1,
            ..GuestMap::default()
        };
        (body.guest[0], body.size[0]) = (BASE, BYTES);
        let file = self.file.try_clone().unwrap();
        self.ask(&body, &[&file]).error
    }

    fn run(&mut self, queue: u64) -> u32 {
        let [descriptors, driver, device, _] = rings(queue);
        let body = GuestRun {
            descriptors,
            driver,
            device,
            queue: queue as u32,
            size: SIZE.into(),
        };
        let kick = self.kick.try_clone().unwrap();
        let kicks: &[&OwnedFd] = if queue == 1 { &[&kick] } else { &[] };
        self.ask(&body, kicks).error
    }

    fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    fn start(&mut self) {
        assert_eq!(self.map(), 0);
        assert_eq!((self.run(0), self.run(1)), (0, 0));
    }

    fn at(&self, address: u64) -> usize {
        self.memory.locate(address, 1).unwrap().0
    }

    /// Makes one buffer of a queue available: what the device reads, or writes.
    fn offer(&mut self, queue: u64, bytes: &[u8], room: u32) {
        let [table, driver, _, buffers] = rings(queue);
        let next = self.available[queue as usize];
        let slot = u64::from(next % SIZE);
        let buffer = buffers + slot * 0x1000;
        self.memory.write(self.at(buffer), bytes);
        let writes = u64::from(room > 0) << 1;
        let length = u64::from(room.max(bytes.len() as u32));
        let at = self.at(table + 16 * slot);
        self.memory.store64(at, buffer);
        self.memory.store64(at + 8, length | writes << 32);
        self.memory
            .store16(self.at(driver + 4 + 2 * slot), slot as u16);
        let next = next.wrapping_add(1);
        self.available[queue as usize] = next;
        self.memory.store16(self.at(driver + 2), next);
    }

    /// Sends a frame.
    fn send(&mut self, frame: &[u8]) {
        let mut bytes = vec![0; 12];
        bytes.extend_from_slice(frame);
        self.offer(1, &bytes, 0);
        self.kick();
    }

    fn used(&self, queue: u64) -> u16 {
        self.memory.load16(self.at(rings(queue)[2] + 2))
    }

    /// Waits until the device has used so many buffers.
    fn wait(&self, queue: u64, used: u16) {
        let end = std::time::Instant::now() + PATIENCE;
        while self.used(queue) != used {
            assert!(std::time::Instant::now() < end, "{}", self.used(queue));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The `n`th frame that came.
    fn came(&self, n: u16) -> Vec<u8> {
        let [_, _, device, buffers] = rings(0);
        let slot = u64::from(n % SIZE);
        let mut bytes = [0; 8];
        self.memory.read(self.at(device + 4 + 8 * slot), &mut bytes);
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let mut frame = vec![0; length as usize];
        self.memory
            .read(self.at(buffers + slot * 0x1000), &mut frame);
        frame.split_off(12)
    }

    /// Whether the switch says that it is over.
    fn is_broken(&self) -> bool {
        let end = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < end {
            match self.link.recv_wait(Duration::from_millis(100)) {
                Ok(Some((message, _))) if message.body::<GuestBroken>().is_some() => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

fn rig() -> Rig {
    let rig = Rig::new();
    for slot in [2, 3] {
        rig.plug_one(&rig.pairs[slot as usize - 1], slot, 0);
    }
    rig.install(&tables(), 1);
    rig
}

#[test]
fn frames_cross_between_a_machine_and_a_fifo() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    machine.start();
    let mut two = rig.guest(2);
    for n in 0..200u16 {
        let out = frame(1, 2, &vec![n as u8; usize::from(n) * 10]);
        machine.send(&out);
        machine.offer(0, &[], 0x1000);
        let back = frame(2, 1, &vec![n as u8; usize::from(n) * 15]);
        send(&mut two, &PLAIN, &back);
        assert_eq!(receive(&mut two), out);
        machine.wait(1, n + 1);
        machine.wait(0, n + 1);
        assert_eq!(machine.came(n), back);
    }
    assert_eq!(rig.count(1, Counter::RxFrames), 200);
    assert_eq!(rig.words().load(ProcessWord::FrameSyscalls as usize), 0);
}

#[test]
fn a_kick_wakes_the_switch_and_is_never_read() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    assert_eq!(machine.map(), 0);
    assert_eq!(machine.run(1), 0);
    let mut two = rig.guest(2);
    for n in 0..5u8 {
        // Past any spinning.
        std::thread::sleep(Duration::from_millis(20));
        let out = frame(1, 2, &[n; 40]);
        machine.send(&out);
        assert_eq!(receive(&mut two), out);
    }
    let mut count = [0; 8];
    rustix::io::read(&machine.kick, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 5, "nobody has read it");
    // What cannot be waited for is refused.
    let file = memory_file("kick", 4096).unwrap();
    machine.kick = file;
    assert_ne!(machine.run(1), 0);
}

#[test]
fn whoever_begins_to_run_a_queue_has_its_driver_called() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    assert_eq!(machine.map(), 0);
    let called = |machine: &Machine| {
        let mut queues = 0;
        while let Ok(Some((message, _))) = machine.link.recv() {
            queues |= message.body::<GuestCall>().map_or(0, |call| call.queues);
        }
        queues
    };
    // Before it says that it runs: nothing else need ever come.
    for queue in [0, 1] {
        assert_eq!(machine.run(queue), 0);
        assert_eq!(called(&machine), 1 << queue);
    }
    // As a successor, too, whatever the page says that was shown.
    assert_eq!(machine.ask(&GuestUnmap { reserved: 0 }, &[]).error, 0);
    assert_eq!(machine.map(), 0);
    for queue in [0, 1] {
        assert_eq!(machine.run(queue), 0);
        assert_eq!(called(&machine), 1 << queue);
    }
}

#[test]
fn a_guest_that_misbehaves_ends_alone() {
    type Misdeed = fn(&mut Machine);
    // One descriptor of queue 1, made available: its second word.
    fn one(machine: &Machine, address: u64, high: u64) {
        let at = machine.at(rings(1)[0]);
        machine.memory.store64(at, address);
        machine.memory.store64(at + 8, high);
        machine.memory.store16(machine.at(rings(1)[1] + 2), 1);
    }
    let misdeeds: [(&str, Misdeed); 8] = [
        ("a chain that loops", |machine| {
            one(machine, BASE + 0x10_000, 72 | 1 << 32);
        }),
        ("a table that was not agreed to", |machine| {
            one(machine, BASE + 0x10_000, 64 | 4 << 32);
        }),
        ("a buffer that is to be written", |machine| {
            one(machine, BASE + 0x10_000, 72 | 2 << 32);
        }),
        ("no room for a header", |machine| {
            one(machine, BASE + 0x10_000, 11);
        }),
        ("an index beyond the ring", |machine| {
            let driver = rings(1)[1];
            machine.memory.store16(machine.at(driver + 2), 5000);
        }),
        ("a chain that leaves the ring", |machine| {
            let at = machine.at(rings(1)[0]);
            machine.memory.store64(at, BASE + 0x10_000);
            machine.memory.store64(at + 8, 72 | 1 << 32 | 0x4000 << 48);
            let driver = rings(1)[1];
            machine.memory.store16(machine.at(driver + 2), 1);
        }),
        ("a buffer outside of its memory", |machine| {
            let at = machine.at(rings(1)[0]);
            machine.memory.store64(at, 1);
            machine.memory.store64(at + 8, 100);
            let driver = rings(1)[1];
            machine.memory.store16(machine.at(driver + 2), 1);
        }),
        ("memory that is cut off", |machine| {
            machine.send(&[0; 60]);
            ftruncate(&machine.file, 0).unwrap();
        }),
    ];
    for (what, misdeed) in misdeeds {
        let rig = rig();
        let mut machine = Machine::plugged(&rig);
        machine.start();
        let (mut two, mut three) = (rig.guest(2), rig.guest(3));
        misdeed(&mut machine);
        machine.kick();
        // Something else wakes the switch, and goes on.
        let sent = frame(2, 3, b"on");
        send(&mut two, &PLAIN, &sent);
        assert_eq!(receive(&mut three), sent, "{what}");
        assert!(machine.is_broken(), "{what}");
        send(&mut two, &PLAIN, &sent);
        assert_eq!(receive(&mut three), sent, "{what}");
        // The next front end begins anew, by the same link.
        let link = std::mem::replace(&mut machine.link, Socket::pair().unwrap().0);
        let mut next = Machine::plugged_to(link, machine.seq);
        next.start();
        next.send(&frame(1, 2, b"again"));
        next.offer(0, &[], 0x1000);
        send(&mut two, &PLAIN, &frame(2, 1, b"hello"));
        assert_eq!(receive(&mut two), frame(1, 2, b"again"), "{what}");
        next.wait(0, 1);
    }
}

#[test]
fn a_guest_that_misbehaves_where_it_receives_ends_alone() {
    type Misdeed = fn(&mut Machine);
    fn one(machine: &Machine, address: u64, high: u64) {
        let at = machine.at(rings(0)[0]);
        machine.memory.store64(at, address);
        machine.memory.store64(at + 8, high);
        machine.memory.store16(machine.at(rings(0)[1] + 2), 1);
    }
    let misdeeds: [(&str, Misdeed); 4] = [
        ("a buffer outside of its memory", |machine| {
            one(machine, 1, 2000 | 2 << 32);
        }),
        ("a buffer that is to be read", |machine| {
            one(machine, BASE + 0x10_000, 2000);
        }),
        ("an index beyond the ring", |machine| {
            let driver = rings(0)[1];
            machine.memory.store16(machine.at(driver + 2), 40_000);
        }),
        ("memory that is cut off", |machine| {
            ftruncate(&machine.file, 0).unwrap();
        }),
    ];
    for (what, misdeed) in misdeeds {
        let rig = rig();
        let mut machine = Machine::plugged(&rig);
        machine.start();
        let (mut two, mut three) = (rig.guest(2), rig.guest(3));
        misdeed(&mut machine);
        // It says nothing itself, and nobody kicks: who sends to it finds out.
        for _ in 0..3 {
            send(&mut two, &PLAIN, &frame(2, 1, b"hello"));
        }
        let sent = frame(2, 3, b"on");
        send(&mut two, &PLAIN, &sent);
        assert_eq!(receive(&mut three), sent, "{what}");
        assert!(machine.is_broken(), "{what}");
    }
}

/// Has every buffer of a guest that receives in pieces of so many bytes, each on its own page.
fn scatter(machine: &Machine, pieces: u64, bytes: u64) {
    let [table, driver, _, buffers] = rings(0);
    for n in 0..pieces {
        let at = machine.at(table + 16 * n);
        let more = u64::from(n + 1 < pieces);
        machine.memory.store64(at, buffers + n * 0x1000);
        let flags = (more | 2) << 32;
        machine
            .memory
            .store64(at + 8, bytes | flags | (n + 1) << 48);
    }
    // One and the same, as often as the ring has places.
    for slot in 0..u64::from(SIZE) {
        machine.memory.store16(machine.at(driver + 4 + 2 * slot), 0);
    }
}

#[test]
fn what_a_guest_has_its_frames_scattered_over_is_charged_for_and_bounded() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    machine.start();
    let mut two = rig.guest(2);
    let out = frame(2, 1, &[7; 500]);
    let mut given = 0;
    let mut work = |machine: &Machine, two: &mut _| {
        let before = rig.count(2, Counter::Work);
        for _ in 0..32 {
            given += 1;
            let index = machine.at(rings(0)[1] + 2);
            machine.memory.store16(index, given);
            send(two, &PLAIN, &out);
            machine.wait(0, given);
        }
        // It is counted at the end of its batch.
        std::thread::sleep(Duration::from_millis(100));
        rig.count(2, Counter::Work) - before
    };
    scatter(&machine, 1, 2000);
    work(&machine, &mut two);
    let whole = work(&machine, &mut two);
    scatter(&machine, 2, 1000);
    let halves = work(&machine, &mut two);
    assert!(halves < whole * 3 / 2, "{halves} against {whole}");
    scatter(&machine, 60, 10);
    let crumbs = work(&machine, &mut two);
    assert!(crumbs > 32 * 50 * 1024, "{crumbs} against {whole}");
    // More than any driver's.
    scatter(&machine, 64, 1);
    let index = machine.at(rings(0)[1] + 2);
    machine.memory.store16(index, given + SIZE);
    for _ in 0..3 {
        send(&mut two, &PLAIN, &out);
    }
    assert!(machine.is_broken());
}

#[test]
fn memory_is_unmapped_when_that_is_said_and_queues_tell_where_they_were() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    machine.start();
    let mut two = rig.guest(2);
    for _ in 0..3 {
        machine.send(&frame(1, 2, b"x"));
    }
    send(&mut two, &PLAIN, &frame(2, 3, b""));
    for _ in 0..3 {
        receive(&mut two);
    }
    let halted = machine.ask(
        &GuestHalt {
            queue: 1,
            reserved: 0,
        },
        &[],
    );
    assert_eq!((halted.error, halted.available, halted.used), (0, 3, 3));
    let maps = || {
        let path = format!("/proc/{}/maps", rig.pid.as_raw_nonzero());
        std::fs::read_to_string(path).unwrap_or_default()
    };
    assert!(maps().contains("memfd:vm"));
    machine.ask(&GuestUnmap { reserved: 0 }, &[]);
    assert!(
        !maps().contains("memfd:vm"),
        "it answers when it is unmapped"
    );
    // A shorter file than is said, and a descriptor too few.
    ftruncate(&machine.file, BYTES / 2).unwrap();
    assert_ne!(machine.map(), 0);
    let none = GuestMap {
        count: 1,
        ..GuestMap::default()
    };
    assert_ne!(machine.ask(&none, &[]).error, 0);
    assert_ne!(machine.run(0), 0, "no memory");
}

#[test]
fn pages_that_a_switch_writes_are_noted_and_no_others() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    machine.start();
    let mut two = rig.guest(2);
    // Bits by guest-physical page, from address 0 on.
    let bytes = (BASE + BYTES) / 4096 / 8;
    let log = memory_file("log", bytes as usize).unwrap();
    let body = GuestLog {
        size: bytes,
        offset: 0,
    };
    assert_eq!(machine.ask(&body, &[&log]).error, 0);
    let noted = || -> Vec<u64> {
        let mut bits = vec![0; bytes as usize];
        rustix::io::pread(&log, &mut bits, 0).unwrap();
        let page = |n: &u64| bits[*n as usize / 8] >> (n % 8) & 1 == 1;
        let first = BASE / 4096;
        let all = (first..first + BYTES / 4096).filter(page);
        all.map(|n| n - first).collect()
    };
    // Nothing is written but where it is to be said: one frame to the guest, in the second
    // buffer's pages too, and one from it.
    machine.offer(0, &[], 0x1000);
    machine.offer(0, &[], 0x1000);
    for _ in 0..2 {
        send(&mut two, &PLAIN, &frame(2, 1, &[7; 1400]));
    }
    machine.wait(0, 2);
    machine.send(&frame(1, 2, b"x"));
    receive(&mut two);
    machine.wait(1, 1);
    let place = |address: u64| (address - BASE) / 4096;
    let [_, _, used, buffers] = rings(0);
    let [_, _, used_1, _] = rings(1);
    let expected = [used, used_1, buffers, buffers + 0x1000].map(place);
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(noted(), expected);
    // No longer, once that is said.
    let none = GuestLog { size: 0, offset: 0 };
    assert_eq!(machine.ask(&none, &[]).error, 0);
    machine.offer(0, &[], 0x1000);
    send(&mut two, &PLAIN, &frame(2, 1, b"y"));
    machine.wait(0, 3);
    assert_eq!(noted(), expected);
}

/// Writes what looks like descriptors, indices, headers and frames, everywhere in a
/// guest's memory, until it is told to stop; `holes`: takes pages away as well.
fn scribble(file: &OwnedFd, stop: &AtomicBool, holes: bool) {
    let region = Region {
        guest: BASE,
        size: BYTES,
        offset: 0,
    };
    let memory = Guest::map(&[(region, file.as_fd())], BYTES).unwrap();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let at = |address: u64| memory.locate(address, 1).unwrap().0;
    while !stop.load(Ordering::Relaxed) {
        let queue = random() % 2;
        let [table, driver, device, buffers] = rings(queue);
        let slot = random() % u64::from(SIZE);
        let descriptor = at(table + 16 * slot);
        let buffer = buffers + slot * 0x1000;
        // What the device reads in queue 1, and writes in queue 0.
        let direction = (1 - queue) << 33;
        let used = memory.load16(at(device + 2));
        // Most of it could be so, at another time; some of it never.
        match random() % 4096 {
            0 => memory.store64(descriptor, random()),
            1 => memory.store64(descriptor + 8, random()),
            2 => memory.store64(descriptor + 8, 80 | (1 << 32) | direction),
            3 => memory.store16(at(device + 2), random() as u16),
            4 => memory.store16(at(driver + 2), random() as u16),
            5..500 => memory.store64(descriptor, buffer),
            500..1500 => memory.store64(descriptor + 8, (54 + random() % 2000) | direction),
            1500..2500 => memory.store16(at(driver + 2), used.wrapping_add(random() as u16 & 63)),
            2500..2800 => memory.store16(at(driver + 4 + 2 * slot), slot as u16),
            2800..3000 => memory.write(at(buffer), &random().to_ne_bytes()),
            3000..3500 => memory.write(at(buffer), &[0; 12]),
            _ => {
                let frame = frame(1, 2 + (slot % 2) as u32, &random().to_ne_bytes());
                memory.write(at(buffer + 12), &frame);
            }
        }
        if holes && random() % 64 == 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let page = random() % (BYTES / 4096) * 4096;
            fallocate(file, flags, page, 4096).unwrap();
        }
    }
}

/// Ends who scribbles, also where the test fails: it would be waited for.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_guest_that_rewrites_what_is_read_harms_itself_alone() {
    for holes in [false, true] {
        let rig = rig();
        let mut machine = Machine::plugged(&rig);
        machine.start();
        let (mut two, mut three) = (rig.guest(2), rig.guest(3));
        let (stop, file) = (AtomicBool::new(false), machine.file.try_clone().unwrap());
        let mut ended = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&file, &stop, holes));
            let _stops = Stops(&stop);
            for n in 0..2000u32 {
                machine.kick();
                // Its neighbours talk, and to it as well; what it sends may come between.
                let sent = frame(2, 3, &n.to_ne_bytes());
                send(&mut two, &PLAIN, &frame(2, 1, &n.to_ne_bytes()));
                send(&mut two, &PLAIN, &sent);
                while receive(&mut three) != sent {}
                while let Ok(Some((message, _))) = machine.link.recv() {
                    ended += u32::from(message.body::<GuestBroken>().is_some());
                }
                // A new front end with the same memory, which goes on like that.
                if n % 50 == 49 {
                    machine.start();
                }
            }
        });
        assert!(ended > 0, "it was never ended");
        assert!(
            rig.count(1, Counter::RxFrames) > 0,
            "it never sent anything"
        );
        // Cut off in the midst of it, it is over, and the others are not.
        machine.start();
        ftruncate(&machine.file, 4096).unwrap();
        machine.kick();
        send(&mut two, &PLAIN, &frame(2, 1, b"gone?"));
        let sent = frame(2, 3, b"on");
        send(&mut two, &PLAIN, &sent);
        while receive(&mut three) != sent {}
        assert!(machine.is_broken());
    }
}

#[test]
fn memory_that_cannot_be_is_refused_and_nothing_else_stops() {
    let rig = rig();
    let mut machine = Machine::plugged(&rig);
    let (mut two, mut three) = (rig.guest(2), rig.guest(3));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let (socket, _far) = Socket::pair().unwrap();
    let short = memory_file("short", 4096).unwrap();
    let whole = machine.file.try_clone().unwrap();
    let path = format!("/proc/self/fd/{}", whole.as_raw_fd());
    let reads = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
    let folder = rustix::fs::open("/", OFlags::RDONLY, Mode::empty()).unwrap();
    let socket = socket.into_fd();
    type Lie<'a> = (&'a str, u32, [(u64, u64, u64); 2], &'a [&'a OwnedFd]);
    let lies: [Lie<'_>; 12] = [
        ("none", 0, [(0, 0, 0); 2], &[]),
        (
            "more than there are places",
            9,
            [(BASE, BYTES, 0); 2],
            &[&whole],
        ),
        ("no descriptor", 1, [(BASE, BYTES, 0); 2], &[]),
        ("no size", 1, [(BASE, 0, 0); 2], &[&whole]),
        ("beyond the file", 1, [(BASE, BYTES, 4096); 2], &[&whole]),
        (
            "a file that ends before",
            1,
            [(BASE, BYTES, 0); 2],
            &[&short],
        ),
        (
            "beyond all addresses",
            1,
            [(u64::MAX - 4096, BYTES, 0); 2],
            &[&whole],
        ),
        (
            "beyond all files",
            1,
            [(BASE, BYTES, u64::MAX - 4096); 2],
            &[&whole],
        ),
        ("a pipe", 1, [(BASE, BYTES, 0); 2], &[&pipe]),
        ("a socket", 1, [(BASE, BYTES, 0); 2], &[&socket]),
        ("a folder", 1, [(BASE, 4096, 0); 2], &[&folder]),
        ("not to be written", 1, [(BASE, BYTES, 0); 2], &[&reads]),
    ];
    let twice = [(BASE, BYTES, 0), (BASE + 4096, 4096, 0)];
    let much = file_of(BYTES + 4096);
    let too_much = (
        "more than it may share",
        1,
        [(BASE, BYTES + 4096, 0); 2],
        &[&much] as &[&OwnedFd],
    );
    let overlap = (
        "an address twice",
        2,
        twice,
        &[&whole, &whole] as &[&OwnedFd],
    );
    for (what, count, regions, fds) in lies.into_iter().chain([overlap, too_much]) {
        let mut body = GuestMap {
            features: VERSION_1,
            count,
            ..GuestMap::default()
        };
        for (n, (guest, size, offset)) in regions.into_iter().enumerate() {
            (body.guest[n], body.size[n], body.offset[n]) = (guest, size, offset);
        }
        assert_ne!(machine.ask(&body, fds).error, 0, "{what}");
        let sent = frame(2, 3, what.as_bytes());
        send(&mut two, &PLAIN, &sent);
        assert_eq!(receive(&mut three), sent, "{what}");
    }
    machine.start();
    machine.send(&frame(1, 2, b"honest"));
    assert_eq!(receive(&mut two), frame(1, 2, b"honest"));
}
