//! A ring's socket in one call: by which number it is reached, and how long the call may wait.
//!
//! Another thread may close the program's descriptor, or put another in its place, while a call waits, and the
//! kernel's call keeps the file, not the number. So where there are other threads the first call that waits makes a
//! copy, by which all go on until nobody has the socket here any more (`table`). Without one (a process has 64 of them at most) the
//! number is looked at before each use: what remains then is a moment between that look and the kernel's, in which
//! somebody has to close the one and open another. The same goes for a call that has not waited yet, of which nobody
//! can know that it has begun.
#![expect(unsafe_code, reason = "a descriptor's number")]

use crate::line::{Slept, sleep};
use crate::lock::Refused;
use crate::real;
use crate::record::{Moves, Record};
use crate::send::{refused, restarts};
use crate::table;
use crate::users::is_alone;
use libc::{MSG_PEEK, POLLERR, POLLHUP, POLLIN, POLLOUT};
use std::cell::{Cell, OnceCell};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// In place of an errno, all of which files have too: the descriptor is closed, or another.
pub const CLOSED: c_int = c_int::MIN;
/// The same: the call waits for what [`Socket::awaits`] says, and gives its lock back meanwhile: who dies or is
/// stopped in that wait keeps nobody else from writing.
pub const WAITS: c_int = c_int::MIN + 1;
/// How long who waits for a socket to take something waits at a time.
const LOOKS: Duration = Duration::from_millis(100);

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// The call goes on by it, or by a copy.
    There,
    /// It is the end of a pair by now: the call is the kernel's.
    Left,
    /// It is closed, or another: nothing may go by its number.
    Closed,
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    Ready,
    Late,
    Interrupted,
}

/// There was none in the ring when this word, if it can be slept by, was so.
pub struct Room {
    pub word: *const AtomicU32,
    pub seen: u32,
}

/// It.
pub struct Socket<'a> {
    pub record: &'a Record,
    fd: c_int,
    /// Of the first wait.
    begun: OnceCell<Instant>,
    /// What it is about to wait for: room in the ring, or else the socket.
    awaits: Cell<Option<Room>>,
    /// How often it slept for room since it wrote anything.
    pub slept: Cell<u32>,
}

