//! Listeners: who is found, what waits, what is accepted; and the end of sockets.

use crate::address::is_v4;
use crate::binding::fit;
use crate::queue::Queued;
use crate::record::Slot;
use crate::{Carrier, Endpoint, Errno, Family, Listener, Pending, Socket, State, Table};
use guard::guard;

impl Table {
    /// Who listens at `to`, an address of `endpoint`. Of a group that shares a port, `hash`
    /// picks. `None`: the connection is refused.
    #[must_use]
    pub fn find_listener(&self, endpoint: u32, to: Endpoint, hash: u32) -> Option<Listener> {
        if !self.endpoints.get(endpoint as usize)?.local(&to.ip) {
            return None;
        }
        let fitting = || {
            let all = self.sockets.listeners(endpoint, to.port);
            all.filter_map(|(at, it)| Some((fit(it, &to.ip)?, at, it)))
        };
        let best = fitting().map(|(fit, ..)| fit).max()?;
        let group = fitting().filter(|(fit, ..)| *fit == best).count();
        let pick = hash as usize % group.max(1);
        let (_, at, socket) = fitting().filter(|(fit, ..)| *fit == best).nth(pick)?;
        Some(Listener {
            cookie: socket.cookie,
            name: socket.name,
            full: self.full(at, socket),
        })
    }

    /// Whether as many wait as may: Linux's queue takes one more than the backlog.
    fn full(&self, at: u32, socket: &Socket) -> bool {
        self.full_beyond(at, socket, (0, 0))
    }

    /// The same, so many more allowed, for who comes by this agreement, or (0) for the tenant's own:
    /// places kept for those of others, who may never come, take nothing from these.
    fn full_beyond(&self, at: u32, socket: &Socket, (more, crossing): (usize, u16)) -> bool {
        match socket.state {
            State::Listening { backlog } => {
                self.waiting_for(at, crossing) > (backlog as usize).saturating_add(more)
                    || !self.has_part(at, socket.endpoint)
            }
            _ => true,
        }
    }

    /// A connection goes to the end of a listener's queue.
    ///
    /// # Errors
    /// `ECONNREFUSED`: it does not listen. `EINVAL`: not where it listens. `EAGAIN`: its queue is full, or
    /// has its part of what the tenant may have waiting, and who connects waits. `ENOBUFS`: the tenant has as
    /// many waiting as it may.
    pub fn enqueue(&mut self, listener: u64, pending: Pending) -> Result<(), Errno> {
        self.enqueue_beyond(listener, pending, 0)
    }

    /// The same, of one that cannot wait: so many more than the backlog have a place.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue).
    pub fn enqueue_beyond(
        &mut self,
        listener: u64,
        pending: Pending,
        more: usize,
    ) -> Result<(), Errno> {
        let (at, socket) = self.find(listener).map_err(|_| Errno::ECONNREFUSED)?;
        if !matches!(socket.state, State::Listening { .. }) {
            return Err(Errno::ECONNREFUSED);
        }
        if !self.may_wait(&socket, &pending) {
            return Err(Errno::EINVAL);
        }
        if self.full_beyond(at, &socket, (more, pending.crossing)) {
            return Err(Errno::EAGAIN);
        }
        let slot = self.sockets.free_pending().ok_or(Errno::ENOBUFS)?;
        let last = self.sockets.queue(at).next_back();
        // From what waits alone, so that it is the same after a crash.
        let sequence = match last {
            Some((_, it)) => it.sequence.checked_add(1).ok_or(Errno::ENOBUFS)?,
            None => 0,
        };
        let queued = Queued {
            listener: at,
            cookie: listener,
            sequence,
            pending,
        };
        self.sockets.put(slot, Slot::Pending(queued));
        Ok(())
    }

