//! From where to where a connection goes.

use crate::address::{ANY4, ANY6, LOOPBACK4, LOOPBACK6, is_any, is_loopback, is_multicast, is_v4};
use crate::{Addresses, Errno, Ip};
use guard::guard;

/// The addresses of a connection of a socket bound to `bound` (maybe any) to `to`: its own,
/// and the other's, for which any address stands for this endpoint.
pub(crate) fn route(bound: &Ip, own: &Addresses, to: &Ip) -> Result<(Ip, Ip), Errno> {
    let mapped = is_v4(bound);
    let to = match *to {
        ANY6 if mapped => LOOPBACK4,
        ANY6 => LOOPBACK6,
        ANY4 if is_any(bound) => LOOPBACK4,
        ANY4 => *bound,
        ip => ip,
    };
    match (mapped, is_v4(&to)) {
        // Bound to an IPv6 address, to an IPv4 one; and the other way round. So measured.
        (false, true) if !is_any(bound) => return Err(Errno::ENETUNREACH),
        (true, false) => return Err(Errno::EAFNOSUPPORT),
        _ => {}
    }
    if is_multicast(&to) {
        return Err(Errno::ENETUNREACH);
    }
    if !is_any(bound) {
        // It was its own when it was bound.
        if !own.local(bound) && guard!("circuits-from-gone") {
            return Err(Errno::ENETUNREACH);
        }
        // A loopback address leaves no endpoint.
        let stays = own.local(&to) || !is_loopback(bound);
        return if stays {
            Ok((*bound, to))
        } else {
            Err(Errno::EINVAL)
        };
    }
    let from = if is_loopback(&to) {
        if is_v4(&to) { LOOPBACK4 } else { LOOPBACK6 }
    } else if own.own(&to) {
        to
    } else {
        let first = own.all().iter().find(|ip| is_v4(ip) == is_v4(&to));
        *first.ok_or(Errno::ENETUNREACH)?
    };
    Ok((from, to))
}
