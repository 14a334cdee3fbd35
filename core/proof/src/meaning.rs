//! What lists of rules mean: which packets each lets through, and where two differ.

use crate::cube::{Cube, Fuel, OutOfFuel, uncovered};
use guard::guard;
use image::rules::{Action, RuleTable};
use wire::Tuple;

/// A list of rules as boxes.
#[derive(Clone, Debug)]
pub struct Cubes {
    rules: Vec<(Cube, Action)>,
    /// What holds for the rest; `None` = the list says nothing about it.
    default: Option<Action>,
}

/// A packet about which two lists disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The packet.
    pub packet: Tuple,
    /// What the installed list does, and by which of its rules (`None`: its default).
    pub installed: (Action, Option<usize>),
    /// What was to happen, likewise.
    pub wanted: (Action, Option<usize>),
}

impl Cubes {
    /// Of boxes in their order, and what holds for the rest (`None` = nothing is said).
    pub fn new(rules: Vec<(Cube, Action)>, default: Option<Action>) -> Cubes {
        Cubes { rules, default }
    }

    /// Of a whole table.
    pub fn of(table: &RuleTable) -> Cubes {
        Cubes {
            rules: boxes(table),
            default: Some(table.default),
        }
    }

    /// Of a table's rules without its default: it says nothing about the rest.
    pub fn partial(table: &RuleTable) -> Cubes {
        Cubes {
            rules: boxes(table),
            default: None,
        }
    }

    pub(crate) fn rules(&self) -> &[(Cube, Action)] {
        &self.rules
    }

    pub(crate) fn default(&self) -> Option<Action> {
        self.default
    }

    /// What it does with a packet, and by which of its rules (`None`: its default); `None`:
    /// it says nothing about it.
    pub(crate) fn decide(&self, packet: &Tuple) -> Option<(Action, Option<usize>)> {
        let by = self.rules.iter().position(|(cube, _)| cube.has(packet));
        let rule = by.and_then(|at| self.rules.get(at));
        let action = rule.map(|(_, action)| *action).or(self.default)?;
        Some((action, by))
    }

    pub(crate) fn lets_through(&self, packet: &Tuple) -> bool {
        self.decide(packet)
            .is_some_and(|(action, _)| action != Action::Deny)
    }

    fn actions(&self) -> impl Iterator<Item = (usize, Option<Cube>, Action)> {
        let rules = self
            .rules
            .iter()
            .enumerate()
            .map(|(at, (cube, action))| (at, Some(*cube), *action));
        rules.chain(
            self.default
                .map(|default| (self.rules.len(), None, default)),
        )
    }

    fn name(&self, at: usize) -> Option<usize> {
        (at < self.rules.len()).then_some(at)
    }
}

fn boxes(table: &RuleTable) -> Vec<(Cube, Action)> {
    table
        .rules
        .iter()
        .map(|rule| (Cube::of(&rule.region), rule.action))
        .collect()
}

/// A packet of `space` about which the installed list differs from the wanted one,
/// where that one says something.
///
/// # Errors
/// [`OutOfFuel`]: not proved.
pub fn difference(
    installed: &Cubes,
    wanted: &Cubes,
    space: &[Cube],
    fuel: &mut Fuel,
) -> Result<Option<Witness>, OutOfFuel> {
    // What both begin with decides alike in both: only what comes behind can differ.
    let alike = installed
        .rules
        .iter()
        .zip(&wanted.rules)
        .take_while(|(a, b)| a == b)
        .count();
    let all_alike = alike == installed.rules.len() && alike == wanted.rules.len();
    if all_alike && (installed.default == wanted.default || wanted.default.is_none()) {
        return Ok(None);
    }
    for (at, cube, does) in installed.actions().skip(alike) {
        for (to, wish, wants) in wanted.actions().skip(alike) {
            if does == wants {
                fuel.burn(1)?;
                continue;
            }
            fuel.burn(space.len())?;
            let earlier = installed.rules.iter().take(at);
            let other = wanted.rules.iter().take(to).skip(alike);
            for part in parts(&[cube, wish], space) {
                let blockers = earlier.clone().chain(other.clone()).map(|(cube, _)| cube);
                if let Some(left) = uncovered(&part, blockers, fuel)? {
                    return Ok(Some(Witness {
                        packet: left.packet(),
                        installed: (does, installed.name(at)),
                        wanted: (wants, wanted.name(to)),
                    }));
                }
            }
        }
    }
    Ok(None)
}

/// A packet of `space` that every one of these lists lets through: what passes one
/// after the other.
///
/// # Errors
/// [`OutOfFuel`]: not proved.
pub fn passes(
    lists: &[&Cubes],
    space: &[Cube],
    fuel: &mut Fuel,
) -> Result<Option<Tuple>, OutOfFuel> {
    let mut chosen = Vec::new();
    choose(lists, &mut chosen, space, fuel)
}

/// One passing rule of each list in turn; what they have in common, less what is denied
/// before any of them, passes.
fn choose<'a>(
    lists: &[&'a Cubes],
    chosen: &mut Vec<(&'a Cubes, usize)>,
    space: &[Cube],
    fuel: &mut Fuel,
) -> Result<Option<Tuple>, OutOfFuel> {
    let Some((list, later)) = lists.split_first() else {
        for part in space {
            let blockers = chosen
                .iter()
                .flat_map(|(list, at)| list.rules.iter().take(*at))
                .filter(|(_, action)| guard!("proof-denied-before") && *action == Action::Deny)
                .map(|(cube, _)| cube);
            if let Some(left) = uncovered(part, blockers, fuel)? {
                return Ok(Some(left.packet()));
            }
        }
        return Ok(None);
    };
    for (at, cube, action) in list.actions() {
        if action == Action::Deny {
            fuel.burn(1)?;
            continue;
        }
        fuel.burn(space.len())?;
        let rest: Vec<Cube> = parts(&[cube], space).collect();
        if rest.is_empty() {
            continue;
        }
        chosen.push((list, at));
        let found = choose(later, chosen, &rest, fuel)?;
        chosen.pop();
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// A packet of `space` that one of these lists stops, and which: the opposite question
/// of [`passes`].
///
/// # Errors
/// [`OutOfFuel`]: not proved.
pub fn stopped(
    lists: &[&Cubes],
    space: &[Cube],
    fuel: &mut Fuel,
) -> Result<Option<(usize, Tuple)>, OutOfFuel> {
    for (which, list) in lists.iter().enumerate() {
        for (at, cube, action) in list.actions() {
            if action != Action::Deny {
                fuel.burn(1)?;
                continue;
            }
            fuel.burn(space.len())?;
            for part in parts(&[cube], space) {
                let before = list
                    .rules
                    .iter()
                    .take(at)
                    .filter(|(_, action)| *action != Action::Deny)
                    .map(|(cube, _)| cube);
                if let Some(left) = uncovered(&part, before, fuel)? {
                    return Ok(Some((which, left.packet())));
                }
            }
        }
    }
    Ok(None)
}

/// What each part of the space has in common with all these boxes (`None` = all).
fn parts<'a>(cubes: &[Option<Cube>], space: &'a [Cube]) -> impl Iterator<Item = Cube> + 'a {
    let both = cubes
        .iter()
        .flatten()
        .try_fold(None::<Cube>, |so_far, cube| match so_far {
            None => Some(Some(*cube)),
            Some(so_far) => so_far.and(cube).map(Some),
        });
    // Outer `None`: they have nothing in common.
    space.iter().filter_map(move |part| match both {
        None => None,
        Some(None) => Some(*part),
        Some(Some(cube)) => part.and(&cube),
    })
}
