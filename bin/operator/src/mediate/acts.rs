//! What is done for a program: its socket is made, bound, connected, listens, accepts, is shut.

use super::holders::Holders;
use super::*;
use crate::crossings::CONNECT;
use crate::decide::Ruling;
use crate::tally::Seen;

impl Mediator {
    pub(super) fn socket(&mut self, slot: u32, call: &Call<'_>) -> Result<Came, Errno> {
        let [domain, kind, protocol] = call.numbers();
        let (family, nonblock, cloexec) = match circuit::asked(domain, kind, protocol) {
            Asked::Stream {
                family,
                nonblock,
                cloexec,
            } => (family, nonblock, cloexec),
            Asked::Datagram {
                family,
                nonblock,
                cloexec,
            } => return self.make_datagram(slot, family, nonblock, cloexec),
            Asked::Refused(errno) => {
                return Err(self.counts_refused(slot, number(errno), DropReason::SocketKind));
            }
        };
        self.room_for_a_socket(slot)?;
        let made = sockets::stream(nonblock)?;
        let created = self.table.create(made.cookie, slot, family, 0);
        created.map_err(number)?;
        self.counts_one(&made);
        Ok(Came::Socket(made, cloexec))
    }

    /// What its program hears; that it was refused for this is counted.
    pub(super) fn counts_refused(&self, slot: u32, errno: Errno, reason: DropReason) -> Errno {
        if let Some(notes) = &self.notes {
            notes.counts_refused(slot, reason);
        }
        errno
    }

    /// Whether a program may make one more.
    pub(super) fn room_for_a_socket(&mut self, slot: u32) -> Result<(), Errno> {
        let room = self.room_for(slot);
        room.map_err(|errno| self.counts_refused(slot, errno, DropReason::SocketLimit))
    }

    /// Whether an endpoint may have one more socket.
    pub(super) fn room_for(&mut self, slot: u32) -> Result<(), Errno> {
        if self.table.counts().0 >= self.sweeps_at {
            self.sweep_grown();
        }
        if self.is_narrow(slot) {
            self.sweep_at_times();
        }
        if !self.has_room_for(slot) {
            self.sweeps();
        }
        if !self.has_room_for(slot) {
            self.sweep_at_times();
        }
        match self.has_room_for(slot) || !guard!("circuits-sockets") {
            true => Ok(()),
            false => Err(Errno::NFILE),
        }
    }

    /// Whether its next would have little room for what nobody has read, and many of its sockets may be closed by now.
    fn is_narrow(&self, slot: u32) -> bool {
        let of = |counts: &BTreeMap<u32, u32>| counts.get(&slot).copied().unwrap_or(0);
        let (has, counted) = (of(&self.counts), of(&self.counted));
        // Where many of them live, not for each.
        let more = match sockets::WIDE.checked_sub(counted) {
            Some(room @ 1..) => room.min(sockets::WIDE / 2),
            _ => sockets::WIDE / 2,
        };
        has >= sockets::WIDE && has >= counted + more && guard!("circuits-narrow")
    }

    /// The same, by what is known of those that are closed.
    pub(super) fn has_room_for(&self, slot: u32) -> bool {
        self.has_room(slot, 1, 1)
    }

    /// The same, of a part of what it may have.
    pub(super) fn has_room(&self, slot: u32, part: u32, of: u32) -> bool {
        let most = self.limits.get(&slot).copied().unwrap_or(0);
        let has = self.counts.get(&slot).copied().unwrap_or(0);
        has < most * part / of && self.table.counts().0 < LIMITS.sockets as usize
    }

    /// The same call again, as a signal has the kernel make it whose handler restarts calls, is told what the first came to.
    pub(super) fn bind_of(&mut self, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        let (address, thread) = (call.address()?, call.thread());
        let is_again = self
            .bound
            .is_again(thread, cookie, &address, Instant::now());
        let done = match self.bind(cookie, &address) {
            Err(Errno::INVAL) if is_again => Ok(Came::To(Ok(0))),
            done => done,
        };
        if let Ok(Came::To(Ok(_))) = done {
            self.bound.done(thread, cookie, &address, Instant::now());
        }
        done
    }

