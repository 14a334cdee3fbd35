//! The controller's process: unprivileged, started again when it dies.

use crate::process::processor_time;
use crate::registry::{Key, Note, WorkerPart};
use crate::supervisor::Supervisor;
use crate::watch::{Death, How};
use crate::workers::{Place, Role, Worker};
use command::verbs::CAUSE_STALL;
use confine::Profile;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::AsFd;

/// After a failure to start it the next try waits, ns.
const RETRY: u64 = 1_000_000_000;

impl Supervisor {
    /// Starts the controller if it is time; whether it was.
    pub fn start_controller_if_due(&mut self) -> bool {
        let now = self.now();
        if self.is_ending || self.controller_due.is_none_or(|due| due > now) {
            return false;
        }
        self.controller_due = None;
        if let Err(reason) = self.start_controller() {
            confine::say!("supervisor: cannot start the controller: {reason}");
            self.controller_due = Some(now + RETRY);
            return false;
        }
        true
    }

    fn start_controller(&mut self) -> Result<(), String> {
        let program = self
            .programs
            .open("bulkhead-controller")
            .map_err(|e| e.to_string())?;
        let uid = if self.settings.rootless {
            rustix::process::getuid().as_raw()
        } else {
            self.uids.controller()
        };
        let state = self
            .settings
            .open_state(uid)
            .map_err(|e| format!("{}: {e}", self.settings.state_dir.display()))?;
        let id = self.next_worker;
        self.next_worker += 1;
        let note = Note::default()
            .with("role", Role::Controller.name())
            .with("place", "starting")
            .with("profile", Profile::Controller.name());
        self.keeper.keep(
            Key::Worker(id, WorkerPart::Control),
            &note,
            self.controller_end.as_fd(),
        );
        let descriptors = [self.controller_end.as_fd(), self.api.as_fd(), state.as_fd()];
        let rights = self.settings.rights.iter().map(String::as_str);
        let cores = self.cores.to_string();
        let words: Vec<&str> = rights
            .chain(self.settings.rootless.then_some("--rootless"))
            .chain(["--cores", &cores])
            .collect();
        let child = self.spawn(
            Profile::Controller,
            &program,
            "bulkhead-controller",
            uid,
            &descriptors,
            &words,
        );
        let enrolled = child.and_then(|(child, words)| {
            self.enrol(
                id,
                child,
                Some(words),
                None,
                Role::Controller,
                Profile::Controller,
                uid,
                Place::Controller,
            )
        });
        if let Err(reason) = enrolled {
            self.keeper.forget(&format!("worker/{id}/"));
            return Err(reason);
        }
        let note = Note::default()
            .with("role", Role::Controller.name())
            .with("place", "controller")
            .with("profile", Profile::Controller.name());
        self.keeper.keep(
            Key::Worker(id, WorkerPart::Control),
            &note,
            self.controller_end.as_fd(),
        );
        Ok(())
    }

    /// Kills a controller that hangs: nobody else would end agreements when they do. When to
    /// look again; `None`: there is none, or its death is under way.
    pub fn listen_for_controller(&mut self, now: u64) -> Option<u64> {
        let controller = |worker: &&mut Worker| worker.place == Place::Controller;
        let Some(worker) = self.workers.values_mut().find(controller) else {
            self.controller_silence.heard();
            return None;
        };
        if worker.killed.is_some() {
            return None;
        }
        let pid = worker.pid;
        let (hangs, next) = self.controller_silence.look(now, || processor_time(pid));
        if hangs {
            confine::say!("supervisor: the controller, process {pid}, hangs; it is killed");
            worker.killed = Some(CAUSE_STALL);
            let _ = pidfd_send_signal(&worker.pidfd, Signal::KILL);
        }
        Some(next)
    }

    /// The controller died: what runs, runs; it comes back.
    pub fn controller_lost(&mut self, started: u64, how: How) {
        let now = self.now();
        confine::say!("supervisor: the controller died ({how:?})");
        let wait = self
            .controller_backoff
            .died(Death::Fault, now.saturating_sub(started));
        self.controller_due = Some(now + wait);
    }
}
