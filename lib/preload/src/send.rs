//! Writing by the ring.
#![expect(unsafe_code, reason = "bytes that a program points to")]

use crate::calls::{EMPTY, within};
use crate::cancelled::Taken;
use crate::line::Line;
use crate::lock::Refused;
use crate::real::{self, fail};
use crate::record::{Moves, Record, Writing};
use crate::socket::{CLOSED, Is, Room, Socket, WAITS, naps};
use crate::users::is_alone;
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, ssize_t};
use std::cell::OnceCell;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stream::{Full, LOOK_BYTES, LOOK_WRITES, SPIN, Stop, Turn};

/// How often it sleeps for room before bytes go by the socket, where the kernel knows of signals and time limits.
pub const SLEEPS: u32 = 2;

/// What a lock that there is not means to a program.
pub fn refused(refused: Refused) -> c_int {
    match refused {
        Refused::Held => libc::EAGAIN,
        Refused::Broken => libc::ECONNABORTED,
        Refused::Interrupted => libc::EINTR,
    }
}

/// Whether a call with these flags waits.
pub fn blocks(record: &Record, flags: c_int) -> bool {
    flags & MSG_DONTWAIT == 0 && record.nonblocking.load(Ordering::Relaxed) == 0
}

/// As `sendmsg` of these parts; `None`: the descriptor is none of the ring's any more.
///
/// # Safety
/// The parts are of readable memory; the record is a ring's.
pub unsafe fn send(record: &Record, fd: c_int, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let (socket, blocks) = (Socket::of(fd, record), blocks(record, flags));
    let mut one = [EMPTY];
    let parts = within(parts, &mut one);
    let (mut done, mut error) = (0, WAITS);
    let mut turn = Turn::default();
    // Bound: none where it blocks; where it does not it never waits.
    while error == WAITS {
        if let Err(errno) = socket.takes(Moves::Out, blocks) {
            error = errno;
            break;
        }
        let taken = Taken(&record.write_lock);
        let is = socket.is();
        if is != Is::There {
            drop(taken);
            if is == Is::Left && done > 0 {
                // SAFETY: the caller's promise.
                return Some(unsafe { rest_by_kernel(fd, parts, done, flags) });
            }
            return goes_otherwise(&socket, is, done, flags);
        }
        // SAFETY: the lock is held; the caller's promise.
        error = unsafe {
            some(
                &socket,
                record.writing(),
                parts,
                &mut done,
                blocks,
                &mut turn,
            )
        };
        drop(taken);
        if error == WAITS {
            error = waits(&socket);
        }
    }
    Some(ended(done, error, flags))
}

