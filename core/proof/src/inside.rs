//! Inside a tenant: the tables of each endpoint mean what the spec says, and guardrails
//! hold in each, whatever else it says.

use crate::alike::{begins_with_guardrails, same};
use crate::breach::{Breach, Class};
use crate::cube::{Cube, Fuel};
use crate::intend::{Agreement, Host};
use crate::known::Changed;
use crate::likely::{likely, possible, users};
use crate::lines::{Book, Line, Side, written};
use crate::meaning::{Cubes, Witness, difference, passes, stopped};
use crate::showing::{Seat, Shown};
use crate::solver::{self, Solver, Unsolved};
use crate::space::{Addresses, anywhere, packets};
use crate::way::{Place, Way};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{CROSSING_OFFERER, Crossing, NONE};
use image::rules::{Action, RuleTable};
use wire::Tuple;

/// Of so many breaches everything that could show them is looked for.
const SHOWN: usize = 64;

/// Why nobody can send a packet that is like no other.
const NOBODYS: &str = "no packet that begins anything between addresses that somebody has, here or outside, shows just this";

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
            seat: Seat { host, slot, image },
            index,
            told: breaches.len(),
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
        // What takes long is asked only where it is not seen at once.
        if !begins_with_guardrails(book, at, side, own, &scratch.table)
            && guard!("proof-guardrails")
        {
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

/// How a packet is sent that shows a difference.
#[derive(Clone, Copy)]
enum Sent<'a> {
    Plainly,
    /// By an agreement's users.
    By(&'a Agreement),
    ByNobody,
    /// That was not found out.
    Unsaid,
}

struct Question<'q> {
    host: &'q Host<'q>,
    slot: u32,
    seat: Seat<'q>,
    /// The endpoint's in the image.
    index: u32,
    /// Breaches so far.
    told: usize,
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
                        let (shown, sent) = self.likelier(witness, &installed, &wanted, v4);
                        breaches.push(self.differs(&shown, sent, &lines, only_six));
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

    /// A packet that can be sent and shows the same, and whether there is one. What is proved
    /// does not depend on it.
    fn likelier(
        &self,
        witness: Witness,
        installed: &Cubes,
        wanted: &Cubes,
        v4: bool,
    ) -> (Witness, Sent<'_>) {
        let kind = |w: &Witness| (w.installed.0, w.wanted.0, w.wanted.1.is_some());
        // What is not looked at to its end says nothing.
        let mut sure = true;
        let mut ask = |space: &[Cube]| {
            let found = difference(installed, wanted, space, &mut Fuel(TABLE_FUEL));
            sure &= found == Ok(None);
            found
                .ok()
                .flatten()
                .filter(|found| kind(found) == kind(&witness))
        };
        let is_first = self.told < SHOWN;
        for choose in [likely, possible].iter().take(1 + usize::from(is_first)) {
            let space = choose(self.host, self.book, self.at, self.side, v4);
            if let Some(found) = ask(&space) {
                return (found, Sent::Plainly);
            }
        }
        let id = self.book.view.members.get(self.at).map(|m| m.id);
        let own = |a: &&Agreement| self.side == Side::Ingress && a.endpoint == id;
        for agreement in self.host.agreements.iter().filter(own) {
            let space = users(agreement, v4);
            let Some(found) = ask(&space) else {
                continue;
            };
            // Whom of them a user appears as is the switch's to choose.
            let Tuple {
                destination_port: port,
                protocol,
                ..
            } = found.packet;
            let all = [0; 16]..=[0xff; 16];
            let same = Cube::new(
                &all,
                &all,
                &(1024..=1024),
                &(port..=port),
                &(protocol..=protocol),
            );
            let space: Vec<Cube> = space.iter().filter_map(|part| part.and(&same)).collect();
            let fuel = &mut Fuel(TABLE_FUEL);
            let others = match found.installed.0 {
                Action::Deny => passes(&[installed], &space, fuel).map(|f| f.is_some()),
                _ => stopped(&[installed], &space, fuel).map(|f| f.is_some()),
            };
            if others == Ok(false) {
                return (found, Sent::By(agreement));
            }
        }
        match sure && is_first {
            true => (witness, Sent::ByNobody),
            false => (witness, Sent::Unsaid),
        }
    }

    fn has_four(&self) -> bool {
        let member = self.book.view.members.get(self.at);
        member.is_some_and(|m| m.given.iter().any(|a| a.is_ipv4()))
    }

    fn differs(
        &self,
        witness: &Witness,
        sent: Sent<'_>,
        lines: &[Option<&Line>],
        only_six: bool,
    ) -> Breach {
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
        let breach = Breach::new(class, self.slot, what).at(name(self.book, self.at));
        self.shown(breach, witness, sent)
            .by(by.map(|line| written(self.host, line)))
    }

    /// With its packet, and the way that it goes past this table.
    fn shown(&self, breach: Breach, witness: &Witness, sent: Sent<'_>) -> Breach {
        let packet = witness.packet;
        let (name, word) = (name(self.book, self.at), self.side.word());
        let breach = Breach {
            packet: Some(packet.into()),
            ..breach
        };
        let (packet, mut way) = match self.goes(&packet, sent) {
            None => return breach,
            Some(Ok(shown)) => shown,
            Some(Err(why)) => return breach.nobody(why),
        };
        way.by = format!("the {word} table of {name}");
        match (witness.installed.0, &way.to) {
            (Action::Deny, _) => {
                way.to = Place::Dropped { slot: self.slot };
                way.becomes = None;
            }
            (_, Place::Dropped { .. }) => {
                return breach.nobody("it passes the table, and no route leads to who gets it");
            }
            _ => {}
        }
        breach.shown(packet, way)
    }

    /// The packet that is sent, and its way but for this table.
    fn goes(&self, packet: &Tuple, sent: Sent<'_>) -> Option<Shown> {
        let seat = self.seat;
        Some(match sent {
            Sent::Unsaid => return None,
            Sent::ByNobody => Err(NOBODYS.into()),
            Sent::By(agreement) => {
                let side =
                    |c: &&Crossing| (c.agreement, c.role) == (agreement.id, CROSSING_OFFERER);
                let v4 = !is_six(&(packet.destination..=packet.destination));
                let service = (packet.protocol, packet.destination_port);
                match seat.image.crossings().iter().find(side) {
                    Some(crossing) => seat.across(crossing, Some(agreement), v4, service),
                    None => Err("the agreement that it comes by is not there".into()),
                }
            }
            Sent::Plainly => {
                let tenant = self.image_tenant();
                let own = seat.port(self.index);
                let way = match self.side {
                    Side::Egress => {
                        Way::new(own, seat.near(self.index, tenant, &packet.destination))
                    }
                    Side::Ingress => Way::new(seat.near(self.index, tenant, &packet.source), own),
                };
                Ok((*packet, way))
            }
        })
    }

    fn image_tenant(&self) -> u32 {
        let mut all = self.seat.image.tenants().iter();
        let at = all.position(|t| t.id == self.book.view.id);
        at.map_or(NONE, |at| at as u32)
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
                    let (witness, sent) = self.likelier(witness, &installed, &wanted, v4);
                    let line = witness.wanted.1.and_then(|at| lines.get(at));
                    let named = line.map_or("a guardrail", |l| l.name.as_str());
                    let (does, wants) = (witness.installed.0, witness.wanted.0);
                    let word = self.side.word();
                    let what = format!("its {word} table says {does} where {named} says {wants}");
                    let breach = Breach::new(Class::Guardrail, self.slot, what)
                        .at(name(self.book, self.at))
                        .by(line.map(|line| written(self.host, line)));
                    breaches.push(self.shown(breach, &witness, sent));
                }
                Err(why) => {
                    breaches.push(self.open(why));
                    return;
                }
            }
        }
    }
}
