//! Back to a plain socket, for what a ring cannot do and for who knows nothing of it: before
//! there is a ring the socket stays as it is; where there is one, the descriptor becomes one end
//! of a pair of sockets, and a process of its own carries bytes between the other end and the ring.
#![expect(
    unsafe_code,
    reason = "fork without the C library, in the middle of anything"
)]

use crate::cancelled::kept;
use crate::descriptors::may_be;
use crate::patience::PATIENCE;
use crate::real;
use crate::receive::receive;
use crate::record::Record;
use crate::send::{refused, send};
use crate::socket::polled;
use crate::users::{is_alone, quietly};
use crate::watched::Watched;
use crate::{gate, orphan, processes, table};
use libc::{POLLHUP, POLLIN, POLLOUT, iovec};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// Bytes that are under way in a direction at most.
const CARRIED: usize = 16 << 10;

/// Does it; `Err`: an error number, and the descriptor is as it was.
pub fn leave(fd: c_int) -> Result<(), c_int> {
    let Some(record) = table::hold(fd) else {
        return Ok(());
    };
    let done = match record.stay() {
        true => {
            table::forget(fd);
            Ok(())
        }
        false => kept(|| alone(record, fd)),
    };
    table::put(record);
    done
}

/// Nobody reads or writes by the descriptor while it becomes another.
fn alone(record: &Record, fd: c_int) -> Result<(), c_int> {
    // This one first: it may be held while a write waits, the other never. Who waits there gives way, but for one of
    // another process, which the kernel keeps.
    record.leaves.fetch_add(1, Ordering::AcqRel);
    let taken = record.write_lock.take_patiently(PATIENCE);
    record.leaves.fetch_sub(1, Ordering::AcqRel);
    taken.map_err(refused)?;
    let mut done = record.read_lock.take(true).map_err(refused);
    if done.is_ok() {
        if table::is_of(fd, record) {
            if !is_alone() {
                // Or who waits for these locks makes a copy of the pair's end, as if it were the circuit's.
                table::copy(fd, record);
            }
            quietly(|| done = relay(record, fd));
        }
        record.read_lock.give();
    }
    record.write_lock.give();
    done
}

fn relay(record: &Record, fd: c_int) -> Result<(), c_int> {
    let Some(_still) = gate::shut() else {
        return Err(libc::EAGAIN);
    };
    if !table::is_of(fd, record) {
        // Closed, or another, before the numbers stood still.
        return Ok(());
    }
    if !table::numbers(record).all(may_be) {
        // Nothing could take that number's place.
        return Err(libc::EMFILE);
    }
    // Who carries is not to find that there is no memory.
    let ways = [Way::new(), Way::new()];
    let [Some(here), Some(there)] = ways else {
        return Err(libc::ENOMEM);
    };
    let (mut pair, kind) = ([0; 2], libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    // SAFETY: room for two numbers.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(real::errno());
    }
    let [theirs, mine] = pair;
    keeps_options(fd, theirs);
    let nonblocking = record.nonblocking.load(Ordering::Relaxed) != 0;
    if nonblocking {
        // SAFETY: a flag of what was just made.
        unsafe {
            real::fcntl(
                theirs,
                libc::F_SETFL,
                (libc::O_RDWR | libc::O_NONBLOCK) as usize,
            )
        };
    }
    if record.said_all.load(Ordering::Relaxed) != 0 {
        // SAFETY: what was just made.
        unsafe { real::shutdown(theirs, libc::SHUT_WR) };
    }
    record.forks();
    processes::forks();
    // In it nothing runs but what is here.
    let carried = orphan::make(|parent| {
        processes::is_forked_by(parent);
        carry(record, fd, mine, [here, there])
    });
    if !carried {
        record.forks_not();
    }
    if carried {
        takes_places(record, theirs);
    }
    // SAFETY: what was just made.
    unsafe {
        real::close(theirs);
        real::close(mine);
    }
    match carried {
        true => Ok(()),
        false => Err(libc::EAGAIN),
    }
}

/// The pair's end is at each number by which this process has the circuit from now on, as a program means them: were one left, or
/// carried by another process, what comes would go to the one or the other.
fn takes_places(record: &Record, end: c_int) {
    for fd in table::numbers(record) {
        let handed_on = table::is_handed_on(fd);
        let flags = if handed_on { 0 } else { libc::O_CLOEXEC };
        let watched = Watched::take_out(fd);
        // SAFETY: numbers of this process, which stand still.
        unsafe { real::dup3(end, fd, flags) };
        watched.put_in(fd);
        table::leaves(fd, record);
    }
}

/// What a program has set of a socket, and finds to be so in the pair's end.
fn keeps_options(from: c_int, to: c_int) {
    const KEPT: [c_int; 4] = [
        libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO,
        libc::SO_RCVLOWAT,
        libc::SO_LINGER,
    ];
    for option in KEPT {
        let mut value = [0_u64; 2];
        let mut length = size_of_val(&value) as libc::socklen_t;
        let at = (&raw mut value).cast();
        // SAFETY: the kernel writes no more than there is room for, and reads as much as it wrote.
        unsafe {
            if real::getsockopt(from, libc::SOL_SOCKET, option, at, &raw mut length) == 0 {
                real::setsockopt(to, libc::SOL_SOCKET, option, at, length);
            }
        }
    }
}