    pub(super) fn bind(&mut self, cookie: u64, address: &[u8]) -> Result<Came, Errno> {
        let chance = chance::number();
        let bind = |this: &mut Mediator| this.table.bind(cookie, address, true, chance);
        let mut done = bind(self);
        if done == Err(circuit::Errno::EADDRINUSE) {
            // Whose port it was may be gone.
            done = match self.who_holds(cookie, address) {
                Holders::Gone => bind(self),
                Holders::Live => done,
                Holders::Unknown => {
                    return Ok(Came::Waits {
                        at: cookie,
                        why: Why::Port,
                    });
                }
                Holders::None => self.once_swept(circuit::Errno::EADDRINUSE, bind),
            };
        }
        match done {
            // The operator before did it.
            Err(circuit::Errno::EINVAL) if self.again => {}
            done => done.map_err(number)?,
        }
        Ok(Came::To(Ok(0)))
    }

    /// What fails so is tried again without the sockets that are closed: of those of here at once,
    /// of those that came by agreements at times, for nobody fails as often as it likes at the cost
    /// of asking for them.
    pub(super) fn once_swept<T>(
        &mut self,
        errno: circuit::Errno,
        attempt: impl Fn(&mut Mediator) -> Result<T, circuit::Errno>,
    ) -> Result<T, circuit::Errno> {
        let failed = |done: &Result<T, circuit::Errno>| done.as_ref().err() == Some(&errno);
        let mut done = attempt(self);
        if failed(&done) {
            self.sweeps();
            done = attempt(self);
        }
        if failed(&done) && self.sweep_at_times() {
            done = attempt(self);
        }
        done
    }

    pub(super) fn listen(&mut self, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        let [fd, backlog, _] = call.numbers();
        // It has its name for good.
        let name = sockets::name(call.fd()?).map_or_else(secret, Ok)?;
        let chance = chance::number();
        let listen = |this: &mut Mediator| this.table.listen(cookie, backlog, name, chance);
        self.once_swept(circuit::Errno::EADDRINUSE, listen)
            .map_err(number)?;
        self.table.place(cookie, call.place(fd.cast_unsigned()));
        let socket = self.table.socket(cookie).ok_or(Errno::BADF)?;
        sockets::listens(call.fd()?, socket.name())?;
        self.relays.serve(socket);
        Ok(())
    }

