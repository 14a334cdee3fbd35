//! The switch that runs the queues, or the place where the next one will be; and which
//! front end it runs them for.

use crate::front::Over;
use command::Message;
use command::message::Body;
use command::verbs::{
    GUEST_QUEUES, GUEST_REGIONS, GuestDone, GuestHalt, GuestLog, GuestMap, GuestRun, GuestUnmap,
};
use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use seqpacket::{Error, Socket};
use shm::{Region, Words, most_notes, shared_bytes, sparse_file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use vhostuser::{Device, Failed, MemoryRegion, QueueSetup};
use virtqueue::Stand;

/// A switch answers between two of its batches, or is dead and its socket says so. One
/// that does neither is killed by the supervisor in this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Times that a front end may have memory mapped in a row, and how long each of them takes to
/// be had again: at its start, when memory is added, when it connects again. The switch has to
/// find every page of it anew.
const MAPS: u32 = 32;
const MAP_EVERY: Duration = Duration::from_millis(100);

/// What `fstatfs` says of files that are memory.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
/// And of eventfds and the like, and of pipes.
const ANONYMOUS: i64 = 0x0904_1934;
const PIPEFS: i64 = 0x5049_5045;

/// The switch.
pub struct Link {
    socket: Option<Socket>,
    /// Where the queues got: a word each, written by the switch, which is believed as far
    /// as its own tenant's guest goes. Behind them a word each of ours: which ring that is.
    page: Option<Words>,
    seq: u32,
    /// Something of our own that can be waited for.
    ours: OwnedFd,
    /// The place of the front end whose memory is mapped.
    holder: Option<usize>,
    /// When all the times that memory was mapped are had again.
    mapped: Option<Instant>,
    /// Bytes of memory that a front end may share at most.
    most: u64,
}

/// What is known of one front end besides what its session knows.
#[derive(Default)]
pub struct Own {
    calls: [Option<OwnedFd>; GUEST_QUEUES],
    /// Of its memory: guest-physical address, bytes, which file and where in it.
    files: Vec<(u64, u64, [u64; 3])>,
    /// The file that it has kept for us.
    keepsake: Option<[u64; 2]>,
    /// Why it is to be cut off, where its session does not say that.
    pub over: Option<Over>,
}

impl Own {
    /// What calls a queue's driver.
    pub fn caller(&self, queue: usize) -> Option<BorrowedFd<'_>> {
        self.calls.get(queue)?.as_ref().map(AsFd::as_fd)
    }

    /// A number for a ring of a guest that began there: the same when its front end comes
    /// again and says the same, and no other ring's. Never 0.
    fn ring(&self, setup: &QueueSetup) -> u64 {
        let layout = &setup.layout;
        let holds = |address: u64| {
            move |(guest, size, _): &&(u64, u64, [u64; 3])| {
                address.checked_sub(*guest).is_some_and(|n| n < *size)
            }
        };
        let (guest, _, file) = self
            .files
            .iter()
            .find(holds(layout.descriptors))
            .copied()
            .unwrap_or_default();
        let said = u64::from(setup.said.available) << 16 | u64::from(setup.said.used);
        // Who has a keepsake knows that it begins anew: it gets another one for that.
        let begun = match self.keepsake {
            Some([device, file]) => [1, device, file],
            None => [0, 0, said],
        };
        let places = [layout.descriptors, layout.driver, layout.device];
        let words = [u64::from(layout.size), guest];
        let all = places.into_iter().chain(words).chain(file).chain(begun);
        let mix =
            |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        all.fold(0xcbf2_9ce4_8422_2325, mix) | 1
    }
}

impl Link {
    /// Nobody yet. `ours`: something of our own that can be waited for.
    pub fn new(ours: OwnedFd) -> Link {
        Link {
            socket: None,
            page: None,
            seq: 0,
            ours,
            holder: None,
            mapped: None,
            most: 0,
        }
    }

    /// Front ends may share so many MiB of memory.
    pub fn allow(&mut self, mib: u32) {
        self.most = u64::from(mib) << 20;
    }

    /// A switch that knows nothing, and the page.
    pub fn join(&mut self, socket: Socket, page: Option<Words>) {
        self.socket = Some(socket);
        if page.is_some() {
            self.page = page;
        }
    }

    /// The switch is gone.
    pub fn lost(&mut self) {
        self.socket = None;
    }

    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// The place of the front end that has the interface.
    pub fn holder(&self) -> Option<usize> {
        self.holder
    }

    /// A front end is gone: nothing of it stays mapped.
    pub fn leave(&mut self, place: usize) {
        if self.holder == Some(place) {
            self.holder = None;
            self.ask(&GuestUnmap::default(), &[]);
        }
    }

