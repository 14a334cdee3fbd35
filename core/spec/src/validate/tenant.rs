//! One tenant: its settings, endpoints and routes.

use guard::guard;
use std::collections::HashMap;

use super::Check;
use crate::model::{Endpoint, MIN_MTU4, MIN_MTU6, Outside, Role, Route, Subnet, Tenant};
use crate::rates::{Limit, Rate};
use crate::shapes::{Attach, Via};
use crate::source::{Located, Span};
use crate::values::{Mac, Name, Prefix};

/// Most addresses of one endpoint, automatic ones not counted.
const MAX_ADDRESSES: usize = 16;
/// No switch takes segments below it (`wire::offload::MIN_GSO_FLOOR`).
const LEAST_SEGMENT: u32 = 256;
/// Sockets that an operator knows of a compartment.
const MOST_SOCKETS: u32 = 16_384;

impl Check<'_> {
    pub(super) fn tenant(&mut self, tenant: &Tenant) {
        self.settings(tenant);
        self.distinct(
            "name",
            "subnet",
            tenant
                .subnets
                .iter()
                .map(|s| (s.name.value.as_str(), s.name.span)),
        );
        self.distinct(
            "name",
            "endpoint",
            tenant
                .endpoints
                .iter()
                .map(|e| (e.name.value.as_str(), e.name.span)),
        );
        self.addressing(tenant);
        let subnets: HashMap<&str, &Subnet> = tenant
            .subnets
            .iter()
            .map(|s| (s.name.as_str(), s))
            .collect();
        let names: Vec<&str> = tenant.subnets.iter().map(|s| s.name.as_str()).collect();
        let mut macs: HashMap<Mac, Span> = HashMap::new();
        for endpoint in &tenant.endpoints {
            let subnet = subnets.get(endpoint.subnet.as_str()).copied();
            if subnet.is_none() {
                self.missing(&endpoint.subnet, "subnet", &names);
            }
            self.endpoint(endpoint, subnet);
            if let Some(mac) = endpoint.mac {
                let first = macs.insert(mac.value, mac.span);
                if let Some(first) = first.filter(|_| guard!("spec-duplicate-mac")) {
                    self.findings
                        .add(
                            "duplicate-mac",
                            mac.span,
                            format!(
                                "two endpoints of the tenant {} have the MAC {}",
                                tenant.name.value, mac.value
                            ),
                        )
                        .label("again here")
                        .also(first, "first here")
                        .help("leave it out: it is then made from the names");
                }
            }
        }
        self.router_prefixes(tenant);
        for subnet in &tenant.subnets {
            self.segment(subnet);
        }
        for outside in &tenant.outside {
            self.outside(tenant, outside);
        }
        let uplinks = tenant
            .outside
            .iter()
            .map(|o| (o.uplink.value.as_str(), o.uplink.span));
        for (first, second, uplink) in super::duplicates(uplinks) {
            self.findings
                .add(
                    "duplicate-outside",
                    second,
                    format!("the tenant has two ways outside by the uplink {uplink}"),
                )
                .label("again here")
                .also(first, "first here")
                .help("put its addresses and routes into one");
        }
        self.routes(tenant);
        self.policy(tenant);
        self.offers(tenant);
        self.accepts(tenant);
    }

    fn settings(&mut self, tenant: &Tenant) {
        if let Some(id) = tenant.id {
            self.range(id, 1, 0xff_ffff, "a tenant's id");
        }
        if let Some(weight) = tenant.weight {
            self.range(weight, 1, 255, "a weight");
        }
        self.rate(&tenant.rate);
        let mut endpoints = tenant.endpoints.iter();
        if endpoints.any(|endpoint| endpoint.attach().circuits().is_some()) {
            self.no_rate(&tenant.rate, "its tenant's");
        }
        if let Some(channel) = tenant.channel {
            self.capacity(channel.value.0, channel.span, 256 << 10);
        }
        if let Some(memory) = tenant.memory.filter(|m| m.value.0 < 4 << 20) {
            self.findings
                .add(
                    "range",
                    memory.span,
                    format!("{} is too little memory for a switch", memory.value),
                )
                .help("at least 4MiB");
        }
    }

    fn capacity(&mut self, bytes: u64, span: Span, least: u64) {
        if !bytes.is_power_of_two() || bytes < least || bytes > 16 << 20 {
            self.findings
                .add(
                    "range",
                    span,
                    "a channel's size is a power of two within its limits",
                )
                .help(format!(
                    "one of {}KiB, {}KiB, ... 16MiB",
                    least >> 10,
                    least >> 9
                ));
        }
    }

    fn endpoint(&mut self, endpoint: &Endpoint, subnet: Option<&Subnet>) {
        if let Attach::Fifo(fifo) = endpoint.attach() {
            let mtu = endpoint
                .mtu
                .map_or(subnet.map_or(1500, Subnet::mtu), |m| m.value);
            if let Some(capacity) = fifo.capacity {
                self.capacity(capacity.value.0, capacity.span, 16 << 10);
                if fifo.max_record() < u64::from(mtu) + 64 {
                    self.findings
                        .add(
                            "range",
                            capacity.span,
                            format!(
                                "a channel of {} cannot take frames of the mtu {mtu}",
                                capacity.value
                            ),
                        )
                        .help("make it at least four times a frame");
                }
            }
        }
        if let Attach::Vhost(vhost) = endpoint.attach()
            && let Some(queues) = vhost.queues.filter(|q| !(1..=16).contains(&q.value))
        {
            self.findings
                .add(
                    "range",
                    queues.span,
                    format!("{} pairs of queues", queues.value),
                )
                .help("1 to 16: as many as the machine has processors is enough");
        }
        if let Attach::Vhost(vhost) = endpoint.attach()
            && let Some(memory) = vhost
                .memory
                .filter(|m| !(1 << 20..=1 << 40).contains(&m.value.0))
        {
            self.findings
                .add(
                    "range",
                    memory.span,
                    format!("a machine that may share {} of memory", memory.value),
                )
                .help("1MiB to 1024GiB: as much as the machine has");
        }
        if let Some(circuits) = endpoint.attach().circuits()
            && let Some(sockets) = circuits
                .sockets
                .filter(|s| !(1..=MOST_SOCKETS).contains(&s.value))
        {
            self.findings
                .add("range", sockets.span, format!("{} sockets", sockets.value))
                .help("1 to 16384, which all of a tenant's have together: each listening, connecting or connected socket is one");
        }
        if let Some(circuits) = endpoint.attach().circuits()
            && let Some(setups) = circuits
                .setups
                .filter(|s| !(1..=1_000_000).contains(&s.value))
        {
            let said = format!("{} set-ups a second", setups.value);
            self.findings.add("range", setups.span, said).help(
                "1 to 1000000: each socket made, and each connection begun or accepted, is one",
            );
        }
        if let Some(named) = endpoint.attach().interface() {
            let namespace = named.namespace.as_ref().filter(|n| n.is_path());
            if let (Some(_), Some(make)) = (namespace, named.make.filter(|m| m.value.0)) {
                self.findings
                    .add(
                        "namespace",
                        make.span,
                        "a namespace given by its path cannot be made",
                    )
                    .help("give it a name, or leave `make` out");
            }
        }
        if let (Some(mtu), Some(subnet)) = (endpoint.mtu, subnet) {
            let least = if subnet.prefix6().is_some() {
                MIN_MTU6
            } else {
                MIN_MTU4
            };
            self.range(
                mtu,
                least,
                subnet.mtu().max(least),
                "an endpoint's mtu (at most its subnet's)",
            );
        }
        if let Some(min_gso) = endpoint.min_gso {
            self.range(min_gso, LEAST_SEGMENT, 65_535, "a smallest segment");
        }
        if let Some(host) = &endpoint.host {
            let name = self
                .document
                .host
                .as_ref()
                .or(self.document.hosts.first())
                .map_or("host", |h| h.name.as_str());
            if host.as_str() != name {
                self.missing(host, "host", &[name]);
            }
        }
        if let Some(connections) = endpoint.connections {
            self.range(
                connections,
                0,
                super::MAX_CONNECTIONS,
                "an endpoint's connections",
            );
        }
        self.rate(&endpoint.rate);
        self.circuits_rate(endpoint);
        if let Some(weight) = endpoint.weight {
            self.range(weight, 1, 255, "a weight");
        }
        if let Some(list) = endpoint
            .addresses()
            .filter(|list| list.len() > MAX_ADDRESSES)
        {
            self.at_most(
                "addresses of an endpoint",
                list.iter().map(|a| a.span),
                MAX_ADDRESSES,
            );
        }
        if let (Some(first), false) = (endpoint.prefixes.first(), endpoint.has_role(Role::Router)) {
            self.findings
                .add(
                    "role",
                    first.span,
                    "only an endpoint with the role router has prefixes behind it",
                )
                .help("add `roles: [router]`, or remove the prefixes");
        }
    }

    /// What can be kept of an endpoint's rate where it has circuits.
    fn circuits_rate(&mut self, endpoint: &Endpoint) {
        let attach = endpoint.attach();
        let Some(circuits) = attach.circuits() else {
            return;
        };
        if !matches!(attach, Attach::Circuits(_)) {
            self.no_rate(&endpoint.rate, "its own, beside its interface");
            if let Some(metered) = circuits.metered.filter(|metered| metered.value.0) {
                let what = "circuits beside an interface are not metered";
                self.findings
                    .add("metered", metered.span, what)
                    .help("give the circuits an endpoint of their own, `attach: circuits`");
            }
            return;
        }
        let limits = endpoint.rate.iter().flat_map(|rate| [&rate.from, &rate.to]);
        for packets in limits.flatten().filter_map(|limit| limit.packets) {
            let what = "an endpoint of circuits has no packets of which there could be so many";
            self.findings
                .add("rate", packets.span, what)
                .help("limit its bits a second: of circuits the bytes of data are counted");
        }
    }

    /// No rate is promised that nobody keeps.
    fn no_rate(&mut self, rate: &Option<Rate>, whose: &str) {
        let limits = rate.iter().flat_map(|rate| [&rate.from, &rate.to]);
        let span = |limit: &Limit| {
            let bits = limit.bits.map(|b| b.span);
            bits.or(limit.packets.map(|p| p.span))
        };
        if let Some(span) = limits.flatten().find_map(span) {
            let what =
                format!("an endpoint of circuits with a rate, {whose}: no rate is kept there");
            self.findings
                .add("rate", span, what)
                .help("give endpoints with `attach: circuits` rates of their own, and no other");
        }
    }

    /// Both directions of a rate.
    fn rate(&mut self, rate: &Option<Rate>) {
        let limits = rate.iter().flat_map(|rate| [&rate.from, &rate.to]);
        for limit in limits.flatten() {
            self.limit(limit);
        }
    }

    fn limit(&mut self, rate: &Limit) {
        if let Some(bits) = rate.bits.filter(|b| b.value.0 < 8_000) {
            self.findings
                .add(
                    "range",
                    bits.span,
                    "a rate of less than 8kbit lets nothing through",
                )
                .help("use `state: quarantined` to cut an endpoint off");
        }
        if let Some(packets) = rate.packets.filter(|p| p.value == 0) {
            self.findings
                .add(
                    "range",
                    packets.span,
                    "a rate of no packets lets nothing through",
                )
                .help("use `state: quarantined` to cut an endpoint off");
        }
        if let Some(burst) = rate.burst.filter(|_| rate.bits.is_none()) {
            self.findings
                .add("rate", burst.span, "a burst is given without a rate")
                .help("add `bits: ...`");
        }
    }

    /// Prefixes behind routers: no part of a subnet, and each behind one endpoint only.
    fn router_prefixes(&mut self, tenant: &Tenant) {
        let all = tenant
            .endpoints
            .iter()
            .flat_map(|e| &e.prefixes)
            .map(|p| (p.value, p.span));
        for (first, second, prefix) in super::duplicates(all) {
            self.findings
                .add(
                    "duplicate-prefix",
                    second,
                    format!("{prefix} is behind two endpoints"),
                )
                .label("again here")
                .also(first, "first here")
                .help("a prefix has one way");
        }
        for prefix in tenant.endpoints.iter().flat_map(|e| &e.prefixes) {
            self.not_on_link(tenant, prefix, "a prefix behind a router");
        }
    }

    /// A route or prefix inside a subnet would take what is its endpoints'.
    fn not_on_link(&mut self, tenant: &Tenant, prefix: &Located<Prefix>, what: &str) {
        let subnets = tenant.subnets.iter().flat_map(|s| &s.prefixes);
        if let Some(own) = subnets
            .into_iter()
            .find(|own| own.len <= prefix.len && own.overlaps(prefix))
        {
            self.findings
                .add(
                    "overlap",
                    prefix.span,
                    format!(
                        "{what} may not lie in a subnet of the tenant: {} is in {}",
                        prefix.value, own.value
                    ),
                )
                .also(own.span, "the subnet's prefix")
                .help("choose a prefix outside the tenant's subnets, or a shorter one");
        }
    }

    fn routes(&mut self, tenant: &Tenant) {
        let outside = tenant
            .outside
            .iter()
            .flat_map(|o| o.routes.iter().flatten())
            .map(|r| (r.to.value, r.to.span));
        let all = tenant
            .routes
            .iter()
            .map(|r| (r.to.value, r.to.span))
            .chain(outside);
        for (first, second, prefix) in super::duplicates(all) {
            self.findings
                .add(
                    "duplicate-route",
                    second,
                    format!("there are two routes to {prefix}"),
                )
                .label("again here")
                .also(first, "first here")
                .help("remove one of the two");
        }
        let endpoints: HashMap<&str, &Endpoint> = tenant
            .endpoints
            .iter()
            .map(|e| (e.name.as_str(), e))
            .collect();
        for route in &tenant.routes {
            self.not_on_link(tenant, &route.to, "a route");
            match &route.via.value {
                Via::Unreachable => {}
                Via::Endpoint(name) => self.via_endpoint(&endpoints, route, name),
                Via::Outside(uplink) => self.via_outside(tenant, route, uplink.as_ref()),
            }
        }
    }

    fn via_endpoint(&mut self, endpoints: &HashMap<&str, &Endpoint>, route: &Route, name: &Name) {
        let span = route.via.span;
        let Some(endpoint) = endpoints.get(name.as_str()) else {
            let mut names: Vec<&str> = Vec::new();
            if self.findings.list.len() < super::SUGGESTIONS {
                names.extend(endpoints.keys());
                names.sort_unstable();
            }
            self.missing(
                &Located {
                    value: name.clone(),
                    span,
                },
                "endpoint",
                &names,
            );
            return;
        };
        if !endpoint.has_role(Role::Router) {
            self.findings
                .add(
                    "role",
                    span,
                    format!("a route leads through `{name}`, which is not a router"),
                )
                .also(endpoint.name.span, "this endpoint")
                .help("give it `roles: [router]` and the prefixes behind it");
            return;
        }
        let covered = endpoint
            .prefixes
            .iter()
            .any(|p| p.len <= route.to.len && p.overlaps(&route.to));
        if !covered {
            self.findings
                .add("route", route.to.span, format!("{} is not behind `{name}`: what comes back from there would be dropped as forged", route.to.value))
                .also(endpoint.name.span, "this endpoint")
                .help(format!("add {} to its `prefixes`", route.to.value));
        }
    }

    fn via_outside(&mut self, tenant: &Tenant, route: &Route, uplink: Option<&Name>) {
        let span = route.via.span;
        let way = match (uplink, tenant.outside.as_slice()) {
            (None, [one]) => Some(one),
            (None, []) => {
                if self.whole {
                    self.findings
                        .add("missing-reference", span, "the tenant has no way outside")
                        .help("add `outside: [{uplink: ..., address: [...], gateway: [...]}]`");
                }
                return;
            }
            (None, _) => {
                self.findings
                    .add("route", span, "the tenant has several ways outside")
                    .help("say which: `via: {outside: UPLINK}`");
                return;
            }
            (Some(name), ways) => ways.iter().find(|o| o.uplink.value == *name),
        };
        match (way, uplink) {
            (Some(way), _) => self.has_gateway(way, &route.to),
            (None, Some(name)) => {
                let names: Vec<&str> = tenant.outside.iter().map(|o| o.uplink.as_str()).collect();
                self.missing(
                    &Located {
                        value: name.clone(),
                        span,
                    },
                    "way outside by the uplink",
                    &names,
                );
            }
            (None, None) => {}
        }
    }

    pub(super) fn has_gateway(&mut self, outside: &Outside, to: &Located<Prefix>) {
        if outside.gateway_for(to.is_v4()).is_none() && self.whole {
            let family = if to.is_v4() { "IPv4" } else { "IPv6" };
            self.findings
                .add(
                    "route",
                    to.span,
                    format!(
                        "{} goes outside, where no {family} gateway is given",
                        to.value
                    ),
                )
                .also(outside.uplink.span, "this way outside")
                .help("add its address to `gateway`");
        }
    }
}
