//! What processes say, and what they give with it.

use crate::errands::Whose;
use crate::errands::fetch::Fetch;
use crate::poll::Source;
use crate::registry::Seat;
use crate::role::Place;
use crate::supervisor::Supervisor;
use crate::workers::Worker;
use command::Message;
use command::verbs::{
    CAUSE_REPORT, NeedReplace, PortClosed, Program, ProgramGone, Proved, Ready, Report, Running,
    Solve, Verdict,
};
use guard::guard;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Signal, pidfd_send_signal};
use seqpacket::{Fds, Misdeed, Socket};
use std::os::fd::AsFd;

/// Messages heard of one process before others have their turn.
const BATCH: usize = 64;
/// Who is dead is heard no longer, ns: its successor waits.
const LAST_WORDS: u64 = 1_000_000_000;

/// What a process says, with its descriptors where it has any to send; none: it gives where a program's
/// calls come, it says, and another is to look whether it is that.
type Said = (Message, Option<Fds>);

/// How far a process was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// It has said no more.
    All,
    /// It may have more to say.
    More,
    /// Somebody looks at what it gives; then it goes on.
    Waits,
}

/// What a process says. What comes beside words that have nothing with them this process never has.
fn said(place: Place, socket: &Socket) -> Result<Option<Said>, seqpacket::Error> {
    if matches!(place, Place::Verifier | Place::Solver) {
        let said = socket.recv()?;
        return Ok(said.map(|(message, fds)| (message, Some(fds))));
    }
    if matches!(place, Place::Circuits(_))
        && let Some((message, has_fds)) = socket.peek_word()?
        && message.body::<Program>().is_some()
    {
        return match has_fds {
            true => Ok(Some((message, None))),
            false => Err(seqpacket::Error::Malformed(Misdeed::Descriptors)),
        };
    }
    let said = socket.recv_word()?;
    Ok(said.map(|message| (message, Some(Fds::new()))))
}

impl Supervisor {
    /// A process says something.
    pub fn hear_worker(&mut self, id: u64) {
        self.hear(id);
    }

    /// What an operator said before it died is heard like the rest: programs that it took over are its
    /// successor's. Whether it is; if not, its death is seen to later.
    pub fn last_words_are_heard(&mut self, id: u64) -> bool {
        let now = self.now();
        let Some(worker) = self.workers.get_mut(&id) else {
            return true;
        };
        let has_more = matches!(worker.place, Place::Circuits(_))
            && worker.killed != Some(CAUSE_REPORT)
            && guard!("operator-last-words");
        if !has_more {
            return true;
        }
        let until = match worker.last_words {
            Some(until) => until,
            None => {
                // Others may have its end, and nobody adds to what it said.
                if let Some(link) = &worker.link {
                    let _ = shutdown(link, Shutdown::Read);
                }
                *worker.last_words.insert(now + LAST_WORDS)
            }
        };
        let mut heard = Heard::More;
        while heard == Heard::More && self.now() < until {
            heard = self.hear(id);
        }
        heard == Heard::All || self.now() >= until
    }

