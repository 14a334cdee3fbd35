//! What may talk: a tenant's rules, its agreements with others, the provider's guardrails.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, model, words};
use crate::selectors::{OneOrMore, Selector, TenantList};
use crate::source::{Located, Span};
use crate::traffic::{IcmpMessage, PortRange, Protocol, Until};
use crate::tree::{Kind, Node};
use crate::values::{Ip, Name, Prefix, Toggle};

words! {
    /// What a rule does.
    pub enum Action as "an action" {
        /// It lets pass.
        Allow = "allow",
        /// It drops.
        Deny = "deny",
    }
}

words! {
    /// Whether what answers an allowed packet passes because of it.
    pub enum Tracking as "a way of tracking" {
        /// It does.
        Stateful = "stateful",
        /// It does not: answers need a rule of their own.
        Stateless = "stateless",
    }
}

model! {
    /// What may talk: rules in the order of their priority, then the defaults.
    pub struct Policy as "a policy" {
        optional {
            /// What holds where no rule decides. Default: {inside: allow, inbound: deny, outbound: allow}.
            default: Located<Defaults>,
        }
        lists {
            /// The rules.
            rules: Rule,
            /// What must and must not be possible: checked at each apply.
            reach: Reach,
        }
    }
}

/// What holds where no rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Between the tenant's own endpoints and networks.
    pub inside: Action,
    /// From anywhere else.
    pub inbound: Action,
    /// To anywhere else.
    pub outbound: Action,
}

impl Defaults {
    /// A tenant without a policy.
    pub const OPEN: Defaults = Defaults {
        inside: Action::Allow,
        inbound: Action::Allow,
        outbound: Action::Allow,
    };
    /// Nothing passes.
    pub(crate) const CLOSED: Defaults = Defaults {
        inside: Action::Deny,
        inbound: Action::Deny,
        outbound: Action::Deny,
    };
    /// A policy that says nothing else.
    pub const OF_POLICY: Defaults = Defaults {
        inbound: Action::Deny,
        ..Defaults::OPEN
    };
}

model! {
    /// What holds where no rule decides, for each direction.
    pub struct LongDefaults as "`default`" {
        optional {
            /// Between the tenant's own endpoints and networks. Default: allow.
            inside: Action,
            /// From anywhere else. Default: deny.
            inbound: Action,
            /// To anywhere else. Default: allow.
            outbound: Action,
        }
    }
}

impl Decode for Defaults {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        if let Kind::Scalar { .. } = node.kind {
            let one = Decode::decode(node, findings)?;
            return Some(Defaults {
                inside: one,
                inbound: one,
                outbound: one,
            });
        }
        let long: LongDefaults = Decode::decode(node, findings)?;
        let rest = Defaults::OF_POLICY;
        Some(Defaults {
            inside: long.inside.unwrap_or(rest.inside),
            inbound: long.inbound.unwrap_or(rest.inbound),
            outbound: long.outbound.unwrap_or(rest.outbound),
        })
    }
}
impl Serialize for Defaults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LongDefaults {
            inside: Some(self.inside),
            inbound: Some(self.inbound),
            outbound: Some(self.outbound),
        }
        .serialize(serializer)
    }
}
impl JsonSchema for Defaults {
    fn schema_name() -> Cow<'static, str> {
        "Defaults".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`allow` or `deny` for everything, or for each direction",
            "anyOf": [generator.subschema_for::<Action>(), generator.subschema_for::<LongDefaults>()]
        })
    }
}

model! {
    /// A rule: the first that a packet matches decides, by priority, then by place.
    pub struct Rule as "a rule" {
        required {
            /// Its name, unique in the tenant.
            name: Located<Name>,
            /// What it does.
            action: Action,
        }
        optional {
            /// 0 to 65535, the lower the earlier. Default: 1000.
            priority: Located<u32>,
            /// Who sends. Default: any.
            from: Located<Selector>,
            /// To whom. Default: any.
            to: Located<Selector>,
            /// Default: any.
            protocol: Located<Protocol>,
            /// Destination ports, with tcp or udp; at most 64. Default: any.
            ports: OneOrMore<PortRange>,
            /// Source ports, likewise. Default: any.
            source_ports as "source-ports": OneOrMore<PortRange>,
            /// Kinds of message, with icmp or icmp6. Default: any.
            icmp: OneOrMore<IcmpMessage>,
            /// Whether answers pass because of it. Default: stateful.
            state: Located<Tracking>,
            /// Log the first packet of each connection. Default: off.
            log: Located<Toggle>,
        }
    }
}

