//! What `reach` asks for: that something passes, or that nothing of it does.
//!
//! It is about first packets: what answers a connection passes by the connection.

use crate::breach::{Breach, Class, Written};
use crate::cube::{Cube, Fuel, OutOfFuel};
use crate::inside::name;
use crate::intend::{Agreement, Host};
use crate::likely::between;
use crate::lines::{Book, Line, Side};
use crate::meaning::{Cubes, passes, stopped};
use crate::places::Found;
use crate::ranges::{Range, common, of_prefix, one, others};
use crate::space::{Addresses, packets};
use core::cell::Cell;
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use spec::State;
use std::collections::HashMap;
use wire::Tuple;

/// What all questions about one entry may cost.
const FUEL: u64 = 200_000_000;

/// One place in the tenant's list of what must be possible or not.
struct Asked<'q> {
    host: &'q Host<'q>,
    slot: u32,
    book: &'q Book<'q>,
    allowed: bool,
    line: Line,
    written: Written,
    fuel: Cell<Fuel>,
    ways: Cell<u64>,
}

/// The installed tables, each decoded once.
struct Tables<'i> {
    image: &'i CompartmentImage<'i>,
    known: HashMap<u32, Cubes>,
}

impl Tables<'_> {
    fn of(&mut self, table: u32) {
        if table != NONE {
            let image = self.image;
            self.known
                .entry(table)
                .or_insert_with(|| Cubes::of(&image.rule_table(table)));
        }
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
    breaches: &mut Vec<Breach>,
) {
    let tenant = book.view.tenant;
    let mut tables = Tables {
        image,
        known: HashMap::new(),
    };
    for reach in tenant.policy.iter().flat_map(|p| &p.reach) {
        let allowed = reach.allowed.value.0;
        let line = book.asked(host, at, &reach.traffic());
        let asked = Asked {
            host,
            slot,
            book,
            allowed,
            line,
            written: Written::new(host.spec, "reach", reach.allowed.span),
            fuel: Cell::new(Fuel(FUEL)),
            ways: Cell::new(0),
        };
        let answer = asked.answer(at, view, found, &mut tables);
        let breach = match answer {
            Ok(None) if allowed && asked.ways.get() == 0 => Some(Breach::new(
                Class::Reach,
                slot,
                format!("{} asks for a way that there is not", tenant.name.value),
            )),
            Ok(breach) => breach,
            Err(OutOfFuel) => Some(Breach::new(
                Class::Fuel,
                slot,
                format!("what {} asks for is not proved", tenant.name.value),
            )),
        };
        if guard!("proof-reach") {
            breaches.extend(breach.map(|b| b.by([asked.written])));
        }
    }
}

