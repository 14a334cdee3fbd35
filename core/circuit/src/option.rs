//! `setsockopt` and `getsockopt`: what a circuit answers, and what the AF_UNIX socket under
//! it answers rightly itself.

use crate::address::write;
use crate::options::{
    INTS, Int, REUSE_ADDRESS, REUSE_PORT, SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_TCP, V6ONLY, place,
};
use crate::{Errno, Facts, Family, Kind, State, datagram_option};

/// How many options are kept.
pub(crate) const KEPT: usize = INTS.len();

/// What is to be done about an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel does it, on the AF_UNIX socket.
    Native,
    /// It reads so; not longer than the room that there was.
    Answer(Vec<u8>),
    /// It is set.
    Accepted,
    /// It fails.
    Fails(Errno),
}

/// The options of one socket. None has an effect on how the bytes go: they read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    values: [i32; KEPT],
}

impl Default for Options {
    fn default() -> Self {
        Self {
            values: core::array::from_fn(|it| INTS[it].default),
        }
    }
}

/// Of `SOL_SOCKET`, what the kernel does on the AF_UNIX socket as on TCP's: DEBUG,
/// DONTROUTE, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, NO_CHECK, PRIORITY, LINGER, BSDCOMPAT,
/// RCVLOWAT, SNDLOWAT, both timeouts, TIMESTAMP and its kin in both widths, both buffers by
/// force and MARK (which want a privilege), RXQ_OVFL, PEEK_OFF, LOCK_FILTER, BUSY_POLL,
/// MAX_PACING_RATE, INCOMING_CPU, MEMINFO, COOKIE, BUF_LOCK, BROADCAST, ERROR, TYPE, and
/// what bears on devices alone: NOFCS, SELECT_ERR_QUEUE, BPF_EXTENSIONS, INCOMING_NAPI_ID,
/// TXTIME, PREFER_BUSY_POLL, BUSY_POLL_BUDGET, RESERVE_MEM, RCVMARK, RCVPRIORITY.
const NATIVE: [i32; 48] = [
    1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 18, 19, 20, 21, 29, 32, 33, 35, 36, 37, 40, 41, 42,
    43, 44, 45, 46, 47, 48, 49, 55, 56, 57, 61, 63, 64, 65, 66, 67, 69, 70, 72, 73, 75, 82,
];

const CUBIC: &[u8] = b"cubic";
/// Bytes of the name of a congestion control.
const CA_NAME: usize = 16;
/// Bytes of `struct tcp_info`, Linux 6.18's.
const TCP_INFO: usize = 248;
/// `SO_PEERCRED` of TCP: no process, no user, no group.
const NOBODY: [u8; 12] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
/// Bytes of the name of a device.
const IFNAMSIZ: usize = 16;

impl Options {
    pub(crate) fn restored(values: [i32; KEPT]) -> Option<Self> {
        let legal = INTS.iter().zip(values).all(|(it, value)| it.is_kept(value));
        legal.then_some(Self { values })
    }

    pub(crate) const fn values(&self) -> &[i32; KEPT] {
        &self.values
    }

    pub(crate) const fn flag(&self, place: usize) -> bool {
        self.values[place] != 0
    }

    /// None but `IPV6_V6ONLY`.
    pub(crate) fn only_v6only(&self) -> Self {
        let mut only = Self::default();
        only.values[V6ONLY] = self.values[V6ONLY];
        only
    }

    /// `SO_REUSEADDR`
    #[must_use]
    pub const fn reuse_address(&self) -> bool {
        self.flag(REUSE_ADDRESS)
    }

    /// `SO_REUSEPORT`
    #[must_use]
    pub const fn reuse_port(&self) -> bool {
        self.flag(REUSE_PORT)
    }

    /// `IP_PKTINFO`, `IPV6_RECVPKTINFO`: whether each datagram is told where it was sent to.
    #[must_use]
    pub fn packet_info(&self) -> (bool, bool) {
        let kept = |level, name| place(level, name).is_some_and(|place| self.flag(place));
        (kept(SOL_IP, 8), kept(SOL_IPV6, 49))
    }

