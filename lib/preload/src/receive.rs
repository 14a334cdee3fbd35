//! Reading by the ring.
#![expect(unsafe_code, reason = "memory that a program points to")]

use crate::calls::{EMPTY, within};
use crate::cancelled::Taken;
use crate::line::Line;
use crate::real::{self, fail};
use crate::record::{Moves, RESET, Reading, Record};
use crate::send::{blocks, refused};
use crate::socket::{CLOSED, Is, Socket};
use libc::{MSG_PEEK, MSG_TRUNC, MSG_WAITALL, iovec, ssize_t};
use shm::{CircuitReader, CircuitWriter};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Instant;
use stream::{Reader, SPIN, Says, Stop, Writer};

/// What the kernel says of the call, and not of the socket: the next one may go well.
const IS_OF_CALL: [c_int; 3] = [libc::EFAULT, libc::ENOBUFS, libc::ENOMEM];

/// Why no more was read at once.
enum End {
    /// There is no room for more, or enough was read.
    Enough,
    /// The stream has ended.
    Over,
    Stopped(Stop),
}

/// What is only to be gone goes there, so much at once.
const ASIDE: usize = 4096;

/// As `recvmsg` of these parts; `None`: the descriptor is none of the ring's any more. With MSG_TRUNC it is not written there, as of TCP.
///
/// # Safety
/// The parts are of writable memory, but with MSG_TRUNC; the record is a ring's.
pub unsafe fn receive(
    record: &Record,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
) -> Option<ssize_t> {
    let (socket, blocks) = (Socket::of(fd, record), blocks(record, flags));
    let mut one = [EMPTY];
    let parts = within(parts, &mut one);
    let all: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut done = 0;
    if all == 0 {
        return Some(0);
    }
    // Bound: none; it blocks as a read does.
    loop {
        if let Err(errno) = socket.takes(Moves::In, blocks) {
            return told(done, errno);
        }
        let taken = Taken(&record.read_lock);
        let is = socket.is();
        if is != Is::There {
            drop(taken);
            return match is {
                Is::Left if done == 0 => None,
                // SAFETY: the caller's promise.
                Is::Left => Some(unsafe { rest_by_kernel(fd, parts, done, flags) }),
                Is::Closed if !socket.has_waited() => told(done, socket.is_no_more()),
                // As who waits is told of a socket that is shut down.
                _ => Some(done.cast_signed()),
            };
        }
        // SAFETY: the lock is held.
        let reading = unsafe { record.reading() };
        let end = match flags & MSG_TRUNC {
            // SAFETY: the caller's promise.
            0 => unsafe { take(&socket, reading, parts, &mut done, flags, blocks) },
            _ => drops(&socket, reading, all, &mut done, flags, blocks),
        };
        let reads = matches!(end, End::Enough) && flags & MSG_PEEK == 0;
        if reads && record.watched.load(Ordering::Relaxed) != 0 {
            // Who has read a whole message may wait for an edge.
            let Reading { reader, waker } = &mut *reading;
            reader.rest(&Line::of(&socket, false, waker));
        }
        // It says so before the socket tells of its end.
        let says = reading.reader.says();
        drop(taken);
        if let End::Stopped(Stop::Blocked) = end {
            shm::give_back_tables();
            // As far as this it could read.
            if let Some(published) = writes(record, |writer| writer.published()) {
                record.there.store(published, Ordering::Relaxed);
            }
        }
        let waits = done == 0 || flags & (MSG_WAITALL | MSG_PEEK) == MSG_WAITALL;
        match end {
            End::Enough => return Some(done.cast_signed()),
            // What the peer closed upon without having read it the kernel does not know of.
            End::Over if done == 0 && is_reset(&socket, says) => {
                record.said_all.fetch_or(RESET, Ordering::AcqRel);
                return told(done, libc::ECONNRESET);
            }
            End::Over => return Some(done.cast_signed()),
            End::Stopped(Stop::Blocked) if blocks && waits => {}
            End::Stopped(Stop::Blocked | Stop::Full) => return told(done, libc::EAGAIN),
            End::Stopped(Stop::Socket(libc::ECONNRESET))
                if says == Says::Ended || record.is_told() || is_read(record, says) =>
            {
                return Some(done.cast_signed());
            }
            End::Stopped(Stop::Socket(errno)) => {
                if done > 0 && !IS_OF_CALL.contains(&errno) {
                    record.error.store(errno, Ordering::Release);
                } else if done == 0 && errno == libc::ECONNRESET {
                    record.said_all.fetch_or(RESET, Ordering::AcqRel);
                }
                return told(done, errno);
            }
            End::Stopped(Stop::Peer(_)) => return told(done, libc::ECONNABORTED),
        }
        match socket.waits_to_read() {
            Ok(()) => {}
            Err(CLOSED) => return Some(done.cast_signed()),
            Err(errno) => return told(done, errno),
        }
    }
}

