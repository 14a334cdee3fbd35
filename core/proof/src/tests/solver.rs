//! The second engine's texts, by Z3 itself; and answers that are none.

use super::tables::{adversarial, decide, small_table};
use super::*;
use crate::solver::{difference as solved, passes as solved_passes, stopped as solved_stopped};
use image::rules::{Region, Rule};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::io::Write;
use std::process::{Command, Stdio};

/// The system's, a process a question.
struct Z3;

impl Solver for Z3 {
    fn solve(&self, text: &str) -> Result<String, Unsolved> {
        let mut child = Command::new("z3")
            .args(["-in", "-smt2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("z3 is installed (tools/setup test)");
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let out = child.wait_with_output().unwrap();
        Ok(String::from_utf8(out.stdout).unwrap())
    }
}

/// One that says this, whatever it is asked; and how often it was.
struct Says(&'static str, Cell<u32>);

impl Says {
    fn new(text: &'static str) -> Says {
        Says(text, Cell::new(0))
    }
}

impl Solver for Says {
    fn solve(&self, _: &str) -> Result<String, Unsolved> {
        self.1.set(self.1.get() + 1);
        Ok(self.0.to_owned())
    }
}

#[test]
fn the_texts_mean_what_the_boxes_mean() {
    let mut runner = TestRunner::deterministic();
    let space = packets(&anywhere(), &anywhere());
    let mut seen = [[0; 2]; 3];
    for n in 0..120 {
        let mut draw = |rules: usize| small_table(rules).new_tree(&mut runner).unwrap().current();
        let (one, mut other) = (draw(8), draw(8));
        if n % 2 == 0 {
            other = one.clone();
            other.rules.extend(draw(2).rules);
        }
        let wanted = if n % 3 == 0 {
            Cubes::partial(&other)
        } else {
            Cubes::of(&other)
        };
        let about: Vec<Cube> = match draw(1).rules.first().map(|r| Cube::of(&r.region)) {
            Some(asked) => space.iter().filter_map(|part| part.and(&asked)).collect(),
            None => space.clone(),
        };
        let lists = [&Cubes::of(&one), &Cubes::of(&other)];
        let mut plenty = PLENTY;

        let ours = difference(lists[0], &wanted, &about, &mut plenty).unwrap();
        let theirs = solved(&Z3, lists[0], &wanted, &about).unwrap();
        assert_eq!(ours.is_some(), theirs.is_some(), "{one:?}\n{other:?}");
        if let Some(witness) = theirs {
            assert!(in_space(&witness.packet));
            assert_eq!(witness.installed, decide(&one, &witness.packet));
            assert_ne!(witness.installed.0, witness.wanted.0);
        }
        let open = passes(&lists, &about, &mut plenty).unwrap();
        assert_eq!(
            solved_passes(&Z3, &lists, &about).unwrap().is_some(),
            open.is_some()
        );
        let shut = stopped(&lists, &about, &mut plenty).unwrap();
        assert_eq!(
            solved_stopped(&Z3, &lists, &about).unwrap().is_some(),
            shut.is_some()
        );
        for (kind, found) in [ours.is_some(), open.is_some(), shut.is_some()]
            .into_iter()
            .enumerate()
        {
            seen[kind][usize::from(found)] += 1;
        }
    }
    assert!(seen.iter().flatten().all(|n| *n > 5), "{seen:?}");
}

/// Tiles across every field, mixed: the boxes' fuel is not for these.
fn tiles(rules: u64) -> RuleTable {
    let mut dice = 88_172_645_463_325_252u64;
    let mut roll = || {
        // Xorshift (Marsaglia, 2003).
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 20) as u16
    };
    let rule = |n| {
        let mut range = || {
            let (a, b) = (roll(), roll());
            (a.min(b), a.max(b))
        };
        let at = |n: u16| (0xffff_0a00_0000 + u128::from(n)).to_be_bytes();
        let addresses = |(a, b)| at(a)..=at(b);
        Rule {
            region: Region {
                source: addresses(range()),
                destination: addresses(range()),
                source_port: {
                    let r = range();
                    r.0..=r.1
                },
                destination_port: {
                    let r = range();
                    r.0..=r.1
                },
                protocol: 6..=6,
            },
            action: if n % 3 == 0 {
                Action::Deny
            } else {
                Action::Allow
            },
            log: false,
            id: n as u32,
        }
    };
    RuleTable {
        rules: (0..rules).map(rule).collect(),
        default: Action::Deny,
    }
}

#[test]
fn what_spends_the_fuel_is_settled_either_way() {
    let space = packets(&anywhere(), &anywhere());
    let table = tiles(360);
    // Who stand side by side and do the same may change places.
    let mut same = table.clone();
    for at in 1..same.rules.len() {
        if same.rules[at].action == same.rules[at - 1].action {
            same.rules.swap(at, at - 1);
        }
    }
    let mut other = same.clone();
    other.default = Action::Allow;
    let ask = |other: &RuleTable| {
        let (one, other) = (Cubes::of(&table), Cubes::of(other));
        let mut fuel = Fuel(TABLE_FUEL);
        assert_eq!(difference(&one, &other, &space, &mut fuel), Err(OutOfFuel));
        solved(&Z3, &one, &other, &space).unwrap()
    };
    assert_eq!(ask(&same), None);
    let witness = ask(&other).expect("it is another table");
    assert_eq!(witness.installed, decide(&table, &witness.packet));
    assert_ne!(witness.installed.0, decide(&other, &witness.packet).0);
}

#[test]
fn only_answers_are_taken_for_answers() {
    let [one, other] = adversarial(8);
    let mut open = one.clone();
    open.default = Action::AllowStateless;
    let space = packets(&anywhere(), &anywhere());
    let ask = |said: &'static str, other: &RuleTable| {
        solved(
            &Says::new(said),
            &Cubes::of(&one),
            &Cubes::of(other),
            &space,
        )
    };
    assert_eq!(ask("unsat\n(error \"no model\")\n", &other), Ok(None));
    let packet = "sat\n((s #x00000000000000000000ffff0a000001)\n (d #x00000000000000000000ffff0a000002)\n (sp #xfffe)\n (dp #xffff)\n (p #x06))\n";
    // It shows a difference of the one pair, and none of the other.
    assert!(ask(packet, &open).unwrap().is_some());
    for (said, other) in [
        (packet, &other),
        ("", &other),
        ("unsat", &other),
        ("unknown\n", &other),
        ("timeout\n", &other),
        ("(error \"line 3: unknown constant\")\nunsat\n", &other),
        ("sat\n", &open),
        (
            "sat\n((s #x00) (d #x00) (sp #x00) (dp #x00) (p #x1ff))\n",
            &open,
        ),
        // From the one family to the other.
        (
            "sat\n((s #x00000000000000000000ffff0a000001) (d #x20010000000000000000000000000001) (sp #xfffe) (dp #xffff) (p #x06))\n",
            &open,
        ),
    ] {
        assert_eq!(ask(said, other), Err(Unsolved::Undecided), "{said}");
    }
}

#[test]
fn a_text_that_is_too_long_is_never_asked() {
    let space = packets(&anywhere(), &anywhere());
    let table = tiles(45_000);
    let says = Says::new("unsat\n\n");
    let asked = solved(&says, &Cubes::of(&table), &Cubes::of(&table), &space);
    assert_eq!((asked, says.1.get()), (Err(Unsolved::Undecided), 0));
}
