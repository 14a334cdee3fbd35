//! Decisions about processes that die or hang: pure, with the time as an argument.
//! All times are nanoseconds of CLOCK_MONOTONIC.

use crate::ports::programs::PROGRAMS;
use crate::process::Does;
use crate::role::Role;
use crate::seats::FABRIC_SLOTS;
use guard::guard;
use std::collections::VecDeque;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Own CPU time without a heartbeat after which a process counts as hung.
pub const STALL: Duration = Duration::from_millis(50);
/// Longest wait of a seated process for its limits, ns.
const UNLIMITED: u64 = 50_000_000;
/// CPU time without a heartbeat that is believed of one that says it sleeps.
const DOZING: Duration = Duration::from_millis(1);
/// Between two looks for a sign that a process goes on, ns.
const LISTEN: u64 = 2_000_000_000;
/// Looks in a row without one, nor any processor time of its own, after which it hangs.
const SILENT_IDLE: u32 = 7;
/// The same of one that uses its processor: its longest piece of work is shorter.
const SILENT_BUSY: u32 = 60;
/// Deaths attributed to one endpoint's slot before it is quarantined.
pub const ENDPOINT_DEATHS: usize = 3;
/// Deaths of the fabric attributed to one channel before it is quarantined.
pub const CHANNEL_DEATHS: usize = 2;
/// Operators that stood still over one program's calls before it is given up.
pub const PROGRAM_STALLS: usize = 3;
/// Deaths older than this are forgotten, nanoseconds.
const BLAME_WINDOW: u64 = 60_000_000_000;
/// Deaths remembered at most.
const BLAME_MEMORY: usize = 64;

/// How a process died, as far as the wait for its next start is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Exit, crash, kill or hang: a fault.
    Fault,
    /// Its system call filter or the fabric caught it doing what it may not: taken
    /// over, until shown otherwise.
    Breakout,
}

/// How long to wait before a process is started again. The first death after a
/// healthy time costs no wait; each further one doubles it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    streak: u32,
}

impl Backoff {
    /// A death after `uptime`: nanoseconds to wait before the next start.
    pub fn died(&mut self, death: Death, uptime: u64) -> u64 {
        // (healthy after, first wait, longest wait), nanoseconds.
        let (healthy, first, longest) = match death {
            Death::Fault => (100_000_000, 10_000_000, 1_000_000_000),
            Death::Breakout => (30_000_000_000, 100_000_000, 10_000_000_000_u64),
        };
        if uptime >= healthy {
            self.streak = 0;
        }
        let wait = match self.streak {
            0 => 0,
            // At most 2^16 times the first wait, so nothing overflows.
            n => (first << (n - 1).min(16)).min(longest),
        };
        self.streak = self.streak.saturating_add(1);
        if guard!("restart-backoff") { wait } else { 0 }
    }

    /// Forgets what was.
    pub fn reset(&mut self) {
        self.streak = 0;
    }
}

/// A limit of what comes again and again: a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    filled: u64,
    burst: f64,
    per_second: f64,
}

impl Bucket {
    /// The host's, full: what all compartments have together.
    pub fn of_host() -> Bucket {
        Bucket::new(64.0, 20.0)
    }

    /// A seat's own, full: a part of the host's, so that nobody alone uses that up.
    pub fn of_seat() -> Bucket {
        Bucket::new(16.0, 8.0)
    }

    /// Attachments to a fifo, full: each has a fresh channel made.
    pub fn of_attaches() -> Bucket {
        Bucket::new(8.0, 1.0)
    }

    /// Connections to a fifo that are looked at, full: whatever becomes of them.
    pub fn of_knocks() -> Bucket {
        Bucket::new(32.0, 16.0)
    }

    /// Memory for circuits across one agreement, full: for what either side's operator asks.
    pub fn of_shares() -> Bucket {
        Bucket::new(128.0, 500.0)
    }

    /// Fresh channels between a compartment and the fabric, asked for by either, full.
    pub fn of_replacements() -> Bucket {
        Bucket::new(8.0, 1.0)
    }

    /// Words of a process, full. After its own restart an honest fabric may want every
    /// slot's channel replaced, and then close every one; all programs of an operator may end at once.
    pub fn of_words(role: Role) -> Bucket {
        let burst = match role {
            Role::Fabric => 2 * FABRIC_SLOTS,
            Role::Operator => 2 * PROGRAMS as u32,
            _ => 1_000,
        };
        Bucket::new(f64::from(burst), 1_000.0)
    }

    fn new(burst: f64, per_second: f64) -> Bucket {
        Bucket {
            tokens: burst,
            filled: 0,
            burst,
            per_second,
        }
    }

    /// Takes one restart, or says how many nanoseconds it must wait.
    pub fn take(&mut self, now: u64) -> Result<(), u64> {
        let taken = self.spend(now);
        if guard!("restart-limit") {
            taken
        } else {
            Ok(())
        }
    }

