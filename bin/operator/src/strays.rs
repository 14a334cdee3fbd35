//! Descriptors that were put into a program whose call a signal ended before it heard their numbers: nobody there knows of them, and they
//! keep connections open. The same call, which comes again, is told the number that there is; and where another program has the
//! connection meanwhile, or it is over, the next call's thread loses the copy, and has what it accepts next there.

use crate::put::Put;
use crate::sockets;
use guard::guard;
use notify::{Listener, Notification, Outcome, Target};
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// So many are remembered at most. Of those before them programs have the numbers until they end.
const MOST: usize = 1024;

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
    /// Of the one that the call to be answered is told of: whose call it was for, and the number. Programs may have other copies at
    /// the same number.
    told: Option<(u32, u32)>,
}

impl Strays {
    /// What came of one.
    pub fn puts(&mut self, cookie: u64, call: &Notification, put: &Put) {
        let told = self.told.take();
        let (Put::Heard(Ok(number)) | Put::Unheard(Some(number))) = *put else {
            return;
        };
        // That one is what it was put in the place of, or again.
        let is_told = |it: &Stray| told == Some((it.call.thread, number)) && it.number == number;
        self.all.retain(|it| !is_told(it));
        match put {
            Put::Heard(_) => {
                // Where another program has it, the copy is there still.
                let copies = self.all.iter().filter(|it| it.cookie == cookie);
                self.of_others.extend(copies.map(|it| it.call.thread));
            }
            Put::Unheard(_) if guard!("circuits-strays") => {
                if self.all.len() >= MOST {
                    self.all.pop_front();
                }
                self.all.push_back(Stray {
                    cookie,
                    call: *call,
                    number,
                    is_empty: false,
                });
            }
            Put::Unheard(_) => {}
        }
    }

    /// The number at which the caller's program is to have what it accepts: where it has this already, unheard, or where what
    /// it had so was taken away.
    pub fn place(&mut self, cookie: u64, call: &Notification) -> Option<u32> {
        let is_its = |it: &Stray| match it.is_empty {
            true => it.call.thread == call.thread && it.is_there(call.thread),
            false => it.cookie == cookie && it.is_there(call.thread),
        };
        let stray = self.all.iter().find(|it| is_its(it))?;
        self.told = Some((stray.call.thread, stray.number));
        Some(stray.number)
    }

    /// The socket that was put there for the same call of this thread, and its number.
    pub fn of(&mut self, call: &Notification) -> Option<(u64, u32)> {
        let is_its = |it: &Stray| it.call.thread == call.thread && it.call.is_alike(call);
        let at = self.all.iter().position(is_its)?;
        let stray = self.all.get(at)?;
        match stray.is_there(call.thread) {
            true => {
                self.told = Some((call.thread, stray.number));
                Some((stray.cookie, stray.number))
            }
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
            match listener.install_at(call.id, empty.fd.as_fd(), true, it.number) {
                Ok(Outcome::Done(_)) => {
                    it.is_empty = true;
                    it.cookie = empty.cookie;
                    true
                }
                // A signal has ended this call too.
                Ok(Outcome::Gone) => true,
                Err(_) => false,
            }
        });
    }
}

/// Whether a thread's program has a socket at this number.
fn is_there(thread: u32, number: u32, cookie: u64) -> bool {
    let target = Target::open(thread);
    let taken = target.map(|target| target.take_socket(number.cast_signed()));
    taken.is_ok_and(|taken| taken.is_ok_and(|(_, found)| found == cookie))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::sockopt::socket_cookie;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_another_program_was_given_at_the_same_number_is_a_copy_all_the_same() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (cookie, number) = (
            socket_cookie(&one).unwrap(),
            one.as_raw_fd().cast_unsigned(),
        );
        let call = |thread| Notification {
            id: 1,
            thread,
            number: libc::SYS_accept as i32,
            arch: 0,
            arguments: [0; 6],
        };
        // Both have it there: this test's thread, and the first one.
        let first = call(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .cast_unsigned(),
        );
        let second = call(std::process::id());
        let mut strays = Strays::default();
        strays.puts(cookie, &first, &Put::Unheard(Some(number)));
        strays.puts(cookie, &second, &Put::Heard(Ok(number)));
        assert_eq!(strays.of_others(), [first.thread]);
        // What is put there for the same call has it heard of, once it is.
        for put in [
            Put::Unheard(None),
            Put::Heard(Err(Errno::MFILE)),
            Put::Unheard(Some(number)),
            Put::Heard(Ok(number)),
        ] {
            assert_eq!(strays.place(cookie, &first), Some(number));
            strays.puts(cookie, &first, &put);
            assert_eq!(strays.of_others(), [0; 0]);
        }
        assert_eq!(strays.place(cookie, &first), None);
    }
}
