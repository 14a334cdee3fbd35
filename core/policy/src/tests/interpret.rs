//! A naive reading of a spec's rules: walked as they are written, one packet at a time,
//! nothing shared with what makes the tables.

use crate::{Ids, Intent, PortIntent};
use core::net::{IpAddr, Ipv6Addr};
use image::rules::{Action, DEFAULT_RULE};
use spec::{Accept, Endpoint, Offer, Selector, Spec, Tenant, Traffic};
use wire::{MacAddress, Tuple};

pub(crate) struct Reader<'a> {
    pub spec: &'a Spec,
    pub ids: &'a Ids,
    pub intent: &'a Intent,
    pub now: u64,
}

fn ip(address: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(address);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

fn in_prefix(prefix: &str, address: IpAddr) -> bool {
    prefix
        .parse::<spec::Prefix>()
        .expect("prefix")
        .contains(address)
}

/// Who asks: an endpoint about what it sends, or about what is sent to it.
struct View<'a> {
    tenant: &'a Tenant,
    endpoint: &'a Endpoint,
    sends: bool,
}

impl<'a> Reader<'a> {
    pub fn tenant(&self, name: &str) -> &'a Tenant {
        let mut all = self.spec.tenants.iter();
        all.find(|t| t.name.as_str() == name).expect("tenant")
    }

    /// What the spec says about a packet at an endpoint, and the number of what says so.
    pub fn judge(&self, port: &PortIntent, sends: bool, tuple: &Tuple) -> (Action, u32) {
        let tenant = self.tenant(&port.tenant);
        let mut all = tenant.endpoints.iter();
        let endpoint = all
            .find(|e| e.name.as_str() == port.endpoint)
            .expect("endpoint");
        let view = View {
            tenant,
            endpoint,
            sends,
        };
        let ids = &self.ids.tenants[&port.tenant];
        for rail in &self.spec.guardrails {
            if rail.concerns(&tenant.name.value) && self.matches(&view, &rail.traffic(), tuple) {
                let id = self.ids.guardrails[rail.name.as_str()];
                return (action(rail.action, rail.stateful()), id);
            }
        }
        let to = ip(tuple.destination);
        let stands = |accept: &Accept| {
            sends && accept.as_.iter().any(|a| a.value.0 == to) && self.live(tenant, accept, to)
        };
        for accept in &tenant.accepts {
            if stands(accept) && !self.may_use(&view, accept) {
                return (Action::Deny, ids.accepts[accept.name.as_str()]);
            }
        }
        let mut rules: Vec<_> = tenant.policy.iter().flat_map(|p| &p.rules).collect();
        rules.sort_by_key(|r| r.priority());
        for rule in rules {
            if self.matches(&view, &rule.traffic(), tuple) {
                let id = ids.rules[rule.name.as_str()];
                return (action(rule.action, rule.stateful()), id);
            }
        }
        let service = |offer: &Offer| {
            let port = tuple.destination_port;
            spec::Protocol::Number(tuple.protocol) == offer.protocol()
                && offer
                    .ports
                    .iter()
                    .any(|p| p.first <= port && port <= p.last)
        };
        for offer in &tenant.offers {
            let server = offer.endpoint.as_ref().map(|e| &e.value);
            let here = !sends && server == Some(&endpoint.name.value);
            if here && service(offer) && self.user(tenant, offer, ip(tuple.source)) {
                return (Action::Allow, ids.offers[offer.name.as_str()]);
            }
        }
        if let Some(accept) = tenant.accepts.iter().find(|a| stands(a)) {
            let id = ids.accepts[accept.name.as_str()];
            let offer = self.offer(tenant, accept).expect("live");
            let used = service(offer);
            return (if used { Action::Allow } else { Action::Deny }, id);
        }
        let peer = if sends {
            tuple.destination
        } else {
            tuple.source
        };
        let defaults = tenant.defaults();
        let default = match (self.is_inside(tenant, ip(peer)), sends) {
            (true, _) => defaults.inside,
            (false, true) => defaults.outbound,
            (false, false) => defaults.inbound,
        };
        (action(default, true), DEFAULT_RULE)
    }

    fn matches(&self, view: &View<'_>, traffic: &Traffic<'_>, tuple: &Tuple) -> bool {
        let (source, destination) = (ip(tuple.source), ip(tuple.destination));
        let parties = if view.sends {
            self.is_me(view, traffic.from, source) && self.is_them(view, traffic.to, destination)
        } else {
            self.is_me(view, traffic.to, destination) && self.is_them(view, traffic.from, source)
        };
        let protocol = match traffic.protocol {
            spec::Protocol::Any => true,
            spec::Protocol::Number(n) => n == tuple.protocol,
        };
        let among = |list: &[spec::Located<spec::PortRange>], port: u16| {
            list.is_empty() || list.iter().any(|p| p.first <= port && port <= p.last)
        };
        let [kind, code] = tuple.destination_port.to_be_bytes();
        let message = traffic.icmp.is_empty()
            || traffic.icmp.iter().any(|m| {
                let (k, c) = m
                    .numbers(traffic.protocol == spec::Protocol::ICMP6)
                    .expect("known");
                k == kind && c.is_none_or(|c| c == code)
            });
        parties
            && protocol
            && among(traffic.ports, tuple.destination_port)
            && among(traffic.source_ports, tuple.source_port)
            && (message || !traffic.protocol.is_icmp())
    }

    fn chosen(selector: &Selector, endpoint: &Endpoint) -> bool {
        match selector {
            Selector::Endpoint(names) => names.iter().any(|n| n.value == endpoint.name.value),
            Selector::Subnet(names) => names.iter().any(|n| n.value == endpoint.subnet.value),
            Selector::Label(asked) => asked.0.iter().all(|(key, value)| {
                let own = endpoint.labels.iter().flat_map(|l| &l.0);
                own.into_iter().any(|(k, v)| k == key && v == value)
            }),
            _ => false,
        }
    }

    fn is_me(&self, view: &View<'_>, selector: &Selector, own: IpAddr) -> bool {
        match selector {
            Selector::Any => true,
            Selector::Outside | Selector::Agreement(_) => false,
            Selector::Prefix(list) => list.iter().any(|p| p.contains(own)),
            other => Self::chosen(other, view.endpoint),
        }
    }

    fn is_them(&self, view: &View<'_>, selector: &Selector, address: IpAddr) -> bool {
        let tenant = view.tenant;
        match selector {
            Selector::Any => true,
            Selector::Outside => !self.is_inside(tenant, address),
            Selector::Prefix(list) => list.iter().any(|p| p.contains(address)),
            Selector::Agreement(name) => {
                let offer = tenant.offers.iter().find(|o| o.name.value == name.value);
                let accept = tenant.accepts.iter().find(|a| a.name.value == name.value);
                offer.is_some_and(|offer| self.user(tenant, offer, address))
                    || accept.is_some_and(|accept| {
                        let stands = accept.as_.iter().any(|a| a.value.0 == address);
                        stands && self.live(tenant, accept, address)
                    })
            }
            other => {
                let of_subnet = match other {
                    Selector::Subnet(names) => tenant
                        .subnets
                        .iter()
                        .filter(|s| names.iter().any(|n| n.value == s.name.value))
                        .any(|s| s.prefixes.iter().any(|p| p.contains(address))),
                    _ => false,
                };
                of_subnet
                    || tenant.endpoints.iter().any(|e| {
                        Self::chosen(other, e)
                            && (self.addresses(tenant, e).contains(&address)
                                || e.prefixes.iter().any(|p| p.contains(address)))
                    })
            }
        }
    }

    /// All that an endpoint has, however it came by it.
    pub fn addresses(&self, tenant: &Tenant, endpoint: &Endpoint) -> Vec<IpAddr> {
        let name = format!("{}/{}", tenant.name.value, endpoint.name.value);
        let (_, port) = self.intent.endpoint(&name).expect("port");
        let mut all = port.addresses.clone();
        let subnet = tenant.subnet(&endpoint.subnet).expect("subnet");
        let link_local = wire::address::link_local(MacAddress(port.mac));
        all.push(ip(link_local));
        if let Some(prefix) = subnet.prefix6().filter(|_| subnet.slaac()) {
            let mut address = spec::mapped(prefix.network);
            address[8..].copy_from_slice(&link_local[8..]);
            all.push(ip(address));
        }
        all
    }

    fn is_inside(&self, tenant: &Tenant, address: IpAddr) -> bool {
        let own = tenant.subnets.iter().flat_map(|s| &s.prefixes);
        let behind = tenant.endpoints.iter().flat_map(|e| &e.prefixes);
        let never_leaves = match address {
            IpAddr::V4(a) => {
                a.is_unspecified() || a.is_link_local() || a.is_multicast() || a.is_broadcast()
            }
            IpAddr::V6(a) => {
                a.is_unspecified() || a.is_multicast() || in_prefix("fe80::/10", address)
            }
        };
        never_leaves || own.chain(behind).any(|p| p.contains(address))
    }

    fn offer(&self, acceptor: &Tenant, accept: &Accept) -> Option<&'a Offer> {
        let offerer = self
            .spec
            .tenants
            .iter()
            .find(|t| t.name.value == accept.from.value)?;
        offerer.offers.iter().find(|o| {
            o.name.value == accept.service.value
                && o.to.iter().any(|n| n.value == acceptor.name.value)
                && o.until.is_none_or(|until| until.value.0 > self.now)
        })
    }

    /// Whether an acceptance stands, in the address's family.
    fn live(&self, acceptor: &Tenant, accept: &Accept, address: IpAddr) -> bool {
        let Some(offer) = self.offer(acceptor, accept) else {
            return false;
        };
        let offerer = self.tenant(accept.from.as_str());
        let name = format!(
            "{}/{}",
            offerer.name.value,
            offer.endpoint.as_ref().expect("server").value
        );
        let (_, server) = self.intent.endpoint(&name).expect("server");
        let v4 = address.is_ipv4();
        server.addresses.iter().any(|a| a.is_ipv4() == v4)
            && offer.pool.iter().any(|p| p.is_v4() == v4)
            && accept.as_.iter().any(|a| a.value.0.is_ipv4() == v4)
    }

    fn may_use(&self, view: &View<'_>, accept: &Accept) -> bool {
        match &accept.endpoints {
            None => true,
            Some(selector) => {
                selector.value == Selector::Any || Self::chosen(&selector.value, view.endpoint)
            }
        }
    }

    /// Whether an address is one that a user of the offer appears as.
    fn user(&self, offerer: &Tenant, offer: &Offer, address: IpAddr) -> bool {
        self.spec.tenants.iter().any(|acceptor| {
            acceptor.accepts.iter().any(|accept| {
                accept.from.value == offerer.name.value
                    && accept.service.value == offer.name.value
                    && self.live(acceptor, accept, address)
                    && (offer.pool_of(&acceptor.name.value).iter()).any(|p| p.contains(address))
            })
        })
    }
}

fn action(action: spec::Action, stateful: bool) -> Action {
    match (action, stateful) {
        (spec::Action::Deny, _) => Action::Deny,
        (spec::Action::Allow, true) => Action::Allow,
        (spec::Action::Allow, false) => Action::AllowStateless,
    }
}
