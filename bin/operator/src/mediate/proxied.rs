//! Connections from and to those who have packets.

use super::*;
use command::verbs;
use seqpacket::Socket;
use std::time::Duration;

/// So many that share a port are tried, of which the first may be closed.
const CLOSED: usize = 64;
/// So long a proxy is heard before others have their turn.
const HEARD_FOR: Duration = Duration::from_micros(200);

impl Mediator {
    /// A slot's endpoint has a proxy from now on, or another one.
    pub fn link_proxy(&mut self, slot: u32, link: Socket) {
        self.relays.link(slot, link, self.table.all());
        self.lead_outside(slot);
    }

    /// It has none any more: who waits for it is told.
    pub fn unlink_proxy(&mut self, slot: u32, find: Find<'_>) -> Option<Socket> {
        let link = self.relays.unlink(slot);
        self.outside.forget(slot);
        self.wake(Also::Of(Why::Relay), find);
        link
    }

    /// What a slot's proxy says, before others have their turn.
    ///
    /// # Errors
    /// It is gone.
    pub fn hear_proxy(&mut self, slot: u32, find: Find<'_>) -> Result<(), ()> {
        let begun = self.starts();
        let heard = self.hears(slot);
        // What its peers have this process do is that endpoint's, as what its programs do.
        self.done_for(slot, begun);
        heard?;
        self.wake(Also::Of(Why::Relay), find);
        Ok(())
    }

    fn hears(&mut self, slot: u32) -> Result<(), ()> {
        let spending = Spending::begins();
        // Bound: a turn's time. What it has said besides, and others may have it say, waits.
        while spending.lasts() <= HEARD_FOR || !guard!("circuits-proxy-turn") {
            let Some(said) = self.relays.hear(slot)? else {
                break;
            };
            if let Some(notes) = &self.notes {
                notes.beats();
            }
            match said {
                Said::Relayed => {}
                Said::Came(body) => {
                    self.came(slot, &body);
                    self.write();
                }
                Said::Heard(body) => self.heard_outside(slot, &body),
                Said::Quiet(body) => self.quiet_outside(slot, &body),
            }
        }
        Ok(())
    }

    /// Somebody has connected to a program by packets, which its switch has judged: it is one
    /// more who waits to be accepted.
    fn came(&mut self, slot: u32, body: &verbs::Came) {
        if self.let_in(slot, body).is_err() {
            self.relays.refuse(slot, body.id);
        }
    }

    fn let_in(&mut self, slot: u32, body: &verbs::Came) -> Result<(), Errno> {
        let local = Endpoint {
            ip: body.to,
            port: body.to_port as u16,
        };
        let mut outcome = Err(Errno::CONNREFUSED);
        let mut closed = false;
        for _ in 0..CLOSED {
            // Of those that share a port (SO_REUSEPORT) any; and another than the proxy knows of, if that one is closed.
            let found = self.table.find_listener(slot, local, chance::number());
            let at = found.map_or(body.at, |listener| listener.cookie);
            outcome = self.let_in_at(slot, body, (at, local), &mut closed);
            if outcome != Err(Errno::CONNREFUSED) || found.is_none() {
                break;
            }
        }
        if closed {
            self.settle_relays();
        }
        outcome
    }

    fn let_in_at(
        &mut self,
        slot: u32,
        body: &verbs::Came,
        (at, local): (u64, Endpoint),
        closed: &mut bool,
    ) -> Result<(), Errno> {
        let socket = self.table.socket(at).ok_or(Errno::CONNREFUSED)?;
        // A proxy is another's word: it lets in to its own endpoint's programs alone.
        if socket.endpoint() != slot && guard!("circuits-came") {
            return Err(Errno::CONNREFUSED);
        }
        let name = socket.name();
        let made = sockets::stream(true)?;
        let pending = Pending {
            client: Endpoint {
                ip: body.from,
                port: body.from_port as u16,
            },
            local,
            token: made.cookie,
            crossing: 0,
            relayed: true,
        };
        let is_beyond = self.table.is_full(at);
        let queued = self.table.enqueue_beyond(at, pending, BEYOND_BACKLOG);
        queued.map_err(number)?;
        if is_beyond {
            self.passes(at);
        }
        self.write();
        if let Err(errno) = sockets::connects(&made.fd, name) {
            let _ = self.table.withdraw(at, made.cookie);
            if errno == Errno::CONNREFUSED {
                // It was closed, which nobody is told of.
                let _ = self.table.closed(at);
                *closed = true;
            }
            return Err(errno);
        }
        self.relays.join(slot, body.id, &made.fd);
        Ok(())
    }

    /// Has a slot's proxy connect.
    pub(super) fn relay(
        &mut self,
        slot: u32,
        cookie: u64,
        local: Endpoint,
        remote: Endpoint,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let place = call.place(call.numbers()[0].cast_unsigned());
        self.table.place(cookie, place);
        self.table.carry(cookie, Carrier::Proxy, 0);
        self.relays.ask(slot, cookie, local, remote)?;
        Ok(Came::Waits {
            at: cookie,
            why: Why::Relay,
        })
    }

    /// What came of it, also when the call comes again after a signal.
    pub(super) fn relayed(&mut self, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        self.takes(true);
        let joined = call.fd().map(|fd| self.relays.joined(cookie, fd));
        self.takes(false);
        match joined? {
            None => Ok(Came::Waits {
                at: cookie,
                why: Why::Relay,
            }),
            Some(Ok(())) => {
                self.table.connected(cookie).map_err(number)?;
                Ok(Came::To(Ok(0)))
            }
            Some(Err(errno)) => {
                let _ = self.table.connect_failed(cookie);
                Err(errno)
            }
        }
    }

    /// Proxies listen for who listens, and connect for who is still there.
    pub(super) fn settle_relays(&mut self) {
        let table = &self.table;
        let listens = |cookie: u64| {
            let state = table.socket(cookie).map(|socket| socket.state());
            matches!(state, Some(circuit::State::Listening { .. }))
        };
        let lives = |cookie| table.socket(cookie).is_some();
        self.relays.retain(lives, listens);
        self.settle_outside();
    }
}
