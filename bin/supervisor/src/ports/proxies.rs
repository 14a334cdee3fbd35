//! Where an endpoint's circuits become TCP: a process in its namespace, which the compartment's
//! operator talks to by a link that is new whenever one of the two is.

use super::*;
use crate::role::{Purpose, Role};
use command::verbs::{CAUSE_EXIT, CREATE_CIRCUITS, PORT_PROXY};

/// After a proxy's death the next one waits, ns.
const AGAIN: u64 = 100_000_000;

/// An endpoint's proxy.
#[derive(Default)]
pub struct Proxy {
    /// The process.
    pub process: Option<u64>,
    /// Whether it is confined, and may be told.
    is_ready: bool,
    /// When one is started, ns.
    due: u64,
}

impl Proxy {
    /// None yet, for an endpoint that has circuits beside its interface.
    pub fn beside(body: &CreatePort) -> Option<Box<Proxy>> {
        let both = body.flags & CREATE_CIRCUITS != 0;
        both.then(Box::default)
    }

    fn is_wanted(port: &Port) -> Option<&Proxy> {
        let proxy = port.proxy.as_deref()?;
        (proxy.process.is_none() && port.closed == 0).then_some(proxy)
    }
}

impl Supervisor {
    fn proxy(&mut self, (compartment, slot): (u32, u32)) -> Option<&mut Proxy> {
        let home = self.compartments.get_mut(&compartment)?;
        home.ports.get_mut(&slot)?.proxy.as_deref_mut()
    }

    /// The namespace that the proxy of this place is to be in, and the interface's index there.
    pub fn namespace_of(&self, (compartment, slot): (u32, u32)) -> Option<(Shared, u32)> {
        match &self.compartments.get(&compartment)?.ports.get(&slot)?.kind {
            Kind::Interface {
                namespace, index, ..
            } => Some((Rc::clone(namespace), *index)),
            _ => None,
        }
    }

    /// Starts a proxy for an endpoint that has none; whether there was one.
    pub fn start_proxy(&mut self, now: u64) -> bool {
        let homes = self.compartments.iter();
        let homes = homes.filter(|(id, _)| !self.is_held_up(**id));
        let mut all = homes.flat_map(|(id, home)| {
            let ports = home.ports.iter();
            ports.map(move |(slot, port)| ((*id, *slot), port))
        });
        let wants = |port: &Port| Proxy::is_wanted(port).is_some_and(|proxy| proxy.due <= now);
        let Some(place) = all.find(|(_, port)| wants(port)).map(|(place, _)| place) else {
            return false;
        };
        let (role, profile) = (Role::Proxy, Role::Proxy.profile());
        let started = self.start_worker(role, profile, "bulkhead-proxy", Purpose::Proxy(place));
        if let Some(proxy) = self.proxy(place) {
            proxy.process = started;
            proxy.due = now + AGAIN;
        }
        true
    }

    /// When to look whether a proxy is to be started, ns.
    pub fn next_proxy(&self, now: u64) -> Option<u64> {
        const SOON: u64 = 1_000_000;
        let homes = self.compartments.iter();
        let homes = homes.filter(|(id, _)| !self.is_held_up(**id));
        let ports = homes.flat_map(|(_, home)| home.ports.values());
        let due = ports.filter_map(Proxy::is_wanted);
        due.map(|proxy| proxy.due.max(now.saturating_add(SOON)))
            .min()
    }

    /// A proxy is confined and waits.
    pub fn proxy_ready(&mut self, id: u64, place: (u32, u32)) {
        match self.proxy(place).filter(|proxy| proxy.process == Some(id)) {
            Some(proxy) => proxy.is_ready = true,
            None => return self.kill(id, None),
        }
        self.link_proxy(place);
        self.note_place(id, &format!("proxy-{}-{}", place.0, place.1));
    }

    /// A new link between an operator and a proxy, if both are there.
    pub(super) fn link_proxy(&mut self, place: (u32, u32)) {
        let (compartment, slot) = place;
        let operator = self.operator_of(compartment, slot);
        let proxy = self.proxy(place).filter(|proxy| proxy.is_ready);
        let (Some(operator), Some(proxy)) = (operator, proxy.and_then(|proxy| proxy.process))
        else {
            return;
        };
        let (Some((_, interface)), Ok((near, far))) = (self.namespace_of(place), Socket::pair())
        else {
            confine::say!("supervisor: no link for a proxy; the next one may have one");
            return self.end_process(proxy);
        };
        let body = AddPort {
            slot,
            kind: PORT_PROXY,
            max_record: interface,
            ..AddPort::default()
        };
        // The operator is given none by the proxy.
        let _ = notify::refuse_descriptors(near.as_fd());
        let message = Message::new(0, &body);
        if self.hand_over(proxy, &message, far.into_fd()) {
            self.tell(operator, &message, vec![Rc::new(near.into_fd())]);
        }
    }

    /// A proxy is dead, and its connections with it. The next one comes soon.
    pub fn proxy_lost(&mut self, id: u64, place: (u32, u32)) {
        let now = self.now();
        if let Some(proxy) = self.proxy(place).filter(|proxy| proxy.process == Some(id)) {
            proxy.process = None;
            proxy.due = proxy.due.max(now + AGAIN);
            // One that was on its way has carried nothing.
            if std::mem::take(&mut proxy.is_ready) {
                let subject = Subject::Seat(Seat::Compartment(place.0));
                let happened = Happened::new(EventKind::ProxyLost, subject).slot(place.1);
                self.happened(happened.cause(CAUSE_EXIT));
            }
        }
    }

    /// A proxy of before goes on; whether there is such a place, whose interface is there.
    pub fn adopt_proxy(&mut self, id: u64, place: (u32, u32)) -> bool {
        let home = self.compartments.get(&place.0);
        let port = home.and_then(|home| home.ports.get(&place.1));
        let is_open = port.is_some_and(|port| port.closed == 0);
        let proxy = self.proxy(place).filter(|_| is_open);
        match proxy.filter(|proxy| proxy.process.is_none()) {
            Some(proxy) => {
                proxy.process = Some(id);
                proxy.is_ready = true;
                true
            }
            None => false,
        }
    }
}

/// A place from its word.
pub fn place_of(word: &str) -> Option<(u32, u32)> {
    let (compartment, slot) = word.strip_prefix("proxy-")?.split_once('-')?;
    Some((compartment.parse().ok()?, slot.parse().ok()?))
}
