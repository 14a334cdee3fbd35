//! From a tenant's policy to tables: what each endpoint may send, and what may be sent
//! to it.
//!
//! A table's rules are, the first deciding: the guardrails; who may not use an accepted
//! service at all; the tenant's rules by priority and place; the services of its live
//! agreements; the defaults. Of each it has what can match at that endpoint.

mod set;

pub(crate) use set::Set;

use crate::CompileError;
use crate::agreements::Agreement;
use crate::ids::{Ids, TenantIds};
use guard::guard;
use image::rules::{Action, DEFAULT_RULE, MAX_RULES, Region, Rule, RuleTable};
use set::{closed, numbers, ranges};
use spec::{Prefix, Protocol, Selector, Span, Spec, Tenant, Traffic};
use std::collections::HashMap;
use std::rc::Rc;

/// Boxes of all tables of a compartment, at most: 4 Mi take about 400 MiB to work out.
pub const MAX_BOXES: usize = 1 << 22;

/// What is inside whatever its prefixes are: what never leaves a link (RFC 3927, RFC
/// 4291, RFC 5771, RFC 919), and the unspecified address of a host that has none yet.
const ON_LINK: &[&str] = &[
    "0.0.0.0/32",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "fe80::/10",
    "ff00::/8",
];

/// An endpoint as rules see it.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    pub endpoint: &'a spec::Endpoint,
    /// Its addresses: written, chosen, link-local and made from its MAC.
    pub addresses: Vec<[u8; 16]>,
}

/// The two tables of an endpoint, as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub egress: u32,
    pub ingress: u32,
}

/// The tables of a compartment, equal ones once.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub list: Vec<RuleTable>,
    index: HashMap<u64, Vec<u32>>,
    /// Boxes of all of them.
    pub boxes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Egress,
    Ingress,
}

/// One side of a rule: whom it means where it is one's own, and where it is another's.
#[derive(Debug)]
struct Party {
    own: Own,
    peer: Set,
}

#[derive(Debug)]
enum Own {
    Nobody,
    Everybody,
    /// By place among the members.
    Members(Vec<bool>),
    Addresses(Set),
}

/// A rule with its selectors resolved.
#[derive(Debug)]
struct Line {
    id: u32,
    action: Action,
    log: bool,
    from: Rc<Party>,
    to: Rc<Party>,
    protocol: core::ops::RangeInclusive<u8>,
    source_ports: Vec<(u16, u16)>,
    ports: Vec<(u16, u16)>,
    span: Span,
}

/// Adds the tables of a tenant's endpoints; a pair for each member, `None` where
/// nothing is said about the tenant.
pub(crate) fn compile(
    spec: &Spec,
    ids: &Ids,
    tenant: &Tenant,
    members: &[Member<'_>],
    agreements: &[Agreement],
    tables: &mut Tables,
) -> Result<Vec<Option<Pair>>, Box<CompileError>> {
    if !tenant.is_judged(&spec.guardrails) {
        return Ok(vec![None; members.len()]);
    }
    let book = Book::new(spec, ids, tenant, members, agreements);
    let lines = book.lines();
    let mut seen: HashMap<(Side, Vec<u32>), u32> = HashMap::new();
    let mut pairs = Vec::with_capacity(members.len());
    for (at, member) in members.iter().enumerate() {
        let mut table = |side: Side| -> Result<u32, Box<CompileError>> {
            let (mine, key) = book.mine(&lines, side, at);
            if let Some(known) = seen.get(&(side, key.clone())) {
                return Ok(*known);
            }
            let made = book
                .table(&lines, side, &mine)
                .and_then(|table| tables.add(table).ok_or((Trouble::Boxes, stated(tenant))))
                .map_err(|(trouble, span)| Box::new(trouble.finding(spec, member, side, span)))?;
            seen.insert((side, key), made);
            Ok(made)
        };
        pairs.push(Some(Pair {
            egress: table(Side::Egress)?,
            ingress: table(Side::Ingress)?,
        }));
    }
    Ok(pairs)
}

impl Tables {
    /// The index of a table, which is added where it is new; `None` = too many boxes.
    pub fn add(&mut self, table: RuleTable) -> Option<u32> {
        use core::hash::{BuildHasher, BuildHasherDefault};
        // Only looked up by, never gone through: what it is does not show in the result.
        type Keyless = BuildHasherDefault<std::collections::hash_map::DefaultHasher>;
        let hash = Keyless::default().hash_one(&table);
        let same = self.index.entry(hash).or_default();
        let known = (same.iter()).find(|at| self.list.get(**at as usize) == Some(&table));
        if let Some(known) = known {
            return Some(*known);
        }
        self.boxes += table.rules.len();
        if self.boxes > MAX_BOXES && guard!("policy-boxes") {
            return None;
        }
        let at = self.list.len() as u32;
        same.push(at);
        self.list.push(table);
        Some(at)
    }
}

/// Why there is no table.
enum Trouble {
    Table,
    Boxes,
}

impl Trouble {
    fn finding(self, spec: &Spec, member: &Member<'_>, side: Side, span: Span) -> CompileError {
        let name = &member.endpoint.name.value;
        let what = match side {
            Side::Egress => "what it may send",
            Side::Ingress => "what may be sent to it",
        };
        let message = match self {
            Trouble::Table => format!(
                "with this the table of `{name}` ({what}) would have more than {MAX_RULES} boxes"
            ),
            Trouble::Boxes => {
                format!("at `{name}` the switch's tables would have more than {MAX_BOXES} boxes")
            }
        };
        spec.finding(
            "too-many",
            span,
            message,
            "select by subnet or prefix rather than by many scattered addresses, or use fewer ports",
        )
    }
}

/// What the selectors of a tenant mean.
struct Book<'a> {
    spec: &'a Spec,
    ids: &'a Ids,
    own_ids: Option<&'a TenantIds>,
    tenant: &'a Tenant,
    members: &'a [Member<'a>],
    agreements: &'a [Agreement],
    /// By member: what it may send from, and what may be sent to it.
    sources: Vec<Set>,
    targets: Vec<Set>,
    inside: Set,
}

