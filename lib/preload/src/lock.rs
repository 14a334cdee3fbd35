//! A lock in memory that processes share. Who holds it may die, and is noticed then.

use crate::patience::{Patience, ROUND};
use rustix::thread::futex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const WAITED_FOR: u32 = 1 << 31;
/// How long one sleeps before it looks whether the holder lives.
const SLEEP: Duration = Duration::from_millis(50);
/// How long who must not block waits for one who copies bytes.
const MOMENT: Duration = Duration::from_millis(2);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Which PID namespace this process is in, of those that are known by number where its memory is shared; 0: the first
/// one's, and the last is that of all for which there was no number.
static PLACE: AtomicU32 = AtomicU32::new(0);
/// Where it lies in the number of a thread or a process: the kernel's own numbers are less than this.
const PLACE_AT: u32 = 22;
/// The last.
const PLACES: u32 = 0x1ff;

/// This process may be in another PID namespace than the one that it was forked by.
pub fn is_elsewhere(place: u32) {
    PLACE.store(place.min(PLACES), Ordering::Relaxed);
}

fn numbered(number: u32) -> u32 {
    number | PLACE.load(Ordering::Relaxed) << PLACE_AT
}

/// The number of this process.
pub fn process() -> u32 {
    numbered(std::process::id())
}

/// The number of this thread in the system.
pub fn thread() -> u32 {
    let known = THREAD.get();
    if known != 0 {
        return known;
    }
    let number = rustix::thread::gettid().as_raw_nonzero().get();
    let number = numbered(number.cast_unsigned());
    THREAD.set(number);
    number
}

/// This thread is another now: it has forked.
pub fn is_another() {
    THREAD.set(0);
}

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Held for longer than who must not block waits; or by this very thread, which a signal
    /// interrupted.
    Held,
    /// Who held it died in the middle of what nobody can go on with: what it guards is nonsense.
    Broken,
    /// A signal came meanwhile.
    Interrupted,
}

/// Nothing to be known of what its holder does.
const WHOLE: u32 = 0;
/// Its holder is in the middle of something that only it could end.
const TORN: u32 = 1;
/// A holder died, and nobody looked at what it left yet.
const LEFT: u32 = 2;

/// Zeroed memory is a lock that nobody holds.
#[repr(C)]
pub struct Lock {
    /// 0, or its holder's thread.
    holder: AtomicU32,
    state: AtomicU32,
}

impl Lock {
    /// Takes it, as soon as nobody has it, or within a moment. Signals end no such wait.
    pub fn take(&self, blocks: bool) -> Result<(), Refused> {
        let most = if blocks { None } else { Some(MOMENT) };
        // Bound: as of `take_within`, and signals.
        loop {
            match self.take_within(most) {
                Err(Refused::Interrupted) => {}
                taken => return taken,
            }
        }
    }

    /// Takes it within such a time; none: as soon as nobody has it. Also from who died, unless in the middle of
    /// [`Lock::is_torn`].
    pub fn take_within(&self, most: Option<Duration>) -> Result<(), Refused> {
        if self.spins() {
            return Ok(());
        }
        let begun = Instant::now();
        let round = most.map_or(SLEEP, |most| most.min(SLEEP));
        self.sleeps(round, || most.is_some_and(|most| begun.elapsed() >= most))
    }

    /// The same by rounds: time in which this process is stopped counts for none.
    pub fn take_patiently(&self, most: Duration) -> Result<(), Refused> {
        if self.spins() {
            return Ok(());
        }
        let mut patience = Patience::of(most);
        self.sleeps(ROUND, || patience.is_over())
    }

    /// Takes it if its holder gives it back at once.
    fn spins(&self) -> bool {
        if self.try_take() {
            return true;
        }
        (0..100).any(|_| {
            std::hint::spin_loop();
            self.try_take()
        })
    }

