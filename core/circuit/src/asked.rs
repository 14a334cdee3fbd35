//! What `socket()` is asked for, and what an unprivileged program in an empty network is
//! told.

use crate::{Errno, Family};

pub(crate) const AF_INET: i32 = 2;
pub(crate) const AF_INET6: i32 = 10;
const AF_PACKET: i32 = 17;
const AF_XDP: i32 = 44;

const SOCK_STREAM: i32 = 1;
const SOCK_DGRAM: i32 = 2;
const SOCK_RAW: i32 = 3;
const SOCK_PACKET: i32 = 10;
const SOCK_MAX: i32 = 11;
const SOCK_TYPE: i32 = 0xf;
const SOCK_NONBLOCK: i32 = 0x800;
const SOCK_CLOEXEC: i32 = 0x80000;

const ICMP: i32 = 1;
const TCP: i32 = 6;
const UDP: i32 = 17;
const ICMP6: i32 = 58;
const MPTCP: i32 = 262;

/// What `socket()` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// TCP: a circuit. MPTCP is one too: whose peer has no MPTCP is told of TCP.
    Stream {
        /// Of which addresses.
        family: Family,
        /// `SOCK_NONBLOCK`
        nonblock: bool,
        /// `SOCK_CLOEXEC`
        cloexec: bool,
    },
    /// UDP.
    Datagram {
        /// Of which addresses.
        family: Family,
        /// `SOCK_NONBLOCK`
        nonblock: bool,
        /// `SOCK_CLOEXEC`
        cloexec: bool,
    },
    /// Nothing that there is.
    Refused(Errno),
}

/// Judges `socket(domain, kind, protocol)`. AF_UNIX and netlink are not asked here; they
/// are told that there is no such family.
#[must_use]
pub fn asked(domain: i32, kind: i32, protocol: i32) -> Asked {
    judge(domain, kind, protocol).unwrap_or_else(Asked::Refused)
}

fn judge(domain: i32, kind: i32, protocol: i32) -> Result<Asked, Errno> {
    let nonblock = kind & SOCK_NONBLOCK != 0;
    let cloexec = kind & SOCK_CLOEXEC != 0;
    let plain = kind & SOCK_TYPE;
    // The kernel takes no other flags, and looks at the type before the family's module.
    if kind & !(SOCK_TYPE | SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let family = match domain {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        0..=45 => None,
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    if plain >= SOCK_MAX {
        return Err(Errno::EINVAL);
    }
    let Some(family) = family else {
        return Err(match domain {
            AF_PACKET | AF_XDP => Errno::EPERM,
            // Those that a kernel may have (vsock, alg, SMC, Bluetooth...): not here.
            _ => Errno::EAFNOSUPPORT,
        });
    };
    // `SOCK_PACKET` of IPv4 is an old name of AF_PACKET.
    if family == Family::V4 && plain == SOCK_PACKET {
        return Err(Errno::EPERM);
    }
    if !(0..=MPTCP).contains(&protocol) {
        return Err(Errno::EINVAL);
    }
    match (plain, protocol) {
        (SOCK_STREAM, 0 | TCP | MPTCP) => Ok(Asked::Stream {
            family,
            nonblock,
            cloexec,
        }),
        (SOCK_DGRAM, 0 | UDP) => Ok(Asked::Datagram {
            family,
            nonblock,
            cloexec,
        }),
        // Echo requests without privilege: the group range is empty in an empty network.
        (SOCK_DGRAM, ICMP) if family == Family::V4 => Err(Errno::EACCES),
        (SOCK_DGRAM, ICMP6) if family == Family::V6 => Err(Errno::EACCES),
        // UDP-Lite, which the kernel still has, is not offered.
        (SOCK_STREAM | SOCK_DGRAM, _) | (SOCK_RAW, 0) => Err(Errno::EPROTONOSUPPORT),
        (SOCK_RAW, _) => Err(Errno::EPERM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}
