//! The slots of a table, and what finds a socket in them. All indices follow from the slots.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::ops::RangeInclusive;

use crate::address::{LOOPBACK4, is_loopback};
use crate::groups::{Groups, Hears, Member};
use crate::queue::Queued;
use crate::record::Slot;
use crate::{Endpoint, Kind, Socket, State};

/// (kind, endpoint, port, remote port, slot).
type Ports = BTreeSet<(Kind, u32, u16, u16, u32)>;
/// The same, without the slot.
type Port = (Kind, u32, u16, u16);

/// Slots: those of sockets first, then those of pending connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Sockets, and what waits; behind the last that was used all are empty. A successor begins
    /// with none, while who called waits for it.
    slots: [Vec<Slot>; 2],
    /// How many slots are sockets', and how many there are in all.
    sockets: u32,
    all: u32,
    /// Free ones, of each kind, that were not. Some may be none any more: looked at when one is taken.
    free: [BinaryHeap<Reverse<u32>>; 2],
    /// Of each kind: whatever was never used is not before this.
    unused: [u32; 2],
    by_cookie: BTreeMap<u64, u32>,
    /// All that have a port.
    ports: Ports,
    /// And of those those that listen.
    listeners: Ports,
    /// Datagram sockets that have a port, by what they hear.
    groups: Groups,
    /// How many sockets have come to hear datagrams.
    heard: u64,
    /// Names of datagram sockets.
    by_name: BTreeMap<[u8; 16], u32>,
    /// (where to, endpoint, slot) of datagram sockets that are connected: one endpoint's and another's may be connected to one
    /// address, which is not the same place to both.
    connected: BTreeSet<(Endpoint, u32, u32)>,
    /// (listener's slot, sequence) to the slot of what waits.
    queues: BTreeMap<(u32, u64), u32>,
    /// How many connections wait at an endpoint's sockets.
    waiting: BTreeMap<u32, usize>,
    /// And at each listener's slot, by the agreement that they come by.
    queued: BTreeMap<(u32, u16), usize>,
    /// Cookies of sockets of which, or at which, something has changed.
    stirred: BTreeSet<u64>,
    /// Slots that have changed, each once, in that order: what is written first is there whenever
    /// what follows is.
    changed: VecDeque<u32>,
    has_changed: Vec<bool>,
}

/// By what a slot is found.
#[derive(Default, PartialEq, Eq)]
struct Keys {
    cookie: Option<u64>,
    port: Option<Port>,
    listens: Option<Port>,
    name: Option<[u8; 16]>,
    /// Of a datagram socket.
    hears: Option<(Hears, Member)>,
    /// Of a datagram socket.
    connected: Option<(Endpoint, u32)>,
    /// Listener's slot, sequence.
    queue: Option<(u32, u64)>,
    /// Listener's slot, agreement.
    comes: Option<(u32, u16)>,
}

impl Keys {
    fn of(slot: &Slot) -> Keys {
        match slot {
            Slot::Empty => Keys::default(),
            Slot::Socket(it) => {
                let port = (it.kind, it.endpoint, it.local.port, it.remote.port);
                let datagram = it.kind == Kind::Datagram;
                let connected = datagram && it.state == State::Connected;
                Keys {
                    cookie: Some(it.cookie),
                    port: it.held().then_some(port),
                    listens: matches!(it.state, State::Listening { .. }).then_some(port),
                    name: datagram.then_some(it.name),
                    hears: Hears::of(it).map(|hears| (hears, Member::of(it))),
                    connected: connected.then(|| (place(it.remote), it.endpoint)),
                    ..Keys::default()
                }
            }
            Slot::Pending(it) => Keys {
                queue: Some((it.listener, it.sequence)),
                comes: Some((it.listener, it.pending.crossing)),
                ..Keys::default()
            },
        }
    }
}

impl PartialEq for Sockets {
    fn eq(&self, other: &Self) -> bool {
        (self.sockets, self.all) == (other.sockets, other.all)
            && (0..self.all).all(|at| self.slot(at) == other.slot(at))
    }
}

impl Sockets {
    pub(crate) fn new(sockets: u32, pending: u32) -> Self {
        let all = sockets.saturating_add(pending);
        Self {
            slots: [const { Vec::new() }; 2],
            sockets,
            all,
            free: [const { BinaryHeap::new() }; 2],
            unused: [0, sockets],
            by_cookie: BTreeMap::new(),
            ports: BTreeSet::new(),
            listeners: BTreeSet::new(),
            groups: Groups::default(),
            heard: 0,
            by_name: BTreeMap::new(),
            connected: BTreeSet::new(),
            queues: BTreeMap::new(),
            waiting: BTreeMap::new(),
            queued: BTreeMap::new(),
            stirred: BTreeSet::new(),
            changed: VecDeque::new(),
            has_changed: vec![false; all as usize],
        }
    }

