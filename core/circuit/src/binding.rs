//! Which addresses an endpoint has, and which bindings are in each other's way.

use crate::address::{ANY4, ANY6, is_any, is_loopback, is_v4};
use crate::{Ip, Socket, State};

/// Addresses of an endpoint at most.
const ADDRESSES: usize = 16;

/// The addresses of one endpoint. It has the loopback ones besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    ips: [Ip; ADDRESSES],
    count: usize,
}

impl Addresses {
    /// These; `None`: more than 16.
    #[must_use]
    pub fn new(ips: &[Ip]) -> Option<Self> {
        let mut all = [ANY6; ADDRESSES];
        all.get_mut(..ips.len())?.copy_from_slice(ips);
        Some(Self {
            ips: all,
            count: ips.len(),
        })
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Ip] {
        &self.ips[..self.count]
    }

    /// Whether `ip` is one of them.
    #[must_use]
    pub fn own(&self, ip: &Ip) -> bool {
        self.all().contains(ip)
    }

    /// Whether what is sent to `ip` from here stays here.
    #[must_use]
    pub fn local(&self, ip: &Ip) -> bool {
        is_loopback(ip) || self.own(ip)
    }

    /// Whether a socket can be bound to `ip`. A group's address is none here, other than on
    /// Linux: nothing would ever arrive at it.
    pub(crate) fn bindable(&self, ip: &Ip) -> bool {
        is_any(ip) || self.local(ip)
    }
}

/// Whether two sockets' addresses overlap; ports are another matter.
pub(crate) fn overlap(one: (&Ip, bool), other: (&Ip, bool)) -> bool {
    one.0 == other.0 || covers(one, other) || covers(other, one)
}

/// Whether the first is an any address that the second is part of.
fn covers((any, v6only): (&Ip, bool), (ip, only): (&Ip, bool)) -> bool {
    match *any {
        ANY4 => is_v4(ip) || (*ip == ANY6 && !only),
        ANY6 => !v6only || !is_v4(ip),
        _ => false,
    }
}

/// Whether `new` may not have the port that `old` has: Linux's `inet_bind_conflict`.
pub(crate) fn conflicts(new: &Socket, ip: &Ip, old: &Socket) -> bool {
    if !overlap(
        (ip, new.options.v6only()),
        (&old.local.ip, old.options.v6only()),
    ) {
        return false;
    }
    let listens = matches!(old.state, State::Listening { .. });
    let reuse = new.options.reuse_address() && old.options.reuse_address() && !listens;
    let group = new.options.reuse_port() && old.options.reuse_port() && new.uid == old.uid;
    !reuse && !group
}

/// How well a listener fits what is connected to; `None`: not at all. The exact address
/// comes before any, and any of the family before any of both.
pub(crate) fn fit(listener: &Socket, ip: &Ip) -> Option<u8> {
    match listener.local.ip {
        own if own == *ip => Some(2),
        ANY4 if is_v4(ip) => Some(1),
        ANY6 if !is_v4(ip) => Some(1),
        ANY6 if !listener.options.v6only() => Some(0),
        _ => None,
    }
}