    /// Sleeps for so long at a time until it is taken, or it is too late, which is asked after each sleep.
    fn sleeps(&self, round: Duration, mut is_late: impl FnMut() -> bool) -> Result<(), Refused> {
        let own = thread();
        // Bound: none if it blocks; the holder's life.
        loop {
            let held = self.holder.load(Ordering::Relaxed);
            if held == 0 {
                // Others may sleep there still.
                let taken = self.swap(0, own | WAITED_FOR);
                if taken {
                    return Ok(());
                }
                continue;
            }
            if held & !WAITED_FOR == own {
                return Err(Refused::Held);
            }
            let waited = held | WAITED_FOR;
            if held != waited && !self.swap(held, waited) {
                continue;
            }
            let limit = futex::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(round.subsec_nanos()),
            };
            match futex::wait(&self.holder, futex::Flags::empty(), waited, Some(&limit)) {
                Err(rustix::io::Errno::TIMEDOUT) => {}
                Err(rustix::io::Errno::INTR) => return Err(Refused::Interrupted),
                _ => continue,
            }
            if !is_here(held & !WAITED_FOR) && self.holder.load(Ordering::Acquire) == waited {
                if self.state.load(Ordering::Acquire) == TORN {
                    return Err(Refused::Broken);
                }
                // One of those that wait.
                if self.swap(waited, own | WAITED_FOR) {
                    self.state.store(LEFT, Ordering::Relaxed);
                    return Ok(());
                }
                continue;
            }
            if is_late() {
                return Err(Refused::Held);
            }
        }
    }

    /// Takes it if nobody has it.
    pub fn try_take(&self) -> bool {
        self.swap(0, thread())
    }

    /// Gives it back.
    pub fn give(&self) {
        self.is_whole();
        if self.holder.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            let _ = futex::wake(&self.holder, futex::Flags::empty(), 1);
        }
    }

    /// Its holder begins what nobody could go on with, if it died: something is sent or taken that is not counted yet.
    pub fn is_torn(&self) {
        self.state.store(TORN, Ordering::Release);
    }

    /// That is over.
    pub fn is_whole(&self) {
        if self.state.load(Ordering::Relaxed) == TORN {
            self.state.store(WHOLE, Ordering::Release);
        }
    }

    /// Whether a holder died since this was asked last.
    pub fn was_left(&self) -> bool {
        let left = self.state.load(Ordering::Relaxed) == LEFT;
        if left {
            self.state.store(WHOLE, Ordering::Relaxed);
        }
        left
    }

    /// Nobody has it, whatever was.
    pub fn clear(&self) {
        self.state.store(WHOLE, Ordering::Relaxed);
        self.holder.store(0, Ordering::Release);
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        let (done, not) = (Ordering::Acquire, Ordering::Relaxed);
        self.holder.compare_exchange(from, to, done, not).is_ok()
    }
}

/// Whether there is such a thread, or process, as far as this process can tell: those of another PID namespace it knows by
/// no number.
pub fn is_there(number: u32) -> bool {
    let place = number >> PLACE_AT;
    if place != PLACE.load(Ordering::Relaxed) || place == PLACES {
        return true;
    }
    let number = number & !(PLACES << PLACE_AT);
    let pid = rustix::process::Pid::from_raw(number.cast_signed());
    let asked = pid.map(rustix::process::test_kill_process);
    asked != Some(Err(rustix::io::Errno::SRCH)) && !pid.is_some_and(is_over)
}

/// The same, and whether it has the memory of all records still: who executes another program keeps its number, and who
/// ended may have left that to another. Who cannot be looked at has.
pub fn is_here(number: u32) -> bool {
    let number_here = number & !(PLACES << PLACE_AT);
    is_there(number)
        && (number >> PLACE_AT != PLACE.load(Ordering::Relaxed)
            || crate::arena::is_mapped_by(number_here))
}

/// Whether it has ended, and nobody has asked how yet. Of one of a process's other threads, of which nothing is left once they
/// end: no; so of another's child, where no descriptor is to be had.
fn is_over(pid: rustix::process::Pid) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(it) => {
            let mut one = [PollFd::new(&it, PollFlags::IN)];
            poll(&mut one, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
        }
        Err(Errno::MFILE | Errno::NFILE) => {
            // It stays to be waited for.
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            matches!(waitid(WaitId::Pid(pid), how), Ok(Some(_)))
        }
        Err(_) => false,
    }
}
