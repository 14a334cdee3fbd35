//! Descriptors are put into programs: at a number first, and then the call is answered with it.

use notify::{Listener, Outcome};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// What came of a descriptor that was put into a program.
pub enum Put {
    /// Its number, or why it has none, is known there.
    Heard(Result<u32, Errno>),
    /// Nobody heard. It is there at this number, if at any.
    Unheard(Option<u32>),
}

impl Put {
    /// One that is there is answered with.
    pub fn of(listener: &Listener, id: u64, number: u32) -> Put {
        match listener.answer(id, Ok(number.into())) {
            Ok(Outcome::Done(())) => Put::Heard(Ok(number)),
            _ => Put::Unheard(Some(number)),
        }
    }

    /// Whether the program knows.
    pub fn is_heard(&self) -> bool {
        matches!(self, Put::Heard(_))
    }
}

/// A descriptor, and its number as the answer, or why it has none. In two steps: of one, the kernel answers first
/// and installs then, and a death between the two would answer with another descriptor's number.
pub fn install(listener: &Listener, id: u64, fd: &OwnedFd, closes: bool, at: Option<u32>) -> Put {
    match put_at(listener, id, fd, closes, at) {
        Ok(Some(number)) => Put::of(listener, id, number),
        not => not_put(listener, id, not.err()),
    }
}

/// The first step: its number; none if nobody waits for it any more.
pub fn put_at(
    listener: &Listener,
    id: u64,
    fd: &OwnedFd,
    closes: bool,
    at: Option<u32>,
) -> Result<Option<u32>, Errno> {
    let installed = match at {
        Some(number) => listener.install_at(id, fd.as_fd(), closes, number),
        None => listener.install(id, fd.as_fd(), closes),
    };
    match installed {
        Ok(Outcome::Done(number)) => Ok(Some(number)),
        Ok(Outcome::Gone) => Ok(None),
        Err(error) => {
            let errno = error.raw_os_error();
            Err(errno.map_or(Errno::NFILE, Errno::from_raw_os_error))
        }
    }
}

/// It is at no number, for this reason, if that can be told.
pub fn not_put(listener: &Listener, id: u64, errno: Option<Errno>) -> Put {
    match errno {
        Some(errno) if heard(listener.answer(id, Err(errno))) => Put::Heard(Err(errno)),
        _ => Put::Unheard(None),
    }
}

/// Whether the program has had its answer.
pub fn heard(outcome: std::io::Result<Outcome>) -> bool {
    matches!(outcome, Ok(Outcome::Done(())))
}