    /// Takes one, or says how many nanoseconds it must wait.
    pub fn spend(&mut self, now: u64) -> Result<(), u64> {
        let passed = now.saturating_sub(self.filled) as f64 / 1e9;
        self.filled = now.max(self.filled);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        if self.tokens < 1.0 {
            return Err((((1.0 - self.tokens) / self.per_second) * 1e9) as u64 + 1);
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Takes one restart in any case, and says how many nanoseconds it must wait.
    fn owe(&mut self, now: u64) -> u64 {
        let wait = self.take(now).err().unwrap_or(0);
        if wait > 0 {
            self.tokens -= 1.0;
        }
        wait
    }
}

/// How long a seat's restart waits by the limits, nanoseconds. First its own: who dies
/// without end waits for itself. Then the host's, at most the time of one restart (50
/// ms). The fabric, without which nobody is served, never waits for others.
pub fn restart_wait(host: &mut Bucket, own: &mut Bucket, is_fabric: bool, now: u64) -> u64 {
    let alone = if guard!("restart-own") {
        own.owe(now)
    } else {
        0
    };
    if guard!("restart-fabric") && is_fabric {
        return alone;
    }
    alone.max(host.take(now).err().unwrap_or(0))
}

/// Whether processes that were seated are put under their limits now: in a quiet moment,
/// or when the oldest of them has waited [`UNLIMITED`] for one. Who keeps us busy is not
/// to stay without.
pub fn limits_are_due(is_quiet: bool, since: u64, now: u64) -> bool {
    is_quiet || guard!("limits-overdue") && now.saturating_sub(since) >= UNLIMITED
}

/// Whose frames a process was working on when it died.
#[derive(Clone, Debug, Default)]
pub struct Blame {
    deaths: VecDeque<(u64, u32)>,
}

impl Blame {
    /// A death while `slot`'s batch was being worked on; `true` if that slot has
    /// now had `limit` of them within a minute and is to be quarantined.
    pub fn died(&mut self, now: u64, slot: u32, limit: usize) -> bool {
        self.deaths
            .retain(|(at, _)| now.saturating_sub(*at) <= BLAME_WINDOW);
        if self.deaths.len() >= BLAME_MEMORY {
            self.deaths.pop_front();
        }
        self.deaths.push_back((now, slot));
        let count = self.deaths.iter().filter(|(_, s)| *s == slot).count();
        let reached = count >= limit;
        if reached {
            self.forgive(slot);
        }
        guard!("quarantine-killer") && reached
    }

    /// Forgets what was attributed to `slot`.
    pub fn forgive(&mut self, slot: u32) {
        self.deaths.retain(|(_, s)| *s != slot);
    }
}

/// What the watch saw of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It sleeps in the kernel.
    Asleep,
    /// It is awake and goes on, or has not yet burned enough to tell.
    Awake,
    /// It burned [`STALL`] of CPU without a sign of progress.
    Stalled,
}

/// A process's progress by its own words: allegations, which can only hide a hang
/// of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    heartbeat: u64,
    /// Its CPU time when this heartbeat was first seen standing still.
    burned: Option<Duration>,
}

impl Progress {
    /// One look.
    pub fn look(
        &mut self,
        heartbeat: u64,
        asleep: bool,
        cpu: impl FnOnce() -> Option<Duration>,
    ) -> Seen {
        let Some(now) = cpu() else {
            return Seen::Awake;
        };
        if heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.burned = None;
        }
        let burned = now.saturating_sub(*self.burned.get_or_insert(now));
        if guard!("stall") && burned >= STALL {
            return Seen::Stalled;
        }
        // A sleeper burns nothing: one that does is looked at as often as one awake.
        if asleep && burned < DOZING {
            Seen::Asleep
        } else {
            Seen::Awake
        }
    }
}

/// Wall-clock time, in which we looked, that an operator may be held in the kernel by a program.
const HELD: u64 = 1_000_000_000;
/// The same where the program's thread only lacks a processor: on a busy host, or under a quota of
/// its own. Not for ever: others wait for the operator meanwhile.
const STARVED: u64 = 5_000_000_000;
/// Processor time that its longest piece of work may take.
const WORKING: Duration = Duration::from_secs(2);
/// Between two looks so much counts at most, ns: while we ourselves stood still, nobody was seen.
const LOOK: u64 = 100_000_000;

/// How often one that says it sleeps is asked of the kernel, ns; and how often it is found
/// stopped before it counts as standing still.
const DOZES: u64 = 600_000_000;
const STOPS: u32 = 2;

/// An operator's progress, or a meter's, by its own words. It does in the kernel what programs ask
/// for, and a program may have it wait there: so time counts as well as processor time, but not
/// what it waits for a processor, and little what a program's thread does. One that somebody stopped in its sleep says nothing of that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    heartbeat: u64,
    /// When it is looked whether it is stopped, ns, and how often it was.
    due: u64,
    stopped: u32,
    /// Its processor time when this heartbeat was first seen, and when that was last looked at, ns.
    since: Option<(Duration, u64)>,
    held: u64,
    starved: u64,
}

