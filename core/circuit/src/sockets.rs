//! The slots of a table, and what finds a socket in them. All indices follow from the slots.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::Queued;
use crate::record::Slot;
use crate::{Kind, Socket, State};

/// (kind, endpoint, port, slot).
type Ports = BTreeSet<(Kind, u32, u16, u32)>;

/// Slots: those of sockets first, then those of pending connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    slots: Vec<Slot>,
    /// How many slots are sockets'.
    sockets: u32,
    free: BTreeSet<u32>,
    by_cookie: BTreeMap<u64, u32>,
    /// All that have a port.
    ports: Ports,
    /// And of those those that listen.
    listeners: Ports,
    /// Names of datagram sockets.
    by_name: BTreeMap<[u8; 16], u32>,
    /// (remote port, slot) of datagram sockets that are connected.
    connected: BTreeSet<(u16, u32)>,
    /// (listener's slot, sequence) to the slot of what waits.
    queues: BTreeMap<(u32, u64), u32>,
    /// How many connections wait at an endpoint's sockets.
    waiting: BTreeMap<u32, usize>,
    changed: BTreeSet<u32>,
}

impl PartialEq for Sockets {
    fn eq(&self, other: &Self) -> bool {
        self.slots == other.slots && self.sockets == other.sockets
    }
}

