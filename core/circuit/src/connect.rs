//! `connect`, and what becomes of it.

use crate::address::parse_connect;
use crate::record::Slot;
use crate::route::route;
use crate::table::ports;
use crate::{Endpoint, Errno, Ip, Kind, Named, Socket, State, Table};

/// What `connect` comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// `AF_UNSPEC`: the socket is disconnected, which is all.
    Disconnected,
    /// It is being connected: [`Table::connected`] or [`Table::connect_failed`] follows.
    To {
        /// Its own end.
        local: Endpoint,
        /// The other.
        remote: Endpoint,
        /// Which attempt this is.
        generation: u32,
    },
}

impl Table {
    /// `connect` of a stream to the address in these bytes. `chance`: a random number, for its port.
    /// Who may be connected to is the caller's to judge; a port 0 has no listener.
    ///
    /// # Errors
    /// As Linux's, in its order: the state before the address before the way.
    pub fn connect_begin(
        &mut self,
        cookie: u64,
        address: &[u8],
        chance: u32,
    ) -> Result<Connect, Errno> {
        let (at, mut socket) = self.find(cookie)?;
        if socket.kind == Kind::Datagram {
            return Err(Errno::EINVAL);
        }
        let named = parse_connect(socket.family, socket.options.v6only(), address);
        match (named, socket.state) {
            (Ok(Named::Disconnect), _) => {
                self.disconnect(cookie)?;
                return Ok(Connect::Disconnected);
            }
            // Too short to have a family: that is seen before the state.
            (Err(errno), _) if address.len() < 2 || address.len() > 128 => return Err(errno),
            (_, State::Connecting) => return Err(Errno::EALREADY),
            // A listener too, as measured.
            (_, State::Connected | State::Listening { .. }) => return Err(Errno::EISCONN),
            _ => {}
        }
        let Named::At(target) = named? else {
            return Err(Errno::EINVAL);
        };
        let own = self.own(socket.endpoint)?;
        let (from, to) = route(&socket.local.ip, own, &target.ip)?;
        let remote = Endpoint {
            ip: to,
            port: target.port,
        };
        if socket.held() {
            let port = socket.local.port;
            let same = |(other, it): (u32, &Socket)| {
                other != at && it.local.ip == from && it.remote() == Some(remote)
            };
            let mut holders = self.sockets.holders(Kind::Stream, socket.endpoint, port);
            if holders.any(same) {
                return Err(Errno::EADDRNOTAVAIL);
            }
        } else {
            let port = self.connecting(&socket, &from, &remote, chance);
            socket.local.port = port.ok_or(Errno::EADDRNOTAVAIL)?;
        }
        socket.local.ip = from;
        socket.remote = remote;
        socket.state = State::Connecting;
        // Of none is who was accepted.
        socket.generation = socket.generation.wrapping_add(1).max(1);
        self.sockets.put(at, Slot::Socket(socket));
        Ok(Connect::To {
            local: socket.local,
            remote,
            generation: socket.generation,
        })
    }

    /// The connection is there.
    ///
    /// # Errors
    /// `EINVAL`: it was not being connected.
    pub fn connected(&mut self, cookie: u64) -> Result<(), Errno> {
        let (at, mut socket) = self.find(cookie)?;
        if socket.state != State::Connecting {
            return Err(Errno::EINVAL);
        }
        socket.state = State::Connected;
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// There is no connection: the socket can be bound, listen or be connected again.
    ///
    /// # Errors
    /// `EINVAL`: it was not being connected.
    pub fn connect_failed(&mut self, cookie: u64) -> Result<(), Errno> {
        let (_, socket) = self.find(cookie)?;
        if socket.state != State::Connecting {
            return Err(Errno::EINVAL);
        }
        self.disconnect(cookie)
    }

    /// `connect` to `AF_UNSPEC`, of a socket in any state. What waits at a listener is lost.
    ///
    /// # Errors
    /// `EBADF`: no such socket.
    pub fn disconnect(&mut self, cookie: u64) -> Result<(), Errno> {
        let (at, mut socket) = self.find(cookie)?;
        self.forget_queue(at);
        socket.release();
        self.sockets.put(at, Slot::Socket(socket));
        Ok(())
    }

    /// A port for a connection: another's may be shared whose connection goes elsewhere,
    /// but not one that was bound.
    fn connecting(
        &self,
        socket: &Socket,
        from: &Ip,
        remote: &Endpoint,
        chance: u32,
    ) -> Option<u16> {
        ports(chance).find(|port| {
            let mut holders = self.sockets.holders(Kind::Stream, socket.endpoint, *port);
            holders.all(|(_, it)| {
                let open = matches!(it.state, State::Connecting | State::Connected);
                open && !it.port_locked && !(it.local.ip == *from && it.remote == *remote)
            })
        })
    }
}
