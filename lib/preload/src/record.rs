//! What is known of a socket, in memory that a process and those that it forks share: the ring's
//! positions are the same for all of them, as a socket's are.
#![expect(unsafe_code, reason = "a ring that two locks guard")]

use crate::lock::{self, Lock, is_here, is_there};
use crate::users::quietly;
use crate::{arena, real, table};
use shm::{CircuitEnd, CircuitReader, CircuitWaker, CircuitWriter, circuit_ends};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use stream::{Patience, Reader, Says, Writer};

/// Nobody's.
pub const FREE: u32 = 0;
/// By the kernel, and counted: a ring may come.
pub const COUNTED: u32 = 1;
/// Somebody is asking for the ring.
pub const ASKING: u32 = 2;
/// By the ring.
pub const RING: u32 = 3;
/// By the kernel for good.
pub const PLAIN: u32 = 4;

/// Of `said_all`: the peer's reset, which is told once.
pub const RESET: u32 = 2;

/// Bytes in calls of [`WORTH`] or more, after which a ring is asked for: a connection that is
/// short, or of small messages, is better off with the kernel.
const AFTER: u64 = 128 << 10;
/// Bytes of a call that a ring is worth it for.
const WORTH: usize = 4 << 10;
/// Processes that may have a socket at a time and are known.
const HOLDERS: usize = 8;
/// Of `many`: processes have it that do not say so.
const UNTOLD: u32 = 1 << 31;

/// Which way a call moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    Out,
    In,
    /// It only looks.
    Nothing,
}

/// The writing end, and what was written since it was last looked whether the peer reads.
pub struct Writing {
    pub writer: Writer<CircuitWriter>,
    pub waker: CircuitWaker,
    pub bytes: usize,
    pub writes: u32,
    /// How long it may wait for what went by the socket.
    pub patience: Patience,
}

/// The reading end.
pub struct Reading {
    pub reader: Reader<CircuitReader>,
    pub waker: CircuitWaker,
}

/// One socket. Zeroed memory is one that is free.
#[repr(C, align(64))]
pub struct Record {
    pub state: AtomicU32,
    /// Processes that have a descriptor of it, by their numbers; 0: none.
    holders: [AtomicU32; HOLDERS],
    /// How many more there are than fit.
    many: AtomicU32,
    /// Forked processes that have not said who they are yet.
    forked: AtomicU32,
    /// Calls that are under way in the kernel, uncounted so far.
    under_way: AtomicU32,
    received: AtomicU64,
    sent: AtomicU64,
    worth: AtomicU64,
    /// Of the ring on: whether calls do not block.
    pub nonblocking: AtomicU32,
    /// The reader may be told by the ring: no more to be done for it.
    pub consented: AtomicU32,
    /// Threads that have it leave its ring: who writes gives way.
    pub leaves: AtomicU32,
    /// Not 0: its sending is shut down, or it is over, by a [`RESET`] that was told.
    pub said_all: AtomicU32,
    /// Its receiving is shut down: its own end tells nothing of the peer then.
    pub heard_all: AtomicU32,
    /// How much was in the ring when the peer was known to be there last: what it closes upon without having read it.
    pub there: AtomicU64,
    /// A set of epoll watches it, or it is told of by a signal.
    pub watched: AtomicU32,
    /// An error of the socket's that a wait took.
    pub error: AtomicI32,
    pub by_ring: [AtomicU64; 2],
    /// SO_RCVTIMEO and SO_SNDTIMEO, in microseconds; 0: for ever.
    limits: [AtomicU64; 2],
    pub write_lock: Lock,
    pub read_lock: Lock,
    writing: UnsafeCell<MaybeUninit<Writing>>,
    reading: UnsafeCell<MaybeUninit<Reading>>,
    /// Needs no lock.
    ending: UnsafeCell<MaybeUninit<CircuitEnd>>,
}

// SAFETY: atomics, two values that are reached under their locks, and one that is only looked at.
unsafe impl Sync for Record {}

