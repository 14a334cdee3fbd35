//! Rules, guardrails and reach: that they can mean something, and to whom.

use guard::guard;
use std::collections::{HashMap, HashSet};

use super::{
    Check, MAX_ACCEPTS, MAX_LABELS, MAX_OFFERS, MAX_PORTS, MAX_REACH, MAX_ROUTED, MAX_RULES,
};
use crate::model::{Endpoint, Tenant};
use crate::policy::Scope;
use crate::selectors::{Labels, Selector};
use crate::source::{Located, Span};
use crate::traffic::{IcmpMessage, Protocol};
use crate::values::{Name, Prefix};

/// What the selectors of a tenant may name.
pub(super) struct Known<'a> {
    endpoints: HashMap<&'a str, &'a Endpoint>,
    /// How many endpoints are in each subnet.
    subnets: HashMap<&'a str, usize>,
    /// Endpoints by label and value, in order.
    labels: HashMap<(&'a str, &'a str), Vec<usize>>,
    agreements: HashSet<&'a str>,
    /// What is inside, as ranges in order and apart: subnets' prefixes, those behind
    /// routers, and what never leaves a link.
    inside: Vec<([u8; 16], [u8; 16])>,
}

impl<'a> Known<'a> {
    pub fn new(tenant: &'a Tenant) -> Known<'a> {
        let mut known = Known {
            endpoints: tenant
                .endpoints
                .iter()
                .map(|e| (e.name.as_str(), e))
                .collect(),
            subnets: tenant
                .subnets
                .iter()
                .map(|s| (s.name.as_str(), 0))
                .collect(),
            labels: HashMap::new(),
            agreements: (tenant.offers.iter().map(|o| o.name.as_str()))
                .chain(tenant.accepts.iter().map(|a| a.name.as_str()))
                .collect(),
            inside: Vec::new(),
        };
        let on_link = ON_LINK.iter().filter_map(|p| p.parse::<Prefix>().ok());
        let mut inside: Vec<_> = (tenant.subnets.iter().flat_map(|s| &s.prefixes))
            .chain(tenant.endpoints.iter().flat_map(|e| &e.prefixes))
            .map(|p| p.value)
            .chain(on_link)
            .map(|p| p.range())
            .collect();
        inside.sort_unstable();
        for (first, last) in inside {
            match known.inside.last_mut() {
                Some((_, end)) if first <= *end => *end = last.max(*end),
                _ => known.inside.push((first, last)),
            }
        }
        for (at, endpoint) in tenant.endpoints.iter().enumerate() {
            if let Some(count) = known.subnets.get_mut(endpoint.subnet.as_str()) {
                *count += 1;
            }
            for (key, value) in endpoint.labels.iter().flat_map(|l| &l.0) {
                let label = (key.as_str(), value.as_str());
                known.labels.entry(label).or_default().push(at);
            }
        }
        known
    }

    /// Whether any address of the prefix is inside.
    fn reaches(&self, prefix: &Prefix) -> bool {
        let (first, last) = prefix.range();
        let at = self.inside.partition_point(|(_, end)| *end < first);
        self.inside.get(at).is_some_and(|(start, _)| *start <= last)
    }

    /// Whether an endpoint has all of the labels. Bound: the rarest one's endpoints.
    fn has_labels(&self, asked: &Labels) -> bool {
        let mut lists = Vec::new();
        for (key, value) in &asked.0 {
            match self.labels.get(&(key.as_str(), value.as_str())) {
                Some(list) => lists.push(list),
                None => return false,
            }
        }
        lists.sort_by_key(|list| list.len());
        let Some((rarest, others)) = lists.split_first() else {
            return false;
        };
        rarest
            .iter()
            .any(|at| others.iter().all(|list| list.binary_search(at).is_ok()))
    }
}

impl Check<'_> {
    /// Whether nothing about a tenant's policy is too many.
    pub(super) fn policy_sizes(&mut self, tenant: &Tenant) {
        let rules = tenant.policy.iter().flat_map(|p| &p.rules);
        self.at_most("rules of a tenant", rules.map(|r| r.name.span), MAX_RULES);
        let reach = tenant.policy.iter().flat_map(|p| &p.reach);
        let spans = reach.map(|r| r.allowed.span);
        self.at_most("entries of a tenant's reach", spans, MAX_REACH);
        let offers = tenant.offers.iter().map(|o| o.name.span);
        self.at_most("offers of a tenant", offers, MAX_OFFERS);
        let accepts = tenant.accepts.iter().map(|a| a.name.span);
        self.at_most("acceptances of a tenant", accepts, MAX_ACCEPTS);
        for labels in tenant.endpoints.iter().filter_map(|e| e.labels.as_ref()) {
            let spans = labels.0.iter().map(|(key, _)| key.span);
            self.at_most("labels of an endpoint", spans, MAX_LABELS);
        }
        for offer in &tenant.offers {
            let ports = offer.ports.iter().map(|p| p.span);
            self.at_most("ports of an offer", ports, MAX_PORTS);
            let to = offer.to.iter().map(|name| name.span);
            self.at_most("tenants of an offer", to, super::MAX_TENANTS);
            for prefixes in [&offer.route, &offer.users] {
                let spans = prefixes.iter().map(|p| p.span);
                self.at_most("prefixes of an offer", spans, MAX_ROUTED);
            }
        }
        for accept in &tenant.accepts {
            for prefixes in [&accept.route, &accept.users] {
                let spans = prefixes.iter().map(|p| p.span);
                self.at_most("prefixes of an acceptance", spans, MAX_ROUTED);
            }
            if let Some(selector) = &accept.endpoints {
                self.selector_size(&selector.value);
            }
        }
        for rule in tenant.policy.iter().flat_map(|p| &p.rules) {
            self.scope_sizes(rule.scope());
        }
        for reach in tenant.policy.iter().flat_map(|p| &p.reach) {
            self.scope_sizes(reach.scope());
        }
    }

