//! Options in which UDP's answers are not TCP's.

use crate::option::{Outcome, cut, int};
use crate::options::{SOL_IP, SOL_IPV6, SOL_SOCKET};
use crate::{Errno, Facts, Family};

const SOL_UDP: i32 = 17;
/// `SO_SNDTIMEO` in both widths: how long a send waits is not the program's to say, for the
/// AF_UNIX socket waits where UDP drops.
const SEND_TIMEOUT: [i32; 2] = [21, 67];
/// Bytes of a `struct timeval`.
const TIMEVAL: usize = 16;

/// `setsockopt`, where it differs; `None`: as for TCP.
pub(crate) fn set(
    at: &Facts,
    level: i32,
    name: i32,
    value: &[u8],
) -> Option<Result<Outcome, Errno>> {
    let number = value.first_chunk().map(|it| i32::from_ne_bytes(*it));
    let byte = number.or_else(|| value.first().map(|it| i32::from(*it)));
    let accepted = |fine| {
        Some(if fine {
            Ok(Outcome::Accepted)
        } else {
            Err(Errno::EINVAL)
        })
    };
    match (level, name) {
        (SOL_SOCKET, name) if SEND_TIMEOUT.contains(&name) => accepted(value.len() >= TIMEVAL),
        // ADD_MEMBERSHIP, DROP_MEMBERSHIP: there is no device to be in a group on.
        (SOL_IP, 35) if value.len() >= 8 => Some(Err(Errno::ENODEV)),
        (SOL_IP, 35 | 36) => Some(Err(Errno::EINVAL)),
        (SOL_IP, 9) => Some(Err(Errno::ENOPROTOOPT)),
        // RECVFRAGSIZE: nothing comes in fragments.
        (SOL_IP, 25) => accepted(true),
        // MULTICAST_IF: to none. MULTICAST_TTL: nothing goes to a group.
        (SOL_IP, 32) => match number {
            None => accepted(false),
            Some(0) => accepted(true),
            Some(_) => Some(Err(Errno::EADDRNOTAVAIL)),
        },
        (SOL_IP, 33) => accepted(byte.is_some_and(|it| (-1..=255).contains(&it))),
        (SOL_IPV6, 17) if at.family == Family::V6 => match number {
            None => accepted(false),
            Some(0 | 1) => accepted(true),
            Some(_) => Some(Err(Errno::ENODEV)),
        },
        (SOL_IPV6, 18) if at.family == Family::V6 => {
            accepted(number.is_some_and(|it| (-1..=255).contains(&it)))
        }
        (SOL_UDP, _) if value.len() < 4 => accepted(false),
        // NO_CHECK6_TX, NO_CHECK6_RX: nothing has a checksum.
        (SOL_UDP, 101 | 102) => accepted(true),
        // CORK, ENCAP, SEGMENT, GRO are taken away only: a datagram is what one call sends.
        (SOL_UDP, 1 | 100 | 103 | 104) if number == Some(0) => accepted(true),
        (SOL_UDP, _) => Some(Err(Errno::ENOPROTOOPT)),
        _ => None,
    }
}

/// `getsockopt`, where it differs; `None`: as for TCP.
pub(crate) fn read(
    at: &Facts,
    level: i32,
    name: i32,
    room: usize,
) -> Option<Result<Outcome, Errno>> {
    let told = |value| Some(Ok(Outcome::Answer(int(level, value, room))));
    match (level, name) {
        // PROTOCOL
        (SOL_SOCKET, 38) => told(SOL_UDP),
        (SOL_SOCKET, name) if SEND_TIMEOUT.contains(&name) => {
            Some(Ok(Outcome::Answer(cut(&[0; TIMEVAL], room))))
        }
        (SOL_IP, 9) => Some(Err(Errno::ENOPROTOOPT)),
        (SOL_IPV6, 6) if at.family == Family::V6 => Some(Err(Errno::ENOPROTOOPT)),
        (SOL_UDP, 1 | 10 | 11 | 100..=104) => told(0),
        (SOL_UDP, _) => Some(Err(Errno::ENOPROTOOPT)),
        _ => None,
    }
}
