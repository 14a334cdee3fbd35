//! What is kept of a socket, and its bytes.

use crate::address::{is_any, is_v4};
use crate::option::KEPT;
use crate::options::SOMAXCONN;
use crate::queue::Queued;
use crate::{Endpoint, Facts, Family, Options, Pending};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Where a socket stands. One whose connection failed or was given up is fresh again, or
/// bound where it had bound a port itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no port.
    Fresh,
    /// It has one.
    Bound,
    /// It listens; Linux queues one more than `backlog`.
    Listening {
        /// At most so many and one wait.
        backlog: u32,
    },
    /// It is being connected.
    Connecting,
    /// It is connected.
    Connected,
}

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// TCP.
    Stream,
    /// UDP: it never listens, nor waits to be connected.
    Datagram,
}

/// By what the bytes of a connection go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Carrier {
    /// The kernel, from socket to socket.
    #[default]
    Kernel = 0,
    /// Memory that both ends were given.
    Ring = 1,
    /// A process that counts them and keeps rates.
    Meter = 2,
    /// A process that speaks TCP to the other side.
    Proxy = 3,
    /// As [`Carrier::Meter`], because somebody captured when it began.
    Captured = 4,
}

impl Carrier {
    const ALL: [Carrier; 5] = [
        Carrier::Kernel,
        Carrier::Ring,
        Carrier::Meter,
        Carrier::Proxy,
        Carrier::Captured,
    ];

    /// Whether a meter carries it.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Carrier::Meter | Carrier::Captured)
    }

    /// From its number.
    #[must_use]
    pub fn of(number: u8) -> Option<Carrier> {
        Carrier::ALL.get(usize::from(number)).copied()
    }
}

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub(crate) kind: Kind,
    pub(crate) cookie: u64,
    pub(crate) endpoint: u32,
    pub(crate) uid: u32,
    /// Which attempt to connect this is.
    pub(crate) generation: u32,
    pub(crate) family: Family,
    pub(crate) state: State,
    /// Its address is its own choice, and stays when it is disconnected.
    pub(crate) address_locked: bool,
    /// So is its port.
    pub(crate) port_locked: bool,
    pub(crate) local: Endpoint,
    pub(crate) remote: Endpoint,
    pub(crate) name: [u8; 16],
    /// See [`Table::place`](crate::Table::place).
    pub(crate) place: u64,
    /// See [`Table::carry`](crate::Table::carry).
    pub(crate) carrier: Carrier,
    pub(crate) since: u64,
    /// See [`Table::cross`](crate::Table::cross).
    pub(crate) crossing: u16,
    pub(crate) inode: u32,
    /// See [`Table::link`](crate::Table::link): one more than whom it is linked to.
    pub(crate) linked: u32,
    /// Of a stream, the token that it waited with to be accepted, at both its ends. 0 where it was begun: its cookie; where it was
    /// accepted: not known. Of a datagram socket that has a port, by a count, when it came to hear what it hears.
    pub(crate) token: u64,
    /// See [`Table::condemn`](crate::Table::condemn).
    pub(crate) is_condemned: bool,
    pub(crate) options: Options,
}

impl Socket {
    /// What it carries.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The AF_UNIX socket's cookie.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The endpoint that it is of.
    #[must_use]
    pub const fn endpoint(&self) -> u32 {
        self.endpoint
    }

    /// Where the operator found it last.
    #[must_use]
    pub const fn place(&self) -> u64 {
        self.place
    }

    /// By what its connection's bytes go, where it began that or a proxy let it in.
    #[must_use]
    pub const fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// When it was connected, where it began that or a proxy let it in; 0: not known.
    #[must_use]
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// The tag of the agreement that its connection crosses; 0: none, the other end is here.
    #[must_use]
    pub const fn crossing(&self) -> u16 {
        self.crossing
    }

    /// Of an end that was accepted from across an agreement: its inode, by which it is asked for
    /// where it lives, in the namespace of who began it. 0: in this one.
    #[must_use]
    pub const fn inode(&self) -> u32 {
        self.inode
    }