    pub(super) fn scope_sizes(&mut self, scope: Scope<'_>) {
        let traffic = scope.traffic();
        for ports in [traffic.ports, traffic.source_ports] {
            self.at_most("ports of a rule", ports.iter().map(|p| p.span), MAX_PORTS);
        }
        let icmp = traffic.icmp.iter().map(|m| m.span);
        self.at_most("messages of a rule", icmp, MAX_PORTS);
        self.selector_size(traffic.from);
        self.selector_size(traffic.to);
    }

    fn selector_size(&mut self, selector: &Selector) {
        match selector {
            Selector::Endpoint(list) | Selector::Subnet(list) => {
                let spans = list.iter().map(|name| name.span);
                self.at_most("names in a selector", spans, super::MAX_TENANT_ENDPOINTS);
            }
            Selector::Prefix(list) => {
                let spans = list.iter().map(|p| p.span);
                self.at_most("prefixes in a selector", spans, super::MAX_PREFIXES);
            }
            Selector::Label(labels) => {
                let spans = labels.0.iter().map(|(key, _)| key.span);
                self.at_most("labels in a selector", spans, MAX_LABELS);
            }
            Selector::Any | Selector::Outside | Selector::Agreement(_) => {}
        }
    }

    pub(super) fn guardrails(&mut self) {
        let document = self.document;
        let names = document.guardrails.iter();
        self.distinct(
            "name",
            "guardrail",
            names.map(|g| (g.name.as_str(), g.name.span)),
        );
        for guardrail in &document.guardrails {
            if let Some(crate::TenantList::List(list)) =
                guardrail.tenants.as_ref().map(|t| &t.value)
            {
                for name in list.iter() {
                    self.no_tenant(name);
                }
                if list.is_empty() {
                    let span = guardrail
                        .tenants
                        .as_ref()
                        .map_or(guardrail.name.span, |t| t.span);
                    self.findings
                        .add("no-endpoint", span, "the guardrail concerns no tenant")
                        .help("name some, or leave `tenants` out: it then concerns all");
                }
            }
            for selector in guardrail.from.iter().chain(&guardrail.to) {
                match &selector.value {
                    Selector::Any | Selector::Outside => {}
                    Selector::Prefix(_) => self.prefixes(selector),
                    _ => {
                        self.findings
                            .add(
                                "guardrail",
                                selector.span,
                                "a guardrail selects by any, outside or prefix only",
                            )
                            .help("names and labels are the tenants': use their prefixes");
                    }
                }
            }
            self.packets(guardrail.scope());
        }
    }

