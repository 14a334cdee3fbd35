//! The solver: started for one text of the verifier's, and ended with it. Its answer goes from
//! it to the verifier by a pipe; nobody here reads text or answer.

use crate::link::Shared;
use crate::supervisor::Supervisor;
use crate::workers::{Purpose, Role};
use command::Message;
use command::verbs::{CAUSE_REPORT, SOLVER_ABSENT, SOLVER_ASKED, Solve, Solving as Answer};
use confine::Profile;
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::pipe::{PipeFlags, pipe_with};
use seqpacket::Fds;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A question on its way.
#[derive(Debug)]
pub struct Solving {
    /// Whose it is.
    solver: u64,
    /// The text, and where the answer goes; `None` once it has them.
    given: Option<[Shared; 2]>,
}

impl Supervisor {
    /// Opens the host's solver.
    ///
    /// # Errors
    /// It is not there.
    pub fn solver_program(&self) -> std::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok(open(&self.settings.solver, flags, Mode::empty())?)
    }

    /// The verifier asks. Where nobody can be started the pipe that it is given just ends.
    pub fn solve(&mut self, id: u64, seq: u32, fds: Fds) {
        if !self.may_judge(id) {
            return;
        }
        let text = fds.into_iter().next().filter(|_| self.is_proving());
        let Some(text) = text else {
            return self.kill(id, Some(CAUSE_REPORT));
        };
        self.end_solver();
        // Who wrote it stands at its end, and so would who reads it.
        let _ = seek(&text, SeekFrom::Start(0));
        let pipe = match self.solver_program() {
            Ok(_) => pipe_with(PipeFlags::CLOEXEC).ok(),
            Err(_) => None,
        };
        let Some((answer, end)) = pipe else {
            let state = SOLVER_ABSENT;
            return self.tell(id, &Message::new(seq, &Answer { state }), Vec::new());
        };
        let (role, profile) = (Role::Solver, Profile::Solver);
        let started = self.start_worker(role, profile, "bulkhead-solver", Purpose::Solver);
        self.proofs.solving = started.map(|solver| Solving {
            solver,
            given: Some([Rc::new(text), Rc::new(end)]),
        });
        let state = SOLVER_ASKED;
        self.tell(
            id,
            &Message::new(seq, &Answer { state }),
            vec![Rc::new(answer)],
        );
    }

    /// It is confined and waits.
    pub fn solver_ready(&mut self, id: u64) {
        let asked = self.proofs.solving.as_mut();
        let given = asked.filter(|asked| asked.solver == id);
        match given.and_then(|asked| asked.given.take()) {
            Some(given) => self.tell(id, &Message::new(0, &Solve::default()), given.into()),
            None => self.kill(id, None),
        }
    }

    /// It is dead: where it had no question yet, that ends here.
    pub fn solver_lost(&mut self, id: u64) {
        self.proofs.solving.take_if(|asked| asked.solver == id);
    }

    /// The question is answered, or nobody waits for it any more.
    pub fn end_solver(&mut self) {
        if let Some(asked) = self.proofs.solving.take() {
            self.kill(asked.solver, None);
        }
    }
}