    /// Where the queues are is worth nothing: who comes next says where it begins.
    pub fn forget(&mut self) {
        for queue in 0..GUEST_QUEUES {
            self.name(queue as u32, 0);
        }
    }

    /// Waits where memory was mapped too often of late: at most [`MAP_EVERY`].
    fn pace(&mut self) {
        let now = Instant::now();
        let mapped = self.mapped.map_or(now, |all| all.max(now)) + MAP_EVERY;
        self.mapped = Some(mapped);
        let wait = mapped.saturating_duration_since(now);
        let end = now + wait.saturating_sub(MAPS * MAP_EVERY);
        // Bound: the time.
        while guard!("vhost-map-pace") {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: left.subsec_nanos().into(),
            };
            let _ = poll(&mut [], Some(&time));
        }
    }

    /// Asks the switch. Where there is none, what is asked is what its successor will be
    /// told; one that dies meanwhile has done it.
    fn ask<B: Body>(&mut self, body: &B, fds: &[BorrowedFd<'_>]) -> Option<GuestDone> {
        let socket = self.socket.as_ref()?;
        self.seq += 1;
        match socket.ask(&Message::new(self.seq, body), fds, PATIENCE) {
            Ok((message, _)) => message.body(),
            Err(Error::Malformed(_)) => None,
            Err(_) => {
                self.socket = None;
                None
            }
        }
    }

    fn is_done(&mut self, done: Option<GuestDone>) -> Result<(), Failed> {
        match done {
            Some(done) if done.error != 0 => Err(Failed),
            _ => Ok(()),
        }
    }

    /// Notes where a queue begins, and where it is.
    fn note(&self, queue: u32, stand: Stand) {
        let half = u64::from(stand.available) | u64::from(stand.used) << 16;
        if let Some(page) = &self.page {
            page.store(queue as usize, half << 32 | half);
        }
    }

    /// Notes which ring a queue has, or that it has none.
    fn name(&self, queue: u32, ring: u64) {
        if let Some(page) = &self.page {
            page.store(GUEST_QUEUES + queue as usize, ring);
        }
    }

    /// Which ring it had when it was left running.
    fn named(&self, queue: u32) -> u64 {
        let at = GUEST_QUEUES + queue as usize;
        self.page.as_ref().map_or(0, |page| page.load(at))
    }

    fn noted(&self, queue: u32) -> Stand {
        let word = self.page.as_ref().map_or(0, |p| p.load(queue as usize)) >> 32;
        Stand {
            available: (word >> 16) as u16,
            used: (word >> 16) as u16,
        }
    }
}

/// The switch, for one front end of those that are connected.
pub struct Line<'a> {
    pub link: &'a mut Link,
    pub own: &'a mut Own,
    /// Its place.
    pub place: usize,
    /// Another's queues run.
    pub is_taken: bool,
}

