//! The CPU time of another process.
#![expect(
    unsafe_code,
    reason = "clock_gettime of a process CPU clock has no safe wrapper"
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
