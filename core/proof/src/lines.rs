//! What a tenant's rules mean at each of its endpoints: ordered boxes, made from the
//! spec as it is read.
//!
//! The order is: guardrails; who is barred from an accepted service; rules by priority
//! and place; services; defaults.

use crate::breach::Written;
use crate::cube::Cube;
use crate::intend::{Agreement, Host, Member, View, joined};
use crate::meaning::Cubes;
use crate::ranges::{Range, common, everything, meets, of_prefix, one, others, tidy};
use image::rules::{Action, MAX_RULES};
use spec::{Name, Prefix, Protocol, Selector, Span, Tenant, Traffic};
use std::collections::HashMap;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Egress,
    Ingress,
}

pub(crate) const SIDES: [Side; 2] = [Side::Egress, Side::Ingress];

impl Side {
    pub fn word(self) -> &'static str {
        match self {
            Side::Egress => "egress",
            Side::Ingress => "ingress",
        }
    }
}

/// Whom one side of a line means where it is the endpoint itself.
#[derive(Debug, PartialEq)]
enum Own {
    Nobody,
    Everybody,
    /// Places among the members, in order.
    These(Vec<u32>),
    Addresses(Vec<Range>),
}

/// One side of a line.
#[derive(Debug, PartialEq)]
pub(crate) struct Party {
    own: Own,
    /// Whom it means at the other end.
    pub peer: Vec<Range>,
}

/// A line of the spec.
#[derive(Debug)]
pub(crate) struct Line {
    pub name: String,
    pub span: Span,
    pub action: Action,
    pub is_guardrail: bool,
    from: Party,
    to: Party,
    protocol: (u8, u8),
    source_ports: Vec<(u16, u16)>,
    ports: Vec<(u16, u16)>,
}

/// A tenant's lines.
pub(crate) struct Book<'v> {
    pub view: &'v View<'v>,
    pub lines: Vec<Line>,
    /// What `inside` means: tidy.
    pub inside: Vec<Range>,
    pub is_judged: bool,
    /// Of each member, on each side: what its packets have as their own address.
    pub own: Vec<[Vec<Range>; 2]>,
    /// Members by their names.
    names: HashMap<&'v str, u32>,
}

/// A box of a line: ranges of the five fields.
pub(crate) type Piece<'b> = (&'b Range, &'b Range, (u16, u16), (u16, u16), (u8, u8));

const ANY_PORT: (u16, u16) = (0, u16::MAX);

