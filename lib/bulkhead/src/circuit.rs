//! One connection.

use crate::ask::memory_of;
use crate::reserved::Room;
use crate::socket::{Socket, is_over, sleep, wait, wake};
use crate::{Peeked, Reserved};
use rustix::event::PollFlags;
use rustix::net::Shutdown as How;
use shm::{CircuitReader, CircuitWaker, CircuitWriter, circuit_ends, give_back_tables};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use stream::{Full, LOOK_BYTES, LOOK_WRITES, Reader, SLEEP, SPIN, Side, Stop, Writer};

/// How long who naps does before it sleeps by the socket, which tells of the peer's death. Beyond the kernel's
/// next tick, or each nap sets the processor's timer and takes it back.
const NAP: Duration = Duration::from_millis(12);
/// Bytes that are held of what came by the socket, for who peeks.
const HELD: usize = 64 << 10;

/// By what bytes go that are written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the socket: the peer has no ring, or has not said so yet.
    Socket,
    /// By memory that both have.
    Ring,
}

/// How long who waits for data looks at the ring before it sleeps.
struct Spin {
    time: Duration,
    /// A program asked for it: it has a processor to itself.
    is_asked: bool,
    /// How often nothing came of it, one time after the other.
    misses: u32,
}

/// Times without anything after which it is looked so seldom: who is waited for runs on the
/// same processor, say.
const MISSES: u32 = 4;
const SELDOM: u32 = 64;

impl Default for Spin {
    fn default() -> Spin {
        Spin {
            time: SPIN,
            is_asked: false,
            misses: 0,
        }
    }
}

impl Spin {
    /// How long this time, if at all.
    fn time(&mut self) -> Option<Duration> {
        if self.is_asked || self.misses < MISSES || self.misses.is_multiple_of(SELDOM) {
            return Some(self.time);
        }
        self.misses = self.misses.wrapping_add(1);
        None
    }

    fn came_to(&mut self, something: bool) {
        self.misses = match something {
            true => 0,
            false => self.misses.wrapping_add(1),
        };
    }
}

pub(crate) struct Ring {
    pub(crate) writer: Writer<CircuitWriter>,
    pub(crate) reader: Reader<CircuitReader>,
    /// Wakes the peer: as who reads what is written here, and as who writes what is read here.
    to_reader: CircuitWaker,
    to_writer: CircuitWaker,
}

/// A connection.
///
/// One that blocks waits for as long as it takes: a signal ends no call, and the socket's limits of time (`SO_RCVTIMEO`,
/// `SO_SNDTIMEO`) count for none. Who is to wait no longer than so sets it non-blocking, and uses
/// [`Circuit::wait_readable`] and [`Circuit::wait_writable`].
pub struct Circuit {
    pub(crate) fd: OwnedFd,
    pub(crate) ring: Option<Ring>,
    blocks: bool,
    /// Its descriptor is polled, or may be.
    polled: bool,
    spin: Spin,
    /// Where what is peeked at lies that is not in the ring, how much came there, and how much of it is consumed.
    held: Vec<u8>,
    came: usize,
    consumed: usize,
    pub(crate) room: Room,
    /// Memory of a room that is given up, for the next.
    spare: Vec<u8>,
    /// Since it was last looked whether the peer reads.
    bytes: usize,
    writes: u32,
}