impl Line<'_> {
    /// Whether the machine may share so much.
    fn has_room(&mut self, regions: &[(MemoryRegion, OwnedFd)]) -> bool {
        let region = |(region, _): &(MemoryRegion, OwnedFd)| Region {
            guest: region.guest,
            size: region.size,
            offset: region.offset,
        };
        let regions: Vec<_> = regions.iter().map(|r| (region(r), r.1.as_fd())).collect();
        let most = self.link.most;
        match shared_bytes(&regions) {
            Ok(has) if has > most && guard!("vhost-guest-memory") => {
                self.own.over = Some(Over::TooMuch { has, most });
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
}

/// Whether what a driver kicks can be waited for at once, whatever is behind it: a pipe, or
/// one of those that the kernel makes without a file system (an eventfd, a timer), which
/// cannot be told apart and all say at once whether they are ready. Only a set of others
/// (epoll) asks those, and any other file may ask somebody who need not answer.
fn is_doorbell(fd: &OwnedFd, ours: &OwnedFd) -> bool {
    match rustix::fs::fstatfs(fd).map(|stat| stat.f_type) {
        Ok(PIPEFS) => true,
        // Only a set can be told to forget what never was in it.
        Ok(ANONYMOUS) => rustix::event::epoll::delete(fd, ours) == Err(Errno::INVAL),
        _ => false,
    }
}

/// Whether a file is memory: a page of any other may come from somebody who does not give
/// it, and the switch would wait for it.
fn is_memory(fd: &OwnedFd) -> bool {
    let kind = rustix::fs::fstatfs(fd).map(|stat| stat.f_type);
    kind.is_ok_and(|kind| kind == TMPFS || kind == HUGETLBFS)
}

fn file(fd: &OwnedFd) -> [u64; 2] {
    rustix::fs::fstat(fd).map_or([0, 0], |stat| [stat.st_dev, stat.st_ino])
}

impl Device for Line<'_> {
    type Fd = OwnedFd;

    fn is_mapped(&self) -> bool {
        self.link.holder == Some(self.place)
    }

    fn map(&mut self, features: u64, regions: &[(MemoryRegion, OwnedFd)]) -> Result<(), Failed> {
        if self.is_taken && guard!("vhost-one-runs") {
            self.own.over = Some(Over::Second);
            return Err(Failed);
        }
        if !regions.iter().all(|(_, fd)| is_memory(fd)) && guard!("vhost-memory-waits") {
            self.own.over = Some(Over::Memory);
            return Err(Failed);
        }
        if !self.has_room(regions) {
            return Err(Failed);
        }
        self.link.pace();
        let mut body = GuestMap {
            features,
            count: regions.len() as u32,
            ..GuestMap::default()
        };
        if regions.len() > GUEST_REGIONS {
            return Err(Failed);
        }
        self.own.files.clear();
        for (n, (region, fd)) in regions.iter().enumerate() {
            let places = (
                body.guest.get_mut(n),
                body.size.get_mut(n),
                body.offset.get_mut(n),
            );
            if let (Some(guest), Some(size), Some(offset)) = places {
                (*guest, *size, *offset) = (region.guest, region.size, region.offset);
            }
            let [device, number] = file(fd);
            let file = [device, number, region.offset];
            self.own.files.push((region.guest, region.size, file));
        }
        let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|(_, fd)| fd.as_fd()).collect();
        self.link.holder = Some(self.place);
        let done = self.link.ask(&body, &fds);
        self.link.is_done(done)
    }

    fn unmap(&mut self) {
        self.link.leave(self.place);
    }

    fn run(&mut self, setup: &QueueSetup, kick: Option<&OwnedFd>) -> Result<(), Failed> {
        let waits = kick.is_some_and(|kick| !is_doorbell(kick, &self.link.ours));
        if waits && guard!("vhost-kick-waits") {
            self.own.over = Some(Over::Kick);
            return Err(Failed);
        }
        if let Some(stand) = setup.stand {
            let ring = self.own.ring(setup);
            // One that runs on was left so by a helper that died, or a connection that
            // broke: the page knows where, and its front end perhaps does not.
            let runs_on = self.link.named(setup.queue) == ring && guard!("vhost-runs-on");
            if !runs_on {
                self.link.note(setup.queue, stand);
                self.link.name(setup.queue, ring);
            }
        }
        let body = GuestRun {
            queue: setup.queue,
            size: setup.layout.size.into(),
            descriptors: setup.layout.descriptors,
            driver: setup.layout.driver,
            device: setup.layout.device,
        };
        let fds: Vec<BorrowedFd<'_>> = kick.into_iter().map(AsFd::as_fd).collect();
        let done = self.link.ask(&body, &fds);
        self.link.is_done(done)
    }

    fn halt(&mut self, queue: u32) -> Stand {
        let done = self.link.ask(&GuestHalt { queue, reserved: 0 }, &[]);
        self.link.name(queue, 0);
        match done {
            Some(done) if done.error == 0 => Stand {
                available: done.available as u16,
                used: done.used as u16,
            },
            _ => self.link.noted(queue),
        }
    }

    fn log(&mut self, size: u64, offset: u64, fd: Option<&OwnedFd>) -> Result<(), Failed> {
        if !fd.is_none_or(is_memory) && guard!("vhost-log-waits") {
            self.own.over = Some(Over::Memory);
            return Err(Failed);
        }
        if size > most_notes(self.link.most) {
            self.own.over = Some(Over::Notes(size));
            return Err(Failed);
        }
        if !self.is_mapped() {
            return Ok(());
        }
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().map(AsFd::as_fd).collect();
        let done = self.link.ask(&GuestLog { size, offset }, &fds);
        self.link.is_done(done)
    }

    fn call(&mut self, queue: u32, fd: Option<OwnedFd>) {
        // One that comes after its queue was begun has missed the call for that.
        if let Some(fd) = &fd
            && self.is_mapped()
            && guard!("vhost-new-call")
        {
            call(fd.as_fd());
        }
        if let Some(place) = self.own.calls.get_mut(queue as usize) {
            *place = fd;
        }
    }

    fn keepsake(&mut self, bytes: u64) -> Result<OwnedFd, Failed> {
        let bytes = usize::try_from(bytes).map_err(|_| Failed)?;
        sparse_file("keepsake", bytes).map_err(|_| Failed)
    }

    fn knows(&mut self, keepsake: &OwnedFd) {
        self.own.keepsake = Some(file(keepsake));
    }
}

/// Calls a driver: writes a one to what it handed over. What is full has a call in it that
/// nobody has heard yet. Who fills it in between makes this process wait, and nobody else's.
pub fn call(fd: BorrowedFd<'_>) {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let has_room = poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0);
    if has_room || !guard!("vhost-full-call") {
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests;