model! {
    /// A rule of the provider: before every rule of the tenants, which cannot change it.
    pub struct Guardrail as "a guardrail" {
        required {
            /// Its name, unique among guardrails.
            name: Located<Name>,
            /// What it does; an allow is final as well.
            action: Action,
        }
        optional {
            /// Whom it concerns. Default: any.
            tenants: Located<TenantList>,
            /// Who sends: any, outside or prefixes. Default: any.
            from: Located<Selector>,
            /// To whom: any, outside or prefixes. Default: any.
            to: Located<Selector>,
            /// Default: any.
            protocol: Located<Protocol>,
            /// Destination ports, with tcp or udp; at most 64. Default: any.
            ports: OneOrMore<PortRange>,
            /// Source ports, likewise. Default: any.
            source_ports as "source-ports": OneOrMore<PortRange>,
            /// Kinds of message, with icmp or icmp6. Default: any.
            icmp: OneOrMore<IcmpMessage>,
            /// Whether answers pass because of it. Default: stateful.
            state: Located<Tracking>,
            /// Log the first packet of each connection. Default: off.
            log: Located<Toggle>,
        }
    }
}

model! {
    /// What must, or must not, be possible.
    pub struct Reach as "a reach" {
        required {
            /// Whether it must be possible; otherwise none of it may be.
            allowed: Located<Toggle>,
        }
        optional {
            /// Who sends. Default: any.
            from: Located<Selector>,
            /// To whom. Default: any.
            to: Located<Selector>,
            /// Default: any.
            protocol: Located<Protocol>,
            /// Destination ports, with tcp or udp. Default: any.
            ports: OneOrMore<PortRange>,
            /// Kinds of message, with icmp or icmp6. Default: any.
            icmp: OneOrMore<IcmpMessage>,
        }
    }
}

model! {
    /// A service for other tenants, of which each that accepts it reaches the endpoint's
    /// ports; or prefixes that one of them reaches as they are.
    #[schemars(extend("oneOf" = [
        {"required": ["endpoint", "protocol", "ports", "pool"]},
        {"required": ["route", "users"]},
    ]))]
    pub struct Offer as "an offer" {
        required {
            /// Its name, unique among the tenant's offers and acceptances.
            name: Located<Name>,
            /// To which tenants; prefixes: to one.
            to: OneOrMore<Name>,
        }
        optional {
            /// A service: the endpoint that serves.
            endpoint: Located<Name>,
            /// A service: tcp or udp. Prefixes: default any.
            protocol: Located<Protocol>,
            /// Prefixes: the tenant too may begin connections, if the acceptance says so
            /// as well. Default: no.
            both: Located<Toggle>,
            /// Circuits across it may go by memory that both programs have, if the acceptance
            /// says so as well. Default: no.
            rings: Located<Toggle>,
            /// When it ends. Default: never.
            until: Located<Until>,
        }
        several {
            /// Its ports, at most 64. Prefixes: default any.
            ports: PortRange,
            /// A service: addresses of the tenant's own that users appear as, shared out
            /// evenly to the tenants in `to`.
            pool: Prefix,
            /// Prefixes of the tenant's own that the other tenant reaches, at most 16.
            route: Prefix,
            /// Where the other tenant's users may be: prefixes that are nobody's here, at
            /// most 16.
            users: Prefix,
        }
    }
}

