//! Inside a tenant: the tables of each endpoint mean what the spec says, and guardrails
//! hold in each, whatever else it says.

use crate::breach::{Breach, Class};
use crate::cube::{Cube, Fuel};
use crate::intend::Host;
use crate::known::Changed;
use crate::likely::likely;
use crate::lines::{Book, Line, Side, same, written};
use crate::meaning::{Cubes, Witness, difference};
use crate::solver::{self, Solver, Unsolved};
use crate::space::{Addresses, anywhere, packets};
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use image::rules::{Action, RuleTable};

/// What a question about one table may cost: less than 50 ms, with room for a busy core.
pub const TABLE_FUEL: u64 = 2_000_000;

/// What does not end between tables.
pub(crate) struct Scratch<'s> {
    table: RuleTable,
    solver: &'s dyn Solver,
}

impl<'s> Scratch<'s> {
    pub fn new(solver: &'s dyn Solver) -> Scratch<'s> {
        Scratch {
            solver,
            table: RuleTable {
                rules: Vec::new(),
                default: Action::Deny,
            },
        }
    }
}

/// Checks both tables of a member that is in the image as `index`, but for one that
/// was proved and has not `changed`.
#[expect(clippy::too_many_arguments, reason = "one caller, all of them facts")]
pub(crate) fn tables(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    book: &Book<'_>,
    at: usize,
    index: u32,
    changed: Option<&Changed<'_>>,
    scratch: &mut Scratch<'_>,
    breaches: &mut Vec<Breach>,
) {
    let Some(installed) = image.endpoints().get(index as usize) else {
        return;
    };
    for (side, number) in [
        (Side::Egress, installed.egress),
        (Side::Ingress, installed.ingress),
    ] {
        let name = name(book, at);
        if (number == NONE) == book.is_judged {
            let what = match number {
                NONE => format!("it has no {} table: everything passes", side.word()),
                _ => format!("it has an {} table though nothing is said", side.word()),
            };
            if guard!("proof-tables-there") {
                breaches.push(Breach::new(Class::NoTables, slot, what).at(name));
            }
            continue;
        }
        if number == NONE {
            continue;
        }
        if changed.is_some_and(|changed| changed.holds(image, book, at, side, number)) {
            continue;
        }
        image.rule_table_into(number, &mut scratch.table);
        let own = book.own(at, side);
        let mut found = Vec::new();
        let asked = Question {
            host,
            slot,
            book,
            at,
            side,
            table: &scratch.table,
            own,
            solver: scratch.solver,
        };
        if !same(book, at, side, own, &scratch.table) && guard!("proof-tables-mean") {
            asked.meaning(&mut found);
        }
        if guard!("proof-guardrails") {
            asked.guardrails(&mut found);
        }
        breaches.append(&mut found);
    }
}

/// An endpoint's full name.
pub(crate) fn name(book: &Book<'_>, at: usize) -> String {
    let endpoint = book.view.members.get(at);
    let endpoint = endpoint.map_or("", |m| m.endpoint.name.as_str());
    format!("{}/{endpoint}", book.view.tenant.name.value)
}

/// The packets that a table is asked about.
fn space(side: Side, own: &[crate::ranges::Range], v4: bool) -> Vec<Cube> {
    let own: Vec<Addresses> = own.iter().map(|r| r.0..=r.1).collect();
    let others = anywhere();
    let (four, six) = others.split_at(1);
    let others = if v4 { four } else { six };
    match side {
        Side::Egress => packets(&own, others),
        Side::Ingress => packets(others, &own),
    }
}

/// Whether a range has no IPv4 address.
fn is_six(range: &Addresses) -> bool {
    let edges = anywhere();
    let four = edges.first();
    four.is_some_and(|four| range.start() > four.end() || range.end() < four.start())
}

struct Question<'q> {
    host: &'q Host<'q>,
    slot: u32,
    book: &'q Book<'q>,
    at: usize,
    side: Side,
    table: &'q RuleTable,
    own: &'q [crate::ranges::Range],
    solver: &'q dyn Solver,
}