impl<'v> Book<'v> {
    /// Of a tenant, by its place in the spec.
    pub fn new(host: &Host<'_>, at: usize, view: &'v View<'v>) -> Book<'v> {
        let tenant = view.tenant;
        // The source of a host that has no address yet; what is for several at once.
        let unspecified = constants(&["0.0.0.0/32", "::/128"]);
        let groups = constants(&["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"]);
        let members = view.members.iter();
        let mut book = Book {
            view,
            lines: Vec::new(),
            inside: inside(tenant),
            is_judged: tenant.is_judged(&host.spec.guardrails),
            own: members
                .map(|member| [speaks(member, &unspecified), hears(view, member, &groups)])
                .collect(),
            names: (view.members.iter().zip(0..))
                .map(|(member, at)| (member.endpoint.name.as_str(), at))
                .collect(),
        };
        if !book.is_judged {
            return book;
        }
        let live: Vec<&Agreement> = host.agreements.iter().collect();
        let offered: Vec<&Agreement> = (live.iter().filter(|a| a.offerer == at).copied()).collect();
        let accepted: Vec<&Agreement> =
            (live.iter().filter(|a| a.acceptor == at).copied()).collect();
        let party = |selector: &Selector| book.party(selector, &offered, &accepted);
        let mut lines = Vec::new();
        for rail in &host.spec.guardrails {
            if rail.concerns(&tenant.name.value) {
                let named = (format!("guardrail {}", rail.name.value), rail.name.span);
                let does = action(rail.action, rail.stateful());
                let traffic = rail.traffic();
                lines.push(Line {
                    is_guardrail: true,
                    ..line(named, does, &traffic, party)
                });
            }
        }
        let accepts = |a: &Agreement| tenant.accepts.get(a.accept);
        for agreement in &accepted {
            let Some(accept) = accepts(agreement) else {
                continue;
            };
            let named = (
                format!("acceptance {}", accept.name.value),
                accept.name.span,
            );
            let users = accept.endpoints.as_ref().map(|s| party(&s.value).own);
            if let Some(Own::These(users)) = users {
                let rest = (0..view.members.len() as u32).filter(|m| !users.contains(m));
                let from = Party {
                    own: Own::These(rest.collect()),
                    peer: Vec::new(),
                };
                let there = || strangers(beyond(agreement, at));
                if agreement.both() {
                    let rest = (0..view.members.len() as u32).filter(|m| !users.contains(m));
                    let to = Party {
                        own: Own::These(rest.collect()),
                        peer: Vec::new(),
                    };
                    lines.push(whole(named.clone(), Action::Deny, from, there()));
                    lines.push(whole(named, Action::Deny, there(), to));
                } else {
                    lines.push(whole(named, Action::Deny, from, there()));
                }
            }
        }
        let mut rules: Vec<&spec::Rule> = tenant.policy.iter().flat_map(|p| &p.rules).collect();
        rules.sort_by_key(|rule| rule.priority());
        for rule in rules {
            let named = (format!("rule {}", rule.name.value), rule.name.span);
            let does = action(rule.action, rule.stateful());
            lines.push(line(named, does, &rule.traffic(), party));
        }
        for (place, offer) in tenant.offers.iter().enumerate() {
            let of: Vec<&&Agreement> = offered.iter().filter(|a| a.offer == place).collect();
            let Some(first) = of.first() else {
                continue;
            };
            let named = || (format!("offer {}", offer.name.value), offer.name.span);
            if let Some(routed) = &first.routed {
                let there = || strangers(ranges(&routed.users));
                let narrow = |from, to| served_line(first, named(), from, to);
                lines.push(narrow(there(), own(&routed.offered)));
                if routed.both {
                    lines.push(narrow(own(&routed.offered), there()));
                }
                lines.push(whole(named(), Action::Deny, anybody(), there()));
                continue;
            }
            let server = view
                .members
                .iter()
                .position(|m| Some(m.id) == first.endpoint);
            let to = Party {
                own: Own::These(server.map(|at| at as u32).into_iter().collect()),
                peer: Vec::new(),
            };
            let users = tidy(of.iter().flat_map(|a| beyond(a, at)).collect());
            lines.push(served_line(first, named(), strangers(users), to));
        }
        for agreement in &accepted {
            let Some(accept) = accepts(agreement) else {
                continue;
            };
            let named = || {
                (
                    format!("acceptance {}", accept.name.value),
                    accept.name.span,
                )
            };
            let users = || match (&accept.endpoints, &agreement.routed) {
                (Some(selector), _) => party(&selector.value),
                (None, Some(routed)) => own(&routed.users),
                (None, None) => anybody(),
            };
            let service = || strangers(beyond(agreement, at));
            lines.push(served_line(agreement, named(), users(), service()));
            if agreement.both() {
                lines.push(served_line(agreement, named(), service(), users()));
            }
            lines.push(whole(named(), Action::Deny, anybody(), service()));
        }
        book.lines = lines;
        // Prefixes that are nobody's here are asked about once, not at each member.
        for side in SIDES {
            let all = (0..view.members.len()).flat_map(|at| book.own(at, side));
            let all = tidy(all.copied().collect());
            for line in &mut book.lines {
                let party = match side {
                    Side::Egress => &mut line.from,
                    Side::Ingress => &mut line.to,
                };
                if let Own::Addresses(list) = &mut party.own {
                    list.retain(|range| meets(&all, range));
                }
            }
        }
        book
    }

    fn party(&self, selector: &Selector, offered: &[&Agreement], accepted: &[&Agreement]) -> Party {
        let members = &self.view.members;
        let these = |chosen: Vec<u32>, more: Vec<Range>| {
            let chosen_members = chosen.iter().filter_map(|at| members.get(*at as usize));
            let peer = chosen_members.flat_map(|m| m.own.iter().copied());
            let peer = tidy(peer.chain(more).collect());
            Party {
                own: Own::These(chosen),
                peer,
            }
        };
        let all = |is: &dyn Fn(&Member<'_>) -> bool| {
            let all = (0u32..).zip(members).filter(|(_, m)| is(m));
            all.map(|(at, _)| at).collect()
        };
        match selector {
            Selector::Any => anybody(),
            Selector::Outside => strangers(others(&self.inside)),
            Selector::Endpoint(names) => {
                let chosen = names.iter().filter_map(|n| self.names.get(n.as_str()));
                let mut chosen: Vec<u32> = chosen.copied().collect();
                chosen.sort_unstable();
                chosen.dedup();
                these(chosen, Vec::new())
            }
            Selector::Label(labels) => {
                let has = |m: &Member<'_>| {
                    labels.0.iter().all(|(key, value)| {
                        let own = m.endpoint.labels.iter().flat_map(|l| &l.0);
                        own.into_iter()
                            .any(|(k, v)| k.value == key.value && v.value == value.value)
                    })
                };
                these(all(&has), Vec::new())
            }
            Selector::Subnet(names) => {
                let named = self.view.subnets.iter();
                let named = named.filter(|net| among(names, &net.subnet.name.value));
                let prefixes = named.flat_map(|net| net.subnet.prefixes.iter());
                let is = |m: &Member<'_>| among(names, &m.endpoint.subnet.value);
                these(all(&is), prefixes.flat_map(|p| of_prefix(p)).collect())
            }
            Selector::Prefix(list) => {
                // Lists are long and many: room once, for one range each.
                let mut all = Vec::with_capacity(list.len());
                all.extend(list.iter().flat_map(|p| of_prefix(p)));
                let all = tidy(all);
                Party {
                    own: Own::Addresses(all.clone()),
                    peer: all,
                }
            }
            Selector::Agreement(name) => {
                let tenant = self.view.tenant;
                let ours = offered.iter().filter(|a| {
                    let offer = tenant.offers.get(a.offer);
                    offer.is_some_and(|o| o.name.value == name.value)
                });
                let theirs = accepted.iter().filter(|a| {
                    let accept = tenant.accepts.get(a.accept);
                    accept.is_some_and(|o| o.name.value == name.value)
                });
                let all = (ours.map(|a| (a, a.offerer))).chain(theirs.map(|a| (a, a.acceptor)));
                strangers(tidy(all.flat_map(|(a, at)| beyond(a, at)).collect()))
            }
        }
    }

