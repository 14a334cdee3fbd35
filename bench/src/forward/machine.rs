//! The driver's side of a virtual machine's interface, in the process that runs the loop:
//! split rings of buffers that hold a header and a small frame, as DPDK's virtio-user has them.

use command::Message;
use command::message::Body;
use command::verbs::{GuestDone, GuestMap, GuestRun};
use seqpacket::Socket;
use shm::{Guest, Region, memory_file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use virtqueue::GuestMemory;

/// Entries of each ring.
const SIZE: u16 = 2048;
/// Where the machine has its memory, and how much: MiB.
const BASE: u64 = 0x4000_0000;
pub const MIB: u32 = 16;
/// Bytes of one queue's rings, and of a buffer.
const RINGS: u64 = 0x10_0000;
const BUFFER: u64 = 2048;
const HEADER: usize = 12;
const VERSION_1: u64 = 1 << 32;
const MERGED: u64 = 1 << 15;
/// The device writes the buffer.
const WRITE: u64 = 2 << 32;

/// A machine with one pair of queues: 0 receives, 1 sends.
pub struct Machine {
    memory: Guest,
    file: OwnedFd,
    page: OwnedFd,
    link: Socket,
    available: [u16; 2],
    /// Of what the device has used, how much was looked at.
    seen: [u16; 2],
}

impl Machine {
    /// One that is not plugged in, and the far end of its helper's link.
    pub fn new() -> Result<(Machine, OwnedFd), String> {
        let say = |e: std::io::Error| e.to_string();
        let bytes = u64::from(MIB) << 20;
        let file = rustix::fs::memfd_create("machine", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|e| e.to_string())?;
        rustix::fs::ftruncate(&file, bytes).map_err(|e| e.to_string())?;
        let region = Region {
            guest: BASE,
            size: bytes,
            offset: 0,
        };
        let memory = Guest::map(&[(region, file.as_fd())], bytes).map_err(|e| e.to_string())?;
        let page = memory_file("page", 4096).map_err(say)?;
        let (link, far) = Socket::pair().map_err(|e| e.to_string())?;
        let machine = Machine {
            memory,
            file,
            page,
            link,
            available: [0; 2],
            seen: [0; 2],
        };
        Ok((machine, far.into_fd()))
    }

    /// Where its queues stand, for the switch.
    pub fn page(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }

    /// Maps its memory and runs both queues; `hear` lets the switch do what its helper says.
    pub fn start(&mut self, mut hear: impl FnMut()) -> Result<(), String> {
        let mut map = GuestMap {
            features: VERSION_1 | MERGED,
            count: 1,
            ..GuestMap::default()
        };
        (map.guest[0], map.size[0]) = (BASE, u64::from(MIB) << 20);
        let file = self.file.try_clone().map_err(|e| e.to_string())?;
        self.tell(&map, &[file.as_fd()], &mut hear)?;
        for queue in 0..2 {
            let [descriptors, driver, device, _] = places(queue);
            let run = GuestRun {
                descriptors,
                driver,
                device,
                queue: queue as u32,
                size: SIZE.into(),
            };
            self.tell(&run, &[], &mut hear)?;
        }
        for number in 0..SIZE {
            self.offer(0, number.into(), BUFFER | WRITE);
        }
        self.show(0);
        // As drivers that poll: no calls.
        for queue in 0..2 {
            self.memory.store16(self.at(places(queue)[1]), 1);
        }
        Ok(())
    }

    fn tell<B: Body>(
        &self,
        body: &B,
        fds: &[BorrowedFd<'_>],
        hear: &mut impl FnMut(),
    ) -> Result<(), String> {
        let message = Message::new(1, body);
        self.link.send(&message, fds).map_err(|e| e.to_string())?;
        hear();
        // It may ask for the driver to be called before it answers.
        while let Some((answer, _)) = self.link.recv().map_err(|e| e.to_string())? {
            match answer.body::<GuestDone>() {
                Some(done) if done.error == 0 => return Ok(()),
                Some(done) => return Err(format!("the switch refuses its guest: {}", done.error)),
                None => {}
            }
        }
        Err("the switch does not answer its guest".to_owned())
    }

    /// Sends a frame, seen by the device at the next [`Machine::show`].
    pub fn put(&mut self, frame: &[u8]) -> Result<(), String> {
        let used = self.memory.load16(self.at(places(1)[2] + 2));
        if self.available[1].wrapping_sub(used) >= SIZE {
            return Err("no buffer is free".to_owned());
        }
        let slot = u64::from(self.available[1] % SIZE);
        let buffer = self.at(places(1)[3] + slot * BUFFER);
        self.memory.write(buffer, &[0; HEADER]);
        self.memory.write(buffer + HEADER, frame);
        let length = (HEADER + frame.len()) as u64;
        self.offer(1, slot, length);
        Ok(())
    }

    /// Shows the device what was made available.
    pub fn show(&self, queue: usize) {
        let driver = self.at(places(queue)[1] + 2);
        self.memory.store16(driver, self.available[queue]);
    }

    /// Takes frames that came, of which `scratch` has each first bytes.
    pub fn drain(&mut self, scratch: &mut [u8], mut each: impl FnMut(&[u8])) {
        let [_, _, device, buffers] = places(0);
        let used = self.memory.load16(self.at(device + 2));
        while self.seen[0] != used {
            let slot = u64::from(self.seen[0] % SIZE);
            let mut element = [0; 8];
            self.memory
                .read(self.at(device + 4 + 8 * slot), &mut element);
            let [id, length] = [0, 4].map(|at| {
                let bytes = element[at..].first_chunk().copied();
                u32::from_le_bytes(bytes.unwrap_or_default())
            });
            let length = (length as usize).saturating_sub(HEADER).min(scratch.len());
            let buffer = self.at(buffers + u64::from(id) * BUFFER);
            self.memory.read(buffer + HEADER, &mut scratch[..length]);
            each(&scratch[..length]);
            self.seen[0] = self.seen[0].wrapping_add(1);
            self.offer(0, u64::from(id), BUFFER | WRITE);
        }
        self.show(0);
    }

    /// Makes a buffer available.
    fn offer(&mut self, queue: usize, number: u64, what: u64) {
        let [table, driver, _, buffers] = places(queue);
        let next = u64::from(self.available[queue] % SIZE);
        let at = self.at(table + 16 * number);
        self.memory.store64(at, buffers + number * BUFFER);
        self.memory.store64(at + 8, what);
        let entry = self.at(driver + 4 + 2 * next);
        self.memory.store16(entry, number as u16);
        self.available[queue] = self.available[queue].wrapping_add(1);
    }

    fn at(&self, address: u64) -> usize {
        self.memory.locate(address, 1).map_or(0, |(at, _)| at)
    }
}

/// Of a queue: descriptors, what the driver writes, what the device writes, buffers.
fn places(queue: usize) -> [u64; 4] {
    let at = BASE + queue as u64 * RINGS;
    let buffers = BASE + 2 * RINGS + queue as u64 * u64::from(SIZE) * BUFFER;
    [at, at + 0x8000, at + 0xa000, buffers]
}
