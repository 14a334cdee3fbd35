//! What waits at a listening socket: in the kernel's queue, and elsewhere, with places of nobody's in that queue for it.

use super::*;
use crate::put::{not_put, put_at};

/// Connections of an endpoint at most that wait because who accepted them was gone.
pub(super) const PUT_BACK: usize = 64;

/// What is to be put into the program that accepts it.
pub(super) struct Accepted {
    /// The listening socket.
    pub at: u64,
    pub made: Made,
    pub closes: bool,
    /// That socket again, if its queue has one of nobody's too many.
    pub queue: Option<OwnedFd>,
}

impl Mediator {
    /// A connection is put into a program, and is the answer; whether that was heard.
    pub(super) fn put_accepted(
        &mut self,
        note: u16,
        call: &Notification,
        listener: &Listener,
        accepted: Accepted,
    ) -> bool {
        let Accepted { at, made, .. } = accepted;
        self.puts(note, made.cookie, call.thread);
        let number = self.strays.place(made.cookie, call);
        let put = match put_at(listener, call.id, &made.fd, accepted.closes, number) {
            Ok(Some(number)) => {
                // Before its program looks there again.
                if let Some(queue) = accepted.queue {
                    self.hides_one(at, &queue);
                }
                Put::of(listener, call.id, number)
            }
            not => {
                self.puts_nowhere(note, call.thread);
                not_put(listener, call.id, not.err())
            }
        };
        self.strays.puts(made.cookie, call, &put);
        match put {
            Put::Heard(Ok(number)) => {
                let place = self.targets.place(call.thread, number);
                self.table.place(made.cookie, place);
                self.write();
                self.unclaimed.is_over(made.cookie);
            }
            // As with TCP it waits on, also where the program has no room for another descriptor.
            Put::Heard(Err(_)) | Put::Unheard(_) => {
                self.puts_nowhere(note, call.thread);
                self.puts_back(at, made);
            }
        }
        put.is_heard()
    }

    /// It is in no program: who follows does not take it for one that its program has.
    fn puts_nowhere(&self, note: u16, thread: u32) {
        if guard!("circuits-put-nowhere") {
            self.puts(note, 0, thread);
        }
    }

    /// A connection that was taken for nobody is for whoever accepts later at this listening socket.
    pub(super) fn puts_back(&mut self, listener: u64, made: Made) {
        let of = |cookie| self.table.socket(cookie).map(circuit::Socket::endpoint);
        let here = of(listener);
        // Of those that came by agreements it is known before how many there may be.
        let crosses = |cookie| {
            let socket = self.table.socket(cookie);
            socket.is_some_and(|it| it.crossing() != 0)
        };
        let back = |at, cookie| of(at) == here && !crosses(cookie);
        let many = self.unclaimed.count(back) >= PUT_BACK;
        match many && !crosses(made.cookie) {
            true => self.unclaimed.is_over(made.cookie),
            false => self.waits_elsewhere(listener, made, Unclaimed::waits_first),
        }
    }

    /// A connection that is in no queue of the kernel's is for who accepts at this listening
    /// socket.
    pub(super) fn waits_to_be_accepted(&mut self, listener: u64, made: Made) {
        self.waits_elsewhere(listener, made, Unclaimed::waits);
    }

    fn waits_elsewhere(&mut self, listener: u64, made: Made, waits: fn(&mut Unclaimed, u64, Made)) {
        let socket = self.table.socket(listener).copied();
        let listens = |it: &circuit::Socket| matches!(it.state(), circuit::State::Listening { .. });
        let Some(socket) = socket.filter(listens) else {
            return self.unclaimed.is_over(made.cookie);
        };
        waits(&mut self.unclaimed, listener, made);
        self.table.stir(listener);
        let shown = self.shown.get(&listener).copied().unwrap_or(0);
        if shown < self.unclaimed.places(listener) {
            self.shows_one_more(&socket);
        }
    }

    /// A listening socket is readable by one more, of nobody's: who polls it would not know of
    /// one that waits elsewhere.
    pub(super) fn shows_one_more(&mut self, listener: &circuit::Socket) {
        if let Ok(nobody) = sockets::stream(true)
            && guard!("circuits-put-back")
        {
            // Of a full queue it is readable.
            let shown = sockets::connects(&nobody.fd, listener.name());
            if shown.is_ok() {
                *self.shown.entry(listener.cookie()).or_default() += 1;
            }
        }
    }