/// Sends what was not sent yet; why no more, or 0.
///
/// # Safety
/// As [`send`].
unsafe fn some(
    socket: &Socket,
    writing: &mut Writing,
    parts: &[iovec],
    done: &mut usize,
    blocks: bool,
    turn: &mut Turn,
) -> c_int {
    if let Err(errno) = says_more(socket.record) {
        return errno;
    }
    let mut before = *done;
    for part in parts {
        if before >= part.iov_len {
            before -= part.iov_len;
            continue;
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        let mut bytes = bytes.get(before..).unwrap_or_default();
        before = 0;
        while !bytes.is_empty() {
            match step(socket, writing, bytes, blocks, turn, *done) {
                Ok(n) => {
                    *done += n;
                    bytes = bytes.get(n..).unwrap_or_default();
                }
                Err(errno) => return errno,
            }
        }
    }
    0
}

/// The rest of a call by what has the descriptor's place since it has left its ring; what the call says.
///
/// # Safety
/// As [`send`].
unsafe fn rest_by_kernel(fd: c_int, parts: &[iovec], mut done: usize, flags: c_int) -> ssize_t {
    let mut before = done;
    for part in parts {
        // Bound: the part's bytes.
        while before < part.iov_len {
            let (place, length) = (
                part.iov_base.wrapping_byte_add(before),
                part.iov_len - before,
            );
            // SAFETY: the caller's promise.
            let n = unsafe { real::send(fd, place, length, flags) };
            match usize::try_from(n) {
                Ok(n) => (done, before) = (done + n, before + n),
                // What was sent is sent; the next call is told.
                Err(_) => return done.cast_signed(),
            }
        }
        before -= part.iov_len;
    }
    done.cast_signed()
}

/// What a call says that sent so much, and whose descriptor is none of the ring's any more; `None`: the kernel does.
pub fn goes_otherwise(socket: &Socket, is: Is, done: usize, flags: c_int) -> Option<ssize_t> {
    match is {
        Is::Left if done == 0 => None,
        // As if it had come later.
        Is::Closed if done == 0 && !socket.has_waited() => Some(fail(socket.is_no_more())),
        _ => Some(ended(done, CLOSED, flags)),
    }
}

/// What a call that sent so much, and failed so, says. Of a descriptor that was closed meanwhile it is what it comes to
/// where somebody has shut it down. What was sent is, whatever hinders the rest. But a short answer is a promise of an edge,
/// and of a peer that is gone none comes any more: the ring takes what nobody reads, and its end was told before. So it fails.
pub fn ended(done: usize, error: c_int, flags: c_int) -> ssize_t {
    let is_gone = [libc::EPIPE, libc::ECONNRESET, libc::ECONNABORTED].contains(&error);
    if error == 0 || done > 0 && !is_gone {
        return done.cast_signed();
    }
    let error = match error {
        CLOSED => libc::EPIPE,
        error => error,
    };
    if error == libc::EPIPE && flags & MSG_NOSIGNAL == 0 {
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    fail(error)
}

/// Writes some of the bytes; what the program is told where none.
pub fn step(
    socket: &Socket,
    writing: &mut Writing,
    bytes: &[u8],
    blocks: bool,
    turn: &mut Turn,
    done: usize,
) -> Result<usize, c_int> {
    let record = socket.record;
    look_at_peer(socket, writing)?;
    consent(record);
    // Not with the lock of one that another process may have need of: who is killed in a nap keeps it.
    if writing.writer.unread_spill() > 0 && record.is_alone() {
        back_to_ring(writing);
    }
    if !blocks {
        // A reader that is about to make room keeps all that follows from going by the socket.
        spin_for_room(socket, writing, turn, done)?;
    }
    // The kernel would count a limit anew for each part. So would it hold the lock for as long as it waits, of which
    // another thread or process may have need.
    let by_kernel = blocks && record.limit_to_send().is_none() && is_alone() && record.is_alone();
    let full = match blocks {
        true if socket.slept.get() < SLEEPS => Full::Waits,
        false if turn.goes_aside() => Full::Aside,
        _ => Full::Spills,
    };
    // Bound: room that comes as it is given up, which takes what is written.
    loop {
        let line = Line::of(socket, by_kernel, &writing.waker);
        let written = writing.writer.write(&line, bytes, full);
        record.write_lock.is_whole();
        match written {
            Ok(n) => {
                socket.slept.set(0);
                writing.bytes += n;
                writing.writes += 1;
                turn.wrote(n, bytes.len());
                let aside = n.min(line.moved.get());
                writing.patience.earns(aside);
                let ring = (n - aside) as u64;
                let [_, written] = &record.by_ring;
                written.fetch_add(ring, Ordering::Relaxed);
                return Ok(n);
            }
            Err(Stop::Full) => wait_for_room(socket, writing)?,
            // A mark is to go first, or the time is limited.
            Err(Stop::Blocked) if blocks && !line.is_late.get() => return Err(socket.awaits(None)),
            Err(Stop::Blocked) => return Err(libc::EAGAIN),
            Err(Stop::Socket(errno)) => return Err(errno),
            Err(Stop::Peer(_)) => return Err(libc::ECONNABORTED),
        }
    }
}

/// After a call that [`WAITS`]: it does, without its lock; that it goes on, or why not.
pub fn waits(socket: &Socket) -> c_int {
    match socket.waits() {
        Ok(()) => {
            socket.gives_way();
            WAITS
        }
        Err(errno) => errno,
    }
}

/// Fails where nobody reads any more: the ring says nothing of that.
pub fn look_at_peer(socket: &Socket, writing: &mut Writing) -> Result<(), c_int> {
    says_more(socket.record)?;
    let slept = socket.slept.get() > 0;
    if slept {
        writing.writer.disarm();
    }
    if writing.bytes < LOOK_BYTES && writing.writes < LOOK_WRITES && !slept {
        return Ok(());
    }
    writing.bytes = writing.bytes.max(LOOK_BYTES);
    // As it will be the next time.
    socket.is_read()?;
    let there = writing.writer.published();
    socket.record.there.store(there, Ordering::Relaxed);
    (writing.bytes, writing.writes) = (0, 0);
    Ok(())
}

/// Fails where this end has said that there is no more: the ring knows nothing of that.
fn says_more(record: &Record) -> Result<(), c_int> {
    match record.said_all.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(libc::EPIPE),
    }
}

/// Lets the peer use the ring by now, if nobody reads at the moment, who would do it.
pub fn consent(record: &Record) {
    if record.consented.load(Ordering::Relaxed) == 0 && record.read_lock.try_take() {
        // SAFETY: the lock is held.
        let consented = unsafe { record.reading() }.reader.consent();
        record
            .consented
            .store(u32::from(consented), Ordering::Relaxed);
        record.read_lock.give();
    }
}

/// What went by the socket is before anything in the ring: who writes faster than is read would never come back.
/// So a write waits for that, if it is being read.
fn back_to_ring(writing: &mut Writing) {
    let begun = OnceCell::new();
    let pause = |time: Duration| match time.is_zero() {
        true => std::hint::spin_loop(),
        false => naps(time),
    };
    let Writing {
        writer, patience, ..
    } = writing;
    let now = || begun.get_or_init(Instant::now).elapsed();
    patience.waits(|| writer.unread_spill(), now, pause);
}

/// Looks whether there is room in the ring, for as long as the call may, if that is where bytes go.
fn spin_for_room(
    socket: &Socket,
    writing: &mut Writing,
    turn: &mut Turn,
    done: usize,
) -> Result<(), c_int> {
    let line = Line::of(socket, false, &writing.waker);
    if writing.writer.in_ring(&line) == Ok(true) {
        turn.waited(spins(writing, turn.may_wait(done))?.1);
    }
    Ok(())
}

/// Whether there is room in the ring within so much time, and how long that took.
fn spins(writing: &mut Writing, time: Duration) -> Result<(bool, Duration), c_int> {
    if writing.writer.room().map_err(misdeed)? > 0 {
        return Ok((true, Duration::ZERO));
    }
    let begun = Instant::now();
    // Bound: the time.
    loop {
        let took = begun.elapsed();
        if took >= time {
            return Ok((false, took));
        }
        if writing.writer.room().map_err(misdeed)? > 0 {
            return Ok((true, took));
        }
        std::hint::spin_loop();
    }
}

fn misdeed(_: stream::Stop) -> c_int {
    libc::ECONNABORTED
}

/// Waits a moment for room in the ring.
///
/// # Errors
/// [`WAITS`]: there is none by then.
pub fn wait_for_room(socket: &Socket, writing: &mut Writing) -> Result<(), c_int> {
    if spins(writing, SPIN)?.0 {
        return Ok(());
    }
    let Some(seen) = writing.writer.arm(1).map_err(misdeed)? else {
        return Ok(());
    };
    let word = writing.writer.memory().sleeps_by();
    let word = word.map_or(std::ptr::null(), std::ptr::from_ref);
    Err(socket.awaits(Some(Room { word, seen })))
}

/// Whether a call that a signal interrupted goes on, as far as is known: no handler of the program's says that it does
/// not. The kernel tells who sleeps so nothing of which signal it was.
pub fn restarts() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: all zeroes is an action, and it is only asked for.
        let (asked, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (
                libc::sigaction(signal, std::ptr::null(), &raw mut action),
                action,
            )
        };
        let is_none = [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        asked != 0 || is_none || action.sa_flags & libc::SA_RESTART != 0
    })
}
