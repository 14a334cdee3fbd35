//! Z3 is asked the same questions, in its own terms: bit vectors, not boxes.

use super::tables::small_table;
use super::*;
use image::rules::{Region, Rule};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

struct Z3 {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Z3 {
    fn start() -> Z3 {
        let mut child = Command::new("z3")
            .args(["-in", "-smt2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("z3 is installed (tools/setup test)");
        let mut to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        writeln!(
            to,
            "(set-logic QF_BV)
             (declare-const s (_ BitVec 128)) (declare-const d (_ BitVec 128))
             (declare-const sp (_ BitVec 16)) (declare-const dp (_ BitVec 16))
             (declare-const p (_ BitVec 8))
             (define-fun four ((a (_ BitVec 128))) Bool
               (= ((_ extract 127 32) a) #x00000000000000000000ffff))
             (assert (= (four s) (four d)))
             (assert (ite (or (= p #x06) (= p #x11)) true
               (ite (or (and (= p #x01) (four s)) (and (= p #x3a) (not (four s))))
                 (= sp #x0000) (and (= sp #x0000) (= dp #x0000)))))"
        )
        .unwrap();
        Z3 { child, to, from }
    }

    /// Whether the two tables differ anywhere.
    fn differ(&mut self, one: &RuleTable, other: &RuleTable) -> bool {
        let (one, other) = (table(one), table(other));
        writeln!(
            self.to,
            "(push) (assert (not (= {one} {other}))) (check-sat) (pop)"
        )
        .unwrap();
        self.to.flush().unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        match line.trim() {
            "sat" => true,
            "unsat" => false,
            other => panic!("z3 says {other}"),
        }
    }
}

impl Drop for Z3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn action(action: Action) -> u8 {
    action as u8
}

fn table(table: &RuleTable) -> String {
    let mut text = String::new();
    for rule in &table.rules {
        let Region {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
        } = &rule.region;
        let within = |name: &str, first: u128, last: u128, digits: usize| {
            format!("(bvule #x{first:0digits$x} {name}) (bvule {name} #x{last:0digits$x})")
        };
        let wide = |a: &[u8; 16]| u128::from_be_bytes(*a);
        text += &format!(
            "(ite (and {} {} {} {} {}) #x0{} ",
            within("s", wide(source.start()), wide(source.end()), 32),
            within("d", wide(destination.start()), wide(destination.end()), 32),
            within(
                "sp",
                (*source_port.start()).into(),
                (*source_port.end()).into(),
                4
            ),
            within(
                "dp",
                (*destination_port.start()).into(),
                (*destination_port.end()).into(),
                4
            ),
            within("p", (*protocol.start()).into(), (*protocol.end()).into(), 2),
            action(rule.action),
        );
    }
    text += &format!("#x0{}", action(table.default));
    text + &")".repeat(table.rules.len())
}

/// One change to a table; often one of no consequence.
fn mutate(table: &RuleTable, by: u32) -> RuleTable {
    let mut changed = table.clone();
    let n = changed.rules.len();
    let at = (by >> 4) as usize % n.max(1);
    match (by % 7, n) {
        (0, 1..) => drop(changed.rules.remove(at)),
        (1, 2..) => changed.rules.swap(at, (at + 1) % n),
        (2, 1..) => {
            let rule = &mut changed.rules[at];
            let (first, last) = (
                *rule.region.destination_port.start(),
                *rule.region.destination_port.end(),
            );
            rule.region.destination_port = first..=last.saturating_add(1);
        }
        (3, 1..) => changed.rules[at].action = Action::Allow,
        (4, 1..) => {
            let copy = changed.rules[at].clone();
            changed.rules.push(copy);
        }
        (5, 1..) => changed.rules[at].region.source = [0; 16]..=[0xff; 16],
        _ => changed.rules.insert(
            0,
            Rule {
                region: Region {
                    protocol: 6..=6,
                    destination_port: 22..=22,
                    ..Region::ALL
                },
                action: Action::Deny,
                log: false,
                id: 9,
            },
        ),
    }
    changed
}

/// Of `pairs` pairs of tables, random and mutated: both say the same of each.
fn agree(pairs: u32) {
    let mut z3 = Z3::start();
    let mut runner = TestRunner::deterministic();
    let space = packets(&anywhere(), &anywhere());
    let (mut same, mut different) = (0, 0);
    for n in 0..pairs {
        let rules = 4 + n as usize % 20;
        let one = small_table(rules).new_tree(&mut runner).unwrap().current();
        let other = mutate(&mutate(&one, n.wrapping_mul(2_654_435_761)), n / 7);
        let ours = difference(
            &Cubes::of(&one),
            &Cubes::of(&other),
            &space,
            &mut PLENTY.clone(),
        );
        let differ = ours.unwrap().is_some();
        assert_eq!(z3.differ(&one, &other), differ, "{one:?}\n{other:?}");
        if differ { different += 1 } else { same += 1 }
    }
    assert!(
        same > pairs / 10 && different > pairs / 10,
        "{same} {different}"
    );
}

#[test]
fn z3_agrees_about_random_and_mutated_tables() {
    agree(3000);
}

#[test]
#[ignore = "minutes: make test-full"]
fn z3_agrees_about_thousands_of_tables() {
    agree(50_000);
}