impl Circuit {
    /// Connects to an address.
    ///
    /// # Errors
    /// As `TcpStream::connect`.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Circuit> {
        TcpStream::connect(address).map(|stream| Circuit::from_fd(stream.into()))
    }

    /// A connection that there is, through which nobody at this end has read or written
    /// anything: both ends count the bytes that go before the ring.
    pub fn from_fd(fd: OwnedFd) -> Circuit {
        match memory_of(&fd) {
            Some((memory, side, capacity)) => Circuit::with_memory(fd, memory, capacity, side),
            None => Circuit::by_socket(fd),
        }
    }

    /// The same of one through which something has gone already: it stays with the socket.
    pub fn by_socket(fd: OwnedFd) -> Circuit {
        Circuit {
            blocks: !rustix::fs::fcntl_getfl(&fd)
                .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK)),
            fd,
            ring: None,
            polled: true,
            spin: Spin::default(),
            held: Vec::new(),
            came: 0,
            consumed: 0,
            room: Room::None,
            spare: Vec::new(),
            bytes: 0,
            writes: 0,
        }
    }

    /// A connection of two ends that have a memory file from elsewhere (`shm::circuit_file`).
    /// One that does not fit is not used.
    pub fn with_memory(fd: OwnedFd, memory: OwnedFd, capacity: usize, side: Side) -> Circuit {
        let mut circuit = Circuit::by_socket(fd);
        if let Ok((writer, reader, geometry)) = circuit_ends(&memory, capacity, side) {
            let mut ring = Ring {
                to_reader: writer.waker(),
                to_writer: reader.waker(),
                writer: Writer::new(writer, &geometry),
                reader: Reader::new(reader, &geometry),
            };
            ring.reader.consent();
            circuit.ring = Some(ring);
        }
        circuit
    }

    /// How long a read or a write that blocks looks at the ring before it sleeps. 5 us at first;
    /// more shortens the way where the core is one's own.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = Spin {
            time: spin,
            is_asked: true,
            ..Spin::default()
        };
    }

    /// Whether somebody polls its descriptor, as is believed at first. Where nobody does, who reads
    /// sleeps by the memory, which takes half the time; the descriptor tells nothing then, also
    /// not of what is there when this is changed back: that is to be read first.
    pub fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
    }

    /// Whether reads and writes block; as the descriptor's flag was at first.
    ///
    /// # Errors
    /// fcntl(2)'s.
    pub fn set_nonblocking(&mut self, nonblocking: bool) -> io::Result<()> {
        self.blocks = !nonblocking;
        rustix::io::ioctl_fionbio(&self.fd, nonblocking).map_err(Into::into)
    }

    /// By what bytes go that are written now. A write may be what changes it.
    pub fn way(&mut self) -> Way {
        let Some(ring) = &mut self.ring else {
            return Way::Socket;
        };
        ring.reader.consent();
        match ring.writer.in_ring(&line(&self.fd, None)) {
            Ok(true) => Way::Ring,
            _ => Way::Socket,
        }
    }

    /// Ends one direction, or both.
    ///
    /// # Errors
    /// shutdown(2)'s.
    pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => How::Read,
            Shutdown::Write => How::Write,
            Shutdown::Both => How::Both,
        };
        if let Some(ring) = &self.ring
            && how != How::Read
        {
            ring.writer.memory().end().says(stream::Says::Ended);
        }
        rustix::net::shutdown(&self.fd, how)?;
        self.rouse();
        Ok(())
    }

    /// Wakes a peer that naps: the socket says something new.
    fn rouse(&self) {
        if let Some(ring) = &self.ring
            && ring.writer.is_napped()
        {
            wake(&ring.to_reader);
        }
    }

    /// Waits until there is something to read, or the stream has ended; `false`: the time is over. A signal ends it not.
    ///
    /// # Errors
    /// poll(2)'s.
    pub fn wait_readable(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if !self.held().is_empty() || self.look_at_ring()? > 0 {
            return Ok(true);
        }
        let begun = Instant::now();
        // Bound: the tokens that the peer sends.
        loop {
            // Who looks at the ring alone has asked for no word by the socket yet.
            if let Some(ring) = &mut self.ring {
                let rests = ring.reader.rest(&line(&self.fd, None));
                if ring.reader.uses_ring() && !rests {
                    // A read tells, also what is wrong.
                    return Ok(true);
                }
            }
            give_back_tables();
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if !wait(&self.fd, PollFlags::IN, left)? {
                return Ok(false);
            }
            // The token may be that of what is read by now.
            let Some(ring) = &mut self.ring else {
                return Ok(true);
            };
            if ring.reader.is_ready(&line(&self.fd, None)) {
                return Ok(true);
            }
        }
    }

    /// Waits until a write takes bytes, or fails; `false`: the time is over. A signal ends it not.
    ///
    /// # Errors
    /// poll(2)'s; the peer's misdeed.
    pub fn wait_writable(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if self.way() == Way::Ring
            && let Some(ring) = &mut self.ring
            && ring.writer.room().map_err(said)? > 0
        {
            return Ok(true);
        }
        wait(&self.fd, PollFlags::OUT, limit)
    }

    /// Room for at least so many bytes, to be filled and committed. Nothing of it is sent
    /// otherwise. What was reserved before is given up. Where the ring has no room, and this circuit does not block, it is
    /// a buffer, which goes by the socket as what is written then does.
    ///
    /// # Errors
    /// `InvalidInput`: more than [`CAPACITY`](crate::CAPACITY), whichever way it goes. Or as write(2), but never `WouldBlock`.
    pub fn reserve(&mut self, min: usize) -> io::Result<Reserved<'_>> {
        if min > stream::CAPACITY {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.gives_up();
        self.look_at_peer()?;
        // Bound: none; it blocks as a write does.
        while self.way() == Way::Ring {
            let Some(ring) = &mut self.ring else { break };
            let room = ring.writer.reserve().map_err(said)?;
            if room >= min.max(1) {
                // As long as lies in a row.
                let room = ring.writer.memory().reach(ring.writer.offset(0), room);
                match room >= min.max(1) {
                    true => return Ok(Reserved::new(self, Room::Ring(room))),
                    false => break,
                }
            }
            if min > ring.writer.capacity() {
                return Err(ErrorKind::InvalidInput.into());
            }
            match self.blocks {
                true => self.wait_for_room(min)?,
                false => break,
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.writer.gives_up();
        }
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.resize(min.max(HELD), 0);
        Ok(Reserved::new(self, Room::Buffer(buffer, 0)))
    }

    /// What was reserved is given up, and its memory kept.
    fn gives_up(&mut self) {
        if let Room::Buffer(buffer, _) = std::mem::take(&mut self.room) {
            self.spare = buffer;
        }
    }

    /// What came by the socket and is not consumed.
    pub(crate) fn held(&self) -> &[u8] {
        self.held.get(self.consumed..self.came).unwrap_or_default()
    }

    /// What has come, at least a byte; nothing: the stream has ended. It stays there until it is
    /// consumed.
    ///
    /// # Errors
    /// As read(2).
    pub fn peek(&mut self) -> io::Result<Peeked<'_>> {
        if !self.held().is_empty() {
            return Ok(Peeked::held(self));
        }
        let mut there = self.look_at_ring()?;
        if there == 0 && self.blocks {
            there = self.wait_at_ring()?;
        }
        if there > 0 {
            let in_row = |ring: &Ring| ring.reader.memory().reach(ring.reader.offset(0), there);
            let there = self.ring.as_ref().map_or(there, in_row);
            return Ok(Peeked::ring(self, there));
        }
        let mut held = std::mem::take(&mut self.held);
        held.resize(HELD, 0);
        let came = self.receive(&mut held);
        (self.held, self.consumed) = (held, 0);
        self.came = *came.as_ref().unwrap_or(&0);
        came.map(|_| Peeked::held(self))
    }

    /// Sends the first so many bytes of what was reserved; how many of them went. All of them, if this circuit blocks, or
    /// the room is in the ring; what was reserved beyond them is given up. Where it does not block, and the socket takes no
    /// more, it may be fewer, as by write(2). The rest stays reserved, and is committed by another call of this, once
    /// [`Circuit::wait_writable`], or a poll, says so; whoever writes or reserves before that gives it up.
    ///
    /// # Errors
    /// `InvalidInput`: more than is reserved. `WouldBlock`: none went, and all stays reserved. Or as write(2).
    pub fn commit(&mut self, n: usize) -> io::Result<usize> {
        if n > self.room.len() {
            return Err(ErrorKind::InvalidInput.into());
        }
        match std::mem::take(&mut self.room) {
            Room::None => Ok(0),
            Room::Ring(_) => self.commit_in_ring(n).map(|()| n),
            Room::Buffer(buffer, from) => self.commit_buffer(buffer, from, n),
        }
    }

    fn commit_in_ring(&mut self, n: usize) -> io::Result<()> {
        self.bytes += n;
        self.writes += 1;
        match &mut self.ring {
            Some(Ring {
                writer, to_reader, ..
            }) => {
                let line = line(&self.fd, Some(to_reader));
                writer.commit(&line, n).map_err(said)
            }
            None => Ok(()),
        }
    }

    /// So many bytes of a buffer, of which some went already.
    fn commit_buffer(&mut self, buffer: Vec<u8>, from: usize, n: usize) -> io::Result<usize> {
        let (mut at, end) = (from, from + n);
        // Bound: the bytes.
        while at < end {
            match self.send(buffer.get(at..end).unwrap_or_default()) {
                Ok(sent) => at += sent,
                Err(error) => {
                    // Its caller is told what went; the error comes again, if it is one that stays.
                    if at > from || error.kind() == ErrorKind::WouldBlock {
                        self.room = Room::Buffer(buffer, at);
                    }
                    return match at - from {
                        0 => Err(error),
                        went => Ok(went),
                    };
                }
            }
        }
        self.spare = buffer;
        Ok(n)
    }

    /// So many bytes of what was peeked at are used.
    pub fn consume(&mut self, n: usize) {
        let held = self.held().len();
        if held > 0 {
            self.consumed += n.min(held);
        } else if let Some(ring) = &mut self.ring {
            let to_writer = &ring.to_writer;
            let line = line(&self.fd, Some(to_writer));
            ring.reader.consume(&line, n);
        }
    }

    /// Sends bytes as a write does.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.look_at_peer()?;
        // Bound: none; it blocks as a write does.
        loop {
            let full = if self.blocks {
                Full::Waits
            } else {
                Full::Spills
            };
            let sent = match &mut self.ring {
                None => stream::Line::send(&line(&self.fd, None), &[], bytes),
                Some(ring) => {
                    ring.reader.consent();
                    let to_reader = &ring.to_reader;
                    let line = line(&self.fd, Some(to_reader));
                    ring.writer.write(&line, bytes, full)
                }
            };
            match sent {
                Ok(n) => {
                    self.bytes += n;
                    self.writes += 1;
                    return Ok(n);
                }
                Err(Stop::Full) => self.wait_for_room(1)?,
                Err(Stop::Blocked) if self.blocks => {
                    wait(&self.fd, PollFlags::OUT, None)?;
                }
                Err(stop) => return Err(said(stop)),
            }
        }
    }

    fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // Bound: none; it blocks as a read does.
        loop {
            let came = match &mut self.ring {
                None => stream::Line::take(&line(&self.fd, None), out),
                Some(ring) => {
                    let to_writer = &ring.to_writer;
                    let line = line(&self.fd, Some(to_writer));
                    ring.reader.read(&line, out)
                }
            };
            match came {
                Ok(n) => return Ok(n),
                Err(Stop::Blocked) if self.blocks => {
                    give_back_tables();
                    wait(&self.fd, PollFlags::IN, None)?;
                }
                Err(Stop::Socket(libc::ECONNRESET))
                    if self.ring.as_ref().is_some_and(|ring| ring.writer.is_read()) =>
                {
                    return Ok(0);
                }
                Err(stop) => return Err(said(stop)),
            }
        }
    }

    fn look_at_ring(&mut self) -> io::Result<usize> {
        match &mut self.ring {
            Some(ring) => ring.reader.in_ring().map_err(said),
            None => Ok(0),
        }
    }

    /// Looks at the ring for a while, if that is what bytes come by, and sleeps by it where
    /// nobody polls.
    fn wait_at_ring(&mut self) -> io::Result<usize> {
        let Some(ring) = &mut self.ring else {
            return Ok(0);
        };
        let reader = &mut ring.reader;
        if !reader.uses_ring() {
            return Ok(0);
        }
        if let Some(time) = self.spin.time() {
            let there = spin(time, || reader.in_ring()).map_err(said)?;
            self.spin.came_to(there > 0);
            if there > 0 {
                return Ok(there);
            }
        }
        give_back_tables();
        if !self.polled
            && let Some(seen) = reader.nap().map_err(said)?
        {
            sleep(reader.memory().naps_by(), seen, NAP);
            reader.nap_is_over();
        }
        reader.in_ring().map_err(said)
    }

    /// Waits until the ring has room for so many bytes, or for a while.
    fn wait_for_room(&mut self, min: usize) -> io::Result<()> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        let writer = &mut ring.writer;
        let enough = |room: usize| if room >= min { room } else { 0 };
        if spin(self.spin.time, || writer.room().map(enough)).map_err(said)? > 0 {
            return Ok(());
        }
        if let Some(seen) = writer.arm(min).map_err(said)? {
            sleep(writer.memory().sleeps_by(), seen, SLEEP);
            writer.disarm();
            if is_over(&self.fd) {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    }

    fn look_at_peer(&mut self) -> io::Result<()> {
        if self.bytes < LOOK_BYTES && self.writes < LOOK_WRITES {
            return Ok(());
        }
        (self.bytes, self.writes) = (0, 0);
        match is_over(&self.fd) {
            true => Err(ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

fn line<'a>(fd: &'a OwnedFd, peer: Option<&'a CircuitWaker>) -> Socket<'a> {
    Socket { fd, peer }
}

/// Asks until there is something, or the time is over.
fn spin(time: Duration, mut ask: impl FnMut() -> Result<usize, Stop>) -> Result<usize, Stop> {
    let begun = Instant::now();
    // Bound: the time.
    loop {
        // A clock is read no more often than it has to be.
        for _ in 0..32 {
            match ask()? {
                0 => std::hint::spin_loop(),
                n => return Ok(n),
            }
        }
        if begun.elapsed() >= time {
            return Ok(0);
        }
    }
}

pub(crate) fn said(stop: Stop) -> io::Error {
    match stop {
        Stop::Blocked | Stop::Full => ErrorKind::WouldBlock.into(),
        Stop::Socket(errno) => io::Error::from_raw_os_error(errno),
        Stop::Peer(breach) => io::Error::new(ErrorKind::ConnectionAborted, breach),
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        self.rouse();
    }
}

impl Read for Circuit {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let held = self.held();
        if !held.is_empty() {
            let n = held.len().min(out.len());
            out[..n].copy_from_slice(&held[..n]);
            self.consumed += n;
            return Ok(n);
        }
        if self.blocks && self.look_at_ring()? == 0 {
            self.wait_at_ring()?;
        }
        self.receive(out)
    }
}

impl Write for Circuit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gives_up();
        self.send(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Circuit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Circuit {
    fn from(fd: OwnedFd) -> Circuit {
        Circuit::from_fd(fd)
    }
}
