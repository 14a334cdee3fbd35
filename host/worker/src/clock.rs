//! Time, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC.
pub fn monotonic() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds that this process has had of processors: CLOCK_PROCESS_CPUTIME_ID.
pub fn spent() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// The same of this thread alone: CLOCK_THREAD_CPUTIME_ID.
pub fn spent_by_thread() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CLOCK_REALTIME, for captures.
pub fn realtime() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// A time span for the kernel.
pub fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}
