//! Datagram sockets (UDP): how they are bound by use, connected and found.

use crate::address::{LOOPBACK4, is_any, is_v4, parse_destination, v4_destination};
use crate::binding::fit;
use crate::record::Slot;
use crate::route::route;
use crate::{Endpoint, Errno, Kind, Named, Socket, State, Table};

/// Who gets a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its cookie.
    pub cookie: u64,
    /// The name of its AF_UNIX socket.
    pub name: [u8; 16],
}

/// From where to where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Their source.
    pub local: Endpoint,
    /// Their destination.
    pub remote: Endpoint,
}

impl Table {
    /// What `connect` of a datagram socket names in these bytes.
    ///
    /// # Errors
    /// As Linux's `ip4_datagram_connect` and `ip6_datagram_connect`; of a stream `EINVAL`.
    pub fn datagram_peer(&self, cookie: u64, address: &[u8]) -> Result<Named, Errno> {
        let socket = self.datagram(cookie)?;
        v4_destination(socket.family, socket.options.v6only(), address).unwrap_or_else(|| {
            crate::parse_connect(socket.family, socket.options.v6only(), address)
        })
    }

    /// Where a datagram is sent to whose destination is in these bytes; `None`: to whom the
    /// socket is connected.
    ///
    /// # Errors
    /// As Linux's `udp_sendmsg` and `udpv6_sendmsg`: `EINVAL` for port 0 as well.
    pub fn datagram_to(&self, cookie: u64, address: &[u8]) -> Result<Option<Endpoint>, Errno> {
        let socket = self.datagram(cookie)?;
        parse_destination(socket.family, socket.options.v6only(), address)
    }

