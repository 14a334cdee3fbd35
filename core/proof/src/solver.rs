//! The second engine: what the boxes do not settle within their fuel, as a text for a
//! solver. Here are the text and what its answer is worth; who runs one is an argument.
//!
//! The texts know nothing of how boxes are cut: bit vectors, first match by `ite`. A packet
//! that comes back is tried on the lists; only "there is none" is taken on trust.

use crate::cube::Cube;
use crate::meaning::{Cubes, Witness};
use core::fmt::Write;
use guard::guard;
use image::rules::Action;
use wire::Tuple;

/// Longest text that a solver is given, bytes: it needs far more memory than its text has.
pub const LONGEST_TEXT: usize = 8 << 20;

/// Whoever has a solver of SMT-LIB 2 texts (logic QF_BV).
pub trait Solver {
    /// All that it says to this text.
    ///
    /// # Errors
    /// [`Unsolved`]: nothing was proved.
    fn solve(&self, text: &str) -> Result<String, Unsolved>;
}

/// Nobody: the boxes alone.
#[derive(Clone, Copy, Debug)]
pub struct NoSolver;

impl Solver for NoSolver {
    fn solve(&self, _: &str) -> Result<String, Unsolved> {
        Err(Unsolved::Fuel)
    }
}

/// Why a question stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsolved {
    /// The boxes' fuel is spent and nobody was asked after them.
    Fuel,
    /// There is no solver on this host.
    Absent,
    /// It did not settle it: too long a text, no answer in its time and memory, it died, or
    /// what it said is not an answer.
    Undecided,
}

impl core::fmt::Display for Unsolved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Unsolved::Fuel => "ask for less, in fewer scattered boxes",
            Unsolved::Absent => {
                "the solver that is asked then is not there: install z3 (Debian: apt install z3), or ask for less, in fewer scattered boxes"
            }
            Unsolved::Undecided => {
                "nor was it by z3 within its time and memory: ask for less, in fewer scattered boxes"
            }
        })
    }
}

/// As [`crate::difference`], of a solver.
///
/// # Errors
/// [`Unsolved`].
pub(crate) fn difference(
    solver: &dyn Solver,
    installed: &Cubes,
    wanted: &Cubes,
    space: &[Cube],
) -> Result<Option<Witness>, Unsolved> {
    let text = text(space, &[installed, wanted], |lists| match lists {
        [does, wants] => format!("(and (not (= {wants} {SILENT})) (not (= {does} {wants})))"),
        _ => "true".to_owned(),
    });
    let Some(packet) = ask(solver, text, space)? else {
        return Ok(None);
    };
    match (installed.decide(&packet), wanted.decide(&packet)) {
        (Some(does), Some(wants)) if does.0 != wants.0 => Ok(Some(Witness {
            packet,
            installed: does,
            wanted: wants,
        })),
        _ => Err(Unsolved::Undecided),
    }
}

/// As [`crate::passes`], of a solver.
///
/// # Errors
/// [`Unsolved`].
pub(crate) fn passes(
    solver: &dyn Solver,
    lists: &[&Cubes],
    space: &[Cube],
) -> Result<Option<Tuple>, Unsolved> {
    let text = text(space, lists, |lists| {
        let each = |list: &String| format!("(not (= {list} {DENY}))");
        format!("(and true {})", lists.iter().map(each).collect::<String>())
    });
    let found = ask(solver, text, space)?;
    shown(found, |packet| {
        lists.iter().all(|list| list.lets_through(packet))
    })
}

/// As [`crate::stopped`], of a solver; by which list is not told.
///
/// # Errors
/// [`Unsolved`].
pub(crate) fn stopped(
    solver: &dyn Solver,
    lists: &[&Cubes],
    space: &[Cube],
) -> Result<Option<Tuple>, Unsolved> {
    let text = text(space, lists, |lists| {
        let each = |list: &String| format!("(= {list} {DENY})");
        format!("(or false {})", lists.iter().map(each).collect::<String>())
    });
    let found = ask(solver, text, space)?;
    shown(found, |packet| {
        lists.iter().any(|list| !list.lets_through(packet))
    })
}

/// A packet that does not show what it is to show is no answer.
fn shown(found: Option<Tuple>, shows: impl Fn(&Tuple) -> bool) -> Result<Option<Tuple>, Unsolved> {
    match found {
        Some(packet) if !shows(&packet) => Err(Unsolved::Undecided),
        found => Ok(found),
    }
}

/// Bits of each field, by the names that the texts give them.
const FIELDS: [(&str, u32); 5] = [("s", 128), ("d", 128), ("sp", 16), ("dp", 16), ("p", 8)];
const DENY: &str = "#b00";
/// The list says nothing of it.
const SILENT: &str = "#b11";

fn number(action: Action) -> &'static str {
    match action {
        Action::Deny => DENY,
        Action::Allow => "#b01",
        Action::AllowStateless => "#b10",
    }
}