impl Record {
    /// Takes a free one for this process; `false`: it is not free.
    pub fn begin(&self) -> bool {
        let (done, not) = (Ordering::Acquire, Ordering::Relaxed);
        if self
            .state
            .compare_exchange(FREE, ASKING, done, not)
            .is_err()
        {
            return false;
        }
        for word in self.holders.iter().chain([
            &self.many,
            &self.forked,
            &self.under_way,
            &self.nonblocking,
            &self.consented,
            &self.watched,
            &self.said_all,
            &self.heard_all,
            &self.leaves,
        ]) {
            word.store(0, Ordering::Relaxed);
        }
        for count in [&self.received, &self.sent, &self.worth, &self.there]
            .into_iter()
            .chain(&self.by_ring)
            .chain(&self.limits)
        {
            count.store(0, Ordering::Relaxed);
        }
        self.error.store(0, Ordering::Relaxed);
        self.write_lock.clear();
        self.read_lock.clear();
        self.holds(is_there);
        self.state.store(COUNTED, Ordering::Release);
        true
    }

    /// This process has it.
    fn holds(&self, mut is_there: impl FnMut(u32) -> bool) {
        let own = lock::process();
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        let free = |it: &AtomicU32| it.compare_exchange(0, own, done, not).is_ok();
        let of_dead = |it: &AtomicU32| {
            let pid = it.load(Ordering::Acquire);
            pid != own && !is_there(pid) && it.compare_exchange(pid, own, done, not).is_ok()
        };
        if !self.holders.iter().any(free) && !self.holders.iter().any(of_dead) {
            self.many.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Processes may have it that are not known.
    pub fn is_many(&self) {
        self.many.fetch_or(UNTOLD, Ordering::AcqRel);
    }

    /// A process is about to be forked. It would not have the mappings of a ring that is being
    /// asked for: who asks from now on sees that it is not alone, who does already is waited for.
    pub fn forks(&self) {
        self.forked.fetch_add(1, Ordering::SeqCst);
        // Bound: the operator's answer.
        while self.state.load(Ordering::SeqCst) == ASKING {
            std::thread::yield_now();
        }
    }

    /// No copy is on its way any more: it holds it, or there is none after all.
    pub fn forks_not(&self) {
        let less = |it: u32| it.checked_sub(1);
        let _ = self
            .forked
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// This process was; `is_there`: whether there is such a process.
    pub fn is_forked(&self, is_there: impl FnMut(u32) -> bool) {
        self.holds(is_there);
        self.forks_not();
    }

    /// This process has it no more, nor its mappings.
    pub fn end(&self) {
        let state = self.state.load(Ordering::Acquire);
        if state == RING {
            // SAFETY: begun by `ask`, whose mappings every process that has the record has at the
            // same addresses, by fork. This process reaches it no more. The words that others
            // write meanwhile are not looked at: what is dropped is mappings, which never change.
            unsafe {
                drop(std::ptr::read(self.writing.get()).assume_init());
                let mut reading = std::ptr::read(self.reading.get()).assume_init();
                let ending = std::ptr::read(self.ending.get()).assume_init();
                // The kernel knows nothing of what lies in the ring. Who of two that close at once is the last is known
                // once both have said that they do.
                let is_open = self.said_all.load(Ordering::SeqCst) == 0;
                self.leaves_holders();
                if is_open && self.is_last() && matches!(reading.reader.in_ring(), Ok(1..)) {
                    ending.says(Says::Unread);
                }
            }
        } else {
            self.leaves_holders();
        }
        let nobody = |it: &AtomicU32| it.load(Ordering::SeqCst) == 0;
        if self.is_known() && self.holders.iter().all(nobody) {
            // Unless it is another socket's by now.
            let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.state.compare_exchange(state, FREE, done, not);
        }
    }

    fn leaves_holders(&self) {
        let own = lock::process();
        let leaves = |it: &AtomicU32| {
            let done = it.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed);
            done.is_ok()
        };
        if !self.holders.iter().any(leaves) {
            let less = |it: u32| (it & !UNTOLD > 0).then(|| it - 1);
            let (done, not) = (Ordering::SeqCst, Ordering::Relaxed);
            let _ = self.many.fetch_update(done, not, less);
        }
    }

    /// Whether nobody has it any more.
    fn is_last(&self) -> bool {
        let gone = |it: &AtomicU32| {
            let pid = it.load(Ordering::SeqCst);
            pid == 0 || !is_here(pid)
        };
        self.is_known() && self.holders.iter().all(gone)
    }

    /// Frees it if all processes that had it are dead.
    pub fn reclaim(&self) {
        let state = self.state.load(Ordering::Acquire);
        if state != FREE && state != ASKING && self.is_last() {
            let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.state.compare_exchange(state, FREE, done, not);
        }
    }

    fn is_known(&self) -> bool {
        self.many.load(Ordering::SeqCst) == 0 && self.forked.load(Ordering::SeqCst) == 0
    }

    /// Whether no other process has it, as far as is known without asking: one that is dead by now may count as one that has.
    pub fn is_alone(&self) -> bool {
        let there = |it: &&AtomicU32| it.load(Ordering::Acquire) != 0;
        self.is_known() && self.holders.iter().filter(there).count() <= 1
    }

    /// Whether no other process has it.
    fn is_own(&self) -> bool {
        let own = lock::process();
        self.is_known()
            && self.holders.iter().all(|it| {
                let pid = it.load(Ordering::Acquire);
                if pid == 0 || pid == own {
                    return true;
                }
                let gone = !is_there(pid);
                // Nobody else's, who has taken its place meanwhile.
                gone && it
                    .compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
    }

    /// Whether another process goes on with the same ring.
    pub fn is_shared(&self) -> bool {
        self.state.load(Ordering::Acquire) == RING && !self.is_own()
    }

    /// Who shares it counts by itself from now on: what is not this process's alone gets no ring.
    pub fn is_counted_apart(&self) {
        if !self.is_own() {
            self.stay();
        }
    }

    /// A call to the kernel that moves plain bytes, or looks at them: it is waited for by who asks
    /// for the ring, and what it `moves` is counted. `None`: bytes do not go that way any more.
    pub fn counted(&self, moves: Moves, call: impl FnOnce() -> isize) -> Option<isize> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != COUNTED {
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let under_way = UnderWay(self);
        let n = call();
        let count = match moves {
            Moves::Out => Some(&self.sent),
            Moves::In => Some(&self.received),
            Moves::Nothing => None,
        };
        if let (Some(count), Ok(bytes @ 1..)) = (count, usize::try_from(n)) {
            count.fetch_add(bytes as u64, Ordering::Relaxed);
            if bytes >= WORTH {
                self.worth.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        std::mem::forget(under_way);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Some(n)
    }

    /// Goes over to the ring, if it is time to, and if there is one.
    #[inline]
    pub fn may_ask(&self, fd: c_int) {
        let counts = self.state.load(Ordering::Relaxed) == COUNTED;
        if counts && self.worth.load(Ordering::Relaxed) >= AFTER {
            self.ask(fd);
        }
    }

    #[cold]
    fn ask(&self, fd: c_int) {
        // A handler that uses this very socket would wait for what it interrupts.
        quietly(|| self.ask_alone(fd));
    }

    fn ask_alone(&self, fd: c_int) {
        let (done, not) = (Ordering::SeqCst, Ordering::SeqCst);
        if fd <= 2
            || self
                .state
                .compare_exchange(COUNTED, ASKING, done, not)
                .is_err()
        {
            return;
        }
        // The number may be another socket's since the call began that has just used it.
        let is_its = || table::is_of(fd, self);
        if self.under_way.load(Ordering::SeqCst) != 0 || !is_its() || !self.is_own() {
            // Later, perhaps.
            self.worth.store(0, Ordering::Relaxed);
            self.state.store(COUNTED, Ordering::SeqCst);
            return;
        }
        let errno = real::errno();
        let came = self.come(fd);
        real::set_errno(errno);
        let state = if came.is_some() { RING } else { PLAIN };
        self.state.store(state, Ordering::SeqCst);
        // Or who shuts it down meanwhile sees that state.
        if self.said_all.load(Ordering::SeqCst) != 0 {
            self.says_end();
        }
    }

    fn come(&self, fd: c_int) -> Option<()> {
        // SAFETY: the program has just used it; if it is closed by now, what is said of it is not used.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let nonblocking = rustix::fs::fcntl_getfl(socket)
            .ok()?
            .contains(rustix::fs::OFlags::NONBLOCK);
        let (memory, side, capacity) = bulkhead::memory_of(socket)?;
        let (writer, reader, geometry) = circuit_ends(&memory, capacity, side).ok()?;
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let mut limit = [0_i64; 2];
            let mut length = size_of_val(&limit) as libc::socklen_t;
            let at = (&raw mut limit).cast();
            // SAFETY: the kernel writes no more than there is room for.
            let done =
                unsafe { real::getsockopt(fd, libc::SOL_SOCKET, option, at, &raw mut length) };
            if done == 0 {
                self.limits(option, limit);
            }
        }
        // Who closes or replaces a number says so first: it was this one's when it was asked by. Another's ring nobody has
        // then, and its peer, which nobody tells that it is read, writes to the socket.
        if !table::is_of(fd, self) {
            return None;
        }
        // Who executes another program does not hand the ring on: see `table`.
        table::closes_on_exec(self);
        self.nonblocking
            .store(u32::from(nonblocking), Ordering::Relaxed);
        let waker = reader.waker();
        let ending = writer.end();
        ending.says(match self.said_all.load(Ordering::SeqCst) {
            0 => Says::Open,
            _ => Says::Ended,
        });
        let writing = Writing {
            waker: writer.waker(),
            writer: Writer::after(writer, &geometry, self.sent.load(Ordering::SeqCst)),
            bytes: 0,
            writes: 0,
            patience: Patience::default(),
        };
        let mut reading = Reading {
            reader: Reader::after(reader, &geometry, self.received.load(Ordering::SeqCst)),
            waker,
        };
        let consented = reading.reader.consent();
        self.consented
            .store(u32::from(consented), Ordering::Relaxed);
        // SAFETY: nobody reaches them before the state says that they are there.
        unsafe {
            (*self.writing.get()).write(writing);
            (*self.reading.get()).write(reading);
            (*self.ending.get()).write(ending);
        }
        Some(())
    }

    /// An option was set, or is known to be: if it is a time limit it holds for calls by the ring too.
    pub fn limits(&self, option: c_int, [seconds, micros]: [i64; 2]) {
        let [receives, sends] = &self.limits;
        let limit = match option {
            // Some kernels' headers call them by other numbers, of the same values (SO_RCVTIMEO_NEW).
            libc::SO_RCVTIMEO | 66 => receives,
            libc::SO_SNDTIMEO | 67 => sends,
            _ => return,
        };
        let all = seconds.saturating_mul(1_000_000).saturating_add(micros);
        // The kernel takes less than nothing for none at all.
        let is_none = seconds == 0 && micros == 0;
        let all = if is_none { 0 } else { all.max(1) };
        limit.store(all.cast_unsigned(), Ordering::Relaxed);
    }

    /// Whether the program knows of a reset already.
    pub fn is_told(&self) -> bool {
        self.said_all.load(Ordering::Acquire) & RESET != 0
    }

    /// The peer is to know that no more is sent, before its socket says so: that says the same of a close.
    pub fn says_end(&self) {
        if self.state.load(Ordering::SeqCst) == RING {
            // SAFETY: written before the state became this; nobody changes it.
            unsafe { (*self.ending.get()).assume_init_ref() }.says(Says::Ended);
        }
    }

    /// How long a call that receives may wait; none: for ever.
    pub fn limit_to_receive(&self) -> Option<Duration> {
        let [receives, _] = &self.limits;
        limit(receives)
    }

    /// How long a call that sends may.
    pub fn limit_to_send(&self) -> Option<Duration> {
        let [_, sends] = &self.limits;
        limit(sends)
    }

    /// The writing end.
    ///
    /// # Safety
    /// The state is [`RING`] and the write lock is held by this thread.
    #[expect(clippy::mut_from_ref, reason = "the lock")]
    pub unsafe fn writing(&self) -> &mut Writing {
        // SAFETY: written before the state became this; the lock's holder is alone with it.
        let writing = unsafe { (*self.writing.get()).assume_init_mut() };
        if self.write_lock.was_left() {
            writing.writer.resumes();
        }
        writing
    }

    /// The reading end.
    ///
    /// # Safety
    /// The state is [`RING`] and the read lock is held by this thread.
    #[expect(clippy::mut_from_ref, reason = "the lock")]
    pub unsafe fn reading(&self) -> &mut Reading {
        // SAFETY: written before the state became this; the lock's holder is alone with it.
        let reading = unsafe { (*self.reading.get()).assume_init_mut() };
        if self.read_lock.was_left() {
            reading.reader.resumes();
        }
        reading
    }

    /// Stays with the kernel, if it can; `false`: it is a ring.
    pub fn stay(&self) -> bool {
        // Bound: the operator's answer to who asks.
        loop {
            let (done, not) = (Ordering::SeqCst, Ordering::SeqCst);
            match self.state.compare_exchange(COUNTED, PLAIN, done, not) {
                Ok(_) => return true,
                Err(ASKING) => std::thread::yield_now(),
                Err(state) => return state != RING,
            }
        }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        arena::number_of(self)
    }
}

/// Of a call whose thread is cancelled in it: what it may have moved nobody counts.
struct UnderWay<'a>(&'a Record);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.stay();
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

fn limit(micros: &AtomicU64) -> Option<Duration> {
    match micros.load(Ordering::Relaxed) {
        0 => None,
        micros => Some(Duration::from_micros(micros)),
    }
}