    fn hear(&mut self, id: u64) -> Heard {
        let now = self.now();
        for _ in 0..BATCH {
            let Some(worker) = self.workers.get_mut(&id) else {
                return Heard::All;
            };
            if worker.fetch.is_some() {
                return Heard::Waits;
            }
            let Some(link) = &worker.link else {
                return Heard::All;
            };
            if worker.place == Place::Ending {
                // What it still gives is nobody's any more, and no misdeed.
                if let Some(token) = worker.tokens.1.take() {
                    self.poll.unwatch(link, token);
                }
                return Heard::All;
            }
            let said = said(worker.place, link.socket());
            let too_many = matches!(said, Ok(Some(_))) && worker.budget.spend(now).is_err();
            if guard!("worker-words") && too_many {
                confine::say!(
                    "supervisor: process {} talks without end; it is killed",
                    worker.pid
                );
                if let Some(token) = worker.tokens.1.take() {
                    self.poll.unwatch(link, token);
                }
                self.kill(id, Some(CAUSE_REPORT));
                return Heard::All;
            }
            match said {
                Ok(Some((message, Some(fds)))) => self.take_word(id, &message, fds),
                Ok(Some((_, None))) => return self.fetch(id),
                Ok(None) => return Heard::All,
                Err(error) => {
                    // Closed, or not one of ours any more: its death says the rest.
                    if let Some(token) = worker.tokens.1.take() {
                        self.poll.unwatch(link, token);
                    }
                    // The solver becomes z3, which has none.
                    if worker.place == Place::Solver && error == seqpacket::Error::Closed {
                        return Heard::All;
                    }
                    // A process that closes its socket and lives is ended all the same.
                    let _ = pidfd_send_signal(&worker.pidfd, Signal::KILL);
                    if error != seqpacket::Error::Closed {
                        confine::say!("supervisor: process {}: {error}", worker.pid);
                        worker.killed = worker.killed.or(Some(CAUSE_REPORT));
                        self.distrust_process(id);
                    }
                    return Heard::All;
                }
            }
        }
        Heard::More
    }

    /// Has somebody look at what a process gives; until that is known it is not heard.
    fn fetch(&mut self, id: u64) -> Heard {
        let now = self.now();
        let Some(worker) = self.workers.get_mut(&id) else {
            return Heard::All;
        };
        let Some(link) = &worker.link else {
            return Heard::All;
        };
        let started = match self.errands.is_full(Whose::Uid(worker.uid)) {
            false => Fetch::start(link.socket().as_fd(), now),
            true => Err(std::io::ErrorKind::WouldBlock.into()),
        };
        let watched = started.and_then(|mut fetch| {
            fetch.due = worker
                .last_words
                .map_or(fetch.due, |until| fetch.due.min(until));
            let token = self.poll.watch(&fetch, Source::Fetch(id))?;
            Ok((fetch, token))
        });
        match watched {
            Ok(fetch) => {
                // What it says waits there, and would wake this process for nothing.
                if let Some(token) = worker.tokens.1.take() {
                    self.poll.unwatch(link, token);
                }
                worker.fetch = Some(fetch);
                Heard::Waits
            }
            Err(error) => {
                confine::say!("supervisor: nobody looks at what an operator gives: {error}");
                self.refuse_words(id);
                Heard::All
            }
        }
    }

    /// What a process gave is looked at, or was for too long.
    pub fn fetched(&mut self, id: u64) {
        let now = self.now();
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let Some((fetch, token)) = worker.fetch.take() else {
            return;
        };
        self.poll.unwatch(&fetch, token);
        let said = fetch.says();
        let (is_late, of) = (fetch.due <= now, Whose::Uid(worker.uid));
        match is_late {
            true => self.errands.gives_up(of, fetch.over()),
            false => self.errands.ends(of, fetch.over()),
        }
        match said {
            Some((message, fds)) => {
                if let Some(link) = &worker.link {
                    // It has been there until now, for a supervisor after us.
                    let _ = link.socket().skip();
                    if worker.last_words.is_none() {
                        worker.tokens.1 = self.poll.watch(link, Source::Worker(id)).ok();
                    }
                }
                self.take_word(id, &message, fds);
            }
            None => self.refuse_words(id),
        }
        let is_dead = |worker: &Worker| worker.last_words.is_some();
        if self.workers.get(&id).is_some_and(is_dead) {
            self.reap(id);
        }
    }

    /// What it gave is not what it said, or nobody knows what it is: it is killed, and heard no more.
    fn refuse_words(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(&id) {
            confine::say!(
                "supervisor: process {} gives what is none of a program's calls; it is killed",
                worker.pid
            );
            if let (Some(link), Some(token)) = (&worker.link, worker.tokens.1.take()) {
                self.poll.unwatch(link, token);
            }
        }
        self.kill(id, Some(CAUSE_REPORT));
    }

