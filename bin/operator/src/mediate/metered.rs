//! Circuits that go by the meter, and those that are cut because somebody says so.

use super::*;
use crate::meters;
use rustix::event::Timespec;
use seqpacket::Socket;
use telemetry::circuits::{CUT_BYTES, CUT_DONE, CUT_HIDDEN, CUT_UNKNOWN};

impl Mediator {
    /// Whether some endpoint's circuits are metered.
    pub fn wants_meter(&self) -> bool {
        self.meters.are_wanted()
    }

    /// There is a meter from now on, or another one: who waits for it goes on.
    pub fn link_meter(&mut self, link: Socket, find: Find<'_>) {
        self.meters.link(link);
        self.wake(find);
    }

    /// There is none any more.
    pub fn unlink_meter(&mut self) -> Option<Socket> {
        self.meters.unlink()
    }

    /// Whether it is gone.
    pub fn meter_is_gone(&self) -> bool {
        self.meters.hear().is_err()
    }

    /// Who waits for a meter that does not come is told.
    pub fn meter_tick(&mut self, find: Find<'_>) {
        if self.meters.is_awaited() && self.meters.is_overdue() {
            self.wake(find);
            self.meters.forget_awaited();
        }
    }

    /// How long this process may sleep.
    pub fn sleep(&self) -> Option<Timespec> {
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let own = self.meters.is_awaited().then_some(second);
        let receivers = self.receivers_sleep();
        match (own, receivers) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        }
    }

    /// A connect that needs a meter where none is.
    pub(super) fn without_meter(&mut self, cookie: u64) -> Result<Came, Errno> {
        if self.meters.is_overdue() {
            return Err(Errno::NETDOWN);
        }
        self.meters.awaits();
        Ok(Came::Waits {
            at: cookie,
            why: Why::Meter,
        })
    }

    /// Connects what will be the meter's to who listens.
    ///
    /// # Errors
    /// As where a program's socket is connected there: nothing was done.
    pub(super) fn connect_far(&mut self, cookie: u64, name: [u8; 16]) -> Result<OwnedFd, Errno> {
        let far = sockets::stream(true)?;
        sockets::connects(&far.fd, name)?;
        // From here on somebody waits at the listener, whatever becomes of the rest: what is
        // noted of it stays, or who is accepted next would be taken for another.
        self.table.carry(cookie, Carrier::Meter, 0);
        self.write();
        Ok(far.fd)
    }

    /// Connects a program's socket to the meter, which carries it from then on.
    ///
    /// # Errors
    /// The meter does not take it: what waits at the listener is accepted, and ends.
    pub(super) fn connect_near(
        &mut self,
        cookie: u64,
        slots: [u32; 2],
        fd: &OwnedFd,
        far: &OwnedFd,
    ) -> Result<(), Errno> {
        let near = self.relays.circuit(fd)?;
        // One that is not sent is closed with this: both programs hear the end.
        let carried = self.meters.carry(cookie, slots, [&near, far]);
        carried.or(Err(Errno::CONNRESET))
    }

    /// A connect that the operator before began, and that is not done: nobody waits at the
    /// listener for it, unless that was noted.
    pub(super) fn withdraw_unconnected(&mut self, cookie: u64) {
        let metered = self.table.socket(cookie).is_some_and(meters::is_metered);
        if !metered || !guard!("circuits-metered-waits") {
            self.table.withdraw_all(cookie);
        }
    }

    /// Whether a circuit goes past a rate that one of its endpoints has.
    pub(super) fn evades(&self, slots: [u32; 2], cookie: u64) -> bool {
        let carrier = self.table.socket(cookie).map(|socket| socket.carrier());
        let unmetered = matches!(carrier, Some(Carrier::Kernel | Carrier::Ring));
        unmetered && self.meters.limits(slots) && guard!("circuits-metered-evade")
    }

    /// Has the meter end a circuit that goes by it: wherever its programs have it, it is over.
    pub(super) fn end_metered(&self, socket: &circuit::Socket) -> bool {
        meters::is_metered(socket) && self.meters.end(socket.cookie())
    }

    /// Cuts a circuit, and says on this page what came of it.
    pub fn cut_asked(&mut self, id: u64, page: OwnedFd) {
        // What is closed is no circuit any more.
        self.sweep();
        let outcome = self.cut(id);
        if let Ok(page) = Words::map(page, CUT_BYTES) {
            page.publish(0, outcome);
        }
    }

    /// Ends a circuit for both its programs.
    pub(super) fn cut(&mut self, id: u64) -> u64 {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let socket = self.table.socket(id).copied();
        let socket = socket.filter(|it| it.is_initiator() && it.kind() == Kind::Stream);
        let (Some(image), Some(socket)) = (image, socket) else {
            return CUT_UNKNOWN;
        };
        let ended = match self.end_metered(&socket) {
            true => self.table.disconnect(id).is_ok(),
            false => circuits::cut(&mut self.table, &image, id),
        };
        self.write();
        match ended {
            true => CUT_DONE,
            false => CUT_HIDDEN,
        }
    }
}
