//! Descriptors that were put into a program whose call a signal ended before it heard their numbers: nobody there knows of them, and they
//! keep connections open. The same call, which comes again, is told the number that there is; and where another program has the
//! connection meanwhile, or it is over, the next call's thread loses the copy, and has what it accepts next there.

use crate::sockets;
use guard::guard;
use notify::{Listener, Notification, Outcome, Target};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::AsFd;

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

/// One of them.
struct Stray {
    cookie: u64,
    /// What it was for.
    call: Notification,
    number: u32,
    /// Nothing is there any more that anybody could use.
    is_empty: bool,
}

impl Stray {
    fn is_there(&self, thread: u32) -> bool {
        is_there(thread, self.number, self.cookie)
    }

    fn was_accepted(&self) -> bool {
        [libc::SYS_accept, libc::SYS_accept4].contains(&self.call.number.into())
    }
}

/// All of a compartment.
#[derive(Default)]
pub struct Strays {
    all: VecDeque<Stray>,
    /// Threads that have copies of what another program has heard of since.
    of_others: Vec<u32>,
}

impl Strays {
    /// What came of one.
    pub fn puts(&mut self, cookie: u64, call: &Notification, put: &Put) {
        match put {
            Put::Unheard(Some(number)) if guard!("circuits-strays") => {
                if self.all.len() >= MOST {
                    self.all.pop_front();
                }
                self.forget(cookie, call.thread);
                self.all.push_back(Stray {
                    cookie,
                    call: *call,
                    number: *number,
                    is_empty: false,
                });
            }
            Put::Unheard(_) => {}
            Put::Heard(_) => {
                self.forget(cookie, call.thread);
                // Where another program has it, the copy is there still.
                let copies = self.all.iter().filter(|it| it.cookie == cookie);
                self.of_others.extend(copies.map(|it| it.call.thread));
            }
        }
    }

    fn forget(&mut self, cookie: u64, thread: u32) {
        self.all
            .retain(|it| it.cookie != cookie || !it.is_there(thread));
    }

    /// The number at which the caller's program is to have what it accepts: where it has this already, unheard, or where what
    /// it had so was taken away.
    pub fn place(&mut self, cookie: u64, call: &Notification) -> Option<u32> {
        let is_its = |it: &Stray| match it.is_empty {
            true => it.call.thread == call.thread && it.is_there(call.thread),
            false => it.cookie == cookie && it.is_there(call.thread),
        };
        let at = self.all.iter().position(is_its)?;
        match self.all.get(at)?.is_empty {
            true => self.all.remove(at).map(|it| it.number),
            // Until it is heard.
            false => self.all.get(at).map(|it| it.number),
        }
    }

    /// The socket that was put there for the same call of this thread, and its number.
    pub fn of(&mut self, call: &Notification) -> Option<(u64, u32)> {
        let is_its = |it: &Stray| it.call.thread == call.thread && it.call.is_alike(call);
        let at = self.all.iter().position(is_its)?;
        let stray = self.all.get(at)?;
        match stray.is_there(call.thread) {
            true => Some((stray.cookie, stray.number)),
            false => {
                self.all.remove(at);
                None
            }
        }
    }

    /// Threads that have copies of what another program has heard of since this was asked.
    pub fn of_others(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.of_others)
    }

    /// What the caller accepted unheard that waits (`is_waiting`, of a cookie) for nobody any more, since another program has it, say:
    /// something that nobody can use comes in its place, and the connection is that other's alone.
    pub fn take_away(
        &mut self,
        call: &Notification,
        listener: &Listener,
        is_waiting: impl Fn(u64) -> bool,
    ) {
        self.all.retain_mut(|it| {
            let is_its = it.call.thread == call.thread && it.was_accepted();
            if !is_its || it.is_empty || is_waiting(it.cookie) {
                return true;
            }
            // As of a circuit that nobody knows, nothing comes of it.
            let (true, Ok(empty)) = (it.is_there(call.thread), sockets::stream(true)) else {
                return false;
            };
            it.is_empty = true;
            it.cookie = empty.cookie;
            let put = listener.install_at(call.id, empty.fd.as_fd(), true, it.number);
            matches!(put, Ok(Outcome::Done(_)))
        });
    }
}

/// Whether a thread's program has a socket at this number.
fn is_there(thread: u32, number: u32, cookie: u64) -> bool {
    let target = Target::open(thread);
    let taken = target.map(|target| target.take_socket(number.cast_signed()));
    taken.is_ok_and(|taken| taken.is_ok_and(|(_, found)| found == cookie))
}