    /// `IP_RECVTTL`, `IP_RECVTOS`, `IPV6_RECVHOPLIMIT`, `IPV6_RECVTCLASS`: whether each datagram is
    /// told how far it might have gone, and its class.
    #[must_use]
    pub fn asks_hops(&self) -> [bool; 4] {
        let places = [(SOL_IP, 12), (SOL_IP, 13), (SOL_IPV6, 51), (SOL_IPV6, 66)];
        places.map(|(level, name)| place(level, name).is_some_and(|place| self.flag(place)))
    }

    /// `IP_TTL`, `IP_TOS`, `IPV6_UNICAST_HOPS`, `IPV6_TCLASS`: what its datagrams have of these.
    #[must_use]
    pub fn hops(&self) -> [i32; 4] {
        let places = [(SOL_IP, 2), (SOL_IP, 1), (SOL_IPV6, 16), (SOL_IPV6, 67)];
        places.map(|(level, name)| place(level, name).map_or(0, |place| self.values[place]))
    }

    /// `IPV6_V6ONLY`
    #[must_use]
    pub const fn v6only(&self) -> bool {
        self.flag(V6ONLY)
    }

    /// `setsockopt(level, name, value)`.
    pub fn set(&mut self, socket: &Facts, level: i32, name: i32, value: &[u8]) -> Outcome {
        self.try_set(socket, level, name, value)
            .unwrap_or_else(Outcome::Fails)
    }

