//! One connection.

use crate::ask::memory_of;
use crate::socket::{Socket, is_over, sleep, wait, wake};
use crate::{Peeked, Reserved};
use rustix::event::PollFlags;
use rustix::net::Shutdown as How;
use shm::{CircuitReader, CircuitWaker, CircuitWriter, circuit_ends};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use stream::{Full, Reader, Side, Stop, Writer};

/// How long who waits looks at the ring before it sleeps: as long as a poller of a shared core may.
const SPIN: Duration = Duration::from_micros(5);
/// How long who sleeps for room sleeps before it looks whether the peer lives.
const SLEEP: Duration = Duration::from_millis(10);
/// Bytes, and writes, after which it is looked whether the peer still reads: the ring says nothing
/// of that, and a circuit that is cut ends.
const LOOK_BYTES: usize = 256 << 10;
const LOOK_WRITES: u32 = 1024;
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

pub(crate) struct Ring {
    pub(crate) writer: Writer<CircuitWriter>,
    pub(crate) reader: Reader<CircuitReader>,
    /// Of who writes what is read here.
    pub(crate) waker: CircuitWaker,
}

/// A connection.
pub struct Circuit {
    pub(crate) fd: OwnedFd,
    pub(crate) ring: Option<Ring>,
    blocks: bool,
    spin: Duration,
    /// What came and is peeked at, where it is not in the ring, and how much of it is consumed.
    pub(crate) held: Vec<u8>,
    pub(crate) consumed: usize,
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
            spin: SPIN,
            held: Vec::new(),
            consumed: 0,
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
                waker: reader.waker(),
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
        self.spin = spin;
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
        match ring.writer.in_ring(&line(&self.fd, &|| {})) {
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
        rustix::net::shutdown(&self.fd, how).map_err(Into::into)
    }

    /// Waits until there is something to read, or the stream has ended; `false`: the time is over.
    ///
    /// # Errors
    /// poll(2)'s.
    pub fn wait_readable(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if self.consumed < self.held.len() || self.look_at_ring()? > 0 {
            return Ok(true);
        }
        wait(&self.fd, PollFlags::IN, limit)
    }

    /// Waits until a write takes bytes, or fails; `false`: the time is over.
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
    /// otherwise.
    ///
    /// # Errors
    /// `InvalidInput`: the ring is smaller. `WouldBlock`: it has no room now, and this circuit
    /// does not block: a write goes on by the socket. Or as write(2).
    pub fn reserve(&mut self, min: usize) -> io::Result<Reserved<'_>> {
        self.look_at_peer()?;
        // Bound: none; it blocks as a write does.
        while self.way() == Way::Ring {
            let Some(ring) = &mut self.ring else { break };
            let room = ring.writer.room().map_err(said)?;
            if room >= min.max(1) {
                return Ok(Reserved::ring(self, room));
            }
            if min > ring.writer.capacity() {
                return Err(ErrorKind::InvalidInput.into());
            }
            match self.blocks {
                true => self.wait_for_room(min)?,
                false => return Err(ErrorKind::WouldBlock.into()),
            }
        }
        Ok(Reserved::buffer(self, min.max(HELD)))
    }

    /// What has come, at least a byte; nothing: the stream has ended. It stays there until it is
    /// consumed.
    ///
    /// # Errors
    /// As read(2).
    pub fn peek(&mut self) -> io::Result<Peeked<'_>> {
        if self.consumed < self.held.len() {
            return Ok(Peeked::held(self));
        }
        let mut there = self.look_at_ring()?;
        if there == 0 && self.blocks {
            there = self.spin_for_data()?;
        }
        if there > 0 {
            return Ok(Peeked::ring(self, there));
        }
        let mut held = std::mem::take(&mut self.held);
        held.resize(HELD, 0);
        let came = self.receive(&mut held);
        held.truncate(*came.as_ref().unwrap_or(&0));
        (self.held, self.consumed) = (held, 0);
        came.map(|_| Peeked::held(self))
    }

    /// Sends so many bytes that were written in place: no more than there was room for.
    ///
    /// # Errors
    /// As write(2).
    pub fn commit(&mut self, n: usize) -> io::Result<()> {
        self.bytes += n;
        self.writes += 1;
        match &mut self.ring {
            Some(ring) => ring.writer.commit(&line(&self.fd, &|| {}), n).map_err(said),
            None => Ok(()),
        }
    }

    /// So many bytes of what was peeked at are used.
    pub fn consume(&mut self, n: usize) {
        let held = self.held.len().saturating_sub(self.consumed);
        if held > 0 {
            self.consumed += n.min(held);
        } else if let Some(Ring { reader, waker, .. }) = &mut self.ring {
            reader.consume(&line(&self.fd, &|| wake(waker.sleeps_by())), n);
        }
    }

    /// Sends bytes as a write does.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
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
                None => stream::Line::send(&line(&self.fd, &|| {}), &[], bytes),
                Some(ring) => {
                    ring.reader.consent();
                    ring.writer.write(&line(&self.fd, &|| {}), bytes, full)
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
                None => stream::Line::take(&line(&self.fd, &|| {}), out),
                Some(Ring { reader, waker, .. }) => {
                    reader.read(&line(&self.fd, &|| wake(waker.sleeps_by())), out)
                }
            };
            match came {
                Ok(n) => return Ok(n),
                Err(Stop::Blocked) if self.blocks => {
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

    /// Looks at the ring for a while, if that is what bytes come by.
    fn spin_for_data(&mut self) -> io::Result<usize> {
        let Some(ring) = &mut self.ring else {
            return Ok(0);
        };
        if !ring.reader.uses_ring() {
            return Ok(0);
        }
        spin(self.spin, || ring.reader.in_ring()).map_err(said)
    }

    /// Waits until the ring has room for so many bytes, or for a while.
    fn wait_for_room(&mut self, min: usize) -> io::Result<()> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        let writer = &mut ring.writer;
        let enough = |room: usize| if room >= min { room } else { 0 };
        if spin(self.spin, || writer.room().map(enough)).map_err(said)? > 0 {
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

pub(crate) fn line<'a>(fd: &'a OwnedFd, wake: &'a dyn Fn()) -> Socket<'a> {
    Socket { fd, wake }
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

impl Read for Circuit {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(held) = self.held.get(self.consumed..).filter(|it| !it.is_empty()) {
            let n = held.len().min(out.len());
            out[..n].copy_from_slice(&held[..n]);
            self.consumed += n;
            return Ok(n);
        }
        if self.blocks && self.look_at_ring()? == 0 {
            self.spin_for_data()?;
        }
        self.receive(out)
    }
}

impl Write for Circuit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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