impl Asked<'_> {
    fn answer(
        &self,
        at: usize,
        view: usize,
        found: &Found,
        tables: &mut Tables<'_>,
    ) -> Result<Option<Breach>, OutOfFuel> {
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
        egress
            .iter()
            .chain(&ingress)
            .for_each(|table| tables.of(*table));
        let tables = &*tables;
        let senders: Vec<Vec<Range>> = (0..members)
            .map(|m| self.line.senders(m, &self.addresses(m)))
            .collect();
        let receivers: Vec<Vec<Range>> = (0..members)
            .map(|m| self.line.receivers(m, &self.addresses(m)))
            .collect();
        for (from, sources) in senders.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
            for (to, targets) in receivers.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
                if from == to {
                    continue;
                }
                let lists = [egress.get(from), ingress.get(to)];
                let path = (Some(from), Some(to));
                if let Some(breach) = self.one(path, sources, targets, lists, None, tables)? {
                    return Ok(Some(breach));
                }
            }
            for (targets, service) in self.beyond(at, false) {
                let lists = [egress.get(from), None];
                let path = (Some(from), None);
                let found = self.one(path, sources, &targets, lists, service, tables)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for (sources, service) in self.beyond(at, true) {
            for (to, targets) in receivers.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
                let id = self.book.view.members.get(to).map(|m| m.id);
                if service.is_some_and(|a| Some(a.endpoint) != id) {
                    continue;
                }
                let lists = [None, ingress.get(to)];
                let path = (None, Some(to));
                let found = self.one(path, &sources, targets, lists, service, tables)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
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
            let families = agreement.families.iter().flatten();
            let there: Vec<Range> = if sends && agreement.offerer == at {
                families.flat_map(|f| of_prefix(&f.pool)).collect()
            } else if !sends && agreement.acceptor == at {
                families.map(|f| one(spec::mapped(f.stands))).collect()
            } else {
                continue;
            };
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
    ) -> Result<Option<Breach>, OutOfFuel> {
        let mut space: Vec<Cube> = Vec::new();
        let asked = self.line.packets();
        for part in packets(&ranges(sources), &ranges(targets)) {
            space.extend(asked.iter().filter_map(|asked| part.and(asked)));
        }
        if let Some(agreement) = service {
            let served: Vec<Cube> = (agreement.ports.iter())
                .map(|ports| crate::lines::served(agreement.protocol, *ports))
                .collect();
            let all = core::mem::take(&mut space);
            for part in all {
                space.extend(served.iter().filter_map(|served| part.and(served)));
            }
        }
        if space.is_empty() {
            return Ok(None);
        }
        self.ways.set(self.ways.get() + 1);
        let lists: Vec<&Cubes> = (tables.into_iter().flatten())
            .filter_map(|table| known.known.get(table))
            .collect();
        let mut fuel = self.fuel.get();
        let shut = |member: Option<usize>| {
            let member = member.and_then(|m| self.book.view.members.get(m));
            member.is_some_and(|m| m.endpoint.state() != State::Open)
        };
        let found = if self.allowed {
            match space.first() {
                Some(part) if shut(path.0) || shut(path.1) => Some(part.packet()),
                _ => stopped(&lists, &space, &mut fuel)?.map(|(_, packet)| packet),
            }
        } else {
            let found = passes(&lists, &space, &mut fuel)?;
            let shown = found.and_then(|_| self.likelier(path, &asked, &lists));
            shown.or(found)
        };
        self.fuel.set(fuel);
        Ok(found.map(|packet| self.breach(path, service, packet)))
    }

    /// A packet that can be sent and shows the same, if there is one.
    fn likelier(
        &self,
        path: (Option<usize>, Option<usize>),
        asked: &[Cube],
        lists: &[&Cubes],
    ) -> Option<Tuple> {
        let parts = between(self.book, path.0?, path.1?);
        let both =
            |part: &Cube| -> Vec<Cube> { asked.iter().filter_map(|a| part.and(a)).collect() };
        let space: Vec<Cube> = parts.iter().flat_map(both).collect();
        passes(lists, &space, &mut Fuel(FUEL)).ok().flatten()
    }

    fn breach(
        &self,
        (from, to): (Option<usize>, Option<usize>),
        service: Option<&Agreement>,
        packet: Tuple,
    ) -> Breach {
        let outer = match service {
            Some(agreement) => format!("the other side of agreement {}", agreement.id),
            None => "outside".to_owned(),
        };
        let who = |member: Option<usize>| member.map_or(outer.clone(), |m| name(self.book, m));
        let (a, b) = (who(from), who(to));
        let what = match self.allowed {
            true => format!("not all passes from {a} to {b} that is to pass"),
            false => format!("something passes from {a} to {b} though none of it may"),
        };
        let path = format!("from {a} to {b} by the switch in slot {}", self.slot);
        let at = from.or(to).map_or(String::new(), |m| name(self.book, m));
        Breach::new(Class::Reach, self.slot, what)
            .at(at)
            .shown(packet, path)
    }
}

fn ranges(of: &[Range]) -> Vec<Addresses> {
    of.iter().map(|r| r.0..=r.1).collect()
}