/// A member's share of the lines: which, and the ranges of its own side.
type Mine = Vec<(usize, Vec<(u128, u128)>)>;

impl<'a> Book<'a> {
    fn new(
        spec: &'a Spec,
        ids: &'a Ids,
        tenant: &'a Tenant,
        members: &'a [Member<'a>],
        agreements: &'a [Agreement],
    ) -> Book<'a> {
        let groups = constant(&["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"]);
        let unspecified = constant(&["0.0.0.0/32", "::/128"]);
        let with = |member: &Member<'_>, more: &[Prefix]| {
            Set::of(
                addresses_of(member)
                    .into_iter()
                    .chain(more.iter().flat_map(ranges)),
            )
        };
        let broadcast = |member: &Member<'_>| {
            let subnet = tenant.subnet(&member.endpoint.subnet.value)?;
            let (_, last) = subnet.prefix4()?.range();
            let last = u128::from_be_bytes(last);
            Some((last, last))
        };
        Book {
            spec,
            ids,
            own_ids: ids.tenants.get(tenant.name.as_str()),
            tenant,
            members,
            agreements,
            sources: members.iter().map(|m| with(m, &unspecified)).collect(),
            targets: members
                .iter()
                .map(|m| {
                    let to = with(m, &groups);
                    Set::of(to.ranges().iter().copied().chain(broadcast(m)))
                })
                .collect(),
            inside: inside(tenant),
        }
    }

    /// Everything that is said, in the order of its precedence.
    fn lines(&self) -> Vec<Line> {
        let mut cache: HashMap<String, Rc<Party>> = HashMap::new();
        let mut party = |selector: &Selector| {
            let key = selector.to_string();
            cache
                .entry(key)
                .or_insert_with(|| Rc::new(self.party(selector)))
                .clone()
        };
        let mut lines = Vec::new();
        let guardrails = self.spec.guardrails.iter();
        let concerned = |g: &&spec::Guardrail| {
            g.concerns(&self.tenant.name.value) && guard!("policy-guardrails")
        };
        for rail in guardrails.filter(concerned) {
            let traffic = rail.traffic();
            let id = self.ids.guardrails.get(rail.name.as_str()).copied();
            let action = action(rail.action, rail.stateful());
            let parties = (party(traffic.from), party(traffic.to));
            lines.extend(line(
                id,
                action,
                rail.log(),
                parties,
                &traffic,
                rail.name.span,
            ));
        }
        self.barred(&mut lines);
        for rule in self.tenant.policy.iter().flat_map(spec::Policy::in_order) {
            let traffic = rule.traffic();
            let ids = self.own_ids.map(|ids| &ids.rules);
            let id = ids.and_then(|ids| ids.get(rule.name.as_str()).copied());
            let action = action(rule.action, rule.stateful());
            let parties = (party(traffic.from), party(traffic.to));
            lines.extend(line(
                id,
                action,
                rule.log(),
                parties,
                &traffic,
                rule.name.span,
            ));
        }
        self.services(&mut lines);
        lines
    }

    fn party(&self, selector: &Selector) -> Party {
        let these = |chosen: Vec<bool>, more: Vec<Prefix>| {
            let of = (self.members.iter().zip(&chosen)).filter(|(_, chosen)| **chosen);
            let own = of.flat_map(|(member, _)| addresses_of(member));
            Party {
                peer: Set::of(own.chain(more.iter().flat_map(ranges))),
                own: Own::Members(chosen),
            }
        };
        let chosen = |is: &dyn Fn(&spec::Endpoint) -> bool| -> Vec<bool> {
            self.members.iter().map(|m| is(m.endpoint)).collect()
        };
        match selector {
            Selector::Any => everybody(),
            Selector::Outside => nobody(self.inside.complement()),
            Selector::Endpoint(names) => {
                let names: std::collections::HashSet<&str> =
                    names.iter().map(|n| n.as_str()).collect();
                these(chosen(&|e| names.contains(e.name.as_str())), Vec::new())
            }
            Selector::Label(labels) => these(
                chosen(&|e| e.labels.as_ref().is_some_and(|own| own.include(labels))),
                Vec::new(),
            ),
            Selector::Subnet(names) => {
                let named = |name: &spec::Name| names.iter().any(|n| n.value == *name);
                let subnets = self.tenant.subnets.iter();
                let prefixes = subnets
                    .filter(|s| named(&s.name.value))
                    .flat_map(|s| s.prefixes.iter().map(|p| p.value));
                these(chosen(&|e| named(&e.subnet.value)), prefixes.collect())
            }
            Selector::Prefix(list) => {
                let set = Set::of_prefixes(list.iter().map(|p| &p.value));
                Party {
                    own: Own::Addresses(set.clone()),
                    peer: set,
                }
            }
            Selector::Agreement(name) => {
                let of = |a: &&Agreement| {
                    a.offerer == self.tenant.name.as_str() && a.offer == name.as_str()
                        || a.acceptor == self.tenant.name.as_str() && a.acceptance == name.as_str()
                };
                let users = |a: &Agreement| {
                    if a.offerer == self.tenant.name.as_str() {
                        a.pool.iter().flat_map(ranges).collect::<Vec<_>>()
                    } else {
                        a.ways().iter().flat_map(ranges).collect()
                    }
                };
                nobody(Set::of(self.agreements.iter().filter(of).flat_map(users)))
            }
        }
    }

    fn accepted(&self) -> impl Iterator<Item = (&Agreement, &spec::Accept)> {
        self.agreements.iter().filter_map(|a| {
            let mine = self.tenant.accepts.iter();
            let accept = mine
                .filter(|_| a.acceptor == self.tenant.name.as_str())
                .find(|accept| accept.name.as_str() == a.acceptance)?;
            Some((a, accept))
        })
    }

    /// Who is not to use an accepted service, whatever the tenant's rules allow.
    fn barred(&self, lines: &mut Vec<Line>) {
        for (agreement, accept) in self.accepted() {
            let Some(selector) = &accept.endpoints else {
                continue;
            };
            let Own::Members(chosen) = self.party(&selector.value).own else {
                continue;
            };
            let others: Vec<bool> = chosen.iter().map(|chosen| !chosen).collect();
            let rest = || Party {
                own: Own::Members(others.clone()),
                peer: Set::default(),
            };
            let there = || nobody(Set::of_prefixes(&agreement.ways()));
            let (id, span) = (agreement.accept_rule, accept.name.span);
            if guard!("policy-service-users") {
                lines.push(whole(id, Action::Deny, rest(), there(), span));
            }
            if agreement.both() && guard!("policy-routed-users") {
                lines.push(whole(id, Action::Deny, there(), rest(), span));
            }
        }
    }

    /// What live agreements let pass where no rule says otherwise: exactly their services.
    fn services(&self, lines: &mut Vec<Line>) {
        for offer in &self.tenant.offers {
            let of = |a: &&Agreement| {
                a.offerer == self.tenant.name.as_str() && a.offer == offer.name.as_str()
            };
            let live: Vec<&Agreement> = self.agreements.iter().filter(of).collect();
            let Some(first) = live.first() else {
                continue;
            };
            let users = nobody(Set::of(
                live.iter().flat_map(|a| a.pool.iter().flat_map(ranges)),
            ));
            let (id, span) = (first.offer_rule, offer.name.span);
            if let Some(routed) = &first.routed {
                let own = || own_prefixes(&routed.offered);
                let there = || nobody(Set::of_prefixes(&first.pool));
                let allow = |from, to| first.narrowed(whole(id, Action::Allow, from, to, span));
                lines.push(allow(users, own()));
                if routed.both {
                    lines.push(allow(own(), there()));
                }
                lines.push(whole(id, Action::Deny, everybody(), there(), span));
                continue;
            }
            let serves = |m: &Member<'_>| m.endpoint.name.as_str() == first.endpoint;
            let server = Party {
                own: Own::Members(self.members.iter().map(serves).collect()),
                peer: Set::default(),
            };
            let line = whole(id, Action::Allow, users, server, span);
            lines.push(first.narrowed(line));
        }
        for (agreement, accept) in self.accepted() {
            let service = || nobody(Set::of_prefixes(&agreement.ways()));
            let users = || match &accept.endpoints {
                Some(selector) => self.party(&selector.value),
                None if agreement.routed.is_some() => own_prefixes(&agreement.pool),
                None => everybody(),
            };
            let (id, span) = (agreement.accept_rule, accept.name.span);
            let allow = |from, to| agreement.narrowed(whole(id, Action::Allow, from, to, span));
            lines.push(allow(users(), service()));
            if agreement.both() {
                lines.push(allow(service(), users()));
            }
            lines.push(whole(id, Action::Deny, everybody(), service(), span));
        }
    }

    /// The lines that can match at a member, and their key.
    fn mine(&self, lines: &[Line], side: Side, at: usize) -> (Mine, Vec<u32>) {
        let reach = match side {
            Side::Egress => self.sources.get(at),
            Side::Ingress => self.targets.get(at),
        };
        let mut mine = Vec::new();
        let mut key = Vec::new();
        for (place, line) in lines.iter().enumerate() {
            let (own, peer) = line.sides(side);
            if peer.peer.ranges().is_empty() {
                continue;
            }
            let whole = vec![(0, u128::MAX)];
            let (ranges, met) = match &own.own {
                Own::Everybody => (whole, None),
                Own::Members(chosen) if chosen.get(at) == Some(&true) => (whole, None),
                Own::Nobody | Own::Members(_) => continue,
                Own::Addresses(set) => {
                    let met = reach.map_or_else(Vec::new, |own| set.met_by(own));
                    let range = |at: &usize| set.ranges().get(*at).copied();
                    (met.iter().filter_map(range).collect(), Some(met))
                }
            };
            if ranges.is_empty() {
                continue;
            }
            key.push(place as u32);
            if let Some(met) = met {
                key.push(met.len() as u32);
                key.extend(met.iter().map(|at| *at as u32));
            }
            mine.push((place, ranges));
        }
        (mine, key)
    }

    fn table(&self, lines: &[Line], side: Side, mine: &Mine) -> Result<RuleTable, (Trouble, Span)> {
        let defaults = self.tenant.defaults();
        let rest = match side {
            Side::Egress => defaults.outbound,
            Side::Ingress => defaults.inbound,
        };
        let mut table = RuleTable {
            rules: Vec::new(),
            default: action(rest, true),
        };
        for (place, own) in mine {
            let Some(line) = lines.get(*place) else {
                continue;
            };
            let (_, peer) = line.sides(side);
            let peer = peer.peer.ranges();
            let boxes = (own.len().saturating_mul(peer.len()))
                .saturating_mul(line.source_ports.len().saturating_mul(line.ports.len()));
            if table.rules.len().saturating_add(boxes) > MAX_RULES && guard!("policy-table-size") {
                return Err((Trouble::Table, line.span));
            }
            for region in line.regions(side, own, peer) {
                let all = region == Region::ALL;
                table.rules.push(Rule {
                    region,
                    action: line.action,
                    log: line.log,
                    id: line.id,
                });
                if all {
                    // Nothing gets past it.
                    return Ok(table);
                }
            }
        }
        let inside = action(defaults.inside, true);
        if inside != table.default {
            for range in self.inside.ranges() {
                let peer = closed(*range);
                let region = match side {
                    Side::Egress => Region {
                        destination: peer,
                        ..Region::ALL
                    },
                    Side::Ingress => Region {
                        source: peer,
                        ..Region::ALL
                    },
                };
                table.rules.push(Rule {
                    region,
                    action: inside,
                    log: false,
                    id: DEFAULT_RULE,
                });
            }
        }
        if table.rules.len() > MAX_RULES {
            return Err((Trouble::Table, stated(self.tenant)));
        }
        Ok(table)
    }
}