/// The rest of a call by what has the descriptor's place since it has left its ring; what the call says.
///
/// # Safety
/// As [`receive`].
unsafe fn rest_by_kernel(fd: c_int, parts: &[iovec], mut done: usize, flags: c_int) -> ssize_t {
    let mut before = done;
    for part in parts {
        if before < part.iov_len {
            let rest = part.iov_len - before;
            // SAFETY: the caller's promise.
            let n = unsafe { real::recv(fd, part.iov_base.wrapping_byte_add(before), rest, flags) };
            // What came is told; the next call is told why no more did.
            let n = usize::try_from(n).unwrap_or(0);
            done += n;
            if n < rest {
                break;
            }
            before = part.iov_len;
        }
        before -= part.iov_len;
    }
    done.cast_signed()
}

fn told(done: usize, errno: c_int) -> Option<ssize_t> {
    Some(match done {
        0 => fail(errno),
        done => done.cast_signed(),
    })
}

/// Takes what is there.
///
/// # Safety
/// As [`receive`].
unsafe fn take(
    socket: &Socket,
    reading: &mut Reading,
    parts: &[iovec],
    done: &mut usize,
    flags: c_int,
    blocks: bool,
) -> End {
    let Reading { reader, waker } = reading;
    let record = socket.record;
    let line = Line::of(socket, blocks, waker);
    if record.consented.load(Ordering::Relaxed) == 0 {
        record
            .consented
            .store(u32::from(reader.consent()), Ordering::Relaxed);
    }
    if blocks && *done == 0 && reader.uses_ring() {
        let begun = Instant::now();
        while matches!(reader.in_ring(), Ok(0)) && begun.elapsed() < SPIN {
            std::hint::spin_loop();
        }
    }
    let mut before = *done;
    for part in parts {
        if before >= part.iov_len {
            before -= part.iov_len;
            continue;
        }
        // SAFETY: the caller's promise; `before` is less than the part's length.
        let mut room = unsafe {
            std::slice::from_raw_parts_mut(
                part.iov_base.cast::<u8>().add(before),
                part.iov_len - before,
            )
        };
        before = 0;
        while !room.is_empty() {
            if flags & MSG_PEEK != 0 {
                return match reader.peek(&line, room) {
                    Ok(0) => End::Over,
                    Ok(n) => {
                        *done = n;
                        End::Enough
                    }
                    Err(stop) => End::Stopped(stop),
                };
            }
            line.moved.set(0);
            let read = reader.read(&line, room);
            record.read_lock.is_whole();
            match read {
                Ok(0) => return End::Over,
                Ok(n) => {
                    *done += n;
                    let ring = n.saturating_sub(line.moved.get()) as u64;
                    let [read, _] = &record.by_ring;
                    read.fetch_add(ring, Ordering::Relaxed);
                    if n < room.len() && blocks && flags & MSG_WAITALL == 0 {
                        return End::Enough;
                    }
                    // Who does not block, and was given less than it asked for, may wait for an
                    // edge: it is to have found the ring empty, and to have said so there.
                    room = room.get_mut(n..).unwrap_or_default();
                }
                Err(stop) => return End::Stopped(stop),
            }
        }
    }
    End::Enough
}

/// Takes so much of what is there, for nobody.
fn drops(
    socket: &Socket,
    reading: &mut Reading,
    all: usize,
    done: &mut usize,
    flags: c_int,
    blocks: bool,
) -> End {
    let mut aside = [0_u8; ASIDE];
    // Bound: each turn but the last takes so much.
    loop {
        let n = ASIDE.min(all - *done);
        let one = [iovec {
            iov_base: aside.as_mut_ptr().cast(),
            iov_len: n,
        }];
        let mut took = 0;
        // SAFETY: memory of this function's.
        let end = unsafe { take(socket, reading, &one, &mut took, flags, blocks) };
        *done += took;
        let goes_on = matches!(end, End::Enough) && took == n && flags & MSG_PEEK == 0;
        if !goes_on || *done == all {
            return end;
        }
    }
}

