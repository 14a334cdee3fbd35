//! Descriptors that were put into a program whose call a signal ended before it heard their numbers: nobody there knows of them, and they
//! keep connections open. The same call, which comes again, is told the number that there is.

use guard::guard;
use notify::{Listener, Notification, Outcome, Target};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// So many are remembered at most. Of those before them programs have the numbers until they end.
const MOST: usize = 1024;

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

/// All of a compartment, by the cookies of their sockets: the call that they were for, and their numbers.
#[derive(Default)]
pub struct Strays(BTreeMap<u64, (Notification, u32)>);

impl Strays {
    /// What came of one.
    pub fn puts(&mut self, cookie: u64, call: &Notification, put: &Put) {
        match put {
            Put::Unheard(Some(number)) if guard!("circuits-strays") => {
                if self.0.len() >= MOST {
                    self.0.clear();
                }
                self.0.insert(cookie, (*call, *number));
            }
            Put::Unheard(_) => {}
            Put::Heard(_) => drop(self.0.remove(&cookie)),
        }
    }

    /// The number that the caller's program has this socket at, if it was put there unheard.
    pub fn number(&self, cookie: u64, call: &Notification) -> Option<u32> {
        let (before, number) = *self.0.get(&cookie)?;
        // Whether it closes when another program is executed is as that call asked (the flags of accept4).
        let asked = |it: &Notification| match i64::from(it.number) == libc::SYS_accept4 {
            true => it.arguments[3] & libc::SOCK_CLOEXEC as u64,
            false => 0,
        };
        if asked(&before) != asked(call) {
            return None;
        }
        is_there(call.thread, number, cookie).then_some(number)
    }

    /// The socket that was put there for the same call of this thread, and its number.
    pub fn of(&mut self, call: &Notification) -> Option<(u64, u32)> {
        let is_its = |(before, _): &(Notification, u32)| {
            before.thread == call.thread && before.is_alike(call)
        };
        let mut all = self.0.iter();
        let (cookie, number) =
            all.find_map(|(cookie, of)| is_its(of).then_some((*cookie, of.1)))?;
        match is_there(call.thread, number, cookie) {
            true => Some((cookie, number)),
            false => {
                self.0.remove(&cookie);
                None
            }
        }
    }
}

/// Whether a thread's program has a socket at this number.
fn is_there(thread: u32, number: u32, cookie: u64) -> bool {
    let target = Target::open(thread);
    let taken = target.map(|target| target.take_socket(number.cast_signed()));
    taken.is_ok_and(|taken| taken.is_ok_and(|(_, found)| found == cookie))
}
