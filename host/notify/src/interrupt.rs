//! A thread leaves the call that it is in, if that can be interrupted, and goes on.
#![expect(
    unsafe_code,
    reason = "ptrace(2) has no safe form; no request here has memory of this process or of the other's as an argument"
)]

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

/// One that is interrupted, by the thread that asked, and goes on at the latest when that ends. As by SIGSTOP and SIGCONT it begins its
/// call anew, has done a part of it, or is told EINTR where it set a limit of time.
pub struct Interrupted(libc::pid_t);

impl Interrupted {
    /// Interrupts it. This waits while its process begins to execute another program, for as long as its file does not come.
    ///
    /// # Errors
    /// SRCH: it is gone. PERM: another traces it, or this host lets nobody.
    pub fn new(thread: u32) -> Result<Interrupted, Errno> {
        let thread = thread.cast_signed();
        request(libc::PTRACE_SEIZE, thread, 0)?;
        request(libc::PTRACE_INTERRUPT, thread, 0)?;
        Ok(Interrupted(thread))
    }

    /// Whether it has left its call, or is gone. It goes on then, and is not to be asked any more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let pid = Pid::from_raw(self.0);
        let Ok(status) = waitpid(pid, WaitOptions::NOHANG) else {
            return true;
        };
        let Some((_, status)) = status else {
            return false;
        };
        // A signal that came first is its own; what it stops by otherwise is this interruption.
        let is_event = status.as_raw() >> 16 != 0;
        let signal = status.stopping_signal().filter(|_| !is_event);
        let _ = request(libc::PTRACE_DETACH, self.0, signal.unwrap_or(0));
        true
    }
}

fn request(what: libc::c_uint, thread: libc::pid_t, data: i32) -> Result<(), Errno> {
    // SAFETY: of these requests the address is unused, and the last word a number.
    match unsafe { libc::ptrace(what, thread, 0_usize, i64::from(data)) } {
        0.. => Ok(()),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Whatever it waits in; what it is sent meanwhile, also beyond the ordinary signals, comes.
    #[test]
    fn who_is_interrupted_goes_on_and_has_its_signals() {
        let says = "trap 'echo came' 36; echo there; while :; do sleep 0.01; done";
        let mut child = std::process::Command::new("bash")
            .args(["-c", says])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert_eq!(lines.next().unwrap().unwrap(), "there");
        for _ in 0..20 {
            let one = Interrupted::new(child.id()).unwrap();
            assert_eq!(Interrupted::new(child.id()).err(), Some(Errno::PERM));
            let sent = std::process::Command::new("kill")
                .args(["-36", &child.id().to_string()])
                .status();
            assert!(sent.unwrap().success());
            while !one.has_left() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(lines.next().unwrap().unwrap(), "came");
        }
        let one = Interrupted::new(child.id()).unwrap();
        child.kill().unwrap();
        while !one.has_left() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its end was told to who traced it.
        let _ = child.wait();
        assert_eq!(Interrupted::new(child.id()).err(), Some(Errno::SRCH));
    }
}
