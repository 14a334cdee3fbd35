//! The sockets of one tenant.

use crate::address::parse_bind;
use crate::binding::conflicts;
use crate::options::{ADDRESS_NO_PORT, SOMAXCONN};
use crate::record::{RECORD, Slot, decode, encode};
use crate::sockets::Sockets;
use crate::{
    Addresses, Carrier, Endpoint, Errno, Facts, Family, Ip, Kind, Outcome, Pending, Socket, State,
};
use guard::guard;

/// Ports that are given out, as Linux's `ip_local_port_range`.
const EPHEMERAL: u16 = 32768;
/// How many.
const EPHEMERALS: u16 = 60999 - EPHEMERAL + 1;
/// The first port that needs no privilege.
const UNPRIVILEGED: u16 = 1024;

/// How much a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sockets; more are `ENFILE`, as where the whole system is out of them.
    pub sockets: u32,
    /// Connections that wait to be accepted; more are `ENOBUFS`.
    pub pending: u32,
}

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its cookie.
    pub cookie: u64,
    /// The name of its AF_UNIX socket.
    pub name: [u8; 16],
    /// Its queue is full: who connects waits.
    pub full: bool,
}

/// The sockets of one tenant.
#[derive(Debug, PartialEq)]
pub struct Table {
    pub(crate) limits: Limits,
    pub(crate) endpoints: Vec<Addresses>,
    pub(crate) sockets: Sockets,
}

impl Table {
    /// An empty one, of these endpoints.
    #[must_use]
    pub fn new(limits: Limits, endpoints: Vec<Addresses>) -> Self {
        Self {
            limits,
            endpoints,
            sockets: Sockets::new(limits.sockets, limits.pending),
        }
    }

    /// One from the records of another, and the slots whose records are nonsense. Those are
    /// empty now, and [`changed`](Self::changed) says so.
    pub fn restore<'a>(
        limits: Limits,
        endpoints: Vec<Addresses>,
        records: impl IntoIterator<Item = (u32, &'a [u8; RECORD])>,
    ) -> (Self, Vec<u32>) {
        let mut table = Self::new(limits, endpoints);
        let (mut pending, mut rejected) = (Vec::new(), Vec::new());
        let slots = limits.sockets.saturating_add(limits.pending) as usize;
        for (at, bytes) in records.into_iter().take(slots) {
            match decode(bytes) {
                Some(Slot::Empty) => {}
                // After the listeners at which they wait.
                Some(Slot::Pending(it)) => pending.push((at, it)),
                Some(slot @ Slot::Socket(it))
                    if table.admits(&it) && table.sockets.fits(at, &slot) =>
                {
                    table.sockets.put(at, slot);
                }
                _ => rejected.push(at),
            }
        }
        for (at, it) in pending {
            let slot = Slot::Pending(it);
            let listener = table.sockets.socket(it.listener);
            let may = listener.is_some_and(|socket| table.may_wait(socket, &it.pending));
            if may && table.sockets.fits(at, &slot) {
                table.sockets.put(at, slot);
            } else {
                rejected.push(at);
            }
        }
        table.sockets.unchanged();
        for at in &rejected {
            // What another record has put there stays.
            let slot = *table.sockets.slot(*at);
            table.sockets.put(*at, slot);
        }
        (table, rejected)
    }

    /// Whether a record's socket can be among those that are here.
    fn admits(&self, socket: &Socket) -> bool {
        let Some(own) = self.endpoints.get(socket.endpoint as usize) else {
            return false;
        };
        let listens = matches!(socket.state, State::Listening { .. });
        let clash = listens
            && self
                .sockets
                .listeners(socket.endpoint, socket.local.port)
                .any(|(_, other)| conflicts(socket, &socket.local.ip, other));
        // As on Linux what has no connection outlives its address: nothing reaches it until that comes back.
        (socket.remote().is_none() || own.bindable(&socket.local.ip)) && !clash
    }

