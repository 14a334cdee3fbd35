//! Whether one may talk to another, and which rule, at which switch, says so: asked of
//! the tables that the switches run, named by the spec that they were made from.

use crate::agreements::Agreement;
use crate::ids::Ids;
use crate::intent::{CompartmentIntent, Intent, PortIntent};
use crate::rules;
use core::net::{IpAddr, Ipv4Addr};
use guard::guard;
use image::compartment::{ROUTE_OUTSIDE, ROUTE_SUBNET, ROUTE_VIA};
use image::rules::{Action, DEFAULT_RULE, RuleTable};
use image::{Aligned, CompartmentImage};
use spec::{Prefix, Protocol, Span, Spec, State, Tenant, mapped};
use wire::Tuple;

/// Who is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer<'a> {
    /// An endpoint, as `TENANT/ENDPOINT`.
    Endpoint(&'a str),
    /// An address as the other side's tenant sees it.
    Address(IpAddr),
}

/// What is asked: whether `from` may begin to talk to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Who begins.
    pub from: Peer<'a>,
    /// With whom.
    pub to: Peer<'a>,
    /// IP protocol.
    pub protocol: u8,
    /// Source port; 0 for what has none.
    pub source_port: u16,
    /// Destination port, or `type << 8 | code` of an ICMP message.
    pub port: u16,
}

/// The answer: a way for each family that both have. None = nothing joins the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// From the first to the second.
    pub there: Vec<Way>,
    /// A new connection of the same protocol and port the other way round.
    pub back: Vec<Way>,
}

/// How a first packet would fare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its source as it is sent.
    pub source: IpAddr,
    /// Its destination as it is sent.
    pub destination: IpAddr,
    /// Who judges it, in order, and how; those after a refusal would not be asked.
    pub verdicts: Vec<Verdict>,
    /// The service of another tenant that it goes to.
    pub service: Option<Service>,
    /// Why nothing carries it, whatever the rules say.
    pub bar: Option<Bar>,
    /// Whether the source, and the destination, has circuits alone.
    pub alone: [bool; 2],
    /// Whether it passes.
    pub allowed: bool,
    /// Whether what answers it passes because of it.
    pub answers: bool,
}

/// Why nothing carries what the rules may allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// One end has circuits alone, and the other none: who begins (egress), or who is asked.
    Apart(Side),
    /// One end is not open (`state` in the spec): who begins (egress), or who is asked.
    Shut(Side),
    /// Circuits carry TCP and UDP alone.
    Protocol,
    /// Across an agreement they carry TCP alone.
    Crossing,
    /// Circuits are connections: of a stateless rule they take none.
    Stateless,
    /// Circuits of who is metered, or has a rate, carry TCP alone.
    Metered,
}

/// One switch's word at one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The compartment whose switch judges.
    pub compartment: String,
    /// The endpoint, as `TENANT/ENDPOINT`.
    pub endpoint: String,
    /// Which of its two tables.
    pub side: Side,
    /// What that says.
    pub action: Action,
    /// Whose word it is.
    pub decided: Decided,
}

/// Which table of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What it may send.
    Egress,
    /// What may be sent to it.
    Ingress,
}

/// What in the spec decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// `rule`, `guardrail`, `offer`, `acceptance`, `default`, or `nothing`: no rules at all.
    pub by: &'static str,
    /// Its name; of a default inside, inbound or outbound.
    pub name: String,
    /// File, line and column, from 1; `None` = nothing is written.
    pub place: Option<(String, u32, u32)>,
}

/// A crossing to another tenant, and what it does to the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Number of the agreement.
    pub agreement: u32,
    /// Tag between the two switches.
    pub tag: u16,
    /// The offer, as `TENANT/OFFER`.
    pub offer: String,
    /// Whether protocol and port are the service's; routed: addresses and direction too.
    pub offered: bool,
    /// The source that the serving endpoint sees: for `pool` its first address, or routed
    /// the packet's own.
    pub source: IpAddr,
    /// The pool's part of which each connection gets an address; `None`: it is routed.
    pub pool: Option<Prefix>,
    /// The serving endpoint's address.
    pub destination: IpAddr,
}

