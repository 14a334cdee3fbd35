//! Processes that end: killed, held up, dead, reaped.

use crate::errands::Whose;
use crate::process::{how_it_ended, last_words, processor_time};
use crate::registry::{Key, WorkerPart};
use crate::role::{Place, Purpose, Role};
use crate::supervisor::Supervisor;
use crate::workers::place_note;
use command::verbs::CAUSE_REPORT;
use guard::guard;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::AsFd;

/// The place of a process that is killed and not dead yet, before its compartment's number.
pub const ENDING: &str = "ending-";
/// The number of no compartment.
const NOBODYS: u32 = u32::MAX;
/// With so many processes of a compartment that are killed and do not die no more are started for it.
const MOST_HELD_UP: usize = 16;
/// A process that is not ready by then is killed, ns.
const START_LIMIT: u64 = 10_000_000_000;

impl Supervisor {
    /// Kills a process. `cause`: what to say of it; `None` = it was not in a seat.
    pub fn kill(&mut self, id: u64, cause: Option<u32>) {
        if cause == Some(CAUSE_REPORT) {
            self.distrust_process(id);
        }
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.killed = worker.killed.or(cause);
            if cause.is_none() {
                worker.ended_in = worker.place.compartment().or(worker.ended_in);
                worker.place = Place::Ending;
            }
            let _ = pidfd_send_signal(&worker.pidfd, Signal::KILL);
            if cause.is_none() {
                self.note_ending(id);
            }
        }
    }

    /// A supervisor after us counts it too.
    fn note_ending(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(&id)
            && let (Some(compartment), Some(link)) = (worker.ended_in, &worker.link)
        {
            (worker.noted, worker.unnoted) = (None, None);
            let place = format!("{ENDING}{compartment}");
            let note = place_note(worker.role, &place, worker.profile);
            let key = Key::Worker(id, WorkerPart::Control);
            self.keeper.keep(key, &note, link.as_fd());
        }
    }

    /// A compartment is gone: what still hangs of it is on nobody's account. The next has its number.
    pub fn disown(&mut self, compartment: u32) {
        let all = self.workers.iter().filter(|_| guard!("disown"));
        let its = all.filter(|(_, it)| it.ended_in == Some(compartment));
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        for id in its {
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.ended_in = Some(NOBODYS);
            }
            self.note_ending(id);
        }
        self.errands
            .hands_on(Whose::Ports(compartment), Whose::Ports(NOBODYS));
        self.searchers.hands_on(compartment, NOBODYS);
    }

    /// Whether as many processes of a compartment are killed and not dead as may be: what holds them up would
    /// hold up the next.
    pub fn is_held_up(&self, compartment: u32) -> bool {
        let all = self.workers.values();
        is_held_up(all.map(|it| (it.place, it.ended_in)), compartment)
    }

    /// A process died: reap it and do what its place needs, the most urgent first.
    pub fn reap(&mut self, id: u64) {
        if !self.last_words_are_heard(id) {
            if let Some(worker) = self.workers.get(&id) {
                self.poll.unwatch(&worker.pidfd, worker.tokens.0);
            }
            return;
        }
        let Some(mut worker) = self.workers.remove(&id) else {
            return;
        };
        if let Place::Seated(seat) = worker.place
            && let Some(state) = self.seat_mut(seat)
        {
            // Until it is reaped the kernel knows.
            state.spent = state.spent.saturating_add(processor_time(worker.pid));
        }
        let how = how_it_ended(&worker.pidfd);
        if let Some(words) = worker.words.as_ref().and_then(last_words) {
            let name = worker.role.name();
            confine::say!("supervisor: last words of {name} {}: {words}", worker.pid);
        }
        self.poll.unwatch(&worker.pidfd, worker.tokens.0);
        if let (Some(link), Some(token)) = (&worker.link, worker.tokens.1) {
            self.poll.unwatch(link, token);
        }
        if let Some((fetch, token)) = worker.fetch {
            self.poll.unwatch(&fetch, token);
            self.errands.gives_up(Whose::Uid(worker.uid), fetch.over());
        }
        if let Some(link) = &mut worker.link {
            self.errands.part_link(Whose::Uid(worker.uid), link);
        }
        match worker.place {
            Place::Seated(seat) => self.seat_lost(seat, id, worker.killed, how),
            Place::Starting(purpose) => {
                confine::say!(
                    "supervisor: a {} ended before it was ready: {how:?}",
                    worker.role.name()
                );
                self.put_off(purpose);
                match purpose {
                    Purpose::Seat(seat) if self.seat(seat).is_some() => {
                        self.waiting.insert(seat);
                    }
                    Purpose::Capture(of) => self.end_capture(of),
                    Purpose::Verifier => self.verifier_lost(worker.started, how),
                    Purpose::Solver => self.solver_lost(id),
                    Purpose::Guest(place) => self.helper_lost(id, place),
                    Purpose::Circuits(compartment) => {
                        self.operator_lost(id, compartment, worker.killed)
                    }
                    Purpose::Proxy(place) => self.proxy_lost(id, place),
                    Purpose::Meter(compartment) => self.meter_lost(id, compartment),
                    _ => {}
                }
            }
            Place::Capture(of) => self.end_capture(of),
            Place::Verifier => self.verifier_lost(worker.started, how),
            Place::Ending if worker.role == Role::Verifier => {
                self.verifier_lost(worker.started, how);
            }
            Place::Controller => self.controller_lost(worker.started, how),
            Place::Solver => self.solver_lost(id),
            Place::Guest(place) => self.helper_lost(id, place),
            Place::Circuits(compartment) => self.operator_lost(id, compartment, worker.killed),
            Place::Proxy(place) => self.proxy_lost(id, place),
            Place::Meter(compartment) => self.meter_lost(id, compartment),
            Place::Spare | Place::Ending => {}
        }
        // An operator's is its successor's.
        self.release_uid(worker.uid);
        self.keeper.forget(&format!("worker/{id}/"));
    }

    /// Nothing that this process wrote goes on.
    pub fn distrust_process(&mut self, id: u64) {
        if let Some(Place::Seated(seat)) = self.workers.get(&id).map(|worker| worker.place) {
            self.distrust(seat);
        }
    }

    /// Kills a process; in a seat, for this `CAUSE_*`. Its place stays: its death says what
    /// to start again. A spare has none.
    pub fn kill_seated(&mut self, id: u64, cause: u32) {
        match self.workers.get(&id).map(|worker| worker.place) {
            Some(Place::Seated(_)) => self.kill(id, Some(cause)),
            Some(Place::Spare) => self.kill(id, None),
            Some(_) => self.end_process(id),
            None => {}
        }
    }

    /// Ends a process where it is.
    pub fn end_process(&self, id: u64) {
        if let Some(worker) = self.workers.get(&id) {
            let _ = pidfd_send_signal(&worker.pidfd, Signal::KILL);
        }
    }

    /// Kills what should long be ready; when to look again.
    pub fn expire_starts(&mut self, now: u64) -> Option<u64> {
        let late: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, w)| {
                matches!(w.place, Place::Starting(_))
                    && now.saturating_sub(w.started) >= START_LIMIT
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            confine::say!("supervisor: a process does not get ready");
            // Its place stays: its death says what to start again.
            self.end_process(id);
        }
        let starts = self
            .workers
            .values()
            .filter(|w| matches!(w.place, Place::Starting(_)))
            .map(|w| w.started);
        starts.min().map(|started| started + START_LIMIT)
    }
}

fn is_held_up(all: impl Iterator<Item = (Place, Option<u32>)>, compartment: u32) -> bool {
    let ended = all.filter(|(place, of)| *place == Place::Ending && *of == Some(compartment));
    ended.count() >= MOST_HELD_UP && guard!("held-up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compartment_whose_dead_do_not_die_holds_up_itself_and_nobody_else() {
        let of = |count: usize, place, of| std::iter::repeat_n((place, Some(of)), count);
        let others = || of(40, Place::Ending, 8).chain(of(40, Place::Circuits(7), 7));
        let held_up = |count| is_held_up(others().chain(of(count, Place::Ending, 7)), 7);
        assert!(!held_up(MOST_HELD_UP - 1) && held_up(MOST_HELD_UP));
    }
}