impl<'a> Socket<'a> {
    /// A descriptor's.
    pub fn of(fd: c_int, record: &'a Record) -> Socket<'a> {
        Socket {
            record,
            fd,
            begun: OnceCell::new(),
            awaits: Cell::new(None),
            slept: Cell::new(0),
        }
    }

    /// Its number, for one use; none: it is closed.
    #[inline]
    pub fn number(&self) -> Option<c_int> {
        let own = || table::is_of(self.fd, self.record).then_some(self.fd);
        table::copy_of(self.record).or_else(own)
    }

    /// What it is by now. Asked with the lock: who leaves a ring has both.
    pub fn is(&self) -> Is {
        if table::has_left(self.fd, self.record) {
            return Is::Left;
        }
        match self.number() {
            Some(_) => Is::There,
            None => Is::Closed,
        }
    }

    /// What a call is told whose number is of another socket by now, or of none.
    pub fn is_no_more(&self) -> c_int {
        match table::is_followed(self.fd) {
            true => libc::ENOTCONN,
            false => libc::EBADF,
        }
    }

    /// Whether the call has waited for anything.
    pub fn has_waited(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Takes the lock of one of its ends. Who holds it may be stopped: the call's own time goes on.
    ///
    /// # Errors
    /// What the program is told.
    pub fn takes(&self, end: Moves, blocks: bool) -> Result<(), c_int> {
        let (lock, limit) = match end {
            Moves::Out => (&self.record.write_lock, self.record.limit_to_send()),
            _ => (&self.record.read_lock, self.record.limit_to_receive()),
        };
        if lock.try_take() {
            return Ok(());
        }
        if !blocks {
            return lock.take(false).map_err(refused);
        }
        self.begins_to_wait();
        // Bound: the holder's life, the time limit.
        loop {
            match lock.take_within(self.left_of(limit)) {
                Err(Refused::Interrupted) if limit.is_none() && restarts() => {}
                taken => return taken.map_err(refused),
            }
        }
    }

    /// From here on another thread may know that the call is in its midst.
    pub fn begins_to_wait(&self) {
        self.begun.get_or_init(Instant::now);
        if !is_alone() {
            table::copy(self.fd, self.record);
        }
    }

    /// What is left of a time limit, from the first wait on; none: there is no limit.
    fn left_of(&self, limit: Option<Duration>) -> Option<Duration> {
        let waited = self.begun.get().map(Instant::elapsed).unwrap_or_default();
        limit.map(|limit| limit.saturating_sub(waited))
    }

    /// How long a wait to write may be that is not to be longer than this.
    ///
    /// # Errors
    /// The program's time is over.
    pub fn may_wait(&self, most: Duration) -> Result<Duration, c_int> {
        match self.left_of(self.record.limit_to_send()) {
            Some(Duration::ZERO) => Err(libc::EAGAIN),
            left => Ok(left.unwrap_or(most).min(most)),
        }
    }

    /// Whether a signal that comes in a wait to write ends it: with a time limit each does, as the kernel has it.
    pub fn ends_by_signal(&self) -> bool {
        self.record.limit_to_send().is_some() || !restarts()
    }

    /// Waits until there is something to read, as the kernel does: it knows how long, and of signals. No lock is held.
    ///
    /// # Errors
    /// What the program is told, or [`CLOSED`].
    pub fn waits_to_read(&self) -> Result<(), c_int> {
        self.begins_to_wait();
        let number = self.number().ok_or(CLOSED)?;
        // A peer's tokens, behind which there is nothing, begin no limit anew.
        if let Some(left) = self.left_of(self.record.limit_to_receive()) {
            return match left.is_zero() {
                true => Err(libc::EAGAIN),
                false => match polls(number, POLLIN, left) {
                    Polled::Ready => Ok(()),
                    Polled::Late => Err(libc::EAGAIN),
                    Polled::Interrupted => Err(libc::EINTR),
                },
            };
        }
        let mut byte = 0_u8;
        // SAFETY: room for one byte.
        let n = unsafe { real::recv(number, (&raw mut byte).cast(), 1, MSG_PEEK) };
        if n < 0 {
            match real::errno() {
                libc::EBADF => return Err(CLOSED),
                errno @ (libc::EINTR | libc::EAGAIN) => return Err(errno),
                // Said once, and behind what is in the ring.
                errno => self.record.error.store(errno, Ordering::Release),
            }
        }
        Ok(())
    }

    /// It is about to wait for room in the ring, or for the socket.
    pub fn awaits(&self, room: Option<Room>) -> c_int {
        self.awaits.set(room);
        WAITS
    }

    /// Waits for that, or for a while. No lock is held.
    ///
    /// # Errors
    /// What the program is told, or [`CLOSED`].
    pub fn waits(&self) -> Result<(), c_int> {
        let Some(Room { word, seen }) = self.awaits.take() else {
            return self.waits_to_write();
        };
        self.begins_to_wait();
        let time = self.may_wait(stream::SLEEP)?;
        self.slept.set(self.slept.get() + 1);
        // SAFETY: null, or of the ring's mapping, which is there for as long as the record is held.
        let word = unsafe { word.as_ref() };
        match sleep(word, seen, time) == Slept::Interrupted && self.ends_by_signal() {
            true => Err(libc::EINTR),
            false => Ok(()),
        }
    }

    /// Lets who leaves the ring do so, for a while. No lock is held.
    pub fn gives_way(&self) {
        let begun = Instant::now();
        while self.record.leaves.load(Ordering::Acquire) != 0 && begun.elapsed() < LOOKS {
            naps(Duration::from_micros(100));
        }
    }

    /// Waits until it takes something, or for a while.
    ///
    /// # Errors
    /// As [`Socket::waits_to_read`].
    fn waits_to_write(&self) -> Result<(), c_int> {
        self.begins_to_wait();
        let time = self.may_wait(LOOKS)?;
        let number = self.number().ok_or(CLOSED)?;
        match polls(number, POLLOUT, time) {
            // It is heard again by none.
            Polled::Interrupted if self.ends_by_signal() => Err(libc::EINTR),
            _ => Ok(()),
        }
    }

    /// Fails where nobody reads any more at the other end.
    ///
    /// # Errors
    /// EPIPE, or [`CLOSED`].
    pub fn is_read(&self) -> Result<(), c_int> {
        let number = self.number().ok_or(CLOSED)?;
        match polled(number, 0) & (POLLHUP | POLLERR) {
            0 => Ok(()),
            _ => Err(libc::EPIPE),
        }
    }
}

/// Sleeps, and not by the standard library, in which a thread may be cancelled.
pub fn naps(time: Duration) {
    let time = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let _ = rustix::thread::clock_nanosleep_relative(rustix::thread::ClockId::Monotonic, &time);
}

fn polls(fd: c_int, events: i16, limit: Duration) -> Polled {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let limit = limit.as_micros().div_ceil(1000);
    let limit = c_int::try_from(limit).unwrap_or(c_int::MAX);
    // SAFETY: one that is there.
    match unsafe { real::poll(&raw mut one, 1, limit) } {
        1 => Polled::Ready,
        0 => Polled::Late,
        _ => Polled::Interrupted,
    }
}

/// What a poll says of it now.
pub fn polled(fd: c_int, events: i16) -> i16 {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    match real::raw(libc::SYS_poll, [(&raw mut one) as usize, 1, 0]) {
        1 => one.revents,
        _ => 0,
    }
}