    /// The next slot that has changed, once each: its [`record`](Self::record) is to be
    /// written to the page.
    pub fn changed(&mut self) -> Option<u32> {
        self.sockets.changed()
    }

    /// The record of a slot; all zero where there is nothing.
    #[must_use]
    pub fn record(&self, slot: u32) -> [u8; RECORD] {
        encode(self.sockets.slot(slot))
    }

    /// How many slots there are.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.limits.sockets.saturating_add(self.limits.pending)
    }

    /// A socket.
    #[must_use]
    pub fn socket(&self, cookie: u64) -> Option<&Socket> {
        self.sockets.find(cookie).map(|(_, it)| it)
    }

    /// The addresses of an endpoint.
    #[must_use]
    pub fn addresses(&self, endpoint: u32) -> &[Ip] {
        let own = self.endpoints.get(endpoint as usize);
        own.map_or(&[], Addresses::all)
    }

    /// All sockets.
    pub fn all(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.all_sockets()
    }

    /// The other end of a connection. Others may have the same addresses and ports: what
    /// another tenant's has, what was accepted before and its program keeps, what a proxy let in.
    pub fn other_ends(&self, cookie: u64) -> impl Iterator<Item = &Socket> {
        let own = self.socket(cookie).copied().filter(|it| it.crossing == 0);
        let own = own.and_then(|own| Some((own, own.remote()?)));
        own.into_iter().flat_map(move |(own, remote)| {
            let here = move |at: u32, it: &Addresses| match at == own.endpoint {
                true => it.local(&remote.ip),
                false => it.own(&remote.ip),
            };
            let endpoints = (0..).zip(&self.endpoints);
            let endpoints = endpoints.filter(move |(at, it)| here(*at, it));
            endpoints
                .flat_map(move |(at, _)| {
                    let (here, there) = (remote.port, own.local.port);
                    self.sockets.holders_to(Kind::Stream, at, here, there)
                })
                .map(|(_, socket)| socket)
                .filter(move |it| {
                    it.state == State::Connected && it.local == remote && it.remote == own.local
                })
                .filter(move |it| is_joined(&own, it) && it.crossing == 0)
        })
    }

    /// Notes whom a connected datagram socket, or a stream that is begun, leads to in this compartment, by a number of
    /// the operator's, less than the greatest; none: to nobody of here, or it is not known.
    pub fn link(&mut self, cookie: u64, to: Option<u32>) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && socket.leads()
            && socket.linked() != to
        {
            socket.linked = to.map_or(0, |to| to.saturating_add(1));
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Notes where the operator found a socket: which thread had it at which number, say.
    pub fn place(&mut self, cookie: u64, place: u64) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && socket.place != place
        {
            socket.place = place;
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Notes that what this socket has begun waits with this token: not its cookie, as it is a meter's end that waits, whose cookie
    /// that is; of one that was accepted from across an agreement, the cookie of the meter's end.
    pub fn waits_as(&mut self, cookie: u64, token: u64) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && socket.kind == Kind::Stream
            && (socket.generation != 0 || socket.crossing != 0)
            && matches!(socket.state, State::Connecting | State::Connected)
        {
            socket.token = token;
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Notes that a connection is to end, whatever is allowed: of a stream that is connected, until it is not.
    pub fn condemn(&mut self, cookie: u64) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && socket.kind == Kind::Stream
            && socket.state == State::Connected
        {
            socket.is_condemned = true;
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Notes by what the bytes of a connection go that this socket has begun, and since when
    /// it is there. `since` 0: as it was noted.
    pub fn carry(&mut self, cookie: u64, carrier: Carrier, since: u64) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && matches!(socket.state, State::Connecting | State::Connected)
            && (socket.generation != 0
                || socket.crossing != 0
                || socket.is_let_in() && carrier == Carrier::Proxy)
        {
            socket.carrier = carrier;
            if since != 0 {
                socket.since = since;
            }
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Notes that a connection crosses an agreement, by its tag on this side, and by what its bytes
    /// go, since when: of either of its ends. Its other end is in another compartment's table.
    /// `inode`: of one that was accepted, where it lives in another namespace. `crossing` 0: it does not,
    /// of one that was begun.
    pub fn cross(&mut self, cookie: u64, crossing: u16, carrier: Carrier, since: u64, inode: u32) {
        if let Ok((at, mut socket)) = self.find(cookie)
            && socket.kind == Kind::Stream
            && match socket.generation {
                0 => socket.state == State::Connected && crossing != 0,
                _ => matches!(socket.state, State::Connecting | State::Connected),
            }
        {
            let inode = if crossing == 0 { 0 } else { inode };
            (socket.crossing, socket.inode) = (crossing, inode);
            (socket.carrier, socket.since) = (carrier, since);
            self.sockets.put(at, Slot::Socket(socket));
        }
    }

    /// Whether a connection of an endpoint from `local` to `remote` is there, or waits to be
    /// accepted at a socket of its.
    #[must_use]
    pub fn is_taken(&self, endpoint: u32, local: &Endpoint, remote: &Endpoint) -> bool {
        let (here, there) = (local.port, remote.port);
        let mut holders = (self.sockets).holders_to(Kind::Stream, endpoint, here, there);
        let mut waiting = (self.sockets.listeners(endpoint, here))
            .flat_map(|(at, _)| self.sockets.queue(at))
            .map(|(_, queued)| queued.pending);
        holders.any(|(_, it)| it.local == *local && it.remote() == Some(*remote))
            || waiting.any(|it| it.client == *remote && it.local == *local)
    }

    /// Places that are kept for connections from across agreements, with the cookies of the
    /// listening sockets that they are at.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &Pending)> {
        self.all_waiting()
            .filter(|(_, pending)| pending.crossing != 0)
    }

    fn all_waiting(&self) -> impl Iterator<Item = (u64, &Pending)> {
        let listeners = self.sockets.cookies();
        listeners.flat_map(|it| self.waiting(it).map(move |pending| (it, pending)))
    }

    /// Connections that proxies let in and that wait to be accepted, with the cookies of the listening sockets that they
    /// are at.
    pub fn relayed(&self) -> impl Iterator<Item = (u64, &Pending)> {
        self.all_waiting().filter(|(_, pending)| pending.relayed)
    }

    /// How many sockets there are, and how many connections wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.sockets.count(), self.sockets.pending())
    }

    /// The endpoint that has `ip`, as `from` sees it: what is loopback's is its own.
    #[must_use]
    pub fn destination(&self, from: u32, ip: &Ip) -> Option<u32> {
        if self.endpoints.get(from as usize)?.local(ip) {
            return Some(from);
        }
        let at = self.endpoints.iter().position(|it| it.own(ip))?;
        u32::try_from(at).ok()
    }

    pub(crate) fn find(&self, cookie: u64) -> Result<(u32, Socket), Errno> {
        self.sockets
            .find(cookie)
            .map(|(at, it)| (at, *it))
            .ok_or(Errno::EBADF)
    }

    pub(crate) fn own(&self, endpoint: u32) -> Result<&Addresses, Errno> {
        self.endpoints.get(endpoint as usize).ok_or(Errno::EINVAL)
    }

    /// A new socket of an endpoint, of a user.
    ///
    /// # Errors
    /// `ENFILE`: as many as may be. `EINVAL`: no such endpoint, or the cookie is known.
    pub fn create(
        &mut self,
        cookie: u64,
        endpoint: u32,
        family: Family,
        uid: u32,
    ) -> Result<(), Errno> {
        self.add(Socket::new(cookie, endpoint, family, uid))
    }

    /// A new datagram socket, and the name that its AF_UNIX socket is bound to.
    ///
    /// # Errors
    /// As for [`create`](Self::create); `EINVAL` too where the name is another's.
    pub fn create_datagram(
        &mut self,
        cookie: u64,
        endpoint: u32,
        family: Family,
        name: [u8; 16],
    ) -> Result<(), Errno> {
        let mut socket = Socket::new(cookie, endpoint, family, 0);
        (socket.kind, socket.name) = (Kind::Datagram, name);
        self.add(socket)
    }

    /// A new socket in the place of another, bound as that is and with its options, which is neither connected
    /// nor listens.
    ///
    /// # Errors
    /// As for [`create`](Self::create); `EBADF`: there is no such other.
    pub fn create_anew(&mut self, cookie: u64, other: u64) -> Result<(), Errno> {
        let (_, mut socket) = self.find(other)?;
        socket.release();
        (socket.cookie, socket.place) = (cookie, 0);
        self.add(socket)
    }

    fn add(&mut self, socket: Socket) -> Result<(), Errno> {
        self.own(socket.endpoint)?;
        let slot = Slot::Socket(socket);
        let at = self.sockets.free_socket().ok_or(Errno::ENFILE)?;
        if !self.sockets.fits(at, &slot) {
            return Err(Errno::EINVAL);
        }
        self.sockets.put(at, slot);
        Ok(())
    }

    /// `bind` to the address in these bytes. `privileged`: ports below 1024 are allowed;
    /// `chance`: a random number, for port 0.
    ///
    /// # Errors
    /// As Linux's, in its order: the address, the privilege, a second time, the port.
    pub fn bind(
        &mut self,
        cookie: u64,
        address: &[u8],
        privileged: bool,
        chance: u32,
    ) -> Result<(), Errno> {
        let (at, mut socket) = self.find(cookie)?;
        let Endpoint { ip, port } = parse_bind(socket.family, socket.options.v6only(), address)?;
        if !self.own(socket.endpoint)?.bindable(&ip) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if (1..UNPRIVILEGED).contains(&port) && !privileged {
            return Err(Errno::EACCES);
        }
        if socket.held() {
            return Err(Errno::EINVAL);
        }
        // IP_BIND_ADDRESS_NO_PORT: connect chooses.
        let later = port == 0 && socket.options.flag(ADDRESS_NO_PORT);
        let port = match port {
            0 if later => 0,
            0 => self
                .ephemeral(&socket, &ip, chance)
                .ok_or(Errno::EADDRINUSE)?,
            _ if self.conflict(at, &socket, &ip, port) => return Err(Errno::EADDRINUSE),
            _ => {
                socket.port_locked = true;
                port
            }
        };
        socket.address_locked |= ip != socket.family.any();
        socket.local = Endpoint { ip, port };
        socket.state = if later { State::Fresh } else { State::Bound };
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// The sockets that keep one from the port of this address, of which it must have that one.
    pub fn in_the_way(&self, cookie: u64, address: &[u8]) -> impl Iterator<Item = &Socket> {
        let found = self.find(cookie).ok().and_then(|(at, socket)| {
            let named = parse_bind(socket.family, socket.options.v6only(), address);
            let certain = named.ok().filter(|it| it.port != 0)?;
            Some(self.conflicting(at, socket, certain))
        });
        found.into_iter().flatten()
    }

    /// Whether another has the port.
    fn conflict(&self, at: u32, socket: &Socket, ip: &Ip, port: u16) -> bool {
        let wanted = Endpoint { ip: *ip, port };
        self.conflicting(at, *socket, wanted).next().is_some()
    }

    fn conflicting(
        &self,
        at: u32,
        socket: Socket,
        wanted: Endpoint,
    ) -> impl Iterator<Item = &Socket> {
        let holders = self
            .sockets
            .holders(socket.kind, socket.endpoint, wanted.port);
        let others = holders.filter(move |(other, _)| *other != at);
        let others = others.map(|(_, it)| it);
        others.filter(move |it| conflicts(&socket, &wanted.ip, it))
    }

    /// A port for a socket that binds to `ip`: that nobody has whose address overlaps, nor
    /// would share it. Looks at each of them once at most.
    pub(crate) fn ephemeral(&self, socket: &Socket, ip: &Ip, chance: u32) -> Option<u16> {
        let mut alone = *socket;
        alone.options = socket.options.only_v6only();
        ports(chance).find(|port| !self.conflict(u32::MAX, &alone, ip, *port))
    }

    /// `listen`. `name`: under which its AF_UNIX socket listens, if it did not yet.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it carries datagrams. `EINVAL`: it is connected. `EADDRINUSE`: another listens there, or no port is left.
    pub fn listen(
        &mut self,
        cookie: u64,
        backlog: i32,
        name: [u8; 16],
        chance: u32,
    ) -> Result<(), Errno> {
        let (at, mut socket) = self.find(cookie)?;
        if socket.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let backlog = backlog.cast_unsigned().min(SOMAXCONN.unsigned_abs());
        match socket.state {
            State::Connecting | State::Connected => return Err(Errno::EINVAL),
            State::Listening { .. } => {}
            State::Bound => {
                if self.conflict(at, &socket, &socket.local.ip, socket.local.port) {
                    return Err(Errno::EADDRINUSE);
                }
                socket.name = name;
            }
            State::Fresh => {
                let port = self.ephemeral(&socket, &socket.local.ip, chance);
                socket.local.port = port.ok_or(Errno::EADDRINUSE)?;
                socket.name = name;
            }
        }
        socket.state = State::Listening { backlog };
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// `getsockname`.
    ///
    /// # Errors
    /// `EBADF`: no such socket.
    pub fn getsockname(&self, cookie: u64) -> Result<(Family, Endpoint), Errno> {
        let (_, socket) = self.find(cookie)?;
        Ok((socket.family, socket.local))
    }

    /// `getpeername`.
    ///
    /// # Errors
    /// `ENOTCONN`: it is not connected yet, or no more.
    pub fn getpeername(&self, cookie: u64) -> Result<(Family, Endpoint), Errno> {
        let (_, socket) = self.find(cookie)?;
        let peer = socket.facts().peer.ok_or(Errno::ENOTCONN)?;
        Ok((socket.family, peer))
    }

    /// `setsockopt`.
    ///
    /// # Errors
    /// `EBADF`: no such socket.
    pub fn set_option(
        &mut self,
        cookie: u64,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<Outcome, Errno> {
        let (at, mut socket) = self.find(cookie)?;
        let facts = socket.facts();
        let outcome = socket.options.set(&facts, level, name, value);
        if outcome == Outcome::Accepted {
            self.sockets.put(at, Slot::Socket(socket));
        }
        Ok(outcome)
    }

    /// `getsockopt`.
    ///
    /// # Errors
    /// `EBADF`: no such socket.
    pub fn read_option(
        &self,
        cookie: u64,
        level: i32,
        name: i32,
        room: i32,
    ) -> Result<Outcome, Errno> {
        let (at, socket) = self.find(cookie)?;
        let facts = Facts {
            waiting: u32::try_from(self.sockets.queued_all(at)).unwrap_or(u32::MAX),
            ..socket.facts()
        };
        Ok(socket.options.read(&facts, level, name, room))
    }
}

/// The ephemeral ports, from one that chance picks.
pub(crate) fn ports(chance: u32) -> impl Iterator<Item = u16> {
    let first = (chance % u32::from(EPHEMERALS)) as u16;
    (first..EPHEMERALS).chain(0..first).map(|it| EPHEMERAL + it)
}

/// Whether one of these began what the other accepted.
fn is_joined(one: &Socket, other: &Socket) -> bool {
    let (began, accepted) = match one.is_initiator() {
        true => (one, other),
        false => (other, one),
    };
    let is_it = began.is_initiator() && !accepted.is_initiator();
    is_it && accepted.token == began.token() || !guard!("circuits-joined")
}