    pub(crate) fn slot(&self, at: u32) -> &Slot {
        #[cfg(test)]
        crate::tests::LOOKS.set(crate::tests::LOOKS.get() + 1);
        let (kind, index) = self.place(at);
        let slot = self.slots.get(kind).and_then(|slots| slots.get(index));
        slot.unwrap_or(&Slot::Empty)
    }

    /// The kind of a slot, and which of them it is.
    const fn place(&self, at: u32) -> (usize, usize) {
        match at.checked_sub(self.sockets) {
            Some(index) => (1, index as usize),
            None => (0, at as usize),
        }
    }

    /// Whether it is one, and nothing is there.
    fn is_free(&self, at: u32) -> bool {
        at < self.all && *self.slot(at) == Slot::Empty
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

    /// In the order of their cookies.
    pub(crate) fn all_sockets(&self) -> impl Iterator<Item = &Socket> {
        self.by_cookie.values().filter_map(|at| self.socket(*at))
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

    /// How many connections wait at a listener that come by this agreement.
    pub(crate) fn queued(&self, listener: u32, crossing: u16) -> usize {
        let count = self.queued.get(&(listener, crossing));
        count.copied().unwrap_or(0)
    }

    /// How many connections wait at a listener. Bound: agreements that they come by.
    pub(crate) fn queued_all(&self, listener: u32) -> usize {
        let all = self.queued.range((listener, 0)..=(listener, u16::MAX));
        all.map(|(_, count)| count).sum()
    }

    /// Something has changed at this socket.
    pub(crate) fn stir(&mut self, cookie: u64) {
        self.stirred.insert(cookie);
    }

    /// The next of those of which, or at which, something has changed.
    pub(crate) fn stirred(&mut self) -> Option<u64> {
        self.stirred.pop_first()
    }

    /// Those of a kind and an endpoint that have this port.
    pub(crate) fn holders(
        &self,
        kind: Kind,
        endpoint: u32,
        port: u16,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        self.at(&self.ports, kind, (endpoint, port), 0..=u16::MAX)
    }

    /// Of these who is connected, or about to be, to this port of whatever address.
    pub(crate) fn holders_to(
        &self,
        kind: Kind,
        endpoint: u32,
        port: u16,
        remote: u16,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        self.at(&self.ports, kind, (endpoint, port), remote..=remote)
    }

    /// Datagram sockets by what they hear.
    pub(crate) const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The datagram socket of this name.
    pub(crate) fn named(&self, name: &[u8; 16]) -> Option<&Socket> {
        self.socket(*self.by_name.get(name)?)
    }

    /// Endpoints with datagram sockets that are connected there, each once: however many it has costs nothing.
    pub(crate) fn connectors(&self, to: Endpoint) -> impl Iterator<Item = u32> {
        let (to, mut from) = (place(to), Some(0));
        std::iter::from_fn(move || {
            let mut rest = self
                .connected
                .range((to, from?, 0)..=(to, u32::MAX, u32::MAX));
            let (_, endpoint, _) = *rest.next()?;
            from = endpoint.checked_add(1);
            Some(endpoint)
        })
    }

    /// Those of an endpoint in the order of their slots, from this one on.
    pub(crate) fn connected(
        &self,
        to: Endpoint,
        endpoint: u32,
        from: u32,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        let to = place(to);
        let range = (self.connected).range((to, endpoint, from)..=(to, endpoint, u32::MAX));
        range.filter_map(|(.., at)| Some((*at, self.socket(*at)?)))
    }

    /// Those that listen at it.
    pub(crate) fn listeners(
        &self,
        endpoint: u32,
        port: u16,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        let all = 0..=u16::MAX;
        self.at(&self.listeners, Kind::Stream, (endpoint, port), all)
    }

    fn at<'a>(
        &'a self,
        index: &'a Ports,
        kind: Kind,
        (endpoint, port): (u32, u16),
        remote: RangeInclusive<u16>,
    ) -> impl Iterator<Item = (u32, &'a Socket)> {
        let key = |remote: &u16, slot| (kind, endpoint, port, *remote, slot);
        let range = index.range(key(remote.start(), 0)..=key(remote.end(), u32::MAX));
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

    /// A free slot of a socket, the first.
    pub(crate) fn free_socket(&mut self) -> Option<u32> {
        self.first_free(0)
    }

    /// A free slot of a pending connection, the first.
    pub(crate) fn free_pending(&mut self) -> Option<u32> {
        self.first_free(1)
    }

    /// Bound: each that is none any more is looked at once.
    fn first_free(&mut self, kind: usize) -> Option<u32> {
        while let Some(Reverse(at)) = self.free.get(kind)?.peek()
            && !self.is_free(*at)
        {
            self.free.get_mut(kind)?.pop();
        }
        let end = [self.sockets, self.all].get(kind).copied()?;
        let mut unused = *self.unused.get(kind)?;
        while unused < end && !self.is_free(unused) {
            unused += 1;
        }
        *self.unused.get_mut(kind)? = unused;
        let freed = self.free.get(kind)?.peek().map(|Reverse(at)| *at);
        let unused = (unused < end).then_some(unused);
        freed.into_iter().chain(unused).min()
    }

    /// Whether `slot` may lie at `at`, a free place.
    pub(crate) fn fits(&self, at: u32, slot: &Slot) -> bool {
        self.is_free(at)
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
    pub(crate) fn put(&mut self, at: u32, mut slot: Slot) {
        if let Slot::Socket(socket) = &mut slot
            && socket.kind == Kind::Datagram
        {
            self.is_heard_since(at, socket);
        }
        let (kind, index) = self.place(at);
        let (Some(slots), Some(has_changed)) = (
            self.slots.get_mut(kind),
            self.has_changed.get_mut(at as usize),
        ) else {
            return;
        };
        if !core::mem::replace(has_changed, true) {
            self.changed.push_back(at);
        }
        if slots.len() <= index && slot != Slot::Empty {
            slots.resize(index + 1, Slot::Empty);
        }
        let old = match slots.get_mut(index) {
            Some(place) => core::mem::replace(place, slot),
            None => Slot::Empty,
        };
        for one in [&old, &slot] {
            self.stirred.extend(match one {
                Slot::Empty => None,
                Slot::Socket(it) => Some(it.cookie),
                Slot::Pending(it) => Some(it.cookie),
            });
        }
        let [before, after] = [&old, &slot].map(Keys::of);
        // Mostly it is found as before.
        if before != after {
            self.index(at, before, after);
        }
        if slot == Slot::Empty
            && old != slot
            && let Some(free) = self.free.get_mut(kind)
        {
            free.push(Reverse(at));
        }
    }

    /// A datagram socket that hears another than before comes before those that hear the same; one from a record has its place.
    fn is_heard_since(&mut self, at: u32, socket: &mut Socket) {
        let before = match self.slot(at) {
            Slot::Socket(it) => Hears::of(it).map(|hears| (hears, it.token)),
            _ => None,
        };
        socket.token = match (Hears::of(socket), before) {
            (None, _) => 0,
            (Some(hears), Some((heard, since))) if hears == heard => since,
            (Some(_), None) if socket.token != 0 => socket.token,
            (Some(_), _) => self.heard.saturating_add(1),
        };
        self.heard = self.heard.max(socket.token);
    }

    fn index(&mut self, at: u32, before: Keys, after: Keys) {
        let slot = |(kind, endpoint, port, remote): Port| (kind, endpoint, port, remote, at);
        rename(&mut self.by_cookie, before.cookie, after.cookie, at);
        rename(&mut self.by_name, before.name, after.name, at);
        if before.hears != after.hears {
            if let Some(it) = before.hears {
                self.groups.remove(it);
            }
            if let Some(it) = after.hears {
                self.groups.insert(it);
            }
        }
        let ports = [before.port, after.port].map(|key| key.map(slot));
        reenter(&mut self.ports, ports);
        let listens = [before.listens, after.listens].map(|key| key.map(slot));
        reenter(&mut self.listeners, listens);
        let connected = [before.connected, after.connected];
        let connected = connected.map(|key| key.map(|(to, endpoint)| (to, endpoint, at)));
        reenter(&mut self.connected, connected);
        rename(&mut self.queues, before.queue, after.queue, at);
        for (key, there) in [(before.queue, false), (after.queue, true)] {
            // Its listener goes after it.
            if let Some((listener, _)) = key
                && let Some(endpoint) = self.socket(listener).map(|socket| socket.endpoint)
            {
                let count = self.waiting.entry(endpoint).or_default();
                *count = match there {
                    true => *count + 1,
                    false => count.saturating_sub(1),
                };
            }
        }
        if let Some(key) = before.comes
            && let Some(count) = self.queued.get_mut(&key)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.queued.remove(&key);
            }
        }
        if let Some(key) = after.comes {
            *self.queued.entry(key).or_default() += 1;
        }
    }

    /// The next slot whose record is to be written.
    pub(crate) fn changed(&mut self) -> Option<u32> {
        let at = self.changed.pop_front()?;
        if let Some(has_changed) = self.has_changed.get_mut(at as usize) {
            *has_changed = false;
        }
        Some(at)
    }

    pub(crate) fn unchanged(&mut self) {
        self.changed.clear();
        self.has_changed.fill(false);
        self.stirred.clear();
    }
}

/// What is connected to: inside an endpoint by whichever of loopback's addresses.
fn place(to: Endpoint) -> Endpoint {
    match is_loopback(&to.ip) {
        true => Endpoint {
            ip: LOOPBACK4,
            ..to
        },
        false => to,
    }
}

/// What was found by one key is by another.
fn rename<K: Ord>(index: &mut BTreeMap<K, u32>, before: Option<K>, after: Option<K>, at: u32) {
    if before != after {
        before.map(|key| index.remove(&key));
        after.map(|key| index.insert(key, at));
    }
}

fn reenter<K: Ord>(set: &mut BTreeSet<K>, [before, after]: [Option<K>; 2]) {
    if before != after {
        before.map(|key| set.remove(&key));
        after.map(|key| set.insert(key));
    }
}