impl Question<'_> {
    fn open(&self, why: Unsolved) -> Breach {
        Breach::new(
            Class::Fuel,
            self.slot,
            format!("its {} table is not proved; {why}", self.side.word()),
        )
        .at(name(self.book, self.at))
    }

    fn meaning(&self, breaches: &mut Vec<Breach>) {
        let installed = Cubes::of(self.table);
        let Some((wanted, lines)) = self.book.cubes(self.at, self.side, self.own) else {
            breaches.push(self.open(Unsolved::Fuel));
            return;
        };
        let mut fuel = Fuel(TABLE_FUEL);
        let mut asked = |v4: bool| self.difference(&installed, &wanted, v4, &mut fuel);
        let both = asked(true).and_then(|four| Ok((four, asked(false)?)));
        match both {
            Err(why) => breaches.push(self.open(why)),
            Ok((None, None)) => {}
            Ok((four, six)) => {
                let only_six = four.is_none() && self.has_four();
                for (witness, v4) in [(four, true), (six, false)] {
                    if let Some(witness) = witness {
                        let shown = self.likelier(witness, &installed, &wanted, v4);
                        breaches.push(self.differs(&shown, &lines, only_six));
                    }
                }
            }
        }
    }

    /// By boxes, and where those cost more than they may by the solver.
    fn difference(
        &self,
        installed: &Cubes,
        wanted: &Cubes,
        v4: bool,
        fuel: &mut Fuel,
    ) -> Result<Option<Witness>, Unsolved> {
        let space = space(self.side, self.own, v4);
        difference(installed, wanted, &space, fuel)
            .or_else(|_| solver::difference(self.solver, installed, wanted, &space))
    }

    /// A packet that can be sent and shows the same, if there is one. What is proved does not
    /// depend on it.
    fn likelier(&self, witness: Witness, installed: &Cubes, wanted: &Cubes, v4: bool) -> Witness {
        let space = likely(self.host, self.book, self.at, self.side, v4);
        let found = difference(installed, wanted, &space, &mut Fuel(TABLE_FUEL));
        let kind = |w: &Witness| (w.installed.0, w.wanted.0, w.wanted.1.is_some());
        match found {
            Ok(Some(found)) if kind(&found) == kind(&witness) => found,
            _ => witness,
        }
    }

    fn has_four(&self) -> bool {
        let member = self.book.view.members.get(self.at);
        member.is_some_and(|m| m.given.iter().any(|a| a.is_ipv4()))
    }

    fn differs(&self, witness: &Witness, lines: &[Option<&Line>], only_six: bool) -> Breach {
        let (does, wants) = (witness.installed.0, witness.wanted.0);
        let by = witness
            .wanted
            .1
            .and_then(|at| lines.get(at).copied())
            .flatten();
        let passes = |action: Action| action != Action::Deny;
        // What an IPv6 rule does where nothing is said of either is no line's forgetting.
        let by_six = (witness.installed.1)
            .and_then(|at| self.table.rules.get(at))
            .is_some_and(|rule| is_six(&rule.region.source) || is_six(&rule.region.destination));
        let class = match (passes(does), passes(wants)) {
            (true, true) => Class::WrongState,
            _ if only_six && (by.is_some() || !by_six) => Class::SixForgotten,
            (true, false) if by.is_some() => Class::MissingDeny,
            (true, false) => Class::WiderRule,
            (false, _) => Class::NarrowerRule,
        };
        let word = self.side.word();
        let wanted = match by {
            Some(line) => format!("{} says {wants}", line.name),
            None => format!("by default it is to be: {wants}"),
        };
        let what = format!("its {word} table says {does} where {wanted}");
        Breach::new(class, self.slot, what)
            .at(name(self.book, self.at))
            .shown(witness.packet, self.path())
            .by(by.map(|line| written(self.host, line)))
    }

    fn path(&self) -> String {
        let name = name(self.book, self.at);
        let slot = self.slot;
        match self.side {
            Side::Egress => format!("from {name} by its egress table in the switch in slot {slot}"),
            Side::Ingress => format!("to {name} by its ingress table in the switch in slot {slot}"),
        }
    }

    fn guardrails(&self, breaches: &mut Vec<Breach>) {
        let (wanted, lines) = self.book.guardrails(self.at, self.side, self.own);
        if lines.is_empty() {
            return;
        }
        let installed = Cubes::of(self.table);
        let mut fuel = Fuel(TABLE_FUEL);
        for v4 in [true, false] {
            match self.difference(&installed, &wanted, v4, &mut fuel) {
                Ok(None) => {}
                Ok(Some(witness)) => {
                    let witness = self.likelier(witness, &installed, &wanted, v4);
                    let line = witness.wanted.1.and_then(|at| lines.get(at));
                    let named = line.map_or("a guardrail", |l| l.name.as_str());
                    let (does, wants) = (witness.installed.0, witness.wanted.0);
                    let word = self.side.word();
                    let what = format!("its {word} table says {does} where {named} says {wants}");
                    breaches.push(
                        Breach::new(Class::Guardrail, self.slot, what)
                            .at(name(self.book, self.at))
                            .shown(witness.packet, self.path())
                            .by(line.map(|line| written(self.host, line))),
                    );
                }
                Err(why) => {
                    breaches.push(self.open(why));
                    return;
                }
            }
        }
    }
}
