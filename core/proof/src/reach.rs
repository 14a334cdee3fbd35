//! What `reach` asks for: that something passes, or that nothing of it does.
//!
//! It is about first packets: what answers a connection passes by the connection.

use crate::breach::{Breach, Class, Written};
use crate::cube::{Cube, Fuel};
use crate::inside::name;
use crate::intend::{Agreement, Host, Looked, circuits_of};
use crate::likely::between;
use crate::lines::{Book, Line, Side};
use crate::meaning::{Cubes, passes, stopped};
use crate::places::Found;
use crate::ranges::{Range, common, of_prefix, one, others};
use crate::showing::Seat;
use crate::solver::{self, NoSolver, Solver, Unsolved};
use crate::space::{Addresses, packets};
use crate::way::{Place, Way};
use core::cell::Cell;
use core::ops::RangeInclusive;
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use image::rules::{Action, Region};
use spec::{Selector, State};
use std::collections::{BTreeMap, HashMap};
use wire::Tuple;

/// What all questions of one tenant may cost: about a second. Tests have less.
const FUEL: u64 = if cfg!(test) { 5_000_000 } else { 50_000_000 };
/// And those of all tenants' own documents, where what concerns all has changed: however
/// many they are, the provider's change waits for them no longer. What is not asked then, or
/// not settled, was settled when its document was applied.
pub(crate) const OWN_FUEL: Fuel = Fuel(FUEL);

/// By member: the addresses of who sends and who is sent to, and their tables.
struct Pairs<'a, 'i> {
    sides: [(&'a [Vec<Range>], &'a [u32]); 2],
    tables: &'a Tables<'i>,
}

/// One place in the tenant's list of what must be possible or not.
struct Asked<'q> {
    host: &'q Host<'q>,
    slot: u32,
    /// The tenant's place in the spec.
    at: usize,
    book: &'q Book<'q>,
    allowed: bool,
    /// As it is written.
    between: (Option<&'q Selector>, Option<&'q Selector>),
    line: Line,
    written: Written,
    fuel: &'q Cell<Fuel>,
    solver: &'q dyn Solver,
    ways: Cell<u64>,
}

/// By what two endpoints, or one and somebody elsewhere, reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Their switch; or what is asked is that nothing passes, which the tables say of everybody.
    Packets,
    /// Circuits: TCP and UDP, and answers always with their connection.
    Circuits,
    /// The same across an agreement: TCP alone.
    Crossing,
    /// The same where one is metered: TCP alone.
    Metered,
    /// Nothing: an end has circuits alone, and the other has none.
    Nothing,
}

/// The installed tables, each decoded once.
struct Tables<'i> {
    image: &'i CompartmentImage<'i>,
    known: HashMap<u32, Cubes>,
    /// As an operator of circuits takes them: what passes without its connection is denied.
    tracked: HashMap<u32, Cubes>,
}

impl Tables<'_> {
    fn of(&mut self, number: u32, has_circuits: bool) {
        if number == NONE || self.known.contains_key(&number) {
            return;
        }
        let mut table = self.image.rule_table(number);
        self.known.insert(number, Cubes::of(&table));
        if has_circuits {
            for rule in &mut table.rules {
                if rule.action == Action::AllowStateless {
                    rule.action = Action::Deny;
                }
            }
            if table.default == Action::AllowStateless {
                table.default = Action::Deny;
            }
            self.tracked.insert(number, Cubes::of(&table));
        }
    }

    /// The lists of those that there are.
    fn lists(&self, tables: [Option<&u32>; 2], by: By) -> Vec<&Cubes> {
        let lists = match by {
            By::Circuits | By::Crossing | By::Metered => &self.tracked,
            _ => &self.known,
        };
        let tables = tables.into_iter().flatten();
        tables.filter_map(|table| lists.get(table)).collect()
    }
}

