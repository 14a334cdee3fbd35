//! Descriptors that are known by number at the start of a program: those that
//! [`crate::spawn`] placed, and those that the service manager held for us.
#![expect(
    unsafe_code,
    reason = "descriptors known by number only become owned here"
)]

use std::collections::BTreeSet;
use std::env;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Most descriptors taken over from the service manager.
const MOST: usize = 1 << 20;
static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes the descriptor with this number, from 3 on, close-on-exec from now on. Each
/// number can be taken once; `None` for the second time and for what is not open.
/// Call it at the start of `main`, before anything is opened: whatever has the
/// number then is what the parent placed there.
pub fn descriptor(number: u32) -> Option<OwnedFd> {
    let number = RawFd::try_from(number).ok().filter(|number| *number >= 3)?;
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !taken.insert(number) {
        return None;
    }
    // SAFETY: never taken before, so nobody here owns it, if it was open at the start
    // (the documented condition). Were it not, the kernel says EBADF below, and the
    // number is given up without being closed.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC).ok()?;
    // SAFETY: open, and owned by nobody else, as above.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes over, with their names, the descriptors that systemd passed to this very
/// process (sd_listen_fds(3)). The second call gives none.
pub fn from_service_manager() -> Vec<(String, OwnedFd)> {
    let number = |name| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<usize>().ok())
    };
    if number("LISTEN_PID") != Some(std::process::id() as usize) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(MOST);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    (3..)
        .take(count)
        .filter_map(|fd| Some((names.next().unwrap_or_default(), descriptor(fd)?)))
        .collect()
}
