//! Asking the solver: a text goes out by the supervisor, the answer comes by a pipe.

use command::Message;
use command::verbs::{SOLVER_ABSENT, SOLVER_ASKED, Solve, Solving};
use proof::{Solver, Unsolved};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use seqpacket::Socket;
use shm::SealedImage;
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use worker::clock;

/// All texts of one question together, ns: the supervisor gives the whole question 10 s.
const PATIENCE: u64 = 5_000_000_000;
/// Bytes of an answer, at most: five numbers, or an error.
const LONGEST: usize = 4096;

/// The solver of one question.
pub struct Asked<'a> {
    control: &'a Socket,
    /// Time that is left, ns.
    left: Cell<u64>,
    state: Cell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    There,
    Absent,
    /// The supervisor is gone, wants the end or says what makes no sense.
    Over,
}

impl Asked<'_> {
    /// By this control socket.
    pub fn new(control: &Socket) -> Asked<'_> {
        Asked {
            control,
            left: Cell::new(PATIENCE),
            state: Cell::new(State::There),
        }
    }

    /// Whether nothing more is to be heard by the control socket.
    pub fn is_over(&self) -> bool {
        self.state.get() == State::Over
    }

    /// Where the answer will come from.
    fn send(&self, text: &str, until: u64) -> Option<OwnedFd> {
        let text = SealedImage::create("text", text.as_bytes()).ok()?;
        let message = Message::new(0, &Solve::default());
        let left = Duration::from_nanos(until.saturating_sub(clock::monotonic()));
        let sent = self.control.send_wait(&message, &[text.as_fd()], left);
        // The one thing that comes while a question is under way.
        let heard = sent.and_then(|()| self.control.recv_wait(PATIENCE_OF_SUPERVISOR));
        let body = match &heard {
            Ok(Some((message, _))) => message.body::<Solving>(),
            _ => None,
        };
        match (body.map(|body| body.state), heard) {
            (Some(SOLVER_ASKED), Ok(Some((_, fds)))) => fds.into_iter().next(),
            (Some(SOLVER_ABSENT), _) => {
                self.state.set(State::Absent);
                None
            }
            _ => {
                self.state.set(State::Over);
                None
            }
        }
    }
}

/// It answers at once, or is gone.
const PATIENCE_OF_SUPERVISOR: Duration = Duration::from_secs(5);

impl Solver for Asked<'_> {
    fn solve(&self, text: &str) -> Result<String, Unsolved> {
        let begun = clock::monotonic();
        let until = begun + self.left.get();
        if self.left.get() > 0 && self.state.get() == State::There {
            let answer = self.send(text, until).and_then(|pipe| whole(&pipe, until));
            let took = clock::monotonic().saturating_sub(begun);
            self.left.set(self.left.get().saturating_sub(took));
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(match self.state.get() {
            State::Absent => Unsolved::Absent,
            State::There | State::Over => Unsolved::Undecided,
        })
    }
}

/// All that comes until the other end is closed; `None`: not in time, or no text.
fn whole(pipe: &OwnedFd, until: u64) -> Option<String> {
    let mut said = Vec::new();
    let mut some = [0; 512];
    loop {
        let left = until.saturating_sub(clock::monotonic());
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000).cast_signed(),
            tv_nsec: (left % 1_000_000_000).cast_signed(),
        };
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        match rustix::io::read(pipe, &mut some) {
            Ok(0) => return String::from_utf8(said).ok(),
            Ok(count) => said.extend_from_slice(some.get(..count)?),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        if said.len() > LONGEST {
            return None;
        }
    }
}