/// Where a tenant's part stands that makes its tables long: of one that states itself in its
/// own document, not where the provider names it.
fn stated(tenant: &Tenant) -> Span {
    let rules = tenant.policy.iter().flat_map(|policy| &policy.rules);
    let rule = rules.last().map(|rule| rule.name.span);
    let first = tenant.endpoints.first().map(|one| one.name.span);
    let own = rule.or(first).filter(|_| tenant.self_managed.is_some());
    own.unwrap_or(tenant.name.span)
}

impl Line {
    /// One's own side and the other.
    fn sides(&self, side: Side) -> (&Party, &Party) {
        match side {
            Side::Egress => (&self.from, &self.to),
            Side::Ingress => (&self.to, &self.from),
        }
    }

    fn regions<'a>(
        &'a self,
        side: Side,
        own: &'a [(u128, u128)],
        peer: &'a [(u128, u128)],
    ) -> impl Iterator<Item = Region> + 'a {
        let addresses = own
            .iter()
            .flat_map(move |o| peer.iter().map(move |p| (*o, *p)));
        addresses.flat_map(move |(own, peer)| {
            let (source, destination) = match side {
                Side::Egress => (own, peer),
                Side::Ingress => (peer, own),
            };
            let ports = self
                .source_ports
                .iter()
                .flat_map(|s| self.ports.iter().map(move |d| (*s, *d)));
            ports.map(move |(s, d)| Region {
                source: closed(source),
                destination: closed(destination),
                source_port: s.0..=s.1,
                destination_port: d.0..=d.1,
                protocol: self.protocol.clone(),
            })
        })
    }
}