model! {
    /// A service of another tenant under an address of one's own, or prefixes of another
    /// tenant as they are.
    #[schemars(extend("oneOf" = [{"required": ["as"]}, {"required": ["route", "users"]}]))]
    pub struct Accept as "an acceptance" {
        required {
            /// Its name, unique among the tenant's offers and acceptances.
            name: Located<Name>,
            /// The tenant that offers it.
            from: Located<Name>,
            /// The offer's name there.
            service: Located<Name>,
        }
        optional {
            /// Which endpoints may use it. Default: any.
            endpoints: Located<Selector>,
            /// Prefixes: the offerer too may begin connections, if the offer says so as
            /// well. Default: no.
            both: Located<Toggle>,
            /// Circuits across it may go by memory that both programs have, if the offer says so
            /// as well. Default: no.
            rings: Located<Toggle>,
        }
        several {
            /// The service's addresses here, at most one of each family; nobody else's.
            as_ as "as": Ip,
            /// Where the other tenant's prefixes may be: prefixes that are nobody's here,
            /// at most 16.
            route: Prefix,
            /// Prefixes of the tenant's own that its users are in, at most 16.
            users: Prefix,
        }
    }
}

/// What a rule, a guardrail or a reach says about packets.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// Who sends.
    pub from: &'a Selector,
    /// To whom.
    pub to: &'a Selector,
    /// By which protocol.
    pub protocol: Protocol,
    /// Destination ports; empty = any.
    pub ports: &'a [Located<PortRange>],
    /// Source ports; empty = any.
    pub source_ports: &'a [Located<PortRange>],
    /// ICMP messages; empty = any.
    pub icmp: &'a [Located<IcmpMessage>],
}

/// Where the parts of a [`Traffic`] are written.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub(crate) from: Option<&'a Located<Selector>>,
    pub(crate) to: Option<&'a Located<Selector>>,
    pub(crate) protocol: Option<Located<Protocol>>,
    pub(crate) ports: Option<&'a OneOrMore<PortRange>>,
    pub(crate) source_ports: Option<&'a OneOrMore<PortRange>>,
    pub(crate) icmp: Option<&'a OneOrMore<IcmpMessage>>,
    /// Where the whole is named.
    pub span: Span,
}

impl<'a> Scope<'a> {
    /// What it says, defaults filled in.
    pub fn traffic(self) -> Traffic<'a> {
        fn list<T>(of: Option<&OneOrMore<T>>) -> &[Located<T>] {
            of.map_or(&[], |list| &list.0)
        }
        Traffic {
            from: self.from.map_or(&Selector::Any, |s| &s.value),
            to: self.to.map_or(&Selector::Any, |s| &s.value),
            protocol: self.protocol.map_or(Protocol::Any, |p| p.value),
            ports: list(self.ports),
            source_ports: list(self.source_ports),
            icmp: list(self.icmp),
        }
    }
}

macro_rules! scope {
    ($type:ident, $span:expr, $source_ports:expr) => {
        impl $type {
            /// What it says about packets, with the places.
            pub fn scope(&self) -> Scope<'_> {
                let span: fn(&Self) -> Span = $span;
                let source_ports: fn(&Self) -> Option<&OneOrMore<PortRange>> = $source_ports;
                Scope {
                    from: self.from.as_ref(),
                    to: self.to.as_ref(),
                    protocol: self.protocol,
                    ports: self.ports.as_ref(),
                    source_ports: source_ports(self),
                    icmp: self.icmp.as_ref(),
                    span: span(self),
                }
            }
            /// What it says about packets, defaults filled in.
            pub fn traffic(&self) -> Traffic<'_> {
                self.scope().traffic()
            }
        }
    };
}
scope!(Rule, |r| r.name.span, |r| r.source_ports.as_ref());
scope!(Guardrail, |g| g.name.span, |g| g.source_ports.as_ref());
scope!(Reach, |r| r.allowed.span, |_| None);

impl Policy {
    /// What holds where no rule decides.
    pub fn defaults(&self) -> Defaults {
        self.default.map_or(Defaults::OF_POLICY, |d| d.value)
    }
    /// The rules in the order in which they are asked.
    pub fn in_order(&self) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        // Stable: rules of one priority stay in the order of the list.
        rules.sort_by_key(|rule| rule.priority());
        rules
    }
}

impl Rule {
    /// 0 to 65535, the lower the earlier.
    pub fn priority(&self) -> u32 {
        self.priority.map_or(1000, |p| p.value)
    }
    /// Whether answers pass because of it.
    pub fn stateful(&self) -> bool {
        self.state.is_none_or(|s| s.value == Tracking::Stateful)
    }
    /// Whether it is logged.
    pub fn log(&self) -> bool {
        self.log.is_some_and(|l| l.value.0)
    }
}