impl Standing {
    /// One look. `cpu` gives its processor time so far; `does`, what it does.
    pub fn look(
        &mut self,
        now: u64,
        (heartbeat, asleep): (u64, bool),
        cpu: impl FnOnce() -> Option<Duration>,
        does: impl FnOnce() -> Does,
    ) -> Seen {
        if asleep || heartbeat != self.heartbeat {
            let before = if asleep { *self } else { Standing::default() };
            *self = Standing {
                heartbeat,
                due: before.due,
                stopped: before.stopped,
                ..Standing::default()
            };
        }
        if asleep {
            return self.dozes(now, does);
        }
        let Some(spent) = cpu() else {
            return Seen::Awake;
        };
        let Some((first, last)) = self.since else {
            self.since = Some((spent, now));
            return Seen::Awake;
        };
        let passed = now.saturating_sub(last).min(LOOK);
        match does() {
            Does::Runs => {}
            Does::Hands if guard!("circuits-starved") => self.starved += passed,
            Does::Hands | Does::Stopped | Does::Waits => self.held += passed,
        }
        self.since = Some((first, now));
        let stands =
            self.held >= HELD || self.starved >= STARVED || spent.saturating_sub(first) >= WORKING;
        match stands && guard!("circuits-stall") {
            true => Seen::Stalled,
            false => Seen::Awake,
        }
    }

    fn dozes(&mut self, now: u64, does: impl FnOnce() -> Does) -> Seen {
        if now >= self.due {
            self.due = now.saturating_add(DOZES);
            self.stopped = match does() {
                Does::Stopped => self.stopped + 1,
                Does::Runs | Does::Hands | Does::Waits => 0,
            };
        }
        match self.stopped >= STOPS && guard!("circuits-stopped") {
            true => Seen::Stalled,
            false => Seen::Asleep,
        }
    }
}

/// Looks at a process that is to say again and again that it goes on. Looks are counted, not
/// time: while we ourselves stood still, nobody was heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    next: u64,
    /// Its processor time at the last look, ns.
    spent: u64,
    idle: u32,
    busy: u32,
}

impl Silence {
    /// It goes on.
    pub fn heard(&mut self) {
        (self.idle, self.busy) = (0, 0);
    }

    /// One look, where one is due: whether it hangs, and when the next is due. Who has
    /// work, or too little of a processor for it, has more patience than who does nothing.
    pub fn look(&mut self, now: u64, spent: impl FnOnce() -> u64) -> (bool, u64) {
        if now < self.next {
            return (false, self.next);
        }
        self.next = now.saturating_add(LISTEN);
        let spent = spent();
        match spent == self.spent {
            true => self.idle += 1,
            false => (self.idle, self.busy) = (0, self.busy + 1),
        }
        self.spent = spent;
        let hangs = self.idle >= SILENT_IDLE || self.busy >= SILENT_BUSY;
        if hangs {
            self.heard();
        }
        (hangs && guard!("controller-hangs"), self.next)
    }
}

/// How a process ended, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It exited with this code.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// Not our child (a supervisor before us started it), and the kernel does not say.
    Unknown,
}

/// What an end means for what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `CAUSE_*`.
    pub cause: u32,
    /// How long the next start waits.
    pub death: Death,
    /// `START_*` of the next process.
    pub start: u32,
    /// Whether it counts against the slot that was being worked on: a crash by its
    /// own doing does, a kill from outside does not.
    pub blames: bool,
}

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSYS: i32 = 31;

/// `killed`: the `CAUSE_*` for which this supervisor killed it.
pub fn ending(killed: Option<u32>, how: How) -> Ending {
    use command::verbs::{
        CAUSE_EXIT, CAUSE_REPORT, CAUSE_STALL, CAUSE_TRIP, START_FAULT, START_TRIP,
    };
    let fault = |cause, blames| Ending {
        cause,
        death: Death::Fault,
        start: START_FAULT,
        blames,
    };
    let breakout = |cause, blames| Ending {
        cause,
        death: Death::Breakout,
        start: START_TRIP,
        blames,
    };
    match (killed, how) {
        (Some(CAUSE_REPORT), _) => breakout(CAUSE_REPORT, false),
        (_, How::Signal(SIGSYS)) => breakout(CAUSE_TRIP, true),
        (Some(CAUSE_STALL), _) => fault(CAUSE_STALL, true),
        (_, How::Signal(SIGKILL | SIGTERM)) => fault(CAUSE_EXIT, false),
        (_, How::Exit(_) | How::Signal(_)) => fault(CAUSE_EXIT, true),
        // It may have been a trip: nothing is restored, and nobody is blamed.
        (_, How::Unknown) => Ending {
            start: START_TRIP,
            ..fault(CAUSE_EXIT, false)
        },
    }
}