    /// One that the operator before was about to put into a program, and did not.
    pub(super) fn put_back(&mut self, cookie: u64) {
        if let Some((listener, made)) = self.unclaimed.frees(cookie) {
            self.puts_back(listener, made);
        }
    }

    /// The next connection of a listener's own queue, which knows better than the table what waits
    /// there, and in which order: the operator before may have died after it had taken one out, or
    /// before it wrote that one has come. Nobody's stands for one that waits elsewhere.
    pub(super) fn take_in(
        &mut self,
        listener: u64,
        fd: &OwnedFd,
        nonblock: bool,
    ) -> Result<Option<Made>, Errno> {
        // It came before all that is in the kernel's queue, and is in it no more: who has no number for it takes no other out.
        if guard!("circuits-put-back-first")
            && let Some(made) = self.elsewhere(listener, nonblock, Unclaimed::take_due)?
        {
            return Ok(Some(made));
        }
        while let Some(made) = self.next_queued(listener, fd, nonblock)? {
            if let Some(made) = made {
                return Ok(Some(made));
            }
            if let Some(made) = self.elsewhere(listener, nonblock, Unclaimed::take)? {
                return Ok(Some(made));
            }
        }
        self.table.forget_waiting(listener);
        self.elsewhere(listener, nonblock, Unclaimed::take)
    }

    /// The next of a listener's own queue, if there is one; none of it if that is nobody's.
    fn next_queued(
        &mut self,
        listener: u64,
        fd: &OwnedFd,
        nonblock: bool,
    ) -> Result<Option<Option<Made>>, Errno> {
        let came = match self.accepts_natively {
            true => sockets::accepts_at_once(fd, nonblock, || self.takes(true)),
            false => sockets::accepts(fd, nonblock, || self.takes(true)),
        };
        let Some(fd) = came.inspect_err(|_| self.takes(false))? else {
            // Somebody else has it.
            self.takes(false);
            return Ok(None);
        };
        let kept = self.unclaimed.keeps(By::Listener(listener), fd);
        self.takes(false);
        let made = kept?;
        match self.takes_in(listener, &made) {
            Ok(()) => {
                self.counts_one(&made);
                Ok(Some(Some(made)))
            }
            Err(errno) => {
                self.unclaimed.is_over(made.cookie);
                match errno {
                    circuit::Errno::EAGAIN => {
                        if let Some(shown) = self.shown.get_mut(&listener) {
                            *shown = shown.saturating_sub(1);
                        }
                        Ok(Some(None))
                    }
                    // Nobody waits by this name any more: it is closed.
                    errno => Err(number(errno)),
                }
            }
        }
    }

    /// Whether a listening socket is readable by more of nobody's than it is to be.
    pub(super) fn shows_too_many(&self, listener: u64) -> bool {
        let shown = self.shown.get(&listener);
        shown.is_some_and(|shown| *shown > self.unclaimed.places(listener))
    }

    /// What was shown for those whose turn had come goes with the last of them; or what is before it in the queue has its turn. Not
    /// before that one is in its program: who polls by edges would hear of what is shown again.
    pub(super) fn hides_one(&mut self, listener: u64, fd: &OwnedFd) {
        if !self.shows_too_many(listener) {
            return;
        }
        match self.next_queued(listener, fd, true) {
            Ok(Some(Some(made))) => self.unclaimed.waits_next(listener, made),
            Ok(Some(None)) => self.unclaimed.comes_due(listener),
            Ok(None) | Err(_) => {}
        }
        self.table.stir(listener);
    }

    /// The next connection that waits for a listening socket and is in no queue of the kernel's.
    fn elsewhere(
        &mut self,
        listener: u64,
        nonblock: bool,
        take: fn(&mut Unclaimed, u64) -> Option<Made>,
    ) -> Result<Option<Made>, Errno> {
        let Some(made) = take(&mut self.unclaimed, listener) else {
            return Ok(None);
        };
        // There is room for another.
        self.table.stir(listener);
        sockets::blocks(&made.fd, !nonblock)?;
        Ok(Some(made))
    }

    /// What was accepted is the socket of who began it.
    pub(super) fn takes_in(&mut self, listener: u64, made: &Made) -> Result<(), circuit::Errno> {
        let began = sockets::began(&made.fd).filter(|_| guard!("circuits-accepted"));
        let accepted = self.table.accepted(listener, made.cookie, began)?;
        if accepted.relayed {
            self.table.carry(made.cookie, Carrier::Proxy, monotonic());
        }
        Ok(())
    }
}