    /// Who looks for too long is not waited for; when that is next, ns.
    pub fn expire_fetches(&mut self, now: u64) -> Option<u64> {
        let due = |(id, worker): (&u64, &Worker)| {
            worker.fetch.as_ref().map(|(fetch, _)| (*id, fetch.due))
        };
        let late = self.workers.iter().filter_map(due);
        let late: Vec<u64> = late
            .filter_map(|(id, due)| (due <= now).then_some(id))
            .collect();
        for id in late {
            self.fetched(id);
        }
        self.workers
            .iter()
            .filter_map(due)
            .map(|(_, due)| due)
            .min()
    }

    fn take_word(&mut self, id: u64, message: &Message, fds: Fds) {
        if let Some(body) = message.body::<Ready>() {
            return self.ready(id, &body);
        }
        let Some(worker) = self.workers.get(&id) else {
            return;
        };
        let place = worker.place;
        // Who is killed and not yet dead has no more to say, and who is dead nothing to ask for.
        let gives = message.body::<Program>().is_some() || message.body::<ProgramGone>().is_some();
        let is_dead = worker.last_words.is_some();
        if worker.killed.is_some() && !is_dead || is_dead && !gives {
            return;
        }
        if let Some(body) = message.body::<Proved>() {
            return self.proved(id, message.seq, &body);
        }
        if let Some(body) = message.body::<Verdict>() {
            return self.verdict(id, message.seq, body, fds);
        }
        if message.body::<Solve>().is_some() {
            return self.solve(id, message.seq, fds);
        }
        if let Place::Circuits(compartment) = place {
            return self.operator_says(compartment, message, fds);
        }
        let Place::Seated(seat) = place else {
            return;
        };
        if let Some(body) = message.body::<Running>() {
            self.running(seat, &body);
        } else if let Some(body) = message.body::<PortClosed>() {
            self.port_closed(seat, &body);
        } else if let Some(NeedReplace { slot }) = message.body::<NeedReplace>() {
            match seat {
                Seat::Fabric => self.want_replacement(slot),
                Seat::Compartment(id) if slot == 0 => self.want_replacement(id),
                Seat::Compartment(id) => self.drop_client(id, slot),
            }
        } else if let (Seat::Fabric, Some(body)) = (seat, message.body::<Report>()) {
            self.reported(body.slot, body.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_comes_beside_words_stays_where_it_is() {
        let (operator, own) = Socket::pair().unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let program = Message::new(
            0,
            &Program {
                slot: 1,
                number: 7,
                port: 0,
            },
        );
        let other = Message::new(0, &Running::default());
        let circuits = Place::Circuits(3);
        operator.send(&other, &[]).unwrap();
        assert!(matches!(
            said(circuits, &own),
            Ok(Some((_, Some(fds)))) if fds.is_empty()
        ));
        let refused = seqpacket::Error::Malformed(Misdeed::Descriptors);
        for (place, message, fds, gives) in [
            (circuits, &program, vec![pipe.as_fd()], true),
            (circuits, &program, vec![], false),
            (circuits, &other, vec![pipe.as_fd()], false),
            (Place::Meter(3), &program, vec![pipe.as_fd()], false),
            (
                Place::Seated(Seat::Fabric),
                &other,
                vec![pipe.as_fd()],
                false,
            ),
        ] {
            operator.send(message, &fds).unwrap();
            match said(place, &own) {
                Ok(Some((_, None))) => assert!(gives),
                Err(error) => assert!(!gives && error == refused),
                other => panic!("{other:?}"),
            }
            // For whoever is sent to throw it away.
            assert_eq!(own.peek_word().unwrap().unwrap().1, !fds.is_empty());
            own.skip().unwrap();
        }
        assert!(matches!(said(circuits, &own), Ok(None)));
    }
}
