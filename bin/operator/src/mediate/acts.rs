//! What is done for a program: its socket is made, bound, connected, listens, accepts, is shut.

use super::*;

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
            Asked::Refused(errno) => return Err(number(errno)),
        };
        self.room_for(slot)?;
        let made = sockets::stream(nonblock)?;
        let created = self.table.create(made.cookie, slot, family, 0);
        created.map_err(number)?;
        *self.counts.entry(slot).or_default() += 1;
        Ok(Came::Socket(made, cloexec))
    }

    /// Whether an endpoint may have one more socket.
    pub(super) fn room_for(&mut self, slot: u32) -> Result<(), Errno> {
        let most = self.limits.get(&slot).copied().unwrap_or(0);
        let has = |this: &Mediator| this.counts.get(&slot).copied().unwrap_or(0);
        let all = |this: &Mediator| this.table.counts().0 >= LIMITS.sockets as usize;
        if has(self) >= most || all(self) {
            self.sweep();
        }
        if (has(self) >= most || all(self)) && guard!("circuits-sockets") {
            return Err(Errno::NFILE);
        }
        Ok(())
    }

    pub(super) fn bind(&mut self, cookie: u64, address: &[u8]) -> Result<(), Errno> {
        let chance = self.chances.next();
        let bind = |this: &mut Mediator| this.table.bind(cookie, address, true, chance);
        match bind(self) {
            // The operator before did it.
            Err(circuit::Errno::EINVAL) if self.again => return Ok(()),
            // Whose port it was may be gone.
            Err(circuit::Errno::EADDRINUSE) => {
                self.sweep();
                bind(self)
            }
            done => done,
        }
        .map_err(number)
    }

    pub(super) fn listen(&mut self, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        let [_, backlog, _] = call.numbers();
        // It has its name for good.
        let name = sockets::name(call.fd()?).map_or_else(secret, Ok)?;
        let chance = self.chances.next();
        let listen = |this: &mut Mediator| this.table.listen(cookie, backlog, name, chance);
        match listen(self) {
            Err(circuit::Errno::EADDRINUSE) => {
                self.sweep();
                listen(self)
            }
            done => done,
        }
        .map_err(number)?;
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
        self.table.disconnect(cookie).map_err(number)?;
        // Bound: nobody is let in meanwhile.
        while sockets::accepts(call.fd()?, true)?.is_some() {}
        self.settle_relays();
        Ok(Came::To(Ok(0)))
    }

    pub(super) fn connect(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let address = call.address()?;
        if self.unheard.remove(&cookie) {
            return Ok(Came::To(Ok(0)));
        }
        // An AF_UNIX socket stays connected, and what waits at one that listens stays there: the
        // table would say otherwise, and the next connections would have others' names.
        let open = self.table.socket(cookie).is_some_and(|socket| {
            matches!(
                socket.state(),
                circuit::State::Connected | circuit::State::Listening { .. }
            )
        });
        let unspecified = (libc::AF_UNSPEC as u16).to_ne_bytes();
        if open && address.starts_with(&unspecified) {
            return Err(Errno::OPNOTSUPP);
        }
        if self.relays.is_asked(cookie) {
            return self.relayed(cookie, call);
        }
        if let Some(state) = self.table.socket(cookie).map(|socket| socket.state()) {
            let connected =
                |call: &Call<'_>| Ok::<_, Errno>(notify::name_of(call.fd()?.as_fd(), true).is_ok());
            match state {
                // Done, or as good as done, before the operator before died.
                circuit::State::Connected if self.again => return Ok(Came::To(Ok(0))),
                circuit::State::Connecting if connected(call)? => {
                    self.table.connected(cookie).map_err(number)?;
                    return Ok(Came::To(Ok(0)));
                }
                // Nobody else does anything meanwhile: it was begun, and not done.
                circuit::State::Connecting => {
                    self.withdraw_unconnected(cookie);
                    let _ = self.table.connect_failed(cookie);
                }
                _ => {}
            }
        }
        let begun = self
            .table
            .connect_begin(cookie, &address, self.chances.next());
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
                why: Why::Relay, ..
            }) => {}
            _ => {
                let _ = self.table.connect_failed(cookie);
            }
        }
        came
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
        let to = match self.destination(slot, local, remote) {
            // Where no circuit leads packets may.
            Err(Errno::HOSTUNREACH | Errno::NETUNREACH) if self.relays.has(slot) => {
                return self.relay(slot, cookie, local, remote, call);
            }
            to => to?,
        };
        let metered = self.meters.carries([slot, to]) && guard!("circuits-metered");
        if metered && !self.meters.is_linked() {
            return self.without_meter(cookie);
        }
        self.table
            .place(cookie, call.place(call.numbers()[0].cast_unsigned()));
        // Bound: each listener that turns out to be gone is forgotten.
        for _ in 0..LIMITS.sockets {
            let chance = self.chances.next();
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
            // is connected.
            let more = match listener.full {
                false => 0,
                true if call.is_nonblocking()? => BEYOND_BACKLOG,
                true => return Ok(waits),
            };
            let pending = Pending {
                client: local,
                local: remote,
                token: cookie,
            };
            let queued = self.table.enqueue_beyond(listener.cookie, pending, more);
            queued.map_err(number)?;
            self.write();
            let connected = match metered {
                true => match self.connect_far(cookie, listener.name) {
                    Ok(far) => {
                        self.connect_near(cookie, [slot, to], call.fd()?, &far)?;
                        Ok(())
                    }
                    Err(errno) => Err(errno),
                },
                false => sockets::connects(call.fd()?, listener.name),
            };
            match connected {
                Ok(()) | Err(Errno::ISCONN) => return Ok(Came::To(Ok(0))),
                Err(Errno::CONNREFUSED | Errno::NOENT) => {
                    let _ = self.table.closed(listener.cookie);
                }
                Err(errno) => {
                    let _ = self.table.withdraw(listener.cookie, cookie);
                    return match errno {
                        Errno::AGAIN => Ok(waits),
                        errno => Err(errno),
                    };
                }
            }
        }
        Err(Errno::CONNREFUSED)
    }

    /// The slot of the endpoint that a connection goes to.
    pub(super) fn destination(
        &self,
        slot: u32,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<u32, Errno> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let to = self.decided(&image.ok_or(Errno::NETDOWN)?, slot, local, remote)?;
        match to == slot || self.limits.contains_key(&to) {
            true => Ok(to),
            false => Err(Errno::HOSTUNREACH),
        }
    }

    pub(super) fn accept(&mut self, cookie: u64, call: &mut Call<'_>) -> Result<Came, Errno> {
        let socket = self.table.socket(cookie).ok_or(Errno::BADF)?;
        if !matches!(socket.state(), circuit::State::Listening { .. }) {
            return Err(Errno::INVAL);
        }
        let (slot, family) = (socket.endpoint(), socket.family());
        let (nonblock, closes) = call.accept_flags()?;
        let orphan = self.orphans.iter().position(|(at, _)| *at == cookie);
        let made = match orphan.map(|at| self.orphans.remove(at)) {
            Some((_, made)) => made,
            None => {
                if self.table.waiting(cookie).next().is_none() {
                    return match call.is_nonblocking()? {
                        true => Err(Errno::AGAIN),
                        false => Ok(Came::Waits {
                            at: cookie,
                            why: Why::Accept,
                        }),
                    };
                }
                self.room_for(slot)?;
                let Some(made) = sockets::accepts(call.fd()?, nonblock)? else {
                    // The note of it is older than the socket's queue: a death between the two.
                    self.table.forget_waiting(cookie);
                    return match call.is_nonblocking()? {
                        true => Err(Errno::AGAIN),
                        false => Ok(Came::Waits {
                            at: cookie,
                            why: Why::Accept,
                        }),
                    };
                };
                let accepted = self.table.accepted(cookie, made.cookie, None);
                accepted.map_err(number)?;
                *self.counts.entry(slot).or_default() += 1;
                made
            }
        };
        let peer = self.table.getpeername(made.cookie).map(|(_, peer)| peer);
        if let Err(errno) = call.tell_name(family, peer.unwrap_or(NOBODY)) {
            self.orphans.push((cookie, made));
            return Err(errno);
        }
        Ok(Came::Accepted {
            at: cookie,
            made,
            closes,
        })
    }
}