    /// Whether its connection is to end, whatever is allowed.
    #[must_use]
    pub const fn is_condemned(&self) -> bool {
        self.is_condemned
    }

    /// Of UDP, whom the kernel takes to what it sends by itself, as far as is known; of a stream that was begun, at whose it is to
    /// be, or is, accepted.
    #[must_use]
    pub const fn linked(&self) -> Option<u32> {
        self.linked.checked_sub(1)
    }

    /// Whether it began the connection that it has; of UDP, whether it is connected.
    #[must_use]
    pub fn is_initiator(&self) -> bool {
        self.state == State::Connected && self.generation != 0
    }

    /// Whether it has begun to lead to somebody.
    pub(crate) fn leads(&self) -> bool {
        self.remote().is_some() && self.generation != 0
    }

    /// Of a stream that was begun, the token that it waits with to be accepted.
    #[must_use]
    pub const fn token(&self) -> u64 {
        match self.token {
            0 => self.cookie,
            token => token,
        }
    }

    /// Whether it was accepted of somebody who has packets: a proxy carries it, and there is no other end here.
    #[must_use]
    pub fn is_let_in(&self) -> bool {
        let is_accepted = self.state == State::Connected && self.generation == 0;
        self.kind == Kind::Stream && is_accepted && self.carrier == Carrier::Proxy
    }

    /// Of which addresses it is.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Its own end, as `getsockname` tells it. A TCP port that was given up is still told.
    #[must_use]
    pub const fn local(&self) -> Endpoint {
        self.local
    }

    /// The other end, while connected or being so.
    #[must_use]
    pub const fn remote(&self) -> Option<Endpoint> {
        match self.state {
            State::Connecting | State::Connected => Some(self.remote),
            _ => None,
        }
    }

    /// Under which name its AF_UNIX socket listens; of UDP, by which it is sent to.
    #[must_use]
    pub const fn name(&self) -> [u8; 16] {
        self.name
    }

    /// Which attempt to connect this is: an answer to another is stale.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Its options.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Whether it has a port.
    pub(crate) const fn held(&self) -> bool {
        !matches!(self.state, State::Fresh)
    }

    pub(crate) fn facts(&self) -> Facts {
        let peer = (self.state == State::Connected).then_some(self.remote);
        Facts {
            kind: self.kind,
            family: self.family,
            state: self.state,
            held: self.held(),
            peer,
            waiting: 0,
        }
    }
}

/// Bytes of a record.
pub const RECORD: usize = 384;

const SOCKET: u8 = 1;
const PENDING: u8 = 2;
const DATAGRAM: u8 = 3;
const ADDRESS_LOCKED: u8 = 1;
const PORT_LOCKED: u8 = 2;
/// From here on the [`Carrier`].
const CARRIER_AT: u8 = 2;
/// Of one that is connected.
const CONDEMNED: u8 = 1 << 7;
/// Of a pending one.
const RELAYED: u8 = (Carrier::Proxy as u8) << CARRIER_AT;
const NONE: Endpoint = Endpoint {
    ip: [0; 16],
    port: 0,
};
/// So many numbers fit a record.
const ROOM: usize = 68;

/// What one slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "both are records of one size")]
pub(crate) enum Slot {
    Empty,
    Socket(Socket),
    Pending(Queued),
}

/// A record's bytes: an allegation until [`decode`] has checked it. All zero: nothing.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    kind: u8,
    family: u8,
    state: u8,
    flags: u8,
    /// Of a pending one, the listener's slot.
    endpoint: u32,
    cookie: u64,
    /// Of a socket since when it is connected.
    sequence: u64,
    /// Of a pending one, of a stream, and of what hears datagrams.
    token: u64,
    uid: u32,
    generation: u32,
    /// Of one that listens its backlog, of one that leads to somebody of here whom it is linked to.
    more: u32,
    local_port: u16,
    remote_port: u16,
    local: [u8; 16],
    remote: [u8; 16],
    name: [u8; 16],
    options: [i32; ROOM],
    /// A tag; of a pending one too.
    crossing: u32,
    inode: u32,
    place: u64,
}