    /// Gives a socket a port that has none: what Linux does before it connects or sends, and
    /// whatever comes of that.
    ///
    /// # Errors
    /// `EAGAIN`: no port is left. `EINVAL`: it is a stream.
    pub fn bind_by_use(&mut self, cookie: u64, chance: u32) -> Result<(), Errno> {
        self.datagram(cookie)?;
        let (at, mut socket) = self.find(cookie)?;
        if socket.held() {
            return Ok(());
        }
        let port = self.ephemeral(&socket, &socket.local.ip, chance);
        socket.local.port = port.ok_or(Errno::EAGAIN)?;
        socket.state = State::Bound;
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// The way from a socket to `to`; its source may be another of its own addresses (`from`,
    /// by `IP_PKTINFO`).
    ///
    /// # Errors
    /// As Linux's routing: `ENETUNREACH`, also for groups and broadcasts, and where `from` is no
    /// address of the endpoint, which of IPv6 is `EINVAL`.
    pub fn way(&self, cookie: u64, to: Endpoint, from: Option<crate::Ip>) -> Result<Way, Errno> {
        let socket = self.datagram(cookie)?;
        let own = self.own(socket.endpoint)?;
        let bound = match from {
            Some(ip) if is_any(&ip) => socket.local.ip,
            Some(ip) if own.local(&ip) => ip,
            Some(ip) if is_v4(&ip) => return Err(Errno::ENETUNREACH),
            Some(_) => return Err(Errno::EINVAL),
            None => socket.local.ip,
        };
        let (from, ip) = route(&bound, own, &to.ip)?;
        Ok(Way {
            local: Endpoint {
                ip: from,
                port: socket.local.port,
            },
            remote: Endpoint { ip, port: to.port },
        })
    }

    /// The socket is connected that way, whatever it was connected to.
    ///
    /// # Errors
    /// `EINVAL`: it has no port, or the way is not its own.
    pub fn connect_datagram(&mut self, cookie: u64, way: Way) -> Result<(), Errno> {
        let (at, mut socket) = self.find(cookie)?;
        let fits = socket.kind == Kind::Datagram && socket.held();
        if !fits || way.local.port != socket.local.port || is_any(&way.local.ip) {
            return Err(Errno::EINVAL);
        }
        if is_any(&socket.local.ip) {
            socket.local.ip = way.local.ip;
        }
        socket.remote = way.remote;
        socket.linked = 0;
        socket.state = State::Connected;
        socket.generation = socket.generation.wrapping_add(1).max(1);
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// Who gets what goes this way to an endpoint: who is connected to the sender before who
    /// is not, the exact address before any. Of those that share a port, `hash` picks; of
    /// those that merely reuse an address the newest has it.
    #[must_use]
    pub fn find_receiver(&self, endpoint: u32, way: &Way, hash: u32) -> Option<Receiver> {
        if !self.endpoints.get(endpoint as usize)?.local(&way.remote.ip) {
            return None;
        }
        let cookie = self.sockets.groups().receiver(endpoint, way, hash)?;
        let socket = self.socket(cookie)?;
        Some(Receiver {
            cookie: socket.cookie,
            name: socket.name,
        })
    }

    /// Which way something came that one socket has from another, of which nothing is known
    /// but `last`, the way of what the one was last sent by the other. It follows from what
    /// each is bound and connected to; where that leaves several, from `last`; and if that is
    /// nothing, the first address of each is told.
    #[must_use]
    pub fn way_between(&self, sender: &Socket, receiver: &Socket, last: Option<Way>) -> Way {
        let fits = |way: &Way| {
            way.local.port == sender.local.port && fit(receiver, &way.remote.ip).is_some()
        };
        if let Some(way) = receiver.way() {
            let way = Way {
                local: way.remote,
                remote: way.local,
            };
            if fits(&way) {
                return way;
            }
        }
        let connected = sender
            .way()
            .filter(|way| way.remote.port == receiver.local.port && fits(way) && last.is_none());
        if let Some(way) = connected.or(last).filter(fits) {
            return way;
        }
        let v4 = receiver.family == crate::Family::V4 || is_v4(&sender.local.ip);
        let first = |socket: &Socket| {
            let all = self.own(socket.endpoint).map_or(&[][..], |own| own.all());
            let first = all.iter().find(|ip| is_v4(ip) == v4);
            let same = sender.endpoint == receiver.endpoint;
            match (is_any(&socket.local.ip), first) {
                (false, _) => socket.local.ip,
                (true, Some(ip)) if !same => *ip,
                _ if v4 => crate::address::LOOPBACK4,
                _ => crate::address::LOOPBACK6,
            }
        };
        let end = |socket: &Socket| Endpoint {
            ip: first(socket),
            port: socket.local.port,
        };
        Way {
            local: end(sender),
            remote: end(receiver),
        }
    }

    /// The datagram socket that an AF_UNIX name is of.
    #[must_use]
    pub fn by_name(&self, name: &[u8; 16]) -> Option<&Socket> {
        self.sockets.named(name)
    }

    /// Datagram sockets of an endpoint that have this port.
    pub fn datagrams_at(&self, endpoint: u32, port: u16) -> impl Iterator<Item = &Socket> {
        let holders = self.sockets.holders(Kind::Datagram, endpoint, port);
        holders.map(|(_, socket)| socket)
    }

    /// Where datagram sockets may be connected that lead to this port of an endpoint, each with an endpoint that has such:
    /// to others an address of its may be somebody else's. One stands for all of loopback's.
    pub fn connectors(&self, endpoint: u32, port: u16) -> impl Iterator<Item = (Endpoint, u32)> {
        let to = move |ip| Endpoint { ip, port };
        let inside = self.sockets.connectors(to(LOOPBACK4));
        let inside = inside.filter(move |it| *it == endpoint);
        let inside = inside.map(move |it| (to(LOOPBACK4), it));
        let own = self.addresses(endpoint).iter().map(move |ip| to(*ip));
        let own = own.flat_map(|to| self.sockets.connectors(to).map(move |it| (to, it)));
        inside.chain(own)
    }

    /// Those of an endpoint that are connected there, in the order of their slots, from this one on.
    pub fn connected_to(
        &self,
        to: Endpoint,
        endpoint: u32,
        from: u32,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        self.sockets.connected(to, endpoint, from)
    }

    /// Whether any of an endpoint is connected this way.
    #[must_use]
    pub fn is_connected(&self, endpoint: u32, way: &Way) -> bool {
        self.sockets.groups().is_connected(endpoint, way)
    }

    /// Those of an endpoint that are connected this way.
    pub fn connected_by(&self, endpoint: u32, way: Way) -> impl Iterator<Item = &Socket> {
        let ports = (way.local.port, way.remote.port);
        let all = (self.sockets).holders_to(Kind::Datagram, endpoint, ports.0, ports.1);
        let all = all.map(|(_, socket)| socket);
        all.filter(move |it| it.way() == Some(way))
    }

    fn datagram(&self, cookie: u64) -> Result<&Socket, Errno> {
        let socket = self.socket(cookie).ok_or(Errno::EBADF)?;
        match socket.kind {
            Kind::Datagram => Ok(socket),
            Kind::Stream => Err(Errno::EINVAL),
        }
    }
}

impl Socket {
    /// The way of what a connected datagram socket sends.
    #[must_use]
    pub fn way(&self) -> Option<Way> {
        let remote = self.remote()?;
        Some(Way {
            local: self.local,
            remote,
        })
    }
}