    fn try_set(
        &mut self,
        at: &Facts,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<Outcome, Errno> {
        if at.kind == Kind::Datagram
            && let Some(outcome) = datagram_option::set(at, level, name, value)
        {
            return outcome;
        }
        if !has_level(at, level) {
            return Err(Errno::ENOPROTOOPT);
        }
        if let Some(place) = place(level, name) {
            let option = &INTS[place];
            let number = number(option, value)?;
            allowed(at, level, name)?;
            self.values[place] = option.kept(number)?;
            return Ok(Outcome::Accepted);
        }
        match level {
            // PEEK_OFF: of TCP's only the newest kernels know it, and a ring's ends look at what has come by MSG_PEEK.
            SOL_SOCKET if name == 42 && at.kind == Kind::Stream => Err(Errno::EOPNOTSUPP),
            SOL_SOCKET => set_socket(name, value),
            SOL_TCP => set_tcp(name, value),
            SOL_IP => set_ip(name, value),
            _ => set_ip6(name, value),
        }
    }

    /// `getsockopt(level, name)` into `room` bytes.
    #[must_use]
    pub fn read(&self, socket: &Facts, level: i32, name: i32, room: i32) -> Outcome {
        self.try_read(socket, level, name, room)
            .unwrap_or_else(Outcome::Fails)
    }

    fn try_read(&self, at: &Facts, level: i32, name: i32, room: i32) -> Result<Outcome, Errno> {
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        if at.kind == Kind::Datagram
            && let Some(outcome) = datagram_option::read(at, level, name, room)
        {
            return outcome;
        }
        if !has_level(at, level) {
            // So each family says it, of levels that it does not have.
            return Err(match at.family {
                Family::V4 => Errno::EOPNOTSUPP,
                Family::V6 => Errno::ENOPROTOOPT,
            });
        }
        if let Some(place) = place(level, name) {
            return Ok(Outcome::Answer(int(level, self.values[place], room)));
        }
        match level {
            SOL_SOCKET => read_socket(at, name, room),
            SOL_TCP => read_tcp(at, name, room),
            SOL_IP => read_ip(name, room),
            _ => read_ip6(name, room),
        }
    }
}

fn has_level(at: &Facts, level: i32) -> bool {
    matches!(level, SOL_SOCKET | SOL_IP)
        || (level == SOL_TCP && at.kind == Kind::Stream)
        || (level == SOL_IPV6 && at.family == Family::V6)
}

/// The number that is set. Most of IPv4's options may be one byte, some no byte, which is 0.
fn number(option: &Int, value: &[u8]) -> Result<i32, Errno> {
    if let Some(bytes) = value.first_chunk() {
        return Ok(i32::from_ne_bytes(*bytes));
    }
    match (option.level, option.name, value) {
        // UNICAST_IF, LOCAL_PORT_RANGE
        (SOL_IP, 50 | 51, _) => Err(Errno::EINVAL),
        // TTL, FREEBIND, TRANSPARENT, MINTTL, MULTICAST_LOOP
        (SOL_IP, 2 | 15 | 19 | 21 | 34, []) => Err(Errno::EINVAL),
        (SOL_IP, _, [first, ..]) => Ok(i32::from(*first)),
        // DONTFRAG, AUTOFLOWLABEL
        (SOL_IP, ..) | (SOL_IPV6, 62 | 70, _) => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// What a socket's state forbids.
const fn allowed(at: &Facts, level: i32, name: i32) -> Result<(), Errno> {
    let open = matches!(at.state, State::Connecting | State::Connected);
    match (level, name) {
        // The family is decided once there is a port.
        (SOL_IPV6, 26) if at.held => Err(Errno::EINVAL),
        // TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE
        (SOL_TCP, 23 | 34) if open => Err(Errno::EINVAL),
        (SOL_TCP, 30) if !matches!(at.state, State::Fresh | State::Bound) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn set_socket(name: i32, value: &[u8]) -> Result<Outcome, Errno> {
    // The name of a device is no number. There is `lo`, to which binding changes nothing.
    if name == 25 {
        let whole = &value[..value.len().min(IFNAMSIZ - 1)];
        let device = whole.split(|it| *it == 0).next().unwrap_or_default();
        let there = device.is_empty() || device == b"lo";
        return if there {
            Ok(Outcome::Accepted)
        } else {
            Err(Errno::ENODEV)
        };
    }
    if NATIVE.contains(&name) {
        return Ok(Outcome::Native);
    }
    if value.len() < 4 {
        return Err(Errno::EINVAL);
    }
    Err(match name {
        // PASSCRED, PASSSEC, PASSPIDFD, PASSRIGHTS are AF_UNIX's alone. ZEROCOPY is refused:
        // AF_UNIX sends no completions, for which a program would wait.
        16 | 34 | 76 | 83 | 60 => Errno::EOPNOTSUPP,
        // No filters: they would see the socket under the circuit.
        26 => Errno::EPERM,
        // BINDTOIFINDEX: to none.
        62 if value.iter().all(|it| *it == 0) => return Ok(Outcome::Accepted),
        62 => Errno::ENODEV,
        27 => Errno::ENOENT,
        50..=52 | 68 => Errno::EINVAL,
        _ => Errno::ENOPROTOOPT,
    })
}

fn read_socket(at: &Facts, name: i32, room: usize) -> Result<Outcome, Errno> {
    if NATIVE.contains(&name) {
        return Ok(Outcome::Native);
    }
    let bytes = match name {
        16 | 34 | 76 | 83 => return Err(Errno::EOPNOTSUPP),
        // PEERCRED: TCP knows no process, AF_UNIX would tell of the operator.
        17 => cut(&NOBODY, room),
        // BINDTODEVICE: none.
        25 | 26 => Vec::new(),
        // PEERNAME
        28 => {
            let (bytes, length) = write(at.family, at.peer.ok_or(Errno::ENOTCONN)?);
            // It is all or nothing, other than getpeername.
            if room < length {
                return Err(Errno::EINVAL);
            }
            cut(&bytes[..length], room)
        }
        // ACCEPTCONN
        30 => int(
            SOL_SOCKET,
            i32::from(matches!(at.state, State::Listening { .. })),
            room,
        ),
        // PROTOCOL: TCP, also where MPTCP was asked for.
        38 => int(SOL_SOCKET, SOL_TCP, room),
        // DOMAIN
        39 => int(SOL_SOCKET, i32::from(at.family.number()), room),
        60 | 62 => int(SOL_SOCKET, 0, room),
        // PEERGROUPS, PEERPIDFD
        59 | 77 => return Err(Errno::ENODATA),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Outcome::Answer(bytes))
}

fn set_tcp(name: i32, value: &[u8]) -> Result<Outcome, Errno> {
    match name {
        // CONGESTION: there is no congestion; the one name that is told is taken.
        13 => {
            let whole = &value[..value.len().min(CA_NAME - 1)];
            match whole.split(|it| *it == 0).next() {
                _ if value.is_empty() => Err(Errno::EINVAL),
                Some(CUBIC) => Ok(Outcome::Accepted),
                _ => Err(Errno::ENOENT),
            }
        }
        // ULP
        31 if !value.is_empty() => Err(Errno::ENOENT),
        _ if value.len() < 4 => Err(Errno::EINVAL),
        // REPAIR and its kin, TIMESTAMP
        19 | 20 | 24 | 29 => Err(Errno::EPERM),
        // MD5SIG, QUEUE_SEQ, REPAIR_OPTIONS, MD5SIG_EXT, FASTOPEN_KEY
        14 | 21 | 22 | 32 | 33 => Err(Errno::EINVAL),
        // THIN_DUPACK does nothing any more.
        17 => match value.first_chunk().map(|it| i32::from_ne_bytes(*it)) {
            Some(0 | 1) => Ok(Outcome::Accepted),
            _ => Err(Errno::EINVAL),
        },
        // INQ among them: its control messages would never come.
        _ => Err(Errno::ENOPROTOOPT),
    }
}

fn read_tcp(at: &Facts, name: i32, room: usize) -> Result<Outcome, Errno> {
    let bytes = match name {
        11 => {
            let mut info = [0; TCP_INFO];
            info[0] = at.tcp_state();
            for (place, count) in info[24..32].chunks_exact_mut(4).zip(at.queue()) {
                place.copy_from_slice(&count.to_ne_bytes());
            }
            cut(&info, room)
        }
        13 => {
            let mut name = [0; CA_NAME];
            name[..CUBIC.len()].copy_from_slice(CUBIC);
            cut(&name, room)
        }
        17 | 19 | 24 | 43 => int(SOL_TCP, 0, room),
        20 | 21 | 29 | 35 => return Err(Errno::EINVAL),
        // CC_INFO (cubic has none), SAVED_SYN, ULP, FASTOPEN_KEY
        26 | 28 | 31 | 33 => Vec::new(),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Outcome::Answer(bytes))
}

fn set_ip(name: i32, value: &[u8]) -> Result<Outcome, Errno> {
    Err(match name {
        // OPTIONS: none is sent; taking them away succeeds.
        4 if value.is_empty() => return Ok(Outcome::Accepted),
        4 => Errno::EINVAL,
        // ROUTER_ALERT, RECVFRAGSIZE, MULTICAST_IF and _TTL, groups
        5 | 25 | 32 | 33 | 37..=48 => Errno::EINVAL,
        // Policies of IPsec
        16 | 17 => Errno::EPERM,
        // Joining and leaving a group
        35 | 36 => Errno::EPROTO,
        _ => Errno::ENOPROTOOPT,
    })
}

fn read_ip(name: i32, room: usize) -> Result<Outcome, Errno> {
    let value = match name {
        // OPTIONS, PKTOPTIONS
        4 | 9 => return Ok(Outcome::Answer(Vec::new())),
        // There is no path.
        14 => return Err(Errno::ENOTCONN),
        3 | 5 | 22 | 25 | 32 => 0,
        33 => 1,
        // PROTOCOL; measured 0 of TCP.
        52 => 0,
        41 | 48 => return Err(Errno::EINVAL),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Outcome::Answer(int(SOL_IP, value, room)))
}

fn set_ip6(name: i32, value: &[u8]) -> Result<Outcome, Errno> {
    Err(match name {
        // The old PKTOPTIONS: whatever it was.
        6 => return Ok(Outcome::Accepted),
        17 | 18 => Errno::ENOPROTOOPT,
        34 | 35 | 54 | 55 | 59 => Errno::EPERM,
        1 | 20 | 21 | 24 | 27 | 28 | 32 | 42..=48 | 50 => Errno::EINVAL,
        22 if value.len() < 4 => Errno::EINVAL,
        _ => Errno::ENOPROTOOPT,
    })
}

fn read_ip6(name: i32, room: usize) -> Result<Outcome, Errno> {
    let value = match name {
        6 | 54 | 55 | 57 | 59 => return Ok(Outcome::Answer(Vec::new())),
        1 | 24 => return Err(Errno::ENOTCONN),
        17 | 22 => 0,
        18 => 1,
        32 | 48 => return Err(Errno::EINVAL),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Outcome::Answer(int(SOL_IPV6, value, room)))
}

pub(crate) fn cut(bytes: &[u8], room: usize) -> Vec<u8> {
    bytes[..bytes.len().min(room)].to_vec()
}

/// A number in `room` bytes: as many of it as fit. IPv4 makes a small one a byte where
/// there is no room for all.
pub(crate) fn int(level: i32, value: i32, room: usize) -> Vec<u8> {
    match u8::try_from(value) {
        Ok(byte) if level == SOL_IP && (1..4).contains(&room) => vec![byte],
        _ => cut(&value.to_ne_bytes(), room),
    }
}