impl Guardrail {
    /// Whether it concerns the tenant.
    pub fn concerns(&self, tenant: &Name) -> bool {
        self.tenants
            .as_ref()
            .is_none_or(|list| list.value.includes(tenant))
    }
    /// Whether answers pass because of it.
    pub fn stateful(&self) -> bool {
        self.state.is_none_or(|s| s.value == Tracking::Stateful)
    }
    /// Whether it is logged.
    pub fn log(&self) -> bool {
        self.log.is_some_and(|l| l.value.0)
    }
}

impl Offer {
    /// Whether it is of prefixes, which are routed, and not of a service.
    pub fn is_routed(&self) -> bool {
        !self.route.is_none() || !self.users.is_none()
    }
    /// By which protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol.map_or(Protocol::Any, |p| p.value)
    }
    /// Whether the tenant too would begin connections.
    pub fn both(&self) -> bool {
        self.both.is_some_and(|both| both.value.0)
    }
    /// Whether the tenant would share memory with the other.
    pub fn rings(&self) -> bool {
        self.rings.is_some_and(|rings| rings.value.0)
    }
    /// The part of the pool that the users from one tenant appear as: the pool's prefixes
    /// cut into as many equal parts as the next power of two above the tenants in `to`,
    /// the part by the tenant's place there. Empty = it is not offered to that tenant.
    pub fn pool_of(&self, tenant: &Name) -> Vec<Prefix> {
        let Some(place) = self.to.iter().position(|name| name.value == *tenant) else {
            return Vec::new();
        };
        let bits = self.to.len().next_power_of_two().trailing_zeros() as u8;
        let part = |pool: &Located<Prefix>| {
            let all = if pool.is_v4() { 32 } else { 128 };
            let len = pool.len.checked_add(bits).filter(|len| *len <= all)?;
            let step = (place as u128)
                .checked_shl(u32::from(all - len))
                .unwrap_or(0);
            let network = match pool.network {
                core::net::IpAddr::V4(a) => {
                    core::net::Ipv4Addr::from_bits(a.to_bits() | step as u32).into()
                }
                core::net::IpAddr::V6(a) => {
                    core::net::Ipv6Addr::from_bits(a.to_bits() | step).into()
                }
            };
            Some(Prefix { network, len })
        };
        self.pool.iter().filter_map(part).collect()
    }
    /// The address family's share of the pool is large enough for every tenant.
    pub(crate) fn pool_suffices(&self, pool: &Prefix) -> bool {
        let bits = self.to.len().next_power_of_two().trailing_zeros() as u8;
        let all = if pool.is_v4() { 32 } else { 128 };
        all - pool.len >= bits
    }
}

impl Accept {
    /// Whether it is of prefixes, which are routed, and not of a service.
    pub fn is_routed(&self) -> bool {
        !self.route.is_none() || !self.users.is_none()
    }
    /// Whether the offerer too may begin connections.
    pub fn both(&self) -> bool {
        self.both.is_some_and(|both| both.value.0)
    }
    /// Whether the tenant would share memory with the other.
    pub fn rings(&self) -> bool {
        self.rings.is_some_and(|rings| rings.value.0)
    }
    /// The service's address of a family here.
    pub fn address(&self, v4: bool) -> Option<core::net::IpAddr> {
        let mut all = self.as_.iter().map(|a| a.value.0);
        all.find(|a| a.is_ipv4() == v4)
    }
}

impl crate::Tenant {
    /// What holds where no rule decides.
    pub fn defaults(&self) -> Defaults {
        self.policy
            .as_ref()
            .map_or(Defaults::OPEN, Policy::defaults)
    }
    /// Whether anything is said about what its endpoints may send: otherwise everything
    /// passes and nothing is tracked.
    pub fn is_judged(&self, guardrails: &[Guardrail]) -> bool {
        self.policy.is_some()
            || !self.offers.is_empty()
            || !self.accepts.is_empty()
            || guardrails.iter().any(|g| g.concerns(&self.name.value))
    }
}
