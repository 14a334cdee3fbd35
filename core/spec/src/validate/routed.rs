//! Prefixes that two tenants route to each other: each names its own, and where the
//! other's may be; what both name takes part.

use super::Check;
use crate::model::Tenant;
use crate::policy::{Accept, Offer};
use crate::selectors::OneOrMore;
use crate::source::{Located, Span};
use crate::traffic::Protocol;
use crate::values::{Name, Prefix};

/// Where the other tenants' prefixes may be, and what each is called.
pub(super) fn theirs(tenant: &Tenant) -> impl Iterator<Item = (&Located<Prefix>, &'static str)> {
    let users = tenant.offers.iter().flat_map(|o| o.users.iter());
    let route = tenant.accepts.iter().flat_map(|a| a.route.iter());
    (users.map(|p| (p, "the users' prefix"))).chain(route.map(|p| (p, "the other tenant's prefix")))
}

impl Check<'_> {
    pub(super) fn routed_offer(&mut self, tenant: &Tenant, offer: &Offer) {
        self.both_lists(&offer.name, "an offer", &offer.route, &offer.users);
        self.own(tenant, &offer.route);
        let of_a_service = (offer.endpoint.as_ref().map(|e| ("endpoint", e.span)))
            .or(offer.pool.first().map(|p| ("pool", p.span)));
        if let Some((key, span)) = of_a_service {
            self.mixed("an offer", key, span);
        }
        if let Some(second) = offer.to.get(1) {
            self.findings
                .add("offer", second.span, "prefixes are offered to one tenant")
                .help("make an offer for each, with `users` of its own");
        }
        if let Some(ports) = offer.ports.first()
            && !offer.protocol().has_ports()
        {
            self.findings
                .add("ports", ports.span, "ports need a protocol that has them")
                .help("add `protocol: tcp` or `protocol: udp`, or leave the ports out");
        }
        let family = match offer.protocol() {
            Protocol::ICMP => Some(true),
            Protocol::ICMP6 => Some(false),
            _ => None,
        };
        let has = |v4| offer.route.iter().any(|p| p.is_v4() == v4);
        if let (Some(v4), Some(protocol)) = (family, offer.protocol)
            && !offer.route.is_empty()
            && !has(v4)
        {
            self.findings
                .add(
                    "family",
                    protocol.span,
                    format!("none of the prefixes has {}", protocol.value),
                )
                .help("add a prefix of that family, or leave the protocol out");
        }
    }

    pub(super) fn routed_accept(&mut self, tenant: &Tenant, accept: &Accept) {
        self.both_lists(&accept.name, "an acceptance", &accept.route, &accept.users);
        self.own(tenant, &accept.users);
        if let Some(address) = accept.as_.first() {
            self.mixed("an acceptance", "as", address.span);
        }
    }

    fn mixed(&mut self, what: &str, key: &str, span: Span) {
        self.findings
            .add(
                "agreement",
                span,
                format!("{what} is of a service or of prefixes, not of both"),
            )
            .help(format!("remove `{key}`, or `route` and `users`"));
    }

    fn both_lists(
        &mut self,
        name: &Located<Name>,
        what: &str,
        route: &OneOrMore<Prefix>,
        users: &OneOrMore<Prefix>,
    ) {
        for (key, list) in [("route", route), ("users", users)] {
            if list.is_none() && self.whole {
                self.findings
                    .add(
                        "missing-key",
                        name.span,
                        format!("{what} of prefixes lacks its `{key}`"),
                    )
                    .help(
                        "`route` has the prefixes that are offered, `users` those that reach them",
                    );
            }
        }
    }

    /// Prefixes of the tenant's own: apart, and each in a subnet or behind a router.
    fn own(&mut self, tenant: &Tenant, list: &OneOrMore<Prefix>) {
        let subnets = tenant.subnets.iter().flat_map(|s| &s.prefixes);
        let own: Vec<Prefix> = subnets
            .chain(tenant.endpoints.iter().flat_map(|e| &e.prefixes))
            .map(|p| p.value)
            .collect();
        for (at, prefix) in list.iter().enumerate() {
            if !own.iter().any(|own| own.includes(&prefix.value)) {
                self.findings
                    .add(
                        "prefix",
                        prefix.span,
                        format!(
                            "{} is neither in a subnet of {} nor behind one of its routers",
                            prefix.value, tenant.name.value
                        ),
                    )
                    .help("name a subnet's prefix, a router's, or a part of one");
            }
            let before = list.get(..at).unwrap_or(&[]);
            if let Some(first) = before.iter().find(|p| p.overlaps(&prefix.value)) {
                self.findings
                    .add(
                        "overlap",
                        prefix.span,
                        format!("{} overlaps {}", prefix.value, first.value),
                    )
                    .label("overlaps")
                    .also(first.span, "this one")
                    .help("one of the two is enough");
            }
        }
    }

    /// Where an acceptance meets its offer, and either is of prefixes.
    pub(super) fn routed_meeting(&mut self, accept: &Accept, offer: &Offer) {
        if accept.is_routed() != offer.is_routed() {
            let (of, help) = match offer.is_routed() {
                true => (
                    "prefixes",
                    "name its prefixes and your own: `route: [...]`, `users: [...]`, and remove `as`",
                ),
                false => (
                    "a service",
                    "name an address of your own for it: `as: [...]`, and remove `route` and `users`",
                ),
            };
            self.findings
                .add(
                    "agreement",
                    accept.service.span,
                    format!("`{}` is an offer of {of}", accept.service.value),
                )
                .also(offer.name.span, "the offer")
                .help(help);
            return;
        }
        let both = |v4: bool| {
            [(&offer.route, &accept.route), (&offer.users, &accept.users)]
                .iter()
                .all(|(one, other)| common(one, other).iter().any(|p| p.is_v4() == v4))
        };
        let whole = [&offer.route, &offer.users, &accept.route, &accept.users];
        if !both(true) && !both(false) && whole.iter().all(|list| !list.is_none()) {
            self.findings
                .add(
                    "family",
                    accept.service.span,
                    "offer and acceptance have no prefixes in common for both sides",
                )
                .also(offer.name.span, "the offer")
                .help("what both name in `route`, and what both name in `users`, takes part");
        }
    }
}

/// The prefixes that two lists have in common.
fn common(one: &[Located<Prefix>], other: &[Located<Prefix>]) -> Vec<Prefix> {
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
    pairs.filter_map(|(a, b)| a.shared(&b.value)).collect()
}