    /// Whether one more may wait at a socket: at an endpoint as many as there is room for others, and
    /// at one of its sockets as many as are left for its others.
    fn has_part(&self, at: u32, endpoint: u32) -> bool {
        let room = (self.limits.pending as usize).saturating_sub(self.sockets.pending());
        let left = room.saturating_sub(self.sockets.waiting(endpoint));
        self.sockets.queued_all(at) < left || !guard!("circuits-pending-apart")
    }

    /// Whether a connection can be one to this listener.
    pub(crate) fn may_wait(&self, listener: &Socket, pending: &Pending) -> bool {
        let fits = |ip| listener.family == Family::V6 || is_v4(ip);
        self.own(listener.endpoint)
            .is_ok_and(|own| own.local(&pending.local.ip))
            && pending.local.port == listener.local.port
            && fits(&pending.local.ip)
            && fits(&pending.client.ip)
    }

    /// Whether as many wait at a socket as may; of one that does not listen it is said too.
    #[must_use]
    pub fn is_full(&self, listener: u64) -> bool {
        self.sockets
            .find(listener)
            .is_none_or(|(at, socket)| self.full(at, socket))
    }

    /// The connections of this token wait nowhere any more.
    pub fn withdraw_all(&mut self, token: u64) {
        for slot in self.sockets.of_token(token) {
            if !matches!(self.sockets.slot(slot), Slot::Pending(it) if it.pending.crossing != 0) {
                self.sockets.put(slot, Slot::Empty);
            }
        }
    }

    /// Who was to come by an agreement does not: there is a place less at a listener.
    pub fn withdraw_crossing(&mut self, listener: u64, crossing: u16, token: u64) {
        if let Ok((at, _)) = self.find(listener)
            && let Some((slot, _)) = self.waiting_at(at, crossing, Some(token))
        {
            self.sockets.put(slot, Slot::Empty);
        }
    }

    /// Nothing waits at a listener any more: its AF_UNIX socket has nothing. Who comes by an
    /// agreement is not there yet, and keeps its place.
    pub fn forget_waiting(&mut self, listener: u64) {
        if let Ok((at, _)) = self.find(listener) {
            let waiting = self.sockets.queue(at);
            let waiting = waiting.filter(|(_, it)| it.pending.crossing == 0);
            let waiting: Vec<u32> = waiting.map(|(slot, _)| slot).collect();
            for slot in waiting {
                self.sockets.put(slot, Slot::Empty);
            }
        }
    }

    /// Whether a connection waits at a listener that is there.
    #[must_use]
    pub fn has_waiting(&self, listener: u64) -> bool {
        let at = self.sockets.find(listener).map(|(at, _)| at);
        at.is_some_and(|at| self.sockets.queued(at, 0) > 0)
    }

    /// How many of the tenant's own wait at a listener, and of those who come by an agreement.
    #[must_use]
    pub fn waiting_by(&self, listener: u64, crossing: u16) -> usize {
        let at = self.sockets.find(listener).map(|(at, _)| at);
        at.map_or(0, |at| self.waiting_for(at, crossing))
    }

    fn waiting_for(&self, at: u32, crossing: u16) -> usize {
        let own = self.sockets.queued(at, 0);
        match crossing {
            0 => own,
            by => own + self.sockets.queued(at, by),
        }
    }

    /// Something has come to this socket that the table does not know of.
    pub fn stir(&mut self, cookie: u64) {
        self.sockets.stir(cookie);
    }

    /// The next socket of which, or at which, something has changed since it was asked last.
    pub fn stirred(&mut self) -> Option<u64> {
        self.sockets.stirred()
    }

    /// What waits at a listener, the first first.
    pub fn waiting(&self, listener: u64) -> impl Iterator<Item = &Pending> {
        let at = self.sockets.find(listener).map(|(at, _)| at);
        at.into_iter()
            .flat_map(|at| self.sockets.queue(at).map(|(_, it)| &it.pending))
    }

