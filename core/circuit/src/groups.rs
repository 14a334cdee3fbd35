//! Datagram sockets by what they hear: who of thousands that share a port gets a datagram is found without a look at each.

use crate::address::{ANY4, ANY6, is_v4};
use crate::datagram::Way;
use crate::{Endpoint, Family, Ip, Kind, Socket};
use std::collections::BTreeMap;

/// What all sockets of a group hear alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hears {
    endpoint: u32,
    port: u16,
    /// Whom it is connected to, if it is: it hears that one alone.
    from: Option<Endpoint>,
    ip: Ip,
    /// Of IPv4 alone.
    is_v4: bool,
    /// Bound to any address, and to none of IPv4.
    v6only: bool,
}

impl Hears {
    /// Of a datagram socket that has a port.
    pub(crate) fn of(socket: &Socket) -> Option<Hears> {
        let hears = socket.kind == Kind::Datagram && socket.held();
        hears.then(|| Hears {
            endpoint: socket.endpoint,
            port: socket.local.port,
            from: socket.remote(),
            ip: socket.local.ip,
            is_v4: socket.family == Family::V4,
            v6only: socket.local.ip == ANY6 && socket.options.v6only(),
        })
    }
}

/// A socket of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    cookie: u64,
    /// When it came, by a count: cookies follow no order, each processor has its own.
    since: u64,
    /// Whether it shares what comes.
    shares: bool,
}

impl Member {
    /// Of a datagram socket that has a port.
    pub(crate) fn of(socket: &Socket) -> Member {
        Member {
            cookie: socket.cookie,
            since: socket.token,
            shares: socket.options.reuse_port(),
        }
    }
}

/// Sockets that hear the same.
#[derive(Debug, Default)]
struct Group {
    /// Since when each is there, and its cookie: the last comes into the place of one that goes, as in the kernel.
    members: Vec<(u64, u64)>,
    /// Where each is among them.
    places: BTreeMap<(u64, u64), usize>,
    /// How many do not share what comes.
    alone: usize,
}

impl Group {
    fn newest(&self) -> Option<(u64, u64)> {
        self.places.last_key_value().map(|(place, _)| *place)
    }

    fn pick(&self, hash: u32) -> Option<u64> {
        let picked = match self.alone {
            0 => {
                let at = (hash as usize).checked_rem(self.members.len())?;
                self.members.get(at).copied()
            }
            _ => self.newest(),
        };
        picked.map(|(_, cookie)| cookie)
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    all: BTreeMap<Hears, Group>,
}

impl Groups {
    /// One more.
    pub(crate) fn insert(&mut self, (hears, it): (Hears, Member)) {
        let group = self.all.entry(hears).or_default();
        let place = (it.since, it.cookie);
        group.places.insert(place, group.members.len());
        group.members.push(place);
        group.alone += usize::from(!it.shares);
    }

    /// One that was inserted so hears this no more.
    pub(crate) fn remove(&mut self, (hears, it): (Hears, Member)) {
        let Some(group) = self.all.get_mut(&hears) else {
            return;
        };
        if let Some(at) = group.places.remove(&(it.since, it.cookie)) {
            group.members.swap_remove(at);
            if let Some(moved) = group.members.get(at) {
                group.places.insert(*moved, at);
            }
            group.alone -= usize::from(!it.shares);
        }
        if group.members.is_empty() {
            self.all.remove(&hears);
        }
    }

    /// Who gets what goes this way to an endpoint, by its cookie: who is connected to the sender before who is not, the exact
    /// address before any of the family before any of both, one of IPv4 alone before one of both. Of those that share it `hash`
    /// picks; else the newest has it.
    pub(crate) fn receiver(&self, endpoint: u32, way: &Way, hash: u32) -> Option<u64> {
        let to = way.remote.ip;
        // Bound: twice each address that it may be bound to, of which there are three.
        [Some(way.local), None].into_iter().find_map(|from| {
            let group = |ip, is_of_v4, v6only| {
                let hears = Hears {
                    endpoint,
                    port: way.remote.port,
                    from,
                    ip,
                    is_v4: is_of_v4,
                    v6only,
                };
                // None of IPv4 hears who is not.
                let may = !is_of_v4 || is_v4(&way.local.ip);
                self.all.get(&hears).filter(|_| may)
            };
            let of_v6 = |v6only| group(ANY6, false, v6only);
            // Of the last two neither is the better.
            let (any4, any6) = match is_v4(&to) {
                true => (ANY4, [of_v6(false), None]),
                false => (to, [of_v6(false), of_v6(true)]),
            };
            let exact = [to, any4].map(|ip| [true, false].map(|is_v4| group(ip, is_v4, false)));
            let exact = exact.as_flattened().iter().find_map(|it| *it);
            let last = || any6.into_iter().flatten().max_by_key(|it| it.newest());
            exact.or_else(last)?.pick(hash)
        })
    }

    /// Whether anybody of an endpoint is connected this way.
    pub(crate) fn is_connected(&self, endpoint: u32, way: &Way) -> bool {
        [true, false].into_iter().any(|is_v4| {
            self.all.contains_key(&Hears {
                endpoint,
                port: way.local.port,
                from: Some(way.remote),
                ip: way.local.ip,
                is_v4,
                v6only: false,
            })
        })
    }
}
