//! `sendfile`: from a file right into the ring.
#![expect(unsafe_code, reason = "what a lock guards")]

use crate::cancelled::Taken;
use crate::line::Line;
use crate::real;
use crate::record::{Moves, Record, Writing};
use crate::send::{
    SLEEPS, blocks, consent, ended, goes_otherwise, look_at_peer, step, wait_for_room, waits,
};
use crate::socket::{CLOSED, Is, Socket, WAITS};
use crate::users::is_alone;
use libc::{MSG_NOSIGNAL, ssize_t};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use stream::Turn;

/// Bytes that go at once at most.
const AT_ONCE: usize = 256 << 10;
/// The same of what goes by the socket and is read first.
const READ_AT_ONCE: usize = 64 << 10;

/// What is left to be sent of a file.
struct Rest {
    from: c_int,
    at: i64,
    left: usize,
    /// What was read of it last: one place for all of a call.
    bytes: Vec<u8>,
    /// The file has no more, or the kernel took no more.
    is_over: bool,
    /// The kernel has given the signal of a peer that is gone itself.
    is_signalled: bool,
}

/// Sends so many bytes of a file, from so far on; how many; `None`: the descriptor is none of the
/// ring's any more.
pub fn send_file(
    record: &Record,
    fd: c_int,
    from: c_int,
    at: i64,
    count: usize,
) -> Option<ssize_t> {
    let (socket, blocks) = (Socket::of(fd, record), blocks(record, 0));
    let mut rest = Rest {
        from,
        at,
        left: count,
        bytes: Vec::new(),
        is_over: false,
        is_signalled: false,
    };
    let (mut done, mut error) = (0, 0);
    let mut turn = Turn::default();
    // Bound: what there is to send; it blocks as a write does.
    while rest.left > 0 && !rest.is_over && [0, WAITS].contains(&error) {
        if let Err(errno) = socket.takes(Moves::Out, blocks) {
            error = errno;
            break;
        }
        let taken = Taken(&record.write_lock);
        let is = socket.is();
        if is != Is::There {
            drop(taken);
            return goes_otherwise(&socket, is, done, 0);
        }
        let went = some(&socket, &mut rest, done, blocks, &mut turn);
        drop(taken);
        error = match went {
            Ok(n) => {
                done += n;
                rest.at += n as i64;
                rest.left -= n;
                rest.is_over |= n == 0;
                0
            }
            Err(WAITS) => waits(&socket),
            Err(errno) => errno,
        };
    }
    // What was sent is, whatever hinders the rest: the offset is moved by it.
    let error = match error {
        libc::EPIPE | CLOSED => error,
        _ if done > 0 => 0,
        error => error,
    };
    let flags = if rest.is_signalled { MSG_NOSIGNAL } else { 0 };
    Some(ended(done, error, flags))
}