const _: () = assert!(size_of::<Raw>() == RECORD && KEPT <= ROOM);

pub(crate) fn encode(slot: &Slot) -> [u8; RECORD] {
    let mut raw = Raw::new_zeroed();
    match slot {
        Slot::Empty => {}
        Slot::Socket(it) => {
            raw.kind = match it.kind {
                Kind::Stream => SOCKET,
                Kind::Datagram => DATAGRAM,
            };
            raw.family = if it.family == Family::V4 { 4 } else { 6 };
            (raw.state, raw.more) = match it.state {
                State::Fresh => (1, 0),
                State::Bound => (2, 0),
                State::Listening { backlog } => (3, backlog),
                State::Connecting => (4, it.linked),
                State::Connected => (5, it.linked),
            };
            raw.flags = u8::from(it.address_locked) * ADDRESS_LOCKED
                + u8::from(it.port_locked) * PORT_LOCKED
                + u8::from(it.is_condemned) * CONDEMNED
                + ((it.carrier as u8) << CARRIER_AT);
            raw.sequence = it.since;
            (raw.endpoint, raw.cookie) = (it.endpoint, it.cookie);
            (raw.uid, raw.generation, raw.name) = (it.uid, it.generation, it.name);
            (raw.local, raw.local_port) = (it.local.ip, it.local.port);
            (raw.remote, raw.remote_port) = (it.remote.ip, it.remote.port);
            raw.place = it.place;
            (raw.crossing, raw.inode) = (it.crossing.into(), it.inode);
            raw.token = it.token;
            raw.options[..KEPT].copy_from_slice(it.options.values());
        }
        Slot::Pending(it) => {
            raw.kind = PENDING;
            (raw.endpoint, raw.cookie, raw.sequence) = (it.listener, it.cookie, it.sequence);
            (raw.token, raw.crossing) = (it.pending.token, it.pending.crossing.into());
            raw.flags = u8::from(it.pending.relayed) * RELAYED;
            (raw.local, raw.local_port) = (it.pending.local.ip, it.pending.local.port);
            (raw.remote, raw.remote_port) = (it.pending.client.ip, it.pending.client.port);
        }
    }
    zerocopy::transmute!(raw)
}

/// The socket that a record is of, or the connection that waits, whether a table has room for it or not.
#[must_use]
pub fn said(record: &[u8; RECORD]) -> (Option<Socket>, Option<Pending>) {
    match decode(record) {
        Some(Slot::Socket(socket)) => (Some(socket), None),
        Some(Slot::Pending(queued)) => (None, Some(queued.pending)),
        _ => (None, None),
    }
}

/// What a record says; `None`: nothing that [`encode`] writes.
pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Slot> {
    let raw: Raw = zerocopy::transmute!(*bytes);
    let slot = match raw.kind {
        0 => Slot::Empty,
        SOCKET => Slot::Socket(socket(&raw, Kind::Stream)?),
        DATAGRAM => Slot::Socket(socket(&raw, Kind::Datagram)?),
        PENDING => Slot::Pending(Queued {
            listener: raw.endpoint,
            cookie: raw.cookie,
            sequence: raw.sequence,
            pending: Pending {
                client: Endpoint {
                    ip: raw.remote,
                    port: raw.remote_port,
                },
                local: Endpoint {
                    ip: raw.local,
                    port: raw.local_port,
                },
                token: raw.token,
                crossing: u16::try_from(raw.crossing).ok()?,
                relayed: raw.flags == RELAYED,
            },
        }),
        _ => return None,
    };
    // What is not looked at is zero: one value has one record.
    (encode(&slot) == *bytes).then_some(slot)
}

