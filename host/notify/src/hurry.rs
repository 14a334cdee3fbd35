//! A thread that is to end has a processor, whatever it was made to be.
#![expect(
    unsafe_code,
    reason = "sched_setscheduler(2) has no safe form here; it reads one structure of this function's own"
)]

use rustix::io::Errno;

/// Of who is killed: a thread that is only to run when nobody else does (SCHED_IDLE) may have what it has for as long as
/// others of its program's like. Needs CAP_SYS_NICE.
///
/// # Errors
/// It is gone, or may not be changed by who asks.
pub fn hurry(thread: u32) -> Result<(), Errno> {
    let thread = thread.cast_signed();
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads that structure, which lives until it has returned.
    let set = unsafe { libc::sched_setscheduler(thread, libc::SCHED_OTHER, &raw const ordinary) };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    let pid = rustix::process::Pid::from_raw(thread);
    rustix::process::setpriority_process(pid, -20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_runs_when_nobody_else_does_is_hurried() {
        let mut child = std::process::Command::new("chrt")
            .args(["--idle", "0", "sleep", "60"])
            .spawn()
            .unwrap();
        let id = child.id();
        let stat = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let of = |stat: &str| -> Vec<String> {
            let (_, words) = stat.rsplit_once(')').unwrap();
            let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
            [words.get(16), words.get(38)]
                .map(|it| it.unwrap().clone())
                .to_vec()
        };
        let idle = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            of(&stat()) == ["0", "5"]
        });
        assert!(idle, "{}", stat());
        hurry(id).unwrap();
        assert_eq!(of(&stat()), ["-20", "0"]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(hurry(id), Err(Errno::SRCH));
    }
}