    /// A connection that waited does no more: its AF_UNIX socket could not be connected.
    ///
    /// # Errors
    /// `EBADF`: no such listener. `ENOENT`: nothing of this token waits there.
    pub fn withdraw(&mut self, listener: u64, token: u64) -> Result<(), Errno> {
        let (at, _) = self.find(listener)?;
        let (slot, _) = self.waiting_at(at, 0, Some(token)).ok_or(Errno::ENOENT)?;
        self.sockets.put(slot, Slot::Empty);
        Ok(())
    }

    /// Tokens are told apart by the agreement that they come by: those of another side are as it
    /// likes.
    fn waiting_at(&self, at: u32, crossing: u16, token: Option<u64>) -> Option<(u32, Pending)> {
        let queue = self.sockets.queue(at).map(|(slot, it)| (slot, it.pending));
        let mut queue = queue.filter(|(_, it)| it.crossing == crossing);
        queue.find(|(_, it)| token.is_none_or(|token| token == it.token))
    }

    /// A socket was accepted: what waited first, or with this token, is it. It has the
    /// listener's options, family and user.
    ///
    /// # Errors
    /// `EINVAL`: it does not listen, or the new cookie is known. `EAGAIN`: nothing of that
    /// kind waits. `ENFILE`: as many sockets as may be; it waits on.
    pub fn accepted(
        &mut self,
        listener: u64,
        cookie: u64,
        token: Option<u64>,
    ) -> Result<Pending, Errno> {
        self.accepted_by(listener, cookie, 0, token)
    }

    /// The same, of the one that has come by this agreement.
    ///
    /// # Errors
    /// As for [`accepted`](Self::accepted).
    pub fn crossed(
        &mut self,
        listener: u64,
        cookie: u64,
        token: u64,
        crossing: u16,
    ) -> Result<Pending, Errno> {
        self.accepted_by(listener, cookie, crossing, Some(token))
    }

    fn accepted_by(
        &mut self,
        listener: u64,
        cookie: u64,
        crossing: u16,
        token: Option<u64>,
    ) -> Result<Pending, Errno> {
        let (at, parent) = self.find(listener)?;
        if !matches!(parent.state, State::Listening { .. }) {
            return Err(Errno::EINVAL);
        }
        let (slot, pending) = self.waiting_at(at, crossing, token).ok_or(Errno::EAGAIN)?;
        let mut child = Socket::new(cookie, parent.endpoint, parent.family, parent.uid);
        child.options = parent.options;
        // The address is as chosen as the listener's, the port is not.
        child.address_locked = parent.address_locked;
        child.local = pending.local;
        child.remote = pending.client;
        child.state = State::Connected;
        child.crossing = pending.crossing;
        child.token = pending.token;
        if pending.relayed && guard!("circuits-let-in") {
            child.carrier = Carrier::Proxy;
        }
        let new = self.sockets.free_socket().ok_or(Errno::ENFILE)?;
        if !self.sockets.fits(new, &Slot::Socket(child)) {
            return Err(Errno::EINVAL);
        }
        // The socket first: who stops between the two has it twice rather than not at all.
        self.sockets.put(new, Slot::Socket(child));
        self.sockets.put(slot, Slot::Empty);
        Ok(pending)
    }

    /// A socket is gone, with its port and what waited at it.
    ///
    /// # Errors
    /// `EBADF`: no such socket.
    pub fn closed(&mut self, cookie: u64) -> Result<(), Errno> {
        let (at, _) = self.find(cookie)?;
        self.forget_queue(at);
        self.sockets.put(at, Slot::Empty);
        Ok(())
    }

    /// Those that are not `live` are gone.
    pub fn retain(&mut self, mut live: impl FnMut(u64) -> bool) {
        let gone: Vec<u64> = self.sockets.cookies().filter(|it| !live(*it)).collect();
        for cookie in gone {
            // It was found a moment ago.
            let _ = self.closed(cookie);
        }
    }

    pub(crate) fn forget_queue(&mut self, at: u32) {
        let waiting: Vec<u32> = self.sockets.queue(at).map(|(slot, _)| slot).collect();
        for slot in waiting {
            self.sockets.put(slot, Slot::Empty);
        }
    }
}
