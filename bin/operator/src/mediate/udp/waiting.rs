//! Calls that wait for a datagram go on; and where a datagram socket is put in a program.

use super::*;
use crate::receivers::{LOOK, Receives};
use notify::filter::MEDIATED;
use notify::{Outcome, Target};
use rustix::event::Timespec;
use std::os::fd::BorrowedFd;
use std::time::Duration;

impl Mediator {
    /// What is readable when a datagram has come for a call that waits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receivers(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        self.datagrams.receivers.watched()
    }

    /// How long nothing is to be done about those that wait; `None`: for as long as may be.
    pub(in crate::mediate) fn receivers_sleep(&self) -> Option<Timespec> {
        let receivers = self.datagrams.receivers.sleep(Instant::now());
        let unclaimed = self.is_to_look().then_some(LOOK);
        const SOON: Duration = Duration::from_millis(5);
        let is_late = self.outside.is_late() || self.relays.is_late();
        let outside = is_late.then_some(SOON);
        let listings = self.listings.due(Instant::now());
        let sleep = receivers
            .into_iter()
            .chain(unclaimed)
            .chain(self.crossings.is_timed().then_some(LOOK))
            .chain(outside)
            .chain(listings)
            .chain(self.next_timeout())
            .chain(self.rings_sleep())
            .chain(self.holders_sleep())
            .chain(self.hunts_sleep())
            .min()?;
        Timespec::try_from(sleep).ok()
    }

    /// What was accepted for somebody who was gone by then waits for the next accept, and ends
    /// with its listener; who waits for room ends, or where it waits: of that nobody tells, and who
    /// is connected, or waits, would wait for ever.
    fn is_to_look(&self) -> bool {
        let for_room = || self.waits.any(Why::Room);
        let waits = || for_room() || self.crossings.has_waiting() || self.relays.are_awaited();
        (!self.unclaimed.is_empty() || waits()) && guard!("circuits-orphans")
    }

    /// How long until the next of those that wait has waited enough.
    fn next_timeout(&self) -> Option<Duration> {
        let next = self.waits.next_due()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Who has waited for as long as its socket says is told so.
    fn timeouts_tick(&mut self, find: Find<'_>) {
        if self.waits.next_due().is_none() || !guard!("circuits-timeouts") {
            return;
        }
        for waits in self.waits.overdue(Instant::now()) {
            if let Some((slot, listener)) = find(waits.program)
                && let Some((_, errno)) = waits.until
            {
                let begun = self.starts();
                self.tells_late(listener, &waits.call, waits.until.map(|it| it.0), errno);
                self.done_for(slot, begun);
            }
            self.done_with(waits.note);
        }
    }

    /// Its time is over. Where a signal has ended it, the kernel may begin it again.
    fn tells_late(
        &mut self,
        listener: &Listener,
        call: &Notification,
        over: Option<Instant>,
        errno: Errno,
    ) {
        let told = heard(listener.answer(call.id, Err(errno)));
        if let Some(over) = over.filter(|_| !told) {
            self.late.ended(call, over, Instant::now());
        }
    }

    fn unclaimed_tick(&mut self, find: Find<'_>) {
        let now = Instant::now();
        let looked = self.unclaimed_looked;
        let due = looked.is_none_or(|looked| now >= looked + LOOK);
        if due && self.is_to_look() {
            self.unclaimed_looked = Some(now);
            self.sweep_of(false);
            self.relays.tick();
            self.wake(Also::All, find);
        }
    }

    /// Those go on for which a datagram came; the others have their turns in between.
    pub fn receivers_ready(&mut self, find: Find<'_>) {
        let turn = Spending::begins();
        for note in self.datagrams.receivers.ready() {
            if turn.lasts() > SLOW {
                break;
            }
            let Some(waits) = self.datagrams.receivers.take(note) else {
                continue;
            };
            let Some((slot, listener)) = find(waits.program) else {
                self.done_with(waits.note);
                continue;
            };
            let begun = self.starts();
            if !listener.is_live(waits.call.id) {
                self.done_with(waits.note);
                self.done_for(slot, begun);
                continue;
            }
            let came = match self.attempt(slot, waits.program, (waits.note, &waits.call), listener)
            {
                // Another had it. It waits on, not anew.
                Came::Receives { fd, .. } => Came::Receives {
                    fd,
                    until: waits.until,
                },
                came => came,
            };
            self.write();
            self.finish(waits.program, waits.note, waits.call, listener, came);
            self.done_for(slot, begun);
        }
    }

    /// Those whose time is over are told; those that a signal ended are forgotten.
    pub fn receivers_tick(&mut self, find: Find<'_>) {
        self.timeouts_tick(find);
        self.unclaimed_tick(find);
        self.outside_tick();
        self.crossings_tick(find);
        self.holders_tick(find);
        self.rings_tick();
        self.listings_tick();
        if self.datagrams.receivers.is_empty() {
            return;
        }
        for waits in self.datagrams.receivers.overdue(Instant::now()) {
            if let Some((slot, listener)) = find(waits.program) {
                let begun = self.starts();
                self.tells_late(listener, &waits.call, waits.until, Errno::AGAIN);
                self.done_for(slot, begun);
            }
            self.done_with(waits.note);
        }
        let waits = |it: &Receives| waits(it, find);
        let receivers = &mut self.datagrams.receivers;
        for ended in receivers.ended(Instant::now(), waits) {
            self.done_with(ended.note);
        }
    }

    /// Datagrams from this socket that found no room at their receiver's: counted on the sender, as a switch
    /// does.
    pub(in crate::mediate) fn finds_no_room(&self, cookie: u64, datagrams: u64) {
        if let (Some(notes), Some(socket)) = (&self.notes, self.table.socket(cookie))
            && guard!("circuits-queue-full")
        {
            notes.counts_dropped(socket.endpoint(), DropReason::QueueFull, datagrams);
        }
    }

    /// Those of an endpoint that a signal ended are forgotten at once: of others' a port is not.
    pub(in crate::mediate) fn receivers_ended_of(&mut self, slot: u32, find: Find<'_>) {
        let receivers = &mut self.datagrams.receivers;
        for ended in receivers.ended_of(slot, |it| waits(it, find)) {
            self.done_with(ended.note);
        }
    }

    pub(in crate::mediate) fn receivers_gone(&mut self, program: u32) {
        let receivers = &mut self.datagrams.receivers;
        for ended in receivers.gone(program) {
            self.done_with(ended.note);
        }
    }

    /// Puts a datagram socket at the highest free number at which messages are mediated, and
    /// answers with it; whether it was heard. What another thread opens meanwhile is at the
    /// lowest free number, so seldom here.
    pub(in crate::mediate) fn put_datagram(
        &mut self,
        call: &Notification,
        listener: &Listener,
        made: &Made,
        closes: bool,
    ) -> bool {
        let number = self.put_high(call, listener, made, closes);
        match number {
            Ok(None) => false,
            Ok(Some(number)) => {
                let place = place::of_thread(call.thread, number);
                self.table.place(made.cookie, place);
                self.write();
                let put = Put::of(listener, call.id, number);
                self.strays.puts(made.cookie, call, &put);
                put.is_heard()
            }
            Err(errno) => heard(listener.answer(call.id, Err(errno))),
        }
    }

    fn put_high(
        &self,
        call: &Notification,
        listener: &Listener,
        made: &Made,
        closes: bool,
    ) -> Result<Option<u32>, Errno> {
        let Ok(target) = Target::open(call.thread) else {
            return Ok(None);
        };
        if !listener.is_live(call.id) {
            return Ok(None);
        }
        let before = notify::copying();
        for number in MEDIATED.rev() {
            // What it has there is long in closing: as if it had no number left.
            if circuits::is_enough(notify::copying() - before) {
                return Err(Errno::MFILE);
            }
            match target.take_socket(number.cast_signed()) {
                Err(Errno::BADF) => {}
                Ok(_) | Err(Errno::NOTSOCK) => continue,
                Err(errno) => return Err(errno),
            }
            match listener.install_at(call.id, made.fd.as_fd(), closes, number) {
                Ok(Outcome::Done(number)) => return Ok(Some(number)),
                Ok(Outcome::Gone) => return Ok(None),
                // Higher than the program's own limit.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                Err(error) => {
                    let number = error.raw_os_error();
                    return Err(number.map_or(Errno::NFILE, Errno::from_raw_os_error));
                }
            }
        }
        Err(Errno::MFILE)
    }
}

/// Whether a call still waits.
fn waits(it: &Receives, find: Find<'_>) -> bool {
    let found = find(it.program);
    found.is_some_and(|(_, listener)| listener.is_live(it.call.id))
}