impl Agreement {
    /// The line about this service only.
    fn narrowed(&self, line: Line) -> Line {
        Line {
            protocol: self.protocol.map_or(0..=u8::MAX, |p| p..=p),
            ports: numbers(self.ports.iter().map(|p| (*p.start(), *p.end()))),
            ..line
        }
    }
}

/// The addresses that `inside` means.
pub(crate) fn inside(tenant: &Tenant) -> Set {
    let own: Vec<Prefix> = crate::ids::sources(tenant).collect();
    Set::of_prefixes(own.iter().chain(&constant(ON_LINK)))
}

fn constant(list: &[&str]) -> Vec<Prefix> {
    list.iter().filter_map(|p| p.parse().ok()).collect()
}

fn everybody() -> Party {
    Party {
        own: Own::Everybody,
        peer: Set::all(),
    }
}

/// The tenant's own with these addresses.
fn own_prefixes(list: &[Prefix]) -> Party {
    Party {
        own: Own::Addresses(Set::of_prefixes(list)),
        peer: Set::default(),
    }
}

/// None of the tenant's own: others with these addresses.
fn nobody(peer: Set) -> Party {
    Party {
        own: Own::Nobody,
        peer,
    }
}

fn whole(id: u32, action: Action, from: Party, to: Party, span: Span) -> Line {
    Line {
        id,
        action,
        log: false,
        from: Rc::new(from),
        to: Rc::new(to),
        protocol: 0..=u8::MAX,
        source_ports: vec![(0, u16::MAX)],
        ports: vec![(0, u16::MAX)],
        span,
    }
}