/// So much is done; the lock is held.
fn some(
    socket: &Socket,
    rest: &mut Rest,
    done: usize,
    blocks: bool,
    turn: &mut Turn,
) -> Result<usize, c_int> {
    let record = socket.record;
    // SAFETY: the lock is held.
    let writing = unsafe { record.writing() };
    look_at_peer(socket, writing)?;
    consent(record);
    let peer = |_| libc::ECONNABORTED;
    let line = Line::of(socket, false, &writing.waker);
    let in_ring = writing.writer.in_ring(&line) == Ok(true);
    if in_ring && (blocks || !turn.goes_aside()) {
        let mut room = writing.writer.reserve().map_err(peer)?;
        if room == 0 && blocks && socket.slept.get() < SLEEPS {
            wait_for_room(socket, writing)?;
            room = writing.writer.reserve().map_err(peer)?;
        }
        let place = writing.writer.offset(0);
        // Not over the end: where that lies in a row is this process's alone, and the record all's that share it.
        let to_end = writing.writer.capacity() - place;
        let n = room.min(rest.left).min(AT_ONCE).min(to_end);
        if let Some(place) = writing.writer.memory().place(place, n).filter(|_| n > 0) {
            // `n` bytes from there on are mapped and writable; no reference to them exists.
            let n = pread(rest.from, place.as_ptr().cast(), n, rest.at);
            let came = usize::try_from(n).map_err(|_| real::errno());
            let line = Line::of(socket, false, &writing.waker);
            let committed = writing.writer.commit(&line, came.unwrap_or(0));
            let n = came?;
            committed.map_err(|stop| match stop {
                stream::Stop::Socket(errno) => errno,
                _ => libc::ECONNABORTED,
            })?;
            socket.slept.set(0);
            writing.bytes += n;
            writing.writes += 1;
            turn.wrote(n, rest.left.min(to_end));
            let [_, written] = &record.by_ring;
            written.fetch_add(n as u64, Ordering::Relaxed);
            return Ok(n);
        }
    }
    // Who waits there keeps the lock, of which another thread or process may have need, and has the kernel count a limit anew.
    let by_kernel = record.limit_to_send().is_none() && is_alone() && record.is_alone();
    if writing.writer.is_plain() && (by_kernel || !blocks) {
        return by_kernel_some(socket, writing, rest, blocks);
    }
    let bytes = read_some(rest)?;
    match bytes.is_empty() {
        true => Ok(0),
        false => step(socket, writing, bytes, blocks, turn, done),
    }
}

/// As the kernel does it, where bytes still go as they are: they are counted, and no other sends any meanwhile.
fn by_kernel_some(
    socket: &Socket,
    writing: &mut Writing,
    rest: &mut Rest,
    blocks: bool,
) -> Result<usize, c_int> {
    let number = socket.number().ok_or(CLOSED)?;
    let (mut at, n) = (rest.at, rest.left.min(AT_ONCE));
    let lock = &socket.record.write_lock;
    // Until it is counted.
    lock.is_torn();
    let [out, from] = [number, rest.from].map(|it| it.cast_unsigned() as usize);
    let sent = real::told(libc::SYS_sendfile, [out, from, (&raw mut at) as usize, n]);
    let Ok(sent) = usize::try_from(sent) else {
        lock.is_whole();
        return Err(match real::errno() {
            // Somebody has it not block since.
            libc::EAGAIN if blocks => socket.awaits(None),
            libc::EBADF if socket.number() != Some(number) => CLOSED,
            errno => {
                rest.is_signalled = errno == libc::EPIPE;
                errno
            }
        });
    };
    writing.writer.sent_plain(sent);
    lock.is_whole();
    socket.slept.set(0);
    writing.bytes += sent;
    writing.writes += 1;
    // The file has no more, the socket has no room, or a signal came: the kernel says so little then too.
    rest.is_over = sent < n;
    Ok(sent)
}

/// Reads some more of the file.
fn read_some(rest: &mut Rest) -> Result<&[u8], c_int> {
    let n = rest.left.min(READ_AT_ONCE);
    rest.bytes.clear();
    // A thread's stack may have no room for so many.
    let room = rest.bytes.try_reserve_exact(n);
    room.map_err(|_| libc::ENOMEM)?;
    let came = pread(rest.from, rest.bytes.as_mut_ptr(), n, rest.at);
    let came = usize::try_from(came).map_err(|_| real::errno())?;
    // SAFETY: there is room for `n`, and the kernel filled so many of them.
    unsafe { rest.bytes.set_len(came.min(n)) };
    Ok(&rest.bytes)
}

/// As `pread`, to where there is room for so many.
fn pread(from: c_int, to: *mut u8, n: usize, at: i64) -> isize {
    let numbers = [from.cast_unsigned() as usize, to as usize, n];
    let [from, to, n] = numbers;
    real::told(
        libc::SYS_pread64,
        [from, to, n, at.cast_unsigned() as usize],
    )
}