/// Checks all that a tenant asks for. `at` is its place in the spec, `view` in `found`.
#[expect(clippy::too_many_arguments, reason = "one caller, all of them facts")]
pub(crate) fn check(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    at: usize,
    book: &Book<'_>,
    view: usize,
    found: &Found,
    solver: &dyn Solver,
    breaches: &mut Vec<Breach>,
) {
    let tenant = book.view.tenant;
    let mut tables = Tables {
        image,
        known: HashMap::new(),
        tracked: HashMap::new(),
    };
    let fuel = Cell::new(Fuel(FUEL));
    for reach in tenant.policy.iter().flat_map(|p| &p.reach) {
        let place = reach.allowed.span.start;
        let is_own = host.spec.source.tenant_at(place).is_some() && guard!("reach-own-fuel");
        let is_others = is_own && host.looked.get() != Looked::Changed;
        // Nobody's wishes keep a host from starting: where nothing is known yet, what tenants
        // ask for themselves was asked before.
        let is_over = host.looked.get() == Looked::All || host.own_fuel.get().0 == 0;
        if is_others && is_over {
            continue;
        }
        let allowed = reach.allowed.value.0;
        let line = book.asked(host, at, &reach.traffic());
        let asked = Asked {
            host,
            slot,
            at,
            book,
            allowed,
            between: (
                reach.from.as_ref().map(|s| &s.value),
                reach.to.as_ref().map(|s| &s.value),
            ),
            line,
            written: Written::new(host.spec, "reach", reach.allowed.span),
            fuel: if is_others { &host.own_fuel } else { &fuel },
            solver: if is_others { &NoSolver } else { solver },
            ways: Cell::new(0),
        };
        let answer = asked.answer(at, view, found, &mut tables);
        let is_open = answer.is_err();
        let breach = match answer {
            // An agreement's end is not for the other side's wishes to stop.
            Ok(None) if asked.ways.get() == 0 && guard!("reach-ends") && asked.may_cross() => None,
            Ok(None) if allowed && asked.ways.get() == 0 => Some(Breach::new(
                Class::Reach,
                slot,
                format!("{} asks for a way that there is not", tenant.name.value),
            )),
            Ok(breach) => breach,
            Err(_) if is_others => None,
            Err(why) => Some(Breach::new(
                Class::Fuel,
                slot,
                format!("what {} asks for is not proved; {why}", tenant.name.value),
            )),
        };
        if guard!("proof-reach") {
            breaches.extend(breach.map(|b| b.asked(asked.written)));
        }
        // Where fuel is spent each further one would cost a text for the solver.
        match is_open {
            true if is_others => host.own_fuel.set(Fuel(0)),
            true => return,
            false => {}
        }
    }
}