    pub(super) fn policy(&mut self, tenant: &Tenant) {
        let Some(policy) = &tenant.policy else {
            return;
        };
        let known = Known::new(tenant);
        let names = policy.rules.iter();
        self.distinct(
            "name",
            "rule",
            names.map(|r| (r.name.as_str(), r.name.span)),
        );
        for rule in &policy.rules {
            if let Some(priority) = rule.priority {
                self.range(priority, 0, 65_535, "a priority");
            }
            self.scope(rule.scope(), &known, "rule");
        }
        for reach in &policy.reach {
            self.scope(reach.scope(), &known, "reach");
        }
    }

    fn scope(&mut self, scope: Scope<'_>, known: &Known<'_>, what: &str) {
        let before = self.findings.list.len();
        for selector in scope.from.into_iter().chain(scope.to) {
            self.selector(selector, known);
        }
        self.packets(scope);
        let traffic = scope.traffic();
        let foreign = |selector: &Selector| match selector {
            Selector::Outside | Selector::Agreement(_) => true,
            Selector::Prefix(list) => !list.iter().any(|p| known.reaches(&p.value)),
            _ => false,
        };
        if self.whole
            && self.findings.list.len() == before
            && foreign(traffic.from)
            && foreign(traffic.to)
        {
            self.findings
                .add(
                    "no-endpoint",
                    scope.span,
                    format!("this {what} is about no endpoint of the tenant on either side"),
                )
                .help("`from` or `to` must name some of the tenant's own");
        }
    }

    /// Whether a selector names what there is, and matches something.
    pub(super) fn selector(&mut self, selector: &Located<Selector>, known: &Known<'_>) {
        match &selector.value {
            Selector::Any | Selector::Outside => {}
            Selector::Endpoint(names) => {
                let none: Vec<&Located<Name>> = (names.iter())
                    .filter(|n| !known.endpoints.contains_key(n.as_str()))
                    .collect();
                self.unknown(&none, "endpoint", known.endpoints.keys());
                if names.is_empty() {
                    self.selects_nothing(selector.span);
                }
            }
            Selector::Subnet(names) => {
                let none: Vec<&Located<Name>> = (names.iter())
                    .filter(|n| !known.subnets.contains_key(n.as_str()))
                    .collect();
                self.unknown(&none, "subnet", known.subnets.keys());
                let has_some = |n: &Located<Name>| known.subnets.get(n.as_str()) != Some(&0);
                if names.is_empty() || !names.iter().any(has_some) {
                    self.selects_nothing(selector.span);
                }
            }
            Selector::Label(labels) => {
                if !known.has_labels(labels) && self.whole && guard!("spec-empty-selector") {
                    self.selects_nothing(selector.span);
                }
            }
            Selector::Prefix(_) => self.prefixes(selector),
            Selector::Agreement(name) => {
                if !known.agreements.contains(name.as_str()) {
                    self.unknown(&[name], "offer or acceptance", known.agreements.iter());
                }
            }
        }
    }

