//! Far sockets of an endpoint's, found by whose they are, where they lead, their names and their use; and where
//! proxies hear for whom.

use super::transitions::back;
use super::*;
use circuit::Way;
use std::collections::VecDeque;

/// Names of those that are gone: what came by them may still wait to be read.
const GONE: usize = 4096;

/// One far socket.
pub(super) struct Far {
    pub(super) slot: u32,
    pub(super) cookie: u64,
    pub(super) way: Way,
    pub(super) name: [u8; 16],
    /// Whether it gets to the program's: to one that was connected elsewhere when this was made it never does.
    pub(super) reaches: bool,
    /// When the operator had to do with it last, by a count.
    pub(super) used: u64,
}

/// What leads outside.
#[derive(Default)]
pub(in crate::mediate) struct Outside {
    /// Endpoints that have a proxy, though it may be gone for a moment.
    pub(super) led: BTreeSet<u32>,
    pub(super) far: BTreeMap<u64, Far>,
    pub(super) by_way: BTreeMap<(u64, Way), u64>,
    /// By their endpoints and the ports there.
    by_port: BTreeSet<(u32, u16, u64)>,
    /// Of each endpoint those in the order of their use: what is sent by strangers may have one go for each that comes.
    by_use: BTreeMap<u32, BTreeMap<u64, u64>>,
    /// By which of several what comes from where a way leads gets to a program, as the endpoint's proxy was told last.
    pub(super) theirs: BTreeMap<(u32, Way), u64>,
    by_name: BTreeMap<[u8; 16], Way>,
    gone: VecDeque<[u8; 16]>,
    /// Of each address with a port that is heard, for which sockets.
    pub(super) heard: BTreeMap<(u32, Endpoint), BTreeSet<u64>>,
    /// Sockets for which a proxy was not to be told yet.
    pub(super) late: BTreeSet<u64>,
    pub(super) used: u64,
}

impl Outside {
    /// Whether something is to be said to a proxy again before long.
    pub(in crate::mediate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// The way of what came from who has this name.
    pub(in crate::mediate) fn came_by(&self, name: &[u8; 16]) -> Option<Way> {
        self.by_name.get(name).map(back)
    }

    /// Whether a socket has a far one this way, by which what comes gets to it too.
    pub(in crate::mediate) fn leads(&self, cookie: u64, way: &Way) -> bool {
        self.reaching(cookie, way).is_some()
    }

    #[cfg(test)]
    pub(in crate::mediate) fn known(&self) -> usize {
        self.theirs.len()
    }

    /// Whether it has one.
    pub(in crate::mediate) fn has(&self, cookie: u64, way: &Way) -> bool {
        self.by_way.contains_key(&(cookie, *way))
    }

    pub(super) fn reaching(&self, cookie: u64, way: &Way) -> Option<u64> {
        let id = *self.by_way.get(&(cookie, *way))?;
        self.far.get(&id)?.reaches.then_some(id)
    }

    /// Where those lead that go from an endpoint's port.
    pub(super) fn ways(&self, slot: u32, port: u16) -> BTreeSet<Way> {
        let all = self.by_port.range((slot, port, 0)..=(slot, port, u64::MAX));
        let all = all.filter_map(|(.., id)| self.far.get(id));
        all.map(|far| far.way).collect()
    }

    /// Whether a slot's endpoint is to have a proxy, be there one just now or not.
    pub(in crate::mediate) fn is_led(&self, slot: u32) -> bool {
        self.led.contains(&slot)
    }

    /// A slot's endpoint has none any more, for good.
    pub(in crate::mediate) fn closes(&mut self, slot: u32) {
        self.led.remove(&slot);
        self.forget(slot);
    }

    /// Its proxy is gone, and what it had.
    pub(in crate::mediate) fn forget(&mut self, slot: u32) {
        let of: Vec<u64> = self.of(slot).map(|(id, _)| id).collect();
        for id in of {
            self.remove(id);
        }
        self.heard.retain(|(heard, _), _| *heard != slot);
    }

    /// Addresses with ports that are heard for an endpoint, and for which sockets.
    pub(super) fn heard_by(&self, slot: u32) -> impl Iterator<Item = (Endpoint, &BTreeSet<u64>)> {
        let first = Endpoint {
            ip: [0; 16],
            port: 0,
        };
        let all = self.heard.range((slot, first)..);
        let its = all.take_while(move |((of, _), _)| *of == slot);
        its.map(|((_, at), ids)| (*at, ids))
    }

    pub(super) fn of(&self, slot: u32) -> impl Iterator<Item = (u64, &Far)> {
        let all = (slot, 0, 0)..=(slot, u16::MAX, u64::MAX);
        let all = self.by_port.range(all);
        all.filter_map(|(.., id)| Some((*id, self.far.get(id)?)))
    }

    /// What comes from its peer goes by it from now on, if it `hears`.
    pub(super) fn insert(&mut self, id: u64, far: Far, hears: bool) {
        self.by_way.insert((far.cookie, far.way), id);
        self.by_port.insert((far.slot, far.way.local.port, id));
        self.by_use
            .entry(far.slot)
            .or_default()
            .insert(far.used, id);
        if hears {
            self.theirs.insert((far.slot, far.way), id);
        }
        self.by_name.insert(far.name, far.way);
        self.far.insert(id, far);
    }

    /// The name is known on, for a while.
    pub(super) fn remove(&mut self, id: u64) -> Option<u32> {
        let far = self.far.remove(&id)?;
        self.by_way.remove(&(far.cookie, far.way));
        self.by_port.remove(&(far.slot, far.way.local.port, id));
        if let Some(of) = self.by_use.get_mut(&far.slot) {
            of.remove(&far.used);
        }
        self.theirs
            .extract_if((far.slot, far.way)..=(far.slot, far.way), |_, it| *it == id)
            .for_each(drop);
        self.gone.push_back(far.name);
        while self.gone.len() > GONE
            && let Some(name) = self.gone.pop_front()
        {
            self.by_name.remove(&name);
        }
        Some(far.slot)
    }

    pub(super) fn name_of(&mut self, cookie: u64, way: &Way) -> Option<[u8; 16]> {
        let id = *self.by_way.get(&(cookie, *way))?;
        self.uses(id);
        Some(self.far.get(&id)?.name)
    }

    pub(super) fn uses(&mut self, id: u64) {
        self.used += 1;
        if let Some(far) = self.far.get_mut(&id) {
            let before = std::mem::replace(&mut far.used, self.used);
            let of = self.by_use.entry(far.slot).or_default();
            of.remove(&before);
            of.insert(far.used, id);
        }
    }

    /// How many an endpoint has.
    pub(super) fn count(&self, slot: u32) -> usize {
        self.by_use.get(&slot).map_or(0, BTreeMap::len)
    }

    /// The one of these that was used least lately.
    pub(super) fn oldest(&self, slot: u32) -> Option<(u64, &Far)> {
        let (_, id) = self.by_use.get(&slot)?.first_key_value()?;
        Some((*id, self.far.get(id)?))
    }
}
