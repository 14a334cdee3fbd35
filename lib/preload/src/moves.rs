//! `sendfile`: from a file right into the ring.
#![expect(unsafe_code, reason = "what a lock guards")]

use crate::cancelled::Taken;
use crate::line::Line;
use crate::real;
use crate::record::{Moves, Record};
use crate::send::{
    SLEEPS, blocks, consent, ended, goes_otherwise, look_at_peer, step, wait_for_room, waits,
};
use crate::socket::{CLOSED, Is, Socket, WAITS};
use libc::ssize_t;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use stream::Turn;

/// Bytes that go at once at most.
const AT_ONCE: usize = 256 << 10;

/// Sends so many bytes of a file, from so far on; how many; `None`: the descriptor is none of the
/// ring's any more.
pub fn send_file(
    record: &Record,
    fd: c_int,
    from: c_int,
    mut at: i64,
    count: usize,
) -> Option<ssize_t> {
    let (socket, blocks) = (Socket::of(fd, record), blocks(record, 0));
    let (mut done, mut error, mut is_over) = (0, 0, false);
    let mut turn = Turn::default();
    // Bound: what there is to send; it blocks as a write does.
    while done < count && !is_over && [0, WAITS].contains(&error) {
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
        let went = some(&socket, from, at, [done, count], blocks, &mut turn);
        drop(taken);
        error = match went {
            Ok(n) => {
                done += n;
                at += n as i64;
                is_over = n == 0;
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
    Some(ended(done, error, 0))
}

/// So much is done, of so much; the lock is held.
fn some(
    socket: &Socket,
    from: c_int,
    at: i64,
    [done, all]: [usize; 2],
    blocks: bool,
    turn: &mut Turn,
) -> Result<usize, c_int> {
    let (record, most) = (socket.record, all - done);
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
        let n = room.min(most).min(AT_ONCE).min(to_end);
        if let Some(place) = writing.writer.memory().place(place, n).filter(|_| n > 0) {
            // `n` bytes from there on are mapped and writable; no reference to them exists.
            let n = pread(from, place.as_ptr().cast(), n, at);
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
            turn.wrote(n, most.min(to_end));
            let [_, written] = &record.by_ring;
            written.fetch_add(n as u64, Ordering::Relaxed);
            return Ok(n);
        }
    }
    // A thread's stack may have no room for so many.
    let mut bytes: Vec<u8> = Vec::new();
    let n = most.min(16 << 10);
    bytes.try_reserve_exact(n).map_err(|_| libc::ENOMEM)?;
    bytes.resize(n, 0);
    let n = pread(from, bytes.as_mut_ptr(), bytes.len(), at);
    let n = usize::try_from(n).map_err(|_| real::errno())?;
    match bytes.get(..n) {
        Some(bytes) if n > 0 => step(socket, writing, bytes, blocks, turn, done),
        _ => Ok(0),
    }
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