impl Asked<'_> {
    /// Whether what is asked for may be across an agreement, live or not: then there may be
    /// no way, for that is as much for the other tenant to say.
    fn may_cross(&self) -> bool {
        let tenant = self.book.view.tenant;
        let own = |of: Option<&Selector>| {
            matches!(
                of,
                Some(Selector::Endpoint(_) | Selector::Label(_) | Selector::Subnet(_))
            )
        };
        let (from, to) = self.between;
        let agrees = !tenant.offers.is_empty() || !tenant.accepts.is_empty();
        agrees && !(own(from) && own(to))
    }

    fn answer(
        &self,
        at: usize,
        view: usize,
        found: &Found,
        tables: &mut Tables<'_>,
    ) -> Result<Option<Breach>, Unsolved> {
        let members = self.book.view.members.len();
        let index = |member: usize| found.get(&(view, member)).copied();
        let table = |member: usize, side: Side| {
            let endpoint = index(member).and_then(|at| tables.image.endpoints().get(at as usize));
            endpoint.map_or(NONE, |e| match side {
                Side::Egress => e.egress,
                Side::Ingress => e.ingress,
            })
        };
        let egress: Vec<u32> = (0..members).map(|m| table(m, Side::Egress)).collect();
        let ingress: Vec<u32> = (0..members).map(|m| table(m, Side::Ingress)).collect();
        let has_circuits = (0..members).any(|member| self.circuits(member) != 0);
        egress
            .iter()
            .chain(&ingress)
            .for_each(|table| tables.of(*table, has_circuits));
        let tables = &*tables;
        let senders: Vec<Vec<Range>> = (0..members)
            .map(|m| self.line.senders(m, &self.addresses(m)))
            .collect();
        let receivers: Vec<Vec<Range>> = (0..members)
            .map(|m| self.line.receivers(m, &self.addresses(m)))
            .collect();
        let pairs = Pairs {
            sides: [(&senders, &egress), (&receivers, &ingress)],
            tables,
        };
        if let Some(breach) = self.inside(&pairs)? {
            return Ok(Some(breach));
        }
        for (from, sources) in senders.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
            for (targets, service) in self.beyond(at, false) {
                let lists = [egress.get(from), None];
                let path = (Some(from), None);
                let sources = taking_part(service, at, sources);
                let found = self.one(path, &sources, &targets, lists, service, tables)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for (sources, service) in self.beyond(at, true) {
            for (to, targets) in receivers.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
                let id = self.book.view.members.get(to).map(|m| m.id);
                if service.is_some_and(|a| a.routed.is_none() && a.endpoint != id) {
                    continue;
                }
                let targets = &taking_part(service, at, targets);
                let lists = [None, ingress.get(to)];
                let path = (None, Some(to));
                let found = self.one(path, &sources, targets, lists, service, tables)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for (member, place) in self.book.view.members.iter().map(|m| m.subnet).enumerate() {
            let there = self.on_link(place);
            if there.is_empty() || !guard!("proof-reach-segment") {
                continue;
            }
            let sources = senders.get(member).map_or(&[][..], Vec::as_slice);
            let mut heard = there.clone();
            if !self.allowed {
                // What is for a group goes there as well.
                let groups = ["224.0.0.0/4", "255.255.255.255/32", "ff00::/8"];
                let groups = groups.iter().filter_map(|g| g.parse::<spec::Prefix>().ok());
                heard.extend(groups.flat_map(|group| of_prefix(&group)));
            }
            let targets = common(self.line.destinations(), &heard);
            let (path, lists) = ((Some(member), None), [egress.get(member), None]);
            let found = self.one(path, sources, &targets, lists, None, tables)?;
            if found.is_some() {
                return Ok(found);
            }
            let sources = common(self.line.sources(), &there);
            let targets = receivers.get(member).map_or(&[][..], Vec::as_slice);
            let (path, lists) = ((None, Some(member)), [None, ingress.get(member)]);
            let found = self.one(path, &sources, targets, lists, None, tables)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Who may be beyond a subnet, by its place, in its VLAN: the rest of its prefixes, and
    /// where nothing may pass the rest of its link. None where it is on this host only.
    fn on_link(&self, place: usize) -> Vec<Range> {
        let mut all = self.book.beyond(place);
        if !self.allowed && !all.is_empty() {
            all.extend(
                "fe80::/10"
                    .parse::<spec::Prefix>()
                    .iter()
                    .flat_map(of_prefix),
            );
        }
        common(&all, &others(&self.book.here(place)))
    }

    /// Whether a packet between a member and somebody who is none is on its link.
    fn is_on_link(&self, member: Option<usize>, packet: &Tuple) -> bool {
        let member = member.and_then(|m| self.book.view.members.get(m));
        let there = member.map_or_else(Vec::new, |m| self.on_link(m.subnet));
        let ends = [packet.source, packet.destination];
        ends.iter().any(|end| crate::ranges::holds(&there, end))
    }

    /// All pairs of members: those with the same two tables together where that shows it,
    /// else one by one.
    fn inside(&self, pairs: &Pairs<'_, '_>) -> Result<Option<Breach>, Unsolved> {
        let [senders, receivers] = pairs.sides.map(|(ranges, tables)| {
            let mut by_table: BTreeMap<(u32, bool, u8), Vec<usize>> = BTreeMap::new();
            for (member, table) in tables.iter().enumerate() {
                if ranges.get(member).is_some_and(|r| !r.is_empty()) {
                    let key = (*table, self.is_shut(Some(member)), self.circuits(member));
                    by_table.entry(key).or_default().push(member);
                }
            }
            by_table
        });
        for ((egress, shut, _), from) in &senders {
            for ((ingress, shut_too, _), to) in &receivers {
                let lists = [Some(egress), Some(ingress)];
                let by = self.by(from.first().copied(), to.first().copied());
                let of = |side: usize, members: &[usize]| {
                    let (ranges, _) = pairs.sides[side];
                    let all = members.iter().filter_map(|m| ranges.get(*m)).flatten();
                    crate::ranges::tidy(all.copied().collect())
                };
                let (sources, targets) = (of(0, from), of(1, to));
                let mut all = from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b)));
                let together = !shut && !shut_too && from.len() * to.len() > 1;
                if together && self.holds(&sources, &targets, lists, by, pairs.tables)? {
                    let is_way = |(a, b): &(usize, usize)| {
                        let [(senders, _), (receivers, _)] = pairs.sides;
                        let of = senders.get(*a).zip(receivers.get(*b));
                        a != b && of.is_some_and(|(s, t)| !self.space(s, t, None).is_empty())
                    };
                    self.ways
                        .set(self.ways.get() + u64::from(all.any(|pair| is_way(&pair))));
                    continue;
                }
                for (a, b) in all.filter(|(a, b)| a != b) {
                    let [(senders, _), (receivers, _)] = pairs.sides;
                    let Some((sources, targets)) = senders.get(a).zip(receivers.get(b)) else {
                        continue;
                    };
                    let path = (Some(a), Some(b));
                    let found = self.one(path, sources, targets, lists, None, pairs.tables)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether nothing is wrong from any of these to any of those: looked at as wholes
    /// first, and where that does not show it in halves.
    fn holds(
        &self,
        sources: &[Range],
        targets: &[Range],
        lists: [Option<&u32>; 2],
        by: By,
        known: &Tables<'_>,
    ) -> Result<bool, Unsolved> {
        let hull = |of: &[Range]| match of {
            [] => None,
            [first, .., last] | [first @ last] => Some((first.0, last.1)),
        };
        let (Some(source), Some(target)) = (hull(sources), hull(targets)) else {
            return Ok(true);
        };
        let space = self.space(&[source], &[target], None);
        if self.judge(&space, lists, by, known)?.is_none() {
            return Ok(true);
        }
        let halves = |of: &'_ [Range]| of.len() / 2;
        if sources.len() >= targets.len() && sources.len() > 1 {
            let (a, b) = sources.split_at(halves(sources));
            return Ok(self.holds(a, targets, lists, by, known)?
                && self.holds(b, targets, lists, by, known)?);
        }
        if targets.len() > 1 {
            let (a, b) = targets.split_at(halves(targets));
            return Ok(self.holds(sources, a, lists, by, known)?
                && self.holds(sources, b, lists, by, known)?);
        }
        Ok(false)
    }

    /// Whether a member has circuits ([`circuits_of`]).
    fn circuits(&self, member: usize) -> u8 {
        let member = self.book.view.members.get(member);
        member.map_or(0, |member| circuits_of(member.endpoint))
    }

    /// The same between a member and those on the other side of an agreement.
    fn across(&self, member: usize, agreement: &Agreement) -> By {
        let (least, most) = agreement.circuits_beyond(self.at);
        match (self.circuits(member), least, most) {
            _ if !self.allowed || !guard!("proof-reach-crossing") => By::Packets,
            (2.., 1.., _) => By::Crossing,
            (2.., ..) | (.., 2..) => By::Nothing,
            _ => By::Packets,
        }
    }

    fn way_of(&self, path: (Option<usize>, Option<usize>), service: Option<&Agreement>) -> By {
        match (path.0.or(path.1), service) {
            (Some(member), Some(agreement)) => self.across(member, agreement),
            _ => self.by(path.0, path.1),
        }
    }

    fn by(&self, from: Option<usize>, to: Option<usize>) -> By {
        let [from, to] = [from, to].map(|member| member.map_or(0, |m| self.circuits(m)));
        match from.max(to) {
            most @ 2.. if self.allowed && guard!("proof-reach-circuits") => match from.min(to) {
                0 => By::Nothing,
                _ if most > 2 => By::Metered,
                _ => By::Circuits,
            },
            _ => By::Packets,
        }
    }

    fn is_shut(&self, member: Option<usize>) -> bool {
        let member = member.and_then(|m| self.book.view.members.get(m));
        member.is_some_and(|m| m.endpoint.state() != State::Open)
    }

    /// What a member is asked about by: for what must be possible the addresses that it
    /// was given, for what must not be all that it has.
    fn addresses(&self, member: usize) -> Vec<Range> {
        let Some(member) = self.book.view.members.get(member) else {
            return Vec::new();
        };
        let open = member.endpoint.state() == State::Open;
        if self.allowed {
            return crate::ranges::tidy(
                member.given.iter().map(|a| one(spec::mapped(*a))).collect(),
            );
        }
        if open { member.own.clone() } else { Vec::new() }
    }

    /// Who is meant beyond the tenant: outside, where it has a way there, and across its
    /// agreements, each with its service.
    fn beyond(&self, at: usize, sends: bool) -> Vec<(Vec<Range>, Option<&Agreement>)> {
        let asked = match sends {
            true => self.line.sources(),
            false => self.line.destinations(),
        };
        let mut all: Vec<(Vec<Range>, Option<&Agreement>)> = Vec::new();
        if !self.book.view.tenant.outside.is_empty() {
            all.push((common(asked, &others(&self.book.inside)), None));
        }
        for agreement in &self.host.agreements {
            let other = match at {
                at if at == agreement.offerer => agreement.acceptor,
                _ => agreement.offerer,
            };
            if !agreement.begins(if sends { other } else { at }) {
                continue;
            }
            let there: Vec<Range> = agreement.leads(at).0.iter().flat_map(of_prefix).collect();
            all.push((common(asked, &there), Some(agreement)));
        }
        all.retain(|(ranges, _)| !ranges.is_empty());
        all
    }

    fn one(
        &self,
        path: (Option<usize>, Option<usize>),
        sources: &[Range],
        targets: &[Range],
        tables: [Option<&u32>; 2],
        service: Option<&Agreement>,
        known: &Tables<'_>,
    ) -> Result<Option<Breach>, Unsolved> {
        let space = self.space(sources, targets, service);
        // How the other side of an agreement is attached is for it to say, and then there is no way.
        let is_way = service.is_none() || self.way_of(path, service) != By::Nothing;
        if space.is_empty() || !is_way {
            return Ok(None);
        }
        self.ways.set(self.ways.get() + 1);
        let shut = self.is_shut(path.0) || self.is_shut(path.1);
        let found = match space.first() {
            Some(part) if self.allowed && shut => Some(part.packet()),
            _ => self.judge(&space, tables, self.way_of(path, service), known)?,
        };
        let shown = match (self.allowed, found) {
            (false, Some(_)) => self.likelier(path, tables, known),
            _ => None,
        };
        Ok(shown
            .or(found)
            .map(|packet| self.breach(path, service, packet, known.image)))
    }

    /// The packets that are asked about.
    fn space(
        &self,
        sources: &[Range],
        targets: &[Range],
        service: Option<&Agreement>,
    ) -> Vec<Cube> {
        let mut space: Vec<Cube> = Vec::new();
        let asked = self.line.packets();
        for part in packets(&ranges(sources), &ranges(targets)) {
            space.extend(asked.iter().filter_map(|asked| part.and(asked)));
        }
        if let Some(agreement) = service {
            let served = crate::lines::served(agreement);
            let all = core::mem::take(&mut space);
            for part in all {
                space.extend(served.iter().filter_map(|served| part.and(served)));
            }
        }
        space
    }

    /// One of them that is stopped though it is to pass, or passes though it may not.
    fn judge(
        &self,
        space: &[Cube],
        tables: [Option<&u32>; 2],
        by: By,
        known: &Tables<'_>,
    ) -> Result<Option<Tuple>, Unsolved> {
        let is_none = match by {
            By::Packets => None,
            By::Circuits => no_circuit(space, &[0..=5, 7..=16, 18..=255]),
            By::Crossing | By::Metered => no_circuit(space, &[0..=5, 7..=255]),
            By::Nothing => space.first().map(Cube::packet),
        };
        if is_none.is_some() {
            return Ok(is_none);
        }
        let lists = known.lists(tables, by);
        let before = self.fuel.get();
        let mut fuel = before;
        let found = match self.allowed {
            true => stopped(&lists, space, &mut fuel).map(|f| f.map(|(_, packet)| packet)),
            false => passes(&lists, space, &mut fuel),
        };
        if let Ok(found) = found {
            self.fuel.set(fuel);
            return Ok(found);
        }
        // What is easy is not to go to the solver because one question before was hard: half
        // is left, so that all together cost at most twice the whole.
        self.fuel.set(Fuel(before.0 / 2));
        match self.allowed {
            true => solver::stopped(self.solver, &lists, space),
            false => solver::passes(self.solver, &lists, space),
        }
    }

    /// A packet that can be sent and shows the same, if there is one.
    fn likelier(
        &self,
        path: (Option<usize>, Option<usize>),
        tables: [Option<&u32>; 2],
        known: &Tables<'_>,
    ) -> Option<Tuple> {
        let lists = known.lists(tables, By::Packets);
        let parts = between(self.book, path.0?, path.1?);
        let asked = self.line.packets();
        let both =
            |part: &Cube| -> Vec<Cube> { asked.iter().filter_map(|a| part.and(a)).collect() };
        let space: Vec<Cube> = parts.iter().flat_map(both).collect();
        passes(&lists, &space, &mut Fuel(FUEL)).ok().flatten()
    }

    fn breach(
        &self,
        (from_member, to_member): (Option<usize>, Option<usize>),
        service: Option<&Agreement>,
        packet: Tuple,
        image: &CompartmentImage<'_>,
    ) -> Breach {
        let outer = match service {
            Some(agreement) => format!("the other side of agreement {}", agreement.id),
            None if self.is_on_link(from_member.or(to_member), &packet) => {
                "whoever is beyond its subnet".to_owned()
            }
            None => "outside".to_owned(),
        };
        let who = |member: Option<usize>| member.map_or(outer.clone(), |m| name(self.book, m));
        let (a, b) = (who(from_member), who(to_member));
        let what = match self.allowed {
            true => format!(
                "not all passes from {a} to {b} that is to pass{}",
                match self.way_of((from_member, to_member), service) {
                    By::Packets => "",
                    By::Circuits => {
                        ": by circuits TCP and UDP do alone, and nothing that is stateless"
                    }
                    By::Crossing => {
                        ": by circuits TCP does alone across an agreement, and nothing that is stateless"
                    }
                    By::Metered => {
                        ": by circuits of who is metered, or has a rate, TCP does alone, and nothing that is stateless"
                    }
                    By::Nothing => ": one of them has circuits alone, the other none",
                }
            ),
            false => format!("something passes from {a} to {b} though none of it may"),
        };
        let seat = Seat {
            host: self.host,
            slot: self.slot,
            image,
        };
        let tenant = image.tenants().iter();
        let tenant = tenant.take_while(|t| t.id != self.book.view.id).count() as u32;
        let place = |member: Option<usize>, other: Option<usize>, address: &[u8; 16]| {
            let id = |m: Option<usize>| m.and_then(|m| self.book.view.members.get(m)).map(|m| m.id);
            match (id(member), id(other)) {
                (Some(id), _) => seat.port_of(id),
                (None, Some(other)) => seat.near_to(other, tenant, address),
                (None, None) => seat.way(tenant, address),
            }
        };
        let to = match self.allowed {
            true => Place::Dropped { slot: self.slot },
            false => place(to_member, from_member, &packet.destination),
        };
        let way = Way::new(place(from_member, to_member, &packet.source), to);
        let at = from_member
            .or(to_member)
            .map_or(String::new(), |m| name(self.book, m));
        Breach::new(Class::Reach, self.slot, what)
            .at(at)
            .shown(packet, way)
    }
}

/// A packet of these that no circuit stands for: of these protocols.
fn no_circuit(space: &[Cube], others: &[RangeInclusive<u8>]) -> Option<Tuple> {
    let others = others.iter().map(|protocol| {
        Cube::of(&Region {
            protocol: protocol.clone(),
            ..Region::ALL
        })
    });
    let others: Vec<Cube> = others.collect();
    let parts = space.iter();
    let mut parts = parts.flat_map(|part| others.iter().filter_map(|other| part.and(other)));
    parts.next().map(|part| part.packet())
}

/// A tenant's own addresses, of these, from or to which an agreement lets packets pass.
fn taking_part(agreement: Option<&Agreement>, at: usize, own: &[Range]) -> Vec<Range> {
    match agreement.and_then(|agreement| agreement.leads(at).1) {
        None => own.to_vec(),
        Some(prefixes) => {
            let part: Vec<Range> = prefixes.iter().flat_map(of_prefix).collect();
            common(own, &part)
        }
    }
}

fn ranges(of: &[Range]) -> Vec<Addresses> {
    of.iter().map(|r| r.0..=r.1).collect()
}