fn end(status: c_int) -> ! {
    loop {
        real::raw(libc::SYS_exit_group, [status.cast_unsigned() as usize]);
    }
}

/// One direction: what was taken from one side and not yet given to the other.
struct Way {
    /// Not on the stack, which is that of whichever thread left the ring.
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    over: bool,
}

impl Way {
    /// None: there is no memory.
    fn new() -> Option<Way> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(CARRIED).ok()?;
        bytes.resize(CARRIED, 0);
        let (from, to, over) = (0, 0, false);
        Some(Way {
            bytes,
            from,
            to,
            over,
        })
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Moves what can be moved; `true`: it is over, and all is given.
    fn turn(&mut self, take: impl Fn(iovec) -> isize, give: impl Fn(iovec) -> isize) -> bool {
        if self.is_empty() && !self.over {
            let part = iovec {
                iov_base: self.bytes.as_mut_ptr().cast(),
                iov_len: CARRIED,
            };
            match take(part) {
                0 => self.over = true,
                n if n > 0 => (self.from, self.to) = (0, n.cast_unsigned()),
                _ if real::errno() == libc::EAGAIN => {}
                _ => self.over = true,
            }
        }
        if let Some(rest) = self
            .bytes
            .get_mut(self.from..self.to)
            .filter(|it| !it.is_empty())
        {
            let part = iovec {
                iov_base: rest.as_mut_ptr().cast(),
                iov_len: rest.len(),
            };
            match give(part) {
                n if n > 0 => self.from += n.cast_unsigned(),
                _ if real::errno() == libc::EAGAIN => {}
                _ => {
                    self.from = self.to;
                    self.over = true;
                }
            }
        }
        self.over && self.is_empty()
    }
}

/// The process that carries; it ends with either side.
fn carry(record: &Record, circuit: c_int, pair: c_int, [mut here, mut there]: [Way; 2]) -> ! {
    crate::lock::is_another();
    table::uncopies();
    record.is_forked(crate::lock::is_there);
    // Signals to the program, and its terminal's, are not for this one.
    real::raw(libc::SYS_setsid, [0; 3]);
    // SAFETY: a set of all signals, and a name that ends.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"bulkhead-carry".as_ptr());
    }
    let (low, high) = (circuit.min(pair), circuit.max(pair));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)] {
        if first <= last {
            let range = [first, last].map(|fd| fd.cast_unsigned() as usize);
            real::raw(libc::SYS_close_range, [range[0], range[1], 0]);
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the part lies in a way's bytes, and the record is a ring's.
    let from_ring =
        |part| unsafe { receive(record, circuit, &[part], libc::MSG_DONTWAIT) }.unwrap_or(0);
    // SAFETY: as above.
    let to_ring = |part| unsafe { send(record, circuit, &[part], flags) }.unwrap_or(0);
    let to_pair = |part: iovec| {
        // SAFETY: the part lies in a way's bytes.
        unsafe { real::send(pair, part.iov_base, part.iov_len, flags) }
    };
    let from_pair = |part: iovec| {
        // SAFETY: as above.
        unsafe { real::recv(pair, part.iov_base, part.iov_len, libc::MSG_DONTWAIT) }
    };
    let (mut there_over, mut here_over) = (false, false);
    loop {
        if !here_over {
            here_over = here.turn(from_ring, to_pair);
            if here_over {
                // SAFETY: one's own socket.
                unsafe { real::shutdown(pair, libc::SHUT_WR) };
            }
        }
        if !there_over {
            there_over = there.turn(from_pair, to_ring);
            // Who has closed it altogether may not be the only one who has the circuit.
            if there_over && polled(pair, 0) & POLLHUP == 0 {
                record.says_end();
                // SAFETY: one's own socket.
                unsafe { real::shutdown(circuit, libc::SHUT_WR) };
            }
        }
        let hung = polled(pair, 0) & POLLHUP != 0;
        if there_over && (here_over || hung) {
            end(0);
        }
        let (mut at_circuit, mut at_pair) = (0, 0);
        match here.is_empty() {
            _ if here_over => {}
            true => at_circuit |= POLLIN,
            false => at_pair |= POLLOUT,
        }
        match there.is_empty() {
            _ if there_over => {}
            true => at_pair |= POLLIN,
            false => at_circuit |= POLLOUT,
        }
        let mut fds = [(circuit, at_circuit), (pair, at_pair)].map(|(fd, events)| libc::pollfd {
            // One that nothing is waited for would say that it hung up, again and again.
            fd: if events == 0 { -1 } else { fd },
            events,
            revents: 0,
        });
        // SAFETY: two that are there.
        unsafe { real::poll(fds.as_mut_ptr(), 2, 1000) };
    }
}

/// Leaves it where it can, whatever comes of that: `false`, with the error number set, where it
/// cannot.
pub fn left(fd: c_int) -> bool {
    match leave(fd) {
        Ok(()) => true,
        Err(errno) => {
            real::set_errno(errno);
            false
        }
    }
}
