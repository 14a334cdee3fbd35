//! The CPU time of another process, and whether this thread had to sleep.
#![expect(
    unsafe_code,
    reason = "clock_gettime of a process CPU clock, and getrusage, have no safe wrapper"
)]

use std::io;
use std::time::Duration;

/// CPU time, user and system, that the process with this pid has used so far
/// (clock_getcpuclockid(3)). Its clock id is made of the pid alone: a single system
/// call, no file.
///
/// # Errors
/// EINVAL where there is no such process.
pub fn process_cpu_time(pid: u32) -> io::Result<Duration> {
    const CPUCLOCK_SCHED: i32 = 2;
    let clock = (!pid.cast_signed() << 3) | CPUCLOCK_SCHED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(
        time.tv_sec.cast_unsigned(),
        time.tv_nsec as u32,
    ))
}

/// How often this thread has waited for something that was not a processor (getrusage(2), `ru_nvcsw`).
#[must_use]
pub fn sleeps() -> i64 {
    // SAFETY: numbers alone, of which none means anything else.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one structure.
    match unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } {
        0 => usage.ru_nvcsw,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_slept_and_who_computes_has_not() {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(2));
        let slept = sleeps();
        assert!(slept > before);
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(2) {}
        assert_eq!(sleeps(), slept);
    }
}