    /// What a member's packets have as their own address: those that it may send from,
    /// or those that what it gets is sent to.
    pub fn own(&self, at: usize, side: Side) -> &[Range] {
        match (self.own.get(at), side) {
            (Some([egress, _]), Side::Egress) => egress,
            (Some([_, ingress]), Side::Ingress) => ingress,
            (None, _) => &[],
        }
    }

    /// The addresses of who is here in a subnet, by its place, and of its gateway: tidy.
    pub fn here(&self, place: usize) -> Vec<Range> {
        let members = self.view.members.iter().filter(|m| m.subnet == place);
        let own = members.flat_map(|m| &m.all).map(|address| one(*address));
        let net = self.view.subnets.get(place);
        let gateways = net.into_iter().flat_map(|net| {
            let prefixes = net.subnet.prefixes.iter();
            prefixes.map(|p| one(spec::mapped(net.subnet.gateway_in(p))))
        });
        tidy(own.chain(gateways).collect())
    }

    /// The addresses of a subnet that somebody may have beyond it, in its VLAN: none where it
    /// is on this host only.
    pub fn beyond(&self, place: usize) -> Vec<Range> {
        let net = self.view.subnets.get(place);
        let net = net.filter(|net| net.subnet.vlan().is_some());
        let prefixes = net.into_iter().flat_map(|net| &net.subnet.prefixes);
        let all: Vec<Range> = prefixes.flat_map(|prefix| of_prefix(prefix)).collect();
        common(&all, &others(&self.here(place)))
    }

