//! Socket addresses as bytes (`sockaddr_in`, `sockaddr_in6`), read as Linux's `connect` and
//! `bind` read them, in the order in which they complain.

use crate::Errno;
use crate::asked::{AF_INET, AF_INET6};

/// An IPv6 address, or an IPv4 one as `::ffff:a.b.c.d`.
pub type Ip = [u8; 16];

/// Bytes of the larger address, `sockaddr_in6`.
pub const SOCKADDR_BYTES: usize = 28;
/// Bytes of a `sockaddr_in`.
const SOCKADDR_IN: usize = 16;
/// Bytes of a `sockaddr_in6` without its scope, which Linux takes too.
const SIN6_LEN_RFC2133: usize = 24;
/// Bytes of the largest address.
const SOCKADDR_STORAGE: usize = 128;

const AF_UNSPEC: u16 = 0;
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// `::`
pub(crate) const ANY6: Ip = [0; 16];
/// `0.0.0.0`
pub(crate) const ANY4: Ip = v4([0; 4]);
/// `127.0.0.1`
pub(crate) const LOOPBACK4: Ip = v4([127, 0, 0, 1]);
/// `::1`
pub(crate) const LOOPBACK6: Ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Of which addresses a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`
    V4,
    /// `AF_INET6`
    V6,
}

impl Family {
    /// The address of a socket that is not bound.
    #[must_use]
    pub const fn any(self) -> Ip {
        match self {
            Self::V4 => ANY4,
            Self::V6 => ANY6,
        }
    }

    /// `AF_INET` or `AF_INET6`.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::V4 => AF_INET as u16,
            Self::V6 => AF_INET6 as u16,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address; an IPv4 one is mapped.
    pub ip: Ip,
    /// Its port.
    pub port: u16,
}

/// What a program has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// An address.
    At(Endpoint),
    /// `connect` to `AF_UNSPEC`: to be disconnected.
    Disconnect,
}

/// An IPv4 address as an [`Ip`].
pub(crate) const fn v4(ip: [u8; 4]) -> Ip {
    let [a, b, c, d] = ip;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Whether an address is an IPv4 one.
pub(crate) fn is_v4(ip: &Ip) -> bool {
    ip[..12] == MAPPED
}

/// Whether an address is any address.
pub(crate) fn is_any(ip: &Ip) -> bool {
    *ip == ANY4 || *ip == ANY6
}

/// Whether an address is the endpoint's own inside.
pub(crate) fn is_loopback(ip: &Ip) -> bool {
    *ip == LOOPBACK6 || (is_v4(ip) && ip[12] == 127)
}

/// Whether an address is a group's or a broadcast's.
pub(crate) fn is_multicast(ip: &Ip) -> bool {
    ip[0] == 0xff || (is_v4(ip) && (ip[12] & 0xf0 == 0xe0 || ip[12..] == [0xff; 4]))
}

fn is_link_local(ip: &Ip) -> bool {
    ip[0] == 0xfe && ip[1] & 0xc0 == 0x80
}

fn family(bytes: &[u8]) -> Option<u16> {
    let (first, _) = bytes.split_first_chunk()?;
    Some(u16::from_ne_bytes(*first))
}

fn port(bytes: &[u8]) -> u16 {
    bytes
        .get(2..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |it| u16::from_be_bytes(*it))
}

fn in4(bytes: &[u8]) -> Result<Endpoint, Errno> {
    let ip = bytes
        .get(4..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(Errno::EINVAL)?;
    Ok(Endpoint {
        ip: v4(*ip),
        port: port(bytes),
    })
}

fn in6(bytes: &[u8]) -> Result<Endpoint, Errno> {
    let ip = bytes
        .get(8..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(Errno::EINVAL)?;
    Ok(Endpoint {
        ip: *ip,
        port: port(bytes),
    })
}

/// The scope that an IPv6 address names; an old, short one has none.
fn scope(bytes: &[u8]) -> u32 {
    bytes
        .get(24..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |it| u32::from_ne_bytes(*it))
}

/// Whether an IPv6 address of a link lacks the link (`EINVAL`).
fn lacks_link(ip: &Ip, bytes: &[u8]) -> bool {
    is_link_local(ip) && scope(bytes) == 0
}

/// What `connect` is asked for on a socket of `family`.
///
/// # Errors
/// As Linux says: a short address `EINVAL`, another family's `EAFNOSUPPORT` (an IPv6 socket
/// looks at the length first, so a `sockaddr_in` is `EINVAL` there).
pub fn parse_connect(socket: Family, v6only: bool, bytes: &[u8]) -> Result<Named, Errno> {
    let named = family(bytes)
        .filter(|_| bytes.len() <= SOCKADDR_STORAGE)
        .ok_or(Errno::EINVAL)?;
    if named == AF_UNSPEC {
        return Ok(Named::Disconnect);
    }
    match socket {
        Family::V4 if bytes.len() < SOCKADDR_IN => Err(Errno::EINVAL),
        Family::V6 if bytes.len() < SIN6_LEN_RFC2133 => Err(Errno::EINVAL),
        _ if named != socket.number() => Err(Errno::EAFNOSUPPORT),
        Family::V4 => in4(bytes).map(Named::At),
        Family::V6 => {
            let at = in6(bytes)?;
            if is_v4(&at.ip) && v6only {
                return Err(Errno::ENETUNREACH);
            }
            if lacks_link(&at.ip, bytes) {
                return Err(Errno::EINVAL);
            }
            Ok(Named::At(at))
        }
    }
}

/// An IPv4 destination on an IPv6 socket that also speaks IPv4, which UDP takes in
/// `sockaddr_in` too; `None`: it is none of that form.
pub(crate) fn v4_destination(
    socket: Family,
    v6only: bool,
    bytes: &[u8],
) -> Option<Result<Named, Errno>> {
    let named = family(bytes)? == Family::V4.number();
    if socket == Family::V4 || !named || bytes.len() > SOCKADDR_STORAGE {
        return None;
    }
    Some(match (v6only, bytes.len()) {
        (true, _) => Err(Errno::EAFNOSUPPORT),
        (_, ..SOCKADDR_IN) => Err(Errno::EINVAL),
        _ => in4(bytes).map(Named::At),
    })
}

/// Where `sendto` is asked to send a datagram to; `None`: to whom the socket is connected,
/// which AF_UNSPEC says on an IPv6 socket.
///
/// # Errors
/// As Linux says: a short address `EINVAL`, another family's `EAFNOSUPPORT` on IPv4 and
/// `EINVAL` on IPv6, an IPv4 one on a socket of IPv6 alone `ENETUNREACH`, port 0 `EINVAL`.
pub(crate) fn parse_destination(
    socket: Family,
    v6only: bool,
    bytes: &[u8],
) -> Result<Option<Endpoint>, Errno> {
    let named = family(bytes)
        .filter(|_| bytes.len() <= SOCKADDR_STORAGE)
        .ok_or(Errno::EINVAL)?;
    let to = match (socket, named) {
        (Family::V4, _) if bytes.len() < SOCKADDR_IN => return Err(Errno::EINVAL),
        (Family::V4, AF_UNSPEC) => in4(bytes)?,
        (Family::V4, _) if named != socket.number() => return Err(Errno::EAFNOSUPPORT),
        (Family::V4, _) => in4(bytes)?,
        (Family::V6, AF_UNSPEC) => return Ok(None),
        (Family::V6, _) if named == Family::V4.number() => match bytes.len() {
            _ if v6only => return Err(Errno::ENETUNREACH),
            ..SOCKADDR_IN => return Err(Errno::EINVAL),
            _ => in4(bytes)?,
        },
        (Family::V6, _) => {
            if bytes.len() < SIN6_LEN_RFC2133 || named != socket.number() {
                return Err(Errno::EINVAL);
            }
            let at = in6(bytes)?;
            if is_v4(&at.ip) && v6only {
                return Err(Errno::ENETUNREACH);
            }
            if lacks_link(&at.ip, bytes) {
                return Err(Errno::EINVAL);
            }
            at
        }
    };
    match to.port {
        0 => Err(Errno::EINVAL),
        _ => Ok(Some(to)),
    }
}

/// What `bind` is asked for on a socket of `family`.
///
/// # Errors
/// As Linux says: a short address `EINVAL`, another family's `EAFNOSUPPORT` (but `AF_UNSPEC`
/// with any address is taken on an IPv4 socket), an IPv6 group and an IPv4 address on a
/// socket of IPv6 alone `EINVAL`.
pub fn parse_bind(socket: Family, v6only: bool, bytes: &[u8]) -> Result<Endpoint, Errno> {
    let named = family(bytes)
        .filter(|_| bytes.len() <= SOCKADDR_STORAGE)
        .ok_or(Errno::EINVAL)?;
    match socket {
        Family::V4 => {
            if bytes.len() < SOCKADDR_IN {
                return Err(Errno::EINVAL);
            }
            let at = in4(bytes)?;
            if named == socket.number() || (named == AF_UNSPEC && at.ip == ANY4) {
                return Ok(at);
            }
            Err(Errno::EAFNOSUPPORT)
        }
        Family::V6 => {
            if bytes.len() < SIN6_LEN_RFC2133 {
                return Err(Errno::EINVAL);
            }
            if named != socket.number() {
                return Err(Errno::EAFNOSUPPORT);
            }
            let at = in6(bytes)?;
            let illegal =
                at.ip[0] == 0xff || (is_v4(&at.ip) && v6only) || lacks_link(&at.ip, bytes);
            if illegal { Err(Errno::EINVAL) } else { Ok(at) }
        }
    }
}

/// An address as bytes, and how many of them there are. Who has less room for it gets as
/// many as fit, and this length.
#[must_use]
pub fn write(family: Family, at: Endpoint) -> ([u8; SOCKADDR_BYTES], usize) {
    let mut bytes = [0; SOCKADDR_BYTES];
    bytes[..2].copy_from_slice(&family.number().to_ne_bytes());
    bytes[2..4].copy_from_slice(&at.port.to_be_bytes());
    match family {
        Family::V4 => {
            bytes[4..8].copy_from_slice(&at.ip[12..]);
            (bytes, SOCKADDR_IN)
        }
        Family::V6 => {
            bytes[8..24].copy_from_slice(&at.ip);
            (bytes, SOCKADDR_BYTES)
        }
    }
}
