//! What the kernel says of a process: how it ended, what it used, what it said at last.

use crate::watch::How;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a process's standard error that are passed on, when it has died.
pub const LAST_WORDS: usize = 512;
/// Bytes of a page of memory on this architecture.
const PAGE: u64 = 4096;
/// How often, and how far apart, the kernel is asked how a process ended that another
/// reaps: 20 ms in all.
const REAPED_TRIES: u32 = 80;
const REAPED_WAIT: std::time::Duration = std::time::Duration::from_micros(250);

/// What a process said on its standard error, at most [`LAST_WORDS`] of it and as one
/// line: it is not to look like a line of ours, nor to speak to a terminal.
pub fn last_words(pipe: impl AsFd) -> Option<String> {
    let mut bytes = [0; LAST_WORDS];
    let length = rustix::io::read(pipe, &mut bytes).ok()?;
    let said = String::from_utf8_lossy(bytes.get(..length)?);
    let said: String = said
        .trim_end()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    (!said.is_empty()).then_some(said)
}

/// Asks the kernel how it ended, and reaps it if it is ours to reap.
pub fn how_it_ended(pidfd: &OwnedFd) -> How {
    reaped(pidfd).unwrap_or_else(|| how_another_reaped_it(pidfd))
}

fn reaped(pidfd: &OwnedFd) -> Option<How> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), options).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => How::Exit(code),
        (_, Some(signal)) => How::Signal(signal),
        _ => How::Unknown,
    })
}

/// The same of the keeper's child, which it reaps in a moment; the kernel knows from then
/// on. Or of one that died under a tracer, which lets go of it in a moment: it is ours to reap then. Bound:
/// [`REAPED_TRIES`], for a process that a supervisor before us started.
fn how_another_reaped_it(pidfd: &OwnedFd) -> How {
    for _ in 0..REAPED_TRIES {
        match confine::exit_status(pidfd.as_fd()) {
            Ok(Some(status)) => {
                return match status & 0x7f {
                    0 => How::Exit(status >> 8 & 0xff),
                    signal => How::Signal(signal),
                };
            }
            Ok(None) => {
                std::thread::sleep(REAPED_WAIT);
                if let Some(how) = reaped(pidfd) {
                    return how;
                }
            }
            Err(_) => break,
        }
    }
    How::Unknown
}

/// Processor time of a process, ns; 0 where there is none.
pub fn processor_time(pid: u32) -> u64 {
    let time = confine::clock::process_cpu_time(pid).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a process does, as far as that says whether it could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It runs, or waits for a processor.
    Runs,
    /// Somebody stopped it.
    Stopped,
    /// It waits for another's thread that lacks a processor: of the kernel's states none.
    Hands,
    /// It waits for something else, or ended.
    Waits,
}

/// What a process does just now.
pub fn does(pid: u32) -> Does {
    // Not `stat`, which waits for one that executes another program, and that for files of
    // its own choice.
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Its name is before that, in one line whatever it holds.
    let state = text.lines().find_map(|line| line.strip_prefix("State:\t"));
    match state.and_then(|state| state.chars().next()) {
        Some('R') => Does::Runs,
        Some('T') => Does::Stopped,
        _ => Does::Waits,
    }
}

/// Memory of a process that is resident, bytes; 0 where it cannot be known.
pub fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok());
    pages.map_or(0, |pages: u64| pages.saturating_mul(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn last_words_are_one_line_and_not_many() {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        assert_eq!(last_words(&read), None, "nothing said, and nobody waits");
        rustix::io::write(&write, b"panicked\nsupervisor: all is well\x1b[2J\n").unwrap();
        let said = last_words(&read).unwrap();
        assert_eq!(said, "panicked supervisor: all is well [2J");
        while rustix::io::write(&write, &[b'x'; 1024]).is_ok() {}
        assert_eq!(last_words(&read).unwrap().len(), LAST_WORDS);
    }
}