/// Why there is no answer: the fault of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// There is no such endpoint.
    NoEndpoint(String),
    /// Neither side is an endpoint.
    TwoAddresses,
}

/// Answers a question about what `intent` holds, which came of `spec` and `ids`.
///
/// # Errors
/// The question names nobody.
pub fn explain(
    spec: &Spec,
    ids: &Ids,
    intent: &Intent,
    question: &Question<'_>,
) -> Result<Answer, Unclear> {
    let at = At { spec, ids, intent };
    let turned = Question {
        from: question.to,
        to: question.from,
        ..*question
    };
    Ok(Answer {
        there: at.ways(question)?,
        back: at.ways(&turned)?,
    })
}

/// What a rule's number stands for in a tenant's table; `peer` is the other end's address,
/// by which the default that decides is named.
pub fn decided(
    (spec, ids, intent): (&Spec, &Ids, &Intent),
    tenant: &str,
    rule: u32,
    side: Side,
    peer: [u8; 16],
) -> Decided {
    let at = At { spec, ids, intent };
    match spec.tenants.iter().find(|t| t.name.as_str() == tenant) {
        Some(tenant) => at.decided(tenant, rule, side, peer),
        None => named("rule", &format!("number {rule}"), None),
    }
}

struct At<'a> {
    spec: &'a Spec,
    ids: &'a Ids,
    intent: &'a Intent,
}

type Placed<'a> = (&'a CompartmentIntent, &'a PortIntent);

/// How an end is attached: by packets, by circuits beside them, or by circuits alone. Whoever is
/// outside has packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Packets,
    Both,
    Circuits,
    /// Alone, and each byte is counted.
    Metered,
    /// By nothing: it is not open.
    Shut,
}

impl At<'_> {
    fn end(&self, (_, port): Placed<'_>) -> End {
        let mut tenants = self.spec.tenants.iter();
        let tenant = tenants.find(|tenant| tenant.name.as_str() == port.tenant);
        let mut all = tenant.into_iter().flat_map(|tenant| &tenant.endpoints);
        let endpoint = all.find(|endpoint| endpoint.name.as_str() == port.endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.state() != State::Open) {
            return End::Shut;
        }
        match port.has_circuits_alone() {
            true if port.metered => End::Metered,
            true => End::Circuits,
            false if port.has_circuits() => End::Both,
            false => End::Packets,
        }
    }
}

impl<'a> At<'a> {
    fn ways(&self, question: &Question<'_>) -> Result<Vec<Way>, Unclear> {
        let find = |name: &str| {
            let found = self.intent.endpoint(name);
            found.ok_or_else(|| Unclear::NoEndpoint(name.to_owned()))
        };
        Ok(match (question.from, question.to) {
            (Peer::Endpoint(from), Peer::Endpoint(to)) => {
                let (from, to) = (find(from)?, find(to)?);
                if from.1.tenant == to.1.tenant {
                    pairs(question, &from.1.addresses, &to.1.addresses)
                        .map(|(a, b)| self.inside(question, (from, a), (to, b)))
                        .collect()
                } else {
                    let mut ways = self.by_service(question, from, to);
                    ways.extend(self.by_route(question, from, to));
                    ways
                }
            }
            (Peer::Endpoint(from), Peer::Address(to)) => {
                let from = find(from)?;
                pairs(question, &from.1.addresses, &[to])
                    .filter_map(|(a, b)| self.toward(question, (from, a), b))
                    .collect()
            }
            (Peer::Address(from), Peer::Endpoint(to)) => {
                let to = find(to)?;
                pairs(question, &[from], &to.1.addresses)
                    .filter_map(|(a, b)| match self.owner(&to.1.tenant, a) {
                        Some(owner) => Some(self.inside(question, (owner, a), (to, b))),
                        None => {
                            // Whether anybody has the address, which is the other tenant's to know.
                            if let Some(route) = self.routes(&to.1.tenant, a).next() {
                                let theirs = route.other(&to.1.tenant);
                                let from = (theirs, self.owner(theirs, a));
                                return Some(self.routed(question, from, a, b, route));
                            }
                            let used = |s: &&Agreement| {
                                (&s.offerer, &s.endpoint) == (&to.1.tenant, &to.1.endpoint)
                                    && s.pool.iter().any(|p| p.contains(a))
                            };
                            let serves = self.intent.agreements.iter().any(|s| used(&s));
                            if !serves && !leads(to, a) {
                                return None;
                            }
                            let verdict = self.verdict(question, to, Side::Ingress, a, b);
                            // Of a service's user it is not known which it is.
                            let from = match serves {
                                true => self.end(to),
                                false => End::Packets,
                            };
                            let way = way(a, b, vec![verdict], None);
                            Some(way.carried(question, [from, self.end(to)]))
                        }
                    })
                    .collect()
            }
            (Peer::Address(_), Peer::Address(_)) => return Err(Unclear::TwoAddresses),
        })
    }

