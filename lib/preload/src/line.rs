//! The socket under a circuit.
#![expect(unsafe_code, reason = "a socket's number, and what the kernel fills")]

use crate::real;
use crate::socket::{CLOSED, Socket};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, iovec};
use shm::CircuitWaker;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use stream::Stop;

/// It.
pub struct Line<'a> {
    socket: &'a Socket<'a>,
    /// Whether bytes wait in the kernel for the socket to take them; marks never do.
    pub blocks: bool,
    pub waker: &'a CircuitWaker,
    /// Bytes that went by it.
    pub moved: Cell<usize>,
    /// It waited for as long as the program wants to.
    pub is_late: Cell<bool>,
}

impl<'a> Line<'a> {
    /// That of a call.
    pub fn of(socket: &'a Socket<'a>, blocks: bool, waker: &'a CircuitWaker) -> Line<'a> {
        Line {
            socket,
            blocks,
            waker,
            moved: Cell::new(0),
            is_late: Cell::new(false),
        }
    }

    fn receive(&self, out: &mut [u8], flags: c_int) -> Result<usize, Stop> {
        let flags = flags | MSG_DONTWAIT;
        // The descriptor is closed, which is none of the reader's concern: others may have the ring.
        let number = self.socket.number().ok_or(Stop::Blocked)?;
        let place = out.as_mut_ptr() as usize;
        // No more is written than there is room for.
        let words = [number.cast_unsigned(), flags.cast_unsigned()].map(|it| it as usize);
        let n = real::told(
            libc::SYS_recvfrom,
            [words[0], place, out.len(), words[1], 0, 0],
        );
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => Err(match real::errno() {
                libc::EAGAIN | libc::EINTR => {
                    match self.socket.record.error.swap(0, Ordering::AcqRel) {
                        0 => Stop::Blocked,
                        errno => Stop::Socket(errno),
                    }
                }
                libc::EBADF => Stop::Blocked,
                errno => Stop::Socket(errno),
            }),
        }
    }
}

impl stream::Line for Line<'_> {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        // Until it is counted.
        self.socket.record.write_lock.is_torn();
        self.sends(head, body)
    }
    fn send_token(&self, token: &[u8]) -> Result<usize, Stop> {
        self.sends(token, &[])
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.socket.record.read_lock.is_torn();
        let n = self.receive(out, 0)?;
        self.moved.set(self.moved.get() + n);
        Ok(n)
    }
    fn take_tokens(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.receive(out, 0)
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.receive(out, MSG_PEEK)
    }
    fn wake(&self) {
        if let Some(word) = self.waker.sleeps_by() {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
        }
    }
}

impl Line<'_> {
    fn sends(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        let part = |bytes: &[u8]| iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // What was to be sent stays to be sent, by whoever has the ring still.
        let closed = Stop::Socket(CLOSED);
        let number = self.socket.number().ok_or(closed)?;
        let mut parts = [part(head), part(body)];
        // SAFETY: of all zeroes it names nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        let waits = self.blocks && !body.is_empty();
        // The signal is given once, by who asked.
        let flags = MSG_NOSIGNAL | if waits { 0 } else { MSG_DONTWAIT };
        let n = match waits {
            // SAFETY: the kernel reads two parts, which are there.
            true => unsafe { real::sendmsg(number, &raw const message, flags) },
            false => {
                let words = [number.cast_unsigned(), flags.cast_unsigned()].map(|it| it as usize);
                let message = (&raw const message) as usize;
                real::told(libc::SYS_sendmsg, [words[0], message, words[1]])
            }
        };
        if let Ok(n) = usize::try_from(n) {
            self.moved
                .set(self.moved.get() + n.saturating_sub(head.len()));
            return Ok(n);
        }
        Err(match real::errno() {
            libc::EAGAIN => {
                self.is_late.set(waits);
                Stop::Blocked
            }
            libc::EINTR if !waits => Stop::Blocked,
            libc::EBADF => Stop::Socket(CLOSED),
            errno => Stop::Socket(errno),
        })
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    Late,
    Interrupted,
    Woken,
}

/// Sleeps until the word is another, or somebody wakes who sleeps there.
pub fn sleep(word: Option<&AtomicU32>, seen: u32, limit: Duration) -> Slept {
    let limit = rustix::thread::futex::Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let Some(word) = word else {
        return Slept::Late;
    };
    let flags = rustix::thread::futex::Flags::empty();
    match rustix::thread::futex::wait(word, flags, seen, Some(&limit)) {
        Err(rustix::io::Errno::TIMEDOUT) => Slept::Late,
        Err(rustix::io::Errno::INTR) => Slept::Interrupted,
        _ => Slept::Woken,
    }
}