    /// What holds where no line decides: outbound, inbound, inside.
    pub fn defaults(&self) -> [Action; 3] {
        let inside = action(self.view.tenant.defaults().inside, true);
        [
            self.default(Side::Egress),
            self.default(Side::Ingress),
            inside,
        ]
    }

    /// What holds where no box says otherwise.
    pub fn default(&self, side: Side) -> Action {
        let defaults = self.view.tenant.defaults();
        action(
            match side {
                Side::Egress => defaults.outbound,
                Side::Ingress => defaults.inbound,
            },
            true,
        )
    }

    /// Goes through the boxes at a member in their order, with each one's line (`None` =
    /// the default for what is inside), until `each` says no.
    pub fn walk<'b>(
        &'b self,
        at: usize,
        side: Side,
        own: &[Range],
        mut each: impl FnMut(Piece<'b>, Action, Option<&'b Line>) -> bool,
    ) {
        for line in &self.lines {
            if !line.pieces(at, side, own, |piece| each(piece, line.action, Some(line))) {
                return;
            }
        }
        let inside = action(self.view.tenant.defaults().inside, true);
        if inside != self.default(side) {
            for range in &self.inside {
                let (source, destination) = match side {
                    Side::Egress => (&ALL, range),
                    Side::Ingress => (range, &ALL),
                };
                let piece = (source, destination, ANY_PORT, ANY_PORT, (0, u8::MAX));
                if !each(piece, inside, None) {
                    return;
                }
            }
        }
    }

    /// All of them as a list, with each one's line; `None` = too many to be a table.
    pub fn cubes(
        &self,
        at: usize,
        side: Side,
        own: &[Range],
    ) -> Option<(Cubes, Vec<Option<&Line>>)> {
        let mut list = Vec::new();
        let mut lines = Vec::new();
        self.walk(at, side, own, |piece, action, line| {
            list.push((cube(&piece), action));
            lines.push(line);
            list.len() <= 2 * MAX_RULES
        });
        let cubes = Cubes::new(list, Some(self.default(side)));
        (lines.len() <= 2 * MAX_RULES).then_some((cubes, lines))
    }

    /// The guardrails alone.
    pub fn guardrails(&self, at: usize, side: Side, own: &[Range]) -> (Cubes, Vec<&Line>) {
        let mut list = Vec::new();
        let mut lines = Vec::new();
        for line in self.lines.iter().filter(|l| l.is_guardrail) {
            line.pieces(at, side, own, |piece| {
                list.push((cube(&piece), line.action));
                lines.push(line);
                list.len() <= 2 * MAX_RULES
            });
        }
        (Cubes::new(list, None), lines)
    }

    /// A question's two parties: what `reach` asks about.
    pub fn asked(&self, host: &Host<'_>, at: usize, traffic: &Traffic<'_>) -> Line {
        let offered: Vec<&Agreement> = host.agreements.iter().filter(|a| a.offerer == at).collect();
        let accepted: Vec<&Agreement> = host
            .agreements
            .iter()
            .filter(|a| a.acceptor == at)
            .collect();
        let party = |selector: &Selector| self.party(selector, &offered, &accepted);
        line(
            (String::new(), Span::default()),
            Action::Allow,
            traffic,
            party,
        )
    }
}

const ALL: Range = ([0; 16], [0xff; 16]);

fn cube(piece: &Piece<'_>) -> Cube {
    let (source, destination, source_port, port, protocol) = piece;
    Cube::new(
        &(source.0..=source.1),
        &(destination.0..=destination.1),
        &(source_port.0..=source_port.1),
        &(port.0..=port.1),
        &(protocol.0..=protocol.1),
    )
}

impl Line {
    /// Whether it means the same packets, at everybody, and does the same with them.
    pub fn means(&self, other: &Line) -> bool {
        self.action == other.action
            && self.is_guardrail == other.is_guardrail
            && self.protocol == other.protocol
            && self.source_ports == other.source_ports
            && self.ports == other.ports
            && self.from == other.from
            && self.to == other.to
    }