/// First and last of each field.
type Sides = [(u128, u128); FIELDS.len()];

/// Asks for a packet of the space with which that holds of what the lists say; `None`: longer
/// than a text may be.
///
/// What no packet of the space is in is left out, and so are bounds that all of it keeps: the
/// solver's time is mostly for reading. Rules side by side that do the same are one choice.
fn text(space: &[Cube], lists: &[&Cubes], holds: impl Fn(&[String]) -> String) -> Option<String> {
    let mut text = String::from("(set-logic QF_BV)\n");
    for (name, bits) in FIELDS {
        let _ = writeln!(text, "(declare-const {name} (_ BitVec {bits}))");
    }
    text.push_str("(assert (or false");
    for part in space {
        within(&mut text, part, &FIELDS.map(|(_, bits)| (0, most(bits))));
    }
    text.push_str("))\n");
    let around = around(space);
    let mut names = Vec::new();
    for (at, list) in lists.iter().enumerate() {
        let near: Vec<&(Cube, Action)> = (list.rules().iter())
            .filter(|(cube, _)| space.iter().any(|part| part.meets(cube)))
            .collect();
        let _ = write!(text, "(define-fun t{at} () (_ BitVec 2) ");
        let alike = near.chunk_by(|one, next| one.1 == next.1);
        let mut choices = 0;
        for rules in alike {
            text.push_str("(ite (or false");
            for (cube, _) in rules {
                within(&mut text, cube, &around);
                if text.len() > LONGEST_TEXT {
                    return None;
                }
            }
            let does = rules.first().map_or(SILENT, |(_, action)| number(*action));
            let _ = write!(text, ") {does} ");
            choices += 1;
        }
        text.push_str(list.default().map_or(SILENT, number));
        text.extend(core::iter::repeat_n(')', choices));
        text.push_str(")\n");
        names.push(format!("t{at}"));
    }
    let _ = writeln!(text, "(assert {})\n(check-sat)", holds(&names));
    text.push_str("(get-value (s d sp dp p))\n");
    Some(text)
}

/// The largest number of so many bits.
fn most(bits: u32) -> u128 {
    u128::MAX >> (128 - bits)
}

/// The least box with all of the space in it.
fn around(space: &[Cube]) -> Sides {
    let mut around = [(u128::MAX, 0); FIELDS.len()];
    for part in space {
        for (side, (first, last)) in around.iter_mut().zip(part.sides()) {
            *side = (side.0.min(first), side.1.max(last));
        }
    }
    around
}

/// That the packet, which is within `known`, is in a box.
fn within(text: &mut String, cube: &Cube, known: &Sides) {
    text.push_str(" (and true");
    for ((name, bits), ((first, last), known)) in FIELDS.into_iter().zip(cube.sides().zip(known)) {
        let digits = bits as usize / 4;
        if first > known.0 {
            let _ = write!(text, " (bvuge {name} #x{first:0digits$x})");
        }
        if last < known.1 {
            let _ = write!(text, " (bvule {name} #x{last:0digits$x})");
        }
    }
    text.push(')');
}

/// The packet that the solver found, if it did; it is one of the space.
fn ask(
    solver: &dyn Solver,
    text: Option<String>,
    space: &[Cube],
) -> Result<Option<Tuple>, Unsolved> {
    let said = solver.solve(&text.ok_or(Unsolved::Undecided)?)?;
    let (verdict, rest) = said.split_once('\n').ok_or(Unsolved::Undecided)?;
    match verdict.trim_end() {
        "sat" => {
            let packet = packet(rest).ok_or(Unsolved::Undecided)?;
            let there = space.iter().any(|part| part.has(&packet));
            if there || !guard!("proof-solver-shows") {
                Ok(Some(packet))
            } else {
                Err(Unsolved::Undecided)
            }
        }
        // It then says that there is no packet to show, which is no news.
        said if said == "unsat" || !guard!("proof-solver-unsat") => Ok(None),
        _ => Err(Unsolved::Undecided),
    }
}

/// Reads `((s #x...) (d #x...) (sp #x...) (dp #x...) (p #x...))`.
fn packet(said: &str) -> Option<Tuple> {
    let mut words = said
        .split(|c: char| c.is_whitespace() || c == '(' || c == ')')
        .filter(|word| !word.is_empty());
    let mut value = |name: &str| {
        let is_it = words.next()? == name;
        let digits = words.next()?.strip_prefix("#x")?;
        is_it.then(|| u128::from_str_radix(digits, 16).ok())?
    };
    Some(Tuple {
        source: value("s")?.to_be_bytes(),
        destination: value("d")?.to_be_bytes(),
        source_port: value("sp")?.try_into().ok()?,
        destination_port: value("dp")?.try_into().ok()?,
        protocol: value("p")?.try_into().ok()?,
    })
}