    /// TCP's shutdown of a listening socket: it listens no more, who waits to accept is told, and
    /// what waited to be accepted is closed. Of any other the kernel does it.
    pub(super) fn shut(&mut self, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        let state = self.table.socket(cookie).map(|socket| socket.state());
        let [_, how, _] = call.numbers();
        let listens = matches!(state, Some(circuit::State::Listening { .. }));
        if !listens || !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return Ok(Came::Native);
        }
        if how == libc::SHUT_WR {
            return Err(Errno::NOTCONN);
        }
        self.stops_listening(cookie, call)?;
        Ok(Came::To(Ok(0)))
    }

    fn stops_listening(&mut self, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        self.table.disconnect(cookie).map_err(number)?;
        if !call.is_nonblocking()? {
            self.notes_at_call(UNBLOCKED | cookie);
        }
        // Bound: nobody is let in meanwhile.
        while sockets::accepts_at_once(call.fd()?, true, || {})?.is_some() {}
        self.unclaimed.retain(|at| at != cookie);
        self.shown.remove(&cookie);
        self.settle_relays();
        Ok(())
    }

    /// `connect` to AF_UNSPEC of a socket that is connected or listens. One of AF_UNIX stays so for good: the program has
    /// another in its place. Whoever has a copy of its descriptor keeps what it was.
    fn begins_anew(&mut self, slot: u32, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        self.room_for_a_socket(slot)?;
        let made = sockets::stream(call.is_nonblocking()?)?;
        let state = self.table.socket(cookie).map(|socket| socket.state());
        if matches!(state, Some(circuit::State::Listening { .. })) {
            self.stops_listening(cookie, call)?;
        }
        self.table
            .create_anew(made.cookie, cookie)
            .map_err(number)?;
        self.counts_one(&made);
        sockets::waits_as(&made.fd, call.fd()?)?;
        Ok(Came::Anew { was: cookie, made })
    }

    /// A call about a socket that is not in the table. Of a circuit all are made where this process makes its own.
    pub(super) fn foreign(&mut self, call: &mut Call<'_>) -> Result<Came, Errno> {
        if self.namespace.is_none() {
            let own = sockets::stream(true)?;
            self.namespace = sockets::namespace(&own.fd);
        }
        let own = self.namespace;
        // Accepted past this process, or none any more: what failed it may ask.
        let is_circuit = own.is_some() && sockets::namespace(call.fd()?) == own;
        if is_circuit && !call.asks_what_failed() && guard!("circuits-unknown") {
            return Err(Errno::NOTCONN);
        }
        let done = call.foreign()?;
        self.accepts_natively |=
            done.is_none() && (call.is(libc::SYS_accept) || call.is(libc::SYS_accept4));
        Ok(done.map_or(Came::Native, |value| Came::To(Ok(value))))
    }

    /// For who follows, of the call that is done.
    pub(super) fn notes_at_call(&self, what: u64) {
        if let Some(notes) = &self.notes {
            notes.puts(self.note, what);
        }
    }

    pub(super) fn connect(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let address = call.address()?;
        if !call.is_nonblocking()? {
            self.notes_at_call(UNBLOCKED | cookie);
        }
        self.asked = Some((cookie, address.clone()));
        if self.was_connected(cookie, &address) {
            return Ok(Came::To(Ok(0)));
        }
        let open = self.table.socket(cookie).is_some_and(|socket| {
            matches!(
                socket.state(),
                circuit::State::Connected | circuit::State::Listening { .. }
            )
        });
        let unspecified = (libc::AF_UNSPEC as u16).to_ne_bytes();
        if open && address.starts_with(&unspecified) {
            return self.begins_anew(slot, cookie, call);
        }
        if address.starts_with(&unspecified) && guard!("circuits-abandoned") {
            self.abandons(cookie);
        }
        if self.relays.is_asked(cookie) {
            let came = self.relayed(cookie, call);
            // Ports of the namespace that its other programs have this process does not know of.
            let is_own = |it: &circuit::Socket| it.state() == circuit::State::Fresh;
            let may_other = matches!(came, Err(Errno::ADDRINUSE))
                && self.table.socket(cookie).is_some_and(is_own);
            if !may_other || !self.relays.tries_another(cookie) {
                return came;
            }
        }
        if self.crossings.is_asked(cookie) && self.is_crossed(slot, cookie, (&address, call))? {
            return self.crossed(slot, cookie, call);
        }
        if let Some(state) = self.table.socket(cookie).map(|socket| socket.state()) {
            match state {
                // Done, or as good as done, before the operator before died.
                circuit::State::Connected if self.again => return Ok(Came::To(Ok(0))),
                circuit::State::Connecting if sockets::is_joined(call.fd()?) => {
                    self.table.connected(cookie).map_err(number)?;
                    // By what is allowed now: it may have been begun by an image of before.
                    self.review();
                    return Ok(Came::To(Ok(0)));
                }
                // Nobody else does anything meanwhile: it was begun, and not done.
                circuit::State::Connecting => {
                    let waits = self.table.socket(cookie).map(circuit::Socket::token);
                    self.table.withdraw_all(waits.unwrap_or(cookie));
                    let _ = self.table.connect_failed(cookie);
                }
                _ => {}
            }
        }
        let begin =
            |this: &mut Mediator| this.table.connect_begin(cookie, &address, chance::number());
        // Whose port it is bound to may have been connected there before, and be gone.
        let begun = self.once_swept(circuit::Errno::EADDRNOTAVAIL, begin);
        let (local, remote) = match begun.map_err(number)? {
            Connect::Disconnected => return Ok(Came::To(Ok(0))),
            Connect::To { local, remote, .. } => (local, remote),
        };
        self.table.carry(cookie, Carrier::Kernel, monotonic());
        let came = self.reach(slot, cookie, local, remote, call);
        match came {
            Ok(Came::To(Ok(_))) => {
                self.table.connected(cookie).map_err(number)?;
            }
            // Under way, from this very port.
            Ok(Came::Waits {
                why: Why::Relay | Why::Cross,
                ..
            }) => {}
            Ok(Came::Waits { why: Why::Room, .. }) => {
                let _ = self.table.connect_failed(cookie);
                // As TCP says it: a connect that took longer than its program would wait goes on, for all that is known.
                let patience = sockets::patience_to_connect(call.fd()?);
                let errno = patience.map_or(Errno::TIMEDOUT, |_| Errno::INPROGRESS);
                let until = deadline(patience.or(Some(CONNECT)));
                self.until = until.map(|until| (until, errno));
            }
            _ => {
                let _ = self.table.connect_failed(cookie);
            }
        }
        came
    }

    /// Whether a socket was connected to this very address by a call that nobody heard of.
    pub(super) fn was_connected(&mut self, cookie: u64, address: &[u8]) -> bool {
        let asked = self.unheard.remove(&cookie);
        asked.is_some_and(|asked| asked == address || !guard!("circuits-unheard"))
    }

    /// One of the tenant's own was let in: who waits there to come by an agreement is then, too. They would have no turn
    /// where the tenant's own are enough to take every place.
    fn passes_those_across(&mut self, at: u64) {
        if self.crossings.is_awaited(at) && guard!("circuits-passed-across") {
            self.waits.passes(at, true);
            self.table.stir(at);
        }
    }

    /// One that could not wait was let in beyond a listener's backlog.
    pub(super) fn passes(&mut self, at: u64) {
        if self.waits.first(at, Why::Room).is_some() {
            self.waits.passes(at, false);
            self.table.stir(at);
        }
        self.passes_those_across(at);
    }

    /// Connects a socket to whoever listens there, if it may.
    pub(super) fn reach(
        &mut self,
        slot: u32,
        cookie: u64,
        local: Endpoint,
        remote: Endpoint,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let seen = leaving(slot, local, remote);
        let decided = match self.destination(slot, local, remote) {
            Err(refused) if matches!(refused.errno, Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                return match self.leaves(slot, local, remote) {
                    Some(Ok(leaves)) => {
                        self.cross((slot, leaves.tag), cookie, [local, remote], call)
                    }
                    Some(Err(refused)) => Err(self.refuses(&seen, &refused)),
                    // Where no circuit leads packets may.
                    None if self.relays.has(slot) => self.relay(slot, cookie, local, remote, call),
                    // It comes again.
                    None if self.outside.is_led(slot) && refused.errno == Errno::HOSTUNREACH => {
                        Err(self.refuses(&seen, &decide::NO_PROXY))
                    }
                    None => Err(self.refuses(&seen, &refused)),
                };
            }
            Err(refused) => return Err(self.refuses(&seen, &refused)),
            Ok(decided) => decided,
        };
        let to = decided.slot;
        let carrier = self.carrier([slot, to]);
        let metered = carrier.is_metered();
        if metered && !self.meters.takes() {
            return self.without_meter(cookie);
        }
        self.room_at_meter(carrier, (slot, 0), remote.ip)?;
        self.table
            .place(cookie, call.place(call.numbers()[0].cast_unsigned()));
        // Bound: each listener that turns out to be gone is forgotten.
        for _ in 0..LIMITS.sockets {
            let chance = chance::number();
            let listener = self.table.find_listener(to, remote, chance);
            let Some(listener) = listener else {
                // A program without circuits may be there, in the same namespace as a proxy.
                let beside = self.relays.has(slot) && self.relays.has(to);
                return match beside {
                    true => self.relay(slot, cookie, local, remote, call),
                    false => Err(Errno::CONNREFUSED),
                };
            };
            let waits = Came::Waits {
                at: listener.cookie,
                why: Why::Room,
            };
            // Who must not wait is let in beyond the backlog: it could not be told later that it
            // is connected. Whoever waits is then, too, in its turn.
            let waits_for_room = !call.is_nonblocking()?;
            let more = match listener.full {
                false => 0,
                true if !waits_for_room => BEYOND_BACKLOG,
                true if self.waits.is_passed(listener.cookie, false) => BEYOND_BACKLOG,
                true => return Ok(waits),
            };
            // By what it comes to the listener: a meter's connection is another.
            let far = match metered {
                true => Some(sockets::stream(true)?),
                false => None,
            };
            let pending = Pending {
                client: local,
                local: remote,
                token: far.as_ref().map_or(cookie, |far| far.cookie),
                crossing: 0,
                relayed: false,
            };
            let queued = self.table.enqueue_beyond(listener.cookie, pending, more);
            match queued {
                // Its endpoint has as many that wait as it may, or the listener beyond its backlog.
                Err(circuit::Errno::ENOBUFS | circuit::Errno::EAGAIN) if waits_for_room => {
                    return Ok(waits);
                }
                queued => queued.map_err(number)?,
            }
            match waits_for_room {
                true => self.waits.catches_up(listener.cookie, false),
                false if more > 0 => self.passes(listener.cookie),
                false => {}
            }
            self.passes_those_across(listener.cookie);
            self.table.link(cookie, self.id_of(to));
            if far.is_some() && guard!("circuits-waits-as") {
                self.table.waits_as(cookie, pending.token);
            }
            self.write();
            let connected = match &far {
                Some(far) => {
                    let body = self.described(cookie, [slot, to], [local, remote]);
                    self.connect_metered((&body, carrier), far, (call.fd()?, listener.name))
                }
                None => sockets::connects_at_once(call.fd()?, call.flags()?, listener.name),
            };
            match connected {
                Ok(()) => {
                    // Inside one endpoint nobody asks.
                    if to != slot {
                        self.begins(&seen, decided.rules);
                    }
                    if metered {
                        self.meters.carries_one((slot, 0));
                    }
                    return Ok(Came::To(Ok(0)));
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => {
                    let _ = self.table.closed(listener.cookie);
                }
                // Of one that its program has connected past this process nobody waits there.
                Err(errno) => {
                    let _ = self.table.withdraw(listener.cookie, pending.token);
                    return match errno {
                        Errno::AGAIN if !call.is_nonblocking()? => Ok(waits),
                        errno => Err(errno),
                    };
                }
            }
        }
        Err(Errno::CONNREFUSED)
    }

    /// The endpoint that a connection goes to, and by which rules.
    pub(super) fn destination(
        &self,
        slot: u32,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<Decided, Refused> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let decided = self.decided(&image.ok_or(decide::NO_IMAGE)?, slot, local, remote)?;
        match decided.slot == slot || self.limits.contains_key(&decided.slot) {
            true => Ok(decided),
            false => Err(decide::NOBODY),
        }
    }

    /// It is told that rules let a connection begin.
    pub(super) fn begins(&mut self, seen: &Seen, rules: [Option<Ruling>; 2]) {
        if let Some(notes) = &mut self.notes {
            notes.begun(seen, rules);
        }
    }

    /// It is told what was refused; what its program hears.
    pub(super) fn refuses(&mut self, seen: &Seen, refused: &Refused) -> Errno {
        if let Some(notes) = &mut self.notes {
            notes.refused(seen, refused);
        }
        refused.errno
    }

    pub(super) fn accept(&mut self, cookie: u64, call: &mut Call<'_>) -> Result<Came, Errno> {
        let socket = self.table.socket(cookie).ok_or(Errno::BADF)?;
        if !matches!(socket.state(), circuit::State::Listening { .. }) {
            return Err(Errno::INVAL);
        }
        let (slot, family) = (socket.endpoint(), socket.family());
        // Who listened may have handed it on since.
        let place = call.place(call.numbers()[0].cast_unsigned());
        self.table.place(cookie, place);
        let (nonblock, closes) = call.accept_flags()?;
        if self.table.has_waiting(cookie) {
            self.room_for(slot)?;
        }
        // Who ends meanwhile leaves it as one that does not block.
        if self.accepts_natively && !call.is_nonblocking()? {
            self.notes_at_call(UNBLOCKED | cookie);
        }
        let Some(made) = self.take_in(cookie, call.fd()?, nonblock)? else {
            if call.is_nonblocking()? {
                return Err(Errno::AGAIN);
            }
            let until = deadline(sockets::patience(call.fd()?));
            self.until = until.map(|until| (until, Errno::AGAIN));
            return Ok(Came::Waits {
                at: cookie,
                why: Why::Accept,
            });
        };
        if self.unclaimed.has(cookie)
            && !sockets::is_readable(call.fd()?)?
            && let Some(socket) = self.table.socket(cookie).copied()
        {
            self.shown.remove(&cookie);
            self.shows_one_more(&socket);
        }
        let peer = self.table.getpeername(made.cookie).map(|(_, peer)| peer);
        if let Err(errno) = call.tell_name(family, peer.unwrap_or(NOBODY)) {
            match errno {
                Errno::INTR => self.puts_back(cookie, made),
                // As with TCP, the connection is over.
                _ => self.unclaimed.is_over(made.cookie),
            }
            return Err(errno);
        }
        let queue = match self.shows_too_many(cookie) {
            true => call.fd()?.try_clone().ok(),
            false => None,
        };
        Ok(Came::Accepted(Accepted {
            at: cookie,
            made,
            closes,
            queue,
        }))
    }
}

/// When who waits so long has waited enough.
fn deadline(patience: Option<Duration>) -> Option<Instant> {
    patience.and_then(|patience| Instant::now().checked_add(patience))
}

/// A connection as it is told of who begins it.
pub(super) fn leaving(slot: u32, local: Endpoint, remote: Endpoint) -> Seen {
    Seen {
        slot,
        inbound: false,
        peer: remote.ip,
        ports: [local.port, remote.port],
        protocol: decide::TCP,
    }
}