    /// Whether it has any box at a member that has these addresses.
    pub fn concerns(&self, at: usize, side: Side, own: &[Range]) -> bool {
        let mut any = false;
        self.pieces(at, side, own, |_| {
            any = true;
            false
        });
        any
    }

    /// Its boxes at a member that has these addresses; whether all were taken.
    pub fn pieces<'b>(
        &'b self,
        at: usize,
        side: Side,
        own: &[Range],
        mut each: impl FnMut(Piece<'b>) -> bool,
    ) -> bool {
        let (mine, peer) = match side {
            Side::Egress => (&self.from, &self.to),
            Side::Ingress => (&self.to, &self.from),
        };
        let whole = core::slice::from_ref(&ALL);
        let mine: &[Range] = match &mine.own {
            Own::Nobody => return true,
            Own::Everybody => whole,
            Own::These(list) if list.binary_search(&(at as u32)).is_ok() => whole,
            Own::These(_) => return true,
            Own::Addresses(list) => list,
        };
        for range in mine.iter().filter(|range| meets(own, range)) {
            for other in &peer.peer {
                let (source, destination) = match side {
                    Side::Egress => (range, other),
                    Side::Ingress => (other, range),
                };
                for source_ports in &self.source_ports {
                    for ports in &self.ports {
                        let piece = (source, destination, *source_ports, *ports, self.protocol);
                        if !each(piece) {
                            return false;
                        }
                    }
                }
            }
        }
        true
    }

    /// The sender's addresses that it means, of these of a member.
    pub fn senders(&self, at: usize, own: &[Range]) -> Vec<Range> {
        self.from.of(at, own)
    }
    /// The receiver's.
    pub fn receivers(&self, at: usize, own: &[Range]) -> Vec<Range> {
        self.to.of(at, own)
    }
    /// The senders that it means, by address.
    pub fn sources(&self) -> &[Range] {
        &self.from.peer
    }
    /// The receivers.
    pub fn destinations(&self) -> &[Range] {
        &self.to.peer
    }
    /// Its packets, from whomever to whomever.
    pub fn packets(&self) -> Vec<Cube> {
        let mut all = Vec::new();
        for source_port in &self.source_ports {
            for port in &self.ports {
                all.push(cube(&(&ALL, &ALL, *source_port, *port, self.protocol)));
            }
        }
        all
    }
}

impl Party {
    fn of(&self, at: usize, own: &[Range]) -> Vec<Range> {
        match &self.own {
            Own::Nobody => Vec::new(),
            Own::Everybody => own.to_vec(),
            Own::These(list) if list.contains(&(at as u32)) => own.to_vec(),
            Own::These(_) => Vec::new(),
            Own::Addresses(list) => common(list, own),
        }
    }
}

fn among(names: &spec::OneOrMore<Name>, name: &Name) -> bool {
    names.iter().any(|n| n.value == *name)
}

/// Where a member's packets may come from.
fn speaks(member: &Member<'_>, unspecified: &[Range]) -> Vec<Range> {
    tidy([&member.own, unspecified].concat())
}

/// Where packets for a member may be sent to.
fn hears(view: &View<'_>, member: &Member<'_>, groups: &[Range]) -> Vec<Range> {
    let mut all = [&member.own, groups].concat();
    let subnet = view.subnets.get(member.subnet).map(|n| n.subnet);
    if let Some(prefix) = subnet.and_then(spec::Subnet::prefix4) {
        all.extend(of_prefix(&prefix).last().map(|range| one(range.1)));
    }
    tidy(all)
}

fn anybody() -> Party {
    Party {
        own: Own::Everybody,
        peer: everything(),
    }
}

/// None of the tenant's own endpoints.
fn strangers(peer: Vec<Range>) -> Party {
    Party {
        own: Own::Nobody,
        peer,
    }
}

fn ranges(prefixes: &[Prefix]) -> Vec<Range> {
    tidy(prefixes.iter().flat_map(of_prefix).collect())
}

/// The tenant's own with these addresses.
fn own(prefixes: &[Prefix]) -> Party {
    Party {
        own: Own::Addresses(ranges(prefixes)),
        peer: Vec::new(),
    }
}