impl Sockets {
    pub(crate) fn new(sockets: u32, pending: u32) -> Self {
        let all = sockets.saturating_add(pending);
        Self {
            slots: vec![Slot::Empty; all as usize],
            sockets,
            free: (0..all).collect(),
            by_cookie: BTreeMap::new(),
            ports: BTreeSet::new(),
            listeners: BTreeSet::new(),
            by_name: BTreeMap::new(),
            connected: BTreeSet::new(),
            queues: BTreeMap::new(),
            waiting: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    pub(crate) fn slot(&self, at: u32) -> &Slot {
        self.slots.get(at as usize).unwrap_or(&Slot::Empty)
    }

    pub(crate) fn socket(&self, at: u32) -> Option<&Socket> {
        match self.slot(at) {
            Slot::Socket(it) => Some(it),
            _ => None,
        }
    }

    pub(crate) fn find(&self, cookie: u64) -> Option<(u32, &Socket)> {
        let at = *self.by_cookie.get(&cookie)?;
        Some((at, self.socket(at)?))
    }

    pub(crate) fn cookies(&self) -> impl Iterator<Item = u64> {
        self.by_cookie.keys().copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.by_cookie.len()
    }

    pub(crate) fn pending(&self) -> usize {
        self.queues.len()
    }

    /// How many connections wait at an endpoint's sockets.
    pub(crate) fn waiting(&self, endpoint: u32) -> usize {
        self.waiting.get(&endpoint).copied().unwrap_or(0)
    }

    /// Those of a kind and an endpoint that have this port.
    pub(crate) fn holders(
        &self,
        kind: Kind,
        endpoint: u32,
        port: u16,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        self.at(&self.ports, kind, endpoint, port)
    }

    /// The datagram socket of this name.
    pub(crate) fn named(&self, name: &[u8; 16]) -> Option<&Socket> {
        self.socket(*self.by_name.get(name)?)
    }

    /// Datagram sockets that are connected to a port of whatever address.
    pub(crate) fn connected(&self, port: u16) -> impl Iterator<Item = &Socket> {
        let range = self.connected.range((port, 0)..=(port, u32::MAX));
        range.filter_map(|(_, at)| self.socket(*at))
    }

    /// Those that listen at it.
    pub(crate) fn listeners(
        &self,
        endpoint: u32,
        port: u16,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        self.at(&self.listeners, Kind::Stream, endpoint, port)
    }

    fn at<'a>(
        &'a self,
        index: &'a Ports,
        kind: Kind,
        endpoint: u32,
        port: u16,
    ) -> impl Iterator<Item = (u32, &'a Socket)> {
        let range = index.range((kind, endpoint, port, 0)..=(kind, endpoint, port, u32::MAX));
        range.filter_map(|(.., at)| Some((*at, self.socket(*at)?)))
    }

    /// The slots of what waits by this token, anywhere.
    pub(crate) fn of_token(&self, token: u64) -> Vec<u32> {
        let waiting = self.queues.values().copied();
        let of =
            |at: &u32| matches!(self.slot(*at), Slot::Pending(it) if it.pending.token == token);
        waiting.filter(of).collect()
    }

    /// What waits at a listener, the first first.
    pub(crate) fn queue(&self, listener: u32) -> impl DoubleEndedIterator<Item = (u32, &Queued)> {
        let range = self.queues.range((listener, 0)..=(listener, u64::MAX));
        range.filter_map(|(_, at)| match self.slot(*at) {
            Slot::Pending(it) => Some((*at, it)),
            _ => None,
        })
    }

    /// A free slot of a socket.
    pub(crate) fn free_socket(&self) -> Option<u32> {
        self.free.range(..self.sockets).next().copied()
    }

    /// A free slot of a pending connection.
    pub(crate) fn free_pending(&self) -> Option<u32> {
        self.free.range(self.sockets..).next().copied()
    }

    /// Whether `slot` may lie at `at`, a free place.
    pub(crate) fn fits(&self, at: u32, slot: &Slot) -> bool {
        self.free.contains(&at)
            && match slot {
                Slot::Empty => true,
                Slot::Socket(it) => {
                    let named = it.kind == Kind::Datagram && self.by_name.contains_key(&it.name);
                    at < self.sockets && !self.by_cookie.contains_key(&it.cookie) && !named
                }
                Slot::Pending(it) => {
                    let listens = self.socket(it.listener).is_some_and(|socket| {
                        socket.cookie == it.cookie
                            && matches!(socket.state, State::Listening { .. })
                    });
                    let taken = self.queues.contains_key(&(it.listener, it.sequence));
                    at >= self.sockets && listens && !taken
                }
            }
    }

    /// Puts `slot` in the place of what is there.
    pub(crate) fn put(&mut self, at: u32, slot: Slot) {
        let Some(place) = self.slots.get_mut(at as usize) else {
            return;
        };
        let old = core::mem::replace(place, slot);
        self.index(at, &old, false);
        self.index(at, &slot, true);
        self.changed.insert(at);
    }

    fn index(&mut self, at: u32, slot: &Slot, there: bool) {
        match slot {
            Slot::Empty => enter(&mut self.free, at, there),
            Slot::Socket(it) => {
                let key = (it.kind, it.endpoint, it.local.port, at);
                if there {
                    self.by_cookie.insert(it.cookie, at);
                } else {
                    self.by_cookie.remove(&it.cookie);
                }
                if it.held() {
                    enter(&mut self.ports, key, there);
                }
                if it.kind == Kind::Datagram {
                    if there {
                        self.by_name.insert(it.name, at);
                    } else {
                        self.by_name.remove(&it.name);
                    }
                    if it.state == State::Connected {
                        enter(&mut self.connected, (it.remote.port, at), there);
                    }
                }
                if matches!(it.state, State::Listening { .. }) {
                    enter(&mut self.listeners, key, there);
                }
            }
            Slot::Pending(it) => {
                // Its listener goes after it.
                let endpoint = self.socket(it.listener).map(|socket| socket.endpoint);
                let count = endpoint.map(|it| self.waiting.entry(it).or_default());
                if there {
                    self.queues.insert((it.listener, it.sequence), at);
                    count.into_iter().for_each(|count| *count += 1);
                } else {
                    self.queues.remove(&(it.listener, it.sequence));
                    let less = |count: &mut usize| *count = count.saturating_sub(1);
                    count.into_iter().for_each(less);
                }
            }
        }
    }

    /// The next slot whose record is to be written.
    pub(crate) fn changed(&mut self) -> Option<u32> {
        self.changed.pop_first()
    }

    pub(crate) fn unchanged(&mut self) {
        self.changed.clear();
    }
}

fn enter<K: Ord>(set: &mut BTreeSet<K>, key: K, there: bool) {
    if there {
        set.insert(key);
    } else {
        set.remove(&key);
    }
}
