//! Services from tenant to tenant: offers, acceptances, and where the two meet.

use core::net::IpAddr;
use guard::guard;
use std::collections::{HashMap, HashSet};

use super::Check;
use super::policy::Known;
use crate::model::{Subnet, Tenant};
use crate::policy::{Accept, Offer};
use crate::selectors::Selector;
use crate::source::{Located, Span};
use crate::traffic::Protocol;
use crate::values::{Ip, Prefix};

impl Check<'_> {
    pub(super) fn offers(&mut self, tenant: &Tenant) {
        let names = (tenant.offers.iter().map(|o| &o.name))
            .chain(tenant.accepts.iter().map(|a| &a.name))
            .map(|name| (name.as_str(), name.span));
        self.distinct("name", "agreement", names);
        let endpoints: HashMap<&str, &Subnet> = tenant
            .endpoints
            .iter()
            .filter_map(|e| Some((e.name.as_str(), tenant.subnet(&e.subnet.value)?)))
            .collect();
        for offer in &tenant.offers {
            self.offer(tenant, offer, &endpoints);
        }
        self.pools(tenant);
    }

    fn offer(&mut self, tenant: &Tenant, offer: &Offer, endpoints: &HashMap<&str, &Subnet>) {
        self.offered_to(tenant, offer);
        if offer.is_routed() {
            self.routed_offer(tenant, offer);
        } else {
            self.service(tenant, offer, endpoints);
        }
    }

    fn offered_to(&mut self, tenant: &Tenant, offer: &Offer) {
        if offer.to.is_empty() && self.whole {
            self.findings
                .add("offer", offer.name.span, "the offer is to nobody")
                .help("name tenants: `to: [blue]`");
        }
        let to = offer.to.iter().map(|name| (name.as_str(), name.span));
        for (first, second, name) in super::duplicates(to) {
            self.findings
                .add(
                    "duplicate-name",
                    second,
                    format!("it is offered to `{name}` twice"),
                )
                .label("again here")
                .also(first, "first here")
                .help("remove one of the two");
        }
        for name in offer.to.iter() {
            self.other(tenant, name, "offers a service to");
        }
    }

    fn service(&mut self, tenant: &Tenant, offer: &Offer, endpoints: &HashMap<&str, &Subnet>) {
        let server = self.key(&offer.name, "an offer", "endpoint", offer.endpoint.as_ref());
        let subnet = server.and_then(|server| endpoints.get(server.as_str()).copied());
        if let (Some(server), None) = (server, subnet) {
            let mut names: Vec<&str> = tenant.endpoints.iter().map(|e| e.name.as_str()).collect();
            // An endpoint in no subnet is reported for itself.
            if !names.contains(&server.as_str()) {
                names.sort_unstable();
                self.missing(server, "endpoint", &names);
            }
        }
        let protocol = self.key(&offer.name, "an offer", "protocol", offer.protocol.as_ref());
        if let Some(protocol) = protocol
            && ![Protocol::TCP, Protocol::UDP].contains(&protocol.value)
        {
            self.findings
                .add(
                    "offer",
                    protocol.span,
                    format!("a service is of tcp or udp, not of {}", protocol.value),
                )
                .help("make one offer for each protocol");
        }
        if let Some(rings) = offer.rings.filter(|rings| rings.value.0)
            && protocol.is_some_and(|protocol| protocol.value == Protocol::UDP)
        {
            self.findings
                .add(
                    "offer",
                    rings.span,
                    "rings are of connections, and the service is of udp",
                )
                .help("remove `rings`: datagrams to another tenant go by the proxy");
        }
        if let Some(both) = offer.both {
            self.findings
                .add("offer", both.span, "who offers a service begins nothing")
                .help("remove `both`: it is for prefixes that are routed");
        }
        if offer.ports.is_empty() && self.whole {
            self.findings
                .add("ports", offer.name.span, "the offer names no port")
                .help("for example `ports: [443]`");
        }
        if offer.pool.is_empty() && self.whole {
            self.findings
                .add("pool", offer.name.span, "the offer has no pool")
                .help(
                    "name addresses of your own that its users appear as: `pool: [10.1.250.0/28]`",
                );
        }
        for v4 in [true, false] {
            if let Some(second) = offer.pool.iter().filter(|p| p.is_v4() == v4).nth(1) {
                self.findings
                    .add("pool", second.span, "a second pool of the same family")
                    .help("an offer has at most one of each family");
            }
        }
        for pool in offer.pool.iter() {
            let (least, most) = if pool.is_v4() { (16, 32) } else { (64, 128) };
            if pool.len < least || pool.len > most {
                self.findings
                    .add(
                        "pool",
                        pool.span,
                        format!(
                            "/{} is out of range for a pool: /{least} to /{most}",
                            pool.len
                        ),
                    )
                    .help("each tenant that accepts needs an address or a few");
            } else if !offer.pool_suffices(&pool.value) {
                self.findings
                    .add(
                        "pool",
                        pool.span,
                        format!(
                            "{} cannot be shared out to {} tenants",
                            pool.value,
                            offer.to.len()
                        ),
                    )
                    .help("use a shorter prefix: each tenant in `to` gets a part of its own");
            }
        }
        if let (Some(server), Some(subnet)) = (server, subnet)
            && !offer.pool.is_empty()
            && !subnet.prefixes.is_empty()
            && !subnet
                .prefixes
                .iter()
                .any(|own| offer.pool.iter().any(|p| p.is_v4() == own.is_v4()))
        {
            self.findings
                .add(
                    "family",
                    offer.pool.first().map_or(offer.name.span, |p| p.span),
                    format!("the pool has no family that `{}` has", server.value),
                )
                .also(server.span, "this endpoint")
                .help("add a pool of the endpoint's family");
        }
    }

    /// A key that what is named must have.
    fn key<'o, T>(
        &mut self,
        name: &Located<crate::Name>,
        what: &str,
        key: &str,
        value: Option<&'o Located<T>>,
    ) -> Option<&'o Located<T>> {
        if value.is_none() && self.whole {
            self.findings
                .add(
                    "missing-key",
                    name.span,
                    format!("{what} lacks its `{key}`"),
                )
                .help(format!("add `{key}: ...`"));
        }
        value
    }

    /// A tenant that is there, and is another.
    fn other(&mut self, tenant: &Tenant, name: &Located<crate::Name>, what: &str) {
        if name.value == tenant.name.value {
            self.findings
                .add(
                    "agreement",
                    name.span,
                    format!("the tenant {} {what} itself", tenant.name.value),
                )
                .help("inside a tenant rules are enough");
            return;
        }
        self.no_tenant(name);
    }

    /// Pools, and where other tenants' prefixes may be, are nobody else's: neither in a
    /// subnet, nor routed, nor another's.
    fn pools(&mut self, tenant: &Tenant) {
        let own = (tenant.subnets.iter().flat_map(|s| &s.prefixes)).map(|p| (p.value, p.span));
        let behind = (tenant.endpoints.iter().flat_map(|e| &e.prefixes)).map(|p| (p.value, p.span));
        // What is for everything else leaves room for what is longer.
        let outside = tenant
            .outside
            .iter()
            .flat_map(|o| o.routes.iter().flatten());
        let routes = (tenant.routes.iter().map(|r| &r.to))
            .chain(outside.map(|r| &r.to))
            .filter(|p| p.len != 0)
            .map(|p| (p.value, p.span));
        let networks =
            (tenant.outside.iter().flat_map(|o| &o.address)).map(|a| (a.value.prefix(), a.span));
        let services = tenant.accepts.iter().flat_map(|a| a.as_.iter()).map(|a| {
            let prefix = Prefix {
                network: a.value.0,
                len: if a.value.0.is_ipv4() { 32 } else { 128 },
            };
            (prefix, a.span)
        });
        let mut taken: Vec<(Prefix, Span)> = own
            .chain(behind)
            .chain(routes)
            .chain(networks)
            .chain(services)
            .collect();
        let mut claim = |prefix: &Located<Prefix>, what: &str, help: &str| {
            let found = taken
                .iter()
                .find(|(other, _)| other.overlaps(&prefix.value));
            if let Some((other, span)) = found.filter(|_| guard!("spec-pool-overlap")) {
                self.findings
                    .add(
                        "overlap",
                        prefix.span,
                        format!("{what} {} overlaps {other}", prefix.value),
                    )
                    .label("overlaps")
                    .also(*span, "this one")
                    .help(help);
            }
            taken.push((prefix.value, prefix.span));
        };
        for pool in tenant.offers.iter().flat_map(|o| o.pool.iter()) {
            let help = "choose addresses that nothing else of the tenant's uses";
            claim(pool, "the pool", help);
        }
        for (prefix, what) in super::routed::theirs(tenant) {
            let help = "only prefixes that are apart can be routed: else make it a service, which is translated";
            claim(prefix, what, help);
        }
    }

    pub(super) fn accepts(&mut self, tenant: &Tenant) {
        if tenant.accepts.is_empty() {
            return;
        }
        let services = tenant.accepts.iter().map(|a| {
            let both = (a.from.as_str(), a.service.as_str());
            (both, a.service.span)
        });
        for (first, second, (from, service)) in super::duplicates(services) {
            self.findings
                .add(
                    "duplicate-service",
                    second,
                    format!("the service `{service}` of {from} is accepted twice"),
                )
                .label("again here")
                .also(first, "first here")
                .help("one acceptance is enough: it may have an address of each family");
        }
        let addresses = tenant
            .accepts
            .iter()
            .flat_map(|a| a.as_.iter().map(|one| (one.value, one.span)));
        for (first, second, address) in super::duplicates(addresses) {
            self.findings
                .add(
                    "duplicate-address",
                    second,
                    format!("{address} stands for two services"),
                )
                .label("again here")
                .also(first, "first here")
                .help("give each service an address of its own");
        }
        let mut taken: HashMap<IpAddr, (Span, &'static str)> = HashMap::new();
        for subnet in &tenant.subnets {
            for prefix in &subnet.prefixes {
                taken.insert(
                    subnet.gateway_in(prefix),
                    (subnet.name.span, "the gateway of this subnet"),
                );
            }
        }
        for address in tenant
            .endpoints
            .iter()
            .flat_map(|e| e.addresses().unwrap_or(&[]))
        {
            taken.insert(address.value.0, (address.span, "an endpoint's address"));
        }
        for outside in &tenant.outside {
            for address in &outside.address {
                let what = (address.span, "the tenant's address outside");
                taken.insert(address.value.address, what);
            }
            for gateway in &outside.gateway {
                taken.insert(gateway.value.0, (gateway.span, "a router outside"));
            }
        }
        let known = Known::new(tenant);
        for accept in &tenant.accepts {
            self.other(tenant, &accept.from, "accepts a service of");
            if accept.is_routed() {
                self.routed_accept(tenant, accept);
            } else {
                self.stands(tenant, accept, &taken);
            }
            if let Some(selector) = &accept.endpoints {
                match &selector.value {
                    Selector::Any
                    | Selector::Endpoint(_)
                    | Selector::Label(_)
                    | Selector::Subnet(_) => self.selector(selector, &known),
                    _ => {
                        self.findings
                            .add(
                                "agreement",
                                selector.span,
                                "only endpoints of the tenant use a service",
                            )
                            .help("select them by name, label or subnet, or write `any`");
                    }
                }
            }
        }
    }

    /// An acceptance's own addresses.
    fn stands(
        &mut self,
        tenant: &Tenant,
        accept: &Accept,
        taken: &HashMap<IpAddr, (Span, &'static str)>,
    ) {
        if let Some(both) = accept.both {
            self.findings
                .add(
                    "agreement",
                    both.span,
                    "who offers a service begins nothing",
                )
                .help("remove `both`: it is for prefixes that are routed");
        }
        if accept.as_.is_empty() && self.whole {
            self.findings
                .add(
                    "agreement",
                    accept.name.span,
                    "no address stands for the service",
                )
                .help("name one of your own that is free: `as: [10.1.200.10]`");
        }
        for v4 in [true, false] {
            let of = |a: &&Located<Ip>| a.value.0.is_ipv4() == v4;
            if let Some(second) = accept.as_.iter().filter(of).nth(1) {
                self.findings
                    .add("address", second.span, "a second one of the same family")
                    .help("a service has at most one address of each family");
            }
        }
        for address in accept.as_.iter() {
            let ip = address.value.0;
            if let Some((span, what)) = taken.get(&ip).filter(|_| guard!("spec-service-address")) {
                self.findings
                    .add("address", address.span, format!("{ip} is {what}"))
                    .also(*span, "here")
                    .help("choose an address that nothing else of the tenant's has");
                continue;
            }
            let prefixes = tenant.subnets.iter().flat_map(|s| &s.prefixes);
            let bad = match ip {
                IpAddr::V4(a) => {
                    a.is_loopback()
                        || a.is_multicast()
                        || a.is_link_local()
                        || a.octets()[0] == 0
                        || a.octets()[0] >= 240
                }
                IpAddr::V6(a) => {
                    a.is_loopback()
                        || a.is_multicast()
                        || a.is_unicast_link_local()
                        || a.is_unspecified()
                }
            };
            if bad
                || prefixes
                    .into_iter()
                    .any(|p| p.contains(ip) && !p.is_host(ip))
            {
                self.findings
                    .add(
                        "address",
                        address.span,
                        format!("{ip} is not an address that a host may have"),
                    )
                    .help("use a private or a global unicast address");
            }
        }
    }

    /// Where an acceptance meets its offer.
    pub(super) fn agreements(&mut self) {
        if !self.whole {
            return;
        }
        let document = self.document;
        let tenants: HashMap<&str, &Tenant> = document
            .tenants
            .iter()
            .map(|t| (t.name.as_str(), t))
            .collect();
        for tenant in &document.tenants {
            for accept in &tenant.accepts {
                let offerer = tenants.get(accept.from.as_str()).copied();
                let Some((offerer, offer)) = offerer.and_then(|of| {
                    let offer = of
                        .offers
                        .iter()
                        .find(|o| o.name.value == accept.service.value)?;
                    Some((of, offer))
                }) else {
                    continue;
                };
                if offer.to.iter().any(|name| name.value == tenant.name.value) {
                    self.meeting(accept, offerer, offer);
                }
            }
        }
    }

    fn meeting(&mut self, accept: &Accept, offerer: &Tenant, offer: &Offer) {
        // What one states of its own is not wrong by what the other states: they do not meet.
        let source = &self.findings.source;
        let own = |span: Span| source.tenant_at(span.start).is_some();
        if own(accept.name.span) || own(offer.name.span) {
            return;
        }
        if accept.is_routed() || offer.is_routed() {
            return self.routed_meeting(accept, offer);
        }
        let Some(subnet) = offerer
            .endpoints
            .iter()
            .find(|e| {
                offer
                    .endpoint
                    .as_ref()
                    .is_some_and(|server| e.name.value == server.value)
            })
            .and_then(|e| offerer.subnet(&e.subnet.value))
        else {
            return;
        };
        let serves: HashSet<bool> = subnet.prefixes.iter().map(|p| p.is_v4()).collect();
        let pools: HashSet<bool> = offer.pool.iter().map(|p| p.is_v4()).collect();
        let common = accept.as_.iter().any(|a| {
            let v4 = a.value.0.is_ipv4();
            serves.contains(&v4) && pools.contains(&v4)
        });
        if !common && !accept.as_.is_empty() && !pools.is_empty() {
            self.findings
                .add(
                    "family",
                    accept.as_.first().map_or(accept.name.span, |a| a.span),
                    "no family is common to this address, the offer's pool and its endpoint",
                )
                .also(offer.name.span, "the offer")
                .help("add an address of the family that the offer has");
        }
    }
}