fn line(
    id: Option<u32>,
    action: Action,
    log: bool,
    (from, to): (Rc<Party>, Rc<Party>),
    traffic: &Traffic<'_>,
    span: Span,
) -> Option<Line> {
    let ports =
        |list: &[spec::Located<spec::PortRange>]| numbers(list.iter().map(|p| (p.first, p.last)));
    let v6 = traffic.protocol == Protocol::ICMP6;
    let messages = traffic.icmp.iter().filter_map(|m| m.numbers(v6));
    let messages = messages.map(|(kind, code)| {
        let kind = u16::from(kind) << 8;
        code.map_or((kind, kind | 0xff), |code| {
            (kind | u16::from(code), kind | u16::from(code))
        })
    });
    Some(Line {
        id: id?,
        action,
        log,
        from,
        to,
        protocol: match traffic.protocol {
            Protocol::Any => 0..=u8::MAX,
            Protocol::Number(n) => n..=n,
        },
        source_ports: ports(traffic.source_ports),
        ports: if traffic.icmp.is_empty() {
            ports(traffic.ports)
        } else {
            numbers(messages)
        },
        span,
    })
}

fn action(action: spec::Action, stateful: bool) -> Action {
    match (action, stateful) {
        (spec::Action::Deny, _) => Action::Deny,
        (spec::Action::Allow, true) => Action::Allow,
        (spec::Action::Allow, false) => Action::AllowStateless,
    }
}

/// What a member and what is behind it sends from.
fn addresses_of(member: &Member<'_>) -> Vec<(u128, u128)> {
    let one = |a: &[u8; 16]| (u128::from_be_bytes(*a), u128::from_be_bytes(*a));
    let own = member.addresses.iter().map(one);
    own.chain((member.endpoint.prefixes.iter()).flat_map(|p| ranges(&p.value)))
        .collect()
}