fn socket(raw: &Raw, kind: Kind) -> Option<Socket> {
    let family = match raw.family {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    let state = match raw.state {
        1 => State::Fresh,
        2 => State::Bound,
        3 if raw.more <= SOMAXCONN.unsigned_abs() => State::Listening { backlog: raw.more },
        4 => State::Connecting,
        5 => State::Connected,
        _ => return None,
    };
    let local = Endpoint {
        ip: raw.local,
        port: raw.local_port,
    };
    let remote = Endpoint {
        ip: raw.remote,
        port: raw.remote_port,
    };
    let open = matches!(state, State::Connecting | State::Connected);
    let fits = |ip| family == Family::V6 || is_v4(ip);
    let legal = fits(&local.ip)
        && (state == State::Fresh || local.port != 0)
        && (if open {
            fits(&remote.ip) && !is_any(&local.ip)
        } else {
            remote == NONE
        });
    let plain = matches!(state, State::Fresh | State::Bound | State::Connected);
    let carrier = Carrier::of((raw.flags & !CONDEMNED) >> CARRIER_AT)?;
    let is_condemned = raw.flags & CONDEMNED != 0;
    let is_begun = open && raw.generation != 0;
    let crossing = u16::try_from(raw.crossing).ok()?;
    // Of a connection that crosses an agreement, or that a proxy let in, the end that was accepted knows it too.
    let is_relayed = kind == Kind::Stream && carrier == Carrier::Proxy;
    let is_known = is_begun || state == State::Connected && (crossing != 0 || is_relayed);
    let carried = carrier != Carrier::Kernel || raw.sequence != 0;
    if !is_known && (carried || crossing != 0) || crossing == 0 && raw.inode != 0 {
        return None;
    }
    if !legal || (kind == Kind::Datagram && !plain) {
        return None;
    }
    if is_condemned && (kind == Kind::Datagram || state != State::Connected) {
        return None;
    }
    let may_have_token = match kind {
        Kind::Stream => is_begun || state == State::Connected,
        Kind::Datagram => state != State::Fresh,
    };
    let linked = if open { raw.more } else { 0 };
    if raw.token != 0 && !may_have_token || linked != 0 && !is_begun {
        return None;
    }
    let (options, _) = raw.options.split_first_chunk::<KEPT>()?;
    Some(Socket {
        kind,
        cookie: raw.cookie,
        endpoint: raw.endpoint,
        uid: raw.uid,
        generation: raw.generation,
        family,
        state,
        address_locked: raw.flags & ADDRESS_LOCKED != 0,
        port_locked: raw.flags & PORT_LOCKED != 0,
        is_condemned,
        local,
        remote,
        name: raw.name,
        place: raw.place,
        carrier,
        since: raw.sequence,
        crossing,
        inode: raw.inode,
        linked,
        token: raw.token,
        options: Options::restored(*options)?,
    })
}

impl Socket {
    /// A new one.
    pub(crate) fn new(cookie: u64, endpoint: u32, family: Family, uid: u32) -> Self {
        Self {
            kind: Kind::Stream,
            cookie,
            endpoint,
            uid,
            generation: 0,
            family,
            state: State::Fresh,
            address_locked: false,
            port_locked: false,
            local: Endpoint {
                ip: family.any(),
                port: 0,
            },
            remote: NONE,
            name: [0; 16],
            place: 0,
            carrier: Carrier::Kernel,
            since: 0,
            crossing: 0,
            inode: 0,
            linked: 0,
            token: 0,
            is_condemned: false,
            options: Options::default(),
        }
    }

    /// Takes its connection or its listening from it, as Linux's `tcp_disconnect`: what it
    /// had not bound itself is given up, though the port is still told. A datagram socket's is
    /// not (`__udp_disconnect`), and it keeps its name.
    pub(crate) fn release(&mut self) {
        if self.held() && (self.state != State::Bound || self.kind == Kind::Datagram) {
            self.state = if self.port_locked {
                State::Bound
            } else {
                State::Fresh
            };
        }
        if !self.address_locked {
            self.local.ip = self.family.any();
        }
        self.remote = NONE;
        (self.carrier, self.since) = (Carrier::Kernel, 0);
        (self.crossing, self.inode, self.linked, self.token) = (0, 0, 0, 0);
        self.is_condemned = false;
        match self.kind {
            Kind::Stream => self.name = [0; 16],
            Kind::Datagram if !self.port_locked => self.local.port = 0,
            Kind::Datagram => {}
        }
    }
}