/// The descriptor is about to be waited for: it is readable then if there is something to read.
pub fn rest(record: &Record, fd: c_int) {
    let rests = looks(record, fd, |reader, line| reader.rest(line));
    // What was written since it was last known to be there it can read, if it is there still.
    if rests == Some(true)
        && let Some(published) = writes(record, |writer| writer.published())
        && published != record.there.load(Ordering::Relaxed)
        && Socket::of(fd, record).is_read().is_ok()
    {
        record.there.store(published, Ordering::Relaxed);
    }
}

/// Whether there is something to read, where it was found readable.
pub fn is_ready(record: &Record, fd: c_int) -> bool {
    looks(record, fd, |reader, line| reader.is_ready(line)).unwrap_or(true)
}

/// None: another thread reads at this very moment, which may take all, or the descriptor is none of the ring's.
fn looks(
    record: &Record,
    fd: c_int,
    look: impl FnOnce(&mut Reader<CircuitReader>, &Line) -> bool,
) -> Option<bool> {
    if !record.read_lock.try_take() {
        return None;
    }
    let _taken = Taken(&record.read_lock);
    let socket = Socket::of(fd, record);
    if socket.is() != Is::There {
        return None;
    }
    // SAFETY: the lock is held.
    let Reading { reader, waker } = unsafe { record.reading() };
    let line = Line::of(&socket, false, waker);
    Some(look(reader, &line))
}

/// Whether the peer has read all that was written here while it was there: what made the kernel speak of a reset is
/// a token then, which it does not know from data.
fn is_read(record: &Record, says: Says) -> bool {
    let there = record.there.load(Ordering::Relaxed);
    says != Says::Unread && writes(record, |writer| writer.is_read_to(there)).unwrap_or(false)
}

/// Whether the peer is gone without having read what lay in the ring while it was there: what was written since it
/// could not, and where that began it says itself, if it had the time to. A socket hangs up too where both sides have
/// shut down, of which this one knows its own, and the peer says whether it has, if it is one that does.
fn is_reset(socket: &Socket, says: Says) -> bool {
    let record = socket.record;
    let is_open = match says {
        Says::Ended => false,
        Says::Nothing => record.said_all.load(Ordering::Acquire) == 0,
        Says::Open | Says::Unread => !record.is_told(),
    };
    let leaves = |writer: &Writer<CircuitWriter>| {
        writer.leaves_unread(match says {
            Says::Unread => writer.published(),
            _ => record.there.load(Ordering::Relaxed),
        })
    };
    is_open
        && record.heard_all.load(Ordering::Acquire) == 0
        && socket.is_read() == Err(libc::EPIPE)
        && writes(record, leaves).unwrap_or(false)
}

/// None: another thread writes at this very moment.
fn writes<T>(record: &Record, what: impl FnOnce(&Writer<CircuitWriter>) -> T) -> Option<T> {
    if !record.write_lock.try_take() {
        return None;
    }
    // SAFETY: the lock is held.
    let is = what(&unsafe { record.writing() }.writer);
    record.write_lock.give();
    Some(is)
}

/// As `ioctl(FIONREAD)`; `queued` tells what the kernel says.
pub fn pending(record: &Record, fd: c_int, queued: impl Fn() -> usize) -> Result<usize, c_int> {
    // Held for moments alone, but by who leaves the ring.
    record.read_lock.take(true).map_err(refused)?;
    let socket = Socket::of(fd, record);
    let is = socket.is();
    if is != Is::There {
        record.read_lock.give();
        return match is {
            Is::Left => Ok(queued()),
            _ => Err(socket.is_no_more()),
        };
    }
    // SAFETY: the lock is held.
    let Reading { reader, waker } = unsafe { record.reading() };
    let line = Line::of(&socket, false, waker);
    let edges = record.watched.load(Ordering::Relaxed) != 0;
    let there = reader.pending(&line, edges, queued);
    record.read_lock.give();
    match there {
        Ok(there) => Ok(there),
        Err(Stop::Peer(_)) => Err(libc::ECONNABORTED),
        Err(Stop::Socket(errno)) => {
            record.error.store(errno, Ordering::Release);
            Ok(0)
        }
        Err(_) => Ok(0),
    }
}
