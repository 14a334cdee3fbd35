//! Signals that this process is sent for the sake of the program that it started.
#![expect(
    unsafe_code,
    reason = "a handler of signals may do only what is safe in one: it looks at a number and writes a byte"
)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// From a terminal these go to the program as to this process, which are of one group.
const OF_TERMINALS: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
const PASSED: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// None of the usual ones ends this process any more: each that somebody sent it is a byte here, its number. Those that
/// terminals send are not.
///
/// # Errors
/// The kernel's.
pub fn passed() -> io::Result<UnixStream> {
    let (to, from) = UnixStream::pair()?;
    // Where nobody reads any more, a signal is lost, and nobody waits.
    to.set_nonblocking(true)?;
    from.set_nonblocking(true)?;
    for signal in PASSED.into_iter().chain(OF_TERMINALS) {
        let of_terminals = OF_TERMINALS.contains(&signal);
        let to = OwnedFd::from(to.try_clone()?);
        let tells = move |info: &libc::siginfo_t| {
            // Above 0: by the kernel itself, as for a terminal's keys.
            if !of_terminals || info.si_code <= 0 {
                let byte = signal as u8;
                // SAFETY: send(2) is safe in a handler; the byte outlives the call, and `to` the handler.
                unsafe {
                    libc::send(
                        to.as_raw_fd(),
                        (&raw const byte).cast(),
                        1,
                        libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                    )
                };
            }
        };
        // SAFETY: what it does is safe in a handler: a comparison and one send(2). errno is the registry's to keep.
        unsafe { signal_hook_registry::register_sigaction(signal, tells)? };
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};
    use std::io::Read;

    #[test]
    fn what_somebody_sends_is_told() {
        let mut told = passed().unwrap();
        told.set_nonblocking(false).unwrap();
        for signal in [Signal::TERM, Signal::INT, Signal::WINCH, Signal::USR1] {
            kill_process(getpid(), signal).unwrap();
            let mut byte = [0];
            told.read_exact(&mut byte).unwrap();
            assert_eq!(i32::from(byte[0]), signal.as_raw());
        }
    }
}
