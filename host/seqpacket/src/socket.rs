//! One end of a socket.

use crate::{Credentials, Error, MAX_FDS, Misdeed, Result, credentials};
use command::Message;
use command::message::MESSAGE_BYTES;
use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, getsockname, recv, recvmsg, sendmsg, shutdown,
    socket_with, socketpair, sockopt,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The descriptors that came beside a message, at most [`MAX_FDS`], in order;
/// close-on-exec.
pub type Fds = Vec<OwnedFd>;

/// Room for ancillary data: [`MAX_FDS`] descriptors and no more.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));
/// Most messages put aside while [`Socket::ask`] waits for its answer.
const MAX_ASIDE: usize = 4096;
/// Datagrams that are thrown away by who parts from a socket; of more another has to.
const MOST_WAIT: usize = 4096;
/// So many datagrams are more than any socket has memory for.
const MOST: usize = 1 << 22;

/// One end of a connection. Sending and receiving take `&self`.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// What arrived while [`Socket::ask`] waited for something else.
    aside: Mutex<VecDeque<(Message, Fds)>>,
}

impl Socket {
    /// Two connected ends, close-on-exec.
    pub fn pair() -> Result<(Socket, Socket)> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Socket::from_fd(a), Socket::from_fd(b)))
    }

    /// One that is connected to itself, close-on-exec: what is sent comes back in order, to whoever
    /// has the descriptor then. It has a name in this network namespace, by which nobody else may
    /// send.
    pub fn to_itself() -> Result<Socket> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // The kernel chooses.
        bind(&fd, &SocketAddrUnix::new_unnamed())?;
        connect(&fd, &getsockname(&fd)?)?;
        Ok(Socket::from_fd(fd))
    }

    /// Gives it room for so many messages that wait, each with a descriptor. It takes privilege to have
    /// more than others.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn make_room(&self, messages: usize) -> Result<()> {
        // Twice what is asked for is what the kernel gives, and what it counts of a message is more
        // than twice its bytes.
        let bytes = messages * 2 * MESSAGE_BYTES;
        Ok(sockopt::set_socket_send_buffer_size_force(&self.fd, bytes)?)
    }

    /// Takes over a descriptor, which must be a connected SOCK_SEQPACKET socket.
    pub fn from_fd(fd: OwnedFd) -> Socket {
        Socket {
            fd,
            aside: Mutex::new(VecDeque::new()),
        }
    }

    /// The descriptor; what was put aside and not yet received is dropped.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends one message with copies of these descriptors, without blocking.
    ///
    /// # Errors
    /// [`Error::Full`] where the peer does not read, [`Error::Closed`] where it is
    /// gone, [`Error::TooManyDescriptors`] for more than [`MAX_FDS`].
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        if fds.len() > MAX_FDS {
            return Err(Error::TooManyDescriptors);
        }
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::TooManyDescriptors);
        }
        loop {
            let bytes = IoSlice::new(message.as_bytes());
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.fd, &[bytes], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// As [`Socket::send`], but waits up to `timeout` for room.
    ///
    /// # Errors
    /// As [`Socket::send`]; [`Error::Full`] only once the time is over.
    pub fn send_wait(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            match self.send(message, fds) {
                Err(Error::Full) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::Full);
                    }
                    // A seqpacket socket may say writable while this datagram does
                    // not fit: so wait at most a millisecond at a time.
                    self.wait(PollFlags::OUT, left)?;
                    std::thread::sleep(left.min(Duration::from_millis(1)));
                }
                other => return other,
            }
        }
    }

    /// The next message, if there is one: first what [`Socket::ask`] put aside,
    /// then what the socket has. Never blocks.
    ///
    /// After an [`Socket::ask`] call this until it gives `None`: what was put
    /// aside does not make the descriptor readable again.
    ///
    /// # Errors
    /// [`Error::Closed`] at the end; [`Error::Malformed`] for what is not a
    /// message, with whatever came beside it closed.
    pub fn recv(&self) -> Result<Option<(Message, Fds)>> {
        if let Some(earlier) = self.aside().pop_front() {
            return Ok(Some(earlier));
        }
        self.recv_datagram(RecvFlags::empty())
    }

    /// The next message that the socket has, which stays there, and its descriptors with it.
    ///
    /// # Errors
    /// As for [`Socket::recv`].
    pub fn peek(&self) -> Result<Option<(Message, Fds)>> {
        self.recv_datagram(RecvFlags::PEEK)
    }

    /// The next message of a peer that has no descriptors to send. One with descriptors stays where it is:
    /// this process never has them, nor is it who lets go of them. Who closes one, or is the last to let
    /// go of it, waits for what it is of (a file of a FUSE, TCP that lingers) for as long as its owner
    /// likes. What was put aside is not looked at.
    ///
    /// # Errors
    /// As for [`Socket::recv`]; what has descriptors is [`Error::Malformed`].
    pub fn recv_word(&self) -> Result<Option<Message>> {
        match self.peek_word()? {
            Some((_, true)) => Err(Error::Malformed(Misdeed::Descriptors)),
            Some((message, false)) => {
                self.skip()?;
                Ok(Some(message))
            }
            None => Ok(None),
        }
    }

    /// The next message, which stays where it is, and whether descriptors are with it.
    ///
    /// # Errors
    /// As for [`Socket::recv`]; what is malformed stays as well.
    pub fn peek_word(&self) -> Result<Option<(Message, bool)>> {
        // One byte more than a message, so that a longer one shows.
        let mut bytes = [0_u8; MESSAGE_BYTES + 1];
        let Some((length, has_fds)) = self.look(&mut bytes)? else {
            return Ok(None);
        };
        match length {
            0 if !has_fds => Err(Error::Closed),
            MESSAGE_BYTES => Message::read_from_prefix(&bytes)
                .map(|(message, _)| Some((message, has_fds)))
                .map_err(|_| Error::Malformed(Misdeed::Short)),
            n if n > MESSAGE_BYTES => Err(Error::Malformed(Misdeed::Long)),
            _ => Err(Error::Malformed(Misdeed::Short)),
        }
    }

    /// What is next in it, and stays: bytes, as many as there is room for, and whether descriptors are with
    /// them. Without room for these the kernel has copies of its own, and lets go of those.
    fn look(&self, bytes: &mut [u8]) -> Result<Option<(usize, bool)>> {
        let mut control = RecvAncillaryBuffer::default();
        loop {
            let mut buffers = [IoSliceMut::new(bytes)];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match recvmsg(&self.fd, &mut buffers, &mut control, flags) {
                Ok(seen) => {
                    let has_fds = seen.flags.contains(ReturnFlags::CTRUNC);
                    return Ok(Some((seen.bytes, has_fds)));
                }
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Before it is let go of: nobody sends anything any more, and what was sent is thrown away, up to
    /// the first with descriptors, or what is not known to have none. Whether there is such: another
    /// process is to throw it away ([`empty`]), for who closes the socket waits for these like who
    /// closes them. Not for streams, whose bytes out of band a look passes by.
    pub fn is_parted_from_with_descriptors(&self) -> bool {
        let shut = shutdown(&self.fd, Shutdown::Both);
        if !matches!(shut, Ok(()) | Err(Errno::NOTCONN)) {
            return true;
        }
        for _ in 0..MOST_WAIT {
            match next(self.fd.as_fd()) {
                Ok(Next::End) => return false,
                Ok(Next::Plain) if self.skip().is_ok() => {}
                _ => return true,
            }
        }
        true
    }

    /// Takes the next datagram and closes what came beside it, which this process never has. What
    /// was put aside is not looked at.
    ///
    /// # Errors
    /// [`Error::System`]: there is none (EAGAIN), or the kernel's.
    pub fn skip(&self) -> Result<()> {
        loop {
            // Without room for descriptors the kernel lets go of them.
            match recv(&self.fd, &mut [0; 1], RecvFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::System(errno)),
            }
        }
    }

    /// As [`Socket::recv`], but waits up to `timeout`; `None` when the time is over.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    pub fn recv_wait(&self, timeout: Duration) -> Result<Option<(Message, Fds)>> {
        if let Some(earlier) = self.aside().pop_front() {
            return Ok(Some(earlier));
        }
        self.recv_datagram_wait(timeout)
    }

    /// Sends a request and waits for the answer with the same `seq`; other
    /// messages that arrive meanwhile are put aside for [`Socket::recv`].
    ///
    /// # Errors
    /// [`Error::TimedOut`] without an answer in `timeout`; else as
    /// [`Socket::send`] and [`Socket::recv`].
    pub fn ask(
        &self,
        request: &Message,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<(Message, Fds)> {
        let end = Instant::now() + timeout;
        self.send_wait(request, fds, timeout)?;
        self.answer(request.seq, end)
    }

    /// Waits for the next message with this `seq` (the further answers to a
    /// request that has several); others are put aside.
    ///
    /// # Errors
    /// As [`Socket::ask`].
    pub fn answer_to(&self, seq: u32, timeout: Duration) -> Result<(Message, Fds)> {
        let end = Instant::now() + timeout;
        let mut aside = self.aside();
        if let Some(at) = aside.iter().position(|(message, _)| message.seq == seq)
            && let Some(found) = aside.remove(at)
        {
            return Ok(found);
        }
        drop(aside);
        self.answer(seq, end)
    }

    /// Who is at the other end (SO_PEERCRED: as of connect, bind or pair).
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn peer_credentials(&self) -> Result<Credentials> {
        credentials::of(self.fd.as_fd())
    }

    fn answer(&self, seq: u32, end: Instant) -> Result<(Message, Fds)> {
        // Bounded by the time and by MAX_ASIDE.
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.recv_datagram_wait(left)? {
                Some((message, fds)) if message.seq == seq => return Ok((message, fds)),
                Some(other) => {
                    let mut aside = self.aside();
                    if aside.len() >= MAX_ASIDE {
                        return Err(Error::Full);
                    }
                    aside.push_back(other);
                }
                None => return Err(Error::TimedOut),
            }
        }
    }

    fn recv_datagram_wait(&self, timeout: Duration) -> Result<Option<(Message, Fds)>> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(received) = self.recv_datagram(RecvFlags::empty())? {
                return Ok(Some(received));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(PollFlags::IN, left)?;
        }
    }

    fn recv_datagram(&self, how: RecvFlags) -> Result<Option<(Message, Fds)>> {
        // One byte more than a message, so that a longer one shows.
        let mut bytes = [0_u8; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = how | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.fd, &mut buffers, &mut control, flags) {
                Ok(received) => break received,
                // A peer that died with answers unread: said once, before what it sent
                // ahead of its death, which is still there.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        // From here on every descriptor is owned: an early return closes it.
        let mut fds = Fds::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 && fds.is_empty() {
            return Err(Error::Closed);
        }
        let truncated = received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS;
        if guard!("seqpacket-descriptors") && truncated {
            return Err(Error::Malformed(Misdeed::Descriptors));
        }
        if guard!("seqpacket-long") && received.bytes > MESSAGE_BYTES {
            return Err(Error::Malformed(Misdeed::Long));
        }
        if guard!("seqpacket-short") && received.bytes < MESSAGE_BYTES {
            return Err(Error::Malformed(Misdeed::Short));
        }
        match Message::read_from_prefix(&bytes) {
            Ok((message, _)) => Ok(Some((message, fds))),
            Err(_) => Err(Error::Malformed(Misdeed::Short)),
        }
    }

    /// Waits until ready or the time is over; the caller looks again either way.
    fn wait(&self, what: PollFlags, timeout: Duration) -> Result<()> {
        let time = Timespec {
            tv_sec: timeout.as_secs().min(1 << 30).cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.fd, what)], Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn aside(&self) -> MutexGuard<'_, VecDeque<(Message, Fds)>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What waits in a socket.
enum Next {
    /// Nothing.
    End,
    /// A datagram, maybe an empty one.
    Plain,
    /// One with descriptors.
    Descriptors,
}

/// Looks what is next in a socket that is not a stream. With every datagram comes who sent it, and
/// with the end of one that is shut nothing: an empty datagram looks the same else.
fn next(socket: BorrowedFd<'_>) -> Result<Next> {
    sockopt::set_socket_passcred(socket, true)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut bytes = [IoSliceMut::new(&mut byte)];
        return match recvmsg(socket, &mut bytes, &mut control, flags) {
            Ok(seen) if seen.flags.contains(ReturnFlags::CTRUNC) => Ok(Next::Descriptors),
            Ok(_) if control.drain().next().is_some() => Ok(Next::Plain),
            Ok(_) | Err(Errno::AGAIN) => Ok(Next::End),
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Throws away all that waits in a socket of any kind, with its descriptors, and waits for what these are
/// of; of one that listens, all connections that wait.
pub fn empty(socket: BorrowedFd<'_>) {
    let mut bytes = vec![0; 1 << 16];
    for _ in 0..MOST {
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            // An empty datagram, or its end.
            Ok((_, 0)) if !matches!(next(socket), Ok(Next::Plain | Next::Descriptors)) => return,
            Ok(_) | Err(Errno::INTR) => {}
            // It may be one that listens.
            Err(_) if accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).is_ok() => {
            }
            Err(_) => return,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