/// Who is on the other side of an agreement of a tenant's, by its place.
fn beyond(agreement: &Agreement, tenant: usize) -> Vec<Range> {
    ranges(&agreement.leads(tenant).0)
}

/// The line that allows what an agreement is for.
fn served_line(agreement: &Agreement, named: (String, Span), from: Party, to: Party) -> Line {
    let ports = match agreement.protocol {
        None => vec![ANY_PORT],
        Some(_) => agreement.ports.clone(),
    };
    Line {
        protocol: agreement.protocol.map_or((0, u8::MAX), |p| (p, p)),
        ports,
        ..whole(named, Action::Allow, from, to)
    }
}

fn constant(prefix: &str) -> Vec<Range> {
    prefix
        .parse::<Prefix>()
        .map_or_else(|_| Vec::new(), |p| of_prefix(&p).collect())
}

fn constants(prefixes: &[&str]) -> Vec<Range> {
    prefixes.iter().flat_map(|p| constant(p)).collect()
}

/// The tenant's own prefixes, and what never leaves a link.
fn inside(tenant: &Tenant) -> Vec<Range> {
    let subnets = tenant.subnets.iter().flat_map(|s| &s.prefixes);
    let behind = tenant.endpoints.iter().flat_map(|e| &e.prefixes);
    let on_link = [
        "0.0.0.0/32",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/128",
        "fe80::/10",
        "ff00::/8",
    ];
    let own = subnets.chain(behind).flat_map(|p| of_prefix(p));
    tidy(own.chain(on_link.into_iter().flat_map(constant)).collect())
}

fn action(action: spec::Action, stateful: bool) -> Action {
    match action {
        spec::Action::Deny => Action::Deny,
        spec::Action::Allow if stateful => Action::Allow,
        spec::Action::Allow => Action::AllowStateless,
    }
}

fn whole(named: (String, Span), action: Action, from: Party, to: Party) -> Line {
    Line {
        name: named.0,
        span: named.1,
        action,
        is_guardrail: false,
        from,
        to,
        protocol: (0, u8::MAX),
        source_ports: vec![ANY_PORT],
        ports: vec![ANY_PORT],
    }
}

fn line(
    named: (String, Span),
    action: Action,
    traffic: &Traffic<'_>,
    party: impl Fn(&Selector) -> Party,
) -> Line {
    let list = |ports: &[spec::Located<spec::PortRange>]| {
        let ports = joined(ports.iter().map(|p| (p.first, p.last)));
        if ports.is_empty() {
            vec![ANY_PORT]
        } else {
            ports
        }
    };
    let is_six = traffic.protocol == Protocol::ICMP6;
    let messages = traffic.icmp.iter().filter_map(|m| m.numbers(is_six));
    let messages = joined(messages.map(|(kind, code)| {
        let number = |code: u8| u16::from_be_bytes([kind, code]);
        (number(code.unwrap_or(0)), number(code.unwrap_or(u8::MAX)))
    }));
    Line {
        protocol: match traffic.protocol {
            Protocol::Any => (0, u8::MAX),
            Protocol::Number(n) => (n, n),
        },
        source_ports: list(traffic.source_ports),
        ports: if messages.is_empty() {
            list(traffic.ports)
        } else {
            messages
        },
        ..whole(named, action, party(traffic.from), party(traffic.to))
    }
}

/// Where a line is written.
pub(crate) fn written(host: &Host<'_>, line: &Line) -> Written {
    Written::new(host.spec, line.name.clone(), line.span)
}

/// The packets that an agreement is for, from whomever to whomever.
pub(crate) fn served(agreement: &Agreement) -> Vec<Cube> {
    let Some(protocol) = agreement.protocol else {
        return vec![cube(&(&ALL, &ALL, ANY_PORT, ANY_PORT, (0, u8::MAX)))];
    };
    let one = |ports: &(u16, u16)| cube(&(&ALL, &ALL, ANY_PORT, *ports, (protocol, protocol)));
    agreement.ports.iter().map(one).collect()
}