    fn unknown<'k>(
        &mut self,
        names: &[&Located<Name>],
        what: &str,
        known: impl Iterator<Item = &'k &'k str>,
    ) {
        if names.is_empty() {
            return;
        }
        let mut all: Vec<&str> = Vec::new();
        if self.findings.list.len() < super::SUGGESTIONS {
            all.extend(known);
            all.sort_unstable();
        }
        for name in names {
            self.missing(name, what, &all);
        }
    }

    fn selects_nothing(&mut self, span: Span) {
        if !self.whole {
            return;
        }
        self.findings
            .add("no-endpoint", span, "this matches no endpoint")
            .label("selects nothing")
            .help("correct it, or remove what it stands in");
    }

    fn prefixes(&mut self, selector: &Located<Selector>) {
        if matches!(&selector.value, Selector::Prefix(list) if list.is_empty()) && self.whole {
            self.findings
                .add("no-endpoint", selector.span, "no prefix is named")
                .help("name at least one, or write `any`");
        }
    }

    /// Ports and messages with the protocol that has them, families that can meet.
    fn packets(&mut self, scope: Scope<'_>) {
        let traffic = scope.traffic();
        for ports in [scope.ports, scope.source_ports].into_iter().flatten() {
            let span = ports.first().map_or(scope.span, |p| p.span);
            if !traffic.protocol.has_ports() {
                self.findings
                    .add(
                        "ports",
                        span,
                        format!("ports are given, but the protocol is {}", traffic.protocol),
                    )
                    .help("write `protocol: tcp` or udp, or remove them");
            } else if ports.is_empty() && self.whole {
                self.findings
                    .add("ports", span, "no port is named")
                    .help("name at least one, or remove the key: any port is then meant");
            }
        }
        if let Some(messages) = scope.icmp {
            self.messages(scope, messages, traffic.protocol);
        }
        let families = [traffic.from, traffic.to].map(|s| match s {
            Selector::Prefix(list) => Some(list),
            _ => None,
        });
        let v6 = match traffic.protocol {
            Protocol::ICMP => Some(false),
            Protocol::ICMP6 => Some(true),
            _ => None,
        };
        if let Some(v6) = v6 {
            let wrong = families.into_iter().flatten().flat_map(|list| list.iter());
            for prefix in wrong.filter(|p| p.is_v4() == v6) {
                let (family, other) = if v6 {
                    ("IPv6", "icmp")
                } else {
                    ("IPv4", "icmp6")
                };
                self.findings
                    .add(
                        "family",
                        prefix.span,
                        format!("{} is of {family} only", traffic.protocol),
                    )
                    .help(format!("write `protocol: {other}` for {}", prefix.value));
            }
        } else if let [Some(from), Some(to)] = families {
            let has = |list: &[Located<Prefix>], v4| list.iter().any(|p| p.is_v4() == v4);
            let meet = [true, false]
                .into_iter()
                .any(|v4| has(from, v4) && has(to, v4));
            if let Some(prefix) = to.first().filter(|_| !meet && !from.is_empty()) {
                self.findings
                    .add(
                        "family",
                        prefix.span,
                        "no packet is from one family to the other",
                    )
                    .help("name prefixes of one family in both `from` and `to`");
            }
        }
    }

    fn messages(&mut self, scope: Scope<'_>, list: &[Located<IcmpMessage>], protocol: Protocol) {
        let span = list.first().map_or(scope.span, |m| m.span);
        if !protocol.is_icmp() {
            self.findings
                .add(
                    "icmp",
                    span,
                    format!("ICMP messages are named, but the protocol is {protocol}"),
                )
                .help("write `protocol: icmp` or icmp6, or remove them");
            return;
        }
        if list.is_empty() && self.whole {
            self.findings
                .add("icmp", span, "no message is named")
                .help("name at least one, or remove the key: any is then meant");
        }
        let v6 = protocol == Protocol::ICMP6;
        for message in list.iter().filter(|m| m.numbers(v6).is_none()) {
            self.findings
                .add(
                    "icmp",
                    message.span,
                    format!("{protocol} has no message `{}`", message.value),
                )
                .help(format!("it has: {}", IcmpMessage::names(v6).join(", ")));
        }
    }
}

/// Link-local addresses, groups and broadcast.
const ON_LINK: &[&str] = &[
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "fe80::/10",
    "ff00::/8",
];