    /// The endpoint of a tenant that has the address.
    fn owner(&self, tenant: &str, address: IpAddr) -> Option<Placed<'a>> {
        let mut ports = self.intent.ports();
        ports.find(|(_, port)| port.tenant == tenant && port.addresses.contains(&address))
    }

    fn inside(
        &self,
        question: &Question<'_>,
        (from, a): (Placed<'a>, IpAddr),
        (to, b): (Placed<'a>, IpAddr),
    ) -> Way {
        let ends = [from, to].map(|end| self.end(end));
        // What an endpoint says to itself never leaves it: nobody judges it, or counts it.
        if from.1.create.endpoint == to.1.create.endpoint {
            let ends = ends.map(|end| match end {
                End::Metered => End::Circuits,
                end => end,
            });
            return way(a, b, Vec::new(), None).carried(question, ends);
        }
        let verdicts = vec![
            self.verdict(question, from, Side::Egress, a, b),
            self.verdict(question, to, Side::Ingress, a, b),
        ];
        way(a, b, verdicts, None).carried(question, ends)
    }

    fn toward(
        &self,
        question: &Question<'_>,
        (from, a): (Placed<'a>, IpAddr),
        b: IpAddr,
    ) -> Option<Way> {
        if let Some(to) = self.owner(&from.1.tenant, b) {
            return Some(self.inside(question, (from, a), (to, b)));
        }
        let agreements = self.intent.agreements.iter();
        let service = agreements
            .filter(|s| s.acceptor == from.1.tenant)
            .find(|s| s.addresses.contains(&b));
        if let Some(route) = self.routes(&from.1.tenant, b).next() {
            return Some(self.routed(question, (&from.1.tenant, Some(from)), a, b, route));
        }
        let across = service.and_then(|service| self.crossing(question, from, a, b, service));
        across.or_else(|| {
            leads(from, b).then(|| {
                let verdict = self.verdict(question, from, Side::Egress, a, b);
                let way = way(a, b, vec![verdict], None);
                way.carried(question, [self.end(from), End::Packets])
            })
        })
    }

    /// Agreements of prefixes by which a tenant's packets go to an address.
    fn routes<'b>(
        &'b self,
        tenant: &'b str,
        to: IpAddr,
    ) -> impl Iterator<Item = &'b Agreement> + 'b {
        let all = self.intent.agreements.iter();
        all.filter(move |a| a.routed.is_some() && a.beyond(tenant).iter().any(|p| p.contains(to)))
    }

    fn by_route(&self, question: &Question<'_>, from: Placed<'a>, to: Placed<'a>) -> Vec<Way> {
        let (ours, theirs) = (&from.1.tenant, &to.1.tenant);
        let mut ways = Vec::new();
        for agreement in &self.intent.agreements {
            let joins = agreement.offerer == *ours && agreement.acceptor == *theirs
                || agreement.acceptor == *ours && agreement.offerer == *theirs;
            if agreement.routed.is_none() || !joins {
                continue;
            }
            // Of several addresses, those that take part.
            let part = |list: &[IpAddr], prefixes: Vec<Prefix>| -> Vec<IpAddr> {
                let takes = |a: &&IpAddr| prefixes.iter().any(|p| p.contains(**a));
                list.iter().filter(takes).copied().collect()
            };
            let a = part(&from.1.addresses, agreement.beyond(theirs));
            let b = part(&to.1.addresses, agreement.beyond(ours));
            let across = pairs(question, &a, &b).map(|(a, b)| {
                let from = (ours.as_str(), Some(from));
                self.routed(question, from, a, b, agreement)
            });
            ways.extend(across);
        }
        ways
    }

    /// From an address of a tenant's, an endpoint's if there is one, to one of another's that is routed to.
    fn routed(
        &self,
        question: &Question<'_>,
        (ours, from): (&str, Option<Placed<'a>>),
        a: IpAddr,
        b: IpAddr,
        agreement: &Agreement,
    ) -> Way {
        let theirs = agreement.other(ours);
        let begins = agreement.acceptor == ours || agreement.both();
        let own = agreement.beyond(theirs).iter().any(|p| p.contains(a));
        let service = Service {
            pool: None,
            agreement: agreement.id,
            tag: agreement.tag,
            offer: format!("{}/{}", agreement.offerer, agreement.offer),
            offered: begins && own && offers(agreement, question),
            source: a,
            destination: b,
        };
        let egress = from.map(|from| self.verdict(question, from, Side::Egress, a, b));
        let mut verdicts: Vec<Verdict> = egress.into_iter().collect();
        let to = self.owner(theirs, b);
        if let Some(to) = to {
            verdicts.push(self.verdict(question, to, Side::Ingress, a, b));
        }
        // Nobody has the address: whoever will.
        let known = from.or(to).map_or(End::Packets, |end| self.end(end));
        let ends = [from, to].map(|end| end.map_or(known, |end| self.end(end)));
        way(a, b, verdicts, Some(service)).carried(question, ends)
    }

    fn by_service(&self, question: &Question<'_>, from: Placed<'a>, to: Placed<'a>) -> Vec<Way> {
        let mut services: Vec<&Agreement> = (self.intent.agreements.iter())
            .filter(|s| s.acceptor == from.1.tenant && s.offerer == to.1.tenant)
            .filter(|s| s.routed.is_none() && s.endpoint == to.1.endpoint)
            .collect();
        // Of several, those that the question is about.
        if services.iter().any(|s| offers(s, question)) {
            services.retain(|s| offers(s, question));
        }
        services
            .into_iter()
            .flat_map(|s| {
                pairs(question, &from.1.addresses, &s.addresses)
                    .filter_map(move |(a, b)| self.crossing(question, from, a, b, s))
            })
            .collect()
    }

    /// From an endpoint to the address that stands for a service.
    fn crossing(
        &self,
        question: &Question<'_>,
        from: Placed<'a>,
        a: IpAddr,
        b: IpAddr,
        agreement: &Agreement,
    ) -> Option<Way> {
        let name = format!("{}/{}", agreement.offerer, agreement.endpoint);
        let to = self.intent.endpoint(&name)?;
        let of = |list: &[IpAddr]| list.iter().find(|x| x.is_ipv4() == b.is_ipv4()).copied();
        let pool = agreement.pool.iter().find(|p| p.is_v4() == b.is_ipv4())?;
        let service = Service {
            agreement: agreement.id,
            tag: agreement.tag,
            offer: format!("{}/{}", agreement.offerer, agreement.offer),
            offered: offers(agreement, question),
            source: pool.network,
            pool: Some(*pool),
            destination: of(&agreement.service)?,
        };
        let (source, destination) = (service.source, service.destination);
        // The pool may choose another source port: the one asked about stands for it.
        let verdicts = vec![
            self.verdict(question, from, Side::Egress, a, b),
            self.verdict(question, to, Side::Ingress, source, destination),
        ];
        let way = way(a, b, verdicts, Some(service));
        Some(way.carried(question, [from, to].map(|end| self.end(end))))
    }

    fn verdict(
        &self,
        question: &Question<'_>,
        (compartment, port): Placed<'a>,
        side: Side,
        source: IpAddr,
        destination: IpAddr,
    ) -> Verdict {
        let tuple = Tuple {
            source: mapped(source),
            destination: mapped(destination),
            source_port: question.source_port,
            destination_port: question.port,
            protocol: question.protocol,
        };
        let table = match side {
            Side::Egress => port.egress,
            Side::Ingress => port.ingress,
        };
        let table = table.and_then(|at| compartment.tables.get(at as usize));
        let tenant = (self.spec.tenants.iter()).find(|t| t.name.as_str() == port.tenant);
        let (action, decided) = match (table, tenant) {
            (Some(table), Some(tenant)) => {
                let (action, id) = decide(table, &tuple);
                let peer = match side {
                    Side::Egress => tuple.destination,
                    Side::Ingress => tuple.source,
                };
                (action, self.decided(tenant, id, side, peer))
            }
            _ => (Action::Allow, named("nothing", "no rules", None)),
        };
        Verdict {
            compartment: compartment.name.clone(),
            endpoint: format!("{}/{}", port.tenant, port.endpoint),
            side,
            action,
            decided,
        }
    }

    /// What a rule's number stands for.
    fn decided(&self, tenant: &Tenant, id: u32, side: Side, peer: [u8; 16]) -> Decided {
        let place = |span: Span| {
            let at = self.spec.source.position(span.start);
            Some((
                self.spec.source.name_at(span.start).to_owned(),
                at.line,
                at.column,
            ))
        };
        if id == DEFAULT_RULE {
            let peer = u128::from_be_bytes(peer);
            let name = match side {
                _ if rules::inside(tenant).meets((peer, peer)) => "inside",
                Side::Egress => "outbound",
                Side::Ingress => "inbound",
            };
            let written = tenant.policy.as_ref().and_then(|p| p.default);
            return named("default", name, written.and_then(|d| place(d.span)));
        }
        let ids = self.ids.tenants.get(tenant.name.as_str());
        let is = |list: Option<&std::collections::BTreeMap<String, u32>>, name: &str| {
            list.and_then(|list| list.get(name)) == Some(&id)
        };
        let rules = tenant.policy.iter().flat_map(|p| &p.rules);
        let rails = self.spec.guardrails.iter().map(|g| &g.name);
        let rules = rules.map(|r| &r.name);
        let offers = tenant.offers.iter().map(|o| &o.name);
        let accepts = tenant.accepts.iter().map(|a| &a.name);
        let mut all = (rails.map(|n| ("guardrail", n, Some(&self.ids.guardrails))))
            .chain(rules.map(|n| ("rule", n, ids.map(|i| &i.rules))))
            .chain(offers.map(|n| ("offer", n, ids.map(|i| &i.offers))))
            .chain(accepts.map(|n| ("acceptance", n, ids.map(|i| &i.accepts))));
        match all.find(|(_, name, list)| is(*list, name.as_str())) {
            Some((by, name, _)) => named(by, name.as_str(), place(name.span)),
            None => named("rule", &format!("number {id}"), None),
        }
    }
}

fn named(by: &'static str, name: &str, place: Option<(String, u32, u32)>) -> Decided {
    Decided {
        by,
        name: name.to_owned(),
        place,
    }
}

/// Whether the tables lead from an endpoint to an address that is no endpoint's nor a
/// service's, or from there to it: behind a router, outside, beyond its subnet in a VLAN,
/// the gateway, or a group.
fn leads((compartment, port): Placed<'_>, address: IpAddr) -> bool {
    let memory = Aligned::copy_of(&compartment.image.bytes);
    let Ok(image) = CompartmentImage::map(memory.as_ref()) else {
        return false;
    };
    let endpoints = image.endpoints();
    let endpoint = endpoints.iter().find(|e| e.slot == port.create.slot);
    let subnet = endpoint.and_then(|e| image.subnets().get(e.subnet as usize));
    let Some(subnet) = subnet else { return false };
    let of_all = address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST);
    let gateway = match address {
        IpAddr::V4(address) => subnet.gateway4 == address.octets(),
        IpAddr::V6(address) => subnet.gateway6 == address.octets(),
    };
    let route = image.route(subnet.tenant, mapped(address));
    let own = endpoint.map(|e| e.subnet);
    let beyond = subnet.segment != 0
        && route.is_some_and(|r| r.kind == ROUTE_SUBNET && Some(r.subnet) == own);
    beyond
        || of_all
        || gateway
        || route.is_some_and(|r| matches!(r.kind, ROUTE_VIA | ROUTE_OUTSIDE))
}

impl Way {
    /// The same with what keeps it from being carried between two ends.
    fn carried(mut self, question: &Question<'_>, ends: [End; 2]) -> Way {
        let [from, to] = ends;
        self.alone = ends.map(|end| matches!(end, End::Circuits | End::Metered));
        if from.max(to) < End::Circuits || !guard!("explain-carried") {
            return self;
        }
        let crosses = self.service.is_some();
        let is_stateless = |verdict: &Verdict| verdict.action == Action::AllowStateless;
        self.bar = match Protocol::Number(question.protocol) {
            _ if from == End::Shut => Some(Bar::Shut(Side::Egress)),
            _ if to == End::Shut => Some(Bar::Shut(Side::Ingress)),
            _ if to == End::Packets => Some(Bar::Apart(Side::Egress)),
            _ if from == End::Packets => Some(Bar::Apart(Side::Ingress)),
            Protocol::UDP if crosses => Some(Bar::Crossing),
            Protocol::UDP if from.max(to) == End::Metered => Some(Bar::Metered),
            Protocol::TCP | Protocol::UDP => {
                let any = self.verdicts.iter().any(is_stateless);
                any.then_some(Bar::Stateless)
            }
            _ => Some(Bar::Protocol),
        };
        self.allowed &= self.bar.is_none();
        self.answers &= self.allowed;
        self
    }
}

fn way(a: IpAddr, b: IpAddr, verdicts: Vec<Verdict>, service: Option<Service>) -> Way {
    let passes = verdicts.iter().all(|v| v.action != Action::Deny);
    let allowed = passes && service.as_ref().is_none_or(|s| s.offered);
    Way {
        source: a,
        destination: b,
        allowed,
        answers: allowed && verdicts.iter().all(|v| v.action == Action::Allow),
        verdicts,
        service,
        bar: None,
        alone: [false; 2],
    }
}

fn offers(agreement: &Agreement, question: &Question<'_>) -> bool {
    match agreement.protocol {
        None => true,
        Some(protocol) => {
            protocol == question.protocol
                && agreement.ports.iter().any(|p| p.contains(&question.port))
        }
    }
}

/// The first pair of each family that both have and the protocol is of.
fn pairs(
    question: &Question<'_>,
    from: &[IpAddr],
    to: &[IpAddr],
) -> impl Iterator<Item = (IpAddr, IpAddr)> + use<> {
    let families: &[bool] = match Protocol::Number(question.protocol) {
        Protocol::ICMP => &[true],
        Protocol::ICMP6 => &[false],
        _ => &[true, false],
    };
    let pair = |v4: &bool| {
        let of = |list: &[IpAddr]| list.iter().find(|a| a.is_ipv4() == *v4).copied();
        Some((of(from)?, of(to)?))
    };
    families
        .iter()
        .filter_map(pair)
        .collect::<Vec<_>>()
        .into_iter()
}

/// What a table says, and the number of the rule that says it: rule by rule.
pub(crate) fn decide(table: &RuleTable, tuple: &Tuple) -> (Action, u32) {
    let decides = |rule: &&image::rules::Rule| {
        let region = &rule.region;
        region.source.contains(&tuple.source)
            && region.destination.contains(&tuple.destination)
            && region.source_port.contains(&tuple.source_port)
            && region.destination_port.contains(&tuple.destination_port)
            && region.protocol.contains(&tuple.protocol)
    };
    let found = table.rules.iter().find(decides);
    found.map_or((table.default, DEFAULT_RULE), |rule| (rule.action, rule.id))
}
